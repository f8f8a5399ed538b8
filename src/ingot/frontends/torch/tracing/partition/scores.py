"""Attention that a model writes out: its scores are recomputed by backward, instead of saved.

    p = softmax(bmm(q, k) * c + mask); y = bmm(p, v)

Both passes then compute attention and its gradients from q, k, v and the mask, which the compiler recognizes.
Scores that it does not are saved, as computing them twice takes longer: those whose gradient anything else reads, such
as that of a mask, those under conditions that a call tells, and weights that are dropped out.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from ingot.frontends.torch.tracing.partition.saved import is_view
from ingot.ops.nn.attention import ABSORBING_SCORE

_aten = torch.ops.aten
_PRODUCTS = (_aten.bmm.default, _aten.baddbmm.default)
_CASTS = (_aten._to_copy.default, _aten.clone.default, _aten._unsafe_view.default)
_SCALES = (_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar)
_SELECTIONS = (_aten.where.self, _aten.masked_fill.Scalar, _aten.masked_fill.Tensor)
_MASKS = (*_SELECTIONS, _aten.add.Tensor, _aten.add.Scalar, _aten.sub.Tensor)


def recompute_scores(graph: fx.Graph) -> None:
    """Mark the scores and weights of attention of which backward reads only the gradients of q, k and v."""
    constants = set[fx.Node]()
    for n in graph.nodes:
        if n.op != "placeholder" and constants.issuperset(n.all_input_nodes):
            constants.add(n)
    for weights in graph.find_nodes(op="call_function", target=_aten._softmax.default):
        value = weights.meta["val"]
        if value.is_cuda or value.dim() < 3 or weights.args[1] not in (-1, value.dim() - 1):
            continue
        steps, readers = _steps(weights.args[0], _MAX_STEPS), _readers_in_training(weights)
        if steps is not None and readers is not None and _hides_alike(steps, constants):
            for node in (weights, *steps, *(n for n in readers if n.target in _CASTS)):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


_MAX_STEPS = 32  # ops between a softmax and the product of its scores


def _steps(node: object, limit: int) -> list[fx.Node] | None:
    """The ops from the product of scores on to `node`; None if there is no product."""
    if not isinstance(node, fx.Node) or not limit:
        return None
    if node.target in _PRODUCTS:
        return [node]
    if not (_is_free(node) or node.target in _MASKS or _is_scale(node)):
        return None
    return next(([node, *found] for x in node.all_input_nodes if (found := _steps(x, limit - 1)) is not None), None)


def _is_free(node: fx.Node) -> bool:
    return node.target in _CASTS or is_view(node)


def _is_scale(node: fx.Node) -> bool:
    return node.target in _SCALES and len(node.all_input_nodes) == 1


def _hides_alike(steps: Sequence[fx.Node], constants: Container[fx.Node]) -> bool:
    """Whether no step is a condition, or all masks are constant and conditions leave nothing of a score."""
    fills = [next((x for x in n.args[:0:-1] if x not in steps), 0) for n in steps if n.target in _SELECTIONS]
    masks = (x for n in steps if n.target in _MASKS for x in n.all_input_nodes if x not in steps)
    return not fills or (all(_number(x) <= ABSORBING_SCORE for x in fills) and all(x in constants for x in masks))


def _number(x: object) -> float:
    """A number, or the one that a tensor is full of; 0 if that is unknown."""
    while isinstance(x, fx.Node) and x.args:
        x = x.args[1 if x.target is _aten.full.default else 0]
    return float(x) if isinstance(x, int | float) else 0.0


def _readers_in_training(weights: fx.Node) -> list[fx.Node] | None:
    """What reads the weights, if that is products and their gradient, and that is read by the products for q and k
    alone; None otherwise."""
    weighted = [n for n in weights.users if n.target is _aten.mul.Tensor]
    gradients = [u for n in weighted for u in n.users if u.target is _aten.sub.Tensor and u.args[0] is n]
    if len(weighted) != 2 or len(gradients) != 1 or gradients[0].args[1] not in weighted:
        return None
    readers, others = _readers(weights, weighted), _readers(gradients[0], ())
    are_pairs = all(found is not None and sum(n.target in _PRODUCTS for n in found) == 2 for found in (readers, others))
    return readers if are_pairs else None


def _readers(value: fx.Node, others: Container[fx.Node]) -> list[fx.Node] | None:
    """The products that read `value`, and the scales, conditions and views in front of them; None if anything but them
    and `others` reads it."""
    readers = list[fx.Node]()
    for n in value.users:
        if n in others:
            continue
        readers.append(n)
        if n.target in _PRODUCTS:
            continue
        if not (_is_free(n) or n.target in _SELECTIONS or _is_scale(n)):
            return None
        found = _readers(n, ())
        if found is None:
            return None
        readers += found
    return readers
