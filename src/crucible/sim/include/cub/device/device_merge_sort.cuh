// Not simulated.
#pragma once
#error "crucible-sim: cub::DeviceMergeSort is not simulated"
