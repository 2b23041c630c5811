"""One step of one file in a process of its own: fuse it, or prove and race it. Reads a request, writes an answer.

    python -m crucible.sweep.job REQUEST.json ANSWER.json
"""

from __future__ import annotations

import json
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

PROOF = ("dtype", "timeout", "quick", "forward_only", "precision", "seed")  # options that both take
RACE = ("train", "against", "rounds", "samples")


def fuse(request: dict[str, Any]) -> dict[str, Any]:
    """Write the fused file; answer its plan."""
    from crucible.fuse import FuseError
    from crucible.fuse_to_file import fuse_file
    from crucible.graph.capture import CaptureError
    from crucible.problem import ProblemError

    try:
        made = fuse_file(
            request["problem"], request["output"], prove=False, force=True, dtype=request["dtype"],
            forward_only=request["forward_only"], tune=request["tune"], tune_budget=request["tune_budget"],
            precision=request["precision"], gpu=request.get("gpu"),
        )  # fmt: skip
    except (FuseError, CaptureError, ProblemError) as error:
        return {"status": "not fused", "reason": str(error)}
    return {"status": "fused", "plan": made.explained.to_json()}


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """Prove and race a candidate; without a GPU prove it in the simulator."""
    from crucible.problem import ProblemError
    from crucible.race.options import RaceError
    from crucible.race.record import digest
    from crucible.race.run import race

    problem, candidate = Path(request["problem"]), Path(request["candidate"])
    proofs = {}
    try:
        if request["device"] == "sim":
            from crucible.prove.run import prove

            proofs[digest(candidate)] = prove(problem, candidate, device="sim", **{k: request[k] for k in PROOF})
        device = None if request["device"] == "sim" else request["device"]
        result = race(problem, [candidate], proofs=proofs, device=device, **{k: request[k] for k in (*PROOF, *RACE)})
    except (ProblemError, RaceError) as error:
        return {"status": "failed", "reason": str(error)}
    entry = result.candidates[0]
    rows = [r for p in result.passes for r in p.rows if r.kind == "candidate"]
    reason = next((n for n in [entry.reason, *(r.note for r in rows), result.untimed] if n), None)
    if result.exit_code == 1:
        status = "refuted"
    elif entry.verdict == "unjudged":
        status = "unjudged"
    elif any(r.status == "failed" for r in rows) or (result.untimed is not None and not proofs):
        status = "failed"
    else:
        status = "proven"
    return {"status": status, "reason": reason if status != "proven" else None, "race": result.to_json()}


def machine(request: dict[str, Any]) -> dict[str, Any]:
    """Say what this machine is."""
    from crucible.sweep import place

    return {"status": "machine", "told": place.machine(request["device"])}


STEPS = {"fuse": fuse, "judge": judge, "machine": machine}


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """What comes of a step; a machine that is not like the ``expected`` one does not begin with it."""
    if "expected" in request:
        from crucible.sweep.place import differs

        reason = differs(request["expected"], request["step"], request["device"])
        if reason is not None:
            return {"status": "other place", "reason": reason}
    return STEPS[request["step"]](request)


def main() -> int:
    from crucible.prove.imports import nothing_is_garbage
    from crucible.prove.jail.system import PR_SET_PDEATHSIG, try_prctl
    from crucible.write import write_atomically

    try_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a sweep that is killed leaves nobody behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # one that is interrupted no files either
    warnings.filterwarnings("ignore", module="torch")
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    began = time.monotonic()
    with nothing_is_garbage():
        import torch  # noqa: F401
    answer = answer_to(request)
    answer["seconds"] = time.monotonic() - began
    write_atomically(Path(sys.argv[2]), json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
