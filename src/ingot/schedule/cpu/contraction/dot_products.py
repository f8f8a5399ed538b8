"""Contractions as dot products: vectors run along the reduction in both operands.

    for 8 columns, for 3 rows:
        acc[3][8] = 0                                      24 vector registers
        for k, a vector at a time:
            acc[r][c] += A[row + r, k .. k + 16] * B[column + c, k .. k + 16]
        write(row + r, columns, sums of the lanes of acc[r][0..8])       all eight at once, by shuffles

The register tiles of `macro_kernel.py` have vectors along the columns, which must be contiguous. With one column, or
three as in a network's last convolution, most lanes are empty; a transposed run-time B (queries against keys, a Gram
matrix) must be transposed first. Here both operands are read in place. Few columns and many rows are handled as few
rows and many columns, with swapped operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, floordiv, product
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.ir.types import static_shape
from ingot.schedule.axes import Axis, Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.blocked_sums import LongSums
from ingot.schedule.cpu.contraction.cost_model import min_cycles
from ingot.schedule.cpu.contraction.operands import Index, Operand, Write, write_scalars
from ingot.schedule.cpu.contraction.pack import strided_view
from ingot.schedule.cpu.machine import MEMORY_BYTES_PER_SECOND, Machine
from ingot.schedule.cpu.transpose import fold_lanes
from ingot.schedule.dimension_numbers import Loops, contiguous_reduction_last
from ingot.schedule.index import ZERO, add, delinearize, dim_expr, linear, mul
from ingot.schedule.lowered import Pack
from ingot.support.dataclass import dataclass

Load = Callable[[Buffer, Expr], Expr]

# Cycles outside a tile's reduction loop, and in the epilogue of each result.
_TILE_CYCLES, _CYCLES_PER_RESULT = 20.0, 2.0
_TRANSPOSE_CYCLES_PER_ELEMENT = 0.25  # of a run-time B with strided columns
_CHUNK_SECONDS = 20e-6


@dataclass(frozen=True)
class DotPlan:
    """rows, columns: of a register tile; columns is a power of two up to the lanes of a vector. slots: accumulators per
    result, which hide latency if results are few. tiles, entries: column tiles of a chunk, and its entries of batch,
    outer rows and outer columns."""

    rows: int
    columns: int
    slots: int
    tiles: int = 1
    entries: int = 1


@dataclass(frozen=True)
class DotProducts:
    """A contraction as dot products. c: its axes; vectors of results run along its last column axis. is_swapped: A is
    the op's second operand. pack: the packing of a constant operand, which is then read from element 0."""

    c: Contraction
    loops: Loops
    dots: DotPlan
    is_swapped: bool
    pack: Pack | None


def as_dot_products(
    c: Contraction, loops: Loops, b: tuple[int, DimLike], machine: Machine, max_cycle_ratio: float
) -> DotProducts | None:
    """Return `c` as dot products if they take less than `max_cycle_ratio` times the cycles of its register tiles, else
    None. b: the position of B among the group's inputs, and its offset. A constant B is packed."""
    lanes = machine.lanes(c.acc)
    if estimate(c.k) < lanes or (c.packed and estimate(c.cols[-1].extent) >= lanes):
        return None
    reduce = contiguous_reduction_last(loops).reduce
    pack = None
    candidate = replace(c, reduce=reduce)
    if c.packed:
        pack = _pack_columns(candidate, *static_shape(b))
        packed_axes = _dense_b((*c.batch, *c.cols, *reduce))
        splits = len(c.batch), len(c.batch) + len(c.cols)
        batch, cols = packed_axes[: splits[0]], packed_axes[splits[0] : splits[1]]
        candidate = replace(candidate, batch=batch, cols=cols, reduce=packed_axes[splits[1] :])
    inner = merge_axes(candidate.reduce)[-1]
    if inner.a != 1 or inner.b != 1:
        return None
    orders = [(candidate, False), (candidate.transposed(), True)]
    cycles, best, is_swapped, dots = min(
        ((_cycles(x, machine, d), x, is_swapped, d) for x, is_swapped in orders for d in _plans(x, machine)),
        key=lambda result: result[0],
    )
    tile_cycles = min_cycles(c, machine)
    if not c.packed and c.cols[-1].b != 1 and c.cols[-1].extent != 1:
        tile_cycles += _TRANSPOSE_CYCLES_PER_ELEMENT * estimate(c.k) * estimate(c.cols[-1].extent)
    if cycles >= max_cycle_ratio * tile_cycles:
        return None
    loops = replace(loops, batch=best.batch, rows=best.rows, cols=best.cols, reduce=best.reduce)
    if is_swapped:
        loops = replace(loops, full=_swapped_full(c, loops.full))
    return DotProducts(best, loops, _with_chunks(best, machine, dots, cycles), is_swapped, pack)


def _dense_b(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes with the strides of a dense B."""
    return tuple(replace(x, b=product(y.extent for y in axes[i + 1 :])) for i, x in enumerate(axes))


def _pack_columns(c: Contraction, index: int, offset: int) -> Pack:
    """Return the packing of the constant B, input `index` of the group, column by column."""
    axes = (*c.batch, *c.cols, *c.reduce)
    shape, steps = static_shape(tuple(x.extent for x in axes)), static_shape(tuple(x.b for x in axes))

    def write(array: np.ndarray, out: np.ndarray) -> None:
        out.reshape(shape)[...] = strided_view(array, offset, shape, steps)

    key = f"columns {','.join(f'{n}:{s}' for n, s in zip(shape, steps, strict=True))} @{offset} {c.b}"
    return Pack(index, key, c.b, prod(shape), write)


def _swapped_full(c: Contraction, full: Callable[[Index], Index]) -> Callable[[Index], Index]:
    """Return `full` for indices in the swapped order: batch, columns, rows."""
    batch_rank, columns_end = len(c.batch), len(c.batch) + len(c.cols)
    return lambda place: full((*place[:batch_rank], *place[columns_end:], *place[batch_rank:columns_end]))


# Choosing


def _plans(c: Contraction, machine: Machine) -> Iterator[DotPlan]:
    rows, columns = max(1, estimate(c.rows[-1].extent)), machine.lanes(c.acc)
    while columns:
        for r in range(1, rows + 1):
            if r * columns + r + 1 > machine.registers:  # accumulators, the rows' vectors and one column's vector
                break
            yield DotPlan(r, columns, max(1, machine.fma_latency * machine.fma_per_cycle // (r * columns)))
        columns //= 2


def _cycles(c: Contraction, machine: Machine, plan: DotPlan) -> float:
    """The predicted cycles of one batch entry on one core."""
    lanes, inner = machine.lanes(c.acc), max(1, estimate(merge_axes(c.reduce)[-1].extent))
    steps = estimate(c.k) // inner * -(-inner // lanes)

    def tile_cycles(rows: int) -> float:
        if not rows:
            return 0.0
        widened_vectors = (rows if c.a.nbytes < c.acc.nbytes else 0) + (
            plan.columns if c.b.nbytes < c.acc.nbytes else 0
        )
        arithmetic = (rows * plan.columns + widened_vectors) / machine.fma_per_cycle
        loads = (rows + plan.columns) / machine.loads_per_cycle
        step_cycles = max(arithmetic, loads, machine.fma_latency / plan.slots)
        halvings = (lanes // plan.columns).bit_length() - 1
        fold_cycles = rows * (3 * (plan.columns - 1) + 2 * halvings) / 2
        return steps * step_cycles + fold_cycles + _TILE_CYCLES + _CYCLES_PER_RESULT * rows * plan.columns

    full, tail_rows = divmod(max(1, estimate(c.rows[-1].extent)), plan.rows)
    columns = -(-max(1, estimate(c.cols[-1].extent)) // plan.columns)
    outer = prod(max(1, estimate(x.extent)) for x in (*c.rows[:-1], *c.cols[:-1]))
    return outer * columns * (full * tile_cycles(plan.rows) + tile_cycles(tail_rows))


def _with_chunks(c: Contraction, machine: Machine, plan: DotPlan, cycles: float) -> DotPlan:
    """Return `plan` with chunks of about `_CHUNK_SECONDS`, and several per thread if there is enough work."""
    hertz = machine.gflops * 1e9 / (2 * machine.fma_per_cycle * machine.lanes(c.acc))
    entries = prod(max(1, estimate(x.extent)) for x in (*c.batch, *c.rows[:-1], *c.cols[:-1]))
    rows, columns = max(1, estimate(c.rows[-1].extent)), max(1, estimate(c.cols[-1].extent))
    tiles = -(-columns // plan.columns)
    batch = prod(max(1, estimate(x.extent)) for x in c.batch)
    seconds = max(
        cycles * batch / hertz, entries * (rows + columns) * estimate(c.k) * c.b.nbytes / MEMORY_BYTES_PER_SECOND
    )
    chunks = min(
        max(round(seconds / _CHUNK_SECONDS), min(4 * machine.threads, round(seconds / 2e-6)), 1), entries * tiles
    )
    if chunks <= entries:
        return replace(plan, tiles=tiles, entries=max(1, entries // chunks))
    return replace(plan, tiles=max(1, tiles * entries // chunks))


# Loops


def emit_dot_products(
    top: Block, chunk: k.Var, p: DotProducts, a: Operand, b: Operand, machine: Machine, write: Write
) -> Expr:
    """Emit the loop nest of one chunk into `top`. Return the number of chunks. write(block, index, acc, mask): the
    epilogue, as in `emit_macro_kernel`."""
    return _DotKernel(p.c, p.dots, a, b, machine, write).emit(top, chunk)


@dataclass(frozen=True)
class _TilePosition:
    """The rows and columns of a tile in the result, and their offsets in the operands."""

    batch: Index
    rows: Index
    columns: Index
    a_offset: Expr
    b_offsets: tuple[Expr, ...]


class _DotKernel:
    def __init__(self, c: Contraction, plan: DotPlan, a: Operand, b: Operand, machine: Machine, write: Write) -> None:
        self.c, self.plan, self.a, self.b, self.write = c, plan, a, b, write
        self.lanes, self.has_masks = machine.lanes(c.acc), machine.masks
        self.reduce = merge_axes(c.reduce)
        self.row_axis, self.column_axis = c.rows[-1], c.cols[-1]

    def emit(self, top: Block, chunk: k.Var) -> Expr:
        """chunk -> (batch entries, outer rows and outer columns; block of columns)"""
        c, plan = self.c, self.plan
        axes = (*c.batch, *c.rows[:-1], *c.cols[:-1])
        count, size = product(x.extent for x in axes), self.column_axis.extent
        extents = (ceildiv(count, plan.entries), ceildiv(ceildiv(size, plan.columns), plan.tiles))
        entry_block, column_block = (top.let(e, "c") for e in delinearize(chunk, extents, top.multiples))
        if product(extents) == 1:
            entry_block = column_block = ZERO
        block_columns = plan.tiles * plan.columns
        low = top.let(mul(column_block, integer(block_columns)), "lo")
        high = top.let(k.binary("min", add(low, integer(block_columns)), dim_expr(size)), "hi")

        def emit_entry(x: Block, e: Expr) -> None:
            index = tuple(x.let(i, "e") for i in delinearize(e, tuple(axis.extent for axis in axes), x.multiples))
            a = x.let(linear(index, tuple(axis.a for axis in axes), self.a.offset), "a")
            b = x.let(linear(index, tuple(axis.b for axis in axes), self.b.offset), "b")
            rows_start, columns_start = len(c.batch), len(c.batch) + len(c.rows) - 1
            batch, rows, columns = index[:rows_start], index[rows_start:columns_start], index[columns_start:]
            position = _TilePosition(batch, rows, columns, a, (b,))
            x.loop("n", low, high, plan.columns, lambda y, n: self._column(y, position, n))

        first = top.let(mul(entry_block, integer(plan.entries)), "lo")
        last = top.let(k.binary("min", add(first, integer(plan.entries)), dim_expr(count)), "hi")
        top.loop("e", first, last, 1, emit_entry)
        return dim_expr(product(extents))

    def _column(self, block: Block, position: _TilePosition, n: Expr) -> None:
        """Emit all rows of the columns from `n`. Columns beyond the last one read its elements."""
        plan, size, extent = self.plan, self.column_axis.extent, self.row_axis.extent
        columns = [add(n, integer(j)) for j in range(plan.columns)]
        if not isinstance(size, int) or size % plan.columns:
            columns = [k.binary("min", x, dim_expr(size - 1)) for x in columns]
        b = tuple(block.let(add(position.b_offsets[0], mul(x, dim_expr(self.column_axis.b))), "b") for x in columns)

        def emit_tile(x: Block, m: Expr, rows: int) -> None:
            a = x.let(add(position.a_offset, mul(m, dim_expr(self.row_axis.a))), "a")
            indices = (*position.rows, m), (*position.columns, n)
            self._tile(x, _TilePosition(position.batch, *indices, a, b), rows)

        full_rows = floordiv(extent, plan.rows) * plan.rows
        block.loop("m", 0, full_rows, plan.rows, lambda x, m: emit_tile(x, m, plan.rows))
        if isinstance(extent, int) and isinstance(full_rows, int):
            if full_rows < extent:
                emit_tile(block, integer(full_rows), extent - full_rows)
        elif plan.rows > 1:
            block.loop("m", full_rows, extent, 1, lambda x, m: emit_tile(x, m, 1))

    def _tile(self, block: Block, position: _TilePosition, rows: int) -> None:
        c, plan = self.c, self.plan
        acc = block.alloc("acc", c.acc, plan.slots * rows * plan.columns, lanes=self.lanes)
        zero = k.lit(0.0 if c.acc.is_float else 0, c.acc, self.lanes)
        block.loop("i", 0, plan.slots * rows * plan.columns, 1, lambda x, i: x.store(acc, i, zero), unroll=True)

        def multiply(x: Block, offsets: tuple[Expr, Expr], load: Load, slot: int) -> None:
            starts = [add(position.a_offset, mul(integer(r), dim_expr(self.row_axis.a))) for r in range(rows)]
            row = [x.let(load(self.a.buffer, add(start, offsets[0])), "x") for start in starts]
            for j, start in enumerate(position.b_offsets):
                column = x.let(load(self.b.buffer, add(start, offsets[1])), "y")
                for r in range(rows):
                    acc_index = integer((slot * rows + r) * plan.columns + j)
                    x.store(acc, acc_index, k.fma(row[r], column, k.load(acc, acc_index)))

        def emit_loops(x: Block, axes: tuple[Axis, ...], offsets: tuple[Expr, Expr]) -> None:
            axis, inner_axes, level = axes[0], axes[1:], len(self.reduce) - len(axes)

            def offsets_at(i: Expr) -> tuple[Expr, Expr]:
                return add(offsets[0], mul(i, dim_expr(axis.a))), add(offsets[1], mul(i, dim_expr(axis.b)))

            if inner_axes:
                sums.loop(x, level, "k", 0, axis.extent, 1, lambda y, i: emit_loops(y, inner_axes, offsets_at(i)))
            else:
                self._innermost(x, axis.extent, sums, lambda y, i, load, slot: multiply(y, offsets_at(i), load, slot))

        step = self.lanes * plan.slots
        sums = LongSums.of(block, (acc,), [x.extent for x in self.reduce], step, step)
        emit_loops(block, self.reduce, (ZERO, ZERO))
        sums.finish(block)
        self._finish(block, position, acc, rows)

    def _innermost(
        self, block: Block, extent: DimLike, sums: LongSums, emit_step: Callable[[Block, Expr, Load, int], None]
    ) -> None:
        """Emit full vectors of the reduction, one per slot and step, then the remaining vectors and elements."""
        lanes, acc = self.lanes, self.c.acc
        step, full_end = lanes * self.plan.slots, floordiv(extent, lanes) * lanes
        steps_end = floordiv(extent, step) * step

        def load_vector(buffer: Buffer, offset: Expr) -> Expr:
            return k.cast(k.load(buffer, offset, lanes), acc)

        def emit_slots(x: Block, i: Expr) -> None:
            for slot in range(self.plan.slots):
                emit_step(x, add(i, integer(slot * lanes)), load_vector, slot)

        sums.loop(block, len(self.reduce) - 1, "k", 0, steps_end, step, emit_slots)
        block.loop("k", steps_end, full_end, lanes, lambda x, i: emit_step(x, i, load_vector, 0))
        if full_end == extent:
            return
        if not self.has_masks:
            zero = k.lit(0.0 if acc.is_float else 0, acc)

            def load_scalar(buffer: Buffer, offset: Expr) -> Expr:
                return k.Shuffle(acc, lanes, k.cast(k.load(buffer, offset), acc), zero, (0, *(1,) * (lanes - 1)))

            block.loop("k", full_end, extent, 1, lambda x, i: emit_step(x, i, load_scalar, 0))
            return
        mask = block.let(k.binary("lt", k.ramp(ZERO, lanes), dim_expr(extent - full_end)), "mask")
        emit_step(block, dim_expr(full_end), lambda buffer, offset: k.cast(k.load(buffer, offset, lanes, mask), acc), 0)

    def _finish(self, block: Block, position: _TilePosition, acc: Buffer, rows: int) -> None:
        plan, (*outer, n), size = self.plan, position.columns, self.column_axis.extent
        has_tail = plan.columns > 1 and (not isinstance(size, int) or size % plan.columns != 0)
        index = k.ramp(n, plan.columns) if plan.columns > 1 else n
        for r in range(rows):
            total = self._total(block, acc, rows, r)
            row_index = (*position.batch, *position.rows[:-1], add(position.rows[-1], integer(r)), *outer)
            if not has_tail:
                self.write(block, (*row_index, index), total, None)
            elif self.has_masks:
                mask = block.let(k.binary("lt", index, dim_expr(size)), "mask")
                self.write(block, (*row_index, index), total, mask)
            else:
                write_scalars(block, row_index, n, total, size, self.write)

    def _total(self, block: Block, acc: Buffer, rows: int, r: int) -> Expr:
        """The sums of row `r`."""
        plan, sums = self.plan, []
        for j in range(plan.columns):
            slots = [k.load(acc, integer((slot * rows + r) * plan.columns + j)) for slot in range(plan.slots)]
            while len(slots) > 1:
                slots = [k.add(*slots[i : i + 2]) if len(slots) > i + 1 else slots[i] for i in range(0, len(slots), 2)]
            sums.append(block.let(slots[0], "o"))
        if plan.columns == 1:
            return k.reduce("add", sums[0])
        total = fold_lanes(block, sums)
        while total.lanes > plan.columns:
            half = total.lanes // 2
            low, high = (k.Shuffle(total.dtype, half, total, total, tuple(range(i, i + half))) for i in (0, half))
            total = block.let(k.add(low, high), "o")
        return total


__all__ = ["DotProducts", "as_dot_products", "emit_dot_products"]
