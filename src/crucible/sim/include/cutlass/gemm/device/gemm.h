#error "crucible-sim: CUTLASS (<cutlass/gemm/device/gemm.h>) is not simulated"
