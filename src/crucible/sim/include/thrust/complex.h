#error "crucible-sim: Thrust (<thrust/complex.h>) is not simulated"
