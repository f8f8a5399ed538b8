"""Small constant tables as LLVM IR: in registers where a permutation finds a lane's entry, in memory elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from ingot.ir.types import DType, i32
from ingot.targets.cpu.printer.builder import Builder, literal, mangle, value_type, vector_of
from ingot.targets.cpu.printer.casts import cast
from ingot.targets.cpu.printer.lanes import join, split


def by_permutation(b: Builder) -> bool:
    """Whether one instruction looks a vector's lanes up. Not by their number, on which no result is to depend."""
    return "avx512f" in b.features


def lookup(b: Builder, table: Sequence[float], index: str, dtype: DType, index_type: DType, lanes: int) -> str:
    """table[index mod its length] for each lane."""
    scalar, entries = value_type(dtype), [literal(v, dtype) for v in table]
    width = 512 if "avx512f" in b.features else 256 if "avx2" in b.features and dtype.bits == 32 else 0
    most = width // dtype.bits
    same = index_type.bits == dtype.bits in (32, 64) and dtype.is_float
    if not (width and same and lanes % most == 0 and most <= len(table) <= 4 * most):
        return _from_memory(b, entries, cast(b, index, index_type, i32, lanes), scalar, lanes)
    places = split(b, index, value_type(index_type), lanes, most)
    return join(b, [_permuted(b, entries, at, scalar, most, width) for at in places], scalar, most)


def _permuted(b: Builder, entries: Sequence[str], at: str, scalar: str, lanes: int, width: int) -> str:
    """Entries in one register, with AVX-512 in two; else those of one half or the other by a bit of the index."""
    bits = width // lanes
    kind, places, half = vector_of(scalar, lanes), vector_of(f"i{bits}", lanes), len(entries) // 2
    registers = [_constant(scalar, entries[i : i + lanes]) for i in range(0, len(entries), lanes)]
    if len(registers) == 1:
        name = f"avx512.permvar.{'sf' if bits == 32 else 'df'}.512" if width == 512 else "avx2.permps"
        return b.call(f"llvm.x86.{name}", kind, ((kind, registers[0]), (places, at)))
    if len(registers) == 2 and width == 512:
        name = f"llvm.x86.avx512.vpermi2var.{'ps' if bits == 32 else 'pd'}.512"
        return b.call(name, kind, ((kind, registers[0]), (places, at), (kind, registers[1])))
    low, high = (_permuted(b, part, at, scalar, lanes, width) for part in (entries[:half], entries[half:]))
    top = b.emit(f"shl {places} {at}, {b.splat(str(bits - half.bit_length()), f'i{bits}', lanes)}", (at,))
    upper = b.emit(f"icmp slt {places} {top}, zeroinitializer", (top,))
    return b.emit(f"select {vector_of('i1', lanes)} {upper}, {kind} {high}, {kind} {low}", (upper, high, low))


def _constant(scalar: str, entries: Sequence[str]) -> str:
    return f"<{', '.join(f'{scalar} {v}' for v in entries)}>"


def _from_memory(b: Builder, entries: Sequence[str], index: str, scalar: str, lanes: int) -> str:
    values = ", ".join(f"{scalar} {v}" for v in entries)
    name = f"@table.{crc32(values.encode()):08x}"
    b.declares.add(f"{name} = internal unnamed_addr constant [{len(entries)} x {scalar}] [{values}], align 64")
    places, kind = vector_of("i32", lanes), vector_of(scalar, lanes)
    low = b.emit(f"and {places} {index}, {b.splat(str(len(entries) - 1), 'i32', lanes)}", (index,))
    where = b.emit(f"getelementptr {scalar}, ptr {name}, {places} {low}", (low,))
    if lanes == 1:
        return b.emit(f"load {scalar}, ptr {where}, !invariant.load !{{}}", (where,))
    intrinsic = f"llvm.masked.gather.{mangle(scalar, lanes)}.v{lanes}p0"
    flags, pointers = vector_of("i1", lanes), vector_of("ptr", lanes)
    return b.call(intrinsic, kind, ((pointers, where), (flags, "splat (i1 true)"), (kind, "poison")))
