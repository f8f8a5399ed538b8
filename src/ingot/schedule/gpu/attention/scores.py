"""Tiles of an attention's operands and scores, which the forward pass and the gradients share."""

from __future__ import annotations

from math import inf, log

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ir.types import boolean, f32
from ingot.ops import Attention, PagedAttention
from ingot.ops.nn.attention import Trained
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
from ingot.schedule.gpu.blocks import Group, Span, power_of_two, read_at
from ingot.schedule.index import ZERO, dim_expr, integer, mask_and
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

MIN_TILE_SIDE = 16  # of tiles of products


@dataclass(frozen=True)
class Operand:
    buffer: Buffer
    layout: Layout

    def read(self, block: Block, index: Index, mask: Expr | None) -> Expr:
        """Read a tile where `mask` is true; zero elsewhere."""
        return read_at(block, self.buffer, ix.linear(index, self.layout.strides, self.layout.offset), mask)

    @staticmethod
    def of(group: Group, x: Node) -> Operand:
        """Raises CompileError if no strides express the operand."""
        index, layout = group.memory(x)
        return Operand(group.operands.ins[index], layout)


@dataclass(frozen=True)
class Scores:
    """The scores of the queries q[B,Hq,Sq,D] and keys k[B,Hk,Sk,D]. depth, width: the head size of queries and keys,
    and of values. is_narrow: whether weights are rounded to 16 bits, the type of the values."""

    op: Attention
    q: Node
    k: Node
    mask: Operand | None
    depth: int
    width: int
    is_narrow: bool

    @staticmethod
    def of(anchor: Node, group: Group) -> Scores:
        """Raises CompileError for a symbolic head size."""
        q, key, v = anchor.inputs[:3]
        depth, width = q.shape[3], v.shape[3]
        if not isinstance(depth, int) or not isinstance(width, int):
            raise CompileError("attention", expected="a static head size", got=f"{q.type} and {v.type}")
        op = anchor.op
        assert isinstance(op, Attention | Trained | PagedAttention)
        masks = () if isinstance(op, PagedAttention) else op.mask(anchor.inputs)
        op = op if isinstance(op, Attention) else op.forward
        operand: Operand | None = None
        for mask in masks:
            memory, shape = Operand.of(group, mask), (*q.shape[:3], key.shape[2])
            trailing_dims = tuple(range(4 - len(mask.shape), 4))
            operand = Operand(memory.buffer, memory.layout.broadcast(shape, trailing_dims))
        return Scores(op, q, key, operand, depth, width, q.dtype.bits == 16)

    @property
    def offset(self) -> DimLike:
        """Under a causal mask, query i attends to keys j <= i + offset."""
        return self.op.offset(self.q.shape[2], self.k.shape[2])

    @property
    def group_size(self) -> int:
        """Query heads that share a key head."""
        heads, key_heads = self.q.shape[1], self.k.shape[1]
        if heads == key_heads:
            return 1
        assert isinstance(heads, int) and isinstance(key_heads, int)
        return heads // key_heads

    @property
    def scales_in_exponent(self) -> bool:
        """Whether the exponential applies the scale: nothing is added to scores, and a positive scale keeps their
        maximum."""
        has_additive_mask = self.mask is not None and self.mask.buffer.dtype != boolean
        return self.is_narrow and not has_additive_mask and not self.op.softcap and self.op.scale > 0

    @property
    def exponent_unit(self) -> float:
        """The factor that turns scores into exponents of 2."""
        return (self.op.scale if self.scales_in_exponent else 1.0) / log(2)

    def key_end(self, top: Block, first: Expr, rows: int) -> Expr:
        """Return the end of the keys that are visible to the block of `rows` queries from `first` on."""
        keys = dim_expr(self.k.shape[2])
        if self.op.causal == "none":
            return keys
        end = k.add(k.add(first, integer(rows)), dim_expr(self.offset))
        return top.let(k.binary("max", k.binary("min", end, keys), ZERO), "end")

    def softcapped(self, s: Expr) -> Expr:
        if not self.op.softcap:
            return s
        return k.mul(ops.Tanh().scalar(k.mul(s, k.lit(1 / self.op.softcap, f32))), k.lit(self.op.softcap, f32))

    def masked(self, block: Block, s: Expr, index: Index, in_bounds: Expr | None) -> Expr:
        """Set the scores of keys that a query does not see, and those out of bounds, to minus infinity. index: (sample,
        head, query, key)."""
        is_visible = in_bounds
        *_, row, key = index
        if self.mask is not None:
            mask = self.mask.read(block, index, in_bounds)
            if mask.dtype == boolean:
                is_visible = mask_and(is_visible, mask)
            else:
                s = k.add(s, k.cast(mask, f32))
        if self.op.causal != "none":
            is_visible = mask_and(is_visible, k.binary("le", key, k.add(row, dim_expr(self.offset))))
        return s if is_visible is None else k.select(is_visible, s, k.lit(-inf, f32))


def head_span(block: Block, size: int, axis: int) -> Span:
    """Positions along a head of `size`, along an axis of a tile."""
    return Span.of(block, ZERO, max(MIN_TILE_SIDE, power_of_two(size)), size, axis)


__all__ = ["MIN_TILE_SIDE", "Operand", "Scores", "head_span"]
