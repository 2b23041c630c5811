"""Which engine computes a contraction: chosen when the file is built, by element type, chip and torch's switches."""

from __future__ import annotations

from crucible.plan.boxes import GradientTile, WindowTile
from crucible.plan.stages import Contraction
from crucible.plan.tiles import MmaTile, Tile

# Values of the macros CRUCIBLE_CONV and CRUCIBLE_MATMUL, as the generated host code gives them.
SIMT, TF32, FP32, NATIVE = 0, 1, 2, 3


def choices(tile: Tile | WindowTile | GradientTile) -> list[tuple[int, str]]:
    """The engines a contraction can be built with; tiles have as many columns in all, for partial results' sake."""
    if isinstance(tile, WindowTile):
        return [
            (TF32, tile.text("Tf32")), (FP32, tile.split.text("fp32")), (NATIVE, tile.text("Native")),
            (SIMT, tile.simt.text()),
        ]  # fmt: skip
    if isinstance(tile, GradientTile):
        exact = {TF32: tile.text(), NATIVE: tile.text()}
        return [(value, exact.get(value, text)) for value, text in choices(tile.other)]
    if not isinstance(tile, MmaTile):
        return [(SIMT, tile.text())]
    return [
        (TF32, tile.text("tf32")), (FP32, tile.text("fp32")), (NATIVE, tile.text("native")), (SIMT, tile.simt.text()),
    ]  # fmt: skip


def launch(stage: Contraction, stream: str) -> str:
    """The text that launches a contraction with the engine the build asks for."""
    macro = f"CRUCIBLE_{stage.contract.rule.upper()}"
    lines = []
    options = choices(stage.tile)
    splits = "1" if stage.splits == 1 else f"static_cast<int>({stage.splits})"
    for number, (value, text) in enumerate(options):
        if len(options) > 1:
            last = number == len(options) - 1
            lines.append("#else" if last else f"#{'if' if number == 0 else 'elif'} {macro} == {value}")
        if text.startswith("Window"):
            call = f"launch_window<{text}>(stage, reinterpret_cast<unsigned*>(packed), {stream})"
        elif text.startswith("Gradient"):
            call = f"launch_gradient<{text}>(stage, {splits}, {stream})"
        else:
            call = f"launch_contract<{text}>(stage, {splits}, {stream})"
        lines.append(f'check({call}, "{stage.name}");')
    if len(options) > 1:
        lines.append("#endif")
    return "\n".join(lines)
