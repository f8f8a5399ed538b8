"""The ends of boxes and the rows of a spec are those that were asked for, whatever the types."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch import nn

import ingot


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 3)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return x + self.table(ids)


def test_a_center_of_a_wider_type_is_not_rounded() -> None:
    """0.1 in float32 is above 0.1 by more than eps."""
    lower, upper = ingot.bounds(nn.ReLU(), np.full((1, 2), 0.1), eps=1e-10)
    assert (lower.astype(np.float64) <= 0.1 - 1e-10).all() and (upper.astype(np.float64) >= 0.1 + 1e-10).all()


def test_a_spec_that_its_type_cannot_hold() -> None:
    """Factors beyond the range and the digits of float32."""
    x = torch.ones(1, 2)
    for spec, expected in (([[1e-50, 0]], 1e-50), ([[1 + 1e-12, -1]], 1e-12), ([[1e40, -1e40]], 0.0)):
        lower, upper = ingot.bounds(nn.ReLU(), x, eps=0.0, spec=spec)
        assert lower.dtype == np.float64 and lower <= expected <= upper
        assert upper - lower <= 1e-12 * max(1.0, spec[0][0])


def test_integers_are_constant() -> None:
    net, x, ids = Lookup().eval(), np.zeros((2, 3), np.float32), np.asarray([1, 7])
    expected = net.table.weight.detach().numpy()[ids]
    lower, upper = ingot.bounds(net, (x, ids), lower=(x - 1, ids), upper=(x + 1, ids))
    np.testing.assert_allclose(lower, expected - 1, rtol=1e-5)
    np.testing.assert_allclose(upper, expected + 1, rtol=1e-5)
    with pytest.raises(ingot.InputError, match="ends equal to x, as only floats have a box"):
        ingot.bounds(net, (x, ids), lower=(x - 1, ids - 1), upper=(x + 1, ids))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec": [[[1.0, 1.0]]]}, r"rows of 2 factors, .* got shape \[1, 1, 2\]"),
        ({"spec": [[1.0], [2.0]]}, r"rows of 2 factors, .* got shape \[2, 1\]"),
        ({"spec": np.zeros((0, 2))}, r"rows of 2 factors, .* got shape \[0, 2\]"),
        ({"spec": [[1.0, np.nan]]}, "finite numbers"),
    ],
)
def test_a_spec_of_another_shape(options: dict[str, Any], message: str) -> None:
    for ask in (ingot.bounds, ingot.attack):
        with pytest.raises(ingot.InputError, match=message):
            ask(nn.ReLU(), torch.ones(1, 2), eps=0.1, **options)


def test_nan_is_no_success_and_hides_none() -> None:
    """Most points of the box are NaN; some of the others reach the goal."""

    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(x) - 0.1

    found = ingot.attack(Root(), torch.full((1, 1), -0.9), spec=[[-1.0]], eps=1.0)
    assert found.success and found.y[0, 0] >= 0
    found = ingot.attack(Root(), torch.full((1, 1), -3.0), spec=[[1.0]], eps=1.0)
    assert not found.success


@pytest.mark.parametrize("method", ["ibp", "crown"])
def test_batch_norms_are_those_of_the_network(method: str) -> None:
    """Scales in weights of the model's type would move a point by 1e-7, and the bounds with it."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2), nn.BatchNorm1d(2)
    )
    for norm in (net[1], net[5]):
        assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
        for values in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
            assert values is not None
            values.copy_(torch.rand(values.shape, generator=generator) + 0.1)
    x, rows = torch.rand((1, 2, 4, 4), generator=generator), np.asarray([[1, 1e-12], [1e-12, 1]])
    expected = rows @ copy.deepcopy(net).eval().double()(x.double()).detach().numpy()[0]
    lower, upper = ingot.bounds(net.eval(), x, eps=0.0, spec=rows, method=method)
    assert (lower <= expected).all() and (expected <= upper).all() and (upper - lower < 1e-10).all()
    program = ingot.compile(net, (x,))(x).detach().numpy()
    low, high = ingot.bounds(net, x, eps=0.0, numerics=True, method=method)
    assert (low <= program).all() and (program <= high).all()
