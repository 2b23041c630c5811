"""Cheap guesses at why two tensors differ, for the person who has to fix it.

Each test is one that a reader of the two tensors would try: are the wrong elements all in one channel, is it the same
numbers in another order, is it off by a factor or a constant. The first that explains the difference is the hint.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from crucible.exact import parts
from crucible.prove.compare import Judgement
from crucible.prove.error_map import error_maps

CLOSE = 1e-3  # relative L2 below which a guess counts as the explanation
LARGEST = 1 << 24


def worst_element(exact: torch.Tensor, got: torch.Tensor, where: int) -> dict[str, Any]:
    """Index, expected and got of one element, as a user would write them."""
    index = unravel(max(where, 0), list(exact.shape))
    flat = max(where, 0)
    return {
        "index": index,
        "expected": _number(exact.reshape(-1)[flat].item()) if exact.numel() else None,
        "got": _number(got.reshape(-1)[flat].item()) if got.numel() else None,
    }


def _number(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.9g}")
    return value if isinstance(value, (int, bool)) else str(value)


def unravel(flat: int, shape: list[int]) -> list[int]:
    index = []
    for n in reversed(shape):
        index.append(flat % n if n else 0)
        flat //= max(n, 1)
    return index[::-1]


def describe(name: str, exact: torch.Tensor, got: torch.Tensor, judged: Judgement) -> tuple[str, dict[str, Any]]:
    """A sentence and its numbers for a tensor that failed its gate. The last place in complex ones is of the part."""
    exact, got = parts(exact), parts(got)
    worst = worst_element(exact, got, judged.where)
    evidence = {
        "tensor": name,
        "worst": worst,
        "error_l2": judged.error.l2,
        "limit_l2": judged.limit_l2,
        "error_worst": judged.error.worst,
        "limit_worst": judged.limit_worst,
        "maps": error_maps(exact, got, judged.where),
    }
    at = f"at {worst['index']} expected {worst['expected']}, got {worst['got']}"
    if judged.demanded is not None:
        return f"{name} must hold {judged.demanded} there: {at}", evidence
    if judged.magnitude is not None:
        return (
            f"{name}: small elements are lost beside large ones (relative error "
            f"{judged.error.classes[judged.magnitude][0]:.1e} among those near 2^{judged.magnitude * 8}); {at}"
        ), evidence
    if judged.error.l2 > judged.limit_l2:
        numbers = f"relative L2 error {judged.error.l2:.2e}, allowed {judged.limit_l2:.2e}"
    else:
        numbers = f"worst element off by {judged.error.worst:.2e}, allowed {judged.limit_worst:.2e}"
    return f"{name}: {numbers}; {at}", evidence


def guess(exact: torch.Tensor, got: torch.Tensor, judged: Judgement) -> str | None:
    """One sentence on what the difference looks like, or None."""
    exact, got = parts(exact), parts(got)
    if exact.numel() == 0 or exact.numel() > LARGEST or not exact.is_floating_point():
        return None
    a, b = exact.double(), got.double()
    bad = ~torch.isfinite(b) & torch.isfinite(a)
    if bool(bad.any()):
        share = bad.double().mean().item()
        where = _localised(bad)
        return f"{_share(share)} of the elements are nan or inf" + (f", {where}" if where else "")
    norm = a.norm().item()
    if norm == 0:
        return None
    if bool((b == b.reshape(-1)[0]).all()):
        return f"every element is {b.reshape(-1)[0].item():g}"
    for test in (_reordered, _scaled, _shifted_values, _permuted_groups, _moved):
        found = test(a, b, norm)
        if found:
            return found
    difference = (b - a).abs()
    rms = norm / math.sqrt(a.numel())
    wrong = difference > max(judged.limit_worst, 1e-6) * (a.abs() + rms)
    share = wrong.double().mean().item()
    where = _localised(wrong)
    if where:
        return f"the wrong elements ({_share(share)}) are all {where}"
    zeros = (b == 0) & wrong
    if wrong.any() and zeros.sum() > 0.9 * wrong.sum():
        return f"the wrong elements ({_share(share)}) are zero: never computed?"
    return None


def _share(share: float) -> str:
    return f"{share * 100:.3g}%"


def _near(a: torch.Tensor, b: torch.Tensor, norm: float) -> bool:
    return (b - a).norm().item() < CLOSE * norm


def _reordered(a: torch.Tensor, b: torch.Tensor, norm: float) -> str | None:
    """The right numbers in a transposed layout, or mirrored."""
    dims = range(a.dim())
    for i, j in itertools.combinations(dims, 2):
        swapped = a.transpose(i, j).contiguous().reshape(a.shape)
        if a.shape[i] > 1 and a.shape[j] > 1 and _near(swapped, b, norm):
            return f"these are the right numbers with dimensions {i} and {j} swapped: transposed layout?"
    for i in dims:
        if a.shape[i] > 1 and _near(a.flip(i), b, norm):
            return f"these are the right numbers in reverse order along dimension {i}: flipped kernel or axis?"
    return None


def _scaled(a: torch.Tensor, b: torch.Tensor, norm: float) -> str | None:
    factor = (a * b).sum().item() / norm**2
    if abs(factor - 1) > 1e-3 and abs(factor) > 1e-6 and _near(a * factor, b, norm * abs(factor)):
        return f"the result is {factor:.6g} times what it should be: a missing or extra scale factor"
    return None


def _shifted_values(a: torch.Tensor, b: torch.Tensor, norm: float) -> str | None:
    """The same up to a constant, overall or for each channel."""
    d = b - a
    spread = a.std().item() if a.numel() > 1 else 0.0
    if spread == 0:
        return None
    if d.std().item() < CLOSE * spread and abs(d.mean().item()) > CLOSE * spread:
        return f"off by the constant {d.mean().item():.4g} everywhere: a missing bias or offset"
    if a.dim() >= 2 and a.shape[1] > 1 and a.numel() > a.shape[1] * 2:
        dims = [i for i in range(a.dim()) if i != 1]
        level = d.mean(dims, keepdim=True)
        if (d - level).norm().item() < CLOSE * norm < level.expand_as(d).norm().item():
            return "off by one constant for each channel (dimension 1): a missing or wrong bias"
    return None


def _permuted_groups(a: torch.Tensor, b: torch.Tensor, norm: float) -> str | None:
    """The right channels in another order."""
    if a.dim() < 2 or not 2 <= a.shape[1] <= 512:
        return None
    x, y = a.transpose(0, 1).reshape(a.shape[1], -1), b.transpose(0, 1).reshape(a.shape[1], -1)
    if x.shape[1] < 4:
        return None
    distance = torch.cdist(y, x)
    best = distance.argmin(1)
    moved = (best != torch.arange(len(best))).nonzero().reshape(-1)
    tight = distance.gather(1, best[:, None]).norm().item() < CLOSE * norm
    if tight and len(moved):
        c = int(moved[0])
        return f"channel {c} holds what belongs to channel {int(best[c])}: wrong group or channel index"
    return None


def _moved(a: torch.Tensor, b: torch.Tensor, norm: float) -> str | None:
    """The right numbers one step along an axis: an off-by-one tap or padding."""
    for i in range(a.dim() - 1, -1, -1):
        n = a.shape[i]
        if n < 4:
            continue
        for step in (1, -1):
            x, y = (
                (a.narrow(i, 0, n - 1), b.narrow(i, 1, n - 1))
                if step == 1
                else (a.narrow(i, 1, n - 1), b.narrow(i, 0, n - 1))
            )
            if (x - y).norm().item() < CLOSE * norm:
                return f"shifted by one along dimension {i}: off by one in a tap, padding or loop bound"
    return None


def _localised(wrong: torch.Tensor) -> str | None:
    """Where the wrong elements sit, if they sit in one place."""
    if not bool(wrong.any()) or bool(wrong.all()):
        return None
    names = {0: "sample", 1: "channel"}
    for dim in range(wrong.dim()):
        others = [d for d in range(wrong.dim()) if d != dim]
        hit = wrong.sum(others) > 0 if others else wrong
        count, n = int(hit.sum()), wrong.shape[dim]
        indices = hit.nonzero().reshape(-1).tolist()
        label = names.get(dim, "index") if wrong.dim() > 1 else "index"
        if n > 1 and count == 1:
            return f"in {label} {indices[0]} (dimension {dim})"
        if n > 3 and indices in ([0, n - 1], [0, 1], [n - 2, n - 1]):
            return f"at the border of dimension {dim} (indices {indices})"
        if n > 3 and count <= n // 2 and indices == list(range(n - count, n)):
            return f"in the last {count} of {n} along dimension {dim}: an unfinished tail"
        if n > 3 and count <= n // 2 and indices == list(range(count)):
            return f"in the first {count} of {n} along dimension {dim}"
    return None
