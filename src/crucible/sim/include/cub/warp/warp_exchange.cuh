// Not simulated.
#pragma once
#error "crucible-sim: cub::WarpExchange is not simulated"
