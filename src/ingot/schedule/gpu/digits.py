"""The order of lines of small numbers, as places are: by one digit after the other, from the lowest on.

    for parts of lines:   counts[digit, part] = how many elements have this digit
    for parts of lines:   begin[digit] = how many have a smaller one, or the same in a part further left
        for a tile of elements:   place of x[i] = begin[digit] + how many of the tile's before it have the same digit
                                  begin += how many of the tile have each

Elements of one digit keep their order, so that behind the last digit all stand in order (a radix sort). Nothing is
compared, and a part's programs count for themselves, so that there are no atomic operations.
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
from ingot.schedule.gpu.merging import LONGEST, Lines, Runs
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Step
from ingot.support.dataclass import dataclass

BITS = 4  # of a digit, at most
ELEMENTS = 512  # of a tile
PARTS = 512  # of a line, at most: each program reads the counts of all
WARPS = 8


def digits(bits: int) -> int:
    """How many digits keys of so many bits have."""
    return max(1, -(-bits // BITS))


def ordered_by_digits(
    lines: Lines, bits: int, group: Group, machine: Machine, temps: list[DimLike]
) -> tuple[list[Step], Runs]:
    """Kernels that order all lines by one key of so many bits, none of which is a sign, and the run of each line that
    they leave, with its keys."""
    count, steps = digits(bits), list[Step]()
    source: Runs | None = None
    for i in range(count):
        low, high = bits * i // count, bits * (i + 1) // count
        counts = Buffer("counts", i32, writable=True), Arg("temp", len(temps))
        work = _Digit(lines, source, low, 1 << (high - low), group, machine, counts)
        temps.append(lines.count * work.size * work.parts * i32.nbytes)
        source = Runs(lines, LONGEST).stored(temps, keyed=True)
        steps += [work.counted(), work.placed(source)]
    assert source is not None
    return steps, source


@dataclass(frozen=True)
class _Digit:
    """The kernels of one digit. source: the elements in the order of the digits below it; None: as they are. low: its
    lowest bit. size: how many values it has. counts: of elements, [line, value, part]."""

    lines: Lines
    source: Runs | None
    low: int
    size: int
    group: Group
    machine: Machine
    counts: tuple[Buffer, Arg]

    @property
    def parts(self) -> int:
        """Of a line, each a program's."""
        tiles = -(-max(1, estimate(self.lines.length)) // ELEMENTS)
        room = self.machine.programs // max(1, estimate(self.lines.count))
        return min(PARTS, power_of_two(tiles), power_of_two(max(1, room)))

    @property
    def tile(self) -> Tile:
        return (self.size, ELEMENTS)

    def counted(self) -> Step:
        """How many elements of each part have each digit."""
        top, chunk = Block(), k.var("chunk")
        line, part = self._whose(top, chunk)
        total = register(top, "acc", constant_tile(i32, self.tile))

        def turn(block: Block, _: Expr, hot: Expr) -> None:
            block.store(total, ZERO, k.add(k.load(total, ZERO), k.cast(hot, i32)))

        self._tiles(top, line, part, turn)
        found = k.reduce_along("add", k.load(total, ZERO), 1)
        top.store(self.counts[0], self._count_at(line, part, (self.size, 1)), found)
        return self._step("count_digits", chunk, top)

    def placed(self, after: Runs) -> Step:
        """The elements in the order of this digit."""
        top, chunk = Block(), k.var("chunk")
        line, part = self._whose(top, chunk)
        parts, values = k.positions(self.parts, 1), k.positions(self.size, 1)
        at = self._count_at(line, parts, (self.size, self.parts))
        theirs = top.let(k.gather(self.counts[0], at), "counts")
        left = self._where(k.binary("lt", parts, part), theirs)
        # each total beside all others: Triton scans no column
        totals = k.transposed(top.let(k.reduce_along("add", theirs, 1), "totals"))
        smaller = self._where(
            k.binary("lt", values, k.positions(self.size, 0)), k.spread(totals, (self.size, self.size))
        )
        begin = register(top, "begin", k.add(k.reduce_along("add", smaller, 1), k.reduce_along("add", left, 1)))

        def turn(block: Block, place: Expr, hot: Expr) -> None:
            ones = block.let(k.cast(hot, i32), "ones")
            before = block.let(k.load(begin, ZERO), "before")
            behind = k.add(k.spread(before, self.tile), k.scan_along("add", ones, 1))
            to = k.sub(k.reduce_along("add", self._where(hot, behind), 0), k.lit(1, i32))
            block.store(begin, ZERO, k.add(before, k.reduce_along("add", ones, 1)))
            order, key, live = self._elements(block, line, place)
            after.store(block, line, ZERO, block.let(k.cast(to, place.dtype), "place"), (order, key), live)

        self._tiles(top, line, part, turn)
        return self._step("place_digits", chunk, top, *after.buffers)

    def _where(self, wanted: Expr, counts: Expr) -> Expr:
        """Those of the counts that are wanted, and nothing of others."""
        assert counts.tile is not None
        return k.select(k.spread(wanted, counts.tile), counts, constant_tile(i32, counts.tile))

    def _whose(self, top: Block, chunk: Var) -> tuple[Expr, Expr]:
        """A program's line, and its part there."""
        line = top.let(k.binary("div", chunk, integer(self.parts)), "line")
        return line, top.let(k.binary("rem", chunk, integer(self.parts)), "part")

    def _count_at(self, line: Expr, part: Expr, tile: Tile) -> Expr:
        """Where the counts of all digits lie in these parts."""
        first = k.add(k.mul(line, integer(self.size)), k.positions(self.size, 0))
        return k.spread(k.add(k.mul(first, integer(self.parts)), part), tile)

    def _elements(self, block: Block, line: Expr, place: Expr) -> tuple[Expr, Expr, Expr]:
        """Where the elements at these places of the line come from, their keys, and which of them there are."""
        live = block.let(k.binary("lt", place, dim_expr(self.lines.length)), "live")
        if self.source is None:
            return k.cast(place, i32), self.lines.read(block, line, place, live)[0], live
        at = block.let(ix.add(ix.mul(line, dim_expr(self.source.stride)), place), "at")
        order, key = (block.let(k.gather(buffer, at, live)) for buffer, _ in self.source.buffers)
        return order, key, live

    def _tiles(self, top: Block, line: Expr, part: Expr, visit: Callable[[Block, Expr, Expr], None]) -> None:
        """Visit the part's tiles in their order: the places of elements, and of which of them each digit is."""
        length = self.lines.length
        piece = ceildiv(ceildiv(length, self.parts), ELEMENTS) * ELEMENTS

        def turn(block: Block, first: Expr) -> None:
            place = block.let(k.add(first, k.positions(ELEMENTS, 1)), "at")
            _, key, live = self._elements(block, line, place)
            shifted = k.binary("lshr", key, k.lit(self.low, key.dtype))
            digit = k.cast(k.binary("and", shifted, k.lit(self.size - 1, key.dtype)), i32)
            same = k.binary("eq", k.cast(k.positions(self.size, 0), i32), block.let(digit, "digit"))
            visit(block, place, block.let(k.binary("and", same, k.spread(live, self.tile)), "hot"))

        begin = top.let(k.mul(part, dim_expr(piece)), "begin")
        end = top.let(k.binary("min", k.add(begin, dim_expr(piece)), dim_expr(length)), "end")
        top.loop("i", begin, end, ELEMENTS, turn, multiple=ELEMENTS)

    def _step(self, name: str, chunk: Var, top: Block, *extra: tuple[Buffer, Arg]) -> Step:
        read = () if self.source is None else self.source.buffers
        return self.group.step(name, chunk, self.lines.count * self.parts, top, *read, self.counts, *extra, warps=WARPS)


__all__ = ["digits", "ordered_by_digits"]
