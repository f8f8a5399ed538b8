"""Cumulative reductions: each element is the reduction of those before it along one dimension.

    for 16 columns at once: acc = 0; for i: acc += x[i]; out[i] = acc
    along vectors:          acc = 0; for i in steps of 8: v = x[i ... i + 7] folded; out[i ... i + 7] = acc + v;
                            acc += the last lane of v

If another dimension is contiguous, vectors hold elements along it, and the reduced dimension is traversed in order. If
the reduced dimension is contiguous, a vector is scanned in log2(lanes) steps (Sklansky 1960). Sums and products of f32
are accumulated in f64 and rounded once; those of f64 are computed in order, as another order may overflow.
"""

from __future__ import annotations

from functools import partial

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel, Lit
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, f32, f64
from ingot.ops import CumReduce
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.caches import PREFETCH_BYTES, operands_exceed_caches, results_exceed_caches
from ingot.schedule.cpu.chunks import CHUNK_ELEMENTS, STREAMED_CHUNK_ELEMENTS, chunked_loops, vector_loop
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.rows.short_rows import CACHE_LINE_BYTES
from ingot.schedule.emit import Emitter, Index, load_at, store_at
from ingot.schedule.folds import accumulator, combining_op
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Lowered, Step
from ingot.support.dataclass import dataclass

PIECE_COLUMNS = 1024  # columns of a line that are walked together where elements come from memory


def lower_cumulative(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """Lower a CumReduce and the reshapes and transposes after it."""
    walk = _Walk.of(body, ins, outs, machine)
    x, op, length, strides = walk.anchor.inputs[0], walk.op, walk.length, walk.layout.strides
    others = [d for d in range(x.type.rank) if d != op.dim]
    dense = [d for d in others if strides[d] == 1 and estimate(x.shape[d]) > 1]
    axis = others.index(dense[-1]) if dense else max(len(others) - 1, 0)
    shape, work, lanes, scratch = tuple(x.shape[d] for d in others), max(1, estimate(length)), 1, 0
    pieces = tuple(ceildiv(n, PIECE_COLUMNS) if d == axis else n for d, n in enumerate(shape))
    write = partial(walk.columns, axis, 0)
    if walk.stream and dense and estimate(product(pieces)) >= 2 * machine.threads:
        write = partial(walk.lines, axis, shape[axis])
        shape, work, scratch = pieces, work * PIECE_COLUMNS, PIECE_COLUMNS * walk.dtype.nbytes
    elif dense:
        lanes = _columns(x, dense[-1], length, walk.dtype, machine)
        write = partial(walk.columns, axis, lanes if lanes > 1 and operands_exceed_caches(body, machine) else 0)
    elif (
        strides[op.dim] == 1 and _any_order(op, x.dtype) and _can_vectorize(length, machine.lanes(walk.dtype), machine)
    ):
        write = walk.row
    chunk, top = k.var("chunk"), Block()
    size = STREAMED_CHUNK_ELEMENTS if walk.stream else CHUNK_ELEMENTS
    chunks = chunked_loops(top, chunk, shape, axis, lanes, machine, write, operations=work, chunk_operations=size)
    dims = symbol_params(*body_dims(body, (*ins, *outs)))
    kernel = Kernel("cumulative", walk.operands.params, dims, chunk, chunks, top.body, scratch)
    return Lowered((Step(kernel, walk.operands.args),))


@dataclass(frozen=True)
class _Walk:
    """The traversals of the reduced dimension, in `dtype`. An index is one of the other dimensions."""

    body: Graph
    outs: tuple[Layout, ...]
    anchor: Node
    op: CumReduce
    dtype: DType
    operands: Operands
    em: Emitter
    buffer: Buffer
    layout: Layout  # of the operand, in `buffer`
    stream: bool
    machine: Machine

    @staticmethod
    def of(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> _Walk:
        anchor = next(n for n in body.nodes() if isinstance(n.op, CumReduce))
        op, x, operands = anchor.op, anchor.inputs[0], Operands.of(body)
        assert isinstance(op, CumReduce)
        dtype = accumulator(x.dtype)
        if dtype == f32 and op.kind in ("sum", "prod"):
            dtype = f64
        which, layout = operand_memory(body, x, ins)
        em, stream = operands.emitter(body, ins), results_exceed_caches(body, machine)
        return _Walk(body, outs, anchor, op, dtype, operands, em, operands.ins[which], layout, stream, machine)

    @property
    def length(self) -> DimLike:
        return self.anchor.shape[self.op.dim]

    def result(self, block: Block, index: Index, at: Expr, value: Expr, mask: Expr | None) -> None:
        bind_result(self.em, block, self.anchor, block.let(k.cast(value, self.anchor.dtype), "c"))
        result_at = result_index(block, self.body.outputs[0], self.anchor, self.full(index, at))
        store_results(self.em, block, self.body, self.operands.outs, self.outs, result_at, mask, stream=self.stream)

    def full(self, index: Index, at: Expr) -> Index:
        return (*index[: self.op.dim], at, *index[self.op.dim :])

    def place(self, index: Index, at: Expr) -> Expr:
        return ix.linear(self.full(index, at), self.layout.strides, self.layout.offset)

    def operand(self, block: Block, index: Index, at: Expr, mask: Expr | None) -> Expr:
        return k.cast(load_at(block, self.buffer, self.place(index, at), mask), self.dtype)

    def nth(self, i: Expr) -> Expr:
        """The index of the i-th element of the scan."""
        return ix.sub(dim_expr(self.length - 1), i) if self.op.reverse else i

    def fold(self, a: Expr, b: Expr) -> Expr:
        return k.binary(combining_op(self.op.kind, self.dtype), a, b)

    def identity(self, lanes: int) -> Lit:
        return Lit(self.dtype, lanes, identity_of(self.op.kind, self.dtype))

    def started(self, block: Block, lanes: int) -> Buffer:
        acc = block.alloc("acc", self.dtype, 1, lanes=lanes)
        block.store(acc, ZERO, self.identity(lanes))
        return acc

    def columns(self, axis: int, ahead: int, block: Block, index: Index, mask: Expr | None) -> None:
        """Traverse columns, one element of each at a time. ahead: the number of columns to prefetch."""
        acc = self.started(block, index[axis].lanes if index else 1)

        def element(b: Block, i: Expr) -> None:
            at = self.nth(i)
            if ahead:
                self.fetch(b, index, at, ahead)
            value = k.splat(self.operand(b, index, at, mask), acc.lanes)
            old = b.let(k.load(acc, ZERO), "o")
            new = b.let(self.fold(old, value), "n")
            b.store(acc, ZERO, new)
            self.result(b, index, at, old if self.op.exclusive else new, mask)

        block.loop("i", 0, self.length, 1, element)

    def fetch(self, block: Block, index: Index, at: Expr, columns: int) -> None:
        """Prefetch the element that is `AHEAD` bytes ahead."""
        nbytes = self.buffer.dtype.nbytes
        rows = -(-PREFETCH_BYTES // (columns * nbytes))
        next_place = ix.first_lane(self.place(index, ix.add(at, integer(-rows if self.op.reverse else rows))))
        for column in range(0, columns, CACHE_LINE_BYTES // nbytes):
            block.stmts.append(k.Prefetch(self.buffer, k.add(next_place, integer(column))))

    def row(self, block: Block, index: Index, _: Expr | None) -> None:
        """Traverse a row, one vector at a time."""
        op, width = self.op, self.machine.lanes(self.dtype)
        acc = self.started(block, width)

        def vector(b: Block, at: Expr, live: Expr | None) -> None:
            value = self.operand(b, index, at, live)
            value = _folded(b, op, b.let(value if live is None else k.select(live, value, self.identity(width))))
            old = b.let(k.load(acc, ZERO), "o")
            new = b.let(self.fold(old, value), "n")
            last_lane = k.Shuffle(self.dtype, width, value, value, (0 if op.reverse else width - 1,) * width)
            b.store(acc, ZERO, b.let(self.fold(old, last_lane), "o"))
            self.result(b, index, at, _shifted(op, new, old) if op.exclusive else new, live)

        vector_loop(block, ZERO, self.length, width, self.machine, vector, reverse=op.reverse)

    def lines(self, axis: int, size: DimLike, block: Block, index: Index, _: Expr | None) -> None:
        """Traverse pieces of `size` elements of one line after another, which is faster than by columns if they come
        from memory."""
        lanes = self.machine.lanes(self.buffer.dtype)
        low = block.let(k.mul(index[axis], integer(PIECE_COLUMNS)), "low")
        high = block.let(k.binary("min", k.add(low, integer(PIECE_COLUMNS)), dim_expr(size)), "high")
        block.multiples[getattr(low, "name", "")] = PIECE_COLUMNS
        acc = block.alloc("sums", self.dtype, PIECE_COLUMNS, scratch=0)
        block.loop("j", 0, PIECE_COLUMNS, lanes, lambda b, e: b.store(acc, e, self.identity(lanes)))

        def vector(b: Block, i: Expr, e: Expr, mask: Expr | None) -> None:
            at = self.nth(i)
            here_index, accumulator_at = (*index[:axis], e, *index[axis + 1 :]), ix.sub(e, low)
            next_place = self.place(here_index, ix.add(at, integer(-1 if self.op.reverse else 1)))
            b.stmts.append(k.Prefetch(self.buffer, ix.first_lane(next_place)))
            old = load_at(b, acc, accumulator_at, mask)
            new = b.let(self.fold(old, self.operand(b, here_index, at, mask)), "n")
            store_at(b, acc, accumulator_at, new, mask)
            self.result(b, here_index, at, old if self.op.exclusive else new, mask)

        def line(b: Block, i: Expr) -> None:
            vector_loop(b, low, high, lanes, self.machine, lambda c, e, m: vector(c, i, e, m), multiple=lanes)

        block.loop("i", 0, self.length, 1, line)


def _any_order(op: CumReduce, dtype: DType) -> bool:
    """Whether the reduction is associative, so that it may be computed in any order."""
    return dtype != f64 or op.kind not in ("sum", "prod")


def _can_vectorize(length: DimLike, lanes: int, machine: Machine) -> bool:
    """Whether rows can be traversed by full vectors and a masked one."""
    is_whole = isinstance(length, int) and length % lanes == 0
    return lanes > 1 and estimate(length) >= lanes and (is_whole or machine.masks)


def _columns(x: Node, dim: int, length: DimLike, dtype: DType, machine: Machine) -> int:
    """The number of columns of a chunk: several vectors, if enough chunks remain for all threads."""
    lanes, size = machine.lanes(dtype), x.shape[dim]
    if not isinstance(size, int):
        return lanes
    columns = estimate(x.type.size) // max(1, estimate(length))
    widest = min(machine.registers // 2 * lanes, columns // (16 * machine.threads))
    while 2 * lanes <= widest and size % (2 * lanes) == 0:
        lanes *= 2
    return lanes


def _folded(block: Block, op: CumReduce, value: Expr) -> Expr:
    """The inclusive scan of the lanes, by blocks of doubling size: the second half of each block is combined with the
    last lane of the first half."""
    lanes, half = value.lanes, 1
    while half < lanes:
        ends = [i & -2 * half | (half if op.reverse else half - 1) for i in range(lanes)]
        before = k.Shuffle(value.dtype, lanes, value, value, tuple(ends))
        combined = block.let(k.binary(combining_op(op.kind, value.dtype), before, value), "v")
        later = [bool(i & half) != op.reverse for i in range(lanes)]
        pick = tuple(i + lanes * is_later for i, is_later in enumerate(later))
        value = block.let(k.Shuffle(value.dtype, lanes, value, combined, pick), "v")
        half *= 2
    return value


def _shifted(op: CumReduce, value: Expr, fill: Expr) -> Expr:
    """The lanes of `value` shifted by one in the direction of the scan, with `fill` in the first."""
    n = value.lanes
    pick = tuple(i + 1 for i in range(n)) if op.reverse else tuple(i - 1 if i else n for i in range(n))
    return k.Shuffle(value.dtype, n, value, fill, pick)


__all__ = ["lower_cumulative"]
