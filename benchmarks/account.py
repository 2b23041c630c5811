"""What limits each kernel of a call, by Nsight Compute: for those who write kernels. Needs a GPU and ncu.

    python benchmarks/account.py problems/conv_transpose2d.py new/conv_transpose2d.py [REF NEW ...]
    python benchmarks/account.py REF NEW --spatial 2 --batch 16 --log ncu.csv

One call without gradients, after one that warms up, at the declared sizes or others. For each kernel its time, how much
of the rates of device memory, L2 and the first level it takes, how many issue slots it uses, the warps that could go on
in a cycle, registers, and which parts of L2 and of the first level are the busiest. Clocks are left alone, and each
kernel runs several times, by itself: its times are for comparisons here, races have others. --log keeps what ncu said.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import measuring  # noqa: E402

from crucible.problem import import_file, load_problem  # noqa: E402
from crucible.race import values  # noqa: E402

SECTIONS = "SpeedOfLight ComputeWorkloadAnalysis MemoryWorkloadAnalysis SchedulerStats LaunchStats".split()
PARTS = ("breakdown:lts__throughput.avg.pct_of_peak_sustained_elapsed",
         "breakdown:l1tex__throughput.avg.pct_of_peak_sustained_active")  # fmt: skip
# Columns: a title, the metric's name in ncu's sections, how many of its base unit are one, and the format.
COLUMNS = (
    ("ms", "Duration", 1e6, "8.3f"),
    ("DRAM %", "DRAM Throughput", 1.0, "6.1f"),
    ("L2 %", "L2 Cache Throughput", 1.0, "5.1f"),
    ("L1 %", "L1/TEX Cache Throughput", 1.0, "5.1f"),
    ("issue %", "Issue Slots Busy", 1.0, "7.1f"),
    ("eligible", "Eligible Warps Per Scheduler", 1.0, "8.2f"),
    ("registers", "Registers Per Thread", 1.0, "9.0f"),
)
BUSIEST = 4
NO_RIGHTS = "ERR_NVGPUCTRPERM"


@dataclass
class Kernel:
    """One launch, with all its metrics that are numbers."""

    name: str
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def short(self) -> str:
        found = re.search(r"(\w+)\s*[<(]", self.name)
        return found.group(1) if found else self.name

    def busiest(self) -> list[tuple[str, float]]:
        """The parts that are nearest to their limits, in percent."""
        parts = {
            name.removeprefix("breakdown:").split(".")[0]: value
            for name, value in self.metrics.items()
            if ".pct_of_peak_sustained_" in name
        }
        return sorted(parts.items(), key=lambda part: -part[1])[:BUSIEST]


def kernels_of(text: str) -> list[Kernel]:
    """What ``ncu --csv --page details`` said, after whatever the program itself printed."""
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID",')), None)
    if first is None:
        raise ValueError("ncu gave no table: " + ("\n".join(lines[-8:]) or "it said nothing"))
    found: dict[str, Kernel] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[first:]))):
        name, value = row.get("Metric Name"), row.get("Metric Value")
        if not row.get("Kernel Name") or not name or not value:
            continue  # a rule's line
        kernel = found.setdefault(row["ID"], Kernel(row["Kernel Name"]))
        try:
            # The same name may stand for bytes in a second beside a percentage: the first is the speed of light's.
            kernel.metrics.setdefault(name, float(value.replace(",", "")))
        except ValueError:  # a word, such as a cache's configuration
            continue
    return list(found.values())


def table(kernels: list[Kernel]) -> str:
    wide = max([len(k.short) for k in kernels] + [6])
    lines = [f"{'kernel':{wide}}  " + "  ".join(f"{title:>{int(form.split('.')[0])}}" for title, _, _, form in COLUMNS)]
    for kernel in kernels:
        cells = []
        for _, name, unit, form in COLUMNS:
            value = kernel.metrics.get(name)
            cells.append(f"{'-':>{int(form.split('.')[0])}}" if value is None else f"{value / unit:{form}}")
        lines.append(f"{kernel.short:{wide}}  " + "  ".join(cells))
        parts = ", ".join(f"{part} {value:.0f} %" for part, value in kernel.busiest())
        lines += [f"{'':{wide}}    busiest: {parts}"] * bool(parts)
    return "\n".join(lines)


def call(reference: Path, new: Path, batch: int | None, spatial: float) -> None:
    """What ncu looks at: the second call."""
    problem = load_problem(reference)
    fused = import_file(new, f"account_{new.stem}").ModelNew(*problem.init_inputs).cuda()
    shapes = values.scaled_shapes(problem, batch, spatial)
    inputs = values.make_inputs(problem, shapes, 0, torch.float32)
    profiler = torch.cuda.cudart()
    with torch.no_grad():
        for looked_at in (False, True):
            torch.cuda.synchronize()
            if looked_at:
                profiler.cudaProfilerStart()
            fused(*inputs)
            torch.cuda.synchronize()
    profiler.cudaProfilerStop()


def command(ncu: str, reference: Path, new: Path, batch: int | None, spatial: float) -> list[str]:
    sections = [word for section in SECTIONS for word in ("--section", section)]
    program = [sys.executable, __file__, str(reference), str(new), "--spatial", str(spatial), "--called"]
    return [
        ncu, "--csv", "--page", "details", "--print-units", "base", "--clock-control", "none",
        "--profile-from-start", "off", *sections, "--metrics", ",".join(PARTS), *program,
        *(["--batch", str(batch)] if batch else []),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="REF NEW [REF NEW ...]")
    parser.add_argument("--batch", type=int, help="another batch than the declared one")
    parser.add_argument("--spatial", type=float, default=1.0, help="factor for the extents of images")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each file [default: %(default)s]")
    parser.add_argument("--log", type=Path, help="append all that ncu said")
    parser.add_argument("--called", action="store_true", help=argparse.SUPPRESS)  # by ncu
    given = parser.parse_args()
    if len(given.files) % 2:
        parser.error("files come in pairs: REF NEW")
    pairs = list(zip(given.files[::2], given.files[1::2]))
    if given.called:
        call(*pairs[0], given.batch, given.spatial)
        return 0
    ncu = shutil.which("ncu")
    if ncu is None:
        parser.error("this needs ncu, Nsight Compute's command line, on the PATH")
    if not torch.cuda.is_available():
        parser.error("this needs a GPU")
    print(", ".join(f"{k} {v}" for k, v in measuring.environment().items()), flush=True)
    failed = 0
    for reference, new in pairs:
        print(f"\n{reference.stem}, extents times {given.spatial:g}, batch {given.batch or 'as declared'}", flush=True)
        words = command(ncu, reference, new, given.batch, given.spatial)
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=given.limit, check=False)
            said = done.stdout + done.stderr
            if given.log:
                with given.log.open("a", encoding="utf-8") as log:
                    log.write(said)
            if NO_RIGHTS in said:
                raise ValueError(f"this user may not read the GPU's counters: NVIDIA's page on {NO_RIGHTS} says more")
            if done.returncode:
                raise ValueError(f"ncu ended with {done.returncode}: {said[-2000:]}")
            print(table(kernels_of(done.stdout)), flush=True)
        except subprocess.TimeoutExpired:
            print(f"still running after {given.limit:.0f} s: --limit gives it more", file=sys.stderr)
            failed += 1
        except ValueError as error:
            print(error, file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
