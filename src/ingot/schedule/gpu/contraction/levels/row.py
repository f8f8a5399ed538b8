"""The product of a single row and 4- or 8-bit weights.

A 32-bit word holds levels of one block of a column. A tile has one row per block of a k-step, and columns are unrolled,
so that the row's terms stay in registers for all columns.

    for each column:  acc[block, word] = sum over a word's levels q of (q - zero[block]) * a[block, ...]
                      total[block, word] += acc * scale[block]

Sums are in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import ClassVar

from ingot.ir import kernel as k
from ingot.ir.kernel import AwaitProducers, Buffer, Expr, Lit, Tile
from ingot.ir.types import f32, static_shape
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.choice import Tiling
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import all_of, offset_of, read_at, register
from ingot.schedule.gpu.contraction.levels.packed import Levels, Parameter
from ingot.schedule.index import ZERO, integer
from ingot.support.dataclass import dataclass

Read = Callable[[Block, Expr, Expr | None], Expr]  # (block, indices of terms, mask) -> the row's terms


@dataclass(frozen=True)
class RowOfLevels:
    """bs: the levels and loops of the products, which have the same shape."""

    bs: tuple[tuple[Levels, Loops], ...]
    tiling: Tiling
    loads: ClassVar[int] = 1  # of words of a column

    @property
    def step(self) -> int:
        """The terms in a row of the tile."""
        return self.bs[0][0].step

    @property
    def words(self) -> int:
        return self.bs[0][0].words

    @property
    def blocks(self) -> int:
        return self.tiling.depth // self.step

    @property
    def _reduce(self) -> tuple[int, ...]:
        return static_shape(tuple(x.extent for x in self.bs[0][1].reduce))

    @property
    def _columns(self) -> tuple[int, ...]:
        return static_shape(tuple(x.extent for x in self.bs[0][1].cols))

    def sums(self, top: Block, first_column: Expr, k_range: tuple[Expr, Expr], row: Callable[[], Read]) -> list[Expr]:
        """Each product's sums of the columns from `first_column` on. k_range: the bounds of the reduction. row: starts
        reading the row, after the first words are loaded."""
        columns = [Column.of(self, top, first_column, c) for c in range(self.tiling.columns)]
        tile = self._tile
        zero = Lit(f32, tile[0] * tile[1], 0.0, tile=tile)
        pairs = [(b, c) for b in range(len(self.bs)) for c in columns]
        totals = [top.alloc("total", f32, 1, lanes=zero.lanes, tile=tile) for _ in pairs]
        begin, end = k_range
        prefetched = [self._prefetch_registers(top, b, column, begin) for b, column in pairs]
        for total in totals:
            top.store(total, ZERO, zero)
        top.stmts.append(AwaitProducers())
        read = row()

        def step(block: Block, k_index: Expr) -> None:
            words, parameters = list[list[Expr]](), list[list[list[Expr]]]()
            for registers, (b, column) in zip(prefetched, pairs, strict=True):
                loaded = [block.let(k.load(x, ZERO), "q") for x in registers]
                words.append(loaded[: self.loads])
                ahead = loaded[self.loads :]
                parameters.append([ahead] if ahead else self._parameters(block, b, column, k_index))
            next_k = block.let(k.add(k_index, integer(self.tiling.depth)), "n")
            if not (isinstance(next_k, Lit) and isinstance(end, Lit) and next_k.value >= end.value):

                def fetch(block: Block) -> None:
                    for registers, (b, column) in zip(prefetched, pairs, strict=True):
                        for register, value in zip(registers, self._prefetched(block, b, column, next_k), strict=True):
                            block.store(register, ZERO, value)

                block.when(k.binary("lt", next_k, end), fetch)
            terms, size = self._terms(block, k_index, read), len(columns)
            for b, (levels, _) in enumerate(self.bs):
                own = slice(b * size, (b + 1) * size)
                self._add(block, levels, totals[own], words[own], terms, parameters[own])

        top.loop("k", begin, end, self.tiling.depth, step, multiple=self.tiling.depth)
        size = len(columns)
        return [self._row_of_sums(top, totals[b * size : (b + 1) * size]) for b in range(len(self.bs))]

    @property
    def _tile(self) -> Tile:
        """Of the totals of a column."""
        return self.blocks, self.words

    @property
    def _parameter_tile(self) -> Tile:
        return self.blocks, 1

    def _prefetched(self, block: Block, b: int, column: Column, at: Expr) -> list[Expr]:
        """The loads of a column's k-step that do not depend on earlier kernels: words and, if constant, parameters."""
        levels, words = self.bs[b][0], self._words(block, b, column, at)
        if not (levels.has_one_scale and levels.zero.is_constant and levels.scale.is_constant):
            return words
        (parameters,) = self._parameters(block, b, column, at)
        return [*words, *(k.spread(p, self._parameter_tile) for p in parameters)]

    def _prefetch_registers(self, top: Block, b: int, column: Column, at: Expr) -> list[Buffer]:
        """Registers that hold the prefetched loads of the first k-step."""
        return [register(top, "held", value) for value in self._prefetched(top, b, column, at)]

    def _term_index(self, block: Block, at: Expr, offset: int, size: int) -> tuple[Expr, Expr | None]:
        """The indices of `size` terms of each block from its term `offset` on, and the mask of those in bounds."""
        begin = k.add(at, k.mul(k.lane_indices(self.blocks, 0), integer(self.step)))
        index = block.let(k.add(k.add(begin, integer(offset)), k.lane_indices(size, 1)), "k")
        depth = prod(self._reduce)
        is_full = depth % self.tiling.depth == 0
        return index, None if is_full else block.let(k.binary("lt", index, integer(depth)), "inside")

    def _words(self, block: Block, b: int, column: Column, at: Expr) -> list[Expr]:
        _, in_bounds = self._term_index(block, at, 0, 1)  # a column's words are padded to whole blocks
        words = k.add(k.mul(k.lane_indices(self.blocks, 0), integer(self.words)), k.lane_indices(self.words, 1))
        return [self._words_at(block, b, column, at, words, in_bounds)]

    def _words_at(self, block: Block, b: int, column: Column, at: Expr, words: Expr, in_bounds: Expr | None) -> Expr:
        """The words of a column by their numbers in the k-step at `at`."""
        levels = self.bs[b][0]
        row_words = levels.row_words(prod(self._reduce))
        offset = k.add(
            k.add(k.binary("div", at, integer(levels.parts)), words), k.mul(column.first, integer(row_words))
        )
        offset = k.add(block.let(offset, "place"), integer(column.number * row_words))
        value = read_at(block, levels.buffer, offset, all_of(in_bounds, column.in_bounds))
        return k.spread(value, self._tile)

    def _parameters(self, block: Block, b: int, column: Column, at: Expr) -> list[list[Expr]]:
        """The zeros and scales of each block or, if a block has several, of each part of its terms."""
        levels = self.bs[b][0]
        parameters: list[list[Expr]] = []
        for part in range(1 if levels.has_one_scale else levels.parts):
            index_of_terms, live = self._term_index(
                block, at, part * self.words, 1 if levels.has_one_scale else self.words
            )
            index = [block.let(e, "i") for e in ix.delinearize(index_of_terms, self._reduce, {})]
            parameters.append([self._parameter(block, p, column, index, live) for p in levels.parameters])
        return parameters

    @staticmethod
    def _parameter(block: Block, p: Parameter, column: Column, index: Sequence[Expr], live: Expr | None) -> Expr:
        if isinstance(p.source, Lit):
            return p.source
        offset = block.let(ix.add(offset_of(column.index, p.columns), offset_of(index, p.reduce)), "place")
        offset = k.add(offset, integer(p.offset + column.run * sum(p.columns[-1:])))
        return read_at(block, p.source, offset, all_of(live, column.in_bounds))

    def _terms(self, block: Block, at: Expr, read: Read) -> list[Expr]:
        """The row's terms for each level of a word."""
        terms: list[Expr] = []
        for part in range(self.bs[0][0].parts):
            places, live = self._term_index(block, at, part * self.words, self.words)
            terms.append(block.let(k.cast(read(block, places, live), f32), "x"))
        return terms

    def _add(
        self, block: Block, levels: Levels, totals: Sequence[Buffer], words: Sequence[Sequence[Expr]],
        terms: Sequence[Expr], parameters: Sequence[Sequence[Sequence[Expr]]],
    ) -> None:  # fmt: skip
        """Add the products of one B's columns in a k-step to their totals."""
        for total, (word,), own in zip(totals, words, parameters, strict=True):
            self._add_column(block, levels, total, word, terms, own)

    def _add_column(
        self, block: Block, levels: Levels, total: Buffer, word: Expr, terms: Sequence[Expr],
        parameters: Sequence[Sequence[Expr]],
    ) -> None:  # fmt: skip
        acc: Expr = k.load(total, ZERO) if not levels.has_one_scale else k.lit(0.0, f32)
        own = parameters if len(parameters) > 1 else [*parameters] * len(terms)
        differences = levels.differences(block, word, [zero for zero, _ in own])
        for level, x, (_, scale) in zip(differences, terms, own, strict=True):
            value = level if levels.has_one_scale else k.mul(level, k.cast(scale, f32))
            acc = block.let(k.fma(*k.broadcast(value, x, acc)), "acc")
        if levels.has_one_scale:
            acc = k.fma(*k.broadcast(acc, k.cast(parameters[0][1], f32), k.load(total, ZERO)))
        block.store(total, ZERO, acc)

    def _row_of_sums(self, top: Block, totals: Sequence[Buffer]) -> Expr:
        """The sums of all columns as a row."""
        lane, row = k.lane_indices(len(totals), 1), None
        for c, total in enumerate(totals):
            column_sum = top.let(k.reduce_axis("add", k.load(total, ZERO), 1), "sum")
            if len(totals) > 1:
                is_column = k.binary("eq", lane, integer(c))
                column_sum = k.select(is_column, column_sum, k.lit(0.0, f32) if row is None else row)
            row = top.let(column_sum, "sums")
        assert row is not None
        return top.let(k.reduce_axis("add", row, 0), "sum") if self.blocks > 1 else row


@dataclass(frozen=True)
class Column:
    """A program's column `number`, behind its column `first`. index: of the column `run` before it along the innermost
    axis, so that columns of one run share it. in_bounds: whether the column is."""

    first: Expr
    number: int
    index: tuple[Expr, ...]
    run: int
    in_bounds: Expr | None

    @staticmethod
    def of(row: RowOfLevels, top: Block, first: Expr, number: int) -> Column:
        *outer, inner = row._columns or (1,)
        width, columns = prod(outer) * inner, row.tiling.columns
        own = top.let(k.add(first, integer(number)), "column")
        in_bounds = top.let(k.binary("lt", own, integer(width)), "live") if width % columns else None
        is_run = not outer or inner % columns == 0
        index = tuple(top.let(e, "i") for e in ix.delinearize(first if is_run else own, row._columns, top.multiples))
        return Column(first, number, index, number if is_run else 0, in_bounds)


__all__ = ["Column", "Read", "RowOfLevels"]
