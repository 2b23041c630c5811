"""Run fused files under compute-sanitizer on a real GPU: forward and backward, at small odd sizes, in several types.

    python tests/gpu/sanitize_fused.py fused/*.py [--tools memcheck racecheck] [--dtypes float32 float16] [--jobs 4]
                                                  [--whole 2 [--spatial 0.25]]

Sizes of the problem's inputs are made small where the Model leaves them free; with --whole so many samples at their
declared extents follow, or at a part of them, without gradients: some kernels are for such images alone. Exit code 1
if a tool reports anything.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch
from crucible.problem import import_file, load_problem
from crucible.prove.small import find_small
from crucible.race import values
problem = load_problem(Path(sys.argv[2]))
module = import_file(Path(sys.argv[3]), "fused")
dtype = getattr(torch, sys.argv[4])
model = module.ModelNew(*problem.init_inputs).cuda().to(dtype)
find_small(problem)
for sizes in (problem.small_sizes, [max(s - 1, 1) for s in problem.small_sizes]):
    inputs = [x.cuda().to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
              for x in problem.inputs(problem.shapes_for(sizes), 1)]
    leaves = [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
    out = model(*problem.arguments(leaves))
    (out if isinstance(out, torch.Tensor) else out[0]).sum().backward()
    torch.cuda.synchronize()
    print("ran", [tuple(x.shape) for x in leaves if isinstance(x, torch.Tensor)])
if int(sys.argv[5]):
    shapes = values.scaled_shapes(problem, int(sys.argv[5]), float(sys.argv[6]))
    inputs = values.make_inputs(problem, shapes, 1, dtype)
    with torch.no_grad():
        model(*inputs)
    torch.cuda.synchronize()
    print("ran", shapes, "without gradients")
"""


def run(
    tool: str, problem: Path, fused: Path, dtype: str, limit: float, whole: int, spatial: float
) -> tuple[str, bool, str]:
    given = [str(ROOT / "src"), str(problem), str(fused), dtype, str(whole), str(spatial)]
    plain = [sys.executable, "-c", PROGRAM, *given]
    name = f"{fused.stem} {dtype} {tool}"
    try:
        subprocess.run(plain, capture_output=True, timeout=limit, check=False)  # builds what is not built yet
        options = ["--tool", tool, "--error-exitcode", "9", "--kernel-name", "kernel_substring=crucible"]
        command = ["compute-sanitizer", *options, *plain]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return name, False, f"still running after {limit:.0f} s"
    said = (done.stdout + done.stderr).strip()
    clean = done.returncode == 0 and "ran" in said and ("0 errors" in said or "0 hazards" in said)
    return name, clean, said[-800:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="fused files named like their problem")
    parser.add_argument("--tools", nargs="+", default=["memcheck", "racecheck"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16"])
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--limit", type=float, default=150)
    parser.add_argument("--whole", type=int, default=0, help="samples at declared extents, without gradients")
    parser.add_argument("--spatial", type=float, default=1.0, help="of those, a part of the declared extents")
    arguments = parser.parse_args()
    bad, whole, spatial = 0, arguments.whole, arguments.spatial
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [
            pool.submit(run, tool, ROOT / "problems" / f.name, f, dtype, arguments.limit, whole, spatial)
            for dtype in arguments.dtypes
            for f in arguments.files
            for tool in arguments.tools
        ]
        for future in concurrent.futures.as_completed(waiting):
            name, clean, said = future.result()
            print("clean" if clean else "NOT CLEAN", name, said.splitlines()[-1] if clean else said, flush=True)
            bad += not clean
    print(f"{len(waiting) - bad} of {len(waiting)} clean")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
