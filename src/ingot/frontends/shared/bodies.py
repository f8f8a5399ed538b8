"""Branches and loops whose values have sizes that are known only at run time.

    case(f32[3], f32[n])            ->   (f32[max(3, n)], 3 or n), cut to that size
    while(f32[k]; f32[k + 2])       ->   while((f32[room], k); (f32[room], k + 2)), cut to the last size

A size that a body computes (a number of true elements, of unique ones) is a size of the body's graph. A value that
leaves the body with such a size, or whose size differs between branches or iterations, is padded to the maximum of its
size (its room), and its actual size is one more result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from ingot import ops
from ingot.frontends.shared.computed_sizes import ComputedSizes, Sizes, first
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import Dim, DimLike, bounds, dim_max, substitute, symbol, symbols_of
from ingot.ir.node import Graph, Input, Node, topological
from ingot.ir.types import TensorType, i64
from ingot.support.dataclass import dataclass
from ingot.support.limits import max_run_time_iterations, max_run_time_size

Body = Callable[[Sequence[Node]], Sequence[Node]]
Place = tuple[int, int]  # the index of a value, and one of its axes
_MAX_ROUNDS = 4  # of tracing a loop's body until no further size changes


@dataclass(frozen=True)
class _Outcome:
    """The results of a body, and the sizes that it computes."""

    outputs: Sequence[Node]
    sizes: Sizes

    def max_size(self, d: DimLike, kept_symbols: frozenset[str] = frozenset()) -> DimLike:
        """The maximum of a size of the body, in terms of outer sizes and of `kept_symbols`. Raises Unsupported where
        it is not known."""
        for name, (_, max_size) in reversed(self.sizes.items()):
            if name not in symbols_of(d) - kept_symbols:
                continue
            slope = substitute(d, {name: symbol(name) + 1}) - d
            low = bounds(slope)[0] if isinstance(slope, Dim) else slope
            if low is None or low < 0:
                raise Unsupported(f"a size {d} that leaves a branch or loop, whose maximum is not known")
            d = substitute(d, {name: max_size})
        return d

    def finds(self, d: DimLike) -> bool:
        return any(name in self.sizes for name in symbols_of(d))

    def graph(self, inputs: Sequence[Node], outputs: Sequence[Node]) -> Graph:
        plain = Graph(tuple(inputs), tuple(outputs))
        mentioned = {name: self.sizes[name] for name in self.sizes if name in plain.free_symbols | {*plain.symbols()}}
        values = (value for value, _ in mentioned.values())
        return replace(
            plain,
            outputs=(*outputs, *values),
            sizes=tuple((name, max_size) for name, (_, max_size) in mentioned.items()),
        )

    def roomy(self, rooms: Mapping[Place, DimLike]) -> list[Node]:
        """The outputs, padded to their rooms, then the actual sizes of the padded axes."""
        wide = [
            ops.pad(x, (0,) * x.type.rank, tuple(rooms.get((k, a), d) - d for a, d in enumerate(x.shape)))
            if any(place == k for place, _ in rooms)
            else x
            for k, x in enumerate(self.outputs)
        ]
        return [*wide, *(ops.scalar(self.outputs[k].shape[a], i64) for k, a in rooms)]


def _outcome_of(computed_sizes: ComputedSizes, body: Callable[[], Sequence[Node]]) -> _Outcome:
    with computed_sizes.inner_graph() as sizes:
        return _Outcome(tuple(body()), sizes)


def _outer_inputs(outcomes: Iterable[_Outcome], inner_inputs: Sequence[Node]) -> list[Node]:
    """Inputs of outer graphs that bodies read."""
    inner_inputs_set = set(inner_inputs)
    roots = [n for o in outcomes for n in (*o.outputs, *(value for value, _ in o.sizes.values()))]
    return [n for n in topological(roots) if isinstance(n.op, Input) and n not in inner_inputs_set]


def _cut_to_size(computed_sizes: ComputedSizes, values: Sequence[Node], rooms: Mapping[Place, DimLike]) -> list[Node]:
    """Padded values, cut to their actual sizes, which follow them in `values`."""
    count = len(values) - len(rooms)
    results = list(values[:count])
    for ((k, a), room), size in zip(rooms.items(), values[count:], strict=True):
        results[k] = first(results[k], a, computed_sizes.size(size, room, "rows"))
    return results


def _check_types(what: str, a: Sequence[Node], b: Sequence[Node]) -> None:
    if [(n.dtype, n.type.rank) for n in a] != [(n.dtype, n.type.rank) for n in b]:
        raise Unsupported(f"{what} {_show(a)} and {_show(b)}")


def _show(nodes: Sequence[Node]) -> str:
    return f"({', '.join(str(n.type) for n in nodes)})"


def case(
    computed_sizes: ComputedSizes, index: Node, branches: Sequence[Callable[[], Sequence[Node]]], inner: Sequence[Node],
    operands: Sequence[Node], loc: str = "",
) -> Sequence[Node]:  # fmt: skip
    """The results of the branch with number `index`. inner: the inputs of the branches' graphs, bound to `operands`.

    Raises Unsupported for branches whose results differ in number, dtype or rank.
    """
    outcomes = [_outcome_of(computed_sizes, b) for b in branches]
    like = outcomes[0].outputs
    rooms: dict[Place, DimLike] = {}
    for o in outcomes[1:]:
        _check_types("branches that give", like, o.outputs)
    if not like:
        return ()
    for k, x in enumerate(like):
        for a, d in enumerate(x.shape):
            sizes = [o.outputs[k].shape[a] for o in outcomes]
            if any(s != d or o.finds(s) for s, o in zip(sizes, outcomes, strict=True)):
                room: DimLike = 0
                for s, o in zip(sizes, outcomes, strict=True):
                    room = dim_max(room, o.max_size(s))
                rooms[k, a] = room
    captured = _outer_inputs(outcomes, inner)
    graphs = tuple(o.graph((*inner, *captured), o.roomy(rooms)) for o in outcomes)
    return _cut_to_size(computed_sizes, ops.Case(graphs)(index, *operands, *captured, loc=loc).results, rooms)


@dataclass
class _Loop:
    """rooms: maximum sizes of the axes whose sizes change between iterations."""

    computed_sizes: ComputedSizes
    starts: Sequence[Node]
    max_iterations: DimLike
    loc: str
    rooms: dict[Place, DimLike] = field(default_factory=dict[Place, DimLike])

    def inputs(self) -> list[Node]:
        """The inputs of the graphs: padded values, then their actual sizes."""
        types = [
            x.type.with_shape(tuple(self.rooms.get((k, a), d) for a, d in enumerate(x.shape)))
            for k, x in enumerate(self.starts)
        ]
        types += [TensorType(i64)] * len(self.rooms)
        return [Input(f"{self.loc}.carried{i}", t)() for i, t in enumerate(types)]

    def outcome(self, body: Body, inputs: Sequence[Node]) -> _Outcome:
        return _outcome_of(self.computed_sizes, lambda: body(_cut_to_size(self.computed_sizes, inputs, self.rooms)))

    def settle(self, body: Body) -> None:
        """Find the axes whose sizes change, and the room that each needs."""
        for _ in range(_MAX_ROUNDS):
            inputs = self.inputs()
            with self.computed_sizes.inner_graph() as sizes:
                before = _cut_to_size(self.computed_sizes, inputs, self.rooms)
                outcome = _Outcome(tuple(body(before)), sizes)
            _check_types("a loop that takes and gives", before, outcome.outputs)
            new = [
                (k, a)
                for k, (x, y) in enumerate(zip(before, outcome.outputs, strict=True))
                for a, (d, e) in enumerate(zip(x.shape, y.shape, strict=True))
                if d != e and (k, a) not in self.rooms
            ]
            if not new:
                break
            # a symbolic room until it is known how the size grows
            self.rooms |= {place: symbol(f"room.{place[0]}.{place[1]}") for place in new}
        else:
            raise Unsupported("a loop whose values' sizes change in each other's wake")
        carried = frozenset().union(*(symbols_of(before[k].shape[a]) for k, a in self.rooms))
        self.rooms = {place: self.room(place, before, outcome, carried) for place in self.rooms}

    def room(self, place: Place, carried_values: Sequence[Node], outcome: _Outcome, carried: frozenset[str]) -> DimLike:
        """carried: symbols of the sizes, before an iteration, of the values that change size."""
        k, a = place
        start, before = self.starts[k].shape[a], carried_values[k].shape[a]
        max_size = outcome.max_size(outcome.outputs[k].shape[a], carried)
        if not symbols_of(max_size) & carried:
            return dim_max(start, max_size)
        growth: DimLike | None = max_size - before
        if symbols_of(growth) & carried:
            growth = bounds(growth)[1]
        if growth is None:  # no sum of numbers, such as twice the size: the run checks it
            return dim_max(start, max_run_time_size())
        return start + dim_max(growth, 0) * self.max_iterations


def loop(
    computed_sizes: ComputedSizes, starts: Sequence[Node], cond: Callable[[Sequence[Node]], Node], body: Body,
    loc: str = "", max_iterations: DimLike | None = None, outer: Mapping[Node, Node] | None = None,
) -> Sequence[Node]:  # fmt: skip
    """body(...body(starts)) as long as cond holds.

    outer: outer values that the bodies read, by the input that stands for each inside.
    max_iterations: an upper bound where one is known; else the configured limit, for values whose sizes grow.
    """
    state = _Loop(computed_sizes, starts, max_run_time_iterations() if max_iterations is None else max_iterations, loc)
    state.settle(body)
    inputs = state.inputs()
    test = state.outcome(lambda values: (cond(values),), inputs)
    step = state.outcome(body, inputs)
    outer_values = dict(outer or {})
    captured = _outer_inputs((test, step), (*inputs, *outer_values))
    names = (*inputs, *outer_values, *captured)
    operands = _Outcome(starts, {}).roomy(state.rooms)
    op = ops.While(
        test.graph(names, test.outputs), step.graph(names, (*step.roomy(state.rooms), *outer_values, *captured))
    )
    return _cut_to_size(
        computed_sizes, op(*operands, *outer_values.values(), *captured, loc=loc).results[: len(inputs)], state.rooms
    )


Step = Callable[[Sequence[Node], Sequence[Node]], tuple[Sequence[Node], Sequence[Node]]]


def scan(
    computed_sizes: ComputedSizes,
    step: Step,
    xs: Sequence[Node],
    states: Sequence[Node],
    loc: str = "",
    stop: Node | None = None,
) -> tuple[Sequence[Node], Sequence[Node]]:
    """The steps' results, stacked as [S, ...], and the final states. step: (an element of each of xs[S, ...], states)
    -> (results, states). stop: i64[], the number of steps that run; the results of the remaining steps are zeros."""
    steps, zero = xs[0].shape[0], ops.scalar(0, i64)
    first = [ops.index_axis(x, 0, 0) for x in xs]
    results, last = step(first, states)
    if steps == 1 and stop is None:
        return [ops.expand_dims(y, 0) for y in results], last
    buffers = [ops.full((steps, *y.shape), 0, y.dtype) for y in results]
    n, m = 1 + len(buffers), 1 + len(buffers) + len(states)
    count = ops.scalar(steps, i64) if stop is None else ops.minimum(stop, ops.scalar(steps, i64))

    def body(values: Sequence[Node]) -> list[Node]:
        step_index, sources = values[0], values[m:]
        parts = [ops.DynamicSlice((1, *x.shape[1:]))(x, step_index, *(zero for _ in x.shape[1:])) for x in sources]
        results, new_states = step([ops.index_axis(part, 0, 0) for part in parts], values[n:m])
        updated_buffers = [
            ops.DynamicUpdateSlice()(buffer, ops.expand_dims(y, 0), step_index, *(zero for _ in y.shape))
            for buffer, y in zip(values[1:n], results, strict=True)
        ]
        return [ops.add(step_index, 1), *updated_buffers, *new_states, *sources]

    end = loop(
        computed_sizes, [zero, *buffers, *states, *xs], lambda v: ops.compare("LT", v[0], count), body, loc, steps
    )
    return end[1:n], end[n:m]
