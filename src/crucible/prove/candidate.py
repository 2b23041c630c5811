"""The candidate worker: a front that prepares the device and hands over to ``runner`` (nothing here imports torch).

The simulated device must exist before torch does, and torch takes a second to import: hence two files.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from crucible.prove.imports import nothing_is_garbage


class Candidate:
    """Answers the parent's requests; the first must be ``start``."""

    def __init__(self) -> None:
        self.runner: Any = None

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["op"] == "start":
            return self.start(message)
        answer: dict[str, Any] = self.runner.handle(message)
        return answer

    def start(self, message: dict[str, Any]) -> dict[str, Any]:
        with nothing_is_garbage():
            error = self._prepare(message)
        if error is not None:
            return error
        if message.get("disguise"):
            _disguise()
        return {"ok": True, **self.runner.environment()}

    def _prepare(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The device, then torch and the runner; what went wrong, if something did."""
        capability = tuple(message.get("capability", (9, 0)))
        if message["device"] == "sim":
            from crucible.build.errors import BuildError
            from crucible.sim import device

            try:
                device.install(capability=capability)
            except BuildError as error:
                return {"ok": False, "build_error": error.to_json()}
        from crucible.prove.runner import Runner

        self.runner = Runner(message)
        return None


def _disguise() -> None:
    """Look like somebody's training script: a candidate that behaves well only under test looks for such signs.

    (While the candidate runs, the runner also keeps the names of this program out of ``sys.modules``.)
    """
    gc.unfreeze()  # nobody else's process has it done
    sys.argv = ["train.py", "--epochs", "3"]
    main_module = sys.modules["__main__"]
    main_module.__spec__ = None
    if hasattr(main_module, "__file__"):
        main_module.__file__ = "train.py"


def main() -> None:
    from crucible.prove.sandbox import serve

    serve(Candidate().handle)


if __name__ == "__main__":
    main()
