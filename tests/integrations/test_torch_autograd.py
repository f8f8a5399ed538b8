"""Direct calls of forward and backward programs: what they compute, and what they leave to AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.nn import functional as F

import ingot  # noqa: F401  the backend's name

Function = Callable[..., Any]


def compiled(function: Function, *args: Tensor, is_direct: bool = True) -> Function:
    """The function under torch.compile after two calls with gradients. Later calls are direct, as AOTAutograd compiles
    the backward graph when it runs first."""
    torch._dynamo.reset()
    before = counters["ingot"]["direct_calls"]
    run: Any = torch.compile(function, backend="ingot", fullgraph=True, options={"threads": 1})
    for _ in range(2):
        results = run(*args)
        total = sum(r.sum() for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad)
        assert isinstance(total, Tensor)
        torch.autograd.grad(total, [a for a in args if a.requires_grad], allow_unused=True)
    assert counters["ingot"]["direct_calls"] == before + is_direct
    return run


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def check(run: Function, function: Function, *args: Tensor, cotangent: Tensor | None = None) -> None:
    """Values and gradients agree with those of eager PyTorch."""
    leaves = [a for a in args if a.requires_grad]
    results = []
    for f in (run, function):
        y = f(*args)
        gradients = torch.autograd.grad(y, leaves, torch.ones_like(y) if cotangent is None else cotangent)
        results.append((y.detach(), *gradients))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    assert results[0][0].stride() == results[1][0].stride()


@pytest.mark.parametrize("shape", [(3, 5), (0, 5), (1, 1), (257, 3)])
def test_values_and_gradients(shape: tuple[int, int]) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x * w).exp()

    x, w = leaf(*shape), torch.randn(shape[1])
    run = compiled(f, x, w)
    check(run, f, x, w)
    with torch.no_grad():
        x[:1] = torch.nan
    y = run(x, w)
    assert y[:1].isnan().all() and not y[1:].isnan().any()
    (gradient,) = torch.autograd.grad(y.sum(), [x])
    assert gradient[:1].isnan().all()


def test_a_network_trains() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    twin = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    twin.load_state_dict(net.state_dict())
    x, before = torch.randn(7, 5), counters["ingot"]["direct_calls"]
    torch._dynamo.reset()
    modules: list[Any] = [torch.compile(net, backend="ingot", fullgraph=True), twin]
    losses: list[list[float]] = []
    for run in modules:
        optimizer, torch_losses = torch.optim.SGD(run.parameters(), 0.1, momentum=0.9), []
        for _ in range(6):
            loss = run(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch_losses.append(loss.item())
        losses.append(torch_losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert counters["ingot"]["direct_calls"] == before + 1


@pytest.mark.parametrize("kind", ["transposed", "expanded", "strided"])
def test_cotangents_of_other_strides(kind: str) -> None:
    x = leaf(4, 6)
    run = compiled(torch.sigmoid, x)
    c = {"transposed": torch.randn(6, 4).T, "expanded": torch.randn(1, 6).expand(4, 6),
         "strided": torch.randn(4, 12)[:, ::2]}[kind]  # fmt: skip
    check(run, torch.sigmoid, x, cotangent=c)


def test_images_with_channels_last() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1).relu()

    x = torch.randn(2, 4, 7, 5).to(memory_format=torch.channels_last).requires_grad_()
    w = leaf(6, 4, 3, 3)
    run = compiled(f, x, w)
    for c in (torch.randn(2, 6, 7, 5).to(memory_format=torch.channels_last), torch.randn(2, 6, 7, 5)):
        check(run, f, x, w, cotangent=c)


def test_retained_and_released_graphs() -> None:
    x = leaf(4)
    run = compiled(torch.exp, x)
    y = run(x).sum()
    first, second = (torch.autograd.grad(y, [x], retain_graph=keep)[0] for keep in (True, False))
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, [x])


@pytest.mark.parametrize("dynamic", [False, True])
def test_retained_intermediates(dynamic: bool) -> None:
    """Also after a backward pass that retained nothing."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w).exp().sum(0)

    torch._dynamo.reset()
    run: Any = torch.compile(f, backend="ingot", fullgraph=True, dynamic=dynamic)
    w, x = leaf(5, 3), torch.randn(4, 5)
    check(run, f, x, w)
    y = run(x, w).sum()
    first, second = (torch.autograd.grad(y, [w], retain_graph=keep)[0] for keep in (True, False))
    assert torch.equal(first, second)


def test_double_backward_is_refused() -> None:
    x = leaf(4)
    y = compiled(torch.exp, x)(x).sum()
    (gradient,) = torch.autograd.grad(y, [x], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_writes_into_saved_values_are_errors() -> None:
    x = leaf(4)
    y = compiled(torch.exp, x)(x)  # backward reads the result
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()


def test_results_without_gradients_and_unused_ones() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, places = x.max(1)
        return values * w, places, x.sin()

    x, w = leaf(3, 8), leaf(3)
    run = compiled(f, x, w)
    for used in ((0,), (2,), (0, 2)):
        pairs = []
        for g in (run, f):
            results = g(x, w)
            assert not results[1].requires_grad
            total = sum(results[i].sum() for i in used)
            assert isinstance(total, Tensor)
            pairs.append((*results, *torch.autograd.grad(total, [x, w], allow_unused=True)))
        for a, b in zip(*pairs, strict=True):  # AOTAutograd gives zeros for what eager calls unused
            torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b)


def test_saved_tensors_hooks_see_what_is_saved() -> None:
    x, sizes = leaf(5), list[tuple[int, ...]]()
    run = compiled(torch.exp, x)

    def pack(t: Tensor) -> Tensor:
        sizes.append(tuple(t.shape))
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = run(x)
    y.sum().backward()
    assert sizes == [(5,)]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_deterministic_algorithms_are_checked() -> None:
    x = leaf(4)
    y = compiled(torch.exp, x)(x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_written_inputs() -> None:
    """Each call writes once; what an earlier graph saved of a written tensor is out of date."""

    def f(x: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return x.exp() * count

    x, count = leaf(4, 6), torch.zeros(())
    run = compiled(f, x, count)
    for n in (3, 4):
        before = count._version
        check(run, lambda x, _, n=n: x.exp() * n, x, count)
        assert (count.item(), count._version > before) == (n, True)
    y = leaf(4) * count
    run(x, count)
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()


class Counted(nn.Module):
    """Buffers that a step writes, which backward needs before and after the write."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 5))
        self.register_buffer("count", torch.ones(5))
        self.register_buffer("last", torch.ones(5))
        self.count: Tensor
        self.last: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.w * self.last.clone())
        self.count.add_(1)
        self.last.copy_(x + self.count)
        return y * torch.sin(x * self.count * self.w)


@pytest.mark.parametrize("writes", [False, True])
def test_a_result_of_another_shape_is_no_view(writes: bool) -> None:
    """As a decoder's layer has it, which adds rows and reshapes them: callers may write into it."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x + (x @ w).exp()).view(2, 3, 5)

    def use(g: Function, x: Tensor, w: Tensor) -> Tensor:
        y = g(x, w)
        return y.mul_(3) if writes else y

    x, w = leaf(6, 5), leaf(5, 5)
    run = compiled(f, x, w)
    assert not run(x, w)._is_view()
    check(lambda *args: use(run, *args), lambda *args: use(f, *args), x, w)


def test_backward_reads_values_of_its_forward_pass() -> None:
    torch._dynamo.reset()
    before = counters["ingot"]["direct_calls"]
    net, twin = Counted(), Counted()
    run: Any = torch.compile(net, backend="ingot", fullgraph=True)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(5)
        results = [f(x) for f in (run, twin)]
        gradients = [torch.autograd.grad(y.sum(), [m.w])[0] for y, m in zip(results, (net, twin), strict=True)]
        torch.testing.assert_close(results[0], results[1])
        torch.testing.assert_close(gradients[0], gradients[1])
        torch.testing.assert_close([*net.buffers()], [*twin.buffers()])
    assert counters["ingot"]["direct_calls"] == before + 1


def test_gradients_enabled_within_no_grad() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.enable_grad():
            return torch.tanh(x * w)

    x, w = torch.randn(5), leaf(5)
    torch._dynamo.reset()
    before = counters["ingot"]["direct_calls"]
    run: Any = torch.compile(f, backend="ingot", fullgraph=True)
    for _ in range(3):
        with torch.no_grad():
            y = run(x, w)
        (gradient,) = torch.autograd.grad(y.sum(), [w])
        torch.testing.assert_close(gradient, x * (1 - y.detach().square()))
    assert counters["ingot"]["direct_calls"] == before + 1


def test_moments_of_a_batch_norm() -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    torch._dynamo.reset()
    before, x = counters["ingot"]["direct_calls"], torch.randn(7, 5)
    for net, run in zip(nets, (torch.compile(nets[0], backend="ingot", fullgraph=True), nets[1]), strict=True):
        optimizer: Any = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
    for (name, got), want in zip(nets[0].state_dict().items(), nets[1].state_dict().values(), strict=True):
        torch.testing.assert_close(got, want, msg=name)
    assert counters["ingot"]["direct_calls"] == before + 1


@pytest.mark.parametrize("is_trained", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("training", [True, False])
def test_a_batch_norm_that_is_frozen_in_part(is_trained: tuple[bool, bool], training: bool) -> None:
    nets = [nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16)).train(training) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(7, 5)
    torch._dynamo.reset()
    for net, run in zip(nets, (torch.compile(nets[0], backend="ingot", fullgraph=True), nets[1]), strict=True):
        for p, requires_grad in zip(net[1].parameters(), is_trained, strict=True):
            p.requires_grad_(requires_grad)
        run(x).sin().sum().backward()
    for (name, p), q in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("dynamic", [None, True])
def test_open_sizes(dynamic: bool | None) -> None:
    """One pair of programs for all batches, with sizes among what is saved; None: the second batch has it."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = torch.tanh(x @ w)
        return y.mean(0) * y.shape[0] + y.reshape(-1).sum()

    w = leaf(5, 3)
    torch._dynamo.reset()
    before = counters["ingot"]["direct_calls"], counters["stats"]["unique_graphs"]
    run: Any = torch.compile(f, backend="ingot", fullgraph=True, dynamic=dynamic)
    for n in (7, 4, 4, 9, 31, 4):
        check(run, f, leaf(n, 5), w)
    graphs = counters["stats"]["unique_graphs"] - before[1]
    assert (graphs, counters["ingot"]["direct_calls"] - before[0]) == ((1, 1) if dynamic else (2, 1))


def test_open_sizes_are_known_to_later_graphs() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.tanh()
        torch._dynamo.graph_break()
        return y.exp()

    torch._dynamo.reset()
    run: Any = torch.compile(f, backend="ingot", dynamic=True, fullgraph=False)
    x = leaf(4, 6)
    torch._dynamo.mark_dynamic(x, 0)
    before = counters["stats"]["unique_graphs"]
    for n in (4, 4, 5, 8):
        check(run, f, leaf(n, 6))
    assert counters["stats"]["unique_graphs"] - before == 2


def test_what_aot_autograd_keeps() -> None:
    """Graphs with aliased results, and inputs whose gradient is None."""
    x = leaf(4, 6)

    def view(x: Tensor) -> Tensor:
        return x.view(-1)

    compiled(view, x, is_direct=False)
    w = leaf(6)
    run = compiled(lambda x, w: x.exp() + w.detach(), x, w, is_direct=False)
    assert torch.autograd.grad(run(x, w).sum(), [w], allow_unused=True) == (None,)


def test_parts_in_eager_pytorch_ignore_the_callers_autocast() -> None:
    """As AOTAutograd's callable does: the graph has the casts of the regions that it was traced from."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.conv_tbc(x, w, torch.zeros(5), 1).tanh()

    x, w = torch.randn(6, 2, 4), leaf(3, 4, 5)
    torch._dynamo.reset()
    run: Any = torch.compile(f, backend="ingot", fullgraph=True, options={"fallback": "eager"})
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            check(run, f, x, w)


def test_other_shapes_have_calls_of_their_own() -> None:
    x = leaf(4, 6)
    run = compiled(torch.tanh, x)
    for n in (5, 9, 4):
        check(run, torch.tanh, leaf(n, 6))


def test_compiled_autograd() -> None:
    x = leaf(4, 6)
    run = compiled(torch.tanh, x)
    expected = torch.autograd.grad(run(x).sum(), [x])[0]

    def compiler(gm: Any) -> Any:
        return torch.compile(gm, backend="eager", fullgraph=False)

    with compiled_autograd._enable(compiler):
        x.grad = None
        run(x).sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_backward_inside_of_a_compiled_frame() -> None:
    x = leaf(4, 6)

    def step() -> Tensor:
        x.grad = None
        y = x.tanh()
        torch._dynamo.graph_break()
        y.sum().backward()
        assert x.grad is not None
        return x.grad + 1

    run: Any = torch.compile(step, backend="ingot", fullgraph=False)
    expected = step()
    for _ in range(3):
        torch.testing.assert_close(run(), expected)
