"""Inputs whose values are sizes: symbols that a call's data tells."""

import numpy as np
import pytest

import ingot
from ingot import CompiledModel, ops
from ingot.ir import types as T
from ingot.ir.dims import dim_max, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.parse import parse
from ingot.ir.show import show
from ingot.pipeline.build import build_program
from ingot.support.errors import InputError
from ingot.targets.cpu.workers import host_features

B, N, M = symbol("b"), symbol("shape.0"), symbol("shape.1")


def tiled() -> Graph:
    """f32[b] repeated as often as the first element says, times the second."""
    x = Input("x", T.TensorType(T.f32, (B,)))()
    shape = Input("shape", T.TensorType(T.i64, (2,)), (N, M))()
    rows = ops.broadcast_to(ops.reshape(x, (B, 1)), (B, dim_max(N, 0)))
    return Graph((x, shape), (ops.mul(rows, ops.cast(ops.DimValue(M)(), T.f32)),), ("y",), (("shape.1", None, 9),))


X = np.arange(3, dtype=np.float32)


def test_the_text_says_what_elements_are() -> None:
    text = show(tiled())
    assert '%1 "shape": i64[2] = [shape.0, shape.1]) [shape.1: ..9]' in text
    assert parse(text) == tiled()


@pytest.mark.parametrize("elements", [(4, -2), (0, 3), (-1, 3), (1, 9)])
def test_a_call_tells_them(elements: tuple[int, int], tmp_path) -> None:
    compiled = CompiledModel(build_program(tiled(), host_features(), 1), threads=1)
    compiled.save(tmp_path / "m.ingot")
    (want,) = interpret(tiled(), [X, np.array(elements)])
    for model in (compiled, ingot.load(tmp_path / "m.ingot", threads=1)):
        np.testing.assert_array_equal(model(X, np.array(elements)), want)


def test_what_they_may_be_is_checked() -> None:
    compiled = CompiledModel(build_program(tiled(), host_features(), 1), threads=1)
    for run in (lambda *xs: compiled(*xs), lambda *xs: interpret(tiled(), list(xs))):
        with pytest.raises(InputError, match=r"shape\.1 <= 9|shape\.1 in"):
            run(X, np.array([1, 10]))
    with pytest.raises(InputError, match="input 'shape': expected 2 elements, got 3"):
        compiled(X, np.array([1, 2, 3]))


def test_elements_that_are_known_are_compared() -> None:
    substituted = tiled().substitute({"b": 3, "shape.0": 2, "shape.1": 5})
    compiled = CompiledModel(build_program(substituted, host_features(), 1), threads=1)
    assert compiled(X, np.array([2, 5])).shape == (3, 2)
    with pytest.raises(InputError, match="input 'shape', element 0: expected 2"):
        compiled(X, np.array([3, 5]))
