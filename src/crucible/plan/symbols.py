"""torch's symbolic sizes as index arithmetic and as C++."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy import functions as sym

from crucible.plan.index import Int, integer, product, size


class Unsupported(Exception):
    """This node cannot be lowered; the message is the reason that the user reads."""


class Symbols:
    """Turns sympy expressions into integers; what has no such form becomes a size that the host computes."""

    def __init__(self) -> None:
        self.computed: dict[str, str] = {}  # name of a size to the Python text that gives it
        self.hints: dict[str, int] = {}
        self._names: dict[Any, str] = {}

    def of(self, value: Any) -> Int:
        """An int, a SymInt or a sympy expression."""
        if isinstance(value, bool) or isinstance(value, int):
            return integer(int(value))
        if hasattr(value, "node"):
            self._hint(value.node)
            return self.of(value.node.expr)
        return self._convert(value)

    def by_host(self, value: Any) -> Int:
        """A size that the host computes: Python rounds quotients down."""
        number = self.of(value)
        return number if number.constant is not None else self._opaque(value.node.expr)

    def _hint(self, node: Any) -> None:
        env = node.shape_env
        for symbol in node.expr.free_symbols:
            if str(symbol) not in self.hints:
                # The first is what newer releases of torch call the second.
                table = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
                if symbol not in table:
                    raise Unsupported(
                        "a tensor whose size depends on the values in another. Keep the size and mask what is not "
                        "wanted (torch.where), or select outside of forward()"
                    )
                self.hints[str(symbol)] = int(table[symbol])

    def _convert(self, e: Any) -> Int:
        if e.is_Integer:
            return integer(int(e))
        if e.is_Symbol:
            return size(str(e))
        if e.is_Add:
            total = integer(0)
            for a in e.args:
                total = total + self._convert(a)
            return total
        if e.is_Mul:
            if all(a.is_integer for a in e.args):
                return product([self._convert(a) for a in e.args])
        if e.is_Pow and e.exp.is_Integer and int(e.exp) > 0:
            return product([self._convert(e.base)] * int(e.exp))
        if isinstance(e, (sym.FloorDiv, sym.CleanDiv)):
            return self._convert(e.args[0]) // self._convert(e.args[1])
        if isinstance(e, (sym.Mod, sym.PythonMod)):
            return self._convert(e.args[0]) % self._convert(e.args[1])
        return self._opaque(e)

    def _opaque(self, e: Any) -> Int:
        if e not in self._names:
            name = f"u{len(self._names)}"
            self._names[e] = name
            self.computed[name] = python_text(e)
            self.hints[name] = int(e.subs({s: self.hints[str(s)] for s in e.free_symbols}))
        return size(self._names[e])

    def real(self, value: Any) -> str:
        """A SymFloat as C++ over the sizes, in double precision."""
        if hasattr(value, "node"):
            self._hint(value.node)
            value = value.node.expr
        return self._real(value)

    def _real(self, e: Any) -> str:
        if e.is_Number:
            return repr(float(e))
        if e.is_integer and not e.is_Float:
            return f"double({self._convert(e)})"
        if isinstance(e, sym.ToFloat):
            return self._real(e.args[0])
        if e.is_Add:
            return "(" + " + ".join(self._real(a) for a in e.args) + ")"
        if e.is_Mul:
            return "(" + " * ".join(self._real(a) for a in e.args) + ")"
        if e.is_Pow or isinstance(e, sym.FloatPow):
            base, power = e.args
            if power == -1:
                return f"(1.0 / {self._real(base)})"
            return f"pow({self._real(base)}, {self._real(power)})"
        if isinstance(e, (sym.FloatTrueDiv, sym.IntTrueDiv)):
            return f"({self._real(e.args[0])} / {self._real(e.args[1])})"
        if type(e).__name__ == "OpaqueUnaryFn_sqrt":
            return f"sqrt({self._real(e.args[0])})"
        raise NotImplementedError(f"a size in the form {e}")

    def names_in_real(self, value: Any) -> set[str]:
        expr = value.node.expr if hasattr(value, "node") else value
        return {str(s) for s in expr.free_symbols}


def python_text(e: Any) -> str:
    """A sympy expression or condition as Python."""
    return str(_Python().doprint(e))


# What stands for torch's functions of sizes; each argument is in brackets.
_TEXTS = {
    "FloorDiv": "({} // {})", "CleanDiv": "({} // {})", "CeilDiv": "(-(-{} // {}))", "Mod": "({} % {})",
    "PythonMod": "({} % {})", "ModularIndexing": "({} // {} % {})", "LShift": "({} << {})", "RShift": "({} >> {})",
    "IntTrueDiv": "({} / {})", "FloatTrueDiv": "({} / {})", "FloatPow": "({} ** {})", "PowByNatural": "({} ** {})",
    "ToFloat": "float{}", "TruncToFloat": "float(math.trunc{})", "TruncToInt": "math.trunc{}",
    "FloorToInt": "math.floor{}", "CeilToInt": "math.ceil{}", "RoundToInt": "round{}", "Identity": "{}",
    "floor": "math.floor{}", "ceiling": "math.ceil{}", "Abs": "abs{}",
}  # fmt: skip


class _Python(sympy.printing.str.StrPrinter):
    """Python text of the functions that torch adds to sympy."""

    def _print_Max(self, e: Any) -> str:
        return f"max({', '.join(self._print(a) for a in e.args)})"

    def _print_Min(self, e: Any) -> str:
        return f"min({', '.join(self._print(a) for a in e.args)})"

    def _print_Where(self, e: Any) -> str:
        condition, yes, no = (self._print(a) for a in e.args)
        return f"(({yes}) if ({condition}) else ({no}))"

    def _print_Function(self, e: Any) -> str:
        name = type(e).__name__
        text = _TEXTS.get(name)
        if name.startswith("OpaqueUnaryFn_"):
            text = f"math.{name.removeprefix('OpaqueUnaryFn_')}{{}}"
        if text is None:
            raise Unsupported(f"a size in the form {e}")
        return text.format(*(f"({self._print(a)})" for a in e.args))

    def _print_Relational(self, e: Any) -> str:
        return f"{self._print(e.lhs)} {e.rel_op} {self._print(e.rhs)}"
