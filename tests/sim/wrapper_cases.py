"""Every instruction and intrinsic with a simulated body, as cases that can run on a chip and in the simulator alike.

A case is a kernel of ``kernels/instructions.cu`` or ``kernels/libraries.cu`` (or one generated here) that maps words to
words, the random words to feed it, and how closely a chip must agree with the simulator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

KERNELS = Path(__file__).parent / "kernels"
Words = np.ndarray[Any, np.dtype[np.uint32]]
Make = Callable[[np.random.Generator, int, int], Words]


# ---- random words ----------------------------------------------------------------------------------------------------

_SPECIAL_FLOATS = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    1e-40,
    65504.0,
    65520.0,
    2**31,
    -(2.0**31),
    2**32,
    3e38,
]


def bits(rng: np.random.Generator, blocks: int, words: int) -> Words:
    """Any bit pattern."""
    return rng.integers(0, 2**32, (blocks, words), dtype=np.uint32)


def floats(rng: np.random.Generator, blocks: int, words: int) -> Words:
    """Floats of all sizes, whole numbers and halves among them, and every special value."""
    values = rng.standard_normal((blocks, words)) * 10.0 ** rng.uniform(-6, 10, (blocks, words))
    values = np.where(rng.random((blocks, words)) < 0.2, np.round(values * 2) / 2, values)
    special = rng.choice(_SPECIAL_FLOATS, (blocks, words))
    return np.where(rng.random((blocks, words)) < 0.1, special, values).astype(np.float32).view(np.uint32)


def moderate(rng: np.random.Generator, blocks: int, words: int) -> Words:
    """Floats between -4 and 4."""
    return rng.uniform(-4, 4, (blocks, words)).astype(np.float32).view(np.uint32)


def halves(rng: np.random.Generator, blocks: int, words: int) -> Words:
    """Pairs of halves of mixed magnitude, without NaN (whose bits a chip chooses) and infinity."""
    values = rng.standard_normal((blocks, words, 2)) * 10.0 ** rng.uniform(-5, 2, (blocks, words, 2))
    return values.astype(np.float16).view(np.uint32)[..., 0]


def to_bfloat16(values: Any) -> Any:
    """float32 -> the bits of the nearest bfloat16."""
    raw = np.asarray(values, np.float32).view(np.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


# ---- how closely a chip must agree -----------------------------------------------------------------------------------

Compare = Callable[["Case", Words, Words, Words], "Agreement"]


@dataclass(frozen=True)
class Agreement:
    """The outcome of one comparison: share of equal words, the worst deviation in the case's own measure, the limit."""

    equal: float
    worst: float
    limit: float
    note: str = ""

    @property
    def ok(self) -> bool:
        return bool(self.worst <= self.limit)


def exactly(case: Case, given: Words, chip: Words, simulated: Words) -> Agreement:
    """Every word equal."""
    same = chip == simulated
    note = "" if same.all() else f"first difference at word {int(np.argmin(same.reshape(-1))) % case.words_out}"
    return Agreement(float(same.mean()), float((~same).sum()), 0.0, note)


def nan_is_nan(case: Case, given: Words, chip: Words, simulated: Words) -> Agreement:
    """Every word equal, except that any NaN float equals any other."""
    both = np.isnan(chip.view(np.float32)) & np.isnan(simulated.view(np.float32))
    return exactly(case, given, np.where(both, 0, chip), np.where(both, 0, simulated))


def within(relative: float, absolute: float = 0.0) -> Compare:
    """Floats within a relative error (of the larger) plus an absolute one."""

    def compare(case: Case, given: Words, chip: Words, simulated: Words) -> Agreement:
        a, b = chip.view(np.float32).astype(np.float64), simulated.view(np.float32).astype(np.float64)
        agree = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(all="ignore"):
            worst = np.where(agree, 0.0, np.abs(a - b) / (relative * np.maximum(np.abs(a), np.abs(b)) + absolute))
        worst = np.where(np.isnan(worst), np.inf, worst)
        at = int(np.argmax(worst.reshape(-1))) % case.words_out
        return Agreement(float(agree.mean()), float(worst.max()), 1.0, f"word {at}" if worst.max() > 1 else "")

    return compare


# ---- mma: fragments, and what a product may deviate by ---------------------------------------------------------------


@dataclass(frozen=True)
class MmaForm:
    """A shape and type of mma.sync: how many elements one register holds, and how to read them."""

    m: int
    k: int
    operand: str
    accumulator: str = "f32"
    suffix: str = ""
    second: str = ""

    @property
    def name(self) -> str:
        extra = "_f16" if self.accumulator == "f16" else ""
        return (
            f"mma_m{self.m}n8k{self.k}_{self.operand}{self.second and '_' + self.second}{extra}{self.suffix and '_sat'}"
        )

    @property
    def per_register(self) -> int:
        return {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}[self.operand]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Registers of A, B and C in one lane."""
        return (
            self.m * self.k // 32 // self.per_register,
            8 * self.k // 32 // self.per_register,
            self.m * 8 // 32 // (2 if self.accumulator == "f16" else 1),
        )

    def source(self) -> str:
        a, b, c = self.counts
        kind, bits_of = ("f", "__uint_as_float") if self.accumulator == "f32" else ("r", "")
        c_type = "float" if kind == "f" else "uint32_t"
        numbers = iter(range(99))
        braces = ["{" + ", ".join(f"%{next(numbers)}" for _ in range(n)) + "}" for n in (c, a, b, c)]
        second = self.second or self.operand
        types = f"{self.accumulator}.{self.operand}.{second}.{self.accumulator}"
        opcode = f"mma.sync.aligned.m{self.m}n8k{self.k}.row.col{self.suffix}.{types}"
        inputs = [f'"r"(r[{i}])' for i in range(a + b)] + [
            f'"{kind}"({bits_of}(r[{i}]))' for i in range(a + b, a + b + c)
        ]
        back = "__float_as_uint" if kind == "f" else ""
        return f"""
extern "C" __global__ void {self.name}(const uint32_t* in, uint32_t* out) {{
    const uint32_t* r = in + (blockIdx.x * 32 + threadIdx.x) * {a + b + c};
    {c_type} d[{c}];
    asm volatile("{opcode} "
                 "{", ".join(braces)};\\n"
                 : {", ".join(f'"={kind}"(d[{i}])' for i in range(c))}
                 : {", ".join(inputs)});
    for (int i = 0; i < {c}; ++i) out[(blockIdx.x * 32 + threadIdx.x) * {c} + i] = {back}(d[i]);
}}
"""

    def make(self, rng: np.random.Generator, blocks: int, words: int) -> Words:
        a, b, c = self.counts
        shape = (blocks, 32, a + b)
        if self.operand in ("s8", "u8"):
            operands = rng.integers(0, 2**32, shape, dtype=np.uint32)
            accumulators = rng.integers(0, 2**32, (blocks, 32, c), dtype=np.uint32)
        else:
            widest = 0.5 if self.accumulator == "f16" else 2  # sums of halves must stay finite
            scale = 10.0 ** rng.uniform(-2, widest, (blocks, 1, 1, 1))
            values = rng.standard_normal((*shape, self.per_register)) * scale
            if self.operand == "f16":
                operands = values.astype(np.float16).view(np.uint32)[..., 0]
            elif self.operand == "bf16":
                operands = to_bfloat16(values).view(np.uint32)[..., 0]
            else:
                operands = values[..., 0].astype(np.float32).view(np.uint32)
            start = rng.standard_normal((blocks, 32, c, 2)) * scale**2 * 10.0 ** rng.uniform(-3, 3, (blocks, 1, 1, 1))
            if self.accumulator == "f16":
                accumulators = np.clip(start, -1000, 1000).astype(np.float16).view(np.uint32)[..., 0]
            else:
                accumulators = start[..., 0].astype(np.float32).view(np.uint32)
        return np.concatenate([operands, accumulators], axis=2).reshape(blocks, -1)

    def _read(self, registers: Any, kind: str) -> Any:
        """Registers (..., n) -> elements (..., n, per_register) as float64 or int64."""
        if kind == "f16":
            return np.ascontiguousarray(registers)[..., None].view(np.float16).astype(np.float64)
        if kind == "bf16":
            pair = np.stack([registers << 16, registers & 0xFFFF0000], -1).astype(np.uint32)
            return pair.view(np.float32).astype(np.float64)
        if kind == "tf32":
            return (registers & 0xFFFFE000).astype(np.uint32).view(np.float32).astype(np.float64)[..., None]
        dtype = np.int8 if kind == "s8" else np.uint8
        return np.ascontiguousarray(registers)[..., None].view(dtype).astype(np.int64)

    def matrices(self, given: Words) -> tuple[Any, Any, Any]:
        """The words of every block as A (m, k), B (k, 8) and C (m, 8)."""
        a_count, b_count, c_count = self.counts
        blocks = len(given)
        registers = given.reshape(blocks, 32, -1)
        a_elements = self._read(registers[..., :a_count], self.operand)
        b_elements = self._read(registers[..., a_count : a_count + b_count], self.second or self.operand)
        a = np.empty((blocks, self.m, self.k), a_elements.dtype)
        b = np.empty((blocks, self.k, 8), b_elements.dtype)
        halves_of_m, e = self.m // 8, self.per_register
        for lane in range(32):
            g, t = lane // 4, lane % 4
            for register in range(a_count):
                block_of_k, half = divmod(register, halves_of_m)
                for i in range(e):
                    a[:, g + 8 * half, block_of_k * 4 * e + t * e + i] = a_elements[:, lane, register, i]
            for register in range(b_count):
                for i in range(e):
                    b[:, register * 4 * e + t * e + i, g] = b_elements[:, lane, register, i]
        return a, b, self.accumulators(registers[..., a_count + b_count :].reshape(blocks, -1))

    def accumulators(self, words: Words) -> Any:
        """The words of C or D of every block as (m, 8)."""
        blocks = len(words)
        registers = np.ascontiguousarray(words.reshape(blocks, 32, -1))
        if self.accumulator == "f16":
            elements = registers[..., None].view(np.float16).reshape(blocks, 32, -1).astype(np.float64)
        elif self.accumulator == "f32":
            elements = registers.view(np.float32).astype(np.float64)
        else:
            elements = registers.view(np.int32).astype(np.int64)
        c = np.empty((blocks, self.m, 8), elements.dtype)
        for lane in range(32):
            for i in range(elements.shape[-1]):
                c[:, lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = elements[:, lane, i]
        return c

    def compare(self, case: Case, given: Words, chip: Words, simulated: Words) -> Agreement:
        """Integers and f32 sums exactly; f16 sums to a few units in the last place of the largest addend.

        A chip that adds in another way is told apart by the model that fits it best.
        """
        if self.accumulator == "s32":
            return exactly(case, given, chip, simulated)
        a, b, c = self.matrices(given)
        if self.accumulator == "f32":
            result = exactly(case, given, chip, simulated)
            note = self.closest_model(a, b, c, self.accumulators(chip))
            return Agreement(result.equal, result.worst, result.limit, note)
        largest = np.maximum(np.abs(c), np.abs(a[:, :, :, None] * b[:, None]).max(axis=2))
        unit = 2.0**-10
        got, expected = self.accumulators(chip), self.accumulators(simulated)
        worst = float((np.abs(got - expected) / (unit * np.maximum(largest, np.abs(expected)) + 1e-300)).max())
        return Agreement(float((chip == simulated).mean()), worst, 1.0)

    def chip_sum(self, a: Any, b: Any, c: Any) -> Any:
        """C + A B as an H200 adds it up: every addend cut to 26 bits below the largest exponent, one cut to float."""
        products = a[:, :, :, None] * b[:, None]
        exponents = np.frexp(a)[1][:, :, :, None] + np.frexp(b)[1][:, None] - 1
        terms = np.concatenate([c[:, :, None], products], axis=2)
        by = np.concatenate([np.frexp(c)[1][:, :, None], exponents], axis=2)
        return truncated(aligned_sum(terms, by, 26))

    def closest_model(self, a: Any, b: Any, c: Any, got: Any) -> str:
        """Which way of adding explains the chip's bits best: for information."""
        products = a[:, :, :, None] * b[:, None]
        # The exponent that products are aligned by: of the product itself, or the sum of its factors' (before carries).
        itself = np.frexp(products)[1]
        factors = np.frexp(a)[1][:, :, :, None] + np.frexp(b)[1][:, None] - 1
        shares = {"exact, cut": float((truncated(c + products.sum(axis=2)) == got).mean())}
        for style, exponents in (("products", itself), ("factors", factors)):
            for split in (1, 2):
                for kept in (24, 25, 26, 27):
                    total = c
                    for part in np.split(np.arange(self.k), split):
                        terms = np.concatenate([total[:, :, None], products[:, :, part]], axis=2)
                        by = np.concatenate([np.frexp(total)[1][:, :, None], exponents[:, :, part]], axis=2)
                        total = truncated(aligned_sum(terms, by, kept))
                    shares[f"{split}x aligned by {style} to {kept} bits"] = float((total == got).mean())
        name, share = max(shares.items(), key=lambda item: item[1])
        return f"chip = {name} in {share:.1%}; exact, cut in {shares['exact, cut']:.1%}"


def truncated(values: Any) -> Any:
    """float64 -> the float32 next to it towards zero, as float64."""
    single = values.astype(np.float32)
    over = np.abs(single.astype(np.float64)) > np.abs(values)
    return np.where(over, np.nextafter(single, np.float32(0)), single).astype(np.float64)


def aligned_sum(terms: Any, exponents: Any, kept: int) -> Any:
    """The sum over axis 2 when every term is first cut to ``kept`` bits below the largest exponent."""
    top = np.where(terms == 0, -10000, exponents).max(axis=2, keepdims=True)
    quantum = np.ldexp(1.0, np.maximum(top - kept, -1000))
    return (np.trunc(terms / quantum) * quantum).sum(axis=2)


MMA_FORMS = (
    MmaForm(16, 16, "f16"), MmaForm(16, 8, "f16"), MmaForm(16, 16, "bf16"), MmaForm(16, 8, "bf16"),
    MmaForm(16, 8, "tf32"), MmaForm(16, 4, "tf32"), MmaForm(16, 16, "f16", "f16"), MmaForm(16, 8, "f16", "f16"),
    MmaForm(16, 32, "s8", "s32"), MmaForm(16, 32, "u8", "s32"), MmaForm(16, 16, "s8", "s32"),
    MmaForm(8, 16, "s8", "s32"), MmaForm(16, 32, "s8", "s32", ".satfinite", "u8"),
)  # fmt: skip


# ---- ldmatrix and stmatrix -------------------------------------------------------------------------------------------


def _ldmatrix_source(count: int, transposed: bool) -> str:
    names = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    opcode = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    return f"""
extern "C" __global__ void {matrix_name("ldmatrix", count, transposed)}(const uint32_t* in, uint32_t* out) {{
    __shared__ __align__(16) uint32_t tile[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 32) tile[i] = in[blockIdx.x * 128 + i];
    __syncwarp();
    uint32_t address = (uint32_t)__cvta_generic_to_shared(&tile[(t * 7 % 32) * 4]), r[4] = {{0, 0, 0, 0}};
    asm volatile("{opcode} {{{names}}}, [%{count}];\\n"
                 : {outputs} : "r"(address) : "memory");
    for (int i = 0; i < 4; ++i) out[blockIdx.x * 128 + t * 4 + i] = r[i];
}}
"""


def _stmatrix_source(count: int, transposed: bool) -> str:
    names = ", ".join(f"%{i + 1}" for i in range(count))
    inputs = ", ".join(f'"r"(in[blockIdx.x * 128 + t * 4 + {i}])' for i in range(count))
    return f"""
extern "C" __global__ void {matrix_name("stmatrix", count, transposed)}(const uint32_t* in, uint32_t* out) {{
    __shared__ __align__(16) uint32_t tile[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 32) tile[i] = 0;
    __syncwarp();
    uint32_t address = (uint32_t)__cvta_generic_to_shared(&tile[(t * 5 % 32) * 4]);
    asm volatile("stmatrix.sync.aligned.m8n8.x{count}{".trans" if transposed else ""}.shared.b16 [%0], {{{names}}};\\n"
                 :: "r"(address), {inputs} : "memory");
    __syncwarp();
    for (int i = t; i < 128; i += 32) out[blockIdx.x * 128 + i] = tile[i];
}}
"""


def matrix_name(instruction: str, count: int, transposed: bool) -> str:
    return f"{instruction}_x{count}{'_trans' if transposed else ''}"


MATRIX_FORMS = [(count, transposed) for count in (1, 2, 4) for transposed in (False, True)]


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A kernel, what to feed it, and how to compare a chip's words with the simulator's."""

    name: str
    words_in: int
    words_out: int
    threads: int = 32
    make: Make = bits
    compare: Compare = exactly
    blocks: int = 16
    group: str = "instructions"  # which source it is in: instructions, libraries or hopper
    form: MmaForm | None = None
    informative: bool = False  # a difference is reported, not a failure
    tags: tuple[str, ...] = field(default=())


def _wmma(shape: tuple[int, int, int], operand: int, result: int, make: Make, compare: Compare, name: str) -> Case:
    m, n, k = shape
    words = (m * k + n * k) * operand // 4
    return Case(name, words + m * n * result // 4, m * n * result // 4, 32, make, compare, 8)


def _wmma_halves(rng: np.random.Generator, blocks: int, words: int, accumulators: int, bfloat: bool = False) -> Words:
    operands = rng.standard_normal((blocks, words - accumulators, 2))
    packed = to_bfloat16(operands) if bfloat else operands.astype(np.float16)
    start = rng.standard_normal((blocks, accumulators)).astype(np.float32).view(np.uint32)
    return np.concatenate([packed.view(np.uint32)[..., 0], start], axis=1)


def _half_operands(accumulators: int, bfloat: bool = False) -> Make:
    return lambda rng, blocks, words: _wmma_halves(rng, blocks, words, accumulators, bfloat)


def _small_halves(rng: np.random.Generator, blocks: int, words: int) -> Words:
    return rng.standard_normal((blocks, words, 2)).astype(np.float16).view(np.uint32)[..., 0]


def _doubles(rng: np.random.Generator, blocks: int, words: int) -> Words:
    return rng.standard_normal((blocks, words // 2)).view(np.uint32)


def _unit_floats(rng: np.random.Generator, blocks: int, words: int) -> Words:
    return rng.standard_normal((blocks, words)).astype(np.float32).view(np.uint32)


def _as_halves(case: Case, given: Words, chip: Words, simulated: Words) -> Agreement:
    """Pairs of halves within two units in the last place."""
    a, b = chip.view(np.float16).astype(np.float64), simulated.view(np.float16).astype(np.float64)
    worst = np.abs(a - b) / (2.0**-10 * np.maximum(np.maximum(np.abs(a), np.abs(b)), 2.0**-14))
    return Agreement(float((chip == simulated).mean()), float(np.nanmax(worst)), 2.0)


CASES: tuple[Case, ...] = (
    *(
        Case(form.name, 32 * sum(form.counts), 32 * form.counts[2], 32, form.make, form.compare, 64, form=form)
        for form in MMA_FORMS
    ),
    Case("mma_m8n8k4_f64", 32 * 8, 32 * 4, 32, _doubles, lambda c, g, a, b: _as_doubles(c, a, b)),
    *(Case(matrix_name("ldmatrix", *form), 128, 128) for form in MATRIX_FORMS),
    *(Case(matrix_name("stmatrix", *form), 128, 128) for form in MATRIX_FORMS),
    Case("movmatrix", 32, 32),
    Case("cp_async", 256, 256),
    Case("conversions", 128, 64 * 24, 64, floats, nan_is_nan, 64),
    Case("rounded_arithmetic", 192, 64 * 16, 64, floats, nan_is_nan, 64),
    Case("integers", 192, 64 * 32, 64, blocks=32),
    Case("packed_lanes", 192, 64 * 24, 64, blocks=32),
    Case("warp", 32, 32 * 24),
    Case("half_arithmetic", 192, 64 * 24, 64, halves, exactly, 64),
    Case("half_functions", 64, 64 * 20, 64, moderate, within(2.0**-6.5, 1e-3), 16),
    Case("functions", 64, 64 * 24, 64, moderate, within(2.0**-10, 2e-6), 16),
    Case("atomics", 32, 16),
    _wmma((16, 16, 16), 2, 4, _half_operands(256), within(2.0**-20, 1e-5), "wmma_16_16_16_half"),
    _wmma((16, 16, 16), 2, 4, _half_operands(256), within(2.0**-20, 1e-5), "wmma_16_16_16_half_t"),
    _wmma((16, 16, 16), 2, 2, _small_halves, _as_halves, "wmma_16_16_16_half_half"),
    _wmma((32, 8, 16), 2, 4, _half_operands(256), within(2.0**-20, 1e-5), "wmma_32_8_16_half"),
    _wmma((8, 32, 16), 2, 4, _half_operands(256), within(2.0**-20, 1e-5), "wmma_8_32_16_half"),
    _wmma((16, 16, 16), 2, 4, _half_operands(256, True), within(2.0**-20, 1e-5), "wmma_16_16_16_bf16"),
    _wmma((32, 8, 16), 2, 4, _half_operands(256, True), within(2.0**-20, 1e-5), "wmma_32_8_16_bf16"),
    _wmma((16, 16, 16), 1, 4, bits, exactly, "wmma_16_16_16_s8"),
    Case("wmma_16_16_8_tf32", 512, 256, 32, _unit_floats, within(2.0**-20, 1e-5), 8),
    Case("wmma_accumulator_layout", 256, 256, blocks=1, informative=True),
    Case("groups", 64, 64 * 24, 64, blocks=4, group="libraries"),
    Case("cub_block", 512, 512 * 4, 128, blocks=3, group="libraries"),
    Case("pipelines", 512, 512, 64, blocks=3, group="libraries"),
    Case("random_philox", 6, 64 * 24, 64, blocks=4, group="libraries", tags=("curand",)),
    Case("random_xorwow", 6, 64 * 16, 64, blocks=4, group="libraries", tags=("curand",)),
    Case("random_normals", 6, 64 * 12, 64, bits, within(2.0**-12, 1e-5), 4, group="libraries", tags=("curand",)),
)


def _as_doubles(case: Case, chip: Words, simulated: Words) -> Agreement:
    a, b = chip.view(np.float64), simulated.view(np.float64)
    worst = float((np.abs(a - b) / (2.0**-50 * (np.abs(a) + 1.0))).max())
    return Agreement(float((chip == simulated).mean()), worst, 1.0)


def instruction_source() -> str:
    """The text of instructions.cu with the generated families appended."""
    parts = [(KERNELS / "instructions.cu").read_text()]
    parts += [form.source() for form in MMA_FORMS]
    parts += [_ldmatrix_source(*form) for form in MATRIX_FORMS]
    parts += [_stmatrix_source(*form) for form in MATRIX_FORMS]
    return "".join(parts)


def library_source() -> str:
    return (KERNELS / "libraries.cu").read_text()


def groups() -> dict[str, tuple[Callable[[], str], tuple[Case, ...], str]]:
    """The sources, each with its cases and the architecture it needs at least."""
    import hopper_cases

    def of(group: str) -> tuple[Case, ...]:
        return tuple(case for case in CASES if case.group == group)

    return {
        "instructions": (instruction_source, of("instructions"), "sm_90"),
        "libraries": (library_source, of("libraries"), "sm_90"),
        "hopper": (hopper_cases.source, hopper_cases.CASES, "sm_90a"),
    }


@functools.cache
def _simulated_kernels(group: str) -> Any:
    from crucible.sim.kernel import Kernel

    source, cases, architecture = groups()[group]
    names = [case.name for case in cases]
    return Kernel(source(), names, filename=str(KERNELS / f"{group}.cu"), architecture=architecture)


def simulate(case: Case, given: Words) -> Words:
    """What the simulator computes from ``given``."""
    out = np.zeros((len(given), case.words_out), np.uint32)
    _simulated_kernels(case.group)(case.name, len(given), case.threads, {"in": given, "out": out})
    return out


def run(name: str, blocks: int | None = None, seed: int = 0) -> tuple[Words, Words]:
    """Random words for the case called ``name``, and what the simulator makes of them."""
    case = next(case for case in CASES if case.name == name)
    given = case.make(np.random.default_rng(seed), blocks or case.blocks, case.words_in)
    return given, simulate(case, given)
