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
#pragma once

#include "lanes.cuh"
#include "vectors.cuh"

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
