"""Symbolic values: small tensors whose elements are known at import, as numbers or as sizes.

    value    ::= dtype, array of element
    element  ::= bool | int | float | Dim | Quotient

Exporters compute shapes with tensor ops (Shape, Gather, Concat, Reshape, ...). Each rule here is one such op on known
elements, so that a shape stays an expression over the model's symbols and never becomes run-time work. A rule raises
`UnknownSize` where the result depends on sizes that are known only at run time; the op is then imported as a plain
node.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np

from ingot.frontends.shared import quotients
from ingot.frontends.shared.quotients import Quotient, require_positive, towards_zero
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import COMPARISONS, MAX_ELEMENTS, decided
from ingot.ir import types as T
from ingot.ir.dims import Dim, DimLike, ceildiv, dim_max, dim_min, floordiv, mod
from ingot.ir.types import DType
from ingot.support.dataclass import dataclass

# scales such as 0.5 or 1.25 are exact ratios; 0.3333 is not and must not look like one
_MAX_DENOMINATOR = 4096


class UnknownSize(Unsupported):
    """The result depends on sizes that are known only at run time."""


Element = bool | int | float | Dim | Quotient


@dataclass(frozen=True, slots=True)
class Sym:
    """A known tensor: `items` is an object array of Element."""

    dtype: DType
    items: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.items.shape

    @property
    def is_constant(self) -> bool:
        """No element depends on a symbol."""
        return not any(isinstance(v, Dim | Quotient) for v in self.items.flat)

    @staticmethod
    def of(dtype: DType, items: object) -> Sym:
        """From a nested sequence or array of elements. Raises UnknownSize above the size limit."""
        array = items if isinstance(items, np.ndarray) and items.dtype == object else np.array(items, dtype=object)
        if array.size > MAX_ELEMENTS:
            raise UnknownSize
        return Sym(dtype, array)

    @staticmethod
    def of_array(array: np.ndarray) -> Sym:
        """From a constant."""
        flat = array.reshape(-1)
        items = np.empty(array.size, object)
        items[:] = (flat.astype(np.float64) if T.dtype_of(array).is_float else flat).tolist()
        return Sym.of(T.dtype_of(array), items.reshape(array.shape))

    def to_array(self) -> np.ndarray:
        """As a constant array. Only where `is_constant`."""
        flat = np.array(self.items.reshape(-1).tolist(), np.float64 if self.dtype.is_float else None)
        return flat.astype(self.dtype.numpy).reshape(self.items.shape)

    def dims(self) -> tuple[DimLike, ...]:
        """Its elements as sizes, flattened. Raises UnknownSize where one is not an integer."""
        return tuple(_integer(v) for v in self.items.reshape(-1))


def _integer(v: Element) -> DimLike:
    if isinstance(v, Dim):
        return v
    if isinstance(v, bool | int):
        return int(v)
    raise UnknownSize


def _quotient(v: Element) -> Quotient:
    if isinstance(v, Quotient):
        return v
    if not isinstance(v, float):
        return Quotient(_integer(v))
    if not math.isfinite(v):
        raise UnknownSize
    of, by = v.as_integer_ratio()
    if by > _MAX_DENOMINATOR:
        raise UnknownSize
    return Quotient(of, by)


def _element(q: Quotient) -> Element:
    if isinstance(q.numerator, int) and isinstance(q.denominator, int):
        return q.numerator / q.denominator
    return q.numerator if q.denominator == 1 else q


def _is_number(v: Element) -> TypeGuard[float]:
    return not isinstance(v, Dim | Quotient)


# arithmetic on elements: (floats?, a, b) -> element
Arithmetic = Callable[[bool, Element, Element], Element]


def _arithmetic(
    of_numbers: Callable[[Any, Any], float], of_sizes: Callable[[Any, Any], DimLike],
    of_quotients: Callable[[Quotient, Quotient], Quotient],
) -> Arithmetic:  # fmt: skip
    def rule(floats: bool, a: Element, b: Element) -> Element:
        if _is_number(a) and _is_number(b):
            return of_numbers(a, b)
        return _element(of_quotients(_quotient(a), _quotient(b))) if floats else of_sizes(_integer(a), _integer(b))

    return rule


def _divided(floats: bool, a: Element, b: Element) -> Element:
    if b == 0:
        raise UnknownSize
    if not floats:
        return towards_zero(_integer(a), _integer(b))  # as in C
    if _is_number(a) and _is_number(b):
        return a / b
    return _element(quotients.div(_quotient(a), _quotient(b)))


def _modulo(floats: bool, a: Element, b: Element) -> Element:
    if floats:
        raise UnknownSize
    x, y = _integer(a), _integer(b)
    if isinstance(x, int) and isinstance(y, int):
        return x % y
    require_positive(y)
    return mod(x, y)


def _power(floats: bool, a: Element, b: Element) -> Element:
    if not (_is_number(a) and _is_number(b)) or (not floats and b < 0):
        raise UnknownSize
    power = a**b
    if isinstance(power, complex):
        raise UnknownSize
    return power


ARITHMETIC: dict[str, Arithmetic] = {
    "Add": _arithmetic(operator.add, operator.add, quotients.add),
    "Sub": _arithmetic(operator.sub, operator.sub, quotients.sub),
    "Mul": _arithmetic(operator.mul, operator.mul, quotients.mul),
    "Max": _arithmetic(max, dim_max, quotients.greatest),
    "Min": _arithmetic(min, dim_min, quotients.least),
    "Div": _divided,
    "Mod": _modulo,
    "Pow": _power,
}
COMPARISON = {"Equal": "EQ", "Less": "LT", "Greater": "GT", "LessOrEqual": "LE", "GreaterOrEqual": "GE"}


def compared(direction: str, a: Element, b: Element) -> bool:
    """Whether a == b, a < b, ... for all values of the symbols. Raises UnknownSize where it depends on them."""
    if _is_number(a) and _is_number(b):
        return COMPARISONS[direction](a, b)
    x, y = _quotient(a), _quotient(b)
    result = decided(direction, x.numerator * y.denominator - y.numerator * x.denominator)
    if result is None:
        raise UnknownSize
    return result


def _floor(v: Element) -> Element:
    if isinstance(v, Quotient):
        return floordiv(v.numerator, v.denominator)
    return float(math.floor(v)) if isinstance(v, float) else v


def _ceil(v: Element) -> Element:
    if isinstance(v, Quotient):
        return ceildiv(v.numerator, v.denominator)
    return float(math.ceil(v)) if isinstance(v, float) else v


def _number(v: Element) -> float:
    if not _is_number(v):
        raise UnknownSize
    return v


def _is_fractional(v: Element) -> bool:
    return isinstance(v, float | Quotient)


UNARY: dict[str, Callable[[Element], Element]] = {
    "Floor": _floor,
    "Ceil": _ceil,
    "Neg": lambda v: ARITHMETIC["Mul"](_is_fractional(v), v, -1),
    "Abs": lambda v: abs(v) if _is_number(v) else v if compared("GT", v, 0) else _number(v),
    "Not": lambda v: not _number(v),
    "Sqrt": lambda v: math.sqrt(_number(v)),
    "Reciprocal": lambda v: _divided(True, 1.0, v),
    "Identity": lambda v: v,
    "Relu": lambda v: ARITHMETIC["Max"](_is_fractional(v), v, 0),
}


def elementwise(fn: Callable[..., object], *arrays: np.ndarray) -> np.ndarray:
    """`fn` on the elements of broadcast object arrays. Raises UnknownSize where they do not broadcast, are too large,
    or have no result as Python's numbers (the floor of an infinity)."""
    try:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        raise UnknownSize from None
    if math.prod(shape) > MAX_ELEMENTS:
        raise UnknownSize
    results = np.empty(shape, object)
    flat_arrays = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
    flat = results.reshape(-1)
    try:
        for i, items in enumerate(zip(*flat_arrays, strict=True)):
            flat[i] = fn(*items)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise UnknownSize from None
    return flat.reshape(shape)


def rounded(dtype: DType, items: np.ndarray) -> np.ndarray:
    """Numbers as `dtype` represents them: floats rounded, integers wrapped. Dims and ratios are unchanged."""

    def one(v: Element) -> Element:
        if isinstance(v, Dim | Quotient):
            return v
        if dtype.is_float:
            with np.errstate(over="ignore"):
                return float(np.asarray(v, np.float64).astype(dtype.numpy))
        if dtype is T.boolean:
            return bool(v)
        if dtype.bits == 64 and -(2**63) <= v < 2**63:
            return int(v)
        return int(np.asarray(int(v) % 2**64, np.uint64).astype(dtype.numpy))

    return elementwise(one, items)


def cast(value: Sym, dtype: DType) -> Sym:
    """Cast: to an integer truncates, to bool tests against zero. Raises UnknownSize."""

    def one(v: Element) -> Element:
        if dtype is T.boolean:
            return compared("NE", v, 0)
        if dtype.is_float:
            return v if isinstance(v, Dim | Quotient) else float(v)
        if isinstance(v, Quotient):
            return towards_zero(v.numerator, v.denominator)
        if isinstance(v, float):
            if not math.isfinite(v):
                raise UnknownSize
            return math.trunc(v)
        return v if isinstance(v, Dim) else int(v)

    return Sym(dtype, rounded(dtype, elementwise(one, value.items)))


def arange(start: Element, limit: Element, delta: Element, dtype: DType) -> Sym:
    """Range with plain numbers. Raises UnknownSize otherwise."""
    if (
        not (_is_number(start) and _is_number(limit) and _is_number(delta))
        or delta == 0
        or not math.isfinite(limit - start)
    ):
        raise UnknownSize
    count = max(0, math.ceil((limit - start) / delta))
    if count > MAX_ELEMENTS:
        raise UnknownSize
    items = np.empty(count, object)
    items[:] = [start + i * delta for i in range(count)]
    return Sym(dtype, rounded(dtype, items))
