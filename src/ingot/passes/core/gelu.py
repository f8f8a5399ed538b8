"""Recognize GELU in arithmetic, with its factors in any order, and its conversions.

x * 0.5 * (1 + erf(x / sqrt(2)))                               ->   gelu(x)
x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))      ->   gelu{tanh}(x)
x * logistic(sqrt(8 / pi) * (x + 0.044715 * x^3))              ->   gelu{tanh}(x)
convert<bf16>(gelu(convert<f32>(x)))                           ->   gelu(x)         of a bf16 x: rounded once either way
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose, pi, sqrt

from ingot import ops
from ingot.ir.node import Node, Op, splat_of
from ingot.ir.rewrite import Rule, rules
from ingot.ir.types import f32, f64
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Monomial:
    """factor * x^power * rest, where rest is 1 or one other node."""

    factor: float
    power: int = 0
    rest: Node | None = None


def _gelu(n: Node) -> Node | None:
    """x * bell(u(x)) -> gelu(x), for each of _FORMS"""
    if n.dtype not in (f32, f64):
        return None  # narrower floats are rounded after each step
    factors = list(_factors(n))
    for bell in factors:
        function = _function_in(bell)
        if function is None:
            continue
        scale = 1.0 if function is bell else 0.5
        for x in factors:
            if _monomial(n, x, bell) == Monomial(scale, 1, bell):
                for form in _FORMS:
                    if isinstance(function.op, form.function) and _coefficients_match(
                        _polynomial(function.inputs[0], x), form.inner
                    ):
                        return form.op(x, loc=n.loc)
    return None


@dataclass(frozen=True)
class Form:
    """GELU by a function of a polynomial: power -> coefficient."""

    op: ops.Gelu
    function: type[Op]
    inner: Mapping[int, float]


_FORMS = (
    Form(ops.Gelu(), ops.Erf, {1: sqrt(1 / 2)}),
    Form(ops.Gelu("tanh"), ops.Tanh, {1: sqrt(2 / pi), 3: 0.044715 * sqrt(2 / pi)}),
    Form(ops.Gelu("tanh"), ops.Logistic, {1: sqrt(8 / pi), 3: 0.044715 * sqrt(8 / pi)}),
)
_MAX_FACTOR_DEPTH = 3  # levels of nested products


def _factors(n: Node, depth: int = _MAX_FACTOR_DEPTH) -> Iterator[Node]:
    """The factors of `n`, at all levels of nested products."""
    if depth and isinstance(n.op, ops.Mul):
        for i in n.inputs:
            yield i
            yield from _factors(i, depth - 1)


def _function_in(bell: Node) -> Node | None:
    """f(u) of 1 + f(u), or a logistic function itself."""
    if isinstance(bell.op, ops.Logistic):
        return bell
    if isinstance(bell.op, ops.Add):
        for a, b in (bell.inputs, bell.inputs[::-1]):
            if isinstance(a.op, ops.Erf | ops.Tanh) and splat_of(b) == 1:
                return a
    return None


def _monomial(n: Node, x: Node, rest: Node) -> Monomial | None:
    """`n` as a product of numbers, powers of `x`, and `rest` at most once."""
    if n is x:
        return Monomial(1.0, 1)
    if n is rest:
        return Monomial(1.0, 0, rest)
    value = splat_of(n)
    if value is not None:
        return Monomial(float(value))
    if not isinstance(n.op, ops.Mul):
        return None
    a, b = (_monomial(i, x, rest) for i in n.inputs)
    if a is None or b is None or (a.rest and b.rest):
        return None
    return Monomial(a.factor * b.factor, a.power + b.power, a.rest or b.rest)


def _polynomial(n: Node, x: Node) -> dict[int, float] | None:
    """`n` as a polynomial of `x`: power -> coefficient; None if it is not a polynomial, or its degree is above 3."""
    if n is x:
        return {1: 1.0}
    value = splat_of(n)
    if value is not None:
        return {0: float(value)}
    if not isinstance(n.op, ops.Add | ops.Mul | ops.Div | ops.Pow):
        return None
    a, b = (_polynomial(i, x) for i in n.inputs)
    if a is None or b is None:
        return None
    match n.op:
        case ops.Add():
            return {d: a.get(d, 0.0) + b.get(d, 0.0) for d in {*a, *b}}
        case ops.Mul():
            return _product(a, b)
        case ops.Div() if set(b) == {0} and b[0] != 0:
            return {d: c / b[0] for d, c in a.items()}
        case ops.Pow() if b in ({0: 2.0}, {0: 3.0}):
            square = _product(a, a)
            return square if b[0] == 2 or square is None else _product(square, a)
    return None


def _product(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float] | None:
    out: dict[int, float] = {}
    for d, c in a.items():
        for e, f in b.items():
            out[d + e] = out.get(d + e, 0.0) + c * f
    return out if max(out) <= 3 else None


def _coefficients_match(actual: Mapping[int, float] | None, expected: Mapping[int, float]) -> bool:
    """Whether the coefficients are equal up to two roundings in f32."""
    return (
        actual is not None
        and set(actual) == set(expected)
        and all(isclose(actual[d], expected[d], rel_tol=2.0**-21) for d in expected)
    )


def _narrow(n: Node) -> Node | None:
    """convert<t>(gelu(convert<f32>(x))) -> gelu(x)"""
    (y,) = n.inputs
    (x,) = y.inputs
    if not isinstance(x.op, ops.Convert) or y.dtype != f32 or x.inputs[0].dtype != n.dtype or n.dtype.bits != 16:
        return None
    return y.op(x.inputs[0], loc=n.loc)


GELU = rules(
    Rule(
        "gelu", ops.Mul, _gelu, lambda operands: any(issubclass(o, ops.Mul | ops.Add | ops.Logistic) for o in operands)
    ),
    Rule("narrow-gelu", ops.Convert, _narrow, lambda operands: operands[0] is ops.Gelu),
)
