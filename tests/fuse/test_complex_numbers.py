"""Models that compute with complex numbers: torch's own operators do, and what lies around them is fused."""

from __future__ import annotations

import pytest

import crucible

# A layer of a Fourier neural operator: complex weights, parts of a spectrum that are assigned.
SPECTRAL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Parameter(torch.rand(4, 4, 3, 3, dtype=torch.cfloat) / 4)
        self.high = nn.Parameter(torch.rand(4, 4, 3, 3, dtype=torch.cfloat) / 4)
        self.past = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        f = torch.fft.rfft2(x)
        out = torch.zeros(b, c, h, w // 2 + 1, dtype=torch.cfloat, device=x.device)
        out[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", f[:, :, :3, :3], self.low)
        out[:, :, -3:, :3] = torch.einsum("bixy,ioxy->boxy", f[:, :, -3:, :3], self.high)
        return F.gelu(torch.fft.irfft2(out, s=(h, w)) + self.past(x))
"""
# Conjugates and signs that torch notes beside the numbers, results that are complex, a complex argument.
SPECTRA = """
class Model(nn.Module):
    def forward(self, x, z):
        f = torch.fft.fft2(x)
        g = torch.fft.ifft2(torch.polar(f.abs() * 0.5, f.angle()))
        return g.real.tanh(), f.conj().imag * 2, (f * f.conj()).real.log1p(), f.conj() * z, F.relu(z.imag)
"""
# A view of a buffer as complex numbers, whose values are new before the view is read; rotations that are kept.
TURNED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8, bias=False)
        self.register_buffer("pairs", torch.randn(6, 4, 2))
        angles = torch.outer(torch.arange(16.0), torch.tensor([1.0, 0.1, 0.01, 0.001]))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x):
        old = torch.view_as_complex(self.pairs)
        if self.training:
            self.pairs.mul_(0.5).add_(1.0)
        q = torch.view_as_complex(self.query(x).unflatten(-1, (4, 2))) * self.turns[: x.shape[-2]]
        return torch.sigmoid(torch.view_as_real(q * old)).flatten(-2)
"""
# A complex buffer that gets new values, and one that is returned as it is.
KEPT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4, dtype=torch.cfloat))
        self.register_buffer("turns", torch.ones(4, dtype=torch.cfloat))

    def forward(self, x):
        self.state.mul_(0.9).add_(torch.fft.fft(x.detach()).mean(0))
        return x * self.state.abs(), self.turns
"""
SOURCES = {
    "spectral": (SPECTRAL, "torch.randn(2, 4, 8, 10)"),
    "spectra": (SPECTRA, "torch.randn(2, 6, 8), torch.randn(2, 6, 8, dtype=torch.cfloat)"),
    "turned": (TURNED, "torch.randn(3, 6, 8)"),
    "kept": (KEPT, "torch.randn(3, 4)"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_proven(reference, proven, name):
    fused, _ = proven(reference(*SOURCES[name]))
    assert any("complex numbers" in why for _, why in fused.unfused)


WRONG = [
    pytest.param("spectra", "f.conj() * z", "f * z", "wrong_values", "output[3]", id="conjugate"),
    pytest.param("spectral", "self.high)", "self.high.detach())", "missing_grad", "high", id="no gradient"),
    pytest.param("spectral", "F.gelu(", "F.gelu(self.low.real.sum() * (1e-3 - 1e-3) + ", None, "", id="right"),
    pytest.param("spectral", "self.low)", "Other.apply(self.low))", "wrong_grad", "low", id="gradient"),
]  # fmt: skip
# What autograd calls the gradient of a complex number is the conjugate of what analysis does.
OTHER = """
class Other(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        return w.clone()

    @staticmethod
    def backward(ctx, g):
        return g.conj()


"""


@pytest.mark.parametrize(("name", "line", "wrong", "code", "words"), WRONG)
def test_wrong_complex_numbers_are_refuted(reference, name, line, wrong, code, words):
    model, inputs = SOURCES[name]
    assert line in model
    path = reference(model, inputs)
    new = path.with_name("new.py")
    text = path.read_text().replace("class Model(", OTHER + "class ModelNew(")
    new.write_text(text.replace(line, wrong, 1))
    proof = crucible.prove(path, new, device="sim", seed=3, quick=True)
    if code is None:
        assert proof.verdict == "proven", proof.to_text()[-2000:]
    else:
        assert proof.reason is not None and proof.reason.code == code, proof.to_text()[-2000:]
        assert words in proof.reason.message


def test_a_type_that_is_asked_for_leaves_imaginary_parts(reference):
    """``Model.to(torch.float32)`` takes them away, of the reference and of whoever is compared with it."""
    model, inputs = SOURCES["spectral"]
    path = reference(model, inputs)
    new = path.with_name("new.py")
    real = model.replace("self.low)", "torch.complex(self.low.real, 0 * self.low.real))", 1)
    for text, verdict in ((model, "proven"), (real, "refuted")):
        new.write_text(path.read_text().replace(model, text).replace("class Model(", "class ModelNew("))
        proof = crucible.prove(path, new, device="sim", seed=3, quick=True, dtype="float32")
        assert proof.verdict == verdict, proof.to_text()[-2000:]
