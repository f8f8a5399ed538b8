"""Calls, branches and loops. A body's graph takes every outer value that it reads as an operand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ingot import ops
from ingot.frontends.shared import bodies
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import solved
from ingot.frontends.tensorflow.proto import Function
from ingot.frontends.tensorflow.rows.lists import resized
from ingot.frontends.tensorflow.values import Call, Missing, Result, Table, TensorList, Value, expect
from ingot.ir.dims import Dim, DimLike, dim_max, is_computed, symbols_of
from ingot.ir.node import Input, Node, splat_of
from ingot.ir.types import boolean, i32
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError, UnsupportedOp
from ingot.support.limits import check_time

row = Table()


@row("PartitionedCall", "StatefulPartitionedCall", any_kind=True)
def partitioned_call(c: Call, *arguments: Value) -> Result:
    return c.walk.call(c, c.function("f"), arguments)


# conversion of values of all kinds to tensors and back


def _nodes(value: Value) -> tuple[Node, ...]:
    if isinstance(value, TensorList):
        return () if value.buffer is None else (value.buffer,)
    if isinstance(value, Complex):
        return value.real, value.imag
    return (value,) if isinstance(value, Node) else ()


def _flat(values: Sequence[Value]) -> tuple[Node, ...]:
    return tuple(n for v in values for n in _nodes(v))


def _rebuilt(values: Sequence[Value], nodes: Sequence[Node]) -> list[Value]:
    """Values of the kinds of `values`, rebuilt from `nodes` in order."""
    remaining = iter(nodes)
    rebuilt: list[Value] = []
    for v in values:
        if isinstance(v, TensorList) and v.buffer is not None:
            buffer = next(remaining)
            rebuilt.append(TensorList(v.dtype, buffer.shape[0], buffer))
        elif isinstance(v, Complex):
            rebuilt.append(Complex(next(remaining), next(remaining)))
        else:
            rebuilt.append(next(remaining) if isinstance(v, Node) else v)
    return rebuilt


def _checked(values: Sequence[Value]) -> Sequence[Value]:
    if any(isinstance(v, Missing) for v in values):
        raise Unsupported("")
    return values


def _own_inputs(values: Sequence[Value], loc: str) -> list[Value]:
    return _rebuilt(values, [Input(f"{loc}.{i}", n.type)() for i, n in enumerate(_flat(values))])


def _no_writes(c: Call, functions: Sequence[Function]) -> None:
    if any(c.walk.writes(f.name) for f in functions):
        raise Unsupported("writes of variables in a loop or branch")


def _decided(c: Call, pred: Value) -> bool | None:
    node = expect(pred, Node, "tensor")
    return c.walk.sizes.decided(_truth(node))


def _truth(x: Node) -> Node:
    x = ops.reshape(x, ()) if x.type.rank else x
    return x if x.dtype == boolean else ops.compare("NE", x, 0)


# branches


@row("If", "StatelessIf", any_kind=True)
def if_(c: Call, pred: Value, *arguments: Value) -> Result:
    branches = [c.function("else_branch"), c.function("then_branch")]
    decision = _decided(c, pred)
    if decision is not None:
        return c.walk.call(c, branches[decision], arguments)
    return _branches(c, ops.cast(_truth(expect(pred, Node, "tensor")), i32), branches, arguments)


@row("Case", "StatelessCase", any_kind=True)
def case(c: Call, index: Value, *arguments: Value) -> Result:
    return _branches(c, expect(index, Node, "tensor"), c.functions("branches"), arguments)


def _branches(c: Call, index: Node, branches: Sequence[Function], arguments: Sequence[Value]) -> Result:
    _no_writes(c, branches)
    arguments = _with_elements(c, branches, _checked(arguments))
    inner, free = _as_seen_by_body(c, arguments)
    outcomes: list[Sequence[Value]] = []

    def outcome(f: Function) -> tuple[Node, ...]:
        outcomes.append(_checked(c.walk.call(c, f, inner)))
        return _flat(outcomes[-1])

    outer = {n: o for n, o in zip(_flat(inner), _flat(arguments), strict=True) if n not in free.values()}
    results = bodies.case(
        c.walk.computed_sizes, index, [partial(outcome, f) for f in branches], [*outer], [*outer.values()], c.loc
    )
    return _rebuilt(outcomes[0], results)


def _with_elements(c: Call, branches: Sequence[Function], arguments: Sequence[Value]) -> Sequence[Value]:
    """The values, where empty lists to which some branch adds elements are filled with zeros."""
    if not any(isinstance(v, TensorList) and v.buffer is None for v in arguments):
        return arguments
    refused = list(c.walk.refused)
    ends = [_results_in_trial(c, f, arguments) for f in branches]
    c.walk.refused[:] = refused
    put: dict[int, TensorList] = {}
    for values in zip(*ends, strict=True):
        full = next((v for v in values if isinstance(v, TensorList) and v.buffer is not None), None)
        if full is not None:
            put |= {id(v): full for v in values if isinstance(v, TensorList) and v.buffer is None}
    return [_of_zeros(v, put[id(v)]) if isinstance(v, TensorList) and id(v) in put else v for v in arguments]


def _of_zeros(items: TensorList, filled: TensorList) -> TensorList:
    assert filled.buffer is not None
    return TensorList(items.dtype, items.length, ops.full((items.length, *filled.buffer.shape[1:]), 0, items.dtype))


def _as_seen_by_body(c: Call, values: Sequence[Value]) -> tuple[list[Value], dict[Node, Node]]:
    """Values inside a body: values that any graph may hold are unchanged, others become inputs; and the former by
    their outer values."""
    free: dict[Node, Node] = {}
    for n in _flat(values):
        form = c.walk.sizes.closed_form(n)
        if form is not None:
            free[n] = form
    nodes = [free[n] if n in free else Input(f"{c.loc}.outside{i}", n.type)() for i, n in enumerate(_flat(values))]
    return _rebuilt(values, nodes), free


# loops


@row("While", "StatelessWhile", any_kind=True)
def while_(c: Call, *arguments: Value) -> Result:
    """Values that the body returns unchanged are not carried; where types change, the loop is unrolled, or growing
    values get room for the maximum number of iterations."""
    cond, body = c.function("cond"), c.function("body")
    _no_writes(c, (cond, body))
    start, refused, was_finding = list(_checked(arguments)), list(c.walk.refused), c.walk.is_finding
    if _is_over(c, cond, start):
        return _without_iterations(c, body, start)
    c.walk.is_finding = False
    try:
        trial = _trial(c, cond, body, start)
        if trial.reason is None:
            return _loop(c, cond, body, trial)
        # values that are unknown in the loop may be known in each unrolled iteration
        unrolled = _unrolled(c, cond, body, start)
        if unrolled is not None:
            return unrolled
        c.walk.is_finding = was_finding
        if was_finding:
            c.walk.refused[:] = refused
            trial = _trial(c, cond, body, start)
        if trial.values is None:
            c.walk.refused[:] = trial.refused
            raise Unsupported("")
        return _loop(c, cond, body, trial)
    finally:
        c.walk.is_finding = was_finding


def _is_over(c: Call, cond: Function, values: Sequence[Value]) -> bool:
    """Whether it is known that there is no further iteration."""
    (test,) = _results_in_trial(c, cond, values)
    return not isinstance(test, Missing) and _decided(c, test) is False


def _without_iterations(c: Call, body: Function, start: Sequence[Value]) -> Sequence[Value]:
    """Trace one iteration to find the element shapes of lists that are still empty."""
    refused = list(c.walk.refused)
    try:
        ends = _results_in_trial(c, body, start)
    except ShapeError:  # elements of an empty list
        return start
    finally:
        c.walk.refused[:] = refused
    return _filled(start, ends)


def _filled(start: Sequence[Value], ends: Sequence[Value]) -> list[Value]:
    """The starts, where empty lists are filled with zeros of the shape that an iteration adds."""
    return [
        _of_zeros(v, e)
        if isinstance(v, TensorList) and isinstance(e, TensorList) and v.buffer is None and e.buffer is not None
        else v
        for v, e in zip(start, ends, strict=True)
    ]


@dataclass(frozen=True)
class _Trial:
    """The observations of a trial iteration. values: the loop's start values, None where the body is refused; fixed:
    which of them do not change. appends: indices of counters and of lists whose lengths they are. reason: why it is not
    a loop of values of constant types."""

    values: Sequence[Value] | None
    fixed: Sequence[bool]
    counter: _Counter | None
    appends: Sequence[tuple[int, int]]
    reason: str | None
    refused: Sequence[UnsupportedOp] = ()


def _trial(c: Call, cond: Function, body: Function, start: Sequence[Value]) -> _Trial:
    refused = list(c.walk.refused)
    probes = _probes(c, body, start)
    ends = _results_in_trial(c, body, probes)
    counter = _counter(c, cond, start, probes, ends)
    appends = () if counter is not None else _appends(c, start, probes, ends)
    if any(isinstance(v, Missing) for v in ends):
        c.walk.refused[:] = refused
        _note_counters(c, probes, counter, appends)
        ends = _results_in_trial(c, body, probes)
    why = list(c.walk.refused)
    c.walk.refused[:] = refused
    if any(isinstance(v, Missing) for v in ends):
        return _Trial(None, (), counter, appends, "", why)
    fixed = [a is b or a == b for a, b in zip(probes, ends, strict=True)]
    values = _filled(start, ends)
    if counter is not None:
        values = [_grown(v, e, counter) for v, e in zip(values, ends, strict=True)]
    return _Trial(values, fixed, counter, appends, _type_change(values, ends))


def _probes(c: Call, body: Function, start: Sequence[Value]) -> list[Value]:
    """The start values of the trial iteration: new inputs, except values that the body returns unchanged and that any
    graph may hold, as shapes may depend on them."""
    f, probes = c.walk.functions.get(body.name), _own_inputs(start, f"{c.loc}.probe")
    for k in f.passed_through.intersection(range(len(start))) if f is not None else ():
        value = start[k]
        form = c.walk.sizes.closed_form(value) if isinstance(value, Node) else None
        probes[k] = probes[k] if form is None else form
    return probes


def _note_counters(
    c: Call, inner_values: Sequence[Value], counter: _Counter | None, appends: Sequence[tuple[int, int]]
) -> None:
    """Record the facts about a loop's counters for its body."""
    if counter is not None:
        c.walk.upper_bounds[expect(inner_values[counter.place], Node, "tensor")] = counter.limit
    c.walk.appends.update(
        (expect(inner_values[k], Node, "tensor"), expect(inner_values[i], TensorList, "list of tensors"))
        for k, i in appends
    )


def _results_in_trial(c: Call, function: Function, values: Sequence[Value]) -> Sequence[Value]:
    """The results of a function in a trial, whose effects on the graph are discarded."""
    with c.walk.computed_sizes.inner_graph():
        return c.walk.call(c, function, values)


def _type_change(start: Sequence[Value], ends: Sequence[Value]) -> str | None:
    """The change of a carried value's type; None where none does. Raises ShapeError for sizes that may be equal."""
    for k, (a, b) in enumerate(zip(start, ends, strict=True)):
        nodes_a, nodes_b = _nodes(a), _nodes(b)
        if len(nodes_a) != len(nodes_b) or type(a) is not type(b):
            return f"value {k} becomes another kind"
        if isinstance(a, TensorList) and isinstance(b, TensorList) and a.length != b.length:
            return f"list {k} grows from {a.length} to {b.length}"
        for x, y in zip(nodes_a, nodes_b, strict=True):
            if x.dtype != y.dtype or x.type.rank != y.type.rank:
                return f"value {k} changes from {x.type} to {y.type}"
            for d, e in zip(x.shape, y.shape, strict=True):
                if isinstance(d, Dim) and isinstance(e, Dim) and _may_be_equal(d, e):
                    raise ShapeError(f"a loop's value {k}", expected=x.type, got=y.type).between((d, e))
                if d != e:
                    return f"value {k} changes from {x.type} to {y.type}"
    return None


def _may_be_equal(d: Dim, e: Dim) -> bool:
    """Whether a carried size keeps its value if some size of the inputs is a certain other one, not a number."""
    pair = solved(d, e)
    return pair is not None and isinstance(pair[1], Dim) and not any(map(is_computed, symbols_of(d - e)))


@dataclass(frozen=True)
class _Counter:
    """A carried value that counts 0, 1, ... limit - 1, and alone ends the loop."""

    place: int
    limit: DimLike


def _appends(c: Call, start: Sequence[Value], probes: Sequence[Value], ends: Sequence[Value]) -> list[tuple[int, int]]:
    """Counters that grow by one with each iteration, and lists whose initial lengths they are and that grow by one
    element with each iteration, so that the counter is always the list's length."""
    unchanged = _unchanged(start, probes, ends)
    appends: list[tuple[int, int]] = []
    for k, (first, at, end) in enumerate(zip(start, probes, ends, strict=True)):
        if not isinstance(at, Node) or not _is_next(end, at, unchanged):
            continue
        try:
            length = c.size(first)
        except Unsupported:
            continue
        appends += [(k, i) for i, v in enumerate(start) if isinstance(v, TensorList) and v.length == length]
    return appends


def _unchanged(start: Sequence[Value], probes: Sequence[Value], ends: Sequence[Value]) -> dict[Node, Node]:
    """The values that an iteration returns unchanged, by their results."""
    triples = zip(start, probes, ends, strict=True)
    return {p: v for v, p, e in triples if p is e and isinstance(p, Node) and isinstance(v, Node)}


def _counter(
    c: Call, cond: Function, start: Sequence[Value], probes: Sequence[Value], ends: Sequence[Value]
) -> _Counter | None:
    refused = list(c.walk.refused)
    inner_values = [v if e is p else p for v, p, e in zip(start, probes, ends, strict=True)]
    (test,) = _results_in_trial(c, cond, inner_values)
    c.walk.refused[:] = refused
    unchanged = _unchanged(start, probes, ends)
    counters: list[_Counter] = []
    stack = [test]
    while stack:
        n = stack.pop()
        if isinstance(n, Node) and isinstance(n.op, ops.And):
            stack += reversed(n.inputs)
            continue
        if not (isinstance(n, Node) and isinstance(n.op, ops.Compare) and n.op.direction == "LT"):
            return None
        probe, limit = n.inputs
        places = [k for k, p in enumerate(probes) if p is probe]
        try:
            first, end = (c.size(start[k]) for k in places), c.size(limit)
            if [*first] != [0] or not all(_is_next(ends[k], probe, unchanged) for k in places):
                return None
        except Unsupported:
            return None
        counters.append(_Counter(places[0], dim_max(end, 0)))
    return counters[-1] if counters and all(f.limit == counters[0].limit for f in counters) else None


def _is_next(end: Value, start: Node, start_values: Mapping[Node, Node]) -> bool:
    """Whether `end` is `start` + 1. start_values: those of values that the loop does not change."""
    if not isinstance(end, Node) or not isinstance(end.op, ops.Add):
        return False
    a, b = end.inputs
    step = b if a is start else a if b is start else start
    return step is not start and splat_of(start_values.get(step, step)) == 1


def _grown(start: Value, end: Value, counter: _Counter) -> Value:
    """A list that gets an element with each iteration, at its final length."""
    if not isinstance(start, TensorList) or not isinstance(end, TensorList) or start.buffer is None:
        return start
    if end.length == start.length or end.length != dim_max(start.length, counter.limit):
        return start
    return TensorList(start.dtype, end.length, resized(start.buffer, end.length))


def _loop(c: Call, cond: Function, body: Function, trial: _Trial) -> Result:
    start, fixed, counter = trial.values or (), trial.fixed, trial.counter
    outer_values = [v for v, is_fixed in zip(start, fixed, strict=True) if is_fixed]
    shared, free = _as_seen_by_body(c, outer_values)
    carried = _own_inputs([v for v, is_fixed in zip(start, fixed, strict=True) if not is_fixed], c.loc)

    def merged(changed: Sequence[Value], constants: Sequence[Value]) -> list[Value]:
        fixed_values, others = iter(constants), iter(changed)
        return [next(fixed_values) if f else next(others) for f in fixed]

    def inside_values(nodes: Sequence[Node]) -> list[Value]:
        inside = merged(_rebuilt(carried, nodes), shared)
        _note_counters(c, inside, counter, trial.appends)
        return inside

    def cond_graph(nodes: Sequence[Node]) -> Node:
        (test,) = _checked(c.walk.call(c, cond, inside_values(nodes)))
        return _truth(expect(test, Node, "tensor"))

    def body_graph(nodes: Sequence[Node]) -> tuple[Node, ...]:
        inside = inside_values(nodes)
        ends = _checked(c.walk.call(c, body, inside))
        for _, i in trial.appends:
            list_before, list_after = (expect(v[i], TensorList, "list of tensors") for v in (inside, ends))
            if list_after.length not in (list_before.length, list_before.length + 1):
                raise Unsupported("a list that does not get an element with each iteration")
        changed = [v for v, is_fixed in zip(ends, fixed, strict=True) if not is_fixed]
        return _flat(changed)

    starts = _flat([v for v, is_fixed in zip(start, fixed, strict=True) if not is_fixed])
    if not starts:
        raise Unsupported("without values")
    outer = {n: o for n, o in zip(_flat(shared), _flat(outer_values), strict=True) if o not in free}
    results = bodies.loop(
        c.walk.computed_sizes, starts, cond_graph, body_graph, c.loc, None if counter is None else counter.limit, outer
    )
    return merged(_rebuilt(carried, results), outer_values)


_MAX_ITERATIONS = 4096


def _unrolled(c: Call, cond: Function, body: Function, values: list[Value]) -> Sequence[Value] | None:
    """The loop unrolled; None where the number of iterations is not known, or something in them is refused."""
    for _ in range(_MAX_ITERATIONS):
        check_time(c.loc)
        (test,) = c.walk.call(c, cond, values)
        is_going = None if isinstance(test, Missing) else _decided(c, test)
        if is_going is None:
            return None
        if not is_going:
            return values
        values = c.walk.call(c, body, values)
        if any(isinstance(v, Missing) for v in values):
            return None
    raise Unsupported(f"a loop of more than {_MAX_ITERATIONS} iterations, to be written out")
