"""Convolutions, normalizations and pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled, index_along
from ingot.frontends.torch.aten.elementwise import compare, select
from ingot.frontends.torch.aten.layers import symbolic
from ingot.frontends.torch.aten.reduce import arg_extreme, norm, reduced, variance
from ingot.frontends.torch.aten.shape import insert_axis, reshape, transpose
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    axis_of,
    cast,
    expand,
    node_of,
    scalar_like,
    sizes_per_axis,
    sums_of,
    wide,
)
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node, Op, const

aten = Table()

Ints = int | Sequence[int]
Pairs = tuple[tuple[int, int], ...]
Sizes = tuple[DimLike, ...]


def per_axis(values: DimLike | Sequence[DimLike], count: int) -> tuple[int, ...]:
    """As `sizes_per_axis`, of numbers alone."""
    sizes = sizes_per_axis(values, count)
    numbers = tuple(v for v in sizes if isinstance(v, int))
    if len(numbers) < len(sizes):
        raise Unsupported(f"a stride, padding, dilation or window of symbolic size {sizes}")
    return numbers


def both_sides(padding: DimLike | Sequence[DimLike], count: int) -> Pairs:
    return tuple((p, p) for p in per_axis(padding, count))


def add_channels(x: Node, bias: Node | None) -> Node:
    """x (N, C, *S) plus bias (C), in x's dtype."""
    if bias is None:
        return x
    return ops.Add()(x, ops.BroadcastInDim(x.shape, (1,))(cast(bias, x.dtype)))


def batched(x: Node, spatial: int, run: Callable[[Node], Node]) -> Node:
    """`run` on x (N, C, *S); an unbatched x (C, *S) becomes a batch of one and back."""
    if x.type.rank == spatial + 2:
        return run(x)
    out = run(insert_axis(x, 0))
    return reshape(out, out.shape[1:])


def _convolve(
    x: Node, weight: Node, bias: Node | None, stride: Ints, padding: Sequence[Sizes], dilation: Ints, groups: int
) -> Node:
    n = weight.type.rank - 2
    sums = None if bias is None else sums_of(x.dtype)
    windows = (sizes_per_axis(stride, n), padding, sizes_per_axis(dilation, n))

    def products(x: Node, w: Node, strides: tuple[int, ...], padding: Pairs, dilation: tuple[int, ...]) -> Node:
        return ops.Conv(strides, padding, dilation, groups, sums)(x, w)

    return batched(x, n, lambda v: cast(add_channels(symbolic.convolved(v, weight, *windows, products), bias), v.dtype))


@aten("conv1d.default", "conv2d.default", "conv3d.default")
def conv(
    c: Context,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Node:
    around = [(p, p) for p in sizes_per_axis(padding, weight.type.rank - 2)]
    return _convolve(x, weight, bias, stride, around, dilation, groups)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_named(
    c: Context,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: str = "valid",
    dilation: Ints = 1,
    groups: int = 1,
) -> Node:
    n = weight.type.rank - 2
    if padding == "valid":
        return _convolve(x, weight, bias, stride, both_sides(0, n), dilation, groups)
    # the odd cell goes to the high side, as PyTorch does
    totals = [d * (k - 1) for d, k in zip(sizes_per_axis(dilation, n), weight.shape[2:], strict=True)]
    return _convolve(x, weight, bias, stride, [(t // 2, t - t // 2) for t in totals], dilation, groups)


def _transposed(
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> Node:
    n = weight.type.rank - 2
    sums = None if bias is None else sums_of(x.dtype)
    around, more = sizes_per_axis(padding, n), sizes_per_axis(output_padding, n)
    cut = [symbolic.symbolic(p, q) for p, q in zip(around, more, strict=True)]
    # what is a size is cut off behind the op
    low, high = ([0 if c else v for v, c in zip(values, cut, strict=True)] for values in (around, more))
    op = ops.ConvTranspose(
        per_axis(stride, n), both_sides(low, n), per_axis(high, n), per_axis(dilation, n), groups, sums
    )

    def run(v: Node) -> Node:
        out = op(v, weight)
        for axis, (p, q, c) in enumerate(zip(around, more, cut, strict=True), 2):
            out = symbolic.padded(out, axis, -p, q - p) if c else out
        return cast(add_channels(out, bias), v.dtype)

    return batched(x, n, run)


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    c: Context,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Node:
    return _transposed(x, weight, bias, stride, padding, output_padding, groups, dilation)


@aten("convolution.default", "_convolution.default")
def convolution(
    c: Context,
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    *flags: bool,
) -> Node:
    if transposed:
        return _transposed(x, weight, bias, stride, padding, output_padding, groups, dilation)
    around = [(p, p) for p in sizes_per_axis(padding, weight.type.rank - 2)]
    return _convolve(x, weight, bias, stride, around, dilation, groups)


def _channels(x: Node, value: Node | None, default: float) -> Node:
    """A per-channel parameter, or the constant that stands for a missing one."""
    return filled((x.shape[1],), default, x.dtype) if value is None else value


def _batch_stats(x: Node, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """Batch normalization by the batch's own statistics."""
    return _with_moments(x, weight, bias, eps)[0]


def _with_moments(x: Node, weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node]:
    """The same, and the batch's mean and variance."""
    axes = tuple(i for i in range(x.type.rank) if i != 1)
    out, mean, variance = ops.Standardize(axes, float(eps))(x).results
    if weight is not None:
        out = ops.Mul()(out, ops.BroadcastInDim(out.shape, (1,))(cast(weight, x.dtype)))
    return add_channels(out, bias), mean, variance


def batch_norm_of(
    x: Node, weight: Node | None, bias: Node | None, mean: Node | None, var: Node | None, eps: float
) -> Node:
    if mean is None or var is None:
        return _batch_stats(x, weight, bias, eps)
    if x.type.size == 0:  # of any rank
        return x
    return ops.BatchNorm(float(eps))(x, _channels(x, weight, 1), _channels(x, bias, 0), mean, var)


@aten("batch_norm.default")
def batch_norm(
    c: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Node:
    if training and running_mean is not None:
        raise Unsupported("batch_norm in training mode")
    return batch_norm_of(x, weight, bias, running_mean, running_var, eps)


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    c: Context, x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, momentum: float, eps: float
) -> tuple[Node | None, ...]:
    # the statistics that training would save are empty, or 0
    kept = (filled(t.shape, 0, t.dtype) for t in c.results[1:])
    return batch_norm_of(x, weight, bias, mean, var, eps), *kept


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_without_stats(
    c: Context, x: Node, weight: Node | None, bias: Node | None, training: bool, momentum: float, eps: float
) -> tuple[Node | None, ...]:
    axes = tuple(i for i in range(x.type.rank) if i != 1)
    return _batch_stats(x, weight, bias, eps), *_statistics(c, x, axes, eps)


@aten("_native_batch_norm_legit_functional.default")
def batch_norm_and_next_statistics(
    c: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node,
    running_var: Node,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Node | None, ...]:
    if not training:
        kept = (filled(t.shape, 0, t.dtype) for t in c.results[1:3])
        return batch_norm_of(x, weight, bias, running_mean, running_var, eps), *kept, running_mean, running_var
    out, mean, variance = _with_moments(x, weight, bias, eps)
    scale = ops.Rsqrt()(ops.add(variance, eps))
    count = product(d for i, d in enumerate(x.shape) if i != 1)
    # of a single value the unbiased variance is NaN, as PyTorch's 0 / 0 is
    unbiased = ops.mul(variance, ops.div(node_of(count, variance.dtype), node_of(count - 1, variance.dtype)))
    after = (
        ops.add(ops.mul(cast(now, old.dtype), momentum), ops.mul(old, 1 - momentum))
        for old, now in ((running_mean, mean), (running_var, unbiased))
    )
    return out, cast(mean, x.dtype), cast(scale, x.dtype), *after


def _affine(weight: Node | None, bias: Node | None, like: Sequence[DimLike], x: Node) -> tuple[Node, ...]:
    """The optional scale and bias as trailing operands; a bias alone needs a scale of ones before it."""
    if bias is None:
        return () if weight is None else (weight,)
    return (filled(like, 1, x.dtype) if weight is None else weight, bias)


@aten("layer_norm.default")
def layer_norm(
    c: Context,
    x: Node,
    normalized_shape: Sequence[DimLike],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Node:
    rank = x.type.rank
    axes = tuple(range(rank - len(normalized_shape), rank))
    return ops.LayerNorm(axes, float(eps))(x, *_affine(weight, bias, normalized_shape, x))


@aten("native_layer_norm.default")
def native_layer_norm(
    c: Context, x: Node, normalized_shape: Sequence[DimLike], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node | None, ...]:
    axes = tuple(range(x.type.rank - len(normalized_shape), x.type.rank))
    return layer_norm(c, x, normalized_shape, weight, bias, eps), *_statistics(c, x, axes, eps)


def _statistics(c: Context, x: Node, axes: Sequence[int], eps: float) -> tuple[Node, ...]:
    """(mean, 1 / deviation) over `axes`, as a norm's second and third result."""
    spread, center = variance(cast(x, wide(x.dtype)), axes, 0, True)
    scale = ops.Rsqrt()(ops.Add()(spread, filled(spread.shape, eps, spread.dtype)))
    return tuple(cast(reshape(v, t.shape), t.dtype) for v, t in zip((center, scale), c.results[1:], strict=True))


@aten("rms_norm.default")
def rms_norm(
    c: Context, x: Node, normalized_shape: Sequence[DimLike], weight: Node | None = None, eps: float | None = None
) -> Node:
    rank = x.type.rank
    axes = tuple(range(rank - len(normalized_shape), rank))
    # by default that of the dtype computed in
    epsilon = {"f64": 2.0**-52, "f32": 2.0**-23}[wide(x.dtype).name] if eps is None else eps
    return ops.RMSNorm(axes, float(epsilon))(x, *_affine(weight, None, normalized_shape, x))


@aten("_fused_rms_norm.default")
def fused_rms_norm(
    c: Context, x: Node, normalized_shape: Sequence[DimLike], weight: Node | None, eps: float | None
) -> tuple[Node | None, ...]:
    return rms_norm(c, x, normalized_shape, weight, eps), None


@aten("group_norm.default")
def group_norm(
    c: Context,
    x: Node,
    num_groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Node:
    return ops.GroupNorm(num_groups, float(eps))(x, *_scale_and_bias(x, weight, bias))


def _scale_and_bias(x: Node, weight: Node | None, bias: Node | None) -> tuple[Node, ...]:
    if weight is None and bias is None:
        return ()
    return _channels(x, weight, 1), _channels(x, bias, 0)


@aten("native_group_norm.default")
def native_group_norm(
    c: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    n: DimLike,
    channels: DimLike,
    area: DimLike,
    group: int,
    eps: float,
) -> tuple[Node | None, ...]:
    grouped = reshape(x, (x.shape[0], group, product(x.shape[1:]) // group))
    return group_norm(c, x, group, weight, bias, eps), *_statistics(c, grouped, (2,), eps)


@aten("instance_norm.default")
def instance_norm(
    c: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Node:
    if not use_input_stats:
        return batch_norm_of(x, weight, bias, running_mean, running_var, eps)
    if running_mean is not None:
        raise Unsupported("instance_norm that updates its statistics")
    return ops.InstanceNorm(float(eps))(x, *_scale_and_bias(x, weight, bias))


@aten("_weight_norm.default")
def weight_norm(c: Context, v: Node, g: Node, dim: int = 0) -> Node:
    """g * v / |v|, the norm over all axes but `dim` (Salimans and Kingma 2016)."""
    return weight_norm_interface(c, v, g, dim)[0]


@aten("_weight_norm_interface.default")
def weight_norm_interface(c: Context, v: Node, g: Node, dim: int = 0) -> tuple[Node, Node]:
    """(as above, the norms)."""
    keep = axis_of(dim, v.type.rank)
    axes = [i for i in range(v.type.rank) if i != keep]
    length = norm(v, 2.0, axes, True)
    return ops.Mul()(v, expand(ops.Div()(expand(g, length.shape), length), v.shape)), length


def _window(kernel: Ints, stride: Ints | None, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(kernel, stride) per axis; no stride means the kernel's."""
    k = per_axis(kernel, n)
    return k, (per_axis(stride, n) if stride is not None and stride != () and stride != [] else k)


def _max_pool(n: int) -> Callable[..., Node]:
    def max_pool(
        c: Context,
        x: Node,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
    ) -> Node:
        k, s = _window(kernel_size, stride, n)
        op = ops.MaxPool(k, s, both_sides(padding, n), per_axis(dilation, n), ceil_mode)
        return batched(x, n, lambda v: op(v))

    return max_pool


def _max_pool_indices(n: int) -> Callable[..., tuple[Node, ...]]:
    def max_pool(
        c: Context,
        x: Node,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
    ) -> tuple[Node, ...]:
        k, s = _window(kernel_size, stride, n)
        op = ops.MaxPoolIndices(k, s, both_sides(padding, n), per_axis(dilation, n), ceil_mode)
        if x.type.rank == n + 2:
            return op(x).results
        return tuple(reshape(r, r.shape[1:]) for r in op(insert_axis(x, 0)).results)

    return max_pool


def _avg_pool(n: int) -> Callable[..., Node]:
    def avg_pool(
        c: Context,
        x: Node,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Node:
        k, s = _window(kernel_size, stride, n)
        op = ops.AvgPool(
            kernel=k,
            strides=s,
            padding=both_sides(padding, n),
            dilation=(1,) * n,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
            divisor=divisor_override,
        )
        return batched(x, n, lambda v: op(v))

    return avg_pool


def _adaptive(n: int, make: Callable[[Sizes], Op]) -> Callable[..., Node]:
    def adaptive(c: Context, x: Node, output_size: DimLike | Sequence[DimLike]) -> Node:
        op = make(sizes_per_axis(output_size, n))
        return batched(x, n, lambda v: op(v))

    return adaptive


for _n in (1, 2, 3):
    aten.add(f"max_pool{_n}d.default", _max_pool(_n))
    aten.add(f"max_pool{_n}d_with_indices.default", _max_pool_indices(_n))
    aten.add(f"avg_pool{_n}d.default", _avg_pool(_n))
    aten.add(f"adaptive_avg_pool{_n}d.default", _adaptive(_n, ops.AdaptiveAvgPool))
    if _n > 1:
        aten.add(f"_adaptive_avg_pool{_n}d.default", _adaptive(_n, ops.AdaptiveAvgPool))


def _adaptive_max(n: int) -> Callable[..., tuple[Node | None, ...]]:
    pool = _adaptive(n, ops.AdaptiveMaxPool)

    def adaptive(c: Context, x: Node, output_size: DimLike | Sequence[DimLike]) -> tuple[Node | None, ...]:
        # the importer refuses a read of a missing result
        sizes = [d for d in sizes_per_axis(output_size, n) if isinstance(d, int)]
        fixed = len(sizes) == n and all(isinstance(d, int) and d > 0 for d in x.shape[-n:])
        return pool(c, x, output_size), _places_of_largest(x, sizes) if fixed else None

    return adaptive


def _places_of_largest(x: Node, output_size: Sequence[int]) -> Node:
    """Where in the image the largest element of each adaptive window is; or, as in PyTorch, its last NaN."""
    n = len(output_size)
    lead, sizes = x.shape[:-n], [int(d) for d in x.shape[-n:]]
    windows, flat = x, np.zeros((1,) * (2 * n), np.int64)
    hidden = np.zeros((1,) * (2 * n), np.bool_)
    for i, (size, count) in enumerate(zip(sizes, output_size, strict=True)):
        begin = np.arange(count) * size // count
        end = -(-(np.arange(count) + 1) * size // count)
        at = begin[:, None] + np.arange(int((end - begin).max(initial=1)))
        shape = tuple(at.shape[(i, n + i).index(j)] if j in (i, n + i) else 1 for j in range(2 * n))
        hidden = hidden | (at >= end[:, None]).reshape(shape)
        at = np.minimum(at, size - 1)
        flat = flat * size + at.reshape(shape)
        windows = ops.Take(len(lead) + 2 * i)(windows, const(at))
    order = (*range(0, 2 * n, 2), *range(1, 2 * n, 2))
    windows = transpose(windows, (*range(len(lead)), *(len(lead) + i for i in order)))
    taps = product(windows.shape[len(lead) + n :])
    rows = reshape(windows, (*lead, *output_size, taps))
    axis = rows.type.rank - 1
    left_out = expand(const(np.broadcast_to(hidden, flat.shape).reshape(*output_size, -1)), rows.shape)
    tap = arg_extreme("max", select(left_out, scalar_like(ops.identity_of("max", x.dtype), x), rows), axis, True)
    if x.dtype.is_float:
        missing = ops.And()(ops.IsNan()(rows), ops.Not()(left_out))
        number = index_along(rows.shape, axis)
        last = reduced("max", select(missing, number, scalar_like(-1, number)), (axis,), True)
        tap = select(compare("GE", last, scalar_like(0, last)), last, tap)
    places = expand(const(np.ascontiguousarray(flat.reshape(*output_size, -1))), rows.shape)
    return reshape(ops.GatherElements(axis)(places, tap), (*lead, *output_size))


for _n in (1, 2, 3):
    aten.add(f"adaptive_max_pool{_n}d.default", _adaptive_max(_n))


@aten("local_response_norm.default")
def local_response_norm(
    c: Context, x: Node, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Node:
    return ops.LocalResponseNorm(size, float(alpha), float(beta), float(k))(x)
