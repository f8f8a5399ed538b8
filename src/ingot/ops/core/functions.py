"""Elementwise functions of floats: exponentials, logarithms, trigonometric functions, roots, GELU.

Kernels call them by name; a pass over kernels expands them into arithmetic for targets without such a function. The
reference computes f32 in f64, because numpy's f32 functions are not correctly rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, pi, sqrt
from typing import ClassVar

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.node import Samples
from ingot.ir.types import DType, TensorType, bf16, f32
from ingot.ops.core.elementwise import Elementwise
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Transcendental(Elementwise):
    """Base: a function of floats; kernels call it by the name `fn`."""

    exact: ClassVar[bool] = True
    costly: ClassVar[bool] = True
    fn: ClassVar[str] = ""

    def rule(self, *xs: Expr) -> Expr:
        return k.call(self.fn, *xs)


@dataclass(frozen=True)
class Exp(Transcendental):
    """e^x."""

    name: ClassVar[str] = "exponential"
    fn: ClassVar[str] = "exp"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.exp(x)


@dataclass(frozen=True)
class Expm1(Transcendental):
    """e^x - 1, accurate near 0."""

    name: ClassVar[str] = "exponential_minus_one"
    fn: ClassVar[str] = "expm1"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.expm1(x)


@dataclass(frozen=True)
class Log(Transcendental):
    """The natural logarithm; -inf at 0, NaN below."""

    name: ClassVar[str] = "log"
    fn: ClassVar[str] = "log"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.log(x)


@dataclass(frozen=True)
class Log1p(Transcendental):
    """log(1 + x), accurate near 0."""

    name: ClassVar[str] = "log_plus_one"
    fn: ClassVar[str] = "log1p"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.log1p(x)


@dataclass(frozen=True)
class Logistic(Transcendental):
    """1 / (1 + exp(-x))."""

    name: ClassVar[str] = "logistic"
    fn: ClassVar[str] = "logistic"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))


@dataclass(frozen=True)
class Tanh(Transcendental):
    """The hyperbolic tangent."""

    name: ClassVar[str] = "tanh"
    fn: ClassVar[str] = "tanh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x)


@dataclass(frozen=True)
class Sin(Transcendental):
    """The sine of x radians."""

    name: ClassVar[str] = "sine"
    fn: ClassVar[str] = "sin"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.sin(x)


@dataclass(frozen=True)
class Cos(Transcendental):
    """The cosine of x radians."""

    name: ClassVar[str] = "cosine"
    fn: ClassVar[str] = "cos"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.cos(x)


@dataclass(frozen=True)
class Tan(Transcendental):
    """The tangent of x radians."""

    name: ClassVar[str] = "tan"
    fn: ClassVar[str] = "tan"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.tan(x)


@dataclass(frozen=True)
class Asin(Transcendental):
    """The inverse sine, in [-pi/2, pi/2]."""

    name: ClassVar[str] = "asin"
    fn: ClassVar[str] = "asin"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arcsin(x)


@dataclass(frozen=True)
class Acos(Transcendental):
    """The inverse cosine, in [0, pi]."""

    name: ClassVar[str] = "acos"
    fn: ClassVar[str] = "acos"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arccos(x)


@dataclass(frozen=True)
class Atan(Transcendental):
    """The inverse tangent, in [-pi/2, pi/2]."""

    name: ClassVar[str] = "atan"
    fn: ClassVar[str] = "atan"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arctan(x)


@dataclass(frozen=True)
class Sinh(Transcendental):
    """The hyperbolic sine."""

    name: ClassVar[str] = "sinh"
    fn: ClassVar[str] = "sinh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.sinh(x)


@dataclass(frozen=True)
class Cosh(Transcendental):
    """The hyperbolic cosine."""

    name: ClassVar[str] = "cosh"
    fn: ClassVar[str] = "cosh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.cosh(x)


@dataclass(frozen=True)
class Asinh(Transcendental):
    """The inverse hyperbolic sine."""

    name: ClassVar[str] = "asinh"
    fn: ClassVar[str] = "asinh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arcsinh(x)


@dataclass(frozen=True)
class Acosh(Transcendental):
    """The inverse hyperbolic cosine; NaN below 1."""

    name: ClassVar[str] = "acosh"
    fn: ClassVar[str] = "acosh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arccosh(x)


@dataclass(frozen=True)
class Atanh(Transcendental):
    """The inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond."""

    name: ClassVar[str] = "atanh"
    fn: ClassVar[str] = "atanh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arctanh(x)


_ERF_UFUNC: Callable[..., np.ndarray] = np.frompyfunc(erf, 1, 1)


@dataclass(frozen=True)
class Erf(Transcendental):
    """The error function, 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x."""

    name: ClassVar[str] = "erf"
    fn: ClassVar[str] = "erf"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(_ERF_UFUNC(x), np.float64)


@dataclass(frozen=True)
class Rsqrt(Transcendental):
    """1 / sqrt(x); rsqrt(+-0) = +-inf (IEEE 754)."""

    name: ClassVar[str] = "rsqrt"
    costly: ClassVar[bool] = False

    def compute(self, x: np.ndarray) -> np.ndarray:
        return 1 / np.sqrt(x)

    def rule(self, *xs: Expr) -> Expr:
        (x,) = xs
        return k.binary("div", k.lit(1.0, x.dtype), k.unary("sqrt", x))


@dataclass(frozen=True)
class Cbrt(Transcendental):
    """The real cube root."""

    name: ClassVar[str] = "cbrt"
    fn: ClassVar[str] = "cbrt"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.cbrt(x)


_TANH_LINEAR, _TANH_CUBIC = sqrt(8 / pi), 0.044715 * sqrt(8 / pi)


@dataclass(frozen=True)
class Gelu(Transcendental):
    """x * Phi(x), Phi being the normal distribution function (Hendrycks and Gimpel 2016).

    approximate: "none", or "tanh" for 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    """

    name: ClassVar[str] = "gelu"
    fn: ClassVar[str] = "gelu"
    approximate: str = "none"

    def result(self, *inputs: TensorType) -> DType:
        self.expect(self.approximate in ("none", "tanh"), f"approximate: expected none or tanh, got {self.approximate}")
        return super().result(*inputs)

    def compute(self, x: np.ndarray) -> np.ndarray:
        if self.approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
        return 0.5 * x * (1 + np.asarray(_ERF_UFUNC(x * sqrt(0.5)), np.float64))

    def scalar(self, *xs: Expr) -> Expr:
        (x,) = xs
        if x.dtype == bf16 and self.approximate == "none":  # bf16 needs fewer digits than f32
            return k.cast(k.call("gelu_narrow", k.cast(x, f32)), bf16)
        return super().scalar(x)

    def rule(self, *xs: Expr) -> Expr:
        (x,) = xs
        if self.approximate == "none":
            return super().rule(x)
        # (1 + tanh(u)) / 2 = logistic(2 u), which is cheaper and has no cancellation for x << 0
        square = k.mul(x, x)
        argument = k.add(k.mul(square, k.lit(_TANH_CUBIC, x.dtype)), k.lit(_TANH_LINEAR, x.dtype))
        return k.mul(x, k.call("logistic", k.mul(x, argument)))

    @classmethod
    def samples(cls) -> Samples:
        for op, xs in super().samples():
            yield op, xs
            yield cls("tanh"), xs


@dataclass(frozen=True)
class GeluDerivative(Transcendental):
    """Phi(x) + x phi(x), Phi being the normal distribution function and phi its density: the slope of x * Phi(x)."""

    name: ClassVar[str] = "gelu_derivative"
    fn: ClassVar[str] = "gelu_derivative"
    work: ClassVar[int] = 9

    def compute(self, x: np.ndarray) -> np.ndarray:
        density = np.exp(-0.5 * x * x) / sqrt(2 * pi)
        return 0.5 * (1 + np.asarray(_ERF_UFUNC(x * sqrt(0.5)), np.float64)) + x * density
