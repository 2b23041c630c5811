// Not simulated.
#pragma once
#error "crucible-sim: cub::BlockHistogram is not simulated"
