"""The borders of the pipeline: what a pass breaks is found, and the pass named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, i64
from ingot.ops import Tanh, While
from ingot.pipeline import cpu
from ingot.pipeline.build import build_program, size_hints
from ingot.pipeline.target import Pass
from ingot.support.errors import VerifyError
from ingot.targets.cpu.workers import host_features
from tests.ir.test_verify import forged

N = symbol("n")


def spoil(graph: Graph) -> Graph:
    """A pass with a bug: its result's type is not what the op gives."""
    (x,) = graph.outputs
    return graph.with_outputs([forged(Tanh(), (x,), TensorType(f32, (N + 1,)), loc="m.py:3")])


def broken(name: str) -> Callable[..., tuple[tuple[str, Pass], ...]]:
    """`cpu_passes` in which the pass `name` is followed by the bug."""
    passes = cpu.cpu_passes

    def spoiled(run: Pass) -> Pass:
        return lambda g: spoil(run(g))

    return lambda *options: tuple((n, spoiled(run) if n == name else run) for n, run in passes(*options))


def small() -> Graph:
    x = Input("x", TensorType(f32, (N,)))()
    return Graph((x,), (Tanh()(x),))


def test_a_pass_that_breaks_the_graph_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu, "cpu_passes", broken("lower"))
    with pytest.raises(VerifyError, match=r"after lower: tanh at m.py:3: types: expected f32\[n\]"):
        build_program(small(), host_features(), 1)


def test_both_ends_are_verified_without_the_flag(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INGOT_VERIFY", "0")
    with pytest.raises(VerifyError, match="after import: tanh"):
        build_program(spoil(small()), host_features(), 1)
    monkeypatch.setattr(cpu, "cpu_passes", broken("bodies"))
    with pytest.raises(VerifyError, match=r"after the passes \(INGOT_VERIFY=1 tells which\): tanh"):
        build_program(small(), host_features(), 1)


def nest(depth: int, i: Node, x: Node) -> Node:
    """Loops inside loops, whose innermost body has a size of the outermost graph among its attributes alone."""
    if depth == 0:
        return ops.broadcast_to(ops.reduce_sum(x, (0,)), (N,))
    state = (Input("i", i.type)(), Input("x", x.type)())
    body = Graph(state, (ops.sub(state[0], 1), nest(depth - 1, *state)))
    return While(Graph(state, (ops.compare("GT", state[0], 0),)), body)(i, x).results[1]


def test_bodies_may_use_the_sizes_around_them():
    i, x = Input("i", TensorType(i64, ()))(), Input("x", TensorType(f32, (N,)))()
    build_program(Graph((i, x), (nest(2, i, x),)), host_features(), 1)


def test_likely_lengths_leave_something_of_every_dimension() -> None:
    """A length is a text's, unless strided convolutions would leave nothing of it: then it is a waveform's."""
    length = symbol("length")
    x = Input("x", TensorType(f32, (symbol("n"), 4, length)))()
    halved = ops.Conv((2,), ((0, 0),), (1,))(x, const(np.zeros((4, 4, 2), np.float32)))
    thinned = ops.Conv((200,), ((0, 0),), (1,))(x, const(np.zeros((4, 4, 200), np.float32)))
    assert size_hints(Graph((x,), (halved,))) == {"n": 1, "length": 128}
    assert size_hints(Graph((x,), (halved, thinned))) == {"n": 1, "length": 128 * 256}
    assert size_hints(Graph((x,), (thinned,), bounds=(("length", 1, 1000),))) == {"n": 1, "length": 1000}
