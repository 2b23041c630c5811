// __pipeline_memcpy_async and friends: the C spelling of cp.async.
#pragma once

#include "csim/async.h"

static inline __attribute__((always_inline)) void __pipeline_memcpy_async(void* __restrict__ target,
                                                                          const void* __restrict__ source,
                                                                          size_t bytes, size_t zero_fill = 0) {
    csim::async::copy(target, source, (uint32_t)bytes, (uint32_t)(bytes - zero_fill), "__pipeline_memcpy_async");
}
static inline void __pipeline_commit() { csim::async::commit(); }
static inline void __pipeline_wait_prior(size_t stages) { csim::async::wait_group((uint32_t)stages); }
