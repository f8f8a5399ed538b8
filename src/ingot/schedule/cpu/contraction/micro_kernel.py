"""The register tile of a contraction: accumulators in registers, the loops over the reduction, and the epilogue.

    acc[r][c] = 0
    for k:  b[0..3] = B[panel, k]                         vector loads
            acc[r][c] += splat(A[row + r, k]) * b[c]
    write(row + r, column + c, acc[r][c])

All offsets inside a tile are immediates if the strides are static. `macro_kernel.py` has the loops around the tile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import Dim, DimLike, ceildiv, floordiv, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.types import u8, u16, u32
from ingot.schedule.axes import Axis, Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.blocked_sums import LongSums
from ingot.schedule.cpu.contraction.operands import (
    ComputedA,
    Index,
    LineEpilogue,
    Operand,
    PrefetchInputs,
    Write,
    write_scalars,
)
from ingot.schedule.cpu.contraction.panel_loads import Columns, RowLoads
from ingot.schedule.cpu.contraction.plan import Plan, scattered_run
from ingot.schedule.index import ZERO, add, dim_expr, integer, mul
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class TileRows:
    """The rows of one register tile: `lines` lines by `rows` rows, from (*line_index, first_row).

    a_offset: the offset of its first element in A. chunk_row: its first row, counted from the start of the chunk.
    is_first: whether it is the first tile of its lines in the chunk.
    """

    line_index: Index
    first_row: Expr
    lines: int
    rows: int
    a_offset: Expr
    chunk_row: Expr
    is_first: Expr


@dataclass(frozen=True)
class _KStep:
    """One step of the reduction. a_offset, b_offset: of its first element in A and B. a_stride: of k in A. count: the
    number of k that it covers."""

    acc: Buffer
    b_vectors: Buffer
    a_offset: Expr
    b_offset: Expr
    a_stride: DimLike
    count: int


@dataclass(frozen=True)
class _KPosition:
    """The position of the reduction loops: offsets in A and B, and k counted over all reduction axes."""

    a_offset: Expr
    b_offset: Expr
    k: Expr


def _each_row(block: Block, tile: TileRows, body: Callable[[Block, Expr, Expr], None]) -> None:
    def line(b: Block, i: Expr) -> None:
        b.loop("j", 0, tile.rows, 1, lambda x, j: body(x, i, j), unroll=True)

    block.loop("i", 0, tile.lines, 1, line, unroll=True)


class MicroKernel:
    """Emits the register tiles of a loop nest.

    batch_index, outer_column_index: of the current batch entry and outer columns. a_buffer: the buffer that tiles read
    A from. loads: the loads of B. partial_sums: scratch for the sums of a blocked reduction.
    """

    def __init__(
        self,
        c: Contraction,
        plan: Plan,
        a: Operand | ComputedA,
        b: Buffer,
        write: Write,
        prefetch_inputs: PrefetchInputs | None,
        line_epilogue: LineEpilogue | None,
    ) -> None:
        self.c, self.plan, self.write = c, plan, write
        self.prefetch_inputs, self.line_epilogue = prefetch_inputs, line_epilogue
        self.reduce = merge_axes(c.reduce)
        self.columns = c.cols[-1].extent
        self.row_axis = c.rows[-1]
        self.line_axis = c.rows[-2] if len(c.rows) > 1 else Axis(1)
        self.batch_index: Index = ()
        self.outer_column_index: Index = ()
        self.partial_sums = Buffer("none", c.acc)
        self.scattered_run = scattered_run(c) if isinstance(a, Operand) else 0
        self.a_buffer = a.buffer if isinstance(a, Operand) else Buffer("none", c.a)
        self.loads = RowLoads(c, plan, b)

    def tile(self, block: Block, columns: Columns, tile: TileRows) -> None:
        """Emit one tile: its sums over the reduction, or over one k block, and the epilogue after the last block."""
        acc_type, lanes = self.c.acc, self.plan.lanes
        size = tile.lines * tile.rows * columns.vectors
        acc = block.alloc("acc", acc_type, size, lanes=lanes)
        b_vectors = self.loads.registers(block, columns.vectors)
        zero = k.lit(0.0 if acc_type.is_float else 0, acc_type, lanes)
        partial_base = mul(tile.chunk_row, integer(self.plan.lines * self.plan.panel_columns))

        def partial_offset(i: Expr) -> Expr:
            return add(partial_base, mul(i, integer(lanes)))

        def add_partial_sums(x: Block) -> None:
            def one(b: Block, i: Expr) -> None:
                b.store(acc, i, k.add(k.load(self.partial_sums, partial_offset(i), lanes), k.load(acc, i)))

            x.loop("i", 0, size, 1, one, unroll=True)

        def store_partial_sums(x: Block) -> None:
            def store(b: Block, i: Expr) -> None:
                b.store(self.partial_sums, partial_offset(i), k.load(acc, i))

            x.loop("i", 0, size, 1, store, unroll=True)

        block.loop("i", 0, size, 1, lambda b, i: b.store(acc, i, zero), unroll=True)
        prefetch_start = self._prefetch_start(block, columns, tile)
        if self.prefetch_inputs is not None and columns.is_last_block is None:
            self._prefetch_rows(block, columns, tile, self.prefetch_inputs)
        self._accumulate(block, columns, tile, acc, b_vectors, prefetch_start)
        if columns.is_first_block is not None:
            block.when(k.unary("not", columns.is_first_block), add_partial_sums)
        if columns.is_last_block is None:
            self.epilogue(block, columns, tile, acc)
        else:
            block.when(columns.is_last_block, lambda b: self.epilogue(b, columns, tile, acc), store_partial_sums)

    def _prefetch_start(self, block: Block, columns: Columns, tile: TileRows) -> Expr | None:
        """The offset of the part of the next panel that the tile prefetches."""
        if columns.next_panel is None:
            return None
        share = self._prefetched_elements_per_k()
        # tiles beyond the panel's end prefetch its last part again, at no cost
        max_part = ceildiv(columns.width, share) - 1
        number = k.binary("div", tile.chunk_row, integer(self.plan.width))
        part = k.binary("min", number, dim_expr(max_part))
        k_count = floordiv(self.c.k * (self.plan.k_block or self.reduce[0].extent), self.reduce[0].extent)
        return block.let(add(columns.next_panel, mul(part, dim_expr(k_count * share))), "pf")

    def _accumulate(
        self,
        block: Block,
        columns: Columns,
        tile: TileRows,
        acc: Buffer,
        b_vectors: Buffer,
        prefetch_start: Expr | None,
    ) -> None:
        """Emit the loops over k."""
        per_lane = self.c.k_per_lane
        panel_stride: DimLike = columns.width  # between neighbouring k of a packed panel
        extents = [self.plan.k_block or self.reduce[0].extent, *(x.extent for x in self.reduce[1:])]
        sums = LongSums.of(block, (acc,), extents, self.plan.unroll)

        inner = self.reduce[-1]

        def multiply(x: Block, position: _KPosition, index: Expr, count: int) -> None:
            a_offset = add(position.a_offset, mul(index, dim_expr(inner.a)))
            b_stride = panel_stride if self.loads.reads_panels else inner.b
            b_offset = add(position.b_offset, mul(index, dim_expr(b_stride)))
            self._multiply(x, columns, tile, _KStep(acc, b_vectors, a_offset, b_offset, inner.a, count))

        def innermost(b: Block, position: _KPosition) -> None:
            def emit_step(x: Block, i: Expr) -> None:
                if prefetch_start is not None:
                    self._prefetch(x, prefetch_start, add(position.k, i))
                if self.scattered_run:
                    self._prefetch_scattered_runs(x, tile, position.a_offset, i)

                def unrolled(y: Block, u: Expr) -> None:
                    multiply(y, position, add(i, u), per_lane)

                x.loop("u", 0, self.plan.unroll, per_lane, unrolled, unroll=True)

            extent = extents[-1]
            remainder = 0 if isinstance(extent, Dim) else extent % per_lane
            sums.loop(b, len(extents) - 1, "k", 0, extent - remainder, self.plan.unroll, emit_step)
            if remainder:
                multiply(b, position, dim_expr(extent - remainder), remainder)

        def emit_loop(level: int, visit: Callable[[Block, _KPosition], None], b: Block, position: _KPosition) -> None:
            axis = self.reduce[level]
            inner_k = product(x.extent for x in self.reduce[level + 1 :])
            if per_lane > 1:
                # a panel's rows include the padding of the innermost axis
                inner_k = floordiv(inner_k, inner.extent) * ceildiv(inner.extent, per_lane) * per_lane
            b_stride: DimLike = inner_k * panel_stride if self.loads.reads_panels else axis.b

            def emit_step(x: Block, i: Expr) -> None:
                a_offset = add(position.a_offset, mul(i, dim_expr(axis.a)))
                b_offset = add(position.b_offset, mul(i, dim_expr(b_stride)))
                visit(x, _KPosition(a_offset, b_offset, add(position.k, mul(i, dim_expr(inner_k)))))

            sums.loop(b, level, "k", *self._nonzero_range(b, tile, axis, extents[level]), 1, emit_step)

        visit: Callable[[Block, _KPosition], None] = innermost
        for level in reversed(range(len(extents) - 1)):
            visit = functools.partial(emit_loop, level, visit)
        visit(block, _KPosition(tile.a_offset, columns.base, ZERO))
        sums.finish(block)

    def _nonzero_range(self, block: Block, tile: TileRows, axis: Axis, extent: DimLike) -> tuple[Expr, Expr]:
        """The range of a window's loop outside of which all rows of the tile read only padding."""
        low, high, inside = ZERO, dim_expr(extent), axis.valid_taps
        if inside is None or self.plan.k_block:
            return low, high
        if tile.line_index and inside.matches(self.line_axis):
            first, count = tile.line_index[-1], tile.lines
        elif inside.matches(self.row_axis):
            first, count = tile.first_row, tile.rows
        else:
            return low, high
        dilation, start = integer(inside.dilation), mul(first, integer(inside.step))
        end = add(start, integer((count - 1) * inside.step))
        low_bound = k.sub(integer(inside.low + inside.dilation - 1), end)
        high_bound = k.sub(dim_expr(inside.high - 1), start)
        low = k.binary("max", low, k.binary("div", low_bound, dilation))
        high = k.binary("min", high, add(k.binary("div", high_bound, dilation), integer(1)))
        return block.let(low, "k"), block.let(high, "k")

    def _prefetch_rows(self, block: Block, columns: Columns, tile: TileRows, prefetch_inputs: PrefetchInputs) -> None:
        def prefetch_row(b: Block, i: Expr, j: Expr) -> None:
            line = (*tile.line_index[:-1], add(tile.line_index[-1], i)) if tile.line_index else ()
            index = (*self.batch_index, *line, add(tile.first_row, j), *self.outer_column_index, columns.first_column)
            prefetch_inputs(b, index, columns.vectors * self.plan.lanes)

        _each_row(block, tile, prefetch_row)

    def _prefetch_scattered_runs(self, block: Block, tile: TileRows, a_offset: Expr, i: Expr) -> None:
        """Prefetch some of the runs that the tile one line group further on reads at this step of the reduction."""
        rows_per_step = -(-tile.rows // -(-self.scattered_run // self.plan.unroll))
        first = add(a_offset, dim_expr(self.plan.lines * self.line_axis.a))
        step_offset = mul(k.binary("div", i, integer(self.plan.unroll)), dim_expr(self.row_axis.a * rows_per_step))
        for line in range(tile.lines):
            for r in range(rows_per_step):
                offset = add(add(first, dim_expr(self.line_axis.a * line + self.row_axis.a * r)), step_offset)
                block.stmts.append(k.Prefetch(self.a_buffer, offset))

    def _prefetched_elements_per_k(self) -> int:
        """The number of elements of the next panel that a tile prefetches per k."""
        return max(1, self.plan.prefetch_lines * (64 // self.c.b.nbytes) // self.plan.unroll)

    def _prefetch(self, block: Block, prefetch_start: Expr, k_index: Expr) -> None:
        line = 64 // self.c.b.nbytes
        start = add(prefetch_start, mul(k_index, integer(self._prefetched_elements_per_k())))
        for i in range(self.plan.prefetch_lines):
            block.stmts.append(k.Prefetch(self.loads.buffer, add(start, integer(i * line))))

    def _multiply(self, block: Block, columns: Columns, tile: TileRows, step: _KStep) -> None:
        """acc += the outer product of a column of A's tile and a row of B's panel, or of the k of one 32-bit lane."""
        nv = columns.vectors
        self.loads.load(block, columns, step.b_offset, step.count, step.b_vectors)

        def row(x: Block, i: Expr, j: Expr) -> None:
            r = add(mul(i, integer(tile.rows)), j)
            row_offset = add(mul(i, dim_expr(self.line_axis.a)), mul(j, dim_expr(self.row_axis.a)))
            offset = add(step.a_offset, row_offset)
            if self.loads.uses_dot:
                a_lanes = x.let(self._splat_a(offset, step.count), "s")

                def dot(y: Block, v: Expr) -> None:
                    slot = add(mul(r, integer(nv)), v)
                    y.store(step.acc, slot, k.dot(a_lanes, k.load(step.b_vectors, v), k.load(step.acc, slot)))

                x.loop("v", 0, nv, 1, dot, unroll=True)
                return
            for h in range(step.count):
                value = k.cast(k.load(self.a_buffer, add(offset, mul(integer(h), dim_expr(step.a_stride)))), self.c.acc)
                value = x.let(k.splat(value, self.plan.lanes), "s")

                def multiply(y: Block, v: Expr, h: int = h, value: Expr = value) -> None:
                    slot = add(mul(r, integer(nv)), v)
                    b_vector = k.load(step.b_vectors, add(integer(h * nv), v))
                    sums = k.load(step.acc, slot)
                    if self.c.of_signs:
                        y.store(step.acc, slot, k.add(sums, k.unary("popcnt", k.binary("xor", value, b_vector))))
                        return
                    y.store(step.acc, slot, k.fma(value, b_vector, sums))

                x.loop("v", 0, nv, 1, multiply, unroll=True)

        _each_row(block, tile, row)

    def _splat_a(self, offset: Expr, count: int) -> Expr:
        """Return `count` consecutive k of A, padded with zeros, in every lane."""
        a, per_lane = self.a_buffer, self.c.k_per_lane
        if per_lane > 4 and self.plan.lanes == 1:
            mask = None if count == per_lane else k.binary("lt", k.ramp(ZERO, per_lane), integer(count))
            return k.load(a, offset, per_lane, mask)
        if count == per_lane:
            word = k.bitcast(k.load(a, offset, per_lane), u32)
        else:
            bits = u16 if a.dtype.bits == 16 else u8
            words = (k.cast(k.bitcast(k.load(a, add(offset, integer(i))), bits), u32) for i in range(count))
            shifted = (k.binary("shl", x, k.lit(i * bits.bits, u32)) for i, x in enumerate(words))
            word = functools.reduce(lambda x, y: k.binary("or", x, y), shifted)
        return k.bitcast(k.splat(word, self.plan.lanes), a.dtype)

    def epilogue(self, block: Block, columns: Columns, tile: TileRows, acc: Buffer) -> None:
        """Pass the sums in `acc` to `write`, one vector at a time."""
        lanes, nv, line_index = self.plan.lanes, columns.vectors, tile.line_index

        def write_column_vector(b: Block, v: Expr, is_full: bool) -> None:
            n = add(columns.first_column, mul(v, integer(lanes)))

            def write_row(x: Block, i: Expr, j: Expr) -> None:
                value = k.load(acc, add(mul(add(mul(i, integer(tile.rows)), j), integer(nv)), v))
                self._write_vector(x, row_index(i, j), n, value, columns, is_full)

            def row_index(i: Expr, j: Expr) -> Index:
                line = (*line_index[:-1], add(line_index[-1], i)) if line_index else ()
                return (*self.batch_index, *line, add(tile.first_row, j), *self.outer_column_index)

            if self.line_epilogue is None:
                _each_row(b, tile, write_row)
                return
            line_epilogue, index, mask = self.line_epilogue, *self._column_lanes(b, n, columns, is_full)

            def write_line(x: Block, i: Expr) -> None:
                line_epilogue.begin(x, index.lanes)
                x.loop("j", 0, tile.rows, 1, lambda y, j: write_row(y, i, j), unroll=True)
                line_epilogue.end(x, (*row_index(i, ZERO), index), mask, tile.is_first)

            b.loop("i", 0, tile.lines, 1, write_line, unroll=True)

        full_vectors = nv - 1 if columns.tail_lanes else nv
        block.loop("v", 0, full_vectors, 1, lambda b, v: write_column_vector(b, v, True), unroll=True)
        if columns.tail_lanes:
            write_column_vector(block, integer(full_vectors), False)

    def _write_vector(
        self, block: Block, row_index: Index, n: Expr, value: Expr, columns: Columns, is_full: bool
    ) -> None:
        if (columns.is_masked or not is_full) and not self.plan.has_masks and not columns.tail_lanes:
            write_scalars(block, row_index, n, value, self.columns, self.write)
            return
        index, mask = self._column_lanes(block, n, columns, is_full)
        if index.lanes < value.lanes:
            value = k.Shuffle(value.dtype, index.lanes, value, value, tuple(range(index.lanes)))
        self.write(block, (*row_index, index), value, mask)

    def _column_lanes(self, block: Block, n: Expr, columns: Columns, is_full: bool) -> tuple[Expr, Expr | None]:
        """Return the columns of the vector at column `n` and its mask. Without mask registers the vector is shortened
        to the valid columns."""
        lanes = self.plan.lanes
        if (columns.is_masked or not is_full) and self.plan.has_masks:
            return k.ramp(n, lanes), block.let(k.binary("lt", k.ramp(n, lanes), dim_expr(self.columns)), "mask")
        lanes = lanes if is_full else columns.tail_lanes
        return (k.ramp(n, lanes) if lanes > 1 else n), None


__all__ = ["MicroKernel", "TileRows"]
