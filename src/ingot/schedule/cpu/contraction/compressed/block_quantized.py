"""Constant operands of a few bits: levels in blocks along the reduction, each with a zero and a scale for each column,
or a scale and a minimum.

    b[k, n] = (level[k, n] - zero[k / block, n]) * scale[k / block, n] + minimum[k / block, n]

A panel has the levels of neighbouring k of a column in one 32-bit lane, [panel][block][k / 8][columns], zeros, scales
and minima as [panel][blocks][columns]. Levels of 5 and 6 bits are stored as planes: 4 bits, and behind all of a block's
the bits above these (`level_planes`). A level is widened by arithmetic that vectors of any machine have:

    bits of 2^23 | level    is the float 2^23 + level, from which 2^23 + zero leaves level - zero, exactly

    one row:      part[c] += x[k] * (level - zero)    in registers; after a block acc += part * scale + sum(x) * minimum
    several:      scratch[k, c] = (level - zero) * scale + minimum      a part of a panel, which all row tiles then read
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.types import f32, static_shape, u32
from ingot.schedule.axes import Axis, Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.operands import BlockQuantized, Factor
from ingot.schedule.cpu.contraction.plan import PREFETCH_DISTANCE_BYTES, Plan
from ingot.schedule.index import ZERO, add, delinearize, dim_expr, linear, mul
from ingot.support.dataclass import dataclass

_MAGIC = 1 << 23  # in floats from here to twice as much neighbours are 1 apart
Words = list[list[Expr]]  # for each vector of columns a word of each plane, the level h of the word h * bits from below


@dataclass(frozen=True)
class Place:
    """A panel of `width` columns, the first of which is `column`; `words` is where its words start."""

    words: Expr
    column: Expr
    width: int


@dataclass(frozen=True)
class BlockQuantizedPanels:
    """The panels of a contraction's B of levels, as loops read them."""

    c: Contraction
    plan: Plan
    b: BlockQuantized

    @property
    def _axes(self) -> tuple[tuple[Axis, ...], Axis]:
        """Blocks, or blocks of blocks, and the places within each."""
        *blocks, place = merge_axes(self.c.reduce)
        return tuple(blocks), place

    @property
    def _block(self) -> int:
        """Levels of a block."""
        return static_shape((self._axes[1].extent,))[0]

    @property
    def _blocks(self) -> int:
        return prod(static_shape(tuple(x.extent for x in self._axes[0])))

    def place(self, block: Block, panel: Expr, width: int) -> Place:
        whole = block.let(mul(panel, integer(self.plan.panel_columns)), "bs")
        rows = self._blocks * sum(self.b.word_rows(self._block))
        return Place(block.let(mul(whole, integer(rows)), "bw"), whole, width)

    def widen(self, block: Block, at: Place, part: Expr, parts: int, out: Buffer) -> None:
        """out[k, columns] = what the levels of one of equal parts of the panel stand for."""
        turns = self._blocks // parts if self._blocks != 1 else 1
        low = mul(part, integer(turns)) if self._blocks != 1 else ZERO

        def turn(b: Block, t: Expr) -> None:
            zeros, scales = self._zeros(b, at, t), self._term(b, at, t, self.b.scale)
            minima = self._term(b, at, t, self.b.minimum) if self.b.minimum else None
            start = mul(k.sub(t, low), integer(self._block))

            def word(x: Block, first: Expr, words: Words, count: int) -> None:
                for h in range(count):
                    line = mul(add(add(start, first), integer(h)), integer(at.width))
                    for v, own in enumerate(words):
                        value = k.mul(self._value(own, h, zeros[v]), scales[v])
                        value = value if minima is None else k.add(value, minima[v])
                        x.store(out, add(line, integer(v * self.plan.lanes)), value)

            self._words(b, at, t, (part, parts) if self._blocks == 1 else (ZERO, 1), word)

        block.loop("t", low, add(low, integer(turns)), 1, turn)

    def row(self, block: Block, at: Place, a: Buffer, base: Expr, acc: Buffer) -> None:
        """acc = one row of A, from `base`, times the panel."""
        lanes, vectors = self.plan.lanes, at.width // self.plan.lanes
        blocks, inner = self._axes
        zero = k.lit(0.0, f32, lanes)
        part = block.alloc("part", f32, vectors, lanes=lanes)
        total = block.alloc("total", f32, 1, lanes=lanes) if self.b.minimum else None
        for v in range(vectors):
            block.store(acc, integer(v), zero)

        def turn(b: Block, t: Expr) -> None:
            zeros = self._zeros(b, at, t)
            at_block = delinearize(t, tuple(x.extent for x in blocks), b.multiples) if blocks else ()
            start = b.let(add(base, linear(at_block, tuple(x.a for x in blocks))), "ab")
            for v in range(vectors):
                b.store(part, integer(v), zero)
            if total is not None:
                b.store(total, ZERO, zero)

            def word(x: Block, first: Expr, words: Words, count: int) -> None:
                for h in range(count):
                    own = k.load(a, add(start, mul(add(first, integer(h)), dim_expr(inner.a))))
                    value = x.let(k.splat(own, lanes), "s")
                    if total is not None:
                        x.store(total, ZERO, k.add(k.load(total, ZERO), value))
                    for v, w in enumerate(words):
                        sums = k.fma(value, self._value(w, h, zeros[v]), k.load(part, integer(v)))
                        x.store(part, integer(v), sums)

            self._words(b, at, t, (ZERO, 1), word, ahead=True)
            terms = [(part, self.b.scale)] + ([(total, self.b.minimum)] if total is not None else [])
            for sums, factors in terms:
                for v, factor in enumerate(self._term(b, at, t, factors)):
                    own = k.load(sums, integer(v) if sums is part else ZERO)
                    b.store(acc, integer(v), k.fma(factor, own, k.load(acc, integer(v))))

        block.loop("t", 0, self._blocks, 1, turn)

    def _words(
        self, block: Block, at: Place, turn: Expr, part: tuple[Expr, int],
        visit: Callable[[Block, Expr, Words, int], None], ahead: bool = False,
    ) -> None:  # fmt: skip
        """`visit` with the words of so many places of a block, or of an equal part of it, as a word of the lowest plane
        has: the first place, counted from the part's start, the words, and how many places there are."""
        lowest, lanes = self.b.planes[0], self.plan.lanes
        each, plane_rows = 32 // lowest, self.b.word_rows(self._block)
        count = self._block // part[1]
        start = block.let(add(at.words, mul(turn, integer(sum(plane_rows) * at.width))), "bw")
        skipped = mul(part[0], integer(-(-count // each)))

        def some(b: Block, w: Expr, places: int) -> None:
            w_in_block, plane_start, planes = add(skipped, w), 0, []
            for bits, rows in zip(self.b.planes, plane_rows, strict=True):
                shared = lowest // bits  # words of the lowest plane whose other bits share a word of this one
                row = w_in_block if shared == 1 else k.binary("div", w_in_block, integer(shared))
                line = b.let(add(start, mul(add(row, integer(plane_start)), integer(at.width))), "w")
                words = [k.load(self.b.words, add(line, integer(v)), lanes) for v in range(0, at.width, lanes)]
                if shared != 1:
                    bit = k.mul(k.binary("rem", w_in_block, integer(shared)), integer(each * bits))
                    shift = b.let(k.splat(k.cast(bit, u32), lanes), "h")
                    words = [k.binary("lshr", word, shift) for word in words]
                planes.append([b.let(word, "w") for word in words])
                for v in range(0, at.width if ahead and shared == 1 else 0, 16):
                    b.stmts.append(k.Prefetch(self.b.words, add(line, integer(PREFETCH_DISTANCE_BYTES // 4 + v))))
                plane_start += rows
            visit(b, mul(w, integer(each)), [list(words) for words in zip(*planes, strict=True)], places)

        block.loop("w", 0, count // each, 1, lambda b, w: some(b, w, each))
        if count % each:
            some(block, integer(count // each), count % each)

    def _factor(self, block: Block, at: Place, turn: Expr, factor: Factor) -> list[Expr]:
        """A block's zeros, or a factor of its scales or minima, for each vector of columns."""
        lanes, columns = self.plan.lanes, range(0, at.width, self.plan.lanes)
        if isinstance(factor.values, Lit):
            return [k.lit(factor.values.value, factor.values.dtype, lanes) for _ in columns]
        line = block.let(factor.line(at.column, integer(at.width), turn), "p")
        return [block.let(k.cast(k.load(factor.values, add(line, integer(v)), lanes), f32), "p") for v in columns]

    def _term(self, block: Block, at: Place, turn: Expr, factors: Sequence[Factor]) -> list[Expr]:
        """A block's scales or minima, for each vector of columns."""
        values = zip(*(self._factor(block, at, turn, factor) for factor in factors), strict=True)
        return [block.let(reduce(k.mul, own), "p") for own in values]

    def _zeros(self, block: Block, at: Place, turn: Expr) -> list[list[Expr]]:
        """For each vector of columns what is to be taken off its levels."""
        lanes, zeros = self.plan.lanes, self._factor(block, at, turn, self.b.zeros)
        if not self.b.has_integer_zeros:
            return [[k.lit(float(_MAGIC + self.b.bias), f32, lanes), zero] for zero in zeros]
        if isinstance(self.b.zeros.values, Lit):
            return [[k.lit(_MAGIC + self.b.zeros.values.value, f32, lanes)] for _ in zeros]
        return [[block.let(k.add(zero, k.lit(float(_MAGIC), f32, lanes)), "z")] for zero in zeros]

    def _value(self, words: Sequence[Expr], h: int, zeros: list[Expr]) -> Expr:
        """level - zero, of the h-th level of the words of all planes."""
        value = k.bitcast(k.binary("or", self.b.level(words, h), k.lit(0x4B000000, u32, words[0].lanes)), f32)
        for zero in zeros:
            value = k.sub(value, zero)
        return value


__all__ = ["BlockQuantizedPanels", "Place"]
