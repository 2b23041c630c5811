// Stacks for simulated threads and the switch between them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace csim {

// Saves the callee-saved registers and the stack pointer in *save, and continues where `to` was saved.
extern "C" void csim_switch(void** save, void* to);

class StackPool {
 public:
    // Touched pages only are committed. An odd number of pages: stacks a power of two apart would fight for the same
    // cache sets.
    static constexpr size_t kSize = (256 << 10) + 4096;
    static constexpr size_t kGuard = 4096;       // below each stack
    static constexpr size_t kCount = 1 << 18;    // reserved addresses, not memory
    // a guard splits a mapping, and the kernel limits how many of those there are
    static constexpr size_t kGuarded = 8192;

    char* low = nullptr;    // all stacks lie in [low, high)
    char* high = nullptr;

    char* take();                        // the low end of a stack, null if none is left
    void give(char* stack) { free_.push_back(stack); }
    // A stack pointer that starts `entry` when switched to; `entry` must never return.
    void* prepare(char* stack, void (*entry)()) const;
    bool contains(uintptr_t a) const { return a - uintptr_t(low) < size_t(high - low); }
    bool in_guard(uintptr_t a) const;    // just below some stack: an overflow
    void trim(size_t keep);              // give memory back after a launch with very many resident threads

 private:
    std::vector<char*> free_;
    size_t used_ = 0;
};

extern StackPool stacks;

}  // namespace csim
