"""Functions whose gradient is their own, and what has none."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.autodiff.table import DIFFERENTIABLE_OPERANDS, RULES, constant_everywhere, no_rule, reverse
from ingot.ir.node import Node, rebuild


def _own(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """The gradients that it brings, with cotangents in the places that it has for them."""
    op = node.op
    assert isinstance(op, ops.CustomGradient)
    ys, places, xs, gradients = op.parts(node.inputs)
    given = [ops.full(y.shape, 0, y.dtype) if g is None else g for y, g in zip(ys, cotangents, strict=True)]
    found = rebuild(gradients, dict(zip(places, given, strict=True)))
    return [*(None,) * (2 * op.count), *found, *(None,) * len(xs)]


def _xs(node: Node) -> tuple[Node, ...]:
    assert isinstance(node.op, ops.CustomGradient)
    return node.op.parts(node.inputs)[2]


@reverse(ops.UnknownGradient)
def _unknown(node: Node, g: Node) -> list[Node | None]:
    raise no_rule(node, "what a function reads that tells no gradient by it: give it as an argument")


RULES[ops.CustomGradient] = _own
DIFFERENTIABLE_OPERANDS[ops.CustomGradient] = _xs
constant_everywhere(ops.Cotangent, ops.StopGradient)
DIFFERENTIABLE_OPERANDS[ops.StopGradient] = DIFFERENTIABLE_OPERANDS[ops.Cotangent] = lambda node: ()
