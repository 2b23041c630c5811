#error "crucible simulator: <ATen/cuda/CUDASparse.h> is not supported (vendor libraries and torch CUDA generators are not simulated)"
