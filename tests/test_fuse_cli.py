"""``crucible fuse``: what it writes and where, what it refuses, exit codes, JSON, and no traceback for a mistake."""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crucible.cli import app
from crucible.emit.file import MARK
from crucible.fuse import FuseError, fuse_problem
from crucible.fuse_to_file import is_ours, output_path
from crucible.plan.gpus import find
from crucible.prove.proof import Finding, Proof
from crucible.report.explain import explain_text
from crucible.report.numbers import amount, gflop, least
from crucible.write import write_atomically

runner = CliRunner()
quick = pytest.mark.quick

HEAD = "import torch\nimport torch.nn as nn\n"
TAIL = "\ndef get_inputs():\n    return [torch.rand(6, 10)]\n\ndef get_init_inputs():\n    return []\n"


@pytest.fixture
def problem(tmp_path):
    """problem(body of forward, ...) -> path of a Problem with one small input."""

    def make(forward: str = "return torch.relu(x) * 2", name: str = "model.py", tail: str = TAIL) -> Path:
        body = textwrap.indent(textwrap.dedent(forward), " " * 8)
        path = tmp_path / name
        path.write_text(f"{HEAD}\nclass Model(nn.Module):\n    def forward(self, x):\n{body}\n{tail}")
        return path

    return make


def run(*arguments: object):
    return runner.invoke(app, ["fuse", *map(str, arguments)])


def failed_with_a_sentence(result) -> bool:
    """Exit code 2, a message, and no exception that got away."""
    plain = result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code == 2 and plain and "crucible fuse:" in result.output and "Traceback" not in result.output


@quick
def test_writes_beside_the_model(problem):
    path = problem()
    result = run(path, "--no-prove")
    new = path.with_name("model_new.py")
    assert result.exit_code == 0, result.output
    assert "written, not proven (--no-prove)" in result.output and "1 kernel (1 map)" in result.output
    text = new.read_text()
    assert text.startswith(f'"""{MARK}') and "class ModelNew" in text and "Not proven: no proof was asked for" in text
    assert is_ours(new) and not is_ours(path)
    assert [p.name for p in path.parent.iterdir() if p.suffix == ".tmp"] == []


@quick
def test_writes_over_its_own_files_only(problem, tmp_path):
    path, mine = problem(), tmp_path / "precious.py"
    mine.write_text("# mine\n")
    assert failed_with_a_sentence(refused := run(path, "-o", mine, "--no-prove")) and "--force" in refused.output
    assert mine.read_text() == "# mine\n"
    assert run(path, "-o", mine, "--no-prove", "--force").exit_code == 0 and is_ours(mine)
    assert run(path, "-o", mine, "--no-prove").exit_code == 0  # now it is ours


@quick
def test_the_model_itself_is_never_overwritten(problem):
    path = problem()
    before = path.read_text()
    assert failed_with_a_sentence(run(path, "-o", path, "--no-prove", "--force")) and path.read_text() == before


@quick
@pytest.mark.parametrize("given", ["missing.py", ".", "empty.py", "broken.py", "nothing.py", "raises.py"])
def test_wrong_paths_and_files(tmp_path, given):
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("class Model(:\n")
    (tmp_path / "nothing.py").write_text(HEAD + TAIL)
    (tmp_path / "raises.py").write_text(
        HEAD + "\nclass Model(nn.Module):\n    def __init__(self):\n        raise KeyError('size')\n" + TAIL
    )
    assert failed_with_a_sentence(run(tmp_path / given, "--no-prove"))
    assert not list(tmp_path.glob("*_new.py"))


@quick
@pytest.mark.parametrize(
    "arguments",
    [
        ["--engine", "wgmma"], ["--precision", "low"], ["--dtype", "float8"], ["--gpu", "gtx9999"], ["--device", "tpu"],
        ["--trials", "0"], ["--seed", "-4"], ["-o", "no/such/folder/new.py"], ["-o", "."], ["--json", "no/such/x.json"],
    ],
)  # fmt: skip
def test_senseless_options_are_found_before_the_work(problem, arguments):
    path = problem()
    assert failed_with_a_sentence(run(path, *arguments))
    assert not path.with_name("model_new.py").exists()


@quick
def test_control_flow_on_values_names_the_line(problem):
    result = run(problem("if x.sum() > 0:\n    return x\nreturn -x"), "--no-prove")
    assert failed_with_a_sentence(result)
    assert "model.py:6" in result.output and "if x.sum() > 0" in result.output and "torch.where" in result.output


@quick
def test_strict_refuses_with_the_list(problem):
    path = problem("return torch.sort(torch.relu(x))[0]")
    result = run(path, "--no-prove", "--strict")
    assert failed_with_a_sentence(result) and "aten.sort" in result.output
    assert not path.with_name("model_new.py").exists()
    result = run(path, "--no-prove", "--explain")
    assert result.exit_code == 0 and "not fused" in result.output and "sort" in result.output


@quick
def test_values_that_the_file_is_made_for_are_told(problem):
    path = problem()
    path.write_text(path.read_text().replace("(self, x)", "(self, x, start: int = 3, *, mode='plain')"))
    done = run(path, "--no-prove")
    assert done.exit_code == 0 and "made for        start=3, mode='plain'" in done.output
    assert "made for" not in run(problem(name="other.py"), "--no-prove").output


@quick
def test_json(problem, tmp_path):
    path, out = problem("return torch.softmax(x, 1), x.max()"), tmp_path / "plan.json"
    assert run(path, "--no-prove", "--json", out, "--gpu", "a100", "--explain").exit_code == 0
    document = json.loads(out.read_text())
    assert document["schema"] == 1 and document["proof"] is None and document["file"].endswith("model_new.py")
    plan = document["plan"]
    assert plan["gpu"]["name"] == "a100-80" and plan["unfused"] == [] and plan["element"] == "float32"
    directions = [p["direction"] for p in plan["passes"]]
    assert directions[:2] == ["forward", "backward"]
    for p in plan["passes"]:
        for kernel in p["kernels"]:
            assert kernel["absorbs"] and kernel["seconds"] >= 0 and kernel["bytes"] > 0
            assert all(t["bytes"] >= 0 and t["shape"] is not None for t in [*kernel["reads"], *kernel["writes"]])


@quick
def test_forward_only_and_types(problem):
    path = problem()
    assert run(path, "--no-prove", "--forward-only", "--dtype", "float16,bfloat16").exit_code == 0
    text = path.with_name("model_new.py").read_text()
    assert "_BACKWARD_SOURCE" not in text and "torch.float16" in text and "torch.float64: " not in text


@quick
def test_engines_give_other_files(problem):
    tail = TAIL.replace("rand(6, 10)", "rand(64, 64)")
    path = problem("return x @ x.t()", tail=tail)
    assert run(path, "--no-prove", "--engine", "simt", "-o", path.with_name("simt.py")).exit_code == 0
    assert run(path, "--no-prove", "-o", path.with_name("auto.py")).exit_code == 0
    assert "Mma<" not in path.with_name("simt.py").read_text() and "Mma<" in path.with_name("auto.py").read_text()


@quick
def test_numbered_submodules_are_reached(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        HEAD + "\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Linear(10, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 3)))\n\n"
        "    def forward(self, x):\n        return self.layers(x)\n" + TAIL
    )
    assert run(path, "--no-prove").exit_code == 0
    assert "self.layers[1][1].weight" in path.with_name("model_new.py").read_text()


@quick
def test_the_explanation_is_the_same_twice(problem):
    path = problem("y = torch.relu(x)\nreturn torch.sort(y)[0] + y.mean(0)")
    first = explain_text(fuse_problem(path), find("h200"))
    assert first == explain_text(fuse_problem(path), find("h200"))
    assert "forward: " in first and "backward: " in first and "aten.sort" in first and "x (6, 10)" in first
    assert "NVIDIA H200" in first and all(len(line) <= 120 for line in first.splitlines())
    assert first != explain_text(fuse_problem(path), find("t4"))


@quick
def test_numbers_as_people_write_them():
    assert [amount(n) for n in (0, 999, 1500, 2_147_483_648, 30_480_000_000)] == [
        "0 B", "999 B", "1.5 kB", "2147 MB", "30.48 GB",
    ]  # fmt: skip
    assert [gflop(n) for n in (0, 1, 550_000_000, 643_000_000_000)] == ["0", "<0.01", "0.55", "643"]
    assert [least(s) for s in (9.2e-7, 1.27e-3)] == ["0.92 us", "1.270 ms"]


@quick
def test_writing_is_all_or_nothing(tmp_path):
    path = tmp_path / "a.py"
    write_atomically(path, "one")
    path.chmod(0o640)
    write_atomically(path, "two")
    assert path.read_text() == "two" and path.stat().st_mode & 0o777 == 0o640
    link = tmp_path / "b.py"
    link.symlink_to(path)
    write_atomically(link, "three")
    assert link.is_symlink() and path.read_text() == "three"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.py", "b.py"]
    with pytest.raises(FuseError, match="no folder"):
        output_path(tmp_path / "m.py", tmp_path / "none" / "x.py", False)


def test_fused_and_proven(problem, tmp_path):
    """From the command to a proven file, in the simulator."""
    path, out = problem(), tmp_path / "all.json"
    result = run(path, "--device", "sim", "--quick", "--seed", "3", "--json", out)
    assert result.exit_code == 0, result.output
    assert "PROVEN" in result.output and "written and proven" in result.output
    header = path.with_name("model_new.py").read_text().split('"""')[1]
    assert "Proven against model.py in the simulator" in " ".join(header.split()) and "seed 3" in header
    document = json.loads(out.read_text())
    assert document["proof"]["verdict"] == "proven" and document["proof"]["seed"] == 3


@quick
@pytest.mark.parametrize(
    "code, exit_code, word", [("wrong_values", 1, "refuted"), ("infrastructure", 2, "could not be judged")]
)
def test_a_file_that_is_not_proven_is_kept_and_says_so(problem, monkeypatch, code, exit_code, word):
    finding = Finding(code, 'it says """ and \\ and more\nsecond line')

    def verdict(reference, candidate, **options):
        assert options["precision"] == "fp32" and options["dtype"] == "float16" and options["strict"]
        assert "Not proven: the proof had not ended" in " ".join(Path(candidate).read_text().split())
        return Proof("model.py", "new.py", "sim", finding.verdict, finding, seed=9, options={"dtype": "float16"})

    monkeypatch.setattr("crucible.prove.run.prove", verdict)
    path = problem()
    result = run(path, "--precision", "fp32", "--dtype", "float16,float32", "--strict")
    assert result.exit_code == exit_code and "NOT proven" in result.output, result.output
    text = path.with_name("model_new.py").read_text()
    document = ast.get_docstring(ast.parse(text))
    assert document is not None and f"NOT PROVEN: {word} against model.py" in " ".join(document.split())
    assert "seed 9" in document and "second line" not in document
