"""Ops of the canonical form of a graph to be bounded, each with one relaxation.

They stand for real functions and are never compiled themselves; the graph of their bounds is (see `canonical`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot import ops
from ingot.ir.node import Node, Op, Samples, splat_of
from ingot.ir.types import TensorType, boolean
from ingot.ops.core.base import check_dims
from ingot.passes.constants import is_constant, value_of
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Form(Op):
    """Base class: an elementwise function of one float operand."""

    def compute(self, x: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) == 1 and inputs[0].dtype.is_float, "expected one float operand")
        return inputs[0]

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self.compute(inputs[0].astype(np.float64)).astype(inputs[0].dtype)

    @classmethod
    def samples(cls) -> Samples:
        return iter(())


@dataclass(frozen=True)
class Hinge(Form):
    """left * x below 0, right * x above: ReLU (0, 1), the absolute value (-1, 1), leaky ReLU (0.01, 1)."""

    name: ClassVar[str] = "hinge"
    left: float = 0.0
    right: float = 1.0

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, self.left, self.right) * x


@dataclass(frozen=True)
class Square(Form):
    """x^2."""

    name: ClassVar[str] = "square"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x * x


@dataclass(frozen=True)
class Reciprocal(Form):
    """1 / x."""

    name: ClassVar[str] = "reciprocal"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return 1 / x


@dataclass(frozen=True)
class Power(Form):
    """x^exponent, for a finite exponent other than 0."""

    name: ClassVar[str] = "power_form"
    exponent: float = 4.0

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.power(x, self.exponent)


@dataclass(frozen=True)
class Remainder(Form):
    """The remainder of x / divisor, for a finite divisor above 0: with the sign of x, or, floored, at least 0."""

    name: ClassVar[str] = "remainder_form"
    divisor: float = 1.0
    floored: bool = False

    def compute(self, x: np.ndarray) -> np.ndarray:
        return (np.mod if self.floored else np.fmod)(x, self.divisor)


@dataclass(frozen=True)
class Silu(Form):
    """x * logistic(x)."""

    name: ClassVar[str] = "silu_form"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))


@dataclass(frozen=True)
class Softplus(Form):
    """log(1 + e^x)."""

    name: ClassVar[str] = "softplus_form"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@dataclass(frozen=True)
class Elu(Form):
    """x above 0, alpha (e^x - 1) below, with 0 < alpha <= 1, so that the function is convex."""

    name: ClassVar[str] = "elu_form"
    alpha: float = 1.0

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0)))


@dataclass(frozen=True)
class Unknown(Form):
    """An unknown number from -1 to 1; its reference is 0."""

    name: ClassVar[str] = "unknown"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.zeros_like(x)


@dataclass(frozen=True)
class RoundedToBytes(Form):
    """x, each element of which may be rounded to one of 255 levels (see `ops.RoundToBytes`) in blocks along `dims` or
    parts of them; its reference is x."""

    name: ClassVar[str] = "rounded_to_bytes"
    dims: tuple[int, ...] = ()

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x


@dataclass(frozen=True)
class Largest(Op):
    """The elementwise maximum of several operands of one type."""

    name: ClassVar[str] = "largest"

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(set(inputs)) == 1, "expected operands of one type")
        return inputs[0]

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return np.maximum.reduce(inputs)

    @classmethod
    def samples(cls) -> Samples:
        return iter(())


@dataclass(frozen=True)
class Shift(Op):
    """The largest element along `axis`, which keeps size 1. Used where results do not depend on the shift, as in a
    softmax, so that bounds may use any other number in its place."""

    name: ClassVar[str] = "shift"
    axis: int

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        check_dims(self, (self.axis,), x.rank, "axis")
        return x.with_shape(tuple(1 if i == self.axis else d for i, d in enumerate(x.shape)))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0].max(self.axis, keepdims=True)


# --- patterns of the canonical form


def operands_of_extreme(node: Node) -> tuple[Node, Node] | None:
    """a and b of hinge(a - b) + b = max(a, b) or b - hinge(b - a) = min(a, b), else None: see `canonical`."""
    is_sum = isinstance(node.op, ops.Add)
    for kink, b in (node.inputs, node.inputs[::-1]) if is_sum else (node.inputs[::-1],):
        if kink.op != Hinge() or not isinstance(kink.inputs[0].op, ops.Sub):
            continue
        first, second = kink.inputs[0].inputs
        if b is (second if is_sum else first):
            return (first, second) if is_sum else (second, first)
    return None


def sum_of_exponentials(reciprocal: Node) -> Node | None:
    """The sum of exponentials that a node is the reciprocal of; None for others."""
    total = source_of(reciprocal.inputs[0])
    if isinstance(total.op, ops.Select):  # 1 for rows of which all is hidden
        total = source_of(total.inputs[1])
    is_sum = isinstance(total.op, ops.Reduce) and total.op.kind == "sum"
    return total if is_sum and is_exponential(total.inputs[0]) else None


def is_exponential(node: Node) -> bool:
    """Whether the node is e^x, or e^x where a mask is set and 0 elsewhere."""
    if isinstance(node.op, ops.Select) and splat_of(node.inputs[2]) == 0:
        node = node.inputs[1]
    return isinstance(node.op, ops.Exp)


@dataclass(frozen=True, eq=False)
class SoftmaxParts:
    """e * (1 / sum(e)) over `dims`, where e is e^scores, and 0 where the mask `visible` is not set."""

    exponentials: Node
    scores: Node
    visible: Node | None
    dims: tuple[int, ...]


def softmax_of(node: Node) -> SoftmaxParts | None:
    """The parts of a softmax; None for other nodes."""
    if not isinstance(node.op, ops.Mul):
        return None
    for e, quotient in (node.inputs, node.inputs[::-1]):
        divisor = source_of(quotient)
        total = sum_of_exponentials(divisor) if isinstance(divisor.op, Reciprocal) else None
        if total is None or total.inputs[0] is not e:
            continue
        assert isinstance(total.op, ops.Reduce)
        is_masked = isinstance(e.op, ops.Select)
        exponential = e.inputs[1] if is_masked else e
        return SoftmaxParts(e, exponential.inputs[0], e.inputs[0] if is_masked else None, total.op.dims)
    return None


def source_of(node: Node) -> Node:
    """The node below broadcasts and reshapes."""
    while isinstance(node.op, (ops.BroadcastInDim, ops.Reshape)):
        node = node.inputs[0]
    return node


def is_normalizer(node: Node) -> bool:
    """Whether the node is 1 / sum(e^x), which the program's own shift of x keeps at most 1."""
    return isinstance(node.op, Reciprocal) and sum_of_exponentials(node) is not None


def is_nonnegative(node: Node, known: dict[Node, bool]) -> bool:
    """Whether the ops that compute a value make it at least 0, or NaN, for all inputs. known: answers so far."""
    if node not in known:
        known[node] = len(node.types) == 1 and node.dtype.is_float and _is_nonnegative(node, known)
    return known[node]


def _is_nonnegative(node: Node, known: dict[Node, bool]) -> bool:
    op = node.op
    if is_constant(node):
        return bool((value_of(node) >= 0).all())
    if isinstance(op, Hinge):
        return op.left <= 0 <= op.right
    if isinstance(op, ops.Convert) and not node.inputs[0].dtype.is_float:
        return node.inputs[0].dtype == boolean
    if isinstance(op, (Square, ops.Exp, ops.Logistic)):
        return True
    if isinstance(op, Power):  # of an even exponent, or NaN below 0
        return op.exponent % 2 != 1
    if isinstance(op, Remainder) and op.floored:
        return True
    if isinstance(op, (ops.Reduce, ops.ReduceWindow, ops.CumReduce)):
        return op.kind == "sum" and is_nonnegative(node.inputs[0], known)
    keeps_sign = op.rearranges or isinstance(op, (ops.Convert, ops.Concat, ops.Mul, ops.Add, Reciprocal))
    return keeps_sign and all(is_nonnegative(x, known) for x in node.inputs if x.dtype.is_float)
