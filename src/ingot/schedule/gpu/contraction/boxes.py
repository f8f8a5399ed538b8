"""Operands of a product that the hardware copies in boxes: matrices in memory, of which it is told before the kernel
starts, so that a copy is one instruction of one thread (tensor memory access, from Hopper on).

    x = a[rows, k:k+64]      by pointers: an address for every 16 bytes, in registers
    x = a(128, 64)[row, k]   by boxes: a row and a column
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr, Matrix, Tile
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e5m2, f16, i8
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import ALIGN
from ingot.schedule.lowered import Arg
from ingot.support.dataclass import dataclass

UNIT = 16  # bytes: rows begin at multiples of it
TYPES = (f16, bf16, f8e4m3fn, f8e5m2, i8)
Line = tuple[DimLike, DimLike]  # an axis: how many, and how far apart


@dataclass(frozen=True)
class Box:
    """An operand as a matrix. turned: its tile is the transposed one of the matrix."""

    matrix: Matrix
    turned: bool
    dtype: DType
    arg: Arg

    def buffer(self, name: str, tile: Tile) -> Buffer:
        """The matrix in memory, whose tiles are those of the operand's `tile`."""
        stored = (tile[1], tile[0]) if self.turned else tile
        return Buffer(name, self.dtype, align=ALIGN, matrix=replace(self.matrix, tile=stored))

    def read(self, buffer: Buffer, first: Expr, second: Expr) -> Expr:
        """The operand's tile at these positions of its first and its second axis."""
        return k.transposed(k.tile_load(buffer, second, first)) if self.turned else k.tile_load(buffer, first, second)


Boxes = tuple[Box, Box]  # of A and B


def boxes_of(loops: Loops, types: tuple[DType, DType], a: tuple[DimLike, Arg], b: tuple[DimLike, Arg]) -> Boxes | None:
    """Both operands of a product, rows by terms and terms by columns, or None where one is no matrix whose sizes are
    known. a, b: where each begins in which buffer."""
    if any(x.extent != 1 for x in loops.batch) or any(d not in TYPES for d in types):
        return None
    rows, terms = [(x.extent, x.a) for x in loops.rows], [(x.extent, x.a) for x in loops.reduce]
    others, columns = [(x.extent, x.b) for x in loops.reduce], [(x.extent, x.b) for x in loops.cols]
    left, right = _box(rows, terms, types[0], *a), _box(others, columns, types[1], *b)
    if left is None or right is None:
        return None
    # tensor cores of 8 bits read what boxes hold only where terms lie side by side
    return (left, right) if types[0].bits > 8 or (not left.turned and right.turned) else None


def _box(first: Sequence[Line], second: Sequence[Line], dtype: DType, offset: DimLike, arg: Arg) -> Box | None:
    down, across = _joined(first), _joined(second)
    if down is None or across is None or not isinstance(offset, int):
        return None
    turned = across[1] != 1
    (rows, stride), (columns, step) = (across, down) if turned else (down, across)
    if step != 1 or stride < columns or stride * dtype.nbytes % UNIT or offset * dtype.nbytes % UNIT:
        return None
    return Box(Matrix(rows, columns, stride, offset, (1, 1)), turned, dtype, arg)


def _joined(axes: Sequence[Line]) -> tuple[int, int] | None:
    """Axes that are walked as one."""
    count, stride = 1, 1
    for extent, step in reversed(axes):
        if not isinstance(extent, int) or not isinstance(step, int) or extent < 1:
            return None
        if extent == 1:
            continue
        if count > 1 and step != count * stride:
            return None
        count, stride = count * extent, stride if count > 1 else step
    return count, stride


__all__ = ["Box", "Boxes", "boxes_of"]
