"""Which architecture CUDA source is compiled for: said as nvcc and torch say it, seen by the source as macros.

The simulated chip is one of compute capability 9.0. A build is for ``sm_90`` unless it asks for ``sm_90a``, the one
that has wgmma and setmaxnreg and defines ``__CUDA_ARCH_FEAT_SM90_ALL``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

PLAIN, HOPPER = "sm_90", "sm_90a"
ARCHITECTURES = (PLAIN, HOPPER)
_TORCH_VARIABLE = "TORCH_CUDA_ARCH_LIST"


def requested(flags: Sequence[str], otherwise: str = PLAIN) -> str:
    """The architecture that nvcc's ``flags`` name, else the one in torch's environment variable, else ``otherwise``."""
    text = " ".join(flags)
    if re.search(r"\b(?:arch|gpu-architecture|code|gpu-code)\b[= ]", text):
        return HOPPER if re.search(r"\b(?:compute|sm|lto)_90a\b", text) else PLAIN
    listed = os.environ.get(_TORCH_VARIABLE, "")
    if listed:
        return HOPPER if re.search(r"\b9\.0a\b", listed) else PLAIN
    return otherwise


def macros(architecture: str) -> str:
    """Lines to put before a source that is compiled for ``architecture``."""
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{architecture} is not among the simulated architectures: {', '.join(ARCHITECTURES)}")
    if architecture == PLAIN:
        return ""
    defined = ("CSIM_SM90A 1", "__CUDA_ARCH_FEAT_SM90_ALL 1", "__CUDA_ARCH_SPECIFIC__ 900",
               "__CUDA_ARCH_FAMILY_SPECIFIC__ 900")  # fmt: skip
    return "#undef CSIM_SM90A\n" + "".join(f"#define {each}\n" for each in defined)
