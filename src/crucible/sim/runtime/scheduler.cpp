// Runs a grid: one fiber per CUDA thread, one block after another, several blocks at once only where they wait for each
// other.
//
// A thread starts on whatever stack is hot. If it ends without ever waiting, the next thread reuses the stack without a
// switch, so kernels without barriers cost little more than a loop. A thread that waits keeps its stack and another one
// is taken from the pool.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>

#include "config.h"
#include "engine.h"
#include "modules.h"
#include "report.h"

extern "C" {
__thread uint3 threadIdx, blockIdx, blockDim, gridDim;
}

namespace csim {

Launch* launch = nullptr;
Thread* current = nullptr;
Hot hot;
bool in_runtime = false;
volatile int stop_requested = 0;

namespace {
void* scheduler_sp;
Block* active = nullptr;                       // whose static shared memory is in place
std::vector<std::unique_ptr<Block>> residents;
std::vector<std::unique_ptr<Block>> spare;     // finished blocks, reused with their vectors
uint32_t epochs = 1;                           // the process-wide epoch counter; 0 is "never"
uint32_t epochs_of_last_start = 0;
uint64_t random_state;
constexpr size_t kResidentThreads = StackPool::kCount - 2048;

uint64_t random_number() {   // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1Dull;
}

void set_builtins(const Thread& t) {
    threadIdx = t.index;
    current = const_cast<Thread*>(&t);
    refresh_hot();
}

Thread* pick_next(Block& b) {
    const size_t waiting = b.ready.size() - b.ready_head, fresh = b.threads.size() - b.started;
    const bool random = config.schedule == Schedule::random;
    if (waiting && (!random || !fresh || random_number() % (waiting + fresh) < waiting)) {
        if (random) std::swap(b.ready[b.ready_head], b.ready[b.ready_head + random_number() % waiting]);
        Thread* t = b.ready[b.ready_head++];
        if (b.ready_head == b.ready.size()) b.ready.clear(), b.ready_head = 0;
        return t;
    }
    if (!fresh) return nullptr;
    const uint32_t i = b.started++;
    return &b.threads[b.order.empty() ? i : b.order[i]];
}

void thread_finished(Thread& t) {
    Block& b = *t.block;
    t.wait = Wait::done;
    b.live--;
    b.acquired = std::max(b.acquired, t.acquired);
    launch->progress++;
    Warp& w = *t.warp;
    w.exited |= 1u << t.lane;
    w.runnable--;
    warp_thread_exited(w);
    leave_warpgroup(t);
    barrier_thread_exited(b);
}

void runner();

// Continue with `next` (null: the scheduler). The caller's place is saved in *save.
void switch_to(Thread* next, void** save) {
    if (!next) {
        current = nullptr;
        csim_switch(save, scheduler_sp);
        return;
    }
    if (next->wait == Wait::not_started) {
        next->stack = stacks.take();
        if (!next->stack) {
            report_from_device("launch_error", nullptr, "the simulator ran out of stacks for simulated threads");
        }
        next->wait = Wait::ready;
        set_builtins(*next);
        csim_switch(save, stacks.prepare(next->stack, runner));
        return;
    }
    set_builtins(*next);
    csim_switch(save, next->stack_pointer);
}

void call_kernel() {
    try {
        launch->info->thunk(launch->info->closure);
    } catch (const std::exception& e) {
        report_from_device("launch_error", nullptr, "a C++ exception left the kernel: %s", e.what());
    } catch (...) {
        report_from_device("launch_error", nullptr, "a C++ exception left the kernel");
    }
}

void runner() {
    for (;;) {
        call_kernel();
        if (needs_settling()) settle_thread();
        Thread& t = *current;
        Block& b = *t.block;
        char* stack = t.stack;
        t.stack = nullptr;
        thread_finished(t);
        Thread* next = pick_next(b);
        if (next && next->wait == Wait::not_started) {
            next->stack = stack;
            next->wait = Wait::ready;
            set_builtins(*next);
            continue;
        }
        stacks.give(stack);   // nobody can take it before the switch below has left it
        void* forgotten;
        switch_to(next, &forgotten);
    }
}

void reclaim_stacks(Block& b) {
    for (Thread& t : b.threads)
        if (t.stack) stacks.give(t.stack), t.stack = nullptr;
}

// Static shared memory is one copy for all blocks; while blocks take turns, each keeps its own aside, with its shadow.
template <class Copy> void for_each_array(Copy copy) {
    const StaticShared& s = hot.shared;
    for (const SharedSymbol& array : launch->module->shared) {
        const size_t at = array.offset - launch->module->shared_low;
        auto* data = reinterpret_cast<unsigned char*>(s.low + at);
        copy(data, array.size, s.words + at / 4, array.size / 4 + 2, s.bytes + at);
    }
}

void save_shared(Block& b) {
    b.saved_data.clear();
    b.saved_words.clear();
    b.saved_bytes.clear();
    for_each_array([&](unsigned char* data, size_t size, Cell* words, size_t word_count, Cell* bytes) {
        b.saved_data.insert(b.saved_data.end(), data, data + size);
        b.saved_words.insert(b.saved_words.end(), words, words + word_count);
        if (launch->split_shared) b.saved_bytes.insert(b.saved_bytes.end(), bytes, bytes + size);
    });
    b.saved = true;
}

void restore_shared(Block& b) {
    auto data_at = b.saved_data.begin();
    auto words_at = b.saved_words.begin();
    auto bytes_at = b.saved_bytes.begin();
    for_each_array([&](unsigned char* data, size_t size, Cell* words, size_t word_count, Cell* bytes) {
        std::copy_n(data_at, size, data);
        data_at += long(size);
        std::copy_n(words_at, word_count, words);
        words_at += long(word_count);
        if (b.saved_bytes.empty()) return;
        std::copy_n(bytes_at, size, bytes);
        bytes_at += long(size);
    });
    b.saved = false;
}

void activate(Block& b) {
    if (active == &b) return;
    if (active && active->resident && hot.shared.size) save_shared(*active);
    active = &b;
    if (b.saved) restore_shared(b);
    blockIdx = b.index;
    hot.block_begin = b.begin;
}

void prepare_threads(Block& b) {
    const unsigned* d = launch->info->block;
    const uint32_t count = d[0] * d[1] * d[2];
    if (b.threads.size() == count && b.threads[0].index.x == 0 && b.threads[count - 1].index.x == d[0] - 1 &&
        b.threads[count - 1].index.y == d[1] - 1 && b.threads[count - 1].index.z == d[2] - 1)
        return;   // the same shape as last time
    b.threads.assign(count, Thread());
    b.warps.assign((count + 31) / 32, Warp());
    uint32_t i = 0;
    for (unsigned z = 0; z < d[2]; z++)
        for (unsigned y = 0; y < d[1]; y++)
            for (unsigned x = 0; x < d[0]; x++, i++) {
                Thread& t = b.threads[i];
                t.index = {x, y, z};
                t.number = i;
                t.lane = i % 32;
                t.warp = &b.warps[i / 32];
                t.block = &b;
                t.warp->lanes[t.lane] = &t;
            }
    for (size_t w = 0; w < b.warps.size(); w++) {
        Warp& warp = b.warps[w];
        warp.number = uint32_t(w);
        const uint32_t lanes = std::min<uint32_t>(32, count - uint32_t(w) * 32);
        warp.exist = lanes == 32 ? ~0u : (1u << lanes) - 1;
        for (uint32_t l = lanes; l < 32; l++) warp.lanes[l] = nullptr;
        memset(warp.known, 0, sizeof warp.known);
    }
}

void start_block(Block& b, uint64_t number) {
    const unsigned* g = launch->info->grid;
    b.number = number;
    b.index = {unsigned(number % g[0]), unsigned(number / g[0] % g[1]), unsigned(number / (uint64_t(g[0]) * g[1]))};
    prepare_threads(b);
    for (Thread& t : b.threads) {
        t.wait = Wait::not_started;
        t.stack = nullptr;
        t.clock = t.acquired = t.fenced = 0;
        t.poll_address = t.recent_atomic = t.guard_address = 0;
        t.poll_count = t.mbarrier_misses = t.wgmma_commits = 0;
        t.mbarrier = nullptr;
    }
    for (Warp& w : b.warps) {
        w.exited = 0;
        w.runnable = __builtin_popcount(w.exist);
        w.gatherings.clear();
        w.wgmma_fenced = false;
    }
    b.mbarriers.clear();
    b.warpgroups.clear();
    b.proxied_epoch = 0;
    b.stall_rounds = 0;
    b.order.clear();
    if (config.schedule != Schedule::ascending) {
        b.order.resize(b.threads.size());
        for (uint32_t i = 0; i < b.order.size(); i++) b.order[i] = i;
        if (config.schedule == Schedule::descending) std::reverse(b.order.begin(), b.order.end());
        else
            for (size_t i = b.order.size(); i > 1; i--) std::swap(b.order[i - 1], b.order[random_number() % i]);
    }
    b.ready.clear();
    b.ready_head = 0;
    b.started = 0;
    b.live = uint32_t(b.threads.size());
    for (Barrier& bar : b.barriers) bar = Barrier();
    b.acquired = 0;
    b.at_grid = b.spinning = 0;
    b.cut = b.saved = false;
    b.tainted = nullptr;
    b.resident = true;
    b.touched_symbols.assign(launch->module ? launch->module->shared.size() : 0, false);
    b.touched_bytes = 0;
    b.previous_begin = epochs_of_last_start;
    b.begin = new_epoch(b);
    epochs_of_last_start = b.begin;
    activate(b);
    const int poison = config.poison_byte();
    if (launch->module) launch->module->poison_shared(hot.shared.low, poison);
    if (launch->shared_bytes) {
        char* dynamic = reinterpret_cast<char*>(arena.base + size_t(b.slot) * Arena::kSharedSlot);
        memset(dynamic, poison, launch->shared_bytes);
    }
    hot.give_budget(config.block_accesses && launch->sampled ? config.block_accesses : INT64_MAX);
}

void wake_spinners(Block& b) {
    if (!b.spinning) return;
    b.spinning = 0;
    for (Thread& t : b.threads)
        if (t.wait == Wait::spin) make_ready(&t);
}

// Nothing can run. If threads wait at mbarriers, their tests time out: they may have others to look at. Nobody outside
// the block can help them, so when that changes nothing it is a deadlock.
bool retry_mbarriers(Block& b) {
    if (!b.spinning || b.at_grid) return false;
    for (const Thread& t : b.threads)
        if (t.wait == Wait::spin && !t.mbarrier) return false;
    if (launch->progress != b.stall_progress) b.stall_rounds = 0;
    b.stall_progress = launch->progress;
    if (++b.stall_rounds > 100) {
        explain_stall(b, true);
        return false;
    }
    wake_spinners(b);
    return true;
}

// Runs threads of `b` until none of them can go on.
void run_block(Block& b) {
    activate(b);
    for (;;) {
        Thread* next = pick_next(b);
        if (!next) {
            if (resolve_active_masks(b) || retry_mbarriers(b)) continue;
            return;
        }
        switch_to(next, &scheduler_sp);
        if (launch->failed || b.cut) return;
    }
}

void release_grid() {
    const uint32_t everything = epochs;
    for (auto& b : residents) {
        for (Thread& t : b->threads)
            if (t.wait == Wait::grid) {
                t.acquired = std::max(t.acquired, everything);
                make_ready(&t);
            }
        b->at_grid = 0;
        new_epoch(*b);
    }
    launch->progress++;
}

// Which blocks run, in which order.
class BlockOrder {
 public:
    explicit BlockOrder(uint64_t count) : count_(count) {
        if (config.sample_blocks > 0 && uint64_t(config.sample_blocks) < count) {
            chosen_ = {0, count - 1};
            while (chosen_.size() < uint64_t(config.sample_blocks)) {
                uint64_t pick = random_number() % count;
                if (std::find(chosen_.begin(), chosen_.end(), pick) == chosen_.end()) chosen_.push_back(pick);
            }
            count_ = chosen_.size();
            std::sort(chosen_.begin(), chosen_.end());
        }
        // a permutation without storing one: i -> (i * step + offset) mod n
        if (config.schedule == Schedule::random && count_ > 1) {
            offset_ = random_number() % count_;
            do step_ = 1 + random_number() % count_;
            while (std::__gcd(step_, count_) != 1);
        }
    }
    bool empty() const { return next_ == count_; }
    uint64_t take() {
        uint64_t i = next_++;
        if (config.schedule == Schedule::descending) i = count_ - 1 - i;
        if (config.schedule == Schedule::random) i = uint64_t(((unsigned __int128)i * step_ + offset_) % count_);
        return chosen_.empty() ? i : chosen_[i];
    }

 private:
    uint64_t count_, next_ = 0, step_ = 1, offset_ = 0;
    std::vector<uint64_t> chosen_;
};

std::unique_ptr<Block> take_block() {
    std::unique_ptr<Block> b;
    if (!spare.empty()) b = std::move(spare.back()), spare.pop_back();
    else b = std::make_unique<Block>();
    return b;
}
}  // namespace

void refresh_hot() {
    const Thread& t = *current;
    hot.epoch = t.block->epoch;
    hot.leaf = leaf_of(t.number);
    hot.stamp = make_record(hot.epoch, t.clock, hot.leaf);
    hot.fast_epoch = hot.pending_count || t.block->tainted || stop_requested ? ~0u : hot.epoch;
}

uint32_t new_epoch(Block& b) {
    b.epoch = ++epochs;
    launch->owner.push_back(uint32_t(b.number));
    for (Thread& t : b.threads) t.clock = 0;
    for (Warp& w : b.warps) {
        w.floor = 0;
        if (w.partial) memset(w.known, 0, sizeof w.known);
        w.partial = w.irregular = false;
    }
    b.finer_order = false;
    if (current && current->block == &b) refresh_hot();
    return b.epoch;
}

void make_ready(Thread* t) {
    t->wait = Wait::ready;
    t->warp->runnable++;
    t->block->ready.push_back(t);
}

void wait_here(Wait why) {
    if (needs_settling()) settle_thread();
    Thread* me = current;
    me->wait = why;
    me->warp->runnable--;
    switch_to(pick_next(*me->block), &me->stack_pointer);
}

void abandon() {
    launch->failed = true;
    void* forgotten;
    switch_to(nullptr, &forgotten);
    __builtin_unreachable();
}

void cut_block() {
    current->block->cut = true;
    hot.pending_count = 0;
    void* forgotten;
    switch_to(nullptr, &forgotten);
    __builtin_unreachable();
}

void run_grid(Launch& l) {
    const csim_launch_info& info = *l.info;
    random_state = config.seed * 0x9E3779B97F4A7C15ull + 0x1234567;
    random_number();
    gridDim = {info.grid[0], info.grid[1], info.grid[2]};
    blockDim = {info.block[0], info.block[1], info.block[2]};
    l.begin = epochs + 1;
    hot.launch_begin = l.begin;
    epochs_of_last_start = l.begin;
    hot.pending_count = 0;
    active = nullptr;
    const size_t threads = size_t(info.block[0]) * info.block[1] * info.block[2];
    BlockOrder order(uint64_t(info.grid[0]) * info.grid[1] * info.grid[2]);
    int idle_rounds = 0;
    uint64_t seen_progress = 0;
    std::vector<int> free_slots;
    int slots = 0;

    auto finish = [&](size_t i) {
        report_held_race();
        std::unique_ptr<Block> b = std::move(residents[i]);
        residents.erase(residents.begin() + long(i));
        b->resident = false;
        if (active == b.get()) active = nullptr;
        reclaim_stacks(*b);
        free_slots.push_back(b->slot);
        spare.push_back(std::move(b));
    };

    while (!l.failed) {
        const bool room = !order.empty() && (residents.size() + 1) * threads <= kResidentThreads;
        if (room && (residents.empty() || l.progress == seen_progress || info.cooperative)) {
            residents.push_back(take_block());
            Block& b = *residents.back();
            if (free_slots.empty()) b.slot = slots++;
            else b.slot = free_slots.back(), free_slots.pop_back();
            if (residents.size() > 1) l.interleaved = true;
            start_block(b, order.take());
            run_block(b);
            if (l.failed) break;
            if (b.live == 0 || b.cut) finish(residents.size() - 1);
            continue;
        }
        if (residents.empty()) break;   // all done
        // Every block left waits: for memory to change, or at a grid barrier.
        seen_progress = l.progress;
        size_t at_grid = 0;
        for (auto& b : residents) at_grid += b->at_grid == b->live;
        if (at_grid == residents.size() && order.empty()) {
            release_grid();
        }
        for (size_t i = 0; i < residents.size() && !l.failed;) {
            Block& b = *residents[i];
            if (!b.spinning && b.at_grid != b.live && b.ready.empty() && explain_stall(b, false)) break;
            wake_spinners(b);
            run_block(b);
            if (l.failed) break;
            if (b.live == 0 || b.cut) finish(i);
            else i++;
        }
        if (l.failed) break;
        if (l.progress != seen_progress) {
            idle_rounds = 0;
            continue;
        }
        if (!order.empty() && (residents.size() + 1) * threads <= kResidentThreads) continue;
        if (++idle_rounds >= 100 && !residents.empty() && explain_stall(*residents[0], true)
            && residents[0]->cut) finish(0);
    }
    for (auto& b : residents) {
        reclaim_stacks(*b);
        b->resident = false;
        spare.push_back(std::move(b));
    }
    residents.clear();
    active = nullptr;
    current = nullptr;
    hot.give_budget(INT64_MAX);
    hot.pending_count = 0;
    if (slots > 64) {
        stacks.trim(4096);
        while (spare.size() > 4) spare.pop_back();
    }
}

}  // namespace csim
