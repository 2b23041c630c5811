"""The command line as a whole: help, completion, and one clear line for a file that is not what it should be."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crucible import completion
from crucible.cli import app
from crucible.files import ProblemError, check_problem, nearest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = [c.name or c.callback.__name__ for c in app.registered_commands]
MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(4, 4)]

def get_init_inputs():
    return []
"""


def run(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments])


# -- help


def test_the_version():
    from crucible import __version__

    assert run("--version").stdout == f"crucible {__version__}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_the_whole(flag):
    result = run(flag)
    assert result.exit_code == 0 and "Examples:" in result.output and "--install-completion" in result.output
    assert all(f"\n  {name}" in result.output for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command):
    long, short = run(command, "--help"), run(command, "-h")
    assert long.exit_code == 0 and long.output == short.output and "Exit code: 0" in " ".join(long.output.split())
    examples = [x.strip() for x in long.output.splitlines() if x.startswith("    crucible ")]
    assert examples and all(x.startswith(f"crucible {command}") for x in examples)
    words = [w for x in examples for w in shlex.split(x.split("   ")[0])]
    options = [w for w in words if w.startswith("-")]
    assert [o for o in options if o not in long.output.replace(",", " ").split()] == []
    # Every option of the command says what it is for.
    lines = long.output.split("\nOptions:\n")[1].splitlines()
    assert [x for x in lines if x.strip().startswith("-") and len(x.split()) < 3] == []


def test_nothing_heavy_is_loaded_for_help_completion_or_a_wrong_path():
    text = "import sys\nfrom crucible.cli import app\ntry:\n    app(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
    text += "assert 'torch' not in sys.modules, 'torch is loaded'"
    for arguments in (["-h"], ["prove", "-h"], ["fuse", "no_such.py"], ["race", "a.py", "b.py"]):
        done = subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, cwd=ROOT,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=60)  # fmt: skip
        assert done.returncode == 0, done.stderr


# -- files that are not what they should be

BAD_FILES = {
    "empty.py": "",
    "blank.py": "  \n\n",
    "broken.py": "class Model(:\n",
    "notes.txt": "Dear diary, today I fused.\n",
    "no_model.py": MODEL.replace("class Model", "class Net"),
    "candidate.py": MODEL.replace("class Model", "class ModelNew"),
    "no_inputs.py": MODEL.replace("def get_inputs", "def get_input"),
    "no_init.py": MODEL.split("def get_init_inputs")[0],
}
# What is given: what the message says.
MESSAGES = {
    "modle.py": "does not exist; did you mean FOLDER/model.py?",
    "nowhere/model.py": "does not exist: there is no folder FOLDER/nowhere",
    "FOLDER": "is a folder; a Python file is needed (it has",
    "empty.py": "empty.py is empty",
    "blank.py": "blank.py is empty",
    "broken.py": "broken.py is not Python: line 1: ",
    "notes.txt": "notes.txt is not Python: line 1: ",
    "binary.py": "is a binary file",
    "latin.py": "is not Python: ",
    "no_model.py": "defines no Model; it needs Model, get_inputs, get_init_inputs; its classes are Net",
    "candidate.py": "defines no Model; it needs Model, get_inputs, get_init_inputs; it defines ModelNew",
    "no_inputs.py": "defines no get_inputs; it needs Model, get_inputs, get_init_inputs; its functions are get_input",
    "no_init.py": "defines no get_init_inputs",
    "dangling.py": "does not exist (it is a link to nothing)",
    "loop.py": "(it is a link to nothing)",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, text in {"model.py": MODEL, "new.py": BAD_FILES["candidate.py"], **BAD_FILES}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "latin.py").write_bytes("x = 'é'\n".encode("latin-1"))
    (tmp_path / "dangling.py").symlink_to(tmp_path / "gone.py")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    return tmp_path


def one_line(result, command: str) -> str:
    """The message of a command that failed as it should: exit code 2, a line on stderr, nothing else."""
    assert result.exit_code == 2 and result.stdout == "", (result.exit_code, result.output)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"crucible {command}: "), line
    return line


@pytest.mark.parametrize("command", ["fuse", "prove", "race"])
@pytest.mark.parametrize("given", MESSAGES)
def test_a_wrong_file_is_one_line(folder, command, given):
    path = folder if given == "FOLDER" else folder / given
    others = [] if command == "fuse" else [folder / "new.py"]
    assert MESSAGES[given].replace("FOLDER", str(folder)) in one_line(run(command, path, *others), command)
    assert not list(folder.glob("*_new.py"))


@pytest.mark.parametrize("command", ["prove", "race"])
@pytest.mark.parametrize("given", ["modle.py", "FOLDER", "dangling.py"])
def test_a_wrong_candidate_is_one_line(folder, command, given):
    path = folder if given == "FOLDER" else folder / given
    line = one_line(run(command, folder / "model.py", path), command)
    assert "the candidate" in line and MESSAGES[given].replace("FOLDER", str(folder)) in line


@pytest.mark.parametrize("command", ["fuse", "prove", "race"])
def test_no_permission(folder, command, monkeypatch):
    def refused(self, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refused)  # root may read everything
    line = one_line(run(command, folder / "model.py", *([] if command == "fuse" else [folder / "new.py"])), command)
    assert "model.py cannot be read: Permission denied" in line


@pytest.mark.parametrize("given, words", [("problem", "did you mean problems?"), ("Makefile", "is a file")])
def test_a_sweep_of_no_folder(given, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problems").mkdir()
    (tmp_path / "Makefile").write_text("")
    assert words in one_line(run("sweep", given), "sweep")


def test_what_can_only_be_known_by_running_it_is_left_to_that(tmp_path):
    path = tmp_path / "model.py"
    for text in ("from elsewhere import *", "globals()['Model'] = 3", "exec(open('x').read())"):
        path.write_text(text)
        assert check_problem(path) == path
    path.write_text("from net import Net as Model, get_inputs\nget_init_inputs = lambda: []")
    assert check_problem(path) == path
    path.write_text("def f():\n    return Model, get_inputs, get_init_inputs")  # names that are used, not made
    with pytest.raises(ProblemError, match="defines no Model"):
        check_problem(path)


def test_the_nearest_name(tmp_path):
    for name in ("conv_transpose2d.py", "gemm.py", "other.txt"):
        (tmp_path / name).write_text("")
    assert nearest(tmp_path / "conv_transpose_2d.py") == f"; did you mean {tmp_path / 'conv_transpose2d.py'}?"
    assert nearest(tmp_path / "gemm") == f"; did you mean {tmp_path / 'gemm.py'}?"
    assert nearest(tmp_path / "GEMM.py").endswith("gemm.py?")
    assert nearest(tmp_path / "something_else_entirely.py") == ""


@pytest.mark.parametrize("arguments", [["fues"], ["fuse"], ["prove", "one.py"], ["fuse", "m.py", "--explian"]])
def test_a_wrong_command_or_option_is_no_traceback(arguments):
    result = run(*arguments)
    assert result.exit_code == 2 and "Traceback" not in result.output and "Usage: " in result.stderr
    assert isinstance(result.exception, SystemExit)


# -- completion


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    for name in ("model.py", "model_new.py", "notes.txt", ".hidden.py", "nets/a.py", "nets/b.py", "deep/er/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "begun, offered",
    [
        ("", ["deep/", "model.py", "model_new.py", "nets/"]),
        ("mod", ["model.py", "model_new.py"]),
        ("n", ["nets/a.py", "nets/b.py"]),  # an only folder is gone into: no space comes after it
        ("de", ["deep/er/c.py"]),
        ("nets/b", ["nets/b.py"]),
        (".h", [".hidden.py"]),
        ("no", []),
        ("none/such", []),
    ],
)
def test_python_files_are_offered(here, begun, offered):
    assert completion.python_files(begun) == offered


def test_values_are_offered(here):
    assert completion.folders("") == ["deep/", "nets/"]
    assert completion.DEVICES("s") == ["sim"] and "h200" in completion.gpu_names("H")
    assert completion.BASELINES("eager,com") == ["eager,compile"]
    assert "eager,eager" not in completion.BASELINES("eager,")


def test_values_that_are_offered_are_those_that_are_taken():
    from crucible.fuse import DTYPES
    from crucible.prove.options import Options
    from crucible.race.names import BASELINES

    assert completion.BASELINES("") == list(BASELINES) and sorted(completion.TYPES("")) == sorted(DTYPES)
    for dtype in completion.TYPE(""):
        assert Options(dtype=dtype).dtype == dtype
    for precision in completion.PRECISIONS(""):
        assert Options(precision=precision).precision == precision


def shell(script: str, folder: Path) -> str:
    """What bash prints; ``crucible`` there is this checkout's."""
    place = folder / ".bin"
    place.mkdir()
    (place / "crucible").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m crucible "$@"\n')
    (place / "crucible").chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": f"{place}:{os.environ['PATH']}"}
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"  # its name is given instead
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=folder, env=environment,
                          timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_bash_completes(here):
    """The script that --show-completion prints, in a real shell."""
    ask = """
        eval "$(crucible --show-completion bash)"
        set -- $(complete -p crucible)
        function="${@: -2:1}"
        try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); "$function" crucible; echo "${COMPREPLY[*]}"; }
        try crucible fu
        try crucible fuse mod
        try crucible prove model.py n
        try crucible fuse model.py --engine m
        try crucible race model.py model_new.py --against eager,c
        try crucible prove model.py model_new.py --for
    """
    assert shell(ask, here).splitlines() == [
        "fuse", "model.py model_new.py", "nets/a.py nets/b.py", "mma", "eager,channels_last eager,compile",
        "--forward-only",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_get_a_script(here, name):
    assert "crucible" in (text := shell(f"crucible --show-completion {name}", here)) and "_CRUCIBLE_COMPLETE" in text


def test_completion_is_installed_into_the_shells_own_file(here):
    shell("HOME=$PWD crucible --install-completion bash", here)
    assert "crucible" in (here / ".bashrc").read_text()
