"""Functions with custom gradients, as `tracing/gradients.py` records them."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context
from ingot.ir.node import Node

aten = Table()


@aten("ingot.cotangent.default")
def cotangent(c: Context, y: Node, number: int) -> Node:
    return ops.Cotangent(number)(y)


@aten("ingot.own_gradient.default")
def own_gradient(
    c: Context, ys: Sequence[Node], cotangents: Sequence[Node], xs: Sequence[Node], gradients: Sequence[Node]
) -> tuple[Node, ...]:
    return ops.CustomGradient(len(ys))(*ys, *cotangents, *xs, *gradients).results
