"""crucible doctor: each finding with its fix, and an exit code that tells usable from not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from crucible import doctor
from crucible.build import toolchain
from crucible.doctor import Finding

pytestmark = pytest.mark.quick

GOOD = [
    Finding("Python", "ok", "3.11"),
    Finding("g++", "ok", "12", area="simulator"),
    Finding("GPU", "missing", "none found", "--device sim needs none", "gpu"),
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path / "cache"))
    for name in ("gxx", "gxx_version", "cuda_include"):
        getattr(toolchain, name).cache_clear()


def test_this_machine() -> None:
    findings = {f.name: f for f in doctor.examine()}
    expected = {"Python", "PyTorch", "cache folder", "disk", "memory", "sandbox", "g++", "CUDA headers", "simulator",
                "GPU", "driver", "nvcc", "ninja", "NVRTC"}  # fmt: skip
    assert set(findings) == expected
    for name in ("Python", "PyTorch", "cache folder"):
        assert findings[name].state == "ok", findings[name]
    for finding in findings.values():
        assert finding.detail and (finding.fix or finding.state == "ok"), finding


def test_a_device_is_enough() -> None:
    assert doctor.devices(GOOD) == ["sim"]
    assert doctor.devices([*GOOD, Finding("g++", "missing", "none", "install it", "simulator")]) == []
    assert doctor.devices([*GOOD, Finding("disk", "missing", "0 GiB", "free some")]) == []
    assert doctor.devices([*GOOD, Finding("sandbox", "warning", "weak")]) == ["sim"]


def test_exit_code_and_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: GOOD)
    console = Console(record=True, width=100)
    assert doctor.run(console=console) == 0
    text = console.export_text()
    assert "Usable: --device sim." in text and "-> --device sim needs none" in text
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("PyTorch", "missing", "not there", "pip install torch")])
    console = Console(record=True, width=100)
    assert doctor.run(console=console) == 1
    assert "pip install torch" in console.export_text()


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: GOOD)
    assert doctor.run(as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, "doctor")
    assert document["usable"] and document["devices"] == ["sim"]
    assert document["findings"][0] == {"name": "Python", "state": "ok", "detail": "3.11", "fix": "", "area": "basis"}


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    finding = doctor.check_compiler()
    assert finding.state == "missing" and "apt install g++" in finding.fix


def test_an_old_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "old-g++"
    fake.write_text("#!/bin/sh\necho 9.4.0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    finding = doctor.check_compiler()
    assert finding.state == "missing" and finding.detail.startswith("9.4.0")


def test_a_compiler_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "broken-g++"
    version = '[ "$1" = -dumpfullversion ] && echo 13.1.0 && exit 0'
    fake.write_text(f'#!/bin/sh\n{version}\necho "no headers here" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    finding = doctor.check_compiler()
    assert finding.state == "missing" and "does not compile: no headers here" in finding.detail


def test_a_cache_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path / "file" / "cache"))
    finding = doctor.check_cache()
    assert finding.state == "missing" and "CRUCIBLE_CACHE" in finding.fix


def test_a_check_that_fails_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_disk() -> Finding:
        raise RuntimeError("boom")

    monkeypatch.setattr(doctor, "check_disk", check_disk)
    finding = next(f for f in doctor.examine() if f.name == "disk")
    assert finding.state == "missing" and "boom" in finding.detail
