"""The shipped problems load, have the documented facts, and run at a small size."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "problems"

# name: full input shape, small input shape, output shape for the small one, state_dict keys in order
FACTS = {
    "conv_transpose2d": ((8, 64, 1024, 1024), (1, 64, 5, 4), (1, 64, 7, 6), ["conv_transpose2d.weight"]),
    "conv_transpose2d_gelu_group_norm": (
        (128, 64, 256, 256), (2, 64, 4, 5), (2, 64, 6, 7),
        ["conv_transpose.weight", "conv_transpose.bias", "group_norm.weight", "group_norm.bias"],
    ),
    "conv_transpose2d_grouped_gelu_group_norm": (
        (128, 64, 256, 256), (2, 64, 4, 5), (2, 64, 6, 7),
        ["conv_transpose.weight", "conv_transpose.bias", "group_norm.weight", "group_norm.bias"],
    ),
    "conv_transpose3d_relu_group_norm": (
        (16, 64, 32, 32, 32), (1, 64, 3, 2, 4), (1, 128, 5, 4, 6),
        ["conv_transpose.weight", "group_norm.weight", "group_norm.bias"],
    ),
    "conv_transpose2d_batch_norm_tanh_max_pool_group_norm": (
        (512, 64, 32, 32), (2, 64, 4, 4), (2, 128, 3, 3),
        ["conv_transpose.weight", "conv_transpose.bias", "batch_norm.weight", "batch_norm.bias",
         "batch_norm.running_mean", "batch_norm.running_var", "batch_norm.num_batches_tracked",
         "group_norm.weight", "group_norm.bias"],
    ),
    "gemm_group_norm_min_bias": (
        (1024, 8192), (3, 8192), (1, 8192, 3, 1),
        ["bias", "gemm.weight", "gemm.bias", "group_norm.weight", "group_norm.bias"],
    ),
}  # fmt: skip


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_problem_is_listed() -> None:
    assert {p.stem for p in FOLDER.glob("*.py")} == set(FACTS)


@pytest.mark.quick
@pytest.mark.parametrize("name", FACTS)
def test_problem(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full, small, output, keys = FACTS[name]
    module = load(name)
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(torch, "rand", lambda *shape: asked.append(shape))
    module.get_inputs()  # at full size only the shape is looked at
    monkeypatch.undo()
    assert asked == [full]
    model = module.Model(*module.get_init_inputs())
    assert model.training
    assert list(model.state_dict()) == keys
    assert tuple(model(torch.rand(small)).shape) == output


def test_groups_reach_the_convolution_only_in_the_grouped_variant() -> None:
    def weight(name: str) -> tuple[int, ...]:
        module = load(name)
        return tuple(module.Model(*module.get_init_inputs()).conv_transpose.weight.shape)

    assert weight("conv_transpose2d_gelu_group_norm") == (64, 64, 3, 3)
    assert weight("conv_transpose2d_grouped_gelu_group_norm") == (64, 8, 3, 3)
