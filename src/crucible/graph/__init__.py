"""A Model as a graph of ATen operators: captured, simplified, verified, ready to be planned into kernels."""

from crucible.torch_version import require_to_fuse

require_to_fuse()
