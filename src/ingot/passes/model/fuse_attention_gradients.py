"""Recognize the gradients of attention in the products that compute them.

    p = softmax(matmul(q, transpose(k)) * c + mask)
    dp = matmul(g, transpose(v))
    ds = (p * dp - p * sum(p * dp)) * c
    matmul(ds, k), matmul(transpose(ds), q),        ->   dq, dk, dv = attention_gradients(q, k, v, g, mask) {scale = c}
    matmul(transpose(p), g)

Nothing else may read p or ds: the gradient of a mask does. Conditions that hide scores hide their gradients, too; they
are taken if they are constant and leave a key to each row, as the weights of what they hide are 0 then.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import reduce

import numpy as np

from ingot import ops
from ingot.ir.node import Const, Graph, Node, splat_of, topological
from ingot.ir.rewrite import replace_nodes
from ingot.ir.types import Shape, boolean
from ingot.passes.constants import is_finite, value_of
from ingot.passes.model.fuse_attention import (
    four,
    is_rounding,
    row_value,
    scores_of,
    tidy,
    unscaled,
    wider,
    with_nan_rows,
)
from ingot.support.dataclass import dataclass

_MAX_READERS = 16  # ops between the gradient of scores and the products that read it


@dataclass(frozen=True)
class _Product:
    """A product with a value `x` times `factor`: matmul(x, other), or matmul(other, x) if `is_right`; with the last two
    axes of x exchanged if `is_flipped`, and what a condition hides set to 0 if `is_hidden`."""

    node: Node
    other: Node
    is_right: bool
    is_flipped: bool
    factor: float
    is_hidden: bool

    @property
    def reads_rows(self) -> bool:
        """Whether the product sums along the rows of x, so that it has a result for each row."""
        return self.is_right == self.is_flipped

    def is_of(self, x: Node, lead: Shape) -> bool:
        """Whether the other operand is `x`, up to views of the dimensions before the last two."""
        other = tidy(ops.swap_axes(self.other, -1, -2) if self.is_right else self.other)
        return tidy(ops.reshape(other, (*lead, *other.shape[-2:]))) is tidy(x)

    def result(self, gradient: Node) -> Node:
        """The product's value from a gradient that has no factor yet."""
        rows = ops.swap_axes(gradient, -1, -2) if self.is_right else gradient
        return ops.reshape(ops.cast(rows, self.node.dtype), self.node.shape)


def fuse_attention_gradients(graph: Graph) -> Graph:
    """matmuls of softmax's gradient -> attention_gradients (see module)"""
    users, outputs = graph.uses(), set(graph.outputs)
    replacements: dict[Node, Node] = {}
    for n in graph.nodes():
        if isinstance(n.op, ops.Sub):
            replacements |= _gradients(n, users, outputs)
    return replace_nodes(graph, replacements)


def _gradients(ds: Node, users: Mapping[Node, Sequence[Node]], outputs: Container[Node]) -> dict[Node, Node]:
    """The gradients in place of the products that compute them, given softmax's gradient; none if it is another."""
    weighted, subtracted = ds.inputs
    p, dp = _weights_and_gradient(weighted)
    if p is None or not _is_weighted_sum(subtracted, p, weighted):
        return {}
    scores, of_weights = scores_of(p.inputs[0]), _under_views(dp)
    if scores is None or scores.softcap or not isinstance(of_weights.op, ops.MatMul):
        return {}
    products = _products(ds, users, outputs, ())
    sums = _products(p, users, outputs, (weighted, subtracted))
    if products is None or sums is None or len(products) != 2 or len(sums) != 1:
        return {}
    (of_v,) = sums
    of_q, of_k = sorted(products, key=lambda x: x.reads_rows, reverse=True)
    if of_k.reads_rows or not of_q.reads_rows or of_v.reads_rows or of_v.is_hidden or of_v.factor != 1:
        return {}
    lead = p.shape[:-2]
    g, v = of_weights.inputs[0], ops.swap_axes(of_weights.inputs[1], -1, -2)
    q, k = scores.product.inputs[0], ops.swap_axes(scores.product.inputs[1], -1, -2)
    wide = [ops.reshape(x, (*lead, *x.shape[-2:])) for x in (q, k, v, g)]
    is_same = of_q.is_of(wide[1], lead) and of_k.is_of(wide[0], lead) and of_v.is_of(wide[3], lead)
    mask = scores.mask
    hides = of_q.is_hidden or of_k.is_hidden
    if not is_same or len(lead) not in (1, 2) or (hides and (mask is None or not _sees_keys(mask))):
        return {}
    scale = scores.scale
    for x in scores.product.inputs:  # their own factors are not among those of the products
        scale /= unscaled(x)[1]
    if not np.allclose((of_q.factor, of_k.factor), scale, rtol=1e-6, atol=0):
        return {}
    if mask is not None and not is_finite(mask):
        mask = with_nan_rows(mask)
    dtype = reduce(wider, (x.dtype for x in (*wide, of_q.node, of_k.node, of_v.node)))
    operands = [four(ops.cast(x, dtype)) for x in wide]
    if mask is not None:
        operands.append(four(mask) if mask.type.rank == 3 else mask)
    gradients = ops.AttentionGradients("none", scale)(*operands, loc=ds.loc).results
    return {x.node: x.result(y) for x, y in zip((of_q, of_k, of_v), gradients, strict=True)}


def _weights_and_gradient(weighted: Node) -> tuple[Node | None, Node]:
    """p and dp of p * dp."""
    if isinstance(weighted.op, ops.Mul):
        for p, dp in (weighted.inputs, weighted.inputs[::-1]):
            if isinstance(p.op, ops.Softmax) and p.op.axis in (-1, p.type.rank - 1):
                return p, dp
    return None, weighted


def _is_weighted_sum(n: Node, p: Node, weighted: Node) -> bool:
    """Whether `n` is p times the sum of the row of `weighted`."""
    if not isinstance(n.op, ops.Mul) or p not in n.inputs:
        return False
    total = row_value(n.inputs[1] if n.inputs[0] is p else n.inputs[0])
    is_sum = isinstance(total.op, ops.Reduce) and (total.op.kind, total.op.dims) == ("sum", (p.type.rank - 1,))
    return is_sum and total.inputs[0] is weighted


def _under_views(n: Node) -> Node:
    """`n` before conversions and regroupings of the dimensions in front of rows and columns."""
    while is_rounding(n) or (isinstance(n.op, ops.Reshape) and n.inputs[0].shape[-2:] == n.shape[-2:]):
        n = n.inputs[0]
    return n


def _products(
    x: Node, users: Mapping[Node, Sequence[Node]], outputs: Container[Node], others: Sequence[Node]
) -> list[_Product] | None:
    """The products that read `x` under factors and views; None if anything but them and `others` does."""
    found, values = list[_Product](), [(x, 1.0, False, False)]
    for value, factor, is_flipped, is_hidden in values:  # grows in the loop
        if value in outputs or len(values) > _MAX_READERS:
            return None
        for u in users.get(value, ()):
            number = splat_of(u.inputs[1]) if isinstance(u.op, ops.Mul | ops.Div) else None
            if u in others:
                continue
            if isinstance(u.op, ops.MatMul) and u.inputs[0] is not u.inputs[1]:
                is_right = u.inputs[1] is value
                found.append(_Product(u, u.inputs[1 - is_right], is_right, is_flipped, factor, is_hidden))
            elif _under_views(u) is _under_views(value):
                values.append((u, factor, is_flipped, is_hidden))
            elif number is not None and number != 0:
                scaled = factor / float(number) if isinstance(u.op, ops.Div) else factor * float(number)
                values.append((u, scaled, is_flipped, is_hidden))
            elif isinstance(u.op, ops.Transpose) and ops.swap_axes(value, -1, -2) is u:
                values.append((u, factor, not is_flipped, is_hidden))
            elif isinstance(u.op, ops.Select) and any(splat_of(i) == 0 for i in u.inputs[1:] if i is not value):
                values.append((u, factor, is_flipped, True))
            else:
                return None
    return found


def _sees_keys(mask: Node) -> bool:
    """Whether each row of a constant mask has a visible key."""
    if not all(isinstance(n.op, Const) or n.inputs or isinstance(n.op, ops.Iota) for n in topological([mask])):
        return False
    value = value_of(mask)
    seen = value if mask.dtype == boolean else value.astype(np.float64) > np.finfo(np.float32).min / 2
    return bool(seen.any(-1).all())
