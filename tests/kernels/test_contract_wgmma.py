"""contract_wgmma.cuh in the simulator, a cluster a block: packing before and beside the product, every layout, ranges.

On a chip tests/gpu/contract_wgmma.py does the same with clusters of two, and far larger.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

import numpy as np
import pytest

import crucible
from crucible.emit.wgmma import instructions
from crucible.sim import kernel as sim

KERNELS = Path(crucible.__file__).parent / "kernels"
SOURCE = Path(__file__).parents[1] / "gpu/contract_wgmma.cu"
SCALARS = {"float": 0, "half": 2, "bfloat16": 3}
ALL, PACK, MULTIPLY = range(3)
OWN_PACE, ALL_EARLY, FIRST_ONLY = -1, 0, 10**6
NOT_ROLLING = 0
EVERY_FORM = ("Fp32", 32)  # compiled with all layouts and statistics; others with what their tests have

GUARDED = """
extern "C" int guarded(const void* a, const void* b, const void* bias, void* out, void* count, void* mean, void* m2,
                       int z, int m, int n, int k, int groups, int form, int statistics, void* workspace, int what,
                       int pace, int height) {
  try {
    return product(a, b, bias, out, count, mean, m2, z, m, n, k, groups, form, statistics, workspace, what, pace,
                   height, nullptr);
  } catch (...) {  // what the simulator's checks found
    return -1;
  }
}
"""

SHARES = """
extern "C" void tile_shares(int z, int m, int n, int processors, int clusters, int pace, int64_t* early, int* high,
                            int64_t turns, int* order) {
  using W = WgmmaTile<COLUMNS, Grade::GRADE>;
  const Product<true, true, 0, false> p{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, z, m, n, 64, 0};
  Packing all = wgmma_packing<W>(p, nullptr, nullptr, nullptr, 0);
  share_packing<W>(all, processors, clusters, pace);
  early[0] = all.a.early, early[1] = all.b.early;
  *high = all.high;
  for (int64_t i = 0; i < turns; ++i) {
    const PackTurn turn(all, i, 1, 1);  // whole tiles
    order[i] = static_cast<int>(turn.tile) * 2 + turn.of_b;
  }
}
"""


@functools.cache
def library(grade: str, columns: int, scalar: str, statistics: int) -> ctypes.CDLL:
    """The product of one grade; EVERY_FORM with every layout and statistics, others along k and with these alone."""
    given = {"GRADE": grade, "COLUMNS": columns, "CRUCIBLE_SCALAR": SCALARS[scalar], "CRUCIBLE_HOPPER": 1}
    text = "".join(f"#define {name} {value}\n" for name, value in given.items()) + SOURCE.read_text() + GUARDED + SHARES
    marker = "#include INSTRUCTIONS"
    assert marker in text
    text = text.replace(marker, instructions([columns]) + "\n//")
    if (grade, columns) != EVERY_FORM:
        text, left_out = re.subn(rf"^  if \((?:statistics == (?!{statistics}\b)|form == ).*\n", "", text, flags=re.M)
        assert left_out == (9 if statistics < 0 else 8)
    made = ctypes.CDLL(str(sim.Kernel(text, {}, include=[KERNELS], architecture="sm_90a").path))
    made.product_workspace.restype = ctypes.c_int64
    made.guarded.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int] * 7 + [ctypes.c_void_p] + [ctypes.c_int] * 3
    return made


@pytest.fixture(autouse=True)
def fresh():
    """Three processors, so that blocks take many tiles and most operands are packed beside the product."""
    sim.reset()
    sim.configure(processors=3)
    yield
    sim.configure(processors=0, schedule=0)
    sim.reset()


def stored(x: np.ndarray, scalar: str) -> np.ndarray:
    if scalar == "bfloat16":
        return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(x, {"half": np.float16, "float": np.float32}[scalar])


def seen(x: np.ndarray, scalar: str) -> np.ndarray:
    if scalar == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


class Product:
    """x (Z, M, K) times y (Z, N, K) transposed. ``form``: 1 where x lies along k, 2 where y does."""

    def __init__(self, x, y, form=3, grade="Fp32", columns=32, scalar="float", pace=OWN_PACE, statistics=-1,
                 height=NOT_ROLLING):  # fmt: skip
        (z, m, k), n = x.shape, y.shape[1]
        every = (grade, columns) == EVERY_FORM
        assert every or form == 3
        self.groups = n // 16 if statistics == 16 else -(-n // columns)
        laid = [x if form & 1 else x.transpose(0, 2, 1), y if form & 2 else y.transpose(0, 2, 1)]
        arrays = [sim.DeviceArray.of(np.ascontiguousarray(v)) for v in laid]
        self.bias = stored(np.random.default_rng(5).standard_normal(n), scalar)
        self.out = sim.DeviceArray((z, m, n), np.float32)
        self.parts = [sim.DeviceArray((z, m, self.groups), np.float32) for _ in range(3)]
        made = library(grade, columns, scalar, -1 if every else statistics)
        self.workspace = sim.DeviceArray((made.product_workspace(z, m, n, k, height),), np.uint8)
        arrays = [*arrays, sim.DeviceArray.of(self.bias), self.out, *self.parts]
        pointers = [a.pointer for a in arrays]
        given = (z, m, n, k, self.groups, form, statistics, self.workspace.pointer, ALL, pace, height)
        code = made.guarded(*pointers, *given)
        assert code == 0, sim.reports() or sim.runtime().csim_last_message().decode()
        assert self.out.unwritten() == 0
        self.again = int(self.workspace.numpy()[:4].view(np.int32)[0])
        self.beside = int(self.workspace.numpy()[4:8].view(np.uint32)[0])  # lines that were asked for


def operands(z, m, n, k, scalar="float", seed=0):
    rng = np.random.default_rng(seed)
    return stored(rng.standard_normal((z, m, k)), scalar), stored(rng.standard_normal((z, n, k)), scalar)


def error(got, exact) -> float:
    return float(np.linalg.norm(got - exact) / max(np.linalg.norm(exact), 1e-300))


def exact(x, y, scalar="float"):
    return np.matmul(seen(x, scalar), seen(y, scalar).transpose(0, 2, 1))


@pytest.mark.parametrize("pace", [OWN_PACE, ALL_EARLY, FIRST_ONLY])
@pytest.mark.parametrize("form", range(4))
def test_layouts(form, pace):
    """Two batches, sizes beside tile edges, more tiles than processors."""
    x, y = operands(2, 129, 97, 140)
    p = Product(x, y, form, pace=pace)
    assert p.again == 0 and error(p.out.numpy(), exact(x, y)) < 3e-7
    # Of 2 x 2 tiles of 128 rows and 2 x 4 of 32 columns, three blocks need two of rows and two of columns. The others
    # are packed line by line, or 32 at a time; in the end each of nine warps asks once more.
    late = 2 * (128 if form & 1 else 4) + 6 * (32 if form & 2 else 1)
    if pace != OWN_PACE:
        assert p.beside == (0 if pace == ALL_EARLY else late + 9)


@pytest.mark.parametrize(
    ("grade", "columns", "scalar", "bound"),
    [("Fp32", 128, "float", 3e-7), ("Fp32", 64, "float", 3e-7), ("Tf32", 128, "float", 4e-4),
     ("Native", 64, "half", 1e-6), ("Native", 128, "bfloat16", 1e-6)],
)  # fmt: skip
def test_grades(grade, columns, scalar, bound):
    x, y = operands(1, 260, 3 * columns + 5, 200, scalar)
    p = Product(x, y, grade=grade, columns=columns, scalar=scalar, pace=FIRST_ONLY)
    assert p.beside > 9 and p.again == 0 and error(p.out.numpy(), exact(x, y, scalar)) < bound


def test_several_bands():
    """Rows of a second band are packed last, and each batch begins with its own."""
    x, y = operands(2, 128 * 9 + 1, 70, 65)
    p = Product(x, y, pace=FIRST_ONLY)
    assert p.beside == 2 * (10 * 128 + 3 * 32) - 8 * 128 - 32 + 9
    assert p.again == 0 and error(p.out.numpy(), exact(x, y)) < 3e-7


@pytest.mark.parametrize(("form", "schedule"), [(3, 0), (3, 1), (3, 2), (0, 0), (0, 1)])
def test_deep_lines(form, schedule):
    """More pieces than a warp has registers for, than a chunk has, and than slots in the ring; a last one not whole."""
    sim.configure(schedule=schedule)
    x, y = operands(1, 20, 150, 64 * 26 + 3)
    p = Product(x, y, form, pace=FIRST_ONLY)
    assert p.beside > 9 and p.again == 0 and error(p.out.numpy(), exact(x, y)) < 3e-7


@pytest.mark.parametrize("form", [3, 0])
def test_no_depth(form):
    assert np.all(Product(*operands(1, 200, 100, 0), form).out.numpy() == 0)


@pytest.mark.parametrize("statistics", [0, 16])
def test_statistics(statistics):
    x, y = operands(1, 140, 96, 70)
    p = Product(x, y, pace=FIRST_ONLY, statistics=statistics)
    values = exact(x, y) + p.bias.astype(np.float64)
    width = statistics or 32
    counts, means, squares = (part.numpy()[0] for part in p.parts)
    for g in range(p.groups):
        part = values[0, :, g * width : (g + 1) * width]
        assert np.all(counts[:, g] == width)
        np.testing.assert_allclose(means[:, g], part.mean(axis=1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(squares[:, g], part.var(axis=1) * width, rtol=1e-5)


@pytest.mark.parametrize(("columns", "group"), [(128, 16), (32, 4), (32, 16), (32, 32), (32, 0)])
def test_tails(columns, group):
    """Elements are normalised by the moments of their group, whoever of a warp has them; rows end at a tile's edge."""
    n = 2 * columns + max(group, 8)
    x, y = operands(2, 141, n, 70)
    p = Product(x, y, columns=columns, pace=FIRST_ONLY, statistics=100 + group)
    values = exact(x, y) + p.bias.astype(np.float64)
    if group:
        parts = values.reshape(2, 141, n // group, group)
        parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
        values = parts.reshape(values.shape)
    assert p.again == 0 and error(p.out.numpy(), values) < 3e-6
    best, sums = (part.numpy() for part in p.parts[:2])
    for tile in range(p.groups):
        part = values[:, :, tile * columns : (tile + 1) * columns]
        np.testing.assert_allclose(best[:, :, tile], part.max(axis=2), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(sums[:, :, tile], part.sum(axis=2), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("form", "pace"), [(3, ALL_EARLY), (3, FIRST_ONLY), (0, ALL_EARLY), (0, FIRST_ONLY)])
def test_ranges(form, pace):
    """Rows of any scale are held; a column of losses is seen, and done again, however the lines were packed."""
    k = 200
    power = np.exp2(np.linspace(-60, 60, 130)).astype(np.float32)[None, :, None]
    x, y = operands(1, 130, 140, k)
    p = Product(x * power, y, form, pace=pace)
    assert p.again == 0
    rows = np.linalg.norm(p.out.numpy() - exact(x * power, y), axis=2) / np.linalg.norm(exact(x * power, y), axis=2)
    assert rows.max() < 4e-7
    steep = np.exp2(np.linspace(-20, 20, k)).astype(np.float32)
    p = Product(x * steep, y / steep, form, pace=pace)
    assert p.again == 1 and error(p.out.numpy(), exact(x * steep, y / steep)) < 3e-7
    zeros = x.copy()
    zeros[0, ::3] = 0
    p = Product(zeros, y, form, pace=pace)
    assert p.again == 0 and np.all(p.out.numpy()[0, ::3] == 0) and error(p.out.numpy(), exact(zeros, y)) < 3e-7


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("form", [3, 0])
@pytest.mark.parametrize("late", [False, True])
def test_infinities_and_nans(value, late, form):
    """In a line that was packed before the product, and in one that was packed beside it."""
    x, y = operands(1, 30, 200, 70)
    y[0, 190 if late else 3, 69] = value
    p = Product(x, y, form, pace=FIRST_ONLY)
    true = exact(x, y)
    assert p.again == 1
    np.testing.assert_array_equal(np.isnan(p.out.numpy()), np.isnan(true))
    np.testing.assert_array_equal(np.isinf(p.out.numpy()), np.isinf(true))


class TestRolling:
    """B packed piece by piece for a team of blocks, whose idle warps fill a ring that all of them empty."""

    @pytest.fixture(autouse=True)
    def teams(self):
        sim.configure(processors=6)

    @pytest.mark.parametrize("form", range(4))
    def test_layouts(self, form):
        """Two batches, three teams for eight tiles, of which the last is not whole."""
        x, y = operands(2, 128 * 2 - 1, 97, 140)
        p = Product(x, y, form, height=2)
        assert p.again == 0 and error(p.out.numpy(), exact(x, y)) < 3e-7

    @pytest.mark.parametrize(("columns", "height"), [(128, 6), (64, 3)])
    def test_more_warps_than_parts(self, columns, height):
        """Eight or four warps fill a piece: of 18 two remain, of 9 one. And more blocks than tiles of rows."""
        x, y = operands(1, 128 * height - 130, columns + 1, 300)
        p = Product(x, y, columns=columns, height=height)
        assert p.again == 0 and error(p.out.numpy(), exact(x, y)) < 3e-7

    @pytest.mark.parametrize(("form", "schedule"), [(3, 0), (3, 1), (3, 2), (0, 0), (0, 1)])
    def test_the_ring_goes_round(self, form, schedule):
        """Three tiles of 27 pieces, which one team takes one after another, through 32 slots."""
        sim.configure(processors=2, schedule=schedule)
        x, y = operands(1, 200, 90, 64 * 26 + 3)
        p = Product(x, y, form, height=2)
        assert p.again == 0 and error(p.out.numpy(), exact(x, y)) < 3e-7

    def test_statistics(self):
        x, y = operands(1, 140, 96, 70)
        p = Product(x, y, statistics=16, height=2)
        values = (exact(x, y) + p.bias.astype(np.float64))[0].reshape(140, 6, 16)
        np.testing.assert_allclose(p.parts[1].numpy()[0], values.mean(axis=2), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(p.parts[2].numpy()[0], values.var(axis=2) * 16, rtol=1e-5)

    @pytest.mark.parametrize("form", [3, 0])
    def test_ranges(self, form):
        """Lines of any scale are held, and so is what is up to 32 times the samples' largest."""
        x, y = operands(1, 200, 70, 2000)
        power = np.exp2(np.linspace(-60, 60, 70)).astype(np.float32)[None, :, None]
        p = Product(x, y * power, form, height=2)
        true = exact(x, y * power)
        assert p.again == 0
        assert (np.linalg.norm(p.out.numpy() - true, axis=1) / np.linalg.norm(true, axis=1)).max() < 4e-7
        y[0, 3, 70] = 40  # beside the samples
        p = Product(x, y, form, height=2)
        assert p.again == 0 and error(p.out.numpy(), exact(x, y)) < 3e-7
        y[0, ::3] = 0
        p = Product(x, y, form, height=2)
        assert p.again == 0 and np.all(p.out.numpy()[0, :, ::3] == 0) and error(p.out.numpy(), exact(x, y)) < 3e-7

    @pytest.mark.parametrize("form", [3, 0])
    def test_samples_of_zeros(self, form):
        """A line whose only elements lie where no sample does is read as a whole."""
        x, y = operands(1, 200, 70, 2000)
        kept = y[0, 3, 65:67].copy()
        y[0, 3] = 0
        y[0, 3, 65:67] = kept * 1e-20
        p = Product(x, y, form, height=2)
        assert p.again == 0
        true = exact(x, y)[0, :, 3]
        assert np.linalg.norm(p.out.numpy()[0, :, 3] - true) < 4e-7 * np.linalg.norm(true)

    @pytest.mark.parametrize("value", [1e5, np.inf, np.nan])
    @pytest.mark.parametrize("form", [3, 0])
    def test_what_samples_did_not_tell(self, form, value):
        """It is seen, and everything is done again."""
        x, y = operands(1, 200, 70, 2000)
        y[0, 33, 70] = value
        p = Product(x, y, form, height=2)
        true = exact(x, y)
        assert p.again == 1
        np.testing.assert_array_equal(np.isnan(p.out.numpy()), np.isnan(true))
        finite = np.isfinite(true)
        np.testing.assert_array_equal(p.out.numpy()[~finite], true[~finite].astype(np.float32))
        assert error(p.out.numpy()[finite], true[finite]) < 3e-7

    @pytest.mark.parametrize("form", [3, 0])
    def test_losses(self, form):
        """Columns that half numbers cannot hold beside rows of the opposite slope."""
        x, y = operands(1, 130, 70, 200)
        steep = np.exp2(np.linspace(-20, 20, 200)).astype(np.float32)
        p = Product(x * steep, y / steep, form, height=2)
        assert p.again == 1 and error(p.out.numpy(), exact(x * steep, y / steep)) < 3e-7


def pairs(z, tiles_m, tiles_n, high, wide):
    """Every cluster's tiles, in the order of tile_place(): bands of eight, columns outermost."""
    across, down = -(-tiles_n // wide), -(-tiles_m // high)
    for batch in range(z):
        for band in range(0, down, 8):
            for n in range(across):
                for m in range(band, min(band + 8, down)):
                    rows = {batch * tiles_m + i for i in range(m * high, min(m * high + high, tiles_m))}
                    yield rows, {batch * tiles_n + i for i in range(n * wide, min(n * wide + wide, tiles_n))}


def test_who_packs_what():
    """The launch before the product packs all that first tiles need; turns are in the order of need, each tile once."""
    made, rng = library("Fp32", 32, "float", -1), np.random.default_rng(3)
    early, high = (ctypes.c_int64 * 2)(), ctypes.c_int()
    for _ in range(300):
        z, m, n = (int(v) for v in rng.integers(1, [4, 3000, 700]))
        processors, clusters, pace = 2 * int(rng.integers(1, 30)), int(rng.integers(2)), int(rng.choice([1, 5, 10**6]))
        tiles = z * -(-m // 128), z * -(-n // 32)
        turns = sum(tiles)
        order = (ctypes.c_int * turns)()
        given = (z, m, n, processors, clusters, pace, early, ctypes.byref(high), ctypes.c_int64(turns), order)
        made.tile_shares(*given)
        cluster = 1 + clusters
        walk = list(pairs(z, tiles[0] // z, tiles[1] // z, high.value, cluster // high.value))
        at_once = processors // cluster
        assert all(a < early[0] for rows, _ in walk[:at_once] for a in rows)
        assert all(b < early[1] for _, columns in walk[:at_once] for b in columns)
        # What is packed early comes first, in both operands' own order, so that the counter may begin behind it.
        assert {*order[: early[0] + early[1]]} == {*range(0, 2 * early[0], 2), *range(1, 2 * early[1], 2)}
        place = {t: i for i, t in enumerate(order)}
        assert len(place) == turns
        needed = [t for rows, columns in walk for t in (*(2 * r for r in rows), *(2 * c + 1 for c in columns))]
        firsts = [place[t] for t in dict.fromkeys(needed)]
        # Of a band all rows come at once: otherwise nothing is packed before what is needed earlier.
        assert all(later >= earlier - 8 * cluster for earlier, later in zip(firsts, firsts[1:], strict=False))
        late = (tiles[0] - early[0]) * 128 + (tiles[1] - early[1]) * 32
        waves = -(-(len(walk) - at_once) // at_once)
        assert late <= max(0, waves) * processors * pace
