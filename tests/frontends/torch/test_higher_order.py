"""Torch's higher-order ops: loops, scans, maps, and attention with functions of the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot
from ingot.frontends.torch import export_module, import_exported
from ingot.ops import Attention
from ingot.passes.core.simplify import simplify
from ingot.passes.model.fuse_attention import fuse_attention
from tests.frontends.torch.agree import agree, close, compile_whole
from tests.schedule.compiled import slow

Position = Callable[..., Tensor]
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def grows(x: Tensor) -> tuple[Tensor, Tensor]:
    step = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: (i < 7) & (x.sum() < 100), lambda i, x: (i + 1, x * 1.5), (step, x))


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return scan(lambda h, x: (torch.tanh(self.linear(h) + x), h * 2), h, x)


def mapped(x: Tensor, y: Tensor) -> Tensor:
    return cast(Any, map_)(lambda x, y: x.cumsum(0) + y, x, y)


def test_loops() -> None:
    agree(grows, torch.rand(4))
    agree(grows, torch.full((4,), 1000.0))
    agree(Steps(), torch.randn(2, 3), torch.randn(5, 2, 3))
    agree(mapped, torch.randn(6, 3), torch.randn(3))


def test_a_compiled_scan() -> None:
    net, args = Steps().eval(), (torch.randn(2, 3), torch.randn(5, 2, 3))
    with torch.no_grad():
        close(ingot.compile(net, args, cache=False)(*args), net(*args))


class Flex(nn.Module):
    """flex_attention with a function of the scores, or of the positions that are seen."""

    slope: Tensor

    def __init__(self, score: Position | None = None, mask_mod: Position | None = None, **named: Any) -> None:
        super().__init__()
        self.score, self.mask_mod, self.named = score, mask_mod, named
        self.register_buffer("slope", torch.rand(4))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        mask = None
        if self.mask_mod is not None:
            mask = create_block_mask(self.mask_mod, None, None, q.shape[2], k.shape[2], device="cpu")
        score = self.biased if self.score is Flex.biased else self.score
        return flex_attention(q, k, v, score_mod=score, block_mask=mask, **self.named)

    def biased(self, s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + (j - i) * self.slope[h]


FLEX = {
    "plain": Flex(scale=0.3),
    "biased": Flex(Flex.biased),
    "capped": Flex(lambda s, b, h, i, j: torch.tanh(s / 5) * 5, return_lse=True),
    "causal": Flex(mask_mod=lambda b, h, i, j: i >= j),
    "window": Flex(Flex.biased, lambda b, h, i, j: (i >= j) & (i - j < 9), enable_gqa=True),
    "hidden rows": Flex(mask_mod=lambda b, h, i, j: i > j),
}


@pytest.mark.parametrize("name", ["hidden rows", *slow("window", "plain", "biased", "capped", "causal")])
def test_flex_attention(name: str) -> None:
    net = FLEX[name].eval()
    shared = 2 if "enable_gqa" in net.named else 4
    q, k, v = torch.randn(2, 4, 19, 16), torch.randn(2, shared, 19, 16), torch.randn(2, shared, 19, 16)
    graph = agree(net, q, k, v).graph
    results = [n for n in fuse_attention(simplify(graph)).nodes() if isinstance(n.op, Attention)]
    assert len(results) == 1 and results[0].inputs[1].shape[1] == shared


@pytest.mark.slow
def test_flex_attention_of_nan() -> None:
    net = FLEX["hidden rows"].eval()
    model: Any = import_exported(export_module(net, (torch.randn(2, 4, 19, 16),) * 3))
    q = torch.randn(2, 4, 19, 16)
    q[0, 1, 4, 2], q[1, 2, 0, 3] = torch.nan, torch.inf
    program = ingot.compile(model, cache=False)
    with torch.no_grad():
        close(program(q, q, q), net(q, q, q))


@pytest.mark.slow
def test_flex_attention_under_torch_compile() -> None:
    net, q = FLEX["window"].eval(), torch.randn(2, 4, 19, 16)
    with torch.no_grad():
        close(compile_whole(net)(q, q[:, :2], q[:, 2:]), net(q, q[:, :2], q[:, 2:]))
