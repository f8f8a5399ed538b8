"""The operands of a contraction's loop nest and the interfaces of its epilogue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, mod, product
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.node import Node
from ingot.ir.types import u32
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.plan import CACHE_LINE_BYTES
from ingot.schedule.dimension_numbers import Loops, join_rows
from ingot.schedule.index import ZERO, Index, add, dim_expr, mul
from ingot.support.dataclass import dataclass

Write = Callable[[Block, Index, Expr, Expr | None], None]
PrefetchInputs = Callable[[Block, Index, int], None]


class LineEpilogue(Protocol):
    """An epilogue that reduces over the rows of a line."""

    def begin(self, block: Block, lanes: int) -> None:
        """Called before the rows of a line. lanes: columns of each row."""

    def end(self, block: Block, index: Index, mask: Expr | None, is_first: Expr) -> None:
        """Called after the rows of a line. index: of the first row. is_first: whether they are the line's first rows in
        this chunk."""


@dataclass(frozen=True)
class Operand:
    """A or B in memory: an element is stored at `offset` + sum of index * stride. A packed B starts at element 0."""

    buffer: Buffer
    offset: DimLike = 0


@dataclass(frozen=True)
class ComputedA:
    """An A that each chunk computes. fill(block, batch, (low, high), out): emits the computation of rows `low` to
    `high` of a batch entry. `out` starts at row `low` and has the strides of the contraction's axes."""

    fill: Callable[[Block, Index, tuple[Expr, Expr], Buffer], None]


def scratch_loops(loops: Loops, a: Node) -> Loops:
    """Return the loops over an A in scratch: one row axis with a stride of an odd number of cache lines, so that rows
    do not map to the same cache sets."""
    line_elements = max(1, CACHE_LINE_BYTES // a.dtype.nbytes)
    row_lines = ceildiv(product(x.extent for x in loops.reduce), line_elements)
    loops_over_rows = join_rows(loops, len(loops.rows), (row_lines + (1 - mod(row_lines, 2))) * line_elements)
    return replace(
        loops_over_rows,
        batch=tuple(replace(x, a=0) for x in loops.batch),
        reduce=tuple(replace(x, a=1) for x in loops.reduce),
    )


@dataclass(frozen=True)
class Factor:
    """Zeros, or a factor of scales or minima: [panel][rows][columns], or one value for all. Each row is shared by
    `blocks` neighbouring blocks of the reduction."""

    values: Buffer | Lit
    rows: int = 1
    blocks: int = 1

    def line(self, column: Expr, width: Expr, block: Expr) -> Expr:
        """The offset of a block's values in the panel of `width` columns that starts at `column`."""
        row = ZERO if self.rows == 1 else block
        if self.blocks > 1 and self.rows > 1:
            row = k.binary("div", block, integer(self.blocks))
        return add(mul(column, integer(self.rows)), mul(row, width))


@dataclass(frozen=True)
class BlockQuantized:
    """A constant B of quantized levels: (level - zero) * scale + minimum.

    words: panels of 32-bit words that hold consecutive unsigned levels of a column; those of a block in planes of so
    many bits each (`level_planes`), the lowest bits first. Neighbouring levels are in neighbouring bytes: of a word
    that is shifted right, a mask leaves four as the bytes of a dot product. scale, minimum: their factors; no factors
    of the minimum: it is 0. has_integer_zeros: zeros are unsigned integers as well; otherwise `bias` has been added to
    the levels.
    """

    words: Buffer
    planes: tuple[int, ...]
    zeros: Factor
    scale: tuple[Factor, ...]
    minimum: tuple[Factor, ...]
    has_integer_zeros: bool
    bias: int

    @property
    def buffer(self) -> Buffer:
        return self.words

    def word_rows(self, block: int) -> list[int]:
        """The number of words of a block of `block` levels in each plane."""
        return [-(-block // (32 // bits)) for bits in self.planes]

    def level(self, words: Sequence[Expr], h: int) -> Expr:
        """Level h of the words of all planes, as a u32."""
        return self._bits(words, h // 4, h % 4 * 8, 1)

    def quad(self, words: Sequence[Expr], q: int) -> Expr:
        """Levels 4 q to 4 q + 3 of the words of all planes, one byte each, as a u32."""
        return self._bits(words, q, 0, 0x01010101)

    def _bits(self, words: Sequence[Expr], q: int, first: int, ones: int) -> Expr:
        """The q-th field of the bytes that start at the bits of `ones`, counted from bit `first`."""
        parts: list[Expr] = []
        place = 0  # of the plane's lowest bit in a level
        for word, bits in zip(words, self.planes, strict=True):
            shift = first + q * bits - place
            if shift:
                word = k.binary("lshr" if shift > 0 else "shl", word, k.lit(abs(shift), u32, word.lanes))
            mask = ((1 << bits) - 1 << place) * ones
            # of whole words nothing is left to cut off
            parts.append(word if mask == 0xFFFFFFFF else k.binary("and", word, k.lit(mask, u32, word.lanes)))
            place += bits
        return functools.reduce(lambda x, y: k.binary("or", x, y), parts)


def write_scalars(block: Block, index: Index, n: Expr, value: Expr, columns: DimLike, write: Write) -> None:
    """Write the vector at column `n`, which may extend past the last column, through memory and one column at a time.
    For machines without mask registers."""
    spill = block.alloc("spill", value.dtype, value.lanes, stack=True)
    block.store(spill, ZERO, value)
    end = k.binary("min", add(n, integer(value.lanes)), dim_expr(columns))
    block.loop("n", n, end, 1, lambda b, e: write(b, (*index, e), k.load(spill, k.sub(e, n)), None))


__all__ = [
    "BlockQuantized", "ComputedA", "Factor", "Index", "LineEpilogue", "Operand", "PrefetchInputs", "Write",
    "scratch_loops", "write_scalars",
]  # fmt: skip
