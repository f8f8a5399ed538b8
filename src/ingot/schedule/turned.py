"""Pointwise groups whose results run along one dimension and some operands along another: square blocks in registers.

    out[j, i] = f(a[i, j])   ->   for blocks of 16 x 16: 16 vectors of a; transposed in registers; f; 16 vectors of out

Vectors along either dimension alone would gather or scatter one element at a time. Blocks that the box's edges cut off
are done that way.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate
from ingot.ir.kernel import Buffer, Expr, If
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import Shape
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf, load_at
from ingot.schedule.index import integer
from ingot.schedule.transpose import transpose_block


@dataclass(frozen=True)
class Turn:
    """Results lie side by side along the dimension `out`; the operands `turned` lie side by side along `across`, and
    so many elements apart along `out`. side: elements of a block's side."""

    out: int
    across: int
    turned: dict[Node, int]
    side: int

    def in_registers(self, bits: int) -> bool:
        """Whether a row of a block is at most one vector of so many bits."""
        return all(8 * n.dtype.nbytes * self.side <= bits for n in self.turned)

    def blocks(self, shape: Shape) -> Shape:
        """The box, counted in blocks."""
        own = (self.out, self.across)
        return tuple(ceildiv(d, self.side) if i in own else d for i, d in enumerate(shape))


Reads = dict[Node, list[int | None]]


def reads_along(
    body: Graph, ins: tuple[Layout, ...], buffers: tuple[Buffer, ...], shape: Shape, axis: int, lanes: int
) -> Reads | None:
    """For each read of an operand, how far apart in memory neighbours along `axis` are (None: no constant), by trial
    emission. None where reads depend on a condition."""
    found: Reads = {n: [] for n in body.inputs}
    masked: list[Expr] = []

    def leaf(n: Node, buffer: Buffer, lay: Layout) -> Leaf:
        def read(block: Block, index: Index, mask: Expr | None) -> Expr:
            flat = ix.linear(index, lay.strides, lay.offset)
            # fewer lanes: neighbours are read by several vectors, which are interleaved
            found[n].append(ix.lane_step(flat) if flat.lanes in (1, lanes) else None)
            masked.extend(() if mask is None else (mask,))
            return load_at(block, buffer, flat, mask)

        return Leaf(read)

    block = Block()
    for d in range(len(shape)):
        block.multiples[f"x{d}"] = lanes
    at = tuple(k.ramp(k.var(f"x{d}"), lanes) if d == axis else k.var(f"x{d}") for d in range(len(shape)))
    em = Emitter({n: leaf(n, b, lay) for n, b, lay in zip(body.inputs, buffers, ins, strict=True)})
    for root in body.outputs:
        em.value(block, root, at)
    branches = any(isinstance(s, If) for s in block.stmts)
    return None if masked or branches else found


def find_turn(
    body: Graph,
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    buffers: tuple[Buffer, ...],
    shape: Shape,
    lanes: int,
) -> Turn | None:
    """The two dimensions of the box between which operands have to be transposed, if there are any."""
    if lanes < 4 or lanes & (lanes - 1):
        return None
    long = [d for d in range(len(shape)) if estimate(shape[d]) >= lanes]
    along = [d for d in long if all(lay.strides[d] == 1 for lay in outs)]
    if len(along) != 1 or len(long) < 2:
        return None
    (out,) = along
    reads = reads_along(body, ins, buffers, shape, out, lanes)
    if reads is None:
        return None
    apart = {n: steps for n, steps in reads.items() if any(s not in (0, 1) for s in steps)}
    turned = {n: s for n, steps in apart.items() if len(steps) == 1 and (s := steps[0]) is not None}
    if not turned or len(turned) < len(apart):
        return None
    for across in reversed(long):
        other = reads_along(body, ins, buffers, shape, across, lanes) if across != out else None
        if other is not None and all(other[n] == [1] for n in turned):
            return Turn(out, across, turned, lanes)
    return None


class TurnedLeaf:
    """An operand in one block, whose rows are asked for one after another, from the first on. `ahead`: prefetch the
    block so many blocks on."""

    def __init__(self, buffer: Buffer, layout: Layout, stride: int, lanes: int, ahead: int):
        self.buffer, self.layout, self.stride, self.lanes, self.ahead = buffer, layout, stride, lanes, ahead
        self.rows: list[Expr] = []

    def read(self, block: Block, index: Index, mask: Expr | None) -> Expr:
        if not self.rows:
            first = ix.first_lane(ix.linear(index, self.layout.strides, self.layout.offset))
            at = block.let(first, "t")
            for i in range(self.lanes if self.ahead else 0):
                far = integer(i * self.stride + self.ahead * self.lanes)
                block.stmts.append(k.Prefetch(self.buffer, k.add(at, far)))
            vectors = [
                block.let(k.load(self.buffer, k.add(at, integer(i * self.stride)), self.lanes), "t")
                for i in range(self.lanes)
            ]
            self.rows = transpose_block(block, vectors)[::-1]
        return self.rows.pop()


__all__ = ["Turn", "TurnedLeaf", "find_turn", "reads_along"]
