"""Values that are differentiated as constants, and those that must not be differentiated."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass


class _Same(Op):
    """x as it is."""

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
class StopGradient(_Same):
    """x, through which nothing has a gradient: PyTorch's detach, StopGradient of TensorFlow, JAX's stop_gradient."""

    name: ClassVar[str] = "stop_gradient"


@dataclass(frozen=True)
class UnknownGradient(_Same):
    """x where a function reads it that does not tell its gradient by x: refused where the loss depends on x so."""

    name: ClassVar[str] = "unknown_gradient"


__all__ = ["StopGradient", "UnknownGradient"]
