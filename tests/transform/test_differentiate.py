"""ingot.value_and_grad on models of the frontends."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.support.errors import InputError


@pytest.mark.slow
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
    data = x.clone().requires_grad_()
    want = net(data, y)
    want.backward()
    assert model.wrt == ("x",)
    np.testing.assert_allclose(np.asarray(loss), want.item(), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(gradients["x"]), data.grad.numpy(), atol=1e-6)
    for wrt, message in (("y", "floats"), ([], "some of x, y, got none"), (["x", "x"], "once"), ("z", "some of x, y")):
        with pytest.raises(InputError, match=message):
            ingot.value_and_grad(net, (x, y), wrt=wrt)


def test_slopes_at_bounds_are_pytorch_own() -> None:
    """ReLU6's and its kin's are 0 at a bound, those of clamp 1, and of equal operands the first of fmax has it all."""
    torch = pytest.importorskip("torch")
    from torch import Tensor, nn
    from torch.nn import functional as F

    class Bounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rows = (
                F.relu6(x), F.hardtanh(x, -1, 2), F.hardsigmoid(x), F.hardswish(x), x.clamp(-1, 2), x.clamp(1, 1),
                x.clamp_min(1), x.clamp(max=1), torch.clamp(x, torch.zeros(1), torch.ones(1)),
                torch.fmax(x, torch.ones(1)), torch.fmin(torch.ones(1), x), torch.maximum(x, torch.ones(1)),
            )  # fmt: skip
            return sum(((i + 1) * 10 ** (i % 3) * row.sum() for i, row in enumerate(rows)), x.sum())

    x = torch.tensor([-7.0, -3, -1, 0, 0.5, 1, 2, 3, 6, 7], requires_grad=True)
    Bounded()(x).backward()
    assert x.grad is not None
    _, gradients = ingot.value_and_grad(Bounded().eval(), (x.detach(),))(x.detach())
    np.testing.assert_allclose(np.asarray(gradients["x"]), x.grad.numpy(), rtol=1e-6)


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
    single = ingot.grad(model)(x, w)
    assert single.keys() == {"x", "w"}
    np.testing.assert_array_equal(single["w"], gradients["w"])
