"""Ops that read images at computed places: RoiAlign, DeformConv, GridSample."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.rows.common import channel_vector, ints_of, iota
from ingot.frontends.onnx.tensors import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import DimLike
from ingot.ir.node import Node


@onnx_op("GridSample", since=16)
@onnx_op("GridSample", domain="com.microsoft")
def grid_sample(c: Call) -> Result:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(c.str("mode", "linear"), c.str("mode", "linear"))
    return ops.GridSample(mode, c.str("padding_mode", "zeros"), c.flag("align_corners"))(c.x(0), c.x(1))


def _places(c: Call, start: Node, size: Node, count: int, grid: int, limit: DimLike) -> tuple[Node, Node, Node, Node]:
    """Along one axis, for each region [R] and sample [count*grid]: (low index, high index, weight of high, inside)."""
    samples = ops.cast(ops.arange(count * grid), start.dtype)
    step = ops.div(size, float(count * grid))
    at = ops.add(
        ops.expand_dims(start, 1), ops.mul(ops.expand_dims(step, 1), ops.expand_dims(ops.add(samples, 0.5), 0))
    )
    last = ops.cast(ops.scalar(limit, T.i64), start.dtype)
    inside = ops.and_(ops.compare("GE", at, -1.0), ops.compare("LE", at, last))
    most = ops.sub(last, 1.0)
    at = ops.minimum(ops.maximum(at, 0.0), most)
    low = ops.Floor()(at)
    high = ops.minimum(ops.add(low, 1.0), most)
    return ops.cast(low, T.i64), ops.cast(high, T.i64), ops.sub(at, low), inside


@onnx_op("RoiAlign", since=10)
def roi_align(c: Call) -> Result:
    """Regions [R, 4] of x as [R, C, h, w]: means or maxima of bilinear samples (He et al. 2017)."""
    x, rois = c.x(0), c.x(1)
    n, channels, height, width = x.shape
    out, grid = (c.int("output_height", 1), c.int("output_width", 1)), c.int("sampling_ratio", 0)
    if grid <= 0:
        raise Unsupported("a number of samples that depends on the regions (sampling_ratio 0)")
    half = c.version >= 16 and c.str("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    corners = ops.mul(rois, c.float("spatial_scale", 1.0))
    corners = ops.sub(corners, 0.5) if half else corners
    x1, y1, x2, y2 = (ops.index_axis(corners, 1, i) for i in range(4))
    sizes = [ops.sub(y2, y1), ops.sub(x2, x1)]
    if not half:
        sizes = [ops.maximum(s, 1.0) for s in sizes]
    rows = _places(c, y1, sizes[0], out[0], grid, height)
    cols = _places(c, x1, sizes[1], out[1], grid, width)
    pixels = ops.reshape(ops.transpose(x, (0, 2, 3, 1)), (n * height * width, channels))
    image = ops.expand_dims(ops.cast(c.x(2), T.i64), (1, 2))
    ones = [ops.sub(1.0, v[2]) for v in (rows, cols)]
    inside = ops.and_(ops.expand_dims(rows[3], 2), ops.expand_dims(cols[3], 1))
    parts: list[Node] = []
    for yi, wy in ((rows[0], ones[0]), (rows[1], rows[2])):
        for xi, wx in ((cols[0], ones[1]), (cols[1], cols[2])):
            line = ops.add(ops.mul(image, height), ops.expand_dims(yi, 2))
            flat = ops.add(ops.mul(line, width), ops.expand_dims(xi, 1))
            weight = ops.mul(ops.expand_dims(wy, 2), ops.expand_dims(wx, 1))
            weight = ops.where(inside, weight, 0.0)
            parts.append(ops.mul(ops.Take(0)(pixels, flat), ops.expand_dims(weight, 3)))
    split = (rois.shape[0], out[0], grid, out[1], grid, channels)
    if c.str("mode", "avg") == "avg":
        total = ops.add(ops.add(parts[0], parts[1]), ops.add(parts[2], parts[3]))
        y = ops.mean(ops.reshape(total, split), (2, 4))
    else:
        # ONNX takes the largest weighted neighbour, not the largest sample
        most = ops.maximum(ops.maximum(parts[0], parts[1]), ops.maximum(parts[2], parts[3]))
        y = ops.reduce_max(ops.reshape(most, split), (2, 4))
    return ops.transpose(y, (0, 3, 1, 2))


@onnx_op("DeformConv", since=19)
def deform_conv(c: Call) -> Result:
    """Convolution whose taps are moved by offsets (Dai et al. 2017): bilinear samples as columns, then a product."""
    x, w, offset = c.x(0), c.x(1), c.x(2)
    n, channels, height, width = x.shape
    filters, _, kh, kw = ints_of(w.shape, "the kernel")
    strides, dilation = c.int_list("strides", (1, 1)), c.int_list("dilations", (1, 1))
    pads, groups, moved = c.int_list("pads", (0,) * 4), c.int("group", 1), c.int("offset_group", 1)
    oh, ow = offset.shape[2:]
    taps = kh * kw
    shape = (n, moved, taps, oh, ow)
    shift = ops.reshape(offset, (n, moved, taps, 2, oh, ow))
    tap = iota((1, 1, taps, 1, 1), 2)
    places: list[Node] = []
    for axis, index in enumerate((ops.div(tap, kw), ops.rem(tap, kw))):
        start = ops.sub(ops.mul(iota((1, 1, 1, oh, 1), 3) if axis == 0 else iota((1, 1, 1, 1, ow), 4), strides[axis]),
                        pads[axis])
        base = ops.add(start, ops.mul(index, dilation[axis]))
        places.append(ops.add(ops.cast(base, x.dtype), ops.index_axis(shift, 3, axis)))
    lows = [ops.Floor()(p) for p in places]
    images = ops.reshape(x, (n, moved, channels // moved, height * width))
    total: Node | None = None
    for dy in (0, 1):
        for dx in (0, 1):
            weight, at = ops.full(shape, 1.0, x.dtype), []
            for low, place, step, size in zip(lows, places, (dy, dx), (height, width), strict=True):
                i = ops.add(low, float(step))
                near = ops.sub(place, low)
                weight = ops.mul(weight, near if step else ops.sub(1.0, near))
                k = ops.cast(i, T.i64)
                valid = ops.and_(ops.compare("GE", k, 0), ops.compare("LT", k, size))
                weight = ops.where(valid, weight, 0.0)
                at.append(ops.minimum(ops.maximum(k, 0), size - 1))
            flat = ops.reshape(ops.add(ops.mul(at[0], width), at[1]), (n, moved, 1, taps * oh * ow))
            spread = ops.broadcast_to(flat, (n, moved, channels // moved, taps * oh * ow))
            value = ops.GatherElements(3)(images, spread)
            value = ops.mul(value, ops.reshape(weight, (n, moved, 1, taps * oh * ow)))
            total = value if total is None else ops.add(total, value)
    assert total is not None
    if c.has(4):
        total = ops.mul(total, ops.reshape(c.x(4), (n, moved, 1, taps * oh * ow)))
    columns = ops.reshape(total, (n, groups, channels // groups * taps, oh * ow))
    kernel = ops.reshape(w, (1, groups, filters // groups, -1))
    y = ops.reshape(ops.MatMul()(kernel, columns), (n, filters, oh, ow))
    return ops.add(y, channel_vector(c.x(3), 4)) if c.has(3) else y
