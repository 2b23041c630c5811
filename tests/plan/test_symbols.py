"""Sizes as Python text: every function that torch has for them says what it computes, and an unknown one is refused."""

from __future__ import annotations

import math

import pytest
import sympy
from torch.utils._sympy import functions as f

from crucible.plan.symbols import Unsupported, python_text

pytestmark = pytest.mark.quick
A, B = sympy.symbols("a b", integer=True, positive=True)
FORMS = [
    (f.FloorDiv(A, B), lambda a, b: a // b),
    (f.CeilDiv(A, B), lambda a, b: -(-a // b)),
    (f.Mod(A, B), lambda a, b: a % b),
    (f.PythonMod(A, B), lambda a, b: a % b),
    (f.ModularIndexing(A, 2, 3), lambda a, b: a // 2 % 3),
    (f.TruncToInt(2.5 * f.ToFloat(A)), lambda a, b: math.trunc(2.5 * a)),
    (f.FloorToInt(f.IntTrueDiv(A, B)), lambda a, b: a // b),
    (f.CeilToInt(f.IntTrueDiv(A, B)), lambda a, b: math.ceil(a / b)),
    (f.RoundToInt(1.3 * f.ToFloat(B)), lambda a, b: round(1.3 * b)),
    (f.TruncToInt(f.FloatTrueDiv(f.ToFloat(A), 1.7)), lambda a, b: math.trunc(a / 1.7)),
    (f.TruncToInt(f.FloatPow(f.ToFloat(A), 0.5)), lambda a, b: math.trunc(a**0.5)),
    (f.PowByNatural(A, B), lambda a, b: a**b),
    (f.LShift(A, 2), lambda a, b: a << 2),
    (f.TruncToInt(f.OpaqueUnaryFn_sqrt(A + B)), lambda a, b: math.trunc(math.sqrt(a + b))),
    (sympy.Max(A, B) + sympy.Min(A, 7), lambda a, b: max(a, b) + min(a, 7)),
    (f.Where(sympy.Gt(A, B), A - B, B), lambda a, b: a - b if a > b else b),
]


@pytest.mark.parametrize(("form", "meant"), FORMS, ids=lambda x: str(x) if isinstance(x, sympy.Basic) else "")
def test_forms(form, meant):
    for a, b in ((1, 1), (7, 2), (12, 5), (3, 11)):
        assert eval(python_text(form), {"math": math}, {"a": a, "b": b}) == meant(a, b)


def test_an_unknown_function_is_refused():
    unknown = sympy.Function("unknown")
    with pytest.raises(Unsupported, match=r"a size in the form unknown\(a\)"):
        python_text(unknown(A))
