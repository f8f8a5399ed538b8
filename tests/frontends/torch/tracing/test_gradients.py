"""Modules that are differentiated: regions without gradients, and functions that bring their own."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import ingot
from ingot.support.errors import UnsupportedOpError


class Bounded(torch.autograd.Function):
    """In the new style: context apart, a result without a gradient, an argument that is no tensor."""

    @staticmethod
    def forward(x: Tensor, low: float) -> tuple[Tensor, Tensor]:
        return x.exp(), x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[0])
        ctx.low = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        return (grad_outputs[0] * y).clamp(ctx.low, 0.3), None


class Scaled(torch.autograd.Function):
    """In the old style, of two tensors: the gradient of one is none, that of the other another than its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        return x * y, x * y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        g, h = grad_outputs
        return ctx.saved_tensors[0] * (2 * g - h), None


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        y, place = Bounded.apply(h, -0.2)
        p, q = Scaled.apply(self.b(y), h)
        with torch.no_grad():
            fixed = h * x.sum()
        recomputed = checkpoint(lambda v: (v * fixed).sin(), h, use_reentrant=True)
        return (p * q + recomputed + fixed * h.detach() + place[:, None]).tanh().mean()


def test_gradients_are_those_that_functions_bring() -> None:
    torch.manual_seed(0)
    net, x = Net().train(), torch.randn(7, 4)
    data = x.clone().requires_grad_()
    want = net(data)
    want.backward()
    got, gradients = ingot.value_and_grad(net, (x,), dynamic={"x": {0: "n"}})(x)
    torch.testing.assert_close((got, gradients["x"]), (want.detach(), data.grad), rtol=1e-5, atol=1e-6)

    reference = deepcopy(net)
    optimizer = torch.optim.SGD(reference.parameters(), 0.5)
    step = ingot.train(net, None, ingot.optim.SGD(lr=0.5), (x,))
    for _ in range(4):
        optimizer.zero_grad()
        loss = reference(x)
        loss.backward()
        optimizer.step()
        assert float(step(x)[0]) == pytest.approx(loss.item(), abs=1e-6)
    torch.testing.assert_close(step.trained().state_dict(), reference.state_dict(), rtol=1e-5, atol=1e-6)


def test_regions_of_higher_order_ops_are_differentiated() -> None:
    """A branch, and a scan whose turns read a weight."""

    class Regions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.cond(x.sum() > 0, lambda v: self.a(v).tanh(), lambda v: self.b(v).relu(), (x,))

            def body(h: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
                h = (h @ self.a.weight + v).tanh()
                return h, h.clone()

            return scan(body, torch.zeros(4), y)[1].square().mean()

    torch.manual_seed(0)
    net, x = Regions(), torch.randn(5, 4)
    reference = deepcopy(net)
    optimizer = torch.optim.SGD(reference.parameters(), 0.5)
    step = ingot.train(net, None, ingot.optim.SGD(lr=0.5), (x,))
    for batch in (x, -x, x):
        optimizer.zero_grad()
        loss = reference(batch)
        loss.backward()
        optimizer.step()
        assert float(step(batch)[0]) == pytest.approx(loss.item(), abs=1e-6)


def test_functions_that_write_are_refused() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Writes.apply(x * 2).sum()

    with pytest.raises(UnsupportedOpError, match="writes its arguments"):
        ingot.value_and_grad(Net(), (torch.randn(3),))
