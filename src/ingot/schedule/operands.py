"""What a contraction's loop nest reads, and what it hands on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr, Lit
from ingot.schedule.block import Block

Index = tuple[Expr, ...]
Write = Callable[[Block, Index, Expr, Expr | None], None]
Fetch = Callable[[Block, Index, int], None]


class Fold(Protocol):
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


@dataclass(frozen=True)
class Levels:
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


__all__ = ["Computed", "Fetch", "Fold", "Index", "Levels", "Operand", "Write"]
