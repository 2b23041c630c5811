"""A Model as a graph of ATen operators: captured, simplified, verified, ready to be planned into kernels."""
