"""Steps that are measured one after another: what is done again, what is left, and what becomes of rows."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import everything
import pytest
from everything import Done, Step, go_through

pytestmark = pytest.mark.quick
SCRIPT = Path(everything.__file__)


def step(name: str, *programs: str, seconds: float = 1.0) -> Step:
    return Step(name, tuple((sys.executable, "-c", p) for p in programs), seconds)


def run(folder: Path, *todo: Step, commit: str = "c1", seconds: float | None = None):
    said: list[str] = []
    return *go_through(todo, folder, commit, seconds, said.append), said


def row(folder: Path, text: str) -> str:
    return f"open({str(folder / 'race.csv')!r}, 'a').write({text!r})"


def test_what_is_done_is_not_done_again_but_for_another_commit(tmp_path):
    counted = step("a.x", f"open({str(tmp_path / 'count')!r}, 'a').write('1'); print('measured')")
    for commit in ("c1", "c1", "c2"):
        assert run(tmp_path, counted, commit=commit)[:2] == ([], [])
    assert (tmp_path / "count").read_text() == "11"
    assert "measured" in (tmp_path / "a.x.log").read_text()
    assert everything.known(tmp_path)["a.x"].commit == "c2"


def test_changes_that_are_not_committed_are_another_state(tmp_path, monkeypatch):
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    (tmp_path / "kernel.cuh").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    assert everything.identity("abc") == "abc"
    states = set()
    for text in ("2", "3", "2"):
        (tmp_path / "kernel.cuh").write_text(text)
        states.add(everything.identity("abc+"))
    assert len(states) == 2 and all(state.startswith("abc+") for state in states)


def test_a_step_that_fails_is_told_leaves_no_rows_and_is_done_again(tmp_path):
    (tmp_path / "race.csv").write_text("n\n1\n")
    failing = step("a.x", row(tmp_path, "2\n"), "import sys; sys.exit('out of memory')")
    other = step("a.y", row(tmp_path, "3\n"))
    failed, left, said = run(tmp_path, failing, other)
    assert failed == ["a.x"] and not left and "exit code 1" in said[1] and str(tmp_path / "a.x.log") in said[1]
    assert "out of memory" in (tmp_path / "a.x.log").read_text()
    assert (tmp_path / "race.csv").read_text() == "n\n1\n3\n"
    assert run(tmp_path, step("a.x", row(tmp_path, "2\n")), other)[0] == []
    assert (tmp_path / "race.csv").read_text() == "n\n1\n3\n2\n"


def test_nothing_is_begun_that_would_not_end_in_time(tmp_path):
    everything.keep(tmp_path, {"a.known": Done("c0", True, 900.0), "a.failed": Done("c1", False, 900.0, "")})
    todo = [step("a.long", "", seconds=900), step("a.known", ""), step("a.failed", ""), step("a.short", "")]
    assert run(tmp_path, *todo, seconds=30)[:2] == ([], ["a.long", "a.known"])


def test_a_step_that_hangs_ends_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(everything, "LONGER", -59.0)  # a second
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    hangs = step("a.x", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    failed, _, said = run(tmp_path, hangs)
    assert failed == ["a.x"] and "still running after 1 s" in said[1]
    time.sleep(3)
    assert not (tmp_path / "late").exists()


def test_rows_are_taken_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    monkeypatch.setattr(everything, "RESULTS", tmp_path / "results")
    measured = tmp_path / "measured"
    measured.mkdir()
    (measured / "scaling.csv").write_text("gpu,commit,off\nH,c1,0.1\nH,c1,0.2\n")
    for expected in ("2 rows more, 0 were there", "0 rows more, 2 were there"):
        assert everything.take(measured) == 0
        assert expected in capsys.readouterr().out
    assert (tmp_path / "results" / "scaling.csv").read_text().split() == ["gpu,commit,off", "H,c1,0.1", "H,c1,0.2"]


def test_every_step_is_a_script_that_takes_these_words(tmp_path):
    """Each script's own parser is asked, without a GPU: it says that it needs one, or names what it does not know."""
    todo = everything.steps(tmp_path, ["conv_transpose2d_gelu_group_norm", "gemm_group_norm_min_bias"])
    assert len({s.name for s in todo}) == len(todo)
    kinds = "sanitizer races scaling models account sizes variants no_tf32 training"
    assert list(dict.fromkeys(s.kind for s in todo)) == kinds.split()
    asked = {}
    for command in (c for s in todo for c in s.commands):
        words = [w for w in command if w.startswith("--")]
        asked.setdefault((command[1] if command[1] != "-m" else command[3], *words), command)
    helps: dict[str, str] = {}
    for (script, *words), command in asked.items():
        head = command[:2] if command[1] != "-m" else command[:4]
        if script not in helps:
            wide = {"PYTHONPATH": "src", "COLUMNS": "200"}
            done = subprocess.run([*head, "--help"], capture_output=True, text=True, env=wide)
            assert done.returncode == 0, done.stderr
            helps[script] = done.stdout
        for word in words:
            assert word in helps[script], (script, word)


def test_it_says_what_is_wrong(tmp_path):
    def asked(*words: str) -> str:
        done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
        assert done.returncode == 2
        return done.stderr

    assert "where to? Name a folder" in asked()
    assert "there is no step 'speed'; there are sanitizer, races," in asked(str(tmp_path), "--only", "speed")
    assert "no problem has lstm in its name" in asked(str(tmp_path), "--problems", "lstm")
    assert "this needs a GPU" in asked(str(tmp_path))
    words = [sys.executable, str(SCRIPT), "--list", "--only", "account"]
    listed = subprocess.run(words, capture_output=True, text=True)
    assert listed.returncode == 0 and "account.conv_transpose2d_gelu_group_norm" in listed.stdout
