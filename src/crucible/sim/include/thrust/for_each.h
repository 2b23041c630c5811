#error "crucible-sim: Thrust (<thrust/for_each.h>) is not simulated"
