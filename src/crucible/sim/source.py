"""CUDA C++ as g++ can take it: the few constructs that are not C++ are rewritten, line for line.

``rewrite`` turns launches, ``extern __shared__`` arrays, inline PTX and casts of kernels to ``void*`` into C++ of the
same number of lines, so that every message about the result points at the right line of the original. Everything else
(qualifiers, built-in variables, intrinsics) is a matter of headers, see ``include/crucible_sim.h``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from crucible.sim.cpp_text import angle_closing, angle_opening, closing, mask, one_line, split_commas
from crucible.sim.facts import KernelFacts, SourceFacts, base_name, find_kernels, find_launches, scan

__all__ = ["SourceFacts", "kernel_list", "mask", "rewrite", "rewrite_with_includes", "scan"]


# ---- launches


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\x1f", "\\037") + '"'


def _address(kernel: str, kernels: dict[str, KernelFacts]) -> tuple[str, int]:
    """The kernel's address as an expression (``nullptr`` where template arguments are deduced); its thread limit."""
    facts = kernels.get(base_name(kernel))
    if not facts or facts.definitions > 1:
        return "nullptr", 0
    if facts.is_template:
        if not kernel.endswith(">"):
            return "nullptr", facts.max_threads
        opening = angle_opening(kernel, len(kernel) - 1)
        given = len(split_commas(kernel, opening + 1, len(kernel) - 1))
        if given < facts.required_template_arguments:
            return "nullptr", facts.max_threads
    return f"(const void*)({kernel})", facts.max_threads


def kernel_list(kernels: Iterable[str]) -> str:
    """The names as the runtime wants them: ``,a,b,``. It tells one kernel's shared arrays from another's by them."""
    return "," + ",".join(kernels) + ","


def _site(kernel: str, arguments: Sequence[str], kernels: dict[str, KernelFacts]) -> tuple[str, str]:
    """Of a launch, as expressions: what reports tell of it, and what calls the kernel."""
    address, max_threads = _address(kernel, kernels)
    texts = "\x1f".join(one_line(_uncommented(a)) for a in arguments)
    told = f"{_quoted(kernel)}, {_quoted(texts)}, __FILE__, __LINE__, {address}, {max_threads}"
    site = f"::csim::Site{{{told}, {_quoted(kernel_list(kernels))}}}"
    return site, f"[&](auto&... csim_a) CSIM_PLAIN {{ {kernel}(csim_a...); }}"


def _rewrite_launches(text: str, kernels: dict[str, KernelFacts]) -> str:
    masked = mask(text)
    out: list[str] = []
    at = 0
    for launch in find_launches(masked):
        if launch.start < at:
            continue
        kernel = one_line(text[launch.start : launch.angle])
        config = text[launch.angle + 3 : launch.close]
        parts = split_commas(masked, launch.paren + 1, launch.end - 1)
        site, call = _site(kernel, [text[a:b] for a, b in parts], kernels)
        out.append(text[at : launch.start] + f"::csim::launch(::csim::Config({config}), {site}, {call})")
        # lines that the kernel expression, or the gap before the arguments, spanned
        lost = text[launch.start : launch.angle] + text[launch.close + 3 : launch.paren]
        out.append("".join(re.findall(r"\\?\n", lost)))
        for index, (a, b) in enumerate(parts):  # NULL is an integer once it is a variable
            lead = text[launch.paren if index == 0 else a - 1 : a]
            piece = text[a:b]
            out.append(lead + (piece.replace("NULL", "nullptr") if piece.strip() == "NULL" else piece))
        if not parts:
            out.append(text[launch.paren : launch.end - 1])
        at = launch.end - 1
    out.append(text[at:])
    return "".join(out)


def _rewrite_launch_calls(text: str, kernels: dict[str, KernelFacts]) -> str:
    """``cudaLaunchKernelEx(config, kernel, ...)`` of a kernel that is named there, so that reports can name it too."""
    masked = mask(text)
    out: list[str] = []
    at = 0
    for match in re.finditer(r"\bcudaLaunchKernelEx\s*\(", masked):
        end = closing(masked, match.end() - 1)
        parts = split_commas(masked, match.end(), end - 1) if end > 0 else []
        if match.start() < at or len(parts) < 2:
            continue
        kernel = one_line(text[slice(*parts[1])])
        if base_name(kernel) not in kernels:
            continue
        site, call = _site(kernel, [text[a:b] for a, b in parts[2:]], kernels)
        lines = "".join(re.findall(r"\\?\n", text[slice(*parts[1])]))
        out.append(text[at : match.start()] + f"::csim::launch_ex({site}, ")
        out.append(text[match.end() : parts[1][0]] + f" {call}{lines}")
        at = parts[1][1]
    out.append(text[at:])
    return "".join(out)


def _uncommented(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)


# ---- shared memory

_ALIGN = r"(?:(?:alignas|__align__|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)"
_EXTERN_SHARED = re.compile(
    rf"{_ALIGN}*\bextern\b(?P<head>(?:\s|\\\n|{_ALIGN}|\bvolatile\b|\bconst\b)*)\b__shared__\b(?P<body>[^;{{}}]*?)"
    r"\b(?P<name>[A-Za-z_]\w*(?:##\w+)*)(?P<late>(?:\s*" + _ALIGN + r")?)\s*\[\s*\](?P<dims>(?:\s*\[[^\]]*\])*)\s*;"
)
_SHARED_ALIGNED = re.compile(r"\b__shared__(\s+)(alignas\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))")


def _file_scope(masked: str, at: int) -> bool:
    """Whether ``at`` lies outside every function (namespaces and linkage blocks do not count)."""
    stack: list[bool] = []
    for match in re.finditer(r"[{}]", masked[:at]):
        if match.group(0) == "}":
            if stack:
                stack.pop()
            continue
        before = masked[max(0, match.start() - 200) : match.start()]
        stack.append(bool(re.search(r'(\bnamespace\b[\w\s:]*|\bextern\s*"[^"]*"\s*)\Z', before)))
    return all(stack)


def _rewrite_shared(text: str) -> str:
    masked = mask(text)
    out: list[str] = []
    at = 0
    for match in _EXTERN_SHARED.finditer(masked):
        kind = re.sub(_ALIGN, " ", match.group("head") + " " + match.group("body"))
        kind = one_line(kind)
        if not kind:
            continue
        lines = "".join(re.findall(r"\\?\n", masked[match.start() : match.end()]))
        name, dims = match.group("name"), one_line(match.group("dims"))
        if _file_scope(masked, match.start()):
            new = f"CSIM_DYNAMIC_SHARED_GLOBAL({name}, {kind}{dims});"
        elif dims:
            new = f"auto& {name} = *reinterpret_cast<__typeof__({kind})(*)[]{dims}>(csim_dynamic_shared());"
        else:
            new = f"CSIM_DYNAMIC_SHARED({name}, {kind});"
        out.append(text[at : match.start()] + new + lines)
        at = match.end()
    out.append(text[at:])
    text = "".join(out)
    # `thread_local alignas(16)` is not C++; the other order is
    masked = mask(text)
    out, at = [], 0
    for match in _SHARED_ALIGNED.finditer(masked):
        out.append(text[at : match.start()] + text[match.start(2) : match.end(2)] + match.group(1) + "__shared__")
        at = match.end()
    out.append(text[at:])
    return "".join(out)


# ---- kernels as void*

_VOID_CAST = re.compile(
    r"(?:\(\s*(?:const\s+)?void\s*(?:const\s*)?\*\s*\)\s*"
    r"|\b(?:reinterpret_cast|static_cast)\s*<\s*(?:const\s+)?void\s*\*\s*>\s*(?=\())"
    r"(?P<paren>\(?)\s*&?\s*(?P<name>[A-Za-z_][\w:]*)"
)


def _rewrite_addresses(text: str, kernels: dict[str, KernelFacts]) -> str:
    masked = mask(text)
    out: list[str] = []
    at = 0
    for match in _VOID_CAST.finditer(masked):
        if match.group("name").split("::")[-1] not in kernels or match.start() < at:
            continue
        end = match.end()
        following = re.compile(r"\s*<(?!<)").match(masked, end)
        if following:
            end = angle_closing(masked, following.end() - 1)
            if end < 0:
                continue
        kernel = text[match.start("name") : end]
        if match.group("paren"):
            closing = re.compile(r"\s*\)").match(masked, end)
            if not closing:
                continue
            end = closing.end()
        out.append(text[at : match.start()] + f"const_cast<void*>(::csim::kernel_address({kernel}))")
        at = end
    out.append(text[at:])
    return "".join(out)


# ---- all of it


def rewrite(text: str, filename: str = "", first_line: int = 1) -> str:
    """CUDA source as C++ for the simulator, with the same number of lines.

    ``filename`` and ``first_line`` say where the text comes from; the caller writes the ``#line`` directive.
    """
    del filename, first_line  # launches use __FILE__ and __LINE__
    if re.search(r"\basm\b|\b__asm", text):
        from crucible.sim.ptx import rewrite_asm

        text = rewrite_asm(text)
    kernels = find_kernels(mask(text))
    text = _rewrite_shared(text)
    text = _rewrite_addresses(text, kernels)
    return _rewrite_launches(_rewrite_launch_calls(text, kernels), kernels)


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.M)


def rewrite_with_includes(text: str, filename: str, folders: Sequence[Path]) -> str:
    """``rewrite``, with quoted includes that lie in ``folders`` put in place and rewritten too (the compiler would read
    them as they are). Begins with the ``#line`` directive that the text needs."""
    return _expand(text, filename, list(folders), set())


def _expand(text: str, filename: str, folders: list[Path], once: set[Path]) -> str:
    out, at = [f'#line 1 "{filename}"\n'], 0
    rewritten = rewrite(text, filename, 1)
    for match in _INCLUDE.finditer(rewritten):
        path = next((f / match.group(1) for f in folders if (f / match.group(1)).is_file()), None)
        if path is None:
            continue
        path = path.resolve()
        out.append(rewritten[at : match.start()])
        at = match.end()
        if path not in once:
            included = path.read_text()
            if re.search(r"^[ \t]*#[ \t]*pragma[ \t]+once", included, re.M):
                once.add(path)
                included = re.sub(r"^([ \t]*#[ \t]*pragma[ \t]+once)", r"//\1", included, flags=re.M)
            out.append(_expand(included, str(path), [path.parent, *folders], once))
        line = rewritten.count("\n", 0, match.end()) + 2
        out.append(f'\n#line {line} "{filename}"')
    out.append(rewritten[at:])
    return "".join(out)
