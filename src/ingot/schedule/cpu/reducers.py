"""Running reductions in registers: what the loops of a row group fold its elements into."""

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
from ingot.schedule.folds import accumulator, better, combining, same
from ingot.schedule.row_box import reduction
from ingot.support.dataclass import dataclass


def operand_of(node: Node) -> Node:
    """What a reduction folds: an extremum of widened 16-bit floats is that of the floats."""
    (x,) = node.inputs
    narrow = x.inputs[0] if isinstance(x.op, Convert) and x.dtype in (f32, f64) else x
    return narrow if is_extremum(node) and narrow.dtype in (f16, bf16) else x


def is_extremum(node: Node) -> bool:
    return isinstance(node.op, Reduce) and node.op.kind in ("max", "min")


def in_words(node: Node) -> bool:
    """Whether a reduction compares 16-bit floats, which integers do in half as many registers (`ordered`)."""
    return is_extremum(node) and operand_of(node).dtype in (f16, bf16)


def ordered(x: Expr, kind: str) -> Expr:
    """16-bit floats as i16 in the same order, -0 below +0, NaN of both signs past the infinity that a "max" or "min"
    looks for: so many further on that those of one sign wrap round to those of the other."""
    return k.binary("sub" if kind == "max" else "add", _flipped(k.bitcast(x, i16)), _nans(x.dtype, x.lanes))


def unordered(word: Expr, kind: str, dtype: DType) -> Expr:
    """The 16-bit floats that `ordered` made words of."""
    return k.bitcast(_flipped(k.binary("add" if kind == "max" else "sub", word, _nans(dtype, word.lanes))), dtype)


def _flipped(bits: Expr) -> Expr:
    """Magnitudes of negative numbers turned round."""
    sign = k.binary("ashr", bits, k.lit(15, i16, bits.lanes))
    return k.binary("xor", bits, k.binary("and", sign, k.lit(0x7FFF, i16, bits.lanes)))


def _nans(dtype: DType, lanes: int) -> Expr:
    """How many NaN of one sign there are."""
    return k.lit((1 << (7 if dtype == bf16 else 10)) - 1, i16, lanes)


@dataclass
class Reducer:
    """Running reductions in registers, `slots` of them side by side: values, and for arg reductions their positions.
    `narrow`: the type of 16-bit floats that are folded as words."""

    node: Node
    dtype: DType
    lanes: int
    slots: int
    value: Buffer
    position: Buffer | None
    narrow: DType | None = None

    @staticmethod
    def of(node: Node, block: Block, lanes: int, slots: int, words: bool = False) -> Reducer:
        """`words`: of 16-bit floats, if the reduction is `in_words`."""
        operand = operand_of(node).dtype
        narrow = operand if words and in_words(node) else None
        dtype = accumulator(operand) if narrow is None else i16
        value = block.alloc("acc", dtype, slots, lanes=lanes)
        position = None
        if isinstance(node.op, ArgReduce):
            extent = node.inputs[0].shape[node.op.dim]
            # as many lanes in a vector as the values have, mostly
            kind = i32 if isinstance(extent, int) and extent <= 1 << 31 else i64
            position = block.alloc("pos", kind, slots, lanes=lanes)
        start = identity_of(reduction(node).kind, dtype)
        for slot in range(slots):
            block.store(value, integer(slot), Lit(dtype, lanes, start))
            if position is not None:
                # every lane that holds nothing better than the identity
                block.store(position, integer(slot), Lit(position.dtype, lanes, 0))
        return Reducer(node, dtype, lanes, slots, value, position, narrow)

    def _taken(self, value: Expr) -> Expr:
        """`value` in the type of what is folded."""
        if self.narrow is None:
            return k.cast(value, self.dtype)
        return ordered(k.cast(value, self.narrow), reduction(self.node).kind)

    def _given(self, folded: Expr) -> Expr:
        if self.narrow is None:
            return folded
        return k.cast(unordered(folded, reduction(self.node).kind, self.narrow), accumulator(self.narrow))

    def add(self, block: Block, value: Expr, at: Expr, mask: Expr | None, slot: int, width: int | None = None) -> None:
        """Take in one vector; those of a slot come with rising positions. `width`: of so few lanes; the other ones
        change nothing, as those do that the mask has not."""
        value = self._taken(value)
        op, own = reduction(self.node), integer(slot)
        kind = op.kind
        nothing = identity_of(kind, self.dtype)
        if mask is not None:
            value = k.select(mask, value, Lit(self.dtype, mask.lanes, nothing))
        if width is not None and width < self.lanes:
            pick = (*range(width), *(width,) * (self.lanes - width))
            value = k.Shuffle(self.dtype, self.lanes, k.splat(value, width), Lit(self.dtype, width, nothing), pick)
        value = k.splat(value, self.lanes)
        old = block.let(k.load(self.value, own), "o")
        if self.position is None:
            # the new value first: it is what a maximum tests for NaN, which then does not wait for the sum so far
            block.store(self.value, own, k.binary(combining(kind, self.dtype), value, old))
            return
        value = block.let(value)
        where = block.let(k.load(self.position, own), "w")
        assert isinstance(op, ArgReduce)
        take = better(op, value, old)
        if mask is not None:
            take = k.binary("and", take, mask)
        take = block.let(take, "t")
        block.store(self.value, own, k.select(take, value, old))
        block.store(self.position, own, k.select(take, _narrowed(at, where), where))

    def apart(self, block: Block) -> list[Expr]:
        """What each slot folded: its values or, for arg reductions, their positions."""
        return [self._given(e) for e in self._loaded(block, self.value if self.position is None else self.position)]

    def result(self, block: Block) -> Expr:
        """What was folded by all slots and lanes together."""
        fn = combining(reduction(self.node).kind, self.dtype)
        values = self._loaded(block, self.value)
        best = k.reduce(fn, _folded(block, fn, values))
        if self.position is None:
            return self._given(best)
        op = reduction(self.node)
        assert isinstance(op, ArgReduce)
        places = self._loaded(block, self.position)
        if self.slots == self.lanes == 1:
            return places[0]
        # the first or last of the places where the best value is
        best = block.let(k.splat(best, self.lanes), "o")
        most = -1 if op.last else self.position.dtype.range[1]
        nowhere = Lit(self.position.dtype, self.lanes, most)
        places = [
            block.let(k.select(same(value, best), place, nowhere), "w")
            for value, place in zip(values, places, strict=True)
        ]
        fn = "max" if op.last else "min"
        return k.reduce(fn, _folded(block, fn, places))

    def vector(self, block: Block, lanes: int) -> Expr:
        """What was folded by all slots, in so many lanes; of no arg reduction."""
        fn = combining(reduction(self.node).kind, self.dtype)
        folded = _folded(block, fn, self._loaded(block, self.value))
        while folded.lanes > lanes:
            half = folded.lanes // 2
            parts = (k.Shuffle(folded.dtype, half, folded, folded, tuple(range(i, i + half))) for i in (0, half))
            folded = block.let(k.binary(fn, *parts), "o")
        return self._given(folded)

    def _loaded(self, block: Block, buffer: Buffer) -> list[Expr]:
        return [block.let(k.load(buffer, integer(i)), "o") for i in range(self.slots)]


def reduce_into(block: Block, fn: str, old: Expr, values: Sequence[Expr]) -> Expr:
    """`old` folded with `values`. Extrema of floats test two of them for NaN at once, and keep that of `old`."""
    if fn not in ("max", "min") or not old.dtype.is_float:
        return reduce(lambda x, y: block.let(k.binary(fn, y, x)), values, old)
    plain = fn + "num"  # the second operand where either is NaN
    best = reduce(lambda x, y: k.binary(plain, y, x), values)
    none = reduce(lambda x, y: k.binary("or", x, y), (k.binary("ne", v, v) for v in values))
    return block.let(k.select(none, Lit(old.dtype, old.lanes, nan), k.binary(plain, best, old)))


def _folded(block: Block, fn: str, values: list[Expr]) -> Expr:
    while len(values) > 1:
        values = [block.let(k.binary(fn, a, b), "o") for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _narrowed(at: Expr, like: Expr) -> Expr:
    """Positions as wide as `like`: of a ramp only the base has to be converted."""
    if isinstance(at, k.Ramp):
        return k.ramp(k.cast(at.base, like.dtype), at.lanes, at.step)
    return k.splat(k.cast(at, like.dtype), like.lanes)


__all__ = ["Reducer", "in_words", "operand_of", "reduce_into"]
