// What sm_90 adds and rewritten PTX calls: mbarrier objects, bulk copies, wgmma (runtime/mbarrier.cpp, async.cpp,
// wgmma.cpp keep their state).
#pragma once

#include <stdint.h>

#include "csim/abi.h"

extern "C" {
// ---- mbarrier objects; `checked`: does the module check its own accesses? Then the object's memory is checked too.
void csim_mbarrier_init(void* p, unsigned count, int checked);
void csim_mbarrier_inval(void* p);
// counts `expected_bytes` first, then `count` arrivals; returns the phase they belong to
uint64_t csim_mbarrier_arrive(void* p, unsigned count, unsigned expected_bytes, int may_complete, const char* name);
void csim_mbarrier_expect(void* p, long long bytes, const char* name);   // negative: complete_tx
// has the phase completed that `token` names (its number, or with `parity` its lowest bit)? May let others run first
int csim_mbarrier_test(void* p, uint64_t token, int parity, const char* name);
void csim_async_arrive(void* p, int counted);   // cp.async.mbarrier.arrive; counted: .noinc

// ---- bulk copies
void csim_bulk_load(void* target, const void* source, unsigned bytes, void* mbarrier, int checked);
void csim_bulk_store(void* target, const void* source, unsigned bytes, int checked);
void csim_bulk_commit(void);
void csim_bulk_wait(unsigned groups_left);
void csim_proxy_fence(void);

// ---- wgmma
enum { CSIM_WGMMA_F16 = 0, CSIM_WGMMA_BF16 = 1, CSIM_WGMMA_TF32 = 2 };
struct csim_wgmma_call {
    const char* name;
    int n, kind;
    float* d;                 // n / 2 registers of this thread
    const uint32_t* a;        // four registers, or null: descriptor_a
    uint64_t descriptor_a, descriptor_b;
    int accumulate, sign_a, sign_b, transposed_a, transposed_b;
    int checked;
};
void csim_wgmma(const struct csim_wgmma_call* call);
void csim_wgmma_fence(void);
void csim_wgmma_commit(void);
void csim_wgmma_wait(unsigned groups_left);

void csim_cluster_barrier(void);
}

#ifdef __SANITIZE_THREAD__
#define CSIM_CHECKED 1
#else
#define CSIM_CHECKED 0
#endif
// A source compiled for sm_90a says otherwise after this header (crucible/sim/architecture.py).
#define CSIM_SM90A 0

namespace csim::hopper {
#define CSIM_INLINE inline __attribute__((always_inline))
template <bool THERE> CSIM_INLINE void need_sm90a(const char* instruction) {
    if constexpr (!THERE)
        csim_fail("unsupported_feature",
                  "unsupported PTX instruction `%s`: it needs a build for sm_90a, and this one is for sm_90 (pass "
                  "-gencode=arch=compute_90a,code=sm_90a in extra_cuda_cflags, or set TORCH_CUDA_ARCH_LIST=9.0a)",
                  instruction);
}
CSIM_INLINE void set_registers(long long count) {
    if (count < 24 || count > 256 || count % 8)
        csim_fail("launch_error", "setmaxnreg asks for %lld registers; it takes multiples of 8 from 24 to 256", count);
}
CSIM_INLINE uint64_t map_address(uint64_t address, uint32_t rank) {
    if (rank)
        csim_fail("unsupported_feature", "mapa names block %u of its cluster; clusters of one block are simulated",
                  rank);
    return address;
}
CSIM_INLINE void multiply(csim_wgmma_call call) {
    if ((call.sign_a != 1 && call.sign_a != -1) || (call.sign_b != 1 && call.sign_b != -1))
        csim_fail("launch_error", "%s: imm-scale-a and imm-scale-b are 1 or -1", call.name);
    csim_wgmma(&call);
}
#undef CSIM_INLINE
}  // namespace csim::hopper
