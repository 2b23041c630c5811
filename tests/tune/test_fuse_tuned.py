"""``fuse_file`` with tuning: when it tunes, what it writes and proves, what the reports say. No GPU: a stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_search import HOPPER, PROBLEM, FakeBench
from typer.testing import CliRunner

import crucible
from crucible.cli import app
from crucible.fuse import FuseError, FuseOptions, fuse_problem
from crucible.fuse_to_file import fuse_file
from crucible.plan import gpus
from crucible.plan.ways import ways
from crucible.prove.proof import Finding, Proof
from crucible.tune import machine
from crucible.tune import run as tune_run
from crucible.tune.search import sites

quick = pytest.mark.quick


@pytest.fixture
def problem(tmp_path, monkeypatch):
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.py"
    path.write_text(PROBLEM)
    return path


PLANNED: dict = {}


def remembered(path, options):
    """Planning takes most of a second, and the Problem is the same in all tests."""
    if options not in PLANNED:
        PLANNED[options] = fuse_problem(path, options)
    return PLANNED[options]


@pytest.fixture
def bench(monkeypatch):
    """A GPU to all appearances."""
    made = FakeBench({"addmm: mma tile 128x32x16": 4.0, "addmm: mma tile 32*": 5.0, "reference": 20.0})
    monkeypatch.setattr(tune_run, "fuse_problem", remembered)
    monkeypatch.setattr(machine, "have_gpu", lambda: True)
    monkeypatch.setattr(machine, "here", lambda: HOPPER)
    monkeypatch.setattr(tune_run, "make_bench", lambda source, element, said: made)
    return made


def proving(monkeypatch, *verdicts):
    """Verdicts of the proofs to come; the files they were about."""
    seen: list[str] = []

    def prove(reference, candidate, **options):
        verdict = verdicts[len(seen)]
        seen.append(Path(candidate).read_text())
        finding = {"refuted": Finding("wrong_values", "it is wrong"), "proven": None}[verdict]
        return Proof("model.py", str(candidate), "cuda", verdict, finding, seed=9)

    monkeypatch.setattr("crucible.prove.run.prove", prove)
    return seen


def fused(problem, **options):
    options.setdefault("tune_budget", 1000)  # machines may be slow
    return fuse_file(problem, problem.with_name("new.py"), forward_only=True, **options)


@quick
def test_without_a_gpu_nothing_is_tuned_and_asking_for_it_is_an_error(problem, monkeypatch):
    monkeypatch.setattr(machine, "have_gpu", lambda: False)
    made = fused(problem, prove=False)
    assert made.fused.tuning is None and made.to_json()["plan"]["tuning"] is None and "tuned" not in made.explanation
    with pytest.raises(FuseError, match="--tune measures on a CUDA GPU"):
        fused(problem, prove=False, tune=True)
    result = CliRunner().invoke(app, ["fuse", str(problem), "--tune", "--no-prove"])
    assert result.exit_code == 2 and "--no-tune" in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("options", [{"tune": False}, {"device": "sim"}])
def test_a_gpu_is_left_alone_where_nobody_wants_it(problem, bench, options):
    assert fused(problem, prove=False, **options).fused.tuning is None and not bench.calls


@quick
@pytest.mark.parametrize("budget", [0, -3, float("nan"), float("inf")])
def test_senseless_budgets(problem, budget):
    with pytest.raises(FuseError, match="budget"):
        fused(problem, prove=False, tune_budget=budget)


def test_the_winner_is_written_and_proven(problem, bench, monkeypatch):
    seen = proving(monkeypatch, "proven")
    steps = []
    made = fused(problem, gauge=lambda step, spent, total, text: steps.append((step, total, text)))
    assert made.exit_code == 0 and len(seen) == 1 and made.fused.tuning.chosen.median == 4.0
    assert made.path.read_text() == made.text != fuse_problem(problem, FuseOptions(forward_only=True)).text
    assert "Mma<128, 32" in made.text
    assert steps and {(s, t) for s, t, _ in steps} == {("tuning", 1000)}
    text = " ".join(made.explanation.split())
    assert "tuned: addmm: mma tile 128x32x16" in text and "default 10.000 ms" in text and "reference 20.000" in text
    told = json.loads(json.dumps(made.to_json()))["plan"]["tuning"]
    assert told["winner"].startswith("addmm: mma tile 128x32x16") and len(told["rows"]) > 5
    assert {r["name"] for r in told["rows"]} >= {"default", "reference"}


def test_a_second_time_gives_the_same_file_without_the_gpu(problem, bench, monkeypatch):
    first = fused(problem, prove=False)
    bench.calls.clear()
    second = fused(problem, prove=False)
    assert second.text == first.text and second.fused.tuning.cached and not bench.calls
    assert "as measured before" in " ".join(second.explanation.split())


def test_a_refuted_winner_gives_way(problem, bench, monkeypatch):
    seen = proving(monkeypatch, "refuted", "proven")
    made = fused(problem)
    assert made.exit_code == 0 and len(seen) == 2 and seen[0] != seen[1] and len(made.proofs) == 1
    assert made.fused.tuning.chosen.median == 5.0 and "refuted: it is wrong" in made.explanation
    assert "Proven against" in made.path.read_text()
    seen = proving(monkeypatch, "proven")
    assert fused(problem).fused.tuning.chosen.median == 5.0 and len(seen) == 1


def test_all_refuted_leaves_the_default_and_says_so(problem, bench, monkeypatch):
    seen = proving(monkeypatch, *["refuted"] * 9)
    made = fused(problem)
    assert made.exit_code == 1 and 2 <= len(seen) <= 4 and "NOT PROVEN" in made.path.read_text()


def test_the_command_line(problem, bench, tmp_path):
    out = tmp_path / "plan.json"
    command = ["fuse", str(problem), "--no-prove", "--forward-only", "--explain", "--json", str(out), "--tune"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "tuned" in result.output and "chosen" in result.output and "reference" in result.output
    assert json.loads(out.read_text())["plan"]["tuning"]["gpu"] == "NVIDIA H200"
    assert "tuned" in CliRunner().invoke(app, [c for c in command if c != "--explain"]).output


def test_shipped_choices_are_read(problem, monkeypatch):
    plain = fuse_problem(problem, FuseOptions(forward_only=True))
    (site, _), _ = sites(plain)
    other = ways(site, True)[1]
    row = {"gpu": "h200", "element": "float32", "rule": "matmul", "grade": "fp32"}
    row |= {"site": site.text, "way": other.label}
    assert gpus.tuned(gpus.find("h200"), "float32", {"conv": "tf32", "matmul": "fp32"}) is not None
    monkeypatch.setattr(gpus, "_shipped", lambda: (row,))
    assert fused(problem, prove=False, gpu="h200", tune=False).text != fused(problem, prove=False, gpu="t4").text
    assert fused(problem, prove=False, gpu="t4", tune=False).fused.options.choices.picks == ()


@quick
def test_the_shipped_file_is_well_formed():
    path = Path(crucible.__file__).parent / "plan" / "tuned.json"
    document = json.loads(path.read_text())
    assert document["schema"] == 1
    for row in document["rows"]:
        assert set(row) == {"gpu", "element", "rule", "grade", "site", "way"} and row["gpu"] in gpus.names()


@quick
def test_a_failure_costs_the_tuning_alone_where_nobody_asked_for_it(problem, bench, monkeypatch):
    def broken(source, element, said):
        raise OSError("no processes left")

    monkeypatch.setattr(tune_run, "make_bench", broken)
    said: list[str] = []
    made = fused(problem, prove=False, progress=lambda step, text: said.append(f"{step} {text}"))
    assert made.path.exists() and made.fused.tuning is None
    assert any("no processes left" in text and "cost model" in text for text in said)
    with pytest.raises(FuseError, match="tuning failed: no processes left"):
        fused(problem, prove=False, tune=True, force=True)
