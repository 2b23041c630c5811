"""The PTX instructions that sm_90 added: mbarrier objects, bulk copies, wgmma, clusters of one block.

The C++ side is ``csim/hopper.h``. Handlers are those of ``ptx_isa.py``, which refuses what is named there (TMA).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from crucible.sim.ptx_operands import C_TYPE, Operand, PtxError, elements, only, pointer, read, type_of, write

_WGMMA_KINDS = {"f16": "CSIM_WGMMA_F16", "bf16": "CSIM_WGMMA_BF16", "tf32": "CSIM_WGMMA_TF32"}
_WGMMA_K = {"f16": 16, "bf16": 16, "tf32": 8}


def _address(operand: Operand, modifiers: list[str]) -> str:
    """A shared address; of the cluster, which is one block here, as well as of the block."""
    return pointer(operand, ["shared" if m == "shared::cluster" else m for m in modifiers])


def _only_sm90a(opcode: str, code: str) -> str:
    return f'csim::hopper::need_sm90a<CSIM_SM90A>("{opcode}"); {code}'


# ---- mbarrier objects ------------------------------------------------------------------------------------------------


def _mbarrier(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    action, *rest = modifiers
    only(opcode, rest, "expect_tx", "noComplete", "parity")
    if type_of(opcode, modifiers) != "b64":
        raise PtxError(opcode)
    if action == "init":
        count = read("u32", operands[1])
        return f"csim_mbarrier_init({_address(operands[0], modifiers)}, {count}, CSIM_CHECKED);"
    if action == "inval":
        return f"csim_mbarrier_inval({_address(operands[0], modifiers)});"
    if action in ("expect_tx", "complete_tx"):
        sign = "-" if action == "complete_tx" else ""
        size = f"{sign}(long long){read('u32', operands[1])}"
        return f'csim_mbarrier_expect({_address(operands[0], modifiers)}, {size}, "{opcode}");'
    if action == "arrive":
        count, size = "1", "0"
        if "expect_tx" in rest:
            size = read("u32", operands[2])
        elif len(operands) > 2:
            count = read("u32", operands[2])
        completes = "0" if "noComplete" in rest else "1"
        address = _address(operands[1], modifiers)
        return write(operands[0], f'csim_mbarrier_arrive({address}, {count}, {size}, {completes}, "{opcode}")')
    if action in ("test_wait", "try_wait"):
        by_parity = "parity" in rest
        token = f"(uint64_t){read('u32' if by_parity else 'b64', operands[2])}"
        address = _address(operands[1], modifiers)
        test = f'csim_mbarrier_test({address}, {token}, {int(by_parity)}, "{opcode}")'
        return write(operands[0], f"(bool){test}")
    raise PtxError(opcode, f"mbarrier.{action}")


# ---- copies ----------------------------------------------------------------------------------------------------------


def asynchronous_arrival(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    """``cp.async.mbarrier.arrive``: when the thread's copies are there."""
    counted = int("noinc" in modifiers)
    return f"csim_async_arrive({_address(operands[0], modifiers)}, {counted});"


def bulk_copy(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    """``cp.async.bulk``: a stretch of memory, by one thread."""
    action = modifiers[2]
    if action == "commit_group":
        return "csim_bulk_commit();"
    if action == "wait_group":
        return f"csim_bulk_wait({read('u32', operands[0])});"
    if action == "prefetch":
        return ""
    if "multicast::cluster" in modifiers:
        raise PtxError(opcode, "a copy to several blocks of a cluster")
    size = read("u32", operands[2])
    if action.startswith("shared") and modifiers[3:5] == ["global", "mbarrier::complete_tx::bytes"]:
        target, source = _address(operands[0], ["shared"]), pointer(operands[1], ["global"])
        return f"csim_bulk_load({target}, {source}, {size}, {_address(operands[3], ['shared'])}, CSIM_CHECKED);"
    if action == "global" and modifiers[3:5] == ["shared::cta", "bulk_group"]:
        target, source = pointer(operands[0], ["global"]), _address(operands[1], ["shared"])
        return f"csim_bulk_store({target}, {source}, {size}, CSIM_CHECKED);"
    raise PtxError(opcode, "this form of bulk copy")


def proxy_fence(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    """``fence.proxy.async``: ordinary stores before it are there for bulk copies and wgmma."""
    return "csim_proxy_fence();"


# ---- wgmma -----------------------------------------------------------------------------------------------------------


def _wgmma(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if modifiers[1:3] != ["sync", "aligned"]:
        raise PtxError(opcode)
    action = modifiers[0]
    if action == "fence":
        return _only_sm90a(opcode, "csim_wgmma_fence();")
    if action == "commit_group":
        return _only_sm90a(opcode, "csim_wgmma_commit();")
    if action == "wait_group":
        return _only_sm90a(opcode, f"csim_wgmma_wait({read('u32', operands[0])});")
    if action != "mma_async" or len(modifiers) != 7:
        raise PtxError(opcode, "this form of warpgroup matrix multiply")
    return _only_sm90a(opcode, _multiply(opcode, modifiers, operands))


def _multiply(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", modifiers[3])
    accumulator, kind, other = modifiers[4:]
    if shape is None or accumulator != "f32" or kind != other or kind not in _WGMMA_KINDS:
        raise PtxError(opcode, "this type of warpgroup matrix multiply (f32 sums of f16, bf16 and tf32 are)")
    n, k = int(shape.group(1)), int(shape.group(2))
    if n % 8 or not 8 <= n <= 256 or k != _WGMMA_K[kind]:
        raise PtxError(opcode, "this shape of warpgroup matrix multiply")
    from_registers = operands[1].kind == "vector"
    transposes = 0 if kind == "tf32" else 1 if from_registers else 2
    if len(operands) != 6 + transposes:
        raise ValueError("wrong number of operands")
    sums = ", ".join(read("f32", part) for part in elements(operands[0], n // 2))
    lines = [f"float csim_d[] = {{{sums}}};"]
    a, descriptor_a = "nullptr", "0"
    if from_registers:
        values = ", ".join(read("b32", part) for part in elements(operands[1], 4))
        lines.append(f"const uint32_t csim_a[] = {{{values}}};")
        a = "csim_a"
    else:
        descriptor_a = read("b64", operands[1])
    signs = [read("s32", operand) for operand in operands[4:6]]
    turned = [read("s32", operand) for operand in operands[6:]]
    turned = ["0"] * (2 - len(turned)) + turned
    fields = [
        f'"{opcode}"', str(n), _WGMMA_KINDS[kind], "csim_d", a, descriptor_a, read("b64", operands[2]),
        f"(int)(bool)({operands[3].code})", *signs, *turned, "CSIM_CHECKED",
    ]  # fmt: skip
    lines.append(f"csim::hopper::multiply({{{', '.join(fields)}}});")
    lines += [write(part, f"csim_d[{i}]") for i, part in enumerate(elements(operands[0], n // 2))]
    return " ".join(lines)


def _setmaxnreg(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    if modifiers[0] not in ("inc", "dec") or modifiers[1:3] != ["sync", "aligned"]:
        raise PtxError(opcode)
    return _only_sm90a(opcode, f"csim::hopper::set_registers({read('s64', operands[0])});")


# ---- clusters of one block -------------------------------------------------------------------------------------------


def cluster_barrier(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    """``barrier.cluster``: threads arrive where they wait."""
    if modifiers[1] == "arrive":
        return ""
    if modifiers[1] == "wait":
        return "csim_cluster_barrier();"
    raise PtxError(opcode)


def _mapa(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    kind = type_of(opcode, modifiers)
    address = f"(uint64_t){read(kind, operands[1])}"
    return write(operands[0], f"({C_TYPE[kind]})csim::hopper::map_address({address}, {read('u32', operands[2])})")


def _getctarank(opcode: str, modifiers: list[str], operands: list[Operand]) -> str:
    return write(operands[0], "(uint32_t)0")


HANDLERS: dict[str, Callable[[str, list[str], list[Operand]], str]] = {
    "mbarrier": _mbarrier, "wgmma": _wgmma, "setmaxnreg": _setmaxnreg, "mapa": _mapa, "getctarank": _getctarank,
}  # fmt: skip
