// Shadow memory: what the simulator remembers about every word (or byte) of device memory.
//
// A cell holds the last write and the reads since then. Both are records of the form
//
//     epoch : 32 | clock : 14 | node : 11 | flags : 7
//
// epoch  a number drawn from one process-wide counter whenever a block starts or passes a block-wide barrier. Two
//        accesses of one block with different epochs are ordered; epochs below the launch's first belong to earlier
//        launches.
// clock  counts the warp collectives and named barriers a thread has taken part in since its epoch began (order.cpp).
// node   who: threads are the leaves of a binary tree (leaf = 1024 + thread, root = 1 = the whole block). Several
//        readers share a cell by widening the node to their common ancestor, so a record never grows.
//
// Nothing is ever cleared between blocks or launches: a record is simply too old to matter.
#pragma once
#include <cstdint>

namespace csim {

struct Cell {
    uint64_t write, read;
};

constexpr unsigned kNodeShift = 7, kClockShift = 18, kEpochShift = 32;
constexpr uint32_t kNodeMask = 0x7ff, kMaxClock = 0x3fff;
constexpr uint64_t kClockBits = uint64_t(kMaxClock) << kClockShift;

// flags of a write record
constexpr uint64_t kWritten = 1;      // the bytes hold a value somebody wrote
// written by atomics (or volatile stores), possibly by several threads (node covers them)
constexpr uint64_t kAtomic = 2;
// flags of both records
constexpr uint64_t kManyBlocks = 4;   // blocks other than the record's own took part too, earlier in this launch
// written by an asynchronous copy: wgmma may read it without a proxy fence
constexpr uint64_t kAsync = 16;
// flag of a read record
constexpr uint64_t kSplit = 8;        // this word is tracked byte by byte; the rest of the cell is meaningless

inline uint32_t epoch_of(uint64_t record) { return uint32_t(record >> kEpochShift); }
inline uint32_t node_of(uint64_t record) { return uint32_t(record >> kNodeShift) & kNodeMask; }
inline uint32_t clock_of(uint64_t record) { return uint32_t(record >> kClockShift) & kMaxClock; }
inline uint64_t make_record(uint32_t epoch, uint32_t clock, uint32_t node) {
    return uint64_t(epoch) << kEpochShift | uint64_t(clock) << kClockShift | uint64_t(node) << kNodeShift;
}
inline uint32_t leaf_of(uint32_t thread) { return 1024 + thread; }

inline int node_depth(uint32_t node) { return 31 - __builtin_clz(node); }
// Does `node` contain `leaf`? (A node of depth d holds 2^(10-d) threads.)
inline bool covers(uint32_t node, uint32_t leaf) { return node && leaf >> (10 - node_depth(node)) == node; }
inline uint32_t common_ancestor(uint32_t node, uint32_t leaf) {
    leaf >>= 10 - node_depth(node);
    uint32_t differing = node ^ leaf;
    return differing ? node >> (32 - __builtin_clz(differing)) : node;
}
inline uint32_t first_thread(uint32_t node) { return (node << (10 - node_depth(node))) - 1024; }
inline uint32_t thread_count(uint32_t node) { return 1u << (10 - node_depth(node)); }

}  // namespace csim
