"""Models as people write them, proven whole: what no single operator shows."""

from __future__ import annotations

import pytest

# A block of a transformer: heads that become one by a view, an inherited forward(), tied weights, dropout.
TRANSFORMER = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32, bias=False)
        self.back = nn.Linear(32, 32)
        self.back.weight = self.out.weight

    def forward(self, x, *, causal: bool = True):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        p = 0.1 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal)
        return x + self.back(F.gelu(self.out(y.transpose(1, 2).reshape(b, n, d))))


class Model(Block):
    pass
"""
# A layer of torch's that is taken apart nowhere, two ways, lengths that may be any.
RECURRENT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(12, 8, 2, dropout=0.2, bidirectional=True)
        self.gru = nn.GRU(16, 10, batch_first=True)
        self.head = nn.Linear(10, 5)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        z, last = self.gru(torch.tanh(y))
        return F.relu(self.head(z)), last, h * c
"""
# A buffer that follows what is computed, of which gradients know nothing, images twice as large, at borders too.
TRACKED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        y = self.conv(x)
        with torch.no_grad():
            self.mean.lerp_(y.mean((0, 2, 3)), 0.1)
        y = y - self.mean.view(-1, 1, 1)
        up = F.interpolate(y, scale_factor=2, mode="bilinear")
        return F.relu6(up), F.interpolate(y, scale_factor=1.5, mode="bilinear", align_corners=True)
"""
# A table of angles in float32 that meets the weights, a weight that a hook computes, a decorator, results of which some
# have gradients, some where their own weights do, and some never.
EMBEDDED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.utils.weight_norm(nn.Conv1d(4, 6, 3, padding=1))
        self.time, self.table = nn.Linear(8, 6), nn.Embedding(9, 6).requires_grad_(False)

    @torch.compile
    def forward(self, x, t):
        angles = t[:, None].float() * torch.exp(-0.9 * torch.arange(4, device=t.device))
        rows = self.table(t % 9)
        shift = self.time(F.silu(torch.cat([angles.sin(), angles.cos()], -1)))
        y = self.conv(x) + (shift + rows)[:, :, None]
        return torch.tanh(y), rows * 2, y.detach().abs(), (y > 0).float()
"""

# A teacher that follows its pupil, statistics of an instance norm, a buffer that no state dict has.
FOLLOWED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pupil, self.teacher = nn.Linear(8, 6), nn.Linear(8, 6).requires_grad_(False)
        self.norm = nn.InstanceNorm1d(6, affine=True, track_running_stats=True)
        self.register_buffer("seen", torch.zeros(8), persistent=False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                for slow, fast in zip(self.teacher.parameters(), self.pupil.parameters()):
                    slow.mul_(0.9).add_(fast, alpha=0.1)
        x = x - self.seen
        self.seen.lerp_(x.detach().mean((0, 1)), 0.5)
        y = self.norm(self.pupil(x).transpose(1, 2))
        return F.cosine_similarity(y.transpose(1, 2), self.teacher(x), dim=-1)
"""


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        pytest.param(TRANSFORMER, "torch.randn(2, 11, 32)", id="transformer"),
        pytest.param(RECURRENT, "torch.randn(6, 3, 12)", id="recurrent"),
        pytest.param(EMBEDDED, "torch.randn(2, 4, 19), torch.tensor([3, 500])", id="embedded"),
        pytest.param(TRACKED, "torch.randn(2, 3, 8, 9)", id="tracked"),
        pytest.param(FOLLOWED, "torch.randn(2, 5, 8)", id="followed"),
    ],
)
def test_proven(reference, proven, model, inputs):
    proven(reference(model, inputs))
