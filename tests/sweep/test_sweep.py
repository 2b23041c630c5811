"""Whole sweeps on no device or in the simulator, with real processes: bad files, limits, kills, going on."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from sweep_texts import GOOD, NEW
from typer.testing import CliRunner

from crucible.cli import app
from crucible.report.sweep_table import LiveBoard, show
from crucible.sweep.find import SweepError, problems, with_candidates
from crucible.sweep.run import SweepOptions, sweep
from crucible.sweep.store import Store

SRC = Path(__file__).parents[2] / "src"
QUICK = {"device": "cpu", "quick": True, "rounds": 2, "samples": 1, "against": ("eager",), "seed": 3, "jobs": 1}


@pytest.mark.quick
def test_problems_are_found(folder, write, tmp_path):
    write("set/broken.py", "class Model(\n")
    write("set/.hidden/x.py", GOOD)
    write("set/store/files/x_new.py", GOOD)  # a store may lie inside
    found, others = problems(folder, without=folder / "store")
    assert [f.name for f in found] == ["broken.py", "deep/other.py", "good.py"] and others == ["helper.py"]
    write("new/good_new.py", NEW)
    write("new/other.py", NEW)
    pairs, without = with_candidates(found, folder, tmp_path / "new")
    assert [(p.name, p.candidate.name) for p in pairs] == [("deep/other.py", "other.py"), ("good.py", "good_new.py")]
    assert without == ["broken.py"] and [p.title for p in pairs] == ["deep/other.py", "good.py"]
    write("new/good.py", NEW)
    both, _ = with_candidates(found, folder, tmp_path / "new")
    assert [p.title for p in both][1:] == ["good.py (good.py)", "good.py (good_new.py)"]
    write("set/good_new.py", NEW)
    beside, _ = with_candidates(problems(folder, without=folder / "store")[0], folder, folder)
    assert [(p.name, p.candidate.name) for p in beside] == [("good.py", "good_new.py")]


@pytest.mark.quick
def test_the_live_table_and_its_lines():
    line = {"kind": "candidate", "times": {"median": 0.05}, "against": {"eager": {"speedup": 2.0, "claim": "faster"}},
            "of_floor": 0.5}  # fmt: skip
    race = {"passes": [{"what": "forward", "noise": None, "rows": [line]}]}
    rows = [{"title": "a.py", "status": "proven", "reason": None, "race": race},
            {"title": "[b].py", "status": "refuted", "reason": "wrong\nby far", "race": None}]  # fmt: skip
    for terminal in (True, False):
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=100)
        with LiveBoard(console) as board:
            board.begin(3, rows[:1])
            board.started("a.py", "proving")
            board.started("lost.py", "fusing", "node-8")
            for row in rows:
                board.finished(row)
            board.note("lost.py: done [again]", "lost.py")
            board.started("c.py", "proving", "node-[7]")
            if terminal:
                console.print(board._table())
        text = out.getvalue()
        assert "lost.py: done [again]" in text and ("on node-[7]" in text) == terminal and "node-8" not in text
        assert "a.py" in text and "50 us, 2.00 x eager (faster)" in text and "[b].py" in text and "wrong" in text
        assert ("\x1b" in text) == terminal and "by far" not in text and ("3 of 3" if terminal else "[3/3]") in text


@pytest.mark.quick
def test_user_errors_are_sentences(folder, write, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [
        ([tmp_path / "none"], "does not exist"),
        ([folder / "good.py"], "is a file"),
        ([empty], "defines a Model"),
        ([folder, "--candidates", empty], "no candidate for any"),
        ([folder, "--candidates", tmp_path / "none"], "is no folder"),
        ([folder, "--compare", empty], "holds no results"),
        ([folder, "--store", folder], "other things in it"),
        ([folder, "--limit", "0"], "--limit must be positive"),
        ([folder, "--jobs", "0"], "--jobs must be at least 1"),
        ([folder, "--against", "tpu"], "no contender 'tpu'"),
        ([folder, "--json", "/no/such/folder/x"], "cannot be written"),
    ]
    for arguments, words in cases:
        result = CliRunner().invoke(app, ["sweep", *map(str, arguments)])
        assert result.exit_code == 2 and words in " ".join(result.output.split()), (arguments, result.output)
    with pytest.raises(SweepError):
        SweepOptions(limit=-1)


def test_candidates_are_judged_and_bad_ones_cost_a_row(folder, write, tmp_path):
    write("new/good.py", NEW.format("torch.relu(x) * 2"))
    write("new/other.py", NEW.format("torch.relu(x) * 4"))
    write("set/third.py", GOOD)
    write("new/third.py", "raise SystemExit(3)\nclass ModelNew: pass\n")
    out = io.StringIO()
    with LiveBoard(Console(file=out)) as board:
        result = sweep(folder, tmp_path / "s", candidates=tmp_path / "new", board=board, **QUICK)
    rows = {r["title"]: r for r in result.rows}
    statuses = {t: r["status"] for t, r in rows.items()}
    assert statuses["good.py"] == "proven" and statuses["deep/other.py"] == "refuted", rows
    assert statuses["third.py"] in ("refuted", "unjudged"), rows
    line = rows["good.py"]["race"]["passes"][0]["rows"][2]
    assert line["kind"] == "candidate" and line["times"]["median"] > 0
    assert rows["good.py"]["race"]["candidates"][0]["proof"]["verdict"] == "proven"
    assert "[3/3]" in out.getvalue() and "x eager" in out.getvalue()
    shown = io.StringIO()
    show(result, [], Console(file=shown, width=150), None)
    assert "1 of 3 proven" in shown.getvalue() and "forward: 1 timed" in shown.getvalue()

    began = time.monotonic()  # all rows are there: nothing is run again
    again = sweep(folder, tmp_path / "s", candidates=tmp_path / "new", **QUICK)
    assert again.kept == 3 and time.monotonic() - began < 5 and len(Store(tmp_path / "s").rows()) == 3
    (tmp_path / "new" / "good.py").write_text("x = 1\n")  # another file is another row, and judged quickly
    changed = sweep(folder, tmp_path / "s", candidates=tmp_path / "new", **QUICK)
    assert changed.kept == 2 and len(Store(tmp_path / "s").rows()) == 4


def test_a_file_that_takes_too_long_or_crashes_costs_a_row(write, tmp_path):
    write("set/slow.py", GOOD.replace("def get_inputs", "import time\ntime.sleep(600)\n\n\ndef get_inputs"))
    write("set/crash.py", GOOD.replace("def get_inputs", "import os\nos.abort()\n\n\ndef get_inputs"))
    for name in ("slow", "crash"):
        write(f"new/{name}.py", NEW.format("x"))
    result = sweep(tmp_path / "set", tmp_path / "s", candidates=tmp_path / "new", limit=10.0, **QUICK)
    rows = {r["title"]: r for r in result.rows}
    assert rows["slow.py"]["status"] == "time limit" and "10 s" in rows["slow.py"]["reason"]
    assert rows["crash.py"]["status"] == "failed" and "signal 6" in rows["crash.py"]["reason"], rows["crash.py"]
    retried = sweep(tmp_path / "set", tmp_path / "s", candidates=tmp_path / "new", limit=2.0, retry=True, **QUICK)
    assert retried.kept == 0 and len(Store(tmp_path / "s").rows()) == 4


def test_a_folder_is_fused_and_proven_without_a_gpu(write, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    write("set/good.py", GOOD)
    write("set/bad.py", "import nothing_of_that_name\nModel = 1\n")
    out = tmp_path / "sweep.json"
    command = ["sweep", str(tmp_path / "set"), "--store", str(tmp_path / "s"), "--quick", "--jobs", "1"]
    result = CliRunner().invoke(app, [*command, "--json", str(out)])
    document = json.loads(out.read_text())
    statuses = {r["title"]: r["status"] for r in document["rows"]}
    assert statuses == {"good.py": "proven", "bad.py": "not fused"} and result.exit_code == 2, result.output
    assert "no times" in result.output and "cannot be imported" in result.output and "1 of 2 proven" in result.output
    row = next(r for r in Store(tmp_path / "s").rows() if r["title"] == "good.py")
    entry = row["race"]["candidates"][0]
    assert entry["proof"]["verdict"] == "proven" and entry["plan"]["passes"] and row["race"]["untimed"]
    assert Path(row["candidate"]).is_file() and row["race"]["light"]["forward"]["bytes"] == 2 * 4 * 16 * 24
    (tmp_path / "set" / "bad.py").unlink()
    later = CliRunner().invoke(app, [*command, "--compare", str(tmp_path / "s")])
    assert later.exit_code == 0 and "gone: bad.py" in later.output, later.output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_sweep_goes_on(folder, write, tmp_path, number):
    """In the middle: what was done is kept and nothing else, and nobody of the killed sweep stays behind."""
    for name in ("good", "other", "zlast"):
        write(f"new/{name}.py", "x = 1\n")  # judged quickly: there is no ModelNew
    marker = tmp_path / "pid"
    slow = f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n\n\ndef get_inputs"
    write("set/zlast.py", GOOD.replace("def get_inputs", slow))
    script = (
        f"from crucible.sweep.run import sweep\n"
        f"sweep({str(folder)!r}, {str(tmp_path / 's')!r}, candidates={str(tmp_path / 'new')!r}, **{QUICK!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(SRC)},
                               stderr=subprocess.DEVNULL)  # fmt: skip
    end = time.monotonic() + 120
    while not marker.exists() and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(number)
    process.wait(60)
    assert len(Store(tmp_path / "s").rows()) == 2
    worker = int(marker.read_text())
    while Path(f"/proc/{worker}").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()
    (folder / "zlast.py").write_text(GOOD)
    result = sweep(folder, tmp_path / "s", candidates=tmp_path / "new", **QUICK)
    assert result.kept == 2 and [r["status"] for r in result.rows] == ["unjudged"] * 3
