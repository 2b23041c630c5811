// Not simulated.
#pragma once
#error "crucible-sim: cub::BlockAdjacentDifference is not simulated"
