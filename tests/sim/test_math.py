"""CUDA's mathematical functions against float64 references, and its overloads against its rules."""

import math

import numpy as np
import pytest
import torch
import wrapper_cases as w

from crucible.sim import kernel as sim


def close(got, expected, relative=4e-7, absolute=1e-37):
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=relative, atol=absolute)


def test_functions():
    given, words = w.run("functions")
    a = given.view(np.float32).reshape(-1)
    out = words.view(np.float32).reshape(-1, 24).T
    m = np.abs(a) + np.float32(1e-3)
    u = a / (np.float32(1) + np.abs(a))
    x, mx, ux = a.astype(np.float64), m.astype(np.float64), u.astype(np.float64)
    special = lambda f, v: f(torch.from_numpy(np.ascontiguousarray(v, np.float64))).numpy()  # noqa: E731
    close(out[0], 1 / np.sqrt(mx))
    close(out[1], 1 / np.cbrt(mx))
    close(out[2], special(torch.special.ndtr, x))
    close(out[3], special(torch.special.erfinv, ux), 1e-6)
    close(out[4], -special(torch.special.erfinv, (np.float32(1) + u).astype(np.float64) - 1), 1e-6)
    close(out[5], special(torch.special.ndtri, (np.float32(0.5) + np.float32(0.5) * u).astype(np.float64)), 1e-6, 1e-7)
    close(out[6], special(torch.special.erfcx, x), 1e-6)
    close(out[7], 10.0**ux)
    close(out[8], np.sin(np.pi * x), 1e-6, 2e-7)
    close(out[9], np.cos(np.pi * x), 1e-6, 2e-7)
    np.testing.assert_array_equal(out[8], out[10])
    np.testing.assert_array_equal(out[9], out[11])
    close(out[12], 1 / np.hypot(x, 2))
    close(out[13], np.sqrt(x * x + 5))
    close(out[14], special(torch.special.i0, x))
    close(out[15], special(torch.special.i1, x))
    close(out[16], np.exp(ux))
    close(out[18], mx**0.75)
    close(out[20], np.exp2(ux))
    close(out[23], np.tanh(x))


OVERLOADS = r"""
template <class A, class B> struct same { static constexpr bool value = false; };
template <class A> struct same<A, A> { static constexpr bool value = true; };
#define IS(T, e) static_assert(same<T, decltype(e)>::value, #e)
__global__ void numbers(float* out, double* wide, int* whole) {
    IS(int, min(1, 2)); IS(unsigned, max(1, 2u)); IS(long, min(1L, 2L)); IS(long long, max(1ll, 2ll));
    IS(float, max(1.0f, 2.0f)); IS(double, min(1.0f, 2.0)); IS(float, rsqrt(1.0f)); IS(double, rsqrt(1.0));
    IS(float, fmaxf(1.0f, 2.0f)); IS(float, exp10(1.0f)); IS(float, abs(-1.0f)); IS(double, sinpi(0.5));
    IS(float, exp(1.0f));
    float nan = __int_as_float(0x7fc00000);
    out[0] = max(nan, 3.0f); out[1] = min(3.0f, nan); out[2] = __saturatef(nan); out[3] = fminf(nan, 1.0f);
    out[4] = isnan(nan) + 2 * isinf(1.0f / 0.0f) + 4 * isfinite(1.0f) + 8 * signbit(-0.0f);
    out[5] = sinpif(1.0f); out[6] = cospif(0.5f); out[7] = erfinvf(1.0f); out[8] = erfcinvf(0.0f);
    out[9] = normcdfinvf(0.5f);
    out[10] = erfcxf(100.0f); out[11] = exp10f(2.0f); out[12] = rcbrtf(8.0f); out[13] = normf(3, out + 10) > 0.0f;
    out[14] = __fdividef(1.0f, 4.0f); out[15] = __powf(2.0f, 3.0f); out[16] = __logf(1.0f); out[17] = __exp10f(1.0f);
    float s, c; __sincosf(0.0f, &s, &c); out[18] = s + 2 * c;
    wide[0] = normcdf(1.0); wide[1] = erfinv(0.25); wide[2] = erfcx(30.0); wide[3] = rhypot(3.0, 4.0);
    wide[4] = norm4d(1, 2, 2, 4);
    wide[5] = erfcinv(1e-200); wide[6] = __fma_rn(2.0, 3.0, 4.0); wide[7] = __hiloint2double(0x3ff00000, 0);
    whole[0] = __float2int_rn(2.5f); whole[1] = __float2int_rn(3.5f); whole[2] = __float2int_ru(-1.5f);
    whole[3] = __float2int_rn(1e20f); whole[4] = __float2int_rz(nan); whole[5] = (int)(__float2ll_rz(nan) >> 32);
    whole[6] = __double2int_rn(nan); whole[7] = (int)__float2uint_rn(-5.0f); whole[8] = __double2hiint(1.0);
    whole[9] = __clz(0); whole[10] = __clzll(1); whole[11] = __ffs(0); whole[12] = __ffsll(1ll << 40);
    whole[13] = __brev(1u);
    whole[14] = __popc(255); whole[15] = __dp4a(0x01020304, 0x01010101, 5); whole[16] = __fns(0xf0f0, 4, 2);
    int n; frexpf(8.0f, &n); whole[17] = n;
}
"""


@pytest.fixture(scope="module")
def numbers():
    kernels = sim.Kernel(OVERLOADS, ["numbers"])
    out, wide, whole = np.zeros(19, np.float32), np.zeros(8), np.zeros(18, np.int32)
    kernels("numbers", 1, 1, [out, wide, whole])
    return out, wide, whole


def test_overloads_and_special_values(numbers):
    out, _, _ = numbers
    np.testing.assert_array_equal(out[:4], [3, 3, 0, 1])
    assert out[4] == 15
    np.testing.assert_array_equal(out[5:10], [0, 0, np.inf, np.inf, 0])
    close(out[10:13], [0.005641613782989433, 100.0, 0.5])
    np.testing.assert_array_equal(out[13:19], [1, 0.25, 8, 0, 10, 2])


def test_double_functions(numbers):
    _, wide, _ = numbers
    expected = [
        0.5 * math.erfc(-math.sqrt(0.5)),
        0.22531205501217808,
        0.01879594448298646,
        0.2,
        5.0,
        21.33757770566664,
        10.0,
        1.0,
    ]
    np.testing.assert_allclose(wide[[0, 1, 3, 4, 6, 7]], np.array(expected)[[0, 1, 3, 4, 6, 7]], rtol=1e-14)
    np.testing.assert_allclose(wide[2], torch.special.erfcx(torch.tensor(30.0, dtype=torch.float64)).item(), rtol=1e-12)
    np.testing.assert_allclose(math.erfc(wide[5]) / 1e-200, 1, rtol=1e-10)


def test_integers(numbers):
    _, _, whole = numbers
    low, high = -(2**31), 2**31 - 1
    np.testing.assert_array_equal(whole, [2, 4, -1, high, 0, low, low, 0, 0x3FF00000, 32, 63, 0, 41, low, 8, 15, 5, 4])


def test_a_call_that_nvcc_finds_ambiguous_is_refused():
    from crucible.build import BuildError

    with pytest.raises(BuildError, match="ambiguous"):
        sim.Kernel("__global__ void k(long* p, int n) { p[0] = min(p[0], n); }", ["k"])
