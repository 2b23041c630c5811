"""Do medians of a race agree with plain CUDA events? Records of races beside a loop that shares no code with them.

    python tests/gpu/race_agrees.py FOLDER      of records, as tools/make_gallery.py --race writes them

For eager and for the candidate of each record: the median of the race, that of a loop of fresh inputs, a flushed cache
and an event before and after the call, and by how much they differ. Exit code 1 where one differs by more than 3 %.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
AGREE = 0.03
ROUNDS, SAMPLES, WARM = 8, 4, 2


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.parent.name + "_" + path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def median(model: torch.nn.Module, space: ModuleType, flush: torch.Tensor) -> float:
    """Milliseconds of a call without gradients."""
    taken = []
    for turn in range(ROUNDS):
        for k in range(WARM + SAMPLES):
            torch.manual_seed(100 * turn + k)
            with torch.device("cuda"):
                inputs = [t.cuda() if isinstance(t, torch.Tensor) else t for t in space.get_inputs()]
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            model(*inputs)
            end.record()
            torch.cuda.synchronize()
            taken += [start.elapsed_time(end)] * (k >= WARM)
    torch.cuda.empty_cache()
    return statistics.median(taken)


def compare(record: dict[str, Any], flush: torch.Tensor) -> bool:
    (forward,) = (p for p in record["passes"] if p["what"] == "forward")
    rows = {r["contender"]: r for r in forward["rows"] if r.get("times")}
    reference, candidate = module(ROOT / record["reference"]), module(ROOT / record["candidates"][0]["file"])
    arguments = reference.get_init_inputs()
    torch.manual_seed(0)
    models = {"eager": reference.Model(*arguments).cuda()}
    models[record["candidates"][0]["name"]] = candidate.ModelNew(*arguments).cuda()
    right = True
    with torch.no_grad():
        for name, model in models.items():
            raced, plain = rows[name]["times"]["median"], median(model, reference, flush)
            off = raced / plain - 1
            right = right and abs(off) < AGREE
            title = f"{Path(record['reference']).stem} {name}"
            print(f"{title}: race {raced:.4f} ms, events {plain:.4f} ms, {off:+.2%}", flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="of records")
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    records = sorted(parser.parse_args().folder.glob("*.json"))
    right = [compare(json.loads(path.read_text()), flush) for path in records]
    print(f"{sum(right)} of {len(right)} agree within {AGREE:.0%}")
    return 0 if right and all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
