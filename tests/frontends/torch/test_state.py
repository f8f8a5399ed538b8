"""Buffers that forward writes: several calls of the compiled model against as many of the module."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot
from ingot.support.errors import ImportModelError, InputError
from tests.frontends.torch.agree import close, compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Counter(nn.Module):
    """A count of calls and a moving average, both returned."""

    calls: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean, self.calls


class Cache(nn.Module):
    """Attention to what was put into a cache of fixed size, at given positions."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(8, 24)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 2, 8, 4))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = self.joint(x).view(1, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, positions, k)
        self.values[:, :, positions] = v
        mask = torch.arange(8) <= positions[:, None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, mask).transpose(1, 2).flatten(2)


class Stream(nn.Module):
    """A convolution over a signal that comes in pieces: the last samples are kept, the buffer itself is exchanged."""

    past: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 5)
        self.register_buffer("past", torch.zeros(2, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((self.past, x), -1)
        self.past = x[..., -4:]
        return self.conv(x)


class Ring(nn.Module):
    """A write at a position that is itself kept, into a complex buffer."""

    held: Tensor
    at: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(4, 3, dtype=torch.complex64))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.held[self.at] = torch.fft.fft(x, dim=-1)
        self.at.add_(1).remainder_(4)
        return self.held.abs().sum(0)


class Adapted(nn.Module):
    """A parameter that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(x.abs().amax(0))
        return x / self.scale


class Views(nn.Module):
    """A buffer that lies inside another one, a plain attribute that is a view of both, and one that is written."""

    whole: Tensor
    part: Tensor

    def __init__(self) -> None:
        super().__init__()
        memory = torch.ones(5, 3)
        self.register_buffer("whole", memory[1:])
        self.register_buffer("part", memory[2:4, 1:])
        self.turned, self.seen = self.part.t(), torch.zeros(())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.whole.mul_(x.mean())
        self.turned[0].add_(x[:2, 0])
        self.seen += self.part.sum()
        return self.whole * self.seen, self.part + 1


Call = Callable[[int], tuple[Tensor, ...]]
MODELS: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "counter": (Counter, lambda i: (torch.randn(5, 3),)),
    "cache": (Cache, lambda i: (torch.randn(1, 2, 8), torch.tensor([i, i + 3]))),
    "stream": (Stream, lambda i: (torch.randn(2, 3, 7),)),
    "ring": (Ring, lambda i: (torch.randn(1, 3),)),
    "parameter": (Adapted, lambda i: (torch.randn(5, 3),)),
    "views": (Views, lambda i: (torch.randn(5, 3),)),
    "norm": (lambda: nn.BatchNorm2d(3), lambda i: (torch.randn(2, 3, 4, 5),)),
    "spectral": (lambda: nn.utils.spectral_norm(nn.Linear(3, 4)), lambda i: (torch.randn(5, 3),)),
}


def _agree(name: str, compile_net: Callable[[nn.Module, tuple[Tensor, ...]], Callable[..., Any]]) -> tuple[Any, Any]:
    """Five calls of the compiled module and of a copy that stays eager: (compiled, eager)."""
    torch.manual_seed(0)
    make, call = MODELS[name]
    net = make().train(name in ("norm", "spectral"))
    eager = deepcopy(net)
    with torch.no_grad():
        compiled = compile_net(net, call(0))
        for i in range(5):
            args = call(i)
            close(compiled(*args), eager(*args))
    return compiled, eager


@pytest.mark.parametrize("name", MODELS)
def test_calls(name: str) -> None:
    compiled, eager = _agree(name, lambda net, args: ingot.compile(net, args, threads=1))
    attributes = dict(eager.named_buffers()) | dict(eager.named_parameters()) | vars(eager)
    assert compiled.state()
    for at, value in compiled.state().items():
        expected = attributes[at]
        close(value, (torch.view_as_real(expected) if expected.is_complex() else expected).detach())


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("parameter", "views")])
def test_torch_compile(name: str) -> None:
    """There the buffers are the module's own."""
    compiler = partial(compile_whole, options={"threads": 1})
    net, eager = _agree(name, lambda net, args: compiler(net))
    for at, value in eager.named_buffers():
        close(net.get_buffer(f"_orig_mod.{at}"), value)


def test_dynamic_lengths() -> None:
    """Pieces of any length, beside a state of fixed size."""
    net = Stream().eval()
    model = ingot.compile(net, (torch.randn(2, 3, 7),), dynamic={"x": {2: "length"}}, threads=1)
    sequence = torch.randn(2, 3, 40)
    with torch.no_grad():
        expected = net.conv(F.pad(sequence, (4, 0)))
        close(torch.cat([model(piece) for piece in sequence.split((1, 9, 4, 26), -1)], -1), expected)


def test_saved(tmp_path: Path) -> None:
    """A saved model starts from the first values, also of a bf16 buffer; what it keeps is its own."""
    net = Counter().eval()
    net.register_buffer("mean", torch.ones(3, dtype=torch.bfloat16))
    x = torch.randn(4, 3)
    model = ingot.compile(net, (x,), threads=1)
    with torch.no_grad():
        net(x)  # changes the module's buffers alone
    first = model.state()
    assert first["calls"] == 0 and first["mean"].dtype == torch.bfloat16
    results = [model(x) for _ in range(3)]
    model.save(tmp_path / "counter.ingot")
    loaded = ingot.load(tmp_path / "counter.ingot", threads=1)
    assert [s.name for s in loaded.inputs] == ["x"]
    for y, calls in results:
        got = loaded(x.numpy())
        assert isinstance(got, tuple) and np.array_equal(got[0], y.numpy()) and got[1] == calls
    assert loaded.state()["calls"] == model.state()["calls"] == 3
    model.set_state(first)
    close(model(x), results[0])


def test_set_state_refuses() -> None:
    model = ingot.compile(Counter().eval(), (torch.randn(4, 3),), threads=1)
    wrong: tuple[tuple[dict[str, object], str], ...] = (
        ({"count": 1}, "expected one of calls, mean"),
        ({"calls": torch.tensor(2), "mean": torch.ones(4)}, r"expected shape \(3,\)"),
        ({"calls": np.float32(2)}, "expected dtype i64"),
    )
    for values, message in wrong:
        with pytest.raises(InputError, match=message):
            model.set_state(values)
    assert model.state()["calls"] == 0  # nor is a part of them set
    with pytest.raises(InputError, match="f32"):
        model(torch.randn(4, 3).double())
    assert model.state()["calls"] == 0
    model.explain(torch.randn(4, 3))
    assert model.state()["calls"] == 0


class Overlapping(nn.Module):
    """Two buffers, of which neither is the whole memory."""

    first: Tensor

    def __init__(self, exchanged: bool = False) -> None:
        super().__init__()
        memory, self.exchanged, self.sub = torch.zeros(5, 3), exchanged, nn.Module()
        self.register_buffer("first", memory[:3])
        self.sub.register_buffer("last", memory[2:])

    def forward(self, x: Tensor) -> Tensor:
        self.sub.get_buffer("last").t().add_(x)
        if self.exchanged:
            self.first = self.first * 2
        return self.first * 2 + x.mean()


def test_views_of_a_memory_that_none_is_whole() -> None:
    eager, x = Overlapping(), torch.randn(3, 3)
    model = ingot.compile(Overlapping(), (x,), threads=1)
    for _ in range(3):
        close(model(x), eager(x))
    (state,) = model.state().values()
    close(torch.as_tensor(state).view(5, 3)[2:], eager.sub.get_buffer("last"))
    with pytest.raises(ImportModelError, match="first is a view of other state, and forward exchanges it"):
        ingot.compile(Overlapping(exchanged=True), (x,))


class Writing(nn.Module):
    """Writes into two of its inputs, one of them through a view, and into a buffer."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, scale: float, a: Tensor, x: Tensor, y: Tensor) -> Tensor:
        x.add_(scale)
        y[0].mul_(2)
        self.count.add_(1)
        return x * 2 + a + self.count


def test_inputs_that_the_model_writes() -> None:
    a, x, y = torch.randn(3), torch.randn(3), torch.randn(2, 3)
    model, eager = ingot.compile(Writing().eval(), (0.5, a, x, y)), Writing()
    inputs, reference_inputs = (x.clone(), y.clone()), (x.clone(), y.clone())
    for _ in range(2):
        assert torch.equal(model(0.5, a, *inputs), eager(0.5, a, *reference_inputs))
        assert torch.equal(inputs[0], reference_inputs[0])
        assert torch.equal(inputs[1], reference_inputs[1])


@pytest.mark.parametrize("momentum", [0.1, 0.3])
def test_instance_norms_that_update_their_statistics(momentum: float) -> None:
    net = nn.InstanceNorm2d(3, affine=True, track_running_stats=True, momentum=momentum)
    eager = deepcopy(net)
    compiled = ingot.compile(net, (torch.randn(2, 3, 4, 4),), dynamic={"input": {0: "batch"}}, cache=False)
    for batch in (2, 3):
        x = torch.randn(batch, 3, 4, 4) * 3 + 1
        torch.testing.assert_close(compiled(x), eager(x))
    buffers = dict(eager.named_buffers())
    for name, value in compiled.state().items():
        torch.testing.assert_close(value, buffers[name])
