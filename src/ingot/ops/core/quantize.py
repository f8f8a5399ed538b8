"""Rounding to evenly spaced levels."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.node import Samples
from ingot.ir.types import DType, TensorType, dtype_of, f32, i8, i16, i32, u8, u16
from ingot.ops.core.elementwise import Elementwise
from ingot.support.dataclass import dataclass

QUANTIZED = (u8, i8, u16, i16)
# The last bit of its sum with a float below 2^22 is worth 1: it is rounded, half to even, and the low bits are it.
_ROUNDER = np.float32(3 << 22)


@dataclass(frozen=True)
class Quantize(Elementwise):
    """round(x / scale) + zero, half to even, cut to the range of zero's type: u8, i8, u16 or i16; NaN: its least.

    x, scale: f32, the quotient rounded to f32 (ONNX's QuantizeLinear, StableHLO's uniform_quantize). divides: False
    says of a known scale that multiplying by its reciprocal gives the same levels (`multiplies`).
    """

    name: ClassVar[str] = "quantize"
    arity: ClassVar[int] = 3
    divides: bool = True

    def result(self, *inputs: TensorType) -> DType:
        x, scale, zero = (t.dtype for t in inputs)
        self.expect(x == scale == f32, f"expected x and scale of f32, got {x} and {scale}")
        self.expect(zero in QUANTIZED, f"expected a zero of {', '.join(map(str, QUANTIZED))}, got {zero}")
        return zero

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, scale, zero = inputs
        low, high = dtype_of(zero).range
        with np.errstate(all="ignore"):
            y = np.rint(x / scale).astype(np.float64) + zero
        return np.clip(np.where(np.isnan(y), low, y), low, high).astype(zero.dtype)

    def scalar(self, *xs: Expr) -> Expr:
        x, scale, zero = xs[0], *map(_unspread, xs[1:])
        low, high = (k.binary("sub", k.lit(float(end), f32), k.cast(zero, f32)) for end in zero.dtype.range)
        if self.divides:
            y = _cut(k.binary("div", x, scale), low, high)
        else:
            # beyond the ends' own quotients all is cut, and these are exact: what is cut need not be divided
            low, high = (k.binary("mul", end, scale) for end in (low, high))
            y = _quotient(_cut(x, low, high), scale)
        rounded = k.binary("add", y, k.lit(float(_ROUNDER), f32))
        moved = k.binary("sub", k.cast(zero, i32), k.lit(int(_ROUNDER.view(np.int32)), i32))
        return k.cast(k.binary("add", k.bitcast(rounded, i32), moved), zero.dtype)

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(5)
        x = (rng.standard_normal((7, 41)) * 9).astype(np.float32)
        x[0, :6] = np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40
        for dtype, zero in ((u8, 0), (u8, 131), (i8, 0), (i8, -128), (u16, 30000), (i16, 5)):
            zeros = np.full(x.shape, zero, dtype.numpy)
            yield cls(), (x, np.full(x.shape, 0.037, np.float32), zeros)
            yield cls(), (x, rng.random(x.shape).astype(np.float32) * 0.1, zeros)
        yield cls(divides=False), (x, np.full(x.shape, 0.037, np.float32), np.full(x.shape, 131, np.uint8))
        halves = (np.arange(-600, 600, dtype=np.float32) / 2 * np.float32(0.25)).reshape(3, 400)
        yield cls(), (halves, np.full(halves.shape, 0.25, np.float32), np.full(halves.shape, 3, np.int8))


def _cut(x: Expr, low: Expr, high: Expr) -> Expr:
    """min(max(x, low), high), low where x is NaN."""
    return k.binary("minnum", k.binary("maxnum", x, low), high)


def _unspread(e: Expr) -> Expr:
    """The one value of all lanes, where it is known to be one."""
    return k.lit(e.value, e.dtype) if isinstance(e, k.Lit) else e.a if isinstance(e, k.Splat) else e


def _quotient(x: Expr, scale: Expr) -> Expr:
    """x / scale by the reciprocal and one correction; a division takes as long as ten of these."""
    reciprocal = k.binary("div", k.lit(1.0, f32), scale)
    y = k.binary("mul", x, reciprocal)
    return k.fma(k.fma(y, k.unary("neg", scale), x), reciprocal, y)


@lru_cache(maxsize=1024)
def multiplies(scale: float) -> bool:
    """Whether `_quotient` leads to the same levels of 8 bits as a division for every x: it is off by less than an ulp,
    so only x next to where levels meet can differ, and these are tried."""
    s = np.float32(scale)
    if not 2.0**-60 < s < 2.0**60:
        return False
    meet = (np.arange(-256, 256, dtype=np.float64) + 0.5) * np.float64(s)
    x = np.float32(meet)
    around = [x]
    for _ in range(3):
        around = [np.nextafter(around[0], np.float32(-np.inf)), *around, np.nextafter(around[-1], np.float32(np.inf))]
    x = np.stack(around)
    reciprocal = np.float32(1) / s
    y = x * reciprocal
    # products of two f32 are exact in f64; their small differences, too
    left = (np.float64(x) - np.float64(y) * np.float64(s)).astype(np.float32)
    corrected = (np.float64(y) + np.float64(left) * np.float64(reciprocal)).astype(np.float32)
    return bool((np.rint(corrected) == np.rint(x / s)).all())


__all__ = ["QUANTIZED", "Quantize", "multiplies"]
