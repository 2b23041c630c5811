"""It loads: the file imports, ModelNew is there, and its CUDA source compiles."""

from __future__ import annotations

from crucible.prove.outcome import build_finding, error_text, facts_of, place
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import Session

NAME, TITLE = "loads", "It loads"


def run(session: Session, check: Check) -> None:
    reply = session.candidate({"op": "load"})
    file = session.file
    error = reply.get("error")
    if error is not None:
        if error.get("build"):
            raise Refutation(build_finding(error["build"], file))
        if error.get("exited"):
            raise Refutation(
                Finding(
                    "exited", f"importing {file} ends the process with {error['exited']}: {place(error['lines'], file)}"
                )
            )
        if error["type"] in ("SyntaxError", "IndentationError"):
            raise Refutation(Finding("syntax_error", error_text(error, file), {"error": error}))
        from crucible.prove.gpu_build import nvcc_finding

        compiled = nvcc_finding(error, session.scratch, file) if session.options.device == "cuda" else None
        raise Refutation(
            compiled or Finding("import_error", f"importing {file} fails: {error_text(error, file)}", {"error": error})
        )
    if not reply["has_model"]:
        classes = f"; its classes are {', '.join(reply['classes'][:5])}" if reply["classes"] else ""
        raise Refutation(Finding("no_model_new", f"{file} defines no class ModelNew{classes}"))
    if not reply["is_module"]:
        raise Refutation(Finding("no_model_new", f"ModelNew in {file} is not a torch.nn.Module"))
    session.signatures = reply["signatures"]
    builds = facts_of(reply).get("builds", [])
    built = [b for b in builds if b.get("ok")]
    check.note(f"imported in {reply['seconds']:.1f} s" + (f", {len(built)} CUDA extension(s) built" if built else ""))
    check.data["builds"] = [{k: b.get(k) for k in ("name", "ok", "seconds")} for b in builds]
