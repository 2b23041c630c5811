#error "crucible-sim: Thrust (<thrust/sort.h>) is not simulated"
