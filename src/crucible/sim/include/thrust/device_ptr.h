#error "crucible-sim: Thrust (<thrust/device_ptr.h>) is not simulated"
