"""Comparisons, logic, bits and predicates."""

from __future__ import annotations

import math
from collections.abc import Callable

from ingot import ops
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.elementwise import compare, is_true
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    Operand,
    aligned,
    cast,
    float_type,
    i64,
    promoted,
    result_type,
    scalar_like,
)
from ingot.ir.node import Graph, Input, Node, Op
from ingot.ir.types import DTYPES

aten = Table()

Make = Callable[[], Op]


_COMPARISONS = {
    "eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE", "not_equal": "NE", "less": "LT",
    "less_equal": "LE", "greater": "GT", "greater_equal": "GE",
}  # fmt: skip


def _comparison(direction: str) -> Callable[[Context, Operand, Operand], Node]:
    def comparison(c: Context, a: Operand, b: Operand) -> Node:
        return ops.Compare(direction)(*aligned((a, b)))

    return comparison


for _name, _direction in _COMPARISONS.items():
    aten.add(f"{_name}.Tensor", _comparison(_direction))
    aten.add(f"{_name}.Scalar", _comparison(_direction))


def _bitwise(make: Make) -> Callable[[Context, Operand, Operand], Node]:
    def bitwise(c: Context, a: Operand, b: Operand) -> Node:
        return make()(*aligned((a, b), c.dtype))

    return bitwise


def _logical(make: Make) -> Callable[[Context, Node, Node], Node]:
    def logical(c: Context, a: Node, b: Node) -> Node:
        return make()(*aligned((is_true(a), is_true(b))))

    return logical


aten.add("logical_and.default", _logical(ops.And))
aten.add("logical_or.default", _logical(ops.Or))
aten.add("logical_xor.default", _logical(ops.Xor))


@aten("logical_not.default")
def logical_not(c: Context, x: Node) -> Node:
    return ops.Not()(is_true(x))


for _names, _make in {
    ("bitwise_and", "__and__"): ops.And,
    ("bitwise_or", "__or__"): ops.Or,
    ("bitwise_xor", "__xor__"): ops.Xor,
}.items():
    for _name in _names:
        for _overload in ("Tensor", "Scalar"):
            aten.add(f"{_name}.{_overload}", _bitwise(_make))


@aten("bitwise_not.default")
def bitwise_not(c: Context, x: Node) -> Node:
    return ops.Not()(x)


for _names, _make in {("bitwise_left_shift", "__lshift__"): ops.ShiftLeft}.items():
    for _name in _names:
        for _overload in ("Tensor", "Scalar") if _name.startswith("__") else ("Tensor", "Tensor_Scalar"):
            aten.add(f"{_name}.{_overload}", _bitwise(_make))


@aten("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Tensor", "__rshift__.Scalar")
def shift_right(c: Context, a: Operand, b: Operand) -> Node:
    a_, b_ = aligned((a, b), c.dtype)
    return (ops.ShiftRightLogical() if a_.dtype.kind == "u" else ops.ShiftRightArithmetic())(a_, b_)


@aten("isnan.default")
def isnan(c: Context, x: Node) -> Node:
    return ops.IsNan()(x) if x.dtype.is_float else compare("NE", x, x)


@aten("isfinite.default")
def isfinite(c: Context, x: Node) -> Node:
    return ops.IsFinite()(x) if x.dtype.is_float else compare("EQ", x, x)


@aten("isinf.default")
def isinf(c: Context, x: Node) -> Node:
    if not x.dtype.is_float:
        return compare("NE", x, x)
    return compare("EQ", ops.Abs()(x), scalar_like(math.inf, x))


@aten("isposinf.default")
def isposinf(c: Context, x: Node) -> Node:
    return compare("EQ", x, scalar_like(math.inf, x)) if x.dtype.is_float else compare("NE", x, x)


@aten("isneginf.default")
def isneginf(c: Context, x: Node) -> Node:
    return compare("EQ", x, scalar_like(-math.inf, x)) if x.dtype.is_float else compare("NE", x, x)


@aten("isclose.default")
def isclose(c: Context, a: Node, b: Node, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Node:
    a, b = aligned((a, b))
    is_equal = ops.Compare("EQ")(a, b)
    if equal_nan and a.dtype.is_float:
        is_equal = ops.Or()(is_equal, ops.And()(ops.IsNan()(a), ops.IsNan()(b)))
    dtype = float_type((a, b))
    fa, fb = cast(a, dtype), cast(b, dtype)
    allowed = ops.Add()(*aligned((ops.Mul()(*aligned((ops.Abs()(fb), rtol), dtype)), atol), dtype))
    error = ops.Abs()(ops.Sub()(fa, fb))
    return ops.Or()(is_equal, ops.And()(ops.IsFinite()(error), ops.Compare("LE")(error, allowed)))


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    c: Context, x: Operand, boundaries: Node, *, out_int32: bool = False, right: bool = False
) -> Node:  # fmt: skip
    return _places(c, boundaries, x, right)


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    c: Context, boundaries: Node, x: Operand, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Node | None = None,
) -> Node:  # fmt: skip
    if sorter is not None:
        boundaries = ops.GatherElements(boundaries.type.rank - 1)(boundaries, sorter)
    return _places(c, boundaries, x, right or side == "right")


def _places(c: Context, boundaries: Node, x: Operand, counts_equal: bool) -> Node:
    """For each value of x, the number of elements in the row of `boundaries` (a single row, or one per row of `x`) that
    are below it, or equal with `counts_equal`; for NaN, all."""
    edges, values = promoted((boundaries, x), result_type((boundaries, x)))
    if boundaries.type.rank > 1:
        edges = ops.expand_dims(edges, -2)
    values = ops.expand_dims(values, -1)
    is_below = compare("LE" if counts_equal else "LT", edges, values)
    if values.dtype.is_float:
        is_below = ops.Or()(*aligned((is_below, ops.IsNan()(values))))
    return cast(ops.Reduce("sum", (is_below.type.rank - 1,))(cast(is_below, i64)), c.dtype)


def _greatest_divisor(a: Node, b: Node) -> Node:
    """Euclid's algorithm on all elements at once, for as many steps as the slowest of them needs."""
    x, y = (Input(name, a.type)() for name in ("a", "b"))
    zero = filled(y.shape, 0, y.dtype)
    is_done = ops.Compare("EQ")(y, zero)
    is_going = ops.Reduce("or", tuple(range(y.type.rank)))(ops.Not()(is_done)) if y.type.rank else ops.Not()(is_done)
    remainder = ops.Rem()(x, ops.Select()(is_done, filled(y.shape, 1, y.dtype), y))
    ends = ops.Select()(is_done, x, y), ops.Select()(is_done, zero, remainder)
    return ops.While(Graph((x, y), (is_going,)), Graph((x, y), ends))(ops.Abs()(b), ops.Abs()(a)).results[0]


@aten("gcd.default")
def gcd(c: Context, a: Node, b: Node) -> Node:
    return _greatest_divisor(*aligned((a, b), c.dtype))


@aten("lcm.default")
def lcm(c: Context, a: Node, b: Node) -> Node:
    a, b = aligned((a, b), c.dtype if c.dtype.bits > 16 else DTYPES["i32"])  # C multiplies in int
    divisor = _greatest_divisor(a, b)
    is_zero = ops.Compare("EQ")(divisor, filled(a.shape, 0, a.dtype))
    parts = ops.Div()(a, ops.Select()(is_zero, filled(a.shape, 1, a.dtype), divisor))
    return cast(ops.Select()(is_zero, filled(a.shape, 0, a.dtype), ops.Abs()(ops.Mul()(parts, b))), c.dtype)
