// The check of one access: fast paths for the hooks, the slow path in check.cpp.
#pragma once
#include "engine.h"

namespace csim {

// Set while device code runs in checked mode; null for host code, which must pass through the hooks at once.
extern __thread Hot* active_hot __attribute__((tls_model("initial-exec"), visibility("hidden")));

constexpr unsigned kRead = 0, kWrite = 1, kAtomicAccess = 2, kVolatile = 4;   // flags of an access

void slow_access(uintptr_t address, size_t bytes, unsigned access, void* pc);

// Has this word been read in the current epoch, and not been written in it? Then whoever read it first was checked
// against the last write, which is ordered with all threads of the block alike; it remains to widen the set of readers
// to include us.
inline bool read_is_old_news(const Hot& h, Cell& c) {
    const uint64_t r = c.read;
    if (epoch_of(r) != h.fast_epoch || epoch_of(c.write) == h.fast_epoch) return false;
    const uint32_t node = node_of(r);
    if (covers(node, h.leaf) && (r & kClockBits) >= (h.stamp & kClockBits)) return true;
    const uint64_t clock = (r & kClockBits) > (h.stamp & kClockBits) ? r & kClockBits : h.stamp & kClockBits;
    const uint64_t wider = uint64_t(common_ancestor(node, h.leaf)) << kNodeShift;
    c.read = (r & ~(kClockBits | uint64_t(kNodeMask) << kNodeShift)) | clock | wider;
    return true;
}
inline bool write_is_old_news(const Hot& h, const Cell& c) {
    return c.write == (h.stamp | kWritten) && c.read == 0 && h.fast_epoch == h.epoch;
}

template <unsigned kAccess> inline bool old_news(const Hot& h, Cell& c) {
    return kAccess == kWrite ? write_is_old_news(h, c) : read_is_old_news(h, c);
}

template <unsigned kBytes, unsigned kAccess>
inline bool all_old_news(const Hot& h, Cell* words, Cell* bytes, size_t offset) {
    if (offset % (kBytes < 4 ? kBytes : 4)) return false;
    bool known = true;
    if (kBytes < 4) {
        known = words[offset / 4].read & kSplit;
        for (unsigned i = 0; known && i < kBytes; i++) known = old_news<kAccess>(h, bytes[offset + i]);
    } else {
        for (unsigned i = 0; i < kBytes / 4; i++) known &= old_news<kAccess>(h, words[offset / 4 + i]);
    }
    return known;
}

// Before every load and store of device code: decides the common cases, leaves the rest to slow_access.
template <unsigned kBytes, unsigned kAccess> inline void check_access(void* p, void* pc) {
    Hot* h = active_hot;
    if (__builtin_expect(!h, 1)) return;
    const uintptr_t a = uintptr_t(p);
    if (--h->budget > 0) {
        size_t offset = a - h->shared.low;
        if (offset < h->shared.size) {
            if (all_old_news<kBytes, kAccess>(*h, h->shared.words, h->shared.bytes, offset)) return;
        } else if ((offset = a - h->arena_base) < h->arena_size) {
            if (kAccess == kRead && offset >= Arena::kSharedZone)
                for (const Quiet& q : h->quiet)
                    if (a - q.base < q.size && a - q.base + kBytes <= q.size) return;
            if (all_old_news<kBytes, kAccess>(*h, h->words, h->bytes, offset)) return;
        } else if (a - h->stack_low < h->stack_size) {
            return;
        } else if ((offset = a - h->data.low) < h->data.size) {
            if (all_old_news<kBytes, kAccess>(*h, h->data.words, h->data.bytes, offset)) return;
        } else if (kAccess == kRead && a - h->object_low < h->object_size) {
            return;   // constants beside the code
        }
    }
    slow_access(a, kBytes, kAccess, pc);
}

}  // namespace csim
