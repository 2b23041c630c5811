// Pointwise functions, exact in the forms torch has them. A generated file carries those that it calls.
#pragma once

#include "common.cuh"

namespace crucible {

__device__ __forceinline__ accum f_abs(accum x) { return x < 0 ? -x : (x == 0 ? accum(0) : x); }

__device__ __forceinline__ accum f_clamp(accum x, accum low, accum high) {
  return x != x ? x : (x < low ? low : (x > high ? high : x));  // NaN stays NaN
}

__device__ __forceinline__ accum f_clamp_min(accum x, accum low) { return x < low ? low : x; }

__device__ __forceinline__ accum f_clamp_max(accum x, accum high) { return x > high ? high : x; }

__device__ __forceinline__ accum f_elu(accum x, accum alpha, accum scale, accum input_scale) {
  return x > 0 ? x * scale : expm1(x * input_scale) * (alpha * scale);
}

// The standard normal distribution's function. In float: two to a polynomial in |x|, the logarithm of the tail, which is right
// to about 1e-7 of what is larger than a hundredth, and as close elsewhere: 13 instructions, where erf takes five times as many.
__device__ __forceinline__ double f_normal(double x) { return 0.5 * (1.0 + erf(x * 0.70710678118654752440)); }
__device__ __forceinline__ float f_normal(float x) {
  const float a = fabsf(x);
  float power = -5.151318305252062e-08f, tail;
  power = fmaf(power, a, 1.2990532241019537e-06f);
  power = fmaf(power, a, -1.4484397070191335e-05f);
  power = fmaf(power, a, 9.136873268289492e-05f);
  power = fmaf(power, a, -0.0003157366591040045f);
  power = fmaf(power, a, 4.9822912842500955e-05f);
  power = fmaf(power, a, 0.006909801624715328f);
  power = fmaf(power, a, -0.052428558468818665f);
  power = fmaf(power, a, -0.4592219293117523f);
  power = fmaf(power, a, -1.1511043310165405f);
  power = fmaf(power, a, -1.0f);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(tail) : "f"(power));
  return x > 0.0f ? 1.0f - tail : tail;
}

__device__ __forceinline__ accum f_gelu(accum x) { return x * f_normal(x); }

__device__ __forceinline__ accum f_gelu_tanh(accum x) {
  const accum inner = accum(0.79788456080286535588) * (x + accum(0.044715) * x * x * x);
  return accum(0.5) * x * (accum(1) + tanh(inner));
}

__device__ __forceinline__ accum f_gelu_backward(accum dy, accum x) {
  const accum cdf = f_normal(x);
  const accum pdf = exp(x * x * accum(-0.5)) * accum(0.39894228040143267794);
  return dy * (cdf + x * pdf);
}

__device__ __forceinline__ accum f_gelu_tanh_backward(accum dy, accum x) {
  const accum beta = accum(0.79788456080286535588), kappa = accum(0.044715);
  const accum t = tanh(beta * (x + kappa * x * x * x));
  const accum left = accum(0.5) * x, right = accum(1) + t;
  const accum inner = beta * (accum(1) + accum(3) * kappa * x * x);
  return dy * (accum(0.5) * right + left * (accum(1) - t * t) * inner);
}

__device__ __forceinline__ accum f_hardsigmoid(accum x) {
  const accum y = x + 3;
  return (y < 0 ? accum(0) : (y > 6 ? accum(6) : y)) / 6;
}

__device__ __forceinline__ accum f_hardswish(accum x) {
  const accum y = x + 3;
  return x * (y < 0 ? accum(0) : (y > 6 ? accum(6) : y)) / 6;
}

__device__ __forceinline__ accum f_hardswish_backward(accum dy, accum x) {
  return x < -3 ? accum(0) : (x <= 3 ? dy * (x / 3 + accum(0.5)) : dy);
}

__device__ __forceinline__ accum f_leaky_relu(accum x, accum slope) { return x > 0 ? x : x * slope; }

__device__ __forceinline__ accum f_maximum(accum x, accum y) { return x != x ? x : (y != y ? y : (x > y ? x : y)); }

__device__ __forceinline__ accum f_minimum(accum x, accum y) { return x != x ? x : (y != y ? y : (x < y ? x : y)); }

__device__ __forceinline__ accum f_log_sigmoid(accum x) {
  return (x < 0 ? x : accum(0)) - log1p(exp(-(x < 0 ? -x : x)));
}

__device__ __forceinline__ accum f_softplus(accum x, accum beta, accum threshold) {
  return x * beta > threshold ? x : log1p(exp(x * beta)) / beta;
}

__device__ __forceinline__ accum f_mish(accum x) { return x * tanh(x > 20 ? x : log1p(exp(x))); }

__device__ __forceinline__ accum f_mish_backward(accum dy, accum x) {
  const accum s = accum(1) / (accum(1) + exp(-x)), t = tanh(x > 20 ? x : log1p(exp(x)));
  return dy * (t + x * s * (accum(1) - t * t));
}

__device__ __forceinline__ accum f_reciprocal(accum x) { return accum(1) / x; }

__device__ __forceinline__ accum f_relu(accum x) { return x < 0 ? accum(0) : x; }

__device__ __forceinline__ accum f_rsqrt(accum x) { return accum(1) / sqrt(x); }

__device__ __forceinline__ accum f_sigmoid(accum x) { return accum(1) / (accum(1) + exp(-x)); }

__device__ __forceinline__ accum f_silu(accum x) { return x / (accum(1) + exp(-x)); }

__device__ __forceinline__ accum f_sign(accum x) {
  return (x > 0 ? accum(1) : accum(0)) - (x < 0 ? accum(1) : accum(0));
}

__device__ __forceinline__ accum f_remainder(accum x, accum y) {
  const accum r = fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

__device__ __forceinline__ accum f_floor_divide(accum x, accum y) {
  if (y == 0) return x / y;
  const accum r = fmod(x, y);
  accum q = (x - r) / y;
  if (r != 0 && (y < 0) != (r < 0)) q -= 1;
  if (q == 0) return copysign(accum(0), x / y);
  const accum whole = floor(q);
  return q - whole > accum(0.5) ? whole + 1 : whole;
}

__device__ __forceinline__ int64_t i_floor_divide(int64_t x, int64_t y) {
  const int64_t q = x / y;
  return x % y != 0 && (x < 0) != (y < 0) ? q - 1 : q;
}

__device__ __forceinline__ int64_t i_remainder(int64_t x, int64_t y) {
  const int64_t r = x % y;
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

}  // namespace crucible
