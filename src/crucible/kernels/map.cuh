// A thread an element, or several that lie together: the functor computes and stores them.
//
// A functor M has `Index count() const` and either `void operator()(Index i) const`, or, where M::in_vectors,
//   Stretch places() const;  void walk(const MapThreads& threads, const Stretch& places) const;
// Reads and writes what the functor does; neighbouring threads take neighbouring elements, or vectors, and a block takes
// IN_FLIGHT vectors a thread side by side.
#pragma once

#include "common.cuh"
#include "vectors.cuh"

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
