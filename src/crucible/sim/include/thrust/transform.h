#error "crucible-sim: Thrust (<thrust/transform.h>) is not simulated"
