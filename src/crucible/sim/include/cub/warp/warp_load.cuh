// Not simulated.
#pragma once
#error "crucible-sim: cub::WarpLoad is not simulated"
