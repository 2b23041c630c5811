#error "crucible-sim: Thrust (<thrust/fill.h>) is not simulated"
