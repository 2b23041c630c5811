#error "crucible-sim: Thrust (<thrust/copy.h>) is not simulated"
