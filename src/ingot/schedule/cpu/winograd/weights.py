"""Weights that are no constant: a step makes U = G g G^T and the windows at each call, in the order of `Pack`s.

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
from ingot.schedule.cpu.winograd.plan import CYCLES_PER_VECTOR, Pieces, Shape
from ingot.schedule.cpu.winograd.toom_cook import Transform, apply
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Step

_CHUNK_CYCLES = 40000


def side_by_side(w: Node, layout: Layout, last: int, machine: Machine, source: Arg, to: Arg) -> tuple[Step, Layout]:
    """A step that copies weights so that dimension `last` is the innermost, and their layout in the copy."""
    x = Input("w", w.type)()
    order = (*(d for d in range(w.type.rank) if d != last), last)
    body = Graph((x,), (Transpose(order)(x),))
    dense = Layout.contiguous(body.outputs[0].shape)
    (step,) = lower_pointwise(body, (layout,), (dense,), machine).within([source], [to], temps=0).steps
    return step, dense.transpose(tuple(order.index(d) for d in range(w.type.rank)))


def _channels_of_a_chunk(vectors: int, s: Shape, p: Pieces, t: Transform) -> int:
    cost = vectors * CYCLES_PER_VECTOR * (s.r * s.r * 2 + (0 if p.late else t.alpha**2))
    return max(1, min(int(_CHUNK_CYCLES / cost), s.ci))


def _place_in_panels(block: Block, start: Expr, column: Expr, row: Expr, panel: int, s: Shape, p: Pieces) -> Expr:
    """Where a column of a row lies in U, which begins at `start`: each panel has all rows of its columns."""
    begin = block.let(k.mul(k.binary("div", column, integer(panel)), integer(panel)), "p")
    width = k.binary("min", integer(panel), k.sub(integer(p.columns), begin))
    place = k.add(k.mul(begin, integer(s.k)), k.mul(row, width))
    return block.let(k.add(k.add(start, place), k.sub(column, begin)), "u")


def weights_step(
    op: Convolution, w: Layout, s: Shape, p: Pieces, t: Transform, panel: int, machine: Machine, args: Sequence[Arg]
) -> Step:
    """w: where weights lie, output channels side by side. panel: columns of a panel of the products. args: the weights,
    the windows, and, unless they are made late, U."""
    lanes, rr, blocks = machine.lanes(s.dtype), s.r * s.r, -(-s.co // p.columns)
    source, windows, u = Buffer("w", s.dtype), Buffer("g", s.dtype, writable=True), Buffer("u", s.dtype, writable=True)
    *outer, a, b = (int(w.strides[op.rhs_layout.index(c)]) for c in op.spatial)
    channel_step, column_step = (int(w.strides[op.rhs_layout.index(c)]) for c in "IO")
    assert column_step == 1 or s.co * s.groups == 1
    vectors = -(-p.columns // lanes)
    per = _channels_of_a_chunk(vectors, s, p, t)
    parts = -(-s.ci // per)
    chunk, top = k.var("chunk"), Block()
    extents = (s.groups, blocks, s.taps, parts)
    group, block, tap, part = (top.let(e, "c") for e in ix.delinearize(chunk, extents, top.multiples))
    inside = top.let(k.mul(block, integer(p.columns)), "n")
    count = top.let(k.binary("min", integer(p.columns), k.sub(integer(s.co), inside)), "n")
    low = top.let(k.mul(part, integer(per)), "i")
    high = top.let(k.binary("min", k.add(low, integer(per)), integer(s.ci)), "i")
    first = k.add(k.mul(group, integer(s.co)), inside)
    first = k.add(k.add(first, k.mul(tap, integer(outer[0] if outer else 0))), dim_expr(w.offset))
    start = top.let(first, "w")
    whole = k.add(k.mul(group, integer(blocks)), block)
    to_windows = top.let(k.mul(whole, integer(s.k * vectors * rr * lanes)), "g")
    to_u = top.let(k.mul(whole, integer(t.alpha**2 * s.k * p.columns)), "u")

    def channel(x: Block, i: Expr) -> None:
        row = x.let(k.add(k.mul(tap, integer(s.ci)), i), "k")
        base = x.let(k.add(start, k.mul(i, integer(channel_step))), "w")

        def vector(y: Block, column: Expr, mask: Expr | None) -> None:
            n = ix.first_lane(column)
            at = y.let(k.add(base, n), "w")
            taps = [
                y.let(k.load(source, k.add(at, integer(i * a + j * b)), column.lanes, mask), "g")
                for i in range(s.r)
                for j in range(s.r)
            ]
            which = k.binary("div", n, integer(lanes))
            lane = k.sub(n, k.mul(which, integer(lanes)))
            line = k.mul(k.add(k.mul(row, integer(vectors)), which), integer(rr * lanes))
            to = y.let(k.add(k.add(to_windows, line), lane), "g")
            for i, value in enumerate(taps):
                y.store(windows, k.add(to, integer(i * lanes)), value)
            if p.late:
                return
            to = _place_in_panels(y, to_u, n, row, panel, s, p)
            columns = [apply(y, t.g, taps[j :: s.r]) for j in range(s.r)]
            for e in range(t.alpha):
                for f, value in enumerate(apply(y, t.g, [c[e] for c in columns])):
                    y.store(u, k.add(to, integer((e * t.alpha + f) * s.k * p.columns)), value)

        vector_loop(x, ZERO, count, lanes, machine, vector)

    top.loop("i", low, high, 1, channel)
    buffers = (source, windows) if p.late else (source, windows, u)
    chunks = integer(s.groups * blocks * s.taps * parts)
    return Step(Kernel("winograd_weights", buffers, (), chunk, chunks, top.body), tuple(args))


__all__ = ["side_by_side", "weights_step"]
