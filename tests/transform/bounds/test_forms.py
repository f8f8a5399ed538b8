"""Powers, remainders and orders: lines and intervals hold at 10^5 points and at hostile ends."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch import nn

import ingot
from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Op
from ingot.ir.types import TensorType, f64
from ingot.ops.core.functions import Transcendental
from ingot.ops.nn.terms import Term
from ingot.passes.model.lower import lower_model_ops
from ingot.transform.bounds.forms import Power, Remainder
from ingot.transform.bounds.functions import function_of, interval_of_function
from ingot.transform.bounds.intervals import Intervals
from ingot.transform.bounds.lines import lines_of_function
from ingot.transform.bounds.rounding import Interval, Rounding

FORMS: list[Power | Remainder | Transcendental] = [
    *(Power(p) for p in (-2.5, -2.0, -0.3, 0.3, 0.9, 1.0, 1.1, 2.2, 4.0, 5.0, 6.0, 7.0, 31.5)),
    *(ops.Asin(), ops.Acos(), ops.Sinh(), ops.Cosh(), ops.Asinh(), ops.Acosh(), ops.Atanh()),
    *(Remainder(d, floored) for d in (1.0, 0.3, 7.5, 1e-3, 3e38) for floored in (False, True)),
]
POINTS = 50  # in each of 2,000 intervals
HOSTILE = [
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    1e-310,
    2.0**-1022,
    1e-40,
    1.0,
    -1.0,
    1 - 2.0**-53,
    1 + 2.0**-52,
    0.3,
    700.0,
    -700.0,
    7.5,
    -15.0,
    1e5,
    -1e5,
    1e30,
    1e300,
]


def _intervals() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    center = rng.normal(size=2000) * 10.0 ** rng.integers(-6, 3, 2000)
    radius = np.abs(center) * 10.0 ** rng.uniform(-14, 1, 2000) * rng.integers(0, 2, 2000)
    ends = np.sort(np.stack([center - radius, center + radius]), 0)
    ends[:, :500] = np.abs(ends[:, :500])
    ends[:, :500].sort(0)
    hostile = np.array([(a, b) for a in (*HOSTILE, -np.inf) for b in (*HOSTILE, np.inf) if a <= b]).T
    return np.concatenate([ends[0], hostile[0]]), np.concatenate([ends[1], hostile[1]])


def _graph(form: Op, count: int) -> Graph:
    """lower x, upper x -> lower y, upper y, and slope and offset of both lines"""
    ends = [Input(name, TensorType(f64, (count,)))() for name in ("lower", "upper")]
    x, f = Interval(*map(Term, ends)), function_of(form)
    assert f is not None
    y, lines = interval_of_function(Rounding(), f, x), lines_of_function(f, x)
    terms = (y.lower, y.upper, lines.lower.slope, lines.lower.offset, lines.upper.slope, lines.upper.offset)
    return lower_model_ops(Graph(tuple(ends), tuple(v.broadcast((count,)).node for v in terms)))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_lines_and_intervals(form: Power | Remainder | Transcendental) -> None:
    lower, upper = _intervals()
    low, high, *lines = interpret(_graph(form, len(lower)), [lower, upper])
    share = np.random.default_rng(5).random((POINTS, len(lower)))
    share[0], share[1] = 0, 1
    with np.errstate(all="ignore"):
        finite_lower, finite_upper = np.maximum(lower, -1e308), np.minimum(upper, 1e308)
        points = np.where(share < 1, finite_lower * (1 - share) + finite_upper * share, finite_upper)
        points = np.clip(points, finite_lower, finite_upper)
        exact = points.astype(np.longdouble)
        y = form.compute(exact)
        # NaN is outside the domain, where bounds are infinite; a bound that is NaN is none, as in `from_f64`
        is_undefined = np.isnan(y)
        low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
        assert np.isneginf(np.broadcast_to(low, y.shape)[is_undefined]).all()
        assert ((low <= y) | is_undefined).all() and ((y <= high) | is_undefined).all()
        for (slope, offset), side in ((lines[:2], -1), (lines[2:], 1)):
            line = slope.astype(np.longdouble) * exact + offset
            is_beyond = line > y if side < 0 else line < y
            assert not (is_beyond & ~is_undefined).any(), (points[is_beyond], y[is_beyond], line[is_beyond])


def test_lines_are_tight() -> None:
    """Between lines of narrow intervals lies little; within a tooth a remainder is linear."""
    narrow = (
        (Power(2.2), 3.0), (Power(-0.7), 2.0), (Power(0.4), 5.0), (Power(5.0), -2.0), (ops.Asin(), 0.9),
        (ops.Acos(), -0.9), (ops.Sinh(), -2.0), (ops.Cosh(), 0.0), (ops.Asinh(), -3.0), (ops.Acosh(), 1.1),
        (ops.Atanh(), 0.0),
    )  # fmt: skip
    for form, center in narrow:
        lower, upper = np.array([center - 1e-3]), np.array([center + 1e-3])
        _, _, slope, offset, upper_slope, upper_offset = interpret(_graph(form, 1), [lower, upper])
        assert abs((upper_slope - slope) * center + upper_offset - offset) < 1e-4
    ends = np.array([[0.1, 3.2, -3.9, -0.5, 0.5, -7.0], [0.9, 3.9, -3.1, 0.5, 1.5, 9.0]])
    low, high, slope, *_ = interpret(_graph(Remainder(1.0), 6), list(ends))
    np.testing.assert_allclose(low, [0.1, 0.2, -0.9, -0.5, 0, -1], atol=1e-12)
    np.testing.assert_allclose(high, [0.9, 0.9, -0.1, 0.5, 1, 1], atol=1e-12)
    assert slope.tolist() == [1, 1, 1, 1, 0, 0]
    low, high, slope, *_ = interpret(_graph(Remainder(1.0, floored=True), 6), list(ends))
    np.testing.assert_allclose(low, [0.1, 0.2, 0.1, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(high, [0.9, 0.9, 0.9, 1, 1, 1], atol=1e-12)
    assert slope.tolist() == [1, 1, 1, 0, 0, 0]


def test_a_floored_remainder_is_found() -> None:
    class Mod(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.remainder(x, 2.0)

    lower, upper = ingot.bounds(Mod(), torch.tensor([[-3.0, -0.5, 0.1]]), eps=0.25)
    np.testing.assert_allclose(lower, [[0.75, 1.25, 0]], atol=1e-6)
    np.testing.assert_allclose(upper, [[1.25, 1.75, 2]], atol=1e-6)


class Powers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) ** 2.2 + x.abs().add(0.1) ** -0.7
        return (y**0.45) + x**5 - (x * 0.5) ** 4


class Remainders(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fmod(x * 3, 0.7) + torch.remainder(x, 2.0)


class Orders(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([torch.sort(x, 1).values, torch.sort(x * 2, 1, descending=True).values], 1)
        return torch.cat([torch.topk(y, 3, 1).values.T, torch.topk(x[:, :3], 2, 0, largest=False).values], 0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("method", ["crown", "auto", "forward", "ibp"])
@pytest.mark.parametrize("net", [Powers(), Remainders(), Orders()], ids=lambda n: type(n).__name__)
def test_bounds_hold(net: nn.Module, method: str) -> None:
    torch.manual_seed(1)
    for eps in (1e-3, 0.2, 1.5):
        x = torch.randn(3, 5)
        lower, upper = ingot.bounds(net, x, eps=eps, method=method)
        y = np.stack([net(x + (torch.rand_like(x) * 2 - 1) * eps).numpy() for _ in range(1000)])
        assert (lower - 1e-5 <= y).all() and (y <= upper + 1e-5).all()
        lower, upper = ingot.bounds(net, x, eps=eps, method=method, numerics=True)
        assert (lower <= y).all() and (y <= upper).all()


def test_an_order_that_is_fixed_is_linear() -> None:
    """The difference of the sorted elements and the elements in this order is 0."""

    class Difference(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sort(x, 1, descending=True).values[:, :3] - x[:, [2, 0, 3]]

    x = torch.tensor([[2.0, -1.0, 3.0, 1.0, -1.2]])
    lower, upper = ingot.bounds(Difference(), x, eps=0.4, method="crown")
    np.testing.assert_allclose([lower[0], upper[0]], 0, atol=1e-6)
    lower, upper = ingot.bounds(Difference(), x, eps=0.6, method="crown")  # now any two neighbours may meet
    assert (lower <= -0.9).all() and (upper >= 0.9).all()


def test_unknown_elements_may_have_any_place() -> None:
    lower, upper, x = (Input(name, TensorType(f64, (3,)))() for name in ("lower", "upper", "x"))
    c = Intervals({x: Interval(Term(lower), Term(upper))}, Rounding())
    y = ops.Sort(0)(x)
    c.add([y])
    graph = lower_model_ops(Graph((lower, upper), (c.of(y).lower.node, c.of(y).upper.node)))
    low, high = interpret(graph, [np.array([2.0, np.nan, 1.0]), np.array([4.0, np.nan, 3.0])])
    assert low.tolist() == [-np.inf, 1, 2] and high.tolist() == [3, 4, np.inf]


def test_what_follows_a_perturbed_order_is_refused() -> None:
    class Positions(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.argsort(x, 1).float()

    with pytest.raises(ingot.UnsupportedOpError, match=r"sort .*no bounds of it"):
        ingot.bounds(Positions(), torch.ones(1, 3), eps=0.1)
