"""x (1 + erf(x / sqrt(2))) / 2   ->   x, as the operand of a function that costs less than erf does."""

from __future__ import annotations

from math import sqrt

import numpy as np

from ingot import ops
from ingot.ir.node import Node, splat_of


def gelu_operand(node: Node) -> Node | None:
    """x, where `node` is GELU of it, with its factors in any order; None elsewhere."""
    factors = _factors(node)
    if len(factors) != 3:
        return None
    for i, total in enumerate(factors):
        x = _under_erf(total)
        rest = factors[:i] + factors[i + 1 :]
        if x is not None and x in rest:
            other = rest[1 - rest.index(x)]
            return x if _is(other, 0.5) else None
    return None


def _factors(node: Node) -> list[Node]:
    """Of a product of products."""
    if not isinstance(node.op, ops.Mul):
        return [node]
    return [f for n in node.inputs for f in (n.inputs if isinstance(n.op, ops.Mul) else (n,))]


def _under_erf(node: Node) -> Node | None:
    """x of 1 + erf(x / sqrt(2))."""
    if not isinstance(node.op, ops.Add):
        return None
    a, b = node.inputs if isinstance(node.inputs[0].op, ops.Erf) else node.inputs[::-1]
    if not isinstance(a.op, ops.Erf) or not _is(b, 1.0):
        return None
    (scaled,) = a.inputs
    if isinstance(scaled.op, ops.Div):
        return scaled.inputs[0] if _is(scaled.inputs[1], sqrt(2)) else None
    if not isinstance(scaled.op, ops.Mul):
        return None
    x, factor = scaled.inputs if not _is(scaled.inputs[0], sqrt(0.5)) else scaled.inputs[::-1]
    return x if _is(factor, sqrt(0.5)) else None


def _is(node: Node, value: float) -> bool:
    """Whether `node` is `value`, to the last places of its type, in all elements."""
    splat = splat_of(node)
    return splat is not None and bool(np.isclose(float(splat), value, rtol=2.0**-22, atol=0))
