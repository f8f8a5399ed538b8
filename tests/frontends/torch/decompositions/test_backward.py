"""Training by torch.compile: forward and backward graphs, the compiler replaced by the interpreter where not told."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ingot
from ingot import ops
from ingot.integrations.torch_compile import ingot_backend
from ingot.support.errors import UnsupportedOpError
from tests.frontends.torch.agree import Spy, breaks, close, compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def gradients(f: Callable[..., Tensor], args: tuple[Any, ...]) -> list[Tensor | None]:
    inputs = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    result = f(*inputs)
    torch.manual_seed(1)
    result.backward(torch.randn(result.shape))
    return [a.grad for a in inputs]


def same_gradients(f: Callable[..., Tensor], *args: Tensor, tolerance: float = 1e-5) -> None:
    spy = Spy()
    compiled = compile_whole(f, backend=spy.backend)
    for got, want in zip(gradients(compiled, args), gradients(f, args), strict=True):
        close(got, want, tolerance)
    assert len(spy.models) == 2  # forward and backward


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": (3, 2), "padding": (0, 2), "dilation": (2, 1)},
        {"groups": 2, "stride": 2},
        {"groups": 4, "padding": 1, "dilation": 2},
    ],
    ids=str,
)
def test_convolutions(how: dict[str, Any]) -> None:
    x = torch.randn(3, 4, 11, 10)
    w = torch.randn(8, 4 // how.get("groups", 1), 3, 3)
    same_gradients(lambda x, w, b: F.conv2d(x, w, b, **how), x, w, torch.randn(8))


@pytest.mark.parametrize(
    ("shape", "training", "affine", "dtype", "weights"),
    [
        ((7, 3), True, True, torch.float32, torch.float32),
        ((4, 6, 9), False, True, torch.float32, torch.float32),
        ((4, 6, 5, 5), True, False, torch.float64, torch.float64),
        ((4, 6, 5, 5), False, False, torch.float32, torch.float32),
        ((2, 3, 4, 5, 6), True, True, torch.bfloat16, torch.float32),
        ((2, 3, 4, 5), True, True, torch.bfloat16, torch.bfloat16),
    ],
    ids=str,
)
def test_batch_norms(
    shape: tuple[int, ...], training: bool, affine: bool, dtype: torch.dtype, weights: torch.dtype
) -> None:
    channels, x = shape[1], torch.randn(shape).to(dtype)
    mean, variance = torch.randn(channels).to(weights), torch.rand(channels).to(weights) + 0.5
    parameters = [torch.rand(channels).to(weights) for _ in range(2 if affine else 0)]

    def f(x: Tensor, *parameters: Tensor) -> Tensor:
        weight, bias = parameters or (None, None)
        return F.batch_norm(x, mean.clone(), variance.clone(), weight, bias, training)

    same_gradients(f, x, *parameters, tolerance=1e-5 if dtype is not torch.bfloat16 else 2**-7)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"groups": 2, "stride": 3, "dilation": 2},
        {"dilation": 2, "output_padding": 1},
    ],
    ids=str,
)
def test_transposed_convolutions(how: dict[str, Any]) -> None:
    x, w = torch.randn(2, 4, 5, 6), torch.randn(4, 6 // how.get("groups", 1), 3, 2)
    same_gradients(lambda x, w, b: F.conv_transpose2d(x, w, b, **how), x, w, torch.randn(6))


def test_convolutions_of_lines_and_volumes() -> None:
    same_gradients(lambda x, w: F.conv1d(x, w, stride=2, padding=1), torch.randn(2, 3, 9), torch.randn(4, 3, 3))
    same_gradients(F.conv3d, torch.randn(2, 2, 4, 5, 3), torch.randn(3, 2, 2, 3, 1))


def test_pools() -> None:
    x = torch.randn(2, 3, 9, 8)
    same_gradients(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    same_gradients(lambda x: F.avg_pool2d(x, [3], [2], [1]), x)
    same_gradients(lambda x: F.max_pool2d(x, [3], [2], [1]), x)
    same_gradients(lambda x: F.avg_pool2d(x, (2, 3), ceil_mode=True, count_include_pad=False), x)
    same_gradients(lambda x: F.avg_pool2d(x, 3, 4, ceil_mode=True, padding=1, divisor_override=5), x)
    same_gradients(lambda x: F.avg_pool3d(x, 2, (1, 2, 3)), x)
    same_gradients(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    same_gradients(lambda x: F.max_pool2d(x, 3, 4, ceil_mode=True), x)
    same_gradients(lambda x: F.adaptive_avg_pool2d(x, (4, 3)), x)
    same_gradients(lambda x: F.adaptive_max_pool2d(x, (4, 3)), x)


@pytest.mark.parametrize(
    "pool", [partial(F.avg_pool2d, kernel_size=3, stride=2), partial(F.adaptive_avg_pool2d, output_size=3)]
)
def test_pools_of_means_keep_no_image(pool: Callable[[Tensor], Tensor]) -> None:
    spy = Spy()
    x = torch.randn(2, 3, 11, 9, requires_grad=True)
    compile_whole(lambda x: pool(x.sin()), backend=spy.backend)(x).sum().backward()
    _, backward = spy.models
    shapes = [n.shape for n in backward.graph.inputs]
    assert shapes.count((2, 3, 11, 9)) == 1  # of x, for the sine's


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_resizes(mode: str) -> None:
    x = torch.randn(2, 3, 6, 5)
    ways: tuple[dict[str, Any], ...] = ({"size": (9, 7)}, {"scale_factor": (0.5, 1.7)})
    for how in ways:
        same_gradients(lambda x, how=how: F.interpolate(x, mode=mode, **how), x)
    if mode == "bilinear":
        same_gradients(lambda x: F.interpolate(x, (4, 9), mode=mode, align_corners=True), x)
    if mode in ("bilinear", "bicubic"):
        same_gradients(lambda x: F.interpolate(x, (4, 3), mode=mode, antialias=True), x)
        same_gradients(lambda x: F.interpolate(x, scale_factor=(0.7, 0.5), mode=mode, antialias=True), x)


def test_attention() -> None:
    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    same_gradients(F.scaled_dot_product_attention, q, k, v)
    same_gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), q, k, v)
    same_gradients(lambda q, k, v: F.scaled_dot_product_attention(q, q + k, v, is_causal=True), k, q[..., :1, :], v)
    mask = torch.rand(5, 7) > 0.3
    mask[:, 0] = True
    same_gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), q, k, v)
    same_gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask.float()), q, k, v)


def test_attention_backwards_is_one_op_that_keeps_no_scores() -> None:
    spy = Spy()
    args = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)

    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    results = gradients(compile_whole(attended, backend=spy.backend), args)
    for got, want in zip(results, gradients(attended, args), strict=True):
        close(got, want, 1e-5)
    forward, backward = spy.models
    assert [type(n.op) for n in backward.graph.nodes() if n.op.name.startswith("attention")] == [ops.AttentionGradients]
    # the result alone: q, k and v are the caller's, and sums of exponentials are not kept
    assert len(forward.graph.outputs) == 1

    def slope(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.func.grad(lambda q: attended(q, k, v).square().sum())(q)

    close(compile_whole(slope, backend=Spy().backend)(*args), slope(*args), 1e-5)


@pytest.mark.parametrize(("window", "padding"), [(3, 1), ((3, 2), (0, 2)), (1, 0)])
def test_kernels_of_convolutions_are_one_op_or_a_product(window: Any, padding: Any) -> None:
    spy, net = Spy(), nn.Conv2d(3, 5, window, padding=padding)
    x = torch.randn(2, 3, 7, 6, requires_grad=True)
    compiled = compile_whole(net, backend=spy.backend)
    results = torch.autograd.grad(compiled(x).square().sum(), [x, *net.parameters()])
    for got, want in zip(results, torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()]), strict=True):
        close(got, want, 1e-5)
    names = [n.op.name for n in spy.models[1].graph.nodes()]
    assert names.count("kernel_gradient") == (window != 1)


@pytest.mark.parametrize("kernel", [(3, 2), (2, 4), (1, 1), (6, 6)], ids=str)
def test_maxima_of_small_windows_are_no_scatter(kernel: tuple[int, int]) -> None:
    x = torch.randint(0, 3, (2, 3, 12, 13)).float()
    x[0, 0, 2:4, 2:4], x[0, 1, 1, 1], x[1, 0], x[1, 1, 4:, :6] = torch.nan, torch.nan, -torch.inf, torch.inf
    middle = tuple(k // 2 for k in kernel)
    for how in ({}, {"stride": (1, 2), "padding": middle}, {"stride": (3, 1), "dilation": 2, "ceil_mode": True}):
        spy, pool = Spy(), partial(F.max_pool2d, kernel_size=kernel, **how)
        result, want = gradients(compile_whole(pool, backend=spy.backend), (x,)), gradients(pool, (x,))
        torch.testing.assert_close(result, want, equal_nan=True)
        # large windows that meet have no form of their own
        scattered = kernel == (6, 6) and bool(how)
        assert any("scatter" in n.op.name for n in spy.models[1].graph.nodes()) == scattered


def _norm_of_groups(x: Tensor) -> Tensor:
    weight, bias = torch.linspace(0.5, 1.5, 12, dtype=x.dtype).view(2, 6)
    return F.group_norm(x, 3, weight, bias)


@pytest.mark.parametrize("shape", [(0, 6, 2), (2, 6, 0)])
def test_groups_of_nothing(shape: tuple[int, ...]) -> None:
    compiled = compile_whole(_norm_of_groups, backend="ingot", dynamic=True)
    for dims in (shape, (3, 6, 2)):
        x = torch.randn(dims)
        close(gradients(compiled, (x,)), gradients(_norm_of_groups, (x,)))


IMAGE_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "reflect": partial(F.pad, pad=(2, 1, 0, 3), mode="reflect"),
    "replicate": partial(F.pad, pad=(3, 0, 1, 12), mode="replicate"),
    "cropped": partial(F.pad, pad=(-2, 1, 3, -1), mode="replicate"),
    "nearest": partial(F.interpolate, scale_factor=2),
    "exact": partial(F.interpolate, size=(9, 4), mode="nearest-exact"),
    "bilinear": partial(F.interpolate, scale_factor=(2.0, 1.7), mode="bilinear"),
    "corners": partial(F.interpolate, size=(5, 13), mode="bilinear", align_corners=True),
    "bicubic": partial(F.interpolate, scale_factor=0.6, mode="bicubic"),
    "antialias": partial(F.interpolate, size=(3, 4), mode="bilinear", antialias=True),
    "much larger": partial(F.interpolate, size=(70, 9), mode="bilinear"),
    "means": partial(F.adaptive_avg_pool2d, output_size=(4, 3)),
    "more means": partial(F.adaptive_avg_pool2d, output_size=(11, 9)),
    "maxima": partial(F.adaptive_max_pool2d, output_size=(4, 2)),
    "uneven maxima": partial(F.adaptive_max_pool2d, output_size=(3, 4)),
    "groups": _norm_of_groups,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", IMAGE_OPS)
def test_images_are_no_scatter_and_keep_their_format(name: str) -> None:
    """Forward and backward, by the compiler itself, in each memory format and type."""
    op, scatters = IMAGE_OPS[name], list[str]()

    def compile_model(model: Any, **how: Any) -> Any:
        scatters.extend(n.op.name for n in model.graph.nodes() if "scatter" in n.op.name)
        return ingot.compile(model, threads=1, **how)

    compiled = compile_whole(op, backend=partial(ingot_backend, compile_model=compile_model))
    cases = [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 2**-6)]
    cases = cases[:2] if name == "antialias" else cases  # eager PyTorch has no bfloat16 there
    for (dtype, tolerance), memory_format in product(cases, (torch.contiguous_format, torch.channels_last)):
        x = torch.randn(2, 6, 8, 10, dtype=dtype).to(memory_format=memory_format)
        sides = [x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2)]
        y, want = (f(v) for f, v in zip((compiled, op), sides, strict=True))
        cotangent = torch.randn_like(want)
        y.backward(cotangent)
        want.backward(cotangent)
        close(y, want, tolerance)
        close(sides[0].grad, sides[1].grad, tolerance)
        assert y.stride() == want.stride()
    assert not scatters


OPEN_RESIZES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    **{name: (IMAGE_OPS[name], (6, 8, 10)) for name in ("nearest", "exact", "corners", "bicubic", "antialias")},
    "lines": (partial(F.interpolate, size=7, mode="linear"), (3, 12)),
    "volumes": (partial(F.interpolate, scale_factor=(2, 1.5, 1), mode="trilinear"), (2, 3, 4, 5)),
    "near volumes": (partial(F.interpolate, scale_factor=2), (2, 3, 2, 3)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPEN_RESIZES)
def test_resizes_of_open_batches(name: str) -> None:
    """As those of known batches: no products with dense matrices, and eager's values and strides."""
    op, shape = OPEN_RESIZES[name]
    products, models = list[str](), list[Any]()

    def compile_model(model: Any, **how: Any) -> Any:
        products.extend(n.op.name for n in model.graph.nodes() if n.op.name in ("matmul", "dot_general"))
        models.append(model)
        return ingot.compile(model, threads=1, **how)

    compiled = compile_whole(op, backend=partial(ingot_backend, compile_model=compile_model))
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for count in (2, 5, 1):
        x = torch.randn(count, *shape).to(memory_format=formats.get(1 + len(shape), torch.contiguous_format))
        sides = [x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2)]
        if count == 2:
            torch._dynamo.mark_dynamic(sides[0], 0)
        y, want = (f(v) for f, v in zip((compiled, op), sides, strict=True))
        cotangent = torch.randn_like(want)
        y.backward(cotangent)
        want.backward(cotangent)
        close(y.detach(), want.detach())
        close(sides[0].grad, sides[1].grad)
        gradients_of_sides = [v.grad for v in sides if v.grad is not None]
        assert y.stride() == want.stride() and len({v.stride() for v in gradients_of_sides}) == 1
    assert not products and len(models) <= 4  # of open batches, and of one image


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["reflect", "replicate", "bilinear", "means", "maxima", "groups"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_images_of_open_sizes(name: str, dynamic: bool | None) -> None:
    """Sizes that change from the second call on: batches alone, or all of them."""
    op = IMAGE_OPS[name]
    compiled = compile_whole(op, dynamic=dynamic)
    shapes = ((2, 6, 8, 10), (3, 6, 12, 6), (1, 6, 9, 7)) if dynamic else ((2, 6, 8, 10), (3, 6, 8, 10), (5, 6, 8, 10))
    for shape in shapes:
        x = torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_()
        result, want = (torch.autograd.grad(f(x).square().sum(), x) for f in (compiled, op))
        close(result, want, 1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("window", "how"), [(7, {"padding": 3}), (1, {}), (3, {"groups": 4}), (3, {"dilation": 2})])
def test_strided_convolutions_of_any_size(window: int, how: dict[str, Any]) -> None:
    """By the compiler itself: what a stride leaves over at an image's end is known at run time alone."""
    net = nn.Conv2d(4, 4, window, 2, **how)
    compiled = compile_whole(net, dynamic=True)
    for shape in ((2, 4, 17, 20), (3, 4, 24, 19)):
        x = torch.randn(shape, requires_grad=True)
        result, want = (torch.autograd.grad(f(x).square().sum(), [x, *net.parameters()]) for f in (compiled, net))
        close(result, want, 1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    torch.manual_seed(0)
    table, places = torch.randn(9, 4), torch.randint(0, 9, (13,))
    places[3:7] = torch.tensor([3, 3, 5, 5])  # padding alone, where 3 and 5 are; equals, where a maximum is
    offsets = torch.tensor([0, 3, 3, 5, 7, 13])  # empty in the middle and at the end
    for padding, last in ((None, False), (3, False), (-4, False), (None, True)):
        bag = partial(F.embedding_bag, offsets=offsets, mode=mode, padding_idx=padding, include_last_offset=last)
        same_gradients(lambda t, bag=bag: bag(places, t), table)
    same_gradients(lambda t: F.embedding_bag(places[:12].view(4, 3), t, mode=mode), table)
    if mode == "sum":
        weights = torch.randn(13)
        for padding in (None, 5):
            bag = partial(F.embedding_bag, offsets=offsets, mode="sum", padding_idx=padding)
            same_gradients(lambda t, w, bag=bag: bag(places, t, per_sample_weights=w), table, weights)
    if mode != "max":

        def scaled(t: Tensor) -> Tensor:
            return F.embedding_bag(places, t, offsets, mode=mode, scale_grad_by_freq=True)

        # eager divides by how often another index comes: gradients by hand
        (got,) = gradients(compile_whole(scaled, backend=Spy().backend), (table,))
        (gradient,) = gradients(lambda t: F.embedding_bag(places, t, offsets, mode=mode), (table,))
        assert gradient is not None
        close(got, gradient / places.bincount(minlength=9).clamp(min=1)[:, None], 1e-5)


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="embedding_bag_backward"):
        gradients(
            compile_whole(lambda t: F.embedding_bag(torch.tensor([[1, 0]]), t, sparse=True), backend=Spy().backend),
            (torch.randn(3, 2),),
        )


def test_edges_and_thresholds() -> None:
    x = torch.randn(2, 3, 5, 6)
    same_gradients(lambda x: F.pad(x, (2, 1, 3, 0), mode="replicate"), x)
    same_gradients(F.hardshrink, x)
    same_gradients(F.logsigmoid, x)
    same_gradients(F.softshrink, x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_of_grids(mode: str, padding: str) -> None:
    how = {"mode": mode, "padding_mode": padding}
    x, grid = torch.randn(2, 3, 5, 4), torch.rand(2, 6, 7, 2) * 2.6 - 1.3
    same_gradients(lambda x, g: F.grid_sample(x, g, align_corners=False, **how), x, grid)
    if mode != "bicubic":
        x, grid = torch.randn(1, 2, 3, 4, 1), torch.rand(1, 3, 2, 2, 3) * 2.6 - 1.3
        same_gradients(lambda x, g: F.grid_sample(x, g, align_corners=True, **how), x, grid)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances(p: float) -> None:
    x = torch.randn(5, 3)
    same_gradients(lambda x: torch.pdist(x, p), x)
    # two rows that are the same
    same_gradients(lambda a, b: torch.cdist(a, b, p), torch.randn(2, 1, 4, 3), torch.cat([x, x[:1]]))


def test_what_masks_and_samples_choose() -> None:
    mask, x = torch.rand(4, 5) > 0.4, torch.randn(4, 5)
    same_gradients(lambda x, source: x.masked_scatter(mask, source), x, torch.randn(30))
    same_gradients(lambda x, v: x.index_fill(0, torch.tensor([0, 2]), v), x, torch.randn(()))
    same_gradients(lambda x: torch.einsum("...ii->...i", x) * 2, torch.randn(3, 4, 4))
    samples = torch.rand(2, 3, 2)
    same_gradients(
        lambda x: F.fractional_max_pool2d(x, 2, output_size=(3, 3), _random_samples=samples), torch.randn(2, 3, 7, 8)
    )
    same_gradients(lambda x: F.rrelu(x, 0.1, 0.3), x)


@pytest.mark.parametrize("kind", ["sum", "mean", "prod", "max", "min"])
def test_segments(kind: str) -> None:
    x = torch.randn(7, 3)
    x[1, 1] = x[4, 0] = x[5, 0] = 0
    lengths = torch.tensor([2, 0, 1, 4])
    same_gradients(lambda x: torch.segment_reduce(x, kind, lengths=lengths, unsafe=True, initial=1.0), x)


def test_factors_of_matrices_that_lie_by_rows_and_by_columns() -> None:
    x = torch.randn(3, 4, 4)
    same_gradients(torch.linalg.det, x)
    same_gradients(lambda x: torch.linalg.slogdet(x)[1], x)
    same_gradients(lambda x: torch.linalg.slogdet(x.mT)[1], x)
    same_gradients(lambda x: torch.linalg.qr(x)[0], torch.randn(2, 5, 3))


@pytest.mark.parametrize("biases", [(), (20, 20)], ids=str)
def test_a_recurrent_layer(biases: tuple[int, ...]) -> None:
    x, states = torch.randn(6, 2, 3), (torch.randn(1, 2, 5), torch.randn(1, 2, 5))

    def layer(*params: Tensor) -> Tensor:
        return torch.lstm(x, states, params, bool(biases), 1, 0.0, False, False, False)[0]

    with torch._dynamo.config.patch(allow_rnn=True):
        same_gradients(layer, torch.randn(20, 3), torch.randn(20, 5), *map(torch.randn, biases))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 6, 3, padding=1), nn.BatchNorm1d(6)
        self.heads = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)
        self.rnn = nn.LSTM(6, 5, 1, bidirectional=True, batch_first=True)
        self.end = nn.utils.parametrizations.weight_norm(nn.Linear(10, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.heads(self.norm(self.conv(x)).transpose(1, 2))
        return self.end(self.rnn(y)[0][:, -1])


def train(net: nn.Module, forward: Callable[[Tensor], Tensor], steps: int) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(2)
    x, y = torch.randn(4, 3, 7), torch.randint(0, 2, (4,))
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_are_those_of_eager() -> None:
    net = Layers()
    reference = deepcopy(net)
    spy = Spy()
    with torch._dynamo.config.patch(allow_rnn=True):
        got = train(net, compile_whole(net, backend=spy.backend), 5)
    assert got == pytest.approx(train(reference, reference, 5), rel=1e-5)
    close(dict(net.state_dict()), dict(reference.state_dict()), 1e-4)
    # one graph forward, one backward, whatever the weights are
    assert len(spy.models) == 2


# what is written around a step breaks the graph in front of it and behind it
BREAKS_OF_STEPS = {"Call to `torch._dynamo.graph_break()`"}


def compiled_step(optimizer: torch.optim.Optimizer, spy: Spy) -> Callable[[], Any]:
    return torch.compile(optimizer.step, backend=spy.backend, fullgraph=False)


def test_compiled_step_and_optimizer() -> None:
    """By the compiler itself: two steps of a small network, and the optimizer's step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    reference = deepcopy(net)
    compiled, spy = compile_whole(net), Spy(ingot.compile)
    x, y = torch.randn(6, 5), torch.randint(0, 3, (6,))
    for which, forward in ((net, compiled), (reference, reference)):
        optimizer = torch.optim.SGD(which.parameters(), 0.1, momentum=0.9)
        step = compiled_step(optimizer, spy) if which is net else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(forward(x), y).backward()
            step()
    close(dict(net.state_dict()), dict(reference.state_dict()))
    # the first step has no momentum yet
    assert len(spy.models) == 2 and breaks() == BREAKS_OF_STEPS


OPTIMIZERS = (
    "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "Adafactor", "Muon", "RMSprop", "Rprop", "ASGD",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "foreach"), [(n, f) for n in OPTIMIZERS for f in (False, True) if n != "Muon" or not f]
)
def test_compiled_optimizers(name: str, foreach: bool) -> None:
    """Dynamo writes what they add and interpolate as fused products and sums."""
    torch.manual_seed(0)
    net, spy = nn.Linear(5, 3, bias=name != "Muon"), Spy()
    reference = deepcopy(net)
    x = torch.randn(6, 5)
    for which in (net, reference):
        optimizer = getattr(torch.optim, name)(which.parameters(), **({"foreach": True} if foreach else {}))
        step = compiled_step(optimizer, spy) if which is net else optimizer.step
        # Adafactor asks a tensor for the number of the step, for which dynamo else leaves all of it to eager PyTorch
        with torch._dynamo.config.patch(capture_scalar_outputs=name == "Adafactor"):
            for _ in range(3):
                optimizer.zero_grad()
                which(x).square().mean().backward()
                step()
    close(dict(net.state_dict()), dict(reference.state_dict()), 1e-6)
    assert len(spy.models) == 1 and breaks() <= BREAKS_OF_STEPS


def test_gradient_checkpointing_and_autocast() -> None:
    body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def checkpointed(x: Tensor) -> Tensor:
        return checkpoint(body, x, use_reentrant=False)

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return body(x)

    x = torch.randn(3, 4)
    same_gradients(checkpointed, x)
    same_gradients(cast, x, tolerance=1e-2)


def test_draws_within_a_checkpoint_are_kept() -> None:
    drop = nn.Dropout(0.5)

    def twice(x: Tensor) -> Tensor:
        return checkpoint(lambda v: drop(v.exp()) * torch.bernoulli(torch.full_like(v, 0.5)), x, use_reentrant=False)

    x = torch.ones(20, 20, requires_grad=True)
    y = torch.compile(twice, backend="ingot", fullgraph=True)(x)
    y.sum().backward()
    assert 0.6 < (y == 0).float().mean() < 0.9
    assert x.grad is not None and torch.equal(x.grad != 0, y != 0)


def test_products_of_groups() -> None:
    """The experts of a mixture, one of which has no row."""
    x, w = torch.randn(20, 8), torch.randn(4, 8, 16)
    ends = torch.tensor([3, 3, 11, 20], dtype=torch.int32)
    same_gradients(lambda x, w: F.grouped_mm(x, w, offs=ends), x.bfloat16(), w.bfloat16(), tolerance=1e-2)


def test_functional_gradients() -> None:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        return (x @ w).tanh().square().mean()

    w, x = torch.randn(4, 3), torch.randn(6, 4)
    value_and_gradient = torch.func.grad_and_value(loss)
    close(compile_whole(value_and_gradient, backend=Spy().backend)(w, x), value_and_gradient(w, x))
    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))
    close(compile_whole(per_sample, backend=Spy().backend)(w, x[:, None]), per_sample(w, x[:, None]))
    forward = compile_whole(lambda x: torch.func.jvp(torch.sin, (x,), (x,)), backend=Spy().backend)
    close(forward(x), torch.func.jvp(torch.sin, (x,), (x,)))
    # forward over reverse, whose tangents are views written in place
    curved = torch.func.hessian(lambda w: (x @ w).tanh().sum())
    close(compile_whole(curved, backend=Spy().backend)(w[:, 0]), curved(w[:, 0]))


def test_forward_keeps_what_backward_needs_once() -> None:
    """Of two inverted residuals: convolutions' results and what the next layer reads, neither views nor masks."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU6(inplace=True), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8),
        nn.Hardtanh(-1, 2), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4),
    )  # fmt: skip
    spy, x = Spy(), torch.randn(2, 3, 9, 7) * 4
    args = [x.requires_grad_(), *net.parameters()]
    results = torch.autograd.grad(compile_whole(net, backend=spy.backend)(x).square().sum(), args)
    for got, want in zip(results, torch.autograd.grad(net(x).square().sum(), args), strict=True):
        close(got, want, 1e-4)
    images = [r.type for r in spy.models[0].graph.results if r.type.rank == 4]
    # three convolutions, two clamps, the result; masks would be of booleans
    assert len(images) == 6, images
    assert all(v.dtype.is_float for v in images)
