"""A single row by weights of few bits. A word of 32 bits holds levels of one block of a column; a tile has a row for
each block of a turn, and columns are unrolled, so that the row's terms stay in registers for all of them.

    for each column:  acc[block, word] = sum over a word's levels q of (q - zero[block]) * a[block, ...]
                      total[block, word] += acc * scale[block]

Of a row in float16, levels are not converted: the bits of a level in the lower part of a word are a float, a denormal
one of q * 2^(place - 149), and the row is as much larger. All of it is exact but the sums, which are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ingot.ir import kernel as k
from ingot.ir.kernel import AwaitProducers, Buffer, Expr, Lit
from ingot.ir.types import DType, f16, f32, static_shape, u32
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.choice import Tiling
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import all_of, offset_of, read_at, register
from ingot.schedule.gpu.contraction.levels import Levels, Parameter
from ingot.schedule.index import ZERO, integer
from ingot.support.dataclass import dataclass

FRACTION, LEAST = 23, -149  # bits of a denormal float, and what the last one means, as a power of two
HIGH = 110  # what the row is multiplied by then: below 2^127 for all of float16
Read = Callable[[Block, Expr, Expr | None], Expr]  # the row's terms at places, where a mask is on


@dataclass(frozen=True)
class RowOfLevels:
    """bs: products' levels and loops, of one shape. kind: of the row."""

    bs: tuple[tuple[Levels, Loops], ...]
    tiling: Tiling
    kind: DType

    @property
    def turn(self) -> int:
        """Terms of a tile's row."""
        return self.bs[0][0].turn

    @property
    def words(self) -> int:
        return self.turn // self.bs[0][0].halves

    @property
    def blocks(self) -> int:
        return self.tiling.depth // self.turn

    @property
    def _reduce(self) -> tuple[int, ...]:
        return static_shape(tuple(x.extent for x in self.bs[0][1].reduce))

    @property
    def _columns(self) -> tuple[int, ...]:
        return static_shape(tuple(x.extent for x in self.bs[0][1].cols))

    def sums(self, top: Block, first: Expr, span: tuple[Expr, Expr], row: Callable[[], Read]) -> list[Expr]:
        """Each product's row of the sums of the columns from `first` on. span: where the reduction begins and ends.
        row: begins to read the row, behind the first words."""
        columns = [_Column.of(self, top, k.add(first, integer(c))) for c in range(self.tiling.columns)]
        tile = self.blocks, self.words
        zero = Lit(f32, tile[0] * tile[1], 0.0, tile=tile)
        pairs = [(b, c) for b in range(len(self.bs)) for c in columns]
        totals = [top.alloc("total", f32, 1, lanes=zero.lanes, tile=tile) for _ in pairs]
        begin, end = span
        held = [self._held(top, b, column, begin) for b, column in pairs]
        for total in totals:
            top.store(total, ZERO, zero)
        top.stmts.append(AwaitProducers())
        read = row()

        def turn(block: Block, at: Expr) -> None:
            words, known = list[Expr](), list[list[list[Expr]]]()
            for registers, (b, column) in zip(held, pairs, strict=True):
                own, *ahead = [block.let(k.load(x, ZERO), "q") for x in registers]
                words.append(own)
                known.append([ahead] if ahead else self._parameters(block, b, column, at))
            behind = block.let(k.add(at, integer(self.tiling.depth)), "n")
            if not (isinstance(behind, Lit) and isinstance(end, Lit) and behind.value >= end.value):

                def fetch(then: Block) -> None:
                    for registers, (b, column) in zip(held, pairs, strict=True):
                        for register, value in zip(registers, self._ahead(then, b, column, behind), strict=True):
                            then.store(register, ZERO, value)

                block.when(k.binary("lt", behind, end), fetch)
            terms = self._terms(block, at, read)
            for total, word, own, (b, _) in zip(totals, words, known, pairs, strict=True):
                self._add(block, self.bs[b][0], total, word, terms, own)

        top.loop("k", begin, end, self.tiling.depth, turn, multiple=self.tiling.depth)
        size = len(columns)
        return [self._joined(top, totals[b * size : (b + 1) * size]) for b in range(len(self.bs))]

    def _ahead(self, block: Block, b: int, column: _Column, at: Expr) -> list[Expr]:
        """What of a column's turn is there before the kernel begins: words, and mostly zeros and scales."""
        levels, words = self.bs[b][0], self._words(block, b, column, at)
        if not (levels.even and levels.zero.ready and levels.scale.ready):
            return [words]
        (known,) = self._parameters(block, b, column, at)
        return [words, *(k.spread(p, (self.blocks, 1)) for p in known)]

    def _held(self, top: Block, b: int, column: _Column, at: Expr) -> list[Buffer]:
        """Registers of what is there for the first turn."""
        return [register(top, "held", value) for value in self._ahead(top, b, column, at)]

    def _places(self, block: Block, at: Expr, first: int, size: int) -> tuple[Expr, Expr | None]:
        """`size` terms of each block from its `first` on, and which of them there are."""
        begin = k.add(at, k.mul(k.positions(self.blocks, 0), integer(self.turn)))
        places = block.let(k.add(k.add(begin, integer(first)), k.positions(size, 1)), "k")
        depth = prod(self._reduce)
        whole = depth % self.tiling.depth == 0
        return places, None if whole else block.let(k.binary("lt", places, integer(depth)), "inside")

    def _words(self, block: Block, b: int, column: _Column, at: Expr) -> Expr:
        levels = self.bs[b][0]
        _, live = self._places(block, at, 0, 1)  # a line of words is whole blocks long
        begin = k.add(
            k.binary("div", at, integer(levels.halves)), k.mul(k.positions(self.blocks, 0), integer(self.words))
        )
        line = -(-prod(self._reduce) // self.turn) * self.words
        place = k.add(k.add(begin, k.positions(self.words, 1)), k.mul(column.number, integer(line)))
        tile = self.blocks, self.words
        return k.spread(read_at(block, levels.buffer, block.let(place, "place"), all_of(live, column.live)), tile)

    def _parameters(self, block: Block, b: int, column: _Column, at: Expr) -> list[list[Expr]]:
        """Zeros and scales: of each block, or of each part of its terms, where blocks are odd."""
        levels = self.bs[b][0]
        found: list[list[Expr]] = []
        for part in range(1 if levels.even else levels.halves):
            places, live = self._places(block, at, part * self.words, 1 if levels.even else self.words)
            index = [block.let(e, "i") for e in ix.delinearize(places, self._reduce, {})]
            found.append([self._parameter(block, p, column, index, live) for p in levels.parameters])
        return found

    @staticmethod
    def _parameter(block: Block, p: Parameter, column: _Column, index: Sequence[Expr], live: Expr | None) -> Expr:
        if isinstance(p.source, Lit):
            return p.source
        base = k.add(integer(p.offset), offset_of(column.index, p.columns))
        return read_at(block, p.source, ix.add(base, offset_of(index, p.reduce)), all_of(live, column.live))

    def _small(self, levels: Levels) -> bool:
        """Levels, less their zero, are denormal floats as they are."""
        return self.kind == f16 and levels.narrow and levels.even

    def _terms(self, block: Block, at: Expr, read: Read) -> list[tuple[Expr, Expr]]:
        """What meets each level of a word: the row's terms, and these beside denormal levels."""
        found: list[tuple[Expr, Expr]] = []
        for part in range(self.bs[0][0].halves):
            places, live = self._places(block, at, part * self.words, self.words)
            x = block.let(k.cast(read(block, places, live), f32), "x")
            large = x
            if any(self._small(levels) for levels, _ in self.bs):
                levels = self.bs[0][0]
                large = block.let(k.mul(x, k.lit(2.0 ** (HIGH - _place(part, levels.bits)), f32)), "x")
            found.append((x, large))
        return found

    def _add(
        self, block: Block, levels: Levels, total: Buffer, word: Expr, terms: Sequence[tuple[Expr, Expr]],
        known: Sequence[Sequence[Expr]],
    ) -> None:  # fmt: skip
        """Add a turn's products of one column."""
        bits, small = levels.bits, self._small(levels)
        acc: Expr = k.load(total, ZERO) if not levels.even else k.lit(0.0, f32)
        for part, (x, large) in enumerate(terms):
            zero, scale = (k.cast(p, f32) for p in known[part if len(known) > 1 else 0])
            zero = zero if not levels.bias else k.add(zero, k.lit(float(levels.bias), f32))
            place = _place(part, bits)
            if small:
                if part and place == 0:
                    word = block.let(k.binary("lshr", word, k.lit(FRACTION // bits * bits, u32)), "q")
                level = k.bitcast(k.binary("and", word, k.lit((1 << bits) - 1 << place, u32)), f32)
                level = k.binary("sub", level, block.let(k.mul(zero, k.lit(2.0 ** (place + LEAST), f32)), "zero"))
                x = large
            else:
                moved = k.binary("lshr", word, k.lit(part * bits, u32)) if part else word
                level = k.binary("sub", k.cast(k.binary("and", moved, k.lit((1 << bits) - 1, u32)), f32), zero)
            level = level if levels.even else k.mul(level, scale)
            acc = block.let(k.fma(*k.alike(level, x, acc)), "acc")
        if not levels.even:
            block.store(total, ZERO, acc)
            return
        acc = k.mul(acc, k.lit(2.0 ** -(HIGH + LEAST), f32)) if small else acc
        block.store(total, ZERO, k.fma(*k.alike(acc, k.cast(known[0][1], f32), k.load(total, ZERO))))

    def _joined(self, top: Block, totals: Sequence[Buffer]) -> Expr:
        """A row of the columns' sums."""
        lane, found = k.positions(len(totals), 1), None
        for c, total in enumerate(totals):
            own = top.let(k.reduce_along("add", k.load(total, ZERO), 1), "sum")
            if len(totals) > 1:
                here = k.binary("eq", lane, integer(c))
                own = k.select(here, own, k.lit(0.0, f32) if found is None else found)
            found = top.let(own, "sums")
        assert found is not None
        return top.let(k.reduce_along("add", found, 0), "sum") if self.blocks > 1 else found


@dataclass(frozen=True)
class _Column:
    """One column of a program: its number, its index, and whether it is there."""

    number: Expr
    index: tuple[Expr, ...]
    live: Expr | None

    @staticmethod
    def of(own: RowOfLevels, top: Block, number: Expr) -> _Column:
        extents = own._columns
        width = prod(extents)
        number = top.let(number, "column")
        live = top.let(k.binary("lt", number, integer(width)), "live") if width % own.tiling.columns else None
        index = tuple(top.let(e, "i") for e in ix.delinearize(number, extents, top.multiples))
        return _Column(number, index, live)


def _place(part: int, bits: int) -> int:
    """The lowest bit of a level in its word, once that was moved down past what fits into a fraction."""
    return part % (FRACTION // bits) * bits


__all__ = ["RowOfLevels"]
