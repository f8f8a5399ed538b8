"""PyTorch's random ops: types, shapes and distributions (moments, ranges) are PyTorch's, bits are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.frontends.torch import export_module, import_exported
from ingot.ir.interp import interpret
from tests.frontends.torch.agree import compile_whole

N = (80, 250)
_generator = torch.Generator().manual_seed(0)
X, P = torch.randn(N, generator=_generator), torch.rand(N, generator=_generator)


class Calls(nn.Module):
    def __init__(self, f: Callable[..., torch.Tensor]):
        super().__init__()
        self.f = f

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.f(*args)


def empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(N, dtype=dtype)


SAMPLES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rand": lambda x, p: torch.rand(N),
    "rand of half": lambda x, p: torch.rand(N, dtype=torch.float16),
    "rand_like": lambda x, p: torch.rand_like(x, dtype=torch.float64),
    "randn": lambda x, p: torch.randn(N),
    "randn of complex": lambda x, p: torch.randn(N, dtype=torch.complex64),
    "randn_like": lambda x, p: torch.randn_like(x),
    "randint": lambda x, p: torch.randint(-5, 20, N),
    "randint_like": lambda x, p: torch.randint_like(x, 3, 20),
    "randperm": lambda x, p: torch.randperm(5000),
    "bernoulli": lambda x, p: torch.bernoulli(p),
    "bernoulli p": lambda x, p: torch.bernoulli(x, 0.2),
    "bernoulli_": lambda x, p: empty().bernoulli_(0.3),
    "bernoulli_ of tensor": lambda x, p: empty(torch.bool).bernoulli_(p),
    "normal": lambda x, p: torch.normal(x, p),
    "normal mean": lambda x, p: torch.normal(3.0, p),
    "normal_": lambda x, p: empty().normal_(3, 5),
    "uniform_": lambda x, p: empty().uniform_(3, 5),
    "exponential_": lambda x, p: empty().exponential_(2),
    "cauchy_": lambda x, p: empty().cauchy_(2, 0.5).clamp(-3, 6),
    "log_normal_": lambda x, p: empty().log_normal_(0.2, 0.5),
    "geometric_": lambda x, p: empty().geometric_(0.2),
    "geometric_ of int": lambda x, p: empty(torch.int64).geometric_(0.2),
    "random_": lambda x, p: empty(torch.int64).random_(),
    "random_ of byte": lambda x, p: empty(torch.uint8).random_(),
    "random_ of float": lambda x, p: empty().random_(),
    "random_ to": lambda x, p: empty().random_(10),
    "multinomial": lambda x, p: torch.multinomial(p, 50),
    "multinomial replaced": lambda x, p: torch.multinomial(p, 50, True),
    "poisson": lambda x, p: torch.poisson(p * 30),
    "poisson of few": lambda x, p: torch.poisson(p),
    "standard gamma": lambda x, p: torch.ops.aten._standard_gamma(p * 3),
    "dirichlet": lambda x, p: torch.ops.aten._sample_dirichlet(p * 3),
    "binomial": lambda x, p: torch.binomial(torch.full(N, 60.0), p),
    "binomial of few": lambda x, p: torch.binomial(torch.full(N, 6.0), p),
    "dropout": lambda x, p: F.dropout(x, 0.3),
    "dropout_": lambda x, p: F.dropout(x + 1, 0.3, inplace=True),
    "native_dropout": lambda x, p: torch.native_dropout(x, 0.3, True)[1],
    "alpha_dropout": lambda x, p: F.alpha_dropout(x, 0.3, True),
    "dropout2d": lambda x, p: F.dropout2d(x.reshape(80, 50, 5, 1), 0.3),
    "feature_alpha_dropout": lambda x, p: F.feature_alpha_dropout(x.reshape(80, 125, 2), 0.3, True),
    "rrelu": lambda x, p: F.rrelu(x, 0.1, 0.3, True),
    "gumbel_softmax": lambda x, p: F.gumbel_softmax(x),
    "attention": lambda x, p: F.scaled_dot_product_attention(
        *(t.reshape(1, 2, 500, 20) for t in (x, p, x)), dropout_p=0.5
    ),
    "written through a view": lambda x, p: x.clone().view(-1).uniform_(2, 3).view(N),
}


@pytest.mark.parametrize("name", list(SAMPLES))
def test_moments(name: str) -> None:
    torch.manual_seed(5)
    want = SAMPLES[name](X, P)
    model = import_exported(export_module(Calls(SAMPLES[name]).eval(), (X, P)))
    (got,) = interpret(model.graph, [X.numpy(), P.numpy()])
    if want.is_complex():
        want = torch.view_as_real(want)
    assert got.shape == tuple(want.shape) and str(got.dtype) == str(want.dtype).removeprefix("torch.")
    g, w = got.astype(np.float64), want.double().numpy()
    # PyTorch's own numbers vary as much: five deviations of the difference of two means
    spread = max(w.std(), 1e-9)
    assert abs(g.mean() - w.mean()) < 5 * spread * math.sqrt(2 / w.size) + 1e-12
    tail = abs(w - w.mean()).max() / spread
    assert abs(g.std() / spread - 1) < 5 * tail / math.sqrt(w.size)
    if abs(w).max() < 1e6:
        assert w.min() - 3 * spread <= g.min() and g.max() <= w.max() + 6 * spread


class Parameters(nn.Module):
    def forward(self, a: torch.Tensor, n: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten._standard_gamma(a), torch.poisson(a), torch.binomial(n, p)


@pytest.mark.slow
def test_distributions_of_any_parameters() -> None:
    count = 1000
    shapes, trials, chances = (
        [0.05, 0.7, 9.9, 10.0, 300.0],
        [5.0, 30.0, 100.0, 1000.0, 1e6],
        [0.3, 0.9, 0.02, 0.5, 1e-3],
    )
    args = tuple(torch.tensor(v).double()[:, None].repeat(1, count) for v in (shapes, trials, chances))
    graph = import_exported(export_module(Parameters().eval(), args)).graph
    gamma, poisson, binomial = interpret(graph, [v.numpy() for v in args])
    for row, (a, n, p) in enumerate(zip(shapes, trials, chances, strict=True)):
        k = torch.arange(0, 3 + max(poisson[row].max(), binomial[row].max())).double()
        rates = k * math.log(a) - a - torch.lgamma(k + 1)
        of = torch.distributions.Binomial(torch.tensor(n), torch.tensor(p).double())
        successes = of.log_prob(k.clamp(max=n)).masked_fill(k > n, -math.inf)
        # Kolmogorov and Smirnov's bound of a chance of 1 in 1000; of counts less is to be expected
        placed = torch.special.gammainc(args[0][row], torch.from_numpy(gamma[row])).sort()[0]
        assert (placed - (torch.arange(count) + 0.5) / count).abs().max() < 1.95 / math.sqrt(count)
        for got, log_chances in ((poisson[row], rates), (binomial[row], successes)):
            frequencies = torch.bincount(torch.from_numpy(got).long(), minlength=len(k)).double().cumsum(0) / count
            assert (frequencies - log_chances.exp().cumsum(0)).abs().max() < 1.95 / math.sqrt(count)
    ends = tuple(torch.tensor([0.0, math.inf, math.nan, -1]).double() for _ in range(3))
    graph = import_exported(export_module(Parameters().eval(), ends)).graph
    for got, infinite in zip(interpret(graph, [v.numpy() for v in ends]), (math.inf, math.inf, math.nan), strict=True):
        np.testing.assert_array_equal(got, [0, infinite, math.nan, math.nan])


def test_draws_of_one_program_differ() -> None:
    model = import_exported(export_module(Calls(lambda x: torch.rand(9) - torch.rand(9)).eval(), (X,)))
    assert (interpret(model.graph, [X.numpy()])[0] != 0).all()


def test_a_model_in_training_mode_draws_anew_in_each_call_and_again_by_its_seed(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(250, 32), nn.BatchNorm1d(32), nn.Dropout(0.4)).train()
    m = ingot.compile(net, (X,), threads=1)
    start = m.state()
    a, b = m(X), m(X)
    assert (a != b).any() and abs((a == 0).double().mean() - 0.4) < 0.03
    expected = F.batch_norm(net[0](X), None, None, training=True) * (a != 0) / 0.6
    torch.testing.assert_close(a, expected.detach(), rtol=1e-4, atol=1e-4)
    assert m.state()["1.num_batches_tracked"] == 2
    m.set_state(start)
    assert torch.equal(m(X), a)
    m.seed(7)
    c = m(X)
    m.seed(7)
    assert torch.equal(m(X), c) and (c != a).any()
    m.save(tmp_path / "m.ingot")
    loaded = ingot.load(tmp_path / "m.ingot", threads=2)
    np.testing.assert_array_equal(loaded(X.numpy()), a.numpy())  # whatever has been called since
    np.testing.assert_array_equal(loaded(X.numpy()), b.numpy())
    loaded.seed()
    one = loaded(X.numpy())
    loaded.seed()
    assert (loaded(X.numpy()) != one).any()


def test_stacked_lstm_drops_between_its_layers() -> None:
    net = nn.LSTM(5, 7, 2, dropout=0.5).train()
    x = torch.randn(6, 3, 5)
    graph = import_exported(export_module(net, (x,))).graph
    first = net.eval()(x)[1][0][0].detach().numpy()
    got = interpret(graph, [x.numpy()])
    np.testing.assert_allclose(got[1][0], first, rtol=1e-5, atol=1e-6)  # the first layer's last state
    assert (got[0] != net(x)[0].detach().numpy()).all()


def test_torch_compile_follows_torchs_generator() -> None:
    f = compile_whole(lambda x: F.dropout(x, 0.5))
    with torch.no_grad():
        torch.manual_seed(1)
        a, b = f(X), f(X)
        torch.manual_seed(1)
        assert torch.equal(f(X), a) and (a != b).any()
    assert abs((a == 0).double().mean() - 0.5) < 0.02
