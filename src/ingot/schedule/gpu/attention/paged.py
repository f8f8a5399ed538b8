"""Attention of single rows to keys and values in pages: a program takes the query heads of a row that share a key head.

    page = tables[row, j / size];  k = pool[page, head, j % size]        for a tile of keys j < ends[row]

Lengths are read from memory, so that a launch depends on the number of rows alone. Each part of the keys is a share of
the row's own length: the order of its sums does not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, is_static
from ingot.ir.kernel import Expr
from ingot.ir.types import f32
from ingot.ops import PagedAttention
from ingot.schedule.block import Block
from ingot.schedule.choice import Flash as FlashChoice
from ingot.schedule.gpu.attention.flash import MAX_PARTS, Flash
from ingot.schedule.gpu.attention.scores import Operand
from ingot.schedule.gpu.blocks import Group, Span, all_of
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Lowered

OPEN_PARTS = 4  # of the keys, where the number of rows is symbolic: from one, with few programs, to hundreds


def lower_paged_attention(group: Group, machine: Machine) -> Lowered:
    """Lower a PagedAttention with its epilogue. Raises CompileError for a symbolic head size."""
    anchor = next(n for n in group.body.nodes() if isinstance(n.op, PagedAttention))
    return _Paged.of(anchor, group, machine).lower()


class _Paged(Flash):
    @property
    def op(self) -> PagedAttention:
        assert isinstance(self.anchor.op, PagedAttention)
        return self.anchor.op

    @cached_property
    def _tables(self) -> Operand:
        return Operand.of(self.group, self.anchor.inputs[-2])

    @cached_property
    def _ends(self) -> Operand:
        return Operand.of(self.group, self.anchor.inputs[-1])

    @cached_property
    def _scales(self) -> list[Operand]:
        return [Operand.of(self.group, x) for x in self.op.scales(self.anchor.inputs)]

    @property
    def _keys(self) -> DimLike:
        return self.op.key_count([x.type for x in self.anchor.inputs])

    def _default_choice(self) -> FlashChoice:
        choice = super()._default_choice()
        if is_static(self._query_shape):
            return choice
        return replace(choice, parts=min(OPEN_PARTS, self._max_parts(choice.keys)))

    def _max_parts(self, width: int) -> int:
        return min(-(-self._estimated_keys // width), MAX_PARTS) if isinstance(self._keys, int) else 1

    def _key_range(
        self, top: Block, b: Expr, first: Expr, part: Expr, parts: int
    ) -> tuple[Expr, Expr, Callable[[Expr], Expr]]:
        width = self.tile[1]
        length = self._ends.read(top, (b,), None)
        end = top.let(k.binary("min", length, dim_expr(self._keys)), "end")
        start: Expr = ZERO
        if self.op.window:
            start = top.let(k.binary("max", k.sub(length, integer(self.op.window)), ZERO), "start")

        def is_key(position: Expr) -> Expr:
            is_before_end = k.binary("lt", position, end)
            return k.binary("and", is_before_end, k.binary("ge", position, start)) if self.op.window else is_before_end

        begin = top.let(k.mul(k.binary("div", start, integer(width)), integer(width)), "begin")
        if parts == 1:
            return begin, end, is_key
        keys = k.binary("max", k.sub(end, begin), ZERO)
        tiles = k.binary("div", k.add(keys, integer(width * parts - 1)), integer(width * parts))
        share = top.let(k.mul(tiles, integer(width)), "share")
        begin = top.let(k.add(begin, k.mul(part, share)), "begin")
        return begin, top.let(k.binary("min", k.add(begin, share), end), "end"), is_key

    def _key_tile(self, block: Block, operand: int, b: Expr, key_head: Expr, keys: Span, columns: Span) -> Expr:
        page, slot = self._place(block, b, keys)
        index, mask = (page, key_head, slot, columns.position), all_of(columns.in_bounds, keys.in_bounds)
        tile, dtype = self.inputs[operand].read(block, index, mask), self.anchor.inputs[0].dtype
        return tile if tile.dtype == dtype else block.let(k.cast(k.cast(tile, f32), dtype), "wide")

    def _scaled(self, block: Block, x: Expr, operand: int, b: Expr, key_head: Expr, keys: Span) -> Expr:
        if not self._scales:
            return x
        page, slot = self._place(block, b, keys)
        return k.mul(*k.broadcast(x, self._scales[operand].read(block, (page, key_head, slot, ZERO), keys.in_bounds)))

    def _place(self, block: Block, b: Expr, keys: Span) -> tuple[Expr, Expr]:
        """(the pages of a tile's keys, their positions in these)."""
        pages, _, size, _ = self.anchor.inputs[1].shape
        number = block.let(k.binary("div", keys.position, dim_expr(size)), "number")
        slot = block.let(k.binary("rem", keys.position, dim_expr(size)), "slot")
        page = self._tables.read(block, (b, number), keys.in_bounds)
        page = k.binary("max", k.binary("min", page, dim_expr(pages - 1)), ZERO)
        return block.let(page, "page"), slot


__all__ = ["lower_paged_attention"]
