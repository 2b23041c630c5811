// Not simulated.
#pragma once
#error "crucible-sim: cub::DeviceRunLengthEncode is not simulated"
