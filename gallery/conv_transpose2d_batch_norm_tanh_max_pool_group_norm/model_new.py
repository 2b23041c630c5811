"""Made by crucible 0.1.0 from conv_transpose2d_batch_norm_tanh_max_pool_group_norm.py: the same function, gradients and side effects in fused CUDA kernels.

Kernels, and the operators of the reference that each one absorbs:

    training:
    forward   contract_1    convolution, var_mean
    forward   rows_1        var_mean, full_1, gt_1, mul_5, mul_4, view_3, mul_6, add_4, where_1, full, gt, mul_2, view_2, mul_3, add_3, where, add
    forward   rows_2        var_mean_1, convolution, var_mean, sub, add_1, rsqrt, mul, view, mul_1, view_1, add_2, max_pool2d_with_indices, tanh, view_6, sub_2, add_5, rsqrt_1, mul_13, view_7, view_8, mul_14, view_9, add_6
    backward  map_1         convolution, var_mean, sub, add_1, rsqrt, mul, view, mul_1, view_1, add_2, max_pool2d_with_indices
    backward  rows_1        sum_1, view_10, sum_2, view_11
    backward  rows_2        mean, mean_1, view_8, mul_16, view_12, sub_4, convolution, var_mean, sub, add_1, rsqrt, mul, view, mul_1, view_1, add_2, max_pool2d_with_indices, tanh, view_6, var_mean_1, sub_3, add_5, rsqrt_1, mul_17, mul_19, sub_5, mul_20, view_13, mul_29, sub_6, mul_30
    backward  rows_3        sum_3, view_14, sum_4, view_15, mean_2, mean_3
    backward  map_2         max_pool2d_with_indices_backward, view, mul_32, mean_2, sub_8, convolution, var_mean, sub_7, add_1, rsqrt, mul_33, mean_3, mul_35, sub_9, mul_36
    backward  contract_1    convolution_backward
    backward  contract_2    convolution_backward
    backward  rows_4        convolution_backward
    backward  rows_5        convolution_backward
    evaluation:
    forward   contract_3    convolution
    forward   rows_5        var_mean, convolution, view, sub, add, rsqrt, mul, view_1, mul_1, view_2, add_1, max_pool2d_with_indices, tanh, view_3, sub_1, add_2, rsqrt_1, mul_8, view_4, view_5, mul_9, view_6, add_3
    backward  map_3         convolution, view, sub, add, rsqrt, mul, view_1, mul_1, view_2, add_1, max_pool2d_with_indices
    backward  rows_6        sum_1, view_7, sum_2, view_8
    backward  rows_7        mean, mean_1, view_5, mul_11, view_9, sub_3, convolution, view, sub, add, rsqrt, mul, view_1, mul_1, view_2, add_1, max_pool2d_with_indices, tanh, view_3, var_mean, sub_2, add_2, rsqrt_1, mul_12, mul_14, sub_4, mul_15, view_10, mul_24, sub_5, mul_25
    backward  map_4         max_pool2d_with_indices_backward, add, rsqrt, mul, view_1, mul_27
    backward  rows_8        sum_3, view_11, sum_4, view_12, add, rsqrt, mul_28, convolution_backward
    backward  contract_3    convolution_backward
    backward  contract_4    convolution_backward
    backward  rows_4        convolution_backward

Proven against conv_transpose2d_batch_norm_tanh_max_pool_group_norm.py in the simulator, crucible 0.1.0, torch
2.13.0+cpu: forward, side effects, gradients, honesty, 10 other sizes and layouts, 9 ranges, determinism,
memory; seed 7.
"""


import functools
import hashlib
import inspect
import math
import operator

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


_FORWARD_SOURCE = r"""
#include <stdexcept>
#include <string>
#include <cstring>

// ---- kernel bodies and what they share

// What every stage shares: the element type of the file, the type sums are kept in, and the width of an index.
//
// The including file is compiled once for each element type it meets, with
//   CRUCIBLE_SCALAR   0 float, 1 double, 2 __half, 3 __nv_bfloat16
//   CRUCIBLE_WIDE     1 when an index may pass 2^31
//   CRUCIBLE_HOPPER   1 for a chip with Hopper's matrix instructions (compute capability 9.0a)

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifndef CRUCIBLE_SCALAR
#define CRUCIBLE_SCALAR 0
#endif
#ifndef CRUCIBLE_WIDE
#define CRUCIBLE_WIDE 0
#endif
#ifndef CRUCIBLE_HOPPER
#define CRUCIBLE_HOPPER 0
#endif

#if CRUCIBLE_SCALAR == 2
#include <cuda_fp16.h>
#elif CRUCIBLE_SCALAR == 3
#include <cuda_bf16.h>
#endif

namespace crucible {

#if CRUCIBLE_SCALAR == 0
using scalar = float;
using accum = float;
#elif CRUCIBLE_SCALAR == 1
using scalar = double;
using accum = double;
#elif CRUCIBLE_SCALAR == 2
using scalar = __half;
using accum = float;
#else
using scalar = __nv_bfloat16;
using accum = float;
#endif

#if CRUCIBLE_WIDE
using Index = int64_t;
#else
using Index = int32_t;
#endif

// Kernels follow each other closely: on Hopper one is set up while the one before it on the stream ends. So each begins with
// follow(), which waits until all of that is done and seen, and is launched by
//   cudaLaunchKernelEx(After(blocks, threads, shared bytes, stream), kernel, arguments...)
__device__ __forceinline__ void follow() {
#if CRUCIBLE_HOPPER
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#ifndef __CUDACC_RTC__
struct After {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[3]{};
  // Blocks in clusters of so many, which a simulator does not have; or all of them there at a time, to wait for each other.
  After(dim3 blocks, unsigned threads, size_t shared, cudaStream_t stream, unsigned cluster = 1, bool together = false) {
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
#if CRUCIBLE_HOPPER && CUDART_VERSION >= 12030  // with which such launches can be captured in graphs
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
#endif
    if (cluster > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
    }
    if (together) {
      attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
      attributes[config.numAttrs++].val.cooperative = 1;
    }
  }
  operator const cudaLaunchConfig_t*() {
    config.attrs = attributes;
    return &config;
  }
};
#endif

// An element of a tensor that this kernel only reads: such loads need not wait for stores before them.
template <class T>
__device__ __forceinline__ T read(const T& x) { return __ldg(&x); }
__device__ __forceinline__ bool read(const bool& x) { return __ldg(reinterpret_cast<const unsigned char*>(&x)) != 0; }
#if CRUCIBLE_SCALAR == 3  // before CUDA 12.2 there is no __ldg() of it for chips before 8.0
__device__ __forceinline__ __nv_bfloat16 read(const __nv_bfloat16& x) {
  return __nv_bfloat16(__nv_bfloat16_raw{__ldg(reinterpret_cast<const unsigned short*>(&x))});
}
#endif

// Asks for an element that is loaded later.
template <class T>
__device__ __forceinline__ void prefetch(const T* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

__device__ __forceinline__ bool inside(Index i, Index n) { return i >= 0 && i < n; }
__device__ __forceinline__ Index nearest(Index i, Index n) { return i < 0 ? 0 : i < n ? i : n - 1; }

// Elements as values of the type that arithmetic is done in.
template <class T>
__device__ __forceinline__ T to_accum(T x) { return x; }

#if CRUCIBLE_SCALAR == 2
__device__ __forceinline__ float to_accum(__half x) { return __half2float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2half_rn(x); }
#elif CRUCIBLE_SCALAR == 3
__device__ __forceinline__ float to_accum(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2bfloat16_rn(x); }
#else
__device__ __forceinline__ scalar to_scalar(accum x) { return x; }
#endif

}  // namespace crucible

namespace crucible {

__device__ __forceinline__ accum f_rsqrt(accum x) { return accum(1) / sqrt(x); }

__device__ __forceinline__ accum f_sign(accum x) {
  return (x > 0 ? accum(1) : accum(0)) - (x < 0 ? accum(1) : accum(0));
}

}  // namespace crucible

namespace crucible {

// 1 / n of a count. The last bit of it does not matter to a mean that it corrects, and a division takes longer than all else.
__device__ __forceinline__ double count_inverse(double n) { return 1.0 / n; }
__device__ __forceinline__ float count_inverse(float n) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(n));
  return inverse;
}

// Mean and sum of squared deviations from it, one element or one partial result at a time: nothing cancels.
struct Moments {
  accum count = 0, mean = 0, m2 = 0;
  __device__ __forceinline__ void step(accum x) {
    count += 1;
    const accum d = x - mean;
    mean = fma(d, count_inverse(count), mean);
    m2 = fma(d, x - mean, m2);
  }
  __device__ __forceinline__ void step(accum n, accum other_mean, accum other_m2) {
    // Without branches, so that several partial results are asked for at once. The first one is taken as it is.
    const bool more = n > 0;
    const accum all = count + n, d = other_mean - mean, part = n * count_inverse(all);
    const accum next = count > 0 ? fma(d, part, mean) : other_mean;
    const accum sum = count > 0 ? m2 + other_m2 + d * d * count * part : other_m2;
    mean = more ? next : mean, m2 = more ? sum : m2, count = more ? all : count;
  }
  __device__ __forceinline__ void join(const Moments& b) { step(b.count, b.mean, b.m2); }
  __device__ __forceinline__ accum get_mean() const { return count > 0 ? mean : accum(NAN); }
  __device__ __forceinline__ accum get_m2() const { return count > 0 ? m2 : accum(NAN); }
  __device__ __forceinline__ accum get_count() const { return count; }
};

// Extremes: NaN wins. Where floats have an instruction for that, zeros with a sign are the smaller ones.
__device__ __forceinline__ accum larger(accum best, accum x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && CRUCIBLE_SCALAR != 1
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(best) : "f"(best), "f"(x));
  return best;
#else
  return x > best || x != x ? x : best;
#endif
}

__device__ __forceinline__ accum smaller(accum best, accum x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && CRUCIBLE_SCALAR != 1
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(best) : "f"(best), "f"(x));
  return best;
#else
  return x < best || x != x ? x : best;
#endif
}

struct Max {
  accum best = -INFINITY;
  __device__ __forceinline__ void step(accum x) { best = larger(best, x); }
  __device__ __forceinline__ void join(const Max& b) { step(b.best); }
  __device__ __forceinline__ accum total() const { return best; }
};

// The maximum of a pooling window, taken in order: a place outside the input (-1) is never chosen, the last NaN wins.
struct WindowMax {
  accum best = -INFINITY;
  int64_t at = -1;
  __device__ __forceinline__ void step(accum x, int64_t i) {
    if (i >= 0 && (at < 0 || x > best || x != x)) best = x, at = i;
  }
  __device__ __forceinline__ accum value() const { return best; }
  __device__ __forceinline__ int64_t index() const { return at; }
};

}  // namespace crucible

// Partial results of a warp's lanes (plain structs of whole words with a function join), by shuffles.

namespace crucible {

// What `shuffle` makes of each word.
template <class Acc, class Shuffle>
__device__ __forceinline__ Acc shuffled(const Acc& a, Shuffle shuffle) {
  static_assert(sizeof(Acc) % 4 == 0, "partial results are whole words");
  uint32_t words[sizeof(Acc) / 4];
  memcpy(words, &a, sizeof(Acc));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Acc) / 4); ++i) words[i] = shuffle(words[i]);
  Acc b;
  memcpy(&b, words, sizeof(Acc));
  return b;
}

// The first COUNT lanes' results, joined, in the first of them. What the others join on the way nobody wants.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc fold_lanes(Acc a) {
#pragma unroll
  for (int by = COUNT / 2; by > 0; by /= 2)
    a.join(shuffled(a, [by](uint32_t word) { return __shfl_down_sync(0xffffffffu, word, by); }));
  return a;
}

// The same, to all lanes.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc join_lanes(const Acc& a) {
  return shuffled(fold_lanes<COUNT>(a), [](uint32_t word) { return __shfl_sync(0xffffffffu, word, 0); });
}

// Of N results in each lane, N a power of two: lane l gets a[l / (32 / N)], joined over the warp.
template <int N, class Acc>
__device__ __forceinline__ Acc scattered_join(Acc (&a)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
  const auto across = [&step](const Acc& b) {
    return shuffled(b, [step](uint32_t word) { return __shfl_xor_sync(0xffffffffu, word, step); });
  };
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const Acc other = lane & step ? a[i] : a[i + n / 2];
      if (lane & step) a[i] = a[i + n / 2];
      a[i].join(across(other));
    }
#pragma unroll
  for (; step > 0; step /= 2) a[0].join(across(a[0]));
  return a[0];
}

}  // namespace crucible

// Neighbours in memory, 16 bytes of the file's element type at a time.
//
// A walk goes over places `from` .. `to`. Where its tensors begin alike (all elements of one place at the same distance
// from a multiple of a vector's length) it is a few single elements, then vectors, then a few single ones; else all are
// single. A thread asks for IN_FLIGHT vectors before it waits for the first.
//   CRUCIBLE_VECTORS     0: single elements only, for comparisons
//   CRUCIBLE_IN_FLIGHT   how many vectors a thread asks for at once
//   CRUCIBLE_STREAMING   1: what nothing reads again leaves the caches first

#ifndef CRUCIBLE_VECTORS
#define CRUCIBLE_VECTORS 1
#endif
#ifndef CRUCIBLE_IN_FLIGHT
#define CRUCIBLE_IN_FLIGHT 2
#endif
#ifndef CRUCIBLE_STREAMING
#define CRUCIBLE_STREAMING 1
#endif

namespace crucible {

constexpr int VECTOR = 16 / sizeof(scalar), IN_FLIGHT = CRUCIBLE_IN_FLIGHT;

template <int BYTES>
struct WordOf { using type = uint4; };
template <>
struct WordOf<8> { using type = uint2; };
template <>
struct WordOf<4> { using type = unsigned; };
template <>
struct WordOf<2> { using type = unsigned short; };

// So many elements of any type: 16 bytes, or several times that, or less.
template <class T>
struct Vector {
  using Word = typename WordOf<VECTOR * sizeof(T)>::type;
  static constexpr int WORDS = VECTOR * sizeof(T) / sizeof(Word);
  T elements[VECTOR];
  __device__ __forceinline__ const T& operator[](int u) const { return elements[u]; }
  __device__ __forceinline__ T& operator[](int u) { return elements[u]; }
};

// Of a tensor that this kernel only reads; `LAST`: and that nothing reads after it.
template <bool LAST = false, class T>
__device__ __forceinline__ Vector<T> read_vector(const T* at) {
  using V = Vector<T>;
  const auto* const from = reinterpret_cast<const typename V::Word*>(at);
  typename V::Word words[V::WORDS];
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) words[i] = LAST && CRUCIBLE_STREAMING ? __ldcs(from + i) : __ldg(from + i);
  V v;
  memcpy(&v, words, sizeof(V));
  return v;
}

template <bool LAST = false, class T>
__device__ __forceinline__ void write_vector(T* at, const Vector<T>& v) {
  using V = Vector<T>;
  auto* const to = reinterpret_cast<typename V::Word*>(at);
  typename V::Word words[V::WORDS];
  memcpy(words, &v, sizeof(V));
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) {
    if constexpr (LAST && CRUCIBLE_STREAMING) {
      __stcs(to + i, words[i]);
    } else {
#if CRUCIBLE_WIDE
      __stwb(to + i, words[i]);  // at an address from 64-bit numbers the compiler would store a word's parts one by one
#else
      to[i] = words[i];
#endif
    }
  }
}

// How far elements lie from where a vector may begin: the same for all, or -1.
template <class T>
__host__ __device__ __forceinline__ int alike(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) / sizeof(T) % VECTOR);
}
template <class T, class... Others>
__host__ __device__ __forceinline__ int alike(const T* at, const Others*... others) {
  const int one = alike(at), other = alike(others...);
  return one == other ? one : -1;
}

// The places of a walk as vectors and single elements.
struct Stretch {
  Index from, to, begin, vectors;
  __host__ __device__ __forceinline__ Index singles() const { return to - from - vectors * VECTOR; }
  __host__ __device__ __forceinline__ Index single(int64_t k) const {
    const Index place = from + static_cast<Index>(k);
    return place < begin ? place : place + vectors * VECTOR;
  }
};

// `distance`: of the element at place 0 from where a vector may begin, or less than 0 where there are none.
__host__ __device__ __forceinline__ Stretch stretch(int64_t first, int64_t last, int distance) {
  const Index from = static_cast<Index>(first), to = static_cast<Index>(last), wanted = -(from + distance) & (VECTOR - 1);
  if (!CRUCIBLE_VECTORS || distance < 0 || wanted >= to - from) return {from, to, to, 0};
  return {from, to, from + wanted, (to - from - wanted) / VECTOR};
}

}  // namespace crucible

// A group of N threads a row: the functor walks over the row, reduces, and stores what depends on the results.
//
// N is 1 (a thread for each row: short rows, or rows whose neighbours are neighbours in memory), 32 (a warp) or 256 (a
// block). A functor R has `Index rows() const` and
//   template <class L> void operator()(const L& lanes, Index row) const;
// where `lanes.first()` and `lanes.step()` deal out the row, `lanes.join(acc)` leaves the joined result with every
// thread, and `lanes.leads()` is true in one of them. Partial results travel by shuffles, between warps through N/32
// slots of shared memory.
// A functor whose later walks need again what the first one computes may also have
//   int64_t kept() const;  void keeping(const L&, Index row, accum* kept) const;
// which keeps that in shared memory, so many numbers a row; each thread reads what it wrote itself.
//
// A sliced functor, where what is reduced is short (partial results) and what follows is long, has
//   struct Found;  Found reduce(const L&, Index row) const;  int64_t length() const;  Index repeats() const;
//   void walk(const L&, Index row, Index part, int64_t from, int64_t to, const Found&) const;
// and takes two launches: the rows, then pieces of SLICE_VECTORS vectors a thread of each of a row's parts.
//
// A split functor, for few long rows, which may be the same stretch of places several times (a channel of every sample), has
//   struct Acc;  int64_t length() const;  Index repeats() const;   of the stretch, and how many times
//   void walk(const L&, Index row, Index first, Index last, int64_t from, int64_t to, Acc&) const;   some of both
//   void finish(const L&, Index row, const Acc&) const;
// and takes two launches: every part of every row, then the rows. Nothing depends on timing.
//   CRUCIBLE_SLICE_VECTORS   how many vectors a thread of a sliced walk has, all asked for before the first is used
//   CRUCIBLE_LAST_FIRST      1: slices and kept rows go from the last to the first, as the end of what was written just before is still
//                            in the cache

#ifndef CRUCIBLE_SLICE_VECTORS
#define CRUCIBLE_SLICE_VECTORS 4
#endif
#ifndef CRUCIBLE_LAST_FIRST
#define CRUCIBLE_LAST_FIRST 1
#endif

namespace crucible {

constexpr int ROW_THREADS = 256, SLICE_VECTORS = CRUCIBLE_SLICE_VECTORS, GRID_MOST = 65535;

// What an earlier kernel left, whole.
template <class T>
__device__ __forceinline__ T read_words(const T* at) {
  static_assert(sizeof(T) % 4 == 0 && alignof(T) % 4 == 0, "partial results are whole words");
  uint32_t words[sizeof(T) / 4];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) words[i] = __ldg(reinterpret_cast<const uint32_t*>(at) + i);
  T value;
  memcpy(&value, words, sizeof(T));
  return value;
}

template <int N>
struct Lanes {
  static_assert(N == 1 || N == 32 || N == ROW_THREADS, "a thread, a warp or a block");
  __device__ __forceinline__ int first() const { return static_cast<int>(threadIdx.x) % N; }
  __device__ __forceinline__ int step() const { return N; }
  __device__ __forceinline__ bool leads() const { return first() == 0; }
  // Where warps take parts of a row, each alone.
  static constexpr int WIDTH = N < 32 ? N : 32, WARPS = N / WIDTH;
  __device__ __forceinline__ int lane() const { return first() % WIDTH; }
  __device__ __forceinline__ int warp() const { return first() / WIDTH; }

  template <class Acc>
  __device__ __forceinline__ void join(Acc& a) const {
    if constexpr (N > 1) a = join_lanes<32>(a);
    if constexpr (N > 32) {
      constexpr int WARPS = ROW_THREADS / 32;
      __shared__ __align__(16) unsigned char slots[WARPS * sizeof(Acc)];
      Acc* const slot = reinterpret_cast<Acc*>(slots);
      __syncthreads();  // the last join's readers are done
      if (threadIdx.x % 32 == 0) slot[threadIdx.x / 32] = a;
      __syncthreads();
      a = join_lanes<WARPS>(slot[threadIdx.x % WARPS]);
    }
  }
};

template <int N>
__device__ __forceinline__ int64_t row_of_thread() {
  return (static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x) / N;
}

// The length of a part, where a row is cut into so many: whole vectors, and lines of memory.
__host__ __device__ inline int64_t row_share(int64_t length, int parts) {
  constexpr int LINE = 128 / sizeof(scalar);
  const int64_t share = (length + parts - 1) / parts;
  return (share + LINE - 1) / LINE * LINE;
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_kernel(const R r) {
  follow();
  const int64_t row = row_of_thread<N>();
  if (row < r.rows()) r(Lanes<N>(), static_cast<Index>(row));
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_keeping_kernel(const R r) {
  follow();
  extern __shared__ __align__(16) unsigned char row_kept[];
  const int64_t after = row_of_thread<N>(), row = CRUCIBLE_LAST_FIRST ? r.rows() - 1 - after : after;
  accum* const kept = reinterpret_cast<accum*>(row_kept) + threadIdx.x / N * r.kept();
  if (after < r.rows()) r.keeping(Lanes<N>(), static_cast<Index>(row), kept);
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_found_kernel(const R r, typename R::Found* found) {
  follow();
  const int64_t row = row_of_thread<N>();
  if (row >= r.rows()) return;
  const Lanes<N> lanes;
  const typename R::Found mine = r.reduce(lanes, static_cast<Index>(row));
  if (lanes.leads()) found[row] = mine;
}

// Slices are blockIdx.x, parts of rows the rest. No division, and all of `found` at once: each would be waited for before
// elements are asked for.
template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_slices_kernel(const R r, const typename R::Found* found, Index share) {
  follow();
  const int64_t count = static_cast<int64_t>(r.rows()) * r.repeats(), after = blockIdx.z * int64_t(GRID_MOST) + blockIdx.y;
  if (after >= count) return;
  const Index place = static_cast<Index>(CRUCIBLE_LAST_FIRST ? count - 1 - after : after), row = place / r.repeats();
  const Index length = static_cast<Index>(r.length());
  const Index from = share * static_cast<Index>(CRUCIBLE_LAST_FIRST ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const Index to = length - from < share ? length : from + share;
  r.walk(Lanes<ROW_THREADS>(), row, place % r.repeats(), from, to, read_words(found + row));
}

// How a long row is cut: its stretch into so many, and, where that is short, the times into so many.
struct RowCuts {
  int along, across;
};
template <int N, class R>
__host__ __device__ inline RowCuts row_cuts(const R& r, int splits) {
  const int64_t most = r.length() / (16 * N), repeats = r.repeats();
  const int along = most < 1 ? 1 : most < splits ? static_cast<int>(most) : splits, across = splits / along;
  return {along, repeats < 1 ? 1 : repeats < across ? static_cast<int>(repeats) : across};
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_parts_kernel(const R r, typename R::Acc* parts, RowCuts cuts) {
  follow();
  const int64_t row = row_of_thread<N>(), length = r.length(), each = row_share(length, cuts.along);
  if (row >= r.rows()) return;
  const int64_t from = each * (blockIdx.y % cuts.along), to = from + each < length ? from + each : length;
  const Index repeats = r.repeats(), times = (repeats + cuts.across - 1) / cuts.across;
  const Index first = times * static_cast<Index>(blockIdx.y / cuts.along), left = repeats - first;
  typename R::Acc a;
  const Lanes<N> lanes;
  if (left > 0) r.walk(lanes, static_cast<Index>(row), first, left < times ? repeats : first + times, from, to, a);
  lanes.join(a);
  if (lanes.leads()) parts[static_cast<int64_t>(blockIdx.y) * r.rows() + row] = a;
}

template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_whole_kernel(const R r, const typename R::Acc* parts, int splits) {
  follow();
  const int64_t row = row_of_thread<32>();
  if (row >= r.rows()) return;
  typename R::Acc a;
  const Lanes<32> lanes;
  for (int s = lanes.first(); s < splits; s += lanes.step()) a.join(parts[static_cast<int64_t>(s) * r.rows() + row]);
  lanes.join(a);
  r.finish(lanes, static_cast<Index>(row), a);
}

inline unsigned row_blocks(int64_t rows, int lanes) {
  return static_cast<unsigned>((rows * lanes + ROW_THREADS - 1) / ROW_THREADS);
}

template <int N, class R>
cudaError_t launch_rows(const R& r, cudaStream_t stream) {
  const int64_t rows = r.rows();
  if (rows <= 0) return cudaSuccess;
  return cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, 0, stream), row_kernel<N, R>, r);
}

// Rows that fit in shared memory keep what their first walk computes.
template <int N, class R>
cudaError_t launch_keeping_rows(const R& r, cudaStream_t stream) {
  const int64_t rows = r.rows(), bytes = r.kept() * (ROW_THREADS / N) * static_cast<int64_t>(sizeof(accum));
  if (rows <= 0 || bytes > 48 * 1024) return launch_rows<N>(r, stream);
  return cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, static_cast<size_t>(bytes), stream), row_keeping_kernel<N, R>, r);
}

// `found` has room for a Found for each row.
template <int N, class R>
cudaError_t launch_sliced_rows(const R& r, void* found, cudaStream_t stream) {
  constexpr int SLICE = SLICE_VECTORS * VECTOR * ROW_THREADS;
  const int64_t rows = r.rows(), length = r.length(), slices = (length + SLICE - 1) / SLICE;
  if (rows <= 0) return cudaSuccess;
  auto* const results = static_cast<typename R::Found*>(found);
  const cudaError_t error = cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, 0, stream), row_found_kernel<N, R>, r, results);
  if (error != cudaSuccess) return error;
  const int64_t places = rows * r.repeats();
  if (places <= 0 || slices <= 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(places < GRID_MOST ? places : GRID_MOST),
                  static_cast<unsigned>((places + GRID_MOST - 1) / GRID_MOST));
  return cudaLaunchKernelEx(After(grid, ROW_THREADS, 0, stream),
                            row_slices_kernel<R>, r, results, static_cast<Index>(row_share(length, static_cast<int>(slices))));
}

// `parts` has room for rows * splits partial results.
template <int N, class R>
cudaError_t launch_split_rows(const R& r, void* parts, int splits, cudaStream_t stream) {
  const int64_t rows = r.rows();
  if (rows <= 0) return cudaSuccess;
  auto* const acc = static_cast<typename R::Acc*>(parts);
  const RowCuts cuts = row_cuts<N>(r, splits);
  const int count = cuts.along * cuts.across;
  const cudaError_t error = cudaLaunchKernelEx(After(dim3(row_blocks(rows, N), count), ROW_THREADS, 0, stream),
                                               row_parts_kernel<N, R>, r, acc, cuts);
  if (error != cudaSuccess) return error;
  return cudaLaunchKernelEx(After(row_blocks(rows, 32), ROW_THREADS, 0, stream), row_whole_kernel<R>, r, acc, count);
}

}  // namespace crucible

// Boxes of output pixels and the input under them, in up to four dimensions.
//
// A functor whose columns are pixels names its form by types: Box, Kernel, Stride, Dilation, Shift (all Dims), and gives
// the output's extents. Column i of a box is a pixel of it, the last dimension fastest. Input pixel
// y * stride + tap * dilation + shift is under tap of output pixel y; the halo of a box is all input pixels under it.

namespace crucible {

template <int A, int B, int C, int D>
struct Dims {
  static constexpr int product = A * B * C * D;
  __host__ __device__ static constexpr int at(int d) { return d == 0 ? A : d == 1 ? B : d == 2 ? C : D; }
  // How far apart neighbours along dimension d are.
  __host__ __device__ static constexpr int pitch(int d) { return d == 0 ? B * C * D : d == 1 ? C * D : d == 2 ? D : 1; }
  __host__ __device__ static constexpr int index(int i, int d) { return i / pitch(d) % at(d); }
};

// The input under so many pixels in a row, or under a box's.
template <class P>
__host__ __device__ constexpr int halo_extent(int d, int pixels) {
  return (pixels - 1) * P::Stride::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) + 1;
}
template <class P>
__host__ __device__ constexpr int halo_extent(int d) { return halo_extent<P>(d, P::Box::at(d)); }
template <class P>
using HaloOf = Dims<halo_extent<P>(0), halo_extent<P>(1), halo_extent<P>(2), halo_extent<P>(3)>;

// Where the first tap of a box's pixel i lies in the halo; pixels past the box take its last one.
template <class P>
__device__ __forceinline__ int halo_offset(int i) {
  using Box = typename P::Box;
  if (i >= Box::product) i = Box::product - 1;
  int at = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) at += Box::index(i, d) * P::Stride::at(d) * HaloOf<P>::pitch(d);
  return at;
}
// How far a tap lies from the first.
template <class P>
__device__ __forceinline__ int tap_offset(int tap) {
  int at = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) at += P::Kernel::index(tap, d) * P::Dilation::at(d) * HaloOf<P>::pitch(d);
  return at;
}

// A functor may have a pool, of windows that lie side by side and divide its boxes.
template <class T>
struct Named { using type = void; };
template <class P, class = void>
struct PoolOf {
  static constexpr bool pooled = false;
  using Window = Dims<1, 1, 1, 1>;
};
template <class P>
struct PoolOf<P, typename Named<typename P::Pool>::type> {
  static constexpr bool pooled = true;
  using Window = typename P::Pool;
};

// A functor of phases knows elements by their places in a box; some may not exist, alike in all rows or not, and phases may lack some of the taps
// (as the weights count them).
template <class P, class = void>
struct PhasedOf { static constexpr bool phased = false; };
template <class P>
struct PhasedOf<P, typename Named<typename P::Phased>::type> { static constexpr bool phased = true; };
template <class P, class = void>
struct RaggedOf { static constexpr bool ragged = false, alike = true; };
template <class P>
struct RaggedOf<P, typename Named<typename P::Ragged>::type> { static constexpr bool ragged = true, alike = P::ALIKE; };
// Groups that read the same input: phases. So many of them, neighbours, have elements of which one lies beside the other.
template <class P, class = void>
struct InsideOf { static constexpr int groups = 1, beside = 1; };
template <class P>
struct InsideOf<P, typename Named<typename P::Inside>::type> { static constexpr int groups = P::PHASES, beside = P::BESIDE; };
template <class P, class = void>
struct TapsOf {
  static constexpr bool sparse = false;
  static __device__ __forceinline__ bool has(const P&, Index, int) { return true; }
};
template <class P>
struct TapsOf<P, typename Named<typename P::Sparse>::type> {
  static constexpr bool sparse = true;
  static __device__ __forceinline__ bool has(const P& p, Index group, int t) {
    return p.has(group, P::flipped ? P::Kernel::product - 1 - t : t);
  }
};

// The taps of a group's phase, in the order of the window.
template <class P>
struct Taps {
  uint64_t there = 0;
  Taps() = default;
  __device__ __forceinline__ Taps(const P& p, Index group) {
    static_assert(!TapsOf<P>::sparse || P::Kernel::product <= 64, "a bit for each");
    if (TapsOf<P>::sparse)
      for (int t = 0; t < P::Kernel::product; ++t) there |= uint64_t(TapsOf<P>::has(p, group, t)) << t;
  }
  __device__ __forceinline__ bool has(int t) const { return !TapsOf<P>::sparse || (there >> t & 1u); }
  // Whether a tap is the first, and whether there is none.
  __device__ __forceinline__ bool first(int t) const {
    return TapsOf<P>::sparse ? (there & ((uint64_t(1) << t) - 1)) == 0 : t == 0;
  }
  __device__ __forceinline__ bool none() const { return TapsOf<P>::sparse && there == 0; }
};

template <class P>
__host__ __device__ __forceinline__ Index box_count(const P& p) {
  Index count = 1;
#pragma unroll
  for (int d = 0; d < 4; ++d) count *= (p.extent(d) + P::Box::at(d) - 1) / P::Box::at(d);
  return count;
}

template <class P>
struct BoxPlace {
  Index first[4];  // the box's first pixel
  int there[4];    // how many pixels of it exist, by dimension

  __device__ __forceinline__ BoxPlace(const Index (&at)[4], const int (&of)[4]) {
#pragma unroll
    for (int d = 0; d < 4; ++d) first[d] = at[d], there[d] = of[d];
  }
  __device__ __forceinline__ BoxPlace(const P& p, Index box) {
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      const Index extent = p.extent(d), count = (extent + P::Box::at(d) - 1) / P::Box::at(d);
      first[d] = (count == 1 ? 0 : box % count) * P::Box::at(d);
      if (count != 1) box /= count;
      there[d] = extent - first[d] < P::Box::at(d) ? static_cast<int>(extent - first[d]) : P::Box::at(d);
    }
  }
  __device__ __forceinline__ bool exists(int i) const {
    bool all = i < P::Box::product;
#pragma unroll
    for (int d = 0; d < 4; ++d) all = all && P::Box::index(i, d) < there[d];
    return all;
  }
  __device__ __forceinline__ int count() const { return there[0] * there[1] * there[2] * there[3]; }
  // One more than the last pixel that exists.
  __device__ __forceinline__ int reach() const {
    int last = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) last += (there[d] - 1) * P::Box::pitch(d);
    return last + 1;
  }
  // The output pixel of a column, as a flat index; of one that does not exist, the nearest.
  __device__ __forceinline__ Index pixel(const P& p, int i) const {
    if (i >= P::Box::product) i = P::Box::product - 1;
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const int step = P::Box::index(i, d);
      at = at * p.extent(d) + first[d] + (step < there[d] ? step : there[d] - 1);
    }
    return at;
  }
  // Pixel i of the box itself.
  __device__ __forceinline__ auto plain(const P& p, Index z, int i) const {
    return p.a_at(z, first[0] + P::Box::index(i, 0), first[1] + P::Box::index(i, 1), first[2] + P::Box::index(i, 2),
                  first[3] + P::Box::index(i, 3));
  }
  // The input pixel number h of the halo.
  __device__ __forceinline__ typename P::BAt halo(const P& p, Index z, int h) const {
    Index at[4];
#pragma unroll
    for (int d = 0; d < 4; ++d) at[d] = first[d] * P::Stride::at(d) + P::Shift::at(d) + HaloOf<P>::index(h, d);
    return p.b_at(z, at[0], at[1], at[2], at[3]);
  }
};

// The pixels of a box that a lane finishes: every 32nd (so many times), or all those of every 32nd window of a pool.
template <class P, int TIMES>
struct LanePixels {
  using Box = typename P::Box;
  using Window = typename PoolOf<P>::Window;
  using Windows = Dims<Box::at(0) / Window::at(0), Box::at(1) / Window::at(1), Box::at(2) / Window::at(2),
                       Box::at(3) / Window::at(3)>;
  static_assert(Windows::product * Window::product == Box::product, "a box has whole windows");
  static constexpr int TAKES = Window::product;  // pixels of a window
  static constexpr int ROUNDS = PoolOf<P>::pooled ? (Windows::product + 31) / 32 : TIMES, EACH = ROUNDS * TAKES;
  static_assert(EACH <= 32, "a bit for each");

  static __device__ __forceinline__ int window(int round) { return static_cast<int>(threadIdx.x) % 32 + round * 32; }
  static __device__ __forceinline__ int pixel(int j) {
    const int w = window(j / TAKES);
    if (!PoolOf<P>::pooled) return w;
    int i = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) i += (Windows::index(w, d) * Window::at(d) + Window::index(j % TAKES, d)) * Box::pitch(d);
    return w < Windows::product ? i : Box::product;
  }
  // A window among all of them, from the box's first.
  static __device__ __forceinline__ Index pooled(const P& p, int round) {
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * (p.extent(d) / Window::at(d)) + Windows::index(window(round), d);
    return at;
  }
  static __device__ __forceinline__ Index first_pooled(const P& p, const BoxPlace<P>& place) {
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * (p.extent(d) / Window::at(d)) + place.first[d] / Window::at(d);
    return at;
  }
};

// The columns of a box that a lane finishes.
template <class P, int BN>
struct BoxColumns {
  using Lanes = LanePixels<P, BN / 32>;
  static constexpr int EACH = Lanes::EACH;
  Index at[EACH], to[Lanes::ROUNDS];
  unsigned exists = 0;
  int count;
  Index tile;
  BoxPlace<P> place;

  __device__ __forceinline__ BoxColumns(const P& p, const BoxPlace<P>& of, Index box)
      : count(of.count()), tile(box), place(of) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int i = Lanes::pixel(j);
      at[j] = place.pixel(p, i);
      exists |= unsigned(place.exists(i)) << j;
    }
#pragma unroll
    for (int q = 0; q < Lanes::ROUNDS; ++q)
      to[q] = PoolOf<P>::pooled ? Lanes::first_pooled(p, place) + Lanes::pooled(p, q) : Index(0);
  }
  __device__ __forceinline__ bool valid(int, int j) const { return exists >> j & 1u; }
  __device__ __forceinline__ Index column(int, int j) const { return at[j]; }
  // The pixel of a column that exists, else the box's first.
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (valid(r, j) ? P::Box::index(Lanes::pixel(j), d) : 0);
  }
  // Where a row's value lies among those of the box.
  __device__ __forceinline__ int from(int j) const {
    const int i = Lanes::pixel(j);
    return PoolOf<P>::pooled && i >= P::Box::product ? P::Box::product - 1 : i;
  }
  // Whether all pixels of a window exist, and its place among all windows.
  __device__ __forceinline__ bool whole(int round) const {
    constexpr unsigned all = 0xffffffffu >> (32 - Lanes::TAKES);
    return (exists >> round * Lanes::TAKES & all) == all;
  }
  __device__ __forceinline__ Index pooled(int round) const { return to[round]; }
};

}  // namespace crucible

// One operand of a contraction on its way from global memory to registers.
//
// A line is a row of A or a column of B. The block's threads share a tile of LINES lines, DEPTH deep, cut into runs of
// RUN neighbouring k: each thread owns LINE_COUNT lines and RUN_COUNT runs, always the same places, so that a line is
// decoded once a block and a k is decoded once for all the thread's lines (the functor is inlined; the compiler sees
// the same k). Neighbouring threads follow the direction that is contiguous in memory.

namespace crucible {

template <class P>
struct OperandA {
  static constexpr bool along_k = P::a_along_k;
  using Line = decltype(static_cast<const P*>(nullptr)->a_row(Index(0), Index(0)));
  static constexpr bool boxed = false;
  static __device__ __forceinline__ Index lines(const P& p) { return p.rows(); }
  static __device__ __forceinline__ Line line(const P& p, Index z, Index m) { return p.a_row(z, m); }
  static __device__ __forceinline__ accum at(const P& p, const Line& line, Index k) { return p.a(line, k); }
};

template <class P>
struct OperandB {
  static constexpr bool along_k = P::b_along_k;
  using Line = decltype(static_cast<const P*>(nullptr)->b_col(Index(0), Index(0)));
  static constexpr bool boxed = P::boxed;
  static __device__ __forceinline__ Index lines(const P& p) { return p.cols(); }
  static __device__ __forceinline__ Line line(const P& p, Index z, Index n) { return p.b_col(z, n); }
  static __device__ __forceinline__ accum at(const P& p, const Line& line, Index k) { return p.b(line, k); }
};

constexpr int larger(int x, int y) { return x > y ? x : y; }
constexpr int smaller(int x, int y) { return x < y ? x : y; }

template <class Operand, int LINES, int DEPTH, int RUN, int THREADS>
struct Staged {
  static constexpr int RUNS = DEPTH / RUN;
  // Threads side by side over the lines. Along k, 16 runs side by side fill a 32-byte sector at least, and more would
  // give each thread more lines to keep. Across the lines a warp should see 32 of them, but no more: the more runs at a
  // time, the fewer k for each thread to decode.
  static constexpr int SIDE =
      Operand::along_k ? THREADS / smaller(RUNS, 16) : larger(THREADS / RUNS, smaller(LINES, 32));
  static constexpr int RUN_STEP = THREADS / SIDE;
  static constexpr int LINE_COUNT = LINES / SIDE, RUN_COUNT = RUNS / RUN_STEP;
  static_assert(DEPTH % RUN == 0 && THREADS % SIDE == 0 && LINES % SIDE == 0 && RUNS % RUN_STEP == 0,
                "the threads must divide the tile evenly");

  typename Operand::Line lines[LINE_COUNT];
  accum values[RUN_COUNT][LINE_COUNT][RUN];
  int first_line, first_run, limit;  // limit: how many lines of the tile there are

  // Lines past the last one are zero: what they lead to is never stored.
  template <class P>
  __device__ __forceinline__ void place(const P& p, Index z, Index tile) {
    const int t = static_cast<int>(threadIdx.x);
    first_line = Operand::along_k ? t / RUN_STEP : t % SIDE;
    first_run = Operand::along_k ? t % RUN_STEP : t / SIDE;
    if constexpr (Operand::boxed) {
      const BoxPlace<P> box(p, tile / LINES);
      limit = box.reach();
#pragma unroll
      for (int i = 0; i < LINE_COUNT; ++i) lines[i] = Operand::line(p, z, box.pixel(p, line(i)));
      return;
    }
    const Index last = Operand::lines(p) - 1;
    limit = last - tile < LINES ? static_cast<int>(last - tile) + 1 : LINES;
#pragma unroll
    for (int i = 0; i < LINE_COUNT; ++i) {
      const int offset = line(i);
      lines[i] = Operand::line(p, z, last - tile < offset ? last : tile + offset);
    }
  }

  __device__ __forceinline__ int line(int i) const { return first_line + i * SIDE; }
  __device__ __forceinline__ int run(int j) const { return first_run + j * RUN_STEP; }

  // FULL: the tile's whole depth lies before `end`; otherwise what lies behind is zero.
  template <bool FULL, class P>
  __device__ __forceinline__ void fetch(const P& p, Index begin, Index end) {
#pragma unroll
    for (int j = 0; j < RUN_COUNT; ++j)
#pragma unroll
      for (int e = 0; e < RUN; ++e) {
        const int offset = run(j) * RUN + e;
#pragma unroll
        for (int i = 0; i < LINE_COUNT; ++i)
          values[j][i][e] = line(i) < limit && (FULL || offset < end - begin)
                                ? Operand::at(p, lines[i], begin + offset)
                                : accum(0);
      }
  }

  template <class P>
  __device__ __forceinline__ void load(const P& p, Index begin, Index end) {
    if (end - begin >= DEPTH)
      fetch<true>(p, begin, end);
    else
      fetch<false>(p, begin, end);
  }
};

}  // namespace crucible

// The contraction engine for any chip and any type: fused multiply-adds in `accum`.
//
// Block tile BM x BN, BK deep, (BM / TM) * (BN / TN) threads. Shared: two buffers of a BK x BM and a BK x BN panel,
// k outermost, each k padded by 16 bytes. Registers: TM x TN sums, where there is room also those of the last SPAN k, and the
// next tile's elements. A k costs a thread (TM + TN) * sizeof(accum) bytes of shared memory in 16-byte loads and TM * TN
// operations.

namespace crucible {

template <int BM_, int BN_, int BK_, int TM, int TN>
struct Simt {
  static constexpr int BM = BM_, BN = BN_, BK = BK_;
  static constexpr int threads = (BM / TM) * (BN / TN);
  static constexpr int blocks_per_sm = 1;
  static constexpr int V = 16 / sizeof(accum);  // elements of a 16-byte load
  static constexpr int SPAN = 128;              // k in one serial sum; a longer one would lose more bits
  static constexpr bool SPANS = sizeof(accum) == 4 || TM * TN <= 32;  // a large tile of doubles has no registers left
  static_assert(TM % V == 0 && TN % V == 0 && BM % TM == 0 && BN % TN == 0 && BN % 32 == 0, "tile does not divide");
  static_assert(SPAN % BK == 0 && threads % 32 == 0 && threads <= 1024, "bad tile depth or thread count");

  static constexpr int LDA = BM + V, LDB = BN + V;  // one k's lines, and the padding
  static constexpr int buffer = BK * (LDA + LDB);
  static constexpr int passes = TM, pass_rows = BM / TM, pass_stride = BN + 8;
  static constexpr int shared_bytes = larger(2 * buffer, pass_rows * pass_stride) * static_cast<int>(sizeof(accum));

  struct Sums {
    accum at[TM][TN];
  };

  // A thread's rows and columns come V at a time, the groups apart by all threads' V.
  static __device__ __forceinline__ int row(int ty, int i) { return i / V * (BM / TM * V) + ty * V + i % V; }
  static __device__ __forceinline__ int tx() { return static_cast<int>(threadIdx.x) % (BN / TN); }
  static __device__ __forceinline__ int ty() { return static_cast<int>(threadIdx.x) / (BN / TN); }

  static __device__ __forceinline__ void read(float* to, const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
  static __device__ __forceinline__ void read(double* to, const double* from) {
    const double2 v = *reinterpret_cast<const double2*>(from);
    to[0] = v.x, to[1] = v.y;
  }

  // Rows come in groups of all threads' V; groups past the last row are neither stored nor multiplied.
  static constexpr int GROUP = BM / TM * V;

  template <int LD, class S>
  static __device__ __forceinline__ void put(const S& staged, accum* panel, int stored) {
#pragma unroll
    for (int j = 0; j < S::RUN_COUNT; ++j)
#pragma unroll
      for (int i = 0; i < S::LINE_COUNT; ++i)
        if (staged.line(i) < stored) panel[staged.run(j) * LD + staged.line(i)] = staged.values[j][i][0];
  }

  static __device__ __forceinline__ void multiply_tile(Sums& part, const accum* a_panel, const accum* b_panel, int rows) {
    if (ty() * V >= rows) return;  // no row of this thread exists
    const accum* a_from = a_panel + ty() * V;
    const accum* b_from = b_panel + tx() * V;
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      accum a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; i += V)
        if (i / V * GROUP < rows) read(a + i, a_from + k * LDA + i / V * GROUP);
#pragma unroll
      for (int j = 0; j < TN; j += V) read(b + j, b_from + k * LDB + j / V * (BN / TN * V));
#pragma unroll
      for (int i = 0; i < TM; ++i)
        if (i / V * GROUP < rows)
#pragma unroll
          for (int j = 0; j < TN; ++j) part.at[i][j] = fma(a[i], b[j], part.at[i][j]);
    }
  }

  // sums = A B over [begin, end), for the tile at row m0 and column n0 of batch z.
  template <class P>
  static __device__ __forceinline__ void multiply(const P& p, Index z, Index m0, Index n0, Index begin, Index end,
                                                  unsigned char* shared, Sums& sums) {
    accum* panels = reinterpret_cast<accum*>(shared);
    Staged<OperandA<P>, BM, BK, 1, threads> a;
    Staged<OperandB<P>, BN, BK, 1, threads> b;
    sums = Sums{};
    if (begin >= end) return;
    a.place(p, z, m0);
    b.place(p, z, n0);
    a.load(p, begin, end);
    b.load(p, begin, end);
    const int stored = (a.limit + GROUP - 1) / GROUP * GROUP;
    put<LDA>(a, panels, stored);
    put<LDB>(b, panels + BK * LDA, BN);
    __syncthreads();

    Sums part{};
    int depth = 0;
    accum* current = panels;
    accum* other = panels + buffer;
    for (Index k = begin;; k += BK) {
      const bool more = end - k > BK;
      if (more) {
        a.load(p, k + BK, end);
        b.load(p, k + BK, end);
      }
      multiply_tile(SPANS ? part : sums, current, current + BK * LDA, a.limit);
      depth += BK;
      if (SPANS && (depth == SPAN || !more)) {
        depth = 0;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int j = 0; j < TN; ++j) sums.at[i][j] += part.at[i][j], part.at[i][j] = 0;
      }
      if (!more) break;
      put<LDA>(a, other, stored);
      put<LDB>(b, other + BK * LDA, BN);
      __syncthreads();
      accum* const swap = current;
      current = other;
      other = swap;
    }
  }

  // The sums leave the registers in passes of pass_rows rows; row r of a pass is row_of(pass, r) of the tile.
  static __device__ __forceinline__ int row_of(int pass, int r) { return row(r, pass); }

  static __device__ __forceinline__ void expose(const Sums& sums, int pass, accum* rows) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
      if (i == pass) {  // a register has no address: the choice is made among unrolled copies
#pragma unroll
        for (int j = 0; j < TN; ++j)
          rows[ty() * pass_stride + j / V * (BN / TN * V) + tx() * V + j % V] = sums.at[i][j];
      }
  }
};

}  // namespace crucible

// The contraction engine on tensor cores (mma.sync, compute capability 8.0 and later).
//
// Block tile BM x BN, BK deep; each warp computes WM x WN. What lies in shared memory are 32-bit words: a tf32 number,
// or two half or bfloat16 numbers of neighbouring k. A panel is made of slabs 16 words deep; a line's 16 words are four
// 16-byte chunks, permuted by the line's number so that 16-byte stores across lines, 4-byte stores along k and the
// fragments' 16-byte loads all hit distinct banks. A fragment's order of k is the load's (word 4q .. 4q+3 for the
// thread with lane % 4 == q), the same in A and B, so the sum is over all k all the same.
// Per slab a warp loads (WM + WN) * 64 bytes and issues WM * WN / 64 mma (three times that in grade Fp32).
// Registers: WM * WN / 32 sums, WN / 2 more for a slab's own, and the next tile's elements.
// Tensor cores cut what they add, so the sums of a slab go to ordinary registers, which round.
//
// Grades:
//   Tf32    operands rounded to tf32, to nearest even
//   Fp32    operands split into two tf32 numbers (in registers: shared memory has them whole), three products, the small
//           ones first. A tile with a number that is huge, inf or nan takes fused multiply-adds: a split would make nan of
//           inf, and an overflow of one product nan of the sum.
//   Native  operands rounded to scalar (half or bfloat16), summed in float

namespace crucible {

enum class Grade { Tf32, Fp32, Native };

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define CRUCIBLE_HAS_MMA 1
#else
#define CRUCIBLE_HAS_MMA 0
#endif

#if CRUCIBLE_HAS_MMA
// To tf32, to nearest even; tensor cores ignore the bits below. What would round to infinity is cut instead; a nan stays
// one when its low bits go.
__device__ __forceinline__ unsigned round_tf32(float value) {
  const unsigned bits = __float_as_uint(value), size = bits & 0x7fffffffu;
  const unsigned quiet = size > 0x7f800000u ? 0x400000u : 0u;
  return size < 0x7f7ff000u ? bits + 0xfffu + (bits >> 13 & 1u) : bits | quiet;
}

template <Grade grade>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (grade != Grade::Native) {
    asm(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
#if CRUCIBLE_SCALAR == 3
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
  }
}

// Two neighbouring k as scalars in one word, the first in the low half.
__device__ __forceinline__ unsigned pack(float first, float second) {
#if CRUCIBLE_SCALAR == 2
  const __half2 pair = __floats2half2_rn(first, second);
  return reinterpret_cast<const unsigned&>(pair);
#elif CRUCIBLE_SCALAR == 3
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const unsigned&>(pair);
#else
  return 0;
#endif
}

// 16 bytes from global to shared memory without passing through registers.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
// SIZE bytes (4, 8 or 16), of which the first `some` come from memory and the rest are zeros.
template <int SIZE>
__device__ __forceinline__ void copy_async_some(void* to, const void* from, int some) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (SIZE == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(from), "r"(some) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(address), "l"(from), "n"(SIZE), "r"(some) : "memory");
}
// Four bytes, or four zeros.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most LEFT of this thread's batches of copies are under way.
template <int LEFT = 0>
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
#endif  // CRUCIBLE_HAS_MMA

template <int BM_, int BN_, int BK_, int WM, int WN, Grade grade>
struct Mma {
  static constexpr int BM = BM_, BN = BN_, BK = BK_;
  static constexpr int PER_WORD = grade == Grade::Native ? 2 : 1;  // elements
  static constexpr int COPIES = grade == Grade::Fp32 ? 2 : 1;      // of a fragment: the high parts, and the low parts
  static constexpr int WORDS = BK / PER_WORD, SLABS = WORDS / 16;
  static constexpr int MT = WM / 16, NT = WN / 8, WARPS_N = BN / WN;
  static constexpr int threads = BM / WM * WARPS_N * 32;
  // As many as fit without spills.
  static constexpr int blocks_per_sm = threads > 128 ? 1 : grade == Grade::Tf32 && WM * WN <= 1024 ? 3 : 2;
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 8 == 0 && BN % 32 == 0, "tile does not divide");
  static_assert(BK % (16 * PER_WORD) == 0 && threads <= 1024, "bad tile depth or thread count");
  static_assert((grade == Grade::Native) == (sizeof(scalar) == 2), "Native is for two-byte scalars, others for float");

  static constexpr int A_WORDS = BM * WORDS, B_WORDS = BN * WORDS;
  static constexpr int buffer = A_WORDS + B_WORDS;
  static constexpr int passes = MT, pass_rows = BM / WM * 16, pass_stride = BN + 8;
  static constexpr int shared_bytes = larger(2 * buffer, pass_rows * pass_stride) * 4;

  struct Sums {
    float at[MT][NT][4];
  };

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp_m() { return static_cast<int>(threadIdx.x) / 32 / WARPS_N; }
  static __device__ __forceinline__ int warp_n() { return static_cast<int>(threadIdx.x) / 32 % WARPS_N; }

#if CRUCIBLE_HAS_MMA
  // Where the 16 bytes lie that hold words 4 * chunk .. 4 * chunk + 3 of a line.
  template <int LINES>
  static __device__ __forceinline__ int chunk_at(int line, int chunk) {
    return (chunk / 4 * LINES + line) * 16 + ((chunk ^ line >> 1) & 3) * 4;
  }

  // A word of the panel. True if the number is too large for three products (grade Fp32).
  static __device__ __forceinline__ bool convert(const accum* from, unsigned& word) {
    if constexpr (grade == Grade::Native) {
      word = pack(from[0], from[1]);
    } else if constexpr (grade == Grade::Tf32) {
      word = round_tf32(from[0]);
    } else {
      word = __float_as_uint(from[0]);
      return !(fabsf(from[0]) < 1e18f);
    }
    return false;
  }

  template <int LINES, class S>
  static __device__ __forceinline__ bool put(const S& staged, unsigned* panel, int stored) {
    bool odd = false;
#pragma unroll
    for (int j = 0; j < S::RUN_COUNT; ++j)
#pragma unroll
      for (int i = 0; i < S::LINE_COUNT; ++i) {
        if (staged.line(i) >= stored) continue;
        const accum* from = staged.values[j][i];
        if constexpr (S::RUNS == WORDS) {
          const int word = staged.run(j), at = chunk_at<LINES>(staged.line(i), word / 4) + word % 4;
          odd |= convert(from, panel[at]);
        } else {
          const int at = chunk_at<LINES>(staged.line(i), staged.run(j));
          unsigned words[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) odd |= convert(from + e * PER_WORD, words[e]);
          *reinterpret_cast<uint4*>(panel + at) = make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    return odd;
  }

  // Four words of a line; in grade Fp32 their high and low parts. Tensor cores ignore the bits below a tf32 number's.
  template <int LINES, int N>
  static __device__ __forceinline__ void fragment(unsigned (&to)[COPIES][N][4], int n, const unsigned* panel, int line,
                                                  int slab) {
    const uint4 v = *reinterpret_cast<const uint4*>(panel + chunk_at<LINES>(line, slab * 4 + lane() % 4));
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (grade == Grade::Fp32) {
        to[0][n][e] = (words[e] + 0x1000u) & 0xffffe000u;
        const float rest = __uint_as_float(words[e]) - __uint_as_float(to[0][n][e]);
        to[COPIES - 1][n][e] = __float_as_uint(rest) + 0x1000u;
      } else {
        to[0][n][e] = words[e];
      }
    }
  }

  static __device__ __forceinline__ void multiply_tile(Sums& sums, const unsigned* a_panel, const unsigned* b_panel,
                                                       int rows) {
    const int a_line = warp_m() * WM + lane() / 4, b_line = warp_n() * WN + lane() / 4;
#pragma unroll
    for (int slab = 0; slab < SLABS; ++slab) {
      unsigned b[COPIES][NT][4];
#pragma unroll
      for (int j = 0; j < NT; ++j) fragment<BN>(b, j, b_panel, b_line + j * 8, slab);
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        if (i * 16 >= rows) break;  // the same for the whole warp
        unsigned a[COPIES][2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) fragment<BM>(a, h, a_panel, a_line + i * 16 + h * 8, slab);
        float part[NT][4] = {};
        if constexpr (grade == Grade::Fp32) {
          multiply_fragments(part, a[COPIES - 1], b[0]);
          multiply_fragments(part, a[0], b[COPIES - 1]);
        }
        multiply_fragments(part, a[0], b[0]);
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int r = 0; r < 4; ++r) sums.at[i][j][r] += part[j][r];
      }
    }
  }

  static __device__ __forceinline__ void multiply_fragments(float (&to)[NT][4], const unsigned (&a)[2][4],
                                                            const unsigned (&b)[NT][4]) {
#pragma unroll
    for (int step = 0; step < 4; step += 2) {
      const unsigned rows[4] = {a[0][step], a[1][step], a[0][step + 1], a[1][step + 1]};
#pragma unroll
      for (int j = 0; j < NT; ++j) mma<grade>(to[j], rows, b[j][step], b[j][step + 1]);
    }
  }

  // The same tile by fused multiply-adds (grade Fp32).
  static __device__ __forceinline__ void multiply_odd_tile(Sums& sums, const unsigned* a_panel,
                                                           const unsigned* b_panel, int rows) {
    if (rows <= 0) return;
    const int a_line = warp_m() * WM + lane() / 4, b_line = warp_n() * WN + lane() % 4 * 2;
#pragma unroll 1
    for (int word = 0; word < WORDS; ++word) {
      float a[MT][2], b[NT][2];
#pragma unroll
      for (int i = 0; i < MT * 2; ++i) {
        if (i / 2 * 16 >= rows) {
          a[i / 2][i % 2] = 0;
          continue;
        }
        a[i / 2][i % 2] = __uint_as_float(a_panel[chunk_at<BM>(a_line + i * 8, word / 4) + word % 4]);
      }
#pragma unroll
      for (int j = 0; j < NT * 2; ++j) {
        b[j / 2][j % 2] = __uint_as_float(b_panel[chunk_at<BN>(b_line + j / 2 * 8 + j % 2, word / 4) + word % 4]);
      }
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int r = 0; r < 4; ++r) sums.at[i][j][r] = fmaf(a[i][r / 2], b[j][r % 2], sums.at[i][j][r]);
    }
  }

  // Barrier; whether any thread of the block saw a number too large.
  static __device__ __forceinline__ bool meet(bool odd) {
    if constexpr (grade == Grade::Fp32) return __syncthreads_or(odd);
    __syncthreads();
    return false;
  }

  // sums = A B over [begin, end), for the tile at row m0 and column n0 of batch z.
  template <class P>
  static __device__ __forceinline__ void multiply(const P& p, Index z, Index m0, Index n0, Index begin, Index end,
                                                  unsigned char* shared, Sums& sums) {
    unsigned* panels = reinterpret_cast<unsigned*>(shared);
    Staged<OperandA<P>, BM, BK, P::a_along_k ? PER_WORD : 4 * PER_WORD, threads> a;
    Staged<OperandB<P>, BN, BK, P::b_along_k ? PER_WORD : 4 * PER_WORD, threads> b;
    sums = Sums{};
    if (begin >= end) return;
    a.place(p, z, m0);
    b.place(p, z, n0);
    a.load(p, begin, end);
    b.load(p, begin, end);
    // Rows of this warp that there are; none where its columns lie past the end.
    const int rows = warp_n() * WN < b.limit ? a.limit - warp_m() * WM : 0;
    // Lines that some warp multiplies: whole fragments of A, whole warps of B.
    const int a_stored = (a.limit + 15) / 16 * 16, b_stored = (b.limit + WN - 1) / WN * WN;
    bool odd = put<BM>(a, panels, a_stored);
    odd |= put<BN>(b, panels + A_WORDS, b_stored);
    odd = meet(odd);

    unsigned* current = panels;
    unsigned* other = panels + buffer;
    for (Index k = begin;; k += BK) {
      const bool more = end - k > BK;
      if (more) {
        a.load(p, k + BK, end);
        b.load(p, k + BK, end);
      }
      if (odd)
        multiply_odd_tile(sums, current, current + A_WORDS, rows);
      else
        multiply_tile(sums, current, current + A_WORDS, rows);
      if (!more) break;
      odd = put<BM>(a, other, a_stored);
      odd |= put<BN>(b, other + A_WORDS, b_stored);
      odd = meet(odd);
      unsigned* const swap = current;
      current = other;
      other = swap;
    }
  }
#else
  template <class P>
  static __device__ void multiply(const P&, Index, Index, Index, Index, Index, unsigned char*, Sums& sums) {
    sums = Sums{};
    __trap();  // the host chose an engine that this chip does not have
  }
#endif

  // The sums leave the registers in passes of pass_rows rows; row r of a pass is row_of(pass, r) of the tile.
  static __device__ __forceinline__ int row_of(int pass, int r) { return r / 16 * WM + pass * 16 + r % 16; }

  static __device__ __forceinline__ void expose(const Sums& sums, int pass, accum* rows) {
    accum* to = rows + (warp_m() * 16 + lane() / 4) * pass_stride + warp_n() * WN + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < MT; ++i)
      if (i == pass) {  // a register has no address: the choice is made among unrolled copies
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float2*>(to + h * 8 * pass_stride + j * 8) =
                make_float2(sums.at[i][j][2 * h], sums.at[i][j][2 * h + 1]);
      }
  }
};

}  // namespace crucible

// Batched contraction D[z][m][n] = sum over k of A(z, m, k) * B(z, k, n) with operands and result in the hands of a
// functor: matrix products, convolutions (implicit GEMM) and their gradients, with any prologue and epilogue.
//
// The functor P is trivially copyable:
//   static constexpr bool a_along_k;   neighbouring k are neighbours in memory for A (else neighbouring m)
//   static constexpr bool b_along_k;   likewise for B (else neighbouring n)
//   static constexpr bool statistics;  whether sink() is wanted
//   static constexpr int group;        columns of one statistic: a power of two that divides cols() and the tile, or 0
//   __host__ __device__ Index batches(), rows(), cols(), depth() const;
//   __device__ Row a_row(Index z, Index m) const;          what a(row, k) must know of the row; a small plain struct
//   __device__ accum a(const Row&, Index k) const;         an element, 0 where there is padding
//   __device__ Col b_col(Index z, Index n) const;
//   __device__ accum b(const Col&, Index k) const;
//   __device__ accum finish(Index z, Index m, Index n, int split, accum value, bool there) const;
// and for fragments.cuh, whose lanes have neighbours to store,
//   template <class To> __device__ accum finish_to(Index z, Index m, Index n, int split, accum value, To& to) const;
//                                      finish, but calls to(address, element) instead of storing
//   __device__ uintptr_t stored(Index z, Index m, Index n) const;  where in memory its first element goes, in elements
//   static constexpr bool in_pairs;    there is one such element at most, and neighbours among columns are so in memory
//   static constexpr bool reads;       finish reads what depends on the column
//   __device__ void sink(Index z, Index m, Index tile_n, accum count, accum mean, accum m2) const;
// a, b, finish are called for elements in range only; finish once for each (z, m, n, split) that is `there`, by neighbouring
// threads for neighbouring n: it applies the epilogue, stores, and returns the value that statistics are taken of. Called for
// one that is not there (a lane without an element of its own) it must store nothing, and its result is not used. sink is
// called once for each (z, m, tile or group of columns) with the count, mean and sum of squared deviations of finish's values.
// A functor whose groups are phases, which all read the same input, names a type Inside and has `static constexpr int PHASES`,
// their number.
// A functor of phases (plan/phases.py) whose columns are pixels of boxes names a type Phased. It has, for finish and exists,
// finish_at and exists_at, with a place in four dimensions (that of an element that is not there is any in range) for n.
// Where it names Ragged or Sparse there is
//   __device__ bool exists(Index z, Index m, Index n) const;  whether there is such an element; finish asks for itself
//   __device__ bool has(Index group, Index tap) const;        whether a group's phase has a tap of the window; else a is 0
// A functor whose columns are pixels of boxes may also pool, by windows that lie side by side:
//   using Pool = Dims<..>;             a window's extents, which divide the box's
//   using Pooling = ..;                a reduction (reduce.cuh) over a window's elements
//   __device__ accum pool_in(Index z, Index m, Index n, accum value) const;    an element of it
//   __device__ void pool_out(Index z, Index m, Index n, const Pooling&) const; n: the window's place among all whole ones
// A functor whose columns are no pixels may go on where finish ended, with what it returned and what its group has in common:
//   struct Group;                      of numbers, computed from the moments of a group once; without statistics empty
//   __device__ Group grouped(accum count, accum mean, accum m2) const;
//   struct Tail;                       reductions along a row, of the elements in a tile; it may have none
//   static constexpr bool reduces;     whether it has any
//   __device__ void tail(Index z, Index m, Index n, accum finished, const Group&, Tail&) const;   for elements in range only
//   __device__ void tail_out(Index z, Index m, Index tile_n, const Tail&) const;   once for each (z, m, tile of columns)
//
// Split s of `splits` sums a contiguous range of k (whole tiles); an empty range gives 0. Nothing depends on timing.
// The engine (Simt, Mma) is a template argument. Each block computes one tile and, through the shared memory that the
// operands no longer need, hands it out row by row: a warp for each row, a lane for each 32nd column.

#if CRUCIBLE_SCALAR != 1  // tensor cores sum in float
#endif

namespace crucible {

template <class Config>
constexpr int tile_cols() { return Config::BN; }

// Tiles in an order in which those that run together share operands: bands of 8 tiles of rows, columns outermost.
constexpr int TILE_BAND = 8;
struct TilePlace {
  Index z, m, n;  // m and n count tiles
};
__device__ __forceinline__ TilePlace tile_place(unsigned block, unsigned tiles_m, unsigned tiles_n) {
  constexpr unsigned BAND = TILE_BAND;
  const unsigned z = block / (tiles_m * tiles_n), within = block % (tiles_m * tiles_n);
  const unsigned first = within / (BAND * tiles_n) * BAND, rest = within % (BAND * tiles_n);
  const unsigned height = tiles_m - first < BAND ? tiles_m - first : BAND;
  return {static_cast<Index>(z), static_cast<Index>(first + rest % height), static_cast<Index>(rest / height)};
}

// Whether a functor goes on after finish, and with what.
template <class P, class = void>
struct TailOf {
  struct Row {};
  struct Group {};
  static __device__ __forceinline__ Group group(const P&, accum, accum, accum) { return {}; }
  static constexpr bool there = false, reduces = false;
};
template <class P>
struct TailOf<P, typename Named<typename P::Tail>::type> {
  using Row = typename P::Tail;
  using Group = typename P::Group;
  static __device__ __forceinline__ Group group(const P& p, accum count, accum mean, accum m2) { return p.grouped(count, mean, m2); }
  static constexpr bool there = true, reduces = P::reduces;
  static_assert(!P::statistics || P::group > 0, "what follows needs moments of whole groups");
};

// Sums over LANES neighbouring lanes.
template <int LANES, int N>
__device__ __forceinline__ void lanes_sums(accum (&x)[N]) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
}

// Sums of N numbers over a warp, N a power of two: lane l gets that of x[l / (32 / N)].
template <int N>
__device__ __forceinline__ accum scattered_sum(accum (&x)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const accum mine = lane & step ? x[i + n / 2] : x[i], other = lane & step ? x[i] : x[i + n / 2];
      x[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
    }
#pragma unroll
  for (; step > 0; step /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
  return x[0];
}

// The columns of a tile that a lane finishes: every 32nd of BN neighbours.
template <int BN>
struct PlainColumns {
  static constexpr int EACH = BN / 32;
  Index first, tile;
  int count;

  template <class P>
  __device__ __forceinline__ PlainColumns(const P& p, Index tile_n) : first(tile_n * BN), tile(tile_n) {
    const Index left = p.cols() - first;
    count = left < BN ? static_cast<int>(left) : BN;
  }
  __device__ __forceinline__ bool valid(int, int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32 < count; }
  __device__ __forceinline__ Index column(int, int j) const { return first + static_cast<int>(threadIdx.x) % 32 + j * 32; }
  __device__ __forceinline__ int from(int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32; }
};

// Columns may be of several batches, neighbours from z on, and may know which elements exist: the same of all rows.
template <class C, class = void>
struct BatchOf {
  static constexpr bool knows = false;
  static __device__ __forceinline__ Index at(const C&, Index z, int) { return z; }
};
template <class C>
struct BatchOf<C, typename Named<typename C::Several>::type> {
  static constexpr bool knows = C::KNOWS;
  static __device__ __forceinline__ Index at(const C& columns, Index z, int j) { return z + columns.further(j); }
};

// Whether a lane's column of a row is an element.
template <class P, class C>
__device__ __forceinline__ bool is_there(const P& p, Index z, Index m, const C& columns, int r, int j) {
  if constexpr (BatchOf<C>::knows)
    return columns.valid(r, j);
  else if constexpr (RaggedOf<P>::ragged && PhasedOf<P>::phased)
    return columns.valid(r, j) && p.exists_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3));
  else if constexpr (RaggedOf<P>::ragged)
    return columns.valid(r, j) && p.exists(z, m, columns.column(r, j));
  else
    return columns.valid(r, j);
}
template <class P, class C>
__device__ __forceinline__ accum finish_element(const P& p, Index z, Index m, const C& columns, int r, int j, int split,
                                                accum value, bool there) {
  if constexpr (PhasedOf<P>::phased)
    return p.finish_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3), split, value,
                       there && columns.valid(r, j));
  else
    return p.finish(z, m, columns.valid(r, j) ? columns.column(r, j) : 0, split, value, there && columns.valid(r, j));
}
// Something near the mean of a row's elements, the same for LANES neighbours: the mean of those that they have, one each. Of
// deviations from it little cancels: n times its own squared deviation is not much of all of them, while that of a single
// element may be all. Zero where it is not finite, so that infinities stay what they are.
template <int LANES>
__device__ __forceinline__ accum near_mean(accum mine, int have) {
  accum sum = mine * accum(1.0 / LANES), count = static_cast<accum>(have);
  if (LANES == 32) count = static_cast<accum>(__popc(__ballot_sync(0xffffffffu, have != 0)));  // one each
#pragma unroll
  for (int by = LANES / 2; by > 0; by /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (LANES < 32) count += __shfl_xor_sync(0xffffffffu, count, by);
  }
  const accum mean = count > 0 ? sum * (accum(LANES) / count) : accum(0);
  return mean - mean == 0 ? mean : accum(0);
}
// The same of a row by all lanes, and how many elements there are.
template <int EACH, class P, class C>
__device__ __forceinline__ accum near_all(const P& p, Index z, Index m, const C& columns, int r, const accum (&kept)[EACH],
                                           int* found) {
  accum mine = 0;
  bool any = false;
#pragma unroll
  for (int j = EACH - 1; j >= 0; --j) {
    const bool there = is_there(p, z, m, columns, r, j);
    if (there) mine = kept[j];
    any |= there;
    if (!BatchOf<C>::knows) *found += __popc(__ballot_sync(0xffffffffu, there));
  }
  return near_mean<32>(mine, any);
}

// ROWS neighbouring rows of a tile (those there are, below `limit`) at a time, so that they need not wait for each other's
// shuffles: a warp's lanes take every 32nd column. The mean is computed first and the deviations from it, and then corrected
// by the deviations' own mean, so nothing cancels however far the values are from zero.
template <int ROWS, int EACH, class P, class C>
__device__ __forceinline__ void finish_values(const P& p, Index z, Index m, Index limit, const C& columns, int split,
                                              const accum (&values)[ROWS][EACH]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  accum kept[ROWS][EACH];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int j = 0; j < EACH; ++j)
      // Elements that are not there are computed too, without a branch, and nothing is stored.
      kept[r][j] = finish_element(p, z, m + r < limit ? m + r : m, columns, r, j, split, values[r][j], m + r < limit);
  if constexpr (PoolOf<P>::pooled) {
    constexpr int TAKES = PoolOf<P>::Window::product;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int q = 0; q < EACH / TAKES; ++q)
        if (m + r < limit && columns.whole(q)) {
          typename P::Pooling pool;
#pragma unroll
          for (int j = q * TAKES; j < (q + 1) * TAKES; ++j)
            pool.step(p.pool_in(z, m + r, columns.column(r, j), values[r][j]));
          p.pool_out(z, m + r, columns.pooled(q), pool);
        }
  }
  using Tail = TailOf<P>;
  [[maybe_unused]] typename Tail::Row tails[ROWS];
  if constexpr (P::statistics) {
    // LANES lanes take TAKES columns each of one statistic.
    constexpr int LANES = P::group > 0 && P::group < 32 ? P::group : 32;
    constexpr int TAKES = P::group == 0 ? EACH : P::group < 32 ? 1 : P::group / 32;
    constexpr int WIDTH = P::group == 0 ? 1 : P::group;
    constexpr bool ALL_KNOW = LANES < 32 || Tail::there;  // all lanes of a group get its moments
    static_assert(EACH % TAKES == 0, "a group of columns lies within a tile");
#pragma unroll
    for (int first = 0; ALL_KNOW && first < EACH; first += TAKES) {
      const accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
      accum near[ROWS], both[2 * ROWS];  // means; deviations from them and their squares
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) near[r] += columns.valid(r, j) ? kept[r][j] : accum(0);
      }
      lanes_sums<LANES>(near);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] /= size;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = columns.valid(r, j) ? kept[r][j] - near[r] : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      lanes_sums<LANES>(both);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const accum off = both[2 * r] / size, squares = both[2 * r + 1] - size * off * off;
        if (m + r < limit && lane % LANES == 0 && (P::group == 0 || columns.valid(0, first)))
          p.sink(z, m + r, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, near[r] + off, squares);
        if constexpr (Tail::there) {
          const auto group = Tail::group(p, size, near[r] + off, squares);
#pragma unroll
          for (int j = first; j < first + TAKES; ++j)
            if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], group, tails[r]);
        }
      }
    }
    // The whole warp takes each of them, all rows in one go, with deviations from what is near the mean.
#pragma unroll
    for (int first = 0; !ALL_KNOW && first < EACH; first += TAKES) {
      constexpr int EVERY = 32 / ROWS;
      accum both[2 * ROWS], middle = 0;  // of row lane / EVERY, as is the size
      accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        accum near;
        if constexpr (RaggedOf<P>::ragged) {
          int found = columns.count;
          if (!BatchOf<C>::knows) found = 0;
          near = near_all(p, z, m + r, columns, r, kept[r], &found);
          if (lane / EVERY == r) size = static_cast<accum>(found);
        } else {
          const bool have = columns.valid(r, first);
          near = near_mean<32>(have ? kept[r][first] : accum(0), have);
        }
        if (lane / EVERY == r) middle = near;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = is_there(p, z, m + r, columns, r, j) ? kept[r][j] - near : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      const accum part = RaggedOf<P>::ragged && size == 0 ? accum(0) : accum(1) / size;
      const accum mine = scattered_sum(both), other = __shfl_xor_sync(0xffffffffu, mine, EVERY / 2);
      const accum off = mine * part, squares = other - mine * off;
      if (lane % EVERY == 0 && m + lane / EVERY < limit && (P::group == 0 || columns.valid(0, first)))
        p.sink(z, m + lane / EVERY, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, middle + off, squares < 0 ? accum(0) : squares);
    }
  } else if constexpr (Tail::there) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int j = 0; j < EACH; ++j)
        if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], {}, tails[r]);
  }
  if constexpr (Tail::reduces) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const auto row = fold_lanes<32>(tails[r]);
      if (lane == 0 && m + r < limit) p.tail_out(z, m + r, columns.tile, row);
    }
  }
}

template <class Config, class P, class C>
__device__ __forceinline__ void finish_row(const P& p, Index z, Index m, const C& columns, int split,
                                           const accum* values) {
  accum mine[1][C::EACH];
#pragma unroll
  for (int j = 0; j < C::EACH; ++j) mine[0][j] = values[columns.from(j)];
  finish_values(p, z, m, m + 1, columns, split, mine);
}

// Tiles of columns: boxes where the functor's columns are pixels of boxes.
template <class Config, class P>
__host__ __device__ __forceinline__ Index column_tiles(const P& p) {
  if constexpr (P::boxed)
    return box_count(p);
  else
    return p.cols() == 0 ? 0 : (p.cols() - 1) / Config::BN + 1;
}

template <class Config, class P>
__device__ __forceinline__ auto columns_of(const P& p, Index tile_n) {
  if constexpr (P::boxed)
    return BoxColumns<P, Config::BN>(p, BoxPlace<P>(p, tile_n), tile_n);
  else
    return PlainColumns<Config::BN>(p, tile_n);
}

// One tile of the result, and one split of its sums.
template <class Config, class P>
__device__ __forceinline__ void contract_tile(const P& p, unsigned block, int split, int splits,
                                              unsigned char* shared) {
  const Index rows = p.rows(), depth = p.depth();
  const TilePlace tile = tile_place(block, static_cast<unsigned>((rows - 1) / Config::BM + 1),
                                    static_cast<unsigned>(column_tiles<Config>(p)));
  const Index m0 = tile.m * Config::BM;

  const Index tiles = depth / Config::BK + (depth % Config::BK != 0), share = tiles / splits + (tiles % splits != 0);
  const Index first = share * split < tiles ? share * split : tiles;
  const Index last = tiles - first > share ? first + share : tiles;

  typename Config::Sums sums;
  Config::multiply(p, tile.z, m0, tile.n * Config::BN, first == tiles ? depth : first * Config::BK,
                   last == tiles ? depth : last * Config::BK, shared, sums);

  const auto columns = columns_of<Config>(p, tile.n);
  accum* staged = reinterpret_cast<accum*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int pass = 0; pass < Config::passes; ++pass) {
    __syncthreads();
    Config::expose(sums, pass, staged);
    __syncthreads();
#pragma unroll 1
    for (int r = warp; r < Config::pass_rows; r += Config::threads / 32) {
      const int row = Config::row_of(pass, r);
      if (row < rows - m0) finish_row<Config>(p, tile.z, m0 + row, columns, split, staged + r * Config::pass_stride);
    }
  }
}

template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    contract_kernel(const __grid_constant__ P p, int splits) {
  follow();
  extern __shared__ __align__(16) unsigned char contract_shared[];
  contract_tile<Config>(p, blockIdx.x, static_cast<int>(blockIdx.y), splits, contract_shared);
}

#ifndef __CUDACC_RTC__
// Kernels that this thread has asked for already. Static, and not in a template: a process has such only once for all
// libraries, and kernels of the same name in each.
static thread_local struct { const void* kernel; int device; } allowed[64];
static thread_local int allowed_count = 0;

// A block gets more than 48 KB only where its kernel was allowed to ask.
template <class Kernel>
cudaError_t allow_shared(Kernel* kernel, int bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  const void* const address = reinterpret_cast<const void*>(kernel);
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  for (int i = 0; i < allowed_count; ++i)
    if (allowed[i].kernel == address && allowed[i].device == device) return error;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && allowed_count < 64) allowed[allowed_count++] = {address, device};
  return error;
}

// Launches nothing where D is empty. cudaErrorInvalidValue: too many tiles, or statistics or a tail of split (partial) sums.
template <class Config, class P>
cudaError_t launch_contract(const P& p, int splits, cudaStream_t stream) {
  const int64_t tiles_m = (static_cast<int64_t>(p.rows()) + Config::BM - 1) / Config::BM;
  const int64_t tiles_n = column_tiles<Config>(p);
  const int64_t batches = p.batches(), most = 0x7fffffff;
  if (batches == 0 || tiles_m == 0 || tiles_n == 0) return cudaSuccess;
  if (tiles_m > most / tiles_n || batches > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  if (splits < 1 || splits > 65535 || ((P::statistics || TailOf<P>::there) && splits > 1)) return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(contract_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const dim3 grid(static_cast<unsigned>(batches * tiles_m * tiles_n), static_cast<unsigned>(splits));
  return cudaLaunchKernelEx(After(grid, Config::threads, Config::shared_bytes, stream), contract_kernel<Config, P>, p, splits);
}
#endif

}  // namespace crucible

// Convolutions on tensor cores (mma.sync, compute capability 8.0 and later): a window slides over an input.
//
// A block computes BM output channels of one box of output pixels, 256 at most. The input under the box, its halo, is
// brought to shared memory chunk by chunk of channels, each element once, rounded on the way; a tap of the window is then
// an offset into the halo. Shared memory holds 32-bit words: a tf32 number, or two half or bfloat16 numbers of
// neighbouring channels. A row of the halo is one word of channels, PITCH = 8 modulo 32 words long, so that a fragment
// (four rows, eight pixels) lies in 32 banks wherever the tap puts it.
// Weights are packed beforehand by pack_kernel into the order in which fragments want them, so that they arrive by
// 16-byte asynchronous copies and leave by 16-byte loads.
// An input of float that is memory as it is comes by asynchronous copies, two chunks ahead; while one chunk is multiplied,
// the words of the next are rounded where they lie. Any other input passes through registers: while one step (8 words of
// channels, one tap) is multiplied, words of the next chunk are on their way, and a step or two later they are stored.
// Steps are unrolled, so that offsets are constants.
// Per step a warp loads MT * 512 + NT * 256 bytes and issues MT * NT mma.
//
// Grades Tf32 and Native: see contract_mma.cuh. Sums stay in the tensor cores' registers: what they cut is far below
// what the rounding of operands costs.

namespace crucible {

template <int BM_, int CK, Grade grade_>
struct Window {
  static constexpr Grade grade = grade_;
  static constexpr int BM = BM_, BN = 256, WN = 64, NT = WN / 8, MT = BM / 16, WARPS = BN / WN, threads = WARPS * 32;
  static constexpr int PER_WORD = grade == Grade::Native ? 2 : 1, CHANNELS = CK * PER_WORD;  // of a chunk
  static constexpr int passes = MT, pass_rows = 16, pass_stride = BN + 8;
  static constexpr int STEP_WORDS = BM * 8;  // of weights, for one step
  static_assert(CK % 8 == 0 && BM % 16 == 0, "fragments are 16 x 8 words");

  struct Sums {
    float at[MT][NT][4];
  };
  static __device__ __forceinline__ int row_of(int pass, int r) { return pass * 16 + r; }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  static __device__ __forceinline__ void expose(const Sums& sums, int pass, accum* rows) {
    accum* to = rows + lane() / 4 * pass_stride + warp() * WN + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < MT; ++i)
      if (i == pass) {
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float2*>(to + h * 8 * pass_stride + j * 8) =
                make_float2(sums.at[i][j][2 * h], sums.at[i][j][2 * h + 1]);
      }
  }
};

// What follows from the window's form.
template <class W, class P>
struct WindowSizes {
  using Halo = HaloOf<P>;
  static constexpr int TAPS = P::Kernel::product, CK = W::CHANNELS / W::PER_WORD;
  static constexpr int STEPS = CK / 8 * TAPS, GROUP = STEPS <= 10 ? STEPS : 9;  // steps between two barriers
  static constexpr int UNROLL = STEPS <= 32 ? STEPS : 1;
  static constexpr int SLOTS = (Halo::product + W::threads - 1) / W::threads;  // halo pixels of one thread
  static constexpr int PITCH = SLOTS * W::threads + 8;                         // past the halo there are zeros
  static constexpr int EACH = (CK + STEPS - 1) / STEPS;                        // words that a slot brings in one step
  // Steps between asking for words and storing them, as registers permit.
  static constexpr int LAG = UNROLL == 1 ? 0 : SLOTS * EACH * W::PER_WORD <= 4 ? 2 : 1;
  static constexpr bool ASYNC = P::b_direct && W::grade == Grade::Tf32;
  static constexpr int B_WORDS = CK * PITCH, A_WORDS = GROUP * W::STEP_WORDS, BUFFERS = ASYNC ? 3 : 2;
  static constexpr int panels = (2 * A_WORDS + BUFFERS * B_WORDS) * 4;
  static constexpr int staged = W::pass_rows * W::pass_stride * 4;
  static constexpr int shared_bytes = panels > staged ? panels : staged;
};

__host__ __device__ constexpr Index window_chunks(Index channels, int of) { return (channels + of - 1) / of; }

// Words of packed weights: (group, tile of rows, chunk, step, 16 rows, lane, 4 words of a fragment).
template <class W, class P>
__host__ __device__ int64_t packed_words(const P& p) {
  const int64_t tiles = (p.rows() + W::BM - 1) / W::BM;
  return p.groups() * tiles * window_chunks(p.channels(), W::CHANNELS) * WindowSizes<W, P>::STEPS * W::STEP_WORDS;
}

template <class W, class P>
__global__ void __launch_bounds__(256) pack_kernel(const __grid_constant__ P p, unsigned* __restrict__ packed) {
  follow();
#if CRUCIBLE_HAS_MMA
  using S = WindowSizes<W, P>;
  const int64_t count = packed_words<W>(p);
  for (int64_t i = blockIdx.x * int64_t(256) + threadIdx.x; i < count; i += int64_t(gridDim.x) * 256) {
    const int part = static_cast<int>(i % 4), lane = static_cast<int>(i / 4 % 32);
    Index rest = static_cast<Index>(i / 128);
    const int block = static_cast<int>(rest % W::MT);
    rest /= W::MT;
    const int step = static_cast<int>(rest % S::STEPS);
    rest /= S::STEPS;
    const Index chunks = window_chunks(p.channels(), W::CHANNELS), chunk = rest % chunks;
    rest /= chunks;
    const Index tiles = (p.rows() + W::BM - 1) / W::BM, m = rest % tiles * W::BM + block * 16 + lane / 4 + part % 2 * 8;
    const Index group = rest / tiles;
    const Index channel = chunk * W::CHANNELS + (step / S::TAPS * 8 + lane % 4 + part / 2 * 4) * W::PER_WORD;
    const int tap = P::flipped ? S::TAPS - 1 - step % S::TAPS : step % S::TAPS;
    float value[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < W::PER_WORD; ++e)
      if (m < p.rows() && channel + e < p.channels()) value[e] = p.a(p.a_row(group, m), (channel + e) * S::TAPS + tap);
    if constexpr (W::grade == Grade::Native)
      packed[i] = pack(value[0], value[1]);
    else
      packed[i] = round_tf32(value[0]);
  }
#endif
}

template <class W, class P>
struct WindowBlock {
#if CRUCIBLE_HAS_MMA
  using S = WindowSizes<W, P>;
  const P& p;
  unsigned char* shared;    // weights, twice; then halos
  const unsigned* weights;  // of this group and tile of rows
  Index channels;
  int a_now, a_next, b_now, b_next, b_after;  // bytes from `shared`
  Taps<P> taps;
  int off[W::NT];                    // bytes to this lane's pixels in a halo
  typename P::BAt at[S::SLOTS];      // of this thread's pixels of the halo
  float values[S::LAG + 1][S::SLOTS][S::EACH][W::PER_WORD];

  static __device__ __forceinline__ int halo(int slot) { return static_cast<int>(threadIdx.x) + slot * W::threads; }

  // Words first .. first + N - 1 of a chunk's channels, for all this thread's pixels. What is not there is loaded from
  // somewhere near and becomes zero when it is put away: the loads must not wait for anything.
  template <int N>
  __device__ __forceinline__ void fetch(float (&v)[S::SLOTS][N][W::PER_WORD], int first, Index chunk) const {
#pragma unroll
    for (int e = 0; e < N; ++e)
#pragma unroll
      for (int k = 0; k < W::PER_WORD; ++k) {
        const Index channel = chunk * W::CHANNELS + (first + e) * W::PER_WORD + k;
#pragma unroll
        for (int i = 0; i < S::SLOTS; ++i) v[i][e][k] = p.b_in(at[i], channel < channels ? channel : channels - 1);
        if constexpr (P::b_direct) {
          // The chunk after that comes closer meanwhile.
          const Index later = channel + W::CHANNELS < channels ? channel + W::CHANNELS : channels - 1;
#pragma unroll
          for (int i = 0; i < S::SLOTS; ++i) prefetch(p.b_from(at[i], later));
        }
      }
  }
  template <int N>
  __device__ __forceinline__ void put(const float (&v)[S::SLOTS][N][W::PER_WORD], int first, Index chunk, int panel) const {
    unsigned* to = reinterpret_cast<unsigned*>(shared + panel);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const Index channel = chunk * W::CHANNELS + (first + e) * W::PER_WORD;
#pragma unroll
      for (int i = 0; i < S::SLOTS; ++i) {
        float kept[2] = {0, 0};
#pragma unroll
        for (int k = 0; k < W::PER_WORD; ++k) kept[k] = at[i].inside && channel + k < channels ? v[i][e][k] : 0.0f;
        unsigned word;
        if constexpr (W::grade == Grade::Native)
          word = pack(kept[0], kept[1]);
        else
          word = round_tf32(kept[0]);
        if (first + e < S::CK) to[(first + e) * S::PITCH + halo(i)] = word;
      }
    }
  }

  // The same by asynchronous copies, and what is left to do where they have come to.
  __device__ __forceinline__ void copy_halo(int panel, Index chunk) const {
    unsigned* to = reinterpret_cast<unsigned*>(shared + panel);
#pragma unroll
    for (int w = 0; w < S::CK; ++w) {
      const Index channel = chunk * W::CHANNELS + w, near = channel < channels ? channel : channels - 1;
#pragma unroll
      for (int i = 0; i < S::SLOTS; ++i)
        copy_async(to + w * S::PITCH + halo(i), p.b_from(at[i], near), at[i].inside && channel < channels);
    }
    commit_copies();
  }
  __device__ __forceinline__ void round_halo(int panel, int first, int count) const {
    float* at = reinterpret_cast<float*>(shared + panel);
#pragma unroll
    for (int w = first; w < first + count; ++w)
#pragma unroll
      for (int i = 0; i < S::SLOTS; ++i)
        if (w < S::CK) {
          float& word = at[w * S::PITCH + halo(i)];
          word = __uint_as_float(round_tf32(word));
        }
  }

  // Copies of the weights of `count` steps, from step `first` on.
  __device__ __forceinline__ void copy_weights(int panel, int64_t first, int count) const {
    const unsigned* from = weights + first * W::STEP_WORDS;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) * 4; i < count * W::STEP_WORDS; i += W::threads * 4)
      copy_async(shared + panel + i * 4, from + i);
    commit_copies();
  }

  __device__ __forceinline__ void step(typename W::Sums& sums, int s) const {
    const unsigned char* a = shared + a_now + s % S::GROUP * W::STEP_WORDS * 4;
    const int place = (s / S::TAPS * 8 * S::PITCH + tap_offset<P>(s % S::TAPS)) * 4;
    unsigned f[W::MT][4], g[W::NT][2];
#pragma unroll
    for (int i = 0; i < W::MT; ++i) {
      const uint4 v = *reinterpret_cast<const uint4*>(a + (i * 32 + W::lane()) * 16);
      f[i][0] = v.x, f[i][1] = v.y, f[i][2] = v.z, f[i][3] = v.w;
    }
#pragma unroll
    for (int j = 0; j < W::NT; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        g[j][h] = *reinterpret_cast<const unsigned*>(shared + (b_now + off[j]) + (place + h * 16 * S::PITCH));
#pragma unroll
    for (int j = 0; j < W::NT; ++j)
#pragma unroll
      for (int i = 0; i < W::MT; ++i) mma<W::grade>(sums.at[i][j], f[i], g[j][0], g[j][1]);
  }

  // At the first step of a group: its weights are there, and the next group's are asked for.
  template <bool MORE>
  __device__ __forceinline__ void turn(int s, int chunk, int chunks) {
    if (s > 0) swap(a_now, a_next);
    wait_copies();
    __syncthreads();
    if (S::ASYNC && s == 0 && chunk + 2 < chunks) copy_halo(b_after, chunk + 2);
    const int next = s + S::GROUP;
    if (next < S::STEPS)
      copy_weights(a_next, int64_t(chunk) * S::STEPS + next, S::STEPS - next < S::GROUP ? S::STEPS - next : S::GROUP);
    else if (MORE)
      copy_weights(a_next, int64_t(chunk + 1) * S::STEPS, S::GROUP);
  }

  // MORE: another chunk follows and is fetched. WORK: this warp has pixels.
  template <bool MORE, bool WORK>
  __device__ __forceinline__ void chunk(typename W::Sums& sums, int number, int chunks) {
    constexpr int LAG = WORK ? S::LAG : 0;
#pragma unroll(WORK ? S::UNROLL : 1)
    for (int s = 0; s < S::STEPS; ++s) {
      if (s % S::GROUP == 0) turn<MORE>(s, number, chunks);
      if constexpr (MORE && !S::ASYNC) {
        if (s * S::EACH < S::CK) fetch(values[s % (LAG + 1)], s * S::EACH, number + 1);
      }
      if (WORK && taps.has(s % S::TAPS)) step(sums, s);
      if constexpr (MORE && S::ASYNC) {
        if (s * S::EACH < S::CK) round_halo(b_next, s * S::EACH, S::EACH);
      } else if constexpr (MORE) {
        if (s >= LAG && (s - LAG) * S::EACH < S::CK)
          put(values[(s - LAG) % (LAG + 1)], (s - LAG) * S::EACH, number + 1, b_next);
      }
    }
    if constexpr (MORE && WORK && !S::ASYNC) {
#pragma unroll
      for (int s = S::STEPS > S::LAG ? S::STEPS - S::LAG : 0; s < S::STEPS; ++s)
        if (s * S::EACH < S::CK) put(values[s % (S::LAG + 1)], s * S::EACH, number + 1, b_next);
    }
    swap(a_now, a_next);
    swap(b_now, b_next);
    if (S::ASYNC) swap(b_next, b_after);
  }

  static __device__ __forceinline__ void swap(int& x, int& y) {
    const int was = x;
    x = y;
    y = was;
  }

  template <bool WORK>
  __device__ __forceinline__ void multiply(typename W::Sums& sums) {
    const int chunks = static_cast<int>(window_chunks(channels, W::CHANNELS));
    copy_weights(a_now, 0, S::GROUP);
    if constexpr (S::ASYNC) {
      copy_halo(b_now, 0);
      if (chunks > 1) copy_halo(b_next, 1);
      wait_copies();
      round_halo(b_now, 0, S::CK);
    } else {
#pragma unroll 1
      for (int first = 0; first < S::CK; first += 4) {
        float start[S::SLOTS][4][W::PER_WORD];
        fetch(start, first, 0);
        put(start, first, 0, b_now);
      }
    }
#pragma unroll 1
    for (int number = 0; number + 1 < chunks; ++number) chunk<true, WORK>(sums, number, chunks);
    chunk<false, WORK>(sums, chunks - 1, chunks);
  }
#endif
};

#if CRUCIBLE_HAS_MMA
// A block's tile: rows first, then boxes, then batches.
template <class W, class P>
__device__ __forceinline__ void window_tile(const P& p, const unsigned* __restrict__ packed, unsigned number, unsigned char* shared) {
  using S = WindowSizes<W, P>;
  const Index tiles = (p.rows() + W::BM - 1) / W::BM, boxes = box_count(p);
  const Index tile_m = static_cast<Index>(number % unsigned(tiles)), rest = static_cast<Index>(number / unsigned(tiles));
  const Index box = rest % boxes, z = rest / boxes;
  const BoxPlace<P> place(p, box);

  const int64_t step_count = window_chunks(p.channels(), W::CHANNELS) * int64_t(S::STEPS);
  WindowBlock<W, P> block{p, shared, packed + (z % p.groups() * tiles + tile_m) * step_count * W::STEP_WORDS,
                          p.channels(), 0, S::A_WORDS * 4, 2 * S::A_WORDS * 4, (2 * S::A_WORDS + S::B_WORDS) * 4,
                          (2 * S::A_WORDS + 2 * S::B_WORDS) * 4, Taps<P>(p, z % p.groups())};
#pragma unroll
  for (int i = 0; i < S::SLOTS; ++i) {
    const int h = block.halo(i);
    block.at[i] = place.halo(p, z, h < S::Halo::product ? h : 0);
    block.at[i].inside &= h < S::Halo::product;
  }
#pragma unroll
  for (int j = 0; j < W::NT; ++j)
    block.off[j] = (halo_offset<P>(W::warp() * W::WN + j * 8 + W::lane() / 4) + W::lane() % 4 * S::PITCH) * 4;

  typename W::Sums sums = {};
  if (W::warp() * W::WN < place.reach())
    block.template multiply<true>(sums);
  else
    block.template multiply<false>(sums);

  const BoxColumns<P, W::BN> columns(p, place, box);
  accum* staged = reinterpret_cast<accum*>(shared);
#pragma unroll 1
  for (int pass = 0; pass < W::passes; ++pass) {
    __syncthreads();
    W::expose(sums, pass, staged);
    __syncthreads();
#pragma unroll 1
    for (int r = W::warp(); r < W::pass_rows; r += W::WARPS) {
      const Index m = tile_m * W::BM + W::row_of(pass, r);
      if (m < p.rows()) finish_row<W>(p, z, m, columns, 0, staged + r * W::pass_stride);
    }
  }
}
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 2)
    window_kernel(const __grid_constant__ P p, const unsigned* __restrict__ packed) {
  follow();
  extern __shared__ __align__(16) unsigned char window_shared[];
#if CRUCIBLE_HAS_MMA
  window_tile<W>(p, packed, blockIdx.x, window_shared);
#endif
}

#ifndef __CUDACC_RTC__
template <class W, class P>
cudaError_t launch_window(const P& p, unsigned* packed, cudaStream_t stream) {
  using S = WindowSizes<W, P>;
  const int64_t tiles = (static_cast<int64_t>(p.rows()) + W::BM - 1) / W::BM, boxes = box_count(p), batches = p.batches();
  const int64_t blocks = tiles * boxes * batches, words = packed_words<W>(p);
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  const int64_t packers = (words + 1023) / 1024;
  cudaError_t refused = cudaLaunchKernelEx(After(static_cast<unsigned>(packers < 4096 ? packers : 4096), 256, 0, stream),
                                           pack_kernel<W, P>, p, packed);
  if (refused != cudaSuccess) return refused;
  refused = allow_shared(window_kernel<W, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, S::shared_bytes, stream), window_kernel<W, P>, p, packed);
}
#endif

}  // namespace crucible

// What is done with sums where Hopper's matrix instructions leave them: in registers.
//
// A warp has 16 rows of sums; in each eight columns a lane has two neighbours of row lane / 4 and two of the row eight
// below. They are finished there, stored two at a time, and statistics are joined by the four lanes of a row. The four
// lanes' elements are a sector of memory (32 bytes of float), but rows begin anywhere: where a row's sectors begin in the
// middle of a block of eight columns, the lanes behind that middle take the block before, so that each store of a warp
// fills whole sectors.

namespace crucible {

// Where `finish_to` puts its element: in memory, or into a register until its neighbour is there too.
struct StoreOne {
  bool there;
  template <class T>
  __device__ __forceinline__ void operator()(T* at, T value) const {
    if (there) *at = value;
  }
};

#if CRUCIBLE_HOPPER
#if CRUCIBLE_WIDE
// One store, and said to be one: at an address from 64-bit numbers the compiler makes two of it, each of half sectors.
template <class T>
__device__ __forceinline__ void store_two(T* at, T first, T second) {
  if constexpr (sizeof(T) == 4) {
    __stwb(reinterpret_cast<float2*>(at), make_float2(first, second));
  } else if constexpr (sizeof(T) == 2) {
    const T two[2] = {first, second};
    unsigned word;
    memcpy(&word, two, sizeof(word));
    __stwb(reinterpret_cast<unsigned*>(at), word);
  } else {
    __stwb(reinterpret_cast<double2*>(at), make_double2(first, second));
  }
}
#else
template <class T>
__device__ __forceinline__ void store_two(T* at, T first, T second) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(at) = make_float2(first, second);
  } else {
    struct alignas(2 * sizeof(T)) Two { T a, b; };
    *reinterpret_cast<Two*>(at) = Two{first, second};
  }
}
#endif
struct StoreNext {
  scalar* at;
  scalar value;
  __device__ __forceinline__ void operator()(scalar* to, scalar x) { at = to, value = x; }
};
struct StoreTwo {
  const StoreNext& first;
  bool both, alone;  // alone: without the second
  __device__ __forceinline__ void operator()(scalar*, scalar second) const {
    // Two conditions instead of a branch, beside which nothing else could be done.
    if (both) store_two(first.at, first.value, second);
    if (alone) *first.at = first.value;
  }
};

// An element: its column, and its place for functors that know elements so.
struct Spot {
  Index n, at[4];
};
template <class P, class To>
__device__ __forceinline__ accum finish_spot(const P& p, Index z, Index m, const Spot& spot, accum value, To& to) {
  if constexpr (PhasedOf<P>::phased)
    return p.finish_at_to(z, m, spot.at[0], spot.at[1], spot.at[2], spot.at[3], 0, value, to);
  else
    return p.finish_to(z, m, spot.n, 0, value, to);
}
template <class P>
__device__ __forceinline__ bool spot_exists(const P& p, Index z, Index m, const Spot& spot) {
  if constexpr (RaggedOf<P>::ragged) return p.exists_at(z, m, spot.at[0], spot.at[1], spot.at[2], spot.at[3]);
  return true;
}

// Two neighbours, finished and stored: the first where `stored`, the second where `both`.
template <bool PAIRS, class P>
__device__ __forceinline__ void finish_two(const P& p, Index z, Index m, const Spot (&spots)[2], bool stored, bool both, accum (&two)[2]) {
  if constexpr (PAIRS) {
    StoreNext left;
    two[0] = finish_spot(p, z, m, spots[0], two[0], left);
    StoreTwo right{left, both, stored && !both};
    two[1] = finish_spot(p, z, m, spots[1], two[1], right);
  } else {
    StoreOne left{stored}, right{both};
    two[0] = finish_spot(p, z, m, spots[0], two[0], left);
    two[1] = finish_spot(p, z, m, spots[1], two[1], right);
  }
}

// Statistics of a row's elements, by four lanes: deviations from what is near their mean (near_mean). Where some may not
// exist, each lane has an element of its own instead, and the lanes' results are joined.
template <bool RAGGED>
struct RowStatistics {
  accum near = 0, off[2] = {0, 0}, squares[2] = {0, 0};
  int found = 0;
  // Before the first: two elements, where they are there, of which one at least of the four lanes has one.
  __device__ __forceinline__ void begin(const accum (&two)[2], bool first, bool second) {
    near = near_mean<4>((first ? two[0] : accum(0)) + (second ? two[1] : accum(0)), first + second);
  }
  __device__ __forceinline__ void take(int which, accum x, bool there) {
    if (RAGGED && there && found == 0) near = x;
    const accum d = there ? x - near : accum(0);
    off[which] += d;
    squares[which] = fma(d, d, squares[which]);
    if (RAGGED) found += there;
  }
  template <class P>
  __device__ __forceinline__ void sink(const P& p, Index z, Index m, bool there, Index tile, int count) {
    accum sum = off[0] + off[1], both = squares[0] + squares[1], mean = near, size = static_cast<accum>(count);
    if (RAGGED) {
      size = static_cast<accum>(found);
      const accum by = found > 0 ? sum / size : accum(0);
      mean += by, both -= sum * by;
    }
#pragma unroll
    for (int by = 1; by < 4; by *= 2) {
      const accum other_sum = __shfl_xor_sync(0xffffffffu, sum, by), other_both = __shfl_xor_sync(0xffffffffu, both, by);
      if (RAGGED) {
        const accum other = __shfl_xor_sync(0xffffffffu, size, by), d = __shfl_xor_sync(0xffffffffu, mean, by) - mean;
        const accum part = other > 0 ? other / (size + other) : accum(0);
        both += other_both + (part > 0 ? d * d * size * part : accum(0));
        mean += part > 0 ? d * part : accum(0), size += other;
      } else {
        sum += other_sum, both += other_both;
      }
    }
    if (!there || threadIdx.x % 4 != 0) return;
    if (!RAGGED && count > 0) mean += sum / size, both -= sum * (sum / size);
    if (size > 0)
      p.sink(z, m, tile, size, mean, both < 0 ? accum(0) : both);
    else
      p.sink(z, m, tile, 0, 0, 0);  // others have them all
  }
};

// One warp's rows of WIDTH columns of a line, from column `base` on, from eight columns more: of those that exist, `there`,
// a line that has a neighbour before it leaves that one the elements before its first sector, and so takes those that
// follow its last. WHOLE: all exist. PAIRS: two neighbours of a lane may be stored as one.
template <int WIDTH, bool WHOLE, bool PAIRS, class P, int COUNT>
__device__ __forceinline__ void finish_fragments(const P& p, Index z, Index first, Index tile, Index base, const Index (&place)[4],
                                                 bool neighbour, int there, float (&sums)[COUNT]) {
  constexpr bool RAGGED = RaggedOf<P>::ragged;
  constexpr int BLOCKS = WIDTH / 8 + 1;
  static_assert(COUNT == BLOCKS * 4 && (!P::statistics || P::group == 0), "eight columns more, and statistics of all");
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const Index rows = p.rows();
  // The second row's sums take the first one's registers, so that both are finished by the same code: it is long.
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const Index row = first + h * 8 + lane / 4, m = row < rows ? row : rows - 1;
    const int odd = static_cast<int>(p.stored(z, m, base) % 8), whole = (8 - odd) % 8;
    const int begin = neighbour ? whole : 0, end = WHOLE || WIDTH + whole < there ? WIDTH + whole : there;
    const bool turn = PAIRS && quad * 2 + odd >= 8;
    const int at = quad * 2 - (turn ? 8 : 0), rest = end - at;
#if CRUCIBLE_WIDE
    const Index from = base + at;  // added up once, as it takes two registers: elements are a constant further on
#endif
    RowStatistics<RAGGED> statistics;
    accum ahead[2] = {};
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
      // Where the line is whole, all blocks between the first and the last are its own; none but the first begins before it.
      const bool sure = WHOLE && i > 0 && i + 1 < BLOCKS;
      bool own[2];
      Spot spots[2];
      accum two[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int o = at + i * 8 + e;
        own[e] = sure || (rest > i * 8 + e && (i > 0 || o >= begin));
#if CRUCIBLE_WIDE
        spots[e] = {P::reads && !own[e] ? Index(0) : from + (i * 8 + e), {place[0], place[1], place[2], place[3] + (own[e] ? o : 0)}};
#else
        spots[e] = {P::reads && !own[e] ? Index(0) : base + o, {place[0], place[1], place[2], place[3] + (own[e] ? o : 0)}};
#endif
        two[e] = turn ? sums[(i > 0 ? i - 1 : 0) * 4 + e] : sums[i * 4 + e];
      }
      finish_two<PAIRS>(p, z, m, spots, row < rows && own[0], row < rows && own[1], two);
      if constexpr (P::statistics && RAGGED) {
#pragma unroll
        for (int e = 0; e < 2; ++e) statistics.take(e, two[e], own[e] && spot_exists(p, z, m, spots[e]));
      } else if constexpr (P::statistics) {
        // The row has an element in one of the first two blocks: where it is long, the second is all its own.
        if (i == 0) {
          ahead[0] = two[0], ahead[1] = two[1];
        } else {
          if (i == 1) {
            const bool one = rest > 0 && at >= begin, other = rest > 1 && at + 1 >= begin;
            const accum some[2] = {own[0] ? two[0] : ahead[0], own[1] ? two[1] : ahead[1]};
            statistics.begin(some, own[0] || one, own[1] || other);
#pragma unroll
            for (int e = 0; e < 2; ++e) statistics.take(e, ahead[e], rest > e && at + e >= begin);
          }
#pragma unroll
          for (int e = 0; e < 2; ++e) statistics.take(e, two[e], own[e]);
        }
      }
    }
    if constexpr (P::statistics) statistics.sink(p, z, row, row < rows, tile, end - begin);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) sums[i] = sums[i + 2], sums[i + 1] = sums[i + 3];
  }
}

template <int WIDTH, class P, int COUNT>
__device__ __forceinline__ void finish_line(const P& p, Index z, Index first, Index tile, Index base, const Index (&place)[4],
                                            bool neighbour, int there, float (&sums)[COUNT]) {
  bool even = P::in_pairs;
#pragma unroll
  for (int h = 0; h < 2 && P::in_pairs; ++h) {
    const Index row = first + h * 8 + static_cast<int>(threadIdx.x) % 32 / 4, m = row < p.rows() ? row : p.rows() - 1;
    even = even && p.stored(z, m, base) % 2 == 0;
  }
  if (!P::in_pairs || !__all_sync(0xffffffffu, even))
    finish_fragments<WIDTH, false, false>(p, z, first, tile, base, place, neighbour, there, sums);
  else if (there < WIDTH + 8)
    finish_fragments<WIDTH, false, P::in_pairs>(p, z, first, tile, base, place, neighbour, there, sums);
  else
    finish_fragments<WIDTH, true, P::in_pairs>(p, z, first, tile, base, place, neighbour, there, sums);
}


// The sums of a box, as many columns apart from row to row as the halo under it is wide. Whether they can be finished in
// registers: a block of eight columns is of two rows at most, and where windows are pooled, neighbours in one are in one lane.
template <class Halo, class P>
__host__ __device__ constexpr bool fragmentary() {
  return Halo::at(3) >= 8 && (!PoolOf<P>::pooled || (Halo::at(3) % 2 == 0 && PoolOf<P>::Window::at(3) == 2));
}

// A row of the halo, by its number: where its first pixel is stored, from the box's first, and which of its pixels are the box's.
template <class Halo, bool WHOLE, class P>
struct BoxRow {
  int at[3];
  __device__ __forceinline__ explicit BoxRow(int number)
      : at{number / (Halo::at(1) * Halo::at(2)), number / Halo::at(2) % Halo::at(1), number % Halo::at(2)} {}
  __device__ __forceinline__ constexpr bool inside() const {
    return at[0] < P::Box::at(0) && at[1] < P::Box::at(1) && at[2] < P::Box::at(2);
  }
  __device__ __forceinline__ Index first(const P& p) const {
    return ((at[0] * p.extent(1) + at[1]) * p.extent(2) + at[2]) * p.extent(3);
  }
  __device__ __forceinline__ int count(const BoxPlace<P>& place) const {
    if (!inside()) return 0;
    return WHOLE ? P::Box::at(3) : at[0] < place.there[0] && at[1] < place.there[1] && at[2] < place.there[2] ? place.there[3] : 0;
  }
};

// The sum that lies so many columns behind a lane's own of block i, element e: in another lane of the four, where that is
// no multiple of eight.
template <int COUNT>
__device__ __forceinline__ float sum_behind(const float (&sums)[COUNT], int i, int columns, int e) {
  constexpr int LAST = COUNT / 4 - 1;
  const int block = i + columns / 8, next = block < LAST ? block + 1 : LAST, by = columns % 8 / 2;
  if (by == 0) return sums[block * 4 + e];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float mine = lane % 4 < by ? sums[next * 4 + e] : sums[(block < LAST ? block : LAST) * 4 + e];
  return __shfl_sync(0xffffffffu, mine, lane / 4 * 4 + (lane + by) % 4);
}

// The windows of one row's sums: two neighbours of a lane, and what lies below them.
template <class Halo, bool WHOLE, class P, int COUNT>
__device__ __forceinline__ void pool_fragments(const P& p, Index z, Index m, bool there, const BoxPlace<P>& place, Index base,
                                               const float (&sums)[COUNT]) {
  using Window = typename PoolOf<P>::Window;
  using Row = BoxRow<Halo, WHOLE, P>;
  constexpr int WIDE = Halo::at(3);
  Index pools = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) pools = pools * (p.extent(d) / Window::at(d)) + place.first[d] / Window::at(d);
#pragma unroll
  for (int i = 0; i < COUNT / 4; ++i)
    // The row in which the block begins, and the one that begins in it.
#pragma unroll
    for (int number = i * 8 / WIDE; number * WIDE < i * 8 + 8; ++number) {
      const Row row(number);
      const int x = i * 8 - number * WIDE;
      if (!row.inside() || x >= P::Box::at(3)) continue;
      if (row.at[0] % Window::at(0) != 0 || row.at[1] % Window::at(1) != 0 || row.at[2] % Window::at(2) != 0) continue;
      const int pixel = x + static_cast<int>(threadIdx.x) % 4 * 2;
      // The window's last pixel exists.
      bool whole = there && pixel >= 0 && pixel + 1 < (WHOLE ? P::Box::at(3) : place.there[3]);
      if (!WHOLE)
#pragma unroll
        for (int d = 0; d < 3; ++d) whole = whole && row.at[d] + Window::at(d) <= place.there[d];
      typename P::Pooling pool;
#pragma unroll
      for (int k = 0; k < Window::product; ++k) {
        const int down = (Window::index(k, 0) * Halo::at(1) + Window::index(k, 1)) * Halo::at(2) + Window::index(k, 2);
        const Index n = base + Row(number + down).first(p) + pixel + Window::index(k, 3);
        pool.step(p.pool_in(z, m, P::reads && !whole ? Index(0) : n, sum_behind(sums, i, down * WIDE, Window::index(k, 3))));
      }
      Index to = 0;
#pragma unroll
      for (int d = 0; d < 3; ++d) to = to * (p.extent(d) / Window::at(d)) + row.at[d] / Window::at(d);
      if (whole) p.pool_out(z, m, pools + to * (p.extent(3) / Window::at(3)) + pixel / Window::at(3), pool);
    }
}

// One warp's rows of a box. Names as above.
template <class Halo, bool WHOLE, bool PAIRS, class P, int COUNT>
__device__ __forceinline__ void finish_fragments(const P& p, Index z, Index first, Index tile, const BoxPlace<P>& place, Index base,
                                                 float (&sums)[COUNT]) {
  using Row = BoxRow<Halo, WHOLE, P>;
  constexpr int WIDE = Halo::at(3);
  static_assert(fragmentary<Halo, P>() && (!P::statistics || P::group == 0), "statistics are of all columns");
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const Index rows = p.rows();
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const Index row = first + h * 8 + lane / 4, m = row < rows ? row : rows - 1;
#if CRUCIBLE_WIDE
    const Index from = base + quad * 2;  // as above
#endif
    RowStatistics<RaggedOf<P>::ragged> statistics;
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) {
      // The block begins at pixel `x` of row `number`, and with its pixel `turn` the next row does.
      const int number = i * 8 / WIDE, x = i * 8 % WIDE, turn = WIDE - x;
      const Row here(number), below(number + 1);
      const bool begun = here.inside() && x < P::Box::at(3), next = turn < 8 && below.inside();
      if (!begun && !next) continue;
      bool own[2];
      Spot spots[2];
      accum two[2] = {sums[i * 4], sums[i * 4 + 1]};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = quad * 2 + e;
        const bool other = next && c >= turn;
        const int pixel = other ? c - turn : c + x, count = other ? below.count(place) : here.count(place);
        const bool sure = WHOLE && begun && x + 8 <= P::Box::at(3);
        own[e] = sure || pixel < count;
#if CRUCIBLE_WIDE
        spots[e].n = P::reads && !own[e] ? Index(0) : from + (other ? below.first(p) - turn : here.first(p) + x) + e;
#else
        spots[e].n = P::reads && !own[e] ? Index(0) : base + (other ? below.first(p) : here.first(p)) + pixel;
#endif
#pragma unroll
        for (int d = 0; d < 4; ++d)
          spots[e].at[d] = place.first[d] + (!own[e] ? 0 : d == 3 ? pixel : other ? below.at[d == 3 ? 0 : d] : here.at[d == 3 ? 0 : d]);
      }
      finish_two<PAIRS>(p, z, m, spots, row < rows && own[0], row < rows && own[1], two);
      if constexpr (P::statistics) {
        if (!RaggedOf<P>::ragged && i == 0) statistics.begin(two, own[0], own[1]);
#pragma unroll
        for (int e = 0; e < 2; ++e) statistics.take(e, two[e], own[e] && spot_exists(p, z, m, spots[e]));
      }
    }
    if constexpr (P::statistics) statistics.sink(p, z, row, row < rows, tile, WHOLE ? P::Box::product : place.count());
    if constexpr (PoolOf<P>::pooled) pool_fragments<Halo, WHOLE>(p, z, m, row < rows, place, base, sums);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) sums[i] = sums[i + 2], sums[i + 1] = sums[i + 3];
  }
}

template <class Halo, class P, int COUNT>
__device__ __forceinline__ void finish_box_fragments(const P& p, Index z, Index first, Index tile, const BoxPlace<P>& place,
                                                     float (&sums)[COUNT]) {
  constexpr bool PAIRS = P::in_pairs && Halo::at(3) % 2 == 0;
  Index base = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) base = base * p.extent(d) + place.first[d];
  bool even = PAIRS && p.extent(3) % 2 == 0;
#pragma unroll
  for (int h = 0; h < 2 && PAIRS; ++h) {
    const Index row = first + h * 8 + static_cast<int>(threadIdx.x) % 32 / 4, m = row < p.rows() ? row : p.rows() - 1;
    even = even && p.stored(z, m, base) % 2 == 0;
  }
  if (!PAIRS || !__all_sync(0xffffffffu, even))
    finish_fragments<Halo, false, false>(p, z, first, tile, place, base, sums);
  else if (place.count() < P::Box::product)
    finish_fragments<Halo, false, PAIRS>(p, z, first, tile, place, base, sums);
  else
    finish_fragments<Halo, true, PAIRS>(p, z, first, tile, place, base, sums);
}
#endif  // CRUCIBLE_HOPPER

}  // namespace crucible

// Hopper's matrix instructions and what goes with them (compute capability 9.0a): barriers in shared memory on which
// producers and consumers wait for each other, bulk copies, and descriptors of operands.
//
// Wgmma<N, kind>::multiply(d, a, b, more) adds the product of 64 x K values at descriptor a and N x K values at b (K is 32
// bytes: 16 half or bfloat16, 8 tf32) to d, or starts d anew; the including file brings the instructions for its N.
// Of d[4j + 2h + i], row 16 * (warp % 4) + 8h + lane / 4 and column 8j + 2 * (lane % 4) + i are this thread's.

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

// Weights of a convolution for Hopper's tensor cores, in the order of shared memory, and what scales them and the input.
//
// For each 64 rows there is one contiguous piece of [chunk of channels][tap][16 bytes of channels][row]. In kind Half a row's
// largest weight is brought to [2^9, 2^10), and a sample of the input says by how much that is scaled; the same weights in
// tf32 lie behind, for the launch that does again what half cannot hold. In kind Split there are two planes, hi and lo, for each
// tap, and the largest weight is brought to [2^30, 2^31). Bytes: each weight read twice, written twice.

#if CRUCIBLE_HOPPER
namespace crucible {

constexpr int PAIR_ROWS = 64, TAP_BYTES = PAIR_ROWS * 32;  // of a tile; of its weights for one tap and chunk

// JOIN: the dimension along which two boxes lie side by side, 4 for those of two samples, or -1. SLOTS of the ring. LAND: KB for what is on its way.
template <int JOIN_, int SLOTS_, int CHUNKS_, int TURN_, int LAND_, Operands kind_>
struct Warpgroups {
  static constexpr Operands kind = kind_;
  static constexpr int JOIN = JOIN_, SLOTS = SLOTS_, CHUNKS = CHUNKS_, TURN = TURN_, LAND = LAND_;
  static constexpr int BM = PAIR_ROWS, PRODUCERS = 256, CONSUMERS = 256, threads = PRODUCERS + CONSUMERS;
  static constexpr bool PAIRED = JOIN >= 0, SAMPLES = JOIN == 4, TOGETHER = true;
  static constexpr int BOXES = PAIRED ? 2 : 1;                 // side by side
  static constexpr int UNIT = kind == Operands::Tf32 ? 4 : 8;  // channels in 16 bytes
  static constexpr int CHANNELS = 2 * UNIT;                    // of a chunk
};

// What the launches hand to each other: a flag, the largest number in a sample of the input and in each channel of it, an
// exponent for each row of weights and whether half cannot hold it, and the weights for each kind.
struct Packed {
  int* again;    // raised by whoever finds what half cannot hold, packers excepted: it may not have been lowered yet
  int* largest;  // floats that are not negative, as integers
  int* channels;
  int* rows;
  int* spoilt;
  unsigned char* half;
  unsigned char* tf32;
  int64_t count;  // of rows

  // Channels that are told apart: of more, those so far apart are one.
  template <class P>
  static __host__ __device__ constexpr int apart() { return P::CHANNELS < 4096 ? static_cast<int>(P::CHANNELS) : 4096; }
  template <class P>
  static __host__ __device__ constexpr int64_t head() { return 256 + (apart<P>() + 63) / 64 * 256; }

  template <class P>
  __host__ __device__ Packed(const P& p, void* at) {
    const int64_t tiles = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS), taps = P::Kernel::product;
    unsigned char* const bytes = static_cast<unsigned char*>(at);
    count = tiles * PAIR_ROWS;
    again = reinterpret_cast<int*>(bytes);
    largest = again + 1;
    channels = again + 64;
    rows = reinterpret_cast<int*>(bytes + head<P>());
    spoilt = rows + count;
    half = bytes + head<P>() + count * 8;
    tf32 = half + tiles * taps * ((P::CHANNELS + 15) / 16) * TAP_BYTES;
  }
  // Bytes of all this.
  template <class P>
  static __host__ __device__ int64_t bytes(const P& p) {
    const int64_t tiles = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS), taps = P::Kernel::product;
    return head<P>() + tiles * (PAIR_ROWS * 8 + taps * ((P::CHANNELS + 15) / 16 + (P::CHANNELS + 7) / 8) * TAP_BYTES);
  }
  __device__ __forceinline__ int input() const;        // exponent of its scale
  __device__ __forceinline__ int split_input() const;  // and in kind Split
  template <class W>
  __device__ __forceinline__ const unsigned char* weights() const {
    return W::kind == Operands::Tf32 ? tf32 : half;
  }
};

constexpr float HALF_LIMIT = 65504.0f, HALF_SMALL = 0x1p-12f;
constexpr int PACKERS = 1024, SAMPLES = 4;  // threads of a block, and numbers of the input that each of one block looks at
constexpr int HALF_PEAK = 9;  // scaled, the largest number lies between 2^9 and 2^10

// The exponent of a scale that brings `largest` there; a power of two that is a float itself.
__device__ __forceinline__ int half_exponent(float largest) {
  if (largest == 0.0f) return 0;
  const int by = exponent_to(HALF_PEAK, __float_as_uint(largest));
  return by < 126 ? by : 126;
}

// In kind Split: the same for a row of weights, and what no weight may reach.
constexpr int SPLIT_PEAK = 30;
constexpr float SPLIT_WEIGHT = 0x1p40f;
__device__ __forceinline__ int split_exponent(float largest) {
  return largest == 0.0f ? 0 : exponent_to(SPLIT_PEAK, __float_as_uint(largest));
}

// hi + lo is x to 22 bits or more; tensor cores ignore the bits below a tf32 number's. Not for inf and nan.
__device__ __forceinline__ void split_tf32(float x, unsigned& hi, unsigned& lo) {
  hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  lo = __float_as_uint(x - __uint_as_float(hi)) + 0x1000u;
}

__device__ __forceinline__ int Packed::input() const { return half_exponent(__int_as_float(*largest)); }
// None where the input can be split as it is, so that what is far smaller beside it can be split too.
__device__ __forceinline__ int Packed::split_input() const {
  const float most = __int_as_float(*largest);
  return most >= 0x1p-60f && most < 0x1p60f ? 0 : half_exponent(most);
}

__device__ __forceinline__ float block_max(float x) {
  __shared__ float parts[PACKERS / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[threadIdx.x % 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// One block: lowers the flag, and notes the largest numbers of a sample of the input.
template <class P>
__device__ __forceinline__ void sample_input(const P& p, const Packed& packed, int* peaks) {
  float largest = 0;
#pragma unroll
  for (int k = 0; k < SAMPLES; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * PACKERS;
    Index at[4];
#pragma unroll
    for (int d = 0; d < 4; ++d)
      at[d] = spread(i, d, p.extent(d)) * P::Stride::at(d) + P::Shift::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) / 2;
    const typename P::BAt place = p.b_at(spread(i, 4, p.batches()), at[0], at[1], at[2], at[3]);
    const float x = fabsf(static_cast<float>(p.b_in(place, static_cast<Index>(i % P::CHANNELS))));
    if (place.inside && x < INFINITY) {
      largest = fmaxf(largest, x);
      atomicMax(peaks + i % P::CHANNELS % Packed::apart<P>(), __float_as_int(x));
    }
  }
  largest = block_max(largest);
  for (int c = static_cast<int>(threadIdx.x); c < Packed::apart<P>(); c += PACKERS) packed.channels[c] = peaks[c];
  if (threadIdx.x == 0) *packed.largest = __float_as_int(largest), *packed.again = 0;
}

// A block for each row of weights, and one more that looks at the input.
template <class W, class P>
__global__ void __launch_bounds__(PACKERS) pack_rows_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  __shared__ int peaks[Packed::apart<P>()];  // of channels: floats that are not negative, as integers
  const Packed packed(p, workspace);
  constexpr int TAPS = P::Kernel::product;
  constexpr bool scaled_rows = W::kind == Operands::Half || W::kind == Operands::Split;
  const Index tiles = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, channels = p.channels();
  if constexpr (scaled_rows) {
    for (int c = static_cast<int>(threadIdx.x); c < Packed::apart<P>(); c += PACKERS) peaks[c] = 0;
    __syncthreads();
  }
  if (blockIdx.x >= static_cast<unsigned>(packed.count)) {
    if constexpr (scaled_rows) sample_input(p, packed, peaks);
    return;
  }
  const Index row = static_cast<Index>(blockIdx.x), group = row / (tiles * PAIR_ROWS), m = row % (tiles * PAIR_ROWS);
  const bool there = m < p.rows();
  const auto line = p.a_row(group, there ? m : 0);
  int by = 0;
  if constexpr (scaled_rows) {
    float largest = 0;
    if (there)
      for (Index k = static_cast<Index>(threadIdx.x); k < channels * TAPS; k += PACKERS)
        largest = fmaxf(largest, fabsf(static_cast<float>(p.a(line, k))));
    largest = block_max(largest);
    by = W::kind == Operands::Half ? half_exponent(largest) : split_exponent(largest);
  }
  bool bad = false;
  const auto put = [&](auto kind, unsigned char* to) {
    constexpr int UNIT = decltype(kind)::UNIT, CHANNELS = 2 * UNIT, PLANES = decltype(kind)::kind == Operands::Split ? 2 : 1;
    constexpr Index CHUNKS = (P::CHANNELS + CHANNELS - 1) / CHANNELS, ALL = CHUNKS * CHANNELS;
    unsigned char* const tile = to + (row / PAIR_ROWS) * int64_t(CHUNKS) * TAPS * PLANES * TAP_BYTES;
    // Neighbouring threads have neighbouring channels of a tap.
    for (Index i = static_cast<Index>(threadIdx.x); i < ALL * TAPS; i += PACKERS) {
      const Index c = i % ALL, t = i / ALL, tap = P::flipped ? TAPS - 1 - t : t;
      const float w = there && c < channels ? static_cast<float>(p.a(line, c * TAPS + tap)) : 0.0f;
      unsigned char* const at =
          tile + ((c / CHANNELS * TAPS + t) * PLANES * 2 + c % CHANNELS / UNIT) * int64_t(TAP_BYTES / 2) + row % PAIR_ROWS * 16;
      if constexpr (decltype(kind)::kind == Operands::Tf32) {
        reinterpret_cast<unsigned*>(at)[c % UNIT] = round_tf32(w);
      } else if constexpr (decltype(kind)::kind == Operands::Half) {
        const float s = scaled(w, by);
        if (c < channels) atomicMax(peaks + c % Packed::apart<P>(), __float_as_int(fmaxf(0.0f, fabsf(s))));
        reinterpret_cast<unsigned short*>(at)[c % UNIT] = static_cast<unsigned short>(pack_half(s, 0.0f));
      } else if constexpr (decltype(kind)::kind == Operands::Split) {
        bad |= !(fabsf(w) < SPLIT_WEIGHT);
        split_tf32(scaled(w, by), reinterpret_cast<unsigned*>(at)[c % UNIT], reinterpret_cast<unsigned*>(at + TAP_BYTES)[c % UNIT]);
      } else {
        reinterpret_cast<unsigned short*>(at)[c % UNIT] = static_cast<unsigned short>(pack(w, 0.0f));
      }
    }
  };
  put(W(), packed.half);
  if constexpr (W::kind == Operands::Half) {
    put(Warpgroups<0, 1, 0, 0, 0, Operands::Tf32>(), packed.tf32);
    __syncthreads();
    // A channel whose weights are all small may have a large input.
    for (int c = static_cast<int>(threadIdx.x); c < Packed::apart<P>(); c += PACKERS) {
      const float largest = __int_as_float(peaks[c]);
      bad |= !(largest <= HALF_LIMIT) || (largest > 0 && largest < HALF_SMALL);
    }
  }
  if constexpr (scaled_rows) {
    const int any = __syncthreads_or(bad);
    if (threadIdx.x == 0) packed.rows[row] = by, packed.spoilt[row] = any;
  }
#if CRUCIBLE_SCALAR > 1  // elements as they are
  if constexpr (!scaled_rows)
    if (threadIdx.x == 0) packed.rows[row] = 0;
#endif
#endif
}

#if CRUCIBLE_HAS_WGMMA
// One block of the launch after that raises the flag for rows of weights that half cannot hold.
template <int THREADS>
__device__ __forceinline__ void spoilt_rows(const Packed& packed, int thread) {
  for (int64_t row = thread; row < packed.count; row += THREADS)
    if (packed.spoilt[row]) *packed.again = 1;
}
#endif

#ifndef __CUDACC_RTC__
// Packs, and says how many processors there are.
template <class W, class P>
cudaError_t pack_rows(const P& p, void* workspace, int* processors, cudaStream_t stream) {
  int device = 0;
  cudaError_t refused = cudaGetDevice(&device);
  if (refused == cudaSuccess) refused = cudaDeviceGetAttribute(processors, cudaDevAttrMultiProcessorCount, device);
  if (refused != cudaSuccess) return refused;
  const int64_t rows = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS) * PAIR_ROWS;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(rows + 1), PACKERS, 0, stream), pack_rows_kernel<W, P>, p, workspace);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Boxes of output pixels for Hopper's tensor cores, the halo of input under them, and the order in which a block takes them.
//
// The pixels of an instruction follow each other in the halo. So a box of several rows is computed with what lies between
// its rows, which is thrown away: N = rows * (width of the halo). With strides, each residue of a pixel's place has a
// halo of its own, in which neighbours are neighbours again. A tap of the window is an offset into the halo.
// What a block wants of shared memory follows from that and is here too. W is the tile of any kernel that takes boxes: Warpgroups,
// Ready or Split.

#if CRUCIBLE_HOPPER
namespace crucible {

// Floats from a row to the next where so many columns of several phases are staged: a quarter of a warp stores to two rows.
__host__ __device__ constexpr int beside_pitch(int columns) { return (columns + 31) / 32 * 32 + 16; }

// A box, or two, and the halo. Places in the halo count residue by residue.
template <class W, class P>
struct Pair {
  __host__ __device__ static constexpr int box(int d) { return P::Box::at(d) * (d == W::JOIN ? W::BOXES : 1); }
  __host__ __device__ static constexpr int halo(int d) { return halo_extent<P>(d, box(d)); }
  // Of a residue; where neighbours are pooled, rows begin with one that has its neighbour behind it.
  __host__ __device__ static constexpr int each(int d) {
    const int own = (halo(d) - 1) / P::Stride::at(d) + 1;
    return d == 3 && PoolOf<P>::pooled && PoolOf<P>::Window::at(3) == 2 ? own + own % 2 : own;
  }
  using Halo = Dims<each(0), each(1), each(2), each(3)>;
  static constexpr int RESIDUES = P::Stride::product, PLACES = RESIDUES * Halo::product * (W::SAMPLES ? W::BOXES : 1);
  __host__ __device__ static constexpr int reach(int d) {
    return (P::Kernel::at(d) - 1) * P::Dilation::at(d) / P::Stride::at(d);
  }
  // Places from a box's first pixel to its last, and from a box's to the next one's.
  static constexpr int SPAN = 1 + (P::Box::at(0) - 1) * Halo::pitch(0) + (P::Box::at(1) - 1) * Halo::pitch(1) +
                              (P::Box::at(2) - 1) * Halo::pitch(2) + (P::Box::at(3) - 1) * Halo::pitch(3);
  static constexpr int SECOND = W::SAMPLES ? PLACES / W::BOXES : W::PAIRED ? P::Box::at(W::JOIN) * Halo::pitch(W::JOIN) : 0;
  static constexpr int N = (SPAN + 7) / 8 * 8, BN = (N + 31) / 32 * 32;
  static constexpr int FARTHEST = reach(0) * Halo::pitch(0) + reach(1) * Halo::pitch(1) + reach(2) * Halo::pitch(2) + reach(3) * Halo::pitch(3);
  static constexpr int READ = (RESIDUES - 1) * Halo::product + (W::BOXES - 1) * SECOND + FARTHEST + N;  // one more than the last place read
  static constexpr int ROOM = READ > PLACES ? READ : PLACES;
  static_assert(N <= 256, "the widest instruction");

  // From a pixel's place to that of the input under a tap of it.
  static __device__ __forceinline__ constexpr int tap(int t) {
    int residue = 0, places = 0;
    for (int d = 0; d < 4; ++d) {
      const int far = P::Kernel::index(t, d) * P::Dilation::at(d);
      residue = residue * P::Stride::at(d) + far % P::Stride::at(d);
      places += far / P::Stride::at(d) * Halo::pitch(d);
    }
    return residue * Halo::product + places;
  }

  // An input that is memory as it is lands in shared memory, a chunk of AHEAD pixels of each producer before it rounds the
  // first of them; any other is computed in registers.
  static constexpr bool DIRECT = P::b_direct && sizeof(scalar) == 4;
  static constexpr int PIXELS = (PLACES + W::PRODUCERS - 1) / W::PRODUCERS;
  static constexpr int AHEAD = DIRECT ? W::LAND * 1024 / (W::CHANNELS * 4 * W::PRODUCERS) : 1;
  static constexpr bool WHOLE = P::CHANNELS % W::CHANNELS == 0;  // no chunk has too few channels

  // Warpgroups that take boxes alternately take turns too: who waited for a slot before the other's box is in the ring
  // could take the phase before last of its barrier for the one it needs.
  static constexpr bool TURNS = !W::PAIRED || W::TURN > 0;
  static constexpr int TURN = W::TURN > 0 ? W::TURN : 1;
  static constexpr int TAPS = P::Kernel::product, BESIDE = W::TOGETHER ? InsideOf<P>::beside : 1;
  static constexpr int HALO_BYTES = 2 * ROOM * 16, STREAMED = W::CHUNKS > 0 ? 0 : BESIDE * TAPS * TAP_BYTES;
  static constexpr int SLOT_BYTES = (HALO_BYTES + 127) / 128 * 128 + STREAMED;
  static constexpr int KEPT_BYTES = W::CHUNKS * BESIDE * TAPS * TAP_BYTES;
  static constexpr bool FRAGMENTS = BESIDE == 1 && fragmentary<Halo, P>();
  static constexpr int STAGE_PITCH = BESIDE > 1 ? beside_pitch(BESIDE * N) : (BN + 23) / 32 * 32 + 8, STAGE_BYTES = FRAGMENTS ? 0 : W::CONSUMERS / 32 * 4 * STAGE_PITCH * 4;
  static constexpr int shared_bytes = KEPT_BYTES + W::SLOTS * SLOT_BYTES + STAGE_BYTES + W::LAND * 1024 + (2 * W::SLOTS + 1) * 8 + 112;
};

#if CRUCIBLE_HAS_WGMMA
// Tiles of a block: boxes, or several side by side, of one sample after another, always with the same weights. Their places are counted
// in digits, the sample first, so that no step divides.
template <class W, class P>
struct PairTiles {
  using H = Pair<W, P>;
  Index group, tile_m, left;  // left: tiles to come, this one included
  Index numbers[4], at[5], step[5];

  __device__ __forceinline__ explicit PairTiles(const P& p) {
    const Index tiles = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, kinds = tiles * (p.groups() / H::BESIDE);
    const Index kind = static_cast<Index>(blockIdx.x) % kinds;
    group = kind / tiles * H::BESIDE, tile_m = kind % tiles;
    Index first = static_cast<Index>(blockIdx.x) / kinds, by = static_cast<Index>(gridDim.x) / kinds;
    Index count = samples(p);
#pragma unroll
    for (int d = 0; d < 4; ++d) numbers[d] = (p.extent(d) - 1) / H::box(d) + 1, count *= numbers[d];
    left = first < count ? (count - first - 1) / by + 1 : 0;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d + 1] = first % numbers[d], step[d + 1] = by % numbers[d];
      first /= numbers[d], by /= numbers[d];
    }
    at[0] = first, step[0] = by;
  }
  __device__ __forceinline__ void next() {
    Index carry = 0;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d + 1] += step[d + 1] + carry;
      carry = at[d + 1] >= numbers[d];
      if (carry) at[d + 1] -= numbers[d];
    }
    at[0] += step[0] + carry;
    --left;
  }
  static __device__ __forceinline__ Index samples(const P& p) {
    const Index all = p.batches() / p.groups();
    return W::SAMPLES ? (all + W::BOXES - 1) / W::BOXES : all;
  }
  // Of one of its boxes, and whether it exists.
  __device__ __forceinline__ Index batch(const P& p, int which) const {
    return (W::SAMPLES ? at[0] * W::BOXES + which : at[0]) * p.groups() + group;
  }
  __device__ __forceinline__ bool exists(const P& p, int which) const { return !W::SAMPLES || batch(p, which) < p.batches(); }
  __device__ __forceinline__ Index first(int d) const { return at[d + 1] * H::box(d); }
};
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// The input under boxes of output pixels on its way to Hopper's tensor cores: what producing warps do.
//
// A thread has the same places of the halo in every tile. It reads a chunk of channels (32 bytes) of each, rounds it, in kind
// Half scaled, and stores it as [16 bytes of channels][pixel] in a slot of the ring; weights that do not stay come with the chunk by
// a bulk copy. An input that is memory as it is comes by asynchronous copies, some pixels ahead.
// In kind Half producers watch what they round: a number too large, or a channel that is not zero but too small to have its 11
// bits in all the pixels that a warp sees.

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// Whether what a warp has put away, of which each lane knows its largest number, is more than half can hold.
__device__ __forceinline__ bool watched(float& largest) {
  const unsigned most = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
  // A few numbers alone may be small.
  const bool small = most < __float_as_uint(HALF_SMALL) && most != 0 && __popc(__ballot_sync(0xffffffffu, largest > 0.0f)) > 3;
  largest = 0.0f;
  return small || most > __float_as_uint(HALF_LIMIT);
}

// 16 bytes of channels. In kind Half they are scaled, and the largest number so far is noted.
template <Operands kind>
__device__ __forceinline__ uint4 round_unit(float* x, float by, float& largest) {
  if constexpr (kind == Operands::Tf32) {
    return make_uint4(round_tf32(x[0]), round_tf32(x[1]), round_tf32(x[2]), round_tf32(x[3]));
  } else if constexpr (kind == Operands::Half) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      x[e] *= by;
      largest = fmaxf(largest, fabsf(x[e]));
    }
    return make_uint4(pack_half(x[0], x[1]), pack_half(x[2], x[3]), pack_half(x[4], x[5]), pack_half(x[6], x[7]));
  } else {
    return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
  }
}

// One block of the launch after the packing raises the flag for what is known by then: rows of weights that half cannot hold,
// and channels that are small everywhere, which may have large weights.
template <int THREADS, class P>
__device__ __forceinline__ void known_spoilt(const Packed& packed, int thread, float by) {
  spoilt_rows<THREADS>(packed, thread);
  for (int c = thread; c < Packed::apart<P>(); c += THREADS) {
    const float most = __int_as_float(packed.channels[c]) * by;
    if (most > 0 && most < HALF_SMALL) *packed.again = 1;
  }
}

// A chunk's weights of each phase; they lie so many bytes apart.
template <class H>
__device__ __forceinline__ void copy_weights(unsigned to, const unsigned char* weights, int64_t further, int chunk, unsigned come) {
  constexpr int BYTES = H::TAPS * TAP_BYTES;
#pragma unroll
  for (int b = 0; b < H::BESIDE; ++b) bulk_copy(to + b * BYTES, weights + b * further + int64_t(chunk) * BYTES, BYTES, come);
}

// Places behind the halo that are read with it, for sums that nobody wants, have zeros: what lay there before may be anything.
template <int PLANES, class W, class P>
__device__ __forceinline__ void clear_behind(unsigned char* slot, int thread) {
  using H = Pair<W, P>;
  constexpr int BEHIND = H::ROOM - H::PLACES;
  if constexpr (BEHIND > 0)
    for (int i = thread; i < PLANES * BEHIND; i += W::PRODUCERS)
      *reinterpret_cast<uint4*>(slot + (i / BEHIND * H::ROOM + H::PLACES + i % BEHIND) * 16) = make_uint4(0, 0, 0, 0);
}

template <class W, class P>
struct PairProducer {
  using H = Pair<W, P>;
  const P& p;
  PairTiles<W, P> tiles;  // of what is asked for,
  Index chunk;            // and of its channels
  float* landing;         // this thread's
  float by;
  typename P::BAt at[H::PIXELS];
  float largest[2];

  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) - W::CONSUMERS; }

  __device__ __forceinline__ void place() {
#pragma unroll
    for (int i = 0; i < H::PIXELS; ++i) {
      int q = thread() + i * W::PRODUCERS;
      const int which = W::SAMPLES && q >= H::SECOND;
      if (which) q -= H::SECOND;
      const int residue = H::RESIDUES == 1 ? 0 : q / H::Halo::product, in = H::RESIDUES == 1 ? q : q % H::Halo::product;
      Index pixel[4];
      bool inside = q < (W::SAMPLES ? H::SECOND : H::PLACES) && tiles.left > 0 && tiles.exists(p, which);
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        const int h = H::Halo::index(in, d) * P::Stride::at(d) + P::Stride::index(residue, d);
        if (H::RESIDUES > 1) inside = inside && h < H::halo(d);
        pixel[d] = tiles.first(d) * P::Stride::at(d) + P::Shift::at(d) + h;
      }
      at[i] = p.b_at(tiles.batch(p, inside ? which : 0), pixel[0], pixel[1], pixel[2], pixel[3]);
      at[i].inside &= inside;
    }
  }
  // To the next chunk, and the next tile after the last; after the last of all nothing is there.
  __device__ __forceinline__ void next(int chunks) {
    if (++chunk < chunks) return;
    chunk = 0;
    if (tiles.left > 1)
      tiles.next();
    else
      tiles.left = 0;
    place();
  }
  // A chunk of one pixel, asked for (what is not there is zero) and taken.
  __device__ __forceinline__ void ask(int pixel, int where) const {
    const typename P::BAt& from = at[pixel];
    float* const to = landing + where * (W::CHANNELS * W::PRODUCERS);
#pragma unroll
    for (int e = 0; e < W::CHANNELS; ++e) {
      const bool there = H::WHOLE || chunk * W::CHANNELS + e < P::CHANNELS;
      copy_async(to + e * W::PRODUCERS, p.b_from(from, there ? chunk * W::CHANNELS + e : P::CHANNELS - 1), from.inside && there);
    }
    commit_copies();
  }
  __device__ __forceinline__ void take(float (&v)[W::CHANNELS], int where) const {
    const float* const from = landing + where * (W::CHANNELS * W::PRODUCERS);
#pragma unroll
    for (int e = 0; e < W::CHANNELS; ++e) v[e] = from[e * W::PRODUCERS];
  }
  // The same in one go.
  __device__ __forceinline__ void compute(float (&v)[W::CHANNELS], int pixel) const {
    const typename P::BAt& from = at[pixel];
#pragma unroll
    for (int e = 0; e < W::CHANNELS; ++e) {
      const bool there = H::WHOLE || chunk * W::CHANNELS + e < P::CHANNELS;
      const float x = static_cast<float>(p.b_in(from, there ? chunk * W::CHANNELS + e : P::CHANNELS - 1));
      v[e] = from.inside && there ? x : 0.0f;
    }
  }
  __device__ __forceinline__ void put(float (&v)[W::CHANNELS], int pixel, unsigned char* slot) {
    const int q = thread() + pixel * W::PRODUCERS;
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      const uint4 word = round_unit<W::kind>(v + unit * W::UNIT, by, largest[unit]);
      if (q < H::PLACES) *reinterpret_cast<uint4*>(slot + (unit * H::ROOM + q) * 16) = word;
    }
  }
  __device__ __forceinline__ bool watch() {
    const bool first = watched(largest[0]), second = watched(largest[1]);
    return first || second;
  }
};
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Sums of boxes of output pixels on their way from the registers of Hopper's tensor cores through the functor to memory.
//
// A warp has 16 rows of sums. They are unscaled, and finished where they are if they can be (fragments.cuh). Else they go through
// shared memory, four rows at a time, from where neighbouring lanes take neighbouring pixels; sums of phases whose elements
// lie beside each other are put there in the output's order.

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// The exponents that unscale a lane's two rows of a warp's 16.
struct Exponents {
  int of[2];
  __device__ __forceinline__ Exponents(const int* rows, int scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) of[h] = -scale - rows[h * 8 + static_cast<int>(threadIdx.x) % 32 / 4];
  }
};
template <int EIGHTS, int COUNT>
__device__ __forceinline__ void unscale(float (&sums)[COUNT], const Exponents& exponents) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int e = exponents.of[h], e1 = e < -126 ? -126 : e < 127 ? e : 127;
    const float f = power_of_two(e1);
#pragma unroll
    for (int j = 0; j < EIGHTS; ++j) sums[4 * j + 2 * h] *= f, sums[4 * j + 2 * h + 1] *= f;
    if (__any_sync(0xffffffffu, e != e1)) {
#pragma unroll 1
      for (int left = e - e1; __any_sync(0xffffffffu, left != 0);) {
        const int step = left < -126 ? -126 : left < 127 ? left : 127;
        const float g = power_of_two(step);
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) sums[4 * j + 2 * h] *= g, sums[4 * j + 2 * h + 1] *= g;
        left -= step;
      }
    }
  }
}

// The pixels of a box that a lane finishes: from the box's first to each, or to the first of a pool's window, in the output
// and among the sums, and to the window itself.
template <class W, class P>
struct PairLanes {
  using H = Pair<W, P>;
  using Pixels = LanePixels<P, (P::Box::product + 31) / 32>;
  static constexpr int EACH = Pixels::EACH, ROUNDS = Pixels::ROUNDS, TAKES = Pixels::TAKES;
  Index to[ROUNDS], pooled[ROUNDS];
  int from[ROUNDS];

  __device__ __forceinline__ explicit PairLanes(const P& p) {
#pragma unroll
    for (int j = 0; j < ROUNDS; ++j) {
      const int i = Pixels::pixel(j * TAKES);
      to[j] = 0, from[j] = 0, pooled[j] = PoolOf<P>::pooled ? Pixels::pooled(p, j) : Index(0);
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        to[j] = to[j] * p.extent(d) + P::Box::index(i, d);
        from[j] += P::Box::index(i, d) * H::Halo::pitch(d);
      }
      if (i >= P::Box::product) to[j] = 0, from[j] = 0;
    }
  }
  // Neighbours of a window's row are read two at a time where each pair begins at an even place.
  static __device__ __forceinline__ constexpr bool twos() {
    for (int d = 0; d < 3; ++d)
      if (P::Box::at(d) > 1 && H::Halo::pitch(d) % 2 != 0) return false;
    return Pixels::Window::at(3) % 2 == 0;
  }
  __device__ __forceinline__ void read(float (&values)[EACH], const float* row) const {
    constexpr int BY = twos() ? 2 : 1;
#pragma unroll
    for (int j = 0; j < EACH; j += BY) {
      int at = from[j / TAKES];
#pragma unroll
      for (int d = 0; d < 4; ++d) at += Pixels::Window::index(j % TAKES, d) * H::Halo::pitch(d);
      if constexpr (BY == 2) {
        const float2 two = *reinterpret_cast<const float2*>(row + at);
        values[j] = two.x, values[j + 1] = two.y;
      } else {
        values[j] = row[at];
      }
    }
  }
};

// WHOLE: the box lies in the output with all its pixels.
template <class W, class P, bool WHOLE>
struct PairColumns {
  using Lanes = PairLanes<W, P>;
  using Pixels = typename Lanes::Pixels;
  const P& p;
  const Lanes& lanes;
  const BoxPlace<P>& place;
  Index base, pools, tile;
  int count;
  unsigned exists = 0;

  __device__ __forceinline__ PairColumns(const P& functor, const Lanes& places, const BoxPlace<P>& of, Index box)
      : p(functor), lanes(places), place(of), base(0), pools(PoolOf<P>::pooled ? Pixels::first_pooled(p, place) : Index(0)), tile(box),
        count(WHOLE ? P::Box::product : place.count()) {
#pragma unroll
    for (int d = 0; d < 4; ++d) base = base * p.extent(d) + place.first[d];
#pragma unroll
    for (int j = 0; j < Lanes::EACH; ++j)
      if (!WHOLE) exists |= unsigned(place.exists(Pixels::pixel(j))) << j;
  }
  __device__ __forceinline__ bool valid(int, int j) const {
    const int round = j / Lanes::TAKES;
    if (WHOLE) return (round + 1) * 32 <= Pixels::Windows::product || Pixels::window(round) < Pixels::Windows::product;
    return exists >> j & 1u;
  }
  __device__ __forceinline__ Index column(int, int j) const {
    if (!PoolOf<P>::pooled) return base + lanes.to[j];
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * p.extent(d) + Pixels::Window::index(j % Lanes::TAKES, d);
    return base + lanes.to[j / Lanes::TAKES] + at;
  }
  // The pixel of a column that exists, else the box's first.
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (P::Box::at(d) > 1 && valid(r, j) ? P::Box::index(Pixels::pixel(j), d) : 0);
  }
  __device__ __forceinline__ bool whole(int round) const {
    constexpr unsigned all = 0xffffffffu >> (32 - Lanes::TAKES);
    return WHOLE ? valid(0, round * Lanes::TAKES) : (exists >> round * Lanes::TAKES & all) == all;
  }
  __device__ __forceinline__ Index pooled(int round) const { return pools + lanes.pooled[round]; }
};

// Four of a warp's 16 rows, part + 2 h, to shared memory, from where neighbouring lanes can read neighbouring pixels.
template <int N, int PITCH, int COUNT>
__device__ __forceinline__ void stage_rows(const float (&sums)[COUNT], int h, int part, float* stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
  if (lane / 16 == part) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      *reinterpret_cast<float2*>(stage + lane % 16 / 4 * PITCH + j * 8 + lane % 4 * 2) =
          make_float2(sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
  }
  __syncwarp();
}

// One warp's 16 rows of a box.
template <class W, bool WHOLE, class P, int COUNT>
__device__ __forceinline__ void finish_box(const P& p, Index z, Index first, Index box, const BoxPlace<P>& place,
                                           const PairLanes<W, P>& lanes, const float (&sums)[COUNT], float* stage) {
  using H = Pair<W, P>;
  constexpr int EACH = PairLanes<W, P>::EACH, ROWS = EACH > 8 ? 1 : EACH > 5 && P::statistics ? 2 : 4;  // as many as there are registers for
  const Index rows = p.rows();
  const PairColumns<W, P, WHOLE> columns(p, lanes, place, box);
  // Registers must be known beforehand, so each eight rows have their own code.
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      stage_rows<H::N, H::STAGE_PITCH>(sums, h, part, stage);
#pragma unroll 1
      for (int r = 0; r < 4; r += ROWS) {
        float values[ROWS][EACH];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) lanes.read(values[i], stage + (r + i) * H::STAGE_PITCH);
        const Index m = first + h * 8 + part * 4 + r;
        if (m < rows) finish_values(p, z, m, rows, columns, 0, values);
      }
    }
}
// The columns of a box of several phases that a lane finishes, the phases of a pixel beside each other: every 32nd.
template <class Halo, class P>
struct BesideColumns {
  using Several = void;
  using Box = typename P::Box;
  static constexpr int BESIDE = InsideOf<P>::beside, EACH = (BESIDE * Box::product + 31) / 32;
  static constexpr bool LINE = Box::product == Box::at(3), KNOWS = RaggedOf<P>::alike;
  static_assert(Box::product < 256 && EACH <= 32, "a byte for each number of a pixel, a bit for each column");
  const BoxPlace<P>& place;
  Index tile;
  int count;
  unsigned exists = 0, pixels[LINE ? 1 : EACH];  // four bytes each

  static __device__ __forceinline__ int at(int j) { return static_cast<int>(threadIdx.x) % 32 + j * 32; }
  static __device__ __forceinline__ int number(int j) {
    return 32 % BESIDE == 0 ? static_cast<int>(threadIdx.x) % 32 / BESIDE + j * (32 / BESIDE) : at(j) / BESIDE;
  }
  __device__ __forceinline__ BesideColumns(const P& p, Index z, const BoxPlace<P>& of, Index box) : place(of), tile(box) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      if (!LINE) pixels[j] = Box::index(number(j), 0) | Box::index(number(j), 1) << 8 | Box::index(number(j), 2) << 16 | Box::index(number(j), 3) << 24;
      bool there = place.exists(number(j));
      if constexpr (RaggedOf<P>::ragged && KNOWS)
        there = there && p.exists_at(z + further(j), 0, of.first[0] + in(j, 0), of.first[1] + in(j, 1), of.first[2] + in(j, 2), of.first[3] + in(j, 3));
      exists |= unsigned(there) << j;
    }
    count = P::statistics ? static_cast<int>(__reduce_add_sync(0xffffffffu, __popc(exists))) : 0;
  }
  // Which of the phases it is, its pixel, and where it is staged.
  static __device__ __forceinline__ Index further(int j) { return 32 % BESIDE == 0 ? static_cast<int>(threadIdx.x) % BESIDE : at(j) % BESIDE; }
  __device__ __forceinline__ int in(int j, int d) const { return LINE ? (d == 3 ? number(j) : 0) : static_cast<int>(pixels[j] >> 8 * d & 255u); }
  __device__ __forceinline__ int from(int j) const {
    int place_in = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) place_in += in(j, d) * Halo::pitch(d);
    return (number(j) < Box::product ? place_in : 0) * BESIDE + static_cast<int>(further(j));
  }
  __device__ __forceinline__ bool valid(int, int j) const { return exists >> j & 1u; }
  __device__ __forceinline__ Index column(int, int) const { return 0; }
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (Box::at(d) > 1 && (!P::reads || valid(r, j)) ? in(j, d) : 0);
  }
};

// One warp's 16 rows of a box, of so many phases from batch z on.
template <class Halo, int PITCH, class P, int BESIDE, int COUNT>
__device__ __forceinline__ void finish_beside(const P& p, Index z, Index first, Index box, const BoxPlace<P>& place,
                                              const float (&sums)[BESIDE][COUNT], float* stage) {
  using Columns = BesideColumns<Halo, P>;
  constexpr int EACH = Columns::EACH, ROWS = EACH > 8 ? 1 : EACH > 4 ? 2 : 4;
  static_assert(!P::statistics || P::group == 0, "statistics are of all columns");
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index rows = p.rows();
  const Columns columns(p, z, place, box);
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      __syncwarp();
      if (lane / 16 == part) {
        float* const to = stage + lane % 16 / 4 * PITCH + lane % 4 * (2 * BESIDE);
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j)
          if constexpr (BESIDE == 2) {
            *reinterpret_cast<float4*>(to + j * 16) =
                make_float4(sums[0][4 * j + 2 * h], sums[1][4 * j + 2 * h], sums[0][4 * j + 2 * h + 1], sums[1][4 * j + 2 * h + 1]);
          } else {
#pragma unroll
            for (int b = 0; b < BESIDE; ++b)
              to[j * 8 * BESIDE + b] = sums[b][4 * j + 2 * h], to[(j * 8 + 1) * BESIDE + b] = sums[b][4 * j + 2 * h + 1];
          }
      }
      __syncwarp();
#pragma unroll 1
      for (int r = 0; r < 4; r += ROWS) {
        float values[ROWS][EACH];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
          for (int j = 0; j < EACH; ++j) values[i][j] = stage[(r + i) * PITCH + columns.from(j)];
        const Index m = first + h * 8 + part * 4 + r;
        if (m >= rows) continue;
        finish_values(p, z, m, rows, columns, 0, values);
        // The first phase's statistics are those of all.
        if constexpr (P::statistics)
          for (int i = lane; i < ROWS * (BESIDE - 1); i += 32)
            if (m + i % ROWS < rows) p.sink(z + 1 + i / ROWS, m + i % ROWS, box, 0, 0, 0);
      }
    }
}

// One of a tile's boxes, by its number and its batch, if there is such a box.
template <class W, class P>
struct PairBox {
  Index box = 0, z, first;
  bool there;
  __device__ __forceinline__ PairBox(const P& p, const PairTiles<W, P>& tiles, int which)
      : z(tiles.batch(p, W::SAMPLES ? which : 0)), first(tiles.tile_m * PAIR_ROWS + static_cast<int>(threadIdx.x) / 32 % 4 * 16),
        there(tiles.exists(p, which)) {
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const Index n = (p.extent(d) - 1) / P::Box::at(d) + 1;
      const Index i = tiles.at[d + 1] * (d == W::JOIN ? W::BOXES : 1) + (d == W::JOIN ? which : 0);
      there = there && i < n;
      box = box * n + i;
    }
  }
};

// One warp's 16 rows of it.
template <class W, class P, int COUNT>
__device__ __forceinline__ void finish_pair(const P& p, const PairTiles<W, P>& tiles, int which, const Exponents& exponents,
                                            const PairLanes<W, P>& lanes, float (&sums)[COUNT], float* stage) {
  using H = Pair<W, P>;
  const PairBox<W, P> of(p, tiles, which);
  if (!of.there) return;
  const Index z = of.z, first = of.first, box = of.box;
  if constexpr (W::kind == Operands::Half || W::kind == Operands::Split) unscale<H::N / 8>(sums, exponents);
  const BoxPlace<P> place(p, box);
  if constexpr (H::FRAGMENTS)
    finish_box_fragments<typename H::Halo>(p, z, first, box, place, sums);
  else if (place.count() == P::Box::product)
    finish_box<W, true>(p, z, first, box, place, lanes, sums, stage);
  else
    finish_box<W, false>(p, z, first, box, place, lanes, sums, stage);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Convolutions on Hopper's tensor cores (wgmma, compute capability 9.0a): a window slides over an input.
//
// A block stays on its processor and takes 64 output channels of one box of output pixels after another. Eight warps
// produce: they read the input under a box, the halo, 32 bytes of channels (a chunk) at a time, round it and store it as
// [16 bytes of channels][pixel] in a ring of slots. Two warpgroups consume: for every tap of the window one instruction
// multiplies 64 channels by N pixels. window_halo.cuh has where pixels and taps lie, window_produce.cuh what the former do,
// window_finish.cuh what becomes of sums; here are the products, the kernel and its launches.
// Weights are packed beforehand, in the order of shared memory. If they fit they stay there (CHUNKS > 0), and the
// warpgroups take boxes alternately, so that one stores while the other multiplies. Else they come with each chunk by a
// bulk copy, and to share them the warpgroups take two boxes side by side (JOIN >= 0), or the same box of two samples
// (JOIN = 4), and turns, TURN chunks each.
// Phases whose elements lie beside each other are computed together, each with sums of its own, and go through shared
// memory, from where neighbouring lanes store neighbours.
//
// Operands: half has the 11 bits of tf32 at twice the rate, but not its range. In kind Half the weights are scaled by a
// power of two for each output channel and the input by one chosen from a sample of it, and the block watches: a number
// too large, or a channel that is not zero but too small to have its 11 bits in all the pixels that a warp sees, raises a
// flag, and the second launch, in kind Tf32, which otherwise returns at once, does everything again.
// Memory: 1.1 to 1.5 times the input from L2, the output once, for each 64 output channels.

#include <type_traits>

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// Of a phase without taps.
template <int COUNT>
__device__ __forceinline__ void clear(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] = 0.0f;
}

// What the consumers do: products of one tile after another, and what becomes of them. `here` are weights that stay.
template <class W, class P>
__device__ __forceinline__ void multiply_pairs(const P& p, const Packed& packed, PairTiles<W, P>& tiles, const unsigned char* here,
                                               unsigned char* ring, unsigned char* stages, unsigned full, unsigned empty, unsigned kept,
                                               int warp) {
  using H = Pair<W, P>;
  constexpr int GROUPS = W::CONSUMERS / 128;
  const int which = warp / 4, lane = static_cast<int>(threadIdx.x) % 32, next = which + 1 < GROUPS ? which + 1 : 0;
  const int chunks = static_cast<int>((P::CHANNELS + W::CHANNELS - 1) / W::CHANNELS);
  float sums[H::BESIDE][H::N / 2];
  if (W::CHUNKS > 0) barrier_wait(kept, 0);
  int slot = 0;
  unsigned parity = 0;
  if (H::TURNS && next == 0) turn_give(1);
  float* const stage = reinterpret_cast<float*>(stages) + warp * 4 * H::STAGE_PITCH;
  const PairLanes<W, P> lanes(p);
  Taps<P> taps[H::BESIDE];
#pragma unroll
  for (int b = 0; b < H::BESIDE; ++b) taps[b] = Taps<P>(p, tiles.group + b);
  const auto exponents = [&](int b) {
    return Exponents(packed.rows + ((tiles.group + b) * ((p.rows() + PAIR_ROWS - 1) / PAIR_ROWS) + tiles.tile_m) * PAIR_ROWS + warp % 4 * 16,
                     W::kind == Operands::Half ? packed.input() : 0);
  };
  const Exponents own = exponents(0);
  int number = 0;
#pragma unroll 1
  for (; tiles.left > 0; tiles.next(), ++number) {
    if (!W::PAIRED && number % 2 != which) {
      // The other warpgroup's box.
      slot += chunks;
      while (slot >= W::SLOTS) slot -= W::SLOTS, parity ^= 1;
      continue;
    }
    int before = -1;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (H::TURNS && (W::PAIRED ? chunk % H::TURN == 0 : chunk == 0)) turn_wait(1 + which);
      barrier_wait(full + slot * 8, parity);
      const unsigned halo = shared_address(ring) + slot * H::SLOT_BYTES;
      const uint64_t b = lines_at(halo + which * H::SECOND * 16, H::ROOM * 16);
      const uint64_t a = lines_at(W::CHUNKS > 0 ? shared_address(here) + chunk * H::BESIDE * H::TAPS * TAP_BYTES
                                                    : halo + (H::SLOT_BYTES - H::STREAMED), TAP_BYTES / 2);
      wgmma_begin();
#pragma unroll
      for (int g = 0; g < H::BESIDE; ++g)
#pragma unroll
        for (int t = 0; t < H::TAPS; ++t)
          if (taps[g].has(t))
            Wgmma<H::N, W::kind>::multiply(sums[g], a + (g * H::TAPS + t) * (TAP_BYTES / 16), b + H::tap(t), taps[g].first(t) ? chunk > 0 : 1);
      wgmma_end();
      const bool over = chunk + 1 == chunks || (W::PAIRED && W::TURN > 0 && (chunk + 1) % H::TURN == 0);
      if (H::TURNS && over) turn_give(1 + next);
      // A slot is free when its products are done: while the next ones run, or when the turn is over.
      if (over)
        wgmma_wait<0>();
      else
        wgmma_wait<1>();
      if (lane == 0 && before >= 0) barrier_arrive(empty + before * 8);
      if (lane == 0 && over) barrier_arrive(empty + slot * 8);
      before = over ? -1 : slot;
      if (++slot == W::SLOTS) slot = 0, parity ^= 1;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < H::BESIDE; ++b) {
      settle(sums[b]);
      if (taps[b].none()) clear(sums[b]);
    }
    if constexpr (H::BESIDE > 1) {
      const PairBox<W, P> of(p, tiles, which);
      if (!of.there) continue;
      if constexpr (W::kind == Operands::Half)
#pragma unroll
        for (int b = 0; b < H::BESIDE; ++b) unscale<H::N / 8>(sums[b], b == 0 ? own : exponents(b));
      finish_beside<typename H::Halo, H::STAGE_PITCH>(p, of.z, of.first, of.box, BoxPlace<P>(p, of.box), sums, stage);
    } else {
      finish_pair<W>(p, tiles, which, own, lanes, sums[0], stage);
    }
  }
  if (H::TURNS && which == (W::PAIRED ? 0 : number % 2)) turn_wait(1 + which);
}
#endif

// FLAGGED: only where the flag is raised.
template <class W, bool FLAGGED, class P>
__global__ void __launch_bounds__(W::threads, 1) pair_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
  extern __shared__ __align__(128) unsigned char pair_shared[];
#if CRUCIBLE_HAS_WGMMA
  using H = Pair<W, P>;
  const Packed packed(p, workspace);
  if (FLAGGED && *packed.again == 0) return;
  // Through a shuffle, so that the compiler knows that a warp agrees on it: else it lines up the matrix instructions.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  unsigned char* const ring = pair_shared + H::KEPT_BYTES;
  unsigned char* const stages = ring + W::SLOTS * H::SLOT_BYTES;
  const unsigned full = shared_address(stages + H::STAGE_BYTES + W::LAND * 1024), empty = full + W::SLOTS * 8, kept = empty + W::SLOTS * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, W::PRODUCERS / 32 + (W::CHUNKS > 0 ? 0 : 1));
      barrier_init(empty + i * 8, W::CONSUMERS / (W::PAIRED ? 32 : 64));
    }
    barrier_init(kept, 1);
    barrier_inits_done();
  }
  __syncthreads();

  PairTiles<W, P> tiles(p);
  const int chunks = static_cast<int>((P::CHANNELS + W::CHANNELS - 1) / W::CHANNELS);
  const int64_t rows = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, each = int64_t(chunks) * H::TAPS * TAP_BYTES, further = rows * each;
  const unsigned char* const weights = packed.weights<W>() + (tiles.group * rows + tiles.tile_m) * each;

  if (warp >= W::CONSUMERS / 32) {
    registers_down<80>();
    PairProducer<W, P> from{p, tiles, 0, reinterpret_cast<float*>(stages + H::STAGE_BYTES) + (threadIdx.x - W::CONSUMERS),
                            W::kind == Operands::Half ? power_of_two(packed.input()) : 1.0f};
    if (W::CHUNKS > 0 && threadIdx.x == W::CONSUMERS) {
      barrier_expect(kept, H::KEPT_BYTES);
      for (int i = 0; i < W::CHUNKS; ++i) copy_weights<H>(shared_address(pair_shared) + i * H::BESIDE * H::TAPS * TAP_BYTES, weights, further, i, kept);
    }
    if (W::kind == Operands::Half && blockIdx.x == 0)
      known_spoilt<W::PRODUCERS, P>(packed, static_cast<int>(threadIdx.x) - W::CONSUMERS, from.by);
    from.largest[0] = from.largest[1] = 0.0f;
    for (int i = 0; i < W::SLOTS; ++i) clear_behind<2, W, P>(ring + i * H::SLOT_BYTES, from.thread());
    if (tiles.left > 0) {
      from.place();
      if constexpr (H::DIRECT) {
#pragma unroll
        for (int i = 0; i < H::AHEAD; ++i) {
          from.ask(i % H::PIXELS, i);
          if (i % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
        }
      }
    }
    int slot = 0, landed = 0;
    unsigned parity = 1;
    bool bad = false;
#pragma unroll 1
    for (; tiles.left > 0; tiles.next())
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        unsigned char* const to = ring + slot * H::SLOT_BYTES;
        barrier_wait(empty + slot * 8, parity);
        if (W::CHUNKS == 0 && threadIdx.x == W::CONSUMERS) {
          barrier_expect(full + slot * 8, H::STREAMED);
          copy_weights<H>(shared_address(to) + (H::SLOT_BYTES - H::STREAMED), weights, further, chunk, full + slot * 8);
        }
#pragma unroll
        for (int i = 0; i < H::PIXELS; ++i) {
          float v[W::CHANNELS];
          if constexpr (H::DIRECT) {
            wait_copies<H::AHEAD - 1>();
            from.take(v, landed);
            from.put(v, i, to);
            from.ask((i + H::AHEAD) % H::PIXELS, landed);
            if ((i + H::AHEAD) % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
            if (++landed == H::AHEAD) landed = 0;
          } else {
            from.compute(v, i);
            from.put(v, i, to);
            if (i + 1 == H::PIXELS) from.next(chunks);
          }
        }
        publish();
        __syncwarp();
        if (lane == 0) barrier_arrive(full + slot * 8);
        if constexpr (W::kind == Operands::Half) bad |= from.watch();
        if (++slot == W::SLOTS) slot = 0, parity ^= 1;
      }
    if (W::kind == Operands::Half && bad && lane == 0) *packed.again = 1;
  } else {
    registers_up<176>();
    multiply_pairs<W>(p, packed, tiles, pair_shared, ring, stages, full, empty, kept, warp);
  }
#endif
}

// The same pixels in other boxes than the functor's own, which W takes: narrower ones, where extents are small. What does not
// depend on boxes is launched as if for those, so that it is compiled once.
template <class P, class Box_, class W>
struct Boxed : P {
  using Box = Box_;
  using Own = P;
  using First = W;
};
template <class Box, class W, class P>
Boxed<P, Box, W> in_boxes(const P& p) { return {p}; }

template <class W, class P, class = void>
struct FirstBoxes {
  using Functor = P;
  using Again = P;  // of the launch that does something again: statistics are kept by boxes, all else is not
  using Tile = W;
};
template <class W, class P>
struct FirstBoxes<W, P, typename Named<typename P::Own>::type> {
  using Functor = typename P::Own;
  using Again = std::conditional_t<P::statistics, P, Functor>;
  using Tile = typename P::First;
};

#ifndef __CUDACC_RTC__
template <class W, bool FLAGGED, class P>
cudaError_t launch_pairs(const P& p, void* workspace, int processors, cudaStream_t stream) {
  using H = Pair<W, P>;
  const int64_t kinds = p.groups() / H::BESIDE * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS);
  const int64_t blocks = processors >= kinds ? processors / kinds * kinds : kinds;
  const cudaError_t refused = allow_shared(pair_kernel<W, FLAGGED, P>, H::shared_bytes);
  if (refused != cudaSuccess) return refused;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, H::shared_bytes, stream),
                            pair_kernel<W, FLAGGED, P>, p, workspace);
}

// W is for the launch, Again (if not void) for the second one that does what W could not.
template <class W, class Again, class P>
cudaError_t launch_warpgroups(const P& p, void* workspace, cudaStream_t stream) {
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int processors = 0;
  using First = FirstBoxes<W, P>;
  cudaError_t refused = pack_rows<typename First::Tile, typename First::Functor>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = launch_pairs<W, false>(p, workspace, processors, stream);
  if constexpr (W::kind == Operands::Half) {
    if (refused == cudaSuccess) refused = launch_pairs<Again, true, typename First::Again>(p, workspace, processors, stream);
  }
  return refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Convolutions on Hopper's tensor cores whose input is made ready beforehand.
//
// As window_wgmma.cuh, with two or three boxes at a time that share weights, but a launch of its own rounds the input and stores it
// with its borders of zeros, as [sample][chunk of channels][16 bytes of channels][pixel]. So rows of a halo are bulk copies,
// which one warp asks for, and shared memory, which is what the tensor cores wait for where a block rounds its own input (they
// read 7 KB for each instruction), is written once and has room for another slot.
// It pays where an element of the input is multiplied often: the launch moves 1.5 times the input's bytes and the borders.

#if CRUCIBLE_HOPPER
namespace crucible {

// BOXES side by side, a warpgroup for each: with three, one that stores has two beside it that multiply. Others: see Warpgroups.
template <int BOXES_, int JOIN_, int SLOTS_, int TURN_, Operands kind_>
struct Ready {
  static_assert(JOIN_ >= 0 && kind_ != Operands::Tf32 && kind_ != Operands::Split, "boxes side by side, 16 channels in a chunk");
  static constexpr Operands kind = kind_;
  static constexpr int BOXES = BOXES_, JOIN = JOIN_, SLOTS = SLOTS_, CHUNKS = 0, TURN = TURN_, LAND = 0;
  static constexpr int BM = PAIR_ROWS, PRODUCERS = 128, CONSUMERS = 128 * BOXES, threads = PRODUCERS + CONSUMERS;
  static constexpr int FEW = BOXES == 3 ? 32 : 40, MANY = BOXES == 3 ? 160 : 232;  // registers of producers and consumers
  static constexpr bool PAIRED = true, SAMPLES = JOIN == 4, TOGETHER = true;
  static constexpr int UNIT = 8, CHANNELS = 2 * UNIT;
};

// The input as it is made ready, behind the weights.
template <class P>
struct ReadyInput {
  static_assert(P::Stride::product == 1, "neighbours are multiplied with neighbours");
  static constexpr int CHUNKS = static_cast<int>((P::CHANNELS + 15) / 16), PHASES = InsideOf<P>::groups;  // which share it
  Index extents[4];
  int64_t pixels;
  unsigned char* at;

  __host__ __device__ ReadyInput(const P& p, void* workspace)
      : pixels(1), at(static_cast<unsigned char*>(workspace) + Packed::bytes(p)) {
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      extents[d] = p.extent(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d);
      pixels *= extents[d];
    }
  }
  // The first pixel's 16 bytes.
  __device__ __forceinline__ unsigned char* plane(Index z, int chunk, int unit) const {
    return at + ((static_cast<int64_t>(z / PHASES) * CHUNKS + chunk) * 2 + unit) * pixels * 16;
  }
};

// What launch_ready wants: a row that is read to the end of a halo may pass the last pixel. There are zeros.
template <class W, class P>
int64_t ready_bytes(const P& p) {
  const ReadyInput<P> input(p, nullptr);
  return Packed::bytes(p) + (static_cast<int64_t>(p.batches() / ReadyInput<P>::PHASES) * ReadyInput<P>::CHUNKS * 2 * input.pixels + Pair<W, P>::Halo::at(3)) * 16;
}

constexpr int READY_THREADS = 256;  // no fewer than a row of a halo has pixels

// A block for so many pixels of a sample, with all their channels.
template <class W, class P>
__global__ void __launch_bounds__(READY_THREADS) ready_input_kernel(const __grid_constant__ P p, void* workspace, unsigned parts) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  const Packed packed(p, workspace);
  const ReadyInput<P> input(p, workspace);
  const float by = W::kind == Operands::Half ? power_of_two(packed.input()) : 1.0f;
  if (W::kind == Operands::Half && blockIdx.x == 0) known_spoilt<READY_THREADS, P>(packed, static_cast<int>(threadIdx.x), by);
  if (blockIdx.x == 0 && threadIdx.x < Pair<W, P>::Halo::at(3))
    *reinterpret_cast<uint4*>(input.plane(p.batches(), 0, 0) + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);
  const Index z = static_cast<Index>(blockIdx.x / parts) * ReadyInput<P>::PHASES;
  const int64_t pixel = static_cast<int64_t>(blockIdx.x % parts) * READY_THREADS + threadIdx.x;
  const bool there = pixel < input.pixels;
  Index rest = there ? static_cast<Index>(pixel) : 0, place[4];
#pragma unroll
  for (int d = 3; d >= 0; --d) {
    place[d] = (d > 0 ? rest % input.extents[d] : rest) + P::Shift::at(d);
    rest /= input.extents[d];
  }
  const typename P::BAt from = p.b_at(z, place[0], place[1], place[2], place[3]);
  const bool inside = there && from.inside;
  bool bad = false;
#pragma unroll 2
  for (int chunk = 0; chunk < ReadyInput<P>::CHUNKS; ++chunk) {
    float v[2][8];
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      const bool read = inside && (P::CHANNELS % 16 == 0 || chunk * 16 + e < P::CHANNELS);
      v[e / 8][e % 8] = read ? static_cast<float>(p.b_in(from, chunk * 16 + e)) : 0.0f;
    }
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      float largest = 0;
      const uint4 word = round_unit<W::kind>(v[unit], by, largest);
      if (W::kind == Operands::Half) bad |= watched(largest);
      if (there) *reinterpret_cast<uint4*>(input.plane(z, chunk, unit) + pixel * 16) = word;
    }
  }
  if (W::kind == Operands::Half && bad && threadIdx.x % 32 == 0) *packed.again = 1;
#endif
}

#if CRUCIBLE_HAS_WGMMA
// One warp: the rows of the halo under a tile, a chunk of their channels, and the weights for it.
template <class W, class P>
__device__ __forceinline__ void fetch_pairs(const P& p, PairTiles<W, P>& tiles, const ReadyInput<P>& input, const unsigned char* weights,
                                            int64_t further, unsigned ring, unsigned full, unsigned empty) {
  using H = Pair<W, P>;
  using Halo = typename H::Halo;
  constexpr int SAMPLES = W::SAMPLES ? W::BOXES : 1, ROWS = Halo::at(0) * Halo::at(1) * Halo::at(2), COPIES = SAMPLES * 2 * ROWS;
  constexpr unsigned ROW_BYTES = Halo::at(3) * 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int slot = 0;
  unsigned parity = 1;
#pragma unroll 1
  for (; tiles.left > 0; tiles.next())
#pragma unroll 1
    for (int chunk = 0; chunk < ReadyInput<P>::CHUNKS; ++chunk) {
      const unsigned to = ring + slot * H::SLOT_BYTES, come = full + slot * 8;
      barrier_wait(empty + slot * 8, parity);
      if (lane == 0) {
        barrier_expect(come, H::STREAMED + COPIES * ROW_BYTES);
        copy_weights<H>(to + (H::SLOT_BYTES - H::STREAMED), weights, further, chunk, come);
      }
      __syncwarp();
#pragma unroll 1
      for (int i = lane; i < COPIES; i += 32) {
        const int row = i % ROWS, unit = i / ROWS % 2, which = i / (2 * ROWS);
        const int in[3] = {row / (Halo::at(1) * Halo::at(2)), row / Halo::at(2) % Halo::at(1), row % Halo::at(2)};
        // Of pixels that do not exist nothing is wanted: any others will do.
        const Index z = tiles.exists(p, which) ? tiles.batch(p, which) : tiles.batch(p, 0);
        int64_t from = 0;
#pragma unroll
        for (int d = 0; d < 3; ++d) {
          const Index there = tiles.first(d) + in[d], last = input.extents[d] - 1;
          from = from * input.extents[d] + (there < last ? there : last);
        }
        from = from * input.extents[3] + tiles.first(3);
        bulk_copy(to + (unit * H::ROOM + which * H::SECOND + row * Halo::at(3)) * 16, input.plane(z, chunk, unit) + from * 16, ROW_BYTES, come);
      }
      if (++slot == W::SLOTS) slot = 0, parity ^= 1;
    }
}
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1) ready_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
  extern __shared__ __align__(128) unsigned char ready_shared[];
#if CRUCIBLE_HAS_WGMMA
  using H = Pair<W, P>;
  const Packed packed(p, workspace);
  // Through a shuffle, so that the compiler knows that a warp agrees on it: else it lines up the matrix instructions.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  unsigned char* const stages = ready_shared + W::SLOTS * H::SLOT_BYTES;
  const unsigned full = shared_address(stages + H::STAGE_BYTES), empty = full + W::SLOTS * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, W::CONSUMERS / 32);
    }
    barrier_inits_done();
  }
  if (threadIdx.x >= W::CONSUMERS) {
    for (int i = 0; i < W::SLOTS; ++i) clear_behind<2, W, P>(ready_shared + i * H::SLOT_BYTES, static_cast<int>(threadIdx.x) - W::CONSUMERS);
    publish();
  }
  __syncthreads();

  PairTiles<W, P> tiles(p);
  if (warp >= W::CONSUMERS / 32) {
    registers_down<W::FEW>();
    const int64_t rows = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, tile = tiles.group * rows + tiles.tile_m;
    constexpr int EACH = ReadyInput<P>::CHUNKS * H::TAPS * TAP_BYTES;
    const unsigned char* const weights = packed.weights<W>() + tile * EACH;
    if (warp == W::CONSUMERS / 32)
      fetch_pairs<W>(p, tiles, ReadyInput<P>(p, workspace), weights, rows * EACH, shared_address(ready_shared), full, empty);
  } else {
    registers_up<W::MANY>();
    multiply_pairs<W>(p, packed, tiles, nullptr, ready_shared, stages, full, empty, 0, warp);
  }
#endif
}

#ifndef __CUDACC_RTC__
// W for the launch, Again (if not void) for the one that does what W could not. The workspace has ready_bytes.
template <class W, class Again, class P>
cudaError_t launch_ready(const P& p, void* workspace, cudaStream_t stream) {
  using H = Pair<W, P>;
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int processors = 0;
  using First = FirstBoxes<W, P>;
  static_assert(H::Halo::at(3) <= Pair<typename First::Tile, typename First::Functor>::Halo::at(3), "as much is read behind the last pixel");
  cudaError_t refused = pack_rows<typename First::Tile, typename First::Functor>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = allow_shared(ready_kernel<W, P>, H::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t parts = (ReadyInput<P>(p, nullptr).pixels + READY_THREADS - 1) / READY_THREADS, batches = p.batches() / ReadyInput<P>::PHASES;
  if (parts > 0x7fffffff / batches) return cudaErrorInvalidValue;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(parts * batches), READY_THREADS, 0, stream),
                               ready_input_kernel<typename First::Tile, typename First::Functor>, p, workspace, static_cast<unsigned>(parts));
  if (refused != cudaSuccess) return refused;
  const int64_t kinds = p.groups() / H::BESIDE * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS);
  const int64_t blocks = processors >= kinds ? processors / kinds * kinds : kinds;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, H::shared_bytes, stream), ready_kernel<W, P>, p, workspace);
  if constexpr (W::kind == Operands::Half) {
    if (refused == cudaSuccess) refused = launch_pairs<Again, true, typename First::Again>(p, workspace, processors, stream);
  }
  return refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Convolutions as good as float32's own on Hopper's tensor cores (wgmma, compute capability 9.0a).
//
// Boxes, halos and taps are those of window_halo.cuh, two boxes side by side, or the same box of two samples. Every operand
// is split into two tf32 numbers, hi and lo, whose sum has 22 bits at least, and multiplied three times: hi * lo, lo * hi,
// hi * hi. Tensor cores cut what they add, so PIECE taps of a chunk of channels start a fresh accumulator, the small
// products first, and it goes to ordinary registers by rounded adds.
// Four warps produce halos in a ring of SLOTS, of [hi, lo][16 bytes of channels][pixel]; one of their threads has the weights
// brought, PIECE taps at a time, to a ring of HELD such pieces: all taps of a chunk, twice, are too much for a slot. Two
// warpgroups consume, a box each, and take turns, so that one adds while the other multiplies.
//
// The range: tf32 has float's. Rows of weights are scaled by a power of two so that their largest lies at 2^30, and no
// product is too small. The input is scaled too, after a sample of it, if that is very large or small. A chunk of it, in the
// pixels that a warp sees, raises the flag if some number is 2^80 or more, inf or nan (a split would make nan of inf, and an
// overflow of one product nan of the sum), or if the largest is below 2^-96 and not zero (lo would be too small for a float).
// So does a weight of 2^40 or more. Then the last launch, which otherwise returns at once, does everything again with the
// mma engine.
// Registers: N / 2 accumulators and N / 2 sums. Memory: as window_wgmma.cuh, the weights twice as often.

#if CRUCIBLE_HOPPER
namespace crucible {

// JOIN as of Warpgroups, never -1. LAND: KB for what is on its way.
template <int JOIN_, int SLOTS_, int PIECE_, int HELD_, int LAND_>
struct Split {
  static constexpr Operands kind = Operands::Split;
  static constexpr int JOIN = JOIN_, SLOTS = SLOTS_, PIECE = PIECE_, HELD = HELD_, LAND = LAND_, CHUNKS = 0, TURN = 1;
  static constexpr int BM = PAIR_ROWS, PRODUCERS = 128, CONSUMERS = 256, threads = PRODUCERS + CONSUMERS;
  static constexpr int BOXES = 2;
  static constexpr bool PAIRED = true, SAMPLES = JOIN == 4, TOGETHER = false;
  static constexpr int UNIT = 4, CHANNELS = 2 * UNIT;
  // Of a thread. Together what three warpgroups begin with: who asked for more would wait for ever.
  static constexpr int PRODUCER_REGISTERS = 104, CONSUMER_REGISTERS = 200;
  static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS == 3 * (65536 / threads / 8 * 8), "neither more nor fewer");
};

// Shared memory, and how the taps are cut into pieces.
template <class W, class P>
struct SplitRoom {
  using H = Pair<W, P>;
  static constexpr int PIECES = (H::TAPS + W::PIECE - 1) / W::PIECE;
  __host__ __device__ static constexpr int taps(int piece) {
    return H::TAPS - piece * W::PIECE < W::PIECE ? H::TAPS - piece * W::PIECE : W::PIECE;
  }
  static constexpr int PIECE_BYTES = W::PIECE * 2 * TAP_BYTES, HALO_BYTES = (4 * H::ROOM * 16 + 127) / 128 * 128;
  static constexpr int RING = W::HELD * PIECE_BYTES, STAGES = RING + W::SLOTS * HALO_BYTES, LANDING = STAGES + H::STAGE_BYTES;
  static constexpr int BARRIERS = LANDING + W::LAND * 1024;
  static constexpr int shared_bytes = BARRIERS + 2 * (W::SLOTS + W::HELD) * 8;
};

#if CRUCIBLE_HAS_WGMMA
constexpr float SPLIT_LIMIT = 0x1p80f, SPLIT_SMALL = 0x1p-96f;

// A place in a ring, and the parity of the phase of its barriers that is waited for.
template <int PLACES>
struct RingPlace {
  int at = 0;
  unsigned parity;
  __device__ __forceinline__ explicit RingPlace(unsigned first) : parity(first) {}
  __device__ __forceinline__ void advance() {
    if (++at == PLACES) at = 0, parity ^= 1;
  }
};

// A chunk of one pixel to a slot; `largest` are bits of a float without its sign.
template <class W, class P>
__device__ __forceinline__ void put_split(const float (&v)[W::CHANNELS], float by, int q, unsigned char* slot, unsigned& largest) {
  using H = Pair<W, P>;
  unsigned hi[W::CHANNELS], lo[W::CHANNELS];
#pragma unroll
  for (int e = 0; e < W::CHANNELS; ++e) {
    const float x = v[e] * by;
    const unsigned size = __float_as_uint(x) & 0x7fffffffu;
    largest = size > largest ? size : largest;
    split_tf32(x, hi[e], lo[e]);
  }
  if (q >= H::PLACES) return;
#pragma unroll
  for (int unit = 0; unit < 2; ++unit) {
    const int e = unit * W::UNIT;
    *reinterpret_cast<uint4*>(slot + (unit * H::ROOM + q) * 16) = make_uint4(hi[e], hi[e + 1], hi[e + 2], hi[e + 3]);
    *reinterpret_cast<uint4*>(slot + ((2 + unit) * H::ROOM + q) * 16) = make_uint4(lo[e], lo[e + 1], lo[e + 2], lo[e + 3]);
  }
}

// Whether what a warp has put away, of which each lane knows its largest number, cannot be split.
__device__ __forceinline__ bool unsplittable(unsigned largest) {
  const unsigned most = __reduce_max_sync(0xffffffffu, largest);
  return most >= __float_as_uint(SPLIT_LIMIT) || (most != 0 && most < __float_as_uint(SPLIT_SMALL));
}

// Three products of a piece of the taps, the small ones first. Two batches: the second is the large product.
template <int PIECE, class W, class P, int COUNT>
__device__ __forceinline__ void multiply_piece(float (&sums)[COUNT], uint64_t a, uint64_t b) {
  using H = Pair<W, P>;
  using Instruction = Wgmma<H::N, Operands::Tf32>;
  constexpr int TAPS = SplitRoom<W, P>::taps(PIECE), FIRST = PIECE * W::PIECE, LINE = TAP_BYTES / 16;
#pragma unroll
  for (int t = 0; t < TAPS; ++t) Instruction::multiply(sums, a + 2 * t * LINE, b + 2 * H::ROOM + H::tap(FIRST + t), t > 0);
#pragma unroll
  for (int t = 0; t < TAPS; ++t) Instruction::multiply(sums, a + (2 * t + 1) * LINE, b + H::tap(FIRST + t), 1);
  wgmma_end();
#pragma unroll
  for (int t = 0; t < TAPS; ++t) Instruction::multiply(sums, a + 2 * t * LINE, b + H::tap(FIRST + t), 1);
  wgmma_end();
}

template <class W, class P>
struct SplitConsumer {
  using H = Pair<W, P>;
  using S = SplitRoom<W, P>;
  unsigned weights, ring, full, empty, come, gone;
  int which, lane;
  float total[H::N / 2];
  RingPlace<W::SLOTS> slot{0};
  RingPlace<W::HELD> held{0};

  // The pieces of a chunk, one after another: each has its own code, since its taps' places must be known beforehand.
  template <int PIECE>
  __device__ __forceinline__ void pieces(float (&sums)[H::N / 2]) {
    if constexpr (PIECE < S::PIECES) {
      barrier_wait(come + held.at * 8, held.parity);
      turn_wait(1 + which);
      settle(sums);
      wgmma_begin();
      multiply_piece<PIECE, W, P>(sums, lines_at(weights + held.at * S::PIECE_BYTES, TAP_BYTES / 2),
                                  lines_at(ring + slot.at * S::HALO_BYTES + which * H::SECOND * 16, H::ROOM * 16));
      wgmma_wait<1>();
      turn_give(2 - which);  // most is done: the other's products queue up behind the rest
      wgmma_wait<0>();
      settle(sums);
      if (lane == 0) barrier_arrive(gone + held.at * 8);
      held.advance();
#pragma unroll
      for (int i = 0; i < H::N / 2; ++i) total[i] += sums[i];
      pieces<PIECE + 1>(sums);
    }
  }
  __device__ __forceinline__ void box(int chunks) {
    float sums[H::N / 2];
#pragma unroll
    for (int i = 0; i < H::N / 2; ++i) total[i] = sums[i] = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      barrier_wait(full + slot.at * 8, slot.parity);
      pieces<0>(sums);
      if (lane == 0) barrier_arrive(empty + slot.at * 8);
      slot.advance();
    }
  }
};
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1) split_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
  extern __shared__ __align__(128) unsigned char split_shared[];
#if CRUCIBLE_HAS_WGMMA
  using H = Pair<W, P>;
  using S = SplitRoom<W, P>;
  const Packed packed(p, workspace);
  // Through a shuffle, so that the compiler knows that a warp agrees on it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned shared = shared_address(split_shared);
  const unsigned full = shared + S::BARRIERS, empty = full + W::SLOTS * 8, come = empty + W::SLOTS * 8, gone = come + W::HELD * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, W::PRODUCERS / 32);
      barrier_init(empty + i * 8, W::CONSUMERS / 32);
    }
    for (int i = 0; i < W::HELD; ++i) {
      barrier_init(come + i * 8, 1);
      barrier_init(gone + i * 8, W::CONSUMERS / 32);
    }
    barrier_inits_done();
  }
  __syncthreads();

  PairTiles<W, P> tiles(p);
  const int chunks = static_cast<int>((P::CHANNELS + W::CHANNELS - 1) / W::CHANNELS);
  const Index tile = tiles.group * ((p.rows() + PAIR_ROWS - 1) / PAIR_ROWS) + tiles.tile_m;

  if (warp >= W::CONSUMERS / 32) {
    registers_down<W::PRODUCER_REGISTERS>();
    const unsigned char* const weights = packed.weights<W>() + tile * int64_t(chunks) * H::TAPS * 2 * TAP_BYTES;
    PairProducer<W, P> from{p, tiles, 0, reinterpret_cast<float*>(split_shared + S::LANDING) + (threadIdx.x - W::CONSUMERS),
                            power_of_two(packed.split_input())};
    if (blockIdx.x == 0) spoilt_rows<W::PRODUCERS>(packed, from.thread());
    for (int i = 0; i < W::SLOTS; ++i) clear_behind<4, W, P>(split_shared + S::RING + i * S::HALO_BYTES, from.thread());
    if (tiles.left > 0) {
      from.place();
      if constexpr (H::DIRECT) {
#pragma unroll
        for (int i = 0; i < H::AHEAD; ++i) {
          from.ask(i % H::PIXELS, i);
          if (i % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
        }
      }
    }
    RingPlace<W::SLOTS> slot(1);
    RingPlace<W::HELD> held(1);
    int landed = 0;
    bool bad = false;
#pragma unroll 1
    for (; tiles.left > 0; tiles.next())
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        unsigned char* const to = split_shared + S::RING + slot.at * S::HALO_BYTES;
        unsigned largest = 0;
        barrier_wait(empty + slot.at * 8, slot.parity);
#pragma unroll
        for (int i = 0; i < H::PIXELS; ++i) {
          const int q = from.thread() + i * W::PRODUCERS;
          float v[W::CHANNELS];
          if constexpr (H::DIRECT) {
            wait_copies<H::AHEAD - 1>();
            from.take(v, landed);
            put_split<W, P>(v, from.by, q, to, largest);
            from.ask((i + H::AHEAD) % H::PIXELS, landed);
            if ((i + H::AHEAD) % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
            if (++landed == H::AHEAD) landed = 0;
          } else {
            from.compute(v, i);
            put_split<W, P>(v, from.by, q, to, largest);
            if (i + 1 == H::PIXELS) from.next(chunks);
          }
        }
        publish();
        __syncwarp();
        if (lane == 0) barrier_arrive(full + slot.at * 8);
        bad |= unsplittable(largest);
        slot.advance();
        // Weights after the halo they are for: their slots may be those of pieces that are multiplied with it.
        if (threadIdx.x == W::CONSUMERS) {
#pragma unroll 1
          for (int piece = 0; piece < S::PIECES; ++piece) {
            const unsigned bytes = S::taps(piece) * 2 * TAP_BYTES;
            barrier_wait(gone + held.at * 8, held.parity);
            barrier_expect(come + held.at * 8, bytes);
            bulk_copy(shared + held.at * S::PIECE_BYTES, weights + (int64_t(chunk) * H::TAPS + piece * W::PIECE) * 2 * TAP_BYTES,
                      bytes, come + held.at * 8);
            held.advance();
          }
        }
        __syncwarp();
      }
    if (bad && lane == 0) *packed.again = 1;
  } else {
    registers_up<W::CONSUMER_REGISTERS>();
    const int which = warp / 4;
    SplitConsumer<W, P> mine{shared, shared + S::RING, full, empty, come, gone, which, lane};
    if (which == 1) turn_give(1);
    float* const stage = reinterpret_cast<float*>(split_shared + S::STAGES) + warp * 4 * H::STAGE_PITCH;
    const PairLanes<W, P> lanes(p);
    const Exponents exponents(packed.rows + tile * PAIR_ROWS + warp % 4 * 16, packed.split_input());
#pragma unroll 1
    for (; tiles.left > 0; tiles.next()) {
      mine.box(chunks);
      finish_pair<W>(p, tiles, which, exponents, lanes, mine.total, stage);
    }
    if (which == 0) turn_wait(1);  // the last turn given
  }
#endif
}

// What could not be split, again by the engine Config. As many blocks as run at the same time, each of which takes many
// tiles: a block for each tile would cost something where there is nothing to do.
template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    split_again_kernel(const __grid_constant__ P p, void* workspace, unsigned tiles) {
  follow();
  extern __shared__ __align__(16) unsigned char again_shared[];
  if (*Packed(p, workspace).again == 0) return;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    __syncthreads();
    contract_tile<Config>(p, tile, 0, 1, again_shared);
  }
}

#ifndef __CUDACC_RTC__
template <class Config, class P>
cudaError_t launch_split_again(const P& p, void* workspace, int processors, cudaStream_t stream) {
  const int64_t tiles_m = (static_cast<int64_t>(p.rows()) + Config::BM - 1) / Config::BM, tiles_n = box_count(p);
  const int64_t most = 0x7fffffff, batches = p.batches();
  if (tiles_m > most / tiles_n || batches > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(split_again_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t tiles = batches * tiles_m * tiles_n, blocks = static_cast<int64_t>(processors) * Config::blocks_per_sm;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(tiles < blocks ? tiles : blocks), Config::threads, Config::shared_bytes, stream),
                            split_again_kernel<Config, P>, p, workspace, static_cast<unsigned>(tiles));
}

// Again: tiles of the mma engine, for what W cannot split.
template <class W, class Again, class P>
cudaError_t launch_split(const P& p, void* workspace, cudaStream_t stream) {
  using S = SplitRoom<W, P>;
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int processors = 0;
  cudaError_t refused = pack_rows<W>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = allow_shared(split_kernel<W, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t kinds = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS);
  const int64_t blocks = processors >= kinds ? processors / kinds * kinds : kinds;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, S::shared_bytes, stream), split_kernel<W, P>, p, workspace);
  return refused == cudaSuccess ? launch_split_again<Again>(p, workspace, processors, stream) : refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// ---- the stages of this file

#if CRUCIBLE_HOPPER
namespace crucible {
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<72, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[36], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %38, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n72k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35"
        "}, %36, %37, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<112, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[56], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n112k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55"
        "}, %56, %57, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<112, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[56], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n112k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55"
        "}, %56, %57, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct Wgmma<112, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[56], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n112k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55"
        "}, %56, %57, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct Wgmma<112, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[56], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55"
        "}, %56, %57, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<128, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<128, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct Wgmma<128, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct Wgmma<128, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<136, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[68], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %70, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n136k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67"
        "}, %68, %69, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<136, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[68], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %70, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n136k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67"
        "}, %68, %69, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct Wgmma<136, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[68], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %70, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n136k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67"
        "}, %68, %69, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct Wgmma<136, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[68], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %70, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n136k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67"
        "}, %68, %69, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<152, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[76], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %78, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n152k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75"
        "}, %76, %77, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<152, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[76], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %78, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n152k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75"
        "}, %76, %77, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct Wgmma<152, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[76], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %78, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n152k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75"
        "}, %76, %77, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct Wgmma<152, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[76], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %78, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n152k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75"
        "}, %76, %77, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

using namespace crucible;

inline void check(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // whoever launches next is not to find it
  throw std::runtime_error(std::string(kernel) + ": " + cudaGetErrorString(error));
}

// convolution, var_mean
struct contract_1 {
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_conv_transpose_weight;
  const scalar* __restrict__ p_x;
  scalar* __restrict__ p_convolution_sum_0_kept;
  accum* __restrict__ p_var_mean_tile_count;
  accum* __restrict__ p_var_mean_tile_m2;
  accum* __restrict__ p_var_mean_tile_mean;
  Index convolution_sum_box, convolution_sum_boxes, s0, s53, s77;

  static constexpr bool a_along_k = true, b_along_k = false, statistics = true;
  static constexpr int group = 0;
  static constexpr bool boxed = true;
  __host__ __device__ Index batches() const { return s77; }
  __host__ __device__ Index rows() const { return 128; }
  __host__ __device__ Index cols() const { return s0 * s53 + s0 * 2 + s53 * 2 + 4; }
  __host__ __device__ Index depth() const { return 1600; }
  struct ARow { Index m4; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    const Index q2 = k / 5;
    const Index e1 = q2 % 5;
    const Index e3 = k % 5;
    const Index q4 = k / 25;
    const accum v5 = to_accum(read(p_conv_transpose_weight[e1 * 5 + e3 + q4 * 3200 + at.m4 * 25]));
    return v5;
  }
  struct BCol { Index c0, c1, c2; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    const Index q1 = n / (s0 + 2);
    const Index e2 = n % (s0 + 2);
    return {q1 + 1, e2 + 1, s0 * z * s53 * 64 + q1 * s0 + e2 + s0 + 1};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    const Index q3 = k / 5;
    const Index e2 = q3 % 5;
    const Index e4 = k % 5;
    accum v1 = accum(0);
    if (inside(at.c0 - e2, s53) && inside(at.c1 - e4, s0)) {
      const Index q5 = k / 25;
      v1 = to_accum(read(p_x[at.c2 + q5 * s0 * s53 - e2 * s0 - e4]));
    }
    return v1;
  }
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  using Box = Dims<1, 1, 2, 34>;
  #elif CRUCIBLE_HOPPER
  using Box = Dims<1, 1, 3, 34>;
  #else
  using Box = Dims<1, 1, 7, 34>;
  #endif
  using Kernel = Dims<1, 1, 5, 5>;
  using Stride = Dims<1, 1, 1, 1>;
  using Dilation = Dims<1, 1, 1, 1>;
  using Shift = Dims<0, 0, -3, -3>;
  static constexpr bool flipped = true;
  __host__ __device__ Index extent(int d) const { return d == 0 ? 1 : d == 1 ? 1 : d == 2 ? s53 + 2 : s0 + 2; }
  __host__ __device__ Index groups() const { return 1; }
  static constexpr Index CHANNELS = 64;
  __host__ __device__ Index channels() const { return CHANNELS; }
  struct BAt { Index c0; bool inside; };
  __device__ __forceinline__ BAt b_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y2 = nearest(i2, s53);
    const Index y3 = nearest(i3, s0);
    return {s0 * z * s53 * 64 + y2 * s0 + y3, inside(i0, 1) && inside(i1, 1) && inside(i2, s53) && inside(i3, s0)};
  }
  __device__ __forceinline__ accum b_in(const BAt& at, Index channel) const {
    return to_accum(read(p_x[at.c0 + channel * s0 * s53]));
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BAt& at, Index channel) const {
    return &p_x[at.c0 + channel * s0 * s53];
  }
  template <class To>
  __device__ __forceinline__ accum finish_to(Index z, Index m, Index n, int split, accum value,
                                             To& to) const {
    to(&p_convolution_sum_0_kept[m * s0 * s53 + s0 * z * s53 * 128 + m * s0 * 2 + m * s53 * 2 + s0 * z * 256 + z * s53 * 256 + m * 4 + n + z * 512], to_scalar(value));
    return (value + to_accum(read(p_conv_transpose_bias[m])));
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    StoreOne to{there};
    return finish_to(z, m, n, split, value, to);
  }
  static constexpr bool in_pairs = true;  // columns are neighbours in memory
  static constexpr bool reads = false;  // finish reads what depends on the column
  __device__ __forceinline__ uintptr_t stored(Index z, Index m, Index n) const {
    return reinterpret_cast<uintptr_t>(&p_convolution_sum_0_kept[m * s0 * s53 + s0 * z * s53 * 128 + m * s0 * 2 + m * s53 * 2 + s0 * z * 256 + z * s53 * 256 + m * 4 + n + z * 512]) / sizeof(p_convolution_sum_0_kept[0]);
  }
  __device__ __forceinline__ void sink(Index z, Index m, Index tile_n, accum count, accum mean,
                                       accum m2) const {
    const Index at = convolution_sum_boxes * m * s77 + convolution_sum_boxes * z + tile_n;
    p_var_mean_tile_count[at] = count;
    p_var_mean_tile_mean[at] = mean;
    p_var_mean_tile_m2[at] = m2;
  }
};

void run_contract_1(uint64_t p_conv_transpose_bias, uint64_t p_conv_transpose_weight, uint64_t p_x, uint64_t p_convolution_sum_0_kept, uint64_t p_var_mean_tile_count, uint64_t p_var_mean_tile_m2, uint64_t p_var_mean_tile_mean, int64_t convolution_sum_box, int64_t convolution_sum_boxes, int64_t s0, int64_t s53, int64_t s77, uint64_t packed, uint64_t stream) {
  const contract_1 stage{reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_conv_transpose_weight), reinterpret_cast<const scalar*>(p_x), reinterpret_cast<scalar*>(p_convolution_sum_0_kept), reinterpret_cast<accum*>(p_var_mean_tile_count), reinterpret_cast<accum*>(p_var_mean_tile_m2), reinterpret_cast<accum*>(p_var_mean_tile_mean), static_cast<Index>(convolution_sum_box), static_cast<Index>(convolution_sum_boxes), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  #if CRUCIBLE_NARROWER
  if (convolution_sum_box == 1) return check(launch_ready<Ready<3, 2, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 6, 18>, Ready<3, 2, 3, 1, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  if (convolution_sum_box == 2) return check(launch_ready<Ready<3, 4, 3, 1, Operands::Half>, Warpgroups<4, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 10, 10>, Ready<3, 2, 3, 1, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #endif
  check(launch_ready<Ready<3, 2, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  #if CRUCIBLE_NARROWER
  if (convolution_sum_box == 1) return check(launch_ready<Ready<3, 2, 3, 1, Operands::Native>, void>(in_boxes<Dims<1, 1, 6, 18>, Ready<3, 2, 3, 1, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  if (convolution_sum_box == 2) return check(launch_ready<Ready<3, 4, 3, 1, Operands::Native>, void>(in_boxes<Dims<1, 1, 10, 10>, Ready<3, 2, 3, 1, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #endif
  check(launch_ready<Ready<3, 2, 3, 1, Operands::Native>, void>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  check(launch_split<Split<4, 3, 9, 3, 32>, Mma<64, 128, 16, 32, 32, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_CONV == 1
  check(launch_window<Window<64, 8, Grade::Tf32>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_CONV == 2
  check(launch_contract<Mma<64, 256, 16, 32, 64, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_CONV == 3
  check(launch_window<Window<64, 8, Grade::Native>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #else
  check(launch_contract<Simt<32, 256, 8, 4, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #endif
}

int64_t packed_contract_1(int64_t convolution_sum_box, int64_t convolution_sum_boxes, int64_t s0, int64_t s53, int64_t s77) {
  const contract_1 stage{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, static_cast<Index>(convolution_sum_box), static_cast<Index>(convolution_sum_boxes), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  return ready_bytes<Ready<3, 2, 3, 1, Operands::Half>>(stage);
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  return ready_bytes<Ready<3, 2, 3, 1, Operands::Native>>(stage);
  #else
  static_cast<void>(stage);
  return 1639936;
  #endif
}

// var_mean, full_1, gt_1, mul_5, mul_4, view_3, mul_6, add_4, where_1, full, gt, mul_2, view_2, mul_3, add_3, where, add
struct rows_1 {
  const accum* __restrict__ p_var_mean_tile_count;
  const accum* __restrict__ p_var_mean_tile_m2;
  const accum* __restrict__ p_var_mean_tile_mean;
  int64_t* p_add;
  int64_t* p_batch_norm_num_batches_tracked;
  scalar* p_batch_norm_running_mean;
  scalar* p_batch_norm_running_var;
  accum* __restrict__ p_var_mean_0_kept;
  accum* __restrict__ p_var_mean_1_kept;
  scalar* p_where;
  scalar* p_where_1;
  Index convolution_sum_boxes, s0, s53, s77;

  __host__ __device__ Index rows() const { return 128; }
  struct Acc0 {
    Moments r0;  // var_mean
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const accum* const at1 = &p_var_mean_tile_count[convolution_sum_boxes * row * s77];
    const accum* const at2 = &p_var_mean_tile_mean[convolution_sum_boxes * row * s77];
    const accum* const at3 = &p_var_mean_tile_m2[convolution_sum_boxes * row * s77];
    const Stretch run4 = stretch(0, convolution_sum_boxes * s77, alike(at1, at2, at3));
    for (Index k = lanes.first(); k < run4.vectors; k += lanes.step() * IN_FLIGHT) {
      Vector<accum> x5[IN_FLIGHT];
      Vector<accum> x6[IN_FLIGHT];
      Vector<accum> x7[IN_FLIGHT];
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * lanes.step();
        if (kk < run4.vectors) {
          const Index j = run4.begin + kk * VECTOR;
          x5[d] = read_vector<true>(at1 + j);
          x6[d] = read_vector<true>(at2 + j);
          x7[d] = read_vector<true>(at3 + j);
        }
      }
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * lanes.step();
        if (kk >= run4.vectors) break;
        #pragma unroll
        for (int u = 0; u < VECTOR; ++u) {
          a0.r0.step(x5[d][u], x6[d][u], x7[d][u]);
        }
      }
    }
    #pragma unroll 4
    for (int64_t k = lanes.first(); k < run4.singles(); k += lanes.step()) {
      const Index j = run4.single(k);
      a0.r0.step(read(at1[j]), read(at2[j]), read(at3[j]));
    }
    lanes.join(a0);
    const accum var_mean_0 = a0.r0.get_mean();
    const accum var_mean_1 = a0.r0.get_m2();
    if (lanes.leads()) {
      const int64_t v8 = int64_t(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4);
      const bool v9 = v8 > int64_t(0);
      const accum v10 = to_accum(p_batch_norm_running_var[row]);
      const accum v11 = accum((double(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4) / double(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4 - 1)));
      const accum v12 = (v10 * accum(0.9)) + (((var_mean_1 / accum(v8)) * v11) * accum(0.1));
      p_where_1[row] = to_scalar(v9 ? v12 : v10);
      const accum v13 = to_accum(p_batch_norm_running_mean[row]);
      const accum v14 = v9 ? ((v13 * accum(0.9)) + (var_mean_0 * accum(0.1))) : v13;
      p_where[row] = to_scalar(v14);
      p_var_mean_0_kept[row] = var_mean_0;
      p_var_mean_1_kept[row] = var_mean_1;
      if (row < 1) {
        p_add[0] = p_batch_norm_num_batches_tracked[0] + int64_t(1);
      }
    }
  }
};

void run_rows_1(uint64_t p_var_mean_tile_count, uint64_t p_var_mean_tile_m2, uint64_t p_var_mean_tile_mean, uint64_t p_add, uint64_t p_batch_norm_num_batches_tracked, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_where, uint64_t p_where_1, int64_t convolution_sum_boxes, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const rows_1 stage{reinterpret_cast<const accum*>(p_var_mean_tile_count), reinterpret_cast<const accum*>(p_var_mean_tile_m2), reinterpret_cast<const accum*>(p_var_mean_tile_mean), reinterpret_cast<int64_t*>(p_add), reinterpret_cast<int64_t*>(p_batch_norm_num_batches_tracked), reinterpret_cast<scalar*>(p_batch_norm_running_mean), reinterpret_cast<scalar*>(p_batch_norm_running_var), reinterpret_cast<accum*>(p_var_mean_0_kept), reinterpret_cast<accum*>(p_var_mean_1_kept), reinterpret_cast<scalar*>(p_where), reinterpret_cast<scalar*>(p_where_1), static_cast<Index>(convolution_sum_boxes), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_rows<256>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_1");
}

// var_mean_1, convolution, var_mean, sub, add_1, rsqrt, mul, view, mul_1, view_1, add_2, max_pool2d_with_indices, tanh, view_6, sub_2, add_5, rsqrt_1, mul_13, view_7, view_8, mul_14, view_9, add_6
struct rows_2 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const scalar* __restrict__ p_group_norm_bias;
  const scalar* __restrict__ p_group_norm_weight;
  const accum* __restrict__ p_var_mean_0_kept;
  const accum* __restrict__ p_var_mean_1_kept;
  scalar* __restrict__ p_add_6;
  accum* __restrict__ p_var_mean_1_0_kept;
  accum* __restrict__ p_var_mean_1_1_kept;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return s77 * 8; }
  struct Acc0 {
    Moments r0;  // var_mean_1
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    const Index e7 = row % 8;
    const int64_t v13 = int64_t(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4);
    const accum v14 = accum(v13);
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v8 = to_accum(read(p_conv_transpose_bias[e7 * 16 + part]));
      const accum v10 = read(p_var_mean_0_kept[e7 * 16 + part]);
      const accum v12 = read(p_var_mean_1_kept[e7 * 16 + part]);
      const accum v15 = v12 / v14;
      const accum v16 = v15 + accum(1e-05);
      const accum v17 = f_rsqrt(v16);
      const accum v19 = to_accum(read(p_batch_norm_weight[e7 * 16 + part]));
      const accum v21 = to_accum(read(p_batch_norm_bias[e7 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        WindowMax fold3;
        const Index q4 = rest / (q1 + 1);
        const Index e5 = rest % (q1 + 1);
        for (Index t15 = 0; t15 < 2; ++t15) {
          for (Index t16 = 0; t16 < 2; ++t16) {
            const accum v6 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q4 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t15 + e5 * 2 + q4 * 4 + part * 4 + row * 64 + t15 * 2 + t16]));
            const accum v9 = v6 + v8;
            const accum v11 = v9 - v10;
            const accum v18 = v11 * v17;
            const accum v20 = v18 * v19;
            const accum v22 = v20 + v21;
            const int64_t v23 = int64_t(q4 * s0 * 2 + s0 * t15 + e5 * 2 + q4 * 4 + t15 * 2 + t16);
            fold3.step(v22, v23);
          }
        }
        const accum v24 = tanh(fold3.value());
        a0.r0.step(v24);
      }
    }
    lanes.join(a0);
    const accum var_mean_1_0 = a0.r0.get_mean();
    const accum var_mean_1_1 = a0.r0.get_m2();
    if (lanes.leads()) {
      p_var_mean_1_0_kept[row] = var_mean_1_0;
      p_var_mean_1_1_kept[row] = var_mean_1_1;
    }
    const accum v44 = var_mean_1_1 / accum(int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16));
    const accum v45 = f_rsqrt((v44 + accum(1e-05)));
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v29 = to_accum(read(p_conv_transpose_bias[e7 * 16 + part]));
      const accum v31 = read(p_var_mean_0_kept[e7 * 16 + part]);
      const accum v33 = read(p_var_mean_1_kept[e7 * 16 + part]);
      const accum v34 = v33 / v14;
      const accum v35 = v34 + accum(1e-05);
      const accum v36 = f_rsqrt(v35);
      const accum v38 = to_accum(read(p_batch_norm_weight[e7 * 16 + part]));
      const accum v40 = to_accum(read(p_batch_norm_bias[e7 * 16 + part]));
      const accum v46 = to_accum(read(p_group_norm_weight[e7 * 16 + part]));
      const accum v47 = to_accum(read(p_group_norm_bias[e7 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        WindowMax fold25;
        const Index q26 = rest / (q1 + 1);
        const Index e27 = rest % (q1 + 1);
        for (Index t15 = 0; t15 < 2; ++t15) {
          for (Index t16 = 0; t16 < 2; ++t16) {
            const accum v28 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q26 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t15 + e27 * 2 + q26 * 4 + part * 4 + row * 64 + t15 * 2 + t16]));
            const accum v30 = v28 + v29;
            const accum v32 = v30 - v31;
            const accum v37 = v32 * v36;
            const accum v39 = v37 * v38;
            const accum v41 = v39 + v40;
            const int64_t v42 = int64_t(q26 * s0 * 2 + s0 * t15 + e27 * 2 + q26 * 4 + t15 * 2 + t16);
            fold25.step(v41, v42);
          }
        }
        const accum v43 = tanh(fold25.value());
        p_add_6[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar((((v43 - var_mean_1_0) * v45) * v46) + v47);
      }
    }
  }
  __host__ __device__ int64_t kept() const { return 1 * static_cast<int64_t>((s0 / 2) * (s53 / 2) * 16 + (s0 / 2) * 16 + (s53 / 2) * 16 + 16); }
  template <class L>
  __device__ __forceinline__ void keeping(const L& lanes, Index row, accum* kept) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    const Index e7 = row % 8;
    const int64_t v13 = int64_t(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4);
    const accum v14 = accum(v13);
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v8 = to_accum(read(p_conv_transpose_bias[e7 * 16 + part]));
      const accum v10 = read(p_var_mean_0_kept[e7 * 16 + part]);
      const accum v12 = read(p_var_mean_1_kept[e7 * 16 + part]);
      const accum v15 = v12 / v14;
      const accum v16 = v15 + accum(1e-05);
      const accum v17 = f_rsqrt(v16);
      const accum v19 = to_accum(read(p_batch_norm_weight[e7 * 16 + part]));
      const accum v21 = to_accum(read(p_batch_norm_bias[e7 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        WindowMax fold3;
        const Index q4 = rest / (q1 + 1);
        const Index e5 = rest % (q1 + 1);
        for (Index t15 = 0; t15 < 2; ++t15) {
          for (Index t16 = 0; t16 < 2; ++t16) {
            const accum v6 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q4 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t15 + e5 * 2 + q4 * 4 + part * 4 + row * 64 + t15 * 2 + t16]));
            const accum v9 = v6 + v8;
            const accum v11 = v9 - v10;
            const accum v18 = v11 * v17;
            const accum v20 = v18 * v19;
            const accum v22 = v20 + v21;
            const int64_t v23 = int64_t(q4 * s0 * 2 + s0 * t15 + e5 * 2 + q4 * 4 + t15 * 2 + t16);
            fold3.step(v22, v23);
          }
        }
        const accum v24 = tanh(fold3.value());
        a0.r0.step(v24);
        kept[part * (q1 * q2 + q1 + q2 + 1) + rest] = v24;
      }
    }
    lanes.join(a0);
    const accum var_mean_1_0 = a0.r0.get_mean();
    const accum var_mean_1_1 = a0.r0.get_m2();
    if (lanes.leads()) {
      p_var_mean_1_0_kept[row] = var_mean_1_0;
      p_var_mean_1_1_kept[row] = var_mean_1_1;
    }
    const accum v25 = var_mean_1_1 / accum(int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16));
    const accum v26 = f_rsqrt((v25 + accum(1e-05)));
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v27 = to_accum(read(p_group_norm_weight[e7 * 16 + part]));
      const accum v28 = to_accum(read(p_group_norm_bias[e7 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum kept0 = kept[part * (q1 * q2 + q1 + q2 + 1) + rest];
        p_add_6[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar((((kept0 - var_mean_1_0) * v26) * v27) + v28);
      }
    }
  }
};

void run_rows_2(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_group_norm_bias, uint64_t p_group_norm_weight, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_add_6, uint64_t p_var_mean_1_0_kept, uint64_t p_var_mean_1_1_kept, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const rows_2 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const scalar*>(p_group_norm_bias), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<const accum*>(p_var_mean_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_kept), reinterpret_cast<scalar*>(p_add_6), reinterpret_cast<accum*>(p_var_mean_1_0_kept), reinterpret_cast<accum*>(p_var_mean_1_1_kept), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_keeping_rows<256>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_2");
}

// convolution, view, sign_default, mul_tensor, max_pool2d_with_indices_default, mul_tensor_1, var_mean
struct contract_2 {
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_conv_transpose_weight;
  const scalar* __restrict__ p_x;
  scalar* __restrict__ p_mul_tensor_1;
  accum* __restrict__ p_var_mean_tile_count;
  accum* __restrict__ p_var_mean_tile_m2;
  accum* __restrict__ p_var_mean_tile_mean;
  Index convolution_sum_box, convolution_sum_boxes, s0, s53, s77;

  static constexpr bool a_along_k = true, b_along_k = false, statistics = true;
  static constexpr int group = 0;
  static constexpr bool boxed = true;
  __host__ __device__ Index batches() const { return s77; }
  __host__ __device__ Index rows() const { return 128; }
  __host__ __device__ Index cols() const { return s0 * s53 + s0 * 2 + s53 * 2 + 4; }
  __host__ __device__ Index depth() const { return 1600; }
  struct ARow { Index m4; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    const Index q2 = k / 5;
    const Index e1 = q2 % 5;
    const Index e3 = k % 5;
    const Index q4 = k / 25;
    const accum v5 = to_accum(read(p_conv_transpose_weight[e1 * 5 + e3 + q4 * 3200 + at.m4 * 25]));
    return v5;
  }
  struct BCol { Index c0, c1, c2; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    const Index q1 = n / (s0 + 2);
    const Index e2 = n % (s0 + 2);
    return {q1 + 1, e2 + 1, s0 * z * s53 * 64 + q1 * s0 + e2 + s0 + 1};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    const Index q3 = k / 5;
    const Index e2 = q3 % 5;
    const Index e4 = k % 5;
    accum v1 = accum(0);
    if (inside(at.c0 - e2, s53) && inside(at.c1 - e4, s0)) {
      const Index q5 = k / 25;
      v1 = to_accum(read(p_x[at.c2 + q5 * s0 * s53 - e2 * s0 - e4]));
    }
    return v1;
  }
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  using Box = Dims<1, 1, 2, 34>;
  #elif CRUCIBLE_HOPPER
  using Box = Dims<1, 1, 4, 34>;
  #else
  using Box = Dims<1, 1, 6, 34>;
  #endif
  using Kernel = Dims<1, 1, 5, 5>;
  using Stride = Dims<1, 1, 1, 1>;
  using Dilation = Dims<1, 1, 1, 1>;
  using Shift = Dims<0, 0, -3, -3>;
  static constexpr bool flipped = true;
  __host__ __device__ Index extent(int d) const { return d == 0 ? 1 : d == 1 ? 1 : d == 2 ? s53 + 2 : s0 + 2; }
  __host__ __device__ Index groups() const { return 1; }
  static constexpr Index CHANNELS = 64;
  __host__ __device__ Index channels() const { return CHANNELS; }
  struct BAt { Index c0; bool inside; };
  __device__ __forceinline__ BAt b_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y2 = nearest(i2, s53);
    const Index y3 = nearest(i3, s0);
    return {s0 * z * s53 * 64 + y2 * s0 + y3, inside(i0, 1) && inside(i1, 1) && inside(i2, s53) && inside(i3, s0)};
  }
  __device__ __forceinline__ accum b_in(const BAt& at, Index channel) const {
    return to_accum(read(p_x[at.c0 + channel * s0 * s53]));
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BAt& at, Index channel) const {
    return &p_x[at.c0 + channel * s0 * s53];
  }
  template <class To>
  __device__ __forceinline__ accum finish_to(Index z, Index m, Index n, int split, accum value,
                                             To& to) const {
    return (value + to_accum(read(p_conv_transpose_bias[m])));
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    StoreOne to{there};
    return finish_to(z, m, n, split, value, to);
  }
  static constexpr bool in_pairs = true;  // columns are neighbours in memory
  static constexpr bool reads = false;  // finish reads what depends on the column
  __device__ __forceinline__ uintptr_t stored(Index z, Index m, Index n) const {
    return 0;
  }
  __device__ __forceinline__ void sink(Index z, Index m, Index tile_n, accum count, accum mean,
                                       accum m2) const {
    const Index at = convolution_sum_boxes * m * s77 + convolution_sum_boxes * z + tile_n;
    p_var_mean_tile_count[at] = count;
    p_var_mean_tile_mean[at] = mean;
    p_var_mean_tile_m2[at] = m2;
  }
  using Pool = Dims<1, 1, 2, 2>;
  using Pooling = Max;
  __device__ __forceinline__ accum pool_in(Index z, Index m, Index n, accum value) const {
    const accum v1 = (value + to_accum(read(p_conv_transpose_bias[m]))) * f_sign(to_accum(read(p_batch_norm_weight[m])));
    return v1;
  }
  __device__ __forceinline__ void pool_out(Index z, Index m, Index n, const Pooling& found) const {
    const accum pooled = found.total();
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    p_mul_tensor_1[q1 * q2 * m + q1 * q2 * z * 128 + q1 * m + q1 * z * 128 + q2 * m + q2 * z * 128 + m + z * 128 + n] = to_scalar(pooled * f_sign(to_accum(read(p_batch_norm_weight[m]))));
  }
};

void run_contract_2(uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_conv_transpose_weight, uint64_t p_x, uint64_t p_mul_tensor_1, uint64_t p_var_mean_tile_count, uint64_t p_var_mean_tile_m2, uint64_t p_var_mean_tile_mean, int64_t convolution_sum_box, int64_t convolution_sum_boxes, int64_t s0, int64_t s53, int64_t s77, uint64_t packed, uint64_t stream) {
  const contract_2 stage{reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_conv_transpose_weight), reinterpret_cast<const scalar*>(p_x), reinterpret_cast<scalar*>(p_mul_tensor_1), reinterpret_cast<accum*>(p_var_mean_tile_count), reinterpret_cast<accum*>(p_var_mean_tile_m2), reinterpret_cast<accum*>(p_var_mean_tile_mean), static_cast<Index>(convolution_sum_box), static_cast<Index>(convolution_sum_boxes), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  #if CRUCIBLE_NARROWER
  if (convolution_sum_box == 1) return check(launch_ready<Ready<3, 2, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 6, 18>, Ready<3, 2, 3, 1, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  if (convolution_sum_box == 2) return check(launch_ready<Ready<3, 4, 3, 1, Operands::Half>, Warpgroups<4, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 10, 10>, Ready<3, 2, 3, 1, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #endif
  check(launch_ready<Ready<3, 2, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  #if CRUCIBLE_NARROWER
  if (convolution_sum_box == 1) return check(launch_ready<Ready<3, 2, 3, 1, Operands::Native>, void>(in_boxes<Dims<1, 1, 6, 18>, Ready<3, 2, 3, 1, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  if (convolution_sum_box == 2) return check(launch_ready<Ready<3, 4, 3, 1, Operands::Native>, void>(in_boxes<Dims<1, 1, 10, 10>, Ready<3, 2, 3, 1, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #endif
  check(launch_ready<Ready<3, 2, 3, 1, Operands::Native>, void>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  check(launch_split<Split<4, 3, 9, 3, 32>, Mma<64, 128, 16, 32, 32, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_CONV == 1
  check(launch_window<Window<64, 8, Grade::Tf32>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_CONV == 2
  check(launch_contract<Mma<64, 256, 16, 32, 64, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_CONV == 3
  check(launch_window<Window<64, 8, Grade::Native>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #else
  check(launch_contract<Simt<32, 256, 8, 4, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #endif
}

int64_t packed_contract_2(int64_t convolution_sum_box, int64_t convolution_sum_boxes, int64_t s0, int64_t s53, int64_t s77) {
  const contract_2 stage{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, static_cast<Index>(convolution_sum_box), static_cast<Index>(convolution_sum_boxes), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  return ready_bytes<Ready<3, 2, 3, 1, Operands::Half>>(stage);
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  return ready_bytes<Ready<3, 2, 3, 1, Operands::Native>>(stage);
  #else
  static_cast<void>(stage);
  return 1639936;
  #endif
}

// var_mean, full_1, gt_1, mul_5, mul_4, view_3, mul_6, add_4, where_1, full, gt, mul_2, view_2, mul_3, add_3, where, add_1, rsqrt, add
struct rows_3 {
  const accum* __restrict__ p_var_mean_tile_count;
  const accum* __restrict__ p_var_mean_tile_m2;
  const accum* __restrict__ p_var_mean_tile_mean;
  int64_t* p_add;
  int64_t* p_batch_norm_num_batches_tracked;
  scalar* p_batch_norm_running_mean;
  scalar* p_batch_norm_running_var;
  accum* __restrict__ p_rsqrt;
  accum* __restrict__ p_var_mean_0_kept;
  scalar* p_where;
  scalar* p_where_1;
  Index convolution_sum_boxes, s0, s53, s77;

  __host__ __device__ Index rows() const { return 128; }
  struct Acc0 {
    Moments r0;  // var_mean
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const accum* const at1 = &p_var_mean_tile_count[convolution_sum_boxes * row * s77];
    const accum* const at2 = &p_var_mean_tile_mean[convolution_sum_boxes * row * s77];
    const accum* const at3 = &p_var_mean_tile_m2[convolution_sum_boxes * row * s77];
    const Stretch run4 = stretch(0, convolution_sum_boxes * s77, alike(at1, at2, at3));
    for (Index k = lanes.first(); k < run4.vectors; k += lanes.step() * IN_FLIGHT) {
      Vector<accum> x5[IN_FLIGHT];
      Vector<accum> x6[IN_FLIGHT];
      Vector<accum> x7[IN_FLIGHT];
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * lanes.step();
        if (kk < run4.vectors) {
          const Index j = run4.begin + kk * VECTOR;
          x5[d] = read_vector<true>(at1 + j);
          x6[d] = read_vector<true>(at2 + j);
          x7[d] = read_vector<true>(at3 + j);
        }
      }
      #pragma unroll
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * lanes.step();
        if (kk >= run4.vectors) break;
        #pragma unroll
        for (int u = 0; u < VECTOR; ++u) {
          a0.r0.step(x5[d][u], x6[d][u], x7[d][u]);
        }
      }
    }
    #pragma unroll 4
    for (int64_t k = lanes.first(); k < run4.singles(); k += lanes.step()) {
      const Index j = run4.single(k);
      a0.r0.step(read(at1[j]), read(at2[j]), read(at3[j]));
    }
    lanes.join(a0);
    const accum var_mean_0 = a0.r0.get_mean();
    const accum var_mean_1 = a0.r0.get_m2();
    if (lanes.leads()) {
      const int64_t v8 = int64_t(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4);
      const bool v9 = v8 > int64_t(0);
      const accum v10 = to_accum(p_batch_norm_running_var[row]);
      const accum v11 = var_mean_1 / accum(v8);
      const accum v12 = accum((double(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4) / double(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4 - 1)));
      const accum v13 = v9 ? ((v10 * accum(0.9)) + ((v11 * v12) * accum(0.1))) : v10;
      p_where_1[row] = to_scalar(v13);
      const accum v14 = to_accum(p_batch_norm_running_mean[row]);
      const accum v15 = v9 ? ((v14 * accum(0.9)) + (var_mean_0 * accum(0.1))) : v14;
      p_where[row] = to_scalar(v15);
      p_rsqrt[row] = f_rsqrt((v11 + accum(1e-05)));
      p_var_mean_0_kept[row] = var_mean_0;
      if (row < 1) {
        p_add[0] = p_batch_norm_num_batches_tracked[0] + int64_t(1);
      }
    }
  }
};

void run_rows_3(uint64_t p_var_mean_tile_count, uint64_t p_var_mean_tile_m2, uint64_t p_var_mean_tile_mean, uint64_t p_add, uint64_t p_batch_norm_num_batches_tracked, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_rsqrt, uint64_t p_var_mean_0_kept, uint64_t p_where, uint64_t p_where_1, int64_t convolution_sum_boxes, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const rows_3 stage{reinterpret_cast<const accum*>(p_var_mean_tile_count), reinterpret_cast<const accum*>(p_var_mean_tile_m2), reinterpret_cast<const accum*>(p_var_mean_tile_mean), reinterpret_cast<int64_t*>(p_add), reinterpret_cast<int64_t*>(p_batch_norm_num_batches_tracked), reinterpret_cast<scalar*>(p_batch_norm_running_mean), reinterpret_cast<scalar*>(p_batch_norm_running_var), reinterpret_cast<accum*>(p_rsqrt), reinterpret_cast<accum*>(p_var_mean_0_kept), reinterpret_cast<scalar*>(p_where), reinterpret_cast<scalar*>(p_where_1), static_cast<Index>(convolution_sum_boxes), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_rows<256>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_3");
}

// var_mean_1, var_mean, sub_tensor, mul_tensor_2, view, mul_tensor_3, view_1, add_tensor, tanh, view_6, sub_2, add_5, rsqrt_1, mul_13, view_7, view_8, mul_14, view_9, add_6
struct rows_4 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_group_norm_bias;
  const scalar* __restrict__ p_group_norm_weight;
  const scalar* __restrict__ p_mul_tensor_1;
  const accum* __restrict__ p_rsqrt;
  const accum* __restrict__ p_var_mean_0_kept;
  scalar* __restrict__ p_add_6;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return s77 * 8; }
  struct Acc0 {
    Moments r0;  // var_mean_1
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    const Index e4 = row % 8;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v5 = read(p_var_mean_0_kept[e4 * 16 + part]);
      const accum v7 = read(p_rsqrt[e4 * 16 + part]);
      const accum v9 = to_accum(read(p_batch_norm_weight[e4 * 16 + part]));
      const accum v11 = to_accum(read(p_batch_norm_bias[e4 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v3 = to_accum(read(p_mul_tensor_1[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        const accum v6 = v3 - v5;
        const accum v8 = v6 * v7;
        const accum v10 = v8 * v9;
        const accum v12 = v10 + v11;
        const accum v13 = tanh(v12);
        a0.r0.step(v13);
      }
    }
    lanes.join(a0);
    const accum var_mean_1_0 = a0.r0.get_mean();
    const accum var_mean_1_1 = a0.r0.get_m2();
    const accum v24 = var_mean_1_1 / accum(int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16));
    const accum v25 = f_rsqrt((v24 + accum(1e-05)));
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v15 = read(p_var_mean_0_kept[e4 * 16 + part]);
      const accum v17 = read(p_rsqrt[e4 * 16 + part]);
      const accum v19 = to_accum(read(p_batch_norm_weight[e4 * 16 + part]));
      const accum v21 = to_accum(read(p_batch_norm_bias[e4 * 16 + part]));
      const accum v26 = to_accum(read(p_group_norm_weight[e4 * 16 + part]));
      const accum v27 = to_accum(read(p_group_norm_bias[e4 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v14 = to_accum(read(p_mul_tensor_1[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        const accum v16 = v14 - v15;
        const accum v18 = v16 * v17;
        const accum v20 = v18 * v19;
        const accum v22 = v20 + v21;
        const accum v23 = tanh(v22);
        p_add_6[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar((((v23 - var_mean_1_0) * v25) * v26) + v27);
      }
    }
  }
  __host__ __device__ int64_t kept() const { return 1 * static_cast<int64_t>((s0 / 2) * (s53 / 2) * 16 + (s0 / 2) * 16 + (s53 / 2) * 16 + 16); }
  template <class L>
  __device__ __forceinline__ void keeping(const L& lanes, Index row, accum* kept) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    const Index e4 = row % 8;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v5 = read(p_var_mean_0_kept[e4 * 16 + part]);
      const accum v7 = read(p_rsqrt[e4 * 16 + part]);
      const accum v9 = to_accum(read(p_batch_norm_weight[e4 * 16 + part]));
      const accum v11 = to_accum(read(p_batch_norm_bias[e4 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v3 = to_accum(read(p_mul_tensor_1[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        const accum v6 = v3 - v5;
        const accum v8 = v6 * v7;
        const accum v10 = v8 * v9;
        const accum v12 = v10 + v11;
        const accum v13 = tanh(v12);
        a0.r0.step(v13);
        kept[part * (q1 * q2 + q1 + q2 + 1) + rest] = v13;
      }
    }
    lanes.join(a0);
    const accum var_mean_1_0 = a0.r0.get_mean();
    const accum var_mean_1_1 = a0.r0.get_m2();
    const accum v14 = var_mean_1_1 / accum(int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16));
    const accum v15 = f_rsqrt((v14 + accum(1e-05)));
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v16 = to_accum(read(p_group_norm_weight[e4 * 16 + part]));
      const accum v17 = to_accum(read(p_group_norm_bias[e4 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum kept0 = kept[part * (q1 * q2 + q1 + q2 + 1) + rest];
        p_add_6[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar((((kept0 - var_mean_1_0) * v15) * v16) + v17);
      }
    }
  }
};

void run_rows_4(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_weight, uint64_t p_group_norm_bias, uint64_t p_group_norm_weight, uint64_t p_mul_tensor_1, uint64_t p_rsqrt, uint64_t p_var_mean_0_kept, uint64_t p_add_6, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const rows_4 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_group_norm_bias), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<const scalar*>(p_mul_tensor_1), reinterpret_cast<const accum*>(p_rsqrt), reinterpret_cast<const accum*>(p_var_mean_0_kept), reinterpret_cast<scalar*>(p_add_6), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_keeping_rows<256>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_4");
}

// convolution
struct contract_3 {
  const scalar* __restrict__ p_conv_transpose_weight;
  const scalar* __restrict__ p_x;
  scalar* __restrict__ p_convolution_sum_0_kept;
  Index convolution_sum_box, s0, s53, s77;

  static constexpr bool a_along_k = true, b_along_k = false, statistics = false;
  static constexpr int group = 0;
  static constexpr bool boxed = true;
  __host__ __device__ Index batches() const { return s77; }
  __host__ __device__ Index rows() const { return 128; }
  __host__ __device__ Index cols() const { return s0 * s53 + s0 * 2 + s53 * 2 + 4; }
  __host__ __device__ Index depth() const { return 1600; }
  struct ARow { Index m4; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    const Index q2 = k / 5;
    const Index e1 = q2 % 5;
    const Index e3 = k % 5;
    const Index q4 = k / 25;
    const accum v5 = to_accum(read(p_conv_transpose_weight[e1 * 5 + e3 + q4 * 3200 + at.m4 * 25]));
    return v5;
  }
  struct BCol { Index c0, c1, c2; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    const Index q1 = n / (s0 + 2);
    const Index e2 = n % (s0 + 2);
    return {q1 + 1, e2 + 1, s0 * z * s53 * 64 + q1 * s0 + e2 + s0 + 1};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    const Index q3 = k / 5;
    const Index e2 = q3 % 5;
    const Index e4 = k % 5;
    accum v1 = accum(0);
    if (inside(at.c0 - e2, s53) && inside(at.c1 - e4, s0)) {
      const Index q5 = k / 25;
      v1 = to_accum(read(p_x[at.c2 + q5 * s0 * s53 - e2 * s0 - e4]));
    }
    return v1;
  }
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  using Box = Dims<1, 1, 2, 34>;
  #elif CRUCIBLE_HOPPER
  using Box = Dims<1, 1, 3, 34>;
  #else
  using Box = Dims<1, 1, 7, 34>;
  #endif
  using Kernel = Dims<1, 1, 5, 5>;
  using Stride = Dims<1, 1, 1, 1>;
  using Dilation = Dims<1, 1, 1, 1>;
  using Shift = Dims<0, 0, -3, -3>;
  static constexpr bool flipped = true;
  __host__ __device__ Index extent(int d) const { return d == 0 ? 1 : d == 1 ? 1 : d == 2 ? s53 + 2 : s0 + 2; }
  __host__ __device__ Index groups() const { return 1; }
  static constexpr Index CHANNELS = 64;
  __host__ __device__ Index channels() const { return CHANNELS; }
  struct BAt { Index c0; bool inside; };
  __device__ __forceinline__ BAt b_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y2 = nearest(i2, s53);
    const Index y3 = nearest(i3, s0);
    return {s0 * z * s53 * 64 + y2 * s0 + y3, inside(i0, 1) && inside(i1, 1) && inside(i2, s53) && inside(i3, s0)};
  }
  __device__ __forceinline__ accum b_in(const BAt& at, Index channel) const {
    return to_accum(read(p_x[at.c0 + channel * s0 * s53]));
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BAt& at, Index channel) const {
    return &p_x[at.c0 + channel * s0 * s53];
  }
  template <class To>
  __device__ __forceinline__ accum finish_to(Index z, Index m, Index n, int split, accum value,
                                             To& to) const {
    to(&p_convolution_sum_0_kept[m * s0 * s53 + s0 * z * s53 * 128 + m * s0 * 2 + m * s53 * 2 + s0 * z * 256 + z * s53 * 256 + m * 4 + n + z * 512], to_scalar(value));
    return value;
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    StoreOne to{there};
    return finish_to(z, m, n, split, value, to);
  }
  static constexpr bool in_pairs = true;  // columns are neighbours in memory
  static constexpr bool reads = false;  // finish reads what depends on the column
  __device__ __forceinline__ uintptr_t stored(Index z, Index m, Index n) const {
    return reinterpret_cast<uintptr_t>(&p_convolution_sum_0_kept[m * s0 * s53 + s0 * z * s53 * 128 + m * s0 * 2 + m * s53 * 2 + s0 * z * 256 + z * s53 * 256 + m * 4 + n + z * 512]) / sizeof(p_convolution_sum_0_kept[0]);
  }
};

void run_contract_3(uint64_t p_conv_transpose_weight, uint64_t p_x, uint64_t p_convolution_sum_0_kept, int64_t convolution_sum_box, int64_t s0, int64_t s53, int64_t s77, uint64_t packed, uint64_t stream) {
  const contract_3 stage{reinterpret_cast<const scalar*>(p_conv_transpose_weight), reinterpret_cast<const scalar*>(p_x), reinterpret_cast<scalar*>(p_convolution_sum_0_kept), static_cast<Index>(convolution_sum_box), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  #if CRUCIBLE_NARROWER
  if (convolution_sum_box == 1) return check(launch_ready<Ready<3, 2, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 6, 18>, Ready<3, 2, 3, 1, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  if (convolution_sum_box == 2) return check(launch_ready<Ready<3, 4, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 10, 10>, Ready<3, 2, 3, 1, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #endif
  check(launch_ready<Ready<3, 2, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  #if CRUCIBLE_NARROWER
  if (convolution_sum_box == 1) return check(launch_ready<Ready<3, 2, 3, 1, Operands::Native>, void>(in_boxes<Dims<1, 1, 6, 18>, Ready<3, 2, 3, 1, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  if (convolution_sum_box == 2) return check(launch_ready<Ready<3, 4, 3, 1, Operands::Native>, void>(in_boxes<Dims<1, 1, 10, 10>, Ready<3, 2, 3, 1, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #endif
  check(launch_ready<Ready<3, 2, 3, 1, Operands::Native>, void>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  check(launch_split<Split<4, 3, 9, 3, 32>, Mma<64, 128, 16, 32, 32, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_CONV == 1
  check(launch_window<Window<64, 8, Grade::Tf32>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_CONV == 2
  check(launch_contract<Mma<64, 256, 16, 32, 64, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_CONV == 3
  check(launch_window<Window<64, 8, Grade::Native>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #else
  check(launch_contract<Simt<32, 256, 8, 4, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #endif
}

int64_t packed_contract_3(int64_t convolution_sum_box, int64_t s0, int64_t s53, int64_t s77) {
  const contract_3 stage{nullptr, nullptr, nullptr, static_cast<Index>(convolution_sum_box), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  return ready_bytes<Ready<3, 2, 3, 1, Operands::Half>>(stage);
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  return ready_bytes<Ready<3, 2, 3, 1, Operands::Native>>(stage);
  #else
  static_cast<void>(stage);
  return 1639936;
  #endif
}

// var_mean, convolution, view, sub, add, rsqrt, mul, view_1, mul_1, view_2, add_1, max_pool2d_with_indices, tanh, view_3, sub_1, add_2, rsqrt_1, mul_8, view_4, view_5, mul_9, view_6, add_3
struct rows_5 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_running_mean;
  const scalar* __restrict__ p_batch_norm_running_var;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const scalar* __restrict__ p_group_norm_bias;
  const scalar* __restrict__ p_group_norm_weight;
  scalar* __restrict__ p_add_3;
  accum* __restrict__ p_var_mean_0_kept;
  accum* __restrict__ p_var_mean_1_kept;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return s77 * 8; }
  struct Acc0 {
    Moments r0;  // var_mean
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    const Index e7 = row % 8;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v8 = to_accum(read(p_conv_transpose_bias[e7 * 16 + part]));
      const accum v10 = to_accum(read(p_batch_norm_running_mean[e7 * 16 + part]));
      const accum v12 = to_accum(read(p_batch_norm_weight[e7 * 16 + part]));
      const accum v13 = to_accum(read(p_batch_norm_running_var[e7 * 16 + part]));
      const accum v14 = v13 + accum(1e-05);
      const accum v15 = f_rsqrt(v14);
      const accum v16 = v12 * v15;
      const accum v18 = to_accum(read(p_batch_norm_bias[e7 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        WindowMax fold3;
        const Index q4 = rest / (q1 + 1);
        const Index e5 = rest % (q1 + 1);
        for (Index t11 = 0; t11 < 2; ++t11) {
          for (Index t12 = 0; t12 < 2; ++t12) {
            const accum v6 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q4 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t11 + e5 * 2 + q4 * 4 + part * 4 + row * 64 + t11 * 2 + t12]));
            const accum v9 = v6 + v8;
            const accum v11 = v9 - v10;
            const accum v17 = v11 * v16;
            const accum v19 = v17 + v18;
            const int64_t v20 = int64_t(q4 * s0 * 2 + s0 * t11 + e5 * 2 + q4 * 4 + t11 * 2 + t12);
            fold3.step(v19, v20);
          }
        }
        const accum v21 = tanh(fold3.value());
        a0.r0.step(v21);
      }
    }
    lanes.join(a0);
    const accum var_mean_0 = a0.r0.get_mean();
    const accum var_mean_1 = a0.r0.get_m2();
    if (lanes.leads()) {
      p_var_mean_0_kept[row] = var_mean_0;
      p_var_mean_1_kept[row] = var_mean_1;
    }
    const accum v40 = var_mean_1 / accum(int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16));
    const accum v41 = f_rsqrt((v40 + accum(1e-05)));
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v26 = to_accum(read(p_conv_transpose_bias[e7 * 16 + part]));
      const accum v28 = to_accum(read(p_batch_norm_running_mean[e7 * 16 + part]));
      const accum v30 = to_accum(read(p_batch_norm_weight[e7 * 16 + part]));
      const accum v31 = to_accum(read(p_batch_norm_running_var[e7 * 16 + part]));
      const accum v32 = v31 + accum(1e-05);
      const accum v33 = f_rsqrt(v32);
      const accum v34 = v30 * v33;
      const accum v36 = to_accum(read(p_batch_norm_bias[e7 * 16 + part]));
      const accum v42 = to_accum(read(p_group_norm_weight[e7 * 16 + part]));
      const accum v43 = to_accum(read(p_group_norm_bias[e7 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        WindowMax fold22;
        const Index q23 = rest / (q1 + 1);
        const Index e24 = rest % (q1 + 1);
        for (Index t11 = 0; t11 < 2; ++t11) {
          for (Index t12 = 0; t12 < 2; ++t12) {
            const accum v25 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q23 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t11 + e24 * 2 + q23 * 4 + part * 4 + row * 64 + t11 * 2 + t12]));
            const accum v27 = v25 + v26;
            const accum v29 = v27 - v28;
            const accum v35 = v29 * v34;
            const accum v37 = v35 + v36;
            const int64_t v38 = int64_t(q23 * s0 * 2 + s0 * t11 + e24 * 2 + q23 * 4 + t11 * 2 + t12);
            fold22.step(v37, v38);
          }
        }
        const accum v39 = tanh(fold22.value());
        p_add_3[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar((((v39 - var_mean_0) * v41) * v42) + v43);
      }
    }
  }
  __host__ __device__ int64_t kept() const { return 1 * static_cast<int64_t>((s0 / 2) * (s53 / 2) * 16 + (s0 / 2) * 16 + (s53 / 2) * 16 + 16); }
  template <class L>
  __device__ __forceinline__ void keeping(const L& lanes, Index row, accum* kept) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    const Index e7 = row % 8;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v8 = to_accum(read(p_conv_transpose_bias[e7 * 16 + part]));
      const accum v10 = to_accum(read(p_batch_norm_running_mean[e7 * 16 + part]));
      const accum v12 = to_accum(read(p_batch_norm_weight[e7 * 16 + part]));
      const accum v13 = to_accum(read(p_batch_norm_running_var[e7 * 16 + part]));
      const accum v14 = v13 + accum(1e-05);
      const accum v15 = f_rsqrt(v14);
      const accum v16 = v12 * v15;
      const accum v18 = to_accum(read(p_batch_norm_bias[e7 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        WindowMax fold3;
        const Index q4 = rest / (q1 + 1);
        const Index e5 = rest % (q1 + 1);
        for (Index t11 = 0; t11 < 2; ++t11) {
          for (Index t12 = 0; t12 < 2; ++t12) {
            const accum v6 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q4 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t11 + e5 * 2 + q4 * 4 + part * 4 + row * 64 + t11 * 2 + t12]));
            const accum v9 = v6 + v8;
            const accum v11 = v9 - v10;
            const accum v17 = v11 * v16;
            const accum v19 = v17 + v18;
            const int64_t v20 = int64_t(q4 * s0 * 2 + s0 * t11 + e5 * 2 + q4 * 4 + t11 * 2 + t12);
            fold3.step(v19, v20);
          }
        }
        const accum v21 = tanh(fold3.value());
        a0.r0.step(v21);
        kept[part * (q1 * q2 + q1 + q2 + 1) + rest] = v21;
      }
    }
    lanes.join(a0);
    const accum var_mean_0 = a0.r0.get_mean();
    const accum var_mean_1 = a0.r0.get_m2();
    if (lanes.leads()) {
      p_var_mean_0_kept[row] = var_mean_0;
      p_var_mean_1_kept[row] = var_mean_1;
    }
    const accum v22 = var_mean_1 / accum(int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16));
    const accum v23 = f_rsqrt((v22 + accum(1e-05)));
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v24 = to_accum(read(p_group_norm_weight[e7 * 16 + part]));
      const accum v25 = to_accum(read(p_group_norm_bias[e7 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum kept0 = kept[part * (q1 * q2 + q1 + q2 + 1) + rest];
        p_add_3[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar((((kept0 - var_mean_0) * v23) * v24) + v25);
      }
    }
  }
};

void run_rows_5(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_group_norm_bias, uint64_t p_group_norm_weight, uint64_t p_add_3, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const rows_5 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_running_mean), reinterpret_cast<const scalar*>(p_batch_norm_running_var), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const scalar*>(p_group_norm_bias), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<scalar*>(p_add_3), reinterpret_cast<accum*>(p_var_mean_0_kept), reinterpret_cast<accum*>(p_var_mean_1_kept), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_keeping_rows<256>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_5");
}

// convolution, view, sub, add, rsqrt, mul, view_1, mul_1, view_2, add_1, max_pool2d_with_indices, tanh
struct contract_4 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_running_mean;
  const scalar* __restrict__ p_batch_norm_running_var;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_conv_transpose_weight;
  const scalar* __restrict__ p_x;
  scalar* __restrict__ p_tanh;
  Index convolution_sum_box, s0, s53, s77;

  static constexpr bool a_along_k = true, b_along_k = false, statistics = false;
  static constexpr int group = 0;
  static constexpr bool boxed = true;
  __host__ __device__ Index batches() const { return s77; }
  __host__ __device__ Index rows() const { return 128; }
  __host__ __device__ Index cols() const { return s0 * s53 + s0 * 2 + s53 * 2 + 4; }
  __host__ __device__ Index depth() const { return 1600; }
  struct ARow { Index m4; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    const Index q2 = k / 5;
    const Index e1 = q2 % 5;
    const Index e3 = k % 5;
    const Index q4 = k / 25;
    const accum v5 = to_accum(read(p_conv_transpose_weight[e1 * 5 + e3 + q4 * 3200 + at.m4 * 25]));
    return v5;
  }
  struct BCol { Index c0, c1, c2; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    const Index q1 = n / (s0 + 2);
    const Index e2 = n % (s0 + 2);
    return {q1 + 1, e2 + 1, s0 * z * s53 * 64 + q1 * s0 + e2 + s0 + 1};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    const Index q3 = k / 5;
    const Index e2 = q3 % 5;
    const Index e4 = k % 5;
    accum v1 = accum(0);
    if (inside(at.c0 - e2, s53) && inside(at.c1 - e4, s0)) {
      const Index q5 = k / 25;
      v1 = to_accum(read(p_x[at.c2 + q5 * s0 * s53 - e2 * s0 - e4]));
    }
    return v1;
  }
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  using Box = Dims<1, 1, 2, 34>;
  #elif CRUCIBLE_HOPPER
  using Box = Dims<1, 1, 4, 34>;
  #else
  using Box = Dims<1, 1, 6, 34>;
  #endif
  using Kernel = Dims<1, 1, 5, 5>;
  using Stride = Dims<1, 1, 1, 1>;
  using Dilation = Dims<1, 1, 1, 1>;
  using Shift = Dims<0, 0, -3, -3>;
  static constexpr bool flipped = true;
  __host__ __device__ Index extent(int d) const { return d == 0 ? 1 : d == 1 ? 1 : d == 2 ? s53 + 2 : s0 + 2; }
  __host__ __device__ Index groups() const { return 1; }
  static constexpr Index CHANNELS = 64;
  __host__ __device__ Index channels() const { return CHANNELS; }
  struct BAt { Index c0; bool inside; };
  __device__ __forceinline__ BAt b_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y2 = nearest(i2, s53);
    const Index y3 = nearest(i3, s0);
    return {s0 * z * s53 * 64 + y2 * s0 + y3, inside(i0, 1) && inside(i1, 1) && inside(i2, s53) && inside(i3, s0)};
  }
  __device__ __forceinline__ accum b_in(const BAt& at, Index channel) const {
    return to_accum(read(p_x[at.c0 + channel * s0 * s53]));
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BAt& at, Index channel) const {
    return &p_x[at.c0 + channel * s0 * s53];
  }
  template <class To>
  __device__ __forceinline__ accum finish_to(Index z, Index m, Index n, int split, accum value,
                                             To& to) const {
    return value;
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    StoreOne to{there};
    return finish_to(z, m, n, split, value, to);
  }
  static constexpr bool in_pairs = true;  // columns are neighbours in memory
  static constexpr bool reads = false;  // finish reads what depends on the column
  __device__ __forceinline__ uintptr_t stored(Index z, Index m, Index n) const {
    return 0;
  }
  using Pool = Dims<1, 1, 2, 2>;
  using Pooling = Max;
  __device__ __forceinline__ accum pool_in(Index z, Index m, Index n, accum value) const {
    const accum v1 = (value + to_accum(read(p_conv_transpose_bias[m]))) - to_accum(read(p_batch_norm_running_mean[m]));
    const accum v2 = to_accum(read(p_batch_norm_running_var[m])) + accum(1e-05);
    const accum v3 = v1 * (to_accum(read(p_batch_norm_weight[m])) * f_rsqrt(v2));
    return (v3 + to_accum(read(p_batch_norm_bias[m])));
  }
  __device__ __forceinline__ void pool_out(Index z, Index m, Index n, const Pooling& found) const {
    const accum pooled = found.total();
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    p_tanh[q1 * q2 * m + q1 * q2 * z * 128 + q1 * m + q1 * z * 128 + q2 * m + q2 * z * 128 + m + z * 128 + n] = to_scalar(tanh(pooled));
  }
};

void run_contract_4(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_conv_transpose_weight, uint64_t p_x, uint64_t p_tanh, int64_t convolution_sum_box, int64_t s0, int64_t s53, int64_t s77, uint64_t packed, uint64_t stream) {
  const contract_4 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_running_mean), reinterpret_cast<const scalar*>(p_batch_norm_running_var), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_conv_transpose_weight), reinterpret_cast<const scalar*>(p_x), reinterpret_cast<scalar*>(p_tanh), static_cast<Index>(convolution_sum_box), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  #if CRUCIBLE_NARROWER
  if (convolution_sum_box == 1) return check(launch_ready<Ready<3, 2, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 6, 18>, Ready<3, 2, 3, 1, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  if (convolution_sum_box == 2) return check(launch_ready<Ready<3, 4, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 10, 10>, Ready<3, 2, 3, 1, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #endif
  check(launch_ready<Ready<3, 2, 3, 1, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  #if CRUCIBLE_NARROWER
  if (convolution_sum_box == 1) return check(launch_ready<Ready<3, 2, 3, 1, Operands::Native>, void>(in_boxes<Dims<1, 1, 6, 18>, Ready<3, 2, 3, 1, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  if (convolution_sum_box == 2) return check(launch_ready<Ready<3, 4, 3, 1, Operands::Native>, void>(in_boxes<Dims<1, 1, 10, 10>, Ready<3, 2, 3, 1, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #endif
  check(launch_ready<Ready<3, 2, 3, 1, Operands::Native>, void>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  check(launch_split<Split<4, 3, 9, 3, 32>, Mma<64, 128, 16, 32, 32, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #elif CRUCIBLE_CONV == 1
  check(launch_window<Window<64, 8, Grade::Tf32>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #elif CRUCIBLE_CONV == 2
  check(launch_contract<Mma<64, 256, 16, 32, 64, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #elif CRUCIBLE_CONV == 3
  check(launch_window<Window<64, 8, Grade::Native>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #else
  check(launch_contract<Simt<32, 256, 8, 4, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #endif
}

int64_t packed_contract_4(int64_t convolution_sum_box, int64_t s0, int64_t s53, int64_t s77) {
  const contract_4 stage{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, static_cast<Index>(convolution_sum_box), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  return ready_bytes<Ready<3, 2, 3, 1, Operands::Half>>(stage);
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  return ready_bytes<Ready<3, 2, 3, 1, Operands::Native>>(stage);
  #else
  static_cast<void>(stage);
  return 1639936;
  #endif
}

// var_mean, view_3, sub_1, add_2, rsqrt_1, mul_8, view_4, view_5, mul_9, view_6, add_3
struct rows_6 {
  const scalar* __restrict__ p_group_norm_bias;
  const scalar* __restrict__ p_group_norm_weight;
  const scalar* __restrict__ p_tanh;
  scalar* __restrict__ p_add_3;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return s77 * 8; }
  struct Acc0 {
    Moments r0;  // var_mean
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v3 = to_accum(read(p_tanh[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        a0.r0.step(v3);
      }
    }
    lanes.join(a0);
    const accum var_mean_0 = a0.r0.get_mean();
    const accum var_mean_1 = a0.r0.get_m2();
    const accum v5 = var_mean_1 / accum(int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16));
    const accum v6 = f_rsqrt((v5 + accum(1e-05)));
    const Index e7 = row % 8;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v8 = to_accum(read(p_group_norm_weight[e7 * 16 + part]));
      const accum v9 = to_accum(read(p_group_norm_bias[e7 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v4 = to_accum(read(p_tanh[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        p_add_3[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar((((v4 - var_mean_0) * v6) * v8) + v9);
      }
    }
  }
  __host__ __device__ int64_t kept() const { return 1 * static_cast<int64_t>((s0 / 2) * (s53 / 2) * 16 + (s0 / 2) * 16 + (s53 / 2) * 16 + 16); }
  template <class L>
  __device__ __forceinline__ void keeping(const L& lanes, Index row, accum* kept) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v3 = to_accum(read(p_tanh[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        a0.r0.step(v3);
        kept[part * (q1 * q2 + q1 + q2 + 1) + rest] = v3;
      }
    }
    lanes.join(a0);
    const accum var_mean_0 = a0.r0.get_mean();
    const accum var_mean_1 = a0.r0.get_m2();
    const accum v4 = var_mean_1 / accum(int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16));
    const accum v5 = f_rsqrt((v4 + accum(1e-05)));
    const Index e6 = row % 8;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v7 = to_accum(read(p_group_norm_weight[e6 * 16 + part]));
      const accum v8 = to_accum(read(p_group_norm_bias[e6 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum kept0 = kept[part * (q1 * q2 + q1 + q2 + 1) + rest];
        p_add_3[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar((((kept0 - var_mean_0) * v5) * v7) + v8);
      }
    }
  }
};

void run_rows_6(uint64_t p_group_norm_bias, uint64_t p_group_norm_weight, uint64_t p_tanh, uint64_t p_add_3, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const rows_6 stage{reinterpret_cast<const scalar*>(p_group_norm_bias), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<const scalar*>(p_tanh), reinterpret_cast<scalar*>(p_add_3), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_keeping_rows<256>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_6");
}

// One after another, those that are asked for.
void run_training_forward(uint64_t stages, uint64_t p_conv_transpose_weight, uint64_t p_conv_transpose_bias, uint64_t p_batch_norm_weight, uint64_t p_batch_norm_bias, uint64_t p_group_norm_weight, uint64_t p_group_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_num_batches_tracked, uint64_t p_x, uint64_t p_convolution_sum_0_kept, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_add_6, uint64_t p_var_mean_1_0_kept, uint64_t p_var_mean_1_1_kept, uint64_t memory, int64_t in_var_mean_tile_count, int64_t at_var_mean_tile_count, int64_t in_var_mean_tile_mean, int64_t at_var_mean_tile_mean, int64_t in_var_mean_tile_m2, int64_t at_var_mean_tile_m2, int64_t in_packed_contract_1, int64_t at_packed_contract_1, int64_t convolution_sum_box, int64_t convolution_sum_boxes, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const uint64_t holders[] = {memory, p_convolution_sum_0_kept, p_var_mean_0_kept, p_var_mean_1_kept, p_add_6, p_var_mean_1_0_kept, p_var_mean_1_1_kept};
  const uint64_t p_var_mean_tile_count = holders[in_var_mean_tile_count] + at_var_mean_tile_count;
  const uint64_t p_var_mean_tile_mean = holders[in_var_mean_tile_mean] + at_var_mean_tile_mean;
  const uint64_t p_var_mean_tile_m2 = holders[in_var_mean_tile_m2] + at_var_mean_tile_m2;
  const uint64_t packed_contract_1 = holders[in_packed_contract_1] + at_packed_contract_1;
  if (stages & 1) run_contract_1(p_conv_transpose_bias, p_conv_transpose_weight, p_x, p_convolution_sum_0_kept, p_var_mean_tile_count, p_var_mean_tile_m2, p_var_mean_tile_mean, convolution_sum_box, convolution_sum_boxes, s0, s53, s77, packed_contract_1, stream);
  if (stages & 2) run_rows_1(p_var_mean_tile_count, p_var_mean_tile_m2, p_var_mean_tile_mean, p_batch_norm_num_batches_tracked, p_batch_norm_num_batches_tracked, p_batch_norm_running_mean, p_batch_norm_running_var, p_var_mean_0_kept, p_var_mean_1_kept, p_batch_norm_running_mean, p_batch_norm_running_var, convolution_sum_boxes, s0, s53, s77, stream);
  if (stages & 4) run_rows_2(p_batch_norm_bias, p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_group_norm_bias, p_group_norm_weight, p_var_mean_0_kept, p_var_mean_1_kept, p_add_6, p_var_mean_1_0_kept, p_var_mean_1_1_kept, s0, s53, s77, stream);
}

// One after another, those that are asked for.
void run_training_inference(uint64_t stages, uint64_t p_conv_transpose_weight, uint64_t p_conv_transpose_bias, uint64_t p_batch_norm_weight, uint64_t p_batch_norm_bias, uint64_t p_group_norm_weight, uint64_t p_group_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_num_batches_tracked, uint64_t p_x, uint64_t p_add_6, uint64_t memory, int64_t in_mul_tensor_1, int64_t at_mul_tensor_1, int64_t in_var_mean_tile_count, int64_t at_var_mean_tile_count, int64_t in_var_mean_tile_mean, int64_t at_var_mean_tile_mean, int64_t in_var_mean_tile_m2, int64_t at_var_mean_tile_m2, int64_t in_packed_contract_1, int64_t at_packed_contract_1, int64_t in_rsqrt, int64_t at_rsqrt, int64_t in_var_mean_0_kept, int64_t at_var_mean_0_kept, int64_t convolution_sum_box, int64_t convolution_sum_boxes, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const uint64_t holders[] = {memory, p_add_6};
  const uint64_t p_mul_tensor_1 = holders[in_mul_tensor_1] + at_mul_tensor_1;
  const uint64_t p_var_mean_tile_count = holders[in_var_mean_tile_count] + at_var_mean_tile_count;
  const uint64_t p_var_mean_tile_mean = holders[in_var_mean_tile_mean] + at_var_mean_tile_mean;
  const uint64_t p_var_mean_tile_m2 = holders[in_var_mean_tile_m2] + at_var_mean_tile_m2;
  const uint64_t packed_contract_1 = holders[in_packed_contract_1] + at_packed_contract_1;
  const uint64_t p_rsqrt = holders[in_rsqrt] + at_rsqrt;
  const uint64_t p_var_mean_0_kept = holders[in_var_mean_0_kept] + at_var_mean_0_kept;
  if (stages & 1) run_contract_2(p_batch_norm_weight, p_conv_transpose_bias, p_conv_transpose_weight, p_x, p_mul_tensor_1, p_var_mean_tile_count, p_var_mean_tile_m2, p_var_mean_tile_mean, convolution_sum_box, convolution_sum_boxes, s0, s53, s77, packed_contract_1, stream);
  if (stages & 2) run_rows_3(p_var_mean_tile_count, p_var_mean_tile_m2, p_var_mean_tile_mean, p_batch_norm_num_batches_tracked, p_batch_norm_num_batches_tracked, p_batch_norm_running_mean, p_batch_norm_running_var, p_rsqrt, p_var_mean_0_kept, p_batch_norm_running_mean, p_batch_norm_running_var, convolution_sum_boxes, s0, s53, s77, stream);
  if (stages & 4) run_rows_4(p_batch_norm_bias, p_batch_norm_weight, p_group_norm_bias, p_group_norm_weight, p_mul_tensor_1, p_rsqrt, p_var_mean_0_kept, p_add_6, s0, s53, s77, stream);
}

// One after another, those that are asked for.
void run_evaluation_forward(uint64_t stages, uint64_t p_conv_transpose_weight, uint64_t p_conv_transpose_bias, uint64_t p_batch_norm_weight, uint64_t p_batch_norm_bias, uint64_t p_group_norm_weight, uint64_t p_group_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_num_batches_tracked, uint64_t p_x, uint64_t p_convolution_sum_0_kept, uint64_t p_add_3, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t memory, int64_t in_packed_contract_0, int64_t at_packed_contract_0, int64_t convolution_sum_box, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const uint64_t holders[] = {memory, p_convolution_sum_0_kept, p_add_3, p_var_mean_0_kept, p_var_mean_1_kept};
  const uint64_t packed_contract_0 = holders[in_packed_contract_0] + at_packed_contract_0;
  if (stages & 1) run_contract_3(p_conv_transpose_weight, p_x, p_convolution_sum_0_kept, convolution_sum_box, s0, s53, s77, packed_contract_0, stream);
  if (stages & 2) run_rows_5(p_batch_norm_bias, p_batch_norm_running_mean, p_batch_norm_running_var, p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_group_norm_bias, p_group_norm_weight, p_add_3, p_var_mean_0_kept, p_var_mean_1_kept, s0, s53, s77, stream);
}

// One after another, those that are asked for.
void run_evaluation_inference(uint64_t stages, uint64_t p_conv_transpose_weight, uint64_t p_conv_transpose_bias, uint64_t p_batch_norm_weight, uint64_t p_batch_norm_bias, uint64_t p_group_norm_weight, uint64_t p_group_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_num_batches_tracked, uint64_t p_x, uint64_t p_add_3, uint64_t memory, int64_t in_tanh, int64_t at_tanh, int64_t in_packed_contract_0, int64_t at_packed_contract_0, int64_t convolution_sum_box, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const uint64_t holders[] = {memory, p_add_3};
  const uint64_t p_tanh = holders[in_tanh] + at_tanh;
  const uint64_t packed_contract_0 = holders[in_packed_contract_0] + at_packed_contract_0;
  if (stages & 1) run_contract_4(p_batch_norm_bias, p_batch_norm_running_mean, p_batch_norm_running_var, p_batch_norm_weight, p_conv_transpose_bias, p_conv_transpose_weight, p_x, p_tanh, convolution_sum_box, s0, s53, s77, packed_contract_0, stream);
  if (stages & 2) run_rows_6(p_group_norm_bias, p_group_norm_weight, p_tanh, p_add_3, s0, s53, s77, stream);
}
"""

_BACKWARD_SOURCE = r"""
#include <stdexcept>
#include <string>
#include <cstring>

// ---- kernel bodies and what they share

// What every stage shares: the element type of the file, the type sums are kept in, and the width of an index.
//
// The including file is compiled once for each element type it meets, with
//   CRUCIBLE_SCALAR   0 float, 1 double, 2 __half, 3 __nv_bfloat16
//   CRUCIBLE_WIDE     1 when an index may pass 2^31
//   CRUCIBLE_HOPPER   1 for a chip with Hopper's matrix instructions (compute capability 9.0a)

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifndef CRUCIBLE_SCALAR
#define CRUCIBLE_SCALAR 0
#endif
#ifndef CRUCIBLE_WIDE
#define CRUCIBLE_WIDE 0
#endif
#ifndef CRUCIBLE_HOPPER
#define CRUCIBLE_HOPPER 0
#endif

#if CRUCIBLE_SCALAR == 2
#include <cuda_fp16.h>
#elif CRUCIBLE_SCALAR == 3
#include <cuda_bf16.h>
#endif

namespace crucible {

#if CRUCIBLE_SCALAR == 0
using scalar = float;
using accum = float;
#elif CRUCIBLE_SCALAR == 1
using scalar = double;
using accum = double;
#elif CRUCIBLE_SCALAR == 2
using scalar = __half;
using accum = float;
#else
using scalar = __nv_bfloat16;
using accum = float;
#endif

#if CRUCIBLE_WIDE
using Index = int64_t;
#else
using Index = int32_t;
#endif

// Kernels follow each other closely: on Hopper one is set up while the one before it on the stream ends. So each begins with
// follow(), which waits until all of that is done and seen, and is launched by
//   cudaLaunchKernelEx(After(blocks, threads, shared bytes, stream), kernel, arguments...)
__device__ __forceinline__ void follow() {
#if CRUCIBLE_HOPPER
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#ifndef __CUDACC_RTC__
struct After {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[3]{};
  // Blocks in clusters of so many, which a simulator does not have; or all of them there at a time, to wait for each other.
  After(dim3 blocks, unsigned threads, size_t shared, cudaStream_t stream, unsigned cluster = 1, bool together = false) {
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
#if CRUCIBLE_HOPPER && CUDART_VERSION >= 12030  // with which such launches can be captured in graphs
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
#endif
    if (cluster > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
    }
    if (together) {
      attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
      attributes[config.numAttrs++].val.cooperative = 1;
    }
  }
  operator const cudaLaunchConfig_t*() {
    config.attrs = attributes;
    return &config;
  }
};
#endif

// An element of a tensor that this kernel only reads: such loads need not wait for stores before them.
template <class T>
__device__ __forceinline__ T read(const T& x) { return __ldg(&x); }
__device__ __forceinline__ bool read(const bool& x) { return __ldg(reinterpret_cast<const unsigned char*>(&x)) != 0; }
#if CRUCIBLE_SCALAR == 3  // before CUDA 12.2 there is no __ldg() of it for chips before 8.0
__device__ __forceinline__ __nv_bfloat16 read(const __nv_bfloat16& x) {
  return __nv_bfloat16(__nv_bfloat16_raw{__ldg(reinterpret_cast<const unsigned short*>(&x))});
}
#endif

// Asks for an element that is loaded later.
template <class T>
__device__ __forceinline__ void prefetch(const T* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

__device__ __forceinline__ bool inside(Index i, Index n) { return i >= 0 && i < n; }
__device__ __forceinline__ Index nearest(Index i, Index n) { return i < 0 ? 0 : i < n ? i : n - 1; }

// Elements as values of the type that arithmetic is done in.
template <class T>
__device__ __forceinline__ T to_accum(T x) { return x; }

#if CRUCIBLE_SCALAR == 2
__device__ __forceinline__ float to_accum(__half x) { return __half2float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2half_rn(x); }
#elif CRUCIBLE_SCALAR == 3
__device__ __forceinline__ float to_accum(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ scalar to_scalar(accum x) { return __float2bfloat16_rn(x); }
#else
__device__ __forceinline__ scalar to_scalar(accum x) { return x; }
#endif

}  // namespace crucible

namespace crucible {

__device__ __forceinline__ accum f_rsqrt(accum x) { return accum(1) / sqrt(x); }

}  // namespace crucible

namespace crucible {

// A sum that carries what rounding took from it: as good as a pairwise sum, however long.
struct Sum {
  accum sum = 0, low = 0;
  __device__ __forceinline__ void step(accum y) {
    const accum t = sum + y;
    if (t - t == 0) low += fabs(sum) >= fabs(y) ? (sum - t) + y : (y - t) + sum;  // not where it is inf or nan
    sum = t;
  }
  __device__ __forceinline__ void join(const Sum& b) {
    step(b.sum);
    low += b.low;
  }
  __device__ __forceinline__ accum total() const { return sum + low; }
};

// The maximum of a pooling window, taken in order: a place outside the input (-1) is never chosen, the last NaN wins.
struct WindowMax {
  accum best = -INFINITY;
  int64_t at = -1;
  __device__ __forceinline__ void step(accum x, int64_t i) {
    if (i >= 0 && (at < 0 || x > best || x != x)) best = x, at = i;
  }
  __device__ __forceinline__ accum value() const { return best; }
  __device__ __forceinline__ int64_t index() const { return at; }
};

}  // namespace crucible

// Boxes of output pixels and the input under them, in up to four dimensions.
//
// A functor whose columns are pixels names its form by types: Box, Kernel, Stride, Dilation, Shift (all Dims), and gives
// the output's extents. Column i of a box is a pixel of it, the last dimension fastest. Input pixel
// y * stride + tap * dilation + shift is under tap of output pixel y; the halo of a box is all input pixels under it.

namespace crucible {

template <int A, int B, int C, int D>
struct Dims {
  static constexpr int product = A * B * C * D;
  __host__ __device__ static constexpr int at(int d) { return d == 0 ? A : d == 1 ? B : d == 2 ? C : D; }
  // How far apart neighbours along dimension d are.
  __host__ __device__ static constexpr int pitch(int d) { return d == 0 ? B * C * D : d == 1 ? C * D : d == 2 ? D : 1; }
  __host__ __device__ static constexpr int index(int i, int d) { return i / pitch(d) % at(d); }
};

// The input under so many pixels in a row, or under a box's.
template <class P>
__host__ __device__ constexpr int halo_extent(int d, int pixels) {
  return (pixels - 1) * P::Stride::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) + 1;
}
template <class P>
__host__ __device__ constexpr int halo_extent(int d) { return halo_extent<P>(d, P::Box::at(d)); }
template <class P>
using HaloOf = Dims<halo_extent<P>(0), halo_extent<P>(1), halo_extent<P>(2), halo_extent<P>(3)>;

// Where the first tap of a box's pixel i lies in the halo; pixels past the box take its last one.
template <class P>
__device__ __forceinline__ int halo_offset(int i) {
  using Box = typename P::Box;
  if (i >= Box::product) i = Box::product - 1;
  int at = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) at += Box::index(i, d) * P::Stride::at(d) * HaloOf<P>::pitch(d);
  return at;
}
// How far a tap lies from the first.
template <class P>
__device__ __forceinline__ int tap_offset(int tap) {
  int at = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) at += P::Kernel::index(tap, d) * P::Dilation::at(d) * HaloOf<P>::pitch(d);
  return at;
}

// A functor may have a pool, of windows that lie side by side and divide its boxes.
template <class T>
struct Named { using type = void; };
template <class P, class = void>
struct PoolOf {
  static constexpr bool pooled = false;
  using Window = Dims<1, 1, 1, 1>;
};
template <class P>
struct PoolOf<P, typename Named<typename P::Pool>::type> {
  static constexpr bool pooled = true;
  using Window = typename P::Pool;
};

// A functor of phases knows elements by their places in a box; some may not exist, alike in all rows or not, and phases may lack some of the taps
// (as the weights count them).
template <class P, class = void>
struct PhasedOf { static constexpr bool phased = false; };
template <class P>
struct PhasedOf<P, typename Named<typename P::Phased>::type> { static constexpr bool phased = true; };
template <class P, class = void>
struct RaggedOf { static constexpr bool ragged = false, alike = true; };
template <class P>
struct RaggedOf<P, typename Named<typename P::Ragged>::type> { static constexpr bool ragged = true, alike = P::ALIKE; };
// Groups that read the same input: phases. So many of them, neighbours, have elements of which one lies beside the other.
template <class P, class = void>
struct InsideOf { static constexpr int groups = 1, beside = 1; };
template <class P>
struct InsideOf<P, typename Named<typename P::Inside>::type> { static constexpr int groups = P::PHASES, beside = P::BESIDE; };
template <class P, class = void>
struct TapsOf {
  static constexpr bool sparse = false;
  static __device__ __forceinline__ bool has(const P&, Index, int) { return true; }
};
template <class P>
struct TapsOf<P, typename Named<typename P::Sparse>::type> {
  static constexpr bool sparse = true;
  static __device__ __forceinline__ bool has(const P& p, Index group, int t) {
    return p.has(group, P::flipped ? P::Kernel::product - 1 - t : t);
  }
};

// The taps of a group's phase, in the order of the window.
template <class P>
struct Taps {
  uint64_t there = 0;
  Taps() = default;
  __device__ __forceinline__ Taps(const P& p, Index group) {
    static_assert(!TapsOf<P>::sparse || P::Kernel::product <= 64, "a bit for each");
    if (TapsOf<P>::sparse)
      for (int t = 0; t < P::Kernel::product; ++t) there |= uint64_t(TapsOf<P>::has(p, group, t)) << t;
  }
  __device__ __forceinline__ bool has(int t) const { return !TapsOf<P>::sparse || (there >> t & 1u); }
  // Whether a tap is the first, and whether there is none.
  __device__ __forceinline__ bool first(int t) const {
    return TapsOf<P>::sparse ? (there & ((uint64_t(1) << t) - 1)) == 0 : t == 0;
  }
  __device__ __forceinline__ bool none() const { return TapsOf<P>::sparse && there == 0; }
};

template <class P>
__host__ __device__ __forceinline__ Index box_count(const P& p) {
  Index count = 1;
#pragma unroll
  for (int d = 0; d < 4; ++d) count *= (p.extent(d) + P::Box::at(d) - 1) / P::Box::at(d);
  return count;
}

template <class P>
struct BoxPlace {
  Index first[4];  // the box's first pixel
  int there[4];    // how many pixels of it exist, by dimension

  __device__ __forceinline__ BoxPlace(const Index (&at)[4], const int (&of)[4]) {
#pragma unroll
    for (int d = 0; d < 4; ++d) first[d] = at[d], there[d] = of[d];
  }
  __device__ __forceinline__ BoxPlace(const P& p, Index box) {
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      const Index extent = p.extent(d), count = (extent + P::Box::at(d) - 1) / P::Box::at(d);
      first[d] = (count == 1 ? 0 : box % count) * P::Box::at(d);
      if (count != 1) box /= count;
      there[d] = extent - first[d] < P::Box::at(d) ? static_cast<int>(extent - first[d]) : P::Box::at(d);
    }
  }
  __device__ __forceinline__ bool exists(int i) const {
    bool all = i < P::Box::product;
#pragma unroll
    for (int d = 0; d < 4; ++d) all = all && P::Box::index(i, d) < there[d];
    return all;
  }
  __device__ __forceinline__ int count() const { return there[0] * there[1] * there[2] * there[3]; }
  // One more than the last pixel that exists.
  __device__ __forceinline__ int reach() const {
    int last = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) last += (there[d] - 1) * P::Box::pitch(d);
    return last + 1;
  }
  // The output pixel of a column, as a flat index; of one that does not exist, the nearest.
  __device__ __forceinline__ Index pixel(const P& p, int i) const {
    if (i >= P::Box::product) i = P::Box::product - 1;
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const int step = P::Box::index(i, d);
      at = at * p.extent(d) + first[d] + (step < there[d] ? step : there[d] - 1);
    }
    return at;
  }
  // Pixel i of the box itself.
  __device__ __forceinline__ auto plain(const P& p, Index z, int i) const {
    return p.a_at(z, first[0] + P::Box::index(i, 0), first[1] + P::Box::index(i, 1), first[2] + P::Box::index(i, 2),
                  first[3] + P::Box::index(i, 3));
  }
  // The input pixel number h of the halo.
  __device__ __forceinline__ typename P::BAt halo(const P& p, Index z, int h) const {
    Index at[4];
#pragma unroll
    for (int d = 0; d < 4; ++d) at[d] = first[d] * P::Stride::at(d) + P::Shift::at(d) + HaloOf<P>::index(h, d);
    return p.b_at(z, at[0], at[1], at[2], at[3]);
  }
};

// The pixels of a box that a lane finishes: every 32nd (so many times), or all those of every 32nd window of a pool.
template <class P, int TIMES>
struct LanePixels {
  using Box = typename P::Box;
  using Window = typename PoolOf<P>::Window;
  using Windows = Dims<Box::at(0) / Window::at(0), Box::at(1) / Window::at(1), Box::at(2) / Window::at(2),
                       Box::at(3) / Window::at(3)>;
  static_assert(Windows::product * Window::product == Box::product, "a box has whole windows");
  static constexpr int TAKES = Window::product;  // pixels of a window
  static constexpr int ROUNDS = PoolOf<P>::pooled ? (Windows::product + 31) / 32 : TIMES, EACH = ROUNDS * TAKES;
  static_assert(EACH <= 32, "a bit for each");

  static __device__ __forceinline__ int window(int round) { return static_cast<int>(threadIdx.x) % 32 + round * 32; }
  static __device__ __forceinline__ int pixel(int j) {
    const int w = window(j / TAKES);
    if (!PoolOf<P>::pooled) return w;
    int i = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) i += (Windows::index(w, d) * Window::at(d) + Window::index(j % TAKES, d)) * Box::pitch(d);
    return w < Windows::product ? i : Box::product;
  }
  // A window among all of them, from the box's first.
  static __device__ __forceinline__ Index pooled(const P& p, int round) {
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * (p.extent(d) / Window::at(d)) + Windows::index(window(round), d);
    return at;
  }
  static __device__ __forceinline__ Index first_pooled(const P& p, const BoxPlace<P>& place) {
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * (p.extent(d) / Window::at(d)) + place.first[d] / Window::at(d);
    return at;
  }
};

// The columns of a box that a lane finishes.
template <class P, int BN>
struct BoxColumns {
  using Lanes = LanePixels<P, BN / 32>;
  static constexpr int EACH = Lanes::EACH;
  Index at[EACH], to[Lanes::ROUNDS];
  unsigned exists = 0;
  int count;
  Index tile;
  BoxPlace<P> place;

  __device__ __forceinline__ BoxColumns(const P& p, const BoxPlace<P>& of, Index box)
      : count(of.count()), tile(box), place(of) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int i = Lanes::pixel(j);
      at[j] = place.pixel(p, i);
      exists |= unsigned(place.exists(i)) << j;
    }
#pragma unroll
    for (int q = 0; q < Lanes::ROUNDS; ++q)
      to[q] = PoolOf<P>::pooled ? Lanes::first_pooled(p, place) + Lanes::pooled(p, q) : Index(0);
  }
  __device__ __forceinline__ bool valid(int, int j) const { return exists >> j & 1u; }
  __device__ __forceinline__ Index column(int, int j) const { return at[j]; }
  // The pixel of a column that exists, else the box's first.
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (valid(r, j) ? P::Box::index(Lanes::pixel(j), d) : 0);
  }
  // Where a row's value lies among those of the box.
  __device__ __forceinline__ int from(int j) const {
    const int i = Lanes::pixel(j);
    return PoolOf<P>::pooled && i >= P::Box::product ? P::Box::product - 1 : i;
  }
  // Whether all pixels of a window exist, and its place among all windows.
  __device__ __forceinline__ bool whole(int round) const {
    constexpr unsigned all = 0xffffffffu >> (32 - Lanes::TAKES);
    return (exists >> round * Lanes::TAKES & all) == all;
  }
  __device__ __forceinline__ Index pooled(int round) const { return to[round]; }
};

}  // namespace crucible

// One operand of a contraction on its way from global memory to registers.
//
// A line is a row of A or a column of B. The block's threads share a tile of LINES lines, DEPTH deep, cut into runs of
// RUN neighbouring k: each thread owns LINE_COUNT lines and RUN_COUNT runs, always the same places, so that a line is
// decoded once a block and a k is decoded once for all the thread's lines (the functor is inlined; the compiler sees
// the same k). Neighbouring threads follow the direction that is contiguous in memory.

namespace crucible {

template <class P>
struct OperandA {
  static constexpr bool along_k = P::a_along_k;
  using Line = decltype(static_cast<const P*>(nullptr)->a_row(Index(0), Index(0)));
  static constexpr bool boxed = false;
  static __device__ __forceinline__ Index lines(const P& p) { return p.rows(); }
  static __device__ __forceinline__ Line line(const P& p, Index z, Index m) { return p.a_row(z, m); }
  static __device__ __forceinline__ accum at(const P& p, const Line& line, Index k) { return p.a(line, k); }
};

template <class P>
struct OperandB {
  static constexpr bool along_k = P::b_along_k;
  using Line = decltype(static_cast<const P*>(nullptr)->b_col(Index(0), Index(0)));
  static constexpr bool boxed = P::boxed;
  static __device__ __forceinline__ Index lines(const P& p) { return p.cols(); }
  static __device__ __forceinline__ Line line(const P& p, Index z, Index n) { return p.b_col(z, n); }
  static __device__ __forceinline__ accum at(const P& p, const Line& line, Index k) { return p.b(line, k); }
};

constexpr int larger(int x, int y) { return x > y ? x : y; }
constexpr int smaller(int x, int y) { return x < y ? x : y; }

template <class Operand, int LINES, int DEPTH, int RUN, int THREADS>
struct Staged {
  static constexpr int RUNS = DEPTH / RUN;
  // Threads side by side over the lines. Along k, 16 runs side by side fill a 32-byte sector at least, and more would
  // give each thread more lines to keep. Across the lines a warp should see 32 of them, but no more: the more runs at a
  // time, the fewer k for each thread to decode.
  static constexpr int SIDE =
      Operand::along_k ? THREADS / smaller(RUNS, 16) : larger(THREADS / RUNS, smaller(LINES, 32));
  static constexpr int RUN_STEP = THREADS / SIDE;
  static constexpr int LINE_COUNT = LINES / SIDE, RUN_COUNT = RUNS / RUN_STEP;
  static_assert(DEPTH % RUN == 0 && THREADS % SIDE == 0 && LINES % SIDE == 0 && RUNS % RUN_STEP == 0,
                "the threads must divide the tile evenly");

  typename Operand::Line lines[LINE_COUNT];
  accum values[RUN_COUNT][LINE_COUNT][RUN];
  int first_line, first_run, limit;  // limit: how many lines of the tile there are

  // Lines past the last one are zero: what they lead to is never stored.
  template <class P>
  __device__ __forceinline__ void place(const P& p, Index z, Index tile) {
    const int t = static_cast<int>(threadIdx.x);
    first_line = Operand::along_k ? t / RUN_STEP : t % SIDE;
    first_run = Operand::along_k ? t % RUN_STEP : t / SIDE;
    if constexpr (Operand::boxed) {
      const BoxPlace<P> box(p, tile / LINES);
      limit = box.reach();
#pragma unroll
      for (int i = 0; i < LINE_COUNT; ++i) lines[i] = Operand::line(p, z, box.pixel(p, line(i)));
      return;
    }
    const Index last = Operand::lines(p) - 1;
    limit = last - tile < LINES ? static_cast<int>(last - tile) + 1 : LINES;
#pragma unroll
    for (int i = 0; i < LINE_COUNT; ++i) {
      const int offset = line(i);
      lines[i] = Operand::line(p, z, last - tile < offset ? last : tile + offset);
    }
  }

  __device__ __forceinline__ int line(int i) const { return first_line + i * SIDE; }
  __device__ __forceinline__ int run(int j) const { return first_run + j * RUN_STEP; }

  // FULL: the tile's whole depth lies before `end`; otherwise what lies behind is zero.
  template <bool FULL, class P>
  __device__ __forceinline__ void fetch(const P& p, Index begin, Index end) {
#pragma unroll
    for (int j = 0; j < RUN_COUNT; ++j)
#pragma unroll
      for (int e = 0; e < RUN; ++e) {
        const int offset = run(j) * RUN + e;
#pragma unroll
        for (int i = 0; i < LINE_COUNT; ++i)
          values[j][i][e] = line(i) < limit && (FULL || offset < end - begin)
                                ? Operand::at(p, lines[i], begin + offset)
                                : accum(0);
      }
  }

  template <class P>
  __device__ __forceinline__ void load(const P& p, Index begin, Index end) {
    if (end - begin >= DEPTH)
      fetch<true>(p, begin, end);
    else
      fetch<false>(p, begin, end);
  }
};

}  // namespace crucible

// The contraction engine for any chip and any type: fused multiply-adds in `accum`.
//
// Block tile BM x BN, BK deep, (BM / TM) * (BN / TN) threads. Shared: two buffers of a BK x BM and a BK x BN panel,
// k outermost, each k padded by 16 bytes. Registers: TM x TN sums, where there is room also those of the last SPAN k, and the
// next tile's elements. A k costs a thread (TM + TN) * sizeof(accum) bytes of shared memory in 16-byte loads and TM * TN
// operations.

namespace crucible {

template <int BM_, int BN_, int BK_, int TM, int TN>
struct Simt {
  static constexpr int BM = BM_, BN = BN_, BK = BK_;
  static constexpr int threads = (BM / TM) * (BN / TN);
  static constexpr int blocks_per_sm = 1;
  static constexpr int V = 16 / sizeof(accum);  // elements of a 16-byte load
  static constexpr int SPAN = 128;              // k in one serial sum; a longer one would lose more bits
  static constexpr bool SPANS = sizeof(accum) == 4 || TM * TN <= 32;  // a large tile of doubles has no registers left
  static_assert(TM % V == 0 && TN % V == 0 && BM % TM == 0 && BN % TN == 0 && BN % 32 == 0, "tile does not divide");
  static_assert(SPAN % BK == 0 && threads % 32 == 0 && threads <= 1024, "bad tile depth or thread count");

  static constexpr int LDA = BM + V, LDB = BN + V;  // one k's lines, and the padding
  static constexpr int buffer = BK * (LDA + LDB);
  static constexpr int passes = TM, pass_rows = BM / TM, pass_stride = BN + 8;
  static constexpr int shared_bytes = larger(2 * buffer, pass_rows * pass_stride) * static_cast<int>(sizeof(accum));

  struct Sums {
    accum at[TM][TN];
  };

  // A thread's rows and columns come V at a time, the groups apart by all threads' V.
  static __device__ __forceinline__ int row(int ty, int i) { return i / V * (BM / TM * V) + ty * V + i % V; }
  static __device__ __forceinline__ int tx() { return static_cast<int>(threadIdx.x) % (BN / TN); }
  static __device__ __forceinline__ int ty() { return static_cast<int>(threadIdx.x) / (BN / TN); }

  static __device__ __forceinline__ void read(float* to, const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
  static __device__ __forceinline__ void read(double* to, const double* from) {
    const double2 v = *reinterpret_cast<const double2*>(from);
    to[0] = v.x, to[1] = v.y;
  }

  // Rows come in groups of all threads' V; groups past the last row are neither stored nor multiplied.
  static constexpr int GROUP = BM / TM * V;

  template <int LD, class S>
  static __device__ __forceinline__ void put(const S& staged, accum* panel, int stored) {
#pragma unroll
    for (int j = 0; j < S::RUN_COUNT; ++j)
#pragma unroll
      for (int i = 0; i < S::LINE_COUNT; ++i)
        if (staged.line(i) < stored) panel[staged.run(j) * LD + staged.line(i)] = staged.values[j][i][0];
  }

  static __device__ __forceinline__ void multiply_tile(Sums& part, const accum* a_panel, const accum* b_panel, int rows) {
    if (ty() * V >= rows) return;  // no row of this thread exists
    const accum* a_from = a_panel + ty() * V;
    const accum* b_from = b_panel + tx() * V;
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      accum a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; i += V)
        if (i / V * GROUP < rows) read(a + i, a_from + k * LDA + i / V * GROUP);
#pragma unroll
      for (int j = 0; j < TN; j += V) read(b + j, b_from + k * LDB + j / V * (BN / TN * V));
#pragma unroll
      for (int i = 0; i < TM; ++i)
        if (i / V * GROUP < rows)
#pragma unroll
          for (int j = 0; j < TN; ++j) part.at[i][j] = fma(a[i], b[j], part.at[i][j]);
    }
  }

  // sums = A B over [begin, end), for the tile at row m0 and column n0 of batch z.
  template <class P>
  static __device__ __forceinline__ void multiply(const P& p, Index z, Index m0, Index n0, Index begin, Index end,
                                                  unsigned char* shared, Sums& sums) {
    accum* panels = reinterpret_cast<accum*>(shared);
    Staged<OperandA<P>, BM, BK, 1, threads> a;
    Staged<OperandB<P>, BN, BK, 1, threads> b;
    sums = Sums{};
    if (begin >= end) return;
    a.place(p, z, m0);
    b.place(p, z, n0);
    a.load(p, begin, end);
    b.load(p, begin, end);
    const int stored = (a.limit + GROUP - 1) / GROUP * GROUP;
    put<LDA>(a, panels, stored);
    put<LDB>(b, panels + BK * LDA, BN);
    __syncthreads();

    Sums part{};
    int depth = 0;
    accum* current = panels;
    accum* other = panels + buffer;
    for (Index k = begin;; k += BK) {
      const bool more = end - k > BK;
      if (more) {
        a.load(p, k + BK, end);
        b.load(p, k + BK, end);
      }
      multiply_tile(SPANS ? part : sums, current, current + BK * LDA, a.limit);
      depth += BK;
      if (SPANS && (depth == SPAN || !more)) {
        depth = 0;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int j = 0; j < TN; ++j) sums.at[i][j] += part.at[i][j], part.at[i][j] = 0;
      }
      if (!more) break;
      put<LDA>(a, other, stored);
      put<LDB>(b, other + BK * LDA, BN);
      __syncthreads();
      accum* const swap = current;
      current = other;
      other = swap;
    }
  }

  // The sums leave the registers in passes of pass_rows rows; row r of a pass is row_of(pass, r) of the tile.
  static __device__ __forceinline__ int row_of(int pass, int r) { return row(r, pass); }

  static __device__ __forceinline__ void expose(const Sums& sums, int pass, accum* rows) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
      if (i == pass) {  // a register has no address: the choice is made among unrolled copies
#pragma unroll
        for (int j = 0; j < TN; ++j)
          rows[ty() * pass_stride + j / V * (BN / TN * V) + tx() * V + j % V] = sums.at[i][j];
      }
  }
};

}  // namespace crucible

// Partial results of a warp's lanes (plain structs of whole words with a function join), by shuffles.

namespace crucible {

// What `shuffle` makes of each word.
template <class Acc, class Shuffle>
__device__ __forceinline__ Acc shuffled(const Acc& a, Shuffle shuffle) {
  static_assert(sizeof(Acc) % 4 == 0, "partial results are whole words");
  uint32_t words[sizeof(Acc) / 4];
  memcpy(words, &a, sizeof(Acc));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Acc) / 4); ++i) words[i] = shuffle(words[i]);
  Acc b;
  memcpy(&b, words, sizeof(Acc));
  return b;
}

// The first COUNT lanes' results, joined, in the first of them. What the others join on the way nobody wants.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc fold_lanes(Acc a) {
#pragma unroll
  for (int by = COUNT / 2; by > 0; by /= 2)
    a.join(shuffled(a, [by](uint32_t word) { return __shfl_down_sync(0xffffffffu, word, by); }));
  return a;
}

// The same, to all lanes.
template <int COUNT, class Acc>
__device__ __forceinline__ Acc join_lanes(const Acc& a) {
  return shuffled(fold_lanes<COUNT>(a), [](uint32_t word) { return __shfl_sync(0xffffffffu, word, 0); });
}

// Of N results in each lane, N a power of two: lane l gets a[l / (32 / N)], joined over the warp.
template <int N, class Acc>
__device__ __forceinline__ Acc scattered_join(Acc (&a)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
  const auto across = [&step](const Acc& b) {
    return shuffled(b, [step](uint32_t word) { return __shfl_xor_sync(0xffffffffu, word, step); });
  };
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const Acc other = lane & step ? a[i] : a[i + n / 2];
      if (lane & step) a[i] = a[i + n / 2];
      a[i].join(across(other));
    }
#pragma unroll
  for (; step > 0; step /= 2) a[0].join(across(a[0]));
  return a[0];
}

}  // namespace crucible

// The contraction engine on tensor cores (mma.sync, compute capability 8.0 and later).
//
// Block tile BM x BN, BK deep; each warp computes WM x WN. What lies in shared memory are 32-bit words: a tf32 number,
// or two half or bfloat16 numbers of neighbouring k. A panel is made of slabs 16 words deep; a line's 16 words are four
// 16-byte chunks, permuted by the line's number so that 16-byte stores across lines, 4-byte stores along k and the
// fragments' 16-byte loads all hit distinct banks. A fragment's order of k is the load's (word 4q .. 4q+3 for the
// thread with lane % 4 == q), the same in A and B, so the sum is over all k all the same.
// Per slab a warp loads (WM + WN) * 64 bytes and issues WM * WN / 64 mma (three times that in grade Fp32).
// Registers: WM * WN / 32 sums, WN / 2 more for a slab's own, and the next tile's elements.
// Tensor cores cut what they add, so the sums of a slab go to ordinary registers, which round.
//
// Grades:
//   Tf32    operands rounded to tf32, to nearest even
//   Fp32    operands split into two tf32 numbers (in registers: shared memory has them whole), three products, the small
//           ones first. A tile with a number that is huge, inf or nan takes fused multiply-adds: a split would make nan of
//           inf, and an overflow of one product nan of the sum.
//   Native  operands rounded to scalar (half or bfloat16), summed in float

namespace crucible {

enum class Grade { Tf32, Fp32, Native };

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define CRUCIBLE_HAS_MMA 1
#else
#define CRUCIBLE_HAS_MMA 0
#endif

#if CRUCIBLE_HAS_MMA
// To tf32, to nearest even; tensor cores ignore the bits below. What would round to infinity is cut instead; a nan stays
// one when its low bits go.
__device__ __forceinline__ unsigned round_tf32(float value) {
  const unsigned bits = __float_as_uint(value), size = bits & 0x7fffffffu;
  const unsigned quiet = size > 0x7f800000u ? 0x400000u : 0u;
  return size < 0x7f7ff000u ? bits + 0xfffu + (bits >> 13 & 1u) : bits | quiet;
}

template <Grade grade>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (grade != Grade::Native) {
    asm(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
#if CRUCIBLE_SCALAR == 3
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
  }
}

// Two neighbouring k as scalars in one word, the first in the low half.
__device__ __forceinline__ unsigned pack(float first, float second) {
#if CRUCIBLE_SCALAR == 2
  const __half2 pair = __floats2half2_rn(first, second);
  return reinterpret_cast<const unsigned&>(pair);
#elif CRUCIBLE_SCALAR == 3
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const unsigned&>(pair);
#else
  return 0;
#endif
}

// 16 bytes from global to shared memory without passing through registers.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
// SIZE bytes (4, 8 or 16), of which the first `some` come from memory and the rest are zeros.
template <int SIZE>
__device__ __forceinline__ void copy_async_some(void* to, const void* from, int some) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (SIZE == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(from), "r"(some) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(address), "l"(from), "n"(SIZE), "r"(some) : "memory");
}
// Four bytes, or four zeros.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most LEFT of this thread's batches of copies are under way.
template <int LEFT = 0>
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
#endif  // CRUCIBLE_HAS_MMA

template <int BM_, int BN_, int BK_, int WM, int WN, Grade grade>
struct Mma {
  static constexpr int BM = BM_, BN = BN_, BK = BK_;
  static constexpr int PER_WORD = grade == Grade::Native ? 2 : 1;  // elements
  static constexpr int COPIES = grade == Grade::Fp32 ? 2 : 1;      // of a fragment: the high parts, and the low parts
  static constexpr int WORDS = BK / PER_WORD, SLABS = WORDS / 16;
  static constexpr int MT = WM / 16, NT = WN / 8, WARPS_N = BN / WN;
  static constexpr int threads = BM / WM * WARPS_N * 32;
  // As many as fit without spills.
  static constexpr int blocks_per_sm = threads > 128 ? 1 : grade == Grade::Tf32 && WM * WN <= 1024 ? 3 : 2;
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 8 == 0 && BN % 32 == 0, "tile does not divide");
  static_assert(BK % (16 * PER_WORD) == 0 && threads <= 1024, "bad tile depth or thread count");
  static_assert((grade == Grade::Native) == (sizeof(scalar) == 2), "Native is for two-byte scalars, others for float");

  static constexpr int A_WORDS = BM * WORDS, B_WORDS = BN * WORDS;
  static constexpr int buffer = A_WORDS + B_WORDS;
  static constexpr int passes = MT, pass_rows = BM / WM * 16, pass_stride = BN + 8;
  static constexpr int shared_bytes = larger(2 * buffer, pass_rows * pass_stride) * 4;

  struct Sums {
    float at[MT][NT][4];
  };

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp_m() { return static_cast<int>(threadIdx.x) / 32 / WARPS_N; }
  static __device__ __forceinline__ int warp_n() { return static_cast<int>(threadIdx.x) / 32 % WARPS_N; }

#if CRUCIBLE_HAS_MMA
  // Where the 16 bytes lie that hold words 4 * chunk .. 4 * chunk + 3 of a line.
  template <int LINES>
  static __device__ __forceinline__ int chunk_at(int line, int chunk) {
    return (chunk / 4 * LINES + line) * 16 + ((chunk ^ line >> 1) & 3) * 4;
  }

  // A word of the panel. True if the number is too large for three products (grade Fp32).
  static __device__ __forceinline__ bool convert(const accum* from, unsigned& word) {
    if constexpr (grade == Grade::Native) {
      word = pack(from[0], from[1]);
    } else if constexpr (grade == Grade::Tf32) {
      word = round_tf32(from[0]);
    } else {
      word = __float_as_uint(from[0]);
      return !(fabsf(from[0]) < 1e18f);
    }
    return false;
  }

  template <int LINES, class S>
  static __device__ __forceinline__ bool put(const S& staged, unsigned* panel, int stored) {
    bool odd = false;
#pragma unroll
    for (int j = 0; j < S::RUN_COUNT; ++j)
#pragma unroll
      for (int i = 0; i < S::LINE_COUNT; ++i) {
        if (staged.line(i) >= stored) continue;
        const accum* from = staged.values[j][i];
        if constexpr (S::RUNS == WORDS) {
          const int word = staged.run(j), at = chunk_at<LINES>(staged.line(i), word / 4) + word % 4;
          odd |= convert(from, panel[at]);
        } else {
          const int at = chunk_at<LINES>(staged.line(i), staged.run(j));
          unsigned words[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) odd |= convert(from + e * PER_WORD, words[e]);
          *reinterpret_cast<uint4*>(panel + at) = make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    return odd;
  }

  // Four words of a line; in grade Fp32 their high and low parts. Tensor cores ignore the bits below a tf32 number's.
  template <int LINES, int N>
  static __device__ __forceinline__ void fragment(unsigned (&to)[COPIES][N][4], int n, const unsigned* panel, int line,
                                                  int slab) {
    const uint4 v = *reinterpret_cast<const uint4*>(panel + chunk_at<LINES>(line, slab * 4 + lane() % 4));
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (grade == Grade::Fp32) {
        to[0][n][e] = (words[e] + 0x1000u) & 0xffffe000u;
        const float rest = __uint_as_float(words[e]) - __uint_as_float(to[0][n][e]);
        to[COPIES - 1][n][e] = __float_as_uint(rest) + 0x1000u;
      } else {
        to[0][n][e] = words[e];
      }
    }
  }

  static __device__ __forceinline__ void multiply_tile(Sums& sums, const unsigned* a_panel, const unsigned* b_panel,
                                                       int rows) {
    const int a_line = warp_m() * WM + lane() / 4, b_line = warp_n() * WN + lane() / 4;
#pragma unroll
    for (int slab = 0; slab < SLABS; ++slab) {
      unsigned b[COPIES][NT][4];
#pragma unroll
      for (int j = 0; j < NT; ++j) fragment<BN>(b, j, b_panel, b_line + j * 8, slab);
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        if (i * 16 >= rows) break;  // the same for the whole warp
        unsigned a[COPIES][2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) fragment<BM>(a, h, a_panel, a_line + i * 16 + h * 8, slab);
        float part[NT][4] = {};
        if constexpr (grade == Grade::Fp32) {
          multiply_fragments(part, a[COPIES - 1], b[0]);
          multiply_fragments(part, a[0], b[COPIES - 1]);
        }
        multiply_fragments(part, a[0], b[0]);
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int r = 0; r < 4; ++r) sums.at[i][j][r] += part[j][r];
      }
    }
  }

  static __device__ __forceinline__ void multiply_fragments(float (&to)[NT][4], const unsigned (&a)[2][4],
                                                            const unsigned (&b)[NT][4]) {
#pragma unroll
    for (int step = 0; step < 4; step += 2) {
      const unsigned rows[4] = {a[0][step], a[1][step], a[0][step + 1], a[1][step + 1]};
#pragma unroll
      for (int j = 0; j < NT; ++j) mma<grade>(to[j], rows, b[j][step], b[j][step + 1]);
    }
  }

  // The same tile by fused multiply-adds (grade Fp32).
  static __device__ __forceinline__ void multiply_odd_tile(Sums& sums, const unsigned* a_panel,
                                                           const unsigned* b_panel, int rows) {
    if (rows <= 0) return;
    const int a_line = warp_m() * WM + lane() / 4, b_line = warp_n() * WN + lane() % 4 * 2;
#pragma unroll 1
    for (int word = 0; word < WORDS; ++word) {
      float a[MT][2], b[NT][2];
#pragma unroll
      for (int i = 0; i < MT * 2; ++i) {
        if (i / 2 * 16 >= rows) {
          a[i / 2][i % 2] = 0;
          continue;
        }
        a[i / 2][i % 2] = __uint_as_float(a_panel[chunk_at<BM>(a_line + i * 8, word / 4) + word % 4]);
      }
#pragma unroll
      for (int j = 0; j < NT * 2; ++j) {
        b[j / 2][j % 2] = __uint_as_float(b_panel[chunk_at<BN>(b_line + j / 2 * 8 + j % 2, word / 4) + word % 4]);
      }
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int r = 0; r < 4; ++r) sums.at[i][j][r] = fmaf(a[i][r / 2], b[j][r % 2], sums.at[i][j][r]);
    }
  }

  // Barrier; whether any thread of the block saw a number too large.
  static __device__ __forceinline__ bool meet(bool odd) {
    if constexpr (grade == Grade::Fp32) return __syncthreads_or(odd);
    __syncthreads();
    return false;
  }

  // sums = A B over [begin, end), for the tile at row m0 and column n0 of batch z.
  template <class P>
  static __device__ __forceinline__ void multiply(const P& p, Index z, Index m0, Index n0, Index begin, Index end,
                                                  unsigned char* shared, Sums& sums) {
    unsigned* panels = reinterpret_cast<unsigned*>(shared);
    Staged<OperandA<P>, BM, BK, P::a_along_k ? PER_WORD : 4 * PER_WORD, threads> a;
    Staged<OperandB<P>, BN, BK, P::b_along_k ? PER_WORD : 4 * PER_WORD, threads> b;
    sums = Sums{};
    if (begin >= end) return;
    a.place(p, z, m0);
    b.place(p, z, n0);
    a.load(p, begin, end);
    b.load(p, begin, end);
    // Rows of this warp that there are; none where its columns lie past the end.
    const int rows = warp_n() * WN < b.limit ? a.limit - warp_m() * WM : 0;
    // Lines that some warp multiplies: whole fragments of A, whole warps of B.
    const int a_stored = (a.limit + 15) / 16 * 16, b_stored = (b.limit + WN - 1) / WN * WN;
    bool odd = put<BM>(a, panels, a_stored);
    odd |= put<BN>(b, panels + A_WORDS, b_stored);
    odd = meet(odd);

    unsigned* current = panels;
    unsigned* other = panels + buffer;
    for (Index k = begin;; k += BK) {
      const bool more = end - k > BK;
      if (more) {
        a.load(p, k + BK, end);
        b.load(p, k + BK, end);
      }
      if (odd)
        multiply_odd_tile(sums, current, current + A_WORDS, rows);
      else
        multiply_tile(sums, current, current + A_WORDS, rows);
      if (!more) break;
      odd = put<BM>(a, other, a_stored);
      odd |= put<BN>(b, other + A_WORDS, b_stored);
      odd = meet(odd);
      unsigned* const swap = current;
      current = other;
      other = swap;
    }
  }
#else
  template <class P>
  static __device__ void multiply(const P&, Index, Index, Index, Index, Index, unsigned char*, Sums& sums) {
    sums = Sums{};
    __trap();  // the host chose an engine that this chip does not have
  }
#endif

  // The sums leave the registers in passes of pass_rows rows; row r of a pass is row_of(pass, r) of the tile.
  static __device__ __forceinline__ int row_of(int pass, int r) { return r / 16 * WM + pass * 16 + r % 16; }

  static __device__ __forceinline__ void expose(const Sums& sums, int pass, accum* rows) {
    accum* to = rows + (warp_m() * 16 + lane() / 4) * pass_stride + warp_n() * WN + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < MT; ++i)
      if (i == pass) {  // a register has no address: the choice is made among unrolled copies
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float2*>(to + h * 8 * pass_stride + j * 8) =
                make_float2(sums.at[i][j][2 * h], sums.at[i][j][2 * h + 1]);
      }
  }
};

}  // namespace crucible

// Batched contraction D[z][m][n] = sum over k of A(z, m, k) * B(z, k, n) with operands and result in the hands of a
// functor: matrix products, convolutions (implicit GEMM) and their gradients, with any prologue and epilogue.
//
// The functor P is trivially copyable:
//   static constexpr bool a_along_k;   neighbouring k are neighbours in memory for A (else neighbouring m)
//   static constexpr bool b_along_k;   likewise for B (else neighbouring n)
//   static constexpr bool statistics;  whether sink() is wanted
//   static constexpr int group;        columns of one statistic: a power of two that divides cols() and the tile, or 0
//   __host__ __device__ Index batches(), rows(), cols(), depth() const;
//   __device__ Row a_row(Index z, Index m) const;          what a(row, k) must know of the row; a small plain struct
//   __device__ accum a(const Row&, Index k) const;         an element, 0 where there is padding
//   __device__ Col b_col(Index z, Index n) const;
//   __device__ accum b(const Col&, Index k) const;
//   __device__ accum finish(Index z, Index m, Index n, int split, accum value, bool there) const;
// and for fragments.cuh, whose lanes have neighbours to store,
//   template <class To> __device__ accum finish_to(Index z, Index m, Index n, int split, accum value, To& to) const;
//                                      finish, but calls to(address, element) instead of storing
//   __device__ uintptr_t stored(Index z, Index m, Index n) const;  where in memory its first element goes, in elements
//   static constexpr bool in_pairs;    there is one such element at most, and neighbours among columns are so in memory
//   static constexpr bool reads;       finish reads what depends on the column
//   __device__ void sink(Index z, Index m, Index tile_n, accum count, accum mean, accum m2) const;
// a, b, finish are called for elements in range only; finish once for each (z, m, n, split) that is `there`, by neighbouring
// threads for neighbouring n: it applies the epilogue, stores, and returns the value that statistics are taken of. Called for
// one that is not there (a lane without an element of its own) it must store nothing, and its result is not used. sink is
// called once for each (z, m, tile or group of columns) with the count, mean and sum of squared deviations of finish's values.
// A functor whose groups are phases, which all read the same input, names a type Inside and has `static constexpr int PHASES`,
// their number.
// A functor of phases (plan/phases.py) whose columns are pixels of boxes names a type Phased. It has, for finish and exists,
// finish_at and exists_at, with a place in four dimensions (that of an element that is not there is any in range) for n.
// Where it names Ragged or Sparse there is
//   __device__ bool exists(Index z, Index m, Index n) const;  whether there is such an element; finish asks for itself
//   __device__ bool has(Index group, Index tap) const;        whether a group's phase has a tap of the window; else a is 0
// A functor whose columns are pixels of boxes may also pool, by windows that lie side by side:
//   using Pool = Dims<..>;             a window's extents, which divide the box's
//   using Pooling = ..;                a reduction (reduce.cuh) over a window's elements
//   __device__ accum pool_in(Index z, Index m, Index n, accum value) const;    an element of it
//   __device__ void pool_out(Index z, Index m, Index n, const Pooling&) const; n: the window's place among all whole ones
// A functor whose columns are no pixels may go on where finish ended, with what it returned and what its group has in common:
//   struct Group;                      of numbers, computed from the moments of a group once; without statistics empty
//   __device__ Group grouped(accum count, accum mean, accum m2) const;
//   struct Tail;                       reductions along a row, of the elements in a tile; it may have none
//   static constexpr bool reduces;     whether it has any
//   __device__ void tail(Index z, Index m, Index n, accum finished, const Group&, Tail&) const;   for elements in range only
//   __device__ void tail_out(Index z, Index m, Index tile_n, const Tail&) const;   once for each (z, m, tile of columns)
//
// Split s of `splits` sums a contiguous range of k (whole tiles); an empty range gives 0. Nothing depends on timing.
// The engine (Simt, Mma) is a template argument. Each block computes one tile and, through the shared memory that the
// operands no longer need, hands it out row by row: a warp for each row, a lane for each 32nd column.

#if CRUCIBLE_SCALAR != 1  // tensor cores sum in float
#endif

namespace crucible {

template <class Config>
constexpr int tile_cols() { return Config::BN; }

// Tiles in an order in which those that run together share operands: bands of 8 tiles of rows, columns outermost.
constexpr int TILE_BAND = 8;
struct TilePlace {
  Index z, m, n;  // m and n count tiles
};
__device__ __forceinline__ TilePlace tile_place(unsigned block, unsigned tiles_m, unsigned tiles_n) {
  constexpr unsigned BAND = TILE_BAND;
  const unsigned z = block / (tiles_m * tiles_n), within = block % (tiles_m * tiles_n);
  const unsigned first = within / (BAND * tiles_n) * BAND, rest = within % (BAND * tiles_n);
  const unsigned height = tiles_m - first < BAND ? tiles_m - first : BAND;
  return {static_cast<Index>(z), static_cast<Index>(first + rest % height), static_cast<Index>(rest / height)};
}

// Whether a functor goes on after finish, and with what.
template <class P, class = void>
struct TailOf {
  struct Row {};
  struct Group {};
  static __device__ __forceinline__ Group group(const P&, accum, accum, accum) { return {}; }
  static constexpr bool there = false, reduces = false;
};
template <class P>
struct TailOf<P, typename Named<typename P::Tail>::type> {
  using Row = typename P::Tail;
  using Group = typename P::Group;
  static __device__ __forceinline__ Group group(const P& p, accum count, accum mean, accum m2) { return p.grouped(count, mean, m2); }
  static constexpr bool there = true, reduces = P::reduces;
  static_assert(!P::statistics || P::group > 0, "what follows needs moments of whole groups");
};

// Sums over LANES neighbouring lanes.
template <int LANES, int N>
__device__ __forceinline__ void lanes_sums(accum (&x)[N]) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
}

// Sums of N numbers over a warp, N a power of two: lane l gets that of x[l / (32 / N)].
template <int N>
__device__ __forceinline__ accum scattered_sum(accum (&x)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const accum mine = lane & step ? x[i + n / 2] : x[i], other = lane & step ? x[i] : x[i + n / 2];
      x[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
    }
#pragma unroll
  for (; step > 0; step /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
  return x[0];
}

// The columns of a tile that a lane finishes: every 32nd of BN neighbours.
template <int BN>
struct PlainColumns {
  static constexpr int EACH = BN / 32;
  Index first, tile;
  int count;

  template <class P>
  __device__ __forceinline__ PlainColumns(const P& p, Index tile_n) : first(tile_n * BN), tile(tile_n) {
    const Index left = p.cols() - first;
    count = left < BN ? static_cast<int>(left) : BN;
  }
  __device__ __forceinline__ bool valid(int, int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32 < count; }
  __device__ __forceinline__ Index column(int, int j) const { return first + static_cast<int>(threadIdx.x) % 32 + j * 32; }
  __device__ __forceinline__ int from(int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32; }
};

// Columns may be of several batches, neighbours from z on, and may know which elements exist: the same of all rows.
template <class C, class = void>
struct BatchOf {
  static constexpr bool knows = false;
  static __device__ __forceinline__ Index at(const C&, Index z, int) { return z; }
};
template <class C>
struct BatchOf<C, typename Named<typename C::Several>::type> {
  static constexpr bool knows = C::KNOWS;
  static __device__ __forceinline__ Index at(const C& columns, Index z, int j) { return z + columns.further(j); }
};

// Whether a lane's column of a row is an element.
template <class P, class C>
__device__ __forceinline__ bool is_there(const P& p, Index z, Index m, const C& columns, int r, int j) {
  if constexpr (BatchOf<C>::knows)
    return columns.valid(r, j);
  else if constexpr (RaggedOf<P>::ragged && PhasedOf<P>::phased)
    return columns.valid(r, j) && p.exists_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3));
  else if constexpr (RaggedOf<P>::ragged)
    return columns.valid(r, j) && p.exists(z, m, columns.column(r, j));
  else
    return columns.valid(r, j);
}
template <class P, class C>
__device__ __forceinline__ accum finish_element(const P& p, Index z, Index m, const C& columns, int r, int j, int split,
                                                accum value, bool there) {
  if constexpr (PhasedOf<P>::phased)
    return p.finish_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3), split, value,
                       there && columns.valid(r, j));
  else
    return p.finish(z, m, columns.valid(r, j) ? columns.column(r, j) : 0, split, value, there && columns.valid(r, j));
}
// Something near the mean of a row's elements, the same for LANES neighbours: the mean of those that they have, one each. Of
// deviations from it little cancels: n times its own squared deviation is not much of all of them, while that of a single
// element may be all. Zero where it is not finite, so that infinities stay what they are.
template <int LANES>
__device__ __forceinline__ accum near_mean(accum mine, int have) {
  accum sum = mine * accum(1.0 / LANES), count = static_cast<accum>(have);
  if (LANES == 32) count = static_cast<accum>(__popc(__ballot_sync(0xffffffffu, have != 0)));  // one each
#pragma unroll
  for (int by = LANES / 2; by > 0; by /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (LANES < 32) count += __shfl_xor_sync(0xffffffffu, count, by);
  }
  const accum mean = count > 0 ? sum * (accum(LANES) / count) : accum(0);
  return mean - mean == 0 ? mean : accum(0);
}
// The same of a row by all lanes, and how many elements there are.
template <int EACH, class P, class C>
__device__ __forceinline__ accum near_all(const P& p, Index z, Index m, const C& columns, int r, const accum (&kept)[EACH],
                                           int* found) {
  accum mine = 0;
  bool any = false;
#pragma unroll
  for (int j = EACH - 1; j >= 0; --j) {
    const bool there = is_there(p, z, m, columns, r, j);
    if (there) mine = kept[j];
    any |= there;
    if (!BatchOf<C>::knows) *found += __popc(__ballot_sync(0xffffffffu, there));
  }
  return near_mean<32>(mine, any);
}

// ROWS neighbouring rows of a tile (those there are, below `limit`) at a time, so that they need not wait for each other's
// shuffles: a warp's lanes take every 32nd column. The mean is computed first and the deviations from it, and then corrected
// by the deviations' own mean, so nothing cancels however far the values are from zero.
template <int ROWS, int EACH, class P, class C>
__device__ __forceinline__ void finish_values(const P& p, Index z, Index m, Index limit, const C& columns, int split,
                                              const accum (&values)[ROWS][EACH]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  accum kept[ROWS][EACH];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int j = 0; j < EACH; ++j)
      // Elements that are not there are computed too, without a branch, and nothing is stored.
      kept[r][j] = finish_element(p, z, m + r < limit ? m + r : m, columns, r, j, split, values[r][j], m + r < limit);
  if constexpr (PoolOf<P>::pooled) {
    constexpr int TAKES = PoolOf<P>::Window::product;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int q = 0; q < EACH / TAKES; ++q)
        if (m + r < limit && columns.whole(q)) {
          typename P::Pooling pool;
#pragma unroll
          for (int j = q * TAKES; j < (q + 1) * TAKES; ++j)
            pool.step(p.pool_in(z, m + r, columns.column(r, j), values[r][j]));
          p.pool_out(z, m + r, columns.pooled(q), pool);
        }
  }
  using Tail = TailOf<P>;
  [[maybe_unused]] typename Tail::Row tails[ROWS];
  if constexpr (P::statistics) {
    // LANES lanes take TAKES columns each of one statistic.
    constexpr int LANES = P::group > 0 && P::group < 32 ? P::group : 32;
    constexpr int TAKES = P::group == 0 ? EACH : P::group < 32 ? 1 : P::group / 32;
    constexpr int WIDTH = P::group == 0 ? 1 : P::group;
    constexpr bool ALL_KNOW = LANES < 32 || Tail::there;  // all lanes of a group get its moments
    static_assert(EACH % TAKES == 0, "a group of columns lies within a tile");
#pragma unroll
    for (int first = 0; ALL_KNOW && first < EACH; first += TAKES) {
      const accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
      accum near[ROWS], both[2 * ROWS];  // means; deviations from them and their squares
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) near[r] += columns.valid(r, j) ? kept[r][j] : accum(0);
      }
      lanes_sums<LANES>(near);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] /= size;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = columns.valid(r, j) ? kept[r][j] - near[r] : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      lanes_sums<LANES>(both);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const accum off = both[2 * r] / size, squares = both[2 * r + 1] - size * off * off;
        if (m + r < limit && lane % LANES == 0 && (P::group == 0 || columns.valid(0, first)))
          p.sink(z, m + r, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, near[r] + off, squares);
        if constexpr (Tail::there) {
          const auto group = Tail::group(p, size, near[r] + off, squares);
#pragma unroll
          for (int j = first; j < first + TAKES; ++j)
            if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], group, tails[r]);
        }
      }
    }
    // The whole warp takes each of them, all rows in one go, with deviations from what is near the mean.
#pragma unroll
    for (int first = 0; !ALL_KNOW && first < EACH; first += TAKES) {
      constexpr int EVERY = 32 / ROWS;
      accum both[2 * ROWS], middle = 0;  // of row lane / EVERY, as is the size
      accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        accum near;
        if constexpr (RaggedOf<P>::ragged) {
          int found = columns.count;
          if (!BatchOf<C>::knows) found = 0;
          near = near_all(p, z, m + r, columns, r, kept[r], &found);
          if (lane / EVERY == r) size = static_cast<accum>(found);
        } else {
          const bool have = columns.valid(r, first);
          near = near_mean<32>(have ? kept[r][first] : accum(0), have);
        }
        if (lane / EVERY == r) middle = near;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = is_there(p, z, m + r, columns, r, j) ? kept[r][j] - near : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      const accum part = RaggedOf<P>::ragged && size == 0 ? accum(0) : accum(1) / size;
      const accum mine = scattered_sum(both), other = __shfl_xor_sync(0xffffffffu, mine, EVERY / 2);
      const accum off = mine * part, squares = other - mine * off;
      if (lane % EVERY == 0 && m + lane / EVERY < limit && (P::group == 0 || columns.valid(0, first)))
        p.sink(z, m + lane / EVERY, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, middle + off, squares < 0 ? accum(0) : squares);
    }
  } else if constexpr (Tail::there) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int j = 0; j < EACH; ++j)
        if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], {}, tails[r]);
  }
  if constexpr (Tail::reduces) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const auto row = fold_lanes<32>(tails[r]);
      if (lane == 0 && m + r < limit) p.tail_out(z, m + r, columns.tile, row);
    }
  }
}

template <class Config, class P, class C>
__device__ __forceinline__ void finish_row(const P& p, Index z, Index m, const C& columns, int split,
                                           const accum* values) {
  accum mine[1][C::EACH];
#pragma unroll
  for (int j = 0; j < C::EACH; ++j) mine[0][j] = values[columns.from(j)];
  finish_values(p, z, m, m + 1, columns, split, mine);
}

// Tiles of columns: boxes where the functor's columns are pixels of boxes.
template <class Config, class P>
__host__ __device__ __forceinline__ Index column_tiles(const P& p) {
  if constexpr (P::boxed)
    return box_count(p);
  else
    return p.cols() == 0 ? 0 : (p.cols() - 1) / Config::BN + 1;
}

template <class Config, class P>
__device__ __forceinline__ auto columns_of(const P& p, Index tile_n) {
  if constexpr (P::boxed)
    return BoxColumns<P, Config::BN>(p, BoxPlace<P>(p, tile_n), tile_n);
  else
    return PlainColumns<Config::BN>(p, tile_n);
}

// One tile of the result, and one split of its sums.
template <class Config, class P>
__device__ __forceinline__ void contract_tile(const P& p, unsigned block, int split, int splits,
                                              unsigned char* shared) {
  const Index rows = p.rows(), depth = p.depth();
  const TilePlace tile = tile_place(block, static_cast<unsigned>((rows - 1) / Config::BM + 1),
                                    static_cast<unsigned>(column_tiles<Config>(p)));
  const Index m0 = tile.m * Config::BM;

  const Index tiles = depth / Config::BK + (depth % Config::BK != 0), share = tiles / splits + (tiles % splits != 0);
  const Index first = share * split < tiles ? share * split : tiles;
  const Index last = tiles - first > share ? first + share : tiles;

  typename Config::Sums sums;
  Config::multiply(p, tile.z, m0, tile.n * Config::BN, first == tiles ? depth : first * Config::BK,
                   last == tiles ? depth : last * Config::BK, shared, sums);

  const auto columns = columns_of<Config>(p, tile.n);
  accum* staged = reinterpret_cast<accum*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int pass = 0; pass < Config::passes; ++pass) {
    __syncthreads();
    Config::expose(sums, pass, staged);
    __syncthreads();
#pragma unroll 1
    for (int r = warp; r < Config::pass_rows; r += Config::threads / 32) {
      const int row = Config::row_of(pass, r);
      if (row < rows - m0) finish_row<Config>(p, tile.z, m0 + row, columns, split, staged + r * Config::pass_stride);
    }
  }
}

template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    contract_kernel(const __grid_constant__ P p, int splits) {
  follow();
  extern __shared__ __align__(16) unsigned char contract_shared[];
  contract_tile<Config>(p, blockIdx.x, static_cast<int>(blockIdx.y), splits, contract_shared);
}

#ifndef __CUDACC_RTC__
// Kernels that this thread has asked for already. Static, and not in a template: a process has such only once for all
// libraries, and kernels of the same name in each.
static thread_local struct { const void* kernel; int device; } allowed[64];
static thread_local int allowed_count = 0;

// A block gets more than 48 KB only where its kernel was allowed to ask.
template <class Kernel>
cudaError_t allow_shared(Kernel* kernel, int bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  const void* const address = reinterpret_cast<const void*>(kernel);
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  for (int i = 0; i < allowed_count; ++i)
    if (allowed[i].kernel == address && allowed[i].device == device) return error;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && allowed_count < 64) allowed[allowed_count++] = {address, device};
  return error;
}

// Launches nothing where D is empty. cudaErrorInvalidValue: too many tiles, or statistics or a tail of split (partial) sums.
template <class Config, class P>
cudaError_t launch_contract(const P& p, int splits, cudaStream_t stream) {
  const int64_t tiles_m = (static_cast<int64_t>(p.rows()) + Config::BM - 1) / Config::BM;
  const int64_t tiles_n = column_tiles<Config>(p);
  const int64_t batches = p.batches(), most = 0x7fffffff;
  if (batches == 0 || tiles_m == 0 || tiles_n == 0) return cudaSuccess;
  if (tiles_m > most / tiles_n || batches > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  if (splits < 1 || splits > 65535 || ((P::statistics || TailOf<P>::there) && splits > 1)) return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(contract_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const dim3 grid(static_cast<unsigned>(batches * tiles_m * tiles_n), static_cast<unsigned>(splits));
  return cudaLaunchKernelEx(After(grid, Config::threads, Config::shared_bytes, stream), contract_kernel<Config, P>, p, splits);
}
#endif

}  // namespace crucible

// The gradient of a convolution's weight on tensor cores (mma.sync, compute capability 8.0 and later).
//
// D[m, (channel, tap)] = sum over pixels of a(m, pixel) * b(channel, the input pixel under tap): a plain tensor times one
// seen through a window. A block takes BM rows and BC channels with all their taps, and walks over boxes of pixels: a's box
// and b's halo lie in shared memory as rows of pixels (PITCH = 4 modulo 32 words: a fragment's eight rows and four pixels
// lie in 32 banks), and a tap is an offset into the halo. A warp sums MT * 16 rows by UNITS pairs of a tap and 8 channels,
// so a fragment of a serves UNITS products. Boxes are shared out to `splits` blocks; each leaves a partial sum.
// While one box is multiplied, the next one is on its way: by asynchronous copies where both tensors are float memory as
// it is, to be rounded where it lies; through registers otherwise, part by part, stored a round later.
//
// Words are tf32 numbers: float is rounded to nearest even, half and bfloat16 fit as they are.
// Tensor cores cut what they add and these sums are long, so each box's sum goes to ordinary registers, which round.

#include <type_traits>

namespace crucible {

// WARPS_M x TAP_GROUPS x CHANNEL_GROUPS x WARPS_K warps; a warp has MT * 16 rows and TAPS_EACH taps of EACH * 8 channels.
// Warps that share all that take turns along the pixels, and each leaves a partial sum of its own.
template <int MT_, int WARPS_M, int TAP_GROUPS, int TAPS_EACH, int CHANNEL_GROUPS, int EACH, int WARPS_K_>
struct Gradient {
  static constexpr int MT = MT_, WM = MT * 16, BM = WARPS_M * WM, BC = CHANNEL_GROUPS * EACH * 8;
  static constexpr int UNITS = TAPS_EACH * EACH, WARPS_K = WARPS_K_, SIDE = TAP_GROUPS * CHANNEL_GROUPS;
  static constexpr int threads = WARPS_M * SIDE * WARPS_K * 32;
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int turn() { return warp() / (WARPS_M * SIDE); }
  static __device__ __forceinline__ int row() { return warp() / SIDE % WARPS_M * WM; }
  static __device__ __forceinline__ int tap(int unit) {
    return warp() / CHANNEL_GROUPS % TAP_GROUPS * TAPS_EACH + unit % TAPS_EACH;
  }
  static __device__ __forceinline__ int channel(int unit) {
    return (warp() % CHANNEL_GROUPS * EACH + unit / TAPS_EACH) * 8;
  }
};

// How COUNT pixels by LINES lines are dealt to the threads: a thread has the same pixels of every line it takes.
template <int COUNT, int LINES, int THREADS>
struct Dealt {
  static constexpr int SHARE = THREADS / COUNT > 0 ? THREADS / COUNT : 1;    // threads on one pixel
  static constexpr int SLOTS = SHARE > 1 ? 1 : (COUNT + THREADS - 1) / THREADS;
  static constexpr int TURNS = (LINES + SHARE - 1) / SHARE;                  // lines of a thread
  static __device__ __forceinline__ int pixel(int slot) {
    const int t = static_cast<int>(threadIdx.x);
    return SHARE > 1 ? t % COUNT : t + slot * THREADS;
  }
  static __device__ __forceinline__ int line(int turn) {
    return turn * SHARE + (SHARE > 1 ? static_cast<int>(threadIdx.x) / COUNT : 0);
  }
  static __device__ __forceinline__ bool takes(int slot, int turn) {
    return pixel(slot) < COUNT && line(turn) < LINES && static_cast<int>(threadIdx.x) < COUNT * SHARE * SLOTS;
  }
};

template <class G, class P>
struct GradientSizes {
  using Box = typename P::Box;
  using Halo = HaloOf<P>;
  static_assert(Box::at(3) % 8 == 0, "eight pixels of a step are neighbours");
  static constexpr int TAPS = P::Kernel::product, STEPS = Box::product / 8, ROUNDS = (STEPS + G::WARPS_K - 1) / G::WARPS_K;
  static constexpr int A_PITCH = (Box::product + 31) / 32 * 32 + 4, B_PITCH = (Halo::product + 31) / 32 * 32 + 4;
  using A = Dealt<Box::product, G::BM, G::threads>;
  using B = Dealt<Halo::product, G::BC, G::threads>;
  // Lines that a thread fetches in one round.
  static constexpr int A_EACH = (A::TURNS + ROUNDS - 1) / ROUNDS, B_EACH = (B::TURNS + ROUNDS - 1) / ROUNDS;
  static constexpr int LAG = ROUNDS < 2 ? 0 : 1;  // rounds between asking for words and storing them
  static constexpr bool ASYNC = P::a_direct && P::b_direct && sizeof(scalar) == 4;
  static constexpr int B_START = G::BM * A_PITCH, PANEL = B_START + G::BC * B_PITCH;
  static constexpr int shared_bytes = 2 * PANEL * 4;
};

template <class G, class P>
struct GradientBlock {
#if CRUCIBLE_HAS_MMA
  using S = GradientSizes<G, P>;
  using A = typename S::A;
  using B = typename S::B;
  const P& p;
  Index z, m0, c0;
  int now, next;  // words
  unsigned* shared;
  typename P::AAt a_at[A::SLOTS];
  typename P::BAt b_at[B::SLOTS];
  float a_values[S::LAG + 1][A::SLOTS][S::A_EACH], b_values[S::LAG + 1][B::SLOTS][S::B_EACH];

  __device__ __forceinline__ void find(Index box) {
    const BoxPlace<P> place(p, box);
#pragma unroll
    for (int i = 0; i < A::SLOTS; ++i) a_at[i] = place.plain(p, z, A::pixel(i) < P::Box::product ? A::pixel(i) : 0);
#pragma unroll
    for (int i = 0; i < B::SLOTS; ++i) b_at[i] = place.halo(p, z, B::pixel(i) < S::Halo::product ? B::pixel(i) : 0);
  }

  // The whole of the next box by asynchronous copies, and what is left to do where they have come to.
  __device__ __forceinline__ void copy(unsigned* panel) const {
#pragma unroll
    for (int turn = 0; turn < A::TURNS; ++turn) {
      const Index m = m0 + A::line(turn), near = m < p.rows() ? m : p.rows() - 1;
#pragma unroll
      for (int i = 0; i < A::SLOTS; ++i)
        if (A::takes(i, turn))
          copy_async(panel + A::line(turn) * S::A_PITCH + A::pixel(i), p.a_from(a_at[i], near),
                     a_at[i].inside && m < p.rows());
    }
#pragma unroll
    for (int turn = 0; turn < B::TURNS; ++turn) {
      const Index c = c0 + B::line(turn), near = c < p.channels() ? c : p.channels() - 1;
#pragma unroll
      for (int i = 0; i < B::SLOTS; ++i)
        if (B::takes(i, turn))
          copy_async(panel + S::B_START + B::line(turn) * S::B_PITCH + B::pixel(i), p.b_from(b_at[i], near),
                     b_at[i].inside && c < p.channels());
    }
    commit_copies();
  }
  __device__ __forceinline__ void round(unsigned* panel) const {
    wait_copies();
#pragma unroll
    for (int turn = 0; turn < A::TURNS; ++turn)
#pragma unroll
      for (int i = 0; i < A::SLOTS; ++i)
        if (A::takes(i, turn)) {
          unsigned& word = panel[A::line(turn) * S::A_PITCH + A::pixel(i)];
          word = round_tf32(__uint_as_float(word));
        }
#pragma unroll
    for (int turn = 0; turn < B::TURNS; ++turn)
#pragma unroll
      for (int i = 0; i < B::SLOTS; ++i)
        if (B::takes(i, turn)) {
          unsigned& word = panel[S::B_START + B::line(turn) * S::B_PITCH + B::pixel(i)];
          word = round_tf32(__uint_as_float(word));
        }
  }

  // A round's share of the next box. What is not there is loaded from somewhere near and becomes zero when it is put away.
  __device__ __forceinline__ void fetch(int round, int slot) {
#pragma unroll
    for (int e = 0; e < S::A_EACH; ++e) {
      const Index m = m0 + A::line(round * S::A_EACH + e);
#pragma unroll
      for (int i = 0; i < A::SLOTS; ++i) a_values[slot][i][e] = p.a_in(a_at[i], m < p.rows() ? m : p.rows() - 1);
    }
#pragma unroll
    for (int e = 0; e < S::B_EACH; ++e) {
      const Index c = c0 + B::line(round * S::B_EACH + e);
#pragma unroll
      for (int i = 0; i < B::SLOTS; ++i) b_values[slot][i][e] = p.b_in(b_at[i], c < p.channels() ? c : p.channels() - 1);
    }
  }
  __device__ __forceinline__ void put(int round, int slot, unsigned* panel) const {
#pragma unroll
    for (int e = 0; e < S::A_EACH; ++e) {
      const int turn = round * S::A_EACH + e, line = A::line(turn);
#pragma unroll
      for (int i = 0; i < A::SLOTS; ++i) {
        const float kept = a_at[i].inside && m0 + line < p.rows() ? a_values[slot][i][e] : 0.0f;
        if (A::takes(i, turn)) panel[line * S::A_PITCH + A::pixel(i)] = round_tf32(kept);
      }
    }
#pragma unroll
    for (int e = 0; e < S::B_EACH; ++e) {
      const int turn = round * S::B_EACH + e, line = B::line(turn);
#pragma unroll
      for (int i = 0; i < B::SLOTS; ++i) {
        const float kept = b_at[i].inside && c0 + line < p.channels() ? b_values[slot][i][e] : 0.0f;
        if (B::takes(i, turn)) panel[S::B_START + line * S::B_PITCH + B::pixel(i)] = round_tf32(kept);
      }
    }
  }
#endif
};

template <class G, class P>
__global__ void __launch_bounds__(G::threads, G::threads > 128 ? 1 : 2)
    gradient_kernel(const __grid_constant__ P p, int splits, const int* flag) {
  follow();
  if (flag != nullptr && *flag == 0) return;
  extern __shared__ __align__(16) unsigned char gradient_shared[];
#if CRUCIBLE_HAS_MMA
  using S = GradientSizes<G, P>;
  const unsigned tiles_c = static_cast<unsigned>((p.channels() + G::BC - 1) / G::BC);
  const unsigned tiles_m = static_cast<unsigned>((p.rows() + G::BM - 1) / G::BM);
  const int64_t boxes = box_count(p);
  const int split = static_cast<int>(blockIdx.y);
  const Index first = static_cast<Index>(boxes * split / splits), last = static_cast<Index>(boxes * (split + 1) / splits);
  unsigned* const shared = reinterpret_cast<unsigned*>(gradient_shared);
  GradientBlock<G, P> block{p, static_cast<Index>(blockIdx.x / tiles_c / tiles_m),
                            static_cast<Index>(blockIdx.x / tiles_c % tiles_m) * G::BM,
                            static_cast<Index>(blockIdx.x % tiles_c) * G::BC, 0, S::PANEL, shared};
  float sums[G::MT][G::UNITS][4] = {};
  int off[G::UNITS];
#pragma unroll
  for (int u = 0; u < G::UNITS; ++u) {
    const int tap = G::tap(u) < S::TAPS ? G::tap(u) : S::TAPS - 1;  // a tap too many is computed and not stored
    off[u] = S::B_START + (G::channel(u) + G::lane() / 4) * S::B_PITCH + tap_offset<P>(tap) +
             G::lane() % 4 * P::Stride::at(3);
  }
  const int a_off = (G::row() + G::lane() / 4) * S::A_PITCH + G::lane() % 4;
  const bool idle = block.m0 + G::row() >= p.rows();

  if (first < last) {
    block.find(first);
    if constexpr (S::ASYNC) {
      block.copy(shared);
      block.round(shared);
    } else {
#pragma unroll 1
      for (int round = 0; round < S::ROUNDS; ++round) {
        block.fetch(round, 0);
        block.put(round, 0, shared);
      }
    }
  }
  // One step: eight pixels. MASKED: some of the box's pixels do not exist. They have zeros in a; b's may be anything there,
  // and zero times inf would be nan.
  const auto step = [&](auto masked, float (&part)[G::MT][G::UNITS][4], const BoxPlace<P>& place, int q) {
    unsigned keep[2] = {~0u, ~0u};
    if constexpr (decltype(masked)::value) {
#pragma unroll
      for (int h = 0; h < 2; ++h) keep[h] = place.exists(q * 8 + h * 4 + G::lane() % 4) ? ~0u : 0u;
    }
    const unsigned* a_from = shared + (block.now + a_off) + q * 8;
    const unsigned* b_from = shared + block.now + halo_offset<P>(q * 8);
    unsigned a[G::MT][4];
#pragma unroll
    for (int i = 0; i < G::MT; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) a[i][r] = a_from[(i * 16 + r % 2 * 8) * S::A_PITCH + r / 2 * 4];
#pragma unroll
    for (int u = 0; u < G::UNITS; ++u) {
      unsigned b0 = b_from[off[u]], b1 = b_from[off[u] + 4 * P::Stride::at(3)];
      if constexpr (decltype(masked)::value) b0 &= keep[0], b1 &= keep[1];
#pragma unroll
      for (int i = 0; i < G::MT; ++i) mma<Grade::Tf32>(part[i][u], a[i], b0, b1);
    }
  };
  // A box: steps, taken in turn by the warps that share a tile, and the next box on its way. Whole boxes are unrolled.
  const auto walk = [&](auto masked, const BoxPlace<P>& place) {
    constexpr int LAG = decltype(masked)::value ? 0 : S::LAG;
    float part[G::MT][G::UNITS][4] = {};
#pragma unroll(decltype(masked)::value ? 1 : S::ROUNDS)
    for (int round = 0; round < S::ROUNDS; ++round) {
      if constexpr (!S::ASYNC) block.fetch(round, round % (LAG + 1));
      const int q = round * G::WARPS_K + G::turn();
      // A step whose first pixel does not exist has none.
      const bool there = !decltype(masked)::value || place.exists(q * 8);
      if (!idle && there && (S::STEPS % G::WARPS_K == 0 || q < S::STEPS)) step(masked, part, place, q);
      if constexpr (!S::ASYNC) {
        if (round >= LAG) block.put(round - LAG, (round - LAG) % (LAG + 1), shared + block.next);
      }
    }
    if constexpr (LAG > 0 && !S::ASYNC) block.put(S::ROUNDS - 1, (S::ROUNDS - 1) % (LAG + 1), shared + block.next);
#pragma unroll
    for (int i = 0; i < G::MT; ++i)
#pragma unroll
      for (int u = 0; u < G::UNITS; ++u)
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[i][u][r] += part[i][u][r];
  };
#pragma unroll 1
  for (Index box = first; box < last; ++box) {
    const BoxPlace<P> place(p, box);
    const bool more = box + 1 < last;
    block.find(more ? box + 1 : box);
    __syncthreads();
    if (S::ASYNC && more) block.copy(shared + block.next);
    if (place.count() == P::Box::product)
      walk(std::false_type(), place);
    else
      walk(std::true_type(), place);
    if (S::ASYNC && more) block.round(shared + block.next);
    const int was = block.now;
    block.now = block.next;
    block.next = was;
  }
#pragma unroll
  for (int i = 0; i < G::MT; ++i)
#pragma unroll
    for (int u = 0; u < G::UNITS; ++u)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Index m = block.m0 + G::row() + i * 16 + r / 2 * 8 + G::lane() / 4;
        const Index channel = block.c0 + G::channel(u) + G::lane() % 4 * 2 + r % 2;
        if (m < p.rows() && channel < p.channels() && G::tap(u) < S::TAPS)
          p.finish(block.z, m, channel * S::TAPS + G::tap(u), split * G::WARPS_K + G::turn(), sums[i][u][r], true);
      }
#endif
}

#ifndef __CUDACC_RTC__
// With a flag: only where that is raised.
template <class G, class P>
cudaError_t launch_gradient(const P& p, int splits, cudaStream_t stream, const int* flag = nullptr) {
  using S = GradientSizes<G, P>;
  const int64_t tiles = (static_cast<int64_t>(p.rows()) + G::BM - 1) / G::BM * ((p.channels() + G::BC - 1) / G::BC);
  const int64_t blocks = tiles * p.batches();
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff || splits < 1 || splits / G::WARPS_K > 65535 || splits % G::WARPS_K != 0)
    return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(gradient_kernel<G, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(splits / G::WARPS_K));
  return cudaLaunchKernelEx(After(grid, G::threads, S::shared_bytes, stream), gradient_kernel<G, P>, p, splits / G::WARPS_K,
                            flag);
}
#endif

}  // namespace crucible

// Hopper's matrix instructions and what goes with them (compute capability 9.0a): barriers in shared memory on which
// producers and consumers wait for each other, bulk copies, and descriptors of operands.
//
// Wgmma<N, kind>::multiply(d, a, b, more) adds the product of 64 x K values at descriptor a and N x K values at b (K is 32
// bytes: 16 half or bfloat16, 8 tf32) to d, or starts d anew; the including file brings the instructions for its N.
// Of d[4j + 2h + i], row 16 * (warp % 4) + 8h + lane / 4 and column 8j + 2 * (lane % 4) + i are this thread's.

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

// Weights of a convolution for Hopper's tensor cores, in the order of shared memory, and what scales them and the input.
//
// For each 64 rows there is one contiguous piece of [chunk of channels][tap][16 bytes of channels][row]. In kind Half a row's
// largest weight is brought to [2^9, 2^10), and a sample of the input says by how much that is scaled; the same weights in
// tf32 lie behind, for the launch that does again what half cannot hold. In kind Split there are two planes, hi and lo, for each
// tap, and the largest weight is brought to [2^30, 2^31). Bytes: each weight read twice, written twice.

#if CRUCIBLE_HOPPER
namespace crucible {

constexpr int PAIR_ROWS = 64, TAP_BYTES = PAIR_ROWS * 32;  // of a tile; of its weights for one tap and chunk

// JOIN: the dimension along which two boxes lie side by side, 4 for those of two samples, or -1. SLOTS of the ring. LAND: KB for what is on its way.
template <int JOIN_, int SLOTS_, int CHUNKS_, int TURN_, int LAND_, Operands kind_>
struct Warpgroups {
  static constexpr Operands kind = kind_;
  static constexpr int JOIN = JOIN_, SLOTS = SLOTS_, CHUNKS = CHUNKS_, TURN = TURN_, LAND = LAND_;
  static constexpr int BM = PAIR_ROWS, PRODUCERS = 256, CONSUMERS = 256, threads = PRODUCERS + CONSUMERS;
  static constexpr bool PAIRED = JOIN >= 0, SAMPLES = JOIN == 4, TOGETHER = true;
  static constexpr int BOXES = PAIRED ? 2 : 1;                 // side by side
  static constexpr int UNIT = kind == Operands::Tf32 ? 4 : 8;  // channels in 16 bytes
  static constexpr int CHANNELS = 2 * UNIT;                    // of a chunk
};

// What the launches hand to each other: a flag, the largest number in a sample of the input and in each channel of it, an
// exponent for each row of weights and whether half cannot hold it, and the weights for each kind.
struct Packed {
  int* again;    // raised by whoever finds what half cannot hold, packers excepted: it may not have been lowered yet
  int* largest;  // floats that are not negative, as integers
  int* channels;
  int* rows;
  int* spoilt;
  unsigned char* half;
  unsigned char* tf32;
  int64_t count;  // of rows

  // Channels that are told apart: of more, those so far apart are one.
  template <class P>
  static __host__ __device__ constexpr int apart() { return P::CHANNELS < 4096 ? static_cast<int>(P::CHANNELS) : 4096; }
  template <class P>
  static __host__ __device__ constexpr int64_t head() { return 256 + (apart<P>() + 63) / 64 * 256; }

  template <class P>
  __host__ __device__ Packed(const P& p, void* at) {
    const int64_t tiles = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS), taps = P::Kernel::product;
    unsigned char* const bytes = static_cast<unsigned char*>(at);
    count = tiles * PAIR_ROWS;
    again = reinterpret_cast<int*>(bytes);
    largest = again + 1;
    channels = again + 64;
    rows = reinterpret_cast<int*>(bytes + head<P>());
    spoilt = rows + count;
    half = bytes + head<P>() + count * 8;
    tf32 = half + tiles * taps * ((P::CHANNELS + 15) / 16) * TAP_BYTES;
  }
  // Bytes of all this.
  template <class P>
  static __host__ __device__ int64_t bytes(const P& p) {
    const int64_t tiles = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS), taps = P::Kernel::product;
    return head<P>() + tiles * (PAIR_ROWS * 8 + taps * ((P::CHANNELS + 15) / 16 + (P::CHANNELS + 7) / 8) * TAP_BYTES);
  }
  __device__ __forceinline__ int input() const;        // exponent of its scale
  __device__ __forceinline__ int split_input() const;  // and in kind Split
  template <class W>
  __device__ __forceinline__ const unsigned char* weights() const {
    return W::kind == Operands::Tf32 ? tf32 : half;
  }
};

constexpr float HALF_LIMIT = 65504.0f, HALF_SMALL = 0x1p-12f;
constexpr int PACKERS = 1024, SAMPLES = 4;  // threads of a block, and numbers of the input that each of one block looks at
constexpr int HALF_PEAK = 9;  // scaled, the largest number lies between 2^9 and 2^10

// The exponent of a scale that brings `largest` there; a power of two that is a float itself.
__device__ __forceinline__ int half_exponent(float largest) {
  if (largest == 0.0f) return 0;
  const int by = exponent_to(HALF_PEAK, __float_as_uint(largest));
  return by < 126 ? by : 126;
}

// In kind Split: the same for a row of weights, and what no weight may reach.
constexpr int SPLIT_PEAK = 30;
constexpr float SPLIT_WEIGHT = 0x1p40f;
__device__ __forceinline__ int split_exponent(float largest) {
  return largest == 0.0f ? 0 : exponent_to(SPLIT_PEAK, __float_as_uint(largest));
}

// hi + lo is x to 22 bits or more; tensor cores ignore the bits below a tf32 number's. Not for inf and nan.
__device__ __forceinline__ void split_tf32(float x, unsigned& hi, unsigned& lo) {
  hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  lo = __float_as_uint(x - __uint_as_float(hi)) + 0x1000u;
}

__device__ __forceinline__ int Packed::input() const { return half_exponent(__int_as_float(*largest)); }
// None where the input can be split as it is, so that what is far smaller beside it can be split too.
__device__ __forceinline__ int Packed::split_input() const {
  const float most = __int_as_float(*largest);
  return most >= 0x1p-60f && most < 0x1p60f ? 0 : half_exponent(most);
}

__device__ __forceinline__ float block_max(float x) {
  __shared__ float parts[PACKERS / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[threadIdx.x % 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// One block: lowers the flag, and notes the largest numbers of a sample of the input.
template <class P>
__device__ __forceinline__ void sample_input(const P& p, const Packed& packed, int* peaks) {
  float largest = 0;
#pragma unroll
  for (int k = 0; k < SAMPLES; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * PACKERS;
    Index at[4];
#pragma unroll
    for (int d = 0; d < 4; ++d)
      at[d] = spread(i, d, p.extent(d)) * P::Stride::at(d) + P::Shift::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) / 2;
    const typename P::BAt place = p.b_at(spread(i, 4, p.batches()), at[0], at[1], at[2], at[3]);
    const float x = fabsf(static_cast<float>(p.b_in(place, static_cast<Index>(i % P::CHANNELS))));
    if (place.inside && x < INFINITY) {
      largest = fmaxf(largest, x);
      atomicMax(peaks + i % P::CHANNELS % Packed::apart<P>(), __float_as_int(x));
    }
  }
  largest = block_max(largest);
  for (int c = static_cast<int>(threadIdx.x); c < Packed::apart<P>(); c += PACKERS) packed.channels[c] = peaks[c];
  if (threadIdx.x == 0) *packed.largest = __float_as_int(largest), *packed.again = 0;
}

// A block for each row of weights, and one more that looks at the input.
template <class W, class P>
__global__ void __launch_bounds__(PACKERS) pack_rows_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  __shared__ int peaks[Packed::apart<P>()];  // of channels: floats that are not negative, as integers
  const Packed packed(p, workspace);
  constexpr int TAPS = P::Kernel::product;
  constexpr bool scaled_rows = W::kind == Operands::Half || W::kind == Operands::Split;
  const Index tiles = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, channels = p.channels();
  if constexpr (scaled_rows) {
    for (int c = static_cast<int>(threadIdx.x); c < Packed::apart<P>(); c += PACKERS) peaks[c] = 0;
    __syncthreads();
  }
  if (blockIdx.x >= static_cast<unsigned>(packed.count)) {
    if constexpr (scaled_rows) sample_input(p, packed, peaks);
    return;
  }
  const Index row = static_cast<Index>(blockIdx.x), group = row / (tiles * PAIR_ROWS), m = row % (tiles * PAIR_ROWS);
  const bool there = m < p.rows();
  const auto line = p.a_row(group, there ? m : 0);
  int by = 0;
  if constexpr (scaled_rows) {
    float largest = 0;
    if (there)
      for (Index k = static_cast<Index>(threadIdx.x); k < channels * TAPS; k += PACKERS)
        largest = fmaxf(largest, fabsf(static_cast<float>(p.a(line, k))));
    largest = block_max(largest);
    by = W::kind == Operands::Half ? half_exponent(largest) : split_exponent(largest);
  }
  bool bad = false;
  const auto put = [&](auto kind, unsigned char* to) {
    constexpr int UNIT = decltype(kind)::UNIT, CHANNELS = 2 * UNIT, PLANES = decltype(kind)::kind == Operands::Split ? 2 : 1;
    constexpr Index CHUNKS = (P::CHANNELS + CHANNELS - 1) / CHANNELS, ALL = CHUNKS * CHANNELS;
    unsigned char* const tile = to + (row / PAIR_ROWS) * int64_t(CHUNKS) * TAPS * PLANES * TAP_BYTES;
    // Neighbouring threads have neighbouring channels of a tap.
    for (Index i = static_cast<Index>(threadIdx.x); i < ALL * TAPS; i += PACKERS) {
      const Index c = i % ALL, t = i / ALL, tap = P::flipped ? TAPS - 1 - t : t;
      const float w = there && c < channels ? static_cast<float>(p.a(line, c * TAPS + tap)) : 0.0f;
      unsigned char* const at =
          tile + ((c / CHANNELS * TAPS + t) * PLANES * 2 + c % CHANNELS / UNIT) * int64_t(TAP_BYTES / 2) + row % PAIR_ROWS * 16;
      if constexpr (decltype(kind)::kind == Operands::Tf32) {
        reinterpret_cast<unsigned*>(at)[c % UNIT] = round_tf32(w);
      } else if constexpr (decltype(kind)::kind == Operands::Half) {
        const float s = scaled(w, by);
        if (c < channels) atomicMax(peaks + c % Packed::apart<P>(), __float_as_int(fmaxf(0.0f, fabsf(s))));
        reinterpret_cast<unsigned short*>(at)[c % UNIT] = static_cast<unsigned short>(pack_half(s, 0.0f));
      } else if constexpr (decltype(kind)::kind == Operands::Split) {
        bad |= !(fabsf(w) < SPLIT_WEIGHT);
        split_tf32(scaled(w, by), reinterpret_cast<unsigned*>(at)[c % UNIT], reinterpret_cast<unsigned*>(at + TAP_BYTES)[c % UNIT]);
      } else {
        reinterpret_cast<unsigned short*>(at)[c % UNIT] = static_cast<unsigned short>(pack(w, 0.0f));
      }
    }
  };
  put(W(), packed.half);
  if constexpr (W::kind == Operands::Half) {
    put(Warpgroups<0, 1, 0, 0, 0, Operands::Tf32>(), packed.tf32);
    __syncthreads();
    // A channel whose weights are all small may have a large input.
    for (int c = static_cast<int>(threadIdx.x); c < Packed::apart<P>(); c += PACKERS) {
      const float largest = __int_as_float(peaks[c]);
      bad |= !(largest <= HALF_LIMIT) || (largest > 0 && largest < HALF_SMALL);
    }
  }
  if constexpr (scaled_rows) {
    const int any = __syncthreads_or(bad);
    if (threadIdx.x == 0) packed.rows[row] = by, packed.spoilt[row] = any;
  }
#if CRUCIBLE_SCALAR > 1  // elements as they are
  if constexpr (!scaled_rows)
    if (threadIdx.x == 0) packed.rows[row] = 0;
#endif
#endif
}

#if CRUCIBLE_HAS_WGMMA
// One block of the launch after that raises the flag for rows of weights that half cannot hold.
template <int THREADS>
__device__ __forceinline__ void spoilt_rows(const Packed& packed, int thread) {
  for (int64_t row = thread; row < packed.count; row += THREADS)
    if (packed.spoilt[row]) *packed.again = 1;
}
#endif

#ifndef __CUDACC_RTC__
// Packs, and says how many processors there are.
template <class W, class P>
cudaError_t pack_rows(const P& p, void* workspace, int* processors, cudaStream_t stream) {
  int device = 0;
  cudaError_t refused = cudaGetDevice(&device);
  if (refused == cudaSuccess) refused = cudaDeviceGetAttribute(processors, cudaDevAttrMultiProcessorCount, device);
  if (refused != cudaSuccess) return refused;
  const int64_t rows = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS) * PAIR_ROWS;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(rows + 1), PACKERS, 0, stream), pack_rows_kernel<W, P>, p, workspace);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// The gradient of a convolution's weight on Hopper's tensor cores (wgmma, compute capability 9.0a).
//
// D[m, (channel, tap)] = sum over pixels of a(m, pixel) * b(channel, the input pixel under tap), as window_gradient.cuh has it.
// A first launch looks at some numbers of each row of a and channel of b, from which scales follow, powers of two. A second
// one rounds both to half and stores 16 bytes of channels for each pixel: a by boxes, b with its borders of zeros. In this
// order neighbours in shared memory are neighbours along the sum, which the matrix instructions permit for both operands
// where they are 16 bits wide, so a tap is an offset here too and nothing is transposed.
// A block takes 64 rows, N channels and the taps of a window's last dimensions; its warpgroups share these taps. One warp
// asks for boxes by bulk copies: a's is one copy, b's halo one for each of its lines and eight channels.
// Pixels that do not exist have zeros in a. The last launch is window_gradient.cuh's, and returns at once unless something was
// found that half cannot hold, or that is not finite.
//
// Tensor cores cut what they add and these sums are long, so after SUMMED steps sums go to memory that a thread has to itself,
// where ordinary additions round; warpgroups take turns with that. Bytes: a and b read once as float and written once as
// half, then read from there once for each block that wants them.

#if CRUCIBLE_HOPPER
namespace crucible {

// As Wgmma, of operands that lie across, 16 bits wide. The including file brings the instructions for its N.
template <int N, Operands kind>
struct WgmmaAcross;

#if CRUCIBLE_HAS_WGMMA
// An operand that lies across: 16 bytes are eight lines (rows of A, columns of B) at one step of the sum, and steps follow
// each other, eight to a matrix. In units of 16 bytes, `deeper` leads to the second eight steps and `further` to the next
// eight lines. A shift by one step is one more in the lowest field.
__device__ __forceinline__ uint64_t steps_at(unsigned address, unsigned deeper, unsigned further) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(deeper) << 16 | static_cast<uint64_t>(further) << 32;
}
#endif

constexpr int SUMMED = 128;  // steps of 16 pixels

// GROUPS warpgroups that multiply, EACH with so many taps. FROM: the dimension from which on taps are of one block. N channels.
// kind: floats scaled and rounded to half, or elements as they are.
template <int GROUPS_, int EACH_, int FROM_, int N_, int SLOTS_, class Box_, Operands kind_>
struct GradientGroups {
  static_assert(kind_ == Operands::Half || kind_ == Operands::Native, "16 bits wide");
  using Box = Box_;
  static constexpr Operands kind = kind_;
  static constexpr int GROUPS = GROUPS_, EACH = EACH_, FROM = FROM_, N = N_, SLOTS = SLOTS_;
  static constexpr int CONSUMERS = 128 * GROUPS, threads = CONSUMERS + 128;
};

// The form of what a block takes, for box.cuh.
template <class W, class P>
struct GradientPiece {
  using Box = typename W::Box;
  using Kernel = Dims<W::FROM <= 0 ? P::Kernel::at(0) : 1, W::FROM <= 1 ? P::Kernel::at(1) : 1, W::FROM <= 2 ? P::Kernel::at(2) : 1, P::Kernel::at(3)>;
  using Stride = typename P::Stride;
  using Dilation = typename P::Dilation;
};

template <class W, class P>
struct GradientRoom {
  using Piece = GradientPiece<W, P>;
  using Box = typename W::Box;
  using Halo = HaloOf<Piece>;
  static_assert(P::Stride::product == 1, "neighbours are multiplied with neighbours");
  static_assert(Box::product % 16 == 0 && Box::at(3) % 8 == 0 && W::N % 8 == 0, "whole matrices");
  static constexpr int TAPS = Piece::Kernel::product, PIECES = P::Kernel::product / TAPS;
  static constexpr int REST = TAPS - (W::GROUPS - 1) * W::EACH;  // taps of the last warpgroup
  static_assert(REST > 0 && REST <= W::EACH, "a warpgroup for each tap, and a tap for each");
  static constexpr int PIXELS = Box::product, STEPS = PIXELS / 16, OFTEN = STEPS < SUMMED ? SUMMED / STEPS : 1;  // boxes that are summed
  static constexpr int PLANES = W::N / 8, A_BYTES = PIXELS * PAIR_ROWS * 2, SLOT_BYTES = A_BYTES + PLANES * Halo::product * 16;
  static constexpr int shared_bytes = W::SLOTS * (SLOT_BYTES + 16);
  static constexpr int KEPT = W::EACH * W::N / 8;  // groups of four sums that a thread has
};

// What the launches hand to each other: a flag, exponents of all scales, both tensors in half, and sums. The pixels of b go on
// until the last box's end, so that whatever is copied is there.
template <class W, class P>
struct GradientReady {
  using R = GradientRoom<W, P>;
  Index boxes[4], extents[4];  // along each dimension: boxes, and pixels of b
  int64_t count, pixels, tiles_m, tiles_c, kinds, bytes;
  int* again;
  int* a_by;
  int* b_by;
  unsigned char* a;
  unsigned char* b;
  float4* sums;

  __host__ __device__ GradientReady(const P& p, void* workspace) : count(1), pixels(1) {
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      boxes[d] = (p.extent(d) + W::Box::at(d) - 1) / W::Box::at(d);
      extents[d] = boxes[d] * W::Box::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d);
      count *= boxes[d];
      pixels *= extents[d];
    }
    tiles_m = (static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS;
    tiles_c = (static_cast<int64_t>(p.channels()) + W::N - 1) / W::N;
    kinds = p.batches() * tiles_m * tiles_c * R::PIECES;
    const int64_t rows = p.batches() * tiles_m * PAIR_ROWS, channels = p.batches() * tiles_c * W::N;
    const int64_t head = 256 + (rows + channels + 63) / 64 * 256, a_bytes = p.batches() * count * tiles_m * R::A_BYTES;
    bytes = head + a_bytes + channels / 8 * pixels * 16;
    unsigned char* const at = static_cast<unsigned char*>(workspace);
    again = reinterpret_cast<int*>(at);
    a_by = again + 64;
    b_by = a_by + rows;
    a = at + head;
    b = a + a_bytes;
    sums = reinterpret_cast<float4*>(at + bytes);
  }
  // Whether boxes are not almost empty, and pixels can be counted: else the kernel for other chips does it all.
  __host__ __device__ bool pays(const P& p) const {
    int64_t there = 1;
    for (int d = 0; d < 4; ++d) there *= p.extent(d);
    const int64_t counted = count * R::PIXELS, most = sizeof(Index) > 4 ? int64_t(1) << 40 : 0x7fffffff;
    return count > 0 && counted <= 4 * there + 65536 && counted < most && pixels < most;
  }
};

#if CRUCIBLE_HAS_WGMMA
// A block for each row of a and each channel of b.
template <class W, class P>
__device__ __forceinline__ float sample_line(const P& p, Index z, Index m, Index channel) {
  Index at[4];
#pragma unroll
  for (int d = 0; d < 4; ++d) at[d] = spread(threadIdx.x, d, p.extent(d));
  if (m >= 0) {
    if (m >= p.rows()) return 0.0f;
    return fabsf(static_cast<float>(p.a_in(p.a_at(z, at[0], at[1], at[2], at[3]), m)));
  }
  if (channel >= p.channels()) return 0.0f;
#pragma unroll
  for (int d = 0; d < 4; ++d) at[d] += P::Shift::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) / 2;
  const typename P::BAt place = p.b_at(z, at[0], at[1], at[2], at[3]);
  return place.inside ? fabsf(static_cast<float>(p.b_in(place, channel))) : 0.0f;
}
#endif

template <class W, class P>
__global__ void __launch_bounds__(PACKERS) gradient_scale_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  const GradientReady<W, P> ready(p, workspace);
  const unsigned rows = static_cast<unsigned>(ready.tiles_m * PAIR_ROWS), channels = static_cast<unsigned>(ready.tiles_c * W::N);
  const unsigned a_lines = rows * static_cast<unsigned>(p.batches());
  const bool of_a = blockIdx.x < a_lines;
  const unsigned line = of_a ? blockIdx.x : blockIdx.x - a_lines, each = of_a ? rows : channels;
  const Index z = static_cast<Index>(line / each), in = static_cast<Index>(line % each);
  const float x = W::kind == Operands::Half ? sample_line<W>(p, z, of_a ? in : Index(-1), in) : 0.0f;
  const float largest = block_max(x < INFINITY ? x : 0.0f);
  if (threadIdx.x == 0) {
    (of_a ? ready.a_by : ready.b_by)[line] = half_exponent(largest);
    if (blockIdx.x == 0) *ready.again = 0;
  }
#endif
}

#if CRUCIBLE_HAS_WGMMA
// Eight numbers of a pixel, scaled. `most`: the bits of the largest; those of inf and nan are larger than any number's.
template <Operands kind>
__device__ __forceinline__ uint4 round_pixel(float (&x)[8], const int* by, unsigned& most) {
  most = 0;
  if constexpr (kind == Operands::Native) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const unsigned bits = __float_as_uint(fabsf(x[i]));
      most = most < bits ? bits : most;
    }
    return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
  }
  const int4 low = *reinterpret_cast<const int4*>(by), high = *reinterpret_cast<const int4*>(by + 4);
  const int e[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] *= power_of_two(e[i]);
    const unsigned bits = __float_as_uint(fabsf(x[i]));
    most = most < bits ? bits : most;
  }
  return make_uint4(pack_half(x[0], x[1]), pack_half(x[2], x[3]), pack_half(x[4], x[5]), pack_half(x[6], x[7]));
}

// Whether 16 bits cannot hold what the lanes of a warp have, or it is not finite, which times zero is not zero. A few numbers
// alone may be small.
template <Operands kind>
__device__ __forceinline__ bool spoilt_pixels(unsigned mine) {
  if (kind == Operands::Native) return __any_sync(0xffffffffu, mine > (CRUCIBLE_SCALAR == 2 ? 0x477fe000u : 0x7f7f0000u)) != 0;
  const unsigned most = __reduce_max_sync(0xffffffffu, mine);
  const bool small = most < __float_as_uint(HALF_SMALL) && most != 0 && __popc(__ballot_sync(0xffffffffu, mine != 0)) > 3;
  return small || most > __float_as_uint(HALF_LIMIT);
}
#endif

constexpr int ROUNDERS = 256;

// A thread for each pixel of a's boxes and of b's planes, with all channels; so many blocks for each group.
template <class W, class P>
__global__ void __launch_bounds__(ROUNDERS) gradient_ready_kernel(const __grid_constant__ P p, void* workspace, unsigned a_parts, unsigned b_parts) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  using R = GradientRoom<W, P>;
  const GradientReady<W, P> ready(p, workspace);
  const unsigned part = blockIdx.x % (a_parts + b_parts);
  const bool of_a = part < a_parts;
  const int64_t number = static_cast<int64_t>(of_a ? part : part - a_parts) * ROUNDERS + threadIdx.x;
  const bool there = number < (of_a ? ready.count * R::PIXELS : ready.pixels);
  const Index z = static_cast<Index>(blockIdx.x / (a_parts + b_parts));
  Index rest = there ? static_cast<Index>(number) : 0;
  bool bad = false;
  Index at[4];
  if (of_a) {
    const int in = static_cast<int>(rest % R::PIXELS);
    const Index box = rest / R::PIXELS;
    rest = box;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d] = rest % ready.boxes[d] * W::Box::at(d) + W::Box::index(in, d);
      rest /= ready.boxes[d];
    }
    const typename P::AAt from = p.a_at(z, at[0], at[1], at[2], at[3]);
    const bool inside = there && from.inside;
    const int planes = static_cast<int>(ready.tiles_m) * (PAIR_ROWS / 8);
    const int* const by = ready.a_by + static_cast<int64_t>(z) * planes * 8;
    unsigned char* const to = ready.a + ((static_cast<int64_t>(z) * ready.count + box) * planes * R::PIXELS + in) * 16;
#pragma unroll 2
    for (int plane = 0; plane < planes; ++plane) {
      float x[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = inside && plane * 8 + e < p.rows() ? static_cast<float>(p.a_in(from, plane * 8 + e)) : 0.0f;
      unsigned most;
      const uint4 word = round_pixel<W::kind>(x, by + plane * 8, most);
      bad |= spoilt_pixels<W::kind>(most);
      if (there) *reinterpret_cast<uint4*>(to + static_cast<int64_t>(plane) * R::PIXELS * 16) = word;
    }
  } else {
    const Index pixel = rest;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d] = rest % ready.extents[d] + P::Shift::at(d);
      rest /= ready.extents[d];
    }
    const typename P::BAt from = p.b_at(z, at[0], at[1], at[2], at[3]);
    const bool inside = there && from.inside;
    const int planes = static_cast<int>(ready.tiles_c) * R::PLANES;
    const int* const by = ready.b_by + static_cast<int64_t>(z) * planes * 8;
    unsigned char* const to = ready.b + (static_cast<int64_t>(z) * planes * ready.pixels + pixel) * 16;
#pragma unroll 2
    for (int plane = 0; plane < planes; ++plane) {
      float x[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = inside && plane * 8 + e < p.channels() ? static_cast<float>(p.b_in(from, plane * 8 + e)) : 0.0f;
      unsigned most;
      const uint4 word = round_pixel<W::kind>(x, by + plane * 8, most);
      bad |= spoilt_pixels<W::kind>(most);
      if (there) *reinterpret_cast<uint4*>(to + plane * ready.pixels * 16) = word;
    }
  }
  if (bad && threadIdx.x % 32 == 0) *ready.again = 1;
#endif
}

#if CRUCIBLE_HAS_WGMMA
// What a block has: rows, channels, taps and boxes.
template <class W, class P>
struct GradientShare {
  using R = GradientRoom<W, P>;
  int split;
  Index z, tile_m, tile_c, piece, first, last;

  __device__ __forceinline__ GradientShare(const GradientReady<W, P>& ready, int used) {
    const unsigned kinds = static_cast<unsigned>(ready.kinds), tiles_c = static_cast<unsigned>(ready.tiles_c);
    unsigned kind = blockIdx.x % kinds;
    split = static_cast<int>(blockIdx.x / kinds);
    piece = static_cast<Index>(kind % R::PIECES);
    kind /= R::PIECES;
    tile_c = static_cast<Index>(kind % tiles_c);
    kind /= tiles_c;
    tile_m = static_cast<Index>(kind % static_cast<unsigned>(ready.tiles_m));
    z = static_cast<Index>(kind / static_cast<unsigned>(ready.tiles_m));
    first = static_cast<Index>(ready.count * split / used);
    last = static_cast<Index>(ready.count * (split + 1) / used);
  }
};

// One warp: a box of a and the halo of b under it, after another.
template <class W, class P>
__device__ __forceinline__ void fetch_gradient(const GradientReady<W, P>& ready, const GradientShare<W, P>& share, unsigned ring,
                                               unsigned full, unsigned empty) {
  using R = GradientRoom<W, P>;
  using Halo = typename R::Halo;
  constexpr int ROWS = Halo::at(0) * Halo::at(1) * Halo::at(2);
  constexpr unsigned ROW_BYTES = Halo::at(3) * 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Where the first tap of this block's lies.
  Index shift[3], piece = share.piece;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    shift[d] = W::FROM > d ? piece % P::Kernel::at(d) * P::Dilation::at(d) : 0;
    if (W::FROM > d) piece /= P::Kernel::at(d);
  }
  const unsigned char* const planes = ready.b + (share.z * ready.tiles_c + share.tile_c) * R::PLANES * ready.pixels * 16;
  int slot = 0;
  unsigned parity = 1;
#pragma unroll 1
  for (Index box = share.first; box < share.last; ++box) {
    const unsigned to = ring + slot * R::SLOT_BYTES, come = full + slot * 8;
    Index at[4], rest = box;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d] = rest % ready.boxes[d] * W::Box::at(d) + (d < 3 ? shift[d] : 0);
      rest /= ready.boxes[d];
    }
    barrier_wait(empty + slot * 8, parity);
    if (lane == 0) {
      barrier_expect(come, R::SLOT_BYTES);
      bulk_copy(to, ready.a + ((share.z * ready.count + box) * ready.tiles_m + share.tile_m) * R::A_BYTES, R::A_BYTES, come);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < R::PLANES * ROWS; i += 32) {
      const int row = i % ROWS, plane = i / ROWS;
      int64_t from = at[0] + row / (Halo::at(1) * Halo::at(2));
      from = from * ready.extents[1] + at[1] + row / Halo::at(2) % Halo::at(1);
      from = from * ready.extents[2] + at[2] + row % Halo::at(2);
      from = from * ready.extents[3] + at[3];
      bulk_copy(to + R::A_BYTES + (plane * Halo::product + row * Halo::at(3)) * 16, planes + (plane * ready.pixels + from) * 16, ROW_BYTES, come);
    }
    if (++slot == W::SLOTS) slot = 0, parity ^= 1;
  }
}

// The consumers: a warpgroup has COUNT of the block's taps. That they are known keeps branches from between the instructions.
template <int COUNT, class W, class P>
__device__ __forceinline__ void multiply_gradient(const P& p, const GradientReady<W, P>& ready, const GradientShare<W, P>& share, unsigned ring,
                                                  unsigned full, unsigned empty, int splits, int used, int warp) {
  using R = GradientRoom<W, P>;
  using Piece = typename R::Piece;
  const int group = warp / 4, lane = static_cast<int>(threadIdx.x) % 32;
  float sums[COUNT][W::N / 2];
  int off[COUNT];
#pragma unroll
  for (int e = 0; e < COUNT; ++e) {
#pragma unroll
    for (int i = 0; i < W::N / 2; ++i) sums[e][i] = 0.0f;
    off[e] = tap_offset<Piece>(group * W::EACH + e);
  }
  float4* const kept = ready.sums + static_cast<int64_t>(blockIdx.x) * R::KEPT * W::CONSUMERS + threadIdx.x;
  bool some = false;  // of the sum are kept
  const auto add_kept = [&]() {
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
#pragma unroll
      for (int j = 0; j < W::N / 8; ++j) {
        const float4 before = kept[(e * (W::N / 8) + j) * W::CONSUMERS];
        sums[e][4 * j] += before.x, sums[e][4 * j + 1] += before.y, sums[e][4 * j + 2] += before.z, sums[e][4 * j + 3] += before.w;
      }
  };
  int slot = 0, left = R::OFTEN - group * R::OFTEN / W::GROUPS;
  unsigned parity = 0;
#pragma unroll 1
  for (Index box = share.first; box < share.last;) {
    // So many boxes. A slot is free when its products are done: while the next ones run.
    int before = -1;
    const Index end = share.last - box < left ? share.last : box + left;
#pragma unroll 1
    for (int more = 0; box < end; ++box, more = 1) {
      barrier_wait(full + slot * 8, parity);
      const unsigned at = ring + slot * R::SLOT_BYTES;
      const uint64_t a = steps_at(at, 8, R::PIXELS);
      wgmma_begin();
#pragma unroll
      for (int s = 0; s < R::STEPS; ++s) {
        const int under = halo_offset<Piece>(s * 16);
        const uint64_t b = steps_at(at + R::A_BYTES, halo_offset<Piece>(s * 16 + 8) - under, R::Halo::product) + under;
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
          WgmmaAcross<W::N, W::kind>::multiply(sums[e], a + s * 16, b + off[e], s > 0 ? 1 : more);
      }
      wgmma_end();
      wgmma_wait<1>();
      if (lane == 0 && before >= 0) barrier_arrive(empty + before * 8);
      before = slot;
      if (++slot == W::SLOTS) slot = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(empty + before * 8);
#pragma unroll
    for (int e = 0; e < COUNT; ++e) settle(sums[e]);
    if (some) add_kept();
    if (box == share.last) break;
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
#pragma unroll
      for (int j = 0; j < W::N / 8; ++j)
        kept[(e * (W::N / 8) + j) * W::CONSUMERS] = make_float4(sums[e][4 * j], sums[e][4 * j + 1], sums[e][4 * j + 2], sums[e][4 * j + 3]);
    some = true, left = R::OFTEN;
  }
  const Index m0 = share.tile_m * PAIR_ROWS + warp % 4 * 16 + lane / 4, c0 = share.tile_c * W::N + lane % 4 * 2;
  const int* const a_by = ready.a_by + share.z * ready.tiles_m * PAIR_ROWS;
  const int* const b_by = ready.b_by + share.z * ready.tiles_c * W::N;
  const int rows[2] = {a_by[m0], a_by[m0 + 8]};
#pragma unroll
  for (int j = 0; j < W::N / 8; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Index channel = c0 + j * 8 + i;
      const int by = b_by[channel];
#pragma unroll
      for (int e = 0; e < COUNT; ++e)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Index m = m0 + h * 8, n = (channel * R::PIECES + share.piece) * R::TAPS + group * W::EACH + e;
          if (m < p.rows() && channel < p.channels()) {
            p.finish(share.z, m, n, share.split, scaled(sums[e][4 * j + 2 * h + i], -rows[h] - by), true);
            for (int other = share.split + used; other < splits; other += used) p.finish(share.z, m, n, other, 0.0f, true);
          }
        }
    }
}
#endif

// `used` of the splits have boxes, the others zeros.
template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1) gradient_groups_kernel(const __grid_constant__ P p, void* workspace, int splits, int used) {
  follow();
  extern __shared__ __align__(128) unsigned char groups_shared[];
#if CRUCIBLE_HAS_WGMMA
  using R = GradientRoom<W, P>;
  const GradientReady<W, P> ready(p, workspace);
  if (*ready.again != 0) return;
  // Through a shuffle, so that the compiler knows that a warp agrees on it: else it lines up the matrix instructions.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const unsigned ring = shared_address(groups_shared), full = ring + W::SLOTS * R::SLOT_BYTES, empty = full + W::SLOTS * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, W::CONSUMERS / 32);
    }
    barrier_inits_done();
  }
  __syncthreads();
  const GradientShare<W, P> share(ready, used);
  if (warp >= W::CONSUMERS / 32) {
    if (warp == W::CONSUMERS / 32) fetch_gradient<W>(ready, share, ring, full, empty);
  } else if (R::REST == W::EACH || warp / 4 < W::GROUPS - 1) {
    multiply_gradient<W::EACH>(p, ready, share, ring, full, empty, splits, used, warp);
  } else {
    multiply_gradient<R::REST>(p, ready, share, ring, full, empty, splits, used, warp);
  }
#endif
}

#ifndef __CUDACC_RTC__
// Bytes that launch_gradient_groups wants.
template <class W, class P>
int64_t gradient_bytes(const P& p, int splits) {
  const GradientReady<W, P> ready(p, nullptr);
  if (!ready.pays(p)) return 0;
  return ready.bytes + ready.kinds * splits * GradientRoom<W, P>::KEPT * W::CONSUMERS * 16;
}

// W for the launch, Again for the one that does what half cannot hold.
template <class W, class Again, class P>
cudaError_t launch_gradient_groups(const P& p, int splits, void* workspace, cudaStream_t stream) {
  using R = GradientRoom<W, P>;
  const GradientReady<W, P> ready(p, workspace);
  if (ready.kinds == 0) return cudaSuccess;
  if (!ready.pays(p)) return launch_gradient<Again>(p, splits, stream);
  int device = 0, processors = 0;
  cudaError_t refused = cudaGetDevice(&device);
  if (refused == cudaSuccess) refused = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (refused == cudaSuccess) refused = allow_shared(gradient_groups_kernel<W, P>, R::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t lines = p.batches() * (ready.tiles_m * PAIR_ROWS + ready.tiles_c * W::N);
  const int64_t a_parts = (ready.count * R::PIXELS + ROUNDERS - 1) / ROUNDERS, b_parts = (ready.pixels + ROUNDERS - 1) / ROUNDERS;
  int64_t used = processors > ready.kinds ? processors / ready.kinds : 1;
  if (used > splits) used = splits;
  if (used > ready.count) used = ready.count;
  if (lines > 0x7fffffff || p.batches() * (a_parts + b_parts) > 0x7fffffff || ready.kinds * used > 0x7fffffff) return cudaErrorInvalidValue;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(lines), PACKERS, 0, stream), gradient_scale_kernel<W, P>, p, workspace);
  if (refused != cudaSuccess) return refused;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(p.batches() * (a_parts + b_parts)), ROUNDERS, 0, stream), gradient_ready_kernel<W, P>, p,
                               workspace, static_cast<unsigned>(a_parts), static_cast<unsigned>(b_parts));
  if (refused != cudaSuccess) return refused;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(ready.kinds * used), W::threads, R::shared_bytes, stream), gradient_groups_kernel<W, P>, p,
                               workspace, splits, static_cast<int>(used));
  if (refused != cudaSuccess) return refused;
  return launch_gradient<Again>(p, splits, stream, ready.again);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Neighbours in memory, 16 bytes of the file's element type at a time.
//
// A walk goes over places `from` .. `to`. Where its tensors begin alike (all elements of one place at the same distance
// from a multiple of a vector's length) it is a few single elements, then vectors, then a few single ones; else all are
// single. A thread asks for IN_FLIGHT vectors before it waits for the first.
//   CRUCIBLE_VECTORS     0: single elements only, for comparisons
//   CRUCIBLE_IN_FLIGHT   how many vectors a thread asks for at once
//   CRUCIBLE_STREAMING   1: what nothing reads again leaves the caches first

#ifndef CRUCIBLE_VECTORS
#define CRUCIBLE_VECTORS 1
#endif
#ifndef CRUCIBLE_IN_FLIGHT
#define CRUCIBLE_IN_FLIGHT 2
#endif
#ifndef CRUCIBLE_STREAMING
#define CRUCIBLE_STREAMING 1
#endif

namespace crucible {

constexpr int VECTOR = 16 / sizeof(scalar), IN_FLIGHT = CRUCIBLE_IN_FLIGHT;

template <int BYTES>
struct WordOf { using type = uint4; };
template <>
struct WordOf<8> { using type = uint2; };
template <>
struct WordOf<4> { using type = unsigned; };
template <>
struct WordOf<2> { using type = unsigned short; };

// So many elements of any type: 16 bytes, or several times that, or less.
template <class T>
struct Vector {
  using Word = typename WordOf<VECTOR * sizeof(T)>::type;
  static constexpr int WORDS = VECTOR * sizeof(T) / sizeof(Word);
  T elements[VECTOR];
  __device__ __forceinline__ const T& operator[](int u) const { return elements[u]; }
  __device__ __forceinline__ T& operator[](int u) { return elements[u]; }
};

// Of a tensor that this kernel only reads; `LAST`: and that nothing reads after it.
template <bool LAST = false, class T>
__device__ __forceinline__ Vector<T> read_vector(const T* at) {
  using V = Vector<T>;
  const auto* const from = reinterpret_cast<const typename V::Word*>(at);
  typename V::Word words[V::WORDS];
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) words[i] = LAST && CRUCIBLE_STREAMING ? __ldcs(from + i) : __ldg(from + i);
  V v;
  memcpy(&v, words, sizeof(V));
  return v;
}

template <bool LAST = false, class T>
__device__ __forceinline__ void write_vector(T* at, const Vector<T>& v) {
  using V = Vector<T>;
  auto* const to = reinterpret_cast<typename V::Word*>(at);
  typename V::Word words[V::WORDS];
  memcpy(words, &v, sizeof(V));
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) {
    if constexpr (LAST && CRUCIBLE_STREAMING) {
      __stcs(to + i, words[i]);
    } else {
#if CRUCIBLE_WIDE
      __stwb(to + i, words[i]);  // at an address from 64-bit numbers the compiler would store a word's parts one by one
#else
      to[i] = words[i];
#endif
    }
  }
}

// How far elements lie from where a vector may begin: the same for all, or -1.
template <class T>
__host__ __device__ __forceinline__ int alike(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) / sizeof(T) % VECTOR);
}
template <class T, class... Others>
__host__ __device__ __forceinline__ int alike(const T* at, const Others*... others) {
  const int one = alike(at), other = alike(others...);
  return one == other ? one : -1;
}

// The places of a walk as vectors and single elements.
struct Stretch {
  Index from, to, begin, vectors;
  __host__ __device__ __forceinline__ Index singles() const { return to - from - vectors * VECTOR; }
  __host__ __device__ __forceinline__ Index single(int64_t k) const {
    const Index place = from + static_cast<Index>(k);
    return place < begin ? place : place + vectors * VECTOR;
  }
};

// `distance`: of the element at place 0 from where a vector may begin, or less than 0 where there are none.
__host__ __device__ __forceinline__ Stretch stretch(int64_t first, int64_t last, int distance) {
  const Index from = static_cast<Index>(first), to = static_cast<Index>(last), wanted = -(from + distance) & (VECTOR - 1);
  if (!CRUCIBLE_VECTORS || distance < 0 || wanted >= to - from) return {from, to, to, 0};
  return {from, to, from + wanted, (to - from - wanted) / VECTOR};
}

}  // namespace crucible

// A thread an element, or several that lie together: the functor computes and stores them.
//
// A functor M has `Index count() const` and either `void operator()(Index i) const`, or, where M::in_vectors,
//   Stretch places() const;  void walk(const MapThreads& threads, const Stretch& places) const;
// Reads and writes what the functor does; neighbouring threads take neighbouring elements, or vectors, and a block takes
// IN_FLIGHT vectors a thread side by side.

namespace crucible {

constexpr int MAP_THREADS = 256;

struct MapThreads {
  __device__ __forceinline__ int64_t first() const { return static_cast<int64_t>(blockIdx.x) * MAP_THREADS + threadIdx.x; }
  __device__ __forceinline__ int64_t step() const { return static_cast<int64_t>(gridDim.x) * MAP_THREADS; }
  __device__ __forceinline__ Index vector() const {
    return static_cast<Index>(blockIdx.x) * IN_FLIGHT * MAP_THREADS + static_cast<Index>(threadIdx.x);
  }
  __device__ __forceinline__ Index turn() const { return static_cast<Index>(gridDim.x) * IN_FLIGHT * MAP_THREADS; }
};

template <class M>
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(const M m) {
  follow();
  const MapThreads threads;
  if constexpr (M::in_vectors) {
    m.walk(threads, m.places());
  } else {
    const int64_t count = m.count();
    for (int64_t i = threads.first(); i < count; i += threads.step()) m(static_cast<Index>(i));
  }
}

template <class M>
cudaError_t launch_map(const M& m, cudaStream_t stream) {
  int64_t wanted = m.count();
  if (wanted <= 0) return cudaSuccess;
  if constexpr (M::in_vectors) {
    const Stretch places = m.places();
    const int64_t vectors = (places.vectors + IN_FLIGHT - 1) / IN_FLIGHT, singles = places.singles();
    wanted = vectors > singles ? vectors : singles;
  }
  const int64_t blocks = (wanted + MAP_THREADS - 1) / MAP_THREADS, most = 1 << 20;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks < most ? blocks : most), MAP_THREADS, 0, stream), map_kernel<M>, m);
}

}  // namespace crucible

// A group of N threads a row: the functor walks over the row, reduces, and stores what depends on the results.
//
// N is 1 (a thread for each row: short rows, or rows whose neighbours are neighbours in memory), 32 (a warp) or 256 (a
// block). A functor R has `Index rows() const` and
//   template <class L> void operator()(const L& lanes, Index row) const;
// where `lanes.first()` and `lanes.step()` deal out the row, `lanes.join(acc)` leaves the joined result with every
// thread, and `lanes.leads()` is true in one of them. Partial results travel by shuffles, between warps through N/32
// slots of shared memory.
// A functor whose later walks need again what the first one computes may also have
//   int64_t kept() const;  void keeping(const L&, Index row, accum* kept) const;
// which keeps that in shared memory, so many numbers a row; each thread reads what it wrote itself.
//
// A sliced functor, where what is reduced is short (partial results) and what follows is long, has
//   struct Found;  Found reduce(const L&, Index row) const;  int64_t length() const;  Index repeats() const;
//   void walk(const L&, Index row, Index part, int64_t from, int64_t to, const Found&) const;
// and takes two launches: the rows, then pieces of SLICE_VECTORS vectors a thread of each of a row's parts.
//
// A split functor, for few long rows, which may be the same stretch of places several times (a channel of every sample), has
//   struct Acc;  int64_t length() const;  Index repeats() const;   of the stretch, and how many times
//   void walk(const L&, Index row, Index first, Index last, int64_t from, int64_t to, Acc&) const;   some of both
//   void finish(const L&, Index row, const Acc&) const;
// and takes two launches: every part of every row, then the rows. Nothing depends on timing.
//   CRUCIBLE_SLICE_VECTORS   how many vectors a thread of a sliced walk has, all asked for before the first is used
//   CRUCIBLE_LAST_FIRST      1: slices and kept rows go from the last to the first, as the end of what was written just before is still
//                            in the cache

#ifndef CRUCIBLE_SLICE_VECTORS
#define CRUCIBLE_SLICE_VECTORS 4
#endif
#ifndef CRUCIBLE_LAST_FIRST
#define CRUCIBLE_LAST_FIRST 1
#endif

namespace crucible {

constexpr int ROW_THREADS = 256, SLICE_VECTORS = CRUCIBLE_SLICE_VECTORS, GRID_MOST = 65535;

// What an earlier kernel left, whole.
template <class T>
__device__ __forceinline__ T read_words(const T* at) {
  static_assert(sizeof(T) % 4 == 0 && alignof(T) % 4 == 0, "partial results are whole words");
  uint32_t words[sizeof(T) / 4];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) words[i] = __ldg(reinterpret_cast<const uint32_t*>(at) + i);
  T value;
  memcpy(&value, words, sizeof(T));
  return value;
}

template <int N>
struct Lanes {
  static_assert(N == 1 || N == 32 || N == ROW_THREADS, "a thread, a warp or a block");
  __device__ __forceinline__ int first() const { return static_cast<int>(threadIdx.x) % N; }
  __device__ __forceinline__ int step() const { return N; }
  __device__ __forceinline__ bool leads() const { return first() == 0; }
  // Where warps take parts of a row, each alone.
  static constexpr int WIDTH = N < 32 ? N : 32, WARPS = N / WIDTH;
  __device__ __forceinline__ int lane() const { return first() % WIDTH; }
  __device__ __forceinline__ int warp() const { return first() / WIDTH; }

  template <class Acc>
  __device__ __forceinline__ void join(Acc& a) const {
    if constexpr (N > 1) a = join_lanes<32>(a);
    if constexpr (N > 32) {
      constexpr int WARPS = ROW_THREADS / 32;
      __shared__ __align__(16) unsigned char slots[WARPS * sizeof(Acc)];
      Acc* const slot = reinterpret_cast<Acc*>(slots);
      __syncthreads();  // the last join's readers are done
      if (threadIdx.x % 32 == 0) slot[threadIdx.x / 32] = a;
      __syncthreads();
      a = join_lanes<WARPS>(slot[threadIdx.x % WARPS]);
    }
  }
};

template <int N>
__device__ __forceinline__ int64_t row_of_thread() {
  return (static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x) / N;
}

// The length of a part, where a row is cut into so many: whole vectors, and lines of memory.
__host__ __device__ inline int64_t row_share(int64_t length, int parts) {
  constexpr int LINE = 128 / sizeof(scalar);
  const int64_t share = (length + parts - 1) / parts;
  return (share + LINE - 1) / LINE * LINE;
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_kernel(const R r) {
  follow();
  const int64_t row = row_of_thread<N>();
  if (row < r.rows()) r(Lanes<N>(), static_cast<Index>(row));
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_keeping_kernel(const R r) {
  follow();
  extern __shared__ __align__(16) unsigned char row_kept[];
  const int64_t after = row_of_thread<N>(), row = CRUCIBLE_LAST_FIRST ? r.rows() - 1 - after : after;
  accum* const kept = reinterpret_cast<accum*>(row_kept) + threadIdx.x / N * r.kept();
  if (after < r.rows()) r.keeping(Lanes<N>(), static_cast<Index>(row), kept);
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_found_kernel(const R r, typename R::Found* found) {
  follow();
  const int64_t row = row_of_thread<N>();
  if (row >= r.rows()) return;
  const Lanes<N> lanes;
  const typename R::Found mine = r.reduce(lanes, static_cast<Index>(row));
  if (lanes.leads()) found[row] = mine;
}

// Slices are blockIdx.x, parts of rows the rest. No division, and all of `found` at once: each would be waited for before
// elements are asked for.
template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_slices_kernel(const R r, const typename R::Found* found, Index share) {
  follow();
  const int64_t count = static_cast<int64_t>(r.rows()) * r.repeats(), after = blockIdx.z * int64_t(GRID_MOST) + blockIdx.y;
  if (after >= count) return;
  const Index place = static_cast<Index>(CRUCIBLE_LAST_FIRST ? count - 1 - after : after), row = place / r.repeats();
  const Index length = static_cast<Index>(r.length());
  const Index from = share * static_cast<Index>(CRUCIBLE_LAST_FIRST ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const Index to = length - from < share ? length : from + share;
  r.walk(Lanes<ROW_THREADS>(), row, place % r.repeats(), from, to, read_words(found + row));
}

// How a long row is cut: its stretch into so many, and, where that is short, the times into so many.
struct RowCuts {
  int along, across;
};
template <int N, class R>
__host__ __device__ inline RowCuts row_cuts(const R& r, int splits) {
  const int64_t most = r.length() / (16 * N), repeats = r.repeats();
  const int along = most < 1 ? 1 : most < splits ? static_cast<int>(most) : splits, across = splits / along;
  return {along, repeats < 1 ? 1 : repeats < across ? static_cast<int>(repeats) : across};
}

template <int N, class R>
__global__ void __launch_bounds__(ROW_THREADS) row_parts_kernel(const R r, typename R::Acc* parts, RowCuts cuts) {
  follow();
  const int64_t row = row_of_thread<N>(), length = r.length(), each = row_share(length, cuts.along);
  if (row >= r.rows()) return;
  const int64_t from = each * (blockIdx.y % cuts.along), to = from + each < length ? from + each : length;
  const Index repeats = r.repeats(), times = (repeats + cuts.across - 1) / cuts.across;
  const Index first = times * static_cast<Index>(blockIdx.y / cuts.along), left = repeats - first;
  typename R::Acc a;
  const Lanes<N> lanes;
  if (left > 0) r.walk(lanes, static_cast<Index>(row), first, left < times ? repeats : first + times, from, to, a);
  lanes.join(a);
  if (lanes.leads()) parts[static_cast<int64_t>(blockIdx.y) * r.rows() + row] = a;
}

template <class R>
__global__ void __launch_bounds__(ROW_THREADS) row_whole_kernel(const R r, const typename R::Acc* parts, int splits) {
  follow();
  const int64_t row = row_of_thread<32>();
  if (row >= r.rows()) return;
  typename R::Acc a;
  const Lanes<32> lanes;
  for (int s = lanes.first(); s < splits; s += lanes.step()) a.join(parts[static_cast<int64_t>(s) * r.rows() + row]);
  lanes.join(a);
  r.finish(lanes, static_cast<Index>(row), a);
}

inline unsigned row_blocks(int64_t rows, int lanes) {
  return static_cast<unsigned>((rows * lanes + ROW_THREADS - 1) / ROW_THREADS);
}

template <int N, class R>
cudaError_t launch_rows(const R& r, cudaStream_t stream) {
  const int64_t rows = r.rows();
  if (rows <= 0) return cudaSuccess;
  return cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, 0, stream), row_kernel<N, R>, r);
}

// Rows that fit in shared memory keep what their first walk computes.
template <int N, class R>
cudaError_t launch_keeping_rows(const R& r, cudaStream_t stream) {
  const int64_t rows = r.rows(), bytes = r.kept() * (ROW_THREADS / N) * static_cast<int64_t>(sizeof(accum));
  if (rows <= 0 || bytes > 48 * 1024) return launch_rows<N>(r, stream);
  return cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, static_cast<size_t>(bytes), stream), row_keeping_kernel<N, R>, r);
}

// `found` has room for a Found for each row.
template <int N, class R>
cudaError_t launch_sliced_rows(const R& r, void* found, cudaStream_t stream) {
  constexpr int SLICE = SLICE_VECTORS * VECTOR * ROW_THREADS;
  const int64_t rows = r.rows(), length = r.length(), slices = (length + SLICE - 1) / SLICE;
  if (rows <= 0) return cudaSuccess;
  auto* const results = static_cast<typename R::Found*>(found);
  const cudaError_t error = cudaLaunchKernelEx(After(row_blocks(rows, N), ROW_THREADS, 0, stream), row_found_kernel<N, R>, r, results);
  if (error != cudaSuccess) return error;
  const int64_t places = rows * r.repeats();
  if (places <= 0 || slices <= 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(places < GRID_MOST ? places : GRID_MOST),
                  static_cast<unsigned>((places + GRID_MOST - 1) / GRID_MOST));
  return cudaLaunchKernelEx(After(grid, ROW_THREADS, 0, stream),
                            row_slices_kernel<R>, r, results, static_cast<Index>(row_share(length, static_cast<int>(slices))));
}

// `parts` has room for rows * splits partial results.
template <int N, class R>
cudaError_t launch_split_rows(const R& r, void* parts, int splits, cudaStream_t stream) {
  const int64_t rows = r.rows();
  if (rows <= 0) return cudaSuccess;
  auto* const acc = static_cast<typename R::Acc*>(parts);
  const RowCuts cuts = row_cuts<N>(r, splits);
  const int count = cuts.along * cuts.across;
  const cudaError_t error = cudaLaunchKernelEx(After(dim3(row_blocks(rows, N), count), ROW_THREADS, 0, stream),
                                               row_parts_kernel<N, R>, r, acc, cuts);
  if (error != cudaSuccess) return error;
  return cudaLaunchKernelEx(After(row_blocks(rows, 32), ROW_THREADS, 0, stream), row_whole_kernel<R>, r, acc, count);
}

}  // namespace crucible

// Convolutions on tensor cores (mma.sync, compute capability 8.0 and later): a window slides over an input.
//
// A block computes BM output channels of one box of output pixels, 256 at most. The input under the box, its halo, is
// brought to shared memory chunk by chunk of channels, each element once, rounded on the way; a tap of the window is then
// an offset into the halo. Shared memory holds 32-bit words: a tf32 number, or two half or bfloat16 numbers of
// neighbouring channels. A row of the halo is one word of channels, PITCH = 8 modulo 32 words long, so that a fragment
// (four rows, eight pixels) lies in 32 banks wherever the tap puts it.
// Weights are packed beforehand by pack_kernel into the order in which fragments want them, so that they arrive by
// 16-byte asynchronous copies and leave by 16-byte loads.
// An input of float that is memory as it is comes by asynchronous copies, two chunks ahead; while one chunk is multiplied,
// the words of the next are rounded where they lie. Any other input passes through registers: while one step (8 words of
// channels, one tap) is multiplied, words of the next chunk are on their way, and a step or two later they are stored.
// Steps are unrolled, so that offsets are constants.
// Per step a warp loads MT * 512 + NT * 256 bytes and issues MT * NT mma.
//
// Grades Tf32 and Native: see contract_mma.cuh. Sums stay in the tensor cores' registers: what they cut is far below
// what the rounding of operands costs.

namespace crucible {

template <int BM_, int CK, Grade grade_>
struct Window {
  static constexpr Grade grade = grade_;
  static constexpr int BM = BM_, BN = 256, WN = 64, NT = WN / 8, MT = BM / 16, WARPS = BN / WN, threads = WARPS * 32;
  static constexpr int PER_WORD = grade == Grade::Native ? 2 : 1, CHANNELS = CK * PER_WORD;  // of a chunk
  static constexpr int passes = MT, pass_rows = 16, pass_stride = BN + 8;
  static constexpr int STEP_WORDS = BM * 8;  // of weights, for one step
  static_assert(CK % 8 == 0 && BM % 16 == 0, "fragments are 16 x 8 words");

  struct Sums {
    float at[MT][NT][4];
  };
  static __device__ __forceinline__ int row_of(int pass, int r) { return pass * 16 + r; }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  static __device__ __forceinline__ void expose(const Sums& sums, int pass, accum* rows) {
    accum* to = rows + lane() / 4 * pass_stride + warp() * WN + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < MT; ++i)
      if (i == pass) {
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float2*>(to + h * 8 * pass_stride + j * 8) =
                make_float2(sums.at[i][j][2 * h], sums.at[i][j][2 * h + 1]);
      }
  }
};

// What follows from the window's form.
template <class W, class P>
struct WindowSizes {
  using Halo = HaloOf<P>;
  static constexpr int TAPS = P::Kernel::product, CK = W::CHANNELS / W::PER_WORD;
  static constexpr int STEPS = CK / 8 * TAPS, GROUP = STEPS <= 10 ? STEPS : 9;  // steps between two barriers
  static constexpr int UNROLL = STEPS <= 32 ? STEPS : 1;
  static constexpr int SLOTS = (Halo::product + W::threads - 1) / W::threads;  // halo pixels of one thread
  static constexpr int PITCH = SLOTS * W::threads + 8;                         // past the halo there are zeros
  static constexpr int EACH = (CK + STEPS - 1) / STEPS;                        // words that a slot brings in one step
  // Steps between asking for words and storing them, as registers permit.
  static constexpr int LAG = UNROLL == 1 ? 0 : SLOTS * EACH * W::PER_WORD <= 4 ? 2 : 1;
  static constexpr bool ASYNC = P::b_direct && W::grade == Grade::Tf32;
  static constexpr int B_WORDS = CK * PITCH, A_WORDS = GROUP * W::STEP_WORDS, BUFFERS = ASYNC ? 3 : 2;
  static constexpr int panels = (2 * A_WORDS + BUFFERS * B_WORDS) * 4;
  static constexpr int staged = W::pass_rows * W::pass_stride * 4;
  static constexpr int shared_bytes = panels > staged ? panels : staged;
};

__host__ __device__ constexpr Index window_chunks(Index channels, int of) { return (channels + of - 1) / of; }

// Words of packed weights: (group, tile of rows, chunk, step, 16 rows, lane, 4 words of a fragment).
template <class W, class P>
__host__ __device__ int64_t packed_words(const P& p) {
  const int64_t tiles = (p.rows() + W::BM - 1) / W::BM;
  return p.groups() * tiles * window_chunks(p.channels(), W::CHANNELS) * WindowSizes<W, P>::STEPS * W::STEP_WORDS;
}

template <class W, class P>
__global__ void __launch_bounds__(256) pack_kernel(const __grid_constant__ P p, unsigned* __restrict__ packed) {
  follow();
#if CRUCIBLE_HAS_MMA
  using S = WindowSizes<W, P>;
  const int64_t count = packed_words<W>(p);
  for (int64_t i = blockIdx.x * int64_t(256) + threadIdx.x; i < count; i += int64_t(gridDim.x) * 256) {
    const int part = static_cast<int>(i % 4), lane = static_cast<int>(i / 4 % 32);
    Index rest = static_cast<Index>(i / 128);
    const int block = static_cast<int>(rest % W::MT);
    rest /= W::MT;
    const int step = static_cast<int>(rest % S::STEPS);
    rest /= S::STEPS;
    const Index chunks = window_chunks(p.channels(), W::CHANNELS), chunk = rest % chunks;
    rest /= chunks;
    const Index tiles = (p.rows() + W::BM - 1) / W::BM, m = rest % tiles * W::BM + block * 16 + lane / 4 + part % 2 * 8;
    const Index group = rest / tiles;
    const Index channel = chunk * W::CHANNELS + (step / S::TAPS * 8 + lane % 4 + part / 2 * 4) * W::PER_WORD;
    const int tap = P::flipped ? S::TAPS - 1 - step % S::TAPS : step % S::TAPS;
    float value[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < W::PER_WORD; ++e)
      if (m < p.rows() && channel + e < p.channels()) value[e] = p.a(p.a_row(group, m), (channel + e) * S::TAPS + tap);
    if constexpr (W::grade == Grade::Native)
      packed[i] = pack(value[0], value[1]);
    else
      packed[i] = round_tf32(value[0]);
  }
#endif
}

template <class W, class P>
struct WindowBlock {
#if CRUCIBLE_HAS_MMA
  using S = WindowSizes<W, P>;
  const P& p;
  unsigned char* shared;    // weights, twice; then halos
  const unsigned* weights;  // of this group and tile of rows
  Index channels;
  int a_now, a_next, b_now, b_next, b_after;  // bytes from `shared`
  Taps<P> taps;
  int off[W::NT];                    // bytes to this lane's pixels in a halo
  typename P::BAt at[S::SLOTS];      // of this thread's pixels of the halo
  float values[S::LAG + 1][S::SLOTS][S::EACH][W::PER_WORD];

  static __device__ __forceinline__ int halo(int slot) { return static_cast<int>(threadIdx.x) + slot * W::threads; }

  // Words first .. first + N - 1 of a chunk's channels, for all this thread's pixels. What is not there is loaded from
  // somewhere near and becomes zero when it is put away: the loads must not wait for anything.
  template <int N>
  __device__ __forceinline__ void fetch(float (&v)[S::SLOTS][N][W::PER_WORD], int first, Index chunk) const {
#pragma unroll
    for (int e = 0; e < N; ++e)
#pragma unroll
      for (int k = 0; k < W::PER_WORD; ++k) {
        const Index channel = chunk * W::CHANNELS + (first + e) * W::PER_WORD + k;
#pragma unroll
        for (int i = 0; i < S::SLOTS; ++i) v[i][e][k] = p.b_in(at[i], channel < channels ? channel : channels - 1);
        if constexpr (P::b_direct) {
          // The chunk after that comes closer meanwhile.
          const Index later = channel + W::CHANNELS < channels ? channel + W::CHANNELS : channels - 1;
#pragma unroll
          for (int i = 0; i < S::SLOTS; ++i) prefetch(p.b_from(at[i], later));
        }
      }
  }
  template <int N>
  __device__ __forceinline__ void put(const float (&v)[S::SLOTS][N][W::PER_WORD], int first, Index chunk, int panel) const {
    unsigned* to = reinterpret_cast<unsigned*>(shared + panel);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const Index channel = chunk * W::CHANNELS + (first + e) * W::PER_WORD;
#pragma unroll
      for (int i = 0; i < S::SLOTS; ++i) {
        float kept[2] = {0, 0};
#pragma unroll
        for (int k = 0; k < W::PER_WORD; ++k) kept[k] = at[i].inside && channel + k < channels ? v[i][e][k] : 0.0f;
        unsigned word;
        if constexpr (W::grade == Grade::Native)
          word = pack(kept[0], kept[1]);
        else
          word = round_tf32(kept[0]);
        if (first + e < S::CK) to[(first + e) * S::PITCH + halo(i)] = word;
      }
    }
  }

  // The same by asynchronous copies, and what is left to do where they have come to.
  __device__ __forceinline__ void copy_halo(int panel, Index chunk) const {
    unsigned* to = reinterpret_cast<unsigned*>(shared + panel);
#pragma unroll
    for (int w = 0; w < S::CK; ++w) {
      const Index channel = chunk * W::CHANNELS + w, near = channel < channels ? channel : channels - 1;
#pragma unroll
      for (int i = 0; i < S::SLOTS; ++i)
        copy_async(to + w * S::PITCH + halo(i), p.b_from(at[i], near), at[i].inside && channel < channels);
    }
    commit_copies();
  }
  __device__ __forceinline__ void round_halo(int panel, int first, int count) const {
    float* at = reinterpret_cast<float*>(shared + panel);
#pragma unroll
    for (int w = first; w < first + count; ++w)
#pragma unroll
      for (int i = 0; i < S::SLOTS; ++i)
        if (w < S::CK) {
          float& word = at[w * S::PITCH + halo(i)];
          word = __uint_as_float(round_tf32(word));
        }
  }

  // Copies of the weights of `count` steps, from step `first` on.
  __device__ __forceinline__ void copy_weights(int panel, int64_t first, int count) const {
    const unsigned* from = weights + first * W::STEP_WORDS;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) * 4; i < count * W::STEP_WORDS; i += W::threads * 4)
      copy_async(shared + panel + i * 4, from + i);
    commit_copies();
  }

  __device__ __forceinline__ void step(typename W::Sums& sums, int s) const {
    const unsigned char* a = shared + a_now + s % S::GROUP * W::STEP_WORDS * 4;
    const int place = (s / S::TAPS * 8 * S::PITCH + tap_offset<P>(s % S::TAPS)) * 4;
    unsigned f[W::MT][4], g[W::NT][2];
#pragma unroll
    for (int i = 0; i < W::MT; ++i) {
      const uint4 v = *reinterpret_cast<const uint4*>(a + (i * 32 + W::lane()) * 16);
      f[i][0] = v.x, f[i][1] = v.y, f[i][2] = v.z, f[i][3] = v.w;
    }
#pragma unroll
    for (int j = 0; j < W::NT; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        g[j][h] = *reinterpret_cast<const unsigned*>(shared + (b_now + off[j]) + (place + h * 16 * S::PITCH));
#pragma unroll
    for (int j = 0; j < W::NT; ++j)
#pragma unroll
      for (int i = 0; i < W::MT; ++i) mma<W::grade>(sums.at[i][j], f[i], g[j][0], g[j][1]);
  }

  // At the first step of a group: its weights are there, and the next group's are asked for.
  template <bool MORE>
  __device__ __forceinline__ void turn(int s, int chunk, int chunks) {
    if (s > 0) swap(a_now, a_next);
    wait_copies();
    __syncthreads();
    if (S::ASYNC && s == 0 && chunk + 2 < chunks) copy_halo(b_after, chunk + 2);
    const int next = s + S::GROUP;
    if (next < S::STEPS)
      copy_weights(a_next, int64_t(chunk) * S::STEPS + next, S::STEPS - next < S::GROUP ? S::STEPS - next : S::GROUP);
    else if (MORE)
      copy_weights(a_next, int64_t(chunk + 1) * S::STEPS, S::GROUP);
  }

  // MORE: another chunk follows and is fetched. WORK: this warp has pixels.
  template <bool MORE, bool WORK>
  __device__ __forceinline__ void chunk(typename W::Sums& sums, int number, int chunks) {
    constexpr int LAG = WORK ? S::LAG : 0;
#pragma unroll(WORK ? S::UNROLL : 1)
    for (int s = 0; s < S::STEPS; ++s) {
      if (s % S::GROUP == 0) turn<MORE>(s, number, chunks);
      if constexpr (MORE && !S::ASYNC) {
        if (s * S::EACH < S::CK) fetch(values[s % (LAG + 1)], s * S::EACH, number + 1);
      }
      if (WORK && taps.has(s % S::TAPS)) step(sums, s);
      if constexpr (MORE && S::ASYNC) {
        if (s * S::EACH < S::CK) round_halo(b_next, s * S::EACH, S::EACH);
      } else if constexpr (MORE) {
        if (s >= LAG && (s - LAG) * S::EACH < S::CK)
          put(values[(s - LAG) % (LAG + 1)], (s - LAG) * S::EACH, number + 1, b_next);
      }
    }
    if constexpr (MORE && WORK && !S::ASYNC) {
#pragma unroll
      for (int s = S::STEPS > S::LAG ? S::STEPS - S::LAG : 0; s < S::STEPS; ++s)
        if (s * S::EACH < S::CK) put(values[s % (S::LAG + 1)], s * S::EACH, number + 1, b_next);
    }
    swap(a_now, a_next);
    swap(b_now, b_next);
    if (S::ASYNC) swap(b_next, b_after);
  }

  static __device__ __forceinline__ void swap(int& x, int& y) {
    const int was = x;
    x = y;
    y = was;
  }

  template <bool WORK>
  __device__ __forceinline__ void multiply(typename W::Sums& sums) {
    const int chunks = static_cast<int>(window_chunks(channels, W::CHANNELS));
    copy_weights(a_now, 0, S::GROUP);
    if constexpr (S::ASYNC) {
      copy_halo(b_now, 0);
      if (chunks > 1) copy_halo(b_next, 1);
      wait_copies();
      round_halo(b_now, 0, S::CK);
    } else {
#pragma unroll 1
      for (int first = 0; first < S::CK; first += 4) {
        float start[S::SLOTS][4][W::PER_WORD];
        fetch(start, first, 0);
        put(start, first, 0, b_now);
      }
    }
#pragma unroll 1
    for (int number = 0; number + 1 < chunks; ++number) chunk<true, WORK>(sums, number, chunks);
    chunk<false, WORK>(sums, chunks - 1, chunks);
  }
#endif
};

#if CRUCIBLE_HAS_MMA
// A block's tile: rows first, then boxes, then batches.
template <class W, class P>
__device__ __forceinline__ void window_tile(const P& p, const unsigned* __restrict__ packed, unsigned number, unsigned char* shared) {
  using S = WindowSizes<W, P>;
  const Index tiles = (p.rows() + W::BM - 1) / W::BM, boxes = box_count(p);
  const Index tile_m = static_cast<Index>(number % unsigned(tiles)), rest = static_cast<Index>(number / unsigned(tiles));
  const Index box = rest % boxes, z = rest / boxes;
  const BoxPlace<P> place(p, box);

  const int64_t step_count = window_chunks(p.channels(), W::CHANNELS) * int64_t(S::STEPS);
  WindowBlock<W, P> block{p, shared, packed + (z % p.groups() * tiles + tile_m) * step_count * W::STEP_WORDS,
                          p.channels(), 0, S::A_WORDS * 4, 2 * S::A_WORDS * 4, (2 * S::A_WORDS + S::B_WORDS) * 4,
                          (2 * S::A_WORDS + 2 * S::B_WORDS) * 4, Taps<P>(p, z % p.groups())};
#pragma unroll
  for (int i = 0; i < S::SLOTS; ++i) {
    const int h = block.halo(i);
    block.at[i] = place.halo(p, z, h < S::Halo::product ? h : 0);
    block.at[i].inside &= h < S::Halo::product;
  }
#pragma unroll
  for (int j = 0; j < W::NT; ++j)
    block.off[j] = (halo_offset<P>(W::warp() * W::WN + j * 8 + W::lane() / 4) + W::lane() % 4 * S::PITCH) * 4;

  typename W::Sums sums = {};
  if (W::warp() * W::WN < place.reach())
    block.template multiply<true>(sums);
  else
    block.template multiply<false>(sums);

  const BoxColumns<P, W::BN> columns(p, place, box);
  accum* staged = reinterpret_cast<accum*>(shared);
#pragma unroll 1
  for (int pass = 0; pass < W::passes; ++pass) {
    __syncthreads();
    W::expose(sums, pass, staged);
    __syncthreads();
#pragma unroll 1
    for (int r = W::warp(); r < W::pass_rows; r += W::WARPS) {
      const Index m = tile_m * W::BM + W::row_of(pass, r);
      if (m < p.rows()) finish_row<W>(p, z, m, columns, 0, staged + r * W::pass_stride);
    }
  }
}
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 2)
    window_kernel(const __grid_constant__ P p, const unsigned* __restrict__ packed) {
  follow();
  extern __shared__ __align__(16) unsigned char window_shared[];
#if CRUCIBLE_HAS_MMA
  window_tile<W>(p, packed, blockIdx.x, window_shared);
#endif
}

#ifndef __CUDACC_RTC__
template <class W, class P>
cudaError_t launch_window(const P& p, unsigned* packed, cudaStream_t stream) {
  using S = WindowSizes<W, P>;
  const int64_t tiles = (static_cast<int64_t>(p.rows()) + W::BM - 1) / W::BM, boxes = box_count(p), batches = p.batches();
  const int64_t blocks = tiles * boxes * batches, words = packed_words<W>(p);
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  const int64_t packers = (words + 1023) / 1024;
  cudaError_t refused = cudaLaunchKernelEx(After(static_cast<unsigned>(packers < 4096 ? packers : 4096), 256, 0, stream),
                                           pack_kernel<W, P>, p, packed);
  if (refused != cudaSuccess) return refused;
  refused = allow_shared(window_kernel<W, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, S::shared_bytes, stream), window_kernel<W, P>, p, packed);
}
#endif

}  // namespace crucible

// What is done with sums where Hopper's matrix instructions leave them: in registers.
//
// A warp has 16 rows of sums; in each eight columns a lane has two neighbours of row lane / 4 and two of the row eight
// below. They are finished there, stored two at a time, and statistics are joined by the four lanes of a row. The four
// lanes' elements are a sector of memory (32 bytes of float), but rows begin anywhere: where a row's sectors begin in the
// middle of a block of eight columns, the lanes behind that middle take the block before, so that each store of a warp
// fills whole sectors.

namespace crucible {

// Where `finish_to` puts its element: in memory, or into a register until its neighbour is there too.
struct StoreOne {
  bool there;
  template <class T>
  __device__ __forceinline__ void operator()(T* at, T value) const {
    if (there) *at = value;
  }
};

#if CRUCIBLE_HOPPER
#if CRUCIBLE_WIDE
// One store, and said to be one: at an address from 64-bit numbers the compiler makes two of it, each of half sectors.
template <class T>
__device__ __forceinline__ void store_two(T* at, T first, T second) {
  if constexpr (sizeof(T) == 4) {
    __stwb(reinterpret_cast<float2*>(at), make_float2(first, second));
  } else if constexpr (sizeof(T) == 2) {
    const T two[2] = {first, second};
    unsigned word;
    memcpy(&word, two, sizeof(word));
    __stwb(reinterpret_cast<unsigned*>(at), word);
  } else {
    __stwb(reinterpret_cast<double2*>(at), make_double2(first, second));
  }
}
#else
template <class T>
__device__ __forceinline__ void store_two(T* at, T first, T second) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(at) = make_float2(first, second);
  } else {
    struct alignas(2 * sizeof(T)) Two { T a, b; };
    *reinterpret_cast<Two*>(at) = Two{first, second};
  }
}
#endif
struct StoreNext {
  scalar* at;
  scalar value;
  __device__ __forceinline__ void operator()(scalar* to, scalar x) { at = to, value = x; }
};
struct StoreTwo {
  const StoreNext& first;
  bool both, alone;  // alone: without the second
  __device__ __forceinline__ void operator()(scalar*, scalar second) const {
    // Two conditions instead of a branch, beside which nothing else could be done.
    if (both) store_two(first.at, first.value, second);
    if (alone) *first.at = first.value;
  }
};

// An element: its column, and its place for functors that know elements so.
struct Spot {
  Index n, at[4];
};
template <class P, class To>
__device__ __forceinline__ accum finish_spot(const P& p, Index z, Index m, const Spot& spot, accum value, To& to) {
  if constexpr (PhasedOf<P>::phased)
    return p.finish_at_to(z, m, spot.at[0], spot.at[1], spot.at[2], spot.at[3], 0, value, to);
  else
    return p.finish_to(z, m, spot.n, 0, value, to);
}
template <class P>
__device__ __forceinline__ bool spot_exists(const P& p, Index z, Index m, const Spot& spot) {
  if constexpr (RaggedOf<P>::ragged) return p.exists_at(z, m, spot.at[0], spot.at[1], spot.at[2], spot.at[3]);
  return true;
}

// Two neighbours, finished and stored: the first where `stored`, the second where `both`.
template <bool PAIRS, class P>
__device__ __forceinline__ void finish_two(const P& p, Index z, Index m, const Spot (&spots)[2], bool stored, bool both, accum (&two)[2]) {
  if constexpr (PAIRS) {
    StoreNext left;
    two[0] = finish_spot(p, z, m, spots[0], two[0], left);
    StoreTwo right{left, both, stored && !both};
    two[1] = finish_spot(p, z, m, spots[1], two[1], right);
  } else {
    StoreOne left{stored}, right{both};
    two[0] = finish_spot(p, z, m, spots[0], two[0], left);
    two[1] = finish_spot(p, z, m, spots[1], two[1], right);
  }
}

// Statistics of a row's elements, by four lanes: deviations from what is near their mean (near_mean). Where some may not
// exist, each lane has an element of its own instead, and the lanes' results are joined.
template <bool RAGGED>
struct RowStatistics {
  accum near = 0, off[2] = {0, 0}, squares[2] = {0, 0};
  int found = 0;
  // Before the first: two elements, where they are there, of which one at least of the four lanes has one.
  __device__ __forceinline__ void begin(const accum (&two)[2], bool first, bool second) {
    near = near_mean<4>((first ? two[0] : accum(0)) + (second ? two[1] : accum(0)), first + second);
  }
  __device__ __forceinline__ void take(int which, accum x, bool there) {
    if (RAGGED && there && found == 0) near = x;
    const accum d = there ? x - near : accum(0);
    off[which] += d;
    squares[which] = fma(d, d, squares[which]);
    if (RAGGED) found += there;
  }
  template <class P>
  __device__ __forceinline__ void sink(const P& p, Index z, Index m, bool there, Index tile, int count) {
    accum sum = off[0] + off[1], both = squares[0] + squares[1], mean = near, size = static_cast<accum>(count);
    if (RAGGED) {
      size = static_cast<accum>(found);
      const accum by = found > 0 ? sum / size : accum(0);
      mean += by, both -= sum * by;
    }
#pragma unroll
    for (int by = 1; by < 4; by *= 2) {
      const accum other_sum = __shfl_xor_sync(0xffffffffu, sum, by), other_both = __shfl_xor_sync(0xffffffffu, both, by);
      if (RAGGED) {
        const accum other = __shfl_xor_sync(0xffffffffu, size, by), d = __shfl_xor_sync(0xffffffffu, mean, by) - mean;
        const accum part = other > 0 ? other / (size + other) : accum(0);
        both += other_both + (part > 0 ? d * d * size * part : accum(0));
        mean += part > 0 ? d * part : accum(0), size += other;
      } else {
        sum += other_sum, both += other_both;
      }
    }
    if (!there || threadIdx.x % 4 != 0) return;
    if (!RAGGED && count > 0) mean += sum / size, both -= sum * (sum / size);
    if (size > 0)
      p.sink(z, m, tile, size, mean, both < 0 ? accum(0) : both);
    else
      p.sink(z, m, tile, 0, 0, 0);  // others have them all
  }
};

// One warp's rows of WIDTH columns of a line, from column `base` on, from eight columns more: of those that exist, `there`,
// a line that has a neighbour before it leaves that one the elements before its first sector, and so takes those that
// follow its last. WHOLE: all exist. PAIRS: two neighbours of a lane may be stored as one.
template <int WIDTH, bool WHOLE, bool PAIRS, class P, int COUNT>
__device__ __forceinline__ void finish_fragments(const P& p, Index z, Index first, Index tile, Index base, const Index (&place)[4],
                                                 bool neighbour, int there, float (&sums)[COUNT]) {
  constexpr bool RAGGED = RaggedOf<P>::ragged;
  constexpr int BLOCKS = WIDTH / 8 + 1;
  static_assert(COUNT == BLOCKS * 4 && (!P::statistics || P::group == 0), "eight columns more, and statistics of all");
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const Index rows = p.rows();
  // The second row's sums take the first one's registers, so that both are finished by the same code: it is long.
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const Index row = first + h * 8 + lane / 4, m = row < rows ? row : rows - 1;
    const int odd = static_cast<int>(p.stored(z, m, base) % 8), whole = (8 - odd) % 8;
    const int begin = neighbour ? whole : 0, end = WHOLE || WIDTH + whole < there ? WIDTH + whole : there;
    const bool turn = PAIRS && quad * 2 + odd >= 8;
    const int at = quad * 2 - (turn ? 8 : 0), rest = end - at;
#if CRUCIBLE_WIDE
    const Index from = base + at;  // added up once, as it takes two registers: elements are a constant further on
#endif
    RowStatistics<RAGGED> statistics;
    accum ahead[2] = {};
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
      // Where the line is whole, all blocks between the first and the last are its own; none but the first begins before it.
      const bool sure = WHOLE && i > 0 && i + 1 < BLOCKS;
      bool own[2];
      Spot spots[2];
      accum two[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int o = at + i * 8 + e;
        own[e] = sure || (rest > i * 8 + e && (i > 0 || o >= begin));
#if CRUCIBLE_WIDE
        spots[e] = {P::reads && !own[e] ? Index(0) : from + (i * 8 + e), {place[0], place[1], place[2], place[3] + (own[e] ? o : 0)}};
#else
        spots[e] = {P::reads && !own[e] ? Index(0) : base + o, {place[0], place[1], place[2], place[3] + (own[e] ? o : 0)}};
#endif
        two[e] = turn ? sums[(i > 0 ? i - 1 : 0) * 4 + e] : sums[i * 4 + e];
      }
      finish_two<PAIRS>(p, z, m, spots, row < rows && own[0], row < rows && own[1], two);
      if constexpr (P::statistics && RAGGED) {
#pragma unroll
        for (int e = 0; e < 2; ++e) statistics.take(e, two[e], own[e] && spot_exists(p, z, m, spots[e]));
      } else if constexpr (P::statistics) {
        // The row has an element in one of the first two blocks: where it is long, the second is all its own.
        if (i == 0) {
          ahead[0] = two[0], ahead[1] = two[1];
        } else {
          if (i == 1) {
            const bool one = rest > 0 && at >= begin, other = rest > 1 && at + 1 >= begin;
            const accum some[2] = {own[0] ? two[0] : ahead[0], own[1] ? two[1] : ahead[1]};
            statistics.begin(some, own[0] || one, own[1] || other);
#pragma unroll
            for (int e = 0; e < 2; ++e) statistics.take(e, ahead[e], rest > e && at + e >= begin);
          }
#pragma unroll
          for (int e = 0; e < 2; ++e) statistics.take(e, two[e], own[e]);
        }
      }
    }
    if constexpr (P::statistics) statistics.sink(p, z, row, row < rows, tile, end - begin);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) sums[i] = sums[i + 2], sums[i + 1] = sums[i + 3];
  }
}

template <int WIDTH, class P, int COUNT>
__device__ __forceinline__ void finish_line(const P& p, Index z, Index first, Index tile, Index base, const Index (&place)[4],
                                            bool neighbour, int there, float (&sums)[COUNT]) {
  bool even = P::in_pairs;
#pragma unroll
  for (int h = 0; h < 2 && P::in_pairs; ++h) {
    const Index row = first + h * 8 + static_cast<int>(threadIdx.x) % 32 / 4, m = row < p.rows() ? row : p.rows() - 1;
    even = even && p.stored(z, m, base) % 2 == 0;
  }
  if (!P::in_pairs || !__all_sync(0xffffffffu, even))
    finish_fragments<WIDTH, false, false>(p, z, first, tile, base, place, neighbour, there, sums);
  else if (there < WIDTH + 8)
    finish_fragments<WIDTH, false, P::in_pairs>(p, z, first, tile, base, place, neighbour, there, sums);
  else
    finish_fragments<WIDTH, true, P::in_pairs>(p, z, first, tile, base, place, neighbour, there, sums);
}


// The sums of a box, as many columns apart from row to row as the halo under it is wide. Whether they can be finished in
// registers: a block of eight columns is of two rows at most, and where windows are pooled, neighbours in one are in one lane.
template <class Halo, class P>
__host__ __device__ constexpr bool fragmentary() {
  return Halo::at(3) >= 8 && (!PoolOf<P>::pooled || (Halo::at(3) % 2 == 0 && PoolOf<P>::Window::at(3) == 2));
}

// A row of the halo, by its number: where its first pixel is stored, from the box's first, and which of its pixels are the box's.
template <class Halo, bool WHOLE, class P>
struct BoxRow {
  int at[3];
  __device__ __forceinline__ explicit BoxRow(int number)
      : at{number / (Halo::at(1) * Halo::at(2)), number / Halo::at(2) % Halo::at(1), number % Halo::at(2)} {}
  __device__ __forceinline__ constexpr bool inside() const {
    return at[0] < P::Box::at(0) && at[1] < P::Box::at(1) && at[2] < P::Box::at(2);
  }
  __device__ __forceinline__ Index first(const P& p) const {
    return ((at[0] * p.extent(1) + at[1]) * p.extent(2) + at[2]) * p.extent(3);
  }
  __device__ __forceinline__ int count(const BoxPlace<P>& place) const {
    if (!inside()) return 0;
    return WHOLE ? P::Box::at(3) : at[0] < place.there[0] && at[1] < place.there[1] && at[2] < place.there[2] ? place.there[3] : 0;
  }
};

// The sum that lies so many columns behind a lane's own of block i, element e: in another lane of the four, where that is
// no multiple of eight.
template <int COUNT>
__device__ __forceinline__ float sum_behind(const float (&sums)[COUNT], int i, int columns, int e) {
  constexpr int LAST = COUNT / 4 - 1;
  const int block = i + columns / 8, next = block < LAST ? block + 1 : LAST, by = columns % 8 / 2;
  if (by == 0) return sums[block * 4 + e];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float mine = lane % 4 < by ? sums[next * 4 + e] : sums[(block < LAST ? block : LAST) * 4 + e];
  return __shfl_sync(0xffffffffu, mine, lane / 4 * 4 + (lane + by) % 4);
}

// The windows of one row's sums: two neighbours of a lane, and what lies below them.
template <class Halo, bool WHOLE, class P, int COUNT>
__device__ __forceinline__ void pool_fragments(const P& p, Index z, Index m, bool there, const BoxPlace<P>& place, Index base,
                                               const float (&sums)[COUNT]) {
  using Window = typename PoolOf<P>::Window;
  using Row = BoxRow<Halo, WHOLE, P>;
  constexpr int WIDE = Halo::at(3);
  Index pools = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) pools = pools * (p.extent(d) / Window::at(d)) + place.first[d] / Window::at(d);
#pragma unroll
  for (int i = 0; i < COUNT / 4; ++i)
    // The row in which the block begins, and the one that begins in it.
#pragma unroll
    for (int number = i * 8 / WIDE; number * WIDE < i * 8 + 8; ++number) {
      const Row row(number);
      const int x = i * 8 - number * WIDE;
      if (!row.inside() || x >= P::Box::at(3)) continue;
      if (row.at[0] % Window::at(0) != 0 || row.at[1] % Window::at(1) != 0 || row.at[2] % Window::at(2) != 0) continue;
      const int pixel = x + static_cast<int>(threadIdx.x) % 4 * 2;
      // The window's last pixel exists.
      bool whole = there && pixel >= 0 && pixel + 1 < (WHOLE ? P::Box::at(3) : place.there[3]);
      if (!WHOLE)
#pragma unroll
        for (int d = 0; d < 3; ++d) whole = whole && row.at[d] + Window::at(d) <= place.there[d];
      typename P::Pooling pool;
#pragma unroll
      for (int k = 0; k < Window::product; ++k) {
        const int down = (Window::index(k, 0) * Halo::at(1) + Window::index(k, 1)) * Halo::at(2) + Window::index(k, 2);
        const Index n = base + Row(number + down).first(p) + pixel + Window::index(k, 3);
        pool.step(p.pool_in(z, m, P::reads && !whole ? Index(0) : n, sum_behind(sums, i, down * WIDE, Window::index(k, 3))));
      }
      Index to = 0;
#pragma unroll
      for (int d = 0; d < 3; ++d) to = to * (p.extent(d) / Window::at(d)) + row.at[d] / Window::at(d);
      if (whole) p.pool_out(z, m, pools + to * (p.extent(3) / Window::at(3)) + pixel / Window::at(3), pool);
    }
}

// One warp's rows of a box. Names as above.
template <class Halo, bool WHOLE, bool PAIRS, class P, int COUNT>
__device__ __forceinline__ void finish_fragments(const P& p, Index z, Index first, Index tile, const BoxPlace<P>& place, Index base,
                                                 float (&sums)[COUNT]) {
  using Row = BoxRow<Halo, WHOLE, P>;
  constexpr int WIDE = Halo::at(3);
  static_assert(fragmentary<Halo, P>() && (!P::statistics || P::group == 0), "statistics are of all columns");
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const Index rows = p.rows();
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const Index row = first + h * 8 + lane / 4, m = row < rows ? row : rows - 1;
#if CRUCIBLE_WIDE
    const Index from = base + quad * 2;  // as above
#endif
    RowStatistics<RaggedOf<P>::ragged> statistics;
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) {
      // The block begins at pixel `x` of row `number`, and with its pixel `turn` the next row does.
      const int number = i * 8 / WIDE, x = i * 8 % WIDE, turn = WIDE - x;
      const Row here(number), below(number + 1);
      const bool begun = here.inside() && x < P::Box::at(3), next = turn < 8 && below.inside();
      if (!begun && !next) continue;
      bool own[2];
      Spot spots[2];
      accum two[2] = {sums[i * 4], sums[i * 4 + 1]};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = quad * 2 + e;
        const bool other = next && c >= turn;
        const int pixel = other ? c - turn : c + x, count = other ? below.count(place) : here.count(place);
        const bool sure = WHOLE && begun && x + 8 <= P::Box::at(3);
        own[e] = sure || pixel < count;
#if CRUCIBLE_WIDE
        spots[e].n = P::reads && !own[e] ? Index(0) : from + (other ? below.first(p) - turn : here.first(p) + x) + e;
#else
        spots[e].n = P::reads && !own[e] ? Index(0) : base + (other ? below.first(p) : here.first(p)) + pixel;
#endif
#pragma unroll
        for (int d = 0; d < 4; ++d)
          spots[e].at[d] = place.first[d] + (!own[e] ? 0 : d == 3 ? pixel : other ? below.at[d == 3 ? 0 : d] : here.at[d == 3 ? 0 : d]);
      }
      finish_two<PAIRS>(p, z, m, spots, row < rows && own[0], row < rows && own[1], two);
      if constexpr (P::statistics) {
        if (!RaggedOf<P>::ragged && i == 0) statistics.begin(two, own[0], own[1]);
#pragma unroll
        for (int e = 0; e < 2; ++e) statistics.take(e, two[e], own[e] && spot_exists(p, z, m, spots[e]));
      }
    }
    if constexpr (P::statistics) statistics.sink(p, z, row, row < rows, tile, WHOLE ? P::Box::product : place.count());
    if constexpr (PoolOf<P>::pooled) pool_fragments<Halo, WHOLE>(p, z, m, row < rows, place, base, sums);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) sums[i] = sums[i + 2], sums[i + 1] = sums[i + 3];
  }
}

template <class Halo, class P, int COUNT>
__device__ __forceinline__ void finish_box_fragments(const P& p, Index z, Index first, Index tile, const BoxPlace<P>& place,
                                                     float (&sums)[COUNT]) {
  constexpr bool PAIRS = P::in_pairs && Halo::at(3) % 2 == 0;
  Index base = 0;
#pragma unroll
  for (int d = 0; d < 4; ++d) base = base * p.extent(d) + place.first[d];
  bool even = PAIRS && p.extent(3) % 2 == 0;
#pragma unroll
  for (int h = 0; h < 2 && PAIRS; ++h) {
    const Index row = first + h * 8 + static_cast<int>(threadIdx.x) % 32 / 4, m = row < p.rows() ? row : p.rows() - 1;
    even = even && p.stored(z, m, base) % 2 == 0;
  }
  if (!PAIRS || !__all_sync(0xffffffffu, even))
    finish_fragments<Halo, false, false>(p, z, first, tile, place, base, sums);
  else if (place.count() < P::Box::product)
    finish_fragments<Halo, false, PAIRS>(p, z, first, tile, place, base, sums);
  else
    finish_fragments<Halo, true, PAIRS>(p, z, first, tile, place, base, sums);
}
#endif  // CRUCIBLE_HOPPER

}  // namespace crucible

// Boxes of output pixels for Hopper's tensor cores, the halo of input under them, and the order in which a block takes them.
//
// The pixels of an instruction follow each other in the halo. So a box of several rows is computed with what lies between
// its rows, which is thrown away: N = rows * (width of the halo). With strides, each residue of a pixel's place has a
// halo of its own, in which neighbours are neighbours again. A tap of the window is an offset into the halo.
// What a block wants of shared memory follows from that and is here too. W is the tile of any kernel that takes boxes: Warpgroups,
// Ready or Split.

#if CRUCIBLE_HOPPER
namespace crucible {

// Floats from a row to the next where so many columns of several phases are staged: a quarter of a warp stores to two rows.
__host__ __device__ constexpr int beside_pitch(int columns) { return (columns + 31) / 32 * 32 + 16; }

// A box, or two, and the halo. Places in the halo count residue by residue.
template <class W, class P>
struct Pair {
  __host__ __device__ static constexpr int box(int d) { return P::Box::at(d) * (d == W::JOIN ? W::BOXES : 1); }
  __host__ __device__ static constexpr int halo(int d) { return halo_extent<P>(d, box(d)); }
  // Of a residue; where neighbours are pooled, rows begin with one that has its neighbour behind it.
  __host__ __device__ static constexpr int each(int d) {
    const int own = (halo(d) - 1) / P::Stride::at(d) + 1;
    return d == 3 && PoolOf<P>::pooled && PoolOf<P>::Window::at(3) == 2 ? own + own % 2 : own;
  }
  using Halo = Dims<each(0), each(1), each(2), each(3)>;
  static constexpr int RESIDUES = P::Stride::product, PLACES = RESIDUES * Halo::product * (W::SAMPLES ? W::BOXES : 1);
  __host__ __device__ static constexpr int reach(int d) {
    return (P::Kernel::at(d) - 1) * P::Dilation::at(d) / P::Stride::at(d);
  }
  // Places from a box's first pixel to its last, and from a box's to the next one's.
  static constexpr int SPAN = 1 + (P::Box::at(0) - 1) * Halo::pitch(0) + (P::Box::at(1) - 1) * Halo::pitch(1) +
                              (P::Box::at(2) - 1) * Halo::pitch(2) + (P::Box::at(3) - 1) * Halo::pitch(3);
  static constexpr int SECOND = W::SAMPLES ? PLACES / W::BOXES : W::PAIRED ? P::Box::at(W::JOIN) * Halo::pitch(W::JOIN) : 0;
  static constexpr int N = (SPAN + 7) / 8 * 8, BN = (N + 31) / 32 * 32;
  static constexpr int FARTHEST = reach(0) * Halo::pitch(0) + reach(1) * Halo::pitch(1) + reach(2) * Halo::pitch(2) + reach(3) * Halo::pitch(3);
  static constexpr int READ = (RESIDUES - 1) * Halo::product + (W::BOXES - 1) * SECOND + FARTHEST + N;  // one more than the last place read
  static constexpr int ROOM = READ > PLACES ? READ : PLACES;
  static_assert(N <= 256, "the widest instruction");

  // From a pixel's place to that of the input under a tap of it.
  static __device__ __forceinline__ constexpr int tap(int t) {
    int residue = 0, places = 0;
    for (int d = 0; d < 4; ++d) {
      const int far = P::Kernel::index(t, d) * P::Dilation::at(d);
      residue = residue * P::Stride::at(d) + far % P::Stride::at(d);
      places += far / P::Stride::at(d) * Halo::pitch(d);
    }
    return residue * Halo::product + places;
  }

  // An input that is memory as it is lands in shared memory, a chunk of AHEAD pixels of each producer before it rounds the
  // first of them; any other is computed in registers.
  static constexpr bool DIRECT = P::b_direct && sizeof(scalar) == 4;
  static constexpr int PIXELS = (PLACES + W::PRODUCERS - 1) / W::PRODUCERS;
  static constexpr int AHEAD = DIRECT ? W::LAND * 1024 / (W::CHANNELS * 4 * W::PRODUCERS) : 1;
  static constexpr bool WHOLE = P::CHANNELS % W::CHANNELS == 0;  // no chunk has too few channels

  // Warpgroups that take boxes alternately take turns too: who waited for a slot before the other's box is in the ring
  // could take the phase before last of its barrier for the one it needs.
  static constexpr bool TURNS = !W::PAIRED || W::TURN > 0;
  static constexpr int TURN = W::TURN > 0 ? W::TURN : 1;
  static constexpr int TAPS = P::Kernel::product, BESIDE = W::TOGETHER ? InsideOf<P>::beside : 1;
  static constexpr int HALO_BYTES = 2 * ROOM * 16, STREAMED = W::CHUNKS > 0 ? 0 : BESIDE * TAPS * TAP_BYTES;
  static constexpr int SLOT_BYTES = (HALO_BYTES + 127) / 128 * 128 + STREAMED;
  static constexpr int KEPT_BYTES = W::CHUNKS * BESIDE * TAPS * TAP_BYTES;
  static constexpr bool FRAGMENTS = BESIDE == 1 && fragmentary<Halo, P>();
  static constexpr int STAGE_PITCH = BESIDE > 1 ? beside_pitch(BESIDE * N) : (BN + 23) / 32 * 32 + 8, STAGE_BYTES = FRAGMENTS ? 0 : W::CONSUMERS / 32 * 4 * STAGE_PITCH * 4;
  static constexpr int shared_bytes = KEPT_BYTES + W::SLOTS * SLOT_BYTES + STAGE_BYTES + W::LAND * 1024 + (2 * W::SLOTS + 1) * 8 + 112;
};

#if CRUCIBLE_HAS_WGMMA
// Tiles of a block: boxes, or several side by side, of one sample after another, always with the same weights. Their places are counted
// in digits, the sample first, so that no step divides.
template <class W, class P>
struct PairTiles {
  using H = Pair<W, P>;
  Index group, tile_m, left;  // left: tiles to come, this one included
  Index numbers[4], at[5], step[5];

  __device__ __forceinline__ explicit PairTiles(const P& p) {
    const Index tiles = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, kinds = tiles * (p.groups() / H::BESIDE);
    const Index kind = static_cast<Index>(blockIdx.x) % kinds;
    group = kind / tiles * H::BESIDE, tile_m = kind % tiles;
    Index first = static_cast<Index>(blockIdx.x) / kinds, by = static_cast<Index>(gridDim.x) / kinds;
    Index count = samples(p);
#pragma unroll
    for (int d = 0; d < 4; ++d) numbers[d] = (p.extent(d) - 1) / H::box(d) + 1, count *= numbers[d];
    left = first < count ? (count - first - 1) / by + 1 : 0;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d + 1] = first % numbers[d], step[d + 1] = by % numbers[d];
      first /= numbers[d], by /= numbers[d];
    }
    at[0] = first, step[0] = by;
  }
  __device__ __forceinline__ void next() {
    Index carry = 0;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d + 1] += step[d + 1] + carry;
      carry = at[d + 1] >= numbers[d];
      if (carry) at[d + 1] -= numbers[d];
    }
    at[0] += step[0] + carry;
    --left;
  }
  static __device__ __forceinline__ Index samples(const P& p) {
    const Index all = p.batches() / p.groups();
    return W::SAMPLES ? (all + W::BOXES - 1) / W::BOXES : all;
  }
  // Of one of its boxes, and whether it exists.
  __device__ __forceinline__ Index batch(const P& p, int which) const {
    return (W::SAMPLES ? at[0] * W::BOXES + which : at[0]) * p.groups() + group;
  }
  __device__ __forceinline__ bool exists(const P& p, int which) const { return !W::SAMPLES || batch(p, which) < p.batches(); }
  __device__ __forceinline__ Index first(int d) const { return at[d + 1] * H::box(d); }
};
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// The input under boxes of output pixels on its way to Hopper's tensor cores: what producing warps do.
//
// A thread has the same places of the halo in every tile. It reads a chunk of channels (32 bytes) of each, rounds it, in kind
// Half scaled, and stores it as [16 bytes of channels][pixel] in a slot of the ring; weights that do not stay come with the chunk by
// a bulk copy. An input that is memory as it is comes by asynchronous copies, some pixels ahead.
// In kind Half producers watch what they round: a number too large, or a channel that is not zero but too small to have its 11
// bits in all the pixels that a warp sees.

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// Whether what a warp has put away, of which each lane knows its largest number, is more than half can hold.
__device__ __forceinline__ bool watched(float& largest) {
  const unsigned most = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
  // A few numbers alone may be small.
  const bool small = most < __float_as_uint(HALF_SMALL) && most != 0 && __popc(__ballot_sync(0xffffffffu, largest > 0.0f)) > 3;
  largest = 0.0f;
  return small || most > __float_as_uint(HALF_LIMIT);
}

// 16 bytes of channels. In kind Half they are scaled, and the largest number so far is noted.
template <Operands kind>
__device__ __forceinline__ uint4 round_unit(float* x, float by, float& largest) {
  if constexpr (kind == Operands::Tf32) {
    return make_uint4(round_tf32(x[0]), round_tf32(x[1]), round_tf32(x[2]), round_tf32(x[3]));
  } else if constexpr (kind == Operands::Half) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      x[e] *= by;
      largest = fmaxf(largest, fabsf(x[e]));
    }
    return make_uint4(pack_half(x[0], x[1]), pack_half(x[2], x[3]), pack_half(x[4], x[5]), pack_half(x[6], x[7]));
  } else {
    return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
  }
}

// One block of the launch after the packing raises the flag for what is known by then: rows of weights that half cannot hold,
// and channels that are small everywhere, which may have large weights.
template <int THREADS, class P>
__device__ __forceinline__ void known_spoilt(const Packed& packed, int thread, float by) {
  spoilt_rows<THREADS>(packed, thread);
  for (int c = thread; c < Packed::apart<P>(); c += THREADS) {
    const float most = __int_as_float(packed.channels[c]) * by;
    if (most > 0 && most < HALF_SMALL) *packed.again = 1;
  }
}

// A chunk's weights of each phase; they lie so many bytes apart.
template <class H>
__device__ __forceinline__ void copy_weights(unsigned to, const unsigned char* weights, int64_t further, int chunk, unsigned come) {
  constexpr int BYTES = H::TAPS * TAP_BYTES;
#pragma unroll
  for (int b = 0; b < H::BESIDE; ++b) bulk_copy(to + b * BYTES, weights + b * further + int64_t(chunk) * BYTES, BYTES, come);
}

// Places behind the halo that are read with it, for sums that nobody wants, have zeros: what lay there before may be anything.
template <int PLANES, class W, class P>
__device__ __forceinline__ void clear_behind(unsigned char* slot, int thread) {
  using H = Pair<W, P>;
  constexpr int BEHIND = H::ROOM - H::PLACES;
  if constexpr (BEHIND > 0)
    for (int i = thread; i < PLANES * BEHIND; i += W::PRODUCERS)
      *reinterpret_cast<uint4*>(slot + (i / BEHIND * H::ROOM + H::PLACES + i % BEHIND) * 16) = make_uint4(0, 0, 0, 0);
}

template <class W, class P>
struct PairProducer {
  using H = Pair<W, P>;
  const P& p;
  PairTiles<W, P> tiles;  // of what is asked for,
  Index chunk;            // and of its channels
  float* landing;         // this thread's
  float by;
  typename P::BAt at[H::PIXELS];
  float largest[2];

  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) - W::CONSUMERS; }

  __device__ __forceinline__ void place() {
#pragma unroll
    for (int i = 0; i < H::PIXELS; ++i) {
      int q = thread() + i * W::PRODUCERS;
      const int which = W::SAMPLES && q >= H::SECOND;
      if (which) q -= H::SECOND;
      const int residue = H::RESIDUES == 1 ? 0 : q / H::Halo::product, in = H::RESIDUES == 1 ? q : q % H::Halo::product;
      Index pixel[4];
      bool inside = q < (W::SAMPLES ? H::SECOND : H::PLACES) && tiles.left > 0 && tiles.exists(p, which);
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        const int h = H::Halo::index(in, d) * P::Stride::at(d) + P::Stride::index(residue, d);
        if (H::RESIDUES > 1) inside = inside && h < H::halo(d);
        pixel[d] = tiles.first(d) * P::Stride::at(d) + P::Shift::at(d) + h;
      }
      at[i] = p.b_at(tiles.batch(p, inside ? which : 0), pixel[0], pixel[1], pixel[2], pixel[3]);
      at[i].inside &= inside;
    }
  }
  // To the next chunk, and the next tile after the last; after the last of all nothing is there.
  __device__ __forceinline__ void next(int chunks) {
    if (++chunk < chunks) return;
    chunk = 0;
    if (tiles.left > 1)
      tiles.next();
    else
      tiles.left = 0;
    place();
  }
  // A chunk of one pixel, asked for (what is not there is zero) and taken.
  __device__ __forceinline__ void ask(int pixel, int where) const {
    const typename P::BAt& from = at[pixel];
    float* const to = landing + where * (W::CHANNELS * W::PRODUCERS);
#pragma unroll
    for (int e = 0; e < W::CHANNELS; ++e) {
      const bool there = H::WHOLE || chunk * W::CHANNELS + e < P::CHANNELS;
      copy_async(to + e * W::PRODUCERS, p.b_from(from, there ? chunk * W::CHANNELS + e : P::CHANNELS - 1), from.inside && there);
    }
    commit_copies();
  }
  __device__ __forceinline__ void take(float (&v)[W::CHANNELS], int where) const {
    const float* const from = landing + where * (W::CHANNELS * W::PRODUCERS);
#pragma unroll
    for (int e = 0; e < W::CHANNELS; ++e) v[e] = from[e * W::PRODUCERS];
  }
  // The same in one go.
  __device__ __forceinline__ void compute(float (&v)[W::CHANNELS], int pixel) const {
    const typename P::BAt& from = at[pixel];
#pragma unroll
    for (int e = 0; e < W::CHANNELS; ++e) {
      const bool there = H::WHOLE || chunk * W::CHANNELS + e < P::CHANNELS;
      const float x = static_cast<float>(p.b_in(from, there ? chunk * W::CHANNELS + e : P::CHANNELS - 1));
      v[e] = from.inside && there ? x : 0.0f;
    }
  }
  __device__ __forceinline__ void put(float (&v)[W::CHANNELS], int pixel, unsigned char* slot) {
    const int q = thread() + pixel * W::PRODUCERS;
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      const uint4 word = round_unit<W::kind>(v + unit * W::UNIT, by, largest[unit]);
      if (q < H::PLACES) *reinterpret_cast<uint4*>(slot + (unit * H::ROOM + q) * 16) = word;
    }
  }
  __device__ __forceinline__ bool watch() {
    const bool first = watched(largest[0]), second = watched(largest[1]);
    return first || second;
  }
};
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Sums of boxes of output pixels on their way from the registers of Hopper's tensor cores through the functor to memory.
//
// A warp has 16 rows of sums. They are unscaled, and finished where they are if they can be (fragments.cuh). Else they go through
// shared memory, four rows at a time, from where neighbouring lanes take neighbouring pixels; sums of phases whose elements
// lie beside each other are put there in the output's order.

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// The exponents that unscale a lane's two rows of a warp's 16.
struct Exponents {
  int of[2];
  __device__ __forceinline__ Exponents(const int* rows, int scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) of[h] = -scale - rows[h * 8 + static_cast<int>(threadIdx.x) % 32 / 4];
  }
};
template <int EIGHTS, int COUNT>
__device__ __forceinline__ void unscale(float (&sums)[COUNT], const Exponents& exponents) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int e = exponents.of[h], e1 = e < -126 ? -126 : e < 127 ? e : 127;
    const float f = power_of_two(e1);
#pragma unroll
    for (int j = 0; j < EIGHTS; ++j) sums[4 * j + 2 * h] *= f, sums[4 * j + 2 * h + 1] *= f;
    if (__any_sync(0xffffffffu, e != e1)) {
#pragma unroll 1
      for (int left = e - e1; __any_sync(0xffffffffu, left != 0);) {
        const int step = left < -126 ? -126 : left < 127 ? left : 127;
        const float g = power_of_two(step);
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) sums[4 * j + 2 * h] *= g, sums[4 * j + 2 * h + 1] *= g;
        left -= step;
      }
    }
  }
}

// The pixels of a box that a lane finishes: from the box's first to each, or to the first of a pool's window, in the output
// and among the sums, and to the window itself.
template <class W, class P>
struct PairLanes {
  using H = Pair<W, P>;
  using Pixels = LanePixels<P, (P::Box::product + 31) / 32>;
  static constexpr int EACH = Pixels::EACH, ROUNDS = Pixels::ROUNDS, TAKES = Pixels::TAKES;
  Index to[ROUNDS], pooled[ROUNDS];
  int from[ROUNDS];

  __device__ __forceinline__ explicit PairLanes(const P& p) {
#pragma unroll
    for (int j = 0; j < ROUNDS; ++j) {
      const int i = Pixels::pixel(j * TAKES);
      to[j] = 0, from[j] = 0, pooled[j] = PoolOf<P>::pooled ? Pixels::pooled(p, j) : Index(0);
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        to[j] = to[j] * p.extent(d) + P::Box::index(i, d);
        from[j] += P::Box::index(i, d) * H::Halo::pitch(d);
      }
      if (i >= P::Box::product) to[j] = 0, from[j] = 0;
    }
  }
  // Neighbours of a window's row are read two at a time where each pair begins at an even place.
  static __device__ __forceinline__ constexpr bool twos() {
    for (int d = 0; d < 3; ++d)
      if (P::Box::at(d) > 1 && H::Halo::pitch(d) % 2 != 0) return false;
    return Pixels::Window::at(3) % 2 == 0;
  }
  __device__ __forceinline__ void read(float (&values)[EACH], const float* row) const {
    constexpr int BY = twos() ? 2 : 1;
#pragma unroll
    for (int j = 0; j < EACH; j += BY) {
      int at = from[j / TAKES];
#pragma unroll
      for (int d = 0; d < 4; ++d) at += Pixels::Window::index(j % TAKES, d) * H::Halo::pitch(d);
      if constexpr (BY == 2) {
        const float2 two = *reinterpret_cast<const float2*>(row + at);
        values[j] = two.x, values[j + 1] = two.y;
      } else {
        values[j] = row[at];
      }
    }
  }
};

// WHOLE: the box lies in the output with all its pixels.
template <class W, class P, bool WHOLE>
struct PairColumns {
  using Lanes = PairLanes<W, P>;
  using Pixels = typename Lanes::Pixels;
  const P& p;
  const Lanes& lanes;
  const BoxPlace<P>& place;
  Index base, pools, tile;
  int count;
  unsigned exists = 0;

  __device__ __forceinline__ PairColumns(const P& functor, const Lanes& places, const BoxPlace<P>& of, Index box)
      : p(functor), lanes(places), place(of), base(0), pools(PoolOf<P>::pooled ? Pixels::first_pooled(p, place) : Index(0)), tile(box),
        count(WHOLE ? P::Box::product : place.count()) {
#pragma unroll
    for (int d = 0; d < 4; ++d) base = base * p.extent(d) + place.first[d];
#pragma unroll
    for (int j = 0; j < Lanes::EACH; ++j)
      if (!WHOLE) exists |= unsigned(place.exists(Pixels::pixel(j))) << j;
  }
  __device__ __forceinline__ bool valid(int, int j) const {
    const int round = j / Lanes::TAKES;
    if (WHOLE) return (round + 1) * 32 <= Pixels::Windows::product || Pixels::window(round) < Pixels::Windows::product;
    return exists >> j & 1u;
  }
  __device__ __forceinline__ Index column(int, int j) const {
    if (!PoolOf<P>::pooled) return base + lanes.to[j];
    Index at = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) at = at * p.extent(d) + Pixels::Window::index(j % Lanes::TAKES, d);
    return base + lanes.to[j / Lanes::TAKES] + at;
  }
  // The pixel of a column that exists, else the box's first.
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (P::Box::at(d) > 1 && valid(r, j) ? P::Box::index(Pixels::pixel(j), d) : 0);
  }
  __device__ __forceinline__ bool whole(int round) const {
    constexpr unsigned all = 0xffffffffu >> (32 - Lanes::TAKES);
    return WHOLE ? valid(0, round * Lanes::TAKES) : (exists >> round * Lanes::TAKES & all) == all;
  }
  __device__ __forceinline__ Index pooled(int round) const { return pools + lanes.pooled[round]; }
};

// Four of a warp's 16 rows, part + 2 h, to shared memory, from where neighbouring lanes can read neighbouring pixels.
template <int N, int PITCH, int COUNT>
__device__ __forceinline__ void stage_rows(const float (&sums)[COUNT], int h, int part, float* stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
  if (lane / 16 == part) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      *reinterpret_cast<float2*>(stage + lane % 16 / 4 * PITCH + j * 8 + lane % 4 * 2) =
          make_float2(sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
  }
  __syncwarp();
}

// One warp's 16 rows of a box.
template <class W, bool WHOLE, class P, int COUNT>
__device__ __forceinline__ void finish_box(const P& p, Index z, Index first, Index box, const BoxPlace<P>& place,
                                           const PairLanes<W, P>& lanes, const float (&sums)[COUNT], float* stage) {
  using H = Pair<W, P>;
  constexpr int EACH = PairLanes<W, P>::EACH, ROWS = EACH > 8 ? 1 : EACH > 5 && P::statistics ? 2 : 4;  // as many as there are registers for
  const Index rows = p.rows();
  const PairColumns<W, P, WHOLE> columns(p, lanes, place, box);
  // Registers must be known beforehand, so each eight rows have their own code.
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      stage_rows<H::N, H::STAGE_PITCH>(sums, h, part, stage);
#pragma unroll 1
      for (int r = 0; r < 4; r += ROWS) {
        float values[ROWS][EACH];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) lanes.read(values[i], stage + (r + i) * H::STAGE_PITCH);
        const Index m = first + h * 8 + part * 4 + r;
        if (m < rows) finish_values(p, z, m, rows, columns, 0, values);
      }
    }
}
// The columns of a box of several phases that a lane finishes, the phases of a pixel beside each other: every 32nd.
template <class Halo, class P>
struct BesideColumns {
  using Several = void;
  using Box = typename P::Box;
  static constexpr int BESIDE = InsideOf<P>::beside, EACH = (BESIDE * Box::product + 31) / 32;
  static constexpr bool LINE = Box::product == Box::at(3), KNOWS = RaggedOf<P>::alike;
  static_assert(Box::product < 256 && EACH <= 32, "a byte for each number of a pixel, a bit for each column");
  const BoxPlace<P>& place;
  Index tile;
  int count;
  unsigned exists = 0, pixels[LINE ? 1 : EACH];  // four bytes each

  static __device__ __forceinline__ int at(int j) { return static_cast<int>(threadIdx.x) % 32 + j * 32; }
  static __device__ __forceinline__ int number(int j) {
    return 32 % BESIDE == 0 ? static_cast<int>(threadIdx.x) % 32 / BESIDE + j * (32 / BESIDE) : at(j) / BESIDE;
  }
  __device__ __forceinline__ BesideColumns(const P& p, Index z, const BoxPlace<P>& of, Index box) : place(of), tile(box) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      if (!LINE) pixels[j] = Box::index(number(j), 0) | Box::index(number(j), 1) << 8 | Box::index(number(j), 2) << 16 | Box::index(number(j), 3) << 24;
      bool there = place.exists(number(j));
      if constexpr (RaggedOf<P>::ragged && KNOWS)
        there = there && p.exists_at(z + further(j), 0, of.first[0] + in(j, 0), of.first[1] + in(j, 1), of.first[2] + in(j, 2), of.first[3] + in(j, 3));
      exists |= unsigned(there) << j;
    }
    count = P::statistics ? static_cast<int>(__reduce_add_sync(0xffffffffu, __popc(exists))) : 0;
  }
  // Which of the phases it is, its pixel, and where it is staged.
  static __device__ __forceinline__ Index further(int j) { return 32 % BESIDE == 0 ? static_cast<int>(threadIdx.x) % BESIDE : at(j) % BESIDE; }
  __device__ __forceinline__ int in(int j, int d) const { return LINE ? (d == 3 ? number(j) : 0) : static_cast<int>(pixels[j] >> 8 * d & 255u); }
  __device__ __forceinline__ int from(int j) const {
    int place_in = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) place_in += in(j, d) * Halo::pitch(d);
    return (number(j) < Box::product ? place_in : 0) * BESIDE + static_cast<int>(further(j));
  }
  __device__ __forceinline__ bool valid(int, int j) const { return exists >> j & 1u; }
  __device__ __forceinline__ Index column(int, int) const { return 0; }
  __device__ __forceinline__ Index pixel(int r, int j, int d) const {
    return place.first[d] + (Box::at(d) > 1 && (!P::reads || valid(r, j)) ? in(j, d) : 0);
  }
};

// One warp's 16 rows of a box, of so many phases from batch z on.
template <class Halo, int PITCH, class P, int BESIDE, int COUNT>
__device__ __forceinline__ void finish_beside(const P& p, Index z, Index first, Index box, const BoxPlace<P>& place,
                                              const float (&sums)[BESIDE][COUNT], float* stage) {
  using Columns = BesideColumns<Halo, P>;
  constexpr int EACH = Columns::EACH, ROWS = EACH > 8 ? 1 : EACH > 4 ? 2 : 4;
  static_assert(!P::statistics || P::group == 0, "statistics are of all columns");
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index rows = p.rows();
  const Columns columns(p, z, place, box);
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      __syncwarp();
      if (lane / 16 == part) {
        float* const to = stage + lane % 16 / 4 * PITCH + lane % 4 * (2 * BESIDE);
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j)
          if constexpr (BESIDE == 2) {
            *reinterpret_cast<float4*>(to + j * 16) =
                make_float4(sums[0][4 * j + 2 * h], sums[1][4 * j + 2 * h], sums[0][4 * j + 2 * h + 1], sums[1][4 * j + 2 * h + 1]);
          } else {
#pragma unroll
            for (int b = 0; b < BESIDE; ++b)
              to[j * 8 * BESIDE + b] = sums[b][4 * j + 2 * h], to[(j * 8 + 1) * BESIDE + b] = sums[b][4 * j + 2 * h + 1];
          }
      }
      __syncwarp();
#pragma unroll 1
      for (int r = 0; r < 4; r += ROWS) {
        float values[ROWS][EACH];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
          for (int j = 0; j < EACH; ++j) values[i][j] = stage[(r + i) * PITCH + columns.from(j)];
        const Index m = first + h * 8 + part * 4 + r;
        if (m >= rows) continue;
        finish_values(p, z, m, rows, columns, 0, values);
        // The first phase's statistics are those of all.
        if constexpr (P::statistics)
          for (int i = lane; i < ROWS * (BESIDE - 1); i += 32)
            if (m + i % ROWS < rows) p.sink(z + 1 + i / ROWS, m + i % ROWS, box, 0, 0, 0);
      }
    }
}

// One of a tile's boxes, by its number and its batch, if there is such a box.
template <class W, class P>
struct PairBox {
  Index box = 0, z, first;
  bool there;
  __device__ __forceinline__ PairBox(const P& p, const PairTiles<W, P>& tiles, int which)
      : z(tiles.batch(p, W::SAMPLES ? which : 0)), first(tiles.tile_m * PAIR_ROWS + static_cast<int>(threadIdx.x) / 32 % 4 * 16),
        there(tiles.exists(p, which)) {
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const Index n = (p.extent(d) - 1) / P::Box::at(d) + 1;
      const Index i = tiles.at[d + 1] * (d == W::JOIN ? W::BOXES : 1) + (d == W::JOIN ? which : 0);
      there = there && i < n;
      box = box * n + i;
    }
  }
};

// One warp's 16 rows of it.
template <class W, class P, int COUNT>
__device__ __forceinline__ void finish_pair(const P& p, const PairTiles<W, P>& tiles, int which, const Exponents& exponents,
                                            const PairLanes<W, P>& lanes, float (&sums)[COUNT], float* stage) {
  using H = Pair<W, P>;
  const PairBox<W, P> of(p, tiles, which);
  if (!of.there) return;
  const Index z = of.z, first = of.first, box = of.box;
  if constexpr (W::kind == Operands::Half || W::kind == Operands::Split) unscale<H::N / 8>(sums, exponents);
  const BoxPlace<P> place(p, box);
  if constexpr (H::FRAGMENTS)
    finish_box_fragments<typename H::Halo>(p, z, first, box, place, sums);
  else if (place.count() == P::Box::product)
    finish_box<W, true>(p, z, first, box, place, lanes, sums, stage);
  else
    finish_box<W, false>(p, z, first, box, place, lanes, sums, stage);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Convolutions on Hopper's tensor cores (wgmma, compute capability 9.0a): a window slides over an input.
//
// A block stays on its processor and takes 64 output channels of one box of output pixels after another. Eight warps
// produce: they read the input under a box, the halo, 32 bytes of channels (a chunk) at a time, round it and store it as
// [16 bytes of channels][pixel] in a ring of slots. Two warpgroups consume: for every tap of the window one instruction
// multiplies 64 channels by N pixels. window_halo.cuh has where pixels and taps lie, window_produce.cuh what the former do,
// window_finish.cuh what becomes of sums; here are the products, the kernel and its launches.
// Weights are packed beforehand, in the order of shared memory. If they fit they stay there (CHUNKS > 0), and the
// warpgroups take boxes alternately, so that one stores while the other multiplies. Else they come with each chunk by a
// bulk copy, and to share them the warpgroups take two boxes side by side (JOIN >= 0), or the same box of two samples
// (JOIN = 4), and turns, TURN chunks each.
// Phases whose elements lie beside each other are computed together, each with sums of its own, and go through shared
// memory, from where neighbouring lanes store neighbours.
//
// Operands: half has the 11 bits of tf32 at twice the rate, but not its range. In kind Half the weights are scaled by a
// power of two for each output channel and the input by one chosen from a sample of it, and the block watches: a number
// too large, or a channel that is not zero but too small to have its 11 bits in all the pixels that a warp sees, raises a
// flag, and the second launch, in kind Tf32, which otherwise returns at once, does everything again.
// Memory: 1.1 to 1.5 times the input from L2, the output once, for each 64 output channels.

#include <type_traits>

#if CRUCIBLE_HOPPER
namespace crucible {

#if CRUCIBLE_HAS_WGMMA
// Of a phase without taps.
template <int COUNT>
__device__ __forceinline__ void clear(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] = 0.0f;
}

// What the consumers do: products of one tile after another, and what becomes of them. `here` are weights that stay.
template <class W, class P>
__device__ __forceinline__ void multiply_pairs(const P& p, const Packed& packed, PairTiles<W, P>& tiles, const unsigned char* here,
                                               unsigned char* ring, unsigned char* stages, unsigned full, unsigned empty, unsigned kept,
                                               int warp) {
  using H = Pair<W, P>;
  constexpr int GROUPS = W::CONSUMERS / 128;
  const int which = warp / 4, lane = static_cast<int>(threadIdx.x) % 32, next = which + 1 < GROUPS ? which + 1 : 0;
  const int chunks = static_cast<int>((P::CHANNELS + W::CHANNELS - 1) / W::CHANNELS);
  float sums[H::BESIDE][H::N / 2];
  if (W::CHUNKS > 0) barrier_wait(kept, 0);
  int slot = 0;
  unsigned parity = 0;
  if (H::TURNS && next == 0) turn_give(1);
  float* const stage = reinterpret_cast<float*>(stages) + warp * 4 * H::STAGE_PITCH;
  const PairLanes<W, P> lanes(p);
  Taps<P> taps[H::BESIDE];
#pragma unroll
  for (int b = 0; b < H::BESIDE; ++b) taps[b] = Taps<P>(p, tiles.group + b);
  const auto exponents = [&](int b) {
    return Exponents(packed.rows + ((tiles.group + b) * ((p.rows() + PAIR_ROWS - 1) / PAIR_ROWS) + tiles.tile_m) * PAIR_ROWS + warp % 4 * 16,
                     W::kind == Operands::Half ? packed.input() : 0);
  };
  const Exponents own = exponents(0);
  int number = 0;
#pragma unroll 1
  for (; tiles.left > 0; tiles.next(), ++number) {
    if (!W::PAIRED && number % 2 != which) {
      // The other warpgroup's box.
      slot += chunks;
      while (slot >= W::SLOTS) slot -= W::SLOTS, parity ^= 1;
      continue;
    }
    int before = -1;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (H::TURNS && (W::PAIRED ? chunk % H::TURN == 0 : chunk == 0)) turn_wait(1 + which);
      barrier_wait(full + slot * 8, parity);
      const unsigned halo = shared_address(ring) + slot * H::SLOT_BYTES;
      const uint64_t b = lines_at(halo + which * H::SECOND * 16, H::ROOM * 16);
      const uint64_t a = lines_at(W::CHUNKS > 0 ? shared_address(here) + chunk * H::BESIDE * H::TAPS * TAP_BYTES
                                                    : halo + (H::SLOT_BYTES - H::STREAMED), TAP_BYTES / 2);
      wgmma_begin();
#pragma unroll
      for (int g = 0; g < H::BESIDE; ++g)
#pragma unroll
        for (int t = 0; t < H::TAPS; ++t)
          if (taps[g].has(t))
            Wgmma<H::N, W::kind>::multiply(sums[g], a + (g * H::TAPS + t) * (TAP_BYTES / 16), b + H::tap(t), taps[g].first(t) ? chunk > 0 : 1);
      wgmma_end();
      const bool over = chunk + 1 == chunks || (W::PAIRED && W::TURN > 0 && (chunk + 1) % H::TURN == 0);
      if (H::TURNS && over) turn_give(1 + next);
      // A slot is free when its products are done: while the next ones run, or when the turn is over.
      if (over)
        wgmma_wait<0>();
      else
        wgmma_wait<1>();
      if (lane == 0 && before >= 0) barrier_arrive(empty + before * 8);
      if (lane == 0 && over) barrier_arrive(empty + slot * 8);
      before = over ? -1 : slot;
      if (++slot == W::SLOTS) slot = 0, parity ^= 1;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < H::BESIDE; ++b) {
      settle(sums[b]);
      if (taps[b].none()) clear(sums[b]);
    }
    if constexpr (H::BESIDE > 1) {
      const PairBox<W, P> of(p, tiles, which);
      if (!of.there) continue;
      if constexpr (W::kind == Operands::Half)
#pragma unroll
        for (int b = 0; b < H::BESIDE; ++b) unscale<H::N / 8>(sums[b], b == 0 ? own : exponents(b));
      finish_beside<typename H::Halo, H::STAGE_PITCH>(p, of.z, of.first, of.box, BoxPlace<P>(p, of.box), sums, stage);
    } else {
      finish_pair<W>(p, tiles, which, own, lanes, sums[0], stage);
    }
  }
  if (H::TURNS && which == (W::PAIRED ? 0 : number % 2)) turn_wait(1 + which);
}
#endif

// FLAGGED: only where the flag is raised.
template <class W, bool FLAGGED, class P>
__global__ void __launch_bounds__(W::threads, 1) pair_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
  extern __shared__ __align__(128) unsigned char pair_shared[];
#if CRUCIBLE_HAS_WGMMA
  using H = Pair<W, P>;
  const Packed packed(p, workspace);
  if (FLAGGED && *packed.again == 0) return;
  // Through a shuffle, so that the compiler knows that a warp agrees on it: else it lines up the matrix instructions.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  unsigned char* const ring = pair_shared + H::KEPT_BYTES;
  unsigned char* const stages = ring + W::SLOTS * H::SLOT_BYTES;
  const unsigned full = shared_address(stages + H::STAGE_BYTES + W::LAND * 1024), empty = full + W::SLOTS * 8, kept = empty + W::SLOTS * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, W::PRODUCERS / 32 + (W::CHUNKS > 0 ? 0 : 1));
      barrier_init(empty + i * 8, W::CONSUMERS / (W::PAIRED ? 32 : 64));
    }
    barrier_init(kept, 1);
    barrier_inits_done();
  }
  __syncthreads();

  PairTiles<W, P> tiles(p);
  const int chunks = static_cast<int>((P::CHANNELS + W::CHANNELS - 1) / W::CHANNELS);
  const int64_t rows = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, each = int64_t(chunks) * H::TAPS * TAP_BYTES, further = rows * each;
  const unsigned char* const weights = packed.weights<W>() + (tiles.group * rows + tiles.tile_m) * each;

  if (warp >= W::CONSUMERS / 32) {
    registers_down<80>();
    PairProducer<W, P> from{p, tiles, 0, reinterpret_cast<float*>(stages + H::STAGE_BYTES) + (threadIdx.x - W::CONSUMERS),
                            W::kind == Operands::Half ? power_of_two(packed.input()) : 1.0f};
    if (W::CHUNKS > 0 && threadIdx.x == W::CONSUMERS) {
      barrier_expect(kept, H::KEPT_BYTES);
      for (int i = 0; i < W::CHUNKS; ++i) copy_weights<H>(shared_address(pair_shared) + i * H::BESIDE * H::TAPS * TAP_BYTES, weights, further, i, kept);
    }
    if (W::kind == Operands::Half && blockIdx.x == 0)
      known_spoilt<W::PRODUCERS, P>(packed, static_cast<int>(threadIdx.x) - W::CONSUMERS, from.by);
    from.largest[0] = from.largest[1] = 0.0f;
    for (int i = 0; i < W::SLOTS; ++i) clear_behind<2, W, P>(ring + i * H::SLOT_BYTES, from.thread());
    if (tiles.left > 0) {
      from.place();
      if constexpr (H::DIRECT) {
#pragma unroll
        for (int i = 0; i < H::AHEAD; ++i) {
          from.ask(i % H::PIXELS, i);
          if (i % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
        }
      }
    }
    int slot = 0, landed = 0;
    unsigned parity = 1;
    bool bad = false;
#pragma unroll 1
    for (; tiles.left > 0; tiles.next())
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        unsigned char* const to = ring + slot * H::SLOT_BYTES;
        barrier_wait(empty + slot * 8, parity);
        if (W::CHUNKS == 0 && threadIdx.x == W::CONSUMERS) {
          barrier_expect(full + slot * 8, H::STREAMED);
          copy_weights<H>(shared_address(to) + (H::SLOT_BYTES - H::STREAMED), weights, further, chunk, full + slot * 8);
        }
#pragma unroll
        for (int i = 0; i < H::PIXELS; ++i) {
          float v[W::CHANNELS];
          if constexpr (H::DIRECT) {
            wait_copies<H::AHEAD - 1>();
            from.take(v, landed);
            from.put(v, i, to);
            from.ask((i + H::AHEAD) % H::PIXELS, landed);
            if ((i + H::AHEAD) % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
            if (++landed == H::AHEAD) landed = 0;
          } else {
            from.compute(v, i);
            from.put(v, i, to);
            if (i + 1 == H::PIXELS) from.next(chunks);
          }
        }
        publish();
        __syncwarp();
        if (lane == 0) barrier_arrive(full + slot * 8);
        if constexpr (W::kind == Operands::Half) bad |= from.watch();
        if (++slot == W::SLOTS) slot = 0, parity ^= 1;
      }
    if (W::kind == Operands::Half && bad && lane == 0) *packed.again = 1;
  } else {
    registers_up<176>();
    multiply_pairs<W>(p, packed, tiles, pair_shared, ring, stages, full, empty, kept, warp);
  }
#endif
}

// The same pixels in other boxes than the functor's own, which W takes: narrower ones, where extents are small. What does not
// depend on boxes is launched as if for those, so that it is compiled once.
template <class P, class Box_, class W>
struct Boxed : P {
  using Box = Box_;
  using Own = P;
  using First = W;
};
template <class Box, class W, class P>
Boxed<P, Box, W> in_boxes(const P& p) { return {p}; }

template <class W, class P, class = void>
struct FirstBoxes {
  using Functor = P;
  using Again = P;  // of the launch that does something again: statistics are kept by boxes, all else is not
  using Tile = W;
};
template <class W, class P>
struct FirstBoxes<W, P, typename Named<typename P::Own>::type> {
  using Functor = typename P::Own;
  using Again = std::conditional_t<P::statistics, P, Functor>;
  using Tile = typename P::First;
};

#ifndef __CUDACC_RTC__
template <class W, bool FLAGGED, class P>
cudaError_t launch_pairs(const P& p, void* workspace, int processors, cudaStream_t stream) {
  using H = Pair<W, P>;
  const int64_t kinds = p.groups() / H::BESIDE * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS);
  const int64_t blocks = processors >= kinds ? processors / kinds * kinds : kinds;
  const cudaError_t refused = allow_shared(pair_kernel<W, FLAGGED, P>, H::shared_bytes);
  if (refused != cudaSuccess) return refused;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, H::shared_bytes, stream),
                            pair_kernel<W, FLAGGED, P>, p, workspace);
}

// W is for the launch, Again (if not void) for the second one that does what W could not.
template <class W, class Again, class P>
cudaError_t launch_warpgroups(const P& p, void* workspace, cudaStream_t stream) {
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int processors = 0;
  using First = FirstBoxes<W, P>;
  cudaError_t refused = pack_rows<typename First::Tile, typename First::Functor>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = launch_pairs<W, false>(p, workspace, processors, stream);
  if constexpr (W::kind == Operands::Half) {
    if (refused == cudaSuccess) refused = launch_pairs<Again, true, typename First::Again>(p, workspace, processors, stream);
  }
  return refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// Convolutions as good as float32's own on Hopper's tensor cores (wgmma, compute capability 9.0a).
//
// Boxes, halos and taps are those of window_halo.cuh, two boxes side by side, or the same box of two samples. Every operand
// is split into two tf32 numbers, hi and lo, whose sum has 22 bits at least, and multiplied three times: hi * lo, lo * hi,
// hi * hi. Tensor cores cut what they add, so PIECE taps of a chunk of channels start a fresh accumulator, the small
// products first, and it goes to ordinary registers by rounded adds.
// Four warps produce halos in a ring of SLOTS, of [hi, lo][16 bytes of channels][pixel]; one of their threads has the weights
// brought, PIECE taps at a time, to a ring of HELD such pieces: all taps of a chunk, twice, are too much for a slot. Two
// warpgroups consume, a box each, and take turns, so that one adds while the other multiplies.
//
// The range: tf32 has float's. Rows of weights are scaled by a power of two so that their largest lies at 2^30, and no
// product is too small. The input is scaled too, after a sample of it, if that is very large or small. A chunk of it, in the
// pixels that a warp sees, raises the flag if some number is 2^80 or more, inf or nan (a split would make nan of inf, and an
// overflow of one product nan of the sum), or if the largest is below 2^-96 and not zero (lo would be too small for a float).
// So does a weight of 2^40 or more. Then the last launch, which otherwise returns at once, does everything again with the
// mma engine.
// Registers: N / 2 accumulators and N / 2 sums. Memory: as window_wgmma.cuh, the weights twice as often.

#if CRUCIBLE_HOPPER
namespace crucible {

// JOIN as of Warpgroups, never -1. LAND: KB for what is on its way.
template <int JOIN_, int SLOTS_, int PIECE_, int HELD_, int LAND_>
struct Split {
  static constexpr Operands kind = Operands::Split;
  static constexpr int JOIN = JOIN_, SLOTS = SLOTS_, PIECE = PIECE_, HELD = HELD_, LAND = LAND_, CHUNKS = 0, TURN = 1;
  static constexpr int BM = PAIR_ROWS, PRODUCERS = 128, CONSUMERS = 256, threads = PRODUCERS + CONSUMERS;
  static constexpr int BOXES = 2;
  static constexpr bool PAIRED = true, SAMPLES = JOIN == 4, TOGETHER = false;
  static constexpr int UNIT = 4, CHANNELS = 2 * UNIT;
  // Of a thread. Together what three warpgroups begin with: who asked for more would wait for ever.
  static constexpr int PRODUCER_REGISTERS = 104, CONSUMER_REGISTERS = 200;
  static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS == 3 * (65536 / threads / 8 * 8), "neither more nor fewer");
};

// Shared memory, and how the taps are cut into pieces.
template <class W, class P>
struct SplitRoom {
  using H = Pair<W, P>;
  static constexpr int PIECES = (H::TAPS + W::PIECE - 1) / W::PIECE;
  __host__ __device__ static constexpr int taps(int piece) {
    return H::TAPS - piece * W::PIECE < W::PIECE ? H::TAPS - piece * W::PIECE : W::PIECE;
  }
  static constexpr int PIECE_BYTES = W::PIECE * 2 * TAP_BYTES, HALO_BYTES = (4 * H::ROOM * 16 + 127) / 128 * 128;
  static constexpr int RING = W::HELD * PIECE_BYTES, STAGES = RING + W::SLOTS * HALO_BYTES, LANDING = STAGES + H::STAGE_BYTES;
  static constexpr int BARRIERS = LANDING + W::LAND * 1024;
  static constexpr int shared_bytes = BARRIERS + 2 * (W::SLOTS + W::HELD) * 8;
};

#if CRUCIBLE_HAS_WGMMA
constexpr float SPLIT_LIMIT = 0x1p80f, SPLIT_SMALL = 0x1p-96f;

// A place in a ring, and the parity of the phase of its barriers that is waited for.
template <int PLACES>
struct RingPlace {
  int at = 0;
  unsigned parity;
  __device__ __forceinline__ explicit RingPlace(unsigned first) : parity(first) {}
  __device__ __forceinline__ void advance() {
    if (++at == PLACES) at = 0, parity ^= 1;
  }
};

// A chunk of one pixel to a slot; `largest` are bits of a float without its sign.
template <class W, class P>
__device__ __forceinline__ void put_split(const float (&v)[W::CHANNELS], float by, int q, unsigned char* slot, unsigned& largest) {
  using H = Pair<W, P>;
  unsigned hi[W::CHANNELS], lo[W::CHANNELS];
#pragma unroll
  for (int e = 0; e < W::CHANNELS; ++e) {
    const float x = v[e] * by;
    const unsigned size = __float_as_uint(x) & 0x7fffffffu;
    largest = size > largest ? size : largest;
    split_tf32(x, hi[e], lo[e]);
  }
  if (q >= H::PLACES) return;
#pragma unroll
  for (int unit = 0; unit < 2; ++unit) {
    const int e = unit * W::UNIT;
    *reinterpret_cast<uint4*>(slot + (unit * H::ROOM + q) * 16) = make_uint4(hi[e], hi[e + 1], hi[e + 2], hi[e + 3]);
    *reinterpret_cast<uint4*>(slot + ((2 + unit) * H::ROOM + q) * 16) = make_uint4(lo[e], lo[e + 1], lo[e + 2], lo[e + 3]);
  }
}

// Whether what a warp has put away, of which each lane knows its largest number, cannot be split.
__device__ __forceinline__ bool unsplittable(unsigned largest) {
  const unsigned most = __reduce_max_sync(0xffffffffu, largest);
  return most >= __float_as_uint(SPLIT_LIMIT) || (most != 0 && most < __float_as_uint(SPLIT_SMALL));
}

// Three products of a piece of the taps, the small ones first. Two batches: the second is the large product.
template <int PIECE, class W, class P, int COUNT>
__device__ __forceinline__ void multiply_piece(float (&sums)[COUNT], uint64_t a, uint64_t b) {
  using H = Pair<W, P>;
  using Instruction = Wgmma<H::N, Operands::Tf32>;
  constexpr int TAPS = SplitRoom<W, P>::taps(PIECE), FIRST = PIECE * W::PIECE, LINE = TAP_BYTES / 16;
#pragma unroll
  for (int t = 0; t < TAPS; ++t) Instruction::multiply(sums, a + 2 * t * LINE, b + 2 * H::ROOM + H::tap(FIRST + t), t > 0);
#pragma unroll
  for (int t = 0; t < TAPS; ++t) Instruction::multiply(sums, a + (2 * t + 1) * LINE, b + H::tap(FIRST + t), 1);
  wgmma_end();
#pragma unroll
  for (int t = 0; t < TAPS; ++t) Instruction::multiply(sums, a + 2 * t * LINE, b + H::tap(FIRST + t), 1);
  wgmma_end();
}

template <class W, class P>
struct SplitConsumer {
  using H = Pair<W, P>;
  using S = SplitRoom<W, P>;
  unsigned weights, ring, full, empty, come, gone;
  int which, lane;
  float total[H::N / 2];
  RingPlace<W::SLOTS> slot{0};
  RingPlace<W::HELD> held{0};

  // The pieces of a chunk, one after another: each has its own code, since its taps' places must be known beforehand.
  template <int PIECE>
  __device__ __forceinline__ void pieces(float (&sums)[H::N / 2]) {
    if constexpr (PIECE < S::PIECES) {
      barrier_wait(come + held.at * 8, held.parity);
      turn_wait(1 + which);
      settle(sums);
      wgmma_begin();
      multiply_piece<PIECE, W, P>(sums, lines_at(weights + held.at * S::PIECE_BYTES, TAP_BYTES / 2),
                                  lines_at(ring + slot.at * S::HALO_BYTES + which * H::SECOND * 16, H::ROOM * 16));
      wgmma_wait<1>();
      turn_give(2 - which);  // most is done: the other's products queue up behind the rest
      wgmma_wait<0>();
      settle(sums);
      if (lane == 0) barrier_arrive(gone + held.at * 8);
      held.advance();
#pragma unroll
      for (int i = 0; i < H::N / 2; ++i) total[i] += sums[i];
      pieces<PIECE + 1>(sums);
    }
  }
  __device__ __forceinline__ void box(int chunks) {
    float sums[H::N / 2];
#pragma unroll
    for (int i = 0; i < H::N / 2; ++i) total[i] = sums[i] = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      barrier_wait(full + slot.at * 8, slot.parity);
      pieces<0>(sums);
      if (lane == 0) barrier_arrive(empty + slot.at * 8);
      slot.advance();
    }
  }
};
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1) split_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
  extern __shared__ __align__(128) unsigned char split_shared[];
#if CRUCIBLE_HAS_WGMMA
  using H = Pair<W, P>;
  using S = SplitRoom<W, P>;
  const Packed packed(p, workspace);
  // Through a shuffle, so that the compiler knows that a warp agrees on it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned shared = shared_address(split_shared);
  const unsigned full = shared + S::BARRIERS, empty = full + W::SLOTS * 8, come = empty + W::SLOTS * 8, gone = come + W::HELD * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, W::PRODUCERS / 32);
      barrier_init(empty + i * 8, W::CONSUMERS / 32);
    }
    for (int i = 0; i < W::HELD; ++i) {
      barrier_init(come + i * 8, 1);
      barrier_init(gone + i * 8, W::CONSUMERS / 32);
    }
    barrier_inits_done();
  }
  __syncthreads();

  PairTiles<W, P> tiles(p);
  const int chunks = static_cast<int>((P::CHANNELS + W::CHANNELS - 1) / W::CHANNELS);
  const Index tile = tiles.group * ((p.rows() + PAIR_ROWS - 1) / PAIR_ROWS) + tiles.tile_m;

  if (warp >= W::CONSUMERS / 32) {
    registers_down<W::PRODUCER_REGISTERS>();
    const unsigned char* const weights = packed.weights<W>() + tile * int64_t(chunks) * H::TAPS * 2 * TAP_BYTES;
    PairProducer<W, P> from{p, tiles, 0, reinterpret_cast<float*>(split_shared + S::LANDING) + (threadIdx.x - W::CONSUMERS),
                            power_of_two(packed.split_input())};
    if (blockIdx.x == 0) spoilt_rows<W::PRODUCERS>(packed, from.thread());
    for (int i = 0; i < W::SLOTS; ++i) clear_behind<4, W, P>(split_shared + S::RING + i * S::HALO_BYTES, from.thread());
    if (tiles.left > 0) {
      from.place();
      if constexpr (H::DIRECT) {
#pragma unroll
        for (int i = 0; i < H::AHEAD; ++i) {
          from.ask(i % H::PIXELS, i);
          if (i % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
        }
      }
    }
    RingPlace<W::SLOTS> slot(1);
    RingPlace<W::HELD> held(1);
    int landed = 0;
    bool bad = false;
#pragma unroll 1
    for (; tiles.left > 0; tiles.next())
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        unsigned char* const to = split_shared + S::RING + slot.at * S::HALO_BYTES;
        unsigned largest = 0;
        barrier_wait(empty + slot.at * 8, slot.parity);
#pragma unroll
        for (int i = 0; i < H::PIXELS; ++i) {
          const int q = from.thread() + i * W::PRODUCERS;
          float v[W::CHANNELS];
          if constexpr (H::DIRECT) {
            wait_copies<H::AHEAD - 1>();
            from.take(v, landed);
            put_split<W, P>(v, from.by, q, to, largest);
            from.ask((i + H::AHEAD) % H::PIXELS, landed);
            if ((i + H::AHEAD) % H::PIXELS + 1 == H::PIXELS) from.next(chunks);
            if (++landed == H::AHEAD) landed = 0;
          } else {
            from.compute(v, i);
            put_split<W, P>(v, from.by, q, to, largest);
            if (i + 1 == H::PIXELS) from.next(chunks);
          }
        }
        publish();
        __syncwarp();
        if (lane == 0) barrier_arrive(full + slot.at * 8);
        bad |= unsplittable(largest);
        slot.advance();
        // Weights after the halo they are for: their slots may be those of pieces that are multiplied with it.
        if (threadIdx.x == W::CONSUMERS) {
#pragma unroll 1
          for (int piece = 0; piece < S::PIECES; ++piece) {
            const unsigned bytes = S::taps(piece) * 2 * TAP_BYTES;
            barrier_wait(gone + held.at * 8, held.parity);
            barrier_expect(come + held.at * 8, bytes);
            bulk_copy(shared + held.at * S::PIECE_BYTES, weights + (int64_t(chunk) * H::TAPS + piece * W::PIECE) * 2 * TAP_BYTES,
                      bytes, come + held.at * 8);
            held.advance();
          }
        }
        __syncwarp();
      }
    if (bad && lane == 0) *packed.again = 1;
  } else {
    registers_up<W::CONSUMER_REGISTERS>();
    const int which = warp / 4;
    SplitConsumer<W, P> mine{shared, shared + S::RING, full, empty, come, gone, which, lane};
    if (which == 1) turn_give(1);
    float* const stage = reinterpret_cast<float*>(split_shared + S::STAGES) + warp * 4 * H::STAGE_PITCH;
    const PairLanes<W, P> lanes(p);
    const Exponents exponents(packed.rows + tile * PAIR_ROWS + warp % 4 * 16, packed.split_input());
#pragma unroll 1
    for (; tiles.left > 0; tiles.next()) {
      mine.box(chunks);
      finish_pair<W>(p, tiles, which, exponents, lanes, mine.total, stage);
    }
    if (which == 0) turn_wait(1);  // the last turn given
  }
#endif
}

// What could not be split, again by the engine Config. As many blocks as run at the same time, each of which takes many
// tiles: a block for each tile would cost something where there is nothing to do.
template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    split_again_kernel(const __grid_constant__ P p, void* workspace, unsigned tiles) {
  follow();
  extern __shared__ __align__(16) unsigned char again_shared[];
  if (*Packed(p, workspace).again == 0) return;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    __syncthreads();
    contract_tile<Config>(p, tile, 0, 1, again_shared);
  }
}

#ifndef __CUDACC_RTC__
template <class Config, class P>
cudaError_t launch_split_again(const P& p, void* workspace, int processors, cudaStream_t stream) {
  const int64_t tiles_m = (static_cast<int64_t>(p.rows()) + Config::BM - 1) / Config::BM, tiles_n = box_count(p);
  const int64_t most = 0x7fffffff, batches = p.batches();
  if (tiles_m > most / tiles_n || batches > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(split_again_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t tiles = batches * tiles_m * tiles_n, blocks = static_cast<int64_t>(processors) * Config::blocks_per_sm;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(tiles < blocks ? tiles : blocks), Config::threads, Config::shared_bytes, stream),
                            split_again_kernel<Config, P>, p, workspace, static_cast<unsigned>(tiles));
}

// Again: tiles of the mma engine, for what W cannot split.
template <class W, class Again, class P>
cudaError_t launch_split(const P& p, void* workspace, cudaStream_t stream) {
  using S = SplitRoom<W, P>;
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int processors = 0;
  cudaError_t refused = pack_rows<W>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = allow_shared(split_kernel<W, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t kinds = p.groups() * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS);
  const int64_t blocks = processors >= kinds ? processors / kinds * kinds : kinds;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), W::threads, S::shared_bytes, stream), split_kernel<W, P>, p, workspace);
  return refused == cudaSuccess ? launch_split_again<Again>(p, workspace, processors, stream) : refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

// ---- the stages of this file

#if CRUCIBLE_HOPPER
namespace crucible {
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<96, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[48], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47"
        "}, %48, %49, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<96, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[48], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47"
        "}, %48, %49, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct Wgmma<96, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[48], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47"
        "}, %48, %49, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct Wgmma<96, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[48], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47"
        "}, %48, %49, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<104, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[52], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %54, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n104k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51"
        "}, %52, %53, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<144, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[72], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n144k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71"
        "}, %72, %73, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<144, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[72], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n144k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71"
        "}, %72, %73, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct Wgmma<144, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[72], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n144k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71"
        "}, %72, %73, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct Wgmma<144, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[72], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71"
        "}, %72, %73, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<160, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[80], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
        "}, %80, %81, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct Wgmma<160, Operands::Tf32> {
  static __device__ __forceinline__ void multiply(float (&d)[80], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
        "}, %80, %81, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct Wgmma<160, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[80], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
        "}, %80, %81, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct Wgmma<160, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[80], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
        "}, %80, %81, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 0
template <>
struct WgmmaAcross<64, Operands::Half> {
  static __device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 2
template <>
struct WgmmaAcross<64, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
#if CRUCIBLE_SCALAR == 3
template <>
struct WgmmaAcross<64, Operands::Native> {
  static __device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, int more) {
#if CRUCIBLE_HAS_WGMMA
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(more));
#endif
  }
};
#endif
}  // namespace crucible
#endif  // CRUCIBLE_HOPPER

using namespace crucible;

inline void check(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // whoever launches next is not to find it
  throw std::runtime_error(std::string(kernel) + ": " + cudaGetErrorString(error));
}

// convolution, var_mean, sub, add_1, rsqrt, mul, view, mul_1, view_1, add_2, max_pool2d_with_indices
struct map_1 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const accum* __restrict__ p_var_mean_0_kept;
  const accum* __restrict__ p_var_mean_1_kept;
  int64_t* __restrict__ p_max_pool2d_with_indices;
  Index s0, s53, s77;

  static constexpr bool in_vectors = false;
  __host__ __device__ Index count() const { return (s0 / 2) * (s53 / 2) * s77 * 128 + (s0 / 2) * s77 * 128 + (s53 / 2) * s77 * 128 + s77 * 128; }
  __device__ __forceinline__ void operator()(Index i) const {
    WindowMax fold1;
    const Index q3 = s0 / 2;
    const Index q4 = s53 / 2;
    const Index q2 = i / (q3 * q4 + q3 + q4 + 1);
    const Index q6 = i / (q3 + 1);
    const Index e5 = q6 % (q4 + 1);
    const Index e7 = i % (q3 + 1);
    const Index e9 = q2 % 128;
    const accum v10 = to_accum(read(p_conv_transpose_bias[e9]));
    const accum v11 = read(p_var_mean_0_kept[e9]);
    const int64_t v12 = int64_t(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4);
    const accum v13 = f_rsqrt(((read(p_var_mean_1_kept[e9]) / accum(v12)) + accum(1e-05)));
    const accum v14 = to_accum(read(p_batch_norm_weight[e9]));
    const accum v15 = to_accum(read(p_batch_norm_bias[e9]));
    for (Index t15 = 0; t15 < 2; ++t15) {
      for (Index t16 = 0; t16 < 2; ++t16) {
        const accum v8 = to_accum(read(p_convolution_sum_0_kept[q2 * s0 * s53 + e5 * s0 * 2 + q2 * s0 * 2 + q2 * s53 * 2 + s0 * t15 + e5 * 4 + e7 * 2 + q2 * 4 + t15 * 2 + t16]));
        const int64_t v16 = int64_t(e5 * s0 * 2 + s0 * t15 + e5 * 4 + e7 * 2 + t15 * 2 + t16);
        fold1.step(((((v8 + v10) - v11) * v13) * v14) + v15, v16);
      }
    }
    p_max_pool2d_with_indices[i] = fold1.index();
  }
};

void run_map_1(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_max_pool2d_with_indices, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const map_1 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const accum*>(p_var_mean_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_kept), reinterpret_cast<int64_t*>(p_max_pool2d_with_indices), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_map(stage, reinterpret_cast<cudaStream_t>(stream)), "map_1");
}

// sum_1, view_10, sum_2, view_11
struct rows_1 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const scalar* __restrict__ p_d_output;
  const accum* __restrict__ p_var_mean_0_kept;
  const accum* __restrict__ p_var_mean_1_0_kept;
  const accum* __restrict__ p_var_mean_1_1_kept;
  const accum* __restrict__ p_var_mean_1_kept;
  scalar* __restrict__ p_view_10;
  scalar* __restrict__ p_view_11;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return 128; }
  __host__ __device__ int64_t length() const { return (s0 / 2) * (s53 / 2) * s77 + (s0 / 2) * s77 + (s53 / 2) * s77 + s77; }
  __host__ __device__ Index repeats() const { return 1; }
  struct Acc {
    Sum r0;  // sum_1
    Sum r1;  // sum_2
    __device__ __forceinline__ void join(const Acc& b) { r0.join(b.r0); r1.join(b.r1); }
  };
  template <class L>
  __device__ __forceinline__ void walk(const L& lanes, Index row, Index first, Index last, int64_t from,
                                       int64_t to, Acc& a) const {
    const Index q2 = s0 / 2;
    const Index q3 = s53 / 2;
    const accum v10 = to_accum(read(p_conv_transpose_bias[row]));
    const accum v11 = read(p_var_mean_0_kept[row]);
    const int64_t v12 = int64_t(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4);
    const accum v13 = (read(p_var_mean_1_kept[row]) / accum(v12)) + accum(1e-05);
    const accum v14 = f_rsqrt(v13);
    const accum v15 = to_accum(read(p_batch_norm_weight[row]));
    const accum v16 = to_accum(read(p_batch_norm_bias[row]));
    const Index q18 = row / 16;
    const accum v20 = accum(int64_t(q2 * q3 * 16 + q2 * 16 + q3 * 16 + 16));
    #pragma unroll 4
    for (int64_t jj = from + lanes.first(); jj < to; jj += lanes.step()) {
      const Index j = static_cast<Index>(jj);
      const Index q1 = j / (q2 * q3 + q2 + q3 + 1);
      const Index q5 = j / (q2 + 1);
      const Index e4 = q5 % (q3 + 1);
      const Index e6 = j % (q2 + 1);
      const accum v7 = to_accum(read(p_d_output[q1 * q2 * q3 * 128 + q2 * q3 * row + e4 * q2 + q1 * q2 * 128 + q1 * q3 * 128 + q2 * row + q3 * row + e4 + e6 + q1 * 128 + row]));
      a.r0.step(v7);
      WindowMax fold8;
      for (Index t15 = 0; t15 < 2; ++t15) {
        for (Index t16 = 0; t16 < 2; ++t16) {
          const accum v9 = to_accum(read(p_convolution_sum_0_kept[q1 * s0 * s53 * 128 + row * s0 * s53 + e4 * s0 * 2 + q1 * s0 * 256 + q1 * s53 * 256 + row * s0 * 2 + row * s53 * 2 + s0 * t15 + e4 * 4 + e6 * 2 + q1 * 512 + row * 4 + t15 * 2 + t16]));
          const int64_t v17 = int64_t(e4 * s0 * 2 + s0 * t15 + e4 * 4 + e6 * 2 + t15 * 2 + t16);
          fold8.step(((((v9 + v10) - v11) * v14) * v15) + v16, v17);
        }
      }
      const accum v19 = tanh(fold8.value()) - read(p_var_mean_1_0_kept[q1 * 8 + q18]);
      const accum v21 = (read(p_var_mean_1_1_kept[q1 * 8 + q18]) / v20) + accum(1e-05);
      a.r1.step((v7 * (v19 * f_rsqrt(v21))));
    }
  }
  template <class L>
  __device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {
    const accum sum_1_0 = a.r0.total();
    const accum sum_2_0 = a.r1.total();
    if (lanes.leads()) {
      p_view_10[row] = to_scalar(sum_1_0);
      p_view_11[row] = to_scalar(sum_2_0);
    }
  }
};

void run_rows_1(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_d_output, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_0_kept, uint64_t p_var_mean_1_1_kept, uint64_t p_var_mean_1_kept, uint64_t p_view_10, uint64_t p_view_11, int64_t s0, int64_t s53, int64_t s77, uint64_t parts, int splits, uint64_t stream) {
  const rows_1 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const scalar*>(p_d_output), reinterpret_cast<const accum*>(p_var_mean_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_1_kept), reinterpret_cast<const accum*>(p_var_mean_1_kept), reinterpret_cast<scalar*>(p_view_10), reinterpret_cast<scalar*>(p_view_11), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_split_rows<256>(stage, reinterpret_cast<void*>(parts), splits, reinterpret_cast<cudaStream_t>(stream)), "rows_1");
}

// mean, mean_1, view_8, mul_16, view_12, sub_4, convolution, var_mean, sub, add_1, rsqrt, mul, view, mul_1, view_1, add_2, max_pool2d_with_indices, tanh, view_6, var_mean_1, sub_3, add_5, rsqrt_1, mul_17, mul_19, sub_5, mul_20, view_13, mul_29, sub_6, mul_30
struct rows_2 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const scalar* __restrict__ p_d_output;
  const scalar* __restrict__ p_group_norm_weight;
  const accum* __restrict__ p_var_mean_0_kept;
  const accum* __restrict__ p_var_mean_1_0_kept;
  const accum* __restrict__ p_var_mean_1_1_kept;
  const accum* __restrict__ p_var_mean_1_kept;
  scalar* __restrict__ p_mul_30;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return s77 * 8; }
  struct Acc0 {
    Sum r0;  // mean
    Sum r1;  // mean_1
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); r1.join(b.r1); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    const Index e4 = row % 8;
    const int64_t v16 = int64_t(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4);
    const accum v17 = accum(v16);
    const accum v28 = read(p_var_mean_1_0_kept[row]);
    const accum v30 = read(p_var_mean_1_1_kept[row]);
    const int64_t v31 = int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16);
    const accum v32 = accum(v31);
    const accum v33 = v30 / v32;
    const accum v34 = v33 + accum(1e-05);
    const accum v35 = f_rsqrt(v34);
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v5 = to_accum(read(p_group_norm_weight[e4 * 16 + part]));
      const accum v11 = to_accum(read(p_conv_transpose_bias[e4 * 16 + part]));
      const accum v13 = read(p_var_mean_0_kept[e4 * 16 + part]);
      const accum v15 = read(p_var_mean_1_kept[e4 * 16 + part]);
      const accum v18 = v15 / v17;
      const accum v19 = v18 + accum(1e-05);
      const accum v20 = f_rsqrt(v19);
      const accum v22 = to_accum(read(p_batch_norm_weight[e4 * 16 + part]));
      const accum v24 = to_accum(read(p_batch_norm_bias[e4 * 16 + part]));
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v3 = to_accum(read(p_d_output[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        const accum v6 = v3 * v5;
        a0.r0.step(v6);
        WindowMax fold7;
        const Index q8 = rest / (q1 + 1);
        const Index e9 = rest % (q1 + 1);
        for (Index t15 = 0; t15 < 2; ++t15) {
          for (Index t16 = 0; t16 < 2; ++t16) {
            const accum v10 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q8 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t15 + e9 * 2 + q8 * 4 + part * 4 + row * 64 + t15 * 2 + t16]));
            const accum v12 = v10 + v11;
            const accum v14 = v12 - v13;
            const accum v21 = v14 * v20;
            const accum v23 = v21 * v22;
            const accum v25 = v23 + v24;
            const int64_t v26 = int64_t(q8 * s0 * 2 + s0 * t15 + e9 * 2 + q8 * 4 + t15 * 2 + t16);
            fold7.step(v25, v26);
          }
        }
        const accum v27 = tanh(fold7.value());
        const accum v29 = v27 - v28;
        const accum v36 = v29 * v35;
        a0.r1.step((v6 * v36));
      }
    }
    lanes.join(a0);
    const accum mean_0 = a0.r0.total();
    const accum mean_1_0 = a0.r1.total();
    const accum v40 = mean_0 / v32;
    const accum v62 = mean_1_0 / v32;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v38 = to_accum(read(p_group_norm_weight[e4 * 16 + part]));
      const accum v45 = to_accum(read(p_conv_transpose_bias[e4 * 16 + part]));
      const accum v47 = read(p_var_mean_0_kept[e4 * 16 + part]);
      const accum v49 = read(p_var_mean_1_kept[e4 * 16 + part]);
      const accum v50 = v49 / v17;
      const accum v51 = v50 + accum(1e-05);
      const accum v52 = f_rsqrt(v51);
      const accum v54 = to_accum(read(p_batch_norm_weight[e4 * 16 + part]));
      const accum v56 = to_accum(read(p_batch_norm_bias[e4 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v37 = to_accum(read(p_d_output[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        const accum v39 = v37 * v38;
        WindowMax fold41;
        const Index q42 = rest / (q1 + 1);
        const Index e43 = rest % (q1 + 1);
        for (Index t15 = 0; t15 < 2; ++t15) {
          for (Index t16 = 0; t16 < 2; ++t16) {
            const accum v44 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q42 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t15 + e43 * 2 + q42 * 4 + part * 4 + row * 64 + t15 * 2 + t16]));
            const accum v46 = v44 + v45;
            const accum v48 = v46 - v47;
            const accum v53 = v48 * v52;
            const accum v55 = v53 * v54;
            const accum v57 = v55 + v56;
            const int64_t v58 = int64_t(q42 * s0 * 2 + s0 * t15 + e43 * 2 + q42 * 4 + t15 * 2 + t16);
            fold41.step(v57, v58);
          }
        }
        const accum v59 = tanh(fold41.value());
        const accum v60 = v59 - v28;
        const accum v61 = v60 * v35;
        const accum v63 = (((v39 - v40) - (v61 * v62)) * v35) * (accum(1) - (v59 * v59));
        p_mul_30[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar(v63);
      }
    }
  }
};

void run_rows_2(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_d_output, uint64_t p_group_norm_weight, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_0_kept, uint64_t p_var_mean_1_1_kept, uint64_t p_var_mean_1_kept, uint64_t p_mul_30, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const rows_2 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const scalar*>(p_d_output), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<const accum*>(p_var_mean_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_1_kept), reinterpret_cast<const accum*>(p_var_mean_1_kept), reinterpret_cast<scalar*>(p_mul_30), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_rows<256>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_2");
}

// sum_3, view_14, sum_4, view_15, mean_2, mean_3
struct rows_3 {
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const int64_t* __restrict__ p_max_pool2d_with_indices;
  const scalar* __restrict__ p_mul_30;
  const accum* __restrict__ p_var_mean_0_kept;
  const accum* __restrict__ p_var_mean_1_kept;
  accum* __restrict__ p_mean_2_0_kept;
  accum* __restrict__ p_mean_3_0_kept;
  scalar* __restrict__ p_view_14;
  scalar* __restrict__ p_view_15;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return 128; }
  __host__ __device__ int64_t length() const { return s0 * s53 + s0 * 2 + s53 * 2 + 4; }
  __host__ __device__ Index repeats() const { return s77; }
  struct Acc {
    Sum r0;  // sum_3
    Sum r1;  // sum_4
    Sum r2;  // mean_2
    Sum r3;  // mean_3
    __device__ __forceinline__ void join(const Acc& b) { r0.join(b.r0); r1.join(b.r1); r2.join(b.r2); r3.join(b.r3); }
  };
  template <class L>
  __device__ __forceinline__ void walk(const L& lanes, Index row, Index first, Index last, int64_t from,
                                       int64_t to, Acc& a) const {
    const Index q3 = s53 / 2;
    const Index q6 = s0 / 2;
    const accum v10 = to_accum(read(p_conv_transpose_bias[row]));
    const accum v11 = read(p_var_mean_0_kept[row]);
    const int64_t v12 = int64_t(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4);
    const accum v13 = (read(p_var_mean_1_kept[row]) / accum(v12)) + accum(1e-05);
    const accum v14 = f_rsqrt(v13);
    const accum v16 = to_accum(read(p_batch_norm_weight[row]));
    for (Index part = first; part < last; ++part) {
      #pragma unroll 4
      for (int64_t jj = from + lanes.first(); jj < to; jj += lanes.step()) {
        const Index rest = static_cast<Index>(jj);
        const Index q2 = rest / (s0 * 2 + 4);
        const Index e5 = rest % (s0 + 2);
        const Index q4 = e5 / 2;
        accum v1 = accum(0);
        if (q2 < q3 + 1 && q4 < q6 + 1) {
          const int64_t v7 = read(p_max_pool2d_with_indices[q6 * q3 * part * 128 + q6 * q3 * row + q2 * q6 + q6 * part * 128 + q6 * row + q3 * part * 128 + q3 * row + q4 + q2 + part * 128 + row]);
          const accum v8 = to_accum(read(p_mul_30[q6 * q3 * part * 128 + q6 * q3 * row + q2 * q6 + q6 * part * 128 + q6 * row + q3 * part * 128 + q3 * row + q4 + q2 + part * 128 + row]));
          v1 = (v7 == int64_t(rest)) ? v8 : accum(0);
        }
        a.r0.step(v1);
        const accum v9 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 * 128 + row * s0 * s53 + part * s0 * 256 + part * s53 * 256 + row * s0 * 2 + row * s53 * 2 + part * 512 + rest + row * 4]));
        const accum v15 = ((v9 + v10) - v11) * v14;
        a.r1.step((v1 * v15));
        const accum v17 = v1 * v16;
        a.r2.step(v17);
        a.r3.step((v17 * v15));
      }
    }
  }
  template <class L>
  __device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {
    const accum sum_3_0 = a.r0.total();
    const accum sum_4_0 = a.r1.total();
    const accum mean_2_0 = a.r2.total();
    const accum mean_3_0 = a.r3.total();
    if (lanes.leads()) {
      p_view_14[row] = to_scalar(sum_3_0);
      p_view_15[row] = to_scalar(sum_4_0);
      p_mean_2_0_kept[row] = mean_2_0;
      p_mean_3_0_kept[row] = mean_3_0;
    }
  }
};

void run_rows_3(uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_max_pool2d_with_indices, uint64_t p_mul_30, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_mean_2_0_kept, uint64_t p_mean_3_0_kept, uint64_t p_view_14, uint64_t p_view_15, int64_t s0, int64_t s53, int64_t s77, uint64_t parts, int splits, uint64_t stream) {
  const rows_3 stage{reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const int64_t*>(p_max_pool2d_with_indices), reinterpret_cast<const scalar*>(p_mul_30), reinterpret_cast<const accum*>(p_var_mean_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_kept), reinterpret_cast<accum*>(p_mean_2_0_kept), reinterpret_cast<accum*>(p_mean_3_0_kept), reinterpret_cast<scalar*>(p_view_14), reinterpret_cast<scalar*>(p_view_15), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_split_rows<256>(stage, reinterpret_cast<void*>(parts), splits, reinterpret_cast<cudaStream_t>(stream)), "rows_3");
}

// max_pool2d_with_indices_backward, view, mul_32, mean_2, sub_8, convolution, var_mean, sub_7, add_1, rsqrt, mul_33, mean_3, mul_35, sub_9, mul_36
struct map_2 {
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const int64_t* __restrict__ p_max_pool2d_with_indices;
  const accum* __restrict__ p_mean_2_0_kept;
  const accum* __restrict__ p_mean_3_0_kept;
  const scalar* __restrict__ p_mul_30;
  const accum* __restrict__ p_var_mean_0_kept;
  const accum* __restrict__ p_var_mean_1_kept;
  scalar* __restrict__ p_mul_36;
  Index s0, s53, s77;

  static constexpr bool in_vectors = false;
  __host__ __device__ Index count() const { return s0 * s53 * s77 * 128 + s0 * s77 * 256 + s53 * s77 * 256 + s77 * 512; }
  __device__ __forceinline__ void operator()(Index i) const {
    const Index q4 = i / (s0 + 2);
    const Index e3 = q4 % (s53 + 2);
    const Index q2 = e3 / 2;
    const Index q5 = s53 / 2;
    const Index e7 = i % (s0 + 2);
    const Index q6 = e7 / 2;
    const Index q8 = s0 / 2;
    accum v1 = accum(0);
    if (q2 < q5 + 1 && q6 < q8 + 1) {
      const Index q9 = i / (s0 * s53 + s0 * 2 + s53 * 2 + 4);
      const int64_t v10 = read(p_max_pool2d_with_indices[q9 * q8 * q5 + q2 * q8 + q9 * q8 + q9 * q5 + q2 + q6 + q9]);
      const accum v11 = to_accum(read(p_mul_30[q9 * q8 * q5 + q2 * q8 + q9 * q8 + q9 * q5 + q2 + q6 + q9]));
      v1 = (v10 == int64_t(e3 * s0 + e3 * 2 + e7)) ? v11 : accum(0);
    }
    const Index q13 = i / (s0 * s53 + s0 * 2 + s53 * 2 + 4);
    const Index e12 = q13 % 128;
    const int64_t v14 = int64_t(s0 * s53 * s77 + s0 * s77 * 2 + s53 * s77 * 2 + s77 * 4);
    const accum v15 = accum(v14);
    const accum v16 = (v1 * to_accum(read(p_batch_norm_weight[e12]))) - (read(p_mean_2_0_kept[e12]) / v15);
    const accum v17 = to_accum(read(p_convolution_sum_0_kept[i])) + to_accum(read(p_conv_transpose_bias[e12]));
    const accum v18 = f_rsqrt(((read(p_var_mean_1_kept[e12]) / v15) + accum(1e-05)));
    const accum v19 = ((v17 - read(p_var_mean_0_kept[e12])) * v18) * (read(p_mean_3_0_kept[e12]) / v15);
    p_mul_36[i] = to_scalar((v16 - v19) * v18);
  }
};

void run_map_2(uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_max_pool2d_with_indices, uint64_t p_mean_2_0_kept, uint64_t p_mean_3_0_kept, uint64_t p_mul_30, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_mul_36, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const map_2 stage{reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const int64_t*>(p_max_pool2d_with_indices), reinterpret_cast<const accum*>(p_mean_2_0_kept), reinterpret_cast<const accum*>(p_mean_3_0_kept), reinterpret_cast<const scalar*>(p_mul_30), reinterpret_cast<const accum*>(p_var_mean_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_kept), reinterpret_cast<scalar*>(p_mul_36), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_map(stage, reinterpret_cast<cudaStream_t>(stream)), "map_2");
}

// convolution_backward
struct contract_1 {
  const scalar* __restrict__ p_conv_transpose_weight;
  const scalar* __restrict__ p_mul_36;
  scalar* __restrict__ p_convolution_backward_x_sum;
  Index convolution_backward_x_sum_box, s0, s53, s77;

  static constexpr bool a_along_k = true, b_along_k = false, statistics = false;
  static constexpr int group = 0;
  static constexpr bool boxed = true;
  __host__ __device__ Index batches() const { return s77; }
  __host__ __device__ Index rows() const { return 64; }
  __host__ __device__ Index cols() const { return s0 * s53; }
  __host__ __device__ Index depth() const { return 3200; }
  struct ARow { Index m73; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    return to_accum(read(p_conv_transpose_weight[k + at.m73 * 3200]));
  }
  struct BCol { Index c0, c1, c2, c3, c4; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    const Index q1 = n / s0;
    const Index e2 = n % s0;
    return {q1 - 1, s53 + 2, e2 - 1, s0 + 2, s0 * s53 * z * 128 + s0 * z * 256 + s53 * z * 256 + q1 * 2 + n + z * 512 - s0 - 3};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    const Index q3 = k / 5;
    const Index e2 = q3 % 5;
    const Index e4 = k % 5;
    accum v1 = accum(0);
    if (inside(at.c0 + e2, at.c1) && inside(at.c2 + e4, at.c3)) {
      const Index q5 = k / 25;
      const accum v6 = to_accum(read(p_mul_36[at.c4 + q5 * s0 * s53 + e2 * s0 + q5 * s0 * 2 + q5 * s53 * 2 + e2 * 2 + e4 + q5 * 4]));
      v1 = v6;
    }
    return v1;
  }
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  using Box = Dims<1, 1, 3, 32>;
  #elif CRUCIBLE_HOPPER
  using Box = Dims<1, 1, 4, 32>;
  #else
  using Box = Dims<1, 1, 8, 32>;
  #endif
  using Kernel = Dims<1, 1, 5, 5>;
  using Stride = Dims<1, 1, 1, 1>;
  using Dilation = Dims<1, 1, 1, 1>;
  using Shift = Dims<0, 0, -1, -1>;
  static constexpr bool flipped = false;
  __host__ __device__ Index extent(int d) const { return d == 0 ? 1 : d == 1 ? 1 : d == 2 ? s53 : s0; }
  __host__ __device__ Index groups() const { return 1; }
  static constexpr Index CHANNELS = 128;
  __host__ __device__ Index channels() const { return CHANNELS; }
  struct BAt { Index c0; bool inside; };
  __device__ __forceinline__ BAt b_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y2 = nearest(i2, s53 + 2);
    const Index y3 = nearest(i3, s0 + 2);
    return {s0 * s53 * z * 128 + y2 * s0 + s0 * z * 256 + s53 * z * 256 + y2 * 2 + y3 + z * 512, inside(i0, 1) && inside(i1, 1) && inside(i2, s53 + 2) && inside(i3, s0 + 2)};
  }
  __device__ __forceinline__ accum b_in(const BAt& at, Index channel) const {
    const accum v1 = to_accum(read(p_mul_36[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4]));
    return v1;
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BAt& at, Index channel) const {
    const accum v1 = to_accum(read(p_mul_36[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4]));
    return &p_mul_36[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4];
  }
  template <class To>
  __device__ __forceinline__ accum finish_to(Index z, Index m, Index n, int split, accum value,
                                             To& to) const {
    to(&p_convolution_backward_x_sum[m * s0 * s53 + s0 * s53 * z * 64 + n], to_scalar(value));
    return value;
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    StoreOne to{there};
    return finish_to(z, m, n, split, value, to);
  }
  static constexpr bool in_pairs = true;  // columns are neighbours in memory
  static constexpr bool reads = false;  // finish reads what depends on the column
  __device__ __forceinline__ uintptr_t stored(Index z, Index m, Index n) const {
    return reinterpret_cast<uintptr_t>(&p_convolution_backward_x_sum[m * s0 * s53 + s0 * s53 * z * 64 + n]) / sizeof(p_convolution_backward_x_sum[0]);
  }
};

void run_contract_1(uint64_t p_conv_transpose_weight, uint64_t p_mul_36, uint64_t p_convolution_backward_x_sum, int64_t convolution_backward_x_sum_box, int64_t s0, int64_t s53, int64_t s77, uint64_t packed, uint64_t stream) {
  const contract_1 stage{reinterpret_cast<const scalar*>(p_conv_transpose_weight), reinterpret_cast<const scalar*>(p_mul_36), reinterpret_cast<scalar*>(p_convolution_backward_x_sum), static_cast<Index>(convolution_backward_x_sum_box), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  #if CRUCIBLE_NARROWER
  if (convolution_backward_x_sum_box == 1) return check(launch_warpgroups<Warpgroups<2, 2, 0, 1, 64, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 8, 16>, Warpgroups<2, 2, 0, 1, 64, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  if (convolution_backward_x_sum_box == 2) return check(launch_warpgroups<Warpgroups<4, 2, 0, 1, 64, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 8, 8>, Warpgroups<2, 2, 0, 1, 64, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #endif
  check(launch_warpgroups<Warpgroups<2, 2, 0, 1, 64, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  #if CRUCIBLE_NARROWER
  if (convolution_backward_x_sum_box == 1) return check(launch_warpgroups<Warpgroups<2, 2, 0, 1, 64, Operands::Native>, void>(in_boxes<Dims<1, 1, 8, 16>, Warpgroups<2, 2, 0, 1, 64, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  if (convolution_backward_x_sum_box == 2) return check(launch_warpgroups<Warpgroups<4, 2, 0, 1, 64, Operands::Native>, void>(in_boxes<Dims<1, 1, 8, 8>, Warpgroups<2, 2, 0, 1, 64, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #endif
  check(launch_warpgroups<Warpgroups<2, 2, 0, 1, 64, Operands::Native>, void>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  check(launch_split<Split<4, 3, 9, 3, 16>, Mma<64, 128, 16, 32, 32, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_CONV == 1
  check(launch_window<Window<64, 8, Grade::Tf32>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_CONV == 2
  check(launch_contract<Mma<64, 256, 16, 32, 64, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #elif CRUCIBLE_CONV == 3
  check(launch_window<Window<64, 8, Grade::Native>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #else
  check(launch_contract<Simt<32, 256, 8, 4, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_1");
  #endif
}

// convolution_backward
struct contract_2 {
  const scalar* __restrict__ p_mul_36;
  const scalar* __restrict__ p_x;
  accum* __restrict__ p_convolution_backward_w_sum_parts;
  Index convolution_backward_w_sum_splits, s0, s53, s77;

  static constexpr bool a_along_k = true, b_along_k = true, statistics = false;
  static constexpr int group = 0;
  static constexpr bool boxed = false;
  __host__ __device__ Index batches() const { return 1; }
  __host__ __device__ Index rows() const { return 64; }
  __host__ __device__ Index cols() const { return 3200; }
  __host__ __device__ Index depth() const { return s0 * s53 * s77; }
  struct ARow { Index c0, c1; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m * s0 * s53, s0 * s53};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    const Index q1 = k / at.c1;
    const Index q3 = k / s0;
    const Index e2 = q3 % s53;
    const Index e4 = k % s0;
    const accum v5 = to_accum(read(p_x[at.c0 + q1 * s0 * s53 * 64 + e2 * s0 + e4]));
    return v5;
  }
  struct BCol { Index c0, c1, c2, c3, c4, c5; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    const Index q2 = n / 5;
    const Index e1 = q2 % 5;
    const Index e3 = n % 5;
    const Index q4 = n / 25;
    return {e1 - 1, s53 + 2, e3 - 1, s0 + 2, q4 * s0 * s53 + e1 * s0 + q4 * s0 * 2 + q4 * s53 * 2 + e1 * 2 + e3 + q4 * 4 - s0 - 3, s0 * s53};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    const Index q3 = k / s0;
    const Index e2 = q3 % s53;
    const Index e4 = k % s0;
    accum v1 = accum(0);
    if (inside(at.c0 + e2, at.c1) && inside(at.c2 + e4, at.c3)) {
      const Index q5 = k / at.c5;
      const accum v6 = to_accum(read(p_mul_36[at.c4 + q5 * s0 * s53 * 128 + e2 * s0 + q5 * s0 * 256 + q5 * s53 * 256 + e2 * 2 + e4 + q5 * 512]));
      v1 = v6;
    }
    return v1;
  }
  using Box = Dims<1, 1, 4, 32>;
  using Kernel = Dims<1, 1, 5, 5>;
  using Stride = Dims<1, 1, 1, 1>;
  using Dilation = Dims<1, 1, 1, 1>;
  using Shift = Dims<0, 0, -1, -1>;
  static constexpr bool flipped = false;
  __host__ __device__ Index extent(int d) const { return d == 0 ? s77 : d == 1 ? 1 : d == 2 ? s53 : s0; }
  __host__ __device__ Index groups() const { return 1; }
  static constexpr Index CHANNELS = 128;
  __host__ __device__ Index channels() const { return CHANNELS; }
  struct BAt { Index c0; bool inside; };
  __device__ __forceinline__ BAt b_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y0 = nearest(i0, s77);
    const Index y2 = nearest(i2, s53 + 2);
    const Index y3 = nearest(i3, s0 + 2);
    return {y0 * s0 * s53 * 128 + y0 * s0 * 256 + y0 * s53 * 256 + y2 * s0 + y0 * 512 + y2 * 2 + y3, inside(i0, s77) && inside(i1, 1) && inside(i2, s53 + 2) && inside(i3, s0 + 2)};
  }
  __device__ __forceinline__ accum b_in(const BAt& at, Index channel) const {
    const accum v1 = to_accum(read(p_mul_36[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4]));
    return v1;
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BAt& at, Index channel) const {
    const accum v1 = to_accum(read(p_mul_36[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4]));
    return &p_mul_36[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4];
  }
  struct AAt { Index c0; bool inside; };
  __device__ __forceinline__ AAt a_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y0 = nearest(i0, s77);
    const Index y2 = nearest(i2, s53);
    const Index y3 = nearest(i3, s0);
    return {s0 * s53 * y0 * 64 + s0 * y2 + y3, inside(i0, s77) && inside(i1, 1) && inside(i2, s53) && inside(i3, s0)};
  }
  __device__ __forceinline__ accum a_in(const AAt& at, Index channel) const {
    return to_accum(read(p_x[at.c0 + channel * s0 * s53]));
  }
  static constexpr bool a_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* a_from(const AAt& at, Index channel) const {
    return &p_x[at.c0 + channel * s0 * s53];
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    if (there) p_convolution_backward_w_sum_parts[m * 3200 + n + split * 204800] = value;
    return value;
  }
};

void run_contract_2(uint64_t p_mul_36, uint64_t p_x, uint64_t p_convolution_backward_w_sum_parts, int64_t convolution_backward_w_sum_splits, int64_t s0, int64_t s53, int64_t s77, uint64_t packed, uint64_t stream) {
  const contract_2 stage{reinterpret_cast<const scalar*>(p_mul_36), reinterpret_cast<const scalar*>(p_x), reinterpret_cast<accum*>(p_convolution_backward_w_sum_parts), static_cast<Index>(convolution_backward_w_sum_splits), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  check(launch_gradient_groups<GradientGroups<3, 2, 3, 64, 4, Dims<3, 1, 2, 32>, Operands::Half>, Gradient<2, 1, 3, 9, 2, 1, 1>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  check(launch_gradient_groups<GradientGroups<3, 2, 3, 64, 4, Dims<3, 1, 2, 32>, Operands::Native>, Gradient<2, 1, 3, 9, 2, 1, 1>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_CONV == 1
  check(launch_gradient<Gradient<2, 1, 3, 9, 2, 1, 1>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_CONV == 2
  check(launch_contract<Mma<64, 64, 16, 32, 32, Grade::Fp32>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #elif CRUCIBLE_CONV == 3
  check(launch_gradient<Gradient<2, 1, 3, 9, 2, 1, 1>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #else
  check(launch_contract<Simt<64, 64, 16, 4, 4>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<cudaStream_t>(stream)), "contract_2");
  #endif
}

int64_t packed_contract_2(int64_t convolution_backward_w_sum_splits, int64_t s0, int64_t s53, int64_t s77) {
  const contract_2 stage{nullptr, nullptr, nullptr, static_cast<Index>(convolution_backward_w_sum_splits), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  return gradient_bytes<GradientGroups<3, 2, 3, 64, 4, Dims<3, 1, 2, 32>, Operands::Half>>(stage, static_cast<int>(convolution_backward_w_sum_splits));
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  return gradient_bytes<GradientGroups<3, 2, 3, 64, 4, Dims<3, 1, 2, 32>, Operands::Native>>(stage, static_cast<int>(convolution_backward_w_sum_splits));
  #else
  static_cast<void>(stage);
  return 0;
  #endif
}

// convolution_backward
struct rows_4 {
  const accum* __restrict__ p_convolution_backward_w_sum_parts;
  scalar* __restrict__ p_convolution_backward_w_sum;
  Index convolution_backward_w_sum_splits;

  __host__ __device__ Index rows() const { return 204800; }
  struct Acc0 {
    Sum r0;  // convolution_backward
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    #pragma unroll 4
    for (int64_t jj = lanes.first(); jj < convolution_backward_w_sum_splits; jj += lanes.step()) {
      const Index j = static_cast<Index>(jj);
      a0.r0.step(read(p_convolution_backward_w_sum_parts[j * 204800 + row]));
    }
    const accum convolution_backward_w_sum_total_0 = a0.r0.total();
    p_convolution_backward_w_sum[row] = to_scalar(convolution_backward_w_sum_total_0);
  }
};

void run_rows_4(uint64_t p_convolution_backward_w_sum_parts, uint64_t p_convolution_backward_w_sum, int64_t convolution_backward_w_sum_splits, uint64_t stream) {
  const rows_4 stage{reinterpret_cast<const accum*>(p_convolution_backward_w_sum_parts), reinterpret_cast<scalar*>(p_convolution_backward_w_sum), static_cast<Index>(convolution_backward_w_sum_splits)};
  check(launch_rows<1>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_4");
}

// convolution_backward
struct rows_5 {
  const scalar* __restrict__ p_mul_36;
  scalar* __restrict__ p_convolution_backward_0;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return 128; }
  __host__ __device__ int64_t length() const { return s0 * s53 + s0 * 2 + s53 * 2 + 4; }
  __host__ __device__ Index repeats() const { return s77; }
  struct Acc {
    Sum r0;  // convolution_backward
    __device__ __forceinline__ void join(const Acc& b) { r0.join(b.r0); }
  };
  template <class L>
  __device__ __forceinline__ void walk(const L& lanes, Index row, Index first, Index last, int64_t from,
                                       int64_t to, Acc& a) const {
    for (Index part = first; part < last; ++part) {
      #pragma unroll 4
      for (int64_t jj = from + lanes.first(); jj < to; jj += lanes.step()) {
        const Index rest = static_cast<Index>(jj);
        const accum v1 = to_accum(read(p_mul_36[part * s0 * s53 * 128 + row * s0 * s53 + part * s0 * 256 + part * s53 * 256 + row * s0 * 2 + row * s53 * 2 + part * 512 + rest + row * 4]));
        a.r0.step(v1);
      }
    }
  }
  template <class L>
  __device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {
    const accum convolution_backward_0 = a.r0.total();
    if (lanes.leads()) {
      p_convolution_backward_0[row] = to_scalar(convolution_backward_0);
    }
  }
};

void run_rows_5(uint64_t p_mul_36, uint64_t p_convolution_backward_0, int64_t s0, int64_t s53, int64_t s77, uint64_t parts, int splits, uint64_t stream) {
  const rows_5 stage{reinterpret_cast<const scalar*>(p_mul_36), reinterpret_cast<scalar*>(p_convolution_backward_0), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_split_rows<256>(stage, reinterpret_cast<void*>(parts), splits, reinterpret_cast<cudaStream_t>(stream)), "rows_5");
}

// convolution, view, sub, add, rsqrt, mul, view_1, mul_1, view_2, add_1, max_pool2d_with_indices
struct map_3 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_running_mean;
  const scalar* __restrict__ p_batch_norm_running_var;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  int64_t* __restrict__ p_max_pool2d_with_indices;
  Index s0, s53, s77;

  static constexpr bool in_vectors = false;
  __host__ __device__ Index count() const { return (s0 / 2) * (s53 / 2) * s77 * 128 + (s0 / 2) * s77 * 128 + (s53 / 2) * s77 * 128 + s77 * 128; }
  __device__ __forceinline__ void operator()(Index i) const {
    WindowMax fold1;
    const Index q3 = s0 / 2;
    const Index q4 = s53 / 2;
    const Index q2 = i / (q3 * q4 + q3 + q4 + 1);
    const Index q6 = i / (q3 + 1);
    const Index e5 = q6 % (q4 + 1);
    const Index e7 = i % (q3 + 1);
    const Index e9 = q2 % 128;
    const accum v10 = to_accum(read(p_conv_transpose_bias[e9]));
    const accum v11 = to_accum(read(p_batch_norm_running_mean[e9]));
    const accum v12 = to_accum(read(p_batch_norm_running_var[e9])) + accum(1e-05);
    const accum v13 = to_accum(read(p_batch_norm_weight[e9])) * f_rsqrt(v12);
    const accum v14 = to_accum(read(p_batch_norm_bias[e9]));
    for (Index t11 = 0; t11 < 2; ++t11) {
      for (Index t12 = 0; t12 < 2; ++t12) {
        const accum v8 = to_accum(read(p_convolution_sum_0_kept[q2 * s0 * s53 + e5 * s0 * 2 + q2 * s0 * 2 + q2 * s53 * 2 + s0 * t11 + e5 * 4 + e7 * 2 + q2 * 4 + t11 * 2 + t12]));
        const int64_t v15 = int64_t(e5 * s0 * 2 + s0 * t11 + e5 * 4 + e7 * 2 + t11 * 2 + t12);
        fold1.step((((v8 + v10) - v11) * v13) + v14, v15);
      }
    }
    p_max_pool2d_with_indices[i] = fold1.index();
  }
};

void run_map_3(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_max_pool2d_with_indices, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const map_3 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_running_mean), reinterpret_cast<const scalar*>(p_batch_norm_running_var), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<int64_t*>(p_max_pool2d_with_indices), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_map(stage, reinterpret_cast<cudaStream_t>(stream)), "map_3");
}

// sum_1, view_7, sum_2, view_8
struct rows_6 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_running_mean;
  const scalar* __restrict__ p_batch_norm_running_var;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const scalar* __restrict__ p_d_output;
  const accum* __restrict__ p_var_mean_0_kept;
  const accum* __restrict__ p_var_mean_1_kept;
  scalar* __restrict__ p_view_7;
  scalar* __restrict__ p_view_8;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return 128; }
  __host__ __device__ int64_t length() const { return (s0 / 2) * (s53 / 2) * s77 + (s0 / 2) * s77 + (s53 / 2) * s77 + s77; }
  __host__ __device__ Index repeats() const { return 1; }
  struct Acc {
    Sum r0;  // sum_1
    Sum r1;  // sum_2
    __device__ __forceinline__ void join(const Acc& b) { r0.join(b.r0); r1.join(b.r1); }
  };
  template <class L>
  __device__ __forceinline__ void walk(const L& lanes, Index row, Index first, Index last, int64_t from,
                                       int64_t to, Acc& a) const {
    const Index q2 = s0 / 2;
    const Index q3 = s53 / 2;
    const accum v10 = to_accum(read(p_conv_transpose_bias[row]));
    const accum v11 = to_accum(read(p_batch_norm_running_mean[row]));
    const accum v12 = to_accum(read(p_batch_norm_running_var[row])) + accum(1e-05);
    const accum v13 = to_accum(read(p_batch_norm_weight[row])) * f_rsqrt(v12);
    const accum v14 = to_accum(read(p_batch_norm_bias[row]));
    const Index q16 = row / 16;
    const accum v18 = accum(int64_t(q2 * q3 * 16 + q2 * 16 + q3 * 16 + 16));
    #pragma unroll 4
    for (int64_t jj = from + lanes.first(); jj < to; jj += lanes.step()) {
      const Index j = static_cast<Index>(jj);
      const Index q1 = j / (q2 * q3 + q2 + q3 + 1);
      const Index q5 = j / (q2 + 1);
      const Index e4 = q5 % (q3 + 1);
      const Index e6 = j % (q2 + 1);
      const accum v7 = to_accum(read(p_d_output[q1 * q2 * q3 * 128 + q2 * q3 * row + e4 * q2 + q1 * q2 * 128 + q1 * q3 * 128 + q2 * row + q3 * row + e4 + e6 + q1 * 128 + row]));
      a.r0.step(v7);
      WindowMax fold8;
      for (Index t11 = 0; t11 < 2; ++t11) {
        for (Index t12 = 0; t12 < 2; ++t12) {
          const accum v9 = to_accum(read(p_convolution_sum_0_kept[q1 * s0 * s53 * 128 + row * s0 * s53 + e4 * s0 * 2 + q1 * s0 * 256 + q1 * s53 * 256 + row * s0 * 2 + row * s53 * 2 + s0 * t11 + e4 * 4 + e6 * 2 + q1 * 512 + row * 4 + t11 * 2 + t12]));
          const int64_t v15 = int64_t(e4 * s0 * 2 + s0 * t11 + e4 * 4 + e6 * 2 + t11 * 2 + t12);
          fold8.step((((v9 + v10) - v11) * v13) + v14, v15);
        }
      }
      const accum v17 = tanh(fold8.value()) - read(p_var_mean_0_kept[q1 * 8 + q16]);
      const accum v19 = (read(p_var_mean_1_kept[q1 * 8 + q16]) / v18) + accum(1e-05);
      a.r1.step((v7 * (v17 * f_rsqrt(v19))));
    }
  }
  template <class L>
  __device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {
    const accum sum_1_0 = a.r0.total();
    const accum sum_2_0 = a.r1.total();
    if (lanes.leads()) {
      p_view_7[row] = to_scalar(sum_1_0);
      p_view_8[row] = to_scalar(sum_2_0);
    }
  }
};

void run_rows_6(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_d_output, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_view_7, uint64_t p_view_8, int64_t s0, int64_t s53, int64_t s77, uint64_t parts, int splits, uint64_t stream) {
  const rows_6 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_running_mean), reinterpret_cast<const scalar*>(p_batch_norm_running_var), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const scalar*>(p_d_output), reinterpret_cast<const accum*>(p_var_mean_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_kept), reinterpret_cast<scalar*>(p_view_7), reinterpret_cast<scalar*>(p_view_8), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_split_rows<256>(stage, reinterpret_cast<void*>(parts), splits, reinterpret_cast<cudaStream_t>(stream)), "rows_6");
}

// mean, mean_1, view_5, mul_11, view_9, sub_3, convolution, view, sub, add, rsqrt, mul, view_1, mul_1, view_2, add_1, max_pool2d_with_indices, tanh, view_3, var_mean, sub_2, add_2, rsqrt_1, mul_12, mul_14, sub_4, mul_15, view_10, mul_24, sub_5, mul_25
struct rows_7 {
  const scalar* __restrict__ p_batch_norm_bias;
  const scalar* __restrict__ p_batch_norm_running_mean;
  const scalar* __restrict__ p_batch_norm_running_var;
  const scalar* __restrict__ p_batch_norm_weight;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const scalar* __restrict__ p_d_output;
  const scalar* __restrict__ p_group_norm_weight;
  const accum* __restrict__ p_var_mean_0_kept;
  const accum* __restrict__ p_var_mean_1_kept;
  scalar* __restrict__ p_mul_25;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return s77 * 8; }
  struct Acc0 {
    Sum r0;  // mean
    Sum r1;  // mean_1
    __device__ __forceinline__ void join(const Acc0& b) { r0.join(b.r0); r1.join(b.r1); }
  };
  template <class L>
  __device__ __forceinline__ void operator()(const L& lanes, Index row) const {
    Acc0 a0;
    const Index q1 = s0 / 2;
    const Index q2 = s53 / 2;
    const Index e4 = row % 8;
    const accum v25 = read(p_var_mean_0_kept[row]);
    const accum v27 = read(p_var_mean_1_kept[row]);
    const int64_t v28 = int64_t(q1 * q2 * 16 + q1 * 16 + q2 * 16 + 16);
    const accum v29 = accum(v28);
    const accum v30 = v27 / v29;
    const accum v31 = v30 + accum(1e-05);
    const accum v32 = f_rsqrt(v31);
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v5 = to_accum(read(p_group_norm_weight[e4 * 16 + part]));
      const accum v11 = to_accum(read(p_conv_transpose_bias[e4 * 16 + part]));
      const accum v13 = to_accum(read(p_batch_norm_running_mean[e4 * 16 + part]));
      const accum v15 = to_accum(read(p_batch_norm_weight[e4 * 16 + part]));
      const accum v16 = to_accum(read(p_batch_norm_running_var[e4 * 16 + part]));
      const accum v17 = v16 + accum(1e-05);
      const accum v18 = f_rsqrt(v17);
      const accum v19 = v15 * v18;
      const accum v21 = to_accum(read(p_batch_norm_bias[e4 * 16 + part]));
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v3 = to_accum(read(p_d_output[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        const accum v6 = v3 * v5;
        a0.r0.step(v6);
        WindowMax fold7;
        const Index q8 = rest / (q1 + 1);
        const Index e9 = rest % (q1 + 1);
        for (Index t11 = 0; t11 < 2; ++t11) {
          for (Index t12 = 0; t12 < 2; ++t12) {
            const accum v10 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q8 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t11 + e9 * 2 + q8 * 4 + part * 4 + row * 64 + t11 * 2 + t12]));
            const accum v12 = v10 + v11;
            const accum v14 = v12 - v13;
            const accum v20 = v14 * v19;
            const accum v22 = v20 + v21;
            const int64_t v23 = int64_t(q8 * s0 * 2 + s0 * t11 + e9 * 2 + q8 * 4 + t11 * 2 + t12);
            fold7.step(v22, v23);
          }
        }
        const accum v24 = tanh(fold7.value());
        const accum v26 = v24 - v25;
        const accum v33 = v26 * v32;
        a0.r1.step((v6 * v33));
      }
    }
    lanes.join(a0);
    const accum mean_0 = a0.r0.total();
    const accum mean_1_0 = a0.r1.total();
    const accum v37 = mean_0 / v29;
    const accum v58 = mean_1_0 / v29;
    for (Index part = lanes.warp(); part < 16; part += lanes.WARPS) {
      const accum v35 = to_accum(read(p_group_norm_weight[e4 * 16 + part]));
      const accum v42 = to_accum(read(p_conv_transpose_bias[e4 * 16 + part]));
      const accum v44 = to_accum(read(p_batch_norm_running_mean[e4 * 16 + part]));
      const accum v46 = to_accum(read(p_batch_norm_weight[e4 * 16 + part]));
      const accum v47 = to_accum(read(p_batch_norm_running_var[e4 * 16 + part]));
      const accum v48 = v47 + accum(1e-05);
      const accum v49 = f_rsqrt(v48);
      const accum v50 = v46 * v49;
      const accum v52 = to_accum(read(p_batch_norm_bias[e4 * 16 + part]));
      #pragma unroll 4
      for (int64_t jj = lanes.lane(); jj < q1 * q2 + q1 + q2 + 1; jj += lanes.WIDTH) {
        const Index rest = static_cast<Index>(jj);
        const accum v34 = to_accum(read(p_d_output[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16]));
        const accum v36 = v34 * v35;
        WindowMax fold38;
        const Index q39 = rest / (q1 + 1);
        const Index e40 = rest % (q1 + 1);
        for (Index t11 = 0; t11 < 2; ++t11) {
          for (Index t12 = 0; t12 < 2; ++t12) {
            const accum v41 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 + row * s0 * s53 * 16 + q39 * s0 * 2 + part * s0 * 2 + part * s53 * 2 + row * s0 * 32 + row * s53 * 32 + s0 * t11 + e40 * 2 + q39 * 4 + part * 4 + row * 64 + t11 * 2 + t12]));
            const accum v43 = v41 + v42;
            const accum v45 = v43 - v44;
            const accum v51 = v45 * v50;
            const accum v53 = v51 + v52;
            const int64_t v54 = int64_t(q39 * s0 * 2 + s0 * t11 + e40 * 2 + q39 * 4 + t11 * 2 + t12);
            fold38.step(v53, v54);
          }
        }
        const accum v55 = tanh(fold38.value());
        const accum v56 = v55 - v25;
        const accum v57 = v56 * v32;
        const accum v59 = (((v36 - v37) - (v57 * v58)) * v32) * (accum(1) - (v55 * v55));
        p_mul_25[q1 * q2 * part + q1 * q2 * row * 16 + q1 * part + q1 * row * 16 + q2 * part + q2 * row * 16 + part + rest + row * 16] = to_scalar(v59);
      }
    }
  }
};

void run_rows_7(uint64_t p_batch_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_d_output, uint64_t p_group_norm_weight, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_mul_25, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const rows_7 stage{reinterpret_cast<const scalar*>(p_batch_norm_bias), reinterpret_cast<const scalar*>(p_batch_norm_running_mean), reinterpret_cast<const scalar*>(p_batch_norm_running_var), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const scalar*>(p_d_output), reinterpret_cast<const scalar*>(p_group_norm_weight), reinterpret_cast<const accum*>(p_var_mean_0_kept), reinterpret_cast<const accum*>(p_var_mean_1_kept), reinterpret_cast<scalar*>(p_mul_25), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_rows<256>(stage, reinterpret_cast<cudaStream_t>(stream)), "rows_7");
}

// max_pool2d_with_indices_backward, add, rsqrt, mul, view_1, mul_27
struct map_4 {
  const scalar* __restrict__ p_batch_norm_running_var;
  const scalar* __restrict__ p_batch_norm_weight;
  const int64_t* __restrict__ p_max_pool2d_with_indices;
  const scalar* __restrict__ p_mul_25;
  scalar* __restrict__ p_mul_27;
  Index s0, s53, s77;

  static constexpr bool in_vectors = false;
  __host__ __device__ Index count() const { return s0 * s53 * s77 * 128 + s0 * s77 * 256 + s53 * s77 * 256 + s77 * 512; }
  __device__ __forceinline__ void operator()(Index i) const {
    const Index q4 = i / (s0 + 2);
    const Index e3 = q4 % (s53 + 2);
    const Index q2 = e3 / 2;
    const Index q5 = s53 / 2;
    const Index e7 = i % (s0 + 2);
    const Index q6 = e7 / 2;
    const Index q8 = s0 / 2;
    accum v1 = accum(0);
    if (q2 < q5 + 1 && q6 < q8 + 1) {
      const Index q9 = i / (s0 * s53 + s0 * 2 + s53 * 2 + 4);
      const int64_t v10 = read(p_max_pool2d_with_indices[q9 * q8 * q5 + q2 * q8 + q9 * q8 + q9 * q5 + q2 + q6 + q9]);
      const accum v11 = to_accum(read(p_mul_25[q9 * q8 * q5 + q2 * q8 + q9 * q8 + q9 * q5 + q2 + q6 + q9]));
      v1 = (v10 == int64_t(e3 * s0 + e3 * 2 + e7)) ? v11 : accum(0);
    }
    const Index q13 = i / (s0 * s53 + s0 * 2 + s53 * 2 + 4);
    const Index e12 = q13 % 128;
    const accum v14 = to_accum(read(p_batch_norm_running_var[e12])) + accum(1e-05);
    const accum v15 = v1 * (to_accum(read(p_batch_norm_weight[e12])) * f_rsqrt(v14));
    p_mul_27[i] = to_scalar(v15);
  }
};

void run_map_4(uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_weight, uint64_t p_max_pool2d_with_indices, uint64_t p_mul_25, uint64_t p_mul_27, int64_t s0, int64_t s53, int64_t s77, uint64_t stream) {
  const map_4 stage{reinterpret_cast<const scalar*>(p_batch_norm_running_var), reinterpret_cast<const scalar*>(p_batch_norm_weight), reinterpret_cast<const int64_t*>(p_max_pool2d_with_indices), reinterpret_cast<const scalar*>(p_mul_25), reinterpret_cast<scalar*>(p_mul_27), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_map(stage, reinterpret_cast<cudaStream_t>(stream)), "map_4");
}

// sum_3, view_11, sum_4, view_12, add, rsqrt, mul_28, convolution_backward
struct rows_8 {
  const scalar* __restrict__ p_batch_norm_running_mean;
  const scalar* __restrict__ p_batch_norm_running_var;
  const scalar* __restrict__ p_conv_transpose_bias;
  const scalar* __restrict__ p_convolution_sum_0_kept;
  const int64_t* __restrict__ p_max_pool2d_with_indices;
  const scalar* __restrict__ p_mul_25;
  const scalar* __restrict__ p_mul_27;
  scalar* __restrict__ p_convolution_backward_0;
  scalar* __restrict__ p_mul_28;
  scalar* __restrict__ p_view_11;
  Index s0, s53, s77;

  __host__ __device__ Index rows() const { return 128; }
  __host__ __device__ int64_t length() const { return s0 * s53 + s0 * 2 + s53 * 2 + 4; }
  __host__ __device__ Index repeats() const { return s77; }
  struct Acc {
    Sum r0;  // sum_3
    Sum r1;  // sum_4
    Sum r2;  // convolution_backward
    __device__ __forceinline__ void join(const Acc& b) { r0.join(b.r0); r1.join(b.r1); r2.join(b.r2); }
  };
  template <class L>
  __device__ __forceinline__ void walk(const L& lanes, Index row, Index first, Index last, int64_t from,
                                       int64_t to, Acc& a) const {
    const Index q3 = s53 / 2;
    const Index q6 = s0 / 2;
    const accum v10 = to_accum(read(p_conv_transpose_bias[row]));
    const accum v11 = to_accum(read(p_batch_norm_running_mean[row]));
    for (Index part = first; part < last; ++part) {
      #pragma unroll 4
      for (int64_t jj = from + lanes.first(); jj < to; jj += lanes.step()) {
        const Index rest = static_cast<Index>(jj);
        const Index q2 = rest / (s0 * 2 + 4);
        const Index e5 = rest % (s0 + 2);
        const Index q4 = e5 / 2;
        accum v1 = accum(0);
        if (q2 < q3 + 1 && q4 < q6 + 1) {
          const int64_t v7 = read(p_max_pool2d_with_indices[q6 * q3 * part * 128 + q6 * q3 * row + q2 * q6 + q6 * part * 128 + q6 * row + q3 * part * 128 + q3 * row + q4 + q2 + part * 128 + row]);
          const accum v8 = to_accum(read(p_mul_25[q6 * q3 * part * 128 + q6 * q3 * row + q2 * q6 + q6 * part * 128 + q6 * row + q3 * part * 128 + q3 * row + q4 + q2 + part * 128 + row]));
          v1 = (v7 == int64_t(rest)) ? v8 : accum(0);
        }
        a.r0.step(v1);
        const accum v9 = to_accum(read(p_convolution_sum_0_kept[part * s0 * s53 * 128 + row * s0 * s53 + part * s0 * 256 + part * s53 * 256 + row * s0 * 2 + row * s53 * 2 + part * 512 + rest + row * 4]));
        a.r1.step((v1 * ((v9 + v10) - v11)));
        const accum v12 = to_accum(read(p_mul_27[part * s0 * s53 * 128 + row * s0 * s53 + part * s0 * 256 + part * s53 * 256 + row * s0 * 2 + row * s53 * 2 + part * 512 + rest + row * 4]));
        a.r2.step(v12);
      }
    }
  }
  template <class L>
  __device__ __forceinline__ void finish(const L& lanes, Index row, const Acc& a) const {
    const accum sum_3_0 = a.r0.total();
    const accum sum_4_0 = a.r1.total();
    const accum convolution_backward_0 = a.r2.total();
    if (lanes.leads()) {
      p_view_11[row] = to_scalar(sum_3_0);
      const accum v1 = to_accum(read(p_batch_norm_running_var[row])) + accum(1e-05);
      p_mul_28[row] = to_scalar(sum_4_0 * f_rsqrt(v1));
      p_convolution_backward_0[row] = to_scalar(convolution_backward_0);
    }
  }
};

void run_rows_8(uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_max_pool2d_with_indices, uint64_t p_mul_25, uint64_t p_mul_27, uint64_t p_convolution_backward_0, uint64_t p_mul_28, uint64_t p_view_11, int64_t s0, int64_t s53, int64_t s77, uint64_t parts, int splits, uint64_t stream) {
  const rows_8 stage{reinterpret_cast<const scalar*>(p_batch_norm_running_mean), reinterpret_cast<const scalar*>(p_batch_norm_running_var), reinterpret_cast<const scalar*>(p_conv_transpose_bias), reinterpret_cast<const scalar*>(p_convolution_sum_0_kept), reinterpret_cast<const int64_t*>(p_max_pool2d_with_indices), reinterpret_cast<const scalar*>(p_mul_25), reinterpret_cast<const scalar*>(p_mul_27), reinterpret_cast<scalar*>(p_convolution_backward_0), reinterpret_cast<scalar*>(p_mul_28), reinterpret_cast<scalar*>(p_view_11), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  check(launch_split_rows<256>(stage, reinterpret_cast<void*>(parts), splits, reinterpret_cast<cudaStream_t>(stream)), "rows_8");
}

// convolution_backward
struct contract_3 {
  const scalar* __restrict__ p_conv_transpose_weight;
  const scalar* __restrict__ p_mul_27;
  scalar* __restrict__ p_convolution_backward_x_sum;
  Index convolution_backward_x_sum_box, s0, s53, s77;

  static constexpr bool a_along_k = true, b_along_k = false, statistics = false;
  static constexpr int group = 0;
  static constexpr bool boxed = true;
  __host__ __device__ Index batches() const { return s77; }
  __host__ __device__ Index rows() const { return 64; }
  __host__ __device__ Index cols() const { return s0 * s53; }
  __host__ __device__ Index depth() const { return 3200; }
  struct ARow { Index m61; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    return to_accum(read(p_conv_transpose_weight[k + at.m61 * 3200]));
  }
  struct BCol { Index c0, c1, c2, c3, c4; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    const Index q1 = n / s0;
    const Index e2 = n % s0;
    return {q1 - 1, s53 + 2, e2 - 1, s0 + 2, s0 * s53 * z * 128 + s0 * z * 256 + s53 * z * 256 + q1 * 2 + n + z * 512 - s0 - 3};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    const Index q3 = k / 5;
    const Index e2 = q3 % 5;
    const Index e4 = k % 5;
    accum v1 = accum(0);
    if (inside(at.c0 + e2, at.c1) && inside(at.c2 + e4, at.c3)) {
      const Index q5 = k / 25;
      const accum v6 = to_accum(read(p_mul_27[at.c4 + q5 * s0 * s53 + e2 * s0 + q5 * s0 * 2 + q5 * s53 * 2 + e2 * 2 + e4 + q5 * 4]));
      v1 = v6;
    }
    return v1;
  }
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  using Box = Dims<1, 1, 3, 32>;
  #elif CRUCIBLE_HOPPER
  using Box = Dims<1, 1, 4, 32>;
  #else
  using Box = Dims<1, 1, 8, 32>;
  #endif
  using Kernel = Dims<1, 1, 5, 5>;
  using Stride = Dims<1, 1, 1, 1>;
  using Dilation = Dims<1, 1, 1, 1>;
  using Shift = Dims<0, 0, -1, -1>;
  static constexpr bool flipped = false;
  __host__ __device__ Index extent(int d) const { return d == 0 ? 1 : d == 1 ? 1 : d == 2 ? s53 : s0; }
  __host__ __device__ Index groups() const { return 1; }
  static constexpr Index CHANNELS = 128;
  __host__ __device__ Index channels() const { return CHANNELS; }
  struct BAt { Index c0; bool inside; };
  __device__ __forceinline__ BAt b_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y2 = nearest(i2, s53 + 2);
    const Index y3 = nearest(i3, s0 + 2);
    return {s0 * s53 * z * 128 + y2 * s0 + s0 * z * 256 + s53 * z * 256 + y2 * 2 + y3 + z * 512, inside(i0, 1) && inside(i1, 1) && inside(i2, s53 + 2) && inside(i3, s0 + 2)};
  }
  __device__ __forceinline__ accum b_in(const BAt& at, Index channel) const {
    const accum v1 = to_accum(read(p_mul_27[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4]));
    return v1;
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BAt& at, Index channel) const {
    const accum v1 = to_accum(read(p_mul_27[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4]));
    return &p_mul_27[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4];
  }
  template <class To>
  __device__ __forceinline__ accum finish_to(Index z, Index m, Index n, int split, accum value,
                                             To& to) const {
    to(&p_convolution_backward_x_sum[m * s0 * s53 + s0 * s53 * z * 64 + n], to_scalar(value));
    return value;
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    StoreOne to{there};
    return finish_to(z, m, n, split, value, to);
  }
  static constexpr bool in_pairs = true;  // columns are neighbours in memory
  static constexpr bool reads = false;  // finish reads what depends on the column
  __device__ __forceinline__ uintptr_t stored(Index z, Index m, Index n) const {
    return reinterpret_cast<uintptr_t>(&p_convolution_backward_x_sum[m * s0 * s53 + s0 * s53 * z * 64 + n]) / sizeof(p_convolution_backward_x_sum[0]);
  }
};

void run_contract_3(uint64_t p_conv_transpose_weight, uint64_t p_mul_27, uint64_t p_convolution_backward_x_sum, int64_t convolution_backward_x_sum_box, int64_t s0, int64_t s53, int64_t s77, uint64_t packed, uint64_t stream) {
  const contract_3 stage{reinterpret_cast<const scalar*>(p_conv_transpose_weight), reinterpret_cast<const scalar*>(p_mul_27), reinterpret_cast<scalar*>(p_convolution_backward_x_sum), static_cast<Index>(convolution_backward_x_sum_box), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  #if CRUCIBLE_NARROWER
  if (convolution_backward_x_sum_box == 1) return check(launch_warpgroups<Warpgroups<2, 2, 0, 1, 64, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 8, 16>, Warpgroups<2, 2, 0, 1, 64, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  if (convolution_backward_x_sum_box == 2) return check(launch_warpgroups<Warpgroups<4, 2, 0, 1, 64, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(in_boxes<Dims<1, 1, 8, 8>, Warpgroups<2, 2, 0, 1, 64, Operands::Half>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #endif
  check(launch_warpgroups<Warpgroups<2, 2, 0, 1, 64, Operands::Half>, Warpgroups<2, 2, 0, 1, 64, Operands::Tf32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  #if CRUCIBLE_NARROWER
  if (convolution_backward_x_sum_box == 1) return check(launch_warpgroups<Warpgroups<2, 2, 0, 1, 64, Operands::Native>, void>(in_boxes<Dims<1, 1, 8, 16>, Warpgroups<2, 2, 0, 1, 64, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  if (convolution_backward_x_sum_box == 2) return check(launch_warpgroups<Warpgroups<4, 2, 0, 1, 64, Operands::Native>, void>(in_boxes<Dims<1, 1, 8, 8>, Warpgroups<2, 2, 0, 1, 64, Operands::Native>>(stage), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #endif
  check(launch_warpgroups<Warpgroups<2, 2, 0, 1, 64, Operands::Native>, void>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 2
  check(launch_split<Split<4, 3, 9, 3, 16>, Mma<64, 128, 16, 32, 32, Grade::Fp32>>(stage, reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_CONV == 1
  check(launch_window<Window<64, 8, Grade::Tf32>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_CONV == 2
  check(launch_contract<Mma<64, 256, 16, 32, 64, Grade::Fp32>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #elif CRUCIBLE_CONV == 3
  check(launch_window<Window<64, 8, Grade::Native>>(stage, reinterpret_cast<unsigned*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #else
  check(launch_contract<Simt<32, 256, 8, 4, 8>>(stage, 1, reinterpret_cast<cudaStream_t>(stream)), "contract_3");
  #endif
}

// convolution_backward
struct contract_4 {
  const scalar* __restrict__ p_mul_27;
  const scalar* __restrict__ p_x;
  accum* __restrict__ p_convolution_backward_w_sum_parts;
  Index convolution_backward_w_sum_splits, s0, s53, s77;

  static constexpr bool a_along_k = true, b_along_k = true, statistics = false;
  static constexpr int group = 0;
  static constexpr bool boxed = false;
  __host__ __device__ Index batches() const { return 1; }
  __host__ __device__ Index rows() const { return 64; }
  __host__ __device__ Index cols() const { return 3200; }
  __host__ __device__ Index depth() const { return s0 * s53 * s77; }
  struct ARow { Index c0, c1; };
  __device__ __forceinline__ ARow a_row(Index z, Index m) const {
    return {m * s0 * s53, s0 * s53};
  }
  __device__ __forceinline__ accum a(const ARow& at, Index k) const {
    const Index q1 = k / at.c1;
    const Index q3 = k / s0;
    const Index e2 = q3 % s53;
    const Index e4 = k % s0;
    const accum v5 = to_accum(read(p_x[at.c0 + q1 * s0 * s53 * 64 + e2 * s0 + e4]));
    return v5;
  }
  struct BCol { Index c0, c1, c2, c3, c4, c5; };
  __device__ __forceinline__ BCol b_col(Index z, Index n) const {
    const Index q2 = n / 5;
    const Index e1 = q2 % 5;
    const Index e3 = n % 5;
    const Index q4 = n / 25;
    return {e1 - 1, s53 + 2, e3 - 1, s0 + 2, q4 * s0 * s53 + e1 * s0 + q4 * s0 * 2 + q4 * s53 * 2 + e1 * 2 + e3 + q4 * 4 - s0 - 3, s0 * s53};
  }
  __device__ __forceinline__ accum b(const BCol& at, Index k) const {
    const Index q3 = k / s0;
    const Index e2 = q3 % s53;
    const Index e4 = k % s0;
    accum v1 = accum(0);
    if (inside(at.c0 + e2, at.c1) && inside(at.c2 + e4, at.c3)) {
      const Index q5 = k / at.c5;
      const accum v6 = to_accum(read(p_mul_27[at.c4 + q5 * s0 * s53 * 128 + e2 * s0 + q5 * s0 * 256 + q5 * s53 * 256 + e2 * 2 + e4 + q5 * 512]));
      v1 = v6;
    }
    return v1;
  }
  using Box = Dims<1, 1, 4, 32>;
  using Kernel = Dims<1, 1, 5, 5>;
  using Stride = Dims<1, 1, 1, 1>;
  using Dilation = Dims<1, 1, 1, 1>;
  using Shift = Dims<0, 0, -1, -1>;
  static constexpr bool flipped = false;
  __host__ __device__ Index extent(int d) const { return d == 0 ? s77 : d == 1 ? 1 : d == 2 ? s53 : s0; }
  __host__ __device__ Index groups() const { return 1; }
  static constexpr Index CHANNELS = 128;
  __host__ __device__ Index channels() const { return CHANNELS; }
  struct BAt { Index c0; bool inside; };
  __device__ __forceinline__ BAt b_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y0 = nearest(i0, s77);
    const Index y2 = nearest(i2, s53 + 2);
    const Index y3 = nearest(i3, s0 + 2);
    return {y0 * s0 * s53 * 128 + y0 * s0 * 256 + y0 * s53 * 256 + y2 * s0 + y0 * 512 + y2 * 2 + y3, inside(i0, s77) && inside(i1, 1) && inside(i2, s53 + 2) && inside(i3, s0 + 2)};
  }
  __device__ __forceinline__ accum b_in(const BAt& at, Index channel) const {
    const accum v1 = to_accum(read(p_mul_27[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4]));
    return v1;
  }
  static constexpr bool b_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* b_from(const BAt& at, Index channel) const {
    const accum v1 = to_accum(read(p_mul_27[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4]));
    return &p_mul_27[at.c0 + channel * s0 * s53 + channel * s0 * 2 + channel * s53 * 2 + channel * 4];
  }
  struct AAt { Index c0; bool inside; };
  __device__ __forceinline__ AAt a_at(Index z, Index i0, Index i1, Index i2, Index i3) const {
    const Index y0 = nearest(i0, s77);
    const Index y2 = nearest(i2, s53);
    const Index y3 = nearest(i3, s0);
    return {s0 * s53 * y0 * 64 + s0 * y2 + y3, inside(i0, s77) && inside(i1, 1) && inside(i2, s53) && inside(i3, s0)};
  }
  __device__ __forceinline__ accum a_in(const AAt& at, Index channel) const {
    return to_accum(read(p_x[at.c0 + channel * s0 * s53]));
  }
  static constexpr bool a_direct = true;  // an element of memory as it is
  __device__ __forceinline__ const scalar* a_from(const AAt& at, Index channel) const {
    return &p_x[at.c0 + channel * s0 * s53];
  }
  __device__ __forceinline__ accum finish(Index z, Index m, Index n, int split, accum value,
                                          bool there) const {
    if (there) p_convolution_backward_w_sum_parts[m * 3200 + n + split * 204800] = value;
    return value;
  }
};

void run_contract_4(uint64_t p_mul_27, uint64_t p_x, uint64_t p_convolution_backward_w_sum_parts, int64_t convolution_backward_w_sum_splits, int64_t s0, int64_t s53, int64_t s77, uint64_t packed, uint64_t stream) {
  const contract_4 stage{reinterpret_cast<const scalar*>(p_mul_27), reinterpret_cast<const scalar*>(p_x), reinterpret_cast<accum*>(p_convolution_backward_w_sum_parts), static_cast<Index>(convolution_backward_w_sum_splits), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  check(launch_gradient_groups<GradientGroups<3, 2, 3, 64, 4, Dims<3, 1, 2, 32>, Operands::Half>, Gradient<2, 1, 3, 9, 2, 1, 1>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  check(launch_gradient_groups<GradientGroups<3, 2, 3, 64, 4, Dims<3, 1, 2, 32>, Operands::Native>, Gradient<2, 1, 3, 9, 2, 1, 1>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<void*>(packed), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #elif CRUCIBLE_CONV == 1
  check(launch_gradient<Gradient<2, 1, 3, 9, 2, 1, 1>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #elif CRUCIBLE_CONV == 2
  check(launch_contract<Mma<64, 64, 16, 32, 32, Grade::Fp32>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #elif CRUCIBLE_CONV == 3
  check(launch_gradient<Gradient<2, 1, 3, 9, 2, 1, 1>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #else
  check(launch_contract<Simt<64, 64, 16, 4, 4>>(stage, static_cast<int>(convolution_backward_w_sum_splits), reinterpret_cast<cudaStream_t>(stream)), "contract_4");
  #endif
}

int64_t packed_contract_4(int64_t convolution_backward_w_sum_splits, int64_t s0, int64_t s53, int64_t s77) {
  const contract_4 stage{nullptr, nullptr, nullptr, static_cast<Index>(convolution_backward_w_sum_splits), static_cast<Index>(s0), static_cast<Index>(s53), static_cast<Index>(s77)};
  #if CRUCIBLE_HOPPER && CRUCIBLE_CONV == 1
  return gradient_bytes<GradientGroups<3, 2, 3, 64, 4, Dims<3, 1, 2, 32>, Operands::Half>>(stage, static_cast<int>(convolution_backward_w_sum_splits));
  #elif CRUCIBLE_HOPPER && CRUCIBLE_CONV == 3
  return gradient_bytes<GradientGroups<3, 2, 3, 64, 4, Dims<3, 1, 2, 32>, Operands::Native>>(stage, static_cast<int>(convolution_backward_w_sum_splits));
  #else
  static_cast<void>(stage);
  return 0;
  #endif
}

// One after another, those that are asked for.
void run_training_backward(uint64_t stages, uint64_t p_batch_norm_bias, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_d_output, uint64_t p_var_mean_1_0_kept, uint64_t p_var_mean_1_1_kept, uint64_t p_view_10, uint64_t p_view_11, uint64_t p_group_norm_weight, uint64_t p_view_14, uint64_t p_view_15, uint64_t p_conv_transpose_weight, uint64_t p_convolution_backward_x_sum, uint64_t p_x, uint64_t p_convolution_backward_w_sum, uint64_t p_convolution_backward_0, uint64_t memory, int64_t in_max_pool2d_with_indices, int64_t at_max_pool2d_with_indices, int64_t in_parts_rows_5, int64_t at_parts_rows_5, int64_t in_mul_30, int64_t at_mul_30, int64_t in_mean_2_0_kept, int64_t at_mean_2_0_kept, int64_t in_mean_3_0_kept, int64_t at_mean_3_0_kept, int64_t in_parts_rows_7, int64_t at_parts_rows_7, int64_t in_mul_36, int64_t at_mul_36, int64_t in_packed_contract_9, int64_t at_packed_contract_9, int64_t in_convolution_backward_w_sum_parts, int64_t at_convolution_backward_w_sum_parts, int64_t in_packed_contract_10, int64_t at_packed_contract_10, int64_t in_parts_rows_12, int64_t at_parts_rows_12, int64_t convolution_backward_w_sum_splits, int64_t convolution_backward_x_sum_box, int64_t s0, int64_t s53, int64_t s77, int64_t splits_rows_5, int64_t splits_rows_7, int64_t splits_rows_12, uint64_t stream) {
  const uint64_t holders[] = {memory, p_view_10, p_view_11, p_view_14, p_view_15, p_convolution_backward_x_sum, p_convolution_backward_w_sum, p_convolution_backward_0};
  const uint64_t p_max_pool2d_with_indices = holders[in_max_pool2d_with_indices] + at_max_pool2d_with_indices;
  const uint64_t parts_rows_5 = holders[in_parts_rows_5] + at_parts_rows_5;
  const uint64_t p_mul_30 = holders[in_mul_30] + at_mul_30;
  const uint64_t p_mean_2_0_kept = holders[in_mean_2_0_kept] + at_mean_2_0_kept;
  const uint64_t p_mean_3_0_kept = holders[in_mean_3_0_kept] + at_mean_3_0_kept;
  const uint64_t parts_rows_7 = holders[in_parts_rows_7] + at_parts_rows_7;
  const uint64_t p_mul_36 = holders[in_mul_36] + at_mul_36;
  const uint64_t packed_contract_9 = holders[in_packed_contract_9] + at_packed_contract_9;
  const uint64_t p_convolution_backward_w_sum_parts = holders[in_convolution_backward_w_sum_parts] + at_convolution_backward_w_sum_parts;
  const uint64_t packed_contract_10 = holders[in_packed_contract_10] + at_packed_contract_10;
  const uint64_t parts_rows_12 = holders[in_parts_rows_12] + at_parts_rows_12;
  if (stages & 1) run_map_1(p_batch_norm_bias, p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_var_mean_0_kept, p_var_mean_1_kept, p_max_pool2d_with_indices, s0, s53, s77, stream);
  if (stages & 2) run_rows_1(p_batch_norm_bias, p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_d_output, p_var_mean_0_kept, p_var_mean_1_0_kept, p_var_mean_1_1_kept, p_var_mean_1_kept, p_view_10, p_view_11, s0, s53, s77, parts_rows_5, static_cast<int>(splits_rows_5), stream);
  if (stages & 4) run_rows_2(p_batch_norm_bias, p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_d_output, p_group_norm_weight, p_var_mean_0_kept, p_var_mean_1_0_kept, p_var_mean_1_1_kept, p_var_mean_1_kept, p_mul_30, s0, s53, s77, stream);
  if (stages & 8) run_rows_3(p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_max_pool2d_with_indices, p_mul_30, p_var_mean_0_kept, p_var_mean_1_kept, p_mean_2_0_kept, p_mean_3_0_kept, p_view_14, p_view_15, s0, s53, s77, parts_rows_7, static_cast<int>(splits_rows_7), stream);
  if (stages & 16) run_map_2(p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_max_pool2d_with_indices, p_mean_2_0_kept, p_mean_3_0_kept, p_mul_30, p_var_mean_0_kept, p_var_mean_1_kept, p_mul_36, s0, s53, s77, stream);
  if (stages & 32) run_contract_1(p_conv_transpose_weight, p_mul_36, p_convolution_backward_x_sum, convolution_backward_x_sum_box, s0, s53, s77, packed_contract_9, stream);
  if (stages & 64) run_contract_2(p_mul_36, p_x, p_convolution_backward_w_sum_parts, convolution_backward_w_sum_splits, s0, s53, s77, packed_contract_10, stream);
  if (stages & 128) run_rows_4(p_convolution_backward_w_sum_parts, p_convolution_backward_w_sum, convolution_backward_w_sum_splits, stream);
  if (stages & 256) run_rows_5(p_mul_36, p_convolution_backward_0, s0, s53, s77, parts_rows_12, static_cast<int>(splits_rows_12), stream);
}

// One after another, those that are asked for.
void run_evaluation_backward(uint64_t stages, uint64_t p_batch_norm_bias, uint64_t p_batch_norm_running_mean, uint64_t p_batch_norm_running_var, uint64_t p_batch_norm_weight, uint64_t p_conv_transpose_bias, uint64_t p_convolution_sum_0_kept, uint64_t p_d_output, uint64_t p_var_mean_0_kept, uint64_t p_var_mean_1_kept, uint64_t p_view_7, uint64_t p_view_8, uint64_t p_group_norm_weight, uint64_t p_convolution_backward_0, uint64_t p_mul_28, uint64_t p_view_11, uint64_t p_conv_transpose_weight, uint64_t p_convolution_backward_x_sum, uint64_t p_x, uint64_t p_convolution_backward_w_sum, uint64_t memory, int64_t in_max_pool2d_with_indices, int64_t at_max_pool2d_with_indices, int64_t in_parts_rows_3, int64_t at_parts_rows_3, int64_t in_mul_25, int64_t at_mul_25, int64_t in_mul_27, int64_t at_mul_27, int64_t in_parts_rows_6, int64_t at_parts_rows_6, int64_t in_packed_contract_7, int64_t at_packed_contract_7, int64_t in_convolution_backward_w_sum_parts, int64_t at_convolution_backward_w_sum_parts, int64_t in_packed_contract_8, int64_t at_packed_contract_8, int64_t convolution_backward_w_sum_splits, int64_t convolution_backward_x_sum_box, int64_t s0, int64_t s53, int64_t s77, int64_t splits_rows_3, int64_t splits_rows_6, uint64_t stream) {
  const uint64_t holders[] = {memory, p_view_7, p_view_8, p_view_11, p_mul_28, p_convolution_backward_0, p_convolution_backward_x_sum, p_convolution_backward_w_sum};
  const uint64_t p_max_pool2d_with_indices = holders[in_max_pool2d_with_indices] + at_max_pool2d_with_indices;
  const uint64_t parts_rows_3 = holders[in_parts_rows_3] + at_parts_rows_3;
  const uint64_t p_mul_25 = holders[in_mul_25] + at_mul_25;
  const uint64_t p_mul_27 = holders[in_mul_27] + at_mul_27;
  const uint64_t parts_rows_6 = holders[in_parts_rows_6] + at_parts_rows_6;
  const uint64_t packed_contract_7 = holders[in_packed_contract_7] + at_packed_contract_7;
  const uint64_t p_convolution_backward_w_sum_parts = holders[in_convolution_backward_w_sum_parts] + at_convolution_backward_w_sum_parts;
  const uint64_t packed_contract_8 = holders[in_packed_contract_8] + at_packed_contract_8;
  if (stages & 1) run_map_3(p_batch_norm_bias, p_batch_norm_running_mean, p_batch_norm_running_var, p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_max_pool2d_with_indices, s0, s53, s77, stream);
  if (stages & 2) run_rows_6(p_batch_norm_bias, p_batch_norm_running_mean, p_batch_norm_running_var, p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_d_output, p_var_mean_0_kept, p_var_mean_1_kept, p_view_7, p_view_8, s0, s53, s77, parts_rows_3, static_cast<int>(splits_rows_3), stream);
  if (stages & 4) run_rows_7(p_batch_norm_bias, p_batch_norm_running_mean, p_batch_norm_running_var, p_batch_norm_weight, p_conv_transpose_bias, p_convolution_sum_0_kept, p_d_output, p_group_norm_weight, p_var_mean_0_kept, p_var_mean_1_kept, p_mul_25, s0, s53, s77, stream);
  if (stages & 8) run_map_4(p_batch_norm_running_var, p_batch_norm_weight, p_max_pool2d_with_indices, p_mul_25, p_mul_27, s0, s53, s77, stream);
  if (stages & 16) run_rows_8(p_batch_norm_running_mean, p_batch_norm_running_var, p_conv_transpose_bias, p_convolution_sum_0_kept, p_max_pool2d_with_indices, p_mul_25, p_mul_27, p_convolution_backward_0, p_mul_28, p_view_11, s0, s53, s77, parts_rows_6, static_cast<int>(splits_rows_6), stream);
  if (stages & 32) run_contract_3(p_conv_transpose_weight, p_mul_27, p_convolution_backward_x_sum, convolution_backward_x_sum_box, s0, s53, s77, packed_contract_7, stream);
  if (stages & 64) run_contract_4(p_mul_27, p_x, p_convolution_backward_w_sum_parts, convolution_backward_w_sum_splits, s0, s53, s77, packed_contract_8, stream);
  if (stages & 128) run_rows_4(p_convolution_backward_w_sum_parts, p_convolution_backward_w_sum, convolution_backward_w_sum_splits, stream);
}
"""


_FORWARD_BINDING = r"""
#include <cstdint>
#include <pybind11/pybind11.h>

void run_training_forward(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t);
void run_training_inference(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t);
void run_evaluation_forward(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t);
void run_evaluation_inference(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t);
int64_t packed_contract_1(int64_t, int64_t, int64_t, int64_t, int64_t);
int64_t packed_contract_2(int64_t, int64_t, int64_t, int64_t, int64_t);
int64_t packed_contract_3(int64_t, int64_t, int64_t, int64_t);
int64_t packed_contract_4(int64_t, int64_t, int64_t, int64_t);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("training_forward", &run_training_forward);
  m.def("training_inference", &run_training_inference);
  m.def("evaluation_forward", &run_evaluation_forward);
  m.def("evaluation_inference", &run_evaluation_inference);
  m.def("packed_contract_1", &packed_contract_1);
  m.def("packed_contract_2", &packed_contract_2);
  m.def("packed_contract_3", &packed_contract_3);
  m.def("packed_contract_4", &packed_contract_4);
}
"""

_BACKWARD_BINDING = r"""
#include <cstdint>
#include <pybind11/pybind11.h>

void run_training_backward(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t);
void run_evaluation_backward(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t);
int64_t packed_contract_2(int64_t, int64_t, int64_t, int64_t);
int64_t packed_contract_4(int64_t, int64_t, int64_t, int64_t);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("training_backward", &run_training_backward);
  m.def("evaluation_backward", &run_evaluation_backward);
  m.def("packed_contract_2", &packed_contract_2);
  m.def("packed_contract_4", &packed_contract_4);
}
"""

_SOURCES = {"forward": (_FORWARD_BINDING, _FORWARD_SOURCE), "backward": (_BACKWARD_BINDING, _BACKWARD_SOURCE)}

_SCALARS = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 3, torch.float64: 1}
_kept = functools.lru_cache(None)  # what is asked for in every call, and computed in the first


def _grade(dtype, device, tf32):
    """How contractions are computed: 0 ordinary cores, 1 TF32, 2 as good as float32, 3 in the type itself."""
    if dtype == torch.float64 or torch.cuda.get_device_capability(device) < (8, 0):
        return 0
    if dtype != torch.float32:
        return 3
    return 1 if tf32 else 2


@_kept
def _hopper(device):
    """Whether this chip has Hopper's matrix instructions, the compiler knows them, and the file makes use of them."""
    known = int((torch.version.cuda or "0").split(".")[0]) >= 12
    return int(True and known and torch.cuda.get_device_capability(device) == (9, 0))


def _boxes(dtype, device, precise, hopper, others):
    """How many boxes a convolution has: as good as float32 on Hopper, otherwise on Hopper, elsewhere."""
    if not _hopper(device):
        return others
    return precise if _grade(dtype, device, _allowed(_conv_switch())) == 2 else hopper


def _box(dtype, device, blocks, *ways):
    """Which boxes Hopper's own instructions take, by cycles of a tile and tiles; other engines have but the first."""
    if not _hopper(device) or _grade(dtype, device, _allowed(_conv_switch())) not in (1, 3):
        return 0
    if _SIMULATED:  # sizes are small there, and each of a few calls is to meet other boxes
        return hash((len(_PLANS), *ways)) % len(ways)
    cycles = [each * -(-tiles // blocks) for each, tiles in ways]
    best = min(cycles)
    return 0 if cycles[0] < 1.05 * best else cycles.index(best)  # what is hardly faster is not compiled


def _kernels(part, dtype, device, elements, *boxes):
    """The compiled kernels for an element type, an index width and the precision that torch's switches allow.

    Boxes: which each convolution takes that has several. Without need none but the first are compiled.
    """
    conv, matmul = _allowed(_conv_switch()), _allowed(_matmul_switch())
    return _chosen(part, dtype, device, elements > 2**31 - 1, conv, matmul, bool(boxes and (any(boxes) or _SIMULATED)))


@_kept
def _chosen(part, dtype, device, wide, conv, matmul, narrower):
    grades = _grade(dtype, device, conv), _grade(dtype, device, matmul)
    return _compiled(part, dtype, int(wide), *grades, _hopper(device), int(narrower))


@_kept
def _compiled(part, dtype, wide, conv, matmul, hopper, narrower):
    flags = [f"-DCRUCIBLE_SCALAR={_SCALARS[dtype]}", f"-DCRUCIBLE_WIDE={wide}", f"-DCRUCIBLE_CONV={conv}",
             f"-DCRUCIBLE_MATMUL={matmul}", f"-DCRUCIBLE_HOPPER={hopper}", f"-DCRUCIBLE_NARROWER={narrower}"]
    if hopper:
        flags.append("-gencode=arch=compute_90a,code=sm_90a")
    binding, source = _SOURCES[part]
    bare = "no_implicit_headers" in inspect.signature(load_inline).parameters  # torch's headers cost half a minute
    options = {"no_implicit_headers": True} if bare else {}
    return load_inline(
        name=f"crucible_a792f40d96a9_{part}_{_SCALARS[dtype]}{wide}{conv}{matmul}{hopper}{narrower}",
        cpp_sources=binding, cuda_sources=source,
        extra_cflags=["-O1"], extra_cuda_cflags=["-O3", "-std=c++17", *flags], **options,
    )


_SIMULATED = getattr(torch.cuda, "crucible_simulated", False)
# What torch.cuda asks the driver for itself, where torch was built for CUDA.
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)
try:
    if _SIMULATED:
        raise ImportError
    from torch._C._dynamo.guards import _empty_strided_cuda as _new  # in half the time
except ImportError:

    def _new(shape, stride, dtype):
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")


def _accumulated(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


# What torch's switches for TF32 say. Since torch 2.9 each operator has its own: asking for all at once may be an error.
_precision = getattr(torch._C, "_get_fp32_precision_getter", None)
if _precision is None:
    _conv_switch = getattr(torch._C, "_get_cudnn_allow_tf32", lambda: torch.backends.cudnn.allow_tf32)
    _matmul_switch = torch.get_float32_matmul_precision
else:
    _conv_switch = functools.partial(_precision, "cuda", "conv")
    _matmul_switch = functools.partial(_precision, "cuda", "matmul")


def _allowed(said):
    """Whether that permits TF32."""
    return said not in (False, "highest", "ieee", "none")


_PLANS = {}  # of calls, by all that they depend on
_LAST = {}  # for each kind of call the last one: what it depended on, how to know its tensors, its plan
_kind = operator.attrgetter("shape", "dtype", "device")
_is_dense, _pointer = torch.Tensor.is_contiguous, torch.Tensor.data_ptr
try:  # compares a dozen tensors in a microsecond
    from torch._C._dynamo.guards import TensorGuards as _Guards
except ImportError:
    _Guards = None


def _planned(make, tensors, *others):
    """The plan of a call with such tensors, and the tensors, dense. The first call of its kind makes the plan."""
    given = (_conv_switch(), others)
    last = _LAST.get(make)
    if last is not None and last[1](*tensors) and last[0] == given:
        return last[2], tensors
    key = (make, given, *map(_kind, tensors))
    plan = _PLANS.get(key)
    if plan is None:
        plan = make(*others, *tensors)
        if len(_PLANS) >= 256:  # where sizes keep changing, old ones go
            _PLANS.clear()
        _PLANS[key] = plan
    if not all(map(_is_dense, tensors)):
        return plan, [t.contiguous() for t in tensors]
    _LAST[make] = given, _like(tensors), plan
    return plan, tensors


def _like(tensors):
    """A function that tells whether tensors have the type, device, shape and strides of these."""
    try:
        shapes = {"dynamic_dims_sizes": [[*t.shape] for t in tensors]}
        return _Guards(*tensors, **shapes, dynamic_dims_strides=[[*t.stride()] for t in tensors]).check
    except (TypeError, SystemError, RuntimeError):  # another torch
        return lambda *others: False


def _bytes(dtype):
    """Of an element."""
    return torch.empty((), dtype=dtype, device="meta").element_size()  # dtype.itemsize came with torch 2.1


def _spec(shape, dtype):
    """What _new() takes."""
    return shape, torch.empty(shape, device="meta").stride(), dtype


def _laid_out(stages, buffers, hosts=()):
    """One piece of memory for all buffers, as _new() takes it; then for each buffer where it lies: holder, offset.

    Buffers come with their bytes and the set of stages that use them. Those that are never needed at the same time may
    share memory. Holder 0 is the piece; the others are tensors that are written after the buffer was read for the last
    time, so that what lies in them costs nothing.
    """
    sizes = [size if users & stages else 0 for size, users in buffers]
    if _SIMULATED:  # see _apart()
        return ((1,), (1,), torch.uint8), [n for size in sizes for n in (0, size)]
    holders = [(k, math.prod(s[0]) * _bytes(s[2]), (u & -u).bit_length()) for k, (s, u) in enumerate(hosts, 1) if s]
    holders.append((0, math.inf, math.inf))
    placed, places = [], [(0, 0)] * len(buffers)
    for k in sorted(range(len(buffers)), key=sizes.__getitem__, reverse=True):
        users, size = buffers[k][1] & stages, -(-sizes[k] // 512) * 512
        first, last = (users & -users).bit_length(), users.bit_length()
        for holder, limit, written in holders:
            taken = [p for p in placed if p[0] == holder and p[3] <= last and first <= p[4]]
            starts = sorted([0, *(p[2] for p in taken)])
            at = next(s for s in starts if all(s + size <= p[1] or p[2] <= s for p in taken))
            if last < written and at + size <= limit:
                placed.append((holder, at, at + size, first, last))
                places[k] = holder, at
                break
    total = max((p[2] for p in placed if not p[0]), default=0)
    return ((total,), (1,), torch.uint8), [n for place in places for n in place]


def _apart(memory, counts, buffers):
    """A simulator checks bounds: there each buffer has memory of its own, given as a distance from the piece."""
    alone = [_new((size,), (1,), torch.uint8) for size in counts[1 : 2 * buffers : 2]]
    places = [n for t in alone for n in (0, t.data_ptr() - memory.data_ptr())]
    return alone, (*places, *counts[2 * buffers :])


def _address(tensor):
    return 0 if tensor is None else tensor.data_ptr()


def _splits(rows, lanes, length, times=1):
    """Into how many parts long rows are cut: enough to fill a GPU, none too short. Some are one stretch many times."""
    most = max(1, length // (16 * lanes)) * times
    return max(1, min(most, (131072 if times == 1 else 262144) // max(rows * lanes, 1), 1024))


def _shape_error(name, tensor, expected):
    return RuntimeError(f"ModelNew: expected {name} of shape {expected}, got {tuple(tensor.shape)}")


def _checked(**tensors):
    """The common type and device of the tensors, after a look at all of them."""
    first = next(iter(tensors.values()))
    device, cuda, dtype = first.device, first.is_cuda, None
    for name, t in tensors.items():
        if not cuda or t.device != device:
            raise _device_error(name, t.device, device)
        if t.is_floating_point():
            if dtype is None:
                dtype = t.dtype
            elif t.dtype != dtype:
                raise RuntimeError(f"ModelNew: {name} is {t.dtype}, other tensors are {dtype}")
    dtype = dtype or torch.float32
    if dtype not in _SCALARS:
        raise RuntimeError(f"ModelNew: {dtype} is not supported; use one of {', '.join(map(str, _SCALARS))}")
    return dtype, device


def _device_error(name, own, first):
    if own.type != "cuda":
        return RuntimeError(f"ModelNew: {name} is on {own}; these kernels need a CUDA device")
    return RuntimeError(f"ModelNew: {name} is on {own}, other tensors are on {first}")


def _settings(module):
    """A digest of the plain attributes of a module and its submodules: strides, sizes, constants."""
    kept = []
    for name, part in module.named_modules():
        values = {k: v for k, v in vars(part).items() if not k.startswith("_") and k != "training"}
        plain = {k: v for k, v in values.items() if isinstance(v, (bool, int, float, str, tuple, list, type(None)))}
        kept.append((name, type(part).__name__ if name else "", sorted((k, repr(v)) for k, v in plain.items())))
    return hashlib.sha256(repr(kept).encode()).hexdigest()[:16]


class _Seen:
    """What was found right in a module, and where it stands. A copy of the module is looked at anew."""

    def __init__(self, digest=None, held=(), modes=()):
        self.digest, self.held, self.modes = digest, held, modes

    def __reduce__(self):
        return _Seen, ()


def _expect(module, digest, layers):
    """Refuse a configuration that these kernels were not made for, and layers in another mode than they were made for.

    ``layers``: by name whether a layer is in training mode while the module is in eval mode, and while it trains.
    """
    seen = module.__dict__.get("_crucible_settings")
    same = seen is not None and seen.digest == digest
    if same:
        for table, key, value in seen.held:
            if table.get(key) is not value:
                same = False
    if not same:
        if _settings(module) != digest:
            raise RuntimeError(
                f"{type(module).__name__}: these kernels were made for another configuration, that of "
                "get_init_inputs() or of the module that was fused; fuse it again for this one"
            )
        parts = dict(module.named_modules())
        # What may change from call to call: numbers, such as a momentum, and layers that are exchanged.
        held = [(vars(p), k, v) for p in parts.values() for k, v in vars(p).items() if type(v) is float]
        held += [(p._modules, k, v) for p in parts.values() for k, v in p._modules.items()]
        seen = _Seen(digest, held, [(vars(parts[name]), name, modes) for name, modes in layers.items()])
        module.__dict__["_crucible_settings"] = seen
    for table, name, modes in seen.modes:
        if table["training"] is not modes[module.training]:
            mode, other = ("training", "eval") if table["training"] else ("eval", "training")
            raise RuntimeError(
                f"{type(module).__name__}: {name} is in {mode} mode, and these kernels were made for it in {other} "
                "mode; give the Model a train() that sets it so, and fuse it again"
            )


# Whether they are in training mode: in eval mode, and while training.
_LAYERS = {'batch_norm': (False, True)}


class _BackwardTwice(torch.autograd.Function):
    """Gradients that may be differentiated again, which is an error: taken for constants they would be wrong."""

    @staticmethod
    def forward(ctx, count, *tensors):
        return tuple(g.detach() for g in tensors[:count])

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(
            "ModelNew: gradients of gradients (a penalty on gradients, a Hessian) are not in this file; "
            "use the Model that it was made from where they are needed"
        )


class _BackwardOnce:
    """What backward() asks of its context, which must be asked for saved tensors once."""

    def __init__(self, ctx):
        self.needs_input_grad, self.sizes, self.saved_tensors = ctx.needs_input_grad, ctx.sizes, ctx.saved_tensors


def _once_backward(function):
    def backward(ctx, *gradients):
        if not torch.is_grad_enabled():  # nobody asked for create_graph
            return function(ctx, *gradients)
        held = _BackwardOnce(ctx)
        with torch.no_grad():
            made = function(held, *gradients)
        found = [g for g in made if g is not None]
        # What they come from, as far as it is at hand, and one tensor that wants a gradient whatever that is.
        sources = [t for t in (*held.saved_tensors, *gradients) if t is not None and t.requires_grad]
        again = iter(_BackwardTwice.apply(len(found), *found, *sources, torch.ones((), requires_grad=True)))
        return tuple(None if g is None else next(again) for g in made)

    return backward


def _training_forward_plan(conv_transpose_weight, conv_transpose_bias, batch_norm_weight, batch_norm_bias, group_norm_weight, group_norm_bias, batch_norm_running_mean, batch_norm_running_var, batch_norm_num_batches_tracked, x):
    dtype, device = _checked(conv_transpose_weight=conv_transpose_weight, conv_transpose_bias=conv_transpose_bias, batch_norm_weight=batch_norm_weight, batch_norm_bias=batch_norm_bias, group_norm_weight=group_norm_weight, group_norm_bias=group_norm_bias, batch_norm_running_mean=batch_norm_running_mean, batch_norm_running_var=batch_norm_running_var, batch_norm_num_batches_tracked=batch_norm_num_batches_tracked, x=x)
    if x.dim() != 4:
        raise _shape_error('x', x, '(s77, 64, s53, s0)')
    s77, _, s53, s0 = x.shape
    if conv_transpose_weight.shape != (64, 128, 5, 5):
        raise _shape_error('conv_transpose_weight', conv_transpose_weight, '(64, 128, 5, 5)')
    if conv_transpose_bias.shape != (128,):
        raise _shape_error('conv_transpose_bias', conv_transpose_bias, '(128,)')
    if batch_norm_weight.shape != (128,):
        raise _shape_error('batch_norm_weight', batch_norm_weight, '(128,)')
    if batch_norm_bias.shape != (128,):
        raise _shape_error('batch_norm_bias', batch_norm_bias, '(128,)')
    if group_norm_weight.shape != (128,):
        raise _shape_error('group_norm_weight', group_norm_weight, '(128,)')
    if group_norm_bias.shape != (128,):
        raise _shape_error('group_norm_bias', group_norm_bias, '(128,)')
    if batch_norm_running_mean.shape != (128,):
        raise _shape_error('batch_norm_running_mean', batch_norm_running_mean, '(128,)')
    if batch_norm_running_var.shape != (128,):
        raise _shape_error('batch_norm_running_var', batch_norm_running_var, '(128,)')
    if x.shape != (s77, 64, s53, s0):
        raise _shape_error('x', x, '(s77, 64, s53, s0)')
    convolution_sum_box = _box(dtype, device, 66, (20085, ((s0 + 35) // 34) * ((s53 + 10) // 9) * s77), (22905, ((s0 + 19) // 18) * ((s53 + 19) // 18) * s77), (24399, ((s0 + 11) // 10) * ((s53 + 11) // 10) * ((s77 + 2) // 3)))
    convolution_sum_boxes = _boxes(dtype, device, ((s0 + 35) // 34) * ((s53 + 3) // 2), (((s0 + 35) // 34) * ((s53 + 4) // 3), ((s0 + 19) // 18) * ((s53 + 7) // 6), ((s0 + 11) // 10) * ((s53 + 11) // 10))[convolution_sum_box], ((s0 + 35) // 34) * ((s53 + 8) // 7))
    convolution_backward_x_sum_box = _box(dtype, device, 132, (43159, ((s0 + 31) // 32) * ((s53 + 7) // 8) * s77), (46523, ((s0 + 15) // 16) * ((s53 + 15) // 16) * s77), (29462, ((s0 + 7) // 8) * ((s53 + 7) // 8) * ((s77 + 1) // 2)))
    convolution_backward_w_sum_splits = max(1, min(17, ((s0 + 31) // 32) * ((s53 + 3) // 4) * s77)) * 1
    if batch_norm_num_batches_tracked.dtype != torch.int64:
        raise RuntimeError(f"ModelNew: expected batch_norm_num_batches_tracked of torch.int64, got {batch_norm_num_batches_tracked.dtype}")
    kernels = _kernels("forward", dtype, device, max(s0 * s53 * s77 * 64, (s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128, s0 * s53 * s77 * 128 + s0 * s77 * 256 + s53 * s77 * 256 + s77 * 512, convolution_sum_boxes * s77 * 128, convolution_backward_w_sum_splits * 204800, s77 * 8, 204800), convolution_sum_box)
    accum = _accumulated(dtype)
    specs = [_spec((s77, 128, s53 + 2, s0 + 2), dtype), _spec((128,), accum), _spec((128,), accum), _spec((s77, 128, (s53 // 2) + 1, (s0 // 2) + 1), dtype), _spec((s77, 8), accum), _spec((s77, 8), accum)]
    room, places = _laid_out(0b111, [(convolution_sum_boxes * s77 * 128 * _bytes(accum), 0b11), (convolution_sum_boxes * s77 * 128 * _bytes(accum), 0b11), (convolution_sum_boxes * s77 * 128 * _bytes(accum), 0b11), (kernels.packed_contract_1(convolution_sum_box, convolution_sum_boxes, s0, s53, s77), 0b1)], zip(specs, [0b101, 0b110, 0b110, 0b100, 0b100, 0b100]))
    return kernels, device.index, specs, room, (*places, convolution_sum_box, convolution_sum_boxes, s0, s53, s77,), (s0, s53, s77, convolution_sum_box, convolution_sum_boxes, convolution_backward_x_sum_box, convolution_backward_w_sum_splits)


def _training_forward(tensors):
    (kernels, index, specs, room, counts, sizes), dense = _planned(_training_forward_plan, tensors)
    if _current_device() != index:
        with torch.cuda.device(index):
            return _training_forward(tensors)
    conv_transpose_weight, conv_transpose_bias, batch_norm_weight, batch_norm_bias, group_norm_weight, group_norm_bias, batch_norm_running_mean, batch_norm_running_var, batch_norm_num_batches_tracked, x = dense
    convolution_sum_0_kept = _new(*specs[0])
    var_mean_0_kept = _new(*specs[1])
    var_mean_1_kept = _new(*specs[2])
    add_6 = _new(*specs[3])
    var_mean_1_0_kept = _new(*specs[4])
    var_mean_1_1_kept = _new(*specs[5])
    memory = _new(*room)
    if _SIMULATED:
        alone, counts = _apart(memory, counts, 4)
    kernels.training_forward(0b111, *map(_pointer, dense), convolution_sum_0_kept.data_ptr(), var_mean_0_kept.data_ptr(), var_mean_1_kept.data_ptr(), add_6.data_ptr(), var_mean_1_0_kept.data_ptr(), var_mean_1_1_kept.data_ptr(), memory.data_ptr(), *counts, _raw_stream(index))
    if dense is not tensors:
        tensors[6].copy_(dense[6])
        tensors[7].copy_(dense[7])
        tensors[8].copy_(dense[8])
    return [add_6], [batch_norm_bias, batch_norm_weight, conv_transpose_bias, conv_transpose_weight, convolution_sum_0_kept, group_norm_weight, var_mean_0_kept, var_mean_1_0_kept, var_mean_1_1_kept, var_mean_1_kept, x], sizes


def _training_backward_plan(needs, sizes, d_output):
    s0, s53, s77, convolution_sum_box, convolution_sum_boxes, convolution_backward_x_sum_box, convolution_backward_w_sum_splits = sizes
    dtype, device = d_output.dtype, d_output.device
    kernels = _kernels("backward", dtype, device, max(s0 * s53 * s77 * 64, (s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128, s0 * s53 * s77 * 128 + s0 * s77 * 256 + s53 * s77 * 256 + s77 * 512, convolution_sum_boxes * s77 * 128, convolution_backward_w_sum_splits * 204800, s77 * 8, 204800), convolution_backward_x_sum_box)
    accum = _accumulated(dtype)
    splits_rows_5 = _splits(128, 256, (s0 // 2) * (s53 // 2) * s77 + (s0 // 2) * s77 + (s53 // 2) * s77 + s77)
    splits_rows_7 = _splits(128, 256, s0 * s53 + s0 * 2 + s53 * 2 + 4, s77)
    splits_rows_12 = _splits(128, 256, s0 * s53 + s0 * 2 + s53 * 2 + 4, s77)
    stages = (0b1101 if needs[0] or needs[1] or needs[2] or needs[3] or needs[9] else 0) | (0b10 if needs[4] or needs[5] else 0) | (0b10000 if needs[0] or needs[1] or needs[9] else 0) | (0b100000 if needs[9] else 0) | (0b11000000 if needs[0] else 0) | (0b100000000 if needs[1] else 0)
    specs = [_spec((128,), dtype) if stages & 0b10 else None, _spec((128,), dtype) if stages & 0b10 else None, _spec((128,), dtype) if stages & 0b1000 else None, _spec((128,), dtype) if stages & 0b1000 else None, _spec((s77, 64, s53, s0), dtype) if stages & 0b100000 else None, _spec((64, 128, 5, 5), dtype) if stages & 0b10000000 else None, _spec((128,), dtype) if stages & 0b100000000 else None]
    room, places = _laid_out(stages, [(((s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128) * 8, 0b11001), ((128) * 64 * splits_rows_5, 0b10), (((s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128) * _bytes(dtype), 0b11100), (128 * _bytes(accum), 0b11000), (128 * _bytes(accum), 0b11000), ((128) * 128 * splits_rows_7, 0b1000), ((s0 * s53 * s77 * 128 + s0 * s77 * 256 + s53 * s77 * 256 + s77 * 512) * _bytes(dtype), 0b101110000), (1639680, 0b100000), (convolution_backward_w_sum_splits * 204800 * _bytes(accum), 0b11000000), (kernels.packed_contract_2(convolution_backward_w_sum_splits, s0, s53, s77), 0b1000000), ((128) * 32 * splits_rows_12, 0b100000000)], zip(specs, [0b10, 0b10, 0b1000, 0b1000, 0b100000, 0b10000000, 0b100000000]))
    return kernels, device.index, stages, specs, room, (*places, convolution_backward_w_sum_splits, convolution_backward_x_sum_box, s0, s53, s77, splits_rows_5, splits_rows_7, splits_rows_12,)


def _training_backward(needs, sizes, saved, d_output):
    tensors = d_output,
    (kernels, index, stages, specs, room, counts), (d_output,) = _planned(_training_backward_plan, tensors, needs, sizes)
    if _current_device() != index:
        with torch.cuda.device(index):
            return _training_backward(needs, sizes, saved, d_output)
    batch_norm_bias, batch_norm_weight, conv_transpose_bias, conv_transpose_weight, convolution_sum_0_kept, group_norm_weight, var_mean_0_kept, var_mean_1_0_kept, var_mean_1_1_kept, var_mean_1_kept, x = saved
    view_10 = specs[0] and _new(*specs[0])
    view_11 = specs[1] and _new(*specs[1])
    view_14 = specs[2] and _new(*specs[2])
    view_15 = specs[3] and _new(*specs[3])
    convolution_backward_x_sum = specs[4] and _new(*specs[4])
    convolution_backward_w_sum = specs[5] and _new(*specs[5])
    convolution_backward_0 = specs[6] and _new(*specs[6])
    memory = _new(*room)
    if _SIMULATED:
        alone, counts = _apart(memory, counts, 11)
    kernels.training_backward(stages, batch_norm_bias.data_ptr(), batch_norm_weight.data_ptr(), conv_transpose_bias.data_ptr(), convolution_sum_0_kept.data_ptr(), var_mean_0_kept.data_ptr(), var_mean_1_kept.data_ptr(), d_output.data_ptr(), var_mean_1_0_kept.data_ptr(), var_mean_1_1_kept.data_ptr(), _address(view_10), _address(view_11), group_norm_weight.data_ptr(), _address(view_14), _address(view_15), conv_transpose_weight.data_ptr(), _address(convolution_backward_x_sum), x.data_ptr(), _address(convolution_backward_w_sum), _address(convolution_backward_0), memory.data_ptr(), *counts, _raw_stream(index))
    return convolution_backward_w_sum, convolution_backward_0, view_15, view_14, view_11, view_10, None, None, None, convolution_backward_x_sum


def _training_inference_plan(conv_transpose_weight, conv_transpose_bias, batch_norm_weight, batch_norm_bias, group_norm_weight, group_norm_bias, batch_norm_running_mean, batch_norm_running_var, batch_norm_num_batches_tracked, x):
    dtype, device = _checked(conv_transpose_weight=conv_transpose_weight, conv_transpose_bias=conv_transpose_bias, batch_norm_weight=batch_norm_weight, batch_norm_bias=batch_norm_bias, group_norm_weight=group_norm_weight, group_norm_bias=group_norm_bias, batch_norm_running_mean=batch_norm_running_mean, batch_norm_running_var=batch_norm_running_var, batch_norm_num_batches_tracked=batch_norm_num_batches_tracked, x=x)
    if x.dim() != 4:
        raise _shape_error('x', x, '(s77, 64, s53, s0)')
    s77, _, s53, s0 = x.shape
    if conv_transpose_weight.shape != (64, 128, 5, 5):
        raise _shape_error('conv_transpose_weight', conv_transpose_weight, '(64, 128, 5, 5)')
    if conv_transpose_bias.shape != (128,):
        raise _shape_error('conv_transpose_bias', conv_transpose_bias, '(128,)')
    if batch_norm_weight.shape != (128,):
        raise _shape_error('batch_norm_weight', batch_norm_weight, '(128,)')
    if batch_norm_bias.shape != (128,):
        raise _shape_error('batch_norm_bias', batch_norm_bias, '(128,)')
    if group_norm_weight.shape != (128,):
        raise _shape_error('group_norm_weight', group_norm_weight, '(128,)')
    if group_norm_bias.shape != (128,):
        raise _shape_error('group_norm_bias', group_norm_bias, '(128,)')
    if batch_norm_running_mean.shape != (128,):
        raise _shape_error('batch_norm_running_mean', batch_norm_running_mean, '(128,)')
    if batch_norm_running_var.shape != (128,):
        raise _shape_error('batch_norm_running_var', batch_norm_running_var, '(128,)')
    if x.shape != (s77, 64, s53, s0):
        raise _shape_error('x', x, '(s77, 64, s53, s0)')
    convolution_sum_box = _box(dtype, device, 66, (26381, ((s0 + 35) // 34) * ((s53 + 13) // 12) * s77), (22314, ((s0 + 19) // 18) * ((s53 + 19) // 18) * s77), (23717, ((s0 + 11) // 10) * ((s53 + 11) // 10) * ((s77 + 2) // 3)))
    convolution_sum_boxes = _boxes(dtype, device, ((s0 + 35) // 34) * ((s53 + 3) // 2), (((s0 + 35) // 34) * ((s53 + 5) // 4), ((s0 + 19) // 18) * ((s53 + 7) // 6), ((s0 + 11) // 10) * ((s53 + 11) // 10))[convolution_sum_box], ((s0 + 35) // 34) * ((s53 + 7) // 6))
    if batch_norm_num_batches_tracked.dtype != torch.int64:
        raise RuntimeError(f"ModelNew: expected batch_norm_num_batches_tracked of torch.int64, got {batch_norm_num_batches_tracked.dtype}")
    kernels = _kernels("forward", dtype, device, max(s0 * s53 * s77 * 64, (s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128, convolution_sum_boxes * s77 * 128, 204800), convolution_sum_box)
    accum = _accumulated(dtype)
    specs = [_spec((s77, 128, (s53 // 2) + 1, (s0 // 2) + 1), dtype)]
    room, places = _laid_out(0b111, [(((s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128) * _bytes(dtype), 0b101), (convolution_sum_boxes * s77 * 128 * _bytes(accum), 0b11), (convolution_sum_boxes * s77 * 128 * _bytes(accum), 0b11), (convolution_sum_boxes * s77 * 128 * _bytes(accum), 0b11), (kernels.packed_contract_2(convolution_sum_box, convolution_sum_boxes, s0, s53, s77), 0b1), (128 * _bytes(accum), 0b110), (128 * _bytes(accum), 0b110)], zip(specs, [0b100]))
    return kernels, device.index, specs, room, (*places, convolution_sum_box, convolution_sum_boxes, s0, s53, s77,)


def _training_inference(tensors):
    (kernels, index, specs, room, counts), dense = _planned(_training_inference_plan, tensors)
    if _current_device() != index:
        with torch.cuda.device(index):
            return _training_inference(tensors)
    add_6 = _new(*specs[0])
    memory = _new(*room)
    if _SIMULATED:
        alone, counts = _apart(memory, counts, 7)
    kernels.training_inference(0b111, *map(_pointer, dense), add_6.data_ptr(), memory.data_ptr(), *counts, _raw_stream(index))
    if dense is not tensors:
        tensors[6].copy_(dense[6])
        tensors[7].copy_(dense[7])
        tensors[8].copy_(dense[8])
    return [add_6]


class _Training(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors):
        made, saved, ctx.sizes = _training_forward(tensors)
        ctx.save_for_backward(*saved)
        return tuple(made)

    @staticmethod
    @_once_backward
    def backward(ctx, *gradients):
        return _training_backward(ctx.needs_input_grad, ctx.sizes, ctx.saved_tensors, gradients[0])


def _evaluation_forward_plan(conv_transpose_weight, conv_transpose_bias, batch_norm_weight, batch_norm_bias, group_norm_weight, group_norm_bias, batch_norm_running_mean, batch_norm_running_var, batch_norm_num_batches_tracked, x):
    dtype, device = _checked(conv_transpose_weight=conv_transpose_weight, conv_transpose_bias=conv_transpose_bias, batch_norm_weight=batch_norm_weight, batch_norm_bias=batch_norm_bias, group_norm_weight=group_norm_weight, group_norm_bias=group_norm_bias, batch_norm_running_mean=batch_norm_running_mean, batch_norm_running_var=batch_norm_running_var, batch_norm_num_batches_tracked=batch_norm_num_batches_tracked, x=x)
    if x.dim() != 4:
        raise _shape_error('x', x, '(s77, 64, s53, s0)')
    s77, _, s53, s0 = x.shape
    if conv_transpose_weight.shape != (64, 128, 5, 5):
        raise _shape_error('conv_transpose_weight', conv_transpose_weight, '(64, 128, 5, 5)')
    if conv_transpose_bias.shape != (128,):
        raise _shape_error('conv_transpose_bias', conv_transpose_bias, '(128,)')
    if batch_norm_weight.shape != (128,):
        raise _shape_error('batch_norm_weight', batch_norm_weight, '(128,)')
    if batch_norm_bias.shape != (128,):
        raise _shape_error('batch_norm_bias', batch_norm_bias, '(128,)')
    if group_norm_weight.shape != (128,):
        raise _shape_error('group_norm_weight', group_norm_weight, '(128,)')
    if group_norm_bias.shape != (128,):
        raise _shape_error('group_norm_bias', group_norm_bias, '(128,)')
    if batch_norm_running_mean.shape != (128,):
        raise _shape_error('batch_norm_running_mean', batch_norm_running_mean, '(128,)')
    if batch_norm_running_var.shape != (128,):
        raise _shape_error('batch_norm_running_var', batch_norm_running_var, '(128,)')
    if x.shape != (s77, 64, s53, s0):
        raise _shape_error('x', x, '(s77, 64, s53, s0)')
    convolution_sum_box = _box(dtype, device, 66, (20085, ((s0 + 35) // 34) * ((s53 + 10) // 9) * s77), (22905, ((s0 + 19) // 18) * ((s53 + 19) // 18) * s77), (24399, ((s0 + 11) // 10) * ((s53 + 11) // 10) * ((s77 + 2) // 3)))
    convolution_backward_x_sum_box = _box(dtype, device, 132, (43159, ((s0 + 31) // 32) * ((s53 + 7) // 8) * s77), (46523, ((s0 + 15) // 16) * ((s53 + 15) // 16) * s77), (29462, ((s0 + 7) // 8) * ((s53 + 7) // 8) * ((s77 + 1) // 2)))
    convolution_backward_w_sum_splits = max(1, min(17, ((s0 + 31) // 32) * ((s53 + 3) // 4) * s77)) * 1
    kernels = _kernels("forward", dtype, device, max(s0 * s53 * s77 * 64, (s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128, s0 * s53 * s77 * 128 + s0 * s77 * 256 + s53 * s77 * 256 + s77 * 512, convolution_backward_w_sum_splits * 204800, s77 * 8, 204800), convolution_sum_box)
    accum = _accumulated(dtype)
    specs = [_spec((s77, 128, s53 + 2, s0 + 2), dtype), _spec((s77, 128, (s53 // 2) + 1, (s0 // 2) + 1), dtype), _spec((s77, 8), accum), _spec((s77, 8), accum)]
    room, places = _laid_out(0b11, [(kernels.packed_contract_3(convolution_sum_box, s0, s53, s77), 0b1)], zip(specs, [0b11, 0b10, 0b10, 0b10]))
    return kernels, device.index, specs, room, (*places, convolution_sum_box, s0, s53, s77,), (s0, s53, s77, convolution_sum_box, convolution_backward_x_sum_box, convolution_backward_w_sum_splits)


def _evaluation_forward(tensors):
    (kernels, index, specs, room, counts, sizes), dense = _planned(_evaluation_forward_plan, tensors)
    if _current_device() != index:
        with torch.cuda.device(index):
            return _evaluation_forward(tensors)
    conv_transpose_weight, conv_transpose_bias, batch_norm_weight, batch_norm_bias, group_norm_weight, group_norm_bias, batch_norm_running_mean, batch_norm_running_var, batch_norm_num_batches_tracked, x = dense
    convolution_sum_0_kept = _new(*specs[0])
    add_3 = _new(*specs[1])
    var_mean_0_kept = _new(*specs[2])
    var_mean_1_kept = _new(*specs[3])
    memory = _new(*room)
    if _SIMULATED:
        alone, counts = _apart(memory, counts, 1)
    kernels.evaluation_forward(0b11, *map(_pointer, dense), convolution_sum_0_kept.data_ptr(), add_3.data_ptr(), var_mean_0_kept.data_ptr(), var_mean_1_kept.data_ptr(), memory.data_ptr(), *counts, _raw_stream(index))
    return [add_3], [batch_norm_bias, batch_norm_running_mean, batch_norm_running_var, batch_norm_weight, conv_transpose_bias, conv_transpose_weight, convolution_sum_0_kept, group_norm_weight, var_mean_0_kept, var_mean_1_kept, x], sizes


def _evaluation_backward_plan(needs, sizes, d_output):
    s0, s53, s77, convolution_sum_box, convolution_backward_x_sum_box, convolution_backward_w_sum_splits = sizes
    dtype, device = d_output.dtype, d_output.device
    kernels = _kernels("backward", dtype, device, max(s0 * s53 * s77 * 64, (s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128, s0 * s53 * s77 * 128 + s0 * s77 * 256 + s53 * s77 * 256 + s77 * 512, convolution_backward_w_sum_splits * 204800, s77 * 8, 204800), convolution_backward_x_sum_box)
    accum = _accumulated(dtype)
    splits_rows_3 = _splits(128, 256, (s0 // 2) * (s53 // 2) * s77 + (s0 // 2) * s77 + (s53 // 2) * s77 + s77)
    splits_rows_6 = _splits(128, 256, s0 * s53 + s0 * 2 + s53 * 2 + 4, s77)
    stages = (0b1101 if needs[0] or needs[1] or needs[2] or needs[3] or needs[9] else 0) | (0b10 if needs[4] or needs[5] else 0) | (0b10000 if needs[1] or needs[2] or needs[3] else 0) | (0b100000 if needs[9] else 0) | (0b11000000 if needs[0] else 0)
    specs = [_spec((128,), dtype) if stages & 0b10 else None, _spec((128,), dtype) if stages & 0b10 else None, _spec((128,), dtype) if stages & 0b10000 else None, _spec((128,), dtype) if stages & 0b10000 else None, _spec((128,), dtype) if stages & 0b10000 else None, _spec((s77, 64, s53, s0), dtype) if stages & 0b100000 else None, _spec((64, 128, 5, 5), dtype) if stages & 0b10000000 else None]
    room, places = _laid_out(stages, [(((s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128) * 8, 0b11001), ((128) * 64 * splits_rows_3, 0b10), (((s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128) * _bytes(dtype), 0b11100), ((s0 * s53 * s77 * 128 + s0 * s77 * 256 + s53 * s77 * 256 + s77 * 512) * _bytes(dtype), 0b1111000), ((128) * 96 * splits_rows_6, 0b10000), (1639680, 0b100000), (convolution_backward_w_sum_splits * 204800 * _bytes(accum), 0b11000000), (kernels.packed_contract_4(convolution_backward_w_sum_splits, s0, s53, s77), 0b1000000)], zip(specs, [0b10, 0b10, 0b10000, 0b10000, 0b10000, 0b100000, 0b10000000]))
    return kernels, device.index, stages, specs, room, (*places, convolution_backward_w_sum_splits, convolution_backward_x_sum_box, s0, s53, s77, splits_rows_3, splits_rows_6,)


def _evaluation_backward(needs, sizes, saved, d_output):
    tensors = d_output,
    (kernels, index, stages, specs, room, counts), (d_output,) = _planned(_evaluation_backward_plan, tensors, needs, sizes)
    if _current_device() != index:
        with torch.cuda.device(index):
            return _evaluation_backward(needs, sizes, saved, d_output)
    batch_norm_bias, batch_norm_running_mean, batch_norm_running_var, batch_norm_weight, conv_transpose_bias, conv_transpose_weight, convolution_sum_0_kept, group_norm_weight, var_mean_0_kept, var_mean_1_kept, x = saved
    view_7 = specs[0] and _new(*specs[0])
    view_8 = specs[1] and _new(*specs[1])
    view_11 = specs[2] and _new(*specs[2])
    mul_28 = specs[3] and _new(*specs[3])
    convolution_backward_0 = specs[4] and _new(*specs[4])
    convolution_backward_x_sum = specs[5] and _new(*specs[5])
    convolution_backward_w_sum = specs[6] and _new(*specs[6])
    memory = _new(*room)
    if _SIMULATED:
        alone, counts = _apart(memory, counts, 8)
    kernels.evaluation_backward(stages, batch_norm_bias.data_ptr(), batch_norm_running_mean.data_ptr(), batch_norm_running_var.data_ptr(), batch_norm_weight.data_ptr(), conv_transpose_bias.data_ptr(), convolution_sum_0_kept.data_ptr(), d_output.data_ptr(), var_mean_0_kept.data_ptr(), var_mean_1_kept.data_ptr(), _address(view_7), _address(view_8), group_norm_weight.data_ptr(), _address(convolution_backward_0), _address(mul_28), _address(view_11), conv_transpose_weight.data_ptr(), _address(convolution_backward_x_sum), x.data_ptr(), _address(convolution_backward_w_sum), memory.data_ptr(), *counts, _raw_stream(index))
    return convolution_backward_w_sum, convolution_backward_0, mul_28, view_11, view_8, view_7, None, None, None, convolution_backward_x_sum


def _evaluation_inference_plan(conv_transpose_weight, conv_transpose_bias, batch_norm_weight, batch_norm_bias, group_norm_weight, group_norm_bias, batch_norm_running_mean, batch_norm_running_var, batch_norm_num_batches_tracked, x):
    dtype, device = _checked(conv_transpose_weight=conv_transpose_weight, conv_transpose_bias=conv_transpose_bias, batch_norm_weight=batch_norm_weight, batch_norm_bias=batch_norm_bias, group_norm_weight=group_norm_weight, group_norm_bias=group_norm_bias, batch_norm_running_mean=batch_norm_running_mean, batch_norm_running_var=batch_norm_running_var, batch_norm_num_batches_tracked=batch_norm_num_batches_tracked, x=x)
    if x.dim() != 4:
        raise _shape_error('x', x, '(s77, 64, s53, s0)')
    s77, _, s53, s0 = x.shape
    if conv_transpose_weight.shape != (64, 128, 5, 5):
        raise _shape_error('conv_transpose_weight', conv_transpose_weight, '(64, 128, 5, 5)')
    if conv_transpose_bias.shape != (128,):
        raise _shape_error('conv_transpose_bias', conv_transpose_bias, '(128,)')
    if batch_norm_weight.shape != (128,):
        raise _shape_error('batch_norm_weight', batch_norm_weight, '(128,)')
    if batch_norm_bias.shape != (128,):
        raise _shape_error('batch_norm_bias', batch_norm_bias, '(128,)')
    if group_norm_weight.shape != (128,):
        raise _shape_error('group_norm_weight', group_norm_weight, '(128,)')
    if group_norm_bias.shape != (128,):
        raise _shape_error('group_norm_bias', group_norm_bias, '(128,)')
    if batch_norm_running_mean.shape != (128,):
        raise _shape_error('batch_norm_running_mean', batch_norm_running_mean, '(128,)')
    if batch_norm_running_var.shape != (128,):
        raise _shape_error('batch_norm_running_var', batch_norm_running_var, '(128,)')
    if x.shape != (s77, 64, s53, s0):
        raise _shape_error('x', x, '(s77, 64, s53, s0)')
    convolution_sum_box = _box(dtype, device, 66, (26381, ((s0 + 35) // 34) * ((s53 + 13) // 12) * s77), (22314, ((s0 + 19) // 18) * ((s53 + 19) // 18) * s77), (23717, ((s0 + 11) // 10) * ((s53 + 11) // 10) * ((s77 + 2) // 3)))
    kernels = _kernels("forward", dtype, device, max(s0 * s53 * s77 * 64, (s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128, 204800), convolution_sum_box)
    specs = [_spec((s77, 128, (s53 // 2) + 1, (s0 // 2) + 1), dtype)]
    room, places = _laid_out(0b11, [(((s0 // 2) * (s53 // 2) * s77 * 128 + (s0 // 2) * s77 * 128 + (s53 // 2) * s77 * 128 + s77 * 128) * _bytes(dtype), 0b11), (kernels.packed_contract_4(convolution_sum_box, s0, s53, s77), 0b1)], zip(specs, [0b10]))
    return kernels, device.index, specs, room, (*places, convolution_sum_box, s0, s53, s77,)


def _evaluation_inference(tensors):
    (kernels, index, specs, room, counts), dense = _planned(_evaluation_inference_plan, tensors)
    if _current_device() != index:
        with torch.cuda.device(index):
            return _evaluation_inference(tensors)
    add_3 = _new(*specs[0])
    memory = _new(*room)
    if _SIMULATED:
        alone, counts = _apart(memory, counts, 2)
    kernels.evaluation_inference(0b11, *map(_pointer, dense), add_3.data_ptr(), memory.data_ptr(), *counts, _raw_stream(index))
    return [add_3]


class _Evaluation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors):
        made, saved, ctx.sizes = _evaluation_forward(tensors)
        ctx.save_for_backward(*saved)
        return tuple(made)

    @staticmethod
    @_once_backward
    def backward(ctx, *gradients):
        return _evaluation_backward(ctx.needs_input_grad, ctx.sizes, ctx.saved_tensors, gradients[0])


try:  # autograd is told of a tensor that kernels have changed, as by an operator of torch's
    from torch.autograd.graph import increment_version as _changed
except ImportError:  # torch 2.0

    def _changed(tensor):
        torch._C._autograd._unsafe_set_version_counter(tensor, tensor._version + 1)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, groups, num_groups):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        self.batch_norm = nn.BatchNorm2d(out_channels)
        self.tanh = nn.Tanh()
        self.max_pool = nn.MaxPool2d(kernel_size=2, stride=2)
        self.group_norm = nn.GroupNorm(num_groups=num_groups, num_channels=out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        _expect(self, 'd7be9f21649ed39f', _LAYERS)
        try:
            _layer0 = self._modules['conv_transpose']
            _layer1 = self._modules['batch_norm']
            _layer2 = self._modules['group_norm']
            tensors = _layer0._parameters['weight'], _layer0._parameters['bias'], _layer1._parameters['weight'], _layer1._parameters['bias'], _layer2._parameters['weight'], _layer2._parameters['bias'], _layer1._buffers['running_mean'], _layer1._buffers['running_var'], _layer1._buffers['num_batches_tracked'], x
        except (AttributeError, KeyError):  # a layer that was exchanged, or computes its weights
            tensors = self.conv_transpose.weight, self.conv_transpose.bias, self.batch_norm.weight, self.batch_norm.bias, self.group_norm.weight, self.group_norm.bias, self.batch_norm.running_mean, self.batch_norm.running_var, self.batch_norm.num_batches_tracked, x
        if self.training:
            made = _Training.apply(*tensors) if torch.is_grad_enabled() and any(t.requires_grad for t in tensors) else _training_inference(tensors)
            _changed(tensors[6])
            _changed(tensors[7])
            _changed(tensors[8])
            return made[0]
        made = _Evaluation.apply(*tensors) if torch.is_grad_enabled() and any(t.requires_grad for t in tensors) else _evaluation_inference(tensors)
        return made[0]


batch_size = 512
in_channels = 64
out_channels = 128
height = 32
width = 32
kernel_size = 5
stride = 1
padding = 1
groups = 8
num_groups = 8


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, groups, num_groups]
