"""The house itself: no traces of one machine, no loose ends, every file says what it is for, headers ship."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[1]
TEXT = {".py", ".md", ".toml", ".txt", ".h", ".cpp", ".cuh", ".cu", ".sh", ".yml", ""}


def tracked() -> list[Path]:
    """What git tracks or would track; everything outside a checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listing.returncode == 0:
        paths = [ROOT / line for line in listing.stdout.splitlines()]
    else:
        paths = [p for p in ROOT.rglob("*") if ".venv" not in p.parts and ".git" not in p.parts]
    return [p for p in paths if p.is_file() and p.suffix in TEXT]


FILES = tracked()
OURS = [p for p in FILES if p.relative_to(ROOT).parts[:2] not in (("tests", "candidates"), ("tests", "problems"))]


def hits(pattern: str, files: list[Path]) -> list[str]:
    found = []
    for path in files:
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    return found


def test_no_paths_of_one_machine() -> None:
    assert hits(r"(?<![\w.])/(?:work|root)/|/home/(?!user\b)\w+/|\.pyenv", FILES) == []


def test_no_package_index_is_named() -> None:
    assert hits(r"pypi\.org|pythonhosted|download\.pytorch|index-url\s+http|registry\.npmjs", FILES) == []


def test_no_loose_ends() -> None:
    assert hits(r"\b(?:TODO|FIXME|XXX|HACK)\b|NotImplementedError\(\)|<placeholder>|lorem ipsum", OURS) == []


def test_no_two_modules_of_tests_share_a_name() -> None:
    """Test folders are no packages: pytest would import the first of two, and end before it ran anything."""
    modules = [p for p in OURS if p.suffix == ".py" and p.is_relative_to(ROOT / "tests") and p.name != "conftest.py"]
    names = [p.name for p in modules]
    assert sorted({str(p.relative_to(ROOT)) for p in modules if names.count(p.name) > 1}) == []


def test_no_conflict_markers() -> None:
    assert hits(r"^(?:<{7}|>{7}) ", FILES) == []


def test_every_python_file_says_what_it_is_for() -> None:
    files = [p for p in OURS if p.suffix == ".py" and p.read_text().strip()]
    assert [str(p.relative_to(ROOT)) for p in files if not re.match(r'(?:#!.*\n)?r?"""\S', p.read_text())] == []


def test_headers_and_sources_are_shipped_with_the_package() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("reads pyproject.toml with tomllib, which Python 3.10 does not have")
    import tomllib

    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["crucible"]
    package = ROOT / "src" / "crucible"
    files = [p.relative_to(package).as_posix() for p in FILES if package in p.parents and p.suffix != ".py"]
    files += [p.relative_to(package).as_posix() for suffix in ("h", "cuh") for p in package.rglob(f"*.{suffix}")]
    flat = [p.replace("**/", "*") for p in patterns]
    assert [f for f in sorted(set(files)) if not any(fnmatch.fnmatch(f, p) for p in flat)] == []


def test_scripts_can_be_run() -> None:
    for name in ("tools/setup.sh", ".ci/run"):
        assert (ROOT / name).stat().st_mode & 0o111, name
        assert (ROOT / name).read_text().startswith("#!/usr/bin/env bash\n")


def test_constraints_pin_everything_exactly() -> None:
    lines = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if x and not x.startswith("#")]
    assert [x for x in lines if not re.fullmatch(r'[\w.-]+==[\w.]+(; python_version (?:<|>=) "3\.\d+")?', x)] == []
