"""Options of custom ops: a FlexBuffer, whose root is a map from names to numbers and vectors of numbers. Other values
are ignored.

Source: FlatBuffers' flexbuffers.h and internals (https://flatbuffers.dev/internals/#flexbuffers).
"""

from __future__ import annotations

import struct

from ingot.frontends.shared.refusal import Unsupported

_MAP, _INDIRECT, _BOOL = 9, (6, 7, 8), 26
_VECTORS = {11: 1, 12: 2, 13: 3}  # type of a typed vector -> type of its elements
_CODES = {1: "bhiq", 2: "BHIQ", 3: " efd", _BOOL: "BHIQ"}  # of widths 1, 2, 4, 8


Option = float | tuple[float, ...]


def numbers(data: bytes) -> dict[str, float]:
    """The map's numbers by name. Raises Unsupported for other data."""
    return {name: v for name, v in options(data).items() if not isinstance(v, tuple)}


def options(data: bytes) -> dict[str, Option]:
    """The map's numbers and vectors of numbers by name. Raises Unsupported for other data."""
    try:
        return _options(data)
    except (IndexError, struct.error, ValueError, UnicodeDecodeError) as e:
        raise Unsupported("options that are no map") from e


def _options(data: bytes) -> dict[str, Option]:
    width, packed = data[-1], data[-2]
    if packed >> 2 != _MAP or width not in (1, 2, 4, 8):
        raise ValueError
    values = _offset_target(data, len(data) - 2 - width, width)
    width = 1 << (packed & 3)
    count = _unsigned(data, values - width, width)
    key_width = _unsigned(data, values - 2 * width, width)
    keys = _offset_target(data, values - 3 * width, width)
    if count > len(data) or key_width not in (1, 2, 4, 8):
        raise ValueError
    options_: dict[str, Option] = {}
    for i in range(count):
        start = _offset_target(data, keys + i * key_width, key_width)
        name = data[start : data.index(0, start)].decode()
        kind, at, size = data[values + count * width + i], values + i * width, width
        if kind >> 2 in _INDIRECT:
            at, size, kind = _offset_target(data, at, width), 1 << (kind & 3), kind - 5 * 4
        elif kind >> 2 in _VECTORS:
            options_[name] = _vector(data, _offset_target(data, at, width), kind)
            continue
        code = _CODES.get(kind >> 2, "    ")[size.bit_length() - 1]
        if code != " ":
            (options_[name],) = struct.unpack_from("<" + code, data, _inside(at))
    return options_


def _vector(data: bytes, at: int, kind: int) -> tuple[float, ...]:
    size = 1 << (kind & 3)
    code, length = _CODES[_VECTORS[kind >> 2]][kind & 3], _unsigned(data, at - size, size)
    if length > len(data) or code == " ":
        raise ValueError
    return struct.unpack_from(f"<{length}{code}", data, at)


def _inside(at: int) -> int:
    if at < 0:
        raise ValueError
    return at


def _unsigned(data: bytes, at: int, width: int) -> int:
    return struct.unpack_from("<" + "BHIQ"[width.bit_length() - 1], data, _inside(at))[0]


def _offset_target(data: bytes, at: int, width: int) -> int:
    """The position to which the (backward) offset at `at` points."""
    return _inside(at - _unsigned(data, at, width))
