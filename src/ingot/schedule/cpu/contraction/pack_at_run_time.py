"""Panels of a run-time B, which a separate kernel packs at each call.

    B[batch, reduce, cols], contiguous columns   ->   [batch][outer cols][panel][k][columns of the panel]

Register tiles that read B in place advance by a full row per k: each k is in another page and often in the same set of
the L1 cache. If many tiles read a long panel, a contiguous copy costs less.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import product
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.types import f32, f64, static_shape
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.chunks import vector_loop
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.index import dim_expr
from ingot.schedule.lowered import Arg, Step

# With this many rows, the copy costs little compared with the products. Strided columns are copied twice.
_MIN_ROWS, _MIN_ROWS_STRIDED = 128, 256
_CHUNK_ELEMENTS = 16384  # of the copy, approximately


def should_pack(c: Contraction, machine: Machine) -> bool:
    """Whether a run-time B should be copied into panels before it is read."""
    if c.packed or c.computes_a or not c.a == c.b == c.acc or c.acc not in (f32, f64):
        return False
    axes = (*c.batch, *c.rows, *c.cols, *c.reduce)
    if not all(isinstance(v, int) for x in axes for v in (x.extent, x.b)):
        return False
    if any(x.b == 0 for x in (*c.batch, *c.reduce)):
        return False  # a broadcast B is read in place
    columns, rows, depth = static_shape((c.cols[-1].extent, product(x.extent for x in c.rows), c.k))
    panel = 2 * machine.lanes(c.acc)
    min_rows = _MIN_ROWS if c.cols[-1].b == 1 else _MIN_ROWS_STRIDED
    return rows >= min_rows and columns > panel and depth * panel * c.b.nbytes > machine.l1 / 2


def packing_step(
    c: Contraction, plan: Plan, offset: int, machine: Machine, source: Arg, output: Arg
) -> tuple[Step, int]:
    """Return the packing step and the bytes that it fills. c: with the strides of the unpacked B. plan: of the packed
    contraction."""
    entries, reduce, lanes = (*c.batch, *c.cols[:-1]), merge_axes(c.reduce), plan.lanes
    depth, columns = static_shape((c.k, c.cols[-1].extent))
    padded_columns = -(-columns // lanes) * lanes
    run = reduce[-1]
    steps = depth // static_shape((run.extent,))[0]
    chunk_steps = max(1, min(steps, _CHUNK_ELEMENTS // (plan.panel_columns * static_shape((run.extent,))[0])))
    parts, panel_count = -(-steps // chunk_steps), -(-columns // plan.panel_columns)
    buffer, out = Buffer("b", c.b, align=c.b.nbytes), Buffer("panels", c.b, writable=True)
    chunk, top = k.var("chunk"), Block()
    extents = static_shape((*(x.extent for x in entries), panel_count, parts))
    *entry_index, panel, part = (top.let(e, "c") for e in ix.delinearize(chunk, extents, top.multiples))
    first = top.let(k.mul(panel, integer(plan.panel_columns)), "n")
    width = top.let(k.binary("min", integer(plan.panel_columns), k.sub(integer(padded_columns), first)), "w")
    last = top.let(k.binary("min", k.add(first, width), integer(columns)), "n")
    base = ix.linear(tuple(entry_index), tuple(x.b for x in entries), offset)
    base = top.let(base, "b")
    panel_offset = ix.linear(tuple(entry_index), _dense_strides(entries, depth * padded_columns))
    panel_offset = top.let(k.add(panel_offset, k.mul(first, integer(depth))), "p")

    def emit_step(block: Block, step: Expr) -> None:
        index = ix.delinearize(step, static_shape(tuple(x.extent for x in reduce[:-1])), block.multiples)
        source_row = block.let(k.add(base, ix.linear(tuple(index), tuple(x.b for x in reduce[:-1]))), "b")
        target_offset = block.let(k.add(panel_offset, k.mul(k.mul(step, dim_expr(run.extent)), width)), "p")

        def emit_row(b: Block, i: Expr) -> None:
            source_offset = b.let(k.add(source_row, k.mul(i, dim_expr(run.b))), "b")
            row_offset = b.let(k.sub(k.add(target_offset, k.mul(i, width)), first), "p")

            def emit_vector(z: Block, n: Expr, mask: Expr | None) -> None:
                column = ix.first_lane(n)
                value = z.let(k.load(buffer, k.add(source_offset, column), n.lanes, mask), "v")
                z.store(out, k.add(row_offset, column), value)

            vector_loop(b, first, last, lanes, machine, emit_vector, multiple=lanes)

        block.loop("i", 0, run.extent, 1, emit_row)

    low = top.let(k.mul(part, integer(chunk_steps)), "t")
    top.loop("t", low, top.let(k.binary("min", k.add(low, integer(chunk_steps)), integer(steps)), "t"), 1, emit_step)
    chunks = dim_expr(product(extents))
    size = product(x.extent for x in entries)
    kernel = Kernel("panels", (buffer, out), (), chunk, chunks, top.body)
    return Step(kernel, (source, output)), static_shape((size,))[0] * depth * padded_columns * c.b.nbytes


def _dense_strides(entries: tuple[Axis, ...], size: int) -> tuple[int, ...]:
    """The strides of dense entries of `size` elements each."""
    strides: list[int] = []
    for x in reversed(entries):
        strides.append(size)
        size *= static_shape((x.extent,))[0]
    return tuple(reversed(strides))


__all__ = ["packing_step", "should_pack"]
