"""Bounds of sizes from ops that need so many rows or elements.

    take(table[512, 768], iota[n])           ->   the same, and n <= 512
    take(table[512, 768], iota[n] + past)    ->   the same, and 512 - n - past is not negative
    top_k(x[n], 5)                           ->   the same, and n >= 5

A longer or shorter input is then refused by name. Without the bound, the table's last row would stand for all positions
beyond it, and what is no element of x be among the largest.

Branches and loops may not run. There the run looks whether it gets to such an op:

    take(x[n?], i)                           ->   the same, and a size of min(0, n? - 1), which must not be negative
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

from ingot import ops
from ingot.ir.dims import FOUND, Dim, DimLike, bounds, dim_min, narrowed, span_of, substitute, symbol, symbols_of
from ingot.ir.node import Graph, Node
from ingot.ir.types import i64
from ingot.ops.core.base import unsettled
from ingot.support.errors import ShapeError

_VIEWS = (ops.BroadcastInDim, ops.Reshape, ops.Transpose, ops.Convert)  # each has every value of its operand


def bound_sizes(graph: Graph, outer: frozenset[str] = frozenset()) -> Graph:
    """A bound, or a condition, for what each op needs (see module). Raises ShapeError where no size gives that.

    outer: the symbols of the graphs around a body."""
    graph = _with_empty(graph)
    limits = {name: (low, high) for name, low, high in graph.bounds}
    conditions = dict.fromkeys(graph.conditions)
    for n in graph.nodes():
        for room in _rooms(n):
            if not outer.isdisjoint(symbols_of(room)):
                continue
            least, most = bounds(room, limits)
            if least is not None and least >= 0:
                continue
            if most is not None and most < 0:
                expected, where = f"{room} >= 0", n.loc or None
                raise ShapeError(f"{n.op.name}: no size fits", expected=expected, got=f"{most} at most", where=where)
            bounded = narrowed(room, limits)
            if bounded is not None:
                limits = bounded
            else:
                conditions[room] = None
    found = tuple((name, low, high) for name, (low, high) in sorted(limits.items()))
    if found == graph.bounds and len(conditions) == len(graph.conditions):
        return graph
    return replace(graph, bounds=found, conditions=tuple(conditions))


def check_in_run(body: Graph, outer: frozenset[str]) -> Graph:
    """A size that the run finds to be negative where it gets to an op of `body` that lacks what it needs. outer: the
    symbols of the graphs around it."""
    rooms = [room for n in body.nodes() for room in unsettled(n) if not outer.isdisjoint(symbols_of(room))]
    least = reduce(dim_min, rooms, 0)
    if isinstance(least, int):
        return body
    size = f"{FOUND}elements_to_read{len(outer)}", 0
    return replace(body, outputs=(*body.outputs, ops.scalar(least, i64)), sizes=(*body.sizes, size))


def _with_empty(graph: Graph) -> Graph:
    """The graph with symbols that may be 0 where its bounds say so."""
    empty = {name: symbol(name, may_be_empty=True) for name, low, _ in graph.bounds if low == 0 and span_of(name)[0]}
    if all(substitute(d, empty) == d for n in graph.inputs for d in n.shape):
        return graph
    return replace(graph.substitute(empty), bounds=graph.bounds)


def _rooms(n: Node) -> Iterator[Dim]:
    """How many rows or elements are left beyond those that `n` surely needs."""
    if not n.op.computes:
        return
    yield from (d for t in n.types for d in t.shape if isinstance(d, Dim))
    yield from (d for d in (size for size, _ in n.op.constraints(*(x.type for x in n.inputs))) if isinstance(d, Dim))
    if isinstance(n.op, ops.Take):
        table, positions = n.inputs
        rows, last = table.shape[n.op.axis], _largest(positions)
        room = rows - 1 - last if isinstance(rows, int) and last is not None else None
        if isinstance(room, Dim):
            yield room


def _largest(n: Node) -> DimLike | None:
    """The largest of the values, where it is one for sure: what only may occur must not bound anything."""
    beyond: DimLike = 0
    while n.dtype.is_integer:
        if isinstance(n.op, ops.Iota):
            return n.shape[n.op.dimension] - 1 + beyond
        if isinstance(n.op, _VIEWS):
            n = n.inputs[0]
            continue
        found = _shifted(n) if isinstance(n.op, ops.Add) else None
        if found is None:
            last = _value(n)
            return None if last is None else last + beyond
        n, beyond = found[0], beyond + found[1]
    return None


def _shifted(n: Node) -> tuple[Node, DimLike] | None:
    """x + c as (x, c)."""
    a, b = n.inputs
    for x, shift in ((a, _value(b)), (b, _value(a))):
        if shift is not None:
            return x, shift
    return None


def _value(n: Node) -> DimLike | None:
    """The value that all elements have."""
    while isinstance(n.op, _VIEWS) and n.dtype.is_integer:
        n = n.inputs[0]
    if isinstance(n.op, ops.DimValue):
        return n.op.dim
    if n.constant is not None:
        return None if n.constant.splat is None else int(n.constant.splat)
    return None
