"""Convolutions whose paddings, strides and dilations are sizes.

    conv(x, w, padding=n // 2)   ->   conv(pad(x, n // 2), w)
    conv(x, w, stride=n)         ->   conv(x[o * n + k], w, stride=K)       for places o and the K taps of the kernel

Attributes of ops are numbers. A symbolic one becomes a movement of elements, which adds no product to those of the
definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot import ops
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.values import i64
from ingot.ir.dims import Dim, DimLike, floordiv
from ingot.ir.node import Node

Sizes = tuple[DimLike, ...]
Convolve = Callable[[Node, Node, tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...]], Node]


def symbolic(*values: object) -> bool:
    return any(isinstance(v, Dim) for v in values)


def convolved(x: Node, weight: Node, strides: Sizes, padding: Sequence[Sizes], dilation: Sizes, run: Convolve) -> Node:
    """`run`(x, weight, strides, padding, dilation) with plain numbers, on x[N,C,*S] padded and gathered first where
    some are symbolic."""
    steps: list[int] = []
    rest_padding: list[tuple[int, int]] = []
    unfused_axes: list[int] = []
    removed: list[tuple[int, DimLike]] = []
    for axis, (kernel, step, (low, high), dilated) in enumerate(
        zip(weight.shape[2:], strides, padding, dilation, strict=True), 2
    ):
        if symbolic(low, high, step, dilated):
            x = padded(x, axis, low, high)
            low = high = 0
        if symbolic(step, dilated) and isinstance(kernel, int):
            x = _picked(x, axis, kernel, step, dilated)
            step, dilated = kernel, 1
        elif isinstance(step, Dim):
            removed.append((axis, step))
            step = 1
        if not isinstance(dilated, int) or not isinstance(low, int) or not isinstance(high, int):
            raise Unsupported(f"a dilation {dilated} and a kernel {kernel} of symbolic size")
        assert isinstance(step, int)
        steps.append(step)
        rest_padding.append((low, high))
        unfused_axes.append(dilated)
    result = run(x, weight, tuple(steps), tuple(rest_padding), tuple(unfused_axes))
    for axis, step in removed:
        result = _every_nth(result, axis, step)
    return result


def padded(x: Node, axis: int, low: DimLike, high: DimLike) -> Node:
    """x padded with zeros along `axis`, or cropped where an amount is negative."""
    zeros = (0,) * x.type.rank
    return ops.pad(x, (*zeros[:axis], low, *zeros[axis + 1 :]), (*zeros[:axis], high, *zeros[axis + 1 :]))


def _picked(x: Node, axis: int, kernel: int, step: DimLike, dilation: DimLike) -> Node:
    """The elements under the kernel's taps for each output position, one position after the other."""
    places = floordiv(x.shape[axis] - (kernel - 1) * dilation - 1, step) + 1
    shape = (places, kernel)
    scale = [filled(shape, v, i64) for v in (step, dilation)]
    indices = ops.Add()(*(ops.Mul()(ops.iota(shape, d), s) for d, s in enumerate(scale)))
    return ops.Take(axis)(x, reshape(indices, (places * kernel,)))


def _every_nth(x: Node, axis: int, step: DimLike) -> Node:
    """x[::step]."""
    size = x.shape[axis]
    count = floordiv(size - 1, step) + 1
    extended = padded(x, axis, 0, count * step - size)
    parts = reshape(extended, (*x.shape[:axis], count, step, *x.shape[axis + 1 :]))
    first = cut(parts, axis + 1, 0, 1)
    return reshape(first, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
