"""Bounds hold: for samples and attacks, by each method, compiled and saved; what has none is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot import ops
from ingot.driver.compile import Options, compiled_program
from ingot.driver.open import Request, open_model
from ingot.ir.interp import interpret
from ingot.ir.kernel.arithmetic import to_tf32
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32
from ingot.ops.nn.terms import Term
from ingot.passes.model.lower import lower_model_ops
from ingot.runtime.executor import CompiledModel
from ingot.schedule.cpu.winograd.toom_cook import array, transform
from ingot.transform.bounds.error import rounding_errors
from ingot.transform.bounds.graph import METHODS, Question, bound_graph
from ingot.transform.bounds.rounding import Rounding, error_of_winograd
from ingot.transform.bounds.run import as_compiled, rounding_of
from ingot.transform.bounds.slopes import slopes_of


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(18, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 6**0.5, -1)
        return self.out((x + weights @ self.v(x)).flatten(1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 9), nn.Linear(9, 9), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x).clamp(-0.5, 0.7)
        return self.out(torch.relu(y + self.b(torch.abs(y)) - torch.minimum(y, -y * 0.3)))


class Masked(nn.Module):
    """Attention with a causal mask, and with one that hides all keys of a query."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(24, 3)
        mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0]], dtype=torch.bool)
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (2, 3)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = (q @ k.transpose(2, 3)).masked_fill(~self.mask[[0, 2, 2, 3]], float("-inf"))
        y = y + F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask) + torch.softmax(scores, -1) @ v
        return self.out(y.transpose(1, 2).flatten(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.LSTM(3, 2, batch_first=True), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(x)[0][:, -1])


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return torch.sin(self.last(torch.cos(y) + torch.sin(y * 3)) * 4)


class Ratio(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x * x + 1) / (1 + torch.exp(x)) + torch.log(x * x + 2) * torch.erf(x)


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 4),
    )


def _pools() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(12, 4), nn.LogSoftmax(-1),
    )  # fmt: skip


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: nn.Sequential(nn.Linear(5, 11), nn.ReLU(), nn.Linear(11, 7), nn.ReLU(), nn.Linear(7, 3)), (1, 5)),
    "s-shaped": (
        lambda: nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 9), nn.Sigmoid(), nn.Linear(9, 3)),
        (1, 5),
    ),
    "gelu": (lambda: nn.Sequential(nn.Linear(5, 9), nn.GELU(), nn.Linear(9, 3), nn.GELU(approximate="tanh")), (1, 5)),
    "silu": (lambda: nn.Sequential(nn.Linear(5, 9), nn.SiLU(), nn.Linear(9, 3)), (2, 5)),
    "convex": (
        lambda: nn.Sequential(nn.Linear(5, 9), nn.ELU(), nn.Linear(9, 3), nn.Softplus(), nn.Linear(3, 2)),
        (1, 5),
    ),
    "images": (_images, (1, 1, 8, 8)),
    "pools": (_pools, (1, 1, 8, 8)),
    "norms": (lambda: nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)), (1, 5)),
    "attention": (Attention, (1, 3, 6)),
    "residual": (Residual, (1, 5)),
    "ratio": (Ratio, (1, 4)),
    "masked": (Masked, (1, 4, 6)),
    "recurrent": (Recurrent, (1, 3, 3)),
    "waves": (Waves, (1, 4)),
}


def net_of(name: str) -> tuple[nn.Module, torch.Tensor]:
    make, shape = NETS[name]
    torch.manual_seed(3)
    return make().eval(), torch.rand(shape) * 2 - 1


def samples(x: torch.Tensor, eps: float, count: int) -> torch.Tensor:
    """Points of the box around x, half of them corners."""
    noise = torch.rand((count, *x.shape), generator=torch.Generator().manual_seed(1)) * 2 - 1
    noise[::2] = noise[::2].sign()
    return x.double() + noise.double() * eps


def ends(x: torch.Tensor, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """A box in f32 around all `samples`."""
    low, high = (x.double().numpy() + side * eps for side in (-1, 1))
    return (
        np.nextafter(low.astype(np.float32), np.float32(-np.inf)),
        np.nextafter(high.astype(np.float32), np.float32(np.inf)),
    )


_FAST = ("relu", "s-shaped", "gelu", "norms")


@pytest.mark.parametrize("name", [n if n in _FAST else pytest.param(n, marks=pytest.mark.slow) for n in NETS])
def test_no_sample_is_outside(name: str) -> None:
    """Of the network in f64, over boxes from a point to one in which all functions bend; each method, and no result of
    CROWN's is wider than an interval."""
    net, x = net_of(name)
    graph = open_model(net, Request((x,))).graph
    exact = net.double()
    programs = {}
    for method in METHODS:
        bounds = bound_graph(graph, Question((True,), method, None, Rounding()))
        programs[method] = ingot.bounds(net.float(), x, eps=0.01, method=method).monitor
        if method == "crown-ibp":
            results, compiled = interpret(bounds, list(ends(x, 0.1))), programs[method].run(list(ends(x, 0.1)))
            for a, b in zip(results, compiled, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-7)
    for eps in (0.0, 1e-6, 0.03, 0.5, 3.0):
        with torch.no_grad():
            ys = torch.stack([exact.double()(v) for v in samples(x, eps, 300)]).numpy()
        widths = {}
        for method, program in programs.items():
            lower, upper = program(*ends(x, eps))
            assert (lower <= ys.min(0)).all() and (ys.max(0) <= upper).all(), (method, eps)
            widths[method] = np.asarray(upper, np.float64) - lower
        assert (widths["crown"] <= widths["ibp"] * (1 + 1e-6) + 1e-12).all()
        if eps <= 1e-6 and name != "ratio":
            assert widths["crown"].max() < 1e-4
    net.float()


def test_known_widths() -> None:
    """By hand: x in [-1, 1], y = relu(x) - relu(-x) = x; an interval has [-1, 1], and CROWN with both lower lines 0 has
    0.5 x + 0.5 above and 0.5 x - 0.5 below."""
    first, last = nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)
    net = nn.Sequential(first, nn.ReLU(), last)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        last.weight.copy_(torch.tensor([[1.0, -1.0]]))
    x = torch.zeros(1, 1)
    for method in METHODS:
        lower, upper = ingot.bounds(net.eval(), x, lower=-1.0, upper=1.0, method=method)
        np.testing.assert_allclose([lower[0, 0], upper[0, 0]], [-1, 1], atol=1e-6)
    lower, upper = ingot.bounds(net, x, lower=0.25, upper=1.0)
    np.testing.assert_allclose([lower[0, 0], upper[0, 0]], [0.25, 1], atol=1e-6)
    assert lower[0, 0] <= 0.25 and upper[0, 0] >= 1  # outwards, not to the nearest


def test_softmax_is_as_tight_as_elsewhere() -> None:
    """Mean widths of auto_LiRPA's CROWN-IBP (a050a3d) for the same network and boxes: 0.0432, 0.6008, 7.761, 81.16."""
    net, x = net_of("attention")
    program = ingot.bounds(net, x, eps=0.01, method="crown-ibp").monitor
    for eps, width in ((0.01, 0.0432), (0.1, 0.6008), (0.5, 7.761), (3.0, 81.16)):
        lower, upper = program(*ends(x, eps))
        assert float(np.mean(upper - lower)) < width * 1.03


def test_forms_know_what_intervals_forget() -> None:
    """By hand, for x in [-1, 3]: relu(x) - x / 2 is 3/4 x + [0, 3/4] - x / 2, so in [-1/4, 3/2]; an interval has
    [-3/2, 7/2]."""

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) - x * 0.5

    for method, expected in (("forward", (-0.25, 1.5)), ("ibp", (-1.5, 3.5))):
        lower, upper = ingot.bounds(Net().eval(), torch.ones(1, 1), eps=2, method=method)
        np.testing.assert_allclose([lower[0, 0], upper[0, 0]], expected, atol=1e-6)


def test_auto_goes_forward_from_few_inputs() -> None:
    """Two inputs, 200 neurons and results: no value is walked from. Bounds lie between CROWN's and intervals."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(2, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 200)).eval()
    x = torch.rand(1, 2)
    question = Question((True,), "auto", None, Rounding())
    bounded = question.of(open_model(net, Request((x,))).graph)
    assert bounded.is_forward and not bounded.walked and bounded.deep
    widths: dict[str, float] = {}
    y = net.double()(samples(x, 0.1, 500).flatten(0, 1)).detach().numpy()
    for method in ("crown", "auto", "forward", "ibp"):
        lower, upper = ingot.bounds(net.float(), x, lower=ends(x, 0.1)[0], upper=ends(x, 0.1)[1], method=method)
        assert (lower <= y.min(0)).all() and (y.max(0) <= upper).all()
        widths[method] = float(np.mean(upper - lower))
    assert widths["crown"] < widths["auto"] == widths["forward"] < widths["ibp"] / 2


def test_spec_is_tighter_than_the_difference() -> None:
    net, x = net_of("relu")
    lower, upper = ingot.bounds(net, x, eps=0.2)
    (margin,), (largest,) = ingot.bounds(net, x, eps=0.2, spec=[[1, -1, 0]])
    assert lower[0, 0] - upper[0, 1] < margin < largest < upper[0, 0] - lower[0, 1]
    y = net.double()(samples(x, 0.2, 300).flatten(0, 1)).detach().numpy()
    assert margin <= (y[:, 0] - y[:, 1]).min() and (y[:, 0] - y[:, 1]).max() <= largest


def test_numerics_hold_for_the_program() -> None:
    """Of a sum of 2,000 numbers that is 0, f32 has no digit: bounds for real numbers do not hold for the program,
    bounds with its rounding do, in the order of any machine."""
    rng = np.random.default_rng(0)
    net = nn.Linear(2000, 1, bias=False).eval()
    with torch.no_grad():
        half = rng.normal(size=1000).astype(np.float32) * 1e4
        net.weight.copy_(torch.from_numpy(rng.permutation(np.concatenate([half, -half]))[None]))
    x = torch.ones(1, 2000)
    program = ingot.compile(net, (x,))
    real = ingot.bounds(net, x, eps=0.0)
    rounded = ingot.bounds(net, x, eps=0.0, numerics=True)
    y = float(program(x)[0, 0])
    assert not real.lower[0, 0] <= y <= real.upper[0, 0]
    for order in (np.arange(2000), np.argsort(net.weight.detach().numpy()[0]), rng.permutation(2000)):
        total = np.float32(0)
        for w in net.weight.detach().numpy()[0, order]:
            total += w
        assert rounded.lower[0, 0] <= total <= rounded.upper[0, 0]
    assert rounded.lower[0, 0] <= y <= rounded.upper[0, 0]
    assert rounded.upper - rounded.lower > 100 * (real.upper - real.lower)
    assert "rounding" in rounded.explain()


@pytest.mark.parametrize("name", ["images", "gelu", pytest.param("attention", marks=pytest.mark.slow)])
def test_numerics_of_networks(name: str) -> None:
    net, x = net_of(name)
    program = ingot.compile(net, (x,))
    bounds = ingot.bounds(net, x, eps=0.0, numerics=True)
    y = program(x).numpy()
    assert (bounds.lower <= y).all() and (y <= bounds.upper).all()
    with torch.no_grad():
        exact = net.double()(x.double()).numpy()
    assert (bounds.lower <= exact).all() and (exact <= bounds.upper).all()


def test_numerics_of_winograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wider than those of sums."""
    net, x = nn.Conv2d(48, 48, 3, padding=1).eval(), torch.rand(1, 48, 28, 28)
    program = ingot.compile(net, (x,))
    if not any(getattr(step, "kernel", "").startswith("winograd") for step in program.program.steps):
        pytest.skip("no convolution by Winograd's algorithm on this machine")
    wide = ingot.bounds(net, x, eps=0.0, method="ibp", numerics=True)
    y = program(x).detach().numpy()
    assert (wide.lower <= y).all() and (y <= wide.upper).all()
    rows = np.zeros((2, y.size))
    rows[[0, 1], [5, 20000]] = 1
    subset = ingot.bounds(net, x, eps=0.0, method="crown-ibp", numerics=True, spec=rows)
    assert (subset.lower <= y.reshape(-1)[[5, 20000]]).all() and (y.reshape(-1)[[5, 20000]] <= subset.upper).all()
    monkeypatch.setenv("INGOT_WINOGRAD", "0")
    bounds = ingot.bounds(net, x, eps=0.0, method="ibp", numerics=True)
    y = ingot.compile(net, (x,))(x).detach().numpy()
    assert (bounds.lower <= y).all() and (y <= bounds.upper).all()
    assert (wide.upper - wide.lower > bounds.upper - bounds.lower).all()
    assert (subset.upper - subset.lower > (bounds.upper - bounds.lower).reshape(-1)[[5, 20000]]).all()


@pytest.mark.parametrize("method", ["ibp", pytest.param("crown-ibp", marks=pytest.mark.slow)])
def test_numerics_of_transposed_convolutions(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of 6 with stride 2 has four phases of 3 x 3 taps, each of which Winograd's algorithm computes."""
    net, x = nn.ConvTranspose2d(32, 32, 6, stride=2, padding=2).eval(), torch.rand(1, 32, 20, 20)
    program = ingot.compile(net, (x,))
    if not any(getattr(step, "kernel", "").startswith("winograd") for step in program.program.steps):
        pytest.skip("no convolution by Winograd's algorithm on this machine")
    spec = None if method == "ibp" else np.eye(program(x).numel())[[7, 4321, 9999]]
    wide = ingot.bounds(net, x, eps=0.0, method=method, numerics=True, spec=spec)
    y = program(x).detach().numpy().reshape(-1)
    y = y if method == "ibp" else y[[7, 4321, 9999]]
    assert (wide.lower.reshape(-1) <= y).all() and (y <= wide.upper.reshape(-1)).all()
    with torch.no_grad():
        exact = net.double()(x.double()).numpy().reshape(-1)
    net.float()
    assert method != "ibp" or np.abs(wide.upper.reshape(-1) - exact).max() < 1e-2
    monkeypatch.setenv("INGOT_WINOGRAD", "0")
    sums = ingot.bounds(net, x, eps=0.0, method=method, numerics=True, spec=spec)
    assert (wide.upper - wide.lower > sums.upper - sums.lower).all()


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (2, 5)])
def test_the_error_of_winograd(m: int, r: int) -> None:
    """Of one tile, wherever it lies in the image, the published bound is not above ours."""
    rng = np.random.default_rng(0)
    f, size = transform(m, r), 12
    x, w = np.abs(rng.normal(size=(1, 3, size, size))), np.abs(rng.normal(size=(2, 3, r, r)))
    op = ops.Convolution((1, 1), ((1, 1), (2, 0)), (1, 1), (1, 1), "NCHW", "OIHW", "NCHW")
    node = op(const(x.astype(np.float32)), const(w.astype(np.float32)))
    result = error_of_winograd(Rounding(2.0**-24, 2.0**-126, True), node, Term(const(x)), Term(const(w)))
    assert result is not None
    (ours,) = interpret(Graph((), (lower_model_ops(Graph((), (result.node,))).outputs[0],)), [])
    at, g, bt = (np.abs(array(matrix)) for matrix in (f.at, f.g, f.bt))
    padded, largest = np.pad(x[0], ((0, 0), (1, 1), (2, 0))), 0.0
    for i, j in itertools.product(range(0, size - r - m, 2), range(0, size - r - m, 3)):
        tile = padded[:, i : i + f.alpha, j : j + f.alpha]
        sums = sum((g @ w[:, c] @ g.T) * (bt @ tile[c] @ bt.T) for c in range(3))
        theirs = at @ sums @ at.T * (4 * f.alpha + 3 + 2) * 2.0**-24
        assert (theirs <= ours[0, :, i : i + m, j : j + m]).all()
        largest = max(largest, float(theirs.max()))
    assert ours.max() < 200 * largest


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_numerics_of_precisions(precision: str) -> None:
    """Of what a program of 16 bits computes, residuals of rounded values included."""
    for name in ("relu", "residual", "images"):
        net, x = net_of(name)
        program = ingot.compile(net, (x,), precision=precision)
        real = ingot.bounds(net, x, eps=0.02)
        rounded = ingot.bounds(net, x, eps=0.02, numerics=True, precision=precision)
        for point in samples(x, 0.02, 200).float():
            y = program(point.clamp(x - 0.02, x + 0.02)).detach().numpy()
            assert (rounded.lower <= y).all() and (y <= rounded.upper).all()
        assert (rounded.lower != real.lower).all()
        wider = rounded.upper - rounded.lower > 1.001 * (real.upper - real.lower)
        assert wider.all() or precision == "float16"  # which rounds weights alone, and these are known
    point = ingot.bounds(net, x, eps=0.0)
    y = program(x).detach().numpy()
    assert not ((point.lower <= y) & (y <= point.upper)).all()


def test_numerics_of_activations_in_bytes() -> None:
    """Values that levels multiply are rounded to bytes; bounds hold for programs with and without."""
    random = np.random.default_rng(3)
    x = Input("x", TensorType(f32, (4, 128)))()
    y: Node = x
    for columns, rows in ((128, 96), (96, 32)):
        levels = const(random.integers(-127, 128, (columns, rows)).astype(np.int8))
        scale = const(np.float32(0.01) * random.random((1, rows)).astype(np.float32))
        weights = ops.Mul()(ops.cast(levels, f32), ops.broadcast_to(scale, levels.shape))
        y = ops.Max()(ops.DotGeneral(contract=((1,), (0,)))(y, weights), ops.full((4, rows), 0.0, f32))
    graph, feed = Graph((x,), (y,), ("y",)), random.standard_normal((4, 128)).astype(np.float32)
    options = Options(activations="int8")
    rounded, exact = (CompiledModel(compiled_program(graph, o), threads=1).run([feed])[0] for o in (options, Options()))
    assert np.abs(rounded - exact).max() > 1e-3
    for method in ("ibp", "forward", "crown-ibp"):
        question = Question((True,), method, None, rounding_of(graph, True, options))
        bounds = bound_graph(as_compiled(graph, options), question)
        lower, upper = CompiledModel(compiled_program(bounds, Options()), threads=1).run([feed, feed])
        for result in (rounded, exact):
            assert (lower <= result).all() and (result <= upper).all()
    (error,) = rounding_errors(graph, [feed], options).values()
    assert np.abs(rounded - exact).max() < error < 60 * np.abs(rounded - exact).max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_floats(dtype: torch.dtype) -> None:
    """Bounds have the result's type; numerics are those of the type."""
    torch.manual_seed(3)
    net, x = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 3)).to(dtype).eval(), torch.rand(1, 5).to(dtype)
    program = ingot.compile(net, (x,))
    bounds = ingot.bounds(net, x, eps=0.05, numerics=True)
    assert str(bounds.lower.dtype) == str(dtype).removeprefix("torch.")
    lower, upper = (np.asarray(v, np.float64) for v in bounds)
    inside = 0
    for point in samples(x, 0.05, 100).to(dtype):
        if float((point.double() - x.double()).abs().max()) <= 0.05:  # rounded, a point may lie outside
            y = program(point).double().numpy()
            inside += 1
            assert (lower <= y).all() and (y <= upper).all()
    assert inside > 20


def test_a_monitor_is_a_model(tmp_path: Path) -> None:
    net, x = net_of("relu")
    bounds = ingot.bounds(net, (x,), eps=0.1)
    bounds.save(tmp_path / "monitor.ingot")
    loaded = ingot.load(tmp_path / "monitor.ingot")
    assert [spec.name for spec in loaded.inputs] == ["lower input", "upper input"]
    lower, upper = loaded(*ends(x, 0.05))
    assert (lower >= bounds.lower).all() and (upper <= bounds.upper).all()
    assert "crown" in bounds.explain() and "real numbers" in bounds.explain()


class Tangent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tan(x) + torch.prod(x, 1, keepdim=True)


def test_ops_without_bounds_are_named_at_once() -> None:
    with pytest.raises(ingot.UnsupportedOpError, match=r"(?s)2 ops.*tan.*prod"):
        ingot.bounds(Tangent().eval(), torch.rand(1, 3), eps=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": -0.1}, "eps: expected numbers of at least 0, got -0.1"),
        ({"eps": float("nan")}, "eps: expected finite numbers"),
        ({"eps": [0.1, 0.2]}, "eps: expected one number"),
        ({"eps": np.ones((7,))}, "eps: expected shapes that broadcast"),
        ({}, "either eps, or lower and upper"),
        ({"eps": 0.1, "lower": 0.0}, "either eps, or lower and upper"),
        ({"lower": 0.0}, "expected lower and upper, got lower"),
        ({"lower": "a", "upper": "b"}, "lower: expected numbers, got str"),
        ({"eps": 0.1, "numerics": "yes"}, "numerics: expected True or False, got 'yes'"),
        ({"eps": 0.1, "spec": np.zeros((0, 3))}, "spec: expected rows of 3 factors"),
        ({"lower": 1.0, "upper": 0.0}, "expected lower <= upper"),
        ({"lower": float("-inf"), "upper": 0.0}, "expected finite numbers"),
        ({"lower": np.zeros((2, 2)), "upper": 0.0}, "expected ends of shape"),
        ({"eps": 0.1, "method": "magic"}, "method: expected crown or auto or crown-ibp or forward or ibp"),
        ({"eps": 0.1, "method": "ibp", "slope_steps": 3}, "slope_steps: expected 0 for method 'ibp'"),
        ({"eps": 0.1, "precision": "int8"}, "precision: expected float32 or bfloat16 or float16"),
        ({"eps": 0.1, "slope_steps": -1}, "slope_steps: expected a whole number from 0"),
        ({"eps": 0.1, "spec": [[1, -1]]}, "spec: expected rows of 3 factors"),
        ({"eps": 0.1, "spec": [[1, float("nan"), 0]]}, "spec: expected finite numbers"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    net, x = net_of("relu")
    with pytest.raises(ingot.InputError, match=message):
        ingot.bounds(net, x, **options)  # type: ignore[arg-type]


def test_bad_points_and_results() -> None:
    net, x = net_of("relu")
    with pytest.raises(ingot.InputError, match="x: expected finite numbers"):
        ingot.bounds(net, x * float("nan"), eps=0.1)

    class Largest(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(1)

    with pytest.raises(ingot.InputError, match="results of floats"):
        ingot.bounds(Largest().eval(), x, eps=0.1)


@pytest.mark.parametrize("name", ["relu", *(pytest.param(n, marks=pytest.mark.slow) for n in ("images", "residual"))])
def test_optimized_slopes(name: str) -> None:
    """They narrow the bounds, which hold at each step, from the first to slopes that are random."""
    net, x = net_of(name)
    plain = ingot.bounds(net, x, eps=0.3)
    better = ingot.bounds(net, x, eps=0.3, slope_steps=15)
    assert (better.lower >= plain.lower).all() and (better.upper <= plain.upper).all()
    assert (better.upper - better.lower).mean() < 0.99 * (plain.upper - plain.lower).mean()
    with torch.no_grad():
        ys = torch.stack([net.double()(v) for v in samples(x, 0.3, 1000)]).numpy()
    assert (better.lower <= ys.min(0)).all() and (ys.max(0) <= better.upper).all()
    graph = open_model(net.float(), Request((x,))).graph
    slopes = slopes_of(Question((True,), "crown", np.eye(ys[0].size), Rounding()).of(graph), Options())
    rng = np.random.default_rng(0)
    for _ in range(5):
        alphas = [rng.uniform(-0.2, 1.2, shape) for shape, _ in slopes.shapes]
        lower, *_ = slopes.step.run([*ends(x, 0.3), np.ones(slopes.rows), *alphas])
        assert (lower <= ys.min(0).reshape(-1)).all()


@pytest.mark.parametrize(
    "name", ["relu", "norms", *(pytest.param(n, marks=pytest.mark.slow) for n in ("images", "attention"))]
)
def test_rows_of_a_batch_are_walked_together(name: str) -> None:
    """As narrow as one by one, with coefficients that grow with the batch, not with its square."""
    net, x = net_of(name)
    batch = torch.cat([x * factor for factor in (1.0, 0.5, -0.7)])
    graphs = [Question((True,), "crown", None, Rounding()).of(open_model(net, Request((v,))).graph) for v in (x, batch)]
    assert not graphs[0].rows and set(graphs[1].rows.values()) <= {0, 1}
    one, three = (sum(graph.bytes_of(n) for n in (*graph.walked, *graph.core.results)) for graph in graphs)
    assert graphs[1].rows and three == 3 * one
    for eps in (0.0, 0.1):
        lower, upper = ingot.bounds(net, batch, eps=eps)
        for i in range(3):
            row_bounds = ingot.bounds(net, batch[i : i + 1], eps=eps)
            np.testing.assert_allclose(lower[i : i + 1], row_bounds.lower, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(upper[i : i + 1], row_bounds.upper, rtol=1e-5, atol=1e-6)


class Meeting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x - x.mean(0, keepdim=True)) + torch.relu(x.flip(0))


def test_rows_that_meet_are_no_rows() -> None:
    x = torch.rand(3, 4)
    graph = Question((True,), "crown", None, Rounding()).of(open_model(Meeting().eval(), Request((x,))).graph)
    assert not graph.rows
    lower, upper = ingot.bounds(Meeting().eval(), x, eps=0.1)
    ys = torch.stack([Meeting()(v) for v in samples(x, 0.1, 300)]).numpy()
    assert (lower <= ys.min(0)).all() and (ys.max(0) <= upper).all()


class Pooled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        constant = torch.tensor([0.3, -0.2, 5.0])
        y = F.max_pool2d(x, 2) + F.max_pool2d(-x, 2)
        return y.sum() + torch.cat([x.amax((2, 3)), constant[None]], 1).amax(1)


def test_the_largest_of_several() -> None:
    """By CROWN-IBP: of a constant too, at the operand's own bounds where one is larger than all others."""
    x = torch.rand(1, 1, 4, 4)
    for eps in (0.0, 0.01, 0.4):
        lower, upper = ingot.bounds(Pooled().eval(), x, eps=eps, method="crown-ibp")
        ys = torch.stack([Pooled()(v) for v in samples(x, eps, 300)]).numpy()
        assert (lower <= ys.min(0)).all() and (ys.max(0) <= upper).all()
        if eps <= 0.01:
            assert (upper - lower).max() < 40 * eps + 1e-5


def test_numerics_of_tf32() -> None:
    """What tensor cores make of operands that they cut lies within, and more than f32's rounding is counted."""
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((3, 40), (5, 40)))
    net = nn.Linear(40, 5, bias=False)
    net.weight.data = torch.from_numpy(w)
    example = torch.from_numpy(x)
    plain, cut = (ingot.bounds(net, example, eps=0.0, numerics=True, precision=p) for p in ("float32", "tf32"))
    tensor_cores = to_tf32(x).astype(np.float64) @ to_tf32(w).T
    assert (cut.lower <= tensor_cores).all() and (tensor_cores <= cut.upper).all()
    assert not ((plain.lower <= tensor_cores) & (tensor_cores <= plain.upper)).all()
