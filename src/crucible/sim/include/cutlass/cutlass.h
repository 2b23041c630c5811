#error "crucible-sim: CUTLASS (<cutlass/cutlass.h>) is not simulated"
