"""The Hopper engine for matrix products on a chip: right against float64 in every layout and range, and how fast.

``python tests/gpu/contract_wgmma.py [check|time|pace|small]`` builds contract_wgmma.cu (or takes
libraries that lie by it; ``build`` alone needs no chip) and prints a line for each case. It needs torch, nvcc and
compute capability 9.0, and of this repository only kernels/ and emit/wgmma.py, which may lie beside it. ``small`` is
for compute-sanitizer. ``pace`` takes half a minute: how much is best packed before the product, how much beside it.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

HERE = Path(__file__).resolve().parent
HOME = HERE if (HERE / "kernels").is_dir() else HERE.parents[1] / "src/crucible"
SCALARS = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 3}


class Build(NamedTuple):
    grade: str
    columns: int  # of a tile
    dtype: torch.dtype


BUILDS = [
    Build("Fp32", 128, torch.float32), Build("Fp32", 64, torch.float32), Build("Fp32", 32, torch.float32),
    Build("Tf32", 128, torch.float32), Build("Native", 128, torch.float16), Build("Native", 128, torch.bfloat16),
]  # fmt: skip
ALL, PACK, MULTIPLY, AGAIN, MMA = range(5)
FLAGS = ["-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler", "-fPIC"]
failures = 0


def build(entry: Build, name: str = "contract_wgmma") -> Path:
    """The library of an entry, made where it does not lie here already."""
    grade, columns, dtype = entry
    stem = f"lib_{name}_{grade}_{columns}_{SCALARS[dtype]}"
    path = HERE / f"{stem}.so"
    if not path.exists():
        module = runpy.run_path(str(HOME / "wgmma.py" if HOME == HERE else HOME / "emit/wgmma.py"))
        instructions = path.with_suffix(".inc")
        instructions.write_text(module["instructions"]([columns]))
        given = [f"-DGRADE={grade}", f"-DCOLUMNS={columns}", f"-DCRUCIBLE_SCALAR={SCALARS[dtype]}",
                 "-DCRUCIBLE_HOPPER=1", f'-DINSTRUCTIONS="{instructions}"']  # fmt: skip
        source = str(HERE / f"{name}.cu")
        subprocess.run(
            ["nvcc", *FLAGS, "-Xptxas", "-v", f"-I{HOME / 'kernels'}", *given, "-o", str(path), source], check=True
        )
        instructions.unlink()
    return path


def load(path: Path) -> ctypes.CDLL:
    made = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    made.product_workspace.restype = ctypes.c_int64
    made.product.argtypes = [pointer] * 7 + [number] * 7 + [pointer, number, number, number, pointer]
    return made


class Product:
    """One product, with everything it writes poisoned beforehand."""

    def __init__(self, library: ctypes.CDLL, columns: int, a: torch.Tensor, b: torch.Tensor, statistics: int = -1,
                 pace: int = -1, height: int = -1):  # fmt: skip
        """``a`` is (z, m, k) and ``b`` (z, n, k), each contiguous or its transpose contiguous."""
        self.library, self.a, self.b, self.statistics = library, a, b, statistics
        self.pace, self.height = pace, height
        self.z, self.m, self.k = a.shape
        self.n = b.shape[1]
        self.form = int(a.is_contiguous()) + 2 * int(b.is_contiguous())
        size = library.product_workspace(self.z, self.m, self.n, self.k, height)
        self.workspace = torch.full((size,), 255, dtype=torch.uint8, device="cuda")
        self.out = torch.full((self.z, self.m, self.n), float("nan"), device="cuda")
        self.bias = torch.randn(self.n, device="cuda").to(a.dtype)
        self.groups = self.n // 16 if statistics == 16 else -(-self.n // columns)
        self.parts = torch.full((3, self.z, self.m, self.groups), float("nan"), device="cuda")

    def __call__(self, what: int = ALL) -> torch.Tensor:
        stream = torch.cuda.current_stream().cuda_stream
        pointers = [t.data_ptr() for t in (self.a, self.b, self.bias, self.out, *self.parts)]
        sizes = self.z, self.m, self.n, self.k, self.groups
        how = what, self.pace, self.height, stream
        error = self.library.product(*pointers, *sizes, self.form, self.statistics, self.workspace.data_ptr(), *how)
        if error:
            raise RuntimeError(f"CUDA error {error}")
        return self.out

    @property
    def again(self) -> int:
        torch.cuda.synchronize()
        return int(self.workspace[:4].view(torch.int32).item())


def relative(x: torch.Tensor, true: torch.Tensor) -> tuple[float, float, float]:
    """The L2 error of the whole, of the worst row and of the worst column, each relative to itself."""
    off = x.double() - true

    def worst(dims: tuple[int, ...]) -> float:
        norms = torch.linalg.vector_norm(true, dim=dims)
        return (torch.linalg.vector_norm(off, dim=dims) / norms.clamp_min(1e-300)).max().item()

    return worst((0, 1, 2)), worst((2,)), worst((1,))


def check(name: str, entry: Build, library: ctypes.CDLL, a: torch.Tensor, b: torch.Tensor, again: int | None = 0,
          statistics: int = -1) -> None:  # fmt: skip
    """Against float64, with torch's own error (and a few roundings) as the yardstick."""
    global failures
    grade, columns, dtype = entry
    p = Product(library, columns, a, b, statistics)
    got = p().clone()
    raised = p.again
    same = all(torch.equal(p().view(torch.int32), got.view(torch.int32)) for _ in range(2))
    true = a.double() @ b.double().transpose(1, 2)
    torch.backends.cuda.matmul.allow_tf32 = grade == "Tf32"
    eager = (a @ b.transpose(1, 2)).float() if dtype == torch.float32 else (a.float() @ b.float().transpose(1, 2))
    torch.backends.cuda.matmul.allow_tf32 = False
    if grade == "Tf32":  # torch may do better where sizes are odd, and need not
        rounded = tf32(a).double() @ tf32(b).double().transpose(1, 2)
        eager = torch.where((rounded - true).abs() > (eager - true).abs(), rounded.float(), eager)
    finite = true.isfinite() & eager.isfinite()
    special = torch.equal(got.isnan(), eager.isnan()) and torch.equal(got[got.isinf()], eager[got.isinf()])
    mine, theirs = (relative(torch.where(finite, x.double(), 0), torch.where(finite, true, 0)) for x in (got, eager))
    floor = {"Fp32": 5e-7, "Tf32": 1e-6, "Native": 2e-6}[grade]
    wrong = [i for i in range(3) if not mine[i] <= max(2 * theirs[i], floor)]
    good = not wrong and same and special and (again is None or raised == again)
    note = ""
    if statistics >= 0:
        width = 16 if statistics == 16 else columns
        shifted = true + p.bias.double()
        for g in range(p.groups):
            piece = shifted[..., g * width : (g + 1) * width]
            count, mean, m2 = (t[..., g].double() for t in p.parts)
            spread = piece.std(dim=-1, unbiased=False) if piece.shape[-1] > 1 else torch.zeros_like(mean)
            size = piece.abs().amax(dim=-1) + 1e-3
            off = max(((mean - piece.mean(dim=-1)) / size).abs().max().item(),
                      (((m2 / count).sqrt() - spread) / size).abs().max().item())  # fmt: skip
            if not (off < (1e-3 if grade == "Tf32" else 1e-5) and (count == piece.shape[-1]).all()):
                good, note = False, f" statistics of group {g} off by {off:.1e}"
    failures += not good
    errors = "/".join(f"{e:.1e}" for e in mine) + " torch " + "/".join(f"{e:.1e}" for e in theirs)
    flags = f"{'' if same else ' NOT REPEATABLE'}{'' if special else ' INF OR NAN DIFFER'} again {raised}"
    print(
        f"{'ok  ' if good else 'FAIL'} {grade} {columns} {name:34s} {errors}{flags}{note}",
        flush=True,
    )


def check_tail(entry: Build, library: ctypes.CDLL, sizes: tuple[int, int, int, int], group: int) -> None:
    """Elements are normalised by the moments of their group, and rows reduced tile by tile, against float64."""
    global failures
    z, m, n, k = sizes
    a, b = (operand(z, lines, k, True, entry.dtype) for lines in (m, n))
    p = Product(library, entry.columns, a, b, 100 + group)
    got = p().clone()
    same = all(torch.equal(p().view(torch.int32), got.view(torch.int32)) for _ in range(2))
    true = a.double() @ b.double().transpose(1, 2) + p.bias.double()
    if group:
        parts = true.view(z, m, n // group, group)
        spread = (parts.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        true = ((parts - parts.mean(-1, keepdim=True)) / spread).view_as(true)
    off = relative(got, true)[0]
    tiles = [got.double()[..., t * entry.columns : (t + 1) * entry.columns] for t in range(p.groups)]
    best, total = torch.stack([t.amax(-1) for t in tiles], -1), torch.stack([t.sum(-1) for t in tiles], -1)
    rows = torch.equal(p.parts[0].double(), best) and (p.parts[1].double() - total).abs().max().item() < 1e-3
    good = same and rows and off < {"Fp32": 1e-5, "Tf32": 3e-3, "Native": 1e-5}[entry.grade]
    failures += not good
    flags = f"{'' if same else ' NOT REPEATABLE'}{'' if rows else ' ROWS DIFFER'}"
    name = f"{entry.grade} {entry.columns} tail {z}x{m}x{n}x{k} groups of {group}"
    print(f"{'ok  ' if good else 'FAIL'} {name}: {off:.1e}{flags}", flush=True)


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to TF32, to nearest even; inf and nan stay."""
    bits = x.contiguous().view(torch.int32)
    return torch.where(x.isfinite(), ((bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000).view(torch.float32), x)


def operand(z: int, lines: int, k: int, along: bool, dtype: torch.dtype) -> torch.Tensor:
    made = torch.randn(z, lines, k, device="cuda").to(dtype)
    return made if along else made.transpose(1, 2).contiguous().transpose(1, 2)


def powers(low: float, high: float, count: int) -> torch.Tensor:
    return torch.pow(10.0, torch.linspace(low, high, count, device="cuda"))


def check_ranges(entry: Build, library: ctypes.CDLL, form: int) -> None:
    """What half numbers cannot hold must be noticed, and what they can must not be done twice."""
    grade = entry[0]
    m, n, k = 300, 400, 3000

    def new(lines: int, bit: int) -> torch.Tensor:
        return operand(1, lines, k, bool(form & bit), torch.float32)

    def laid(x: torch.Tensor, bit: int) -> torch.Tensor:
        return x.contiguous() if form & bit else x.transpose(1, 2).contiguous().transpose(1, 2)

    def case(name: str, a: torch.Tensor, b: torch.Tensor, again: int | None) -> None:
        check(f"{name} layout {form}", entry, library, laid(a, 1), laid(b, 2), again)

    case("rows 1e-20..1e20", new(m, 1) * powers(-20, 20, m)[:, None], new(n, 2), 0)
    case("rows of both 1e-18..1e18", new(m, 1) * powers(-18, 18, m)[:, None],
         new(n, 2) * powers(18, -18, n)[:, None], 0)  # fmt: skip
    case("huge x tiny", new(m, 1) * 1e36, new(n, 2) * 1e-40, 0)
    case("zeros", new(m, 1) * 0, new(n, 2), 0)
    mask = (torch.arange(m, device="cuda") % 3 > 0).float()[:, None]
    case("some zero rows", new(m, 1) * mask, new(n, 2), 0)
    case("sparse", new(m, 1) * (torch.rand(1, m, k, device="cuda") < 0.01), new(n, 2), 0)
    heavy = [new(m, 1) * torch.exp(3 * new(m, 1)), new(n, 2) * torch.exp(3 * new(n, 2))]
    case("lognormal", *heavy, None)
    for q in (2, 4, 6):
        case(f"columns 1e-{q}..1e{q}, inverse", new(m, 1) * powers(-q, q, k), new(n, 2) * powers(q, -q, k),
             0 if q == 2 else None if grade == "Tf32" and q == 4 else 1)  # fmt: skip
    one = new(n, 2).clone()
    one[:, 5, 200:] = 0
    case("one column of losses", new(m, 1) * powers(-9, 9, k), one, 1)
    for value in (float("inf"), float("nan")):
        a = new(m, 1).clone()
        a[0, 7, 11] = value
        case(f"{value} in A", a, new(n, 2), 1)
        b = new(n, 2).clone()
        b[0, n - 1, k - 1] = -value
        case(f"{value} in B", new(m, 1), b, 1)


def check_samples(entry: Build, library: ctypes.CDLL, form: int) -> None:
    """Lines of B are scaled by samples of them where B rolls: what those did not tell must be noticed."""
    m, n, k = 1024, 600, 3000
    a, b = (operand(1, lines, k, bool(form & bit), torch.float32) for lines, bit in ((m, 1), (n, 2)))

    def case(name: str, a: torch.Tensor, b: torch.Tensor, again: int) -> None:
        check(f"samples, {name} layout {form}", entry, library, a, b, again)

    def with_one(value: float) -> torch.Tensor:
        changed = b.clone()
        changed[0, 77, 70] = value
        return changed

    rolls = entry.grade == "Fp32"
    case("columns 1e-18..1e18", a, b * powers(-18, 18, n)[:, None], 0)
    case("zeros", a, b * 0, 0)
    case("one 20 times the others", a, with_one(20 * b.abs().max().item()), 0)
    case("one 1e6 times the others", a, with_one(1e6), int(rolls))
    case("a nan", a, with_one(float("nan")), 1)
    case("sloping lines", a * powers(-6, 6, k), b * powers(6, -6, k), 1)


def check_all(libraries: dict) -> None:
    sizes = [(1, 1, 1, 1), (1, 127, 129, 63), (2, 129, 257, 65), (3, 200, 300, 130), (1, 640, 384, 1000),
             (2, 33, 47, 8200), (1, 300, 500, 20000), (1, 256, 256, 64), (1, 100, 40000, 700),
             (1, 1500, 5000, 200), (6, 1000, 3000, 520), (90, 130, 140, 150)]  # fmt: skip
    rolling = [(1, 1024, 8192, 1000), (3, 1000, 700, 333), (2, 900, 1001, 64), (1, 1280, 1280, 8192)]
    for entry, library in libraries.items():
        grade, columns, dtype = entry
        for z, m, n, k in [*(sizes if columns == 128 else [*sizes[2:4], sizes[-2]]), *rolling]:
            for form in range(4) if z * m * n < 2.2e6 else (3, 2):
                a, b = operand(z, m, k, bool(form & 1), dtype), operand(z, n, k, bool(form & 2), dtype)
                check(f"{z}x{m}x{n}x{k} layout {form}", entry, library, a, b, None if min(m, n, k) == 1 else 0)
        for z, m, n, k in ((1, 200, 272, 300), (2, 129, 512, 1100)):
            for statistics in (16, 0):
                a, b = operand(z, m, k, True, dtype), operand(z, n, k, True, dtype)
                check(f"{z}x{m}x{n}x{k} statistics {statistics}", entry, library, a, b, 0, statistics)
        for sizes_, group in (((1, 200, 272, 300), 16), ((2, 129, 512, 1100), 4), ((1, 1024, 8192, 512), 16),
                              ((2, 129, 512, 130), 32), ((1, 300, 500, 200), 0)):  # fmt: skip
            check_tail(entry, library, sizes_, group)
        if grade == "Native":
            continue
        for form in (3, 0) if columns == 128 else (3,):
            check_ranges(entry, library, form)
            check_samples(entry, library, form)
    print("all right" if not failures else f"{failures} FAILED", flush=True)


def median(f: Callable[[], object], n: int = 15) -> str:
    """Milliseconds: the median and the least of n, with L2 flushed before each."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    f()
    pairs = []
    for _ in range(n):
        flush.zero_()
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        f()
        pair[1].record()
        pairs.append(pair)
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairs)
    return f"{times[n // 2]:.4f} ({times[0]:.4f})"


def time_all(libraries: dict) -> None:
    m, n, k = 1024, 8192, 8192
    for entry, library in libraries.items():
        grade, columns, dtype = entry
        a, b = torch.rand(1, m, k, device="cuda").to(dtype), operand(1, n, k, True, dtype) * k**-0.5
        check(f"1x{m}x{n}x{k}", entry, library, a, b, 0)
        for statistics, form in [(-1, 3), (16, 3), *([(-1, 0)] if entry == BUILDS[0] else [])]:
            laid = [x if form else x.transpose(1, 2).contiguous().transpose(1, 2) for x in (a, b)]
            p = Product(library, columns, *laid, statistics)
            p()
            parts = {"all": ALL, "pack": PACK, "multiply": MULTIPLY, "again": AGAIN}
            text = "  ".join(f"{name} {median(partial(p, what))}" for name, what in parts.items())
            print(f"time {grade} {columns} {dtype} statistics {statistics} layout {form}: {text}", flush=True)
        print(f"time {grade} {columns} {dtype} mma engine: {median(partial(p, MMA), 5)}", flush=True)
    a, b = torch.rand(m, k, device="cuda"), torch.randn(n, k, device="cuda") * k**-0.5
    for dtype, tf32 in ((torch.float32, False), (torch.float32, True), (torch.float16, False), (torch.bfloat16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        x, y = a.to(dtype), b.to(dtype)
        took = median(partial(torch.nn.functional.linear, x, y))
        print(f"time torch linear {dtype} tf32 {tf32}: {took}", flush=True)


def time_paces(entry: Build, library: ctypes.CDLL) -> None:
    """Lines that idle warps are trusted with for each tile: none, some, all that the first tiles can do without."""
    sizes = [(1024, 8192, 8192, 3), (1024, 8192, 8192, 0), (4096, 4096, 4096, 3), (8192, 1024, 2048, 3)]
    sizes += [(256, 16384, 4096, 3)]
    for m, n, k, form in sizes:
        a, b = (operand(1, lines, k, bool(form), entry.dtype) for lines in (m, n))
        first = None
        for pace in (0, 4, 8, 12, 16, 24, 32, 10**6):
            p = Product(library, entry.columns, a, b, 16 if form == 3 else -1, pace)
            out = p().clone()
            first = out if first is None else first
            same = "same" if torch.equal(first, out) else "DIFFERENT"
            parts = {"all": ALL, "pack": PACK}
            text = "  ".join(f"{name} {median(partial(p, what), 9)}" for name, what in parts.items())
            p()  # leaves everything packed: the product alone has nothing to pack
            text += f"  product of packed {median(partial(p, MULTIPLY), 9)}"
            print(f"pace {entry.grade} {m}x{n}x{k} layout {form} {pace:7d}: {text} {same}", flush=True)


def main() -> None:
    torch.manual_seed(int(os.environ.get("SEED", "7")))
    known = {"check", "time", "pace", "small", "build"}
    wanted = sys.argv[1:] if known & {*sys.argv} else ["check", "time", *sys.argv[1:]]
    needed = BUILDS[:1] if wanted == ["pace"] else BUILDS
    with ThreadPoolExecutor(1 if wanted == ["build"] else len(needed)) as pool:
        paths = list(pool.map(build, needed))
    if wanted == ["build"]:
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    libraries = {entry: load(path) for entry, path in zip(needed, paths)}
    if "pace" in wanted:
        time_paces(BUILDS[0], libraries[BUILDS[0]])
    if "check" in wanted:
        check_all(libraries)
    if "small" in wanted:
        for entry in (BUILDS[0], BUILDS[3], BUILDS[4]):
            for form in (3, 0):
                a, b = operand(2, 140, 200, bool(form), entry.dtype), operand(2, 150, 200, bool(form), entry.dtype)
                check("small", entry, libraries[entry], a, b, 0)
        a, b = operand(1, 130, 100, True, torch.float32), operand(1, 40000, 100, True, torch.float32)
        check("small, several rounds", BUILDS[0], libraries[BUILDS[0]], a, b, 0)
        for form in (3, 0):
            a, b = operand(1, 900, 200, bool(form), torch.float32), operand(1, 2500, 200, bool(form), torch.float32)
            check("small, rolling", BUILDS[0], libraries[BUILDS[0]], a, b, 0)
        for sizes, group in (((2, 140, 272, 200), 16), ((1, 900, 512, 200), 16), ((1, 150, 200, 100), 0)):
            check_tail(BUILDS[0], libraries[BUILDS[0]], sizes, group)
    if "time" in wanted:
        time_all(libraries)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
