"""The PTX instructions the simulator knows: one entry each, from opcode and operands to a C++ statement.

The C++ side is ``csim/ptx.h`` (and ``csim/mma.h``, ``csim/async.h``). A handler gets the opcode's dotted modifiers and
the operands; it returns statements, or raises :class:`PtxError` with what it does not know. ``UNSUPPORTED`` names the
families that are left out on purpose, with the words a user will read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

UNSUPPORTED: tuple[tuple[str, str], ...] = (
    ("wgmma", "warpgroup matrix multiply (sm_90a)"),
    ("tcgen05", "fifth-generation tensor cores (sm_100a)"),
    ("cp.async.bulk", "bulk copies and TMA (sm_90)"),
    ("cp.reduce.async", "bulk copies and TMA (sm_90)"),
    ("cp.async.mbarrier", "mbarrier objects"),
    ("mbarrier", "mbarrier objects"),
    ("fence.mbarrier_init", "mbarrier objects"),
    ("tensormap", "TMA descriptors (sm_90)"),
    ("setmaxnreg", "register reallocation between warps (sm_90a)"),
    ("barrier.cluster", "thread-block clusters (sm_90)"),
    ("mapa", "thread-block clusters (sm_90)"),
    ("getctarank", "thread-block clusters (sm_90)"),
    ("clusterlaunchcontrol", "thread-block clusters (sm_100)"),
    ("red.async", "thread-block clusters (sm_90)"),
    ("st.async", "thread-block clusters (sm_90)"),
    ("multimem", "multicast memory"),
    ("mma.sp", "sparse matrix multiply"),
    ("wmma", "PTX-level wmma (use nvcuda::wmma from mma.h)"),
    ("tex", "textures"),
    ("tld4", "textures"),
    ("txq", "textures"),
    ("suld", "surfaces"),
    ("sust", "surfaces"),
    ("sured", "surfaces"),
    ("call", "PTX function calls"),
    ("brx", "indirect branches"),
    ("addc", "carry chains"),
    ("subc", "carry chains"),
    ("madc", "carry chains"),
    ("stacksave", "stack manipulation"),
    ("alloca", "stack manipulation"),
)

C_TYPE = {
    "pred": "bool",
    "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t",
    "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t",
    "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t",
    "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "b128": "unsigned __int128",
    "f16": "__half", "f16x2": "__half2", "bf16": "__nv_bfloat16", "bf16x2": "__nv_bfloat162",
    "f32": "float", "f64": "double",
}  # fmt: skip
_BITS = {name: int(re.sub(r"\D", "", name.replace("x2", "")) or 1) * (2 if "x2" in name else 1) for name in C_TYPE}
_FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"}
# Modifiers that change how fast a chip does something, or how memory is cached, but not what is computed here.
_HINTS = {
    "ftz", "approx", "full", "aligned", "weak", "relaxed", "acquire", "release", "acq_rel", "sc", "volatile", "mmio",
    "cta", "gpu", "sys", "cluster", "nc", "ca", "cg", "cs", "cv", "lu", "wb", "wt", "noftz", "uni",
}  # fmt: skip


class PtxError(Exception):
    """Something in an asm statement that cannot be simulated: ``what`` is its text, ``reason`` says which feature."""

    def __init__(self, what: str, reason: str = "this instruction") -> None:
        super().__init__(f"unsupported PTX instruction `{what}` ({reason})")
        self.what = what
        self.reason = reason


@dataclass(frozen=True)
class Operand:
    """One operand: a register, a value, a memory address, a vector ``{a, b}``, a pair ``p|q``, or the sink ``_``."""

    kind: str
    code: str = ""
    offset: str = "0"
    parts: tuple[Operand, ...] = ()


Handler = Callable[[str, list[str], list[Operand]], str]


def check(opcode: str) -> None:
    """Raise for an instruction that is not known, whatever its operands look like."""
    for prefix, reason in UNSUPPORTED:
        if opcode == prefix or opcode.startswith(prefix + "."):
            raise PtxError(opcode, reason)
    if opcode.split(".")[0] not in HANDLERS:
        raise PtxError(opcode)


def translate(opcode: str, operands: list[Operand]) -> str:
    """One instruction as C++ statements."""
    name, *modifiers = opcode.split(".")
    return HANDLERS[name](opcode, modifiers, operands)


# ---- operands --------------------------------------------------------------------------------------------------------

_SPECIAL = {
    "%laneid": "(uint32_t)csim_lane()", "%warpid": "(uint32_t)csim_warp()",
    "%nwarpid": "csim::ptx::warps()", "%smid": "csim::ptx::smid()", "%nsmid": "csim::ptx::nsmid()",
    "%gridid": "(uint64_t)0", "%clusterid.x": "(uint32_t)0", "%cluster_ctarank": "(uint32_t)0",
    "%cluster_nctarank": "(uint32_t)1", "%cluster_nctaid.x": "(uint32_t)1", "%is_explicit_cluster": "false",
    "%lanemask_eq": "(1u << csim_lane())", "%lanemask_lt": "((1u << csim_lane()) - 1u)",
    "%lanemask_le": "((2u << csim_lane()) - 1u)", "%lanemask_gt": "(~((2u << csim_lane()) - 1u))",
    "%lanemask_ge": "(~((1u << csim_lane()) - 1u))",
    "%clock": "(uint32_t)csim::ptx::ticks()", "%clock_hi": "(uint32_t)(csim::ptx::ticks() >> 32)",
    "%clock64": "csim::ptx::ticks()", "%globaltimer": "csim::ptx::nanoseconds()",
    "%globaltimer_lo": "(uint32_t)csim::ptx::nanoseconds()",
    "%globaltimer_hi": "(uint32_t)(csim::ptx::nanoseconds() >> 32)",
    "%dynamic_smem_size": "csim::ptx::dynamic_shared()", "%total_smem_size": "csim::ptx::dynamic_shared()",
}  # fmt: skip
_SPECIAL |= {
    f"%{ptx}.{axis}": f"(uint32_t)({cuda}.{axis})"
    for ptx, cuda in (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"))
    for axis in "xyz"
}


def special_register(name: str) -> str:
    """C++ for ``%laneid`` and its like."""
    if name not in _SPECIAL:
        raise PtxError(name, "this special register")
    return _SPECIAL[name]


def immediate(text: str) -> str:
    """C++ for a literal as PTX writes it (``0f3f800000`` is a float by its bits)."""
    if match := re.fullmatch(r"(-?)0[fF]([0-9a-fA-F]{8})", text):
        return f"({match.group(1)}csim::bit_cast<float>(0x{match.group(2)}u))"
    if match := re.fullmatch(r"(-?)0[dD]([0-9a-fA-F]{16})", text):
        return f"({match.group(1)}csim::bit_cast<double>((uint64_t)0x{match.group(2)}ull))"
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uU]?", text):
        value = int(text.rstrip("uU"), 0) if not re.fullmatch(r"-?0\d+[uU]?", text) else int(text.rstrip("uU"), 8)
        return f"({value}ll)" if value < 2**63 else f"({value}ull)"
    if re.fullmatch(r"-?\d+\.\d*(e[+-]?\d+)?", text, re.I):
        return f"({text})"
    if text == "WARP_SZ":
        return "(32ll)"
    raise PtxError(text, "this operand")


def _read(kind: str, operand: Operand) -> str:
    """The operand's value as PTX type ``kind``."""
    if operand.kind not in ("register", "value"):
        raise PtxError(operand.code or operand.kind, "this operand")
    return f"csim::ptx::as<{C_TYPE[kind]}>({operand.code})"


def _write(operand: Operand, value: str) -> str:
    if operand.kind == "sink":
        return f"(void)({value});"
    if operand.kind != "register":
        raise PtxError(operand.code or operand.kind, "this destination")
    return f"csim::ptx::put({operand.code}, {value});"


def _pointer(operand: Operand, modifiers: list[str]) -> str:
    """The host address behind ``[a+offset]`` in the state space that the modifiers name."""
    if operand.kind != "memory":
        raise PtxError(operand.code, "this address")
    space = next(
        (m.split("::")[0] for m in modifiers if m.split("::")[0] in ("shared", "global", "local", "const")), ""
    )
    if "shared::cluster" in modifiers:
        raise PtxError("shared::cluster", "thread-block clusters (sm_90)")
    function = "shared_address" if space == "shared" else "generic_address"
    return f"csim::ptx::{function}(csim::ptx::as<uint64_t>({operand.code}), {operand.offset})"


def _type(opcode: str, modifiers: list[str], last: int = 1) -> str:
    """The ``last``-th type from the end among the modifiers."""
    types = [m for m in modifiers if m in C_TYPE]
    if len(types) < last:
        raise PtxError(opcode)
    return types[-last]


def _only(opcode: str, modifiers: list[str], *allowed: str) -> None:
    """Raise if a modifier is neither a type, a hint, nor one of ``allowed``."""
    for modifier in modifiers:
        if modifier in C_TYPE or modifier in _HINTS or modifier in allowed:
            continue
        if modifier.startswith(("L1::", "L2::", "shared", "global", "local", "const", "param", "unified", "level::")):
            continue
        raise PtxError(opcode, f"its modifier .{modifier}")


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def _finish(kind: str, modifiers: list[str], value: str) -> str:
    """.sat and .relu, applied to a result of type ``kind``."""
    if "sat" in modifiers:
        value = f"csim::ptx::saturate<{C_TYPE[kind]}>({value})"
    if "relu" in modifiers:
        value = f"csim::ptx::relu<{C_TYPE[kind]}>({value})"
    return value


_ROUNDING = ("rn", "rz", "rm", "rp")


def _n_ary(function: str, count: int, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    _only(opcode, modifiers, "sat", "relu", "NaN", "lo", *_ROUNDING)
    kind = _type(opcode, modifiers)
    if "NaN" in modifiers:
        function += "_nan"
    rounding = next((m for m in modifiers if m in ("rz", "rm", "rp")), None)
    if rounding:
        if function not in ("add", "sub", "mul", "fma", "div", "sqrt", "rcp") or kind not in ("f32", "f64"):
            raise PtxError(opcode, f"its rounding .{rounding}")
        function += "_" + {"rz": "rz", "rm": "rd", "rp": "ru"}[rounding]
    arguments = ", ".join(_read(kind, operand) for operand in operands[1 : 1 + count])
    value = f"csim::ptx::{function}<{C_TYPE[kind]}>({arguments})"
    return _write(operands[0], _finish(kind, modifiers, value))


def _wide(opcode: str, modifiers: list[str], operands: list[Operand]) -> tuple[str, str]:
    """The product of ``mul``/``mad`` with .lo, .hi, .wide, and its C++ type."""
    kind = _type(opcode, modifiers)
    a, b = _read(kind, operands[1]), _read(kind, operands[2])
    if "wide" in modifiers:
        double = C_TYPE[f"{kind[0]}{_BITS[kind] * 2}"]
        return f"csim::ptx::mul<{double}>(({double}){a}, ({double}){b})", double
    function = "mul_hi" if "hi" in modifiers else "mul"
    return f"csim::ptx::{function}<{C_TYPE[kind]}>({a}, {b})", C_TYPE[kind]


def _mul(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if _type(opcode, modifiers) in _FLOATS:
        return _n_ary("mul", 2, opcode, modifiers, operands)
    _only(opcode, modifiers, "lo", "hi", "wide")
    return _write(operands[0], _wide(opcode, modifiers, operands)[0])


def _mad(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if "cc" in modifiers:
        raise PtxError(opcode, "carry chains")
    if _type(opcode, modifiers) in _FLOATS:
        return _n_ary("fma", 3, opcode, modifiers, operands)
    _only(opcode, modifiers, "lo", "hi", "wide")
    product, kind = _wide(opcode, modifiers, operands)
    return _write(operands[0], f"csim::ptx::add<{kind}>({product}, csim::ptx::as<{kind}>({operands[3].code}))")


def _add_sub(function: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if "cc" in modifiers:
        raise PtxError(opcode, "carry chains")
    return _n_ary(function, 2, opcode, modifiers, operands)


def _shift(direction: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = _type(opcode, modifiers)
    value = f"csim::ptx::{direction}<{C_TYPE[kind]}>({_read(kind, operands[1])}, {_read('u32', operands[2])})"
    return _write(operands[0], value)


def _to_u32(function: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = _type(opcode, modifiers)
    return _write(operands[0], f"csim::ptx::{function}<{C_TYPE[kind]}>({_read(kind, operands[1])})")


def _all_u32(function: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    arguments = ", ".join(_read("u32", operand) for operand in operands[1:])
    return _write(operands[0], f"csim::ptx::{function}({arguments})")


def _prmt(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    mode = next((m for m in modifiers if m in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")), None)
    if mode:
        raise PtxError(opcode, f"its mode .{mode}")
    return _all_u32("permute", opcode, modifiers, operands)


def _shf(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    suffix = ("l" if "l" in modifiers else "r") + ("c" if "clamp" in modifiers else "")
    arguments = ", ".join(_read("u32", operand) for operand in operands[1:4])
    return _write(operands[0], f"__funnelshift_{suffix}({arguments})")


def _bit_field(function: str, inputs: int, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = _type(opcode, modifiers)
    values = [_read(kind, operand) for operand in operands[1 : 1 + inputs]]
    values += [_read("u32", operand) for operand in operands[1 + inputs :]]
    return _write(operands[0], f"csim::ptx::{function}<{C_TYPE[kind]}>({', '.join(values)})")


def _dot(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    types = [C_TYPE[m.replace("32", "8")] for m in modifiers if m in ("s32", "u32")]
    if opcode.startswith("dp2a"):
        raise PtxError(opcode)
    arguments = ", ".join(_read("u32", operand) for operand in operands[1:4])
    return _write(operands[0], f"csim::dp4a<{types[0]}, {types[1]}>({arguments})")


_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_OR_UNORDERED = {"neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}  # true also for NaN: not the opposite


def _comparison(opcode: str, modifiers: list[str], a: Operand, b: Operand) -> str:
    kind = _type(opcode, modifiers)
    left, right = _read(kind, a), _read(kind, b)
    if kind in ("f16", "bf16"):
        left, right = f"csim::to_double({left})", f"csim::to_double({right})"
    elif kind in ("f16x2", "bf16x2"):
        raise PtxError(opcode, "comparison of pairs")
    operator = modifiers[0]
    if operator == "ne" and kind in _FLOATS:
        return f"csim::ptx::ordered_unequal({left}, {right})"
    if operator in _ORDERED or operator in _UNSIGNED:
        return f"({left} {_ORDERED.get(operator) or _UNSIGNED[operator]} {right})"
    if operator in _OR_UNORDERED:
        return f"(!({left} {_OR_UNORDERED[operator]} {right}))"
    if operator == "equ":
        return f"(!csim::ptx::ordered_unequal({left}, {right}))"
    if operator in ("num", "nan"):
        either = f"(std::isnan({left}) || std::isnan({right}))"
        return f"(!{either})" if operator == "num" else either
    raise PtxError(opcode)


def _setp(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    result = _comparison(opcode, modifiers, operands[1], operands[2])
    negated = f"(!{result})"
    if len(operands) > 3:
        combine = next((m for m in modifiers[1:] if m in ("and", "or", "xor")), None)
        if combine is None:
            raise PtxError(opcode)
        operator = {"and": "&&", "or": "||", "xor": "!="}[combine]
        other = f"(bool)({operands[3].code})"
        result, negated = f"({result} {operator} {other})", f"({negated} {operator} {other})"
    if operands[0].kind == "pair":
        first, second = operands[0].parts
        return f"bool csim_t = {result}, csim_f = {negated}; {_write(first, 'csim_t')} {_write(second, 'csim_f')}"
    return _write(operands[0], result)


def _set(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = _type(opcode, modifiers, 2)
    result = _comparison(opcode, modifiers, operands[1], operands[2])
    yes = "1.0f" if kind == "f32" else "0xffffffffu"
    no = "0.0f" if kind == "f32" else "0u"
    return _write(operands[0], f"({result} ? {yes} : {no})")


def _selp(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = _type(opcode, modifiers)
    chosen = f"(({operands[3].code}) ? {_read(kind, operands[1])} : {_read(kind, operands[2])})"
    return _write(operands[0], chosen)


def _not(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = _type(opcode, modifiers)
    operator = "!" if kind == "pred" else "~"
    return _write(operands[0], f"({C_TYPE[kind]})({operator}{_read(kind, operands[1])})")


def _cvt(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    rounding = next((m for m in modifiers if re.fullmatch(r"r(n|z|m|p|na|ni|zi|mi|pi)", m)), "rn")
    if "pack" in modifiers or any(re.match(r"e[2-8]m[0-9]|ue8m0|s2f6", m) for m in modifiers):
        raise PtxError(opcode, "8-bit and smaller floating-point formats" if "pack" not in modifiers else "cvt.pack")
    if "tf32" in modifiers:
        return _write(operands[0], f"csim::ptx::to_tf32({_read('f32', operands[1])}, csim::ptx::Round::{rounding})")
    _only(opcode, modifiers, "sat", "relu", rounding)
    target, source = _type(opcode, modifiers, 2), _type(opcode, modifiers)

    def convert(operand: Operand, to: str) -> str:
        call = f"csim::ptx::convert<{C_TYPE[to]}>({_read(source, operand)}, csim::ptx::Round::{rounding}"
        call += f", {'true' if 'sat' in modifiers else 'false'})"
        return f"csim::ptx::relu<{C_TYPE[to]}>({call})" if "relu" in modifiers else call

    if target in ("f16x2", "bf16x2"):
        scalar = target[:-2]
        return _write(operands[0], f"csim::ptx::pair({convert(operands[2], scalar)}, {convert(operands[1], scalar)})")
    return _write(operands[0], convert(operands[1], target))


# ---- moving data -----------------------------------------------------------------------------------------------------


def _mov(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    target, source = operands
    kind = _type(opcode, modifiers)
    if target.kind == "vector":  # mov.b32 {lo, hi}, r: take a register apart
        part = f"b{_BITS[kind] // len(target.parts)}"
        pieces = [f"{C_TYPE[kind]} csim_v = {_read(kind, source)};"]
        for index, operand in enumerate(target.parts):
            pieces.append(_write(operand, f"({C_TYPE[part]})(csim_v >> {index * _BITS[part]})"))
        return " ".join(pieces)
    if source.kind == "vector":  # mov.b32 r, {lo, hi}: put one together
        part = f"b{_BITS[kind] // len(source.parts)}"
        halves = [
            f"({C_TYPE[kind]}){_read(part, operand)} << {index * _BITS[part]}"
            for index, operand in enumerate(source.parts)
        ]
        return _write(target, f"({C_TYPE[kind]})({' | '.join(halves)})")
    return _write(target, _read(kind, source))


def _elements(operand: Operand, count: int) -> list[Operand]:
    parts = list(operand.parts) if operand.kind == "vector" else [operand]
    if len(parts) != count:
        raise ValueError("wrong number of vector elements")
    return parts


def _vector_length(modifiers: list[str]) -> int:
    return next((int(m[1:]) for m in modifiers if re.fullmatch(r"v[248]", m)), 1)


def _ld(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    _only(opcode, modifiers, "v2", "v4", "v8")
    kind, count = _type(opcode, modifiers), _vector_length(modifiers)
    targets = _elements(operands[0], count)
    atomic = "true" if {"volatile", "relaxed", "acquire"} & set(modifiers) else "false"
    code = f"{C_TYPE[kind]} csim_v[{count}]; csim::ptx::load<{atomic}>({_pointer(operands[1], modifiers)}, csim_v); "
    return code + " ".join(_write(target, f"csim_v[{i}]") for i, target in enumerate(targets))


def _st(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    _only(opcode, modifiers, "v2", "v4", "v8")
    kind, count = _type(opcode, modifiers), _vector_length(modifiers)
    values = ", ".join(_read(kind, source) for source in _elements(operands[1], count))
    atomic = "true" if {"volatile", "relaxed", "release"} & set(modifiers) else "false"
    return (
        f"const {C_TYPE[kind]} csim_v[{count}] = {{{values}}}; "
        f"csim::ptx::save<{atomic}>({_pointer(operands[0], modifiers)}, csim_v);"
    )


def _cvta(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = _type(opcode, modifiers)
    space = next((m.split("::")[0] for m in modifiers if m not in C_TYPE and m != "to"), "")
    value = _read("u64", operands[1])
    if space == "shared" and "to" in modifiers:
        value = f"(uint64_t)csim::to_shared((const void*)(uintptr_t){value})"
    elif space == "shared":
        value = f"(uint64_t)(uintptr_t)csim::ptx::shared_address({value}, 0)"
    elif space not in ("global", "local", "const", "param"):
        raise PtxError(opcode)
    return _write(operands[0], f"({C_TYPE[kind]}){value}")


def _isspacep(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    function = {"shared": "__isShared", "shared::cta": "__isShared", "global": "__isGlobal"}.get(modifiers[0])
    if function is None:
        raise PtxError(opcode)
    return _write(operands[0], f"(bool){function}((const void*)(uintptr_t){_read('u64', operands[1])})")


def _cp(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if modifiers[:2] == ["async", "commit_group"]:
        return "csim::async::commit();"
    if modifiers[:2] == ["async", "wait_group"]:
        return f"csim::async::wait_group({_read('u32', operands[0])});"
    if modifiers[:2] == ["async", "wait_all"]:
        return "csim::async::wait_all();"
    if modifiers[:1] != ["async"] or not {"ca", "cg"} & set(modifiers) or "global" not in modifiers:
        raise PtxError(opcode)
    target = _pointer(operands[0], ["shared"])
    source = f"csim::ptx::generic_address(csim::ptx::as<uint64_t>({operands[1].code}), {operands[1].offset})"
    size = _read("u32", operands[2])
    hinted = any(m.startswith("L2::cache_hint") for m in modifiers)
    extra = operands[3:-1] if hinted else operands[3:]
    filled = f"csim::async::source_bytes({extra[0].code}, {size})" if extra else size
    return f'csim::async::copy({target}, {source}, {size}, {filled}, "{opcode}", {str("cg" in modifiers).lower()});'


def _policy(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return _write(operands[0], "(uint64_t)0")


def _nothing(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return ""


# ---- matrices --------------------------------------------------------------------------------------------------------

_MMA_TYPES = {
    "f16": "csim::mma::F16", "bf16": "csim::mma::Bf16", "tf32": "csim::mma::Tf32", "f64": "csim::mma::F64",
    "s8": "csim::mma::S8", "u8": "csim::mma::U8",
}  # fmt: skip
# (shape, operand type) -> allowed accumulators; a shape's fragments all follow one rule (csim/mma.h)
_MMA_FORMS = {
    ("m16n8k16", "f16"): ("f32", "f16"), ("m16n8k8", "f16"): ("f32", "f16"),
    ("m16n8k16", "bf16"): ("f32",), ("m16n8k8", "bf16"): ("f32",),
    ("m16n8k8", "tf32"): ("f32",), ("m16n8k4", "tf32"): ("f32",),
    ("m16n8k32", "s8"): ("s32",), ("m16n8k32", "u8"): ("s32",), ("m16n8k16", "s8"): ("s32",),
    ("m16n8k16", "u8"): ("s32",), ("m8n8k16", "s8"): ("s32",), ("m8n8k16", "u8"): ("s32",),
    ("m8n8k4", "f64"): ("f64",),
}  # fmt: skip


def _mma(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    shape = next((m for m in modifiers if re.fullmatch(r"m\d+n\d+k\d+", m)), "")
    types = [m for m in modifiers if m in _MMA_TYPES or m in ("f32", "s32")]
    if len(types) != 4 or modifiers[0] != "sync":
        raise PtxError(opcode)
    d_type, a_type, b_type, c_type = types
    mixed = {a_type, b_type} <= {"s8", "u8"}
    if (a_type != b_type and not mixed) or c_type not in _MMA_FORMS.get((shape, a_type), ()):
        raise PtxError(opcode, "this shape and type of matrix multiply")
    if d_type != c_type or modifiers[modifiers.index(shape) + 1 : modifiers.index(shape) + 3] != ["row", "col"]:
        raise PtxError(opcode, "this layout or mix of accumulators")
    m, _, k = (int(n) for n in re.findall(r"\d+", shape))
    per_register = {"f16": 2, "bf16": 2, "tf32": 1, "f64": 1, "s8": 4, "u8": 4}[a_type]
    counts = {"a": m * k // 32 // per_register, "b": 8 * k // 32 // per_register}
    counts["c"] = counts["d"] = m * 8 // 32 // (2 if c_type == "f16" else 1)
    kind = "double" if a_type == "f64" else "uint32_t"
    read = "f64" if a_type == "f64" else "b32"
    lines = []
    for name, operand in zip("abc", operands[1:4], strict=True):
        values = ", ".join(_read(read, part) for part in _elements(operand, counts[name]))
        lines.append(f"const {kind} csim_{name}[] = {{{values}}};")
    saturate = ", true" if "satfinite" in modifiers else ""
    form = f"{_MMA_TYPES[a_type]}, {_MMA_TYPES[b_type]}, csim::mma::Acc::{c_type}, {m}, {k}"
    lines.append(f"{kind} csim_d[{counts['d']}]; csim::mma::sync<{form}>(csim_d, csim_a, csim_b, csim_c{saturate});")
    lines += [_write(part, f"csim_d[{i}]") for i, part in enumerate(_elements(operands[0], counts["d"]))]
    return " ".join(lines)


def _matrix_form(opcode: str, modifiers: list[str]) -> tuple[int, str]:
    if "m8n8" not in modifiers or _type(opcode, modifiers) != "b16":
        raise PtxError(opcode, "this shape of matrix load or store")
    count = next((int(m[1:]) for m in modifiers if m in ("x1", "x2", "x4")), 0)
    if not count:
        raise PtxError(opcode)
    return count, "true" if "trans" in modifiers else "false"


def _ldmatrix(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    count, transposed = _matrix_form(opcode, modifiers)
    address = _pointer(operands[1], ["shared"])
    code = f"uint32_t csim_v[{count}]; csim::mma::ldmatrix<{count}, {transposed}>(csim_v, {address}); "
    return code + " ".join(_write(part, f"csim_v[{i}]") for i, part in enumerate(_elements(operands[0], count)))


def _stmatrix(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    count, transposed = _matrix_form(opcode, modifiers)
    values = ", ".join(_read("b32", part) for part in _elements(operands[1], count))
    address = _pointer(operands[0], ["shared"])
    return (
        f"const uint32_t csim_v[{count}] = {{{values}}}; csim::mma::stmatrix<{count}, {transposed}>({address}, csim_v);"
    )


def _movmatrix(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return _write(operands[0], f"csim::mma::movmatrix({_read('b32', operands[1])})")


# ---- threads together ------------------------------------------------------------------------------------------------


def _bar(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    modifiers = [m for m in modifiers if m not in ("cta", "aligned")]
    if modifiers == ["warp", "sync"]:
        return f"__syncwarp({_read('u32', operands[0])});"
    number = _read("u32", operands[0]) if operands else "0"
    threads = _read("u32", operands[1]) if len(operands) > 1 else "0"
    if modifiers == ["sync"]:
        return f'csim_block_barrier((int){number}, (int){threads}, "{opcode}");'
    if modifiers == ["arrive"]:
        return f'csim::ptx::arrive((int){number}, (int){threads}, "{opcode}");'
    if modifiers[0] == "red" and number.endswith("(0ll))") and len(operands) == 3:
        predicate = f"(int)({operands[2].code})"
        function = {"popc": "__syncthreads_count", "and": "__syncthreads_and", "or": "__syncthreads_or"}[modifiers[1]]
        return _write(operands[0], f"{function}({predicate})")
    raise PtxError(opcode)


def _fence(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if "cta" in modifiers:
        return "__threadfence_block();"
    return "__threadfence();"  # .gl/.gpu, .sys; fence.proxy.* orders what is already in order here


_ATOMIC = {
    "add": "atomicAdd", "min": "atomicMin", "max": "atomicMax", "and": "atomicAnd", "or": "atomicOr",
    "xor": "atomicXor", "exch": "atomicExch", "inc": "atomicInc", "dec": "atomicDec", "cas": "atomicCAS",
}  # fmt: skip
# CUDA's atomics are declared for these spellings; the PTX types are the fixed-width ones
_ATOMIC_TYPE = {
    "b32": "unsigned", "u32": "unsigned", "s32": "int", "b64": "unsigned long long", "u64": "unsigned long long",
    "s64": "long long", "f32": "float", "f64": "double", "f16": "__half", "f16x2": "__half2", "bf16": "__nv_bfloat16",
    "bf16x2": "__nv_bfloat162", "b16": "unsigned short",
}  # fmt: skip


def _atom(has_result: bool, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    _only(opcode, modifiers, "v2", "v4", "v8", *_ATOMIC)
    operation = next((m for m in modifiers if m in _ATOMIC), None)
    kind, count = _type(opcode, modifiers), _vector_length(modifiers)
    if operation is None or kind not in _ATOMIC_TYPE or (count > 1 and operation != "add"):
        raise PtxError(opcode)
    target, operands = (operands[0], operands[1:]) if has_result else (Operand("sink"), operands)
    c_type = _ATOMIC_TYPE[kind]
    pointer = f"(({c_type}*){_pointer(operands[0], modifiers)})"
    sources = [f"csim::ptx::as<{c_type}>({part.code})" for part in _elements(operands[1], count)]
    if count == 1:
        more = [f"csim::ptx::as<{c_type}>({operands[2].code})"] if operation == "cas" else []
        return _write(target, f"{_ATOMIC[operation]}({', '.join([pointer, *sources, *more])})")
    targets = _elements(target, count) if has_result else [target] * count
    return " ".join(
        _write(each, f"{_ATOMIC[operation]}({pointer} + {i}, {source})")
        for i, (each, source) in enumerate(zip(targets, sources, strict=True))
    )


def _shfl(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    mode = next((m for m in modifiers if m in ("up", "down", "bfly", "idx")), None)
    if mode is None or modifiers[0] != "sync":
        raise PtxError(opcode)
    values = ", ".join(_read("u32", operand) for operand in operands[1:5])
    targets = operands[0].parts if operands[0].kind == "pair" else (operands[0], Operand("sink"))
    code = f"bool csim_p = false; uint32_t csim_v = csim::ptx::shuffle(csim::ptx::Shuffle::{mode}, {values}, csim_p); "
    return code + _write(targets[0], "csim_v") + " " + _write(targets[1], "csim_p")


def _vote(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if modifiers[0] != "sync":
        raise PtxError(opcode)
    mask, predicate = _read("u32", operands[2]), f"(int)({operands[1].code})"
    if modifiers[1] in ("any", "all", "ballot"):
        result = f"__{modifiers[1]}_sync({mask}, {predicate})"
        return _write(operands[0], result if modifiers[1] == "ballot" else f"(bool){result}")
    if modifiers[1] == "uni":
        return (
            f"unsigned csim_m = {mask}, csim_b = __ballot_sync(csim_m, {predicate}); "
            f"{_write(operands[0], '(bool)(csim_b == 0 || csim_b == csim_m)')}"
        )
    raise PtxError(opcode)


def _match(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = "u64" if _type(opcode, modifiers) == "b64" else "u32"
    value = f"(unsigned long long){_read('u64', operands[1])}" if kind == "u64" else _read("u32", operands[1])
    mask = _read("u32", operands[2])
    if modifiers[0] == "any":
        return _write(operands[0], f"__match_any_sync({mask}, {value})")
    targets = operands[0].parts if operands[0].kind == "pair" else (operands[0], Operand("sink"))
    code = f"int csim_p = 0; unsigned csim_v = __match_all_sync({mask}, {value}, &csim_p); "
    return code + _write(targets[0], "csim_v") + " " + _write(targets[1], "(bool)csim_p")


def _redux(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = _type(opcode, modifiers)
    if kind == "f32" or modifiers[0] != "sync":
        raise PtxError(opcode)
    c_type = "int" if kind == "s32" else "unsigned"
    value = f"csim::ptx::as<{c_type}>({operands[1].code})"
    return _write(operands[0], f"__reduce_{modifiers[1]}_sync({_read('u32', operands[2])}, {value})")


def _elect(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    targets = operands[0].parts if operands[0].kind == "pair" else (operands[0], Operand("sink"))
    code = f"uint32_t csim_m = {_read('u32', operands[1])}; __syncwarp(csim_m); int csim_e = __builtin_ctz(csim_m); "
    return code + _write(targets[0], "(uint32_t)csim_e") + " " + _write(targets[1], "(csim_lane() == csim_e)")


def _call(code: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return code


def _nanosleep(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return f"__nanosleep({_read('u32', operands[0])});"


def _activemask(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return _write(operands[0], "csim_activemask()")


def _testp(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    function = {"finite": "std::isfinite", "infinite": "std::isinf", "notanumber": "std::isnan"}.get(modifiers[0])
    if function is None:
        raise PtxError(opcode)
    return _write(operands[0], f"{function}({_read(_type(opcode, modifiers), operands[1])})")


HANDLERS: dict[str, Handler] = {
    "add": partial(_add_sub, "add"), "sub": partial(_add_sub, "sub"), "mul": _mul, "mad": _mad,
    "fma": partial(_n_ary, "fma", 3), "div": partial(_n_ary, "div", 2), "rem": partial(_n_ary, "rem", 2),
    "min": partial(_n_ary, "min", 2), "max": partial(_n_ary, "max", 2),
    "neg": partial(_n_ary, "neg", 1), "abs": partial(_n_ary, "abs", 1), "copysign": partial(_n_ary, "copysign", 2),
    "rcp": partial(_n_ary, "rcp", 1), "sqrt": partial(_n_ary, "sqrt", 1), "rsqrt": partial(_n_ary, "rsqrt", 1),
    "ex2": partial(_n_ary, "ex2", 1), "lg2": partial(_n_ary, "lg2", 1), "sin": partial(_n_ary, "sin", 1),
    "cos": partial(_n_ary, "cos", 1), "tanh": partial(_n_ary, "tanh", 1), "testp": _testp,
    "and": partial(_n_ary, "bit_and", 2), "or": partial(_n_ary, "bit_or", 2), "xor": partial(_n_ary, "bit_xor", 2),
    "not": _not, "shl": partial(_shift, "shl"), "shr": partial(_shift, "shr"), "shf": _shf,
    "lop3": partial(_all_u32, "lop3"), "prmt": _prmt, "popc": partial(_to_u32, "popc"), "clz": partial(_to_u32, "clz"),
    "brev": partial(_to_u32, "brev"), "bfind": partial(_to_u32, "bfind"),
    "bfe": partial(_bit_field, "bfe", 1), "bfi": partial(_bit_field, "bfi", 2), "dp4a": _dot, "dp2a": _dot,
    "setp": _setp, "set": _set, "selp": _selp, "cvt": _cvt, "mov": _mov, "ld": _ld, "ldu": _ld, "st": _st,
    "cvta": _cvta, "isspacep": _isspacep, "cp": _cp, "createpolicy": _policy, "prefetch": _nothing,
    "prefetchu": _nothing, "discard": _nothing, "applypriority": _nothing, "pmevent": _nothing,
    "griddepcontrol": _nothing, "mma": _mma, "ldmatrix": _ldmatrix, "stmatrix": _stmatrix, "movmatrix": _movmatrix,
    "bar": _bar, "barrier": _bar, "membar": _fence, "fence": _fence, "atom": partial(_atom, True),
    "red": partial(_atom, False), "shfl": _shfl, "vote": _vote, "match": _match, "redux": _redux, "elect": _elect,
    "activemask": _activemask, "nanosleep": _nanosleep, "trap": partial(_call, "__trap();"),
    "brkpt": _nothing, "nop": _nothing,
}  # fmt: skip
