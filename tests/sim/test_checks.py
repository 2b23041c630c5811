"""Broken kernels: each mistake is found, named by the right code, and placed on the right line."""

import re
from pathlib import Path

import numpy as np
import pytest

from crucible.sim import kernel as sim

SOURCE = Path(__file__).parent / "kernels" / "broken.cu"
LINES = SOURCE.read_text().split("\n")
NAMES = re.findall(r"^__global__ void (\w+)\(", SOURCE.read_text(), re.M)

rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def kernels():
    return sim.Kernel(SOURCE, NAMES)


@pytest.fixture(autouse=True)
def clean():
    sim.configure(schedule=0, seed=1, kernel_seconds=20)
    sim.reset()


def marked(name):
    """The lines of kernel ``name`` (and of what stands between it and the one before) that are marked."""
    text = "\n".join(LINES)
    start = re.search(rf"^__global__ void {name}\(", text, re.M).start()
    before = max((m.end() for m in re.finditer(r"^__global__ .*?^}", text[:start], re.M | re.S)), default=0)
    end = re.compile(r"^}", re.M).search(text, start).start()
    first = text.count("\n", 0, before) + 1
    return [first + i for i, line in enumerate(text[before:end].split("\n")) if "BUG" in line]


def expect(kernels, code, name, grid, block, args, **options):
    with pytest.raises(sim.SimulatorError) as caught:
        kernels(name, grid, block, args, **options)
    report = caught.value.report
    assert report is not None and report["code"] == code, str(caught.value)
    assert report["line"] in marked(name), f"line {report['line']}, not {marked(name)}: {caught.value}"
    assert report["file"] == str(SOURCE)
    assert report["kernel"] == name
    assert LINES[report["line"] - 1].strip()[:40] in report["message"]
    assert sim.reports() == [report]
    return report


def f(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def i32(*values):
    return np.array(values, np.int32)


def test_read_past(kernels):
    report = expect(kernels, "out_of_bounds", "read_past", 4, 32, {"x": f(100), "y": f(101), "n": 100})
    assert (report["tensor"], report["bytes_past"]) == ("x", 4)
    assert report["block"] == [3, 0, 0] and report["thread"] == [4, 0, 0]


def test_write_past(kernels):
    report = expect(kernels, "out_of_bounds", "write_past", 4, 32, {"x": f(100), "y": f(100), "n": 100})
    assert report["tensor"] == "y" and report["bytes_past"] == 4


def test_read_before(kernels):
    report = expect(kernels, "out_of_bounds", "read_before", 1, 32, {"x": f(32), "y": f(32), "n": 32})
    assert report["tensor"] == "x" and "before the start" in report["message"]


def test_far_away(kernels):
    report = expect(kernels, "out_of_bounds", "far_away", 1, 32, {"x": f(32), "y": f(32), "n": 32})
    assert report["bytes_past"] == 4 * (1000000 - 31)


def test_far_before(kernels):
    report = expect(kernels, "out_of_bounds", "far_before", 1, 2, {"x": f(32), "y": f(32), "n": 32})
    assert report["tensor"] == "x" and report["bytes_past"] == 80000000000


def test_vector_tail(kernels):
    report = expect(kernels, "out_of_bounds", "vector_tail", 1, 32, {"x": f(98), "y": f(98), "n": 98})
    assert report["tensor"] == "x" and report["bytes_past"] == 8


def test_shared_overrun(kernels):
    expect(kernels, "out_of_bounds", "shared_overrun", 1, 8, [f(8), f(8)])


def test_shared_pointer_overrun(kernels):
    report = expect(kernels, "out_of_bounds", "shared_pointer_overrun", 1, 17, [f(17), f(17)])
    assert report["tensor"] == "only"


def test_dynamic_overrun(kernels):
    report = expect(kernels, "out_of_bounds", "dynamic_overrun", 1, 32, [f(32), f(32)], smem=31 * 4)
    assert report["bytes_past"] == 4


def test_local_overrun(kernels):
    expect(kernels, "out_of_bounds", "local_overrun", 1, 4, [f(4), f(4), 4])


def test_null_pointer(kernels):
    report = expect(kernels, "out_of_bounds", "null_pointer", 1, 4, [f(4), None, f(4)])
    assert "null pointer" in report["message"]


def test_atomic_past(kernels):
    expect(kernels, "out_of_bounds", "atomic_past", 1, 4, {"counts": i32(0, 0, 0), "x": i32(0, 1, 2, 3)})


def test_stack_overflow(kernels):
    report = expect(kernels, "out_of_bounds", "stack_overflow", 1, 2, [i32(1), i32(0, 0)])
    assert "stack overflow" in report["message"]


def test_misaligned(kernels):
    expect(kernels, "misaligned", "misaligned", 1, 4, [f(64), f(4)])


def test_accumulate_into_empty(kernels):
    y = sim.DeviceArray(32, np.float32)
    report = expect(kernels, "uninitialised_read", "accumulate", 1, 32, {"x": f(32), "y": y, "n": 32})
    assert report["tensor"] == "y"


def test_shared_unwritten(kernels):
    expect(kernels, "uninitialised_read", "shared_unwritten", 1, 64, [f(64), f(64)])
    assert sim.suspects()[0]["tensor"] == "s"


def test_bins_not_cleared(kernels):
    expect(kernels, "uninitialised_read", "bins_not_cleared", 1, 32, [np.arange(32, dtype=np.int32), np.zeros(8, "f")])


def test_atomic_unwritten(kernels):
    expect(kernels, "uninitialised_read", "atomic_unwritten", 1, 4, [sim.DeviceArray(4, np.int32)])


@pytest.mark.parametrize("schedule", [0, 1, 2])
@pytest.mark.parametrize(
    "name, block, args",
    [
        ("no_barrier", 64, lambda: [f(64), f(64)]),
        ("no_second_barrier", 64, lambda: [f(3, 64), f(64), 3]),
        ("reduction_in_place", 64, lambda: [f(64), f(1)]),
        ("atomics_no_barrier", 64, lambda: [f(64), f(64)]),
        ("zero_no_barrier", 64, lambda: [f(64), f(64)]),
        ("different_values", 64, lambda: [np.zeros(64, np.int32)]),
        ("half_warp_sync", 32, lambda: [f(32), f(32)]),
        ("announced_too_early", 64, lambda: [f(32), f(32)]),
        ("halves_race", 64, lambda: [f(64).astype(np.float16), f(64).astype(np.float16)]),
    ],
)
def test_race_shared(kernels, schedule, name, block, args):
    sim.configure(schedule=schedule, strict_shared=False)
    if name == "zero_no_barrier" and schedule != 0:
        pytest.skip("the zero comes last and is found unwritten instead")
    expect(kernels, "race_shared", name, 1, block, args())


@pytest.mark.parametrize("schedule", [0, 1, 2])
@pytest.mark.parametrize(
    "name, grid, block, args",
    [
        ("blocks_overlap", 3, 32, lambda: [f(32)]),
        ("lost_updates", 1, 32, lambda: [f(32), f(1)]),
        ("neighbours_in_place", 4, 32, lambda: [f(128), 128]),
        ("last_block_no_fence", 4, 32, lambda: [f(4), f(4), f(1), np.zeros(1, np.uint32)]),
        ("device_variable", 2, 32, lambda: [np.zeros(32, np.int32)]),
    ],
)
def test_race_global(kernels, schedule, name, grid, block, args):
    sim.configure(schedule=schedule)
    expect(kernels, "race_global", name, grid, block, args())


def test_barrier_divergence(kernels):
    expect(kernels, "barrier_divergence", "half_at_barrier", 1, 64, [f(64), f(64)])
    sim.reset()
    expect(kernels, "barrier_divergence", "skips_barrier", 1, 64, [f(64), f(64)])
    sim.reset()
    expect(kernels, "barrier_divergence", "loop_counts_differ", 1, 64, [np.arange(64, dtype=np.int32) // 32, f(64)])


@pytest.mark.parametrize("name", ["half_shuffle", "two_shuffles", "not_in_mask"])
def test_warp_divergence(kernels, name):
    expect(kernels, "warp_divergence", name, 1, 32, [f(32), f(32)])


def test_shuffle_from_exited_lanes(kernels):
    expect(kernels, "warp_divergence", "exited_lanes", 1, 32, [f(32), f(32), 20])
    assert [s["code"] for s in sim.suspects()] == ["warp_divergence"]


def test_index_overflow(kernels):
    report = expect(kernels, "index_overflow", "overflow_then_touch", 1, 8, {"x": f(8), "y": f(8), "big": 1 << 30})
    assert "does not fit" in report["message"]


def test_division_by_zero(kernels):
    expect(kernels, "index_overflow", "divide_by_zero", 1, 4, [i32(1, 2, 0, 3), i32(0, 0, 0, 0)])


def test_deadlock(kernels):
    expect(kernels, "deadlock", "waits_forever", 2, 32, [i32(0), np.zeros(32, np.int32)])
    sim.reset()
    expect(kernels, "deadlock", "lock_in_warp", 1, 32, [i32(0), np.zeros(32, np.int32)])


@pytest.mark.parametrize("name", ["endless", "endless_with_memory"])
def test_kernel_time(kernels, name):
    sim.configure(kernel_seconds=0.2)
    expect(kernels, "kernel_time", name, 1, 1, [np.zeros(32, np.float32)])


def test_device_assert_trap_and_grid_sync(kernels):
    report = expect(kernels, "launch_error", "asserts", 1, 2, [i32(1, 100), i32(0, 0)])
    assert "x[threadIdx.x] < 100" in report["message"] and report["thread"] == [1, 0, 0]
    sim.reset()
    expect(kernels, "launch_error", "traps", 1, 1, [i32(1), i32(0)])
    sim.reset()
    expect(kernels, "launch_error", "grid_sync_without", 1, 1, [f(1)])
    sim.reset()
    expect(kernels, "launch_error", "launches_a_kernel", 1, 1, [i32(0)])


def test_shared_memory_limit(kernels):
    expect(kernels, "shared_memory_limit", "too_much_static", 1, 32, [f(32)])


def test_use_after_free(kernels):
    x = sim.DeviceArray.of(f(100), "x")
    pointer = x.pointer
    x.free()
    report = expect(kernels, "use_after_free", "copy", 1, 128, {"x": pointer, "y": f(100), "n": 100})
    assert report["tensor"] == "x"


def test_host_pointer(kernels):
    x = f(100)
    report = expect(kernels, "host_pointer", "copy", 1, 128, {"x": x.ctypes.data, "y": f(100), "n": 100})
    assert report["tensor"] == "x" and ".cuda()" in report["message"]


def test_the_process_goes_on(kernels):
    """After all of this a correct launch still works, once the sticky error is cleared."""
    with pytest.raises(sim.SimulatorError):
        kernels("read_past", 4, 32, [f(100), f(101), 100])
    with pytest.raises(sim.SimulatorError, match="illegal memory access"):
        kernels("copy", 1, 128, [f(100), f(100), 100])
    sim.reset()
    x, y = f(100), f(100)
    kernels("copy", 1, 128, [x, y, 100])
    np.testing.assert_array_equal(x, y)
