"""Fourier transforms, and ops on their complex results."""

from __future__ import annotations

from ingot.frontends.shared.composites.complex import Complex, modulus
from ingot.frontends.shared.composites.fourier import rfft
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.ir.node import Node

row = Table()


@row("RFFT2D")
def rfft2d(c: Call) -> Complex:
    """The transform of the last two axes, cut or zero-padded to the second operand's lengths."""
    lengths = c.ints(1)
    x = c.x()
    if len(lengths) != 2 or x.type.rank < 2:
        raise Unsupported(f"lengths {list(lengths)} for {x.type}")
    return rfft(x, lengths)


@row("REAL")
def real(c: Call) -> Node:
    return c.z().real


@row("IMAG")
def imag(c: Call) -> Node:
    return c.z().imag


@row("COMPLEX_ABS")
def magnitude(c: Call) -> Node:
    return modulus(c.z())
