"""The build server: a candidate asks, the parent builds; failures are remembered, nonsense is survived."""

import json
import socket

import pytest

from crucible.build import BuildError, server
from crucible.build.extension import Built, Chunk, Extension

SPEC = Extension(name="x", cuda=(Chunk("int a;", "candidate.py", 3),), functions=(("f", "doc"),), folder="/nowhere")


def test_spec_survives_the_wire():
    assert Extension.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC


def test_key_ignores_the_folder():
    assert SPEC.key() == Extension(**{**SPEC.__dict__, "folder": "/elsewhere"}).key()


@pytest.fixture
def serving(tmp_path, monkeypatch):
    calls = []

    def build(spec, run):
        calls.append(spec)
        if spec.name == "bad":
            raise BuildError("compile_error", "no such thing", file="candidate.py", line=7)
        return Built("module", tmp_path / "lib.so", False, 0.5, False)

    monkeypatch.setattr(server, "build", build)
    with server.BuildServer(tmp_path / "s.sock", timeout=30) as running:
        monkeypatch.setenv(server.SOCKET_VARIABLE, str(tmp_path / "s.sock"))
        yield running, calls


def test_build_through_the_socket(serving, tmp_path):
    running, calls = serving
    built = server.request(Extension(**{**SPEC.__dict__, "timeout": 500.0}))
    assert built.library == tmp_path / "lib.so" and built.module == "module"
    assert calls[0].timeout == 30  # a candidate cannot ask for more time than it has


def test_failure_comes_back_whole_and_is_not_tried_twice(serving):
    running, calls = serving
    bad = Extension(**{**SPEC.__dict__, "name": "bad"})
    for _ in range(2):
        with pytest.raises(BuildError) as caught:
            server.request(bad)
        assert (caught.value.kind, caught.value.line) == ("compile_error", 7)
    assert len(calls) == 1
    assert [r["ok"] for r in running.requests] == [False, False]


def test_nonsense_is_answered(serving):
    running, calls = serving
    for nonsense in (b"hello\n", b'{"name": 1}\n', b"\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(running.path))
            connection.sendall(nonsense)
            assert "error" in json.loads(connection.makefile().readline())
    assert calls == []
    assert server.request(SPEC).module == "module"


def test_flags_that_would_run_something_are_dropped(serving):
    running, calls = serving
    flags = ("-DA=1", "-DB", "-I/some/where", "-wrapper", "sh", "-fplugin=x.so", "@file", "-o/x")
    server.request(Extension(**{**SPEC.__dict__, "flags": flags}))
    assert calls[0].flags == ("-DA=1", "-DB", "-I/some/where")
