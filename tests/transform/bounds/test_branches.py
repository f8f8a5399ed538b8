"""Bounds of branches: of the one that is taken, or of all where the condition depends on the inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ingot
from ingot import ops
from ingot.driver.compile import Options, compiled_program
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, boolean, f32, i32
from ingot.passes.constants import value_of
from ingot.passes.core.unroll import unroll
from ingot.runtime.executor import CompiledModel
from ingot.transform.bounds.error import rounding_errors
from ingot.transform.bounds.graph import METHODS, Question, bound_graph
from ingot.transform.bounds.rounding import Rounding
from tests.transform.bounds.test_narrow import NARROW, wide_layer

SIZE = 256


def branches(index: Node, x: Node, has_minimum: bool = False, of: str = "levels", captured: bool = False) -> Node:
    """index -> relu(w x), tanh(w' x) or a part of x. of: what the weights are. captured: whether they are operands."""
    products = [wide_layer(int(x.shape[0]), has_minimum).results[0] for _ in range(2)]
    weights = [const(value_of(y.inputs[1])) if of == "constants" else y.inputs[1] for y in products]
    inner, *slots = [Input(f"operand {i}", v.type)() for i, v in enumerate((x, *weights))]
    first, second = (y.op(inner, v) for y, v in zip(products, slots if captured else weights, strict=True))
    results = (ops.Max()(first, ops.full(first.shape, 0.0, f32)), ops.Tanh()(second), ops.slice_axis(inner, 1, 0, 64))
    return ops.Case(tuple(Graph((inner, *slots), (y,)) for y in results))(index, x, *weights)


def test_all_branches_are_selected_from() -> None:
    index, x = Input("index", TensorType(i32))(), Input("x", TensorType(f32, (2, SIZE)))()
    graph = Graph((index, x), (branches(index, x),))
    straight = unroll(graph)
    assert not any(n.op.bodies for n in straight.nodes())
    value = np.random.default_rng(0).normal(size=(2, SIZE)).astype(np.float32)
    for i in (-1, 0, 1, 2, 9):
        inputs = [np.asarray(i, np.int32), value]
        np.testing.assert_array_equal(interpret(graph, inputs)[0], interpret(straight, inputs)[0])


@pytest.mark.parametrize("method", METHODS)
def test_a_condition_on_the_inputs(method: str) -> None:
    x = Input("x", TensorType(f32, (1, 4)))()
    condition = ops.Compare("GT")(ops.reduce("sum", x), const(np.float32(0)))
    inner = Input("x", x.type)()
    op = ops.Case((Graph((inner,), (ops.Neg()(inner),)), Graph((inner,), (ops.add(inner, 10.0),))))
    graph = Graph((x,), (op(ops.cast(condition, i32), x),))
    for low, high, least, most in ((0.5, 1, 10.5, 11), (-1, -0.5, 0.5, 1), (-1, 1, -1, 11)):
        question = Question((True,), method, None, Rounding())
        lower, upper = interpret(bound_graph(graph, question), [np.full((1, 4), v, np.float32) for v in (low, high)])
        np.testing.assert_allclose([lower, upper], [np.full((1, 4), least), np.full((1, 4), most)], rtol=1e-6)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("precision", "activations"), [("float32", "float32"), *NARROW])
@pytest.mark.parametrize("of", ["constants", "levels", "minima"])
@pytest.mark.parametrize("captured", [False, True])
def test_branches_in_narrower_programs(captured: bool, of: str, precision: str, activations: str) -> None:
    """The bounds of the rounding hold for each branch of the program."""
    flag, x = Input("flag", TensorType(boolean))(), Input("x", TensorType(f32, (3, SIZE)))()
    graph = Graph((flag, x), (branches(ops.cast(flag, i32), x, of == "minima", of, captured),))
    options = Options(threads=1, cache=False, precision=precision, activations=activations)
    program = CompiledModel(compiled_program(graph, options), threads=1)
    value = np.random.default_rng(1).normal(size=(3, SIZE)).astype(np.float32)
    for chosen in (False, True):
        inputs = [np.asarray(chosen), value]
        distance = np.abs(np.asarray(program.run(inputs)[0]) - interpret(graph, inputs)[0]).max()
        (bound,) = rounding_errors(graph, inputs, options).values()
        assert distance <= bound < np.inf


def test_scalars_of_the_inputs_keep_their_rank() -> None:
    class Net(torch.nn.Module):
        def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.where(flag, x * 2, -x)

    for flag, least, most in ((True, 4, 8), (False, -4, -2)):
        lower, upper = ingot.bounds(Net(), (torch.tensor(flag), torch.tensor(3.0)), eps=1.0)
        assert lower.shape == upper.shape == ()
        np.testing.assert_allclose([lower, upper], [least, most], rtol=1e-6)
