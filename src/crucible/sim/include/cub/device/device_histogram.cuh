// Not simulated.
#pragma once
#error "crucible-sim: cub::DeviceHistogram is not simulated"
