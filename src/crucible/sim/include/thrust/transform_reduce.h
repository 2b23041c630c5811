#error "crucible-sim: Thrust (<thrust/transform_reduce.h>) is not simulated"
