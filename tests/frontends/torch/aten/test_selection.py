"""Results whose size depends on data, compiled, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.support.errors import InputError
from tests.frontends.torch.agree import compile_whole


class Function(nn.Module):
    def __init__(self, f: Callable[..., object]):
        super().__init__()
        self.f = f

    def forward(self, *args: Tensor) -> object:
        return self.f(*args)


def check(f: Callable[..., tuple[object, ...]], inputs: Sequence[Tensor], *others: Sequence[Tensor]) -> Callable:
    """Exact but for sums; every dtype and shape as torch has it."""
    model = ingot.compile(Function(f).eval(), tuple(inputs), cache=False)
    for x in (inputs, *others):
        for i, (want, got) in enumerate(zip(f(*x), model(*x), strict=True)):
            assert not isinstance(want, Tensor) or want.shape == got.shape, i
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    return model


def test_masks() -> None:
    def f(x: Tensor) -> tuple[object, ...]:
        y = x[x > 0]
        z = x.clone()
        z[x > 0] = y * 3
        w = x.clone()
        w[x > 0] = -1.0
        rows = x[x[:, 0] > 0]
        places = torch.nonzero(x > 0), torch.argwhere(x), *torch.nonzero(x, as_tuple=True)
        parts = x[:, x[0] > 0], x[x[:, 0] > 0, 1:3], rows @ x.T, rows.softmax(1), torch.masked_select(x, x < 0)
        return *places, *parts, y * 2, y.sum(), z, w, y.shape[0]

    check(f, (torch.randn(5, 7),), (torch.randn(5, 7) + 9,), (torch.randn(5, 7) - 9,), (torch.zeros(5, 7),))


def test_unique() -> None:
    def f(x: Tensor) -> tuple[object, ...]:
        return (
            *torch.unique(x, return_inverse=True, return_counts=True), torch.unique(x, dim=0), torch.unique(x, dim=1),
            *torch.unique_consecutive(x, return_inverse=True, return_counts=True), torch.unique_consecutive(x, dim=0),
            x[x > 1].unique(),
        )  # fmt: skip

    xs = [torch.randint(0, n, (6, 2)).float() for n in (2, 3, 9, 1)]
    check(f, (xs[0],), *[(x,) for x in xs[1:]])


def test_values_as_sizes() -> None:
    def f(x: Tensor, r: Tensor) -> tuple[object, ...]:
        n: Any = r[0].item()
        torch._check(n >= 0)
        torch._check(n < 100)
        y = torch.repeat_interleave(x, r, dim=0)
        torch._check(y.shape[0] <= 500)
        return torch.zeros(n) + x[0, 0], y, x * (r[1].item() - 3), n

    x = torch.randn(5, 2)
    model = check(f, (x, torch.tensor([1, 2, 3, 0, 4])), *[(x, torch.tensor(r)) for r in ([99, 0, 0, 1, 0], [0] * 5)])
    with pytest.raises(InputError, match=r"size \$u0: expected 0 to 99, got 100"):
        model(x, torch.tensor([100, 0, 0, 0, 0]))
    with pytest.raises(InputError, match="expected 0 to 500"):
        model(x, torch.tensor([0, 999, 0, 0, 0]))


def test_the_only_element_of_a_tensor_is_a_number() -> None:
    """Of whatever rank: a float is no tensor of one axis."""
    check(lambda x, n: (x.item() * x, torch.zeros(3) + n.item()), (torch.ones(1), torch.ones(1, 1)))


def test_a_number_is_filled_at_any_count_of_indices() -> None:
    x = torch.tensor(3.0)
    for at in ([0], [0, 0], []):
        index = torch.tensor(at, dtype=torch.int64)
        check(lambda x, index: (x.index_fill(0, index, 2.0), x + 1), (x, index))


@pytest.mark.usefixtures("fresh_dynamo")
def test_runs_along_the_last_axis() -> None:
    """torch's own rule for sizes takes no negative axis."""
    x = torch.randint(0, 2, (3, 9)).float()
    got = compile_whole(lambda x: torch.unique_consecutive(x, dim=-1), backend="ingot")(x)
    assert torch.equal(got, torch.unique_consecutive(x, dim=-1))


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_gradient_of_what_a_wider_mask_selects() -> None:
    """torch's bound of the count is the size of what is selected from, which broadcasts."""
    x = torch.randn(4, requires_grad=True)
    mask = torch.tensor([[True, True, False, True]] * 5)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        selected = compile_whole(torch.masked_select, backend="ingot")(x, mask)
    (gradient,) = torch.autograd.grad(selected.sum(), x)
    assert torch.equal(selected, torch.masked_select(x, mask)) and gradient.tolist() == [5, 5, 0, 5]
