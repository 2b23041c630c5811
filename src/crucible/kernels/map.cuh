// One thread an element: the functor computes and stores it.
//
// A functor M has `Index count() const` and `void operator()(Index i) const`. Reads and writes what the functor does;
// neighbouring threads take neighbouring elements.
#pragma once

#include "common.cuh"

namespace crucible {

constexpr int MAP_THREADS = 256;

template <class M>
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(const M m) {
  const int64_t count = m.count(), step = static_cast<int64_t>(gridDim.x) * MAP_THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * MAP_THREADS + threadIdx.x; i < count; i += step) {
    m(static_cast<Index>(i));
  }
}

template <class M>
cudaError_t launch_map(const M& m, cudaStream_t stream) {
  const int64_t count = m.count();
  if (count <= 0) return cudaSuccess;
  const int64_t blocks = (count + MAP_THREADS - 1) / MAP_THREADS, most = 1 << 20;
  map_kernel<<<static_cast<unsigned>(blocks < most ? blocks : most), MAP_THREADS, 0, stream>>>(m);
  return cudaGetLastError();
}

}  // namespace crucible
