"""Attention that a model writes out: its scores are recomputed by backward, instead of saved.

    p = softmax(bmm(q, k) * c + mask); y = bmm(p, v)

Both passes then compute attention and its gradients from q, k, v and the mask, which the compiler recognizes.
Scores whose gradient anything else reads, such as that of a mask, and weights that are dropped out are saved.
"""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from ingot.frontends.torch.tracing.partition.saved import is_view

_aten = torch.ops.aten
_PRODUCTS = (_aten.bmm.default, _aten.baddbmm.default)
_CASTS = (_aten._to_copy.default, _aten.clone.default, _aten._unsafe_view.default)
_SCALES = (_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar)
_SELECTIONS = (_aten.where.self, _aten.masked_fill.Scalar, _aten.masked_fill.Tensor)
_MASKS = (*_SELECTIONS, _aten.add.Tensor, _aten.add.Scalar, _aten.sub.Tensor)


def recompute_scores(graph: fx.Graph) -> None:
    """Mark the scores and weights of attention of which backward reads only the gradients of q, k and v."""
    for weights in graph.find_nodes(op="call_function", target=_aten._softmax.default):
        value = weights.meta["val"]
        steps = None if value.is_cuda or value.dim() < 3 else _steps(weights.args[0], _MAX_STEPS)
        if steps is None or weights.args[1] not in (-1, value.dim() - 1) or not _is_trained_alone(weights):
            continue
        for node in (weights, *steps):
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


_MAX_STEPS = 32  # ops between a softmax and the product of its scores


def _steps(node: object, limit: int) -> list[fx.Node] | None:
    """The ops from the product of scores on to `node`; None if there is no product."""
    if not isinstance(node, fx.Node) or not limit:
        return None
    if node.target in _PRODUCTS:
        return [node]
    if not _is_free(node) and node.target not in (*_SCALES, *_MASKS):
        return None
    return next(([node, *found] for x in node.all_input_nodes if (found := _steps(x, limit - 1)) is not None), None)


def _is_free(node: fx.Node) -> bool:
    return node.target in _CASTS or is_view(node)


def _is_trained_alone(weights: fx.Node) -> bool:
    """Whether the weights are read by products and by their gradient, and that by the products for q and k alone."""
    weighted = [n for n in weights.users if n.target is _aten.mul.Tensor]
    gradients = [u for n in weighted for u in n.users if u.target is _aten.sub.Tensor and u.args[0] is n]
    if len(weighted) != 2 or len(gradients) != 1 or gradients[0].args[1] not in weighted:
        return False
    return _count_products(weights, weighted) == 2 and _count_products(gradients[0], ()) == 2


def _count_products(value: fx.Node, others: Container[fx.Node]) -> int | None:
    """How many products read `value` under scales, conditions and views; None if anything but them and `others`
    does."""
    count = 0
    for n in value.users:
        if n in others:
            continue
        if n.target in _PRODUCTS:
            count += 1
        elif _is_free(n) or n.target in _SELECTIONS or (n.target in _SCALES and n.all_input_nodes == [value]):
            found = _count_products(n, ())
            if found is None:
                return None
            count += found
        else:
            return None
    return count
