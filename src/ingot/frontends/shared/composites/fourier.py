"""Fourier transforms of the last axes."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.node import Node


def transform_along(z: Complex, axis: int, inverse: bool) -> Complex:
    """A transform along an axis; the inverse is divided by its length."""
    n = z.real.shape[axis]
    if inverse and not isinstance(n, int):
        raise Unsupported("the inverse along an open size")
    pair = [ops.swap_axes(v, axis, -1) for v in (z.real, z.imag)]
    scale = 1 / max(n, 1) if inverse and isinstance(n, int) else 1.0
    return Complex(*(ops.swap_axes(v, axis, -1) for v in ops.fourier(pair, inverse, scale)))


def fft(z: Complex, count: int, inverse: bool = False) -> Complex:
    """Along the last `count` axes."""
    for axis in range(z.real.type.rank - count, z.real.type.rank):
        z = transform_along(z, axis, inverse)
    return z


def rfft(x: Node, lengths: Sequence[int]) -> Complex:
    """The transform of real numbers, whose last axes are cut or padded with zeros to `lengths`; the last axis of the
    result has the non-redundant half."""
    count, rank = len(lengths), x.type.rank
    for axis, length in zip(range(rank - count, rank), lengths, strict=True):
        x = cut_or_pad(x, axis, length)
    z = Complex(*ops.real_fourier(x))
    for axis in range(rank - 2, rank - 1 - count, -1):
        z = transform_along(z, axis, False)
    return z


def irfft(z: Complex, lengths: Sequence[int]) -> Node:
    """The inverse of `rfft`: real numbers; lengths: of the result's last axes."""
    count, rank = len(lengths), z.real.type.rank
    halved = (*lengths[:-1], lengths[-1] // 2 + 1)
    for axis, length in zip(range(rank - count, rank), halved, strict=True):
        z = Complex(cut_or_pad(z.real, axis, length), cut_or_pad(z.imag, axis, length))
    for axis in range(rank - count, rank - 1):
        z = transform_along(z, axis, True)
    return ops.real_inverse((z.real, z.imag), lengths[-1], 1 / max(1, lengths[-1]))


def cut_or_pad(x: Node, axis: int, length: int) -> Node:
    """x with an axis cut or padded with zeros to `length`."""
    size = x.shape[axis]
    if size == length:
        return x
    if not isinstance(size, int):
        raise Unsupported("a transform along an open size")
    if size > length:
        return ops.slice_axis(x, axis, 0, length)
    zeros = (0,) * x.type.rank
    return ops.pad(x, zeros, tuple(length - size if i == axis else 0 for i in range(x.type.rank)))
