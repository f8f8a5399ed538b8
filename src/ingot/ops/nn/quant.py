"""Quantized values: integers that represent evenly spaced levels, and narrow floats with a scale."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import DType, TensorType, dtype_of, f8e4m3fn, f32, i32
from ingot.ops.build import broadcast_shapes
from ingot.ops.core.base import round_to
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


def _compute_dtype(scale: DType) -> DType:
    return f32 if scale.bits < 32 else scale


@dataclass(frozen=True)
class Dequantize(Op):
    """(x - zero) * scale in the dtype of scale, or x - zero in i32 without a scale (ONNX DequantizeLinear).

    Operands: x, zero[, scale]. x: integers of at most 32 bits, or, with a scale, floats of at most 8 bits. zero: the
    dtype of x or of scale. zero and scale broadcast to x. f16 and bf16 are computed in f32. Products of dequantized
    values are computed in 8 bits if the machine supports it (`passes/core/quantized.py`); weights stay quantized in
    memory (`passes/core/block_quantized.py`).
    """

    name: ClassVar[str] = "dequantize"
    duplicable: ClassVar[bool] = True

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) in (2, 3), f"expected x, zero and maybe scale, got {len(inputs)} operands")
        x, zero, *scale = inputs
        is_quantized = x.dtype.is_integer and x.dtype.bits <= 32
        is_quantized = is_quantized or (x.dtype.is_float and x.dtype.bits <= 8 and bool(scale))
        self.expect(is_quantized, f"expected integers of at most 32 bits, or floats of at most 8 and a scale, got {x}")
        zero_fits = zero.dtype == x.dtype or (bool(scale) and zero.dtype == scale[0].dtype)
        self.expect(zero_fits, f"expected a zero of {x.dtype} or of the scale's type, got {zero}")
        for p in (zero, *scale):
            self.expect(broadcast_shapes(x.shape, p.shape) == x.shape, f"expected {p} to broadcast to {x}")
        if not scale:
            return TensorType(i32, x.shape)
        self.expect(scale[0].dtype.is_float, f"expected a scale of floats, got {scale[0]}")
        return TensorType(scale[0].dtype, x.shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, zero, *scale = inputs
        if not scale:
            return x.astype(np.int32) - zero.astype(np.int32)
        dtype = _compute_dtype(dtype_of(scale[0])).numpy
        with np.errstate(all="ignore"):
            y = (x.astype(dtype) - zero.astype(dtype)) * scale[0].astype(dtype)
        return round_to(y, dtype_of(scale[0]))

    def lower(self, *inputs: Node) -> Node:
        x, zero, *scale = map(Term, inputs)
        if not scale:
            return (x.cast(i32) - zero.cast(i32)).node
        dtype = _compute_dtype(scale[0].dtype)
        return ((x.cast(dtype) - zero.cast(dtype)) * scale[0].cast(dtype)).cast(scale[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(8)
        x = rng.integers(0, 256, (3, 4, 5)).astype(np.uint8)
        scale, zero = np.array(0.03, np.float32), np.array(7, np.uint8)
        yield cls(), (x, zero, scale)
        yield cls(), (x, zero)
        yield cls(), (x.view(np.int8), np.zeros((), np.int8), rng.random((4, 1)).astype(np.float32))
        yield cls(), (x.view(np.int8), rng.integers(-9, 9, (3, 1, 1)).astype(np.int8))
        yield cls(), (x.astype(np.int32), np.array(-3, np.int32), np.array(0.5, np.float16))
        yield cls(), (x, zero, np.array(0.1))
        yield cls(), (x, rng.random((4, 1)).astype(np.float32), scale)
        yield cls(), (x[:0], zero, scale)
        narrow = f8e4m3fn.numpy
        yield cls(), (rng.normal(size=(3, 4)).astype(narrow), np.zeros((), narrow), scale)


__all__ = ["Dequantize"]
