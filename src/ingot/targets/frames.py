"""Messages between processes: frames of parts, each of them bytes. No pickle, nothing that is executed."""

from __future__ import annotations

import struct
from typing import IO

_LENGTHS = struct.Struct("<QQ")


def send(sink: IO[bytes], first: bytes, second: bytes) -> None:
    """Write a message of two parts. Raises OSError where nobody reads any more."""
    sink.write(_LENGTHS.pack(len(first), len(second)))
    sink.write(first)
    sink.write(second)
    sink.flush()


def receive(source: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The next message; None where the other side has ended, also in the middle of one."""
    head = source.read(_LENGTHS.size)
    if len(head) < _LENGTHS.size:
        return None
    sizes = _LENGTHS.unpack(head)
    first, second = (source.read(size) for size in sizes)
    return (first, second) if (len(first), len(second)) == sizes else None
