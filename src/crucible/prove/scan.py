"""What can be said of a candidate's file without running it: emptiness, syntax, kernels in strings, curious habits."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

from crucible.prove.proof import Finding

# Ways to find out who is calling: harmless in a program, odd in a kernel.
_CURIOUS = {
    "inspect.stack": "looks at the call stack",
    "inspect.currentframe": "looks at the call stack",
    "sys._getframe": "looks at the call stack",
    "traceback.extract_stack": "looks at the call stack",
    "traceback.format_stack": "looks at the call stack",
    "sys.argv": "reads the command line",
    "os.environ": "reads the environment",
    "os.getenv": "reads the environment",
    "os.getppid": "looks at its parent",
    "sys.modules": "looks at the loaded modules",
    "gc.get_objects": "looks through all live objects",
    "gc.get_referrers": "looks through all live objects",
    "psutil": "looks at other processes",
}
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^)]*\)")
_KERNEL = re.compile(r"__global__[^;{}()]*?\b(\w+)\s*\([^;{}]*\)\s*\{", re.S)


@dataclass
class Scan:
    """The findings that end the run before it starts, and hints for later."""

    finding: Finding | None = None
    kernels: list[str] = field(default_factory=list)
    curious: list[str] = field(default_factory=list)
    uses_load_inline: bool = False
    names_us: bool = False


def scan_file(path: Path) -> Scan:
    data = path.read_bytes()
    if not data.strip():
        return Scan(Finding("empty_file", f"{path.name} is empty"))
    if b"\0" in data[:4096]:
        return Scan(Finding("binary_file", f"{path.name} is a binary file, not Python source"))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Scan(Finding("binary_file", f"{path.name} is not UTF-8 text (byte {error.start})"))
    try:
        tree = ast.parse(text, filename=path.name)
    except SyntaxError as error:
        line = (error.text or "").rstrip()
        return Scan(
            Finding(
                "syntax_error",
                f"{path.name}:{error.lineno}: {error.msg}\n    {line.strip()}",
                {"line": error.lineno, "source_line": line},
            )
        )
    except (RecursionError, MemoryError, ValueError) as error:
        return Scan(Finding("syntax_error", f"{path.name} cannot be parsed: {type(error).__name__}"))
    result = Scan()
    if not _defines_model(tree):
        result.finding = Finding("no_model_new", f"{path.name} defines no ModelNew" + _nearest(tree))
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    result.kernels = sorted({k for s in strings for k in _KERNEL.findall(_BOUNDS.sub("", s))})
    result.uses_load_inline = "load_inline" in text or "cpp_extension" in text
    result.names_us = any("crucible" in s.lower() for s in strings)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            if dotted in _CURIOUS:
                result.curious.append(f"line {node.lineno}: {dotted} ({_CURIOUS[dotted]})")
    return result


def _defines_model(tree: ast.Module) -> bool:
    """ModelNew may be a class, an assignment or an import, at any depth of the module's own statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "ModelNew":
            return True
        if isinstance(node, ast.Name) and node.id == "ModelNew" and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) in ("ModelNew", "*"):
            return True
        if isinstance(node, ast.Constant) and node.value == "ModelNew":
            return True  # globals()["ModelNew"] = ... and the like
    return False


def _nearest(tree: ast.Module) -> str:
    classes = [n.name for n in tree.body if isinstance(n, ast.ClassDef)]
    return f"; its classes are {', '.join(classes[:5])}" if classes else ""


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"
