// Not simulated.
#pragma once
#error "crucible-sim: cub::WarpStore is not simulated"
