"""Cumulative folds: every element is the fold of those before it along one dimension.

    for 16 columns at once: acc = 0; for i: acc += x[i]; out[i] = acc
    along vectors:          acc = 0; for i in steps of 8: v = x[i ... i + 7] folded; out[i ... i + 7] = acc + v;
                            acc += the last lane of v

Vectors run along another dimension where elements lie side by side there; the dimension itself is walked in order.
Where they lie side by side along the dimension itself, a vector is folded in log2(lanes) steps (Sklansky 1960). Sums
and products of f32 are kept in f64, of which they are rounded once; those of f64 stay in order: another may overflow.
"""

from __future__ import annotations

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
from ingot.schedule.emit import Index, load_at, store_at
from ingot.schedule.fold import accumulator, combining
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Lowered, Step
from ingot.schedule.machine import Machine
from ingot.schedule.pointwise import (
    AHEAD,
    CHUNK,
    STREAMED,
    Operands,
    body_dims,
    chunked_loops,
    comes_from_memory,
    leaves_caches,
    symbol_params,
    vector_loop,
)
from ingot.schedule.short_rows import LINE
from ingot.schedule.window import bind_result, operand_memory, result_index, store_results

PIECE = 1024  # columns of a line that are walked together where elements come from memory


def lower_cumulative(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A CumReduce, and the reshapes and transposes behind it."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, CumReduce))
    op = anchor.op
    assert isinstance(op, CumReduce)
    x = anchor.inputs[0]
    which, layout = operand_memory(body, x, ins)
    operands = Operands.of(body)
    em = operands.emitter(body, ins)
    dtype = accumulator(x.dtype)
    if dtype == f32 and op.kind in ("sum", "prod"):
        dtype = f64
    length = x.shape[op.dim]
    others = [d for d in range(x.type.rank) if d != op.dim]
    dense = [d for d in others if layout.strides[d] == 1 and estimate(x.shape[d]) > 1]
    axis = others.index(dense[-1]) if dense else max(len(others) - 1, 0)
    stream = leaves_caches(body, machine)
    width = machine.lanes(dtype)
    along = not dense and layout.strides[op.dim] == 1 and _any_order(op, x.dtype) and _fits(length, width, machine)
    lanes = _columns(x, dense[-1], length, dtype, machine) if dense else 1

    def result(block: Block, index: Index, at: Expr, value: Expr, mask: Expr | None) -> None:
        bind_result(em, block, anchor, block.let(k.cast(value, anchor.dtype), "c"))
        own = result_index(block, body.outputs[0], anchor, (*index[: op.dim], at, *index[op.dim :]))
        store_results(em, block, body, operands.outs, outs, own, mask, stream=stream)

    def place(index: Index, at: Expr) -> Expr:
        return ix.linear((*index[: op.dim], at, *index[op.dim :]), layout.strides, layout.offset)

    def operand(block: Block, index: Index, at: Expr, mask: Expr | None) -> Expr:
        return k.cast(load_at(block, operands.ins[which], place(index, at), mask), dtype)

    def columns(block: Block, index: Index, mask: Expr | None) -> None:
        """One element of each column after the other."""
        acc = _started(block, op, dtype, index[axis].lanes if index else 1)

        def element(b: Block, i: Expr) -> None:
            at = ix.sub(dim_expr(length - 1), i) if op.reverse else i
            if lanes > 1 and comes_from_memory(body, machine):
                rows = -(-AHEAD // (lanes * x.dtype.nbytes))
                there = ix.first_lane(place(index, ix.add(at, integer(-rows if op.reverse else rows))))
                for column in range(0, lanes, LINE // x.dtype.nbytes):
                    b.stmts.append(k.Prefetch(operands.ins[which], k.add(there, integer(column))))
            value = k.splat(operand(b, index, at, mask), acc.lanes)
            old = b.let(k.load(acc, ZERO), "o")
            new = b.let(k.binary(combining(op.kind, dtype), old, value), "n")
            b.store(acc, ZERO, new)
            result(b, index, at, old if op.exclusive else new, mask)

        block.loop("i", 0, length, 1, element)

    def row(block: Block, index: Index, _: Expr | None) -> None:
        """One vector of a row after the other."""
        acc = _started(block, op, dtype, width)

        def vector(b: Block, at: Expr, live: Expr | None) -> None:
            value = operand(b, index, at, live)
            start = Lit(dtype, width, identity_of(op.kind, dtype))
            value = _folded(b, op, b.let(value if live is None else k.select(live, value, start)))
            old = b.let(k.load(acc, ZERO), "o")
            new = b.let(k.binary(combining(op.kind, dtype), old, value), "n")
            whole = k.Shuffle(dtype, width, value, value, (0 if op.reverse else width - 1,) * width)
            b.store(acc, ZERO, b.let(k.binary(combining(op.kind, dtype), old, whole), "o"))
            result(b, index, at, _shifted(op, new, old) if op.exclusive else new, live)

        vector_loop(block, ZERO, length, width, machine, vector, reverse=op.reverse)

    def lines(block: Block, index: Index, _: Expr | None) -> None:
        """A piece of one line after the other, which memory gives sooner than columns."""
        size, whole = x.shape[others[axis]], machine.lanes(x.dtype)
        low = block.let(k.mul(index[axis], integer(PIECE)), "low")
        high = block.let(k.binary("min", k.add(low, integer(PIECE)), dim_expr(size)), "high")
        block.multiples[getattr(low, "name", "")] = PIECE
        acc = block.alloc("sums", dtype, PIECE, scratch=0)
        start = Lit(dtype, whole, identity_of(op.kind, dtype))
        block.loop("j", 0, PIECE, whole, lambda b, e: b.store(acc, e, start))

        def vector(b: Block, i: Expr, e: Expr, mask: Expr | None) -> None:
            at = ix.sub(dim_expr(length - 1), i) if op.reverse else i
            own, there = (*index[:axis], e, *index[axis + 1 :]), ix.sub(e, low)
            below = place(own, ix.add(at, integer(-1 if op.reverse else 1)))
            b.stmts.append(k.Prefetch(operands.ins[which], ix.first_lane(below)))
            old = load_at(b, acc, there, mask)
            new = b.let(k.binary(combining(op.kind, dtype), old, operand(b, own, at, mask)), "n")
            store_at(b, acc, there, new, mask)
            result(b, own, at, old if op.exclusive else new, mask)

        def line(b: Block, i: Expr) -> None:
            vector_loop(b, low, high, whole, machine, lambda c, e, m: vector(c, i, e, m), multiple=whole)

        block.loop("i", 0, length, 1, line)

    chunk, top = k.var("chunk"), Block()
    shape, work, scratch = tuple(x.shape[d] for d in others), max(1, estimate(length)), 0
    write = row if along else columns
    pieces = tuple(ceildiv(n, PIECE) if dense and d == axis else n for d, n in enumerate(shape))
    if stream and dense and estimate(product(pieces)) >= 2 * machine.threads:
        write, shape, lanes, work, scratch = lines, pieces, 1, work * PIECE, PIECE * dtype.nbytes
    size = STREAMED if stream else CHUNK
    chunks = chunked_loops(top, chunk, shape, axis, lanes, machine, write, work=work, size=size)
    dims = symbol_params(*body_dims(body, (*ins, *outs)))
    kernel = Kernel("cumulative", operands.params, dims, chunk, chunks, top.body, scratch)
    return Lowered((Step(kernel, operands.args),))


def _any_order(op: CumReduce, dtype: DType) -> bool:
    """Whether the fold may be bracketed in any way."""
    return dtype != f64 or op.kind not in ("sum", "prod")


def _fits(length: DimLike, lanes: int, machine: Machine) -> bool:
    """Whether rows can be walked by whole vectors and masked ones."""
    whole = isinstance(length, int) and length % lanes == 0
    return lanes > 1 and estimate(length) >= lanes and (whole or machine.masks)


def _columns(x: Node, dim: int, length: DimLike, dtype: DType, machine: Machine) -> int:
    """How many columns to walk together: several vectors, where enough chunks remain for all threads."""
    lanes, size = machine.lanes(dtype), x.shape[dim]
    if not isinstance(size, int):
        return lanes
    columns = estimate(x.type.size) // max(1, estimate(length))
    widest = min(machine.registers // 2 * lanes, columns // (16 * machine.threads))
    while 2 * lanes <= widest and size % (2 * lanes) == 0:
        lanes *= 2
    return lanes


def _started(block: Block, op: CumReduce, dtype: DType, lanes: int) -> Buffer:
    acc = block.alloc("acc", dtype, 1, lanes=lanes)
    block.store(acc, ZERO, Lit(dtype, lanes, identity_of(op.kind, dtype)))
    return acc


def _folded(block: Block, op: CumReduce, value: Expr) -> Expr:
    """Every lane folded with those before it: halves of blocks twice the size each time, the later half with the last
    lane of the earlier one."""
    lanes, half = value.lanes, 1
    while half < lanes:
        ends = [i & -2 * half | (half if op.reverse else half - 1) for i in range(lanes)]
        before = k.Shuffle(value.dtype, lanes, value, value, tuple(ends))
        both = block.let(k.binary(combining(op.kind, value.dtype), before, value), "v")
        later = [bool(i & half) != op.reverse for i in range(lanes)]
        pick = tuple(i + lanes * late for i, late in enumerate(later))
        value = block.let(k.Shuffle(value.dtype, lanes, value, both, pick), "v")
        half *= 2
    return value


def _shifted(op: CumReduce, value: Expr, fill: Expr) -> Expr:
    """Every lane of `value` moved on by a place in the direction of the fold, `fill` in the one left free."""
    n = value.lanes
    pick = tuple(i + 1 for i in range(n)) if op.reverse else tuple(i - 1 if i else n for i in range(n))
    return k.Shuffle(value.dtype, n, value, fill, pick)


__all__ = ["lower_cumulative"]
