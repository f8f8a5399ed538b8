"""Fourier transforms, and complex numbers, which they make."""

from __future__ import annotations

import math

from ingot import ops
from ingot.frontends.shared.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.ir.node import Node

row = Table()


@row("RFFT2D")
def rfft2d(c: Call) -> Complex:
    """Of the last two axes, cut or filled with zeros to the lengths that the second operand has."""
    lengths = c.ints(1)
    x = c.x()
    if len(lengths) != 2 or x.type.rank < 2:
        raise Unsupported(f"lengths {list(lengths)} for {x.type}")
    for axis, length in zip((-2, -1), lengths, strict=True):
        x = _of_length(x, axis, length)
    real, imag = ops.real_fourier(x)
    if lengths[0] > 1:
        turned = ops.fourier([ops.swap_axes(v, -1, -2) for v in (real, imag)])
        real, imag = (ops.swap_axes(v, -1, -2) for v in turned)
    return Complex(real, imag)


def _of_length(x: Node, axis: int, length: int) -> Node:
    size = x.shape[axis]
    if not isinstance(size, int):
        raise Unsupported("a transform along an open size")
    if size >= length:
        return x if size == length else ops.slice_axis(x, axis, 0, length)
    more = tuple(length - size if i == x.type.rank + axis else 0 for i in range(x.type.rank))
    return ops.pad(x, (0,) * x.type.rank, more)


@row("REAL")
def real(c: Call) -> Node:
    return c.z().real


@row("IMAG")
def imag(c: Call) -> Node:
    return c.z().imag


@row("COMPLEX_ABS")
def magnitude(c: Call) -> Node:
    """Scaled by the larger part, so that no square overflows; infinite where a part is, beside NaN too."""
    a, b = (ops.apply(ops.Abs(), v) for v in (c.z().real, c.z().imag))
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    share = ops.div(small, ops.where(ops.compare("EQ", large, 0), 1.0, large))
    size = ops.mul(large, ops.apply(ops.Sqrt(), ops.add(ops.mul(share, share), 1.0)), c.loc)
    infinite = ops.or_(ops.compare("EQ", a, math.inf), ops.compare("EQ", b, math.inf))
    return ops.where(infinite, math.inf, size)
