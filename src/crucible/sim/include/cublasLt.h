#error "crucible-sim: cuBLASLt (<cublasLt.h>) is not simulated"
