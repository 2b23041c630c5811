"""The one exception that says why a build failed, in words and at a line of the user's own file."""

from __future__ import annotations

from typing import Any, Literal

Kind = Literal["compile_error", "load_inline_misuse", "unsupported_feature", "link_error", "build_time"]


class BuildError(RuntimeError):
    """A candidate could not be built.

    ``file``/``line`` point into the file that the user wrote (the Python file that holds the CUDA string), not into
    what was generated from it; ``hint`` is a one-line remedy where one is known.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        source_line: str | None = None,
        hint: str | None = None,
        log: str = "",
    ) -> None:
        self.kind: Kind = kind
        self.message = message
        self.file = file
        self.line = line
        self.source_line = source_line
        self.hint = hint
        self.log = log
        super().__init__(self.describe())

    def describe(self) -> str:
        """The short human text: place, message, the source line, the remedy."""
        place = f"{self.file}:{self.line}: " if self.file and self.line else ""
        text = f"{place}{self.message}"
        if self.source_line:
            text += f"\n    {self.source_line.strip()}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text

    def to_json(self) -> dict[str, Any]:
        """Everything a report needs; the inverse of :meth:`from_json`."""
        return {
            "kind": self.kind,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "source_line": self.source_line,
            "hint": self.hint,
            "log": self.log[-8000:],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BuildError:
        return cls(
            data["kind"],
            data["message"],
            file=data.get("file"),
            line=data.get("line"),
            source_line=data.get("source_line"),
            hint=data.get("hint"),
            log=data.get("log", ""),
        )
