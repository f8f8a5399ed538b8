"""A contraction's loops: the op's dimension numbers as axes with the strides of both operands.

dot [b, s, k] . [k, n]   ->   rows (b * s: k of A), cols (n), reduce (k)     no axes of extent 1, rows joined
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot import ops
from ingot.ir.dims import DimLike, estimate, floordiv, product
from ingot.ir.kernel import Expr, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, Inside
from ingot.schedule.emit import Index
from ingot.schedule.index import ZERO, dim_expr
from ingot.support.dataclass import dataclass

WORTH = 0.92  # part of a window's turns that may read more than padding where it pays to tell them apart


@dataclass(frozen=True)
class Loops:
    """A contraction's axes with the strides of both operands.

    `full` turns an index of (batch, rows, columns) into one of all the op's loops but its reduction, which `result`
    turns into one of the op's result, and `source`, with a place along a single reduction axis, into one of A.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    full: Callable[[Index], Index]
    result: Callable[[Index], Index]
    source: Callable[[Index, Expr], Index]


def loops_of(anchor: Node, a: Layout, b: Layout) -> Loops:
    """The loops of a contraction whose operands have these layouts."""
    return (_dot if isinstance(anchor.op, ops.DotGeneral) else convolution_loops)(anchor, a, b)


def _dot(anchor: Node, a: Layout, b: Layout) -> Loops:
    op = anchor.op
    assert isinstance(op, ops.DotGeneral)
    free_a, free_b = op.free(len(a.shape), len(b.shape))
    batch = tuple(Axis(a.shape[i], a.strides[i], b.strides[j]) for i, j in zip(*op.batch, strict=True))
    rows = tuple(Axis(a.shape[i], a.strides[i], 0) for i in free_a)
    cols = tuple(Axis(b.shape[j], 0, b.strides[j]) for j in free_b)
    reduce = tuple(Axis(a.shape[i], a.strides[i], b.strides[j]) for i, j in zip(*op.contract, strict=True))

    def source(full: Index, k: Expr) -> Index:
        at = {i: full[n] for n, i in enumerate((*op.batch[0], *free_a))}
        return tuple(at.get(d, k) for d in range(len(a.shape)))

    return _sized(batch, rows, cols, reduce, lambda full: full, source)


def convolution_loops(anchor: Node, a: Layout, b: Layout) -> Loops:
    """Rows: batch and output positions; reduction: window positions and input channels; groups: the batch axis."""
    op = anchor.op
    assert isinstance(op, ops.Convolution)
    spatial = op.spatial
    at = {c: i for i, c in enumerate(op.lhs_layout)}
    wt = {c: i for i, c in enumerate(op.rhs_layout)}
    out = {c: i for i, c in enumerate(op.out_layout)}
    groups = max(op.feature_groups, op.batch_groups)
    o, i = wt["O"], wt["I"]
    per_out = floordiv(b.shape[o], groups)
    images = anchor.shape[out["N"]]
    # a group reads its own channels, or its own images
    step = a.strides[at["C"]] * b.shape[i] if op.batch_groups == 1 else a.strides[at["N"]] * images
    batch = (Axis(groups, step, b.strides[o] * per_out),)
    rows = (
        Axis(images, a.strides[at["N"]]),
        *(Axis(anchor.shape[out[c]], a.strides[at[c]] * s) for c, s in zip(spatial, op.strides, strict=True)),
    )
    cols = (Axis(per_out, 0, b.strides[o]),)
    insides = [_inside(op, i, a, anchor.shape[out[c]], b.shape[wt[c]]) for i, c in enumerate(spatial)]
    reduce = (
        *(
            Axis(b.shape[wt[c]], a.strides[at[c]] * d, b.strides[wt[c]], inside)
            for c, d, inside in zip(spatial, op.rhs_dilation, insides, strict=True)
        ),
        Axis(b.shape[i], a.strides[at["C"]], b.strides[i]),
    )

    def result(full: Index) -> Index:
        group, n, *positions, channel = full
        where: list[Expr] = [ZERO] * anchor.type.rank
        where[out["N"]] = n
        for c, e in zip(spatial, positions, strict=True):
            where[out[c]] = e
        where[out["C"]] = ix.add(ix.mul(group, dim_expr(per_out)), channel)
        return tuple(where)

    def source(full: Index, k: Expr) -> Index:
        """For a window of one position."""
        group, n, *positions, _ = full
        where: list[Expr] = [ZERO] * anchor.type.rank
        where[at["N"]] = n
        for c, e, s in zip(spatial, positions, op.strides, strict=True):
            where[at[c]] = ix.mul(e, integer(s))
        where[at["C"]] = ix.add(ix.mul(group, dim_expr(b.shape[i])), k)
        return tuple(where)

    return _sized(batch, rows, cols, reduce, result, source)


def _inside(op: ops.Convolution, axis: int, a: Layout, outputs: DimLike, taps: DimLike) -> Inside | None:
    """Of a spatial axis: where the window reads more than padding, if it saves some of the products to look. The
    window's innermost loop, which is joined with the channels', stays whole."""
    if not op.zeros or not isinstance(outputs, int) or not isinstance(taps, int):
        return None
    step, dilation, (before, behind) = op.strides[axis], op.rhs_dilation[axis], op.zeros[axis]
    at = op.lhs_layout.index(op.spatial[axis])
    high = a.shape[at] - behind
    if not isinstance(high, int) or (dilation == 1 and axis == len(op.spatial) - 1):
        return None
    inside = Inside(outputs, a.strides[at] * step, step, dilation, before, high)
    return inside if outputs and taps and inside.share(taps) < WORTH else None


def _sized(
    batch: tuple[Axis, ...],
    rows: tuple[Axis, ...],
    cols: tuple[Axis, ...],
    reduce: tuple[Axis, ...],
    result: Callable[[Index], Index],
    source: Callable[[Index, Expr], Index],
) -> Loops:
    """Loops without axes of extent 1; the full index has zeros for them."""
    full = (*batch, *rows, *cols)
    kept = [d for d, x in enumerate(full) if x.extent != 1]

    def restore(place: Index) -> Index:
        out: list[Expr] = [ZERO] * len(full)
        at = list(place)
        for count, group in ((len(batch), 0), (len(rows), 1), (len(cols), 2)):
            start = (0, len(batch), len(batch) + len(rows))[group]
            mine = [d for d in kept if start <= d < start + count]
            for d in mine or ([] if group == 0 else [start + count - 1]):
                e = at.pop(0)
                if start <= d < start + count:
                    out[d] = e
        return tuple(out)

    def sized(axes: tuple[Axis, ...], fallback: Axis | None) -> tuple[Axis, ...]:
        found = tuple(x for x in axes if x.extent != 1)
        return found or ((fallback,) if fallback else ())

    return Loops(
        sized(batch, None),
        sized(rows, Axis(1, 0, 0)),
        sized(cols, Axis(1, 0, 1)),
        sized(reduce, Axis(1, 0, 0)),
        restore,
        result,
        source,
    )


def contiguous_last(loops: Loops) -> Loops:
    """The reduction loop along which A's elements lie side by side innermost: those of a lane are loaded together."""
    return replace(loops, reduce=tuple(sorted(loops.reduce, key=lambda x: x.a == 1)))


def terms_as_they_lie(loops: Loops) -> Loops:
    """The reduction's loops in the order in which A lies in memory."""
    return replace(loops, reduce=tuple(sorted(loops.reduce, key=lambda x: -abs(estimate(x.a)))))


def rows_as_they_lie(loops: Loops) -> Loops:
    """Row axes in the order in which A lies in memory, so that a transposed A's rows can be joined too."""
    order = sorted(range(len(loops.rows)), key=lambda d: -abs(estimate(loops.rows[d].a)))
    if order == list(range(len(order))):
        return loops
    first = len(loops.batch)

    def full(place: Index) -> Index:
        own: list[Expr] = list(place)
        for at, d in enumerate(order):
            own[first + d] = place[first + at]
        return loops.full(tuple(own))

    return replace(loops, rows=tuple(loops.rows[d] for d in order), full=full)


def flat_rows(loops: Loops, apart: int = 0) -> Loops:
    """Join row axes that walk A as one loop: a 1x1 convolution's positions, a matmul's batch and sequence. The first
    `apart` stay as they are."""
    rows, count = loops.rows, 1
    while count < len(rows) - apart and rows[-count - 1].a == rows[-count].a * rows[-count].extent:
        count += 1
    return join_rows(loops, count, rows[-1].a)


def join_rows(loops: Loops, count: int, stride: DimLike) -> Loops:
    """Loops whose last `count` row axes are one, with which A is walked by `stride`."""
    if count == 1 and loops.rows[-1].a == stride:
        return loops
    extents = tuple(x.extent for x in loops.rows[-count:])
    first = len(loops.batch) + len(loops.rows) - count

    def full(place: Index) -> Index:
        return loops.full((*place[:first], *ix.split(place[first], extents), *place[first + 1 :]))

    return replace(loops, rows=(*loops.rows[:-count], Axis(product(extents), stride, 0)), full=full)


__all__ = [
    "Loops", "contiguous_last", "convolution_loops", "flat_rows", "join_rows", "loops_of", "rows_as_they_lie",
    "terms_as_they_lie",
]  # fmt: skip
