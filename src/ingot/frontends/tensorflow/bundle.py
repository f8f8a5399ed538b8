"""Checkpoints of variables: TensorBundle, an index of names and shards of raw tensors.

    variables.index                     a table of LevelDB: name -> BundleEntryProto {dtype, shape, shard, offset, size}
    variables.data-00000-of-00001       the tensors, one after another

Sources: tensorflow/core/util/tensor_bundle, LevelDB's doc/table_format.md, Snappy's format_description.txt.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

import numpy as np

from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.wire import Source, varint
from ingot.frontends.tensorflow.proto import Message, read_message, shape_of
from ingot.frontends.tensorflow.tensors import dtype_of_code
from ingot.support import files
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

_FOOTER_BYTES, _MAGIC = 48, 0xDB4775248B80FB57
_TRAILER_BYTES = 5  # compression type and checksum after each block
_MAX_BLOCK_BYTES = 1 << 28
_MAX_SHARDS = 1 << 16


def map_file(path: Path, root: Path) -> memoryview:
    """The bytes of a file inside `root`, mapped read-only. Raises ImportModelError, also for a link that leads out."""
    real = Path(os.path.realpath(path))
    if not files.is_inside(real, root):
        raise ImportModelError("a file outside the model's folder", got=str(real), where=str(path))
    try:
        return files.map_file(real).data
    except OSError as e:
        raise ImportModelError(f"cannot read the model: {e.strerror}", where=str(path)) from e


@dataclass
class Bundle:
    """Tensors by name; their files are mapped on demand."""

    prefix: Path
    root: Path
    entries: dict[str, Message]
    shards: int
    _files: dict[int, memoryview] = field(default_factory=dict[int, memoryview])

    @staticmethod
    def open(prefix: Path, root: Path) -> Bundle:
        path = prefix.with_name(f"{prefix.name}.index")
        data = map_file(path, root)
        entries: dict[str, Message] = {}
        shards = 1
        for key, value in _table(data, str(path)):
            m = read_message(value, "a BundleEntryProto", str(path))
            if not key:
                shards = m.int(1)
                if m.int(2):
                    raise ImportModelError("a checkpoint in big-endian order", where=str(path))
            else:
                entries[key.decode(errors="surrogateescape")] = m
        if not 0 < shards <= _MAX_SHARDS:
            raise ImportModelError("a checkpoint's shards", expected="some", got=shards, where=str(path))
        return Bundle(prefix, root, entries, shards)

    def array(self, name: str) -> np.ndarray:
        """A tensor as a read-only view of its file. Raises ImportModelError, and Unsupported for element types."""
        m = self.entries.get(name)
        if m is None:
            raise ImportModelError("a variable that the checkpoint lacks", got=repr(name), where=str(self.prefix))
        if m.has(7):
            raise Unsupported(f"the variable {name}, which is stored in slices")
        dtype, shape = dtype_of_code(m.int(1)), shape_of(m.message(2))
        sizes = tuple(int(d or 0) for d in shape or ())
        shard, offset, size = m.int(3), m.int(4), m.int(5)
        data = self._shard(shard)
        if size != math.prod(sizes) * dtype.numpy.itemsize or not 0 <= offset <= offset + size <= len(data):
            raise ImportModelError(
                f"the variable {name!r}", expected=f"{list(sizes)} of {dtype} within {len(data)} bytes",
                got=f"{size} bytes from {offset}", where=str(self.prefix), fix="copy or export the model again",
            )  # fmt: skip
        return np.frombuffer(data[offset : offset + size], dtype.numpy).reshape(sizes)

    def _shard(self, number: int) -> memoryview:
        if not 0 <= number < self.shards:
            raise ImportModelError("a checkpoint's shard", expected=f"below {self.shards}", got=number)
        if number not in self._files:
            name = f"{self.prefix.name}.data-{number:05d}-of-{self.shards:05d}"
            self._files[number] = map_file(self.prefix.with_name(name), self.root)
        return self._files[number]


def _table(data: memoryview, path: str) -> Iterator[tuple[bytes, memoryview]]:
    """The entries of a table, in order of their keys."""
    source = Source("TensorFlow", "a table of LevelDB", path)
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise source.malformed("no table's footer")
    end = len(data) - 8
    position = len(data) - _FOOTER_BYTES
    for _ in range(2):  # of the index of metadata, which is not read
        _, position = varint(data, position, end, source)
    offset, position = varint(data, position, end, source)
    size, position = varint(data, position, end, source)
    for _, handle in _block(data, offset, size, source):
        start, then = varint(handle, 0, len(handle), source)
        length, _ = varint(handle, then, len(handle), source)
        yield from _block(data, start, length, source)


def _block(data: memoryview, offset: int, size: int, source: Source) -> Iterator[tuple[bytes, memoryview]]:
    if offset + size + _TRAILER_BYTES > len(data) - _FOOTER_BYTES + _TRAILER_BYTES or size > _MAX_BLOCK_BYTES:
        raise source.malformed(f"a block of {size} bytes at byte {offset}")
    block, kind = data[offset : offset + size], data[offset + size]
    if kind == 1:
        block = memoryview(unsnappy(block, source))
    elif kind != 0:
        raise source.malformed(f"a block of compression {kind}")
    if len(block) < 4:
        raise source.malformed("a block without its end")
    (restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (restarts + 1)
    position, key = 0, b""
    while position < end:
        shared, position = varint(block, position, end, source)
        own_bytes, position = varint(block, position, end, source)
        length, position = varint(block, position, end, source)
        if shared > len(key) or position + own_bytes + length > end:
            raise source.malformed(f"an entry at byte {offset + position}")
        key = key[:shared] + bytes(block[position : position + own_bytes])
        yield key, block[position + own_bytes : position + own_bytes + length]
        position += own_bytes + length


def unsnappy(data: memoryview, source: Source) -> bytes:
    """Decompresses Snappy's format: the length, then literals and copies of earlier output."""
    size, position = varint(data, 0, len(data), source)
    if size > _MAX_BLOCK_BYTES:
        raise source.malformed(f"a block of {size} bytes")
    output = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        if tag & 3 == 0:
            length = (tag >> 2) + 1
            if length > 60:
                width = length - 60
                length = int.from_bytes(data[position : position + width], "little") + 1
                position += width
            output += data[position : position + length]
            position += length
        else:
            width = (1, 2, 4)[(tag & 3) - 1]
            length = 4 + (tag >> 2 & 7) if width == 1 else (tag >> 2) + 1
            distance = int.from_bytes(data[position : position + width], "little") | (
                (tag >> 5) << 8 if width == 1 else 0
            )
            position += width
            if not 0 < distance <= len(output):
                raise source.malformed("a copy from before the start")
            while length:
                part = output[-distance:][:length] if distance > length else output[-distance:]
                part = part[:length]
                output += part
                length -= len(part)
        if len(output) > size:
            break
    if len(output) != size or position > len(data):
        raise source.malformed(f"{len(output)} bytes of {size}")
    return bytes(output)
