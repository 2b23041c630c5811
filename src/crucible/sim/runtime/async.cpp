// Asynchronous copies into shared memory (cp.async, __pipeline_memcpy_async): not there until they were waited for.
//
// A copy reads its source when it is issued and keeps the bytes; its destination turns to poison (all ones, unwritten)
// at once and receives the data when the issuing thread waits for the copy's group. A kernel that forgets the wait, or
// waits for the wrong group, computes with poison; one that forgets the barrier after the wait is a race.
#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "../include/csim/async.h"
#include "report.h"

namespace csim {
namespace {

struct Copy {
    char* target;
    uint32_t size;
    unsigned char bytes[16];
    void* pc;   // where it was issued: that line is named if its arrival races with something; null: unchecked
};

struct Queue {
    std::vector<Copy> copies;       // in order of issue
    std::vector<uint32_t> groups;   // ends of the committed groups, as indices into `copies`

    void arrive(size_t groups_left) {
        if (groups.size() <= groups_left) return;
        const size_t done = groups.size() - groups_left;
        const uint32_t end = groups[done - 1];
        for (uint32_t i = 0; i < end; i++) {
            if (copies[i].pc) csim_access(copies[i].target, copies[i].size, 1, 0, copies[i].pc);
            memcpy(copies[i].target, copies[i].bytes, copies[i].size);
        }
        RuntimeSection section;
        copies.erase(copies.begin(), copies.begin() + end);
        groups.erase(groups.begin(), groups.begin() + ptrdiff_t(done));
        for (uint32_t& group : groups) group -= end;
    }
};

// Queues by block (its first epoch is unique) and thread. One that a block left behind with copies in flight is never
// looked at again. Those that nobody needs go when there are twice as many as were needed the last time.
std::unordered_map<uint64_t, Queue> queues;
size_t queues_expected = 1 << 15;

Queue& my_queue() {
    RuntimeSection section;
    const uint64_t block = current->block->begin;
    if (queues.size() > queues_expected) {
        for (auto it = queues.begin(); it != queues.end();) {
            const bool needed = it->first >> 10 >= launch->begin && !(it->second.copies.empty() && it->second.groups.empty());
            it = needed ? std::next(it) : queues.erase(it);
        }
        queues_expected = std::max(size_t(1) << 15, 2 * queues.size());
    }
    return queues[block << 10 | current->number];
}

// Shared memory that holds nothing yet.
void forget(void* p, size_t n, bool checked) {
    memset(p, 0xff, n);
    if (!active_hot || !checked) return;
    const uintptr_t address = uintptr_t(p);
    const bool is_static = address - hot.shared.low < hot.shared.size;
    const uintptr_t base = is_static ? hot.shared.low : hot.arena_base;
    Cell* words = is_static ? hot.shared.words : hot.words;
    if (!is_static && address - base >= hot.arena_size) return;
    for (size_t at = 0; at < n; at += 4) {
        Cell& cell = words[(address + at - base) / 4];
        if (!(cell.read & kSplit)) cell.write &= ~kWritten;
    }
}

}  // namespace
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
    forget(target, size, checked);
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
}
