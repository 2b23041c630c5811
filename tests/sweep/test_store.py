"""Rows are there as a whole or not at all, whatever is killed when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crucible.sweep.store import Store, StoreError

pytestmark = pytest.mark.quick
SRC = Path(__file__).parents[2] / "src"


def test_rows_come_back_in_order_and_the_last_counts(tmp_path):
    store = Store(tmp_path / "s")
    for status in ("failed", "proven"):
        store.append({"key": "a", "status": status, "value": float("inf")})
    store.append({"key": "b", "status": "refuted"})
    again = Store(tmp_path / "s")
    assert [r["status"] for r in again.rows()] == ["failed", "proven", "refuted"]
    assert {k: r["status"] for k, r in again.latest().items()} == {"a": "proven", "b": "refuted"}
    assert again.rows()[0]["value"] == "inf" and again.rows()[0]["schema"] == 1


def test_nothing_is_ever_written_over(tmp_path):
    stores = [Store(tmp_path / "s") for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: stores[k % 4].append({"key": str(k), "status": "proven"}), range(60)))
    assert sorted(int(r["key"]) for r in stores[0].rows()) == list(range(60))
    assert not [p for p in (tmp_path / "s" / "rows").iterdir() if p.suffix == ".tmp"]


def test_foreign_and_broken_files_are_left_alone(tmp_path):
    store = Store(tmp_path / "s")
    store.append({"key": "a", "status": "proven"})
    rows = tmp_path / "s" / "rows"
    (rows / ".abc.tmp").write_text('{"half": ')
    (rows / "000007.json").write_text('{"half": ')
    (rows / "000008.json").write_text('{"kind": "something else"}')
    store.append({"key": "b", "status": "proven"})
    assert [r["key"] for r in store.rows()] == ["a", "b"] and (rows / "000009.json").is_file()


def test_a_kill_at_any_point_leaves_whole_rows(tmp_path):
    script = (
        "import sys\nfrom pathlib import Path\nfrom crucible.sweep.store import Store\n"
        f"store = Store(Path({str(tmp_path / 's')!r}))\n"
        "for k in range(100000):\n    store.append({'key': str(k), 'status': 'proven', 'filler': 'x' * 200000})\n"
        "    print(k, flush=True)\n"
    )
    for wait in (0.05, 0.11, 0.23):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE,
                                   env={**os.environ, "PYTHONPATH": str(SRC)})  # fmt: skip
        assert process.stdout.readline()
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for path in (tmp_path / "s" / "rows").glob("*.json"):
        assert len(json.loads(path.read_text())["filler"]) == 200000
    assert len(Store(tmp_path / "s").rows()) >= 3


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        Store(tmp_path / "file")
    with pytest.raises(StoreError, match="other things"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="no results"):
        Store(tmp_path / "none", create=False)
