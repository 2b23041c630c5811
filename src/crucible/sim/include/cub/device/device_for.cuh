// Not simulated.
#pragma once
#error "crucible-sim: cub::DeviceFor is not simulated"
