"""Whole runs with candidates in plain torch and no device: the verdicts that need no kernel."""

from __future__ import annotations

import json

import pytest
from candidate_texts import RIGHT

import crucible


def changed(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


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


FINISH = "return torch.relu(self.norm(y))"
WRONG = [
    ("forward", "wrong_values", changed("+ self.linear.bias", ""), "without its bias"),
    ("forward", "skipped_layer", changed(FINISH, "return self.norm(y)"), "the relu left out"),
    ("forward", "wrong_shape", changed(FINISH, "return torch.relu(self.norm(y))[:, :-1]"), "(32, 23)"),
    ("forward", "wrong_dtype", changed(FINISH, "return torch.relu(self.norm(y)).double()"), "float64"),
    ("forward", "raises", changed(FINISH, "return y.no_such_thing"), "no_such_thing"),
    ("forward", "constant_output", changed(FINISH, "return torch.zeros_like(y)"), "every element"),
    ("gradients", "no_grad", changed(FINISH, "return torch.relu(self.norm(y)).detach()"), "does not require grad"),
    ("gradients", "missing_grad", changed("+ self.linear.bias", "+ self.linear.bias.detach()"), "linear.bias"),
    (
        "gradients",
        "wrong_grad",
        changed("x @ self.linear.weight.t()", "(x + (x - x.detach())) @ self.linear.weight.t()"),
        "gradient of input 0",
    ),
    (
        "side_effects",
        "input_modified",
        changed(FINISH, "x.data[0, 0] += 1\n            return torch.relu(self.norm(y))"),
        "input 0",
    ),
    (
        "side_effects",
        "parameter_modified",
        changed(FINISH, "self.linear.weight.data[0, 0] += 1\n            return torch.relu(self.norm(y))"),
        "linear.weight",
    ),
    (
        "side_effects",
        "rng_state",
        changed(FINISH, "torch.rand(1)\n            return torch.relu(self.norm(y))"),
        "random",
    ),
    (
        "interface",
        "changed_hyperparameters",
        changed("nn.GroupNorm(groups, features)", "nn.GroupNorm(2, features)"),
        "num_groups",
    ),
    (
        "interface",
        "state_dict",
        changed(
            "self.linear = nn.Linear(features, features)",
            "self.linear = nn.Linear(features, features); self.extra = nn.Parameter(torch.ones(1))",
        ),
        "extra",
    ),
    (
        "interface",
        "seed_weights",
        changed(
            "self.linear = nn.Linear(features, features)", "torch.rand(1); self.linear = nn.Linear(features, features)"
        ),
        "linear.weight",
    ),
    ("interface", "init_signature", changed("features, groups)", "features, groups, depth)"), "depth"),
    ("loads", "import_error", "import no_such_module\nclass ModelNew: pass", "no_such_module"),
    ("isolation", "exited", changed(FINISH, "import sys; sys.exit(0)"), "sys.exit"),
    ("isolation", "crashed", changed(FINISH, "import os; os.abort()"), "ended while it ran"),
    (
        "isolation",
        "deleted_file",
        changed(FINISH, "import os; os.remove(__file__)\n            return torch.relu(self.norm(y))"),
        "its own file",
    ),
    (
        "honesty",
        "patched_harness",
        changed("import torch.nn as nn", "import torch.nn as nn\n    torch.allclose = lambda *a, **k: True"),
        "torch.allclose",
    ),
]


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
