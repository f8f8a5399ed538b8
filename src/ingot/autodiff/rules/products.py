"""Sums of products: each operand's cotangent is a sum of products of the cotangent with the other operand."""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.autodiff.reverse import pull_back_cotangents
from ingot.autodiff.table import reverse
from ingot.ir.dims import DimLike, is_static, product
from ingot.ir.node import Node
from ingot.ir.types import static_shape


@reverse(ops.DotGeneral)
def _dot_general(node: Node, g: Node) -> list[Node]:
    op, (a, b) = node.op, node.inputs
    assert isinstance(op, ops.DotGeneral)
    free_a, free_b = op.free(len(a.shape), len(b.shape))
    batch = tuple(range(len(op.batch[0])))
    at_a = tuple(range(len(batch), len(batch) + len(free_a)))
    at_b = tuple(range(len(batch) + len(free_a), len(g.shape)))
    (batch_a, batch_b), (summed_a, summed_b) = op.batch, op.contract
    return [
        _operand(g, b, batch, (batch_b, batch_a), (at_b, free_b), free_a, (summed_b, summed_a), a),
        _operand(g, a, batch, (batch_a, batch_b), (at_a, free_a), free_b, (summed_a, summed_b), b),
    ]


def _operand(
    g: Node,
    other: Node,
    batch: tuple[int, ...],
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    contract: tuple[tuple[int, ...], tuple[int, ...]],
    free: tuple[int, ...],
    summed: tuple[tuple[int, ...], tuple[int, ...]],
    like: Node,
) -> Node:
    """The cotangent of `like`. batches, summed: pairs of axes, of the other operand and of this one."""
    of_other, of_this = summed
    product = ops.DotGeneral((batch, batches[0]), contract, like.dtype)(g, other)
    # the axes of `like` as the product has them: batch, g's free ones, the other's in ascending order
    left = sorted(of_other)
    order = [*batches[1], *free, *(of_this[of_other.index(d)] for d in left)]
    return ops.Transpose(tuple(order.index(d) for d in range(len(order))))(product)


@reverse(ops.Convolution)
def _convolution(node: Node, g: Node) -> list[Node] | list[Node | None]:
    """Both are convolutions: of the cotangent with the kernel turned around, and of the image with the cotangent, where
    batch and channels change places."""
    op, (x, w) = node.op, node.inputs
    assert isinstance(op, ops.Convolution)
    if op.batch_groups > 1:
        return pull_back_cotangents([(_as_features(op, x, w), g)], [x, w])
    letters = op.spatial
    image = ops.Transpose(tuple(op.lhs_layout.index(c) for c in "NC" + letters))(x)
    kernel = ops.Transpose(tuple(op.rhs_layout.index(c) for c in "OI" + letters))(w)
    out = ops.Transpose(tuple(op.out_layout.index(c) for c in "NC" + letters))(g)
    of_image, of_kernel = _of_image(op, image, kernel, out), _of_kernel(op, image, kernel, out)
    return [
        ops.Transpose(tuple(("NC" + letters).index(c) for c in op.lhs_layout))(of_image),
        ops.Transpose(tuple(("OI" + letters).index(c) for c in op.rhs_layout))(of_kernel),
    ]


def _as_features(op: ops.Convolution, x: Node, w: Node) -> Node:
    """Groups of a batch as groups of channels."""
    at, parts = op.lhs_layout.index("N"), op.batch_groups
    split = ops.Reshape((*x.shape[:at], parts, x.shape[at] // parts, *x.shape[at + 1 :]))(x)
    channels = op.lhs_layout.index("C") + (op.lhs_layout.index("C") > at)
    order = [d for d in range(len(split.shape)) if d != at]
    order.insert(order.index(channels), at)
    sizes = dict(zip(op.lhs_layout, x.shape, strict=True)) | {"N": x.shape[at] // parts}
    sizes["C"] = sizes["C"] * parts
    joined = ops.Reshape(tuple(sizes[c] for c in op.lhs_layout))(ops.Transpose(tuple(order))(split))
    return replace(op, feature_groups=parts, batch_groups=1)(joined, w)


def _dilated(size: DimLike, step: int) -> DimLike:
    return (size - 1) * step + 1


def _of_image(op: ops.Convolution, image: Node, kernel: Node, g: Node) -> Node:
    groups, (outs, ins), window = op.feature_groups, kernel.shape[:2], kernel.shape[2:]
    turned = ops.flip(kernel, tuple(range(2, len(kernel.shape))))
    parts = ops.Reshape((groups, outs // groups, ins, *window))(turned)
    back = ops.Reshape((groups * ins, outs // groups, *window))(ops.swap_axes(parts, 1, 2))
    padding = []
    for i, (size, taps, count) in enumerate(zip(image.shape[2:], window, g.shape[2:], strict=True)):
        reach = _dilated(taps, op.rhs_dilation[i])
        low = reach - 1 - op.padding[i][0]
        high = _dilated(size, op.lhs_dilation[i]) + reach - 1 - _dilated(count, op.strides[i]) - low
        padding.append((low, high))
    steps = op.lhs_dilation, tuple(padding), op.strides, op.rhs_dilation
    return _convolved(op, steps, g, back, groups, image)


def _of_kernel(op: ops.Convolution, image: Node, kernel: Node, g: Node) -> Node:
    groups, window = op.feature_groups, kernel.shape[2:]
    batch, channels = image.shape[:2]
    last = (0, *range(2, len(image.shape)), 1)
    depthwise = channels == groups > 1
    taken = depthwise or (groups == 1 and any(d != 1 for d in window))
    taken = taken and is_static(window) and all(d == 1 for d in op.lhs_dilation)
    if taken and all(lo >= 0 <= hi for lo, hi in op.padding):
        around = (0, *(lo for lo, _ in op.padding), 0), (0, *(hi for _, hi in op.padding), 0)
        padded = ops.pad(ops.Transpose(last)(image), *around)
        gradient = ops.KernelGradient(static_shape(window), op.strides, op.rhs_dilation, depthwise, kernel.dtype)
        return gradient(padded, ops.Transpose(last)(g))
    plain = all(d == 1 for d in (groups, *window, *op.lhs_dilation)) and all(p == (0, 0) for p in op.padding)
    if plain:
        # one reduction, which schedules can cut into parts that caches hold; of the places that were read
        seen = image
        if any(d != 1 for d in op.strides):
            seen = ops.Slice((0,) * len(image.shape), image.shape, (1, 1, *op.strides))(image)
        rows = [ops.Reshape((product((batch, *v.shape[2:])), v.shape[1]))(ops.Transpose(last)(v)) for v in (g, seen)]
        return ops.Reshape(kernel.shape)(ops.DotGeneral(((), ()), ((0,), (0,)), kernel.dtype)(*rows))
    parts = ops.Reshape((batch, groups, channels // groups, *image.shape[2:]))(image)
    rest = range(3, len(parts.shape))
    turned = ops.Transpose((2, 1, 0, *rest))(parts)
    lines = ops.Reshape((channels // groups, groups * batch, *image.shape[2:]))(turned)
    padding = []
    for i, (size, taps, count) in enumerate(zip(image.shape[2:], window, g.shape[2:], strict=True)):
        low = op.padding[i][0]
        more = _dilated(count, op.strides[i]) + _dilated(taps, op.rhs_dilation[i]) - _dilated(size, op.lhs_dilation[i])
        padding.append((low, more - 1 - low))
    steps = op.rhs_dilation, tuple(padding), op.lhs_dilation, op.strides
    found = _convolved(op, steps, lines, ops.swap_axes(g, 0, 1), groups, kernel)
    return ops.swap_axes(found, 0, 1)


def _convolved(op: ops.Convolution, steps: tuple, image: Node, kernel: Node, groups: int, like: Node) -> Node:
    letters = op.spatial
    strides, padding, lhs_dilation, rhs_dilation = steps
    return ops.Convolution(
        strides, padding, lhs_dilation, rhs_dilation, "NC" + letters, "OI" + letters, "NC" + letters, groups,
        dtype=like.dtype,
    )(image, kernel)  # fmt: skip
