"""Models with tensors of several floating types beside each other."""

from __future__ import annotations

import re

import pytest
import torch

from crucible.fuse import FuseError, FuseOptions, fuse_problem

# bfloat16 with norms, angles and a softmax in float32, as large language models have them.
LANGUAGE = """
class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = Norm(32), nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)
        self.to(torch.bfloat16)
        self.register_buffer("speeds", 1.0 / 100 ** (torch.arange(0, 8, 2).float() / 8), persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        angles = torch.arange(n, device=x.device).float()[:, None] * self.speeds
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        scores = turned(q, cos, sin) @ turned(k, cos, sin).transpose(-1, -2) / 8**0.5
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, n, d))
"""
# Weights and statistics of norms in float32 beside activations in half, statistics that are updated.
NORMS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1).half()
        self.batch, self.group, self.layer = nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.LayerNorm(9)

    def forward(self, x):
        return self.layer(self.group(F.relu(self.batch(self.conv(x)))))
"""
# Results of several types, sums in a wider one, a buffer that is wider than what it follows, types that meet.
RESULTS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 16).bfloat16()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 16))
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.float().mean(0), alpha=0.1)
        z = torch.where(y > 0, y * self.scale, 0.1 * y)
        return y, z, z.var(-1), y.sum(-1, dtype=torch.float32), z.max(-1).values, z.argmax(-1), z.half()
"""
# A Model in float32 with products in half, rounding for its own sake, parts in float64 and a parameter of that type.
PARTS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 16)
        self.head = nn.Linear(16, 8).half()
        self.heat = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, x):
        y = self.second(torch.tanh(self.first(x.bfloat16().float())))
        total = torch.cumsum(y.double(), -1)
        z = self.head(torch.relu(y).half()).float() * self.heat.exp()
        return z, total.float() * 2, F.mse_loss(z.double(), torch.ones_like(z).double())
"""


@pytest.mark.parametrize(
    ("model", "inputs", "own", "others"),
    [
        pytest.param(LANGUAGE, "torch.randn(2, 7, 32).bfloat16()", "bfloat16", 0, id="language"),
        pytest.param(NORMS, "torch.randn(3, 3, 8, 9).half()", "float16", 0, id="norms"),
        pytest.param(RESULTS, "torch.randn(20, 24).bfloat16()", "bfloat16", 0, id="results"),
        pytest.param(PARTS, "torch.randn(20, 24)", "float32", 6, id="parts"),
    ],
)
def test_proven(reference, proven, model, inputs, own, others):
    fused, _ = proven(reference(model, inputs))
    assert fused.element == own
    assert re.search(r"^_SCALARS = \{torch\.(\w+): \d\}$", fused.text, re.M).group(1) == own  # and no other type
    assert bool(fused.unfused) == bool(others)


@pytest.mark.quick
def test_what_stays_torchs_is_what_kernels_would_do_in_another_type(reference):
    unfused = dict(fuse_problem(reference(PARTS, "torch.randn(20, 24)"), FuseOptions(forward_only=True)).unfused)
    reasons = {name.split()[0]: why for name, why in unfused.items()}
    assert "a product of torch.float16 in a Model whose products are mostly torch.float32" in reasons["addmm_2"]
    assert reasons["exp"] == "it computes in float64, and the kernels of this file in float32"
    assert "tanh" not in reasons


@pytest.mark.quick
def test_a_change_to_a_narrower_type_rounds_and_others_do_not(reference):
    model = """
class Model(nn.Module):
    def forward(self, x, y):
        return (x - x.bfloat16().float()) * y.float()
"""
    text = fuse_problem(reference(model, "torch.randn(40), torch.randn(40).half()"), FuseOptions()).text
    assert re.search(r"v\d+ - f_as_bfloat16\(v\d+\)", text)
    assert "widened(" in text and "f_as_float16(v" not in text and "f_as_float32(v" not in text


@pytest.mark.quick
def test_other_types_than_the_models_are_refused(reference):
    path = reference(RESULTS, "torch.randn(20, 24).bfloat16()")
    with pytest.raises(FuseError, match="tensors of several floating types; it can be fused as it is, for bfloat16"):
        fuse_problem(path, FuseOptions(dtypes=("float32", "float16")))
    found = {"__name__": "generated"}
    exec(compile(fuse_problem(path).text, "<generated>", "exec"), found)
    checked = found["_checked"]

    class Fake:
        is_cuda, device = True, torch.device("cuda", 0)

        def __init__(self, dtype):
            self.dtype = dtype

        def is_floating_point(self):
            return self.dtype.is_floating_point

    half, brain, single, whole = map(Fake, (torch.float16, torch.bfloat16, torch.float32, torch.int64))
    others = {"scale": torch.float32}
    assert checked(others, x=brain, scale=single, n=whole) == (torch.bfloat16, half.device)
    with pytest.raises(RuntimeError, match=r"x is torch\.float16; made for a Model where it is torch\.bfloat16"):
        checked(others, x=half, scale=single)
    with pytest.raises(RuntimeError, match=r"scale is torch\.bfloat16; made for a Model where it is torch\.float32"):
        checked(others, x=brain, scale=brain)
