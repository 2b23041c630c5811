// Batched contraction D[z][m][n] = sum over k of A(z, m, k) * B(z, k, n) with operands and result in the hands of a
// functor: matrix products, convolutions (implicit GEMM) and their gradients, with any prologue and epilogue.
//
// The functor P is trivially copyable:
//   static constexpr bool a_along_k;   neighbouring k are neighbours in memory for A (else neighbouring m)
//   static constexpr bool b_along_k;   likewise for B (else neighbouring n)
//   static constexpr bool statistics;  whether sink() is wanted
//   static constexpr int group;        columns of one statistic: a power of two that divides cols() and the tile, or 0
//   __host__ __device__ Index batches(), rows(), cols(), depth() const;
//   __device__ Row a_row(Index z, Index m) const;          what a(row, k) must know of the row; a small plain struct
//   __device__ accum a(const Row&, Index k) const;         an element, 0 where there is padding
//   __device__ Col b_col(Index z, Index n) const;
//   __device__ accum b(const Col&, Index k) const;
//   __device__ accum finish(Index z, Index m, Index n, int split, accum value, bool there) const;
// and for fragments.cuh, whose lanes have neighbours to store,
//   template <class To> __device__ accum finish_to(Index z, Index m, Index n, int split, accum value, To& to) const;
//                                      finish, but calls to(address, element) instead of storing
//   __device__ uintptr_t stored(Index z, Index m, Index n) const;  where in memory its first element goes, in elements
//   static constexpr bool in_pairs;    there is one such element at most, and neighbours among columns are so in memory
//   static constexpr bool reads;       finish reads what depends on the column
//   __device__ void sink(Index z, Index m, Index tile_n, accum count, accum mean, accum m2) const;
// a, b, finish are called for elements in range only; finish once for each (z, m, n, split) that is `there`, by neighbouring
// threads for neighbouring n: it applies the epilogue, stores, and returns the value that statistics are taken of. Called for
// one that is not there (a lane without an element of its own) it must store nothing, and its result is not used. sink is
// called once for each (z, m, tile or group of columns) with the count, mean and sum of squared deviations of finish's values.
// A functor whose groups are phases, which all read the same input, names a type Inside and has `static constexpr int PHASES`,
// their number.
// A functor of phases (plan/phases.py) whose columns are pixels of boxes names a type Phased. It has, for finish and exists,
// finish_at and exists_at, with a place in four dimensions (that of an element that is not there is any in range) for n.
// Where it names Ragged or Sparse there is
//   __device__ bool exists(Index z, Index m, Index n) const;  whether there is such an element; finish asks for itself
//   __device__ bool has(Index group, Index tap) const;        whether a group's phase has a tap of the window; else a is 0
// A functor whose columns are pixels of boxes may also pool, by windows that lie side by side:
//   using Pool = Dims<..>;             a window's extents, which divide the box's
//   using Pooling = ..;                a reduction (reduce.cuh) over a window's elements
//   __device__ accum pool_in(Index z, Index m, Index n, accum value) const;    an element of it
//   __device__ void pool_out(Index z, Index m, Index n, const Pooling&) const; n: the window's place among all whole ones
// A functor whose columns are no pixels may go on where finish ended, with what it returned and what its group has in common:
//   struct Group;                      of numbers, computed from the moments of a group once; without statistics empty
//   __device__ Group grouped(accum count, accum mean, accum m2) const;
//   struct Tail;                       reductions along a row, of the elements in a tile; it may have none
//   static constexpr bool reduces;     whether it has any
//   __device__ void tail(Index z, Index m, Index n, accum finished, const Group&, Tail&) const;   for elements in range only
//   __device__ void tail_out(Index z, Index m, Index tile_n, const Tail&) const;   once for each (z, m, tile of columns)
//
// Split s of `splits` sums a contiguous range of k (whole tiles); an empty range gives 0. Nothing depends on timing.
// The engine (Simt, Mma) is a template argument. Each block computes one tile and, through the shared memory that the
// operands no longer need, hands it out row by row: a warp for each row, a lane for each 32nd column.
#pragma once

#include "contract_simt.cuh"
#include "lanes.cuh"
#if CRUCIBLE_SCALAR != 1  // tensor cores sum in float
#include "contract_mma.cuh"
#endif

namespace crucible {

template <class Config>
constexpr int tile_cols() { return Config::BN; }

// Tiles in an order in which those that run together share operands: bands of 8 tiles of rows, columns outermost.
constexpr int TILE_BAND = 8;
struct TilePlace {
  Index z, m, n;  // m and n count tiles
};
__device__ __forceinline__ TilePlace tile_place(unsigned block, unsigned tiles_m, unsigned tiles_n) {
  constexpr unsigned BAND = TILE_BAND;
  const unsigned z = block / (tiles_m * tiles_n), within = block % (tiles_m * tiles_n);
  const unsigned first = within / (BAND * tiles_n) * BAND, rest = within % (BAND * tiles_n);
  const unsigned height = tiles_m - first < BAND ? tiles_m - first : BAND;
  return {static_cast<Index>(z), static_cast<Index>(first + rest % height), static_cast<Index>(rest / height)};
}

// Whether a functor goes on after finish, and with what.
template <class P, class = void>
struct TailOf {
  struct Row {};
  struct Group {};
  static __device__ __forceinline__ Group group(const P&, accum, accum, accum) { return {}; }
  static constexpr bool there = false, reduces = false;
};
template <class P>
struct TailOf<P, typename Named<typename P::Tail>::type> {
  using Row = typename P::Tail;
  using Group = typename P::Group;
  static __device__ __forceinline__ Group group(const P& p, accum count, accum mean, accum m2) { return p.grouped(count, mean, m2); }
  static constexpr bool there = true, reduces = P::reduces;
  static_assert(!P::statistics || P::group > 0, "what follows needs moments of whole groups");
};

// Sums over LANES neighbouring lanes.
template <int LANES, int N>
__device__ __forceinline__ void lanes_sums(accum (&x)[N]) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
}

// Sums of N numbers over a warp, N a power of two: lane l gets that of x[l / (32 / N)].
template <int N>
__device__ __forceinline__ accum scattered_sum(accum (&x)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int step = 16;
#pragma unroll
  for (int n = N; n > 1; n /= 2, step /= 2)
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const accum mine = lane & step ? x[i + n / 2] : x[i], other = lane & step ? x[i] : x[i + n / 2];
      x[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
    }
#pragma unroll
  for (; step > 0; step /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
  return x[0];
}

// The columns of a tile that a lane finishes: every 32nd of BN neighbours.
template <int BN>
struct PlainColumns {
  static constexpr int EACH = BN / 32;
  Index first, tile;
  int count;

  template <class P>
  __device__ __forceinline__ PlainColumns(const P& p, Index tile_n) : first(tile_n * BN), tile(tile_n) {
    const Index left = p.cols() - first;
    count = left < BN ? static_cast<int>(left) : BN;
  }
  __device__ __forceinline__ bool valid(int, int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32 < count; }
  __device__ __forceinline__ Index column(int, int j) const { return first + static_cast<int>(threadIdx.x) % 32 + j * 32; }
  __device__ __forceinline__ int from(int j) const { return static_cast<int>(threadIdx.x) % 32 + j * 32; }
};

// Columns may be of several batches, neighbours from z on, and may know which elements exist: the same of all rows.
template <class C, class = void>
struct BatchOf {
  static constexpr bool knows = false;
  static __device__ __forceinline__ Index at(const C&, Index z, int) { return z; }
};
template <class C>
struct BatchOf<C, typename Named<typename C::Several>::type> {
  static constexpr bool knows = C::KNOWS;
  static __device__ __forceinline__ Index at(const C& columns, Index z, int j) { return z + columns.further(j); }
};

// Whether a lane's column of a row is an element.
template <class P, class C>
__device__ __forceinline__ bool is_there(const P& p, Index z, Index m, const C& columns, int r, int j) {
  if constexpr (BatchOf<C>::knows)
    return columns.valid(r, j);
  else if constexpr (RaggedOf<P>::ragged && PhasedOf<P>::phased)
    return columns.valid(r, j) && p.exists_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3));
  else if constexpr (RaggedOf<P>::ragged)
    return columns.valid(r, j) && p.exists(z, m, columns.column(r, j));
  else
    return columns.valid(r, j);
}
template <class P, class C>
__device__ __forceinline__ accum finish_element(const P& p, Index z, Index m, const C& columns, int r, int j, int split,
                                                accum value, bool there) {
  if constexpr (PhasedOf<P>::phased)
    return p.finish_at(BatchOf<C>::at(columns, z, j), m, columns.pixel(r, j, 0), columns.pixel(r, j, 1), columns.pixel(r, j, 2), columns.pixel(r, j, 3), split, value,
                       there && columns.valid(r, j));
  else
    return p.finish(z, m, columns.valid(r, j) ? columns.column(r, j) : 0, split, value, there && columns.valid(r, j));
}
// Something near the mean of a row's elements, the same for LANES neighbours: the mean of those that they have, one each. Of
// deviations from it little cancels: n times its own squared deviation is not much of all of them, while that of a single
// element may be all. Zero where it is not finite, so that infinities stay what they are.
template <int LANES>
__device__ __forceinline__ accum near_mean(accum mine, int have) {
  accum sum = mine * accum(1.0 / LANES), count = static_cast<accum>(have);
  if (LANES == 32) count = static_cast<accum>(__popc(__ballot_sync(0xffffffffu, have != 0)));  // one each
#pragma unroll
  for (int by = LANES / 2; by > 0; by /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (LANES < 32) count += __shfl_xor_sync(0xffffffffu, count, by);
  }
  const accum mean = count > 0 ? sum * (accum(LANES) / count) : accum(0);
  return mean - mean == 0 ? mean : accum(0);
}
// The same of a row by all lanes, and how many elements there are.
template <int EACH, class P, class C>
__device__ __forceinline__ accum near_all(const P& p, Index z, Index m, const C& columns, int r, const accum (&kept)[EACH],
                                           int* found) {
  accum mine = 0;
  bool any = false;
#pragma unroll
  for (int j = EACH - 1; j >= 0; --j) {
    const bool there = is_there(p, z, m, columns, r, j);
    if (there) mine = kept[j];
    any |= there;
    if (!BatchOf<C>::knows) *found += __popc(__ballot_sync(0xffffffffu, there));
  }
  return near_mean<32>(mine, any);
}

// ROWS neighbouring rows of a tile (those there are, below `limit`) at a time, so that they need not wait for each other's
// shuffles: a warp's lanes take every 32nd column. The mean is computed first and the deviations from it, and then corrected
// by the deviations' own mean, so nothing cancels however far the values are from zero.
template <int ROWS, int EACH, class P, class C>
__device__ __forceinline__ void finish_values(const P& p, Index z, Index m, Index limit, const C& columns, int split,
                                              const accum (&values)[ROWS][EACH]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  accum kept[ROWS][EACH];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int j = 0; j < EACH; ++j)
      // Elements that are not there are computed too, without a branch, and nothing is stored.
      kept[r][j] = finish_element(p, z, m + r < limit ? m + r : m, columns, r, j, split, values[r][j], m + r < limit);
  if constexpr (PoolOf<P>::pooled) {
    constexpr int TAKES = PoolOf<P>::Window::product;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int q = 0; q < EACH / TAKES; ++q)
        if (m + r < limit && columns.whole(q)) {
          typename P::Pooling pool;
#pragma unroll
          for (int j = q * TAKES; j < (q + 1) * TAKES; ++j)
            pool.step(p.pool_in(z, m + r, columns.column(r, j), values[r][j]));
          p.pool_out(z, m + r, columns.pooled(q), pool);
        }
  }
  using Tail = TailOf<P>;
  [[maybe_unused]] typename Tail::Row tails[ROWS];
  if constexpr (P::statistics) {
    // LANES lanes take TAKES columns each of one statistic.
    constexpr int LANES = P::group > 0 && P::group < 32 ? P::group : 32;
    constexpr int TAKES = P::group == 0 ? EACH : P::group < 32 ? 1 : P::group / 32;
    constexpr int WIDTH = P::group == 0 ? 1 : P::group;
    constexpr bool ALL_KNOW = LANES < 32 || Tail::there;  // all lanes of a group get its moments
    static_assert(EACH % TAKES == 0, "a group of columns lies within a tile");
#pragma unroll
    for (int first = 0; ALL_KNOW && first < EACH; first += TAKES) {
      const accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
      accum near[ROWS], both[2 * ROWS];  // means; deviations from them and their squares
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) near[r] += columns.valid(r, j) ? kept[r][j] : accum(0);
      }
      lanes_sums<LANES>(near);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        near[r] /= size;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = columns.valid(r, j) ? kept[r][j] - near[r] : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      lanes_sums<LANES>(both);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const accum off = both[2 * r] / size, squares = both[2 * r + 1] - size * off * off;
        if (m + r < limit && lane % LANES == 0 && (P::group == 0 || columns.valid(0, first)))
          p.sink(z, m + r, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, near[r] + off, squares);
        if constexpr (Tail::there) {
          const auto group = Tail::group(p, size, near[r] + off, squares);
#pragma unroll
          for (int j = first; j < first + TAKES; ++j)
            if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], group, tails[r]);
        }
      }
    }
    // The whole warp takes each of them, all rows in one go, with deviations from what is near the mean.
#pragma unroll
    for (int first = 0; !ALL_KNOW && first < EACH; first += TAKES) {
      constexpr int EVERY = 32 / ROWS;
      accum both[2 * ROWS], middle = 0;  // of row lane / EVERY, as is the size
      accum size = static_cast<accum>(P::group > 0 ? P::group : columns.count);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        accum near;
        if constexpr (RaggedOf<P>::ragged) {
          int found = columns.count;
          if (!BatchOf<C>::knows) found = 0;
          near = near_all(p, z, m + r, columns, r, kept[r], &found);
          if (lane / EVERY == r) size = static_cast<accum>(found);
        } else {
          const bool have = columns.valid(r, first);
          near = near_mean<32>(have ? kept[r][first] : accum(0), have);
        }
        if (lane / EVERY == r) middle = near;
        accum off = 0, squares = 0;
#pragma unroll
        for (int j = first; j < first + TAKES; ++j) {
          const accum d = is_there(p, z, m + r, columns, r, j) ? kept[r][j] - near : accum(0);
          off += d;
          squares = fma(d, d, squares);
        }
        both[2 * r] = off, both[2 * r + 1] = squares;
      }
      const accum part = RaggedOf<P>::ragged && size == 0 ? accum(0) : accum(1) / size;
      const accum mine = scattered_sum(both), other = __shfl_xor_sync(0xffffffffu, mine, EVERY / 2);
      const accum off = mine * part, squares = other - mine * off;
      if (lane % EVERY == 0 && m + lane / EVERY < limit && (P::group == 0 || columns.valid(0, first)))
        p.sink(z, m + lane / EVERY, P::group > 0 ? columns.column(0, first) / WIDTH : columns.tile, size, middle + off, squares < 0 ? accum(0) : squares);
    }
  } else if constexpr (Tail::there) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int j = 0; j < EACH; ++j)
        if (m + r < limit && columns.valid(r, j)) p.tail(z, m + r, columns.column(r, j), kept[r][j], {}, tails[r]);
  }
  if constexpr (Tail::reduces) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const auto row = fold_lanes<32>(tails[r]);
      if (lane == 0 && m + r < limit) p.tail_out(z, m + r, columns.tile, row);
    }
  }
}

template <class Config, class P, class C>
__device__ __forceinline__ void finish_row(const P& p, Index z, Index m, const C& columns, int split,
                                           const accum* values) {
  accum mine[1][C::EACH];
#pragma unroll
  for (int j = 0; j < C::EACH; ++j) mine[0][j] = values[columns.from(j)];
  finish_values(p, z, m, m + 1, columns, split, mine);
}

// Tiles of columns: boxes where the functor's columns are pixels of boxes.
template <class Config, class P>
__host__ __device__ __forceinline__ Index column_tiles(const P& p) {
  if constexpr (P::boxed)
    return box_count(p);
  else
    return p.cols() == 0 ? 0 : (p.cols() - 1) / Config::BN + 1;
}

template <class Config, class P>
__device__ __forceinline__ auto columns_of(const P& p, Index tile_n) {
  if constexpr (P::boxed)
    return BoxColumns<P, Config::BN>(p, BoxPlace<P>(p, tile_n), tile_n);
  else
    return PlainColumns<Config::BN>(p, tile_n);
}

// One tile of the result, and one split of its sums.
template <class Config, class P>
__device__ __forceinline__ void contract_tile(const P& p, unsigned block, int split, int splits,
                                              unsigned char* shared) {
  const Index rows = p.rows(), depth = p.depth();
  const TilePlace tile = tile_place(block, static_cast<unsigned>((rows - 1) / Config::BM + 1),
                                    static_cast<unsigned>(column_tiles<Config>(p)));
  const Index m0 = tile.m * Config::BM;

  const Index tiles = depth / Config::BK + (depth % Config::BK != 0), share = tiles / splits + (tiles % splits != 0);
  const Index first = share * split < tiles ? share * split : tiles;
  const Index last = tiles - first > share ? first + share : tiles;

  typename Config::Sums sums;
  Config::multiply(p, tile.z, m0, tile.n * Config::BN, first == tiles ? depth : first * Config::BK,
                   last == tiles ? depth : last * Config::BK, shared, sums);

  const auto columns = columns_of<Config>(p, tile.n);
  accum* staged = reinterpret_cast<accum*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int pass = 0; pass < Config::passes; ++pass) {
    __syncthreads();
    Config::expose(sums, pass, staged);
    __syncthreads();
#pragma unroll 1
    for (int r = warp; r < Config::pass_rows; r += Config::threads / 32) {
      const int row = Config::row_of(pass, r);
      if (row < rows - m0) finish_row<Config>(p, tile.z, m0 + row, columns, split, staged + r * Config::pass_stride);
    }
  }
}

template <class Config, class P>
__global__ void __launch_bounds__(Config::threads, Config::blocks_per_sm)
    contract_kernel(const __grid_constant__ P p, int splits) {
  follow();
  extern __shared__ __align__(16) unsigned char contract_shared[];
  contract_tile<Config>(p, blockIdx.x, static_cast<int>(blockIdx.y), splits, contract_shared);
}

#ifndef __CUDACC_RTC__
// Kernels that this thread has asked for already. Static, and not in a template: a process has such only once for all
// libraries, and kernels of the same name in each.
static thread_local struct { const void* kernel; int device; } allowed[64];
static thread_local int allowed_count = 0;

// A block gets more than 48 KB only where its kernel was allowed to ask.
template <class Kernel>
cudaError_t allow_shared(Kernel* kernel, int bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  const void* const address = reinterpret_cast<const void*>(kernel);
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  for (int i = 0; i < allowed_count; ++i)
    if (allowed[i].kernel == address && allowed[i].device == device) return error;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && allowed_count < 64) allowed[allowed_count++] = {address, device};
  return error;
}

// Launches nothing where D is empty. cudaErrorInvalidValue: too many tiles, or statistics or a tail of split (partial) sums.
template <class Config, class P>
cudaError_t launch_contract(const P& p, int splits, cudaStream_t stream) {
  const int64_t tiles_m = (static_cast<int64_t>(p.rows()) + Config::BM - 1) / Config::BM;
  const int64_t tiles_n = column_tiles<Config>(p);
  const int64_t batches = p.batches(), most = 0x7fffffff;
  if (batches == 0 || tiles_m == 0 || tiles_n == 0) return cudaSuccess;
  if (tiles_m > most / tiles_n || batches > most / (tiles_m * tiles_n)) return cudaErrorInvalidValue;
  if (splits < 1 || splits > 65535 || ((P::statistics || TailOf<P>::there) && splits > 1)) return cudaErrorInvalidValue;
  const cudaError_t refused = allow_shared(contract_kernel<Config, P>, Config::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const dim3 grid(static_cast<unsigned>(batches * tiles_m * tiles_n), static_cast<unsigned>(splits));
  return cudaLaunchKernelEx(After(grid, Config::threads, Config::shared_bytes, stream), contract_kernel<Config, P>, p, splits);
}
#endif

}  // namespace crucible
