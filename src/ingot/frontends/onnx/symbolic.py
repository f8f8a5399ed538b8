"""Symbolic values: small tensors whose elements are known at import, as numbers or as sizes.

    value    ::= dtype, array of element
    element  ::= bool | int | float | Dim | Ratio

Exporters compute shapes with tensor ops (Shape, Gather, Concat, Reshape, ...). Each rule here is one such op on known
elements, so that a shape stays an expression over the model's symbols and never becomes run-time work. A rule raises
`UnknownSize` where the result depends on sizes that are known only at run time; the op is then imported as a plain
node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeGuard

import numpy as np

from ingot.ir import types as T
from ingot.ir.dims import Dim, DimLike, bounds, dim_max, dim_min, floordiv, mod
from ingot.ir.types import DType
from ingot.support.dataclass import dataclass

# larger tensors are data, not shapes
MAX_ELEMENTS = 1024
# scales such as 0.5 or 1.25 are exact ratios; 0.3333 is not and must not look like one
_MAX_DENOMINATOR = 4096


class UnknownSize(Exception):
    """The result depends on sizes that are known only at run time."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """num / den, den > 0: a size in float arithmetic, before it is rounded to a size again."""

    num: DimLike
    den: DimLike


Element = bool | int | float | Dim | Ratio


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
        return not any(isinstance(v, Dim | Ratio) for v in self.items.flat)

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


def _ratio(v: Element) -> Ratio:
    if isinstance(v, Ratio):
        return v
    if isinstance(v, float):
        if not math.isfinite(v):
            raise UnknownSize
        num, den = v.as_integer_ratio()
        if den > _MAX_DENOMINATOR:
            raise UnknownSize
        return Ratio(num, den)
    return Ratio(_integer(v), 1)


def _simplest(num: DimLike, den: DimLike) -> Element:
    if isinstance(den, int) and isinstance(num, int):
        common = math.gcd(num, den)
        num, den = num // common, den // common
    if den == 1:
        return float(num) if isinstance(num, int) else num
    if num == den:
        return 1.0
    return Ratio(num, den)


def _is_number(v: Element) -> TypeGuard[float]:
    return not isinstance(v, Dim | Ratio)


def sign_of(d: Element) -> int:
    """-1, 0 or 1 where the sign is the same for all values of the symbols. Raises UnknownSize."""
    if isinstance(d, float | bool | int):
        return (d > 0) - (d < 0)
    lo, hi = bounds(d.num if isinstance(d, Ratio) else d)
    if lo is not None and lo > 0:
        return 1
    if hi is not None and hi < 0:
        return -1
    raise UnknownSize


def _nonnegative(d: DimLike) -> bool:
    lo, _ = bounds(d)
    return lo is not None and lo >= 0


# arithmetic on elements: (floats?, a, b) -> element


def _add(floats: bool, a: Element, b: Element) -> Element:
    if _is_number(a) and _is_number(b):
        return a + b
    if not floats:
        return _integer(a) + _integer(b)
    x, y = _ratio(a), _ratio(b)
    return _simplest(x.num * y.den + y.num * x.den, x.den * y.den)


def _sub(floats: bool, a: Element, b: Element) -> Element:
    return _add(floats, a, _mul(floats, b, -1.0 if floats else -1))


def _mul(floats: bool, a: Element, b: Element) -> Element:
    if _is_number(a) and _is_number(b):
        return a * b
    if not floats:
        return _integer(a) * _integer(b)
    x, y = _ratio(a), _ratio(b)
    return _simplest(x.num * y.num, x.den * y.den)


def _div(floats: bool, a: Element, b: Element) -> Element:
    if not floats:
        x, y = _integer(a), _integer(b)
        if isinstance(x, int) and isinstance(y, int):
            if y == 0:
                raise UnknownSize
            # ONNX divides integers as C does, towards zero
            return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        if sign_of(y) <= 0 or not _nonnegative(x):
            raise UnknownSize
        return floordiv(x, y)
    if _is_number(a) and _is_number(b):
        if b == 0:
            raise UnknownSize
        return a / b
    x, y = _ratio(a), _ratio(b)
    if sign_of(y.num if isinstance(y.num, Dim) else float(y.num)) <= 0:
        raise UnknownSize
    return _simplest(x.num * y.den, x.den * y.num)


def _mod(floats: bool, a: Element, b: Element) -> Element:
    if floats:
        raise UnknownSize
    x, y = _integer(a), _integer(b)
    if isinstance(x, int) and isinstance(y, int):
        if y == 0:
            raise UnknownSize
        return x % y
    if sign_of(y) <= 0:
        raise UnknownSize
    return mod(x, y)


def _max(floats: bool, a: Element, b: Element) -> Element:
    if _is_number(a) and _is_number(b):
        return max(a, b)
    if floats and (isinstance(a, Ratio | float) or isinstance(b, Ratio | float)):
        return a if sign_of(_sub(True, a, b)) >= 0 else b
    return dim_max(_integer(a), _integer(b))


def _min(floats: bool, a: Element, b: Element) -> Element:
    if _is_number(a) and _is_number(b):
        return min(a, b)
    if floats and (isinstance(a, Ratio | float) or isinstance(b, Ratio | float)):
        return b if sign_of(_sub(True, a, b)) >= 0 else a
    return dim_min(_integer(a), _integer(b))


def _pow(floats: bool, a: Element, b: Element) -> Element:
    if not (_is_number(a) and _is_number(b)) or (not floats and b < 0):
        raise UnknownSize
    try:
        power = a**b
    except (ZeroDivisionError, OverflowError):
        raise UnknownSize from None
    if isinstance(power, complex):
        raise UnknownSize
    return power


ARITHMETIC: dict[str, Callable[[bool, Element, Element], Element]] = {
    "Add": _add, "Sub": _sub, "Mul": _mul, "Div": _div, "Mod": _mod, "Max": _max, "Min": _min, "Pow": _pow,
}  # fmt: skip


def equal(a: Element, b: Element) -> bool:
    """Whether a == b for all values of the symbols. Raises UnknownSize where it depends on them."""
    if (_is_number(a) and _is_number(b)) or a == b:
        return bool(a == b)
    return sign_of(_sub(True, a, b)) == 0


def _less(a: Element, b: Element) -> bool:
    if _is_number(a) and _is_number(b):
        return bool(a < b)
    if a == b:
        return False
    difference = _sub(isinstance(a, float | Ratio) or isinstance(b, float | Ratio), b, a)
    if isinstance(difference, Dim):
        _, hi = bounds(difference)
        if hi is not None and hi <= 0:
            return False
    return sign_of(difference) > 0


COMPARISON: dict[str, Callable[[Element, Element], bool]] = {
    "Equal": equal,
    "Less": _less,
    "Greater": lambda a, b: _less(b, a),
    "LessOrEqual": lambda a, b: not _less(b, a),
    "GreaterOrEqual": lambda a, b: not _less(a, b),
}


def _floor(v: Element) -> Element:
    if isinstance(v, Ratio):
        return floordiv(v.num, v.den)
    return float(math.floor(v)) if isinstance(v, float) else v


def _ceil(v: Element) -> Element:
    if isinstance(v, Ratio):
        return floordiv(v.num + v.den - 1, v.den)
    return float(math.ceil(v)) if isinstance(v, float) else v


def _number(fn: Callable[[float], float]) -> Callable[[Element], Element]:
    def rule(v: Element) -> Element:
        if not _is_number(v):
            raise UnknownSize
        try:
            return fn(v)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise UnknownSize from None

    return rule


UNARY: dict[str, Callable[[Element], Element]] = {
    "Floor": _floor,
    "Ceil": _ceil,
    "Neg": lambda v: _mul(isinstance(v, float | Ratio), v, -1.0 if isinstance(v, float | Ratio) else -1),
    "Abs": lambda v: abs(v) if isinstance(v, bool | int | float) else v if sign_of(v) > 0 else _unknown(),
    "Not": _number(lambda v: not v),
    "Sqrt": _number(math.sqrt),
    "Reciprocal": lambda v: _div(True, 1.0, v),
    "Identity": lambda v: v,
    "Relu": lambda v: _max(isinstance(v, float | Ratio), v, 0.0 if isinstance(v, float | Ratio) else 0),
}


def _unknown() -> Element:
    raise UnknownSize


def elementwise(fn: Callable[..., object], *arrays: np.ndarray) -> np.ndarray:
    """`fn` on the elements of broadcast object arrays. Raises UnknownSize where they do not broadcast or are too
    large."""
    try:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        raise UnknownSize from None
    if math.prod(shape) > MAX_ELEMENTS:
        raise UnknownSize
    results = np.empty(shape, object)
    flat_arrays = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
    flat = results.reshape(-1)
    for i, items in enumerate(zip(*flat_arrays, strict=True)):
        flat[i] = fn(*items)
    return flat.reshape(shape)


def rounded(dtype: DType, items: np.ndarray) -> np.ndarray:
    """Numbers as `dtype` represents them: floats rounded, integers wrapped. Dims and ratios are unchanged."""

    def one(v: Element) -> Element:
        if isinstance(v, Dim | Ratio):
            return v
        if dtype.is_float:
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
            return bool(sign_of(v) != 0)
        if dtype.is_float:
            return v if isinstance(v, Dim | Ratio) else float(v)
        if isinstance(v, Ratio):
            if not _nonnegative(v.num):
                raise UnknownSize
            return floordiv(v.num, v.den)
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


def fold(items: Sequence[Element], step: Callable[[Element, Element], Element], initial: Element) -> Element:
    """A reduction over elements."""
    total = initial
    for v in items:
        total = step(total, v)
    return total
