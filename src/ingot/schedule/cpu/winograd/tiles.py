"""Where the tiles of Winograd's algorithm lie in their images, and which of their outputs they store."""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import bounds
from ingot.ir.kernel import Expr, integer
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.winograd.plan import Shape
from ingot.schedule.index import ZERO, dim_expr
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Place:
    """Of a tile, all but `slice` for rows and columns of its image. slice: image of the batch, slice of it. first: the
    image's in the slice. at: the tile's first output; stores: the first that it stores. ends: the image's size."""

    slice: tuple[Expr, Expr]
    first: tuple[Expr, ...]
    at: tuple[Expr, ...]
    stores: tuple[Expr, ...]
    ends: tuple[Expr, ...]


@dataclass(frozen=True)
class Tiles:
    """The tiles of m x m outputs of a convolution."""

    shape: Shape
    m: int

    @property
    def short(self) -> tuple[bool, bool]:
        """Of rows and columns, whether a slice may be smaller than a tile."""
        rows, columns = ((bounds(size)[0] or 0) < self.m for size in self.shape.least())
        return rows, columns

    def place(self, block: Block, unit: Expr, tile: Expr, depth: int) -> Place:
        """Of tile `tile` of a unit whose images have `depth` slices."""
        s, m = self.shape, self.m
        n, d, *first, y, x = (
            block.let(e, "p") for e in ix.delinearize(tile, (1, depth, *s.dilation, *s.grid(m)), block.multiples)
        )
        image = n if s.units()[0] == 1 else unit
        at, stores, ends = [], [], []
        sizes = zip((y, x), first, (s.h, s.w), s.dilation, self.short, strict=True)
        for e, begin, extent, step, short in sizes:
            start = block.let(k.mul(e, integer(m)), "s")
            stores.append(start)
            end = dim_expr(extent)
            if step > 1:
                left = k.sub(dim_expr(extent + step - 1), begin)
                end = block.let(k.binary("div", left, integer(step)), "h")
            ends.append(end)
            last = k.sub(end, integer(m)) if step > 1 else dim_expr(extent - m)
            last = k.binary("max", last, ZERO) if short else last
            whole = extent % (step * m) == 0
            at.append(start if whole else block.let(k.binary("min", start, last), "o"))
        return Place((image, d), tuple(first), tuple(at), tuple(stores), tuple(ends))

    def in_slice(self, place: Place, dim: int, line: Expr) -> Expr:
        """Where line `line` of a slice's image lies in the slice."""
        return k.add(k.mul(line, integer(self.shape.dilation[dim])), place.first[dim])

    def line(self, place: Place, dim: int, at: Expr) -> Expr:
        """The input line `at` of a tile, one of the image."""
        last = k.add(place.ends[dim], integer(self.shape.r - 2))
        return k.binary("min", at, last) if self.short[dim] else at

    def where_stored(self, block: Block, dim: int, line: Expr, place: Place, then: Callable[[Block], None]) -> None:
        """`then` where the output `line` is the image's and no earlier tile's."""
        inside = [k.binary("lt", line, place.ends[dim])] if self.short[dim] else []
        if place.at[dim] is not place.stores[dim]:
            inside.append(k.binary("ge", line, place.stores[dim]))
        block.when(k.binary("and", *inside) if len(inside) == 2 else inside[0], then) if inside else then(block)


__all__ = ["Place", "Tiles"]
