"""Complex numbers: pairs of real tensors."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.frontends.shared.composites import complex as f
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_one_shape
from ingot.frontends.stablehlo.values import Call, Table
from ingot.ir.node import Node

row, on_complex = Table(), Table()


@row("complex")
def complex_(c: Call, real: Node, imag: Node) -> Complex:
    require_one_shape((real, imag), c.op.name)
    return Complex(real, imag)


@row("real")
def real(c: Call, x: Node) -> Node:
    return x


@row("imag")
def imag(c: Call, x: Node) -> Node:
    return ops.full(x.shape, 0, x.dtype)


@on_complex("convert")
def convert(c: Call, z: Complex) -> Node | Complex:
    real = ops.cast(z.real, c.dtype)
    return Complex(real, ops.cast(z.imag, c.dtype)) if c.type.complex else real


@on_complex("bitcast_convert")
def bitcast_convert(c: Call, z: Complex) -> Complex:
    if not c.type.complex or c.dtype != z.real.dtype:
        raise Unsupported("of complex numbers to others")
    return z


@on_complex("compare")
def compare(c: Call, a: Complex, b: Complex) -> Node:
    direction = c.word("comparison_direction")
    if direction not in ("EQ", "NE"):
        raise Unsupported(f"{direction} of complex numbers")
    return (f.equal if direction == "EQ" else f.not_equal)(a, b)


def _function(name: str, of: Callable[[Complex], Complex | Node]) -> None:
    on_complex(name)(lambda c, z: of(z))


for _name, _of in {
    "exponential": f.exp, "log": f.log, "sqrt": f.sqrt, "rsqrt": f.rsqrt, "exponential_minus_one": f.expm1,
    "log_plus_one": f.log1p, "tanh": f.tanh, "tan": f.tan, "sine": f.sin, "cosine": f.cos, "logistic": f.logistic,
    "chlo.sinh": f.sinh, "chlo.cosh": f.cosh, "chlo.tan": f.tan, "chlo.asin": f.asin, "chlo.acos": f.acos,
    "chlo.atan": f.atan, "sign": f.sign, "chlo.square": f.square, "abs": f.modulus, "chlo.asinh": f.asinh,
    "chlo.acosh": f.acosh, "chlo.atanh": f.atanh, "chlo.conj": f.conj, "is_finite": f.is_finite,
    "real": lambda z: z.real, "imag": lambda z: z.imag,
}.items():  # fmt: skip
    _function(_name, _of)

on_complex("multiply")(lambda c, a, b: f.multiply(a, b))
on_complex("divide")(lambda c, a, b: f.divide(a, b))
on_complex("power")(lambda c, a, b: f.power(a, b))
