// Atomics and polling: what the headers' atomic functions and the volatile hooks tell the runtime.
#include <algorithm>
#include <cstring>

#include "check.h"

using namespace csim;

namespace {
uint64_t before_update;   // the value an atomic is about to change; nothing else runs in between
void* update_pc;

uint64_t value_at(const void* p, size_t n) {
    uint64_t v = 0;
    memcpy(&v, p, std::min<size_t>(n, 8));
    return v;
}

// A thread that keeps reading the same values from the same places, one or a few, waits for another thread: let that one
// run. A round begins where it reads the first place again.
constexpr unsigned kPlaces = 64;
void note_poll(const void* p, uint64_t value, void* pc) {
    Thread& t = *current;
    if (t.poll_address == uintptr_t(p) && t.poll_value == value) {
        const bool same = t.poll_round == t.poll_last;
        t.poll_last = t.poll_round, t.poll_round = 0, t.poll_others = 0;
        if (!same) t.poll_count = 0;
        if (++t.poll_count < 16) return;
        t.poll_count = 12;
        yield_at(pc);
        return;
    }
    if (t.poll_address && t.poll_address != uintptr_t(p) && ++t.poll_others < kPlaces) {
        t.poll_round = (t.poll_round ^ uintptr_t(p) ^ value * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
        return;
    }
    t.poll_address = uintptr_t(p);
    t.poll_value = value;
    t.poll_round = t.poll_last = 0;
    t.poll_others = t.poll_count = 0;
}
}  // namespace

extern "C" {

void csim_access(const void* p, size_t n, int is_write, int is_atomic, void* pc) {
    if (!active_hot) return;
    hot.budget--;
    const unsigned access = (is_write ? kWrite : 0) | (is_atomic ? kAtomicAccess : 0);
    slow_access(uintptr_t(p), n, access, pc ? pc : __builtin_return_address(0));
}

void csim_atomic_begin(const void* p, size_t n, int kind, void* pc) {
    if (!current) return;
    if (active_hot) {
        hot.budget--;
        slow_access(uintptr_t(p), n, kAtomicAccess | (kind ? kWrite : 0) | (kind == 1 ? kVolatile : 0), pc);
        if (kind) note_atomic(uintptr_t(p));
    }
    before_update = value_at(p, n);
    update_pc = pc;
}

void csim_atomic_end(const void* p, size_t n) {
    if (!current) return;
    const uint64_t now = value_at(p, n);
    if (now != before_update) {
        launch->progress++;
        current->poll_count = 0;
        return;
    }
    note_poll(p, now, update_pc);
}

void csim_volatile_read(const void* p, size_t n, void* pc) {
    if (current) note_poll(p, value_at(p, n), pc);
}
}
