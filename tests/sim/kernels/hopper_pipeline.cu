// One producer warp fills a ring of operand tiles, a warpgroup multiplies: D = sum over steps of A_s B_s^T. Both tiles
// have rows of 16 halves (64 rows of A, 8 of B) without swizzle. WRONG says what is left out or done badly.
#include "hopper.cu"

enum { RIGHT, NO_PROXY_FENCE, NO_EMPTY_WAIT, RELEASE_BEFORE_WAIT, NO_WAIT, NO_WGMMA_FENCE, NO_FULL_WAIT, NO_SYNCWARP,
       WRONG_PARITY, OWN_STORE, OTHER_DESCRIPTOR, ONE_WARP_STAYS_AWAY,
       READER_FENCES, ONE_FOR_ALL, TWO_IN_FLIGHT };   // these three are right
template <int WRONG> __global__ void pipeline(const uint32_t* in, float* out, int steps) {
    extern __shared__ __align__(128) unsigned char ring[];
    constexpr int A = 64 * 32, B = 8 * 32, STAGE = A + B;
    __shared__ uint64_t barriers[4];
    const uint32_t t = threadIdx.x, lane = t % 32, full = shared_address(barriers), empty = full + 16;
    if (t == 0)
        for (uint32_t i = 0; i < 2; ++i) init(full + 8 * i, 1), init(empty + 8 * i, WRONG == ONE_FOR_ALL ? 1 : 4);
    __syncthreads();
    if (t >= 128) {
        for (int s = 0; s < steps; ++s) {
            if (WRONG != NO_EMPTY_WAIT) wait(empty + s % 2 * 8, (s / 2 & 1) ^ (WRONG != WRONG_PARITY));
            for (int i = lane; i < STAGE / 4; i += 32) ((uint32_t*)(ring + s % 2 * STAGE))[i] = in[s * (STAGE / 4) + i];
            if (WRONG != NO_PROXY_FENCE && WRONG != READER_FENCES) asm volatile("fence.proxy.async;" ::: "memory");
            if (WRONG != NO_SYNCWARP) __syncwarp();
            if (lane == 0) arrive(full + s % 2 * 8);
        }
        return;
    }
    if (WRONG == ONE_WARP_STAYS_AWAY && t >= 96) return;
    float d[4] = {0, 0, 0, 0};
    for (int s = 0; s < steps; ++s) {
        const unsigned char* stage = ring + s % 2 * STAGE;
        if (WRONG != NO_FULL_WAIT) wait(full + s % 2 * 8, s / 2 & 1);
        if (WRONG == READER_FENCES) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        if (WRONG != NO_WGMMA_FENCE) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        const uint64_t da = descriptor(stage + (WRONG == OTHER_DESCRIPTOR && t == 77 ? 16 : 0), 0, 128, 256, 0);
        const uint64_t db = descriptor(stage + A, 0, 128, 256, 0);
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0; }"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(da), "l"(db), "r"(s));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (WRONG == OWN_STORE && t == 3) ((uint32_t*)stage)[5] = 1;
        if (WRONG == RELEASE_BEFORE_WAIT && lane == 0) arrive(empty + s % 2 * 8);
        if (WRONG == TWO_IN_FLIGHT) {
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (s > 0 && lane == 0) arrive(empty + (s - 1) % 2 * 8);
            continue;
        }
        if (WRONG != NO_WAIT) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (WRONG != RELEASE_BEFORE_WAIT && (WRONG == ONE_FOR_ALL ? t == 77 : lane == 0)) arrive(empty + s % 2 * 8);
    }
    if (WRONG == TWO_IN_FLIGHT) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; ++i) out[place_of_sum(t, i, 8)] = d[i];
}
