"""Division with PyTorch's rounding modes, and remainders."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.frontends.torch.aten.elementwise import combine_exactly, truncate
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    Operand,
    aligned,
    expand,
    in_f32,
    scalar_like,
)
from ingot.ir.node import Node

aten = Table()


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar", "divide.Tensor", "divide.Scalar")
def div(c: Context, a: Operand, b: Operand) -> Node:
    return combine_exactly(c, ops.Div(), a, b)


@aten("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode", "divide.Scalar_mode")
def div_mode(c: Context, a: Operand, b: Operand, *, rounding_mode: str | None) -> Node:
    if rounding_mode is None:
        return div(c, a, b)
    return _whole_quotient(c, floor_div if rounding_mode == "floor" else trunc_div, a, b)


@aten("floor_divide.default", "floor_divide.Scalar")
def floor_divide(c: Context, a: Operand, b: Operand) -> Node:
    return _whole_quotient(c, floor_div, a, b)


def _whole_quotient(c: Context, divide: Callable[[Node, Node], Node], a: Operand, b: Operand) -> Node:
    """The integral quotient. PyTorch rounds narrow floats in each step for two tensors, but once for a number."""

    def quotient(c: Context, a: Operand, b: Operand) -> Node:
        return divide(*aligned((a, b), c.dtype))

    return (quotient if isinstance(b, Node) and b.type.rank else in_f32(quotient))(c, a, b)


def trunc_div(a: Node, b: Node) -> Node:
    return truncate(ops.Div()(a, b))


def floor_div(a: Node, b: Node) -> Node:
    """PyTorch's floor division: Python's on integers, and on floats the exact quotient's floor (not floor(a / b))."""
    remainder = ops.Rem()(a, b)
    zero = expand(scalar_like(0, a), a.shape)
    one = expand(scalar_like(1, a), a.shape)
    is_inexact = ops.And()(ops.Compare("NE")(remainder, zero), _signs_differ(remainder, b))
    if not a.dtype.is_float:
        if a.dtype.kind == "u":
            return ops.Div()(a, b)
        quotient = ops.Div()(a, b)
        return ops.Select()(is_inexact, ops.Sub()(quotient, one), quotient)
    quotient = ops.Div()(ops.Sub()(a, remainder), b)
    quotient = ops.Select()(is_inexact, ops.Sub()(quotient, one), quotient)
    half = expand(scalar_like(0.5, a), a.shape)
    floored = ops.Floor()(quotient)
    short = ops.Compare("GT")(ops.Sub()(quotient, floored), half)
    floored = ops.Select()(short, ops.Add()(floored, one), floored)
    exact = ops.Div()(a, b)
    floored = ops.Select()(ops.Compare("EQ")(quotient, zero), ops.Mul()(exact, zero), floored)  # with a / b's sign
    return ops.Select()(ops.Compare("EQ")(b, zero), exact, floored)


def _signs_differ(a: Node, b: Node) -> Node:
    zero = expand(scalar_like(0, a), a.shape)
    return ops.Xor()(ops.Compare("LT")(a, zero), ops.Compare("LT")(b, zero))


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(c: Context, a: Operand, b: Operand) -> Node:
    """Python's %: the sign of the divisor."""
    a_, b_ = aligned((a, b), c.dtype)
    truncated = ops.Rem()(a_, b_)
    if a_.dtype.kind == "u":
        return truncated
    needs_shift = ops.And()(
        ops.Compare("NE")(truncated, expand(scalar_like(0, truncated), truncated.shape)), _signs_differ(truncated, b_)
    )
    return ops.Select()(needs_shift, ops.Add()(truncated, b_), truncated)


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(c: Context, a: Operand, b: Operand) -> Node:
    return ops.Rem()(*aligned((a, b), c.dtype))
