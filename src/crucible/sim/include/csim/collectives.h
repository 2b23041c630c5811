// Block barriers, warp shuffles, votes, matches and reductions.
//
// A warp collective completes when every live lane of its mask has arrived. Lanes that have exited or never existed do
// not count, as on a chip; what a shuffle reads from such a lane is undefined there and poison here.
#ifndef CSIM_COLLECTIVES_H
#define CSIM_COLLECTIVES_H

static inline void __syncthreads(int line = __builtin_LINE()) { csim_block_barrier_at(0, 0, "__syncthreads", line); }
static inline int __syncthreads_count(int p, int line = __builtin_LINE()) {
    return csim_block_reduce(CSIM_REDUCE_COUNT, p, "__syncthreads_count", line);
}
static inline int __syncthreads_and(int p, int line = __builtin_LINE()) {
    return csim_block_reduce(CSIM_REDUCE_AND, p, "__syncthreads_and", line);
}
static inline int __syncthreads_or(int p, int line = __builtin_LINE()) {
    return csim_block_reduce(CSIM_REDUCE_OR, p, "__syncthreads_or", line);
}
static inline void __barrier_sync(unsigned id) { csim_block_barrier((int)id, 0, "__barrier_sync"); }
static inline void __barrier_sync_count(unsigned id, unsigned n) {
    csim_block_barrier((int)id, (int)n, "__barrier_sync_count");
}
static inline void __threadfence_block() { csim_fence(0); }
static inline void __threadfence() { csim_fence(1); }
static inline void __threadfence_system() { csim_fence(2); }

namespace csim {
struct Nothing {
    CSIM_PLAIN static void exec(void* const*, unsigned) {}
};

enum class Shuffle { index, up, down, exclusive_or };

// One slot a lane. A value travels as bytes, so any type of up to 32 bytes will do.
struct ShuffleSlot {
    unsigned char value[32], result[32];
    int size, argument, width;
    Shuffle kind;
    bool valid;

    CSIM_PLAIN static void exec(void* const* slots, unsigned) {
        for (int lane = 0; lane < 32; lane++) {
            ShuffleSlot* s = static_cast<ShuffleSlot*>(slots[lane]);
            if (!s) continue;
            const int width = s->width, base = lane / width * width;
            int source = lane;
            switch (s->kind) {
                case Shuffle::index: source = base + (s->argument & (width - 1)); break;
                case Shuffle::up:
                    source = lane - s->argument;
                    if (source < base) source = lane;
                    break;
                case Shuffle::down:
                    source = lane + s->argument;
                    if (source >= base + width) source = lane;
                    break;
                case Shuffle::exclusive_or:
                    source = lane ^ s->argument;
                    if (source >= base + width) source = lane;
                    break;
            }
            source &= 31;
            const ShuffleSlot* from = static_cast<const ShuffleSlot*>(slots[source]);
            s->valid = from != nullptr;
            if (from) __builtin_memcpy(s->result, from->value, sizeof s->result);
        }
    }
};

template <class T>
CSIM_PLAIN inline T shuffle(Shuffle kind, unsigned mask, T value, int argument, int width, bool* valid,
                            const char* name, int line, void* pc) {
    static_assert(sizeof(T) <= 32, "shuffles move at most 32 bytes");
    ShuffleSlot s;
    __builtin_memcpy(s.value, &value, sizeof(T));
    s.size = (int)sizeof(T), s.argument = argument, s.width = width, s.kind = kind, s.valid = true;
    csim_warp_collective_pc(mask, &s, &ShuffleSlot::exec, name, line, pc);
    if (valid) *valid = s.valid;
    if (!s.valid) {
        csim_absent_lane(name, line, pc);
        __builtin_memset(s.result, csim_poison(), sizeof s.result);
    }
    __builtin_memcpy((void*)&value, s.result, sizeof(T));
    return value;
}

struct VoteSlot {
    int predicate;
    unsigned ballot;
    CSIM_PLAIN static void exec(void* const* slots, unsigned) {
        unsigned ballot = 0;
        for (int lane = 0; lane < 32; lane++)
            if (slots[lane] && static_cast<VoteSlot*>(slots[lane])->predicate) ballot |= 1u << lane;
        for (int lane = 0; lane < 32; lane++)
            if (slots[lane]) static_cast<VoteSlot*>(slots[lane])->ballot = ballot;
    }
};
CSIM_PLAIN inline unsigned vote(unsigned mask, bool predicate, const char* name, int line, void* pc) {
    VoteSlot s{predicate, 0};
    csim_warp_collective_pc(mask, &s, &VoteSlot::exec, name, line, pc);
    return s.ballot;
}

struct MatchSlot {
    unsigned long long value;
    unsigned same;
    bool all;
    CSIM_PLAIN static void exec(void* const* slots, unsigned) {
        for (int lane = 0; lane < 32; lane++) {
            MatchSlot* s = static_cast<MatchSlot*>(slots[lane]);
            if (!s) continue;
            s->same = 0, s->all = true;
            for (int other = 0; other < 32; other++) {
                const MatchSlot* o = static_cast<const MatchSlot*>(slots[other]);
                if (!o) continue;
                if (o->value == s->value) s->same |= 1u << other;
                else s->all = false;
            }
        }
    }
};
template <class T> CSIM_PLAIN inline MatchSlot match(unsigned mask, T value, const char* name, int line, void* pc) {
    static_assert(sizeof(T) <= 8, "matches compare at most 8 bytes");
    MatchSlot s{0, 0, false};
    __builtin_memcpy(&s.value, &value, sizeof(T));
    csim_warp_collective_pc(mask, &s, &MatchSlot::exec, name, line, pc);
    return s;
}

template <class T, class Op> struct ReduceSlot {
    T value;
    CSIM_PLAIN static void exec(void* const* slots, unsigned) {
        bool first = true;
        T total{};
        for (int lane = 0; lane < 32; lane++)
            if (slots[lane]) {
                T v = static_cast<ReduceSlot*>(slots[lane])->value;
                total = first ? v : Op::apply(total, v);
                first = false;
            }
        for (int lane = 0; lane < 32; lane++)
            if (slots[lane]) static_cast<ReduceSlot*>(slots[lane])->value = total;
    }
};
template <class Op, class T>
CSIM_PLAIN inline T warp_reduce(unsigned mask, T value, const char* name, int line, void* pc) {
    ReduceSlot<T, Op> s{value};
    csim_warp_collective_pc(mask, &s, &ReduceSlot<T, Op>::exec, name, line, pc);
    return s.value;
}
struct OpAdd {
    template <class T> static T apply(T a, T b) { return (T)((unsigned)a + (unsigned)b); }
};
struct OpMin {
    template <class T> static T apply(T a, T b) { return b < a ? b : a; }
};
struct OpMax {
    template <class T> static T apply(T a, T b) { return a < b ? b : a; }
};
struct OpAnd {
    template <class T> static T apply(T a, T b) { return a & b; }
};
struct OpOr {
    template <class T> static T apply(T a, T b) { return a | b; }
};
struct OpXor {
    template <class T> static T apply(T a, T b) { return a ^ b; }
};
}  // namespace csim

// The functions themselves are uninstrumented and so never inlined into a kernel: the return address is the kernel's.
#define CSIM_PC __builtin_return_address(0)
CSIM_PLAIN static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    char nothing;
    csim_warp_collective_pc(mask, &nothing, &csim::Nothing::exec, "__syncwarp", line, CSIM_PC);
}

#define CSIM_SHUFFLE(NAME, KIND)                                                                            \
    template <class T>                                                                                      \
    CSIM_PLAIN inline T NAME(unsigned mask, T v, int a, int width = 32, int line = __builtin_LINE()) {      \
        return csim::shuffle(csim::Shuffle::KIND, mask, v, a, width, nullptr, #NAME, line, CSIM_PC);        \
    }
CSIM_SHUFFLE(__shfl_sync, index)
CSIM_SHUFFLE(__shfl_up_sync, up)
CSIM_SHUFFLE(__shfl_down_sync, down)
CSIM_SHUFFLE(__shfl_xor_sync, exclusive_or)
#undef CSIM_SHUFFLE

CSIM_PLAIN static inline unsigned __ballot_sync(unsigned mask, int p, int line = __builtin_LINE()) {
    return csim::vote(mask, p != 0, "__ballot_sync", line, CSIM_PC);
}
CSIM_PLAIN static inline int __any_sync(unsigned mask, int p, int line = __builtin_LINE()) {
    return csim::vote(mask, p != 0, "__any_sync", line, CSIM_PC) != 0;
}
CSIM_PLAIN static inline int __all_sync(unsigned mask, int p, int line = __builtin_LINE()) {
    return csim::vote(mask, p == 0, "__all_sync", line, CSIM_PC) == 0;
}
CSIM_PLAIN static inline int __uni_sync(unsigned mask, int p, int line = __builtin_LINE()) {
    unsigned b = csim::vote(mask, p != 0, "__uni_sync", line, CSIM_PC);
    return b == 0 || b == (mask & csim_live_lanes());
}
template <class T> CSIM_PLAIN inline unsigned __match_any_sync(unsigned mask, T v, int line = __builtin_LINE()) {
    return csim::match(mask, v, "__match_any_sync", line, CSIM_PC).same;
}
template <class T>
CSIM_PLAIN inline unsigned __match_all_sync(unsigned mask, T v, int* pred, int line = __builtin_LINE()) {
    csim::MatchSlot s = csim::match(mask, v, "__match_all_sync", line, CSIM_PC);
    *pred = s.all;
    return s.all ? s.same : 0;
}
#define CSIM_REDUCE(NAME, OP, T)                                                        \
    CSIM_PLAIN static inline T NAME(unsigned mask, T v, int line = __builtin_LINE()) {  \
        return csim::warp_reduce<csim::OP>(mask, v, #NAME, line, CSIM_PC);              \
    }
CSIM_REDUCE(__reduce_add_sync, OpAdd, unsigned)
CSIM_REDUCE(__reduce_add_sync, OpAdd, int)
CSIM_REDUCE(__reduce_min_sync, OpMin, unsigned)
CSIM_REDUCE(__reduce_min_sync, OpMin, int)
CSIM_REDUCE(__reduce_max_sync, OpMax, unsigned)
CSIM_REDUCE(__reduce_max_sync, OpMax, int)
CSIM_REDUCE(__reduce_and_sync, OpAnd, unsigned)
CSIM_REDUCE(__reduce_or_sync, OpOr, unsigned)
CSIM_REDUCE(__reduce_xor_sync, OpXor, unsigned)
#undef CSIM_REDUCE
#undef CSIM_PC

// The lanes that reach this call before they have to wait somewhere else: the largest group that could be converged
// here. A chip may return any subset of it.
static inline unsigned __activemask() { return csim_activemask(); }
#endif
