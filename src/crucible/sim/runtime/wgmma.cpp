// wgmma: the matrix multiplication of a warpgroup, four warps together, on operands in shared memory.
//
// A product is computed when the last thread of the warpgroup issues it, and its sum is in the registers at once: a
// kernel that reads them before wgmma.wait_group is not noticed. Shared memory is read until the wait: what is not
// written and fenced at the issue, or was changed by the time of the wait, is reported, and the wait is when the reads
// happen for whoever overwrites the operands.
#include <algorithm>
#include <cstring>

#include "../include/csim/hopper.h"
#include "../include/csim/tensor_sum.h"
#include "check.h"
#include "modules.h"
#include "report.h"

namespace csim {
namespace {

constexpr uint32_t kThreads = 128;

Warpgroup& my_group(const char* name, void* pc) {
    Block& b = *current->block;
    const uint32_t number = current->number / kThreads;
    if ((number + 1) * kThreads > b.threads.size())
        report_from_device("warp_divergence", pc,
                           "%s needs a warpgroup, 128 threads from a multiple of 128 on; the block has %zu", name,
                           b.threads.size());
    if (b.warpgroups.empty()) {
        b.warpgroups.resize(b.threads.size() / kThreads);
        for (uint32_t i = 0; i < b.warpgroups.size(); i++) b.warpgroups[i].number = i;
    }
    return b.warpgroups[number];
}

Thread* threads_of(Block& b, const Warpgroup& g) { return &b.threads[size_t(g.number) * kThreads]; }

// ---- operands

struct Descriptor {
    uintptr_t start;
    uint32_t leading, stride;   // bytes
    uint32_t row;               // bytes of a row of the swizzled pattern; 0: no swizzle
};

bool holds_something(uintptr_t address) {
    if (!active_hot) return false;
    const bool is_static = hot.shared.size && address - hot.shared.low < hot.shared.size;
    const Cell* words = is_static ? hot.shared.words : hot.words;
    const Cell& c = words[(address - (is_static ? hot.shared.low : hot.arena_base)) / 4];
    return c.read & kSplit || epoch_of(c.write) >= hot.block_begin;
}

// A descriptor has the low 18 bits of an address. Which one that is: in dynamic shared memory, or in an array of this
// kernel; where both fit, the one that was written to.
uintptr_t resolve(uint32_t low) {
    constexpr uintptr_t window = 1 << 18;
    const uintptr_t base = arena.base + size_t(current->block->slot) * Arena::kSharedSlot;
    const uintptr_t dynamic = base + ((low - base) & (window - 1));
    const bool fits = dynamic - base < launch->shared_bytes;
    if (fits && (!hot.shared.size || holds_something(dynamic))) return dynamic;
    uintptr_t first = hot.shared.low + ((low - hot.shared.low) & (window - 1));
    for (uintptr_t p = first; launch->module && p < hot.shared.low + hot.shared.size; p += window) {
        const SharedSymbol* s = launch->module->symbol_at(p - hot.shared.low + launch->module->shared_low);
        if (!s || launch->foreign[size_t(s - launch->module->shared.data())]) continue;
        if (!fits || holds_something(p)) return p;
    }
    return dynamic;
}

Descriptor decode(uint64_t d, const char* name, void* pc) {
    static const uint32_t rows[] = {0, 128, 64, 32};
    if (d >> 49 & 7)
        report_from_device("unsupported_feature", pc, "%s: a descriptor with base offset %u; only 0 is simulated", name,
                           unsigned(d >> 49 & 7));
    return {resolve(uint32_t(d & 0x3fff) << 4), uint32_t(d >> 16 & 0x3fff) << 4, uint32_t(d >> 32 & 0x3fff) << 4,
            rows[d >> 62]};
}

uintptr_t swizzled(const Descriptor& d, uintptr_t address) {
    if (!d.row) return address;
    return address ^ ((address >> 7 & (d.row / 16 - 1)) << 4);
}

// Where 16 bytes of an operand lie. K-major: row i of M or N, half h of the 32 bytes along K.
uintptr_t along_k(const Descriptor& d, uint32_t i, uint32_t h) {
    if (!d.row) return d.start + i / 8 * d.stride + i % 8 * 16 + h * d.leading;
    return swizzled(d, d.start + i / 8 * d.stride + i % 8 * d.row + h * 16);
}
// Transposed (16-bit types): eight elements of M or N from 8 j on, at step k.
uintptr_t along_rows(const Descriptor& d, uint32_t j, uint32_t k) {
    if (!d.row) return d.start + j * d.stride + k % 8 * 16 + k / 8 * d.leading;
    const uint32_t chunks = d.row / 16;
    return swizzled(d, d.start + j % chunks * 16 + j / chunks * d.leading + k % 8 * d.row + k / 8 * d.stride);
}

double element(int kind, uint32_t bits) {
    return kind == CSIM_WGMMA_F16    ? tensor::half_bits_to_float(bits)
           : kind == CSIM_WGMMA_BF16 ? tensor::bfloat_bits_to_float(bits)
                                     : tensor::tf32_bits_to_float(bits);
}

struct Operand {
    std::vector<double> values;   // [row][k]
    std::vector<int> exponents;
    bool finite = true;
    std::vector<char> zero;       // by row
};

struct Reading {   // one operand in shared memory, on behalf of the warpgroup
    const csim_wgmma_call& call;
    Warpgroup& group;
    Thread* const* threads;
    void* pc;

    void fetch(uintptr_t address, void* into) {
        if (call.checked) read_async(address, 16, pc, "wgmma", threads, 4, group.reads);
        memcpy(into, reinterpret_cast<void*>(address), 16);
    }
    void read(uint64_t bits, bool transposed, int sign, int rows, int k, Operand& out) {
        const Descriptor d = decode(bits, call.name, pc);
        const int width = call.kind == CSIM_WGMMA_TF32 ? 4 : 2, per = 16 / width;
        auto put = [&](int row, int at, const unsigned char* from) {
            uint32_t raw = 0;
            memcpy(&raw, from, size_t(width));
            out.values[size_t(row) * size_t(k) + size_t(at)] = sign * element(call.kind, raw);
        };
        unsigned char piece[16];
        if (transposed) {
            for (int j = 0; j < rows / 8; j++)
                for (int at = 0; at < k; at++) {
                    fetch(along_rows(d, uint32_t(j), uint32_t(at)), piece);
                    for (int i = 0; i < 8; i++) put(8 * j + i, at, piece + i * width);
                }
        } else {
            for (int row = 0; row < rows; row++)
                for (int h = 0; h < 2; h++) {
                    fetch(along_k(d, uint32_t(row), uint32_t(h)), piece);
                    for (int i = 0; i < per; i++) put(row, h * per + i, piece + i * width);
                }
        }
    }
};

// Rows of zeros add nothing to a sum where the other operand is finite: most rows of a ragged tile.
void look_at(Operand& o, int rows, int k) {
    o.zero.assign(size_t(rows), 1);
    o.exponents.resize(o.values.size());
    for (size_t i = 0; i < o.values.size(); i++) o.exponents[i] = tensor::exponent_of(o.values[i]);
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < k; i++) {
            const double v = o.values[size_t(row * k + i)];
            if (v != 0) o.zero[size_t(row)] = 0;
            if (!std::isfinite(v)) o.finite = false;
        }
}

template <int K> void multiply(Warpgroup& g, const Operand& a, const Operand& b, int n, bool accumulate) {
    for (uint32_t thread = 0; thread < kThreads; thread++) {
        const auto& call = *static_cast<const csim_wgmma_call*>(g.slots[thread]);
        const uint32_t lane = thread % 32;
        for (int j = 0; j < n / 8; j++)
            for (int h = 0; h < 2; h++) {
                const size_t row = thread / 32 * 16 + size_t(h) * 8 + lane / 4;
                for (int i = 0; i < 2; i++) {
                    const size_t column = size_t(8 * j) + 2 * (lane % 4) + size_t(i);
                    float& d = call.d[4 * j + 2 * h + i];
                    const float c = accumulate ? d : 0.f;
                    // only -0 could change, by a product of +0
                    if (a.finite && b.finite && (a.zero[row] || b.zero[column]) && (c != 0 || !std::signbit(c))) d = c;
                    else
                        d = tensor::aligned_sum<K>(c, &a.values[row * K], &b.values[column * K], &a.exponents[row * K],
                                                   &b.exponents[column * K]);
                }
            }
    }
}

struct Call {   // what a thread brings to the meeting
    csim_wgmma_call call;
    void* pc;
};

void run(Block& block, Warpgroup& g) {
    const auto& call = *static_cast<const csim_wgmma_call*>(g.slots[0]);
    void* pc = static_cast<const Call*>(g.slots[current->number % kThreads])->pc;
    for (uint32_t i = 1; i < kThreads; i++) {
        const auto& other = *static_cast<const csim_wgmma_call*>(g.slots[i]);
        const bool same_a = (!call.a && call.descriptor_a == other.descriptor_a) || (call.a && other.a);
        if (!same_a || call.descriptor_b != other.descriptor_b || call.n != other.n || call.kind != other.kind ||
            !call.accumulate != !other.accumulate)
            report_from_device("warp_divergence", pc,
                               "%s: threads of one warpgroup bring different %s (number %u differs from the first)",
                               call.name,
                               !same_a || call.descriptor_b != other.descriptor_b ? "descriptors" : "operands", i);
    }
    const int k = call.kind == CSIM_WGMMA_TF32 ? 8 : 16, per = call.kind == CSIM_WGMMA_TF32 ? 1 : 2;
    Thread* threads[4];   // any of the four may be the one that waited for the data
    for (uint32_t w = 0; w < 4; w++) threads[w] = threads_of(block, g) + w * 32;
    Reading reading{call, g, threads, pc};
    static Operand a, b;
    a.finite = b.finite = true;
    a.values.assign(size_t(64 * k), 0);
    b.values.assign(size_t(call.n * k), 0);
    if (!call.a) {
        reading.read(call.descriptor_a, call.transposed_a, call.sign_a, 64, k, a);
    } else {
        for (uint32_t thread = 0; thread < kThreads; thread++) {
            const uint32_t* registers = static_cast<const csim_wgmma_call*>(g.slots[thread])->a;
            const uint32_t row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4;
            for (uint32_t r = 0; r < 4; r++)
                for (uint32_t i = 0; i < uint32_t(per); i++) {
                    const uint32_t at = r / 2 * 4 * uint32_t(per) + t * uint32_t(per) + i;
                    const uint32_t raw = per == 2 ? registers[r] >> (16 * i) & 0xffff : registers[r];
                    a.values[(row + r % 2 * 8) * size_t(k) + at] = call.sign_a * element(call.kind, raw);
                }
        }
    }
    reading.read(call.descriptor_b, call.transposed_b, call.sign_b, call.n, k, b);
    look_at(a, 64, k);
    look_at(b, call.n, k);
    if (k == 16) multiply<16>(g, a, b, call.n, call.accumulate);
    else multiply<8>(g, a, b, call.n, call.accumulate);
}

struct Waiting {
    uint32_t through;   // groups up to this one are over
    void* pc;
};

void retire(Block& b, Warpgroup& g) {
    const auto& mine = *static_cast<const Waiting*>(g.slots[current->number % kThreads]);
    uint32_t clock = 0;
    for (uint32_t i = 0; i < kThreads; i++) {
        if (static_cast<const Waiting*>(g.slots[i])->through != mine.through)
            report_from_device("warp_divergence", mine.pc,
                               "wgmma.wait_group: threads of one warpgroup wait for different groups");
        clock = std::max(clock, threads_of(b, g)[i].clock);
    }
    for (; g.retired < mine.through; g.retired++) {
        end_async_reads(g.groups.front(), clock, 8 + g.number, "wgmma", "wgmma.wait_group", mine.pc);
        g.groups.erase(g.groups.begin());
    }
}
}  // namespace

void meet_warpgroup(void* slot, void (*exec)(Block&, Warpgroup&), const char* name, void* pc) {
    Thread* me = current;
    if (needs_settling()) settle_thread();
    Warpgroup& g = my_group(name, pc);
    if (g.arrived && g.exec != exec)
        report_from_device("warp_divergence", pc,
                           "threads of one warpgroup execute different instructions: this one %s while %u others are "
                           "at %s",
                           name, g.arrived, g.name);
    g.exec = exec;
    g.name = name;
    g.slots[me->number % kThreads] = slot;
    if (++g.arrived < kThreads) {
        me->what = name;
        me->line = 0;
        me->site = pc;
        wait_here(Wait::warpgroup);
        return;
    }
    Block& b = *me->block;
    {
        RuntimeSection section;
        exec(b, g);
    }
    g.arrived = 0;
    Thread* threads = threads_of(b, g);
    uint32_t clock = 0;
    for (uint32_t i = 0; i < kThreads; i++) clock = std::max(clock, threads[i].clock);
    clock++;
    for (uint32_t i = 0; i < kThreads; i++) {
        threads[i].clock = clock;
        threads[i].warp->floor = clock;
        if (&threads[i] != me) make_ready(&threads[i]);
    }
    launch->progress++;
    if (clock >= kMaxClock) new_epoch(b);
    refresh_hot();
}

void leave_warpgroup(Thread& t) {
    Block& b = *t.block;
    if (b.warpgroups.empty() || t.number / kThreads >= b.warpgroups.size()) return;
    const Warpgroup& g = b.warpgroups[t.number / kThreads];
    if (g.retired == g.committed && g.reads.empty()) return;
    report_from_device("race_shared", nullptr,
                       "the thread ends before its wgmma do: %s, so nothing says that their sums are there",
                       g.reads.empty() ? "no wgmma.wait_group covers the last groups"
                                       : "no wgmma.commit_group and wgmma.wait_group follow the last of them");
}

}  // namespace csim

using namespace csim;

extern "C" {

void csim_wgmma(const csim_wgmma_call* call) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    if (!current->warp->wgmma_fenced)
        report_from_device("race_shared", pc,
                           "%s without a wgmma.fence before it: its registers may still be on their way", call->name);
    Call mine{*call, pc};
    meet_warpgroup(&mine, run, call->name, pc);
}

void csim_wgmma_fence(void) {
    if (current) current->warp->wgmma_fenced = true;
}

// Each thread commits for itself; the first closes the group, which all have issued by then.
void csim_wgmma_commit(void) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    RuntimeSection section;
    Warpgroup& g = my_group("wgmma.commit_group", pc);
    if (++current->wgmma_commits <= g.committed) return;
    g.committed = current->wgmma_commits;
    g.groups.push_back(std::move(g.reads));
    g.reads.clear();
}

void csim_wgmma_wait(unsigned groups_left) {
    if (!current) return;
    void* pc = __builtin_return_address(0);
    Warpgroup& g = my_group("wgmma.wait_group", pc);
    const uint32_t commits = current->wgmma_commits;
    if (commits <= g.retired + groups_left) return;
    Waiting mine{commits - groups_left, pc};
    meet_warpgroup(&mine, retire, "wgmma.wait_group", pc);
}
}
