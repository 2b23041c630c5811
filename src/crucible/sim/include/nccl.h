#error "crucible-sim: NCCL (<nccl.h>) is not simulated"
