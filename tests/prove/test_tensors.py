"""Tensors as files: layouts survive, and nothing a candidate writes can fool or kill the reader."""

from __future__ import annotations

import os

import pytest
import torch

from crucible.prove import tensors


@pytest.mark.parametrize("dtype", list(tensors.DTYPES.values()), ids=str)
def test_every_dtype_survives(tmp_path, dtype):
    x = (torch.arange(12).reshape(3, 4) % 2).to(dtype)
    info = tensors.save(x, tmp_path, "x.bin")
    assert torch.equal(tensors.load(info, tmp_path), x)
    assert torch.equal(tensors.load_untrusted(info, tmp_path), x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_odd_shapes_survive(tmp_path, shape):
    x = torch.ones(shape)
    info = tensors.save(x, tmp_path, "x.bin")
    assert tensors.load(info, tmp_path).shape == x.shape == tensors.load_untrusted(info, tmp_path).shape


def test_layouts_are_rebuilt(tmp_path):
    x = torch.randn(2, 3, 4, 5)
    for view in (
        x.transpose(1, 3),
        x[..., ::2],
        x[:1].expand(6, 3, 4, 5),
        x.contiguous(memory_format=torch.channels_last),
    ):
        coded = tensors.encode(view, tmp_path, "v")
        again = tensors.place(tensors.decode(coded, tmp_path), coded["strides"], torch.device("cpu"))
        assert again.stride() == view.stride() and torch.equal(again, view)


def test_gaps_hold_nan(tmp_path):
    x = torch.ones(4, 6)[:, ::2]
    coded = tensors.encode(x, tmp_path, "v")
    again = tensors.place(tensors.decode(coded, tmp_path), coded["strides"], torch.device("cpu"))
    assert again.as_strided((11,), (1,)).isnan().sum() > 0


def test_values_survive(tmp_path):
    value = [1, 2.5, float("inf"), "s", None, True, (3, 4), {"a": torch.float16}, torch.ones(2)]
    again = tensors.decode(tensors.encode(value, tmp_path, "v"), tmp_path)
    assert again[:7] == value[:7] and again[7] == value[7] and torch.equal(again[8], value[8])
    with pytest.raises(tensors.BadTensor, match="object"):
        tensors.decode(tensors.encode(object(), tmp_path, "o"), tmp_path)


@pytest.mark.parametrize(
    "info",
    [
        None,
        [],
        {"file": "../x", "dtype": "float32", "shape": [1]},
        {"file": "x", "dtype": "float99", "shape": [1]},
        {"file": "x", "dtype": "float32", "shape": [-1]},
        {"file": "x", "dtype": "float32", "shape": [1 << 60]},
        {"file": "x", "dtype": "float32", "shape": [True]},
        {"file": "none", "dtype": "float32", "shape": [1]},
        {"file": "x", "dtype": "float32", "shape": [3]},
        {"file": "link", "dtype": "float32", "shape": [1]},
        {"file": "fifo", "dtype": "float32", "shape": [1]},
    ],
)
def test_nonsense_is_refused(tmp_path, info):
    (tmp_path / "x").write_bytes(b"1234")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(tensors.BadTensor):
        tensors.load_untrusted(info, tmp_path)


def test_leaves_have_readable_paths():
    found = tensors.leaves((1, [2, {"y": 3}]))
    assert found == [("[0]", 1), ("[1][0]", 2), ("[1][1]['y']", 3)]
