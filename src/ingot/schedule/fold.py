"""Running reductions in registers: what the loops of a row group fold its elements into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import nan

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Lit, integer
from ingot.ir.node import Node
from ingot.ir.types import DType, bf16, boolean, f16, f32, i32, i64
from ingot.ops import ArgReduce, Reduce
from ingot.ops.core.base import identity_of
from ingot.schedule.block import Block

_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


def combining(kind: str, dtype: DType) -> str:
    """The kernel op that folds by `kind`: of two booleans the larger is either, the smaller both."""
    if dtype == boolean and kind in ("max", "min"):
        return "or" if kind == "max" else "and"
    return _COMBINE[kind]


def reduction(node: Node) -> Reduce | ArgReduce:
    op = node.op
    assert isinstance(op, Reduce | ArgReduce)
    return op


def accumulator(dtype: DType) -> DType:
    return f32 if dtype in (f16, bf16) else dtype


@dataclass
class Fold:
    """Running reductions in registers, `slots` of them side by side: values, and for arg reductions their positions."""

    node: Node
    dtype: DType
    lanes: int
    slots: int
    value: Buffer
    position: Buffer | None

    @staticmethod
    def of(node: Node, block: Block, lanes: int, slots: int) -> Fold:
        operand = node.inputs[0].dtype
        dtype = accumulator(operand)
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
        return Fold(node, dtype, lanes, slots, value, position)

    def alone(self, value: Expr) -> Expr:
        """A scalar as a vector that changes nothing in its other lanes."""
        value = k.cast(value, self.dtype)
        rest = Lit(self.dtype, 1, identity_of(reduction(self.node).kind, self.dtype))
        return k.Shuffle(self.dtype, self.lanes, value, rest, (0, *(1,) * (self.lanes - 1)))

    def add(self, block: Block, value: Expr, at: Expr, mask: Expr | None, slot: int) -> None:
        """Take in one vector; those of a slot come with rising positions."""
        value = k.splat(k.cast(value, self.dtype), self.lanes)
        op, own = reduction(self.node), integer(slot)
        kind = op.kind
        if mask is not None:
            value = k.select(mask, value, Lit(self.dtype, self.lanes, identity_of(kind, self.dtype)))
        old = block.let(k.load(self.value, own), "o")
        if self.position is None:
            # the new value first: it is what a maximum tests for NaN, which then does not wait for the sum so far
            block.store(self.value, own, k.binary(combining(kind, self.dtype), value, old))
            return
        value = block.let(value)
        where = block.let(k.load(self.position, own), "w")
        take = self._better(value, old)
        if mask is not None:
            take = k.binary("and", take, mask)
        take = block.let(take, "t")
        block.store(self.value, own, k.select(take, value, old))
        block.store(self.position, own, k.select(take, _narrowed(at, where), where))

    def _better(self, value: Expr, old: Expr) -> Expr:
        """Whether `value`, whose position is the higher one, is what an arg reduction takes instead of `old`."""
        op = reduction(self.node)
        assert isinstance(op, ArgReduce)
        if op.last:
            better = k.binary("ge" if op.kind == "max" else "le", value, old)
            return k.binary("or", better, k.binary("ne", value, value)) if self.dtype.is_float else better
        if not self.dtype.is_float:
            return k.binary("gt" if op.kind == "max" else "lt", value, old)
        # greater or one of them NaN, and that not the old one
        worse = k.binary("le" if op.kind == "max" else "ge", value, old)
        return k.binary("and", k.unary("not", worse), k.binary("eq", old, old))

    def apart(self, block: Block) -> list[Expr]:
        """What each slot folded: its values or, for arg reductions, their positions."""
        return self._loaded(block, self.value if self.position is None else self.position)

    def result(self, block: Block) -> Expr:
        """What was folded by all slots and lanes together."""
        fn = combining(reduction(self.node).kind, self.dtype)
        values = self._loaded(block, self.value)
        best = k.reduce(fn, _folded(block, fn, values))
        if self.position is None:
            return best
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
            block.let(k.select(_same(value, best), place, nowhere), "w")
            for value, place in zip(values, places, strict=True)
        ]
        fn = "max" if op.last else "min"
        return k.reduce(fn, _folded(block, fn, places))

    def vector(self, block: Block) -> Expr:
        """What was folded by all slots, lane by lane; of no arg reduction."""
        return _folded(block, combining(reduction(self.node).kind, self.dtype), self._loaded(block, self.value))

    def _loaded(self, block: Block, buffer: Buffer) -> list[Expr]:
        return [block.let(k.load(buffer, integer(i)), "o") for i in range(self.slots)]


def fold_into(block: Block, fn: str, old: Expr, values: Sequence[Expr]) -> Expr:
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


def _same(a: Expr, b: Expr) -> Expr:
    """Whether two values are equal or both NaN."""
    same = k.binary("eq", a, b)
    if not a.dtype.is_float:
        return same
    return k.binary("or", same, k.binary("and", k.binary("ne", a, a), k.binary("ne", b, b)))


def _narrowed(at: Expr, like: Expr) -> Expr:
    """Positions as wide as `like`: of a ramp only the base has to be converted."""
    if isinstance(at, k.Ramp):
        return k.ramp(k.cast(at.base, like.dtype), at.lanes, at.step)
    return k.splat(k.cast(at, like.dtype), like.lanes)


__all__ = ["Fold", "accumulator", "combining", "fold_into", "reduction"]
