"""The operands of PTX instructions as C++: registers, immediates, addresses, special registers."""

from __future__ import annotations

import re
from dataclasses import dataclass

C_TYPE = {
    "pred": "bool",
    "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t",
    "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t",
    "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t",
    "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "b128": "unsigned __int128",
    "f16": "__half", "f16x2": "__half2", "bf16": "__nv_bfloat16", "bf16x2": "__nv_bfloat162",
    "f32": "float", "f64": "double",
}  # fmt: skip
BITS = {name: int(re.sub(r"\D", "", name.replace("x2", "")) or 1) * (2 if "x2" in name else 1) for name in C_TYPE}
FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"}
# Modifiers that change how fast a chip does something, or how memory is cached, but not what is computed here.
HINTS = {
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


_SPECIAL = {
    "%laneid": "(uint32_t)csim_lane()", "%warpid": "(uint32_t)csim_warp()",
    "%nwarpid": "csim::ptx::warps()", "%smid": "csim::ptx::smid()", "%nsmid": "csim::ptx::nsmid()",
    "%gridid": "(uint64_t)0", "%cluster_ctarank": "(uint32_t)0", "%cluster_nctarank": "(uint32_t)1",
    "%is_explicit_cluster": "false",
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
    for ptx, cuda in (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"),
                      ("clusterid", "blockIdx"), ("nclusterid", "gridDim"))  # a cluster is one block
    for axis in "xyz"
}  # fmt: skip
_SPECIAL |= {f"%cluster_{name}.{axis}": f"(uint32_t){n}" for name, n in (("ctaid", 0), ("nctaid", 1)) for axis in "xyz"}


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


def read(kind: str, operand: Operand) -> str:
    """The operand's value as PTX type ``kind``."""
    if operand.kind not in ("register", "value"):
        raise PtxError(operand.code or operand.kind, "this operand")
    return f"csim::ptx::as<{C_TYPE[kind]}>({operand.code})"


def write(operand: Operand, value: str) -> str:
    if operand.kind == "sink":
        return f"(void)({value});"
    if operand.kind != "register":
        raise PtxError(operand.code or operand.kind, "this destination")
    return f"csim::ptx::put({operand.code}, {value});"


def pointer(operand: Operand, modifiers: list[str]) -> str:
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


def type_of(opcode: str, modifiers: list[str], last: int = 1) -> str:
    """The ``last``-th type from the end among the modifiers."""
    types = [m for m in modifiers if m in C_TYPE]
    if len(types) < last:
        raise PtxError(opcode)
    return types[-last]


def only(opcode: str, modifiers: list[str], *allowed: str) -> None:
    """Raise if a modifier is neither a type, a hint, nor one of ``allowed``."""
    for modifier in modifiers:
        if modifier in C_TYPE or modifier in HINTS or modifier in allowed:
            continue
        if modifier.startswith(("L1::", "L2::", "shared", "global", "local", "const", "param", "unified", "level::")):
            continue
        raise PtxError(opcode, f"its modifier .{modifier}")


def elements(operand: Operand, count: int) -> list[Operand]:
    parts = list(operand.parts) if operand.kind == "vector" else [operand]
    if len(parts) != count:
        raise ValueError("wrong number of vector elements")
    return parts
