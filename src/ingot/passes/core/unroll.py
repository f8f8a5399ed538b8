"""Unroll loops with a constant trip count, and compute all branches.

while(i < 2, (i, x) -> (i + 1, f(x, i)))(0, x)   ->   (2, f(f(x, 0), 1))
case(i, x -> f(x), x -> g(x))                    ->   select(i == 0, f(x), g(x))
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.node import Graph, Node, const, topological
from ingot.ir.rewrite import Result, Rule, rewrite, rules
from ingot.ir.types import boolean
from ingot.passes.constants import results_of
from ingot.support.limits import check_time

MAX_ROUNDS = 1024
MAX_NODES = 1 << 16  # of an unrolled loop
_MAX_FOLDED_BYTES = 4096  # of a value folded while unrolling, such as a counter or a position


def unroll(graph: Graph) -> Graph:
    """See the module's docstring. Dynamic slices at constant positions then become static ones. A loop whose condition
    is not constant, or of more than MAX_ROUNDS iterations or MAX_NODES nodes, is left as it is."""
    return rewrite(
        graph,
        rules(
            Rule("unroll", ops.While, _unroll_loop),
            Rule("branches", ops.Case, _select_branch),
            Rule("slice", ops.DynamicSlice, _static_slice),
            Rule("update", ops.DynamicUpdateSlice, _static_update),
        ),
        mandatory=True,
    )


def _unroll_loop(n: Node) -> Result | None:
    op = n.op
    assert isinstance(op, ops.While)
    values: Sequence[Node] = n.inputs
    size = len(topological(op.cond.outputs)) + len(topological(op.body.outputs))
    for _ in range(min(MAX_ROUNDS, MAX_NODES // size) + 1):
        check_time("unrolling")
        (condition,) = _inline(op.cond, values)
        if condition.constant is None:
            return None
        if not condition.constant.value:
            return values[0] if len(values) == 1 else tuple(values)
        values = _inline(op.body, values)
    return None


def _select_branch(n: Node) -> Result:
    op, (index, *operands) = n.op, n.inputs
    assert isinstance(op, ops.Case)
    *others, chosen = (_inline(branch, operands) for branch in op.branches)
    for i, values in reversed([*enumerate(others)]):
        is_chosen = _equals(index, i)
        chosen = [ops.where(is_chosen, a, b) for a, b in zip(values, chosen, strict=True)]
    return chosen[0] if len(chosen) == 1 else tuple(chosen)


def _equals(index: Node, i: int) -> Node:
    """Whether index == i; of a condition, itself or its negation."""
    (condition, *_) = index.inputs or (index,)
    if isinstance(index.op, ops.Convert) and condition.dtype == boolean and i in (0, 1):
        return condition if i else ops.Not()(condition)
    return ops.Compare("EQ")(index, const(i, index.dtype.numpy))


def _inline(graph: Graph, values: Sequence[Node]) -> list[Node]:
    """The results of a graph for these inputs, with small constants folded, except for weights in levels."""
    images = dict(zip(graph.inputs, values, strict=True))
    for n in topological(graph.outputs):
        if n not in images:
            images[n] = _fold_small(n.with_inputs([images[x] for x in n.inputs]))
    return [images[y] for y in graph.results]


def _fold_small(n: Node) -> Node:
    is_known = len(n.types) == 1 and n.inputs and all(x.constant is not None for x in n.inputs)
    size = n.types[0].nbytes
    is_kept = n.op.bodies or isinstance(n.op, ops.WEIGHT_FORMS)
    if not is_known or is_kept or not isinstance(size, int) or size > _MAX_FOLDED_BYTES:
        return n
    return const(results_of(n)[0], loc=n.loc)


def _constant_starts(n: Node, sizes: Sequence[object], starts: Sequence[Node]) -> list[int] | None:
    """Constant start positions, clamped to the bounds of the node's first operand; None if one is not constant."""
    shape = n.inputs[0].shape
    if not all(isinstance(d, int) for d in (*sizes, *shape)) or any(s.constant is None for s in starts):
        return None
    positions: list[int] = []
    for start, d, size in zip(starts, shape, sizes, strict=True):
        assert start.constant is not None and isinstance(d, int) and isinstance(size, int)
        positions.append(min(max(int(start.constant.value), 0), d - size))
    return positions


def _static_slice(n: Node) -> Node | None:
    op, (x, *starts) = n.op, n.inputs
    assert isinstance(op, ops.DynamicSlice)
    positions = _constant_starts(n, op.sizes, starts)
    if positions is None:
        return None
    ends = tuple(a + size for a, size in zip(positions, op.sizes, strict=True))
    return ops.Slice(tuple(positions), ends, (1,) * len(positions))(x)


def _static_update(n: Node) -> Node | None:
    """x with a slice replaced   ->   concat(x before, update, x after), axis by axis"""
    x, update, *starts = n.inputs
    positions = _constant_starts(n, update.shape, starts)
    return None if positions is None else _concat_update(x, update, positions, 0)


def _concat_update(x: Node, update: Node, positions: Sequence[int], axis: int) -> Node:
    if axis == len(positions):
        return update
    start, size = positions[axis], update.shape[axis]
    end = start + size
    inner = _concat_update(ops.slice_axis(x, axis, start, end), update, positions, axis + 1)
    parts = [ops.slice_axis(x, axis, 0, start), inner, ops.slice_axis(x, axis, end, x.shape[axis])]
    parts = [p for p in parts if p.shape[axis] != 0] or [inner]
    return parts[0] if len(parts) == 1 else ops.concat(parts, axis)
