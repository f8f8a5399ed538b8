"""Depthwise convolutions whose input a 1x1 convolution of the same group computes, as in inverted residuals.

    for a strip of output rows, for a panel of channels:                      one chunk
        scratch = epilogue(A . B[panel]) at the input rows of the strip       zeros around the image
        out = epilogue(depthwise(scratch))

The widened image is several times as large as what it is made from, and is never written to memory. A strip's scratch
stays in the second-level cache; the rows that two strips share are computed twice.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import static_shape
from ingot.schedule import index as ix
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.buffers import body_dims, symbol_params
from ingot.schedule.choice import Direct
from ingot.schedule.cpu.chunks import vector_loop
from ingot.schedule.cpu.contraction.cost_model import plan_of, rank_tiles
from ingot.schedule.cpu.contraction.macro_kernel import MacroKernel
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.contraction.pack import pack_panels
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.windows.depthwise import Depthwise
from ingot.schedule.dimension_numbers import convolution_loops
from ingot.schedule.emit import Index, store_at
from ingot.schedule.folds import accumulator
from ingot.schedule.group_io import bind_result, operand_memory
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Lowered


def lower_inverted_bottleneck(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """A 1x1 convolution, pointwise ops, zero padding, a depthwise convolution and its epilogue."""
    expand, anchor = (n for n in body.nodes() if isinstance(n.op, ops.Convolution))
    return _InvertedBottleneck(expand, anchor, body, ins, outs, constant, machine).lower()


class _InvertedBottleneck(Depthwise):
    def __init__(
        self,
        expand: Node,
        anchor: Node,
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        constant: tuple[bool, ...],
        machine: Machine,
    ):
        a, b = expand.inputs
        self.expand = expand
        self.a_at, self.a_layout = operand_memory(body, a, ins)
        self.b_at, b_layout = operand_memory(body, b, ins)
        self.loops = convolution_loops(expand, self.a_layout, b_layout)
        rows, cols = self.loops.rows, self.loops.cols
        self.c = Contraction((), rows, cols, self.loops.reduce, a.dtype, b.dtype, accumulator(expand.dtype))
        tile = next(t for t in rank_tiles(self.c, machine) if t[0] == 1)
        lines = -(-static_shape((rows[-1].extent,))[0] // tile[1])
        self.plan = plan_of(self.c, machine, Direct(*tile, panels=1, tiles=lines, entries=1, blocks=1, prefetch=0))
        self.expand_pack = pack_panels(self.b_at, self.c, self.plan, *static_shape((b_layout.offset,)))
        self.padded = anchor.inputs[0]
        self.made, self.low = self.padded, (0, 0)
        if isinstance(self.padded.op, ops.Pad):
            above, left = static_shape(self.padded.op.low[1:3])
            self.made, self.low = self.padded.inputs[0], (above, left)
        self.line = static_shape(self.padded.shape[2:])[0] * self.plan.panel_columns  # elements of a row in scratch
        super().__init__(anchor, body, ins, outs, constant, machine)

    def _input(self) -> tuple[Buffer, Layout]:
        x = self.padded
        return Buffer("none", x.dtype), Layout(x.shape, (0, self.line, self.plan.panel_columns, 1))

    def _rows_of(self, strip: int) -> int:
        """Input rows of a strip of output rows."""
        return (strip - 1) * self.op.strides[0] + (self.window[0] - 1) * self.op.rhs_dilation[0] + 1

    def _strip(self, parts: int) -> int:
        """Output rows of a chunk: those that share few rows with others, and keep all threads busy to the end."""
        n, threads = estimate(self.anchor.shape[0]), self.machine.threads
        height, _ = static_shape(self.anchor.shape[1:3])
        best, cost = 1, float("inf")
        for strips in range(1, height + 1):
            strip = -(-height // strips)
            if strip > 1 and self._rows_of(strip) * self.line * self.c.a.nbytes > self.machine.l2 // 2:
                continue
            count = n * -(-height // strip) * parts
            again = -(-height // strip) * self._rows_of(strip) / self._rows_of(height)
            here = again * (-(-count // threads) * threads / count)
            if here < cost * 0.99:
                best, cost = strip, here
        return best

    def lower(self) -> Lowered:
        images, height, width, _ = self.anchor.shape
        self.tile = self._tile(width)
        parts = -(-self.channels // self.plan.panel_columns)
        strip = self._strip(parts)
        chunk, top = k.var("chunk"), Block()
        extents: tuple[DimLike, ...] = (images, ceildiv(height, strip), parts)
        image, which, panel = (top.let(e, "c") for e in ix.delinearize(chunk, extents, top.multiples))
        image = ZERO if images == 1 else image
        panel = ZERO if parts == 1 else panel
        low = top.let(ix.mul(which, integer(strip)), "oh")
        high = top.let(k.binary("min", ix.add(low, integer(strip)), dim_expr(height)), "oh")
        stride = integer(self.op.strides[0])
        first = top.let(ix.mul(low, stride), "h")
        last = top.let(ix.add(ix.mul(ix.sub(high, low), stride), integer(self._rows_of(1) - self.op.strides[0])), "h")
        last = top.let(ix.add(first, last), "h")
        channel = top.let(ix.mul(panel, integer(self.plan.panel_columns)), "c")
        if isinstance(channel, k.Var):
            top.multiples[channel.name] = self.plan.panel_columns
        size = self._rows_of(strip) * self.line
        self.x_buffer = top.alloc("wide", self.made.dtype, size, scratch=0)
        self.shift = top.let(ix.sub(ix.mul(first, integer(-self.line)), channel), "s")
        self._clear(top, first, last)
        self._widen(top, image, panel, first, last)
        end = top.let(k.binary("min", ix.add(channel, integer(self.plan.panel_columns)), integer(self.channels)), "c")

        def row(block: Block, oh: Expr) -> None:
            def line(b: Block, c: Expr, mask: Expr | None) -> None:
                self._line(b, (image, oh), c, mask)

            if self.channels % self.lanes:
                vector_loop(block, channel, end, self.lanes, self.machine, line, self.lanes)
                return
            lanes = self.lanes
            block.loop("c", channel, end, lanes, lambda b, c: line(b, k.ramp(c, lanes), None), multiple=lanes)

        top.loop("oh", low, high, 1, row)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)))
        count = images * ceildiv(height, strip) * parts
        bytes_ = size * self.made.dtype.nbytes
        self.packs = (*self.packs, self.expand_pack)
        return self._lowered(Kernel("inverted_bottleneck", (), dims, chunk, dim_expr(count), top.body, bytes_))

    def _clear(self, top: Block, first: Expr, last: Expr) -> None:
        """Zeros at the places of scratch outside the image."""
        height, width = static_shape(self.made.shape[1:3])
        lanes, panel, (above, left) = self.lanes, self.plan.panel_columns, self.low
        zero = k.lit(0.0, self.made.dtype, lanes)

        def fill(block: Block, row: Expr, begin: int, end: int) -> None:
            def some(b: Block, i: Expr) -> None:
                b.store(self.x_buffer, ix.add(row, i), zero)

            block.loop("z", begin * panel, end * panel, lanes, some)

        def line(block: Block, h: Expr) -> None:
            row = block.let(ix.mul(ix.sub(h, first), integer(self.line)), "z")

            def sides(b: Block) -> None:
                fill(b, row, 0, left)
                fill(b, row, left + width, self.line // panel)

            outside = k.binary("or", k.binary("lt", h, integer(above)), k.binary("ge", h, integer(above + height)))
            block.when(outside, lambda b: fill(b, row, 0, self.line // panel), sides)

        if self.made is not self.padded:
            top.loop("h", first, last, 1, line)

    def _widen(self, top: Block, image: Expr, panel: Expr, first: Expr, last: Expr) -> None:
        """The 1x1 convolution at the input rows [first, last) that lie in the image."""
        height = dim_expr(self.made.shape[1])
        above, left = (integer(n) for n in self.low)
        lines = (
            top.let(ix.add(ix.mul(image, height), k.binary("max", ix.sub(first, above), ZERO)), "g"),
            top.let(ix.add(ix.mul(image, height), k.binary("min", ix.sub(last, above), height)), "g"),
        )

        def write(block: Block, place: Index, acc: Expr, mask: Expr | None) -> None:
            bind_result(self.em, block, self.expand, block.let(k.cast(acc, self.expand.dtype), "acc"))
            n, h, w, c = self.loops.result(self.loops.full(place))
            value = self.em.value(block, self.made, (n, h, w, c), mask)
            at = ix.linear((ix.add(h, above), ix.add(w, left), c), (self.line, self.plan.panel_columns, 1))
            store_at(block, self.x_buffer, ix.add(at, self.shift), value, mask)

        a = Operand(self.operands.ins[self.a_at], self.a_layout.offset)
        nest = MacroKernel(self.c, self.plan, a, Operand(self.operands.ins[self.b_at]), write)
        nest.emit_lines(top, panel, lines)
