"""Constant operands of a few bits: levels in blocks along the reduction, where each block has a zero and a scale, or a
scale and a minimum, for each column.

    b[k, n] = (level[k, n] - zero[k / block, n]) * scale[k / block, n] + minimum[k / block, n]

A panel stores the levels of neighbouring k of a column in one 32-bit lane, [panel][block][k / 8][columns], and zeros,
scales and minima as [panel][blocks][columns]. Levels of 5 and 6 bits are stored as planes: the low 4 bits of a block,
then the bits above these (`level_planes`). Levels are converted by vector arithmetic that every machine has:

    bits of 2^23 | level    is the float 2^23 + level; subtracting 2^23 + zero gives level - zero, exactly

    few rows:     part[r][c] += x[r, k] * (level - zero)    in registers; after a block
                  acc[r][c] += part * scale + sum(x) * minimum
    several:      scratch[k, c] = (level - zero) * scale + minimum      a part of a panel, which all row tiles then read

Rows that are rounded to bytes (`rounded_rows.py`) are multiplied by levels as bytes, four at a time, for any number of
rows. If a scale is an 8-bit integer times a factor that the whole block of a row shares, parts are summed as integers:

    part[r][c] = dot(levels, x[r]) - zero * sum(x[r]);  whole[r][c] += part * integer        in i32, exactly
    acc[r][c] += float(whole) * (scale * scale of x[r])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import prod

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.types import DType, bf16, f32, i8, i32, static_shape, u8, u16, u32
from ingot.schedule.axes import Axis, Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.compressed.rounded_rows import Rounded
from ingot.schedule.cpu.contraction.operands import BlockQuantized, Factor
from ingot.schedule.cpu.contraction.plan import PREFETCH_DISTANCE_BYTES, Plan
from ingot.schedule.index import ZERO, add, delinearize, dim_expr, linear, mul
from ingot.support.dataclass import dataclass

_MAX_UNROLLED_DOTS = 256
_MAGIC = 1 << 23  # floats from here to twice this value are 1 apart
Words = list[list[Expr]]  # for each vector of columns a word of each plane; level h is at bit h * bits


@dataclass(frozen=True)
class Place:
    """A panel of `width` columns from `column` on. words: the offset of its words. vectors: the offsets, from the first
    column, of the vectors of columns to read."""

    words: Expr
    column: Expr
    width: int
    vectors: range


@dataclass(frozen=True)
class BlockQuantizedPanels:
    """The panels of a contraction's block-quantized B, with the loops that read them."""

    c: Contraction
    plan: Plan
    b: BlockQuantized

    @property
    def _axes(self) -> tuple[tuple[Axis, ...], Axis]:
        """(the axes of blocks, or of blocks of blocks; the axis within a block)"""
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
        first_column = block.let(mul(panel, integer(self.plan.panel_columns)), "bs")
        rows = self._blocks * sum(self.b.word_rows(self._block))
        return Place(
            block.let(mul(first_column, integer(rows)), "bw"), first_column, width, range(0, width, self.plan.lanes)
        )

    def widen(self, block: Block, at: Place, part: Expr, parts: int, out: Buffer) -> None:
        """out[k, columns], or bf16 [k / 2, columns, 2] = the dequantized levels of one of `parts` equal parts of a
        panel."""
        block_count = self._blocks // parts if self._blocks != 1 else 1
        low = mul(part, integer(block_count)) if self._blocks != 1 else ZERO
        levels_per_lane = 2 if out.dtype == bf16 else 1  # neighbouring k of a column

        def widen_block(b: Block, t: Expr) -> None:
            zeros, scales = self._zeros(b, at, t), self._term(b, at, t, self.b.scale)
            minima = self._term(b, at, t, self.b.minimum) if self.b.minimum else None
            start = mul(k.sub(t, low), integer(self._block))

            def value(vector_words: list[Expr], h: int, v: int) -> Expr:
                scaled = k.mul(self._value(vector_words, h, zeros[v]), scales[v])
                return scaled if minima is None else k.add(scaled, minima[v])

            def word(x: Block, first: Expr, words: Words, count: int) -> None:
                for h in range(0, count, levels_per_lane):
                    line = mul(add(add(start, first), integer(h)), integer(at.width))
                    for v, vector_words in enumerate(words):
                        values = [value(vector_words, h + i, v) for i in range(levels_per_lane)]
                        lanes = values[0] if levels_per_lane == 1 else _pairs(x, *values)
                        x.store(out, add(line, integer(v * levels_per_lane * self.plan.lanes)), lanes)

            self._words(b, at, t, (part, parts) if self._blocks == 1 else (ZERO, 1), word)

        block.loop("t", low, add(low, integer(block_count)), 1, widen_block)

    def rows(self, block: Block, at: Place, a: Buffer, starts: Sequence[Expr], acc: Buffer) -> None:
        """acc[r][v] = the rows of A at `starts` times the panel, computed for as many vectors at a time as registers
        hold sums."""
        total, height = len(at.vectors), len(starts)
        divisors = (n for n in range(total, 0, -1) if total % n == 0)
        kinds = 3 if self.c.rounded and Rounded.of(self.c).parts > 1 else 2
        count = next((n for n in divisors if kinds * height * n + n < self.plan.registers - 3), 1)
        emit = self._rounded_rows if self.c.rounded else self._float_rows
        for first in range(0, total, count):
            sums = acc if count == total else block.alloc("acc", f32, height * count, lanes=self.plan.lanes)
            for i in range(height * count):
                block.store(sums, integer(i), k.lit(0.0, f32, self.plan.lanes))
            emit(block, replace(at, vectors=at.vectors[first : first + count]), a, starts, sums)
            for i in range(height * count) if sums is not acc else ():
                row, v = divmod(i, count)
                block.store(acc, integer(row * total + first + v), k.load(sums, integer(i)))

    def _float_rows(self, block: Block, at: Place, a: Buffer, starts: Sequence[Expr], acc: Buffer) -> None:
        lanes, count = self.plan.lanes, len(at.vectors)
        blocks, inner = self._axes
        part = block.alloc("part", f32, len(starts) * count, lanes=lanes)
        total = block.alloc("total", f32, len(starts), lanes=lanes) if self.b.minimum else None

        def add_block(b: Block, t: Expr) -> None:
            zeros = self._zeros(b, at, t)
            at_block = delinearize(t, tuple(x.extent for x in blocks), b.multiples) if blocks else ()
            offset = linear(at_block, tuple(x.a for x in blocks))
            rows = [b.let(add(start, offset), "ab") for start in starts]
            for sums in (part, *((total,) if total is not None else ())):
                for i in range(sums.size or 0):
                    b.store(sums, integer(i), k.lit(0.0, f32, lanes))

            def word(x: Block, first: Expr, words: Words, places: int) -> None:
                for h in range(places):
                    levels = [x.let(self._value(w, h, zero), "l") for w, zero in zip(words, zeros, strict=True)]
                    for r, row in enumerate(rows):
                        element = k.cast(k.load(a, add(row, mul(add(first, integer(h)), dim_expr(inner.a)))), f32)
                        value = x.let(k.splat(element, lanes), "s")
                        if total is not None:
                            x.store(total, integer(r), k.add(k.load(total, integer(r)), value))
                        for v, level in enumerate(levels):
                            i = integer(r * count + v)
                            x.store(part, i, k.fma(value, level, k.load(part, i)))

            self._words(b, at, t, (ZERO, 1), word, ahead=self._is_read_once(starts))
            scales = self._term(b, at, t, self.b.scale)
            minima = self._term(b, at, t, self.b.minimum) if total is not None else []
            for r in range(len(starts)):
                for v in range(count):
                    i = integer(r * count + v)
                    value = k.fma(scales[v], k.load(part, i), k.load(acc, i))
                    value = k.fma(minima[v], k.load(total, integer(r)), value) if total is not None else value
                    b.store(acc, i, value)

        block.loop("t", 0, self._blocks, 1, add_block)

    def _rounded_rows(self, block: Block, at: Place, a: Buffer, starts: Sequence[Expr], acc: Buffer) -> None:
        lanes, count, height = self.plan.lanes, len(at.vectors), len(starts)
        form, largest = Rounded.of(self.c), (1 << sum(self.b.planes)) - 1
        cells = [(r, v, integer(r * count + v)) for r in range(height) for v in range(count)]
        part = block.alloc("part", i32, len(cells), lanes=lanes)
        # integer factors that differ between parts of a block of A, and factors that the whole block shares
        scales, shared_scales = self._by_extent(self.b.scale, form.parts)
        minima, shared_minima = self._by_extent(self.b.minimum, form.parts)
        block_sums = block.alloc("whole", i32, len(cells), lanes=lanes) if form.parts > 1 else part
        minimum_sums = block.alloc("lows", i32, len(cells), lanes=lanes) if minima else part
        zero = self.b.zeros.values
        offset = int(zero.value) if isinstance(zero, Lit) and self.b.has_integer_zeros else self.b.bias
        has_zeros = not isinstance(zero, Lit) or not self.b.has_integer_zeros

        def add_block(b: Block, g: Expr) -> None:
            rows = [b.let(add(start, mul(g, integer(form.nbytes))), "ab") for start in starts]
            first = b.let(mul(g, integer(form.parts)), "t")
            for sums in [x for x in (block_sums, minimum_sums) if x is not part]:
                for _, _, i in cells:
                    b.store(sums, i, k.lit(0, i32, lanes))

            def add_part(x: Block, p: Expr) -> None:
                t = x.let(add(first, p), "t")
                sums = [x.let(form.sum(a, row, p), "xs") for row in rows]
                for r, _, i in cells:
                    start = x.let(k.splat(k.mul(sums[r], k.lit(-offset, i32)), lanes), "z") if offset else None
                    x.store(part, i, k.lit(0, i32, lanes) if start is None else start)
                levels = mul(p, integer(form.part_length))

                def word(y: Block, place: Expr, words: Words, places: int) -> None:
                    for q in range(places // 4):
                        quads = [y.let(k.bitcast(self.b.quad(w, q), u8), "q") for w in words]
                        for r, row in enumerate(rows):
                            quad_bytes = k.load(a, add(add(row, levels), add(place, integer(4 * q))), 4)
                            x4 = y.let(k.bitcast(k.splat(k.bitcast(quad_bytes, u32), lanes), i8), "x")
                            for v, quad in enumerate(quads):
                                i = integer(r * count + v)
                                y.store(part, i, k.dot(quad, x4, k.load(part, i), largest))

                ahead, is_short = self._is_read_once(starts), form.part_length // 4 * len(cells) <= _MAX_UNROLLED_DOTS
                # a stream of bytes with little work per word is faster word by word than unrolled
                unroll = is_short and not (ahead and self.b.planes == (8,))
                self._words(x, at, t, (ZERO, 1), word, ahead=ahead, unroll=unroll)
                integers = self._factor(x, at, t, scales[0], i32) if scales else []
                for _, v, i in cells if scales else ():
                    x.store(block_sums, i, k.add(k.load(block_sums, i), k.mul(k.load(part, i), integers[v])))

            def add_minimum(x: Block, p: Expr) -> None:
                integers = self._factor(x, at, x.let(add(first, p), "t"), minima[0], i32)
                sums = [k.splat(x.let(form.sum(a, row, p), "xs"), lanes) for row in rows]
                for r, v, i in cells:
                    x.store(minimum_sums, i, k.add(k.load(minimum_sums, i), k.mul(sums[r], integers[v])))

            b.loop("p", 0, form.parts, 1, add_part)
            if minima:
                b.loop("p", 0, form.parts, 1, add_minimum)
            units = [b.let(k.splat(form.scale(a, row), lanes), "d") for row in rows]
            factors = self._term(b, at, first, shared_scales)
            low_factors = self._term(b, at, first, shared_minima) if self.b.minimum else []
            zeros = self._factor(b, at, first, self.b.zeros) if has_zeros else []
            for r, v, i in cells:
                value = k.cast(k.load(block_sums, i), f32)
                total = k.cast(k.splat(form.sum(a, rows[r], ZERO), lanes), f32)
                if has_zeros:
                    value = k.sub(value, k.mul(zeros[v], total))
                value = k.fma(value, k.mul(factors[v], units[r]), k.load(acc, i))
                if low_factors:
                    low = k.cast(k.load(minimum_sums, i), f32) if minima else total
                    value = k.fma(low, k.mul(low_factors[v], units[r]), value)
                b.store(acc, i, value)

        block.loop("g", 0, self._blocks // form.parts, 1, add_block)

    def _by_extent(self, factors: Sequence[Factor], parts: int) -> tuple[list[Factor], list[Factor]]:
        """(the factors that differ between the parts of a block of A, those that all parts share)"""
        part_factors = [f for f in factors if parts > 1 and f.rows > 1 and f.blocks < parts]
        return part_factors, [f for f in factors if f not in part_factors]

    def _is_read_once(self, starts: Sequence[Expr]) -> bool:
        """Whether words are read once, from memory, and not from a cache where earlier rows have left them."""
        return self.c.has_few_rows or len(starts) == 1

    def _words(
        self, block: Block, at: Place, iteration: Expr, part: tuple[Expr, int],
        visit: Callable[[Block, Expr, Words, int], None], ahead: bool = False, unroll: bool = False,
    ) -> None:  # fmt: skip
        """Call visit(block, first place, words, number of places) for each word of the lowest plane of a block, or of
        one of its equal parts; places count from the start of the part. ahead: whether to prefetch later words."""
        lowest, lanes = self.b.planes[0], self.plan.lanes
        places_per_word, plane_rows = 32 // lowest, self.b.word_rows(self._block)
        count = self._block // part[1]
        start = block.let(add(at.words, mul(iteration, integer(sum(plane_rows) * at.width))), "bw")
        first_word = mul(part[0], integer(-(-count // places_per_word)))

        def visit_word(b: Block, w: Expr, places: int) -> None:
            w_in_block, plane_start, planes = add(first_word, w), 0, []
            for bits, rows in zip(self.b.planes, plane_rows, strict=True):
                shared = lowest // bits  # words of the lowest plane whose other bits share a word of this one
                row = w_in_block if shared == 1 else k.binary("div", w_in_block, integer(shared))
                line = b.let(add(start, mul(add(row, integer(plane_start)), integer(at.width))), "w")
                words = [k.load(self.b.words, add(line, integer(v)), lanes) for v in at.vectors]
                if shared != 1:
                    bit = k.mul(k.binary("rem", w_in_block, integer(shared)), integer(places_per_word // 4 * bits))
                    shift = b.let(k.splat(k.cast(bit, u32), lanes), "h")
                    words = [k.binary("lshr", word, shift) for word in words]
                planes.append([b.let(word, "w") for word in words])
                is_shared = isinstance(w_in_block, Lit) and int(w_in_block.value) % shared != 0  # prefetched already
                for v in range(at.vectors[0], at.vectors[-1] + lanes, 16) if ahead and not is_shared else ():
                    b.stmts.append(k.Prefetch(self.b.words, add(line, integer(PREFETCH_DISTANCE_BYTES // 4 + v))))
                plane_start += rows
            visit(b, mul(w, integer(places_per_word)), [list(words) for words in zip(*planes, strict=True)], places)

        block.loop("w", 0, count // places_per_word, 1, lambda b, w: visit_word(b, w, places_per_word), unroll=unroll)
        if count % places_per_word:
            visit_word(block, integer(count // places_per_word), count % places_per_word)

    def _factor(self, block: Block, at: Place, iteration: Expr, factor: Factor, dtype: DType = f32) -> list[Expr]:
        """The zeros of a block, or a factor of its scales or minima, for each vector of columns."""
        lanes = self.plan.lanes
        if isinstance(factor.values, Lit):
            return [k.lit(factor.values.value, factor.values.dtype, lanes) for _ in at.vectors]
        line = block.let(factor.line(at.column, integer(at.width), iteration), "p")
        return [block.let(k.cast(k.load(factor.values, add(line, integer(v)), lanes), dtype), "p") for v in at.vectors]

    def _term(self, block: Block, at: Place, iteration: Expr, factors: Sequence[Factor]) -> list[Expr]:
        """The scales or minima of a block, for each vector of columns."""
        values = zip(*(self._factor(block, at, iteration, factor) for factor in factors), strict=True)
        return [block.let(reduce(k.mul, block_factors), "p") for block_factors in values]

    def _zeros(self, block: Block, at: Place, iteration: Expr) -> list[list[Expr]]:
        """For each vector of columns the terms to subtract from its levels."""
        lanes, zeros = self.plan.lanes, self._factor(block, at, iteration, self.b.zeros)
        if not self.b.has_integer_zeros:
            return [[k.lit(float(_MAGIC + self.b.bias), f32, lanes), zero] for zero in zeros]
        if isinstance(self.b.zeros.values, Lit):
            return [[k.lit(_MAGIC + self.b.zeros.values.value, f32, lanes)] for _ in zeros]
        return [[block.let(k.add(zero, k.lit(float(_MAGIC), f32, lanes)), "z")] for zero in zeros]

    def _value(self, words: Sequence[Expr], h: int, zeros: list[Expr]) -> Expr:
        """level - zero for level h of the words of all planes."""
        value = k.bitcast(k.binary("or", self.b.level(words, h), k.lit(0x4B000000, u32, words[0].lanes)), f32)
        for zero in zeros:
            value = k.sub(value, zero)
        return value


def _pairs(block: Block, even: Expr, odd: Expr) -> Expr:
    """Pairs of neighbouring values, rounded to bf16, in the lanes of one vector."""
    low, high = (k.cast(k.bitcast(block.let(k.cast(x, bf16), "w"), u16), u32) for x in (even, odd))
    return k.bitcast(k.binary("or", low, k.binary("shl", high, k.lit(16, u32, low.lanes))), bf16)


__all__ = ["BlockQuantizedPanels", "Place"]
