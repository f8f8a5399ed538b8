"""What folding means, whatever the loops: the kernel operations of each kind, the types of running values, and which of
two values an arg reduction takes."""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.node import Node
from ingot.ir.types import DType, boolean, f32, i32, i64
from ingot.ops import ArgReduce

_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


def combining(kind: str, dtype: DType) -> str:
    """The kernel op that folds by `kind`: of two booleans the larger is either, the smaller both."""
    if dtype == boolean and kind in ("max", "min"):
        return "or" if kind == "max" else "and"
    return _COMBINE[kind]


def accumulator(dtype: DType) -> DType:
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def better(op: ArgReduce, value: Expr, old: Expr) -> Expr:
    """Whether `value`, whose position is the higher one, is what an arg reduction takes instead of `old`."""
    if op.last:
        found = k.binary("ge" if op.kind == "max" else "le", value, old)
        return k.binary("or", found, k.binary("ne", value, value)) if value.dtype.is_float else found
    if not value.dtype.is_float:
        return k.binary("gt" if op.kind == "max" else "lt", value, old)
    # greater or one of them NaN, and that not the old one
    worse = k.binary("le" if op.kind == "max" else "ge", value, old)
    return k.binary("and", k.unary("not", worse), k.binary("eq", old, old))


def same(a: Expr, b: Expr) -> Expr:
    """Whether two values are equal or both NaN."""
    same = k.binary("eq", a, b)
    if not a.dtype.is_float:
        return same
    return k.binary("or", same, k.binary("and", k.binary("ne", a, a), k.binary("ne", b, b)))


def accumulates(anchor: Node) -> DType:
    """The type of a contraction's sums."""
    if anchor.dtype.is_float:
        return accumulator(anchor.dtype)
    return i64 if anchor.dtype.bits == 64 else i32  # sums that wrap have the same bits, signed or not


__all__ = ["accumulates", "accumulator", "better", "combining", "same"]
