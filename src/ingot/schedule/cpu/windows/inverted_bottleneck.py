"""Depthwise convolutions whose input is computed by a 1x1 convolution of the same group, as in inverted residuals.

    for a strip of output rows, for a panel of channels:                      one chunk
        scratch = epilogue(A . B[panel]) at the input rows of the strip       zeros around the image
        out = epilogue(depthwise(scratch))

The widened image is several times as large as the input, and is never written to memory. A strip's scratch stays in L2;
rows that two strips share are computed twice.
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
from ingot.schedule.cpu.windows.borders import Image
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
    """Lower a 1x1 convolution, pointwise ops, zero padding, a depthwise convolution and its epilogue."""
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
        self.a_input, self.a_layout = operand_memory(body, a, ins)
        self.b_input, b_layout = operand_memory(body, b, ins)
        self.loops = convolution_loops(expand, self.a_layout, b_layout)
        rows, cols = self.loops.rows, self.loops.cols
        self.c = Contraction((), rows, cols, self.loops.reduce, a.dtype, b.dtype, accumulator(expand.dtype))
        tile = next(t for t in rank_tiles(self.c, machine) if t[0] == 1)
        lines = -(-static_shape((rows[-1].extent,))[0] // tile[1])
        self.plan = plan_of(self.c, machine, Direct(*tile, panels=1, tiles=lines, entries=1, blocks=1, prefetch=0))
        self.expand_pack = pack_panels(self.b_input, self.c, self.plan, *static_shape((b_layout.offset,)))
        self.padded = anchor.inputs[0]
        self.widened, self.padding = self.padded, (0, 0)
        if isinstance(self.padded.op, ops.Pad):
            rows_above, columns_left = static_shape(self.padded.op.low[1:3])
            self.widened, self.padding = self.padded.inputs[0], (rows_above, columns_left)
        self.row_elements = (
            static_shape(self.padded.shape[2:])[0] * self.plan.panel_columns
        )  # elements of a row in scratch
        super().__init__(anchor, body, ins, outs, constant, machine)

    def _input(self) -> tuple[Buffer, Image]:
        x = self.padded
        layout = Layout(x.shape, (0, self.row_elements, self.plan.panel_columns, 1))
        return Buffer("none", x.dtype), Image(-1, layout, (None, None))

    def _input_rows(self, strip: int) -> int:
        """The number of input rows of a strip of output rows."""
        return (strip - 1) * self.op.strides[0] + (self.window[0] - 1) * self.op.rhs_dilation[0] + 1

    def _strip_rows(self, parts: int) -> int:
        """The output rows of a chunk, so that chunks share few input rows and all threads stay busy."""
        n, threads = estimate(self.anchor.shape[0]), self.machine.threads
        height, _ = static_shape(self.anchor.shape[1:3])
        best, cost = 1, float("inf")
        for strips in range(1, height + 1):
            strip = -(-height // strips)
            if strip > 1 and self._input_rows(strip) * self.row_elements * self.c.a.nbytes > self.machine.l2 // 2:
                continue
            count = n * -(-height // strip) * parts
            recomputation = -(-height // strip) * self._input_rows(strip) / self._input_rows(height)
            strip_cost = recomputation * (-(-count // threads) * threads / count)
            if strip_cost < cost * 0.99:
                best, cost = strip, strip_cost
        return best

    def lower(self) -> Lowered:
        images, height, width, _ = self.anchor.shape
        self.tile = self._tile(width)
        parts = -(-self.channels // self.plan.panel_columns)
        strip = self._strip_rows(parts)
        chunk, top = k.var("chunk"), Block()
        extents: tuple[DimLike, ...] = (images, ceildiv(height, strip), parts)
        image, strip_index, panel = (top.let(e, "c") for e in ix.delinearize(chunk, extents, top.multiples))
        image = ZERO if images == 1 else image
        panel = ZERO if parts == 1 else panel
        low = top.let(ix.mul(strip_index, integer(strip)), "oh")
        high = top.let(k.binary("min", ix.add(low, integer(strip)), dim_expr(height)), "oh")
        stride = integer(self.op.strides[0])
        first = top.let(ix.mul(low, stride), "h")
        last = top.let(
            ix.add(ix.mul(ix.sub(high, low), stride), integer(self._input_rows(1) - self.op.strides[0])), "h"
        )
        last = top.let(ix.add(first, last), "h")
        channel = top.let(ix.mul(panel, integer(self.plan.panel_columns)), "c")
        if isinstance(channel, k.Var):
            top.multiples[channel.name] = self.plan.panel_columns
        size = self._input_rows(strip) * self.row_elements
        self.x_buffer = top.alloc("wide", self.widened.dtype, size, scratch=0)
        self.shift = top.let(ix.sub(ix.mul(first, integer(-self.row_elements)), channel), "s")
        self._clear_padding(top, first, last)
        self._widen(top, image, panel, first, last)
        end = top.let(k.binary("min", ix.add(channel, integer(self.plan.panel_columns)), integer(self.channels)), "c")

        def emit_row(block: Block, oh: Expr) -> None:
            def emit_vector(b: Block, c: Expr, mask: Expr | None) -> None:
                self._line(b, (image, oh), c, mask)

            if self.channels % self.lanes:
                vector_loop(block, channel, end, self.lanes, self.machine, emit_vector, self.lanes)
                return
            lanes = self.lanes
            block.loop("c", channel, end, lanes, lambda b, c: emit_vector(b, k.ramp(c, lanes), None), multiple=lanes)

        top.loop("oh", low, high, 1, emit_row)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)))
        count = images * ceildiv(height, strip) * parts
        scratch_bytes = size * self.widened.dtype.nbytes
        self.packs = (*self.packs, self.expand_pack)
        return self._lowered(Kernel("inverted_bottleneck", (), dims, chunk, dim_expr(count), top.body, scratch_bytes))

    def _clear_padding(self, top: Block, first: Expr, last: Expr) -> None:
        """Write zeros to the padding in scratch."""
        height, width = static_shape(self.widened.shape[1:3])
        lanes, panel, (rows_above, columns_left) = self.lanes, self.plan.panel_columns, self.padding
        zero = k.lit(0.0, self.widened.dtype, lanes)

        def clear(block: Block, row: Expr, begin: int, end: int) -> None:
            def store(b: Block, i: Expr) -> None:
                b.store(self.x_buffer, ix.add(row, i), zero)

            block.loop("z", begin * panel, end * panel, lanes, store)

        def clear_row(block: Block, h: Expr) -> None:
            row = block.let(ix.mul(ix.sub(h, first), integer(self.row_elements)), "z")

            def clear_edges(b: Block) -> None:
                clear(b, row, 0, columns_left)
                clear(b, row, columns_left + width, self.row_elements // panel)

            outside = k.binary(
                "or", k.binary("lt", h, integer(rows_above)), k.binary("ge", h, integer(rows_above + height))
            )
            block.when(outside, lambda b: clear(b, row, 0, self.row_elements // panel), clear_edges)

        if self.widened is not self.padded:
            top.loop("h", first, last, 1, clear_row)

    def _widen(self, top: Block, image: Expr, panel: Expr, first: Expr, last: Expr) -> None:
        """Emit the 1x1 convolution for the input rows [first, last) that are inside the image."""
        height = dim_expr(self.widened.shape[1])
        rows_above, columns_left = (integer(n) for n in self.padding)
        lines = (
            top.let(ix.add(ix.mul(image, height), k.binary("max", ix.sub(first, rows_above), ZERO)), "g"),
            top.let(ix.add(ix.mul(image, height), k.binary("min", ix.sub(last, rows_above), height)), "g"),
        )

        def write(block: Block, loop_index: Index, acc: Expr, mask: Expr | None) -> None:
            bind_result(self.em, block, self.expand, block.let(k.cast(acc, self.expand.dtype), "acc"))
            n, h, w, c = self.loops.result(self.loops.full(loop_index))
            value = self.em.value(block, self.widened, (n, h, w, c), mask)
            offset = ix.linear(
                (ix.add(h, rows_above), ix.add(w, columns_left), c), (self.row_elements, self.plan.panel_columns, 1)
            )
            store_at(block, self.x_buffer, ix.add(offset, self.shift), value, mask)

        a = Operand(self.operands.ins[self.a_input], self.a_layout.offset)
        nest = MacroKernel(self.c, self.plan, a, Operand(self.operands.ins[self.b_input]), write)
        nest.emit_lines(top, panel, lines)
