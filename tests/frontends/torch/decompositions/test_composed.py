"""Ops that torch has no decomposition for, on odd, empty, infinite and NaN operands, against eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ingot.frontends.torch import export_module, import_exported
from tests.frontends.torch.agree import Function, agree, close, run
from tests.schedule.compiled import slow

inf, nan = math.inf, math.nan
SPECIAL = torch.tensor([0.0, -0.0, 1, -1, 0.5, -2.5, 1e-40, -1e-40, 1e30, -3e38, inf, -inf, nan])


def _with_slow(*values: Any) -> list[Any]:
    """The first value, and the others in the slow tests."""
    return [values[0], *slow(*values[1:])]


def _bits(*tensors: Tensor) -> tuple[Tensor, ...]:
    """As integers, so that signs of zeros and last digits count."""
    kinds = {torch.float32: torch.int32, torch.float64: torch.int64}
    return tuple(t.view(kinds[t.dtype]) if t.dtype in kinds else t for t in tensors)


def test_bessel_functions() -> None:
    def functions(x: Tensor) -> tuple[Tensor, ...]:
        return torch.i0(x), torch.special.i0e(x), torch.special.i1(x), torch.special.i1e(x)

    special = torch.tensor([nan, inf, -inf, 0.0, -0.0, 8, -8, 1e-30])
    agree(functions, torch.cat((torch.linspace(-8, 8, 33), special)), tolerance=1e-6)
    agree(torch.i0, torch.arange(4))


@pytest.mark.slow
def test_bessel_functions_in_f64() -> None:
    for f in (torch.i0, torch.special.i0e, torch.special.i1, torch.special.i1e):
        agree(f, torch.linspace(-20, 20, 81).double(), tolerance=1e-14)


def test_polygamma() -> None:
    def functions(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.polygamma(n, x) for n in (1, 2, 4))

    agree(functions, torch.cat((torch.linspace(0.1, 30, 91), torch.tensor([nan, 1e6]))), tolerance=1e-6)
    agree(functions, torch.tensor([-0.3, -1.6, -3.45, 0.45]).double(), tolerance=1e-8)
    agree(lambda x: torch.polygamma(3, x), torch.tensor([0.0, -1.0, -2.0]))


@pytest.mark.parametrize("shape", _with_slow((2, 33), (7,), (1,), (3, 0), ()))
def test_running_log_sums(shape: tuple[int, ...]) -> None:
    agree(lambda x: torch.logcumsumexp(x, -1), torch.randn(shape) * 50)


def test_running_log_sums_of_special_values() -> None:
    x = torch.tensor([[-inf, -inf, 1e4, -1e4, 2.0], [0.0, inf, -inf, inf, 1.0], [1.0, nan, 2.0, 3.0, -inf]])
    agree(lambda x: (torch.logcumsumexp(x, 1), torch.logcumsumexp(x, 0)), x)


def test_running_log_sums_of_any_length() -> None:
    net = Function(lambda x: torch.logcumsumexp(x, 1)).eval()
    model = import_exported(export_module(net, (torch.randn(2, 5),), True))
    for n in (2, 9):
        x = torch.randn(2, n) * 100
        close(run(model, x), net(x))


def test_modes_and_medians() -> None:
    def statistics(x: Tensor) -> tuple[Any, ...]:
        return *torch.mode(x, 1), *torch.mode(x, 0, True), *x.nanmedian(1), x.nanmedian(), x.median()

    agree(statistics, torch.randint(0, 4, (5, 9)).float())
    agree(statistics, torch.tensor([[2.0, 1.0, 1.0, 2.0], [inf, -inf, inf, 0.0]]))  # eager mode takes NaN for no number
    x = torch.tensor([[2.0, nan, 1.0, 2.0], [nan, 3.0, 3.0, nan], [inf, -inf, inf, 0.0]])
    agree(lambda x: (*x.nanmedian(1), *x.nanmedian(0, True), x.nanmedian(), x.median()), x)
    agree(lambda x: (*torch.mode(x, 1), *x.nanmedian(1)), torch.randint(-3, 3, (5, 8)))
    agree(lambda x: torch.mode(x, 0), torch.rand(5, 8) > 0.5)
    agree(lambda x: (x.nanmedian(1).values, x.nanmedian()), torch.full((2, 3), nan))
    agree(lambda x: (x.nanmedian(), x.median()), torch.randn(3, 0))
    agree(lambda x: (*torch.mode(x), x.nanmedian()), torch.tensor(2.0))


@pytest.mark.parametrize("sizes", _with_slow(((7, 9), (3, 4)), ((8, 6), (4, 3)), ((5, 5), (7, 2)), ((1, 1), (2, 2))))
def test_places_of_adaptive_maxima(sizes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    size, output = sizes
    x = torch.randn(2, 3, *size)
    x[0][torch.rand(3, *size) < 0.3] = nan
    x[1, 0] = -inf
    x[1, 1] = 0
    x[1, 2] = torch.randint(2, size)
    agree(lambda x: F.adaptive_max_pool2d(x, output, return_indices=True), x)


def test_places_of_adaptive_maxima_of_other_ranks() -> None:
    agree(lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True), torch.randn(3, 9))
    agree(lambda x: F.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True), torch.randn(2, 3, 5, 6, 7))


@pytest.mark.parametrize("options", _with_slow({"bidirectional": True, "num_layers": 2}, {}, {"bias": False}))
def test_projected_lstm(options: dict[str, Any]) -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(4, 6, proj_size=3, **options)

        def forward(self, x: Tensor, *state: Tensor) -> Any:
            return self.cells(x, state or None)

    count = options.get("num_layers", 1) * (2 if "bidirectional" in options else 1)
    agree(Projected(), torch.randn(5, 2, 4), torch.randn(count, 2, 3), torch.randn(count, 2, 6))
    agree(Projected(), torch.randn(1, 2, 4))


@pytest.mark.parametrize("dtype", _with_slow(torch.int8, torch.int64, torch.int32, torch.uint8))
def test_divisors(dtype: torch.dtype) -> None:
    a, b = (torch.randint(-100, 100, (40,)).to(dtype) for _ in range(2))
    a[:3], b[2:5] = 0, 0
    agree(lambda a, b: (torch.gcd(a, b), torch.lcm(a, b)), a, b)


def test_divisors_of_other_shapes() -> None:
    agree(torch.gcd, torch.tensor([7540113804746346429, -(2**63), 12]), torch.tensor([[4660046610375530309], [6], [0]]))
    agree(torch.gcd, torch.zeros(0, 3, dtype=torch.int64), torch.arange(3))
    agree(torch.lcm, torch.tensor(12), torch.tensor(-18))


def test_neighbours_and_parts_of_floats() -> None:
    a, b = torch.meshgrid(SPECIAL, SPECIAL, indexing="ij")
    is_ordered = ~(a.isnan() | b.isnan())
    for dtype in (torch.float32, torch.float64):
        agree(lambda a, b: _bits(torch.nextafter(a, b)), a[is_ordered].to(dtype), b[is_ordered].to(dtype))
        agree(lambda x: _bits(*torch.frexp(x)), torch.cat((SPECIAL[:-1], torch.randn(20) * 1e5)).to(dtype))
    agree(lambda a, b: (torch.nextafter(a, b), *torch.frexp(a)), SPECIAL[:, None], SPECIAL)
    agree(lambda a, b: (torch.nextafter(a, b), *torch.frexp(a)), torch.randn(9).bfloat16(), torch.randn(9).bfloat16())
    agree(torch.nextafter, SPECIAL.half()[:, None], SPECIAL.half())
    agree(torch.angle, SPECIAL)
    agree(torch.angle, torch.arange(-2, 2))


@pytest.mark.parametrize("shape", _with_slow((3, 4), (7,), (0, 3), ()))
def test_first_places(shape: tuple[int, ...]) -> None:
    def places(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.nonzero_static(x, size=n, fill_value=9 - n) for n in (0, 3, 20))

    agree(places, (torch.rand(shape) > 0.5).float())


def test_writes() -> None:
    x, source = torch.randn(3, 4), torch.randn(2, 2)
    agree(lambda x, i, s: x.clone().put_(i, s), x, torch.tensor([[0, 5], [-1, 2]]), source)
    agree(lambda x, i, s: x.clone().put_(i, s, accumulate=True), x, torch.tensor([[0, 5], [0, -1]]), source)
    agree(lambda x, i, s: x.clone().put_(i, s), x, torch.zeros(0, dtype=torch.int64), source[:0])
    agree(lambda x, s: torch.as_strided_scatter(x, s, (2, 2), (3, 1), 1), x, source)
    agree(lambda x, s: torch.as_strided_scatter(x, s, (), (), 5), x, torch.randn(()))


@pytest.mark.parametrize("kind", _with_slow("mean", "sum", "max", "min", "prod"))
def test_segments(kind: str) -> None:
    def segments(x: Tensor, lengths: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.segment_reduce(x, kind, lengths=lengths, unsafe=True),
            torch.segment_reduce(x, kind, lengths=lengths, unsafe=True, initial=2.0),
            torch.segment_reduce(x, kind, offsets=offsets, unsafe=True),
        )

    lengths, offsets = torch.tensor([2, 0, 3, 1]), torch.tensor([0, 2, 2, 6])
    agree(segments, torch.randn(6, 2), lengths, offsets)
    agree(segments, torch.tensor([1.0, nan, 2.0, inf, -inf, 0.0]), lengths, offsets)


def test_distances_of_pairs() -> None:
    agree(lambda x: tuple(F.pdist(x, p) for p in (0.0, 1.0, 2.0, 3.0, inf)), torch.randn(5, 3))
    agree(F.pdist, torch.tensor([[1.0, nan], [2.0, 3.0], [inf, 1.0]]))
    agree(F.pdist, torch.randn(1, 3))


def test_statistics_of_norms() -> None:
    agree(lambda x: torch.native_layer_norm(x, (3, 4), None, None, 1e-5), torch.randn(2, 3, 4))
    agree(lambda x: torch.native_group_norm(x, None, None, 2, 6, 20, 3, 1e-5), torch.randn(2, 6, 4, 5))


def test_einsum_of_booleans() -> None:
    agree(lambda a, b: torch.einsum("ij,ij->ji", a, b), torch.rand(2, 3) > 0.5, torch.rand(2, 3) > 0.5)


@pytest.mark.parametrize("kind", ["sum", "mean", "prod", "max", "min"])
def test_segments_along_other_axes(kind: str) -> None:
    lengths = torch.tensor([[2, 0, 3], [1, 1, 1]])
    data = torch.randn(2, 5, 3)

    def function(data: Tensor) -> Tensor:
        return torch.segment_reduce(data, kind, lengths=lengths, axis=1, unsafe=True)

    def between(data: Tensor) -> Tensor:
        return torch.segment_reduce(data, kind, offsets=torch.tensor([1, 3, 3]), initial=0.5)

    agree(between, data[0])
    agree(function, data)


def test_histograms() -> None:
    x, weight = torch.randn(50), torch.rand(50)

    def functions(x: Tensor, weight: Tensor) -> tuple[Any, ...]:
        edges = torch.tensor([-1.0, 0.0, 0.25, 2.0])
        return (
            torch.histogram(x, 7),
            torch.histogram(x, 4, range=(-1.0, 1.0), weight=weight, density=True),
            torch.histogram(x, edges, weight=weight),
            torch.histogramdd(x.reshape(25, 2), [3, 2]),
            torch.histogramdd(x.reshape(25, 2), [edges, edges], weight=weight[:25], density=True),
        )

    agree(functions, x, weight)
    agree(lambda x: torch.histogram(x, 3), torch.full((4,), 2.0))  # a range of nothing is widened
    agree(lambda x: torch.histogram(x, 3), torch.tensor([1.0, 2.0, 3.0, 4.0]))  # the last bin has its end


def test_masked_writes_of_several_values() -> None:
    x, mask = torch.randn(3, 4, 2), torch.tensor([[1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0]]).bool()

    def masked_write(x: Tensor, mask: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return x.index_put((mask,), values), x.index_put((mask,), values, accumulate=True)

    agree(masked_write, x, mask, torch.randn(5, 2))
    agree(masked_write, x, mask, torch.randn(2))

    def write_behind(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        y = x.clone()
        y[:, mask] = values
        return y

    agree(write_behind, x, mask[0], torch.randn(3, 2, 1))
    agree(lambda x, m, v: x.masked_fill(m, 0.0).index_put((m,), v), x[..., 0], mask, torch.arange(5.0))


def test_means_of_integers_by_index() -> None:
    x, source = torch.randint(-9, 9, (4, 3)), torch.randint(-9, 9, (6, 3))
    at = torch.tensor([0, 2, 2, 0, 1, 2])
    for inside in (True, False):
        agree(lambda x, s, inside=inside: x.index_reduce(0, at, s, "mean", include_self=inside), x, source)


def test_norms_of_training_with_their_statistics() -> None:
    x, mean, var, weight = torch.randn(4, 3, 5), torch.randn(3), torch.rand(3), torch.randn(3)

    def function(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        legit = torch.ops.aten._native_batch_norm_legit.no_stats(x, weight, mean, True, 0.1, 1e-5)
        return *legit, *torch.ops.aten._batch_norm_with_update_functional(x, weight, mean, mean, var, 0.1, 1e-5)

    agree(function, x, mean, var, weight)


def test_diagonals_on_any_axes() -> None:
    for axes in ((0, 1), (-1, 0), (2, -3)):
        agree(lambda x, axes=axes: torch.diag_embed(x, -1, *axes), torch.randn(2, 3))


def test_renormalized_embeddings_and_pools_backwards() -> None:
    table, at = torch.randn(6, 4) * 2, torch.tensor([[0, 2], [2, 5]])
    agree(lambda t: torch.ops.aten.embedding_renorm(t, at, 1.5, 2.0), table)
    x = torch.randn(2, 3, 6, 6)
    pooled, places = F.max_pool2d(x, 3, 2, return_indices=True)
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    agree(lambda g, x, i: backward(g, x, [3, 3], [2, 2], [0, 0], [1, 1], False, i), pooled, x, places)


def test_antialiased_corners() -> None:
    for size in ((5, 7), (13, 17)):
        resize = {"size": size, "mode": "bilinear", "align_corners": True, "antialias": True}
        agree(lambda x, resize=resize: F.interpolate(x, **resize), torch.randn(1, 2, 11, 9))


def test_linspace_of_integers() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        ends = ((-3, 50, 7), (0.9, 5.9, 50), (2, -4, 1), (0, 10, 0))
        return x, *(torch.linspace(*e, dtype=torch.int64) for e in ends), torch.linspace(0, 1, 5)

    agree(function, torch.ones(1))


@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (3, 7, 9), (2, 2, 6, 8, 7)])
def test_fractional_pools(shape: tuple[int, ...]) -> None:
    rank = 3 if len(shape) == 5 else 2
    pool = getattr(torch.ops.aten, f"fractional_max_pool{rank}d")
    x, samples = torch.randn(shape), torch.rand(shape[0] if len(shape) > 3 else 1, shape[-rank - 1], rank)
    agree(lambda x, s: pool(x, [2, 3, 2][:rank], [3, 4, 1][:rank], s), x, samples, tolerance=0.0)


def test_hashes() -> None:
    x = torch.cat((SPECIAL, torch.randn(7))).reshape(4, 5)
    agree(lambda x: (torch.hash_tensor(x), torch.hash_tensor(x, 0), torch.hash_tensor(x, (1,), keepdim=True)), x)
    agree(lambda x: (torch.hash_tensor(x), torch.hash_tensor(x > 3, 1)), torch.arange(12).reshape(3, 4))
