"""What a fused file does on the host, with kernels that compute nothing and tensors that only say they are on a GPU.

    python tests/emit/host_alone.py gallery/conv_transpose2d/model_new.py ...

A program of its own that needs torch alone, as fused files do: it shows that they run with a torch that has no
simulator, such as an old one. For each file the calls of its kernels in a forward without gradients, a forward and a
backward, twice each, on the inputs' shapes of the file with a batch of two.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.utils.cpp_extension

GPU = torch.device("cuda", 0)


class OnGpu(torch.Tensor):
    """A tensor in the host's memory."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    device = property(lambda self: GPU)  # type: ignore[assignment]


class Kernels:
    """A library of kernels that remembers what it was called with."""

    def __init__(self, calls: list[tuple[str, int]]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any) -> int:
            # Addresses, sizes, a stream: nothing else can be handed to compiled code.
            assert all(type(a) is int for a in arguments), (name, arguments)
            self.calls.append((name, len(arguments)))
            return 256

        return called


def load(path: Path, chip: tuple[int, int], calls: list[tuple[str, int]]) -> ModuleType:
    def load_inline(name: str, cpp_sources: str, cuda_sources: str, **options: Any) -> Kernels:
        assert "__global__" in cuda_sources and "PYBIND11_MODULE" in cpp_sources, name
        return Kernels(calls)

    torch.utils.cpp_extension.load_inline = load_inline
    torch.cuda.get_device_capability = lambda device=None: chip  # type: ignore[assignment]
    spec = importlib.util.spec_from_file_location(f"host_{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._current_device, module._raw_stream = lambda: 0, lambda index: 0  # type: ignore[attr-defined]

    def new(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype).as_subclass(OnGpu)

    module._new = new  # type: ignore[attr-defined]
    return module


def small_inputs(module: ModuleType) -> list[torch.Tensor]:
    """Of the shapes that get_inputs() has, a batch of two and images of at most 16 pixels in each dimension."""
    drawn: list[torch.Tensor] = []
    original = torch.rand, torch.randn

    def draw(*shape: int, **_: Any) -> torch.Tensor:
        sizes = [2, *(min(n, 16) if d else n for d, n in enumerate(shape[1:]))]
        drawn.append(torch.ones(sizes).as_subclass(OnGpu))
        return drawn[-1]

    torch.rand = torch.randn = draw
    try:
        return module.get_inputs()
    finally:
        torch.rand, torch.randn = original


def run(path: Path, chip: tuple[int, int] = (9, 0)) -> list[tuple[str, int]]:
    calls: list[tuple[str, int]] = []
    module = load(path, chip, calls)
    model = module.ModelNew(*module.get_init_inputs())
    for owner in model.modules():
        for table in (owner._parameters, owner._buffers):
            for name, value in table.items():
                if value is not None:
                    own = value.detach().as_subclass(OnGpu)
                    table[name] = own.requires_grad_(value.requires_grad) if table is owner._parameters else own
    inputs = small_inputs(module)
    for _ in range(2):
        with torch.no_grad():
            model(*inputs)
        out = model(*[x.detach().requires_grad_() for x in inputs])
        out.backward(torch.ones(out.shape).as_subclass(OnGpu))
    return calls


if __name__ == "__main__":
    for given in sys.argv[1:]:
        for chip in ((7, 0), (8, 0), (9, 0)):
            made = run(Path(given), chip)
            print(f"{torch.__version__}, a chip of {chip[0]}.{chip[1]}: {given} runs, {len(made)} calls of its library")
