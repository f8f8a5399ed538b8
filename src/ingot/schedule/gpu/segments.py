"""Scatters with one target per window: updates are sorted by target, and each element combines its own segment.

    order = updates sorted by target;   starts[t] = number of updates with targets before t
    for contiguous results at:   out[at] = x[at] + sum(updates[order[starts[at]:starts[at + 1]]])

Where most elements have no update, as those of an embedding's gradient, the operand is copied, or updated in place:

    for sorted updates n:   if target[n] != target[n - 1]:  out[target[n]] = x[target[n]] + sum(its segment of updates)

A target may have most of the updates: a padding token, the last bucket of a relative position. So of many updates each
part that continues the segment of the part before is combined by a program of its own:

    for part p of sorted updates:   if it continues a segment:   parts[p] = sum(its updates until the segment's end)

The sort is stable and the updates of a target are folded in a fixed order, so results are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Tile
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ir.types import DType, Shape, i32, i64
from ingot.ops import Scatter
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index
from ingot.schedule.folds import accumulator, combining_op
from ingot.schedule.gpu.blocks import (
    Elements,
    Group,
    Span,
    constant_tile,
    power_of_two,
    read_at,
    register,
    store_tile,
)
from ingot.schedule.gpu.digits import digit_count, order_rows_by_digits
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.merging import MAX_ROW_ELEMENTS, KeyRows, SortedRuns, binary_search, merge_count, order_rows
from ingot.schedule.group_io import bind_result
from ingot.schedule.index import ZERO, dim_expr, integer, mask_and
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.support.dataclass import dataclass

MAX_SERIAL_UPDATES = 32  # that each element tests one by one
MAX_FOLD_UPDATES, MIN_FOLD_UPDATES = 128, 8  # per iteration
TILE_ELEMENTS = 4096  # of updates
PART_UPDATES = MAX_FOLD_UPDATES  # of a part of a segment: whole iterations
MIN_UPDATES_FOR_PARTS = 2048
MIN_ELEMENTS_FOR_STARTS = 4  # of a target, from which on a kernel computes the starts of segments once
DIGITS_PER_MERGE = 2  # passes of the radix sort in the time of one merge pass
TARGETS_PER_PROGRAM = 256  # of the kernel that computes starts
REDUCTION_KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}  # kinds of scatters as kinds of reductions


@dataclass(frozen=True)
class Windows:
    """The windows of a scatter: one for each index of the dimensions `batch` of the updates."""

    anchor: Node

    @property
    def op(self) -> Scatter:
        assert isinstance(self.anchor.op, Scatter)
        return self.anchor.op

    @cached_property
    def window(self) -> dict[int, int]:
        """The dimensions of the operand along which windows extend -> those of the updates."""
        dropped = (*self.op.inserted_window_dims, *self.op.input_batching_dims)
        window_dims = (d for d in range(self.anchor.type.rank) if d not in dropped)
        return dict(zip(window_dims, self.op.update_window_dims, strict=True))

    @property
    def batch(self) -> list[int]:
        """The dimensions of the updates that enumerate windows."""
        return [d for d in range(self.anchor.inputs[2].type.rank) if d not in self.op.update_window_dims]

    @cached_property
    def batching_dims(self) -> dict[int, int]:
        """The batching dimensions of `batch` -> those of the operand with the same coordinate."""
        batch, op = self.batch, self.op
        dims = zip(op.input_batching_dims, op.scatter_indices_batching_dims, strict=True)
        return {batch[b - (b > op.index_vector_dim)]: d for d, b in dims}

    @property
    def serial_dims(self) -> list[int]:
        """The other dimensions of `batch`, which enumerate the updates that an element may get."""
        return [u for u in self.batch if u not in self.batching_dims]

    @property
    def serial_shape(self) -> Shape:
        return tuple(self.anchor.inputs[2].shape[u] for u in self.serial_dims)

    @property
    def have_one_target(self) -> bool:
        """Whether a window has extent 1 along the indexed dimensions, so that its index is its only target."""
        updates = self.anchor.inputs[2]
        return all(d not in self.window or updates.shape[self.window[d]] == 1 for d in self.targets)

    @property
    def are_disjoint(self) -> bool:
        """Whether no two updates have a common element."""
        return self.op.unique or self.op.has_one_window(self.anchor.inputs[2].shape)

    def combined(self, old: Expr, value: Expr) -> Expr:
        """An element after an update."""
        if self.op.kind == "set":
            return value
        return k.binary(combining_op(REDUCTION_KINDS[self.op.kind], old.dtype), old, value)

    @property
    def targets(self) -> tuple[int, ...]:
        """The dimensions of the operand that the components of indices refer to."""
        return self.op.scatter_dims_to_operand_dims

    def start(self, em: Emitter, block: Block, coordinates: dict[int, Expr], component: int, mask: Expr | None) -> Expr:
        """Return a component of the index of the window at `coordinates`, by dimension of `batch`."""
        indices = self.anchor.inputs[1]
        index = [coordinates[u] for u in self.batch]
        if self.op.index_vector_dim < indices.type.rank:
            index.insert(self.op.index_vector_dim, integer(component))
        return block.let(k.cast(em.value(block, indices, tuple(index), mask), i64), "s")


def has_few_updates(windows: Windows) -> bool:
    """Whether most elements have no update."""
    x, _, updates = windows.anchor.inputs
    return 4 * estimate(updates.type.size) <= estimate(x.type.size)


def lower_to_targets(windows: Windows, group: Group, out: Layout, machine: Machine) -> Lowered:
    """Lower a scatter, whose result has its operand's elements already, to kernels that sort the updates by target and
    change the elements that have some. out: the layout of the scatter in the result."""
    temps: list[DimLike] = []
    steps, runs = _order_updates(windows, group, machine, temps)
    work = _Segments(windows, group, runs, machine).with_parts(steps, temps)
    return Lowered((*steps, work.update_step(out)), tuple(temps))


def lower_by_segments(windows: Windows, group: Group, machine: Machine) -> Lowered:
    """Lower a scatter by sorting its updates by target."""
    temps: list[DimLike] = []
    steps, runs = _order_updates(windows, group, machine, temps)
    starts: tuple[Buffer, Arg] | None = None
    if estimate(product(windows.anchor.shape[d] for d in windows.window)) >= MIN_ELEMENTS_FOR_STARTS:
        starts = Buffer("begins", i32, writable=True), Arg("temp", len(temps))
        step, nbytes = _starts_step(windows, group, runs, starts)
        steps.append(step)
        temps.append(nbytes)
    work = _Segments(windows, group, runs, machine, starts).with_parts(steps, temps)
    return Lowered((*steps, work.step()), tuple(temps))


def _order_updates(
    windows: Windows, group: Group, machine: Machine, temps: list[DimLike]
) -> tuple[list[Step], SortedRuns]:
    """Sort the updates by target: by a radix sort if there are few targets for that many updates."""
    rows = _target_keys(windows, group)
    max_key = product(windows.anchor.shape[d] for d in windows.targets)  # the key of updates out of bounds
    if isinstance(max_key, int) and digit_count(max_key.bit_length()) < DIGITS_PER_MERGE * merge_count(rows.length):
        return order_rows_by_digits(rows, max_key.bit_length(), group, machine, temps)
    return order_rows(rows, group, temps, with_keys=True)


def _starts_step(windows: Windows, group: Group, runs: SortedRuns, starts: tuple[Buffer, Arg]) -> tuple[Step, DimLike]:
    """Return the kernel that computes the start of each target's segment in its row, and the end of the last; and its
    bytes."""
    top, chunk = Block(), k.var("chunk")
    targets = product(windows.anchor.shape[d] for d in windows.targets) + 1
    total = runs.rows.count * targets
    span = Span.of(top, k.mul(chunk, integer(TARGETS_PER_PROGRAM)), TARGETS_PER_PROGRAM, total, 1)
    row, target = span.index(top, (runs.rows.count, targets))
    counts = _count_before(top, runs, row, target, span.in_bounds, (1, TARGETS_PER_PROGRAM))
    top.store(starts[0], span.position, counts, span.in_bounds)
    step = group.step("segments", chunk, ceildiv(total, TARGETS_PER_PROGRAM), top, *runs.buffers, starts)
    return step, total * i32.nbytes


def _count_before(top: Block, runs: SortedRuns, row: Expr, target: Expr, live: Expr | None, tile: Tile) -> Expr:
    """Return the number of a row's updates with smaller targets."""
    (keys,) = runs.keys
    counts = register(top, "found", constant_tile(i32, tile))
    base = top.let(ix.sub(ix.mul(row, dim_expr(runs.stride)), integer(1)), "base")
    length, key = k.cast(dim_expr(runs.rows.length), i32), top.let(k.cast(target, keys.dtype), "wanted")

    def probe(block: Block, step: Expr) -> None:
        count = block.let(k.load(counts, ZERO), "so_far")
        candidate = block.let(k.add(count, step), "beyond")
        in_bounds = block.let(k.spread(ix.mask_and(live, k.binary("le", candidate, length)), tile), "inside")
        flat = k.spread(k.add(base, k.cast(candidate, i64)), tile)
        precedes = k.binary("lt", block.let(k.gather(keys, flat, in_bounds)), key)
        block.store(counts, ZERO, k.select(k.binary("and", in_bounds, precedes), candidate, count))

    binary_search(top, runs.rows.length, probe)
    return top.let(k.load(counts, ZERO), "place")


def _target_keys(windows: Windows, group: Group) -> KeyRows:
    """Return the targets of updates as keys: the linear index along all indexed dimensions, or their size for updates
    out of bounds."""
    x = windows.anchor.inputs[0]
    sizes = tuple(x.shape[d] for d in windows.targets)
    count = product(sizes)
    dtype = i32 if isinstance(count, int) and count < MAX_ROW_ELEMENTS else i64
    row_sizes = {u: x.shape[d] for u, d in windows.batching_dims.items()}
    emitters: dict[Block, Emitter] = {}

    def read(block: Block, row: Expr, position: Expr, mask: Expr | None) -> list[Expr]:
        em = emitters.setdefault(block.root, group.emitter())
        coordinates = dict(zip(row_sizes, ix.delinearize(row, tuple(row_sizes.values()), {}), strict=True))
        coordinates |= zip(windows.serial_dims, ix.delinearize(position, windows.serial_shape, {}), strict=True)
        target: Expr = ZERO
        in_bounds: Expr | None = None
        for component, size in enumerate(sizes):
            start = windows.start(em, block, coordinates, component, mask)
            component_in_bounds = k.binary("and", k.binary("ge", start, ZERO), k.binary("lt", start, dim_expr(size)))
            in_bounds = ix.mask_and(in_bounds, component_in_bounds)
            target = ix.add(ix.mul(target, dim_expr(size)), start)
        if in_bounds is not None:
            target = k.select(in_bounds, target, dim_expr(count))
        return [block.let(k.cast(target, dtype), "target")]

    return KeyRows(product(row_sizes.values()), product(windows.serial_shape), read, (dtype,))


@dataclass(frozen=True)
class _Segments:
    """The kernel that combines, for each element, the updates of its target. runs: the sorted updates. starts: of each
    target's segment; None: each element searches for its own. parts: the combined updates of the parts that continue a
    segment; None: each element combines all of its updates."""

    windows: Windows
    group: Group
    runs: SortedRuns
    machine: Machine
    starts: tuple[Buffer, Arg] | None = None
    parts: tuple[Buffer, Arg] | None = None

    def with_parts(self, steps: list[Step], temps: list[DimLike]) -> _Segments:
        """These segments with parts, if there are many updates; adds the kernel and its memory."""
        if self.windows.op.kind == "set" or estimate(self.runs.rows.length) < MIN_UPDATES_FOR_PARTS:
            return self
        work = replace(self, parts=(Buffer("parts", self.dtype, writable=True), Arg("temp", len(temps))))
        steps.append(work._parts_step())
        temps.append(product(self._parts_shape) * self.dtype.nbytes)
        return work

    @property
    def buffers(self) -> list[tuple[Buffer, Arg]]:
        return [*self.runs.buffers, *(b for b in (self.starts, self.parts) if b is not None)]

    @property
    def _parts_shape(self) -> Shape:
        rows, anchor = self.runs.rows, self.windows.anchor
        return (rows.count, ceildiv(rows.length, PART_UPDATES), *(anchor.shape[d] for d in self._free_dims))

    @property
    def _free_dims(self) -> list[int]:
        """The dimensions of the operand that have all elements of a target."""
        return [d for d in self.windows.window if d not in self.windows.targets]

    @property
    def dtype(self) -> DType:
        return accumulator(self.windows.anchor.dtype)

    @property
    def fold_updates(self) -> int:
        """Updates per iteration: a multiple of the average per element, as some elements have more."""
        x = self.windows.anchor.inputs[0]
        targets = max(1, estimate(product(x.shape[d] for d in self.windows.targets)))
        return max(
            MIN_FOLD_UPDATES, min(MAX_FOLD_UPDATES, power_of_two(4 * estimate(self.runs.rows.length) // targets))
        )

    def step(self) -> Step:
        anchor = self.windows.anchor
        work = Elements.of(self.group, anchor, self.machine, max_size=min(256, TILE_ELEMENTS // self.fold_updates))
        row, target = self._row_and_target(work.index)
        row, target = work.top.let(row, "line"), work.top.let(target, "target")
        begin, end = (
            self._segment_start(work, row, t, work.span.in_bounds) for t in (target, ix.add(target, integer(1)))
        )
        bind_result(work.em, work.top, anchor, self._result(work, row, begin, end, work.span.in_bounds))
        return work.step("scatter", *self.buffers)

    def update_step(self, out: Layout) -> Step:
        """The kernel that changes the elements of targets that have updates, by the first update of each."""
        anchor, updates, runs = self.windows.anchor, self.windows.anchor.inputs[2], self.runs
        work = Elements.of(self.group, updates, self.machine, max_size=min(256, TILE_ELEMENTS // self.fold_updates))
        row = work.top.let(_linear(work.index, updates.shape, [*self.windows.batching_dims]), "line")
        number = work.top.let(_linear(work.index, updates.shape, self.windows.serial_dims), "number")
        flat = work.top.let(k.add(ix.mul(row, dim_expr(runs.stride)), number), "flat")
        follows = mask_and(work.span.in_bounds, k.binary("gt", number, ZERO))
        target = read_at(work.top, runs.keys[0], flat, work.span.in_bounds)
        before = read_at(work.top, runs.keys[0], ix.sub(flat, integer(1)), follows)
        sizes = tuple(anchor.shape[d] for d in self.windows.targets)
        exists = k.binary("lt", target, k.cast(dim_expr(product(sizes)), target.dtype))
        is_first = k.binary("or", k.binary("eq", number, ZERO), k.binary("ne", before, target))
        live = mask_and(work.span.in_bounds, k.binary("and", exists, is_first))
        live = work.top.let(k.spread(live, work.tile), "first")
        target = work.top.let(k.cast(target, i64), "target")
        index = {d: work.index[u] for d, u in self.windows.window.items()}
        index |= {d: work.index[u] for u, d in self.windows.batching_dims.items()}
        coordinates = ix.delinearize(target, sizes, work.top.multiples)
        index |= zip(self.windows.targets, (work.top.let(e, "i") for e in coordinates), strict=True)
        work = replace(work, index=tuple(index[d] for d in range(anchor.type.rank)))
        end = self._segment_start(work, row, ix.add(target, integer(1)), live)
        value = self._result(work, row, number, k.select(live, end, number), live)
        store_tile(work.top, self.group.operands.outs[0], ix.linear(work.index, out.strides, out.offset), value, live)
        chunks = ceildiv(product(updates.shape), work.tile[1])
        return self.group.step("update", work.chunk, chunks, work.top, *self.buffers)

    def _parts_step(self) -> Step:
        """The kernel that combines the updates of each part that continues a segment."""
        assert self.parts is not None
        windows, runs, shape = self.windows, self.runs, self._parts_shape
        top, chunk, size = Block(), k.var("chunk"), min(256, TILE_ELEMENTS // self.fold_updates)
        span = Span.of(top, k.mul(chunk, integer(size)), size, product(shape), 1)
        row, part, *at = span.index(top, shape)
        batch = [*windows.batching_dims.values()]
        index: dict[int, Expr] = dict.fromkeys(range(windows.anchor.type.rank), ZERO)
        index |= zip(batch, ix.delinearize(row, tuple(windows.anchor.shape[d] for d in batch), {}), strict=True)
        index |= zip(self._free_dims, at, strict=True)
        em = self.group.emitter(() if span.in_bounds is None else (span.in_bounds,))
        work = Elements(self.group, windows.anchor, top, chunk, (1, size), span, tuple(index.values()), em)
        first = top.let(ix.mul(row, dim_expr(runs.stride)), "line")
        begin = top.let(ix.mul(part, integer(PART_UPDATES)), "begin")
        follows = mask_and(span.in_bounds, k.binary("gt", part, ZERO))
        key = read_at(top, runs.keys[0], k.add(first, begin), follows)
        before = read_at(top, runs.keys[0], ix.sub(k.add(first, begin), integer(1)), follows)
        targets = product(windows.anchor.shape[d] for d in windows.targets)
        exists = k.binary("lt", key, k.cast(dim_expr(targets), key.dtype))
        live = mask_and(follows, k.binary("and", exists, k.binary("eq", key, before)))
        continues = top.let(k.spread(live, work.tile), "continues")

        def update(block: Block, offset: Expr) -> tuple[Expr, Expr]:
            number = block.let(k.add(begin, offset), "number")
            in_row = mask_and(continues, k.binary("lt", number, dim_expr(runs.rows.length)))
            in_row = block.let(k.spread(in_row, (self.fold_updates, size)), "inside")
            same = read_at(block, runs.keys[0], k.add(first, number), in_row)
            live = block.let(k.binary("and", in_row, k.binary("eq", same, key)), "live")
            return self._update(block, work, row, number, live), live

        count = k.select(continues, *(k.spread(integer(n), work.tile) for n in (PART_UPDATES, 0)))
        value = self._fold(work, top.let(k.reduce("max", count)), update)
        store_tile(top, self.parts[0], span.position, value, continues)
        return self.group.step("parts", chunk, ceildiv(product(shape), size), top, *runs.buffers, self.parts)

    def _result(self, work: Elements, row: Expr, begin: Expr, end: Expr, mask: Expr | None) -> Expr:
        """The elements after the updates of their segments."""
        x = self.windows.anchor.inputs[0]
        old = k.spread(k.cast(work.em.value(work.top, x, work.index, mask), self.dtype), work.tile)
        if self.windows.op.kind == "set":
            new = self._select_last(work, row, begin, end, old)
        else:
            new = self.windows.combined(old, self._combined(work, row, begin, end))
            new = k.select(k.spread(k.binary("lt", begin, end), work.tile), new, old)
        return work.top.let(k.cast(new, x.dtype), "r")

    def _row_and_target(self, index: Index) -> tuple[Expr, Expr]:
        """Return the row of updates and the target of an element at `index`."""
        shape, rows = self.windows.anchor.shape, [*self.windows.batching_dims.values()]
        return _linear(index, shape, rows), _linear(index, shape, self.windows.targets)

    def _segment_start(self, work: Elements, row: Expr, target: Expr, mask: Expr | None) -> Expr:
        """Return the starts of the segments of these targets."""
        if self.starts is None:
            start = _count_before(work.top, self.runs, row, target, mask, work.tile)
        else:
            targets = product(self.windows.anchor.shape[d] for d in self.windows.targets) + 1
            flat = k.spread(ix.add(ix.mul(row, dim_expr(targets)), target), work.tile)
            start = read_at(work.top, self.starts[0], flat, mask)
        return work.top.let(k.cast(start, i64), "begin")

    def _update(self, block: Block, work: Elements, row: Expr, number: Expr, live: Expr) -> Expr:
        """Return the elements' values in the update `number` of its sorted row."""
        windows, updates = self.windows, self.windows.anchor.inputs[2]
        flat = k.add(ix.mul(row, dim_expr(self.runs.stride)), number)
        flat, mask = k.broadcast(flat, live)
        source = block.let(k.cast(k.gather(self.runs.order[0], flat, mask), i64), "from")
        coordinates = dict(zip(windows.serial_dims, ix.delinearize(source, windows.serial_shape, {}), strict=True))
        coordinates |= {u: work.index[d] for u, d in windows.batching_dims.items()}
        coordinates |= {u: ZERO if d in windows.targets else work.index[d] for d, u in windows.window.items()}
        index = tuple(block.let(coordinates[u], "u") for u in range(updates.type.rank))
        return k.cast(work.em.value(block, updates, index, live), self.dtype)

    def _select_last(self, work: Elements, row: Expr, begin: Expr, end: Expr, initial: Expr) -> Expr:
        """Return the last update of the segment, else the initial value."""
        has_update = work.top.let(k.binary("lt", begin, end), "has")
        value = self._update(work.top, work, row, ix.sub(end, integer(1)), has_update)
        return k.select(has_update, k.spread(value, work.tile), initial)

    def _combined(self, work: Elements, row: Expr, begin: Expr, end: Expr) -> Expr:
        """Return the updates of the segment combined: one by one, of a long segment those before its next part."""
        top, size = work.top, integer(PART_UPDATES)
        length = top.let(k.sub(end, begin), "length")
        most = top.let(k.reduce("max", length), "most")
        if self.parts is None:
            return self._combined_one_by_one(work, row, begin, end, most)
        (buffer, _), shape = self.parts, self._parts_shape
        part = top.let(k.add(k.binary("div", begin, size), integer(1)), "part")
        is_long = top.let(k.binary("gt", length, size), "is_long")
        last = top.let(k.select(is_long, ix.mul(part, size), end), "last")
        # parts are compared, not their updates: turns for longer segments of other lanes would be beyond i32
        behind = top.let(k.binary("div", k.add(end, integer(PART_UPDATES - 1)), size), "behind")
        own = self._combined_one_by_one(work, row, begin, last, top.let(k.binary("min", most, size), "few"))
        at = _linear(work.index, self.windows.anchor.shape, self._free_dims)

        def combined_part(block: Block, offset: Expr) -> tuple[Expr, Expr]:
            number = block.let(k.add(part, offset), "number")
            live = block.let(k.binary("and", is_long, k.binary("lt", number, behind)), "live")
            flat = ix.add(ix.mul(k.add(ix.mul(row, dim_expr(shape[1])), number), dim_expr(product(shape[2:]))), at)
            return read_at(block, buffer, flat, live), live

        count = k.binary("div", k.add(most, integer(PART_UPDATES - 1)), size)
        parts = top.let(k.select(k.binary("gt", most, size), count, ZERO), "parts")
        return self.windows.combined(top.let(own, "own"), self._fold(work, parts, combined_part))

    def _combined_one_by_one(self, work: Elements, row: Expr, begin: Expr, end: Expr, most: Expr) -> Expr:
        """Return the sorted updates `begin` to `end`, at most `most`, combined."""

        def update(block: Block, offset: Expr) -> tuple[Expr, Expr]:
            number = block.let(k.add(begin, offset), "number")
            live = block.let(k.binary("lt", number, end), "live")
            return self._update(block, work, row, number, live), live

        return self._fold(work, most, update)

    def _fold(self, work: Elements, count: Expr, value_at: Callable[[Block, Expr], tuple[Expr, Expr]]) -> Expr:
        """Return the values of offsets below `count` combined. value_at: the values of a tile, and which exist."""
        kind = REDUCTION_KINDS[self.windows.op.kind]
        fn, identity = combining_op(kind, self.dtype), identity_of(kind, self.dtype)
        tile = (self.fold_updates, work.tile[1])
        acc = register(work.top, "acc", constant_tile(self.dtype, work.tile, identity))

        def loop_body(block: Block, folded: Expr) -> None:
            value, live = value_at(block, k.add(folded, k.lane_indices(self.fold_updates, 0)))
            value = k.select(live, k.spread(value, tile), constant_tile(self.dtype, tile, identity))
            block.store(acc, ZERO, k.binary(fn, k.load(acc, ZERO), k.reduce_axis(fn, value, 0)))

        work.top.loop("done", ZERO, count, self.fold_updates, loop_body)
        return k.load(acc, ZERO)


def _linear(index: Index, shape: Shape, dims: Sequence[int]) -> Expr:
    """The linear position of an index along `dims`."""
    position: Expr = ZERO
    for d in dims:
        position = ix.add(ix.mul(position, dim_expr(shape[d])), index[d])
    return position


__all__ = [
    "MAX_SERIAL_UPDATES",
    "REDUCTION_KINDS",
    "Windows",
    "has_few_updates",
    "lower_by_segments",
    "lower_to_targets",
]
