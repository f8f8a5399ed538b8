"""Attention without scores in memory (Dao et al., "FlashAttention-2", 2023): a program takes a block of queries of one
head and iterates over the keys.

    for keys in blocks:
        s = mask(q @ k^T * scale);  m' = max(m, s);  p = exp(s - m')
        l = l * exp(m - m') + sum(p);  acc = acc * exp(m - m') + p @ v;  m = m'
    out = acc / l

If weights are rounded to 16 bits, the scale moves into the exponent: p = 2^(fma(s, unit, -m' * unit)). If there are few
queries and many keys, the keys are split into parts, one per program, and the last program to finish combines the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import inf
from typing import NamedTuple, Self

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, floordiv, is_static
from ingot.ir.kernel import Buffer, Expr, Tile
from ingot.ir.node import Node
from ingot.ir.types import f32, i64
from ingot.ops import Attention, AttentionWithSums
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.choice import Flash as FlashChoice
from ingot.schedule.choice import Site
from ingot.schedule.gpu.attention.dropout import Dropout
from ingot.schedule.gpu.attention.scores import MIN_TILE_SIDE, Operand, Scores, head_span
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    Group,
    Span,
    all_of,
    constant_tile,
    if_last,
    power_of_two,
    read_at,
    register,
    write,
)
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.sites import decided, flash_site
from ingot.schedule.group_io import bind_result, result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered
from ingot.support.dataclass import dataclass

MIN_SPLIT_QUERIES = 32  # of a tile, down to which tiles shrink to get more programs
MAX_PARTS = 16
LONG_HEAD_SHARED_BYTES = 160 << 10  # that three stages of longer heads take
SHORT_HEAD_SIZE = 64  # up to which several programs of three stages fit on a multiprocessor


def lower_attention(group: Group, machine: Machine) -> Lowered:
    """Lower an Attention with its epilogue, or an AttentionWithSums. Raises CompileError for a symbolic head size."""
    anchor = next(n for n in group.body.nodes() if isinstance(n.op, Attention | AttentionWithSums))
    return Flash.of(anchor, group, machine).lower()


class _Sums(NamedTuple):
    """Over keys: the maximum score, the sum of exponentials relative to it, and the sum of values weighted by them."""

    maximum: Expr
    total: Expr
    acc: Expr


@dataclass
class Flash:
    """A group of an attention whose keys lie one after another."""

    anchor: Node
    group: Group
    scores: Scores
    dropout: Dropout | None
    inputs: list[Operand]
    machine: Machine

    @classmethod
    def of(cls, anchor: Node, group: Group, machine: Machine) -> Self:
        scores = Scores.of(anchor, group)
        inputs = [Operand.of(group, x) for x in anchor.inputs[:3]]
        return cls(anchor, group, scores, Dropout.of(anchor, group), inputs, machine)

    @cached_property
    def heads_per_tile(self) -> int:
        """The number of query heads in one tile: those of a key head, if they have few queries in all; else 1."""
        heads, rows, key_heads = (
            self.anchor.inputs[0].shape[1],
            self.anchor.inputs[0].shape[2],
            self.anchor.inputs[1].shape[1],
        )
        if not isinstance(heads, int) or not isinstance(key_heads, int) or not isinstance(rows, int):
            return 1
        return heads // key_heads if heads // key_heads * rows <= MIN_TILE_SIDE else 1

    @property
    def _query_shape(self) -> tuple[DimLike, DimLike, DimLike]:
        """The queries' batch, heads (or groups of heads), and queries per head or group."""
        batch, heads, rows, _ = self.anchor.inputs[0].shape
        if self.heads_per_tile == 1:
            return batch, heads, rows
        return batch, floordiv(heads, self.heads_per_tile), rows * self.heads_per_tile

    @cached_property
    def site(self) -> Site:
        return flash_site(self.group.body, self.anchor, self._default_choice(), self._admits)

    @cached_property
    def choice(self) -> FlashChoice:
        return decided(self.site, self.machine, FlashChoice)

    @property
    def tile(self) -> Tile:
        """Queries and keys of an iteration."""
        return self.choice.queries, self.choice.keys

    def _default_choice(self) -> FlashChoice:
        """Return the largest tile of queries that leaves a program for most multiprocessors."""
        batch, heads, rows = map(estimate, self._query_shape)
        is_long_head = self.anchor.inputs[0].dtype != f32 and SHORT_HEAD_SIZE < self.scores.depth <= 2 * SHORT_HEAD_SIZE
        height = 128 if is_long_head else 64
        height = max(MIN_TILE_SIDE, min(height, power_of_two(rows)))
        is_wide = self.anchor.inputs[0].dtype == f32  # without tensor cores, tiles of 64 keys do not fit in registers
        width = max(MIN_TILE_SIDE, min(32 if is_wide else 64, power_of_two(self._estimated_keys)))
        is_narrow = all(x.dtype.bits <= 16 for x in self.anchor.inputs[:3]) and self.scores.depth <= SHORT_HEAD_SIZE
        if is_narrow and rows > MIN_SPLIT_QUERIES and self._estimated_keys > MIN_SPLIT_QUERIES:
            # with many programs minimize padded keys, else iterations
            has_many_programs = batch * heads * -(-rows // height) > self.machine.processors
            width = min(
                (128, 64, MIN_SPLIT_QUERIES) if has_many_programs else (128, 64),
                key=lambda n: -(-self._estimated_keys // n) * n,
            )
        min_height = MIN_SPLIT_QUERIES if self._estimated_keys > width else MIN_TILE_SIDE
        while height > min_height and batch * heads * -(-rows // height) < 2 * self.machine.processors // 3:
            height //= 2
        programs = batch * heads * -(-rows // height)
        parts = max(1, min(self.machine.processors // max(1, programs), self._max_parts(width)))
        has_many_warps = height == 128 or (height == MIN_TILE_SIDE and is_narrow) or (height == 64 and is_wide)
        has_room = self.scores.depth <= SHORT_HEAD_SIZE or self.machine.shared_bytes >= LONG_HEAD_SHARED_BYTES
        return FlashChoice(height, width, 8 if has_many_warps else 4, 3 if has_room and not is_wide else 2, parts)

    @property
    def _keys(self) -> DimLike:
        """The number of keys, or an upper bound of it."""
        return self.anchor.inputs[1].shape[2]

    @property
    def _estimated_keys(self) -> int:
        return estimate(self._keys)

    def _max_parts(self, width: int) -> int:
        """The maximum number of parts of the keys, for tiles of `width`; keys of symbolic size are not split."""
        is_static_shape = isinstance(self._keys, int) and is_static(self._query_shape)
        return min(-(-self._estimated_keys // width), MAX_PARTS) if is_static_shape else 1

    def _admits(self, c: FlashChoice) -> bool:
        are_powers_of_two = all(n > 0 and n & n - 1 == 0 for n in (c.queries, c.keys, c.warps))
        fits = MIN_TILE_SIDE <= c.queries <= 128 and MIN_TILE_SIDE <= c.keys <= 128
        copied_elements = c.queries * self.scores.depth + c.stages * c.keys * (self.scores.depth + self.scores.width)
        fits = fits and copied_elements * self.anchor.inputs[0].dtype.nbytes <= self.machine.shared_bytes
        return (
            are_powers_of_two
            and fits
            and c.warps <= 8
            and 1 <= c.stages <= 4
            and 1 <= c.parts <= self._max_parts(c.keys)
        )

    def lower(self) -> Lowered:
        top, chunk = Block(), k.var("chunk")
        heads, key_heads = self.anchor.inputs[0].shape[1], self.anchor.inputs[1].shape[1]
        batch, groups, rows = self._query_shape
        height, _ = self.tile
        blocks = ceildiv(rows, height)
        tiles = batch * groups * blocks
        parts = self.choice.parts
        part = ZERO if parts == 1 else top.let(k.binary("div", chunk, dim_expr(tiles)), "number")
        tile = chunk if parts == 1 else top.let(k.binary("rem", chunk, dim_expr(tiles)), "own")
        query_block, entry = k.binary("rem", tile, dim_expr(blocks)), k.binary("div", tile, dim_expr(blocks))
        entry = top.let(entry, "entry")
        b, h = (top.let(e, "i") for e in ix.delinearize(entry, (batch, groups), {}))
        first = top.let(k.mul(query_block, integer(height)), "first")
        span = Span.of(top, first, height, rows, 0, wraps=True)
        key_head = h
        if self.heads_per_tile > 1:  # a group of heads shares a key head
            count = dim_expr(self.anchor.inputs[0].shape[2])
            group_head = top.let(k.binary("div", span.position, count), "inner")
            h = top.let(k.add(k.mul(h, integer(self.heads_per_tile)), group_head), "h")
            span = Span(top.let(k.sub(span.position, k.mul(group_head, count)), "row"), span.in_bounds)
        elif key_heads != heads:
            assert isinstance(heads, int) and isinstance(key_heads, int)
            key_head = top.let(k.binary("div", h, integer(heads // key_heads)), "shared")
        sums = self._sums(top, b, h, key_head, first, span, part, parts)
        place = b, h, span
        extra, temps, zeros = tuple[tuple[Buffer, Arg], ...](), tuple[DimLike, ...](), 0
        if parts == 1:
            self._finish(top, sums, place)
        else:
            buffers = [Buffer(n, f32, writable=True, align=ALIGNMENT_BYTES) for n in ("bests", "totals", "accs")]
            counter = Buffer("arrived", i64, writable=True, align=ALIGNMENT_BYTES)
            self._combine_parts(top, sums, place, buffers, (part, parts), (counter, tile, tiles))
            extra = *((x, Arg("temp", i)) for i, x in enumerate(buffers)), (counter, Arg("zeros", 0))
            temps = tuple(tiles * parts * lanes * f32.nbytes for lanes in (x.lanes for x in sums))
            zeros = tiles * i64.nbytes
        warps, stages = self.choice.warps, self.choice.stages
        step = self.group.step("attention", chunk, tiles * parts, top, *extra, warps=warps, stages=stages)
        return Lowered((step,), temps, site=self.site, zeros=zeros)

    def _combine_parts(
        self,
        top: Block,
        sums: _Sums,
        place: tuple[Expr, Expr, Span],
        buffers: list[Buffer],
        part: tuple[Expr, int],
        counter: tuple[Buffer, Expr, DimLike],
    ) -> None:
        """Store the sums of a part of the keys; the last program to finish combines all parts. part: (number, count).
        counter: (buffer, the tile's index, tile count) of the arrival counters."""
        (number, parts), (arrived, tile, tiles) = part, counter
        lanes = [_tile_offsets(x.tile or (1, 1)) for x in sums]

        def at(own_number: Expr, i: int) -> Expr:
            block = k.add(k.mul(own_number, dim_expr(tiles)), tile)
            return k.add(k.mul(block, integer(sums[i].lanes)), lanes[i])

        for i, (buffer, value) in enumerate(zip(buffers, sums, strict=True)):
            top.store(buffer, at(number, i), value)

        def last(block: Block) -> None:
            all_sums = [
                _Sums(*(read_at(block, x, at(integer(p), i), None) for i, x in enumerate(buffers)))
                for p in range(parts)
            ]
            best = all_sums[0].maximum
            for other in all_sums[1:]:
                best = block.let(k.binary("max", best, other.maximum), "best")
            level = block.let(_finite_maximum(best), "level")
            total: Expr | None = None
            acc: Expr | None = None
            for part_sums in all_sums:
                weight = block.let(self._weight(part_sums.maximum, level), "weight")
                weighted_total, weighted_acc = k.mul(part_sums.total, weight), k.mul(part_sums.acc, weight)
                total = block.let(weighted_total if total is None else k.add(total, weighted_total), "total")
                acc = block.let(weighted_acc if acc is None else k.add(acc, weighted_acc), "acc")
            assert total is not None and acc is not None
            self._finish(block, _Sums(best, total, acc), place)

        if_last(top, parts, arrived, tile, last)

    def _finish(self, block: Block, sums: _Sums, place: tuple[Expr, Expr, Span]) -> None:
        """Divide by the total and store the results of the epilogue."""
        empty = k.binary("eq", sums.total, k.lit(0.0, f32))
        total = k.select(empty, k.lit(1.0, f32), sums.total)
        kept_share = k.lit(1.0 if self.dropout is None else self.dropout.op.share, f32)
        if self.scores.is_narrow:  # one division per row
            value = k.mul(sums.acc, block.let(k.binary("div", kept_share, total), "share"))
        else:
            value = k.binary("div", sums.acc, total)
            value = value if self.dropout is None else k.mul(value, kept_share)
        if self.scores.op.guarded:
            value = k.select(k.binary("ne", sums.total, sums.total), k.lit(0.0, f32), value)
        em = self.group.emitter()
        value = block.let(k.cast(value, self.anchor.types[0].dtype), "result")
        columns = head_span(block, self.scores.width, 1)
        b, h, span = place
        if isinstance(self.anchor.op, AttentionWithSums):
            by_row = self.anchor.op.by_row
            indices = (
                (b, span.position, h, columns.position) if by_row else (b, h, span.position, columns.position),
                (b, h, span.position),
            )
            values, masks = (value, self._log_sum(block, sums)), (columns.in_bounds, None)
            for (root, buffer, layout), x, index, mask in zip(self.group.results, values, indices, masks, strict=True):
                bind_result(em, block, root, x)
                write(block, em, root, buffer, layout, index, mask, span.in_bounds)
            return
        bind_result(em, block, self.anchor, value)
        for root, buffer, layout in self.group.results:
            index = result_index(block, root, self.anchor, (b, h, span.position, columns.position))
            write(block, em, root, buffer, layout, index, columns.in_bounds, span.in_bounds)

    def _log_sum(self, block: Block, sums: _Sums) -> Expr:
        """The logarithm of the sum of exponentials of scores; plus infinity for queries that give 0."""
        level = _finite_maximum(sums.maximum)
        if self.scores.scales_in_exponent:
            level = k.mul(level, k.lit(self.scores.op.scale, f32))
        is_zero = k.binary("eq", sums.total, k.lit(0.0, f32))
        if self.scores.op.guarded:
            is_zero = k.binary("or", is_zero, k.binary("ne", sums.total, sums.total))
        total = block.let(k.call("log", sums.total), "log")
        return block.let(k.select(is_zero, k.lit(inf, f32), k.add(level, total)), "log_sum")

    def _sums(
        self, top: Block, b: Expr, h: Expr, key_head: Expr, first: Expr, span: Span, part: Expr, parts: int
    ) -> _Sums:
        """Return the sums of a tile of queries over the keys of one part."""
        (height, width), out_width = self.tile, max(MIN_TILE_SIDE, power_of_two(self.scores.width))
        depth_columns, depth_rows = head_span(top, self.scores.depth, 1), head_span(top, self.scores.depth, 0)
        q = self.inputs[0].read(top, (b, h, span.position, depth_columns.position), depth_columns.in_bounds)
        q = k.spread(q, (height, depth_columns.position.lanes))
        best = register(top, "best", constant_tile(f32, (height, 1), -inf))
        total = register(top, "total", constant_tile(f32, (height, 1)))
        acc = register(top, "acc", constant_tile(f32, (height, out_width)))
        begin, end, is_key = self._key_range(top, b, first, part, parts)
        dropout = self.dropout
        draws = dropout.keys(top, b, h) if dropout else None
        query_place = (first, k.lane_indices(height, 0)) if self.heads_per_tile == 1 else (ZERO, span.position)

        def loop_body(block: Block, at: Expr) -> None:
            keys = self._key_span(block, at, 1, is_key)
            kt = self._key_tile(block, 1, b, key_head, keys, depth_rows)
            kt = k.spread(kt, (depth_rows.position.lanes, width))
            s = block.let(k.tile_product(q, kt, k.spread(k.lit(0.0, f32), (height, width))), "s")
            s = self._scaled(block, s, 0, b, key_head, keys)
            s = (
                s
                if self.scores.scales_in_exponent
                else self.scores.softcapped(k.mul(s, k.lit(self.scores.op.scale, f32)))
            )
            s = self.scores.masked(block, s, (b, h, span.position, keys.position), keys.in_bounds)
            s = block.let(s, "s")
            old = block.let(k.load(best, ZERO), "o")
            new = block.let(k.binary("max", old, k.reduce_axis("max", s, 1)), "m")
            level = block.let(_finite_maximum(new), "level")
            p = block.let(self._weight(s, level), "p")
            rescale = block.let(self._weight(old, level), "kept")
            block.store(best, ZERO, new)
            block.store(total, ZERO, k.fma(k.load(total, ZERO), rescale, k.reduce_axis("add", p, 1)))
            if dropout and draws:
                kept = dropout.kept(block, draws, query_place, (at, k.lane_indices(width, 1)))
                p = block.let(k.select(kept, p, k.lit(0.0, f32)), "kept")
            key_rows = self._key_span(block, at, 0, is_key)
            value_columns = head_span(block, self.scores.width, 1)
            v = self._key_tile(block, 2, b, key_head, key_rows, value_columns)
            v = k.spread(v, (width, out_width))
            scaled = k.mul(k.load(acc, ZERO), rescale)
            p = self._scaled(block, p, 1, b, key_head, keys)
            block.store(acc, ZERO, k.tile_product(k.cast(p, v.dtype), v, scaled))

        top.loop("j", begin, end, width, loop_body, multiple=width)
        return _Sums(*(top.let(k.load(x, ZERO), "sums") for x in (best, total, acc)))

    # --- keys

    def _key_range(
        self, top: Block, b: Expr, first: Expr, part: Expr, parts: int
    ) -> tuple[Expr, Expr, Callable[[Expr], Expr] | None]:
        """(the first key of a part, a multiple of the tile's keys; its end; whether a position within is that of a key,
        None: all in bounds are)."""
        height, width = self.tile
        begin, end = ZERO, self.scores.key_end(top, first, height)
        if parts > 1:
            length = -(-self._estimated_keys // (width * parts)) * width
            begin = top.let(k.mul(part, integer(length)), "begin")
            end = top.let(k.binary("min", k.add(begin, integer(length)), end), "end")
        return begin, end, None

    def _key_span(self, block: Block, at: Expr, axis: int, is_key: Callable[[Expr], Expr] | None) -> Span:
        """The positions of a tile's keys, from `at` on, along an axis."""
        if is_key is None:
            return Span.of(block, at, self.tile[1], self._keys, axis)
        position = block.let(k.add(at, k.lane_indices(self.tile[1], axis)), "at")
        return Span(position, block.let(is_key(position), "live"))

    def _key_tile(self, block: Block, operand: int, b: Expr, key_head: Expr, keys: Span, columns: Span) -> Expr:
        """A tile of keys (operand 1) or values (operand 2)."""
        masks = (columns.in_bounds, keys.in_bounds) if operand == 1 else (keys.in_bounds, columns.in_bounds)
        return self.inputs[operand].read(block, (b, key_head, keys.position, columns.position), all_of(*masks))

    def _scaled(self, block: Block, x: Expr, operand: int, b: Expr, key_head: Expr, keys: Span) -> Expr:
        """The products with keys (operand 0), or the weights of values (operand 1), times the scales of these."""
        return x

    def _weight(self, score: Expr, level: Expr) -> Expr:
        """Return the exponential of a score relative to `level`. `level` is multiplied separately, so that its rounding
        error is the same in all weights."""
        if not self.scores.is_narrow:
            return k.call("exp_decay", k.binary("sub", score, level))
        unit = k.lit(self.scores.exponent_unit, f32)
        score, factor, offset = k.broadcast(score, unit, k.mul(level, k.lit(-unit.value, f32)))
        return k.call("exp2_narrow", k.fma(score, factor, offset))


def _finite_maximum(best: Expr) -> Expr:
    """The level to subtract from scores: the maximum, or 0 if no key is visible."""
    return k.select(k.binary("eq", best, k.lit(-inf, f32)), k.lit(0.0, f32), best)


def _tile_offsets(tile: Tile) -> Expr:
    """The row-major offsets of a tile's elements."""
    rows = k.mul(k.lane_indices(tile[0], 0), integer(tile[1]))
    return rows if tile[1] == 1 else k.add(rows, k.lane_indices(tile[1], 1))


__all__ = ["MAX_PARTS", "Flash", "lower_attention"]
