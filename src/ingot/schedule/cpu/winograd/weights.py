"""Run-time weights: a step computes U = G g G^T and the windows at each call, with the layout of the packed weights.

for each block of output channels, input channel, vector of the block:
    g = r x r vectors of weights;  windows[.., r * r, lanes] = g;  U[e][panel][channel][column] = G g G^T
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node
from ingot.ops import Transpose
from ingot.ops.core.contraction import Convolution
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.chunks import vector_loop
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.cpu.winograd.plan import CYCLES_PER_VECTOR, Shape, Winograd
from ingot.schedule.cpu.winograd.toom_cook import Transform, apply
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Step

_CHUNK_CYCLES = 40000


def contiguous_copy(
    w: Node, layout: Layout, dim: int, machine: Machine, source: Arg, target: Arg
) -> tuple[Step, Layout]:
    """Return a step that copies weights so that dimension `dim` is the innermost, and their layout in the copy."""
    x = Input("w", w.type)()
    order = (*(d for d in range(w.type.rank) if d != dim), dim)
    body = Graph((x,), (Transpose(order)(x),))
    dense = Layout.contiguous(body.outputs[0].shape)
    (step,) = lower_pointwise(body, (layout,), (dense,), machine).inlined([source], [target], temps=0).steps
    return step, dense.transpose(tuple(order.index(d) for d in range(w.type.rank)))


def _chunk_channels(vectors: int, s: Shape, p: Winograd, t: Transform) -> int:
    cost = vectors * CYCLES_PER_VECTOR * (s.r * s.r * 2 + (0 if p.late else t.alpha**2))
    return max(1, min(int(_CHUNK_CYCLES / cost), s.ci))


def _panel_offset(block: Block, start: Expr, column: Expr, row: Expr, panel: int, s: Shape, p: Winograd) -> Expr:
    """The offset of (row, column) in U, which begins at `start`. Each panel has all rows of its columns."""
    panel_start = block.let(k.mul(k.binary("div", column, integer(panel)), integer(panel)), "p")
    width = k.binary("min", integer(panel), k.sub(integer(p.columns), panel_start))
    offset = k.add(k.mul(panel_start, integer(s.k)), k.mul(row, width))
    return block.let(k.add(k.add(start, offset), k.sub(column, panel_start)), "u")


def weights_step(
    op: Convolution, w: Layout, s: Shape, p: Winograd, t: Transform, panel: int, machine: Machine, args: Sequence[Arg]
) -> Step:
    """Return the step that transforms the weights. w: their layout, with contiguous output channels. panel: columns of
    a panel of the products. args: the weights, the windows, and U unless the chunks transform the weights."""
    lanes, rr, blocks = machine.lanes(s.dtype), s.r * s.r, -(-s.co // p.columns)
    source, windows, u = Buffer("w", s.dtype), Buffer("g", s.dtype, writable=True), Buffer("u", s.dtype, writable=True)
    *depth_stride, row_stride, kernel_column_stride = (int(w.strides[op.rhs_layout.index(c)]) for c in op.spatial)
    channel_stride, column_stride = (int(w.strides[op.rhs_layout.index(c)]) for c in "IO")
    assert column_stride == 1 or s.co * s.groups == 1
    vectors = -(-p.columns // lanes)
    chunk_channels = _chunk_channels(vectors, s, p, t)
    parts = -(-s.ci // chunk_channels)
    chunk, top = k.var("chunk"), Block()
    extents = (s.groups, blocks, s.taps, parts)
    group, block, tap, part = (top.let(e, "c") for e in ix.delinearize(chunk, extents, top.multiples))
    block_column = top.let(k.mul(block, integer(p.columns)), "n")
    count = top.let(k.binary("min", integer(p.columns), k.sub(integer(s.co), block_column)), "n")
    low = top.let(k.mul(part, integer(chunk_channels)), "i")
    high = top.let(k.binary("min", k.add(low, integer(chunk_channels)), integer(s.ci)), "i")
    first = k.add(k.mul(group, integer(s.co)), block_column)
    first = k.add(k.add(first, k.mul(tap, integer(depth_stride[0] if depth_stride else 0))), dim_expr(w.offset))
    start = top.let(first, "w")
    block_index = k.add(k.mul(group, integer(blocks)), block)
    windows_offset = top.let(k.mul(block_index, integer(s.k * vectors * rr * lanes)), "g")
    u_offset = top.let(k.mul(block_index, integer(t.alpha**2 * s.k * p.columns)), "u")

    def emit_channel(x: Block, i: Expr) -> None:
        row = x.let(k.add(k.mul(tap, integer(s.ci)), i), "k")
        base = x.let(k.add(start, k.mul(i, integer(channel_stride))), "w")

        def emit_vector(y: Block, column: Expr, mask: Expr | None) -> None:
            n = ix.first_lane(column)
            w_offset = y.let(k.add(base, n), "w")
            taps = [
                y.let(
                    k.load(
                        source,
                        k.add(w_offset, integer(i * row_stride + j * kernel_column_stride)),
                        column.lanes,
                        mask,
                    ),
                    "g",
                )
                for i in range(s.r)
                for j in range(s.r)
            ]
            vector = k.binary("div", n, integer(lanes))
            lane = k.sub(n, k.mul(vector, integer(lanes)))
            window = k.mul(k.add(k.mul(row, integer(vectors)), vector), integer(rr * lanes))
            target_offset = y.let(k.add(k.add(windows_offset, window), lane), "g")
            for i, value in enumerate(taps):
                y.store(windows, k.add(target_offset, integer(i * lanes)), value)
            if p.late:
                return
            target_offset = _panel_offset(y, u_offset, n, row, panel, s, p)
            columns = [apply(y, t.g, taps[j :: s.r]) for j in range(s.r)]
            for e in range(t.alpha):
                for f, value in enumerate(apply(y, t.g, [c[e] for c in columns])):
                    y.store(u, k.add(target_offset, integer((e * t.alpha + f) * s.k * p.columns)), value)

        vector_loop(x, ZERO, count, lanes, machine, emit_vector)

    top.loop("i", low, high, 1, emit_channel)
    buffers = (source, windows) if p.late else (source, windows, u)
    chunks = integer(s.groups * blocks * s.taps * parts)
    return Step(Kernel("winograd_weights", buffers, (), chunk, chunks, top.body), tuple(args))


__all__ = ["contiguous_copy", "weights_step"]
