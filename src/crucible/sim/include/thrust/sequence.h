#error "crucible-sim: Thrust (<thrust/sequence.h>) is not simulated"
