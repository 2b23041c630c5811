// Asynchronous copies into shared memory (cp.async, __pipeline_memcpy_async, cp.async.bulk): not there until they were
// waited for.
//
// A copy reads its source when it is issued and keeps the bytes; its destination turns to poison (all ones, unwritten)
// at once and receives the data when the issuing thread waits for the copy's group. A kernel that forgets the wait, or
// waits for the wrong group, computes with poison; one that forgets the barrier after the wait is a race. Copies that
// arrive at an mbarrier are there once somebody tests it. Bulk copies out of shared memory happen at the wait: what was
// changed before it is reported.
#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "../include/csim/async.h"
#include "../include/csim/hopper.h"
#include "async.h"
#include "check.h"
#include "report.h"

namespace csim {
namespace {

struct Copy {
    char* target;
    uint32_t size;
    unsigned char bytes[16];
    void* pc;   // where it was issued: that line is named if its arrival races with something; null: unchecked
};

struct Store {   // a bulk copy out of shared memory
    char* target;
    const char* source;
    uint32_t size;
    void* pc;
    bool checked;
    std::vector<AsyncRead> reads;
};

struct Queue {
    std::vector<Copy> copies;       // in order of issue
    std::vector<uint32_t> groups;   // ends of the committed groups, as indices into `copies`
    uint64_t landed = 0;            // copies that are there, and in `copies` no more
    std::vector<Store> stores;
    std::vector<uint32_t> store_groups;

    bool idle() const { return copies.empty() && groups.empty() && stores.empty() && store_groups.empty(); }

    // The first `count` copies are there. `mine`: they were waited for by the thread that issued them.
    void land(uint32_t count, bool mine) {
        for (uint32_t i = 0; i < count; i++) {
            if (copies[i].pc && mine) csim_access(copies[i].target, copies[i].size, 1, 0, copies[i].pc);
            memcpy(copies[i].target, copies[i].bytes, copies[i].size);
            if (copies[i].pc) end_async_write(copies[i].target, copies[i].size);
        }
        RuntimeSection section;
        copies.erase(copies.begin(), copies.begin() + count);
        landed += count;
        for (uint32_t& group : groups) group = group > count ? group - count : 0;
    }

    void arrive(size_t groups_left) {
        if (groups.size() <= groups_left) return;
        const size_t done = groups.size() - groups_left;
        land(groups[done - 1], true);
        RuntimeSection section;
        groups.erase(groups.begin(), groups.begin() + ptrdiff_t(done));
    }

    void store(size_t groups_left) {
        if (store_groups.size() <= groups_left) return;
        const size_t done = store_groups.size() - groups_left;
        const uint32_t end = store_groups[done - 1];
        for (uint32_t i = 0; i < end; i++) {
            Store& s = stores[i];
            end_async_reads(s.reads, current->clock, leaf_of(current->number), "cp.async.bulk",
                            "cp.async.bulk.wait_group", s.pc);
            if (s.checked) csim_access(s.target, s.size, 1, 0, s.pc);
            memcpy(s.target, s.source, s.size);
        }
        RuntimeSection section;
        stores.erase(stores.begin(), stores.begin() + end);
        store_groups.erase(store_groups.begin(), store_groups.begin() + ptrdiff_t(done));
        for (uint32_t& group : store_groups) group -= end;
    }
};

// Queues by block (its first epoch is unique) and thread. One that a block left behind with copies in flight is never
// looked at again. Those that nobody needs go when there are twice as many as were needed the last time.
std::unordered_map<uint64_t, Queue> queues;
size_t queues_expected = 1 << 15;

uint64_t my_key() { return uint64_t(current->block->begin) << 10 | current->number; }

Queue& my_queue() {
    RuntimeSection section;
    if (queues.size() > queues_expected) {
        for (auto it = queues.begin(); it != queues.end();) {
            const bool needed = it->first >> 10 >= launch->begin && !it->second.idle();
            it = needed ? std::next(it) : queues.erase(it);
        }
        queues_expected = std::max(size_t(1) << 15, 2 * queues.size());
    }
    return queues[my_key()];
}

void check_bulk(const char* name, const void* shared, const void* global, unsigned bytes, void* pc) {
    if (!in_shared(uintptr_t(shared)))
        report_from_device("out_of_bounds", pc, "%s: the address %p is not in shared memory", name, shared);
    if (bytes % 16)
        report_from_device("misaligned", pc, "%s copies %u bytes, which is not a multiple of 16", name, bytes);
    for (const void* p : {shared, global})
        if (uintptr_t(p) % 16)
            report_from_device("misaligned", pc, "%s: the %s address %p is not a multiple of 16", name,
                               p == shared ? "shared" : "global", p);
}

}  // namespace

uint64_t copies_of_this_thread(uint64_t& issued) {
    const Queue& q = my_queue();
    issued = q.landed + q.copies.size();
    return my_key();
}

void land_copies(uint64_t queue, uint64_t through) {
    auto it = queues.find(queue);
    if (it == queues.end() || through <= it->second.landed) return;
    it->second.land(uint32_t(through - it->second.landed), false);
}

}  // namespace csim

using namespace csim;

extern "C" {

void csim_async_copy(void* target, const void* source, unsigned size, unsigned source_bytes, const char* name,
        int only_16,
                     int checked) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    if (!(size == 16 || (!only_16 && (size == 4 || size == 8))))
        report_from_device("misaligned", pc, "%s copies %u bytes; it can copy %s", name, size,
                           only_16 ? "16" : "4, 8 or 16");
    if (source_bytes > size)
        report_from_device("out_of_bounds", pc, "%s is asked to read %u bytes for a copy of %u", name, source_bytes,
                size);
    const bool target_fits = uintptr_t(target) % size == 0;
    if (!target_fits || (source_bytes && uintptr_t(source) % size))
        report_from_device("misaligned", pc, "%s of %u bytes: the %s address %p is not a multiple of %u", name, size,
                           target_fits ? "global" : "shared", target_fits ? source : target, size);
    Copy copy{static_cast<char*>(target), size, {}, checked ? pc : nullptr};
    if (source_bytes) {
        if (checked) csim_access(source, source_bytes, 0, 0, pc);
        memcpy(copy.bytes, source, source_bytes);
    }
    if (checked) csim_access(target, size, 1, 0,
            pc);   // somebody who still reads the old contents is in a race already
    RuntimeSection section;
    if (checked) begin_async_write(target, size);
    else memset(target, 0xff, size);
    my_queue().copies.push_back(copy);
}

void csim_async_commit(void) {
    if (!current) return;
    RuntimeSection section;
    Queue& q = my_queue();
    q.groups.push_back(uint32_t(q.copies.size()));
}

void csim_async_wait_group(unsigned groups_left) {
    if (current) my_queue().arrive(groups_left);
}

void csim_async_wait_all(void) {
    csim_async_commit();
    csim_async_wait_group(0);
}

void csim_bulk_load(void* target, const void* source, unsigned bytes, void* mbarrier, int checked) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    check_bulk("cp.async.bulk", target, source, bytes, pc);
    if (checked) {
        csim_access(source, bytes, 0, 0, pc);
        csim_access(target, bytes, 1, 0, pc);
    }
    RuntimeSection section;
    const std::vector<unsigned char> data(static_cast<const unsigned char*>(source),
                                          static_cast<const unsigned char*>(source) + bytes);
    if (checked) begin_async_write(target, bytes);
    else memset(target, 0xff, bytes);
    arrive_when_landed(mbarrier, static_cast<char*>(target), data.data(), bytes, "cp.async.bulk", pc);
}

void csim_bulk_store(void* target, const void* source, unsigned bytes, int checked) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    check_bulk("cp.async.bulk", source, target, bytes, pc);
    Store s{static_cast<char*>(target), static_cast<const char*>(source), bytes, pc, checked != 0, {}};
    if (checked) read_async(uintptr_t(source), bytes, pc, "cp.async.bulk", &current, 1, s.reads);
    RuntimeSection section;
    my_queue().stores.push_back(std::move(s));
}

void csim_bulk_commit(void) {
    if (!current) return;
    RuntimeSection section;
    Queue& q = my_queue();
    q.store_groups.push_back(uint32_t(q.stores.size()));
}

void csim_bulk_wait(unsigned groups_left) {
    if (current) my_queue().store(groups_left);
}

void csim_proxy_fence(void) {
    if (!current) return;
    RuntimeSection section;
    if (needs_settling()) settle_thread();
    Block& b = *current->block;
    if (b.proxied_epoch != b.epoch) b.proxied.clear();
    b.proxied_epoch = b.epoch;
    gather_known(*current, b.proxied);
    if (current->clock >= kMaxClock) new_epoch(b);
    refresh_hot();
}
}
