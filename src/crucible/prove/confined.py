"""Compile a candidate's source behind the sandbox's walls: ``#include`` and ``.incbin`` read files too."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from crucible.build import toolchain
from crucible.build.errors import BuildError
from crucible.prove.patience import MOST
from crucible.prove.sandbox import Child, ChildDied, Limits


def compiler(hidden: Sequence[Path], memory_bytes: int = 8 << 30) -> toolchain.Runner:
    """A runner for compilers that see everything but ``hidden`` and write nowhere but where they are told to."""

    def run(command: list[str], *, timeout: float, cwd: str | None = None) -> tuple[int, str]:
        with tempfile.TemporaryDirectory(prefix="crucible-compile-") as scratch:
            log = Path(scratch) / "log"
            # The whole log, not only its end: the first error is the one that counts.
            shell = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@" >"$0" 2>&1', str(log), cwd or scratch, *command]
            limits = Limits(wall_s=(1 + MOST) * timeout, memory_bytes=memory_bytes)
            try:
                with Child(
                    shell,
                    scratch=Path(scratch),
                    writable=[Path(cwd)] if cwd else [],
                    hidden=hidden,
                    limits=limits,
                    env={"LC_ALL": "C"},
                ) as child:
                    status = child.wait(timeout)
            except ChildDied as died:
                if died.cause == "time":
                    raise BuildError(
                        "build_time",
                        f"the compiler was still running after {timeout:.0f} s and was stopped",
                        hint="look for unbounded template recursion or very large unrolled loops",
                    ) from died
                if died.cause == "memory":
                    raise BuildError("compile_error", f"the compiler ran out of memory ({died.detail})") from died
                return 1, _text(log) or died.detail
            return status, _text(log)

    return run


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
