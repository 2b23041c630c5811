"""`prove --arch`: compile a candidate's kernels for GPU generations that are not at hand, and say which fail and why.

The CUDA text is read off the candidate's file without running it, and compiled by NVRTC in a sandboxed process of its
own: a compiler fed by strangers may hang, crash or eat memory, too.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from crucible.build import macros
from crucible.build.nvrtc import ARCHITECTURES, ArchResult, NotFound, compile_all
from crucible.prove.patience import MOST
from crucible.prove.sandbox import Child, ChildDied, Limits, serve


@dataclass(frozen=True)
class CudaSource:
    """CUDA text of one extension, where it begins in the candidate's file, and the extension's compiler flags."""

    text: str
    file: str
    first_line: int = 1
    flags: tuple[str, ...] = ()
    builds: tuple[tuple[str, tuple[str, ...]], ...] = ()  # further flags for architectures, where there are any


# ---- reading ------------------------------------------------------------------------------------------------------


def cuda_sources(path: Path, dtype: str = "float32") -> list[CudaSource]:
    """What a file hands to load_inline as CUDA, as far as that is plain text; else every string with a kernel.

    A fused file's as it is built for each chip, for elements of a type.
    """
    text = path.read_text(encoding="utf-8")
    found = _plain_sources(path, text)
    builds = tuple((arch, tuple(macros.flags_for(text, arch, dtype))) for arch in ARCHITECTURES)
    return [replace(s, builds=builds) if macros.asks_for(s.text) else s for s in found]


def _plain_sources(path: Path, text: str) -> list[CudaSource]:
    tree = ast.parse(text)
    reader = _Reader(tree)
    found: list[CudaSource] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "load_inline":
            pieces = reader.pieces(_argument(node, "cuda_sources", 2))
            if pieces is not None and any("__global__" in text for text, _ in pieces):
                found.append(_joined(pieces, path.name, reader.flags(_argument(node, "extra_cuda_cflags", None))))
    if found:
        return list(dict.fromkeys(found))
    constants = [n for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    strings = [(n.value, n.lineno) for n in constants if isinstance(n.value, str)]
    return [CudaSource(text, path.name, line) for text, line in strings if "__global__" in text]


def _called(node: ast.Call) -> str:
    target = node.func
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


def _argument(node: ast.Call, name: str, position: int | None) -> ast.expr | None:
    for keyword in node.keywords:
        if keyword.arg == name:
            return keyword.value
    return node.args[position] if position is not None and len(node.args) > position else None


Piece = tuple[str, int]  # a text and the line of the file on which it begins


class _Reader:
    """Works out strings that are put together from literals by name, +, lists and f-strings of such."""

    def __init__(self, tree: ast.Module) -> None:
        self.names: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.names[target.id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.names[node.target.id] = node.value

    def pieces(self, node: ast.expr | None, depth: int = 0) -> list[Piece] | None:
        """None where it is not plain text after all."""
        if depth > 20 or node is None:
            return None
        if isinstance(node, ast.Constant):
            return [(node.value, node.lineno)] if isinstance(node.value, str) else [(str(node.value), node.lineno)]
        if isinstance(node, ast.Name):
            return self.pieces(self.names.get(node.id), depth + 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._all([node.left, node.right], depth, "")
        if isinstance(node, (ast.List, ast.Tuple)):
            return self._all(node.elts, depth, "\n")
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.FormattedValue) else v for v in node.values]
            return self._all(parts, depth, "")
        return None

    def _all(self, nodes: Sequence[ast.expr], depth: int, between: str) -> list[Piece] | None:
        found: list[Piece] = []
        for node in nodes:
            pieces = self.pieces(node, depth + 1)
            if pieces is None:
                return None
            if between and found and not found[-1][0].endswith(between):
                found[-1] = (found[-1][0] + between, found[-1][1])
            found += pieces
        return found

    def flags(self, node: ast.expr | None) -> tuple[str, ...]:
        if isinstance(node, ast.Name):
            node = self.names.get(node.id)
        if not isinstance(node, (ast.List, ast.Tuple)):
            return ()
        return tuple(e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str))


def _joined(pieces: list[Piece], file: str, flags: tuple[str, ...]) -> CudaSource:
    """One text; a #line directive where a piece begins a line elsewhere in the file than the one before it ended."""
    text, first = pieces[0]
    line = first + text.count("\n")
    for piece, begins in pieces[1:]:
        if text.endswith("\n") and begins != line:
            text += f'#line {begins} "{file}"\n'
            line = begins
        text += piece
        line += piece.count("\n")
    return CudaSource(text, file, first, flags)


# ---- compiling ----------------------------------------------------------------------------------------------------


def compile_everywhere(
    sources: Sequence[CudaSource], *, scratch: Path, archs: Sequence[str] = ARCHITECTURES, timeout: float = 120.0
) -> list[ArchResult]:
    """Every source for every architecture; one result an architecture, the first failure of any source."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    limits = Limits(wall_s=(1 + MOST) * timeout * max(1, len(sources)) + 30, memory_bytes=8 << 30)
    merged = {arch: ArchResult(arch, True) for arch in archs}
    command = [sys.executable, "-m", "crucible.prove.arch"]
    with Child(command, scratch=scratch, limits=limits, env={"PYTHONPATH": path}) as child:
        for source in sources:
            try:
                reply = child.request({"source": asdict(source), "archs": list(archs)}, timeout=timeout)
            except ChildDied as death:
                return [ArchResult(a, False, f"the compiler was stopped: {death.detail}", skipped=True) for a in archs]
            if "results" not in reply:
                message = str(reply.get("error", {}).get("message", "no answer"))
                return [ArchResult(arch, False, message, skipped=True) for arch in archs]
            for result in (ArchResult(**r) for r in reply["results"]):
                merged[result.arch] = _worse(merged[result.arch], result)
    return list(merged.values())


def _worse(one: ArchResult, two: ArchResult) -> ArchResult:
    rank = {"failed": 2, "skipped": 1, "ok": 0}
    worse, better = (one, two) if rank[one.state] > rank[two.state] else (two, one)
    return replace(
        worse,
        seconds=one.seconds + two.seconds,
        ptx_bytes=one.ptx_bytes + two.ptx_bytes,
        kernels=one.kernels + two.kernels,
        notes=list(dict.fromkeys([*better.notes, *worse.notes])),
    )


def _handle(message: dict[str, Any]) -> dict[str, Any]:
    source = message["source"]
    further = {arch: tuple(flags) for arch, flags in source["builds"]}
    alike: dict[tuple[str, ...], list[str]] = {}  # architectures that are built with the same flags
    for arch in message["archs"]:
        alike.setdefault(further.get(arch, ()), []).append(arch)
    results: list[ArchResult] = []
    try:
        for flags, archs in alike.items():
            results += compile_all(
                source["text"],
                archs,
                file=source["file"],
                first_line=source["first_line"],
                flags=(*source["flags"], *flags),
            )
    except NotFound as error:
        return {"error": {"message": f"{error} (pip install nvidia-cuda-nvrtc-cu12)"}}
    order = list(message["archs"])
    return {"results": [asdict(r) for r in sorted(results, key=lambda r: order.index(r.arch))]}


# ---- the check of a prove run -------------------------------------------------------------------------------------


def wanted(option: str) -> list[str]:
    """The value of --arch: "all", or names such as "sm_80" or "80", with commas between them."""
    if option == "all":
        return list(ARCHITECTURES)
    names = [word.strip().lower() for word in option.split(",") if word.strip()]
    return [name if name.startswith("sm_") else f"sm_{name}" for name in names]


def summary(results: Sequence[ArchResult]) -> list[str]:
    """Lines for a person: what compiled, then each different reason with its architectures."""
    good = [r for r in results if r.ok]
    counts = sorted({r.kernels for r in good if r.kernels})
    told = f": {counts[0]} to {counts[-1]} kernels" if counts[1:] else ""
    lines = [f"compiles for {', '.join(r.arch for r in good)}{told}"] if good else []
    reasons: dict[tuple[str, str, int | None], list[str]] = {}
    for result in results:
        if not result.ok:
            reasons.setdefault((result.state, result.message, result.line), []).append(result.arch)
    for (state, message, line), archs in reasons.items():
        verb = "does not compile for" if state == "failed" else "was not compiled for"
        lines.append(f"{verb} {', '.join(archs)}: {message}" + (f" (line {line})" if line else ""))
    notes = dict.fromkeys(note for result in results for note in result.notes)
    return lines + list(notes)


def check(session: Any, check: Any, finding: Any) -> None:
    """Fill in the check. Architectures that the user named must compile; of "all", a failure is a stated limit."""
    option = session.options.arch
    sources = cuda_sources(session.candidate_path, session.options.dtype or "float32")
    if not sources:
        check.status = "skipped"
        check.note("no CUDA source was found in the file")
        return
    scratch = session.root / "architectures"
    results = compile_everywhere(sources, scratch=scratch, archs=wanted(option), timeout=session.options.timeout)
    check.data["architectures"] = [{**asdict(r), "state": r.state} for r in results]
    for line in summary(results):
        check.note(line)
    failed = [r for r in results if r.state == "failed"]
    if all(r.state == "skipped" for r in results):
        check.status = "skipped"
    elif failed:
        check.status = "limited"
        names = ", ".join(r.arch for r in failed)
        place = f"{failed[0].file}:{failed[0].line}: " if failed[0].line else ""
        text = f"its kernels do not compile for {names}: {place}{failed[0].message}"
        if option != "all" or len(failed) == len(results):
            session.warnings.append(finding("arch_compile", text, {"architectures": names}))
        session.limits.append(text)


if __name__ == "__main__":
    serve(_handle)
