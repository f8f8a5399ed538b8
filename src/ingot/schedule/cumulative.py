"""Cumulative folds: every element is the fold of those before it along one dimension.

    for 16 columns at once: acc = 0; for i: acc += x[i]; out[i] = acc

Vectors run along another dimension where elements lie side by side there; the dimension itself is walked in order. Sums
and products of f32 are kept in f64, of which they are rounded once.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import estimate
from ingot.ir.kernel import Expr, Kernel, Lit
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ir.types import f32, f64
from ingot.ops import CumReduce
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index, load_at
from ingot.schedule.fold import accumulator, combining
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Lowered, Step
from ingot.schedule.machine import Machine
from ingot.schedule.pointwise import Operands, body_dims, chunked_loops, symbol_params
from ingot.schedule.window import bind_result, operand_memory, result_index, store_results


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
    lanes = machine.lanes(dtype) if dense else 1

    def write(block: Block, index: Index, mask: Expr | None) -> None:
        width = index[axis].lanes if index else 1
        start = Lit(dtype, width, identity_of(op.kind, dtype))
        acc = block.alloc("acc", dtype, 1, lanes=width)
        block.store(acc, ZERO, start)

        def element(b: Block, i: Expr) -> None:
            at = ix.sub(dim_expr(length - 1), i) if op.reverse else i
            full = (*index[: op.dim], at, *index[op.dim :])
            flat = ix.linear(full, layout.strides, layout.offset)
            value = k.cast(k.splat(load_at(b, operands.ins[which], flat, mask), width), dtype)
            old = b.let(k.load(acc, ZERO), "o")
            new = b.let(k.binary(combining(op.kind, dtype), old, value), "n")
            b.store(acc, ZERO, new)
            bind_result(em, b, anchor, b.let(k.cast(old if op.exclusive else new, anchor.dtype), "c"))
            place = result_index(b, body.outputs[0], anchor, full)
            store_results(em, b, body, operands.outs, outs, place, mask)

        block.loop("i", 0, length, 1, element)

    chunk, top = k.var("chunk"), Block()
    shape = tuple(x.shape[d] for d in others)
    chunks = chunked_loops(top, chunk, shape, axis, lanes, machine, write, work=max(1, estimate(length)))
    dims = symbol_params(*body_dims(body, (*ins, *outs)))
    kernel = Kernel("cumulative", operands.params, dims, chunk, chunks, top.body)
    return Lowered((Step(kernel, operands.args),))


__all__ = ["lower_cumulative"]
