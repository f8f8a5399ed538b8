"""Evaluate kernel expressions on numpy arrays: the value of a variable is an array of any shape; lanes are ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel.math.expand import expanded
from ingot.ir.types import DType
from ingot.ops import Convert

_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "copysign": np.copysign,
    "minnum": np.fmin,
    "maxnum": np.fmax,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_even": np.rint,
    "trunc": np.trunc,
    "not": np.invert,
}


def evaluate(expr: k.Expr, env: Mapping[str, np.ndarray], tables: bool = True) -> np.ndarray:
    """The value of `expr`; shared subexpressions are evaluated once. tables: choose the variant with lookup tables."""
    memo: dict[int, np.ndarray] = {}
    (expr,) = expanded([expr])
    stack = [expr]
    while stack:
        e = stack[-1]
        parts = _operands(e)
        missing = [p for p in parts if id(p) not in memo]
        if missing:
            stack += missing
            continue
        stack.pop()
        if id(e) not in memo:
            with np.errstate(all="ignore"):
                xs = [memo[id(p)] for p in parts]
                value = xs[not tables] if isinstance(e, k.Either) else _apply(e, xs, env)
            assert value.dtype == e.dtype.numpy, (e, value.dtype)
            memo[id(e)] = value
    return memo[id(expr)]


def count(expr: k.Expr) -> int:
    """Operations in `expr`: distinct nodes other than literals and variables."""
    visited: dict[int, k.Expr] = {}
    stack = expanded([expr])
    while stack:
        e = stack.pop()
        if id(e) not in visited:
            visited[id(e)] = e
            stack += _operands(e)
    return sum(not isinstance(e, k.Lit | k.Var) for e in visited.values())


def _operands(e: k.Expr) -> list[k.Expr]:
    return [v for name in e.__dataclass_fields__ if isinstance(v := getattr(e, name), k.Expr)]


def _apply(e: k.Expr, xs: list[np.ndarray], env: Mapping[str, np.ndarray]) -> np.ndarray:
    match e:
        case k.Lit():
            return np.asarray(e.value).astype(e.dtype.numpy)
        case k.Var():
            return env[e.name]
        case k.Unary(fn=("popcnt" | "clz") as fn):
            return _count_bits(fn, xs[0])
        case k.Unary():
            return np.asarray(_UNARY[e.fn](xs[0]))
        case k.Binary(fn="div" | "rem"):
            return _divide(e.fn, *xs)
        case k.Binary(fn="ashr" | "lshr"):
            return _shift_right(e.fn, *xs)
        case k.Binary(fn="ldexp"):
            return _ldexp(*xs)
        case k.Binary():
            return np.asarray(_BINARY[e.fn](*xs))
        case k.Fma():
            return fma(*xs)
        case k.Select():
            return np.where(*xs)
        case k.Cast():
            return _cast(xs[0], e.dtype)
        case k.Bitcast():
            return np.asarray(xs[0]).view(e.dtype.numpy)
        case k.Splat():
            return xs[0]
        case k.Lookup():
            return np.asarray(e.table, e.dtype.numpy)[xs[0] & (len(e.table) - 1)]
    raise AssertionError(f"no value for {type(e).__name__}")


def _cast(x: np.ndarray, dtype: DType) -> np.ndarray:
    return Convert(dtype).reference(np.asarray(x))


def _divide(fn: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.asarray(a / b if fn == "div" else np.fmod(a, b))
    assert (b != 0).all(), "an integer division by zero"
    remainder = np.fmod(a, b)
    return np.asarray(remainder if fn == "rem" else (a - remainder) // b)


def _ldexp(a: np.ndarray, n: np.ndarray) -> np.ndarray:
    number = ~np.isnan(a)
    n = np.where(number, n, 0)
    assert (np.fmod(n, 2) == 0).all() and (np.abs(n) <= -2 * np.finfo(a.dtype).minexp).all(), "undefined"
    return np.asarray(np.ldexp(a, n.astype(np.int32)))


def _shift_right(fn: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    kind = "u" if fn == "lshr" else "i"
    dtype = f"{kind}{a.dtype.itemsize}"
    return np.asarray(a.view(dtype) >> b.astype(dtype)).view(a.dtype)


def _count_bits(fn: str, x: np.ndarray) -> np.ndarray:
    digits = [np.binary_repr(int(v), 8 * x.dtype.itemsize) for v in x.reshape(-1)]
    counts = [d.count("1") if fn == "popcnt" else len(d) - len(d.lstrip("0")) for d in digits]
    return np.asarray(counts).reshape(x.shape).astype(x.dtype)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c with one rounding (f32: computed in f64, whose double rounding is negligible)."""
    if c.dtype == np.float32:
        return np.asarray((a.astype(np.float64) * b + c).astype(np.float32))
    p, p_low = _two_product(a, b)
    s = p + c
    t = s - p
    s_low = (p - (s - t)) + (c - t)
    low = p_low + s_low
    result = np.where(low == 0, s, s + low)  # adding 0 would lose the sign of -0.0
    return np.asarray(np.where(np.isfinite(result), result, a * b + c))


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    low = ((ah * bh - p) + ah * bl + al * bh) + al * bl
    return p, np.where(np.isfinite(low), low, 0.0)


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    c = a * 134217729.0
    high = c - (c - a)
    return high, a - high
