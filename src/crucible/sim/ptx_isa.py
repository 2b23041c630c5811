"""The PTX instructions the simulator knows: one entry each, from opcode and operands to a C++ statement.

The C++ side is ``csim/ptx.h`` (and ``csim/mma.h``, ``csim/async.h``); what sm_90 added is in ``ptx_hopper.py``. A
handler gets the opcode's dotted modifiers and the operands; it returns statements, or raises :class:`PtxError` with
what it does not know. ``UNSUPPORTED`` names the families that are left out on purpose, with the words a user will read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from crucible.sim import ptx_hopper
from crucible.sim.ptx_operands import (
    BITS,
    C_TYPE,
    FLOATS,
    Operand,
    PtxError,
    elements,
    only,
    pointer,
    read,
    type_of,
    write,
)

UNSUPPORTED: tuple[tuple[str, str], ...] = (
    ("wgmma.mma_async.sp", "sparse matrix multiply"),
    ("tcgen05", "fifth-generation tensor cores (sm_100a)"),
    ("cp.async.bulk.tensor", "TMA: copies by a tensor map (sm_90)"),
    ("cp.async.bulk.prefetch.tensor", "TMA: copies by a tensor map (sm_90)"),
    ("cp.reduce.async", "reducing bulk copies (sm_90)"),
    ("tensormap", "TMA descriptors (sm_90)"),
    ("fence.proxy.tensormap", "TMA descriptors (sm_90)"),
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
    only(opcode, modifiers, "sat", "relu", "NaN", "lo", *_ROUNDING)
    kind = type_of(opcode, modifiers)
    if "NaN" in modifiers:
        function += "_nan"
    rounding = next((m for m in modifiers if m in ("rz", "rm", "rp")), None)
    if rounding:
        if function not in ("add", "sub", "mul", "fma", "div", "sqrt", "rcp") or kind not in ("f32", "f64"):
            raise PtxError(opcode, f"its rounding .{rounding}")
        function += "_" + {"rz": "rz", "rm": "rd", "rp": "ru"}[rounding]
    arguments = ", ".join(read(kind, operand) for operand in operands[1 : 1 + count])
    value = f"csim::ptx::{function}<{C_TYPE[kind]}>({arguments})"
    return write(operands[0], _finish(kind, modifiers, value))


def _wide(opcode: str, modifiers: list[str], operands: list[Operand]) -> tuple[str, str]:
    """The product of ``mul``/``mad`` with .lo, .hi, .wide, and its C++ type."""
    kind = type_of(opcode, modifiers)
    a, b = read(kind, operands[1]), read(kind, operands[2])
    if "wide" in modifiers:
        double = C_TYPE[f"{kind[0]}{BITS[kind] * 2}"]
        return f"csim::ptx::mul<{double}>(({double}){a}, ({double}){b})", double
    function = "mul_hi" if "hi" in modifiers else "mul"
    return f"csim::ptx::{function}<{C_TYPE[kind]}>({a}, {b})", C_TYPE[kind]


def _mul(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if type_of(opcode, modifiers) in FLOATS:
        return _n_ary("mul", 2, opcode, modifiers, operands)
    only(opcode, modifiers, "lo", "hi", "wide")
    return write(operands[0], _wide(opcode, modifiers, operands)[0])


def _mad(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if "cc" in modifiers:
        raise PtxError(opcode, "carry chains")
    if type_of(opcode, modifiers) in FLOATS:
        return _n_ary("fma", 3, opcode, modifiers, operands)
    only(opcode, modifiers, "lo", "hi", "wide")
    product, kind = _wide(opcode, modifiers, operands)
    return write(operands[0], f"csim::ptx::add<{kind}>({product}, csim::ptx::as<{kind}>({operands[3].code}))")


def _add_sub(function: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if "cc" in modifiers:
        raise PtxError(opcode, "carry chains")
    return _n_ary(function, 2, opcode, modifiers, operands)


def _shift(direction: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = type_of(opcode, modifiers)
    value = f"csim::ptx::{direction}<{C_TYPE[kind]}>({read(kind, operands[1])}, {read('u32', operands[2])})"
    return write(operands[0], value)


def _to_u32(function: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = type_of(opcode, modifiers)
    return write(operands[0], f"csim::ptx::{function}<{C_TYPE[kind]}>({read(kind, operands[1])})")


def _all_u32(function: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    arguments = ", ".join(read("u32", operand) for operand in operands[1:])
    return write(operands[0], f"csim::ptx::{function}({arguments})")


def _prmt(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    mode = next((m for m in modifiers if m in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")), None)
    if mode:
        raise PtxError(opcode, f"its mode .{mode}")
    return _all_u32("permute", opcode, modifiers, operands)


def _shf(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    suffix = ("l" if "l" in modifiers else "r") + ("c" if "clamp" in modifiers else "")
    arguments = ", ".join(read("u32", operand) for operand in operands[1:4])
    return write(operands[0], f"__funnelshift_{suffix}({arguments})")


def _bit_field(function: str, inputs: int, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = type_of(opcode, modifiers)
    values = [read(kind, operand) for operand in operands[1 : 1 + inputs]]
    values += [read("u32", operand) for operand in operands[1 + inputs :]]
    return write(operands[0], f"csim::ptx::{function}<{C_TYPE[kind]}>({', '.join(values)})")


def _dot(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    types = [C_TYPE[m.replace("32", "8")] for m in modifiers if m in ("s32", "u32")]
    if opcode.startswith("dp2a"):
        raise PtxError(opcode)
    arguments = ", ".join(read("u32", operand) for operand in operands[1:4])
    return write(operands[0], f"csim::dp4a<{types[0]}, {types[1]}>({arguments})")


_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_OR_UNORDERED = {"neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}  # true also for NaN: not the opposite


def _comparison(opcode: str, modifiers: list[str], a: Operand, b: Operand) -> str:
    kind = type_of(opcode, modifiers)
    left, right = read(kind, a), read(kind, b)
    if kind in ("f16", "bf16"):
        left, right = f"csim::to_double({left})", f"csim::to_double({right})"
    elif kind in ("f16x2", "bf16x2"):
        raise PtxError(opcode, "comparison of pairs")
    operator = modifiers[0]
    if operator == "ne" and kind in FLOATS:
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
        return f"bool csim_t = {result}, csim_f = {negated}; {write(first, 'csim_t')} {write(second, 'csim_f')}"
    return write(operands[0], result)


def _set(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = type_of(opcode, modifiers, 2)
    result = _comparison(opcode, modifiers, operands[1], operands[2])
    yes = "1.0f" if kind == "f32" else "0xffffffffu"
    no = "0.0f" if kind == "f32" else "0u"
    return write(operands[0], f"({result} ? {yes} : {no})")


def _selp(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = type_of(opcode, modifiers)
    chosen = f"(({operands[3].code}) ? {read(kind, operands[1])} : {read(kind, operands[2])})"
    return write(operands[0], chosen)


def _not(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = type_of(opcode, modifiers)
    operator = "!" if kind == "pred" else "~"
    return write(operands[0], f"({C_TYPE[kind]})({operator}{read(kind, operands[1])})")


def _cvt(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    rounding = next((m for m in modifiers if re.fullmatch(r"r(n|z|m|p|na|ni|zi|mi|pi)", m)), "rn")
    if "pack" in modifiers or any(re.match(r"e[2-8]m[0-9]|ue8m0|s2f6", m) for m in modifiers):
        raise PtxError(opcode, "8-bit and smaller floating-point formats" if "pack" not in modifiers else "cvt.pack")
    if "tf32" in modifiers:
        return write(operands[0], f"csim::ptx::to_tf32({read('f32', operands[1])}, csim::ptx::Round::{rounding})")
    only(opcode, modifiers, "sat", "relu", rounding)
    target, source = type_of(opcode, modifiers, 2), type_of(opcode, modifiers)

    def convert(operand: Operand, to: str) -> str:
        call = f"csim::ptx::convert<{C_TYPE[to]}>({read(source, operand)}, csim::ptx::Round::{rounding}"
        call += f", {'true' if 'sat' in modifiers else 'false'})"
        return f"csim::ptx::relu<{C_TYPE[to]}>({call})" if "relu" in modifiers else call

    if target in ("f16x2", "bf16x2"):
        scalar = target[:-2]
        return write(operands[0], f"csim::ptx::pair({convert(operands[2], scalar)}, {convert(operands[1], scalar)})")
    return write(operands[0], convert(operands[1], target))


# ---- moving data -----------------------------------------------------------------------------------------------------


def _mov(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    target, source = operands
    kind = type_of(opcode, modifiers)
    if target.kind == "vector":  # mov.b32 {lo, hi}, r: take a register apart
        part = f"b{BITS[kind] // len(target.parts)}"
        pieces = [f"{C_TYPE[kind]} csim_v = {read(kind, source)};"]
        for index, operand in enumerate(target.parts):
            pieces.append(write(operand, f"({C_TYPE[part]})(csim_v >> {index * BITS[part]})"))
        return " ".join(pieces)
    if source.kind == "vector":  # mov.b32 r, {lo, hi}: put one together
        part = f"b{BITS[kind] // len(source.parts)}"
        halves = [
            f"({C_TYPE[kind]}){read(part, operand)} << {index * BITS[part]}"
            for index, operand in enumerate(source.parts)
        ]
        return write(target, f"({C_TYPE[kind]})({' | '.join(halves)})")
    return write(target, read(kind, source))


def _vector_length(modifiers: list[str]) -> int:
    return next((int(m[1:]) for m in modifiers if re.fullmatch(r"v[248]", m)), 1)


def _ld(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    only(opcode, modifiers, "v2", "v4", "v8")
    kind, count = type_of(opcode, modifiers), _vector_length(modifiers)
    targets = elements(operands[0], count)
    atomic = "true" if {"volatile", "relaxed", "acquire"} & set(modifiers) else "false"
    code = f"{C_TYPE[kind]} csim_v[{count}]; csim::ptx::load<{atomic}>({pointer(operands[1], modifiers)}, csim_v); "
    return code + " ".join(write(target, f"csim_v[{i}]") for i, target in enumerate(targets))


def _st(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    only(opcode, modifiers, "v2", "v4", "v8")
    kind, count = type_of(opcode, modifiers), _vector_length(modifiers)
    values = ", ".join(read(kind, source) for source in elements(operands[1], count))
    atomic = "true" if {"volatile", "relaxed", "release"} & set(modifiers) else "false"
    return (
        f"const {C_TYPE[kind]} csim_v[{count}] = {{{values}}}; "
        f"csim::ptx::save<{atomic}>({pointer(operands[0], modifiers)}, csim_v);"
    )


def _cvta(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = type_of(opcode, modifiers)
    space = next((m.split("::")[0] for m in modifiers if m not in C_TYPE and m != "to"), "")
    value = read("u64", operands[1])
    if space == "shared" and "to" in modifiers:
        value = f"(uint64_t)csim::to_shared((const void*)(uintptr_t){value})"
    elif space == "shared":
        value = f"(uint64_t)(uintptr_t)csim::ptx::shared_address({value}, 0)"
    elif space not in ("global", "local", "const", "param"):
        raise PtxError(opcode)
    return write(operands[0], f"({C_TYPE[kind]}){value}")


def _isspacep(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    function = {"shared": "__isShared", "shared::cta": "__isShared", "global": "__isGlobal"}.get(modifiers[0])
    if function is None:
        raise PtxError(opcode)
    return write(operands[0], f"(bool){function}((const void*)(uintptr_t){read('u64', operands[1])})")


def _cp(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if modifiers[:2] == ["async", "commit_group"]:
        return "csim::async::commit();"
    if modifiers[:2] == ["async", "wait_group"]:
        return f"csim::async::wait_group({read('u32', operands[0])});"
    if modifiers[:2] == ["async", "wait_all"]:
        return "csim::async::wait_all();"
    if modifiers[:2] == ["async", "mbarrier"]:
        return ptx_hopper.asynchronous_arrival(opcode, modifiers, operands)
    if modifiers[:2] == ["async", "bulk"]:
        return ptx_hopper.bulk_copy(opcode, modifiers, operands)
    if modifiers[:1] != ["async"] or not {"ca", "cg"} & set(modifiers) or "global" not in modifiers:
        raise PtxError(opcode)
    target = pointer(operands[0], ["shared"])
    source = f"csim::ptx::generic_address(csim::ptx::as<uint64_t>({operands[1].code}), {operands[1].offset})"
    size = read("u32", operands[2])
    hinted = any(m.startswith("L2::cache_hint") for m in modifiers)
    extra = operands[3:-1] if hinted else operands[3:]
    filled = f"csim::async::source_bytes({extra[0].code}, {size})" if extra else size
    return f'csim::async::copy({target}, {source}, {size}, {filled}, "{opcode}", {str("cg" in modifiers).lower()});'


def _policy(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return write(operands[0], "(uint64_t)0")


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
    register = "f64" if a_type == "f64" else "b32"
    lines = []
    for name, operand in zip("abc", operands[1:4], strict=True):
        values = ", ".join(read(register, part) for part in elements(operand, counts[name]))
        lines.append(f"const {kind} csim_{name}[] = {{{values}}};")
    saturate = ", true" if "satfinite" in modifiers else ""
    form = f"{_MMA_TYPES[a_type]}, {_MMA_TYPES[b_type]}, csim::mma::Acc::{c_type}, {m}, {k}"
    lines.append(f"{kind} csim_d[{counts['d']}]; csim::mma::sync<{form}>(csim_d, csim_a, csim_b, csim_c{saturate});")
    lines += [write(part, f"csim_d[{i}]") for i, part in enumerate(elements(operands[0], counts["d"]))]
    return " ".join(lines)


def _matrix_form(opcode: str, modifiers: list[str]) -> tuple[int, str]:
    if "m8n8" not in modifiers or type_of(opcode, modifiers) != "b16":
        raise PtxError(opcode, "this shape of matrix load or store")
    count = next((int(m[1:]) for m in modifiers if m in ("x1", "x2", "x4")), 0)
    if not count:
        raise PtxError(opcode)
    return count, "true" if "trans" in modifiers else "false"


def _ldmatrix(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    count, transposed = _matrix_form(opcode, modifiers)
    address = pointer(operands[1], ["shared"])
    code = f"uint32_t csim_v[{count}]; csim::mma::ldmatrix<{count}, {transposed}>(csim_v, {address}); "
    return code + " ".join(write(part, f"csim_v[{i}]") for i, part in enumerate(elements(operands[0], count)))


def _stmatrix(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    count, transposed = _matrix_form(opcode, modifiers)
    values = ", ".join(read("b32", part) for part in elements(operands[1], count))
    address = pointer(operands[0], ["shared"])
    return (
        f"const uint32_t csim_v[{count}] = {{{values}}}; csim::mma::stmatrix<{count}, {transposed}>({address}, csim_v);"
    )


def _movmatrix(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return write(operands[0], f"csim::mma::movmatrix({read('b32', operands[1])})")


# ---- threads together ------------------------------------------------------------------------------------------------


def _bar(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    modifiers = [m for m in modifiers if m not in ("cta", "aligned")]
    if modifiers[0] == "cluster":
        return ptx_hopper.cluster_barrier(opcode, modifiers, operands)
    if modifiers == ["warp", "sync"]:
        return f"__syncwarp({read('u32', operands[0])});"
    number = read("u32", operands[0]) if operands else "0"
    threads = read("u32", operands[1]) if len(operands) > 1 else "0"
    if modifiers == ["sync"]:
        return f'csim_block_barrier((int){number}, (int){threads}, "{opcode}");'
    if modifiers == ["arrive"]:
        return f'csim::ptx::arrive((int){number}, (int){threads}, "{opcode}");'
    if modifiers[0] == "red" and number.endswith("(0ll))") and len(operands) == 3:
        predicate = f"(int)({operands[2].code})"
        function = {"popc": "__syncthreads_count", "and": "__syncthreads_and", "or": "__syncthreads_or"}[modifiers[1]]
        return write(operands[0], f"{function}({predicate})")
    raise PtxError(opcode)


def _fence(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if modifiers[0] == "proxy" and "async" in [m.split("::")[0] for m in modifiers]:
        return ptx_hopper.proxy_fence(opcode, modifiers, operands)
    if modifiers[0] == "mbarrier_init":
        return ""  # for other blocks of the cluster: the block's own threads need a barrier anyway
    if "cta" in modifiers:
        return "__threadfence_block();"
    return "__threadfence();"  # .gl/.gpu, .sys; other proxies are in order here


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
    only(opcode, modifiers, "v2", "v4", "v8", *_ATOMIC)
    operation = next((m for m in modifiers if m in _ATOMIC), None)
    kind, count = type_of(opcode, modifiers), _vector_length(modifiers)
    if operation is None or kind not in _ATOMIC_TYPE or (count > 1 and operation != "add"):
        raise PtxError(opcode)
    target, operands = (operands[0], operands[1:]) if has_result else (Operand("sink"), operands)
    c_type = _ATOMIC_TYPE[kind]
    place = f"(({c_type}*){pointer(operands[0], modifiers)})"
    sources = [f"csim::ptx::as<{c_type}>({part.code})" for part in elements(operands[1], count)]
    if count == 1:
        more = [f"csim::ptx::as<{c_type}>({operands[2].code})"] if operation == "cas" else []
        return write(target, f"{_ATOMIC[operation]}({', '.join([place, *sources, *more])})")
    targets = elements(target, count) if has_result else [target] * count
    return " ".join(
        write(each, f"{_ATOMIC[operation]}({place} + {i}, {source})")
        for i, (each, source) in enumerate(zip(targets, sources, strict=True))
    )


def _shfl(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    mode = next((m for m in modifiers if m in ("up", "down", "bfly", "idx")), None)
    if mode is None or modifiers[0] != "sync":
        raise PtxError(opcode)
    values = ", ".join(read("u32", operand) for operand in operands[1:5])
    targets = operands[0].parts if operands[0].kind == "pair" else (operands[0], Operand("sink"))
    code = f"bool csim_p = false; uint32_t csim_v = csim::ptx::shuffle(csim::ptx::Shuffle::{mode}, {values}, csim_p); "
    return code + write(targets[0], "csim_v") + " " + write(targets[1], "csim_p")


def _vote(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if modifiers[0] != "sync":
        raise PtxError(opcode)
    mask, predicate = read("u32", operands[2]), f"(int)({operands[1].code})"
    if modifiers[1] in ("any", "all", "ballot"):
        result = f"__{modifiers[1]}_sync({mask}, {predicate})"
        return write(operands[0], result if modifiers[1] == "ballot" else f"(bool){result}")
    if modifiers[1] == "uni":
        return (
            f"unsigned csim_m = {mask}, csim_b = __ballot_sync(csim_m, {predicate}); "
            f"{write(operands[0], '(bool)(csim_b == 0 || csim_b == csim_m)')}"
        )
    raise PtxError(opcode)


def _match(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = "u64" if type_of(opcode, modifiers) == "b64" else "u32"
    value = f"(unsigned long long){read('u64', operands[1])}" if kind == "u64" else read("u32", operands[1])
    mask = read("u32", operands[2])
    if modifiers[0] == "any":
        return write(operands[0], f"__match_any_sync({mask}, {value})")
    targets = operands[0].parts if operands[0].kind == "pair" else (operands[0], Operand("sink"))
    code = f"int csim_p = 0; unsigned csim_v = __match_all_sync({mask}, {value}, &csim_p); "
    return code + write(targets[0], "csim_v") + " " + write(targets[1], "(bool)csim_p")


def _redux(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = type_of(opcode, modifiers)
    if kind == "f32" or modifiers[0] != "sync":
        raise PtxError(opcode)
    c_type = "int" if kind == "s32" else "unsigned"
    value = f"csim::ptx::as<{c_type}>({operands[1].code})"
    return write(operands[0], f"__reduce_{modifiers[1]}_sync({read('u32', operands[2])}, {value})")


def _elect(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    targets = operands[0].parts if operands[0].kind == "pair" else (operands[0], Operand("sink"))
    code = f"uint32_t csim_m = {read('u32', operands[1])}; __syncwarp(csim_m); int csim_e = __builtin_ctz(csim_m); "
    return code + write(targets[0], "(uint32_t)csim_e") + " " + write(targets[1], "(csim_lane() == csim_e)")


def _call(code: str, opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return code


def _nanosleep(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return f"__nanosleep({read('u32', operands[0])});"


def _activemask(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return write(operands[0], "csim_activemask()")


def _testp(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    function = {"finite": "std::isfinite", "infinite": "std::isinf", "notanumber": "std::isnan"}.get(modifiers[0])
    if function is None:
        raise PtxError(opcode)
    return write(operands[0], f"{function}({read(type_of(opcode, modifiers), operands[1])})")


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
    "brkpt": _nothing, "nop": _nothing, **ptx_hopper.HANDLERS,
}  # fmt: skip
