"""Bounds of sizes from tables whose rows positions select.

    take(table[512, 768], iota[n])           ->   the same, and n <= 512
    take(table[512, 768], iota[n] + past)    ->   the same, and 512 - n - past is not negative

A longer input is then refused by name. Without the bound, the table's last row would stand for all positions beyond it.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.dims import Dim, DimLike, bounds, narrowed
from ingot.ir.node import Const, Graph, Node
from ingot.support.errors import ShapeError

_VIEWS = (ops.BroadcastInDim, ops.Reshape, ops.Transpose, ops.Convert)  # each has every value of its operand


def bound_positions(graph: Graph) -> Graph:
    """take(table[rows], positions) with a largest position p(n) -> a bound of n by which p(n) < rows, or a condition"""
    limits = {name: (low, high) for name, low, high in graph.bounds}
    conditions = dict.fromkeys(graph.conditions)
    for n in graph.nodes():
        if not isinstance(n.op, ops.Take):
            continue
        table, positions = n.inputs
        rows, last = table.shape[n.op.axis], _largest(positions)
        if not isinstance(rows, int) or not isinstance(last, Dim):
            continue
        room = rows - 1 - last
        most = bounds(room, limits)[1]
        if most is not None and most < 0:
            raise ShapeError(f"positions in a table of {rows} rows", expected=f"{last} < {rows}", where=n.loc or None)
        bounded = narrowed(room, limits)
        if bounded is not None:
            limits = bounded
        elif isinstance(room, Dim):
            conditions[room] = None
    found = tuple((name, low, high) for name, (low, high) in sorted(limits.items()))
    if found == graph.bounds and len(conditions) == len(graph.conditions):
        return graph
    return replace(graph, bounds=found, conditions=tuple(conditions))


def _largest(n: Node) -> DimLike | None:
    """The largest of the values, where it is one for sure: what only may occur must not bound anything."""
    if not n.dtype.is_integer:
        return None
    if isinstance(n.op, ops.Iota):
        return n.shape[n.op.dimension] - 1
    if isinstance(n.op, _VIEWS):
        return _largest(n.inputs[0])
    if isinstance(n.op, ops.Add):
        a, b = n.inputs
        for x, shift in ((a, _value(b)), (b, _value(a))):
            last = None if shift is None else _largest(x)
            if last is not None and shift is not None:
                return last + shift
    return _value(n)


def _value(n: Node) -> DimLike | None:
    """The value that all elements have."""
    if isinstance(n.op, ops.DimValue):
        return n.op.dim
    if isinstance(n.op, Const):
        return None if n.op.array.splat is None else int(n.op.array.splat)
    if isinstance(n.op, _VIEWS) and n.dtype.is_integer:
        return _value(n.inputs[0])
    return None
