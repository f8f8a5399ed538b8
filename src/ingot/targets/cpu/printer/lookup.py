"""Lookups in small constant tables as LLVM IR: by permutations of registers if possible, else from memory."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from ingot.ir.types import DType, i32
from ingot.targets.cpu.printer.builder import Builder, literal, mangle, value_type, vector_of
from ingot.targets.cpu.printer.casts import cast
from ingot.targets.cpu.printer.lanes import join, split


def has_permute(b: Builder) -> bool:
    """Whether one instruction looks up all lanes of a vector. Independent of the number of lanes, so results are
    too."""
    return "avx512f" in b.features


def lookup(b: Builder, table: Sequence[float], index: str, dtype: DType, index_type: DType, lanes: int) -> str:
    """Emit table[index mod length] for each lane."""
    scalar, entries = value_type(dtype), [literal(v, dtype) for v in table]
    width = 512 if "avx512f" in b.features else 256 if "avx2" in b.features and dtype.bits == 32 else 0
    register_lanes = width // dtype.bits
    is_direct = index_type.bits == dtype.bits in (32, 64) and dtype.is_float
    if not (width and is_direct and lanes % register_lanes == 0 and register_lanes <= len(table) <= 4 * register_lanes):
        return _lookup_in_memory(b, entries, cast(b, index, index_type, i32, lanes), scalar, lanes)
    parts = split(b, index, value_type(index_type), lanes, register_lanes)
    return join(
        b,
        [_lookup_in_registers(b, entries, part, scalar, register_lanes, width) for part in parts],
        scalar,
        register_lanes,
    )


def _lookup_in_registers(b: Builder, entries: Sequence[str], index: str, scalar: str, lanes: int, width: int) -> str:
    """Look up in one register, with AVX-512 in two; for more, select between the halves by a bit of the index."""
    bits = width // lanes
    kind, index_type, half = vector_of(scalar, lanes), vector_of(f"i{bits}", lanes), len(entries) // 2
    registers = [_constant(scalar, entries[i : i + lanes]) for i in range(0, len(entries), lanes)]
    if len(registers) == 1:
        name = f"avx512.permvar.{'sf' if bits == 32 else 'df'}.512" if width == 512 else "avx2.permps"
        return b.call(f"llvm.x86.{name}", kind, ((kind, registers[0]), (index_type, index)))
    if len(registers) == 2 and width == 512:
        name = f"llvm.x86.avx512.vpermi2var.{'ps' if bits == 32 else 'pd'}.512"
        return b.call(name, kind, ((kind, registers[0]), (index_type, index), (kind, registers[1])))
    low, high = (
        _lookup_in_registers(b, part, index, scalar, lanes, width) for part in (entries[:half], entries[half:])
    )
    top = b.emit(f"shl {index_type} {index}, {b.splat(str(bits - half.bit_length()), f'i{bits}', lanes)}", (index,))
    is_upper = b.emit(f"icmp slt {index_type} {top}, zeroinitializer", (top,))
    return b.emit(f"select {vector_of('i1', lanes)} {is_upper}, {kind} {high}, {kind} {low}", (is_upper, high, low))


def _constant(scalar: str, entries: Sequence[str]) -> str:
    return f"<{', '.join(f'{scalar} {v}' for v in entries)}>"


def _lookup_in_memory(b: Builder, entries: Sequence[str], index: str, scalar: str, lanes: int) -> str:
    values = ", ".join(f"{scalar} {v}" for v in entries)
    name = f"@table.{crc32(values.encode()):08x}"
    b.declares.add(f"{name} = internal unnamed_addr constant [{len(entries)} x {scalar}] [{values}], align 64")
    index_type, kind = vector_of("i32", lanes), vector_of(scalar, lanes)
    low = b.emit(f"and {index_type} {index}, {b.splat(str(len(entries) - 1), 'i32', lanes)}", (index,))
    address = b.emit(f"getelementptr {scalar}, ptr {name}, {index_type} {low}", (low,))
    if lanes == 1:
        return b.emit(f"load {scalar}, ptr {address}, !invariant.load !{{}}", (address,))
    intrinsic = f"llvm.masked.gather.{mangle(scalar, lanes)}.v{lanes}p0"
    flags, pointers = vector_of("i1", lanes), vector_of("ptr", lanes)
    return b.call(intrinsic, kind, ((pointers, address), (flags, "splat (i1 true)"), (kind, "poison")))
