// The functions that g++ -fsanitize=thread calls before every load and store. libtsan is never linked: these take its
// place.
//
// They are called by host code of the same module too, which must get through quickly and unharmed; atomics in
// particular must do their work, because under the sanitizer the call *is* the atomic operation.
#include <cstring>

#include "check.h"

using namespace csim;

#define CSIM_PC __builtin_return_address(0)

extern "C" {

void csim_volatile_read(const void* p, size_t n, void* pc);

void __tsan_init(void) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void) {}

#define CSIM_HOOKS(N)                                                                     \
    void __tsan_read##N(void* p) { check_access<N, kRead>(p, CSIM_PC); }                  \
    void __tsan_write##N(void* p) { check_access<N, kWrite>(p, CSIM_PC); }                \
    void __tsan_unaligned_read##N(void* p) { check_access<N, kRead>(p, CSIM_PC); }        \
    void __tsan_unaligned_write##N(void* p) { check_access<N, kWrite>(p, CSIM_PC); }      \
    void __tsan_read_write##N(void* p) {                                                  \
        check_access<N, kRead>(p, CSIM_PC);                                               \
        check_access<N, kWrite>(p, CSIM_PC);                                              \
    }                                                                                     \
    void __tsan_volatile_read##N(void* p) { volatile_read(p, N, CSIM_PC); }               \
    void __tsan_volatile_write##N(void* p) { volatile_write(p, N, CSIM_PC); }             \
    void __tsan_unaligned_volatile_read##N(void* p) { volatile_read(p, N, CSIM_PC); }     \
    void __tsan_unaligned_volatile_write##N(void* p) { volatile_write(p, N, CSIM_PC); }

// A volatile access of global memory is a relaxed atomic, as flags between blocks are written. In shared memory it is a
// plain access: warp-synchronous code without __syncwarp is a race on every chip since Volta.
static inline bool shared_address(uintptr_t a) {
    return a - hot.shared.low < hot.shared.size || a - hot.arena_base < Arena::kSharedZone;
}
static inline bool plausible(uintptr_t a) {   // may it be dereferenced before it has been checked?
    return a - hot.shared.low < hot.shared.size || a - hot.arena_base < hot.arena_size;
}
static void volatile_read(void* p, size_t n, void* pc) {
    if (!active_hot) return;
    if (stacks.contains(uintptr_t(p))) return;
    hot.budget--;
    // The check comes last: it looks at what has been published to us, and others may run while we poll.
    if (plausible(uintptr_t(p))) csim_volatile_read(p, n, pc);
    slow_access(uintptr_t(p), n, shared_address(uintptr_t(p)) ? kRead | kVolatile : kAtomicAccess, pc);
}
static void volatile_write(void* p, size_t n, void* pc) {
    if (!active_hot) return;
    if (stacks.contains(uintptr_t(p))) return;
    hot.budget--;
    current->poll_count = 0;
    launch->progress++;
    slow_access(uintptr_t(p), n, shared_address(uintptr_t(p)) ? kWrite : kWrite | kAtomicAccess | kVolatile, pc);
}

CSIM_HOOKS(1)
CSIM_HOOKS(2)
CSIM_HOOKS(4)
CSIM_HOOKS(8)
CSIM_HOOKS(16)

void __tsan_read_range(void* p, size_t n) {
    if (active_hot) hot.budget--, slow_access(uintptr_t(p), n, kRead, CSIM_PC);
}
void __tsan_write_range(void* p, size_t n) {
    if (active_hot) hot.budget--, slow_access(uintptr_t(p), n, kWrite, CSIM_PC);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// What is left of memcpy and memset in device code after the compiler has expanded the small ones (linked with --wrap).
void* __wrap_memcpy(void* to, const void* from, size_t n) {
    if (active_hot && n) {
        slow_access(uintptr_t(from), n, kRead, CSIM_PC);
        slow_access(uintptr_t(to), n, kWrite, CSIM_PC);
    }
    return memcpy(to, from, n);
}
void* __wrap_memmove(void* to, const void* from, size_t n) {
    if (active_hot && n) {
        slow_access(uintptr_t(from), n, kRead, CSIM_PC);
        slow_access(uintptr_t(to), n, kWrite, CSIM_PC);
    }
    return memmove(to, from, n);
}
void* __wrap_memset(void* to, int value, size_t n) {
    if (active_hot && n) slow_access(uintptr_t(to), n, kWrite, CSIM_PC);
    return memset(to, value, n);
}

}  // extern "C"

namespace {
struct AtomicAccess {   // a device thread's atomic is checked before and watched for polling after; the host's passes
    const void* address;
    size_t bytes;
    bool device;
    AtomicAccess(const volatile void* p, size_t n, int kind, void* pc)
        : address(const_cast<const void*>(p)), bytes(n), device(active_hot != nullptr) {
        if (device) csim_atomic_begin(address, bytes, kind, pc);
    }
    ~AtomicAccess() {
        if (device) csim_atomic_end(address, bytes);
    }
};
}  // namespace

extern "C" {
#define CSIM_ATOMIC_RMW(BITS, T, NAME, BUILTIN)                \
    T __tsan_atomic##BITS##_##NAME(volatile T* p, T v, int) {  \
        AtomicAccess access(p, sizeof(T), 2, CSIM_PC);         \
        return BUILTIN(p, v, __ATOMIC_SEQ_CST);                \
    }
#define CSIM_ATOMIC_WIDTH(BITS, T)                                                                      \
    T __tsan_atomic##BITS##_load(const volatile T* p, int) {                                            \
        AtomicAccess access(p, sizeof(T), 0, CSIM_PC);                                                  \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                    \
    }                                                                                                   \
    void __tsan_atomic##BITS##_store(volatile T* p, T v, int) {                                         \
        AtomicAccess access(p, sizeof(T), 1, CSIM_PC);                                                  \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                       \
    }                                                                                                   \
    int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* p, T* expected, T v, int, int) {      \
        AtomicAccess access(p, sizeof(T), 2, CSIM_PC);                                                  \
        return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
    }                                                                                                   \
    int __tsan_atomic##BITS##_compare_exchange_weak(volatile T* p, T* expected, T v, int a, int b) {    \
        return __tsan_atomic##BITS##_compare_exchange_strong(p, expected, v, a, b);                     \
    }                                                                                                   \
    T __tsan_atomic##BITS##_compare_exchange_val(volatile T* p, T expected, T v, int a, int b) {        \
        __tsan_atomic##BITS##_compare_exchange_strong(p, &expected, v, a, b);                           \
        return expected;                                                                                \
    }                                                                                                   \
    CSIM_ATOMIC_RMW(BITS, T, exchange, __atomic_exchange_n)                                             \
    CSIM_ATOMIC_RMW(BITS, T, fetch_add, __atomic_fetch_add)                                             \
    CSIM_ATOMIC_RMW(BITS, T, fetch_sub, __atomic_fetch_sub)                                             \
    CSIM_ATOMIC_RMW(BITS, T, fetch_and, __atomic_fetch_and)                                             \
    CSIM_ATOMIC_RMW(BITS, T, fetch_or, __atomic_fetch_or)                                               \
    CSIM_ATOMIC_RMW(BITS, T, fetch_xor, __atomic_fetch_xor)                                             \
    CSIM_ATOMIC_RMW(BITS, T, fetch_nand, __atomic_fetch_nand)
CSIM_ATOMIC_WIDTH(8, uint8_t)
CSIM_ATOMIC_WIDTH(16, uint16_t)
CSIM_ATOMIC_WIDTH(32, uint32_t)
CSIM_ATOMIC_WIDTH(64, uint64_t)
void __tsan_atomic_thread_fence(int) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (active_hot) csim_fence(1);
}
void __tsan_atomic_signal_fence(int) {}
}
