"""Functions with custom gradients."""

from __future__ import annotations

from typing import ClassVar, TypeVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.ops.core.binary import Select
from ingot.ops.nn import terms as t
from ingot.support.dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True)
class Cotangent(Op):
    """The cotangent of result `number` of an `CustomGradient`, as its gradient operands read it; zeros elsewhere.

    Operand: that result, whose type it has.
    """

    name: ClassVar[str] = "cotangent"
    number: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) == 1, f"expected 1 operand, got {len(inputs)}")
        self.expect(inputs[0].dtype.is_float, f"expected floats, got {inputs[0]}")
        return inputs[0]

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return np.zeros_like(inputs[0])

    def lower(self, *inputs: Node) -> Node:
        return t.full(inputs[0].shape, 0.0, inputs[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        yield cls(), (np.array([[1.0, np.nan], [-0.0, np.inf]], np.float32),)


@dataclass(frozen=True)
class CustomGradient(Op):
    """y..., cotangents of y..., x..., gradients of x...   ->   y...   (torch.autograd.Function, jax.custom_vjp)

    The values are the first `count` operands, y. Differentiation replaces the `Cotangent` nodes in the gradients of x
    by the cotangents of y, and does not differentiate the computation of y.
    """

    name: ClassVar[str] = "own_gradient"
    count: int

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        ys, cotangents, xs, gradients = self.parts(inputs)
        self.expect(ys == cotangents, f"expected cotangents of types {ys}, got {cotangents}")
        self.expect(xs == gradients, f"expected gradients of types {xs}, got {gradients}")
        return ys[0] if self.count == 1 else ys

    def parts(self, operands: tuple[T, ...]) -> tuple[tuple[T, ...], ...]:
        """(ys, their cotangents, xs, their gradients)"""
        n = self.count
        self.expect(n > 0 and 2 * n <= len(operands) and len(operands) % 2 == 0, f"got {len(operands)} operands")
        xs = 2 * n + (len(operands) - 2 * n) // 2
        return operands[:n], operands[n : 2 * n], operands[2 * n : xs], operands[xs:]

    def reference(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        return inputs[0] if self.count == 1 else inputs[: self.count]

    def lower(self, *inputs: Node) -> Node | tuple[Node, ...]:
        return inputs[0] if self.count == 1 else inputs[: self.count]

    @classmethod
    def samples(cls) -> Samples:
        y, x = np.array([[1.0, np.nan], [-0.0, np.inf]], np.float32), np.arange(3, dtype=np.float32)
        yield cls(1), (y, y, x, x)
        yield cls(2), (y, x, y, x)


def straight_through(y: Node, x: Node, has_gradient: Node | None = None) -> Node:
    """y, of x's type, with the gradient of x: the straight-through estimator.

    Bengio et al. 2013, "Estimating or propagating gradients through stochastic neurons". has_gradient: a mask of
    elements whose gradient passes to x; the others get 0. By default all pass.
    """
    g = Cotangent()(y)
    slope = g if has_gradient is None else Select()(has_gradient, g, t.full(g.shape, 0.0, g.dtype).node)
    return CustomGradient(1)(y, g, x, slope)


__all__ = ["Cotangent", "CustomGradient", "straight_through"]
