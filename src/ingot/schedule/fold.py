"""Running reductions in registers: what the loops of a row group fold its elements into."""

from __future__ import annotations

from dataclasses import dataclass

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
                block.store(position, integer(slot), Lit(position.dtype, lanes, -1))
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
        assert isinstance(op, ArgReduce)
        # the first element, a better one, or a NaN where there was none so far
        value = block.let(value)
        where = block.let(k.load(self.position, own), "w")
        better = "gt" if kind == "max" else "lt"
        if op.last:
            better = "ge" if kind == "max" else "le"
        take = k.binary("or", k.binary(better, value, old), k.binary("lt", where, Lit(where.dtype, self.lanes, 0)))
        if self.dtype.is_float:
            is_nan, was_nan = k.binary("ne", value, value), k.binary("ne", old, old)
            fresh = k.binary("eq", was_nan, Lit(boolean, self.lanes, False))
            also = is_nan if op.last else k.binary("and", is_nan, fresh)
            take = k.binary("or", k.binary("and", take, fresh), also)
        if mask is not None:
            take = k.binary("and", take, mask)
        take = block.let(take, "t")
        block.store(self.value, own, k.select(take, value, old))
        block.store(self.position, own, k.select(take, _narrowed(at, where), where))

    def result(self, block: Block, horizontal: bool) -> Expr:
        values = [block.let(k.load(self.value, integer(i)), "o") for i in range(self.slots)]
        if self.position is None:
            fn = combining(reduction(self.node).kind, self.dtype)
            while len(values) > 1:
                values = [block.let(k.binary(fn, a, b), "o") for a, b in zip(values[::2], values[1::2], strict=True)]
            return k.reduce(fn, values[0]) if horizontal else values[0]
        places = [block.let(k.load(self.position, integer(i)), "w") for i in range(self.slots)]
        found = list(zip(values, places, strict=True))
        if horizontal and self.lanes > 1:
            found = [
                (block.let(k.Extract(v.dtype, 1, v, i), "o"), block.let(k.Extract(w.dtype, 1, w, i), "w"))
                for v, w in found
                for i in range(self.lanes)
            ]
        while len(found) > 1:
            odd = found[-1:] if len(found) % 2 else []
            pairs = zip(found[::2], found[1::2], strict=False)
            found = [self._better(block, a, b) for a, b in pairs] + odd
        return found[0][1]

    def _better(self, block: Block, a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
        """Which of two (value, position) an arg reduction takes; a position below 0 is none."""
        op = reduction(self.node)
        assert isinstance(op, ArgReduce)
        (x, i), (y, j) = a, b
        zero = Lit(i.dtype, i.lanes, 0)
        sooner = k.binary("gt" if op.last else "lt", j, i)
        more = k.binary("gt" if op.kind == "max" else "lt", y, x)
        take = k.binary("or", more, k.binary("and", k.binary("eq", x, y), sooner))
        if self.dtype.is_float:
            no = Lit(boolean, i.lanes, False)
            x_nan, y_nan = k.binary("ne", x, x), k.binary("ne", y, y)
            clean = k.binary("eq", x_nan, no)
            take = k.binary("or", k.binary("and", take, clean), k.binary("and", y_nan, k.binary("or", clean, sooner)))
        take = k.binary("and", k.binary("or", take, k.binary("lt", i, zero)), k.binary("ge", j, zero))
        take = block.let(take, "t")
        return block.let(k.select(take, y, x), "o"), block.let(k.select(take, j, i), "w")


def _narrowed(at: Expr, like: Expr) -> Expr:
    """Positions as wide as `like`: of a ramp only the base has to be converted."""
    if isinstance(at, k.Ramp):
        return k.ramp(k.cast(at.base, like.dtype), at.lanes, at.step)
    return k.splat(k.cast(at, like.dtype), like.lanes)


__all__ = ["Fold", "accumulator", "combining", "reduction"]
