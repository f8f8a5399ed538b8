"""Floats of at most 8 bits, lowered to bytes and f32 arithmetic for GPUs without such types. In kernels that multiply
tiles of such a type, its values keep the type.

y = f8(x) + z   ->   y = encode(decode(encode(x)) + decode(z)), where y, z and encode(x) are u8

decode(c) = 2^(127 - bias) * float(c's low bits << (23 - mantissa)), with c's sign
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import (
    Bitcast,
    Buffer,
    Cast,
    Expr,
    Gather,
    Kernel,
    Lit,
    Load,
    Select,
    Splat,
    Spread,
    TileLoad,
    TileProduct,
    Transposed,
    Var,
)
from ingot.ir.kernel.rewrite import Rewriter, with_operands
from ingot.ir.kernel.verify import children
from ingot.ir.types import FLOAT_FORMATS, DType, f32, i32, u8

# e8m0 has neither sign nor zero
NARROW_FORMATS = {d: form for d, form in FLOAT_FORMATS.items() if form.has_sign}
_MOVE_EXPRESSIONS = (Load, Gather, TileLoad, Splat, Spread, Select, Transposed)


def lower_narrow_floats(kernel: Kernel) -> Kernel:
    """Rewrite `kernel` without narrow floats, except for types that it multiplies tiles of."""
    products = _Products()
    products.body(kernel.body)
    rewriting = _Bytes(frozenset(products.types))
    return replace(kernel, params=tuple(map(rewriting.buffer, kernel.params)), body=rewriting.body(kernel.body))


class _Products(Rewriter):
    """Collects `types`, the narrow types of products' operands; rewrites nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[DType] = set()

    def expr(self, e: Expr) -> Expr:
        if isinstance(e, TileProduct):
            self.types |= NARROW_FORMATS.keys() & {e.a.dtype, e.b.dtype}
        return e


class _Bytes(Rewriter):
    """native: the narrow types that stay."""

    def __init__(self, native: frozenset[DType]) -> None:
        super().__init__()
        self.native = native
        self.alive: list[Expr] = []  # results are cached by id, so expressions must outlive the rewriting

    def storage_type(self, dtype: DType) -> DType:
        return u8 if dtype in NARROW_FORMATS and dtype not in self.native else dtype

    def buffer(self, b: Buffer) -> Buffer:
        return b if self.storage_type(b.dtype) == b.dtype else replace(b, dtype=u8)

    def variable(self, v: Var) -> Var:
        return v if self.storage_type(v.dtype) == v.dtype else replace(v, dtype=u8)

    def of(self, e: Expr) -> Expr:
        if isinstance(e, Lit) and e.dtype in NARROW_FORMATS:
            code = int(np.asarray(e.value).astype(e.dtype.numpy).view(np.uint8))
            return k.bitcast(replace(e, dtype=u8, value=code), self.storage_type(e.dtype))
        return super().of(e)

    def rebuilt(self, e: Expr) -> Expr:
        operands = children(e)
        if e.dtype not in NARROW_FORMATS and not any(x.dtype in NARROW_FORMATS for x in operands):
            return super().rebuilt(e)
        if isinstance(e, _MOVE_EXPRESSIONS):
            return replace(super().rebuilt(e), dtype=self.storage_type(e.dtype))
        if isinstance(e, TileProduct):
            return super().rebuilt(e)
        if isinstance(e, Cast):
            x = self.of(e.a)
            x = _decode(k.bitcast(x, u8), e.a.dtype) if e.a.dtype in NARROW_FORMATS else x
            return (
                k.bitcast(_encode(x, e.dtype), self.storage_type(e.dtype))
                if e.dtype in NARROW_FORMATS
                else k.cast(x, e.dtype)
            )
        if isinstance(e, Bitcast):
            x, dtype = self.of(e.a), self.storage_type(e.dtype)
            return x if x.dtype == dtype else replace(e, a=x, dtype=dtype)
        widened = with_operands(e, {id(x): k.cast(x, f32) for x in operands if x.dtype in NARROW_FORMATS})
        widened = k.cast(replace(widened, dtype=f32), e.dtype) if e.dtype in NARROW_FORMATS else widened
        self.alive.append(widened)
        return self.of(widened)


def _int(value: int, like: Expr) -> Expr:
    return k.lit(value, i32, like.lanes, like.tile)


def _op(fn: str, a: Expr, value: int) -> Expr:
    return k.binary(fn, a, _int(value, a))


def _decode(code: Expr, dtype: DType) -> Expr:
    """Decode a byte to f32."""
    form, sign_bit = NARROW_FORMATS[dtype], dtype.bits - 1
    bits = k.cast(code, i32)
    low = _op("and", bits, (1 << sign_bit) - 1)
    magnitude = k.bitcast(_op("shl", low, 23 - form.mantissa), f32)
    magnitude = k.mul(magnitude, k.lit(2.0 ** (127 - form.bias), f32))
    if form.overflow not in (form.top, form.nan):
        magnitude = k.select(_op("eq", low, form.overflow), k.lit(float("inf"), f32), magnitude)
    sign = _op("shl", _op("ashr", bits, sign_bit), 31)
    value = k.bitcast(k.binary("or", k.bitcast(magnitude, i32), sign), f32)
    if form.overflow == form.top:  # the format has no NaN
        return value
    nan = _op("gt", low, max(form.top, form.overflow if form.overflow != form.nan else 0))
    nan = nan if form.has_negative_zero else _op("eq", bits, form.nan)
    return k.select(nan, k.lit(float("nan"), f32), value)


def _encode(x: Expr, dtype: DType) -> Expr:
    """Encode a float as a byte, rounding to nearest even; an f64 is rounded to f32 first, as in ml_dtypes."""
    form, sign_bit = NARROW_FORMATS[dtype], dtype.bits - 1
    x = k.cast(x, f32)
    bits = k.bitcast(x, i32)
    magnitude = _op("and", bits, 0x7FFFFFFF)
    shift = 23 - form.mantissa
    half = k.add(_op("and", _op("lshr", magnitude, shift), 1), _int((1 << (shift - 1)) - 1, magnitude))
    normal = _op("sub", _op("lshr", k.add(magnitude, half), shift), (127 - form.bias) << form.mantissa)
    # subnormal: in the sum with `step`, the last bits count the steps
    step = float(2.0 ** (1 - form.bias - form.mantissa + 23))
    base = int(np.float32(step).view(np.int32))
    subnormal = _op("sub", k.bitcast(k.add(k.bitcast(magnitude, f32), k.lit(step, f32)), i32), base)
    code = k.select(_op("lt", magnitude, (128 - form.bias) << 23), subnormal, normal)
    code = k.select(_op("gt", code, form.top), _int(form.overflow, code), code)
    sign = _op("shl", _op("and", _op("lshr", bits, 31), 1), sign_bit)
    signed = k.binary("or", code, sign)
    if not form.has_negative_zero:
        signed = k.select(_op("eq", code, 0), code, signed)
    return k.cast(k.select(k.binary("ne", x, x), _int(form.nan, code), signed), u8)


__all__ = ["NARROW_FORMATS", "lower_narrow_floats"]
