"""Dense literals: text to arrays, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ingot.frontends.stablehlo.syntax import Dense
from ingot.frontends.stablehlo.types import Tensor, tensor_type
from ingot.ir.types import DType
from ingot.support.errors import ImportModelError

_ITEM = re.compile(r"-?0x[0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|true|false|-?(?:nan|inf)")
_MAX_INLINE_ELEMENTS = 8  # the most elements written as numbers


def arrays(dense: Dense, resources: Mapping[str, str]) -> tuple[np.ndarray, ...]:
    """The array, or the real and the imaginary part. Raises ImportModelError where the text does not fill its type."""
    type = tensor_type(dense.type)
    if None in type.shape:
        raise ImportModelError("a constant", expected="a static type", got=dense.type)
    body = dense.body
    if body.startswith("resource "):
        raw = _hex(resources.get(body[len("resource ") :].strip('"'), ""), dense)[4:]  # behind its alignment
        return _of_bytes(raw, type, dense)
    if body[:1] == '"':
        return _of_bytes(_hex(body[1:-1], dense), type, dense)
    return _of_items(_ITEM.findall(body), type, dense)


def _hex(text: str, dense: Dense) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise _unfit(dense, "hexadecimal digits") from None


def _unfit(dense: Dense, expected: str) -> ImportModelError:
    got = dense.body if len(dense.body) <= 40 else dense.body[:40] + "..."
    return ImportModelError(f"a constant of {dense.type}", expected=expected, got=got)


def _of_bytes(raw: bytes, type: Tensor, dense: Dense) -> tuple[np.ndarray, ...]:
    shape = tuple(d or 0 for d in type.shape)
    size, dtype = math.prod(shape), type.dtype
    count = size * (2 if type.complex else 1)
    if dtype.name == "bool":
        # eight to a byte; one byte of all ones or zeros for a splat
        bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little").astype(bool)
        if len(raw) == 1 and size != 1 and raw[0] in (0, 255):
            bits = np.resize(bits, size)
        if bits.size < size or (bits.size > size + 7 and len(raw) > 1):
            raise _unfit(dense, f"{size} bits")
        return (bits[:size].reshape(shape),)
    stored = np.dtype(np.int8 if dtype.bits < 8 else dtype.numpy)
    if len(raw) % stored.itemsize:
        raise _unfit(dense, f"{count * stored.itemsize} bytes")
    flat = np.frombuffer(raw, stored)
    if flat.size != count:
        if flat.size != (2 if type.complex else 1):
            raise _unfit(dense, f"{count * stored.itemsize} bytes")
        flat = np.resize(flat, count)
    if dtype.bits < 8:
        flat = flat.astype(dtype.numpy)
    if type.complex:
        pairs = flat.reshape(*shape, 2)
        return pairs[..., 0].copy(), pairs[..., 1].copy()
    return (flat.reshape(shape),)


def _of_items(items: list[str], type: Tensor, dense: Dense) -> tuple[np.ndarray, ...]:
    shape = tuple(d or 0 for d in type.shape)
    count = math.prod(shape)
    numbers_per_element = 2 if type.complex else 1
    if len(items) not in (numbers_per_element, count * numbers_per_element) or (not items and count):
        raise _unfit(dense, f"{count * numbers_per_element} numbers")
    flat = _numbers(items, type.dtype, dense)
    if flat.size != count * numbers_per_element:
        flat = np.resize(flat, count * numbers_per_element)
    if type.complex:
        pairs = flat.reshape(*shape, 2)
        return pairs[..., 0].copy(), pairs[..., 1].copy()
    return (flat.reshape(shape),)


def _numbers(items: list[str], dtype: DType, dense: Dense) -> np.ndarray:
    try:
        if dtype.name == "bool":
            return np.array([v == "true" or (v != "false" and int(v) != 0) for v in items], bool)
        if dtype.is_integer:
            low, high = dtype.range
            values = [{"true": 1, "false": 0}[v] if v in ("true", "false") else int(v, 0) for v in items]
            if any(not low <= v <= max(high, -2 * low - 1) for v in values):
                raise _unfit(dense, f"numbers of {dtype}")
            # hexadecimal digits give an element's bits
            wrapped = [v - (1 << dtype.bits) if v > high else v for v in values]
            return np.array(wrapped, np.uint64 if dtype.kind == "u" else np.int64).astype(dtype.numpy)
        if not any(v.startswith(("0x", "-0x")) for v in items):
            return np.array(items, np.float64).astype(dtype.numpy)
        numbers = np.empty(len(items), dtype.numpy)
        bits = numbers.view(f"u{dtype.nbytes}")
        for i, v in enumerate(items):
            if v.startswith("0x"):
                bits[i] = int(v, 16)
            else:
                numbers[i] = float(v)
        return numbers
    except (ValueError, OverflowError):
        raise _unfit(dense, f"numbers of {dtype}") from None


def dense(array: np.ndarray, type: str) -> Dense:
    """A literal that preserves every bit: numbers if there are few, else hexadecimal digits."""
    if array.size == 0:
        return Dense("", type)
    if array.dtype == bool:
        flat = array.reshape(-1)
        if flat.all() or not flat.any():
            return Dense("true" if flat[0] else "false", type)
        return Dense(_nested_text(array, lambda v: "true" if v else "false"), type)
    if array.dtype.name in ("int4", "uint4"):
        return Dense(_nested_text(array, lambda v: str(int(v))), type)
    if array.size <= _MAX_INLINE_ELEMENTS and array.dtype.kind in "iu":
        return Dense(_nested_text(array, lambda v: str(int(v))), type)
    raw = np.asarray(array, order="C")
    if raw.dtype.byteorder == ">":
        raw = raw.astype(raw.dtype.newbyteorder("<"))
    if array.size <= _MAX_INLINE_ELEMENTS:
        width = 2 * raw.itemsize
        bits = raw.view(f"u{raw.itemsize}")
        return Dense(_nested_text(bits, lambda v: f"0x{int(v):0{width}X}"), type)
    return Dense(f'"0x{raw.tobytes().hex().upper()}"', type)


def _nested_text(array: np.ndarray, one: Callable[[Any], str]) -> str:
    if array.ndim == 0:
        return one(array[()])
    return f"[{', '.join(_nested_text(a, one) for a in array)}]"
