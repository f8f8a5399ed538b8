"""A line of a tile's outputs by the definition, where Winograd's algorithm gives numbers that are not finite.

A NaN or an infinity in the input makes NaN of outputs of its tiles whose windows do not hold it, as the transforms mix
a tile's values; so does a number so large that they overflow. Where all is finite, all is as it should be.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.winograd.tiles import Place, Tiles
from ingot.schedule.index import dim_expr
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Definition:
    """x: the input, whose image, slice, row and column lie `strides` apart. windows: the weights, as `window_stream`
    lays out those of a block of `columns`. channel: the group's first in the input; start: the block's first window."""

    tiles: Tiles
    x: Operand
    strides: tuple[DimLike, ...]
    windows: Buffer
    columns: int
    lanes: int
    channel: Expr
    start: Expr

    def where_not_finite(self, block: Block, values: list[Expr], place: Place, line: Expr, column: Expr) -> list[Expr]:
        """`values` of a tile's line, vectors from `column` on; all of them by the definition where one is not finite.

        What a value between the first and the last is made of, one of these two is made of too.
        """
        x = values[0]
        zero = k.lit(0.0, x.dtype, x.lanes)
        none = block.let(k.fma(x, zero, k.mul(values[-1], zero)), "z")  # NaN of what is not finite
        wrong = k.binary("ne", none, none)
        kept = block.alloc("y", x.dtype, len(values), lanes=x.lanes)
        for j, value in enumerate(values):
            block.store(kept, integer(j), value)
        block.when(k.reduce("or", wrong), lambda b: self._sums(b, kept, place, line, column))
        return [block.let(k.load(kept, integer(j), x.lanes), "y") for j in range(len(values))]

    def _sums(self, block: Block, out: Buffer, place: Place, line: Expr, column: Expr) -> None:
        s, r, m = self.tiles.shape, self.tiles.shape.r, self.tiles.m
        _, apart, rows, columns = self.strides
        down, along = (dim_expr(v * d) for v, d in zip((rows, columns), s.dilation, strict=True))
        corner = (self.tiles.in_slice(place, dim, place.at[dim]) for dim in (0, 1))
        first = k.add(ix.linear((*place.slice, *corner), self.strides, self.x.offset), self.channel)
        first = block.let(first, "x")
        places = [k.mul(self.tiles.line(place, 1, integer(q)), along) for q in range(m + r - 1)]
        places = [block.let(q, "q") for q in places]
        vectors = self.columns // self.lanes
        vector, lane = ix.delinearize(ix.first_lane(column), (vectors, self.lanes), block.multiples)
        for j in range(m):
            block.store(out, integer(j), k.lit(0.0, out.dtype, out.lanes))

        def row(outer: Block, tap: Expr, i: Expr) -> None:
            at = k.add(first, k.mul(self.tiles.line(place, 0, k.add(line, i)), down))
            at = outer.let(k.add(at, k.mul(tap, dim_expr(apart * s.apart))), "x")

            def channel(b: Block, c: Expr) -> None:
                window = k.add(self.start, k.add(k.mul(tap, integer(s.ci)), c))
                stream = k.add(k.mul(k.add(k.mul(window, integer(vectors)), vector), integer(r)), i)
                start = b.let(k.add(k.mul(stream, integer(r * self.lanes)), lane), "w")
                taps = [k.load(self.windows, k.add(start, integer(j * self.lanes)), out.lanes) for j in range(r)]
                taps = [b.let(w, "w") for w in taps]
                inputs = [b.let(k.load(self.x.buffer, k.add(k.add(at, c), q)), "d") for q in places]
                for j in range(m):
                    total = k.load(out, integer(j))
                    for q, w in enumerate(taps):
                        total = b.let(k.fma(inputs[j + q], w, total), "s")
                    b.store(out, integer(j), total)

            outer.loop("c", 0, s.ci, 1, channel)

        block.loop("t", 0, s.taps, 1, lambda b, tap: b.loop("r", 0, r, 1, lambda y, i: row(y, tap, i)))


__all__ = ["Definition"]
