// Not simulated.
#pragma once
#error "crucible-sim: cub::WarpMergeSort is not simulated"
