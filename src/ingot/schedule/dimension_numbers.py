"""The loops of a contraction: the op's dimension numbers as axes with the strides of both operands.

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
from ingot.schedule.axes import Axis, ValidTaps
from ingot.schedule.emit import Index
from ingot.schedule.index import ZERO, dim_expr
from ingot.support.dataclass import dataclass

MAX_VALID_FRACTION = 0.92  # skipping the taps that read padding pays below this fraction of taps that read data


@dataclass(frozen=True)
class Loops:
    """The axes of a contraction with the strides of both operands.

    full: maps an index of (batch, rows, columns) to an index of all the op's loops except the reduction. result: maps
    a full index to an index of the op's result. source: maps a full index and a position along the single reduction
    axis to an index of A.
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
        positions = {i: full[n] for n, i in enumerate((*op.batch[0], *free_a))}
        return tuple(positions.get(d, k) for d in range(len(a.shape)))

    return _without_unit_axes(batch, rows, cols, reduce, lambda full: full, source)


def convolution_loops(anchor: Node, a: Layout, b: Layout) -> Loops:
    """Rows are images and output positions, the reduction runs over taps and input channels, groups are the batch."""
    op = anchor.op
    assert isinstance(op, ops.Convolution)
    spatial = op.spatial
    in_dim = {c: i for i, c in enumerate(op.lhs_layout)}
    kernel_dim = {c: i for i, c in enumerate(op.rhs_layout)}
    out_dim = {c: i for i, c in enumerate(op.out_layout)}
    groups = max(op.feature_groups, op.batch_groups)
    o, i = kernel_dim["O"], kernel_dim["I"]
    per_out = floordiv(b.shape[o], groups)
    images = anchor.shape[out_dim["N"]]
    # a group reads its own channels, or its own images
    step = a.strides[in_dim["C"]] * b.shape[i] if op.batch_groups == 1 else a.strides[in_dim["N"]] * images
    batch = (Axis(groups, step, b.strides[o] * per_out),)
    rows = (
        Axis(images, a.strides[in_dim["N"]]),
        *(Axis(anchor.shape[out_dim[c]], a.strides[in_dim[c]] * s) for c, s in zip(spatial, op.strides, strict=True)),
    )
    cols = (Axis(per_out, 0, b.strides[o]),)
    valid_taps = [
        _valid_taps(op, i, a, anchor.shape[out_dim[c]], b.shape[kernel_dim[c]]) for i, c in enumerate(spatial)
    ]
    reduce = (
        *(
            Axis(b.shape[kernel_dim[c]], a.strides[in_dim[c]] * d, b.strides[kernel_dim[c]], inside)
            for c, d, inside in zip(spatial, op.rhs_dilation, valid_taps, strict=True)
        ),
        Axis(b.shape[i], a.strides[in_dim["C"]], b.strides[i]),
    )

    def result(full: Index) -> Index:
        group, n, *positions, channel = full
        position: list[Expr] = [ZERO] * anchor.type.rank
        position[out_dim["N"]] = n
        for c, e in zip(spatial, positions, strict=True):
            position[out_dim[c]] = e
        position[out_dim["C"]] = ix.add(ix.mul(group, dim_expr(per_out)), channel)
        return tuple(position)

    def source(full: Index, k: Expr) -> Index:
        """The index in A, for a window of one tap."""
        group, n, *positions, _ = full
        position: list[Expr] = [ZERO] * anchor.type.rank
        position[in_dim["N"]] = n
        for c, e, s in zip(spatial, positions, op.strides, strict=True):
            position[in_dim[c]] = ix.mul(e, integer(s))
        position[in_dim["C"]] = ix.add(ix.mul(group, dim_expr(b.shape[i])), k)
        return tuple(position)

    return _without_unit_axes(batch, rows, cols, reduce, result, source)


def _valid_taps(op: ops.Convolution, axis: int, a: Layout, outputs: DimLike, taps: DimLike) -> ValidTaps | None:
    """The taps of a spatial axis that read data, or None if skipping the others does not pay. The window's innermost
    loop is never restricted, as it is merged with the loop over channels."""
    if not op.zeros or not isinstance(outputs, int) or not isinstance(taps, int):
        return None
    step, dilation, (low, padding_after) = op.strides[axis], op.rhs_dilation[axis], op.zeros[axis]
    dim = op.lhs_layout.index(op.spatial[axis])
    high = a.shape[dim] - padding_after
    if not isinstance(high, int) or (dilation == 1 and axis == len(op.spatial) - 1):
        return None
    valid = ValidTaps(outputs, a.strides[dim] * step, step, dilation, low, high)
    return valid if outputs and taps and valid.valid_fraction(taps) < MAX_VALID_FRACTION else None


def _without_unit_axes(
    batch: tuple[Axis, ...],
    rows: tuple[Axis, ...],
    cols: tuple[Axis, ...],
    reduce: tuple[Axis, ...],
    result: Callable[[Index], Index],
    source: Callable[[Index, Expr], Index],
) -> Loops:
    """The loops without axes of extent 1, for which the full index has zeros."""
    full = (*batch, *rows, *cols)
    sized_dims = [d for d, x in enumerate(full) if x.extent != 1]

    def full_index(index: Index) -> Index:
        full_place: list[Expr] = [ZERO] * len(full)
        coordinates = list(index)
        for count, group in ((len(batch), 0), (len(rows), 1), (len(cols), 2)):
            start = (0, len(batch), len(batch) + len(rows))[group]
            dims = [d for d in sized_dims if start <= d < start + count]
            for d in dims or ([] if group == 0 else [start + count - 1]):
                e = coordinates.pop(0)
                if start <= d < start + count:
                    full_place[d] = e
        return tuple(full_place)

    def without_units(axes: tuple[Axis, ...], fallback: Axis | None) -> tuple[Axis, ...]:
        sized = tuple(x for x in axes if x.extent != 1)
        return sized or ((fallback,) if fallback else ())

    return Loops(
        without_units(batch, None),
        without_units(rows, Axis(1, 0, 0)),
        without_units(cols, Axis(1, 0, 1)),
        without_units(reduce, Axis(1, 0, 0)),
        full_index,
        result,
        source,
    )


def contiguous_reduction_last(loops: Loops) -> Loops:
    """The loops with the reduction axis along which A is contiguous innermost, so that a lane is one load."""
    return replace(loops, reduce=tuple(sorted(loops.reduce, key=lambda x: x.a == 1)))


def reduction_in_memory_order(loops: Loops) -> Loops:
    """The loops with the reduction axes ordered by their strides in A, largest first. Axes that skip padding stay where
    they are: the innermost one is never restricted."""
    if any(x.valid_taps for x in loops.reduce):
        return loops
    return replace(loops, reduce=tuple(sorted(loops.reduce, key=lambda x: -abs(estimate(x.a)))))


def rows_in_memory_order(loops: Loops) -> Loops:
    """The loops with the row axes ordered by their strides in A, so that rows of a transposed A can be joined, too."""
    order = sorted(range(len(loops.rows)), key=lambda d: -abs(estimate(loops.rows[d].a)))
    if order == list(range(len(order))):
        return loops
    first = len(loops.batch)

    def full(index: Index) -> Index:
        permuted: list[Expr] = list(index)
        for at, d in enumerate(order):
            permuted[first + d] = index[first + at]
        return loops.full(tuple(permuted))

    return replace(loops, rows=tuple(loops.rows[d] for d in order), full=full)


def flat_rows(loops: Loops, separate_axes: int = 0) -> Loops:
    """Join row axes that walk A as one loop: a 1x1 convolution's positions, a matmul's batch and sequence. The first
    `apart` axes are not joined."""
    rows, count = loops.rows, 1
    while count < len(rows) - separate_axes and rows[-count - 1].a == rows[-count].a * rows[-count].extent:
        count += 1
    return join_rows(loops, count, rows[-1].a)


def join_rows(loops: Loops, count: int, stride: DimLike) -> Loops:
    """The loops with the last `count` row axes as one, of `stride` in A."""
    if count == 1 and loops.rows[-1].a == stride:
        return loops
    extents = tuple(x.extent for x in loops.rows[-count:])
    first = len(loops.batch) + len(loops.rows) - count

    def full(index: Index) -> Index:
        return loops.full((*index[:first], *ix.split(index[first], extents), *index[first + 1 :]))

    return replace(loops, rows=(*loops.rows[:-count], Axis(product(extents), stride, 0)), full=full)


__all__ = [
    "Loops",
    "contiguous_reduction_last",
    "convolution_loops",
    "flat_rows",
    "join_rows",
    "loops_of",
    "reduction_in_memory_order",
    "rows_in_memory_order",
]  # fmt: skip
