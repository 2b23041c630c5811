"""Every simulated instruction against the real one: the same kernels on a chip and in the simulator, on random words.

``python -m pytest tests/gpu/test_wrappers.py`` prints a table. The chip's side is a program of its own (built with
nvcc), because the simulator's runtime library stands in for the CUDA runtime in this process.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sim"))

import wrapper_cases as w  # noqa: E402

pytestmark = pytest.mark.gpu

MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>
struct Entry { const char* name; void (*kernel)(const uint32_t*, uint32_t*); };
static const Entry entries[] = {
%s};
// program kernel blocks threads words-out input-file output-file
int main(int, char** argv) {
    int blocks = atoi(argv[2]), threads = atoi(argv[3]); size_t out_words = (size_t)blocks * atoi(argv[4]);
    std::vector<uint32_t> in, out(out_words);
    FILE* f = fopen(argv[5], "rb");
    fseek(f, 0, SEEK_END); in.resize(ftell(f) / 4); rewind(f);
    if (fread(in.data(), 4, in.size(), f) != in.size()) return 2;
    fclose(f);
    uint32_t *device_in, *device_out;
    cudaMalloc(&device_in, in.size() * 4 + 16); cudaMalloc(&device_out, out_words * 4 + 16);
    cudaMemcpy(device_in, in.data(), in.size() * 4, cudaMemcpyHostToDevice);
    cudaMemset(device_out, 0, out_words * 4);
    for (const Entry& e : entries)
        if (!strcmp(e.name, argv[1])) {
            e.kernel<<<blocks, threads>>>(device_in, device_out);
            cudaError_t error = cudaDeviceSynchronize();
            if (error != cudaSuccess) { fprintf(stderr, "%%s\n", cudaGetErrorString(error)); return 1; }
            cudaMemcpy(out.data(), device_out, out_words * 4, cudaMemcpyDeviceToHost);
            f = fopen(argv[6], "wb"); fwrite(out.data(), 4, out_words, f); fclose(f);
            return 0;
        }
    return 3;  // not in this build
}
"""


GROUPS = w.groups()
CASES = [case for _, cases, _ in GROUPS.values() for case in cases]


def program(group: str) -> str:
    """The source of the chip's side: the kernels and a main that runs one of them by name."""
    source, cases, _ = GROUPS[group]
    entries = ""
    for case in cases:
        line = f'    {{"{case.name}", {case.name}}},\n'
        entries += f"#ifdef HAVE_CURAND\n{line}#endif\n" if "curand" in case.tags else line
    return source() + MAIN % entries


def build(folder: Path, group: str) -> Path:
    """Compile one group's program with nvcc: for this chip, or for the one that the group needs."""
    source, target = folder / f"{group}.cu", folder / group
    source.write_text(program(group))
    architecture = "-gencode=arch=compute_90a,code=sm_90a" if GROUPS[group][2] == "sm_90a" else "-arch=native"
    command = ["nvcc", "-std=c++17", "-w", architecture, str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def capability() -> tuple[int, int] | None:
    """Asks the driver, without the CUDA runtime, whose place the simulator takes in this process; None: no GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, values = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for value, attribute in zip(values, (75, 76), strict=True):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return values[0].value, values[1].value


@pytest.fixture(scope="module")
def chip(tmp_path_factory):
    """A function (case, words in) -> words out, on the real chip."""
    if not shutil.which("nvcc"):
        pytest.skip("nvcc was not found")
    chip_is = capability()
    if chip_is is None:
        pytest.skip("no CUDA device")
    folder = tmp_path_factory.mktemp("chip")
    programs = {group: build(folder, group) for group in GROUPS if group != "hopper" or chip_is == (9, 0)}

    def run(case: w.Case, given: w.Words) -> w.Words:
        if case.group not in programs:
            pytest.skip("needs a chip of compute capability 9.0")
        (folder / "in").write_bytes(given.tobytes())
        numbers = [str(len(given)), str(case.threads), str(case.words_out)]
        command = [str(programs[case.group]), case.name, *numbers, str(folder / "in"), str(folder / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode == 3:
            pytest.skip("this toolkit has no cuRAND headers")
        assert done.returncode == 0, f"{case.name}: {done.stderr}"
        return np.frombuffer((folder / "out").read_bytes(), np.uint32).reshape(len(given), case.words_out).copy()

    return run


@pytest.fixture(scope="module")
def table(request):
    """Collects one row a case and prints them all at the end, past pytest's capture."""
    rows: list[tuple[str, int, w.Agreement, bool]] = []
    yield rows
    if not rows:
        return
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    lines = [f"{'instruction or function':<28}{'words':>9}{'equal':>9}{'worst':>10}{'limit':>7}  "]
    for name, words, result, informative in rows:
        verdict = "ok" if result.ok else "differs (open in CUDA)" if informative else "FAILED"
        lines.append(
            f"{name:<28}{words:>9}{result.equal:>9.2%}{result.worst:>10.3g}{result.limit:>7.3g}  {verdict}"
            + (f"; {result.note}" if result.note else "")
        )
    reporter.ensure_newline()
    for line in lines:
        reporter.write_line(line)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_chip_agrees(case, chip, table):
    given = case.make(np.random.default_rng(20), case.blocks, case.words_in)
    real, simulated = chip(case, given), w.simulate(case, given)
    result = case.compare(case, given, real, simulated)
    table.append((case.name, real.size, result, case.informative))
    if not case.informative:
        assert result.ok, (
            f"worst {result.worst:.3g} (limit {result.limit:.3g}), {result.equal:.2%} of the words equal; {result.note}"
        )
