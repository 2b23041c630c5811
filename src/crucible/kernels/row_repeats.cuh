// Long rows that are the same stretch of places several times (a channel of every sample), cut both ways: into parts of the
// stretch, and where that is short into some of the times each. Functors are those of launch_split_rows (row.cuh), but
//   __host__ __device__ Index repeats() const;   how many times
//   walk(lanes, row, first, last, from, to, a)   of the times first to below last, the places from to below to
#pragma once

#include "row.cuh"

namespace crucible {

// How a row is cut: its stretch into so many, the times into so many.
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
__global__ void __launch_bounds__(ROW_THREADS) row_repeats_kernel(const R r, typename R::Acc* parts, RowCuts cuts) {
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

// `parts` has room for rows * splits partial results.
template <int N, class R>
cudaError_t launch_repeated_rows(const R& r, void* parts, int splits, cudaStream_t stream) {
  const int64_t rows = r.rows();
  if (rows <= 0) return cudaSuccess;
  auto* const acc = static_cast<typename R::Acc*>(parts);
  const RowCuts cuts = row_cuts<N>(r, splits);
  const int count = cuts.along * cuts.across;
  const cudaError_t error = cudaLaunchKernelEx(After(dim3(row_blocks(rows, N), count), ROW_THREADS, 0, stream),
                                               row_repeats_kernel<N, R>, r, acc, cuts);
  if (error != cudaSuccess) return error;
  return cudaLaunchKernelEx(After(row_blocks(rows, 32), ROW_THREADS, 0, stream), row_whole_kernel<R>, r, acc, count);
}

}  // namespace crucible
