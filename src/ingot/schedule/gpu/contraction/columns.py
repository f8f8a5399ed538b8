"""A copy of B with contiguous columns, made before the product where neither B's columns nor its terms are contiguous.

    w[O, I, 3, 3] of a convolution whose terms are (3, 3, I)   ->   b[3, 3, I, O]

Without the copy, each tile would load B element by element. Products of f32, which tensor cores do not make, need
contiguous columns: multiply-adds read several columns of a term from shared memory at once, and terms side by side
would put these into one bank. Constants are repacked when they are compiled
(`blocks.repack`); weights that are trained are copied by each call. Products of TF32, which tensor cores make, need
contiguous terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel
from ingot.ir.layout import Layout
from ingot.ir.types import DType, f32, static_shape
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    Span,
    all_of,
    end_offset,
    index_hints,
    offset_of,
    read_at,
    store_tile,
)
from ingot.schedule.index import dim_expr, integer
from ingot.schedule.lowered import Arg, Step

MIN_ROWS_FOR_COPY = 256  # of A: below, tiles read B less often than the copy does
MIN_ROWS_FOR_TERM_COPY = 1024  # below, the copy takes about as long as the product
TILE = 32, 64  # (terms, columns) that a program copies


def needs_column_copy(loops: Loops, offset: DimLike, dtype: DType, tf32: bool = False) -> bool:
    """Whether copying B pays: no vector load reads several of its columns, or of its terms where tensor cores multiply
    them, and many rows of A use it. tf32: of f32, whether they do."""
    if not _is_copyable(loops, offset):
        return False
    unit = max(1, ALIGNMENT_BYTES // dtype.nbytes)

    def has_aligned_runs(run_axes: tuple[Axis, ...], other_axes: tuple[Axis, ...]) -> bool:
        """Whether runs along `run_axes` are contiguous and start at addresses that vector loads allow."""
        *outer, inner = _in_memory(run_axes)
        run_starts = [offset, inner.extent, *(x.a for x in outer), *(x.b for x in other_axes)]
        return inner.a == 1 and all(estimate(n) % unit == 0 for n in run_starts)

    rows, columns = (estimate(product(x.extent for x in axes)) for axes in (loops.rows, loops.cols))
    if rows < MIN_ROWS_FOR_COPY:
        return False
    if dtype == f32 and not tf32 and columns > 1 and _in_memory(loops.cols)[-1].a != 1:
        return True
    batch_and_terms = *loops.batch, *loops.reduce
    is_vectorizable = has_aligned_runs(loops.cols, batch_and_terms) or has_aligned_runs(
        loops.reduce, (*loops.batch, *loops.cols)
    )
    return not is_vectorizable and columns % unit == 0


def needs_term_copy(loops: Loops, offset: DimLike) -> bool:
    """Whether copying B with contiguous terms pays: tensor cores read A and B of TF32 from shared memory if both have
    them."""
    rows = estimate(product(x.extent for x in loops.rows))
    is_only_b_strided = strided_terms(loops) == (False, True)
    return _is_copyable(loops, offset) and rows >= MIN_ROWS_FOR_TERM_COPY and is_only_b_strided


def strided_terms(loops: Loops) -> tuple[bool, bool]:
    """Whether no terms of A, and of B, are contiguous."""
    of_a = merge_axes(tuple(Axis(x.extent, x.a) for x in loops.reduce))
    return of_a[-1].a != 1, _in_memory(loops.reduce)[-1].a != 1


def _is_copyable(loops: Loops, offset: DimLike) -> bool:
    """Whether B has static sizes, and an element for each batch, term and column."""
    axes = (*loops.batch, *loops.reduce, *loops.cols)
    sizes = [n for x in axes for n in (x.extent, x.b)]
    return all(isinstance(n, int) for n in (offset, *sizes)) and all(x.b != 0 for x in axes)


def _in_memory(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The extents of B's `axes`, merged, with its strides (as `a`)."""
    return merge_axes(tuple(Axis(x.extent, x.b) for x in axes))


def columns_step(
    source_loops: Loops,
    copy_loops: Loops,
    source: Buffer,
    offset: DimLike,
    args: tuple[Arg, Arg],
    dtype: DType | None = None,
) -> Step:
    """The kernel that copies B. source_loops, copy_loops: the loops with B's strides and the copy's. args: the
    arguments for B and the copy. dtype: of the copy, by default that of B."""
    pairs = (
        (source_loops.batch, copy_loops.batch),
        (source_loops.reduce, copy_loops.reduce),
        (source_loops.cols, copy_loops.cols),
    )
    batch, reduce, cols = (
        tuple(Axis(x.extent, x.b, y.b) for x, y in zip(source_axes, copy_axes, strict=True))
        for source_axes, copy_axes in pairs
    )
    reduce = tuple(sorted(reduce, key=lambda x: -abs(estimate(x.a))))  # in memory order
    depth, width = (product(x.extent for x in axes) for axes in (reduce, cols))
    shape = (*(x.extent for x in batch), ceildiv(depth, TILE[0]), ceildiv(width, TILE[1]))
    top, chunk = Block(), k.var("chunk")
    *entry, term, column = (top.let(e, "c") for e in ix.delinearize(chunk, shape, top.multiples))
    terms = Span.of(top, k.mul(term, integer(TILE[0])), TILE[0], depth, 0, wraps=True)
    columns = Span.of(top, k.mul(column, integer(TILE[1])), TILE[1], width, 1)

    def offsets(batch: Sequence[Axis], reduce: Sequence[Axis], cols: Sequence[Axis], start: DimLike) -> Expr:
        """The offsets of the tile's elements by the A strides of these axes."""
        total = ix.add(dim_expr(start), offset_of(entry, [x.a for x in batch]))
        for span, axes in ((terms, reduce), (columns, cols)):
            merged = merge_axes(tuple(Axis(x.extent, x.a) for x in axes))
            index = span.index(top, tuple(x.extent for x in merged))
            total = top.let(ix.add(total, offset_of(index, [x.a for x in merged])), "at")
        return total

    value = read_at(top, source, offsets(batch, reduce, cols, offset), columns.in_bounds)
    copy_batch, copy_reduce, copy_cols = (tuple(replace(x, a=x.b) for x in axes) for axes in (batch, reduce, cols))
    copy = Buffer("columns", dtype or source.dtype, writable=True, align=ALIGNMENT_BYTES)
    at = offsets(copy_batch, copy_reduce, copy_cols, 0)
    store_tile(top, copy, at, k.cast(value, copy.dtype), all_of(terms.in_bounds, columns.in_bounds))
    axes = *batch, *reduce, *cols
    layout = Layout(tuple(x.extent for x in axes), tuple(x.a for x in axes), offset)
    hints = (("warps", 4), ("stages", 1), *index_hints(end_offset(layout)))
    return Step(Kernel("columns", (source, copy), (), chunk, dim_expr(product(shape)), top.body, hints=hints), args)


def copy_bytes(loops: Loops, dtype: DType) -> int:
    (size,) = static_shape((product(x.extent for x in (*loops.batch, *loops.reduce, *loops.cols)),))
    return size * dtype.nbytes


__all__ = ["columns_step", "copy_bytes", "needs_column_copy"]
