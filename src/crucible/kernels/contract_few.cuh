// A contraction in which one operand has few lines (rows of A, or columns of B) and the other many: a matrix times a few
// vectors. The large operand's bytes rule, and a tile of a contraction engine would be mostly empty.
//
// The large operand is streamed once, 16 bytes a lane where its elements lie so; the few lines wait in shared memory as
// accum, FEW_ROWS of them at most, and a thread's sums stay in registers: fused multiply-adds, as exact as any engine.
// The depth is split over blocks; the splits' sums go to memory, and a second kernel adds them up in order, finishes the
// elements and takes statistics as the engines do, tile by tile of their columns. Nothing depends on timing.
//
// Where the large operand's neighbours are along k, a warp takes FEW_LANE_LINES lines and its lanes share k. Where they
// are lines, a lane takes as many lines as 16 bytes have, its block's warps take turns in k, and their sums meet in
// shared memory.
//
// Bytes: the large operand once (from L2 again for each further FEW_ROWS lines), the few lines once a block, and 2 * splits
// sums for each element of the result. Operations: 2 a product, no tensor cores.
//
// Beside what contract.cuh asks of it, the functor has for a and b
//   static constexpr bool a_direct;    elements are those of memory, and neighbours (along k, or else rows) lie side by side
//   __device__ const scalar* a_from(const Row&, Index k) const;   where an element lies, if direct
#pragma once

#include "contract.cuh"

namespace crucible {

// Lines of the smaller operand up to which this way is taken, set from measurement; the depth and the elements of the
// larger operand from which on; and the most splits, which one thread adds up.
constexpr int FEW_LINES = 16, FEW_DEPTH = 256, FEW_ELEMENTS = 1 << 15, FEW_SPLITS = 128;
// Thread blocks that fill a chip a few times over, and the least depth that is worth a split of its own.
constexpr int FEW_BLOCKS = 528, FEW_SHARE = 512;
constexpr int FEW_THREADS = 256, FEW_WARPS = FEW_THREADS / 32;
constexpr int FEW_LANE_LINES = 4;                        // of the large operand, for a warp
constexpr int FEW_VECTOR = 16 / sizeof(scalar);          // elements of a load
constexpr int FEW_CHUNK = 16 / sizeof(accum);            // numbers of a load from shared memory
constexpr int FEW_STEP = 32 * FEW_VECTOR;                // elements that a warp loads at once
constexpr int FEW_ROWS = sizeof(scalar) == 4 ? 16 : 8;   // few lines at a time: more would not leave registers for loads

// Which operand has few lines, and which element of the result two lines make.
template <class P>
struct FewRows {
  using Few = OperandA<P>;
  using Many = OperandB<P>;
  static constexpr bool direct = P::b_direct;
  static __host__ __device__ Index few(const P& p) { return p.rows(); }
  static __host__ __device__ Index many(const P& p) { return p.cols(); }
  static __device__ __forceinline__ const scalar* from(const P& p, const typename Many::Line& line, Index k) { return p.b_from(line, k); }
  static __device__ __forceinline__ int64_t place(const P& p, Index few, Index many) { return static_cast<int64_t>(few) * p.cols() + many; }
};
template <class P>
struct FewCols {
  using Few = OperandB<P>;
  using Many = OperandA<P>;
  static constexpr bool direct = P::a_direct;
  static __host__ __device__ Index few(const P& p) { return p.cols(); }
  static __host__ __device__ Index many(const P& p) { return p.rows(); }
  static __device__ __forceinline__ const scalar* from(const P& p, const typename Many::Line& line, Index k) { return p.a_from(line, k); }
  static __device__ __forceinline__ int64_t place(const P& p, Index few, Index many) { return static_cast<int64_t>(many) * p.cols() + few; }
};

// How the work is dealt out: blockIdx.x counts batches, blocks and passes (the latter side by side), blockIdx.y splits.
struct FewShape {
  int lines;      // few ones at a time: 2, 8 or 16
  int passes;     // over the few lines
  int splits;     // of the depth
  int share;      // a split's depth: whole steps, and one after another as many as are staged at once
  int blocks;     // that share the many lines
};

// How much of the few lines' depth is in shared memory (64 KB at most) at once.
__host__ __device__ constexpr int few_deepest(int lines, bool along_k) { return along_k && lines == 2 ? 4096 : 1024; }

// Blocks on a processor: as many as leave each thread its sums and the loads under way.
__host__ __device__ constexpr int few_resident(int lines) {
  return sizeof(scalar) == 8 ? (lines == 2 ? 2 : 1) : lines == 2 ? (sizeof(scalar) == 4 ? 4 : 3) : 2;
}

template <int LINES, bool ALONG_K>
constexpr int few_shared_bytes() {
  constexpr int lines = LINES * few_deepest(LINES, ALONG_K), sums = ALONG_K ? 0 : 2 * FEW_WARPS * FEW_STEP;
  return larger(lines, sums) * static_cast<int>(sizeof(accum));
}

// 16 bytes as numbers.
__device__ __forceinline__ void few_unpack(const uint4& from, accum (&to)[FEW_VECTOR]) {
#pragma unroll
  for (int i = 0; i < FEW_VECTOR; ++i) to[i] = to_accum(reinterpret_cast<const scalar*>(&from)[i]);
}

// N numbers from shared memory and to it, as many at once as may be.
template <int N>
__device__ __forceinline__ void few_read(const accum* from, accum (&to)[N]) {
  if constexpr (N % FEW_CHUNK == 0) {
#pragma unroll
    for (int i = 0; i < N; i += FEW_CHUNK) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + i);
#pragma unroll
      for (int j = 0; j < FEW_CHUNK; ++j) to[i + j] = reinterpret_cast<const accum*>(&v)[j];
    }
  } else {
    static_assert(N == 2 && sizeof(accum) == 4, "two floats");
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  }
}

template <int N>
__device__ __forceinline__ void few_write(accum* to, const accum (&from)[N]) {
  if constexpr (N % FEW_CHUNK == 0) {
#pragma unroll
    for (int i = 0; i < N; i += FEW_CHUNK) {
      uint4 v;
#pragma unroll
      for (int j = 0; j < FEW_CHUNK; ++j) reinterpret_cast<accum*>(&v)[j] = from[i + j];
      *reinterpret_cast<uint4*>(to + i) = v;
    }
  } else {
    *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
  }
}

__device__ __forceinline__ bool few_aligned(const scalar* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

// The few lines' numbers from k = begin on, for put(k, numbers); zeros past the last line, and past `length` to a whole step.
// Whole batches of loads are under way at once: nothing else happens meanwhile.
template <class Side, int LINES, class Put, class P>
__device__ __forceinline__ void few_stage(const P& p, Index z, Index first, Index begin, int length, Put put) {
  constexpr int AHEAD = LINES == 2 ? 8 : 2;
  const int padded = (length + FEW_STEP - 1) / FEW_STEP * FEW_STEP;
  const Index left = Side::few(p) - first;
  typename Side::Few::Line lines[LINES];
#pragma unroll
  for (int r = 0; r < LINES; ++r) lines[r] = Side::Few::line(p, z, r < left ? first + r : first);
  __syncthreads();  // nobody needs what was there
#pragma unroll AHEAD
  for (int k = static_cast<int>(threadIdx.x); k < padded; k += FEW_THREADS) {
    accum numbers[LINES];
#pragma unroll
    for (int r = 0; r < LINES; ++r) numbers[r] = r < left && k < length ? Side::Few::at(p, lines[r], begin + k) : accum(0);
    put(k, numbers);
  }
  __syncthreads();
}

// ---- neighbours along k

// Sums of COUNT numbers each over a warp's lanes: lane l gets that of x[l / (32 / COUNT)]. As scattered_sum(), for more
// numbers than the compiler would unroll by itself.
template <int COUNT, int STEP, int N>
__device__ __forceinline__ void few_lanes_sums(accum (&x)[N]) {
  if constexpr (STEP > 0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (COUNT > 1) {
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        const accum mine = lane & STEP ? x[i + COUNT / 2] : x[i], other = lane & STEP ? x[i] : x[i + COUNT / 2];
        x[i] = mine + __shfl_xor_sync(0xffffffffu, other, STEP);
      }
    } else {
      x[0] += __shfl_xor_sync(0xffffffffu, x[0], STEP);
    }
    few_lanes_sums<(COUNT > 1 ? COUNT / 2 : 1), STEP / 2>(x);
  }
}

// Where number k of a line lies: what a lane reads at once is side by side, and so are neighbouring lanes.
__device__ __forceinline__ int few_along_place(int k) {
  const int within = k % FEW_STEP;
  return k - within + (within % FEW_VECTOR / FEW_CHUNK * 32 + within / FEW_VECTOR) * FEW_CHUNK + within % FEW_CHUNK;
}

// DIRECT: all lines lie on 16 bytes, and two steps' loads are under way at once; else single elements, 32 neighbours a time.
template <bool DIRECT, class Side, int LINES, class P>
__device__ __forceinline__ void few_along_sums(const P& p, const typename Side::Many::Line (&lines)[FEW_LANE_LINES], Index begin,
                                               int length, const accum* few, accum (&sums)[LINES * FEW_LANE_LINES]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Single elements take a register more each, for where they lie, and two lines leave 64 in all.
  constexpr int L = FEW_LANE_LINES, V = FEW_VECTOR, STEPS = DIRECT || V < (LINES == 2 ? 4 : 8) ? 2 : 1;
  constexpr int PIECES = DIRECT ? V / FEW_CHUNK : V;
  constexpr int EACH = DIRECT ? FEW_CHUNK : 1;  // numbers of a few line's that are read at once
#pragma unroll 1
  for (int k0 = 0; k0 < length; k0 += STEPS * FEW_STEP) {
    uint4 raw[STEPS][L];
    accum single[STEPS][L][V];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int l = 0; l < L; ++l) {
        const int k = k0 + s * FEW_STEP;
        if constexpr (DIRECT) {
          raw[s][l] = make_uint4(0, 0, 0, 0);
          if (k + lane * V < length) raw[s][l] = __ldg(reinterpret_cast<const uint4*>(Side::from(p, lines[l], begin + k + lane * V)));
        } else {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const int at = k + i * 32 + lane;
            single[s][l][i] = at < length ? Side::Many::at(p, lines[l], begin + at) : accum(0);
          }
        }
      }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int k = k0 + s * FEW_STEP;
      if (k >= length) break;  // nothing was staged there
      if constexpr (DIRECT) {
#pragma unroll
        for (int l = 0; l < L; ++l) few_unpack(raw[s][l], single[s][l]);
      }
#pragma unroll
      for (int i = 0; i < PIECES; ++i)
#pragma unroll
        for (int r = 0; r < LINES; ++r) {
          const accum* const at = few + r * few_deepest(LINES, true) + (DIRECT ? k + (i * 32 + lane) * EACH : few_along_place(k + i * 32 + lane));
          accum x[EACH];
          if constexpr (DIRECT)
            few_read(at, x);
          else
            x[0] = *at;
#pragma unroll
          for (int l = 0; l < L; ++l)
#pragma unroll
            for (int j = 0; j < EACH; ++j)
              sums[r * L + l] = fma(x[j], single[s][l][i * EACH + j], sums[r * L + l]);
        }
    }
  }
}

template <class Side, int LINES, class P>
__device__ __forceinline__ void few_along(const P& p, const FewShape& shape, Index z, Index first, int block, Index begin,
                                          int length, accum* few, accum* parts) {
  constexpr int L = FEW_LANE_LINES, AT_ONCE = LINES * L < 32 ? LINES * L : 32, DEEPEST = few_deepest(LINES, true);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Index many = Side::many(p), start = static_cast<Index>(block) * (FEW_WARPS * L);
#pragma unroll 1
  for (Index base = start; base < many; base += shape.blocks * (FEW_WARPS * L)) {
    const Index line = base + warp * L;
    typename Side::Many::Line lines[L];
#pragma unroll
    for (int l = 0; l < L; ++l) lines[l] = Side::Many::line(p, z, line + l < many ? line + l : many - 1);
    accum sums[LINES * L];
#pragma unroll
    for (int i = 0; i < LINES * L; ++i) sums[i] = 0;
#pragma unroll 1
    for (int done = 0; done < length; done += DEEPEST) {
      const int now = length - done < DEEPEST ? length - done : DEEPEST;
      const Index from = begin + done;
      if (base == start || length > DEEPEST)
        few_stage<Side, LINES>(p, z, first, from, now, [few](int k, const accum (&numbers)[LINES]) {
#pragma unroll
          for (int r = 0; r < LINES; ++r) few[r * few_deepest(LINES, true) + few_along_place(k)] = numbers[r];
        });
      if (line >= many) continue;
      bool direct = Side::direct && now % FEW_VECTOR == 0;
      if constexpr (Side::direct) {
#pragma unroll
        for (int l = 0; l < L; ++l) direct = direct && few_aligned(Side::from(p, lines[l], from));
        if (direct) few_along_sums<true, Side, LINES>(p, lines, from, now, few, sums);
      }
      if (!direct) few_along_sums<false, Side, LINES>(p, lines, from, now, few, sums);
    }
    if (line >= many) continue;
    int own = lane;
    asm volatile("" : "+r"(own));  // not to be seen through: places of sums, kept from the start, would cost the loads registers
#pragma unroll
    for (int i = 0; i < LINES * L; i += AT_ONCE) {
      accum some[AT_ONCE];
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) some[j] = sums[i + j];
      few_lanes_sums<AT_ONCE, 16>(some);
      const int mine = i + own / (32 / AT_ONCE);
      const Index r = first + mine / L;
      if (own % (32 / AT_ONCE) == 0 && r < Side::few(p) && line + mine % L < many)
        parts[Side::place(p, r, line + mine % L)] = some[0];
    }
  }
}

// ---- neighbours are lines

// A lane's lines: neighbours where it loads 16 bytes of them at once, else every 32nd.
template <bool DIRECT>
__device__ __forceinline__ int few_lane_line(int j) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return DIRECT ? lane * FEW_VECTOR + j : j * 32 + lane;
}

template <bool DIRECT, class Side, int LINES, class P>
__device__ __forceinline__ void few_across_sums(const P& p, Index z, Index tile, Index begin, int length, const accum* few,
                                                accum (&sums)[LINES][FEW_VECTOR]) {
  constexpr int V = FEW_VECTOR, STEPS = DIRECT || V < 4 ? 8 : 16 / V;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Index last = Side::many(p) - 1;
  typename Side::Many::Line lines[DIRECT ? 1 : V];
#pragma unroll
  for (int j = 0; j < (DIRECT ? 1 : V); ++j) {
    const Index line = tile + few_lane_line<DIRECT>(j);
    lines[j] = Side::Many::line(p, z, last - tile < few_lane_line<DIRECT>(j) ? last : line);
  }
#pragma unroll 1
  for (int k0 = warp; k0 < length; k0 += STEPS * FEW_WARPS) {
    uint4 raw[STEPS];
    accum single[STEPS][V];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int k = k0 + s * FEW_WARPS;
      if constexpr (DIRECT) {
        raw[s] = make_uint4(0, 0, 0, 0);
        if (k < length) raw[s] = __ldg(reinterpret_cast<const uint4*>(Side::from(p, lines[0], begin + k)));
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j) single[s][j] = k < length ? Side::Many::at(p, lines[j], begin + k) : accum(0);
      }
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const int k = k0 + s * FEW_WARPS;
      if (k >= length) break;
      if constexpr (DIRECT) few_unpack(raw[s], single[s]);
      accum x[LINES];
      few_read(few + k * LINES, x);
#pragma unroll
      for (int r = 0; r < LINES; ++r)
#pragma unroll
        for (int j = 0; j < V; ++j) sums[r][j] = fma(x[r], single[s][j], sums[r][j]);
    }
  }
}

template <class Side, int LINES, class P>
__device__ __forceinline__ void few_across(const P& p, Index z, Index first, int block, Index begin, int length,
                                           accum* shared, accum* parts) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Index tile = static_cast<Index>(block) * FEW_STEP, left = Side::many(p) - tile;
  constexpr int DEEPEST = few_deepest(LINES, false);
  accum sums[LINES][FEW_VECTOR];
#pragma unroll
  for (int r = 0; r < LINES; ++r)
#pragma unroll
    for (int j = 0; j < FEW_VECTOR; ++j) sums[r][j] = 0;
  bool direct = Side::direct && left >= FEW_STEP;
  if constexpr (Side::direct) {
    const auto line = Side::Many::line(p, z, tile);
    direct = direct && few_aligned(Side::from(p, line, begin)) && (length == 1 || few_aligned(Side::from(p, line, begin + 1)));
  }
#pragma unroll 1
  for (int done = 0; done < length; done += DEEPEST) {
    const int now = length - done < DEEPEST ? length - done : DEEPEST;
    const Index from = begin + done;
    few_stage<Side, LINES>(p, z, first, from, now,
                           [shared](int k, const accum (&numbers)[LINES]) { few_write(shared + k * LINES, numbers); });
    if constexpr (Side::direct) {
      if (direct) few_across_sums<true, Side, LINES>(p, z, tile, from, now, shared, sums);
    }
    if (!direct) few_across_sums<false, Side, LINES>(p, z, tile, from, now, shared, sums);
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < LINES; ++r) {
    // Two buffers: who writes the next sums has passed the barrier behind the last sums' reading.
    accum* const meet = shared + r % 2 * FEW_WARPS * FEW_STEP;
#pragma unroll
    for (int j = 0; j < FEW_VECTOR; ++j)
      meet[warp * FEW_STEP + (direct ? few_lane_line<true>(j) : few_lane_line<false>(j))] = sums[r][j];
    __syncthreads();
    if (first + r >= Side::few(p)) break;  // the same for the whole block
    for (int c = static_cast<int>(threadIdx.x); c < FEW_STEP && c < left; c += FEW_THREADS) {
      accum sum = 0;
#pragma unroll
      for (int w = 0; w < FEW_WARPS; ++w) sum += meet[w * FEW_STEP + c];
      parts[Side::place(p, first + r, tile + c)] = sum;
    }
  }
}

// ---- kernels

template <class Side, int LINES, class P>
__global__ void __launch_bounds__(FEW_THREADS, few_resident(LINES))
    contract_few_kernel(const __grid_constant__ P p, const __grid_constant__ FewShape shape, accum* parts) {
  follow();
  extern __shared__ __align__(16) unsigned char few_shared[];
  const int of_all = static_cast<int>(blockIdx.x) / shape.passes, block = of_all % shape.blocks;
  const Index z = of_all / shape.blocks, first = static_cast<Index>(blockIdx.x % shape.passes * LINES);
  const Index begin = static_cast<Index>(blockIdx.y) * shape.share, left = p.depth() - begin;
  const int length = left < shape.share ? static_cast<int>(left) : shape.share;
  accum* const to = parts + (static_cast<int64_t>(blockIdx.y) * p.batches() + z) * p.rows() * p.cols();
  accum* const few = reinterpret_cast<accum*>(few_shared);
  if constexpr (Side::Many::along_k)
    few_along<Side, LINES>(p, shape, z, first, block, begin, length, few, to);
  else
    few_across<Side, LINES>(p, z, first, block, begin, length, few, to);
}

// A thread for each element; where there are statistics or a tail, a warp for each row and tile of BN columns. `planned`: splits that
// the rest of the plan expects; all but one are zero.
enum : int { FEW_FINISH_THREADS = 64 };
template <int BN, class P>
__global__ void __launch_bounds__(FEW_FINISH_THREADS)
    contract_few_finish_kernel(const __grid_constant__ P p, const accum* parts, int splits, int planned) {
  follow();
  const int64_t rows = static_cast<int64_t>(p.batches()) * p.rows(), each = rows * p.cols();
  if constexpr (P::statistics || TailOf<P>::there) {  // and so nothing is planned
    const int64_t tiles = (static_cast<int64_t>(p.cols()) + BN - 1) / BN;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * (FEW_FINISH_THREADS / 32) + threadIdx.x / 32, row = at / tiles;
    if (row >= rows) return;
    const PlainColumns<BN> columns(p, static_cast<Index>(at % tiles));
    accum values[1][PlainColumns<BN>::EACH];
#pragma unroll
    for (int j = 0; j < PlainColumns<BN>::EACH; ++j) values[0][j] = 0;
#pragma unroll 4
    for (int s = 0; s < splits; ++s)
#pragma unroll
      for (int j = 0; j < PlainColumns<BN>::EACH; ++j)
        if (columns.valid(0, j)) values[0][j] += parts[s * each + row * p.cols() + columns.column(0, j)];
    const Index m = static_cast<Index>(row % p.rows());
    finish_values(p, static_cast<Index>(row / p.rows()), m, m + 1, columns, 0, values);
  } else {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * FEW_FINISH_THREADS + threadIdx.x, row = at / p.cols();
    if (at >= each) return;
    accum value = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) value += parts[s * each + at];
    const Index z = static_cast<Index>(row / p.rows()), m = static_cast<Index>(row % p.rows()), n = static_cast<Index>(at % p.cols());
    p.finish(z, m, n, 0, value, true);
    for (int s = 1; s < planned; ++s) p.finish(z, m, n, s, accum(0), true);
  }
}

#ifndef __CUDACC_RTC__
template <template <class> class Side_, class P>
FewShape few_shape(const P& p) {
  using Side = Side_<P>;
  constexpr bool along = Side::Many::along_k;
  const int64_t few = Side::few(p), many = Side::many(p), depth = p.depth(), batches = p.batches();
  const auto parts_of = [](int64_t n, int64_t of) { return (n + of - 1) / of; };
  FewShape s{};
  s.lines = few <= 2 ? 2 : few <= 8 ? 8 : FEW_ROWS;
  s.passes = static_cast<int>(parts_of(few, s.lines));
  int64_t blocks = parts_of(many, along ? FEW_WARPS * FEW_LANE_LINES : FEW_STEP);
  const int deepest = few_deepest(s.lines, along);
  int64_t splits = parts_of(depth, deepest);
  const int64_t fill = parts_of(FEW_BLOCKS, blocks * batches * s.passes), fair = depth / FEW_SHARE;
  int64_t more = fill < fair ? fill : fair;
  if (more > FEW_SPLITS) more = FEW_SPLITS;
  if (splits < more) splits = more;
  const bool deep = splits > FEW_SPLITS;  // then several stages follow each other
  if (deep) splits = FEW_SPLITS;
  s.share = static_cast<int>(parts_of(parts_of(depth, splits), FEW_STEP) * FEW_STEP);
  s.splits = static_cast<int>(parts_of(depth, s.share));
  if (along && !deep) {  // a block walks over many lines rather than that others stage the few again
    const int64_t enough = parts_of(FEW_BLOCKS, s.splits * batches * s.passes);
    if (blocks > enough) blocks = enough;
  }
  s.blocks = static_cast<int>(blocks);
  return s;
}

// Whether this way pays.
template <template <class> class Side_, class P>
bool few_pays(const P& p) {
  using Side = Side_<P>;
  const int64_t few = Side::few(p), many = Side::many(p), depth = p.depth(), batches = p.batches();
  if (few < 1 || few > FEW_LINES || few > many || batches < 1 || depth < FEW_DEPTH) return false;
  return many * depth >= (FEW_ELEMENTS + batches - 1) / batches;
}

// Of the splits' sums.
template <template <class> class Side_, class P>
int64_t few_bytes(const P& p) {
  return few_shape<Side_>(p).splits * static_cast<int64_t>(p.batches()) * p.rows() * p.cols() * static_cast<int64_t>(sizeof(accum));
}

template <class Side, int LINES, class P>
cudaError_t launch_few_sums(const P& p, const FewShape& s, accum* parts, cudaStream_t stream) {
  constexpr int bytes = few_shared_bytes<LINES, Side::Many::along_k>();
  const cudaError_t refused = allow_shared(contract_few_kernel<Side, LINES, P>, bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t blocks = static_cast<int64_t>(s.blocks) * p.batches() * s.passes;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(s.splits));
  return cudaLaunchKernelEx(After(grid, FEW_THREADS, bytes, stream), contract_few_kernel<Side, LINES, P>, p, s, parts);
}

// `workspace` has few_bytes(). D is not empty and has a depth: ask few_pays() first. cudaErrorInvalidValue: too many blocks.
template <template <class> class Side_, int BN, class P>
cudaError_t launch_contract_few(const P& p, int planned, void* workspace, cudaStream_t stream) {
  static_assert(!P::boxed, "columns are columns");
  using Side = Side_<P>;
  const FewShape s = few_shape<Side_>(p);
  accum* const parts = static_cast<accum*>(workspace);
  constexpr bool tiled = P::statistics || TailOf<P>::there;
  if (tiled && planned > 1) return cudaErrorInvalidValue;
  const int64_t tiles = (static_cast<int64_t>(p.cols()) + BN - 1) / BN, rows = static_cast<int64_t>(p.batches()) * p.rows();
  const int64_t threads = tiled ? rows * tiles * 32 : rows * p.cols();
  const int64_t blocks = (threads + FEW_FINISH_THREADS - 1) / FEW_FINISH_THREADS;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  cudaError_t error = cudaSuccess;
  if (s.lines == 2)
    error = launch_few_sums<Side, 2, P>(p, s, parts, stream);
  else if (s.lines == 8)
    error = launch_few_sums<Side, 8, P>(p, s, parts, stream);
  else if constexpr (FEW_ROWS > 8)
    error = launch_few_sums<Side, FEW_ROWS, P>(p, s, parts, stream);
  if (error != cudaSuccess) return error;
  return cudaLaunchKernelEx(After(static_cast<unsigned>(blocks), FEW_FINISH_THREADS, 0, stream),
                            contract_few_finish_kernel<BN, P>, p, parts, s.splits, planned);
}
#endif

}  // namespace crucible
