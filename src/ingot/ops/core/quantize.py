"""Quantization: rounding to evenly spaced levels."""

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

QUANTIZED_DTYPES = (u8, i8, u16, i16)
# Adding it to a float of magnitude below 2^22 rounds that to an integer, half to even, which the low bits then hold.
_ROUNDING_OFFSET = np.float32(3 << 22)


@dataclass(frozen=True)
class Quantize(Elementwise):
    """round_half_even(x / scale) + zero, clamped to the range of the dtype of zero (u8, i8, u16 or i16).

    x, scale: f32; the quotient is rounded to f32 (ONNX QuantizeLinear, StableHLO uniform_quantize). NaN gives the
    lowest level. divides: False if the scale is constant and multiplying by its reciprocal gives the same levels (see
    `reciprocal_is_exact`).
    """

    name: ClassVar[str] = "quantize"
    arity: ClassVar[int] = 3
    divides: bool = True

    def result(self, *inputs: TensorType) -> DType:
        x, scale, zero = (t.dtype for t in inputs)
        self.expect(x == scale == f32, f"expected x and scale of f32, got {x} and {scale}")
        self.expect(zero in QUANTIZED_DTYPES, f"expected a zero of {', '.join(map(str, QUANTIZED_DTYPES))}, got {zero}")
        return zero

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, scale, zero = inputs
        low, high = dtype_of(zero).range
        with np.errstate(all="ignore"):
            y = np.rint(x / scale).astype(np.float64) + zero
        return np.clip(np.where(np.isnan(y), low, y), low, high).astype(zero.dtype)

    def scalar(self, *xs: Expr) -> Expr:
        x, scale, zero = xs[0], *map(_unsplat, xs[1:])
        low, high = (k.binary("sub", k.lit(float(end), f32), k.cast(zero, f32)) for end in zero.dtype.range)
        if self.divides:
            y = _clamp(k.binary("div", x, scale), low, high)
        else:
            # clamp x instead of the quotient: the limits times scale are the inputs of the extreme levels
            low, high = (k.binary("mul", end, scale) for end in (low, high))
            y = _reciprocal_quotient(_clamp(x, low, high), scale)
        rounded = k.binary("add", y, k.lit(float(_ROUNDING_OFFSET), f32))
        offset = k.binary("sub", k.cast(zero, i32), k.lit(int(_ROUNDING_OFFSET.view(np.int32)), i32))
        return k.cast(k.binary("add", k.bitcast(rounded, i32), offset), zero.dtype)

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


def _clamp(x: Expr, low: Expr, high: Expr) -> Expr:
    """min(max(x, low), high); low if x is NaN."""
    return k.binary("minnum", k.binary("maxnum", x, low), high)


def _unsplat(e: Expr) -> Expr:
    """The scalar that all lanes of `e` hold if it is a splat, else `e`."""
    return k.lit(e.value, e.dtype) if isinstance(e, k.Lit) else e.a if isinstance(e, k.Splat) else e


def _reciprocal_quotient(x: Expr, scale: Expr) -> Expr:
    """x / scale as a product with the reciprocal and one correction step; a division takes ten times as long."""
    reciprocal = k.binary("div", k.lit(1.0, f32), scale)
    y = k.binary("mul", x, reciprocal)
    return k.fma(k.fma(y, k.unary("neg", scale), x), reciprocal, y)


@lru_cache(maxsize=1024)
def reciprocal_is_exact(scale: float) -> bool:
    """Whether `_reciprocal_quotient` gives the same 8-bit levels as a division, for every x.

    Its error is below one ulp, so only x next to a boundary between two levels can differ; all of these are checked.
    """
    s = np.float32(scale)
    if not 2.0**-60 < s < 2.0**60:
        return False
    boundaries = (np.arange(-256, 256, dtype=np.float64) + 0.5) * np.float64(s)
    x = np.float32(boundaries)
    neighbors = [x]
    for _ in range(3):
        neighbors = [
            np.nextafter(neighbors[0], np.float32(-np.inf)),
            *neighbors,
            np.nextafter(neighbors[-1], np.float32(np.inf)),
        ]
    x = np.stack(neighbors)
    reciprocal = np.float32(1) / s
    y = x * reciprocal
    # products of two f32 are exact in f64, and so are their small differences
    residual = (np.float64(x) - np.float64(y) * np.float64(s)).astype(np.float32)
    corrected = (np.float64(y) + np.float64(residual) * np.float64(reciprocal)).astype(np.float32)
    return bool((np.rint(corrected) == np.rint(x / s)).all())


__all__ = ["QUANTIZED_DTYPES", "Quantize", "reciprocal_is_exact"]
