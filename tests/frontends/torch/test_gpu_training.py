"""Steps of training under autocast as a GPU has them, by the meaning of their kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ingot.frontends.torch.model import ImportedModel
from ingot.frontends.torch.tracing import writes
from ingot.frontends.torch.tracing.partition import joint
from ingot.integrations.torch_compile import ingot_backend
from ingot.ops.group import Group
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of
from tests.conformance.checked import run_planned
from tests.conformance.targets import H100
from tests.frontends.torch import agree


class Attending(nn.Module):
    """A block of a transformer as GPUs trace it. torch chooses its op for attention by the device."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = torch.ops.aten._scaled_dot_product_flash_attention(*qkv.unbind(0), 0.0, self.causal)[0]
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Attended(Attending):
    """The same on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def residual() -> nn.Module:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
            self.inner = nn.Sequential(
                nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
            )
            self.head = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.head(F.relu(x + self.inner(x)).mean((2, 3)))

    return Residual().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Gated(nn.Module):
    """Images with borders, channels by themselves, gates of channels, and gradients of several strides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norms = (
            nn.Conv2d(3, 16, 3, 2, 1, bias=False),
            nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4)),
        )
        self.alone = nn.Conv2d(16, 16, 5, 1, 2, groups=16, bias=False)
        self.gates, self.narrow = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1, bias=False)
        self.wide, self.short = nn.Conv2d(16, 16, 3, 2, 1, bias=False), nn.Conv2d(16, 16, 1, 2, bias=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norms[0](self.stem(x)))
        y = F.silu(self.norms[1](self.alone(x)))
        y = self.narrow(y * self.gates(y.mean((2, 3), keepdim=True)).sigmoid())
        x = F.relu(x + self.norms[2](y))
        return self.head((F.relu(self.norms[3](self.wide(x))) + self.short(x)).mean((2, 3)))


def step(net: nn.Module, x: Tensor, run: Callable[..., Any], narrow: bool) -> list[Tensor]:
    """The result and the gradients of the parameters."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        y = run(x).float()
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), [*net.parameters()])]


def distance(got: list[Tensor], want: list[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(got, want, strict=True))


def by_kernels(groups: list[Group]) -> Callable[..., Callable[..., Any]]:
    """`compile_model` for an H100 whose calls compute what its kernels mean. Groups are appended to `groups`."""

    def compile_model(model: ImportedModel, **options: Any) -> Callable[..., Any]:
        trace = Trace()
        program = build_program(model.graph, features_of(f"null:{H100}"), 2, trace=trace)
        kernels = {kernel.name: kernel for kernel in trace.kernels}
        groups.extend(n.op for n in trace.stages[-1][2].nodes() if isinstance(n.op, Group))

        def call(*tensors: Tensor) -> Any:
            def interpret(graph: object, arrays: list[np.ndarray]) -> tuple[np.ndarray, ...]:
                return run_planned(program, kernels, [np.asarray(a) for a in arrays])

            with mock.patch.object(agree, "interpret", interpret):
                return agree.run(model, *tensors)

        return call

    return compile_model


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "vit": (lambda: Attending(32, 2, False), lambda: Attended(32, 2, False), lambda: torch.randn(2, 17, 32)),
    "gpt": (lambda: Attending(32, 2, True), lambda: Attended(32, 2, True), lambda: torch.randn(2, 20, 32)),
    "resnet": (
        residual, residual, lambda: torch.randn(4, 3, 14, 14).to(memory_format=torch.channels_last),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_eager(name: str) -> None:
    make, make_reference, example = NETS[name]
    torch.manual_seed(0)
    net, reference, x = make(), make_reference(), example()
    reference.load_state_dict(net.state_dict())
    groups: list[Group] = []
    torch._dynamo.reset()
    run = torch.compile(net, backend=partial(ingot_backend, compile_model=by_kernels(groups)), fullgraph=True)
    result = step(net, x, run, True)
    exact = step(reference, x, reference, False)
    eager = step(reference, x, reference, True)
    assert distance(result, exact) <= 1.5 * distance(eager, exact) + 1e-3
    # no cast is a kernel of its own, but those of inputs
    names = [[n.op.name for n in g.body.nodes() if not n.is_leaf] for g in groups]
    casts = [g for g, ops in zip(groups, names, strict=True) if ops and set(ops) == {"convert"}]
    parameters = {tuple(p.shape) for p in (*net.parameters(), x)} | {(4, 14, 14, 3), (16, 3, 3, 3), (16, 3, 3, 16)}
    assert all(n.shape in parameters for g in casts for n in g.body.inputs)
    if name != "resnet":
        kinds = [g.kind for g in groups]
        assert kinds.count("attention_with_sums") == kinds.count("attention_gradients") == 1


def test_checkpointed_attention_draws_the_same_mask_again() -> None:
    """Where values are an identity the result shows what was dropped; another call drops something else."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 8, 8, requires_grad=True), torch.randn(1, 2, 8, 8)
    v = torch.eye(8).expand(1, 2, 8, 8).contiguous()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.5, False)[0].sin()

    torch._dynamo.reset()
    run = torch.compile(lambda *x: checkpoint(attend, *x, use_reentrant=False), backend=ingot_backend, fullgraph=True)
    masks = []
    for _ in range(2):
        y = run(q, k, v)
        masks.append(y != 0)
        want = ((q @ k.mT / 8**0.5).softmax(-1) * masks[-1] * 2).sin()
        gradients = (torch.autograd.grad(x.sum(), q)[0] for x in (y, want))
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)
    assert bool((masks[0] != masks[1]).any())


@pytest.mark.parametrize(("norms", "size", "narrow"), [(True, 14, False), (False, 15, False), (True, 15, True)])
def test_images_are_kept_with_their_borders(
    norms: bool, size: int, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, which keeps a norm's operand alone. norms: whether they are in training mode. narrow: an image of
    three channels has a fourth."""
    monkeypatch.setattr(joint, "_is_on_gpu", lambda graph: True)
    torch.manual_seed(0)
    net = Gated().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net.norms.train(norms)
    reference, x = copy.deepcopy(net), torch.randn(4, 3, size, size).to(memory_format=torch.channels_last)
    groups: list[Group] = []
    torch._dynamo.reset()
    run = torch.compile(net, backend=partial(ingot_backend, compile_model=by_kernels(groups)), fullgraph=True)
    exact = step(reference, x, reference, False)
    bound = 1.5 * distance(step(reference, x, reference, True), exact) + 1e-3 if narrow else 2e-5
    assert distance(step(net, x, run, narrow), exact) < bound
    assert any(n.shape == (4, size + 2, size + 3, 4) for g in groups for n in g.body.inputs) == narrow
    bodies = [[n.op.name for n in g.body.nodes() if n.op.computes] for g in groups]
    copies = [g for g, ops in zip(groups, bodies, strict=True) if not ops and g.body.outputs[0].type.rank == 4]
    assert not copies


def test_statistics_of_all_norms_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    reference = copy.deepcopy(net)
    calls: list[int] = []
    write = writes.copy

    def count(targets: list[Tensor], values: list[Tensor]) -> None:
        calls.append(len(targets))
        write(targets, values)

    monkeypatch.setattr(writes, "copy", count)
    run = torch.compile(net, backend=agree.Spy().backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(3, 3, 5, 5)
        run(x).sum().backward()
        reference(x).sum().backward()
    assert calls == [4, 2] * 2 or calls == [2, 4] * 2  # means and variances, counts
    for (name, got), want in zip(net.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(got, want, msg=name)
