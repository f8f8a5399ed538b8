"""The tiles of a product: where they lie, what they cover, and what a program reads before it sums their terms."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import accumulate

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Expr, For, Gather, Increment, Let, Load, Stmt, Var
from ingot.ir.kernel.verify import children
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
from ingot.schedule.gpu.blocks import pieces_of
from ingot.schedule.index import dim_expr, integer
from ingot.support.dataclass import dataclass

ROW_TILES_PER_BAND = 8  # their programs run at the same time and share columns of B in the second-level cache


@dataclass(frozen=True)
class Place:
    """The batch entry of a tile, and its first row and column."""

    batch: Expr
    row: Expr
    column: Expr


@dataclass(frozen=True)
class Extent:
    """What a tile covers: the index of its batch entry, and the indices of its pieces' rows and columns, with masks of
    those in bounds."""

    batch: Index
    rows: Sequence[tuple[Index, Expr | None]]
    columns: Sequence[tuple[Index, Expr | None]]


def tile_of_program(top: Block, chunk: Expr, row_tiles: DimLike, column_tiles: DimLike) -> tuple[Expr, Expr, Expr]:
    """The (batch, row tile, column tile) of a program, in bands of row tiles; row tiles vary fastest."""
    tile = top.let(k.binary("rem", chunk, dim_expr(row_tiles * column_tiles)), "t")
    batch = top.let(k.binary("div", chunk, dim_expr(row_tiles * column_tiles)), "batch")
    band = top.let(k.binary("div", tile, dim_expr(column_tiles * ROW_TILES_PER_BAND)), "band")
    tile_in_band = top.let(k.binary("rem", tile, dim_expr(column_tiles * ROW_TILES_PER_BAND)), "inside")
    first_row = top.let(k.mul(band, integer(ROW_TILES_PER_BAND)), "first")
    height = top.let(k.binary("min", k.sub(dim_expr(row_tiles), first_row), integer(ROW_TILES_PER_BAND)), "height")
    row = top.let(k.add(first_row, k.binary("rem", tile_in_band, height)), "row")
    return batch, row, top.let(k.binary("div", tile_in_band, height), "column")


def vectors_first(stmts: Sequence[Stmt]) -> list[Stmt]:
    """Move what the epilogue reads for a whole column, such as a bias, in front of the loop, so that no program waits
    for it at its end."""
    loop = next((i for i, s in enumerate(stmts) if isinstance(s, For)), len(stmts) - 1)
    before, after, late = list(stmts[:loop]), list[Stmt](), set[str]()
    for s in stmts[loop + 1 :]:
        if isinstance(s, Let) and (s.var.tile is None or s.var.tile[0] == 1) and _is_known(s.value, late):
            before.append(s)
            continue
        after.append(s)
        late |= {s.var.name} if isinstance(s, Let | Increment) else set()
    return [*before, stmts[loop], *after]


def _is_known(e: Expr, late: Set[str]) -> bool:
    """Whether an expression reads neither registers, memory that is written, nor variables of `late`."""
    if isinstance(e, Load | Gather) and (e.buffer.space == "register" or e.buffer.writable):
        return False
    return not (isinstance(e, Var) and e.name in late) and all(_is_known(x, late) for x in children(e))


def piece_starts(size: int) -> list[tuple[int, int]]:
    """Where the pieces of a tile's side begin, and their sizes.   192 -> [(0, 128), (128, 64)]"""
    pieces = pieces_of(size)
    return list(zip(accumulate(pieces, initial=0), pieces, strict=False))


__all__ = ["Extent", "Place", "piece_starts", "tile_of_program", "vectors_first"]
