"""Selections whose size only the run knows, in ops of fixed size: what is selected comes first, and how much it is.

    x[mask]      =   take(x, places[:count])        places, count = true_places(mask)

Behind the first `count` elements anything may stand, so a slice takes those: `Graph.sizes` makes `count` a size.
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

_KEYS = 8  # of a sort; beyond, it sorts by one column after the other


def truth(x: Node) -> Node:
    """Whether each element is not 0; NaN is not."""
    return x if x.dtype == boolean else b.compare("NE", x, b.scalar(0, x.dtype))


def write_at(places: Node, values: Node, size: DimLike) -> Node:
    """[size] zeros with values[i] at places[i], no two of which are equal below `size`; from there on they are
    dropped."""
    return Scatter("set", (), (0,), (), (), (0,), 1, unique=True)(b.full((size,), 0, values.dtype), places, values)


def true_places(mask: Node) -> tuple[Node, Node]:
    """(i64[size], i64[]): the flat places of the true elements, ascending, then zeros; how many they are."""
    flat = b.reshape(mask, (product(mask.shape),))
    (size,) = flat.shape
    ones = b.cast(flat, i64)
    at = b.where(flat, b.sub(b.cumulative("sum", ones, 0), 1), b.scalar(size, i64))
    return write_at(at, b.arange(size), size), b.reduce_sum(ones)


def coordinates(places: Node, shape: tuple[DimLike, ...]) -> list[Node]:
    """Flat places in `shape` as one index per axis."""
    out: list[Node] = []
    for axis in reversed(range(len(shape))):
        # of nothing there are no coordinates, and no machine divides by zero
        size = shape[axis]
        out.append(b.floor_mod(places, b.maximum(b.scalar(size, i64), 1)) if axis else places)
        places = b.div(places, b.maximum(b.scalar(size, i64), 1))
    return out[::-1]


@dataclass(frozen=True)
class Groups:
    """Equal rows of x[n, ...], n at most: of group g < count the first row in x, the first place where it stands in
    `order`, and how many they are; the group of each row of x."""

    first: Node
    counts: Node
    inverse: Node
    count: Node


def equal_rows(x: Node, *, ordered: bool = True, nan_equal: bool = False, by_appearance: bool = False) -> Groups:
    """The groups of equal rows of x[n, m].

    ordered: all equal rows, in lexicographic order (NaN last), else runs of neighbours. nan_equal: NaN equals NaN.
    by_appearance: ordered groups in the order of their first rows.
    """
    n = x.shape[0]
    index = b.arange(n)
    order = row_order(x) if ordered else index
    sorted_rows = Take(0)(x, order) if ordered else x
    before = Take(0)(sorted_rows, b.maximum(b.sub(index, 1), 0))
    differs = b.compare("NE", sorted_rows, before)
    if nan_equal and x.dtype.is_float:
        both = b.and_(IsNan()(sorted_rows), IsNan()(before))
        differs = b.and_(differs, Not()(both))
    new = b.or_(b.compare("EQ", index, 0), b.reduce("or", differs, 1))
    group = b.sub(b.cumulative("sum", b.cast(new, i64), 0), 1)
    starts, count = true_places(new)
    ends = b.where(b.compare("LT", b.add(index, 1), count), _next(starts, index, n), b.scalar(n, i64))
    first, counts = Take(0)(order, starts), b.sub(ends, starts)
    inverse = write_at(order, group, n) if ordered else group
    if by_appearance:
        keys = b.where(b.compare("LT", index, count), first, b.scalar(n, i64))
        turned = Sort(0)(keys, index).results[1]
        first, counts = Take(0)(first, turned), Take(0)(counts, turned)
        inverse = Take(0)(write_at(turned, index, n), inverse)
    return Groups(first, counts, inverse, count)


def _next(x: Node, index: Node, n: DimLike) -> Node:
    """x[i + 1], clamped."""
    return Take(0)(x, b.minimum(b.add(index, 1), b.sub(b.scalar(n, i64), 1)))


def row_order(x: Node) -> Node:
    """The rows of x[n, m] in lexicographic order, equal ones as they stand: i64[n]."""
    n, m = x.shape
    index = b.arange(n)
    if isinstance(m, int) and m <= _KEYS:
        keys = [b.index_axis(x, 1, j) for j in range(m)] or [index]
        return Sort(0, False, True, len(keys))(*keys, index).results[len(keys)]
    # from the last column to the first: a stable sort keeps what the later ones decided
    column, order = Input("column", TensorType(i64))(), Input("order", TensorType(i64, (n,)))()
    rows = Input("rows", x.type)()
    key = b.reshape(DynamicSlice((n, 1))(rows, const(np.int64(0)), column), (n,))
    again = Take(0)(order, Sort(0)(Take(0)(key, order), index).results[1])
    state = (column, order, rows)
    body = Graph(state, (b.sub(column, 1), again, rows))
    loop = While(Graph(state, (b.compare("GE", column, 0),)), body)
    return loop(b.scalar(m - 1, i64), index, x).results[1]


def repeated(repeats: Node, total: DimLike) -> Node:
    """i64[total]: index i repeats[i] times, ascending, where `total` is the sum of repeats[n]."""
    (n,) = repeats.shape
    counts = b.cast(repeats, i64)
    ends = b.cumulative("sum", counts, 0)
    # one more index begins where each but the last ends; some may begin at one place
    begun = Scatter("add", (), (0,), (), (), (0,), 1)(b.full((total,), 0, i64), ends, b.full((n,), 1, i64))
    return b.cumulative("sum", begun, 0)
