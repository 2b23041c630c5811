"""How the shapes and magnitudes of a random graph's values follow from those of the arguments.

A rule of shapes answers None where the attributes do not fit the shape, so that only valid steps are ever drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Shape = tuple[int, ...]
Attrs = Mapping[str, Any]

DEPTHS = range(2, 101)  # of a sum of products: a single one before a norm would leave its weight no gradient
GROUP = 4  # a norm over fewer elements than this can meet a vanishing variance


def broadcast(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    """The second argument broadcasts to the first."""
    x, y = shapes
    fits = len(y) <= len(x) and all(n in (1, m) for m, n in zip(reversed(x), reversed(y)))
    return x if fits else None


def equal(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    return shapes[0] if shapes[0] == shapes[1] else None


def along(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    """The dimension exists and is worth the work."""
    (x,) = shapes
    return x if -len(x) <= a["dim"] < len(x) and x[a["dim"]] >= 2 else None


def reduced(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    if along(shapes[:1], a) is None:
        return None
    x, dim = shapes[0], a["dim"] % len(shapes[0])
    return x[:dim] + ((1,) if a.get("keepdim") else ()) + x[dim + 1 :]


def reduced_pair(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    return reduced(shapes, a) if shapes[0] == shapes[1] else None


def per_channel(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    return shapes[0][:2]


def scalar(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    return () if len(set(shapes)) == 1 else None


def channels_normed(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    """Batch norm: the statistics run over all but the channels."""
    (x,) = shapes
    return x if math.prod(x) // x[1] >= GROUP else None


def planes_normed(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return x if math.prod(x[2:]) >= GROUP else None


def groups_normed(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    """Group norm, with several channels in a group: their weights differ, so sums over a group keep a gradient."""
    (x,) = shapes
    per_group = x[1] // a["groups"]
    return x if x[1] % a["groups"] == 0 and per_group >= 2 and per_group * math.prod(x[2:]) >= GROUP else None


def last_normed(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return x if x[-1] >= GROUP else None


def _windows(x: Shape, a: Attrs) -> Shape | None:
    reach = a.get("dilation", 1) * (a["kernel"] - 1) + 1
    if 2 * a["padding"] > a["kernel"]:
        return None
    sizes = tuple((n + 2 * a["padding"] - reach) // a["stride"] + 1 for n in x[2:])
    return sizes if all(n >= 1 for n in sizes) else None


def pooled(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    """No window is larger than what it slides over, and no window lies in the padding alone."""
    if any(n < a["kernel"] for n in shapes[0][2:]):
        return None
    sizes = _windows(shapes[0], a)
    return None if sizes is None or math.prod(sizes) == 1 else shapes[0][:2] + sizes


def adaptive(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return x[:2] + (a["output"],) * (len(x) - 2) if all(n >= a["output"] for n in x[2:]) else None


def convolved(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    groups, out = a.get("groups", 1), a.get("channels", x[1])
    if x[1] % groups or out % groups or x[1] // groups * a["kernel"] ** (len(x) - 2) not in DEPTHS:
        return None
    sizes = _windows(x, a)
    return None if sizes is None else (x[0], out, *sizes)


def convolved_depthwise(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    return convolved(shapes, {**a, "groups": shapes[0][1]}) if shapes[0][1] > 1 else None


def convolved_wrapped(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    """Circular and reflecting padding must be shorter than what they copy."""
    return convolved(shapes, a) if all(n > a["padding"] for n in shapes[0][2:]) else None


def convolved_tall(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    n, c, h, w = shapes[0]
    return (n, a["channels"], h - 2, w) if h >= 3 and 3 * c in DEPTHS else None


def transposed(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    """Transposed convolution; the depth of its sums is bounded as if no stride thinned them."""
    (x,) = shapes
    groups, extra = a["groups"], a["output_padding"]
    if x[1] % groups or a["channels"] % groups or x[1] // groups * a["kernel"] ** (len(x) - 2) not in DEPTHS:
        return None
    if extra >= max(a["stride"], a["dilation"]):
        return None
    reach = a["dilation"] * (a["kernel"] - 1) + 1
    sizes = [(n - 1) * a["stride"] - 2 * a["padding"] + reach + extra for n in x[2:]]
    return (x[0], a["channels"], *sizes) if all(n >= 1 for n in sizes) else None


def projected(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    return shapes[0][:-1] + (a["features"],) if shapes[0][-1] in DEPTHS else None


def multiplied(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    x, y = shapes
    fits = len(x) == len(y) and x[:-2] == y[:-2] and x[-1] == y[-2] and x[-1] in DEPTHS
    return x[:-1] + y[-1:] if fits else None


def gram(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return (*x[:-1], x[-2]) if x[-1] in DEPTHS else None


def outer(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    x, y = shapes
    return (*x, y[1]) if len(x) == len(y) == 2 and x[0] == y[0] else None


def swapped(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    x = list(shapes[0])
    first, second = a["first"], a["second"]
    if first >= len(x) or second >= len(x):
        return None
    x[first], x[second] = x[second], x[first]
    return tuple(x)


def channels_last(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return (x[0], *x[2:], x[1])


def flattened(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return x[: a["start"]] + (math.prod(x[a["start"] :]),) if len(x) > a["start"] + 1 else None


def unflattened(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return (x[0], a["parts"], x[1] // a["parts"], *x[2:]) if x[1] % a["parts"] == 0 and len(x) < 5 else None


def halved(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return (x[0], x[1] // 2, *x[2:]) if x[1] % 2 == 0 else None


def sliced(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    left = len(range(*slice(a["start"], None, a["step"]).indices(x[-1])))
    return x[:-1] + (left,) if left else None


def cropped(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return (x[0], x[1] - 1, *x[2:]) if x[1] >= 2 else None


def padded(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    return shapes[0][:-1] + (shapes[0][-1] + a["left"] + a["right"],)


def joined(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    x, y = shapes
    dim = a["dim"]
    if len(x) != len(y) or x[:dim] != y[:dim] or x[dim + 1 :] != y[dim + 1 :]:
        return None
    return x[:dim] + (x[dim] + y[dim],) + x[dim + 1 :]


def stacked(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    x = equal(shapes, a)
    return (x[0], 2, *x[1:]) if x is not None and len(x) < 5 else None


def enlarged(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    (x,) = shapes
    return x[:2] + tuple(a["factor"] * n for n in x[2:])


def shuffled(shapes: Sequence[Shape], a: Attrs) -> Shape | None:
    n, c, h, w = shapes[0]
    return (n, c // 4, 2 * h, 2 * w) if c % 4 == 0 else None


# --- magnitudes: rough bounds, from those of the arguments and the shapes of argument and result


def unit(sizes: Sequence[float], before: Shape, after: Shape) -> float:
    return 1.0


def normal(sizes: Sequence[float], before: Shape, after: Shape) -> float:
    return 4.0


def total(sizes: Sequence[float], before: Shape, after: Shape) -> float:
    return sum(sizes)


def product(sizes: Sequence[float], before: Shape, after: Shape) -> float:
    return math.prod(sizes)


def squared(sizes: Sequence[float], before: Shape, after: Shape) -> float:
    return max(sizes) ** 2


def cubed(sizes: Sequence[float], before: Shape, after: Shape) -> float:
    return max(sizes) ** 3


def summed(sizes: Sequence[float], before: Shape, after: Shape) -> float:
    return max(sizes) * math.sqrt(math.prod(before) / max(1, math.prod(after)))


def logarithm(sizes: Sequence[float], before: Shape, after: Shape) -> float:
    return max(sizes) + math.log(math.prod(before) + 1)
