"""Matrix products and convolutions: an operand's cotangent is a product of the result's with the other operand."""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.autodiff.reverse import pull_back_cotangents
from ingot.autodiff.rules.transposed_kernel import summed_products, transposed_kernel_cotangent
from ingot.autodiff.table import reverse
from ingot.ir.dims import DimLike, is_static
from ingot.ir.node import Node
from ingot.ir.types import f32, static_shape


@reverse(ops.DotGeneral)
def _dot_general(node: Node, g: Node) -> list[Node]:
    op, (a, b) = node.op, node.inputs
    assert isinstance(op, ops.DotGeneral)
    free_a, free_b = op.free(len(a.shape), len(b.shape))
    batch = tuple(range(len(op.batch[0])))
    dims_a = tuple(range(len(batch), len(batch) + len(free_a)))
    dims_b = tuple(range(len(batch) + len(free_a), len(g.shape)))
    (batch_a, batch_b), (summed_a, summed_b) = op.batch, op.contract
    return [
        _operand_cotangent(op, g, b, batch, (batch_b, batch_a), (dims_b, free_b), free_a, (summed_b, summed_a), a),
        _operand_cotangent(op, g, a, batch, (batch_a, batch_b), (dims_a, free_a), free_b, (summed_a, summed_b), b),
    ]


def _operand_cotangent(
    op: ops.DotGeneral,
    g: Node,
    other: Node,
    batch: tuple[int, ...],
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    contract: tuple[tuple[int, ...], tuple[int, ...]],
    free: tuple[int, ...],
    summed: tuple[tuple[int, ...], tuple[int, ...]],
    like: Node,
) -> Node:
    """The cotangent of `like`. batches, summed: batch and contracted axes, each (of the other operand, of `like`)."""
    of_other, of_this = summed
    product = ops.DotGeneral((batch, batches[0]), contract, like.dtype, tf32=op.tf32)(g, other)
    # the axes of `like` in the order of the product's: batch, free axes of g, free axes of `other`, ascending
    other_contracted = sorted(of_other)
    order = [*batches[1], *free, *(of_this[of_other.index(d)] for d in other_contracted)]
    return ops.Transpose(tuple(order.index(d) for d in range(len(order))))(product)


@reverse(ops.Convolution)
def _convolution(node: Node, g: Node) -> list[Node] | list[Node | None]:
    """Both cotangents are convolutions: the image's of the cotangent with the flipped kernel, the kernel's of the image
    with the cotangent, with batch and channels exchanged. Those of a window that is the whole image are products."""
    op, (x, w) = node.op, node.inputs
    assert isinstance(op, ops.Convolution)
    if _covers_image(op, x, w):
        return pull_back_cotangents([(_as_product(op, x, w), g)], [x, w])
    if op.batch_groups > 1:
        return pull_back_cotangents([(_with_feature_groups(op, x, w), g)], [x, w])
    letters = op.spatial
    image = ops.Transpose(tuple(op.lhs_layout.index(c) for c in "NC" + letters))(x)
    kernel = ops.Transpose(tuple(op.rhs_layout.index(c) for c in "OI" + letters))(w)
    cotangent = ops.Transpose(tuple(op.out_layout.index(c) for c in "NC" + letters))(g)
    of_image, of_kernel = (
        _image_cotangent(op, image, kernel, cotangent),
        _kernel_cotangent(op, image, kernel, cotangent),
    )
    return [
        ops.Transpose(tuple(("NC" + letters).index(c) for c in op.lhs_layout))(of_image),
        ops.Transpose(tuple(("OI" + letters).index(c) for c in op.rhs_layout))(of_kernel),
    ]


def _covers_image(op: ops.Convolution, x: Node, w: Node) -> bool:
    """Whether the only window is the whole image."""
    sizes, taps = (
        [n.shape[layout.index(c)] for c in op.spatial] for n, layout in ((x, op.lhs_layout), (w, op.rhs_layout))
    )
    is_plain = op.feature_groups == op.batch_groups == 1 and {*op.lhs_dilation, *op.rhs_dilation} <= {1}
    return is_plain and sizes == taps and any(n != 1 for n in taps) and not any(p for pair in op.padding for p in pair)


def _as_product(op: ops.Convolution, x: Node, w: Node) -> Node:
    """The convolution as a product of matrices with the channels last."""
    image = ops.Transpose(tuple(op.lhs_layout.index(c) for c in f"N{op.spatial}C"))(x)
    kernel = ops.Transpose(tuple(op.rhs_layout.index(c) for c in f"O{op.spatial}I"))(w)
    summed = tuple(range(1, len(x.shape)))
    y = ops.DotGeneral(((), ()), (summed, summed), op.dtype, tf32=op.tf32)(image, kernel)
    sizes = dict(zip("NC", y.shape, strict=True))
    order = sorted("NC", key=op.out_layout.index)
    return ops.Reshape(tuple(sizes.get(c, 1) for c in op.out_layout))(
        y if order == ["N", "C"] else ops.swap_axes(y, 0, 1)
    )


def _with_feature_groups(op: ops.Convolution, x: Node, w: Node) -> Node:
    """The convolution with its batch groups turned into feature groups."""
    batch_axis, groups = op.lhs_layout.index("N"), op.batch_groups
    split = ops.Reshape((*x.shape[:batch_axis], groups, x.shape[batch_axis] // groups, *x.shape[batch_axis + 1 :]))(x)
    channel_axis = op.lhs_layout.index("C") + (op.lhs_layout.index("C") > batch_axis)
    order = [d for d in range(len(split.shape)) if d != batch_axis]
    order.insert(order.index(channel_axis), batch_axis)
    sizes = dict(zip(op.lhs_layout, x.shape, strict=True)) | {"N": x.shape[batch_axis] // groups}
    sizes["C"] = sizes["C"] * groups
    merged = ops.Reshape(tuple(sizes[c] for c in op.lhs_layout))(ops.Transpose(tuple(order))(split))
    return replace(op, feature_groups=groups, batch_groups=1)(merged, w)


def _dilated_size(size: DimLike, step: int) -> DimLike:
    return (size - 1) * step + 1


def _image_cotangent(op: ops.Convolution, image: Node, kernel: Node, g: Node) -> Node:
    groups, (out_channels, in_channels), window = op.feature_groups, kernel.shape[:2], kernel.shape[2:]
    flipped = ops.flip(kernel, tuple(range(2, len(kernel.shape))))
    grouped = ops.Reshape((groups, out_channels // groups, in_channels, *window))(flipped)
    transposed = ops.Reshape((groups * in_channels, out_channels // groups, *window))(ops.swap_axes(grouped, 1, 2))
    padding = []
    for i, (size, taps, out_size) in enumerate(zip(image.shape[2:], window, g.shape[2:], strict=True)):
        reach = _dilated_size(taps, op.rhs_dilation[i])
        low = reach - 1 - op.padding[i][0]
        high = _dilated_size(size, op.lhs_dilation[i]) + reach - 1 - _dilated_size(out_size, op.strides[i]) - low
        padding.append((low, high))
    geometry = op.lhs_dilation, tuple(padding), op.strides, op.rhs_dilation
    return _convolve(op, geometry, g, transposed, groups, image)


def _kernel_cotangent(op: ops.Convolution, image: Node, kernel: Node, g: Node) -> Node:
    groups, window = op.feature_groups, kernel.shape[2:]
    if image.dtype != g.dtype:  # of 16-bit operands with a result in f32, or the other way around
        wide = max(image.dtype, g.dtype, f32, key=lambda d: d.bits)
        image, g = ops.cast(image, wide), ops.cast(g, wide)
    batch, channels = image.shape[:2]
    channels_last = (0, *range(2, len(image.shape)), 1)
    is_depthwise = channels == groups > 1
    is_supported = is_depthwise or (groups == 1 and any(d != 1 for d in window))
    is_supported = is_supported and is_static(window) and all(d == 1 for d in op.lhs_dilation)
    if is_supported and all(lo >= 0 <= hi for lo, hi in op.padding):
        margins = (0, *(lo for lo, _ in op.padding), 0), (0, *(hi for _, hi in op.padding), 0)
        padded = ops.pad(ops.Transpose(channels_last)(image), *margins)
        gradient_op = ops.KernelGradient(
            static_shape(window), op.strides, op.rhs_dilation, is_depthwise, kernel.dtype, op.tf32
        )
        return gradient_op(padded, ops.Transpose(channels_last)(g))
    is_pointwise = all(d == 1 for d in (groups, *window, *op.lhs_dilation)) and all(p == (0, 0) for p in op.padding)
    if is_pointwise:
        sampled = image
        if any(d != 1 for d in op.strides):
            sampled = ops.Slice((0,) * len(image.shape), image.shape, (1, 1, *op.strides))(image)
        g, sampled = (ops.Transpose(channels_last)(v) for v in (g, sampled))
        return ops.Reshape(kernel.shape)(summed_products(g, sampled, kernel.dtype, op.tf32))
    is_transposed = groups == 1 and all(d == 1 for d in op.strides) and is_static((*window, *g.shape[2:]))
    if is_transposed and all(1 in pair for pair in zip(op.lhs_dilation, op.rhs_dilation, strict=True)):
        image, g = (ops.Transpose(channels_last)(v) for v in (image, g))
        return transposed_kernel_cotangent(op, image, g, kernel)
    grouped = ops.Reshape((batch, groups, channels // groups, *image.shape[2:]))(image)
    rest = range(3, len(grouped.shape))
    transposed = ops.Transpose((2, 1, 0, *rest))(grouped)
    lines = ops.Reshape((channels // groups, groups * batch, *image.shape[2:]))(transposed)
    padding = []
    for i, (size, taps, out_size) in enumerate(zip(image.shape[2:], window, g.shape[2:], strict=True)):
        low = op.padding[i][0]
        excess = (
            _dilated_size(out_size, op.strides[i])
            + _dilated_size(taps, op.rhs_dilation[i])
            - _dilated_size(size, op.lhs_dilation[i])
        )
        padding.append((low, excess - 1 - low))
    geometry = op.rhs_dilation, tuple(padding), op.lhs_dilation, op.strides
    gradient = _convolve(op, geometry, lines, ops.swap_axes(g, 0, 1), groups, kernel)
    return ops.swap_axes(gradient, 0, 1)


def _convolve(op: ops.Convolution, geometry: tuple, image: Node, kernel: Node, groups: int, like: Node) -> Node:
    letters = op.spatial
    strides, padding, lhs_dilation, rhs_dilation = geometry
    return ops.Convolution(
        strides, padding, lhs_dilation, rhs_dilation, "NC" + letters, "OI" + letters, "NC" + letters, groups,
        dtype=like.dtype, tf32=op.tf32,
    )(image, kernel)  # fmt: skip
