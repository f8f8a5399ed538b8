"""Multiply-adds of one rounding, for machines that have no instruction for them.

fma(a, b, c)   ->   f32: the sum of the exact product, in f64, rounded to odd and then to f32
                    f64: the product and the sum in two parts each
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr, Fma
from ingot.ir.kernel.math.words import absolute, is_below, lit, two_sum
from ingot.ir.kernel.rewrite import Rewriter
from ingot.ir.types import f32, f64, i64

# functions whose error bounds rest on exact remainders; two roundings cost the others at most a bit
EXACT_FUNCTIONS = frozenset({"sin", "cos", "tan", "sinh", "cosh", "pow"})


def unfused(value: Expr, operands: Sequence[Expr]) -> Expr:
    """Return the expression with exact arithmetic for its multiply-adds, but not for those within `operands`."""
    return _Unfused(operands).of(value)


class _Unfused(Rewriter):
    def __init__(self, operands: Sequence[Expr]) -> None:
        super().__init__()
        self.images = {id(e): (e, e) for e in operands}

    def expr(self, e: Expr) -> Expr:
        if not isinstance(e, Fma) or e.dtype not in (f32, f64):
            return e
        return (_fma_f32 if e.dtype == f32 else _fma_f64)(e.a, e.b, e.c)


def _fma_f32(a: Expr, b: Expr, c: Expr) -> Expr:
    """Round to odd (Boldo and Melquiond, 2008): a last bit of 1 stands for what the sum in f64 lost."""
    total, lost = two_sum(k.mul(k.cast(a, f64), k.cast(b, f64)), k.cast(c, f64))
    bits = k.bitcast(total, i64)
    one, zero = k.lit(1, i64, bits.lanes, bits.tile), lit(0.0, total)
    positive, negative = (k.binary(fn, lost, zero) for fn in ("gt", "lt"))
    inexact = k.binary("and", k.binary("or", positive, negative), is_below(absolute(total), float("inf")))
    even = k.binary("eq", k.binary("and", bits, one), k.lit(0, i64, bits.lanes, bits.tile))
    outwards = k.binary("eq", positive, k.binary("gt", total, zero))
    odd = k.add(bits, k.select(outwards, one, k.lit(-1, i64, bits.lanes, bits.tile)))
    return k.cast(k.bitcast(k.select(k.binary("and", inexact, even), odd, bits), f64), f32)


def _fma_f64(a: Expr, b: Expr, c: Expr) -> Expr:
    """Dekker's product (1971) and Knuth's sum; two roundings beyond the range in which they are exact."""
    product = k.mul(a, b)
    (a_high, a_low), (b_high, b_low) = map(_halves, (a, b))
    low = k.sub(k.mul(a_high, b_high), product)
    low = k.add(k.add(low, k.mul(a_high, b_low)), k.mul(a_low, b_high))
    low = k.add(low, k.mul(a_low, b_low))
    total, lost = two_sum(product, c)
    plain = k.add(product, c)
    in_range = k.binary("ge", absolute(product), lit(1e-270, a))
    for x, limit in ((product, 1e300), (a, 1e290), (b, 1e290), (total, 1e300)):
        in_range = k.binary("and", in_range, is_below(absolute(x), limit))
    return k.select(in_range, k.add(total, k.add(lost, low)), plain)


def _halves(x: Expr) -> tuple[Expr, Expr]:
    """x as a sum of two numbers of 26 bits (Veltkamp)."""
    scaled = k.mul(x, lit(134217729.0, x))
    high = k.sub(scaled, k.sub(scaled, x))
    return high, k.sub(x, high)
