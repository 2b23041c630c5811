"""contract.cuh in the simulator: both engines, every grade and type, against float64."""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

import numpy as np
import pytest

import crucible
from crucible.build import nvrtc
from crucible.plan.tiles import MMA_TILES, SIMT_TILES, MmaTile, SimtTile, choose
from crucible.sim import kernel as sim

KERNELS = Path(crucible.__file__).parent / "kernels"

FUNCTORS = r"""
#include "contract.cuh"
using namespace crucible;

// D[z] = A[z] B[z], A row-major or (A_K false) column-major, B column-major or (B_K false) row-major.
// D has a slice for each split.
template <bool A_K, bool B_K, bool STATISTICS>
struct Product {
  const scalar *x, *y;
  accum *d, *counts, *means, *squares;
  Index Z, M, N, K, tiles;
  static constexpr bool a_along_k = A_K, b_along_k = B_K, statistics = STATISTICS;
  static constexpr int group = 0;
  static constexpr bool boxed = false;
  __host__ __device__ Index batches() const { return Z; }
  __host__ __device__ Index rows() const { return M; }
  __host__ __device__ Index cols() const { return N; }
  __host__ __device__ Index depth() const { return K; }
  __device__ Index a_row(Index z, Index m) const { return z * M * K + (A_K ? m * K : m); }
  __device__ accum a(Index row, Index k) const { return to_accum(x[row + (A_K ? k : k * M)]); }
  __device__ Index b_col(Index z, Index n) const { return z * K * N + (B_K ? n * K : n); }
  __device__ accum b(Index col, Index k) const { return to_accum(y[col + (B_K ? k : k * N)]); }
  __device__ accum finish(Index z, Index m, Index n, int split, accum value, bool there) const {
    accum& to = d[((split * Z + z) * M + m) * N + n];
    const accum made = STATISTICS ? value + accum(1e4) : value;
    if (!there) return made;
    if (!isnan(to)) __trap();  // every element once
    return to = made;
  }
  __device__ void sink(Index z, Index m, Index tile_n, accum count, accum mean, accum m2) const {
    const Index at = (z * M + m) * tiles + tile_n;
    counts[at] = count, means[at] = mean, squares[at] = m2;
  }
};

// A 3 x 3 convolution, padding 1, stride 2: m counts output channels, n pixels, z samples; x is (Z, C, H, W).
struct Conv {
  const scalar *x, *w;
  accum* d;
  Index Z, O, C, H, W, HO, WO;
  static constexpr bool a_along_k = true, b_along_k = false, statistics = false;
  static constexpr int group = 0;
  static constexpr bool boxed = false;
  struct Pixel {
    Index at, h, w;
  };
  __host__ __device__ Index batches() const { return Z; }
  __host__ __device__ Index rows() const { return O; }
  __host__ __device__ Index cols() const { return HO * WO; }
  __host__ __device__ Index depth() const { return C * 9; }
  __device__ Index a_row(Index, Index m) const { return m * depth(); }
  __device__ accum a(Index row, Index k) const { return to_accum(w[row + k]); }
  __device__ Pixel b_col(Index z, Index n) const {
    const Index h = n / WO * 2 - 1, w = n % WO * 2 - 1;
    return {(z * C * H + h) * W + w, h, w};
  }
  __device__ accum b(const Pixel& p, Index k) const {
    const Index c = k / 9, i = k % 9 / 3, j = k % 3;
    const bool inside = unsigned(p.h + i) < unsigned(H) && unsigned(p.w + j) < unsigned(W);
    return inside ? to_accum(x[p.at + (c * H + i) * W + j]) : accum(0);
  }
  __device__ accum finish(Index z, Index m, Index n, int, accum value, bool there) const {
    if (there) d[(z * O + m) * cols() + n] = value;
    return value;
  }
};

template <class P>
int guarded(const P& p, int splits, cudaError_t (*launch)(const P&, int, cudaStream_t)) {
  try {
    return launch(p, splits, nullptr);
  } catch (...) {  // what the simulator's checks found
    return -1;
  }
}
"""

ENTRY = """
extern "C" int {name}(const {functor}* p, int splits) {{
  return guarded(*p, splits, &launch_contract<{config}, {functor}>);
}}
"""

SCALARS = {"float": 0, "double": 1, "half": 2, "bfloat16": 3}
# Small tiles: the code is that of the large ones, the simulator's time is not.
ENGINES = {
    "simt": "Simt<32, 64, 8, 4, 4>",
    "simt8": "Simt<64, 64, 16, 8, 8>",
    "tf32": "Mma<32, 64, 16, 16, 32, Grade::Tf32>",
    "tf32deep": "Mma<64, 64, 32, 32, 32, Grade::Tf32>",
    "fp32": "Mma<64, 32, 16, 32, 16, Grade::Fp32>",
    "native": "Mma<32, 64, 32, 16, 32, Grade::Native>",
}
PAIRS = [
    ("float", "simt"), ("float", "simt8"), ("float", "tf32"), ("float", "tf32deep"), ("float", "fp32"),
    ("double", "simt"), ("half", "simt"), ("half", "native"), ("bfloat16", "native"),
]  # fmt: skip
LAYOUTS = {"kk": (True, True), "kn": (True, False), "mk": (False, True), "mn": (False, False)}
INVALID_VALUE = 1  # cudaErrorInvalidValue


def sizes(engine: str) -> tuple[int, int, int]:
    """BM, BN, BK of an engine's tile."""
    bm, bn, bk = ENGINES[engine].split("<")[1].split(",")[:3]
    return int(bm), int(bn), int(bk)


@functools.cache
def library(scalar: str, engine: str) -> ctypes.CDLL:
    """The functors on one engine, for one type, built for the simulator."""
    entries = {f"product_{name}": f"Product<{int(a)}, {int(b)}, false>" for name, (a, b) in LAYOUTS.items()}
    entries |= {"moments": "Product<true, false, true>", "conv": "Conv"}
    text = f"#define CRUCIBLE_SCALAR {SCALARS[scalar]}\n{FUNCTORS}"
    for name, functor in entries.items():
        text += ENTRY.format(name=name, functor=functor, config=ENGINES[engine])
    return ctypes.CDLL(str(sim.Kernel(text, {}, include=[KERNELS]).path))


@pytest.fixture(autouse=True)
def fresh():
    """Clear what an earlier test provoked: an error sticks, as on a chip."""
    sim.reset()
    yield
    sim.reset()


def tf32(x: np.ndarray) -> np.ndarray:
    """float32 rounded to tf32, ties to even, as float64."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 2.0**11), exponent - 11)


def stored(x: np.ndarray, scalar: str) -> np.ndarray:
    """The array as the device stores it."""
    if scalar == "bfloat16":
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.ascontiguousarray(x, {"half": np.float16, "double": np.float64, "float": np.float32}[scalar])


def seen(x: np.ndarray, scalar: str, engine: str) -> np.ndarray:
    """A stored array as the numbers that are multiplied, in float64."""
    if scalar == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return tf32(x) if engine.startswith("tf32") else x.astype(np.float64)


def call(scalar: str, engine: str, entry: str, fields: list, splits: int = 1) -> int:
    """Run an entry on a functor made of arrays in device memory and integers."""
    members = [("p", ctypes.c_void_p) if isinstance(f, sim.DeviceArray) else ("i", ctypes.c_int32) for f in fields]
    kind = type("Functor", (ctypes.Structure,), {"_fields_": [(f"{n}{i}", t) for i, (n, t) in enumerate(members)]})
    value = kind(*(f.pointer if isinstance(f, sim.DeviceArray) else f for f in fields))
    code = library(scalar, engine)[entry](ctypes.byref(value), splits)
    assert code >= 0, sim.reports() or sim.runtime().csim_last_message().decode()
    return code


def product(scalar, engine, layout, x, y, splits=1, statistics=False):
    """x (Z, M, K) times y (Z, K, N), as (splits, Z, M, N); with statistics also counts, means, sums of squares."""
    (z, m, k), n = x.shape, y.shape[2]
    a_k, b_k = LAYOUTS[layout]
    tiles = -(-n // sizes(engine)[1])
    accum = np.float64 if scalar == "double" else np.float32
    d = sim.DeviceArray.of(np.full((splits, z, m, n), np.nan, accum))
    moments = [sim.DeviceArray((z, m, tiles), accum) for _ in range(3)]
    given = [x if a_k else x.transpose(0, 2, 1), y.transpose(0, 2, 1) if b_k else y]
    fields = [*(sim.DeviceArray.of(g) for g in given), d, *moments, z, m, n, k, tiles]
    assert call(scalar, engine, "moments" if statistics else f"product_{layout}", fields, splits) == 0
    if not statistics:
        return d.numpy()
    assert not any(array.unwritten() for array in moments)
    return d.numpy(), [array.numpy() for array in moments]


def operands(scalar, z, m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    return stored(rng.standard_normal((z, m, k)), scalar), stored(rng.standard_normal((z, k, n)), scalar)


def error(got: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - exact) / max(np.linalg.norm(exact), 1e-300))


def bound(scalar: str, engine: str) -> float:
    return 1e-15 if scalar == "double" else 3e-7 if engine in ("simt", "simt8", "fp32") else 1e-6


def check(scalar, engine, layout, shape, splits=1):
    x, y = operands(scalar, *shape)
    got = product(scalar, engine, layout, x, y, splits)
    exact = np.matmul(seen(x, scalar, engine), seen(y, scalar, engine))
    assert error(got.sum(axis=0, dtype=np.float64), exact) < bound(scalar, engine)
    return got


@pytest.mark.quick
@pytest.mark.parametrize(("scalar", "engine"), [("float", "simt"), ("float", "tf32")])
def test_one_tile(scalar, engine):
    check(scalar, engine, "kn", (1, 7, 5, 20))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("scalar", "engine"), PAIRS)
def test_sizes_beside_tile_edges(scalar, engine, layout):
    bm, bn, bk = sizes(engine)
    check(scalar, engine, layout, (2, bm + 1, bn - 1, 3 * bk + 1))


@pytest.mark.parametrize(("scalar", "engine"), PAIRS)
def test_ones_primes_and_whole_tiles(scalar, engine):
    for shape in ((1, 1, 1, 1), (3, 1, 37, 13), (1, 41, 1, 31), sizes(engine)):
        check(scalar, engine, "mk", shape if len(shape) == 4 else (1, *shape))


@pytest.mark.parametrize(("scalar", "engine"), [("float", "simt"), ("float", "fp32"), ("half", "native")])
def test_splits_sum_to_the_whole(scalar, engine):
    depth = 5 * sizes(engine)[2] - 3
    parts = check(scalar, engine, "mn", (1, 9, 33, depth), splits=3)
    assert all(np.abs(parts[s]).max() > 0 for s in range(3))
    parts = check(scalar, engine, "kn", (1, 9, 33, 7), splits=3)  # the later splits have nothing to sum
    assert np.all(parts[1:] == 0)


@pytest.mark.parametrize(("scalar", "engine"), [("double", "simt"), ("float", "tf32")])
def test_empty_sizes(scalar, engine):
    assert np.all(product(scalar, engine, "kk", *operands(scalar, 2, 3, 4, 0)) == 0)
    sim.reset()
    for shape in ((0, 3, 4, 5), (1, 0, 4, 5), (1, 3, 0, 5)):
        product(scalar, engine, "kk", *operands(scalar, *shape))
    assert sim.launches() == []


def test_tiles_in_several_bands():
    """More than eight tiles of rows and several of columns: every tile once (the functor traps on a second visit)."""
    check("float", "simt", "kn", (2, 32 * 10 + 1, 64 + 1, 2))


@pytest.mark.parametrize("engine", ["simt", "fp32"])
def test_long_sums_keep_fp32_grade(engine):
    """One serial sum would have an error of 1.5e-6."""
    x, y = operands("float", 1, 3, 5, 4099)
    exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
    assert error(product("float", engine, "kk", x, y)[0], exact) < 5e-7


def test_positive_long_sums_keep_fp32_grade():
    """Every term positive: rounding errors of one serial sum would all count."""
    x, y = (np.abs(v) for v in operands("float", 1, 4, 4, 8192))
    exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
    assert error(product("float", "simt", "kk", x, y)[0], exact) < 1e-6
    assert error(product("float", "fp32", "kk", x, y)[0], exact) < 6e-7


@pytest.mark.parametrize(
    ("scalar", "engine"), [("float", "simt"), ("float", "simt8"), ("float", "tf32"), ("double", "simt")]
)
def test_statistics_far_from_zero(scalar, engine):
    bm, bn, _ = sizes(engine)
    x, y = operands(scalar, 2, bm + 3, bn * 2 + 1, 9)
    d, (counts, means, squares) = product(scalar, engine, "kn", x, y, statistics=True)
    for tile in range(3):
        values = d[0][:, :, tile * bn : (tile + 1) * bn].astype(np.float64)
        assert np.all(counts[:, :, tile] == values.shape[2])
        np.testing.assert_allclose(means[:, :, tile], values.mean(axis=2), rtol=1.2e-7)
        exact = ((values - values.mean(axis=2, keepdims=True)) ** 2).sum(axis=2)
        np.testing.assert_allclose(squares[:, :, tile], exact, rtol=1e-5, atol=1e-5)


def test_statistics_of_split_sums_are_refused():
    x, y = (sim.DeviceArray.of(v) for v in operands("float", 1, 2, 2, 2))
    assert call("float", "simt", "moments", [x, y, x, x, x, x, 1, 2, 2, 2, 1], splits=2) == INVALID_VALUE


@pytest.mark.parametrize(("scalar", "engine"), [("float", "simt8"), ("float", "tf32deep"), ("bfloat16", "native")])
def test_convolution_with_padding(scalar, engine):
    z, o, c, h, w = 2, 11, 5, 9, 12
    rng = np.random.default_rng(3)
    x, weight = stored(rng.standard_normal((z, c, h, w)), scalar), stored(rng.standard_normal((o, c, 3, 3)), scalar)
    ho, wo = (h - 1) // 2 + 1, (w - 1) // 2 + 1
    d = sim.DeviceArray((z, o, ho, wo), np.float32)
    fields = [sim.DeviceArray.of(x), sim.DeviceArray.of(weight), d, z, o, c, h, w, ho, wo]
    assert call(scalar, engine, "conv", fields) == 0
    padded = np.pad(seen(x, scalar, engine), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    exact = np.einsum("zchwij,ocij->zohw", windows, seen(weight, scalar, engine))
    assert d.unwritten() == 0 and error(d.numpy(), exact) < bound(scalar, engine)


@pytest.mark.parametrize("engine", ["simt", "tf32", "fp32"])
def test_infinities_nans_and_the_largest_numbers(engine):
    big = np.float32(np.finfo(np.float32).max)
    x, y = operands("float", 1, 8, 3, 20)
    x[0, 0, 3] = np.inf
    x[0, 1, 5] = np.nan
    x[0, 2, 17] = -np.inf
    x[0, 3, :], x[0, 3, 4] = 0, big
    x[0, 4, 2] = np.uint32(0x7F800001).view(np.float32)  # a nan in the lowest bit only
    x[0, 5, :], x[0, 5, 6] = 0, np.float32(1e-40)
    x[0, 6, 1] = big
    y[0, 4], y[0, 6], y[0, 1] = 1, 1, [0.5, 0, -0.25]
    got = product("float", engine, "kn", x, y)[0, 0]
    with np.errstate(all="ignore"):
        exact = np.matmul(seen(x, "float", engine), seen(y, "float", engine))[0]
    for row in (0, 1, 2, 4):
        np.testing.assert_array_equal(np.isnan(got[row]), np.isnan(exact[row]))
        np.testing.assert_array_equal(got[row][np.isinf(exact[row])], exact[row][np.isinf(exact[row])])
    assert np.all(np.isfinite(got[3])) and np.allclose(got[3], big, rtol=1e-3)
    assert np.allclose(got[5], 1e-40, rtol=0, atol=1e-40)
    assert np.allclose(got[6][[0, 2]], [big * 0.5, big * -0.25], rtol=1e-3) and error(got[7], exact[7]) < 1e-6


def test_fp32_grade_holds_over_wide_scales():
    x, y = operands("float", 1, 5, 6, 40)
    scale = np.exp2(np.random.default_rng(1).integers(-30, 30, 40)).astype(np.float32)
    x, y = x * scale, y / scale[:, None]
    exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
    assert error(product("float", "fp32", "kn", x, y)[0], exact) < 3e-7


def inlined(text: str, done: set[str]) -> str:
    """The text with our headers in place of their includes, each once."""

    def header(match: re.Match[str]) -> str:
        if match[1] in done:
            return ""
        done.add(match[1])
        return inlined((KERNELS / match[1]).read_text(), done)

    return re.sub(r'^#include "([^"]+)"', header, text, flags=re.M)


@pytest.mark.parametrize(
    ("scalar", "grade"), [("float", "fp32"), ("float", "tf32"), ("bfloat16", "native"), ("double", "")]
)
def test_compiles_for_old_and_new_chips(scalar, grade):
    config = (MMA_TILES[2][0] if grade else SIMT_TILES[2][0]).text(grade)
    host = f"void go(Conv p) {{ launch_contract<{config}, Conv>(p, 1, nullptr); }}"
    text = inlined(f"#define CRUCIBLE_SCALAR {SCALARS[scalar]}\n{FUNCTORS}{host}", set())
    try:
        results = nvrtc.compile_all(text, ["sm_70", "sm_80", "sm_90a"])
    except nvrtc.NotFound:  # pragma: no cover
        pytest.skip("no NVRTC on this machine")
    assert all(r.ok and not r.notes for r in results if not r.skipped), results


@pytest.mark.quick
def test_tiles_are_chosen_by_size():
    assert choose("mma", "float32", "tf32", 4096, 4096, 512).text("tf32") == "Mma<128, 128, 32, 64, 32, Grade::Tf32>"
    assert choose("mma", "float32", "fp32", 4096, 4096, 512).text("fp32") == "Mma<128, 128, 32, 64, 32, Grade::Fp32>"
    assert choose("mma", "float64", "fp32", 4096, 4096, 512).text() == "Simt<128, 128, 8, 8, 8>"
    assert choose("mma", "float16", "native", 8, 10**6, 64).text("native") == "Mma<32, 128, 32, 32, 32, Grade::Native>"
    assert choose("simt", "float32", "", 10**6, 3, 64).cols == 32
    assert (
        choose("simt", "float32", "", 256, 256, 64) == SIMT_TILES[2][0]
    )  # few tiles: small ones reach more processors
    assert choose("simt", "float32", "", 256, 256, 64, batches=64) == SIMT_TILES[0][0]
    assert {(t.rows, t.cols) for t, _ in MMA_TILES} == {(t.simt.rows, t.simt.cols) for t, _ in MMA_TILES}
    for bad in ((128, 128, 32, 64, 24), (256, 256, 32, 64, 64), (32, 32, 16, 16, 8)):
        with pytest.raises(ValueError):
            MmaTile(*bad)
    with pytest.raises(ValueError):
        SimtTile(128, 128, 8, 8, 6)


@pytest.mark.parametrize("grade", ["tf32", "fp32", "native", ""])
def test_shared_memory_is_what_the_kernel_asks_for(grade):
    scalar = {"native": "half", "": "double"}.get(grade, "float")
    tiles = [t for t, _ in (MMA_TILES if grade else SIMT_TILES)]
    text = f'#define CRUCIBLE_SCALAR {SCALARS[scalar]}\n#include "contract.cuh"\nusing namespace crucible;\n'
    for tile in tiles:
        asked = tile.shared_bytes(grade) if grade else tile.shared_bytes(8)
        config = tile.text(grade)
        text += f"static_assert({config}::shared_bytes == {asked} && {config}::threads == {tile.threads});\n"
        text += f"static_assert(tile_cols<{config}>() == {tile.cols});\n"
    sim.Kernel(text, {}, include=[KERNELS])
