"""The binary format of WebAssembly: numbers, names and sections. Source: WebAssembly's specification, chapter 5."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingot.support.errors import CompileError

MAGIC = b"\0asm\1\0\0\0"
CUSTOM, TYPE, IMPORT, FUNCTION, TABLE, MEMORY, GLOBAL, EXPORT, _, ELEMENT, CODE, DATA, DATA_COUNT = range(13)
I32, FUNCREF = 0x7F, 0x70
I32_CONST, END = 0x41, 0x0B


class Reader:
    """A cursor over bytes. Raises CompileError at their end."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def __bool__(self) -> bool:
        return self.at < self.end

    def byte(self) -> int:
        return self.take(1)[0]

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.end - self.at:
            raise CompileError("link: a WebAssembly object", expected=f"{count} more bytes", got=self.end - self.at)
        self.at += count
        return self.data[self.at - count : self.at]

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def signed(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value - (1 << shift) if byte & 64 else value

    def sized(self) -> bytes:
        """A vector of bytes."""
        return self.take(self.unsigned())

    def name(self) -> str:
        return self.sized().decode()


def unsigned(value: int) -> bytes:
    """LEB128."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> bytes:
    """LEB128 of a signed number."""
    out = bytearray()
    while not -64 <= value < 64:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value & 127)
    return bytes(out)


def padded(value: int) -> bytes:
    """LEB128 of 32 bits in five bytes, as in code that is relocated: of an unsigned number or one below 2**31."""
    return bytes([*(value >> shift & 127 | 128 for shift in range(0, 28, 7)), value >> 28 & 127])


def sized(data: bytes) -> bytes:
    return unsigned(len(data)) + data


def name(text: str) -> bytes:
    return sized(text.encode())


def vector(items: Iterable[bytes]) -> bytes:
    items = list(items)
    return unsigned(len(items)) + b"".join(items)


def section(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + sized(content)


def sections(data: bytes) -> Iterator[tuple[int, Reader]]:
    """Yield the kind and the content of each section of a module or an object."""
    if data[:8] != MAGIC:
        raise CompileError("link", expected="a WebAssembly object", got=repr(data[:8]))
    reader = Reader(data, 8)
    while reader:
        kind, size = reader.byte(), reader.unsigned()
        reader.take(size)
        yield kind, Reader(data, reader.at - size, reader.at)
