"""How far a tensor is from the truth, and whether that is near enough: the metrics and the gate.

Used twice with the same code: the reference worker measures its yardsticks with it, and the parent measures the
candidate. Two numbers describe an error. ``l2`` is the relative L2 distance of the whole tensor. ``worst`` is the worst
element, relative to its own magnitude plus the tensor's root mean square, so that neither a large element excuses
itself by its size nor a near-zero one blames noise that is small beside its neighbours.

The gate: both at most twice the yardstick, with a floor of a few ulps of the dtype. See ``yardstick.py`` for the terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from crucible.exact import parts

CHUNK = 1 << 22
YARD_ELEMENTS = 1 << 23
FACTOR = 2.0
LOST = 0.5  # a yardstick above this says that the truth is zero and everybody computes rounding noise
LOST_FACTOR = 32.0  # such noise (the bias before a batch norm has no gradient) varies more between implementations
CLASS_BITS = 8  # width of a magnitude class, in powers of two
CLASS_MEMBERS = 32  # a class with fewer different elements is too small to be judged alone

# Codes of the mask that says what an element must be (see ``expectations``).
FINITE, UNJUDGED, NAN, POSITIVE_INF, NEGATIVE_INF, OVERFLOW = range(6)
CLASS_NAMES = {
    FINITE: "a finite number",
    NAN: "nan",
    POSITIVE_INF: "inf",
    NEGATIVE_INF: "-inf",
    OVERFLOW: "inf or nan (the value is beyond the dtype)",
}


def eps_of(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def floor_l2(dtype: torch.dtype) -> float:
    """A few ulps: 4 in float32, where sums round in the same type; 1 in 16 bits, where sums are kept in float32."""
    return (4.0 if torch.finfo(dtype).bits >= 32 else 1.0) * eps_of(dtype)


def floor_worst(dtype: torch.dtype) -> float:
    return (8.0 if torch.finfo(dtype).bits >= 32 else 2.0) * eps_of(dtype)


@dataclass
class Error:
    """The distance of one tensor from the truth."""

    l2: float = 0.0
    worst: float = 0.0
    where: int = -1  # flat index of the worst element
    # magnitude class -> (relative L2, different members)
    classes: dict[int, tuple[float, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"l2": self.l2, "worst": self.worst, "classes": {str(k): v for k, v in self.classes.items()}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Error:
        classes = {int(k): (v[0], v[1]) for k, v in data.get("classes", {}).items()}
        return cls(data["l2"], data["worst"], classes=classes)

    def merge(self, other: Error) -> Error:
        """The larger of each number: a yardstick is the worst of several honest computations."""
        keys = self.classes.keys() | other.classes.keys()
        classes = {
            k: (
                max(self.classes.get(k, (0.0, 0))[0], other.classes.get(k, (0.0, 0))[0]),
                max(self.classes.get(k, (0.0, 0))[1], other.classes.get(k, (0.0, 0))[1]),
            )
            for k in keys
        }
        return Error(max(self.l2, other.l2), max(self.worst, other.worst), classes=classes)


def _real(x: torch.Tensor) -> torch.Tensor:
    return parts(x).reshape(-1)


def scale(truth: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[float, float]:
    """(L2 norm, root mean square) of the judged elements of the truth."""
    flat = _real(truth)
    total, largest, count = 0.0, 0.0, 0
    for i in range(0, flat.numel(), CHUNK):
        part = _judged(flat[i : i + CHUNK], mask, i).double()
        count += part.numel()
        if part.numel():
            total += torch.dot(part, part).item()
            largest = max(largest, part.abs().max().item())
    if largest == 0.0 or not math.isfinite(largest):
        return 0.0, 0.0
    if 1e-280 < total < math.inf:
        return math.sqrt(total), math.sqrt(total / count)
    total = 0.0
    for i in range(0, flat.numel(), CHUNK):
        # Scaled by the largest element first: squares of 1e300 overflow, those of 1e-200 vanish.
        total += (_judged(flat[i : i + CHUNK], mask, i).double() / largest).square().sum().item()
    norm = math.sqrt(total) * largest
    return norm, norm / math.sqrt(count)


def _judged(part: torch.Tensor, mask: torch.Tensor | None, start: int) -> torch.Tensor:
    if mask is None:
        return part
    return part[mask[start : start + part.numel()] == FINITE]


def sampled(x: torch.Tensor) -> torch.Tensor:
    """Every n-th element of a very large tensor: enough for the further terms of a yardstick."""
    flat = x.reshape(-1)
    return flat if flat.numel() <= YARD_ELEMENTS else flat[:: flat.numel() // YARD_ELEMENTS + 1]


def measure(
    truth: torch.Tensor, got: torch.Tensor, mask: torch.Tensor | None = None, *, classes: bool = False
) -> Error:
    """The error of ``got`` over the elements that must be finite; a non-finite one among them is an infinite error."""
    t, g = _real(truth), _real(got)
    if not t.dtype.is_floating_point:
        return _measure_exact(t, g)
    flat_mask = mask.reshape(-1) if mask is not None else None
    norm, rms = scale(t, flat_mask)
    unit = norm or 1.0
    total, worst, where = 0.0, 0.0, -1
    sums: dict[int, list[float]] = {}
    for i in range(0, t.numel(), CHUNK):
        a = t[i : i + CHUNK].double()
        difference = (g[i : i + CHUNK].double() - a).abs_()
        if flat_mask is not None:
            difference = torch.where(flat_mask[i : i + CHUNK] == FINITE, difference, 0.0)
        if difference.numel() == 0:
            continue
        if not math.isfinite(difference.max().item()):
            # NaN compares false with everything; as an infinite difference it cannot hide.
            difference = torch.nan_to_num(difference, nan=math.inf, posinf=math.inf)
        scaled = difference / unit
        total += torch.dot(scaled, scaled).item()
        relative = difference / a.abs().add_(rms) if rms > 0 else difference
        value, at = relative.max(0)
        if math.isnan(value.item()):  # inf / inf where the truth is infinite and not judged
            value, at = torch.nan_to_num(relative, nan=0.0, posinf=math.inf).max(0)
        if value.item() > worst or where < 0:
            worst, where = value.item(), i + int(at.item())
        if classes:
            _add_classes(sums, a, difference, flat_mask[i : i + CHUNK] if flat_mask is not None else None)
    per_class = {
        k: (math.sqrt(d) / math.sqrt(n), round(c)) for k, (d, n, c) in sums.items() if c >= CLASS_MEMBERS and n > 0
    }
    return Error(math.sqrt(total) if norm > 0 else math.sqrt(total), worst, where, per_class)


def _add_classes(
    sums: dict[int, list[float]], a: torch.Tensor, difference: torch.Tensor, mask: torch.Tensor | None
) -> None:
    """Collect squared errors by the magnitude of the true element, each class in units of its own magnitude.

    Elements that are equal in float32 count as one, with the mean of their squared errors: what a saturated tanh sends
    through a norm is the same number everywhere, and so is its error. Hundreds of copies are one draw, by which nobody
    can tell two honest computations apart.
    """
    keep = torch.isfinite(a) & (a != 0)
    if mask is not None:
        keep &= mask == FINITE
    a, difference = a[keep], difference[keep]
    if a.numel() == 0:
        return
    key = torch.div(torch.frexp(a)[1], CLASS_BITS, rounding_mode="floor").long()
    low = int(key.min().item())
    unit = torch.pow(2.0, (key * CLASS_BITS).double().clamp(-1000, 1000))
    index = key - low
    _, same, copies = torch.unique(a.float(), return_inverse=True, return_counts=True)
    share = 1.0 / copies[same].double()
    d = torch.bincount(index, weights=share * (difference / unit).square())
    n = torch.bincount(index, weights=share * (a / unit).square())
    c = torch.bincount(index, weights=share)
    for j in range(c.numel()):
        if c[j] > 0:
            row = sums.setdefault(low + j, [0.0, 0.0, 0.0])
            row[0] += d[j].item()
            row[1] += n[j].item()
            row[2] += c[j].item()


def _measure_exact(t: torch.Tensor, g: torch.Tensor) -> Error:
    """Integers and booleans are right or wrong: the share of wrong elements, and the first of them."""
    wrong = (t != g).nonzero()
    if wrong.numel() == 0:
        return Error()
    return Error(math.sqrt(wrong.numel() / max(t.numel(), 1)), 1.0, int(wrong[0].item()))


def expectations(truth: torch.Tensor, eager: torch.Tensor, *, extreme: bool = False) -> torch.Tensor | None:
    """What each element must be, where that is not simply 'finite and near the truth'; None where it is everywhere.

    nan and inf are demanded where the float64 truth has them and eager agrees. Where the truth is finite but beyond
    the dtype, either will do: which one, and with which sign, depends on the order in which partial sums overflow.
    Where eager overflowed on the way to a finite truth nothing is demanded: a candidate cannot be blamed for doing no
    better, nor for doing better. With ``extreme`` inputs the same holds for finite values of eager that are off by half
    or more.
    """
    truth, eager = parts(truth), parts(eager)
    if not eager.is_floating_point():
        return None
    flat_truth, flat_eager = truth.reshape(-1), eager.reshape(-1)
    rounded = flat_truth.to(eager.dtype)
    finite = torch.isfinite(rounded) & torch.isfinite(flat_eager)
    if bool(finite.all()) and not extreme:
        return None
    mask = torch.full(flat_truth.shape, FINITE, dtype=torch.uint8, device=truth.device)
    both = ~torch.isfinite(rounded) & ~torch.isfinite(flat_eager)
    mask[~finite] = UNJUDGED
    mask[both & rounded.isnan() & flat_eager.isnan()] = NAN
    mask[both & (rounded == math.inf) & (flat_eager == math.inf)] = POSITIVE_INF
    mask[both & (rounded == -math.inf) & (flat_eager == -math.inf)] = NEGATIVE_INF
    mask[both & torch.isfinite(flat_truth)] = OVERFLOW
    if extreme:
        a, b = flat_truth.double(), flat_eager.double()
        largest = a[finite].abs().max().item() if bool(finite.any()) else 0.0
        # Small elements may be all rounding error in any implementation: an error must be large in the tensor.
        lost = finite & ((b - a).abs() > 0.5 * a.abs()) & ((b - a).abs() > 0.05 * largest)
        mask[lost | (finite & _lost_samples(a, b, finite, truth.shape))] = UNJUDGED
    return mask if bool((mask != FINITE).any()) else None


def _lost_samples(a: torch.Tensor, b: torch.Tensor, finite: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Marks the samples (first dimension) in which eager as a whole is off by a quarter: its arithmetic broke down."""
    rows = shape[0] if len(shape) > 1 else 1
    if a.numel() == 0:
        return torch.zeros_like(finite)
    unit = a[finite].abs().max() if bool(finite.any()) else torch.ones((), dtype=a.dtype, device=a.device)
    exact = torch.where(finite, a / unit, 0.0).reshape(rows, -1)
    error = torch.where(finite, (b - a) / unit, 0.0).reshape(rows, -1)
    broken = error.norm(dim=1) > 0.25 * exact.norm(dim=1)
    return broken.repeat_interleave(exact.shape[1])


def wrong_class(mask: torch.Tensor, got: torch.Tensor) -> tuple[int, str] | None:
    """The first element whose nan or inf is not the one that the mask demands: (flat index, what it must be)."""
    flat = _real(got)
    demanded = mask.reshape(-1)
    bad = (
        ((demanded == NAN) & ~flat.isnan())
        | ((demanded == POSITIVE_INF) & (flat != math.inf))
        | ((demanded == NEGATIVE_INF) & (flat != -math.inf))
        | ((demanded == OVERFLOW) & torch.isfinite(flat))
    ).nonzero()
    if bad.numel() == 0:
        return None
    index = int(bad[0].item())
    return index, CLASS_NAMES[int(demanded[index].item())]


@dataclass(frozen=True)
class Judgement:
    """One tensor held against its gate."""

    ok: bool
    error: Error
    limit_l2: float
    limit_worst: float
    magnitude: int | None = None  # the magnitude class that failed, where only a class did
    demanded: str | None = None  # 'nan', 'inf', ... where a non-finite element is missing or misplaced
    where: int = -1

    @property
    def ratio(self) -> float:
        """How much of the permitted error was used (1 is the gate)."""
        return max(_ratio(self.error.l2, self.limit_l2), _ratio(self.error.worst, self.limit_worst))


def _ratio(error: float, limit: float) -> float:
    if error == 0.0:
        return 0.0
    return error / limit if limit > 0 else math.inf


def slack(count: int) -> float:
    """The yardstick of a handful of numbers is a handful of random draws; 1 for a tensor of any size."""
    return 1.0 if count >= 64 else 1.0 + 2.0 / math.sqrt(max(count, 1))


def judge(
    truth: torch.Tensor, got: torch.Tensor, yard: Error, dtype: torch.dtype, mask: torch.Tensor | None = None
) -> Judgement:
    """Hold a candidate's tensor against the truth, given the yardstick's error on the same data."""
    if not dtype.is_floating_point and not dtype.is_complex:
        error = _measure_exact(_real(truth), _real(got.to(truth.dtype)))
        limit = max(yard.l2, 0.0)
        return Judgement(error.l2 <= limit, error, limit, float(yard.worst > 0), where=error.where)
    error = measure(truth, got, mask, classes=bool(yard.classes))
    factor = (LOST_FACTOR if yard.l2 > LOST else FACTOR) * slack(truth.numel())
    limit_l2 = max(factor * yard.l2, floor_l2(dtype))
    # The worst of n elements is a noisy number: at least what errors of the yardstick's size, evenly spread, lead to.
    expected_worst = yard.l2 * math.sqrt(2 * math.log(max(truth.numel(), 2)))
    limit_worst = max(factor * max(yard.worst, expected_worst), floor_worst(dtype))
    misplaced = wrong_class(mask, got) if mask is not None else None
    if misplaced is not None:
        return Judgement(False, error, limit_l2, limit_worst, demanded=misplaced[1], where=misplaced[0])
    ok = error.l2 <= limit_l2 and error.worst <= limit_worst
    if ok:
        for key, (value, members) in error.classes.items():
            permitted = yard.classes.get(key, (math.inf, 0))[0]
            if members >= CLASS_MEMBERS and value > max(FACTOR * permitted, 4 * floor_l2(dtype)):
                return Judgement(False, error, limit_l2, limit_worst, magnitude=key, where=error.where)
    return Judgement(ok, error, limit_l2, limit_worst, where=error.where)


def allclose(truth: torch.Tensor, got: torch.Tensor, tolerance: float) -> bool:
    """The plain test of other harnesses: |got - truth| <= tolerance + tolerance * |truth| everywhere."""
    t, g = _real(truth), _real(got)
    for i in range(0, t.numel(), CHUNK):
        a, b = t[i : i + CHUNK].double(), g[i : i + CHUNK].double()
        if not torch.allclose(b, a, rtol=tolerance, atol=tolerance, equal_nan=True):
            return False
    return True
