#error "crucible-sim: Thrust (<thrust/functional.h>) is not simulated"
