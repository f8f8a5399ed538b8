"""Walks in parts and from several values give what single walks give."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.driver.open import Request, open_model
from ingot.transform.bounds import graph as bound_graphs
from ingot.transform.bounds import walks
from ingot.transform.bounds.graph import Bounded, Question
from ingot.transform.bounds.rounding import Rounding

pytest.importorskip("torch")
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(18, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 6**0.5, -1)
        return self.out((x + weights @ self.v(x)).flatten(1))


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip


MODELS = [
    pytest.param(Attention, (1, 3, 6), id="attention"),
    pytest.param(pooled, (1, 2, 8, 8), id="pools"),
    pytest.param(pooled, (3, 2, 8, 8), id="rows"),
]


def bounded(net: nn.Module, x: torch.Tensor) -> Bounded:
    graph = open_model(net, Request((x,))).stateless().graph
    return Question((True,), "crown", None, Rounding()).of(graph)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make, shape", MODELS)
@pytest.mark.parametrize("numerics", [False, True])
def test_walks_in_parts(
    make: type[nn.Module], shape: tuple[int, ...], numerics: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net, x = make().eval(), torch.randn(shape)
    expected = ingot.bounds(net, x, eps=0.1, method="crown", numerics=numerics)
    monkeypatch.setattr(walks, "_MIN_PARTS", 0)
    monkeypatch.setattr(bound_graphs, "_PART_BYTES", 1)
    monkeypatch.setattr(bound_graphs, "_MIN_ROWS", 7)  # of which no number of rows is a multiple
    parts = ingot.bounds(net, x, eps=0.1, method="crown", numerics=numerics)
    np.testing.assert_allclose(parts.lower, expected.lower, rtol=1e-6)
    np.testing.assert_allclose(parts.upper, expected.upper, rtol=1e-6)
    assert not np.array_equal(expected.lower, expected.upper)


def test_values_side_by_side_share_a_walk() -> None:
    """q, k and v; each level of the tree of a pool's maxima; but no value and what is relaxed after it."""
    attention = bounded(Attention(), torch.zeros(1, 3, 6))
    assert sorted(map(len, attention.groups.values())) == [1, 1, 3]  # the scores; the weights; q, k, v
    pool = bounded(nn.Sequential(nn.Linear(4, 16), nn.MaxPool1d(4)), torch.zeros(1, 4))
    assert sorted(map(len, pool.groups.values())) == [1, 2]


def test_copies_and_functions_are_not_walked_from() -> None:
    """A layer norm needs bounds of the centered values and of the variance, none of its reciprocal root."""
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 2))
    walked = bounded(net, torch.zeros(1, 4)).walked
    assert sorted(n.op.name for n in walked) == ["add", "subtract"]
