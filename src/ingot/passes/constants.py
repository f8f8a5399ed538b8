"""Questions about constant values that several passes ask."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Const, Node, topological
from ingot.ir.types import boolean


def is_constant(node: Node) -> bool:
    """Whether `node` is a constant, possibly seen through ops that only rearrange."""
    while node.op.rearranges and len(node.inputs) == 1:
        node = node.inputs[0]
    return isinstance(node.op, Const)


def results_of(node: Node) -> tuple[np.ndarray, ...]:
    """The results of a node that is computed from constants alone; what is on the way is made once."""
    values: dict[Node, tuple[np.ndarray, ...]] = {}
    with np.errstate(all="ignore"):
        for n in topological([node]):
            got = n.op.value if isinstance(n.op, Const) else n.op.reference(*(values[i][0] for i in n.inputs))
            values[n] = tuple(np.asarray(r) for r in (got if isinstance(got, tuple) else (got,)))
    return values[node]


def value_of(node: Node) -> np.ndarray:
    """The first, or only, of `results_of`."""
    return results_of(node)[0]


def is_finite(mask: Node) -> bool:
    """Whether no element of an added mask can be an infinity or NaN, for any input, so that no row loses every key."""
    return mask.dtype != boolean and bool(np.isfinite(interval(mask)).all())


_ANYTHING = (-np.inf, np.inf)


def interval(mask: Node) -> tuple[float, float]:
    """Bounds of the elements of a mask, infinite where nothing is known; NaN counts as unknown."""
    found: dict[Node, tuple[float, float]] = {}
    for n in topological([mask], lambda n: _bounded_by(n)):
        low, high = _interval(n, [found[i] for i in _bounded_by(n)])
        most = _LARGEST.get(n.dtype.name, float(np.finfo(np.float32).max))
        # what may leave the range of its type may be an infinity
        found[n] = (low, high) if not n.dtype.is_float or (-most <= low and high <= most) else _ANYTHING
    return found[mask]


def _bounded_by(n: Node) -> tuple[Node, ...]:
    """The operands whose elements bound those of `n`."""
    if n.dtype == boolean or n.dtype.is_integer:
        return ()
    if isinstance(n.op, ops.Gather | ops.Neg | ops.Convert) or (n.op.rearranges and n.inputs):
        return n.inputs[:1]
    return n.inputs[-2:] if isinstance(n.op, ops.Select | ops.Add | ops.Sub | ops.Mul) else ()


_LARGEST = {"f16": 65504.0, "bf16": 3.3e38}


def _interval(n: Node, given: list[tuple[float, float]]) -> tuple[float, float]:
    """Bounds as exact arithmetic would have them; `given` are those of the operands."""
    op = n.op
    if n.dtype == boolean:
        return 0.0, 1.0
    if isinstance(op, Const):
        value = op.value.astype(np.float64)
        return (float(value.min()), float(value.max())) if value.size and not np.isnan(value).any() else _ANYTHING
    if isinstance(op, ops.Iota | ops.DimValue) or n.dtype.is_integer:
        return -(2.0**n.dtype.bits), 2.0**n.dtype.bits
    if len(given) < 2:
        low, high = given[0] if given else _ANYTHING
        return (-high, -low) if isinstance(op, ops.Neg) else (low, high)
    (a, b), (c, d) = given
    if not np.isfinite([a, b, c, d]).all():
        return _ANYTHING
    match op:
        case ops.Select():
            return min(a, c), max(b, d)
        case ops.Add():
            return a + c, b + d
        case ops.Sub():
            return a - d, b - c
    corners = [a * c, a * d, b * c, b * d]
    return min(corners), max(corners)
