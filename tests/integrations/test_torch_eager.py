"""torch.compile with options={"fallback": "eager"}: what Ingot lacks runs in PyTorch, between programs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch._dynamo.exc import BackendCompilerFailed  # noqa: E402

from ingot.integrations.torch_compile import explain  # noqa: E402
from ingot.support.errors import UnsupportedOpError  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
OPTIONS = {"fallback": "eager", "threads": 1}


@torch.library.custom_op("ingot_eager::twist", mutates_args=())
def twist(x: Tensor) -> Tensor:
    return x.flip(-1) * 2


@twist.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


twist.register_autograd(lambda ctx, g: g.flip(-1) * 2)


@torch.library.custom_op("ingot_eager::halves", mutates_args=())
def halves(x: Tensor) -> list[Tensor]:
    return [half.contiguous() for half in x.chunk(2, -1)]


@halves.register_fake
def _(x: Tensor) -> list[Tensor]:
    return [torch.empty_like(half, memory_format=torch.contiguous_format) for half in x.chunk(2, -1)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(twist(torch.tanh(self.a(x))))).softmax(-1)


def compiled(net: Any, **options: Any) -> Any:
    return torch.compile(net, backend="ingot", options={**OPTIONS, **options}, fullgraph=True)


def test_without_it_the_refusal_stands() -> None:
    net = torch.compile(Net().eval(), backend="ingot", options={"threads": 1}, fullgraph=True)
    with torch.no_grad(), pytest.raises((UnsupportedOpError, BackendCompilerFailed), match="twist"):
        net(torch.randn(2, 6))
    with pytest.raises(Exception, match="fallback: expected 'eager', or None for an error, got 'cpu'"):
        compiled(Net().eval(), fallback="cpu")(torch.randn(2, 6))


def test_a_graph_is_split(caplog: pytest.LogCaptureFixture) -> None:
    net = Net().eval()
    model = compiled(net)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "ingot.integrations.torch_eager"):
        for batch in (2, 2, 5):
            x = torch.randn(batch, 6)
            torch.testing.assert_close(model(x), net(x))
        assert "ingot_eager.twist.default" in caplog.text
        assert "1 parts run in eager PyTorch, between 2 programs" in caplog.text
        text = explain(model, x)
    before, middle, after = text.partition("in eager PyTorch, ")
    assert "tanh" in before and "maximum" not in before
    assert middle and "twist" in after and "maximum" in after


def test_a_training_step_is_explained() -> None:
    """Forward, which writes running statistics in place, and backward, without a trace in gradients."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
    model = torch.compile(lambda x: net(x), backend="ingot", fullgraph=True)
    text = explain(model, torch.randn(4, 6))
    _, forward, backward = text.split("ms in kernels")
    assert "tanh" in forward and "tanh" not in backward
    assert all(p.grad is None for p in net.parameters())


def test_weights_that_change_take_effect() -> None:
    net = Net().eval()
    model = compiled(net)
    x = torch.randn(2, 6)
    with torch.no_grad():
        before = model(x)
        net.b.weight.mul_(2)
        torch.testing.assert_close(model(x), net(x))
        assert not torch.allclose(model(x), before)


def test_training() -> None:
    torch.manual_seed(0)
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    model = compiled(net)
    optimizers = [torch.optim.SGD(m.parameters(), 0.5) for m in (net, other)]
    for _ in range(3):
        x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
        losses = [nn.functional.nll_loss(m(x).log(), y) for m in (model, other)]
        torch.testing.assert_close(*losses)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_several_results_and_a_buffer_that_is_written() -> None:
    class Counting(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            old = self.calls * 10
            self.calls.add_(1)
            a, b = halves(x + old)
            return torch.exp(a) + self.calls, twist(b) - old

    net, other = Counting().eval(), Counting().eval()
    model = compiled(net)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 4)
            torch.testing.assert_close(model(x), other(x))
    assert float(net.calls) == 3


def test_open_sizes() -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = twist(x.reshape(x.shape[0] * 2, -1))
            return (y + x.shape[0]).reshape(x.shape[0], -1)

    net = Wide().eval()
    model = torch.compile(net, backend="ingot", options=OPTIONS, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for n in (2, 3, 7):
            x = torch.randn(n, 6)
            torch.testing.assert_close(model(x), net(x))


def test_what_is_supported_stays_one_program(caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
    model = compiled(net)
    x = torch.randn(2, 6)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "ingot.integrations.torch_eager"):
        torch.testing.assert_close(model(x), net(x))
    assert not caplog.records and "eager" not in explain(model, x)
