"""Gradients of maps along axes: pads and resizes beside PyTorch's, numbers that are not finite."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff import pullback
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op, const
from ingot.ir.types import TensorType, dtype_of
from ingot.passes.model.lower import lower_model_ops

MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nearest": ({"mode": "nearest"}, {"coordinates": "asymmetric", "nearest_mode": "floor"}),
    "exact": ({"mode": "nearest-exact"}, {"nearest_mode": "round_prefer_ceil"}),
    "bilinear": ({"mode": "bilinear"}, {"mode": "linear"}),
    "corners": ({"mode": "bilinear", "align_corners": True}, {"mode": "linear", "coordinates": "align_corners"}),
    "bicubic": ({"mode": "bicubic"}, {"mode": "cubic"}),
    "antialias": (
        {"mode": "bilinear", "antialias": True},
        {"mode": "linear", "antialias": True, "exclude_outside": True},
    ),
}


def gradient(op: Op, x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    node = Input("x", TensorType(dtype_of(x), x.shape))()
    result: Node = pullback(lambda v: op(v), node, const(cotangent))
    assert not any("scatter" in n.op.name for n in lower_model_ops(Graph((node,), (result,))).nodes())
    (got,) = interpret(lower_model_ops(Graph((node,), (result,))), [x])
    return got


@pytest.mark.parametrize("name", MODES)
def test_resizes_between_any_sizes(name: str) -> None:
    torch = pytest.importorskip("torch")
    torch_mode, ingot_mode = MODES[name]
    rng = np.random.default_rng(0)
    for _ in range(12):
        old, new = rng.integers(1, 12, 2), tuple(rng.integers(1, 20, 2).tolist())
        leaf = torch.tensor(rng.standard_normal((1, 2, *old)), requires_grad=True)
        y = torch.nn.functional.interpolate(leaf, size=new, **torch_mode)
        cotangent = rng.standard_normal(y.shape)
        y.backward(torch.tensor(cotangent))
        got = gradient(ops.Resize(new, (2, 3), **ingot_mode), leaf.detach().numpy(), cotangent)
        np.testing.assert_allclose(got, leaf.grad.numpy(), atol=1e-12, err_msg=f"{old} to {new}")


@pytest.mark.parametrize(("mode", "ingot_mode"), [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")])
def test_pads_of_any_width(mode: str, ingot_mode: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    for _ in range(25):
        size = rng.integers(1, 9, 2)
        limit = {"reflect": size - 1, "replicate": size + 9, "circular": size}[mode]
        low, high = (rng.integers(0 if mode == "circular" else -1, limit + 1) for _ in range(2))
        if (size + low + high < 1).any():
            continue
        leaf = torch.tensor(rng.standard_normal((2, 2, *size)), requires_grad=True)
        y = torch.nn.functional.pad(leaf, [low[1], high[1], low[0], high[0]], mode=mode)
        cotangent = rng.standard_normal(y.shape)
        y.backward(torch.tensor(cotangent))
        op = ops.PadMode((0, 0, *map(int, low)), (0, 0, *map(int, high)), ingot_mode)
        got = gradient(op, leaf.detach().numpy(), cotangent)
        np.testing.assert_allclose(got, leaf.grad.numpy(), atol=1e-12, err_msg=str(op))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("rank", [3, 5])
def test_pads_of_many_axes(mode: str, rank: int) -> None:
    """The adjoint: <pad(x), y> = <x, gradient(y)>."""
    rng = np.random.default_rng(2)
    op = ops.PadMode(tuple(rng.integers(0, 3, rank).tolist()), tuple(rng.integers(-1, 3, rank).tolist()), mode)
    x = rng.standard_normal((4,) * rank)
    y = op.reference(x)
    assert isinstance(y, np.ndarray)
    cotangent = rng.standard_normal(y.shape)
    np.testing.assert_allclose((y * cotangent).sum(), (x * gradient(op, x, cotangent)).sum())


@pytest.mark.parametrize(
    "op",
    [
        ops.Resize((16,), (1,), "linear"),
        ops.Resize((5,), (1,), "cubic"),
        ops.Resize((100,), (1,), "linear"),
        ops.PadMode((0, 2), (0, 3), "reflect"),
        ops.AdaptiveAvgPool((3,)),
    ],
    ids=lambda op: op.name,
)
def test_infinite_gradients_stay_where_they_are(op: Op) -> None:
    """Each goes to the elements that its result read, and to no other."""
    x = np.ones((1, 1, 8) if isinstance(op, ops.AdaptiveAvgPool) else (1, 8))
    shape = [int(d) for d in op(Input("x", TensorType(dtype_of(x), x.shape))()).shape]
    one_at = partial(np.where, np.arange(shape[-1]) == shape[-1] // 2)
    is_nonzero = gradient(op, x, np.broadcast_to(one_at(1.0, 0.0), shape)) != 0
    got = gradient(op, x, np.broadcast_to(one_at(np.inf, 1.0), shape))
    np.testing.assert_array_equal(np.isfinite(got), ~is_nonzero)
    assert not np.isnan(got).any()
