"""Whole races on no device at all, with real processes: what each kind of cheat gets out of it is nothing."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from crucible.cli import app
from crucible.race.names import AGAIN, EAGER
from crucible.race.options import RaceError, RaceOptions
from crucible.race.run import race
from crucible.report.race_table import show

FORWARD = "return torch.relu(self.norm(self.linear(x)))"
CHEATS = {
    "wrong": (FORWARD, FORWARD.replace("relu", "tanh"), ""),
    "cached": (FORWARD, "self.out = getattr(self, 'out', None)\n            if self.out is None:\n"
               "                self.out = torch.relu(self.norm(self.linear(x)))\n            return self.out", ""),
    "lazy": (FORWARD, FORWARD + ".as_subclass(type('Lazy', (torch.Tensor,), {}))", ""),
    "timer": (FORWARD, "time.perf_counter = lambda: 0.0\n            " + FORWARD, "import time\n"),
    "crash": (FORWARD, "os.abort()", "import os\n"),
    "leaves": (FORWARD, "raise SystemExit(0)", ""),
    "hang": (FORWARD, "while True: pass", ""),
    "raises": (FORWARD, "raise ValueError('not today')", ""),
    "no_import": ("class ModelNew", "1 / 0\n\n    class ModelNew", ""),
}  # fmt: skip
REFUTED = {"wrong": "wrong in a timed call", "cached": "wrong in a timed call", "lazy": "no plain torch.Tensor",
           "timer": "replaced"}  # fmt: skip
FAILED = {"crash": "crashed", "leaves": "left", "hang": "took too long", "raises": "not today", "no_import": "Zero"}
SLOW = "time.sleep(0.03)\n            " + FORWARD
THREAD = """y = torch.zeros_like(x)

            def work():
                time.sleep(0.03)
                y.copy_(torch.relu(self.norm(self.linear(x))))

            threading.Thread(target=work).start()
            return y"""


def run(reference, *candidates, **options):
    options = {"device": "cpu", "seed": 3, "rounds": 2, "samples": 2, "warm": 1, "against": ("eager",), **options}
    return race(reference, candidates, **options)


def shown(result) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=160))
    return out.getvalue()


def test_a_right_candidate(linear, right, monkeypatch):
    said = []
    result = run(linear, right, train=True, quick=True, progress=lambda step, text: said.append(step))
    assert result.exit_code == 0, result.to_text()
    assert result.candidates[0].verdict == "proven" and result.candidates[0].proof["verdict"] == "proven"
    assert [p.what for p in result.passes] == ["forward", "training"]
    for done in result.passes:
        assert [r.contender for r in done.rows] == [EAGER, AGAIN, "new"] and done.noise["part"] >= 0
        for row in done.rows:
            assert row.status == "timed" and len(row.samples) == 2 and all(len(s) == 2 for s in row.samples)
            assert row.times.low <= row.times.median <= row.times.high and row.checked["right"]
            assert set(row.against) == {EAGER, AGAIN, "new"} - {row.contender}
    assert result.passes[0].rows[0].first_result_seconds > 0 and result.light["training"]["floor"] > 0
    assert any("proving new" in s for s in said) and "racing, training" in said
    text = shown(result)
    assert "PROVEN" in text and "new: " in text and "x eager (" in text and "\x1b" not in text
    document = json.loads(result.to_text())
    assert document["passes"][1]["rows"][2]["checked"]["source"] == "float64"


def test_cheats_gain_nothing_and_cost_themselves_alone(linear, changed):
    files = [changed(f"{name}.py", old, new, first) for name, (old, new, first) in CHEATS.items()]
    files.append(changed("slow.py", FORWARD, SLOW, "import time\n"))
    files.append(changed("thread.py", FORWARD, THREAD, "import threading, time\n"))
    result = run(linear, *files, unproven=True, timeout=6.0)
    (done,) = result.passes
    assert result.exit_code == 1
    for names, status in ((REFUTED, "refuted"), (FAILED, "failed")):
        for name, words in names.items():
            row = done.row(name)
            assert row.status == status and words in row.note, (name, row.status, row.note)
            assert row.times is None and row.samples == []
    assert done.row(EAGER).status == "timed" and done.row(AGAIN).status == "timed"
    slow, thread = done.row("slow"), done.row("thread")
    assert slow.status == "unproven" and slow.times.low >= 29
    assert thread.status == "unproven" and thread.left_threads and thread.times.low >= 29  # as slow as it is
    text = shown(result)
    assert "(unproven)" in text and "refuted: wrong: wrong in a timed call" in text


def test_what_is_not_proven_gets_no_time(linear, changed):
    wrong = changed("wrong.py", "torch.relu", "torch.tanh")
    result = run(linear, wrong, quick=True)
    assert result.exit_code == 1 and not result.passes and "no candidate is proven" in result.untimed
    assert result.candidates[0].verdict == "refuted" and "REFUTED" in shown(result) and " ms" not in shown(result)


def test_random_models_are_raced_in_evaluation(write):
    text = """
        import torch

        class Model(torch.nn.Module):
            def forward(self, x):
                return torch.nn.functional.dropout(x, 0.5, self.training) * 2

        ModelNew = Model

        def get_inputs():
            return [torch.rand(64, 33)]

        def get_init_inputs():
            return []
    """
    result = run(write("dropout.py", text), write("dropped.py", text), unproven=True)
    assert result.mode == "evaluation" and result.passes[0].row("dropped").status == "unproven", result.to_text()


@pytest.mark.quick
def test_without_a_gpu_there_is_the_speed_of_light_alone(linear, right, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    out = tmp_path / "race.json"
    result = CliRunner().invoke(app, ["race", str(linear), str(right), "--train", "--json", str(out)])
    assert result.exit_code == 2 and "no times" in result.output and "NVIDIA H200" in result.output
    assert "training" in result.output and "PROVEN" not in result.output
    document = json.loads(out.read_text())
    assert document["passes"] == [] and document["untimed"] and document["light"]["forward"]["bytes"] > 0
    other = CliRunner().invoke(app, ["race", str(linear), str(right), "--gpu", "a100"])
    assert "A100" in other.output


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.py", "NEW"], "does not exist"),
        (["FOLDER", "NEW"], "is a folder"),
        (["REF", "FOLDER"], "is a folder"),
        (["NEW", "NEW"], "defines no Model"),
        (["REF", "REF"], "defines no ModelNew"),
        (["REF", "NEW", "--against", "eager,tpu"], "no contender 'tpu'"),
        (["REF", "NEW", "--rounds", "1"], "--rounds must be at least 2"),
        (["REF", "NEW", "--samples", "0"], "--samples must be at least 1"),
        (["REF", "NEW", "--train", "--forward-only"], "--train times gradients"),
        (["REF", "NEW", "--dtype", "int3"], "--dtype int3"),
        (["REF", "NEW", "--gpu", "abacus"], "no figures for a GPU named"),
        (["REF", "NEW", "--json", "/no/such/folder/x.json"], "cannot be written"),
        (["BAD", "NEW"], "cannot be imported"),
    ],
)
def test_user_errors_are_sentences(linear, right, write, tmp_path, arguments, words):
    places = {"REF": linear, "NEW": right, "FOLDER": tmp_path, "BAD": write("bad.py", "from no_such_thing import *")}
    result = CliRunner().invoke(app, ["race", *(str(places.get(a, a)) for a in arguments)])
    assert result.exit_code == 2 and words in " ".join(result.output.split()), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.quick
def test_options_check_themselves():
    assert RaceOptions(train=True).passes == ("forward", "training") and RaceOptions().passes == ("forward",)
    with pytest.raises(RaceError, match="warm"):
        RaceOptions(warm=-1)
