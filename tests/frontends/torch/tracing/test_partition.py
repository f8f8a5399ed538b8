"""What is done to a joint graph before it is cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ingot.frontends.torch.tracing.partition import _merge_equal
from tests.runtime.models import environment


def calls(f: Callable[[Tensor], Any], x: Tensor) -> tuple[int, int]:
    """How many ops `f` is traced to, and how many are left; what is left computes the same."""
    traced = make_fx(f, tracing_mode="fake")(x)
    before = sum(n.op == "call_function" for n in traced.graph.nodes)
    _merge_equal(traced.graph)
    traced.recompile()
    torch.manual_seed(0)
    want = f(x)
    torch.manual_seed(0)
    for got, wanted in zip(traced(x), want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    return before, sum(n.op == "call_function" for n in traced.graph.nodes)


def chains(x: Tensor) -> tuple[Tensor]:
    return (((x * 2).sin() * x).sum(0) + ((x * 2).sin() * x).amax(0),)


def numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    """None of them is another, but for the three casts."""
    return torch.atan2(x * 0.0, x * -0.0) + x.pow(2), (x.int() * 1.0 + x.int() * 1) + x.int() * True


def drawn(x: Tensor) -> tuple[Tensor]:
    return (torch.rand_like(x) * x - torch.rand_like(x) * x,)


def results(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A value of its own each, also where a result is a view."""
    return x * 2, x * 2, (x * 2).view(-1)


def written(x: Tensor) -> tuple[Tensor]:
    held = x.clone()
    before = held * 2
    held.add_(1)
    return (before + held * 2,)


@pytest.mark.parametrize(
    ("f", "gone"),
    [(chains, 3), (numbers, 2), (drawn, 0), (results, 0), (written, 0)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_equal_calls_are_one(f: Callable[[Tensor], Any], gone: int):
    before, after = calls(f, torch.randn(3, 4))
    assert before - after == gone


def test_a_first_step_imports_nothing_of_inductor_that_takes_long():
    body = """
import sys, torch, ingot
net = torch.compile(torch.nn.Linear(3, 2), backend="ingot", fullgraph=True)
net(torch.randn(4, 3)).sum().backward()
sys.exit("torch._inductor.lowering" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", body], check=True, timeout=120, env=environment())
