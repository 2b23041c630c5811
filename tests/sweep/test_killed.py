"""A sweep that is killed three times at random ends with the table of an undisturbed one (tools/killed_sweep.py)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_texts import NEW

TOOL = Path(__file__).parents[2] / "tools" / "killed_sweep.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("killed_sweep", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.exhaustive  # five sweeps; test_sweep.py kills one in the ordinary run
def test_killed_three_times(folder, write, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("what is raced there has nothing to do with kills, and takes long")
    write("new/good.py", NEW.format("torch.relu(x) * 2"))
    write("new/other.py", "x = 1\n")
    write("set/third.py", "import nothing_of_that_name\nModel = 1\n")
    write("new/third.py", "x = 1\n")
    done = subprocess.run(
        [sys.executable, str(TOOL), str(folder), "--", "--quick", "--jobs", "1", "--candidates", str(tmp_path / "new")],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed: the same table, 3 rows, exit code 2" in done.stdout, done.stdout
    assert "good.py: proven" in done.stdout, done.stdout
    assert "kill 1" in done.stdout and "kill 3" in done.stdout


@pytest.mark.quick
def test_other_tables_are_seen(tool, write, tmp_path):
    """Only seconds and the place of the store may differ."""
    texts = {
        name: f'{{"rows": [{{"title": "a.py", "problem": "a.py", "candidate": "{tmp_path / name}/files/a_new.py", '
        f'"status": "{status}", "reason": null, "seconds": {seconds}}}]}}'
        for name, status, seconds in (("one", "proven", 1), ("two", "proven", 2), ("three", "failed", 1))
    }
    one, two, three = (tool.table(write(f"{name}.json", text)) for name, text in texts.items())
    assert one == two != three and one[0]["candidate"] == "STORE/files/a_new.py"


@pytest.mark.quick
def test_a_part_of_a_folder(tool, folder, tmp_path):
    place = tool.taken(folder, 2, tmp_path / "part")
    assert sorted(p.relative_to(place).as_posix() for p in place.rglob("*.py")) == ["deep/other.py", "helper.py"]
