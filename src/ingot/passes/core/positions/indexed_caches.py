"""Attention of few queries reads keys and values where they are stored, instead of copies of them in order.

attention(q, gather(k, at), gather(v, at))  ->  attention<indexed>(q, k, v, at)

A sequence of a language model's engine has its keys and values in pages of a pool: `at` is where its table of pages
says that each position is. Many queries read each key many times: for them the copies stay.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import Rule, rewrite, rules
from ingot.ir.types import i64
from ingot.passes.core.dtypes.narrow_products import MAX_QUERIES


def indexed_caches(graph: Graph) -> Graph:
    """Return the graph with attention of few queries reading what is gathered along its keys by itself (see module)."""

    def indexed(n: Node) -> Node | None:
        op, q = n.op, n.inputs[0]
        assert isinstance(op, ops.Attention)
        if op.indexed or not isinstance(q.shape[2], int) or q.shape[2] > MAX_QUERIES:
            return None
        rows = [_gathered_keys(x) for x in (*n.inputs[1:3], *op.scales(n.inputs))]
        sources, positions = [row[0] for row in rows if row], {row[1] for row in rows if row}
        if len(sources) != len(rows) or len(positions) != 1:
            return None
        keys, values, *scales = sources
        operands = (q, keys, values, *op.mask(n.inputs), *scales, ops.cast(positions.pop(), i64))
        return replace(op, indexed=True)(*operands, loc=n.loc)

    return rewrite(graph, rules(Rule("indexed-cache", ops.Attention, indexed)))


def _gathered_keys(n: Node) -> tuple[Node, Node] | None:
    """([B,H,R,D], the positions of its axis 2, [S]) of which n[B,H,S,D] is a gather, maybe with B = 1 added behind."""
    if isinstance(n.op, ops.Reshape) and n.shape == (1, *n.inputs[0].shape):
        gathered = _gathered(n.inputs[0], 1)
        return gathered and (ops.expand_dims(gathered[0], 0), gathered[1])
    return _gathered(n, 2)


def _gathered(n: Node, axis: int) -> tuple[Node, Node] | None:
    """(x, indices) of which `n` is x's elements at indices[S] along an axis."""
    if not isinstance(n.op, ops.Gather) or n.shape[axis] != n.inputs[1].shape[0]:
        return None
    x, at = n.inputs
    is_vector = at.shape in ((n.shape[axis],), (n.shape[axis], 1))
    kept_dims = tuple(d for d in range(n.type.rank) if d != axis)
    slice_sizes = tuple(1 if d == axis else size for d, size in enumerate(x.shape))
    dims = n.op.offset_dims, n.op.collapsed_slice_dims, n.op.start_index_map, n.op.operand_batching_dims
    if not is_vector or dims != (kept_dims, (axis,), (axis,), ()) or n.op.slice_sizes != slice_sizes:
        return None
    return x, ops.reshape(at, (n.shape[axis],))


__all__ = ["indexed_caches"]
