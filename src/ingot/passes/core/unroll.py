"""Unroll loops whose number of rounds follows from constants.

while(i < 2, (i, x) -> (i + 1, f(x, i)))(0, x)   ->   (2, f(f(x, 0), 1))
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.node import Graph, Node, const, topological
from ingot.ir.rewrite import Result, Rule, rewrite, rules
from ingot.passes.constants import results_of
from ingot.support.limits import check_time

MAX_ROUNDS = 1024
MAX_NODES = 1 << 16  # of an unrolled loop
_MAX_FOLDED_BYTES = 4096  # of a value that is computed while unrolling: counters, positions


def unroll(graph: Graph) -> Graph:
    """See the module's docstring. Slices at positions that are constants then become plain ones. A loop whose condition
    depends on values, or of more than MAX_ROUNDS rounds or MAX_NODES nodes, stays."""
    return rewrite(
        graph,
        rules(
            Rule("unroll", ops.While, _unrolled),
            Rule("slice", ops.DynamicSlice, _sliced),
            Rule("update", ops.DynamicUpdateSlice, _updated),
        ),
        mandatory=True,
    )


def _unrolled(n: Node) -> Result | None:
    op = n.op
    assert isinstance(op, ops.While)
    values: Sequence[Node] = n.inputs
    size = len(topological(op.cond.outputs)) + len(topological(op.body.outputs))
    for _ in range(min(MAX_ROUNDS, MAX_NODES // size) + 1):
        check_time("unrolling")
        (goes_on,) = _inlined(op.cond, values)
        if goes_on.constant is None:
            return None
        if not goes_on.constant.value:
            return values[0] if len(values) == 1 else tuple(values)
        values = _inlined(op.body, values)
    return None


def _inlined(graph: Graph, values: Sequence[Node]) -> list[Node]:
    """The results for these values; small ones of constants are constants."""
    images = dict(zip(graph.inputs, values, strict=True))
    for n in topological(graph.outputs):
        if n not in images:
            images[n] = _folded(n.with_inputs([images[x] for x in n.inputs]))
    return [images[y] for y in graph.results]


def _folded(n: Node) -> Node:
    is_known = len(n.types) == 1 and n.inputs and all(x.constant is not None for x in n.inputs)
    size = n.types[0].nbytes
    if not is_known or n.op.bodies or not isinstance(size, int) or size > _MAX_FOLDED_BYTES:
        return n
    return const(results_of(n)[0], loc=n.loc)


def _starts(n: Node, sizes: Sequence[object], starts: Sequence[Node]) -> list[int] | None:
    """Constant positions, clamped into the node's first operand."""
    shape = n.inputs[0].shape
    if not all(isinstance(d, int) for d in (*sizes, *shape)) or any(s.constant is None for s in starts):
        return None
    found: list[int] = []
    for start, d, size in zip(starts, shape, sizes, strict=True):
        assert start.constant is not None and isinstance(d, int) and isinstance(size, int)
        found.append(min(max(int(start.constant.value), 0), d - size))
    return found


def _sliced(n: Node) -> Node | None:
    op, (x, *starts) = n.op, n.inputs
    assert isinstance(op, ops.DynamicSlice)
    at = _starts(n, op.sizes, starts)
    if at is None:
        return None
    ends = tuple(a + size for a, size in zip(at, op.sizes, strict=True))
    return ops.Slice(tuple(at), ends, (1,) * len(at))(x)


def _updated(n: Node) -> Node | None:
    """x with a slice replaced   ->   concat(x before, update, x behind), axis by axis"""
    x, update, *starts = n.inputs
    at = _starts(n, update.shape, starts)
    return None if at is None else _replaced(x, update, at, 0)


def _replaced(x: Node, update: Node, at: Sequence[int], axis: int) -> Node:
    if axis == len(at):
        return update
    start, size = at[axis], update.shape[axis]
    end = start + size
    inner = _replaced(ops.slice_axis(x, axis, start, end), update, at, axis + 1)
    parts = [ops.slice_axis(x, axis, 0, start), inner, ops.slice_axis(x, axis, end, x.shape[axis])]
    parts = [p for p in parts if p.shape[axis] != 0] or [inner]
    return parts[0] if len(parts) == 1 else ops.concat(parts, axis)
