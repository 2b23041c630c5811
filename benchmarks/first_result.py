"""How long a fused file takes from import to its first result on a GPU: cold (nothing built yet) and warm.

    python benchmarks/first_result.py fused/*.py [--backward] [--jobs 1]

Each file runs in a process of its own with a build folder of its own. Seconds are of the whole: importing torch, the
file, building its kernels, the first forward (and backward) at the declared size, until the GPU is done.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import json, sys, time
start = time.perf_counter()
import torch
torch.zeros(1, device="cuda")
ready = time.perf_counter()
sys.path.insert(0, sys.argv[1])
module = __import__(sys.argv[2])
model = module.ModelNew(*module.get_init_inputs()).cuda()
with torch.device("cuda"):
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in module.get_inputs()]
torch.cuda.synchronize()
made = time.perf_counter()
out = model(*inputs)
torch.cuda.synchronize()
first = time.perf_counter()
if sys.argv[3] == "backward":
    (out if isinstance(out, torch.Tensor) else out[0]).sum().backward()
    torch.cuda.synchronize()
end = time.perf_counter()
print(json.dumps(dict(torch=ready - start, file=made - ready, forward=first - made, backward=end - first)))
"""


def measure(path: Path, backward: bool, cache: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path.parent), path.stem, "backward" if backward else "forward"],
        capture_output=True, text=True, check=False, env={**os.environ, "TORCH_EXTENSIONS_DIR": cache},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{path.name}: {(done.stderr or done.stdout)[-1500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--backward", action="store_true", help="also the first backward")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="build here and keep it [default: a temporary folder]")
    arguments = parser.parse_args()

    def both(path: Path) -> str:
        with tempfile.TemporaryDirectory() as folder:
            cache = str(arguments.cache or folder)
            lines = []
            for name in ("cold", "warm"):
                try:
                    t = measure(path, arguments.backward, cache)
                except RuntimeError as error:
                    return str(error)
                parts = ", ".join(f"{k} {v:.1f}" for k, v in t.items() if v >= 0.05)
                lines.append(f"{path.stem} {name}: {sum(t.values()):.1f} s ({parts})")
            return "\n".join(lines)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for text in pool.map(both, arguments.files):
            print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
