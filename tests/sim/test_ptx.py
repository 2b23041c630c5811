"""Inline PTX: how asm statements are read and rewritten, and what is said about instructions that are not known."""

import numpy as np
import pytest
import wrapper_cases as w

from crucible.sim import kernel as sim
from crucible.sim import ptx, ptx_isa


@pytest.fixture(autouse=True)
def fresh():
    sim.reset()
    yield
    sim.reset()


def same_lines(text):
    """Rewrites, and checks that every line outside the asm statements is where it was."""
    out = ptx.rewrite_asm(text)
    assert out.count("\n") == text.count("\n")
    for before, after in zip(text.split("\n"), out.split("\n"), strict=True):
        if before.startswith("//= "):
            assert before == after
    return out


def test_text_without_asm_is_left_alone():
    text = 'int asmx; // asm volatile("x");\n/* asm("y"); */ const char* s = "asm volatile(\\"z\\")"; char c = \'"\';\n'
    assert ptx.rewrite_asm(text) == text


@pytest.mark.parametrize("text", ['asm volatile("" ::: "memory");', 'extern int f(int) asm("other_name");', 'asm("");'])
def test_what_the_compiler_understands_stays(text):
    assert ptx.rewrite_asm(text) == text


def test_a_statement_over_several_lines_keeps_them():
    out = same_lines(
        "//= before\n"
        'asm volatile(\n    "add.u32 %0, %1, %2;\\n"  // a comment with "quotes"\n    /* and another */\n'
        '    : "=r"(d)\n    : "r"(f(a, b)),\n      "r"(c ? 1 : 2)\n    : "memory");\n//= after\n'
    )
    assert "asm" not in out.replace("//= ", "")
    assert "f(a, b)" in out and "c ? 1 : 2" in out


def test_inside_a_macro_every_line_stays_continued():
    text = (
        '#define LOAD(d, p) \\\n  asm volatile("ld.global.f32 %0, [%1];" \\\n     : "=f"(d) \\\n     : "l"(p))\n'
        "//= after\n"
        '#define WAIT(n) asm volatile("cp.async.wait_group " #n ";\\n" ::)\n'
    )
    out = same_lines(text)
    assert all(line.rstrip().endswith("\\") for line in out.split("\n")[:3])
    assert "wait_group(csim::ptx::as<uint32_t>((n)))" in out


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ('asm("mov.u32 %0, %%laneid;" : "=r"(x));', "csim_lane()"),
        ('asm("mov.u32 %0, %%ctaid.y;" : "=r"(x));', "blockIdx.y"),
        ('__asm__ __volatile__("membar.gl;");', "__threadfence()"),
        ('asm volatile("bar.sync %0, 64;" :: "r"(1));', "csim_block_barrier"),
        ('asm volatile(R"(add.f32 %0, %1, 0f3F800000;)" : "=f"(x) : "f"(y));', "0x3F800000u"),
        ('asm("{ .reg .b32 %%t<2>; mov.b32 %%t0, %1; mov.b32 %0, %%t0; }" : "=r"(x) : "r"(y));', "csim_r__t0"),
        ('asm("ld.shared.v2.u32 {%0, %1}, [%2+8];" : "=r"(x), "=r"(y) : "r"(p));', "shared_address"),
        ('asm("mul.lo.u32 %[d], %[a], 3;" : [d] "=r"(x) : [a] "r"(y));', "csim_1"),
    ],
)
def test_forms(text, fragment):
    assert fragment in ptx.rewrite_asm(text)


def test_a_string_macro_is_looked_up():
    text = '#define HINT ".L1::no_allocate"\nasm("ld.global.nc" HINT ".f32 %0, [%1];" : "=f"(x) : "l"(p));\n'
    assert ptx.unsupported(text) == []


@pytest.mark.parametrize("prefix", [name for name, _ in ptx_isa.UNSUPPORTED])
def test_families_that_are_left_out_are_named(prefix):
    text = f'int x;\n\nasm volatile("{prefix}.some.form [%0], %1;" :: "r"(a), "r"(b));\n'
    (found,) = ptx.unsupported(text)
    assert found.instruction.startswith(prefix)
    assert found.line == 3
    assert found.reason in dict(ptx_isa.UNSUPPORTED).values()


@pytest.mark.parametrize(
    "instruction",
    [
        "frobnicate.b32 %0, %1;", "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0}, {%1}, {%0}, {%1};",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0}, {%1}, {%0}, {%1};",
        "cvt.rn.satfinite.e4m3x2.f32 %0, %1, %1;",
        "ld.shared::cluster.u32 %0, [%1];", "mov.u32 %0, %%nosuchregister;", "add.cc.u32 %0, %1, %1;", "bra SOMEWHERE;",
    ],
)  # fmt: skip
def test_other_unknown_things_are_named(instruction):
    (found,) = ptx.unsupported(f'asm volatile("{instruction}" : "+r"(a) : "r"(b));')
    assert found.instruction and found.reason


KERNELS = r"""
#include <stdint.h>
// An instruction in a branch that is not taken costs nothing.
__global__ void sometimes(uint32_t* out, int which) {
    if (which)
        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
    out[threadIdx.x] = threadIdx.x;
}
__global__ void loop(uint32_t* out, uint32_t n) {
    uint32_t sum = 0;
    asm volatile(
        "{\n"
        "  .reg .pred again;\n"
        "  .reg .u32 i;\n"
        "  mov.u32 i, 0;\n"
        "NEXT:\n"
        "  add.u32 %0, %0, i;\n"
        "  add.u32 i, i, 1;\n"
        "  setp.le.u32 again, i, %1;\n"
        "  @again bra NEXT;\n"
        "}\n" : "+r"(sum) : "r"(n));
    out[threadIdx.x] = sum;
}
__global__ void memory(const float* in, float* out) {
    const float4* p = reinterpret_cast<const float4*>(in) + threadIdx.x;
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    asm volatile("st.global.cs.v2.f32 [%0+8], {%1, %2};" ::"l"(out + 4 * threadIdx.x), "f"(v.x), "f"(v.y));
    asm volatile("st.global.v2.f32 [%0], {%2, %1};" ::"l"(out + 4 * threadIdx.x), "f"(v.z), "f"(v.w));
}
__global__ void misaligned(const float* in, float* out) {
    float a, b;
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "l"(in + 1));
    out[threadIdx.x] = a + b;
}
__global__ void past_the_end(const float* in, float* out) {
    float a;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(a) : "l"(in + threadIdx.x + 1));
    out[threadIdx.x] = a;
}
__global__ void unguarded_output(uint32_t* out, uint32_t n) {  // the output of a skipped instruction is undefined
    uint32_t r;
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 77; @p mov.u32 %0, 5; }" : "=r"(r) : "r"(n));
    out[threadIdx.x] = r;
}
__global__ void named_barriers(uint32_t* out) {
    __shared__ uint32_t s[64];
    if (threadIdx.x < 32) {
        s[threadIdx.x] = threadIdx.x * 3;
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[threadIdx.x - 32] = s[63 - threadIdx.x];
    }
}
__global__ void elected(uint32_t* out) {
    uint32_t is;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(is));
    out[threadIdx.x] = is;
}
"""
NAMES = ["sometimes", "loop", "memory", "misaligned", "past_the_end", "unguarded_output", "named_barriers", "elected"]


@pytest.fixture(scope="module")
def kernels():
    return sim.Kernel(KERNELS, NAMES, filename="ptx_test.cu")


def test_an_unknown_instruction_is_reported_only_when_it_runs(kernels):
    out = np.zeros(32, np.uint32)
    kernels("sometimes", 1, 32, {"out": out, "which": 0})
    np.testing.assert_array_equal(out, np.arange(32))
    with pytest.raises(sim.SimulatorError, match="unsupported PTX instruction `wgmma.fence.sync.aligned`") as caught:
        kernels("sometimes", 1, 32, {"out": out, "which": 1})
    assert "asm volatile" in KERNELS.splitlines()[caught.value.report["line"] - 1]


def test_branches_inside_a_statement(kernels):
    out = np.zeros(1, np.uint32)
    kernels("loop", 1, 1, [out, 10])
    assert out[0] == 55


def test_vector_loads_and_stores(kernels):
    given, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    kernels("memory", 1, 32, [given, out])
    np.testing.assert_array_equal(out.reshape(-1, 4), given.reshape(-1, 4)[:, [3, 2, 0, 1]])


@pytest.mark.parametrize(("name", "code"), [("misaligned", "misaligned"), ("past_the_end", "out_of_bounds")])
def test_loads_are_checked(kernels, name, code):
    with pytest.raises(sim.SimulatorError) as caught:
        kernels(name, 1, 32, {"in": np.ones(32, np.float32), "out": np.zeros(32, np.float32)})
    assert caught.value.code == code
    assert "asm volatile" in KERNELS.splitlines()[caught.value.report["line"] - 1]


def test_an_output_that_was_not_written_is_poison(kernels):
    out = np.zeros(32, np.uint32)
    kernels("unguarded_output", 1, 32, [out, 1])
    assert np.all(out == 0xFFFFFFFF)


def test_barriers_with_numbers(kernels):
    out = np.zeros(32, np.uint32)
    kernels("named_barriers", 1, 64, [out])
    np.testing.assert_array_equal(out, np.arange(31, -1, -1) * 3)


def test_elect(kernels):
    out = np.zeros(64, np.uint32)
    kernels("elected", 1, 64, [out])
    np.testing.assert_array_equal(out, np.arange(64) % 32 == 0)


def test_integer_instructions():
    given, words = w.run("integers")
    a, b, c = (part.astype(np.uint64).reshape(-1) for part in np.split(given, 3, axis=1))
    out = words.reshape(-1, 32).T
    signed = lambda x: x.astype(np.uint32).view(np.int32).astype(np.int64)  # noqa: E731
    low = lambda x: np.asarray(x).astype(np.int64).astype(np.uint32)  # noqa: E731

    def python(f):
        return np.array([f(int(x), int(y), int(z)) & 0xFFFFFFFF for x, y, z in zip(a, b, c, strict=True)], np.uint32)

    def permuted(x, y, z, signs=True):
        source = (x | y << 32).to_bytes(8, "little")
        picked = []
        for i in range(4):
            s = z >> (4 * i) & 15
            byte = source[s & 7]
            picked.append((255 if byte & 128 else 0) if s & 8 and signs else byte)
        return int.from_bytes(bytes(picked), "little")

    expected = {
        0: python(lambda x, y, z: permuted(x, y, z & 0xFFFF)), 1: low(a ^ b ^ c),
        2: python(lambda x, y, z: (x >> (y & 63)) & ((1 << (z & 63)) - 1)),
        5: python(lambda x, y, z: ((y << 32 | x) << (z & 31)) >> 32),
        6: python(lambda x, y, z: y if z & 63 >= 32 else (y << 32 | x) >> (z & 63)),
        7: low((a * b + c) & 0xFFFFFFFF), 8: low((a * b) >> 32), 9: low((signed(a) * signed(b)) >> 32),
        10: python(lambda x, y, z: x << (z & 63) if z & 63 < 32 else 0),
        11: low(signed(a) >> np.minimum((c & 63).astype(np.int64), 31)),
        12: python(lambda x, y, z: x.bit_count()), 13: python(lambda x, y, z: int(f"{x:032b}"[::-1], 2)),
        14: python(lambda x, y, z: (x >> (z & 31)).bit_length() - 1), 15: low(np.minimum(signed(a), signed(b))),
        16: low(a >> 16 | (a & 0xFFFF) << 16), 19: python(lambda x, y, z: 32 - (x >> (z & 31)).bit_length()),
        21: low((signed(a) * signed(b)) >> 32), 23: low((a & 0xFFFFFF) * (b & 0xFFFFFF)),
        24: python(lambda x, y, z: permuted(x, y, z, signs=False)), 26: low(np.abs(signed(a) - signed(b)) + c),
        27: low((signed(a) + signed(b)) >> 1),
        28: low((signed(a) + signed(b) + 1) >> 1), 29: low((a + b) >> 1),
        31: python(lambda x, y, z: x.bit_count() + y.bit_count()),
    }  # fmt: skip
    for column, values in expected.items():
        np.testing.assert_array_equal(out[column], values, err_msg=f"result {column}")


def test_conversions():
    given, words = w.run("conversions")
    a = np.ascontiguousarray(given[:, :64]).view(np.float32).reshape(-1)
    b = np.ascontiguousarray(given[:, 64:]).view(np.float32).reshape(-1)
    out = words.reshape(-1, 24).T
    finite = np.isfinite(a) & np.isfinite(b)
    tf32 = ((a.view(np.uint32) + 0x1000) & 0xFFFFE000).astype(np.uint32)
    np.testing.assert_array_equal(out[0][finite], tf32[finite])
    with np.errstate(all="ignore"):
        pair = (
            b.astype(np.float16).view(np.uint16).astype(np.uint32)
            | a.astype(np.float16).view(np.uint16).astype(np.uint32) << 16
        )
        np.testing.assert_array_equal(out[1][finite], pair[finite])
        np.testing.assert_array_equal(
            out[2][finite], (w.to_bfloat16(b) | w.to_bfloat16(a).astype(np.uint32) << 16)[finite]
        )
        for column, rounded, low, high in (
            (7, np.rint(a), -(2**31), 2**31 - 1), (8, np.trunc(a), -(2**31), 2**31 - 1),
            (9, np.floor(a), -(2**31), 2**31 - 1), (10, np.ceil(a), 0, 2**32 - 1), (17, np.floor(a), 0, 2**32 - 1),
        ):  # fmt: skip
            expected = (
                np.clip(np.nan_to_num(rounded.astype(np.float64), nan=0.0), low, high)
                .astype(np.int64)
                .astype(np.uint32)
            )
            np.testing.assert_array_equal(out[column], expected, err_msg=f"result {column}")
        np.testing.assert_array_equal(out[13].view(np.float32), np.clip(np.nan_to_num(a, nan=0.0), 0, 1))


def test_directed_rounding():
    given, words = w.run("rounded_arithmetic")
    a, b, c = (
        np.ascontiguousarray(p).view(np.float32).reshape(-1).astype(np.float64) for p in np.split(given, 3, axis=1)
    )
    out = words.view(np.float32).reshape(-1, 16).T.astype(np.float64)
    # in float64 a sum or a product of floats is exact enough to tell the side of a float boundary
    usable = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (np.abs(a) > 1e-20) & (np.abs(b) > 1e-20)
    with np.errstate(all="ignore"):
        usable &= (np.abs(a * b) < 1e37) & (np.abs(a * b) > 1e-30) & (np.abs(np.log2(np.abs(a) / np.abs(b))) < 25)
        total, product = (a + b)[usable], (a * b)[usable]
    rz, ru, rd = out[0][usable], out[1][usable], out[2][usable]
    assert np.all(np.abs(rz) <= np.abs(total)) and np.all(np.abs(rz - total) <= np.abs(total) * 2.0**-22)
    assert np.all(ru >= total) and np.all(ru - total <= np.abs(total) * 2.0**-22)
    assert np.all(rd <= product) and np.all(product - rd <= np.abs(product) * 2.0**-22)
    np.testing.assert_array_equal(out[10][usable], out[5][usable])


def test_warp_instructions():
    given, words = w.run("warp")
    v = given.astype(np.int64)
    out = words.reshape(-1, 32, 24).transpose(2, 0, 1).astype(np.int64)
    lanes = np.arange(32)
    np.testing.assert_array_equal(out[0], v[:, lanes * 3 % 32])
    np.testing.assert_array_equal(out[1], v[:, lanes // 8 * 8 + 5])
    np.testing.assert_array_equal(out[2], v[:, np.where(lanes >= 3, lanes - 3, lanes)])
    np.testing.assert_array_equal(out[5], v[:, np.where(lanes % 4 < 3, lanes + 1, lanes)])
    np.testing.assert_array_equal(out[6], v[:, lanes ^ 9])
    ballot = ((v & 1) << lanes).sum(axis=1)
    np.testing.assert_array_equal(out[8], np.repeat(ballot[:, None], 32, axis=1))
    np.testing.assert_array_equal(out[13], np.repeat((v.sum(axis=1) & 0xFFFFFFFF)[:, None], 32, axis=1))
    np.testing.assert_array_equal(out[17], v[:, np.where(lanes >= 3, lanes - 3, lanes)])
    np.testing.assert_array_equal(out[18], np.broadcast_to(lanes >= 3, out[18].shape))
    np.testing.assert_array_equal(out[23], v[:, lanes ^ 16] & 0xFFFF)


def test_packed_lanes():
    given, words = w.run("packed_lanes")
    a, b, _ = (np.ascontiguousarray(part) for part in np.split(given, 3, axis=1))
    out = np.ascontiguousarray(words.reshape(-1, 24).T)
    bytes_of = lambda x, kind: x.reshape(-1).view(kind).astype(np.int64)  # noqa: E731
    np.testing.assert_array_equal(
        out[0].view(np.uint8), (bytes_of(a, np.uint8) + bytes_of(b, np.uint8)).astype(np.uint8)
    )
    saturated = np.clip(bytes_of(a, np.int8) + bytes_of(b, np.int8), -128, 127)
    np.testing.assert_array_equal(out[2].view(np.int8), saturated)
    np.testing.assert_array_equal(out[8].view(np.int8), np.maximum(bytes_of(a, np.int8), bytes_of(b, np.int8)))
    np.testing.assert_array_equal(out[12].view(np.uint8), 255 * (bytes_of(a, np.int8) >= bytes_of(b, np.int8)))
    sads = np.abs(bytes_of(a, np.int8) - bytes_of(b, np.int8)).reshape(-1, 4).sum(axis=1)
    np.testing.assert_array_equal(out[20], sads)
