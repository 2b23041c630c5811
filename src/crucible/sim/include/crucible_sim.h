// Prefix header of every CUDA source that g++ compiles for the simulator.
//
// It must come after the C++ library, torch (where there is one) and NVIDIA's host headers, all of which it includes
// itself if nobody has: those headers are written for a host compiler and must not see CUDA's qualifiers the way
// kernels do.
#ifndef CRUCIBLE_SIM_H
#define CRUCIBLE_SIM_H

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "csim/abi.h"

#define CRUCIBLE_SIM 1

#include "csim/builtins.h"
#include "csim/shared.h"
#include "csim/collectives.h"
#include "csim/atomics.h"
#include "csim/launch.h"
#if __has_include("csim/math.h")
#include "csim/math.h"
#endif
#if __has_include("csim/fp16.h")
#include "csim/fp16.h"
#endif
#if __has_include("csim/simd.h")
#include "csim/simd.h"
#endif
#if __has_include("csim/ptx.h")
#include "csim/ptx.h"
#endif
#if __has_include("csim/mma.h")
#include "csim/mma.h"
#endif
#if __has_include("csim/async.h")
#include "csim/async.h"
#endif
// a prefix header that goes on to include host headers defines this and includes csim/arch.h itself
#ifndef CSIM_LATE_ARCH
#include "csim/arch.h"
#endif

#endif
