"""Questions about constant values that several passes ask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.ir.node import Node, Op, topological
from ingot.ir.types import boolean
from ingot.ops.core.base import Category, category


def is_constant(node: Node) -> bool:
    """Whether `node` is a constant, possibly seen through ops that only rearrange."""
    while node.op.rearranges and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.constant is not None


def results_of(node: Node) -> tuple[np.ndarray, ...]:
    """The results of a node that is computed from constants alone; what is on the way is made once."""
    values: dict[Node, tuple[np.ndarray, ...]] = {}
    with np.errstate(all="ignore"):
        for n in topological([node]):
            got = n.constant.value if n.constant is not None else n.op.reference(*(values[i][0] for i in n.inputs))
            values[n] = tuple(np.asarray(r) for r in (got if isinstance(got, tuple) else (got,)))
    return values[node]


def value_of(node: Node) -> np.ndarray:
    """The first, or only, of `results_of`."""
    return results_of(node)[0]


def is_finite(mask: Node) -> bool:
    """Whether no element of an added mask can be an infinity or NaN, for any input, so that no row loses every key."""
    return mask.dtype != boolean and bool(np.isfinite(interval(mask)).all())


_ANYTHING = (-np.inf, np.inf)


Interval = tuple[float, float]


def interval(mask: Node) -> Interval:
    """Bounds of the elements of a mask, infinite where nothing is known; NaN counts as unknown."""
    found: dict[Node, Interval] = {}
    for n in topological([mask], _bounded_by):
        low, high = _interval(n, [found[i] for i in _bounded_by(n)])
        most = _LARGEST.get(n.dtype.name, float(np.finfo(np.float32).max))
        # what may leave the range of its type may be an infinity
        found[n] = (low, high) if not n.dtype.is_float or (-most <= low and high <= most) else _ANYTHING
    return found[mask]


def _bounded_by(n: Node) -> tuple[Node, ...]:
    """The operands whose elements bound those of `n`."""
    if n.dtype == boolean or n.dtype.is_integer:
        return ()
    if n.op.rearranges and n.inputs:
        return n.inputs[:1]
    which, _ = _RULES.get(type(n.op), (slice(0), None))
    return n.inputs[which]


_LARGEST = {"f16": 65504.0, "bf16": 3.3e38}


def _interval(n: Node, given: list[Interval]) -> Interval:
    """Bounds as exact arithmetic would have them; `given` are those of the operands."""
    if n.dtype == boolean:
        return 0.0, 1.0
    if n.constant is not None:
        value = n.constant.value.astype(np.float64)
        return (float(value.min()), float(value.max())) if value.size and not np.isnan(value).any() else _ANYTHING
    if category(n.op) is Category.SOURCE or n.dtype.is_integer:
        return -(2.0**n.dtype.bits), 2.0**n.dtype.bits
    if not np.isfinite(given).all() or not given:
        return _ANYTHING
    _, rule = _RULES.get(type(n.op), (slice(1), _same))
    return rule(*given)


def _same(a: Interval) -> Interval:
    return a


def _negated(a: Interval) -> Interval:
    return -a[1], -a[0]


def _either(a: Interval, b: Interval) -> Interval:
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
    ops.Gather: (slice(1), _same),
    ops.Convert: (slice(1), _same),
    ops.Neg: (slice(1), _negated),
    ops.Select: (slice(1, 3), _either),
    ops.Add: (slice(2), _sum),
    ops.Sub: (slice(2), _difference),
    ops.Mul: (slice(2), _product),
}
