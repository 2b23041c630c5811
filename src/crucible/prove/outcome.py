"""What a candidate's run looks like to the parent, and the faults that can be read off it without any arithmetic.

The order of the questions matters: the first that applies names the cause, and later ones would only name its effects
(an out-of-bounds write also gives wrong values; a swallowed one also looks correct).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crucible.prove.codes import BY_CHECK
from crucible.prove.proof import Finding


def facts_of(reply: dict[str, Any]) -> dict[str, Any]:
    facts = reply.get("facts")
    return facts if isinstance(facts, dict) else {}


def device_facts(reply: dict[str, Any], key: str) -> dict[str, Any]:
    facts = reply.get(f"{key}_device")
    return facts if isinstance(facts, dict) else {}


def reports_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    return [r for key in ("forward", "backward") for r in device_facts(reply, key).get("reports", [])]


def launches_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    return [r for key in ("forward", "backward") for r in device_facts(reply, key).get("launches", [])]


def place(lines: Sequence[Any], file: str) -> str:
    """``file:12: text`` for the innermost line of the candidate's own file."""
    if not lines:
        return ""
    number, text = lines[-1][0], lines[-1][1]
    return f"{file}:{number}: {text}" if text else f"{file}:{number}"


def error_text(error: dict[str, Any], file: str) -> str:
    """An exception in one or two lines, with the candidate's line where there is one."""
    message = str(error.get("message", "")).strip()
    first = "\n".join(message.splitlines()[:6])
    where = place(error.get("lines", []), file)
    return f"{error.get('type', 'Exception')}: {first}" + (f"\n  at {where}" if where else "")


def memory_finding(report: dict[str, Any]) -> Finding:
    """A simulator report; its message without our prefix and without folders before the candidate's file name."""
    code = report.get("code")
    text = str(report.get("message", code)).removeprefix("crucible-sim: ")
    text = re.sub(r"(?<![\w.-])/\S*/(?=[^/\s]+\.py:\d)", "", text)
    report = {**report, "message": text}
    if code == "unsupported_feature":  # the candidate may be right: only a GPU can tell
        return Finding(code, text, {"report": report})
    if code not in BY_CHECK["memory"]:
        return Finding("crashed", str(report.get("message", "the simulator stopped the kernel")), {"report": report})
    return Finding(code, text, {"report": report})


def build_finding(build: dict[str, Any], file: str) -> Finding:
    """A failed build, in the words of the compiler at the candidate's own line."""
    kind = build.get("kind", "compile_error")
    code = {"build_time": "time_limit"}.get(kind, kind)
    if code not in ("compile_error", "load_inline_misuse", "unsupported_feature", "link_error", "time_limit"):
        code = "compile_error"
    where = f"{build.get('file') or file}:{build['line']}: " if build.get("line") else ""
    text = f"{where}{build.get('message', 'the CUDA source does not compile')}"
    if build.get("source_line"):
        text += f"\n    {build['source_line'].strip()}"
    if build.get("hint"):
        text += f"\n  hint: {build['hint']}"
    evidence = {k: build.get(k) for k in ("kind", "file", "line", "source_line", "hint", "message")}
    return Finding(code, text, evidence)


def error_finding(error: dict[str, Any], file: str, code: str, what: str) -> Finding:
    """A finding for an exception: a build failure under its own name, anything else under ``code``."""
    if error.get("exited"):
        return Finding(
            "exited", f"the candidate ended its process with {error['exited']}: {place(error['lines'], file)}"
        )
    if error.get("build"):
        return build_finding(error["build"], file)
    message = str(error.get("message", ""))
    if "CUDA" in message and "out of memory" in message and "crucible-sim" not in message:
        # The reference had its results before: it is the sum of both, or somebody else's work, that does not fit.
        text = f"the GPU's memory is full; try again when nothing else uses it. {what}: {error_text(error, file)}"
        return Finding("infrastructure", text, {"error": error})
    return Finding(code, f"{what}: {error_text(error, file)}", {"error": error})


def search_fault(reply: dict[str, Any], reference: Path, root: Path) -> Finding | None:
    """A candidate that opens the reference, or looks through the folders above its own or the reference's."""
    folders = {str(p) for p in (*reference.parents, root, *root.parents)}
    for row in facts_of(reply).get("touched", []):
        kind, path = str(row[0]), str(row[1])
        if kind == "open" and (path == str(reference) or Path(path).name == reference.name):
            return Finding(
                "reads_reference", f"the candidate opens {path}: it must not see the reference", {"path": path}
            )
        if kind == "list" and path in folders:
            return Finding(
                "reads_reference",
                f"the candidate looks through {path} for other people's files: it has no business "
                "outside its own folder",
                {"path": path},
            )
    return None


def process_fault(reply: dict[str, Any], file: str) -> Finding | None:
    """Faults of the process as a whole."""
    facts = facts_of(reply)
    if facts.get("file_exists") is False:
        return Finding("deleted_file", f"the candidate deleted its own file {file}")
    replaced = facts.get("replaced") or []
    if replaced:
        names = ", ".join(replaced[:6]) + (", ..." if len(replaced) > 6 else "")
        return Finding(
            "patched_harness", f"the candidate replaced functions of its host program: {names}", {"replaced": replaced}
        )
    switches = facts.get("switches") or {}
    if "grad_mode" in switches:
        return Finding(
            "patched_harness",
            "the candidate switched torch's gradient mode off for the whole process",
            {"switches": switches},
        )
    return None


def fallback_fault(reply: dict[str, Any], file: str) -> Finding | None:
    """A kernel that failed to build or run although a result came back: something else made the result."""
    if reply.get("error"):
        return None
    failed = [b for b in facts_of(reply).get("builds", []) if not b.get("ok")]
    good = [b for b in facts_of(reply).get("builds", []) if b.get("ok")]
    ops = sorted(device_facts(reply, "forward").get("ops", {}))
    by_torch = f"; the result was made by {', '.join(ops[:5])}" if ops else ""
    if failed and not good:
        finding = build_finding(failed[0].get("error") or {}, file)
        return Finding(
            "fallback_ran",
            f"the CUDA source did not build, and the candidate carried on without it{by_torch}\n  {finding.message}",
            {"build": failed[0], "ops": ops},
        )
    raised = (reply.get("extension") or {}).get("raised", [])
    if raised and not device_facts(reply, "forward").get("launches"):
        first = raised[0]
        return Finding(
            "fallback_ran",
            f"the candidate's extension function {first['function']} failed, the candidate hid that, "
            f"and no kernel ran{by_torch}\n  {first['type']}: {str(first['message']).splitlines()[0][:200]}",
            {"raised": raised, "ops": ops},
        )
    reports = reports_of(reply)
    if reports:
        report = reports[0]
        return Finding(
            "fallback_ran",
            f"the candidate's kernel failed and the candidate hid that{by_torch}\n  {report.get('message')}",
            {"report": report, "ops": ops},
        )
    return None


def device_fault(reply: dict[str, Any], key: str) -> Finding | None:
    """What the simulator reported, or a launch that the device refused, in forward or backward."""
    facts = device_facts(reply, key)
    if facts.get("reports"):
        return memory_finding(facts["reports"][0])
    for launch in facts.get("launches", []):
        error = launch.get("error")
        if error:
            shared = int(launch.get("shared_bytes") or 0)
            code = launch.get("code")
            if code not in BY_CHECK["memory"]:
                code = "shared_memory_limit" if "shared" in str(error).lower() else "launch_error"
            grid, block = launch.get("grid"), launch.get("block")
            place_text = f" at {launch['file']}:{launch['line']}" if launch.get("file") and launch.get("line") else ""
            detail = launch.get("detail") or f"grid {grid}, block {block}, {shared} bytes of shared memory"
            return Finding(
                code,
                f"the launch of `{launch.get('kernel')}`{place_text} fails: {error} ({detail})",
                {"launch": launch},
            )
    return None


def result_fault(reply: dict[str, Any]) -> Finding | None:
    """Faults of a call that returned: what it returned, and when."""
    outputs = reply.get("outputs") or []
    for row in outputs:
        if "shape" in row and not row.get("exact_tensor"):
            return Finding(
                "lazy_tensor",
                f"the candidate returns a {row['type']}, not a plain torch.Tensor: "
                "its values may be computed when somebody looks, outside any measurement",
                {"output": row},
            )
    launches = device_facts(reply, "forward").get("launches", [])
    pending = sorted({str(launch.get("kernel")) for launch in launches if launch.get("pending")})
    if reply.get("new_threads"):
        changed = " and the result changed after forward() returned" if reply.get("changed_later") else ""
        return Finding(
            "background_thread",
            f"work was left on a background thread ({', '.join(reply['new_threads'])}){changed}",
            {"threads": reply["new_threads"]},
        )
    if pending:
        return Finding(
            "side_stream",
            f"work was left on a side stream that the current one does not wait for: `{pending[0]}`",
            {"kernels": pending},
        )
    if reply.get("changed_later"):
        return Finding(
            "side_stream",
            "the result changed after forward() returned: work was still under way on a side stream or a native thread",
            {},
        )
    for name, row in [(f"output{r['path']}", r) for r in outputs]:
        if row.get("unwritten"):
            return unwritten(name, row, _count(row.get("shape", [])))
    if reply.get("overwrote_previous"):
        return Finding(
            "aliased_output",
            "this call wrote over the result that the call before it had returned: "
            "the candidate hands out one buffer again and again",
            {},
        )
    return None


def gradient_fault(reply: dict[str, Any]) -> Finding | None:
    """Gradients that were handed out without being written."""
    for name, grad in (reply.get("grads") or {}).items():
        if grad and grad.get("unwritten"):
            return unwritten(f"the gradient of {name}", grad, None)
    return None


def unwritten(name: str, row: dict[str, Any], total: int | None) -> Finding:
    of = f" of {total}" if total else ""
    return Finding(
        "unwritten_output",
        f"{row['unwritten']}{of} elements of {name} were never written "
        f"(the first at flat index {row.get('first_unwritten')})",
        {"output": name, **row},
    )


def _count(shape: list[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
