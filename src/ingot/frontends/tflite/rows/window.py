"""Convolutions, pools and resampling, channels last."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.composites.windows import (
    Padding,
    pad_first,
    resize_linear,
    resize_nearest,
    same_padding,
    static_sizes,
)
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.frontends.tflite.rows import hybrid
from ingot.ir.dims import DimLike
from ingot.ir.node import Node
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError

row = Table()
_AXES = {2: "hw", 3: "dhw"}


@dataclass(frozen=True)
class Window:
    """Windows on the spatial axes. pads: (low, high), from SAME or VALID."""

    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: Padding


def window(c: Call, sizes: Sequence[DimLike], kernel: Sequence[int]) -> Window:
    letters = _AXES[len(sizes)]
    strides = tuple(c.int(f"stride_{a}", 1) for a in letters)
    dilation = tuple(c.int(f"dilation_{a}", 1) for a in letters)
    if min(*strides, *dilation, *kernel) < 1:
        raise Unsupported(f"strides {strides}, dilations {dilation}, windows {tuple(kernel)}")
    if c.int("padding") != 0:
        return Window(strides, dilation, ((0, 0),) * len(sizes))
    return Window(strides, dilation, same_padding(sizes, kernel, strides, dilation))


def padded(x: Node, w: Window, value: float = 0) -> tuple[Node, tuple[tuple[int, int], ...]]:
    """x and the remaining padding: padding of symbolic sizes is done here."""
    return pad_first(x, w.pads, value, 1)


def convolve(c: Call, x: Node, kernel: Node, w: Window, layout: str, groups: int, zero: float = 0) -> Node:
    """layout: the kernel's."""
    spatial = layout.replace("O", "").replace("I", "")
    _require_image(x)
    x, pads = padded(x, w, zero)
    ones = (1,) * len(spatial)
    data = f"N{spatial}C"
    return ops.Convolution(w.strides, pads, ones, w.dilation, data, layout, data, groups)(x, kernel)


def _require_image(x: Node) -> None:
    """Raise ShapeError for images without pixels, as LiteRT refuses them; there may be none of them."""
    if 0 in x.shape[1:-1]:
        raise ShapeError("a convolution of images without pixels", got=x.type)


def static(kernel: Node, axes: Sequence[int]) -> tuple[int, ...]:
    return static_sizes([kernel.shape[a] for a in axes], "a window")


def with_bias(c: Call, y: Node) -> Node:
    return ops.add(y, c.x(2)) if c.has(2) else y


def spatial_window(c: Call) -> Window:
    """The window of an x[N, H, W, C] and a kernel whose sizes are its axes 1 and 2."""
    return window(c, c.x(0).shape[1:3], static(c.x(1), (1, 2)))


def groups_of(x: Node, kernel: Node) -> int:
    """The number of groups for a kernel [O, H, W, I], whose channels may be a part of x's."""
    channels, part = x.shape[-1], kernel.shape[-1]
    if not isinstance(channels, int) or not isinstance(part, int) or part < 1 or channels % part:
        raise Unsupported(f"{channels} channels by a kernel of {part}")
    return channels // part


@row("CONV_2D")
def conv_2d(c: Call) -> Node:
    x, kernel, scale = factors(c)
    y = convolve(c, x, kernel, spatial_window(c), "OHWI", groups_of(x, kernel))
    return c.activation(with_bias(c, scaled(y, scale)))


@row("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(c: Call) -> Node:
    x, kernel, scale = factors(c)
    y = convolve(c, x, kernel, spatial_window(c), "IHWO", channels(x))
    return c.activation(with_bias(c, scaled(y, scale)))


def factors(c: Call, image: int = 0) -> tuple[Node, Node, Node | None]:
    """x, the kernel, and the scale of their products: with dynamic range quantization, x is quantized image by image.
    image: the index of operand x; it is not 0 for a transposed convolution, whose levels are always asymmetric."""
    x = c.x(image)
    if not hybrid.is_hybrid(c, image):
        return x, c.x(1), None
    levels, scale = hybrid.rounded(x, image > 0 or len(c.levels(1).scales) > 1)
    kernel, scales = hybrid.weights(c)
    return levels, kernel, ops.mul(scale, scales)


def scaled(y: Node, scale: Node | None) -> Node:
    return y if scale is None else ops.mul(y, scale)


def channels(x: Node) -> int:
    count = x.shape[-1]
    if not isinstance(count, int):
        raise Unsupported(f"{count} channels")
    return count


@row("CONV_3D")
def conv_3d(c: Call) -> Node:
    x, kernel = c.x(0), c.x(1)
    w = window(c, x.shape[1:4], static(kernel, (0, 1, 2)))
    return c.activation(with_bias(c, convolve(c, x, kernel, w, "DHWIO", 1)))


@row("TRANSPOSE_CONV")
def transpose_conv(c: Call) -> Node:
    """Operands: the result's sizes, kernel[O, H, W, I], x[N, H, W, I], maybe a bias."""
    x, kernel, scale = factors(c, 2)
    y = scaled(transposed(c, x, kernel, c.dims(0)[1:3]), scale)
    return c.activation(ops.add(y, c.x(3)) if c.has(3) else y)


def transposed(c: Call, x: Node, kernel: Node, sizes: Sequence[DimLike], layout: str = "OHWI") -> Node:
    """The transposed convolution to an image of these sizes: a convolution of the dilated x with the flipped kernel."""
    spatial = layout.replace("O", "").replace("I", "")
    _require_image(x)
    axes = tuple(layout.index(a) for a in spatial)
    k, ones = static(kernel, axes), (1,) * len(spatial)
    w = window(c, sizes, k)
    pads: list[tuple[int, int]] = []
    for i, (size, target_size) in enumerate(zip(x.shape[1:-1], sizes, strict=True)):
        reach = (k[i] - 1) * w.dilation[i]
        low = w.pads[i][0]
        # the rest of the result's size is after the last window's end
        high = target_size - ((size - 1) * w.strides[i] + 1) - (reach - low) + reach
        if not isinstance(low, int) or not isinstance(high, int):
            raise Unsupported(f"a transposed convolution to the size {target_size} of {size}")
        pads.append((reach - low, high))
    data = f"N{spatial}C"
    op = ops.Convolution(ones, tuple(pads), w.strides, w.dilation, data, layout, data)
    return op(x, ops.flip(kernel, axes))


@row("CONV_3D_TRANSPOSE")
def conv_3d_transpose(c: Call) -> Node:
    """Operands: the result's sizes, kernel[D, H, W, O, I], x[N, D, H, W, I], maybe a bias."""
    y = transposed(c, c.x(2), c.x(1), c.dims(0)[1:4], "DHWOI")
    return c.activation(ops.add(y, c.x(3)) if c.has(3) else y)


@row("DILATE", takes_stored=True)
def dilate(c: Call) -> Node:
    """Operands: x, the distances between its elements in the result, the fill value."""
    steps, zeros = c.ints(1), (0,) * c.x().type.rank
    if min(steps, default=1) < 1:
        raise Unsupported(f"distances {steps}")
    return ops.pad(c.x(), zeros, zeros, ops.reshape(c.x(2), ()), [s - 1 for s in steps])


_FOLDS = {1: "sum", 2: "prod", 3: "min", 4: "max", 5: "min", 6: "max"}  # all and any of booleans, too


@row("REDUCE_WINDOW")
def reduce_window(c: Call) -> Node:
    """Operands: x, a first value, the windows' sizes, strides and dilations."""
    kind = _FOLDS.get(c.int("reduce_function"))
    if kind is None:
        raise Unsupported(f"function {c.int('reduce_function')}")
    x, sizes, strides, dilation = c.x(), c.ints(2), c.ints(3), c.ints(4)
    if min(*sizes, *strides, *dilation, 1) < 1:
        raise Unsupported(f"windows {sizes}, strides {strides}, dilations {dilation}")
    zeros, ones = ((0, 0),) * len(sizes), (1,) * len(sizes)
    y = ops.ReduceWindow(kind, sizes, strides, zeros, dilation, ones)(x)
    combine = {"sum": ops.add, "prod": ops.mul, "min": ops.minimum, "max": ops.maximum}[kind]
    return combine(y, ops.reshape(c.x(1), ()))


def pool_window(c: Call) -> tuple[Window, tuple[int, int]]:
    kernel = c.int("filter_height"), c.int("filter_width")
    return window(c, c.x().shape[1:3], kernel), kernel


def fold(c: Call, kind: str, x: Node, w: Window, kernel: tuple[int, int], identity: float = 0) -> Node:
    x, pads = padded(x, w, identity)
    ones = (1, 1, 1, 1)
    op = ops.ReduceWindow(kind, (1, *kernel, 1), (1, *w.strides, 1), ((0, 0), *pads, (0, 0)), ones, ones)
    return op(x)


def counts(c: Call, x: Node, w: Window, kernel: tuple[int, int]) -> Node:
    """The number of elements of x in each window."""
    if all(p == (0, 0) for p in w.pads):
        return ops.scalar(kernel[0] * kernel[1], x.dtype)
    return fold(c, "sum", ops.full((1, *x.shape[1:3], 1), 1, x.dtype), w, kernel)


@row("AVERAGE_POOL_2D")
def average_pool(c: Call) -> Node:
    x, (w, kernel) = c.x(), pool_window(c)
    return c.activation(ops.div(fold(c, "sum", x, w, kernel), counts(c, x, w, kernel)))


@row("MAX_POOL_2D")
def max_pool(c: Call) -> Node:
    x, (w, kernel) = c.x(), pool_window(c)
    return c.activation(fold(c, "max", x, w, kernel, float(ops.identity_of("max", x.dtype))))


@row("L2_POOL_2D")
def l2_pool(c: Call) -> Node:
    x, (w, kernel) = c.x(), pool_window(c)
    mean = ops.div(fold(c, "sum", ops.mul(x, x), w, kernel), counts(c, x, w, kernel))
    return c.activation(ops.Sqrt()(mean))


@row("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(c: Call) -> Node:
    """x / (bias + alpha sum of squares of neighbours in the channels)^beta"""
    x, radius = c.x(), c.int("radius")
    ones, size = (1, 1, 1, 1), 2 * radius + 1
    pads = ((0, 0), (0, 0), (0, 0), (radius, radius))
    total = ops.ReduceWindow("sum", (1, 1, 1, size), ones, pads, ones, ones)(ops.mul(x, x))
    base = ops.add(ops.mul(total, c.float("alpha")), c.float("bias"))
    return ops.mul(x, ops.pow(base, -c.float("beta")))


@row("RESIZE_BILINEAR")
def resize_bilinear(c: Call) -> Node:
    return resize_linear(c.x(), c.dims(1), *_coordinates(c))


@row("RESIZE_NEAREST_NEIGHBOR", is_movement=True)
def resize_to_nearest(c: Call) -> Node:
    return resize_nearest(c.x(), c.dims(1), *_coordinates(c))


def _coordinates(c: Call) -> tuple[bool, bool]:
    return c.flag("align_corners"), c.flag("half_pixel_centers")
