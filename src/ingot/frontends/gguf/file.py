"""GGUF files, read through a memory map: metadata by key and tensors by name, each a view of the map.

    file = GGUFFile("model.gguf")
    file.metadata["general.architecture"], file.tensors["token_embd.weight"].format.name

Files are untrusted: each count, length and offset is compared with the remaining bytes before anything is allocated. A
tensor's data must be aligned, within the file, and not overlap another tensor's.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from ingot.frontends.gguf.blocks import FORMATS, UNREAD, BlockFormat
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError
from ingot.support.files import open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
Value: TypeAlias = "bool | int | float | str | np.ndarray | tuple[Value, ...]"

_DEFAULT_ALIGNMENT_BYTES = 32  # bytes, unless general.alignment says otherwise
_MAX_ALIGNMENT_BYTES = 1 << 20
_MAX_RANK = 4  # the most dimensions of a tensor
_MAX_ARRAY_DEPTH = 4  # the most arrays within arrays
_MAX_NAME_BYTES = (1 << 16) - 1  # of a key or of a tensor's name
_MAX_STRINGS = 1 << 21  # of all metadata: a vocabulary has some 500,000 with its merges
_MAX_ITEMS = 1 << 16  # the most keys, arrays within arrays, and tensors: what takes microseconds each
_SCALARS: Mapping[int, np.dtype] = MappingProxyType(
    {code: np.dtype(text) for code, text in enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))}
    | {code: np.dtype(text) for code, text in ((10, "<u8"), (11, "<i8"), (12, "<f8"))}
)
_STRING, _ARRAY = 8, 9
_SHARD_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MAX_SHARDS = 1024  # the most of a model
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_FORMAT_NAMES = ", ".join(f.name for f in FORMATS.values())


@dataclass(frozen=True, eq=False)
class Tensor:
    """shape: in numpy's order, rows first. data: uint8[blocks, bytes of a block], a view of the map that cannot be
    written. A row is whole blocks."""

    name: str
    format: BlockFormat
    shape: tuple[int, ...]
    data: np.ndarray

    def dequantized(self) -> np.ndarray:
        """f32 of `shape`."""
        return self.format.dequantize(self.data).reshape(self.shape)


class GGUFFile:
    """path: of the model, or of the first of its parts, NAME-00001-of-00003.gguf. metadata: numbers, texts, read-only
    arrays of numbers, and tuples of texts or arrays. Bytes of a text that are not UTF-8 become lone surrogates
    (`errors="surrogateescape"`).

    Raises ImportModelError for a file that cannot be read, and for what is malformed or not supported in it.
    """

    metadata: Mapping[str, Value]
    tensors: Mapping[str, Tensor]
    version: int

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.version, self.metadata, tensors = _read(self.path)
        count = self._number("split.count", 1)
        for number, part in enumerate(self._other_parts(count), 1):
            _, metadata, others = _read(part)
            place = metadata.get("split.no"), metadata.get("split.count")
            if not all(type(n) is int for n in place) or place != (number, count):
                expected, got = f"part {number} of {count}", f"part {place[0]} of {place[1]}"
                raise ImportModelError("GGUF file", expected=expected, got=got, where=str(part))
            if twice := sorted(tensors.keys() & others.keys()):
                got = f"{twice[0]!r} in two"
                raise ImportModelError("parts of a model", expected="each tensor once", got=got, where=str(part))
            tensors |= others
        total = self._number("split.tensors.count", len(tensors))
        if total != len(tensors):
            raise ImportModelError("GGUF file", expected=f"{total} tensors", got=len(tensors), where=str(path))
        self.tensors = MappingProxyType(tensors)

    def _number(self, key: str, default: int) -> int:
        value = self.metadata.get(key, default)
        if type(value) is not int:
            raise ImportModelError(f"GGUF file: {key}", expected="an integer", got=repr(value), where=str(self.path))
        return value

    def _other_parts(self, count: int) -> list[Path]:
        """The files of a model's other parts, by the name of the first one."""
        if count in (0, 1):
            return []
        match, number = _SHARD_NAME.fullmatch(self.path.name), self._number("split.no", 0)
        if match is None or (int(match[2]), int(match[3])) != (1, count) or number or count > _MAX_SHARDS:
            expected = "a whole model, or the first part under its own name, NAME-00001-of-00003.gguf"
            got = f"part {number} of {count}"
            raise ImportModelError("GGUF file", expected=expected, got=got, where=str(self.path))
        return [self.path.with_name(f"{match[1]}-{i:05d}-of-{count:05d}.gguf") for i in range(2, count + 1)]

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"


def _read(path: Path) -> tuple[int, Mapping[str, Value], dict[str, Tensor]]:
    parser = _Parser(_mapped(path), str(path))
    version, tensors, keys = parser.header()
    metadata = parser.metadata(keys)
    return version, MappingProxyType(metadata), parser.tensors(tensors, metadata)


def _mapped(path: Path) -> mmap.mmap:
    try:
        with open_regular(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise ImportModelError("not a GGUF file", got="an empty file", where=str(path))
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ImportModelError(f"cannot read the GGUF file: {error}", where=str(path)) from error


class _Parser:
    """A position in the mapped file, and the remaining limits."""

    def __init__(self, data: mmap.mmap, where: str) -> None:
        self.data, self.where, self.at = data, where, 0
        self.size, self.strings_left, self.arrays_left = len(data), _MAX_STRINGS, _MAX_ITEMS

    def malformed(self, what: str, *, expected: object = None, got: object = None) -> ImportModelError:
        fix = "check that the file is complete"
        return ImportModelError(f"malformed GGUF file: {what}", expected=expected, got=got, where=self.where, fix=fix)

    def refused(self, what: str, *, expected: object, got: object, fix: str) -> ImportModelError:
        return ImportModelError(f"GGUF file: {what}", expected=expected, got=got, where=self.where, fix=fix)

    # --- primitives

    def take(self, size: int, what: str) -> int:
        """The place of `size` bytes, which are read."""
        start = self.at
        if size > self.size - start:
            raise self.malformed(what, expected=f"{size} bytes at byte {start}", got=f"{self.size - start} to its end")
        self.at += size
        return start

    def u32(self, what: str) -> int:
        return _U32.unpack_from(self.data, self.take(4, what))[0]

    def u64(self, what: str) -> int:
        return _U64.unpack_from(self.data, self.take(8, what))[0]

    def count(self, what: str, nbytes: int, max_count: int | None = None) -> int:
        """A count of items that take at least `nbytes` bytes each."""
        count = self.u64(what)
        room = (self.size - self.at) // nbytes
        if count > room:
            raise self.malformed(what, expected=f"at most {room}, for which there are bytes", got=count)
        if max_count is not None and count > max_count:
            raise self.refused(what, expected=f"at most {max_count}", got=count, fix="check where the file comes from")
        return count

    def name(self, what: str) -> str:
        length = self.u64(what)
        if not 1 <= length <= _MAX_NAME_BYTES:
            raise self.malformed(what, expected=f"a name of 1 to {_MAX_NAME_BYTES} bytes", got=length)
        start = self.take(length, what)
        try:
            return self.data[start : self.at].decode()
        except UnicodeDecodeError as error:
            raise self.malformed(what, expected="UTF-8", got=f"{error.reason} at byte {start + error.start}") from None

    # --- parts

    def header(self) -> tuple[int, int, int]:
        """The version, the number of tensors and the number of keys."""
        if self.data[:4] != MAGIC:
            raise self.malformed("its first bytes", expected=repr(MAGIC), got=repr(self.data[:4]))
        self.at = 4
        version = self.u32("the version")
        versions = " or ".join(map(str, VERSIONS))
        if version not in VERSIONS and version & 0xFFFF == 0:
            got, fix = "big-endian", "convert the model for a little-endian machine"
            raise self.refused("the byte order", expected="little-endian", got=got, fix=fix)
        if version not in VERSIONS:
            fix = "convert the model again, with a current llama.cpp"
            raise self.refused("the version", expected=versions, got=version, fix=fix)
        tensors = self.count("the number of tensors", 24, _MAX_ITEMS)
        return version, tensors, self.count("the number of metadata keys", 13, _MAX_ITEMS)

    def metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self.name("a metadata key")
            if key in metadata:
                raise self.malformed("metadata", expected="each key once", got=f"{key!r} twice")
            metadata[key] = self.value(self.u32(key), key, 0)
        return metadata

    def value(self, kind: int, key: str, depth: int) -> Value:
        what = f"the value of {key!r}"
        if kind in _SCALARS:
            return self.numbers(kind, 1, what)[0].item()
        if kind == _STRING:
            return self.strings(1, what)[0]
        if kind != _ARRAY:
            raise self.malformed(what, expected="a type from 0 to 12", got=kind)
        if depth == _MAX_ARRAY_DEPTH:
            raise self.malformed(what, expected=f"at most {_MAX_ARRAY_DEPTH} arrays within each other", got="more")
        kind = self.u32(what)
        if kind in _SCALARS:
            return self.numbers(kind, self.count(what, _SCALARS[kind].itemsize), what)
        if kind == _STRING:
            return self.strings(self.count(what, 8, self.strings_left), what)
        count = self.count(what, 12, self.arrays_left)
        self.arrays_left -= count
        return tuple(self.value(kind, key, depth + 1) for _ in range(count))

    def numbers(self, kind: int, count: int, what: str) -> np.ndarray:
        dtype = _SCALARS[kind]
        start = self.take(count * dtype.itemsize, what)
        if dtype != np.bool_:
            return np.frombuffer(self.data, dtype, count, start)
        raw = np.frombuffer(self.data, np.uint8, count, start)
        if count and raw.max() > 1:
            raise self.malformed(what, expected="booleans of 0 and 1", got=int(raw.max()))
        return raw.view(np.bool_)

    def strings(self, count: int, what: str) -> tuple[str, ...]:
        self.strings_left -= count
        data, at, size, length_of = self.data, self.at, self.size, _U64.unpack_from
        strings: list[str] = []
        for _ in range(count):  # a vocabulary: no calls but these
            end = at + 8
            if end <= size:
                end += length_of(data, at)[0]
            if end > size:
                raise self.malformed(what, expected=f"a string at byte {at}", got=f"the end of the file, byte {size}")
            strings.append(data[at + 8 : end].decode(errors="surrogateescape"))
            at = end
        self.at = at
        return tuple(strings)

    def tensors(self, count: int, metadata: Mapping[str, Value]) -> dict[str, Tensor]:
        entries = [self.tensor() for _ in range(count)]
        if refused := sorted({name for *_, code, _ in entries if (name := _unread(code))}):
            got = ", ".join(refused)
            fix = "quantize the model to a format that is read, Q4_K_M for example"
            raise self.refused("its tensors' formats", expected=f"among {_FORMAT_NAMES}", got=got, fix=fix)
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES)
        powers = isinstance(alignment, int) and 0 < alignment <= _MAX_ALIGNMENT_BYTES and alignment.bit_count() == 1
        if not powers or isinstance(alignment, bool):
            expected = f"a power of two up to {_MAX_ALIGNMENT_BYTES}"
            raise self.malformed("general.alignment", expected=expected, got=repr(alignment))
        assert isinstance(alignment, int)
        data = -(-self.at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        places: list[tuple[int, int, str]] = []
        for name, shape, code, offset in entries:
            if name in tensors:
                raise self.malformed("tensors", expected="each name once", got=f"{name!r} twice")
            if offset % alignment:
                raise self.malformed(f"tensor {name!r}", expected=f"an offset that {alignment} divides", got=offset)
            tensors[name] = tensor = self.view(name, FORMATS[code], shape, data + offset)
            places.append((offset, offset + tensor.data.nbytes, name))
        places.sort()
        for (_, end, first), (start, _, second) in pairwise(places):
            if start < end:
                raise self.malformed("tensors", expected="places of their own", got=f"{first!r} and {second!r} in one")
        return tensors

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, the format's number and the offset."""
        name = self.name("a tensor's name")
        what = f"tensor {name!r}"
        rank = self.u32(what)
        if rank > _MAX_RANK:
            raise self.malformed(what, expected=f"at most {_MAX_RANK} dimensions", got=rank)
        shape = tuple(self.u64(what) for _ in range(rank))[::-1]
        return name, shape, self.u32(what), self.u64(what)

    def view(self, name: str, format: BlockFormat, shape: tuple[int, ...], start: int) -> Tensor:
        what, columns = f"tensor {name!r}", shape[-1] if shape else 1
        if min(shape, default=1) < 1 or columns % format.elements:
            expected = f"positive sizes, columns in blocks of {format.elements} for {format.name}"
            raise self.malformed(what, expected=expected, got=f"shape {list(shape)}")
        nbytes = format.bytes_of(math.prod(shape))
        if start + nbytes > self.size:
            got = f"{max(self.size - start, 0)} to its end"
            raise self.malformed(what, expected=f"{nbytes} bytes at byte {start}", got=got)
        raw = np.frombuffer(self.data, np.uint8, nbytes, start)
        return Tensor(name, format, shape, raw.reshape(-1, format.nbytes))


def _unread(code: int) -> str | None:
    """The name of a format that is not read."""
    return None if code in FORMATS else UNREAD.get(code, f"type {code}")
