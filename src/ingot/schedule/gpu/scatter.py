"""Scatter. Updates are sorted by target (`segments`), except for few updates and for windows that may cover an element
from several targets. Then each element of the result tests all updates in order.

    for contiguous results at:
        acc = x[at]
        for update u:  if indices[u] + window reaches at:  acc (=, +=, ...) u[at - indices[u]]

Either way the program that owns an element combines its updates, without atomic operations.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, product
from ingot.ir.kernel import Expr
from ingot.ir.node import rebuild
from ingot.ops import DynamicUpdateSlice, Scatter
from ingot.ops.core.base import Category, category
from ingot.ops.views import pull_back
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index, slice_starts
from ingot.schedule.folds import accumulator
from ingot.schedule.gpu.blocks import Elements, Group, all_of, store_tile, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.pointwise import lower_pointwise
from ingot.schedule.gpu.segments import (
    MAX_SERIAL_UPDATES,
    Windows,
    has_few_updates,
    lower_by_segments,
    lower_to_targets,
)
from ingot.schedule.group_io import bind_result
from ingot.schedule.index import ZERO, dim_expr, mask_and
from ingot.schedule.lowered import Lowered


def lower_scatter(group: Group, machine: Machine) -> Lowered:
    """Lower a Scatter or a DynamicUpdateSlice, and the reshapes and transposes after it."""
    body, ins, outs = group.body, group.ins, group.outs
    anchor = next((n for n in body.nodes() if isinstance(n.op, Scatter)), None)
    if anchor is None:
        # an element's own index tells whether it is in the updated slice
        return lower_pointwise(group, machine)
    windows = Windows(anchor)
    if pull_back(body.outputs[0], anchor, outs[0]) is not None and (windows.are_disjoint or _is_sparse(windows)):
        copied = body.with_outputs(rebuild(body.outputs, {anchor: anchor.inputs[0]}))
        copy, update = lower_pointwise(Group.of(copied, ins, outs), machine), lower_update(group, machine)
        return Lowered((*copy.steps, *update.steps), update.temps)
    if _is_sorted(windows):
        return lower_by_segments(windows, group, machine)
    return _lower_serial(windows, group, machine)


def _is_sorted(windows: Windows) -> bool:
    """Whether a scatter sorts its updates by target."""
    count = product(windows.serial_shape)
    return windows.have_one_target and not (isinstance(count, int) and count <= MAX_SERIAL_UPDATES)


def _is_sparse(windows: Windows) -> bool:
    """Whether a scatter changes a copy of its operand, or the operand in place, as most elements have no update."""
    return _is_sorted(windows) and has_few_updates(windows)


def _lower_serial(windows: Windows, group: Group, machine: Machine) -> Lowered:
    """Lower to a kernel in which each element tests all updates."""
    anchor, (x, _, updates) = windows.anchor, windows.anchor.inputs
    work = Elements.of(group, anchor, machine)
    window, dtype, tile = windows.window, accumulator(x.dtype), work.tile
    acc = work.top.alloc("acc", dtype, 1, lanes=tile[1], tile=tile)
    initial = work.em.value(work.top, x, work.index, work.span.in_bounds)
    work.top.store(acc, ZERO, k.spread(k.cast(initial, dtype), tile))

    def update(block: Block, serial_index: Index) -> None:
        coordinates: dict[int, Expr] = {u: work.index[d] for u, d in windows.batching_dims.items()}
        coordinates |= zip(windows.serial_dims, serial_index, strict=True)
        live = work.span.in_bounds
        offset: dict[int, Expr] = {d: work.index[d] for d in window}  # of the element in the window
        for component, d in enumerate(windows.targets):
            start = windows.start(work.em, block, coordinates, component, work.span.in_bounds)
            if d in window:
                offset[d] = block.let(ix.sub(work.index[d], start), "w")
                is_after_start = k.binary("ge", work.index[d], start)
                # the offset from a start far out of bounds could overflow
                is_valid_start = k.binary("ge", start, dim_expr(x.shape[d] * -1))
                is_before_end = k.binary("lt", offset[d], dim_expr(updates.shape[window[d]]))
                live = mask_and(live, k.binary("and", k.binary("and", is_after_start, is_valid_start), is_before_end))
            else:
                live = mask_and(live, k.binary("eq", work.index[d], start))
        live = None if live is None else block.let(live, "mine")
        coordinates |= {u: offset[d] for d, u in window.items()}
        index = tuple(coordinates[u] for u in range(updates.type.rank))
        value = k.cast(work.em.value(block, updates, index, live), dtype)
        old = block.let(k.load(acc, ZERO), "o")
        new = windows.combined(old, value)
        block.store(acc, ZERO, k.spread(new if live is None else k.select(live, new, old), tile))

    work.nest(work.top, windows.serial_shape, update)
    bind_result(work.em, work.top, anchor, work.top.let(k.cast(k.load(acc, ZERO), anchor.dtype), "r"))
    return Lowered((work.step("scatter"),))


def lower_update(group: Group, machine: Machine) -> Lowered:
    """Lower an update in place. An updated slice and disjoint updates iterate over the updates, each of which reads and
    writes elements of its own, as do the first updates of targets; others over all elements, each of which is read by
    the program that writes it."""
    anchor = next(n for n in group.body.nodes() if category(n.op) is Category.SCATTER)
    op, out = anchor.op, pull_back(group.body.outputs[0], anchor, group.outs[0])
    assert out is not None  # else it is not in place
    updates = anchor.inputs[2 if isinstance(op, Scatter) else 1]
    if isinstance(op, Scatter) and not (windows := Windows(anchor)).are_disjoint:
        if _is_sparse(windows):
            return lower_to_targets(windows, group, out, machine)
        return (
            lower_by_segments(windows, group, machine)
            if _is_sorted(windows)
            else _lower_serial(windows, group, machine)
        )
    if 0 in updates.shape:
        return Lowered(())
    work = Elements.of(group, updates, machine)
    in_bounds: Expr | None = None
    if isinstance(op, DynamicUpdateSlice):
        starts = slice_starts(work.em, work.top, anchor.inputs[2:], anchor.shape, updates.shape)
        target = tuple(ix.add(e, s) for e, s in zip(work.index, starts, strict=True))
    else:
        target, in_bounds = _window_target(Windows(anchor), work)
    if isinstance(op, Scatter) and op.kind != "set":
        mask = all_of(work.span.in_bounds, in_bounds)
        new = _combined(Windows(anchor), work, target, mask)
        store_tile(work.top, group.operands.outs[0], ix.linear(target, out.strides, out.offset), new, mask)
    else:
        buffer, mask = group.operands.outs[0], work.span.in_bounds
        write(work.top, work.em, updates, buffer, out, work.index, mask, in_bounds, target)
    chunks = ceildiv(product(updates.shape), work.tile[1])
    return Lowered((group.step("update", work.chunk, chunks, work.top),))


def _combined(windows: Windows, work: Elements, target: Index, mask: Expr | None) -> Expr:
    """The elements at `target` after their updates."""
    x, _, updates = windows.anchor.inputs
    old, value = (
        k.cast(work.em.value(work.top, node, index, mask), accumulator(x.dtype))
        for node, index in ((x, target), (updates, work.index))
    )
    return k.cast(windows.combined(old, value), x.dtype)


def _window_target(windows: Windows, work: Elements) -> tuple[Index, Expr | None]:
    """Return the targets of windows' elements, and the mask of those in bounds."""
    x, _, updates = windows.anchor.inputs
    batch = {u: ZERO if updates.shape[u] == 1 else work.index[u] for u in windows.batch}
    target: dict[int, Expr] = dict.fromkeys(range(x.type.rank), ZERO)
    target |= {d: work.index[u] for d, u in windows.window.items()} | {
        d: batch[u] for u, d in windows.batching_dims.items()
    }
    in_bounds: Expr | None = None
    for component, d in enumerate(windows.targets):
        start = windows.start(work.em, work.top, batch, component, work.span.in_bounds)
        target[d] = ix.add(target[d], start)
        component_in_bounds = k.binary(
            "and", k.binary("ge", target[d], ZERO), k.binary("lt", target[d], dim_expr(x.shape[d]))
        )
        # the sum of a huge index and a window's offset could overflow
        component_in_bounds = k.binary("and", component_in_bounds, k.binary("ge", start, dim_expr(x.shape[d] * -1)))
        in_bounds = mask_and(in_bounds, component_in_bounds)
    return tuple(target[d] for d in range(x.type.rank)), in_bounds


__all__ = ["lower_scatter", "lower_update"]
