"""Messages between processes: a header and a payload of bytes, prefixed by their lengths. No pickle, no evaluation."""

from __future__ import annotations

import struct
from typing import IO

_LENGTHS = struct.Struct("<QQ")


def send(sink: IO[bytes], header: bytes, payload: bytes) -> None:
    """Write a message. Raises OSError if the reader has closed the pipe."""
    sink.write(_LENGTHS.pack(len(header), len(payload)))
    sink.write(header)
    sink.write(payload)
    sink.flush()


def receive(source: IO[bytes]) -> tuple[bytes, bytes] | None:
    """Return the next message; None if the writer has ended, even in the middle of one."""
    lengths = source.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    sizes = _LENGTHS.unpack(lengths)
    header, payload = (source.read(size) for size in sizes)
    return (header, payload) if (len(header), len(payload)) == sizes else None
