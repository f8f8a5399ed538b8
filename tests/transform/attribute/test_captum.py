"""Attributions beside captum's on models of five kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot

pytest.importorskip("torch")
captum = pytest.importorskip("captum.attr", exc_type=ImportError)  # installed without its dependencies

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from ingot.ir.interp import interpret  # noqa: E402
from ingot.ir.node import Graph, const  # noqa: E402
from ingot.ops import sampling  # noqa: E402
from ingot.ops.random import counted_key  # noqa: E402
from tests.transform.attribute.models import CASES  # noqa: E402


def agree(got: Any, want: Any) -> None:
    got, want = np.asarray(got), want.detach().numpy()
    assert got.shape == want.shape
    assert np.abs(want).max() > 1e-4
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("name", CASES)
def test_integrated_gradients(name: str) -> None:
    net, (x, *others), target = CASES[name].make()
    if name == "bert":
        layer = captum.LayerIntegratedGradients(net, net.word)
        want = layer.attribute(x, target=target, additional_forward_args=(*others,)).sum(-1)
        got, types = ingot.attribute(net, (x, *others), target=target, threads=1)
        assert not np.asarray(types).any()  # at their baselines
    else:
        want = captum.IntegratedGradients(net).attribute(x, target=target)
        got = ingot.attribute(net, x, target=target, threads=1)
    agree(got, want)


@pytest.mark.parametrize("name", ["cnn", "bert"])
def test_a_baseline(name: str) -> None:
    net, (x, *others), target = CASES[name].make()
    if name == "bert":
        layer = captum.LayerIntegratedGradients(net, net.word)
        want = layer.attribute(x, 7, target, (*others,), n_steps=20).sum(-1)
        baseline: Any = {"input_ids": 7}
        wrt = ["input_ids"]
    else:
        baseline, wrt = torch.randn(x.shape), None
        want = captum.IntegratedGradients(net).attribute(x, baseline, target, n_steps=20)
    agree(ingot.attribute(net, (x, *others), target=target, baseline=baseline, steps=20, wrt=wrt, threads=1), want)


@pytest.mark.parametrize("name", CASES)
def test_gradient_x_input(name: str) -> None:
    net, (x, *others), target = CASES[name].make()
    if name == "bert":
        layer = captum.LayerGradientXActivation(net, net.word)
        want = layer.attribute(x, target, (*others,)).sum(-1)
    else:
        want = captum.InputXGradient(net).attribute(x.clone().requires_grad_(), target)
    got = ingot.attribute(net, (x, *others), target=target, method="gradient_x_input", threads=1)
    agree(got[0] if name == "bert" else got, want)


@pytest.mark.parametrize("name", CASES)
def test_occlusion(name: str) -> None:
    net, (x, *others), target = CASES[name].make()
    window = CASES[name].window
    stride = tuple(max(1, w - 1) for w in window)
    want = captum.Occlusion(net).attribute(x, window, stride, 2, target, (*others,))
    first = None if len(others) == 0 else ["input_ids"]
    got = ingot.attribute(
        net, (x, *others), target=target, method="occlusion", window=window, stride=stride, baseline=2, wrt=first,
        threads=1,
    )  # fmt: skip
    agree(got, want)


@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_smoothgrad(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """captum's noise is replaced by Ingot's, which is a function of the seed, the turn and the place."""
    net, (x,), target = CASES[name].make()

    def noise_like(mean: float, std: Tensor) -> Tensor:  # captum: each example's samples side by side
        batch, count = 3, 10
        key = counted_key(const(5, np.int64), const(0, np.int64))
        shape = (batch, count, *x.shape[1:])
        (drawn,) = interpret(Graph((), (sampling.normal(key, shape),)), [])
        return mean + torch.as_tensor(drawn.reshape(std.shape).copy()) * std

    monkeypatch.setattr(torch, "normal", noise_like)
    tunnel = captum.NoiseTunnel(captum.Saliency(net))
    want = tunnel.attribute(x, nt_type="smoothgrad", nt_samples=10, stdevs=0.2, target=target, abs=False)
    agree(ingot.attribute(net, x, target=target, method="smoothgrad", steps=10, stdev=0.2, seed=5, threads=1), want)


def test_a_saved_program_needs_numpy_alone(tmp_path: Path) -> None:
    net, (x,), _ = CASES["cnn"].make()
    program = ingot.attribution(net, (x,), threads=1)
    program.save(tmp_path / "a.ingot")
    loaded = ingot.load(tmp_path / "a.ingot", threads=1)
    for batch in (1, 3):  # the batch is open
        want = captum.IntegratedGradients(net).attribute(x[:batch], target=2)
        agree(loaded(x[:batch].numpy(), np.full(batch, 2)), want)
