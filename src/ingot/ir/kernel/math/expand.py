"""Expansion of function calls into arithmetic.

y = exp(x)   ->   n = fma(x, 1.44, 1.26e7) - 1.26e7;  r = fma(n, -0.69, x);  y = ldexp(fma(fma(..., r, 1), r, 1), n)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ingot.ir.kernel import Call, Expr, Kernel
from ingot.ir.kernel.math import exponential, logarithm, power, trigonometry
from ingot.ir.kernel.math.unfused import EXACT_FUNCTIONS, unfused
from ingot.ir.kernel.math.words import quotient
from ingot.ir.kernel.rewrite import Rewriter

# for each of `grammar.FUNCTIONS`
EXPANSIONS: Mapping[str, Callable[..., Expr]] = {
    **{f.__name__: f for f in (
        exponential.exp, exponential.exp_decay, exponential.expm1, exponential.logistic, exponential.tanh,
        exponential.erf, exponential.gelu, exponential.gelu_derivative, exponential.sinh, exponential.cosh,
        logarithm.log, logarithm.log1p, logarithm.log1p_unit, logarithm.asinh, logarithm.acosh, logarithm.atanh,
        trigonometry.sin, trigonometry.cos, trigonometry.tan, trigonometry.asin, trigonometry.acos, trigonometry.atan,
        trigonometry.atan2, power.pow, power.cbrt,
    )},
    "exp2_narrow": exponential.exp2_narrow,
    "exp_nonpositive": partial(exponential.exp, nonpositive=True),
    "quotient": quotient,
    "gelu_narrow": partial(exponential.gelu, narrow=True),
}  # fmt: skip


def never(call: Call) -> bool:
    return False


def expand(kernel: Kernel, is_native: Callable[[Call], bool] = never, has_fma: bool = True) -> Kernel:
    """Return `kernel` with its calls expanded, except those that the target implements itself (`is_native`). Sharing is
    preserved. has_fma: the machine's multiply-adds round once."""
    return replace(kernel, body=_Expansion(is_native, has_fma).body(kernel.body))


def expanded(values: Sequence[Expr]) -> list[Expr]:
    """Return expressions with all calls expanded."""
    expansion = _Expansion(never)
    return [expansion.of(e) for e in values]


class _Expansion(Rewriter):
    def __init__(self, is_native: Callable[[Call], bool], has_fma: bool = True) -> None:
        super().__init__()
        self.is_native, self.has_fma = is_native, has_fma

    def expr(self, e: Expr) -> Expr:
        if not isinstance(e, Call) or self.is_native(e):
            return e
        value = EXPANSIONS[e.fn](*e.args)
        if not self.has_fma and e.fn in EXACT_FUNCTIONS:
            value = unfused(value, e.args)
        return self.of(value)
