"""contract_few.cuh in the simulator: few rows or columns, every layout and type, against float64."""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

import numpy as np
import pytest

import crucible
from crucible.build import nvrtc
from crucible.plan import tiles
from crucible.sim import kernel as sim

KERNELS = Path(crucible.__file__).parent / "kernels"

FUNCTORS = r"""
#include "contract_few.cuh"
using namespace crucible;

// D[z] = A[z] B[z] + bias, A row-major or (A_K false) column-major, B column-major or (B_K false) row-major, each with
// lines `pitch` elements apart, so that they need not lie on 16 bytes. D has a slice for each planned split.
template <bool A_K, bool B_K, bool DIRECT, int GROUP>
struct Product {
  const scalar *x, *y;
  accum *d, *counts, *means, *squares;
  Index Z, M, N, K, a_pitch, b_pitch;
  static constexpr bool a_along_k = A_K, b_along_k = B_K, a_direct = DIRECT, b_direct = DIRECT, statistics = GROUP > 0;
  static constexpr int group = GROUP;
  static constexpr bool boxed = false;
  __host__ __device__ Index batches() const { return Z; }
  __host__ __device__ Index rows() const { return M; }
  __host__ __device__ Index cols() const { return N; }
  __host__ __device__ Index depth() const { return K; }
  struct Line {
    Index first;
  };
  __device__ Line a_row(Index z, Index m) const { return {A_K ? (z * M + m) * a_pitch : z * K * a_pitch + m}; }
  __device__ const scalar* a_from(const Line& at, Index k) const { return &x[at.first + (A_K ? k : k * a_pitch)]; }
  __device__ accum a(const Line& at, Index k) const { return to_accum(*a_from(at, k)); }
  __device__ Line b_col(Index z, Index n) const { return {B_K ? (z * N + n) * b_pitch : z * K * b_pitch + n}; }
  __device__ const scalar* b_from(const Line& at, Index k) const { return &y[at.first + (B_K ? k : k * b_pitch)]; }
  __device__ accum b(const Line& at, Index k) const { return to_accum(*b_from(at, k)); }
  __device__ accum finish(Index z, Index m, Index n, int split, accum value, bool there) const {
    const accum made = GROUP > 0 ? value + accum(1e4) : value;
    if (!there) return made;
    accum& to = d[((split * Z + z) * M + m) * N + n];
    if (!isnan(to)) __trap();  // every element once
    return to = made;
  }
  __device__ void sink(Index z, Index m, Index tile_n, accum count, accum mean, accum m2) const {
    const Index at = (z * M + m) * (N / (GROUP > 0 ? GROUP : 1)) + tile_n;
    counts[at] = count, means[at] = mean, squares[at] = m2;
  }
};
"""

ENTRY = """
extern "C" int64_t {name}_bytes(const {functor}* p) {{ return few_bytes<{side}>(*p); }}
extern "C" int {name}_pays(const {functor}* p) {{ return few_pays<{side}>(*p); }}
extern "C" void {name}_shape(const {functor}* p, FewShape* s) {{ *s = few_shape<{side}>(*p); }}
extern "C" int {name}(const {functor}* p, int planned, void* workspace) {{
  try {{
    return launch_contract_few<{side}, 64>(*p, planned, workspace, nullptr);
  }} catch (...) {{  // what the simulator's checks found
    return -1;
  }}
}}
"""

SCALARS = {"float": 0, "double": 1, "half": 2, "bfloat16": 3}
LAYOUTS = {"kk": (True, True), "kn": (True, False), "mk": (False, True), "mn": (False, False)}
SIDES = {"rows": "FewRows", "cols": "FewCols"}
BOUND = {"float": 3e-7, "double": 2e-15, "half": 3e-7, "bfloat16": 3e-7}
INVALID_VALUE = 1  # cudaErrorInvalidValue


class Shape(ctypes.Structure):
    _fields_ = [("lines", ctypes.c_int), ("passes", ctypes.c_int), ("splits", ctypes.c_int), ("share", ctypes.c_int),
                ("blocks", ctypes.c_int)]  # fmt: skip


@functools.cache
def library(scalar: str, side: str, kind: str) -> ctypes.CDLL:
    """One functor for one type, built for the simulator: a layout, "indirect" or "moments"."""
    functor = "Product<{}, {}, {}, {}>".format(
        *(("true", "true", "true", 16) if kind == "moments" else ("true", "true", "false", 0) if kind == "indirect"
          else (*(str(along).lower() for along in LAYOUTS[kind]), "true", 0))
    )  # fmt: skip
    entry = ENTRY.format(name="few", functor="Functor", side=SIDES[side])
    text = f"#define CRUCIBLE_SCALAR {SCALARS[scalar]}\n{FUNCTORS}using Functor = {functor};\n{entry}"
    made = ctypes.CDLL(str(sim.Kernel(text, {}, include=[KERNELS]).path))
    made.few_bytes.restype = ctypes.c_int64
    return made


@pytest.fixture(autouse=True)
def fresh():
    """Clear what an earlier test provoked: an error sticks, as on a chip."""
    sim.reset()
    yield
    sim.configure(schedule=0)
    sim.reset()


def stored(x: np.ndarray, scalar: str) -> np.ndarray:
    """The array as the device stores it."""
    if scalar == "bfloat16":
        return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(x, {"half": np.float16, "double": np.float64, "float": np.float32}[scalar])


def seen(x: np.ndarray, scalar: str) -> np.ndarray:
    """A stored array as numbers, in float64."""
    if scalar == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def functor(values: list) -> ctypes.Structure:
    """The functor, made of arrays in device memory, addresses and integers."""
    fields = [(f"p{i}", ctypes.c_void_p) for i in range(6)] + [(f"i{i}", ctypes.c_int32) for i in range(6)]
    kind = type("Functor", (ctypes.Structure,), {"_fields_": fields})
    return kind(*(v.pointer if isinstance(v, sim.DeviceArray) else v for v in values))


def laid(x: np.ndarray, pad: int, shift: int) -> tuple[sim.DeviceArray, int]:
    """Lines with so many elements more, all moved by some, in device memory; and the address of the first."""
    wide = np.zeros((*x.shape[:-1], x.shape[-1] + pad), x.dtype)
    wide[..., : x.shape[-1]] = x
    made = sim.DeviceArray.of(np.concatenate([np.zeros(shift, x.dtype), wide.ravel()]))
    return made, made.pointer + shift * x.itemsize


def product(scalar, side, kind, x, y, planned=1, pad=(0, 0), shift=(0, 0)):
    """x (Z, M, K) times y (Z, K, N) as (planned, Z, M, N), its statistics, and the shape of the work."""
    (z, m, k), n = x.shape, y.shape[2]
    a_k, b_k = LAYOUTS.get(kind, (True, True))
    accum = np.float64 if scalar == "double" else np.float32
    d = sim.DeviceArray.of(np.full((planned, z, m, n), np.nan, accum))
    moments = [sim.DeviceArray((z, m, max(n // 16, 1)), accum) for _ in range(3)]
    given = [x if a_k else x.transpose(0, 2, 1), y.transpose(0, 2, 1) if b_k else y]
    held, addresses = zip(*(laid(np.ascontiguousarray(g), p, s) for g, p, s in zip(given, pad, shift)))
    pitches = [g.shape[2] + p for g, p in zip(given, pad)]
    made = functor([*addresses, d, *moments, z, m, n, k, *pitches])
    entry = library(scalar, side, kind)
    shape = Shape()
    entry.few_shape(ctypes.byref(made), ctypes.byref(shape))
    workspace = sim.DeviceArray((entry.few_bytes(ctypes.byref(made)),), np.uint8)
    code = entry.few(ctypes.byref(made), planned, ctypes.c_void_p(workspace.pointer))
    assert code == 0, (code, sim.reports() or sim.runtime().csim_last_message().decode())
    assert workspace.unwritten() == 0
    del held
    return d.numpy(), moments, shape


def operands(scalar, z, m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    return stored(rng.standard_normal((z, m, k)), scalar), stored(rng.standard_normal((z, k, n)), scalar)


def error(got: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - exact) / max(np.linalg.norm(exact), 1e-300))


def check(scalar, side, kind, few, many, k, z=1, bound=0.0, **given):
    """few lines on the given side, many on the other."""
    m, n = (few, many) if side == "rows" else (many, few)
    x, y = operands(scalar, z, m, n, k)
    got, _, shape = product(scalar, side, kind, x, y, **given)
    exact = np.matmul(seen(x, scalar), seen(y, scalar))
    assert error(got[0], exact) < (bound or BOUND[scalar])
    assert np.all(got[1:] == 0)
    return shape


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["kk", "kn"])
def test_one_row(kind):
    check("float", "rows", kind, 1, 131, 300)


@pytest.mark.parametrize(
    ("side", "scalar", "kind"),
    [*(("rows", "float", kind) for kind in LAYOUTS), ("rows", "half", "kk"), ("rows", "half", "mn"),
     ("rows", "double", "kn"), ("rows", "double", "mk"), ("rows", "bfloat16", "kn"), ("cols", "bfloat16", "kk"),
     ("cols", "float", "mk"), ("cols", "half", "kn")],
)  # fmt: skip
def test_few_lines_of_every_layout_and_type(side, scalar, kind):
    for few in (1, 3, 8, 16):
        check(scalar, side, kind, few, 261, 520)
    check(scalar, side, kind, 2, 32, 1025, z=3)  # nothing lies on 16 bytes


@pytest.mark.parametrize("kind", LAYOUTS)
def test_lines_beyond_a_pass_and_depth_beyond_a_share(kind):
    shape = check("float", "rows", kind, 37, 40, 1100)
    assert shape.lines == 16 and shape.passes == 3 and shape.splits > 1
    shape = check("float", "rows", kind, 1, 40, 4 * 4096 + 4)
    assert shape.splits > 4


@pytest.mark.parametrize("kind", ["kk", "mn"])
@pytest.mark.parametrize("scalar", ["float", "half"])
def test_lines_that_do_not_lie_on_16_bytes(scalar, kind):
    """Another pitch, another start, both: loads of single elements, and never past a line's end."""
    for pad, shift in ((1, 0), (0, 1), (3, 5), (8, 8)):
        check(scalar, "rows", kind, 3, 256, 512, pad=(pad, pad), shift=(shift, shift))


def test_operands_that_are_not_memory():
    check("float", "rows", "indirect", 5, 130, 515)
    check("half", "cols", "indirect", 9, 70, 515)


@pytest.mark.parametrize("kind", ["kk", "kn"])
def test_depth_beyond_all_splits(kind):
    """A split has more depth than is staged at once."""
    shape = check("float", "rows", kind, 3, 9, 128 * 1024 + 1500, bound=5e-7)
    assert shape.splits <= 128 and shape.share > 1024


def test_every_line_when_blocks_walk():
    """More lines than the blocks take at once."""
    shape = check("float", "rows", "kk", 2, 32 * 528 + 5, 256)
    assert shape.blocks == 528


def test_planned_splits_get_the_whole_and_zeros():
    check("float", "rows", "kk", 3, 70, 512, planned=3)


def test_long_sums_keep_fp32_grade():
    """Every term positive: rounding errors of one serial sum would all count."""
    for kind in ("kk", "kn"):
        x, y = (np.abs(v) for v in operands("float", 1, 2, 4, 8192))
        exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
        assert error(product("float", "rows", kind, x, y)[0][0], exact) < 5e-7


def test_infinities_and_nans_stay_where_they_are():
    x, y = operands("float", 1, 3, 40, 520)
    x[0, 1, 7], y[0, 519, 3], y[0, 0, 5] = np.inf, np.nan, -np.inf
    for kind in ("kk", "kn"):
        got = product("float", "rows", kind, x, y)[0][0]
        with np.errstate(all="ignore"):
            exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
        np.testing.assert_array_equal(got[np.isinf(exact)], exact[np.isinf(exact)])


@pytest.mark.parametrize("scalar", ["float", "double"])
def test_statistics_far_from_zero(scalar):
    x, y = operands(scalar, 2, 3, 96, 400)
    d, moments, _ = product(scalar, "rows", "moments", x, y)
    assert not any(array.unwritten() for array in moments)
    counts, means, squares = (array.numpy() for array in moments)
    values = d[0].astype(np.float64).reshape(2, 3, 6, 16)
    assert np.all(counts == 16)
    np.testing.assert_allclose(means, values.mean(axis=3), rtol=1.2e-7)
    exact = ((values - values.mean(axis=3, keepdims=True)) ** 2).sum(axis=3)
    np.testing.assert_allclose(squares, exact, rtol=1e-5, atol=1e-5)


def test_statistics_of_split_sums_are_refused():
    x = sim.DeviceArray.of(operands("float", 1, 2, 16, 16)[0])
    made = functor([x, x, x, x, x, x, 1, 2, 16, 16, 16, 16])
    assert library("float", "rows", "moments").few(ctypes.byref(made), 2, ctypes.c_void_p(x.pointer)) == INVALID_VALUE


@pytest.mark.parametrize("kind", ["kk", "kn"])
def test_any_order_of_blocks_gives_the_same_bits(kind):
    x, y = operands("float", 2, 5, 150, 1500)
    first = product("float", "rows", kind, x, y)[0]
    for schedule in (1, 2):
        sim.configure(schedule=schedule)
        assert np.array_equal(product("float", "rows", kind, x, y)[0].view(np.uint32), first.view(np.uint32))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("few", "many", "k", "z", "pays"),
    [
        (1, 8192, 8192, 1, True), (16, 8192, 8192, 1, True), (17, 8192, 8192, 1, False), (0, 8192, 8192, 1, False),
        (1, 8192, 0, 1, False), (1, 8192, 8192, 0, False), (2, 1, 10**6, 1, False),  # the other side has fewer
        (1, 128, 255, 1, False), (1, 128, 256, 1, True), (1, 127, 256, 1, False), (1, 127, 256, 2, True),
        (8, 100, 10**6, 1, True),
    ],
)  # fmt: skip
def test_it_is_taken_where_it_should_pay(few, many, k, z, pays):
    made = functor([0] * 6 + [z, few, many, k, k, k])
    assert library("float", "rows", "kk").few_pays(ctypes.byref(made)) == pays


@pytest.mark.quick
def test_the_plan_has_the_kernels_numbers():
    text = (KERNELS / "contract_few.cuh").read_text()
    for name in ("FEW_LINES", "FEW_DEPTH", "FEW_ELEMENTS"):
        (found,) = re.findall(rf"\b{name} = ([^,;]+)[,;]", text)
        assert eval(found) == getattr(tiles, name)


@pytest.mark.quick
def test_work_is_dealt_to_enough_blocks():
    """Of the size that the way was made for the chip is filled, and no share is deeper than what is staged at once."""
    for kind in ("kk", "kn"):
        for few, many, k in ((1, 8192, 8192), (8, 8192, 8192), (16, 8192, 8192), (1, 1000, 4096), (4, 300, 70000)):
            shape = Shape()
            made = functor([0] * 6 + [1, few, many, k, k, k])
            library("float", "rows", kind).few_shape(ctypes.byref(made), ctypes.byref(shape))
            assert shape.lines * shape.share <= 16 * 1024 and shape.share % 128 == 0 and shape.splits <= 128
            assert shape.splits * shape.share >= k > (shape.splits - 1) * shape.share
            if many * k >= 1 << 26:
                assert 500 <= shape.blocks * shape.splits * shape.passes <= 600


def inlined(text: str, done: set[str]) -> str:
    """The text with our headers in place of their includes, each once."""

    def header(match: re.Match[str]) -> str:
        if match[1] in done:
            return ""
        done.add(match[1])
        return inlined((KERNELS / match[1]).read_text(), done)

    return re.sub(r'^#include "([^"]+)"', header, text, flags=re.M)


@pytest.mark.parametrize(("scalar", "along"), [("float", "true"), ("double", "false"), ("half", "false")])
def test_compiles_for_old_and_new_chips(scalar, along):
    of = f"Product<true, {along}, true, 16>"
    host = f"void go({of} p) {{ launch_contract_few<FewRows, 64, {of}>(p, 1, nullptr, nullptr); }}\n"
    text = inlined(f"#define CRUCIBLE_SCALAR {SCALARS[scalar]}\n{FUNCTORS}{host}", set())
    try:
        results = nvrtc.compile_all(text, ["sm_70", "sm_90a"])
    except nvrtc.NotFound:  # pragma: no cover
        pytest.skip("no NVRTC on this machine")
    assert all(r.ok for r in results if not r.skipped), results
    left = {note for r in results for note in r.notes}
    assert left <= {"parsed, not instantiated: contract_kernel"}, left
