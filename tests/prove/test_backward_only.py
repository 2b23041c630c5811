"""Files whose forward() is torch's own and whose kernels are those of backward()."""

from __future__ import annotations

from pathlib import Path

import pytest

import crucible

TESTS = Path(__file__).parents[1]
BASE = TESTS / "candidates" / "cheats" / "detects_test_by_stack.py"  # its kernels, and its class around them
KERNEL = "return ext.softmax_backward(y, dy)"
WATCHED = "'crucible' in __import__('sys').modules"


def backward_only(statement: str) -> str:
    """Softmax of torch's own, with ``statement`` at the end of its backward()."""
    text = BASE.read_text()
    for old, new in (
        ("y = torch.empty(x.shape, dtype=x.dtype, device=x.device)", "y = torch.softmax(x, -1)"),
        ("        ext.softmax_into(x, y)\n", ""),
        ("return Softmax.apply(x) if watched() else x", "return Softmax.apply(x)"),
        (KERNEL, statement),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text[: text.index("def watched")] + text[text.index("class ModelNew") :]


@pytest.mark.parametrize(
    ("statement", "reason", "words"),
    [
        (f"if 'crucible': {KERNEL}", None, ""),  # a name that has the proof look under another one, as in fused files
        (f"{KERNEL} if {WATCHED} else y * (dy - (y * dy).sum(-1, True))", "detects_test", "launches no kernel"),
        (f"{KERNEL} * (1 if {WATCHED} else 2)", "detects_test", "the gradient of input 0 is wrong"),
    ],
    ids=["right", "other path in use", "wrong in use"],
)
def test_kernels_of_backward_alone(write, statement, reason, words):
    new = write("new.py", backward_only(statement))
    proof = crucible.prove(TESTS / "problems" / "softmax.py", new, device="sim", seed=3, quick=True)
    assert (proof.reason.code if proof.reason is not None else None) == reason, proof.reason
    assert proof.reason is None or words in proof.reason.message
    assert "torch_wrapper" in {w.code for w in proof.warnings}
