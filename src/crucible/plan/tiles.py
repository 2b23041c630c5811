"""Tile configurations of the contraction engines in kernels/contract.cuh, as data, and the choice among them.

A tile is rows x cols of the result. Every shape exists for both engines, so that code compiled for several element
types can change the engine and keep the tiles (and with them the layout of partial results).
"""

from __future__ import annotations

from dataclasses import dataclass

SHARED_LIMIT = 99 * 1024  # bytes a block may ask for on every chip from 8.6 to 12.0
GRADES = {"tf32": "Tf32", "fp32": "Fp32", "native": "Native"}
DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class SimtTile:
    """`Simt<rows, cols, depth, row_values, col_values>`: each thread sums row_values x col_values elements."""

    rows: int
    cols: int
    depth: int
    row_values: int
    col_values: int

    def __post_init__(self) -> None:
        if self.rows % self.row_values or self.cols % self.col_values or self.row_values % 4 or self.col_values % 4:
            raise ValueError(f"{self}: a thread's values do not divide the tile, or are no multiple of 4")
        if self.cols % 32 or 128 % self.depth or self.threads % 32 or self.threads > 1024:
            raise ValueError(f"{self}: bad columns, depth or thread count")
        if not all(_shared_evenly(self.threads, lines, self.depth, along_k) for lines, along_k in self._operands()):
            raise ValueError(f"{self}: the threads do not divide the operands' tiles evenly")
        if self.shared_bytes(8) > SHARED_LIMIT:
            raise ValueError(f"{self}: {self.shared_bytes(8)} bytes of shared memory")

    def _operands(self) -> list[tuple[int, bool]]:
        return [(lines, along_k) for lines in (self.rows, self.cols) for along_k in (True, False)]

    @property
    def threads(self) -> int:
        return (self.rows // self.row_values) * (self.cols // self.col_values)

    def shared_bytes(self, accum_bytes: int = 4) -> int:
        """What a block asks for: two buffers, or the rows on their way out."""
        pad = 16 // accum_bytes
        buffers = 2 * self.depth * (self.rows + self.cols + 2 * pad)
        return accum_bytes * max(buffers, self.rows // self.row_values * (self.cols + 8))

    def text(self, grade: str = "") -> str:
        """The C++ type. Grades are all the same to this engine: it computes in accum."""
        del grade
        return f"Simt<{self.rows}, {self.cols}, {self.depth}, {self.row_values}, {self.col_values}>"


@dataclass(frozen=True)
class MmaTile:
    """`Mma<rows, cols, ..., warp_rows, warp_cols, grade>`: each warp sums warp_rows x warp_cols elements.

    ``depth`` is that of grades tf32 and fp32; native keeps two elements in a word and takes 32.
    """

    rows: int
    cols: int
    depth: int
    warp_rows: int
    warp_cols: int

    def __post_init__(self) -> None:
        if self.rows % self.warp_rows or self.cols % self.warp_cols or self.warp_rows % 16 or self.warp_cols % 8:
            raise ValueError(f"{self}: a warp's part does not divide the tile, or is no multiple of 16 x 8")
        if self.cols % 32 or self.depth % 16 or self.threads > 1024:
            raise ValueError(f"{self}: bad columns, depth or thread count")
        for grade in GRADES:
            words = self.grade_depth(grade) // (2 if grade == "native" else 1)
            for lines in (self.rows, self.cols):
                even = _shared_evenly(self.threads, lines, words, True)
                if not (even and _shared_evenly(self.threads, lines, words // 4, False)):
                    raise ValueError(f"{self}: the threads do not divide the operands' tiles evenly")
            if self.shared_bytes(grade) > SHARED_LIMIT:
                raise ValueError(f"{self}: {self.shared_bytes(grade)} bytes of shared memory in grade {grade}")

    @property
    def threads(self) -> int:
        return (self.rows // self.warp_rows) * (self.cols // self.warp_cols) * 32

    def grade_depth(self, grade: str) -> int:
        return 32 if grade == "native" else self.depth

    def shared_bytes(self, grade: str) -> int:
        """What a block asks for: two buffers, or the rows on their way out."""
        bytes_each = 2 if grade == "native" else 4
        buffers = 2 * (self.rows + self.cols) * self.grade_depth(grade) * bytes_each
        return max(buffers, self.rows // self.warp_rows * 16 * (self.cols + 8) * 4)

    def text(self, grade: str) -> str:
        """The C++ type."""
        sizes = f"{self.rows}, {self.cols}, {self.grade_depth(grade)}, {self.warp_rows}, {self.warp_cols}"
        return f"Mma<{sizes}, Grade::{GRADES[grade]}>"

    @property
    def simt(self) -> SimtTile:
        """The tile of the same shape for types and chips without tensor cores."""
        return next(t for t, _ in SIMT_TILES if (t.rows, t.cols) == (self.rows, self.cols))


Tile = SimtTile | MmaTile


def _shared_evenly(threads: int, lines: int, runs: int, along_k: bool) -> bool:
    """Whether the threads divide a tile of lines x runs (the static_assert of Staged in contract_operand.cuh)."""
    side = threads // min(runs, 16) if along_k else max(threads // runs, min(lines, 32))
    return side > 0 and threads % side == 0 and lines % side == 0 and runs % (threads // side) == 0


# With each tile, how fast it is per element, relative to the largest: smaller tiles load more for each operation.
SIMT_TILES = (
    (SimtTile(128, 128, 8, 8, 8), 1.0),
    (SimtTile(128, 64, 8, 8, 8), 0.9),
    (SimtTile(64, 64, 16, 4, 4), 0.7),
    (SimtTile(32, 128, 16, 4, 8), 0.6),
    (SimtTile(128, 32, 16, 8, 4), 0.6),
)
MMA_TILES = (
    (MmaTile(128, 128, 32, 64, 32), 1.0),
    (MmaTile(128, 64, 16, 64, 32), 0.8),
    (MmaTile(64, 64, 16, 32, 32), 0.6),
    (MmaTile(32, 128, 16, 32, 32), 0.5),
    (MmaTile(128, 32, 16, 32, 32), 0.5),
)
# As wide as a box of pixels (plan/boxes.py): chosen with one, never on their own.
BOX_TILES = (SimtTile(32, 256, 8, 4, 8), MmaTile(64, 256, 16, 32, 64))
# Products in which an operand has few lines have a way of their own, where these hold at run time: those of
# kernels/contract_few.cuh.
FEW_LINES, FEW_DEPTH, FEW_ELEMENTS = 16, 256, 1 << 15
PROCESSORS = 132  # of an H200; other large chips are near
# On an H200, measured at 1024 x 8192 x 8192: operations and bytes in a second, and seconds for two more launches.
MMA_RATE, WGMMA_RATE, PACK_RATE, LAUNCHES = 41e12, 258e12, 3.7e12, 1e-5


def packing_pays(tile: Tile, rows: int, cols: int, depth: int, batches: int) -> bool:
    """Whether kernels/contract_wgmma.cuh, which packs both operands, should beat this tile in grade fp32."""

    def operations(high: int) -> int:
        return 2 * batches * -(-rows // high) * high * -(-cols // tile.cols) * tile.cols * depth

    packing = 8 * batches * (rows + cols) * depth / PACK_RATE + LAUNCHES
    return isinstance(tile, MmaTile) and operations(128) / WGMMA_RATE + packing < operations(tile.rows) / MMA_RATE


def few_lines(rows: int, cols: int, depth: int, batches: int) -> bool:
    """Whether a product has an operand with few lines, and goes kernels/contract_few.cuh's way."""
    few, many = sorted((rows, cols))
    return few <= FEW_LINES and depth >= FEW_DEPTH and batches * many * depth >= FEW_ELEMENTS


def choose(
    engine: str, dtype: str, grade: str, rows: int, cols: int, depth: int, batches: int = 1
) -> SimtTile | MmaTile:
    """The tile that should take the least time for these (typical) sizes. ``engine`` is "simt" or "mma"."""
    return ranked(engine, dtype, grade, rows, cols, depth, batches)[0]


def ranked(
    engine: str, dtype: str, grade: str, rows: int, cols: int, depth: int, batches: int = 1
) -> list[SimtTile | MmaTile]:
    """All tiles of an engine, the fastest first."""
    del grade  # so far all the same
    if dtype not in DTYPES or engine not in ("simt", "mma"):
        raise ValueError(f"no engine {engine!r} for {dtype!r}")
    table: tuple[tuple[Tile, float], ...]
    if engine == "simt" or dtype == "float64":
        table = SIMT_TILES
    else:
        table = MMA_TILES

    def cost(entry: tuple[Tile, float]) -> float:
        tile, speed = entry
        blocks = -(-rows // tile.rows) * -(-cols // tile.cols) * batches
        steps = -(-depth // tile.depth) * tile.depth
        return -(-blocks // PROCESSORS) * tile.rows * tile.cols * max(steps, 1) / speed

    return [tile for tile, _ in sorted(table, key=cost)]
