// Small kernels around mbarriers, bulk copies and clusters of one block, most of them wrong in one way.
#include "hopper.cu"

__global__ void waits_in_a_loop(uint32_t* out) {   // a loop of C++; the warps take turns
    __shared__ uint64_t turn[2];
    const uint32_t t = threadIdx.x, w = t / 32, b = shared_address(turn);
    if (t == 0) init(b, 32), init(b + 8, 32);
    __syncthreads();
    for (uint32_t i = 0; i < 4; ++i) {
        if (w == 1) while (!test(b, i & 1)) {}
        out[i * 64 + t] = i;
        arrive(b + 8 * w);
        if (w == 0) while (!test(b + 8, i & 1)) __nanosleep(20);
    }
}
__global__ void looks_at_two(uint32_t* out) {   // one of them never completes, and need not
    __shared__ uint64_t two[2];
    const uint32_t t = threadIdx.x, b = shared_address(two);
    if (t == 0) init(b, 1), init(b + 8, 1);
    __syncthreads();
    if (t == 0) {
        uint32_t n = 0;
        while (!test(b, 0) && !test(b, 0) && !test(b + 8, 0)) ++n;
        out[0] = 1;
    } else if (t == 63) {
        arrive(b + 8);
    }
}
__global__ void tries_once(uint32_t* out) {   // a try may give up: the first does, here
    __shared__ uint64_t barrier;
    const uint32_t t = threadIdx.x, b = shared_address(&barrier);
    if (t == 0) init(b, 1);
    __syncthreads();
    uint32_t done = 7;
    if (t == 0)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0, 1000;\n"
                     "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(b) : "memory");
    __syncthreads();
    if (t == 32) arrive(b);
    out[t] = done;
}
__global__ void nobody_arrives(uint32_t* out) {
    __shared__ uint64_t barrier;
    const uint32_t t = threadIdx.x, b = shared_address(&barrier);
    if (t == 0) init(b, 33);
    __syncthreads();
    arrive(b);
    wait(b, 0);
    out[t] = 1;
}
__global__ void bytes_never_come(uint32_t* out) {
    __shared__ uint64_t barrier;
    const uint32_t b = shared_address(&barrier);
    init(b, 1);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(b) : "memory");
    while (!test(b, 0)) {}
    out[0] = 1;
}
template <int HOW> __global__ void misused(const uint32_t* in, uint32_t* out) {
    __shared__ __align__(128) uint64_t words[64];
    const uint32_t t = threadIdx.x, b = shared_address(words), tile = b + 128;
    if (HOW == 1) { arrive(b); return; }                                  // never initialised
    if (t == 0) init(HOW == 2 ? b + 4 : b, HOW == 3 ? 0 : 1);             // misaligned; a count of none
    if (HOW != 4) __syncthreads();                                        // not ordered
    if (HOW == 5) { if (t == 0) words[0] = 5; __syncthreads(); }          // overwritten
    if (HOW == 6) init(b, 1);                                             // twice
    if (HOW == 7 && t == 0) {                                             // two arrivals while the bytes are missing
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 64;" ::"r"(b) : "memory");
        arrive(b), arrive(b);
    }
    if (HOW == 8) wait(b, 2);                                             // a parity of two
    if (HOW == 9 && t == 0) asm volatile("mbarrier.arrive.noComplete.shared.b64 _, [%0], 1;" ::"r"(b) : "memory");
    if (HOW >= 10 && t == 0) {
        const uint32_t bytes = HOW == 10 ? 24 : 64, at = tile + (HOW == 11 ? 8 : HOW == 13 ? 448 - 128 + 32 : 0);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
        const char* from = (const char*)in + (HOW == 12 ? 4 : 0) + (HOW == 14 ? 208 : 0);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(at), "l"(from), "r"(bytes), "r"(b) : "memory");
    }
    if (HOW < 10) arrive(b);
    else if (HOW != 15) wait(b, 0);                                       // read without waiting
    out[t] = ((uint32_t*)words)[32 + t % 16];
}
template <int HOW> __global__ void stored(uint32_t* out) {                // out of shared memory, in bulk
    __shared__ __align__(128) uint32_t tile[32];
    tile[threadIdx.x] = threadIdx.x + 5;
    if (HOW != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;"
                     ::"l"(out), "r"(shared_address(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        if (HOW == 2) tile[3] = 77;
        if (HOW != 3) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}
template <int REGISTERS> __global__ void registers(uint32_t* out) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    out[threadIdx.x] = 1;
}
template <int RANK> __global__ void cluster_of_one(uint32_t* out) {
    __shared__ uint64_t barrier;
    __shared__ uint32_t value;
    const uint32_t t = threadIdx.x, b = shared_address(&barrier);
    uint32_t there, rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (t == 0) init(b, 64), value = 9;
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(b), "n"(RANK));
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
    wait(b, 0);
    out[t] = value + rank;
}
__global__ void too_few_threads(uint32_t* out) {
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.commit_group.sync.aligned;");
    out[threadIdx.x] = 1;
}
__global__ void which(uint32_t* out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    out[0] = 1000 + __CUDA_ARCH__;
#else
    out[0] = __CUDA_ARCH__;
#endif
}
