"""Convolutions and products."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.composites.windows import pad_first, static_sizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.rows import windows
from ingot.frontends.tensorflow.values import Call, Table
from ingot.ir.dims import Dim, dim_max
from ingot.ir.node import Node

row = Table()


@row("Conv2D", "Conv3D")
def conv(c: Call, x: Node, w: Node) -> Node:
    """Kernels are [*window, in / groups, out]; the number of groups follows from the channels."""
    n = x.type.rank
    image, kernel = windows.channels_first(c, x), ops.transpose(w, (n - 1, n - 2, *range(n - 2)))
    channels, inner = image.shape[1], kernel.shape[1]
    if not (isinstance(channels, int) and isinstance(inner, int) and inner and channels % inner == 0):
        raise Unsupported(f"of {x.type} by {w.type}")
    return _conv(c, image, kernel, channels // inner)


@row("DepthwiseConv2dNative")
def depthwise(c: Call, x: Node, w: Node) -> Node:
    """Kernels are [*window, in, multiplier]."""
    h, width, channels, multiplier = static_sizes(w.shape, "a kernel")
    kernel = ops.reshape(ops.transpose(w, (2, 3, 0, 1)), (channels * multiplier, 1, h, width))
    return _conv(c, windows.channels_first(c, x), kernel, channels)


def _conv(c: Call, image: Node, kernel: Node, groups: int) -> Node:
    rank = image.type.rank
    window = static_sizes(kernel.shape[2:], "a kernel")
    strides, dilation = windows.spatial(c, "strides", rank), windows.spatial(c, "dilations", rank)
    padding_amounts = windows.padding_of(c, image.shape[2:], window, strides, dilation)
    y = windows.no_windows(image, kernel.shape[0], padding_amounts, window, strides, dilation)
    if y is None:
        image, padding = pad_first(image, padding_amounts, 0, 2)
        y = ops.Conv(strides, padding, dilation, groups)(image, kernel)
    return windows.channels_as_given(c, y)


@row("Conv2DBackpropInput", "Conv3DBackpropInputV2")
def transposed(c: Call, sizes: Node, w: Node, x: Node) -> Node:
    """A transposed convolution: kernels are [*window, out, in], `sizes` is the result's shape."""
    n = x.type.rank
    image, kernel = windows.channels_first(c, x), ops.transpose(w, (n - 1, n - 2, *range(n - 2)))
    window = static_sizes(kernel.shape[2:], "a kernel")
    strides, dilation = windows.spatial(c, "strides", n), windows.spatial(c, "dilations", n)
    target = c.sizes(sizes)
    target = target[1:-1] if windows.is_last(c) else target[2:]
    mode, explicit = c.str("padding"), c.ints("explicit_paddings")
    lows: list[int] = []
    for i in range(n - 2):
        reach = (window[i] - 1) * dilation[i] + 1
        if mode == "EXPLICIT":
            lows.append(explicit[2 * (i + (1 if windows.is_last(c) else 2))])
            continue
        total = 0 if mode == "VALID" else dim_max((image.shape[2 + i] - 1) * strides[i] + reach - target[i], 0)
        if isinstance(total, Dim):
            raise Unsupported(f"padding that depends on a size: {total}")
        lows.append(total // 2)
    y = ops.ConvTranspose(strides, ((0, 0),) * (n - 2), (0,) * (n - 2), dilation)(image, kernel)
    # the full transposed convolution, cropped or padded to the requested size
    low = (0, 0, *(-v for v in lows))
    high = (0, 0, *(size - full + v for size, full, v in zip(target, y.shape[2:], lows, strict=True)))
    return windows.channels_as_given(c, ops.pad(y, low, high))


@row("BiasAdd", "BiasAddV1")
def bias_add(c: Call, x: Node, b: Node) -> Node:
    n = x.type.rank
    if n < 3:
        return ops.add(x, b)
    image = windows.channels_first(c, x)
    return windows.channels_as_given(c, ops.add(image, ops.reshape(b, (b.shape[0], *(1,) * (n - 2)))))


@row("MatMul")
def matmul(c: Call, a: Node, b: Node) -> Node:
    left, right = c.flag("transpose_a"), c.flag("transpose_b")
    if left or right:
        return ops.DotGeneral(contract=((0 if left else 1,), (1 if right else 0,)))(a, b)
    return ops.MatMul()(a, b)


@row("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(c: Call, a: Node, b: Node) -> Node:
    left = ops.swap_axes(a, -1, -2) if c.flag("adj_x") else a
    rhs = ops.swap_axes(b, -1, -2) if c.flag("adj_y") else b
    if c.has("Tout") and c.dtype("Tout") != a.dtype:
        left, rhs = ops.cast(left, c.dtype("Tout")), ops.cast(rhs, c.dtype("Tout"))
    return ops.MatMul()(left, rhs)


@row("Einsum", "XlaEinsum")
def einsum(c: Call, *xs: Node) -> Node:
    return ops.Einsum(c.str("equation"))(*xs)
