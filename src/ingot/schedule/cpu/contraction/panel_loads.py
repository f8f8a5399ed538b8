"""The loads of B in a contraction's loop nest: one row of a column panel at a time, into registers.

A B that is packed, or transposed into a panel in scratch, is one contiguous stream. A B in place has contiguous or
strided columns, and the last vector of a panel must not be read beyond the last column.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.ir.types import f32, u32
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.compressed.block_quantized import Place
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.index import ZERO, add, dim_expr, mul
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Columns:
    """A column panel.

    vectors, width: its vectors and its columns, rounded up to full vectors. base: its offset in B. tail_lanes: the
    valid lanes of its last vector (0: all). is_masked: the number of columns is dynamic, so every vector has a mask.
    next_panel: the offset in B of the next panel, to be prefetched. is_first_block, is_last_block: whether this is the
    first or last block of a blocked reduction. place: where quantized levels are that tiles multiply directly.
    """

    vectors: int
    base: Expr
    first_column: Expr
    width: int
    tail_lanes: int = 0
    is_masked: bool = False
    next_panel: Expr | None = None
    is_first_block: Expr | None = None
    is_last_block: Expr | None = None
    place: Place | None = None


@dataclass(frozen=True)
class RowLoads:
    """The loads of B by the register tiles of a plan. buffer: the buffer that tiles read."""

    c: Contraction
    plan: Plan
    buffer: Buffer

    @property
    def reads_panels(self) -> bool:
        """Whether B is stored in panels."""
        return self.c.packed or self.plan.panel_offset >= 0

    @property
    def uses_dot(self) -> bool:
        """Whether tiles use dot instructions, which multiply and add all k of a 32-bit lane."""
        return self.c.k_per_lane > 1 and self.c.a != self.c.acc

    def registers(self, block: Block, vectors: int) -> Buffer:
        """Allocate the registers that one step loads: vectors of the k of a lane for dot instructions, otherwise the
        vectors of each k."""
        c, lanes = self.c, self.plan.lanes
        if self.uses_dot:
            dtype = c.a if c.a.bits > c.b.bits else c.b
            return block.alloc("bv", dtype, vectors, lanes=c.k_per_lane * lanes)
        return block.alloc("bv", c.acc, vectors * c.k_per_lane, lanes=lanes)

    def load(self, block: Block, columns: Columns, offset: Expr, count: int, registers: Buffer) -> None:
        """Load one row of the panel at `offset`, or the `count` valid rows of a 32-bit lane, into `registers`."""
        nv = columns.vectors
        if self.c.k_per_lane > 1:
            block.loop(
                "v", 0, nv, 1, lambda x, v: self._load_lanes(x, columns, v, offset, count, registers), unroll=True
            )
            return
        full_vectors = nv - 1 if columns.tail_lanes and not self.reads_panels else nv
        block.loop(
            "v", 0, full_vectors, 1, lambda x, v: x.store(registers, v, self._vector(columns, offset, v)), unroll=True
        )
        if full_vectors < nv:
            block.store(registers, integer(full_vectors), self._tail(block, columns, offset, full_vectors))

    def _load_lanes(self, block: Block, columns: Columns, v: Expr, offset: Expr, count: int, registers: Buffer) -> None:
        lane_elements, nv = self.c.k_per_lane * self.plan.lanes, columns.vectors
        vector = k.load(self.buffer, add(offset, mul(v, integer(lane_elements))), lane_elements)
        if self.uses_dot:
            block.store(registers, v, k.cast(vector, registers.dtype))
            return
        words = block.let(k.bitcast(vector, u32), "p")
        even, odd = k.binary("shl", words, k.lit(16, u32)), k.binary("and", words, k.lit(0xFFFF0000, u32))
        for h, half in enumerate((even, odd)[:count]):
            block.store(registers, add(integer(h * nv), v), k.bitcast(half, f32))

    def _vector(self, columns: Columns, offset: Expr, v: Expr) -> Expr:
        """The vector of B at `offset` + v vectors."""
        lanes, axis = self.plan.lanes, self.c.cols[-1]
        mask = None
        if columns.is_masked and not self.reads_panels:
            first = add(columns.first_column, mul(v, integer(lanes)))
            mask = k.binary("lt", k.ramp(first, lanes), dim_expr(axis.extent))
        if self.reads_panels or axis.b == 1:
            return k.cast(k.load(self.buffer, add(offset, mul(v, integer(lanes))), lanes, mask), self.c.acc)
        return k.cast(self._strided(offset, mul(v, integer(lanes)), mask), self.c.acc)

    def _strided(self, offset: Expr, column: Expr, mask: Expr | None) -> Expr:
        """A vector of strided columns."""
        lanes, stride = self.plan.lanes, dim_expr(self.c.cols[-1].b)
        steps = k.binary("mul", k.ramp(ZERO, lanes), stride)
        return k.gather(self.buffer, k.binary("add", steps, add(offset, mul(column, stride))), mask)

    def _tail(self, block: Block, columns: Columns, offset: Expr, v: int) -> Expr:
        """The last, partial vector of a B in place, read only up to the last column."""
        lanes, tail = self.plan.lanes, columns.tail_lanes
        tail_offset = add(offset, integer(v * lanes))
        mask = k.binary("lt", k.ramp(ZERO, lanes), integer(tail))
        if self.c.cols[-1].b != 1:
            return k.cast(self._strided(offset, integer(v * lanes), mask), self.c.acc)
        if self.plan.has_masks:
            return k.cast(k.load(self.buffer, tail_offset, lanes, mask), self.c.acc)
        short = block.let(k.load(self.buffer, tail_offset, tail), "t")
        wide = k.Shuffle(short.dtype, lanes, short, short, tuple(min(i, tail - 1) for i in range(lanes)))
        return k.cast(wide, self.c.acc)


__all__ = ["Columns", "RowLoads"]
