"""Calls, branches and loops. A body's graph takes every outer value that it reads as an operand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ingot import ops
from ingot.frontends.shared import bodies
from ingot.frontends.shared.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import solved
from ingot.frontends.tensorflow.proto import Function
from ingot.frontends.tensorflow.rows.lists import resized
from ingot.frontends.tensorflow.values import Call, Missing, Result, Table, TensorList, Value, expect
from ingot.ir.dims import Dim, DimLike, dim_max
from ingot.ir.node import Input, Node, splat_of
from ingot.ir.types import boolean, i32
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError, UnsupportedOp
from ingot.support.limits import check_time

row = Table()


@row("PartitionedCall", "StatefulPartitionedCall", any_kind=True)
def partitioned_call(c: Call, *arguments: Value) -> Result:
    return c.walk.call(c, c.function("f"), arguments)


# values of several kinds as tensors, and back


def _nodes(value: Value) -> tuple[Node, ...]:
    if isinstance(value, TensorList):
        return () if value.buffer is None else (value.buffer,)
    if isinstance(value, Complex):
        return value.real, value.imag
    return (value,) if isinstance(value, Node) else ()


def _flat(values: Sequence[Value]) -> tuple[Node, ...]:
    return tuple(n for v in values for n in _nodes(v))


def _rebuilt(values: Sequence[Value], nodes: Sequence[Node]) -> list[Value]:
    """Values of the kinds of `values`, made of `nodes` in order."""
    left = iter(nodes)
    out: list[Value] = []
    for v in values:
        if isinstance(v, TensorList) and v.buffer is not None:
            buffer = next(left)
            out.append(TensorList(v.dtype, buffer.shape[0], buffer))
        elif isinstance(v, Complex):
            out.append(Complex(next(left), next(left)))
        else:
            out.append(next(left) if isinstance(v, Node) else v)
    return out


def _checked(values: Sequence[Value]) -> Sequence[Value]:
    if any(isinstance(v, Missing) for v in values):
        raise Unsupported("")
    return values


def _fresh(values: Sequence[Value], loc: str) -> list[Value]:
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
    known = _decided(c, pred)
    if known is not None:
        return c.walk.call(c, branches[known], arguments)
    return _branches(c, ops.cast(_truth(expect(pred, Node, "tensor")), i32), branches, arguments)


@row("Case", "StatelessCase", any_kind=True)
def case(c: Call, index: Value, *arguments: Value) -> Result:
    return _branches(c, expect(index, Node, "tensor"), c.functions("branches"), arguments)


def _branches(c: Call, index: Node, branches: Sequence[Function], arguments: Sequence[Value]) -> Result:
    _no_writes(c, branches)
    arguments = _with_elements(c, branches, _checked(arguments))
    inside, free = _inside(c, arguments)
    made: list[Sequence[Value]] = []

    def outcome(f: Function) -> tuple[Node, ...]:
        made.append(_checked(c.walk.call(c, f, inside)))
        return _flat(made[-1])

    outer = {n: o for n, o in zip(_flat(inside), _flat(arguments), strict=True) if n not in free.values()}
    results = bodies.case(
        c.walk.found, index, [partial(outcome, f) for f in branches], [*outer], [*outer.values()], c.loc
    )
    return _rebuilt(made[0], results)


def _with_elements(c: Call, branches: Sequence[Function], arguments: Sequence[Value]) -> Sequence[Value]:
    """Lists that nothing was put into, and into which one of the branches puts something, full of zeros."""
    if not any(isinstance(v, TensorList) and v.buffer is None for v in arguments):
        return arguments
    refused = list(c.walk.refused)
    ends = [_tried(c, f, arguments) for f in branches]
    c.walk.refused[:] = refused
    put: dict[int, TensorList] = {}
    for values in zip(*ends, strict=True):
        full = next((v for v in values if isinstance(v, TensorList) and v.buffer is not None), None)
        if full is not None:
            put |= {id(v): full for v in values if isinstance(v, TensorList) and v.buffer is None}
    return [_of_zeros(v, put[id(v)]) if isinstance(v, TensorList) and id(v) in put else v for v in arguments]


def _of_zeros(items: TensorList, like: TensorList) -> TensorList:
    assert like.buffer is not None
    return TensorList(items.dtype, items.length, ops.full((items.length, *like.buffer.shape[1:]), 0, items.dtype))


def _inside(c: Call, values: Sequence[Value]) -> tuple[list[Value], dict[Node, Node]]:
    """Values as a body sees them: what any graph may hold as it is, inputs of its own for others; and, of the former,
    what each is outside -> inside."""
    free: dict[Node, Node] = {}
    for n in _flat(values):
        form = c.walk.sizes.anywhere(n)
        if form is not None:
            free[n] = form
    nodes = [free[n] if n in free else Input(f"{c.loc}.outside{i}", n.type)() for i, n in enumerate(_flat(values))]
    return _rebuilt(values, nodes), free


# loops


@row("While", "StatelessWhile", any_kind=True)
def while_(c: Call, *arguments: Value) -> Result:
    """What the body hands on unchanged is not carried; where the values' types change, turns are written out, or what
    grows has room for as many turns as there may be."""
    cond, body = c.function("cond"), c.function("body")
    _no_writes(c, (cond, body))
    start, refused, finding = list(_checked(arguments)), list(c.walk.refused), c.walk.finding
    if _ends(c, cond, start):
        return _no_turns(c, body, start)
    c.walk.finding = False
    try:
        made = _trial(c, cond, body, start)
        if made.why is None:
            return _loop(c, cond, body, made)
        # what only the run knows in a loop may be known in each of its turns
        unrolled = _unrolled(c, cond, body, start)
        if unrolled is not None:
            return unrolled
        c.walk.finding = finding
        if finding:
            c.walk.refused[:] = refused
            made = _trial(c, cond, body, start)
        if made.values is None:
            c.walk.refused[:] = made.refused
            raise Unsupported("")
        return _loop(c, cond, body, made)
    finally:
        c.walk.finding = finding


def _ends(c: Call, cond: Function, values: Sequence[Value]) -> bool:
    """Whether it is known that there is no other turn."""
    (test,) = _tried(c, cond, values)
    return not isinstance(test, Missing) and _decided(c, test) is False


def _no_turns(c: Call, body: Function, start: Sequence[Value]) -> Sequence[Value]:
    """A turn would say of which shape the lists are that nothing was put into."""
    refused = list(c.walk.refused)
    try:
        ends = _tried(c, body, start)
    except ShapeError:  # elements of nothing
        return start
    finally:
        c.walk.refused[:] = refused
    return _filled(start, ends)


def _filled(start: Sequence[Value], ends: Sequence[Value]) -> list[Value]:
    """Lists that nothing was put into yet, with zeros of the shape that a turn puts into them."""
    return [
        _of_zeros(v, e)
        if isinstance(v, TensorList) and isinstance(e, TensorList) and v.buffer is None and e.buffer is not None
        else v
        for v, e in zip(start, ends, strict=True)
    ]


@dataclass(frozen=True)
class _Trial:
    """What one turn shows. values: what the loop starts with, None where the body is refused; fixed: which of them
    stay. appends: places of counters and of lists as long as they say. why: why it is no loop of values whose types
    stay."""

    values: Sequence[Value] | None
    fixed: Sequence[bool]
    counter: _Counter | None
    appends: Sequence[tuple[int, int]]
    why: str | None
    refused: Sequence[UnsupportedOp] = ()


def _trial(c: Call, cond: Function, body: Function, start: Sequence[Value]) -> _Trial:
    refused = list(c.walk.refused)
    probes = _probes(c, body, start)
    ends = _tried(c, body, probes)
    counter = _counter(c, cond, start, probes, ends)
    appends = () if counter is not None else _appends(c, start, probes, ends)
    if any(isinstance(v, Missing) for v in ends):
        c.walk.refused[:] = refused
        _note(c, probes, counter, appends)
        ends = _tried(c, body, probes)
    why = list(c.walk.refused)
    c.walk.refused[:] = refused
    if any(isinstance(v, Missing) for v in ends):
        return _Trial(None, (), counter, appends, "", why)
    fixed = [a is b or a == b for a, b in zip(probes, ends, strict=True)]
    values = _filled(start, ends)
    if counter is not None:
        values = [_grown(v, e, counter) for v, e in zip(values, ends, strict=True)]
    return _Trial(values, fixed, counter, appends, _changing(values, ends))


def _probes(c: Call, body: Function, start: Sequence[Value]) -> list[Value]:
    """What the turn that shows begins with: inputs of its own, but for what the body plainly hands on and any graph may
    hold, as shapes are made of it."""
    f, probes = c.walk.functions.get(body.name), _fresh(start, f"{c.loc}.probe")
    for k in f.handed_on.intersection(range(len(start))) if f is not None else ():
        value = start[k]
        form = c.walk.sizes.anywhere(value) if isinstance(value, Node) else None
        probes[k] = probes[k] if form is None else form
    return probes


def _note(c: Call, inside: Sequence[Value], counter: _Counter | None, appends: Sequence[tuple[int, int]]) -> None:
    """Tell what is known of a loop's counters, as its body sees them."""
    if counter is not None:
        c.walk.below[expect(inside[counter.place], Node, "tensor")] = counter.limit
    c.walk.appends.update(
        (expect(inside[k], Node, "tensor"), expect(inside[i], TensorList, "list of tensors")) for k, i in appends
    )


def _tried(c: Call, function: Function, values: Sequence[Value]) -> Sequence[Value]:
    """What a function gives, of which the graph keeps nothing."""
    with c.walk.found.within():
        return c.walk.call(c, function, values)


def _changing(start: Sequence[Value], ends: Sequence[Value]) -> str | None:
    """How a carried value's type changes; None where none does. Raises ShapeError for sizes that may be equal."""
    for k, (a, b) in enumerate(zip(start, ends, strict=True)):
        one, other = _nodes(a), _nodes(b)
        if len(one) != len(other) or type(a) is not type(b):
            return f"value {k} becomes another kind"
        if isinstance(a, TensorList) and isinstance(b, TensorList) and a.length != b.length:
            return f"list {k} grows from {a.length} to {b.length}"
        for x, y in zip(one, other, strict=True):
            if x.dtype != y.dtype or x.type.rank != y.type.rank:
                return f"value {k} changes from {x.type} to {y.type}"
            for d, e in zip(x.shape, y.shape, strict=True):
                if isinstance(d, Dim) and isinstance(e, Dim) and solved(d, e) is not None:
                    raise ShapeError(f"a loop's value {k}", expected=x.type, got=y.type).between((d, e))
                if d != e:
                    return f"value {k} changes from {x.type} to {y.type}"
    return None


@dataclass(frozen=True)
class _Counter:
    """A carried value that goes 0, 1, ... limit - 1, one more with each turn, of a loop that nothing else ends."""

    place: int
    limit: DimLike


def _appends(c: Call, start: Sequence[Value], probes: Sequence[Value], ends: Sequence[Value]) -> list[tuple[int, int]]:
    """Counters, one more with each turn, and lists that start as long as they say: so long they are in each turn, if
    each makes them longer by one."""
    stays = _stays(start, probes, ends)
    found: list[tuple[int, int]] = []
    for k, (first, at, end) in enumerate(zip(start, probes, ends, strict=True)):
        if not isinstance(at, Node) or not _is_next(end, at, stays):
            continue
        try:
            length = c.size(first)
        except Unsupported:
            continue
        found += [(k, i) for i, v in enumerate(start) if isinstance(v, TensorList) and v.length == length]
    return found


def _stays(start: Sequence[Value], probes: Sequence[Value], ends: Sequence[Value]) -> dict[Node, Node]:
    """What a turn hands on unchanged, and what it is before."""
    triples = zip(start, probes, ends, strict=True)
    return {p: v for v, p, e in triples if p is e and isinstance(p, Node) and isinstance(v, Node)}


def _counter(
    c: Call, cond: Function, start: Sequence[Value], probes: Sequence[Value], ends: Sequence[Value]
) -> _Counter | None:
    refused = list(c.walk.refused)
    inside = [v if e is p else p for v, p, e in zip(start, probes, ends, strict=True)]
    (test,) = _tried(c, cond, inside)
    c.walk.refused[:] = refused
    before = _stays(start, probes, ends)
    found: list[_Counter] = []
    stack = [test]
    while stack:
        n = stack.pop()
        if isinstance(n, Node) and isinstance(n.op, ops.And):
            stack += reversed(n.inputs)
            continue
        if not (isinstance(n, Node) and isinstance(n.op, ops.Compare) and n.op.direction == "LT"):
            return None
        at, limit = n.inputs
        places = [k for k, p in enumerate(probes) if p is at]
        try:
            first, most = (c.size(start[k]) for k in places), c.size(limit)
            if [*first] != [0] or not all(_is_next(ends[k], at, before) for k in places):
                return None
        except Unsupported:
            return None
        found.append(_Counter(places[0], dim_max(most, 0)))
    return found[-1] if found and all(f.limit == found[0].limit for f in found) else None


def _is_next(end: Value, at: Node, before: Mapping[Node, Node]) -> bool:
    """Whether `end` is at + 1; before: what values that stay are."""
    if not isinstance(end, Node) or not isinstance(end.op, ops.Add):
        return False
    a, b = end.inputs
    step = b if a is at else a if b is at else at
    return step is not at and splat_of(before.get(step, step)) == 1


def _grown(start: Value, end: Value, counter: _Counter) -> Value:
    """A list that gets an element with each turn, at the length that it ends with."""
    if not isinstance(start, TensorList) or not isinstance(end, TensorList) or start.buffer is None:
        return start
    if end.length == start.length or end.length != dim_max(start.length, counter.limit):
        return start
    return TensorList(start.dtype, end.length, resized(start.buffer, end.length))


def _loop(c: Call, cond: Function, body: Function, trial: _Trial) -> Result:
    start, fixed, counter = trial.values or (), trial.fixed, trial.counter
    outside = [v for v, same in zip(start, fixed, strict=True) if same]
    shared, free = _inside(c, outside)
    carried = _fresh([v for v, same in zip(start, fixed, strict=True) if not same], c.loc)

    def merged(changed: Sequence[Value], same: Sequence[Value]) -> list[Value]:
        ones, others = iter(same), iter(changed)
        return [next(ones) if f else next(others) for f in fixed]

    def seen(nodes: Sequence[Node]) -> list[Value]:
        inside = merged(_rebuilt(carried, nodes), shared)
        _note(c, inside, counter, trial.appends)
        return inside

    def goes(nodes: Sequence[Node]) -> Node:
        (test,) = _checked(c.walk.call(c, cond, seen(nodes)))
        return _truth(expect(test, Node, "tensor"))

    def turn(nodes: Sequence[Node]) -> tuple[Node, ...]:
        inside = seen(nodes)
        ends = _checked(c.walk.call(c, body, inside))
        for _, i in trial.appends:
            before, after = (expect(v[i], TensorList, "list of tensors") for v in (inside, ends))
            if after.length not in (before.length, before.length + 1):
                raise Unsupported("a list that does not get an element with each turn")
        moved = [v for v, same in zip(ends, fixed, strict=True) if not same]
        return _flat(moved)

    starts = _flat([v for v, same in zip(start, fixed, strict=True) if not same])
    if not starts:
        raise Unsupported("without values")
    outer = {n: o for n, o in zip(_flat(shared), _flat(outside), strict=True) if o not in free}
    results = bodies.loop(c.walk.found, starts, goes, turn, c.loc, None if counter is None else counter.limit, outer)
    return merged(_rebuilt(carried, results), outside)


_MOST_TURNS = 4096


def _unrolled(c: Call, cond: Function, body: Function, values: list[Value]) -> Sequence[Value] | None:
    """Turn after turn written out; None where their number is not known, or something in them is refused."""
    for _ in range(_MOST_TURNS):
        check_time(c.loc)
        (test,) = c.walk.call(c, cond, values)
        go = None if isinstance(test, Missing) else _decided(c, test)
        if go is None:
            return None
        if not go:
            return values
        values = c.walk.call(c, body, values)
        if any(isinstance(v, Missing) for v in values):
            return None
    raise Unsupported(f"a loop of more than {_MOST_TURNS} turns, to be written out")
