"""Bounds of a program's rounding: they hold, and `ingot explain` and receipts show them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ingot
from ingot.cli import app
from ingot.driver.compile import Options
from ingot.driver.open import Request, open_model
from ingot.support.errors import InputError
from ingot.transform.bounds.error import rounding_errors, rounding_text
from ingot.transform.quantize.report import Report
from tests.transform.bounds.test_bounds import net_of


@pytest.mark.parametrize("name", ["relu", "norms", pytest.param("attention", marks=pytest.mark.slow)])
def test_errors_are_within(name: str) -> None:
    net, x = net_of(name)
    graph = open_model(net, Request((x,))).graph
    ((result, error),) = rounding_errors(graph, [x.numpy()], Options()).items()
    y = ingot.compile(net, (x,))(x).detach().double()
    with torch.no_grad():
        exact = net.double()(x.double())
    assert float((y - exact).abs().max()) <= error < 1e-3
    assert rounding_text({result: error}).startswith("rounding, in any order of sums, moves")


def test_a_weight_that_overflows_in_the_program_is_refused() -> None:
    linear, x = torch.nn.Linear(4, 3), torch.rand(1, 4)
    net = torch.nn.Sequential(linear, torch.nn.Softmax(-1))
    with torch.no_grad():
        linear.weight[0, 0] = 1e5
    graph = open_model(net.eval(), Request((x,))).graph
    with pytest.raises(InputError, match="weights in the range of f16, got 100000"):
        rounding_errors(graph, [x.numpy()], Options(precision="float16"))


@pytest.mark.parametrize("method", ["ibp", "crown-ibp", "crown"])
def test_nothing_is_known_where_sums_may_overflow(method: str) -> None:
    linear, x = torch.nn.Linear(4, 2, bias=False), torch.ones(1, 4)
    net = torch.nn.Sequential(linear, torch.nn.ReLU(), torch.nn.Sigmoid())
    weights = torch.tensor([[3e38, 3e38, -3e38, -3e38], [1.0, 2.0, -1.0, 1.0]])
    with torch.no_grad():
        linear.weight.copy_(weights)
    lower, upper = (np.asarray(v) for v in ingot.bounds(net, x, eps=0.1, method=method, numerics=True))
    assert (lower == -np.inf).all() and (upper == np.inf).all()
    with torch.no_grad():
        linear.weight.copy_(weights / 1e9)
    lower, upper = (np.asarray(v) for v in ingot.bounds(net, x, eps=0.1, method=method, numerics=True))
    assert (lower >= 0.49).all() and (upper <= 1.01).all()


def test_explain_and_receipts_show_it(tmp_path: Path) -> None:
    from tests.transform.bounds.search.test_certify import _model

    path = _model(tmp_path)
    command = ["explain", str(path), "--size", "batch=1", "--repeats", "1", "--rounding", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert 0 < json.loads(done.stdout)["rounding"]["y"] < 1e-3
    samples = {"x": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)}
    quantized = ingot.quantize(str(path), samples, seconds=0.2)
    assert isinstance(quantized.report.rounding, dict) and 0 < quantized.report.rounding["y"] < 1e-3
    assert "bounds of float32's own rounding" in quantized.report.text()
    restored = Report.of_receipt(quantized.report.receipt())
    assert restored.rounding == quantized.report.rounding
