// The block and warp primitives of cub, for NVRTC, which cannot compile cub's own umbrella header. It exists to see whether
// a kernel compiles for an architecture; cub itself supports all of them.
#pragma once
#include <prelude.h>

namespace cub {
struct Sum { template <class T> __device__ T operator()(const T& a, const T& b) const { return a + b; } };
struct Max { template <class T> __device__ T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
struct Min { template <class T> __device__ T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
template <class K, class V> struct KeyValuePair {
  K key;
  V value;
};
struct ArgMax {
  template <class P> __device__ P operator()(const P& a, const P& b) const {
    return b.value > a.value || (b.value == a.value && b.key < a.key) ? b : a;
  }
};
struct ArgMin {
  template <class P> __device__ P operator()(const P& a, const P& b) const {
    return b.value < a.value || (b.value == a.value && b.key < a.key) ? b : a;
  }
};
enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS,
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

namespace crucible {
__device__ inline int lane() { return threadIdx.x & 31; }
__device__ inline int thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
template <class T> __device__ T from_lane(const T& value, int source) {
  constexpr int words = (sizeof(T) + 3) / 4;
  union { unsigned w[words]; unsigned char bytes[words * 4]; } box;
  const unsigned char* from = reinterpret_cast<const unsigned char*>(&value);
  for (int i = 0; i < int(sizeof(T)); ++i) box.bytes[i] = from[i];
  for (int i = 0; i < words; ++i) box.w[i] = __shfl_sync(0xffffffffu, box.w[i], source);
  T result = value;
  unsigned char* to = reinterpret_cast<unsigned char*>(&result);
  for (int i = 0; i < int(sizeof(T)); ++i) to[i] = box.bytes[i];
  return result;
}
template <class T, class Op> __device__ T warp_reduce(T value, Op op, int valid, int width) {
  for (int step = width / 2; step > 0; step /= 2) {
    T other = from_lane(value, lane() + step);
    if ((lane() & (width - 1)) + step < valid) value = op(value, other);
  }
  return value;
}
template <class T, class Op> __device__ T warp_scan(T value, Op op) {
  for (int step = 1; step < 32; step *= 2) {
    T other = from_lane(value, lane() - step);
    if (lane() >= step) value = op(other, value);
  }
  return value;
}
}

template <class T, int width = 32, int arch = 0> class WarpReduce {
 public:
  struct TempStorage { T x[1]; };
  __device__ explicit WarpReduce(TempStorage&) {}
  __device__ T Sum(T v) { return crucible::warp_reduce(v, cub::Sum(), width, width); }
  __device__ T Sum(T v, int valid) { return crucible::warp_reduce(v, cub::Sum(), valid, width); }
  template <class Op> __device__ T Reduce(T v, Op op) { return crucible::warp_reduce(v, op, width, width); }
  template <class Op> __device__ T Reduce(T v, Op op, int valid) { return crucible::warp_reduce(v, op, valid, width); }
};

template <class T, int width = 32, int arch = 0> class WarpScan {
 public:
  struct TempStorage { T x[1]; };
  __device__ explicit WarpScan(TempStorage&) {}
  __device__ void InclusiveSum(T in, T& out) { out = crucible::warp_scan(in, cub::Sum()); }
  __device__ void ExclusiveSum(T in, T& out) { ExclusiveScan(in, out, T(0), cub::Sum()); }
  template <class Op> __device__ void InclusiveScan(T in, T& out, Op op) { out = crucible::warp_scan(in, op); }
  template <class Op> __device__ void ExclusiveScan(T in, T& out, T initial, Op op) {
    T before = crucible::from_lane(crucible::warp_scan(in, op), crucible::lane() - 1);
    out = crucible::lane() == 0 ? initial : op(initial, before);
  }
};

template <class T, int dx, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int dy = 1, int dz = 1, int arch = 0>
class BlockReduce {
 public:
  struct TempStorage { T x[(dx * dy * dz + 31) / 32]; };
  __device__ BlockReduce() : storage_(shared()) {}
  __device__ explicit BlockReduce(TempStorage& storage) : storage_(storage) {}
  __device__ T Sum(T v) { return Reduce(v, cub::Sum(), dx * dy * dz); }
  __device__ T Sum(T v, int valid) { return Reduce(v, cub::Sum(), valid); }
  template <int n> __device__ T Sum(T (&v)[n]) { return Reduce(v, cub::Sum()); }
  template <class Op> __device__ T Reduce(T v, Op op) { return Reduce(v, op, dx * dy * dz); }
  template <int n, class Op> __device__ T Reduce(T (&v)[n], Op op) {
    T total = v[0];
    for (int i = 1; i < n; ++i) total = op(total, v[i]);
    return Reduce(total, op);
  }
  template <class Op> __device__ T Reduce(T v, Op op, int valid) {
    const int thread = crucible::thread();
    v = crucible::warp_reduce(v, op, valid - thread / 32 * 32, 32);
    if (crucible::lane() == 0) storage_.x[thread / 32] = v;
    __syncthreads();
    if (thread == 0)
      for (int i = 1; i < (valid + 31) / 32; ++i) v = op(v, storage_.x[i]);
    return v;
  }

 private:
  __device__ static TempStorage& shared() {
    __shared__ TempStorage storage;
    return storage;
  }
  TempStorage& storage_;
};

template <class T, int dx, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int dy = 1, int dz = 1, int arch = 0>
class BlockScan {
 public:
  struct TempStorage { T x[(dx * dy * dz + 31) / 32 + 1]; };
  __device__ explicit BlockScan(TempStorage& storage) : storage_(storage) {}
  __device__ void InclusiveSum(T in, T& out) { InclusiveScan(in, out, cub::Sum()); }
  __device__ void InclusiveSum(T in, T& out, T& all) { InclusiveScan(in, out, cub::Sum(), all); }
  __device__ void ExclusiveSum(T in, T& out) { ExclusiveScan(in, out, T(0), cub::Sum()); }
  __device__ void ExclusiveSum(T in, T& out, T& all) { ExclusiveScan(in, out, T(0), cub::Sum(), all); }
  template <int n> __device__ void ExclusiveSum(T (&in)[n], T (&out)[n]) { Items(in, out, false); }
  template <int n> __device__ void InclusiveSum(T (&in)[n], T (&out)[n]) { Items(in, out, true); }
  template <class Op> __device__ void InclusiveScan(T in, T& out, Op op) { T all; InclusiveScan(in, out, op, all); }
  template <class Op> __device__ void InclusiveScan(T in, T& out, Op op, T& all) {
    const int warp = crucible::thread() / 32;
    T mine = crucible::warp_scan(in, op);
    if (crucible::lane() == 31) storage_.x[warp] = mine;
    __syncthreads();
    all = storage_.x[0];
    for (int i = 0; i < (dx * dy * dz + 31) / 32; ++i) {
      if (i > 0) all = op(all, storage_.x[i]);
      if (i == warp - 1) mine = op(all, mine);
    }
    out = mine;
  }
  template <class Op> __device__ void ExclusiveScan(T in, T& out, T initial, Op op) {
    T all;
    ExclusiveScan(in, out, initial, op, all);
  }
  template <class Op> __device__ void ExclusiveScan(T in, T& out, T initial, Op op, T& all) {
    T inclusive;
    InclusiveScan(in, inclusive, op, all);
    T before = crucible::from_lane(inclusive, crucible::lane() - 1);
    out = crucible::thread() == 0 ? initial : op(initial, before);
  }

 private:
  template <int n> __device__ void Items(T (&in)[n], T (&out)[n], bool inclusive) {
    T total = in[0];
    for (int i = 1; i < n; ++i) total = total + in[i];
    T running;
    ExclusiveSum(total, running);
    for (int i = 0; i < n; ++i) {
      T next = running + in[i];
      out[i] = inclusive ? next : running;
      running = next;
    }
  }
  TempStorage& storage_;
};
}
