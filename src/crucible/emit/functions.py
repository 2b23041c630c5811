"""The functions of a generated file: forward and backward of each mode, what they ask for, and what joins them."""

from __future__ import annotations

from collections.abc import Sequence

from crucible.emit import once
from crucible.emit.host import DTYPES, Mode, bind_sizes, is_tensor, needed_for, sizes_of
from crucible.emit.passes import Pass
from crucible.graph.capture import Graph
from crucible.plan.program import SCALAR_BYTES, Buffer


def passes_of(mode: Mode) -> list[Pass]:
    """All that a mode can be asked for: forward, backward where there are gradients, forward without them."""
    found = [_forward_pass(mode, "forward")]
    if mode.joint.wanted:
        found.append(_backward_pass(mode))
        if mode.inference is not None:
            found.append(_forward_pass(mode.inference, "inference", in_place(mode)))
    return found


def functions_text(mode: Mode) -> str:
    """forward and backward of a mode, and the autograd function that joins them."""
    out = [_backward_function(r) if r.part == "backward" else _forward_function(r) for r in passes_of(mode)]
    if not mode.joint.wanted:
        return "\n\n\n".join(out)
    count = 0 if in_place(mode) else len(mode.plan.program.updates)
    numbers = [i for i, o in enumerate(mode.plan.program.outputs) if isinstance(o, Buffer)]
    made = {i: f"made[{count + k}]" for k, i in enumerate(numbers)}
    aside = [f"made[{k}]" for k in range(count)]
    aside += [text for i, text in made.items() if i not in mode.joint.tangible]
    lines = [
        f"class _{mode.name.title()}(torch.autograd.Function):",
        "    @staticmethod",
        "    def forward(ctx, *tensors):",
        f"        made, saved, ctx.sizes = _{mode.name}_forward(tensors)",
    ]
    written = written_arguments(mode)
    changed = {mode.arguments[k].name for k, _ in written} | set(targets(mode.graph, mode.arguments))
    lost = [k for k, b in enumerate(mode.arguments) if b.name in changed and b.name in mode.plan.saved]
    if lost:  # what they held before they are written is needed again
        same = " or ".join(f"t is tensors[{k}]" for k in lost)
        lines.append(f"        saved = [t.clone() if {same} else t for t in saved]")
    lines.append("        ctx.save_for_backward(*saved)")
    lines += [f"        {made[i]} = tensors[{k}].copy_({made[i]})" for k, i in written]
    if written:
        lines.append(f"        ctx.mark_dirty({', '.join(f'tensors[{k}]' for k, _ in written)})")
    lines += _aside(mode, aside, made)
    tangible = [f"gradients[{count + _position(mode, i)}]" for i in mode.joint.tangible]
    lines += [
        "        return tuple(made)",
        "",
        "    @staticmethod",
        f"    @{once.NAME}",
        "    def backward(ctx, *gradients):",
        f"        return _{mode.name}_backward("
        f"ctx.needs_input_grad, ctx.sizes, ctx.saved_tensors, {', '.join(tangible)})",
    ]
    out.append("\n".join(lines))
    return "\n\n\n".join(out)


def _aside(mode: Mode, aside: list[str], made: dict[int, str]) -> list[str]:
    """Say which results have no gradients: some never, some where all that they come from is frozen."""
    joint, place = mode.joint, _places(mode)
    written = {made[i]: f"tensors[{k}]" for k, i in written_arguments(mode)}
    aside = [text for text in aside if text not in written]
    parts = [(made[i], reach) for i, reach in zip(joint.tangible, joint.reach) if i in made]
    everything = {k for _, reach in parts for k in reach}
    some = [(text, reach) for text, reach in parts if set(reach) != everything]  # of all inputs, one is not frozen
    # An argument that has gradients keeps them, whatever is written into it.
    some += [(text, []) for text in written if text not in dict(parts)]
    aside += [text for text, reach in some if not reach and text not in written]
    some = [(text, reach) for text, reach in some if reach or text in written]
    if not some:
        return [f"        ctx.mark_non_differentiable({', '.join(aside)})"] * bool(aside)
    lines = [f"        aside = [{', '.join(aside)}]"]
    for text, reach in some:
        tests = []
        if reach:
            tests.append(f"not any(ctx.needs_input_grad[k] for k in {tuple(place[k] for k in reach)})")
        if text in written:
            tests.append(f"not {written[text]}.requires_grad")
        lines.append(f"        if {' and '.join(tests)}:")
        lines.append(f"            aside.append({text})")
    return [*lines, "        ctx.mark_non_differentiable(*aside)"]


def _position(mode: Mode, output: int) -> int:
    """The place of an output among those that are tensors."""
    return sum(1 for o in mode.plan.program.outputs[:output] if isinstance(o, Buffer))


def in_place(mode: Mode) -> bool:
    """Whether kernels bring the module's buffers up to date themselves.

    They must be among the arguments, of the same size and type, and nothing may need what they held before.
    """
    old = dict(zip(mode.graph.updates, targets(mode.graph, mode.arguments)))
    for m in (mode, *([mode.inference] if mode.inference is not None else [])):
        arguments = {b.name: b for b in m.arguments}
        if not Pass(m, "", "forward", m.plan.forward_stages, (), ()).straight:
            return False
        for path, b in zip(mode.graph.updates, m.plan.program.updates):
            target = arguments.get(old[path])
            if target is None or not isinstance(b, Buffer) or b.role != "made" or target.name in m.plan.saved:
                return False
            if (b.dtype, b.shape) != (target.dtype, target.shape) or b.numel.constant is None:
                return False
    return len(old) == len(mode.graph.updates) > 0


def targets(graph: Graph, arguments: Sequence[Buffer]) -> list[str]:
    """The arguments that are the buffers to be updated; empty names for those that are not among them."""
    placeholders = [n for n in graph.placeholders if is_tensor(n)]
    names = {graph.sources[n.name].name: b.name for n, b in zip(placeholders, arguments)
             if graph.sources[n.name].kind == "buffer"}  # fmt: skip
    return [names.get(path, "") for path in graph.updates]


def written_arguments(mode: Mode) -> list[tuple[int, int]]:
    """The arguments that the Model writes into, and which output each one's new value is."""
    names = [n.name for n in mode.graph.placeholders if is_tensor(n)]
    changed = mode.graph.changed
    first = len(mode.plan.program.outputs) - len(changed)
    return [(names.index(name), first + k) for k, name in enumerate(changed)]


def results(mode: Mode, updates: bool) -> list[Buffer]:
    """What a forward pass returns."""
    program = mode.plan.program
    return [b for b in [*([] if updates else program.updates), *program.outputs] if isinstance(b, Buffer)]


def _forward_pass(mode: Mode, what: str, updates: bool | None = None) -> Pass:
    updates = in_place(mode) if updates is None else updates
    kept = [b.name for b in results(mode, updates)] + list(mode.plan.saved)
    pairs = list(zip(targets(mode.graph, mode.arguments), mode.plan.program.updates)) if updates else []
    return Pass(mode, f"{mode.name}_{what}", "forward", mode.plan.forward_stages, [b.name for b in mode.arguments],
                kept, updates=pairs)  # fmt: skip


def listed(names: Sequence[str]) -> str:
    """Names as a tuple."""
    return f"{', '.join(names)}," if len(names) == 1 else ", ".join(names)


def _forward_function(run: Pass) -> str:
    """The plan of a forward pass, and its call."""
    mode = run.mode
    names = list(run.given)
    sizes = f"({listed(sizes_of(mode))})" if mode.joint.wanted or run.calls else ""
    given = ", ".join(f"{n}={n}" for n in names)
    others = {b.name: DTYPES[b.dtype] for b in mode.arguments if b.dtype in SCALAR_BYTES}
    if mode.plan.program.own:  # and the arguments that are of another type
        given = f"{{{', '.join(f'{n!r}: {t}' for n, t in others.items())}}}, {given}"
    head = [f"dtype, device = _checked({given})", *bind_sizes(mode, mode.arguments)]
    for target, b in run.updates:
        if b.dtype not in ("scalar", "accum", *SCALAR_BYTES):
            expected = DTYPES[b.dtype]
            head.append(f"if {target}.dtype != {expected}:")
            head.append(f'    raise RuntimeError(f"ModelNew: expected {target} of {expected}, got {{{target}.dtype}}")')
    body = [
        f"({', '.join(run.planned(sizes=bool(sizes)))}), dense = _planned(_{run.name}_plan, tensors)",
        *run.elsewhere(f"_{run.name}(tensors)"),
    ]
    held = {*mode.plan.saved, *(b.name for b in results(mode, bool(run.updates)))} & set(names)
    if not run.straight or held:
        body.append(f"{listed(names)} = dense")
    if run.calls and sizes != "()":
        body.append(f"{listed(sizes_of(mode))} = sizes")
    body += run.body()
    if run.updates:
        body.append("if dense is not tensors:")
        body += [f"    tensors[{k}].copy_(dense[{k}])" for k in (names.index(target) for target, _ in run.updates)]
    made = ", ".join(b.name for b in results(mode, bool(run.updates)))
    saved = f", [{', '.join(mode.plan.saved)}], sizes" if mode.joint.wanted else ""
    body.append(f"return [{made}]{saved}")
    call = "\n".join([f"def _{run.name}(tensors):", *(f"    {line}" for line in body)])
    return f"{run.plan(', '.join(names), head, sizes=sizes)}\n\n\n{call}"


def _places(mode: Mode) -> dict[int, int]:
    """The place among the arguments of each input that has a gradient."""
    tensor_places = [i for i, n in enumerate(mode.graph.placeholders) if is_tensor(n)]
    return {p: tensor_places.index(p) for p in mode.joint.wanted}


def _backward_pass(mode: Mode) -> Pass:
    plan = mode.plan
    gradients, positions, place = plan.program.gradients, mode.joint.wanted, _places(mode)
    useful = needed_for(mode)
    everything = {k for k, b in enumerate(gradients) if b is not None}
    guards = {}
    for stage in plan.backward_stages:
        wanted = useful[stage.name]
        if wanted != everything:
            tests = sorted({place[positions[k]] for k in wanted})
            guards[stage.name] = " or ".join(f"needs[{t}]" for t in tests) or "False"
    live = list(dict.fromkeys(b.name for b in gradients if b is not None))
    given = [*plan.saved, *(b.name for b in mode.tangents)]
    return Pass(mode, f"{mode.name}_backward", "backward", plan.backward_stages, given, live, guards)


def _backward_function(run: Pass) -> str:
    """The plan of a backward pass, and its call."""
    mode, plan = run.mode, run.mode.plan
    tangents = [b.name for b in mode.tangents]
    sizes = sizes_of(mode)
    parameters = f"needs, sizes, {', '.join(tangents)}"
    head = [f"{listed(sizes)} = sizes"] if sizes else []
    own = plan.program.own
    head.append(f"dtype, device = {f'torch.{own}' if own else f'{tangents[0]}.dtype'}, {tangents[0]}.device")
    given = f"needs, sizes, saved, {', '.join(tangents)}"
    body = [
        f"tensors = {listed(tangents)}",
        f"({', '.join(run.planned())}), ({listed(tangents)}) = _planned(_{run.name}_plan, tensors, needs, sizes)",
        *run.elsewhere(f"_{run.name}({given})"),
    ]
    if plan.saved:
        body.append(f"{listed(plan.saved)} = saved")
    if run.calls and sizes:
        body.append(f"{listed(sizes)} = sizes")
    body += run.body()
    # Two inputs may share one gradient.
    place, positions = _places(mode), mode.joint.wanted
    by_place = {place[positions[k]]: b.name for k, b in enumerate(plan.program.gradients) if b is not None}
    count = sum(1 for n in mode.graph.placeholders if is_tensor(n))
    body.append(f"return {listed([by_place.get(i, 'None') for i in range(count)])}")
    call = "\n".join([f"def _{run.name}({given}):", *(f"    {line}" for line in body)])
    return f"{run.plan(parameters, head)}\n\n\n{call}"
