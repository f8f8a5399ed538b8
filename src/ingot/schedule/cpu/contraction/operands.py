"""The operands of a contraction's loop nest and the interfaces of its epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, mod, product
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.node import Node
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.plan import CACHE_LINE_BYTES
from ingot.schedule.dimension_numbers import Loops, join_rows
from ingot.schedule.index import ZERO, Index, add, dim_expr
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
class BlockQuantized:
    """A constant B of quantized levels: (level - zero) * scale.

    words: panels of 32-bit words that hold consecutive unsigned levels of a column. zeros, scales: one row per panel
    and block of the reduction, or one value for all. has_integer_zeros: zeros are unsigned integers as well; otherwise
    `bias` has been added to the levels.
    """

    words: Buffer
    zeros: Buffer | Lit
    scales: Buffer | Lit
    has_integer_zeros: bool
    bias: int

    @property
    def buffer(self) -> Buffer:
        return self.words


def write_scalars(block: Block, index: Index, n: Expr, value: Expr, columns: DimLike, write: Write) -> None:
    """Write the vector at column `n`, which may reach beyond the last column, through memory and one column at a time.
    For machines without mask registers."""
    spill = block.alloc("spill", value.dtype, value.lanes, stack=True)
    block.store(spill, ZERO, value)
    end = k.binary("min", add(n, integer(value.lanes)), dim_expr(columns))
    block.loop("n", n, end, 1, lambda b, e: write(b, (*index, e), k.load(spill, k.sub(e, n)), None))


__all__ = [
    "BlockQuantized", "ComputedA", "Index", "LineEpilogue", "Operand", "PrefetchInputs", "Write", "scratch_loops",
    "write_scalars",
]  # fmt: skip
