// The gradient of a convolution's weight on Hopper's tensor cores (wgmma, compute capability 9.0a).
//
// D[m, (channel, tap)] = sum over pixels of a(m, pixel) * b(channel, the input pixel under tap), as window_gradient.cuh has it.
// A first launch looks at some numbers of each row of a and channel of b, from which scales follow, powers of two. A second
// one rounds both to half and stores 16 bytes of channels for each pixel: a by boxes, b with its borders of zeros. In this
// order neighbours in shared memory are neighbours along the sum, which the matrix instructions permit for both operands
// where they are 16 bits wide, so a tap is an offset here too and nothing is transposed.
// A block takes 64 rows, N channels and the taps of a window's last dimensions; its warpgroups share these taps. One warp
// asks for boxes by bulk copies: a's is one copy, b's halo one for each of its lines and eight channels.
// Pixels that do not exist have zeros in a. The last launch is window_gradient.cuh's, and returns at once unless something was
// found that half cannot hold, or that is not finite.
//
// Tensor cores cut what they add and these sums are long, so after SUMMED steps sums go to memory that a thread has to itself,
// where ordinary additions round; warpgroups take turns with that. Bytes: a and b read once as float and written once as
// half, then read from there once for each block that wants them.
#pragma once

#include "window_gradient.cuh"
#include "window_pack.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

// As Wgmma, of operands that lie across, 16 bits wide. The including file brings the instructions for its N.
template <int N, Operands kind>
struct WgmmaAcross;

#if CRUCIBLE_HAS_WGMMA
// An operand that lies across: 16 bytes are eight lines (rows of A, columns of B) at one step of the sum, and steps follow
// each other, eight to a matrix. In units of 16 bytes, `deeper` leads to the second eight steps and `further` to the next
// eight lines. A shift by one step is one more in the lowest field.
__device__ __forceinline__ uint64_t steps_at(unsigned address, unsigned deeper, unsigned further) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(deeper) << 16 | static_cast<uint64_t>(further) << 32;
}
#endif

constexpr int SUMMED = 128;  // steps of 16 pixels

// GROUPS warpgroups that multiply, EACH with so many taps. FROM: the dimension from which on taps are of one block. N channels.
// kind: floats scaled and rounded to half, or elements as they are.
template <int GROUPS_, int EACH_, int FROM_, int N_, int SLOTS_, class Box_, Operands kind_>
struct GradientGroups {
  static_assert(kind_ == Operands::Half || kind_ == Operands::Native, "16 bits wide");
  using Box = Box_;
  static constexpr Operands kind = kind_;
  static constexpr int GROUPS = GROUPS_, EACH = EACH_, FROM = FROM_, N = N_, SLOTS = SLOTS_;
  static constexpr int CONSUMERS = 128 * GROUPS, threads = CONSUMERS + 128;
};

// The form of what a block takes, for box.cuh.
template <class W, class P>
struct GradientPiece {
  using Box = typename W::Box;
  using Kernel = Dims<W::FROM <= 0 ? P::Kernel::at(0) : 1, W::FROM <= 1 ? P::Kernel::at(1) : 1, W::FROM <= 2 ? P::Kernel::at(2) : 1, P::Kernel::at(3)>;
  using Stride = typename P::Stride;
  using Dilation = typename P::Dilation;
};

template <class W, class P>
struct GradientRoom {
  using Piece = GradientPiece<W, P>;
  using Box = typename W::Box;
  using Halo = HaloOf<Piece>;
  static_assert(P::Stride::product == 1, "neighbours are multiplied with neighbours");
  static_assert(Box::product % 16 == 0 && Box::at(3) % 8 == 0 && W::N % 8 == 0, "whole matrices");
  static constexpr int TAPS = Piece::Kernel::product, PIECES = P::Kernel::product / TAPS;
  static constexpr int REST = TAPS - (W::GROUPS - 1) * W::EACH;  // taps of the last warpgroup
  static_assert(REST > 0 && REST <= W::EACH, "a warpgroup for each tap, and a tap for each");
  static constexpr int PIXELS = Box::product, STEPS = PIXELS / 16, OFTEN = STEPS < SUMMED ? SUMMED / STEPS : 1;  // boxes that are summed
  static constexpr int PLANES = W::N / 8, A_BYTES = PIXELS * PAIR_ROWS * 2, SLOT_BYTES = A_BYTES + PLANES * Halo::product * 16;
  static constexpr int shared_bytes = W::SLOTS * (SLOT_BYTES + 16);
  static constexpr int KEPT = W::EACH * W::N / 8;  // groups of four sums that a thread has
};

// What the launches hand to each other: a flag, exponents of all scales, both tensors in half, and sums. The pixels of b go on
// until the last box's end, so that whatever is copied is there.
template <class W, class P>
struct GradientReady {
  using R = GradientRoom<W, P>;
  Index boxes[4], extents[4];  // along each dimension: boxes, and pixels of b
  int64_t count, pixels, tiles_m, tiles_c, kinds, bytes;
  int* again;
  int* a_by;
  int* b_by;
  unsigned char* a;
  unsigned char* b;
  float4* sums;

  __host__ __device__ GradientReady(const P& p, void* workspace) : count(1), pixels(1) {
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      boxes[d] = (p.extent(d) + W::Box::at(d) - 1) / W::Box::at(d);
      extents[d] = boxes[d] * W::Box::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d);
      count *= boxes[d];
      pixels *= extents[d];
    }
    tiles_m = (static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS;
    tiles_c = (static_cast<int64_t>(p.channels()) + W::N - 1) / W::N;
    kinds = p.batches() * tiles_m * tiles_c * R::PIECES;
    const int64_t rows = p.batches() * tiles_m * PAIR_ROWS, channels = p.batches() * tiles_c * W::N;
    const int64_t head = 256 + (rows + channels + 63) / 64 * 256, a_bytes = p.batches() * count * tiles_m * R::A_BYTES;
    bytes = head + a_bytes + channels / 8 * pixels * 16;
    unsigned char* const at = static_cast<unsigned char*>(workspace);
    again = reinterpret_cast<int*>(at);
    a_by = again + 64;
    b_by = a_by + rows;
    a = at + head;
    b = a + a_bytes;
    sums = reinterpret_cast<float4*>(at + bytes);
  }
  // Whether boxes are not almost empty, and pixels can be counted: else the kernel for other chips does it all.
  __host__ __device__ bool pays(const P& p) const {
    int64_t there = 1;
    for (int d = 0; d < 4; ++d) there *= p.extent(d);
    const int64_t counted = count * R::PIXELS, most = sizeof(Index) > 4 ? int64_t(1) << 40 : 0x7fffffff;
    return count > 0 && counted <= 4 * there + 65536 && counted < most && pixels < most;
  }
};

#if CRUCIBLE_HAS_WGMMA
// A block for each row of a and each channel of b.
template <class W, class P>
__device__ __forceinline__ float sample_line(const P& p, Index z, Index m, Index channel) {
  Index at[4];
#pragma unroll
  for (int d = 0; d < 4; ++d) at[d] = spread(threadIdx.x, d, p.extent(d));
  if (m >= 0) {
    if (m >= p.rows()) return 0.0f;
    return fabsf(static_cast<float>(p.a_in(p.a_at(z, at[0], at[1], at[2], at[3]), m)));
  }
  if (channel >= p.channels()) return 0.0f;
#pragma unroll
  for (int d = 0; d < 4; ++d) at[d] += P::Shift::at(d) + (P::Kernel::at(d) - 1) * P::Dilation::at(d) / 2;
  const typename P::BAt place = p.b_at(z, at[0], at[1], at[2], at[3]);
  return place.inside ? fabsf(static_cast<float>(p.b_in(place, channel))) : 0.0f;
}
#endif

template <class W, class P>
__global__ void __launch_bounds__(PACKERS) gradient_scale_kernel(const __grid_constant__ P p, void* workspace) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  const GradientReady<W, P> ready(p, workspace);
  const unsigned rows = static_cast<unsigned>(ready.tiles_m * PAIR_ROWS), channels = static_cast<unsigned>(ready.tiles_c * W::N);
  const unsigned a_lines = rows * static_cast<unsigned>(p.batches());
  const bool of_a = blockIdx.x < a_lines;
  const unsigned line = of_a ? blockIdx.x : blockIdx.x - a_lines, each = of_a ? rows : channels;
  const Index z = static_cast<Index>(line / each), in = static_cast<Index>(line % each);
  const float x = W::kind == Operands::Half ? sample_line<W>(p, z, of_a ? in : Index(-1), in) : 0.0f;
  const float largest = block_max(x < INFINITY ? x : 0.0f);
  if (threadIdx.x == 0) {
    (of_a ? ready.a_by : ready.b_by)[line] = half_exponent(largest);
    if (blockIdx.x == 0) *ready.again = 0;
  }
#endif
}

#if CRUCIBLE_HAS_WGMMA
// Eight numbers of a pixel, scaled. `most`: the bits of the largest; those of inf and nan are larger than any number's.
template <Operands kind>
__device__ __forceinline__ uint4 round_pixel(float (&x)[8], const int* by, unsigned& most) {
  most = 0;
  if constexpr (kind == Operands::Native) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const unsigned bits = __float_as_uint(fabsf(x[i]));
      most = most < bits ? bits : most;
    }
    return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
  }
  const int4 low = *reinterpret_cast<const int4*>(by), high = *reinterpret_cast<const int4*>(by + 4);
  const int e[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] *= power_of_two(e[i]);
    const unsigned bits = __float_as_uint(fabsf(x[i]));
    most = most < bits ? bits : most;
  }
  return make_uint4(pack_half(x[0], x[1]), pack_half(x[2], x[3]), pack_half(x[4], x[5]), pack_half(x[6], x[7]));
}

// Whether 16 bits cannot hold what the lanes of a warp have, or it is not finite, which times zero is not zero. A few numbers
// alone may be small.
template <Operands kind>
__device__ __forceinline__ bool spoilt_pixels(unsigned mine) {
  if (kind == Operands::Native) return __any_sync(0xffffffffu, mine > (CRUCIBLE_SCALAR == 2 ? 0x477fe000u : 0x7f7f0000u)) != 0;
  const unsigned most = __reduce_max_sync(0xffffffffu, mine);
  const bool small = most < __float_as_uint(HALF_SMALL) && most != 0 && __popc(__ballot_sync(0xffffffffu, mine != 0)) > 3;
  return small || most > __float_as_uint(HALF_LIMIT);
}
#endif

constexpr int ROUNDERS = 256;

// A thread for each pixel of a's boxes and of b's planes, with all channels; so many blocks for each group.
template <class W, class P>
__global__ void __launch_bounds__(ROUNDERS) gradient_ready_kernel(const __grid_constant__ P p, void* workspace, unsigned a_parts, unsigned b_parts) {
  follow();
#if CRUCIBLE_HAS_WGMMA
  using R = GradientRoom<W, P>;
  const GradientReady<W, P> ready(p, workspace);
  const unsigned part = blockIdx.x % (a_parts + b_parts);
  const bool of_a = part < a_parts;
  const int64_t number = static_cast<int64_t>(of_a ? part : part - a_parts) * ROUNDERS + threadIdx.x;
  const bool there = number < (of_a ? ready.count * R::PIXELS : ready.pixels);
  const Index z = static_cast<Index>(blockIdx.x / (a_parts + b_parts));
  Index rest = there ? static_cast<Index>(number) : 0;
  bool bad = false;
  Index at[4];
  if (of_a) {
    const int in = static_cast<int>(rest % R::PIXELS);
    const Index box = rest / R::PIXELS;
    rest = box;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d] = rest % ready.boxes[d] * W::Box::at(d) + W::Box::index(in, d);
      rest /= ready.boxes[d];
    }
    const typename P::AAt from = p.a_at(z, at[0], at[1], at[2], at[3]);
    const bool inside = there && from.inside;
    const int planes = static_cast<int>(ready.tiles_m) * (PAIR_ROWS / 8);
    const int* const by = ready.a_by + static_cast<int64_t>(z) * planes * 8;
    unsigned char* const to = ready.a + ((static_cast<int64_t>(z) * ready.count + box) * planes * R::PIXELS + in) * 16;
#pragma unroll 2
    for (int plane = 0; plane < planes; ++plane) {
      float x[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = inside && plane * 8 + e < p.rows() ? static_cast<float>(p.a_in(from, plane * 8 + e)) : 0.0f;
      unsigned most;
      const uint4 word = round_pixel<W::kind>(x, by + plane * 8, most);
      bad |= spoilt_pixels<W::kind>(most);
      if (there) *reinterpret_cast<uint4*>(to + static_cast<int64_t>(plane) * R::PIXELS * 16) = word;
    }
  } else {
    const Index pixel = rest;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d] = rest % ready.extents[d] + P::Shift::at(d);
      rest /= ready.extents[d];
    }
    const typename P::BAt from = p.b_at(z, at[0], at[1], at[2], at[3]);
    const bool inside = there && from.inside;
    const int planes = static_cast<int>(ready.tiles_c) * R::PLANES;
    const int* const by = ready.b_by + static_cast<int64_t>(z) * planes * 8;
    unsigned char* const to = ready.b + (static_cast<int64_t>(z) * planes * ready.pixels + pixel) * 16;
#pragma unroll 2
    for (int plane = 0; plane < planes; ++plane) {
      float x[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = inside && plane * 8 + e < p.channels() ? static_cast<float>(p.b_in(from, plane * 8 + e)) : 0.0f;
      unsigned most;
      const uint4 word = round_pixel<W::kind>(x, by + plane * 8, most);
      bad |= spoilt_pixels<W::kind>(most);
      if (there) *reinterpret_cast<uint4*>(to + plane * ready.pixels * 16) = word;
    }
  }
  if (bad && threadIdx.x % 32 == 0) *ready.again = 1;
#endif
}

#if CRUCIBLE_HAS_WGMMA
// What a block has: rows, channels, taps and boxes.
template <class W, class P>
struct GradientShare {
  using R = GradientRoom<W, P>;
  int split;
  Index z, tile_m, tile_c, piece, first, last;

  __device__ __forceinline__ GradientShare(const GradientReady<W, P>& ready, int used) {
    const unsigned kinds = static_cast<unsigned>(ready.kinds), tiles_c = static_cast<unsigned>(ready.tiles_c);
    unsigned kind = blockIdx.x % kinds;
    split = static_cast<int>(blockIdx.x / kinds);
    piece = static_cast<Index>(kind % R::PIECES);
    kind /= R::PIECES;
    tile_c = static_cast<Index>(kind % tiles_c);
    kind /= tiles_c;
    tile_m = static_cast<Index>(kind % static_cast<unsigned>(ready.tiles_m));
    z = static_cast<Index>(kind / static_cast<unsigned>(ready.tiles_m));
    first = static_cast<Index>(ready.count * split / used);
    last = static_cast<Index>(ready.count * (split + 1) / used);
  }
};

// One warp: a box of a and the halo of b under it, after another.
template <class W, class P>
__device__ __forceinline__ void fetch_gradient(const GradientReady<W, P>& ready, const GradientShare<W, P>& share, unsigned ring,
                                               unsigned full, unsigned empty) {
  using R = GradientRoom<W, P>;
  using Halo = typename R::Halo;
  constexpr int ROWS = Halo::at(0) * Halo::at(1) * Halo::at(2);
  constexpr unsigned ROW_BYTES = Halo::at(3) * 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Where the first tap of this block's lies.
  Index shift[3], piece = share.piece;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    shift[d] = W::FROM > d ? piece % P::Kernel::at(d) * P::Dilation::at(d) : 0;
    if (W::FROM > d) piece /= P::Kernel::at(d);
  }
  const unsigned char* const planes = ready.b + (share.z * ready.tiles_c + share.tile_c) * R::PLANES * ready.pixels * 16;
  int slot = 0;
  unsigned parity = 1;
#pragma unroll 1
  for (Index box = share.first; box < share.last; ++box) {
    const unsigned to = ring + slot * R::SLOT_BYTES, come = full + slot * 8;
    Index at[4], rest = box;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at[d] = rest % ready.boxes[d] * W::Box::at(d) + (d < 3 ? shift[d] : 0);
      rest /= ready.boxes[d];
    }
    barrier_wait(empty + slot * 8, parity);
    if (lane == 0) {
      barrier_expect(come, R::SLOT_BYTES);
      bulk_copy(to, ready.a + ((share.z * ready.count + box) * ready.tiles_m + share.tile_m) * R::A_BYTES, R::A_BYTES, come);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < R::PLANES * ROWS; i += 32) {
      const int row = i % ROWS, plane = i / ROWS;
      int64_t from = at[0] + row / (Halo::at(1) * Halo::at(2));
      from = from * ready.extents[1] + at[1] + row / Halo::at(2) % Halo::at(1);
      from = from * ready.extents[2] + at[2] + row % Halo::at(2);
      from = from * ready.extents[3] + at[3];
      bulk_copy(to + R::A_BYTES + (plane * Halo::product + row * Halo::at(3)) * 16, planes + (plane * ready.pixels + from) * 16, ROW_BYTES, come);
    }
    if (++slot == W::SLOTS) slot = 0, parity ^= 1;
  }
}

// The consumers: a warpgroup has COUNT of the block's taps. That they are known keeps branches from between the instructions.
template <int COUNT, class W, class P>
__device__ __forceinline__ void multiply_gradient(const P& p, const GradientReady<W, P>& ready, const GradientShare<W, P>& share, unsigned ring,
                                                  unsigned full, unsigned empty, int splits, int used, int warp) {
  using R = GradientRoom<W, P>;
  using Piece = typename R::Piece;
  const int group = warp / 4, lane = static_cast<int>(threadIdx.x) % 32;
  float sums[COUNT][W::N / 2];
  int off[COUNT];
#pragma unroll
  for (int e = 0; e < COUNT; ++e) {
#pragma unroll
    for (int i = 0; i < W::N / 2; ++i) sums[e][i] = 0.0f;
    off[e] = tap_offset<Piece>(group * W::EACH + e);
  }
  float4* const kept = ready.sums + static_cast<int64_t>(blockIdx.x) * R::KEPT * W::CONSUMERS + threadIdx.x;
  bool some = false;  // of the sum are kept
  const auto add_kept = [&]() {
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
#pragma unroll
      for (int j = 0; j < W::N / 8; ++j) {
        const float4 before = kept[(e * (W::N / 8) + j) * W::CONSUMERS];
        sums[e][4 * j] += before.x, sums[e][4 * j + 1] += before.y, sums[e][4 * j + 2] += before.z, sums[e][4 * j + 3] += before.w;
      }
  };
  int slot = 0, left = R::OFTEN - group * R::OFTEN / W::GROUPS;
  unsigned parity = 0;
#pragma unroll 1
  for (Index box = share.first; box < share.last;) {
    // So many boxes. A slot is free when its products are done: while the next ones run.
    int before = -1;
    const Index end = share.last - box < left ? share.last : box + left;
#pragma unroll 1
    for (int more = 0; box < end; ++box, more = 1) {
      barrier_wait(full + slot * 8, parity);
      const unsigned at = ring + slot * R::SLOT_BYTES;
      const uint64_t a = steps_at(at, 8, R::PIXELS);
      wgmma_begin();
#pragma unroll
      for (int s = 0; s < R::STEPS; ++s) {
        const int under = halo_offset<Piece>(s * 16);
        const uint64_t b = steps_at(at + R::A_BYTES, halo_offset<Piece>(s * 16 + 8) - under, R::Halo::product) + under;
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
          WgmmaAcross<W::N, W::kind>::multiply(sums[e], a + s * 16, b + off[e], s > 0 ? 1 : more);
      }
      wgmma_end();
      wgmma_wait<1>();
      if (lane == 0 && before >= 0) barrier_arrive(empty + before * 8);
      before = slot;
      if (++slot == W::SLOTS) slot = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(empty + before * 8);
#pragma unroll
    for (int e = 0; e < COUNT; ++e) settle(sums[e]);
    if (some) add_kept();
    if (box == share.last) break;
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
#pragma unroll
      for (int j = 0; j < W::N / 8; ++j)
        kept[(e * (W::N / 8) + j) * W::CONSUMERS] = make_float4(sums[e][4 * j], sums[e][4 * j + 1], sums[e][4 * j + 2], sums[e][4 * j + 3]);
    some = true, left = R::OFTEN;
  }
  const Index m0 = share.tile_m * PAIR_ROWS + warp % 4 * 16 + lane / 4, c0 = share.tile_c * W::N + lane % 4 * 2;
  const int* const a_by = ready.a_by + share.z * ready.tiles_m * PAIR_ROWS;
  const int* const b_by = ready.b_by + share.z * ready.tiles_c * W::N;
  const int rows[2] = {a_by[m0], a_by[m0 + 8]};
#pragma unroll
  for (int j = 0; j < W::N / 8; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Index channel = c0 + j * 8 + i;
      const int by = b_by[channel];
#pragma unroll
      for (int e = 0; e < COUNT; ++e)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Index m = m0 + h * 8, n = (channel * R::PIECES + share.piece) * R::TAPS + group * W::EACH + e;
          if (m < p.rows() && channel < p.channels()) {
            p.finish(share.z, m, n, share.split, scaled(sums[e][4 * j + 2 * h + i], -rows[h] - by), true);
            for (int other = share.split + used; other < splits; other += used) p.finish(share.z, m, n, other, 0.0f, true);
          }
        }
    }
}
#endif

// `used` of the splits have boxes, the others zeros.
template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1) gradient_groups_kernel(const __grid_constant__ P p, void* workspace, int splits, int used) {
  follow();
  extern __shared__ __align__(128) unsigned char groups_shared[];
#if CRUCIBLE_HAS_WGMMA
  using R = GradientRoom<W, P>;
  const GradientReady<W, P> ready(p, workspace);
  if (*ready.again != 0) return;
  // Through a shuffle, so that the compiler knows that a warp agrees on it: else it lines up the matrix instructions.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const unsigned ring = shared_address(groups_shared), full = ring + W::SLOTS * R::SLOT_BYTES, empty = full + W::SLOTS * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, W::CONSUMERS / 32);
    }
    barrier_inits_done();
  }
  __syncthreads();
  const GradientShare<W, P> share(ready, used);
  if (warp >= W::CONSUMERS / 32) {
    if (warp == W::CONSUMERS / 32) fetch_gradient<W>(ready, share, ring, full, empty);
  } else if (R::REST == W::EACH || warp / 4 < W::GROUPS - 1) {
    multiply_gradient<W::EACH>(p, ready, share, ring, full, empty, splits, used, warp);
  } else {
    multiply_gradient<R::REST>(p, ready, share, ring, full, empty, splits, used, warp);
  }
#endif
}

#ifndef __CUDACC_RTC__
// Bytes that launch_gradient_groups wants.
template <class W, class P>
int64_t gradient_bytes(const P& p, int splits) {
  const GradientReady<W, P> ready(p, nullptr);
  if (!ready.pays(p)) return 0;
  return ready.bytes + ready.kinds * splits * GradientRoom<W, P>::KEPT * W::CONSUMERS * 16;
}

// W for the launch, Again for the one that does what half cannot hold.
template <class W, class Again, class P>
cudaError_t launch_gradient_groups(const P& p, int splits, void* workspace, cudaStream_t stream) {
  using R = GradientRoom<W, P>;
  const GradientReady<W, P> ready(p, workspace);
  if (ready.kinds == 0) return cudaSuccess;
  if (!ready.pays(p)) return launch_gradient<Again>(p, splits, stream);
  int device = 0, processors = 0;
  cudaError_t refused = cudaGetDevice(&device);
  if (refused == cudaSuccess) refused = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (refused == cudaSuccess) refused = allow_shared(gradient_groups_kernel<W, P>, R::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t lines = p.batches() * (ready.tiles_m * PAIR_ROWS + ready.tiles_c * W::N);
  const int64_t a_parts = (ready.count * R::PIXELS + ROUNDERS - 1) / ROUNDERS, b_parts = (ready.pixels + ROUNDERS - 1) / ROUNDERS;
  int64_t used = processors > ready.kinds ? processors / ready.kinds : 1;
  if (used > splits) used = splits;
  if (used > ready.count) used = ready.count;
  if (lines > 0x7fffffff || p.batches() * (a_parts + b_parts) > 0x7fffffff || ready.kinds * used > 0x7fffffff) return cudaErrorInvalidValue;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(lines), PACKERS, 0, stream), gradient_scale_kernel<W, P>, p, workspace);
  if (refused != cudaSuccess) return refused;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(p.batches() * (a_parts + b_parts)), ROUNDERS, 0, stream), gradient_ready_kernel<W, P>, p,
                               workspace, static_cast<unsigned>(a_parts), static_cast<unsigned>(b_parts));
  if (refused != cudaSuccess) return refused;
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(ready.kinds * used), W::threads, R::shared_bytes, stream), gradient_groups_kernel<W, P>, p,
                               workspace, splits, static_cast<int>(used));
  if (refused != cudaSuccess) return refused;
  return launch_gradient<Again>(p, splits, stream, ready.again);
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
