"""Tiny ops for tests of the IR, so that they do not depend on the catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op
from ingot.ir.types import DType, TensorType, boolean, f32, i64


@dataclass(frozen=True)
class TAdd(Op):
    name: ClassVar[str] = "t.add"
    commutative: ClassVar[bool] = True

    def infer(self, *inputs: TensorType) -> TensorType:
        a, b = inputs
        self.expect(a == b, f"operands differ: expected {a}, got {b}")
        return a

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0] + inputs[1]


@dataclass(frozen=True)
class TNeg(Op):
    name: ClassVar[str] = "t.negate"

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0]

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return -inputs[0]


@dataclass(frozen=True)
class TBroadcast(Op):
    """Adds leading dims."""

    name: ClassVar[str] = "t.broadcast"
    shape: tuple[DimLike, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        return TensorType(inputs[0].dtype, self.shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return np.broadcast_to(inputs[0], self.shape)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TSplit(Op):
    """Halves on axis 0."""

    name: ClassVar[str] = "t.split"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        half = inputs[0].with_shape((inputs[0].shape[0] // 2, *inputs[0].shape[1:]))
        return half, half

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        a, b = np.split(inputs[0], 2)
        return a, b


@dataclass(frozen=True)
class TAttrs(Op):
    """An op with every kind of attribute."""

    name: ClassVar[str] = "t.attrs"
    none: None
    flag: bool
    count: int
    ratio: float
    text: str
    dtype: DType
    type: TensorType
    dims: tuple[object, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0]

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0]


@dataclass(frozen=True)
class TCall(Op):
    """Runs its body."""

    name: ClassVar[str] = "t.call"
    body: Graph

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return tuple(n.type for n in self.body.outputs)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return interpret(self.body, inputs)


@dataclass(frozen=True)
class TLiar(Op):
    """Its reference gives another dtype than its type rule promises."""

    name: ClassVar[str] = "t.liar"

    def infer(self, *inputs: TensorType) -> TensorType:
        return TensorType(boolean, inputs[0].shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0]


def arg(label: str, *shape: DimLike, dtype: DType = f32) -> Node:
    return Input(label, TensorType(dtype, shape))()


def index_arg(label: str, *shape: DimLike) -> Node:
    return arg(label, *shape, dtype=i64)
