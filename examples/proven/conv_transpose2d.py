"""Transposed 2D convolution, one thread an output element, with its own gradient kernels.

An input pixel iy reaches output row oy = iy * stride - padding + ky and no other, so a gather from the output's side must
test divisibility by the stride before it divides.
"""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerChunk = 16;

struct Geometry {
  int64_t batch, in_channels, in_h, in_w, out_channels, out_h, out_w, groups, kernel, stride, padding;
};

inline int grid_for(int64_t work) {
  return static_cast<int>(std::min<int64_t>((work + kThreads - 1) / kThreads, 1 << 20));
}

// y[n, oc, oy, ox] = bias[oc] + sum over (ic, ky, kx) of x[n, ic, iy, ix] * w[ic, oc, ky, kx]
template <typename T>
__global__ void forward_kernel(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias,
                               T* __restrict__ y, Geometry g) {
  using acc_t = at::acc_type<T, true>;
  const int64_t cin = g.in_channels / g.groups, cout = g.out_channels / g.groups;
  const int64_t taps = g.kernel * g.kernel;
  const int64_t total = g.batch * g.out_channels * g.out_h * g.out_w;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
    const int64_t ox = i % g.out_w, oy = i / g.out_w % g.out_h;
    const int64_t oc = i / (g.out_w * g.out_h) % g.out_channels, n = i / (g.out_w * g.out_h * g.out_channels);
    const int64_t group = oc / cout;
    acc_t sum = bias != nullptr ? static_cast<acc_t>(bias[oc]) : acc_t(0);
    for (int64_t ky = 0; ky < g.kernel; ++ky) {
      const int64_t ty = oy + g.padding - ky;
      if (ty < 0 || ty % g.stride != 0 || ty / g.stride >= g.in_h) continue;
      for (int64_t kx = 0; kx < g.kernel; ++kx) {
        const int64_t tx = ox + g.padding - kx;
        if (tx < 0 || tx % g.stride != 0 || tx / g.stride >= g.in_w) continue;
        const T* xp = x + ((n * g.in_channels + group * cin) * g.in_h + ty / g.stride) * g.in_w + tx / g.stride;
        const T* wp = w + (group * cin * cout + oc % cout) * taps + ky * g.kernel + kx;
        acc_t tap = 0;
        for (int64_t c = 0; c < cin; ++c) {
          tap += static_cast<acc_t>(xp[c * g.in_h * g.in_w]) * static_cast<acc_t>(wp[c * cout * taps]);
        }
        sum += tap;
      }
    }
    y[i] = static_cast<T>(sum);
  }
}

// dx[n, ic, iy, ix] = sum over (oc, ky, kx) of dy[n, oc, oy, ox] * w[ic, oc, ky, kx]: an ordinary convolution.
template <typename T>
__global__ void grad_input_kernel(const T* __restrict__ dy, const T* __restrict__ w, T* __restrict__ dx, Geometry g) {
  using acc_t = at::acc_type<T, true>;
  const int64_t cin = g.in_channels / g.groups, cout = g.out_channels / g.groups;
  const int64_t taps = g.kernel * g.kernel;
  const int64_t total = g.batch * g.in_channels * g.in_h * g.in_w;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
    const int64_t ix = i % g.in_w, iy = i / g.in_w % g.in_h;
    const int64_t ic = i / (g.in_w * g.in_h) % g.in_channels, n = i / (g.in_w * g.in_h * g.in_channels);
    const int64_t first_oc = ic / cin * cout;
    acc_t sum = 0;
    for (int64_t ky = 0; ky < g.kernel; ++ky) {
      const int64_t oy = iy * g.stride - g.padding + ky;
      if (oy < 0 || oy >= g.out_h) continue;
      for (int64_t kx = 0; kx < g.kernel; ++kx) {
        const int64_t ox = ix * g.stride - g.padding + kx;
        if (ox < 0 || ox >= g.out_w) continue;
        const T* dyp = dy + ((n * g.out_channels + first_oc) * g.out_h + oy) * g.out_w + ox;
        const T* wp = w + ic * cout * taps + ky * g.kernel + kx;
        acc_t tap = 0;
        for (int64_t c = 0; c < cout; ++c) {
          tap += static_cast<acc_t>(dyp[c * g.out_h * g.out_w]) * static_cast<acc_t>(wp[c * taps]);
        }
        sum += tap;
      }
    }
    dx[i] = static_cast<T>(sum);
  }
}

// One thread a weight, one grid row a chunk of (sample, kRowsPerChunk input rows): partial sums, so that a long sum stays accurate.
template <typename T>
__global__ void grad_weight_kernel(const T* __restrict__ x, const T* __restrict__ dy,
                                   at::acc_type<T, true>* __restrict__ partial, Geometry g, int64_t chunks_per_sample) {
  using acc_t = at::acc_type<T, true>;
  const int64_t cin = g.in_channels / g.groups, cout = g.out_channels / g.groups;
  const int64_t weights = g.in_channels * cout * g.kernel * g.kernel;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= weights) return;
  const int64_t kx = i % g.kernel, ky = i / g.kernel % g.kernel;
  const int64_t ocl = i / (g.kernel * g.kernel) % cout, ic = i / (g.kernel * g.kernel * cout);
  const int64_t oc = ic / cin * cout + ocl;
  for (int64_t chunk = blockIdx.y; chunk < g.batch * chunks_per_sample; chunk += gridDim.y) {
    const int64_t n = chunk / chunks_per_sample, first = chunk % chunks_per_sample * kRowsPerChunk;
    const int64_t last = min(first + kRowsPerChunk, g.in_h);
    acc_t sum = 0;
    for (int64_t iy = first; iy < last; ++iy) {
      const int64_t oy = iy * g.stride - g.padding + ky;
      if (oy < 0 || oy >= g.out_h) continue;
      const T* xp = x + ((n * g.in_channels + ic) * g.in_h + iy) * g.in_w;
      const T* dyp = dy + ((n * g.out_channels + oc) * g.out_h + oy) * g.out_w;
      acc_t row = 0;
      for (int64_t ix = 0; ix < g.in_w; ++ix) {
        const int64_t ox = ix * g.stride - g.padding + kx;
        if (ox >= 0 && ox < g.out_w) row += static_cast<acc_t>(xp[ix]) * static_cast<acc_t>(dyp[ox]);
      }
      sum += row;
    }
    partial[chunk * weights + i] = sum;
  }
}

template <typename T>
__global__ void sum_partials_kernel(const at::acc_type<T, true>* __restrict__ partial, T* __restrict__ out, int64_t count,
                                    int64_t chunks) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  at::acc_type<T, true> sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += partial[c * count + i];
  out[i] = static_cast<T>(sum);
}

Geometry geometry(const torch::Tensor& x, const torch::Tensor& weight, int64_t stride, int64_t padding,
                  int64_t output_padding, int64_t groups) {
  Geometry g;
  g.batch = x.size(0), g.in_channels = x.size(1), g.in_h = x.size(2), g.in_w = x.size(3);
  g.groups = groups, g.kernel = weight.size(2), g.stride = stride, g.padding = padding;
  g.out_channels = weight.size(1) * groups;
  g.out_h = (g.in_h - 1) * stride - 2 * padding + g.kernel + output_padding;
  g.out_w = (g.in_w - 1) * stride - 2 * padding + g.kernel + output_padding;
  return g;
}

}  // namespace

torch::Tensor conv_transpose2d_forward(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias, int64_t stride,
                                       int64_t padding, int64_t output_padding, int64_t groups) {
  TORCH_CHECK(x.is_cuda() && weight.is_cuda(), "conv_transpose2d: x and weight must be CUDA tensors");
  TORCH_CHECK(x.dim() == 4, "conv_transpose2d: expected a 4D input, got ", x.dim(), " dimensions");
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "conv_transpose2d: input is ", x.scalar_type(), ", weight is ",
              weight.scalar_type());
  TORCH_CHECK(x.size(1) == weight.size(0), "conv_transpose2d: expected ", weight.size(0), " channels, got ", x.size(1));
  TORCH_CHECK(weight.size(2) == weight.size(3), "conv_transpose2d: the kernel must be square");
  const c10::cuda::CUDAGuard guard(x.device());
  x = x.contiguous();
  weight = weight.contiguous();
  const Geometry g = geometry(x, weight, stride, padding, output_padding, groups);
  TORCH_CHECK(g.out_h > 0 && g.out_w > 0, "conv_transpose2d: the output would be empty");
  auto y = torch::empty({g.batch, g.out_channels, g.out_h, g.out_w}, x.options());
  if (y.numel() == 0) return y;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "conv_transpose2d_forward", [&] {
    const scalar_t* b = bias.has_value() ? bias->data_ptr<scalar_t>() : nullptr;
    forward_kernel<scalar_t><<<grid_for(y.numel()), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), b, y.data_ptr<scalar_t>(), g);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

std::vector<torch::Tensor> conv_transpose2d_backward(torch::Tensor dy, torch::Tensor x, torch::Tensor weight, int64_t stride,
                                                     int64_t padding, int64_t output_padding, int64_t groups) {
  const c10::cuda::CUDAGuard guard(x.device());
  dy = dy.contiguous();
  x = x.contiguous();
  weight = weight.contiguous();
  const Geometry g = geometry(x, weight, stride, padding, output_padding, groups);
  auto dx = torch::empty_like(x);
  auto dw = torch::zeros_like(weight);
  if (x.numel() == 0) return {dx, dw};
  const int64_t chunks_per_sample = (g.in_h + kRowsPerChunk - 1) / kRowsPerChunk, chunks = g.batch * chunks_per_sample;
  const int64_t weights = weight.numel();
  const auto stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "conv_transpose2d_backward", [&] {
    using acc_t = at::acc_type<scalar_t, true>;
    grad_input_kernel<scalar_t><<<grid_for(x.numel()), kThreads, 0, stream>>>(
        dy.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), dx.data_ptr<scalar_t>(), g);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    auto partial = torch::empty({chunks, weights}, x.options().dtype(c10::CppTypeToScalarType<acc_t>::value));
    const dim3 grid((weights + kThreads - 1) / kThreads, std::min<int64_t>(chunks, 65535));
    grad_weight_kernel<scalar_t><<<grid, kThreads, 0, stream>>>(
        x.data_ptr<scalar_t>(), dy.data_ptr<scalar_t>(), partial.data_ptr<acc_t>(), g, chunks_per_sample);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    sum_partials_kernel<scalar_t><<<(weights + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
        partial.data_ptr<acc_t>(), dw.data_ptr<scalar_t>(), weights, chunks);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {dx, dw};
}
"""

cpp_source = """
torch::Tensor conv_transpose2d_forward(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias, int64_t stride,
                                       int64_t padding, int64_t output_padding, int64_t groups);
std::vector<torch::Tensor> conv_transpose2d_backward(torch::Tensor dy, torch::Tensor x, torch::Tensor weight, int64_t stride,
                                                     int64_t padding, int64_t output_padding, int64_t groups);
"""

ext = load_inline(
    name="conv_transpose2d_direct",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["conv_transpose2d_forward", "conv_transpose2d_backward"],
)


class ConvTranspose2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, stride, padding, output_padding, groups):
        ctx.save_for_backward(x, weight)
        ctx.config = (stride, padding, output_padding, groups)
        ctx.has_bias = bias is not None
        return ext.conv_transpose2d_forward(x, weight, bias, stride, padding, output_padding, groups)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx, dw = ext.conv_transpose2d_backward(dy, x, weight, *ctx.config)
        db = dy.sum(dim=(0, 2, 3)) if ctx.has_bias else None
        return dx, dw, db, None, None, None, None


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 output_padding: int = 0, groups: int = 1, bias: bool = False):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding,
            groups=groups, bias=bias,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv_transpose2d
        return ConvTranspose2d.apply(
            x, conv.weight, conv.bias, conv.stride[0], conv.padding[0], conv.output_padding[0], conv.groups
        )
