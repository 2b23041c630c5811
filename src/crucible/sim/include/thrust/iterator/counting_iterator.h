#error "crucible-sim: Thrust (<thrust/iterator/counting_iterator.h>) is not simulated"
