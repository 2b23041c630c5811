// Stacks for simulated threads and the switch between them.
#include "fiber.h"

#include <sys/mman.h>

#include <cstring>

#if defined(__x86_64__)
asm(R"(
.text
.globl csim_switch
.hidden csim_switch
.type csim_switch, @function
csim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size csim_switch, .-csim_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl csim_switch
.hidden csim_switch
.type csim_switch, %function
csim_switch:
    sub sp, sp, #176
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #176
    ret
.size csim_switch, .-csim_switch
)");
#else
#error "the simulator has a context switch for x86-64 and aarch64 only"
#endif

namespace csim {

StackPool stacks;

char* StackPool::take() {
    if (!free_.empty()) {
        char* stack = free_.back();
        free_.pop_back();
        return stack;
    }
    if (!low) {
        void* p = mmap(nullptr, kSize * kCount, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (p == MAP_FAILED) return nullptr;
        madvise(p, kSize * kCount, MADV_NOHUGEPAGE);
        madvise(p, kSize * kCount, MADV_DONTDUMP);
        low = static_cast<char*>(p);
        high = low + kSize * kCount;
    }
    if (used_ == kCount) return nullptr;
    char* stack = low + kSize * used_++;
    if (used_ <= kGuarded) mprotect(stack, kGuard, PROT_NONE);
    return stack;
}

void* StackPool::prepare(char* stack, void (*entry)()) const {
    // spreads the busy ends of the stacks over the cache
    const size_t colour = size_t(stack - low) / kSize * 5 % 32 * 64;
    char* end = stack + kSize - colour;
#if defined(__x86_64__)
    // csim_switch pops six registers and returns into `entry`, which then sees the alignment of an ordinary call.
    void** top = reinterpret_cast<void**>(end) - 2;
    *--top = nullptr;                           // the return address of `entry`: nothing, unwinding ends here
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    return top;
#else
    char* top = end - 176;
    memset(top, 0, 176);
    reinterpret_cast<void**>(top)[11] = reinterpret_cast<void*>(entry);  // x30
    return top;
#endif
}

bool StackPool::in_guard(uintptr_t a) const {
    if (!contains(a)) return false;
    return (a - uintptr_t(low)) % kSize < kGuard;
}

void StackPool::trim(size_t keep) {
    for (size_t i = keep; i < free_.size(); i++) madvise(free_[i] + kGuard, kSize - kGuard, MADV_DONTNEED);
}

}  // namespace csim
