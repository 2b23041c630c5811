// The state of a running launch: threads, warps, blocks, and what the access hooks need at hand.
#pragma once
#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi.h"
#include "arena.h"
#include "fiber.h"
#include "mbarrier.h"
#include "shadow.h"

namespace csim {

struct Module;
struct Warp;
struct Block;

enum class Wait : uint8_t {
    not_started,
    ready,
    barrier,      // a block barrier
    warp,         // a warp collective
    active_mask,  // __activemask: until no other lane of the warp can run
    grid,         // grid.sync()
    spin,         // polling memory (or an mbarrier): others first
    warpgroup,    // wgmma: until the other threads of the warpgroup come
    done,
};

struct Thread {
    uint3 index;
    uint32_t number = 0, lane = 0;   // linear index in the block, index in the warp
    Warp* warp = nullptr;
    Block* block = nullptr;
    void* stack_pointer = nullptr;
    char* stack = nullptr;
    Wait wait = Wait::not_started;

    // memory order
    uint32_t clock = 0;      // see shadow.h
    uint32_t acquired = 0;   // epochs of other blocks up to this one happened before us
    uint32_t fenced = 0;     // our epoch at the last __threadfence: what a flag stored now publishes
    uint32_t stores_since_fence = 0;

    // where it waits
    const char* what = nullptr;
    int line = 0;
    void* slot = nullptr;
    int barrier = 0;
    bool passing = false;        // inside bar.arrive
    void* site = nullptr;        // return address of the waiting call, for reports
    unsigned result = 0;         // of __activemask

    // polling detection: the last volatile or atomic access that read the same value from the same place
    uintptr_t poll_address = 0;
    uint64_t poll_value = 0;
    uint64_t poll_round = 0, poll_last = 0;   // what was read elsewhere in this round, and in the one before
    uint32_t poll_others = 0, poll_count = 0;

    MBarrier* mbarrier = nullptr;   // in Wait::spin: the one whose next phase it waits for, null for plain memory
    uint32_t wgmma_commits = 0;     // groups of wgmma that it has committed
    uint32_t mbarrier_misses = 0;   // tests in a row that found a phase incomplete

    uintptr_t recent_atomic = 0;  // the last address this thread used atomically
    uintptr_t guard_address = 0;  // a plain read of an atomic location, perhaps the prelude of a compare-and-swap loop
    void* guard_pc = nullptr;
};

struct Gathering {   // a warp collective that waits for lanes
    unsigned mask = 0, arrived = 0;
    csim_warp_exec exec = nullptr;
    const char* name = nullptr;
    int line = 0;
};

struct Warp {
    Thread* lanes[32];
    unsigned exist = 0, exited = 0;
    int runnable = 0;            // lanes that are ready (or running, or not started)
    uint32_t number = 0;
    std::vector<Gathering> gatherings;
    uint32_t floor = 0;          // the clock after the last collective of all live lanes
    bool irregular = false;      // collectives of odd groups happened: shared read records are too coarse to judge them
    bool partial = false;        // `known` is in use
    uint32_t known[32][32];      // known[a][b]: accesses of b with a clock below this happened before a
    bool wgmma_fenced = false;   // wgmma.fence was executed
};

struct AsyncRead {   // a cell that wgmma reads until it was waited for, as it was when the wgmma was issued
    Cell* cell;
    uintptr_t address;
    uint64_t record;
    uint32_t value;
    uint32_t bytes;
};

struct Warpgroup {   // four warps that execute wgmma together
    uint32_t arrived = 0;
    void* slots[128] = {};
    void (*exec)(Block&, Warpgroup&) = nullptr;
    const char* name = nullptr;
    uint32_t number = 0;
    uint32_t committed = 0, retired = 0;          // groups
    std::vector<AsyncRead> reads;                 // of what was issued since the last commit
    std::vector<std::vector<AsyncRead>> groups;   // of groups `retired` to `committed`
};

struct Barrier {
    uint32_t expected = 0, arrived = 0;   // expected 0: all live threads
    const char* name = nullptr;
    int line = 0;
    int count = 0;
    bool all = true, any = false;
    // of threads that arrived without waiting (bar.arrive): warps, and the clocks from which on they are not ordered
    uint32_t passing = 0, passing_clock[32] = {}, passing_acquired = 0, passing_fenced = 0;
};

constexpr int kBarriers = 17, kClusterBarrier = 16;   // 0 to 15 are those of PTX; the last is barrier.cluster

struct StaticShared {   // a stretch of variables and its shadow: the running module's __shared__ ones, or its globals
    uintptr_t low = 0;
    size_t size = 0;
    Cell* words = nullptr;
    Cell* bytes = nullptr;
};

struct Block {
    uint3 index;
    uint64_t number = 0;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<Thread*> ready;
    size_t ready_head = 0;
    uint32_t started = 0, live = 0;
    std::vector<uint32_t> order;      // in which threads start, empty when ascending
    Barrier barriers[kBarriers];
    int reduce_count = 0;
    bool reduce_all = true, reduce_any = false;
    uint32_t epoch = 0, begin = 0;    // current and first epoch
    uint32_t previous_begin = 0;      // first epoch of the block that started before this one
    uint32_t acquired = 0;            // of the threads that ended or passed a barrier
    // row w: of each thread, the clock below which its accesses happened before warp w (named barriers, mbarriers)
    std::vector<uint32_t> known;
    bool finer_order = false;         // `known` is in use since the last barrier of the whole block
    uint32_t* known_to(uint32_t warp) { return known.data() + size_t(warp) * warps.size() * 32; }
    const uint32_t* known_to(uint32_t warp) const { return known.data() + size_t(warp) * warps.size() * 32; }
    void need_finer_order();
    std::unordered_map<uintptr_t, std::unique_ptr<MBarrier>> mbarriers;
    std::vector<Warpgroup> warpgroups;
    // fence.proxy.async: of each thread, the clock (in epoch `proxied_epoch`) below which its stores were fenced
    std::vector<uint32_t> proxied;
    uint32_t proxied_epoch = 0;
    uint64_t stall_progress = 0;
    int stall_rounds = 0;
    uint32_t at_grid = 0, spinning = 0;
    int slot = 0;                     // which dynamic shared memory
    const char* tainted = nullptr;    // poison was read: what a report will say if it reaches a result
    bool cut = false;                 // sampling: gave up after enough accesses
    bool resident = false;
    std::vector<bool> touched_symbols;   // static shared arrays used, for the shared memory limit
    size_t touched_bytes = 0;
    // saved static shared memory while another block runs
    std::vector<unsigned char> saved_data;
    std::vector<Cell> saved_words, saved_bytes;
    bool saved = false;
};

struct Pending {   // an unordered write whose effect is judged once it has happened: equal values are no race
    uintptr_t address = 0;
    uint8_t bytes = 0;
    bool flow = false;       // no conflict, but watch for poison arriving in global memory
    uint64_t old = 0;
    uint64_t other = 0;      // the record it conflicts with
    bool other_wrote = false;
    void* pc = nullptr;
};

// A tensor that is written all over and that nobody has written to in this launch: reads of it need no record.
// (Reads that come before the launch's first write to a tensor are therefore unknown to the race check.)
struct Quiet {
    uintptr_t base = 0;
    size_t size = 0;
};

// What the hooks touch on every access. One object; the thread-local pointer to it is set only while device code runs
// in checked mode.
struct Hot {
    uint32_t fast_epoch = 0;      // epoch, or ~0 when every access must take the slow path
    uint32_t epoch = 0, leaf = 0;
    uint64_t stamp = 0;           // the record of an access now
    int64_t budget = INT64_MAX;   // counts accesses down; at zero the block is cut off (sampling)
    int64_t budget_given = INT64_MAX;
    uintptr_t arena_base = 0;
    size_t arena_size = 0;
    Cell *words = nullptr, *bytes = nullptr;   // the arena's shadow
    Quiet quiet[4];
    StaticShared shared;
    StaticShared data;                  // __device__ and __constant__ variables of the running module
    uintptr_t object_low = 0;           // all of the module as mapped: code, constants, variables
    size_t object_size = 0;
    uintptr_t stack_low = 0;
    size_t stack_size = 0;
    uint32_t launch_begin = 0, block_begin = 0;
    int pending_count = 0;
    Pending pending[8];
    uint64_t accesses = 0;        // of blocks that are through
    void give_budget(int64_t n) {
        accesses += uint64_t(budget_given - budget);
        budget = budget_given = n;
    }
};

struct Candidate {   // a plain read that races with atomics: a bug, unless it guards or starts an atomic update
    void* pc;
    uintptr_t address;
    uint64_t other;
    uint3 block, thread;
};

struct Launch {
    const csim_launch_info* info = nullptr;
    Module* module = nullptr;
    bool interleaved = false;       // more than one block has been resident: epochs of blocks mix
    bool failed = false;
    bool wrote = false;
    bool any_fence = false;
    bool split_shared = false;      // static shared memory is tracked by the byte in places
    bool sampled = false;
    uint32_t begin = 0;             // first epoch
    std::vector<uint32_t> owner;    // block of each epoch since `begin` (kept only once interleaved)
    std::vector<Candidate> candidates;
    std::vector<bool> foreign;      // static shared arrays that belong to other kernels of the source
    // writes that changed something, threads that ended: a poll that waits for none of these is stuck
    uint64_t progress = 0;
    size_t shared_bytes = 0;
    size_t static_limit = 48 << 10;
    size_t total_limit = 0;
};

extern Launch* launch;       // the one running, null if none
extern Thread* current;      // the thread running, null in the scheduler
extern Hot hot;
extern bool in_runtime;      // the watchdog must not interrupt now
extern volatile int stop_requested;

// scheduling (scheduler.cpp)
void run_grid(Launch& l);
uint32_t new_epoch(Block& b);
void wait_here(Wait why);              // leave the running thread until somebody makes it ready
void make_ready(Thread* t);
void refresh_hot();                    // after `current`, its clock or its block's epoch changed
[[noreturn]] void abandon();           // stop the launch from device code
[[noreturn]] void cut_block();         // stop this block only
void barrier_thread_exited(Block& b);  // collectives.cpp: an exit may complete a barrier
void warp_thread_exited(Warp& w);
bool resolve_active_masks(Block& b);
void yield_at(void* pc);               // let others run; pc names the place in reports
void yield_for(MBarrier* m, void* pc);  // until its phase completes, or nothing else can run
// The threads of a warpgroup meet: the last to come runs `exec`. Orders the lanes of each warp, not the warps.
void meet_warpgroup(void* slot, void (*exec)(Block&, Warpgroup&), const char* name, void* pc);
void leave_warpgroup(Thread& t);       // a thread ends
bool explain_stall(Block& b, bool grid_waiting);   // files a deadlock or divergence report; true if it did

// finer order (order.cpp): what a thread knows to have happened, as clocks of all threads of its block
void gather_known(Thread& t, std::vector<uint32_t>& into);   // joins; what it does from now on is not part of it
void learn(Thread& t, const std::vector<uint32_t>& from);

[[noreturn]] void out_of_time(void* pc);   // watchdog.cpp

// checks (check.cpp)
void settle_pending();
void settle_thread();                  // before the running thread waits or ends: judge what is still open
bool needs_settling();
void note_atomic(uintptr_t address);   // the running thread updates it atomically
void absent_lane(const char* name, int line, void* pc);   // it shuffled from a lane that is not there
// wgmma and bulk copies read shared memory: written, in order (as seen by any of the threads), behind a proxy fence?
void read_async(uintptr_t address, size_t bytes, void* pc, const char* name, Thread* const* threads, int count,
                std::vector<AsyncRead>& into);
// they are over: were they disturbed? From now on they count as reads by the threads of `node`
void end_async_reads(const std::vector<AsyncRead>& reads, uint32_t clock, uint32_t node, const char* name,
                     const char* wait, void* pc);
void begin_async_write(void* p, size_t n);   // nothing is there until end_async_write
void end_async_write(void* p, size_t n);
bool in_shared(uintptr_t address);           // of the running kernel
void settle_candidates(Launch& l);
// at the end of a launch: report poison that reached a result, if nothing else explains it
void settle_flow();

struct RuntimeSection {   // work the watchdog must not interrupt
    bool before;
    RuntimeSection() : before(in_runtime) { in_runtime = true; }
    ~RuntimeSection() { in_runtime = before; }
};

}  // namespace csim
