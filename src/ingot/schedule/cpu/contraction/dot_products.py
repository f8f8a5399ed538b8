"""Contractions as dot products: vectors run along the reduction, in both operands.

    for 8 columns, for 3 rows:
        acc[3][8] = 0                                      24 vector registers
        for k, a vector at a time:
            acc[r][c] += A[row + r, k .. k + 16] * B[column + c, k .. k + 16]
        write(row + r, columns, sums of the lanes of acc[r][0..8])       all eight at once, by shuffles

A register tile of `macro_kernel.py` has vectors along columns, which have to fill them and to lie side by side. Where
there is one column, or three as in a network's last convolution, most lanes are empty; where a run-time B is transposed
(queries against keys, a Gram matrix), it has to be turned first. Here both operands are read as they lie. Few columns
and many rows are the same as few rows and many columns, with the operands changed round.
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
from ingot.schedule.cpu.contraction.cost_model import least_cycles
from ingot.schedule.cpu.contraction.operands import Index, Operand, Write, one_by_one
from ingot.schedule.cpu.contraction.pack import stepped
from ingot.schedule.cpu.machine import STREAM, Machine
from ingot.schedule.cpu.transpose import fold_lanes
from ingot.schedule.dimension_numbers import Loops, contiguous_last
from ingot.schedule.index import ZERO, add, delinearize, dim_expr, linear, mul
from ingot.schedule.lowered import Pack
from ingot.support.dataclass import dataclass

Read = Callable[[Buffer, Expr], Expr]

# Cycles around a tile's reduction loop, and of one more result: its share of the epilogue.
_ENTRY, _PER_RESULT = 20.0, 2.0
_TURNED = 0.25  # cycles to turn an element of a run-time B whose columns do not lie side by side
_CHUNK = 20e-6  # seconds


@dataclass(frozen=True)
class DotPlan:
    """rows, columns: of a register tile, columns a power of two no larger than a vector. slots: accumulators of each
    result, which hide latency where results are few. tiles, entries: tiles of columns, and entries of batch, outer rows
    and outer columns, of a chunk."""

    rows: int
    columns: int
    slots: int
    tiles: int = 1
    entries: int = 1


@dataclass(frozen=True)
class Products:
    """A contraction to be computed so. c: its axes; its last column axis has the vectors of results. changed: A is the
    op's second operand. pack: the layout of a constant operand, which is then read from element 0."""

    c: Contraction
    loops: Loops
    dots: DotPlan
    changed: bool
    pack: Pack | None


def as_dot_products(
    c: Contraction, loops: Loops, b: tuple[int, DimLike], machine: Machine, part: float
) -> Products | None:
    """The contraction `c` with these loops as dot products, where they take less than `part` of the cycles of its
    register tiles. b: the group's input that B is, and its offset there; one that is constant is packed."""
    lanes = machine.lanes(c.acc)
    if estimate(c.k) < lanes or (c.packed and estimate(c.cols[-1].extent) >= lanes):
        return None
    reduce = contiguous_last(loops).reduce
    pack = None
    plain = replace(c, reduce=reduce)
    if c.packed:
        pack = _packed(plain, *static_shape(b))
        own = _dense((*c.batch, *c.cols, *reduce))
        count = len(c.batch), len(c.batch) + len(c.cols)
        plain = replace(plain, batch=own[: count[0]], cols=own[count[0] : count[1]], reduce=own[count[1] :])
    inner = merge_axes(plain.reduce)[-1]
    if inner.a != 1 or inner.b != 1:
        return None
    sides = [(plain, False), (plain.changed(), True)]
    cycles, best, changed, dots = min(
        ((_cycles(x, machine, d), x, changed, d) for x, changed in sides for d in _tiles(x, machine)),
        key=lambda found: found[0],
    )
    other = least_cycles(c, machine)
    if not c.packed and c.cols[-1].b != 1 and c.cols[-1].extent != 1:
        other += _TURNED * estimate(c.k) * estimate(c.cols[-1].extent)
    if cycles >= part * other:
        return None
    loops = replace(loops, batch=best.batch, rows=best.rows, cols=best.cols, reduce=best.reduce)
    if changed:
        loops = replace(loops, full=_full(c, loops.full))
    return Products(best, loops, _chunks(best, machine, dots, cycles), changed, pack)


def _dense(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes, one inside the other in B."""
    return tuple(replace(x, b=product(y.extent for y in axes[i + 1 :])) for i, x in enumerate(axes))


def _packed(c: Contraction, index: int, offset: int) -> Pack:
    """The constant B, input `index` of the group, column by column."""
    axes = (*c.batch, *c.cols, *c.reduce)
    shape, steps = static_shape(tuple(x.extent for x in axes)), static_shape(tuple(x.b for x in axes))

    def write(array: np.ndarray, out: np.ndarray) -> None:
        out.reshape(shape)[...] = stepped(array, offset, shape, steps)

    key = f"columns {','.join(f'{n}:{s}' for n, s in zip(shape, steps, strict=True))} @{offset} {c.b}"
    return Pack(index, key, c.b, prod(shape), write)


def _full(c: Contraction, full: Callable[[Index], Index]) -> Callable[[Index], Index]:
    """`full` for places in the changed order: batch, columns, rows."""
    first, rows = len(c.batch), len(c.batch) + len(c.cols)
    return lambda place: full((*place[:first], *place[rows:], *place[first:rows]))


# Choosing


def _tiles(c: Contraction, machine: Machine) -> Iterator[DotPlan]:
    rows, columns = max(1, estimate(c.rows[-1].extent)), machine.lanes(c.acc)
    while columns:
        for r in range(1, rows + 1):
            if r * columns + r + 1 > machine.registers:  # results, the rows' vectors and one of a column
                break
            yield DotPlan(r, columns, max(1, machine.fma_latency * machine.fma_per_cycle // (r * columns)))
        columns //= 2


def _cycles(c: Contraction, machine: Machine, d: DotPlan) -> float:
    """Modelled cycles of one batch entry's products, on one core."""
    lanes, inner = machine.lanes(c.acc), max(1, estimate(merge_axes(c.reduce)[-1].extent))
    turns = estimate(c.k) // inner * -(-inner // lanes)

    def tile(rows: int) -> float:
        if not rows:
            return 0.0
        narrow = (rows if c.a.nbytes < c.acc.nbytes else 0) + (d.columns if c.b.nbytes < c.acc.nbytes else 0)
        arithmetic = (rows * d.columns + narrow) / machine.fma_per_cycle
        loads = (rows + d.columns) / machine.loads_per_cycle
        turn = max(arithmetic, loads, machine.fma_latency / d.slots)
        halvings = (lanes // d.columns).bit_length() - 1
        folds = rows * (3 * (d.columns - 1) + 2 * halvings) / 2
        return turns * turn + folds + _ENTRY + _PER_RESULT * rows * d.columns

    full, rest = divmod(max(1, estimate(c.rows[-1].extent)), d.rows)
    columns = -(-max(1, estimate(c.cols[-1].extent)) // d.columns)
    outer = prod(max(1, estimate(x.extent)) for x in (*c.rows[:-1], *c.cols[:-1]))
    return outer * columns * (full * tile(d.rows) + tile(rest))


def _chunks(c: Contraction, machine: Machine, d: DotPlan, cycles: float) -> DotPlan:
    """Chunks of some 20 us, and several for each thread where there is work for that."""
    hertz = machine.gflops * 1e9 / (2 * machine.fma_per_cycle * machine.lanes(c.acc))
    entries = prod(max(1, estimate(x.extent)) for x in (*c.batch, *c.rows[:-1], *c.cols[:-1]))
    rows, columns = max(1, estimate(c.rows[-1].extent)), max(1, estimate(c.cols[-1].extent))
    tiles = -(-columns // d.columns)
    batch = prod(max(1, estimate(x.extent)) for x in c.batch)
    seconds = max(cycles * batch / hertz, entries * (rows + columns) * estimate(c.k) * c.b.nbytes / STREAM)
    goal = min(max(round(seconds / _CHUNK), min(4 * machine.threads, round(seconds / 2e-6)), 1), entries * tiles)
    if goal <= entries:
        return replace(d, tiles=tiles, entries=max(1, entries // goal))
    return replace(d, tiles=max(1, tiles * entries // goal))


# Loops


def emit_dot_products(
    top: Block, chunk: k.Var, p: Products, a: Operand, b: Operand, machine: Machine, write: Write
) -> Expr:
    """Print the nest of one chunk into `top`; the number of chunks is returned. `write(block, index, acc, mask)` is the
    epilogue, as in `emit_macro_kernel`."""
    return _Nest(p.c, p.dots, a, b, machine, write).emit(top, chunk)


@dataclass(frozen=True)
class _Place:
    """Rows and columns of a tile: where they are in the result, and where each one's elements start."""

    batch: Index
    rows: Index
    columns: Index
    a: Expr
    b: tuple[Expr, ...]


class _Nest:
    def __init__(self, c: Contraction, d: DotPlan, a: Operand, b: Operand, machine: Machine, write: Write) -> None:
        self.c, self.d, self.a, self.b, self.write = c, d, a, b, write
        self.lanes, self.masks = machine.lanes(c.acc), machine.masks
        self.reduce = merge_axes(c.reduce)
        self.rows, self.columns = c.rows[-1], c.cols[-1]

    def emit(self, top: Block, chunk: k.Var) -> Expr:
        """chunk -> (batch entries, outer rows and outer columns; block of columns)"""
        c, d = self.c, self.d
        axes = (*c.batch, *c.rows[:-1], *c.cols[:-1])
        count, size = product(x.extent for x in axes), self.columns.extent
        extents = (ceildiv(count, d.entries), ceildiv(ceildiv(size, d.columns), d.tiles))
        lot, block = (top.let(e, "c") for e in delinearize(chunk, extents, top.multiples))
        if product(extents) == 1:
            lot = block = ZERO
        wide = d.tiles * d.columns
        low = top.let(mul(block, integer(wide)), "lo")
        high = top.let(k.binary("min", add(low, integer(wide)), dim_expr(size)), "hi")

        def entry(x: Block, e: Expr) -> None:
            at = tuple(x.let(i, "e") for i in delinearize(e, tuple(axis.extent for axis in axes), x.multiples))
            a = x.let(linear(at, tuple(axis.a for axis in axes), self.a.offset), "a")
            b = x.let(linear(at, tuple(axis.b for axis in axes), self.b.offset), "b")
            rows, columns = len(c.batch), len(c.batch) + len(c.rows) - 1
            place = _Place(at[:rows], at[rows:columns], at[columns:], a, (b,))
            x.loop("n", low, high, d.columns, lambda y, n: self._column(y, place, n))

        first = top.let(mul(lot, integer(d.entries)), "lo")
        last = top.let(k.binary("min", add(first, integer(d.entries)), dim_expr(count)), "hi")
        top.loop("e", first, last, 1, entry)
        return dim_expr(product(extents))

    def _column(self, block: Block, place: _Place, n: Expr) -> None:
        """All rows of the columns from n on; those beyond the last one read what it reads."""
        d, size, extent = self.d, self.columns.extent, self.rows.extent
        at = [add(n, integer(j)) for j in range(d.columns)]
        if not isinstance(size, int) or size % d.columns:
            at = [k.binary("min", x, dim_expr(size - 1)) for x in at]
        b = tuple(block.let(add(place.b[0], mul(x, dim_expr(self.columns.b))), "b") for x in at)

        def tile(x: Block, m: Expr, rows: int) -> None:
            a = x.let(add(place.a, mul(m, dim_expr(self.rows.a))), "a")
            self._tile(x, replace(place, rows=(*place.rows, m), columns=(*place.columns, n), a=a, b=b), rows)

        whole = floordiv(extent, d.rows) * d.rows
        block.loop("m", 0, whole, d.rows, lambda x, m: tile(x, m, d.rows))
        if isinstance(extent, int) and isinstance(whole, int):
            if whole < extent:
                tile(block, integer(whole), extent - whole)
        elif d.rows > 1:
            block.loop("m", whole, extent, 1, lambda x, m: tile(x, m, 1))

    def _tile(self, block: Block, place: _Place, rows: int) -> None:
        c, d = self.c, self.d
        acc = block.alloc("acc", c.acc, d.slots * rows * d.columns, lanes=self.lanes)
        zero = k.lit(0.0 if c.acc.is_float else 0, c.acc, self.lanes)
        block.loop("i", 0, d.slots * rows * d.columns, 1, lambda x, i: x.store(acc, i, zero), unroll=True)

        def multiply(x: Block, at: tuple[Expr, Expr], read: Read, slot: int) -> None:
            starts = [add(place.a, mul(integer(r), dim_expr(self.rows.a))) for r in range(rows)]
            row = [x.let(read(self.a.buffer, add(start, at[0])), "x") for start in starts]
            for j, start in enumerate(place.b):
                column = x.let(read(self.b.buffer, add(start, at[1])), "y")
                for r in range(rows):
                    own = integer((slot * rows + r) * d.columns + j)
                    x.store(acc, own, k.fma(row[r], column, k.load(acc, own)))

        def nest(x: Block, axes: tuple[Axis, ...], at: tuple[Expr, Expr]) -> None:
            axis, inner, level = axes[0], axes[1:], len(self.reduce) - len(axes)

            def inside(i: Expr) -> tuple[Expr, Expr]:
                return add(at[0], mul(i, dim_expr(axis.a))), add(at[1], mul(i, dim_expr(axis.b)))

            if inner:
                sums.loop(x, level, "k", 0, axis.extent, 1, lambda y, i: nest(y, inner, inside(i)))
            else:
                self._innermost(x, axis.extent, sums, lambda y, i, read, slot: multiply(y, inside(i), read, slot))

        turn = self.lanes * d.slots
        sums = LongSums.of(block, (acc,), [x.extent for x in self.reduce], turn, turn)
        nest(block, self.reduce, (ZERO, ZERO))
        sums.finish(block)
        self._finish(block, place, acc, rows)

    def _innermost(
        self, block: Block, extent: DimLike, sums: LongSums, step: Callable[[Block, Expr, Read, int], None]
    ) -> None:
        """Whole vectors of the reduction, several at once where there are slots for them, then what is left."""
        lanes, acc = self.lanes, self.c.acc
        turn, done = lanes * self.d.slots, floordiv(extent, lanes) * lanes
        turns = floordiv(extent, turn) * turn

        def whole(buffer: Buffer, at: Expr) -> Expr:
            return k.cast(k.load(buffer, at, lanes), acc)

        def several(x: Block, i: Expr) -> None:
            for slot in range(self.d.slots):
                step(x, add(i, integer(slot * lanes)), whole, slot)

        sums.loop(block, len(self.reduce) - 1, "k", 0, turns, turn, several)
        block.loop("k", turns, done, lanes, lambda x, i: step(x, i, whole, 0))
        if done == extent:
            return
        if not self.masks:
            zero = k.lit(0.0 if acc.is_float else 0, acc)

            def one(buffer: Buffer, at: Expr) -> Expr:
                return k.Shuffle(acc, lanes, k.cast(k.load(buffer, at), acc), zero, (0, *(1,) * (lanes - 1)))

            block.loop("k", done, extent, 1, lambda x, i: step(x, i, one, 0))
            return
        mask = block.let(k.binary("lt", k.ramp(ZERO, lanes), dim_expr(extent - done)), "mask")
        step(block, dim_expr(done), lambda buffer, at: k.cast(k.load(buffer, at, lanes, mask), acc), 0)

    def _finish(self, block: Block, place: _Place, acc: Buffer, rows: int) -> None:
        d, (*outer, n), size = self.d, place.columns, self.columns.extent
        ragged = d.columns > 1 and (not isinstance(size, int) or size % d.columns != 0)
        index = k.ramp(n, d.columns) if d.columns > 1 else n
        for r in range(rows):
            total = self._total(block, acc, rows, r)
            before = (*place.batch, *place.rows[:-1], add(place.rows[-1], integer(r)), *outer)
            if not ragged:
                self.write(block, (*before, index), total, None)
            elif self.masks:
                mask = block.let(k.binary("lt", index, dim_expr(size)), "mask")
                self.write(block, (*before, index), total, mask)
            else:
                one_by_one(block, before, n, total, size, self.write)

    def _total(self, block: Block, acc: Buffer, rows: int, r: int) -> Expr:
        """One row's results."""
        d, sums = self.d, []
        for j in range(d.columns):
            slots = [k.load(acc, integer((slot * rows + r) * d.columns + j)) for slot in range(d.slots)]
            while len(slots) > 1:
                slots = [k.add(*slots[i : i + 2]) if len(slots) > i + 1 else slots[i] for i in range(0, len(slots), 2)]
            sums.append(block.let(slots[0], "o"))
        if d.columns == 1:
            return k.reduce("add", sums[0])
        total = fold_lanes(block, sums)
        while total.lanes > d.columns:
            half = total.lanes // 2
            low, high = (k.Shuffle(total.dtype, half, total, total, tuple(range(i, i + half))) for i in (0, half))
            total = block.let(k.add(low, high), "o")
        return total


__all__ = ["Products", "as_dot_products", "emit_dot_products"]
