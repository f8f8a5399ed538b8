"""Link relocatable objects to one module that imports nothing.

    types, code, data of n objects   ->   [types | functions | table | memory | stack pointer | exports | code | data]

The module exports `memory`, `run` (`targets/wasm/driver.py`) and `__heap_base`, where memory is free. The table holds
the kernels, as the driver calls them by their number there. Memory begins with the stack, which grows down, so that an
overflow traps instead of overwriting data.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ingot.support.errors import CompileError
from ingot.support.native import Code, Features
from ingot.targets.wasm import encoding as w
from ingot.targets.wasm import objects
from ingot.targets.wasm.objects import Object, Relocation, Symbol

STACK_BYTES = 1 << 20
PAGE_BYTES = 1 << 16
_ALIGN = 64  # of what follows the data
_FUNCTION_EXPORT, _MEMORY_EXPORT, _GLOBAL_EXPORT = 0, 2, 3


def link(
    parts: Sequence[bytes], features: Features, kernels: Sequence[str], names: Sequence[Mapping[str, str]]
) -> Code:
    """Link objects. kernels: the symbols that the table holds. names: renamings of symbols, for each object.

    A symbol of the code is its number in the table. Raises CompileError with the symbol for an undefined or doubly
    defined one, and for a relocation that has no meaning in one module.
    """
    parsed = [objects.read(data, renamed) for data, renamed in zip(parts, names, strict=True)]
    linker = _Linker(parsed, kernels)
    return Code(features, linker.module(), dict(linker.slots))


class _Linker:
    def __init__(self, parsed: Sequence[Object], kernels: Sequence[str]) -> None:
        self.objects = parsed
        self.types: dict[bytes, int] = {}
        self.first: list[int] = []  # the number of the first function of each object
        self.symbols: dict[str, tuple[int, Symbol]] = {}  # global ones, with the object that defines them
        self.end = STACK_BYTES
        count = 0
        for which, obj in enumerate(parsed):
            self.first.append(count)
            count += len(obj.functions)
            for encoded in obj.types:
                self.types.setdefault(encoded, len(self.types))
            for segment in obj.segments:
                segment.address = -(-self.end // segment.align) * segment.align
                self.end = segment.address + len(segment.data)
            for symbol in obj.symbols:
                if symbol.is_local or symbol.index < 0:
                    continue
                if symbol.name in self.symbols:
                    fix = "rename one of the kernels"
                    raise CompileError(f"link: symbol {symbol.name!r} is defined twice", fix=fix)
                self.symbols[symbol.name] = which, symbol
        self.end = -(-self.end // _ALIGN) * _ALIGN
        self.slots = {kernel: slot for slot, kernel in enumerate(kernels, 1)}  # 0 is no function, as in C

    def module(self) -> bytes:
        for which, obj in enumerate(self.objects):
            for kind, relocations in obj.relocations.items():
                for relocation in relocations:
                    if kind == w.CODE:
                        self._relocate(which, relocation, obj.code, relocation.offset)
                    elif kind == w.DATA:
                        segment = next(s for s in obj.segments if s.start <= relocation.offset < s.start + len(s.data))
                        self._relocate(which, relocation, segment.data, relocation.offset - segment.start)
        pages = -(-self.end // PAGE_BYTES)
        entries = [w.unsigned(self._defined(kernel)) for kernel in self.slots]
        exports = [
            w.name("memory") + bytes([_MEMORY_EXPORT, 0]),
            w.name("__heap_base") + bytes([_GLOBAL_EXPORT, 1]),
            w.name("run") + bytes([_FUNCTION_EXPORT]) + w.unsigned(self._defined("run")),
        ]
        types = [self.types[obj.types[kind]] for obj in self.objects for kind in obj.functions]
        bodies = [w.sized(bytes(obj.code[start:end])) for obj in self.objects for start, end in obj.bodies]
        data = [b"\0" + _constant(s.address) + w.sized(bytes(s.data)) for obj in self.objects for s in obj.segments]
        return b"".join([
            w.MAGIC,
            w.section(w.TYPE, w.vector(self.types)),
            w.section(w.FUNCTION, w.vector(map(w.unsigned, types))),
            w.section(w.TABLE, w.vector([bytes([w.FUNCREF, 1]) + w.unsigned(len(entries) + 1) * 2])),
            w.section(w.MEMORY, w.vector([b"\0" + w.unsigned(pages)])),
            w.section(
                w.GLOBAL,
                w.vector([bytes([w.I32, 1]) + _constant(STACK_BYTES), bytes([w.I32, 0]) + _constant(self.end)]),
            ),
            w.section(w.EXPORT, w.vector(exports)),
            w.section(w.ELEMENT, w.vector([b"\0" + _constant(1) + w.vector(entries)] if entries else [])),
            w.section(w.CODE, w.vector(bodies)),
            w.section(w.DATA, w.vector(data)),
        ])  # fmt: skip

    def _defined(self, text: str) -> int:
        """The number of a function by its global name."""
        if text not in self.symbols:
            raise _undefined(text)
        which, symbol = self.symbols[text]
        return self._number(which, symbol)

    def _number(self, which: int, symbol: Symbol) -> int:
        return self.first[which] + symbol.index - self.objects[which].imported

    def _resolve(self, which: int, number: int) -> tuple[int, Symbol]:
        symbol = self.objects[which].symbols[number]
        if symbol.index >= 0:
            return which, symbol
        if symbol.name not in self.symbols:
            raise _undefined(symbol.name)
        return self.symbols[symbol.name]

    def _relocate(self, which: int, r: Relocation, content: bytearray, at: int) -> None:
        obj = self.objects[which]
        if r.kind == 6:  # TYPE_INDEX_LEB
            content[at : at + 5] = w.padded(self.types[obj.types[r.symbol]])
            return
        name = obj.symbols[r.symbol].name
        if r.kind == 7 and name == "__stack_pointer":  # GLOBAL_INDEX_LEB
            content[at : at + 5] = w.padded(0)
            return
        if r.kind == 20:  # TABLE_NUMBER_LEB: there is one table
            content[at : at + 5] = w.padded(0)
            return
        where, symbol = self._resolve(which, r.symbol)
        if r.kind == 0 and symbol.kind == objects.FUNCTION:  # FUNCTION_INDEX_LEB
            content[at : at + 5] = w.padded(self._number(where, symbol))
        elif r.kind in (3, 4, 5) and symbol.kind == objects.DATA:  # MEMORY_ADDR_LEB, _SLEB, _I32
            address = self.objects[where].segments[symbol.index].address + symbol.offset + r.addend
            if r.kind == 5:
                struct.pack_into("<I", content, at, address & 0xFFFFFFFF)
            else:
                content[at : at + 5] = w.padded(address & 0xFFFFFFFF if r.kind == 3 else address)
        else:
            raise CompileError(
                f"link: relocation type {r.kind} (wasm32) against {name!r}",
                expected="a call or the address of a constant",
                fix="this is a bug in the wasm target",
            )


def _constant(value: int) -> bytes:
    return bytes([w.I32_CONST]) + w.signed(value) + bytes([w.END])


def _undefined(text: str) -> CompileError:
    return CompileError(
        f"link: undefined symbol {text!r}",
        expected="kernels that call nothing outside the module",
        got="a call that LLVM made for an intrinsic or a conversion without an instruction",
        fix=f"avoid what lowers to {text}, or define it in the module",
    )
