// Not simulated.
#pragma once
#error "crucible-sim: cub::BlockRunLengthDecode is not simulated"
