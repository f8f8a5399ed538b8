"""Sample operands for the conformance tests of ops: all dtypes, edge values, odd and empty shapes."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ingot.ir.node import Op, Samples
from ingot.ir.types import DTYPES, DType

_BY_KIND = {
    "f": ("f32", "f64", "f16", "bf16"),
    "i": ("i32", "i64", "i8", "i16", "i4"),
    "u": ("u8", "u32", "u64"),
    "b": ("bool",),
}
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 0.1, 7.25, -11.0, 88.5, -88.5, 1e-3)


def values(dtype: DType) -> np.ndarray:
    """Edge cases and ordinary values of `dtype`."""
    if dtype.kind == "b":
        return np.asarray([False, True, True, False, True])
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)
        edges = [float(v) for v in (info.max, info.min, info.tiny, info.smallest_subnormal, info.eps)]
        return np.asarray([*_FLOATS, *edges, np.inf, -np.inf, np.nan]).astype(dtype.numpy)
    low, high = dtype.range
    numbers = [v for v in (low, low + 1, -3, -1, 0, 1, 2, 3, 5, 7, high - 1, high) if low <= v <= high]
    return np.asarray(numbers, np.uint64 if dtype.kind == "u" else np.int64).astype(dtype.numpy)


def operands(dtype: DType, arity: int) -> tuple[np.ndarray, ...]:
    """`arity` operands of `dtype`; two operands hold all pairs of values."""
    v = values(dtype)
    if arity == 1:
        return (v,)
    if arity == 2:
        a, b = np.broadcast_arrays(v[:, None], v[None])
        return a.copy(), b.copy()
    return tuple(np.roll(np.resize(v, 3 * v.size), 5 * i * i) for i in range(arity))


def elementwise(make: Callable[[], Op], arity: int, kinds: str) -> Samples:
    """Samples of an elementwise op in the dtypes of `kinds`, and in a few shapes."""
    for kind in kinds:
        for name in _BY_KIND[kind]:
            yield make(), operands(DTYPES[name], arity)
    first = DTYPES[_BY_KIND[kinds[0]][0]].numpy
    for shape in ((), (0,), (3, 0, 2), (1, 2, 3)):
        yield make(), tuple(np.ones(shape, first) for _ in range(arity))


def iota(*shape: int, dtype: type = np.float32) -> np.ndarray:
    """An array of 0, 1, 2, ... in row-major order."""
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def shifts(make: Callable[[], Op]) -> Samples:
    """Samples of a shift, with amounts around the bit width."""
    for name in ("i8", "i32", "i64", "u8", "u32", "u64"):
        dtype = DTYPES[name]
        amounts = [v for v in (0, 1, 3, dtype.bits - 1, dtype.bits, dtype.bits + 1, -1) if dtype.kind == "i" or v >= 0]
        a, b = np.broadcast_arrays(values(dtype)[:, None], np.asarray(amounts).astype(dtype.numpy))
        yield make(), (a.copy(), b.copy())


def conversions(make: Callable[[DType], Op]) -> Samples:
    """Samples of a conversion between all pairs of dtypes."""
    names = ("f32", "f64", "f16", "bf16", "i32", "i64", "i8", "u8", "u64", "bool", "i4", "u4", "f8e5m2", "f8e4m3fn")
    for target in names:
        for source in names:
            yield make(DTYPES[target]), (values(DTYPES[source]),)
    for name in ("f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0fnu", "f4e2m1fn", "i2", "u2"):
        for other in (name, "f32", "f16", "f64", "bf16", "i8", "u8", "i32", "bool", "f8e5m2"):
            yield make(DTYPES[name]), (values(DTYPES[other]),)
            yield make(DTYPES[other]), (values(DTYPES[name]),)
    yield make(DTYPES["f16"]), (np.zeros((0, 3), np.float32),)
    yield make(DTYPES["i64"]), (np.asarray(2.5, np.float32),)


def bitcasts(make: Callable[[DType], Op]) -> Samples:
    """Samples of a bitcast between dtypes of one width."""
    for a, b in (("f32", "i32"), ("i32", "f32"), ("f64", "u64"), ("f16", "bf16"), ("u8", "i8")):
        yield make(DTYPES[b]), (values(DTYPES[a]),)
    yield make(DTYPES["i32"]), (np.asarray(1.5, np.float32),)
