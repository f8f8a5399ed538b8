"""What is detached, or computed without gradients, is a constant to the backward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ingot

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b((y - y.detach()).exp() * torch.tanh(y.detach()))


class Unwatched(Detached):
    """Written in place, so that the graph is decomposed."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        with torch.no_grad():
            scale = self.b(y.relu()).mean(1, keepdim=True)
        return self.b(y).clone().mul_(scale) + scale


class Written(nn.Module):
    """Forward writes parameters, which learn from what they are then, and a row of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 3)
        self.table = nn.Embedding(4, 5, max_norm=0.5)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(2, 5))

    def forward(self, x: Tensor) -> Tensor:
        before = x @ self.b.weight.sum(0)
        with torch.no_grad():
            self.b.weight.copy_(nn.functional.normalize(self.b.weight))
            self.b.weight[0].mul_(0.5)
            self.seen[0].copy_(self.a(x).mean(0))
        y = self.a(x) * self.seen[0] + self.table(torch.tensor([0, 1, 2, 0, 3, 3]))
        return self.b(y) * self.b.weight.detach().sum() + before[:, None]


@pytest.mark.parametrize("make", [Detached, Unwatched, Written])
def test_as_eager(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net, x, y = make(), torch.randn(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])
    step = ingot.train(copy.deepcopy(net), "cross_entropy", ingot.optim.SGD(lr=0.1), (x,), threads=2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        want = nn.functional.cross_entropy(net(x), y)
        want.backward()
        optimizer.step()
        assert abs(float(step(x, y)[0]) - float(want)) < 1e-5
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(np.asarray(step.state_dict()[name]), value.numpy(), atol=1e-5)


def test_a_loss_of_results_alone() -> None:
    """Two towers that are told apart within a batch: no targets."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Linear(5, 4)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return nn.functional.normalize(self.f(a), dim=1) @ nn.functional.normalize(self.f(b), dim=1).detach().T

    def loss(scores: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores, torch.arange(len(scores)))

    torch.manual_seed(0)
    net, a, b = Towers(), torch.randn(6, 5), torch.randn(6, 5)
    step = ingot.train(copy.deepcopy(net), loss, ingot.optim.SGD(lr=0.5), (a, b))
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        want = loss(net(a, b))
        want.backward()
        optimizer.step()
        assert abs(float(step(a, b)[0]) - float(want)) < 1e-5


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    np_ = jax.numpy

    def net(p: dict[str, Any], x: Any) -> Any:
        y = jax.nn.softmax(x @ p["a"])
        return jax.lax.stop_gradient(y) * (y @ p["b"])

    rng = np.random.default_rng(0)
    p, x, y = ({k: np_.asarray(rng.normal(size=(4, 4)), np_.float32) for k in "ab"},
               *(np_.asarray(rng.normal(size=(3, 4)), np_.float32) for _ in "xy"))  # fmt: skip
    step = ingot.train(net, "mse", ingot.optim.SGD(lr=0.1), (p, x))
    for _ in range(3):
        want, g = jax.value_and_grad(lambda p: ((net(p, x) - y) ** 2).mean())(p)
        p = {k: p[k] - 0.1 * g[k] for k in p}
        assert abs(float(step(x, np.asarray(y))[0]) - float(want)) < 1e-6
    assert np_.allclose(np_.asarray(step.trained()["a"]), p["a"], atol=1e-6)
