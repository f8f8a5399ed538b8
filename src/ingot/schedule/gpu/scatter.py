"""Scatter: by the order of the updates' targets (`segments`), but for few updates, and for windows that may reach an
element from several places. Then each element of the result asks all updates, in their order, which are its own.

    for a row of results at:
        acc = x[at]
        for update u:  if indices[u] + window reaches at:  acc (=, +=, ...) u[at - indices[u]]

Either way updates that meet in one element are combined by whoever owns it, without atomic operations.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, product
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops import DynamicUpdateSlice, Scatter
from ingot.ops.core.base import Category, category
from ingot.ops.views import pull_back
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index, Leaf, slice_starts
from ingot.schedule.folds import accumulator, combining
from ingot.schedule.gpu.blocks import Elements, Group, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.pointwise import lower_pointwise
from ingot.schedule.gpu.segments import FEW, FOLDS, Windows, by_segments
from ingot.schedule.group_io import bind_result
from ingot.schedule.index import ZERO, both, dim_expr
from ingot.schedule.lowered import Lowered, Step


def lower_scatter(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A Scatter, or a DynamicUpdateSlice, and the reshapes and transposes behind it."""
    anchor = next((n for n in body.nodes() if isinstance(n.op, Scatter)), None)
    if anchor is None:
        # every element of an updated slice is known by its own index
        return lower_pointwise(body, ins, outs, machine)
    windows, group = Windows(anchor), Group.of(body, ins, outs)
    if windows.are_apart and pull_back(body.outputs[0], anchor, outs[0]) is not None:
        return Lowered((_copied(anchor, group, machine), *lower_update(body, ins, outs, machine).steps))
    count = product(windows.serial_shape)
    if windows.are_whole and not (isinstance(count, int) and count <= FEW):
        return by_segments(windows, group, machine)
    return _asked(windows, group, machine)


def _copied(anchor: Node, group: Group, machine: Machine) -> Step:
    """The operand where the result will be."""
    work, x = Elements.of(group, anchor, machine), anchor.inputs[0]
    work.em.bind(anchor, Leaf(lambda block, index, mask: work.em.value(block, x, index, mask)))
    return work.step("scatter_into")


def _asked(windows: Windows, group: Group, machine: Machine) -> Lowered:
    """Each element asks all updates."""
    anchor, op, (x, _, updates) = windows.anchor, windows.op, windows.anchor.inputs
    work = Elements.of(group, anchor, machine)
    window, dtype, tile = windows.window, accumulator(x.dtype), work.tile
    acc = work.top.alloc("acc", dtype, 1, lanes=tile[1], tile=tile)
    first = work.em.value(work.top, x, work.index, work.span.in_bounds)
    work.top.store(acc, ZERO, k.spread(k.cast(first, dtype), tile))

    def update(block: Block, at: Index) -> None:
        place: dict[int, Expr] = {u: work.index[d] for u, d in windows.own.items()}
        place |= zip(windows.serial, at, strict=True)
        live = work.span.in_bounds
        offset: dict[int, Expr] = {d: work.index[d] for d in window}  # of the element in the update's window
        for component, d in enumerate(windows.targets):
            start = windows.start(work.em, block, place, component, work.span.in_bounds)
            if d in window:
                offset[d] = block.let(ix.sub(work.index[d], start), "w")
                low = k.binary("ge", work.index[d], start)
                # the difference to a start far outside would wrap around
                near = k.binary("ge", start, dim_expr(x.shape[d] * -1))
                reach = k.binary("lt", offset[d], dim_expr(updates.shape[window[d]]))
                live = both(live, k.binary("and", k.binary("and", low, near), reach))
            else:
                live = both(live, k.binary("eq", work.index[d], start))
        live = None if live is None else block.let(live, "mine")
        place |= {u: offset[d] for d, u in window.items()}
        index = tuple(place[u] for u in range(updates.type.rank))
        value = k.cast(work.em.value(block, updates, index, live), dtype)
        old = block.let(k.load(acc, ZERO), "o")
        new = value if op.kind == "set" else k.binary(combining(FOLDS[op.kind], dtype), old, value)
        block.store(acc, ZERO, k.spread(new if live is None else k.select(live, new, old), tile))

    work.nest(work.top, windows.serial_shape, update)
    bind_result(work.em, work.top, anchor, work.top.let(k.cast(k.load(acc, ZERO), anchor.dtype), "r"))
    return Lowered((work.step("scatter"),))


def lower_update(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """The same where the result lies over the operand: an updated slice, and updates that cannot meet, run over the
    updates; others over all elements, each of which is read by whoever writes it."""
    anchor = next(n for n in body.nodes() if category(n.op) is Category.SCATTER)
    op, out = anchor.op, pull_back(body.outputs[0], anchor, outs[0])
    assert out is not None  # else it is not in place
    updates = anchor.inputs[2 if isinstance(op, Scatter) else 1]
    if isinstance(op, Scatter) and not Windows(anchor).are_apart:
        return lower_scatter(body, ins, outs, machine)
    if 0 in updates.shape:
        return Lowered(())
    group = Group.of(body, ins, outs)
    work = Elements.of(group, updates, machine)
    inside: Expr | None = None
    if isinstance(op, DynamicUpdateSlice):
        starts = slice_starts(work.em, work.top, anchor.inputs[2:], anchor.shape, updates.shape)
        place = tuple(ix.add(e, s) for e, s in zip(work.index, starts, strict=True))
    else:
        place, inside = _window_place(Windows(anchor), work)
    write(work.top, work.em, updates, group.operands.outs[0], out, work.index, work.span.in_bounds, inside, place)
    chunks = ceildiv(product(updates.shape), work.tile[1])
    return Lowered((group.step("update", work.chunk, chunks, work.top),))


def _window_place(windows: Windows, work: Elements) -> tuple[Index, Expr | None]:
    """Where elements of windows go, and whether that lies inside."""
    x, _, updates = windows.anchor.inputs
    batch = {u: ZERO if updates.shape[u] == 1 else work.index[u] for u in windows.batch}
    place: dict[int, Expr] = dict.fromkeys(range(x.type.rank), ZERO)
    place |= {d: work.index[u] for d, u in windows.window.items()} | {d: batch[u] for u, d in windows.own.items()}
    inside: Expr | None = None
    for component, d in enumerate(windows.targets):
        start = windows.start(work.em, work.top, batch, component, work.span.in_bounds)
        place[d] = ix.add(place[d], start)
        fits = k.binary("and", k.binary("ge", place[d], ZERO), k.binary("lt", place[d], dim_expr(x.shape[d])))
        # the sum of a huge index and a window's offset would wrap around
        fits = k.binary("and", fits, k.binary("ge", start, dim_expr(x.shape[d] * -1)))
        inside = both(inside, fits)
    return tuple(place[d] for d in range(x.type.rank)), inside


__all__ = ["lower_scatter", "lower_update"]
