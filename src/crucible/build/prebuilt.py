"""Libraries that the parent has built already: their paths travel to a child in its environment.

A child that runs a candidate cannot write to the cache, and has no business hashing sources to find its way in it.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

VARIABLE = "CRUCIBLE_BUILT"


def find(name: str) -> Path | None:
    """The path that the parent gave for library ``name``, if this is such a child."""
    given = os.environ.get(VARIABLE)
    if not given:
        return None
    path = json.loads(given).get(name)
    return Path(path) if path else None


def environment() -> dict[str, str]:
    """Build what the simulated device needs and say where it is, for a child's environment."""
    from crucible.build.extension import binding_library, glue_library
    from crucible.build.runtime import runtime_library

    with ThreadPoolExecutor(1) as beside:  # it needs neither of the others
        binding = beside.submit(binding_library)
        made = {"runtime": runtime_library(), "glue": glue_library(), "binding": binding.result()}
    return {VARIABLE: json.dumps({name: str(path) for name, path in made.items()})}


def main() -> None:
    """What every test in the simulator needs, and the headers that most need, before any of them waits for it."""
    from crucible.build import extension, toolchain

    if toolchain.torch_has_cuda():
        return
    with ThreadPoolExecutor(1) as beside:
        headers = beside.submit(lambda: [extension.precompiled_header(f) for f in (extension.BARE, extension.THIN)])
        environment()
        headers.result()


if __name__ == "__main__":
    main()
