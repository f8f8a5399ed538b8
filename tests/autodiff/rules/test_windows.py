"""Gradients of windows' extremes beside PyTorch's: ties, NaN, infinities, padding, windows that meet or leave gaps."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff import pullback
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, dtype_of
from ingot.passes.model.lower import lower_model_ops


def gradient(op: ops.MaxPool, x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    node = Input("x", TensorType(dtype_of(x), x.shape))()
    result: Node = pullback(lambda v: op(v), node, const(cotangent))
    (got,) = interpret(lower_model_ops(Graph((node,), (result,))), [x])
    return got


def test_extremes_of_any_windows() -> None:
    torch = pytest.importorskip("torch")
    rng, count = np.random.default_rng(0), 0
    while count < 60:
        kernel, strides = (tuple(rng.integers(1, limit, 2).tolist()) for limit in (6, 5))
        padding = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
        dilation = (1, 1) if rng.random() < 0.8 else (2, 1)
        ceil_mode = bool(rng.random() < 0.4)
        x = rng.integers(-3, 4, (2, 2, *rng.integers(5, 13, 2))).astype(float)
        special = rng.random(x.shape)
        x[special < 0.2] = -np.inf
        x[special > (0.9 if count % 2 else 1)] = np.nan
        leaf = torch.tensor(x, requires_grad=True)
        try:
            y = torch.nn.functional.max_pool2d(leaf, kernel, strides, padding, dilation, ceil_mode)
        except RuntimeError:  # no window fits
            continue
        cotangent = rng.standard_normal(y.shape)
        y.backward(torch.tensor(cotangent))
        op = ops.MaxPool(kernel, strides, tuple((p, p) for p in padding), dilation, ceil_mode)
        np.testing.assert_allclose(gradient(op, x, cotangent), leaf.grad.numpy(), atol=1e-12, err_msg=str(op))
        count += 1


@pytest.mark.parametrize(("size", "keys"), [(4, 0), (6, 1)])
def test_small_windows_need_no_value_of_the_size_of_the_image(size: int, keys: int) -> None:
    """Of a few elements, each is compared with the extreme; of more, numbers of all elements are reduced."""
    x = Input("x", TensorType(dtype_of(np.ones(1)), (1, 2, 12, 12)))()
    op, count = ops.MaxPool((size, size), (size, size), ((0, 0), (0, 0)), (1, 1), False), 12 // size
    result: Node = pullback(lambda v: op(v), x, const(np.ones((1, 2, count, count))))
    nodes = lower_model_ops(Graph((x,), (result,))).nodes()
    assert sum(isinstance(n.op, ops.ReduceWindow) and n.op.kind == "min" for n in nodes) == keys
