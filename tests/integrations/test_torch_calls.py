"""Calls like those before, and gradients side by side: what may change between calls, and what stays afterwards."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ingot.integrations.torch_calls import RepeatedCall
from ingot.integrations.torch_compile import explain
from ingot.runtime.arguments import Arguments
from ingot.support.errors import InputError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.rows, self.end = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.rows(torch.relu(self.norm(self.conv(x))).mean((2, 3))))


Pair = tuple[Net, Net, Callable[..., Any]]


@pytest.fixture(params=[torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """A network, its twin in eager PyTorch, and the network compiled, after calls that later ones are like."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = Net().to(memory_format=request.param)  # type: ignore[call-overload]
    compiled = torch.compile(net, backend="ingot", fullgraph=True)
    for _ in range(3):
        loss(compiled, 0).backward()
    net.zero_grad()
    return net, copy.deepcopy(net), compiled


def loss(f: Callable[..., Any], seed: int) -> Tensor:
    x = torch.randn(3, 3, 9, 7, generator=torch.Generator().manual_seed(seed))
    return f(x).sin().sum()


def agree(pair: Pair, seed: int = 1) -> None:
    """A step's gradients and buffers are those of eager PyTorch."""
    net, twin, compiled = pair
    for f in (compiled, twin):
        loss(f, seed).backward()
    for (name, p), q in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-4, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    for b, c in zip(net.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(b, c)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each call whose arguments are looked at one by one."""
    calls: list[int] = []
    take = Arguments.take
    monkeypatch.setattr(Arguments, "take", lambda self, inputs: (calls.append(len(inputs)), take(self, inputs))[1])
    return calls


def test_like_calls_are_not_checked_again(pair: Pair, checked: list[int]) -> None:
    net, _, compiled = pair
    versions = [b._version for b in net.buffers()]
    for seed in range(3):
        agree(pair, seed)
    assert not checked
    assert all(b._version > v for b, v in zip(net.buffers(), versions, strict=True)), "autograd sees what was written"
    assert explain(compiled, torch.randn(3, 3, 9, 7)), "with what the programs of such a call do"


def test_gradients_lie_side_by_side_as_tensors_of_their_own(pair: Pair) -> None:
    net, _, _ = pair
    agree(pair)
    gradients = [p.grad for p in net.parameters()]
    assert len({g.untyped_storage().data_ptr() for g in gradients}) == 1, "none was copied"  # type: ignore[union-attr]
    for p, g in zip(net.parameters(), gradients, strict=True):
        assert g is not None
        assert g._base is None
        assert g.stride() == p.stride()
        version = g._version
        g.mul_(2)
        assert g._version == version + 1
    versions = [g._version for g in gradients if g is not None]
    assert len({*versions}) == 1, "of each its own"


def test_kept_gradients_stay(pair: Pair) -> None:
    net, _, compiled = pair
    loss(compiled, 1).backward()
    kept = [p.grad for p in net.parameters()]
    copies = [g.clone() for g in kept if g is not None]
    for seed in range(2, 5):
        net.zero_grad(set_to_none=True)
        loss(compiled, seed).backward()
    torch.testing.assert_close(kept, copies, atol=0, rtol=0)
    del kept[1:]  # one of them keeps the memory of all
    for seed in range(2, 5):
        net.zero_grad(set_to_none=True)
        loss(compiled, seed).backward()
    torch.testing.assert_close(kept, copies[:1], atol=0, rtol=0)


def in_another_process(x: Tensor) -> Tensor:
    """`x` as a process sees it that it was sent to."""
    memory: Any = x.untyped_storage()
    file, nbytes = memory._share_fd_cpu_()
    memory = type(memory)._new_shared_fd_cpu(os.dup(file), nbytes)
    return torch.empty(0).set_(memory, x.storage_offset(), x.shape, x.stride())


def test_gradients_that_are_sent_or_freed(pair: Pair) -> None:
    """The next call does not take their memory."""
    net, twin, _ = pair
    sent: list[Tensor] = []
    expected: list[Tensor] = []
    for seed in range(8):
        agree(pair, seed)
        if seed < 4:
            sent.append(in_another_process(cast(Tensor, net.end.weight.grad)))
            expected.append(cast(Tensor, twin.end.weight.grad))
        else:
            cast(Tensor, net.end.weight.grad).untyped_storage().resize_(0)
        net.zero_grad(set_to_none=True)
        twin.zero_grad(set_to_none=True)
    torch.testing.assert_close(sent, expected, atol=1e-4, rtol=1e-4)


def test_gradients_are_accumulated_clipped_and_seen_by_hooks(pair: Pair) -> None:
    net, twin, _ = pair
    seen: dict[int, list[Tensor]] = {0: [], 1: []}
    for i, module in enumerate((net, twin)):
        for p in module.parameters():
            p.register_hook(lambda g: g * 2)
            p.register_post_accumulate_grad_hook(lambda p, i=i: seen[i].append(p.grad.clone()))  # type: ignore[union-attr]
    for seed in range(3):
        agree(pair, seed)
        for module in (net, twin):
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    order = {p.shape: i for i, p in enumerate(net.parameters())}
    for i in seen:
        seen[i].sort(key=lambda g: order[g.shape])
    assert len(seen[0]) == len(seen[1]) == 3 * len(list(net.parameters()))
    other = copy.deepcopy([p.grad for p in net.parameters()])
    net.zero_grad(set_to_none=True)
    twin.zero_grad(set_to_none=True)
    agree(pair, 4)
    assert all(g is not None for g in other)


def test_a_retained_graph_gives_gradients_of_their_own(pair: Pair) -> None:
    net, _, compiled = pair
    value = loss(compiled, 1)
    first = torch.autograd.grad(value, [*net.parameters()], retain_graph=True)
    copies = [g.clone() for g in first]
    second = torch.autograd.grad(value, [*net.parameters()])
    torch.testing.assert_close(first, second, atol=0, rtol=0)
    for g in second:
        g.zero_()
    torch.testing.assert_close([*first], copies, atol=0, rtol=0)


def moved(net: Net) -> None:
    for p in net.parameters():
        p.data = p.data.clone()


def loaded(net: Net) -> None:
    state = {name: value * 2 for name, value in net.state_dict().items()}
    net.load_state_dict(state)


def assigned(net: Net) -> None:
    net.load_state_dict({name: value.clone() * 2 for name, value in net.state_dict().items()}, assign=True)


def in_one_buffer(net: Net) -> None:
    """As FSDP has them: at offsets that are no multiples of 16 bytes."""
    flat = torch.zeros(1 + sum(p.numel() for p in net.parameters()))
    offset = 1
    for p in net.parameters():
        part = flat.as_strided(p.shape, p.stride(), offset)
        part.copy_(p.data)
        p.data = part
        offset += p.numel()


def written_at_odd_addresses(net: Net) -> None:
    for module in (net.norm,):
        for name in ("running_mean", "running_var"):
            memory = torch.zeros(9)
            memory[1:] = getattr(module, name)
            setattr(module, name, memory[1:])


def with_other_strides(net: Net) -> None:
    net.end.weight.data = net.end.weight.data.t().contiguous().t()
    net.conv.weight.data = net.conv.weight.data.transpose(0, 1).contiguous().transpose(0, 1)


def negated_lazily(net: Net) -> None:
    torch_module: Any = torch
    net.end.weight.data = torch_module._neg_view(net.end.weight.data)


@pytest.mark.parametrize(
    "change",
    [moved, loaded, assigned, in_one_buffer, written_at_odd_addresses, with_other_strides, negated_lazily],
    ids=lambda f: f.__name__,
)
def test_parameters_and_buffers_may_change(pair: Pair, change: Callable[[Net], None]) -> None:
    net, twin, _ = pair
    agree(pair)
    for module in (net, twin):
        change(module)
        module.zero_grad(set_to_none=True)
    for seed in range(2, 5):
        agree(pair, seed)


def test_a_parameter_without_memory_is_refused(pair: Pair) -> None:
    net, _, compiled = pair
    net.end.weight.untyped_storage().resize_(0)
    with pytest.raises((InputError, RuntimeError)):
        loss(compiled, 1)


class Averaged(nn.Module):
    """Old values of two buffers are results, so that new ones cannot be written over them; the third's can."""

    mean: Tensor
    last: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("last", torch.zeros(5))
        self.register_buffer("steps", torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.layer(x)
        old, before = self.mean + 0, self.last.clone()
        with torch.no_grad():
            self.mean.mul_(0.5).add_(y.mean(0))
            self.last.copy_(y[0])
            self.steps.add_(1)
        return y, old, before


def test_new_values_that_are_copied(checked: list[int]) -> None:
    """They are computed into memory that each call uses; what a call has written and returned stays."""
    torch._dynamo.reset()
    net = Averaged()
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend="ingot", fullgraph=True)
    kept: list[tuple[Tensor, ...]] = []
    expected: list[tuple[Tensor, ...]] = []
    for i in range(6):
        x = torch.randn(3, 5)
        for f, values in ((compiled, kept), (twin, expected)):
            results = f(x)
            results[0].sum().backward()
            values.append((*results, *(b.clone() for b in (net if f is compiled else twin).buffers())))
        if i == 3:
            checked.clear()
    assert not checked
    torch.testing.assert_close(kept, expected)


class Counted:
    """Caches whose length Python code counts, in an int that the graph does not read."""

    def __init__(self) -> None:
        self.caches = [torch.zeros(8, 5) for _ in range(9)]
        self.length = 0

    def update(self, x: Tensor, at: Tensor) -> Tensor:
        self.length += 1
        return torch.stack([cache.index_copy_(0, at, x * i).cumsum(0) for i, cache in enumerate(self.caches)])


def test_numbers_that_python_code_counts(checked: list[int]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda c, x, at: c.update(x, at), backend="ingot", fullgraph=True)
    counted, twin = Counted(), Counted()
    for i in range(8):
        if i == 5:
            checked.clear()
        x, at = torch.randn(1, 5), torch.tensor([i])
        with torch.no_grad():
            torch.testing.assert_close(compiled(counted, x, at), twin.update(x, at))
    assert not checked
    assert counted.length == twin.length
    torch.testing.assert_close(counted.caches, twin.caches)


def test_random_numbers_follow_the_seed(checked: list[int]) -> None:
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    compiled = torch.compile(net, backend="ingot", fullgraph=True)
    x, values = torch.randn(3, 5), []
    for i in range(8):
        if i == 4:
            checked.clear()
        torch.manual_seed(i % 2)
        values.append(compiled(x))
        values[-1].sum().backward()
    assert not checked
    torch.testing.assert_close(values[:2] * 3, values[2:], atol=0, rtol=0)
    assert not torch.equal(values[0], values[1])


@pytest.mark.parametrize("training", [True, False])
def test_another_default_device(training: bool) -> None:
    """It is where tensors are created that a program makes no use of."""
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 3)).train(training)
    compiled = torch.compile(net, backend="ingot", fullgraph=True)
    x, values = torch.randn(3, 5), []
    for i in range(6):
        torch.manual_seed(0)
        with torch.device("meta" if i > 3 else "cpu"):
            values.append(compiled(x))
            values[-1].sum().backward()
    torch.testing.assert_close(values[1:], values[:-1], atol=0, rtol=0)


def test_calls_by_turns(pair: Pair) -> None:
    """Under autocast and without, with gradients and without, for training and evaluation."""
    net, twin, compiled = pair
    x = torch.randn(3, 3, 9, 7)
    for i in range(8):
        with torch.autocast("cpu", torch.bfloat16, enabled=i % 2 == 1), torch.set_grad_enabled(i % 4 < 2):
            net.train(i % 3 > 0)
            twin.train(i % 3 > 0)
            bound = 5e-2 if i % 2 else 1e-4
            torch.testing.assert_close(compiled(x).float(), twin(x).float(), atol=bound, rtol=bound)
    net.train()
    twin.train()
    twin.load_state_dict(net.state_dict())
    agree(pair)


def test_large_gradients_are_separate() -> None:
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(64, 1 << 15), nn.Tanh(), nn.Linear(1 << 15, 4))
    compiled = torch.compile(net, backend="ingot", fullgraph=True)
    compiled(torch.randn(2, 64)).sum().backward()
    storages = [p.grad.untyped_storage().data_ptr() for p in net.parameters()]  # type: ignore[union-attr]
    assert len({*storages}) == 2
    assert storages[0] not in storages[1:]


def test_values_with_the_same_gradient() -> None:
    """Each leaf has memory of its own, as autograd adds to it in place."""

    def f(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return ((a + b) * c.exp()).sum() + (d * 3).sum()

    torch._dynamo.reset()
    leaves = [torch.randn(4, 5).requires_grad_() for _ in range(4)]
    twins = [x.detach().clone().requires_grad_() for x in leaves]
    compiled = torch.compile(f, backend="ingot", fullgraph=True)
    for _ in range(4):
        compiled(*leaves).backward()
        f(*twins).backward()
        for x, y in zip(leaves, twins, strict=True):
            torch.testing.assert_close(x.grad, y.grad)


def test_a_gradient_of_a_value_that_is_no_leaf_is_separate() -> None:
    """It is freed as soon as it was read, whoever keeps those of the leaves."""
    torch._dynamo.reset()
    layer = nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="ingot", fullgraph=True)
    x = torch.randn(3, 4).requires_grad_()
    y = x * 2
    seen: list[int] = []
    y.register_hook(lambda g: seen.append(g.untyped_storage().data_ptr()))
    compiled(y).sum().backward()
    assert layer.weight.grad is not None
    assert seen == [s for s in seen if s != layer.weight.grad.untyped_storage().data_ptr()]


def test_values_that_have_no_address() -> None:
    """Nested tensors, others without memory and numbers are not taken for the last call's."""
    x = torch.randn(2, 3)
    taken: list[list[int]] = []

    def run(pointers: list[int], _state: object, _given: object) -> list[Tensor]:
        taken.append(pointers)
        return [x]

    call = RepeatedCall.of(run, [x], [x], [0], {}, ())
    assert call is not None
    assert call([x + 1]) == [x]
    assert len(taken) == 1
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(1, 3)])
    without_memory = torch.randn(2, 3)
    without_memory.untyped_storage().resize_(0)
    functorch: Any = torch._C
    others = [nested, without_memory, torch.empty(2, 3, device="meta"), x.double(), x.t(), x.clone().requires_grad_()]
    for other in (*others, nn.Parameter(x), functorch._functorch._add_batch_dim(x[None], 0, 1), 3):
        assert call([other]) is None
    with forward_ad.dual_level():
        assert call([forward_ad.make_dual(x, x)]) is None
    assert len(taken) == 1


def test_memory_that_is_smaller_than_when_traced() -> None:
    """torch calls a graph of overlapping views for tensors that do not overlap, and gives it less memory, which no
    program may write beyond: aot_eager refuses it, too."""

    def f(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        b.add_(a.sum())
        return a + b.sum()

    run = torch.compile(f, backend="ingot", fullgraph=True, options={"threads": 1})
    memory, expected = torch.arange(12.0), torch.arange(12.0)
    torch.testing.assert_close(run(memory[:8], memory[4:]), f(expected[:8], expected[4:]))
    torch.testing.assert_close(memory, expected)
    try:
        y = run(torch.ones(8), torch.ones(8))
    except InputError as e:
        assert "expected shape [12], got shape [8]" in str(e)
    else:
        torch.testing.assert_close(y, f(torch.ones(8), torch.ones(8)))
