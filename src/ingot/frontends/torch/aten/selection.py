"""Ops whose result size depends on data, and torchvision's ops on boxes: the size is a symbol found at run time."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, axis_of, broadcast_shape, cast, expand, i64
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node
from ingot.ops.select import Groups

aten = Table()


def selected(c: Context, mask: Node, like: DimLike | None, spanned: bool = True) -> Node:
    """i64[k]: the flat positions of the mask's true elements. like: torch's expression for their number. spanned:
    whether torch's range of it is reliable."""
    places, count = ops.true_indices(mask)
    return cut(places, 0, 0, c.sizes.computed_size(count, mask.type.size, like, spanned))


@aten("nonzero.default", "argwhere.default")
def nonzero(c: Context, x: Node) -> Node:
    flat = selected(c, ops.nonzero_mask(x), c.shape[0])
    if not x.shape:
        return filled((flat.shape[0], 0), 0, i64)
    return ops.stack(ops.coordinates(flat, x.shape), 1)


@aten("nonzero_numpy.default")
def nonzero_numpy(c: Context, x: Node) -> tuple[Node, ...]:
    x = x if x.shape else reshape(x, (1,))
    return tuple(ops.coordinates(selected(c, ops.nonzero_mask(x), c.shape[0]), x.shape))


@aten("masked_select.default")
def masked_select(c: Context, x: Node, mask: Node) -> Node:
    shape = broadcast_shape([x.shape, mask.shape])
    # torch uses x's size as the bound, although broadcasting with the mask may exceed it
    places = selected(c, expand(mask, shape), c.shape[0], spanned=x.shape == shape)
    x = expand(x, shape)
    return ops.Take(0)(reshape(x, (x.type.size,)), places)


def indices_of(c: Context, mask: Node, like: DimLike | None) -> list[Node]:
    """The coordinates of a mask's true elements: a mask as an index stands for them."""
    return ops.coordinates(selected(c, ops.nonzero_mask(mask), like), mask.shape)


def _unique(c: Context, x: Node, axis: int | None, **how: bool) -> tuple[Node, Groups, DimLike]:
    """(values, the groups, the number of groups) of the elements, or of the slices along an axis."""
    line = reshape(x, (x.type.size,)) if axis is None else x
    axis_ = axis or 0
    rows = ops.transpose(line, (axis_, *(d for d in range(line.type.rank) if d != axis_)))
    groups = ops.equal_rows(reshape(rows, (rows.shape[0], product(rows.shape[1:]))), **how)
    size = c.sizes.computed_size(groups.count, rows.shape[0], c.shape[axis_])
    return ops.Take(axis_)(line, cut(groups.first, 0, 0, size)), groups, size


def _results(values: Node, groups: Groups, size: DimLike, shape: tuple[DimLike, ...]) -> tuple[Node, Node, Node]:
    return values, reshape(groups.inverse, shape), cut(groups.counts, 0, 0, size)


@aten("_unique2.default")
def unique2(
    c: Context, x: Node, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Node, ...]:
    values, groups, size = _unique(c, x, None)
    return _requested_results(c, *_results(values, groups, size, x.shape))


@aten("_unique.default")
def unique(c: Context, x: Node, sorted: bool = True, return_inverse: bool = False) -> tuple[Node, ...]:
    values, groups, size = _unique(c, x, None)
    return _requested_results(c, *_results(values, groups, size, x.shape)[:2])


@aten("unique_dim.default")
def unique_dim(
    c: Context, x: Node, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Node, ...]:
    axis = axis_of(dim, x.type.rank)
    values, groups, size = _unique(c, x, axis)
    return _requested_results(c, *_results(values, groups, size, (x.shape[axis],)))


@aten("unique_consecutive.default")
def unique_consecutive(
    c: Context, x: Node, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Node, ...]:
    axis = None if dim is None else axis_of(dim, x.type.rank)
    values, groups, size = _unique(c, x, axis, ordered=False)
    return _requested_results(c, *_results(values, groups, size, x.shape if axis is None else (x.shape[axis],)))


def _requested_results(c: Context, *results: Node) -> tuple[Node, ...]:
    """The results, empty where they were not requested, as in torch."""
    return tuple(
        filled((0,), 0, r.dtype) if want.shape == (0,) and r.shape != (0,) else r
        for r, want in zip(results, c.results, strict=True)
    )


@aten("repeat_interleave.Tensor")
def repeats(c: Context, repeats: Node, *, output_size: DimLike | None = None) -> Node:
    return _repeated(c, repeats, output_size, c.shape[0])


def _repeated(c: Context, repeats: Node, output_size: DimLike | None, like: DimLike) -> Node:
    if output_size is None:
        output_size = c.sizes.computed_size(ops.reduce_sum(cast(repeats, i64)), None, like)
    return ops.repeat_indices(repeats, output_size)


@aten("repeat_interleave.self_Tensor")
def repeat_interleave(
    c: Context, x: Node, repeats: Node, dim: int | None = None, *, output_size: DimLike | None = None
) -> Node:
    if dim is None:
        x, dim = reshape(x, (x.type.size,)), 0
    axis = axis_of(dim, x.type.rank)
    if repeats.type.size == 1:
        repeats = expand(reshape(repeats, (1,)), (x.shape[axis],))
    return ops.Take(axis)(x, _repeated(c, repeats, output_size, c.shape[axis]))


@aten("bincount.default")
def bincount(c: Context, x: Node, weights: Node | None = None, minlength: DimLike = 0) -> Node:
    (n,) = x.shape
    min_length = ops.scalar(minlength, i64)
    values = cast(x, i64)
    # the maximum of no elements would be the least integer
    count = ops.maximum(ops.add(ops.reduce_max(values), 1), min_length) if n != 0 else min_length
    size = c.sizes.computed_size(count, None, c.shape[0])
    summands = filled((n,), 1, c.dtype) if weights is None else cast(weights, c.dtype)
    return ops.ScatterElements(0, "add")(filled((size,), 0, c.dtype), values, summands)


@aten("torchvision.nms.default")
def nms(c: Context, boxes: Node, scores: Node, iou_threshold: float) -> Node:
    """The indices of the boxes that are kept, best first (torchvision.ops.nms)."""
    (n,) = scores.shape
    _, order = ops.Sort(0, True)(scores, ops.arange(n)).results
    corners = ops.expand_dims(ops.transpose(ops.Take(0)(boxes, order), (1, 0)), 0)
    is_kept = ops.SuppressOverlaps()(
        corners, ops.reshape(ops.scalar(n, i64), (1,)), ops.scalar(n, i64), _at_most(iou_threshold, boxes)
    )
    return ops.Take(0)(order, selected(c, is_kept, c.shape[0]))


def _at_most(threshold: float, boxes: Node) -> Node:
    """The largest number of the boxes' dtype that is not above the threshold: torchvision compares in doubles."""
    number = boxes.dtype.numpy.type(threshold)
    if float(number) > threshold:
        number = np.nextafter(number, number.dtype.type(-np.inf))
    return ops.scalar(float(number), boxes.dtype)


@aten("torchvision.roi_align.default")
def roi_align(
    c: Context, x: Node, rois: Node, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
    aligned: bool,
) -> Node:  # fmt: skip
    if sampling_ratio <= 0:
        raise Unsupported("a number of samples that depends on the regions (sampling_ratio 0)")
    image = cast(reshape(cut(rois, 1, 0, 1), (rois.shape[0],)), i64)
    boxes = ops.mul(cut(rois, 1, 1, 5), spatial_scale)
    return ops.roi_align(x, boxes, image, (pooled_height, pooled_width), sampling_ratio, half_pixel=aligned)
