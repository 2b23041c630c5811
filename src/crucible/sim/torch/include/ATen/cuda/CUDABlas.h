#error "crucible simulator: <ATen/cuda/CUDABlas.h> is not supported (vendor libraries and torch CUDA generators are not simulated)"
