// What sm_90 added, one small kernel each: words in, words out, as in instructions.cu. Compiled for sm_90a. The forms of
// wgmma are generated in tests/sim/hopper_cases.py.
#include <stdint.h>

__device__ inline uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
// The place of a byte in a pattern of rows of `width` bytes, in a tile that starts at a multiple of 1024.
__device__ inline uint32_t swizzled(uint32_t offset, uint32_t width) {
    return offset ^ (offset >> 7 & (width / 16 - 1)) << 4;
}
__device__ inline uint64_t descriptor(const void* tile, uint32_t offset, uint32_t lead, uint32_t stride, int width) {
    const uint64_t layout = width == 128 ? 1 : width == 64 ? 2 : width == 32 ? 3 : 0;
    const uint64_t start = ((shared_address(tile) + offset) & 0x3ffff) >> 4;
    return start | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | layout << 62;
}
// Where register i of thread t belongs in the 64 rows of n sums.
__device__ inline int place_of_sum(int t, int i, int n) {
    return (t / 32 * 16 + i / 2 % 2 * 8 + t % 32 / 4) * n + i / 4 * 8 + t % 4 * 2 + i % 2;
}
__device__ inline void init(uint32_t b, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
__device__ inline void arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ inline void wait(uint32_t b, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\n"
                 "AGAIN: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}\n" ::"r"(b), "r"(parity) : "memory");
}
__device__ inline uint32_t test(uint32_t b, uint32_t parity) {
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(b), "r"(parity) : "memory");
    return done;
}

// One thread after the other looks at its own barrier while it arrives: which phase is it?
extern "C" __global__ void mbarriers(const uint32_t* in, uint32_t* out) {
    __shared__ uint64_t barriers[32];
    const uint32_t t = threadIdx.x, b = shared_address(&barriers[t]), count = 1 + in[blockIdx.x * 32 + t] % 3;
    uint32_t* y = out + (blockIdx.x * 32 + t) * 12;
    init(b, count);
    y[0] = test(b, 0), y[1] = test(b, 1);
    uint64_t state;
    for (uint32_t i = 0; i < 3; ++i) {
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
        y[2 + i] = test(b, 0) | test(b, 1) << 1;
    }
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(b), "l"(state) : "memory");
    y[5] = done;
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(b) : "memory");
    init(b, 2);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(64u) : "memory");
    y[6] = test(b, 0);
    arrive(b);
    y[7] = test(b, 0);
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 48;" ::"r"(b) : "memory");
    y[8] = test(b, 0);
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
    y[9] = test(b, 0);
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(b) : "memory");
    y[10] = test(b, 1);
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
    wait(b, 1);
    y[11] = test(b, 1);
}

// In by a bulk copy, changed, and out by another.
extern "C" __global__ void bulk_copies(const uint32_t* in, uint32_t* out) {
    __shared__ __align__(128) uint32_t tile[256];
    __shared__ uint64_t barrier;
    const uint32_t t = threadIdx.x, b = shared_address(&barrier), address = shared_address(tile);
    if (t == 0) {
        init(b, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (t == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(b) : "memory");
        for (uint32_t part = 0; part < 2; ++part)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                             address + part * 512), "l"(in + blockIdx.x * 256 + part * 128), "r"(512u), "r"(b) : "memory");
    }
    wait(b, 0);
    for (uint32_t i = t; i < 256; i += 64) tile[i] = tile[i] * 3 + i;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out + blockIdx.x * 256),
                     "r"(address) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// Two warps and a ring of two buffers: one fetches with cp.async, the other adds up and writes.
extern "C" __global__ void handed_over(const uint32_t* in, uint32_t* out) {
    __shared__ __align__(16) uint32_t ring[2][64];
    __shared__ uint64_t barriers[4];
    const uint32_t t = threadIdx.x, lane = t % 32, full = shared_address(barriers), empty = full + 16;
    const uint32_t *x = in + blockIdx.x * 2048;
    if (t == 0)
        for (uint32_t i = 0; i < 2; ++i) init(full + 8 * i, 32), init(empty + 8 * i, 1);
    __syncthreads();
    if (t < 32) {
        for (uint32_t i = 0; i < 32; ++i) {
            wait(empty + i % 2 * 8, (i / 2 & 1) ^ 1);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(&ring[i % 2][2 * lane])),
                         "l"(x + 64 * i + 2 * lane) : "memory");
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + i % 2 * 8) : "memory");
        }
    } else {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < 32; ++i) {
            wait(full + i % 2 * 8, i / 2 & 1);
            for (uint32_t j = 0; j < 2; ++j) {
                sum += ring[i % 2][(lane * 7 + j * 32) % 64];
                out[blockIdx.x * 2048 + 64 * i + j * 32 + lane] = sum;
            }
            __syncwarp();
            if (lane == 0) arrive(empty + i % 2 * 8);
        }
    }
}

// Copies whose arrivals the barrier does not expect: each adds one to the count, and takes it away when it is there.
extern "C" __global__ void uncounted_copies(const uint32_t* in, uint32_t* out) {
    __shared__ __align__(16) uint32_t tile[128];
    __shared__ uint64_t barrier;
    const uint32_t t = threadIdx.x, b = shared_address(&barrier);
    if (t == 0) init(b, 32);
    __syncthreads();
    for (uint32_t round = 0; round < 3; ++round) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&tile[4 * t])),
                     "l"(in + blockIdx.x * 384 + round * 128 + 4 * t) : "memory");
        asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(b) : "memory");
        arrive(b);
        wait(b, round & 1);
        for (uint32_t i = 0; i < 4; ++i) out[blockIdx.x * 384 + round * 128 + i * 32 + t] = tile[i * 32 + t] + round;
        __syncthreads();
    }
}
