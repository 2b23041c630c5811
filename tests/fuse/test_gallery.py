"""The gallery: every problem fused as last accepted, and proven in the simulator.

The ordinary run proves a few that together have all that generated files are made of; ``make exhaustive`` all others.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path

import pytest
from fused_once import fused_once

import crucible
import make_gallery

_spec = importlib.util.spec_from_file_location("accepted", Path(__file__).parent / "accepted.py")
assert _spec is not None and _spec.loader is not None
accepted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(accepted)

ALL = accepted.problems()
GALLERY = [p for p in ALL if p.parent.name == "gallery"]
# Proven in the ordinary run.
PROVEN = {
    "conv1d_causal_gated_residual",  # operands that are computed where they are read
    "embedding_mean_linear",  # integers, and a gradient that stays torch's
    "linear_sort_trimmed_mean",  # torch's operators in the midst of ours
    "masked_softmax_pool",
    "running_feature_scale",  # a buffer of its own
    "swiglu_mlp",
}
# Proven in the ordinary run by test_fused_problems.py, with the engine of accepted files.
PROVEN_ELSEWHERE = {
    "conv2d_batch_norm_relu",  # in float64: a file of two modes, with statistics that are kept
    "conv_transpose2d_gelu_group_norm",
}
# What no problem with that engine has in the ordinary run, and the test that has it there.
IN_OTHER_TESTS = {
    "ALIKE = true": "test_phases.py",
    "early_pools": "test_early_pools.py",
    "launch_merged": "test_merged_groups.py",
    "launch_ready": "test_ready_windows.py",
    "pool_monotone": "test_fused_problems.py",
    "reduces = true": "test_product_tails.py",
}


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.stem)
def test_generated_as_accepted(path):
    """A change in what is fused or written shows up here, and is accepted on purpose with `make accept`.

    The gallery has the whole text of the reference problems, which `make gallery` writes again.
    """
    file = accepted.accepted(path)
    assert file.exists(), f"{path.stem} was never accepted: make accept"
    fused = fused_once(path)
    old, new = file.read_text(), accepted.generated(path, fused)
    if old != new:
        changes = difflib.unified_diff(
            old.splitlines(), new.splitlines(), "accepted", "generated now", lineterm="", n=2
        )
        pytest.fail("not as accepted (make accept, if it should be so):\n" + "\n".join(list(changes)[:60]))
    if path in make_gallery.problems():
        assert make_gallery.stale(path, fused) == [], "the gallery is out of date: make gallery"


@pytest.mark.quick
def test_a_race_is_of_what_is_compiled_for_its_type():
    source = "{head}\n#if CRUCIBLE_SCALAR > 1\n{half}\n#endif\n#if CRUCIBLE_HOPPER\n{hopper}\n#endif\n"
    text = 'x"""header"""\n_FORWARD_SOURCE = r"""' + source + '"""\nname = "crucible_0123456789ab_forward"\n'

    def mark(head="int a;", half="int b;", hopper="int c;", more=""):
        changed = text.replace("{head}", head).replace("{half}", half).replace("{hopper}", hopper)
        return make_gallery.raced_mark(changed + more)

    assert mark() == mark(head="int a;  // said otherwise", half="int other;")
    assert mark() == make_gallery.raced_mark(
        text.replace("{head}", "int a;").replace("{half}", "int b;").replace("{hopper}", "int c;")
        .replace("header", "another proof").replace("0123456789ab", "fedcba987654")
    )  # fmt: skip
    assert len({mark(), mark(head="int d;"), mark(hopper="int d;"), mark(more="more = 1\n")}) == 4
    trained = make_gallery.raced_mark(text, train=True)
    binding = '_BACKWARD_BINDING = r"""\nint e();\n"""\n'
    function = "def _model_backward(x):\n    return x\n\n\ny = 1\n"
    for more in ('_BACKWARD_SOURCE = r"""int e;"""\n', "sizes_backward = 2\n", binding):
        assert make_gallery.raced_mark(text + more) == make_gallery.raced_mark(text)
        assert make_gallery.raced_mark(text + more, train=True) != trained
    assert make_gallery.raced_mark(text + function) == make_gallery.raced_mark(text + "y = 1\n")
    device = "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800\nint {};\n#endif"
    assert mark(head=device.format("d")) != mark(head=device.format("e"))


@pytest.mark.quick
def test_a_race_does_not_mind_where_things_are_defined():
    first, second = "template <class T>\nint f(T x) { g(x); return h(\"}{\"); }", "struct S {\n  int a = 1;\n};"
    text = 'x"""header"""\n_FORWARD_SOURCE = r"""{}"""\n'

    def mark(source):
        return make_gallery.raced_mark(text.replace("{}", source))

    apart = f"namespace crucible {{\n{second}\n}}\nnamespace crucible {{\n{first}\n}}"
    together = f"namespace crucible {{\n{first}\n\n{second}\n}}  // namespace crucible"
    assert mark(apart) == mark(together)
    swapped = together.replace('g(x); return h("}{");', 'return h("}{"); g(x);')
    assert len({mark(together), mark(swapped), mark(together.replace("int a = 1", "int a = 2")), mark(first)}) == 4
    function = "void f() { if (a) { a = 2; } }"
    assert list(make_gallery._definitions(f"int a; {function}")) == ["int a;", function]
    with pytest.raises(ValueError, match="not understood"):
        list(make_gallery._definitions("int a; void f() {"))


def _traits(path: Path) -> set[str]:
    """What an accepted file launches, what its functors promise, and the rewrites that led to it."""
    explanation, text = accepted.accepted(path).read_text().split("-" * 118, 1)
    launched = re.findall(r"\blaunch_\w+(?=[<(])", text)
    promised = re.findall(r"static constexpr bool (\w+ = (?:true|false))", text)
    rewritten = re.findall(r"^  (\w+): ", explanation.split("\nrewrites:", 1)[1], re.M)
    return {*launched, *promised, *rewritten}


@pytest.mark.quick
def test_the_ordinary_run_proves_whatever_files_are_made_of():
    """A template, promise or rewrite that first appears in a problem that only the long run proves shows up here."""
    ordinary = [p for p in ALL if p.stem in PROVEN | PROVEN_ELSEWHERE]
    assert len(ordinary) == len(PROVEN | PROVEN_ELSEWHERE)
    proven = set().union(*map(_traits, ordinary))
    assert set().union(*map(_traits, ALL)) - proven == set(IN_OTHER_TESTS)
    assert all((Path(__file__).parent / name).is_file() for name in IN_OTHER_TESTS.values())


def _proofs():
    for path in GALLERY:
        yield pytest.param(path, id=path.stem, marks=[] if path.stem in PROVEN else [pytest.mark.exhaustive])


@pytest.mark.parametrize("path", list(_proofs()))
def test_proven(path, tmp_path):
    new = tmp_path / f"{path.stem}_new.py"
    new.write_text(fused_once(path).text)
    proof = crucible.prove(path, new, device="sim", seed=3, quick=True)
    assert proof.verdict == "proven", f"{proof.reason.code}: {proof.reason.message}" if proof.reason else proof.verdict
