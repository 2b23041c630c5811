"""mbarriers, bulk copies and wgmma: each against a plain computation, in small pipelines, and misused."""

import hopper_cases as h
import numpy as np
import pytest

from crucible.sim import architecture, facts, ptx
from crucible.sim import kernel as sim


@pytest.fixture(autouse=True)
def fresh():
    """Clear what an earlier test provoked: an error sticks, as on a chip."""
    sim.reset()
    yield
    sim.configure(schedule=0)
    sim.reset()


# ---- right results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", h.WGMMA_FORMS, ids=lambda f: f.name)
def test_wgmma(form):
    given, words = h.run(form.name)
    got = words.view(np.float32).reshape(-1, 64, form.n).astype(np.float64)
    a, b, c = form.matrices(given)
    exact = c * form.accumulate + a @ b.transpose(0, 2, 1)
    size = np.abs(c) * form.accumulate + np.abs(a) @ np.abs(b).transpose(0, 2, 1)
    assert np.all(np.abs(got - exact) <= 2.0**-20 * size)
    np.testing.assert_array_equal(got, form.chip_sum(given))


def test_every_n_is_taken():
    for n in range(8, 257, 8):
        registers = ", ".join(f"%{i}" for i in range(n // 2))
        sums = ", ".join(f'"+f"(d[{i}])' for i in range(n // 2))
        opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16"
        text = f'asm("{opcode} {{{registers}}}, %{n // 2}, %{n // 2}, 1, 1, 1, 0, 0;" : {sums} : "l"(x));'
        assert ptx.unsupported(text) == []


def test_phases_of_an_mbarrier():
    given, words = h.run("mbarriers")
    counts = 1 + given.reshape(-1) % 3
    rows = words.reshape(-1, 12)
    for count, row in zip(counts, rows, strict=True):
        phases = [arrived // count for arrived in (1, 2, 3)]
        # Parity 0 has completed while the phase is odd, parity 1 while it is even.
        expected = [0, 1, *(1 if phase % 2 else 2 for phase in phases), int(3 % count == 0), 0, 0, 0, 1, 0, 1]
        assert row.tolist() == expected, f"count {count}"


@pytest.mark.parametrize("schedule", [0, 1, 2])
def test_copies_and_pipelines(schedule):
    sim.configure(schedule=schedule)
    given, words = h.run("bulk_copies")
    np.testing.assert_array_equal(words, given * 3 + np.arange(256, dtype=np.uint32))
    given, words = h.run("uncounted_copies")
    np.testing.assert_array_equal(words, given + np.repeat(np.arange(3, dtype=np.uint32), 128))
    given, words = h.run("handed_over")
    lanes, parts = np.arange(32), np.arange(2)[:, None]
    picked = given.reshape(-1, 32, 64)[:, :, (lanes * 7 + parts * 32) % 64]
    sums = np.cumsum(picked.reshape(-1, 64, 32), axis=1, dtype=np.uint32)
    np.testing.assert_array_equal(words.reshape(-1, 64, 32), sums)


# ---- a pipeline as kernels have it, right and with one thing wrong ---------------------------------------------------

RIGHT = ("RIGHT", "READER_FENCES", "ONE_FOR_ALL", "TWO_IN_FLIGHT")
WRONG = {  # what the report's code is, and what it says
    "NO_PROXY_FENCE": ("race_shared", r"no fence.proxy.async follows the ordinary store by thread \(1\d\d, 0, 0\)"),
    "NO_EMPTY_WAIT": ("race_shared", r"wgmma reads dynamic shared memory .* until wgmma.wait_group|race on dynamic"),
    "RELEASE_BEFORE_WAIT": ("race_shared", "race on dynamic shared memory|until wgmma.wait_group"),
    "NO_WAIT": ("race_shared", "the thread ends before its wgmma do|race on dynamic"),
    "NO_WGMMA_FENCE": ("race_shared", "without a wgmma.fence before it"),
    "NO_FULL_WAIT": ("race_shared", "race on dynamic shared memory"),
    "NO_SYNCWARP": ("race_shared", r"race on dynamic shared memory .* thread \(1\d\d, 0, 0\)"),
    "WRONG_PARITY": ("deadlock", r"waits for phase 0 of the mbarrier in shared array `barriers` .* 4 of 4 arrivals"),
    "OWN_STORE": ("race_shared", r"until wgmma.wait_group, but thread \(3, 0, 0\) has written to it before that"),
    "OTHER_DESCRIPTOR": ("warp_divergence", "threads of one warpgroup bring different descriptors"),
    "ONE_WARP_STAYS_AWAY": ("warp_divergence", r"96 of the 128 threads .* thread \(96, 0, 0\) has exited|deadlock"),
}


@pytest.fixture(scope="module")
def pipelines():
    names = [*RIGHT, *WRONG]
    return sim.Kernel(
        h.KERNELS / "hopper_pipeline.cu", {name: f"pipeline<{name}>" for name in names}, architecture="sm_90a"
    )


def run_pipeline(pipelines, name, steps=5):
    rng = np.random.default_rng(5)
    halves = rng.standard_normal((steps, 72, 16)).astype(np.float16)
    # core matrices of 8 rows x 8 halves: neighbours in k 128 bytes apart, in rows 256
    tiles = halves.reshape(steps, 9, 8, 2, 8).transpose(0, 1, 3, 2, 4)
    out = np.zeros((64, 8), np.float32)
    words = np.ascontiguousarray(tiles).view(np.uint32).reshape(-1)
    pipelines(name, 1, 160, {"in": words, "out": out, "steps": steps}, smem=2 * 72 * 32)
    return out, sum(step[:64].astype(np.float64) @ step[64:].T.astype(np.float64) for step in halves)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("schedule", [0, 1, 2])
def test_a_pipeline(pipelines, name, schedule):
    sim.configure(schedule=schedule)
    out, expected = run_pipeline(pipelines, name)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-4)
    assert sim.reports() == []


def test_a_pipeline_without_checks():
    plain = sim.Kernel(
        h.KERNELS / "hopper_pipeline.cu", {"RIGHT": "pipeline<RIGHT>"}, checked=False, architecture="sm_90a"
    )
    out, expected = run_pipeline(plain, "RIGHT")
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("schedule", [0, 1, 2])
def test_a_pipeline_with_one_thing_wrong(pipelines, name, schedule):
    sim.configure(schedule=schedule)
    code, text = WRONG[name]
    with pytest.raises(sim.SimulatorError, match=text) as caught:
        run_pipeline(pipelines, name)
    assert caught.value.code in (code, "deadlock") if "deadlock" in text else caught.value.code == code


# ---- small things ----------------------------------------------------------------------------------------------------

PLAIN_NAMES = ("waits_in_a_loop", "looks_at_two", "tries_once", "nobody_arrives", "bytes_never_come", "too_few_threads")


def small_kernels(architecture):
    exports = {name: name for name in (*PLAIN_NAMES, "which")}
    exports |= {f"misused{i}": f"misused<{i}>" for i in range(16)} | {f"stored{i}": f"stored<{i}>" for i in range(4)}
    exports |= {f"registers{i}": f"registers<{i}>" for i in (16, 24, 100, 240, 264)}
    exports |= {f"cluster{i}": f"cluster_of_one<{i}>" for i in range(2)}
    return sim.Kernel(h.KERNELS / "hopper_small.cu", exports, architecture=architecture)


@pytest.fixture(scope="module")
def small():
    return small_kernels("sm_90a")


@pytest.mark.parametrize("schedule", [0, 1, 2])
def test_loops_that_wait_let_others_run(small, schedule):
    sim.configure(schedule=schedule)
    out = np.zeros(256, np.uint32)
    small("waits_in_a_loop", 2, 64, {"out": out})
    np.testing.assert_array_equal(out, np.arange(256) // 64)
    small("looks_at_two", 1, 64, {"out": out})
    assert out[0] == 1


def test_a_single_try_may_fail(small):
    out = np.zeros(64, np.uint32)
    small("tries_once", 1, 64, {"out": out})
    assert out[0] == 0


@pytest.mark.parametrize("blocks", [1, 40])
@pytest.mark.parametrize(
    ("name", "needs"), [("nobody_arrives", "1 of 33 arrivals"), ("bytes_never_come", "0 of 1 arrivals and 128 bytes")]
)
def test_a_wait_that_never_ends_is_a_deadlock(small, name, needs, blocks):
    with pytest.raises(sim.SimulatorError, match=f"`barrier`.* still needs {needs}") as caught:
        small(name, blocks, 32 if name == "nobody_arrives" else 1, {"out": np.zeros(64, np.uint32)})
    assert caught.value.code == "deadlock"
    assert "asm volatile" in (h.KERNELS / "hopper.cu").read_text().splitlines()[caught.value.report["line"] - 1]


MISUSES = {
    1: ("barrier_divergence", "no mbarrier was initialised in shared array `words`"),
    2: ("misaligned", "not a multiple of 8"),
    3: ("barrier_divergence", "a count of 0"),
    4: ("race_shared", "the initialisation of the mbarrier .* is not ordered"),
    5: ("barrier_divergence", "was overwritten by an ordinary store"),
    6: ("barrier_divergence", "there is an mbarrier in shared array `words` .* already"),
    7: ("barrier_divergence", "1 arrivals at the mbarrier .* expects 1 and still needs 0"),
    8: ("barrier_divergence", "a parity of 2"),
    9: ("barrier_divergence", "completes the phase"),
    10: ("misaligned", "copies 24 bytes, which is not a multiple of 16"),
    11: ("misaligned", "the shared address .* is not a multiple of 16"),
    12: ("misaligned", "the global address .* is not a multiple of 16"),
    13: ("out_of_bounds", "past the end of shared array `words`"),
    14: ("out_of_bounds", "past the end of `in`"),
    15: ("race_shared", "race on shared array `words`"),
}


@pytest.mark.parametrize("how", MISUSES)
def test_misused_barriers_and_copies(small, how):
    code, text = MISUSES[how]
    with pytest.raises(sim.SimulatorError, match=text) as caught:
        arguments = {"in": np.zeros(64, np.uint32), "out": np.zeros(64, np.uint32)}
        small(f"misused{how}", 1, 64 if how in (4, 15) else 32, arguments)
    assert caught.value.code == code


def test_bulk_stores(small):
    out = np.zeros(32, np.uint32)
    small("stored0", 1, 32, {"out": out})
    np.testing.assert_array_equal(out, np.arange(32) + 5)
    with pytest.raises(sim.SimulatorError, match="cp.async.bulk reads shared array `tile` .* no fence.proxy.async"):
        small("stored1", 1, 32, {"out": out})
    sim.reset()
    with pytest.raises(sim.SimulatorError, match=r"until cp.async.bulk.wait_group, but thread \(0, 0, 0\) has written"):
        small("stored2", 1, 32, {"out": out})
    sim.reset()
    out[:] = 0
    small("stored3", 1, 32, {"out": out})  # never waited for: never there
    assert not out.any()


def test_registers_and_clusters_of_one(small):
    out = np.zeros(64, np.uint32)
    for count in (24, 240):
        small(f"registers{count}", 1, 32, {"out": out})
    for count in (16, 100, 264):
        with pytest.raises(sim.SimulatorError, match=f"asks for {count} registers"):
            small(f"registers{count}", 1, 32, {"out": out})
        sim.reset()
    small("cluster0", 1, 64, {"out": out})
    assert out.tolist() == [9] * 64
    with pytest.raises(sim.SimulatorError, match="mapa names block 1 of its cluster") as caught:
        small("cluster1", 1, 64, {"out": out})
    assert caught.value.code == "unsupported_feature"


def test_a_warpgroup_has_128_threads(small):
    with pytest.raises(sim.SimulatorError, match="needs a warpgroup, 128 threads .* the block has 96"):
        small("too_few_threads", 1, 96, {"out": np.zeros(96, np.uint32)})


# ---- what a build is for ---------------------------------------------------------------------------------------------


def test_wgmma_needs_a_build_for_sm_90a(small):
    out = np.zeros(128, np.uint32)
    small("which", 1, 1, {"out": out})
    assert out[0] == 1900
    plain = small_kernels("sm_90")
    plain("which", 1, 1, {"out": out})
    assert out[0] == 900
    plain("cluster0", 1, 64, {"out": out})  # mbarriers are there without
    for name in ("too_few_threads", "registers24"):
        with pytest.raises(sim.SimulatorError, match="needs a build for sm_90a, and this one is for sm_90") as caught:
            plain(name, 1, 128, {"out": out})
        assert caught.value.code == "unsupported_feature"
        sim.reset()
    with pytest.raises(ValueError, match="sm_80 is not among the simulated architectures"):
        sim.Kernel(h.KERNELS / "hopper_small.cu", ["which"], architecture="sm_80")


def test_flags_and_environment_name_the_architecture(monkeypatch):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    assert architecture.requested([]) == "sm_90" and architecture.requested([], "sm_90a") == "sm_90a"
    for flags in (["-gencode=arch=compute_90a,code=sm_90a"], ["-gencode", "arch=compute_90a,code=sm_90a"],
                  ["-O3", "-arch=sm_90a"], ["--gpu-architecture=sm_90a"]):  # fmt: skip
        assert architecture.requested(flags) == "sm_90a", flags
    assert architecture.requested(["-gencode=arch=compute_90,code=sm_90"], "sm_90a") == "sm_90"
    assert architecture.requested(["-O3", "--use_fast_math"]) == "sm_90"
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;9.0a+PTX")
    assert architecture.requested(["-O3"]) == "sm_90a"
    assert architecture.requested(["-arch=sm_90"]) == "sm_90"
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    assert architecture.requested([], "sm_90a") == "sm_90"


EXTENSION = '''
import os, sys
from torch.utils.cpp_extension import load_inline
SOURCE = r"""
#include <torch/extension.h>
__global__ void which(int* y) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;");
  y[0] = 90;
#else
  y[0] = 0;
#endif
}
torch::Tensor ask(torch::Tensor y) { which<<<1, 1>>>(y.data_ptr<int>()); return y; }
"""
def ask(name, **more):
    module = load_inline(name, "torch::Tensor ask(torch::Tensor y);", SOURCE, functions=["ask"], **more)
    return module.ask(torch.full((1,), 7, dtype=torch.int32, device="cuda")).item()
'''


def test_an_extension_says_what_it_is_for(run_on_device):
    out = run_on_device(
        EXTENSION
        + """
os.environ.pop("TORCH_CUDA_ARCH_LIST", None)
print("without", ask("a"))
print("flags", ask("b", extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"]))
os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0a"
print("environment", ask("c"), torch.cuda.get_device_capability())
"""
    )
    assert "without 0" in out and "flags 90" in out and "environment 90 (9, 0)" in out


def test_a_device_says_what_extensions_are_for(run_on_device):
    head = "from crucible.sim import device\ndevice.install(architecture='sm_90a')\nimport torch\n"
    assert "option 90" in run_on_device(head + EXTENSION + "print('option', ask('d'))\n", install=False)
    head = "from crucible.sim import device\ndevice.install(capability=(8, 0), architecture='sm_90a')\nimport torch\n"
    out = run_on_device(head + EXTENSION + "ask('e')\n", install=False, expect=1)
    assert "runs on chips of compute capability 9.0 only; this device has 8.0" in out


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];", "TMA"),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
         "[%0], [%1], 16, [%3], 3;", "several blocks of a cluster"),
        ("wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%0}, %1, %1, 1, 1, 1, 0, 0;", "this shape"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.tf32.tf32 {%0}, %1, %1, 1, 1, 1;", "this shape"),
        ("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0}, %1, %1, 1, 1, 1;", "f32 sums of f16"),
        ("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0, %0, %0, %0}, %1, %1, 1, 1, 1, 0, 1;", "its operands"),
        ("mbarrier.arrive_drop.shared.b64 _, [%0];", "mbarrier.arrive_drop"),
    ],
)  # fmt: skip
def test_what_is_not_simulated_is_named(instruction, reason):
    (found,) = ptx.unsupported(f'asm volatile("{instruction}" : "+r"(a) : "l"(b), "r"(c), "r"(d));')
    assert reason in found.reason


def test_operand_lists_in_macros():
    source = '#define NAMES "%0, " \\\n  "%1"  // two\n#define SUMS "+f"(d[0]), \\\n "+f"(d[1])\n'
    code = ptx.rewrite_asm(source + 'asm volatile("mov.b64 {" NAMES "}, %2;" : SUMS : "l"(x));')
    assert "csim::ptx::store(d[1], csim_1)" in code and "unsupported" not in code


def test_a_cluster_of_one_is_no_cluster():
    kernel = "__global__ void __cluster_dims__({}) k(int* y) {{ y[0] = 1; }}"
    for size, names in (("1", []), ("1, 1, 1", []), ("2, 1, 1", ["thread block clusters"])):
        assert [item.name for item in facts.scan(kernel.format(size)).unsupported] == names
