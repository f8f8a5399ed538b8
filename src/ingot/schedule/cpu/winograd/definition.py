"""The direct computation of a line of a tile's outputs, for lines where Winograd's algorithm is not finite.

The transforms mix the values of a tile, so a NaN or an infinity in the input, or a value so large that a transform
overflows, makes NaN of outputs whose windows do not contain it. If all outputs are finite, they are correct.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.winograd.tiles import TilePosition, Tiles
from ingot.schedule.index import dim_expr
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Fallback:
    """The direct computation of outputs.

    x: the input. strides: of its images, slices, rows and columns. windows: the weights, laid out by
    `pack_window_stream` per block of `columns`. first_channel: the group's first input channel. first_window: the
    block's first window.
    """

    tiles: Tiles
    x: Operand
    strides: tuple[DimLike, ...]
    windows: Buffer
    columns: int
    lanes: int
    first_channel: Expr
    first_window: Expr

    def replace_nonfinite(
        self, block: Block, values: list[Expr], position: TilePosition, line: Expr, column: Expr
    ) -> list[Expr]:
        """Return `values`, vectors of a tile's line from `column`; computed directly if one of them is not finite.

        Testing the first and the last value is enough: together they depend on all inputs of the line.
        """
        x = values[0]
        zero = k.lit(0.0, x.dtype, x.lanes)
        nan_sum = block.let(k.fma(x, zero, k.mul(values[-1], zero)), "z")  # NaN if a value is not finite
        is_nan = k.binary("ne", nan_sum, nan_sum)
        results = block.alloc("y", x.dtype, len(values), lanes=x.lanes)
        for j, value in enumerate(values):
            block.store(results, integer(j), value)
        block.when(k.reduce("or", is_nan), lambda b: self._sums(b, results, position, line, column))
        return [block.let(k.load(results, integer(j), x.lanes), "y") for j in range(len(values))]

    def _sums(self, block: Block, out: Buffer, position: TilePosition, line: Expr, column: Expr) -> None:
        s, r, m = self.tiles.shape, self.tiles.shape.r, self.tiles.m
        _, slice_stride, row_stride, column_stride = self.strides
        dilated_row, dilated_column = dim_expr(row_stride * s.dilation[0]), dim_expr(column_stride * s.dilation[1])
        corner = (self.tiles.slice_line(position, dim, position.origin[dim]) for dim in (0, 1))
        x_offset = k.add(ix.linear((*position.slice_index, *corner), self.strides, self.x.offset), self.first_channel)
        x_offset = block.let(x_offset, "x")
        column_offsets = [
            k.mul(self.tiles.input_line(position, 1, integer(q)), dilated_column) for q in range(m + r - 1)
        ]
        column_offsets = [block.let(q, "q") for q in column_offsets]
        vectors = self.columns // self.lanes
        vector, lane = ix.delinearize(ix.first_lane(column), (vectors, self.lanes), block.multiples)
        for j in range(m):
            block.store(out, integer(j), k.lit(0.0, out.dtype, out.lanes))

        def row(outer: Block, tap: Expr, i: Expr) -> None:
            row_offset = k.add(x_offset, k.mul(self.tiles.input_line(position, 0, k.add(line, i)), dilated_row))
            row_offset = outer.let(k.add(row_offset, k.mul(tap, dim_expr(slice_stride * s.depth_dilation))), "x")

            def channel(b: Block, c: Expr) -> None:
                window = k.add(self.first_window, k.add(k.mul(tap, integer(s.ci)), c))
                window_row = k.add(k.mul(k.add(k.mul(window, integer(vectors)), vector), integer(r)), i)
                weights_offset = b.let(k.add(k.mul(window_row, integer(r * self.lanes)), lane), "w")
                taps = [
                    k.load(self.windows, k.add(weights_offset, integer(j * self.lanes)), out.lanes) for j in range(r)
                ]
                taps = [b.let(w, "w") for w in taps]
                inputs = [b.let(k.load(self.x.buffer, k.add(k.add(row_offset, c), q)), "d") for q in column_offsets]
                for j in range(m):
                    total = k.load(out, integer(j))
                    for q, w in enumerate(taps):
                        total = b.let(k.fma(inputs[j + q], w, total), "s")
                    b.store(out, integer(j), total)

            outer.loop("c", 0, s.ci, 1, channel)

        block.loop("t", 0, s.taps, 1, lambda b, tap: b.loop("r", 0, r, 1, lambda y, i: row(y, tap, i)))


__all__ = ["Fallback"]
