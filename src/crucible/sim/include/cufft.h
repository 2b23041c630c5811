#error "crucible-sim: cuFFT (<cufft.h>) is not simulated"
