"""Values that are constants in differentiation, and values that must not be differentiated."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass


class _Identity(Op):
    """Base: the identity."""

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) == 1, f"expected 1 operand, got {len(inputs)}")
        return inputs[0]

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0]

    def lower(self, *inputs: Node) -> Node:
        return inputs[0]

    @classmethod
    def samples(cls) -> Samples:
        yield cls(), (np.array([[1.0, np.nan], [-0.0, np.inf]], np.float32),)


@dataclass(frozen=True)
class StopGradient(_Identity):
    """x, with gradient 0 (torch.Tensor.detach, tf.stop_gradient, jax.lax.stop_gradient)."""

    name: ClassVar[str] = "stop_gradient"


@dataclass(frozen=True)
class UnknownGradient(_Identity):
    """x as an operand of a function whose gradient with respect to x is unknown.

    Differentiation raises an error if the loss depends on it.
    """

    name: ClassVar[str] = "unknown_gradient"


__all__ = ["StopGradient", "UnknownGradient"]
