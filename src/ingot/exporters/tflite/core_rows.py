"""Ops of the CORE level (StableHLO's) as the ops of models that TFLite has operators for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.exporters.tflite.emitter import Emitter, row, shape_of
from ingot.exporters.tflite.numbers import constant_of, moved_levels
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.node import Node, const, splat_of
from ingot.ir.rewrite import Rule, rules

# --- convolutions


@row(ops.Convolution)
def convolution(e: Emitter, n: Node) -> Node:
    """conv(x) in the order N, C, ..., between transposes to the op's layouts. A dilated image is a transposed one."""
    assert isinstance(n.op, ops.Convolution)
    op, (x, w), letters = n.op, n.inputs, n.op.spatial
    if op.of_signs:
        raise Unsupported("of words of signs")
    if len(letters) == 1:
        return _of_lines(n, op)
    if constant_of(w) is None or op.batch_groups > 1 or len(letters) != 2:
        raise Unsupported("of constant weights in one or two dimensions only")
    x = _transposed(x, [op.lhs_layout.index(c) for c in "NC" + letters])
    is_transposed = any(d > 1 for d in op.lhs_dilation)
    w = _transposed(w, [op.rhs_layout.index(c) for c in ("IO" if is_transposed else "OI") + letters])
    if is_transposed:
        y = _of_dilated(op, x, w)
    else:
        y = ops.Conv(op.strides, op.padding, op.rhs_dilation, op.feature_groups, op.dtype)(x, w, loc=n.loc)
    return _transposed(y, [("NC" + letters).index(c) for c in op.out_layout])


def _of_lines(n: Node, op: ops.Convolution) -> Node:
    """A one-dimensional convolution, as one of images with a single row."""
    (letter,) = op.spatial

    def wide(x: Node, layout: str) -> Node:
        axis = layout.index(letter)
        view = ops.Reshape((*x.shape[:axis], 1, *x.shape[axis:]))
        levels = moved_levels(view, x)
        value = constant_of(x)
        return levels or (view(x) if value is None else const(value.reshape(view.shape), loc=x.loc))

    lhs, rhs, output = (
        layout.replace(letter, "h" + letter) for layout in (op.lhs_layout, op.rhs_layout, op.out_layout)
    )
    image = ops.Convolution(
        (1, *op.strides), ((0, 0), *op.padding), (1, *op.lhs_dilation), (1, *op.rhs_dilation), lhs, rhs, output,
        op.feature_groups, op.batch_groups, op.dtype,
    )  # fmt: skip
    return ops.Reshape(n.shape)(image(wide(n.inputs[0], op.lhs_layout), wide(n.inputs[1], op.rhs_layout), loc=n.loc))


def _of_dilated(op: ops.Convolution, x: Node, w: Node) -> Node:
    """The full transposed convolution with the reversed kernel, cropped by K - 1 - padding at each end."""
    spans = [int(str(k)) - 1 for k in w.shape[2:]]
    crops = [(k - low, k - high) for k, (low, high) in zip(spans, op.padding, strict=True)]
    is_plain = set(op.strides) == set(op.rhs_dilation) == {1} and op.feature_groups == 1
    if not is_plain or min(map(min, crops)) < 0 or len(spans) != 2:
        raise Unsupported("of dilated images with strides, groups, or padding beyond the kernel")
    value = constant_of(w)
    assert value is not None
    kernel = const(value[:, :, ::-1, ::-1])
    return ops.ConvTranspose(op.lhs_dilation, tuple(crops), (0, 0), (1, 1))(x, kernel)


def _transposed(x: Node, order: Sequence[int]) -> Node:
    """A transpose, folded for constants."""
    if list(order) == sorted(order):
        return x
    op = ops.Transpose(tuple(order))
    if (levels := moved_levels(op, x)) is not None:
        return levels
    value = constant_of(x)
    return op(x) if value is None else const(value.transpose(order), loc=x.loc)


# --- windows


@row(ops.ReduceWindow)
def reduce_window(e: Emitter, n: Node) -> Node:
    """A pool over the last axes, or those before the channels; a sum is the mean times the number of elements."""
    assert isinstance(n.op, ops.ReduceWindow)
    op, rank = n.op, n.type.rank
    if op.kind not in ("sum", "max") or set(op.base_dilation) != {1} or rank not in (3, 4) or not n.dtype.is_float:
        raise Unsupported(f"of kind {op.kind} over {n.type}")
    if rank == 3:
        x = ops.expand_dims(n.inputs[0], 1)
        pads: list[tuple[int, int]] = [(0, 0), *op.padding]
        window, strides = (op.window[0], 1, *op.window[1:]), (op.strides[0], 1, *op.strides[1:])
        padding, ones = (pads[1], pads[0], *pads[2:]), (1, *op.base_dilation)
        image = ops.ReduceWindow(op.kind, window, strides, padding, (1, *op.dilation), ones)
        return ops.Reshape(n.shape)(image(x, loc=n.loc))
    window_axes = [d for d in range(rank) if op.window[d] > 1 or op.strides[d] > 1 or any(op.padding[d])]
    last = tuple(range(2, rank))
    order = tuple(range(rank)) if set(window_axes) <= set(last) else (0, rank - 1, *range(1, rank - 1))
    if not {order.index(d) for d in window_axes} <= set(last):
        raise Unsupported(f"over dimensions {window_axes}")
    window, strides, dilation = (
        tuple(values[order[d]] for d in last) for values in (op.window, op.strides, op.dilation)
    )
    padding = tuple(op.padding[order[d]] for d in last)
    if set(dilation) != {1}:
        raise Unsupported("with holes")
    x = _transposed(n.inputs[0], order)
    inverse = [order.index(d) for d in range(rank)]
    if op.kind == "max":
        return _transposed(ops.MaxPool(window, strides, padding, dilation)(x, loc=n.loc), inverse)
    counts = op.reference(np.ones(shape_of(n.inputs[0]), np.float32))
    if (counts == counts.reshape(-1)[0]).all():
        counts = counts.reshape(-1)[:1].reshape(())
    mean = ops.AvgPool(window, strides, padding, dilation, count_include_pad=False)(x, loc=n.loc)
    return ops.mul(_transposed(mean, inverse), const(counts))


# --- lookups


@row(ops.Gather)
def gather(e: Emitter, n: Node) -> Node:
    """A gather of complete slices at indices of one axis, or of the leading axes."""
    assert isinstance(n.op, ops.Gather)
    op, (x, indices) = n.op, n.inputs
    axes, rank = op.start_index_map, x.type.rank
    are_whole = all(size == x.shape[d] for d, size in enumerate(op.slice_sizes) if d not in axes)
    vectors = op.index_vector_dim
    if op.operand_batching_dims or tuple(op.collapsed_slice_dims) != tuple(axes) or not are_whole:
        raise Unsupported("of slices that are not whole")
    if vectors < indices.type.rank - 1:
        raise Unsupported("by indices that do not come last")
    batch = indices.type.rank - (vectors < indices.type.rank)
    if len(axes) == 1:
        (axis,) = axes
        if tuple(op.offset_dims) == (*range(axis), *range(axis + batch, rank - 1 + batch)):
            flat = ops.reshape(indices, tuple(indices.shape[:batch]))
            return ops.Take(axis)(x, flat, loc=n.loc)
    if tuple(axes) == tuple(range(len(axes))) and tuple(op.offset_dims) == tuple(range(batch, n.type.rank)):
        return ops.GatherND()(x, indices, loc=n.loc)
    raise Unsupported("in an order that no operator has")


# --- functions in arithmetic


def _softmax(n: Node) -> Node | None:
    """e / sum(e), e = exp(x - m)   ->   softmax(x)     along one axis, where m is the same along it"""
    e, total = n.inputs
    if not isinstance(e.op, ops.Exp) or not n.dtype.is_float:
        return None
    axis = _summed_axis(total, e)
    if axis is None:
        return None
    (x,) = e.inputs
    if isinstance(x.op, ops.Sub) and _is_same_along(x.inputs[1], axis):
        x = x.inputs[0]
    else:
        return None  # exp may overflow, where softmax does not
    return ops.Softmax(axis)(x, loc=n.loc)


def _summed_axis(total: Node, e: Node) -> int | None:
    """The axis along which `total`, broadcast to e's shape, is the sum of e."""
    dims = _kept_dims(total, e.type.rank)
    source = _before_views(total)
    if dims is None or not isinstance(source.op, ops.Reduce) or source.op.kind != "sum" or source.inputs[0] is not e:
        return None
    (axis, *other_axes) = source.op.dims
    return axis if not other_axes and axis not in dims else None


def _before_views(n: Node) -> Node:
    while isinstance(n.op, ops.BroadcastInDim | ops.Reshape):
        (n,) = n.inputs
    return n


def _kept_dims(n: Node, rank: int) -> tuple[int, ...] | None:
    """The dimensions along which the elements of a broadcast vary; None if the node is not a broadcast."""
    if not isinstance(n.op, ops.BroadcastInDim) or n.type.rank != rank:
        return None
    (x,) = n.inputs
    return tuple(d for d, size in zip(n.op.dims, x.shape, strict=True) if size != 1)


def _is_same_along(n: Node, axis: int) -> bool:
    dims = _kept_dims(n, n.type.rank)
    return dims is not None and axis not in dims


def _logistic(n: Node) -> Node | None:
    """1 / (1 + exp(-x))   ->   logistic(x)"""
    one, total = n.inputs
    if splat_of(one) != 1 or not isinstance(total.op, ops.Add) or not n.dtype.is_float:
        return None
    for e, other in (total.inputs, total.inputs[::-1]):
        if splat_of(other) == 1 and isinstance(e.op, ops.Exp) and isinstance(e.inputs[0].op, ops.Neg):
            return ops.Logistic()(e.inputs[0].inputs[0], loc=n.loc)
    return None


ARITHMETIC = rules(Rule("softmax", ops.Div, _softmax), Rule("logistic", ops.Div, _logistic))
