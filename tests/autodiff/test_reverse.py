"""Gradients of whole graphs, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff import gradients, value_and_gradients
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, i64
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import InputError, UnsupportedOpError


def x_of(*shape: int, name: str = "x") -> Node:
    return Input(name, TensorType(f32, shape))()


def test_what_is_used_twice_is_added() -> None:
    x = x_of(3)
    (g,) = gradients(ops.reduce_sum(ops.mul(x, x)), [x])
    np.testing.assert_allclose(interpret(Graph((x,), (g,)), [np.array([1, -2, 3], np.float32)])[0], [2, -4, 6])


def test_what_the_loss_does_not_read_has_zeros() -> None:
    x, y = x_of(3), x_of(2, name="y")
    _, g = gradients(ops.reduce_sum(x), [x, y])
    assert (interpret(Graph((x, y), (g,)), [np.ones(3, np.float32), np.ones(2, np.float32)])[0] == 0).all()


def test_a_softmax_layer_compiled() -> None:
    """Cross entropy of a layer: the gradient of the logits is softmax less the labels."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 5), np.float32), rng.standard_normal((5, 3), np.float32)
    labels = np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]
    a, b = x_of(4, 5), x_of(5, 3, name="w")
    logits = ops.MatMul()(a, b)

    def loss(results: Sequence[Node]) -> Node:
        likely = ops.LogSoftmax(1)(results[0])
        return ops.div(ops.Neg()(ops.reduce_sum(ops.mul(likely, const(labels)))), 4)

    graph = value_and_gradients(Graph((a, b), (logits,), ("logits",)), loss, [0, 1])
    assert graph.output_names == ("loss", "gradient of x", "gradient of w")
    e = np.exp(x.astype(np.float64) @ w)
    of_logits = (e / e.sum(1, keepdims=True) - labels) / 4
    want = of_logits @ w.T, x.T @ of_logits
    for got in (interpret(graph, [x, w]), CompiledModel(build_native(graph, 2), threads=2)(x, w)):
        np.testing.assert_allclose(got[1], want[0], atol=1e-6)
        np.testing.assert_allclose(got[2], want[1], atol=1e-6)


def test_refusals() -> None:
    x, n = x_of(3), Input("n", TensorType(i64, (3,)))()
    with pytest.raises(InputError, match="scalar"):
        gradients(x, [x])
    with pytest.raises(InputError, match="floats"):
        gradients(ops.reduce_sum(x), [n])
    with pytest.raises(UnsupportedOpError, match="eig"):
        gradients(ops.reduce_sum(ops.Eig()(ops.mul(x_of(3, 3), 2)).results[0]), [x_of(3, 3)])
    with pytest.raises(UnsupportedOpError, match="not square"):
        gradients(ops.reduce_sum(ops.LU()(x_of(3, 4)).results[0]), [x_of(3, 4)])
    # what does not depend on x may be anything
    (g,) = gradients(ops.reduce_sum(ops.mul(x, ops.reduce_sum(ops.Eig()(x_of(3, 3, name="y")).results[0], 0))), [x])
    assert g.shape == (3,)
