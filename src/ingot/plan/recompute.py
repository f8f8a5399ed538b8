"""Rematerialization: values that are next read much later are recomputed instead of saved.

    y = f(x); z = g(y); ...; dz = h(y, ...)   ->   y = f(x); z = g(y); ...; y' = f(x); dz = h(y', ...)

The order of kernels determines which values are live at each of them. At the peak, the value that takes the least time
per byte to recompute is dropped, until the limit is met. A value is recomputed by the same kernel, so its bits are the
same. Chen et al., "Training deep nets with sublinear memory cost" (2016); Kumar et al., "Efficient rematerialization
for deep networks" (2019), here with costs of fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from itertools import accumulate, pairwise
from math import inf

from ingot.ir.dims import estimate
from ingot.ir.node import Graph, Node
from ingot.ops.group import Group, Recomputed
from ingot.plan.control import is_control
from ingot.plan.in_place import producer
from ingot.plan.storage import Arena, Storage, assign
from ingot.runtime.placement import align
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number

Cost = Callable[[Group], float]  # seconds
ArenaOf = Callable[[Storage], Arena]
_MAX_ROUNDS = 16
_MIN_SIZE_RATIO = 16  # an operand that is this many times smaller than the value is kept live instead of recomputed
_MAX_KERNELS = 12  # to recompute one value


@dataclass(frozen=True)
class Memory:
    """The memory of a graph with recomputation, and without it (`_before`).

    saved_bytes: live when the first result is computed; in a training step that is the loss, and these are the bytes
    that the backward pass reads. arena_bytes: of all intermediate values. time_ratio: estimated time relative to that
    without recomputation. is_measured: whether the estimate uses measured kernel times.
    """

    saved_bytes: int
    arena_bytes: int
    saved_bytes_before: int
    arena_bytes_before: int
    recomputed_kernels: int
    time_ratio: float
    is_measured: bool

    def __str__(self) -> str:
        saved_text = (
            f"{self.saved_bytes / 1e6:.3f} of {self.saved_bytes_before / 1e6:.3f} MB kept for the backward pass"
        )
        arena = f"arena {self.arena_bytes / 1e6:.3f} of {self.arena_bytes_before / 1e6:.3f} MB"
        return (
            f"{saved_text}, {arena}, {self.recomputed_kernels} kernels run again, about {self.time_ratio:.2f}x the time"
            + (" by their measured times" if self.is_measured else "")
        )


@dataclass(eq=False)
class _Buffer:
    """The buffer of a value. version: how often the value was computed before. owner: see `Place`. region: buffers of
    different regions never share memory. producers: the calls that write it."""

    owner: Node
    version: int
    nbytes: int
    region: str
    producers: list[_Call] = field(default_factory=list)


@dataclass(eq=False)
class _Call:
    """One run of a group. reads, writes: the buffers of its operands and results, None for values that are not
    intermediate. temp_bytes: of its temporaries. has_control_flow: whether it runs nested graphs or exchanges
    values, so that it cannot be recomputed."""

    node: Node
    version: int
    reads: list[_Buffer | None]
    writes: list[_Buffer | None]
    temp_bytes: int
    seconds: float
    has_control_flow: bool


@dataclass(frozen=True)
class _Limits:
    """Limits of the bytes saved for the backward pass, and of the arena."""

    saved_bytes: float
    arena_bytes: float

    @property
    def is_arena_limit(self) -> bool:
        """Whether the request limits the arena, and not the saved bytes."""
        return self.saved_bytes == inf

    def excess(self, saved_bytes: int, arena_bytes: int) -> float:
        return max(0, saved_bytes - self.saved_bytes) + max(0, arena_bytes - self.arena_bytes)


def fit_in_memory(
    graph: Graph, limit: float, cost: Cost, arena_of: ArenaOf, low_memory_graph: Callable[[], Graph] | None = None,
    measure_costs: Callable[[Graph], Cost | None] | None = None,
) -> tuple[Graph, Memory]:  # fmt: skip
    """A fused graph with recomputation that fits within a memory limit.

    limit: at least 1, bytes of the arena; below 1, a fraction of the bytes saved for the backward pass, in an arena
    that is no larger than without recomputation, and smaller if possible. low_memory_graph: builds a variant of the
    graph whose loops save less, which is used if the graph itself does not fit. measure_costs: runs a graph that was
    chosen by `cost` and returns the measured costs of its groups, with which the choice is repeated; None if it cannot
    run.

    Raises InputError if no choice fits.
    """
    check_number("memory", limit, "a share above 0 and below 1, or a number of bytes", lambda v: 0 < v < inf)

    def schedule(graph: Graph, cost: Cost) -> _Schedule:
        return _Schedule(assign(graph, graph.state_pairs), cost, arena_of)

    initial = schedule(graph, cost)
    (saved_bytes, arena_bytes), full_seconds = initial.sizes(), initial.seconds()
    limits = _Limits(inf, int(limit)) if limit >= 1 else _Limits(int(limit * saved_bytes), arena_bytes)
    result = _fit_tightly(initial, limits, schedule)
    initial_seconds = full_seconds
    if limits.excess(*result.sizes()) and low_memory_graph is not None:
        initial = schedule(low_memory_graph(), cost)
        initial_seconds = initial.seconds()
        result = _fit_tightly(initial, limits, schedule)
    if limits.excess(*result.sizes()):
        raise _limit_error(result, limits, saved_bytes)
    slowdown = initial_seconds / (full_seconds or 1.0)
    measured_cost = (
        measure_costs(result.storage.graph) if measure_costs is not None and result.recomputed_kernels else None
    )
    if measured_cost is not None:
        initial, result = schedule(initial.storage.graph, measured_cost), schedule(result.storage.graph, measured_cost)
        initial_seconds = initial.seconds()
        candidate = _fit_tightly(initial, limits, schedule)
        if not limits.excess(*candidate.sizes()) and candidate.seconds() < result.seconds():
            result = candidate
    time = slowdown * result.seconds() / (initial_seconds or 1.0)
    return result.storage.graph, Memory(
        *result.sizes(), saved_bytes, arena_bytes, result.recomputed_kernels, time, measured_cost is not None
    )


def _fit_tightly(initial: _Schedule, limits: _Limits, schedule: Callable[[Graph, Cost], _Schedule]) -> _Schedule:
    """A schedule within the limits, or the nearest one. If the saved bytes are limited, the arena is made smaller than
    its limit, too, if possible."""
    result = _fit(initial, limits, schedule)
    if limits.is_arena_limit or limits.excess(*result.sizes()) or result.arena.nbytes < limits.arena_bytes:
        return result
    tighter = replace(limits, arena_bytes=limits.arena_bytes - 1)
    candidate = _fit(schedule(result.storage.graph, result.cost), tighter, schedule)
    return result if tighter.excess(*candidate.sizes()) else candidate


def _fit(schedule: _Schedule, limits: _Limits, make_schedule: Callable[[Graph, Cost], _Schedule]) -> _Schedule:
    """A schedule within the limits, or the nearest one."""
    best, target = schedule, limits
    rounds = (
        _MAX_ROUNDS if schedule.min_bytes(limits.is_arena_limit) <= min(limits.saved_bytes, limits.arena_bytes) else 0
    )
    for _ in range(rounds):
        if not limits.excess(*schedule.sizes()):
            return schedule
        call_count = len(schedule.calls)
        fits = schedule.shrink(target)
        if len(schedule.calls) == call_count:
            break
        schedule = make_schedule(schedule.graph(), schedule.cost)
        saved_bytes, arena_bytes = schedule.sizes()
        if limits.excess(saved_bytes, arena_bytes) < limits.excess(*best.sizes()):
            best = schedule
        elif not fits:
            break
        # the linked plan has gaps and may order kernels differently: lower the targets by half the excess
        reductions = (
            max(0, size - limit) // 2
            for size, limit in ((saved_bytes, limits.saved_bytes), (arena_bytes, limits.arena_bytes))
        )
        target = _Limits(target.saved_bytes - next(reductions), target.arena_bytes - next(reductions))
    return best


def _limit_error(nearest: _Schedule, limits: _Limits, saved_without_limit: int) -> InputError:
    """The error for limits that `nearest` exceeds. saved_without_limit: bytes saved without recomputation."""
    min_bytes, (saved_bytes, arena_bytes) = nearest.min_bytes(limits.is_arena_limit), nearest.sizes()
    if saved_bytes > limits.saved_bytes:
        what, size, limit = f"memory of what is kept, {saved_without_limit:,} bytes", saved_bytes, limits.saved_bytes
    else:
        what, size, limit = "memory of the arena", arena_bytes, limits.arena_bytes
    cause = "one kernel needs at once" if limits.is_arena_limit else "loops made, which run once"
    expected = f"more than the {min_bytes:,} bytes that {cause}" if min_bytes > limit else f"at least {size:,} bytes"
    return InputError(what, expected=expected, got=f"{limit:,}", fix="a smaller batch, or more memory")


class _Schedule:
    """The calls of a graph in order, to which recomputations are added."""

    def __init__(self, storage: Storage, cost: Cost, arena_of: ArenaOf) -> None:
        self.storage, self.cost = storage, cost
        self.arena = arena_of(storage)
        self.version_count = 0
        self.users = storage.graph.uses()
        self.external = {*storage.graph.inputs, *storage.graph.outputs}
        self.buffers: dict[Node, list[_Buffer]] = {}
        self.calls: list[_Call] = []
        for node in storage.order:
            if isinstance(node.op, Group):
                reads, writes = ([self._buffer_of(v) for v in values] for values in (node.inputs, node.results))
                group = _first_run(node)
                temp_bytes = self.arena.temp_bytes.get(node, 0)
                self.calls.append(call := _Call(node, 0, reads, writes, temp_bytes, cost(group), is_control(node)))
                for b in call.writes:
                    if b is not None:
                        b.producers.append(call)
        self._collect_accesses()

    def _buffer_of(self, value: Node) -> _Buffer | None:
        """The buffer of a value, None if it is not an intermediate. A value written over another counts as a buffer of
        its own."""
        container = value
        while user := next((u for u in self.users.get(container, ()) if self._shares_storage(container, u)), None):
            container = user
        place = self.storage.places.get(container)
        if (
            place is None
            or place.owner in self.external
            or not (isinstance(op := producer(container).op, Group) or op.holds_operands)
        ):
            return None
        if container not in self.buffers:
            region = self.storage.halos.get(container, ("",))[0]
            nbytes = align(estimate(place.layout.span) * container.dtype.nbytes)
            self.buffers[container] = [_Buffer(container, 0, nbytes, region)]
        return self.buffers[container][0]

    def _shares_storage(self, value: Node, user: Node) -> bool:
        places = self.storage.places
        is_stored = user.op.holds_operands and value in places and user in places
        return is_stored and places[value].owner is places[user].owner

    # --- liveness

    def _collect_accesses(self) -> None:
        """Collect the calls that write or read each buffer, in order."""
        self.accesses: dict[_Buffer, list[int]] = {}
        for at, call in enumerate(self.calls):
            for b in dict.fromkeys((*call.writes, *call.reads)):
                if b is not None:
                    self.accesses.setdefault(b, []).append(at)

    def _live_bytes(self) -> dict[str, list[int]]:
        """Live bytes at each call, by region."""
        temp_bytes = [call.temp_bytes for call in self.calls]
        deltas = {"": [after - before for before, after in pairwise((0, *temp_bytes, 0))]}
        for b, at in self.accesses.items():
            row = deltas.setdefault(b.region, [0] * (len(self.calls) + 1))
            row[at[0]] += b.nbytes
            row[at[-1] + 1] -= b.nbytes
        return {region: list(accumulate(row[:-1])) for region, row in deltas.items()}

    def saved_bytes(self) -> int:
        """Bytes that are live after the call that computes the first result."""
        at = self._first_result_call()
        return sum(b.nbytes for b, accesses in self.accesses.items() if accesses[0] <= at < accesses[-1])

    def _first_result_call(self) -> int:
        graph = self.storage.graph
        writer = producer(graph.outputs[len(graph.state)])
        return next((i for i, c in enumerate(self.calls) if c.node is writer), 0)

    def sizes(self) -> tuple[int, int]:
        """The quantities that `_Limits` limits: saved bytes, and bytes of the linked arena."""
        return self.saved_bytes(), self.arena.nbytes

    def min_bytes(self, is_arena_limit: bool) -> int:
        """A lower bound for every choice. Of the arena: the operands of the largest call, which may write over what it
        reads. Of the saved bytes: the results of loops."""
        if not is_arena_limit:
            at = self._first_result_call()
            saved = (b for b, accesses in self.accesses.items() if accesses[0] <= at < accesses[-1])
            return sum(b.nbytes for b in saved if any(c.has_control_flow for c in b.producers))
        region_bytes: dict[str, int] = {}
        for call in self.calls:
            operands = {b for b in call.reads if b is not None}, {b for b in call.writes if b is not None}
            for region in {"", *(b.region for buffers in operands for b in buffers)}:
                totals = (sum(b.nbytes for b in buffers if b.region == region) for buffers in operands)
                region_bytes[region] = max(
                    region_bytes.get(region, 0), max(totals) + (0 if region else call.temp_bytes)
                )
        return sum(region_bytes.values())

    @property
    def recomputed_kernels(self) -> int:
        """The number of kernels in the linked graph that are recomputations."""
        return sum(isinstance(node.op, Recomputed) for node in self.storage.order)

    def seconds(self) -> float:
        return sum(c.seconds for c in self.calls)

    def shrink(self, limits: _Limits) -> bool:
        """Recompute values until the saved bytes, and the live bytes with their gaps, fit the limits. False if no
        candidate is left, or many in a row did not help."""
        gaps = max(0, self.arena.nbytes - sum(map(max, self._live_bytes().values())))
        # if nothing helps at the peak, this much is dropped at the first result before the graph is linked again
        half_saved = self.saved_bytes() // 2
        patience = attempts = 16 + len(self.calls) // 4
        best_excess = inf
        while attempts:
            live, saved = self._live_bytes(), self.saved_bytes()
            excess = limits.excess(saved, sum(map(max, live.values())) + gaps)
            if not excess:
                return True
            attempts = patience if excess < best_excess else attempts - 1
            best_excess = min(best_excess, excess)
            # the last call at the peak of each region
            peaks = {region: max(range(len(row)), key=lambda i, row=row: (row[i], i)) for region, row in live.items()}
            first_result = dict.fromkeys(peaks, self._first_result_call())
            if saved > limits.saved_bytes:
                candidates = self._candidates(first_result, idle_only=False)
                # values that are also idle at the peak reduce both
                candidates = [c for c in candidates if self._is_idle(c.buffer, peaks[c.buffer.region])] or candidates
            else:
                candidates = self._candidates(peaks, idle_only=True)
                if not candidates and saved > half_saved:
                    candidates = self._candidates(first_result, idle_only=True)
            if not candidates:
                return False
            self._apply(min(candidates, key=lambda c: c.seconds_per_byte))
            self._collect_accesses()
        return False

    # --- candidates

    def _candidates(self, calls: dict[str, int], idle_only: bool) -> list[_Candidate]:
        """The candidates among all buffers that are live at a call. calls: its index for each region. idle_only: skip
        buffers that the call uses."""
        candidates: list[_Candidate] = []
        for b, accesses in self.accesses.items():
            at = calls[b.region]
            if self._is_idle(b, at) or (not idle_only and accesses[0] <= at < accesses[-1]):
                candidates += self._candidate(b, at)
        return candidates

    def _is_idle(self, b: _Buffer, at: int) -> bool:
        """Whether a buffer is live at a call that does not use it."""
        accesses = self.accesses[b]
        return accesses[0] <= at < accesses[-1] and at not in accesses

    def _candidate(self, b: _Buffer, at: int) -> list[_Candidate]:
        """The candidate that recomputes `b` after call `at`; empty if it cannot be recomputed, or that saves no
        memory."""
        next_use = next(i for i in self.accesses[b] if i > at)
        candidate = _Candidate(b, next_use)
        if not self._add_producers(b, next_use, candidate, at):
            return []
        saved = b.nbytes - candidate.extra_bytes
        if saved <= 0:
            return []
        candidate.seconds_per_byte = sum(c.seconds for c in candidate.calls) / saved
        return [candidate]

    def _add_producers(self, b: _Buffer, next_use: int, candidate: _Candidate, at: int) -> bool:
        """Add the calls that recompute `b`, preceded by those that recompute operands which are no longer live."""
        if b in candidate.recomputed:
            return True
        candidate.recomputed.append(b)
        for call in b.producers:
            if len(candidate.calls) > _MAX_KERNELS or call.has_control_flow:
                return False
            for read in call.reads:
                if read is None or read in candidate.recomputed or self._live_version(read, next_use):
                    continue
                if read.nbytes * _MIN_SIZE_RATIO <= b.nbytes:
                    candidate.extra_bytes += read.nbytes if self.accesses[read][-1] < at else 0
                elif not self._add_producers(read, next_use, candidate, at):
                    return False
            if call not in candidate.calls:
                candidate.calls.append(call)
        return True

    def _live_version(self, b: _Buffer, at: int) -> _Buffer | None:
        """The newest version of a value that is computed before call `at` and still live there."""
        live = [v for v in self.buffers[b.owner] if self.accesses[v][0] < at <= self.accesses[v][-1]]
        return live[-1] if live else None

    def _apply(self, candidate: _Candidate) -> None:
        call_index = candidate.call_index
        versions = {b: self._new_version(b) for b in candidate.recomputed}
        recomputed: list[_Call] = []
        for call in candidate.calls:
            reads = [r and (versions.get(r) or self._live_version(r, call_index) or r) for r in call.reads]
            writes = [w and (versions.get(w) or self._new_version(w)) for w in call.writes]
            self.version_count += 1
            new = replace(call, version=self.version_count, reads=reads, writes=writes)
            for w in writes:
                if w is not None:
                    w.producers.append(new)
            recomputed.append(new)
        new_buffer = versions[candidate.buffer]
        for call in self.calls[call_index:]:
            call.reads = [new_buffer if r is candidate.buffer else r for r in call.reads]
        self.calls[call_index:call_index] = recomputed

    def _new_version(self, b: _Buffer) -> _Buffer:
        versions = self.buffers[b.owner]
        new = _Buffer(b.owner, len(versions), b.nbytes, b.region)
        versions.append(new)
        return new

    def _recomputed(self, call: _Call) -> Recomputed:
        group = _first_run(call.node)
        return Recomputed(group.body, group.kind, self.last_version + call.version)

    # --- conversion to a graph

    def graph(self) -> Graph:
        images: dict[tuple[Node, int], Node] = {}  # (value, version of its buffer) -> node of the new graph

        def image(value: Node, buffer: _Buffer | None) -> Node:
            key = (value, 0 if buffer is None else buffer.version)
            if key not in images:
                # all values in one buffer have the same version; inputs and constants do not change
                buffers = (buffer if self._shares_storage(i, value) else self._buffer_of(i) for i in value.inputs)
                images[key] = value.with_inputs(
                    [image(i, operand_buffer) for i, operand_buffer in zip(value.inputs, buffers, strict=True)]
                )
            return images[key]

        self.last_version = max((c.node.op.turn for c in self.calls if isinstance(c.node.op, Recomputed)), default=0)
        for call in self.calls:
            inputs = [image(v, buf) for v, buf in zip(call.node.inputs, call.reads, strict=True)]
            node = (self._recomputed(call) if call.version else call.node.op)(*inputs, loc=call.node.loc)
            for value, new, buf in zip(call.node.results, node.results, call.writes, strict=True):
                images[value, 0 if buf is None else buf.version] = new
        old = self.storage.graph
        return old.with_outputs(tuple(image(y, None) for y in old.outputs))


@dataclass(eq=False)
class _Candidate:
    """A recomputation of `buffer` before call `call_index`. recomputed: all buffers that `calls` recompute for it.
    extra_bytes: of operands that stay live longer."""

    buffer: _Buffer
    call_index: int
    recomputed: list[_Buffer] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    extra_bytes: int = 0
    seconds_per_byte: float = 0.0


def _first_run(node: Node) -> Group:
    """The group without its mark as a recomputation."""
    assert isinstance(node.op, Group)
    return Group(node.op.body, node.op.kind)
