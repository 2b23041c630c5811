// cp.async and __pipeline_memcpy_async: copies into shared memory that are not there until they were waited for
// (runtime/async.cpp keeps them).
#pragma once

#include <stdint.h>

#include "csim/abi.h"

extern "C" {
// size: 4, 8 or 16 (16 only, if `only_16`). Bytes past `source_bytes` are filled with zeros. `checked`: does the module
// check its own accesses? Then these are checked too.
void csim_async_copy(void* target, const void* source, unsigned size, unsigned source_bytes, const char* name,
        int only_16,
                     int checked);
void csim_async_commit(void);
void csim_async_wait_group(unsigned groups_left);
void csim_async_wait_all(void);
}

namespace csim::async {
// The optional last operand of cp.async: how many bytes to read, or (a predicate) whether to ignore the source.
inline uint32_t source_bytes(bool ignore_source, uint32_t size) { return ignore_source ? 0 : size; }
template <class T> inline uint32_t source_bytes(T bytes, uint32_t) { return (uint32_t)bytes; }

inline __attribute__((always_inline)) void copy(void* target, const void* source, uint32_t size, uint32_t source_bytes,
                                                const char* name, bool only_16 = false) {
#ifdef __SANITIZE_THREAD__
    csim_async_copy(target, source, size, source_bytes, name, only_16, 1);
#else
    csim_async_copy(target, source, size, source_bytes, name, only_16, 0);
#endif
}
inline void commit() { csim_async_commit(); }
inline void wait_group(uint32_t still_in_flight) { csim_async_wait_group(still_in_flight); }
inline void wait_all() { csim_async_wait_all(); }
}  // namespace csim::async
