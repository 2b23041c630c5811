// Simulated device memory: one reserved range of addresses, committed lazily, with its shadow cells beside it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "shadow.h"

namespace csim {

struct Allocation {
    uintptr_t base = 0;
    size_t size = 0;
    std::string tag, name;
    bool freed = false;
    bool all_written = false;                             // every byte has been written
    size_t written_by_kernels = 0;                        // bytes, counted while there are no host-written ones
    uint32_t launch = 0;                                  // the last launch (its first epoch) that wrote to it
    std::vector<std::pair<size_t, size_t>> written;       // host-written [from, to) offsets, sorted, merged
    bool host_wrote(size_t offset, size_t bytes) const;
    uintptr_t end() const { return base + size; }
};

class Arena {
 public:
    // The lowest part holds dynamic shared memory, one slot a resident block; tensors lie above.
    static constexpr size_t kSharedZone = size_t(64) << 30, kSharedSlot = size_t(1) << 20;

    uintptr_t base = 0;
    size_t size = 0;
    Cell* words = nullptr;   // one cell for every 4 bytes
    Cell* bytes = nullptr;   // one for every byte, used only for words that are split

    void reserve();          // idempotent; aborts the process if the address space cannot be had
    bool contains(const void* p) const { return uintptr_t(p) - base < size; }

    void* allocate(size_t bytes, const char* tag);
    bool release(void* p);   // false: not the start of a live allocation
    void mark_written(void* p, size_t bytes);
    void mark_uninitialised(void* p, size_t bytes);
    bool is_written(const Allocation& a, size_t offset) const;
    long first_uninitialised(const void* p, size_t bytes);
    size_t count_uninitialised(const void* p, size_t bytes);
    void name(const void* p, const char* text);

    // The allocation around `address`, live or freed; null if there is none. Valid until the next allocate or release.
    Allocation* find(uintptr_t address);
    // The allocation nearest to an address that lies in none, live ones first.
    Allocation* nearest(uintptr_t address);
    size_t bytes_in_use() const { return in_use_; }
    std::atomic<uint64_t> version{0};   // changes whenever an Allocation may move or change
    std::recursive_mutex mutex;

 private:
    std::map<uintptr_t, Allocation> allocations_;
    std::vector<uintptr_t> freed_;   // oldest first, those still in the map
    size_t freed_head_ = 0;
    uintptr_t next_ = 0;
    size_t in_use_ = 0;
    Allocation* cached_ = nullptr;

    uintptr_t place(size_t span);
    size_t written_word(size_t offset) const;
    void drop_pages(const Allocation& a);
    void forget_oldest_freed();
};

extern Arena arena;

}  // namespace csim
