// Not simulated.
#pragma once
#error "crucible-sim: cub::BlockShuffle is not simulated"
