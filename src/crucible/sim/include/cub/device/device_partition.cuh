// Not simulated.
#pragma once
#error "crucible-sim: cub::DevicePartition is not simulated"
