// Not simulated.
#pragma once
#error "crucible-sim: cub::DeviceSegmentedRadixSort is not simulated"
