"""Scatters of whole windows: updates are ordered by where they go, and each element takes those that are its own.

    order = places of the updates, by target;   begins[t] = how many have targets before t
    for a row of results at:   out[at] = x[at] + updates[order[begins[at]:begins[at + 1]]]

Updates of one target keep their order, and are folded several at a time, so that the bits are always the same.
"""

from __future__ import annotations

from functools import cached_property

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Tile
from ingot.ir.node import Node
from ingot.ir.types import DType, Shape, i32, i64
from ingot.ops import Scatter
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index
from ingot.schedule.folds import accumulator, combining
from ingot.schedule.gpu.blocks import Elements, Group, Span, constant_tile, power_of_two, read_at, register
from ingot.schedule.gpu.digits import digits, ordered_by_digits
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.merging import LONGEST, Lines, Runs, halved, merges, ordered
from ingot.schedule.group_io import bind_result
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.support.dataclass import dataclass

FEW = 32  # updates that each element asks one by one
DEEP, LEAST = 128, 8  # updates that are folded at a time
ELEMENTS = 4096  # of a tile of updates
SHARED = 4  # elements of one target from which on they are told where its updates begin
DIGITS = 2  # that are ordered by while eight runs are merged
TARGETS = 256  # of a program that finds where they begin
FOLDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}  # how kinds of scatters are called as reductions


@dataclass(frozen=True)
class Windows:
    """A scatter's updates: windows, for each of the coordinates of `batch`."""

    anchor: Node

    @property
    def op(self) -> Scatter:
        assert isinstance(self.anchor.op, Scatter)
        return self.anchor.op

    @cached_property
    def window(self) -> dict[int, int]:
        """Dimensions of the operand that windows extend along, and theirs of the updates."""
        gone = (*self.op.inserted_window_dims, *self.op.input_batching_dims)
        kept = (d for d in range(self.anchor.type.rank) if d not in gone)
        return dict(zip(kept, self.op.update_window_dims, strict=True))

    @property
    def batch(self) -> list[int]:
        """Dimensions of the updates of which each has a window."""
        return [d for d in range(self.anchor.inputs[2].type.rank) if d not in self.op.update_window_dims]

    @cached_property
    def own(self) -> dict[int, int]:
        """Those whose coordinates are the element's along these dimensions of the operand."""
        batch, op = self.batch, self.op
        dims = zip(op.input_batching_dims, op.scatter_indices_batching_dims, strict=True)
        return {batch[b - (b > op.index_vector_dim)]: d for d, b in dims}

    @property
    def serial(self) -> list[int]:
        """The others, in which updates follow one another."""
        return [u for u in self.batch if u not in self.own]

    @property
    def serial_shape(self) -> Shape:
        return tuple(self.anchor.inputs[2].shape[u] for u in self.serial)

    @property
    def are_whole(self) -> bool:
        """Whether a window is where its indices say and nowhere else."""
        updates = self.anchor.inputs[2]
        return all(d not in self.window or updates.shape[self.window[d]] == 1 for d in self.targets)

    @property
    def are_apart(self) -> bool:
        """Whether no two updates meet, and nothing is left of what was there."""
        return self.op.kind == "set" and (self.op.unique or self.op.has_one_window(self.anchor.inputs[2].shape))

    @property
    def targets(self) -> tuple[int, ...]:
        """Dimensions of the operand that the components of indices are places along."""
        return self.op.scatter_dims_to_operand_dims

    def start(self, em: Emitter, block: Block, place: dict[int, Expr], component: int, mask: Expr | None) -> Expr:
        """A component of the indices for the update at `place`, coordinates of `batch`."""
        indices = self.anchor.inputs[1]
        where = [place[u] for u in self.batch]
        if self.op.index_vector_dim < indices.type.rank:
            where.insert(self.op.index_vector_dim, integer(component))
        return block.let(k.cast(em.value(block, indices, tuple(where), mask), i64), "s")


def by_segments(windows: Windows, group: Group, machine: Machine) -> Lowered:
    """The scatter by the order of its updates' targets."""
    temps: list[DimLike] = []
    steps, runs = _ordered(windows, group, machine, temps)
    begins: tuple[Buffer, Arg] | None = None
    if estimate(product(windows.anchor.shape[d] for d in windows.window)) >= SHARED:
        begins = Buffer("begins", i32, writable=True), Arg("temp", len(temps))
        step, nbytes = _begins(windows, group, runs, begins)
        steps, temps = [*steps, step], [*temps, nbytes]
    work = _Segments(windows, group, runs, machine, begins)
    return Lowered((*steps, work.step()), tuple(temps))


def _ordered(windows: Windows, group: Group, machine: Machine, temps: list[DimLike]) -> tuple[list[Step], Runs]:
    """The updates by their targets: digit by digit where there are few targets for that many updates."""
    lines = _targets(windows, group)
    most = product(windows.anchor.shape[d] for d in windows.targets)  # of a key: what lands outside
    if isinstance(most, int) and digits(most.bit_length()) < DIGITS * merges(lines.length):
        return ordered_by_digits(lines, most.bit_length(), group, machine, temps)
    return ordered(lines, group, temps, keyed=True)


def _begins(windows: Windows, group: Group, runs: Runs, begins: tuple[Buffer, Arg]) -> tuple[Step, DimLike]:
    """Where each target's updates begin in their line, and behind the last one where they end; its bytes."""
    top, chunk = Block(), k.var("chunk")
    each = product(windows.anchor.shape[d] for d in windows.targets) + 1
    total = runs.lines.count * each
    span = Span.of(top, k.mul(chunk, integer(TARGETS)), TARGETS, total, 1)
    line, target = span.index(top, (runs.lines.count, each))
    found = _search(top, runs, line, target, span.in_bounds, (1, TARGETS))
    top.store(begins[0], span.position, found, span.in_bounds)
    step = group.step("segments", chunk, ceildiv(total, TARGETS), top, *runs.buffers, begins)
    return step, total * i32.nbytes


def _search(top: Block, runs: Runs, line: Expr, target: Expr, live: Expr | None, tile: Tile) -> Expr:
    """How many of a line's updates have targets before these."""
    (keys,) = runs.keys
    found = register(top, "found", constant_tile(i32, tile))
    base = top.let(ix.sub(ix.mul(line, dim_expr(runs.stride)), integer(1)), "base")
    length, wanted = k.cast(dim_expr(runs.lines.length), i32), top.let(k.cast(target, keys.dtype), "wanted")

    def search(block: Block, step: Expr) -> None:
        so_far = block.let(k.load(found, ZERO), "so_far")
        beyond = block.let(k.add(so_far, step), "beyond")
        inside = block.let(k.spread(ix.both(live, k.binary("le", beyond, length)), tile), "inside")
        flat = k.spread(k.add(base, k.cast(beyond, i64)), tile)
        before = k.binary("lt", block.let(k.gather(keys, flat, inside)), wanted)
        block.store(found, ZERO, k.select(k.binary("and", inside, before), beyond, so_far))

    halved(top, runs.lines.length, search)
    return top.let(k.load(found, ZERO), "place")


def _targets(windows: Windows, group: Group) -> Lines:
    """Where updates go as one number each: the operand's place along all indexed dimensions; behind the last one, what
    lands outside."""
    x = windows.anchor.inputs[0]
    sizes = tuple(x.shape[d] for d in windows.targets)
    count = product(sizes)
    dtype = i32 if isinstance(count, int) and count < LONGEST else i64
    own = {u: x.shape[d] for u, d in windows.own.items()}
    emitters: dict[Block, Emitter] = {}

    def read(block: Block, line: Expr, place: Expr, mask: Expr | None) -> list[Expr]:
        em = emitters.setdefault(block.root, group.emitter())
        at = dict(zip(own, ix.delinearize(line, tuple(own.values()), {}), strict=True))
        at |= zip(windows.serial, ix.delinearize(place, windows.serial_shape, {}), strict=True)
        target: Expr = ZERO
        inside: Expr | None = None
        for component, size in enumerate(sizes):
            start = windows.start(em, block, at, component, mask)
            fits = k.binary("and", k.binary("ge", start, ZERO), k.binary("lt", start, dim_expr(size)))
            inside = ix.both(inside, fits)
            target = ix.add(ix.mul(target, dim_expr(size)), start)
        if inside is not None:
            target = k.select(inside, target, dim_expr(count))
        return [block.let(k.cast(target, dtype), "target")]

    return Lines(product(own.values()), product(windows.serial_shape), read, (dtype,))


@dataclass(frozen=True)
class _Segments:
    """The kernel that folds, for each element, the updates of its target. runs: of these. begins: where those of each
    target begin; None: each element searches them."""

    windows: Windows
    group: Group
    runs: Runs
    machine: Machine
    begins: tuple[Buffer, Arg] | None

    @property
    def dtype(self) -> DType:
        return accumulator(self.windows.anchor.dtype)

    @property
    def depth(self) -> int:
        """Updates that are folded at a time: several times as many as an element has, as some have more."""
        x = self.windows.anchor.inputs[0]
        targets = max(1, estimate(product(x.shape[d] for d in self.windows.targets)))
        return max(LEAST, min(DEEP, power_of_two(4 * estimate(self.runs.lines.length) // targets)))

    def step(self) -> Step:
        anchor, op = self.windows.anchor, self.windows.op
        work = Elements.of(self.group, anchor, self.machine, max_size=min(256, ELEMENTS // self.depth))
        line, target = self._whose(work.index)
        line, target = work.top.let(line, "line"), work.top.let(target, "target")
        first = work.em.value(work.top, anchor.inputs[0], work.index, work.span.in_bounds)
        first = k.spread(k.cast(first, self.dtype), work.tile)
        begin, end = (self._begin(work, line, t) for t in (target, ix.add(target, integer(1))))
        combine = self._last if op.kind == "set" else self._folded
        result = combine(work, line, begin, end, first)
        bind_result(work.em, work.top, anchor, work.top.let(k.cast(result, anchor.dtype), "r"))
        return work.step("scatter", *self.runs.buffers, *([] if self.begins is None else [self.begins]))

    def _whose(self, index: Index) -> tuple[Expr, Expr]:
        """The line of updates that an element at `index` has, and its target."""
        x, own = self.windows.anchor.inputs[0], self.windows.own.values()
        line: Expr = ZERO
        for d in own:
            line = ix.add(ix.mul(line, dim_expr(x.shape[d])), index[d])
        target: Expr = ZERO
        for d in self.windows.targets:
            target = ix.add(ix.mul(target, dim_expr(x.shape[d])), index[d])
        return line, target

    def _begin(self, work: Elements, line: Expr, target: Expr) -> Expr:
        """Where the updates of these targets begin."""
        if self.begins is None:
            found = _search(work.top, self.runs, line, target, work.span.in_bounds, work.tile)
        else:
            each = product(self.windows.anchor.shape[d] for d in self.windows.targets) + 1
            flat = k.spread(ix.add(ix.mul(line, dim_expr(each)), target), work.tile)
            found = read_at(work.top, self.begins[0], flat, work.span.in_bounds)
        return work.top.let(k.cast(found, i64), "begin")

    def _update(self, block: Block, work: Elements, line: Expr, number: Expr, live: Expr) -> Expr:
        """The elements' own in the update that is the `number`th of its line."""
        windows, updates = self.windows, self.windows.anchor.inputs[2]
        flat = k.add(ix.mul(line, dim_expr(self.runs.stride)), number)
        flat, mask = k.alike(flat, live)
        place = block.let(k.cast(k.gather(self.runs.order[0], flat, mask), i64), "from")
        at = dict(zip(windows.serial, ix.delinearize(place, windows.serial_shape, {}), strict=True))
        at |= {u: work.index[d] for u, d in windows.own.items()}
        at |= {u: ZERO if d in windows.targets else work.index[d] for d, u in windows.window.items()}
        index = tuple(block.let(at[u], "u") for u in range(updates.type.rank))
        return k.cast(work.em.value(block, updates, index, live), self.dtype)

    def _last(self, work: Elements, line: Expr, begin: Expr, end: Expr, first: Expr) -> Expr:
        """The last of several wins."""
        has = work.top.let(k.binary("lt", begin, end), "has")
        value = self._update(work.top, work, line, ix.sub(end, integer(1)), has)
        return k.select(has, k.spread(value, work.tile), first)

    def _folded(self, work: Elements, line: Expr, begin: Expr, end: Expr, first: Expr) -> Expr:
        kind = FOLDS[self.windows.op.kind]
        fn, nothing = combining(kind, self.dtype), identity_of(kind, self.dtype)
        tile = (self.depth, work.tile[1])
        acc = register(work.top, "acc", first)
        most = work.top.let(k.reduce("max", k.sub(end, begin)), "most")

        def turn(block: Block, done: Expr) -> None:
            number = block.let(k.add(begin, k.add(done, k.positions(self.depth, 0))), "number")
            live = block.let(k.binary("lt", number, end), "live")
            value = k.spread(self._update(block, work, line, number, live), tile)
            value = k.select(live, value, constant_tile(self.dtype, tile, nothing))
            block.store(acc, ZERO, k.binary(fn, k.load(acc, ZERO), k.reduce_along(fn, value, 0)))

        work.top.loop("done", ZERO, most, self.depth, turn)
        return k.load(acc, ZERO)


__all__ = ["FEW", "FOLDS", "Windows", "by_segments"]
