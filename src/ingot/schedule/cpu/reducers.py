"""Accumulators in registers, into which the loops of a row group reduce its elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import nan

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.node import Node
from ingot.ir.types import DType, bf16, f16, f32, f64, i16, i32, i64
from ingot.ops import ArgReduce, Convert, Reduce
from ingot.ops.core.base import identity_of
from ingot.schedule.block import Block
from ingot.schedule.folds import accumulator, combining_op, is_same_value, takes_new
from ingot.schedule.row_box import reduction
from ingot.support.dataclass import dataclass


def operand_of(node: Node) -> Node:
    """The operand that a reduction folds: for an extremum of widened 16-bit floats, the 16-bit floats."""
    (x,) = node.inputs
    narrow = x.inputs[0] if isinstance(x.op, Convert) and x.dtype in (f32, f64) else x
    return narrow if is_extremum(node) and narrow.dtype in (f16, bf16) else x


def is_extremum(node: Node) -> bool:
    return isinstance(node.op, Reduce) and node.op.kind in ("max", "min")


def compares_as_words(node: Node) -> bool:
    """Whether a reduction can compare 16-bit floats as integers, in half as many registers (see `to_ordered_word`)."""
    return is_extremum(node) and operand_of(node).dtype in (f16, bf16)


def to_ordered_word(x: Expr, kind: str) -> Expr:
    """16-bit floats as i16 in the same order, -0 below +0, and NaN beyond the infinity that a "max" or "min" looks for:
    words are shifted by the number of NaN of one sign, so that these wrap around to those of the other."""
    return k.binary("sub" if kind == "max" else "add", _flip_negatives(k.bitcast(x, i16)), _nan_count(x.dtype, x.lanes))


def from_ordered_word(word: Expr, kind: str, dtype: DType) -> Expr:
    """The inverse of `to_ordered_word`."""
    return k.bitcast(
        _flip_negatives(k.binary("add" if kind == "max" else "sub", word, _nan_count(dtype, word.lanes))), dtype
    )


def _flip_negatives(bits: Expr) -> Expr:
    """Invert the magnitudes of negative numbers."""
    sign = k.binary("ashr", bits, k.lit(15, i16, bits.lanes))
    return k.binary("xor", bits, k.binary("and", sign, k.lit(0x7FFF, i16, bits.lanes)))


def _nan_count(dtype: DType, lanes: int) -> Expr:
    """The number of NaN of one sign."""
    return k.lit((1 << (7 if dtype == bf16 else 10)) - 1, i16, lanes)


@dataclass
class Reducer:
    """The accumulators of a reduction, `slots` vectors: values, and for arg reductions also their positions. narrow:
    the type of 16-bit floats that are folded as words, else None."""

    node: Node
    dtype: DType
    lanes: int
    slots: int
    value: Buffer
    position: Buffer | None
    narrow: DType | None = None

    @staticmethod
    def of(node: Node, block: Block, lanes: int, slots: int, words: bool = False) -> Reducer:
        """Allocate and initialize accumulators. words: fold 16-bit floats as words if possible."""
        operand = operand_of(node).dtype
        narrow = operand if words and compares_as_words(node) else None
        dtype = accumulator(operand) if narrow is None else i16
        value = block.alloc("acc", dtype, slots, lanes=lanes)
        position = None
        if isinstance(node.op, ArgReduce):
            extent = node.inputs[0].shape[node.op.dim]
            # i32 if possible: positions then have as many lanes as most values
            kind = i32 if isinstance(extent, int) and extent <= 1 << 31 else i64
            position = block.alloc("pos", kind, slots, lanes=lanes)
        start = identity_of(reduction(node).kind, dtype)
        for slot in range(slots):
            block.store(value, integer(slot), Lit(dtype, lanes, start))
            if position is not None:
                # the position of a lane in which every element equals the identity
                block.store(position, integer(slot), Lit(position.dtype, lanes, 0))
        return Reducer(node, dtype, lanes, slots, value, position, narrow)

    def _to_accumulator(self, value: Expr) -> Expr:
        """A value in the accumulator's type."""
        if self.narrow is None:
            return k.cast(value, self.dtype)
        return to_ordered_word(k.cast(value, self.narrow), reduction(self.node).kind)

    def _from_accumulator(self, folded: Expr) -> Expr:
        if self.narrow is None:
            return folded
        return k.cast(from_ordered_word(folded, reduction(self.node).kind, self.narrow), accumulator(self.narrow))

    def add(self, block: Block, value: Expr, at: Expr, mask: Expr | None, slot: int, width: int | None = None) -> None:
        """Fold one vector into a slot, in order of rising positions. width: the number of lanes of the vector; other
        lanes and masked-off lanes do not change."""
        value = self._to_accumulator(value)
        op, slot_index = reduction(self.node), integer(slot)
        kind = op.kind
        identity = identity_of(kind, self.dtype)
        if mask is not None:
            value = k.select(mask, value, Lit(self.dtype, mask.lanes, identity))
        if width is not None and width < self.lanes:
            pick = (*range(width), *(width,) * (self.lanes - width))
            value = k.Shuffle(self.dtype, self.lanes, k.splat(value, width), Lit(self.dtype, width, identity), pick)
        value = k.splat(value, self.lanes)
        old = block.let(k.load(self.value, slot_index), "o")
        if self.position is None:
            # the new value is the first operand: a maximum tests it for NaN without waiting for the old one
            block.store(self.value, slot_index, k.binary(combining_op(kind, self.dtype), value, old))
            return
        value = block.let(value)
        old_position = block.let(k.load(self.position, slot_index), "w")
        assert isinstance(op, ArgReduce)
        is_better = takes_new(op, value, old)
        if mask is not None:
            is_better = k.binary("and", is_better, mask)
        is_better = block.let(is_better, "t")
        block.store(self.value, slot_index, k.select(is_better, value, old))
        block.store(self.position, slot_index, k.select(is_better, _positions_like(at, old_position), old_position))

    def slot_results(self, block: Block) -> list[Expr]:
        """The result of each slot: its values or, for arg reductions, their positions."""
        return [
            self._from_accumulator(e)
            for e in self._load_slots(block, self.value if self.position is None else self.position)
        ]

    def result(self, block: Block) -> Expr:
        """The reduction of all slots and lanes to a scalar."""
        fn = combining_op(reduction(self.node).kind, self.dtype)
        values = self._load_slots(block, self.value)
        best = k.reduce(fn, _fold_pairwise(block, fn, values))
        if self.position is None:
            return self._from_accumulator(best)
        op = reduction(self.node)
        assert isinstance(op, ArgReduce)
        positions = self._load_slots(block, self.position)
        if self.slots == self.lanes == 1:
            return positions[0]
        # the first or last of the positions of the best value
        best = block.let(k.splat(best, self.lanes), "o")
        worst_position = -1 if op.last else self.position.dtype.range[1]
        no_position = Lit(self.position.dtype, self.lanes, worst_position)
        positions = [
            block.let(k.select(is_same_value(value, best), place, no_position), "w")
            for value, place in zip(values, positions, strict=True)
        ]
        fn = "max" if op.last else "min"
        return k.reduce(fn, _fold_pairwise(block, fn, positions))

    def vector(self, block: Block, lanes: int) -> Expr:
        """The reduction of all slots to a vector of `lanes`; not for arg reductions."""
        fn = combining_op(reduction(self.node).kind, self.dtype)
        folded = _fold_pairwise(block, fn, self._load_slots(block, self.value))
        while folded.lanes > lanes:
            half = folded.lanes // 2
            parts = (k.Shuffle(folded.dtype, half, folded, folded, tuple(range(i, i + half))) for i in (0, half))
            folded = block.let(k.binary(fn, *parts), "o")
        return self._from_accumulator(folded)

    def _load_slots(self, block: Block, buffer: Buffer) -> list[Expr]:
        return [block.let(k.load(buffer, integer(i)), "o") for i in range(self.slots)]


def reduce_into(block: Block, fn: str, old: Expr, values: Sequence[Expr]) -> Expr:
    """`old` folded with `values`. Extrema of floats test pairs of values for NaN, and preserve a NaN in `old`."""
    if fn not in ("max", "min") or not old.dtype.is_float:
        return reduce(lambda x, y: block.let(k.binary(fn, y, x)), values, old)
    num_fn = fn + "num"  # returns the second operand if either is NaN
    best = reduce(lambda x, y: k.binary(num_fn, y, x), values)
    has_nan = reduce(lambda x, y: k.binary("or", x, y), (k.binary("ne", v, v) for v in values))
    return block.let(k.select(has_nan, Lit(old.dtype, old.lanes, nan), k.binary(num_fn, best, old)))


def _fold_pairwise(block: Block, fn: str, values: list[Expr]) -> Expr:
    while len(values) > 1:
        values = [block.let(k.binary(fn, a, b), "o") for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _positions_like(positions: Expr, reference: Expr) -> Expr:
    """Positions in the type and lanes of `reference`; of a ramp only the base is converted."""
    if isinstance(positions, k.Ramp):
        return k.ramp(k.cast(positions.base, reference.dtype), positions.lanes, positions.step)
    return k.splat(k.cast(positions, reference.dtype), reference.lanes)


__all__ = ["Reducer", "compares_as_words", "operand_of", "reduce_into"]
