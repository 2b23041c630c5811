"""The table of reductions: the struct of ``kernels/reduce.cuh`` that does it, and the kinds of its results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reducer:
    struct: str
    results: tuple[tuple[str, str], ...]  # kind, member function


TABLE: dict[str, Reducer] = {
    "sum": Reducer("Sum", (("f", "total"),)),
    "sum_l": Reducer("WholeSum", (("l", "total"),)),
    "prod": Reducer("Product", (("f", "total"),)),
    "prod_l": Reducer("WholeProduct", (("l", "total"),)),
    "moments": Reducer("Moments", (("f", "get_mean"), ("f", "get_m2"), ("f", "get_count"))),
    "moments_of": Reducer("Moments", (("f", "get_mean"), ("f", "get_m2"), ("f", "get_count"))),
    "max": Reducer("Max", (("f", "total"),)),
    "min": Reducer("Min", (("f", "total"),)),
    "argmax": Reducer("ArgMax", (("f", "value"), ("l", "index"))),
    "argmin": Reducer("ArgMin", (("f", "value"), ("l", "index"))),
    "argmax_window": Reducer("WindowMax", (("f", "value"), ("l", "index"))),
    "any": Reducer("Any", (("b", "total"),)),
    "all": Reducer("All", (("b", "total"),)),
}
