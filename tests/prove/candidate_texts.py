"""Candidate files as text, for tests that change a line of them."""

RIGHT = """
    import torch
    import torch.nn as nn

    class ModelNew(nn.Module):
        def __init__(self, features, groups):
            super().__init__()
            self.linear = nn.Linear(features, features)
            self.norm = nn.GroupNorm(groups, features)

        def forward(self, x):
            y = x @ self.linear.weight.t() + self.linear.bias
            return self.finish(y, x)

        def finish(self, y, x):
            return torch.relu(self.norm(y))
"""
FINISH = "return torch.relu(self.norm(y))"


def changed(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


# The check and the code by which a changed one is found out, its text, and words of the message.
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
