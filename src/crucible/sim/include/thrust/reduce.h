#error "crucible-sim: Thrust (<thrust/reduce.h>) is not simulated"
