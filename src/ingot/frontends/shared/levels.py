"""Weights that a file stores as levels in blocks along the last axis: weight = (level - zero) * scale.

As a matrix they are a `Dequantize` of deferred levels, which products read as they are; as a table, rows are gathered
before they are dequantized. Nothing is decoded before it is packed into the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from difflib import get_close_matches

import numpy as np

from ingot import ops
from ingot.ir.node import Node, const, deferred
from ingot.ir.types import DType, TensorType, f32, i8, u8
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError


@dataclass(frozen=True)
class Levels:
    """shape: of the weight, [..., columns]. levels: -> dtype[*shape[:-1], blocks, block]. zero: a level that all share,
    or -> f32[*shape[:-1], blocks, 1], as `scale`."""

    shape: tuple[int, ...]
    block: int
    dtype: DType
    levels: Callable[[], np.ndarray]
    zero: int | Callable[[], np.ndarray]
    scale: Callable[[], np.ndarray]

    @property
    def blocks(self) -> int:
        return self.shape[-1] // self.block

    def matrix(self, loc: str = "") -> Node:
        """f32 of `shape`."""
        shape = (*self.shape[:-1], self.blocks, self.block)
        q = deferred(TensorType(self.dtype, shape), self.levels, loc)
        zero = ops.scalar(self.zero, self.dtype) if isinstance(self.zero, int) else self._parameters(self.zero, loc)
        return ops.reshape(ops.Dequantize()(q, zero, self._parameters(self.scale, loc), loc=loc), self.shape)

    def rows(self, ids: Node, loc: str = "") -> Node:
        """f32[*ids.shape, *shape[1:]]. Levels of 4 bits are kept in pairs."""
        q = self._gathered(ids, loc)
        if isinstance(self.zero, int):
            zero = ops.scalar(self.zero, q.dtype)
        else:
            zero = ops.Take(0)(self._parameters(self.zero, loc), ids, loc=loc)
        scale = ops.Take(0)(self._parameters(self.scale, loc), ids, loc=loc)
        return ops.reshape(ops.Dequantize()(q, zero, scale, loc=loc), (*ids.shape, *self.shape[1:]))

    def _parameters(self, make: Callable[[], np.ndarray], loc: str) -> Node:
        return deferred(TensorType(f32, (*self.shape[:-1], self.blocks, 1)), make, loc)

    def _gathered(self, ids: Node, loc: str) -> Node:
        """Levels of 8 bits of the rows `ids`."""
        shape = (*self.shape[:-1], self.blocks, self.block)
        if self.dtype.bits == 8:
            return ops.Take(0)(deferred(TensorType(self.dtype, shape), self.levels, loc), ids, loc=loc)
        bias = 8 if self.dtype.kind == "i" else 0
        if self.block % 2:
            wide = deferred(TensorType(i8, shape), lambda: self.levels().astype(np.int8), loc)
            return ops.Take(0)(wide, ids, loc=loc)
        half = (*shape[:-1], self.block // 2)
        pairs = deferred(TensorType(u8, half), lambda: _paired(self.levels(), bias), loc)
        rows = ops.expand_dims(ops.Take(0)(pairs, ids, loc=loc), -1)
        shifts = const(np.array([0, 4], np.uint8))
        nibbles = ops.and_(ops.apply(ops.ShiftRightLogical(), rows, shifts), ops.scalar(15, u8))
        levels = ops.reshape(nibbles, (*ids.shape, *shape[1:]))
        return ops.sub(ops.cast(levels, i8), ops.scalar(bias, i8)) if bias else levels


def _paired(levels: np.ndarray, bias: int) -> np.ndarray:
    """Two levels a byte, the first in its lower bits; biased, so that none is negative."""
    plain = (levels.astype(np.int8) + np.int8(bias)).view(np.uint8)
    return plain[..., ::2] | plain[..., 1::2] << 4


def missing(name: str, names: Collection[str], where: str) -> ImportModelError:
    """The error of a tensor that the file does not have."""
    near = get_close_matches(name, names, 3) or f"{len(names)} others"
    return ImportModelError(f"no tensor {name!r}", expected="a tensor of the file", got=near, where=where)
