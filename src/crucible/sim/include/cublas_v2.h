#error "crucible-sim: cuBLAS (<cublas_v2.h>) is not simulated"
