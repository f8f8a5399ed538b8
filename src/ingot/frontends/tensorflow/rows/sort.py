"""Orders and sets."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.node import Node
from ingot.ir.types import i32, i64

row = Table()


@row("TopKV2", "TopK", results=("values", "indices"))
def top_k(c: Call, x: Node, *k: Node) -> Result:
    count = c.size(k[0]) if k else c.int("k")
    values, index = ops.TopK(count, x.type.rank - 1)(x).results
    return [values, ops.cast(index, c.dtype("index_type") if c.has("index_type") else i32)]


@row("InTopKV2")
def in_top_k(c: Call, predictions: Node, targets: Node, k: Node) -> Node:
    """Whether fewer than k classes are above the target's."""
    own = ops.GatherElements(1)(predictions, ops.expand_dims(ops.cast(targets, i64), 1))
    above = ops.reduce_sum(ops.cast(ops.compare("GT", predictions, own), i64), 1)
    return ops.compare("LT", above, ops.cast(k, i64))


@row("NthElement")
def nth_element(c: Call, x: Node, n: Node) -> Node:
    (ordered,) = ops.Sort(x.type.rank - 1, c.flag("reverse"))(x).results
    return ops.index_axis(ordered, -1, c.size(n))
