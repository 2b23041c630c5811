#error "crucible-sim: CuTe (CUTLASS) (<cute/tensor.hpp>) is not simulated"
