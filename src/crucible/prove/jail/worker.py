"""The worker's side of the sandbox: answers the parent's requests over two pipes that it was born with."""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import resource
import threading
import traceback
from collections.abc import Callable
from typing import Any

VARIABLE = "CRUCIBLE_SANDBOX"  # "read fd, write fd, token": set by the parent, gone once serve has run


def serve(handler: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the parent's requests until it hangs up. Call it once, before any untrusted code runs.

    What the handler raises goes back as {"error": ...}; SystemExit and its like end the process, which the parent sees.
    """
    marked = os.environ.pop(VARIABLE, None)
    if marked is None:
        raise RuntimeError("not started by crucible.prove.sandbox.Child")
    requests, replies = (_move_high(int(word)) for word in marked.split(",")[:2])
    faulthandler.enable(file=_move_high(os.dup(2)), all_threads=False)
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with lock:
            while data:
                data = data[os.write(replies, data) :]

    seen: set[str] = set()

    def report(violation: str) -> None:
        if violation not in seen and len(seen) < 100:
            seen.add(violation)
            send({"violation": violation})

    with os.fdopen(requests, "rb", closefd=False) as lines:
        for line in lines:
            request = json.loads(line)
            if "hello" in request:
                from . import audit

                audit.install(report, **request["hello"])
                continue
            try:
                reply = handler(request["message"])
            except Exception as error:
                reply = {
                    "error": {
                        "type": type(error).__name__,
                        "message": str(error),
                        "traceback": traceback.format_exc(limit=30),
                    }
                }
            send({"id": request["id"], "reply": reply})


def _move_high(fd: int) -> int:
    """Out of the way of code that closes or reuses low numbers, and not for children."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = min(700, max(10, soft - 30) if soft != resource.RLIM_INFINITY else 700)
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(fd)
    return moved
