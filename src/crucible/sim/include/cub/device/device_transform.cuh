// Not simulated.
#pragma once
#error "crucible-sim: cub::DeviceTransform is not simulated"
