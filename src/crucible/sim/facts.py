"""Facts about a CUDA source without compiling it: kernels, launches, host functions, what the simulator lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from crucible.sim.cpp_text import (
    CLOSE,
    OPEN,
    angle_closing,
    angle_opening,
    closing,
    mask,
    one_line,
    opening,
    split_commas,
)


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


# ---- kernels

_GLOBAL = re.compile(r"\b__global__\b")
_NAME_BEFORE_PAREN = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_NOT_A_NAME = {
    "__launch_bounds__", "__attribute__", "__cluster_dims__", "__maxnreg__", "alignas", "__align__", "decltype",
}  # fmt: skip
_CONSTANT = re.compile(r"\bconst(?:expr)?\s+(?:static\s+)?(?:int|unsigned|size_t|auto)\s+(\w+)\s*=\s*(\d+)\s*;")


def _constants(masked: str) -> dict[str, int]:
    """Names with a plain integer value: ``#define N 256`` and ``constexpr int N = 256;``."""
    found: dict[str, int] = {}
    for match in re.finditer(r"#\s*define\s+(\w+)\s+\(?(\d+)\)?\s*$", masked, re.M):
        found[match.group(1)] = int(match.group(2))
    for match in _CONSTANT.finditer(masked):
        found[match.group(1)] = int(match.group(2))
    return found


def _template_before(masked: str, at: int) -> tuple[bool, int]:
    """Whether a ``template <...>`` heads the declaration at ``at``, and how many of its parameters have no default."""
    start = max(masked.rfind(";", 0, at), masked.rfind("}", 0, at)) + 1
    head = re.search(r"\btemplate\s*<", masked[start:at])
    if not head:
        return False, 0
    angle = start + head.end() - 1
    end = angle_closing(masked, angle)
    if end < 0 or end > at:
        return True, 1 << 20
    parts = split_commas(masked, angle + 1, end - 1)
    # a parameter pack needs no argument and swallows any
    return True, sum("=" not in masked[a:b] and "..." not in masked[a:b] for a, b in parts)


def find_kernels(masked: str) -> dict[str, KernelFacts]:
    constants = _constants(masked)
    kernels: dict[str, KernelFacts] = {}
    for match in _GLOBAL.finditer(masked):
        at = match.end()
        bounds = 0
        while True:
            name = _NAME_BEFORE_PAREN.search(masked, at)
            if not name:
                break
            end = closing(masked, name.end() - 1)
            if name.group(1) in _NOT_A_NAME and end > 0:
                if name.group(1) == "__launch_bounds__":
                    parts = split_commas(masked, name.end(), end - 1)
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


# ---- launches


@dataclass(frozen=True)
class Launch:
    start: int  # of the kernel expression
    angle: int  # of <<<
    close: int  # of >>>
    paren: int  # of the argument list's (
    end: int  # just after its )


def _kernel_expression(masked: str, end: int) -> int:
    """Where the expression that ends before ``end`` (a kernel, as written before ``<<<``) begins; -1 if nowhere."""
    i, wants_name = end - 1, True
    while True:
        while i >= 0 and (masked[i].isspace() or masked[i] == "\\"):
            i -= 1
        if i < 0:
            return -1
        if masked[i] == ">" and masked[i - 1] != "-":
            i = angle_opening(masked, i) - 1
            if i < -1:
                return -1
            continue
        if masked[i] in ")]":
            bracket = opening(masked, i)
            if bracket < 0:
                return -1
            i = bracket - 1
            before = i
            while before >= 0 and masked[before].isspace():
                before -= 1
            called = before >= 0 and (masked[before].isalnum() or masked[before] in "_>]")
            keyword = re.search(r"\b(return|else|do)\s*$", masked[:bracket])
            if masked[bracket] == "(" and (not called or keyword):
                return bracket
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


def find_launches(masked: str) -> Iterator[Launch]:
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
            if c in OPEN:
                i = closing(masked, i)
                if i < 0:
                    break
                continue
            if c in CLOSE or c == ";":
                break
            if masked.startswith(">>>", i):
                after = re.compile(r"(?:\s|\\\n)*\(").match(masked, i + 3)
                if after:
                    close, paren = i, after.end() - 1
                    break
            i += 1
        if close < 0:
            continue
        end = closing(masked, paren)
        if end < 0:
            continue
        yield Launch(start, angle, close, paren, end)
        at = paren + 1  # a launch inside an argument list would be strange, but harmless


def base_name(kernel: str) -> str:
    """``ns::scale<float, 4>`` -> ``scale``."""
    text = kernel
    if text.endswith(">"):
        angle = angle_opening(text, len(text) - 1)
        text = text[:angle] if angle > 0 else text
    match = re.search(r"([A-Za-z_]\w*)\s*\)*\s*\Z", text)
    return match.group(1) if match else text


# ---- everything

# The head of a function definition: types, then a name, then its parameters.
_FUNCTION = re.compile(
    r"^[ \t]*(?!(?:return|else|if|for|while|switch|case|typedef|using|#)\b)[A-Za-z_][\w:<>,*&\s]*?[\s*&]"
    r"(?!(?:if|for|while|switch)\b)([A-Za-z_]\w*)\s*\(",
    re.M,
)
_UNSUPPORTED_CODE = {
    "textures or surfaces": r"\b(?:tex[123]D(?:fetch|Lod|Grad)?|surf[123]D(?:read|write)|cudaTextureObject_t)\b",
    "thread block clusters": (
        r"\b(?:this_cluster|cluster_group|cudaLaunchAttributeClusterDimension)\b"
        r"|\b__cluster_dims__\b(?!\s*\(\s*1\s*(?:,\s*1\s*){0,2}\))"  # of one block is none
    ),
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
    kernels = find_kernels(masked)
    launched = {base_name(one_line(text[x.start : x.angle])) for x in find_launches(masked)}
    for match in re.finditer(r"\bcudaLaunch(?:Cooperative)?Kernel(?:Ex|ExC)?\s*\(", masked):
        end = closing(masked, match.end() - 1)
        for name in re.findall(r"[A-Za-z_]\w*", masked[match.end() : end]):
            if name in kernels:
                launched.add(name)
    functions = set()
    for match in _FUNCTION.finditer(masked):
        end = closing(masked, match.end() - 1)
        host = "__global__" not in match.group(0) and "__device__" not in match.group(0)
        if end > 0 and host and re.match(r"\s*(?:const\s*)?(?:noexcept\s*)?\{", masked[end:]):
            functions.add(match.group(1))
    return SourceFacts(
        kernels=kernels,
        launched=frozenset(launched),
        host_functions=frozenset(functions - set(kernels)),
        pybind_modules=len(re.findall(r"\bPYBIND11_MODULE\s*\(", masked)),
        unsupported=tuple(_unsupported(text, masked)),
    )
