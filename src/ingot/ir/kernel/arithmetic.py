"""The semantics of kernel operations, on numpy arrays of lanes: native code must agree with it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from math import isfinite

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.types import DType, boolean, f32, truncation_type, u64
from ingot.support.errors import VerifyError

# An integer or bool scalar is a Python int, a float scalar a numpy scalar, a vector a numpy array.
Value = int | np.generic | np.ndarray


def lanes_of(a: Value, e: k.Expr) -> np.ndarray:
    """`a` as a one-dimensional array of the lanes of `e`."""
    return np.atleast_1d(np.asarray(a, e.dtype.numpy))


def widen(a: Value, e: k.Expr) -> np.ndarray:
    """Like `lanes_of`, but narrow floats as f32 and 4-bit integers in bytes, which numpy computes in."""
    array = lanes_of(a, e)
    if e.dtype.is_float and e.dtype.bits < 32:
        return array.astype(np.float32)
    if e.dtype.is_integer and e.dtype.bits < 8:
        return array.astype(np.int8)
    return array


def round_to(array: np.ndarray, e: k.Expr) -> Value:
    """`array` as a value of `e`: rounded or wrapped to its dtype, a scalar if it has one lane."""
    if array.dtype != e.dtype.numpy:
        array = wrap(array, e.dtype) if e.dtype.is_integer else array.astype(e.dtype.numpy)
    if e.lanes != 1:
        return array
    return array[0] if e.dtype.is_float else int(array[0])


def wrap(array: np.ndarray, dtype: DType) -> np.ndarray:
    low, _ = dtype.range
    values = [(int(v) - low) % (1 << dtype.bits) + low for v in array]
    return np.array(values, np.int64 if dtype.kind == "i" else np.uint64).astype(dtype.numpy)


def _bits(a: np.ndarray) -> list[int]:
    width = 8 * a.itemsize
    return [int(v) % (1 << width) for v in a]


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "neg": lambda a: np.negative(a),
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_even": np.rint,
    "trunc": np.trunc,
    "not": np.invert,
    "popcnt": lambda a: np.array([v.bit_count() for v in _bits(a)], a.dtype),
    "clz": lambda a: np.array([8 * a.itemsize - v.bit_length() for v in _bits(a)], a.dtype),
}


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    _require_nonzero(b)
    # through Python integers: numpy's floor division has no truncating form that is exact at the extremes
    return np.array([_truncating_div(int(x), int(y)) for x, y in zip(a, b, strict=True)], object)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    _require_nonzero(b)
    return np.array([int(x) - int(y) * _truncating_div(int(x), int(y)) for x, y in zip(a, b, strict=True)], object)


def _truncating_div(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _require_nonzero(b: np.ndarray) -> None:
    if not np.all(b):
        raise VerifyError("an integer division", expected="a divisor that is not zero", got=b.tolist())


def _shift(fn: Callable[[int, int, int], int]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = 8 * a.itemsize
        if not all(0 <= int(v) < width for v in b):
            raise VerifyError("a shift", expected=f"a distance in [0, {width})", got=b.tolist())
        return np.array([fn(int(x), int(y), width) for x, y in zip(a, b, strict=True)], object)

    return run


def _ldexp(a: np.ndarray, n: np.ndarray) -> np.ndarray:
    limit = 2 * (-np.finfo(a.dtype).minexp)
    is_in_range = np.isnan(a) | ((np.abs(n) <= limit) & (np.fmod(n, 2) == 0))
    if not np.all(is_in_range):
        raise VerifyError("ldexp", expected=f"even exponents within +-{limit}", got=n[~is_in_range].tolist())
    return np.where(np.isnan(a), a, np.ldexp(a, np.nan_to_num(n).astype(np.int32)))


ARITHMETIC: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "rem": _remainder,
    "min": np.minimum,
    "max": np.maximum,
    "minnum": np.fmin,
    "maxnum": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(lambda x, y, width: x << y),
    "ashr": _shift(lambda x, y, width: x >> y),
    "lshr": _shift(lambda x, y, width: x % (1 << width) >> y),
    "copysign": np.copysign,
    "ldexp": _ldexp,
}
COMPARE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
# Address arithmetic, on Python integers: most of what a kernel does.
SCALAR: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": min,
    "max": max,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def convert(a: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype == boolean:
        return a != 0
    if not dtype.is_integer or a.dtype.kind != "f":
        return a
    half = truncation_type(dtype).range[1] + 1

    def one(v: float) -> int:
        if -half <= v < half:
            return int(v)
        if dtype == u64 and v >= half:
            return int(v) if v < 2 * half else 0
        return -half

    return np.array([one(v) for v in a.tolist()], object)


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """One rounding: the product is exact in f64, and the sum is rounded there to odd, so that f32 rounds it right."""
    x, y, z = (v.astype(np.float64) for v in (a, b, c))
    product = x * y
    total = product + z
    addend = total - product
    error = (product - (total - addend)) + (z - addend)
    is_even = total.view(np.int64) % 2 == 0
    nudged = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(np.isfinite(total) & (error != 0) & is_even, nudged, total).astype(f32.numpy)


def to_tf32(x: np.ndarray) -> np.ndarray:
    """f32 with fractions cut to 10 bits, as NVIDIA's tensor cores read them. NaN stays NaN."""
    cut = (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isnan(x), x, cut.reshape(x.shape))


def dot(e: k.Dot, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Raises VerifyError for elements of a beyond `e.a_max`."""
    if e.dtype.is_float:
        return fma32(a[::2], b[::2], fma32(a[1::2], b[1::2], c))
    if e.a_max is not None and a.max() > e.a_max:
        raise VerifyError("dot", expected=f"elements of at most {e.a_max}", got=a.max())
    return c + (a.astype(np.int64) * b).reshape(e.lanes, -1).sum(1)


def quad_product(e: k.QuadProduct, *operands: np.ndarray) -> np.ndarray:
    quads = [a.reshape(-1, 8, 4) for a in (operands[e.row], *operands[2:])]
    words, terms = quads[0], np.ascontiguousarray(quads[1:]).view(e.term_dtype.numpy).astype(np.float32)
    levels = np.stack([(words >> np.uint32(4 * place) & 15).astype(np.float32) - e.zero for place in range(8)])
    pairs = terms.reshape(4, -1, 8, 4, 2)
    products = np.einsum("hpwit,pwqth->wiq", levels.reshape(2, 4, -1, 8, 4), pairs)
    i, j = np.ogrid[:8, :4]
    return products[:, i, 2 * j + i % 2].reshape(1, -1)


def lane_sums(e: k.LaneSums, *values: np.ndarray) -> np.ndarray:
    return np.array([[value.sum(dtype=np.float32) for value in values]])


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.array([_exact_fma(*v) for v in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)], np.float64)


def _exact_fma(a: float, b: float, c: float) -> float:
    if not (isfinite(a) and isfinite(b) and isfinite(c)):
        return float(np.float64(a) * b + c)
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if not total:
        return a * b + c  # the sign of an exact zero is that of the rounded operation
    try:
        return float(total)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


OF_LANES: dict[type[k.Expr], Callable[..., np.ndarray]] = {
    k.Dot: dot,
    k.QuadProduct: quad_product,
    k.LaneSums: lane_sums,
}
