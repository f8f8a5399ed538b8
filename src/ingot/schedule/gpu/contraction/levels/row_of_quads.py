"""The product of a row of 16-bit floats and 4-bit levels with a constant zero, by tensor cores.

A level and its zero are or-ed and subtracted as 16-bit floats, two at once, and these multiply the row without being
moved: a lane has the words of 8 levels, and four lanes, a quad, those of 32 terms with one scale. In the instruction's
matrices a warp's quads are the rows of A, for two columns of the product, and the quads of the row's terms are the
columns of B (`QuadProduct`). A quad's result for its own terms is in one of its lanes. With the terms of group n of a
warp's quads in the order quad ^ 2n it is in another lane for each of four groups, so that each lane has one result:

    lane 4i + j:  group n = j ^ (i / 2), quad i        total += result * scale[quad]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Lit, Tile
from ingot.ir.types import DType, f32, u16, u32
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.choice import Tiling
from ingot.schedule.gpu.contraction.levels.packed import Levels
from ingot.schedule.gpu.contraction.levels.row import Column, Read, RowOfLevels
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import ZERO, integer
from ingot.support.dataclass import dataclass

LANES, QUAD, GROUPS = 32, 4, 4  # of a warp; lanes of a quad; groups of a warp's quads
QUAD_TERMS = 32
PAIRS = 4  # of a word's levels
MAX_ZERO = 120  # exact in bf16 with what is added to a level
MAX_COLUMNS = 128  # of a multiprocessor: with four times as many, sums of products in f32 took less time


def has_quads(levels: Levels, dtype: DType, columns: int, machine: Machine) -> bool:
    """Whether a row of `dtype` is multiplied by quads. columns: of all products of a kernel."""
    zero = levels.zero.source
    is_exact = isinstance(zero, Lit) and zero.value in range(MAX_ZERO) and dtype.is_float and dtype.bits == 16
    is_of_blocks = levels.bits == 4 and levels.has_one_scale and levels.step % QUAD_TERMS == 0
    return machine.capability >= 90 and is_exact and is_of_blocks and columns <= MAX_COLUMNS * machine.processors


def fills_lanes(tiling: Tiling) -> bool:
    """Whether the lanes of a program have four words each of a column's k-step."""
    return tiling.depth == tiling.warps * LANES * GROUPS * QUAD_TERMS // QUAD


@dataclass(frozen=True)
class RowOfQuads(RowOfLevels):
    """dtype: of the row."""

    dtype: DType = f32
    loads: ClassVar[int] = GROUPS

    @property
    def _lanes(self) -> int:
        return self.tiling.warps * LANES

    @property
    def _tile(self) -> Tile:
        return 1, self._lanes

    @property
    def _parameter_tile(self) -> Tile:
        return self._tile

    def _places(self, group: Expr | int, quad: Expr) -> Expr:
        """The numbers of the words, in a k-step, of quads of a group, by lane."""
        lane = k.lane_indices(self._lanes, 1)
        warp, own = k.binary("div", lane, integer(LANES)), k.binary("rem", lane, integer(QUAD))
        group = integer(group) if isinstance(group, int) else group
        place = k.add(k.mul(warp, integer(LANES * GROUPS)), k.mul(group, integer(LANES)))
        return k.add(k.add(place, k.mul(quad, integer(QUAD))), own)

    def _quad(self) -> Expr:
        """The number of each lane's quad."""
        lane = k.lane_indices(self._lanes, 1)
        return k.binary("div", k.binary("rem", lane, integer(LANES)), integer(QUAD))

    def _own_group(self) -> Expr:
        """The group of each lane's result."""
        lane = k.lane_indices(self._lanes, 1)
        return k.binary("xor", k.binary("rem", lane, integer(QUAD)), k.binary("div", self._quad(), integer(2)))

    def _terms_of(self, block: Block, at: Expr, words: Expr, part: int) -> tuple[Expr, Expr | None]:
        """The terms of a part of words, and the mask of those in bounds."""
        size, depth = integer(self.words), prod(self._reduce)
        step = k.mul(k.binary("div", words, size), integer(self.step))
        inside = k.add(k.binary("rem", words, size), integer(part * self.words))
        index = block.let(k.add(k.add(at, step), inside), "k")
        is_full = depth % self.tiling.depth == 0
        return index, None if is_full else block.let(k.binary("lt", index, integer(depth)), "inside")

    def _words(self, block: Block, b: int, column: Column, at: Expr) -> list[Expr]:
        row_words = self.bs[b][0].row_words(prod(self._reduce))
        loaded: list[Expr] = []
        for group in range(GROUPS):
            words, in_bounds = self._places(group, self._quad()), None
            if prod(self._reduce) % self.tiling.depth:
                number = k.add(k.binary("div", at, integer(2 * PAIRS)), words)
                in_bounds = block.let(k.binary("lt", number, integer(row_words)), "inside")
            loaded.append(self._words_at(block, b, column, at, words, in_bounds))
        return loaded

    def _parameters(self, block: Block, b: int, column: Column, at: Expr) -> list[list[Expr]]:
        term, live = self._terms_of(block, at, block.let(self._places(self._own_group(), self._quad()), "own"), 0)
        index = [block.let(e, "i") for e in ix.delinearize(term, self._reduce, {})]
        return [[self._parameter(block, p, column, index, live) for p in self.bs[b][0].parameters]]

    def _terms(self, block: Block, at: Expr, read: Read) -> list[Expr]:
        """The pairs of each group."""
        pairs: list[Expr] = []
        for group in range(GROUPS):
            words = block.let(self._places(group, k.binary("xor", self._quad(), integer(2 * group))), "words")
            for pair in range(PAIRS):
                halves = (self._terms_of(block, at, words, part) for part in (pair, pair + PAIRS))
                low, high = (k.cast(k.bitcast(read(block, *terms), u16), u32) for terms in halves)
                high = k.binary("shl", high, k.lit(16, u32))
                pairs.append(block.let(k.spread(k.binary("or", low, high), self._tile), "x"))
        return pairs

    def _add(
        self, block: Block, levels: Levels, totals: Sequence[Buffer], words: Sequence[Sequence[Expr]],
        terms: Sequence[Expr], parameters: Sequence[Sequence[Sequence[Expr]]],
    ) -> None:  # fmt: skip
        assert isinstance(levels.zero.source, Lit)
        zero, own = int(levels.zero.source.value) + levels.bias, block.let(self._own_group(), "group")
        for first in range(0, len(totals), 2):
            columns = range(first, min(first + 2, len(totals)))
            for column in columns:
                results = [
                    k.quad_product(
                        (words[first][g], words[columns[-1]][g]), tuple(terms[g * PAIRS : (g + 1) * PAIRS]), self.dtype,
                        zero, column - first,
                    )
                    for g in range(GROUPS)
                ]  # fmt: skip
                value = results[-1]
                for group in range(GROUPS - 1):
                    value = k.select(k.binary("eq", own, integer(group)), results[group], value)
                ((_, scale),) = parameters[column]
                total = k.fma(*k.broadcast(value, k.cast(scale, f32), k.load(totals[column], ZERO)))
                block.store(totals[column], ZERO, total)

    def _row_of_sums(self, top: Block, totals: Sequence[Buffer]) -> Expr:
        return top.let(k.lane_sums(tuple(k.load(total, ZERO) for total in totals)), "sums")


__all__ = ["RowOfQuads", "fills_lanes", "has_quads"]
