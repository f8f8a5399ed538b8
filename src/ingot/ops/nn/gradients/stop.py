"""A value that is differentiated as a constant."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class StopGradient(Op):
    """x, through which nothing has a gradient: PyTorch's detach, StopGradient of TensorFlow, JAX's stop_gradient."""

    name: ClassVar[str] = "stop_gradient"

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


__all__ = ["StopGradient"]
