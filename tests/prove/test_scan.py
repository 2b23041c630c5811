"""What can be said of a file without running it."""

from __future__ import annotations

import pytest

from crucible.prove.scan import scan_file


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty_file"),
        (b"  \n\n", "empty_file"),
        (b"\x7fELF\0\0\0", "binary_file"),
        (b"x = '\xff'", "binary_file"),
        (b"def f(:\n  pass", "syntax_error"),
        (b"class Model: pass", "no_model_new"),
    ],
)
def test_files_that_cannot_be_judged(tmp_path, data, code):
    path = tmp_path / "c.py"
    path.write_bytes(data)
    found = scan_file(path).finding
    assert found is not None and found.code == code and found.verdict == "unjudged"


@pytest.mark.parametrize(
    "text",
    ["class ModelNew: pass", "ModelNew = 3", "from x import ModelNew", "from x import *", "globals()['ModelNew'] = 1"],
)
def test_model_new_may_come_about_in_many_ways(tmp_path, text):
    path = tmp_path / "c.py"
    path.write_text(text)
    assert scan_file(path).finding is None


def test_kernels_and_habits_are_seen(tmp_path):
    path = tmp_path / "c.py"
    path.write_text(
        'import inspect\nclass ModelNew: pass\ns = """__global__ void __launch_bounds__(256) add_one(float* x) { }\n'
        'template <class T> __global__ void two(T x) {}"""\ninspect.stack()\n'
    )
    found = scan_file(path)
    assert "add_one" in found.kernels and "two" in found.kernels
    assert "inspect.stack" in found.curious[0]
