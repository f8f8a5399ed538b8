"""Bounds and conditions of a program from what its ops need of sizes.

    take(table[512, 768], iota[n])           ->   the same, and n <= 512
    take(table[512, 768], iota[n] + past)    ->   the same, and 512 - n - past >= 0
    top_k(x[n], 5)                           ->   the same, and n >= 5
    gather_elements(x[p,5], at[q,5])         ->   the same, and p - q >= 0

An op needs that some sizes, its margins, are not negative: its constraints (`Op.constraints`), the sizes of its
results, and the rows of a table beyond the largest position. A margin that the bounds of symbols do not settle narrows
the bounds of its symbol, or becomes a condition of the graph. A call with other sizes is refused; without that, kernels
would read beyond their operands.

The body of a branch or loop may not run. There the run itself checks the constraints of an op when it gets to it:

    take(x[n?], i)                           ->   the same, and a size of min(0, n? - 1), which must not be negative

Kernels do not check views, and sizes of results are buffers: even in a body, what these need is a condition of the
call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

from ingot import ops
from ingot.ir.dims import (
    COMPUTED_PREFIX,
    Dim,
    DimLike,
    Interval,
    bounds,
    default_bounds,
    dim_min,
    narrow_bounds,
    substitute,
    symbol,
    symbols_of,
)
from ingot.ir.node import Graph, Node
from ingot.ir.types import i64
from ingot.ops.core.base import Category, category, violable_constraints
from ingot.support.errors import ImportModelError

_VIEWS = (ops.BroadcastInDim, ops.Reshape, ops.Transpose, ops.Convert)  # each holds every value of its operand


def bound_sizes(graph: Graph, outer: frozenset[str] = frozenset()) -> Graph:
    """Return the graph with bounds and conditions for the margins of its ops (see module).

    outer: the symbols of the graphs around a body. Raises ImportModelError where a margin is negative for all sizes: no
    sizes suit all ops of the model.
    """
    graph = _with_empty(graph)
    limits = {name: (low, high) for name, low, high in graph.bounds}
    conditions = dict.fromkeys(graph.conditions)
    for n, margin in _margins(graph):
        if not outer.isdisjoint(symbols_of(margin)):
            continue
        low, high = bounds(margin, limits)
        if low is not None and low >= 0:
            continue
        if high is not None and high < 0:
            expected, where = f"{margin} >= 0", n.loc or None
            raise ImportModelError(f"{n.op.name}: no size fits", expected=expected, got=f"{high} at most", where=where)
        narrowed_limits = narrow_bounds(margin, limits)
        if narrowed_limits is not None:
            limits = narrowed_limits
        elif not any(isinstance(rest := margin - c, int) and rest >= 0 for c in conditions):
            conditions[margin] = None
    new_bounds = tuple((name, low, high) for name, (low, high) in sorted(limits.items()))
    if new_bounds == graph.bounds and len(conditions) == len(graph.conditions):
        return graph
    return replace(graph, bounds=new_bounds, conditions=tuple(conditions))


def check_in_run(body: Graph, outer: frozenset[str], limits: Mapping[str, Interval] = MappingProxyType({})) -> Graph:
    """Return `body` with a size that is negative where one of its ops lacks what it needs: the run then ends there.

    outer: the symbols of the graphs around the body. limits: the bounds of those that a call tells.
    """
    margins = [
        margin
        for n in body.nodes()
        for margin in violable_constraints(n)
        if not outer.isdisjoint(symbols_of(margin))
        and not ((low := bounds(margin, limits)[0]) is not None and low >= 0)
    ]
    smallest = reduce(dim_min, margins, 0)
    if isinstance(smallest, int):
        return body
    size = f"{COMPUTED_PREFIX}elements_to_read{len(outer)}", 0
    return replace(body, outputs=(*body.outputs, ops.scalar(smallest, i64)), sizes=(*body.sizes, size))


def _with_empty(graph: Graph) -> Graph:
    """The graph with symbols that may be 0 where its bounds say so."""
    empty = {
        name: symbol(name, may_be_empty=True) for name, low, _ in graph.bounds if low == 0 and default_bounds(name)[0]
    }
    if all(substitute(d, empty) == d for n in graph.inputs for d in n.shape):
        return graph
    return replace(graph.substitute(empty), bounds=graph.bounds)


def _margins(graph: Graph) -> Iterator[tuple[Node, Dim]]:
    """The symbolic margins of the ops of `graph`, and of its bodies those that the run does not check."""
    symbols = frozenset(graph.symbols())
    for n in graph.nodes():
        sizes = (*_result_sizes(n), *_constraints(n), *_table_rows(n))
        yield from ((n, d) for d in sizes if isinstance(d, Dim))
        for body in n.op.bodies:
            yield from ((m, d) for m, d in _unchecked_margins(body) if symbols_of(d) <= symbols)


def _unchecked_margins(body: Graph) -> Iterator[tuple[Node, Dim]]:
    for n in body.nodes():
        sizes = (*_result_sizes(n), *(_constraints(n) if category(n.op) is Category.VIEW else ()))
        yield from ((n, d) for d in sizes if isinstance(d, Dim))
        for inner in n.op.bodies:
            yield from _unchecked_margins(inner)


def _result_sizes(n: Node) -> Iterator[DimLike]:
    return (d for t in n.types for d in t.shape) if n.op.computes else iter(())


def _constraints(n: Node) -> Iterator[DimLike]:
    return (size for size, _ in n.op.constraints(*(x.type for x in n.inputs))) if n.op.computes else iter(())


def _table_rows(n: Node) -> Iterator[DimLike]:
    """The rows of a table of fixed size beyond the last one that `n` surely reads."""
    if isinstance(n.op, ops.Take):
        table, positions = n.inputs
        rows, last = table.shape[n.op.axis], _largest(positions)
        if isinstance(rows, int) and last is not None:
            yield rows - 1 - last


def _largest(n: Node) -> DimLike | None:
    """The largest element of `n`; None if it is not certain that the element occurs."""
    shift: DimLike = 0
    while n.dtype.is_integer:
        if isinstance(n.op, ops.Iota):
            return n.shape[n.op.dimension] - 1 + shift
        if isinstance(n.op, _VIEWS):
            n = n.inputs[0]
            continue
        shifted = _shifted(n) if isinstance(n.op, ops.Add) else None
        if shifted is None:
            value = _value(n)
            return None if value is None else value + shift
        n, shift = shifted[0], shift + shifted[1]
    return None


def _shifted(n: Node) -> tuple[Node, DimLike] | None:
    """(x, c) of an addition x + c."""
    a, b = n.inputs
    for x, shift in ((a, _value(b)), (b, _value(a))):
        if shift is not None:
            return x, shift
    return None


def _value(n: Node) -> DimLike | None:
    """The value of all elements of `n`, None where they differ or are not known."""
    while isinstance(n.op, _VIEWS) and n.dtype.is_integer:
        n = n.inputs[0]
    if isinstance(n.op, ops.DimValue):
        return n.op.dim
    if n.constant is not None:
        return None if n.constant.splat is None else int(n.constant.splat)
    return None
