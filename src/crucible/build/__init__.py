"""Compile and cache: g++ for the simulator, NVRTC for every architecture, nvcc (through torch) for a GPU."""

from crucible.build.errors import BuildError

__all__ = ["BuildError"]
