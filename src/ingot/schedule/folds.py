"""The semantics of reductions for all schedules: kernel ops, accumulator types, and the comparisons of arg
reductions."""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.node import Node
from ingot.ir.types import DType, boolean, f32, i32, i64
from ingot.ops import ArgReduce

_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


def combining_op(kind: str, dtype: DType) -> str:
    """The kernel op that reduces by `kind`. The maximum of booleans is their disjunction, the minimum the
    conjunction."""
    if dtype == boolean and kind in ("max", "min"):
        return "or" if kind == "max" else "and"
    return _COMBINE[kind]


def accumulator(dtype: DType) -> DType:
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def takes_new(op: ArgReduce, value: Expr, old: Expr) -> Expr:
    """Whether an arg reduction replaces `old` by `value`, whose index is higher."""
    if op.last:
        is_better = k.binary("ge" if op.kind == "max" else "le", value, old)
        return k.binary("or", is_better, k.binary("ne", value, value)) if value.dtype.is_float else is_better
    if not value.dtype.is_float:
        return k.binary("gt" if op.kind == "max" else "lt", value, old)
    # value is better or NaN, and old is not NaN
    is_worse = k.binary("le" if op.kind == "max" else "ge", value, old)
    return k.binary("and", k.unary("not", is_worse), k.binary("eq", old, old))


def is_same_value(a: Expr, b: Expr) -> Expr:
    """Whether two values are equal or both NaN."""
    equal = k.binary("eq", a, b)
    if not a.dtype.is_float:
        return equal
    return k.binary("or", equal, k.binary("and", k.binary("ne", a, a), k.binary("ne", b, b)))


def accumulator_of(anchor: Node) -> DType:
    """The accumulator type of a contraction."""
    if anchor.dtype.is_float:
        return accumulator(anchor.dtype)
    return i64 if anchor.dtype.bits == 64 else i32  # wrapping sums have the same bits, signed or not


__all__ = ["accumulator", "accumulator_of", "combining_op", "is_same_value", "takes_new"]
