"""Quantized values: integers that stand for evenly spaced levels, and floats of few bits with a scale."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import DType, TensorType, dtype_of, f8e4m3fn, f32, i32
from ingot.ops.build import broadcast_shapes
from ingot.ops.core.base import round_to
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


def _computed_in(scale: DType) -> DType:
    return f32 if scale.bits < 32 else scale


@dataclass(frozen=True)
class Dequantize(Op):
    """x, zero -> x - zero, i32; x, zero, scale -> (x - zero) * scale, of scale's type: ONNX's DequantizeLinear.

    x: integers of at most 32 bits, or floats of at most 8, which have a scale. zero: of x's type, or of scale's. zero
    and scale broadcast against x without making it larger. f16 and bf16 are computed in f32. Products of such values
    are computed in 8 bits where the machine is made for it (`passes/core/quantized.py`); weights stay as small as they
    are (`passes/core/block_quantized.py`).
    """

    name: ClassVar[str] = "dequantize"
    duplicable: ClassVar[bool] = True

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) in (2, 3), f"expected x, zero and maybe scale, got {len(inputs)} operands")
        x, zero, *scale = inputs
        levels = x.dtype.is_integer and x.dtype.bits <= 32
        levels = levels or (x.dtype.is_float and x.dtype.bits <= 8 and bool(scale))
        self.expect(levels, f"expected integers of at most 32 bits, or floats of at most 8 and a scale, got {x}")
        same = zero.dtype == x.dtype or (bool(scale) and zero.dtype == scale[0].dtype)
        self.expect(same, f"expected a zero of {x.dtype} or of the scale's type, got {zero}")
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
        wide = _computed_in(dtype_of(scale[0])).numpy
        with np.errstate(all="ignore"):
            y = (x.astype(wide) - zero.astype(wide)) * scale[0].astype(wide)
        return round_to(y, dtype_of(scale[0]))

    def lower(self, *inputs: Node) -> Node:
        x, zero, *scale = map(Term, inputs)
        if not scale:
            return (x.cast(i32) - zero.cast(i32)).node
        wide = _computed_in(scale[0].dtype)
        return ((x.cast(wide) - zero.cast(wide)) * scale[0].cast(wide)).cast(scale[0].dtype).node

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
