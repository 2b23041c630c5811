"""Transposed convolution, BatchNorm, tanh, 2x2 max pooling, GroupNorm: four kernels forward, five backward, ATen for the convolution's gradients.

Pooling keeps which of the four it took (one byte), and its value, which is all that tanh's slope needs.
"""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#define CHECK_CUDA(x) TORCH_CHECK((x).is_cuda(), #x " must be a CUDA tensor")
#define DISPATCH(TYPE, NAME, ...) AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, TYPE, NAME, __VA_ARGS__)

constexpr int kThreads = 256;

static inline int blocks_for(int64_t work) {
  return static_cast<int>(std::min<int64_t>((work + kThreads - 1) / kThreads, 1 << 20));
}

// Every thread of the block gets the sum of v.
template <typename acc_t>
__device__ acc_t block_sum(acc_t v) {
  __shared__ acc_t warps[kThreads / 32];
  __shared__ acc_t total;
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : acc_t(0);
    for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
    if (threadIdx.x == 0) total = v;
  }
  __syncthreads();
  const acc_t result = total;
  __syncthreads();
  return result;
}

template <typename T>
__global__ void conv_kernel(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y,
                            int64_t batch, int64_t cin, int64_t ih, int64_t iw, int64_t cout, int64_t oh, int64_t ow, int k,
                            int stride, int padding) {
  using acc_t = at::acc_type<T, true>;
  constexpr int kChannels = 4;
  const int64_t slices = (cout + kChannels - 1) / kChannels, total = batch * slices * oh * ow;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    const int64_t ox = i % ow, oy = i / ow % oh, oc = i / (ow * oh) % slices * kChannels, n = i / (ow * oh * slices);
    acc_t sum[kChannels] = {};
    for (int ky = 0; ky < k; ++ky) {
      const int64_t ty = oy + padding - ky;
      if (ty < 0 || ty % stride != 0 || ty / stride >= ih) continue;
      for (int kx = 0; kx < k; ++kx) {
        const int64_t tx = ox + padding - kx;
        if (tx < 0 || tx % stride != 0 || tx / stride >= iw) continue;
        const T* xp = x + (n * cin * ih + ty / stride) * iw + tx / stride;
        const T* wp = w + oc * k * k + ky * k + kx;
        acc_t tap[kChannels] = {};
        for (int64_t c = 0; c < cin; ++c) {
          const acc_t v = static_cast<acc_t>(xp[c * ih * iw]);
          for (int o = 0; o < kChannels; ++o) {
            if (oc + o < cout) tap[o] += v * static_cast<acc_t>(wp[(c * cout + o) * k * k]);
          }
        }
        for (int o = 0; o < kChannels; ++o) sum[o] += tap[o];
      }
    }
    for (int o = 0; o < kChannels && oc + o < cout; ++o) {
      const acc_t b = bias != nullptr ? static_cast<acc_t>(bias[oc + o]) : acc_t(0);
      y[((n * cout + oc + o) * oh + oy) * ow + ox] = static_cast<T>(sum[o] + b);
    }
  }
}

// One block a channel. Batch statistics in two passes; the running ones follow with the unbiased variance.
template <typename T>
__global__ void batch_stats_kernel(const T* __restrict__ y, at::acc_type<T, true>* __restrict__ means,
                                   at::acc_type<T, true>* __restrict__ rstds, T* __restrict__ running_mean,
                                   T* __restrict__ running_var, int64_t batch, int64_t channels, int64_t plane, double eps,
                                   double momentum) {
  using acc_t = at::acc_type<T, true>;
  const int64_t c = blockIdx.x, count = batch * plane;
  acc_t sum = 0;
  for (int64_t n = 0; n < batch; ++n) {
    const T* p = y + (n * channels + c) * plane;
    acc_t part = 0;
    for (int64_t i = threadIdx.x; i < plane; i += kThreads) part += static_cast<acc_t>(p[i]);
    sum += part;
  }
  const acc_t mean = block_sum(sum) / static_cast<acc_t>(count);
  acc_t squares = 0;
  for (int64_t n = 0; n < batch; ++n) {
    const T* p = y + (n * channels + c) * plane;
    acc_t part = 0;
    for (int64_t i = threadIdx.x; i < plane; i += kThreads) {
      const acc_t d = static_cast<acc_t>(p[i]) - mean;
      part += d * d;
    }
    squares += part;
  }
  squares = block_sum(squares);
  if (threadIdx.x == 0) {
    means[c] = mean;
    rstds[c] = acc_t(1) / sqrt(squares / static_cast<acc_t>(count) + static_cast<acc_t>(eps));
    const acc_t m = static_cast<acc_t>(momentum), unbiased = squares / static_cast<acc_t>(count - 1);
    running_mean[c] = static_cast<T>((acc_t(1) - m) * static_cast<acc_t>(running_mean[c]) + m * mean);
    running_var[c] = static_cast<T>((acc_t(1) - m) * static_cast<acc_t>(running_var[c]) + m * unbiased);
  }
}

template <typename T>
__global__ void running_stats_kernel(const T* __restrict__ running_mean, const T* __restrict__ running_var,
                                     at::acc_type<T, true>* __restrict__ means, at::acc_type<T, true>* __restrict__ rstds,
                                     int64_t channels, double eps) {
  using acc_t = at::acc_type<T, true>;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= channels) return;
  means[c] = static_cast<acc_t>(running_mean[c]);
  rstds[c] = acc_t(1) / sqrt(static_cast<acc_t>(running_var[c]) + static_cast<acc_t>(eps));
}

template <typename T>
__global__ void norm_tanh_pool_kernel(const T* __restrict__ y, const at::acc_type<T, true>* __restrict__ means,
                                      const at::acc_type<T, true>* __restrict__ rstds, const T* __restrict__ gamma,
                                      const T* __restrict__ beta, T* __restrict__ pooled, unsigned char* __restrict__ chosen,
                                      int64_t planes, int64_t channels, int64_t oh, int64_t ow, int64_t ph, int64_t pw) {
  using acc_t = at::acc_type<T, true>;
  const int64_t total = planes * ph * pw, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    const int64_t px = i % pw, py = i / pw % ph, plane = i / (pw * ph), c = plane % channels;
    const acc_t mean = means[c], scale = rstds[c] * static_cast<acc_t>(gamma[c]), shift = static_cast<acc_t>(beta[c]);
    acc_t best = 0;
    int which = -1;
    for (int j = 0; j < 4; ++j) {
      const acc_t v = static_cast<acc_t>(y[(plane * oh + 2 * py + j / 2) * ow + 2 * px + j % 2]);
      const acc_t t = tanh((v - mean) * scale + shift);
      if (which < 0 || t > best || t != t) {  // a NaN wins, as it does in torch
        best = t;
        which = j;
      }
    }
    pooled[i] = static_cast<T>(best);
    chosen[i] = static_cast<unsigned char>(which);
  }
}

template <typename T>
__global__ void group_norm_kernel(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                                  T* __restrict__ out, at::acc_type<T, true>* __restrict__ means,
                                  at::acc_type<T, true>* __restrict__ rstds, int64_t per_group, int64_t plane, int64_t groups,
                                  double eps) {
  using acc_t = at::acc_type<T, true>;
  const int64_t size = per_group * plane, base = blockIdx.x * size, first = blockIdx.x % groups * per_group;
  acc_t sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < size; i += kThreads) sum += static_cast<acc_t>(x[base + i]);
  const acc_t mean = block_sum(sum) / static_cast<acc_t>(size);
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    const acc_t d = static_cast<acc_t>(x[base + i]) - mean;
    squares += d * d;
  }
  const acc_t rstd = acc_t(1) / sqrt(block_sum(squares) / static_cast<acc_t>(size) + static_cast<acc_t>(eps));
  if (threadIdx.x == 0) {
    means[blockIdx.x] = mean;
    rstds[blockIdx.x] = rstd;
  }
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    const int64_t c = first + i / plane;
    out[base + i] = static_cast<T>((static_cast<acc_t>(x[base + i]) - mean) * rstd * static_cast<acc_t>(gamma[c]) +
                                   static_cast<acc_t>(beta[c]));
  }
}

template <typename T>
__global__ void group_norm_backward_kernel(const T* __restrict__ dout, const T* __restrict__ x, const T* __restrict__ gamma,
                                           const at::acc_type<T, true>* __restrict__ means,
                                           const at::acc_type<T, true>* __restrict__ rstds, T* __restrict__ dx,
                                           int64_t per_group, int64_t plane, int64_t groups) {
  using acc_t = at::acc_type<T, true>;
  const int64_t size = per_group * plane, base = blockIdx.x * size, first = blockIdx.x % groups * per_group;
  const acc_t mean = means[blockIdx.x], rstd = rstds[blockIdx.x];
  acc_t sum = 0, dot = 0;
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    const acc_t d = static_cast<acc_t>(dout[base + i]) * static_cast<acc_t>(gamma[first + i / plane]);
    sum += d;
    dot += d * ((static_cast<acc_t>(x[base + i]) - mean) * rstd);
  }
  sum = block_sum(sum) / static_cast<acc_t>(size);
  dot = block_sum(dot) / static_cast<acc_t>(size);
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    const acc_t d = static_cast<acc_t>(dout[base + i]) * static_cast<acc_t>(gamma[first + i / plane]);
    const acc_t xhat = (static_cast<acc_t>(x[base + i]) - mean) * rstd;
    dx[base + i] = static_cast<T>(rstd * (d - sum - xhat * dot));
  }
}

// One block a channel: sums of dout and dout * xhat over batch and plane. stats_stride: statistics a sample (0: one set for all).
template <typename T>
__global__ void affine_backward_kernel(const T* __restrict__ dout, const T* __restrict__ x,
                                       const at::acc_type<T, true>* __restrict__ means,
                                       const at::acc_type<T, true>* __restrict__ rstds,
                                       at::acc_type<T, true>* __restrict__ dgamma, at::acc_type<T, true>* __restrict__ dbeta,
                                       int64_t batch, int64_t channels, int64_t plane, int64_t per_stat, int64_t stats_stride) {
  using acc_t = at::acc_type<T, true>;
  const int64_t c = blockIdx.x;
  acc_t scale = 0, shift = 0;
  for (int64_t n = 0; n < batch; ++n) {
    const int64_t base = (n * channels + c) * plane;
    const acc_t mean = means[n * stats_stride + c / per_stat], rstd = rstds[n * stats_stride + c / per_stat];
    acc_t scale_n = 0, shift_n = 0;
    for (int64_t i = threadIdx.x; i < plane; i += kThreads) {
      const acc_t d = static_cast<acc_t>(dout[base + i]);
      scale_n += d * ((static_cast<acc_t>(x[base + i]) - mean) * rstd);
      shift_n += d;
    }
    scale += scale_n;
    shift += shift_n;
  }
  scale = block_sum(scale);
  shift = block_sum(shift);
  if (threadIdx.x == 0) {
    dgamma[c] = scale;
    dbeta[c] = shift;
  }
}

// From the pooled gradient to the gradient before tanh, one thread an element before pooling: no atomics, every element written.
template <typename T>
__global__ void pool_tanh_backward_kernel(const T* __restrict__ dpooled, const T* __restrict__ pooled,
                                          const unsigned char* __restrict__ chosen, T* __restrict__ dnorm, int64_t planes,
                                          int64_t oh, int64_t ow, int64_t ph, int64_t pw) {
  using acc_t = at::acc_type<T, true>;
  const int64_t total = planes * oh * ow, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    const int64_t ox = i % ow, oy = i / ow % oh, plane = i / (ow * oh);
    acc_t d = 0;
    if (oy / 2 < ph && ox / 2 < pw) {  // an odd last row or column belongs to no window
      const int64_t j = (plane * ph + oy / 2) * pw + ox / 2;
      if (chosen[j] == (oy % 2) * 2 + ox % 2) {
        const acc_t t = static_cast<acc_t>(pooled[j]);
        d = static_cast<acc_t>(dpooled[j]) * (acc_t(1) - t * t);
      }
    }
    dnorm[i] = static_cast<T>(d);
  }
}

// Through BatchNorm, in place on the gradient.
template <typename T>
__global__ void batch_norm_backward_kernel(T* __restrict__ grad, const T* __restrict__ y,
                                           const at::acc_type<T, true>* __restrict__ means,
                                           const at::acc_type<T, true>* __restrict__ rstds, const T* __restrict__ gamma,
                                           const at::acc_type<T, true>* __restrict__ dgamma,
                                           const at::acc_type<T, true>* __restrict__ dbeta, int64_t total, int64_t channels,
                                           int64_t plane, int64_t count, bool training) {
  using acc_t = at::acc_type<T, true>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    const int64_t c = i / plane % channels;
    acc_t d = static_cast<acc_t>(grad[i]);
    if (training) {
      const acc_t xhat = (static_cast<acc_t>(y[i]) - means[c]) * rstds[c];
      d -= (dbeta[c] + xhat * dgamma[c]) / static_cast<acc_t>(count);
    }
    grad[i] = static_cast<T>(d * static_cast<acc_t>(gamma[c]) * rstds[c]);
  }
}

torch::Tensor conv(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias, int64_t stride, int64_t padding) {
  CHECK_CUDA(x);
  CHECK_CUDA(weight);
  TORCH_CHECK(x.dim() == 4 && x.size(1) == weight.size(0), "expected a 4D input of ", weight.size(0), " channels");
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "input and weight differ in dtype");
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  x = x.contiguous();
  weight = weight.contiguous();
  const int64_t k = weight.size(2), cout = weight.size(1);
  const int64_t oh = (x.size(2) - 1) * stride - 2 * padding + k, ow = (x.size(3) - 1) * stride - 2 * padding + k;
  TORCH_CHECK(oh > 0 && ow > 0, "the output would be empty");
  auto y = torch::empty({x.size(0), cout, oh, ow}, x.options());
  if (y.numel() == 0) return y;
  const int64_t work = x.size(0) * ((cout + 3) / 4) * oh * ow;
  DISPATCH(x.scalar_type(), "conv", [&] {
    conv_kernel<scalar_t><<<blocks_for(work), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), bias.has_value() ? bias->data_ptr<scalar_t>() : nullptr,
        y.data_ptr<scalar_t>(), x.size(0), x.size(1), x.size(2), x.size(3), cout, oh, ow, static_cast<int>(k),
        static_cast<int>(stride), static_cast<int>(padding));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

// Returns the output and what backward needs: pooled, chosen, batch means and rstds, group means and rstds.
std::vector<torch::Tensor> tail(torch::Tensor y, torch::Tensor bn_gamma, torch::Tensor bn_beta, torch::Tensor running_mean,
                                torch::Tensor running_var, torch::Tensor gn_gamma, torch::Tensor gn_beta, bool training,
                                double momentum, double bn_eps, int64_t groups, double gn_eps) {
  const at::cuda::OptionalCUDAGuard guard(device_of(y));
  const int64_t batch = y.size(0), channels = y.size(1), oh = y.size(2), ow = y.size(3), ph = oh / 2, pw = ow / 2;
  TORCH_CHECK(ph > 0 && pw > 0, "the pooled output would be empty");
  TORCH_CHECK(!training || batch * oh * ow != 1, "Expected more than 1 value per channel when training");
  const auto acc = y.options().dtype(at::toAccumulateType(y.scalar_type(), true));
  auto pooled = torch::empty({batch, channels, ph, pw}, y.options());
  auto chosen = torch::empty({batch, channels, ph, pw}, y.options().dtype(torch::kUInt8));
  auto bn_means = torch::empty({channels}, acc), bn_rstds = torch::empty({channels}, acc);
  auto gn_means = torch::empty({batch * groups}, acc), gn_rstds = torch::empty({batch * groups}, acc);
  auto out = torch::empty_like(pooled);
  if (y.numel() == 0) return {out, pooled, chosen, bn_means, bn_rstds, gn_means, gn_rstds};
  const auto stream = at::cuda::getCurrentCUDAStream();
  DISPATCH(y.scalar_type(), "tail", [&] {
    using acc_t = at::acc_type<scalar_t, true>;
    if (training) {
      batch_stats_kernel<scalar_t><<<channels, kThreads, 0, stream>>>(
          y.data_ptr<scalar_t>(), bn_means.data_ptr<acc_t>(), bn_rstds.data_ptr<acc_t>(), running_mean.data_ptr<scalar_t>(),
          running_var.data_ptr<scalar_t>(), batch, channels, oh * ow, bn_eps, momentum);
    } else {
      running_stats_kernel<scalar_t><<<blocks_for(channels), kThreads, 0, stream>>>(
          running_mean.data_ptr<scalar_t>(), running_var.data_ptr<scalar_t>(), bn_means.data_ptr<acc_t>(),
          bn_rstds.data_ptr<acc_t>(), channels, bn_eps);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    norm_tanh_pool_kernel<scalar_t><<<blocks_for(pooled.numel()), kThreads, 0, stream>>>(
        y.data_ptr<scalar_t>(), bn_means.data_ptr<acc_t>(), bn_rstds.data_ptr<acc_t>(), bn_gamma.data_ptr<scalar_t>(),
        bn_beta.data_ptr<scalar_t>(), pooled.data_ptr<scalar_t>(), chosen.data_ptr<unsigned char>(), batch * channels, channels,
        oh, ow, ph, pw);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    group_norm_kernel<scalar_t><<<batch * groups, kThreads, 0, stream>>>(
        pooled.data_ptr<scalar_t>(), gn_gamma.data_ptr<scalar_t>(), gn_beta.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(),
        gn_means.data_ptr<acc_t>(), gn_rstds.data_ptr<acc_t>(), channels / groups, ph * pw, groups, gn_eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {out, pooled, chosen, bn_means, bn_rstds, gn_means, gn_rstds};
}

// Returns the gradients of the convolution's output, batch-norm scale and shift, group-norm scale and shift.
std::vector<torch::Tensor> tail_backward(torch::Tensor dout, torch::Tensor y, torch::Tensor pooled, torch::Tensor chosen,
                                         torch::Tensor bn_means, torch::Tensor bn_rstds, torch::Tensor gn_means,
                                         torch::Tensor gn_rstds, torch::Tensor bn_gamma, torch::Tensor gn_gamma, int64_t groups,
                                         bool training) {
  const at::cuda::OptionalCUDAGuard guard(device_of(y));
  dout = dout.contiguous();
  const int64_t batch = y.size(0), channels = y.size(1), oh = y.size(2), ow = y.size(3), ph = oh / 2, pw = ow / 2;
  auto grad = torch::empty_like(y);
  auto dpooled = torch::empty_like(pooled);
  auto dbn_gamma = torch::zeros_like(bn_means), dbn_beta = torch::zeros_like(bn_means);
  auto dgn_gamma = torch::zeros_like(bn_means), dgn_beta = torch::zeros_like(bn_means);
  const auto type = y.scalar_type();
  if (y.numel() == 0) return {grad, dbn_gamma.to(type), dbn_beta.to(type), dgn_gamma.to(type), dgn_beta.to(type)};
  const auto stream = at::cuda::getCurrentCUDAStream();
  DISPATCH(type, "tail_backward", [&] {
    using acc_t = at::acc_type<scalar_t, true>;
    group_norm_backward_kernel<scalar_t><<<batch * groups, kThreads, 0, stream>>>(
        dout.data_ptr<scalar_t>(), pooled.data_ptr<scalar_t>(), gn_gamma.data_ptr<scalar_t>(), gn_means.data_ptr<acc_t>(),
        gn_rstds.data_ptr<acc_t>(), dpooled.data_ptr<scalar_t>(), channels / groups, ph * pw, groups);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    affine_backward_kernel<scalar_t><<<channels, kThreads, 0, stream>>>(
        dout.data_ptr<scalar_t>(), pooled.data_ptr<scalar_t>(), gn_means.data_ptr<acc_t>(), gn_rstds.data_ptr<acc_t>(),
        dgn_gamma.data_ptr<acc_t>(), dgn_beta.data_ptr<acc_t>(), batch, channels, ph * pw, channels / groups, groups);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    pool_tanh_backward_kernel<scalar_t><<<blocks_for(y.numel()), kThreads, 0, stream>>>(
        dpooled.data_ptr<scalar_t>(), pooled.data_ptr<scalar_t>(), chosen.data_ptr<unsigned char>(), grad.data_ptr<scalar_t>(),
        batch * channels, oh, ow, ph, pw);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    affine_backward_kernel<scalar_t><<<channels, kThreads, 0, stream>>>(
        grad.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), bn_means.data_ptr<acc_t>(), bn_rstds.data_ptr<acc_t>(),
        dbn_gamma.data_ptr<acc_t>(), dbn_beta.data_ptr<acc_t>(), batch, channels, oh * ow, 1, 0);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    batch_norm_backward_kernel<scalar_t><<<blocks_for(y.numel()), kThreads, 0, stream>>>(
        grad.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), bn_means.data_ptr<acc_t>(), bn_rstds.data_ptr<acc_t>(),
        bn_gamma.data_ptr<scalar_t>(), dbn_gamma.data_ptr<acc_t>(), dbn_beta.data_ptr<acc_t>(), y.numel(), channels, oh * ow,
        batch * oh * ow, training);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {grad, dbn_gamma.to(type), dbn_beta.to(type), dgn_gamma.to(type), dgn_beta.to(type)};
}
"""

cpp_source = """
torch::Tensor conv(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias, int64_t stride, int64_t padding);
std::vector<torch::Tensor> tail(torch::Tensor y, torch::Tensor bn_gamma, torch::Tensor bn_beta, torch::Tensor running_mean,
                                torch::Tensor running_var, torch::Tensor gn_gamma, torch::Tensor gn_beta, bool training,
                                double momentum, double bn_eps, int64_t groups, double gn_eps);
std::vector<torch::Tensor> tail_backward(torch::Tensor dout, torch::Tensor y, torch::Tensor pooled, torch::Tensor chosen,
                                         torch::Tensor bn_means, torch::Tensor bn_rstds, torch::Tensor gn_means,
                                         torch::Tensor gn_rstds, torch::Tensor bn_gamma, torch::Tensor gn_gamma, int64_t groups,
                                         bool training);
"""

ext = load_inline(
    name="conv_bn_tanh_pool_gn",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["conv", "tail", "tail_backward"],
)


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, bn_gamma, bn_beta, gn_gamma, gn_beta, running_mean, running_var, config):
        stride, padding, training, momentum, bn_eps, groups, gn_eps = config
        y = ext.conv(x, weight, bias, stride, padding)
        out, *saved = ext.tail(
            y, bn_gamma, bn_beta, running_mean, running_var, gn_gamma, gn_beta, training, momentum, bn_eps, groups, gn_eps
        )
        ctx.save_for_backward(x, weight, y, bn_gamma, gn_gamma, *saved)
        ctx.config = config
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout):
        x, weight, y, bn_gamma, gn_gamma, pooled, chosen, bn_means, bn_rstds, gn_means, gn_rstds = ctx.saved_tensors
        stride, padding, training, _, _, groups, _ = ctx.config
        dy, dbn_gamma, dbn_beta, dgn_gamma, dgn_beta = ext.tail_backward(
            dout, y, pooled, chosen, bn_means, bn_rstds, gn_means, gn_rstds, bn_gamma, gn_gamma, groups, training
        )
        dx, dw, db = torch.ops.aten.convolution_backward(
            dy, x, weight, [y.shape[1]], [stride, stride], [padding, padding], [1, 1], True, [0, 0], 1, [True, True, True]
        )
        return dx, dw, db, dbn_gamma, dbn_beta, dgn_gamma, dgn_beta, None, None, None


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, groups, num_groups):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        self.batch_norm = nn.BatchNorm2d(out_channels)
        self.tanh = nn.Tanh()
        self.max_pool = nn.MaxPool2d(kernel_size=2, stride=2)
        self.group_norm = nn.GroupNorm(num_groups=num_groups, num_channels=out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv, bn, gn = self.conv_transpose, self.batch_norm, self.group_norm
        if bn.training:
            bn.num_batches_tracked.add_(1)
        config = (conv.stride[0], conv.padding[0], bn.training, bn.momentum, bn.eps, gn.num_groups, gn.eps)
        return Fused.apply(
            x, conv.weight, conv.bias, bn.weight, bn.bias, gn.weight, gn.bias, bn.running_mean, bn.running_var, config
        )
