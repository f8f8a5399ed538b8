"""Attention whose gradients are taken keeps what they read, and is stored as the projections around it read it.

    y = attention(q, k, v)                           y, sums = attention_with_sums(q, k, v)
    attention_gradients(q, k, v, g)            ->    attention_gradients(q, k, v, g, y, sums)

    y, sums = attention_with_sums(q, k, v)     ->    y, sums = attention_with_sums{by_row}(q, k, v), transpose(y)

    y, sums = attention_with_sums(q, k, v)     ->    y = attention(q, k, v)       where nothing reads the sums

A graph of the gradients alone computes y and sums again, unless it has them among its operands.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import Rule, RuleSet, replace_nodes, rewrite

_HEADS_FIRST = ops.Transpose((0, 2, 1, 3))


def keep_attention_sums(graph: Graph) -> Graph:
    """attention, attention_gradients -> attention_with_sums, attention_gradients of its results (see module)"""
    gradients = [n for n in graph.nodes() if isinstance(n.op, ops.AttentionGradients)]
    lacks_sums = not all(_has_sums(n) for n in gradients)
    if not lacks_sums:
        graph = _without_unread_sums(graph)
    rules = (
        Rule("gradients-of-sums", ops.AttentionGradients, _of_sums),
        Rule("gradients-by-row", ops.AttentionGradients, _by_row),
        Rule("sums-by-row", ops.AttentionWithSums, _by_row),
        *((Rule("attention-with-sums", ops.Attention, _with_sums),) if lacks_sums else ()),
    )
    return rewrite(graph, RuleSet(rules))


def _has_sums(n: Node) -> bool:
    assert isinstance(n.op, ops.AttentionGradients)
    return n.op.has_sums(n.inputs)


def _without_unread_sums(graph: Graph) -> Graph:
    users, replacements = graph.uses(), dict[Node, Node]()
    for n in graph.nodes():
        op = n.op
        if not isinstance(op, ops.AttentionWithSums) or op.by_row or op.dropout:
            continue
        y, sums = n.results
        if not users.get(sums) and sums not in graph.outputs:
            replacements[y] = op.forward(*n.inputs, loc=n.loc)
    return replace_nodes(graph, replacements)


def _with_sums(n: Node) -> Node:
    op = n.op
    assert isinstance(op, ops.Attention)
    return ops.AttentionWithSums(op.causal, op.scale, op.softcap, op.guarded)(*n.inputs, loc=n.loc).results[0]


def _of_sums(n: Node) -> Node | None:
    op = n.op
    assert isinstance(op, ops.AttentionGradients)
    if op.has_sums(n.inputs):
        return None
    q, k, v, g, *others = n.inputs
    return op(q, k, v, g, *op.forward_with_sums(q, k, v, *others, loc=n.loc).results, *others, loc=n.loc)


def _by_row(n: Node) -> tuple[Node, ...] | None:
    op = n.op
    assert isinstance(op, ops.AttentionWithSums | ops.AttentionGradients)
    if op.by_row:
        return None
    results = replace(op, by_row=True)(*n.inputs, loc=n.loc).results
    return tuple(_HEADS_FIRST(x, loc=n.loc) if len(x.shape) == 4 else x for x in results)


__all__ = ["keep_attention_sums"]
