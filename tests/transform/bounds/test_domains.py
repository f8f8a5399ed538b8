"""Functions at the ends of their domains, and values of no elements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch import nn

import ingot


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


def test_what_is_never_negative_has_a_root() -> None:
    """Norms and logarithms of sums: the error of the bounds' own arithmetic makes no sum of squares negative."""

    class Norms(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.norm(dim=1), x.std(1), torch.logsumexp(x * 50, 1), torch.sign(x) + (x > 0.3).float()

    lower, upper = ingot.bounds(Norms(), torch.zeros(2, 3), eps=1.0)
    for low, high, least, most in zip(lower, upper, (0, 0, -50, -1), (3**0.5, 1.7, 52, 2), strict=True):
        assert (low > least - 1e-5).all() and (high < most + 1e-5).all()


def test_no_elements() -> None:
    lower, upper = ingot.bounds(nn.ReLU(), torch.zeros(0, 3), eps=1.0)
    assert lower.shape == upper.shape == (0, 3)
