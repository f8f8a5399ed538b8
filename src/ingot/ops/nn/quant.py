"""Quantized values: integers that represent evenly spaced levels, and narrow floats with a scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import mul
from typing import ClassVar, TypeVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Cropped, Node, Op, Samples, deferred_const
from ingot.ir.types import Box, DType, TensorType, bf16, dtype_of, f8e4m3fn, f32, i8, i32, u4, u8
from ingot.ops.build import broadcast_shapes
from ingot.ops.core.base import round_to
from ingot.ops.nn.index import Take
from ingot.ops.nn.terms import Term, absolute, concat, round_even, term, where
from ingot.support.dataclass import dataclass

T = TypeVar("T")


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
        is_zero_valid = zero.dtype == x.dtype or (bool(scale) and zero.dtype == scale[0].dtype)
        self.expect(is_zero_valid, f"expected a zero of {x.dtype} or of the scale's type, got {zero}")
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


@dataclass(frozen=True)
class DequantizeBlocks(Op):
    """(x - zero) * scale + minimum, in f32 and rounded once to `dtype`: weights as block formats store them (ggml's).

    Operands: x, then `factors` factors of the scale, then either as many of the minimum or none. x: integers of 4 or 8
    bits. A scale and a minimum are the products of their factors in f32. Factors: integers of 8 bits or floats, which
    broadcast to x. bits: the bits of their type that the levels use: a signed level lies between -2^(bits - 1)
    and 2^(bits - 1) - 1. Products keep weights in this form (`passes/core/block_quantized.py`).
    """

    name: ClassVar[str] = "dequantize_blocks"
    duplicable: ClassVar[bool] = True
    zero: int = 0
    bits: int = 8
    factors: int = 1
    dtype: DType = f32

    def infer(self, *inputs: TensorType) -> TensorType:
        x, *factors = inputs
        self.expect(x.dtype.is_integer and x.dtype.bits in (4, 8), f"expected integers of 4 or 8 bits, got {x}")
        self.expect(1 <= self.bits <= x.dtype.bits, f"expected 1 to {x.dtype.bits} bits, got {self.bits}")
        counts = (self.factors, 2 * self.factors)
        self.expect(self.dtype in (f32, bf16), f"expected f32 or bf16 as the result, got {self.dtype}")
        self.expect(self.factors > 0 and len(factors) in counts, f"expected x and {counts} factors, got {len(factors)}")
        for p in factors:
            self.expect(p.dtype.is_float or (p.dtype.is_integer and p.dtype.bits == 8), f"got a factor {p}")
            self.expect(broadcast_shapes(x.shape, p.shape) == x.shape, f"expected {p} to broadcast to {x}")
        return x.with_dtype(self.dtype)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, *factors = inputs
        with np.errstate(all="ignore"):
            terms = [reduce(np.multiply, (p.astype(np.float32) for p in part)) for part in self.parts(factors)]
            y = (x.astype(np.float32) - np.float32(self.zero)) * terms[0]
            return round_to(y if len(terms) == 1 else y + terms[1], self.dtype)

    def lower(self, *inputs: Node) -> Node:
        x, *factors = map(Term, inputs)
        terms = [reduce(mul, (p.cast(f32) for p in part)) for part in self.parts(factors)]
        y = (x.cast(f32) - float(self.zero)) * terms[0]
        return (y if len(terms) == 1 else y + terms[1]).cast(self.dtype).node

    def parts(self, factors: Sequence[T]) -> list[Sequence[T]]:
        """The factors of the scale, and those of the minimum if there are any."""
        return [part for part in (factors[: self.factors], factors[self.factors :]) if part]

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(9)
        x = rng.integers(0, 16, (3, 2, 4, 8)).astype(np.uint8)
        unit = rng.normal(size=(3, 2, 1, 1)).astype(np.float16)
        scale = rng.integers(0, 64, (3, 2, 4, 1)).astype(np.uint8)
        yield cls(8, 4), (x, unit)
        yield cls(bits=5, factors=2), (x, scale, unit, scale[::-1], -unit)
        yield cls(bits=6, factors=2), (x.view(np.int8) - np.int8(8), scale.view(np.int8), unit)
        yield cls(bits=4), (x.astype(u4.numpy), unit.astype(np.float32), unit)
        yield cls(), (x[:0], unit[:0])
        yield cls(8, 4, dtype=bf16), (x, unit)


@dataclass(frozen=True)
class RoundToBytes(Op):
    """f32 values rounded to 8 bits in blocks: round_half_even(x / d) * d, where d is the largest |x| of a block / 127.

    Operand: x. dims: the dimensions of a block, whose levels share d. Levels are -127 to 127. A block with a NaN or an
    infinity is all NaN, one of zeros all zeros. The same as ggml's Q8_0 and Q8_K, except that d is not stored in
    16 bits. Products with weights of levels that read it are computed in integers (`passes/core/block_quantized.py`).
    """

    name: ClassVar[str] = "round_to_bytes"
    duplicable: ClassVar[bool] = True
    dims: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        self.expect(x.dtype == f32, f"expected f32, got {x}")
        self.expect(bool(self.dims) and all(0 <= d < x.rank for d in self.dims), f"expected dims of {x}")
        return x

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        return (self, (box,)) if all(box[d] == (0, inputs[0].shape[d]) for d in self.dims) else None

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        with np.errstate(all="ignore"):
            largest = np.abs(x).max(self.dims, keepdims=True, initial=0)
            levels = x * (np.float32(127) / largest)
            levels = np.where(np.abs(levels) < 128, np.rint(levels), np.float32(0))
            return (levels * (largest / np.float32(127))).astype(np.float32)

    def lower(self, *inputs: Node) -> Node:
        (x,) = map(Term, inputs)
        largest = term(absolute(x)).reduce("max", self.dims)
        levels = x * (127.0 / largest)
        levels = term(where(term(absolute(levels)) < 128.0, round_even(levels), 0.0))
        return (levels * (largest / 127.0)).node

    @classmethod
    def samples(cls) -> Samples:
        x = (np.random.default_rng(10).standard_normal((3, 2, 4, 8)) * 9).astype(np.float32)
        x[0, 0, 0], x[0, 0, 1, 2], x[0, 1, 0, 0], x[0, 1, 1, :2] = 0, np.nan, np.inf, (3e38, 1e-40)
        x[1, 0, 0] *= 1e-39
        yield cls((3,)), (x,)
        yield cls((2, 3)), (x,)
        yield cls((1,)), (x[..., 0],)
        yield cls((1,)), (x[:0, 0, 0],)


@dataclass(frozen=True)
class EmbeddingLookup(Op):
    """The rows `ids` of a table: [*ids.shape, *table.shape[1:]]. Ids beyond the table are the nearest within it.

    Operands: table, ids. It computes `Take(0)`, but reads a constant table in the form in which products store it: a
    table that is also the weight of the output layer is in memory once.
    """

    name: ClassVar[str] = "embedding_lookup"

    def infer(self, *inputs: TensorType) -> TensorType:
        return Take(0).infer(*inputs)

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        return Take(0).constraints(*inputs)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return Take(0).reference(*inputs)

    def lower(self, *inputs: Node) -> Node:
        """Rows of levels are gathered before they are dequantized. Levels of 4 bits stay in pairs."""
        table, ids = inputs
        q, *parameters = table.inputs or (table,)
        shapes = [n.shape[:1] for n in table.inputs]
        has_row_parameters = isinstance(table.op, Dequantize | DequantizeBlocks) and q.constant is not None
        if not has_row_parameters or not all(s == () or s == table.shape[:1] for s in shapes):
            return Take(0)(table, ids)
        levels = _gathered_levels(q, ids)
        gathered = [Take(0)(p, ids) if p.type.rank else p for p in parameters]
        gathered = [Term(p).cast(levels.dtype).node if p.dtype == q.dtype else p for p in gathered]
        return table.op(levels, *gathered, loc=table.loc)

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(3)
        table = rng.normal(size=(7, 5)).astype(np.float32)
        yield cls(), (table, np.asarray([[4, 0, 9], [-1, 6, 2]]))
        yield cls(), (table[:, :1], np.asarray(3, np.int32))
        yield cls(), (table, np.zeros((0, 2), np.int64))


def _gathered_levels(q: Node, ids: Node) -> Node:
    """Rows of constant levels, of 8 bits."""
    if q.dtype.bits == 8:
        return Take(0)(q, ids)

    def wide() -> np.ndarray:
        return q.constant.value.astype(np.int8)  # type: ignore[union-attr]

    if q.dtype != u4 or q.shape[-1] % 2:
        return Take(0)(deferred_const(TensorType(i8, q.shape), wide, q.loc, key=("wide", q)), ids)

    def pairs() -> np.ndarray:
        levels = q.constant.value.astype(np.uint8)  # type: ignore[union-attr]
        return levels[..., ::2] | levels[..., 1::2] << 4

    like = TensorType(u8, (*q.shape[:-1], q.shape[-1] // 2))
    packed = Term(Take(0)(deferred_const(like, pairs, q.loc, key=("pairs", q)), ids))
    return (
        concat([(packed & 15).expand(-1), (packed >> 4).expand(-1)], packed.rank)
        .reshape((*packed.shape[:-1], q.shape[-1]))
        .node
    )


__all__ = ["Dequantize", "DequantizeBlocks", "EmbeddingLookup", "RoundToBytes"]
