"""The state of the GPU as nvidia-smi tells it, and what of it a reader must know."""

from __future__ import annotations

import pytest

from crucible.race import environment

pytestmark = pytest.mark.quick


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """smi(text, code) puts a program of that name on the path that prints the text."""

    def make(text: str, code: int = 0) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return make


def test_what_it_says_is_read(smi, monkeypatch):
    smi("1980, 3201, 1980, 41, 123.4, 0x0000000000000004")
    assert environment.gpu_state() == {
        "sm_mhz": 1980.0, "memory_mhz": 3201.0, "sm_max_mhz": 1980.0, "celsius": 41.0, "watts": 123.4,
        "throttle": "0x0000000000000004",
    }  # fmt: skip
    smi("580.1")
    assert environment.gpu_state() is None and environment.driver() == "580.1"
    smi("1980, 3201, 1980, 41, 123.4, 0x0", code=9)
    assert environment.gpu_state() is None
    monkeypatch.setenv("PATH", "")
    assert environment.gpu_state() is None and environment.driver() is None


def state(**gpu):
    return {"pass": "forward", "round": 0, "gpu": gpu or None}


def test_throttling_is_named():
    assert environment.throttled([state(throttle="0x1"), state(throttle="0x2"), state()]) is None
    assert environment.throttled([]) is None and environment.throttled([state(throttle="[N/A]")]) is None
    found = environment.throttled([state(throttle="0x4"), state(throttle="0x60"), state(throttle="0x0")])
    assert found is not None and "power cap in 1 of 3 rounds" in found and "heat in 1 of 3 rounds" in found


def test_clocks():
    assert environment.clocks_text([state()]) is None
    seen = [state(sm_mhz=m, sm_max_mhz=1980.0, celsius=c) for m, c in ((1965.0, 41.0), (1980.0, 52.0))]
    assert environment.clocks_text(seen) == "SM at 1965 to 1980 of 1980 MHz, 41 to 52 degrees"
