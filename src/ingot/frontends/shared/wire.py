"""Protobuf's wire format, read without a schema.

    for field, kind, begin, start, end in fields(data, 0, len(data), source): ...

Source: protobuf's encoding guide (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterator

from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# the wire format has 64-bit varints of at most ten bytes
_MAX_VARINT = 10


@dataclass(frozen=True)
class Source:
    """The source of a message, for errors. kind: ONNX; message: a protobuf ModelProto; path: of the file."""

    kind: str
    message: str
    path: str

    def malformed(self, got: str) -> ImportModelError:
        return ImportModelError(
            f"not a readable {self.kind} file",
            expected=self.message,
            got=got,
            where=self.path,
            fix=f"check that the file is complete and is {self.kind}",
        )


def fields(data: memoryview, start: int, end: int, source: Source) -> Iterator[tuple[int, int, int, int, int]]:
    """(field number, wire type, start of the record, start of its payload, end) for each record of a message.

    Raises ImportModelError where `data` is no well-formed message, such as in a truncated file.
    """
    offset = start
    while offset < end:
        begin = offset
        key, offset = varint(data, offset, end, source)
        field, kind = key >> 3, key & 7
        payload = offset
        if kind == BYTES:
            size, payload = varint(data, offset, end, source)
            offset = payload + size
        elif kind == VARINT:
            _, offset = varint(data, offset, end, source)
        elif kind == FIXED64:
            offset += 8
        elif kind == FIXED32:
            offset += 4
        else:
            raise source.malformed(f"wire type {kind} at byte {begin}")
        if field == 0:
            raise source.malformed(f"field number 0 at byte {begin}")
        if offset > end:
            raise ImportModelError(
                "the model file is truncated",
                expected=f"{offset - start} bytes of field {field} from byte {start}",
                got=f"{end - start} bytes",
                where=source.path,
                fix="copy or export the file again",
            )
        yield field, kind, begin, payload, offset


def varint(data: memoryview, at: int, end: int, source: Source) -> tuple[int, int]:
    """The number that starts at byte `at`, and the offset of its end."""
    if at < end and data[at] < 0x80:  # most take one byte
        return data[at], at + 1
    value = 0
    for i in range(_MAX_VARINT):
        if at + i >= end:
            raise source.malformed(f"it ends inside a number at byte {at}")
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise source.malformed(f"a number of more than {_MAX_VARINT} bytes at byte {at}")
