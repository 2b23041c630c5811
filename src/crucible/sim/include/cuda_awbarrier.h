#error "crucible-sim: asynchronous barriers (<cuda_awbarrier.h>) is not simulated"
