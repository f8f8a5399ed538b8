"""Floats computed from sizes, as exact quotients: rounding one gives an exact size, and its bounds bound a size.

int(ceil(float(n) / 512))            ->   (n + 511) floordiv 512
int(round(min(32 / h, 48 / w) * h))  ->   known only at run time; 33 at most
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import Dim, DimLike, bounds, ceildiv, dim_max, dim_min, exact_quotient, floordiv
from ingot.ir.node import Node
from ingot.support.dataclass import dataclass

_MAX_DEPTH = 24
_MAX_BOUNDS = 4


@dataclass(frozen=True)
class Quotient:
    """numerator / denominator, which is positive for all sizes."""

    numerator: DimLike
    denominator: DimLike = 1

    @property
    def exact(self) -> bool:
        """Whether a float holds it exactly: integers below 2**24, and binary fractions of small ones. Rounding a
        quotient of two such numbers once does not take it to another integer."""
        n = self.denominator
        return isinstance(n, int) and n <= 1024 and n & (n - 1) == 0


def _reduced(numerator: DimLike, denominator: DimLike) -> Quotient:
    quotient = exact_quotient(numerator, denominator)
    return Quotient(numerator, denominator) if quotient is None else Quotient(quotient)


def require_positive(by: DimLike) -> None:
    """Raises Unsupported for a divisor that is not positive for all sizes."""
    if (bounds(by)[0] or 0) < 1:
        raise Unsupported(f"a quotient by {by}, which may be negative or zero")


def towards_zero(a: DimLike, b: DimLike) -> DimLike:
    """a / b, truncated to an integer. Raises Unsupported for sizes that may be negative."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    check_signs(a, b)
    return floordiv(a, b)


def check_signs(a: DimLike, b: DimLike) -> None:
    """Raises Unsupported where a or b may be negative: only without negatives is floor the same as truncation."""
    low = bounds(a)[0]
    if low is None or low < 0 or (bounds(b)[0] or 0) < 1:
        raise Unsupported(f"the quotient of sizes {a} and {b}, which may be negative")


def add(a: Quotient, b: Quotient) -> Quotient:
    return _reduced(a.numerator * b.denominator + b.numerator * a.denominator, a.denominator * b.denominator)


def sub(a: Quotient, b: Quotient) -> Quotient:
    return _reduced(a.numerator * b.denominator - b.numerator * a.denominator, a.denominator * b.denominator)


def mul(a: Quotient, b: Quotient) -> Quotient:
    return _reduced(a.numerator * b.numerator, a.denominator * b.denominator)


def div(a: Quotient, b: Quotient) -> Quotient:
    require_positive(b.numerator)
    return _reduced(a.numerator * b.denominator, a.denominator * b.numerator)


def least(a: Quotient, b: Quotient) -> Quotient:
    return _reduced(dim_min(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)


def greatest(a: Quotient, b: Quotient) -> Quotient:
    return _reduced(dim_max(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)


_ARITHMETIC: dict[type, Callable[[Quotient, Quotient], Quotient]] = {
    ops.Add: add, ops.Sub: sub, ops.Mul: mul, ops.Div: div, ops.Min: least, ops.Max: greatest,
}  # fmt: skip


def computed(node: Node, operands: Iterable[object]) -> object:
    """An element of `node`, computed from elements of its operands, numbers and quotients. Raises Unsupported where it
    is not a size that is rounded once."""
    values = [v if isinstance(v, Quotient) else _of_number(v) for v in operands]
    if isinstance(node.op, ops.Convert) and node.dtype.is_integer:
        (x,) = values
        return towards_zero(x.numerator, x.denominator)
    if isinstance(node.op, ops.Convert) and values[0].exact:
        return values[0]
    if isinstance(node.op, ops.Floor):
        return Quotient(floordiv(values[0].numerator, values[0].denominator))
    if isinstance(node.op, ops.Ceil):
        return Quotient(ceildiv(values[0].numerator, values[0].denominator))
    if isinstance(node.op, ops.RoundEven | ops.RoundAway) and values[0].denominator == 1:
        return values[0]
    rule = _ARITHMETIC.get(type(node.op))
    if rule is None or not all(v.exact for v in values):
        raise Unsupported(f"a size that only the run knows: it comes from {node.op.name}")
    return rule(*values)


def _of_number(v: object) -> Quotient:
    if not isinstance(v, int | float) or not abs(v) < 1 << 24:
        raise Unsupported(f"a size that only the run knows: it comes from {v}")
    return Quotient(*v.as_integer_ratio())


# --- bounds

Elements = Callable[[Node], np.ndarray]  # as `Sizes.elements`
_BoundPair = tuple[list[Quotient], list[Quotient]]  # lower bounds and upper bounds, none of them negative


def upper_bound(elements: Elements, node: Node) -> DimLike | None:
    """The upper bound of an element, None if unknown: a number where there is one, else an expression."""
    upper_bounds = [
        floordiv(q.numerator, q.denominator) + 1 for q in _bounds_of(elements, node, 0)[1]
    ]  # + 1: for intermediate roundings
    return min(
        (bound for bound in upper_bounds if isinstance(bound, int)), default=upper_bounds[0] if upper_bounds else None
    )


def _bounds_of(elements: Elements, node: Node, depth: int) -> _BoundPair:
    try:
        (value,) = elements(node).reshape(-1)
        q = Quotient(value) if isinstance(value, Dim) else value if isinstance(value, Quotient) else _of_number(value)
        low = bounds(q.numerator)[0]
        return ([q], [q]) if low is not None and low >= 0 else ([], [])
    except Unsupported:
        if depth > _MAX_DEPTH or any(i.type.size != 1 for i in node.inputs):
            return [], []
    operand_bounds = [_bounds_of(elements, i, depth + 1) for i in node.inputs]
    lows, highs = [low for low, _ in operand_bounds], [high for _, high in operand_bounds]
    zero = [Quotient(0)] if all(lows) else []
    op = node.op
    if (isinstance(op, ops.Convert) and node.inputs[0].dtype.is_integer) or op.rearranges:
        return lows[0], highs[0]
    if isinstance(op, ops.Convert | ops.Floor):
        return zero, highs[0]
    if isinstance(op, ops.Ceil | ops.RoundEven | ops.RoundAway):
        return zero, _pairs(add, highs[0], [Quotient(1)])
    if isinstance(op, ops.Min):
        return zero, [*highs[0], *highs[1]][:_MAX_BOUNDS]
    if isinstance(op, ops.Max):
        return [*lows[0], *lows[1]][:_MAX_BOUNDS], _pairs(greatest, *highs)
    if isinstance(op, ops.Add):
        return _pairs(add, *lows), _pairs(add, *highs)
    if isinstance(op, ops.Sub):
        return [], highs[0] if lows[1] else []
    if isinstance(op, ops.Mul) and zero:
        return _pairs(mul, *lows), _pairs(mul, *highs)
    if isinstance(op, ops.Div):
        return zero if node.dtype.is_integer else _pairs(div, lows[0], highs[1]), _pairs(div, highs[0], lows[1])
    return [], []


def _pairs(
    rule: Callable[[Quotient, Quotient], Quotient], a: Iterable[Quotient], b: Iterable[Quotient]
) -> list[Quotient]:  # fmt: skip
    quotients: list[Quotient] = []
    for x, y in product(a, b):
        if rule is not div or (bounds(y.numerator)[0] or 0) >= 1:
            quotients.append(rule(x, y))
    return quotients[:_MAX_BOUNDS]
