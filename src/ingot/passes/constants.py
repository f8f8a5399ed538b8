"""Analyses of constant values that several passes use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.ir.node import Node, Op, topological
from ingot.ir.types import boolean
from ingot.ops.core.base import Category, category
from ingot.support.limits import check_time


def is_constant(node: Node) -> bool:
    """Whether `node` is a constant, seen through ops that only rearrange elements."""
    while node.op.rearranges and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.constant is not None


def results_of(node: Node) -> tuple[np.ndarray, ...]:
    """The results of a node that depends on constants only; each intermediate value is computed once."""
    values: dict[Node, tuple[np.ndarray, ...]] = {}
    with np.errstate(all="ignore"):
        for n in topological([node]):
            check_time("folding constants")
            results = n.constant.value if n.constant is not None else n.op.reference(*(values[i][0] for i in n.inputs))
            values[n] = tuple(np.asarray(r) for r in (results if isinstance(results, tuple) else (results,)))
    return values[node]


def value_of(node: Node) -> np.ndarray:
    """The first result of `results_of`."""
    return results_of(node)[0]


def is_finite(mask: Node) -> bool:
    """Whether an additive mask has no infinity or NaN for any input, so that no row loses every key."""
    return mask.dtype != boolean and bool(np.isfinite(interval(mask)).all())


_UNBOUNDED = (-np.inf, np.inf)


Interval = tuple[float, float]


def interval(mask: Node) -> Interval:
    """Bounds of the elements of a mask, infinite where unknown or possibly NaN."""
    intervals: dict[Node, Interval] = {}
    for n in topological([mask], _bounding_operands):
        low, high = _interval(n, [intervals[i] for i in _bounding_operands(n)])
        largest = _MAX_FINITE.get(n.dtype.name, float(np.finfo(np.float32).max))
        # a value that may exceed the range of its type may be an infinity
        intervals[n] = (low, high) if not n.dtype.is_float or (-largest <= low and high <= largest) else _UNBOUNDED
    return intervals[mask]


def _bounding_operands(n: Node) -> tuple[Node, ...]:
    """The operands whose elements bound those of `n`."""
    if n.dtype == boolean or n.dtype.is_integer:
        return ()
    if n.op.rearranges and n.inputs:
        return n.inputs[:1]
    which, _ = _RULES.get(type(n.op), (slice(0), None))
    return n.inputs[which]


_MAX_FINITE = {"f16": 65504.0, "bf16": 3.3e38}


def _interval(n: Node, operands: list[Interval]) -> Interval:
    """Bounds in exact arithmetic. operands: the bounds of the operands."""
    if n.dtype == boolean:
        return 0.0, 1.0
    if n.constant is not None:
        value = n.constant.value.astype(np.float64)
        return (float(value.min()), float(value.max())) if value.size and not np.isnan(value).any() else _UNBOUNDED
    if category(n.op) is Category.SOURCE or n.dtype.is_integer:
        return -(2.0**n.dtype.bits), 2.0**n.dtype.bits
    if not np.isfinite(operands).all() or not operands:
        return _UNBOUNDED
    _, rule = _RULES.get(type(n.op), (slice(1), _identity))
    return rule(*operands)


def _identity(a: Interval) -> Interval:
    return a


def _negated(a: Interval) -> Interval:
    return -a[1], -a[0]


def _union(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _sum(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _difference(a: Interval, b: Interval) -> Interval:
    return a[0] - b[1], a[1] - b[0]


def _product(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


# op -> the operands that bound its result, and how
_RULES: dict[type[Op], tuple[slice, Callable[..., Interval]]] = {
    ops.Gather: (slice(1), _identity),
    ops.Convert: (slice(1), _identity),
    ops.Neg: (slice(1), _negated),
    ops.Select: (slice(1, 3), _union),
    ops.Add: (slice(2), _sum),
    ops.Sub: (slice(2), _difference),
    ops.Mul: (slice(2), _product),
}
