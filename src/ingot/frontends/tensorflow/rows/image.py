"""Images: resampling, crops, colours."""

from __future__ import annotations

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
