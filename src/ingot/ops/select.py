"""Selections of data-dependent size by ops of fixed size: the selected elements come first, and their count is a value.

    x[mask]      =   take(x, places[:count])        places, count = true_places(mask)

Elements after the first `count` are unspecified; a slice removes them, for which `Graph.sizes` makes `count` a size.
"""

from __future__ import annotations

import numpy as np

from ingot.ir.dims import DimLike, product
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, boolean, i64
from ingot.ops import build as b
from ingot.ops.core.control import While
from ingot.ops.core.dynamic_slice import DynamicSlice
from ingot.ops.core.elementwise import IsNan, Not
from ingot.ops.core.indexing import Scatter, Sort
from ingot.ops.nn.index import Take
from ingot.support.dataclass import dataclass

_MAX_SORT_KEYS = 8  # with more columns, rows are sorted by one column after the other


def nonzero_mask(x: Node) -> Node:
    """Whether each element differs from 0, as NaN does."""
    return x if x.dtype == boolean else b.compare("NE", x, b.scalar(0, x.dtype))


def scatter_unique(indices: Node, values: Node, size: DimLike) -> Node:
    """[size] zeros with values[i] at indices[i]. Indices below `size` are distinct; others are dropped."""
    return Scatter("set", (), (0,), (), (), (0,), 1, unique=True)(b.full((size,), 0, values.dtype), indices, values)


def true_indices(mask: Node) -> tuple[Node, Node]:
    """(i64[size], i64[]): the flat indices of the true elements, ascending, then zeros; the number of true elements."""
    flat = b.reshape(mask, (product(mask.shape),))
    (size,) = flat.shape
    ones = b.cast(flat, i64)
    rank = b.where(flat, b.sub(b.cumulative("sum", ones, 0), 1), b.scalar(size, i64))
    return scatter_unique(rank, b.arange(size), size), b.reduce_sum(ones)


def coordinates(indices: Node, shape: tuple[DimLike, ...]) -> list[Node]:
    """The flat indices `indices` into `shape` as one index for each axis."""
    out: list[Node] = []
    for axis in reversed(range(len(shape))):
        # empty axes have no coordinates; maximum avoids a division by zero
        size = shape[axis]
        out.append(b.floor_mod(indices, b.maximum(b.scalar(size, i64), 1)) if axis else indices)
        indices = b.div(indices, b.maximum(b.scalar(size, i64), 1))
    return out[::-1]


@dataclass(frozen=True)
class Groups:
    """The groups of equal rows of x[n, ...]; only the first `count` elements of first and counts are valid.

    first: the index of the first row of each group, i64[n]. counts: the number of rows of each group, i64[n].
    inverse: the group of each row of x, i64[n]. count: the number of groups, i64[].
    """

    first: Node
    counts: Node
    inverse: Node
    count: Node


def equal_rows(x: Node, *, ordered: bool = True, nan_equal: bool = False, by_appearance: bool = False) -> Groups:
    """The groups of equal rows of x[n, m].

    ordered: group all equal rows, in lexicographic order (NaN last); else only runs of equal neighbors. nan_equal: NaN
    equals NaN. by_appearance: order the groups by their first rows instead.
    """
    n = x.shape[0]
    index = b.arange(n)
    order = row_order(x) if ordered else index
    sorted_rows = Take(0)(x, order) if ordered else x
    previous_rows = Take(0)(sorted_rows, b.maximum(b.sub(index, 1), 0))
    differs = b.compare("NE", sorted_rows, previous_rows)
    if nan_equal and x.dtype.is_float:
        both_nan = b.and_(IsNan()(sorted_rows), IsNan()(previous_rows))
        differs = b.and_(differs, Not()(both_nan))
    is_first = b.or_(b.compare("EQ", index, 0), b.reduce("or", differs, 1))
    group = b.sub(b.cumulative("sum", b.cast(is_first, i64), 0), 1)
    starts, count = true_indices(is_first)
    ends = b.where(b.compare("LT", b.add(index, 1), count), _next(starts, index, n), b.scalar(n, i64))
    first, counts = Take(0)(order, starts), b.sub(ends, starts)
    inverse = scatter_unique(order, group, n) if ordered else group
    if by_appearance:
        keys = b.where(b.compare("LT", index, count), first, b.scalar(n, i64))
        group_order = Sort(0)(keys, index).results[1]
        first, counts = Take(0)(first, group_order), Take(0)(counts, group_order)
        inverse = Take(0)(scatter_unique(group_order, index, n), inverse)
    return Groups(first, counts, inverse, count)


def _next(x: Node, index: Node, n: DimLike) -> Node:
    """x[index + 1], clamped to the last element."""
    return Take(0)(x, b.minimum(b.add(index, 1), b.sub(b.scalar(n, i64), 1)))


def row_order(x: Node) -> Node:
    """i64[n]: the order that sorts the rows of x[n, m] lexicographically, stable."""
    n, m = x.shape
    index = b.arange(n)
    if isinstance(m, int) and m <= _MAX_SORT_KEYS:
        keys = [b.index_axis(x, 1, j) for j in range(m)] or [index]
        return Sort(0, False, True, len(keys))(*keys, index).results[len(keys)]
    # sort by the last column first: stable sorts by earlier columns keep that order among equals
    column, order = Input("column", TensorType(i64))(), Input("order", TensorType(i64, (n,)))()
    rows = Input("rows", x.type)()
    key = b.reshape(DynamicSlice((n, 1))(rows, const(np.int64(0)), column), (n,))
    next_order = Take(0)(order, Sort(0)(Take(0)(key, order), index).results[1])
    state = (column, order, rows)
    body = Graph(state, (b.sub(column, 1), next_order, rows))
    loop = While(Graph(state, (b.compare("GE", column, 0),)), body)
    return loop(b.scalar(m - 1, i64), index, x).results[1]


def repeat_indices(repeats: Node, total: DimLike) -> Node:
    """i64[total]: each index i repeated repeats[i] times, ascending; `total` is the sum of repeats[n]."""
    (n,) = repeats.shape
    counts = b.cast(repeats, i64)
    ends = b.cumulative("sum", counts, 0)
    # add 1 where each run but the last ends; empty runs end at the same position
    increments = Scatter("add", (), (0,), (), (), (0,), 1)(b.full((total,), 0, i64), ends, b.full((n,), 1, i64))
    return b.cumulative("sum", increments, 0)
