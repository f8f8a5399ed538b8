"""Scalar rules of several kernel expressions, mostly for integers and booleans."""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr, Lit
from ingot.ir.kernel.math.words import power_by_squaring
from ingot.ir.types import DTYPES, boolean


def _lit(value: int | float, like: Expr) -> Lit:
    return k.lit(value, like.dtype, like.lanes, like.tile)


def sign(x: Expr) -> Expr:
    """-1, 0 or 1; see `Sign`."""
    if not x.dtype.is_float:
        one, zero = _lit(1, x), _lit(0, x)
        positive = k.select(k.binary("gt", x, zero), one, zero)
        return positive if x.dtype.kind == "u" else k.select(k.binary("lt", x, zero), _lit(-1, x), positive)
    # |x| > 0 is false for zeros and NaN, which give themselves
    nonzero = k.binary("gt", k.unary("abs", x), _lit(0.0, x))
    return k.select(nonzero, k.binary("copysign", _lit(1.0, x), x), x)


def div(a: Expr, b: Expr) -> Expr:
    """Truncating division that never traps: x / 0 has all bits set, lowest / -1 = lowest; see `Div`."""
    if a.dtype.is_float:
        return k.binary("div", a, b)
    if isinstance(b, Lit) and b.value not in (0, -1):
        return k.binary("div", a, b)
    is_zero = k.binary("eq", b, _lit(0, b))
    if a.dtype.kind == "u":
        return k.select(is_zero, _lit(a.dtype.range[1], a), k.binary("div", a, k.select(is_zero, _lit(1, b), b)))
    is_minus_one = k.binary("eq", b, _lit(-1, b))
    quotient = k.binary("div", a, k.select(k.binary("or", is_zero, is_minus_one), _lit(1, b), b))
    return k.select(is_zero, _lit(-1, a), k.select(is_minus_one, k.unary("neg", a), quotient))


def rem(a: Expr, b: Expr) -> Expr:
    """The remainder with the sign of a, never trapping: x rem 0 = x, x rem -1 = 0; see `Rem`."""
    if a.dtype.is_float:
        return k.binary("rem", a, b)
    if isinstance(b, Lit) and b.value not in (0, -1):
        return k.binary("rem", a, b)
    is_zero = k.binary("eq", b, _lit(0, b))
    is_special = is_zero if a.dtype.kind == "u" else k.binary("or", is_zero, k.binary("eq", b, _lit(-1, b)))
    return k.select(is_zero, a, k.binary("rem", a, k.select(is_special, _lit(1, b), b)))


def shift(fn: str, a: Expr, b: Expr) -> Expr:
    """The shift `fn` (shl, lshr, ashr); amounts that are negative or not below the width shift out all bits."""
    bits = a.dtype.bits
    unsigned, signed = (DTYPES[f"{kind}{bits}"] for kind in "ui")
    amount = k.cast(b, unsigned)
    last = k.lit(bits - 1, unsigned)
    if fn == "ashr":
        wide = k.binary("ashr", k.cast(a, signed), k.cast(k.binary("min", amount, last), signed))
        return k.cast(wide, a.dtype)
    safe = k.binary("min", amount, last)
    shifted = k.cast(k.binary(fn, k.cast(a, unsigned), safe), a.dtype)
    if isinstance(b, Lit) and 0 <= b.value < bits:
        return shifted
    return k.select(k.binary("gt", amount, last), _lit(0, a), shifted)


def compare(fn: str, a: Expr, b: Expr) -> Expr:
    """The comparison `fn`; booleans compare as 0 and 1."""
    if a.dtype == boolean:
        a, b = k.cast(a, DTYPES["u8"]), k.cast(b, DTYPES["u8"])
    return k.binary(fn, a, b)


def integer_power(a: Expr, b: Expr) -> Expr:
    """a ** b by repeated squaring, wrapping; a negative b gives 1 / a ** -b truncated, and 0 for a = 0."""
    if isinstance(b, Lit) and 0 <= b.value <= 64:
        return power_by_squaring(a, int(b.value))
    bits = a.dtype.bits
    one, zero = _lit(1, a), _lit(0, a)
    result: Expr = one
    square = a
    for i in range(bits - (a.dtype.kind == "i")):
        is_set = k.binary("ne", k.binary("and", b, _lit(1 << i, b)), zero)
        result = k.select(is_set, k.mul(result, square), result)
        square = k.mul(square, square)
    if a.dtype.kind == "u":
        return result
    odd = k.binary("ne", k.binary("and", b, one), zero)
    # for a = 1 and -1 the lowest bit of b decides, whatever the sign of b
    unit = k.select(k.binary("eq", a, one), one, k.select(odd, _lit(-1, a), one))
    is_unit = k.binary("or", k.binary("eq", a, one), k.binary("eq", a, _lit(-1, a)))
    return k.select(k.binary("lt", b, zero), k.select(is_unit, unit, zero), result)
