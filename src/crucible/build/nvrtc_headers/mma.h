// nvcuda::wmma for NVRTC where the toolkit's own crt/mma.h is not at hand: the documented interface over the PTX
// instructions wmma.load, wmma.mma and wmma.store. It exists to see whether a kernel compiles for an architecture.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>

namespace nvcuda { namespace wmma {
struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32; }
__device__ inline float __float_to_tf32(float x) {
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return __uint_as_float(r);
}

// What one thread holds: n 32-bit registers seen as `count` elements of type E.
template <class E, int count> struct alignas(4) Storage {
  static constexpr int num_elements = count;
  static constexpr int num_storage_elements = count;
  using element_type = E;
  E x[count];
  __device__ unsigned* registers() { return reinterpret_cast<unsigned*>(x); }
  __device__ const unsigned* registers() const { return reinterpret_cast<const unsigned*>(x); }
};

template <class Use, int m, int n, int k, class T, class Layout = void> class fragment;

#define CRUCIBLE_R2(r) "=r"((r)[0]), "=r"((r)[1])
#define CRUCIBLE_R4(r) CRUCIBLE_R2(r), "=r"((r)[2]), "=r"((r)[3])
#define CRUCIBLE_R8(r) CRUCIBLE_R4(r), "=r"((r)[4]), "=r"((r)[5]), "=r"((r)[6]), "=r"((r)[7])
#define CRUCIBLE_I2(r) "r"((r)[0]), "r"((r)[1])
#define CRUCIBLE_I4(r) CRUCIBLE_I2(r), "r"((r)[2]), "r"((r)[3])
#define CRUCIBLE_I8(r) CRUCIBLE_I4(r), "r"((r)[4]), "r"((r)[5]), "r"((r)[6]), "r"((r)[7])
#define CRUCIBLE_D2 "{%0,%1}, [%2], %3;"
#define CRUCIBLE_D4 "{%0,%1,%2,%3}, [%4], %5;"
#define CRUCIBLE_D8 "{%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"

// One operand: its fragment and its load. E: element, P: what memory holds, R: registers.
#define CRUCIBLE_OPERAND(use, letter, m, n, k, T, E, P, R, count, layout, major, type)                              \
  template <> class fragment<use, m, n, k, T, layout> : public Storage<E, count> {};                                \
  __device__ inline void load_matrix_sync(fragment<use, m, n, k, T, layout>& f, const P* p, unsigned ldm) {         \
    asm volatile("wmma.load." letter ".sync.aligned." major ".m" #m "n" #n "k" #k "." type " " CRUCIBLE_D##R        \
                 : CRUCIBLE_R##R(f.registers()) : "l"(p), "r"(ldm) : "memory");                                     \
  }
#define CRUCIBLE_OPERANDS(m, n, k, T, E, P, RA, CA, RB, CB, type)                                        \
  CRUCIBLE_OPERAND(matrix_a, "a", m, n, k, T, E, P, RA, CA, row_major, "row", type)                      \
  CRUCIBLE_OPERAND(matrix_a, "a", m, n, k, T, E, P, RA, CA, col_major, "col", type)                      \
  CRUCIBLE_OPERAND(matrix_b, "b", m, n, k, T, E, P, RB, CB, row_major, "row", type)                      \
  CRUCIBLE_OPERAND(matrix_b, "b", m, n, k, T, E, P, RB, CB, col_major, "col", type)

CRUCIBLE_OPERANDS(16, 16, 16, __half, __half, __half, 8, 16, 8, 16, "f16")
CRUCIBLE_OPERANDS(32, 8, 16, __half, __half, __half, 8, 16, 8, 16, "f16")
CRUCIBLE_OPERANDS(8, 32, 16, __half, __half, __half, 8, 16, 8, 16, "f16")
CRUCIBLE_OPERANDS(16, 16, 16, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 4, 8, 4, 8, "bf16")
CRUCIBLE_OPERANDS(32, 8, 16, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 8, 16, 2, 4, "bf16")
CRUCIBLE_OPERANDS(8, 32, 16, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 2, 4, 8, 16, "bf16")
CRUCIBLE_OPERANDS(16, 16, 8, precision::tf32, float, float, 4, 4, 4, 4, "tf32")
CRUCIBLE_OPERANDS(16, 16, 16, signed char, signed char, signed char, 2, 8, 2, 8, "s8")
CRUCIBLE_OPERANDS(16, 16, 16, unsigned char, unsigned char, unsigned char, 2, 8, 2, 8, "u8")

// Accumulators: fragment, load, store.
#define CRUCIBLE_ACCUMULATOR(m, n, k, E, R, count, type)                                                            \
  template <> class fragment<accumulator, m, n, k, E, void> : public Storage<E, count> {};                          \
  __device__ inline void load_matrix_sync(fragment<accumulator, m, n, k, E>& f, const E* p, unsigned ldm,           \
                                          layout_t layout) {                                                        \
    if (layout == mem_row_major)                                                                                    \
      asm volatile("wmma.load.c.sync.aligned.row.m" #m "n" #n "k" #k "." type " " CRUCIBLE_D##R                     \
                   : CRUCIBLE_R##R(f.registers()) : "l"(p), "r"(ldm) : "memory");                                   \
    else                                                                                                            \
      asm volatile("wmma.load.c.sync.aligned.col.m" #m "n" #n "k" #k "." type " " CRUCIBLE_D##R                     \
                   : CRUCIBLE_R##R(f.registers()) : "l"(p), "r"(ldm) : "memory");                                   \
  }                                                                                                                 \
  __device__ inline void store_matrix_sync(E* p, const fragment<accumulator, m, n, k, E>& f, unsigned ldm,          \
                                           layout_t layout) {                                                       \
    if (layout == mem_row_major)                                                                                    \
      asm volatile("wmma.store.d.sync.aligned.row.m" #m "n" #n "k" #k "." type " [%0], " CRUCIBLE_S##R              \
                   :: "l"(p), CRUCIBLE_I##R(f.registers()), "r"(ldm) : "memory");                                   \
    else                                                                                                            \
      asm volatile("wmma.store.d.sync.aligned.col.m" #m "n" #n "k" #k "." type " [%0], " CRUCIBLE_S##R              \
                   :: "l"(p), CRUCIBLE_I##R(f.registers()), "r"(ldm) : "memory");                                   \
  }
#define CRUCIBLE_S4 "{%1,%2,%3,%4}, %5;"
#define CRUCIBLE_S8 "{%1,%2,%3,%4,%5,%6,%7,%8}, %9;"
#define CRUCIBLE_ACCUMULATORS(m, n, k)                  \
  CRUCIBLE_ACCUMULATOR(m, n, k, float, 8, 8, "f32")     \
  CRUCIBLE_ACCUMULATOR(m, n, k, __half, 4, 8, "f16")
CRUCIBLE_ACCUMULATORS(16, 16, 16)
CRUCIBLE_ACCUMULATORS(32, 8, 16)
CRUCIBLE_ACCUMULATORS(8, 32, 16)
CRUCIBLE_ACCUMULATOR(16, 16, 16, int, 8, 8, "s32")
CRUCIBLE_ACCUMULATOR(16, 16, 8, float, 8, 8, "f32")

// d = a * b + c. The operand numbers depend on the register counts, so the lists are written out per combination.
#define CRUCIBLE_MMA(m, n, k, T, la, lb, lan, lbn, D, C, instruction, RD, RA, RB, RC, operands)                     \
  __device__ inline void mma_sync(fragment<accumulator, m, n, k, D>& d, const fragment<matrix_a, m, n, k, T, la>& a, \
                                  const fragment<matrix_b, m, n, k, T, lb>& b,                                      \
                                  const fragment<accumulator, m, n, k, C>& c) {                                     \
    asm volatile("wmma.mma.sync.aligned." lan "." lbn ".m" #m "n" #n "k" #k "." instruction " " operands            \
                 : CRUCIBLE_R##RD(d.registers())                                                                    \
                 : CRUCIBLE_I##RA(a.registers()), CRUCIBLE_I##RB(b.registers()), CRUCIBLE_I##RC(c.registers()));     \
  }
#define CRUCIBLE_MMAS(m, n, k, T, D, C, instruction, RD, RA, RB, RC, operands)                                                  \
  CRUCIBLE_MMA(m, n, k, T, row_major, row_major, "row", "row", D, C, instruction, RD, RA, RB, RC, operands)                     \
  CRUCIBLE_MMA(m, n, k, T, row_major, col_major, "row", "col", D, C, instruction, RD, RA, RB, RC, operands)                     \
  CRUCIBLE_MMA(m, n, k, T, col_major, row_major, "col", "row", D, C, instruction, RD, RA, RB, RC, operands)                     \
  CRUCIBLE_MMA(m, n, k, T, col_major, col_major, "col", "col", D, C, instruction, RD, RA, RB, RC, operands)
#define CRUCIBLE_8888                                                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19,%20,%21,%22,%23}, "              \
  "{%24,%25,%26,%27,%28,%29,%30,%31};"
#define CRUCIBLE_4884                                                                                            \
  "{%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15,%16,%17,%18,%19}, {%20,%21,%22,%23};"
#define CRUCIBLE_8448                                                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, {%12,%13,%14,%15}, {%16,%17,%18,%19,%20,%21,%22,%23};"
#define CRUCIBLE_8828                                                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17}, {%18,%19,%20,%21,%22,%23,%24,%25};"
#define CRUCIBLE_8288                                                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13,%14,%15,%16,%17}, {%18,%19,%20,%21,%22,%23,%24,%25};"
#define CRUCIBLE_8228                                                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%12,%13,%14,%15,%16,%17,%18,%19};"
#define CRUCIBLE_HALF(m, n, k)                                                                        \
  CRUCIBLE_MMAS(m, n, k, __half, float, float, "f32.f32", 8, 8, 8, 8, CRUCIBLE_8888)                  \
  CRUCIBLE_MMAS(m, n, k, __half, __half, __half, "f16.f16", 4, 8, 8, 4, CRUCIBLE_4884)
CRUCIBLE_HALF(16, 16, 16)
CRUCIBLE_HALF(32, 8, 16)
CRUCIBLE_HALF(8, 32, 16)
CRUCIBLE_MMAS(16, 16, 16, signed char, int, int, "s32.s8.s8.s32", 8, 2, 2, 8, CRUCIBLE_8228)
CRUCIBLE_MMAS(16, 16, 16, unsigned char, int, int, "s32.u8.u8.s32", 8, 2, 2, 8, CRUCIBLE_8228)
CRUCIBLE_MMAS(16, 16, 16, __nv_bfloat16, float, float, "f32.bf16.bf16.f32", 8, 4, 4, 8, CRUCIBLE_8448)
CRUCIBLE_MMAS(32, 8, 16, __nv_bfloat16, float, float, "f32.bf16.bf16.f32", 8, 8, 2, 8, CRUCIBLE_8828)
CRUCIBLE_MMAS(8, 32, 16, __nv_bfloat16, float, float, "f32.bf16.bf16.f32", 8, 2, 8, 8, CRUCIBLE_8288)
CRUCIBLE_MMAS(16, 16, 8, precision::tf32, float, float, "f32.tf32.tf32.f32", 8, 4, 4, 8, CRUCIBLE_8448)

template <class Use, int m, int n, int k, class T, class L, class V>
__device__ inline void fill_fragment(fragment<Use, m, n, k, T, L>& f, const V& v) {
  using E = typename fragment<Use, m, n, k, T, L>::element_type;
  for (int i = 0; i < f.num_elements; ++i) f.x[i] = static_cast<E>(v);
}
}}
