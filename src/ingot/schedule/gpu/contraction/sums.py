"""What becomes of a contraction's sums: those of a reduction's parts are joined by the last to end, in their order, so
that the bits are always the same; whoever has all of them goes on with the epilogue in the same kernel.

    sums[part, place] = own;  if arrived[tile]++ == parts - 1:  out = epilogue(sums[0, place] + sums[1, place] + ...)
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr, Increment
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ir.types import i64
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulates
from ingot.schedule.gpu.blocks import ALIGN, Group, read_at, write
from ingot.schedule.group_io import bind_result, result_index
from ingot.schedule.index import ZERO, dim_expr, integer, linear
from ingot.schedule.lowered import Arg
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Place:
    """Where the sums of a program belong: an index of the anchors' results, and the rows and columns that there are."""

    index: Index
    rows: Expr | None
    columns: Expr | None


@dataclass(frozen=True)
class Sums:
    """The sums of `anchors`, which have one shape, by `parts` parts of the reduction for each of `whole` tiles."""

    group: Group
    anchors: tuple[Node, ...]
    parts: int
    whole: DimLike

    @property
    def temps(self) -> tuple[DimLike, ...]:
        """Bytes of the memory in which parts leave their sums."""
        return () if self.parts == 1 else tuple(n.type.size * self.parts * accumulates(n).nbytes for n in self.anchors)

    @property
    def zeros(self) -> DimLike:
        return 0 if self.parts == 1 else self.whole * i64.nbytes

    def split(self, top: Block, chunk: Expr) -> tuple[Expr, Expr]:
        """(part of the reduction, tile) of a program."""
        if self.parts == 1:
            return ZERO, chunk
        whole = dim_expr(self.whole)
        return top.let(k.binary("div", chunk, whole), "part"), top.let(k.binary("rem", chunk, whole), "own")

    def finish(
        self, top: Block, values: Sequence[Expr], place: Place, part: Expr, tile: Expr
    ) -> tuple[tuple[Buffer, Arg], ...]:
        """Store what the group makes of the sums, once they are whole; the buffers that this takes."""
        if self.parts == 1:
            self._store(top, values, place)
            return ()
        memory = [Buffer(f"sums{n or ''}", value.dtype, writable=True, align=ALIGN) for n, value in enumerate(values)]
        arrived = Buffer("arrived", i64, writable=True, align=ALIGN)
        shape = self.anchors[0].shape
        size = dim_expr(self.anchors[0].type.size)
        flat = top.let(linear(place.index, Layout.contiguous(shape).strides), "flat")
        live = meet(place.rows, place.columns)
        for buffer, value in zip(memory, values, strict=True):
            masks = () if live is None else (live,)
            at, value, *mask = k.alike(ix.add(flat, ix.mul(part, size)), value, *masks)
            top.store(buffer, at, value, mask[0] if mask else None)
        before = top.fresh("before")
        top.stmts.append(Increment(before, arrived, tile))

        def whole(block: Block, buffer: Buffer) -> Expr:
            total: Expr | None = None
            for number in range(self.parts):
                value = read_at(block, buffer, ix.add(flat, ix.mul(integer(number), size)), live)
                total = value if total is None else block.let(k.add(total, value), "sum")
            assert total is not None
            return total

        def last(block: Block) -> None:
            block.store(arrived, tile, ZERO)
            self._store(block, [whole(block, buffer) for buffer in memory], place)

        top.when(k.binary("eq", before, integer(self.parts - 1)), last)
        return *((b, Arg("temp", i)) for i, b in enumerate(memory)), (arrived, Arg("zeros", 0))

    def _store(self, block: Block, values: Sequence[Expr], place: Place) -> None:
        em = self.group.emitter(() if place.columns is None else (place.columns,))
        for anchor, value in zip(self.anchors, values, strict=True):
            bind_result(em, block, anchor, block.let(k.cast(value, anchor.dtype), "acc"))
        for root, buffer, layout in self.group.results:
            index = result_index(block, root, self.anchors[0], place.index)
            write(block, em, root, buffer, layout, index, place.columns, place.rows)


def meet(*masks: Expr | None) -> Expr | None:
    """Where all masks are on; None: everywhere."""
    known = [m for m in masks if m is not None]
    return None if not known else known[0] if len(known) == 1 else k.binary("and", *known)


__all__ = ["Place", "Sums", "meet"]
