"""Ranges of the 64-bit and boolean scalars of a kernel, by its loops: what fits 32 bits, and what is a constant.

for i < 25: let j = i * 64 + 3     ->     i: (0, 24), j: (3, 1539): both are indices of 32 bits
                                          i < 25: (1, 1): the branch is always taken
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.types import boolean, i64, u64

Range = tuple[int, int]  # the least and the greatest value
_INDEX_MAX, _I64_MAX = (1 << 31) - 1, (1 << 63) - 1


class Ranges:
    """The ranges of expressions, given those of variables, which the printer adds in the order of the program."""

    def __init__(self) -> None:
        self._variables: dict[str, Range] = {}
        self._known: dict[int, tuple[Expr, Range | None]] = {}

    def bind(self, var: k.Var, span: Range | None) -> None:
        """Give a variable its range; None: it is not known."""
        self._variables.pop(var.name, None)
        self._known.clear()
        if span is not None:
            self._variables[var.name] = span

    def of(self, e: Expr) -> Range | None:
        """Return the range of a scalar; None: not known, or of another type."""
        if e.dtype not in (i64, u64, boolean) or e.lanes != 1:
            return None
        entry = self._known.get(id(e))
        if entry is None:
            entry = self._known[id(e)] = e, self._range(e)
        return entry[1]

    def constant(self, e: Expr) -> int | None:
        """Return the only value that `e` can have, None if there are several."""
        span = self.of(e)
        return span[0] if span is not None and span[0] == span[1] else None

    def is_index(self, e: Expr) -> bool:
        """Whether `e` is an i64 whose value fits 32 bits."""
        span = self.of(e) if e.dtype == i64 else None
        return span is not None and span[0] >= -_INDEX_MAX and span[1] <= _INDEX_MAX

    def loop(self, s: k.For) -> Range | None:
        """Return the range of a loop's variable."""
        begin, end = self.of(s.begin), self.of(s.end)
        if begin is None or end is None or end[1] + s.step > _INDEX_MAX:
            return None
        return begin[0], max(begin[0], end[1] - 1)

    def _range(self, e: Expr) -> Range | None:
        match e:
            case k.Lit():
                return int(e.value), int(e.value)
            case k.Var():
                return self._variables.get(e.name)
            case k.Select():
                return self._select(e)
            case k.Cast() if e.dtype == i64 and e.a.dtype.is_integer and e.a.dtype.bits <= 32:
                return e.a.dtype.range
            case k.Cast() if {e.dtype, e.a.dtype} == {i64, u64}:
                span = self.of(e.a)
                return span if span is not None and span[0] >= 0 and span[1] <= _I64_MAX else None
            case k.Binary() if e.dtype == u64 and e.fn not in ("min", "max"):
                return None  # may wrap
            case k.Unary(fn="not") if e.dtype == boolean:
                a = self.of(e.a)
                return None if a is None else (1 - a[1], 1 - a[0])
            case k.Binary() if e.fn in _ARITHMETIC or e.fn in _COMPARISONS or e.dtype == boolean:
                a, b = self.of(e.a), self.of(e.b)
                if e.fn in _COMPARISONS:
                    return None if a is None or b is None else _compare(e.fn, a, b)
                if e.dtype == boolean:
                    return _logical(e.fn, a or (0, 1), b or (0, 1))
                return None if a is None or b is None else _ARITHMETIC[e.fn](a, b)
        return None

    def _select(self, e: k.Select) -> Range | None:
        condition, a, b = self.constant(e.cond), self.of(e.a), self.of(e.b)
        if condition is not None:
            return a if condition else b
        return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _mul(a: Range, b: Range) -> Range:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _div(a: Range, b: Range) -> Range | None:
    return (a[0] // b[1], a[1] // b[0]) if a[0] >= 0 and b[0] > 0 else None


def _rem(a: Range, b: Range) -> Range | None:
    if a[0] < 0 or b[0] <= 0:
        return None
    return a if a[1] < b[0] else (0, min(a[1], b[1] - 1))


_ARITHMETIC: Mapping[str, Callable[[Range, Range], Range | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul,
    "div": _div,
    "rem": _rem,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _compare(fn: str, a: Range, b: Range) -> Range | None:
    match fn:
        case "gt" | "ge":
            return _compare({"gt": "lt", "ge": "le"}[fn], b, a)
        case "lt" if a[1] < b[0] or a[0] >= b[1]:
            return (1, 1) if a[1] < b[0] else (0, 0)
        case "le" if a[1] <= b[0] or a[0] > b[1]:
            return (1, 1) if a[1] <= b[0] else (0, 0)
        case "eq" | "ne" if a[1] < b[0] or b[1] < a[0] or a == b == (a[0], a[0]):
            return (1, 1) if (a == b) == (fn == "eq") else (0, 0)
    return None


def _logical(fn: str, a: Range, b: Range) -> Range | None:
    match fn:
        case "and" | "min":
            return a[0] & b[0], a[1] & b[1]
        case "or" | "max":
            return a[0] | b[0], a[1] | b[1]
    return None


__all__ = ["Range", "Ranges"]
