"""Convolutions, pools and products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.rows.common import channel_vector, check_table, in_dtype, ints_of
from ingot.frontends.shared.composites import windows
from ingot.frontends.shared.composites.windows import Padding, Pairs, pad_first, same_total
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import Dim, DimLike, dim_max, product
from ingot.ir.node import Node, const
from ingot.ops import linalg


def padding_of(
    c: Call, sizes: Sequence[DimLike], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int], *,
    crops: bool = False,
) -> Padding:  # fmt: skip
    """(low, high) per spatial axis from `pads` or `auto_pad`; symbolic where SAME depends on a dynamic size.

    crops: SAME padding may be negative where windows leave gaps, as ONNX defines for pools.
    """
    auto = c.str("auto_pad", "NOTSET")
    n = len(kernel)
    if auto in ("NOTSET", ""):
        pads = c.int_list_of("pads", 2 * n, 0)
        if len(pads) != 2 * n:
            raise Unsupported(f"pads: expected {2 * n} amounts, got {len(pads)}")
        return tuple(zip(pads[:n], pads[n:], strict=True))
    if auto == "VALID":
        return ((0, 0),) * n
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"auto_pad {auto!r}")
    padding: list[tuple[DimLike, DimLike]] = []
    for size, k, s, d in zip(sizes, kernel, strides, dilation, strict=True):
        window = (k - 1) * d + 1
        total = same_total(size, k, s, d)
        if window < s:
            # strides larger than the window leave a remainder: a convolution's is at the end, a pool's on both sides
            remainder = dim_max(-total, 0) if crops else 0
            low_remainder, high_remainder = remainder // 2, remainder - remainder // 2
            total = dim_max(total, 0)
        else:
            low_remainder = high_remainder = 0
        small = total // 2
        low, high = (small, total - small) if auto == "SAME_UPPER" else (total - small, small)
        padding.append((low - low_remainder, high - high_remainder))
    return tuple(padding)


def static_padding(padding: Padding) -> Pairs:
    ints_of([p for pair in padding for p in pair], "padding")
    return tuple((int(lo), int(hi)) for lo, hi in padding)


def _require_room(
    c: Call, sizes: Sequence[DimLike], kernel: Sequence[int], padding: Padding, dilation: Sequence[int]
) -> None:
    """Require that a window fits into each dynamic size."""
    for size, k, (low, high), d in zip(sizes, kernel, padding, dilation, strict=True):
        room = size + low + high - (k - 1) * d - 1
        if isinstance(room, Dim):
            c.importer.require(room, f"a window of {(k - 1) * d + 1} on a size of {size}")


def convolution(c: Call, x: Node, w: Node) -> Node:
    """Conv's attributes applied to `x` and `w`, without bias."""
    kernel = ints_of(w.shape[2:], "the kernel")
    n = len(kernel)
    strides, dilation = c.int_list_of("strides", n, 1), c.int_list_of("dilations", n, 1)
    padding_amounts = padding_of(c, x.shape[2:], kernel, strides, dilation)
    _require_room(c, x.shape[2:], kernel, padding_amounts, dilation)
    x, padding = pad_first(x, padding_amounts, 0, 2)
    return ops.Conv(strides, padding, dilation, c.int("group", 1))(x, w)


@onnx_op("Conv")
def conv(c: Call) -> Result:
    x, b = c.x(0), c.opt(2)
    y = convolution(c, x, c.x(1))
    return y if b is None else ops.add(y, channel_vector(b, len(x.shape)))


@onnx_op("ConvTranspose")
def conv_transpose(c: Call) -> Result:
    x, w, b = c.x(0), c.x(1), c.opt(2)
    kernel = ints_of(w.shape[2:], "the kernel")
    n = len(kernel)
    strides, dilation = c.int_list_of("strides", n, 1), c.int_list_of("dilations", n, 1)
    extra = list(c.int_list_of("output_padding", n, 0))
    auto = c.str("auto_pad", "NOTSET")
    sizes = x.shape[2:]
    target: Sequence[DimLike] | None = c.int_list("output_shape")[-n:] if c.has_attr("output_shape") else None
    if target is None and auto.startswith("SAME"):
        target = [s * st for s, st in zip(sizes, strides, strict=True)]
    full = [
        st * (s - 1) + e + (k - 1) * d + 1
        for s, k, st, d, e in zip(sizes, kernel, strides, dilation, extra, strict=True)
    ]
    padding: list[tuple[DimLike, DimLike]] = []
    if target is None:
        padding += padding_of(c, sizes, kernel, strides, dilation)
        target = [size - low - high for size, (low, high) in zip(full, padding, strict=True)]
    else:
        for i, (size, target_size) in enumerate(zip(full, target, strict=True)):
            total = size - target_size
            if isinstance(total, int) and total < 0:
                extra[i] -= total
            total = dim_max(total, 0)
            half = total // 2
            padding.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
    for size in target:
        c.importer.require(size - 1, f"a transposed convolution to a size of {size}")
    fixed = tuple((low, high) for low, high in padding if isinstance(low, int) and isinstance(high, int))
    is_fixed = len(fixed) == n
    pairs = fixed if is_fixed else ((0, 0),) * n
    y = ops.ConvTranspose(strides, pairs, tuple(extra), dilation, c.int("group", 1))(x, w)
    if not is_fixed:
        starts = [-low for low, _ in padding]
        ends = [
            target_size - size - start for target_size, size, start in zip(target, y.shape[2:], starts, strict=True)
        ]
        y = ops.pad(y, (0, 0, *starts), (0, 0, *ends))
    return y if b is None else ops.add(y, channel_vector(b, len(x.shape)))


# pools


def _pool(c: Call) -> tuple[tuple[int, ...], tuple[int, ...], Padding, tuple[int, ...]]:
    kernel = c.int_list("kernel_shape")
    n = len(kernel)
    strides, dilation = c.int_list_of("strides", n, 1), c.int_list_of("dilations", n, 1)
    padding = padding_of(c, c.shape()[2:], kernel, strides, dilation, crops=True)
    _require_room(c, c.shape()[2:], kernel, padding, dilation)
    for size in c.shape()[1:] if c.shape()[0] != 0 else ():
        c.importer.require(size - 1, f"a window on a size of {size}")
    return kernel, strides, padding, dilation


@onnx_op("MaxPool")
def max_pool(c: Call) -> Result:
    x = c.x()
    kernel, strides, padding, dilation = _pool(c)
    ceil = c.flag("ceil_mode")
    if not c.is_result_used(1):
        x, pairs = pad_first(x, padding, ops.identity_of("max", x.dtype), 2)
        return ops.MaxPool(kernel, strides, pairs, dilation, ceil)(x)
    y, index = ops.MaxPoolIndices(kernel, strides, static_padding(padding), dilation, ceil)(x).results
    spatial = x.shape[2:]
    if c.flag("storage_order"):
        index = _column_major(index, spatial)
    # ONNX counts over the whole tensor
    planes = (*x.shape[:2], *(1,) * len(spatial))
    plane = ops.reshape(ops.arange(product(x.shape[:2])), planes)
    return [y, ops.add(index, ops.mul(plane, product(spatial)))]


def _column_major(index: Node, spatial: Sequence[DimLike]) -> Node:
    """Row-major positions in images -> column-major ones."""
    terms: list[Node] = []
    for axis in range(len(spatial)):
        stride = product(spatial[axis + 1 :])
        terms.append(ops.mul(ops.div(index, stride), product(spatial[:axis])))
        index = ops.rem(index, stride)
    return reduce(ops.add, terms)


@onnx_op("AveragePool")
def average_pool(c: Call) -> Result:
    return windows.average_pool(c.x(), *_pool(c), c.flag("ceil_mode"), c.flag("count_include_pad"))


@onnx_op("LpPool")
def lp_pool(c: Call) -> Result:
    kernel, strides, padding, dilation = _pool(c)
    x, pairs = pad_first(c.x(), padding, 0, 2)
    return ops.LpPool(kernel, strides, pairs, dilation, ceil_mode=c.flag("ceil_mode"), p=c.int("p", 2))(x)


def _spatial(c: Call) -> tuple[int, ...]:
    return tuple(range(2, c.rank()))


def _global(c: Call) -> tuple[int, ...]:
    """The spatial axes, whose window is the whole image; it must not be empty."""
    for axis in _spatial(c):
        c.importer.require(c.shape()[axis] - 1, f"a window of {c.shape()[axis]}")
    return _spatial(c)


@onnx_op("GlobalAveragePool")
def global_average_pool(c: Call) -> Result:
    return ops.mean(c.x(), _global(c), keepdims=True)


@onnx_op("GlobalMaxPool")
def global_max_pool(c: Call) -> Result:
    return ops.reduce_max(c.x(), _global(c), keepdims=True)


@onnx_op("GlobalLpPool")
def global_lp_pool(c: Call) -> Result:
    p = float(c.int("p", 2))
    total = ops.reduce_sum(ops.pow(ops.Abs()(c.x()), p), _global(c), keepdims=True)
    return ops.pow(total, 1.0 / p)


@onnx_op("MaxUnpool", since=9)
def max_unpool(c: Call) -> Result:
    x, index = c.x(0), c.x(1)
    kernel = c.int_list("kernel_shape")
    n = len(kernel)
    strides, pads = c.int_list_of("strides", n, 1), c.int_list_of("pads", 2 * n, 0)
    plain: list[DimLike] = list(x.shape[:2])
    for i in range(n):
        plain.append((x.shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + n])
    shape = tuple(c.dims(2)) if c.has(2) else tuple(plain)
    flat = ops.full((product(plain),), 0, x.dtype)
    scattered = ops.ScatterElements(0, "none")(flat, ops.reshape(index, (-1,)), ops.reshape(x, (-1,)))
    small = ops.reshape(scattered, tuple(plain))
    # indices refer to the unpadded result; a larger output_shape has it in its corner
    return ops.pad(small, (0,) * len(shape), tuple(a - b for a, b in zip(shape, plain, strict=True)))


# products


@onnx_op("MatMul")
def matmul(c: Call) -> Result:
    return ops.MatMul()(c.x(0), c.x(1))


@onnx_op("Gemm")
def gemm(c: Call) -> Result:
    a, b, bias = c.x(0), c.x(1), c.opt(2)
    contracted = (0 if c.flag("transA") else 1,), (1 if c.flag("transB") else 0,)
    y = ops.DotGeneral(contract=contracted)(a, b)
    alpha, beta = c.float("alpha", 1.0), c.float("beta", 1.0)
    y = _scaled(y, alpha)
    return y if bias is None or beta == 0.0 else ops.add(y, ops.broadcast_to(_scaled(bias, beta), y.shape))


def _scaled(x: Node, factor: float) -> Node:
    if factor == 1.0:
        return x
    if x.dtype.is_integer:
        return in_dtype(T.f64, lambda v: ops.mul(v, factor), x)
    return ops.mul(x, factor)


@onnx_op("Einsum", since=12)
def einsum(c: Call) -> Result:
    return ops.Einsum(c.str("equation"))(*c.xs())


@onnx_op("Det", since=11)
def det(c: Call) -> Result:
    lu, pivots, _ = ops.LU()(c.x()).results
    return linalg.determinant(lu, pivots)


@onnx_op("Col2Im", since=18)
def col2im(c: Call) -> Result:
    """Columns [N, C*prod(block), L] summed into images: one scatter over flat positions that are known at import."""
    x = c.x()
    image, block = c.ints(1), c.ints(2)
    n = len(image)
    dilation, strides = c.int_list_of("dilations", n, 1), c.int_list_of("strides", n, 1)
    pads = c.int_list_of("pads", 2 * n, 0)
    grown = [s + pads[i] + pads[i + n] for i, s in enumerate(image)]
    if len(block) != n or min(block, default=0) < 1:
        raise Unsupported(f"block_shape: expected {n} sizes of 1 or more, got {block}")
    counts = [(g - d * (k - 1) - 1) // s + 1 for g, d, k, s in zip(grown, dilation, block, strides, strict=True)]
    check_table(*block, *counts)
    positions = np.zeros((*block, *counts), np.int64)
    for i in range(n):
        offsets = np.arange(block[i]) * dilation[i]
        starts = np.arange(counts[i]) * strides[i]
        positions = positions * grown[i]
        positions = positions + offsets.reshape([-1 if a == i else 1 for a in range(2 * n)])
        positions = positions + starts.reshape([-1 if a == n + i else 1 for a in range(2 * n)])
    batch, columns = x.shape[0], x.shape[1]
    channels = columns // int(np.prod(block))
    lines = ops.reshape(x, (batch * channels, positions.size))
    zeros = ops.full((batch * channels, int(np.prod(grown))), 0, x.dtype)
    places = ops.broadcast_to(const(positions.reshape(1, -1)), lines.shape)
    summed = ops.ScatterElements(1, "add")(zeros, places, lines)
    y = ops.reshape(summed, (batch, channels, *grown))
    for i in range(n):
        y = ops.slice_axis(y, 2 + i, pads[i], pads[i] + image[i])
    return y
