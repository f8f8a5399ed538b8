"""Row groups that also reduce the columns of the matrix whose rows they hold, as the gradient of a norm needs for those
of its weight and bias.

    for the tiles of rows of a program:  s = sum(rows);  out = f(rows, s);  total[columns] += sum of g(rows, s)
    partial[program, columns] = total[columns]

    for a tile of columns:  results = h(sum of partial over the programs)

All are added in a fixed order, so that results are bit-reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuild, topological
from ingot.ir.types import TensorType
from ingot.ops import Convert, Reduce, reshape
from ingot.ops.core.base import identity_of
from ingot.schedule.block import Block
from ingot.schedule.folds import accumulator, combining_op
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES, Group, Span, constant_tile, register, store_tile
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.rows import CHUNK, RowTiles, lower_rows, row_group
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered
from ingot.schedule.row_box import Rows, reduces_columns, reduction, reductions_of

PROGRAMS_PER_PROCESSOR = 6
# with many turns, loads two turns ahead outweigh the copies to shared memory, and fewer programs load as much
MIN_PREFETCHED_TURNS, PREFETCHING_PROGRAMS_PER_PROCESSOR, PREFETCH_STAGES = 6, 4, 3
TILE_ELEMENTS = 1024  # fewer than of rows alone: totals need registers, too, and threads add few rows of a tile


def lower_rows_and_columns(group: Group, machine: Machine) -> Lowered:
    body, ins, outs = group.body, group.ins, group.outs
    totals = [n for n in reductions_of(body) if reduces_columns(n)]
    of_columns = [i for i, n in enumerate(body.outputs) if not {*totals}.isdisjoint(topological([n]))]
    of_rows = [i for i in range(len(outs)) if i not in of_columns]
    held = body.with_outputs((*(body.outputs[i] for i in of_rows), *(n.inputs[0] for n in totals)))
    summed = [Layout.contiguous(n.inputs[0].shape) for n in totals]
    holder, rows = row_group(Group.of(held, ins, (*(outs[i] for i in of_rows), *summed)))
    first, partials = _lower_rows(holder.storing(len(of_rows)), rows, totals, machine)
    last_body = _column_body(body.with_outputs(body.outputs[i] for i in of_columns), totals, partials)
    layouts = (*ins, *(Layout.contiguous(t.shape) for t in partials))
    read = {*topological(last_body.outputs)}
    used = [i for i, n in enumerate(last_body.inputs) if n in read]
    last_body = Graph(tuple(last_body.inputs[i] for i in used), last_body.outputs)
    last = lower_rows(Group.of(last_body, (layouts[i] for i in used), (outs[i] for i in of_columns)), machine)
    operands = [*(Arg("in", i) for i in range(len(ins))), *(Arg("temp", i) for i in range(len(totals)))]
    first = first.inlined(operands, [Arg("out", i) for i in of_rows], 0)
    last = last.inlined([operands[i] for i in used], [Arg("out", i) for i in of_columns], len(totals))
    return Lowered((*first.steps, *last.steps), (*first.temps, *last.temps))


def _lower_rows(group: Group, rows: Rows, totals: Sequence[Node], machine: Machine) -> tuple[Lowered, list[TensorType]]:
    """The kernel of rows, which also stores a program's share of each of `totals`, whose operands are the last results
    of the group; and the types of these shares."""
    shape = RowTiles(group, rows, machine, max_elements=TILE_ELEMENTS)
    (height, width), length = shape.tile, product(shape.reduced_shape)
    turns, stages = _turns(estimate(shape.row_tiles), machine)
    programs = ceildiv(shape.row_tiles, turns)
    types = [TensorType(accumulator(n.inputs[0].dtype), (programs, length)) for n in totals]
    buffers = [Buffer(f"partial{i}", t.dtype, writable=True, align=ALIGNMENT_BYTES) for i, t in enumerate(types)]
    top = Block()
    identities = [identity_of(reduction(n).kind, t.dtype) for n, t in zip(totals, types, strict=True)]
    registers = [
        register(top, "total", constant_tile(t.dtype, (1, width), identity))
        for t, identity in zip(types, identities, strict=True)
    ]
    operands = group.body.outputs[len(group.outs) :]

    def add(block: Block, number: Expr) -> None:
        tile = RowTiles(group, rows, machine, top=block, number=number, max_elements=TILE_ELEMENTS)
        tile.compute()
        for n, operand, total, identity in zip(totals, operands, registers, identities, strict=True):
            combine = combining_op(reduction(n).kind, total.dtype)
            value = k.spread(k.cast(tile.elements(operand), total.dtype), (height, width))
            if tile.span.in_bounds is not None:
                value = k.select(*k.broadcast(tile.span.in_bounds, value, k.lit(identity, total.dtype)))
            value = k.reduce_axis(combine, block.let(value, "v"), 0)
            block.store(total, ZERO, k.binary(combine, k.load(total, ZERO), value))

    begin = top.let(k.mul(CHUNK, integer(turns)), "begin")
    end = top.let(k.binary("min", k.add(begin, integer(turns)), dim_expr(shape.row_tiles)), "end")
    top.loop("tile", begin, end, 1, add, stages=stages)
    columns = Span.of(top, ZERO, width, length, 1)
    at = top.let(k.add(k.mul(CHUNK, dim_expr(length)), columns.position), "at")
    for buffer, total in zip(buffers, registers, strict=True):
        store_tile(top, buffer, at, k.load(total, ZERO), columns.in_bounds)
    partials = ((b, Arg("temp", i)) for i, b in enumerate(buffers))
    step = group.step("rows", CHUNK, programs, top, *partials, warps=shape.warps)
    return Lowered((step,), tuple(t.size * t.dtype.nbytes for t in types)), types


def _turns(row_tiles: int, machine: Machine) -> tuple[int, int]:
    """The tiles of a program, and the stages of the loop over them."""
    prefetched_turns = -(-row_tiles // (PREFETCHING_PROGRAMS_PER_PROCESSOR * machine.processors))
    if prefetched_turns >= MIN_PREFETCHED_TURNS:
        return prefetched_turns, PREFETCH_STAGES
    return max(1, -(-row_tiles // (PROGRAMS_PER_PROCESSOR * machine.processors))), 0


def _column_body(body: Graph, totals: Sequence[Node], partials: Sequence[TensorType]) -> Graph:
    """The group of the columns' results: those of `body`, whose operands are followed by the programs' shares."""
    inputs = [Input(f"partial{i}", t)() for i, t in enumerate(partials)]
    images: dict[Node, Node] = {}
    for n, partial in zip(totals, inputs, strict=True):
        images[n] = reshape(Convert(n.dtype)(Reduce(reduction(n).kind, (0,))(partial)), n.shape)
    return Graph((*body.inputs, *inputs), rebuild(body.outputs, images))


__all__ = ["lower_rows_and_columns"]
