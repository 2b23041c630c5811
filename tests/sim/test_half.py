"""__half and __nv_bfloat16: what NVIDIA's headers leave to the device, against numpy and float64."""

from fractions import Fraction

import numpy as np
import pytest
import wrapper_cases as w

from crucible.sim import kernel as sim


def pairs(words, kind):
    """Words as (n, 2) float64."""
    if kind == "half":
        return np.ascontiguousarray(words).reshape(-1, 1).view(np.float16).astype(np.float64)
    raw = np.ascontiguousarray(words).reshape(-1, 1).view(np.uint16).astype(np.uint32) << 16
    return raw.view(np.float32).astype(np.float64)


def rounded(values, kind):
    """float64 -> the nearest half or bfloat16, ties to even, as float64."""
    if kind == "half":
        with np.errstate(all="ignore"):
            return values.astype(np.float16).astype(np.float64)
    mantissa, exponent = np.frexp(values)
    with np.errstate(all="ignore"):
        result = np.ldexp(np.rint(mantissa * 256), exponent - 8)
        return np.where(np.abs(result) > 3.39e38, np.copysign(np.inf, result), result)


def test_arithmetic():
    given, words = w.run("half_arithmetic")
    parts = np.split(given, 3, axis=1)
    out = words.reshape(-1, 24).T
    for kind, columns in (("half", {"add": 0, "mul": 1, "fma": 2}), ("bf16", {"add": 8, "mul": 9, "fma": 10})):
        a, b, c = (pairs(part, kind) for part in parts)
        usable = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        with np.errstate(all="ignore"):
            results = {"add": a + b, "mul": a * b, "fma": a * b + c}
        for name, column in columns.items():
            got, expected = pairs(out[column], kind), rounded(results[name], kind)
            differ = np.argwhere((got != expected) & usable & (np.abs(expected) > 1.2e-38))
            assert name == "fma" or not len(differ), f"{kind} {name}"
            for at in map(tuple, differ):  # float64 itself lost the addend that breaks a tie: ask exact arithmetic
                exact = Fraction(a[at]) * Fraction(b[at]) + Fraction(c[at])
                assert abs(Fraction(got[at]) - exact) < abs(Fraction(expected[at]) - exact)
    a, b, c = (pairs(part, "half") for part in parts)
    np.testing.assert_array_equal(pairs(out[3], "half"), np.maximum(rounded(a * b + c, "half"), 0))
    np.testing.assert_array_equal(pairs(out[4], "half"), rounded(np.clip(a * b + c, 0, 1), "half"))
    np.testing.assert_array_equal(pairs(out[5], "half"), np.maximum(a, b))
    np.testing.assert_array_equal(out[21], out[2])
    np.testing.assert_array_equal(out[15].view(np.int32), np.floor(a[:, 0]).astype(np.int32))
    np.testing.assert_array_equal(out[17].view(np.int32), np.rint(b[:, 0]).astype(np.int32))


def test_functions():
    given, words = w.run("half_functions")
    x = given.view(np.float32).reshape(-1)
    out = words.view(np.float32).reshape(-1, 20).T.astype(np.float64)
    half = x.astype(np.float16).astype(np.float64)
    bf16 = (w.to_bfloat16(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    functions = {
        0: np.exp, 1: np.exp2, 2: lambda v: np.log(np.abs(v)), 3: lambda v: np.log2(np.abs(v)), 4: np.sin, 5: np.cos,
        6: lambda v: np.sqrt(np.abs(v)), 7: lambda v: 1 / np.sqrt(np.abs(v)), 8: lambda v: 1 / v,
        9: np.sign, 19: lambda v: 10.0**v,
    }  # fmt: skip
    for column, function in functions.items():
        np.testing.assert_array_equal(out[column], rounded(function(half), "half"), err_msg=f"half function {column}")
    functions = {
        10: np.exp, 11: np.exp2, 12: lambda v: np.log(np.abs(v)), 13: lambda v: np.log10(np.abs(v)), 14: np.sin,
        15: lambda v: np.sqrt(np.abs(v)), 16: lambda v: 1 / np.sqrt(np.abs(v)), 17: lambda v: 1 / v, 18: np.sign,
    }  # fmt: skip
    for column, function in functions.items():
        np.testing.assert_array_equal(out[column], rounded(function(bf16), "bf16"), err_msg=f"bf16 function {column}")


KERNELS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
__global__ void operators(const __half* x, const __nv_bfloat16* b, float* out) {
    int t = threadIdx.x;
    __half h = x[t]; __nv_bfloat16 q = b[t];
    __half2 p = __halves2half2(h, __float2half(2.0f));
    p = p * p + p; p += p;
    h = h + h * h - h / __half(2.0f); h = -h;
    q = q * q + q; if (q > q) q = __nv_bfloat16(0.0f);
    out[4 * t] = __half2float(h); out[4 * t + 1] = __high2float(p); out[4 * t + 2] = float(q);
    out[4 * t + 3] = __half2float(__ldg(&x[31 - t])) + __bfloat162float(__shfl_xor_sync(0xffffffffu, q, 1));
}
__global__ void vectors(const __half2* x, __half2* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float2 f = __half22float2(x[i]);
        y[i] = __float22half2_rn(make_float2(f.y, f.x));
    }
}
"""


@pytest.mark.parametrize(
    "flags",
    [
        [],
        [
            "-D__CUDA_NO_HALF_OPERATORS__",
            "-D__CUDA_NO_HALF_CONVERSIONS__",
            "-D__CUDA_NO_HALF2_OPERATORS__",
            "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
        ],
    ],
)
def test_kernels_on_half_data(flags):
    """With NVIDIA's operators, and without them (torch's extension builder switches them off)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(64).astype(np.float16)
    names = ["vectors"] if flags else ["vectors", "operators"]
    source = (
        KERNELS
        if not flags
        else KERNELS[: KERNELS.index("__global__ void operators")] + KERNELS[KERNELS.index("__global__ void vectors") :]
    )
    kernels = sim.Kernel(source, names)
    y = np.zeros(64, np.float16)
    kernels("vectors", 1, 32, [x, y, 32])
    np.testing.assert_array_equal(y.reshape(-1, 2), x.reshape(-1, 2)[:, ::-1])
    if not flags:
        out, b = np.zeros((32, 4), np.float32), w.to_bfloat16(np.arange(32))
        kernels("operators", 1, 32, [x[:32], b, out])
        v = x[:32]
        np.testing.assert_array_equal(out[:, 0], -(v + v * v - v / np.float16(2)))
        np.testing.assert_array_equal(out[:, 1], 12)
