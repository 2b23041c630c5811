// Simulated device memory: placing, freeing and marking allocations.
#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi.h"

namespace csim {

Arena arena;

namespace {
constexpr size_t kPage = 4096;
constexpr size_t kRedZone = 64 << 10;          // at least this much nothing after every allocation
constexpr size_t kPoisonLimit = 256 << 20;     // larger allocations are left uncommitted instead of being poisoned
constexpr size_t kFreedRemembered = 4096;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

void* reserve_range(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    madvise(p, bytes, MADV_DONTDUMP);
    madvise(p, bytes, MADV_NOHUGEPAGE);  // small tensors lie far apart: a huge page for each would waste most of it
    return p;
}
}  // namespace

void Arena::reserve() {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    if (base) return;
    for (size_t tries = size_t(1) << 40; tries >= size_t(128) << 30; tries /= 2) {
        void* data = reserve_range(tries);
        void* cells = data ? reserve_range(tries / 4 * sizeof(Cell)) : nullptr;
        void* fine = cells ? reserve_range(tries * sizeof(Cell)) : nullptr;
        if (fine) {
            words = static_cast<Cell*>(cells);
            bytes = static_cast<Cell*>(fine);
            size = tries;
            base = uintptr_t(data);
            next_ = base + kSharedZone + (size_t(1) << 30);
            return;
        }
        if (cells) munmap(cells, tries / 4 * sizeof(Cell));
        if (data) munmap(data, tries);
    }
    fprintf(stderr, "crucible-sim: cannot reserve address space for device memory "
                    "(is there a limit on virtual memory, ulimit -v?)\n");
    abort();
}

bool Allocation::host_wrote(size_t offset, size_t bytes) const {
    if (all_written) return true;
    auto starts_after = [](size_t o, const auto& range) { return o < range.first; };
    auto it = std::upper_bound(written.begin(), written.end(), offset, starts_after);
    return it != written.begin() && offset + bytes <= std::prev(it)->second;
}

// The next free span, going round when the top is reached. Address ranges of freed tensors are reused as late as
// possible.
uintptr_t Arena::place(size_t span) {
    for (int round = 0; round < 2; round++) {
        uintptr_t at = next_;
        auto it = allocations_.lower_bound(at);
        while (it != allocations_.end() && it->first < at + span) {
            if (!it->second.freed) at = round_up(it->second.end() + kRedZone, kPage);
            ++it;
        }
        if (at + span <= base + size) {
            // freed neighbours that we are about to overlay are forgotten
            auto from = allocations_.lower_bound(at), to = allocations_.lower_bound(at + span);
            for (auto i = from; i != to;) i = i->second.freed ? allocations_.erase(i) : std::next(i);
            next_ = at + span;
            return at;
        }
        next_ = base + kSharedZone + (size_t(1) << 30);
    }
    return 0;
}

void* Arena::allocate(size_t n, const char* tag) {
    reserve();
    std::lock_guard<std::recursive_mutex> lock(mutex);
    cached_ = nullptr;
    version++;
    const size_t body = round_up(std::max<size_t>(n, 1), kPage);
    const size_t gap = kRedZone + std::min<size_t>(round_up(n / 4, kPage), size_t(1) << 30);
    const uintptr_t at = place(body + gap);
    if (!at) return nullptr;
    Allocation a;
    a.base = at;
    a.size = n;
    a.tag = tag ? tag : "";
    if (n <= kPoisonLimit) memset(reinterpret_cast<void*>(at), 0xff, n);
    allocations_[at] = std::move(a);
    in_use_ += n;
    return reinterpret_cast<void*>(at);
}

void Arena::drop_pages(const Allocation& a) {
    const size_t body = round_up(std::max<size_t>(a.size, 1), kPage), offset = a.base - base;
    madvise(reinterpret_cast<void*>(a.base), body, MADV_DONTNEED);
    madvise(words + offset / 4, body / 4 * sizeof(Cell), MADV_DONTNEED);
    madvise(bytes + offset, body * sizeof(Cell), MADV_DONTNEED);
}

void Arena::forget_oldest_freed() {
    while (freed_.size() - freed_head_ > kFreedRemembered) {
        auto it = allocations_.find(freed_[freed_head_++]);
        if (it != allocations_.end() && it->second.freed) allocations_.erase(it);
    }
    if (freed_head_ > kFreedRemembered) {
        freed_.erase(freed_.begin(), freed_.begin() + long(freed_head_));
        freed_head_ = 0;
    }
}

bool Arena::release(void* p) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    cached_ = nullptr;
    version++;
    auto it = allocations_.find(uintptr_t(p));
    if (it == allocations_.end() || it->second.freed) return false;
    it->second.freed = true;
    in_use_ -= it->second.size;
    drop_pages(it->second);
    freed_.push_back(it->first);
    forget_oldest_freed();
    return true;
}

Allocation* Arena::find(uintptr_t address) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    if (cached_ && address >= cached_->base && address < cached_->end()) return cached_;
    auto it = allocations_.upper_bound(address);
    if (it == allocations_.begin()) return nullptr;
    --it;
    Allocation& a = it->second;
    if (address >= a.end()) return nullptr;
    cached_ = &a;
    return &a;
}

Allocation* Arena::nearest(uintptr_t address) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    auto above = allocations_.upper_bound(address);
    auto below = above;
    Allocation *before = nullptr, *after = nullptr;
    while (below != allocations_.begin() && !before) {
        --below;
        if (!below->second.freed) before = &below->second;
    }
    while (above != allocations_.end() && !after) {
        if (!above->second.freed) after = &above->second;
        ++above;
    }
    if (!before || !after) return before ? before : after;
    return address - before->end() <= after->base - address ? before : after;
}

void Arena::mark_written(void* p, size_t n) {
    if (!n) return;
    std::lock_guard<std::recursive_mutex> lock(mutex);
    Allocation* a = find(uintptr_t(p));
    if (!a || a->freed || a->all_written) return;
    const size_t from = uintptr_t(p) - a->base, to = std::min(from + n, a->size);
    if (from == 0 && to == a->size) {
        a->all_written = true;
        a->written.clear();
        return;
    }
    std::pair<size_t, size_t> range{from, to};
    std::vector<std::pair<size_t, size_t>> merged;
    merged.reserve(a->written.size() + 1);
    for (const auto& other : a->written) {
        if (other.second < range.first || other.first > range.second) merged.push_back(other);
        else range = {std::min(range.first, other.first), std::max(range.second, other.second)};
    }
    merged.push_back(range);
    std::sort(merged.begin(), merged.end());
    a->written.swap(merged);
    if (a->written.size() == 1 && a->written[0].first == 0 && a->written[0].second == a->size) a->all_written = true;
}

void Arena::mark_uninitialised(void* p, size_t n) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    Allocation* a = find(uintptr_t(p));
    if (!a || a->freed) return;
    const size_t from = uintptr_t(p) - a->base, to = std::min(from + n, a->size);
    if (a->all_written) {
        a->all_written = false;
        a->written = {{0, a->size}};
    }
    a->written_by_kernels = 0;
    version++;
    std::vector<std::pair<size_t, size_t>> kept;
    for (const auto& range : a->written) {
        if (range.first < from) kept.push_back({range.first, std::min(range.second, from)});
        if (range.second > to) kept.push_back({std::max(range.first, to), range.second});
    }
    a->written.swap(kept);
    const size_t offset = a->base - base;
    for (size_t at = from; at < to;) {
        Cell& word = words[(offset + at) / 4];
        if (word.read & kSplit) bytes[offset + at].write &= ~kWritten, at++;
        else if ((offset + at) % 4 == 0 && at + 4 <= to) word.write &= ~kWritten, at += 4;
        else {  // part of a word that is tracked as a whole: spread it over its bytes first
            for (size_t i = 0; i < 4; i++) bytes[(offset + at) / 4 * 4 + i] = word;
            word = {0, kSplit};
        }
    }
}

bool Arena::is_written(const Allocation& a, size_t offset) const {
    const size_t at = a.base - base + offset;
    const Cell& word = words[at / 4];
    const uint64_t write = word.read & kSplit ? bytes[at].write : word.write;
    return (write & kWritten) || a.host_wrote(offset, 1);
}

// Four, if a whole word that kernels have written begins here.
size_t Arena::written_word(size_t offset) const {
    if (offset % 4) return 0;
    const Cell& word = words[offset / 4];
    return !(word.read & kSplit) && word.write & kWritten ? 4 : 0;
}

long Arena::first_uninitialised(const void* p, size_t n) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    Allocation* a = find(uintptr_t(p));
    if (!a || a->freed || a->all_written) return -1;
    const size_t from = uintptr_t(p) - a->base;
    for (size_t i = 0; i < n && from + i < a->size;) {
        if (const size_t skip = written_word(a->base - base + from + i)) i += skip;
        else if (is_written(*a, from + i)) i++;
        else return long(i);
    }
    return -1;
}

size_t Arena::count_uninitialised(const void* p, size_t n) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    Allocation* a = find(uintptr_t(p));
    if (!a || a->freed || a->all_written) return 0;
    const size_t from = uintptr_t(p) - a->base;
    size_t count = 0;
    for (size_t i = 0; i < n && from + i < a->size;) {
        if (const size_t skip = written_word(a->base - base + from + i)) i += skip;
        else count += !is_written(*a, from + i++);
    }
    return count;
}

void Arena::name(const void* p, const char* text) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    if (Allocation* a = find(uintptr_t(p))) a->name = text ? text : "";
}

}  // namespace csim

using csim::arena;

extern "C" {
void* csim_malloc(size_t bytes, const char* tag) { return arena.allocate(bytes, tag); }
void csim_free(void* p) {
    if (p) arena.release(p);
}
int csim_is_device(const void* p) { return arena.base && arena.contains(p); }
int csim_is_live(const void* p) {
    csim::Allocation* a = arena.find(uintptr_t(p));
    return a && !a->freed;
}
size_t csim_allocation(const void* p, void** start) {
    csim::Allocation* a = arena.find(uintptr_t(p));
    if (!a || a->freed) return 0;
    if (start) *start = reinterpret_cast<void*>(a->base);
    return a->size;
}
void csim_mark_written(void* p, size_t bytes) { arena.mark_written(p, bytes); }
void csim_mark_uninitialised(void* p, size_t bytes) { arena.mark_uninitialised(p, bytes); }
long csim_first_uninitialised(const void* p, size_t bytes) { return arena.first_uninitialised(p, bytes); }
size_t csim_count_uninitialised(const void* p, size_t bytes) { return arena.count_uninitialised(p, bytes); }
void csim_name(const void* p, const char* name) { arena.name(p, name); }
size_t csim_bytes_in_use(void) { return arena.bytes_in_use(); }
}
