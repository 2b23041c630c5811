#error "crucible-sim: Thrust (<thrust/extrema.h>) is not simulated"
