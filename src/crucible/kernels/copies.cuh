// Several small tensors copied by one launch: buffers of a module that a call updates, once nothing reads them any more.
//
// Block (x, y) copies its share of pair y, byte by byte: they hold a few numbers a channel, and the launch is what costs.
#pragma once
#include "common.cuh"

namespace crucible {

template <int N>
struct Copies {
  struct Pair { uint64_t from, to; int64_t bytes; } pairs[N];
};

template <int N>
__global__ void copies_kernel(const Copies<N> copies) {
  follow();
  const auto& pair = copies.pairs[blockIdx.y];
  const unsigned char* const from = reinterpret_cast<const unsigned char*>(pair.from);
  unsigned char* const to = reinterpret_cast<unsigned char*>(pair.to);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < pair.bytes; i += step) to[i] = from[i];
}

#ifndef __CUDACC_RTC__
template <int N>
cudaError_t launch_copies(const Copies<N>& copies, cudaStream_t stream) {
  int64_t most = 0;
  for (const auto& pair : copies.pairs) most = pair.bytes > most ? pair.bytes : most;
  const int64_t blocks = (most + 255) / 256;
  if (blocks == 0) return cudaSuccess;
  return cudaLaunchKernelEx(After(dim3(static_cast<unsigned>(blocks < 1024 ? blocks : 1024), N), 256, 0, stream), copies_kernel<N>, copies);
}
#endif

}  // namespace crucible
