#error "crucible-sim: CUTLASS (<cutlass/numeric_types.h>) is not simulated"
