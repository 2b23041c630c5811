"""Matrix products of few rows on a chip: right against float64, and where the way of few rows stops paying.

``python tests/gpu/contract_few.py [check|time|shallow]`` builds contract_few.cu as contract_wgmma.py does its own
(``build`` alone needs no chip) and prints a line for each case. ``time`` sets few rows beside Hopper's instructions,
mma, ordinary cores and torch for 1 to 64 rows: FEW_LINES of kernels/contract_few.cuh (and plan/tiles.py) should be the
last count at which few rows win. ``shallow`` times the gradient of a weight for few rows: a product of little depth,
of which the result is all the bytes.
"""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from contract_wgmma import ALL, MMA, Build, Product, build, load, median, operand, relative  # noqa: E402

BUILDS = [Build("Fp32", 128, torch.float32), Build("Native", 128, torch.float16), Build("Native", 128, torch.bfloat16)]
ROWS, COLS, SIMT = range(3)
failures = 0


class Few(Product):
    """The same product by the ways of contract_few.cu."""

    def few(self, what: int) -> torch.Tensor:
        pointers = [t.data_ptr() for t in (self.a, self.b, self.bias, self.out, *self.parts)]
        sizes = (self.z, self.m, self.n, self.k, self.groups, self.form, self.statistics)
        needed = self.library.few(*pointers, *sizes, None, what, None)
        if self.workspace.numel() < needed:
            self.workspace = torch.full((needed,), 255, dtype=torch.uint8, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        error = self.library.few(*pointers, *sizes, self.workspace.data_ptr(), what, stream)
        if error:
            raise RuntimeError(f"CUDA error {error}")
        return self.out


def opened(path: Path) -> ctypes.CDLL:
    made = load(path)
    pointer, number = ctypes.c_void_p, ctypes.c_int
    made.few.restype = ctypes.c_int64
    made.few.argtypes = [pointer] * 7 + [number] * 7 + [pointer, number, pointer]
    return made


def check(entry: Build, library: ctypes.CDLL) -> None:
    """Against float64, with torch's own error in float32 (and a few roundings) as the yardstick; twice the same."""
    global failures
    sizes = [(1, 1, 8192, 8192), (1, 2, 1000, 4096), (2, 3, 257, 1031), (1, 8, 4096, 4096), (5, 16, 200, 513),
             (1, 17, 8192, 1024), (1, 64, 300, 2000), (1, 4, 40000, 300), (1, 1, 16, 300000), (1, 7, 33, 1),
             ]  # fmt: skip
    for z, few, many, k in sizes:
        for form in range(4):
            for what in (ROWS, COLS):
                m, n = (few, many) if what == ROWS else (many, few)
                a, b = (operand(z, lines, k, bool(form & bit), entry.dtype) for lines, bit in ((m, 1), (n, 2)))
                p = Few(library, entry.columns, a, b)
                got = p.few(what).clone()
                p.out.fill_(float("nan"))
                same = torch.equal(p.few(what), got)
                true = a.double() @ b.double().transpose(1, 2)
                mine, theirs = (relative(x, true)[0] for x in (got, a.float() @ b.float().transpose(1, 2)))
                good = same and mine <= max(2 * theirs, 5e-7)
                failures += not good
                name = f"{entry.dtype} {z}x{m}x{n}x{k} layout {form} few {'rows' if what == ROWS else 'columns'}"
                note = "" if same else " NOT REPEATABLE"
                print(f"{'ok  ' if good else 'FAIL'} {name:60s} {mine:.1e} torch {theirs:.1e}{note}", flush=True)
    a, b = operand(1, 3, 700, True, entry.dtype), operand(1, 512, 700, True, entry.dtype)
    p = Few(library, entry.columns, a, b, 16)
    p.few(ROWS)
    grouped = (a.double() @ b.double().transpose(1, 2) + p.bias.double()).view(1, 3, 32, 16)
    off = (p.parts[1] - grouped.mean(-1)).abs().max().item()
    spread = (p.parts[2] / 16 - grouped.var(-1, unbiased=False)).abs().max().item() / grouped.var(-1).max().item()
    good = off < 1e-3 and spread < 1e-4 and bool((p.parts[0] == 16).all())
    failures += not good
    print(f"{'ok  ' if good else 'FAIL'} {entry.dtype} statistics off by {off:.1e}, {spread:.1e}", flush=True)


def time_rows(entry: Build, library: ctypes.CDLL) -> None:
    """Milliseconds, the median and the least; the large operand's bytes alone beside them, at 4.2 TB/s."""
    for n, k in ((8192, 8192), (4096, 4096), (1000, 2048)):
        for form in (3, 1):
            b = operand(1, n, k, bool(form & 2), entry.dtype)
            floor = n * k * b.element_size() / 4.2e9
            for m in (1, 2, 4, 8, 16, 32, 64):
                a = operand(1, m, k, True, entry.dtype)
                p = Few(library, entry.columns, a, b)
                calls = {"few": partial(p.few, ROWS), "wgmma": partial(p, ALL), "mma": partial(p, MMA),
                         "simt": partial(p.few, SIMT), "torch": partial(torch.matmul, a[0], b[0].t())}  # fmt: skip
                text = "  ".join(f"{name} {median(call)}" for name, call in calls.items())
                layout = "along k" if form == 3 else "along n"
                print(f"time {entry.dtype} {m}x{n}x{k} weights {layout}: {text}  bytes {floor:.4f}", flush=True)


def time_shallow(entry: Build, library: ctypes.CDLL) -> None:
    """The gradient of a weight: both operands lie along their lines, and the depth is the number of rows."""
    m = n = 8192
    for k in (1, 2, 4, 8, 16, 32):
        a, b = operand(1, m, k, False, entry.dtype), operand(1, n, k, False, entry.dtype)
        p = Few(library, entry.columns, a, b)
        calls = {"wgmma": partial(p, ALL), "mma": partial(p, MMA), "simt": partial(p.few, SIMT),
                 "torch": partial(torch.matmul, a[0], b[0].t())}  # fmt: skip
        text = "  ".join(f"{name} {median(call)}" for name, call in calls.items())
        print(f"shallow {entry.dtype} {m}x{n}x{k}: {text}  bytes (of float32) {m * n * 4 / 4.2e9:.4f}", flush=True)


def main() -> None:
    torch.manual_seed(7)
    wanted = sys.argv[1:] or ["check", "time", "shallow"]
    with ThreadPoolExecutor(1 if wanted == ["build"] else len(BUILDS)) as pool:
        paths = list(pool.map(partial(build, name="contract_few"), BUILDS))
    if wanted == ["build"]:
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    for entry, path in zip(BUILDS, paths):
        library = opened(path)
        for name, step in (("check", check), ("time", time_rows), ("shallow", time_shallow)):
            if name in wanted:
                step(entry, library)
    if failures:
        print(f"{failures} FAILED")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
