"""Transposed 3D convolution (stride 1), ReLU, GroupNorm: a direct convolution with ReLU in it, then a two-pass GroupNorm.

A thread owns one voxel and four output channels, so that an input value is fetched once for four products. The convolution's own
gradients are ATen's.
"""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

constexpr int kConvThreads = 128;
constexpr int kChannels = 4;      // output channels a thread
constexpr int kNormThreads = 256;

struct Volume {
  int64_t d, h, w;
  __host__ __device__ int64_t size() const { return d * h * w; }
};

// Stride 1, no padding: input voxel iz reaches output voxels iz .. iz + k - 1, so output oz gathers taps kz with oz - kz inside.
template <typename T>
__global__ void __launch_bounds__(kConvThreads)
conv_relu_kernel(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y, int64_t batch,
                 int64_t cin, int64_t cout, Volume in, Volume out, int k) {
  using acc_t = at::acc_type<T, true>;
  const int64_t slices = (cout + kChannels - 1) / kChannels, total = batch * slices * out.size();
  const int64_t taps = static_cast<int64_t>(k) * k * k;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
    const int64_t ox = i % out.w, oy = i / out.w % out.h, oz = i / (out.w * out.h) % out.d;
    const int64_t oc = i / out.size() % slices * kChannels, n = i / (out.size() * slices);
    const int channels = static_cast<int>(min(static_cast<int64_t>(kChannels), cout - oc));
    const int64_t z0 = max(oz - (in.d - 1), int64_t(0)), z1 = min(oz, int64_t(k - 1));
    const int64_t y0 = max(oy - (in.h - 1), int64_t(0)), y1 = min(oy, int64_t(k - 1));
    const int64_t x0 = max(ox - (in.w - 1), int64_t(0)), x1 = min(ox, int64_t(k - 1));
    acc_t sum[kChannels];
    for (int c = 0; c < channels; ++c) sum[c] = bias != nullptr ? static_cast<acc_t>(bias[oc + c]) : acc_t(0);
    for (int64_t ic = 0; ic < cin; ++ic) {
      const T* xc = x + (n * cin + ic) * in.size();
      const T* wc = w + (ic * cout + oc) * taps;
      acc_t part[kChannels] = {};
      for (int64_t kz = z0; kz <= z1; ++kz) {
        for (int64_t ky = y0; ky <= y1; ++ky) {
          for (int64_t kx = x0; kx <= x1; ++kx) {
            const acc_t v = static_cast<acc_t>(xc[((oz - kz) * in.h + oy - ky) * in.w + ox - kx]);
            const T* tap = wc + (kz * k + ky) * k + kx;
            for (int c = 0; c < channels; ++c) part[c] += v * static_cast<acc_t>(tap[c * taps]);
          }
        }
      }
      for (int c = 0; c < channels; ++c) sum[c] += part[c];
    }
    for (int c = 0; c < channels; ++c) {
      const acc_t v = sum[c];
      y[(n * cout + oc + c) * out.size() + (oz * out.h + oy) * out.w + ox] = static_cast<T>(v < acc_t(0) ? acc_t(0) : v);
    }
  }
}

// Tree over shared memory. Every thread gets the sum; scratch holds one value a thread.
template <typename acc_t>
__device__ acc_t block_sum(acc_t v, acc_t* scratch) {
  scratch[threadIdx.x] = v;
  __syncthreads();
  for (int half = kNormThreads / 2; half > 0; half >>= 1) {
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }
  v = scratch[0];
  __syncthreads();
  return v;
}

template <typename T>
__global__ void group_norm_kernel(const T* __restrict__ r, const T* __restrict__ gamma, const T* __restrict__ beta,
                                  T* __restrict__ out, at::acc_type<T, true>* __restrict__ stats, int64_t per_group,
                                  int64_t volume, int64_t groups, double eps) {
  using acc_t = at::acc_type<T, true>;
  __shared__ acc_t scratch[kNormThreads];
  const int64_t size = per_group * volume, base = blockIdx.x * size;
  const int64_t first_channel = blockIdx.x % groups * per_group;
  acc_t sum = 0;
  for (int64_t i = threadIdx.x; i < size; i += kNormThreads) sum += static_cast<acc_t>(r[base + i]);
  const acc_t mean = block_sum(sum, scratch) / static_cast<acc_t>(size);
  acc_t squares = 0;
  for (int64_t i = threadIdx.x; i < size; i += kNormThreads) {
    const acc_t d = static_cast<acc_t>(r[base + i]) - mean;
    squares += d * d;
  }
  const acc_t variance = block_sum(squares, scratch) / static_cast<acc_t>(size);
  const acc_t rstd = acc_t(1) / sqrt(variance + static_cast<acc_t>(eps));
  if (threadIdx.x == 0) {
    stats[2 * blockIdx.x] = mean;
    stats[2 * blockIdx.x + 1] = rstd;
  }
  for (int64_t i = threadIdx.x; i < size; i += kNormThreads) {
    const int64_t c = first_channel + i / volume;
    const acc_t xhat = (static_cast<acc_t>(r[base + i]) - mean) * rstd;
    out[base + i] = static_cast<T>(xhat * static_cast<acc_t>(gamma[c]) + static_cast<acc_t>(beta[c]));
  }
}

// Through GroupNorm and ReLU. Where r is zero the gradient stops.
template <typename T>
__global__ void group_norm_backward_kernel(const T* __restrict__ dout, const T* __restrict__ r, const T* __restrict__ gamma,
                                           const at::acc_type<T, true>* __restrict__ stats, T* __restrict__ dconv,
                                           int64_t per_group, int64_t volume, int64_t groups) {
  using acc_t = at::acc_type<T, true>;
  __shared__ acc_t scratch[kNormThreads];
  const int64_t size = per_group * volume, base = blockIdx.x * size;
  const int64_t first_channel = blockIdx.x % groups * per_group;
  const acc_t mean = stats[2 * blockIdx.x], rstd = stats[2 * blockIdx.x + 1];
  acc_t sum = 0, dot = 0;
  for (int64_t i = threadIdx.x; i < size; i += kNormThreads) {
    const acc_t d = static_cast<acc_t>(dout[base + i]) * static_cast<acc_t>(gamma[first_channel + i / volume]);
    sum += d;
    dot += d * ((static_cast<acc_t>(r[base + i]) - mean) * rstd);
  }
  sum = block_sum(sum, scratch) / static_cast<acc_t>(size);
  dot = block_sum(dot, scratch) / static_cast<acc_t>(size);
  for (int64_t i = threadIdx.x; i < size; i += kNormThreads) {
    const acc_t v = static_cast<acc_t>(r[base + i]), xhat = (v - mean) * rstd;
    const acc_t d = static_cast<acc_t>(dout[base + i]) * static_cast<acc_t>(gamma[first_channel + i / volume]);
    dconv[base + i] = static_cast<T>(v <= acc_t(0) ? acc_t(0) : rstd * (d - sum - xhat * dot));
  }
}

template <typename T>
__global__ void affine_backward_kernel(const T* __restrict__ dout, const T* __restrict__ r,
                                       const at::acc_type<T, true>* __restrict__ stats, T* __restrict__ dgamma,
                                       T* __restrict__ dbeta, int64_t batch, int64_t channels, int64_t volume, int64_t groups) {
  using acc_t = at::acc_type<T, true>;
  __shared__ acc_t scratch[kNormThreads];
  const int64_t channel = blockIdx.x, group = channel / (channels / groups);
  acc_t scale = 0, shift = 0;
  for (int64_t n = 0; n < batch; ++n) {
    const int64_t base = (n * channels + channel) * volume;
    const acc_t mean = stats[2 * (n * groups + group)], rstd = stats[2 * (n * groups + group) + 1];
    acc_t scale_n = 0, shift_n = 0;
    for (int64_t i = threadIdx.x; i < volume; i += kNormThreads) {
      const acc_t d = static_cast<acc_t>(dout[base + i]);
      scale_n += d * ((static_cast<acc_t>(r[base + i]) - mean) * rstd);
      shift_n += d;
    }
    scale += scale_n;
    shift += shift_n;
  }
  scale = block_sum(scale, scratch);
  shift = block_sum(shift, scratch);
  if (threadIdx.x == 0) {
    dgamma[channel] = static_cast<T>(scale);
    dbeta[channel] = static_cast<T>(shift);
  }
}

torch::Tensor conv_relu(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  TORCH_CHECK(weight.is_cuda(), "weight must be a CUDA tensor");
  TORCH_CHECK(x.dim() == 5 && x.size(1) == weight.size(0), "expected a 5D input of ", weight.size(0), " channels");
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "input and weight differ in dtype");
  const c10::cuda::CUDAGuard guard(x.device());
  x = x.contiguous();
  weight = weight.contiguous();
  const int64_t batch = x.size(0), cin = x.size(1), cout = weight.size(1), k = weight.size(2);
  const Volume in{x.size(2), x.size(3), x.size(4)}, out{in.d + k - 1, in.h + k - 1, in.w + k - 1};
  auto y = torch::empty({batch, cout, out.d, out.h, out.w}, x.options());
  if (y.numel() == 0) return y;
  const int64_t work = batch * ((cout + kChannels - 1) / kChannels) * out.size();
  const int blocks = static_cast<int>(std::min<int64_t>((work + kConvThreads - 1) / kConvThreads, 1 << 20));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "conv_relu", [&] {
    const scalar_t* b = bias.has_value() ? bias->data_ptr<scalar_t>() : nullptr;
    conv_relu_kernel<scalar_t><<<blocks, kConvThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), b, y.data_ptr<scalar_t>(), batch, cin, cout, in, out,
        static_cast<int>(k));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

std::vector<torch::Tensor> group_norm(torch::Tensor r, torch::Tensor gamma, torch::Tensor beta, int64_t groups, double eps) {
  const c10::cuda::CUDAGuard guard(r.device());
  const int64_t batch = r.size(0), channels = r.size(1);
  auto out = torch::empty_like(r);
  auto stats = torch::empty({batch * groups, 2}, r.options().dtype(at::toAccumulateType(r.scalar_type(), true)));
  if (r.numel() == 0) return {out, stats};
  const int64_t volume = r.numel() / (batch * channels);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, r.scalar_type(), "group_norm", [&] {
    using acc_t = at::acc_type<scalar_t, true>;
    group_norm_kernel<scalar_t><<<batch * groups, kNormThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        r.data_ptr<scalar_t>(), gamma.data_ptr<scalar_t>(), beta.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(),
        stats.data_ptr<acc_t>(), channels / groups, volume, groups, eps);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {out, stats};
}

std::vector<torch::Tensor> group_norm_backward(torch::Tensor dout, torch::Tensor r, torch::Tensor gamma, torch::Tensor stats,
                                               int64_t groups) {
  const c10::cuda::CUDAGuard guard(r.device());
  dout = dout.contiguous();
  const int64_t batch = r.size(0), channels = r.size(1);
  auto dconv = torch::empty_like(r);
  auto dgamma = torch::zeros_like(gamma), dbeta = torch::zeros_like(gamma);
  if (r.numel() == 0) return {dconv, dgamma, dbeta};
  const int64_t volume = r.numel() / (batch * channels);
  const auto stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, r.scalar_type(), "group_norm_backward", [&] {
    using acc_t = at::acc_type<scalar_t, true>;
    group_norm_backward_kernel<scalar_t><<<batch * groups, kNormThreads, 0, stream>>>(
        dout.data_ptr<scalar_t>(), r.data_ptr<scalar_t>(), gamma.data_ptr<scalar_t>(), stats.data_ptr<acc_t>(),
        dconv.data_ptr<scalar_t>(), channels / groups, volume, groups);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    affine_backward_kernel<scalar_t><<<channels, kNormThreads, 0, stream>>>(
        dout.data_ptr<scalar_t>(), r.data_ptr<scalar_t>(), stats.data_ptr<acc_t>(), dgamma.data_ptr<scalar_t>(),
        dbeta.data_ptr<scalar_t>(), batch, channels, volume, groups);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {dconv, dgamma, dbeta};
}
"""

cpp_source = """
torch::Tensor conv_relu(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias);
std::vector<torch::Tensor> group_norm(torch::Tensor r, torch::Tensor gamma, torch::Tensor beta, int64_t groups, double eps);
std::vector<torch::Tensor> group_norm_backward(torch::Tensor dout, torch::Tensor r, torch::Tensor gamma, torch::Tensor stats,
                                               int64_t groups);
"""

ext = load_inline(
    name="conv_transpose3d_relu_group_norm_direct",
    cpp_sources=[cpp_source],
    cuda_sources=[cuda_source],
    functions=["conv_relu", "group_norm", "group_norm_backward"],
    verbose=False,
)


class ConvReluNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, gamma, beta, groups, eps):
        relu = ext.conv_relu(x, weight, bias)
        out, stats = ext.group_norm(relu, gamma, beta, groups, eps)
        ctx.save_for_backward(x, weight, relu, gamma, stats)
        ctx.groups = groups
        ctx.has_bias = bias is not None
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout):
        x, weight, relu, gamma, stats = ctx.saved_tensors
        dconv, dgamma, dbeta = ext.group_norm_backward(dout, relu, gamma, stats, ctx.groups)
        dx, dw, db = torch.ops.aten.convolution_backward(
            dconv, x, weight, [weight.shape[1]], [1, 1, 1], [0, 0, 0], [1, 1, 1], True, [0, 0, 0], 1,
            [True, True, ctx.has_bias],
        )
        return dx, dw, db if ctx.has_bias else None, dgamma, dbeta, None, None


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, groups, bias=False):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, bias=bias)
        self.relu = nn.ReLU()
        self.group_norm = nn.GroupNorm(num_groups=groups, num_channels=out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv, norm = self.conv_transpose, self.group_norm
        return ConvReluNorm.apply(x, conv.weight, conv.bias, norm.weight, norm.bias, norm.num_groups, norm.eps)
