"""Groups write over operands that nothing reads later, and new state over the old state."""

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import Shape, TensorType, f32, i64
from ingot.ops.group import Group
from ingot.pipeline.build import build_native, build_program
from ingot.pipeline.target import features_of
from ingot.plan.storage import assign
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from tests.conformance.checked import planned, run_checked, run_planned
from tests.schedule.compiled import check

SHAPE = (4, 6)


def group(op: ops.Elementwise, *operands: Node) -> Node:
    params = tuple(Input(f"p{i}", x.type)() for i, x in enumerate(operands))
    return Group(Graph(params, (op(*params),)), "pointwise")(*operands)


def test_last_reader_writes_over_its_operand():
    x = Input("x", TensorType(f32, SHAPE))()
    a = group(ops.Exp(), x)
    b = group(ops.Neg(), a)
    c = group(ops.Abs(), b)
    places = assign(Graph((x,), (c,))).places
    assert places[b].owner is a
    assert places[a].owner is a  # inputs are the user's
    assert places[c].owner is c  # outputs too


def test_values_that_are_read_later_stay():
    x = Input("x", TensorType(f32, SHAPE))()
    a = group(ops.Exp(), x)
    b = group(ops.Neg(), a)
    c = group(ops.Add(), a, b)
    d = group(ops.Abs(), c)
    places = assign(Graph((x,), (d,))).places
    assert places[b].owner is b
    assert places[c].owner is a


def test_other_positions_stay():
    x = Input("x", TensorType(f32, (4, 4)))()
    a = group(ops.Exp(), x)
    p = Input("p0", a.type)()
    transposed = Group(Graph((p,), (ops.Neg()(ops.Transpose((1, 0))(p)),)), "pointwise")(a)
    fused = group(ops.Abs(), transposed)
    places = assign(Graph((x,), (fused,))).places
    assert places[transposed].owner is transposed


def test_results_hold():
    x = Input("x", TensorType(f32, (7, 33)))()
    y = ops.Sin()(ops.Reduce("sum", (1,))(x))
    z = ops.Mul()(ops.BroadcastInDim((7, 33), (0,))(y), ops.Exp()(x))
    v = ops.Reverse((1,))(ops.Add()(z, ops.Neg()(x)))
    data = np.random.default_rng(0).standard_normal((7, 33)).astype(np.float32)
    check(Graph((x,), (v, z)), [data])


# --- what lasts


def row(name: str, shape: Shape = (6, 5)) -> Node:
    return Input(name, TensorType(f32, shape))()


def lasting(old: Node, new: Node, *others: Node, inputs: tuple[Node, ...] = ()) -> Program:
    graph = Graph((*inputs, old), (new, *others), state=("s",))
    return build_program(graph, features_of("null:native"), 2)


ZERO = const(0)
S, X, AT = row("s"), row("x", (2, 5)), Input("at", TensorType(i64))()
ROWS = Input("rows", TensorType(i64, (2, 1)))()
CORNER = ops.Slice((0, 0), (2, 1), (1, 1))(S)
WRITTEN = ops.DynamicUpdateSlice()(S, X, AT, ZERO)
SCATTERED = ops.Scatter("set", (1,), (0,), (), (), (0,), 1)(S, ROWS, X)


@pytest.mark.parametrize("new", [WRITTEN, SCATTERED, ops.DynamicUpdateSlice()(SCATTERED, X, AT, ZERO)])
def test_updates_write_their_rows_alone(new: Node) -> None:
    inputs = [i for i in (X, AT, ROWS) if i in Graph((), (new,)).nodes()]
    program = lasting(S, new, ops.Reduce("sum", (1,))(new), ops.Reduce("sum", (0,))(S), inputs=tuple(inputs))
    assert program.state[0].copy_reason == ""
    kernels = [step.kernel.rstrip("0123456789") for step in program.steps]
    assert "scatter_copy_" not in kernels
    # who reads the old rows comes first
    assert kernels[0] not in ("scatter_", "slice_update_") and {"scatter_", "slice_update_"} & set(kernels)


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (ops.Add()(S, ops.Exp()(S)), ""),
        (S, ""),
        (ops.Reverse((0,))(S), "reads other elements"),
        (ops.Add()(S, ops.Reverse((1,))(S)), "reads other elements"),
        (ops.DynamicUpdateSlice()(S, ops.Slice((3, 0), (5, 5), (1, 1))(S), AT, ZERO), "reads other elements"),
        (ops.Scatter("add", (1,), (0,), (), (), (0,), 1)(S, ops.Convert(i64)(CORNER), X), ""),
    ],
)  # fmt: skip
def test_why_values_are_copied(new: Node, reason: str) -> None:
    inputs = [i for i in (X, AT) if i in Graph((), (new,)).nodes()]
    copied = lasting(S, new, inputs=tuple(inputs)).state[0].copy_reason
    assert reason in copied and bool(copied) == bool(reason)


@pytest.mark.parametrize("target", ["native", "cuda"])
@pytest.mark.parametrize("at", [-9, -2, 0, 3, 5, 1 << 40])
def test_updates_in_place_on_each_target(target: str, at: int) -> None:
    """Two rows of a slice or a scattered window, which may lie beyond the operand."""
    window = ops.Scatter("set", (0, 1), (), (), (), (0,), 0)
    places = ops.BroadcastInDim((1,), ())(AT)
    x, where = np.arange(10, dtype=np.float32).reshape(2, 5) + 1, np.asarray(at)
    for new in (WRITTEN, window(S, places, X)):
        graph = Graph((X, AT, S), (new, ops.Neg()(new)), state=("s",))
        (got,) = run_checked(graph, (x, where), target)
        np.testing.assert_array_equal(got, interpret(graph, (x, where, np.zeros((6, 5), np.float32)))[1])


@pytest.mark.parametrize("target", ["null:cpu:x86-64-v3", "null:cuda"])
def test_updates_keep_the_order_of_what_they_update(target: str) -> None:
    """A kernel's gradient comes with the kernel's channels in other places."""
    x, g = (Input(name, TensorType(f32, shape))() for name, shape in (("x", (2, 6, 5, 8)), ("g", (2, 4, 4, 24))))
    k, m, v = (Input(name, TensorType(f32, (24, 8, 3, 2)))() for name in "kmv")
    gradient = ops.KernelGradient((3, 2), (1, 1), (1, 1))(x, g)
    moment, square = ops.add(ops.mul(m, 0.9), gradient), ops.add(ops.mul(v, 0.9), ops.mul(gradient, gradient))
    updated = ops.sub(k, ops.mul(moment, square))
    graph = Graph((x, g, k, m, v), (updated, moment, square, ops.reduce_sum(x)), state=("k", "m", "v"))
    program = build_program(graph, features_of(target), 1)
    assert not any(s.copy_reason for s in program.state)


def test_circles_are_copied() -> None:
    a, b, c = (row(name) for name in "abc")
    graph = Graph((a, b, c), (b, c, a), state=("a", "b", "c"))
    assert sum(bool(s.copy_reason) for s in build_program(graph, features_of("null:native"), 1).state) == 1
    # what reads the old value needs the new one
    new = ops.Exp()(a)
    later = ops.Mul()(ops.BroadcastInDim((6, 5), (0,))(ops.Reduce("sum", (1,))(new)), a)
    assert "needs the new one" in lasting(a, new, later).state[0].copy_reason


def update_loop(first: Node, at: Node, other: Node | None = None) -> Node:
    """x after three iterations of x = update(x, x[:2] + 1, at) from `first` on."""
    begin = (const(0), at, first, *([] if other is None else [other]))
    i, where, x, *rest = values = tuple(Input(f"v{n}", v.type)() for n, v in enumerate(begin))
    rows = ops.Add()(ops.Slice((0, 0), (2, 5), (1, 1))(x), ops.BroadcastInDim((2, 5), ())(const(np.float32(1))))
    new = ops.DynamicUpdateSlice()(x, ops.Add()(rows, rest[0]) if rest else rows, where, ZERO)
    condition = Graph(values, (ops.Compare("LT")(i, const(3)),))
    loop = ops.While(condition, Graph(values, (ops.Add()(i, const(1)), where, new, *rest)))
    return loop(*begin).results[2]


@pytest.mark.parametrize("target", ["native", "cuda"])
@pytest.mark.parametrize("has_reader", [False, True])
def test_loops_begin_where_their_values_lie(target: str, has_reader: bool) -> None:
    """What reads the updated state comes before the loop, which then changes the same memory."""
    rest = (ops.Reduce("sum", (1,))(WRITTEN), ops.Reduce("sum", (0,))(S)) if has_reader else ()
    graph = Graph((X, AT, S), (update_loop(WRITTEN, AT), *rest), state=("s",))
    program = build_program(graph, features_of(f"null:{target}"), 1)
    assert program.state[0].copy_reason == ""
    (state,) = (b.id for b in program.buffers if b.kind == "input" and b.index == 2)
    assert not any(step.label == "while" and step.args[-1][0] == state for step in program.steps), "nothing is copied"
    x = np.arange(10, dtype=np.float32).reshape(2, 5) + 1
    new, *others = interpret(graph, (x, np.asarray(3), np.ones((6, 5), np.float32)))
    if target == "native":
        model = CompiledModel(build_program(graph, features_of("native"), 1), threads=1)
        model.set_state({"s": np.ones((6, 5), np.float32)})
        got = model.run([x, np.asarray(3)])
        np.testing.assert_array_equal(model.state()["s"], new)
    else:
        state_rows = [np.ones((6, 5), np.float32)]
        got = run_planned(*planned(graph, target), [x, np.asarray(3)], state_rows)
        np.testing.assert_array_equal(state_rows[0], new)
    for a, b in zip(got, others, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_loops_copy_what_is_read_twice_or_later() -> None:
    twice = update_loop(WRITTEN, AT, ops.Slice((0, 0), (2, 5), (1, 1))(WRITTEN))
    later = ops.Mul()(update_loop(WRITTEN, AT), ops.Exp()(WRITTEN))
    x = np.arange(10, dtype=np.float32).reshape(2, 5) + 1
    for graph in (
        Graph((X, AT, S), (twice,), state=("s",)),
        Graph((X, AT, S), (update_loop(WRITTEN, AT), later), state=("s",)),
    ):
        model = CompiledModel(build_program(graph, features_of("native"), 1), threads=1)
        new, *others = interpret(graph, (x, np.asarray(3), np.zeros((6, 5), np.float32)))
        got = model.run([x, np.asarray(3)])
        np.testing.assert_array_equal(model.state()["s"], new)
        for a, b in zip(got, others, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


class _Dag:
    """Random graphs whose state is read and written all over."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.shape = (int(self.rng.integers(1, 9)), int(self.rng.integers(1, 40)))
        self.at = Input("at", TensorType(i64))()
        self.values = [row(f"s{i}", self.shape) for i in range(int(self.rng.integers(1, 5)))]
        self.state = tuple(self.values)
        self.x = row("x", self.shape)
        self.values.append(self.x)
        for _ in range(int(self.rng.integers(3, 12))):
            self.values.append(self.step())

    def any(self) -> Node:
        return self.values[int(self.rng.integers(len(self.values)))]

    def step(self) -> Node:
        a, b, rows = self.any(), self.any(), self.shape[0]
        part = ops.Slice((0, 0), (max(1, rows // 2), self.shape[1]), (1, 1))(b)
        match int(self.rng.integers(9)):
            case 0:
                return ops.Add()(ops.mul(a, 0.5), b)
            case 1:
                return ops.Tanh()(a)
            case 2 | 3 | 4:
                return ops.DynamicUpdateSlice()(a, part, self.at, const(0))
            case 5:
                spots = ops.BroadcastInDim((part.shape[0], 1), ())(self.at)
                kind = str(self.rng.choice(["set", "add"]))
                return ops.Scatter(kind, (1,), (0,), (), (), (0,), 1)(a, spots, part)
            case 6:
                return ops.Reverse((0,))(a)
            case 7:
                return ops.BroadcastInDim(self.shape, (0,))(ops.Reduce("max", (1,))(a))
        index, state = Input("turn", TensorType(i64))(), row("kept", self.shape)
        fresh = row("fresh", part.shape)
        cond = Graph((index, state, fresh), (ops.compare("LT", index, 3),))
        updated = ops.DynamicUpdateSlice()(state, ops.mul(fresh, 0.5), index, const(0))
        body = Graph((index, state, fresh), (ops.add(index, 1), updated, fresh))
        return ops.While(cond, body)(const(0), a, part).results[1]

    def graph(self) -> Graph:
        new = [self.any() if self.rng.random() < 0.3 else v for v in self.values[-len(self.state) :]]
        return Graph((self.x, self.at, *self.state), (*new, self.any(), self.any()))


def check_steps(seed: int) -> int:
    """A random graph over several calls, in place and copied, beside the interpreter; how many values are in place."""
    dag = _Dag(seed)
    free = dag.graph()
    with_state = replace(free, state=tuple(f"state {i}" for i in range(len(dag.state))))
    program = build_native(with_state, 2)
    in_place, copied = CompiledModel(program, threads=2), CompiledModel(build_native(free, 2), threads=2)
    values = [dag.rng.standard_normal(dag.shape).astype(np.float32) for _ in dag.state]
    in_place.set_state(dict(zip(with_state.state, values, strict=True)))
    expected = values
    for step in range(4):
        x = dag.rng.standard_normal(dag.shape).astype(np.float32), np.asarray(step * 2 - 1)
        results = in_place.run(x)
        *values, first, second = copied.run((*x, *values))
        for got, reference in zip((*in_place.state().values(), *results), (*values, first, second), strict=True):
            np.testing.assert_array_equal(got, reference)
        expected = interpret(free, (*x, *expected))[: len(values)]
        for got, near in zip(values, expected, strict=True):
            np.testing.assert_allclose(np.asarray(got), near, rtol=1e-4, atol=1e-5)
    return sum(not s.copy_reason for s in program.state)


def test_random_graphs_keep_their_state() -> None:
    assert sum(map(check_steps, range(6))) >= 6


@pytest.mark.slow
def test_many_random_graphs_keep_their_state() -> None:
    assert sum(map(check_steps, range(100, 160))) >= 60
