"""Recurrent kernels against the interpreter: cells, directions, lengths, shared columns, dynamic sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ingot.schedule.cpu.recurrent.cell as scan_cell
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Project, const
from ingot.ops import GRU, LSTM, RNN
from ingot.ops.nn.recurrent import Recurrent
from tests.schedule.compiled import MACHINES, NATIVE, check, compile_graph, inputs_like, op_graph


def operands(op: Recurrent, steps: int, batch: int, features: int = 20) -> list[np.ndarray]:
    rng = np.random.default_rng(steps + batch)

    def values(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    d, h = len(op.directions()), op.hidden
    width = op.gates * h
    parameters = [values(d, width, features), values(d, width, h), values(d, 2 * width)]
    if op.has_scales:
        parameters[1] = rng.integers(-128, 128, (d, width, h)).astype(np.int8)
    xs = [values(steps, batch, features), *parameters, *(values(d, batch, h) for _ in range(op.states))]
    if op.has_lengths:
        xs.append(rng.integers(0, steps + 1, batch).astype(np.int32))
    if op.has_peepholes():
        xs.append(values(d, 3 * h))
    if op.has_scales:
        xs.append(abs(values(d, width)) * np.float32(0.02))
    return xs


def constants(op: Recurrent, xs: list[np.ndarray]) -> tuple[int, ...]:
    """Which operands are parameters."""
    return (1, 2, 3, len(xs) - 1) if op.has_scales else (1, 2, 3)


def constant_graph(op: Recurrent, xs: list[np.ndarray], shapes: dict[int, tuple[object, ...]] | None = None) -> Graph:
    """Parameters as constants, the rest as inputs."""
    ins = inputs_like(xs, shapes)  # type: ignore[arg-type]
    weights = constants(op, xs)
    args = [const(x) if i in weights else n for i, (x, n) in enumerate(zip(xs, ins, strict=True))]
    return Graph(tuple(n for i, n in enumerate(ins) if i not in weights), op(*args).results)


def variable_inputs(op: Recurrent, xs: list[np.ndarray]) -> list[np.ndarray]:
    return [x for i, x in enumerate(xs) if i not in constants(op, xs)]


@pytest.mark.parametrize(
    ("op", "xs"),
    [
        (op, xs)
        for cls in (LSTM, GRU, RNN)
        for op, xs in cls.samples()
        if isinstance(op, Recurrent) and not op.has_scales
    ],  # with R unknown, those are loops
    ids=lambda v: v.name if hasattr(v, "name") else "",
)
def test_samples(op: Recurrent, xs: tuple[np.ndarray, ...]) -> None:
    check(op_graph(op, xs), xs, rtol=1e-3 if xs[0].dtype == np.float16 else 4e-6)


OPS = {
    "lstm": LSTM(40),
    "lstm-two-ways": LSTM(33, "bidirectional", has_lengths=True, has_peephole=True),
    "gru": GRU(48, "reverse"),
    "gru-linear": GRU(40, "bidirectional", linear_before_reset=True),
    "rnn": RNN(50, has_lengths=True),
    "lstm-rounded": LSTM(40, has_lengths=True, levels=True),
    "lstm-bytes": LSTM(37, "bidirectional", has_lengths=True, has_peephole=True, levels=True, has_scales=True),
}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_packed_parameters(op: Recurrent, machine) -> None:
    for steps, batch in ((6, 1), (3, 6), (5, 9)):
        xs = operands(op, steps, batch)
        check(constant_graph(op, xs), variable_inputs(op, xs), machine=machine)


@pytest.mark.parametrize("op", [*OPS.values(), LSTM(160, "bidirectional")], ids=[*OPS, "lstm-large"])
def test_columns_shared_by_workers(op: Recurrent, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the chunks fall on the threads, and with one thread alone, the passes keep their order."""
    monkeypatch.setattr(scan_cell, "PART_SECONDS", 1e-12)
    xs = operands(op, 9, 2)
    graph = constant_graph(op, xs)
    want = interpret(graph, variable_inputs(op, xs))
    for threads in (1, 3):
        model = compile_graph(graph, replace(NATIVE, threads=6), threads=threads)
        for _ in range(20):
            results = model(*variable_inputs(op, xs))
            assert isinstance(results, tuple)
            for got, w in zip(results, want, strict=True):
                np.testing.assert_allclose(got, w, rtol=0, atol=1e-5)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_dynamic_steps_and_batch(op: Recurrent) -> None:
    s, b = symbol("s"), symbol("b")
    d, h = len(op.directions()), op.hidden
    shapes: dict[int, tuple[object, ...]] = {0: (s, b, 20), 4: (d, b, h)}
    if op.states == 2:
        shapes[5] = (d, b, h)
    if op.has_lengths:
        shapes[4 + op.states] = (b,)
    first = operands(op, 1, 1)
    graph = constant_graph(op, first, shapes)
    model = compile_graph(graph)
    # whole tiles of rows, what is left of one, and both
    for steps, batch in ((1, 1), (7, 11), (3, 4), (2, 2), (2, 3), (3, 5), (2, 7), (4, 8), (2, 17)):
        xs = operands(op, steps, batch)
        for i in constants(op, xs):
            xs[i] = first[i if i < 4 else -1]
        results = model(*variable_inputs(op, xs))
        assert isinstance(results, tuple)
        for got, want in zip(results, interpret(graph, variable_inputs(op, xs)), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=4e-6)


def test_unread_results() -> None:
    op = LSTM(32)
    xs = operands(op, 4, 1)
    graph = constant_graph(op, xs)
    (y,) = [n for n in graph.outputs if isinstance(n.op, Project) and n.op.index == 0]
    check(graph.with_outputs((y,)), variable_inputs(op, xs))
