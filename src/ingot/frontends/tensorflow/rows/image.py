"""Images: resampling, crops, colours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.windows import resize_linear, resize_nearest, static_sizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.rows import windows
from ingot.frontends.tensorflow.values import Call, Table
from ingot.ir.dims import DimLike
from ingot.ir.node import Node, const
from ingot.ir.types import f32, f64
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
    """By a matrix for each axis, as TensorFlow's kernel weights come from a table of 1,024 entries."""
    height, width = c.numbers(size)
    rows, columns = static_sizes(x.shape[1:3], "an image")
    row_weights, column_weights = _cubic(c, rows, height), _cubic(c, columns, width)
    return ops.Einsum("bhwc,oh,pw->bopc")(ops.cast(x, f32), const(row_weights), const(column_weights))


_KERNEL_TABLE_SIZE = 1024


def _cubic(c: Call, size: int, out: int) -> np.ndarray:
    """f32[out, size]: the weights of an axis's elements for each element of the result. Keys' kernel."""
    half, corners = c.flag("half_pixel_centers"), c.flag("align_corners") and out > 1
    a = np.float32(-0.5 if half else -0.75)
    scale = np.float32(size - 1) / np.float32(out - 1) if corners else np.float32(size) / np.float32(out)
    at = np.arange(out, dtype=np.float32)
    at = (at + np.float32(0.5)) * scale - np.float32(0.5) if half else at * scale
    first = np.floor(at)
    near = np.rint((at - first) * np.float32(_KERNEL_TABLE_SIZE)) / np.float32(_KERNEL_TABLE_SIZE)
    weights = np.zeros((out, size), np.float32)
    for tap in (-1, 0, 1, 2):
        d = np.abs(near - np.float32(tap)).astype(np.float32)
        inner, outer = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        place = (first + tap).astype(np.int64)
        tap_weights = np.where(d <= 1, inner, outer)
        if half:  # taps outside have no weight
            tap_weights = np.where((place >= 0) & (place < size), tap_weights, 0)
        np.add.at(weights, (np.arange(out), np.clip(place, 0, size - 1)), tap_weights.astype(np.float32))
    return weights / weights.sum(1, keepdims=True) if half else weights


@row("ResizeArea")
def area(c: Call, x: Node, size: Node) -> Node:
    """Means of blocks, for sizes that divide."""
    target = c.numbers(size)
    h, w = x.shape[1], x.shape[2]
    if not (isinstance(h, int) and isinstance(w, int)) or h % target[0] or w % target[1] or c.flag("align_corners"):
        raise Unsupported(f"of {h} x {w} to {target[0]} x {target[1]}, which do not divide")
    cut = (x.shape[0], target[0], h // target[0], target[1], w // target[1], x.shape[3])
    return ops.mean(ops.reshape(ops.cast(x, f32), cut), (2, 4))


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
