"""Reductions, products, convolutions, norms, pools, attention, resizes, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.frontends.torch.agree import agree

REDUCE: dict[str, Callable[[Tensor], Any]] = {
    "sums": lambda x: (
        x.sum(),
        x.sum(1),
        x.sum((0, -1), keepdim=True),
        x.mean(),
        x.mean(-1, keepdim=True),
        x.prod(1),
        x.long().sum(),
        (x > 0).sum(1),
        x.long().prod(),
        x.sum(1, dtype=torch.float64),
        x.nansum(0),
    ),
    "extremes": lambda x: (
        x.max(),
        x.min(),
        x.max(1),
        x.min(-1, keepdim=True),
        x.amax((0, 2)),
        x.amin(1, keepdim=True),
        x.argmax(),
        x.argmin(1),
        x.argmax(-1, keepdim=True),
        torch.aminmax(x, dim=1),
        (x > 0).amax(1),
    ),
    "spread": lambda x: (
        x.var(),
        x.std(1),
        x.var(1, unbiased=False),
        x.std((0, 2), keepdim=True),
        torch.var(x, 1, correction=2),
        torch.var_mean(x, -1),
        torch.std_mean(x, 0),
    ),
    "histograms": lambda x: (
        x.histc(5, -1, 1),
        x.histc(),
        (x * 0).histc(4),
        x.round().abs().histc(4, 0, 3),
    ),
    "logic": lambda x: ((x > 0).any(), (x > 0).all(1), x.any(-1, keepdim=True), torch.count_nonzero(x, 1)),
    "norms": lambda x: (
        x.norm(),
        x.norm(dim=1),
        x.norm(1, -1, keepdim=True),
        x.norm(3, 0),
        x.norm(math.inf, 1),
        torch.linalg.vector_norm(x, 0, 1),
        F.normalize(x, dim=1),
        torch.linalg.norm(x, dim=-1),
    ),
    "scans": lambda x: (x.cumsum(1), x.cumprod(-1), x.long().cumsum(0), x.cummax(1), x.cummin(2), (x > 0).cumsum(1)),
    "sorts": lambda x: (
        x.sort(),
        x.sort(1, descending=True),
        x.argsort(0),
        x.topk(2),
        x.topk(2, 1, largest=False)[0],
        x.kthvalue(2, 2)[0],
        x.median(2)[0],
        x.median(),
        torch.msort(x),
    ),
    "soft": lambda x: (
        x.softmax(-1),
        x.softmax(0),
        x.log_softmax(1),
        x.logsumexp(1),
        x.logsumexp((0, 2), keepdim=True),
        F.softmin(x, 1),
        x.softmax(1, dtype=torch.float64),
    ),
    "scalars": lambda x: (x[0, 0, 0].sum(), x[0, 0, 0].max(0), x[0, 0, 0].softmax(0), x[0, 0, 0].cumsum(0)),
}


@pytest.mark.parametrize("name", REDUCE)
def test_reductions(name: str) -> None:
    agree(REDUCE[name], torch.randn(3, 4, 5))


PRODUCT: dict[str, Callable[..., Any]] = {
    "matmul": lambda a, b, v: (
        a @ b,
        a[0] @ b[0],
        a @ v,
        v @ b,
        v.dot(v),
        a[0].mv(v),
        torch.mm(a[0], b[0]),
        a[:, None] @ b,
    ),
    "added": lambda a, b, v: (
        torch.baddbmm(a @ b, a, b, beta=0.5, alpha=2),
        torch.addmm(v[:2], a[0], b[0][:, :2]),
        torch.addmv(a[0, :, 0], a[0], v),
        torch.addbmm(a[0] @ b[0], a, b),
        torch.addr(b[0], v, b[0, 0]),
    ),
    "einsum": lambda a, b, v: (
        torch.einsum("bij,bjk->bik", a, b),
        torch.einsum("bij,j->b", a, v),
        torch.einsum("bij->j", a.short()),
        torch.einsum("...ij,...jk->...ki", a, b),
        torch.einsum("i,j->ij", v, v),
    ),
    "outer": lambda a, b, v: (
        torch.outer(v, v),
        torch.inner(a, v),
        torch.inner(a[0], a[1]),
        torch.functional.tensordot(a, b, cast(Any, ([2], [1]))),
        torch.kron(a[0], b[0]),
        torch.cdist(a, b.mT),
        F.linear(a, b.mT[0]),
        F.linear(a, b.mT[0], b[0, 0]),
        F.bilinear(a[0], a[1], torch.ones(3, 4, 4)),
        F.cosine_similarity(a, a + 1),
    ),
}


@pytest.mark.parametrize("name", PRODUCT)
def test_products(name: str) -> None:
    agree(PRODUCT[name], torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(4), tolerance=1e-4)


CONV: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "1d": (nn.Conv1d(4, 6, 3, 2, 1, dilation=2, groups=2), (2, 4, 17)),
    "1d unbatched": (nn.Conv1d(4, 6, 3, bias=False), (4, 9)),
    "2d": (nn.Conv2d(3, 5, (3, 2), (2, 1), (1, 0)), (2, 3, 9, 7)),
    "2d same": (nn.Conv2d(3, 3, 4, padding="same", groups=3), (1, 3, 8, 7)),
    "2d circular": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (1, 2, 5, 6)),
    "3d": (nn.Conv3d(2, 4, 3, padding=1), (1, 2, 4, 5, 6)),
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 4, 3, 1, output_padding=1, groups=2), (2, 4, 5)),
    "transposed 2d": (nn.ConvTranspose2d(3, 4, 3, 2, 1, dilation=2), (2, 3, 4, 5)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3), dim=2), (1, 3, 8)),
}


@pytest.mark.parametrize("name", CONV)
def test_convolutions(name: str) -> None:
    net, shape = CONV[name]
    agree(net, torch.randn(shape), tolerance=1e-4)


NORM: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "batch": (nn.BatchNorm2d(5), (2, 5, 3, 4)),
    "batch 1d": (nn.BatchNorm1d(5, affine=False), (3, 5)),
    "batch without statistics": (nn.BatchNorm1d(5, track_running_stats=False), (4, 5, 3)),
    "layer": (nn.LayerNorm([3, 4]), (2, 5, 3, 4)),
    "layer plain": (nn.LayerNorm(4, elementwise_affine=False), (2, 4)),
    "layer no bias": (nn.LayerNorm(4, bias=False), (2, 4)),
    "rms": (nn.RMSNorm(6), (2, 3, 6)),
    "group": (nn.GroupNorm(3, 6), (2, 6, 4, 3)),
    "group plain": (nn.GroupNorm(2, 4, affine=False), (2, 4, 5)),
    "instance": (nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 5)),
    "local response": (nn.LocalResponseNorm(3), (2, 6, 4, 4)),
}


@pytest.mark.parametrize("name", NORM)
def test_norms(name: str) -> None:
    net, shape = NORM[name]
    for p in [*net.parameters(), *net.buffers()]:
        if p.is_floating_point():
            p.data = torch.rand_like(p) + 0.5
    agree(net, torch.randn(shape), tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("narrow", [False, True])
def test_batch_norms_that_learn(dtype: torch.dtype, narrow: bool) -> None:
    """Values of 16 bits are rounded once; all results have the types that export tells."""
    parts = [torch.rand(5) + 0.5 for _ in range(4)]
    weights = [t.to(dtype) if narrow else t for t in parts]

    def learns(x: Tensor) -> Any:
        result, _, _, mean, variance = torch.ops.aten._native_batch_norm_legit_functional(x, *weights, True, 0.1, 1e-5)
        return result, mean.float(), variance.float()

    agree(learns, (3 * torch.randn(4, 5, 3, 2)).to(dtype), tolerance=1e-6 if dtype == torch.float32 else 2**-7)


POOL: dict[str, Callable[[Tensor], Any]] = {
    "max": lambda x: (
        F.max_pool2d(x, 2),
        F.max_pool2d(x, 3, 2, 1),
        F.max_pool2d(x, (2, 3), 2, dilation=2, ceil_mode=True),
    ),
    "max indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "average": lambda x: (
        F.avg_pool2d(x, 2),
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool2d(x, 2, divisor_override=3),
    ),
    "1d": lambda x: (F.max_pool1d(x[0], 2, 1), F.avg_pool1d(x[0], 3, 2, 1), F.adaptive_avg_pool1d(x[0], 4)),
    "3d": lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 2), F.adaptive_avg_pool3d(x, 2)),
    "adaptive": lambda x: (
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, (3, 5)),
        F.adaptive_max_pool2d(x, cast(Any, (2, None))),
    ),
    "lp": lambda x: F.lp_pool2d(x.abs(), 2, 2),
}


@pytest.mark.parametrize("name", POOL)
def test_pools(name: str) -> None:
    agree(POOL[name], torch.randn(2, 3, 9, 7), tolerance=1e-4)


def test_attention() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)
    keep = torch.rand(2, 1, 5, 7) > 0.3
    keep[..., 0] = True
    sdpa = F.scaled_dot_product_attention
    agree(lambda q, k, v: (sdpa(q, k, v), sdpa(q, k, v, is_causal=True), sdpa(q, k, v, scale=0.3)), q, k, v)
    agree(
        lambda q, k, v, m: (sdpa(q, k, v, m), sdpa(q, k, v, torch.where(m, 0.0, -9.0)), sdpa(q, k, v, m[0, 0])),
        q,
        k,
        v,
        keep,
    )
    agree(lambda q, k, v: sdpa(q, k[:, :2], v[:, :2], enable_gqa=True), q, k, v)
    agree(lambda q, k, v: (sdpa(q[0], k[0], v[0]), sdpa(q[:, None], k[:, None], v[:, None])), q, k, v)
    agree(nn.MultiheadAttention(8, 2, batch_first=True), *(torch.randn(2, 3, 8),) * 3)
    agree(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), torch.randn(2, 3, 8), tolerance=1e-4)


RESIZE: list[dict[str, Any]] = [
    {"scale_factor": 2.0, "mode": "nearest"},
    {"size": (7, 4), "mode": "nearest"},
    {"size": (7, 4), "mode": "nearest-exact"},
    {"scale_factor": 1.7, "mode": "bilinear"},
    {"size": (9, 3), "mode": "bilinear", "align_corners": True},
    {"scale_factor": (2.0, 0.5), "mode": "bicubic"},
    {"size": (1, 9), "mode": "bicubic", "align_corners": True},
    {"scale_factor": 0.6, "mode": "bilinear", "recompute_scale_factor": True},
    {"size": (3, 3), "mode": "bilinear", "antialias": True},
    {"size": (3, 4), "mode": "bicubic", "antialias": True},
]


@pytest.mark.parametrize("index", range(len(RESIZE)))
def test_resizes(index: int) -> None:
    agree(lambda x: F.interpolate(x, **RESIZE[index]), torch.randn(2, 3, 5, 6), tolerance=1e-4)


def test_grids_and_losses() -> None:
    x, theta = torch.randn(2, 3, 5, 6), torch.randn(2, 2, 3)
    grid = torch.rand(2, 4, 5, 2) * 2 - 1
    agree(lambda x, g: F.grid_sample(x, g, align_corners=False), x, grid)
    agree(lambda x, t: F.affine_grid(t, [2, 3, 5, 6], align_corners=False), x, theta)
    agree(lambda x, t: F.affine_grid(t, [2, 3, 4, 5], align_corners=True), x, theta)
    labels = torch.tensor([2, 0, -100, 1])
    logits = torch.randn(4, 3)
    agree(lambda x, t: (F.cross_entropy(x, t), F.cross_entropy(x, t, reduction="sum")), logits, labels)
    agree(lambda x, t, w: F.nll_loss(x.log_softmax(1), t, w, reduction="none"), logits, labels, torch.rand(3))


def test_resizes_of_other_ranks() -> None:
    agree(lambda x: (F.interpolate(x, size=7, mode="linear"), F.interpolate(x, scale_factor=2)), torch.randn(1, 2, 5))
    agree(lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), torch.randn(1, 2, 3, 2, 3))
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):  # 3 * 1.3 is 3
        agree(lambda x, mode=mode: F.interpolate(x, scale_factor=1.3, mode=mode), torch.randn(1, 2, 3, 5))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True, "bias": False}]
)
def test_recurrent(kind: Callable[..., nn.RNNBase], options: dict[str, Any]) -> None:
    net = kind(4, 6, **options)
    agree(net, torch.randn(5, 3, 4))
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    batch = 5 if options.get("batch_first") else 3
    state = torch.randn(layers, batch, 6)
    agree(net, torch.randn(5, 3, 4), (state, state * 0.5) if kind is nn.LSTM else state)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_no_indices(mode: str) -> None:
    """All of them are empty, for a size that is 0 later on, too."""

    def bag(places: Tensor, table: Tensor, offsets: Tensor) -> Tensor:
        return F.embedding_bag(places, table, offsets, mode=mode)

    compiled = torch.compile(bag, backend="ingot", fullgraph=True, dynamic=True)
    table, offsets = torch.randn(5, 3), torch.tensor([0, 0])
    with torch.no_grad():
        for places in (torch.tensor([0, 3, 1]), torch.empty(0, dtype=torch.int64)):
            torch.testing.assert_close(compiled(places, table, offsets), bag(places, table, offsets))


def test_factors_of_0_drop_what_they_scale() -> None:
    base, nan, a, b = torch.randn(3), torch.full((3, 4), torch.nan), torch.randn(3, 4), torch.randn(4)

    def added(base: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
        return torch.addmv(base, a, b, beta=beta, alpha=alpha)

    compiled = torch.compile(added, backend="ingot", fullgraph=True)
    for args, factors in (((base, nan, b), {"alpha": 0, "beta": 2}), ((nan[:, 0], a, b), {"beta": 0})):
        torch.testing.assert_close(compiled(*args, **factors), added(*args, **factors))
