#error "crucible-sim: Thrust (<thrust/device_vector.h>) is not simulated"
