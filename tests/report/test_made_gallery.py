"""The gallery's pages are those of the templates and records that are there, and staleness is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import make_gallery

pytestmark = pytest.mark.quick
PROBLEMS = make_gallery.problems()


def test_there_is_a_folder_for_every_problem() -> None:
    there = {p.name for p in make_gallery.GALLERY.iterdir() if p.is_dir()}
    assert there == {p.stem for p in PROBLEMS}
    index = (make_gallery.GALLERY / "index.html").read_text()
    assert all(f'href="{p.stem}/report.html"' in index for p in PROBLEMS)


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda p: p.stem)
def test_pages_are_up_to_date(path: Path) -> None:
    """What needs no fusing; tests/fuse/test_gallery.py compares the texts."""
    assert make_gallery.stale_pages(path) == [], "make gallery"


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    path = PROBLEMS[0]
    shutil.copytree(make_gallery.GALLERY / path.stem, tmp_path / path.stem)
    monkeypatch.setattr(make_gallery, "GALLERY", tmp_path)
    assert make_gallery.stale_pages(path) == []
    return tmp_path / path.stem


def test_another_text_is_noticed(copied) -> None:
    file = copied / "model_new.py"
    file.write_text(file.read_text() + "\n# changed\n")
    said = " ".join(make_gallery.stale_pages(PROBLEMS[0]))
    assert "proof.json is about another text" in said and "report.html was made from other records" in said


def test_another_header_leaves_the_proof_alone(copied) -> None:
    file = copied / "model_new.py"
    file.write_text(file.read_text().replace("Made by crucible", "Made by  crucible", 1))
    assert not any("another text" in line for line in make_gallery.stale_pages(PROBLEMS[0]))


def test_other_templates_are_noticed(copied, monkeypatch) -> None:
    monkeypatch.setattr("crucible.report.page.write.templates_digest", lambda: "other")
    assert "other templates" in " ".join(make_gallery.stale_pages(PROBLEMS[0]))


def test_a_record_of_another_text_is_not_taken(copied, capsys) -> None:
    own = (copied / "model_new.py").read_text()
    (copied / "race.json").unlink(missing_ok=True)
    entry = {"file": "n.py", "source": own + "x"}
    race = {"reference": "r.py", "source": "", "candidates": [entry], "options": {"train": False}}
    make_gallery._adopt(race, copied, own)
    assert not (copied / "race.json").exists() and "another text" in capsys.readouterr().out
    entry["source"] = own
    make_gallery._adopt(race, copied, own)
    kept = json.loads((copied / "race.json").read_text())
    assert kept["of"] == make_gallery.raced_mark(own) and kept["candidates"][0]["source"] is None


OLDER = {"def _expect(module, digest, layers)": "def _expect(module, digest)", ", _LAYERS)": ")"}


def test_a_race_outlives_other_checks_of_the_configuration_and_nothing_else(copied) -> None:
    own = (copied / "model_new.py").read_text()
    older = own
    for new, old in OLDER.items():
        assert new in older
        older = older.replace(new, old)
    older = "".join(line for line in older.splitlines(keepends=True) if not line.startswith("_LAYERS = "))
    assert make_gallery.raced_mark(older) == make_gallery.raced_mark(own)
    assert make_gallery.checks_mark(older) != make_gallery.checks_mark(own)
    for line in ("    memory = _new(*room)\n", "def _address(tensor):\n", "class ModelNew(nn.Module):\n"):
        assert line in own
        other = own.replace(line, line.replace("\n", "  # later\n"), 1)
        assert make_gallery.raced_mark(other) != make_gallery.raced_mark(own), line


@pytest.mark.parametrize("older", [False, True])
def test_the_page_of_a_race_with_other_checks_says_so(copied, older) -> None:
    race = json.loads((copied / "race.json").read_text()) if (copied / "race.json").exists() else None
    assert race is not None, "the first problem has a race"
    race["checks"] = "0" * 64 if older else make_gallery.checks_mark((copied / "model_new.py").read_text())
    (copied / "race.json").write_text(json.dumps(race))
    subject = make_gallery.subject_of(PROBLEMS[0], make_gallery.fused_now(PROBLEMS[0]))
    assert (make_gallery.OTHER_CHECKS in subject.race["warnings"]) == older
