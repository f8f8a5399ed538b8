"""FlatBuffers' binary format, read from untrusted files by a schema of one line per table.

    Reader(data, TABLES).root("Model")["subgraphs"][0]["operators"]

A table is a mapping from the names of its fields to values: numbers, texts, read-only arrays of numbers, tables, tuples
of tables. Every offset is checked before it is read. Tables may be shared, so a small file could expand without bound:
a file without sharing has fewer values than bytes, so no more are read.

Source: FlatBuffers' internals (https://flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

Table = Mapping[str, Any]
_SCALARS = {
    "bool": "<?", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q",
    "f32": "<f",
}  # fmt: skip
_ARRAYS = {name: np.dtype(code) for name, code in _SCALARS.items()}
_MAX_DEPTH = 16  # tables within tables; TFLite's have 5


@dataclass(frozen=True)
class Field:
    """name, kind: a scalar's, str, a table's name, or any of these in brackets; default: of a scalar."""

    name: str
    kind: str
    default: float


def schema(text: str) -> dict[str, tuple[Field | None, ...]]:
    """One table per line, its fields in slot order, `_` for an unused one: `Pair first:i32 _ second:f32=1`."""
    tables: dict[str, tuple[Field | None, ...]] = {}
    for line in text.strip().splitlines():
        name, *words = line.split()
        tables[name] = tuple(None if word == "_" else _field(word) for word in words)
    return tables


def _field(word: str) -> Field:
    name, _, rest = word.partition(":")
    kind, _, default = rest.partition("=")
    return Field(name, kind, float(default) if kind == "f32" and default else int(default or 0))


class Reader:
    """data: the file. unions: name of a table for each number of a union's type field, by the table-field's name."""

    def __init__(
        self, data: memoryview, tables: Mapping[str, tuple[Field | None, ...]], unions: Mapping[str, Mapping[int, str]],
        where: str,
    ) -> None:  # fmt: skip
        self.data, self.tables, self.unions, self.where = data, tables, unions, where
        self.left = len(data)

    def root(self, name: str) -> Table:
        return self._table(self._follow(0), name, 0)

    def malformed(self, got: str) -> ImportModelError:
        return ImportModelError(
            "not a readable TFLite file", expected="a FlatBuffer of TFLite's schema", got=got,
            where=self.where or None, fix="check that the file is complete",
        )  # fmt: skip

    def _spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise self.malformed("more values than bytes")

    def _scalar(self, kind: str, at: int) -> Any:
        code = _SCALARS[kind]
        if not 0 <= at <= len(self.data) - struct.calcsize(code):
            raise self.malformed(f"a place beyond its end, byte {at}")
        return struct.unpack_from(code, self.data, at)[0]

    def _follow(self, at: int) -> int:
        return at + self._scalar("u32", at)

    def _table(self, at: int, name: str, depth: int) -> Table:
        if depth > _MAX_DEPTH:
            raise self.malformed("tables within tables without end")
        vtable = at - self._scalar("i32", at)
        slots = (self._scalar("u16", vtable) - 4) // 2
        if slots < 0:
            raise self.malformed(f"a table without fields' places, byte {vtable}")
        self._spend(1)
        fields: dict[str, Any] = {}
        for slot, field in enumerate(self.tables[name]):
            if field is None:
                continue
            offset = self._scalar("u16", vtable + 4 + 2 * slot) if slot < slots else 0
            kind = field.kind
            if kind == "union":
                kind = self.unions[field.name].get(fields[f"{field.name}_type"], "")
                if not kind:
                    offset, kind = 0, "nothing"
            fields[field.name] = self._value(at + offset, kind, depth) if offset else _absent(kind, field.default)
        return fields

    def _value(self, at: int, kind: str, depth: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(kind, at)
        start = self._follow(at)
        if kind == "str":
            return self._array(start, "u8").tobytes().decode(errors="replace")
        if not kind.startswith("["):
            return self._table(start, kind, depth + 1)
        inner = kind[1:-1]
        if inner in _SCALARS:
            return self._array(start, inner)
        count = self._scalar("u32", start)
        self._spend(count)
        places = [start + 4 + 4 * i for i in range(count)]
        return tuple(self._value(p, inner, depth) for p in places)

    def _array(self, at: int, kind: str) -> np.ndarray:
        dtype, count = _ARRAYS[kind], self._scalar("u32", at)
        if at + 4 + count * dtype.itemsize > len(self.data):
            raise self.malformed(f"{count} values of {kind} at byte {at}, of {len(self.data)} bytes")
        return np.frombuffer(self.data, dtype, count, at + 4)


def _absent(kind: str, default: float) -> Any:
    if kind in _SCALARS:
        return bool(default) if kind == "bool" else default
    if kind == "str":
        return ""
    if not kind.startswith("["):
        return None
    return np.zeros(0, _ARRAYS[kind[1:-1]]) if kind[1:-1] in _SCALARS else ()
