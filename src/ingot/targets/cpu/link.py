"""Link relocatable ELF objects into one position-independent blob.

    .text, .text.f, .rodata.cst4 of n objects   ->   [text ... | read-only data ...] + {function: offset}

Only PC-relative references between sections survive in code that is compiled with PIC and the small code
model, so the blob needs no relocation when it is loaded. Formulas: System V ABI AMD64 supplement, table
4.10; ELF for the Arm 64-bit architecture (AAELF64), section 5.7; RISC-V ELF psABI, chapter 8. References
through the GOT are relaxed to direct ones (AMD64 supplement B.2; AAELF64 5.7.11), because every symbol is
in the blob.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError
from ingot.support.native import Code, Features

_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS = 1, 2, 4, 8
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR = 1, 2, 4
_SHN_UNDEF, _SHN_ABS, _SHN_COMMON = 0, 0xFFF1, 0xFFF2
_STB_LOCAL, _STB_WEAK = 0, 2
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
# Unwind tables and notes: nothing unwinds through kernels.
_DROPPED_SECTIONS = (".eh_frame", ".note", ".llvm", ".comment")


@dataclass
class _Section:
    name: str
    kind: int
    flags: int
    data: bytes
    size: int
    align: int
    link: int
    info: int
    offset: int = -1  # in the blob


@dataclass(frozen=True)
class _Symbol:
    name: str
    value: int
    section: int
    binding: int
    kind: int


@dataclass
class _Object:
    machine: str
    sections: list[_Section]
    symbols: list[_Symbol]


def link(
    objects: Sequence[bytes],
    features: Features,
    names: Sequence[Mapping[str, str]] = (),
    *,
    prior: bytes = b"",
    symbols: Mapping[str, int] | None = None,
) -> Code:
    """Link ELF64 little-endian relocatable objects of one machine, which has `features`. names: renamings of symbols,
    for each object. prior, symbols: a blob that was linked before, which the new one begins with, and its symbols.

    Raises CompileError with the symbol for an undefined or doubly defined symbol, for writable data (the blob is mapped
    read-only) and for a relocation that cannot be resolved inside the blob.
    """
    parsed = [_read(data, renamed) for data, renamed in zip(objects, names or [{}] * len(objects), strict=True)]
    if len({obj.machine for obj in parsed}) > 1:
        raise CompileError("link: objects of different machines", got=sorted({obj.machine for obj in parsed}))
    blob = bytearray(prior)
    for executable in (True, False):
        for obj in parsed:
            for section in obj.sections:
                if _is_linked(section) and bool(section.flags & _SHF_EXECINSTR) == executable:
                    _place(section, blob)
    symbols = _globals(parsed, symbols or {})
    for obj in parsed:
        for section in obj.sections:
            if section.kind == _SHT_RELA and section.info < len(obj.sections):
                _relocate(obj, section, symbols, blob)
    return Code(features, bytes(blob), symbols)


def _is_linked(section: _Section) -> bool:
    alive = section.flags & _SHF_ALLOC and section.kind in (_SHT_PROGBITS, _SHT_NOBITS) and section.size
    return bool(alive) and not section.name.startswith(_DROPPED_SECTIONS)


def _place(section: _Section, blob: bytearray) -> None:
    # .data.rel.ro is only written by a dynamic loader; without absolute relocations it is plain read-only data.
    if section.flags & _SHF_WRITE and not section.name.startswith(".data.rel.ro"):
        raise CompileError(
            f"link: section {section.name} is writable",
            expected="code and constants only",
            got=f"{section.size} bytes of mutable globals",
            fix="make the globals `constant` or pass memory through the kernel's arguments",
        )
    if section.align > 4096:
        raise CompileError(f"link: section {section.name}", expected="alignment up to 4096", got=section.align)
    blob.extend(b"\0" * (-len(blob) % max(section.align, 1)))
    section.offset = len(blob)
    blob.extend(section.data if section.kind == _SHT_PROGBITS else bytes(section.size))


def _globals(objects: Sequence[_Object], prior_symbols: Mapping[str, int]) -> dict[str, int]:
    strong: dict[str, int] = dict(prior_symbols)
    weak: dict[str, int] = {}
    for obj in objects:
        for symbol in obj.symbols:
            if symbol.binding == _STB_LOCAL or symbol.section in (_SHN_UNDEF, _SHN_ABS, _SHN_COMMON):
                continue
            section = obj.sections[symbol.section]
            if section.offset < 0:
                continue
            if symbol.binding == _STB_WEAK:
                weak.setdefault(symbol.name, section.offset + symbol.value)
            elif symbol.name in strong:
                raise CompileError(f"link: symbol {symbol.name!r} is defined twice", fix="rename one of the kernels")
            else:
                strong[symbol.name] = section.offset + symbol.value
    return {**weak, **strong}


def _relocate(obj: _Object, table: _Section, symbols: dict[str, int], blob: bytearray) -> None:
    target = obj.sections[table.info]
    if target.offset < 0:
        return
    apply = {"x86_64": _apply_x86, "aarch64": _apply_aarch64, "riscv64": _RiscV()}[obj.machine]
    for offset, info, addend in struct.iter_unpack("<QQq", table.data):
        symbol = obj.symbols[info >> 32]
        value = _address(obj, symbol, symbols)
        apply(blob, target.offset + offset, info & 0xFFFFFFFF, value, addend, symbol.name)


def _address(obj: _Object, symbol: _Symbol, symbols: dict[str, int]) -> int:
    if symbol.binding != _STB_LOCAL and symbol.name in symbols:
        return symbols[symbol.name]
    if symbol.section in (_SHN_UNDEF, _SHN_ABS, _SHN_COMMON):
        raise CompileError(
            f"link: undefined symbol {symbol.name!r}",
            expected="kernels that call nothing outside the blob",
            got="a call that LLVM made for a loop, an intrinsic or a conversion without hardware support",
            fix=f"avoid what lowers to {symbol.name}, or define it in the module",
        )
    section = obj.sections[symbol.section]
    if section.offset < 0:
        raise CompileError(f"link: symbol {symbol.name!r} is in the section {section.name}, which is not kept")
    return section.offset + symbol.value


def _unsupported(kind: int, machine: str, name: str) -> CompileError:
    return CompileError(
        f"link: relocation type {kind} ({machine}) against {name!r}",
        expected="a PC-relative relocation",
        fix="compile with reloc='pic' and codemodel='small'",
    )


def _signed(value: int, bits: int, name: str) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise CompileError(f"link: {name!r} is out of reach", expected=f"a {bits}-bit displacement", got=value)
    return value


def _apply_x86(blob: bytearray, at: int, kind: int, symbol: int, addend: int, name: str) -> None:
    if kind in (9, 41, 42):  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX: mov sym@GOTPCREL(%rip), r -> lea sym(%rip), r
        if blob[at - 2] != 0x8B:
            raise _unsupported(kind, "x86_64", name)
        blob[at - 2] = 0x8D
    elif kind == 24:  # PC64
        struct.pack_into("<q", blob, at, symbol + addend - at)
        return
    elif kind not in (2, 4):  # PC32, PLT32
        raise _unsupported(kind, "x86_64", name)
    struct.pack_into("<i", blob, at, _signed(symbol + addend - at, 32, name))


# AArch64 load/store offsets are scaled by the access size: relocation type -> log2(bytes).
_LDST_SCALE = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}


def _apply_aarch64(blob: bytearray, at: int, kind: int, symbol: int, addend: int, name: str) -> None:
    value = symbol + addend
    if kind == 261:  # PREL32
        struct.pack_into("<i", blob, at, _signed(value - at, 32, name))
        return
    if kind == 260:  # PREL64
        struct.pack_into("<q", blob, at, value - at)
        return
    (word,) = struct.unpack_from("<I", blob, at)
    if kind in (282, 283):  # JUMP26, CALL26
        word = word & ~0x03FFFFFF | (_signed(value - at, 28, name) >> 2) & 0x03FFFFFF
    elif kind in (273, 280):  # LD_PREL_LO19, CONDBR19
        word = word & ~(0x7FFFF << 5) | ((_signed(value - at, 21, name) >> 2) & 0x7FFFF) << 5
    elif kind == 279:  # TSTBR14
        word = word & ~(0x3FFF << 5) | ((_signed(value - at, 16, name) >> 2) & 0x3FFF) << 5
    elif kind == 274:  # ADR_PREL_LO21
        word = _adr(word, _signed(value - at, 21, name))
    elif kind in (275, 311):  # ADR_PREL_PG_HI21, ADR_GOT_PAGE
        word = _adr(word, _signed((value >> 12) - (at >> 12), 21, name))
    elif kind == 277:  # ADD_ABS_LO12_NC
        word = word & ~(0xFFF << 10) | (value & 0xFFF) << 10
    elif kind == 312:  # LD64_GOT_LO12_NC: ldr xd, [xn, got] -> add xd, xn, lo12
        word = 0x91000000 | word & 0x3FF | (value & 0xFFF) << 10
    elif kind in _LDST_SCALE:
        scale = _LDST_SCALE[kind]
        if value & ((1 << scale) - 1):
            raise CompileError(f"link: {name!r} is misaligned", expected=f"a multiple of {1 << scale}", got=value)
        word = word & ~(0xFFF << 10) | ((value & 0xFFF) >> scale) << 10
    else:
        raise _unsupported(kind, "aarch64", name)
    struct.pack_into("<I", blob, at, word)


def _adr(word: int, immediate: int) -> int:
    return word & ~(0x3 << 29 | 0x7FFFF << 5) | (immediate & 0x3) << 29 | (immediate >> 2 & 0x7FFFF) << 5


class _RiscV:
    """Relocations of one section. Linker relaxation is off: no code moves, and branches are resolved by the assembler.

    An address is a pair: `auipc` with the upper 20 bits, and an instruction with the lower 12, whose relocation names
    the first. The first comes before the second.
    """

    def __init__(self) -> None:
        self._upper: dict[int, tuple[int, bool]] = {}  # of each auipc: the distance, and whether through the GOT

    def __call__(self, blob: bytearray, at: int, kind: int, symbol: int, addend: int, name: str) -> None:
        value = symbol + addend
        if kind in (35, 39, 57):  # ADD32, SUB32, 32_PCREL
            (word,) = struct.unpack_from("<I", blob, at)
            total = {35: word + value, 39: word - value, 57: value - at}[kind]
            struct.pack_into("<I", blob, at, total & 0xFFFFFFFF)
        elif kind in (18, 19):  # CALL, CALL_PLT: auipc and jalr
            self._pair(blob, at, value - at, name)
            (word,) = struct.unpack_from("<I", blob, at + 4)
            struct.pack_into("<I", blob, at + 4, word & 0xFFFFF | (value - at & 0xFFF) << 20)
        elif kind in (20, 23):  # GOT_HI20, PCREL_HI20
            self._pair(blob, at, value - at, name)
            self._upper[at] = value - at, kind == 20
        elif kind == 24 and value in self._upper:  # PCREL_LO12_I
            distance, is_got = self._upper[value]
            (word,) = struct.unpack_from("<I", blob, at)
            if is_got:  # ld rd, got(rs) -> addi rd, rs, lo12
                word = word & ~0x707F | 0x13
            struct.pack_into("<I", blob, at, word & 0xFFFFF | (distance & 0xFFF) << 20)
        else:
            raise _unsupported(kind, "riscv64", name)

    @staticmethod
    def _pair(blob: bytearray, at: int, distance: int, name: str) -> None:
        (word,) = struct.unpack_from("<I", blob, at)
        upper = _signed(distance + 0x800, 32, name) >> 12  # the lower part is signed
        struct.pack_into("<I", blob, at, word & 0xFFF | (upper & 0xFFFFF) << 12)


def _read(data: bytes, renamed: Mapping[str, str]) -> _Object:
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        raise CompileError("link", expected="an ELF64 little-endian object", got=repr(data[:6]))
    kind, machine = struct.unpack_from("<HH", data, 16)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    if kind != 1 or machine not in _MACHINES:
        raise CompileError(
            "link", expected=f"a relocatable object for {sorted(_MACHINES.values())}", got=(kind, machine)
        )
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    names = headers[names_at]
    strings = data[names[4] : names[4] + names[5]]
    sections: list[_Section] = []
    for name, kind, flags, _, offset, length, link_to, info, align, _ in headers:
        content = b"" if kind == _SHT_NOBITS else data[offset : offset + length]
        sections.append(_Section(_string(strings, name), kind, flags, content, length, align, link_to, info))
    symbols: list[_Symbol] = []
    for section in sections:
        if section.kind != _SHT_SYMTAB:
            continue
        text = sections[section.link].data
        for name, info, _, where, value, _ in struct.iter_unpack("<IBBHQQ", section.data):
            symbol_name = _string(text, name)
            symbols.append(_Symbol(renamed.get(symbol_name, symbol_name), value, where, info >> 4, info & 15))
    return _Object(_MACHINES[machine], sections, symbols)


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()
