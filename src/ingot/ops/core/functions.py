"""Elementwise primitives that are functions of floats: exponentials, logarithms, circular functions, roots, GELU.

Kernels name them, and a pass over kernels makes them of arithmetic where a target has none of its own. The reference
computes f32 in f64, as numpy does not round its functions correctly: it is the more exact side of every comparison.
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
    """Base: a function of floats, which kernels call `fn`."""

    exact: ClassVar[bool] = True
    costly: ClassVar[bool] = True
    fn: ClassVar[str] = ""

    def rule(self, *xs: Expr) -> Expr:
        return k.call(self.fn, *xs)


@dataclass(frozen=True)
class Exp(Transcendental):
    name: ClassVar[str] = "exponential"
    fn: ClassVar[str] = "exp"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.exp(x)


@dataclass(frozen=True)
class Expm1(Transcendental):
    name: ClassVar[str] = "exponential_minus_one"
    fn: ClassVar[str] = "expm1"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.expm1(x)


@dataclass(frozen=True)
class Log(Transcendental):
    name: ClassVar[str] = "log"
    fn: ClassVar[str] = "log"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.log(x)


@dataclass(frozen=True)
class Log1p(Transcendental):
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
    name: ClassVar[str] = "tanh"
    fn: ClassVar[str] = "tanh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x)


@dataclass(frozen=True)
class Sin(Transcendental):
    name: ClassVar[str] = "sine"
    fn: ClassVar[str] = "sin"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.sin(x)


@dataclass(frozen=True)
class Cos(Transcendental):
    name: ClassVar[str] = "cosine"
    fn: ClassVar[str] = "cos"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.cos(x)


@dataclass(frozen=True)
class Tan(Transcendental):
    name: ClassVar[str] = "tan"
    fn: ClassVar[str] = "tan"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.tan(x)


@dataclass(frozen=True)
class Asin(Transcendental):
    name: ClassVar[str] = "asin"
    fn: ClassVar[str] = "asin"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arcsin(x)


@dataclass(frozen=True)
class Acos(Transcendental):
    name: ClassVar[str] = "acos"
    fn: ClassVar[str] = "acos"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arccos(x)


@dataclass(frozen=True)
class Atan(Transcendental):
    name: ClassVar[str] = "atan"
    fn: ClassVar[str] = "atan"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arctan(x)


@dataclass(frozen=True)
class Sinh(Transcendental):
    name: ClassVar[str] = "sinh"
    fn: ClassVar[str] = "sinh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.sinh(x)


@dataclass(frozen=True)
class Cosh(Transcendental):
    name: ClassVar[str] = "cosh"
    fn: ClassVar[str] = "cosh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.cosh(x)


@dataclass(frozen=True)
class Asinh(Transcendental):
    name: ClassVar[str] = "asinh"
    fn: ClassVar[str] = "asinh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arcsinh(x)


@dataclass(frozen=True)
class Acosh(Transcendental):
    name: ClassVar[str] = "acosh"
    fn: ClassVar[str] = "acosh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arccosh(x)


@dataclass(frozen=True)
class Atanh(Transcendental):
    name: ClassVar[str] = "atanh"
    fn: ClassVar[str] = "atanh"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.arctanh(x)


_ERF: Callable[..., np.ndarray] = np.frompyfunc(erf, 1, 1)


@dataclass(frozen=True)
class Erf(Transcendental):
    name: ClassVar[str] = "erf"
    fn: ClassVar[str] = "erf"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(_ERF(x), np.float64)


@dataclass(frozen=True)
class Rsqrt(Transcendental):
    """1 / sqrt(x); rsqrt(+-0) = +-inf."""

    name: ClassVar[str] = "rsqrt"
    costly: ClassVar[bool] = False

    def compute(self, x: np.ndarray) -> np.ndarray:
        return 1 / np.sqrt(x)

    def rule(self, *xs: Expr) -> Expr:
        (x,) = xs
        return k.binary("div", k.lit(1.0, x.dtype), k.unary("sqrt", x))


@dataclass(frozen=True)
class Cbrt(Transcendental):
    name: ClassVar[str] = "cbrt"
    fn: ClassVar[str] = "cbrt"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.cbrt(x)


_TANH_SLOPE, _TANH_CUBE = sqrt(8 / pi), 0.044715 * sqrt(8 / pi)


@dataclass(frozen=True)
class Gelu(Transcendental):
    """x * Phi(x) (Hendrycks and Gimpel 2016); approximate "tanh": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""

    name: ClassVar[str] = "gelu"
    fn: ClassVar[str] = "gelu"
    approximate: str = "none"

    def result(self, *inputs: TensorType) -> DType:
        self.expect(self.approximate in ("none", "tanh"), f"approximate: expected none or tanh, got {self.approximate}")
        return super().result(*inputs)

    def compute(self, x: np.ndarray) -> np.ndarray:
        if self.approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
        return 0.5 * x * (1 + np.asarray(_ERF(x * sqrt(0.5)), np.float64))

    def scalar(self, *xs: Expr) -> Expr:
        (x,) = xs
        if x.dtype == bf16 and self.approximate == "none":  # which needs fewer digits than f32 has
            return k.cast(k.call("gelu_narrow", k.cast(x, f32)), bf16)
        return super().scalar(x)

    def rule(self, *xs: Expr) -> Expr:
        (x,) = xs
        if self.approximate == "none":
            return super().rule(x)
        # (1 + tanh(u)) / 2 = logistic(2 u), which is cheaper and does not cancel for x << 0
        square = k.mul(x, x)
        slope = k.add(k.mul(square, k.lit(_TANH_CUBE, x.dtype)), k.lit(_TANH_SLOPE, x.dtype))
        return k.mul(x, k.call("logistic", k.mul(x, slope)))

    @classmethod
    def samples(cls) -> Samples:
        for op, xs in super().samples():
            yield op, xs
            yield cls("tanh"), xs
