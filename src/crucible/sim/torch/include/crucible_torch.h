// Prefix header of every torch extension that is compiled for the simulator; precompiled once.
// The order matters: the C++ library, torch, NVIDIA's own headers as a host compiler sees them, then the simulator.
#pragma once
#include <algorithm>
#include <array>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef CRUCIBLE_BARE  // a source that speaks of pointers and sizes only: nothing of torch
#elif defined CRUCIBLE_FULL_TORCH  // torch::nn, torch::autograd and the rest: three times slower to compile, seldom needed
#define CRUCIBLE_INSIDE_PREFIX
#include <torch/extension.h>
#undef CRUCIBLE_INSIDE_PREFIX
#elif defined CRUCIBLE_THIN
#include "crucible_thin.h"
#else  // tensors and all operators
#include <torch/types.h>

#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorUtils.h>
#include <ATen/ceil_div.h>
#ifdef CRUCIBLE_PYBIND11  // only where the source itself speaks pybind11: it triples the time of every compile
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#endif
#endif

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math_constants.h>

#include "crucible_sim.h"

#ifdef CRUCIBLE_BARE
#include "crucible_bind_bare.h"
#else
#include "crucible_c10.h"
#ifndef CRUCIBLE_PYBIND11
#include "crucible_bind.h"
#endif
#endif
