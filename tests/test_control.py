"""While and Case as jumps in the plan, against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, f32, i64
from ingot.ops import GRU, LSTM, Case, DotGeneral, Tanh, While
from ingot.passes.model.lower import lower_model_ops
from tests.schedule.compiled import NATIVE, check, compile_graph, inputs_like, op_graph
from tests.schedule.cpu.recurrent.test_recurrent import operands


@pytest.mark.parametrize(("op", "xs"), [*While.samples(), *Case.samples()], ids=str)
def test_samples(op, xs) -> None:
    check(op_graph(op, xs), xs)


def matrix_power(n: object) -> Graph:
    """(steps, x[n,24], w) -> x tanh(x w) ... `steps` times, with w handed on."""
    state = (
        Input("i", TensorType(i64, ()))(),
        Input("x", TensorType(f32, (n, 24)))(),  # type: ignore[arg-type]
        Input("w", TensorType(f32, (24, 24)))(),
    )
    i, x, w = state
    duplicate = Tanh()(DotGeneral(((), ()), ((1,), (0,)))(x, w))
    body = Graph(state, (ops.sub(i, 1), duplicate, w))
    return Graph(state, While(Graph(state, (ops.compare("GT", i, 0),)), body)(*state).results)


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_loop_with_products(steps: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((40, 24), (24, 24)))
    xs = [np.asarray(steps), x, w / 5]
    check(matrix_power(40), xs)
    check(matrix_power(symbol("n")), xs)


def test_constants_are_known_inside() -> None:
    """A constant that the loop hands on is packed for the product inside."""
    rng = np.random.default_rng(0)
    w = const(rng.standard_normal((24, 24)).astype(np.float32) / 5)
    inner = matrix_power(9).outputs[0].inputs[0].op
    steps, x = Input("steps", TensorType(i64, ()))(), Input("x", TensorType(f32, (9, 24)))()
    results = inner(steps, x, w).results
    graph = Graph((steps, x), (ops.mul(results[1], 2.0), results[2]))
    check(graph, [np.asarray(5), rng.standard_normal((9, 24)).astype(np.float32)])


@pytest.mark.parametrize("threads", [1, 4])
def test_nested_loops_and_branches(threads: int) -> None:
    """for i < n: for j < i: x = i odd ? tanh(x) : x + j"""
    types = (TensorType(i64, ()), TensorType(i64, ()), TensorType(f32, (300, 50)))
    j, i, x = (Input(name, t)() for name, t in zip("jix", types, strict=True))
    jj, xx = Input("jj", types[0])(), Input("xx", types[2])()
    yes = Graph((jj, xx), (Tanh()(xx),))
    no = Graph((jj, xx), (ops.add(xx, ops.broadcast_to(ops.cast(jj, f32), (300, 50))),))
    odd = ops.Rem()(i, const(2, np.int64))
    inner = While(
        Graph((j, i, x), (ops.compare("LT", j, i),)),
        Graph((j, i, x), (ops.add(j, 1), i, Case((no, yes))(odd, j, x))),
    )
    outer_i, n, y = (Input(name, t)() for name, t in zip("iny", types, strict=True))
    zero = const(0, np.int64)
    loop = While(
        Graph((outer_i, n, y), (ops.compare("LT", outer_i, n),)),
        Graph((outer_i, n, y), (ops.add(outer_i, 1), n, inner(zero, outer_i, y).results[2])),
    )
    count, start = Input("count", types[0])(), Input("start", types[2])()
    result = loop(zero, count, ops.mul(start, 0.5)).results[2]
    graph = Graph((count, start), (ops.transpose(result, (1, 0)),))
    xs = [np.asarray(4), np.random.default_rng(0).standard_normal((300, 50)).astype(np.float32)]
    check(graph, xs, machine=replace(NATIVE, threads=threads))
    model = compile_graph(graph, replace(NATIVE, threads=threads), threads=threads)
    want = model(*xs)
    for _ in range(20):
        np.testing.assert_array_equal(model(*xs), want)


@pytest.mark.parametrize("op", [LSTM(20, "bidirectional", has_lengths=True), GRU(16)], ids=["lstm", "gru"])
def test_lowered_recurrent_layers(op) -> None:
    xs = operands(op, 6, 3)
    s, b = symbol("s"), symbol("b")
    d = len(op.directions())
    shapes: dict = {0: (s, b, 20), 4: (d, b, op.hidden), 5: (d, b, op.hidden)}
    if op.has_lengths:
        shapes[6] = (b,)
    for data in (None, shapes):
        graph = lower_model_ops(op_graph(op, xs, data), frozenset())
        check(graph, xs)


def test_case_takes_the_last_branch_out_of_range() -> None:
    x = np.arange(6, dtype=np.float32)
    ins = inputs_like([np.asarray(0, np.int32), x])
    (v,) = inputs_like([x])
    branches = tuple(Graph((v,), (ops.mul(v, float(k)),)) for k in range(3))
    graph = Graph(tuple(ins), (ops.reshape(Case(branches)(*ins), (2, 3)),))
    for index in (-5, 0, 1, 2, 3, 99):
        check(graph, [np.asarray(index, np.int32), x])
