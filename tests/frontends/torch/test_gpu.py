"""Graphs of tensors on a GPU, traced without one: what they are compiled for, and attention as GPUs have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

import ingot
from ingot import ops
from ingot.frontends.torch import to_torch
from ingot.frontends.torch.decompose import DECOMPOSITIONS
from ingot.integrations.torch_compile import _frozen, _Specialized, gpu_of, import_flat
from ingot.ir.interp import interpret
from ingot.passes.model.attention_sums import keep_attention_sums
from ingot.support.errors import InputError
from tests.frontends.torch.agree import close

_aten = torch.ops.aten


def traced(f: Callable[..., Any], *shapes: tuple[int, ...], device: str = "cpu") -> fx.GraphModule:
    with FakeTensorMode():
        examples = [torch.empty(shape, device=device) for shape in shapes]
        return make_fx(f, decomposition_table=DECOMPOSITIONS)(*examples)


def test_the_device_of_tensors_chooses_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (9, 0))
    calls: list[dict[str, Any]] = []

    def compiler(model: object, **options: Any) -> Callable[..., Any]:
        calls.append(options)
        return lambda *args: args

    x = torch.ones(3)
    for device in ("cuda", "cpu"):
        graph = traced(lambda x: (x + 1,), (3,), device=device)
        graph.graph.find_nodes(op="output")[0].args[0][0].meta["val"] = x  # the result is wanted on the host
        run = _Specialized(graph, [x], frozenset(), compiler, Lock())
        assert torch.equal(run([x])[0], x)
    assert calls == [{"target": "cuda:sm_90a"}, {}]


def test_frozen_tensors_of_a_gpu_stay_inputs() -> None:
    """Nothing would tell that `.data` of one was written."""
    with FakeTensorMode():
        tensors = [torch.empty(2, device=d, requires_grad=g) for d in ("cuda", "cpu") for g in (False, True)]
    assert _frozen(frozenset(range(4)), tensors) == {2}


def test_only_what_is_on_the_gpu_is_written_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter on the host beside a cache on the GPU: its new value is copied there."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (9, 0))

    def step(x: Tensor, cache: Tensor, count: Tensor) -> tuple[Tensor]:
        cache.add_(x)
        count.add_(1)
        return (cache * 2,)

    with FakeTensorMode():
        examples = [torch.empty(3, device="cuda"), torch.empty(3, device="cuda"), torch.empty((), dtype=torch.int64)]
        graph = make_fx(functionalize(step, remove="mutations_and_views"))(*examples)
    assert _Specialized(graph, examples, frozenset(), ingot.compile, Lock())._in_place.keys() == {1}


def test_other_devices_are_refused() -> None:
    for device in ("cuda:1", "xpu"):
        with pytest.raises(InputError, match=f"tensors on the CPU or cuda:0, got {device}"):
            gpu_of(traced(lambda x: (x + 1,), (3,), device=device).graph)
    assert gpu_of(traced(lambda x: (x + 1,), (3,)).graph) is None


def computed(graph: fx.GraphModule, *args: Tensor) -> list[Tensor]:
    results = interpret(import_flat(graph, {}).graph, [a.numpy() for a in args])
    return [to_torch(np.asarray(a)) for a in results]


def heads(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def flash(q: Tensor, k: Tensor, v: Tensor, g: Tensor, p: float, causal: bool) -> Any:
    result, lse, at, ak, most_q, most_k, seed, offset, _ = _aten._scaled_dot_product_flash_attention(q, k, v, p, causal)
    backward = _aten._scaled_dot_product_flash_attention_backward
    return result, *backward(g, q, k, v, result, lse, at, ak, most_q, most_k, p, causal, seed, offset)


def cudnn(q: Tensor, k: Tensor, v: Tensor, g: Tensor, p: float, causal: bool) -> Any:
    result, lse, at, ak, most_q, most_k, seed, offset, _ = _aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, p, causal
    )
    backward = _aten._scaled_dot_product_cudnn_attention_backward
    return result, *backward(g, q, k, v, result, lse, seed, offset, None, at, ak, most_q, most_k, p, causal)


def efficient(q: Tensor, k: Tensor, v: Tensor, g: Tensor, p: float, causal: bool) -> Any:
    result, lse, seed, offset = _aten._scaled_dot_product_efficient_attention(q, k, v, None, True, p, causal)
    backward = _aten._scaled_dot_product_efficient_attention_backward
    return result, *backward(g, q, k, v, None, result, lse, seed, offset, p, [True, True, True, False], causal)[:3]


@pytest.mark.parametrize("op", [flash, cudnn, efficient])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention(op: Callable[..., Any], causal: bool) -> None:
    q, g = heads(2, 4, 5, 8), heads(2, 4, 5, 8) + 1
    k, v = heads(2, 2 if op is flash else 4, 7, 8), heads(2, 2 if op is flash else 4, 7, 8) * 2
    shapes = [tuple(t.shape) for t in (q, k, v, g)]
    got = computed(traced(lambda *a: op(*a, 0.0, causal), *shapes), q, k, v, g)
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    wide = [x.repeat_interleave(4 // x.shape[1], 1) for x in leaves]
    want = torch.nn.functional.scaled_dot_product_attention(wide[0], wide[1], wide[2], is_causal=causal)
    for a, b in zip(got, [want, *torch.autograd.grad(want, leaves, g)], strict=True):
        close(a, b.detach(), 1e-5)


@pytest.mark.parametrize("op", [flash, cudnn, efficient])
def test_dropout_drops_the_same_in_the_gradients(op: Callable[..., Any]) -> None:
    """Where the values are an identity the result is the weights with what was dropped."""
    q, k, v, g = heads(1, 1, 6, 6), heads(1, 1, 6, 6) + 1, torch.eye(6)[None, None], heads(1, 1, 6, 6) * 2
    shapes = [tuple(t.shape) for t in (q, k, v, g)]
    result, *got = computed(traced(lambda *a: op(*a, 0.4, False), *shapes), q, k, v, g)
    expected = (result != 0) / 0.6
    assert 0 < (expected == 0).sum() < 36
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    want = (torch.softmax(leaves[0] @ leaves[1].mT / 6**0.5, -1) * expected) @ leaves[2]
    for a, b in zip([result, *got], [want, *torch.autograd.grad(want, leaves, g)], strict=True):
        close(a, b.detach(), 1e-5)


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_the_gradient_of_a_bias(p: float) -> None:
    def gradients(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, g: Tensor) -> Any:
        result, lse, seed, offset = _aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, p)
        backward = _aten._scaled_dot_product_efficient_attention_backward
        gradient = backward(g, q, k, v, bias, result, lse, seed, offset, p, [True] * 4)[3]
        return (result, gradient, seed) if p else (result, gradient)

    q, k, v, g = heads(2, 3, 5, 8), heads(2, 3, 6, 8), heads(2, 3, 6, 8) * 2, heads(2, 3, 5, 8) + 1
    bias = heads(1, 3, 5, 6).requires_grad_()
    shapes = [tuple(t.shape) for t in (q, k, v, bias, g)]
    # torch takes a bias that is spread out to all heads
    got = computed(traced(gradients, *shapes), q, k, v, bias.detach(), g)
    kept: Tensor | float = 1.0
    if p:
        op = ops.AttentionWithSums(scale=0.0, dropout=p)
        share = op.dropped_array(np.ones((2, 3, 5, 6)), [q.numpy(), k.numpy(), v.numpy(), got[2].numpy()])
        kept = torch.from_numpy(share.astype(np.float32))
    want = (torch.softmax(q @ k.mT / 8**0.5 + bias, -1) * kept) @ v
    close(got[0], want.detach(), 1e-5)
    close(got[1], torch.autograd.grad(want, [bias], g)[0], 1e-5)


@pytest.mark.parametrize("op", [flash, cudnn, efficient])
def test_attention_that_is_trained_is_an_op_in_each_pass(op: Callable[..., Any]) -> None:
    shapes = [(2, 4, 5, 8)] * 4
    graph = import_flat(traced(lambda *a: op(*a, 0.0, True), *shapes), {}).graph
    with_sums = keep_attention_sums(graph)
    names = [type(n.op) for n in with_sums.nodes() if isinstance(n.op, ops.AttentionWithSums | ops.AttentionGradients)]
    assert names == [ops.AttentionWithSums, ops.AttentionGradients]
    # the forward pass alone
    single = keep_attention_sums(replace(graph, outputs=graph.outputs[:1], output_names=graph.output_names[:1]))
    assert [type(n.op) for n in single.nodes() if n.op.name.startswith("attention")] == [ops.Attention]
