"""Gradients of attention from the sums of exponentials that the forward pass kept (Dao, "FlashAttention-2", 2023,
algorithm 2). Scores are computed again on the chip, once by a block of queries and once by a block of keys, so that no
program adds to what another one writes:

    queries:  delta = sum(g * y)
              for keys in blocks:      p = exp(s - sums);  ds = p * (g @ v^T - delta) * scale;  dq += ds @ k
    keys:     for queries in blocks:   dv += p^T @ g;  dk += ds^T @ q
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf, log
from typing import ClassVar, Self

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.node import Node
from ingot.ir.types import f32
from ingot.ops import AttentionGradients
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.choice import Flash, Site
from ingot.schedule.gpu.attention.dropout import Dropout, Position
from ingot.schedule.gpu.attention.scores import MIN_TILE_SIDE, Operand, Scores, head_span
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    Group,
    Span,
    all_of,
    constant_tile,
    power_of_two,
    read_at,
    register,
    store_tile,
)
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.sites import decided, flash_site
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.support.dataclass import dataclass

LONG_BLOCK = 128  # of a program; below its double, blocks of half its size leave fewer rows empty
SHORT_HEAD_SIZE = 64
WIDE_SIDE = 32  # of tiles of f32, whose products are not those of tensor cores


def lower_attention_gradients(group: Group, machine: Machine) -> Lowered:
    """Lower an AttentionGradients that has y and sums. Raises CompileError for a symbolic head size."""
    anchor = next(n for n in group.body.nodes() if isinstance(n.op, AttentionGradients))
    return Gradients.of(anchor, group, machine).lower()


@dataclass
class Gradients:
    """inputs: q, k, v, g, y and sums. of_mask: whether gradients of scores are those of masked scores, not those of the
    products of queries and keys."""

    of_mask: ClassVar[bool] = False
    anchor: Node
    group: Group
    scores: Scores
    dropout: Dropout | None
    inputs: list[Operand]
    machine: Machine

    @classmethod
    def of(cls, anchor: Node, group: Group, machine: Machine) -> Self:
        inputs = [Operand.of(group, x) for x in anchor.inputs[:6]]
        return cls(anchor, group, Scores.of(anchor, group), Dropout.of(anchor, group), inputs, machine)

    @cached_property
    def site(self) -> Site:
        return flash_site(self.group.body, self.anchor, self._default_choice(), self._admits)

    @cached_property
    def choice(self) -> Flash:
        """Its `queries` are those, or the keys, of a program; its `keys` are those, or the queries, of an iteration."""
        return decided(self.site, self.machine, Flash)

    def _default_choice(self) -> Flash:
        rows, keys = (estimate(x.shape[2]) for x in self.anchor.inputs[:2])
        least = max(MIN_TILE_SIDE, power_of_two(min(rows, keys)))
        if self.anchor.inputs[0].dtype == f32:
            side = min(WIDE_SIDE, least)
            return Flash(side, side, 4, 1)
        is_long_head = max(self.scores.depth, self.scores.width) > SHORT_HEAD_SIZE
        is_long = is_long_head or min(rows, keys) >= 2 * LONG_BLOCK
        block = min(LONG_BLOCK if is_long else LONG_BLOCK // 2, least)
        step = min(32 if is_long_head else 64, least)
        return Flash(block, step, 8 if block == LONG_BLOCK else 4, 2)

    def _admits(self, c: Flash) -> bool:
        are_powers_of_two = all(n > 0 and n & n - 1 == 0 for n in (c.queries, c.keys, c.warps))
        fits = MIN_TILE_SIDE <= c.queries <= LONG_BLOCK and MIN_TILE_SIDE <= c.keys <= LONG_BLOCK
        heads = self.scores.depth + self.scores.width
        shared_elements = (c.queries + c.stages * c.keys) * heads + c.queries * c.keys
        fits = fits and shared_elements * self.anchor.inputs[0].dtype.nbytes <= self.machine.shared_bytes
        return are_powers_of_two and fits and c.warps <= 8 and 1 <= c.stages <= 4 and c.parts == 1

    def lower(self) -> Lowered:
        delta = Buffer("delta", f32, writable=True, align=ALIGNMENT_BYTES)
        size = product(self.anchor.inputs[0].shape[:3]) * f32.nbytes
        return Lowered((self._by_queries(delta), self._by_keys(delta)), (size,), site=self.site)

    def _by_queries(self, delta: Buffer) -> Step:
        """The kernel of dq, which also stores delta[B,Hq,Sq]."""
        top, chunk, (height, width) = Block(), k.var("chunk"), (self.choice.queries, self.choice.keys)
        batch, heads, count, _ = self.anchor.inputs[0].shape
        b, h, first, chunks = _place(top, chunk, (batch, heads, count), height)
        rows = Span.of(top, first, height, count, 0, wraps=True)
        key_head = h
        if self.scores.group_size > 1:
            key_head = top.let(k.binary("div", h, integer(self.scores.group_size)), "shared")
        q, g, y = (self._tile(top, i, (b, h), rows) for i in (0, 3, 4))
        change = top.let(k.reduce_axis("add", k.mul(k.cast(g, f32), k.cast(y, f32)), 1), "delta")
        store_tile(top, delta, self._row_offset(b, h, rows), change, rows.in_bounds)
        level = self.inputs[5].read(top, (b, h, rows.position), None)
        draws = self.dropout.keys(top, b, h) if self.dropout else None
        dq = register(top, "dq", constant_tile(f32, (height, head_span(top, self.scores.depth, 1).position.lanes)))

        def add_keys(block: Block, at: Expr) -> None:
            keys, own_keys = (Span.of(block, at, width, self.scores.k.shape[2], axis) for axis in (1, 0))
            key, v = (self._tile(block, i, (b, key_head), own_keys, own_keys.in_bounds) for i in (1, 2))
            s = self._product(block, q, k.transposed(key))
            index = b, h, rows.position, keys.position
            kept = self._kept(block, draws, (first, k.lane_indices(height, 0)), (at, k.lane_indices(width, 1)))
            _, ds = self._gradients(block, s, index, keys.in_bounds, level, change, kept, (g, k.transposed(v)))
            block.store(dq, ZERO, k.tile_product(k.cast(ds, key.dtype), key, k.load(dq, ZERO)))

        end = self.scores.key_end(top, first, height)
        top.loop("j", ZERO, end, width, add_keys, multiple=width)
        self._store(top, 0, k.load(dq, ZERO), (b, h), rows)
        return self._step("query_gradients", chunk, chunks, top, delta)

    def _by_keys(self, delta: Buffer) -> Step:
        """The kernel of dk and dv: a program adds up all query heads that share its key head."""
        top, chunk, (height, width) = Block(), k.var("chunk"), (self.choice.queries, self.choice.keys)
        batch, heads, count, _ = self.anchor.inputs[1].shape
        queries = self.anchor.inputs[0].shape[2]
        b, key_head, first, chunks = _place(top, chunk, (batch, heads, count), height)
        keys = Span.of(top, first, height, count, 0, wraps=True)
        key, v = (self._tile(top, i, (b, key_head), keys) for i in (1, 2))
        dk, dv = (
            register(top, hint, constant_tile(f32, (height, head_span(top, size, 1).position.lanes)))
            for hint, size in (("dk", self.scores.depth), ("dv", self.scores.width))
        )
        begin: Expr = ZERO
        if self.scores.op.causal != "none":  # queries before the first key see none of the block
            lowest = k.binary("max", k.sub(first, dim_expr(self.scores.offset)), ZERO)
            begin = top.let(k.mul(k.binary("div", lowest, integer(width)), integer(width)), "begin")

        def add_head(block: Block, member: Expr) -> None:
            h = key_head
            if self.scores.group_size > 1:
                h = block.let(k.add(k.mul(key_head, integer(self.scores.group_size)), member), "h")

            draws = self.dropout.keys(block, b, h) if self.dropout else None

            def add_queries(block: Block, at: Expr) -> None:
                rows, own_rows = (Span.of(block, at, width, queries, axis, wraps=True) for axis in (1, 0))
                q, g = (self._tile(block, i, (b, h), own_rows) for i in (0, 3))
                level = self.inputs[5].read(block, (b, h, rows.position), None)
                change = read_at(block, delta, self._row_offset(b, h, rows), None)
                s = self._product(block, key, k.transposed(q))
                index = b, h, rows.position, keys.position
                kept = self._kept(block, draws, (at, k.lane_indices(width, 1)), (first, k.lane_indices(height, 0)))
                p, ds = self._gradients(block, s, index, rows.in_bounds, level, change, kept, (v, k.transposed(g)))
                block.store(dv, ZERO, k.tile_product(k.cast(p, g.dtype), g, k.load(dv, ZERO)))
                block.store(dk, ZERO, k.tile_product(k.cast(ds, q.dtype), q, k.load(dk, ZERO)))

            block.loop("i", begin, dim_expr(queries), width, add_queries, multiple=width)

        top.loop("member", 0, self.scores.group_size, 1, add_head)
        dv_value = k.load(dv, ZERO)
        if self.dropout:
            dv_value = k.mul(dv_value, k.lit(self.dropout.op.share, f32))
        for i, total in ((1, k.load(dk, ZERO)), (2, dv_value)):
            self._store(top, i, total, (b, key_head), keys)
        return self._step("key_gradients", chunk, chunks, top, delta)

    def _tile(self, block: Block, i: int, entry: tuple[Expr, Expr], rows: Span, mask: Expr | None = None) -> Expr:
        """The rows of operand `i` of a sample and a head: [rows, head size]."""
        columns = head_span(block, self.scores.depth if i < 2 else self.scores.width, 1)
        mask = all_of(columns.in_bounds, mask)
        value = self.inputs[i].read(block, (*entry, rows.position, columns.position), mask)
        return block.let(k.spread(value, (rows.position.lanes, columns.position.lanes)), "tile")

    def _product(self, block: Block, a: Expr, b: Expr) -> Expr:
        assert a.tile is not None and b.tile is not None
        return block.let(k.tile_product(a, b, constant_tile(f32, (a.tile[0], b.tile[1]))), "product")

    def _kept(self, block: Block, draws: tuple[Expr, Expr] | None, query: Position, key: Position) -> Expr | None:
        """Whether dropout keeps each score of a tile; None: all are kept."""
        return self.dropout.kept(block, draws, query, key) if self.dropout and draws else None

    def _gradients(
        self,
        block: Block,
        s: Expr,
        index: tuple[Expr, Expr, Expr, Expr],
        in_bounds: Expr | None,
        level: Expr,
        change: Expr,
        kept: Expr | None,
        operands: tuple[Expr, Expr],
    ) -> tuple[Expr, Expr]:
        """The weights, of which dropout has not yet multiplied those that are kept, and the gradients of scores of a
        tile of unscaled products `s`. level, change: the queries' sums and deltas. kept: whether a score is kept.
        operands: those of the product that is the gradient of weights."""
        op = self.scores.op
        if not self.scores.scales_in_exponent:
            s = self.scores.softcapped(k.mul(s, k.lit(op.scale, f32)))
        capped = block.let(s, "s")
        s = self.scores.masked(block, capped, index, in_bounds)
        if self.scores.is_narrow:
            unit = k.lit(self.scores.exponent_unit, f32)
            exponent = k.fma(*k.broadcast(s, unit, k.mul(level, k.lit(-1 / log(2), f32))))
            p = k.call("exp2_narrow", exponent)
        else:
            p = k.call("exp_decay", k.binary("sub", s, level))
        if op.guarded:
            p = k.select(k.binary("eq", level, k.lit(inf, f32)), k.lit(0.0, f32), p)
        p = block.let(p, "p")
        dp = self._product(block, *operands)
        share, scale = self.dropout.op.share if self.dropout else 1.0, 1.0 if self.of_mask else op.scale
        zero = k.lit(0.0, f32)
        if kept is not None:
            dp = k.select(kept, dp, zero)
        ds = k.mul(p, k.fma(*k.broadcast(dp, k.lit(scale * share, f32), k.mul(change, k.lit(-scale, f32)))))
        if kept is not None:
            p = block.let(k.select(kept, p, zero), "kept")
        if op.softcap and not self.of_mask:
            capped_share = block.let(k.mul(capped, k.lit(1 / op.softcap, f32)), "share")
            ds = k.mul(ds, k.sub(k.lit(1.0, f32), k.mul(capped_share, capped_share)))
        return p, block.let(ds, "ds")

    def _row_offset(self, b: Expr, h: Expr, rows: Span) -> Expr:
        """The offset of a query's delta."""
        _, heads, count, _ = self.anchor.inputs[0].shape
        return k.add(k.mul(k.add(k.mul(b, dim_expr(heads)), h), dim_expr(count)), rows.position)

    def _store(self, block: Block, i: int, value: Expr, entry: tuple[Expr, Expr], rows: Span) -> None:
        """Store a tile of result `i`."""
        op = self.anchor.op
        assert isinstance(op, AttentionGradients)
        buffer, layout = self.group.operands.outs[i], self.group.outs[i]
        columns = head_span(block, self.scores.depth if i < 2 else self.scores.width, 1)
        b, h = entry
        index = (b, rows.position, h) if op.by_row else (b, h, rows.position)
        flat = ix.linear((*index, columns.position), layout.strides, layout.offset)
        store_tile(block, buffer, flat, k.cast(value, buffer.dtype), all_of(rows.in_bounds, columns.in_bounds))

    def _step(self, name: str, chunk: k.Var, chunks: DimLike, top: Block, delta: Buffer) -> Step:
        warps, stages = self.choice.warps, self.choice.stages
        return self.group.step(name, chunk, chunks, top, (delta, Arg("temp", 0)), warps=warps, stages=stages)


def _place(top: Block, chunk: Expr, sizes: Sequence[DimLike], height: int) -> tuple[Expr, Expr, Expr, DimLike]:
    """A program's sample, head and first row of blocks of `height`, and the number of programs."""
    batch, heads, count = sizes
    blocks = ceildiv(count, height)
    entry = top.let(k.binary("div", chunk, dim_expr(blocks)), "entry")
    b, h = (top.let(e, "i") for e in ix.delinearize(entry, (batch, heads), {}))
    first = top.let(k.mul(k.binary("rem", chunk, dim_expr(blocks)), integer(height)), "first")
    return b, h, first, batch * heads * blocks


__all__ = ["Gradients", "lower_attention_gradients"]
