"""MODEL ops against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from tests.ops.nn.check import check, close, run

torch = pytest.importorskip("torch")
F = torch.nn.functional

RNG = np.random.default_rng(0)
EDGES = np.asarray([0, -0.0, 0.5, -0.5, 1, -1, 3, -3, 7.5, -20.5, 25, -95, np.inf, -np.inf, np.nan], np.float32)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def tensors(*arrays: np.ndarray) -> list:
    return [torch.from_numpy(np.array(a)) for a in arrays]


@pytest.mark.parametrize(
    ("op", "function"),
    [
        (ops.Relu(), F.relu),
        (ops.Gelu(), F.gelu),
        (ops.Gelu("tanh"), lambda x: F.gelu(x, approximate="tanh")),
        (ops.Silu(), F.silu),
        (ops.HardSwish(), F.hardswish),
        (ops.HardSigmoid(), F.hardsigmoid),
        (ops.LeakyRelu(0.2), lambda x: F.leaky_relu(x, 0.2)),
        (ops.Elu(0.7), lambda x: F.elu(x, 0.7)),
        (ops.Selu(), F.selu),
        (ops.Celu(0.7), lambda x: F.celu(x, 0.7)),
        (ops.Softplus(), F.softplus),
        (ops.Softplus(2.0, 5.0), lambda x: F.softplus(x, 2.0, 5.0)),
        (ops.Softsign(), F.softsign),
        (ops.Mish(), F.mish),
        (ops.Softshrink(0.5), F.softshrink),
        (ops.Hardshrink(0.5), F.hardshrink),
    ],
    ids=lambda v: v.name if hasattr(v, "name") else "",
)
def test_activation(op: ops.Relu, function: Callable) -> None:
    for dtype in (np.float32, np.float16):
        x = EDGES.astype(dtype)
        if op == ops.Gelu() and dtype == np.float32:
            x = x[x != np.inf]  # PyTorch's f32 kernel gives NaN there, its f64 and f16 kernels inf
        check(op, x, want=function(*tensors(x)).numpy(), dynamic={0: {0: "n"}})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_family(axis: int) -> None:
    x = normal(3, 4, 5)
    x[0, :, 1], x[1, 2, 2], x[2, 0] = -np.inf, np.inf, -np.inf
    (tx,) = tensors(x)
    dynamic = {0: {axis: "s"}}
    check(ops.Softmax(axis), x, want=F.softmax(tx, axis).numpy(), dynamic=dynamic)
    check(ops.LogSoftmax(axis), x, want=F.log_softmax(tx, axis).numpy(), dynamic=dynamic)
    check(ops.LogSumExp((axis,)), x, want=torch.logsumexp(tx, axis).numpy(), dynamic=dynamic)


def test_norms() -> None:
    x, w, b = normal(2, 6, 5, 4) + 2, normal(6), normal(6)
    tx, tw, tb = tensors(x, w, b)
    spatial = {0: {0: "n", 2: "h", 3: "w"}}
    check(ops.GroupNorm(3, 1e-3), x, w, b, want=F.group_norm(tx, 3, tw, tb, 1e-3).numpy(), dynamic=spatial)
    check(
        ops.InstanceNorm(1e-3), x, w, b, want=F.instance_norm(tx, weight=tw, bias=tb, eps=1e-3).numpy(), dynamic=spatial
    )
    mean, var = normal(6), np.abs(normal(6))
    want = F.batch_norm(tx, *tensors(mean, var), tw, tb, eps=1e-3).numpy()
    check(ops.BatchNorm(1e-3), x, w, b, mean, var, want=want, dynamic=spatial)
    scale, bias = normal(5, 4), normal(5, 4)
    want = F.layer_norm(tx, (5, 4), *tensors(scale, bias), 1e-3).numpy()
    check(ops.LayerNorm((2, 3), 1e-3), x, scale, bias, want=want, dynamic={0: {0: "n", 1: "c"}})
    want = F.rms_norm(tx, (4,), *tensors(scale[0]), 1e-3).numpy()
    check(ops.RMSNorm((3,), 1e-3), x, scale[0], want=want, dynamic={0: {0: "n", 1: "c"}})
    check(ops.LocalResponseNorm(3, 0.1, 0.7, 2.0), x, want=F.local_response_norm(tx, 3, 0.1, 0.7, 2.0).numpy())


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 2), (3, 2, 2, 4)])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_conv(spatial: int, stride: int, padding: int, dilation: int, groups: int) -> None:
    x, w = normal(2, 4, *(9, 8, 7)[:spatial]), normal(8, 4 // groups, *(3, 2, 3)[:spatial])
    function = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    want = function(*tensors(x, w), None, stride, padding, dilation, groups).numpy()
    op = ops.Conv((stride,) * spatial, ((padding, padding),) * spatial, (dilation,) * spatial, groups)
    check(op, x, w, want=want, dynamic={0: {0: "n", 2: "h"}})

    v = normal(4, 3, *(3, 2, 3)[:spatial])
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]
    extra = max(stride, dilation) - 1
    want = function(*tensors(x, v), None, stride, padding, extra, groups, dilation).numpy()
    pads, extras = ((padding, padding),) * spatial, (extra,) * spatial
    transposed = ops.ConvTranspose((stride,) * spatial, pads, extras, (dilation,) * spatial, groups)
    check(transposed, x, v, want=want, dynamic={0: {0: "n", 2: "h"}})


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (4, 3, 2), (2, 3, 1), (1, 2, 0)]
)
def test_pool(kernel: int, stride: int, padding: int, ceil: bool) -> None:
    for shape in ((1, 2, 7, 8), (1, 1, 5, 12)):
        x = normal(*shape)
        (tx,) = tensors(x)
        k, s, p = (kernel,) * 2, (stride,) * 2, ((padding, padding),) * 2
        symbolic = {0: {2: "h", 3: "w"}}
        y, at = F.max_pool2d(tx, kernel, stride, padding, 1, ceil, return_indices=True)
        check(ops.MaxPool(k, s, p, (1, 1), ceil), x, want=y.numpy(), dynamic=symbolic)
        check(ops.MaxPoolIndices(k, s, p, (1, 1), ceil), x, want=(y.numpy(), at.numpy()), dynamic=symbolic)
        for include in (False, True):
            want = F.avg_pool2d(tx, kernel, stride, padding, ceil, include).numpy()
            check(ops.AvgPool(k, s, p, (1, 1), ceil, include), x, want=want, dynamic=symbolic)
        want = F.avg_pool2d(tx, kernel, stride, padding, ceil, True, divisor_override=3).numpy()
        check(ops.AvgPool(k, s, p, (1, 1), ceil, True, 3), x, want=want, dynamic=symbolic)


def test_max_pool_indices_prefer_the_last_nan_and_real_elements() -> None:
    x = np.full((1, 1, 6, 6), -np.inf, np.float32)
    x[0, 0, 2, 2:4], x[0, 0, 4, 1] = np.nan, np.nan
    for padding in (0, 1):
        y, at = F.max_pool2d(*tensors(x), 3, 1, padding, return_indices=True)
        op = ops.MaxPoolIndices((3, 3), (1, 1), ((padding, padding),) * 2, (1, 1))
        check(op, x, want=(y.numpy(), at.numpy()))


@pytest.mark.parametrize("output_size", [(1, 1), (3, 4), (7, 9), (5, 2), (10, 12), (1, 3)])
def test_adaptive_pool(output_size: tuple[int, int]) -> None:
    x = normal(2, 3, 7, 9)
    (tx,) = tensors(x)
    symbolic = {0: {0: "n", 2: "h", 3: "w"}}
    check(ops.AdaptiveAvgPool(output_size), x, want=F.adaptive_avg_pool2d(tx, output_size).numpy(), dynamic=symbolic)
    check(ops.AdaptiveMaxPool(output_size), x, want=F.adaptive_max_pool2d(tx, output_size).numpy(), dynamic=symbolic)


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3, 4, 5), (5, 6)), ((4,), (2, 4, 3)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (4,))]
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = normal(*a), normal(*b)
    check(ops.MatMul(), x, y, want=torch.matmul(*tensors(x, y)).numpy(), dynamic={0: {0: "s"}} if len(a) > 1 else None)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("...ij,...jk", ((2, 1, 3, 4), (5, 4, 2))),
        ("ii->i", ((4, 4),)),
        ("iij,jk->k", ((3, 3, 2), (2, 4))),
        ("Ab,bc", ((3, 4), (4, 5))),
        ("bn,anm,bm->ba", ((2, 3), (5, 3, 4), (2, 4))),
        ("ij,kj->ik", ((3, 1), (2, 4))),
        ("...a,...a->...", ((2, 3, 4), (1, 4))),
    ],
)
def test_einsum(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    inputs = tuple(normal(*s) for s in shapes)
    check(ops.Einsum(equation), *inputs, want=torch.einsum(equation, *tensors(*inputs)).numpy())


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal"])
def test_attention(mask: str, kv_heads: int) -> None:
    q, k, v = normal(2, 4, 5, 8), normal(2, kv_heads, 7, 8), normal(2, kv_heads, 7, 6)
    bias = {"bool": RNG.random((2, 1, 5, 7)) < 0.7, "float": normal(4, 5, 7)}.get(mask)
    if bias is not None and mask == "bool":
        bias[..., 0] = True
    extra = () if bias is None else (bias,)
    causal = "upper_left" if mask == "causal" else "none"
    want = F.scaled_dot_product_attention(
        *tensors(q, k, v),
        attn_mask=tensors(bias)[0] if bias is not None else None,
        is_causal=mask == "causal",
        enable_gqa=True,
    )
    dynamic = {0: {0: "b", 2: "s"}, 1: {0: "b", 2: "t"}, 2: {0: "b", 2: "t"}, 3: {}}
    if mask == "bool":
        dynamic[3] = {0: "b", 2: "s", 3: "t"}
    if mask == "float":
        dynamic[3] = {1: "s", 2: "t"}
    check(ops.Attention(causal, 8**-0.5), q, k, v, *extra, want=want.numpy(), dynamic=dynamic)


def test_attention_without_any_key_gives_zero() -> None:
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(1, 2, 3, 4)
    mask = np.asarray([[True, False, True], [False, False, False], [True, True, True]])
    got = run(ops.Attention(), q, k, v, mask)[0]
    assert (got[:, :, 1] == 0).all() and np.isfinite(got).all()


@pytest.mark.parametrize("size", [(7, 3), (10, 14), (1, 1), (4, 20), (15, 2)])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bilinear-align", "bicubic", "bicubic-align"])
def test_interpolate_by_size(mode: str, size: tuple[int, int]) -> None:
    x = normal(1, 2, 5, 7)
    name = mode.removesuffix("-align")
    aligned = mode.endswith("-align")
    extra = {} if name.startswith("nearest") else {"align_corners": aligned}
    want = F.interpolate(*tensors(x), size=size, mode=name, **extra).numpy()
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(name, "nearest")
    coordinates = "asymmetric" if name == "nearest" else "align_corners" if aligned else "half_pixel"
    rounding = "floor" if name == "nearest" else "round_prefer_ceil"
    op = ops.Resize(size, (2, 3), kind, coordinates, rounding)
    check(op, x, want=want, dynamic={0: {0: "n", 2: "h", 3: "w"}})


@pytest.mark.parametrize("scale", [(2.0, 3.0), (1.3, 0.7), (0.5, 0.4)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolate_by_scale(mode: str, scale: tuple[float, float]) -> None:
    x = normal(1, 2, 11, 10)
    want = F.interpolate(*tensors(x), scale_factor=scale, mode=mode).numpy()
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
    check(ops.Resize(want.shape[2:], (2, 3), kind, coordinates, "floor", scales=scale), x, want=want)


@pytest.mark.parametrize("size", [(3, 4), (7, 20), (2, 9)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolate_antialias(mode: str, size: tuple[int, int]) -> None:
    x = normal(1, 2, 9, 11)
    want = F.interpolate(*tensors(x), size=size, mode=mode, antialias=True).numpy()
    kind, a = ("linear", -0.75) if mode == "bilinear" else ("cubic", -0.5)
    op = ops.Resize(size, (2, 3), kind, cubic_a=a, exclude_outside=True, antialias=True)
    check(op, x, want=want, dynamic={0: {2: "h", 3: "w"}})


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pad(mode: str) -> None:
    x = normal(1, 2, 5, 6)
    want = F.pad(*tensors(x), (2, 3, 4, 1), mode=mode).numpy()
    kind = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    op = ops.PadMode((0, 0, 4, 2), (0, 0, 1, 3), kind)
    check(op, x, want=want, dynamic={0: {2: "h", 3: "w"}})


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    x, grid = normal(2, 3, 5, 4), normal(2, 3, 6, 2) * 1.3
    want = F.grid_sample(*tensors(x, grid), mode, padding, align).numpy()
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    dynamic = {0: {0: "n", 2: "h", 3: "w"}, 1: {0: "n", 1: "p"}}
    check(ops.GridSample(kind, padding, align), x, grid, want=want, dynamic=dynamic, scale=4)


def test_indexing() -> None:
    x, at = normal(4, 5, 6), RNG.integers(0, 4, (3, 5, 2))
    tx, ti = tensors(x, at)
    check(ops.GatherElements(0), x, at, want=torch.gather(tx, 0, ti).numpy())
    upd = normal(3, 5, 2)
    (tu,) = tensors(upd)
    for reduction, name in (("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")):
        want = tx.scatter_reduce(0, ti, tu, name).numpy()
        check(ops.ScatterElements(0, reduction), x, at, upd, want=want)
    words = RNG.integers(0, 4, (2, 3))
    check(
        ops.Take(0),
        x,
        words,
        want=F.embedding(tensors(words)[0], tx.reshape(4, 30)).reshape(2, 3, 5, 6).numpy(),
        dynamic={0: {0: "v"}, 1: {0: "b", 1: "s"}},
    )
    check(ops.Trilu(True, -1), x, want=torch.triu(tx, -1).numpy(), dynamic={0: {1: "r", 2: "c"}})
    check(ops.Trilu(False, 2), x, want=torch.tril(tx, 2).numpy(), dynamic={0: {1: "r", 2: "c"}})
    distinct = RNG.permutation(120).reshape(4, 5, 6).astype(np.float32)
    distinct[0, 1, 0] = np.nan
    for largest in (True, False):
        values, places = torch.topk(tensors(distinct)[0], 3, 1, largest)
        check(ops.TopK(3, 1, largest), distinct, want=(values.numpy(), places.numpy()), dynamic={0: {0: "b"}})


def _gates(weight: object, order: tuple[int, ...]) -> np.ndarray:
    """PyTorch's gate blocks in ONNX's order."""
    parts = np.split(np.asarray(weight.detach()), len(order))  # type: ignore[attr-defined]
    return np.concatenate([parts[i] for i in order])


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent(kind: str, both_ways: bool) -> None:
    torch.manual_seed(0)
    layer = getattr(torch.nn, kind)(3, 4, bidirectional=both_ways)
    order = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}[kind]
    w, r, b = [], [], []
    for suffix in ("", "_reverse")[: 1 + both_ways]:
        w.append(_gates(getattr(layer, f"weight_ih_l0{suffix}"), order))
        r.append(_gates(getattr(layer, f"weight_hh_l0{suffix}"), order))
        biases = [_gates(getattr(layer, f"bias_{v}_l0{suffix}"), order) for v in ("ih", "hh")]
        b.append(np.concatenate(biases))
    passes, x = 1 + both_ways, normal(6, 2, 3)
    states = [normal(passes, 2, 4) for _ in range(2 if kind == "LSTM" else 1)]
    arrays = tensors(*states)
    y, last = layer(*tensors(x), tuple(arrays) if kind == "LSTM" else arrays[0])
    want = y.detach().numpy().reshape(6, 2, passes, 4).transpose(0, 2, 1, 3)
    finals = tuple(v.detach().numpy() for v in (last if kind == "LSTM" else (last,)))
    direction = "bidirectional" if both_ways else "forward"
    options = {"linear_before_reset": True} if kind == "GRU" else {}
    op = getattr(ops, kind)(4, direction, **options)
    inputs = (x, np.stack(w), np.stack(r), np.stack(b), *states)
    dynamic = {0: {0: "s", 1: "b"}, 4: {1: "b"}, 5: {1: "b"}}
    check(op, *inputs, want=(want, *finals), dynamic=dynamic)


def test_recurrent_lengths_are_packed_sequences() -> None:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(3, 4, bidirectional=True)
    lengths = np.asarray([5, 3, 1])
    x = normal(5, 3, 3)
    packed = torch.nn.utils.rnn.pack_padded_sequence(*tensors(x), torch.from_numpy(lengths))
    y, (h, c) = layer(packed)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y)
    order = (0, 3, 1, 2)
    names = ("weight_ih_l0", "weight_hh_l0")
    w, r = (np.stack([_gates(getattr(layer, n + s), order) for s in ("", "_reverse")]) for n in names)
    b = np.stack(
        [
            np.concatenate([_gates(getattr(layer, f"bias_{v}_l0{s}"), order) for v in ("ih", "hh")])
            for s in ("", "_reverse")
        ]
    )
    zero = np.zeros((2, 3, 4), np.float32)
    got = run(ops.LSTM(4, "bidirectional", has_lengths=True), x, w, r, b, zero, zero, lengths)
    want = y.detach().numpy().reshape(5, 3, 2, 4).transpose(0, 2, 1, 3)
    for g, e in zip(got, (want, h.detach().numpy(), c.detach().numpy()), strict=True):
        close(g, e, e.dtype)
