"""The device side of a torch extension's CUDA source: same lines, host code blanked; and which kernels it instantiates.

NVRTC compiles device code only and knows neither torch nor the standard library. This walks the declarations at
namespace scope and keeps what a kernel may need: preprocessor lines, anything marked for the device, types, aliases,
constants.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_MASKED = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<d>[^\s()\\]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.S
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\[^\n])*", re.M)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.M)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)\n]*\))?((?:[^\n\\]|\\\n|\\[^\n])*)", re.M)

_DEVICE = re.compile(r"\b(?:__global__|__device__|__constant__|__shared__|__managed__|C10_DEVICE|C10_HOST_DEVICE)\b")
_HOST_TYPE = re.compile(
    r"\bTensor\b|\bpy::|\bpybind11\b|\btorch::(?!PackedTensorAccessor|RestrictPtrTraits|DefaultPtrTraits)\w"
    r"|\bat::(?:Tensor|IntArrayRef|ScalarType|cuda)\b|\bc10::(?:cuda|optional|IntArrayRef|ArrayRef|ScalarType)\b"
    r"|\bstd::(?:vector|string|tuple|map|unordered_map|function|shared_ptr|unique_ptr|optional|mutex|once_flag|cout|cerr"
    r"|ostream|ostringstream|initializer_list|runtime_error)\b|\bcuda(?:Stream|Event|DeviceProp|FuncAttributes)\w*"
    r"|\b(?:TORCH|PYBIND11)_\w+"
)
_TYPE_HEAD = re.compile(r"(?:typedef\b|struct\b|class\b|union\b|enum\b)")
_NAMESPACE_HEAD = re.compile(r"(?:inline\s+)?namespace\b[\w\s:]*$")

# Headers that only host code needs, or that NVRTC has built in, or that nvrtc_headers/prelude.h stands for.
_DROPPED_HEADERS = re.compile(
    r"(?:torch|ATen|c10|pybind11|thrust|python\d?|caffe2)/|(?:Python|torch|cuda|cuda_runtime|cuda_runtime_api|driver_types"
    r"|device_launch_parameters|vector_types|vector_functions|cuda_profiler_api|cublas\w*|cudnn\w*|cufft\w*|cusparse\w*"
    r"|cusolver\w*|nvToolsExt|curand|device_functions|helper_\w+|math|stdio|stdlib|stdint|string|float|limits|assert"
    r"|stddef|time|unistd)\.h$|[a-z_]+$"
)


@dataclass
class Kernel:
    """A `__global__` function: where it is defined, and its template parameters (None: no template)."""

    name: str
    line: int
    parameters: list[str] | None


@dataclass
class DeviceSource:
    """What NVRTC gets: the text, the headers it still includes, its kernels, and which templates to instantiate."""

    text: str
    headers: list[str] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    instances: list[str] = field(default_factory=list)  # taken from the source, e.g. "k<float, 256>"
    guesses: list[str] = field(default_factory=list)  # arguments are deduced there; these types are likely
    not_instantiated: list[str] = field(default_factory=list)


def device_source(source: str) -> DeviceSource:
    """The device-only view of CUDA source; every line keeps its number."""
    masked = mask(source)
    plain = _DIRECTIVE.sub(lambda m: _blank(m[0]), masked)
    qualifiers = _device_macros(source, masked)
    text = list(source)
    kernels: list[Kernel] = []
    host: list[_Chunk] = []
    for chunk in _chunks(plain, source):
        if _keep(chunk, qualifiers, source):
            kernel = _kernel(chunk, source)
            if kernel is not None:
                kernels.append(kernel)
        else:
            host.append(chunk)
            for index in range(chunk.start, chunk.end):
                if plain[index] != "\n" and masked[index] == plain[index]:
                    text[index] = " " if text[index] != "\n" else "\n"
    view = DeviceSource("".join(text), kernels=kernels)
    _drop_comments_and_headers(view, host, source)
    _find_instances(view, host, plain)
    return view


def mask(text: str) -> str:
    """The text with comments and literals blanked, every position kept."""
    return _MASKED.sub(lambda m: _blank(m[0]), text)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _drop_comments_and_headers(view: DeviceSource, host: list[_Chunk], source: str) -> None:
    text = list(view.text)
    for chunk in host:  # comments and literals inside host code, too: a lone quote would upset the compiler
        inside = source[chunk.start : chunk.end]
        for match in _MASKED.finditer(inside):
            for index in range(chunk.start + match.start(), chunk.start + match.end()):
                if text[index] != "\n":
                    text[index] = " "
    view.text = "".join(text)

    def include(match: re.Match[str]) -> str:
        if _DROPPED_HEADERS.match(match[1]):
            return _blank(match[0])
        name = "cub/cub.cuh" if match[1].startswith("cub/") else match[1]  # ours is one file
        view.headers.append(name)
        return match[0].replace(match[1], name)

    view.text = _INCLUDE.sub(include, view.text)


# ---- declarations at namespace scope ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chunk:
    """One declaration: its place in the source, its head (up to a body), whether it has a function body."""

    start: int
    end: int
    head: str
    is_function: bool


def _chunks(plain: str, source: str) -> Iterator[_Chunk]:
    position, size = 0, len(plain)
    while position < size:
        if plain[position].isspace() or plain[position] in ";}":  # a lone } closes a namespace
            position += 1
            continue
        start = position
        head_end = -1
        is_function = False
        while position < size:
            char = plain[position]
            if char in "([":
                position = _closing(plain, position)
            elif char == ";":
                position += 1
                break
            elif char == "}":  # end of a namespace behind something without semicolon (a macro call)
                break
            elif char == "{":
                head = plain[start:position]
                if _NAMESPACE_HEAD.match(head.strip()) or re.match(r'\s*extern\s*"C"\s*$', source[start:position]):
                    start = -1
                    position += 1
                    break
                if head_end < 0:
                    head_end = position
                position = _closing(plain, position)
                bare = _without_template(head)
                is_function = "(" in bare and "=" not in _outside_brackets(bare) and not _TYPE_HEAD.match(bare.strip())
                if is_function:
                    position += 1
                    break
            position += 1
        if start >= 0:
            yield _Chunk(start, position, plain[start : head_end if head_end >= 0 else position], is_function)


_PAIRS = {"(": ")", "[": "]", "{": "}"}


def _closing(text: str, position: int) -> int:
    """The position of the bracket that closes the one at `position`; the end of the text if there is none."""
    depth = 0
    opening, closing = text[position], _PAIRS[text[position]]
    for index in range(position, len(text)):
        if text[index] == opening:
            depth += 1
        elif text[index] == closing:
            depth -= 1
            if depth == 0:
                return index
    return len(text)


def _outside_brackets(text: str) -> str:
    depth, kept = 0, []
    for char in text:
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif depth == 0:
            kept.append(char)
    return "".join(kept)


def _angle_end(text: str, position: int) -> int:
    """One past the > that closes the < at `position`; -1 where that is no bracket after all."""
    depth = 0
    index = position
    while index < len(text):
        char = text[index]
        if char in "([{":
            index = _closing(text, index)
        elif char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
            if depth == 0:
                return index + 1
        elif char in ";}":
            return -1
        index += 1
    return -1


def _without_template(head: str) -> str:
    text = head.strip()
    while match := re.match(r"template\s*<", text):
        end = _angle_end(text, match.end() - 1)
        if end < 0:
            break
        text = text[end:].strip()
    return text


def _device_macros(source: str, masked: str) -> re.Pattern[str]:
    """What marks a declaration as the device's: CUDA's words and the file's own macros that contain one."""
    names = [m[1] for m in _DEFINE.finditer(source) if _DEVICE.search(m[3])]
    if not names:
        return _DEVICE
    return re.compile(_DEVICE.pattern + r"|\b(?:" + "|".join(map(re.escape, names)) + r")\b")


def _keep(chunk: _Chunk, device: re.Pattern[str], source: str) -> bool:
    head = _without_template(chunk.head)
    if device.search(chunk.head):
        return True
    whole = source[chunk.start : chunk.end]
    if _HOST_TYPE.search(mask(whole)):
        return False
    if chunk.is_function:
        return bool(re.search(r"\bconstexpr\b", head))
    if re.match(r"(?:using|typedef|static_assert|struct|class|union|enum|concept)\b", head) or "namespace" in head:
        return True
    if "(" in _until_equals(head):  # the declaration of a host function, or the call of a macro
        return False
    return bool(re.search(r"\b(?:const|constexpr)\b", head))


def _until_equals(head: str) -> str:
    return head.split("=", 1)[0]


# ---- kernels and their instances ----------------------------------------------------------------------------------

_KERNEL_NAME = re.compile(r"(\w+)\s*\(\s*$")


def _kernel(chunk: _Chunk, source: str) -> Kernel | None:
    if "__global__" not in chunk.head or not chunk.is_function:
        return None
    bare = re.sub(r"__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)", " ", _without_template(chunk.head))
    opening = bare.find("(")
    found = _KERNEL_NAME.search(bare[: opening + 1]) if opening >= 0 else None
    if found is None:
        return None
    line = source.count("\n", 0, chunk.start) + 1
    return Kernel(found[1], line, _template_parameters(chunk.head))


def _template_parameters(head: str) -> list[str] | None:
    match = re.match(r"\s*template\s*<", head)
    if match is None:
        return None
    end = _angle_end(head, match.end() - 1)
    return _split(head[match.end() : end - 1]) if end > 0 else []


def _split(text: str) -> list[str]:
    """At commas outside brackets of any kind."""
    parts, depth, current = [], 0, ""
    for char in text:
        if char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth -= 1
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return parts + [current.strip()] if current.strip() else parts


_DISPATCH = re.compile(r"\bAT_DISPATCH_(\w+)\s*\(([^{;]*)")


def _dispatched_types(text: str) -> list[str]:
    """The types that the AT_DISPATCH macros of this text name, in torch's own words."""
    types = ["float"]
    for match in _DISPATCH.finditer(text):
        words = match[1] + " " + match[2]
        if "REDUCED_FLOATING" not in match[1]:
            types.append("double")
        if re.search(r"HALF|Half|REDUCED_FLOATING", words):
            types.append("c10::Half")
        if re.search(r"BFLOAT16|BFloat16|REDUCED_FLOATING", words):
            types.append("c10::BFloat16")
    return list(dict.fromkeys(types))


def _find_instances(view: DeviceSource, host: list[_Chunk], plain: str) -> None:
    for kernel in view.kernels:
        if kernel.parameters is None:
            continue
        if not kernel.parameters:  # a full specialisation compiles by itself
            continue
        found: list[str] = []
        unresolved = False
        for chunk in host:
            body = plain[chunk.start : chunk.end]
            for match in re.finditer(rf"\b{re.escape(kernel.name)}\s*<(?!<)", body):
                end = _angle_end(body, match.end() - 1)
                if end < 0:
                    continue
                arguments = body[match.end() : end - 1]
                resolved = _resolve(arguments, chunk, host, plain)
                unresolved |= not resolved
                found += [f"{kernel.name}<{arguments}>" for arguments in resolved]
        explicit = re.search(rf"\btemplate\s+__global__[^;{{]*\b{re.escape(kernel.name)}\b", mask(view.text))
        if found:
            view.instances += found
        elif not explicit:
            guesses = _guess(kernel, plain) if not unresolved else []
            view.guesses += guesses
            if not guesses:
                view.not_instantiated.append(kernel.name)
    view.instances = list(dict.fromkeys(view.instances))[:64]


def _resolve(arguments: str, chunk: _Chunk, host: list[_Chunk], plain: str, depth: int = 0) -> list[str]:
    """Template arguments as written in host code, with its local names replaced; [] where one stays unknown."""
    body = plain[chunk.start : chunk.end]
    text = " ".join(arguments.split())
    for _ in range(6):
        previous = text
        for name in dict.fromkeys(re.findall(r"(?<![\w:.])[A-Za-z_]\w*", text)):
            local = _local_definition(name, body)
            if local is not None:
                text = re.sub(rf"(?<![\w:.]){name}\b", lambda _, new=local: new, text)  # type: ignore[misc]
        if text == previous:
            break
    parameters = [_parameter_name(p) for p in _template_parameters(chunk.head) or []]
    used = [p for p in parameters if p and re.search(rf"\b{p}\b", text)]
    if used and depth < 3:
        return _through_callers(text, chunk, parameters, host, plain, depth)
    if used:
        return []
    types = _dispatched_types(body)
    names = list(dict.fromkeys(re.findall(r"\b(\w*scalar_t\w*)\b", text)))
    variants = [text]
    for name in names:
        variants = [re.sub(rf"\b{name}\b", t, v) for v, t in itertools.product(variants, types)]
    return variants


def _local_definition(name: str, body: str) -> str | None:
    alias = re.search(rf"\busing\s+{name}\s*=\s*([^;]+);", body)
    if alias:
        return alias[1].strip()
    constant = re.search(rf"\b(?:constexpr|const)\b[\w\s:]*\b{name}\s*=\s*([^;,]+);", body)
    return f"({constant[1].strip()})" if constant else None


def _parameter_name(parameter: str) -> str:
    found = re.findall(r"\w+", parameter.split("=")[0])
    return found[-1] if found else ""


def _through_callers(
    text: str, chunk: _Chunk, parameters: list[str], host: list[_Chunk], plain: str, depth: int
) -> list[str]:
    """A launch inside a host template: use the arguments that its callers name."""
    bare = _without_template(chunk.head)
    name = re.search(r"(\w+)\s*\(", bare)
    if name is None:
        return []
    results: list[str] = []
    for caller in host:
        if caller is chunk:
            continue
        body = plain[caller.start : caller.end]
        for match in re.finditer(rf"\b{name[1]}\s*<(?!<)", body):
            end = _angle_end(body, match.end() - 1)
            given = _split(body[match.end() : end - 1]) if end > 0 else []
            filled = text
            for parameter, value in zip(parameters, given):
                if parameter:
                    filled = re.sub(rf"\b{parameter}\b", lambda _, new=value: new, filled)  # type: ignore[misc]
            if not any(p and re.search(rf"\b{p}\b", filled) for p in parameters[len(given) :]):
                results += _resolve(filled, caller, host, plain, depth + 1)
    return results


def _guess(kernel: Kernel, plain: str) -> list[str]:
    """Types alone can be guessed where the compiler would deduce them; numbers cannot."""
    needed = [p for p in kernel.parameters or [] if "=" not in p]
    if not needed or not all(re.match(r"(?:typename|class)\b(?!\s*\.\.\.)", p) for p in needed):
        return []
    return [f"{kernel.name}<{', '.join([t] * len(needed))}>" for t in _dispatched_types(plain)]
