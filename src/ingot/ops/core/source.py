"""Ops without tensor operands: iota, and symbolic sizes as values."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Samples
from ingot.ir.types import DTYPES, TensorType, i64
from ingot.ops.core.base import (
    Category,
    CoreOp,
    Perm,
    check_count,
    check_dims,
    inverse,
    permute,
)
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Iota(CoreOp):
    """A tensor of `type` whose elements are their index along `dimension` (StableHLO iota)."""

    name: ClassVar[str] = "iota"
    duplicable: ClassVar[bool] = True
    category: ClassVar[Category] = Category.SOURCE
    type: TensorType
    dimension: int

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 0)
        self.expect(self.type.dtype.kind != "b", "expected a number type, got bool")
        check_dims(self, (self.dimension,), self.type.rank, "dimension")
        return self.type

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        shape = tuple(int(d) for d in self.type.shape)
        values = np.arange(shape[self.dimension]).astype(self.type.dtype.numpy)
        axis_shape = [-1 if d == self.dimension else 1 for d in range(len(shape))]
        return np.ascontiguousarray(np.broadcast_to(values.reshape(axis_shape), shape))

    def absorb_transpose(self, perm: Perm) -> CoreOp | None:
        return Iota(TensorType(self.type.dtype, permute(self.type.shape, perm)), inverse(perm)[self.dimension])

    @classmethod
    def samples(cls) -> Samples:
        for dtype in ("f32", "i64", "u8", "bf16"):
            yield cls(TensorType(DTYPES[dtype], (3, 5)), 1), ()
        yield cls(TensorType(DTYPES["i32"], (0,)), 0), ()


@dataclass(frozen=True)
class DimValue(CoreOp):
    """The size `dim`, static or symbolic, as an i64 scalar."""

    name: ClassVar[str] = "dim_value"
    duplicable: ClassVar[bool] = True
    category: ClassVar[Category] = Category.SOURCE
    dim: DimLike

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 0)
        return TensorType(i64)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return np.asarray(int(self.dim), np.int64)

    @classmethod
    def samples(cls) -> Samples:
        yield cls(7), ()
