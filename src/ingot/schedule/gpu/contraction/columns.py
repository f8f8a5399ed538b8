"""A B whose columns and terms both lie apart, copied with its columns side by side before it is multiplied.

    w[O, I, 3, 3] of a convolution whose terms are (3, 3, I)   ->   b[3, 3, I, O]

Each tile of the result would load it element by element: a thread's loads are of elements that lie side by side.
Constants are laid out so when they are compiled (`blocks.repacked`); weights that are trained are copied by each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel
from ingot.ir.layout import Layout
from ingot.ir.types import DType, static_shape
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import ALIGN, Span, dot, meet, narrow, reach, read_at, store_tile
from ingot.schedule.index import dim_expr, integer
from ingot.schedule.lowered import Arg, Step

ROWS = 256  # of A, from which on tiles read B more often than a copy does
TILE = 32, 64  # terms and columns of a program


def lie_apart(loops: Loops, offset: DimLike, dtype: DType) -> bool:
    """Whether a thread can load neither neighbouring columns of B together nor neighbouring terms, and many rows read
    it, so that a copy pays whose columns it can."""
    axes = (*loops.batch, *loops.reduce, *loops.cols)
    numbers = [n for x in axes for n in (x.extent, x.b)]
    if not isinstance(offset, int) or not all(isinstance(n, int) for n in numbers) or any(x.b == 0 for x in axes):
        return False
    unit = max(1, ALIGN // dtype.nbytes)

    def together(along: tuple[Axis, ...], across: tuple[Axis, ...]) -> bool:
        """Whether runs along the first axes begin where a thread may load several elements."""
        *outer, inner = merge_axes(tuple(Axis(x.extent, x.b) for x in along))
        begins = [offset, inner.extent, *(x.a for x in outer), *(x.b for x in across)]
        return inner.a == 1 and all(estimate(n) % unit == 0 for n in begins)

    others = *loops.batch, *loops.reduce
    beside = together(loops.cols, others) or together(loops.reduce, (*loops.batch, *loops.cols))
    rows, columns = (estimate(product(x.extent for x in axes)) for axes in (loops.rows, loops.cols))
    return not beside and rows >= ROWS and columns % unit == 0


def columns_step(lying: Loops, copied: Loops, source: Buffer, offset: DimLike, args: tuple[Arg, Arg]) -> Step:
    """The copy of B. lying, copied: the loops with the strides that B has and is to have. args: of B and the copy."""
    pairs = ((lying.batch, copied.batch), (lying.reduce, copied.reduce), (lying.cols, copied.cols))
    batch, reduce, cols = (
        tuple(Axis(x.extent, x.b, y.b) for x, y in zip(before, after, strict=True)) for before, after in pairs
    )
    reduce = tuple(sorted(reduce, key=lambda x: -abs(estimate(x.a))))  # read as it lies
    depth, width = (product(x.extent for x in axes) for axes in (reduce, cols))
    shape = (*(x.extent for x in batch), ceildiv(depth, TILE[0]), ceildiv(width, TILE[1]))
    top, chunk = Block(), k.var("chunk")
    *entry, term, column = (top.let(e, "c") for e in ix.delinearize(chunk, shape, top.multiples))
    terms = Span.of(top, k.mul(term, integer(TILE[0])), TILE[0], depth, 0, held=True)
    columns = Span.of(top, k.mul(column, integer(TILE[1])), TILE[1], width, 1)

    def place(batch: Sequence[Axis], reduce: Sequence[Axis], cols: Sequence[Axis], first: DimLike) -> Expr:
        """By the strides of A in these axes."""
        total = ix.add(dim_expr(first), dot(entry, [x.a for x in batch]))
        for span, axes in ((terms, reduce), (columns, cols)):
            joined = merge_axes(tuple(Axis(x.extent, x.a) for x in axes))
            at = span.index(top, tuple(x.extent for x in joined))
            total = top.let(ix.add(total, dot(at, [x.a for x in joined])), "at")
        return total

    value = read_at(top, source, place(batch, reduce, cols, offset), columns.live)
    first, then, last = (tuple(replace(x, a=x.b) for x in axes) for axes in (batch, reduce, cols))
    to = Buffer("columns", source.dtype, writable=True, align=ALIGN)
    store_tile(top, to, place(first, then, last, 0), value, meet(terms.live, columns.live))
    axes = *batch, *reduce, *cols
    lies = Layout(tuple(x.extent for x in axes), tuple(x.a for x in axes), offset)
    hints = (("warps", 4), ("stages", 1), *narrow(reach(lies)))
    return Step(Kernel("columns", (source, to), (), chunk, dim_expr(product(shape)), top.body, hints=hints), args)


def copy_bytes(loops: Loops, dtype: DType) -> int:
    (size,) = static_shape((product(x.extent for x in (*loops.batch, *loops.reduce, *loops.cols)),))
    return size * dtype.nbytes


__all__ = ["columns_step", "copy_bytes", "lie_apart"]
