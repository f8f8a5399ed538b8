"""If, Loop and Scan.

Where a condition or trip count is known at import, the branch is inlined and a short loop unrolled. Otherwise If
becomes Case and loops become While, whose graphs take every outer value that they read as an operand:

    Loop(n, cond, v...)  ->  While(i < n and cond; i + 1, cond', v'..., captured..., results written at i)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import AnyValue, Call, Equation, Missing, Result, Sequence_, Value, normal_axis, onnx_op
from ingot.frontends.onnx.protos import GraphProto
from ingot.frontends.onnx.rows.common import ints_of
from ingot.frontends.onnx.rows.trip_count import MAX_EXACT_INTEGER, trip_count
from ingot.frontends.onnx.symbolic import Sym
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.computed_sizes import Sizes, with_sizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import Dim, DimLike, dim_max, dim_min, symbols_of
from ingot.ir.node import Const, Graph, Input, Node, const
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError
from ingot.support.limits import max_turns

# the most iterations that are unrolled
_UNROLL_STEPS = 64
UNROLL_NODES = 2000


@dataclass
class _Captures:
    """Outer values that a subgraph reads, each an input of its graph; constants and known sizes need no input."""

    call: Call
    what: str = ""
    inputs: dict[Node, Node] = field(default_factory=dict)

    def __call__(self, v: Value) -> Value:
        if v.sym is not None or isinstance(v.node.op, Const):
            return v
        if v.node not in self.inputs:
            inner = Input(f"{self.call.loc}{self.what}.{len(self.inputs)}", v.node.type)()
            self.inputs[v.node] = inner
            self.call.importer.note_capture(inner, v.node)
        return Value(self.inputs[v.node])


def _tensors(values: Sequence[AnyValue], what: str) -> list[Node]:
    nodes: list[Node] = []
    for v in values:
        if not isinstance(v, Value):
            raise Unsupported(f"{what} that is a sequence or could not be imported")
        nodes.append(v.node)
    return nodes


@onnx_op("If")
def if_(c: Call) -> Result:
    pred = c.value(0)
    if pred.sym is not None and pred.sym.is_constant:
        return _branch(c, bool(pred.sym.items.reshape(-1)[0]))
    captures, mark, wrong = _Captures(c), c.importer.checkpoint(), None
    outputs: list[list[Node]] = []
    inner_sizes: list[Sizes] = []
    try:
        branches: list[list[AnyValue]] = []
        for name in _BRANCHES:
            with c.importer.computed_sizes.within() as sizes:
                branches.append(c.importer.run(c.graph(name), c, {}, captures))
                inner_sizes.append(sizes)
        outputs = [_tensors(b, "an If with a result") for b in branches]
        types = [tuple(n.type for n in b) for b in outputs]
        if types[0] != types[1]:
            raise Unsupported(f"an If whose branches differ in type: {list(types[1])} and {list(types[0])}")
    except (Equation, ShapeError, Unsupported) as e:
        wrong = e
    if wrong is not None or c.importer.checkpoint() != mark:
        # a branch that is not taken must not constrain sizes: decide the condition at import where possible
        checkpoint = c.importer.checkpoint()
        c.importer.roll_back(mark)
        is_taken = c.importer.decide(pred.node, str(wrong or "an If whose branches require other sizes"))
        if is_taken is not None:
            return _branch(c, is_taken)
        c.importer.roll_back(checkpoint)
    if wrong is not None:
        raise wrong
    body_inputs = tuple(captures.inputs.values())
    graphs = tuple(_body(body_inputs, b, sizes) for b, sizes in zip(outputs, inner_sizes, strict=True))
    index = ops.cast(ops.reshape(pred.node, ()), T.i32)
    return ops.Case(graphs)(index, *captures.inputs).results


def _body(inputs: Sequence[Node], outputs: Sequence[Node], sizes: Sizes) -> Graph:
    """A body's graph, with the sizes that it finds at run time; none of them may be in its results' types."""
    escaping = sorted(s for n in outputs for d in n.shape for s in symbols_of(d) if s in sizes)
    if escaping:
        raise Unsupported(f"a result inside control flow is of size {escaping[0]}, known in that part of the run only")
    return with_sizes(Graph(tuple(inputs), tuple(outputs)), sizes)


_BRANCHES = ("else_branch", "then_branch")


def _branch(c: Call, is_then: bool) -> Result:
    """The branch of an If, inlined."""
    return _results(c.importer.run(c.graph(_BRANCHES[is_then]), c, {}, lambda v: v))


def _results(values: Sequence[AnyValue]) -> list[Node | Value | Sequence_ | None]:
    if any(isinstance(v, Missing) for v in values):
        raise Unsupported("its body could not be imported")
    return [v for v in values if not isinstance(v, Missing)]


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
        _results([*carried, *stacked])
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
        return [*_results(carried), *_unstacked(it)]
    results: list[Node | Value | Sequence_ | None] = _results(carried)
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
    for r, axis in zip(_tensors(it.split(iteration)[2], "a loop that stacks"), it.axes, strict=True):
        place = normal_axis(axis, len(r.shape) + 1)
        results.append(ops.full((*r.shape[:place], 0, *r.shape[place:]), 0, r.dtype))
    return results


def _slice_at(x: Node, axis: int, i: int, is_backwards: bool) -> Node:
    return ops.index_axis(x, axis, x.shape[axis] - 1 - i if is_backwards else i)


def _while(it: _Iteration) -> Result:
    c = it.call
    loc = c.loc
    step, is_going = Input(f"{loc}.step", TensorType(T.i64))(), Input(f"{loc}.go", TensorType(T.boolean))()
    if it.is_loop and any(isinstance(v, Sequence_) for v in it.carried):
        # unrolled, it may carry sequences
        for i in (0, 1):
            if c.has(i):
                c.importer.wish(c.x(i), exact=True)
    starts = _tensors(it.carried, "a loop that is not unrolled, with a carried value")
    names = [Input(f"{loc}.carried{k}", n.type)() for k, n in enumerate(starts)]
    captures = _Captures(c, ".captured")
    for x, _, _ in it.scanned:
        captures(Value(x))
    slices = [
        Value(_dynamic_slice_at(captures(Value(x)).node, axis, step, is_backwards))
        for x, axis, is_backwards in it.scanned
    ]
    inputs = it.inputs(Value(step), Value(is_going), [Value(n) for n in names], slices)
    with c.importer.computed_sizes.within() as sizes:
        cond, carried, stacked = it.split(c.importer.run(it.body, c, inputs, captures))
    ends = _tensors(carried, "a loop with a carried value")
    for k, (a, b) in enumerate(zip(starts, ends, strict=True)):
        if a.type != b.type:
            raise Unsupported(f"a loop whose carried value {k} changes from {a.type} to {b.type}")
    results = _tensors(stacked, "a loop with a stacked value")
    it, cond = _counted(it, cond, (step, *names), (ops.add(step, 1), *ends))
    forever = cond is None or _known_bool(cond) is True or cond.node is is_going
    open_end = it.count is None or not forever or (it.condition is not None and _known_bool(it.condition) is not True)
    if results and it.count is None and c.has(0):
        c.importer.wish(c.x(0), exact=False)
    # room: the most iterations whose results are stored; one more iteration is run to detect that it is exceeded
    is_bounded = it.count is not None and (not isinstance(it.count, int) or it.count <= max_turns())
    room = it.count if it.count is not None and (is_bounded or not open_end) else max_turns()
    buffers, writes = _stacks(it, results, step, room)
    next_step = ops.add(step, 1)
    next_go = is_going if cond is None else ops.reshape(cond.node, ())
    captured = tuple(captures.inputs.values())
    state = (step, is_going, *names, *captured, *buffers)
    body = _body(state, (next_step, next_go, *ends, *captured, *writes), sizes)
    test = is_going
    if results and room is not it.count:
        test = ops.and_(is_going, ops.compare("LE", step, ops.scalar(room, T.i64)))
    if it.count is not None:
        test = ops.and_(test, ops.compare("LT", step, ops.scalar(it.count, T.i64)))
    elif it.is_loop and c.has(0):
        # a trip count known at run time only
        trip = Input(f"{loc}.trip", TensorType(T.i64))()
        state = (*state, trip)
        body = _body(state, (*body.results, trip), sizes)
        test = ops.and_(test, ops.compare("LT", step, trip))
    first_go = const(True) if it.condition is None else ops.reshape(it.condition.node, ())
    operands = [const(np.int64(0)), first_go, *starts, *captures.inputs]
    operands += [ops.full(b.shape, 0 if b.dtype != T.boolean else False, b.dtype) for b in buffers]
    if len(operands) < len(state):
        operands.append(ops.reshape(ops.cast(c.x(0), T.i64), ()))
    results_and_state = ops.While(Graph(state, (test,)), body)(*operands).results
    first_buffer = 2 + len(names) + len(captured)
    stacks = list(results_and_state[first_buffer : first_buffer + len(buffers)])
    if stacks and open_end:
        stacks = _filled(it, stacks, c.importer.computed_sizes.size(results_and_state[0], room, "turns"), room)
    return [*results_and_state[2 : 2 + len(names)], *stacks]


def _counted(
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
