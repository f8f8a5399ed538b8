"""Activations: elementwise ops of one operand (PRelu has a second one, which broadcasts).

Narrow floats are computed in f32 and rounded once, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import ml_dtypes
import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, dtype_of
from ingot.ops.build import broadcast_shapes, clip
from ingot.ops.core.base import check_count, round_to, widen
from ingot.ops.core.functions import Expm1, Log1p
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

_VALUES = np.asarray(
    [0, -0.0, 0.5, -0.5, 1, -1, 2.75, -2.75, 3, -3, 6, -7.5, 19.5, 20.5, -30, 95, -95, np.inf, -np.inf, np.nan]
)


def _floats() -> Iterator[np.ndarray]:
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        yield _VALUES.astype(dtype)
    yield np.zeros((0, 3), np.float32)
    yield np.asarray(-0.25, np.float32)


@dataclass(frozen=True)
class Activation(Op):
    """Base: floats [*] -> floats [*]. A subclass defines `compute` (numpy, f32 or f64) and `formula` (in terms)."""

    integers: ClassVar[bool] = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        allowed = x.dtype.is_float or (self.integers and x.dtype.is_integer)
        self.expect(allowed, f"expected a {'number' if self.integers else 'float'} operand, got {x}")
        return x

    def compute(self, x: np.ndarray) -> np.ndarray:
        raise NotImplementedError(f"{type(self).__name__}.compute")

    def formula(self, x: Term) -> Term:
        raise NotImplementedError(f"{type(self).__name__}.formula")

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        with np.errstate(all="ignore"):
            return round_to(self.compute(widen(x)), dtype_of(x))

    def lower(self, *inputs: Node) -> Node:
        (x,) = inputs
        return self.formula(t.widen_narrow(x)).cast(x.dtype).node

    @classmethod
    def samples(cls) -> Samples:
        for x in _floats():
            yield cls(), (x,)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return 1 / (1 + np.exp(-wide))


def _clip_from_zero(x: Term, high: float) -> Term:
    """x clamped to [0, high], with derivative 0 at the bounds, as in PyTorch."""
    return Term(clip(x.node, 0.0, high, open=True))


@dataclass(frozen=True)
class Relu(Activation):
    """max(x, 0) of floats or integers; NaN gives NaN (ONNX Relu)."""

    name: ClassVar[str] = "relu"
    integers: ClassVar[bool] = True

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(x, x.dtype.type(0))

    def formula(self, x: Term) -> Term:
        return t.term(t.maximum(x, 0))

    @classmethod
    def samples(cls) -> Samples:
        yield from super().samples()
        yield cls(), (np.asarray([-128, -1, 0, 5], np.int8),)
        yield cls(), (np.asarray([0, 200], np.uint8),)


@dataclass(frozen=True)
class Silu(Activation):
    """x * sigmoid(alpha x); SiLU or Swish for alpha = 1 (Ramachandran et al. 2017)."""

    name: ClassVar[str] = "silu"
    alpha: float = 1.0

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x * _sigmoid(x * x.dtype.type(self.alpha))

    def formula(self, x: Term) -> Term:
        return x * t.logistic(x if self.alpha == 1 else x * self.alpha)

    @classmethod
    def samples(cls) -> Samples:
        yield from super().samples()
        yield cls(1.5), (_VALUES.astype(np.float32),)


@dataclass(frozen=True)
class HardSwish(Activation):
    """x * (min(max(x + 3, 0), 6) / 6) (ONNX HardSwish): x itself from 3 on, the largest numbers, too."""

    name: ClassVar[str] = "hard_swish"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x * (np.clip(x + 3, 0, 6) / 6)

    def formula(self, x: Term) -> Term:
        return x * (_clip_from_zero(x + 3, 6) * (1 / 6))


@dataclass(frozen=True)
class HardSigmoid(Activation):
    """min(max(alpha x + beta, 0), 1). The defaults of (alpha, beta) are (0.2, 0.5) in ONNX, (1/6, 0.5) in PyTorch."""

    name: ClassVar[str] = "hard_sigmoid"
    alpha: float = 1 / 6
    beta: float = 0.5

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.clip(x * self.alpha + self.beta, 0, 1)

    def formula(self, x: Term) -> Term:
        return _clip_from_zero(x * self.alpha + self.beta, 1)

    @classmethod
    def samples(cls) -> Samples:
        yield from super().samples()
        yield cls(0.2, 0.5), (_VALUES.astype(np.float32),)


@dataclass(frozen=True)
class LeakyRelu(Activation):
    """x if x > 0, else alpha x (ONNX LeakyRelu)."""

    name: ClassVar[str] = "leaky_relu"
    alpha: float = 0.01

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x, x * x.dtype.type(self.alpha))

    def formula(self, x: Term) -> Term:
        return t.term(t.where(x > 0, x, x * self.alpha))


def _negative_part(x: Term) -> Term:
    """min(x, 0): its exponential never overflows, so that the branch not selected has a finite derivative."""
    return t.term(t.where(x > 0, 0.0, x))


@dataclass(frozen=True)
class Elu(Activation):
    """x if x > 0, else alpha (e^x - 1) (Clevert et al. 2015)."""

    name: ClassVar[str] = "elu"
    alpha: float = 1.0

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x, self.alpha * np.expm1(x.astype(np.float64)))

    def formula(self, x: Term) -> Term:
        return t.term(t.where(x > 0, x, _negative_part(x).map(Expm1()) * self.alpha))


@dataclass(frozen=True)
class Selu(Activation):
    """gamma * elu(x, alpha) (Klambauer et al. 2017)."""

    name: ClassVar[str] = "selu"
    alpha: float = 1.6732632423543772
    gamma: float = 1.0507009873554805

    def compute(self, x: np.ndarray) -> np.ndarray:
        return self.gamma * np.where(x > 0, x, self.alpha * np.expm1(x.astype(np.float64)))

    def formula(self, x: Term) -> Term:
        return t.term(t.where(x > 0, x * self.gamma, _negative_part(x).map(Expm1()) * (self.alpha * self.gamma)))


@dataclass(frozen=True)
class Celu(Activation):
    """x if x > 0, else alpha (e^(x / alpha) - 1) (Barron 2017)."""

    name: ClassVar[str] = "celu"
    alpha: float = 1.0

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x, self.alpha * np.expm1(x.astype(np.float64) / self.alpha))

    def formula(self, x: Term) -> Term:
        return t.term(t.where(x > 0, x, (_negative_part(x) / self.alpha).map(Expm1()) * self.alpha))

    @classmethod
    def samples(cls) -> Samples:
        yield from super().samples()
        yield cls(0.5), (_VALUES.astype(np.float32),)


@dataclass(frozen=True)
class PRelu(Op):
    """x if x > 0, else slope * x, for operands (x, slope); slope broadcasts to x as in numpy (ONNX PRelu)."""

    name: ClassVar[str] = "prelu"

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, slope = inputs
        is_number = x.dtype.is_float or x.dtype.is_integer
        self.expect(is_number and x.dtype == slope.dtype, f"expected numbers of one dtype, got {x} and {slope}")
        shape = broadcast_shapes(x.shape, slope.shape)
        self.expect(shape == x.shape, f"expected a slope that broadcasts to {x}, got {slope}")
        return x

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, slope = widen(inputs[0]), widen(inputs[1])
        with np.errstate(all="ignore"):
            return round_to(np.where(x > 0, x, x * slope), dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x, slope = t.widen_narrow(inputs[0]), t.widen_narrow(inputs[1])
        return t.term(t.where(x > 0, x, x * slope)).cast(inputs[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
            yield cls(), (_VALUES.reshape(2, 5, 2).astype(dtype), np.asarray([[0.5], [0], [-1], [2], [0.1]], dtype))
        yield cls(), (np.asarray([-3, 4], np.int32), np.asarray(2, np.int32))


@dataclass(frozen=True)
class Softplus(Activation):
    """log(1 + e^(beta x)) / beta; x itself if beta x > threshold (torch.nn.Softplus)."""

    name: ClassVar[str] = "softplus"
    beta: float = 1.0
    threshold: float = 20.0

    def compute(self, x: np.ndarray) -> np.ndarray:
        scaled = x * x.dtype.type(self.beta)
        smooth = np.log1p(np.exp(scaled.astype(np.float64))) / self.beta
        return np.where(scaled > self.threshold, x, smooth)

    def formula(self, x: Term) -> Term:
        scaled = x if self.beta == 1 else x * self.beta
        # log(1 + e^u) = max(u, 0) + log(1 + e^-|u|), which does not overflow
        smooth = t.term(t.maximum(scaled, 0)) + t.exp(-t.term(t.absolute(scaled))).map(Log1p())
        return t.term(t.where(scaled > self.threshold, x, smooth if self.beta == 1 else smooth / self.beta))

    @classmethod
    def samples(cls) -> Samples:
        yield from super().samples()
        yield cls(2.0, 5.0), (_VALUES.astype(np.float32),)


@dataclass(frozen=True)
class Softsign(Activation):
    """x / (1 + |x|)."""

    name: ClassVar[str] = "softsign"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x / (1 + np.abs(x))

    def formula(self, x: Term) -> Term:
        return x / (t.term(t.absolute(x)) + 1)


@dataclass(frozen=True)
class Mish(Activation):
    """x * tanh(softplus(x)) (Misra 2019)."""

    name: ClassVar[str] = "mish"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x * np.tanh(np.log1p(np.exp(x.astype(np.float64))))

    def formula(self, x: Term) -> Term:
        # tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2): one exponential, and no cancellation for x << 0;
        # for x >= 20 the quotient is 1 to the last bit of f64, while e^2x would overflow
        e = t.exp(t.term(t.minimum(x, 20)))
        n = e * (e + 2)
        return x * (n / (n + 2))


@dataclass(frozen=True)
class ThresholdedRelu(Activation):
    """x if x > alpha, else 0, also for NaN (ONNX ThresholdedRelu)."""

    name: ClassVar[str] = "thresholded_relu"
    alpha: float = 1.0

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.where(x > x.dtype.type(self.alpha), x, x.dtype.type(0))

    def formula(self, x: Term) -> Term:
        return t.term(t.where(x > self.alpha, x, 0))

    @classmethod
    def samples(cls) -> Samples:
        yield from super().samples()
        yield cls(0.3), (np.asarray([0.3, 0.31, -1], np.float32),)


@dataclass(frozen=True)
class Softshrink(Activation):
    """x - lambd if x > lambd, x + lambd if x < -lambd, else 0; NaN gives NaN (torch.nn.Softshrink)."""

    name: ClassVar[str] = "softshrink"
    lambd: float = 0.5

    def compute(self, x: np.ndarray) -> np.ndarray:
        threshold = x.dtype.type(self.lambd)
        return np.where(x > threshold, x - threshold, np.where(x < -threshold, x + threshold, x * 0))

    def formula(self, x: Term) -> Term:
        otherwise = t.where(x < -self.lambd, x + self.lambd, x * 0)
        return t.term(t.where(x > self.lambd, x - self.lambd, otherwise))


@dataclass(frozen=True)
class Hardshrink(Activation):
    """0 if -lambd <= x <= lambd, else x (torch.nn.Hardshrink)."""

    name: ClassVar[str] = "hardshrink"
    lambd: float = 0.5

    def compute(self, x: np.ndarray) -> np.ndarray:
        threshold = x.dtype.type(self.lambd)
        return np.where((x >= -threshold) & (x <= threshold), x.dtype.type(0), x)

    def formula(self, x: Term) -> Term:
        return t.term(t.where((x >= -self.lambd) & (x <= self.lambd), 0, x))
