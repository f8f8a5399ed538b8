"""Write machine code and weights as an ELF file: a shared object, a relocatable object, or an archive of one.

    headers, symbols, weights  R    (weights begin on a page)
    code and its constants     R X
    dynamic section            R, writable until it is loaded
    memory of `c_run`          R W, zeros

The code refers to the weights and to its memory by two distances (`c_entry.py`) that are part of it, so a shared object
has no relocation and its code and weights are shared by all processes. An object has one for each distance.
System V ABI, chapters 4 and 5, with its AMD64 and AArch64 supplements; the archive is System V's with GNU's names.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ingot.support.dataclass import dataclass
from ingot.support.files import Part

MACHINES = {"x86_64": 62, "aarch64": 183}
_PAGES = {"x86_64": 0x1000, "aarch64": 0x10000}  # the largest that a kernel may have
_DISTANCE = {"x86_64": 24, "aarch64": 260}  # R_X86_64_PC64, R_AARCH64_PREL64
_NULL, _PROGBITS, _SYMTAB, _STRTAB, _RELA, _HASH, _DYNAMIC, _NOBITS, _DYNSYM = 0, 1, 2, 3, 4, 5, 6, 8, 11
_WRITE, _ALLOC, _EXEC, _INFO_LINK = 1, 2, 4, 0x40
_R, _W, _X = 4, 2, 1
_GLOBAL_FUNC, _LOCAL_FUNC, _LOCAL_SECTION = 0x12, 0x02, 0x03
_HEADER, _SEGMENT, _SECTION_HEADER = 64, 56, 64


@dataclass(frozen=True)
class Library:
    """What is written. code: the blob. functions: global names, by offset in it. kernels: local ones, for debuggers and
    profilers. weights_at, memory_at: where the distances to the weights and to the memory are in it. weights: parts of
    read-only data. memory_bytes: of zeros."""

    arch: str
    code: bytes
    functions: Mapping[str, int]
    kernels: Mapping[str, int]
    weights_at: int
    memory_at: int
    weights: Sequence[Part]
    memory_bytes: int

    @property
    def weights_bytes(self) -> int:
        return sum(memoryview(part).nbytes for part in self.weights)


@dataclass
class _Section:
    name: str
    kind: int
    flags: int
    parts: Sequence[Part]
    align: int
    link: int = 0
    info: int = 0
    entry: int = 0
    address: int = 0
    offset: int = 0
    memory_bytes: int = 0  # of zeros, which take no place in the file

    @property
    def nbytes(self) -> int:
        return self.memory_bytes or sum(memoryview(part).nbytes for part in self.parts)


class _Strings:
    """A string table."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")

    def add(self, text: str) -> int:
        self.data += text.encode() + b"\0"
        return len(self.data) - len(text.encode()) - 1


def _round(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _symbol(name: int, info: int, section: int, value: int, size: int) -> bytes:
    return struct.pack("<IBBHQQ", name, info, 0, section, value, size)


def _functions(
    library: Library, strings: _Strings, names: Mapping[str, int], info: int, section: int, at: int
) -> bytes:
    """Symbols of functions in a section at address `at`; each ends where the next one begins."""
    ends = sorted({*library.functions.values(), *library.kernels.values(), len(library.code)})
    return b"".join(
        _symbol(strings.add(name), info, section, at + start, ends[ends.index(start) + 1] - start)
        for name, start in names.items()
    )


def _symbols(library: Library, strings: _Strings, section: int, at: int, sections: Sequence[int] = ()) -> bytes:
    """The symbol table: sections and kernels, which are local, then functions."""
    local = b"".join(_symbol(0, _LOCAL_SECTION, number, 0, 0) for number in sections)
    local += _functions(library, strings, library.kernels, _LOCAL_FUNC, section, at)
    return bytes(24) + local + _functions(library, strings, library.functions, _GLOBAL_FUNC, section, at)


def shared_object(library: Library, name: str) -> list[Part]:
    """The parts of a shared object with this name (`DT_SONAME`)."""
    page = _PAGES[library.arch]
    strings = _Strings()
    soname = strings.add(name)
    hashes = _hash_table(len(library.functions))
    names_bytes = len(strings.data) + sum(len(function.encode()) + 1 for function in library.functions)
    segments = 6
    at = _HEADER + _SEGMENT * segments
    hash_at, at = at, at + len(hashes)
    dynsym_at = _round(at, 8)
    dynstr_at = dynsym_at + 24 * (1 + len(library.functions))
    weights_at = _round(dynstr_at + names_bytes, page)
    code_at = _round(weights_at + library.weights_bytes, page)
    dynamic_at = _round(code_at + len(library.code), page)
    entries = [(4, hash_at), (5, dynstr_at), (6, dynsym_at), (10, names_bytes), (11, 24), (14, soname), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    memory_at = dynamic_at + page
    dynsym = bytes(24) + _functions(library, strings, library.functions, _GLOBAL_FUNC, 5, code_at)
    local_strings = _Strings()
    symtab = _symbols(library, local_strings, 5, code_at)
    sections = [
        _Section(".hash", _HASH, _ALLOC, [hashes], 8, link=2, entry=4, address=hash_at),
        _Section(".dynsym", _DYNSYM, _ALLOC, [dynsym], 8, link=3, info=1, entry=24, address=dynsym_at),
        _Section(".dynstr", _STRTAB, _ALLOC, [bytes(strings.data)], 1, address=dynstr_at),
        _Section(".rodata", _PROGBITS, _ALLOC, library.weights, page, address=weights_at),
        _Section(".text", _PROGBITS, _ALLOC | _EXEC, [_with_distances(library, code_at, weights_at, memory_at)], page,
                 address=code_at),
        _Section(".dynamic", _DYNAMIC, _ALLOC | _WRITE, [dynamic], 8, link=3, entry=16, address=dynamic_at),
        _Section(".bss", _NOBITS, _ALLOC | _WRITE, [], 64, address=memory_at, memory_bytes=library.memory_bytes),
        _Section(".symtab", _SYMTAB, 0, [symtab], 8, link=9, info=1 + len(library.kernels), entry=24),
        _Section(".strtab", _STRTAB, 0, [bytes(local_strings.data)], 1),
    ]  # fmt: skip
    end = weights_at + library.weights_bytes
    headers = b"".join([
        _segment(1, _R, 0, end, end, page),
        _segment(1, _R | _X, code_at, len(library.code), len(library.code), page),
        _segment(1, _R | _W, dynamic_at, len(dynamic), page + library.memory_bytes, page),
        _segment(2, _R | _W, dynamic_at, len(dynamic), len(dynamic), 8),
        _segment(0x6474E552, _R, dynamic_at, len(dynamic), page, 1),  # GNU_RELRO
        _segment(0x6474E551, _R | _W, 0, 0, 0, 16),  # GNU_STACK: not executable
    ])  # fmt: skip
    return _file(library.arch, 3, headers, segments, sections)


def _with_distances(library: Library, code_at: int, weights_at: int, memory_at: int) -> bytes:
    code = bytearray(library.code)
    for place, target in ((library.weights_at, weights_at), (library.memory_at, memory_at)):
        struct.pack_into("<q", code, place, target - (code_at + place))
    return bytes(code)


def _segment(kind: int, flags: int, at: int, file_bytes: int, memory_bytes: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, file_bytes, memory_bytes, align)


def _hash_table(functions: int) -> bytes:
    """The table of System V with one bucket: a chain of all symbols."""
    return struct.pack(f"<{4 + functions}I", 1, functions + 1, min(functions, 1), 0, *range(2, functions + 1), 0)


def relocatable(library: Library) -> list[Part]:
    """The parts of an object, for a linker."""
    kind = _DISTANCE[library.arch]
    strings = _Strings()
    # of the symbol table, 1 is the section of the weights, 2 that of the memory
    relocations = struct.pack("<QQq", library.weights_at, 1 << 32 | kind, 0)
    relocations += struct.pack("<QQq", library.memory_at, 2 << 32 | kind, 0)
    symtab = _symbols(library, strings, 1, 0, sections=(2, 3))
    return _file(library.arch, 1, b"", 0, [
        _Section(".text", _PROGBITS, _ALLOC | _EXEC, [library.code], 0x1000),  # its pages are counted from its start
        _Section(".rodata", _PROGBITS, _ALLOC, library.weights, 0x1000),
        _Section(".bss", _NOBITS, _ALLOC | _WRITE, [], 64, memory_bytes=library.memory_bytes),
        _Section(".rela.text", _RELA, _INFO_LINK, [relocations], 8, link=5, info=1, entry=24),
        _Section(".symtab", _SYMTAB, 0, [symtab], 8, link=6, info=3 + len(library.kernels), entry=24),
        _Section(".strtab", _STRTAB, 0, [bytes(strings.data)], 1),
        _Section(".note.GNU-stack", _PROGBITS, 0, [], 1),
    ])  # fmt: skip


def _file(arch: str, kind: int, segments: bytes, count: int, sections: list[_Section]) -> list[Part]:
    """Lay out sections, followed by their headers. In a file with segments, offsets are addresses."""
    names = _Strings()
    sections = [_Section("", _NULL, 0, [], 0), *sections, _Section(".shstrtab", _STRTAB, 0, [], 1)]
    texts = [names.add(section.name) if section.name else 0 for section in sections]
    sections[-1].parts = [bytes(names.data)]
    body: list[Part] = []
    at = _HEADER + len(segments)
    for section in sections[1:]:
        section.offset = section.address if count and section.flags & _ALLOC else _round(at, max(section.align, 1))
        if section.kind == _NOBITS:
            continue
        body += [bytes(section.offset - at), *section.parts]
        at = section.offset + section.nbytes
    table = _round(at, 8)
    rows = b"".join(
        struct.pack(
            "<IIQQQQIIQQ", name, s.kind, s.flags, s.address, s.offset, s.nbytes, s.link, s.info, s.align, s.entry
        )
        for name, s in zip(texts, sections, strict=True)
    )
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", kind, MACHINES[arch], 1, 0, _HEADER if count else 0, table, 0, _HEADER,
        _SEGMENT if count else 0, count, _SECTION_HEADER, len(sections), len(sections) - 1,
    )  # fmt: skip
    return [header, segments, *body, bytes(table - at), rows]


def archive(library: Library, name: str) -> list[Part]:
    """The parts of an archive with one object of this name, and an index of its functions."""
    member = relocatable(library)
    functions = list(library.functions)
    index_bytes = 4 + 4 * len(functions) + sum(len(f.encode()) + 1 for f in functions)
    index_bytes += index_bytes % 2
    long_name = f"{name}/\n".encode()
    long_name += b"\n" * (len(long_name) % 2)
    at = 8 + 60 + index_bytes + 60 + len(long_name)  # of the member's header
    index = struct.pack(f">I{len(functions)}I", len(functions), *[at] * len(functions))
    index += b"".join(f.encode() + b"\0" for f in functions)
    nbytes = sum(memoryview(part).nbytes for part in member)
    return [
        b"!<arch>\n", _member("/", index_bytes), index.ljust(index_bytes, b"\0"),
        _member("//", len(long_name)), long_name,
        _member("/0", nbytes), *member, b"\n" * (nbytes % 2),
    ]  # fmt: skip


def _member(name: str, nbytes: int) -> bytes:
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{nbytes:<10}`\n".encode()
