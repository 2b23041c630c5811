"""Mean of the rows of an fp16 matrix: partial sums in fp32 for chunks of rows, added with float atomics, divided at the end."""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_fp16.h>

constexpr int kThreads = 128, kRows = 64;  // a block sums 64 rows of 128 columns

__global__ void sum_kernel(const __half* __restrict__ x, float* __restrict__ sums, int64_t rows, int64_t cols) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= cols) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kRows, last = min(first + kRows, rows);
  float sum = 0.f;
  for (int64_t r = first; r < last; ++r) sum += __half2float(x[r * cols + c]);
  atomicAdd(&sums[c], sum);
}

__global__ void mean_kernel(const float* __restrict__ sums, __half* __restrict__ out, int64_t rows, int64_t cols) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c < cols) out[c] = __float2half(sums[c] / static_cast<float>(rows));
}

__global__ void backward_kernel(const __half* __restrict__ dout, __half* __restrict__ dx, int64_t rows, int64_t cols) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < rows * cols) dx[i] = __float2half(__half2float(dout[i % cols]) / static_cast<float>(rows));
}

torch::Tensor column_mean(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "column_mean: x must be a CUDA tensor");
  TORCH_CHECK(x.scalar_type() == torch::kHalf, "column_mean: only float16 is supported");
  TORCH_CHECK(x.dim() == 2, "column_mean: expected a matrix");
  const c10::cuda::CUDAGuard guard(x.device());
  x = x.contiguous();
  const int64_t rows = x.size(0), cols = x.size(1), chunks = (rows + kRows - 1) / kRows;
  TORCH_CHECK(chunks <= 65535, "column_mean: too many rows");
  auto sums = torch::zeros({cols}, x.options().dtype(torch::kFloat32));
  auto out = torch::empty({cols}, x.options());
  if (cols == 0) return out;
  const unsigned wide = static_cast<unsigned>((cols + kThreads - 1) / kThreads);
  const auto stream = at::cuda::getCurrentCUDAStream();
  if (rows > 0) {
    sum_kernel<<<dim3(wide, chunks), kThreads, 0, stream>>>(
        reinterpret_cast<const __half*>(x.data_ptr<at::Half>()), sums.data_ptr<float>(), rows, cols);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  mean_kernel<<<wide, kThreads, 0, stream>>>(
      sums.data_ptr<float>(), reinterpret_cast<__half*>(out.data_ptr<at::Half>()), rows, cols);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

torch::Tensor column_mean_backward(torch::Tensor dout, int64_t rows) {
  const c10::cuda::CUDAGuard guard(dout.device());
  dout = dout.contiguous();
  const int64_t cols = dout.size(0);
  auto dx = torch::empty({rows, cols}, dout.options());
  if (dx.numel() == 0) return dx;
  backward_kernel<<<(dx.numel() + kThreads - 1) / kThreads, kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const __half*>(dout.data_ptr<at::Half>()), reinterpret_cast<__half*>(dx.data_ptr<at::Half>()), rows, cols);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return dx;
}
"""

cpp_source = """
torch::Tensor column_mean(torch::Tensor x);
torch::Tensor column_mean_backward(torch::Tensor dout, int64_t rows);
"""

ext = load_inline(
    name="column_mean_half",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["column_mean", "column_mean_backward"],
)


class ColumnMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        return ext.column_mean(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout):
        return ext.column_mean_backward(dout, ctx.rows)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ColumnMean.apply(x)
