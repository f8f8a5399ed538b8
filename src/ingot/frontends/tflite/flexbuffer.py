"""Options of custom ops: a FlexBuffer, whose root is a map of names to numbers. What else it holds is left out.

Source: FlatBuffers' flexbuffers.h and internals (https://flatbuffers.dev/internals/#flexbuffers).
"""

from __future__ import annotations

import struct

from ingot.frontends.shared.refusal import Unsupported

_MAP, _INDIRECT, _BOOL = 9, (6, 7, 8), 26
_CODES = {1: "bhiq", 2: "BHIQ", 3: " efd", _BOOL: "BHIQ"}  # of widths 1, 2, 4, 8


def numbers(data: bytes) -> dict[str, float]:
    """The map's numbers by name. Raises Unsupported for what is no such map."""
    try:
        return _numbers(data)
    except (IndexError, struct.error, ValueError, UnicodeDecodeError) as e:
        raise Unsupported("options that are no map") from e


def _numbers(data: bytes) -> dict[str, float]:
    width, packed = data[-1], data[-2]
    if packed >> 2 != _MAP or width not in (1, 2, 4, 8):
        raise ValueError
    values = _behind(data, len(data) - 2 - width, width)
    width = 1 << (packed & 3)
    count = _unsigned(data, values - width, width)
    key_width = _unsigned(data, values - 2 * width, width)
    keys = _behind(data, values - 3 * width, width)
    if count > len(data) or key_width not in (1, 2, 4, 8):
        raise ValueError
    out: dict[str, float] = {}
    for i in range(count):
        start = _behind(data, keys + i * key_width, key_width)
        name = data[start : data.index(0, start)].decode()
        kind, at, size = data[values + count * width + i], values + i * width, width
        if kind >> 2 in _INDIRECT:
            at, size, kind = _behind(data, at, width), 1 << (kind & 3), kind - 5 * 4
        code = _CODES.get(kind >> 2, "    ")[size.bit_length() - 1]
        if code != " ":
            (out[name],) = struct.unpack_from("<" + code, data, _inside(at))
    return out


def _inside(at: int) -> int:
    if at < 0:
        raise ValueError
    return at


def _unsigned(data: bytes, at: int, width: int) -> int:
    return struct.unpack_from("<" + "BHIQ"[width.bit_length() - 1], data, _inside(at))[0]


def _behind(data: bytes, at: int, width: int) -> int:
    """What the offset at `at` points back to."""
    return _inside(at - _unsigned(data, at, width))
