"""What becomes of a contraction's sums: those of a reduction's parts are joined by the last to end, in their order, so
that the bits are always the same; whoever has all of them goes on with the epilogue in the same kernel.

    sums[tile, part] = own;  if arrived[tile]++ == parts - 1:  out = epilogue(sums[tile, 0] + sums[tile, 1] + ...)

Tiles may also be computed whole but for the last ones, which would keep few programs busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv
from ingot.ir.kernel import Buffer, Expr, Tile
from ingot.ir.node import Node
from ingot.ir.types import i64
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulates
from ingot.schedule.gpu.blocks import ALIGN, Group, last_of, read_at, store_tile, write
from ingot.schedule.group_io import bind_result, result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg
from ingot.support.dataclass import dataclass

AHEAD = 8  # parts whose loads are under way together


@dataclass(frozen=True)
class Place:
    """Where the sums of a program belong: an index of the anchors' results, and the rows and columns that there are."""

    index: Index
    rows: Expr | None
    columns: Expr | None


@dataclass(frozen=True)
class Share:
    """What a program computes: a part of the reduction of a tile, by their numbers; all of it where it is `alone`."""

    part: Expr
    tile: Expr
    alone: Expr | None = None

    def turns(self, top: Block, parts: int, depth: DimLike, step: int) -> tuple[Expr, Expr]:
        """Where its part of a reduction begins and ends, in whole turns of `step` but for the last."""
        if parts == 1:
            return ZERO, dim_expr(depth)
        length: Expr = dim_expr(ceildiv(ceildiv(depth, step), parts) * step)
        begin = top.let(k.mul(self.part, length), "begin")
        if self.alone is not None:
            length = k.select(self.alone, dim_expr(depth), length)
        return begin, top.let(k.binary("min", k.add(begin, length), dim_expr(depth)), "end")


@dataclass(frozen=True)
class Sums:
    """The sums of `anchors`, which have one shape, by tiles. The reduction of those behind the `first` ones is cut into
    `parts`, each a program's own."""

    group: Group
    anchors: tuple[Node, ...]
    tile: Tile
    tiles: DimLike
    parts: int
    first: int = 0

    @property
    def cut(self) -> DimLike:
        """Tiles whose reduction is cut."""
        return self.tiles - self.first

    @property
    def programs(self) -> DimLike:
        return self.first + self.cut * self.parts

    @property
    def temps(self) -> tuple[DimLike, ...]:
        """Bytes of the memory in which parts leave their sums."""
        size = self.cut * self.parts * self.tile[0] * self.tile[1]
        return () if self.parts == 1 else tuple(size * accumulates(n).nbytes for n in self.anchors)

    @property
    def zeros(self) -> DimLike:
        return 0 if self.parts == 1 else self.cut * i64.nbytes

    def share(self, top: Block, chunk: Expr) -> Share:
        if self.parts == 1:
            return Share(ZERO, chunk)
        cut, first = dim_expr(self.cut), integer(self.first)
        behind = chunk if self.first == 0 else top.let(k.sub(chunk, first), "behind")
        part, own = k.binary("div", behind, cut), k.binary("rem", behind, cut)
        if self.first == 0:
            return Share(top.let(part, "part"), top.let(own, "own"))
        alone = top.let(k.binary("lt", chunk, first), "alone")
        part, own = k.select(alone, ZERO, part), k.select(alone, chunk, k.add(own, first))
        return Share(top.let(part, "part"), top.let(own, "own"), alone)

    def finish(self, top: Block, values: Sequence[Expr], place: Place, share: Share) -> tuple[tuple[Buffer, Arg], ...]:
        """Store what the group makes of the sums, once they are whole; the buffers that this takes."""
        if self.parts == 1:
            self._store(top, values, place)
            return ()
        memory = [Buffer(f"sums{n or ''}", value.dtype, writable=True, align=ALIGN) for n, value in enumerate(values)]
        arrived = Buffer("arrived", i64, writable=True, align=ALIGN)
        if share.alone is None:
            self._join(top, values, memory, arrived, share, lambda block, sums: self._store(block, sums, place))
        else:
            totals = [top.alloc("total", v.dtype, 1, lanes=v.lanes, tile=v.tile) for v in values]
            goes_on = top.alloc("goes_on", i64, 1)

            def hold(block: Block, sums: Sequence[Expr]) -> None:
                for total, value in zip(totals, sums, strict=True):
                    block.store(total, ZERO, value)
                block.store(goes_on, ZERO, integer(1))

            def joined(block: Block) -> None:
                block.store(goes_on, ZERO, integer(0))
                self._join(block, values, memory, arrived, share, hold)

            hold(top, values)
            top.when(k.unary("not", share.alone), joined)
            whole = k.binary("ne", k.load(goes_on, ZERO), ZERO)
            top.when(whole, lambda block: self._store(block, [k.load(total, ZERO) for total in totals], place))
        return *((b, Arg("temp", i)) for i, b in enumerate(memory)), (arrived, Arg("zeros", 0))

    def _join(
        self, block: Block, values: Sequence[Expr], memory: Sequence[Buffer], arrived: Buffer, share: Share,
        then: Callable[[Block, Sequence[Expr]], None],
    ) -> None:  # fmt: skip
        """Leave the sums of a part; whoever ends last adds those of all up, and goes on with them."""
        rows, columns = self.tile
        own = share.tile if share.alone is None else block.let(k.sub(share.tile, integer(self.first)), "own")
        across = k.positions(columns, 1)
        inside = across if rows == 1 else k.add(k.mul(k.positions(rows, 0), integer(columns)), across)
        size, one = integer(rows * columns), k.mul(own, integer(self.parts * rows * columns))
        flat = block.let(k.add(one, inside), "flat")
        for buffer, value in zip(memory, values, strict=True):
            store_tile(block, buffer, k.add(flat, k.mul(share.part, size)), value)

        def added(block: Block, buffer: Buffer, total: Expr | None, first: Expr, count: int) -> Expr:
            for number in range(count):
                place = k.add(flat, k.mul(k.add(first, integer(number)), size))
                value = read_at(block, buffer, place, None)
                total = value if total is None else block.let(k.add(total, value), "sum")
            assert total is not None
            return total

        def whole(block: Block, buffer: Buffer) -> Expr:
            if self.parts <= 2 * AHEAD:
                return added(block, buffer, None, ZERO, self.parts)
            total = block.alloc("total", buffer.dtype, 1, lanes=rows * columns, tile=self.tile)
            rest = self.parts % AHEAD or AHEAD
            block.store(total, ZERO, added(block, buffer, None, ZERO, rest))

            def several(inner: Block, first: Expr) -> None:
                inner.store(total, ZERO, added(inner, buffer, k.load(total, ZERO), first, AHEAD))

            block.loop("p", rest, self.parts, AHEAD, several)
            return k.load(total, ZERO)

        last_of(block, self.parts, arrived, own, lambda b: then(b, [whole(b, buffer) for buffer in memory]))

    def _store(self, block: Block, values: Sequence[Expr], place: Place) -> None:
        em = self.group.emitter(() if place.columns is None else (place.columns,))
        for anchor, value in zip(self.anchors, values, strict=True):
            bind_result(em, block, anchor, block.let(k.cast(value, anchor.dtype), "acc"))
        for root, buffer, layout in self.group.results:
            index = result_index(block, root, self.anchors[0], place.index)
            write(block, em, root, buffer, layout, index, place.columns, place.rows)


__all__ = ["Place", "Share", "Sums"]
