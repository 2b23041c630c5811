// <torch/all.h>: the precompiled prefix stands in for it; the real header is let through where the whole of torch is asked for.
#pragma once
#ifdef CRUCIBLE_INSIDE_PREFIX
#include_next <torch/all.h>
#else
#include "crucible_torch.h"
#endif
