"""Products of bytes with block-sparse constant weights: `sparse.py` with dot instructions.

Blocks come in runs of four (`ops.Densify`), which a lane of a dot instruction sums at once. Their four k are arbitrary,
so the vectors of A at these k are interleaved in registers, once for all outputs of the run:

    for run of the group:
        x[4] = interleave(turned[columns[run, 0]], ..., turned[columns[run, 3]])     4 bytes of a row in each lane
        acc[j][v] += dot(x[v], splat(values[run, j]))

Sums are exact in i32, and zero weights contribute nothing. Interleaving stays within segments of vectors, so it
permutes rows; A is transposed with rows in the order that this permutation undoes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr, integer
from ingot.ir.types import DType, i8, i32, i64, u8, u32
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.compressed.sparse import Place, SparseProducts
from ingot.schedule.cpu.transpose import SEGMENT_BYTES, interleave_segments
from ingot.schedule.index import add, mul


class SparseBytes(SparseProducts):
    """See module: u8 by i8."""

    a_dtype: ClassVar[DType] = u8
    summed: ClassVar[DType] = i32

    def _transpose_buffers(self) -> tuple[tuple[str, DType, int], ...]:
        return (("turned", u8, self.wide * self.k),)

    def _row_of(self, lane: int) -> int:
        segment = min(SEGMENT_BYTES, self.rows_per_vector)
        lanes_per_segment = segment // 4  # of the lanes of sums
        segment_index, (vector, place) = lane // segment, divmod(lane % segment, lanes_per_segment)
        return vector * self.lanes + segment_index * lanes_per_segment + place

    def _finiteness_checks(
        self, block: Block, outputs: Sequence[Place]
    ) -> tuple[Callable[[Block, Expr, int], None], Callable[[], None]]:
        return lambda b, column, j: None, lambda: None

    def _scratch(self) -> tuple[tuple[str, DType, int], ...]:
        return ()

    def _begin(self, top: Block, outputs: Sequence[Place]) -> None:
        pass

    def _group(self, block: Block, group: Expr, group_in_panel: Expr) -> None:
        begin, end, out = self._span(block, group, group_in_panel)
        for low in range(0, self.height, self.plan.rows_at_once):
            self._dots(block, begin, end, out, low)

    def _dots(self, block: Block, begin: Expr, end: Expr, out: Expr, low: int) -> None:
        """Emit the sums of as many outputs, from output `low` on, as registers hold."""
        rows, lanes, height = self.plan.rows_at_once, self.lanes, self.height
        acc = block.alloc("acc", i32, rows * 4, lanes=lanes)
        for i in range(rows * 4):
            block.store(acc, integer(i), k.lit(0, i32, lanes))

        def run(b: Block, q: Expr) -> None:
            first = mul(q, integer(4))
            ks = [b.let(k.cast(k.load(self.columns, add(first, integer(i))), i64), "k") for i in range(4)]
            starts = [b.let(add(self.at, mul(p, integer(self.wide))), "a") for p in ks]
            x = [b.let(k.load(self.transposed, start, self.rows_per_vector), "x") for start in starts]
            x = interleave_segments(b, x)
            weight = b.let(mul(add(mul(q, integer(height)), integer(low)), integer(4)), "w")
            for j in range(rows):
                word = k.bitcast(k.load(self.values, add(weight, integer(4 * j)), 4), u32)
                value = b.let(k.bitcast(k.splat(word, lanes), i8), "s")
                for v in range(4):
                    i = integer(j * 4 + v)
                    b.store(acc, i, k.dot(x[v], value, k.load(acc, i)))

        block.loop("q", begin, end, 1, run)
        for j in range(rows):
            for v in range(4):
                at = add(out, integer((low + j) * self.wide + v * lanes))
                block.store(self.sums, at, k.load(acc, integer(j * 4 + v)))


__all__ = ["SparseBytes"]
