"""The format of GPU kernels in a program's code: a sequence of cubins, each after the data for its launch.

    blob = [threads, shared bytes, parameters, order, matrices, writes, bytes of the name, bytes of the cubin]
           [the numbers of a matrix] ... [the number of a parameter that is written] ... name cubin | the next ...

Symbols name the offsets of these records. The blob may come from a file: everything is checked against its end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import astuple

from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError
from ingot.support.native import Code, Features

_HEAD = struct.Struct("<8I")
_MATRIX = struct.Struct("<9q")
_NUMBER = struct.Struct("<I")
_ALIGN = 16
_MAX_THREADS = 1024
_AWAITS, _COOPERATIVE = 1, 2  # bits of `order`


@dataclass(frozen=True)
class MatrixCode:
    """A parameter that is a matrix in memory, which the hardware copies in boxes of `box_rows` rows and `box_columns`
    columns.

    parameter: its number. kind, swizzle: the type of elements and the layout of a box in shared memory, as in the
    driver's cuTensorMapEncodeTiled. stride, offset: bytes from row to row, and before the first row.
    """

    parameter: int
    kind: int
    rows: int
    columns: int
    stride: int
    offset: int
    box_rows: int
    box_columns: int
    swizzle: int


@dataclass(frozen=True)
class KernelCode:
    """A compiled kernel.

    threads, shared_bytes: the threads and the bytes of dynamic shared memory of a block. parameters: the number of
    addresses and sizes that it takes, before Triton's own two. writes: the numbers of parameters whose memory it
    writes. awaits: whether it may start before its predecessors have ended, as it waits for them itself. matrices: the
    matrices among the parameters, in order. cooperative: whether its blocks wait for each other, so that all have to
    run concurrently.
    """

    name: str
    cubin: bytes
    threads: int
    shared_bytes: int
    parameters: int
    writes: tuple[int, ...]
    awaits: bool = False
    matrices: tuple[MatrixCode, ...] = ()
    cooperative: bool = False

    def record(self) -> bytes:
        name = self.name.encode()
        order = self.awaits * _AWAITS + self.cooperative * _COOPERATIVE
        numbers = self.threads, self.shared_bytes, self.parameters, order, len(self.matrices), len(self.writes)
        matrices = b"".join(_MATRIX.pack(*astuple(m)) for m in self.matrices)
        writes = b"".join(map(_NUMBER.pack, self.writes))
        data = _HEAD.pack(*numbers, len(name), len(self.cubin)) + matrices + writes + name + self.cubin
        return data + bytes(-len(data) % _ALIGN)

    @staticmethod
    def of_record(data: bytes) -> KernelCode:
        return _record(data, 0, "a kernel")


def pack(features: Features, kernels: Mapping[str, Mapping[str, KernelCode]]) -> Code:
    """Code from kernels by architecture and by the symbols of steps; equal kernels are stored once. Symbols of the
    architecture of `features` are plain, those of others are prefixed with theirs."""
    blob, symbols, places = bytearray(), dict[str, int](), dict[KernelCode, int]()
    for arch, kernels_of_arch in kernels.items():
        for symbol, kernel in kernels_of_arch.items():
            if kernel not in places:
                places[kernel] = len(blob)
                blob += kernel.record()
            symbols[_symbol(features, arch, symbol)] = places[kernel]
    return Code(features, bytes(blob), symbols)


def unpack(code: Code, arch: str) -> dict[str, KernelCode]:
    """The kernels of one architecture. Raises ArtifactError for a malformed record."""
    plain = [symbol for symbol in code.symbols if ":" not in symbol]
    return {s: _record(code.blob, code.symbols[_symbol(code.features, arch, s)], s) for s in plain}


def _symbol(features: Features, arch: str, symbol: str) -> str:
    return symbol if arch == features.arch else f"{arch}:{symbol}"


def _record(blob: bytes, offset: int, symbol: str) -> KernelCode:
    if not 0 <= offset <= len(blob) - _HEAD.size:
        raise ArtifactError(f"kernel {symbol!r}", expected=f"a record in {len(blob)} bytes", got=f"offset {offset}")
    threads, shared, parameters, order, count, write_count, name, size = _HEAD.unpack_from(blob, offset)
    first = offset + _HEAD.size
    middle = first + count * _MATRIX.size
    start = middle + write_count * _NUMBER.size
    if start + name + size > len(blob) or not 0 < threads <= _MAX_THREADS:
        raise ArtifactError(f"kernel {symbol!r}", expected="a record inside the code", got=f"{name + size} bytes")
    matrices = tuple(MatrixCode(*m) for m in _MATRIX.iter_unpack(blob[first:middle]))
    writes = tuple(n for (n,) in _NUMBER.iter_unpack(blob[middle:start]))
    if any(not 0 <= n < parameters for n in (*writes, *(m.parameter for m in matrices))):
        raise ArtifactError(f"kernel {symbol!r}", expected=f"numbers of {parameters} parameters", got="others")
    text = blob[start : start + name].decode(errors="replace")
    cubin = bytes(blob[start + name : start + name + size])
    awaits, cooperative = bool(order & _AWAITS), bool(order & _COOPERATIVE)
    return KernelCode(text, cubin, threads, shared, parameters, writes, awaits, matrices, cooperative)


__all__ = ["KernelCode", "pack", "unpack"]
