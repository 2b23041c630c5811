"""Builds on behalf of a candidate: the candidate asks over a socket, the parent compiles and keeps the cache.

The process that runs a candidate must not be able to write to the cache (it could leave a doctored library for the next
one), so it never compiles itself: it sends its sources, and gets back the path of a library that it can only read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from crucible.build import toolchain
from crucible.build.errors import BuildError
from crucible.build.extension import Built, Extension, build

SOCKET_VARIABLE = "CRUCIBLE_BUILD_SOCKET"
LARGEST_REQUEST = 64 << 20
_HARMLESS_FLAG = re.compile(r"-D[A-Za-z_]\w*(=[^\n]*)?|-U[A-Za-z_]\w*|-I[^\n]+")


class BuildServer:
    """Serves build requests on a Unix socket until closed; remembers failures: a repeated request costs nothing."""

    def __init__(self, path: Path, *, timeout: float = 180.0, run: toolchain.Runner = toolchain.run) -> None:
        self.path = path
        self.timeout = timeout
        self._run = run
        self.requests: list[dict[str, Any]] = []
        self._failures: dict[str, BuildError] = {}
        self._closing = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        os.chmod(path, 0o600)
        self._socket.listen(8)
        self._thread = threading.Thread(target=self._serve, name="crucible-build-server", daemon=True)
        self._thread.start()

    def __enter__(self) -> BuildServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _serve(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            try:
                reply = self._handle(Extension.from_json(json.loads(_receive(connection))))
            except (ValueError, KeyError, TypeError) as error:  # not one of our requests
                reply = {"error": BuildError("load_inline_misuse", f"malformed build request: {error}").to_json()}
            connection.sendall(json.dumps(reply).encode() + b"\n")

    def _handle(self, spec: Extension) -> dict[str, Any]:
        # The request comes from the candidate's process, not necessarily from our own code in it: a compiler flag could
        # make g++ load a plugin or run a program.
        spec = replace(
            spec,
            name=str(spec.name)[:200],
            flags=tuple(f for f in spec.flags if _HARMLESS_FLAG.fullmatch(f)),
            timeout=min(spec.timeout, self.timeout),
        )
        record: dict[str, Any] = {"name": spec.name, "ok": False}
        self.requests.append(record)
        key = spec.key()
        try:
            if key in self._failures:
                raise self._failures[key]
            built = build(spec, self._run)
        except BuildError as error:
            self._failures[key] = error
            record["error"] = error.to_json()
            return {"error": error.to_json()}
        record.update(ok=True, seconds=built.seconds, cached=built.cached)
        return {
            "module": built.module,
            "library": str(built.library),
            "pybind11": built.pybind11,
            "seconds": built.seconds,
            "cached": built.cached,
        }


def _receive(connection: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part:
            break
        data += part
        if len(data) > LARGEST_REQUEST:
            raise ValueError("request too large")
    return bytes(data)


def request(spec: Extension) -> Built:
    """Build through the server named by the environment, or right here where there is none."""
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return build(spec)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(spec.to_json()).encode() + b"\n")
        reply = json.loads(_receive(connection))
    if "error" in reply:
        raise BuildError.from_json(reply["error"])
    return Built(reply["module"], Path(reply["library"]), reply["pybind11"], reply["seconds"], reply["cached"])
