// Not simulated.
#pragma once
#error "crucible-sim: cub::DeviceSelect is not simulated"
