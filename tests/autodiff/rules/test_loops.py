"""Reverse rules of loops and branches against central differences in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff import differentiable, gradients
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, boolean, f64, i64
from ingot.support.errors import UnsupportedOpError

STEP = 1e-5
rng = np.random.default_rng(0)


def check(graph: Graph, arrays: list[np.ndarray], by: list[Node] | None = None) -> Graph:
    """The graph's one result differentiated by all of its float inputs, or by some, loops keeping products or not; the
    graph of it, where they do."""
    by = [x for x in graph.inputs if x.dtype.is_float] if by is None else by
    _check(graph, arrays, False, by)
    return _check(graph, arrays, True, by)


def _check(graph: Graph, arrays: list[np.ndarray], keep_products: bool, by: list[Node]) -> Graph:
    core = differentiable(graph, keep_products)
    with_gradients = Graph(core.inputs, (core.outputs[0], *gradients(core.outputs[0], by)))
    value, *results = interpret(with_gradients, arrays)
    np.testing.assert_allclose(value, interpret(graph, arrays)[0])
    for x, g in zip(by, results, strict=True):
        at, direction = core.inputs.index(x), rng.standard_normal(g.shape)
        sides = [
            float(interpret(graph, [a + s * direction if i == at else a for i, a in enumerate(arrays)])[0])
            for s in (STEP, -STEP)
        ]
        assert float((g * direction).sum()) == pytest.approx((sides[0] - sides[1]) / (2 * STEP), rel=1e-6, abs=1e-8)
    return with_gradients


def scan(trip_count: Node, x: Node, w: Node, h: Node, step: int = 1) -> list[Node]:
    """h = tanh(h w) + x[t]; ys[t] = h * h: what a recurrence of JAX's scan is, with a counter and rows."""
    zero, rows = ops.scalar(0, i64), x.shape[0]
    operands = [ops.scalar(0, i64), trip_count, ops.full(x.shape, 0, f64), h, x, w]
    entry = tuple(Input(f"s{i}", v.type)() for i, v in enumerate(operands))
    t, end, ys, state, xs, weights = entry
    row = ops.reshape(ops.DynamicSlice((1, x.shape[1]))(xs, t, zero), (x.shape[1],))
    dot = ops.DotGeneral(((), ()), ((0,), (0,)))(state, weights)
    new = ops.add(ops.Tanh()(dot), row)
    stacked = ops.DynamicUpdateSlice()(ys, ops.reshape(ops.mul(new, new), (1, x.shape[1])), t, zero)
    cond = Graph(entry, (ops.compare("LT", t, end),))
    body = Graph(entry, (ops.add(t, step), end, stacked, new, xs, weights))
    assert rows == x.shape[0]
    return list(ops.While(cond, body)(*operands).results)


@pytest.mark.parametrize("trip_count", [0, 1, 5])
def test_a_recurrence(trip_count: int) -> None:
    x, w, h = (Input(n, TensorType(f64, s))() for n, s in (("x", (5, 3)), ("w", (3, 3)), ("h", (3,))))
    scanned = scan(const(trip_count, np.int64), x, w, h)
    loss = ops.add(ops.reduce_sum(ops.mul(scanned[2], scanned[2])), ops.reduce_sum(ops.Sin()(scanned[3])))
    arrays = [rng.standard_normal(s) for s in ((5, 3), (3, 3), (3,))]
    graph = check(Graph((x, w, h), (loss,)), arrays)
    loops = [n for n in graph.nodes() if isinstance(n.op, ops.While)]
    assert len(loops) == 2  # the forward one keeps what the reverse one reads: it runs once


@pytest.mark.parametrize("trip_count", [1, 5])
def test_a_recurrence_of_open_length(trip_count: int) -> None:
    """Also with a value that stays true beside the counter, as in ONNX's loops."""
    n = symbol("n")
    x, w, h = (Input(k, TensorType(f64, s))() for k, s in (("x", (n, 3)), ("w", (3, 3)), ("h", (3,))))
    scanned = scan(ops.scalar(n, i64), x, w, h)
    loss = ops.add(ops.reduce_sum(scanned[2]), ops.reduce_sum(scanned[3]))
    arrays = [rng.standard_normal(s) for s in ((trip_count, 3), (3, 3), (3,))]
    check(Graph((x, w, h), (loss,)), arrays)
    op, inputs, condition = scanned[0].inputs[0].op, scanned[0].inputs[0].inputs, Input("go", TensorType(boolean))()
    assert isinstance(op, ops.While)
    cond = Graph((*op.cond.inputs, condition), (ops.And()(condition, op.cond.results[0]),))
    loop = ops.While(cond, Graph((*op.body.inputs, condition), (*op.body.results, condition)))(
        *inputs, const(np.bool_(True))
    )
    check(Graph((x, w, h), (ops.reduce_sum(loop.results[2]),)), arrays)


def test_a_loop_inside_a_loop() -> None:
    x, w, h = (Input(n, TensorType(f64, s))() for n, s in (("x", (2, 3)), ("w", (3, 3)), ("h", (3,))))
    entry = (Input("n", TensorType(i64))(), Input("v", h.type)(), Input("xs", x.type)(), Input("ws", w.type)())
    n, v, xs, ws = entry
    inner = scan(const(2, np.int64), xs, ws, v)[3]
    outer = ops.While(
        Graph(entry, (ops.compare("GT", n, 0),)), Graph(entry, (ops.sub(n, 1), ops.mul(inner, v), xs, ws))
    )(const(3, np.int64), h, x, w)
    arrays = [rng.standard_normal(s) for s in ((2, 3), (3, 3), (3,))]
    check(Graph((x, w, h), (ops.reduce_sum(outer.results[1]),)), arrays)


def test_branches() -> None:
    i, x, y = Input("i", TensorType(i64))(), Input("x", TensorType(f64, (3,)))(), Input("y", TensorType(f64, (3,)))()
    a, b = Input("a", x.type)(), Input("b", x.type)()
    branches = tuple(Graph((a, b), (r, s)) for r, s in ((ops.mul(a, b), a), (ops.Sin()(a), a), (b, ops.Exp()(b))))
    first, second = ops.Case(branches)(i, x, y).results
    graph = Graph((i, x, y), (ops.reduce_sum(ops.mul(first, ops.add(second, 2.0))),))
    for index in range(3):
        check(graph, [np.asarray(index), rng.standard_normal(3), rng.standard_normal(3)])


def test_a_loop_whose_turns_are_data_is_refused() -> None:
    x, w, h = (Input(n, TensorType(f64, s))() for n, s in (("x", (5, 3)), ("w", (3, 3)), ("h", (3,))))
    trip_count = Input("turns", TensorType(i64))()
    loss = ops.reduce_sum(scan(trip_count, x, w, h)[3])
    core = differentiable(Graph((trip_count, x, w, h), (loss,)))
    with pytest.raises(UnsupportedOpError, match="neither a constant nor a size"):
        gradients(core.outputs[0], [w])


def halved(x: Node) -> Node:
    """x / 2 until all of it is below 1: how often is data."""
    (v,) = entry = (Input("v", x.type)(),)
    maximum = ops.reduce_max(v, (0,))
    return ops.While(Graph(entry, (ops.compare("GE", maximum, 1.0),)), Graph(entry, (ops.mul(v, 0.5),)))(x)


def test_only_what_is_asked_for_needs_a_reverse() -> None:
    """A loop whose turns are data may lie in a loop and in a branch, where no gradient goes through it."""
    x, w = (Input(n, TensorType(f64, (3,)))() for n in "xw")
    n, v, ws = entry = (Input("n", TensorType(i64))(), Input("v", x.type)(), Input("ws", w.type)())
    body = Graph(entry, (ops.sub(n, 1), ops.mul(ops.Tanh()(v), halved(ws)), ws))
    loop = ops.While(Graph(entry, (ops.compare("GT", n, 0),)), body)(const(3, np.int64), x, w)
    a, b = Input("a", x.type)(), Input("b", w.type)()
    branch = ops.Case((Graph((a, b), (ops.mul(a, halved(b)),)),) * 2)(const(1, np.int64), x, w)
    stopped = ops.StopGradient()(loop.results[1])
    arrays = [rng.standard_normal(3), rng.standard_normal(3) + 4]
    for value, by in ((loop.results[1], [x]), (branch, [x]), (ops.mul(stopped, w), [w])):
        graph = Graph((x, w), (ops.reduce_sum(value),))
        if by == [x]:
            check(graph, arrays, by)
            with pytest.raises(UnsupportedOpError, match="neither a constant nor a size"):
                gradients(differentiable(graph).outputs[0], [w])
        else:
            core = differentiable(graph)
            (got,) = interpret(Graph(core.inputs, tuple(gradients(core.outputs[0], by))), arrays)
            np.testing.assert_allclose(got, interpret(Graph((x, w), (stopped,)), arrays)[0])
