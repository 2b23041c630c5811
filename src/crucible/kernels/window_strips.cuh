// Convolutions on Hopper's tensor cores whose weights fit in shared memory: a block marches down a strip of the output.
//
// A block keeps the weights of 64 output channels and owns a strip, P::Box::at(3) columns, of one plane after another. It
// reads each line of the input under its strip once: two warps copy it to landing buffers, each eight channels at a time;
// four others round it and store it as [8 channels][pixel][channel] in a ring of whole lines. Two or three warpgroups
// take output lines in turn: for every tap one instruction for each 16 channels multiplies 64 output channels by the
// strip's pixels. A tap is a shift in a line, or another line of the ring. While one warpgroup stores, another multiplies.
// Phases whose elements lie beside each other are computed by the same warpgroup, one after another, and their sums go
// through shared memory, from where whole lines of the output are stored.
// For windows one wide in the first two dimensions, with strides of one, and an input that is memory as it is.
// Operands: kinds Half and Native, as in window_wgmma.cuh; what half cannot hold is done again by that file's kernel.
// Memory: 1.02 to 1.1 times the input, the output once, for each 64 output channels.
#pragma once

#include "fragments.cuh"
#include "fragments_stored.cuh"
#include "window_wgmma.cuh"

#if CRUCIBLE_HOPPER
namespace crucible {

// WARPGROUPS that multiply, SLOTS lines in the ring, LANDINGS buffers, CHUNKS of 16 channels.
template <int WARPGROUPS_, int SLOTS_, int LANDINGS_, int CHUNKS_, Operands kind_>
struct Strips {
  static constexpr Operands kind = kind_;
  static constexpr int WARPGROUPS = WARPGROUPS_, SLOTS = SLOTS_, LANDINGS = LANDINGS_, CHUNKS = CHUNKS_;
  static constexpr int CONSUMERS = WARPGROUPS * 128, ROUNDERS = 128, threads = CONSUMERS + 256;
  // Registers of a thread that multiplies, and of any other.
  static constexpr int UP = WARPGROUPS == 2 ? 176 : 120, DOWN = WARPGROUPS == 2 ? 80 : 56;
  // Of the last four warps two load. Each has every second buffer, so that none mistakes a phase of another's for its own.
  static constexpr int LOADERS = 2;
  static_assert(LANDINGS % LOADERS == 0, "buffers are dealt evenly");
  static constexpr int BM = PAIR_ROWS, UNIT = 8, CHANNELS = 16;
};

template <class W, class P>
struct Strip {
  // Eight pixels more than a strip owns, so that it can end where a sector of memory does.
  static constexpr int N = P::Box::at(3) + 8, TAPS = P::Kernel::product, ACROSS = P::Kernel::at(3), DOWN = P::Kernel::at(2);
  static constexpr int REACH = (DOWN - 1) * P::Dilation::at(2);  // lines under an output line, but one
  static constexpr int GROUP = 16 / sizeof(scalar);              // pixels of one copy
  // Lines land from a pixel on where a sector of a line that begins with one does: a copy whose lanes' halves of sectors lie
  // otherwise in shared memory than in global asks for every sector twice.
  static constexpr int SECTOR = P::Box::at(3) % (32 / sizeof(scalar)) == 0 ? 32 / sizeof(scalar) : GROUP;
  static constexpr int LEAD = (P::Shift::at(3) % SECTOR + SECTOR) % SECTOR;
  static constexpr int PLACES = LEAD + N + (ACROSS - 1) * P::Dilation::at(3), LANDED = (PLACES + GROUP - 1) / GROUP * GROUP;
  static constexpr int GROUPS = LANDED / GROUP, EACH = (GROUPS + 31) / 32;
  static constexpr int UNITS = W::CHUNKS * 2;
  static constexpr int UNIT_BYTES = LANDED * 16, SLOT_BYTES = UNITS * UNIT_BYTES;
  // Landed channels lie so far apart that lanes which read eight pixels of each share no bank.
  static constexpr int PITCH = (LANDED + 7) / 16 * 16 + 8, LANDING_BYTES = W::UNIT * PITCH * static_cast<int>(sizeof(scalar));
  // Phases of one convolution share the lines of its input, and their elements lie beside each other: a block has them all.
  static constexpr int PHASES = InsideOf<P>::groups, PHASE_BYTES = W::CHUNKS * TAPS * TAP_BYTES, KEPT_BYTES = PHASES * PHASE_BYTES;
  // Of these, those whose elements lie beside each other, and a warp's room for four rows of them.
  static constexpr int BESIDE = InsideOf<P>::beside, STAGE_PITCH = beside_pitch(BESIDE * N);
  static constexpr int STAGE_BYTES = BESIDE > 1 ? W::CONSUMERS / 32 * 4 * STAGE_PITCH * 4 : 0;
  static constexpr int shared_bytes = KEPT_BYTES + W::SLOTS * SLOT_BYTES + W::LANDINGS * LANDING_BYTES + STAGE_BYTES +
                                      (2 * W::SLOTS + 2 * W::LANDINGS + 1) * 8 + 112;
  static_assert(P::Kernel::at(0) == 1 && P::Kernel::at(1) == 1 && P::Stride::product == 1, "a window that marches");
  static_assert(P::Box::at(0) * P::Box::at(1) * P::Box::at(2) == 1 && P::Box::at(3) % 8 == 0, "a line");
  static_assert(W::SLOTS > REACH + 1, "the lines under an output line, and the next");
  // Two warpgroups have time for exchanges between lanes; of three each instruction counts.
  static constexpr bool STORED = W::kind == Operands::Half && W::WARPGROUPS == 2 && BESIDE == 1 && only_stored<P>();
};

// Kinds of blocks, by what they multiply with.
template <class P>
__host__ __device__ int64_t strip_kinds(const P& p) {
  return p.groups() / InsideOf<P>::groups * ((static_cast<int64_t>(p.rows()) + PAIR_ROWS - 1) / PAIR_ROWS);
}

#if CRUCIBLE_HAS_WGMMA
// A block's output lines: stretches of neighbouring ones in one plane. Strips are numbered along an image first, so that
// blocks beside each other work on neighbouring columns of the same lines.
template <class P>
struct Stretches {
  int64_t lines, item, items, by, at = 0, end = 0;
  Index strips, segments, strip = 0, group, tile_m;
  // The stretch: its sample, its place, how many lines.
  Index batch, outer[2], first, count;

  __device__ __forceinline__ Stretches(const P& p, int segments_) : segments(static_cast<Index>(segments_)) {
    const Index tiles = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS, kinds = static_cast<Index>(strip_kinds(p)), kind = static_cast<Index>(blockIdx.x) % kinds;
    group = kind / tiles, tile_m = kind % tiles;
    strips = (p.extent(3) - 1) / P::Box::at(3) + 1;
    lines = static_cast<int64_t>(p.batches() / p.groups()) * p.extent(0) * p.extent(1) * p.extent(2);
    items = static_cast<int64_t>(strips) * segments;
    item = static_cast<int64_t>(blockIdx.x) / kinds, by = static_cast<int64_t>(gridDim.x) / kinds;
  }
  __device__ __forceinline__ bool next(const P& p) {
    while (at >= end) {
      if (item >= items) return false;
      const int64_t segment = item / strips;
      strip = static_cast<Index>(item % strips);
      at = lines * segment / segments, end = lines * (segment + 1) / segments;
      item += by;
    }
    const Index height = p.extent(2);
    const int64_t plane = at / height, inner = p.extent(0) * p.extent(1);
    first = static_cast<Index>(at - plane * height);
    const Index sample = static_cast<Index>(inner == 1 ? plane : plane / inner), rest = static_cast<Index>(plane - sample * inner);
    batch = sample * p.groups() + group, outer[0] = rest / p.extent(1), outer[1] = rest % p.extent(1);
    count = static_cast<Index>(end - at < height - first ? end - at : height - first);
    at += count;
    return true;
  }
};

// A warp that asks for the input, a line of eight channels at a time. Neighbouring pixels of a line are neighbours in
// memory, and a channel is as far from the next as any.
template <class W, class P>
struct StripLoader {
  using S = Strip<W, P>;
  const P& p;
  // Of a stretch: its sample and place; pixel 0 begins a group.
  Index z, i0, i1, i3;
  int across[S::EACH];  // bytes of each group that a line has
  int64_t step;         // bytes from a channel to the next
  int whole;            // bytes that one copy can have
  // Of a line:
  const char* at[S::EACH];  // the first pixel of each group, in the first channel
  int bytes[S::EACH];       // of the group that are inside

  static __device__ __forceinline__ int group(int i) { return static_cast<int>(threadIdx.x) % 32 + i * 32; }
  __device__ __forceinline__ const char* first(Index i2, int i, Index channel) const {
    return reinterpret_cast<const char*>(p.b_from(p.b_at(z, i0, i1, i2, i3 + group(i) * S::GROUP), channel));
  }

  // Pixel (0, 0, 0, 0) is inside, and whether another is each of its numbers says for itself.
  __device__ __forceinline__ void begin() {
    uintptr_t odd = 0;
#pragma unroll
    for (int i = 0; i < S::EACH; ++i) {
      across[i] = 0;
#pragma unroll
      for (int e = 0; e < S::GROUP; ++e)
        across[i] += p.b_at(z, 0, 0, 0, i3 + group(i) * S::GROUP + e).inside ? static_cast<int>(sizeof(scalar)) : 0;
      step = first(0, i, P::CHANNELS > 1 ? 1 : 0) - first(0, i, 0);
      if (across[i] > 0) odd |= reinterpret_cast<uintptr_t>(first(0, i, 0)) | static_cast<uintptr_t>(first(1, i, 0) - first(0, i, 0));
      odd |= static_cast<uintptr_t>(step);
    }
    const unsigned common = __reduce_or_sync(0xffffffffu, static_cast<unsigned>(odd % 16));
    whole = common == 0 ? 16 : common % 8 == 0 ? 8 : common % 4 == 0 ? 4 : 0;
  }
  __device__ __forceinline__ void place(Index i2) {
    const bool there = p.b_at(z, i0, i1, i2, 0).inside;
#pragma unroll
    for (int i = 0; i < S::EACH; ++i) {
      bytes[i] = there ? across[i] : 0, at[i] = first(i2, i, 0);
      if (bytes[i] == 0) at[i] = reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(at[i]) / 16 * 16);
    }
  }
  // Copies of SIZE bytes; `landed` counts each lane's.
  template <int SIZE>
  __device__ __forceinline__ void copy(int unit, unsigned char* landing, unsigned landed) const {
#pragma unroll
    for (int i = 0; i < S::EACH; ++i)
      if (group(i) < S::GROUPS) {
        const char* from = at[i] + step * (unit * W::UNIT);
#pragma unroll
        for (int e = 0; e < W::UNIT; ++e) {
          const bool there = P::CHANNELS % W::CHANNELS == 0 || unit * W::UNIT + e < P::CHANNELS;
#pragma unroll
          for (int k = 0; k < 16; k += SIZE) {
            const int left = there ? bytes[i] - k : 0;
            copy_async_some<SIZE>(landing + e * S::PITCH * sizeof(scalar) + group(i) * 16 + k, there ? from + k : at[i], left < 0 ? 0 : left < SIZE ? left : SIZE);
          }
          from += step;
        }
      }
    copies_arrive(landed);
  }
  __device__ __forceinline__ void ask(Index i2, int unit, unsigned char* landing, unsigned landed) const {
    if (whole == 16) {
      copy<16>(unit, landing, landed);
    } else if (whole == 8) {
      copy<8>(unit, landing, landed);
    } else if (whole == 4) {
      copy<4>(unit, landing, landed);
    } else {
      if constexpr (sizeof(scalar) < 4) {
#pragma unroll 1
        for (int k = static_cast<int>(threadIdx.x) % 32; k < S::LANDED * W::UNIT; k += 32) {
          const Index c = unit * W::UNIT + k / S::LANDED;
          const typename P::BAt one = p.b_at(z, i0, i1, i2, i3 + k % S::LANDED);
          reinterpret_cast<scalar*>(landing)[k / S::LANDED * S::PITCH + k % S::LANDED] = one.inside && c < P::CHANNELS ? *p.b_from(one, c) : to_scalar(accum(0));
        }
      }
      barrier_arrive(landed);
    }
  }
};

// Tiles of eight by eight halves, of which a lane has a word: those of column lane / 4 in rows 2 * (lane % 4) and the next. Rows of
// 16 bytes go where lanes say, eight for each tile.
__device__ __forceinline__ void store_across(unsigned row, unsigned a) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(row), "r"(a) : "memory");
}
__device__ __forceinline__ void store_across(unsigned row, unsigned a, unsigned b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_across(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// What a warp has seen of scaled numbers, and whether half cannot hold it. A lane has numbers of one channel of eight.
struct SeenOfUnits {
  unsigned most = 0;  // bits of the largest number of all
  // Of a unit each lane knows its largest number.
  __device__ __forceinline__ void unit(float largest) {
    const unsigned bits = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
    // All are so small that half would lose bits of them. A few numbers alone may be.
    if (bits - 1 < __float_as_uint(HALF_SMALL) - 1 && __popc(__ballot_sync(0xffffffffu, largest > 0.0f)) > 3) most = 0xffffffffu;
    most = bits > most ? bits : most;
  }
  __device__ __forceinline__ bool spoilt() const { return most > __float_as_uint(HALF_LIMIT); }
};

template <class W, class P>
struct StripWatch {
  float largest = 0.0f;
  SeenOfUnits seen = {};
  __device__ __forceinline__ void see(float2 v) { largest = fmaxf(largest, fmaxf(fabsf(v.x), fabsf(v.y))); }
  __device__ __forceinline__ void next() { seen.unit(largest), largest = 0.0f; }
};

// A warp that rounds what has landed of eight channels. Of each tile of eight pixels a lane has two of one channel, in a word, and
// stmatrix stores it the other way round, the channels of a pixel one after another.
template <class W, class P>
struct StripRounder {
  using S = Strip<W, P>;
  static constexpr int TILES = (S::LANDED + 7) / 8;
  float by;
  StripWatch<W, P> watch = {};

  // Where lines end with half a tile, the other half is the same pixels again.
  static __device__ __forceinline__ int pixel(int i) { return S::LANDED % 8 == 0 || i < S::LANDED ? i : i - 4; }
  __device__ __forceinline__ void load(const scalar* landing, int lane, unsigned (&words)[TILES]) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      const scalar* const from = landing + lane / 4 * S::PITCH + pixel(t * 8 + lane % 4 * 2);
      if constexpr (W::kind == Operands::Half) {
        float2 v = *reinterpret_cast<const float2*>(from);
        v.x *= by, v.y *= by;
        watch.see(v);
        words[t] = pack_half(v.x, v.y);
      } else {
        words[t] = *reinterpret_cast<const unsigned*>(from);
      }
    }
  }
  static __device__ __forceinline__ void store(const unsigned (&words)[TILES], unsigned char* unit) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // The first tile of each instruction, whose rows' addresses lanes bring, eight for a tile.
    const auto row = [&](int t) { return shared_address(unit) + pixel(t * 8 + lane) * 16; };
#pragma unroll
    for (int t = 0; t + 4 <= TILES; t += 4) store_across(row(t), words[t], words[t + 1], words[t + 2], words[t + 3]);
    constexpr int LEFT = TILES % 4, AT = TILES - LEFT;
    if constexpr (LEFT >= 2) store_across(row(AT), words[AT], words[AT + 1]);
    if constexpr (LEFT % 2 == 1) store_across(row(TILES - 1), words[TILES - 1]);
  }
  __device__ __forceinline__ void take(const scalar* landing, unsigned char* unit, unsigned free, unsigned slot, unsigned parity) {
    unsigned words[TILES];
    load(landing, static_cast<int>(threadIdx.x) % 32, words);
    barrier_arrive(free);  // it fills again while this warp waits for the slot; each lane says so, as racecheck wants it
    barrier_wait(slot, parity);
    store(words, unit);
  }
};
#endif

template <class W, class P>
__global__ void __launch_bounds__(W::threads, 1) strip_kernel(const __grid_constant__ P p, void* workspace, int segments) {
  follow();
  extern __shared__ __align__(128) unsigned char strip_shared[];
#if CRUCIBLE_HAS_WGMMA
  using S = Strip<W, P>;
  const Packed packed(p, workspace);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  unsigned char* const ring = strip_shared + S::KEPT_BYTES;
  unsigned char* const landings = ring + W::SLOTS * S::SLOT_BYTES;
  unsigned char* const stages = landings + W::LANDINGS * S::LANDING_BYTES;
  const unsigned full = shared_address(stages + S::STAGE_BYTES), empty = full + W::SLOTS * 8;
  const unsigned landed = empty + W::SLOTS * 8, free = landed + W::LANDINGS * 8, kept = free + W::LANDINGS * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::SLOTS; ++i) {
      barrier_init(full + i * 8, S::UNITS);
      barrier_init(empty + i * 8, W::CONSUMERS / 32);
    }
    for (int i = 0; i < W::LANDINGS; ++i) {
      barrier_init(landed + i * 8, 32);
      barrier_init(free + i * 8, 32);
    }
    barrier_init(kept, 1);
    barrier_inits_done();
  }
  __syncthreads();
  Stretches<P> lines(p, segments);

  if (warp >= (W::CONSUMERS + W::ROUNDERS) / 32) {
    registers_down<W::DOWN>();
    StripLoader<W, P> from{p};
    const unsigned mine = warp - (W::CONSUMERS + W::ROUNDERS) / 32;
    unsigned number = 0;  // of units of this block
    while (mine < W::LOADERS && lines.next(p)) {
      from.z = lines.batch, from.i0 = lines.outer[0], from.i1 = lines.outer[1];
      from.i3 = lines.strip * P::Box::at(3) + P::Shift::at(3) - S::LEAD;
      from.begin();
#pragma unroll 1
      for (Index l = 0; l < lines.count + S::REACH; ++l, number += S::UNITS) {
        const Index line = lines.first + l + P::Shift::at(2);
        from.place(line);
#pragma unroll 1
        for (unsigned unit = (mine + W::LOADERS - number % W::LOADERS) % W::LOADERS; unit < S::UNITS; unit += W::LOADERS) {
          const unsigned n = number + unit, buffer = n % W::LANDINGS;
          barrier_wait(free + buffer * 8, (n / W::LANDINGS & 1) ^ 1);
          from.ask(line, static_cast<int>(unit), landings + buffer * S::LANDING_BYTES, landed + buffer * 8);
        }
      }
    }
  } else if (warp >= W::CONSUMERS / 32) {
    registers_down<W::DOWN>();
    if (threadIdx.x == W::CONSUMERS) {
      barrier_expect(kept, S::KEPT_BYTES);
      const int64_t tiles = (p.rows() + PAIR_ROWS - 1) / PAIR_ROWS;
      for (int i = 0; i < S::PHASES * W::CHUNKS; ++i)
        bulk_copy(shared_address(strip_shared) + i * S::TAPS * TAP_BYTES,
                  packed.weights<W>() + ((lines.group + i / W::CHUNKS) * tiles + lines.tile_m) * S::PHASE_BYTES + i % W::CHUNKS * S::TAPS * TAP_BYTES,
                  S::TAPS * TAP_BYTES, kept);
    }
    StripRounder<W, P> rounder{W::kind == Operands::Half ? power_of_two(packed.input()) : 1.0f};
    if (W::kind == Operands::Half && blockIdx.x == 0) known_spoilt<W::ROUNDERS, P>(packed, static_cast<int>(threadIdx.x) - W::CONSUMERS, rounder.by);
    const unsigned mine = warp - W::CONSUMERS / 32;
    unsigned number = 0;  // of units of this block
    int slot = 0;
    unsigned parity = 1;
    while (lines.next(p))
#pragma unroll 1
      for (Index l = 0; l < lines.count + S::REACH; ++l, number += S::UNITS) {
#pragma unroll 1
        for (unsigned unit = (mine + 4 - number % 4) % 4; unit < S::UNITS; unit += 4) {
          const unsigned n = number + unit, buffer = n % W::LANDINGS;
          barrier_wait(landed + buffer * 8, n / W::LANDINGS & 1);
          rounder.take(reinterpret_cast<const scalar*>(landings + buffer * S::LANDING_BYTES), ring + slot * S::SLOT_BYTES + unit * S::UNIT_BYTES,
                       free + buffer * 8, empty + slot * 8, parity);
          publish();
          __syncwarp();
          if (lane == 0) barrier_arrive(full + slot * 8);
          if constexpr (W::kind == Operands::Half) rounder.watch.next();
        }
        if (++slot == W::SLOTS) slot = 0, parity ^= 1;
      }
    if (W::kind == Operands::Half && rounder.watch.seen.spoilt() && lane == 0) *packed.again = 1;
  } else {
    registers_up<W::UP>();
    const int which = warp / 4;
    float sums[S::BESIDE][S::N / 2];
    const uint64_t kept_at = lines_at(shared_address(strip_shared), TAP_BYTES / 2), b = lines_at(shared_address(ring) + S::LEAD * 16, S::UNIT_BYTES);
    barrier_wait(kept, 0);
    if (which == W::WARPGROUPS - 1) turn_give(1);
    // What undoes the scales is the same for all lines; where it is floats, sums are multiplied by it when they are stored.
    float scales[2] = {1.0f, 1.0f};
    bool late = false;
    if constexpr (S::STORED) {
      const Exponents own(packed.rows + (lines.group * ((p.rows() + PAIR_ROWS - 1) / PAIR_ROWS) + lines.tile_m) * PAIR_ROWS + warp % 4 * 16, packed.input());
      late = __all_sync(0xffffffffu, own.of[0] >= -126 && own.of[0] <= 127 && own.of[1] >= -126 && own.of[1] <= 127);
      if (late) scales[0] = power_of_two(own.of[0]), scales[1] = power_of_two(own.of[1]);
    }
    // Lines of the ring are counted from the block's first: `base` is that of the stretch's, and what lies before `released`
    // this warp no longer needs. The warpgroups take phases of lines in turn, `done` counts their turns.
    constexpr int TURNS = S::PHASES / S::BESIDE;
    unsigned base = 0, released = 0, done = 0;
    const auto acquire = [&](unsigned line) { barrier_wait(full + line % W::SLOTS * 8, line / W::SLOTS & 1); };
    const auto release = [&](unsigned line) {
      for (; released < line; ++released)
        if (lane == 0) barrier_arrive(empty + released % W::SLOTS * 8);
    };
    while (lines.next(p)) {
      const Index left = lines.strip * P::Box::at(3), rest = p.extent(3) - left;
      const int there = rest < S::N ? static_cast<int>(rest) : S::N;
#pragma unroll 1
      for (Index i = (which + W::WARPGROUPS - done % W::WARPGROUPS) % W::WARPGROUPS; i < lines.count * TURNS; i += W::WARPGROUPS) {
        const Index l = i / TURNS, phase = i % TURNS * S::BESIDE, group = lines.group + phase;
        Taps<P> taps[S::BESIDE];
#pragma unroll
        for (int beside = 0; beside < S::BESIDE; ++beside) taps[beside] = Taps<P>(p, group + beside);
        const uint64_t a = kept_at + phase * (S::PHASE_BYTES / 16);
        turn_wait(1 + which);
#pragma unroll
        for (int down = 0; down < S::DOWN; ++down) {
          const unsigned line = base + static_cast<unsigned>(l) + down * P::Dilation::at(2);
          acquire(line);
          const uint64_t from = b + line % W::SLOTS * (S::SLOT_BYTES / 16);
          wgmma_begin();
#pragma unroll
          for (int beside = 0; beside < S::BESIDE; ++beside)
#pragma unroll
            for (int across = 0; across < S::ACROSS; ++across)
#pragma unroll
              for (int chunk = 0; chunk < W::CHUNKS; ++chunk)
                if (taps[beside].has(down * S::ACROSS + across))
                  Wgmma<S::N, W::kind>::multiply(sums[beside], a + ((beside * W::CHUNKS + chunk) * S::TAPS + down * S::ACROSS + across) * (TAP_BYTES / 16),
                                                 from + (chunk * 2 * (S::UNIT_BYTES / 16) + across * P::Dilation::at(3)),
                                                 chunk != 0 || !taps[beside].first(down * S::ACROSS + across));
        }
        wgmma_end();
        turn_give(1 + (which + 1) % W::WARPGROUPS);
        wgmma_wait<0>();
#pragma unroll
        for (int beside = 0; beside < S::BESIDE; ++beside) {
          settle(sums[beside]);
          if (taps[beside].none()) clear(sums[beside]);
        }
        __syncwarp();
        // What this warpgroup's next line does not need; but no line that it has not seen, and not the stretch's last, for
        // which it waits below: a slot that is given back may have been filled again.
        const Index next = (i + W::WARPGROUPS) / TURNS, after = l + S::REACH + 1;
        const unsigned seen = base + static_cast<unsigned>(next < after ? next : after);
        const unsigned last = base + static_cast<unsigned>(lines.count) + S::REACH - 1;
        release(seen < last ? seen : last);
        const Index first = lines.tile_m * PAIR_ROWS + warp % 4 * 16;
        if (W::kind == Operands::Half && !late)
#pragma unroll
          for (int beside = 0; beside < S::BESIDE; ++beside)
            unscale<S::N / 8>(sums[beside], Exponents(packed.rows + ((group + beside) * ((p.rows() + PAIR_ROWS - 1) / PAIR_ROWS) + lines.tile_m) * PAIR_ROWS + warp % 4 * 16,
                                                      packed.input()));
        const Index line = (lines.outer[0] * p.extent(1) + lines.outer[1]) * p.extent(2) + lines.first + l;
        const Index box = line * lines.strips + lines.strip;
        const Index at[4] = {lines.outer[0], lines.outer[1], lines.first + l, left};
        if constexpr (S::BESIDE > 1)
          finish_beside<Dims<1, 1, 1, S::N>, S::STAGE_PITCH>(p, lines.batch + phase, first, box, BoxPlace<P>(at, {1, 1, 1, rest < P::Box::at(3) ? there : P::Box::at(3)}),
                                                             sums, reinterpret_cast<float*>(stages) + warp * 4 * S::STAGE_PITCH);
        else if constexpr (S::STORED)
          store_line<P::Box::at(3)>(p, lines.batch + phase, first, box, line * p.extent(3) + left, at, left > 0, there, scales, sums[0]);
        else
          finish_line<P::Box::at(3)>(p, lines.batch + phase, first, box, line * p.extent(3) + left, at, left > 0, there, sums[0]);
      }
      base += static_cast<unsigned>(lines.count) + S::REACH, done += static_cast<unsigned>(lines.count) * TURNS;
      acquire(base - 1);
      __syncwarp();
      release(base);
    }
    if (done % W::WARPGROUPS == unsigned(which)) turn_wait(1 + which);
  }
#endif
}

#ifndef __CUDACC_RTC__
// Into how many stretches all lines are cut, so that blocks have as much to do as possible: one each, or several.
inline int strip_segments(int64_t strips, int64_t blocks, int64_t lines) {
  int64_t best = 1;
  double least = 1e30;
  for (int64_t s = 1; s <= 4 * blocks && s <= lines; ++s) {
    const int64_t rounds = (s * strips - 1) / blocks + 1, each = (lines - 1) / s + 1;
    const double time = static_cast<double>(rounds) * static_cast<double>(each + 4);
    if (time < least) least = time, best = s;
  }
  return static_cast<int>(best);
}

// W is for the launch, Again (if not void) for the second one that does what W could not.
template <class W, class Again, class P>
cudaError_t launch_strips(const P& p, void* workspace, cudaStream_t stream) {
  using S = Strip<W, P>;
  if (p.batches() == 0 || p.rows() == 0 || box_count(p) == 0) return cudaSuccess;
  int processors = 0;
  cudaError_t refused = pack_rows<W>(p, workspace, &processors, stream);
  if (refused == cudaSuccess) refused = allow_shared(strip_kernel<W, P>, S::shared_bytes);
  if (refused != cudaSuccess) return refused;
  const int64_t kinds = strip_kinds(p);
  const int64_t blocks = processors >= kinds ? processors / kinds : 1, strips = (p.extent(3) - 1) / P::Box::at(3) + 1;
  const int64_t lines = static_cast<int64_t>(p.batches() / p.groups()) * p.extent(0) * p.extent(1) * p.extent(2);
  const int segments = strip_segments(strips, blocks, lines);
  refused = cudaLaunchKernelEx(After(static_cast<unsigned>(blocks * kinds), W::threads, S::shared_bytes, stream),
                               strip_kernel<W, P>, p, workspace, segments);
  if constexpr (W::kind == Operands::Half) {
    if (refused == cudaSuccess) refused = launch_pairs<Again, true>(p, workspace, processors, stream);
  }
  return refused;
}
#endif

}  // namespace crucible
#endif  // CRUCIBLE_HOPPER
