"""Functions at the ends of their domains, and values of no elements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch import nn

import ingot
from ingot.transform.bounds.graph import METHODS


def test_undefined_is_unbounded() -> None:
    """A logarithm over a box that holds 0 has no bounds; where it is defined it has."""

    class Log(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x)

    x = torch.tensor([[1.0, 3.0]])
    for method, eps in itertools.product(("crown", "ibp"), (1.0, 2.0)):
        lower, upper = ingot.bounds(Log().eval(), x, eps=eps, method=method)
        assert lower[0, 0] == -np.inf and upper[0, 0] == np.inf
        assert np.isfinite(lower[0, 1]) and np.isfinite(upper[0, 1]) and lower[0, 1] <= np.log(3 - eps)


@pytest.mark.parametrize("method", ["crown", "forward"])
def test_lines_end_where_a_function_does(method: str) -> None:
    """The center of the box is in the domain, and so would the chord and the tangent be finite."""

    class Quotient(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (x.flip(1) + 0.5)

    lower, upper = ingot.bounds(Quotient(), torch.zeros(2, 3), eps=1.0, method=method)
    assert np.isneginf(lower).all() and np.isposinf(upper).all()


class Quotients(nn.Module):
    """By x and by its powers with negative exponents."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + x.flip(1) * 0.5
        return torch.cat([1 / x, 3 / y, (x + 1) / y, x**-2.0, y**-3.0, x.tanh() / (y * y.abs())], 1)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("low", "high"), [(-2.5, -0.5), (-3.0, -3.0), (-1e-3, -1e-4), (-1e12, -1e11), (0.5, 2.5)])
def test_divisors_of_one_sign(method: str, low: float, high: float) -> None:
    """Below 0 as above it bounds are finite, and no tighter than the values."""
    net = Quotients()
    x = torch.from_numpy(np.random.default_rng(0).uniform(low, high, (4000, 3)).clip(low, high))
    x[:8] = torch.tensor(list(itertools.product((low, high), repeat=3)))
    x = x.float().double()
    lower, upper = ingot.bounds(net, torch.zeros(1, 3), lower=low, upper=high, method=method)
    y = net(x).numpy()
    slack = 1e-12 * np.abs(y)
    assert np.isfinite(lower).all() and np.isfinite(upper).all()
    assert (lower - slack <= y).all() and (y <= upper + slack).all()
    mirrored = ingot.bounds(net, torch.zeros(1, 3), lower=-high, upper=-low, method=method)
    widths, odd = upper - lower, [*range(6), *range(12, 15)]  # 1 / x, 3 / y, y^-3
    np.testing.assert_allclose(widths[:, odd], (mirrored.upper - mirrored.lower)[:, odd], rtol=1e-4, atol=1e-12)


def test_what_is_never_negative_has_a_root() -> None:
    """Norms and logarithms of sums: the error of the bounds' own arithmetic makes no sum of squares negative."""

    class Norms(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.norm(dim=1), x.std(1), torch.logsumexp(x * 50, 1), torch.sign(x) + (x > 0.3).float()

    lower, upper = ingot.bounds(Norms(), torch.zeros(2, 3), eps=1.0)
    for low, high, least, most in zip(lower, upper, (0, 0, -50, -1), (3**0.5, 1.7, 52, 2), strict=True):
        assert (low > least - 1e-5).all() and (high < most + 1e-5).all()


class Undefined(nn.Module):
    """Of values that are 0 times infinity for an interval of which one end is 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.log(x)
        chosen = [torch.where(c, 1.0, 2.0) for c in (y < 0, y <= -0.1, y > 0, y >= 0, y == 0, y != 0)]
        return torch.cat([*chosen, torch.softmax(torch.cat([x * 0, y]), 0)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", METHODS)
def test_comparisons_of_undefined_values_exclude_nothing(method: str) -> None:
    """Both answers of a comparison may hold, and a probability is at most 1."""
    net = Undefined().eval()
    x = torch.linspace(1e-6, 1, 101, dtype=torch.float64)[:, None]
    y = torch.stack([net(v) for v in x]).numpy()
    lower, upper = ingot.bounds(net, torch.full((1,), 0.5), lower=0.0, upper=1.0, method=method)
    assert (lower <= y.min(0)).all() and (y.max(0) <= upper).all()


def test_numbers_are_finite_where_their_bounds_are() -> None:
    """Bounds of what replaces NaN and infinities are those of the values; a logarithm of 0 may be either."""

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.log(x)
            return torch.cat([torch.nan_to_num(x, nan=7.0), y.isnan() * 1.0, y.isfinite() * 1.0, x.isfinite() * 1.0], 1)

    lower, upper = ingot.bounds(Net().eval(), torch.tensor([[1.0, 3.0]]), eps=1.0)
    np.testing.assert_allclose(lower, [[0, 2, 0, 0, 0, 1, 1, 1]], atol=1e-6)
    np.testing.assert_allclose(upper, [[2, 4, 1, 0, 1, 1, 1, 1]], atol=1e-6)


def test_all_ops_without_bounds_of_conditions_are_named() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(torch.logical_xor(x > 0, x > 1), x.argsort(1).float(), x)

    with pytest.raises(ingot.UnsupportedOpError, match=r"2 ops(.|\n)*xor(.|\n)*sort|2 ops(.|\n)*sort(.|\n)*xor"):
        ingot.bounds(Net().eval(), torch.ones(1, 2), eps=1.0)


def test_no_elements() -> None:
    lower, upper = ingot.bounds(nn.ReLU(), torch.zeros(0, 3), eps=1.0)
    assert lower.shape == upper.shape == (0, 3)
