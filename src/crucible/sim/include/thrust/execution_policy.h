#error "crucible-sim: Thrust (<thrust/execution_policy.h>) is not simulated"
