"""Whole runs with candidates in plain torch and no device: the verdicts that need no kernel."""

from __future__ import annotations

import json

import pytest
from candidate_texts import FINISH, RIGHT, WRONG, changed

import crucible


def test_a_right_candidate_is_proven(prove_text):
    proof = prove_text(RIGHT, quick=False)
    assert proof.verdict == "proven" and proof.exit_code == 0, proof.reason
    assert [w.code for w in proof.warnings] == ["torch_wrapper"]
    assert {c.name for c in proof.checks} >= {
        "loads",
        "interface",
        "forward",
        "gradients",
        "side_effects",
        "sizes",
        "ranges",
    }
    document = json.loads(proof.to_text())
    assert document["schema"] == 1 and document["verdict"] == "proven" and document["sizes"]["declared"] == [[32, 24]]


@pytest.mark.parametrize(("check", "code", "text", "words"), WRONG, ids=[w[1] for w in WRONG])
def test_wrong_candidates_are_refuted_with_the_reason(prove_text, check, code, text, words):
    proof = prove_text(text)
    assert proof.reason is not None, "proven"
    assert (proof.reason.check, proof.reason.code) == (check, code), proof.reason
    assert words in proof.reason.message
    assert proof.verdict == ("unjudged" if code == "import_error" else "refuted")


def test_inference_only_is_a_stated_limit(prove_text):
    proof = prove_text(changed(FINISH, "return torch.relu(self.norm(y)).detach()"), forward_only=True)
    assert proof.verdict == "proven" and any("forward only" in limit for limit in proof.limits)


def test_a_refusal_of_other_sizes_is_a_limit(prove_text):
    proof = prove_text(
        changed(FINISH, "assert len(x) == 32, 'batch must be 32'\n            return torch.relu(self.norm(y))")
    )
    assert proof.verdict == "proven" and any("correct only at" in limit for limit in proof.limits), proof.reason


def test_silently_wrong_elsewhere_is_refuted(prove_text):
    proof = prove_text(changed(FINISH, "return torch.relu(self.norm(y)) * (1 if len(x) == 32 else 2)"))
    assert proof.reason is not None and proof.reason.code == "wrong_at_other_size"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("class Model: pass", "defines no get_inputs"),
        (
            "import torch\nclass Model(torch.nn.Module):\n  def forward(self, x): return x.missing\n"
            "def get_inputs(): return [torch.rand(3)]\ndef get_init_inputs(): return []",
            "cannot run on its own",
        ),
    ],
)
def test_a_bad_reference_is_unjudged(write, reference, words):
    proof = crucible.prove(write("ref.py", reference), write("new.py", RIGHT), device="cpu", seed=1)
    assert proof.verdict == "unjudged" and proof.reason is not None
    assert proof.reason.code == "reference_error" and words in proof.reason.message


def test_a_reference_that_can_be_differentiated_once_is_unjudged(write):
    """Gradients flow through its buffer from one call to the next."""
    text = """
        import torch
        class {}(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.zeros(3))
            def forward(self, x):
                self.mean.mul_(0.9).add_(x.mean(0))
                return x * self.mean
        def get_inputs(): return [torch.rand(8, 3)]
        def get_init_inputs(): return []
    """
    proof = crucible.prove(
        write("r.py", text.format("Model")), write("n.py", text.format("ModelNew")), device="cpu", seed=1, quick=True
    )
    assert proof.verdict == "unjudged" and proof.reason is not None
    assert proof.reason.code == "reference_error", proof.reason
    assert "can be called once, and not again with almost the same data" in proof.reason.message


def test_automatic_mixed_precision_is_judged_on_a_gpu_alone(write):
    text = """
        import torch
        class {}(torch.nn.Module):
            def forward(self, x):
                with torch.autocast("cuda", torch.bfloat16):
                    return x @ x.t()
        def get_inputs(): return [torch.rand(8, 3)]
        def get_init_inputs(): return []
    """
    proof = crucible.prove(
        write("r.py", text.format("Model")), write("n.py", text.format("ModelNew")), device="cpu", seed=1, quick=True
    )
    assert proof.verdict == "unjudged" and proof.reason is not None
    assert 'torch.autocast("cuda", dtype=torch.bfloat16)' in proof.reason.message


def test_a_random_reference_is_compared_in_eval_mode(write):
    text = """
        import torch
        class {}(torch.nn.Module):
            def forward(self, x):
                return torch.nn.functional.dropout(x, 0.5, self.training) * 2
        def get_inputs(): return [torch.rand(8, 30)]
        def get_init_inputs(): return []
    """
    proof = crucible.prove(
        write("r.py", text.format("Model")), write("n.py", text.format("ModelNew")), device="cpu", seed=1, quick=True
    )
    assert proof.verdict == "proven" and any("eval mode only" in limit for limit in proof.limits), proof.reason


STATE = """
    import torch
    class {}(torch.nn.Module):
        def forward(self, x, state):
            h, c = state
            {}
            c = c * torch.sigmoid(x)
            return h + torch.tanh(c), (h * 2, c)
    def get_inputs(): return [torch.rand(8, 30), (torch.randn(8, 30), torch.randn(8, 30))]
    def get_init_inputs(): return []
"""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("pass", None),
        ("x = torch.where(c > 1e3, c, x)", "range_values"),  # nothing that get_inputs() gives is as large
        ("c, old = c.clone(), c; old.data.mul_(2)", "input_modified"),
        ("h = h.detach() + 0 * x", "missing_grad"),
    ],
)
def test_tensors_in_a_tuple_are_judged_like_others(write, line, reason):
    """They get other values, are compared after the call and have gradients."""
    reference, new = STATE.format("Model", "pass"), STATE.format("ModelNew", line)
    proof = crucible.prove(write("r.py", reference), write("n.py", new), device="cpu", seed=1, quick=True)
    assert (proof.reason.code if proof.reason is not None else None) == reason, proof.reason


def has_a_gradient_more(proof, words):
    """Refuted for that with these words, or proven."""
    found = proof.reason
    assert (found.code if found is not None else None) == ("extra_grad" if words else None), found
    assert found is None or words in found.message


DETACHED = """
    import torch
    class {}(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = torch.nn.Linear(6, 6), torch.nn.Parameter(torch.ones(6))
        def forward(self, x):
            y = self.linear(x)
            return {}
    def get_inputs(): return [torch.randn(8, 6)]
    def get_init_inputs(): return []
"""


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("y.detach() * self.scale", None),
        ("y.detach() * self.scale + 0 * y.nan_to_num().clamp(-1, 1)", None),  # zeros arrive, which change nothing
        ("y * self.scale", "a gradient arrives at input 0"),
    ],
)
def test_a_gradient_that_the_reference_has_not(write, returned, words):
    """What is detached must not be trained; in a reference without any gradient the outputs must not have one."""
    reference = write("r.py", DETACHED.format("Model", "y.detach() * self.scale"))
    proof = crucible.prove(reference, write("n.py", DETACHED.format("ModelNew", returned)), device="cpu", quick=True)
    has_a_gradient_more(proof, words)


def test_an_output_that_should_have_no_gradient(write):
    reference = write("r.py", DETACHED.format("Model", "y.detach().relu()"))
    proof = crucible.prove(reference, write("n.py", DETACHED.format("ModelNew", "y.relu()")), device="cpu", quick=True)
    assert proof.reason is not None and proof.reason.code == "extra_grad" and "requires grad" in proof.reason.message
    same = crucible.prove(
        reference, write("m.py", DETACHED.format("ModelNew", "y.detach().relu()")), device="cpu", quick=True
    )
    assert same.verdict == "proven", same.reason


TIED = """
    import torch
    class {}(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(6, 6, bias=False), torch.nn.Linear(6, 6)
            self.b.weight = {}
            self.c = self.b  # one layer under two names
        def forward(self, x):
            return self.c(torch.tanh(self.a(x)))
    def get_inputs(): return [torch.randn(8, 6)]
    def get_init_inputs(): return []
"""


@pytest.mark.parametrize(
    ("weight", "words"),
    [("self.a.weight", None), ("torch.nn.Parameter(self.a.weight.detach().clone())", "is the same tensor as a.weight")],
)
def test_tied_weights(write, weight, words):
    """Loading one entry changes all that are the same tensor; whoever unties them trains two in place of one."""
    reference = write("r.py", TIED.format("Model", "self.a.weight"))
    proof = crucible.prove(reference, write("n.py", TIED.format("ModelNew", weight)), device="cpu", quick=True)
    has_a_gradient_more(proof, words)
