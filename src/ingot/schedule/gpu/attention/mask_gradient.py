"""The gradient of a mask that attention adds to its scores, such as a trained bias of relative positions: the sum of
the gradients of scores over the samples and heads that share the mask.

    tile of the mask:  for sample, head in part:   p = exp(s - sums);  acc += p * (g @ v^T - sum(g * y))

If there are few tiles, what shares the mask is split into parts, one per program, and the last program to finish adds
their sums in order.
"""

from __future__ import annotations

from typing import ClassVar

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.types import f32, i64, static_shape
from ingot.ops import AttentionMaskGradient
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.gpu.attention.gradients import Gradients
from ingot.schedule.gpu.attention.scores import MIN_TILE_SIDE
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
    store_tile,
)
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import ZERO, integer
from ingot.schedule.lowered import Arg, Lowered
from ingot.support.dataclass import dataclass

MAX_SIDE, MAX_WIDE_SIDE = 64, 32  # of tiles; of those of f32
MAX_PARTS = 64


def lower_attention_mask_gradient(group: Group, machine: Machine) -> Lowered:
    """Lower an AttentionMaskGradient of static sizes, whose mask has all queries and keys."""
    anchor = next(n for n in group.body.nodes() if isinstance(n.op, AttentionMaskGradient))
    return _MaskGradient.of(anchor, group, machine).lower()


@dataclass
class _MaskGradient(Gradients):
    of_mask: ClassVar[bool] = True

    def lower(self) -> Lowered:
        batch, heads, rows, _ = static_shape(self.anchor.inputs[0].shape)
        keys = static_shape(self.anchor.inputs[1].shape)[2]
        shape = static_shape(self.anchor.shape)
        own_batch, own_heads = (1, 1, *shape)[-4:-2]
        shared_heads = heads // own_heads
        members = batch // own_batch * shared_heads
        limit = MAX_WIDE_SIDE if self.anchor.inputs[0].dtype == f32 else MAX_SIDE
        height, width = (max(MIN_TILE_SIDE, min(limit, power_of_two(n))) for n in (rows, keys))
        warps = 8 if height * width >= MAX_WIDE_SIDE**2 else 4
        blocks = own_batch, own_heads, -(-rows // height), -(-keys // width)
        tiles = blocks[0] * blocks[1] * blocks[2] * blocks[3]
        parts = max(1, min(2 * self.machine.processors // tiles, members, MAX_PARTS))
        part_members = -(-members // parts)

        top, chunk = Block(), k.var("chunk")
        tile = top.let(k.binary("rem", chunk, integer(tiles)), "own")
        part = top.let(k.binary("div", chunk, integer(tiles)), "number")
        sample, head, row_block, key_block = (top.let(e, "i") for e in ix.delinearize(tile, blocks, {}))
        first, first_key = k.mul(row_block, integer(height)), k.mul(key_block, integer(width))
        first, first_key = top.let(first, "first"), top.let(first_key, "first")
        row_span = Span.of(top, first, height, rows, 0, wraps=True)
        key_span, own_keys = (Span.of(top, first_key, width, keys, axis, wraps=True) for axis in (1, 0))
        total = register(top, "total", constant_tile(f32, (height, width)))

        def add(block: Block, member: Expr) -> None:
            b, h = (block.let(e, "i") for e in ix.delinearize(member, (members // shared_heads, shared_heads), {}))
            b, h = k.add(sample, b), k.add(head, h)
            key_head = h
            if self.scores.group_size > 1:
                key_head = block.let(k.binary("div", h, integer(self.scores.group_size)), "shared")
            q, g, y = (self._tile(block, i, (b, h), row_span) for i in (0, 3, 4))
            key, v = (self._tile(block, i, (b, key_head), own_keys) for i in (1, 2))
            change = block.let(k.reduce_axis("add", k.mul(k.cast(g, f32), k.cast(y, f32)), 1), "delta")
            level = self.inputs[5].read(block, (b, h, row_span.position), None)
            draws = self.dropout.keys(block, b, h) if self.dropout else None
            kept = self._kept(block, draws, (first, k.lane_indices(height, 0)), (first_key, k.lane_indices(width, 1)))
            s = self._product(block, q, k.transposed(key))
            index = b, h, row_span.position, key_span.position
            _, ds = self._gradients(block, s, index, None, level, change, kept, (g, k.transposed(v)))
            block.store(total, ZERO, k.add(k.load(total, ZERO), ds))

        begin = top.let(k.mul(part, integer(part_members)), "begin")
        end = top.let(k.binary("min", k.add(begin, integer(part_members)), integer(members)), "end")
        top.loop("member", begin, end, 1, add)

        def store(block: Block, value: Expr) -> None:
            buffer, layout = self.group.operands.outs[0], self.group.outs[0]
            index = (sample, head, row_span.position, key_span.position)[4 - len(shape) :]
            flat = ix.linear(index, layout.strides, layout.offset)
            store_tile(block, buffer, flat, k.cast(value, buffer.dtype), all_of(row_span.in_bounds, key_span.in_bounds))

        if parts == 1:
            store(top, k.load(total, ZERO))
            step = self.group.step("mask_gradient", chunk, tiles, top, warps=warps, stages=2)
            return Lowered((step,))
        sums = Buffer("sums", f32, writable=True, align=ALIGNMENT_BYTES)
        arrived = Buffer("arrived", i64, writable=True, align=ALIGNMENT_BYTES)
        size = height * width
        lanes = k.add(k.mul(k.lane_indices(height, 0), integer(width)), k.lane_indices(width, 1))

        def place(number: Expr) -> Expr:
            return k.add(k.mul(k.add(k.mul(number, integer(tiles)), tile), integer(size)), lanes)

        top.store(sums, place(part), k.load(total, ZERO))

        def last(block: Block) -> None:
            result = register(block, "result", constant_tile(f32, (height, width)))

            def add_part(inner: Block, number: Expr) -> None:
                inner.store(result, ZERO, k.add(k.load(result, ZERO), read_at(inner, sums, place(number), None)))

            block.loop("part", ZERO, integer(parts), 1, add_part)
            store(block, k.load(result, ZERO))

        if_last(top, parts, arrived, tile, last)
        extra = (sums, Arg("temp", 0)), (arrived, Arg("zeros", 0))
        step = self.group.step("mask_gradient", chunk, tiles * parts, top, *extra, warps=warps, stages=2)
        return Lowered((step,), (tiles * parts * size * f32.nbytes,), zeros=tiles * i64.nbytes)


__all__ = ["lower_attention_mask_gradient"]
