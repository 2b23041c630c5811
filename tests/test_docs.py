"""Every command in the documents is run, or said why not, and then its options are checked; links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import documents
from crucible.build import toolchain
from crucible.cli import app
from documents import PAGES, ROOT, Command

COMMANDS = sorted({(c.page, c.text): c for p in PAGES for c in documents.commands(p)}.values(), key=lambda c: c.text)
TUTORIAL = ROOT / "docs" / "tutorial.md"
OURS = {c.name or c.callback.__name__ for c in app.registered_commands}

# Commands that are run here, from the repository's root; they end within seconds. With what they end.
RUN = {
    "crucible fuse problems/gallery/linear_sort_trimmed_mean.py --explain --forward-only --no-prove": 0,
    "crucible prove examples/double.py examples/double_off_by_one.py --device sim --seed 7": 1,
}
# Commands that are not run here, by how they begin, and why.
NOT_RUN = {
    "crucible fuse problems/conv_transpose2d_gelu_group_norm.py": "a proof of most of a minute: tests/fuse has it",
    "crucible fuse problems/gallery/linear_group_norm_hardtanh_max.py --tune": "needs a GPU",
    "crucible prove problems/conv_transpose2d_gelu_group_norm.py": "tests/prove proves this very file",
    "crucible prove problems/gemm_group_norm_min_bias.py fused/": "needs a GPU",
    "python tests/gpu/": "needs a GPU",
    "python -m pytest tests/gpu/": "needs a GPU",
    "python -m pytest --on-gpu": "needs a GPU: tests/test_on_gpu.py has it without one",
    "python benchmarks/": "needs a GPU",
    "python tools/killed_sweep.py": "several sweeps: tests/sweep/test_killed.py has it",
    "python tools/make_gallery.py --race": "needs a GPU",
    "python tools/make_gallery.py --records": "takes what a machine with a GPU wrote",
    "make ": "would set up an environment and run these tests",
}
# On a page of its own folder, where its files are: test_the_tutorial runs those.
IN_ORDER = {c.text for c in documents.session(TUTORIAL)}
# What cannot be run without a GPU there.
NEEDS_GPU = {"crucible race model.py model_new.py --train": 2}
# Schematic: MODEL.py, DIR, NEW ... stand for something.
SCHEMATIC = re.compile(r"(?<![\w-])[A-Z]{2,}\d?\b|\.\.\.|\[")


def kind(command: Command) -> str:
    words = command.text.split()
    if command.text in RUN or (command.page == TUTORIAL.name and command.text in IN_ORDER):
        return "run"
    if any(command.text.startswith(begin) for begin in NOT_RUN):
        return "not run"
    if SCHEMATIC.search(command.text) or (words[0] == "crucible" and len(words) == 2) or words[-1] in ("-h", "--help"):
        return "schematic"
    if words[0] == "crucible" and words[1] in OURS and all(w.startswith("-") for w in words[2:]):
        return "schematic"  # `crucible race --json`: the option of a command, without what it is given
    return "unknown"


@pytest.mark.quick
def test_the_documents_are_found():
    assert {"README.md", "tutorial.md", "racing.md"} <= {p.name for p in PAGES} and len(COMMANDS) > 30
    assert {kind(c) for c in COMMANDS} == {"run", "not run", "schematic"}


@pytest.mark.quick
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c.page}: {c.text}")
def test_every_command_is_known_and_has_the_options_that_it_names(command):
    assert kind(command) != "unknown", f"{command.page} has a command that no list of this test knows: {command.text}"
    words = shlex.split(re.sub(r"[\[\]|]", " ", command.text))
    if words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
        assert words[1] in targets
    elif words[0] == "crucible":
        assert words[1].startswith("-") or words[1] in OURS, words[1]
        text = CliRunner().invoke(app, ["--help"] if words[1].startswith("-") else [words[1], "--help"]).output
        known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
        assert [w for w in words[1:] if w.startswith("-") and w not in known] == []
    elif command.page != TUTORIAL.name:
        script = next(w for w in words[1:] if w.endswith(".py"))
        assert (ROOT / script).is_file(), script
        if "pytest" not in words:
            text = (ROOT / script).read_text()
            own = words[: words.index("--")] if "--" in words else words  # what follows is for another program
            assert [w for w in own if w.startswith("--") and f'"{w}"' not in text] == []


@pytest.mark.quick
def test_the_lists_have_nothing_that_no_page_has():
    texts = {c.text for c in COMMANDS}
    assert set(RUN) <= texts and set(NEEDS_GPU) <= IN_ORDER
    assert [b for b in NOT_RUN if not any(t.startswith(b) for t in texts)] == []


# -- what is run


def run(text: str, folder: Path) -> tuple[int, str]:
    """A command's exit code and what it prints, in a folder; ``crucible`` and ``python`` are those of this checkout.

    Programs that want a GPU get the simulated one.
    """
    words = shlex.split(text)
    if words[0] == "crucible":
        words = [sys.executable, "-m", *words]
    elif words[0] == "python":
        start = "from crucible.sim import device; device.install(); import runpy, sys; sys.path.insert(0, ''); "
        words = [sys.executable, "-c", f"{start}runpy.run_path({words[1]!r})"]
    else:
        words = ["bash", "-c", text]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, timeout=900)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def flat(text: str, exact: bool) -> str:
    """Without line breaks; numbers that depend on the machine or on rounding are all alike unless ``exact``."""
    text = " ".join(text.split())
    return text if exact else re.sub(r"\d+(?:\.\d+)?(?:e[+-]\d+)?", "#", text)


def assert_printed(expected: str, printed: str, exact: bool) -> None:
    """What a page shows is there, in this order; a line of three dots stands for anything."""
    got, place = flat(printed, exact), 0
    for part in re.split(r"^\.\.\.$", expected, flags=re.M):
        wanted = flat(part, exact)
        place = got.find(wanted, place)
        assert place >= 0, f"not printed:\n{part}\nbut this:\n{printed}"
        place += len(wanted)


def shown(command: str) -> list[str]:
    """The block that follows the command, on every page that has it."""
    texts = [page.read_text() for page in PAGES]
    after = [text[text.index(command) :] for text in texts if command in text]
    return [re.search(r"```\n(.*?)^```$", text, re.M | re.S)[1] for text in after]  # type: ignore[index]


simulated = pytest.mark.skipif(toolchain.torch_has_cuda(), reason="the simulator needs the CPU build of torch")


@simulated
@pytest.mark.parametrize("command", RUN)
def test_what_a_page_shows_is_printed(command, tmp_path):
    for name in ("problems", "examples"):
        (tmp_path / name).mkdir()
    for path in [*(ROOT / "problems").rglob("*.py"), *(ROOT / "examples").glob("*.py")]:
        place = tmp_path / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    patience = " --timeout 360" if command.startswith("crucible prove") else ""  # the machine may be busy with tests
    code, printed = run(command + patience, tmp_path)
    assert code == RUN[command], printed
    for expected in shown(command):
        assert_printed(expected, printed, "--no-prove" in command)


@simulated
def test_the_tutorial(tmp_path):
    """From the first line to the last, in a folder with its files."""
    for name, text in documents.files(TUTORIAL).items():
        (tmp_path / name).write_text(text)
    codes = {}
    for command in documents.session(TUTORIAL):
        codes[command.text], printed = run(command.text, tmp_path)
        assert_printed(command.output, printed, "--no-prove" in command.text)
    assert codes.pop("crucible prove model.py broken.py --device sim --quick --seed 7") == 1
    for text, code in NEEDS_GPU.items():
        assert codes.pop(text) == code
    assert set(codes.values()) == {0}, codes


# -- links


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


@pytest.mark.quick
def test_every_page_is_in_the_index():
    text = (ROOT / "docs" / "README.md").read_text()
    pages = [p.name for p in PAGES if p.parent.name == "docs" and p.name != "README.md"]
    assert [name for name in pages if f"({name})" not in text] == []


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page):
    """``src/...``, ``tests/...`` and so on; after ``::`` stands a name that the file defines."""
    folders = "src|tests|docs|examples|problems|benchmarks|tools"
    for name, inside in re.findall(rf"`((?:{folders})/[\w./-]+)(?:::(\w+))?`", page.read_text()):
        assert (ROOT / name).exists() or name.startswith("benchmarks/results"), name
        if inside:
            defined = rf"^(?:def|class) {inside}\b|^{inside}\b[:\w\[\], .]*="
            assert re.search(defined, (ROOT / name).read_text(), re.M), f"{name} has no {inside}"
