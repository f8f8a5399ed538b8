"""Several threads that train compiled functions at once, from the first call on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor

from ingot.integrations import torch_compile
from ingot.integrations.torch_flat import import_flat

THREADS = 8
Function = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """The graphs that are imported, each by one thread at a time, as the fake tensors of forward and backward are
    shared."""
    torch._dynamo.reset()
    graphs, within = list[fx.GraphModule](), Counter[int]()

    def watched(graph: fx.GraphModule, *args: Any) -> Any:
        values = [n.meta.get("val") for n in graph.graph.nodes]
        mode = id(next(v.fake_mode for v in values if isinstance(v, FakeTensor)))
        graphs.append(graph)
        within[mode] += 1
        time.sleep(0.02)
        assert within[mode] == 1
        within[mode] -= 1
        return import_flat(graph, *args)

    monkeypatch.setattr(torch_compile, "import_flat", watched)
    return graphs


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 9), nn.Softmax(-1), nn.Linear(9, 3))


def at_once(work: Callable[[int], None]) -> None:
    """Call `work` with the numbers of threads that start together; raise what one of them raises."""
    barrier = threading.Barrier(THREADS)

    def start(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(start, range(THREADS)))


def check(run: Function, function: Function, xs: Sequence[Tensor]) -> None:
    """Values and gradients agree with those of eager PyTorch."""
    for x in xs:
        results = []
        for f in (run, function):
            leaf = x.clone().requires_grad_()
            y = f(leaf)
            results.append((y.detach(), *torch.autograd.grad(y.square().sum(), [leaf])))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def compiled(function: Function, dynamic: bool = False, **options: Any) -> Function:
    options = {"threads": 1, **options}
    run: Any = torch.compile(function, backend="ingot", fullgraph=True, dynamic=dynamic, options=options)
    return run


@pytest.mark.parametrize("is_warm", [False, True])
def test_first_backward(graphs: list[fx.GraphModule], is_warm: bool) -> None:
    """Of one graph, which torch compiles when it runs: in all threads at once."""
    function = net()
    run = compiled(function)
    if is_warm:
        run(torch.randn(5, 7).requires_grad_())
    at_once(lambda _: check(run, function, [torch.randn(5, 7)] * 3))
    assert len(graphs) == 2 or not is_warm  # dynamo compiles a frame in each thread that finds it without code


def test_open_sizes() -> None:
    function = net()
    run = compiled(function, dynamic=True)
    at_once(lambda i: check(run, function, [torch.randn(n, 7) for n in (5, 6 + i, 8)]))


@pytest.mark.parametrize("is_alike", [False, True])
def test_several_models(is_alike: bool) -> None:
    """Models of one graph, with parameters of their own, and of several."""
    nets = [net() if is_alike else nn.Sequential(net(), *[nn.Tanh()] * i) for i in range(THREADS)]
    runs = [compiled(n, dynamic=False) for n in nets]
    at_once(lambda i: check(runs[i], nets[i], [torch.randn(5, 7)] * 3))


@torch.library.custom_op("ingot_threads::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, g: g * 2)


def test_fallback() -> None:
    """A graph that is split at what Ingot lacks, as all threads find out together."""

    def f(x: Tensor) -> Tensor:
        return twice(x.tanh()) + x.sin()

    run = compiled(f, fallback="eager")
    at_once(lambda _: check(run, f, [torch.randn(5, 5)] * 3))


def test_direct_calls() -> None:
    run = compiled(torch.tanh)
    check(run, torch.tanh, [torch.randn(8, 6)] * 2)
    at_once(lambda _: check(run, torch.tanh, [torch.randn(8, 6) for _ in range(30)]))
