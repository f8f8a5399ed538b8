"""Images: resampling, crops, colours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.rows.windows import static
from ingot.frontends.tensorflow.values import Call, Table
from ingot.ir.node import Node, const
from ingot.ir.types import f32

row = Table()


def _coordinates(c: Call) -> str:
    if c.flag("align_corners"):
        return "align_corners"
    return "half_pixel" if c.flag("half_pixel_centers") else "asymmetric"


@row("ResizeBilinear")
def bilinear(c: Call, x: Node, size: Node) -> Node:
    """Of integers, too, in f32."""
    return ops.Resize(c.sizes(size), (1, 2), "linear", _coordinates(c))(ops.cast(x, f32))


@row("ResizeNearestNeighbor")
def nearest(c: Call, x: Node, size: Node) -> Node:
    coordinates = _coordinates(c)
    # corners are met by rounding, the others by rounding down
    if coordinates == "align_corners":
        return ops.Resize(c.sizes(size), (1, 2), "nearest", coordinates, "round_prefer_ceil")(x)
    if coordinates == "half_pixel":
        # floor((i + 0.5) * scale): half a pixel is added, and not taken off again
        return ops.Resize(c.sizes(size), (1, 2), "nearest", "half_pixel", "round_prefer_ceil")(x)
    return ops.Resize(c.sizes(size), (1, 2), "nearest", coordinates, "floor")(x)


@row("ResizeBicubic")
def bicubic(c: Call, x: Node, size: Node) -> Node:
    """By a matrix for each axis, as TensorFlow's kernels are rounded to a table of 1,024 places."""
    height, width = c.numbers(size)
    rows, columns = static(x.shape[1:3], "an image")
    down, across = _cubic(c, rows, height), _cubic(c, columns, width)
    return ops.Einsum("bhwc,oh,pw->bopc")(ops.cast(x, f32), const(down), const(across))


_PLACES = 1024


def _cubic(c: Call, size: int, out: int) -> np.ndarray:
    """f32[out, size]: what each element of the result takes of an axis. Keys' kernel."""
    half, corners = c.flag("half_pixel_centers"), c.flag("align_corners") and out > 1
    a = np.float32(-0.5 if half else -0.75)
    scale = np.float32(size - 1) / np.float32(out - 1) if corners else np.float32(size) / np.float32(out)
    at = np.arange(out, dtype=np.float32)
    at = (at + np.float32(0.5)) * scale - np.float32(0.5) if half else at * scale
    first = np.floor(at)
    near = np.rint((at - first) * np.float32(_PLACES)) / np.float32(_PLACES)
    weights = np.zeros((out, size), np.float32)
    for tap in (-1, 0, 1, 2):
        d = np.abs(near - np.float32(tap)).astype(np.float32)
        inner, outer = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        place = (first + tap).astype(np.int64)
        taken = np.where(d <= 1, inner, outer)
        if half:  # taps outside weigh nothing
            taken = np.where((place >= 0) & (place < size), taken, 0)
        np.add.at(weights, (np.arange(out), np.clip(place, 0, size - 1)), taken.astype(np.float32))
    return weights / weights.sum(1, keepdims=True) if half else weights


@row("ResizeArea")
def area(c: Call, x: Node, size: Node) -> Node:
    """Where the sizes divide, means of blocks."""
    wanted = c.numbers(size)
    h, w = x.shape[1], x.shape[2]
    if not (isinstance(h, int) and isinstance(w, int)) or h % wanted[0] or w % wanted[1] or c.flag("align_corners"):
        raise Unsupported(f"of {h} x {w} to {wanted[0]} x {wanted[1]}, which do not divide")
    cut = (x.shape[0], wanted[0], h // wanted[0], wanted[1], w // wanted[1], x.shape[3])
    return ops.mean(ops.reshape(ops.cast(x, f32), cut), (2, 4))


@row("AdjustContrastv2")
def adjust_contrast(c: Call, x: Node, factor: Node) -> Node:
    mean = ops.mean(x, (-3, -2), keepdims=True)
    return ops.add(ops.mul(ops.sub(x, mean), factor), mean)


@row("ExtractImagePatches")
def patches(c: Call, x: Node) -> Node:
    """Windows of the image as channels: position in the window before the channel."""
    _, kh, kw, _ = c.ints("ksizes")
    _, sh, sw, _ = c.ints("strides")
    _, rh, rw, _ = c.ints("rates")
    if c.str("padding") != "VALID":
        raise Unsupported(f"padding {c.str('padding')!r}")
    h, w = x.shape[1], x.shape[2]
    rows = (h - (kh - 1) * rh - 1) // sh + 1
    columns = (w - (kw - 1) * rw - 1) // sw + 1
    taps: list[Node] = []
    for i in range(kh):
        for j in range(kw):
            start = (0, i * rh, j * rw, 0)
            stop = (x.shape[0], i * rh + (rows - 1) * sh + 1, j * rw + (columns - 1) * sw + 1, x.shape[3])
            taps.append(ops.Slice(start, stop, (1, sh, sw, 1))(x))
    return ops.concat(taps, 3)


@row("RGBToHSV")
def rgb_to_hsv(c: Call, x: Node) -> Node:
    return ops.stack(_hsv(x), -1)


def _hsv(x: Node) -> tuple[Node, Node, Node]:
    r, g, b = (ops.index_axis(x, -1, i) for i in range(3))
    value = ops.maximum(ops.maximum(r, g), b)
    spread = ops.sub(value, ops.minimum(ops.minimum(r, g), b))
    flat = ops.Not()(ops.compare("GT", spread, 0.0))
    unit = ops.div(1.0, ops.mul(ops.where(flat, 1.0, spread), 6.0))
    of_red = ops.mul(unit, ops.sub(g, b))
    of_green = ops.add(ops.mul(unit, ops.sub(b, r)), 2.0 / 6.0)
    of_blue = ops.add(ops.mul(unit, ops.sub(r, g)), 4.0 / 6.0)
    hue = ops.where(ops.compare("EQ", r, value), of_red, ops.where(ops.compare("EQ", g, value), of_green, of_blue))
    hue = ops.where(flat, 0.0, hue)
    bright = ops.compare("GT", value, 0.0)
    saturation = ops.where(bright, ops.div(spread, ops.where(bright, value, 1.0)), 0.0)
    return ops.where(ops.compare("LT", hue, 0.0), ops.add(hue, 1.0), hue), saturation, value


def _rgb(hue: Node, saturation: Node, value: Node) -> Node:
    turned = ops.mul(hue, 6.0)
    parts: list[Node] = []
    for center, sign, shift in ((3.0, 1.0, -1.0), (2.0, -1.0, 2.0), (4.0, -1.0, 2.0)):
        share = ops.clip(ops.add(ops.mul(ops.Abs()(ops.sub(turned, center)), sign), shift), 0.0, 1.0)
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
    moved = ops.add(hue, delta)
    return ops.cast(_rgb(ops.sub(moved, ops.Floor()(moved)), saturation, value), x.dtype)


def _sinc(x: np.ndarray) -> np.ndarray:
    return np.sinc(x)


def _cubic_of(b: float, c: float) -> Callable[[np.ndarray], np.ndarray]:
    """The cubics of Mitchell and Netravali, "Reconstruction filters in computer graphics" (1988)."""
    near = (12 - 9 * b - 6 * c, -18 + 12 * b + 6 * c, 0.0, 6 - 2 * b)
    far = (-b - 6 * c, 6 * b + 30 * c, -12 * b - 48 * c, 8 * b + 24 * c)
    return lambda x: np.where(x < 1, np.polyval(near, x), np.where(x < 2, np.polyval(far, x), 0.0)) / 6


# how far each reaches, and its height at a distance
_KERNELS: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    **{f"lanczos{r}": (float(r), lambda x, r=r: np.where(x < r, _sinc(x) * _sinc(x / r), 0.0)) for r in (1, 3, 5)},
    "gaussian": (1.5, lambda x: np.where(x < 1.5, np.exp(-2.0 * x * x), 0.0)),
    "box": (1.0, lambda x: np.where(x < 0.5, 1.0, np.where(x == 0.5, 0.5, 0.0))),
    "triangle": (1.0, lambda x: np.maximum(1 - x, 0.0)),
    "keyscubic": (2.0, _cubic_of(0.0, 0.5)),
    "mitchellcubic": (2.0, _cubic_of(1 / 3, 1 / 3)),
}


@row("ScaleAndTranslate")
def scale_and_translate(c: Call, x: Node, size: Node, scale: Node, translation: Node) -> Node:
    """By a matrix for each axis."""
    found = _KERNELS.get(c.str("kernel_type", "lanczos3"))
    if found is None:
        raise Unsupported(f"kernel {c.str('kernel_type')!r}")
    wide = c.flag("antialias") or not c.has("antialias")
    factors, moves = (c.array(v).astype(np.float32) for v in (scale, translation))
    sides = zip(static(x.shape[1:3], "an image"), c.numbers(size), factors, moves, strict=True)
    down, across = (_resampled(*found, n, out, s, t, wide) for n, out, s, t in sides)
    return ops.Einsum("bhwc,oh,pw->bopc")(ops.cast(x, f32), const(down), const(across))


def _resampled(
    reach: float, kernel: Callable[[np.ndarray], np.ndarray], n: int, out: int, scale: np.float32, move: np.float32,
    wide: bool,
) -> np.ndarray:  # fmt: skip
    """f32[out, n]: what each element of the result takes of an axis. wide: kernels grow where an image shrinks."""
    inverse = np.float32(1) / scale
    step = max(inverse, np.float32(1)) if wide else np.float32(1)
    at = (np.arange(out, dtype=np.float32) + np.float32(0.5)) * inverse - inverse * move
    places = np.arange(n, dtype=np.float32) + np.float32(0.5)
    low = np.maximum(np.ceil(at - reach * step - np.float32(0.5)), 0)
    high = np.minimum(np.floor(at + reach * step - np.float32(0.5)), n - 1)
    inside = (places - 0.5 >= low[:, None]) & (places - 0.5 <= high[:, None])
    weights = np.where(inside, kernel(np.abs(places - at[:, None]).astype(np.float64) / step), 0.0)
    total = weights.sum(1, keepdims=True)
    weights = np.divide(
        weights, total, out=np.zeros_like(weights), where=np.abs(total) >= 1000 * np.finfo(np.float32).tiny
    )
    return np.where(((at >= 0) & (at <= n))[:, None], weights, 0.0).astype(np.float32)
