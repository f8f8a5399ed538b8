"""A copy of B in the type of the values, made before a product of many rows, which then reads it as any other matrix.

    b[term, column] = (level - zero) * scale      rounded once, as in the tiles of few rows (`tile.py`)

A tile of levels takes several instructions an element, and tensor cores wait for them in each program that reads it.
The copy takes them once.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Kernel
from ingot.ir.types import DType, f32, static_shape, u32
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    all_of,
    index_hints,
    offset_of,
    read_at,
    store_tile,
    tile_index,
)
from ingot.schedule.gpu.contraction.levels.packed import FRACTION_BITS, Levels, Parameter
from ingot.schedule.index import integer
from ingot.schedule.lowered import Arg, Step

MIN_ROWS = 512  # of A: with fewer, tiles of levels take less time than the copy and its product
TILE, WARPS = (64, 64), 8  # (columns, terms) of a program


def widened_step(levels: Levels, loops: Loops, dtype: DType, args: Mapping[Buffer, Arg], result: Arg) -> Step:
    """The kernel that writes B with contiguous columns. loops: with the strides of this copy as B's. args: of the
    buffers of levels and parameters; result: of the copy."""
    columns, terms = (static_shape(tuple(x.extent for x in axes)) for axes in (loops.cols, loops.reduce))
    width, depth = prod(columns), prod(terms)
    down, across = TILE
    steps = -(-depth // across)
    top, chunk = Block(), k.var("chunk")
    first_column = top.let(k.mul(k.binary("div", chunk, integer(steps)), integer(down)), "first")
    first_term = top.let(k.mul(k.binary("rem", chunk, integer(steps)), integer(across)), "begin")
    (column,), in_width = tile_index(top, first_column, down, (width,), 0)
    (term,), in_depth = tile_index(top, first_term, across, (depth,), 1)
    in_bounds = all_of(in_width, in_depth)

    step, words = integer(levels.step), integer(levels.words)
    in_step = top.let(k.binary("rem", term, step), "inside")
    word = k.add(k.mul(k.binary("div", term, step), words), k.binary("rem", in_step, words))
    row_words = integer(levels.row_words(depth))
    place = top.let(k.add(k.mul(column, row_words), top.let(word, "word")), "place")
    shift = k.cast(k.mul(k.binary("div", in_step, words), integer(levels.bits)), u32)
    level = k.binary("lshr", read_at(top, levels.buffer, place, in_bounds), top.let(shift, "shift"))
    fraction = k.binary("and", level, k.lit((1 << levels.bits) - 1, u32))
    column_index, term_index = (
        tuple(top.let(e, "i") for e in ix.delinearize(at, extents, top.multiples))
        for at, extents in ((column, columns), (term, terms))
    )

    def parameter(p: Parameter) -> Expr:
        if not isinstance(p.source, Buffer):
            return p.source
        offset = ix.add(integer(p.offset), offset_of(column_index, p.columns))
        return read_at(top, p.source, ix.add(offset, offset_of(term_index, p.reduce)), in_bounds)

    zero, scale = map(parameter, levels.parameters)
    difference = levels.difference(top, fraction, FRACTION_BITS, zero)
    value = k.cast(k.mul(*k.broadcast(difference, k.cast(scale, f32))), dtype)
    copy = Buffer("widened", dtype, writable=True, align=ALIGNMENT_BYTES)
    (row,), in_rows = tile_index(top, first_term, across, (depth,), 0)
    (column,), in_columns = tile_index(top, first_column, down, (width,), 1)
    at = k.add(k.mul(row, integer(width)), column)
    store_tile(top, copy, at, k.transposed(k.spread(value, TILE)), all_of(in_rows, in_columns))
    hints = (("warps", WARPS), ("stages", 1), *index_hints(width * levels.row_words(depth), width * depth))
    chunks = integer(-(-width // down) * steps)
    kernel = Kernel("widened", (*levels.sources, copy), (), chunk, chunks, top.body, hints=hints)
    return Step(kernel, (*(args[b] for b in levels.sources), result))
