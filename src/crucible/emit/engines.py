"""Which engine computes a contraction: chosen when the file is built, by element type, chip and torch's switches."""

from __future__ import annotations

from crucible.plan.boxes import WindowTile
from crucible.plan.gradients import GradientTile
from crucible.plan.held import slots
from crucible.plan.index import Int, product
from crucible.plan.stages import Contraction
from crucible.plan.tiles import FEW_DEPTH, FEW_ELEMENTS, FEW_LINES, MmaTile, Tile

# Values of the macros CRUCIBLE_CONV and CRUCIBLE_MATMUL, as the generated host code gives them.
SIMT, TF32, FP32, NATIVE = 0, 1, 2, 3


def choices(tile: Tile | WindowTile | GradientTile) -> list[tuple[int, str, str]]:
    """The engines a contraction can be built with: macro value, function that launches it, C++ type.

    Tiles have as many columns in all, for partial results' sake.
    """
    if isinstance(tile, WindowTile):
        return [
            (TF32, "launch_window", tile.text("Tf32")), (FP32, "launch_contract", tile.split.text("fp32")),
            (NATIVE, "launch_window", tile.text("Native")), (SIMT, "launch_contract", tile.simt.text()),
        ]  # fmt: skip
    if isinstance(tile, GradientTile):
        own = ("launch_gradient", tile.text())
        return [(v, *(own if v in (TF32, NATIVE) else other)) for v, *other in choices(tile.other)]
    if not isinstance(tile, MmaTile):
        return [(SIMT, "launch_contract", tile.text())]
    grades = [(TF32, "tf32"), (FP32, "fp32"), (NATIVE, "native")]
    made = [(value, "launch_contract", tile.text(grade)) for value, grade in grades]
    return [*made, (SIMT, "launch_contract", tile.simt.text())]


def hopper(stage: Contraction) -> list[tuple[int, str, str]]:
    """The same with Hopper's own instructions, where there are any for it, in the first of their boxes."""
    tile = stage.tile
    if stage.packed:
        return [(FP32, "launch_contract_wgmma", packed(stage))]
    made = []
    if isinstance(tile, WindowTile) and tile.pair is not None and tile.pair.merged > 1:
        half = tile.pair.text("Half", busy=stage.statistics is not None)
        made.append((TF32, tile.pair.launch, f"{tile.pair.merged}, {half}, {tile.text('Tf32')}"))
    elif isinstance(tile, WindowTile) and tile.pair is not None:
        half, own = (tile.pair.text(k, busy=stage.statistics is not None) for k in ("Half", "Native"))
        made.append((TF32, tile.pair.launch, f"{half}, {tile.pair.text('Tf32')}"))
        made.append((NATIVE, tile.pair.launch, f"{own}, void"))
    if isinstance(tile, GradientTile) and tile.groups is not None:
        for value, kind in ((TF32, "Half"), (NATIVE, "Native")):
            made.append((value, "launch_gradient_groups", f"{tile.groups.text(kind)}, {tile.text()}"))
    if isinstance(tile, WindowTile) and tile.precise is not None:
        made.append((FP32, tile.precise.launch, f"{tile.precise.text}, {tile.precise.other.text('fp32')}"))
    return made


def narrower(stage: Contraction, value: int) -> list[tuple[str, str, str]]:
    """Launches with narrower boxes: function, C++ type, and the functor with these boxes."""
    pair = stage.tile.pair if isinstance(stage.tile, WindowTile) else None
    kind = {TF32: "Half", NATIVE: "Native"}.get(value)
    if pair is None or kind is None:
        return []
    made = []
    for p in pair.narrower:
        # Statistics are kept by boxes; else what is done again may be done in the first ones.
        again = "void" if kind == "Native" else (p if stage.statistics is not None else pair).text("Tf32")
        given = f"in_boxes<Dims<{', '.join(map(str, p.box))}>, {pair.text(kind)}>(stage)"
        made.append((p.launch, f"{p.text(kind)}, {again}", given))
    return made


def boxes(tile: WindowTile) -> list[tuple[str, tuple[int, ...]]]:
    """The boxes of each engine and the preprocessor's condition for it: the first that holds counts."""
    precise = tile.box if tile.precise is None else tile.precise.box
    pair = tile.box if tile.pair is None else tile.pair.box
    merged = tile.pair is not None and tile.pair.merged > 1
    others = f"CRUCIBLE_HOPPER && CRUCIBLE_CONV == {TF32}" if merged else "CRUCIBLE_HOPPER"
    found = [(f"CRUCIBLE_HOPPER && CRUCIBLE_CONV == {FP32}", precise), (others, pair), ("", tile.box)]
    return found if {precise, pair} != {tile.box} else found[-1:]


def packed(stage: Contraction) -> str:
    """The type of tiles of packed operands."""
    return f"WgmmaTile<{stage.tile.cols}, Grade::Fp32>"


def few_sides(stage: Contraction) -> list[str]:
    """The operands of a matrix product that may have few lines (kernels/contract_few.cuh), by what sizes are known."""
    c = stage.contract
    if c.rule != "matmul" or isinstance(stage.tile, (WindowTile, GradientTile)):
        return []
    rows, cols, depth = c.rows.extent, c.cols.extent, c.depth.extent
    batches = product([v.extent for v in c.batch])

    def may(few: Int, many: Int) -> bool:
        elements = (batches * many * depth).constant
        short = depth.constant is not None and depth.constant < FEW_DEPTH
        small = elements is not None and elements < FEW_ELEMENTS
        return (few.constant is None or few.constant <= FEW_LINES) and not short and not small

    sides = [("FewRows", rows, cols), ("FewCols", cols, rows)]
    return [side for side, few, many in sides if may(few, many)]


def asks(stage: Contraction) -> bool:
    """Whether the memory that a launcher wants depends on sizes or on the build."""
    ready = isinstance(stage.tile, WindowTile) and stage.tile.pair is not None and stage.tile.pair.ready
    groups = isinstance(stage.tile, GradientTile) and stage.tile.groups is not None
    return stage.packed or ready or groups or bool(few_sides(stage))


def workspace(stage: Contraction) -> str:
    """The text of a function's body: memory for sums of few lines, or for packed operands, as the build has it."""
    if isinstance(stage.tile, WindowTile):
        return _window_workspace(stage, stage.tile)
    if isinstance(stage.tile, GradientTile):
        assert stage.tile.groups is not None
        macro = f"CRUCIBLE_{stage.contract.rule.upper()}"
        return "\n".join([
            f"#if CRUCIBLE_HOPPER && {macro} == {TF32}",
            f"return gradient_bytes<{stage.tile.groups.text('Half')}>(stage, {_splits(stage)});",
            f"#elif CRUCIBLE_HOPPER && {macro} == {NATIVE}",
            f"return gradient_bytes<{stage.tile.groups.text('Native')}>(stage, {_splits(stage)});",
            "#else",
            "static_cast<void>(stage);",
            "return 0;",
            "#endif",
        ])  # fmt: skip
    few = [f"if (few_pays<{side}>(stage)) return few_bytes<{side}>(stage);" for side in few_sides(stage)]
    return _packing(stage, 0, few) if stage.packed else "\n".join([*few, "return 0;"])


def pieces(stage: Contraction) -> str:
    """The same of the first packed operand's pieces, which lie apart from all else."""
    return _packing(stage, 1, [f"if (few_pays<{side}>(stage)) return 0;" for side in few_sides(stage)])


def _packing(stage: Contraction, which: int, before: list[str]) -> str:
    return "\n".join([
        *before,
        f"#if CRUCIBLE_HOPPER && CRUCIBLE_{stage.contract.rule.upper()} == {FP32}",
        "int64_t bytes[2];",
        f"wgmma_packing<{packed(stage)}>(stage, nullptr, nullptr, bytes);",
        f"return bytes[{which}];",
        "#else",
        *([] if before else ["static_cast<void>(stage);"]),
        "return 0;",
        "#endif",
    ])  # fmt: skip


def window_words(stage: Contraction, tile: WindowTile) -> int:
    """Words of the weights in the order in which the kernel takes them."""
    s = stage.contract.sliding
    assert s is not None
    rows, channels, groups = (v.extent.constant for v in (stage.contract.rows, s.channel, stage.contract.batch[-1]))
    assert rows is not None and channels is not None and groups is not None
    return tile.packed_words(rows, channels, s.form.taps, groups)


def _window_workspace(stage: Contraction, tile: WindowTile) -> str:
    assert tile.pair is not None
    macro, lines = f"CRUCIBLE_{stage.contract.rule.upper()}", []
    for number, (value, kind) in enumerate(((TF32, "Half"), (NATIVE, "Native"))):
        lines.append(f"#{'elif' if number else 'if'} CRUCIBLE_HOPPER && {macro} == {value}")
        lines.append(f"return ready_bytes<{tile.pair.text(kind)}>(stage);")
    return "\n".join([
        *lines, "#else", "static_cast<void>(stage);", f"return {4 * window_words(stage, tile)};", "#endif",
    ])  # fmt: skip


def _splits(stage: Contraction) -> str:
    return "1" if stage.splits == 1 else f"static_cast<int>({stage.splits})"


def launch(stage: Contraction, stream: str) -> str:
    """The text that launches a contraction with the engine the build asks for."""
    macro = f"CRUCIBLE_{stage.contract.rule.upper()}"
    lines = []
    options = [(f"CRUCIBLE_HOPPER && {macro} == {v}", f, t, narrower(stage, v)) for v, f, t in hopper(stage)]
    options += [(f"{macro} == {v}", f, t, []) for v, f, t in choices(stage.tile)]
    splits = _splits(stage)
    given = {
        "launch_window": "reinterpret_cast<unsigned*>(packed)",
        "launch_warpgroups": "reinterpret_cast<void*>(packed)",
        "launch_strips": "reinterpret_cast<void*>(packed)",
        "launch_merged": "reinterpret_cast<void*>(packed)",
        "launch_ready": "reinterpret_cast<void*>(packed)",
        "launch_split": "reinterpret_cast<void*>(packed)",
        "launch_contract_wgmma": "reinterpret_cast<void*>(packed), reinterpret_cast<void*>(pieces)",
        "launch_gradient_groups": f"{splits}, reinterpret_cast<void*>(packed)",
    }
    for side in few_sides(stage):
        arguments = f"stage, {splits}, reinterpret_cast<void*>(packed), {stream}"
        call = f"launch_contract_few<{side}, {stage.tile.cols}>({arguments})"
        lines.append(f'if (few_pays<{side}>(stage)) return check({call}, "{stage.name}");')
    for number, (condition, function, text, narrow) in enumerate(options):
        if len(options) > 1:
            last = number == len(options) - 1
            lines.append("#else" if last else f"#{'if' if number == 0 else 'elif'} {condition}")
        calls = [f"{own}<{other}>({functor}, {given[own]}, {stream})" for own, other, functor in narrow]
        taken = [f'if ({stage.box} == {n}) return check({c}, "{stage.name}");' for n, c in enumerate(calls, 1)]
        lines += ["#if CRUCIBLE_NARROWER", *taken, "#endif"] if taken else []
        lines.append(f'check({function}<{text}>(stage, {given.get(function, splits)}, {stream}), "{stage.name}");')
    if len(options) > 1:
        lines.append("#endif")
    return "\n".join(lines)


def held(stage: Contraction, stream: str) -> str:
    """The text that launches a contraction and its walk, ``then``, together, and says in ``done`` whether it could."""
    tile = stage.tile
    assert isinstance(tile, WindowTile) and tile.pair is not None and stage.contract.sliding is not None
    own = f"Holding<{slots(stage.contract.sliding.form)}, {tile.pair.chunks}>"
    behind = f"(packed + {4 * window_words(stage, tile)} + 255) / 256 * 256"
    words = f"reinterpret_cast<unsigned long long*>({behind})"
    given = f"then, reinterpret_cast<void*>(packed), {words}, {stream}, &done"
    if tile.pair.merged > 1:
        merged = f"Merged<Stage, {tile.pair.merged}>(stage)"
        return f"launch_held<{own}, {tile.text('Tf32')}>({merged}, {given})"
    return f"launch_held<{own}, {tile.pair.text('Tf32')}>(stage, {given})"
