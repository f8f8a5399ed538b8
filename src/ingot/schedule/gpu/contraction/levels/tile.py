"""The product of several rows and 4- or 8-bit weights, in the words that a single row reads (`levels/row.py`).

A k-step is some blocks of each column. Its words are a tile, and each part of them is a product of tensor cores:

    for each part of a word:  acc[rows, columns] += a[rows, words] * ((q - zero) * scale)[words, columns]

The terms of a part are those of its words; sums do not depend on their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Lit
from ingot.ir.types import DType, f32, static_shape
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import all_of, offset_of, read_at, register
from ingot.schedule.gpu.contraction.levels.packed import Levels, Parameter
from ingot.schedule.index import ZERO, integer
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class TileOfLevels:
    """loops: with A's strides. depth: of a k-step. columns, in_bounds: the index of the tile's columns, and their
    mask."""

    levels: Levels
    loops: Loops
    depth: int
    columns: Sequence[Expr]
    in_bounds: Expr | None

    @property
    def size(self) -> int:
        """The terms of a part of a k-step."""
        return self.depth // self.levels.parts

    @property
    def _extents(self) -> tuple[int, ...]:
        return static_shape(tuple(x.extent for x in self.loops.reduce))

    def sums(self, top: Block, acc: Buffer, a: tuple[Buffer, Expr], part: tuple[Expr, Expr], dtype: DType) -> Expr:
        """The tile of the product, in `acc`. a: A's buffer, and the offsets of its rows. part: the bounds of the terms.
        dtype: of what is multiplied."""

        # Triton overlaps the loads of words and rows with products, but not those of a few bytes
        begin, end = part
        first = self.parameters(top, begin)
        held = {i: register(top, "held", value) for i, value in enumerate(first) if not isinstance(value, Lit)}

        def k_step(block: Block, k_index: Expr) -> None:
            own = {i: block.let(k.load(x, ZERO), "p") for i, x in held.items()}
            parameters = [own.get(i, value) for i, value in enumerate(first)]
            following = self.parameters(block, k.add(k_index, integer(self.depth)))
            for i, x in held.items():
                block.store(x, ZERO, following[i])
            for number, w in enumerate(self.weights(block, k_index, parameters, dtype)):
                x, total = k.cast(self.terms(block, *a, k_index, number), dtype), k.load(acc, ZERO)
                assert total.tile is not None
                rows, columns = total.tile
                x, w = k.spread(x, (rows, self.size)), k.spread(w, (self.size, columns))
                block.store(acc, ZERO, k.tile_product(x, w, total))

        top.loop("k", begin, end, self.depth, k_step, multiple=self.depth)
        return k.load(acc, ZERO)

    def weights(self, block: Block, at: Expr, parameters: Sequence[Expr], dtype: DType) -> list[Expr]:
        """B's tile of each part of the k-step at `at`, rounded once to `dtype`. parameters: those of the k-step."""
        levels = self.levels
        word = k.add(k.binary("div", at, integer(levels.parts)), k.lane_indices(self.size, 0))
        row_words = levels.row_words(prod(self._extents))
        live = None if row_words % self.size == 0 else block.let(k.binary("lt", word, integer(row_words)), "inside")
        extents = static_shape(tuple(x.extent for x in self.loops.cols))
        column = offset_of(self.columns, [prod(extents[i + 1 :]) * row_words for i in range(len(extents))])
        place = block.let(ix.add(word, column), "place")
        words = read_at(block, levels.buffer, place, all_of(live, self.in_bounds))
        count = levels.parts * 2 // len(parameters)
        zeros, scales = ([*parameters[i::2]] * count for i in range(2))
        tiles = zip(levels.differences(block, words, zeros), scales, strict=True)
        return [block.let(k.cast(k.mul(level, k.cast(scale, f32)), dtype), "w") for level, scale in tiles]

    def parameters(self, block: Block, at: Expr) -> list[Expr]:
        """The zeros and scales of a k-step or, if a block has several, of each of its parts: a zero, a scale, ..."""
        found: list[Expr] = []
        for part in range(1 if self.levels.has_one_scale else self.levels.parts):
            term, live = self._term(block, at, part, 0)
            index = [block.let(e, "i") for e in ix.delinearize(term, self._extents, {})]
            found += [self._parameter(block, p, index, live) for p in self.levels.parameters]
        return found

    def terms(self, block: Block, a: Buffer, rows: Expr, at: Expr, part: int) -> Expr:
        """A's tile of a part. rows: the offsets of its rows."""
        axes = merge_axes(tuple(Axis(x.extent, x.a, x.a) for x in self.loops.reduce))
        term, inside = self._term(block, at, part, 1)
        live = None if prod(self._extents) % self.depth == 0 else inside
        index = ix.delinearize(term, tuple(x.extent for x in axes), {})
        return read_at(block, a, ix.add(rows, offset_of(index, [x.a for x in axes])), live)

    def _term(self, block: Block, at: Expr, part: int, axis: int) -> tuple[Expr, Expr]:
        """The numbers of the terms of a part, and the mask of those in bounds, as none is behind the last k-step."""
        words, lane = self.levels.words, k.lane_indices(self.size, axis)
        if self.size > words:
            blocks, place = k.binary("div", lane, integer(words)), k.binary("rem", lane, integer(words))
            lane = k.add(k.mul(blocks, integer(self.levels.step)), place)
        term, depth = block.let(k.add(k.add(at, integer(part * words)), lane), "k"), prod(self._extents)
        return term, block.let(k.binary("lt", term, integer(depth)), "inside")

    def _parameter(self, block: Block, p: Parameter, index: Sequence[Expr], live: Expr) -> Expr:
        if not isinstance(p.source, Buffer):
            return p.source
        base = ix.add(integer(p.offset), offset_of(self.columns, p.columns))
        offset = ix.add(base, offset_of(index, p.reduce))
        return read_at(block, p.source, offset, all_of(live, self.in_bounds))


__all__ = ["TileOfLevels"]
