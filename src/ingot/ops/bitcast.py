"""A builder: the bits of a value as another dtype."""

from __future__ import annotations

import functools

from ingot.ir.node import Node
from ingot.ir.types import DTYPES, DType, boolean, u8
from ingot.ops.build import and_, cast, full, index_axis, stack
from ingot.ops.core.binary import BitcastConvert, Or, ShiftLeft, ShiftRightLogical
from ingot.support.errors import ShapeError


def bitcast(x: Node, dtype: DType, loc: str = "") -> Node:
    """The bits of x as another dtype; a bool is a byte of 0 or 1.

    If the widths differ, the last axis of the narrower type is the parts of a wider element, the lowest first: f32[3]
    -> u8[3,4] -> f32[3]. Raise ShapeError if the last axis of x is not the parts of one element.
    """
    if x.dtype == dtype:
        return x
    if boolean in (x.dtype, dtype):
        return cast(bitcast(x, u8, loc), dtype, loc) if dtype == boolean else bitcast(cast(x, u8, loc), dtype, loc)
    if x.dtype.bits > dtype.bits:
        return _same_width(_split_elements(_same_width(x, _unsigned(x.dtype), loc), _unsigned(dtype), loc), dtype, loc)
    if x.dtype.bits < dtype.bits:
        return _same_width(_join_elements(_same_width(x, _unsigned(x.dtype), loc), _unsigned(dtype), loc), dtype, loc)
    return _same_width(x, dtype, loc)


def _unsigned(dtype: DType) -> DType:
    return DTYPES[f"u{dtype.bits}"]


def _same_width(x: Node, dtype: DType, loc: str) -> Node:
    if x.dtype == dtype:
        return x
    # sub-byte elements have no bitcast, but integer conversions wrap
    return cast(x, dtype, loc) if dtype.bits < 8 else BitcastConvert(dtype)(x, loc=loc)


def _split_elements(x: Node, part_dtype: DType, loc: str) -> Node:
    shifts = range(0, x.dtype.bits, part_dtype.bits)
    pieces = [ShiftRightLogical()(x, full(x.shape, shift, x.dtype), loc=loc) for shift in shifts]
    return stack([cast(and_(p, (1 << part_dtype.bits) - 1, loc), part_dtype, loc) for p in pieces], -1, loc)


def _join_elements(x: Node, dtype: DType, loc: str) -> Node:
    count = dtype.bits // x.dtype.bits
    if x.shape[-1:] != (count,):
        raise ShapeError(f"bitcast to {dtype}", expected=f"a last axis of {count}", got=x.type, where=loc or None)
    pieces = [cast(index_axis(x, -1, i, loc), dtype, loc) for i in range(count)]
    shift = ShiftLeft()
    shifted = [shift(p, full(p.shape, i * x.dtype.bits, dtype), loc=loc) for i, p in enumerate(pieces)]
    return functools.reduce(lambda a, b: Or()(a, b, loc=loc), shifted)
