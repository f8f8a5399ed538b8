"""What a graph writes: where it lies, if nothing else needs the old value."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ingot.runtime.executable import LoadedProgram
from tests.frontends.torch.agree import compile_whole


@pytest.fixture
def written_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each call of a program wrote in place."""
    counts: list[int] = []
    run = LoadedProgram._run_at

    def count(self: LoadedProgram, signature: Any, pointers: Any, state: Any, *others: Any, **named: Any) -> list[Any]:
        counts.extend([] if state is None else [len(state) // 2])
        return run(self, signature, pointers, state, *others, **named)

    monkeypatch.setattr(LoadedProgram, "_run_at", count)
    torch._dynamo.reset()
    return counts


class Cached(nn.Module):
    """A step that writes a row of a cache and reads all of it."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 9, 4))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.cache.index_copy_(1, at, x)
        return self.cache.sum(1) + x[:, 0]


def test_rows_of_a_cache_are_written_where_they_lie(written_counts: list[int]) -> None:
    net, reference = Cached(), Cached()
    run, address = compile_whole(net), net.cache.data_ptr()
    for step in range(3):
        x, at = torch.randn(2, 1, 4), torch.tensor([step])
        with torch.no_grad():
            torch.testing.assert_close(run(x, at), reference(x, at))
        torch.testing.assert_close(net.cache, reference.cache)
    assert written_counts == [1] * 3 and net.cache.data_ptr() == address


def test_an_optimizer_updates_parameters_and_moments_where_they_lie(written_counts: list[int]) -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    reference = copy.deepcopy(net)
    optimizers = [torch.optim.AdamW(n.parameters(), lr=torch.tensor(0.1)) for n in (net, reference)]
    step = torch.compile(optimizers[0].step, backend="ingot", fullgraph=False)  # `written_counts` shows what ran
    for _ in range(3):
        for p, q in zip(net.parameters(), reference.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        step()
        optimizers[1].step()
    for got, want in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got, want)
    assert written_counts and max(written_counts) >= 12  # weights and biases, and two moments of each


def test_what_is_written_has_another_version(written_counts: list[int]) -> None:
    """A program with the parameters as constants is compiled again."""
    net = nn.Linear(5, 4)
    run = compile_whole(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.1), momentum=0.9)
    step = torch.compile(optimizer.step, backend="ingot", fullgraph=False)  # `written_counts` shows what ran
    x = torch.randn(6, 5)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(run(x), net(x))
        net(x).square().sum().backward()
        before = net.weight._version
        step()
        assert net.weight._version > before
    assert written_counts


def test_statistics_of_norms_are_updated(written_counts: list[int]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    reference, run = copy.deepcopy(net), compile_whole(net)
    for _ in range(2):
        x = torch.randn(2, 3, 5, 5)
        run(x).sum().backward()
        reference(x).sum().backward()
    for got, want in zip(net.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(got, want)
    assert written_counts == [3, 3]  # the count, the mean and the variance


def swapped(a: Tensor, b: Tensor) -> Tensor:
    old = a * 1
    a.copy_(b * 2)
    b.copy_(old + 3)
    return old


def add_and_return(a: Tensor, b: Tensor) -> Tensor:
    """The new value is a result, too."""
    a.add_(b)
    return a * 1


def add_flipped(a: Tensor, b: Tensor) -> Tensor:
    """Each element of the new value needs another of the old one."""
    a.copy_(a.flip(0) + b)
    return b + 1


@pytest.mark.parametrize("f", [swapped, add_and_return, add_flipped])
def test_what_else_needs_the_old_value_has_it(f: Any) -> None:
    torch._dynamo.reset()
    run = compile_whole(f)
    for offset in (0, 1):  # an address that no kernel could count on
        memory = torch.arange(41.0)
        a, b = memory[offset : offset + 20], torch.randn(20)
        c, d = a.clone(), b.clone()
        torch.testing.assert_close(run(a, b), f(c, d))
        torch.testing.assert_close((a, b), (c, d))
        assert float(memory[offset + 20]) == offset + 20


class Decoder(nn.Module):
    """A step of a decoder, whose cache is the caller's."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.scale = nn.Parameter(torch.rand(4))  # a vector becomes a constant
        self.project = nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: Tensor, count: Tensor) -> Tensor:
        cache.index_copy_(1, count.view(1), self.project(x * self.scale))
        count.add_(1)
        return cache.sum(1)


def new_cache() -> tuple[Tensor, Tensor]:
    return torch.zeros(2, 16, 4), torch.zeros((), dtype=torch.int64)


class Pair:
    """A compiled decoder and its reference, each with a cache of its own. `step` compares them."""

    def __init__(self, net: Decoder, run: Any = None) -> None:
        self.net, self.run = net, compile_whole(net) if run is None else run
        self.got, self.want = new_cache(), new_cache()

    def step(self) -> None:
        x = torch.randn(2, 1, 4)
        torch.testing.assert_close(self.run(x, *self.got), self.net(x, *self.want))
        torch.testing.assert_close(self.got, self.want)


@torch.no_grad()
def test_caches_are_reset_and_replaced_between_calls(written_counts: list[int]) -> None:
    pair = Pair(Decoder())
    for is_replaced in (False, True, True):
        for _ in range(3):
            pair.step()
        for tensor in (*pair.got, *pair.want):
            tensor.zero_()
        if is_replaced:
            pair.got, pair.want = new_cache(), new_cache()
    pair.step()
    # no memory for a kernel to write: a view at an odd address
    pair.got = (torch.zeros(129)[1:].view(2, 16, 4), pair.got[1])
    pair.want = (torch.zeros(2, 16, 4), pair.want[1])
    pair.step()
    assert written_counts == [2] * 11


@torch.no_grad()
def test_parameters_are_replaced_between_calls(written_counts: list[int]) -> None:
    pair = Pair(Decoder())
    pair.step()
    for seed, replace in enumerate((
        lambda net, other: net.load_state_dict(other.state_dict()),
        lambda net, other: setattr(net, "scale", other.scale),
        lambda net, other: setattr(net.project.weight, "data", other.project.weight.data),
        lambda net, other: setattr(net, "project", other.project),
        lambda net, other: net.scale.mul_(2),
    )):  # fmt: skip
        replace(pair.net, Decoder(seed + 1))
        pair.step()
        pair.step()
    assert set(written_counts) == {2}


def test_caches_of_inference_mode_and_others_take_turns(written_counts: list[int]) -> None:
    pair = Pair(Decoder())
    with torch.no_grad():
        pair.step()
        assert pair.got[0]._version
    with torch.inference_mode():
        pair.step()
        pair.got, pair.want = new_cache(), new_cache()
        pair.step()
        pair.step()
    pair.got, pair.want = new_cache(), new_cache()
    with torch.no_grad():
        pair.step()
        assert pair.got[0]._version
    assert written_counts == [2] * 5


def test_models_and_threads_have_caches_of_their_own(written_counts: list[int]) -> None:
    """Two decoders, each called by two threads."""
    nets = [Decoder(1), Decoder(2)]
    pairs = [Pair(net, run) for net in nets for run in [compile_whole(net)] for _ in range(2)]
    with torch.no_grad():
        pairs[0].step()
        pairs[2].step()

    @torch.no_grad()
    def steps(pair: Pair) -> None:
        for _ in range(8):
            pair.step()

    pairs[0], pairs[2] = Pair(nets[0], pairs[0].run), Pair(nets[1], pairs[2].run)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(steps, pair) for pair in pairs]:
            done.result()
    assert set(written_counts) == {2}
