"""From a page of g++ output to the one line that helps: place in the user's file, message, remedy."""

from __future__ import annotations

import linecache
import os
import re

from crucible.build.errors import BuildError

_PLACE = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)? (?:fatal error|error): (?P<text>.*)$", re.M)
_VIA = re.compile(r"^(?:In file included from |\s+from )?(?P<file>[^\s:][^:\n]*):(?P<line>\d+)[:,]", re.M)

# (pattern in the message, remedy). The remedies name what a GPU build of the same torch would need too.
HINTS: tuple[tuple[str, str], ...] = (
    (r"DeprecatedTypeProperties", "AT_DISPATCH takes x.scalar_type(), not x.type()"),
    (r"no member named .data.$|has no member named .data.", "use x.data_ptr<T>() instead of x.data<T>()"),
    (r"was not declared in this scope", "declare or include it before its first use; check the spelling"),
    (r"expected .;.", "a semicolon is missing on this line or the one before"),
    (r"no matching function for call to .atomicAdd", "atomicAdd needs pointer and value of one supported type"),
    (r"No such file or directory", "this header is not available to a torch extension"),
)


def _is_users(file: str) -> bool:
    """Whether a place lies in what the user wrote, not in a header of torch, NVIDIA, the library or the simulator."""
    ours = r"/(torch/include|include/c\+\+|cuda_runtime/include|cuda[^/]*/include|crucible/sim)/|^/usr/"
    return not re.search(ours, file)


def explain(code: int, log: str, folder: str = "") -> BuildError:
    """The first error of a compiler's ``log``, at the first place in the user's own file that it mentions."""
    unsupported = re.search(r'#error "?crucible simulator: ([^"\n]*)"?', log)
    errors = list(_PLACE.finditer(log))
    if not errors:
        if code < 0 or "Killed" in log or "virtual memory exhausted" in log or "out of memory" in log:
            return BuildError("compile_error", "the compiler ran out of memory", log=log)
        return BuildError("compile_error", f"the compiler failed with exit code {code} and no message", log=log)
    first = next((e for e in errors if _is_users(e["file"])), errors[0])
    file, line, text = first["file"], int(first["line"]), first["text"]
    if not _is_users(file):  # an error inside a header: who asked for it?
        via = next((m for m in _VIA.finditer(log) if _is_users(m["file"])), None)
        if via:
            file, line = via["file"], int(via["line"])
    text = text.replace("‘", "`").replace("’", "`")
    hint = next((remedy for pattern, remedy in HINTS if re.search(pattern, text)), None)
    kind = "compile_error"
    if unsupported:
        kind, text, hint = "unsupported_feature", unsupported.group(1), None
    return BuildError(
        kind,  # type: ignore[arg-type]
        text,
        file=file,
        line=line,
        source_line=linecache.getline(os.path.join(folder, file), line).rstrip("\n") or None,
        hint=hint,
        log=log,
    )
