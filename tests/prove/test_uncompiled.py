"""What keeps torch's compiler and sympy out of the processes of a proof changes nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from crucible.prove.uncompiled import backward

ROOT = Path(__file__).parents[2]
OPEN = """
    import sys
    from pathlib import Path

    from crucible.prove.cases import Spec
    from crucible.prove.reference import Reference, spare_the_compiler

    spare_the_compiler()
    for name in ("layer_norm", "swiglu_half", "mlp"):
        folder = Path(name)
        folder.mkdir()
        reference = Reference()
        ready = reference.handle({"op": "open", "path": f"PROBLEMS/{name}.py", "device": "sim",
                                  "cases": str(folder), "truths": str(folder)})
        assert ready["ok"], ready
"""


@pytest.fixture
def run(tmp_path):
    """Run a script in a process of its own, where nothing is imported yet."""

    def script(*parts: str) -> None:
        text = "".join(textwrap.dedent(p) for p in parts).replace("PROBLEMS", str(ROOT / "tests" / "problems"))
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return script


def test_a_reference_is_opened_without_the_compiler(run):
    run(OPEN, 'assert "torch._dynamo" not in sys.modules\n')


def test_with_the_compiler_at_work_torch_goes_its_own_way(run):
    """The functions that were spared are those that torch disables, and no stand-in is left on one that was called."""
    run(
        OPEN,
        """
        import torch

        handler = sys.modules["crucible.prove.reference"]._Recorder.__torch_dispatch__
        raw = handler.__closure__[handler.__code__.co_freevars.index("fn")].cell_contents
        assert raw.__dynamo_disable.__module__ == "crucible.prove.uncompiled"
        compiled = torch.compile(torch.nn.functional.gelu, backend="eager")
        x = torch.randn(4)
        assert torch.equal(compiled(x), torch.nn.functional.gelu(x))
        with sys.modules["crucible.prove.reference"]._Recorder() as recorder:
            torch.nn.functional.gelu(x)
        assert recorder.names == ["aten::gelu"]
        assert raw.__dynamo_disable.__module__ != "crucible.prove.uncompiled"
        """,
    )


def test_backward_needs_no_sympy(run):
    run(
        """
        import sys

        import torch

        from crucible.prove.uncompiled import backward

        x = torch.randn(3, requires_grad=True)
        backward([x * 2], [torch.ones(3)])
        assert x.grad.tolist() == [2.0] * 3
        assert "sympy" not in sys.modules
        """
    )


def test_backward_is_torchs():
    """Several outputs, an expanded cotangent, sums into a gradient that is there already."""
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    cotangents = [torch.randn(4, 3), torch.full((1, 1), 0.75).expand(4, 3)]
    found = []
    for function in (torch.autograd.backward, backward):
        x.grad, y.grad = torch.ones_like(x), None
        function([x * y, (x + y).sin()], cotangents)
        found.append((x.grad, y.grad))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_backward_refuses_what_torch_refuses():
    x = torch.randn(4, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        backward([x * 2], [torch.ones(2, 4, 3)])  # the engine alone would sum it
    with pytest.raises(RuntimeError, match="complex"):
        backward([x * 2], [torch.ones(4, 3, dtype=torch.complex64)])
    with pytest.raises(ValueError, match="zip"):
        backward([x * 2], [])
