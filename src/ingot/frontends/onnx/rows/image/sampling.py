"""Ops that sample images at computed positions: RoiAlign, DeformConv, GridSample."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.rows.common import channel_vector, ints_of
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.node import Node


@onnx_op("GridSample", since=16)
@onnx_op("GridSample", domain="com.microsoft")
def grid_sample(c: Call) -> Result:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(c.str("mode", "linear"), c.str("mode", "linear"))
    return ops.GridSample(mode, c.str("padding_mode", "zeros"), c.flag("align_corners"))(c.x(0), c.x(1))


@onnx_op("RoiAlign", since=10)
def roi_align(c: Call) -> Result:
    grid = c.int("sampling_ratio", 0)
    if grid <= 0:
        raise Unsupported("a number of samples that depends on the regions (sampling_ratio 0)")
    half = c.version >= 16 and c.str("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    rois, image = ops.mul(c.x(1), c.float("spatial_scale", 1.0)), ops.cast(c.x(2), T.i64)
    output_size = c.int("output_height", 1), c.int("output_width", 1)
    maximum = c.str("mode", "avg") != "avg"
    return ops.roi_align(c.x(0), rois, image, output_size, grid, half_pixel=half, maximum=maximum)


@onnx_op("DeformConv", since=19)
def deform_conv(c: Call) -> Result:
    """Convolution whose taps are shifted by offsets (Dai et al. 2017): bilinear samples as columns, then a matmul."""
    x, w, offset = c.x(0), c.x(1), c.x(2)
    n, channels, height, width = x.shape
    filters, _, kh, kw = ints_of(w.shape, "the kernel")
    strides, dilation = c.int_list_of("strides", 2, 1), c.int_list_of("dilations", 2, 1)
    pads, groups, offset_groups = c.int_list_of("pads", 4, 0), c.int("group", 1), c.int("offset_group", 1)
    oh, ow = offset.shape[2:]
    taps = kh * kw
    shape = (n, offset_groups, taps, oh, ow)
    shift = ops.reshape(offset, (n, offset_groups, taps, 2, oh, ow))
    tap = ops.iota((1, 1, taps, 1, 1), 2)
    places: list[Node] = []
    for axis, index in enumerate((ops.div(tap, kw), ops.rem(tap, kw))):
        window = ops.iota((1, 1, 1, oh, 1), 3) if axis == 0 else ops.iota((1, 1, 1, 1, ow), 4)
        start = ops.sub(ops.mul(window, strides[axis]), pads[axis])
        base = ops.add(start, ops.mul(index, dilation[axis]))
        places.append(ops.add(ops.cast(base, x.dtype), ops.index_axis(shift, 3, axis)))
    lows = [ops.Floor()(p) for p in places]
    images = ops.reshape(x, (n, offset_groups, channels // offset_groups, height * width))
    total: Node | None = None
    for dy in (0, 1):
        for dx in (0, 1):
            weight, positions = ops.full(shape, 1.0, x.dtype), []
            for low, place, step, size in zip(lows, places, (dy, dx), (height, width), strict=True):
                i = ops.add(low, float(step))
                near = ops.sub(place, low)
                weight = ops.mul(weight, near if step else ops.sub(1.0, near))
                k = ops.cast(i, T.i64)
                valid = ops.and_(ops.compare("GE", k, 0), ops.compare("LT", k, size))
                weight = ops.where(valid, weight, 0.0)
                positions.append(ops.minimum(ops.maximum(k, 0), size - 1))
            flat = ops.reshape(
                ops.add(ops.mul(positions[0], width), positions[1]), (n, offset_groups, 1, taps * oh * ow)
            )
            pixels = ops.broadcast_to(flat, (n, offset_groups, channels // offset_groups, taps * oh * ow))
            value = ops.GatherElements(3)(images, pixels)
            value = ops.mul(value, ops.reshape(weight, (n, offset_groups, 1, taps * oh * ow)))
            total = value if total is None else ops.add(total, value)
    assert total is not None
    if c.has(4):
        total = ops.mul(total, ops.reshape(c.x(4), (n, offset_groups, 1, taps * oh * ow)))
    columns = ops.reshape(total, (n, groups, channels // groups * taps, oh * ow))
    kernel = ops.reshape(w, (1, groups, filters // groups, -1))
    y = ops.reshape(ops.MatMul()(kernel, columns), (n, filters, oh, ow))
    return ops.add(y, channel_vector(c.x(3), 4)) if c.has(3) else y
