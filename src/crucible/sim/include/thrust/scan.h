#error "crucible-sim: Thrust (<thrust/scan.h>) is not simulated"
