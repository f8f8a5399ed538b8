"""Scatter: a copy of the operand, into which the updates are combined.

    out = x
    for update in order:  if in bounds:  out[indices[update] + window] (=, +=, ...) updates[update, window]

Several updates may change the same element, so their order is preserved: only dimensions in which an update has the
same coordinate as the result (full dimensions of the window, batching dimensions) are parallelized and vectorized.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import bf16, boolean, f16, f32, i64
from ingot.ops import Scatter
from ingot.ops.core.base import Category, category
from ingot.ops.views import pull_back
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.chunks import CHUNK_ELEMENTS, chunked_loops, vector_loop
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.emit import Index, load_at, slice_starts, store_at
from ingot.schedule.group_io import operand_memory
from ingot.schedule.index import ZERO, dim_expr, mask_and
from ingot.schedule.lowered import Lowered, Step
from ingot.support.errors import CompileError


def lower_scatter(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A Scatter or a DynamicUpdateSlice, followed by reshapes and transposes."""
    anchor = next((n for n in body.nodes() if isinstance(n.op, Scatter)), None)
    if anchor is None:
        # each element of the result depends on its own index alone
        return lower_pointwise(body, ins, outs, machine)
    return _Scattering(anchor, body, ins, outs, machine).lower()


def lower_update(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """The same if the result is written over the operand: only the updates are written."""
    anchor = next(n for n in body.nodes() if category(n.op) is Category.SCATTER)
    if isinstance(anchor.op, Scatter):
        return _Scattering(anchor, body, ins, outs, machine).lower(in_place=True)
    return Lowered(()) if 0 in anchor.inputs[1].shape else Lowered((_slice_update(anchor, body, ins, outs, machine),))


def _slice_update(
    anchor: Node, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Step:
    """out[start + index] = update[index]"""
    x, update, *starts = anchor.inputs
    operands, chunk, top = Operands.of(body), k.var("chunk"), Block()
    em = operands.emitter(body, ins)
    out = pull_back(body.outputs[0], anchor, outs[0])
    assert out is not None  # else it is not in place
    first = slice_starts(em, top, starts, x.shape, update.shape)
    dense = [d for d, size in enumerate(update.shape) if out.strides[d] == 1 and size != 1]
    axis = dense[-1] if dense else max(update.type.rank - 1, 0)

    def write(block: Block, index: Index, mask: Expr | None) -> None:
        place = tuple(ix.add(e, s) for e, s in zip(index, first, strict=True))
        value = em.value(block, update, index, mask)
        store_at(block, operands.outs[0], ix.linear(place, out.strides, out.offset), value, mask)

    lanes = max(1, machine.vector_bits // max(32, anchor.dtype.bits))
    chunks = chunked_loops(top, chunk, update.shape, axis, lanes, machine, write)
    dims = symbol_params(*body_dims(body, (*ins, *outs)))
    return Step(Kernel("slice_update", operands.params, dims, chunk, chunks, top.body), operands.args)


class _Scattering:
    def __init__(self, anchor: Node, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine):
        op = anchor.op
        assert isinstance(op, Scatter)
        self.op, self.anchor, self.body, self.machine = op, anchor, body, machine
        self.operands = Operands.of(body)
        self.x, self.indices, self.updates = (operand_memory(body, i, ins) for i in anchor.inputs)
        out = pull_back(body.outputs[0], anchor, outs[0])
        if out is None:
            raise CompileError("scatter", expected="a result that lies in memory with strides", where=anchor.loc)
        self.out = out
        self.dims = symbol_params(*body_dims(body, (*ins, *outs)))
        # dimension of the updates -> dimension of the operand
        rank = anchor.type.rank
        dropped_dims = (*op.inserted_window_dims, *op.input_batching_dims)
        window_dims = [d for d in range(rank) if d not in dropped_dims]
        self.window = dict(zip(op.update_window_dims, window_dims, strict=True))
        update_rank = anchor.inputs[2].type.rank
        self.batch = [d for d in range(update_rank) if d not in op.update_window_dims]
        self.batching = {
            self.batch[b - (b > op.index_vector_dim)]: d
            for d, b in zip(op.input_batching_dims, op.scatter_indices_batching_dims, strict=True)
        }
        full_dims = {u: d for u, d in self.window.items() if d not in op.scatter_dims_to_operand_dims}
        self.parallel_dims = sorted({**full_dims, **self.batching})

    def lower(self, in_place: bool = False) -> Lowered:
        return Lowered((self._combine(),) if in_place else (self._copy(), self._combine()))

    def _copy(self) -> Step:
        chunk, top = k.var("chunk"), Block()
        which, layout = self.x
        source, target = self.operands.ins[which], self.operands.outs[0]
        shape = self.anchor.shape
        dense = [d for d in range(len(shape)) if self.out.strides[d] == 1 and shape[d] != 1]
        axis = dense[-1] if dense else max(len(shape) - 1, 0)

        def write(block: Block, index: Index, mask: Expr | None) -> None:
            value = load_at(block, source, ix.linear(index, layout.strides, layout.offset), mask)
            store_at(block, target, ix.linear(index, self.out.strides, self.out.offset), value, mask)

        lanes = max(1, self.machine.vector_bits // max(32, self.anchor.dtype.bits))
        chunks = chunked_loops(top, chunk, shape, axis, lanes, self.machine, write)
        kernel = Kernel("scatter_copy", self.operands.params, self.dims, chunk, chunks, top.body)
        return Step(kernel, self.operands.args)

    def _combine(self) -> Step:
        chunk, top = k.var("chunk"), Block()
        shape = self.anchor.inputs[2].shape
        serial = [d for d in range(len(shape)) if d not in self.parallel_dims]
        axis = self._axis(shape)
        outer = [d for d in self.parallel_dims if d != axis]
        rows = product(shape[d] for d in outer)
        columns: DimLike = 1 if axis is None else shape[axis]
        run, block = self._chunk(rows, columns, max(1, estimate(product(shape[d] for d in serial))))
        blocks = ceildiv(columns, block)
        part = top.let(k.binary("rem", chunk, dim_expr(blocks)), "part")
        low = top.let(k.mul(part, integer(block)), "low")
        top.multiples[getattr(low, "name", "")] = 64
        high = top.let(k.binary("min", k.add(low, integer(block)), dim_expr(columns)), "high")
        lanes = max(1, self.machine.vector_bits // max(32, self.anchor.dtype.bits))

        def nest(b: Block, dims: list[int], at: dict[int, Expr]) -> None:
            if dims:
                b.loop("u", 0, shape[dims[0]], 1, lambda c, e: nest(c, dims[1:], at | {dims[0]: e}))
                return
            if axis is None:
                self._where_inside(b, at, None, lambda c, target: self._update(c, at, target, None))
                return
            row_dim = axis
            if row_dim not in self.window:
                # each has an index of its own
                def element(y: Block, e: Expr, _: Expr | None) -> None:
                    position = at | {row_dim: e}
                    self._where_inside(y, position, None, lambda c, target: self._update(c, position, target, None))

                vector_loop(b, low, high, 1, self.machine, element)
                return

            def line(c: Block, target: dict[int, Expr]) -> None:
                def vector(y: Block, e: Expr, m: Expr | None) -> None:
                    self._update(y, at | {row_dim: e}, target | {self.window[row_dim]: e}, m)

                vector_loop(c, low, high, lanes, self.machine, vector, multiple=64)

            self._where_inside(b, at, row_dim, line)

        def one(b: Block, row: Expr) -> None:
            places = ix.delinearize(row, tuple(shape[d] for d in outer), {}) if outer else ()
            nest(b, serial, {d: b.let(e, "i") for d, e in zip(outer, places, strict=True)})

        first = top.let(k.mul(k.binary("div", chunk, dim_expr(blocks)), integer(run)), "first")
        if run == 1:
            one(top, first)
        else:
            last = top.let(k.binary("min", k.add(first, integer(run)), dim_expr(rows)), "last")
            top.loop("row", first, last, 1, one)
        chunks = dim_expr(ceildiv(rows, run) * blocks)
        kernel = Kernel("scatter", self.operands.params, self.dims, chunk, chunks, top.body)
        return Step(kernel, self.operands.args)

    def _chunk(self, rows: DimLike, columns: DimLike, depth: int) -> tuple[int, int]:
        """(rows, columns) of a chunk, each with `depth` updates."""
        # whole vectors, enough work, and no more chunks than help
        block = max(64, CHUNK_ELEMENTS // depth)
        if isinstance(columns, int):
            share = -(-columns * max(1, estimate(rows)) // (8 * self.machine.threads))
            block = max(64, min(columns, max(block, share)))
        block = -(-block // 64) * 64
        # several rows, where they are many and short
        run = max(1, CHUNK_ELEMENTS // (depth * max(1, estimate(columns)))) if ceildiv(columns, block) == 1 else 1
        if isinstance(rows, int):
            run = max(1, min(run, rows // (4 * self.machine.threads)))
        return run, block

    def _axis(self, shape: tuple[DimLike, ...]) -> int | None:
        """The dimension of the updates for vectors: updates are contiguous along it and write different elements."""
        dense = [d for d in self.parallel_dims if shape[d] != 1 and self.updates[1].strides[d] == 1]
        return dense[-1] if dense else None

    def _where_inside(
        self, block: Block, at: dict[int, Expr], axis: int | None, then: Callable[[Block, dict[int, Expr]], None]
    ) -> None:
        """Call then(block, position of the update without `axis`) if the position is in bounds."""
        inside, target = self._target(block, at, axis)
        if inside is None:
            then(block, target)
        else:
            block.when(inside, lambda b: then(b, target))

    def _target(self, block: Block, at: dict[int, Expr], axis: int | None) -> tuple[Expr | None, dict[int, Expr]]:
        """(whether an update is in bounds, None if always; its position in the result, without `axis`)."""
        op = self.op
        which, layout = self.indices
        rank = self.anchor.inputs[1].type.rank
        target: dict[int, Expr] = {d: at[u] for u, d in (self.window | self.batching).items() if u != axis}
        inside: Expr | None = None
        for component, d in enumerate(op.scatter_dims_to_operand_dims):
            where = [at.get(u, ZERO) for u in self.batch]
            if op.index_vector_dim < rank:
                where.insert(op.index_vector_dim, integer(component))
            flat = ix.linear(tuple(where), layout.strides, layout.offset)
            start = block.let(k.cast(block.let(k.load(self.operands.ins[which], flat), "s"), i64), "s")
            place = block.let(k.add(start, target[d]), "to") if d in target else start
            target[d] = place
            low, high = k.binary("ge", place, ZERO), k.binary("lt", place, dim_expr(self.anchor.shape[d]))
            inside = mask_and(inside, k.binary("and", low, high))
            # the sum of a huge index and a window's offset would wrap around
            inside = mask_and(inside, k.binary("ge", start, dim_expr(self.anchor.shape[d] * -1)))
        return (None if inside is None else block.let(inside, "in")), target

    def _update(self, block: Block, at: dict[int, Expr], target: dict[int, Expr], mask: Expr | None) -> None:
        which, layout = self.updates
        source, out = self.operands.ins[which], self.operands.outs[0]
        index = tuple(at[d] for d in range(len(layout.shape)))
        value = load_at(block, source, ix.linear(index, layout.strides, layout.offset), mask)
        place = tuple(target.get(d, ZERO) for d in range(self.anchor.type.rank))
        flat = ix.linear(place, self.out.strides, self.out.offset)
        if self.op.kind != "set":
            wide = f32 if out.dtype in (f16, bf16) else out.dtype
            old = load_at(block, out, flat, mask)
            value = k.cast(_combined(self.op.kind, k.cast(old, wide), k.cast(value, wide)), out.dtype)
        store_at(block, out, flat, block.let(value, "v"), mask)


def _combined(kind: str, old: Expr, value: Expr) -> Expr:
    if old.dtype == boolean:
        return k.binary("or" if kind == "max" else "and", old, value)
    return k.binary(kind, old, value)


__all__ = ["lower_scatter", "lower_update"]
