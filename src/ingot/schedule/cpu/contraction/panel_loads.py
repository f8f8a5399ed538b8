"""B as a contraction's loop nest reads it: one row of a column panel at a time, into registers.

A packed B, and one that was turned into a panel in scratch, are one contiguous stream. In place its columns lie side by
side or apart, and the last vector of a panel is read no further than they go.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.ir.types import f32, u32
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.index import ZERO, add, dim_expr, mul
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Columns:
    """A panel: `vectors` wide, `base` in B, first column `start`. `tail`: valid lanes of the last vector (0: all);
    masked: columns end at run time, so every vector has a mask."""

    vectors: int
    base: Expr
    start: Expr
    width: int
    tail: int = 0
    masked: bool = False
    ahead: Expr | None = None  # where in B the next panel starts, to be prefetched
    first: Expr | None = None  # blocked reduction: whether this is the first block, whether it is the last
    last: Expr | None = None


@dataclass(frozen=True)
class RowLoads:
    """Loads of B for the register tiles of a plan, from the buffer where tiles read it."""

    c: Contraction
    plan: Plan
    buffer: Buffer

    @property
    def in_panels(self) -> bool:
        """B lies as whole panels."""
        return self.c.packed or self.plan.panel_at >= 0

    @property
    def dots(self) -> bool:
        """For instructions that multiply and add all k of a lane."""
        return self.c.per_lane > 1 and self.c.a != self.c.acc

    def registers(self, block: Block, vectors: int) -> Buffer:
        """For what one turn reads: vectors of lanes of k for dot instructions, else the vectors of each k."""
        c, lanes = self.c, self.plan.lanes
        if self.dots:
            return block.alloc("bv", c.b, vectors, lanes=c.per_lane * lanes)
        return block.alloc("bv", c.acc, vectors * c.per_lane, lanes=lanes)

    def load(self, block: Block, columns: Columns, at: Expr, count: int, out: Buffer) -> None:
        """One row of the panel from `at`, or those of a lane, of which `count` exist, into the registers `out`."""
        nv = columns.vectors
        if self.c.per_lane > 1:
            block.loop("v", 0, nv, 1, lambda x, v: self._together(x, columns, v, at, count, out), unroll=True)
            return
        whole = nv - 1 if columns.tail and not self.in_panels else nv
        block.loop("v", 0, whole, 1, lambda x, v: x.store(out, v, self._vector(columns, at, v)), unroll=True)
        if whole < nv:
            block.store(out, integer(whole), self._tail(block, columns, at, whole))

    def _together(self, block: Block, columns: Columns, v: Expr, at: Expr, count: int, out: Buffer) -> None:
        wide, nv = self.c.per_lane * self.plan.lanes, columns.vectors
        whole = k.load(self.buffer, add(at, mul(v, integer(wide))), wide)
        if self.dots:
            block.store(out, v, whole)
            return
        words = block.let(k.bitcast(whole, u32), "p")
        even, odd = k.binary("shl", words, k.lit(16, u32)), k.binary("and", words, k.lit(0xFFFF0000, u32))
        for h, half in enumerate((even, odd)[:count]):
            block.store(out, add(integer(h * nv), v), k.bitcast(half, f32))

    def _vector(self, columns: Columns, index: Expr, v: Expr) -> Expr:
        """One vector of B, at `index` + v vectors."""
        lanes, axis = self.plan.lanes, self.c.cols[-1]
        mask = None
        if columns.masked and not self.in_panels:
            first = add(columns.start, mul(v, integer(lanes)))
            mask = k.binary("lt", k.ramp(first, lanes), dim_expr(axis.extent))
        if self.in_panels or axis.b == 1:
            return k.cast(k.load(self.buffer, add(index, mul(v, integer(lanes))), lanes, mask), self.c.acc)
        return k.cast(self._strided(index, mul(v, integer(lanes)), mask), self.c.acc)

    def _strided(self, index: Expr, column: Expr, mask: Expr | None) -> Expr:
        """A vector of columns that do not lie side by side."""
        lanes, stride = self.plan.lanes, dim_expr(self.c.cols[-1].b)
        steps = k.binary("mul", k.ramp(ZERO, lanes), stride)
        return k.gather(self.buffer, k.binary("add", steps, add(index, mul(column, stride))), mask)

    def _tail(self, block: Block, columns: Columns, index: Expr, v: int) -> Expr:
        """The last vector of B in place where its columns end inside it, read no further than they go."""
        lanes, tail = self.plan.lanes, columns.tail
        at = add(index, integer(v * lanes))
        mask = k.binary("lt", k.ramp(ZERO, lanes), integer(tail))
        if self.c.cols[-1].b != 1:
            return k.cast(self._strided(index, integer(v * lanes), mask), self.c.acc)
        if self.plan.masks:
            return k.cast(k.load(self.buffer, at, lanes, mask), self.c.acc)
        short = block.let(k.load(self.buffer, at, tail), "t")
        wide = k.Shuffle(short.dtype, lanes, short, short, tuple(min(i, tail - 1) for i in range(lanes)))
        return k.cast(wide, self.c.acc)


__all__ = ["Columns", "RowLoads"]
