"""What a contraction's loop nest reads, and what it hands on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, mod, product
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.node import Node
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.plan import LINE
from ingot.schedule.dimension_numbers import Loops, join_rows
from ingot.schedule.index import ZERO, Index, add, dim_expr
from ingot.support.dataclass import dataclass

Write = Callable[[Block, Index, Expr, Expr | None], None]
Fetch = Callable[[Block, Index, int], None]


class LineEpilogue(Protocol):
    """What an epilogue folds over the rows of a line."""

    def begin(self, block: Block, lanes: int) -> None:
        """Rows of a line follow: `lanes` columns of each."""

    def end(self, block: Block, place: Index, mask: Expr | None, first: Expr) -> None:
        """They are done; `place` is the first one's. first: whether nothing of the line came before, in this chunk."""


@dataclass(frozen=True)
class Operand:
    """A or B in memory: element i lies at `offset` + sum of index * stride. A packed B starts at element 0."""

    buffer: Buffer
    offset: DimLike = 0


@dataclass(frozen=True)
class Computed:
    """An A that each chunk computes: `fill(block, batch, (low, high), out)` prints the rows from `low` to `high` of a
    batch entry into `out`, row `low` first, by the strides of the contraction's axes."""

    fill: Callable[[Block, Index, tuple[Expr, Expr], Buffer], None]


def computed_rows(loops: Loops, a: Node) -> Loops:
    """Loops over an A in scratch: one axis of rows, an odd number of cache lines apart so that they share no sets."""
    line = max(1, LINE // a.dtype.nbytes)
    lines = ceildiv(product(x.extent for x in loops.reduce), line)
    joined = join_rows(loops, len(loops.rows), (lines + (1 - mod(lines, 2))) * line)
    return replace(
        joined,
        batch=tuple(replace(x, a=0) for x in loops.batch),
        reduce=tuple(replace(x, a=1) for x in loops.reduce),
    )


@dataclass(frozen=True)
class BlockQuantized:
    """A constant B of levels: (level - zero) * scale. words: unsigned ones of a column that lie in 32 bits, in panels;
    zeros, scales: one row of a panel for each block of the reduction, or the same for all. exact: zeros are unsigned
    integers, too; otherwise `bias` has been added to the levels."""

    words: Buffer
    zeros: Buffer | Lit
    scales: Buffer | Lit
    exact: bool
    bias: int

    @property
    def buffer(self) -> Buffer:
        return self.words


def one_by_one(block: Block, before: Index, n: Expr, value: Expr, columns: DimLike, write: Write) -> None:
    """Write a vector from column n on that may go beyond the last one, without mask registers: through memory, one
    column at a time."""
    spill = block.alloc("spill", value.dtype, value.lanes, stack=True)
    block.store(spill, ZERO, value)
    end = k.binary("min", add(n, integer(value.lanes)), dim_expr(columns))
    block.loop("n", n, end, 1, lambda b, e: write(b, (*before, e), k.load(spill, k.sub(e, n)), None))


__all__ = [
    "BlockQuantized", "Computed", "Fetch", "Index", "LineEpilogue", "Operand", "Write", "computed_rows", "one_by_one",
]  # fmt: skip
