"""Slices at run-time offsets, which are clamped so that the slice is inside the operand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Samples
from ingot.ir.types import Shape, TensorType
from ingot.ops.core import samples as s
from ingot.ops.core.base import (
    Category,
    CoreOp,
    check_scalar_index,
    fit_constraints,
)
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class DynamicSlice(CoreOp):
    """The slice of x of shape `sizes` at run-time start indices (StableHLO dynamic_slice).

    Operands: x, then one integer scalar for each axis. Start indices are clamped so that the slice is inside x.
    """

    name: ClassVar[str] = "dynamic_slice"
    rearranges: ClassVar[bool] = True
    category: ClassVar[Category] = Category.GATHER
    sizes: Shape

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) > 0, "expected x and one start per axis of x")
        x, starts = inputs[0], inputs[1:]
        self.expect(len(starts) == x.rank, f"expected one start per axis of {x}, got {len(starts)}")
        check_scalar_index(self, starts)
        self.expect(len(self.sizes) == x.rank, f"expected {x.rank} sizes, got {self.sizes}")
        self.expect_constraints(*inputs)
        return x.with_shape(self.sizes)

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        return fit_constraints(self.sizes, inputs[0].shape, "window")

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, *starts = inputs
        return x[_window(x, [int(d) for d in self.sizes], starts)].copy()

    @classmethod
    def samples(cls) -> Samples:
        i = np.asarray
        yield cls((2, 3)), (s.iota(4, 5), i(1, np.int64), i(2, np.int64))
        yield cls((2, 3)), (s.iota(4, 5), i(9, np.int32), i(-4, np.int32))
        yield cls((0,)), (s.iota(3), i(2, np.int64))


@dataclass(frozen=True)
class DynamicUpdateSlice(CoreOp):
    """x with the slice at run-time start indices replaced by `update` (StableHLO dynamic_update_slice).

    Operands: x, update, then one integer scalar for each axis. Start indices are clamped so that update is inside x.
    """

    name: ClassVar[str] = "dynamic_update_slice"
    category: ClassVar[Category] = Category.SCATTER

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) > 1, "expected x, update and one start per axis of x")
        x, update, starts = inputs[0], inputs[1], inputs[2:]
        self.expect(len(starts) == x.rank, f"expected one start per axis of {x}, got {len(starts)}")
        check_scalar_index(self, starts)
        self.expect(
            update.dtype == x.dtype and update.rank == x.rank,
            f"expected an update of dtype {x.dtype} and rank {x.rank}, got {update}",
        )
        self.expect_constraints(*inputs)
        return x

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        return fit_constraints(inputs[1].shape, inputs[0].shape, "update")

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, update, *starts = inputs
        out = x.copy()
        out[_window(x, list(update.shape), starts)] = update
        return out

    @classmethod
    def samples(cls) -> Samples:
        i = np.asarray
        yield cls(), (s.iota(4, 5), -s.iota(2, 3), i(1, np.int64), i(2, np.int64))
        yield cls(), (s.iota(4, 5), -s.iota(2, 3), i(9, np.int64), i(-4, np.int64))


def _window(x: np.ndarray, sizes: list[int], starts: list[np.ndarray]) -> tuple[slice, ...]:
    """The slices of `sizes` at `starts`, clamped into x."""
    offsets = [min(max(int(s), 0), n - w) for s, n, w in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(a, a + w) for a, w in zip(offsets, sizes, strict=True))
