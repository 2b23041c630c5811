// The check of one access: is the address device memory, was it written, and is it ordered with the accesses of other
// threads?
//
// Two unordered accesses race if one of them is a plain write, with two exceptions that real code relies on: a write
// that stores the value already there, and a plain read of a location used atomically if the same instruction is seen
// to precede an atomic update of the location (the read that starts a compare-and-swap loop, or `if (x > *best)
// atomicMax(best, x)`).
#include "check.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "bounds.h"
#include "config.h"
#include "diagnose.h"
#include "modules.h"
#include "names.h"
#include "order.h"
#include "report.h"

namespace csim {

__thread Hot* active_hot = nullptr;

namespace {

struct Place {   // the shadow of an address
    Space space = Space::global;
    uintptr_t base = 0;   // cells are counted from here
    Cell* words = nullptr;
    Cell* bytes = nullptr;
};

struct Request {
    uintptr_t address;
    size_t bytes;
    unsigned access;
    void* pc;
    Place place;
    Allocation* allocation = nullptr;   // in Space::global
};

std::set<void*> guards;   // plain reads known to precede an atomic update

bool is_shared(uintptr_t address) {
    return (hot.shared.size && address - hot.shared.low < hot.shared.size) || address - arena.base < Arena::kSharedZone;
}

// Arena::find without its lock, for the few tensors a kernel works on.
Allocation* find_quickly(uintptr_t address) {
    struct Entry {
        uintptr_t base, end;
        Allocation* allocation;
    };
    static Entry recent[4];
    static unsigned next = 0;
    static uint64_t version = ~uint64_t(0);
    if (version != arena.version.load(std::memory_order_acquire)) {
        memset(recent, 0, sizeof recent);
        version = arena.version.load(std::memory_order_acquire);
    }
    for (const Entry& e : recent)
        if (address - e.base < e.end - e.base) return e.allocation;
    Allocation* a = arena.find(address);
    if (a) recent[next++ % 4] = {a->base, a->end(), a};
    return a;
}

const char* tainted_code = "";

// The block has read poison. Nothing is wrong yet: kernels do read what they then throw away.
void taint(const char* code, const char* text) {
    if (current->block->tainted) return;
    tainted_code = code;
    current->block->tainted = text;
    refresh_hot();
}

void uninitialised(const Request& q, uintptr_t address) {
    if (launch->sampled) return;   // whoever should have written it may not have been among the blocks that ran
    Finding f = uninitialised_finding(address, q.access, q.pc);
    if (q.place.space == Space::shared && !config.strict_shared) {
        taint("uninitialised_read", "a value computed from shared memory that nobody has written");
        suspect(std::move(f));
        return;
    }
    report(std::move(f));
}

// Did host code write these bytes? (What kernels write is known from the cells.)
bool written_by_host(const Request& q, uintptr_t address, size_t bytes) {
    if (q.place.space == Space::module) return true;
    if (q.place.space == Space::shared) return false;
    return q.allocation->host_wrote(address - q.allocation->base, bytes);
}

void add_pending(uintptr_t address, size_t bytes, uint64_t other, bool other_wrote, void* pc, bool flow) {
    if (hot.pending_count == int(sizeof hot.pending / sizeof hot.pending[0])) return;
    Pending& p = hot.pending[hot.pending_count++];
    p.address = address;
    p.bytes = uint8_t(bytes);
    p.old = 0;
    memcpy(&p.old, reinterpret_cast<void*>(address), bytes);
    p.other = other;
    p.other_wrote = other_wrote;
    p.flow = flow;
    p.pc = pc;
    hot.fast_epoch = ~0u;
}

// A kernel has filled a tensor: from now on reads of it need not ask whether it was written.
void count_written(Allocation& a, size_t bytes) {
    if (a.all_written || !a.written.empty()) return;
    a.written_by_kernels += bytes;
    if (a.written_by_kernels == a.size) a.all_written = true;
}

void note_read(Cell& c, Space space) {
    const uint32_t e = epoch_of(c.read);
    if (e == hot.epoch) {
        const uint64_t clock = std::max(c.read & kClockBits, hot.stamp & kClockBits);
        const uint64_t node = common_ancestor(node_of(c.read), hot.leaf);
        c.read = uint64_t(hot.epoch) << kEpochShift | clock | node << kNodeShift | (c.read & kManyBlocks);
        return;
    }
    uint64_t many = 0;
    if (space != Space::shared && e >= hot.launch_begin) many = own_epoch(e) ? c.read & kManyBlocks : kManyBlocks;
    c.read = hot.stamp | many;
}

void check_cell(const Request& q, Cell& c, uintptr_t address, size_t bytes) {
    const Space space = q.place.space;
    const bool atomic = q.access & kAtomicAccess, write = q.access & kWrite;
    uint64_t w = c.write;
    const bool stale = space == Space::shared && epoch_of(w) < hot.block_begin;
    if (stale) w = 0;   // left by an earlier block

    // 1. Was it written?
    // a volatile store is atomic but reads nothing
    const bool needs_value = !write || (atomic && !(q.access & kVolatile));
    if (!(w & kWritten) && needs_value) {
        if (written_by_host(q, address, bytes)) {
            w |= kWritten;
            c.write = w;
        } else {
            uninitialised(q, address);
        }
    }

    // 2. The last write.
    const bool after_write = ordered(w, space);
    if (!after_write) {
        if (w & kAtomic) {
            if (!atomic && !write) {
                if (!(q.access & kVolatile)) {
                    current->guard_address = q.address;
                    current->guard_pc = q.pc;
                    if (!guards.count(q.pc) && launch->candidates.size() < 1000)
                        launch->candidates.push_back({q.pc, q.address, w, current->block->index, current->index});
                }
            } else if (!atomic && current->recent_atomic != q.address && !(launch->any_fence && current->fenced)) {
                add_pending(address, bytes, w, true, q.pc, false);
            }
        } else if (atomic || !write) {
            report(race_finding(address, q.access, q.pc, w, true, space));
            return;
        } else {
            add_pending(address, bytes, w, true, q.pc, false);
        }
    }

    // 3. Reads since then, and the new record.
    if (!write) {
        if (!atomic) note_read(c, space);   // a flag that is polled may be stored to at any time
        return;
    }
    if (atomic) {
        uint64_t record = hot.stamp | kWritten | kAtomic;
        const uint32_t e = epoch_of(w);
        if (w & kAtomic && e >= hot.launch_begin && !stale) {
            if (e == hot.epoch) {
                const uint64_t clock = std::max(w & kClockBits, hot.stamp & kClockBits);
                const uint64_t node = common_ancestor(node_of(w), hot.leaf);
                record = uint64_t(hot.epoch) << kEpochShift | clock | node << kNodeShift;
                record |= kWritten | kAtomic | (w & kManyBlocks);
            } else if (space != Space::shared && !after_write) {
                record |= kManyBlocks;
            }
        } else if (!(w & kAtomic) && e == hot.epoch && !stale) {
            // our own plain write came just before: to others this is still unordered initialisation
            record &= ~kAtomic;
        }
        c.write = record;
        if (space == Space::global && current->block->tainted) add_pending(address, bytes, 0, false, q.pc, true);
        return;
    }
    if (!(space == Space::shared && epoch_of(c.read) < hot.block_begin) && !ordered(c.read, space))
        add_pending(address, bytes, c.read, false, q.pc, false);
    else if (space == Space::global && current->block->tainted)
        add_pending(address, bytes, 0, false, q.pc, true);
    if (q.allocation && !(w & kWritten)) count_written(*q.allocation, bytes);
    c.write = hot.stamp | kWritten;
    c.read = 0;
}

void split(Place& place, size_t word) {
    Cell& c = place.words[word];
    if (c.read & kSplit) return;
    for (size_t i = 0; i < 4; i++) place.bytes[word * 4 + i] = c;
    if (place.words == hot.shared.words) launch->split_shared = true;
    c.write = 0;
    c.read = kSplit;
}

void check_range(Request& q) {
    Place& place = q.place;
    if (q.access & kAtomicAccess && launch->any_fence) acquire(q.address);
    uintptr_t a = q.address;
    const uintptr_t end = q.address + q.bytes;
    while (a < end) {
        const size_t offset = a - place.base, word = offset / 4;
        if (offset % 4 == 0 && end - a >= 4) {
            Cell& c = place.words[word];
            if (!(c.read & kSplit)) {
                check_cell(q, c, a, 4);
                a += 4;
                continue;
            }
            if (q.access == kWrite) {   // a whole word is written over its bytes: one cell is enough again
                for (size_t i = 0; i < 4; i++) check_cell(q, place.bytes[word * 4 + i], a + i, 1);
                c.write = hot.stamp | kWritten;
                c.read = 0;
                a += 4;
                continue;
            }
        }
        split(place, word);
        check_cell(q, place.bytes[offset], a, 1);
        a++;
    }
    if (q.access & kWrite) {
        launch->progress += !(q.access & kAtomicAccess);
        if (place.space != Space::shared) launch->wrote = true;
        // A plain store right after a fence may be a flag too.
        const bool flag = q.access & kAtomicAccess || (current->fenced && ++current->stores_since_fence <= 2);
        if (launch->any_fence && flag) publish(q.address);
    }
}

// Static shared arrays in use count against the chip's limit, and an access must stay within one of them, of this
// kernel.
bool locate_static_shared(const Request& q) {
    const Module& module = *launch->module;
    const size_t offset = q.address - hot.shared.low + module.shared_low;
    const SharedSymbol* s = module.symbol_at(offset);
    const size_t index = s ? size_t(s - module.shared.data()) : 0;
    if (!s && module.other_thread_local(offset)) return false;
    if (!s || offset + q.bytes > s->offset + s->size || launch->foreign[index]) {
        report_shared_overrun(q.address, q.bytes, q.access, q.pc);
        return false;
    }
    Block& b = *current->block;
    if (b.touched_symbols[index]) return true;
    b.touched_symbols[index] = true;
    b.touched_bytes += s->size;
    const size_t all = b.touched_bytes + launch->shared_bytes;
    if (b.touched_bytes <= launch->static_limit && all <= launch->total_limit) return true;
    Finding f;
    f.code = "shared_memory_limit";
    f.pc = q.pc;
    f.tensor = s->name;
    f.text = b.touched_bytes > launch->static_limit
                 ? format_text("the kernel uses %zu bytes of static shared memory; the limit is %zu", b.touched_bytes,
                               launch->static_limit)
                 : format_text("the kernel uses %zu bytes of static and %zu of dynamic shared memory; a block has %zu",
                               b.touched_bytes,
                               launch->shared_bytes, launch->total_limit);
    report(std::move(f));
    return false;
}

void make_quiet(const Allocation& a) {
    static unsigned next = 0;
    if (launch->sampled || stop_requested) return;   // both want to see every access
    hot.quiet[next++ % 4] = {a.base, a.size};
}

void end_quiet(const Allocation& a) {
    for (Quiet& q : hot.quiet)
        if (q.base == a.base) q = Quiet();
}

bool locate_in_arena(Request& q) {
    const size_t offset = q.address - arena.base;
    if (offset < Arena::kSharedZone) {
        const size_t mine = size_t(current->block->slot) * Arena::kSharedSlot;
        if (offset - mine < launch->shared_bytes && offset - mine + q.bytes <= launch->shared_bytes) return true;
    } else {
        Allocation* a = find_quickly(q.address);
        if (a && !a->freed && q.address + q.bytes <= a->end()) {
            remember_target(q.pc, a->base);
            q.allocation = a;
            if (q.access & kWrite && a->launch != launch->begin) {
                a->launch = launch->begin;
                end_quiet(*a);
            }
            if (q.access == kRead && a->all_written && a->launch != launch->begin) {
                make_quiet(*a);
                return false;   // nothing to check, nothing to remember
            }
            return true;
        }
    }
    report_illegal(q.address, q.bytes, q.access, q.pc);
    return false;
}

// Finds the shadow for an address. False: nothing to check there.
bool locate(Request& q) {
    Place& place = q.place;
    if (arena.contains(reinterpret_cast<void*>(q.address))) {
        const bool shared = q.address - arena.base < Arena::kSharedZone;
        place = {shared ? Space::shared : Space::global, arena.base, arena.words, arena.bytes};
        return locate_in_arena(q);
    }
    if (hot.shared.size && q.address - hot.shared.low < hot.shared.size) {
        place = {Space::shared, hot.shared.low, hot.shared.words, hot.shared.bytes};
        return locate_static_shared(q);
    }
    if (stacks.contains(q.address)) return false;
    if (q.address - hot.data.low < hot.data.size) {
        place = {Space::module, hot.data.low, hot.data.words, hot.data.bytes};
        return true;
    }
    if (q.address - uintptr_t(launch->info->closure) < launch->info->closure_bytes) return false;
    for (int i = 0; i < launch->info->arg_count; i++)
        if (q.address - uintptr_t(launch->info->arg_ptrs[i]) < launch->info->arg_sizes[i]) return false;
    Segment* segment = nullptr;
    switch (classify(q.address, &segment)) {
        case HostMemory::object: return false;
        case HostMemory::data_of_module:
            place = {Space::module, segment->low, segment->words, segment->bytes};
            return true;
        case HostMemory::none: break;
    }
    report_illegal(q.address, q.bytes, q.access, q.pc);
    return false;
}

Finding flow;   // the first poison seen to arrive in global memory
bool flow_seen = false;

// Did the NaN that poison is in the first schedule arrive in a result? (Arithmetic keeps its high bits.)
void watch_flow(const Pending& p, uint64_t now) {
    if (flow_seen || p.bytes != 4 || now >> 16 != 0xffff || config.poison_byte() != 0xff) return;
    flow_seen = true;
    flow = Finding();
    flow.code = tainted_code;
    flow.pc = p.pc;
    const Named name = name_of(p.address);
    flow.tensor = name.tensor;
    flow.text = std::string(current->block->tainted) + " is stored in " + name.text;
    flow.on_thread = true;
    flow.block = current->block->index;
    flow.thread = current->index;
}
}  // namespace

void slow_access(uintptr_t address, size_t bytes, unsigned access, void* pc) {
    RuntimeSection guard;
    if (stop_requested) out_of_time(pc);
    if (hot.pending_count) settle_pending();
    if (hot.budget <= 0) cut_block();
    if (!bytes) return;
    if (bad_index_waits()) judge_bad_index(address, bytes);
    Request q{address, bytes, access, pc, Place(), nullptr};
    if (locate(q)) check_range(q);
}

bool in_shared(uintptr_t address) { return is_shared(address); }

namespace {
// The stores behind this record, and a fence.proxy.async after them by anybody who could know of them.
bool behind_proxy_fence(const Block& b, uint64_t record) {
    const uint32_t e = epoch_of(record);
    if (record & kAsync || e < b.proxied_epoch) return true;
    if (e > b.proxied_epoch) return false;
    const uint32_t first = first_thread(node_of(record)), clock = clock_of(record);
    const uint32_t end = std::min<uint32_t>(first + thread_count(node_of(record)), uint32_t(b.proxied.size()));
    for (uint32_t t = first; t < end; t++)
        if (clock < b.proxied[t]) return true;
    return false;
}

// Calls `f` with each cell of a range of shared memory, the address and the number of bytes it stands for.
template <class F> void each_cell(const Place& place, uintptr_t address, size_t bytes, F f) {
    for (size_t at = 0; at < bytes; at += 4) {
        const size_t offset = address + at - place.base;
        Cell& word = place.words[offset / 4];
        if (!(word.read & kSplit)) f(word, address + at, 4u);
        else
            for (size_t i = 0; i < 4; i++) f(place.bytes[offset + i], address + at + i, 1u);
    }
}

uint32_t bytes_at(uintptr_t address, uint32_t bytes) {
    uint32_t value = 0;
    memcpy(&value, reinterpret_cast<void*>(address), bytes);
    return value;
}
}  // namespace

void read_async(uintptr_t address, size_t bytes, void* pc, const char* name, Thread* const* threads, int count,
                std::vector<AsyncRead>& into) {
    if (!active_hot) return;
    RuntimeSection guard;
    if (hot.pending_count) settle_pending();
    Request q{address, bytes, kRead, pc, Place(), nullptr};
    if (!locate(q)) return;
    const Block& b = *current->block;
    each_cell(q.place, address, bytes, [&](Cell& c, uintptr_t at, uint32_t n) {
        const uint64_t w = epoch_of(c.write) < hot.block_begin ? 0 : c.write;
        if (!(w & kWritten)) {
            uninitialised(q, at);
        } else {
            bool seen = false;
            for (int i = 0; i < count && !seen; i++) seen = ordered_for(*threads[i], w);
            if (!seen) {
                report(race_finding(at, kRead, pc, w, true, Space::shared));
            } else if (!behind_proxy_fence(b, w)) {
                Finding f = race_finding(at, kRead, pc, w, true, Space::shared);
                f.text = std::string(name) + " reads " + name_of(at).text + ", and no fence.proxy.async follows the " +
                         "ordinary store by " + thread_of(w) + ": the asynchronous unit may not see it";
                report(std::move(f));
            }
        }
        into.push_back({&c, at, c.write, bytes_at(at, n), n});
    });
}

void end_async_reads(const std::vector<AsyncRead>& reads, uint32_t clock, uint32_t node, const char* name,
                     const char* wait, void* pc) {
    if (!active_hot) return;
    RuntimeSection guard;
    if (hot.pending_count) settle_pending();
    for (const AsyncRead& r : reads) {
        Cell& c = *r.cell;
        if (c.write != r.record && bytes_at(r.address, r.bytes) != r.value) {
            Finding f = race_finding(r.address, kRead, pc, c.write, true, Space::shared);
            f.text = std::string(name) + " reads " + name_of(r.address).text + " until " + wait + ", but " +
                     thread_of(c.write) + " has written to it before that";
            report(std::move(f));
            return;
        }
        if (c.read & kSplit) continue;   // split since: its bytes were written, with these values
        uint32_t latest = clock, readers = node;
        if (epoch_of(c.read) == hot.epoch) {   // others read it too
            latest = std::max(clock, clock_of(c.read));
            readers = common_ancestor(node_of(c.read), leaf_of(first_thread(node)));
            readers = common_ancestor(readers, leaf_of(first_thread(node) + thread_count(node) - 1));
        }
        c.read = make_record(hot.epoch, latest, readers);
    }
}

namespace {
Place shared_place(uintptr_t address) {
    if (hot.shared.size && address - hot.shared.low < hot.shared.size)
        return {Space::shared, hot.shared.low, hot.shared.words, hot.shared.bytes};
    return {Space::shared, arena.base, arena.words, arena.bytes};
}
}  // namespace

void begin_async_write(void* p, size_t n) {
    memset(p, 0xff, n);
    if (!active_hot) return;
    each_cell(shared_place(uintptr_t(p)), uintptr_t(p), n,
              [](Cell& c, uintptr_t, uint32_t) { c.write = (c.write & ~kWritten) | kAsync; });
}

void end_async_write(void* p, size_t n) {
    if (!active_hot) return;
    each_cell(shared_place(uintptr_t(p)), uintptr_t(p), n,
              [](Cell& c, uintptr_t, uint32_t) { c.write |= kWritten | kAsync; });
}

bool needs_settling() { return hot.pending_count || bad_index_waits(); }

// A write that conflicted has happened by now. It is a race if it changed anything.
void settle_pending() {
    RuntimeSection guard;
    const int count = hot.pending_count;
    hot.pending_count = 0;
    for (int i = 0; i < count; i++) {
        const Pending& p = hot.pending[i];
        uint64_t now = 0;
        memcpy(&now, reinterpret_cast<void*>(p.address), p.bytes);
        if (p.flow) watch_flow(p, now);
        else if (now != p.old) {
            const Space space = is_shared(p.address) ? Space::shared : Space::global;
            report(race_finding(p.address, kWrite, p.pc, p.other, p.other_wrote, space));
        }
    }
    if (current) refresh_hot();
}

void settle_thread() {
    if (bad_index_waits()) settle_bad_index();
    if (hot.pending_count) settle_pending();
}

// Reported late: a missing barrier also makes threads read what is not there yet, and the race that follows says more.
void settle_flow() {
    if (flow_seen && !launch->failed) report(flow);
    flow_seen = false;
}

void absent_lane(const char* name, int line, void* pc) {
    if (!active_hot) return;
    RuntimeSection guard;
    Finding f;
    f.code = "warp_divergence";
    f.pc = pc;
    f.text = std::string(name) + " reads from a lane that has exited, does not exist or is not in the mask";
    if (line) f.text += format_text(" (line %d)", line);
    taint("warp_divergence", "a value shuffled from a lane that has exited, does not exist or is not in the mask");
    suspect(std::move(f));
}

void note_atomic(uintptr_t address) {
    Thread& t = *current;
    if (t.guard_address == address) guards.insert(t.guard_pc);
    t.recent_atomic = address;
}

void settle_candidates(Launch& l) {
    if (l.failed) return;
    for (const Candidate& c : l.candidates) {
        if (guards.count(c.pc)) continue;
        Finding f;
        f.code = is_shared(c.address) ? "race_shared" : "race_global";
        f.pc = c.pc;
        const Named name = name_of(c.address);
        f.tensor = name.tensor;
        f.text = "race on " + name.text + ": this plain read is not ordered with atomic updates by other threads";
        f.on_thread = true;
        f.block = c.block;
        f.thread = c.thread;
        report(std::move(f));
        return;
    }
}

}  // namespace csim
