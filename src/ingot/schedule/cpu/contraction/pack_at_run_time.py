"""Panels of a B that is no constant, which a kernel of its own fills at each call.

    B[batch, reduce, cols], columns side by side   ->   [batch][outer cols][panel][k][columns of the panel]

Register tiles that read B in place walk it in steps of a whole row: every k is another page and often the same set of
the first-level cache. Where many tiles read a long panel, a copy that is one stream costs less.
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

# Rows that read B, from which on the copy is a small part of their products; columns that lie apart are copied twice.
_ROWS, _ROWS_APART = 128, 256
_CHUNK = 16384  # elements that a chunk of the copy has, about


def worth_packing(c: Contraction, machine: Machine) -> bool:
    """Whether B, which is no constant, should be copied into panels before it is read."""
    if c.packed or c.computed or not c.a == c.b == c.acc or c.acc not in (f32, f64):
        return False
    axes = (*c.batch, *c.rows, *c.cols, *c.reduce)
    if not all(isinstance(v, int) for x in axes for v in (x.extent, x.b)):
        return False
    if any(x.b == 0 for x in (*c.batch, *c.reduce)):
        return False  # what is repeated is read where it lies
    columns, rows, depth = static_shape((c.cols[-1].extent, product(x.extent for x in c.rows), c.k))
    panel = 2 * machine.lanes(c.acc)
    least = _ROWS if c.cols[-1].b == 1 else _ROWS_APART
    return rows >= least and columns > panel and depth * panel * c.b.nbytes > machine.l1 / 2


def panels_step(c: Contraction, plan: Plan, offset: int, machine: Machine, source: Arg, to: Arg) -> tuple[Step, int]:
    """The step, and how many bytes it fills. c: with the strides of B as it lies; plan: of the packed contraction."""
    entries, reduce, lanes = (*c.batch, *c.cols[:-1]), merge_axes(c.reduce), plan.lanes
    depth, columns = static_shape((c.k, c.cols[-1].extent))
    whole = -(-columns // lanes) * lanes
    run = reduce[-1]
    turns = depth // static_shape((run.extent,))[0]
    per = max(1, min(turns, _CHUNK // (plan.panel * static_shape((run.extent,))[0])))
    parts, count = -(-turns // per), -(-columns // plan.panel)
    buffer, out = Buffer("b", c.b, align=c.b.nbytes), Buffer("panels", c.b, writable=True)
    chunk, top = k.var("chunk"), Block()
    extents = static_shape((*(x.extent for x in entries), count, parts))
    *at, panel, part = (top.let(e, "c") for e in ix.delinearize(chunk, extents, top.multiples))
    first = top.let(k.mul(panel, integer(plan.panel)), "n")
    width = top.let(k.binary("min", integer(plan.panel), k.sub(integer(whole), first)), "w")
    last = top.let(k.binary("min", k.add(first, width), integer(columns)), "n")
    base = ix.linear(tuple(at), tuple(x.b for x in entries), offset)
    base = top.let(base, "b")
    start = ix.linear(tuple(at), _strides(entries, depth * whole))
    start = top.let(k.add(start, k.mul(first, integer(depth))), "p")

    def line(block: Block, turn: Expr) -> None:
        places = ix.delinearize(turn, static_shape(tuple(x.extent for x in reduce[:-1])), block.multiples)
        row = block.let(k.add(base, ix.linear(tuple(places), tuple(x.b for x in reduce[:-1]))), "b")
        target = block.let(k.add(start, k.mul(k.mul(turn, dim_expr(run.extent)), width)), "p")

        def one(b: Block, i: Expr) -> None:
            here = b.let(k.add(row, k.mul(i, dim_expr(run.b))), "b")
            there = b.let(k.sub(k.add(target, k.mul(i, width)), first), "p")

            def vector(z: Block, n: Expr, mask: Expr | None) -> None:
                column = ix.first_lane(n)
                value = z.let(k.load(buffer, k.add(here, column), n.lanes, mask), "v")
                z.store(out, k.add(there, column), value)

            vector_loop(b, first, last, lanes, machine, vector, multiple=lanes)

        block.loop("i", 0, run.extent, 1, one)

    low = top.let(k.mul(part, integer(per)), "t")
    top.loop("t", low, top.let(k.binary("min", k.add(low, integer(per)), integer(turns)), "t"), 1, line)
    chunks = dim_expr(product(extents))
    size = product(x.extent for x in entries)
    kernel = Kernel("panels", (buffer, out), (), chunk, chunks, top.body)
    return Step(kernel, (source, to)), static_shape((size,))[0] * depth * whole * c.b.nbytes


def _strides(entries: tuple[Axis, ...], size: int) -> tuple[int, ...]:
    """Of dense entries of `size` elements each."""
    out: list[int] = []
    for x in reversed(entries):
        out.append(size)
        size *= static_shape((x.extent,))[0]
    return tuple(reversed(out))


__all__ = ["panels_step", "worth_packing"]
