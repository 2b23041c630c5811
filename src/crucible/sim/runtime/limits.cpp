// What the simulated chip has: sizes, limits, occupancy.
#include "limits.h"

#include <algorithm>
#include <map>

#include "config.h"

namespace csim {
namespace {
std::map<const void*, size_t> raised;
size_t largest_raised = 0;

Limits limits_of(int capability) {   // NVIDIA's table of technical specifications per compute capability
    Limits l;
    switch (capability) {
        case 70:
            l.processors = 80;
            l.shared_per_block_optin = 96 << 10;
            l.shared_per_processor = 96 << 10;
            l.shared_reserved = 0;
            l.l2_bytes = 6 << 20;
            break;
        case 75:
            l.processors = 40;
            l.threads_per_processor = 1024;
            l.blocks_per_processor = 16;
            l.shared_per_block_optin = 64 << 10;
            l.shared_per_processor = 64 << 10;
            l.shared_reserved = 0;
            l.l2_bytes = 4 << 20;
            break;
        case 80:
            l.processors = 108;
            l.shared_per_block_optin = 163 << 10;
            l.shared_per_processor = 164 << 10;
            l.l2_bytes = 40 << 20;
            break;
        case 86:
        case 89:
            l.processors = capability == 86 ? 84 : 128;
            l.threads_per_processor = 1536;
            l.blocks_per_processor = capability == 86 ? 16 : 24;
            l.shared_per_block_optin = 99 << 10;
            l.shared_per_processor = 100 << 10;
            break;
        case 120:
            l.processors = 170;
            l.threads_per_processor = 1536;
            l.blocks_per_processor = 24;
            l.shared_per_block_optin = 99 << 10;
            l.shared_per_processor = 100 << 10;
            break;
        default: break;   // 90 and 100
    }
    return l;
}
}  // namespace

const Limits& limits() {
    static Limits l;
    static int of = 0, with = 0;
    if (of != config.compute_capability || with != config.processors) {
        l = limits_of(of = config.compute_capability);
        if ((with = config.processors) > 0) l.processors = with;
    }
    return l;
}

int blocks_per_processor(int threads, size_t shared_bytes) {
    const Limits& l = limits();
    if (threads <= 0 || threads > 1024 || shared_bytes > l.shared_per_block_optin) return 0;
    const int by_threads = l.threads_per_processor / ((threads + 31) / 32 * 32);
    const size_t block = shared_bytes + l.shared_reserved;
    const int by_shared = block ? int(l.shared_per_processor / block) : l.blocks_per_processor;
    return std::min({by_threads, by_shared, l.blocks_per_processor});
}

size_t dynamic_shared_limit(const void* function) {
    const size_t standard = limits().shared_per_block;
    // a template with deduced arguments: its address is not known
    if (!function) return std::max(standard, largest_raised);
    auto it = raised.find(function);
    return it == raised.end() ? standard : std::max(standard, it->second);
}

bool set_dynamic_shared_limit(const void* function, size_t bytes) {
    if (bytes > limits().shared_per_block_optin) return false;
    raised[function] = bytes;
    largest_raised = std::max(largest_raised, bytes);
    return true;
}

}  // namespace csim
