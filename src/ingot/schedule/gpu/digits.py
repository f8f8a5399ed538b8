"""Radix sort of rows of small integers, such as indices: one digit after the other, from the lowest.

    for parts of rows:   counts[digit, part] = number of elements with this digit
    for parts of rows:   start[digit] = number of elements with a smaller digit, or with the same in an earlier part
        for a tile of elements:   rank of x[i] = start[digit] + number of earlier elements of the tile with this digit
                                  start += number of the tile's elements with each digit

Each pass is stable, so the rows are sorted after the last digit. Each program counts its own part, so there are no
atomic operations.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate
from ingot.ir.kernel import Buffer, Expr, Tile, Var
from ingot.ir.types import i32
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.gpu.blocks import Group, constant_tile, power_of_two, register
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.merging import MAX_ROW_ELEMENTS, KeyRows, SortedRuns
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Step
from ingot.support.dataclass import dataclass

DIGIT_BITS = 4  # at most
TILE_ELEMENTS = 512  # of a tile
MAX_PARTS = 512  # of a row: each program reads the counts of all parts
WARPS = 8


def digit_count(bits: int) -> int:
    """Return the number of digits of keys with `bits` bits."""
    return max(1, -(-bits // DIGIT_BITS))


def order_rows_by_digits(
    rows: KeyRows, bits: int, group: Group, machine: Machine, temps: list[DimLike]
) -> tuple[list[Step], SortedRuns]:
    """Return kernels that sort all rows by one non-negative key of `bits` bits, and the sorted runs, one per row, with
    their keys."""
    count, steps = digit_count(bits), list[Step]()
    source: SortedRuns | None = None
    for i in range(count):
        low_bit, high_bit = bits * i // count, bits * (i + 1) // count
        counts = Buffer("counts", i32, writable=True), Arg("temp", len(temps))
        digit_pass = _DigitPass(rows, source, low_bit, 1 << (high_bit - low_bit), group, machine, counts)
        temps.append(rows.count * digit_pass.radix * digit_pass.parts * i32.nbytes)
        source = SortedRuns(rows, MAX_ROW_ELEMENTS).with_buffers(temps, with_keys=True)
        steps += [digit_pass.count_step(), digit_pass.place_step(source)]
    assert source is not None
    return steps, source


@dataclass(frozen=True)
class _DigitPass:
    """The kernels of one pass. source: the elements sorted by the lower digits; None: unsorted. low_bit: of the digit.
    radix: the number of its values. counts: of elements, [row, value, part]."""

    rows: KeyRows
    source: SortedRuns | None
    low_bit: int
    radix: int
    group: Group
    machine: Machine
    counts: tuple[Buffer, Arg]

    @property
    def parts(self) -> int:
        """Parts of a row, one per program."""
        tiles = -(-max(1, estimate(self.rows.length)) // TILE_ELEMENTS)
        max_parts = self.machine.target_programs // max(1, estimate(self.rows.count))
        return min(MAX_PARTS, power_of_two(tiles), power_of_two(max(1, max_parts)))

    @property
    def tile(self) -> Tile:
        return (self.radix, TILE_ELEMENTS)

    def count_step(self) -> Step:
        """The kernel that counts the elements of each part with each digit."""
        top, chunk = Block(), k.var("chunk")
        row, part = self._row_and_part(top, chunk)
        total = register(top, "acc", constant_tile(i32, self.tile))

        def loop_body(block: Block, _: Expr, one_hot: Expr) -> None:
            block.store(total, ZERO, k.add(k.load(total, ZERO), k.cast(one_hot, i32)))

        self._for_each_tile(top, row, part, loop_body)
        counts = k.reduce_axis("add", k.load(total, ZERO), 1)
        top.store(self.counts[0], self._count_offset(row, part, (self.radix, 1)), counts)
        return self._step("count_digits", chunk, top)

    def place_step(self, target: SortedRuns) -> Step:
        """The kernel that stores the elements sorted by this digit."""
        top, chunk = Block(), k.var("chunk")
        row, part = self._row_and_part(top, chunk)
        parts, values = k.lane_indices(self.parts, 1), k.lane_indices(self.radix, 1)
        offsets = self._count_offset(row, parts, (self.radix, self.parts))
        counts = top.let(k.gather(self.counts[0], offsets), "counts")
        earlier_parts = self._masked_counts(k.binary("lt", parts, part), counts)
        # compare each digit with all others: Triton does not scan columns
        totals = k.transposed(top.let(k.reduce_axis("add", counts, 1), "totals"))
        smaller_digits = self._masked_counts(
            k.binary("lt", values, k.lane_indices(self.radix, 0)), k.spread(totals, (self.radix, self.radix))
        )
        begin = register(
            top, "begin", k.add(k.reduce_axis("add", smaller_digits, 1), k.reduce_axis("add", earlier_parts, 1))
        )

        def loop_body(block: Block, position: Expr, one_hot: Expr) -> None:
            ones = block.let(k.cast(one_hot, i32), "ones")
            starts = block.let(k.load(begin, ZERO), "before")
            ranks = k.add(k.spread(starts, self.tile), k.scan_axis("add", ones, 1))
            rank = k.sub(k.reduce_axis("add", self._masked_counts(one_hot, ranks), 0), k.lit(1, i32))
            block.store(begin, ZERO, k.add(starts, k.reduce_axis("add", ones, 1)))
            order, key, live = self._elements(block, row, position)
            target.store(block, row, ZERO, block.let(k.cast(rank, position.dtype), "place"), (order, key), live)

        self._for_each_tile(top, row, part, loop_body)
        return self._step("place_digits", chunk, top, *target.buffers)

    def _masked_counts(self, mask: Expr, counts: Expr) -> Expr:
        """Return the counts where `mask` is true, else 0."""
        assert counts.tile is not None
        return k.select(k.spread(mask, counts.tile), counts, constant_tile(i32, counts.tile))

    def _row_and_part(self, top: Block, chunk: Var) -> tuple[Expr, Expr]:
        """Return a program's row and part."""
        row = top.let(k.binary("div", chunk, integer(self.parts)), "line")
        return row, top.let(k.binary("rem", chunk, integer(self.parts)), "part")

    def _count_offset(self, row: Expr, part: Expr, tile: Tile) -> Expr:
        """Return the offsets of the counts of all digits in these parts."""
        first = k.add(k.mul(row, integer(self.radix)), k.lane_indices(self.radix, 0))
        return k.spread(k.add(k.mul(first, integer(self.parts)), part), tile)

    def _elements(self, block: Block, row: Expr, position: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the original positions of the elements at `position`, their keys, and the mask of those in bounds."""
        live = block.let(k.binary("lt", position, dim_expr(self.rows.length)), "live")
        if self.source is None:
            return k.cast(position, i32), self.rows.read_keys(block, row, position, live)[0], live
        offset = block.let(ix.add(ix.mul(row, dim_expr(self.source.stride)), position), "at")
        order, key = (block.let(k.gather(buffer, offset, live)) for buffer, _ in self.source.buffers)
        return order, key, live

    def _for_each_tile(self, top: Block, row: Expr, part: Expr, visit: Callable[[Block, Expr, Expr], None]) -> None:
        """Visit the part's tiles in order, with the positions of elements and the one-hot encoding of their digits."""
        length = self.rows.length
        part_length = ceildiv(ceildiv(length, self.parts), TILE_ELEMENTS) * TILE_ELEMENTS

        def loop_body(block: Block, first: Expr) -> None:
            position = block.let(k.add(first, k.lane_indices(TILE_ELEMENTS, 1)), "at")
            _, key, live = self._elements(block, row, position)
            shifted = k.binary("lshr", key, k.lit(self.low_bit, key.dtype))
            digit = k.cast(k.binary("and", shifted, k.lit(self.radix - 1, key.dtype)), i32)
            one_hot = k.binary("eq", k.cast(k.lane_indices(self.radix, 0), i32), block.let(digit, "digit"))
            visit(block, position, block.let(k.binary("and", one_hot, k.spread(live, self.tile)), "hot"))

        begin = top.let(k.mul(part, dim_expr(part_length)), "begin")
        end = top.let(k.binary("min", k.add(begin, dim_expr(part_length)), dim_expr(length)), "end")
        top.loop("i", begin, end, TILE_ELEMENTS, loop_body, multiple=TILE_ELEMENTS)

    def _step(self, name: str, chunk: Var, top: Block, *extra: tuple[Buffer, Arg]) -> Step:
        source_buffers = () if self.source is None else self.source.buffers
        return self.group.step(
            name, chunk, self.rows.count * self.parts, top, *source_buffers, self.counts, *extra, warps=WARPS
        )


__all__ = ["digit_count", "order_rows_by_digits"]
