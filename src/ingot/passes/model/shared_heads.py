"""Keys and values that are repeated for groups of query heads are read once, and their gradients added up where they
are computed.

    attention(q, repeat(k), repeat(v))                                ->   attention(q, k, v)

    dq, dk, dv = attention_gradients(q, repeat(k), repeat(v), g)      ->   dq, dk, dv = attention_gradients(q, k, v, g)
    sum of groups(dk), sum of groups(dv)                                   dk, dv
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import Result, Rule, replace_nodes
from ingot.ir.types import Shape

_HEADS, _GROUP = 1, 2  # axes of keys, and of heads split into groups


def _ungrouped_attention(n: Node) -> Result | None:
    """attention with keys and values repeated for groups of query heads -> attention without"""
    q, k, v, *mask = n.inputs
    shared = without_repeats(k, v)
    if shared == (k, v) or not divides(shared[0].shape[_HEADS], q.shape[_HEADS]):
        return None
    result = n.op(q, *shared, *mask, loc=n.loc)
    return result.results if len(n.types) > 1 else result


SHARED_HEADS = tuple(Rule("shared-heads", op, _ungrouped_attention) for op in (ops.Attention, ops.AttentionWithSums))


def share_gradients(graph: Graph) -> Graph:
    """Gradients of repeated keys and values of which only sums over groups are read -> gradients of what is repeated"""
    users, outputs, replacements = graph.uses(), set(graph.outputs), dict[Node, Node]()

    def group_sums(gradient: Node, shape: Shape) -> list[Node] | None:
        """The sums of a gradient over the members of each group; None if something else reads it."""
        batch, heads, *rest = shape
        sums, values = list[Node](), [gradient]
        for x in values:  # grows in the loop
            if x in outputs:
                return None
            for u in users.get(x, ()):
                splits = isinstance(u.op, ops.Reshape) and x.type.rank == 4 and u.type.rank == 5
                is_split = x.type.rank == 5 and x.shape == (batch, heads, x.shape[_GROUP], *rest)
                if splits or (isinstance(u.op, ops.Convert) and u.dtype.is_float):
                    values.append(u)
                elif is_split and isinstance(u.op, ops.Reduce) and (u.op.kind, u.op.reduced) == ("sum", (_GROUP,)):
                    sums.append(u)
                else:
                    return None
        return sums

    for n in graph.nodes():
        if not isinstance(n.op, ops.AttentionGradients) or n.op.by_row:
            continue
        q, k, v, *others = n.inputs
        shared = without_repeats(k, v)
        if shared == (k, v) or not divides(shared[0].shape[_HEADS], q.shape[_HEADS]):
            continue
        dq, *repeated = n.results
        sums = [group_sums(x, y.shape) for x, y in zip(repeated, shared, strict=True)]
        if None in sums:
            continue
        new_dq, *gradients = n.op(q, *shared, *others, loc=n.loc).results
        replacements[dq] = new_dq
        for x, found in zip(gradients, sums, strict=True):
            replacements |= {s: ops.reshape(ops.cast(x, s.dtype), s.shape) for s in found or ()}
    return replace_nodes(graph, replacements)


def divides(heads: DimLike, queries: DimLike) -> bool:
    if heads == queries:
        return True
    return isinstance(heads, int) and isinstance(queries, int) and heads > 0 and queries % heads == 0


def without_repeats(k: Node, v: Node) -> tuple[Node, Node]:
    """Keys and values before they were repeated for the query heads of their group."""
    a, b = _unrepeat(k), _unrepeat(v)
    if a is None or b is None or a.shape[_HEADS] != b.shape[_HEADS]:
        return k, v
    return a, b


def _unrepeat(x: Node) -> Node | None:
    """reshape[B,H*r,S,D](broadcast[B,H,r,S,D](y[B,H,1,S,D])) -> y[B,H,S,D]"""
    if not isinstance(x.op, ops.Reshape) or not isinstance(x.inputs[0].op, ops.BroadcastInDim):
        return None
    wide = x.inputs[0]
    op = wide.op
    assert isinstance(op, ops.BroadcastInDim)
    if wide.type.rank != 5 or x.type.rank != 4:
        return None
    batch, heads, _, length, depth = wide.shape
    if x.shape[0] != batch or x.shape[2:] != (length, depth):
        return None
    (y,) = wide.inputs
    if op.dims == (0, 1, 3, 4):
        return y if y.shape == (batch, heads, length, depth) else None
    if op.dims == (0, 1, 2, 3, 4) and y.shape == (batch, heads, 1, length, depth):
        return ops.Reshape((batch, heads, length, depth))(y)
    return None


__all__ = ["SHARED_HEADS", "divides", "share_gradients", "without_repeats"]
