"""Constant operands of 4 or 8 bits: levels in blocks along the reduction, each with a zero and a scale for each column.

    b[k, n] = (level[k, n] - zero[k / block, n]) * scale[k / block, n]

A panel has the levels of neighbouring k of a column in one 32-bit lane, [panel][k / 8][columns], zeros and scales as
[panel][blocks][columns]. A level is widened by arithmetic that vectors of any machine have:

    bits of 2^23 | level    is the float 2^23 + level, from which 2^23 + zero leaves level - zero, exactly

    one row:      part[c] += x[k] * (level - zero)                     in registers; acc += part * scale after a block
    several:      scratch[k, c] = (level - zero) * scale               a part of a panel, which all row tiles then read
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, floordiv
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.types import f32, static_shape, u32
from ingot.schedule.axes import Axis, Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.operands import BlockQuantized
from ingot.schedule.cpu.contraction.plan import PREFETCH_DISTANCE_BYTES, Plan
from ingot.schedule.index import ZERO, add, dim_expr, mul
from ingot.support.dataclass import dataclass

_MAGIC = 1 << 23  # in floats from here to twice as much neighbours are 1 apart
Words = list[Expr]


@dataclass(frozen=True)
class Place:
    """A panel of `width` columns: where its words and its parameters start."""

    words: Expr
    parameters: Expr
    width: int


@dataclass(frozen=True)
class BlockQuantizedPanels:
    """The panels of a contraction's B of levels, as loops read them."""

    c: Contraction
    plan: Plan
    b: BlockQuantized

    @property
    def _axes(self) -> tuple[Axis, Axis]:
        """Blocks, and the places within each."""
        axes = merge_axes(self.c.reduce)
        return axes if len(axes) == 2 else (Axis(1), *axes)  # type: ignore[return-value]

    def place(self, block: Block, panel: Expr, width: int) -> Place:
        whole = mul(panel, integer(self.plan.panel_columns))
        blocks, inner = self._axes
        rows = ceildiv(inner.extent, self.c.k_per_lane)
        words = block.let(mul(whole, dim_expr(blocks.extent * rows)), "bw")
        return Place(words, block.let(mul(whole, dim_expr(blocks.extent)), "bs"), width)

    def widen(self, block: Block, at: Place, part: Expr, parts: int, out: Buffer) -> None:
        """out[k, columns] = what the levels of one of equal parts of the panel stand for."""
        blocks, inner = self._axes
        turns = static_shape((floordiv(blocks.extent, parts),))[0] if blocks.extent != 1 else 1
        low = mul(part, integer(turns)) if blocks.extent != 1 else ZERO

        def turn(b: Block, t: Expr) -> None:
            zeros, scales = self._zeros(b, at, t), self._rows(b, at, t, self.b.scales)
            start = mul(k.sub(t, low), dim_expr(inner.extent))

            def word(x: Block, first: Expr, words: Words, count: int) -> None:
                for h in range(count):
                    line = mul(add(add(start, first), integer(h)), integer(at.width))
                    for v, own in enumerate(words):
                        value = k.mul(self._value(own, h, zeros[v]), scales[v])
                        x.store(out, add(line, integer(v * self.plan.lanes)), value)

            self._words(b, at, t, (part, parts) if blocks.extent == 1 else (ZERO, 1), word)

        block.loop("t", low, add(low, integer(turns)), 1, turn)

    def row(self, block: Block, at: Place, a: Buffer, base: Expr, acc: Buffer) -> None:
        """acc = one row of A, from `base`, times the panel."""
        lanes, vectors = self.plan.lanes, at.width // self.plan.lanes
        blocks, inner = self._axes
        zero = k.lit(0.0, f32, lanes)
        part = block.alloc("part", f32, vectors, lanes=lanes)
        for v in range(vectors):
            block.store(acc, integer(v), zero)

        def turn(b: Block, t: Expr) -> None:
            zeros = self._zeros(b, at, t)
            start = b.let(add(base, mul(t, dim_expr(blocks.a))), "ab")
            for v in range(vectors):
                b.store(part, integer(v), zero)

            def word(x: Block, first: Expr, words: Words, count: int) -> None:
                for h in range(count):
                    own = k.load(a, add(start, mul(add(first, integer(h)), dim_expr(inner.a))))
                    value = x.let(k.splat(own, lanes), "s")
                    for v, w in enumerate(words):
                        sums = k.fma(value, self._value(w, h, zeros[v]), k.load(part, integer(v)))
                        x.store(part, integer(v), sums)

            self._words(b, at, t, (ZERO, 1), word, ahead=True)
            for v, scale in enumerate(self._rows(b, at, t, self.b.scales)):
                b.store(acc, integer(v), k.fma(scale, k.load(part, integer(v)), k.load(acc, integer(v))))

        block.loop("t", ZERO, dim_expr(blocks.extent), 1, turn)

    def _words(
        self, block: Block, at: Place, turn: Expr, part: tuple[Expr, int],
        visit: Callable[[Block, Expr, Words, int], None], ahead: bool = False,
    ) -> None:  # fmt: skip
        """`visit` with the words of each `per_lane` places of a block, or of an equal part of it: the first place,
        counted from the part's start, a vector for each of the panel's, and how many places there are."""
        each, lanes = self.c.k_per_lane, self.plan.lanes
        count = static_shape((floordiv(self._axes[1].extent, part[1]),))[0]
        rows = -(-count // each)
        first = add(mul(turn, dim_expr(ceildiv(self._axes[1].extent, each))), mul(part[0], integer(rows)))
        start = block.let(add(at.words, mul(first, integer(at.width))), "bw")

        def some(b: Block, w: Expr, places: int) -> None:
            line = b.let(add(start, mul(w, integer(at.width))), "w")
            words = [b.let(k.load(self.b.words, add(line, integer(v)), lanes), "w") for v in range(0, at.width, lanes)]
            for v in range(0, at.width if ahead else 0, 16):
                b.stmts.append(k.Prefetch(self.b.words, add(line, integer(PREFETCH_DISTANCE_BYTES // 4 + v))))
            visit(b, mul(w, integer(each)), words, places)

        block.loop("w", 0, count // each, 1, lambda b, w: some(b, w, each))
        if count % each:
            some(block, integer(count // each), count % each)

    def _rows(self, block: Block, at: Place, turn: Expr, p: Buffer | Lit) -> list[Expr]:
        """A block's zeros or scales, for each vector of columns."""
        lanes, columns = self.plan.lanes, range(0, at.width, self.plan.lanes)
        if isinstance(p, Lit):
            return [k.lit(p.value, p.dtype, lanes) for _ in columns]
        line = block.let(add(at.parameters, mul(turn, integer(at.width))), "p")
        return [block.let(k.cast(k.load(p, add(line, integer(v)), lanes), f32), "p") for v in columns]

    def _zeros(self, block: Block, at: Place, turn: Expr) -> list[list[Expr]]:
        """For each vector of columns what is to be taken off its levels."""
        lanes, zeros = self.plan.lanes, self._rows(block, at, turn, self.b.zeros)
        if not self.b.has_integer_zeros:
            return [[k.lit(float(_MAGIC + self.b.bias), f32, lanes), zero] for zero in zeros]
        if isinstance(self.b.zeros, Lit):
            return [[k.lit(_MAGIC + self.b.zeros.value, f32, lanes)] for _ in zeros]
        return [[block.let(k.add(zero, k.lit(float(_MAGIC), f32, lanes)), "z")] for zero in zeros]

    def _value(self, words: Expr, h: int, zeros: list[Expr]) -> Expr:
        """level - zero, of the h-th level of each word."""
        bits, lanes = self.c.b.bits, words.lanes
        if h:
            words = k.binary("lshr", words, k.lit(h * bits, u32, lanes))
        level = k.binary("and", words, k.lit((1 << bits) - 1, u32, lanes))
        value = k.bitcast(k.binary("or", level, k.lit(0x4B000000, u32, lanes)), f32)
        for zero in zeros:
            value = k.sub(value, zero)
        return value


__all__ = ["BlockQuantizedPanels", "Place"]
