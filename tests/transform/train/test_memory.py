"""Steps with a limit of their memory: the same bits, fewer bytes, and what is said of them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.runtime.program import Program
from ingot.support.errors import InputError
from ingot.transform.train import run

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402


def _pair(net: nn.Module, x: Tensor, memory: float) -> tuple[ingot.CompiledStep, ingot.CompiledStep]:
    """Steps without and with the limit, that have made three steps each and differ in no bit."""
    y, optimizer = torch.arange(len(x)) % 4, ingot.optim.AdamW(lr=1e-2)
    steps = [
        ingot.train(copy.deepcopy(net), "cross_entropy", optimizer, (x,), threads=2, memory=limit)
        for limit in (None, memory)
    ]
    losses = [[float(step(x, y)[0]) for _ in range(3)] for step in steps]
    assert losses[0] == losses[1]
    states = [step.state() for step in steps]
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    return steps[0], steps[1]


def _numbers(step: ingot.CompiledStep) -> list[float]:
    """Of the line on memory: kept and kept before, arena and arena before, in bytes."""
    words = step.program.meta["memory"].replace(",", "").split()
    numbers = [float(w) for w in words if w.replace(".", "").isdigit()]
    return [n * 1e6 for n in numbers[:4]]


@pytest.mark.slow
def test_what_takes_long_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is made again by what kernels took where the program runs here."""
    torch.manual_seed(0)
    widths = [24, 40, 56, 72, 88, 104]
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh())]
    net, x = nn.Sequential(*layers, nn.Linear(104, 4)), torch.randn(1000, 24)
    costly: list[str] = []

    def seconds(program: Program, *rest: object) -> list[float]:
        costly.append(_run_counts(program).most_common(1)[0][0])
        return [1.0 if s.kernel in costly else 1e-6 for s in program.steps]

    monkeypatch.setattr(run, "_seconds", seconds)
    limited = _pair(net, x, 0.6)[1]
    assert len(costly) == 1 and "measured" in limited.program.meta["memory"]
    run_counts = _run_counts(limited.program)
    assert run_counts.total() > len(run_counts) and run_counts[costly[0]] == 1
    other: Any = ingot.train(net, "cross_entropy", ingot.optim.SGD(), (x,), memory=0.6, target="cpu:x86-64-v3")
    assert "measured" not in other.program.meta["memory"]


def _run_counts(program: Program) -> Counter[str]:
    """Of each kernel: layers that differ have kernels of their own."""
    return Counter(s.kernel for s in program.steps if s.kernel.startswith("contraction"))


@pytest.mark.slow
def test_half_of_the_activations_and_all_of_the_bits() -> None:
    """Dropout, a norm over the batch, concatenated values and a padded convolution are computed again."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU())
            last_layers = nn.Conv2d(16, 16, 3, padding=1), nn.Tanh()
            first_layers = nn.Conv2d(16, 16, 3, padding=1), nn.Dropout(0.3), nn.Tanh()
            self.dropout_block = nn.Sequential(*first_layers, *last_layers)
            self.last = nn.Sequential(nn.Conv2d(32, 8, 3, stride=2), nn.SiLU(), nn.Flatten(), nn.LazyLinear(4))

        def forward(self, x: Tensor) -> Tensor:
            a = self.first(x)
            return self.last(torch.cat([a, self.dropout_block(a)], 1))

    torch.manual_seed(0)
    net, x = Net(), torch.randn(8, 3, 17, 17)
    net(x)
    free, limited = _pair(net, x, 0.5)
    saved_bytes, saved_bytes_before, arena, arena_before = _numbers(limited)
    assert saved_bytes <= 0.5 * saved_bytes_before + 64 * 64
    assert limited.arena_bytes < free.arena_bytes
    assert abs(arena - limited.arena_bytes) < 0.02 * arena
    assert abs(arena_before - free.arena_bytes) < 0.02 * arena_before
    text = limited.explain(x, torch.arange(8) % 4)
    assert all(f"{section}: " in text for section in ("forward", "backward", "optimizer", "kept from the forward pass"))
    sections = limited.program.meta["sections"]
    assert len(sections) == len(limited.program.steps) and set(sections) == set("fbo")


@pytest.mark.slow
def test_bytes_of_the_arena() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU())]
    net, x = nn.Sequential(*layers, nn.Linear(64, 4)), torch.randn(96, 64)
    free, _ = _pair(net, x, 0.9)
    limit = free.arena_bytes * 2 // 3
    _, limited = _pair(net, x, limit)
    assert limited.arena_bytes <= limit
    for wrong in (1000, -1.0):
        with pytest.raises(InputError, match="memory"):
            ingot.train(net, "cross_entropy", ingot.optim.SGD(), (x,), memory=wrong)


def test_bytes_where_kernels_have_temporaries_of_their_own() -> None:
    """The most is needed within the kernels of Winograd's algorithm, not between kernels."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())]
    net, x = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)), torch.randn(4, 64, 16, 16)
    free = ingot.train(net, "cross_entropy", ingot.optim.SGD(), (x,), memory=1e9)
    limit = 0.9 * _numbers(free)[2]
    limited = ingot.train(net, "cross_entropy", ingot.optim.SGD(), (x,), memory=limit)
    assert limited.arena_bytes <= limit
    arena = _numbers(limited)[2]
    assert abs(arena - limited.arena_bytes) < 0.02 * arena


def test_half_of_what_loops_keep() -> None:
    """Loops that keep less compute their products again: other bits than those of loops that keep them, the same
    losses."""

    class Recurrent(nn.Module):
        def __init__(self, cell: Callable[..., nn.Module]) -> None:
            super().__init__()
            self.cells, self.out = cell(16, 32, 2, batch_first=True), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.cells(x)[0][:, -1])

    torch.manual_seed(0)
    x, y = torch.randn(8, 13, 16), torch.arange(8) % 4
    for cell in nn.LSTM, nn.GRU:
        net = Recurrent(cell)
        step = ingot.train(copy.deepcopy(net), "cross_entropy", ingot.optim.SGD(lr=0.1), (x,), threads=2, memory=0.5)
        _half(step)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            loss = nn.functional.cross_entropy(net(x), y)
            assert abs(float(step(x, y)[0]) - loss.item()) < 1e-5
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_half_of_what_a_scan_keeps() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) / 6 for shape in ((16, 32), (32, 32), (32, 4))]
    x, y = rng.normal(size=(13, 8, 16)).astype(np.float32), np.arange(8) % 4

    def net(weights: Any, x: Any) -> Any:
        def body(h: Any, row: Any) -> tuple[Any, None]:
            return jnp.tanh(row @ weights[0] + jnp.sin(h @ weights[1])), None

        return jax.lax.scan(body, jnp.zeros((8, 32)), x)[0] @ weights[2]

    def loss(weights: Any) -> Any:
        return -jax.nn.log_softmax(net(weights, x))[np.arange(8), y].mean()

    step = ingot.train(net, "cross_entropy", ingot.optim.SGD(lr=0.1), (weights, x), threads=2, memory=0.5)
    _half(step)
    for _ in range(4):
        expected, results = jax.value_and_grad(loss)(weights)
        assert abs(float(step(x, y)[0]) - float(expected)) < 1e-5
        weights = [w - 0.1 * g for w, g in zip(weights, results, strict=True)]


def _half(step: ingot.CompiledStep) -> None:
    saved_bytes, saved_bytes_before, arena, arena_before = _numbers(step)
    assert saved_bytes <= 0.5 * saved_bytes_before + 1000 and arena <= arena_before
    assert abs(arena - step.arena_bytes) < 0.02 * arena


def test_limits_that_cannot_be_reached() -> None:
    """Less than one kernel needs, or than loops keep, is refused by these numbers; more is tried."""
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Tanh())]
    deep, rows = nn.Sequential(*layers, nn.Linear(64, 4)), torch.randn(96, 64)
    one = rows.nbytes
    for limit, message in ((one, "one kernel needs"), (2 * one + 4096, "at least")):
        with pytest.raises(InputError, match=message):
            ingot.train(deep, "cross_entropy", ingot.optim.SGD(), (rows,), memory=limit)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.lstm(x)[0][:, -1])

    with pytest.raises(InputError, match="that loops made"):
        ingot.train(Recurrent(), "cross_entropy", ingot.optim.SGD(), (torch.randn(4, 12, 8),), memory=0.05)
