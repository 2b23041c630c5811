"""The table of pointwise operators: one row an ATen operator, with its C++ for floating point and for integers.

Adding an operator is adding a row. ``{0}``, ``{1}``... are the arguments in the order of the ATen signature; names that
start with ``f_`` or ``i_`` are functions of ``kernels/pointwise.cuh``. Derivatives come as operators of their own:
the backward graph is made of rows of this table too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """How an operator is written. ``result`` is a kind, or ``=`` for the kind of the arguments."""

    real: str | None
    whole: str | None = None
    result: str = "="
    logical: str | None = None  # for bool arguments, where it differs from whole
    cost: int = 1


def _unary(function: str, cost: int = 8) -> Row:
    return Row(f"{function}({{0}})", cost=cost)


def _compare(sign: str) -> Row:
    text = f"({{0}} {sign} {{1}})"
    return Row(text, text, result="b")


TABLE: dict[str, Row] = {
    # arithmetic
    "add": Row("({0} + {1})", "({0} + {1})", logical="({0} || {1})"),
    "sub": Row("({0} - {1})", "({0} - {1})"),
    "mul": Row("({0} * {1})", "({0} * {1})", logical="({0} && {1})"),
    "div": Row("({0} / {1})", cost=4),
    "floor_divide": Row("f_floor_divide({0}, {1})", "i_floor_divide({0}, {1})", cost=12),
    "trunc_divide": Row("trunc({0} / {1})", "({0} / {1})", cost=8),
    "remainder": Row("f_remainder({0}, {1})", "i_remainder({0}, {1})", cost=12),
    "fmod": Row("fmod({0}, {1})", "({0} % {1})", cost=12),
    "neg": Row("(-{0})", "(-{0})"),
    "abs": Row("f_abs({0})", "({0} < 0 ? -{0} : {0})", cost=1),
    "sign": Row("f_sign({0})", "int64_t(({0} > 0) - ({0} < 0))", cost=2),
    "reciprocal": Row("f_reciprocal({0})", cost=4),
    "square": Row("({0} * {0})", "({0} * {0})"),
    # powers, exponentials, logarithms
    "pow": Row("pow({0}, {1})", cost=24),
    "sqrt": _unary("sqrt", 4),
    "rsqrt": Row("f_rsqrt({0})", cost=6),
    "exp": _unary("exp"),
    "exp2": _unary("exp2"),
    "expm1": _unary("expm1", 12),
    "log": _unary("log"),
    "log2": _unary("log2"),
    "log10": _unary("log10"),
    "log1p": _unary("log1p", 12),
    "erf": _unary("erf", 16),
    "erfc": _unary("erfc", 16),
    # trigonometry
    "sin": _unary("sin", 16),
    "cos": _unary("cos", 16),
    "tan": _unary("tan", 20),
    "asin": _unary("asin", 16),
    "acos": _unary("acos", 16),
    "atan": _unary("atan", 16),
    "atan2": Row("atan2({0}, {1})", cost=20),
    "hypot": Row("hypot({0}, {1})", cost=8),
    "sinh": _unary("sinh", 16),
    "cosh": _unary("cosh", 16),
    "tanh": _unary("tanh", 16),
    "asinh": _unary("asinh", 16),
    "acosh": _unary("acosh", 16),
    "atanh": _unary("atanh", 16),
    # rounding
    "floor": Row("floor({0})", "{0}"),
    "ceil": Row("ceil({0})", "{0}"),
    "round": Row("rint({0})", "{0}"),
    "trunc": Row("trunc({0})", "{0}"),
    # to a narrower floating type, and back to the one that arithmetic is done in (kernels/mixed.cuh)
    "as_float32": Row("f_as_float32({0})", cost=1),
    "as_float16": Row("f_as_float16({0})", cost=2),
    "as_bfloat16": Row("f_as_bfloat16({0})", cost=2),
    "within": Row(None, "i_within({0}, {1})"),  # an index, and of how many (kernels/within.cuh)
    # choices
    "maximum": Row("f_maximum({0}, {1})", "({0} > {1} ? {0} : {1})", cost=2),
    "minimum": Row("f_minimum({0}, {1})", "({0} < {1} ? {0} : {1})", cost=2),
    "clamp": Row("f_clamp({0}, {1}, {2})", "({0} < {1} ? {1} : {0} > {2} ? {2} : {0})", cost=2),
    "clamp_min": Row("f_clamp_min({0}, {1})", "({0} < {1} ? {1} : {0})"),
    "clamp_max": Row("f_clamp_max({0}, {1})", "({0} > {1} ? {1} : {0})"),
    "copysign": Row("copysign({0}, {1})", cost=1),
    # comparisons and logic
    "eq": _compare("=="),
    "ne": _compare("!="),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "isnan": Row("({0} != {0})", "false", result="b"),
    "isinf": Row("(({0} - {0}) != ({0} - {0}) && {0} == {0})", "false", result="b", cost=2),
    "logical_and": Row("({0} != 0 && {1} != 0)", "({0} != 0 && {1} != 0)", result="b", logical="({0} && {1})"),
    "logical_or": Row("({0} != 0 || {1} != 0)", "({0} != 0 || {1} != 0)", result="b", logical="({0} || {1})"),
    "logical_xor": Row("(({0} != 0) != ({1} != 0))", "(({0} != 0) != ({1} != 0))", result="b", logical="({0} != {1})"),
    "logical_not": Row("({0} == 0)", "({0} == 0)", result="b", logical="(!{0})"),
    "bitwise_and": Row(None, "({0} & {1})", logical="({0} && {1})"),
    "bitwise_or": Row(None, "({0} | {1})", logical="({0} || {1})"),
    "bitwise_xor": Row(None, "({0} ^ {1})", logical="({0} != {1})"),
    "bitwise_not": Row(None, "(~{0})", logical="(!{0})"),
    # activations, and the derivatives that torch has as operators
    "relu": Row("f_relu({0})", "({0} < 0 ? 0 : {0})"),
    "sigmoid": Row("f_sigmoid({0})", cost=12),
    "silu": Row("f_silu({0})", cost=12),
    "gelu": Row("f_gelu({0})", cost=16),
    "gelu_tanh": Row("f_gelu_tanh({0})", cost=24),
    "gelu_backward": Row("f_gelu_backward({0}, {1})", cost=32),
    "gelu_tanh_backward": Row("f_gelu_tanh_backward({0}, {1})", cost=32),
    "elu": Row("f_elu({0}, {1}, {2}, {3})", cost=14),
    "leaky_relu": Row("f_leaky_relu({0}, {1})", cost=2),
    "hardtanh": Row("f_clamp({0}, {1}, {2})", cost=2),
    "hardsigmoid": Row("f_hardsigmoid({0})", cost=4),
    "hardswish": Row("f_hardswish({0})", cost=5),
    "hardswish_backward": Row("f_hardswish_backward({0}, {1})", cost=6),
    "softplus": Row("f_softplus({0}, {1}, {2})", cost=24),
    "log_sigmoid": Row("f_log_sigmoid({0})", cost=24),
    "mish": Row("f_mish({0})", cost=40),
    "mish_backward": Row("f_mish_backward({0}, {1})", cost=50),
    "where": Row("({0} ? {1} : {2})", "({0} ? {1} : {2})"),
}
