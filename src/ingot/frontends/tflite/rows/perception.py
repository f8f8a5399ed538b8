"""MediaPipe's custom ops: crops of an image around landmarks, and a transposed convolution with a bias.

A crop is an affine matrix [1, 4, 4] from positions in the crop to positions in the image: it is computed from
landmarks, samples the image, and maps landmarks found in the crop back. Source: mediapipe/util/tflite/operations.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.frontends.tflite.flexbuffer import Option, options
from ingot.frontends.tflite.rows import window
from ingot.ir import types as T
from ingot.ir.dims import is_static
from ingot.ir.node import Node, const

custom = Table()


@custom("Convolution2DTransposeBias")
def transpose_conv_bias(c: Call) -> Node:
    """Operands: x[N, H, W, I], kernel[O, H, W, I], bias. Options: a C struct of the padding and the strides."""
    try:
        padding, width, height = struct.unpack_from("<3i", c.op.raw.tobytes())
    except struct.error as e:
        raise Unsupported("options that are cut short") from e
    if padding not in (1, 2) or width < 1 or height < 1:
        raise Unsupported(f"padding {padding} and strides {height}, {width}")
    x, kernel = c.x(0), c.x(1)
    sizes = []
    for n, k, s in zip(x.shape[1:3], window.static(kernel, (1, 2)), (height, width), strict=True):
        padding_amount = max(0, k - (n - 1) % s - 1) if padding == 1 and isinstance(n, int) else 0
        if padding == 1 and not isinstance(n, int):
            raise Unsupported(f"a size {n}")
        sizes.append(s * (n - 1) + k - padding_amount)
    meant = {"padding": padding - 1, "stride_w": width, "stride_h": height}
    y = window.transposed(replace(c, op=replace(c.op, options=meant)), x, kernel, sizes)
    return ops.add(y, c.x(2))


@custom("Landmarks2TransformMatrix")
def transform_matrix(c: Call) -> Node:
    """[1, 4, 4] from landmarks[1, n, 3]: the bounding box of some of them, rotated so that two of them are aligned."""
    if c.op.version < 2:
        raise Unsupported("of version 1")
    settings, points = options(c.op.raw.tobytes()), c.x()
    subset = settings.get("subset_idxs")
    left, right = (int(_number(settings, f"{side}_rotation_idx")) for side in ("left", "right"))
    if not isinstance(subset, tuple) or not subset:
        raise Unsupported("no landmarks to go around")
    places = [int(v) for v in subset]
    if len(points.shape) != 3 or not isinstance(points.shape[1], int) or points.shape[2] != 3:
        raise Unsupported(f"landmarks {points.type}")
    if not all(0 <= p < points.shape[1] for p in (left, right, *places)):
        raise Unsupported(f"landmarks beyond {points.shape[1]}")
    xy = [ops.index_axis(ops.index_axis(points, 2, i), 0, 0) for i in range(2)]  # x, y: [n]
    baseline = [ops.sub(ops.index_axis(v, 0, right), ops.index_axis(v, 0, left)) for v in xy]
    angle = ops.sub(_number(settings, "target_rotation_radians"), ops.atan2(baseline[1], baseline[0]))
    cos, sin = ops.Cos()(angle), ops.Sin()(angle)
    x, y = (ops.Take(0)(v, const(np.array(places))) for v in xy)
    rotated = ops.sub(ops.mul(cos, x), ops.mul(sin, y)), ops.add(ops.mul(sin, x), ops.mul(cos, y))
    low, high = [ops.reduce_min(v) for v in rotated], [ops.reduce_max(v) for v in rotated]
    u, v = (ops.div(ops.add(a, b), 2) for a, b in zip(low, high, strict=True))
    middle = ops.add(ops.mul(cos, u), ops.mul(sin, v)), ops.sub(ops.mul(cos, v), ops.mul(sin, u))
    crop_sizes = [_number(settings, f"output_{side}") for side in ("width", "height")]
    if min(crop_sizes) <= 0:
        raise Unsupported(f"a crop of {crop_sizes}")
    a, b = (
        ops.mul(ops.sub(h, l), _number(settings, f"scale_{axis}") / side)
        for axis, h, l, side in zip("xy", high, low, crop_sizes, strict=True)
    )
    columns = (ops.mul(cos, a), ops.mul(sin, b)), (ops.Neg()(ops.mul(sin, a)), ops.mul(cos, b))
    zero, one = ops.scalar(0.0), ops.scalar(1.0)
    rows: list[Node] = []
    for (p, q), m in zip(columns, middle, strict=True):
        shift = ops.sub(m, ops.add(ops.mul(p, crop_sizes[0] / 2), ops.mul(q, crop_sizes[1] / 2)))
        rows += [p, q, zero, shift]
    return ops.reshape(ops.stack([*rows, zero, zero, one, zero, zero, zero, zero, one]), (1, 4, 4))


def _number(settings: Mapping[str, Option], name: str) -> float:
    value = settings.get(name)
    if not isinstance(value, int | float):
        raise Unsupported(f"no {name}")
    return float(value)


def _affine(matrix: Node) -> list[list[Node]]:
    """Rows x and y of a matrix: the coefficients of x, y and 1."""
    flat = ops.reshape(matrix, (16,))
    return [[ops.index_axis(flat, 0, 4 * r + k) for k in (0, 1, 3)] for r in range(2)]


def _transformed(rows: list[list[Node]], x: Node, y: Node) -> tuple[Node, Node]:
    """Positions mapped by a matrix: (x, y)."""
    u, v = (ops.add(ops.add(ops.mul(p, x), ops.mul(q, y)), m) for p, q, m in rows)
    return u, v


@custom("TransformTensorBilinear")
def transform_bilinear(c: Call) -> Node:
    """An image[1, H, W, C] sampled at the crop's positions mapped by a matrix[1, 4, 4], 0 outside of it. Version 2
    counts from pixels' corners."""
    settings, image = options(c.op.raw.tobytes()), c.x(0)
    height, width = (int(_number(settings, f"output_{side}")) for side in ("height", "width"))
    n, *sizes, channels = image.shape
    if n != 1 or not is_static(sizes) or not 0 < height * width <= 1 << 24:
        raise Unsupported(f"an image {image.type} as {height} x {width}")
    h, w = (int(d) for d in sizes)
    half = 0.5 if c.op.version > 1 else 0.0
    x, y = (
        ops.add(ops.cast(ops.arange(size, T.i32), T.f32), half)
        for size in (width, height)
    )  # fmt: skip
    u, v = (ops.sub(a, half) for a in _transformed(_affine(c.x(1)), ops.expand_dims(x, 0), ops.expand_dims(y, 1)))
    is_inside = _and(_within(u, w), _within(v, h))
    pixels = ops.reshape(image, (h * w, channels))
    x0, y0 = ops.Floor()(u), ops.Floor()(v)
    right_part, lower_part = (ops.expand_dims(ops.sub(a, b), 2) for a, b in ((u, x0), (v, y0)))

    def corner(dy: int, dx: int) -> Node:
        at = [ops.add(y0, dy), ops.add(x0, dx)]
        is_pixel = _and(*(_within(a, size) for a, size in zip(at, (h, w), strict=True)))
        row, column = (ops.cast(ops.clip(a, 0, size - 1), T.i32) for a, size in zip(at, (h, w), strict=True))
        pixel = ops.Take(0)(pixels, ops.add(ops.mul(row, w), column))
        return ops.where(ops.expand_dims(is_pixel, 2), pixel, 0)

    upper, lower = (
        ops.add(ops.mul(ops.sub(1, right_part), corner(d, 0)), ops.mul(right_part, corner(d, 1))) for d in (0, 1)
    )
    y_ = ops.add(ops.mul(lower_part, lower), ops.mul(ops.sub(1, lower_part), upper))
    return ops.expand_dims(ops.where(ops.expand_dims(is_inside, 2), y_, 0), 0)


def _within(x: Node, size: int) -> Node:
    return _and(ops.compare("GE", x, 0), ops.compare("LE", x, size - 1))


def _and(a: Node, b: Node) -> Node:
    return ops.and_(a, b)


@custom("TransformLandmarks")
def transform_landmarks(c: Call) -> Node:
    """Landmarks[1, n, 2 or 3] by a matrix[1, 4, 4]: x and y, and z as it is. Version 1 has landmarks of
    `dimensions` numbers in the last of four axes, and a scale of the shift."""
    points, rows = c.x(0), _affine(c.x(1))
    shape = points.shape
    if c.op.version < 2:
        settings = options(c.op.raw.tobytes())
        rows = [[p, q, ops.mul(m, _number(settings, "scale"))] for p, q, m in rows]
        points = ops.reshape(points, (*shape[:-1], -1, int(_number(settings, "dimensions"))))
    if points.shape[-1] not in (2, 3):
        raise Unsupported(f"landmarks {points.type}")
    x, y = (ops.index_axis(points, -1, i) for i in range(2))
    points_moved = [ops.expand_dims(v, -1) for v in _transformed(rows, x, y)]
    return ops.reshape(ops.concat([*points_moved, ops.slice_axis(points, -1, 2)], -1), shape)
