"""Loop and Scan.

A loop of known and small length is unrolled. Others become While:

    Loop(n, cond, v...)  ->  While(i < n and cond; i + 1, cond', v'..., captured..., results written at i)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import AnyValue, Call, OpenSequence, Result, Sequence_, Value, normal_axis, onnx_op
from ingot.frontends.onnx.protos import GraphProto
from ingot.frontends.onnx.rows.common import ints_of
from ingot.frontends.onnx.rows.flow.control import Captures, body_of, results_of, tensors_of
from ingot.frontends.onnx.rows.flow.varying import Form, Growth, common_form, in_form, in_room
from ingot.frontends.onnx.rows.trip_count import MAX_EXACT_INTEGER, trip_count
from ingot.frontends.onnx.symbolic import Sym
from ingot.frontends.shared.composites.movement import cut, with_shape
from ingot.frontends.shared.computed_sizes import Sizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import Dim, DimLike, dim_max, dim_min
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError
from ingot.support.limits import max_run_time_iterations

# the most iterations that are unrolled
_UNROLL_STEPS = 64
UNROLL_NODES = 2000
# the most guesses of how carried values grow
_MAX_GUESSES = 8


@dataclass(frozen=True)
class _Iteration:
    """The parts of one loop. scanned: (tensor, axis, backwards); axes: along which results are stacked."""

    call: Call
    body: GraphProto
    count: DimLike | None
    # None where the body takes no condition (Scan)
    condition: Value | None
    carried: tuple[AnyValue, ...]
    scanned: tuple[tuple[Node, int, bool], ...] = ()
    axes: tuple[int, ...] = ()
    backwards: tuple[bool, ...] = ()

    @property
    def is_loop(self) -> bool:
        return self.condition is not None

    def inputs(
        self, i: Value, cond: Value, carried: Sequence[AnyValue], slices: Sequence[Value]
    ) -> dict[str, AnyValue]:
        operands: list[AnyValue] = [i, cond, *carried] if self.is_loop else [*carried, *slices]
        return dict(zip((p.name for p in self.body.input), operands, strict=True))

    def split(self, outputs: list[AnyValue]) -> tuple[Value | None, list[AnyValue], list[AnyValue]]:
        """The body's outputs as (condition, carried, stacked)."""
        cond: Value | None = None
        if self.is_loop:
            first = outputs[0]
            if not isinstance(first, Value):
                raise Unsupported("its body could not be imported")
            cond, outputs = first, outputs[1:]
        n = len(self.carried)
        return cond, outputs[:n], outputs[n:]


def _true() -> Value:
    return Value(sym=Sym.of(T.boolean, np.array(True, dtype=object)))


def index_of(i: int) -> Value:
    return Value(sym=Sym.of(T.i64, np.array(i, dtype=object)))


def _known_bool(v: Value) -> bool | None:
    return bool(v.sym.items.reshape(-1)[0]) if v.sym is not None and v.sym.is_constant else None


def _size(v: AnyValue) -> DimLike | None:
    """The value of a scalar that is a known size or number, else None."""
    sym = v.sym if isinstance(v, Value) else None
    if sym is None or sym.items.size != 1 or not sym.dtype.is_integer:
        return None
    (item,) = sym.items.reshape(-1)
    return item if isinstance(item, int | Dim) else None


def _iterate(it: _Iteration) -> Result:
    unrolled = _unroll(it)
    return _while(it) if unrolled is None else unrolled


def _unroll(it: _Iteration) -> Result | None:
    """The loop unrolled; None where its length is unknown or too large."""
    limit = min(_UNROLL_STEPS, max(1, UNROLL_NODES // max(1, len(it.body.node))))
    if it.count is not None and (not isinstance(it.count, int) or it.count > limit):
        return None
    is_going = _known_bool(it.condition) if it.condition is not None else True
    if is_going is None:
        return None
    carried: list[AnyValue] = list(it.carried)
    stacks: list[list[Value]] = [[] for _ in it.axes]
    step = 0
    while is_going and (it.count is None or step < it.count):
        if step >= limit:
            return None
        slices = [Value(_slice_at(x, axis, step, is_backwards)) for x, axis, is_backwards in it.scanned]
        starts = carried
        cond, carried, stacked = it.split(
            it.call.importer.run(it.body, it.call, it.inputs(index_of(step), _true(), carried, slices), lambda v: v)
        )
        results_of([*carried, *stacked])
        if not it.is_loop:
            _check_states(starts, carried)
        for items, v in zip(stacks, stacked, strict=True):
            if not isinstance(v, Value):
                raise Unsupported("a loop that stacks sequences")
            items.append(v)
        if cond is not None:
            is_continued = _known_bool(cond)
            if is_continued is None:
                return None
            is_going = is_continued
        step += 1
    if step == 0:
        return [*results_of(carried), *_unstacked(it)]
    results: list[Node | Value | Sequence_ | OpenSequence | None] = results_of(carried)
    for items, axis, is_backwards in zip(stacks, it.axes, it.backwards, strict=True):
        parts = [v.node for v in (items[::-1] if is_backwards else items)]
        results.append(ops.stack(parts, axis))
    return results


def _check_states(starts: Sequence[AnyValue], ends: Sequence[AnyValue]) -> None:
    """Raise ShapeError where an iteration of a scan changes the shape of a state."""
    for k, (a, b) in enumerate(zip(starts, ends, strict=True)):
        if not isinstance(a, Value) or not isinstance(b, Value) or a.type.shape == b.type.shape:
            continue
        sizes = zip(a.type.shape, b.type.shape, strict=False)
        different = next(((d, e) for d, e in sizes if d != e), None)
        raise ShapeError(f"scan: state {k} changes its shape", expected=a.type, got=b.type).between(different)


def _unstacked(it: _Iteration) -> list[Node]:
    """The stacked results of a loop without iterations: empty, of the types that an iteration would return."""
    if not it.axes:
        return []
    slices = [Value(ops.full((*x.shape[:axis], *x.shape[axis + 1 :]), 0, x.dtype)) for x, axis, _ in it.scanned]
    iteration = it.call.importer.run(it.body, it.call, it.inputs(index_of(0), _true(), it.carried, slices), lambda v: v)
    results: list[Node] = []
    for r, axis in zip(tensors_of(it.split(iteration)[2], "a loop that stacks"), it.axes, strict=True):
        place = normal_axis(axis, len(r.shape) + 1)
        results.append(ops.full((*r.shape[:place], 0, *r.shape[place:]), 0, r.dtype))
    return results


def _slice_at(x: Node, axis: int, i: int, is_backwards: bool) -> Node:
    return ops.index_axis(x, axis, x.shape[axis] - 1 - i if is_backwards else i)


@dataclass(frozen=True)
class _TracedBody:
    """One iteration of a loop that is not unrolled, as a graph. names: the carried values, or buffers that hold them;
    lengths: the carried sizes. iteration, length_sizes: the iteration's number and `lengths`, as computed sizes."""

    names: tuple[Node, ...]
    lengths: dict[str, Node]
    iteration: DimLike
    length_sizes: dict[str, DimLike]
    captures: Captures
    cond: Value | None
    ends: list[Node]
    stacked: list[Node]
    sizes: Sizes


def _traced_body(
    it: _Iteration, growth: Growth, forms: Sequence[Form | None], step: Node, is_going: Node
) -> _TracedBody:
    """The iteration of carried values that grow so. Raises Unsupported."""
    c, loc = it.call, it.call.loc
    captures = Captures(c, ".captured")
    lengths = growth.lengths(loc)
    with c.importer.body() as sizes:
        iteration = c.importer.computed_sizes.size(step, growth.max_iterations, "turn") if growth.steps else 0
        length_sizes = growth.sizes(c.importer.computed_sizes, lengths)
        shapes = growth.shapes(iteration, length_sizes)
        types = [TensorType(n.dtype, s) for n, s in zip(growth.starts, growth.rooms or shapes, strict=True)]
        names = tuple(Input(f"{loc}.carried{k}", t)() for k, t in enumerate(types))
        parts = map(with_shape, names, shapes)
        carried = [Value(x) if f is None else OpenSequence(x, f.axis) for x, f in zip(parts, forms, strict=True)]
        for x, _, _ in it.scanned:
            captures(Value(x))
        slices = [
            Value(_dynamic_slice_at(captures(Value(x)).node, axis, step, is_backwards))
            for x, axis, is_backwards in it.scanned
        ]
        inputs = it.inputs(Value(step), Value(is_going), carried, slices)
        cond, results, stacked = it.split(c.importer.run(it.body, c, inputs, captures))
    ends = tensors_of(in_form(results, forms), "a loop with a carried value")
    stacks = tensors_of(stacked, "a loop with a stacked value")
    return _TracedBody(names, lengths, iteration, length_sizes, captures, cond, ends, stacks, sizes)


def _forms(it: _Iteration) -> list[Form | None]:
    """How carried sequences are tensors. That of an empty one is what an iteration makes of it."""
    c = it.call
    if not any(isinstance(v, Sequence_ | OpenSequence) for v in it.carried):
        return [None] * len(it.carried)
    mark, loc = c.importer.checkpoint(), c.loc
    step = Value(Input(f"{loc}.step", TensorType(T.i64))())
    with c.importer.body() as sizes:
        slices = [Value(_slice_at(x, axis, 0, is_backwards)) for x, axis, is_backwards in it.scanned]
        inputs = it.inputs(step, _true(), it.carried, slices)
        _, ends, _ = it.split(c.importer.run(it.body, c, inputs, Captures(c, ".captured")))
    c.importer.roll_back(mark)
    return [common_form((v, end), ({}, sizes)) for v, end in zip(it.carried, ends, strict=True)]


def _while(it: _Iteration) -> Result:
    try:
        return _run_time_loop(it)
    except Unsupported:
        c = it.call
        if it.is_loop and any(isinstance(v, Sequence_) for v in it.carried):
            # unrolled, it may carry sequences of other forms
            for i in (0, 1):
                if c.has(i):
                    c.importer.wish(c.x(i), exact=True)
        raise


def _run_time_loop(it: _Iteration) -> Result:
    c, loc = it.call, it.call.loc
    step, is_going = Input(f"{loc}.step", TensorType(T.i64))(), Input(f"{loc}.go", TensorType(T.boolean))()
    forms = _forms(it)
    starts = tuple(tensors_of(in_form(it.carried, forms), "a loop that is not unrolled, with a carried value"))
    growth, traced, mark = Growth(starts, max_run_time_iterations()), None, c.importer.checkpoint()
    for _ in range(_MAX_GUESSES):
        traced = _traced_body(it, growth, forms, step, is_going)
        refined = growth.refined(traced.ends, traced.iteration, traced.length_sizes, traced.sizes)
        if refined is None:
            break
        growth, traced = refined, None
        c.importer.roll_back(mark)
    if traced is None:
        raise Unsupported("a loop whose carried values change their sizes from iteration to iteration in no known way")
    loop, cond = _with_trip_count(it, traced.cond, (step, *traced.names), (ops.add(step, 1), *traced.ends))
    forever = cond is None or _known_bool(cond) is True or cond.node is is_going
    condition = it.condition
    open_end = loop.count is None or not forever or (condition is not None and _known_bool(condition) is not True)
    is_stored = bool(traced.stacked or growth)
    if is_stored and loop.count is None and c.has(0):
        c.importer.wish(c.x(0), exact=False)
    # room: the most iterations whose results are stored; one more iteration is run to detect that it is exceeded
    is_bounded = loop.count is not None and (not isinstance(loop.count, int) or loop.count <= max_run_time_iterations())
    room = loop.count if loop.count is not None and (is_bounded or not open_end) else max_run_time_iterations()
    if growth:
        growth = growth.with_rooms(room, traced.ends, traced.length_sizes, traced.sizes, room is loop.count)
        c.importer.roll_back(mark)
        traced = _traced_body(it, growth, forms, step, is_going)
        loop, cond = _with_trip_count(it, traced.cond, (step, *traced.names), (ops.add(step, 1), *traced.ends))
    it = loop
    buffers, writes = _stacks(it, traced.stacked, step, room)
    next_step = ops.add(step, 1)
    next_go = is_going if cond is None else ops.reshape(cond.node, ())
    captured = tuple(traced.captures.inputs.values())
    state = (step, is_going, *traced.names, *traced.lengths.values(), *captured, *buffers)
    ends = map(_at_start, traced.names, traced.ends)
    following = (next_step, next_go, *ends, *growth.next_lengths(traced.ends), *captured, *writes)
    test = is_going
    if is_stored and room is not it.count:
        test = ops.and_(is_going, ops.compare("LE", step, ops.scalar(room, T.i64)))
    for key, length in traced.lengths.items():
        test = ops.and_(test, ops.compare("LE", length, ops.scalar(growth.max_lengths[key], T.i64)))
    first_go = const(True) if it.condition is None else ops.reshape(it.condition.node, ())
    first_lengths = [ops.scalar(size, T.i64) for size in growth.first_lengths().values()]
    firsts = map(in_room, starts, growth.rooms or [n.shape for n in starts])
    operands = [const(np.int64(0)), first_go, *firsts, *first_lengths, *traced.captures.inputs]
    operands += [ops.full(b.shape, 0 if b.dtype != T.boolean else False, b.dtype) for b in buffers]
    if it.count is not None:
        test = ops.and_(test, ops.compare("LT", step, ops.scalar(it.count, T.i64)))
    elif it.is_loop and c.has(0):
        # a trip count known at run time only
        trip = Input(f"{loc}.trip", TensorType(T.i64))()
        state, following = (*state, trip), (*following, trip)
        test = ops.and_(test, ops.compare("LT", step, trip))
        operands.append(ops.reshape(ops.cast(c.x(0), T.i64), ()))
    body = body_of(state, following, traced.sizes)
    results = ops.While(Graph(state, (test,)), body)(*operands).results
    computed, last_carried = c.importer.computed_sizes, 2 + len(starts)
    count = computed.size(results[0], room, "turns") if is_stored and open_end else room
    last_lengths = dict(zip(traced.lengths, results[last_carried:], strict=False))
    shapes = growth.shapes(count, growth.sizes(computed, last_lengths))
    parts = map(with_shape, results[2:last_carried], shapes)
    carried = [x if form is None else OpenSequence(x, form.axis) for x, form in zip(parts, forms, strict=True)]
    first_buffer = last_carried + len(traced.lengths) + len(captured)
    stacks = list(results[first_buffer : first_buffer + len(buffers)])
    return [*carried, *(_filled(it, stacks, count, room) if open_end else stacks)]


def _at_start(buffer: Node, x: Node) -> Node:
    """`x` at the start of the buffer that held the value before."""
    return x if x.shape == buffer.shape else ops.DynamicUpdateSlice()(buffer, x, *[const(np.int64(0))] * len(x.shape))


def _with_trip_count(
    it: _Iteration, cond: Value | None, state: tuple[Node, ...], ends: tuple[Node, ...]
) -> tuple[_Iteration, Value | None]:
    """The loop with a condition that only counts iterations turned into a count. state: the step, then the carried
    values."""
    if cond is None or _known_bool(it.condition or _true()) is not True:
        return it, cond
    trip = trip_count(cond.node, state, (0, *map(_size, it.carried)), ends)
    if trip is None or (it.count is None and it.call.has(0)):
        return it, cond
    count, inexact = trip
    if inexact:
        it.call.importer.require(MAX_EXACT_INTEGER - count, "a loop of more iterations than its condition tells apart")
    return replace(it, count=count if it.count is None else dim_min(it.count, count)), None


def _filled(it: _Iteration, stacks: list[Node], count: DimLike, room: DimLike) -> list[Node]:
    """The parts of stacks with room for `room` iterations that `count` iterations have written."""
    results: list[Node] = []
    for x, axis, is_backwards in zip(stacks, it.axes, it.backwards, strict=True):
        low, high = (room - count, room) if is_backwards else (0, count)
        results.append(ops.slice_axis(x, normal_axis(axis, len(x.shape)), low, high))
    return results


def _dynamic_slice_at(x: Node, axis: int, step: Node, is_backwards: bool) -> Node:
    index = ops.sub(ops.sub(ops.scalar(x.shape[axis], T.i64), 1), step) if is_backwards else step
    zero = const(np.int64(0))
    sizes = tuple(1 if i == axis else d for i, d in enumerate(x.shape))
    slice_ = ops.DynamicSlice(sizes)(x, *(index if i == axis else zero for i in range(len(x.shape))))
    return ops.squeeze(slice_, (axis,))


def _stacks(it: _Iteration, results: Sequence[Node], step: Node, room: DimLike) -> tuple[list[Node], list[Node]]:
    """One buffer per stacked result, with room for `room` iterations, and the buffers after this step's write."""
    buffers: list[Node] = []
    writes: list[Node] = []
    zero = const(np.int64(0))
    for k, (r, axis, is_backwards) in enumerate(zip(results, it.axes, it.backwards, strict=True)):
        place = normal_axis(axis, len(r.shape) + 1)
        shape = (*r.shape[:place], room, *r.shape[place:])
        buffer = Input(f"{it.call.loc}.stacked{k}", TensorType(r.dtype, shape))()
        index = ops.sub(ops.sub(ops.scalar(room, T.i64), 1), step) if is_backwards else step
        starts = [index if i == place else zero for i in range(len(shape))]
        buffers.append(buffer)
        writes.append(ops.DynamicUpdateSlice()(buffer, ops.expand_dims(r, place), *starts))
    return buffers, writes


@onnx_op("Loop")
def loop(c: Call) -> Result:
    count: DimLike | None = None
    if c.has(0):
        count = dim_max(c.dims(0)[0], 0) if c.value(0).sym is not None else None
    condition = c.value(1) if c.has(1) else _true()
    carried = tuple(v for v in c.inputs[2:] if v is not None)
    body = c.graph("body")
    stacked = len(body.output) - 1 - len(carried)
    iteration = _Iteration(c, body, count, condition, carried, axes=(0,) * stacked, backwards=(False,) * stacked)
    if c.has(0) and count is None:
        return _while(iteration)
    return _iterate(iteration)


@onnx_op("Scan", since=8)
def scan_8(c: Call) -> Result:
    """Scan of opset 8: axis 0 of the inputs is a batch, whose entries are scanned one by one along axis 1."""
    body, n = c.graph("body"), c.int("num_scan_inputs")
    if not 0 < n < len(c) or c.has(0):
        raise Unsupported("a scan of opset 8 without inputs, or whose entries have lengths of their own")
    inputs = [c.x(i) for i in range(1, len(c))]
    split = len(inputs) - n
    length = inputs[-1].shape[1]
    if len({x.shape[0] for x in inputs}) != 1 or any(x.shape[1] != length for x in inputs[split:]):
        raise Unsupported("a scan over inputs of different batches or lengths")
    (batch,) = ints_of(inputs[-1].shape[:1], "a scan's batch")
    backs = tuple(bool(d) for d in c.int_list("directions", (0,) * n))
    stacked = len(body.output) - split
    entries: list[list[Node]] = []
    for i in range(batch):
        slices = [ops.squeeze(cut(x, 0, i, i + 1), (0,)) for x in inputs]
        scanned = tuple((x, 0, is_backwards) for x, is_backwards in zip(slices[split:], backs, strict=True))
        carried = tuple(map(Value, slices[:split]))
        plan = _Iteration(c, body, length, None, carried, scanned, (0,) * stacked, (False,) * stacked)
        results = _iterate(plan)
        assert isinstance(results, Sequence)
        entries.append([v if isinstance(v, Node) else v.node for v in results if isinstance(v, Node | Value)])
    return [ops.stack(parts, 0) for parts in zip(*entries, strict=True)]


@onnx_op("Scan", since=9)
def scan(c: Call) -> Result:
    body = c.graph("body")
    n = c.int("num_scan_inputs")
    if not 0 <= n <= len(c):
        raise Unsupported(f"{n} scanned inputs of {len(c)}")
    split = len(c) - n
    carried = tuple(v for v in c.inputs[:split] if v is not None)
    stacked = len(body.output) - split
    axes = c.int_list_of("scan_input_axes", n, 0)
    backs = c.int_list_of("scan_input_directions", n, 0)
    scanned: list[tuple[Node, int, bool]] = []
    for k in range(n):
        x = c.x(split + k)
        scanned.append((x, normal_axis(axes[k], len(x.shape)), bool(backs[k])))
    sizes = {x.shape[axis] for x, axis, _ in scanned}
    if len(sizes) != 1:
        raise Unsupported(f"a scan over inputs of different lengths {sorted(map(str, sizes))}")
    return _iterate(
        _Iteration(
            c,
            body,
            sizes.pop(),
            None,
            carried,
            tuple(scanned),
            c.int_list_of("scan_output_axes", stacked, 0),
            tuple(bool(d) for d in c.int_list_of("scan_output_directions", stacked, 0)),
        )
    )
