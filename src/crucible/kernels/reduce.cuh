// Reductions: what is kept while elements pass (step), how two partial results join, and what comes out.
// A generated file carries those that it uses.
#pragma once

#include "common.cuh"

namespace crucible {

// A sum that carries what rounding took from it: as good as a pairwise sum, however long.
struct Sum {
  accum sum = 0, low = 0;
  __device__ __forceinline__ void step(accum y) {
    const accum t = sum + y;
    if (t - t == 0) low += fabs(sum) >= fabs(y) ? (sum - t) + y : (y - t) + sum;  // not where it is inf or nan
    sum = t;
  }
  __device__ __forceinline__ void join(const Sum& b) {
    step(b.sum);
    low += b.low;
  }
  __device__ __forceinline__ accum total() const { return sum + low; }
};

struct WholeSum {
  int64_t sum = 0;
  __device__ __forceinline__ void step(int64_t y) { sum += y; }
  __device__ __forceinline__ void join(const WholeSum& b) { sum += b.sum; }
  __device__ __forceinline__ int64_t total() const { return sum; }
};

struct Product {
  accum product = 1;
  __device__ __forceinline__ void step(accum y) { product *= y; }
  __device__ __forceinline__ void join(const Product& b) { product *= b.product; }
  __device__ __forceinline__ accum total() const { return product; }
};

struct WholeProduct {
  int64_t product = 1;
  __device__ __forceinline__ void step(int64_t y) { product *= y; }
  __device__ __forceinline__ void join(const WholeProduct& b) { product *= b.product; }
  __device__ __forceinline__ int64_t total() const { return product; }
};

// 1 / n of a count. The last bit of it does not matter to a mean that it corrects, and a division takes longer than all else.
__device__ __forceinline__ double count_inverse(double n) { return 1.0 / n; }
__device__ __forceinline__ float count_inverse(float n) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(n));
  return inverse;
}

// Mean and sum of squared deviations from it, one element or one partial result at a time: nothing cancels.
struct Moments {
  accum count = 0, mean = 0, m2 = 0;
  __device__ __forceinline__ void step(accum x) {
    count += 1;
    const accum d = x - mean;
    mean = fma(d, count_inverse(count), mean);
    m2 = fma(d, x - mean, m2);
  }
  __device__ __forceinline__ void step(accum n, accum other_mean, accum other_m2) {
    // Without branches, so that several partial results are asked for at once. The first one is taken as it is.
    const bool more = n > 0;
    const accum all = count + n, d = other_mean - mean, part = n * count_inverse(all);
    const accum next = count > 0 ? fma(d, part, mean) : other_mean;
    const accum sum = count > 0 ? m2 + other_m2 + d * d * count * part : other_m2;
    mean = more ? next : mean, m2 = more ? sum : m2, count = more ? all : count;
  }
  __device__ __forceinline__ void join(const Moments& b) { step(b.count, b.mean, b.m2); }
  __device__ __forceinline__ accum get_mean() const { return count > 0 ? mean : accum(NAN); }
  __device__ __forceinline__ accum get_m2() const { return count > 0 ? m2 : accum(NAN); }
  __device__ __forceinline__ accum get_count() const { return count; }
};

// Extremes: NaN wins. Where floats have an instruction for that, zeros with a sign are the smaller ones.
__device__ __forceinline__ accum larger(accum best, accum x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && CRUCIBLE_SCALAR != 1
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(best) : "f"(best), "f"(x));
  return best;
#else
  return x > best || x != x ? x : best;
#endif
}

__device__ __forceinline__ accum smaller(accum best, accum x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && CRUCIBLE_SCALAR != 1
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(best) : "f"(best), "f"(x));
  return best;
#else
  return x < best || x != x ? x : best;
#endif
}

struct Max {
  accum best = -INFINITY;
  __device__ __forceinline__ void step(accum x) { best = larger(best, x); }
  __device__ __forceinline__ void join(const Max& b) { step(b.best); }
  __device__ __forceinline__ accum total() const { return best; }
};

struct Min {
  accum best = INFINITY;
  __device__ __forceinline__ void step(accum x) { best = smaller(best, x); }
  __device__ __forceinline__ void join(const Min& b) { step(b.best); }
  __device__ __forceinline__ accum total() const { return best; }
};

struct ArgMax {
  accum best = 0;
  int64_t at = -1;
  __device__ __forceinline__ void step(accum x, int64_t i) {
    if (i < 0) return;
    const bool nan = best != best, wins = nan ? x != x && i < at : x != x || x > best || (x == best && i < at);
    if (at < 0 || wins) best = x, at = i;
  }
  __device__ __forceinline__ void join(const ArgMax& b) { step(b.best, b.at); }
  __device__ __forceinline__ accum value() const { return best; }
  __device__ __forceinline__ int64_t index() const { return at; }
};

struct ArgMin {
  accum best = 0;
  int64_t at = -1;
  __device__ __forceinline__ void step(accum x, int64_t i) {
    if (i < 0) return;
    const bool nan = best != best, wins = nan ? x != x && i < at : x != x || x < best || (x == best && i < at);
    if (at < 0 || wins) best = x, at = i;
  }
  __device__ __forceinline__ void join(const ArgMin& b) { step(b.best, b.at); }
  __device__ __forceinline__ accum value() const { return best; }
  __device__ __forceinline__ int64_t index() const { return at; }
};

// The maximum of a pooling window, taken in order: a place outside the input (-1) is never chosen, the last NaN wins.
struct WindowMax {
  accum best = -INFINITY;
  int64_t at = -1;
  __device__ __forceinline__ void step(accum x, int64_t i) {
    if (i >= 0 && (at < 0 || x > best || x != x)) best = x, at = i;
  }
  __device__ __forceinline__ accum value() const { return best; }
  __device__ __forceinline__ int64_t index() const { return at; }
};

struct Any {
  int32_t found = 0;
  __device__ __forceinline__ void step(bool x) { found |= x; }
  __device__ __forceinline__ void join(const Any& b) { found |= b.found; }
  __device__ __forceinline__ bool total() const { return found != 0; }
};

struct All {
  int32_t held = 1;
  __device__ __forceinline__ void step(bool x) { held &= x; }
  __device__ __forceinline__ void join(const All& b) { held &= b.held; }
  __device__ __forceinline__ bool total() const { return held != 0; }
};

}  // namespace crucible
