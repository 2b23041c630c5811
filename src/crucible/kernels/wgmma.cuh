// Hopper's matrix instructions and what goes with them (compute capability 9.0a): barriers in shared memory on which
// producers and consumers wait for each other, bulk copies, and descriptors of operands.
//
// Wgmma<N, kind>::multiply(d, a, b, more) adds the product of 64 x K values at descriptor a and N x K values at b (K is 32
// bytes: 16 half or bfloat16, 8 tf32) to d, or starts d anew; the including file brings the instructions for its N.
// Of d[4j + 2h + i], row 16 * (warp % 4) + 8h + lane / 4 and column 8j + 2 * (lane % 4) + i are this thread's.
#pragma once

#include "common.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CRUCIBLE_HAS_WGMMA 1
#else
#define CRUCIBLE_HAS_WGMMA 0
#endif

// What the tensor cores multiply: floats scaled and rounded to half, floats rounded to tf32, elements as they are, or floats
// split into two tf32 numbers.
enum class Operands { Half, Tf32, Native, Split };

template <int N, Operands kind>
struct Wgmma;

#if CRUCIBLE_HAS_WGMMA
__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// Barriers. `parity` is that of the phase waited for: a fresh barrier is in phase 0, and waiting for parity 1 passes.
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_inits_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool barrier_try(unsigned barrier, unsigned parity) {
  unsigned passed;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  while (!barrier_try(barrier, parity)) {
  }
}

// Arrives when this thread's copies have come.
__device__ __forceinline__ void copies_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Bytes (a multiple of 16) from global to shared memory; they count on the barrier.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}

// Makes what this thread stored to shared memory visible to the tensor cores.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A warp's stores to global memory, counted at `count`, for bulk copies of whoever has waited for the count.
__device__ __forceinline__ void hand_over(unsigned* count) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(count))
                 : "memory");
}
// Raises a count, behind a fence.
__device__ __forceinline__ void count_up_to(unsigned* count, unsigned now) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(count)), "r"(now) : "memory");
}
__device__ __forceinline__ unsigned count_now(const unsigned* count) {
  unsigned there;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(__cvta_generic_to_global(count)) : "memory");
  return there;
}
__device__ __forceinline__ void count_wait(const unsigned* count, unsigned wanted) {
  while (count_now(count) < wanted) {
  }
}

// Threads of two warpgroups taking turns: one waits for its turn, the other gives it.
__device__ __forceinline__ void turn_wait(int id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
__device__ __forceinline__ void turn_give(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most LEFT batches of products are under way.
template <int LEFT>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Keeps the compiler from reading sums before the wait.
template <int COUNT>
__device__ __forceinline__ void settle(float (&d)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// An operand whose lines (rows of A, columns of B) are 16 bytes long and follow each other, eight to a matrix; `deeper`
// bytes lead to the second 16 bytes of each line. A shift by one line is one more in the lowest field.
__device__ __forceinline__ uint64_t lines_at(unsigned address, unsigned deeper) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(deeper >> 4) << 16 | uint64_t(8) << 32;
}

// Two numbers as half in one word, the first in the low half.
__device__ __forceinline__ unsigned pack_half(float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

template <int KEEP>
__device__ __forceinline__ void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEP)); }
template <int KEEP>
__device__ __forceinline__ void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(KEEP)); }
#endif

// A number below `extent` that looks random, to spread a sample over everything.
__device__ __forceinline__ Index spread(unsigned i, unsigned salt, Index extent) {
  unsigned h = (i * 8u + salt) * 2654435761u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return static_cast<Index>(h % static_cast<unsigned>(extent));
}
// The exponent that brings a number of these bits (without its sign) to [2^peak, 2^(peak + 1)); none for inf and nan.
__device__ __forceinline__ int exponent_to(int peak, unsigned bits) {
  const int e = static_cast<int>(bits >> 23);
  return e == 255 ? 0 : peak + 127 - (e == 0 ? 1 : e);
}
// 2^e, and x * 2^e for |e| up to 252 without a detour through infinity or zero.
__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }
__device__ __forceinline__ float scaled(float x, int e) { return x * power_of_two(e / 2) * power_of_two(e - e / 2); }

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
