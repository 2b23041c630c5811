"""Which engine computes a contraction: chosen when the file is built, by element type, chip and torch's switches."""

from __future__ import annotations

from crucible.plan.stages import Contraction
from crucible.plan.tiles import MMA_FP32_TILES, MmaTile, Tile

# Values of the macros CRUCIBLE_CONV and CRUCIBLE_MATMUL, as the generated host code gives them.
SIMT, TF32, FP32, NATIVE = 0, 1, 2, 3


def choices(tile: Tile) -> list[tuple[int, str]]:
    """The engines a contraction can be built with; tiles have as many columns in all, for partial results' sake."""
    if not isinstance(tile, MmaTile):
        return [(SIMT, tile.text())]
    split = [t for t, _ in MMA_FP32_TILES if t.cols == tile.cols]
    same = next((t for t in split if t.rows == tile.rows), split[0])
    return [
        (TF32, tile.text("tf32")), (FP32, same.text("fp32")), (NATIVE, tile.text("native")), (SIMT, tile.simt.text()),
    ]  # fmt: skip


def launch(stage: Contraction, stream: str) -> str:
    """The text that launches a contraction with the engine the build asks for."""
    macro = f"CRUCIBLE_{stage.contract.rule.upper()}"
    lines = []
    options = choices(stage.tile)
    for number, (value, text) in enumerate(options):
        if len(options) > 1:
            last = number == len(options) - 1
            lines.append("#else" if last else f"#{'if' if number == 0 else 'elif'} {macro} == {value}")
        lines.append(f"using Engine = {text};")
    if len(options) > 1:
        lines.append("#endif")
    lines.append(f'check(launch_contract<Engine>(stage, {stage.splits}, {stream}), "{stage.name}");')
    return "\n".join(lines)
