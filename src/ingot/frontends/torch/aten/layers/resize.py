"""Upsampling and grid sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ingot import ops
from ingot.autodiff import pullback
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, require_elements
from ingot.ir.dims import Dim, DimLike
from ingot.ir.node import Node

aten = Table()

Scales = tuple[float, ...] | None
Sizes = Sequence[DimLike]


def _resize(
    c: Context, x: Node, mode: str, coordinates: str, scales: Scales, *, nearest: str = "floor", antialias: bool = False
) -> Node:
    axes = tuple(range(2, x.type.rank))
    sizes = tuple(c.shape[a] for a in axes)
    require_elements(c, (*(x.shape[a] for a in axes), *sizes), "an image")
    if scales and not antialias and (mode == "linear" or coordinates == "asymmetric"):
        # an axis that keeps its size is copied, whatever the scale; a single element does not depend on the scale
        if any(isinstance(x.shape[a], Dim) and 1 < s < 1.5 for a, s in zip(axes, scales, strict=True)):
            raise Unsupported("a scale below 1.5 of a dynamic size, which PyTorch ignores where the size stays")
        scales = tuple(1.0 if x.shape[a] == n else s for a, n, s in zip(axes, sizes, scales, strict=True))
    # -0.75: PyTorch's cubic coefficient; with antialias PIL's -0.5
    a = -0.5 if antialias else -0.75
    return ops.Resize(
        sizes,
        axes,
        mode,
        coordinates,
        nearest_mode=nearest,
        cubic_a=a,
        exclude_outside=antialias,
        scales=scales,
        antialias=antialias,
    )(x)


def _known_scales(scales: Sequence[object] | None) -> Scales:
    """The call's scale factors where all are plain numbers; else None: they are computed from the sizes."""
    numbers = tuple(float(s) for s in scales or () if isinstance(s, int | float) and s > 0)
    return numbers if scales and len(numbers) == len(scales) else None


def _corner_scale(size: DimLike, out: DimLike) -> float:
    if isinstance(size, Dim) or isinstance(out, Dim) or (out == 1 < size):
        raise Unsupported("antialias with align_corners of a dynamic size, or to one element")
    return (out - 1) / (size - 1) if size > 1 else 1.0


def _nearest(exact: bool) -> tuple[Callable[..., Node], Callable[..., Node]]:
    coordinates, rounding = ("half_pixel", "round_prefer_ceil") if exact else ("asymmetric", "floor")

    def plain(
        c: Context, x: Node, output_size: Sequence[DimLike], *scales: float | None, **named: float | None
    ) -> Node:
        given_scales = _known_scales((*scales, *named.values()))
        return _resize(c, x, "nearest", coordinates, given_scales, nearest=rounding)

    def vec(c: Context, x: Node, output_size: object, scale_factors: Sequence[float] | None) -> Node:
        return _resize(c, x, "nearest", coordinates, _known_scales(scale_factors), nearest=rounding)

    return plain, vec


def _smooth(mode: str, antialias: bool = False) -> tuple[Callable[..., Node], Callable[..., Node]]:
    def plain(
        c: Context, x: Node, output_size: Sequence[DimLike], align_corners: bool, *scales: float | None,
        **named: float | None,
    ) -> Node:  # fmt: skip
        given_scales = _known_scales((*scales, *named.values()))
        if antialias and align_corners:
            # align_corners affects only the scale: the windows' centers are those of half pixels
            given_scales, align_corners = tuple(map(_corner_scale, x.shape[2:], c.shape[2:])), False
        return _resize(
            c, x, mode, "align_corners" if align_corners else "half_pixel", given_scales, antialias=antialias
        )

    def vec(
        c: Context, x: Node, output_size: object, align_corners: bool, scale_factors: Sequence[float] | None
    ) -> Node:
        return plain(c, x, (), align_corners, *(scale_factors or ()))

    return plain, vec


def _backward(forward: Callable[..., Node]) -> Callable[..., Node]:
    """The gradient of a resize of static sizes: see `decompositions.backward.resized`."""

    def backward(
        c: Context, grad: Node, output_size: Sequence[DimLike], input_size: Sequence[DimLike], *how: Any
    ) -> Node:
        x = ops.full(tuple(input_size), 0, grad.dtype)
        return pullback(lambda v: forward(replace(c, results=(grad.type,)), v, output_size, *how), x, grad)

    return backward


for _stem, _pair in {
    "upsample_nearest1d": _nearest(False), "upsample_nearest2d": _nearest(False),
    "upsample_nearest3d": _nearest(False), "_upsample_nearest_exact1d": _nearest(True),
    "_upsample_nearest_exact2d": _nearest(True), "_upsample_nearest_exact3d": _nearest(True),
    "upsample_linear1d": _smooth("linear"), "upsample_bilinear2d": _smooth("linear"),
    "upsample_trilinear3d": _smooth("linear"), "upsample_bicubic2d": _smooth("cubic"),
    "_upsample_bilinear2d_aa": _smooth("linear", True), "_upsample_bicubic2d_aa": _smooth("cubic", True),
}.items():  # fmt: skip
    aten.add(f"{_stem}.default", _pair[0])
    aten.add(f"{_stem}.vec", _pair[1])
    aten.add(f"{_stem}_backward.default", _backward(_pair[0]))


@aten("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def grid_sampler(
    c: Context, x: Node, grid: Node, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Node:
    mode = ("linear", "nearest", "cubic")[interpolation_mode]
    padding = ("zeros", "border", "reflection")[padding_mode]
    return ops.GridSample(mode, padding, align_corners)(x, grid)
