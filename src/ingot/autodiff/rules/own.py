"""Functions with a custom gradient, and values without one."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.autodiff.table import DIFFERENTIABLE_OPERANDS, RULES, constant_everywhere, no_rule, reverse
from ingot.ir.node import Node, rebuild


def _custom_gradient(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """The gradients that the node carries, with the cotangents in place of its `Cotangent` nodes."""
    op = node.op
    assert isinstance(op, ops.CustomGradient)
    ys, placeholders, xs, gradients = op.parts(node.inputs)
    seeds = [ops.full(y.shape, 0, y.dtype) if g is None else g for y, g in zip(ys, cotangents, strict=True)]
    operand_cotangents = rebuild(gradients, dict(zip(placeholders, seeds, strict=True)))
    return [*(None,) * (2 * op.count), *operand_cotangents, *(None,) * len(xs)]


def _function_operands(node: Node) -> tuple[Node, ...]:
    assert isinstance(node.op, ops.CustomGradient)
    return node.op.parts(node.inputs)[2]


@reverse(ops.UnknownGradient)
def _unknown(node: Node, g: Node) -> list[Node | None]:
    raise no_rule(node, "what a function reads that tells no gradient by it: give it as an argument")


RULES[ops.CustomGradient] = _custom_gradient
DIFFERENTIABLE_OPERANDS[ops.CustomGradient] = _function_operands
constant_everywhere(ops.Cotangent, ops.StopGradient)
DIFFERENTIABLE_OPERANDS[ops.StopGradient] = DIFFERENTIABLE_OPERANDS[ops.Cotangent] = lambda node: ()
