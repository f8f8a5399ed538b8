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

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import reduce

import numpy as np

from ingot import ops
from ingot.ir.dims import is_static
from ingot.ir.node import Const, Graph, Node, splat_of, topological
from ingot.ir.rewrite import replace_nodes
from ingot.ir.types import Shape, boolean, f32
from ingot.passes.constants import is_finite, value_of
from ingot.passes.model.fuse_attention import (
    four,
    is_rounding,
    narrow,
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
    axes of x exchanged if `is_flipped`. selections: of the values on the way, those that set elements to 0."""

    node: Node
    other: Node
    is_right: bool
    is_flipped: bool
    factor: float
    selections: tuple[Node, ...]

    @property
    def reads_rows(self) -> bool:
        """Whether the product sums along the rows of x, so that it has a result for each row."""
        return self.is_right == self.is_flipped

    def is_of(self, x: Node, lead: Shape) -> bool:
        """Whether the other operand is `x`, up to views of the dimensions before the last two."""
        other = tidy(ops.swap_axes(self.other, -1, -2) if self.is_right else self.other)
        return tidy(ops.reshape(other, (*lead, *other.shape[-2:]))) is tidy(x)

    def result(self, gradient: Node, scale: float) -> Node:
        """The product's value from a gradient that `scale` is a factor of, in place of the product's own factor."""
        rows = ops.swap_axes(gradient, -1, -2) if self.is_right else gradient
        if not np.isclose(self.factor, scale, rtol=1e-6, atol=0):  # a factor follows the product
            rows = ops.mul(ops.cast(rows, wider(rows.dtype, f32)), self.factor / scale)
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
    if scores is None or scores.product is None or scores.softcap or not isinstance(of_weights.op, ops.MatMul):
        return {}
    products = _products(ds, users, outputs, ())
    sums = _products(p, users, outputs, (weighted, subtracted))
    if products is None or sums is None or len(products) != 2 or len(sums) != 1:
        return {}
    (of_v,) = sums
    of_q, of_k = sorted(products, key=lambda x: x.reads_rows, reverse=True)
    if of_k.reads_rows or not of_q.reads_rows or of_v.reads_rows or of_v.selections:
        return {}
    lead = p.shape[:-2]
    g, v = of_weights.inputs[0], ops.swap_axes(of_weights.inputs[1], -1, -2)
    q, k = scores.product.inputs[0], ops.swap_axes(scores.product.inputs[1], -1, -2)
    wide = [ops.reshape(x, (*lead, *x.shape[-2:])) for x in (q, k, v, g)]
    is_same = of_q.is_of(wide[1], lead) and of_k.is_of(wide[0], lead) and of_v.is_of(wide[3], lead)
    mask = scores.mask
    selections = {*of_q.selections, *of_k.selections}
    if not is_same or len(lead) not in (1, 2) or (selections and not _hides_alike(mask, selections)):
        return {}
    scale = scores.scale
    for x in scores.product.inputs:  # their own factors are not among those of the products
        scale /= unscaled(x)[1]
    if not (scale and np.isfinite(scale)):
        return {}
    if mask is not None and not is_finite(mask):
        mask = with_nan_rows(mask)
    dtype = reduce(wider, (x.dtype for x in (*wide, of_q.node, of_k.node, of_v.node)))
    operands = [four(ops.cast(x, dtype)) for x in wide]
    if mask is not None:
        operands.append(four(mask) if mask.type.rank == 3 else mask)
    gradients = ops.AttentionGradients("none", scale)(*operands, loc=ds.loc).results
    scales = (scale, scale, 1.0)
    return {x.node: x.result(y, c) for x, y, c in zip((of_q, of_k, of_v), gradients, scales, strict=True)}


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
    found, values = list[_Product](), [(x, 1.0, False, tuple[Node, ...]())]
    for value, factor, is_flipped, selections in values:  # grows in the loop
        if value in outputs or len(values) > _MAX_READERS:
            return None
        for u in users.get(value, ()):
            number = splat_of(u.inputs[1]) if isinstance(u.op, ops.Mul | ops.Div) else None
            if u in others:
                continue
            if isinstance(u.op, ops.MatMul) and u.inputs[0] is not u.inputs[1]:
                is_right = u.inputs[1] is value
                found.append(_Product(u, u.inputs[1 - is_right], is_right, is_flipped, factor, selections))
            elif _under_views(u) is _under_views(value):
                values.append((u, factor, is_flipped, selections))
            elif number is not None and number != 0:
                scaled = factor / float(number) if isinstance(u.op, ops.Div) else factor * float(number)
                values.append((u, scaled, is_flipped, selections))
            elif isinstance(u.op, ops.Transpose) and ops.swap_axes(value, -1, -2) is u:
                values.append((u, factor, not is_flipped, selections))
            elif isinstance(u.op, ops.Select) and not is_flipped and _is_selection(u, value):
                values.append((u, factor, is_flipped, (*selections, u)))
            else:
                return None
    return found


def _is_selection(n: Node, x: Node) -> bool:
    """Whether `n` is the elements of `x` under a condition, and 0 elsewhere."""
    condition, *choices = n.inputs
    return condition is not x and x in choices and splat_of(choices[1 - choices.index(x)]) == 0


def _hides_alike(mask: Node | None, selections: Iterable[Node]) -> bool:
    """Whether a constant mask hides what selections set to 0, and leaves a key to each row."""
    if mask is None or not _is_known(mask):
        return False
    value = value_of(mask)
    seen = value if mask.dtype == boolean else value.astype(np.float64) > np.finfo(np.float32).min / 2
    for n in selections:
        condition = narrow(n.inputs[0])
        if not _is_known(condition) or condition.type.rank > 4:
            return False
        kept = value_of(condition) != (splat_of(n.inputs[1]) == 0)
        if any(a != b and 1 not in (a, b) for a, b in zip(kept.shape[:-2][::-1], seen.shape[:-2][::-1], strict=False)):
            return False
        if kept.shape[-2:] != seen.shape[-2:] or (seen & ~kept).any():
            return False
    return bool(seen.any(-1).all())


def _is_known(n: Node) -> bool:
    """Whether `n` depends on no input, and on no size that a call tells."""
    nodes = topological([n])
    return all((isinstance(x.op, Const | ops.Iota) or x.inputs) and is_static(x.shape) for x in nodes)
