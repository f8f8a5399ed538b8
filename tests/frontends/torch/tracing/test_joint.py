"""What is done to a joint graph before it is cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function
from torch import Tensor, fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx

from ingot.frontends.torch.tracing.partition.joint import _merge_equal, partition
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
    for got, expected in zip(traced(x), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
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


def overwrite_copy(x: Tensor) -> tuple[Tensor]:
    copy_ = x.clone()
    before = copy_ * 2
    copy_.add_(1)
    return (before + copy_ * 2,)


@pytest.mark.parametrize(
    ("f", "removed_count"),
    [(chains, 3), (numbers, 2), (drawn, 0), (results, 0), (overwrite_copy, 0)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_equal_calls_are_one(f: Callable[[Tensor], Any], removed_count: int):
    before, after = calls(f, torch.randn(3, 4))
    assert before - after == removed_count


def partition_of(f: Callable[..., Tensor], *args: Tensor) -> tuple[fx.GraphModule, fx.GraphModule, list[Tensor]]:
    """Forward and backward as they are cut, and the gradients of the sum of `f` by both."""
    cut: list[tuple[fx.GraphModule, fx.GraphModule]] = []

    def partitions(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        cut.append(partition(joint, inputs, **options))
        return cut[-1]

    def plain(gm: fx.GraphModule, example_inputs: Any) -> Any:
        return make_boxed_func(gm)

    leaves = [a.detach().requires_grad_() for a in args]
    compiled = aot_function(f, plain, plain, partition_fn=partitions)
    matches = torch.autograd.grad(compiled(*leaves).sum(), leaves)
    return *cut[0], [*matches]


@pytest.mark.parametrize("parts", [lambda x: x.unbind(1), lambda x: x.squeeze(0).split(2, 1)])
def test_parts_of_a_tensor_are_views_that_are_not_kept(parts: Callable[[Tensor], Any]) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        a, b, c = parts(
            (x @ w).reshape(1, 6, -1) if parts.__code__.co_names[0] == "squeeze" else (x @ w).reshape(2, 3, -1)
        )
        return (a * b).sin() * c

    x, w = torch.randn(6, 4), torch.randn(4, 6)
    forward, _, matches = partition_of(f, x, w)
    (end,) = forward.graph.find_nodes(op="output")
    names = [n.name for n in end.args[0] if n.op != "placeholder"]
    assert not [n for n in names if n.startswith(("getitem", "select", "slice", "split"))]
    leaves = [x.requires_grad_(), w.requires_grad_()]
    for got, want in zip(matches, torch.autograd.grad(f(*leaves).sum(), leaves), strict=True):
        torch.testing.assert_close(got, want)


def _saved(forward: fx.GraphModule) -> list[str]:
    """Types and shapes of what is saved but for inputs."""
    (end,) = forward.graph.find_nodes(op="output")
    values = [n.meta["val"] for n in end.args[0][1:] if n.op != "placeholder"]
    return sorted(f"{str(v.dtype)[6:]}{[*v.shape]}" for v in values)


def test_keys_are_kept_as_they_were_before_they_are_repeated_for_groups_of_heads() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin().view(2, 3, 4, 4).transpose(1, 2)
        keys = y[:, :, None].expand(2, 4, 3, 3, 4).reshape(2, 12, 3, 4).half()
        return keys.sin() * keys.exp().float()

    x = torch.randn(2, 3, 16)
    forward, _, (got,) = partition_of(f, x)
    assert _saved(forward) == ["float16[2, 3, 16]"]
    leaf = x.requires_grad_()
    torch.testing.assert_close(got, torch.autograd.grad(f(leaf).sum(), leaf)[0])


def test_a_projection_is_kept_in_place_of_its_parts() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = (part.view(2, 3, 2, 4).transpose(1, 2) for part in (x @ w).split(8, 2))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v) * q.exp()

    x, w = torch.randn(2, 3, 8), torch.randn(8, 24)
    forward, _, matches = partition_of(f, x, w)
    saved = _saved(forward)
    assert any(s in saved for s in ("float32[6, 24]", "float32[2, 3, 24]")) and "float32[2, 2, 3, 4]" in saved
    assert saved.count("float32[2, 2, 3, 4]") == 1  # attention's result
    leaves = [x.requires_grad_(), w.requires_grad_()]
    for got, want in zip(matches, torch.autograd.grad(f(*leaves).sum(), leaves), strict=True):
        torch.testing.assert_close(got, want)


def test_parts_of_a_kept_concatenation_are_not_kept() -> None:
    """Of a dense block, whose last concatenation begins with all others; the middle of one; another axis."""

    def f(x: Tensor, u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        a = x @ u
        b = torch.cat([x, a], 1) @ v
        c = torch.cat([x, a, b], -1) @ w
        middle, other = torch.cat([a, b], 1), torch.cat([a, a])
        return torch.cat([x, a, b, c], 1).square().sum(1) + (middle.square().sum(1) * other.square().sum())

    leaves = [torch.randn(n, m) for n, m in ((6, 8), (8, 3), (11, 3), (14, 3))]
    forward, _, matches = partition_of(f, *leaves)
    assert [s for s in _saved(forward) if s.startswith("float32[6, ")] == ["float32[6, 17]"]
    leaves = [x.requires_grad_() for x in leaves]
    for got, want in zip(matches, torch.autograd.grad(f(*leaves).sum(), leaves), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dynamic", [None, True])
def test_parts_of_open_sizes_and_empty_ones_of_another_rank(dynamic: bool | None) -> None:
    """The parts of a concatenation of constant size have open ones, and forward saves sizes beside values."""

    def f(x: Tensor, w: Tensor, between: Tensor, rows: Tensor) -> Tensor:
        count = rows.shape[0]
        joined = torch.cat([torch.empty(0), x[:count], between, x[count:]])
        wide = torch.cat([torch.empty(0), between, between.sin()], 1)
        return (joined.square() @ w).sum() + between.sin().square().sum() * wide.square().sum() * rows.square().sum()

    leaves = [torch.randn(*shape, requires_grad=True) for shape in ((9, 3), (3, 5), (4, 3))]
    both: list[Callable[..., Tensor]] = [torch.compile(f, backend="ingot", dynamic=dynamic, fullgraph=True), f]
    for count in (3, 5, 7):
        rows = torch.randn(count, 2, requires_grad=True)
        got, want = (torch.autograd.grad(g(*leaves, rows), [*leaves, rows]) for g in both)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_values_of_no_input_are_computed_again_but_not_drawn_again() -> None:
    def f(x: Tensor) -> Tensor:
        place = torch.arange(6)
        visible = place[:, None] >= place
        return (torch.where(visible, x, x.sin()) * torch.rand(6, 6)).exp() * visible.sum(1)

    x = torch.randn(6, 6)
    torch.manual_seed(1)
    forward, backward, (got,) = partition_of(f, x)
    (end,) = forward.graph.find_nodes(op="output")
    saved = {str(n.target) for n in end.args[0][1:]}
    assert "aten.rand.default" in saved and not any("ge" in name or "arange" in name for name in saved)
    assert any("arange" in str(n.target) for n in backward.graph.nodes)
    leaf = x.requires_grad_()
    torch.manual_seed(1)
    (want,) = torch.autograd.grad(f(leaf).sum(), leaf)
    torch.testing.assert_close(got, want)


def test_a_first_step_imports_nothing_of_inductor_that_takes_long():
    body = """
import sys, torch, ingot
net = torch.compile(torch.nn.Linear(3, 2), backend="ingot", fullgraph=True)
net(torch.randn(4, 3)).sum().backward()
sys.exit("torch._inductor.lowering" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", body], check=True, timeout=120, env=environment())
