"""What the type rules of a graph's ops assume of its sizes, as conditions that a call checks.

gather_elements(x[p,5], at[q,5]) along axis 1      ->      conditions: p - q >= 0
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingot.ir.dims import Dim, DimLike, bounds, symbols_of
from ingot.ir.node import Graph


def constrained(graph: Graph) -> Graph:
    """The graph with conditions for what its bounds do not settle: constraints of ops, and sizes of results.

    The ops of graphs inside count, whether or not a run comes there.
    """
    limits = {name: (low, high) for name, low, high in graph.bounds}
    known, symbols = set[DimLike](graph.conditions), set(graph.symbols())
    conditions = list(graph.conditions)
    for size in _constraints(graph):
        if size in known:
            continue
        known.add(size)
        if isinstance(size, Dim) and symbols_of(size) <= symbols:
            lowest = bounds(size, limits)[0]
            implied = (isinstance(more := size - c, int) and more >= 0 for c in conditions)
            if (lowest is None or lowest < 0) and not any(implied):
                conditions.append(size)
    return replace(graph, conditions=tuple(conditions)) if len(conditions) > len(graph.conditions) else graph


def _constraints(graph: Graph) -> Iterator[DimLike]:
    for n in graph.nodes():
        for size, _ in n.op.constraints(*(i.type for i in n.inputs)) if n.op.computes else ():
            yield size
        for t in n.types:
            yield from t.shape
        for body in n.op.bodies:
            yield from _constraints(body)
