// Not simulated.
#pragma once
#error "crucible-sim: cub::BlockDiscontinuity is not simulated"
