from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.nn import functional as F

from ingot.integrations.torch_packing import pack, unpack
from ingot.runtime.arguments import side_by_side


class Layers(nn.Module):
    """Images, rows and scalars are saved: of several types under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, groups=8)
        self.rows, self.end = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.relu(self.norm(self.conv(x)))
        z = F.silu(self.depthwise(y)).mean((2, 3))
        w = torch.tanh(z * z.norm())
        return self.end(self.rows(w)), y, w[:, ::2]  # a value that backward reads, and a view of one


def saved_by(call: Callable[[], Any]) -> tuple[Any, list[Tensor]]:
    """The result of a call, and what autograd saves in it."""
    saved: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        return call(), saved


def loss_of(results: tuple[Tensor, ...]) -> Tensor:
    return sum((r.float().sin().sum() for r in results), torch.zeros(()))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_saves_one_tensor_beside_its_inputs(memory_format: torch.memory_format, dtype: torch.dtype) -> None:
    torch._dynamo.reset()  # other strides would make sizes open
    torch.manual_seed(0)
    net, twin = (Layers().to(memory_format=memory_format) for _ in range(2))  # type: ignore[call-overload]
    twin.load_state_dict(net.state_dict())
    compiled = torch.compile(net, backend="ingot", fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(3, 3, 9, 7).contiguous(memory_format=memory_format)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            results, saved = saved_by(lambda x=x: compiled(x))
            expected = twin(x)
        assert [x.dtype for x in saved].count(torch.uint8) == 1
        input_addresses = {t.data_ptr() for t in (x, *net.parameters(), *net.buffers(), *results)}
        # but the one that a result is a view of
        assert sum(t.data_ptr() not in input_addresses and t.dtype != torch.uint8 for t in saved) <= 1
        loss_of(results).backward()
        loss_of(expected).backward()
        bound = 2e-5 if dtype == torch.float32 else 6e-2
        for got, want in zip(results, expected, strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want, atol=bound, rtol=bound)
        for p, q in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, atol=bound * 5, rtol=bound)
        twin.load_state_dict(net.state_dict())


def gradients_of(results: tuple[Tensor, ...], net: nn.Module, **options: Any) -> list[Tensor]:
    return list(torch.autograd.grad(loss_of(results), list(net.parameters()), **options))


@pytest.fixture(scope="module")
def example() -> tuple[Layers, Callable[..., Any], Tensor, list[Tensor]]:
    torch.manual_seed(0)
    net = Layers()
    x = torch.randn(3, 3, 9, 7)
    return net, torch.compile(net, backend="ingot", fullgraph=True), x, gradients_of(net(x), net)


def test_the_backward_pass_may_run_twice(example: Any) -> None:
    net, compiled, x, expected = example
    results = compiled(x)
    for is_last in (False, True):
        torch.testing.assert_close(gradients_of(results, net, retain_graph=not is_last), expected, atol=1e-4, rtol=1e-4)


def test_two_forward_passes_before_their_backward_passes(example: Any) -> None:
    net, compiled, x, expected = example
    first, _ = compiled(x), compiled(-x)
    torch.testing.assert_close(gradients_of(first, net), expected, atol=1e-4, rtol=1e-4)


def test_saved_tensors_may_be_moved_meanwhile(example: Any) -> None:
    net, compiled, x, expected = example
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        results = compiled(x)
    torch.testing.assert_close(gradients_of(results, net), expected, atol=1e-4, rtol=1e-4)


def test_compiled_autograd_traces_what_is_unpacked(example: Any) -> None:
    net, compiled, x, expected = example
    loss = loss_of(compiled(x))
    with compiled_autograd._enable(lambda gm: torch.compile(gm, backend="ingot", fullgraph=True)):
        loss.backward()
    grads = [p.grad for p in net.parameters()]
    net.zero_grad()
    torch.testing.assert_close(grads, expected, atol=1e-4, rtol=1e-4)


def test_each_step_saves_to_the_same_memory() -> None:
    """Those too that AOTAutograd's runtime calls, before calls are direct."""
    torch._dynamo.reset()
    compiled = torch.compile(Layers(), backend="ingot", fullgraph=True)
    addresses = []
    for _ in range(4):
        results = compiled(torch.randn(3, 3, 9, 7))
        (packed,) = [x for x in results[0].grad_fn.saved_tensors if x.dtype == torch.uint8]
        addresses.append(packed.data_ptr())
        del packed
        loss_of(results).backward()
    assert len({*addresses}) == 1


def test_values_of_open_sizes_are_separate() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))
    compiled = torch.compile(net, backend="ingot", fullgraph=True, dynamic=True)
    for rows in (3, 6):
        x = torch.randn(rows, 4)
        y, saved = saved_by(lambda x=x: compiled(x))
        assert all(t.dtype != torch.uint8 for t in saved)
        torch.testing.assert_close(gradients_of((y,), net), gradients_of((net(x),), net))


def test_values_beside_those_whose_size_the_run_finds_are_separate() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x * w)[x > 0].sin().sum() * w

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="ingot", fullgraph=True)
    w = torch.randn(6, 8, dtype=torch.float64).requires_grad_()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for bound in (0.5, -0.5, -9, 9):
            x = torch.randn(6, 8, dtype=torch.float64) - bound
            results = [call(x, w) for call in (compiled, f)]
            torch.testing.assert_close(*results)
            torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), [w])[0] for y in results))


def test_unpacking_reverses_packing() -> None:
    values = [
        torch.randn(2, 3, 4, 5), torch.randn(3, 2, dtype=torch.float64).t(), torch.tensor(2.5),
        torch.arange(7) > 2, torch.randn(5).bfloat16(),
        torch.randn(1, 4, 2, 2).contiguous(memory_format=torch.channels_last),
    ]  # fmt: skip
    orders = [(0, 1, 2, 3), (1, 0), (), (0,), (0,), (0, 2, 3, 1)]
    packed = pack(values, orders)
    offsets, nbytes = side_by_side(v.numel() * v.element_size() for v in values)
    assert packed.shape == (nbytes,) and packed.dtype == torch.uint8
    for value, offset, order in zip(values, offsets, orders, strict=True):
        got = unpack(packed, offset, value.shape, order, value.dtype)
        assert torch.equal(got, value) and got.data_ptr() == packed.data_ptr() + offset
        assert got.stride() == value.stride() or value.numel() == max(value.shape, default=1)


def test_gradients_beside_a_size_that_the_run_finds() -> None:
    mask = torch.tensor([True, False, True, False, True])
    leaves = [torch.randn(5, 5, requires_grad=True), torch.randn(5, requires_grad=True)]
    fill = torch.compile(lambda a, v: a.index_put((mask,), v), backend="ingot", fullgraph=True)
    got = torch.autograd.grad(fill(*leaves).sum(), leaves)
    assert [t.tolist() for t in got] == [[[float(not m)] * 5 for m in mask], [3.0] * 5]
