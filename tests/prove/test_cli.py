"""The command line: exit codes, JSON, and no traceback for a user's mistake."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from crucible.cli import app

runner = CliRunner()


def test_version():
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0 and "crucible" in result.output


def test_proven(linear, write, tmp_path, right):
    new, out = write("new.py", right), tmp_path / "proof.json"
    result = runner.invoke(
        app, ["prove", str(linear), str(new), "--device", "cpu", "--quick", "--seed", "1", "--json", str(out)]
    )
    assert result.exit_code == 0 and result.output.splitlines()[-1].startswith("again:"), result.output
    assert "PROVEN" in result.output and json.loads(out.read_text())["seed"] == 1


def test_unjudged(linear, write):
    result = runner.invoke(app, ["prove", str(linear), str(write("empty.py", "")), "--device", "cpu"])
    assert result.exit_code == 2 and "COULD NOT BE JUDGED" in result.output and "is empty" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["none.py", "none.py"],
        ["--dtype", "float8"],
        ["--trials", "0"],
        ["--timeout", "-1"],
        ["--precision", "low"],
        ["--seed", "-4"],
        ["--device", "tpu"],
    ],
)
def test_user_errors_are_sentences(linear, write, arguments, right):
    files = [] if arguments[0].endswith(".py") else [str(linear), str(write("new.py", right))]
    result = runner.invoke(app, ["prove", *files, *arguments])
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_unwritable_json(linear, write):
    new = write("empty.py", "")
    result = runner.invoke(app, ["prove", str(linear), str(new), "--device", "cpu", "--json", "/no/such/folder/x.json"])
    assert result.exit_code == 2 and "cannot be written" in result.output
