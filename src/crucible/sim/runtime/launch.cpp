// A launch: its configuration is judged as a chip would judge it, then the grid runs, then the findings are written
// down.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "bounds.h"
#include "check.h"
#include "config.h"
#include "cuda_errors.h"
#include "engine.h"
#include "limits.h"
#include "modules.h"
#include "overflow.h"
#include "report.h"
#include "streams.h"
#include "watchdog.h"

namespace csim {
namespace {

struct LogEntry {
    std::string kernel, file, error, code, detail;
    int line = 0;
    uint3 grid{}, block{};
    size_t shared_bytes = 0;
    uintptr_t stream = 0;
    bool writes = false, ran = false, cooperative = false;
};

__thread bool launching = false;     // this host thread is inside csim_launch
std::recursive_mutex launch_mutex;   // one launch at a time, whichever host thread it comes from
std::vector<LogEntry> log_entries;
constexpr size_t kLogLimit = 100000;
uint64_t total_launches = 0, total_accesses = 0;

// What a chip says to this configuration; empty code: nothing.
struct Refusal {
    cudaError_t error = cudaSuccess;
    const char* code = "";
    std::string detail;
};

Refusal judge(const csim_launch_info& i) {
    const Limits& chip = limits();
    const uint64_t threads = uint64_t(i.block[0]) * i.block[1] * i.block[2];
    if (!i.grid[0] || !i.grid[1] || !i.grid[2])
        return {cudaErrorInvalidConfiguration, "launch_error",
                format_text("the grid (%u, %u, %u) is empty", i.grid[0], i.grid[1], i.grid[2])};
    if (!threads)
        return {cudaErrorInvalidConfiguration, "launch_error",
                format_text("the block (%u, %u, %u) is empty", i.block[0], i.block[1], i.block[2])};
    if (i.block[0] > 1024 || i.block[1] > 1024 || i.block[2] > 64 || threads > 1024)
        return {cudaErrorInvalidConfiguration, "launch_error",
                format_text("%llu threads a block (%u, %u, %u): a block has at most 1024, and at most (1024, 1024, 64)",
                            (unsigned long long)threads, i.block[0], i.block[1], i.block[2])};
    if (i.grid[0] > 2147483647u || i.grid[1] > 65535 || i.grid[2] > 65535)
        return {cudaErrorInvalidConfiguration, "launch_error",
                format_text("grid (%u, %u, %u): at most (2147483647, 65535, 65535) blocks", i.grid[0], i.grid[1],
                            i.grid[2])};
    if (i.max_threads && threads > uint64_t(i.max_threads))
        return {cudaErrorInvalidValue, "launch_error",
                format_text("%llu threads a block, but the kernel declares __launch_bounds__(%d)",
                            (unsigned long long)threads, i.max_threads)};
    const size_t allowed = dynamic_shared_limit(i.function);
    if (i.shared_bytes > allowed)
        return {cudaErrorInvalidValue, "shared_memory_limit",
                format_text("%zu bytes of dynamic shared memory; the kernel may have %zu%s", i.shared_bytes, allowed,
                            i.shared_bytes <= chip.shared_per_block_optin
                                ? " unless cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize) raises it"
                                : "")};
    if (i.cooperative) {
        const int per_sm = blocks_per_processor(int(threads), i.shared_bytes);
        const uint64_t blocks = uint64_t(i.grid[0]) * i.grid[1] * i.grid[2];
        if (blocks > uint64_t(per_sm) * uint64_t(chip.processors))
            return {cudaErrorCooperativeLaunchTooLarge, "launch_error",
                    format_text("%llu blocks in a cooperative launch; at most %d can be resident",
                                (unsigned long long)blocks, per_sm * chip.processors)};
    }
    return {};
}

void set_hot(Launch& l) {
    hot.arena_base = arena.base;
    hot.arena_size = arena.size;
    hot.words = arena.words;
    hot.bytes = arena.bytes;
    for (Quiet& q : hot.quiet) q = Quiet();
    hot.stack_low = uintptr_t(stacks.low);
    hot.stack_size = size_t(stacks.high - stacks.low);
    hot.shared = StaticShared();
    if (l.module && !l.module->shared.empty()) {
        hot.shared.low = l.module->shared_address();
        hot.shared.size = l.module->shared_high - l.module->shared_low;
        hot.shared.words = l.module->words;
        hot.shared.bytes = l.module->bytes;
    }
    hot.data = StaticShared();
    hot.object_low = hot.object_size = 0;
    if (!l.module) return;
    uintptr_t high = 0;
    for (const Segment& s : l.module->segments) {
        hot.object_low = hot.object_low ? std::min(hot.object_low, s.low) : s.low;
        high = std::max(high, s.high);
        Segment* segment = nullptr;
        if (s.writable && classify(s.low, &segment) == HostMemory::data_of_module)
            hot.data = {s.low, s.high - s.low, segment->words, segment->bytes};
    }
    hot.object_size = high - hot.object_low;
}

// "void (anonymous namespace)::scale<float>(float const*, int)" and "scale<float>" -> "scale"
std::string base_name(const std::string& function) {
    std::string text = function;
    const std::string anonymous = "(anonymous namespace)";
    for (size_t at; (at = text.find(anonymous)) != std::string::npos;) text.erase(at, anonymous.size());
    text = text.substr(0, text.find('('));
    text = text.substr(0, text.find('<'));
    while (!text.empty() && text.back() == ' ') text.pop_back();
    const size_t start = text.find_last_of(" :");
    return start == std::string::npos ? text : text.substr(start + 1);
}

// Shared arrays of the source's other kernels lie beside ours in memory, but are no business of this launch.
void find_foreign_arrays(Launch& l) {
    if (!l.module) return;
    l.foreign.assign(l.module->shared.size(), false);
    if (!l.info->kernels || !l.info->kernel) return;
    const std::string all = l.info->kernels, mine = base_name(l.info->kernel);
    if (all.find("," + mine + ",") == std::string::npos) return;   // called through a pointer: we do not know who it is
    for (size_t i = 0; i < l.foreign.size(); i++) {
        const std::string owner = base_name(l.module->shared[i].function);
        l.foreign[i] = owner != mine && all.find("," + owner + ",") != std::string::npos;
    }
}

void sticky_error_for(const std::string& code) {
    if (code == "out_of_bounds" || code == "use_after_free" || code == "host_pointer")
        set_sticky_error(cudaErrorIllegalAddress);
    else if (code == "misaligned") set_sticky_error(cudaErrorMisalignedAddress);
    else if (code == "kernel_time" || code == "deadlock") set_sticky_error(cudaErrorLaunchTimeout);
    else if (code == "launch_error") set_sticky_error(cudaErrorLaunchFailure);
}

int run_launch(const csim_launch_info& info) {
    std::lock_guard<std::recursive_mutex> lock(launch_mutex);
    LogEntry entry;
    entry.kernel = info.kernel ? info.kernel : "";
    entry.file = info.file ? info.file : "";
    entry.line = info.line;
    entry.grid = {info.grid[0], info.grid[1], info.grid[2]};
    entry.block = {info.block[0], info.block[1], info.block[2]};
    entry.shared_bytes = info.shared_bytes;
    entry.stream = uintptr_t(info.stream);
    entry.cooperative = info.cooperative != 0;
    total_launches++;

    Refusal refused = judge(info);
    if (cudaError_t stuck = sticky_error()) refused = {stuck, "launch_error", "an earlier launch failed"};
    if (refused.error != cudaSuccess) {
        set_last_error(refused.error);
        entry.error = cudaGetErrorString(refused.error);
        entry.code = refused.code;
        entry.detail = refused.detail;
        if (log_entries.size() < kLogLimit) log_entries.push_back(std::move(entry));
        return 0;
    }

    note_stream_work(info.stream, entry.kernel);
    if (config.drop_launches) {
        if (log_entries.size() < kLogLimit) log_entries.push_back(std::move(entry));
        return 0;
    }

    Launch l;
    l.info = &info;
    l.module = Module::of(info.anchor);
    l.shared_bytes = info.shared_bytes;
    l.total_limit = limits().shared_per_block_optin;
    l.sampled = config.sample_blocks > 0;
    arena.reserve();
    if (!stacks.low) stacks.give(stacks.take());
    set_hot(l);
    find_foreign_arrays(l);
    forget_overflow();
    forget_bad_index();
    launch = &l;
    active_hot = config.checked ? &hot : nullptr;
    in_runtime = false;
    // Large operands take their time: a second more for every 8 MB in use.
    watchdog_start(config.kernel_seconds + double(arena.bytes_in_use()) / 8e6);
    const uint64_t before = hot.accesses;
    run_grid(l);
    watchdog_stop();
    active_hot = nullptr;
    in_runtime = false;
    report_held_race();
    settle_candidates(l);
    settle_flow();
    total_accesses += hot.accesses - before;
    std::string code;
    const bool filed = any_filed();
    finish_findings(entry.kernel.c_str(), entry.file.c_str(), entry.line);
    launch = nullptr;
    entry.ran = true;
    entry.writes = l.wrote;
    if (filed) {
        entry.error = last_message();
        code = last_code();
        entry.code = code;
        sticky_error_for(code);
    }
    if (log_entries.size() < kLogLimit) log_entries.push_back(std::move(entry));
    return filed;
}

// ---- kernels known only by address ----

struct Erased {
    void (*invoke)(const void* function, void** args);
    std::vector<size_t> sizes;   // of the arguments
};
std::map<const void*, Erased> erased;

struct ErasedCall {
    const void* function;
    void (*invoke)(const void*, void**);
    void** args;
    static void thunk(void* p) {
        ErasedCall* c = static_cast<ErasedCall*>(p);
        c->invoke(c->function, c->args);
    }
};

// Argument values, copied as a real launch does: the caller's may change as soon as it returns.
struct ArgumentCopies {
    std::vector<unsigned char> storage;
    std::vector<void*> pointers;
    ArgumentCopies(const std::vector<size_t>& sizes, void** args) {
        auto room = [](size_t n) { return (n + 15) / 16 * 16; };
        size_t total = 16;
        for (size_t n : sizes) total += room(n);
        storage.resize(total);
        unsigned char* at = storage.data() + (16 - uintptr_t(storage.data()) % 16) % 16;
        for (size_t i = 0; i < sizes.size(); at += room(sizes[i++])) {
            memcpy(at, args[i], sizes[i]);
            pointers.push_back(at);
        }
    }
};
}  // namespace

cudaError_t launch_erased(const void* function, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                          cudaStream_t stream, bool cooperative) {
    auto it = erased.find(function);
    if (it == erased.end()) return set_last_error(cudaErrorInvalidDeviceFunction);
    ArgumentCopies values(it->second.sizes, args);
    ErasedCall call{function, it->second.invoke, values.pointers.data()};
    const SourceLine where = source_line(static_cast<const char*>(function) + 1);
    const std::string name = where.function.substr(0, where.function.find('('));
    csim_launch_info info{};
    info.kernel = name.c_str();
    info.args_text = "";
    info.file = where.file.c_str();
    info.line = where.line;
    info.grid[0] = grid.x, info.grid[1] = grid.y, info.grid[2] = grid.z;
    info.block[0] = block.x, info.block[1] = block.y, info.block[2] = block.z;
    info.shared_bytes = shared_bytes;
    info.stream = stream;
    info.cooperative = cooperative;
    info.thunk = &ErasedCall::thunk;
    info.closure = &call;
    info.closure_bytes = sizeof call;
    info.arg_ptrs = values.pointers.data();
    info.arg_sizes = it->second.sizes.data();
    info.arg_count = int(it->second.sizes.size());
    info.function = function;
    info.anchor = function;
    if (csim_launch(&info)) throw_report();
    return peek_last_error();
}

}  // namespace csim

using namespace csim;

extern "C" {

int csim_launch(const csim_launch_info* info) {
    if (launching) {   // we are that launch: a kernel that launches kernels
        report_from_device("launch_error", __builtin_return_address(0),
                           "launching a kernel from a kernel is not supported");
        return 1;
    }
    launching = true;
    const int filed = run_launch(*info);
    launching = false;
    return filed;
}

const void* csim_register_kernel(const void* function, void (*invoke)(const void*, void**), const size_t* sizes,
                                 int count) {
    erased[function] = Erased{invoke, std::vector<size_t>(sizes, sizes + count)};
    return function;
}

const char* csim_launches(void) {
    static std::string text;
    std::lock_guard<std::recursive_mutex> lock(launch_mutex);
    text = "[";
    for (const LogEntry& e : log_entries) {
        if (text.size() > 1) text += ", ";
        text += "{\"kernel\": " + json_string(e.kernel) + ", \"file\": " + json_string(e.file);
        text += ", \"line\": " + std::to_string(e.line);
        text += ", \"grid\": " + json_triple(e.grid) + ", \"block\": " + json_triple(e.block);
        text += ", \"shared_bytes\": " + std::to_string(e.shared_bytes) + ", \"stream\": " + std::to_string(e.stream);
        text += std::string(", \"cooperative\": ") + (e.cooperative ? "true" : "false");
        text += std::string(", \"ran\": ") + (e.ran ? "true" : "false");
        text += std::string(", \"writes\": ") + (e.writes ? "true" : "false");
        text += ", \"error\": " + (e.error.empty() ? "null" : json_string(e.error));
        text += ", \"code\": " + (e.code.empty() ? "null" : json_string(e.code));
        text += ", \"detail\": " + (e.detail.empty() ? "null" : json_string(e.detail)) + "}";
    }
    text += "]";
    return text.c_str();
}

const char* csim_statistics(void) {
    static std::string text;
    text = format_text("{\"launches\": %llu, \"accesses\": %llu, \"bytes_in_use\": %zu}",
                       (unsigned long long)total_launches, (unsigned long long)total_accesses, arena.bytes_in_use());
    return text.c_str();
}

void csim_reset(void) {
    std::lock_guard<std::recursive_mutex> lock(launch_mutex);
    log_entries.clear();
    clear_findings();
    set_sticky_error(cudaSuccess);
    set_last_error(cudaSuccess);
}
}
