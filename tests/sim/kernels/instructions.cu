// One small kernel for each instruction or intrinsic that has a simulated body, all of one shape: words in, words out.
// Block b reads in[b * IN ...] and writes out[b * OUT ...]; sizes and threads are in tests/sim/wrapper_cases.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <stdint.h>

#define WORDS_IN(n) const uint32_t* x = in + blockIdx.x * (n); const int t = threadIdx.x
#define WORDS_OUT(n) uint32_t* y = out + blockIdx.x * (n)
#define KERNEL(name) extern "C" __global__ void name(const uint32_t* in, uint32_t* out)

// ---- mma.sync, ldmatrix, stmatrix: families of forms, generated in wrapper_cases.py
KERNEL(mma_m8n8k4_f64) {
    WORDS_IN(32 * 8); WORDS_OUT(32 * 4);
    const double* r = reinterpret_cast<const double*>(x) + t * 4;
    double d0, d1;
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%4,%5};\n"
                 : "=d"(d0), "=d"(d1) : "d"(r[0]), "d"(r[1]), "d"(r[2]), "d"(r[3]));
    double* o = reinterpret_cast<double*>(y) + t * 2;
    o[0] = d0; o[1] = d1;
}

KERNEL(movmatrix) {
    WORDS_IN(32); WORDS_OUT(32);
    uint32_t d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(x[t]));
    y[t] = d;
}

// ---- cp.async: three groups of different widths, zero fill, a predicated copy
KERNEL(cp_async) {
    WORDS_IN(256); WORDS_OUT(256);
    __shared__ __align__(16) uint32_t tile[256];
    uint32_t a16 = (uint32_t)__cvta_generic_to_shared(&tile[4 * t]);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(a16), "l"(x + 4 * t));
    asm volatile("cp.async.commit_group;\n" ::);
    uint32_t a8 = (uint32_t)__cvta_generic_to_shared(&tile[128 + 2 * t]);
    int bytes = t % 3 == 0 ? 0 : t % 3 == 1 ? 4 : 8;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(a8), "l"(x + 128 + 2 * t), "r"(bytes));
    asm volatile("cp.async.commit_group;\n" ::);
    uint32_t a4 = (uint32_t)__cvta_generic_to_shared(&tile[192 + t]);
    tile[224 + t] = x[224 + t];
    asm volatile(
        "{\n"
        "  .reg .pred p;\n"
        "  setp.ne.b32 p, %0, 0;\n"
        "  @p cp.async.ca.shared.global [%1], [%2], %3;\n"
        "  @!p st.shared.u32 [%1], 7;\n"
        "}\n" ::"r"((int)(t % 4 != 0)), "r"(a4), "l"(x + 192 + t), "n"(4));
    asm volatile("cp.async.commit_group;\n" ::);
    asm volatile("cp.async.wait_group %0;\n" ::"n"(2));
    uint32_t first = tile[4 * t + 3];
    asm volatile("cp.async.wait_group 0;\n" ::);
    __syncthreads();
    for (int i = t; i < 256; i += 32) y[i] = tile[i];
    if (first != x[4 * t + 3]) y[0] = 0xdeadbeef;
}

// ---- conversions of 64 floats
KERNEL(conversions) {
    WORDS_IN(128); WORDS_OUT(64 * 24);
    const float a = __uint_as_float(x[t]), b = __uint_as_float(x[64 + t]);
    uint32_t* o = y + t * 24;
    uint32_t r; int s; unsigned short h; float f;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(a)); o[0] = r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(b)); o[1] = r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(b)); o[2] = r;
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(b)); o[3] = r;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(b)); o[4] = r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(a)); o[5] = h;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); o[6] = __float_as_uint(f);
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(s) : "f"(a)); o[7] = s;
    asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(s) : "f"(a)); o[8] = s;
    asm("cvt.rmi.s32.f32 %0, %1;" : "=r"(s) : "f"(a)); o[9] = s;
    asm("cvt.rpi.u32.f32 %0, %1;" : "=r"(r) : "f"(a)); o[10] = r;
    asm("cvt.sat.u8.s32 %0, %1;" : "=r"(r) : "r"(s)); o[11] = r & 255;
    asm("cvt.rni.f32.f32 %0, %1;" : "=f"(f) : "f"(a)); o[12] = __float_as_uint(f);
    asm("cvt.sat.f32.f32 %0, %1;" : "=f"(f) : "f"(a)); o[13] = __float_as_uint(f);
    asm("cvt.rz.f32.s32 %0, %1;" : "=f"(f) : "r"((int)x[t])); o[14] = __float_as_uint(f);
    asm("cvt.rp.f32.u32 %0, %1;" : "=f"(f) : "r"(x[t])); o[15] = __float_as_uint(f);
    o[16] = __float2int_rn(a); o[17] = __float2uint_rd(a);
    unsigned long long w = __float2ll_ru(a); o[18] = (uint32_t)w ^ (uint32_t)(w >> 32);
    w = __float2ull_rz(a); o[19] = (uint32_t)w ^ (uint32_t)(w >> 32);
    o[20] = __float_as_uint(__int2float_rd((int)x[t]));
    o[21] = __float_as_uint(__double2float_ru((double)a * 1.0000000001));
    o[22] = __double2int_rn((double)a); o[23] = __half_as_ushort(__float2half_rd(a));
}

// ---- float arithmetic with named roundings
KERNEL(rounded_arithmetic) {
    WORDS_IN(192); WORDS_OUT(64 * 16);
    const float a = __uint_as_float(x[t]), b = __uint_as_float(x[64 + t]), c = __uint_as_float(x[128 + t]);
    float f;
    uint32_t* o = y + t * 16;
    o[0] = __float_as_uint(__fadd_rz(a, b)); o[1] = __float_as_uint(__fadd_ru(a, b));
    o[2] = __float_as_uint(__fmul_rd(a, b)); o[3] = __float_as_uint(__fdiv_rn(a, b));
    o[4] = __float_as_uint(__fdiv_rz(a, b)); o[5] = __float_as_uint(__fmaf_rn(a, b, c));
    o[6] = __float_as_uint(__fmaf_rd(a, b, c)); o[7] = __float_as_uint(__fsqrt_ru(fabsf(a)));
    o[8] = __float_as_uint(__frcp_rn(a)); o[9] = __float_as_uint(fmaxf(a, b) + 0.0f);  // of two zeros, C may give either
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(f) : "f"(a), "f"(b), "f"(c)); o[10] = __float_as_uint(f);
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(f) : "f"(a), "f"(b)); o[11] = __float_as_uint(f);
    asm("add.rm.f32 %0, %1, %2;" : "=f"(f) : "f"(a), "f"(b)); o[12] = __float_as_uint(f);
    asm("mul.sat.f32 %0, %1, %2;" : "=f"(f) : "f"(a), "f"(b)); o[13] = __float_as_uint(f);
    o[14] = __float_as_uint(__saturatef(a)); o[15] = __float_as_uint(__fsub_rn(a, b));
}

// ---- integers
KERNEL(integers) {
    WORDS_IN(192); WORDS_OUT(64 * 32);
    const uint32_t a = x[t], b = x[64 + t], c = x[128 + t];
    uint32_t* o = y + t * 32;
    uint32_t r; uint64_t w;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c & 0xffff)); o[0] = r;
    asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); o[1] = r;
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b & 63), "r"(c & 63)); o[2] = r;
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b & 31), "r"(c & 31)); o[3] = r;
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(b), "r"(c & 31), "r"((c >> 8) & 31)); o[4] = r;
    asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); o[5] = r;
    asm("shf.r.clamp.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c & 63)); o[6] = r;
    asm("mad.lo.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); o[7] = r;
    asm("mul.hi.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); o[8] = r;
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(w) : "r"(a), "r"(b)); o[9] = (uint32_t)(w >> 32);
    asm("shl.b32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(c & 63)); o[10] = r;
    asm("shr.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(c & 63)); o[11] = r;
    asm("popc.b32 %0, %1;" : "=r"(r) : "r"(a)); o[12] = r;
    asm("brev.b32 %0, %1;" : "=r"(r) : "r"(a)); o[13] = r;
    asm("bfind.u32 %0, %1;" : "=r"(r) : "r"(a >> (c & 31))); o[14] = r;
    asm("{ .reg .pred p; setp.lt.s32 p, %1, %2; selp.b32 %0, %1, %2, p; }" : "=r"(r) : "r"(a), "r"(b)); o[15] = r;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, l}; }" : "=r"(r) : "r"(a)); o[16] = r;
    o[17] = __dp4a((int)a, (int)b, (int)c); o[18] = __dp4a(a, b, c);
    o[19] = __clz((int)(a >> (c & 31))); o[20] = __ffs((int)(a << (c & 31)));
    o[21] = __mulhi((int)a, (int)b); o[22] = __mul24((int)a, (int)b); o[23] = __umul24(a, b);
    o[24] = __byte_perm(a, b, c); o[25] = __funnelshift_rc(a, b, c & 63); o[26] = __sad((int)a, (int)b, c);
    o[27] = __hadd((int)a, (int)b); o[28] = __rhadd((int)a, (int)b); o[29] = __uhadd(a, b);
    o[30] = __fns(a, b & 31, (int)(c & 7) - 3); o[31] = __popcll(((uint64_t)a << 32) | b);
}
KERNEL(packed_lanes) {
    WORDS_IN(192); WORDS_OUT(64 * 24);
    const uint32_t a = x[t], b = x[64 + t], c = x[128 + t];
    uint32_t* o = y + t * 24;
    o[0] = __vadd4(a, b); o[1] = __vsub2(a, b); o[2] = __vaddss4(a, b); o[3] = __vaddus2(a, b);
    o[4] = __vsubss2(a, b); o[5] = __vavgs4(a, b); o[6] = __vavgu2(a, b); o[7] = __vhaddu4(a, b);
    o[8] = __vmaxs4(a, b); o[9] = __vminu2(a, b); o[10] = __vabsdiffu4(a, b); o[11] = __vabsdiffs2(a, b);
    o[12] = __vcmpges4(a, b); o[13] = __vcmpltu2(a, b); o[14] = __vseteq4(a, b & c); o[15] = __vsetles2(a, b);
    o[16] = __vabs4(a); o[17] = __vabsss2(a); o[18] = __vneg4(a); o[19] = __vnegss2(a);
    o[20] = __vsads4(a, b); o[21] = __vsadu2(a, b); o[22] = __vimax3_s32((int)a, (int)b, (int)c);
    o[23] = __viaddmin_s16x2_relu(a, b, c);
}

// ---- warp collectives
KERNEL(warp) {
    WORDS_IN(32); WORDS_OUT(32 * 24);
    const uint32_t v = x[t], full = 0xffffffffu;
    uint32_t* o = y + t * 24;
    uint32_t r, p;
    o[0] = __shfl_sync(full, v, t * 3); o[1] = __shfl_sync(full, v, 5, 8);
    o[2] = __shfl_up_sync(full, v, 3); o[3] = __shfl_up_sync(full, v, 2, 16);
    o[4] = __shfl_down_sync(full, v, 7); o[5] = __shfl_down_sync(full, v, 1, 4);
    o[6] = __shfl_xor_sync(full, v, 9); o[7] = __shfl_xor_sync(full, v, 1, 2);
    o[8] = __ballot_sync(full, v & 1); o[9] = __any_sync(full, (v & 255) == 0); o[10] = __all_sync(full, v != 0);
    o[11] = __match_any_sync(full, v & 3);
    int all; o[12] = __match_all_sync(full, v & 0, &all) + all;
    o[13] = __reduce_add_sync(full, v); o[14] = __reduce_max_sync(full, (int)v); o[15] = __reduce_min_sync(full, v);
    o[16] = __reduce_xor_sync(full, v);
    asm volatile("{ .reg .pred q; shfl.sync.up.b32 %0|q, %2, 3, 0, 0xffffffff; selp.u32 %1, 1, 0, q; }"
                 : "=r"(r), "=r"(p) : "r"(v));
    o[17] = r; o[18] = p;
    asm volatile("{ .reg .pred q; shfl.sync.idx.b32 %0|q, %2, %3, 0x181f, 0xffffffff; selp.u32 %1, 1, 0, q; }"
                 : "=r"(r), "=r"(p) : "r"(v), "r"(t));
    o[19] = r; o[20] = p;
    asm volatile("{ .reg .pred q, s; setp.ne.u32 q, %1, 0; vote.sync.uni.pred s, q, 0xffffffff; selp.u32 %0, 1, 0, s; }"
                 : "=r"(r) : "r"(v & 1));
    o[21] = r;
    asm volatile("redux.sync.min.s32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v)); o[22] = r;
    o[23] = __half_as_ushort(__shfl_xor_sync(full, __ushort_as_half((unsigned short)v), 16));
}

// ---- half and bfloat16: exact operations, then (in half_functions) approximate ones
KERNEL(half_arithmetic) {
    WORDS_IN(192); WORDS_OUT(64 * 24);
    uint32_t* o = y + t * 24;
    const uint32_t wa = x[t], wb = x[64 + t], wc = x[128 + t];
    const __half2 a = *reinterpret_cast<const __half2*>(&wa), b = *reinterpret_cast<const __half2*>(&wb),
                  c = *reinterpret_cast<const __half2*>(&wc);
    const __nv_bfloat162 p = *reinterpret_cast<const __nv_bfloat162*>(&wa),
                         q = *reinterpret_cast<const __nv_bfloat162*>(&wb),
                         s = *reinterpret_cast<const __nv_bfloat162*>(&wc);
    __half2 h; __nv_bfloat162 g; uint32_t r;
    h = __hadd2(a, b); o[0] = *reinterpret_cast<uint32_t*>(&h);
    h = __hmul2(a, b); o[1] = *reinterpret_cast<uint32_t*>(&h);
    h = __hfma2(a, b, c); o[2] = *reinterpret_cast<uint32_t*>(&h);
    h = __hfma2_relu(a, b, c); o[3] = *reinterpret_cast<uint32_t*>(&h);
    h = __hfma2_sat(a, b, c); o[4] = *reinterpret_cast<uint32_t*>(&h);
    h = __hmax2(a, b); o[5] = *reinterpret_cast<uint32_t*>(&h);
    h = __hmin2_nan(a, b); o[6] = *reinterpret_cast<uint32_t*>(&h);
    h = __hneg2(a); o[7] = *reinterpret_cast<uint32_t*>(&h);
    g = __hadd2(p, q); o[8] = *reinterpret_cast<uint32_t*>(&g);
    g = __hmul2(p, q); o[9] = *reinterpret_cast<uint32_t*>(&g);
    g = __hfma2(p, q, s); o[10] = *reinterpret_cast<uint32_t*>(&g);
    g = __hmax2(p, q); o[11] = *reinterpret_cast<uint32_t*>(&g);
    o[12] = __half_as_ushort(__hfma(a.x, b.x, c.x));
    o[13] = __bfloat16_as_ushort(__hfma(p.x, q.x, s.x));
    o[14] = __hlt(a.x, b.x) + 2 * __hge(a.y, b.y) + 4 * __heq(a.x, a.x) + 8 * __hisnan(b.x);
    o[15] = __half2int_rd(a.x); o[16] = __half2uint_ru(a.y); o[17] = (uint32_t)__half2short_rn(b.x);
    o[18] = __bfloat162int_rn(p.x); o[19] = __bfloat16_as_ushort(__int2bfloat16_rz((int)wa));
    o[20] = __half_as_ushort(hrint(a.x)) + (__half_as_ushort(htrunc(a.y)) << 16);
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(wa), "r"(wb), "r"(wc)); o[21] = r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(wa), "r"(wb), "r"(wc)); o[22] = r;
    asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(wa), "r"(wb)); o[23] = r;
}
KERNEL(half_functions) {  // each result as a float
    WORDS_IN(64); WORDS_OUT(64 * 20);
    uint32_t* o = y + t * 20;
    const __half a = __float2half(__uint_as_float(x[t]));
    const __nv_bfloat16 p = __float2bfloat16(__uint_as_float(x[t]));
    const __half m = __habs(a); const __nv_bfloat16 n = __habs(p);
#define OUT_H(i, e) o[i] = __float_as_uint(__half2float(e))
#define OUT_B(i, e) o[i] = __float_as_uint(__bfloat162float(e))
    OUT_H(0, hexp(a)); OUT_H(1, hexp2(a)); OUT_H(2, hlog(m)); OUT_H(3, hlog2(m)); OUT_H(4, hsin(a)); OUT_H(5, hcos(a));
    OUT_H(6, hsqrt(m)); OUT_H(7, hrsqrt(m)); OUT_H(8, hrcp(a)); OUT_H(9, __hdiv(a, m));
    OUT_B(10, hexp(p)); OUT_B(11, hexp2(p)); OUT_B(12, hlog(n)); OUT_B(13, hlog10(n)); OUT_B(14, hsin(p));
    OUT_B(15, hsqrt(n)); OUT_B(16, hrsqrt(n)); OUT_B(17, hrcp(p)); OUT_B(18, __hdiv(p, n)); OUT_H(19, hexp10(a));
}

// ---- float functions whose bodies are ours: each result as a float
KERNEL(functions) {
    WORDS_IN(64); WORDS_OUT(64 * 24);
    uint32_t* o = y + t * 24;
    const float a = __uint_as_float(x[t]), m = fabsf(a) + 1e-3f, u = a / (1.0f + fabsf(a));
    float f, s, c;
#define OUT_F(i, e) o[i] = __float_as_uint(e)
    OUT_F(0, rsqrtf(m)); OUT_F(1, rcbrtf(m)); OUT_F(2, normcdff(a)); OUT_F(3, erfinvf(u)); OUT_F(4, erfcinvf(1.0f + u));
    OUT_F(5, normcdfinvf(0.5f + 0.5f * u)); OUT_F(6, erfcxf(a)); OUT_F(7, exp10f(u)); OUT_F(8, sinpif(a));
    OUT_F(9, cospif(a));
    sincospif(a, &s, &c); OUT_F(10, s); OUT_F(11, c); OUT_F(12, rhypotf(a, 2.0f)); OUT_F(13, norm3df(a, 1.0f, 2.0f));
    OUT_F(14, cyl_bessel_i0f(a)); OUT_F(15, cyl_bessel_i1f(a));
    OUT_F(16, __expf(u)); OUT_F(17, __logf(m + 1.5f)); OUT_F(18, __powf(m, 0.75f)); OUT_F(19, __fdividef(a, m));
    asm("ex2.approx.f32 %0, %1;" : "=f"(f) : "f"(u)); OUT_F(20, f);
    asm("rcp.approx.f32 %0, %1;" : "=f"(f) : "f"(m)); OUT_F(21, f);
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(f) : "f"(m)); OUT_F(22, f);
    asm("tanh.approx.f32 %0, %1;" : "=f"(f) : "f"(a)); OUT_F(23, f);
}

// ---- atomics: results that do not depend on the order
KERNEL(atomics) {
    WORDS_IN(32); WORDS_OUT(16);
    __shared__ uint32_t s[16];
    if (t < 16) s[t] = t == 2 || t == 5 ? 0xffffffffu : t == 3 ? 0x80000000u : 0;
    __syncthreads();
    const uint32_t v = x[t];
    atomicAdd(&s[0], v); atomicMax(&s[1], v); atomicMin(&s[2], v); atomicMax(reinterpret_cast<int*>(&s[3]), (int)v);
    atomicOr(&s[4], v & 0x10101); atomicAnd(&s[5], v | 0x0f0f0f0f); atomicXor(&s[6], v); atomicInc(&s[7], 20);
    atomicAdd(reinterpret_cast<float*>(&s[8]), (float)(v & 63));
    atomicAdd(reinterpret_cast<__half2*>(&s[9]), __floats2half2_rn((float)(v & 7), 2.0f));
    atomicAdd(reinterpret_cast<__nv_bfloat162*>(&s[10]), __floats2bfloat162_rn(1.0f, (float)(v & 3)));
    atomicCAS(&s[11], t, t + 1); atomicAdd(reinterpret_cast<unsigned long long*>(&s[12]), (unsigned long long)v << 8);
    uint32_t address = (uint32_t)__cvta_generic_to_shared(&s[14]);
    asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(address), "r"(v & 15) : "memory");
    uint32_t old;
    asm volatile("atom.shared.max.u32 %0, [%1], %2;" : "=r"(old) : "r"(address + 4), "r"(v >> 4) : "memory");
    __syncthreads();
    if (t < 16) y[t] = t == 11 ? 0 : s[t];
}

// ---- wmma: A, B as given, accumulator C; results stored row major
template <int M, int N, int K, class T, class C, class LA, class LB>
__device__ void wmma_case(const T* a, const T* b, const C* c, C* d) {
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, M, N, K, T, LA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, T, LB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, C> fc;
    wmma::load_matrix_sync(fa, a, std::is_same<LA, wmma::row_major>::value ? K : M);
    wmma::load_matrix_sync(fb, b, std::is_same<LB, wmma::row_major>::value ? N : K);
    wmma::load_matrix_sync(fc, c, N, wmma::mem_row_major);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(d, fc, N, wmma::mem_row_major);
}
#define WMMA(name, m, n, k, T, C, la, lb)                                                                   \
    KERNEL(name) {                                                                                          \
        constexpr int a_words = m * k * sizeof(T) / 4, b_words = n * k * sizeof(T) / 4;                     \
        constexpr int c_words = m * n * sizeof(C) / 4;                                                      \
        WORDS_IN(a_words + b_words + c_words); WORDS_OUT(c_words);                                          \
        (void)t;                                                                                            \
        wmma_case<m, n, k, T, C, nvcuda::wmma::la, nvcuda::wmma::lb>(                                       \
            reinterpret_cast<const T*>(x), reinterpret_cast<const T*>(x + a_words),                         \
            reinterpret_cast<const C*>(x + a_words + b_words), reinterpret_cast<C*>(y));                    \
    }
WMMA(wmma_16_16_16_half, 16, 16, 16, __half, float, row_major, col_major)
WMMA(wmma_16_16_16_half_t, 16, 16, 16, __half, float, col_major, row_major)
WMMA(wmma_16_16_16_half_half, 16, 16, 16, __half, __half, row_major, row_major)
WMMA(wmma_32_8_16_half, 32, 8, 16, __half, float, row_major, col_major)
WMMA(wmma_8_32_16_half, 8, 32, 16, __half, float, row_major, col_major)
WMMA(wmma_16_16_16_bf16, 16, 16, 16, __nv_bfloat16, float, row_major, col_major)
WMMA(wmma_32_8_16_bf16, 32, 8, 16, __nv_bfloat16, float, col_major, row_major)
WMMA(wmma_16_16_16_s8, 16, 16, 16, signed char, int, row_major, col_major)
KERNEL(wmma_16_16_8_tf32) {
    using namespace nvcuda;
    WORDS_IN(512); WORDS_OUT(256);
    (void)t;
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> c;
    wmma::load_matrix_sync(a, reinterpret_cast<const float*>(x), 8);
    wmma::load_matrix_sync(b, reinterpret_cast<const float*>(x + 128), 8);
    wmma::load_matrix_sync(c, reinterpret_cast<const float*>(x + 256), 16, wmma::mem_col_major);
    for (int i = 0; i < a.num_elements; ++i) a.x[i] = wmma::__float_to_tf32(a.x[i]);
    for (int i = 0; i < b.num_elements; ++i) b.x[i] = wmma::__float_to_tf32(b.x[i]);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(reinterpret_cast<float*>(y), c, 16, wmma::mem_col_major);
}
// Which element of the accumulator each x[i] is: open in CUDA, compared for information.
KERNEL(wmma_accumulator_layout) {
    using namespace nvcuda;
    WORDS_IN(256); WORDS_OUT(256);
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::load_matrix_sync(c, reinterpret_cast<const float*>(x), 16, wmma::mem_row_major);
    for (int i = 0; i < c.num_elements; ++i) y[t * 8 + i] = __float_as_uint(c.x[i]);
}
