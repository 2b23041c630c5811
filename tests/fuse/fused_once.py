"""The problems, each fused once with no options: several tests look at what came of it."""

from __future__ import annotations

import functools

from crucible.fuse import fuse_problem

fused_once = functools.cache(fuse_problem)
