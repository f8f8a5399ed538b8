"""Operands that the tensor memory accelerator copies in boxes (Hopper and later): a matrix is described to the hardware
before the kernel starts, and one thread copies a tile by one instruction.

    x = a[rows, k:k+64]      by pointers: an address in a register for every 16 bytes
    x = a(128, 64)[row, k]   by boxes: a row and a column
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr, Matrix, Tile
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e5m2, f16, f32, i8
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES
from ingot.schedule.gpu.contraction.operand_types import Multiplied
from ingot.schedule.lowered import Arg
from ingot.support.dataclass import dataclass

ROW_ALIGNMENT_BYTES = 16
BOX_DTYPES = (f16, bf16, f8e4m3fn, f8e5m2, i8, f32)
StridedAxis = tuple[DimLike, DimLike]  # (extent, stride)


@dataclass(frozen=True)
class Box:
    """An operand as a matrix in memory. is_transposed: the operand's tile is the transpose of the matrix's."""

    matrix: Matrix
    is_transposed: bool
    dtype: DType
    arg: Arg

    def buffer(self, name: str, tile: Tile) -> Buffer:
        """The buffer of the matrix, copied by boxes that hold the operand's `tile`."""
        stored = (tile[1], tile[0]) if self.is_transposed else tile
        return Buffer(name, self.dtype, align=ALIGNMENT_BYTES, matrix=replace(self.matrix, tile=stored))

    def read(self, buffer: Buffer, row: Expr, column: Expr) -> Expr:
        """The operand's tile at (row, column)."""
        return (
            k.transposed(k.tile_load(buffer, column, row)) if self.is_transposed else k.tile_load(buffer, row, column)
        )


Boxes = tuple[Box, Box]  # of A and B


def boxes_of(loops: Loops, multiplied: Multiplied, a: tuple[DimLike, Arg], b: tuple[DimLike, Arg]) -> Boxes | None:
    """The boxes of A (rows by terms) and B (terms by columns), or None if one is not a matrix of static sizes. a, b:
    the offset and the buffer of each."""
    types = multiplied.dtypes
    if types is None or any(x.extent != 1 for x in loops.batch) or any(d not in BOX_DTYPES for d in types):
        return None
    rows, a_terms = [(x.extent, x.a) for x in loops.rows], [(x.extent, x.a) for x in loops.reduce]
    b_terms, columns = [(x.extent, x.b) for x in loops.reduce], [(x.extent, x.b) for x in loops.cols]
    box_a, box_b = _box(rows, a_terms, types[0], *a), _box(b_terms, columns, types[1], *b)
    if box_a is None or box_b is None:
        return None
    has_contiguous_terms = not box_a.is_transposed and box_b.is_transposed
    return (box_a, box_b) if has_contiguous_terms or not multiplied.needs_contiguous_terms else None


def _box(
    row_axes: Sequence[StridedAxis], column_axes: Sequence[StridedAxis], dtype: DType, offset: DimLike, arg: Arg
) -> Box | None:
    down, across = _merged(row_axes), _merged(column_axes)
    if down is None or across is None or not isinstance(offset, int):
        return None
    is_transposed = across[1] != 1
    (rows, stride), (columns, step) = (across, down) if is_transposed else (down, across)
    if (
        step != 1
        or stride < columns
        or stride * dtype.nbytes % ROW_ALIGNMENT_BYTES
        or offset * dtype.nbytes % ROW_ALIGNMENT_BYTES
    ):
        return None
    return Box(Matrix(rows, columns, stride, offset, (1, 1)), is_transposed, dtype, arg)


def _merged(axes: Sequence[StridedAxis]) -> tuple[int, int] | None:
    """The (extent, stride) of axes that can be merged into one, else None."""
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
