"""A Ray cluster as a sweep sees it: who is there, and steps that are done somewhere on it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from crucible.sweep.find import SweepError

INSTALL = "pip install 'ray>=2.51'"
LISTENER = "ray_listen_error_messages"  # Ray's thread that prints what happens to nodes
NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True)
class Node:
    """A machine that is alive."""

    id: str
    name: str
    cpus: float
    gpus: float


class RayCluster:
    """A connection; ``connected`` makes it."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.step = _remote_step(ray)
        self.avoided: set[str] = set()  # ids of nodes that cannot do this sweep
        self.known: dict[str, str] = {}  # names by id, of the dead too

    def nodes(self) -> list[Node]:
        """All that are alive and not avoided."""
        listed = self.ray.nodes()
        names = [n["NodeName"] for n in listed if n["Alive"]]
        for n in listed:
            own = n["NodeName"] or n["NodeManagerAddress"]
            self.known.setdefault(n["NodeID"], own if names.count(own) < 2 else f"{own} ({n['NodeID'][:6]})")
        return [
            Node(n["NodeID"], self.known[n["NodeID"]], n["Resources"].get("CPU", 0.0), n["Resources"].get("GPU", 0.0))
            for n in listed if n["Alive"] and n["NodeID"] not in self.avoided
        ]  # fmt: skip

    def name(self, node: str) -> str:
        if node not in self.known:
            self.nodes()
        return self.known.get(node, node[:6])

    def start(self, parcel: dict[str, Any], cpus: float, gpus: float) -> Any:
        """A stream: first ``{"node": id}`` when it has begun, then the answer."""
        where = {"label_selector": {NODE_LABEL: f"!in({','.join(sorted(self.avoided))})"}} if self.avoided else {}
        options = {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": "SPREAD", **where}
        return self.step.options(**options).remote(parcel)

    def ready(self, streams: Sequence[Any], timeout: float) -> list[Any]:
        if not streams:
            return []
        found, _ = self.ray.wait(list(streams), num_returns=len(streams), timeout=timeout)
        return list(found)

    def first_ready(self, streams: Sequence[Any], timeout: float) -> list[Any]:
        found, _ = self.ray.wait(list(streams), num_returns=1, timeout=timeout)
        return list(found)

    def take(self, stream: Any) -> dict[str, Any]:
        """What a stream says next. Raises Lost where its worker, its node or what it said is gone."""
        try:
            said: dict[str, Any] = self.ray.get(next(stream))
            return said
        except StopIteration:
            raise Lost("its task ended without an answer") from None
        except self.ray.exceptions.RayError as error:
            raise Lost(_why(error)) from error

    def cancel(self, stream: Any) -> None:
        with contextlib.suppress(Exception):  # it may be over
            self.ray.cancel(stream)


class Lost(Exception):
    """A step was not done for reasons that are not its own; the message says which."""


def _remote_step(ray: Any) -> Any:
    """The task, as a function that travels by value: a node may have no crucible, and must be able to say so."""

    @ray.remote(max_retries=0, num_returns="streaming")
    def step(parcel: dict[str, Any]) -> Iterator[dict[str, Any]]:
        import ray as there

        yield {"node": there.get_runtime_context().get_node_id()}
        try:
            from crucible.sweep.remote import work
        except ImportError as error:
            yield {"status": "other place", "reason": f"crucible cannot be imported: {error}", "seconds": 0.0}
            return
        yield work(parcel)

    return step


@contextlib.contextmanager
def connected(address: str) -> Iterator[RayCluster]:
    """The cluster at ``HOST:PORT``, or with "auto" the one that this machine is a node of."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise SweepError(f"--ray needs Ray, which is not there ({error}): {INSTALL}") from None
    mine = not ray.is_initialized()
    with _quiet():
        if mine:
            _check_address(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except ConnectionError as error:
                if address != "auto":
                    raise SweepError(f"no Ray cluster at {address}: {error}") from None
                raise SweepError("this machine is no node of a Ray cluster that runs; `ray start --address HOST:PORT` "
                                 "makes it one") from None  # fmt: skip
            except (OSError, ValueError, RuntimeError, ImportError, AssertionError, ray.exceptions.RayError) as error:
                said = next((x.strip() for x in str(error).splitlines() if x.strip()), type(error).__name__)
                raise SweepError(f"no Ray cluster at {address}: {said}") from None
        try:
            yield RayCluster(ray)
        finally:
            if mine:
                ray.shutdown()


def _check_address(address: str) -> None:
    """Ray waits a minute for a port where nobody is, and then ends the process."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise SweepError(f"--ray takes HOST:PORT, or auto where this machine is a node of the cluster; not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise SweepError(f"no Ray cluster at {address}: {error}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray prints pages about a lost node to the standard output; the board says it in a line."""
    with contextlib.redirect_stdout(_Sieve(sys.stdout)):
        yield


class _Sieve:
    """A stream without what Ray's listener writes to it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name == LISTENER else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _why(error: Exception) -> str:
    """``NodeDiedError: Task failed because the node it was running on is dead or unavailable``"""
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    kind = type(error).__name__
    if "TaskError" in kind:  # what was raised is in the last line, after a traceback
        return lines[-1][:300] if lines else kind
    return f"{kind}: {lines[0].split('. ')[0][:300]}" if lines else kind
