"""Branches and loops whose values have sizes that only the run knows.

    case(f32[3], f32[n])            ->   (f32[max(3, n)], 3 or n), cut to that size
    while(f32[k]; f32[k + 2])       ->   while((f32[room], k); (f32[room], k + 2)), cut to the last size

What a body finds (places, members) is a size of its graph. A value that leaves it with such a size, or with another one
than it has in the other branch or came in with, has room for the most that it can be, and its size goes beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from ingot import ops
from ingot.frontends.shared.found import Found, Sizes, first
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import Dim, DimLike, bounds, dim_max, substitute, symbol, symbols_of
from ingot.ir.node import Graph, Input, Node, topological
from ingot.ir.types import TensorType, i64
from ingot.support.dataclass import dataclass
from ingot.support.limits import max_turns

Body = Callable[[Sequence[Node]], Sequence[Node]]
Place = tuple[int, int]  # a value and one of its axes
_ROUNDS = 4  # until no other size turns out to change


@dataclass(frozen=True)
class _Outcome:
    """What a body gives, and the sizes that it finds."""

    outputs: Sequence[Node]
    sizes: Sizes

    def most(self, d: DimLike, kept: frozenset[str] = frozenset()) -> DimLike:
        """The most that a size of the body can be, in sizes outside and those in `kept`. Raises Unsupported where it
        isn't known."""
        for name, (_, most) in reversed(self.sizes.items()):
            if name not in symbols_of(d) - kept:
                continue
            slope = substitute(d, {name: symbol(name) + 1}) - d
            low = bounds(slope)[0] if isinstance(slope, Dim) else slope
            if low is None or low < 0:
                raise Unsupported(f"a size {d} that leaves a branch or loop, whose most is not known")
            d = substitute(d, {name: most})
        return d

    def finds(self, d: DimLike) -> bool:
        return any(name in self.sizes for name in symbols_of(d))

    def graph(self, inputs: Sequence[Node], outputs: Sequence[Node]) -> Graph:
        plain = Graph(tuple(inputs), tuple(outputs))
        told = {name: self.sizes[name] for name in self.sizes if name in plain.free_symbols | {*plain.symbols()}}
        values = (value for value, _ in told.values())
        return replace(
            plain, outputs=(*outputs, *values), sizes=tuple((name, most) for name, (_, most) in told.items())
        )

    def roomy(self, rooms: Mapping[Place, DimLike]) -> list[Node]:
        """The outputs with room, then the sizes that those axes have."""
        wide = [
            ops.pad(x, (0,) * x.type.rank, tuple(rooms.get((k, a), d) - d for a, d in enumerate(x.shape)))
            if any(place == k for place, _ in rooms)
            else x
            for k, x in enumerate(self.outputs)
        ]
        return [*wide, *(ops.scalar(self.outputs[k].shape[a], i64) for k, a in rooms)]


def _within(found: Found, body: Callable[[], Sequence[Node]]) -> _Outcome:
    with found.within() as sizes:
        return _Outcome(tuple(body()), sizes)


def _foreign(outcomes: Iterable[_Outcome], own: Sequence[Node]) -> list[Node]:
    """Inputs of the graphs outside that bodies read."""
    known = set(own)
    roots = [n for o in outcomes for n in (*o.outputs, *(value for value, _ in o.sizes.values()))]
    return [n for n in topological(roots) if isinstance(n.op, Input) and n not in known]


def _cut(found: Found, values: Sequence[Node], rooms: Mapping[Place, DimLike]) -> list[Node]:
    """Values with room, behind which their sizes stand, at these sizes."""
    count = len(values) - len(rooms)
    out = list(values[:count])
    for ((k, a), room), size in zip(rooms.items(), values[count:], strict=True):
        out[k] = first(out[k], a, found.size(size, room, "rows"))
    return out


def _alike(what: str, a: Sequence[Node], b: Sequence[Node]) -> None:
    if [(n.dtype, n.type.rank) for n in a] != [(n.dtype, n.type.rank) for n in b]:
        raise Unsupported(f"{what} {_show(a)} and {_show(b)}")


def _show(nodes: Sequence[Node]) -> str:
    return f"({', '.join(str(n.type) for n in nodes)})"


def case(
    found: Found, index: Node, branches: Sequence[Callable[[], Sequence[Node]]], inner: Sequence[Node],
    operands: Sequence[Node], loc: str = "",
) -> Sequence[Node]:  # fmt: skip
    """The results of the branch that `index` says. inner: inputs of the branches' graphs, which are `operands`.

    Raises Unsupported for branches that give other numbers, dtypes or ranks of results.
    """
    outcomes = [_within(found, b) for b in branches]
    like = outcomes[0].outputs
    rooms: dict[Place, DimLike] = {}
    for o in outcomes[1:]:
        _alike("branches that give", like, o.outputs)
    if not like:
        return ()
    for k, x in enumerate(like):
        for a, d in enumerate(x.shape):
            sizes = [o.outputs[k].shape[a] for o in outcomes]
            if any(s != d or o.finds(s) for s, o in zip(sizes, outcomes, strict=True)):
                room: DimLike = 0
                for s, o in zip(sizes, outcomes, strict=True):
                    room = dim_max(room, o.most(s))
                rooms[k, a] = room
    more = _foreign(outcomes, inner)
    graphs = tuple(o.graph((*inner, *more), o.roomy(rooms)) for o in outcomes)
    return _cut(found, ops.Case(graphs)(index, *operands, *more, loc=loc).results, rooms)


@dataclass
class _Loop:
    """rooms: of the values' axes whose sizes change."""

    found: Found
    starts: Sequence[Node]
    turns: DimLike
    loc: str
    rooms: dict[Place, DimLike] = field(default_factory=dict[Place, DimLike])

    def inputs(self) -> list[Node]:
        """What the graphs take: values with room, then sizes."""
        types = [
            x.type.with_shape(tuple(self.rooms.get((k, a), d) for a, d in enumerate(x.shape)))
            for k, x in enumerate(self.starts)
        ]
        types += [TensorType(i64)] * len(self.rooms)
        return [Input(f"{self.loc}.carried{i}", t)() for i, t in enumerate(types)]

    def outcome(self, body: Body, inputs: Sequence[Node]) -> _Outcome:
        return _within(self.found, lambda: body(_cut(self.found, inputs, self.rooms)))

    def settle(self, body: Body) -> None:
        """Find the axes whose sizes change, and the room that each needs."""
        for _ in range(_ROUNDS):
            inputs = self.inputs()
            with self.found.within() as sizes:
                seen = _cut(self.found, inputs, self.rooms)
                made = _Outcome(tuple(body(seen)), sizes)
            _alike("a loop that takes and gives", seen, made.outputs)
            new = [
                (k, a)
                for k, (x, y) in enumerate(zip(seen, made.outputs, strict=True))
                for a, (d, e) in enumerate(zip(x.shape, y.shape, strict=True))
                if d != e and (k, a) not in self.rooms
            ]
            if not new:
                break
            # a room of any size, as long as it is not known how the size grows
            self.rooms |= {place: symbol(f"room.{place[0]}.{place[1]}") for place in new}
        else:
            raise Unsupported("a loop whose values' sizes change in each other's wake")
        carried = frozenset().union(*(symbols_of(seen[k].shape[a]) for k, a in self.rooms))
        self.rooms = {place: self.room(place, seen, made, carried) for place in self.rooms}

    def room(self, place: Place, seen: Sequence[Node], made: _Outcome, carried: frozenset[str]) -> DimLike:
        """carried: the sizes before a turn of what changes its size."""
        k, a = place
        start, before = self.starts[k].shape[a], seen[k].shape[a]
        most = made.most(made.outputs[k].shape[a], carried)
        if not symbols_of(most) & carried:
            return dim_max(start, most)
        growth = most - before
        if symbols_of(growth) & carried:
            raise Unsupported(f"a loop in which the size {before} becomes {most}")
        return start + dim_max(growth, 0) * self.turns


def loop(
    found: Found, starts: Sequence[Node], cond: Callable[[Sequence[Node]], Node], body: Body, loc: str = "",
    turns: DimLike | None = None, outer: Mapping[Node, Node] | None = None,
) -> Sequence[Node]:  # fmt: skip
    """body(...body(starts)) as long as cond holds.

    outer: what the bodies read from outside, by the inputs that it is inside.
    turns: the most that there are, where it is known; else what the limits say, for values whose sizes grow.
    """
    made = _Loop(found, starts, max_turns() if turns is None else turns, loc)
    made.settle(body)
    inputs = made.inputs()
    test = made.outcome(lambda values: (cond(values),), inputs)
    step = made.outcome(body, inputs)
    held = dict(outer or {})
    more = _foreign((test, step), (*inputs, *held))
    names = (*inputs, *held, *more)
    given = _Outcome(starts, {}).roomy(made.rooms)
    op = ops.While(test.graph(names, test.outputs), step.graph(names, (*step.roomy(made.rooms), *held, *more)))
    return _cut(found, op(*given, *held.values(), *more, loc=loc).results[: len(inputs)], made.rooms)
