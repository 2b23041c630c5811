// Not simulated.
#pragma once
#error "crucible-sim: cub::BlockMergeSort is not simulated"
