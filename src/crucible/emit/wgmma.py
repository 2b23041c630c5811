"""Hopper's matrix instructions for the widths that a file uses: the text around them depends on their registers."""

from __future__ import annotations

from collections.abc import Iterable

# Of enum Operands: the preprocessor's condition, the depth of one instruction, its type, and what follows the operands.
KINDS = (
    ("Half", "CRUCIBLE_SCALAR == 0", 16, "f16", ", 0, 0"),
    ("Tf32", "CRUCIBLE_SCALAR == 0", 8, "tf32", ""),
    ("Native", "CRUCIBLE_SCALAR == 2", 16, "f16", ", 0, 0"),
    ("Native", "CRUCIBLE_SCALAR == 3", 16, "bf16", ", 0, 0"),
)


def instructions(
    widths: Iterable[int], tf32: Iterable[int] = (), across: Iterable[int] = (), kept: Iterable[int] = ()
) -> str:
    """``Wgmma<N, kind>`` of kernels/wgmma.cuh for these N, and for N that are needed in kind Tf32 alone.

    ``across``: N of ``WgmmaAcross``; ``kept``: of ``WgmmaKept``, whose A is in registers.
    """
    every = set(widths)
    parts = ["#if CRUCIBLE_HOPPER", "namespace crucible {"]
    for width in sorted(every | set(tf32)):
        for kind, condition, depth, element, tail in KINDS:
            if width not in every and kind != "Tf32":
                continue
            parts += [f"#if {condition}", _one(width, kind, depth, element, tail), "#endif"]
    for width in sorted(set(across)):
        for kind, condition, depth, element, tail in KINDS:
            if tail:
                parts += [f"#if {condition}", _one(width, kind, depth, element, ", 1, 1", "WgmmaAcross"), "#endif"]
    for width in sorted(set(kept)):
        for kind, condition, depth, element, tail in KINDS:
            if tail:  # of which one is left: registers are not transposed
                parts += [f"#if {condition}", _one(width, kind, depth, element, ", 0", "WgmmaKept", 4), "#endif"]
    return "\n".join([*parts, "}  // namespace crucible", "#endif  // CRUCIBLE_HOPPER"])


def _one(width: int, kind: str, depth: int, element: str, tail: str, name: str = "Wgmma", kept: int = 0) -> str:
    """``kept``: so many registers are operand A, none where a descriptor is."""
    count = width // 2
    b = count + (kept or 1)
    a = "{" + ", ".join(f"%{i}" for i in range(count, b)) + "}" if kept else f"%{count}"
    given = ", ".join(f'"r"(a[{i}])' for i in range(kept)) if kept else '"l"(a)'
    taken = f"const unsigned (&a)[{kept}]" if kept else "uint64_t a"
    registers = [f"%{i}" for i in range(count)]
    sums = [f'"+f"(d[{i}])' for i in range(count)]

    def rows(items: list[str], each: int) -> list[str]:
        return [", ".join(items[i : i + each]) for i in range(0, count, each)]

    listed = [f'        "{row}, "' for row in rows(registers, 20)]
    listed[-1] = listed[-1].replace(', "', '"')
    bound = ",\n          ".join(rows(sums, 8))
    return "\n".join([
        "template <>",
        f"struct {name}<{width}, Operands::{kind}> {{",
        f"  static __device__ __forceinline__ void multiply(float (&d)[{count}], {taken}, uint64_t b, int more) {{",
        "#if CRUCIBLE_HAS_WGMMA",
        "    asm volatile(",
        f'        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{b + 1}, 0;\\n"',
        f'        "wgmma.mma_async.sync.aligned.m64n{width}k{depth}.f32.{element}.{element} {{"',
        *listed,
        f'        "}}, {a}, %{b}, p, 1, 1{tail};\\n}}\\n"',
        f"        : {bound}",
        f'        : {given}, "l"(b), "r"(more));',
        "#endif",
        "  }",
        "};",
    ])  # fmt: skip
