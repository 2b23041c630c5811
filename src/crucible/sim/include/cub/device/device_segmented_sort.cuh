// Not simulated.
#pragma once
#error "crucible-sim: cub::DeviceSegmentedSort is not simulated"
