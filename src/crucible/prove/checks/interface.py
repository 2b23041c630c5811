"""Interface: signatures, state, seeds, dtypes and modes, as the reference has them."""

from __future__ import annotations

from typing import Any

from crucible.prove import tensors
from crucible.prove.outcome import build_finding, error_text
from crucible.prove.proof import Check, Finding, Refutation
from crucible.prove.session import HEAVY_WEIGHTS, Session

NAME, TITLE = "interface", "Interface"


def run(session: Session, check: Check) -> None:
    _signature(session, check, "init", "init_signature", "__init__")
    _signature(session, check, "forward", "forward_signature", "forward")
    seed = session.seed("weights")
    built = session.candidate({"op": "construct", "init": session.problem["init"], "seed": seed})
    if not built["ok"]:
        raise Refutation(_construction(built["error"], session))
    _hyperparameters(session, built["attributes"])
    _layout(session, check, built["layout"])
    _seeds(session, check, built, seed)
    accepted = session.reference({"op": "accepts", "layout": built["layout"]})
    if not accepted["accepted"]:
        raise Refutation(
            Finding("load_state_dict", f"the reference does not load the candidate's state_dict: {accepted['error']}")
        )
    _module_habits(session, check)


def _signature(session: Session, check: Check, key: str, code: str, name: str) -> None:
    """Every call that the reference takes must mean the same to the candidate."""
    want, have = session.problem["signatures"][key], session.signatures.get(key)
    if want is None or have is None:
        return
    starred = {p["kind"] for p in have}
    fixed = [p for p in have if not p["kind"].startswith("VAR_")]
    problems: list[str] = []
    renamed: list[str] = []
    for i, p in enumerate(q for q in want if not q["kind"].startswith("VAR_")):
        by_name = next((q for q in fixed if q["name"] == p["name"]), None)
        at_place = fixed[i] if i < len(fixed) else None
        if by_name is None and at_place is not None and at_place["name"] not in {q["name"] for q in want}:
            renamed.append(f"{p['name']} -> {at_place['name']}")
            by_name = at_place
        if by_name is None:
            if not starred & {"VAR_POSITIONAL", "VAR_KEYWORD"}:
                problems.append(f"parameter {p['name']} is missing")
            continue
        if at_place is not None and at_place["name"] != by_name["name"] and p["kind"] != "KEYWORD_ONLY":
            problems.append(f"parameter {p['name']} is in another place")
        if not p["required"] and by_name["required"]:
            problems.append(f"parameter {p['name']} has lost its default {p['default']!r}")
        elif not p["required"] and p["default"] != by_name["default"]:
            problems.append(f"the default of {p['name']} is {by_name['default']!r}, not {p['default']!r}")
    known = {p["name"] for p in want}
    extra = [q["name"] for i, q in enumerate(fixed) if q["required"] and q["name"] not in known and i >= len(want)]
    problems += [f"parameter {n} is new and has no default" for n in extra]
    if problems:
        raise Refutation(
            Finding(
                code,
                f"ModelNew.{name} does not take what Model.{name} takes: {'; '.join(problems)}",
                {"reference": want, "candidate": have},
            )
        )
    if renamed:
        session.warnings.append(
            Finding(code, f"ModelNew.{name} renames parameters ({', '.join(renamed)}): calls by keyword will fail")
        )
    check.note(f"{name}({', '.join(p['name'] for p in want)})")


def _construction(error: dict[str, Any], session: Session) -> Finding:
    if error.get("build"):
        return build_finding(error["build"], session.file)
    if error.get("exited"):
        return Finding("exited", f"building ModelNew ends the process with {error['exited']}")
    if error["type"] == "TypeError" and "argument" in error["message"]:
        return Finding(
            "init_signature", f"ModelNew(*get_init_inputs()) fails: {error_text(error, session.file)}", {"error": error}
        )
    if session.options.device == "cuda":
        from crucible.prove.gpu_build import nvcc_finding

        compiled = nvcc_finding(error, session.scratch, session.file)
        if compiled is not None:
            return compiled
    return Finding("raises", f"ModelNew(*get_init_inputs()) fails: {error_text(error, session.file)}", {"error": error})


def _hyperparameters(session: Session, attributes: dict[str, dict[str, Any]]) -> None:
    """Submodules of the same name and class must be set up alike; attributes of the model itself earn a warning."""
    for name, want in session.problem["attributes"].items():
        have = attributes.get(name)
        if have is None:
            continue
        same_kind = want["__torch__"] and have["__class__"] == want["__class__"]
        differing = {k: (v, have[k]) for k, v in want.items() if not k.startswith("__") and k in have and have[k] != v}
        if not differing:
            continue
        text = ", ".join(f"{k} is {b!r}, not {a!r}" for k, (a, b) in differing.items())
        where = f"{name} ({want['__class__']})" if name else "the model"
        finding = Finding(
            "changed_hyperparameters",
            f"{where}: {text}",
            {"module": name, "differing": {k: list(v) for k, v in differing.items()}},
        )
        if same_kind:
            raise Refutation(finding)
        session.warnings.append(finding)


def _layout(session: Session, check: Check, have: list[list[Any]]) -> None:
    want = session.problem["state"]
    names, got = [row[0] for row in want], [row[0] for row in have]
    missing, extra = [n for n in names if n not in got], [n for n in got if n not in names]
    if missing or extra:
        parts = ([f"without {', '.join(missing[:6])}"] if missing else []) + (
            [f"with {', '.join(extra[:6])}"] if extra else []
        )
        raise Refutation(
            Finding(
                "state_dict",
                f"the candidate's state_dict differs from the reference's: {' and '.join(parts)}",
                {"missing": missing, "extra": extra},
            )
        )
    by_name = {row[0]: row for row in have}
    for name, shape, dtype, role in want:
        other = by_name[name]
        for what, a, b in (("shape", shape, other[1]), ("dtype", dtype, other[2]), ("role", role, other[3])):
            if a != b:
                raise Refutation(Finding("state_dict", f"state_dict entry {name}: {what} is {b}, not {a}"))
    if names != got:
        session.warnings.append(Finding("state_dict", "the candidate creates its parameters in another order"))
    if want:
        check.note(f"state_dict: {len(want)} entries agree")
    else:
        check.note("no parameters or buffers")


def _seeds(session: Session, check: Check, built: dict[str, Any], seed: int) -> None:
    """The same seed gives the same weights, bit for bit."""
    if not built["state"]:
        return
    expected = session.reference({"op": "initial", "seed": seed})["state"]
    folder = session.scratch / str(built["folder"])
    for name, info in expected.items():
        a = tensors.load(info, session.truths)
        try:
            b = tensors.load_untrusted(built["state"].get(name), folder)
        except tensors.BadTensor as error:
            raise Refutation(Finding("protocol", f"the candidate's process sent a broken tensor: {error}")) from None
        if not bool((a == b).all()) and not bool((a.isnan() & b.isnan()).any()):
            wrong = int((a != b).sum())
            raise Refutation(
                Finding(
                    "seed_weights",
                    f"the same seed gives other weights: {wrong} of {a.numel()} elements "
                    f"of {name} differ right after construction (parameters created in another order, "
                    "with another initialisation or on another device?)",
                    {"tensor": name},
                )
            )
    check.note("the same seed gives the same weights")


def _module_habits(session: Session, check: Check) -> None:
    facts = session.candidate({"op": "interface", "layout": session.problem["state"], "tied": session.problem["tied"]})
    if not facts["ok"]:
        raise Refutation(_construction(facts["error"], session))
    for mode in ("eval", "train"):
        if session.problem["modes"][mode] and not facts[mode]:
            raise Refutation(Finding("eval_mode", f"ModelNew.{mode}() does not switch the module's mode"))
    if facts.get("load_error"):
        raise Refutation(
            Finding("load_state_dict", f"the candidate does not load the reference's state_dict: {facts['load_error']}")
        )
    if facts.get("load"):
        raise Refutation(Finding("load_state_dict", f"load_state_dict leaves {', '.join(facts['load'][:4])} unchanged"))
    for name, left in facts["dtypes"].items():
        if isinstance(left, str):
            raise Refutation(Finding("dtype_move", f"ModelNew.to(torch.{name}) fails: {left}"))
        if left:
            raise Refutation(
                Finding("dtype_move", f"ModelNew.to(torch.{name}) leaves {', '.join(left[:4])} as they were")
            )
    loads = "load_state_dict both ways, " if session.problem["state"] else ""
    check.note(f"{loads}.to({', '.join(facts['dtypes'])}), .eval(), .train()")
    if session.weights > HEAVY_WEIGHTS:
        check.note("(large weights: only .to(float16) tried)")
