"""CUDA C++ as g++ can take it: the few constructs that are not C++ are rewritten, line for line.

``rewrite`` turns launches, ``extern __shared__`` arrays, inline PTX and casts of kernels to ``void*`` into C++ of the same
number of lines, so that every message about the result points at the right line of the original. Everything else
(qualifiers, built-in variables, intrinsics) is a matter of headers, see ``include/crucible_sim.h``.

``scan`` answers questions about a source without compiling it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Comments and literals: places where code-like text means nothing. A ' between digits is a separator.
_LITERAL = re.compile(
    r"//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/"
    r'|R"(?P<d>[^()\s\\"]{0,16})\(.*?\)(?P=d)"'
    r'|"(?:[^"\\\n]|\\.|\\\n)*"'
    r"|(?<![0-9a-zA-Z_])'(?:[^'\\\n]|\\.)+'",
    re.S,
)


def mask(text: str) -> str:
    """``text`` with comments and the insides of literals blanked: same length, same lines, so positions stay valid."""

    def blank(match: re.Match[str]) -> str:
        found = match.group(0)
        if found[0] == "/":
            return re.sub(r"[^\n]", " ", found)
        return found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1]

    return _LITERAL.sub(blank, text)


@dataclass(frozen=True)
class KernelFacts:
    """A ``__global__`` function as the source declares it."""

    name: str
    line: int
    required_template_arguments: int = 0
    is_template: bool = False
    max_threads: int = 0  # from __launch_bounds__ where that is a number, else 0
    definitions: int = 1


@dataclass(frozen=True)
class Unsupported:
    """Something the simulator lacks, by name, and where it stands."""

    name: str
    line: int


@dataclass(frozen=True)
class SourceFacts:
    """What a source holds, without compiling it."""

    kernels: dict[str, KernelFacts] = field(default_factory=dict)
    launched: frozenset[str] = frozenset()
    host_functions: frozenset[str] = frozenset()
    pybind_modules: int = 0
    unsupported: tuple[Unsupported, ...] = ()


# ---------------------------------------------------------------------------------------------- brackets

_OPEN, _CLOSE = "([{", ")]}"


def _forward(masked: str, start: int) -> int:
    """The position just after the bracket that closes the one at ``start``; -1 if there is none."""
    depth = 0
    for i in range(start, len(masked)):
        if masked[i] in _OPEN:
            depth += 1
        elif masked[i] in _CLOSE:
            depth -= 1
            if depth == 0:
                return i + 1
    return -1


def _backward(masked: str, end: int) -> int:
    """The position of the bracket that opens the one at ``end``; -1 if there is none."""
    depth = 0
    for i in range(end, -1, -1):
        if masked[i] in _CLOSE:
            depth += 1
        elif masked[i] in _OPEN:
            depth -= 1
            if depth == 0:
                return i
    return -1


def _angle_backward(masked: str, end: int) -> int:
    """The ``<`` that opens the template argument list closed by the ``>`` at ``end``; -1 if there is none."""
    depth, i = 0, end
    while i >= 0:
        c = masked[i]
        if c in _CLOSE:
            i = _backward(masked, i)
            if i < 0:
                return -1
        elif c in _OPEN or c == ";":
            return -1
        elif c == ">":
            depth += 1
        elif c == "<":
            depth -= 1
            if depth == 0:
                return i
        i -= 1
    return -1


def _angle_forward(masked: str, start: int) -> int:
    """The position just after the ``>`` that closes the ``<`` at ``start``; -1 if this is no template argument list."""
    depth, i = 0, start
    while i < len(masked):
        c = masked[i]
        if c in _OPEN:
            i = _forward(masked, i)
            if i < 0:
                return -1
            continue
        if c in _CLOSE or c == ";":
            return -1
        if c == "<":
            depth += 1
        elif c == ">":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return -1


def _split(masked: str, start: int, end: int) -> list[tuple[int, int]]:
    """The comma-separated parts of ``[start, end)``; commas inside brackets and template argument lists do not count."""
    parts, begin, i = [], start, start
    while i < end:
        c = masked[i]
        if c in _OPEN:
            after = _forward(masked, i)
            i = after if 0 < after <= end else i + 1
            continue
        if c == "<" and i > start and (masked[i - 1].isalnum() or masked[i - 1] == "_"):
            after = _angle_forward(masked, i)
            if 0 < after <= end and re.match(r"\s*(\(|::|,|\)|\{|$)", masked[after:end]):
                i = after
                continue
        if c == ",":
            parts.append((begin, i))
            begin = i + 1
        i += 1
    parts.append((begin, end))
    return parts if masked[start:end].strip() else []


def _one_line(text: str) -> str:
    return re.sub(r"(?:\s|\\\n)+", " ", text).strip()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\x1f", "\\037") + '"'


# ---------------------------------------------------------------------------------------------- kernels

_GLOBAL = re.compile(r"\b__global__\b")
_NAME_BEFORE_PAREN = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_NOT_A_NAME = {"__launch_bounds__", "__attribute__", "__cluster_dims__", "__maxnreg__", "alignas", "__align__", "decltype"}


def _constants(masked: str) -> dict[str, int]:
    """Names with a plain integer value: ``#define N 256`` and ``constexpr int N = 256;``."""
    found: dict[str, int] = {}
    for match in re.finditer(r"#\s*define\s+(\w+)\s+\(?(\d+)\)?\s*$", masked, re.M):
        found[match.group(1)] = int(match.group(2))
    for match in re.finditer(r"\bconst(?:expr)?\s+(?:static\s+)?(?:int|unsigned|size_t|auto)\s+(\w+)\s*=\s*(\d+)\s*;", masked):
        found[match.group(1)] = int(match.group(2))
    return found


def _template_before(masked: str, at: int) -> tuple[bool, int]:
    """Whether a ``template <...>`` heads the declaration at ``at``, and how many of its parameters have no default."""
    start = max(masked.rfind(";", 0, at), masked.rfind("}", 0, at)) + 1
    head = re.search(r"\btemplate\s*<", masked[start:at])
    if not head:
        return False, 0
    opening = start + head.end() - 1
    end = _angle_forward(masked, opening)
    if end < 0 or end > at:
        return True, 1 << 20
    parts = _split(masked, opening + 1, end - 1)
    # a parameter pack needs no argument and swallows any
    return True, sum("=" not in masked[a:b] and "..." not in masked[a:b] for a, b in parts)


def _find_kernels(masked: str) -> dict[str, KernelFacts]:
    constants = _constants(masked)
    kernels: dict[str, KernelFacts] = {}
    for match in _GLOBAL.finditer(masked):
        at = match.end()
        bounds = 0
        while True:
            name = _NAME_BEFORE_PAREN.search(masked, at)
            if not name:
                break
            end = _forward(masked, name.end() - 1)
            if name.group(1) in _NOT_A_NAME and end > 0:
                if name.group(1) == "__launch_bounds__":
                    parts = _split(masked, name.end(), end - 1)
                    text = masked[parts[0][0] : parts[0][1]].strip() if parts else ""
                    bounds = int(text) if text.isdigit() else constants.get(text, 0)
                at = end
                continue
            break
        if not name or ";" in masked[match.end() : name.start()] or end < 0:
            continue
        is_template, required = _template_before(masked, match.start())
        after = masked[end:].lstrip()
        is_definition = after.startswith("{")
        known = kernels.get(name.group(1))
        if known:
            definitions = known.definitions + is_definition
            if is_definition and known.definitions == 0:  # a declaration came first
                definitions = 1
            kernels[known.name] = KernelFacts(
                known.name,
                known.line if not is_definition else masked.count("\n", 0, match.start()) + 1,
                max(required, known.required_template_arguments),
                is_template or known.is_template,
                bounds or known.max_threads,
                definitions,
            )
        else:
            line = masked.count("\n", 0, match.start()) + 1
            kernels[name.group(1)] = KernelFacts(name.group(1), line, required, is_template, bounds, int(is_definition))
    return kernels


# ---------------------------------------------------------------------------------------------- launches


@dataclass(frozen=True)
class _Launch:
    start: int  # of the kernel expression
    angle: int  # of <<<
    close: int  # of >>>
    paren: int  # of the argument list's (
    end: int  # just after its )


def _kernel_expression(masked: str, end: int) -> int:
    """Where the expression that ends before ``end`` (a kernel, as written before ``<<<``) begins; -1 if there is none."""
    i, wants_name = end - 1, True
    while True:
        while i >= 0 and (masked[i].isspace() or masked[i] == "\\"):
            i -= 1
        if i < 0:
            return -1
        if masked[i] == ">" and masked[i - 1] != "-":
            i = _angle_backward(masked, i) - 1
            if i < -1:
                return -1
            continue
        if masked[i] in ")]":
            opening = _backward(masked, i)
            if opening < 0:
                return -1
            i = opening - 1
            before = i
            while before >= 0 and masked[before].isspace():
                before -= 1
            called = before >= 0 and (masked[before].isalnum() or masked[before] in "_>]")
            if masked[opening] == "(" and (not called or re.search(r"\b(return|else|do)\s*$", masked[:opening])):
                return opening
            i = before
            continue
        if masked[i].isalnum() or masked[i] == "_":
            match = re.search(r"[A-Za-z_]\w*\Z", masked[: i + 1])
            if not match:
                return -1
            start = match.start()
            wants_name = False
            rest = masked[:start].rstrip()
            if rest.endswith("template") and not wants_name:
                start = len(rest) - len("template")
                rest = masked[:start].rstrip()
            if rest.endswith("::") or rest.endswith("->") or rest.endswith("."):
                i = len(rest) - (1 if rest.endswith(".") else 2) - 1
                j = i
                while j >= 0 and masked[j].isspace():
                    j -= 1
                if rest.endswith("::") and (j < 0 or not (masked[j].isalnum() or masked[j] in "_>")):
                    return len(rest) - 2  # ::kernel
                continue
            return start
        return -1


def _find_launches(masked: str) -> Iterator[_Launch]:
    at = 0
    while True:
        angle = masked.find("<<<", at)
        if angle < 0:
            return
        at = angle + 3
        start = _kernel_expression(masked, angle)
        if start < 0:
            continue
        i = at
        close = paren = -1
        while i < len(masked):
            c = masked[i]
            if c in _OPEN:
                i = _forward(masked, i)
                if i < 0:
                    break
                continue
            if c in _CLOSE or c == ";":
                break
            if masked.startswith(">>>", i):
                after = re.compile(r"(?:\s|\\\n)*\(").match(masked, i + 3)
                if after:
                    close, paren = i, after.end() - 1
                    break
            i += 1
        if close < 0:
            continue
        end = _forward(masked, paren)
        if end < 0:
            continue
        yield _Launch(start, angle, close, paren, end)
        at = paren + 1  # a launch inside an argument list would be strange, but harmless


def _base_name(kernel: str) -> str:
    """``ns::scale<float, 4>`` -> ``scale``."""
    text = kernel
    if text.endswith(">"):
        opening = _angle_backward(text, len(text) - 1)
        text = text[:opening] if opening > 0 else text
    match = re.search(r"([A-Za-z_]\w*)\s*\)*\s*\Z", text)
    return match.group(1) if match else text


def _address(kernel: str, kernels: dict[str, KernelFacts]) -> tuple[str, int]:
    """An expression for the kernel's address, ``nullptr`` where template arguments are deduced; and its thread limit."""
    facts = kernels.get(_base_name(kernel))
    if not facts or facts.definitions > 1:
        return "nullptr", 0
    if facts.is_template:
        if not kernel.endswith(">"):
            return "nullptr", facts.max_threads
        opening = _angle_backward(kernel, len(kernel) - 1)
        given = len(_split(kernel, opening + 1, len(kernel) - 1))
        if given < facts.required_template_arguments:
            return "nullptr", facts.max_threads
    return f"(const void*)({kernel})", facts.max_threads


def kernel_list(kernels: Iterable[str]) -> str:
    """The names as the runtime wants them: ``,a,b,``. It tells one kernel's shared arrays from another's by them."""
    return "," + ",".join(kernels) + ","


def _rewrite_launches(text: str, kernels: dict[str, KernelFacts]) -> str:
    masked = mask(text)
    names = kernel_list(kernels)
    out: list[str] = []
    at = 0
    for launch in _find_launches(masked):
        if launch.start < at:
            continue
        kernel = _one_line(text[launch.start : launch.angle])
        config = text[launch.angle + 3 : launch.close]
        parts = _split(masked, launch.paren + 1, launch.end - 1)
        arguments = "\x1f".join(_one_line(_uncommented(text[a:b])) for a, b in parts)
        address, max_threads = _address(kernel, kernels)
        out.append(text[at : launch.start])
        out.append(
            f"::csim::launch(::csim::Config({config}), ::csim::Site{{{_quoted(kernel)}, {_quoted(arguments)}, __FILE__, "
            f"__LINE__, {address}, {max_threads}, {_quoted(names)}}}, [&](auto&... csim_a) CSIM_PLAIN {{ {kernel}(csim_a...); }})"
        )
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


def _uncommented(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)


# ---------------------------------------------------------------------------------------------- shared memory

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
        kind = _one_line(kind)
        if not kind:
            continue
        lines = "".join(re.findall(r"\\?\n", masked[match.start() : match.end()]))
        name, dims = match.group("name"), _one_line(match.group("dims"))
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


# ---------------------------------------------------------------------------------------------- kernels as void*

_VOID_CAST = re.compile(
    r"(?:\(\s*(?:const\s+)?void\s*(?:const\s*)?\*\s*\)\s*|\b(?:reinterpret_cast|static_cast)\s*<\s*(?:const\s+)?void\s*\*\s*>\s*(?=\())"
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
            end = _angle_forward(masked, following.end() - 1)
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


def rewrite(text: str, filename: str = "", first_line: int = 1) -> str:
    """CUDA source as C++ for the simulator, with the same number of lines.

    ``filename`` and ``first_line`` say where the text comes from; the caller writes the ``#line`` directive.
    """
    del filename, first_line  # launches use __FILE__ and __LINE__
    if re.search(r"\basm\b|\b__asm", text):
        from crucible.sim.ptx import rewrite_asm

        text = rewrite_asm(text)
    kernels = _find_kernels(mask(text))
    text = _rewrite_shared(text)
    text = _rewrite_addresses(text, kernels)
    return _rewrite_launches(text, kernels)


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


# ---------------------------------------------------------------------------------------------- facts

_UNSUPPORTED_CODE = {
    "texture or surface references": r"\b(?:tex[123]D(?:fetch|Lod|Grad)?|tex1Dfetch|surf[123]D(?:read|write)|cudaTextureObject_t)\b",
    "thread block clusters": r"\b(?:this_cluster|cluster_group|cluster_dims|__cluster_dims__|cudaLaunchAttributeClusterDimension)\b",
    "dynamic parallelism": r"\bcudaDeviceSynchronize\s*\(\s*\)\s*;\s*//\s*device\b",
    "CUDA graphs": r"\bcudaGraph(?:Launch|Instantiate)\w*|\bcudaStreamBeginCapture\b",
    "tensor maps (TMA)": r"\b(?:CUtensorMap|cuTensorMapEncode\w*)\b",
}
_UNSUPPORTED_HEADERS = {
    "cuBLAS": r"cublas\w*(?:\.h)?",
    "cuDNN": r"cudnn\w*(?:\.h)?",
    "cuSPARSE": r"cusparse\w*(?:\.h)?",
    "cuSOLVER": r"cusolver\w*(?:\.h)?",
    "cuFFT": r"cufft\w*(?:\.h)?",
    "CUTLASS": r"(?:cutlass|cute)/.*",
    "Thrust": r"thrust/.*",
    "NCCL": r"nccl\.h",
}


def _unsupported(text: str, masked: str) -> Iterator[Unsupported]:
    for name, pattern in _UNSUPPORTED_CODE.items():
        match = re.search(pattern, masked)
        if match:
            yield Unsupported(name, masked.count("\n", 0, match.start()) + 1)
    for name, pattern in _UNSUPPORTED_HEADERS.items():
        match = re.search(rf'^[ \t]*#[ \t]*include[ \t]*[<"]{pattern}[>"]', text, re.M)
        if match:
            yield Unsupported(f"{name} headers", text.count("\n", 0, match.start()) + 1)
    if re.search(r"\basm\b|\b__asm", text):
        from crucible.sim import ptx

        for item in ptx.unsupported(text):
            yield Unsupported(f"PTX instruction {item.instruction}", item.line)


def scan(text: str) -> SourceFacts:
    """Facts about a CUDA source: kernels defined and launched, host functions, bindings, what the simulator lacks."""
    masked = mask(text)
    kernels = _find_kernels(masked)
    launched = {_base_name(_one_line(text[x.start : x.angle])) for x in _find_launches(masked)}
    for match in re.finditer(r"\bcudaLaunch(?:Cooperative)?Kernel(?:Ex|ExC)?\s*\(", masked):
        end = _forward(masked, match.end() - 1)
        for name in re.findall(r"[A-Za-z_]\w*", masked[match.end() : end]):
            if name in kernels:
                launched.add(name)
    # a kernel handed on by name (a function pointer, a template argument) may be launched from elsewhere
    functions = set()
    for match in re.finditer(r"^[ \t]*(?!(?:return|else|if|for|while|switch|case|typedef|using|#)\b)[A-Za-z_][\w:<>,*&\s]*?[\s*&]([A-Za-z_]\w*)\s*\(", masked, re.M):
        end = _forward(masked, match.end() - 1)
        if end > 0 and re.match(r"\s*(?:const\s*)?(?:noexcept\s*)?\{", masked[end:]) and "__global__" not in match.group(0):
            if "__device__" not in match.group(0) and match.group(1) not in ("if", "for", "while", "switch"):
                functions.add(match.group(1))
    return SourceFacts(
        kernels=kernels,
        launched=frozenset(launched),
        host_functions=frozenset(functions - set(kernels)),
        pybind_modules=len(re.findall(r"\bPYBIND11_MODULE\s*\(", masked)),
        unsupported=tuple(_unsupported(text, masked)),
    )
