// mbarrier objects: phases, who arrives and who waits, and what waiting says about the order of memory accesses.
//
// The state is kept beside the block; the eight bytes in shared memory hold a copy, by which a store that hits them is
// noticed. What arrives asynchronously (cp.async, bulk copies) is on its way until somebody tests the barrier: whoever
// reads the data without a test finds poison. A test that fails may time out, as on a chip: the first one returns at
// once, later ones let other threads run.
#include "mbarrier.h"

#include <algorithm>
#include <cstring>

#include "../include/csim/hopper.h"
#include "async.h"
#include "check.h"
#include "names.h"
#include "order.h"
#include "report.h"

namespace csim {
namespace {

constexpr uint32_t kMaxCount = (1 << 20) - 1;

std::string name_at(uintptr_t address) { return name_of(address).text; }

void write_word(MBarrier& m) {
    m.word = (m.phase & 1) << 63 | uint64_t(m.expected) << 40 | uint64_t(m.pending) << 20;
    m.word |= uint64_t(m.bytes) & kMaxCount;
    memcpy(reinterpret_cast<void*>(m.address), &m.word, 8);
}

// The object at an address, which must be one and in order: initialised, visibly so to this thread, and intact.
MBarrier& find(void* p, const char* name, void* pc) {
    if (needs_settling()) settle_thread();
    auto& all = current->block->mbarriers;
    auto it = all.find(uintptr_t(p));
    if (it == all.end()) {
        report_from_device("barrier_divergence", pc, "%s: no mbarrier was initialised in %s", name,
                           in_shared(uintptr_t(p)) ? name_at(uintptr_t(p)).c_str() : "memory that is not shared");
    }
    MBarrier& m = *it->second;
    if (!ordered_for(*current, m.initialised))
        report_from_device("race_shared", pc,
                           "%s: the initialisation of the mbarrier in %s by another thread is not ordered before this "
                           "by any barrier",
                           name, name_at(m.address).c_str());
    uint64_t word;
    memcpy(&word, p, 8);
    if (word != m.word)
        report_from_device("barrier_divergence", pc, "%s: the mbarrier in %s was overwritten by an ordinary store",
                           name, name_at(m.address).c_str());
    return m;
}

void know(std::vector<uint32_t>& into, uint32_t& into_epoch, const std::vector<uint32_t>& known, uint32_t epoch) {
    if (into_epoch != epoch) {
        if (into_epoch > epoch) return;   // older than the last barrier of the block: everybody knows
        into.assign(known.size(), 0);
        into_epoch = epoch;
    }
    into.resize(known.size());
    for (size_t i = 0; i < known.size(); i++) into[i] = std::max(into[i], known[i]);
}

void wake(const MBarrier& m) {
    if (!m.waiting) return;
    Block& b = *current->block;
    for (Thread& t : b.threads)
        if (t.wait == Wait::spin && t.mbarrier == &m) {
            b.spinning--;
            make_ready(&t);
        }
}

void complete_if_done(MBarrier& m) {
    if (m.pending || m.bytes) return;
    m.phase++;
    m.pending = m.expected;
    m.completed = m.arriving;
    m.completed_epoch = m.arriving_epoch;
    launch->progress++;
    wake(m);
}

uint32_t arrivals_on_the_way(const MBarrier& m) {
    return uint32_t(std::count_if(m.landings.begin(), m.landings.end(), [](const Landing& l) { return l.arrives; }));
}

// Would the phase be complete if everything on its way were there? Then whoever waits must look.
void wake_if_nearly_done(const MBarrier& m) {
    int64_t bytes = m.bytes;
    for (const Landing& l : m.landings) bytes -= int64_t(l.bytes.size());
    if (!m.landings.empty() && !bytes && m.pending == arrivals_on_the_way(m)) wake(m);
}

void count_arrivals(MBarrier& m, uint32_t count, const char* name, void* pc) {
    if (count > m.pending)
        report_from_device("barrier_divergence", pc,
                           "%s: %u arrivals at the mbarrier in %s, whose phase %llu expects %u and still needs %u",
                           name, count, name_at(m.address).c_str(), (unsigned long long)m.phase, m.expected, m.pending);
    m.pending -= count;
    launch->progress++;
}

void expect(MBarrier& m, int64_t bytes, const char* name, void* pc) {
    m.bytes += bytes;
    if (m.bytes > int64_t(kMaxCount) || m.bytes < -int64_t(kMaxCount))
        report_from_device("barrier_divergence", pc,
                           "%s: the mbarrier in %s would expect %lld bytes; it can expect up to %u", name,
                           name_at(m.address).c_str(), (long long)m.bytes, kMaxCount);
}

// What is on its way arrives now.
void land(MBarrier& m, void* pc) {
    while (!m.landings.empty()) {
        const Landing l = std::move(m.landings.front());
        m.landings.erase(m.landings.begin());
        if (l.target) {
            memcpy(l.target, l.bytes.data(), l.bytes.size());
            end_async_write(l.target, l.bytes.size());
            m.bytes -= int64_t(l.bytes.size());
            launch->progress++;
        } else {
            land_copies(l.queue, l.through);
        }
        know(m.arriving, m.arriving_epoch, l.known, l.epoch);
        if (l.arrives) count_arrivals(m, 1, "cp.async.mbarrier.arrive", pc);
        complete_if_done(m);
    }
    write_word(m);
}

// What this thread has done so far is known to whoever waits for the phase.
void publish(MBarrier& m) {
    Thread& me = *current;
    std::vector<uint32_t> known;
    gather_known(me, known);
    know(m.arriving, m.arriving_epoch, known, me.block->epoch);
    m.acquired = std::max(m.acquired, me.acquired);
    m.fenced = std::max(m.fenced, me.fenced);
    if (me.clock >= kMaxClock) new_epoch(*me.block);
    refresh_hot();
}

Landing begin_landing() {
    Landing l;
    Thread& me = *current;
    gather_known(me, l.known);
    l.epoch = me.block->epoch;
    if (me.clock >= kMaxClock) new_epoch(*me.block);
    refresh_hot();
    return l;
}
}  // namespace

void arrive_when_landed(void* p, char* target, const unsigned char* bytes, size_t n, const char* name, void* pc) {
    RuntimeSection section;
    MBarrier& m = find(p, name, pc);
    Landing l = begin_landing();
    l.target = target;
    l.bytes.assign(bytes, bytes + n);
    m.landings.push_back(std::move(l));
    launch->progress++;
    wake_if_nearly_done(m);
}

}  // namespace csim

using namespace csim;

extern "C" {

void csim_mbarrier_init(void* p, unsigned count, int checked) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    const uintptr_t address = uintptr_t(p);
    if (address % 8)
        report_from_device("misaligned", pc, "mbarrier.init: the address %p is not a multiple of 8", p);
    if (!in_shared(address))
        report_from_device("out_of_bounds", pc, "mbarrier.init: the address %p is not in shared memory", p);
    if (count < 1 || count > kMaxCount)
        report_from_device("barrier_divergence", pc, "mbarrier.init: a count of %u; it must be 1 to %u", count,
                           kMaxCount);
    if (checked) csim_access(p, 8, 1, 0, pc);
    RuntimeSection section;
    auto& slot = current->block->mbarriers[address];
    if (slot) {
        uint64_t word;
        memcpy(&word, p, 8);
        if (word == slot->word || slot->waiting)
            report_from_device("barrier_divergence", pc,
                               "mbarrier.init: there is an mbarrier in %s already (mbarrier.inval ends one)",
                               name_at(address).c_str());
    }
    slot = std::make_unique<MBarrier>();
    slot->address = address;
    slot->expected = slot->pending = count;
    slot->initialised = hot.stamp;
    write_word(*slot);
    if (needs_settling()) settle_thread();
    launch->progress++;
}

void csim_mbarrier_inval(void* p) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    RuntimeSection section;
    MBarrier& m = find(p, "mbarrier.inval", pc);
    if (m.waiting)
        report_from_device("barrier_divergence", pc, "mbarrier.inval: %u threads wait at the mbarrier in %s", m.waiting,
                           name_at(m.address).c_str());
    current->block->mbarriers.erase(m.address);
}

uint64_t csim_mbarrier_arrive(void* p, unsigned count, unsigned expected_bytes, int may_complete, const char* name) {
    if (!current) return 0;
    void* pc = __builtin_return_address(0);
    RuntimeSection section;
    MBarrier& m = find(p, name, pc);
    if (count < 1 || count > kMaxCount)
        report_from_device("barrier_divergence", pc, "%s: a count of %u; it must be 1 to %u", name, count, kMaxCount);
    if (count + arrivals_on_the_way(m) > m.pending) land(m, pc);
    const uint64_t phase = m.phase;
    expect(m, expected_bytes, name, pc);
    publish(m);
    count_arrivals(m, count, name, pc);
    if (!may_complete && !m.pending)
        report_from_device("barrier_divergence", pc, "%s completes the phase of the mbarrier in %s", name,
                           name_at(m.address).c_str());
    complete_if_done(m);
    wake_if_nearly_done(m);
    write_word(m);
    return phase;
}

void csim_mbarrier_expect(void* p, long long bytes, const char* name) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    RuntimeSection section;
    MBarrier& m = find(p, name, pc);
    expect(m, bytes, name, pc);
    if (bytes < 0) complete_if_done(m);
    wake_if_nearly_done(m);
    write_word(m);
    launch->progress++;
}

int csim_mbarrier_test(void* p, uint64_t token, int parity, const char* name) {
    if (!current) return 1;
    void* pc = __builtin_return_address(0);
    RuntimeSection section;
    if (stop_requested) out_of_time(pc);
    if (parity && token > 1)
        report_from_device("barrier_divergence", pc, "%s: a parity of %llu; it is 0 or 1", name,
                           (unsigned long long)token);
    Thread& me = *current;
    for (bool waited = false;; waited = true) {
        MBarrier& m = find(p, name, pc);
        land(m, pc);
        const bool done = parity ? (m.phase & 1) != token : m.phase != token;
        if (done) {
            me.mbarrier_misses = 0;
            if (m.completed_epoch == me.block->epoch) learn(me, m.completed);
            me.acquired = std::max(me.acquired, m.acquired);
            me.fenced = std::max(me.fenced, m.fenced);
            refresh_hot();
            return 1;
        }
        if (waited || !me.mbarrier_misses++) return 0;
        in_runtime = false;
        yield_for(&m, pc);
        in_runtime = true;
    }
}

void csim_async_arrive(void* p, int counted) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    RuntimeSection section;
    MBarrier& m = find(p, "cp.async.mbarrier.arrive", pc);
    if (counted && arrivals_on_the_way(m) + 1 > m.pending) land(m, pc);
    if (!counted) m.pending++;
    Landing l = begin_landing();
    l.arrives = true;
    l.queue = copies_of_this_thread(l.through);
    m.landings.push_back(std::move(l));
    write_word(m);
    launch->progress++;
    wake_if_nearly_done(m);
}
}
