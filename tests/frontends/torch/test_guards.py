"""Sizes for which an exported program does not hold are refused, and those for which it does are not."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.utils._sympy.functions import FloorDiv, Mod

import ingot
from ingot.frontends.torch.convert import Progression, Sizes
from ingot.frontends.torch.guards import equations, progressions
from ingot.support.errors import InputError

N, M = sympy.symbols("n m", integer=True, positive=True)


@pytest.mark.parametrize(
    ("guards", "found"),
    [
        ([sympy.Eq(Mod(N, 6), 0)], {"n": Progression(6, 0)}),
        ([sympy.Eq(2 * FloorDiv(N - 1, 2) + 2, N)], {"n": Progression(2, 0)}),
        ([sympy.Eq(Mod(N - 1, 4), 0)], {"n": Progression(4, -3)}),
        ([sympy.Eq(Mod(N, 4), 0), sympy.Eq(Mod(N, 6), 0)], {"n": Progression(12, 0)}),
        ([sympy.Eq(Mod(N, FloorDiv(N, 4)), 0), sympy.Eq(FloorDiv(N, FloorDiv(N, 4)), 4)], {"n": Progression(4, 0)}),
        ([sympy.Ne(FloorDiv(N, 2), 1), sympy.Eq(N, M)], {}),
        ([sympy.Eq(N, 5)], {}),
    ],
)
def test_progressions(guards: list[sympy.Basic], found: dict[str, Progression]) -> None:
    assert progressions(guards) == found


def test_equations() -> None:
    quotient, rest = FloorDiv(8 * M, N), sympy.Max(0, 128 - N)
    found = equations([sympy.Eq(quotient, 8), sympy.Eq(N + rest, 128), sympy.Eq(N, M), sympy.Ne(FloorDiv(N, 2), 1)])
    assert found == {quotient: 8, rest: 128 - N}
    sizes = Sizes(equal=found)
    assert sizes.expression(2 * quotient + 1) == 17
    assert str(sizes.expression(128 - rest)) == "n"


class Views(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0] // 4, 4, -1)


class Hourglass(nn.Module):
    """Halves twice and doubles twice, adding what it had: sizes must be multiples of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(2, 2, 3, stride=2, padding=1) for _ in range(2))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2, 2, 2, stride=2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for layer in self.down:
            kept.append(x)
            x = layer(x)
        for layer in self.up:
            x = layer(x) + kept.pop()
        return x


@pytest.mark.parametrize("dynamic", [True, {"x": {0: "n"}}])
def test_a_view_of_fourths(dynamic: Any) -> None:
    m = ingot.compile(Views().eval(), (torch.randn(8, 4),), dynamic=dynamic, cache=False)
    for n in (4, 12):
        x = torch.randn(n, 4)
        assert torch.equal(m(x), Views()(x))
    with pytest.raises(InputError, match=r"expected 4 \* \w+_over_4 = 8, got 10"):
        m(torch.randn(10, 4))


def test_sizes_that_halve_twice() -> None:
    net = Hourglass().eval()
    named = {"x": {0: "batch", 2: ("height", 8, 64), 3: "width"}}
    m = ingot.compile(net, (torch.randn(2, 2, 8, 16),), dynamic=named, cache=False)
    with torch.no_grad():
        for shape in ((3, 2, 24, 8), (1, 2, 64, 4)):
            x = torch.randn(shape)
            torch.testing.assert_close(m(x), net(x))
    with pytest.raises(InputError, match=r"4 \* height_over_4 = 28, got 30"):
        m(torch.randn(1, 2, 30, 8))
    with pytest.raises(InputError, match=r"height_over_4 >= 2 and <= 16, got 17"):
        m(torch.randn(1, 2, 68, 8))
