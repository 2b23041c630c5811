// The check of one access: is the address device memory, was it written, and is the access ordered with those of other threads?
//
// Happens-before, as the simulator sees it:
//   * launches are ordered; blocks of one launch are not, except through grid.sync() or a flag: an atomic or volatile write after
//     __threadfence() publishes everything done so far, and an atomic or volatile access of the same location acquires it. What a flag
//     publishes is over-approximated (everything that ran before the fence), which may hide a race and never invents one;
//   * within a block, a block barrier orders everything, a warp collective orders the lanes of its mask, a named barrier the
//     warps that take part.
// Two unordered accesses race if one is a plain write, with two exceptions that real code relies on: a write that stores the value
// already there, and a plain read of a location used atomically if the same instruction is seen to precede an atomic update of the
// location (the read that starts a compare-and-swap loop, or `if (x > *best) atomicMax(best, x)`).
#include "check.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "config.h"
#include "modules.h"
#include "names.h"
#include "report.h"

namespace csim {

__thread Hot* active_hot = nullptr;

namespace {

enum class Space { global, shared, module };

struct Place {
    Space space = Space::global;
    uintptr_t base = 0;       // cells are counted from here
    Cell* words = nullptr;
    Cell* bytes = nullptr;
    uintptr_t low = 0, high = 0;    // valid addresses around the access, where known
};

struct Request {
    uintptr_t address;
    size_t bytes;
    unsigned access;
    void* pc;
    Place place;
};

std::unordered_map<uintptr_t, uint32_t> published;   // location -> epochs up to this one are visible to whoever reads the flag
uint32_t published_in = 0;                           // the launch (its first epoch) those belong to
std::set<void*> guards;                              // plain reads known to precede an atomic update

const char* verb(unsigned access) {
    if (access & kAtomicAccess) return "atomic";
    return access & kWrite ? "write" : "read";
}

// ---- order ----

bool own_epoch(uint32_t e) {
    if (e < hot.block_begin) return false;
    return !launch->interleaved || launch->owner[e - launch->begin] == uint32_t(current->block->number);
}

bool same_epoch_order(uint64_t record) {
    const uint32_t node = node_of(record), clock = clock_of(record);
    if (node == hot.leaf) return true;
    if (current->acquired >= hot.epoch) return true;   // a flag or lock within the block
    const Warp& w = *current->warp;
    const Block& b = *current->block;
    if (node_depth(node) >= 5 && node >> (node_depth(node) - 5) == hot.leaf >> 5) {   // all in our warp
        if (clock < w.floor) return true;
        if (!w.partial) return false;
        const uint32_t first = first_thread(node) % 32, count = thread_count(node);
        bool all = true, any = false;
        for (uint32_t lane = first; lane < first + count; lane++) {
            if (lane == current->lane) continue;
            const bool ordered = clock < w.known[current->lane][lane];
            all &= ordered;
            any |= ordered;
        }
        return w.irregular ? any : all;
    }
    if (!b.named_barriers) return false;
    // Several warps: the record may cover more of them than took part, so one that met us at a barrier speaks for all.
    const uint32_t first = first_thread(node) / 32, count = std::max(1u, thread_count(node) / 32);
    for (uint32_t other = first; other < first + count && other < 32; other++)
        if (clock < b.warp_known[w.number][other]) return true;
    return false;
}

bool ordered(uint64_t record, Space space) {
    const uint32_t e = epoch_of(record);
    if (e < hot.launch_begin) return true;
    if (space == Space::shared) {
        if (e < hot.block_begin || e != hot.epoch) return true;   // left by another block, or before the last barrier
        return same_epoch_order(record);
    }
    const uint32_t acquired = std::max(current->acquired, current->block->acquired);
    const bool own = own_epoch(e);
    // Which epochs the other blocks had is lost; a flag from the block that ran just before us is taken to cover them all.
    if (record & kManyBlocks && !(acquired >= e || (own && acquired >= current->block->previous_begin))) return false;
    if (own) return e != hot.epoch || same_epoch_order(record);
    return e <= acquired;
}

// ---- reports ----

std::string who_was(uint64_t record, Space space) {
    const uint32_t e = epoch_of(record);
    const uint32_t node = node_of(record);
    const unsigned* d = launch->info->block;
    std::string text;
    if (space == Space::shared || own_epoch(e)) {
        const uint32_t t = first_thread(node);
        text = format_text("thread (%u, %u, %u)", t % d[0], t / d[0] % d[1], t / (d[0] * d[1]));
        if (thread_count(node) > 1) text += format_text(" or one of the next %u", thread_count(node) - 1);
        if (record & kManyBlocks) text += " and other blocks";
    } else {
        const uint64_t number = launch->owner[e - launch->begin];
        const unsigned* g = launch->info->grid;
        text = format_text("block (%u, %u, %u)", unsigned(number % g[0]), unsigned(number / g[0] % g[1]),
                           unsigned(number / (uint64_t(g[0]) * g[1])));
    }
    return text;
}

Finding race(uintptr_t address, unsigned access, void* pc, uint64_t other, bool other_wrote, Space space) {
    Finding f;
    f.code = space == Space::shared ? "race_shared" : "race_global";
    f.pc = pc;
    const Named name = name_of(address);
    f.tensor = name.tensor;
    const char* other_verb = other_wrote ? (other & kAtomic ? "atomic" : "write") : "read";
    f.text = format_text("race on %s: this %s and the earlier %s by %s are not ordered by any barrier", name.text.c_str(), verb(access),
                         other_verb, who_was(other, space).c_str());
    return f;
}

// An address that no kernel may touch. Says what it is.
void illegal(const Request& q) {
    Finding f;
    f.pc = q.pc;
    const std::string what = format_text("%s of %zu byte%s", verb(q.access), q.bytes, q.bytes == 1 ? "" : "s");
    if (arena.contains(reinterpret_cast<void*>(q.address))) {
        const size_t offset = q.address - arena.base;
        if (offset < Arena::kSharedZone) {
            const size_t at = offset % Arena::kSharedSlot;
            f.code = "out_of_bounds";
            f.tensor = "shared memory";
            f.has_past = true;
            f.bytes_past = long(at + q.bytes) - long(launch->shared_bytes);
            f.text = format_text("out-of-bounds %s: %ld byte%s past the end of dynamic shared memory, which has %zu bytes", what.c_str(),
                                 f.bytes_past, f.bytes_past == 1 ? "" : "s", launch->shared_bytes);
            report(std::move(f));
            return;
        }
        Allocation* inside = arena.find(q.address);
        if (inside && inside->freed) {
            const Named name = name_of(*inside);
            f.code = "use_after_free";
            f.tensor = name.tensor;
            f.text = format_text("use after free: %s in %s, which was freed before this launch", what.c_str(), name.text.c_str());
            report(std::move(f));
            return;
        }
        Allocation* a = inside ? inside : owner_of(q.address);
        f.code = "out_of_bounds";
        if (!a) {
            f.text = format_text("out-of-bounds %s at an address where no tensor lies", what.c_str());
        } else {
            const Named name = name_of(*a);
            f.tensor = name.tensor;
            f.has_past = true;
            if (q.address < a->base) {
                f.bytes_past = long(a->base - q.address);
                f.text = format_text("out-of-bounds %s: %ld bytes before the start of %s, which has %zu bytes", what.c_str(), f.bytes_past,
                                     name.text.c_str(), a->size);
            } else {
                f.bytes_past = long(q.address + q.bytes - a->end());
                f.text = format_text("out-of-bounds %s: %ld byte%s past the end of %s, which has %zu bytes", what.c_str(), f.bytes_past,
                                     f.bytes_past == 1 ? "" : "s", name.text.c_str(), a->size);
            }
        }
        report(std::move(f));
        return;
    }
    if (q.address < 65536) {
        f.code = "out_of_bounds";
        f.text = format_text("%s through a null pointer (address %zu)", what.c_str(), size_t(q.address));
        report(std::move(f));
        return;
    }
    char probe;
    iovec local{&probe, 1}, remote{reinterpret_cast<void*>(q.address), 1};
    const bool mapped = process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
    const std::string argument = host_argument(q.address);
    if (mapped || !argument.empty()) {
        f.code = "host_pointer";
        f.tensor = argument;
        f.text = format_text("%s through a host pointer: %s is in host memory, not on the device (was it moved with .cuda()?)", what.c_str(),
                             argument.empty() ? "the memory" : ("`" + argument + "`").c_str());
    } else {
        f.code = "out_of_bounds";
        f.text = format_text("out-of-bounds %s at address 0x%zx, which is not device memory", what.c_str(), size_t(q.address));
    }
    report(std::move(f));
}

void uninitialised(const Request& q, uintptr_t address, size_t bytes) {
    Finding f;
    f.code = "uninitialised_read";
    f.pc = q.pc;
    const Named name = name_of(address);
    f.tensor = name.tensor;
    f.text = format_text("%s of %s, which nobody has written", q.access & kAtomicAccess ? "atomic update" : "read", name.text.c_str());
    (void)bytes;
    if (q.place.space == Space::shared && !config.strict_shared) {
        current->block->tainted = true;
        refresh_hot();
        suspect(std::move(f));
        return;
    }
    report(std::move(f));
}

// ---- the parts of one access ----

// Is [address, address + bytes) of this place usable, and does it hold written bytes (if that is not known from the cell)?
// Returns true if written; files a report if not usable.
bool validate(const Request& q, uintptr_t address, size_t bytes) {
    switch (q.place.space) {
        case Space::module: return true;
        case Space::shared: return false;
        case Space::global: {
            Allocation* a = arena.find(address);
            return a && a->host_wrote(address - a->base, bytes);
        }
    }
    return false;
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

void acquire(uintptr_t address) {
    if (!launch->any_fence || published_in != launch->begin) return;
    auto it = published.find(address & ~uintptr_t(3));
    if (it != published.end()) current->acquired = std::max(current->acquired, it->second);
}
void publish(uintptr_t address) {
    if (!launch->any_fence || !current->fenced) return;
    if (published_in != launch->begin) published.clear(), published_in = launch->begin;
    uint32_t& mark = published[address & ~uintptr_t(3)];
    mark = std::max({mark, current->fenced, current->acquired, current->block->acquired});
}

void check_cell(const Request& q, Cell& c, uintptr_t address, size_t bytes) {
    const Space space = q.place.space;
    const bool atomic = q.access & kAtomicAccess, write = q.access & kWrite;
    uint64_t w = c.write;
    const bool stale = space == Space::shared && epoch_of(w) < hot.block_begin;
    if (stale) w = 0;   // left by an earlier block

    // 1. Was it written?
    const bool needs_value = !write || (atomic && !(q.access & kVolatile));   // a volatile store is atomic but reads nothing
    if (!(w & kWritten) && needs_value) {
        if (validate(q, address, bytes)) {
            w |= kWritten;
            c.write = w;
        } else {
            uninitialised(q, address, bytes);
            if (!write) return;
        }
    }

    // 2. The last write.
    const bool after_write = ordered(w, space);
    if (!after_write) {
        if (w & kAtomic) {
            if (!atomic && !write) {
                if (current->recent_atomic != address) {
                    current->guard_address = address;
                    current->guard_pc = q.pc;
                    if (!guards.count(q.pc) && launch->candidates.size() < 1000)
                        launch->candidates.push_back({q.pc, address, w, current->block->index, current->index});
                }
            } else if (!atomic && current->recent_atomic != address && !(launch->any_fence && current->fenced)) {
                add_pending(address, bytes, w, true, q.pc, false);
            }
        } else if (atomic || !write) {
            report(race(address, q.access, q.pc, w, true, space));
            return;
        } else {
            add_pending(address, bytes, w, true, q.pc, false);
        }
    }

    // 3. Reads since then, and the new record.
    if (!write) {
        note_read(c, space);
        return;
    }
    if (atomic) {
        uint64_t record = hot.stamp | kWritten | kAtomic;
        const uint32_t e = epoch_of(w);
        if (w & kAtomic && e >= hot.launch_begin && !stale) {
            if (e == hot.epoch) {
                const uint64_t clock = std::max(w & kClockBits, hot.stamp & kClockBits);
                const uint64_t node = common_ancestor(node_of(w), hot.leaf);
                record = uint64_t(hot.epoch) << kEpochShift | clock | node << kNodeShift | kWritten | kAtomic | (w & kManyBlocks);
            } else if (space != Space::shared && !after_write) {
                record |= kManyBlocks;
            }
        }
        c.write = record;
        return;
    }
    if (!(space == Space::shared && epoch_of(c.read) < hot.block_begin) && !ordered(c.read, space))
        add_pending(address, bytes, c.read, false, q.pc, false);
    else if (space == Space::global && current->block->tainted)
        add_pending(address, bytes, 0, false, q.pc, true);
    c.write = hot.stamp | kWritten;
    c.read = 0;
}

void split(Place& place, size_t word) {
    Cell& c = place.words[word];
    if (c.read & kSplit) return;
    for (size_t i = 0; i < 4; i++) place.bytes[word * 4 + i] = c;
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
        if (q.access & kAtomicAccess && launch->any_fence) publish(q.address);
        else if (launch->any_fence && current->fenced && q.bytes <= 8) publish(q.address);   // a plain store used as a flag
    }
}

// Static shared arrays in use count against the chip's limit, and an access must stay within one of them.
bool locate_static_shared(Request& q) {
    const size_t offset = q.address - hot.shared.low + launch->module->shared_low;
    const SharedSymbol* s = launch->module->symbol_at(offset);
    if (s && offset + q.bytes <= s->offset + s->size) {
        const size_t index = size_t(s - launch->module->shared.data());
        uint64_t& seen = current->block->touched_symbols[index / 64 % 4];
        if (!(seen >> (index % 64) & 1)) {
            seen |= uint64_t(1) << (index % 64);
            size_t total = 0;
            for (size_t i = 0; i < launch->module->shared.size() && i < 256; i++)
                if (current->block->touched_symbols[i / 64] >> (i % 64) & 1) total += launch->module->shared[i].size;
            if (total > launch->static_limit || total + launch->shared_bytes > launch->total_limit) {
                Finding f;
                f.code = "shared_memory_limit";
                f.pc = q.pc;
                f.tensor = s->name;
                f.text = total > launch->static_limit
                             ? format_text("the kernel uses %zu bytes of static shared memory; the limit is %zu", total, launch->static_limit)
                             : format_text("the kernel uses %zu bytes of static and %zu of dynamic shared memory; a block has %zu", total,
                                           launch->shared_bytes, launch->total_limit);
                report(std::move(f));
            }
        }
        return true;
    }
    const SharedSymbol* before = s ? s : launch->module->symbol_before(offset);
    if (!before || launch->module->other_thread_local(offset)) return false;
    Finding f;
    f.code = "out_of_bounds";
    f.pc = q.pc;
    f.tensor = before->name;
    f.has_past = true;
    f.bytes_past = long(offset + q.bytes) - long(before->offset + before->size);
    f.text = format_text("out-of-bounds %s of %zu byte%s: %ld byte%s past the end of shared array `%s`, which has %zu bytes", verb(q.access),
                         q.bytes, q.bytes == 1 ? "" : "s", f.bytes_past, f.bytes_past == 1 ? "" : "s", before->name.c_str(), before->size);
    report(std::move(f));
    return false;
}

// Finds the shadow for an address. False: nothing to check there.
bool locate(Request& q) {
    Place& place = q.place;
    if (hot.shared.size && q.address - hot.shared.low < hot.shared.size) {
        place = {Space::shared, hot.shared.low, hot.shared.words, hot.shared.bytes, 0, 0};
        return locate_static_shared(q);
    }
    if (arena.contains(reinterpret_cast<void*>(q.address))) {
        const size_t offset = q.address - arena.base;
        if (offset < Arena::kSharedZone) {
            place.space = Space::shared;
            const size_t mine = size_t(current->block->slot) * Arena::kSharedSlot;
            if (offset - mine >= launch->shared_bytes || offset - mine + q.bytes > launch->shared_bytes) {
                illegal(q);
                return false;
            }
        } else {
            Allocation* a = arena.find(q.address);
            if (!a || a->freed || q.address + q.bytes > a->end()) {
                illegal(q);
                return false;
            }
        }
        place.base = arena.base;
        place.words = arena.words;
        place.bytes = arena.bytes;
        return true;
    }
    if (stacks.contains(q.address)) return false;
    if (q.address - uintptr_t(launch->info->closure) < launch->info->closure_bytes) return false;
    for (int i = 0; i < launch->info->arg_count; i++)
        if (q.address - uintptr_t(launch->info->arg_ptrs[i]) < launch->info->arg_sizes[i]) return false;
    Segment* segment = nullptr;
    switch (classify(q.address, &segment)) {
        case HostMemory::object: return false;
        case HostMemory::data_of_module:
            place = {Space::module, segment->low, segment->words, segment->bytes, segment->low, segment->high};
            return true;
        case HostMemory::none: break;
    }
    illegal(q);
    return false;
}
}  // namespace

bool happened_before(uint64_t record, bool shared) { return ordered(record, shared ? Space::shared : Space::global); }

void slow_access(uintptr_t address, size_t bytes, unsigned access, void* pc) {
    RuntimeSection guard;
    if (hot.pending_count) settle_pending();
    if (hot.budget <= 0) cut_block();
    if (!bytes) return;
    Request q{address, bytes, access, pc, Place()};
    if (locate(q)) check_range(q);
}

// The write that conflicted has happened by now. It is a race if it changed anything.
void settle_pending() {
    RuntimeSection guard;
    const int count = hot.pending_count;
    hot.pending_count = 0;
    for (int i = 0; i < count; i++) {
        const Pending& p = hot.pending[i];
        uint64_t now = 0;
        memcpy(&now, reinterpret_cast<void*>(p.address), p.bytes);
        if (p.flow) {
            // Did the NaN that unwritten shared memory is filled with arrive in a result? (Arithmetic keeps its high bits.)
            if (p.bytes == 4 && now >> 16 == 0xffff && config.poison_byte() == 0xff) {
                Finding f;
                f.code = "uninitialised_read";
                f.pc = p.pc;
                const Named name = name_of(p.address);
                f.tensor = name.tensor;
                f.text = "a value computed from shared memory that nobody has written is stored in " + name.text;
                report(std::move(f));
            }
            continue;
        }
        if (now == p.old) continue;
        const bool shared = (hot.shared.size && p.address - hot.shared.low < hot.shared.size) ||
                            p.address - arena.base < Arena::kSharedZone;
        report(race(p.address, kWrite, p.pc, p.other, p.other_wrote, shared ? Space::shared : Space::global));
    }
    if (current) refresh_hot();
}

void settle_candidates(Launch& l) {
    if (l.failed) return;
    for (const Candidate& c : l.candidates) {
        if (guards.count(c.pc)) continue;
        const bool shared = (hot.shared.size && c.address - hot.shared.low < hot.shared.size) ||
                            c.address - arena.base < Arena::kSharedZone;
        Finding f;
        f.code = shared ? "race_shared" : "race_global";
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

using namespace csim;

extern "C" {

void csim_access(const void* p, size_t n, int is_write, int is_atomic, void* pc) {
    if (!active_hot) return;
    hot.accesses++;
    hot.budget--;
    slow_access(uintptr_t(p), n, (is_write ? kWrite : 0) | (is_atomic ? kAtomicAccess : 0), pc ? pc : __builtin_return_address(0));
}

namespace {
uint64_t value_at(const void* p, size_t n) {
    uint64_t v = 0;
    memcpy(&v, p, std::min<size_t>(n, 8));
    return v;
}
uint64_t before_update;

// A thread that keeps reading the same value from the same place waits for another thread: let that one run.
void note_poll(const void* p, uint64_t value) {
    Thread& t = *current;
    if (t.poll_address == uintptr_t(p) && t.poll_value == value) {
        if (++t.poll_count < 16) return;
        t.poll_count = 12;
        csim_yield();
        return;
    }
    t.poll_address = uintptr_t(p);
    t.poll_value = value;
    t.poll_count = 0;
}
}  // namespace

void csim_atomic_begin(const void* p, size_t n, int kind, void* pc) {
    if (!current) return;
    if (active_hot) {
        hot.accesses++;
        hot.budget--;
        const unsigned access = kAtomicAccess | (kind ? kWrite : 0) | (kind == 1 ? kVolatile : 0);
        slow_access(uintptr_t(p), n, access, pc);
        Thread& t = *current;
        if (t.guard_address == uintptr_t(p) && kind) guards.insert(t.guard_pc);
        if (kind) t.recent_atomic = uintptr_t(p);
    }
    before_update = value_at(p, n);
}

void csim_atomic_end(const void* p, size_t n) {
    if (!current) return;
    const uint64_t now = value_at(p, n);
    if (now != before_update) {
        launch->progress++;
        current->poll_count = 0;
        return;
    }
    note_poll(p, now);
}

void csim_volatile_read(const void* p, size_t n) {
    if (current) note_poll(p, value_at(p, n));
}
}
