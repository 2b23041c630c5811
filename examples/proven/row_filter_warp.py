"""Seven-tap filter along rows: each warp keeps 32 outputs' worth of input, with its halo, in its own slice of shared memory.

Nothing is shared between warps, so __syncwarp is all the synchronisation there is.
"""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

constexpr int kWarps = 4, kRadius = 3, kTaps = 2 * kRadius + 1, kSlice = 32 + 2 * kRadius;

template <typename T>
__global__ void filter_kernel(const T* __restrict__ x, const T* __restrict__ taps, T* __restrict__ y, int64_t rows, int64_t cols) {
  using acc_t = at::acc_type<T, true>;
  __shared__ acc_t slices[kWarps][kSlice];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  acc_t* slice = slices[warp];
  acc_t weights[kTaps];
  for (int t = 0; t < kTaps; ++t) weights[t] = static_cast<acc_t>(taps[t]);
  const int64_t segments = (cols + 31) / 32, total = rows * segments;
  for (int64_t s = static_cast<int64_t>(blockIdx.x) * kWarps + warp; s < total; s += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t row = s / segments, first = s % segments * 32;
    for (int i = lane; i < kSlice; i += 32) {
      const int64_t c = first - kRadius + i;
      slice[i] = c >= 0 && c < cols ? static_cast<acc_t>(x[row * cols + c]) : acc_t(0);
    }
    __syncwarp();
    acc_t sum = 0;
    for (int t = 0; t < kTaps; ++t) sum += weights[t] * slice[lane + t];
    if (first + lane < cols) y[row * cols + first + lane] = static_cast<T>(sum);
    __syncwarp();  // the next segment overwrites the slice
  }
}

torch::Tensor row_filter(torch::Tensor x, torch::Tensor taps) {
  TORCH_CHECK(x.is_cuda(), "row_filter: x must be a CUDA tensor");
  TORCH_CHECK(taps.numel() == kTaps && taps.scalar_type() == x.scalar_type(), "row_filter: expected seven taps of x's dtype");
  const c10::cuda::CUDAGuard guard(x.device());
  x = x.contiguous();
  auto y = torch::empty_like(x);
  if (x.numel() == 0) return y;
  const int64_t cols = x.size(-1), rows = x.numel() / cols, work = rows * ((cols + 31) / 32);
  const int blocks = static_cast<int>(std::min<int64_t>((work + kWarps - 1) / kWarps, 1024));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "row_filter", [&] {
    filter_kernel<scalar_t><<<blocks, kWarps * 32, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), taps.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), rows, cols);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""

ext = load_inline(
    name="row_filter_warp",
    cpp_sources="torch::Tensor row_filter(torch::Tensor x, torch::Tensor taps);",
    cuda_sources=cuda_source,
    functions=["row_filter"],
)


class RowFilter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, taps):
        ctx.save_for_backward(taps)
        return ext.row_filter(x, taps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        (taps,) = ctx.saved_tensors
        return ext.row_filter(dy, taps.flip(-1).contiguous()), None  # the filter is its own adjoint, up to the flip


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        taps = torch.tensor([1.0, 6.0, 15.0, 20.0, 15.0, 6.0, 1.0]) / 64
        self.register_buffer("taps", taps.view(1, 1, 7), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return RowFilter.apply(x, self.taps.to(x.dtype))
