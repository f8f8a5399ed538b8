"""Pointwise groups whose results are contiguous along one dimension and some operands along another: square blocks are
transposed in registers.

    out[j, i] = f(a[i, j])   ->   for blocks of 16 x 16: 16 vectors of a; transposed in registers; f; 16 vectors of out

Vectors along either dimension would gather or scatter one element at a time, as is done for partial blocks at the
edges. Operands whose rows are short and contiguous are read in full vectors, as many rows at a time as a vector has
lanes (`rows/columns.py`).
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
    """How blocks of a group are transposed.

    result_dim: the dimension along which results are contiguous. operand_dim: that along which the operands
    `transposed` are contiguous. transposed: for each, its strides along `result_dim` and `operand_dim`; the latter is
    1 or -1. side, height: elements of a block along `result_dim` and `operand_dim`.
    """

    result_dim: int
    operand_dim: int
    transposed: dict[Node, tuple[int, int]]
    side: int
    height: int

    @property
    def sides(self) -> dict[int, int]:
        return {self.result_dim: self.side, self.operand_dim: self.height}

    def in_registers(self, bits: int) -> bool:
        """Whether a row of a block fits in a vector of `bits`."""
        return all(8 * n.dtype.nbytes * self.side <= bits for n in self.transposed)

    def blocks(self, shape: Shape) -> Shape:
        """The shape of the box in blocks."""
        return tuple(ceildiv(d, self.sides.get(i, 1)) for i, d in enumerate(shape))


StridesByInput = dict[Node, list[int | None]]


def read_strides(
    body: Graph, ins: tuple[Layout, ...], buffers: tuple[Buffer, ...], shape: Shape, axis: int, lanes: int
) -> StridesByInput | None:
    """The stride along `axis` of each read of an operand (None: not constant), by trial emission. None if reads depend
    on a condition."""
    strides: StridesByInput = {n: [] for n in body.inputs}
    masked: list[Expr] = []

    def leaf(n: Node, buffer: Buffer, lay: Layout) -> Leaf:
        def read(block: Block, index: Index, mask: Expr | None) -> Expr:
            flat = ix.linear(index, lay.strides, lay.offset)
            # fewer lanes: several vectors are read and interleaved
            strides[n].append(ix.lane_step(flat) if flat.lanes in (1, lanes) else None)
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
    return None if masked or branches else strides


def find_transpose(
    body: Graph,
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    buffers: tuple[Buffer, ...],
    shape: Shape,
    lanes: int,
) -> Transposition | None:
    """The transposition that the group's operands need, or None."""
    if lanes < 4 or lanes & (lanes - 1):
        return None
    long_dims = [d for d in range(len(shape)) if estimate(shape[d]) >= lanes]
    result_dims = [d for d in long_dims if all(lay.strides[d] == 1 for lay in outs)]
    if len(result_dims) != 1:
        return None
    (result_dim,) = result_dims
    reads = read_strides(body, ins, buffers, shape, result_dim, lanes)
    if reads is None:
        return None
    strided_reads = {n: steps for n, steps in reads.items() if any(s not in (0, 1) for s in steps)}
    transposed = {n: s for n, steps in strided_reads.items() if len(steps) == 1 and (s := steps[0]) is not None}
    if not transposed or len(transposed) < len(strided_reads):
        return None
    for operand_dim in reversed(range(len(shape))):
        extent = shape[operand_dim]
        # contiguous rows of this size, which is not a multiple of a vector
        is_short = is_short_row(extent, lanes) and extent % lanes != 0 and set(transposed.values()) == {extent}
        height = extent if is_short and isinstance(extent, int) else lanes
        if operand_dim == result_dim or not (is_short or operand_dim in long_dims):
            continue
        operand_strides = read_strides(body, ins, buffers, shape, operand_dim, lanes)
        directions = [[1]] if is_short else [[1], [-1]]
        if operand_strides is not None and all(operand_strides[n] in directions for n in transposed):
            steps = {
                n: (result_step, step)
                for n, result_step in transposed.items()
                for step in operand_strides[n]
                if step is not None
            }
            return Transposition(result_dim, operand_dim, steps, lanes, height)
    return None


class TransposedLeaf:
    """An operand in one block, whose rows are read in order. stride, direction: its strides along `result_dim` and
    `operand_dim`. prefetch_blocks: the distance of the block to prefetch; 0 for none."""

    def __init__(
        self,
        buffer: Buffer,
        layout: Layout,
        transposition: Transposition,
        stride: int,
        direction: int,
        prefetch_blocks: int,
    ):
        self.buffer, self.layout, self.transposition, self.prefetch_blocks = (
            buffer,
            layout,
            transposition,
            prefetch_blocks,
        )
        self.stride, self.direction = stride, direction
        self.rows: list[Expr] = []

    def read(self, block: Block, index: Index, mask: Expr | None) -> Expr:
        if not self.rows:
            lanes, size = self.transposition.side, self.transposition.height
            first = ix.first_lane(ix.linear(index, self.layout.strides, self.layout.offset))
            at = block.let(first if self.direction > 0 else k.sub(first, integer(size - 1)), "t")
            has_full_rows = size == lanes  # rows of a block are vectors
            rows = lanes if has_full_rows else size  # places that vectors are read from
            step, distance = (
                (self.stride, self.direction * self.prefetch_blocks * lanes)
                if has_full_rows
                else (lanes, self.prefetch_blocks * lanes * size)
            )

            def load(place: int) -> Expr:
                return block.let(k.load(self.buffer, k.add(at, integer(place)), lanes), "t")

            for i in range(rows if self.prefetch_blocks else 0):
                block.stmts.append(k.Prefetch(self.buffer, k.add(at, integer(i * step + distance))))
            columns = transpose_block(block, [load(i * step) for i in range(lanes)]) if has_full_rows else []
            self.rows = (columns or read_columns(block, load, size, lanes))[:: -self.direction]
        return self.rows.pop()


__all__ = ["TransposedLeaf", "Transposition", "find_transpose", "read_strides"]
