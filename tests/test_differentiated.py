"""ingot.value_and_grad on models of the frontends."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.support.errors import InputError


def test_a_torch_loss() -> None:
    torch = pytest.importorskip("torch")
    from torch import Tensor, nn
    from torch.nn import functional as F

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.LayerNorm(16)
            )
            self.heads = nn.MultiheadAttention(16, 2, batch_first=True)
            self.end = nn.Linear(16, 5)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            h = self.body(x)[:, None]
            return F.cross_entropy(self.end(h + self.heads(h, h, h)[0])[:, 0], y)

    torch.manual_seed(0)
    net, x, y = Loss().eval(), torch.randn(3, 2, 8, 8), torch.tensor([1, 4, 0])
    model = ingot.value_and_grad(net, (x, y))
    loss, gradients = model(x, y)
    given = x.clone().requires_grad_()
    want = net(given, y)
    want.backward()
    assert model.wrt == ("x",)
    np.testing.assert_allclose(np.asarray(loss), want.item(), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(gradients["x"]), given.grad.numpy(), atol=1e-6)
    with pytest.raises(InputError, match="floats"):
        ingot.value_and_grad(net, (x, y), wrt="y")


def test_an_onnx_loss_of_open_sizes() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> m (float[n,3] x, float[3,2] w) => (float loss)'
        "{ y = MatMul(x, w) z = Tanh(y) s = Mul(z, z) loss = ReduceMean <keepdims = 0> (s) }"
    )
    step = ingot.value_and_grad(model, wrt="w")
    rng = np.random.default_rng(0)
    w = rng.standard_normal((3, 2), np.float32)
    for n in (1, 5, 8):
        x = rng.standard_normal((n, 3), np.float32)
        loss, gradients = step(x, w)
        z = np.tanh(x @ w)
        np.testing.assert_allclose(loss, (z * z).mean(), rtol=1e-5)
        np.testing.assert_allclose(gradients["w"], x.T @ (2 * z * (1 - z * z)) / z.size, atol=1e-6)
