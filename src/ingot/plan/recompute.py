"""Less memory for more time: what is read again much later is computed again instead of being kept.

    y = f(x); z = g(y); ...; dz = h(y, ...)   ->   y = f(x); z = g(y); ...; y' = f(x); dz = h(y', ...)

The order of kernels is known, and with it what is alive at each of them. Where most is, that value goes whose bytes
take the least time to get back, until all fits. The kernel is the same one, so the bits are, too. Chen et al.,
"Training deep nets with sublinear memory cost" (2016); Kumar et al., "Efficient rematerialization for deep networks"
(2019), here with costs of fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from itertools import accumulate, pairwise
from math import inf

from ingot.ir.dims import estimate
from ingot.ir.node import Graph, Node
from ingot.ops.core.base import Category, category
from ingot.ops.group import Group, Recomputed
from ingot.plan.in_place import maker_of
from ingot.plan.storage import Arena, Storage, assign
from ingot.runtime.placement import align
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number

Cost = Callable[[Group], float]  # seconds
ArenaOf = Callable[[Storage], Arena]
_ROUNDS = 16
_SMALL = 16  # a value that is so many times smaller than another is kept for its sake
_DEEP = 12  # kernels that one value may take to be had again


@dataclass(frozen=True)
class Memory:
    """Bytes. kept: what is alive when the first result is there: of a step of training the loss, and what its backward
    pass reads. arena: of all intermediate values. Both as they are, and before. again: kernels that run once more.
    time: what all are thought to take, in terms of what they took before; measured: as kernels took, which the choice
    was made by."""

    kept: int
    arena: int
    kept_before: int
    arena_before: int
    again: int
    time: float
    measured: bool

    def __str__(self) -> str:
        kept = f"{self.kept / 1e6:.3f} of {self.kept_before / 1e6:.3f} MB kept for the backward pass"
        arena = f"arena {self.arena / 1e6:.3f} of {self.arena_before / 1e6:.3f} MB"
        return f"{kept}, {arena}, {self.again} kernels run again, about {self.time:.2f}x the time" + (
            " by their measured times" if self.measured else ""
        )


@dataclass(eq=False)
class _Buffer:
    """What a value lies in, the `turn`-th time that it is computed. owner: see `Place`; where: what must be apart."""

    owner: Node
    turn: int
    nbytes: int
    where: str
    makers: list[_Call] = field(default_factory=list)


@dataclass(eq=False)
class _Call:
    """One run of a group. reads, writes: the buffers of its operands and results; None for what is no intermediate.
    own: bytes of its temporaries; seconds: what it takes; loops: whether it runs graphs of its own, and so once."""

    node: Node
    turn: int
    reads: list[_Buffer | None]
    writes: list[_Buffer | None]
    own: int
    seconds: float
    loops: bool


@dataclass(frozen=True)
class _Limits:
    """Bytes of what is kept for the backward pass, and of the arena. Where the first is infinite, the second is what
    was asked for."""

    kept: float
    arena: float

    @property
    def whole(self) -> bool:
        return self.kept == inf

    def excess(self, kept: int, arena: int) -> float:
        return max(0, kept - self.kept) + max(0, arena - self.arena)


def within(
    graph: Graph, limit: float, cost: Cost, arena_of: ArenaOf, sparing: Callable[[], Graph] | None = None,
    measured: Callable[[Graph], Cost | None] | None = None,
) -> tuple[Graph, Memory]:  # fmt: skip
    """A fused graph within a limit: below 1 a share of what is kept for the backward pass now, in an arena that is no
    larger than now, and smaller if it can be; else bytes of the arena, which `arena_of` tells. sparing: makes a form of
    the graph whose loops keep less, for where this one is not had within the limit. measured: runs a graph that was
    found by `cost`, and gives the costs of its groups, by which the choice is made again; None where it cannot.

    Raises InputError where no choice that is found makes it that small.
    """
    check_number("memory", limit, "a share above 0 and below 1, or a number of bytes", lambda v: 0 < v < inf)

    def scheduled(graph: Graph, cost: Cost) -> _Schedule:
        return _Schedule(assign(graph, graph.lasting), cost, arena_of)

    first = scheduled(graph, cost)  # which fitting changes
    (kept, arena), whole = first.sizes(), first.seconds()
    limits = _Limits(inf, int(limit)) if limit >= 1 else _Limits(int(limit * kept), arena)
    found = _least(first, limits, scheduled)
    before = whole
    if limits.excess(*found.sizes()) and sparing is not None:
        first = scheduled(sparing(), cost)
        before = first.seconds()
        found = _least(first, limits, scheduled)
    if limits.excess(*found.sizes()):
        raise _refused(found, limits, kept)
    slower = before / (whole or 1.0)
    timed = measured(found.storage.graph) if measured is not None and found.again else None
    if timed is not None:
        first, found = scheduled(first.storage.graph, timed), scheduled(found.storage.graph, timed)
        before = first.seconds()
        other = _least(first, limits, scheduled)
        if not limits.excess(*other.sizes()) and other.seconds() < found.seconds():
            found = other
    time = slower * found.seconds() / (before or 1.0)
    return found.storage.graph, Memory(*found.sizes(), kept, arena, found.again, time, timed is not None)


def _least(first: _Schedule, limits: _Limits, scheduled: Callable[[Graph, Cost], _Schedule]) -> _Schedule:
    """One within the limits, whose arena is smaller than they ask where a share was asked for and that can be had; or
    the nearest that was found."""
    found = _fitted(first, limits, scheduled)
    if limits.whole or limits.excess(*found.sizes()) or found.linked.nbytes < limits.arena:
        return found
    smaller = replace(limits, arena=limits.arena - 1)
    other = _fitted(scheduled(found.storage.graph, found.cost), smaller, scheduled)
    return found if smaller.excess(*other.sizes()) else other


def _fitted(schedule: _Schedule, limits: _Limits, scheduled: Callable[[Graph, Cost], _Schedule]) -> _Schedule:
    """One within the limits, or the nearest that was found."""
    best, aim = schedule, limits
    rounds = _ROUNDS if schedule.floor(limits.whole) <= min(limits.kept, limits.arena) else 0
    for _ in range(rounds):
        if not limits.excess(*schedule.sizes()):
            return schedule
        calls = len(schedule.calls)
        fits = schedule.shrink(aim)
        if len(schedule.calls) == calls:
            break
        schedule = scheduled(schedule.graph(), schedule.cost)
        kept, arena = schedule.sizes()
        if limits.excess(kept, arena) < limits.excess(*best.sizes()):
            best = schedule
        elif not fits:
            break
        # gaps between buffers, and orders that differ: as much less is aimed at
        less = (max(0, size - most) // 2 for size, most in ((kept, limits.kept), (arena, limits.arena)))
        aim = _Limits(aim.kept - next(less), aim.arena - next(less))
    return best


def _refused(nearest: _Schedule, limits: _Limits, before: int) -> InputError:
    """before: bytes that are kept without a limit."""
    floor, (kept, arena) = nearest.floor(limits.whole), nearest.sizes()
    if kept > limits.kept:
        what, size, most = f"memory of what is kept, {before:,} bytes", kept, limits.kept
    else:
        what, size, most = "memory of the arena", arena, limits.arena
    alone = "one kernel needs at once" if limits.whole else "loops made, which run once"
    some = f"more than the {floor:,} bytes that {alone}" if floor > most else f"at least {size:,} bytes"
    return InputError(what, expected=some, got=f"{most:,}", fix="a smaller batch, or more memory")


class _Schedule:
    """Calls in order, which become more as values are computed again."""

    def __init__(self, storage: Storage, cost: Cost, arena_of: ArenaOf) -> None:
        self.storage, self.cost = storage, cost
        self.linked = arena_of(storage)  # what the runtime will need for the plan
        self.turns = 0
        self.users = storage.graph.uses()
        self.outside = {*storage.graph.inputs, *storage.graph.outputs}
        self.buffers: dict[Node, list[_Buffer]] = {}
        self.calls: list[_Call] = []
        for node in storage.order:
            if isinstance(node.op, Group):
                reads, writes = ([self._held(v) for v in values] for values in (node.inputs, node.results))
                plain = _plain(node)
                loops = any(category(n.op) is Category.CONTROL for n in plain.body.nodes())
                own = self.linked.own.get(node, 0)
                self.calls.append(call := _Call(node, 0, reads, writes, own, cost(plain), loops))
                for b in call.writes:
                    if b is not None:
                        b.makers.append(call)
        self._touch()

    def _held(self, value: Node) -> _Buffer | None:
        """The buffer of a value: one that lies over another, in place, counts as one of its own."""
        at = value
        while stored := next((u for u in self.users.get(at, ()) if self._lies_in(at, u)), None):
            at = stored
        held = self.storage.places.get(at)
        if (
            held is None
            or held.owner in self.outside
            or not (isinstance(op := maker_of(at).op, Group) or op.holds_operands)
        ):
            return None
        if at not in self.buffers:
            where = self.storage.halos.get(at, ("",))[0]
            nbytes = align(estimate(held.layout.span) * at.dtype.nbytes)
            self.buffers[at] = [_Buffer(at, 0, nbytes, where)]
        return self.buffers[at][0]

    def _lies_in(self, value: Node, user: Node) -> bool:
        places = self.storage.places
        inside = user.op.holds_operands and value in places and user in places
        return inside and places[value].owner is places[user].owner

    # --- what is alive when

    def _touch(self) -> None:
        """Note the calls that write or read each buffer, in order."""
        self.touched: dict[_Buffer, list[int]] = {}
        for at, call in enumerate(self.calls):
            for b in dict.fromkeys((*call.writes, *call.reads)):
                if b is not None:
                    self.touched.setdefault(b, []).append(at)

    def _alive(self) -> dict[str, list[int]]:
        """Bytes at each call, by what lies apart."""
        at_call = [call.own for call in self.calls]
        change = {"": [after - before for before, after in pairwise((0, *at_call, 0))]}
        for b, at in self.touched.items():
            row = change.setdefault(b.where, [0] * (len(self.calls) + 1))
            row[at[0]] += b.nbytes
            row[at[-1] + 1] -= b.nbytes
        return {where: list(accumulate(row[:-1])) for where, row in change.items()}

    def kept(self) -> int:
        """Bytes that are alive behind the call that makes the first result."""
        at = self._border()
        return sum(b.nbytes for b, touched in self.touched.items() if touched[0] <= at < touched[-1])

    def _border(self) -> int:
        graph = self.storage.graph
        made = maker_of(graph.outputs[len(graph.state)])
        return next((i for i, c in enumerate(self.calls) if c.node is made), 0)

    def sizes(self) -> tuple[int, int]:
        """What limits are about: bytes that are kept, and those of the linked arena."""
        return self.kept(), self.linked.nbytes

    def floor(self, whole: bool) -> int:
        """Bytes that no choice goes below: of the whole arena what the largest call has in hand, which may write over
        what it reads; of what is kept what loops made."""
        if not whole:
            at = self._border()
            kept = (b for b, touched in self.touched.items() if touched[0] <= at < touched[-1])
            return sum(b.nbytes for b in kept if any(c.loops for c in b.makers))
        most: dict[str, int] = {}
        for call in self.calls:
            hands = {b for b in call.reads if b is not None}, {b for b in call.writes if b is not None}
            for where in {"", *(b.where for held in hands for b in held)}:
                each = (sum(b.nbytes for b in held if b.where == where) for held in hands)
                most[where] = max(most.get(where, 0), max(each) + (0 if where else call.own))
        return sum(most.values())

    @property
    def again(self) -> int:
        """Kernels of the linked graph that run once more."""
        return sum(isinstance(node.op, Recomputed) for node in self.storage.order)

    def seconds(self) -> float:
        return sum(c.seconds for c in self.calls)

    def shrink(self, limits: _Limits) -> bool:
        """Compute values again until what is kept, what is alive and the gaps beside it fit; False where nothing helps,
        or has not for many choices."""
        gaps = max(0, self.linked.nbytes - sum(map(max, self._alive().values())))
        # where nothing helps at the crest, so much goes at the border before all is linked anew
        half = self.kept() // 2
        patience = left = 16 + len(self.calls) // 4
        least = inf
        while left:
            alive, kept = self._alive(), self.kept()
            excess = limits.excess(kept, sum(map(max, alive.values())) + gaps)
            if not excess:
                return True
            left = patience if excess < least else left - 1
            least = min(least, excess)
            # the last of the places where most is alive
            crests = {where: max(range(len(row)), key=lambda i, row=row: (row[i], i)) for where, row in alive.items()}
            border = dict.fromkeys(crests, self._border())
            if kept > limits.kept:
                choices = self._choices(border, idle=False)
                # what is idle at the crest, too, makes both smaller
                choices = [c for c in choices if self._idle(c.buffer, crests[c.buffer.where])] or choices
            else:
                choices = self._choices(crests, idle=True)
                if not choices and kept > half:
                    choices = self._choices(border, idle=True)
            if not choices:
                return False
            self._apply(min(choices, key=lambda c: c.price))
            self._touch()
        return False

    # --- one value

    def _choices(self, places: dict[str, int], idle: bool) -> list[_Choice]:
        """Those of all buffers that are alive at a call, its number by what lies apart. idle: and not used by it."""
        found: list[_Choice] = []
        for b, touched in self.touched.items():
            at = places[b.where]
            if self._idle(b, at) or (not idle and touched[0] <= at < touched[-1]):
                found += self._choice(b, at)
        return found

    def _idle(self, b: _Buffer, at: int) -> bool:
        """Whether a buffer only waits while a call runs."""
        touched = self.touched[b]
        return touched[0] <= at < touched[-1] and at not in touched

    def _choice(self, b: _Buffer, at: int) -> list[_Choice]:
        """What it takes to have `b` again behind call `at`; nothing where it cannot be had, or gains nothing."""
        due = next(i for i in self.touched[b] if i > at)
        choice = _Choice(b, due)
        if not self._needed(b, due, choice, at):
            return []
        gain = b.nbytes - choice.kept
        if gain <= 0:
            return []
        choice.price = sum(c.seconds for c in choice.calls) / gain
        return [choice]

    def _needed(self, b: _Buffer, due: int, choice: _Choice, at: int) -> bool:
        """Add the calls that make `b` again, those of their operands that are gone first."""
        if b in choice.made:
            return True
        choice.made.append(b)
        for call in b.makers:
            if len(choice.calls) > _DEEP or call.loops:
                return False
            for read in call.reads:
                if read is None or read in choice.made or self._version(read, due):
                    continue
                if read.nbytes * _SMALL <= b.nbytes:
                    choice.kept += read.nbytes if self.touched[read][-1] < at else 0
                elif not self._needed(read, due, choice, at):
                    return False
            if call not in choice.calls:
                choice.calls.append(call)
        return True

    def _version(self, b: _Buffer, at: int) -> _Buffer | None:
        """The newest copy of a value that is there before call `at` and still will be at it."""
        there = [v for v in self.buffers[b.owner] if self.touched[v][0] < at <= self.touched[v][-1]]
        return there[-1] if there else None

    def _apply(self, choice: _Choice) -> None:
        due = choice.due
        image = {b: self._copy(b) for b in choice.made}
        again: list[_Call] = []
        for call in choice.calls:
            reads = [r and (image.get(r) or self._version(r, due) or r) for r in call.reads]
            writes = [w and (image.get(w) or self._copy(w)) for w in call.writes]
            self.turns += 1
            new = replace(call, turn=self.turns, reads=reads, writes=writes)
            for w in writes:
                if w is not None:
                    w.makers.append(new)
            again.append(new)
        new_buffer = image[choice.buffer]
        for call in self.calls[due:]:
            call.reads = [new_buffer if r is choice.buffer else r for r in call.reads]
        self.calls[due:due] = again

    def _copy(self, b: _Buffer) -> _Buffer:
        versions = self.buffers[b.owner]
        new = _Buffer(b.owner, len(versions), b.nbytes, b.where)
        versions.append(new)
        return new

    def _again(self, call: _Call) -> Recomputed:
        plain = _plain(call.node)
        return Recomputed(plain.body, plain.kind, self.latest + call.turn)

    # --- back to a graph

    def graph(self) -> Graph:
        made: dict[tuple[Node, int], Node] = {}  # (a value, its buffer's turn) -> its image

        def image(value: Node, held: _Buffer | None) -> Node:
            key = (value, 0 if held is None else held.turn)
            if key not in made:
                # what lies in one buffer is of one turn; inputs and constants are what they were
                turns = (held if self._lies_in(i, value) else self._held(i) for i in value.inputs)
                made[key] = value.with_inputs([image(i, turn) for i, turn in zip(value.inputs, turns, strict=True)])
            return made[key]

        self.latest = max((c.node.op.turn for c in self.calls if isinstance(c.node.op, Recomputed)), default=0)
        for call in self.calls:
            inputs = [image(v, held) for v, held in zip(call.node.inputs, call.reads, strict=True)]
            node = (self._again(call) if call.turn else call.node.op)(*inputs, loc=call.node.loc)
            for value, new, held in zip(call.node.results, node.results, call.writes, strict=True):
                made[value, 0 if held is None else held.turn] = new
        old = self.storage.graph
        return old.with_outputs(tuple(image(y, None) for y in old.outputs))


@dataclass(eq=False)
class _Choice:
    """buffer: what is had again before call `due`. made: all that is, by `calls`. kept: bytes that stay longer for it.
    price: seconds for a byte."""

    buffer: _Buffer
    due: int
    made: list[_Buffer] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    kept: int = 0
    price: float = 0.0


def _plain(node: Node) -> Group:
    assert isinstance(node.op, Group)
    return Group(node.op.body, node.op.kind)
