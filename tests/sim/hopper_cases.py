"""What sm_90 added, as cases for a chip and the simulator alike: wgmma and its layouts, mbarriers, bulk copies.

The matrices of a form come as words, are put into shared memory by the kernel's own idea of the layout, and go through
as many wgmma as their rows hold steps of k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from wrapper_cases import KERNELS, Agreement, Case, Words, aligned_sum, exactly, simulate, to_bfloat16, truncated


@dataclass(frozen=True)
class WgmmaForm:
    """One wgmma with its operands' layouts. ``swizzle`` is the width of the pattern in bytes, 0 for none."""

    n: int
    kind: str
    swizzle: int = 0
    registers: bool = False  # A from registers
    turned_a: bool = False  # A in shared memory with M contiguous
    turned_b: bool = False
    signs: tuple[int, int] = (1, 1)
    accumulate: bool = True
    far: str = "rows"  # without a swizzle: whether neighbours in k ("rows") or in rows ("chunks") lie far apart
    shift: int = 0  # rows of B to skip: 16 bytes of start address each, without a swizzle

    @property
    def name(self) -> str:
        parts = ["wgmma", f"n{self.n}", self.kind, f"swizzle{self.swizzle}" if self.swizzle else f"far_{self.far}"]
        parts += ["registers"] * self.registers + ["turned_a"] * self.turned_a + ["turned_b"] * self.turned_b
        parts += ["negative"] * (self.signs != (1, 1)) + ["fresh"] * (not self.accumulate)
        return "_".join(parts + [f"shift{self.shift}"] * bool(self.shift))

    @property
    def width(self) -> int:
        return 4 if self.kind == "tf32" else 2

    @property
    def k(self) -> int:
        """Of one instruction."""
        return 32 // self.width

    @property
    def steps(self) -> int:
        if self.turned_b and (self.turned_a or not self.swizzle):
            return 2
        return max(self.swizzle // 32, 1)

    @property
    def rows_b(self) -> int:
        return (self.n + self.shift + 7) // 8 * 8

    @property
    def words(self) -> tuple[int, int, int]:
        """Of A (64 rows of k), B and C."""
        depth = self.k * self.steps * self.width // 4
        return 64 * depth, self.rows_b * depth, 64 * self.n

    def _operand(self, rows: int, turned: bool) -> tuple[str, str, int, int]:
        """C++ for the offset of element (row, k); the descriptor's fields; bytes to the next step; bytes in all."""
        depth = self.k * self.steps
        w = self.swizzle
        if not turned and not w:
            lead, stride = (rows * 16, 128) if self.far == "rows" else (128, depth * self.width // 16 * 128)
            offset = f"k * {self.width} / 16 * {lead} + row / 8 * {stride} + row % 8 * 16 + k * {self.width} % 16"
            return offset, f"{lead}, {stride}, 0", 2 * lead, rows * depth * self.width
        if not turned:
            offset = f"swizzled(row / 8 * {8 * w} + row % 8 * {w} + k * {self.width}, {w})"
            return offset, f"16, {8 * w}, {w}", 32, rows * w
        if not w:
            lead, stride = (rows * 16, 128) if self.far == "rows" else (128, depth // 8 * 128)
            offset = f"row / 8 * {stride} + k % 8 * 16 + k / 8 * {lead} + row % 8 * 2"
            return offset, f"{lead}, {stride}, 0", 2 * lead, rows * depth * 2
        atoms = (rows * 2 + w - 1) // w
        lead, stride = 8 * w, atoms * 8 * w
        inside = f"row / 8 % {w // 16} * 16 + row / {w // 2} * {lead} + k % 8 * {w} + k / 8 * {stride} + row % 8 * 2"
        return f"swizzled({inside}, {w})", f"{lead}, {stride}, {w}", 2 * stride, depth // 8 * stride

    def source(self) -> str:
        d = self.n // 2
        names = ", ".join(f"%{i}" for i in range(d))
        outputs = ", ".join(f'"+f"(d[{i}])' for i in range(d))
        at = d + (4 if self.registers else 1)
        a_text = "{" + ", ".join(f"%{d + i}" for i in range(4)) + "}" if self.registers else f"%{d}"
        a_input = ", ".join(f'"r"(r[{i}])' for i in range(4)) if self.registers else '"l"(da)'
        turns = [] if self.kind == "tf32" else [self.turned_b] if self.registers else [self.turned_a, self.turned_b]
        tail = "".join(f", {value}" for value in (*self.signs, *map(int, turns)))
        opcode = f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.f32.{self.kind}.{self.kind}"
        offset_a, fields_a, step_a, bytes_a = self._operand(64, self.turned_a)
        offset_b, fields_b, step_b, bytes_b = self._operand(self.rows_b, self.turned_b)
        words_a, words_b, words_c = self.words
        depth, word = self.k * self.steps, "uint32_t" if self.width == 4 else "uint16_t"
        per = 4 // self.width
        if self.registers:
            row, column = "warp * 16 + lane / 4 + i % 2 * 8", f"s * {self.k} + (i / 2 * 4 + lane % 4) * {per}"
            load = f"r[i] = *(const uint32_t*)(xa + ({row}) * {depth} + {column});"
            fetch_a = f"uint32_t r[4]; for (int i = 0; i < 4; ++i) {load}"
        else:
            fetch_a = f"const uint64_t da = descriptor(a, s * {step_a}, {fields_a});"
        lanes = " const int warp = t / 32, lane = t % 32;" if self.registers else ""
        return f"""
extern "C" __global__ void __launch_bounds__(128) {self.name}(const uint32_t* in, uint32_t* out) {{
    __shared__ __align__(1024) unsigned char a[{bytes_a}], b[{bytes_b}];
    const int t = threadIdx.x;{lanes}
    const uint32_t* x = in + (size_t)blockIdx.x * {words_a + words_b + words_c};
    const {word} *xa = (const {word}*)x, *xb = (const {word}*)(x + {words_a});
    const float* xc = (const float*)(x + {words_a + words_b});
    for (int i = t; i < {bytes_b // 4}; i += 128) ((uint32_t*)b)[i] = 0;
    __syncthreads();
    for (int i = t; i < 64 * {depth}; i += 128) {{
        const int row = i / {depth}, k = i % {depth};
        *({word}*)(a + {offset_a}) = xa[i];
    }}
    for (int i = t; i < {self.rows_b} * {depth}; i += 128) {{
        const int row = i / {depth}, k = i % {depth};
        *({word}*)(b + {offset_b}) = xb[i];
    }}
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[{d}];
    for (int i = 0; i < {d}; ++i) d[i] = xc[place_of_sum(t, i, {self.n})];
#pragma unroll
    for (int s = 0; s < {self.steps}; ++s) {{
        {fetch_a}
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        const uint64_t db = descriptor(b, s * {step_b} + {16 * self.shift}, {fields_b});
        asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{at + 1}, 0;\\n"
                     "{opcode} {{{names}}}, {a_text}, %{at}, p{tail}; }}\\n"
                     : {outputs} : {a_input}, "l"(db), "r"((int)({int(self.accumulate)} || s)));
    }}
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < {d}; ++i)
        out[(size_t)blockIdx.x * {words_c} + place_of_sum(t, i, {self.n})] = __float_as_uint(d[i]);
}}
"""

    def make(self, rng: np.random.Generator, blocks: int, words: int) -> Words:
        a, b, c = self.words
        scale = 10.0 ** rng.uniform(-2, 2, (blocks, 1, 1))
        values = rng.standard_normal((blocks, a + b, 4 // self.width)) * scale
        if self.kind == "tf32":
            operands = values.astype(np.float32).view(np.uint32)[..., 0]
        elif self.kind == "f16":
            operands = values.astype(np.float16).view(np.uint32)[..., 0]
        else:
            operands = to_bfloat16(values).view(np.uint32)[..., 0]
        start = rng.standard_normal((blocks, c)) * scale[:, 0] ** 2 * 10.0 ** rng.uniform(-3, 3, (blocks, 1))
        return np.concatenate([operands, start.astype(np.float32).view(np.uint32)], axis=1)

    def matrices(self, given: Words) -> tuple[Any, Any, Any]:
        """A (64, k), B (n, k) and C (64, n) of every block, as float64."""
        a, b, _ = self.words
        parts = np.split(given, [a, a + b], axis=1)
        left, right = (self._values(np.ascontiguousarray(part)).reshape(len(given), -1, self.k * self.steps)
                       for part in parts[:2])  # fmt: skip
        c = np.ascontiguousarray(parts[2]).view(np.float32).astype(np.float64).reshape(len(given), 64, self.n)
        return self.signs[0] * left, self.signs[1] * right[:, self.shift : self.shift + self.n], c

    def _values(self, words: Words) -> Any:
        if self.kind == "tf32":
            return (words & 0xFFFFE000).astype(np.uint32).view(np.float32).astype(np.float64)
        if self.kind == "f16":
            return words.view(np.float16).astype(np.float64)
        return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    def chip_sum(self, given: Words, kept: int = 26, split: int = 1) -> Any:
        """D as tensor cores add it up: step by step, every addend cut below the largest exponent, one cut to float."""
        a, b, total = self.matrices(given)
        if not self.accumulate:
            total = np.zeros_like(total)
        for part in np.split(np.arange(self.k * self.steps), self.steps * split):
            products = a[:, :, part, None] * b[:, None, :, part].transpose(0, 1, 3, 2)
            by = np.frexp(a)[1][:, :, part, None] + np.frexp(b)[1][:, None, :, part].transpose(0, 1, 3, 2) - 1
            terms = np.concatenate([total[:, :, None], products], axis=2)
            exponents = np.concatenate([np.frexp(total)[1][:, :, None], by], axis=2)
            total = truncated(aligned_sum(terms, exponents, kept))
        return total

    def compare(self, case: Case, given: Words, chip: Words, simulated: Words) -> Agreement:
        """Every bit equal; a chip that adds in another way is told apart by the model that fits it best."""
        result = exactly(case, given, chip, simulated)
        got = chip.view(np.float32).reshape(len(given), 64, self.n)
        shares = {
            f"{split}x {kept} bits": float((self.chip_sum(given, kept, split) == got).mean())
            for split in (1, 2) for kept in (24, 25, 26, 27)
        }  # fmt: skip
        best = max(shares, key=lambda name: shares[name])
        return Agreement(result.equal, result.worst, result.limit, f"chip = {best} in {shares[best]:.1%}")


WGMMA_FORMS = (
    WgmmaForm(8, "f16"), WgmmaForm(64, "f16", far="chunks"), WgmmaForm(184, "f16", shift=2),
    WgmmaForm(256, "f16", 128), WgmmaForm(24, "f16", 64), WgmmaForm(40, "f16", 32), WgmmaForm(16, "f16", shift=1),
    WgmmaForm(16, "bf16"), WgmmaForm(168, "bf16", 128), WgmmaForm(8, "tf32"), WgmmaForm(168, "tf32", 128),
    WgmmaForm(32, "tf32", 64), WgmmaForm(32, "f16", 128, registers=True), WgmmaForm(32, "tf32", 128, registers=True),
    WgmmaForm(32, "bf16", 64, registers=True, signs=(-1, 1)), WgmmaForm(16, "f16", 128, signs=(1, -1)),
    WgmmaForm(16, "f16", 128, accumulate=False), WgmmaForm(128, "f16", 128, turned_b=True),
    WgmmaForm(64, "f16", 128, turned_a=True), WgmmaForm(64, "bf16", 64, turned_a=True, turned_b=True),
    WgmmaForm(64, "f16", 32, turned_b=True), WgmmaForm(32, "f16", turned_b=True),
    WgmmaForm(32, "f16", turned_a=True, turned_b=True, far="chunks"),
)  # fmt: skip

CASES = (
    *(Case(f.name, sum(f.words), f.words[2], 128, f.make, f.compare, 2, group="hopper") for f in WGMMA_FORMS),
    Case("mbarriers", 32, 32 * 12, 32, blocks=2, group="hopper"),
    Case("bulk_copies", 256, 256, 64, blocks=3, group="hopper"),
    Case("uncounted_copies", 384, 384, 32, blocks=3, group="hopper"),
    Case("handed_over", 64 * 32, 64 * 32, 64, blocks=3, group="hopper"),
)


def source() -> str:
    """hopper.cu with the generated forms appended; it must be compiled for sm_90a."""
    return (KERNELS / "hopper.cu").read_text() + "".join(form.source() for form in WGMMA_FORMS)


def run(name: str, seed: int = 0) -> tuple[Words, Words]:
    """Random words for the case called ``name``, and what the simulator makes of them."""
    case = next(case for case in CASES if case.name == name)
    given = case.make(np.random.default_rng(seed), case.blocks, case.words_in)
    return given, simulate(case, given)
