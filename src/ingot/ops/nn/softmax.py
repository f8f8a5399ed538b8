"""The softmax family. Rows with +inf or only -inf give NaN, as in PyTorch and ONNX. Narrow floats are computed in
f32."""

from __future__ import annotations

from typing import ClassVar

import ml_dtypes
import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, dtype_of
from ingot.ops.core.base import check_count, check_dims, round_to
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

_INF = float("inf")


def _rows() -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(4, 7, 3)) * 3
    x[0, 2, 0], x[1, :, 1], x[2, 3, 2], x[3, 0, 0] = -_INF, -_INF, _INF, np.nan
    x[3, :, 1] += 1000
    return x


@dataclass(frozen=True)
class Normalizer(Op):
    """Base of softmax and log_softmax: floats [*] -> floats [*], along a non-negative `axis`."""

    axis: int = -1

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        check_dims(self, (self.axis,), x.rank, "axis")
        self.expect(x.dtype.is_float, f"expected a float operand, got {x}; convert it first")
        return x

    @classmethod
    def samples(cls) -> Samples:
        for axis in range(3):
            yield cls(axis), (_rows().astype(np.float32),)
        yield cls(1), (_rows().astype(np.float16),)
        yield cls(2), (_rows().astype(ml_dtypes.bfloat16),)
        yield cls(1), (_rows(),)
        yield cls(1), (np.zeros((3, 0), np.float32),)
        yield cls(0), (np.zeros((3, 0), np.float32),)
        yield cls(0), (np.ones((1,), np.float32),)


@dataclass(frozen=True)
class Softmax(Normalizer):
    """e^(x - max) / sum e^(x - max), along `axis`."""

    name: ClassVar[str] = "softmax"

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x = t.as_f64(inputs[0])
        with np.errstate(all="ignore"):
            e = np.exp(x - x.max(self.axis, keepdims=True, initial=-_INF))
            return round_to(e / e.sum(self.axis, keepdims=True), dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x = t.widen_narrow(inputs[0])
        e = t.exp(x - x.max((self.axis,)))
        # one division per row: the sum is at least 1 unless the row is empty
        return (e * (1.0 / e.sum((self.axis,)))).cast(inputs[0].dtype).node


@dataclass(frozen=True)
class LogSoftmax(Normalizer):
    """x - max - log(sum e^(x - max)), along `axis`."""

    name: ClassVar[str] = "log_softmax"

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x = t.as_f64(inputs[0])
        with np.errstate(all="ignore"):
            d = x - x.max(self.axis, keepdims=True, initial=-_INF)
            return round_to(d - np.log(np.exp(d).sum(self.axis, keepdims=True)), dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x = t.widen_narrow(inputs[0])
        d = x - x.max((self.axis,))
        return (d - t.log(t.exp(d).sum((self.axis,)))).cast(inputs[0].dtype).node


@dataclass(frozen=True)
class LogSumExp(Op):
    """log(sum e^x) over `axes`, without overflow: -inf for no elements or only -inf, inf if any element is inf.

    keepdims: `axes` remain with size 1.
    """

    name: ClassVar[str] = "log_sum_exp"
    axes: tuple[int, ...]
    keepdims: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        check_dims(self, self.axes, x.rank, "axes")
        self.expect(x.dtype.is_float, f"expected a float operand, got {x}; convert it first")
        if self.keepdims:
            return x.with_shape(tuple(1 if i in self.axes else d for i, d in enumerate(x.shape)))
        return x.with_shape(tuple(d for i, d in enumerate(x.shape) if i not in self.axes))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x = t.as_f64(inputs[0])
        with np.errstate(all="ignore"):
            row_max = x.max(self.axes, keepdims=True, initial=-_INF)
            row_max = np.where(np.isinf(row_max), 0, row_max)
            out = np.log(np.exp(x - row_max).sum(self.axes, keepdims=True)) + row_max
        return round_to(out if self.keepdims else np.squeeze(out, self.axes), dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x = t.widen_narrow(inputs[0])
        unguarded_max = x.max(self.axes, keepdims=False)
        row_max = t.where(t.equals(t.absolute(unguarded_max), _INF), 0.0, unguarded_max)
        assert isinstance(row_max, Term)
        out = t.log(t.exp(x - row_max.restore(x.shape, self.axes)).sum(self.axes, keepdims=False)) + row_max
        return (out.expand(*self.axes) if self.keepdims else out).cast(inputs[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        x = _rows().astype(np.float32)
        for axes in ((0,), (1,), (0, 2), (0, 1, 2), ()):
            yield cls(axes, True), (x,)
            yield cls(axes), (x,)
        yield cls((1,)), (np.zeros((2, 0), np.float32),)
        yield cls((1,)), (_rows().astype(np.float16),)
        yield cls((1,)), (_rows(),)
