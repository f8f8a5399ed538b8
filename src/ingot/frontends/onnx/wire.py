"""Reading an ONNX file without reading its weights.

A `ModelProto` is mapped into memory and scanned at the level of protobuf's wire format. The large `raw_data` fields of
the graph's initializers are cut out, the rest (a few hundred kilobytes) is parsed as usual, and the cut ranges are
returned as views of the mapping:

    [.. graph: [.. initializer: [dims name RAW] ..] ..]   ->   [.. graph: [.. initializer: [dims name] ..] ..], RAW

Source: onnx.proto for the field numbers.
"""

from __future__ import annotations

from ingot.frontends.shared.wire import BYTES, Source, fields

MODEL_GRAPH = 7
GRAPH_INITIALIZER = 5
TENSOR_RAW_DATA = 9
# smaller payloads stay in the parsed message, where they cost less than a view of the mapping
MIN_CUT_BYTES = 256


def cut_weights(data: memoryview, path: str) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """(message without the weights, {index of the initializer: (start, end) of its raw_data in `data`}).

    Raises ImportModelError where `data` is not a well-formed message, such as in a truncated file.
    """
    source = Source("ONNX", "a protobuf ModelProto", path)
    chunks: list[bytes | memoryview] = []
    cuts: dict[int, tuple[int, int]] = {}
    copied_end = 0
    for field, kind, begin, start, end in fields(data, 0, len(data), source):
        if field != MODEL_GRAPH or kind != BYTES:
            chunks.append(data[begin:end])
            continue
        parts: list[bytes | memoryview] = []
        for inner, inner_kind, record, tensor, stop in fields(data, start, end, source):
            if inner != GRAPH_INITIALIZER or inner_kind != BYTES:
                parts.append(data[record:stop])
                continue
            raw = None
            if stop - tensor > MIN_CUT_BYTES:
                kept_bytes, raw = _cut_tensor(data, tensor, stop, source)
                parts.append(_record(GRAPH_INITIALIZER, kept_bytes))
            else:
                parts.append(data[record:stop])
            if raw is not None:
                cuts[copied_end] = raw
            copied_end += 1
        chunks.append(_record(MODEL_GRAPH, b"".join(parts)))
    return b"".join(chunks), cuts


def _cut_tensor(data: memoryview, start: int, end: int, source: Source) -> tuple[bytes, tuple[int, int] | None]:
    pieces: list[memoryview] = []
    raw = None
    for field, kind, begin, payload, stop in fields(data, start, end, source):
        if field == TENSOR_RAW_DATA and kind == BYTES and stop - payload >= MIN_CUT_BYTES:
            raw = (payload, stop)
        else:
            pieces.append(data[begin:stop])
    return b"".join(pieces), raw


def _record(field: int, payload: bytes) -> bytes:
    head = bytearray()
    for value in (field << 3 | BYTES, len(payload)):
        while value > 0x7F:
            head.append(value & 0x7F | 0x80)
            value >>= 7
        head.append(value)
    return bytes(head) + payload
