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
from ingot.ir.kernel import Buffer, Expr, Kernel, Matrix, Tile
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e5m2, f16, f32, i8
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES, Span, all_of, constant_tile, index_hints, read_at, store_tile
from ingot.schedule.gpu.contraction.limbs import LIMB_SCALE, LIMBS, limbs
from ingot.schedule.gpu.contraction.operand_types import Multiplied
from ingot.schedule.gpu.contraction.tiles import Place
from ingot.schedule.index import ZERO, integer
from ingot.schedule.lowered import Arg, Step
from ingot.support.dataclass import dataclass

ROW_ALIGNMENT_BYTES = 16
LIMBS_TILE = 8, 256  # of a program that writes limbs
LIMB_ROW_ALIGNMENT_BYTES = 128  # a line of the cache
BOX_DTYPES = (f16, bf16, f8e4m3fn, f8e5m2, i8, f32)
StridedAxis = tuple[DimLike, DimLike]  # (extent, stride)


@dataclass(frozen=True)
class Box:
    """An operand as a matrix in memory. is_transposed: the operand's tile is the transpose of the matrix's. limb_rows:
    rows of each of the limbs, one below the other, that the matrix consists of; 0: it has none."""

    matrix: Matrix
    is_transposed: bool
    dtype: DType
    arg: Arg
    limb_rows: int = 0

    @property
    def nbytes(self) -> int:
        return self.matrix.rows * self.matrix.stride * self.dtype.nbytes

    def buffer(self, name: str, tile: Tile) -> Buffer:
        """The buffer of the matrix, copied by boxes that hold the operand's `tile`."""
        stored = (tile[1], tile[0]) if self.is_transposed else tile
        return Buffer(name, self.dtype, align=ALIGNMENT_BYTES, matrix=replace(self.matrix, tile=stored))

    def read(self, buffer: Buffer, row: Expr, column: Expr, limb: Expr = ZERO) -> Expr:
        """The operand's tile at (row, column), of a limb."""
        row, column = (column, row) if self.is_transposed else (row, column)
        tile = k.tile_load(buffer, k.add(row, k.mul(limb, integer(self.limb_rows))), column)
        return k.transposed(tile) if self.is_transposed else tile


Boxes = tuple[Box, Box]  # of A and B


def boxes_of(
    loops: Loops,
    multiplied: Multiplied,
    a: tuple[DimLike, Arg],
    b: tuple[DimLike, Arg],
    *,
    is_aligned: bool = True,
) -> Boxes | None:
    """The boxes of A (rows by terms) and B (terms by columns), or None if one is not a matrix of static sizes. a, b:
    the offset and the buffer of each. is_aligned: rows must begin where the engine can copy from."""
    types = multiplied.dtypes
    if types is None or any(x.extent != 1 for x in loops.batch) or any(d not in BOX_DTYPES for d in types):
        return None
    rows, a_terms = [(x.extent, x.a) for x in loops.rows], [(x.extent, x.a) for x in loops.reduce]
    b_terms, columns = [(x.extent, x.b) for x in loops.reduce], [(x.extent, x.b) for x in loops.cols]
    alignment = ROW_ALIGNMENT_BYTES if is_aligned else 1
    box_a, box_b = _box(rows, a_terms, types[0], *a, alignment), _box(b_terms, columns, types[1], *b, alignment)
    if box_a is None or box_b is None:
        return None
    has_contiguous_terms = not box_a.is_transposed and box_b.is_transposed
    return (box_a, box_b) if has_contiguous_terms or not multiplied.needs_contiguous_terms else None


def _box(
    row_axes: Sequence[StridedAxis], column_axes: Sequence[StridedAxis], dtype: DType, offset: DimLike, arg: Arg,
    alignment: int,
) -> Box | None:  # fmt: skip
    down, across = _merged(row_axes), _merged(column_axes)
    if down is None or across is None or not isinstance(offset, int):
        return None
    is_transposed = across[1] != 1
    (rows, stride), (columns, step) = (across, down) if is_transposed else (down, across)
    if step != 1 or stride < columns or stride * dtype.nbytes % alignment or offset * dtype.nbytes % alignment:
        return None
    return Box(Matrix(rows, columns, stride, offset, (1, 1)), is_transposed, dtype, arg)


def limbs_of(matrices: Boxes, terms: int, args: tuple[Arg, Arg]) -> Boxes:
    """Those of two matrices of f32, with zeros for terms behind the last, of `terms` in all."""
    unit = LIMB_ROW_ALIGNMENT_BYTES // bf16.nbytes

    def limbs_box(box: Box, has_rows_of_terms: bool, arg: Arg) -> Box:
        m = box.matrix
        rows, stride = terms if has_rows_of_terms else m.rows, -(-m.columns // unit) * unit
        return Box(Matrix(LIMBS * rows, m.columns, stride, 0, (1, 1)), box.is_transposed, bf16, arg, rows)

    a, b = matrices
    return limbs_box(a, a.is_transposed, args[0]), limbs_box(b, not b.is_transposed, args[1])


def limbs_step(source: Box, result: Box) -> Step:
    """The kernel that writes the limbs of a matrix, and zeros up to the end of each row, so that it stores vectors."""
    top, chunk, old, new = Block(), k.var("chunk"), source.matrix, result.matrix
    shape = -(-result.limb_rows // LIMBS_TILE[0]), -(-new.stride // LIMBS_TILE[1])
    down, across = (top.let(e, "c") for e in ix.delinearize(chunk, shape, top.multiples))
    rows = Span.of(top, k.mul(down, integer(LIMBS_TILE[0])), LIMBS_TILE[0], result.limb_rows, 0)
    columns = Span.of(top, k.mul(across, integer(LIMBS_TILE[1])), LIMBS_TILE[1], new.stride, 1)
    is_row = None if old.rows == result.limb_rows else k.binary("lt", rows.position, integer(old.rows))
    is_column = None if old.columns == new.stride else k.binary("lt", columns.position, integer(old.columns))
    x, out = (Buffer(name, box.dtype, writable=name == "out", align=ALIGNMENT_BYTES) for name, box in
              (("x", source), ("out", result)))  # fmt: skip
    at = ix.add(integer(old.offset), k.add(k.mul(rows.position, integer(old.stride)), columns.position))
    value = read_at(top, x, top.let(at, "at"), all_of(rows.in_bounds, columns.in_bounds, is_row, is_column))
    for number, limb in enumerate(limbs(top, value)):
        row = k.add(rows.position, integer(number * result.limb_rows))
        flat = k.add(k.mul(row, integer(new.stride)), columns.position)
        store_tile(top, out, flat, limb, all_of(rows.in_bounds, columns.in_bounds))
    hints = (("warps", 4), ("stages", 1), *index_hints(old.offset + old.rows * old.stride, new.rows * new.stride))
    kernel = Kernel("limbs", (x, out), (), chunk, integer(shape[0] * shape[1]), top.body, hints=hints)
    return Step(kernel, (source.arg, result.arg))


def sums_of_limbs(
    top: Block,
    acc: Buffer,
    boxes: Sequence[Sequence[tuple[Buffer, Box]]],
    place: Place,
    part: tuple[Expr, int, int],
) -> Expr:
    """The tile of a product of limbs in memory, in `acc`, which holds zeros. Those of the smallest products are summed
    first, of all terms. part: its number, the terms of a part, and those of a k-step."""
    (((a, a_box),), ((b, b_box),)), (number, length, step) = boxes, part
    begin = top.let(k.mul(number, integer(length)), "begin")
    for level in reversed(range(LIMBS)):

        def k_step(block: Block, at: Expr, level: int = level) -> None:
            limb = block.let(k.binary("div", at, integer(length)), "limb") if level else ZERO
            term = block.let(k.add(begin, k.sub(at, k.mul(limb, integer(length)))), "term")
            x = block.let(a_box.read(a, place.row, term, limb), "x")
            y = block.let(b_box.read(b, term, place.column, k.sub(integer(level), limb)), "y")
            block.store(acc, ZERO, k.tile_product(x, y, k.load(acc, ZERO), is_apart=level == 0))

        top.loop("k", 0, (level + 1) * length, step, k_step, multiple=step)
        if level:
            total = k.load(acc, ZERO)
            assert total.tile is not None
            top.store(acc, ZERO, k.mul(total, constant_tile(total.dtype, total.tile, 1 / LIMB_SCALE)))
    return k.load(acc, ZERO)


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


__all__ = ["Box", "Boxes", "boxes_of", "limbs_of", "limbs_step", "sums_of_limbs"]
