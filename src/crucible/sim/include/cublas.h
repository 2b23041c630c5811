#error "crucible-sim: cuBLAS (<cublas.h>) is not simulated"
