"""Reading an ONNX file without reading its weights.

A `ModelProto` is mapped into memory and walked at the level of protobuf's wire format. The large `raw_data` fields of
the graph's initializers are cut out, what remains (a few hundred kilobytes) is parsed as usual, and the cut ranges are
handed back as views of the mapping:

    [.. graph: [.. initializer: [dims name RAW] ..] ..]   ->   [.. graph: [.. initializer: [dims name] ..] ..], RAW

Source: protobuf's encoding guide (https://protobuf.dev/programming-guides/encoding), onnx.proto for the field numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ingot.support.errors import ImportModelError

MODEL_GRAPH = 7
GRAPH_INITIALIZER = 5
TENSOR_RAW_DATA = 9
# smaller payloads stay in the parsed message: a view of the mapping would not pay
CUT_FROM = 256

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# the wire format has 64-bit varints of at most ten bytes
_MAX_VARINT = 10


def cut_weights(data: memoryview, path: str) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """(message without the weights, {index of the initializer: (start, end) of its raw_data in `data`}).

    Raises ImportModelError where `data` is not a well-formed message, such as in a truncated file.
    """
    out: list[bytes | memoryview] = []
    cuts: dict[int, tuple[int, int]] = {}
    seen = 0
    for field, kind, begin, start, end in _fields(data, 0, len(data), path):
        if field != MODEL_GRAPH or kind != _BYTES:
            out.append(data[begin:end])
            continue
        parts: list[bytes | memoryview] = []
        for inner, inner_kind, at, tensor, stop in _fields(data, start, end, path):
            if inner != GRAPH_INITIALIZER or inner_kind != _BYTES:
                parts.append(data[at:stop])
                continue
            raw = None
            if stop - tensor > CUT_FROM:
                kept, raw = _cut_tensor(data, tensor, stop, path)
                parts.append(_record(GRAPH_INITIALIZER, kept))
            else:
                parts.append(data[at:stop])
            if raw is not None:
                cuts[seen] = raw
            seen += 1
        out.append(_record(MODEL_GRAPH, b"".join(parts)))
    return b"".join(out), cuts


def _cut_tensor(data: memoryview, start: int, end: int, path: str) -> tuple[bytes, tuple[int, int] | None]:
    kept: list[memoryview] = []
    raw = None
    for field, kind, begin, at, stop in _fields(data, start, end, path):
        if field == TENSOR_RAW_DATA and kind == _BYTES and stop - at >= CUT_FROM:
            raw = (at, stop)
        else:
            kept.append(data[begin:stop])
    return b"".join(kept), raw


def _fields(data: memoryview, start: int, end: int, path: str) -> Iterator[tuple[int, int, int, int, int]]:
    """(field number, wire type, start of the record, start of its payload, end) for each record of a message."""
    at = start
    while at < end:
        begin = at
        key, at = _varint(data, at, end, path)
        field, kind = key >> 3, key & 7
        payload = at
        if kind == _BYTES:
            size, payload = _varint(data, at, end, path)
            at = payload + size
        elif kind == _VARINT:
            _, at = _varint(data, at, end, path)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        else:
            raise _malformed(path, f"wire type {kind} at byte {begin}")
        if field == 0:
            raise _malformed(path, f"field number 0 at byte {begin}")
        if at > end:
            raise ImportModelError(
                "the model file is truncated",
                expected=f"{at - start} bytes of field {field} from byte {start}",
                got=f"{end - start} bytes",
                where=path,
                fix="copy or export the file again",
            )
        yield field, kind, begin, payload, at


def _varint(data: memoryview, at: int, end: int, path: str) -> tuple[int, int]:
    value = 0
    for i in range(_MAX_VARINT):
        if at + i >= end:
            raise _malformed(path, f"it ends inside a number at byte {at}")
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise _malformed(path, f"a number of more than {_MAX_VARINT} bytes at byte {at}")


def _malformed(path: str, got: str) -> ImportModelError:
    return ImportModelError(
        "not a readable ONNX file",
        expected="a protobuf ModelProto",
        got=got,
        where=path,
        fix="check that the file is complete and is ONNX",
    )


def _record(field: int, payload: bytes) -> bytes:
    head = bytearray()
    for value in (field << 3 | _BYTES, len(payload)):
        while value > 0x7F:
            head.append(value & 0x7F | 0x80)
            value >>= 7
        head.append(value)
    return bytes(head) + payload
