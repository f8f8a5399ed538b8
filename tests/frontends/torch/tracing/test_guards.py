"""Sizes for which an exported program does not hold are refused, and those for which it does are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._sympy import functions

import ingot
from ingot.frontends.torch.convert import Progression, Sizes
from ingot.frontends.torch.tracing.guards import conditions, equations, progressions, solved
from ingot.ir.dims import dim_max, symbol
from ingot.support.errors import InputError

N, M = sympy.symbols("n m", integer=True, positive=True)
FloorDiv: Any = functions.FloorDiv  # whose calls are expressions, which sympy's stubs do not tell
Mod: Any = functions.Mod


@pytest.mark.parametrize(
    ("guards", "expected_progressions"),
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
def test_progressions(guards: list[sympy.Basic], expected_progressions: dict[str, Progression]) -> None:
    assert progressions(guards) == expected_progressions


def test_equations() -> None:
    quotient, rest = FloorDiv(8 * M, N), sympy.Max(0, 128 - N)
    result = equations([sympy.Eq(quotient, 8), sympy.Eq(N + rest, 128), sympy.Ne(FloorDiv(N, 2), 1)])
    assert result == {quotient: 8, rest: 128 - N}
    sizes = Sizes(equal=result)
    assert sizes.expression(2 * quotient + 1) == 17
    assert str(sizes.expression(128 - rest)) == "n"


def test_equations_of_symbols() -> None:
    """Sizes that equal the same function are one, and a sum of sizes that is known has one fewer of them."""
    function, last = FloorDiv(8 * M, 3), sympy.Symbol("z", integer=True, positive=True)
    result = equations([sympy.Eq(N, function), sympy.Eq(function, last), sympy.Eq(N + M + sympy.Symbol("k"), 16)])
    sizes = Sizes(equal=result)
    assert sizes.expression(function) == sizes.expression(last) == sizes.expression(N)
    assert sizes.expression(N + M + sympy.Symbol("k")) == 16


def test_conditions() -> None:
    limits = {"n": (1, None), "m": (1, 17)}
    results = conditions(
        [
            N + M < 20,
            sympy.Ge(N, 2 * M),
            sympy.Gt(N + M, 1),  # always
            sympy.Lt(N, 9),  # of one symbol: torch gives a range
            sympy.Eq(N, M + 3),
            sympy.Lt(N, sympy.Symbol("u", integer=True)),  # of a symbol that no input has
            sympy.Ne(N, M),
        ],
        Sizes(),
        limits,
    )
    n, m = symbol("n"), symbol("m")
    assert set(results) == {19 - n - m, n - 2 * m, n - m - 3, m + 3 - n, dim_max(n - m, m - n) - 1}


def test_solved() -> None:
    a, b, c, d = sympy.symbols("a b c d", integer=True, positive=True)
    assert solved([sympy.Eq(c + b, b + a), sympy.Eq(d, c + b), sympy.Eq(d - b, a)]) == {c: a, d: a + b}
    assert solved([sympy.Eq(a, b), sympy.Eq(b, a), sympy.Ne(a, c), sympy.Eq(a, 7)]) == {b: a}
    assert solved([sympy.Eq(2 * a, 3 * b), sympy.Eq(Mod(a, 4), 0), sympy.Eq(a * b, c)]) == {}


class Cached(nn.Module):
    """One step of attention behind cached keys and values, whose lengths torch does not equate."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor, past: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q = self.project(x)
        k, v = (torch.cat([p, q], 2) for p in past)
        return nn.functional.scaled_dot_product_attention(q, k, v, mask), k, v


def test_cached_keys_and_values_with_automatic_dims() -> None:
    def inputs(batch: int, past: int, new: int, values: int | None = None) -> tuple[Any, ...]:
        cache = [torch.randn(batch, 2, n, 8) for n in (past, past if values is None else values)]
        return torch.randn(batch, 2, new, 8), torch.randn(batch, 1, new, past + new), tuple(cache)

    net = Cached().eval()
    model = ingot.compile(net, inputs(2, 9, 3), dynamic=True, cache=False)
    for sizes in ((2, 9, 3), (1, 4, 1), (3, 17, 2)):
        arrays = inputs(*sizes)
        for got, want in zip(model(*arrays), net(*arrays), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=">= 0"):
        model(*inputs(2, 9, 3, values=8))


class Joined(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.cat([x, y])
        return z * 2 if z.shape[0] < 20 else z


class Fitted(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x[:, : y.shape[0]] * y[: x.shape[1], 0] if y.shape[0] < x.shape[1] else x * 0


def test_conditions_over_several_sizes_are_checked_at_run_time(tmp_path: Path) -> None:
    model = ingot.compile(Joined().eval(), (torch.ones(5, 2), torch.ones(6, 2)), dynamic=True, cache=False)
    model.save(tmp_path / "m.ingot")
    assert torch.equal(model(torch.ones(9, 2), torch.ones(10, 2)), torch.full((19, 2), 2.0))
    assert torch.equal(model(torch.ones(10, 2), torch.ones(10, 2)), torch.ones(20, 2))
    with pytest.raises(InputError, match=r"axis 0 of input 'x' and axis 0 of input 'y': expected .* >= 0"):
        ingot.load(tmp_path / "m.ingot")(torch.ones(10, 2), torch.ones(10, 2))
    model = ingot.compile(Fitted().eval(), (torch.ones(3, 7), torch.ones(4, 2)), dynamic=True, cache=False)
    assert model(torch.ones(2, 9), torch.ones(8, 2)).shape == (2, 8)
    assert torch.equal(model(torch.ones(2, 9), torch.ones(9, 2)), torch.zeros(2, 9))


class Differing(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if x.shape[0] == y.shape[0] or x.shape[0] == 7:
            return x.sum() + y.sum()
        return (x @ y.mT).reshape(-1, 2) * 2


@pytest.mark.parametrize("dynamic", [True, ({0: "a"}, {0: "b"})])
def test_sizes_that_the_model_tells_apart_differ_at_run_time(dynamic: Any, tmp_path: Path) -> None:
    """The reshape, which is a view of some sizes only, asks as well: that is not the model's doing."""
    net = Differing().eval()
    model = ingot.compile(net, (torch.ones(5, 3), torch.ones(4, 3)), dynamic=dynamic, cache=False)
    for a, b in ((4, 5), (6, 9), (8, 7), (3, 2), (2, 4)):
        x, y = torch.randn(a, 3), torch.randn(b, 3)
        torch.testing.assert_close(model(x, y), net(x, y))
    model.save(tmp_path / "m.ingot")
    loaded = ingot.load(tmp_path / "m.ingot")
    for a, b in ((4, 4), (6, 6), (7, 4)):
        with pytest.raises(InputError, match=r"axis 0 of input 'x'.*>= 0"):
            loaded(torch.ones(a, 3), torch.ones(b, 3))
        x, y = torch.randn(a, 3), torch.randn(b, 3)
        torch.testing.assert_close(model(x, y), net(x, y))


class Paired(nn.Module):
    """Pairs of rows, spread again; what an odd number leaves is zeros."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        y = x[: n // 2 * 2].unflatten(0, (-1, 2)).mean(1).repeat_interleave(2, 0)
        return F.pad(y, (0, 0, 0, n - y.shape[0])) if y.shape[0] < n else y


@pytest.mark.parametrize("dynamic", [True, {"x": {0: "n"}}])
def test_an_order_of_sizes_that_no_range_says_is_a_condition(dynamic: Any) -> None:
    net = Paired().eval()
    model = ingot.compile(net, (torch.ones(6, 3),), dynamic=dynamic, cache=False)
    for n in (6, 8, 2, 7, 3):
        x = torch.randn(n, 3)
        torch.testing.assert_close(model(x), net(x))


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(16, 4)

    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        past_length = past.shape[1]
        return torch.cat([past, x + self.places(torch.arange(past_length, past_length + x.shape[1]))], 1)


@pytest.mark.parametrize("dynamic", [True, ({1: "new"}, {1: "past"})])
def test_positions_behind_cached_ones_stay_in_the_table(dynamic: Any) -> None:
    net = Placed().eval()
    model = ingot.compile(net, (torch.ones(2, 3, 4), torch.ones(2, 5, 4)), dynamic=dynamic, cache=False)
    for new, past in ((1, 15), (12, 4), (3, 3)):
        inputs = torch.randn(2, new, 4), torch.randn(2, past, 4)
        torch.testing.assert_close(model(*inputs), net(*inputs))
    with pytest.raises(InputError, match=r"16\) >= 0.*tables"):
        model(torch.ones(2, 9, 4), torch.ones(2, 8, 4))


def test_equations_of_one_size_are_solved() -> None:
    side, other, rate = FloorDiv(N - 1, 16), FloorDiv(N, 3), sympy.Symbol("rate", real=True)
    assert equations([sympy.Eq((side + 1) ** 2, 196), sympy.Eq(rate, 0.0)]) == {side: 13}
    assert equations([sympy.Eq((side + 1) ** 2, M)], {M: 196}) == {M: 196, side: 13}
    assert equations([], {(side + 1) ** 2: 196}) == {side: 13}
    # 1 and 3 are both possible; no integer is
    open_ones = equations([sympy.Eq(other**2 + 3, 4 * other), sympy.Eq(side**2, 3)])
    assert other not in open_ones and side not in open_ones


class Masked(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = x.clone()
        y[:, mask] = 0.5
        return y


def test_masks_have_the_sizes_of_what_they_mask() -> None:
    data = (torch.randn(2, 5), torch.rand(5) > 0.5)
    model = ingot.compile(Masked().eval(), data, dynamic=({0: "n", 1: "m"}, {0: "k"}), cache=False)
    x, mask = torch.randn(3, 7), torch.rand(7) > 0.5
    assert torch.equal(model(x, mask), Masked()(x, mask))
    with pytest.raises(InputError, match=">= 0"):
        model(x, mask[:6])


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
        states: list[Tensor] = []
        for layer in self.down:
            states.append(x)
            x = layer(x)
        for layer in self.up:
            x = layer(x) + states.pop()
        return x


@pytest.mark.parametrize("dynamic", [True, {"x": {0: "n"}}])
def test_a_view_of_fourths(dynamic: Any, tmp_path: Path) -> None:
    m = ingot.compile(Views().eval(), (torch.randn(8, 4),), dynamic=dynamic, cache=False)
    for n in (4, 12, 10):
        x = torch.randn(n, 4)
        assert torch.equal(m(x), Views()(x))
    m.save(tmp_path / "m.ingot")
    with pytest.raises(InputError, match=r"expected 4 \* \w+_over_4 = 8, got 10"):
        ingot.load(tmp_path / "m.ingot")(torch.randn(10, 4))


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
