"""Scans (cumulative reductions): a program scans a part of a few rows, tile by tile, with a carry.

    partial:   for a part of rows at:   partial[at, part] = reduce(x[at, i] of the part)
    scan:      for a part of rows at:   carry = reduce(partial[at, earlier parts])
                   for a tile of i:   out[at, i] = carry + scan(x[at, i]);   carry += reduce(x[at, i])

If there are enough rows to keep the GPU busy, they are not split, and the first kernel is omitted.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Lit, Tile, Var
from ingot.ir.node import Node
from ingot.ir.types import DType
from ingot.ops import CumReduce
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf
from ingot.schedule.folds import accumulator, combining_op
from ingot.schedule.gpu.blocks import Group, Span, constant_tile, power_of_two, register, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.group_io import result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.support.dataclass import dataclass

TILE_ELEMENTS = 2048  # of a tile
MAX_TILE_LENGTH = 1024  # elements of a row in a tile
MAX_INTERLEAVED_ROWS = 32  # rows of a tile whose elements are adjacent in memory
MAX_PARTS = 1024  # of a row


def lower_scan(group: Group, machine: Machine) -> Lowered:
    """Lower a CumReduce with its prologue and epilogue."""
    anchor = next(n for n in group.body.nodes() if isinstance(n.op, CumReduce))
    scan = _Scan.of(anchor, group, machine)
    if scan.parts == 1:
        return Lowered((scan.scan_step(None),))
    partial = Buffer("partial", scan.dtype, writable=True), Arg("temp", 0)
    return Lowered(
        (scan.partials_step(partial), scan.scan_step(partial)), (scan.rows * scan.parts * scan.dtype.nbytes,)
    )


@dataclass(frozen=True)
class _Scan:
    """axis: of a tile, along which rows are scanned. tile_rows: rows per program. tile_length: elements of a row in a
    tile. parts: per row, one for each program."""

    anchor: Node
    group: Group
    axis: int
    tile_rows: int
    tile_length: int
    parts: int

    @staticmethod
    def of(anchor: Node, group: Group, machine: Machine) -> _Scan:
        assert isinstance(anchor.op, CumReduce)
        shape, dim = anchor.shape, anchor.op.dim
        is_innermost = all(n == 1 for n in shape[dim + 1 :])
        row_length = max(1, estimate(shape[dim]))
        rows = max(1, estimate(product(n for d, n in enumerate(shape) if d != dim)))
        if is_innermost:
            tile_length = min(MAX_TILE_LENGTH, power_of_two(row_length))
            tile_rows = min(TILE_ELEMENTS // tile_length, power_of_two(max(1, rows // machine.target_programs)))
        else:
            tile_rows = min(MAX_INTERLEAVED_ROWS, power_of_two(rows))
            tile_length = min(TILE_ELEMENTS // tile_rows, power_of_two(row_length))
        max_parts = machine.target_programs * tile_rows // max(rows, tile_rows)  # programs per `tile_rows` rows
        parts = min(MAX_PARTS, power_of_two(max(1, max_parts)), power_of_two(-(-row_length // tile_length)))
        return _Scan(anchor, group, int(is_innermost), tile_rows, tile_length, parts)

    @property
    def op(self) -> CumReduce:
        assert isinstance(self.anchor.op, CumReduce)
        return self.anchor.op

    @property
    def row_dims(self) -> tuple[int, ...]:
        return tuple(d for d in range(self.anchor.type.rank) if d != self.op.dim)

    @property
    def rows(self) -> DimLike:
        return product(self.anchor.shape[d] for d in self.row_dims)

    @property
    def dtype(self) -> DType:
        return accumulator(self.anchor.inputs[0].dtype)

    @property
    def fn(self) -> str:
        return combining_op(self.op.kind, self.dtype)

    def identity_tile(self, tile: Tile) -> Lit:
        """A tile of the reduction's identity."""
        return constant_tile(self.dtype, tile, identity_of(self.op.kind, self.dtype))

    def tile(self, length: int) -> Tile:
        """The shape of a tile with `length` elements of each row."""
        return (self.tile_rows, length) if self.axis else (length, self.tile_rows)

    def partials_step(self, partial: tuple[Buffer, Arg]) -> Step:
        """The kernel that reduces each part."""
        kernel = _PartKernel.of(self)
        acc = kernel.carry(self.tile(self.tile_length))

        def visit(block: Block, index: Index, value: Expr, live: Expr | None) -> None:
            block.store(acc, ZERO, k.binary(self.fn, k.load(acc, ZERO), value))

        kernel.for_each_tile(visit)
        total = k.reduce_axis(self.fn, k.load(acc, ZERO), self.axis)
        offset = k.add(k.mul(kernel.span.position, integer(self.parts)), kernel.part)
        kernel.top.store(partial[0], offset, total, kernel.span.in_bounds)
        return kernel.step("partial", partial)

    def scan_step(self, partial: tuple[Buffer, Arg] | None) -> Step:
        """The kernel that scans each part, starting from the reduction of earlier parts."""
        kernel = _PartKernel.of(self)
        carry = kernel.carry(self.tile(1))
        if partial is not None:
            parts = k.lane_indices(self.parts, self.axis)
            offsets = k.add(k.mul(kernel.span.position, integer(self.parts)), parts)
            is_earlier = k.spread(k.binary("lt", parts, kernel.part), self.tile(self.parts))
            earlier_partials = k.select(
                is_earlier, k.gather(partial[0], offsets, is_earlier), self.identity_tile(self.tile(self.parts))
            )
            kernel.top.store(carry, ZERO, k.reduce_axis(self.fn, earlier_partials, self.axis))

        def visit(block: Block, index: Index, value: Expr, live: Expr | None) -> None:
            previous = block.let(k.load(carry, ZERO), "before")
            scanned = k.scan_axis(self.fn, value, self.axis)
            result = k.binary(self.fn, k.spread(previous, self.tile(self.tile_length)), scanned)
            result = block.let(k.cast(result, self.anchor.dtype), "r")
            block.store(carry, ZERO, k.binary(self.fn, previous, k.reduce_axis(self.fn, value, self.axis)))
            kernel.em.bind(self.anchor, Leaf(lambda b, output_index, mask: result, home=block, pinned=True))
            for root, buffer, layout in self.group.results:
                output_index = result_index(block, root, self.anchor, index)
                write(block, kernel.em, root, buffer, layout, output_index, live, kernel.span.in_bounds)

        kernel.for_each_tile(visit)
        return kernel.step("scan", *([] if partial is None else [partial]))


@dataclass(frozen=True)
class _PartKernel:
    """A kernel in which each program handles a part of a few rows."""

    scan: _Scan
    top: Block
    chunk: Var
    span: Span  # of the rows
    row_index: dict[int, Expr]  # of the rows, by dimension that is not scanned
    part: Expr
    em: Emitter

    @staticmethod
    def of(scan: _Scan) -> _PartKernel:
        top, chunk = Block(), k.var("chunk")
        part = top.let(k.binary("rem", chunk, integer(scan.parts)), "part")
        first = k.mul(k.binary("div", chunk, integer(scan.parts)), integer(scan.tile_rows))
        span = Span.of(top, top.let(first, "first"), scan.tile_rows, scan.rows, 1 - scan.axis, wraps=True)
        shape = tuple(scan.anchor.shape[d] for d in scan.row_dims)
        row_index = dict(zip(scan.row_dims, span.index(top, shape), strict=True))
        return _PartKernel(scan, top, chunk, span, row_index, part, scan.group.emitter())

    def carry(self, tile: Tile) -> Buffer:
        """Allocate a loop-carried register tile, initialized to the identity."""
        return register(self.top, "acc", self.scan.identity_tile(tile))

    def for_each_tile(self, visit: Callable[[Block, Index, Expr, Expr | None], None]) -> None:
        """Visit the part's tiles in order, with the index of results, the elements and the mask of those in bounds. An
        exclusive scan reads the elements one position earlier."""
        scan, op, x = self.scan, self.scan.op, self.scan.anchor.inputs[0]
        row_length = x.shape[op.dim]
        part_length = ceildiv(ceildiv(row_length, scan.parts), scan.tile_length) * scan.tile_length
        tile = scan.tile(scan.tile_length)

        def index(i: Expr) -> Index:
            position = ix.sub(dim_expr(row_length - 1), i) if op.reverse else i
            return tuple(self.row_index.get(d, position) for d in range(x.type.rank))

        def loop_body(block: Block, first: Expr) -> None:
            span = Span.of(block, first, scan.tile_length, row_length, scan.axis)
            position, live = span.position, span.in_bounds
            if op.exclusive:
                position = block.let(ix.sub(position, integer(1)), "read")
                live = block.let(ix.mask_and(live, k.binary("ge", position, ZERO)), "live")
            value = k.spread(k.cast(self.em.value(block, x, index(position), live), scan.dtype), tile)
            if live is not None:
                value = k.select(live, value, scan.identity_tile(tile))
            visit(block, index(span.position), block.let(value, "x"), span.in_bounds)

        if scan.parts == 1:
            return self.top.loop("i", 0, row_length, scan.tile_length, loop_body)
        begin = self.top.let(k.mul(self.part, dim_expr(part_length)), "begin")
        end = self.top.let(k.binary("min", k.add(begin, dim_expr(part_length)), dim_expr(row_length)), "end")
        return self.top.loop("i", begin, end, scan.tile_length, loop_body, multiple=scan.tile_length)

    def step(self, name: str, *extra: tuple[Buffer, Arg]) -> Step:
        chunks = ceildiv(self.scan.rows, self.scan.tile_rows) * self.scan.parts
        return self.scan.group.step(name, self.chunk, chunks, self.top, *extra)


__all__ = ["lower_scan"]
