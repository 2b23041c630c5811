// A matrix product in every layout, with a bias and statistics, for tests/gpu/contract_wgmma.py on a chip and
// tests/kernels/test_contract_wgmma.py in the simulator.
// GRADE (Tf32, Fp32, Native), COLUMNS (of a tile), INSTRUCTIONS (a file) and CRUCIBLE_SCALAR are given.
#include "contract_wgmma.cuh"
#include INSTRUCTIONS  // of COLUMNS, as emit/wgmma.py writes them

using namespace crucible;

template <bool AK, bool BK, int GROUP, bool STATISTICS>
struct Product {
  const scalar* __restrict__ left;
  const scalar* __restrict__ right;
  const scalar* __restrict__ bias;
  accum* __restrict__ out;
  accum* __restrict__ count;
  accum* __restrict__ mean;
  accum* __restrict__ m2;
  Index z, m, n, k, groups;

  static constexpr bool a_along_k = AK, b_along_k = BK, statistics = STATISTICS, boxed = false;
  static constexpr bool a_direct = true, b_direct = true;
  static constexpr int group = GROUP;
  __host__ __device__ Index batches() const { return z; }
  __host__ __device__ Index rows() const { return m; }
  __host__ __device__ Index cols() const { return n; }
  __host__ __device__ Index depth() const { return k; }
  struct Line {
    Index first;
  };
  __device__ __forceinline__ Line a_row(Index b, Index i) const { return {AK ? (b * m + i) * k : b * k * m + i}; }
  __device__ __forceinline__ const scalar* a_from(const Line& at, Index i) const {
    return &left[at.first + (AK ? i : i * m)];
  }
  __device__ __forceinline__ accum a(const Line& at, Index i) const { return to_accum(read(*a_from(at, i))); }
  __device__ __forceinline__ Line b_col(Index b, Index j) const { return {BK ? (b * n + j) * k : b * k * n + j}; }
  __device__ __forceinline__ const scalar* b_from(const Line& at, Index i) const {
    return &right[at.first + (BK ? i : i * n)];
  }
  __device__ __forceinline__ accum b(const Line& at, Index i) const { return to_accum(read(*b_from(at, i))); }
  __device__ __forceinline__ accum finish(Index b, Index i, Index j, int, accum value, bool there) const {
    if (there) out[(b * m + i) * n + j] = value;
    return value + to_accum(bias[j]);
  }
  __device__ __forceinline__ void sink(Index b, Index i, Index tile, accum many, accum middle, accum squares) const {
    const Index at = (b * m + i) * groups + tile;
    count[at] = many;
    mean[at] = middle;
    m2[at] = squares;
  }
};

// What is stored is normalised by the moments of its group, where there are any, and of a row's elements in a tile the
// largest and the sum go to `count` and `mean`.
template <int GROUP>
struct Tailed : Product<true, true, GROUP, (GROUP > 0)> {
  using Base = Product<true, true, GROUP, (GROUP > 0)>;
  __device__ __forceinline__ accum finish(Index, Index, Index j, int, accum value, bool) const {
    return value + to_accum(this->bias[j]);
  }
  __device__ __forceinline__ void sink(Index, Index, Index, accum, accum, accum) const {}
  struct Tail {
    accum best = -INFINITY, sum = 0;
    __device__ __forceinline__ void join(const Tail& b) {
      best = b.best > best ? b.best : best;
      sum += b.sum;
    }
  };
  static constexpr bool reduces = true;
  struct Group {
    accum middle, width;
  };
  __device__ __forceinline__ Group grouped(accum many, accum middle, accum squares) const {
    return {middle, sqrtf(squares / many + 1e-5f)};
  }
  __device__ __forceinline__ void tail(Index b, Index i, Index j, accum finished, const Group& of, Tail& row) const {
    const accum made = GROUP > 0 ? (finished - of.middle) / of.width : finished;
    this->out[(b * this->m + i) * this->n + j] = made;
    row.join({made, made});
  }
  __device__ __forceinline__ void tail_out(Index b, Index i, Index tile, const Tail& row) const {
    const Index at = (b * this->m + i) * this->groups + tile;
    this->count[at] = row.best;
    this->mean[at] = row.sum;
  }
};

// What to launch: 0 everything, 1 packing, 2 the product, 3 the second time, 4 the mma engine. pace: how many lines idle
// warps are trusted with, the engine's own where negative. Packing and the product alone only fit each other for the same pace.
// height: blocks of a team, for which B is packed piece by piece, or 0; the engine's own choice where negative.
template <class P>
static int run(const P& p, void* workspace, int what, int pace, int height, cudaStream_t stream) {
  using W = WgmmaTile<COLUMNS, Grade::GRADE>;
  if (what == 4) return launch_contract<typename W::Other>(p, 1, stream);
  int device = 0, count = 0, clusters = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
  int64_t bytes[2];
  wgmma_packing<W>(p, nullptr, nullptr, bytes, height);
  void* const pieces = static_cast<unsigned char*>(workspace) + bytes[0];
  Packing all = wgmma_packing<W>(p, workspace, pieces, nullptr, height);
  share_packing<W>(all, count, clusters, pace < 0 ? W::PACE : pace);
  int error = 0;
  if (what == 0 && pace < 0 && height < 0 && clusters) return launch_contract_wgmma<W>(p, workspace, pieces, stream);
  if (what == 0 || what == 1) error = launch_wgmma_pack<W>(p, all, stream);
  if (!error && (what == 0 || what == 2)) error = launch_wgmma_multiply<W>(p, all, count, stream);
  if (!error && W::scaled && (what == 0 || what == 3)) error = launch_wgmma_again<W>(p, all, stream);
  return error;
}

extern "C" int64_t product_workspace(int z, int m, int n, int k, int height) {
  using P = Product<false, false, 0, false>;
  int64_t bytes[2];
  wgmma_packing<WgmmaTile<COLUMNS, Grade::GRADE>>(P{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, z, m, n, k, 0},
                                                  nullptr, nullptr, bytes, height);
  return bytes[0] + bytes[1];
}

// form: 1 where A lies along k, 2 where B does, 3 both. statistics: of groups of 16, of whole tiles (0), none (-1); from 100
// on a tail, with statistics of groups of so many columns as it is more than 100, or none.
extern "C" int product(const void* a, const void* b, const void* bias, void* out, void* count, void* mean, void* m2,
                       int z, int m, int n, int k, int groups, int form, int statistics, void* workspace, int what,
                       int pace, int height, void* stream) {
  const auto go = [&](auto p) { return run(p, workspace, what, pace, height, static_cast<cudaStream_t>(stream)); };
#define GIVEN                                                                                             \
  {static_cast<const scalar*>(a), static_cast<const scalar*>(b), static_cast<const scalar*>(bias),        \
   static_cast<accum*>(out), static_cast<accum*>(count), static_cast<accum*>(mean), static_cast<accum*>(m2), z, m, n, k, groups}
  if (statistics == 100) return go(Tailed<0>{GIVEN});
  if (statistics == 104) return go(Tailed<4>{GIVEN});
  if (statistics == 116) return go(Tailed<16>{GIVEN});
  if (statistics == 132) return go(Tailed<32>{GIVEN});
  if (statistics == 16) return go(Product<true, true, 16, true> GIVEN);
  if (statistics == 0) return go(Product<true, true, 0, true> GIVEN);
  if (form == 0) return go(Product<false, false, 0, false> GIVEN);
  if (form == 1) return go(Product<true, false, 0, false> GIVEN);
  if (form == 2) return go(Product<false, true, 0, false> GIVEN);
  return go(Product<true, true, 0, false> GIVEN);
}
