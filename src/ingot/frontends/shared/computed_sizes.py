"""Sizes that the program computes at run time: how many elements are not 0, how many are distinct."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from ingot import ops
from ingot.frontends.shared.composites.movement import with_shape
from ingot.ir.dims import COMPUTED_PREFIX, Dim, DimLike, is_negative, symbol
from ingot.ir.node import Graph, Node
from ingot.ir.types import i64

Sizes = dict[str, tuple[Node, DimLike]]


def with_sizes(graph: Graph, sizes: Sizes) -> Graph:
    """`graph` with the values of its sizes appended to its outputs."""
    values = tuple(node for node, _ in sizes.values())
    return replace(
        graph, outputs=(*graph.outputs, *values), sizes=tuple((name, max_size) for name, (_, max_size) in sizes.items())
    )


class ComputedSizes:
    """The run-time sizes of one graph: an i64 scalar and an upper bound for each.

    equal: values that some of them must have, by name, checked at run time; not for sizes inside branches and loops.
    """

    def __init__(self, equal: Mapping[str, DimLike] = MappingProxyType({})) -> None:
        self.sizes: Sizes = {}
        self._count = 0
        self._equal = equal
        self._depth = 0

    def size(self, count: Node, max_size: DimLike, what: str) -> DimLike:
        """The size whose value at run time is `count`. Equal nodes give one size."""
        for name, (node, _) in self.sizes.items():
            if node is count:
                return self._equal_size(name)
        name = f"{COMPUTED_PREFIX}{what}{self._count}"
        self._count += 1
        self.sizes[name] = count, max_size
        return self._equal_size(name)

    def _equal_size(self, name: str) -> DimLike:
        size = self._equal.get(name)
        if size is None or self._depth or is_negative(self.sizes[name][1] - size):
            return symbol(name)
        return size

    @contextmanager
    def inner_graph(self) -> Iterator[Sizes]:
        """Collect the sizes of an inner graph, which takes them from the yielded mapping."""
        outer, self.sizes = self.sizes, {}
        self._depth += 1
        try:
            yield self.sizes
        finally:
            self.sizes = outer
            self._depth -= 1

    def added(self, graph: Graph) -> Graph:
        """`graph` with the values of its sizes appended to its outputs, and their required values as conditions."""
        constraints: list[DimLike] = []
        for name, (_, max_size) in self.sizes.items():
            if (size := self._equal.get(name)) is not None:
                constraints += [size - symbol(name), symbol(name) - size, max_size - size]
        conditions = (*graph.conditions, *(d for d in constraints if isinstance(d, Dim)))
        return with_sizes(replace(graph, conditions=conditions), self.sizes)

    def true_places(self, mask: Node, what: str) -> Node:
        """i64[k]: flat indices of the true elements of a mask, in order."""
        flat, count = ops.true_indices(mask)
        return first(flat, 0, self.size(count, mask.type.size, what))

    def places(self, x: Node) -> Node:
        """i64[k, rank]: indices of the elements that are not 0, in order."""
        flat = self.true_places(ops.nonzero_mask(x), "places")
        if not x.shape:
            return ops.full((flat.shape[0], 0), 0, i64)
        return ops.stack(ops.coordinates(flat, x.shape), 1)

    def unique(self, x: Node) -> tuple[Node, Node, Node]:
        """The distinct elements of a vector in order of appearance, the index of each element of x among them, and
        their counts in x, both i64. NaN differs from itself."""
        (n,) = x.shape
        groups = ops.equal_rows(ops.reshape(x, (n, 1)), by_appearance=True)
        size = self.size(groups.count, n, "unique")
        first_indices, counts = (first(v, 0, size) for v in (groups.first, groups.counts))
        return ops.Take(0)(x, first_indices), groups.inverse, counts


def first(x: Node, axis: int, count: DimLike) -> Node:
    """The first `count` elements along an axis, which must have that many."""
    shape = tuple(count if a == axis else d for a, d in enumerate(x.shape))
    return with_shape(x, shape)
