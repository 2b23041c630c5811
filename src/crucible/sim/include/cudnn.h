#error "crucible-sim: cuDNN (<cudnn.h>) is not simulated"
