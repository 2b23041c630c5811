"""Inline PTX for the simulator: every ``asm`` statement becomes C++ of the same line count.

``asm volatile("..." : outputs : inputs : clobbers);`` is read in full: the string literals are joined, split into PTX
instructions, and each instruction becomes a statement that calls into ``csim/ptx.h`` (the table is ``ptx_isa.py``). An
instruction that the simulator does not know becomes a call that reports ``unsupported PTX instruction`` when, and only
when, it is executed: code behind ``#if`` or in a template that is never used costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from crucible.sim import ptx_isa
from crucible.sim.ptx_operands import Operand, PtxError, immediate, special_register

# Comments, raw strings, strings and character literals: places where the word asm means nothing. A ' between digits is
# a separator, not a character literal.
_LITERAL = (
    r"//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/|R\"(?P<d>[^()\s\\\"]{0,16})\(.*?\)(?P=d)\"|\"(?:[^\"\\\n]|\\.|\\\n)*\""
    r"|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)+'"
)
_ASM = (
    r"\b(?P<asm>asm|__asm__|__asm)\b(?:\s|\\\n)*"
    r"(?:(?:volatile|__volatile__|__volatile|inline)\b(?:\s|\\\n)*)*\("
)
_SKIP = re.compile(_LITERAL, re.S)
_SKIP_OR_ASM = re.compile(f"{_LITERAL}|{_ASM}", re.S)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:[ \t]|\\\n)+(\"(?:[^\\\n]|\\.|\\\n)*)$", re.M)
_REGISTER = {"r": "uint32_t", "l": "uint64_t", "h": "uint16_t", "f": "float", "d": "double", "q": "unsigned __int128"}
_DECLARED = {
    "pred": "bool",
    "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t",
    "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t", "f16": "uint16_t", "bf16": "uint16_t",
    "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t", "f16x2": "uint32_t", "bf16x2": "uint32_t", "f32": "float",
    "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "f64": "double", "b128": "unsigned __int128",
}  # fmt: skip


@dataclass(frozen=True)
class Unsupported:
    """A PTX instruction in the source that the simulator cannot run."""

    instruction: str
    reason: str
    line: int


@dataclass(frozen=True)
class _Argument:
    """One operand of an asm statement: ``[name] "constraint" (expression)``."""

    constraint: str
    expression: str
    name: str | None


@dataclass(frozen=True)
class _Statement:
    """One asm statement, from the word ``asm`` to its closing parenthesis."""

    start: int
    end: int
    template: str
    outputs: tuple[_Argument, ...]
    inputs: tuple[_Argument, ...]


def rewrite_asm(text: str) -> str:
    """``text`` with every PTX asm statement turned into C++; the number of lines, and each line's place, stay."""
    pieces: list[str] = []
    at = 0
    for statement in _statements(text):
        original = text[statement.start : statement.end]
        line = text.count("\n", 0, statement.start) + 1
        code, _ = _translate(statement, line)
        pieces += [text[at : statement.start], code, _line_breaks(original)]
        at = statement.end
    return "".join([*pieces, text[at:]])


def unsupported(text: str) -> list[Unsupported]:
    """Every PTX instruction in ``text`` that ``rewrite_asm`` can only turn into a report, with its line."""
    found: list[Unsupported] = []
    for statement in _statements(text):
        line = text.count("\n", 0, statement.start) + 1
        found += _translate(statement, line)[1]
    return found


def _line_breaks(original: str) -> str:
    """The line breaks of ``original``, those continued by a backslash (inside a macro) still continued."""
    return "".join(" \\\n" if m.group(1) else "\n" for m in re.finditer(r"(\\?)[ \t]*\n", original))


# ---- finding asm statements ------------------------------------------------------------------------------------------


def _statements(text: str) -> Iterator[_Statement]:
    macros = {m.group(1): _without_comments(m.group(2)).replace("\n", " ") for m in _DEFINE.finditer(text)}
    at = 0
    while match := _SKIP_OR_ASM.search(text, at):
        at = match.end()
        if not match.group("asm"):
            continue
        close = _closing(text, match.end() - 1)
        if close < 0:
            return
        at = close
        statement = _parse_statement(text, match.start(), match.end(), close, macros)
        if statement is not None:
            yield statement


def _closing(text: str, start: int) -> int:
    """The index just past the parenthesis that closes the one at ``start``; -1 if there is none."""
    depth, at = 0, start
    while at < len(text):
        skip = _SKIP.match(text, at)
        if skip:
            at = skip.end()
            continue
        char = text[at]
        at += 1
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return at
    return -1


def _split(text: str, separator: str) -> list[str]:
    """``text`` split at each ``separator`` that stands outside brackets and literals."""
    parts, depth, at, begin = [], 0, 0, 0
    while at < len(text):
        skip = _SKIP.match(text, at)
        if skip:
            at = skip.end()
            continue
        char = text[at]
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    return [*parts, text[begin:]]


def _parse_statement(text: str, start: int, begin: int, close: int, macros: dict[str, str]) -> _Statement | None:
    sections = [part.strip() for part in _split(_without_comments(text[begin : close - 1]), ":")]
    sections[1:3] = [re.sub(r"\b[A-Za-z_]\w*\b", lambda m: _operand_list(m, macros), part) for part in sections[1:3]]
    template = _literals(sections[0], macros)
    before = text[:start].rstrip()
    if len(sections) == 1 and re.fullmatch(r"\w*", template.strip()) and template.strip() and not _is_bare(template):
        if before.endswith(")") or re.search(r"[\w\]]$", before):
            return None  # `int f() asm("name")`: a symbol's name, not an instruction
    if not template.strip() and not any(sections[1:3]):
        return None  # asm volatile("" ::: "memory"): a compiler fence, which g++ understands
    sections += [""] * (4 - len(sections))
    return _Statement(start, close, template, _arguments(sections[1]), _arguments(sections[2]))


def _operand_list(name: re.Match[str], macros: dict[str, str]) -> str:
    """The operands that a macro stands for, or the name itself: ``: OUTPUTS : "r"(x)``."""
    body = macros.get(name.group(), "")
    return body if re.match(r'"[^"]*"\s*\(', body) else name.group()


def _is_bare(template: str) -> bool:
    """One-word templates that are instructions and not symbol names."""
    return template.strip() in ("trap", "exit", "brkpt", "ret", "nop")


def _without_comments(text: str) -> str:
    def drop(match: re.Match[str]) -> str:
        return " " if match.group().startswith("/") else match.group()

    return _SKIP.sub(drop, text).replace("\\\n", "\n")


def _literals(text: str, macros: dict[str, str]) -> str:
    """The value of adjacent string literals. ``#x`` (a macro's stringified parameter) stays as ``\\x01x\\x02``; a name
    that is no known string macro is marked with ``\\x03``."""
    value, at = "", 0
    while at < len(text):
        rest = text[at:]
        if match := re.match(r"\s+", rest):
            pass
        elif match := re.match(r'R"([^()\s\\"]{0,16})\((.*?)\)\1"', rest, re.S):
            value += match.group(2)
        elif match := re.match(r'"((?:[^"\\\n]|\\.|\\\n)*)"', rest, re.S):
            value += re.sub(r"\\(.|\n)", lambda m: {"n": "\n", "t": "\t", "\n": ""}.get(m[1], m[1]), match.group(1))
        elif match := re.match(r"#\s*(\w+)", rest):
            value += f"\x01{match.group(1)}\x02"
        elif match := re.match(r"\w+", rest):
            value += _literals(macros[match.group()], macros) if match.group() in macros else f" \x03{match.group()} "
        else:
            match = re.match(r".", rest, re.S)
            value += rest[0]
        at += match.end() if match else 1
    return value


def _arguments(text: str) -> tuple[_Argument, ...]:
    arguments = []
    for part in _split(text, ","):
        match = re.match(r'\s*(?:\[(\w+)\]\s*)?"([^"]*)"\s*\((.*)\)\s*$', part, re.S)
        if match:
            arguments.append(_Argument(match.group(2), " ".join(match.group(3).split()), match.group(1)))
    return tuple(arguments)


# ---- one statement -> C++ --------------------------------------------------------------------------------------------


class _Scope:
    """What the names inside one asm statement stand for."""

    def __init__(self, statement: _Statement) -> None:
        self.arguments = (*statement.outputs, *statement.inputs)
        self.names = {a.name: i for i, a in enumerate(self.arguments) if a.name}
        self.registers: dict[str, str] = {}
        self.labels: set[str] = set()

    def operand(self, text: str) -> Operand:
        """Read one operand as PTX writes it."""
        text = text.strip()
        if text.startswith("{") and text.endswith("}"):
            return Operand("vector", parts=tuple(self.operand(part) for part in _split(text[1:-1], ",")))
        if text.startswith("["):
            inner = text[1 : text.rindex("]")]
            parts = _split(inner, ",")
            base, offset = parts[0].strip(), "0"
            if match := re.fullmatch(r"(.+?)\s*\+\s*(.+)", base, re.S):
                base, offset = match.group(1), self.operand(match.group(2)).code
            elif match := re.fullmatch(r"(.+?)\s*-\s*(\w+)", base, re.S):
                base, offset = match.group(1), "-" + match.group(2)
            return Operand("memory", code=self.operand(base).code, offset=offset)
        if text.startswith("!"):
            return Operand("value", code=f"(!{self.operand(text[1:]).code})")
        if "|" in text:
            return Operand("pair", parts=tuple(self.operand(part) for part in text.split("|")))
        if text == "_":
            return Operand("sink")
        if match := re.fullmatch(r"%(\d+)", text):
            return self.argument(int(match.group(1)))
        if match := re.fullmatch(r"%\[(\w+)\]", text):
            if match.group(1) in self.names:
                return self.argument(self.names[match.group(1)])
            raise PtxError(f"operand {text} is not declared")
        if match := re.fullmatch("\x01(\\w+)\x02", text):
            return Operand("value", code=f"({match.group(1)})")
        name = text.replace("%%", "%")
        if name in self.registers:
            return Operand("register", code=self.registers[name])
        if name.startswith("%"):
            return Operand("value", code=special_register(name))
        return Operand("value", code=immediate(text))

    def argument(self, index: int) -> Operand:
        if index >= len(self.arguments):
            raise PtxError(f"operand %{index} is not declared")
        return Operand("register", code=f"csim_{index}")

    def declare(self, directive: str) -> str:
        """``.reg .b32 a, b<4>`` -> local variables."""
        match = re.fullmatch(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)", directive, re.S)
        if not match or match.group(1) not in _DECLARED:
            raise PtxError(directive.split()[0], "this directive")
        names: list[str] = []
        for name in (part.strip().replace("%%", "%") for part in match.group(2).split(",")):
            ranged = re.fullmatch(r"(.+)<(\d+)>", name)
            names += [f"{ranged.group(1)}{i}" for i in range(int(ranged.group(2)))] if ranged else [name]
        for name in names:
            self.registers[name] = "csim_r_" + re.sub(r"\W", "_", name)
        variables = ", ".join(dict.fromkeys(self.registers[name] for name in names))
        return f"[[maybe_unused]] {_DECLARED[match.group(1)]} {variables};"


def _translate(statement: _Statement, line: int) -> tuple[str, list[Unsupported]]:
    scope = _Scope(statement)
    body: list[str] = []
    problems: list[Unsupported] = []
    try:
        instructions = list(_instructions(statement.template))
    except PtxError as error:
        instructions = []
        problems.append(Unsupported(error.what, error.reason, line))
        body.append(_report(error))
    scope.labels = {text[:-1] for text in instructions if text.endswith(":")}
    for text in instructions:
        try:
            body.append(_instruction(text, scope))
        except PtxError as error:
            problems.append(Unsupported(error.what, error.reason, line))
            body.append(_report(error))
    head = (
        [f"__label__ {', '.join(f'csim_l_{_plain(name)}' for name in sorted(scope.labels))};"] if scope.labels else []
    )
    tail = []
    for index, argument in enumerate(scope.arguments):
        head.append(_bind(index, argument))
        if index < len(statement.outputs):
            tail.append(f"csim::ptx::store({argument.expression}, csim_{index});")
    return "do { " + " ".join([*head, *body, *tail]) + " } while (0)", problems


def _bind(index: int, argument: _Argument) -> str:
    """A local variable for one operand: inputs get their value, pure outputs poison (they must be written)."""
    kind = argument.constraint.lstrip("=+&%")
    if kind in ("n", "i"):
        return f"[[maybe_unused]] const auto csim_{index} = {argument.expression};"
    if kind not in _REGISTER:
        return _report(PtxError(f'constraint "{argument.constraint}"', "this operand constraint"))
    register = _REGISTER[kind]
    if argument.constraint.startswith("="):
        return f"[[maybe_unused]] {register} csim_{index} = csim::ptx::poison<{register}>();"
    return f"[[maybe_unused]] {register} csim_{index} = csim::ptx::fetch<{register}>({argument.expression});"


def _report(error: PtxError) -> str:
    what = error.what.replace("\\", "\\\\").replace('"', '\\"').replace("\x01", "").replace("\x02", "")
    reason = error.reason.replace('"', '\\"')
    return f'csim::ptx::unsupported("{" ".join(what.split())}", "{reason}");'


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _instructions(template: str) -> Iterator[str]:
    """The instructions, labels and directives of a template; the braces of a scope are dropped."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template, flags=re.S)
    at, length = 0, len(text)
    while at < length:
        char = text[at]
        if char in " \t\r\n;{}":
            at += 1
            continue
        if match := re.compile(r"([\w$%]+)\s*:(?!:)").match(text, at):
            yield _plain(match.group(1)) + ":"
            at = match.end()
            continue
        end = text.find(";", at)
        end = length if end < 0 else end
        chunk = text[at:end]
        # The last instruction of a scope may lack its semicolon: cut at a brace that closes more than was opened.
        depth = 0
        for offset, inside in enumerate(chunk):
            depth += (inside == "{") - (inside == "}")
            if depth < 0:
                chunk, end = chunk[:offset], at + offset
                break
        yield " ".join(chunk.split())
        at = end


def _instruction(text: str, scope: _Scope) -> str:
    if text.endswith(":"):
        return f"csim_l_{text[:-1]}:;"
    if text.startswith(".reg"):
        return scope.declare(text)
    if text.startswith("."):
        raise PtxError(text.split()[0], "this directive")
    if match := re.search("\x03(\\w+)", text):
        raise PtxError(match.group(1), "asm text that comes from a macro parameter or an unknown macro")
    guard = ""
    if match := re.match(r"@(!?)\s*([\w$%\[\]]+)\s+(.*)", text, re.S):
        guard = f"if ({match.group(1)}{scope.operand(match.group(2)).code}) "
        text = match.group(3)
    opcode, _, rest = text.partition(" ")
    if opcode.split(".")[0] == "bra":
        target = _plain(rest.strip())
        if target not in scope.labels:
            raise PtxError(opcode, "a branch out of the asm statement")
        return f"{guard}goto csim_l_{target};"
    ptx_isa.check(opcode)
    try:
        operands = [scope.operand(part) for part in _split(rest, ",")] if rest.strip() else []
        return guard + "{ " + ptx_isa.translate(opcode, operands) + " }"
    except (IndexError, ValueError) as error:
        raise PtxError(opcode, "this form of its operands") from error
