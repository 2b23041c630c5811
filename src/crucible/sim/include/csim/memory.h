// Addresses in shared memory as 32-bit numbers, which is what ldmatrix, cp.async and ld.shared take.
//
// In here shared memory lies anywhere in the host's address space. A shared address is the low half of the host
// address; the other half is remembered when a pointer is converted, and put back when the number is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csim/abi.h"

// Wrappers that may file a report are always inlined: the report's line is then the line that used them.
#define CSIM_HERE inline __attribute__((always_inline))
// The body of a warp collective: works on other threads' slots and on memory that was checked before.
#define CSIM_EXEC __attribute__((no_sanitize("thread"), no_sanitize("undefined")))

namespace csim {
// The place of the call, for checks made on behalf of the code around it.
[[gnu::noinline]] inline void* here() {
    asm volatile("");
    return __builtin_return_address(0);
}

// A check on behalf of a wrapper, in builds that check their own accesses too.
CSIM_HERE void check_access([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes,
        [[maybe_unused]] bool write) {
#ifdef __SANITIZE_THREAD__
    csim_access(p, bytes, write, 0, nullptr);
#endif
}

// The 4 GiB stretches of host memory in which converted pointers lay, and where in them. One or two in practice.
struct SharedWindows {
    struct Window {
        uintptr_t high = 0, low = 0, top = 0;  // the upper half; lowest and highest pointer seen
    };
    Window seen[8] = {};
    int count = 0;

    CSIM_PLAIN void remember(uintptr_t p) {
        for (int i = 0; i < count; ++i)
            if (seen[i].high == p >> 32) {
                if (p < seen[i].low) seen[i].low = p;
                if (p > seen[i].top) seen[i].top = p;
                return;
            }
        Window window{p >> 32, p, p};
        if (count < 8) seen[count++] = window;
        else seen[7] = window;
    }
    // The host address nearest to a pointer that was converted before; addresses a little past an array stay beside it,
    // so that the bounds check can name that array.
    CSIM_PLAIN uintptr_t resolve(uint32_t address) const {
        uintptr_t best = address, best_distance = UINTPTR_MAX;
        for (int i = 0; i < count; ++i) {
            const Window& w = seen[i];
            for (intptr_t carry = -1; carry <= 1; ++carry) {
                uintptr_t p = (w.high + (uintptr_t)carry) << 32 | address;
                uintptr_t distance = p < w.low ? w.low - p : p > w.top ? p - w.top : 0;
                if (distance < best_distance) best = p, best_distance = distance;
            }
        }
        return best;
    }
};
inline constinit SharedWindows shared_windows;

CSIM_PLAIN inline size_t to_shared(const volatile void* p) {
    shared_windows.remember((uintptr_t)p);
    return (uint32_t)(uintptr_t)p;
}
CSIM_HERE void* from_shared(uint64_t address) {
    if (address >> 32)
        csim_fail("out_of_bounds",
                  "0x%llx is used as an address in shared memory, but is a generic pointer; convert it with "
                  "__cvta_generic_to_shared first",
                  (unsigned long long)address);
    return (void*)shared_windows.resolve((uint32_t)address);
}
// Static shared arrays are not told apart from the host's own data here; what is neither device memory nor close to a
// pointer that was used as shared is taken for something else.
CSIM_PLAIN inline bool in_dynamic_shared(const volatile void* p) {
    uintptr_t base = (uintptr_t)csim_dynamic_shared();
    return (uintptr_t)p - base < csim_dynamic_shared_bytes();
}
}  // namespace csim

// Macros, so that they replace the plain conversions of builtins.h also for code written before this point.
#define __cvta_generic_to_shared(pointer) csim::to_shared(pointer)
#define __cvta_shared_to_generic(address) csim::from_shared(address)

// Templates: an ordinary function of the same name, should one exist, is preferred.
template <class = void> inline unsigned __isShared(const void* p) {
    return csim::in_dynamic_shared(p) || !csim_is_device(p);
}
template <class = void> inline unsigned __isConstant(const void*) { return 0; }
template <class = void> inline unsigned __isLocal(const void*) { return 0; }
template <class = void> inline unsigned __isGridConstant(const void*) { return 0; }
