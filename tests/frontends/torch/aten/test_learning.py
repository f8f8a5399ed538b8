"""Gradients of the compiler's own through rows of aten, beside eager PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import ingot  # noqa: E402

Tensor = torch.Tensor


def slopes(net: Any, *inputs: Tensor) -> list[Tensor]:
    """Of the net's result by its inputs that are floats."""
    _, result = ingot.value_and_grad(net.eval(), inputs)(*inputs)
    return list(result.values())


def test_xlogy_has_a_slope_at_zero() -> None:
    class Entropy(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.xlogy(x, y).sum()

    x, y = torch.tensor([0.0, 0, -0.0, 2, 0]), torch.tensor([0.5, 2, 3, 3, 0])
    expected = [t.clone().requires_grad_() for t in (x, y)]
    Entropy()(*expected).backward()
    assert expected[1].grad is not None
    expected[1].grad[4] = 0  # eager divides 0 by 0 there
    for got, want in zip(slopes(Entropy(), x, y), expected, strict=True):
        torch.testing.assert_close(got, want.grad)


@pytest.mark.parametrize("bags", [False, True])
def test_rows_learn_less_as_they_come_more_often(bags: bool) -> None:
    """By hand, as eager's bags divide by how often another index comes."""

    class Rows(torch.nn.Module):
        def __init__(self, scaled: bool) -> None:
            super().__init__()
            self.scaled = scaled

        def forward(self, table: Tensor, i: Tensor) -> Tensor:
            if bags:
                rows = F.embedding_bag(i, table, mode="sum", scale_grad_by_freq=self.scaled)
            else:
                rows = F.embedding(i, table, scale_grad_by_freq=self.scaled)
            return (rows**2).sum()

    places, table = torch.tensor([[1, 1, 5], [1, 0, 5]]), torch.randn(6, 3)
    times = places.flatten().bincount(minlength=6).clamp(min=1)
    unscaled, rescaled = (slopes(Rows(scaled), table, places)[0] for scaled in (False, True))
    torch.testing.assert_close(rescaled, unscaled / times[:, None])
