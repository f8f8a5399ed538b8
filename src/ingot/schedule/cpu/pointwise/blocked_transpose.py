"""Pointwise groups whose results run along one dimension and some operands along another: square blocks in registers.

    out[j, i] = f(a[i, j])   ->   for blocks of 16 x 16: 16 vectors of a; transposed in registers; f; 16 vectors of out

Vectors along either dimension alone would gather or scatter one element at a time. Blocks that the box's edges cut off
are done that way. Operands whose rows are short and lie one behind the other are read by whole vectors, as many rows at
once as a vector has lanes (`row_columns.py`).
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate
from ingot.ir.kernel import Buffer, Expr, If
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import Shape
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.rows.columns import is_short_row, read_columns
from ingot.schedule.cpu.transpose import transpose_block
from ingot.schedule.emit import Emitter, Index, Leaf, load_at
from ingot.schedule.index import integer
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Transposition:
    """Results lie side by side along the dimension `out`; the operands `transposed` lie side by side along `across`,
    forwards or backwards, and so many elements apart along `out`: (elements apart, 1 or -1). side, height: elements of
    a block along `out` and along `across`."""

    out: int
    across: int
    transposed: dict[Node, tuple[int, int]]
    side: int
    height: int

    @property
    def sides(self) -> dict[int, int]:
        return {self.out: self.side, self.across: self.height}

    def in_registers(self, bits: int) -> bool:
        """Whether a row of a block is at most one vector of so many bits."""
        return all(8 * n.dtype.nbytes * self.side <= bits for n in self.transposed)

    def blocks(self, shape: Shape) -> Shape:
        """The box, counted in blocks."""
        return tuple(ceildiv(d, self.sides.get(i, 1)) for i, d in enumerate(shape))


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


def find_transpose(
    body: Graph,
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    buffers: tuple[Buffer, ...],
    shape: Shape,
    lanes: int,
) -> Transposition | None:
    """The two dimensions of the box between which operands have to be transposed, if there are any."""
    if lanes < 4 or lanes & (lanes - 1):
        return None
    long = [d for d in range(len(shape)) if estimate(shape[d]) >= lanes]
    along = [d for d in long if all(lay.strides[d] == 1 for lay in outs)]
    if len(along) != 1:
        return None
    (out,) = along
    reads = reads_along(body, ins, buffers, shape, out, lanes)
    if reads is None:
        return None
    apart = {n: steps for n, steps in reads.items() if any(s not in (0, 1) for s in steps)}
    transposed = {n: s for n, steps in apart.items() if len(steps) == 1 and (s := steps[0]) is not None}
    if not transposed or len(transposed) < len(apart):
        return None
    for across in reversed(range(len(shape))):
        extent = shape[across]
        # rows of this length without gaps, which are no whole vectors
        short = is_short_row(extent, lanes) and extent % lanes != 0 and set(transposed.values()) == {extent}
        height = extent if short and isinstance(extent, int) else lanes
        if across == out or not (short or across in long):
            continue
        other = reads_along(body, ins, buffers, shape, across, lanes)
        ways = [[1]] if short else [[1], [-1]]
        if other is not None and all(other[n] in ways for n in transposed):
            steps = {n: (apart, step) for n, apart in transposed.items() for step in other[n] if step is not None}
            return Transposition(out, across, steps, lanes, height)
    return None


class TransposedLeaf:
    """An operand in one block, whose rows are asked for one after another, from the first on. stride, way: how far
    apart its elements are along `out` and along `across`. `ahead`: prefetch the block so many blocks on."""

    def __init__(self, buffer: Buffer, layout: Layout, turn: Transposition, stride: int, way: int, ahead: int):
        self.buffer, self.layout, self.turn, self.ahead = buffer, layout, turn, ahead
        self.stride, self.way = stride, way
        self.rows: list[Expr] = []

    def read(self, block: Block, index: Index, mask: Expr | None) -> Expr:
        if not self.rows:
            lanes, size = self.turn.side, self.turn.height
            first = ix.first_lane(ix.linear(index, self.layout.strides, self.layout.offset))
            at = block.let(first if self.way > 0 else k.sub(first, integer(size - 1)), "t")
            whole = size == lanes  # rows of a block are vectors
            rows = lanes if whole else size  # places that vectors are read from
            step, far = (self.stride, self.way * self.ahead * lanes) if whole else (lanes, self.ahead * lanes * size)

            def load(place: int) -> Expr:
                return block.let(k.load(self.buffer, k.add(at, integer(place)), lanes), "t")

            for i in range(rows if self.ahead else 0):
                block.stmts.append(k.Prefetch(self.buffer, k.add(at, integer(i * step + far))))
            columns = transpose_block(block, [load(i * step) for i in range(lanes)]) if whole else []
            self.rows = (columns or read_columns(block, load, size, lanes))[:: -self.way]
        return self.rows.pop()


__all__ = ["TransposedLeaf", "Transposition", "find_transpose", "reads_along"]
