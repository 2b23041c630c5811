#error "crucible-sim: Thrust (<thrust/host_vector.h>) is not simulated"
