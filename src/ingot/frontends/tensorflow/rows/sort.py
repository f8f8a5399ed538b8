"""Orders and sets."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites import movement
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
    """Whether there is the target's class, with a finite score, and fewer than k classes are above it."""
    classes = ops.arange(predictions.shape[1])
    is_target = ops.compare("EQ", classes, ops.expand_dims(ops.cast(targets, i64), 1))
    target_scores = ops.reduce_max(ops.where(is_target, predictions, -np.inf), 1, keepdims=True)
    count_above = ops.reduce_sum(ops.cast(ops.compare("GT", predictions, target_scores), i64), 1)
    is_finite = ops.compare("LT", ops.Abs()(ops.squeeze(target_scores, 1)), np.inf)
    return ops.and_(is_finite, ops.compare("LT", count_above, ops.cast(k, i64)))


@row("NthElement")
def nth_element(c: Call, x: Node, n: Node) -> Node:
    (ordered,) = ops.Sort(x.type.rank - 1, c.flag("reverse"))(x).results
    return ops.index_axis(ordered, -1, c.size(n))


@row("LowerBound", "UpperBound")
def bound(c: Call, edges: Node, x: Node) -> Node:
    """The number of elements in a row of `edges` that are below each value, or at most equal to it."""
    kind = "LT" if c.op == "LowerBound" else "LE"
    is_below = ops.compare(kind, ops.expand_dims(edges, -2), ops.expand_dims(x, -1))
    return ops.reduce_sum(ops.cast(is_below, c.dtype("out_type", i32)), -1)


@row("Bucketize")
def bucketize(c: Call, x: Node) -> Node:
    return movement.buckets_of(x, c.floats("boundaries"))


@row("ListDiff", results=("out", "idx"))
def list_difference(c: Call, x: Node, y: Node) -> Result:
    """The elements of x that are not in y, and their indices."""
    is_same = ops.compare("EQ", ops.expand_dims(x, 1), ops.expand_dims(y, 0))
    places = ops.reshape(c.walk.computed_sizes.places(ops.Not()(ops.reduce("or", is_same, -1))), (-1,))
    return [ops.Take(0)(x, places), ops.cast(places, c.dtype("out_idx", i32))]


@row("DynamicPartition")
def dynamic_partition(c: Call, x: Node, parts: Node) -> Result:
    rows = ops.reshape(x, (parts.type.size, *x.shape[parts.type.rank :]))
    line = ops.reshape(parts, (parts.type.size,))
    masks = (ops.compare("EQ", line, i) for i in range(c.int("num_partitions")))
    return [ops.Take(0)(rows, ops.reshape(c.walk.computed_sizes.places(on), (-1,))) for on in masks]
