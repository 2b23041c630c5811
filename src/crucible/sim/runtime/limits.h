// What the simulated chip has: sizes, limits, occupancy.
#pragma once
#include <cstddef>

namespace csim {

struct Limits {
    int processors = 132;
    int threads_per_processor = 2048, blocks_per_processor = 32;
    size_t shared_per_block = 48 << 10;          // without asking
    size_t shared_per_block_optin = 227 << 10;   // with cudaFuncSetAttribute
    size_t shared_per_processor = 228 << 10;
    size_t shared_reserved = 1 << 10;            // taken by the system in every block
    size_t l2_bytes = 50 << 20;
    const char* name = "crucible simulator";
};
const Limits& limits();   // of the configured compute capability
int blocks_per_processor(int threads, size_t shared_bytes);
// after cudaFuncSetAttribute; null: the largest limit anybody asked for
size_t dynamic_shared_limit(const void* function);
bool set_dynamic_shared_limit(const void* function, size_t bytes);   // false: more than the chip has

}  // namespace csim
