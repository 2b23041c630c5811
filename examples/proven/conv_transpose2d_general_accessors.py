"""Transposed convolution with groups, stride, padding, output_padding and dilation, written with packed accessors.

Accessors carry strides, so any layout of the input is read as it lies. Gradients are gathers too: one thread an input element, one a weight.
"""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

template <typename T, int N>
using Accessor = torch::PackedTensorAccessor64<T, N, torch::RestrictPtrTraits>;

constexpr int kThreads = 128;

struct Steps {
  int stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups;
};

template <typename scalar_t>
__global__ void forward_kernel(const Accessor<scalar_t, 4> x, const Accessor<scalar_t, 4> w, const Accessor<scalar_t, 1> bias,
                               Accessor<scalar_t, 4> y, Steps s) {
  using acc_t = at::acc_type<scalar_t, true>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= y.size(0) * y.size(1) * y.size(2) * y.size(3)) return;
  const int64_t ox = i % y.size(3), oy = i / y.size(3) % y.size(2);
  const int64_t oc = i / (y.size(3) * y.size(2)) % y.size(1), n = i / (y.size(3) * y.size(2) * y.size(1));
  const int64_t cout = w.size(1), cin = w.size(0) / s.groups, group = oc / cout;
  acc_t sum = 0;
  for (int64_t ky = 0; ky < w.size(2); ++ky) {
    const int64_t ty = oy + s.pad_h - ky * s.dil_h;
    if (ty < 0 || ty % s.stride_h != 0) continue;
    const int64_t iy = ty / s.stride_h;
    if (iy >= x.size(2)) continue;
    for (int64_t kx = 0; kx < w.size(3); ++kx) {
      const int64_t tx = ox + s.pad_w - kx * s.dil_w;
      if (tx < 0 || tx % s.stride_w != 0) continue;
      const int64_t ix = tx / s.stride_w;
      if (ix >= x.size(3)) continue;
      for (int64_t c = 0; c < cin; ++c) {
        const int64_t ic = group * cin + c;
        sum += static_cast<acc_t>(x[n][ic][iy][ix]) * static_cast<acc_t>(w[ic][oc % cout][ky][kx]);
      }
    }
  }
  if (bias.size(0) > 0) sum += static_cast<acc_t>(bias[oc]);
  y[n][oc][oy][ox] = static_cast<scalar_t>(sum);
}

template <typename scalar_t>
__global__ void grad_input_kernel(const Accessor<scalar_t, 4> dy, const Accessor<scalar_t, 4> w, Accessor<scalar_t, 4> dx,
                                  Steps s) {
  using acc_t = at::acc_type<scalar_t, true>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= dx.size(0) * dx.size(1) * dx.size(2) * dx.size(3)) return;
  const int64_t ix = i % dx.size(3), iy = i / dx.size(3) % dx.size(2);
  const int64_t ic = i / (dx.size(3) * dx.size(2)) % dx.size(1), n = i / (dx.size(3) * dx.size(2) * dx.size(1));
  const int64_t cout = w.size(1), cin = w.size(0) / s.groups, group = ic / cin;
  acc_t sum = 0;
  for (int64_t ky = 0; ky < w.size(2); ++ky) {
    const int64_t oy = iy * s.stride_h - s.pad_h + ky * s.dil_h;
    if (oy < 0 || oy >= dy.size(2)) continue;
    for (int64_t kx = 0; kx < w.size(3); ++kx) {
      const int64_t ox = ix * s.stride_w - s.pad_w + kx * s.dil_w;
      if (ox < 0 || ox >= dy.size(3)) continue;
      for (int64_t c = 0; c < cout; ++c) {
        sum += static_cast<acc_t>(dy[n][group * cout + c][oy][ox]) * static_cast<acc_t>(w[ic][c][ky][kx]);
      }
    }
  }
  dx[n][ic][iy][ix] = static_cast<scalar_t>(sum);
}

// Rows are summed apart before they are added: a short sum of short sums.
template <typename scalar_t>
__global__ void grad_weight_kernel(const Accessor<scalar_t, 4> dy, const Accessor<scalar_t, 4> x, Accessor<scalar_t, 4> dw,
                                   Steps s) {
  using acc_t = at::acc_type<scalar_t, true>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= dw.size(0) * dw.size(1) * dw.size(2) * dw.size(3)) return;
  const int64_t kx = i % dw.size(3), ky = i / dw.size(3) % dw.size(2);
  const int64_t c = i / (dw.size(3) * dw.size(2)) % dw.size(1), ic = i / (dw.size(3) * dw.size(2) * dw.size(1));
  const int64_t cout = dw.size(1), cin = dw.size(0) / s.groups, oc = ic / cin * cout + c;
  acc_t sum = 0;
  for (int64_t n = 0; n < x.size(0); ++n) {
    acc_t sample = 0;
    for (int64_t iy = 0; iy < x.size(2); ++iy) {
      const int64_t oy = iy * s.stride_h - s.pad_h + ky * s.dil_h;
      if (oy < 0 || oy >= dy.size(2)) continue;
      acc_t row = 0;
      for (int64_t ix = 0; ix < x.size(3); ++ix) {
        const int64_t ox = ix * s.stride_w - s.pad_w + kx * s.dil_w;
        if (ox >= 0 && ox < dy.size(3)) row += static_cast<acc_t>(x[n][ic][iy][ix]) * static_cast<acc_t>(dy[n][oc][oy][ox]);
      }
      sample += row;
    }
    sum += sample;
  }
  dw[ic][c][ky][kx] = static_cast<scalar_t>(sum);
}

template <typename scalar_t>
__global__ void grad_bias_kernel(const Accessor<scalar_t, 4> dy, Accessor<scalar_t, 1> db) {
  using acc_t = at::acc_type<scalar_t, true>;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= db.size(0)) return;
  acc_t sum = 0;
  for (int64_t n = 0; n < dy.size(0); ++n) {
    acc_t sample = 0;
    for (int64_t y = 0; y < dy.size(2); ++y) {
      acc_t row = 0;
      for (int64_t x = 0; x < dy.size(3); ++x) row += static_cast<acc_t>(dy[n][c][y][x]);
      sample += row;
    }
    sum += sample;
  }
  db[c] = static_cast<scalar_t>(sum);
}

static Steps steps(std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation, int64_t groups) {
  return Steps{int(stride[0]), int(stride[1]), int(padding[0]), int(padding[1]), int(dilation[0]), int(dilation[1]), int(groups)};
}

static unsigned blocks(int64_t work) { return static_cast<unsigned>((work + kThreads - 1) / kThreads); }

torch::Tensor forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, std::vector<int64_t> stride,
                      std::vector<int64_t> padding, std::vector<int64_t> output_padding, std::vector<int64_t> dilation,
                      int64_t groups) {
  TORCH_CHECK(x.is_cuda() && weight.is_cuda() && bias.is_cuda(), "expected CUDA tensors");
  TORCH_CHECK(x.dim() == 4 && x.size(1) == weight.size(0), "expected a 4D input of ", weight.size(0), " channels");
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "input and weight differ in dtype");
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t oh = (x.size(2) - 1) * stride[0] - 2 * padding[0] + dilation[0] * (weight.size(2) - 1) + output_padding[0] + 1;
  const int64_t ow = (x.size(3) - 1) * stride[1] - 2 * padding[1] + dilation[1] * (weight.size(3) - 1) + output_padding[1] + 1;
  TORCH_CHECK(oh > 0 && ow > 0, "the output would be empty");
  auto y = torch::empty({x.size(0), weight.size(1) * groups, oh, ow}, x.options());
  if (y.numel() == 0) return y;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "forward", ([&] {
    forward_kernel<scalar_t><<<blocks(y.numel()), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.packed_accessor64<scalar_t, 4, torch::RestrictPtrTraits>(), weight.packed_accessor64<scalar_t, 4, torch::RestrictPtrTraits>(),
        bias.packed_accessor64<scalar_t, 1, torch::RestrictPtrTraits>(), y.packed_accessor64<scalar_t, 4, torch::RestrictPtrTraits>(),
        steps(stride, padding, dilation, groups));
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

std::vector<torch::Tensor> backward(torch::Tensor dy, torch::Tensor x, torch::Tensor weight, bool with_bias,
                                    std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation,
                                    int64_t groups) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto dx = torch::empty(x.sizes(), x.options()), dw = torch::zeros_like(weight);
  auto db = torch::zeros({with_bias ? dy.size(1) : 0}, dy.options());
  if (x.numel() == 0) return {dx, dw, db};
  const Steps s = steps(stride, padding, dilation, groups);
  const auto stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "backward", ([&] {
    const auto dy_a = dy.packed_accessor64<scalar_t, 4, torch::RestrictPtrTraits>();
    const auto x_a = x.packed_accessor64<scalar_t, 4, torch::RestrictPtrTraits>();
    const auto w_a = weight.packed_accessor64<scalar_t, 4, torch::RestrictPtrTraits>();
    grad_input_kernel<scalar_t><<<blocks(x.numel()), kThreads, 0, stream>>>(
        dy_a, w_a, dx.packed_accessor64<scalar_t, 4, torch::RestrictPtrTraits>(), s);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    grad_weight_kernel<scalar_t><<<blocks(weight.numel()), kThreads, 0, stream>>>(
        dy_a, x_a, dw.packed_accessor64<scalar_t, 4, torch::RestrictPtrTraits>(), s);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (with_bias) {
      grad_bias_kernel<scalar_t><<<blocks(dy.size(1)), kThreads, 0, stream>>>(
          dy_a, db.packed_accessor64<scalar_t, 1, torch::RestrictPtrTraits>());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
  }));
  return {dx, dw, db};
}
"""

cpp_source = """
torch::Tensor forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, std::vector<int64_t> stride,
                      std::vector<int64_t> padding, std::vector<int64_t> output_padding, std::vector<int64_t> dilation,
                      int64_t groups);
std::vector<torch::Tensor> backward(torch::Tensor dy, torch::Tensor x, torch::Tensor weight, bool with_bias,
                                    std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation,
                                    int64_t groups);
"""

ext = load_inline(
    name="conv_transpose2d_general_accessors",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["forward", "backward"],
)


class ConvTranspose2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, stride, padding, output_padding, dilation, groups):
        ctx.save_for_backward(x, weight)
        ctx.config = (bias is not None, stride, padding, dilation, groups)
        shift = bias if bias is not None else weight.new_empty(0)
        return ext.forward(x, weight, shift, stride, padding, output_padding, dilation, groups)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx, dw, db = ext.backward(dy, x, weight, *ctx.config)
        return dx, dw, db if ctx.config[0] else None, None, None, None, None, None


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding,
            groups=groups, bias=bias, dilation=dilation,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c = self.conv_transpose
        return ConvTranspose2d.apply(
            x, c.weight, c.bias, list(c.stride), list(c.padding), list(c.output_padding), list(c.dilation), c.groups
        )
