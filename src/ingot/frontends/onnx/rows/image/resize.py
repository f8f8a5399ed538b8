"""Resize and Upsample."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, normal_axes, onnx_op
from ingot.frontends.onnx.rows.common import checked_size, ints_of
from ingot.frontends.onnx.symbolic import ARITHMETIC, UNARY, Element, cast
from ingot.frontends.shared.quotients import Quotient
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import Dim, DimLike
from ingot.ir.node import Node


def _scaled(c: Call, size: DimLike, scale: Element) -> DimLike:
    """floor(size * scale). The product is rounded to f32, as the scale is: 20 * 0.7 is 14, although f32(0.7) < 0.7."""
    if isinstance(size, int) and isinstance(scale, float):
        return math.floor(np.float32(size) * np.float32(scale))
    try:
        scaled = UNARY["Floor"](ARITHMETIC["Mul"](True, size, scale))
    except Unsupported:
        return _computed(c, size, scale)
    assert not isinstance(scaled, Quotient)
    return int(scaled) if isinstance(scaled, float) else scaled


def _computed(c: Call, size: DimLike, scale: Element) -> DimLike:
    """As `_scaled`, computed at run time where the rounding of floats is needed."""
    if isinstance(scale, int | float):
        product = ops.mul(ops.cast(ops.DimValue(size)(), T.f32), float(scale))
        sizes = c.importer.elements_as_sizes(ops.cast(ops.Floor()(product), T.i64))
        if sizes is not None:
            return sizes.dims()[0]
    raise Unsupported(f"a dynamic size {size} scaled by {scale}")


def _resize(
    c: Call, scales: Sequence[Element] | None, sizes: Sequence[DimLike] | None, axes: Sequence[int], coordinates: str,
    nearest: str,
) -> Node:  # fmt: skip
    """sizes: of the result, by default those of the scales."""
    x = c.x()
    mode = c.str("mode", "nearest")
    roi = _regions(c, len(axes)) if coordinates == "tf_crop_and_resize" else None
    if sizes is None:
        assert scales is not None
        wrong = [s for s in scales if isinstance(s, float) and not 0 < s < math.inf]
        if wrong:
            raise Unsupported(f"scales of {wrong}: expected positive numbers")
        if roi is not None:
            scales = [_cropped(s, region) for s, region in zip(scales, roi, strict=True)]
        sizes = [_scaled(c, x.shape[a], s) for a, s in zip(axes, scales, strict=True)]
    floats = tuple(s for s in scales or () if isinstance(s, float))
    given_scales = floats if scales is not None and len(floats) == len(scales) else None
    resized_axes = [
        i
        for i, a in enumerate(axes)
        if sizes[i] != x.shape[a]
        or (given_scales is not None and given_scales[i] != 1.0)
        or (roi and roi[i] != (0.0, 1.0))
    ]
    if not resized_axes:
        return x
    return ops.Resize(
        sizes=tuple(sizes[i] for i in resized_axes),
        axes=tuple(axes[i] for i in resized_axes),
        mode=mode,
        coordinates=coordinates,
        nearest_mode=nearest,
        cubic_a=c.float("cubic_coeff_a", -0.75),
        exclude_outside=c.flag("exclude_outside"),
        scales=None if given_scales is None else tuple(given_scales[i] for i in resized_axes),
        antialias=c.flag("antialias"),
        roi=None if roi is None else tuple(roi[i] for i in resized_axes),
        extrapolation=c.float("extrapolation_value", 0.0),
    )(x)


def _regions(c: Call, count: int) -> list[tuple[float, float]]:
    """(start, end) of each axis, as fractions of its size."""
    ends = [float(v) for v in c.sym(1, exact=True).items.reshape(-1) if isinstance(v, int | float)]
    if len(ends) != 2 * count:
        raise Unsupported(f"a region of {len(ends)} numbers for {count} axes")
    return list(zip(ends[:count], ends[count:], strict=True))


def _cropped(scale: Element, region: tuple[float, float]) -> float:
    """The scale relative to the whole axis, from one relative to the region."""
    if not isinstance(scale, int | float):
        raise Unsupported(f"a region scaled by {scale}")
    return scale * (region[1] - region[0])


def _elements(c: Call, i: int) -> list[Element]:
    """Scales as floats, sizes or ratios of sizes."""
    elements = cast(c.sym(i), T.f32)
    return [float(v) if not isinstance(v, Dim | Quotient) else v for v in elements.items.reshape(-1)]


@onnx_op("Upsample")
def upsample_7(c: Call) -> Result:
    scales = c.float_list("scales") or ()
    return _resize(c, scales, None, range(c.rank()), "asymmetric", "floor")


@onnx_op("Upsample", since=9)
@onnx_op("Resize", since=10)
def resize_10(c: Call) -> Result:
    return _resize(c, _elements(c, 1), None, range(c.rank()), "asymmetric", "floor")


@onnx_op("Resize", since=11)
def resize(c: Call) -> Result:
    coordinates = c.str("coordinate_transformation_mode", "half_pixel")
    if coordinates == "tf_half_pixel_for_nn":
        raise Unsupported(f"coordinate_transformation_mode {coordinates!r}")
    axes = normal_axes(c.int_list("axes"), c.rank()) if c.has_attr("axes") else tuple(range(c.rank()))
    nearest = c.str("nearest_mode", "round_prefer_floor")
    if c.has(3):
        sizes = [checked_size(c, d) for d in c.dims(3)]
        policy = c.str("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            return _resize(c, None, sizes, axes, coordinates, nearest)
        target = c.ints(3)
        input_sizes = ints_of([c.shape()[a] for a in axes], "an image whose aspect ratio is kept")
        ratios = [w / n for w, n in zip(target, input_sizes, strict=True)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        # half up, as ONNX's reference
        fitted = [math.floor(scale * n + 0.5) for n in input_sizes]
        return _resize(c, (scale,) * len(fitted), fitted, axes, coordinates, nearest)
    return _resize(c, _elements(c, 2), None, axes, coordinates, nearest)
