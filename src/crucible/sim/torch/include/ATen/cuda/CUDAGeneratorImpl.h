#error "crucible simulator: <ATen/cuda/CUDAGeneratorImpl.h> is not supported (vendor libraries and torch CUDA generators are not simulated)"
