"""Reductions and what runs along an axis."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.composites.movement import normal_axis
from ingot.frontends.tflite.call import Call, Table
from ingot.ir.node import Node

row = Table()
_KINDS = {
    "SUM": "sum",
    "REDUCE_PROD": "prod",
    "REDUCE_MAX": "max",
    "REDUCE_MIN": "min",
    "REDUCE_ANY": "or",
    "REDUCE_ALL": "and",
}


def axes(c: Call) -> tuple[int, ...]:
    return tuple(sorted({normal_axis(a, len(c.x().shape)) for a in c.ints(1)}))


@row(*_KINDS)
def reduce(c: Call) -> Node:
    return ops.reduce(_KINDS[c.op.name], c.x(), axes(c), c.flag("keep_dims"))


@row("MEAN")
def mean(c: Call) -> Node:
    return ops.mean(c.x(), axes(c), c.flag("keep_dims"))


@row("ARG_MAX", "ARG_MIN", is_movement=True)
def arg(c: Call) -> Node:
    kind = c.op.name.removeprefix("ARG_").lower()
    return ops.cast(ops.arg_reduce(kind, c.x(), c.ints(1)[0]), c.type())


@row("CUMSUM")
def cumsum(c: Call) -> Node:
    return ops.cumulative("sum", c.x(), c.ints(1)[0], c.flag("reverse"), c.flag("exclusive"))
