"""Read a relocatable WebAssembly object, as LLVM writes it.

Source: WebAssembly/tool-conventions, Linking.md: the custom sections "linking" (version 2) and "reloc.*".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError
from ingot.targets.wasm import encoding
from ingot.targets.wasm.encoding import Reader, sections

# kinds of symbols
FUNCTION, DATA, GLOBAL, SECTION, _EVENT, TABLE = range(6)
_WEAK, LOCAL, _UNDEFINED, _EXPLICIT_NAME = 1, 2, 16, 64
_SEGMENT_INFO, _SYMBOL_TABLE = 5, 8
_WITH_ADDEND = frozenset({3, 4, 5, 8, 9})  # addresses, and offsets into functions and sections
_FUNCTION_IMPORT, _TABLE_IMPORT, _MEMORY_IMPORT, _GLOBAL_IMPORT = range(4)


@dataclass(frozen=True)
class Symbol:
    """index: of a function, global, table or data segment; -1: undefined. offset, size: in the segment."""

    kind: int
    name: str
    is_local: bool
    index: int
    offset: int = 0
    size: int = 0


@dataclass(frozen=True)
class Relocation:
    """kind: R_WASM_*. offset: in the section's content. symbol: its number, or that of a type."""

    kind: int
    offset: int
    symbol: int
    addend: int


@dataclass
class Segment:
    """Initialized memory. start: of its bytes in the content of the section. address: set by the linker."""

    start: int
    data: bytearray
    align: int = 1
    address: int = -1


@dataclass
class Object:
    """types: encoded function types. functions: the type of each defined function. bodies: (start, end) in `code`.
    imported: the number of imported functions, which come first in the index space."""

    types: list[bytes] = field(default_factory=lambda: list[bytes]())
    imported: int = 0
    functions: list[int] = field(default_factory=lambda: list[int]())
    code: bytearray = field(default_factory=bytearray)
    bodies: list[tuple[int, int]] = field(default_factory=lambda: list[tuple[int, int]]())
    segments: list[Segment] = field(default_factory=lambda: list[Segment]())
    symbols: list[Symbol] = field(default_factory=lambda: list[Symbol]())
    relocations: dict[int, list[Relocation]] = field(default_factory=lambda: dict[int, list[Relocation]]())


def read(data: bytes, renamed: Mapping[str, str]) -> Object:
    """Parse an object. renamed: new names of symbols. Raises CompileError for what kernels have no use for."""
    obj = Object()
    imports: dict[int, list[str]] = {_FUNCTION_IMPORT: [], _GLOBAL_IMPORT: [], _TABLE_IMPORT: []}
    kinds: list[int] = []
    for kind, reader in sections(data):
        kinds.append(kind)
        if kind == encoding.TYPE:
            obj.types = [_type(reader) for _ in range(reader.unsigned())]
        elif kind == encoding.IMPORT:
            _imports(reader, imports)
            obj.imported = len(imports[_FUNCTION_IMPORT])
        elif kind == encoding.FUNCTION:
            obj.functions = [reader.unsigned() for _ in range(reader.unsigned())]
        elif kind == encoding.CODE:
            _code(obj, reader)
        elif kind == encoding.DATA:
            _data(obj, reader)
        elif kind == encoding.CUSTOM:
            title = reader.name()
            if title == "linking":
                _linking(obj, reader, renamed, imports)
            elif title.startswith("reloc."):
                section, count = reader.unsigned(), reader.unsigned()
                obj.relocations.setdefault(kinds[section], []).extend(_relocation(reader) for _ in range(count))
        elif kind != encoding.DATA_COUNT:
            raise CompileError("link: an object of a kernel", expected="code and constants", got=f"section {kind}")
    return obj


def _type(reader: Reader) -> bytes:
    start = reader.at
    reader.byte()
    reader.sized()
    reader.sized()
    return reader.data[start : reader.at]


def _imports(reader: Reader, imports: dict[int, list[str]]) -> None:
    for _ in range(reader.unsigned()):
        reader.name()
        field_name, kind = reader.name(), reader.byte()
        if kind in (_FUNCTION_IMPORT, _GLOBAL_IMPORT, _TABLE_IMPORT):
            imports[kind].append(field_name)
        if kind == _FUNCTION_IMPORT:
            reader.unsigned()
        elif kind == _GLOBAL_IMPORT:
            reader.take(2)
        else:
            if kind == _TABLE_IMPORT:
                reader.byte()
            flags = reader.byte()
            reader.unsigned()
            if flags & 1:
                reader.unsigned()


def _code(obj: Object, reader: Reader) -> None:
    start = reader.at
    for _ in range(reader.unsigned()):
        size = reader.unsigned()
        obj.bodies.append((reader.at - start, reader.at - start + size))
        reader.take(size)
    obj.code = bytearray(reader.data[start : reader.end])


def _data(obj: Object, reader: Reader) -> None:
    start = reader.at
    for _ in range(reader.unsigned()):
        if reader.unsigned() != 0 or reader.byte() != encoding.I32_CONST:
            raise CompileError("link: a data segment", expected="an active one of memory 0")
        reader.signed()
        reader.byte()
        size = reader.unsigned()
        obj.segments.append(Segment(reader.at - start, bytearray(reader.take(size))))


def _linking(obj: Object, reader: Reader, renamed: Mapping[str, str], imports: Mapping[int, list[str]]) -> None:
    if (version := reader.unsigned()) != 2:
        raise CompileError("link: the linking section", expected="version 2", got=version)
    while reader:
        kind, size = reader.byte(), reader.unsigned()
        reader.take(size)
        part = Reader(reader.data, reader.at - size, reader.at)
        if kind == _SEGMENT_INFO:
            for number in range(part.unsigned()):
                part.name()
                obj.segments[number].align = 1 << part.unsigned()
                part.unsigned()
        elif kind == _SYMBOL_TABLE:
            obj.symbols = [_symbol(part, renamed, imports) for _ in range(part.unsigned())]


def _symbol(reader: Reader, renamed: Mapping[str, str], imports: Mapping[int, list[str]]) -> Symbol:
    kind, flags = reader.byte(), reader.unsigned()
    local, undefined = bool(flags & LOCAL), bool(flags & _UNDEFINED)
    if kind == DATA:
        text = reader.name()
        where = (-1, 0, 0) if undefined else (reader.unsigned(), reader.unsigned(), reader.unsigned())
        return Symbol(kind, renamed.get(text, text), local, *where)
    index = reader.unsigned()
    if kind == SECTION:
        return Symbol(kind, "", True, index)
    if undefined and not flags & _EXPLICIT_NAME:
        text = imports[{FUNCTION: _FUNCTION_IMPORT, GLOBAL: _GLOBAL_IMPORT, TABLE: _TABLE_IMPORT}[kind]][index]
    else:
        text = reader.name()
    return Symbol(kind, renamed.get(text, text), local, -1 if undefined else index)


def _relocation(reader: Reader) -> Relocation:
    kind, offset, symbol = reader.byte(), reader.unsigned(), reader.unsigned()
    return Relocation(kind, offset, symbol, reader.signed() if kind in _WITH_ADDEND else 0)
