"""Errors of rounding: of the bounds' own arithmetic, which is in f64, and of the program that is bounded.

A sum of n products in any order, with or without fused multiply-adds, errs by at most gamma(n) = n u / (1 - n u) times
the sum of their magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1).
"""

from __future__ import annotations

from ingot.ir.dims import DimLike
from ingot.ir.types import DType, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

OWN_UNIT = 2.0**-52  # twice the unit roundoff of f64: rounding a bound's error upwards is included
OWN_TINY = 2.0**-1000  # more than what underflows in a sum of f64 products
_FUNCTION_ULPS = 8  # of a transcendental function in f64; docs/reference/ops.md has what was measured: at most 3.2


@dataclass(frozen=True)
class Rounding:
    """The errors that bounds include. unit: the unit roundoff of the program's floats, 0 for the real numbers. tiny:
    their smallest normal number."""

    unit: float = 0.0
    tiny: float = 0.0

    def of_sum(self, count: DimLike) -> float:
        """The error of a sum of products, relative to the sum of their magnitudes, count: of products. Raises
        InputError for open sizes, and for so many that no digit of the sum is certain."""
        if not isinstance(count, int):
            raise InputError(
                "bounds", expected="static sizes", got=f"a sum of {count} products", fix="fix them by dynamic"
            )
        return _gamma(count + 16, OWN_UNIT) + _gamma(count + 2, self.unit)

    def of_function(self, ulps: float = 4.0) -> float:
        """The relative error of a function that errs by `ulps` in the program."""
        return 2 * _FUNCTION_ULPS * OWN_UNIT + 2 * ulps * self.unit

    @property
    def floor(self) -> float:
        """The absolute error of an operation whose result is subnormal, in one that includes the program's."""
        return OWN_TINY + self.tiny


def _gamma(count: int, unit: float) -> float:
    if count * unit >= 0.5:
        raise InputError("bounds", expected="sums whose rounding leaves a digit", got=f"{count} products in its type")
    return count * unit / (1 - count * unit)


def outward(lower: Term, upper: Term, relative: float, absolute: float = OWN_TINY) -> tuple[Term, Term]:
    """lower and upper, moved apart by the errors of computing them."""
    return (
        lower - (absolute_value(lower) * relative + absolute),
        upper + (absolute_value(upper) * relative + absolute),
    )


def absolute_value(x: Term) -> Term:
    return t.term(t.absolute(x))


def maximum(a: Term, b: t.Operand) -> Term:
    return t.term(t.maximum(a, b))


def minimum(a: Term, b: t.Operand) -> Term:
    return t.term(t.minimum(a, b))


def where(condition: Term, a: t.Operand, b: t.Operand) -> Term:
    return t.term(t.where(condition, a, b))


def from_f64(lower: Term, upper: Term, dtype: DType) -> tuple[Term, Term]:
    """Bounds in `dtype`, rounded outwards; what is NaN bounds nothing: -inf and inf."""
    lower = where(lower.equals(lower), lower, -float("inf"))
    upper = where(upper.equals(upper), upper, float("inf"))
    if dtype == f64:
        return lower, upper
    import ml_dtypes

    info = ml_dtypes.finfo(dtype.numpy)
    # conversion rounds to nearest: half a unit in the last place, which the shift exceeds
    unit, tiny, largest = float(info.eps), float(info.smallest_subnormal), float(info.max)
    lower, upper = outward(lower, upper, unit, tiny)
    lower = minimum(lower, largest)
    upper = maximum(upper, -largest)
    return lower.cast(dtype), upper.cast(dtype)
