"""The macros with which a fused file builds itself for a chip, as torch's switches stand when nobody touched them."""

from __future__ import annotations

import re

SCALARS = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}


def asks_for(source: str) -> bool:
    """Whether CUDA source is a fused file's, which is built in another way for each chip and element type."""
    return "#ifndef CRUCIBLE_SCALAR" in source


def flags_for(text: str, arch: str, dtype: str, precision: str | None = None) -> list[str]:
    """As compiler flags, for a file's whole text."""
    chip = int(re.sub(r"\D", "", arch))
    grade = {"float64": 0, "float16": 3, "bfloat16": 3}.get(dtype)
    conv, matmul = {None: (1, 2), "torch": (1, 2), "fp32": (2, 2), "tf32": (1, 1)}[precision]
    if grade is not None or chip < 80 or "if True or dtype" in text:
        conv = matmul = grade if grade == 3 and chip >= 80 and "if True or dtype" not in text else 0
    hopper = int(arch == "sm_90a" and "int(True and known" in text)
    values = {"SCALAR": SCALARS[dtype], "WIDE": 0, "CONV": conv, "MATMUL": matmul, "HOPPER": hopper}
    return [f"-DCRUCIBLE_{name}={value}" for name, value in values.items()]
