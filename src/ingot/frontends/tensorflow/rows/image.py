"""Images: resampling, crops, colours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.windows import resize_linear, resize_nearest
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.rows import windows
from ingot.frontends.tensorflow.values import Call, Table
from ingot.ir.dims import DimLike, exact_quotient
from ingot.ir.node import Node
from ingot.ir.types import f32, f64, i64
from ingot.ops.bessel import where
from ingot.ops.nn.terms import Term

row = Table()


@row("ResizeBilinear")
def bilinear(c: Call, x: Node, size: Node) -> Node:
    """Integers are resized in f32, too."""
    return resize_linear(ops.cast(x, f32), c.lengths(size), *_coordinates(c))


@row("ResizeNearestNeighbor")
def nearest(c: Call, x: Node, size: Node) -> Node:
    return resize_nearest(x, c.lengths(size), *_coordinates(c))


def _coordinates(c: Call) -> tuple[bool, bool]:
    return c.flag("align_corners"), c.flag("half_pixel_centers")


@row("ResizeBicubic")
def bicubic(c: Call, x: Node, size: Node) -> Node:
    """Four elements for each of the result along an axis, whose weights TensorFlow has in a table of 1,024 entries."""
    y = Term(ops.cast(x, f32))
    for axis, out in enumerate(c.lengths(size), 1):
        shape = tuple(-1 if a == axis else 1 for a in range(4))
        taps = _cubic(c, y.node.shape[axis], out)
        parts = [Term(ops.Take(axis)(y.node, place.node)) * Term(ops.reshape(w.node, shape)) for place, w in taps]
        y = (parts[0] + parts[1]) + (parts[2] + parts[3])
    return y.node


_KERNEL_TABLE_SIZE = 1024


def _scale(c: Call, size: DimLike, out: DimLike) -> Term:
    """f32[]: elements of an axis for each element of the result."""
    n, count = Term(ops.scalar(size, f32)), Term(ops.scalar(out, f32))
    if not c.flag("align_corners"):
        return n / count
    return where(count > 1.0, (n - 1.0) / (count - 1.0), n / count)


def _cubic(c: Call, size: DimLike, out: DimLike) -> list[tuple[Term, Term]]:
    """(i64[out], f32[out]): an axis's elements and their weights, for each of four taps. Keys' kernel."""
    half = c.flag("half_pixel_centers")
    a = -0.5 if half else -0.75
    scale, line = _scale(c, size, out), Term(ops.arange(out, f32))
    at = (line + 0.5) * scale - 0.5 if half else line * scale
    first = at.map(ops.Floor())
    near = ((at - first) * float(_KERNEL_TABLE_SIZE)).map(ops.RoundEven()) * (1 / _KERNEL_TABLE_SIZE)
    places, weights = list[Term](), list[Term]()
    for tap in (-1, 0, 1, 2):
        d = (near - float(tap)).map(ops.Abs())
        inner, outer = ((a + 2) * d - (a + 3)) * d * d + 1.0, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        place, weight = first + float(tap), where(d <= 1.0, inner, outer)
        if half:  # taps outside have no weight
            is_inside = (place >= 0.0) & Term(ops.compare("LT", place.node, ops.scalar(size, f32)))
            weight = where(is_inside, weight, 0.0)
        places.append(Term(ops.clip(ops.cast(place.node, i64), 0, size - 1)))
        weights.append(weight)
    total = weights[0] + weights[1] + weights[2] + weights[3]
    return [(place, weight / total if half else weight) for place, weight in zip(places, weights, strict=True)]


@row("ResizeArea")
def area(c: Call, x: Node, size: Node) -> Node:
    """Means of blocks where sizes divide; else by a matrix for each axis."""
    target, image = c.lengths(size), ops.cast(x, f32)
    blocks = [
        exact_quotient(n, out) if isinstance(out, int) and out and not c.flag("align_corners") else None
        for n, out in zip(x.shape[1:3], target, strict=True)
    ]
    if None not in blocks:
        cut = (x.shape[0], target[0], blocks[0] or 0, target[1], blocks[1] or 0, x.shape[3])
        return ops.mean(ops.reshape(image, cut), (2, 4))
    for n in x.shape[1:3]:
        c.walk.require(n - 1, f"an image of {n} rows or columns")
    down, across = (_shares(c, *axis) for axis in zip(x.shape[1:3], target, strict=True))
    return ops.Einsum("bhwc,oh,pw->bopc")(image, down, across)


def _shares(c: Call, size: DimLike, out: DimLike) -> Node:
    """f32[out, size]: which share of each element of the result's range on an axis an element of it covers. What is
    beyond the last element counts as that."""
    scale = _scale(c, size, out)
    first = Term(ops.expand_dims(ops.arange(out, f32), 1))
    start, end = first * scale, (first + 1.0) * scale
    low = Term(ops.arange(size, f32))
    is_last = Term(ops.compare("EQ", ops.arange(size), size - 1))
    high = where(is_last, math.inf, low + 1.0)
    shape = (out, size)
    ends = (ops.broadcast_to(v.node, shape) for v in (high, end, low, start))
    high, end, low, start = map(Term, ends)
    covered = ops.maximum(ops.sub(ops.minimum(high.node, end.node), ops.maximum(low.node, start.node)), 0.0)
    # an only element whose corners are aligned has no range
    return where(scale.equals(0.0), 1.0, Term(covered) / scale).node


@row("AdjustContrastv2")
def adjust_contrast(c: Call, x: Node, factor: Node) -> Node:
    mean = ops.mean(x, (-3, -2), keepdims=True)
    return ops.add(ops.mul(ops.sub(x, mean), factor), mean)


@row("ExtractImagePatches", "ExtractVolumePatches")
def patches(c: Call, x: Node) -> Node:
    """Windows of the image as channels: position in the window before the channel."""
    kernel, strides = c.ints("ksizes")[1:-1], c.ints("strides")[1:-1]
    rates = c.ints("rates")[1:-1] or (1,) * len(kernel)
    padding = windows.padding_of(c, x.shape[1:-1], kernel, strides, rates)
    n = x.type.rank
    image = ops.transpose(x, (0, n - 1, *range(1, n - 1)))
    none = windows.no_windows(image, x.shape[-1] * math.prod(kernel), padding, kernel, strides, rates)
    if none is not None:
        return ops.transpose(none, (0, *range(2, n), 1))
    low, high = ((0, *(side[i] for side in padding), 0) for i in (0, 1))
    x = ops.pad(x, low, high)
    counts = [(d - (k - 1) * r - 1) // s + 1 for d, k, r, s in zip(x.shape[1:-1], kernel, rates, strides, strict=True)]
    taps: list[Node] = []
    for place in itertools.product(*map(range, kernel)):
        first = [p * r for p, r in zip(place, rates, strict=True)]
        last = [f + (n - 1) * s + 1 for f, n, s in zip(first, counts, strides, strict=True)]
        taps.append(ops.Slice((0, *first, 0), (x.shape[0], *last, x.shape[-1]), (1, *strides, 1))(x))
    return ops.concat(taps, -1)


@row("RGBToHSV")
def rgb_to_hsv(c: Call, x: Node) -> Node:
    return ops.stack(_hsv(x), -1)


def _hsv(x: Node) -> tuple[Node, Node, Node]:
    r, g, b = (ops.index_axis(x, -1, i) for i in range(3))
    value = ops.maximum(ops.maximum(r, g), b)
    chroma = ops.sub(value, ops.minimum(ops.minimum(r, g), b))
    flat = ops.Not()(ops.compare("GT", chroma, 0.0))
    unit = ops.div(1.0, ops.mul(ops.where(flat, 1.0, chroma), 6.0))
    of_red = ops.mul(unit, ops.sub(g, b))
    of_green = ops.add(ops.mul(unit, ops.sub(b, r)), 2.0 / 6.0)
    of_blue = ops.add(ops.mul(unit, ops.sub(r, g)), 4.0 / 6.0)
    hue = ops.where(ops.compare("EQ", r, value), of_red, ops.where(ops.compare("EQ", g, value), of_green, of_blue))
    hue = ops.where(flat, 0.0, hue)
    bright = ops.compare("GT", value, 0.0)
    saturation = ops.where(bright, ops.div(chroma, ops.where(bright, value, 1.0)), 0.0)
    return ops.where(ops.compare("LT", hue, 0.0), ops.add(hue, 1.0), hue), saturation, value


def _rgb(hue: Node, saturation: Node, value: Node) -> Node:
    sector = ops.mul(hue, 6.0)
    parts: list[Node] = []
    for center, sign, shift in ((3.0, 1.0, -1.0), (2.0, -1.0, 2.0), (4.0, -1.0, 2.0)):
        share = ops.clip(ops.add(ops.mul(ops.Abs()(ops.sub(sector, center)), sign), shift), 0.0, 1.0)
        parts.append(ops.mul(ops.add(ops.sub(1.0, saturation), ops.mul(saturation, share)), value))
    return ops.stack(parts, -1)


@row("HSVToRGB")
def hsv_to_rgb(c: Call, x: Node) -> Node:
    hue, saturation, value = (ops.index_axis(x, -1, i) for i in range(3))
    return _rgb(hue, saturation, value)


@row("AdjustSaturation")
def adjust_saturation(c: Call, x: Node, scale: Node) -> Node:
    hue, saturation, value = _hsv(ops.cast(x, f32))
    return ops.cast(_rgb(hue, ops.clip(ops.mul(saturation, scale), 0.0, 1.0), value), x.dtype)


@row("AdjustHue")
def adjust_hue(c: Call, x: Node, delta: Node) -> Node:
    hue, saturation, value = _hsv(ops.cast(x, f32))
    shifted_hue = ops.add(hue, delta)
    return ops.cast(_rgb(ops.sub(shifted_hue, ops.Floor()(shifted_hue)), saturation, value), x.dtype)


Kernel = Callable[[Term], Term]


def _lanczos(reach: float) -> Kernel:
    def sinc(x: Term) -> Term:
        zero = x.equals(0.0)
        angle = where(zero, 1.0, x) * math.pi
        return where(zero, 1.0, angle.map(ops.Sin()) / angle)

    return lambda x: where(x < reach, sinc(x) * sinc(x / reach), 0.0)


def _cubic_of(b: float, c: float) -> Kernel:
    """The cubics of Mitchell and Netravali, "Reconstruction filters in computer graphics" (1988)."""

    def height(x: Term) -> Term:
        near = ((12 - 9 * b - 6 * c) * x + (-18 + 12 * b + 6 * c)) * x * x + (6 - 2 * b)
        outer_part = (((-b - 6 * c) * x + (6 * b + 30 * c)) * x + (-12 * b - 48 * c)) * x + (8 * b + 24 * c)
        return where(x < 1.0, near, where(x < 2.0, outer_part, 0.0)) / 6.0

    return height


# (radius, value by distance) of each kernel
_KERNELS: dict[str, tuple[float, Kernel]] = {
    **{f"lanczos{r}": (float(r), _lanczos(float(r))) for r in (1, 3, 5)},
    "gaussian": (1.5, lambda x: where(x < 1.5, (-2.0 * x * x).map(ops.Exp()), 0.0)),
    "box": (1.0, lambda x: where(x < 0.5, 1.0, where(x.equals(0.5), 0.5, 0.0))),
    "triangle": (1.0, lambda x: where(x < 1.0, 1.0 - x, 0.0)),
    "keyscubic": (2.0, _cubic_of(0.0, 0.5)),
    "mitchellcubic": (2.0, _cubic_of(1 / 3, 1 / 3)),
}


@row("ScaleAndTranslate")
def scale_and_translate(c: Call, x: Node, size: Node, scale: Node, translation: Node) -> Node:
    """By a matrix for each axis."""
    kernel = _KERNELS.get(c.str("kernel_type", "lanczos3"))
    if kernel is None:
        raise Unsupported(f"kernel {c.str('kernel_type')!r}")
    wide = c.flag("antialias") or not c.has("antialias")
    axes = enumerate(zip(x.shape[1:3], c.lengths(size), strict=True))
    row_weights, column_weights = (
        _resampled(*kernel, *side, _at(scale, i), _at(translation, i), wide) for i, side in axes
    )
    return ops.Einsum("bhwc,oh,pw->bopc")(ops.cast(x, f32), row_weights, column_weights)


def _at(x: Node, i: int) -> Term:
    return Term(ops.index_axis(x, 0, i))


def _resampled(reach: float, kernel: Kernel, n: DimLike, out: DimLike, scale: Term, move: Term, wide: bool) -> Node:
    """f32[out, n]: the weights of an axis's elements for each element of the result. wide: antialias, with kernels
    that grow where an image shrinks."""
    inverse = 1.0 / scale
    step = Term(ops.maximum(inverse.node, 1.0)) if wide else inverse * 0.0 + 1.0
    centers = Term(ops.expand_dims(ops.arange(out, f32), 1)) + 0.5
    centers = centers * inverse - inverse * move
    places = Term(ops.arange(n, f32))
    low, high = (centers - reach * step - 0.5).map(ops.Ceil()), (centers + reach * step - 0.5).map(ops.Floor())
    distance = (places + 0.5 - centers).map(ops.Abs()).cast(f64) / step.cast(f64)
    weights = where((places >= low) & (places <= high), kernel(distance), 0.0)
    total = weights.sum((1,), keepdims=True)
    is_sampled = (total.map(ops.Abs()) >= 1000 * float(np.finfo(np.float32).tiny)) & (centers >= 0.0)
    is_sampled = is_sampled & Term(ops.compare("LE", centers.node, ops.scalar(n, f32)))
    return where(is_sampled, weights / where(is_sampled, total, 1.0), 0.0).cast(f32).node
