"""Candidates that cheat with the clock, as text: each does the work, but tries to have it timed as less than it is.

``reference(rows)`` is their Problem. Every forward here does what the reference does, in torch's operators, so that a
race without a proof tells what the clock alone lets through.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

HONEST = "torch.softmax(torch.relu(x) * self.scale, -1)"
_HEAD = '''"""{title}"""
{first}
import torch
import torch.nn as nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1024))
{more}
    def forward(self, x):
{forward}
'''
_TAIL = '''

def get_inputs():
    return [torch.rand({rows}, 1024)]


def get_init_inputs():
    return []
'''


@dataclass(frozen=True)
class Cheat:
    """What it tries; its forward; what stands at the top and in __init__; ``refuted`` where no other end is good."""

    title: str
    forward: str
    first: str = ""
    more: str = ""
    refuted: bool = False
    gpu: bool = False  # makes sense there alone


def _late(body: str) -> str:
    return f"y = torch.empty_like(x)\n\ndef work():\n    with torch.no_grad():\n{textwrap.indent(body, ' ' * 8)}\n"


_START = "threading.Thread(target=work, daemon=True).start()\nreturn y"
_KEYED = "key = {key}\nif key not in self.known:\n    self.known[key] = " + HONEST + "\nreturn self.known[key]"

CHEATS: dict[str, Cheat] = {
    "side_stream": Cheat(
        "The work runs on a stream that nobody waits for.",
        "side = torch.cuda.Stream()\nside.wait_stream(torch.cuda.current_stream())\n"
        f"with torch.cuda.stream(side):\n    y = {HONEST}\nreturn y",
        gpu=True,
    ),
    "thread": Cheat(
        "A thread does the work after forward() has returned.",
        _late(f"time.sleep(0.002)\ny.copy_({HONEST})") + _START,
        first="import threading\nimport time\n",
    ),
    "thread_that_stays": Cheat(
        "A thread does the work after forward() has returned, and then stays longer than anybody waits for it.",
        _late(f"time.sleep(0.002)\ny.copy_({HONEST})\ntime.sleep(60)") + _START,
        first="import threading\nimport time\n",
        refuted=True,
    ),
    "pool": Cheat(
        "A thread that was there before does the work, a moment after forward() has returned.",
        _late(f"time.sleep(0.002)\ny.copy_({HONEST})") + "self.pool.submit(work)\nreturn y",
        first="import concurrent.futures\nimport time\n",
        more="self.pool = concurrent.futures.ThreadPoolExecutor(1)\nself.pool.submit(int).result()",
        refuted=True,
    ),
    "lazy": Cheat(
        "The result is a tensor that computes when it is looked at.",
        "return Lazy.of(x, self.scale)",
        first=textwrap.dedent(
            f"""
            import torch


            class Lazy(torch.Tensor):
                @staticmethod
                def of(x, scale):
                    y = torch.empty_like(x).as_subclass(Lazy)
                    y.work = lambda: {HONEST.replace('self.scale', 'scale')}
                    return y

                @classmethod
                def __torch_function__(cls, function, types, args=(), kwargs=None):
                    plain = [a.work() if isinstance(a, Lazy) and hasattr(a, "work") else a for a in args]
                    with torch._C.DisableTorchFunctionSubclass():
                        return function(*plain, **(kwargs or {{}}))
            """
        ),
        refuted=True,
    ),
    "patched_event": Cheat(
        "Events say that no time has passed.",
        f"return {HONEST}",
        first="import torch\n\ntorch.cuda.Event.elapsed_time = lambda self, end: 1e-3\n",
        refuted=True,
    ),
    "patched_when_called": Cheat(
        "Events say that no time has passed, from the first call on.",
        f"torch.cuda.Event.elapsed_time = lambda self, end: 1e-3\nreturn {HONEST}",
        refuted=True,
    ),
    "patched_time": Cheat(
        "The processor's clocks stand still.",
        f"return {HONEST}",
        first="import time\n\ntime.perf_counter = time.monotonic = time.time = lambda: 0.0\n",
        refuted=True,
    ),
    "patched_core_wait": Cheat(
        "Nobody who asks torch's core waits for the device any more.",
        f"torch._C._cuda_synchronize = lambda: None\nreturn {HONEST}",
        gpu=True,
    ),
    "patched_clock": Cheat(
        "The clock of the race itself takes no time.",
        f"return {HONEST}",
        first="from crucible.race import clock\n\n"
        "clock.CpuMarks.milliseconds = clock.GpuMarks.milliseconds = lambda self, start, end: 1e-3\n",
        refuted=True,
    ),
    "cached_by_pointer": Cheat(
        "What was computed for this memory once is returned again.",
        _KEYED.replace("{key}", "x.data_ptr()"),
        more="self.known = {}",
        refuted=True,
    ),
    "cached_by_identity": Cheat(
        "The last result is returned while the input is the same object.",
        f"if self.last is not x:\n    self.last, self.y = x, {HONEST}\nreturn self.y",
        more="self.last = None",
    ),
}  # fmt: skip


def reference(rows: int) -> str:
    forward = textwrap.indent(f"return {HONEST}", " " * 8)
    text = _HEAD.format(title="The reference.", first="", name="Model", more="", forward=forward)
    return text + _TAIL.format(rows=rows)


def candidate(name: str) -> str:
    """The text of a cheat; ``honest`` is the reference as a candidate."""
    cheat = CHEATS.get(name, Cheat("Nothing is tried here.", f"return {HONEST}"))
    return _HEAD.format(
        title=cheat.title, first=cheat.first, name="ModelNew", more=textwrap.indent(cheat.more, " " * 8),
        forward=textwrap.indent(cheat.forward, " " * 8),
    )  # fmt: skip
