#error "crucible-sim: asynchronous barriers (<cuda_awbarrier_primitives.h>) is not simulated"
