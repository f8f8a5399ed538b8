"""Element types, and TensorProto as arrays."""

from __future__ import annotations

import math

import numpy as np

from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.proto import Message, shape_of
from ingot.ir import types as T
from ingot.ir.types import DType
from ingot.support.errors import ImportModelError
from ingot.support.limits import check_elements

# DataType of tensorflow/core/framework/types.proto
STRING, RESOURCE, VARIANT, _REF = 7, 20, 21, 100
_UNSUPPORTED_NAMES = {
    STRING: "string", 8: "complex64", 11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16",
    18: "complex128", RESOURCE: "resource", VARIANT: "variant",
}  # fmt: skip
_DTYPES = {
    1: T.f32, 2: T.f64, 3: T.i32, 4: T.u8, 5: T.i16, 6: T.i8, 9: T.i64, 10: T.boolean, 14: T.bf16, 17: T.u16, 19: T.f16,
    22: T.u32, 23: T.u64,
}  # fmt: skip

COMPLEX = {8: T.f32, 18: T.f64}  # of two of which an element is


def is_numeric(code: int) -> bool:
    return code % _REF in _DTYPES


def dtype_of_code(code: int) -> DType:
    """Raises Unsupported for types that Ingot has none for."""
    dtype = _DTYPES.get(code % _REF)
    if dtype is None:
        raise Unsupported(f"elements of type {_UNSUPPORTED_NAMES.get(code % _REF, code)}")
    return dtype


# fields of TensorProto that hold numbers as text-like fields: integers as varints, floats at their own width
_VARINT_FIELDS = {T.i32: 7, T.u8: 7, T.i16: 7, T.i8: 7, T.u16: 7, T.i64: 10, T.boolean: 11, T.u32: 16, T.u64: 17}
_FIXED_FIELDS = {T.f32: (5, "<f4"), T.f64: (6, "<f8")}


def to_array(m: Message) -> np.ndarray:
    """A TensorProto. Strings are an object array of bytes. Raises Unsupported, and ImportModelError for contents that
    do not fit the shape."""
    code, shape = m.int(1), shape_of(m.message(2))
    if shape is None or any(d is None for d in shape):
        raise ImportModelError("a constant of open shape", where=m.source.path)
    sizes = tuple(int(d or 0) for d in shape)
    count = math.prod(sizes)
    check_elements(count, m.source.path)
    if code == STRING:
        strings = [bytes(v) for v in m.bytes(8)]
        texts = np.empty(len(strings), object)
        texts[:] = strings
        return _filled(texts, sizes, m)
    part = COMPLEX.get(code)
    numpy = dtype_of_code(code).numpy if part is None else np.result_type(part.numpy, np.complex64)
    content = m.bytes(4)
    if content and len(content[-1]):
        if len(content[-1]) != count * numpy.itemsize:
            expected = f"{count * numpy.itemsize} bytes"
            raise ImportModelError("a constant", expected=expected, got=len(content[-1]), where=m.source.path)
        return np.frombuffer(content[-1], numpy).reshape(sizes)
    if part is not None:
        pairs = m.array(*((9, "<f4") if part is T.f32 else (12, "<f8")))
        return _filled(pairs[: len(pairs) // 2 * 2].view(numpy), sizes, m)
    dtype = dtype_of_code(code)
    if dtype in _FIXED_FIELDS:
        return _filled(m.array(*_FIXED_FIELDS[dtype]), sizes, m)
    if dtype in _VARINT_FIELDS:
        integers = np.array(m.ints(_VARINT_FIELDS[dtype]), object)
        wrapped = np.array([int(v) % (1 << 64) for v in integers], np.uint64)
        return _filled(wrapped.astype(dtype.numpy), sizes, m)
    return _filled(np.array(m.ints(13), np.uint16).view(dtype.numpy), sizes, m)


def _filled(values: np.ndarray, shape: tuple[int, ...], m: Message) -> np.ndarray:
    """Values in `shape`; the last one is repeated, as writers leave repetitions out, and none are zeros."""
    count = math.prod(shape)
    if len(values) > count:
        raise ImportModelError("a constant", expected=f"{count} elements", got=len(values), where=m.source.path)
    if len(values) == count:
        return values.reshape(shape)
    if values.dtype == object:
        values = np.concatenate([values, np.array([b""], object)])[: max(len(values), 1)]
    elif not len(values):
        values = np.zeros(1, values.dtype)
    # a view without memory of its own where all are equal
    if len(values) == 1:
        return np.broadcast_to(values.reshape(()), shape)
    return np.concatenate([values, np.full(count - len(values), values[-1])]).reshape(shape)
