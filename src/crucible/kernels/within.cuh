// Indices that come out of tensors: whoever gives one that is none learns of it, as from torch's own kernels.
#pragma once

#include <assert.h>

#include "common.cuh"

namespace crucible {

__device__ __forceinline__ int64_t i_within(int64_t index, int64_t extent) {
  assert(index >= 0 && index < extent && "index out of bounds");
  return index;
}

}  // namespace crucible
