"""Adversarial training: a step equals the attack and the update by PyTorch, and makes a network harder to attack."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import ingot

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def _batch(seed: int, count: int = 32) -> tuple[Tensor, Tensor]:
    """Three clusters."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    centers = np.asarray([[1, 0, 0, 0.2], [0, 1, 0, 0.2], [0, 0, 1, 0.2]])
    x = centers[y] + rng.normal(size=(count, 4)) * 0.15
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_step_is_pytorchs(weight: float) -> None:
    net, (x, y) = _net(), _batch(1)
    expected = copy.deepcopy(net)
    adversary = ingot.Adversary(0.1, steps=3, step=0.06, weight=weight, lower=-0.2)
    step = ingot.train(net, "cross_entropy", ingot.optim.SGD(lr=0.5), (x,), adversary=adversary)
    point = x
    for _ in range(3):
        leaf = point.detach().requires_grad_()
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(expected(leaf), y), leaf)
        point = torch.maximum((leaf + 0.06 * slope.sign()).clamp(x - 0.1, x + 0.1), torch.tensor(-0.2)).detach()
    loss = weight * nn.functional.cross_entropy(expected(point), y)
    loss = loss + (1 - weight) * nn.functional.cross_entropy(expected(x), y)
    loss.backward()
    got, _ = step(x, y)
    np.testing.assert_allclose(float(got), float(loss.detach()), rtol=1e-5)
    state = step.state_dict()
    for name, p in expected.named_parameters():
        assert p.grad is not None
        np.testing.assert_allclose(np.asarray(state[name]), (p - 0.5 * p.grad).detach().numpy(), rtol=1e-4, atol=1e-6)


def test_it_makes_attacks_harder() -> None:
    robust = {}
    x, y = _batch(99, 12)
    for adversary in (None, ingot.Adversary(0.25, steps=4)):
        net = _net()
        step = ingot.train(net, "cross_entropy", ingot.optim.Adam(lr=0.02), (_batch(0)[0],), adversary=adversary)
        for i in range(80):
            step(*_batch(i))
        trained = step.trained().eval()
        margins = [
            ingot.attack(trained, x[i : i + 1], label=int(y[i]), eps=0.25, steps=10, points=4).margin for i in range(12)
        ]
        robust[adversary is not None] = float(np.mean(margins))
    assert robust[True] > robust[False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ingot.Adversary(-1), "eps: expected a number above 0"),
        (lambda: ingot.Adversary(0.1, steps=0), "steps: expected a whole number"),
        (lambda: ingot.Adversary(0.1, weight=2), "weight: expected a number above 0"),
        (lambda: ingot.Adversary(0.1, lower=1, upper=0), "expected lower < upper"),
    ],
)
def test_bad_adversaries(make, message: str) -> None:
    with pytest.raises(ingot.InputError, match=message):
        make()


def test_inputs_that_cannot_be_attacked() -> None:
    adversary = ingot.Adversary(0.1, inputs=("other",))
    with pytest.raises(ingot.InputError, match="expected inputs of floats: args_0"):
        ingot.train(_net(), "cross_entropy", ingot.optim.SGD(lr=0.1), (_batch(0)[0],), adversary=adversary)
