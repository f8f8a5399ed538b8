"""Calls of functions as the arithmetic that computes them.

y = exp(x)   ->   n = fma(x, 1.44, 1.26e7) - 1.26e7;  r = fma(n, -0.69, x);  y = ldexp(fma(fma(..., r, 1), r, 1), n)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial

from ingot.ir.kernel import Call, Expr, For, If, Kernel, Let, Lit, Stmt, Store, Var
from ingot.ir.kernel.math import exponential, logarithm, power, trigonometry
from ingot.ir.kernel.verify import children

# one for each of `grammar.FUNCTIONS`
EXPANSIONS: Mapping[str, Callable[..., Expr]] = {
    **{f.__name__: f for f in (
        exponential.exp, exponential.exp_decay, exponential.expm1, exponential.logistic, exponential.tanh,
        exponential.erf, exponential.gelu, exponential.sinh, exponential.cosh,
        logarithm.log, logarithm.log1p, logarithm.log1p_unit, logarithm.asinh, logarithm.acosh, logarithm.atanh,
        trigonometry.sin, trigonometry.cos, trigonometry.tan, trigonometry.asin, trigonometry.acos, trigonometry.atan,
        trigonometry.atan2, power.pow, power.cbrt,
    )},
    "exp_narrow": exponential.exp_decay,
    "exp_nonpositive": partial(exponential.exp, nonpositive=True),
    "gelu_narrow": partial(exponential.gelu, narrow=True),
}  # fmt: skip


def never(call: Call) -> bool:
    return False


def expand(kernel: Kernel, own: Callable[[Call], bool] = never) -> Kernel:
    """`kernel` without calls but those that the target has of its `own`. Shared expressions stay shared."""
    return replace(kernel, body=_Expansion(own).body(kernel.body))


def expanded(values: Sequence[Expr]) -> list[Expr]:
    """Expressions without calls."""
    expansion = _Expansion(never)
    return [expansion.of(e) for e in values]


class _Expansion:
    """made: what has become of each expression, by id; all of them live as long as what they belong to."""

    def __init__(self, own: Callable[[Call], bool]) -> None:
        self.own = own
        self.made: dict[int, Expr] = {}

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(self.statement(s) for s in body)

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case Let():
                value = self.of(s.value)
                return s if value is s.value else Let(s.var, value)
            case Store():
                index, value, mask = self.of(s.index), self.of(s.value), s.mask and self.of(s.mask)
                same = index is s.index and value is s.value and mask is s.mask
                return s if same else replace(s, index=index, value=value, mask=mask)
            case For():
                return replace(s, begin=self.of(s.begin), end=self.of(s.end), body=self.body(s.body))
            case If():
                return replace(s, cond=self.of(s.cond), then=self.body(s.then), orelse=self.body(s.orelse))
        return s

    def of(self, e: Expr) -> Expr:
        if isinstance(e, Var | Lit):
            return e
        known = self.made.get(id(e))
        if known is None:
            known = self.made[id(e)] = self.anew(e)
        return known

    def anew(self, e: Expr) -> Expr:
        images = {id(c): image for c in children(e) if (image := self.of(c)) is not c}
        if images:
            e = _with(e, images)
        return self.of(EXPANSIONS[e.fn](*e.args)) if isinstance(e, Call) and not self.own(e) else e


def _with(e: Expr, images: Mapping[int, Expr]) -> Expr:
    """`e` of other operands."""
    if isinstance(e, Call):
        return replace(e, args=tuple(images.get(id(a), a) for a in e.args))
    held = {f.name: getattr(e, f.name) for f in fields(e)}
    return replace(e, **{name: images[id(v)] for name, v in held.items() if id(v) in images})
