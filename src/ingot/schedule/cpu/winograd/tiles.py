"""The tiles of Winograd's algorithm: their positions in the images, and the outputs that each stores."""

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
class TilePosition:
    """The position of a tile. All fields but `slice_index` are for rows and columns.

    slice_index: image of the batch, slice of the image. phase: the first row and column of a dilated slice's image in
    the slice. origin: the tile's first output. store_start: the first output that it stores. image_size: of the image.
    """

    slice_index: tuple[Expr, Expr]
    phase: tuple[Expr, ...]
    origin: tuple[Expr, ...]
    store_start: tuple[Expr, ...]
    image_size: tuple[Expr, ...]


@dataclass(frozen=True)
class Tiles:
    """The tiles of m x m outputs of a convolution."""

    shape: Shape
    m: int

    @property
    def can_exceed_image(self) -> tuple[bool, bool]:
        """Whether a tile can be larger than an image: (rows, columns)."""
        rows, columns = ((bounds(size)[0] or 0) < self.m for size in self.shape.min_image_size())
        return rows, columns

    def position(self, block: Block, unit: Expr, tile: Expr, depth: int) -> TilePosition:
        """Return the position of a unit's tile. depth: slices of an image."""
        s, m = self.shape, self.m
        n, d, *phase, y, x = (
            block.let(tile_index, "p")
            for tile_index in ix.delinearize(tile, (1, depth, *s.dilation, *s.tile_grid(m)), block.multiples)
        )
        image = n if s.units()[0] == 1 else unit
        origins, store_starts, image_sizes = [], [], []
        sizes = zip((y, x), phase, (s.h, s.w), s.dilation, self.can_exceed_image, strict=True)
        for tile_index, offset, extent, dilation, can_exceed in sizes:
            start = block.let(k.mul(tile_index, integer(m)), "s")
            store_starts.append(start)
            end = dim_expr(extent)
            if dilation > 1:
                remaining = k.sub(dim_expr(extent + dilation - 1), offset)
                end = block.let(k.binary("div", remaining, integer(dilation)), "h")
            image_sizes.append(end)
            last = k.sub(end, integer(m)) if dilation > 1 else dim_expr(extent - m)
            last = k.binary("max", last, ZERO) if can_exceed else last
            is_exact = extent % (dilation * m) == 0
            origins.append(start if is_exact else block.let(k.binary("min", start, last), "o"))
        return TilePosition((image, d), tuple(phase), tuple(origins), tuple(store_starts), tuple(image_sizes))

    def slice_line(self, position: TilePosition, dim: int, line: Expr) -> Expr:
        """Return the line of the slice that is line `line` of one of its images."""
        return k.add(k.mul(line, integer(self.shape.dilation[dim])), position.phase[dim])

    def input_line(self, position: TilePosition, dim: int, line: Expr) -> Expr:
        """Return a tile's input line `line`, clamped to the image."""
        last = k.add(position.image_size[dim], integer(self.shape.r - 2))
        return k.binary("min", line, last) if self.can_exceed_image[dim] else line

    def if_stored(
        self, block: Block, dim: int, line: Expr, position: TilePosition, body: Callable[[Block], None]
    ) -> None:
        """Emit `body` under the condition that the output `line` is in the image and no earlier tile stores it."""
        conditions = [k.binary("lt", line, position.image_size[dim])] if self.can_exceed_image[dim] else []
        if position.origin[dim] is not position.store_start[dim]:
            conditions.append(k.binary("ge", line, position.store_start[dim]))
        block.when(
            k.binary("and", *conditions) if len(conditions) == 2 else conditions[0], body
        ) if conditions else body(block)


__all__ = ["TilePosition", "Tiles"]
