"""Weights that a file stores as levels in blocks along the last axis: weight = (level - zero) * scale.

As a matrix they are a `Dequantize` of deferred levels, which products read as they are; as a table, rows are gathered
before they are dequantized. Nothing is decoded before it is packed into the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import cached_property

import numpy as np

from ingot import ops
from ingot.ir.node import Node, const, deferred_const
from ingot.ir.types import DType, TensorType, f32, i8, u8
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError


@dataclass(frozen=True)
class Levels:
    """shape: of the weight, [..., columns]. levels: -> dtype[*shape[:-1], blocks, block]. zero: a level that all share,
    or -> f32[*shape[:-1], blocks, 1], as `scale`."""

    name: str
    shape: tuple[int, ...]
    block: int
    dtype: DType
    levels: Callable[[], np.ndarray]
    zero: int | Callable[[], np.ndarray]
    scale: Callable[[], np.ndarray]

    def matrix(self) -> Node:
        """f32 of `shape`."""
        zero = self._zero if isinstance(self._zero, Node) else ops.scalar(self._zero, self.dtype)
        return ops.reshape(ops.Dequantize()(self._levels, zero, self._scale, loc=self.name), self.shape)

    def rows(self, ids: Node) -> Node:
        """f32[*ids.shape, *shape[1:]]. Levels of 4 bits are kept in pairs."""
        q = self._gathered(ids)
        if isinstance(self._zero, Node):
            zero = ops.Take(0)(self._zero, ids, loc=self.name)
        else:
            zero = ops.scalar(self._zero, q.dtype)
        scale = ops.Take(0)(self._scale, ids, loc=self.name)
        return ops.reshape(ops.Dequantize()(q, zero, scale, loc=self.name), (*ids.shape, *self.shape[1:]))

    # constants are equal where their arrays are the same objects: what reads this weight twice shares them

    @cached_property
    def _levels(self) -> Node:
        return self._deferred(self.dtype, self.block, self.levels)

    @cached_property
    def _scale(self) -> Node:
        return self._deferred(f32, 1, self.scale)

    @cached_property
    def _zero(self) -> int | Node:
        return self.zero if isinstance(self.zero, int) else self._deferred(f32, 1, self.zero)

    @cached_property
    def _pairs(self) -> Node:
        """uint8, two levels in each."""
        return self._deferred(u8, self.block // 2, lambda: _paired(self.levels()))

    @cached_property
    def _bytes(self) -> Node:
        """Levels of 4 bits, of which no two make a block's byte."""
        return self._deferred(i8, self.block, lambda: self.levels().astype(np.int8))

    def _deferred(self, dtype: DType, width: int, make: Callable[[], np.ndarray]) -> Node:
        shape = (*self.shape[:-1], self.shape[-1] // self.block, width)
        return deferred_const(TensorType(dtype, shape), make, self.name)

    def _gathered(self, ids: Node) -> Node:
        """Levels of 8 bits of the rows `ids`."""
        take = ops.Take(0)
        if self.dtype.bits == 8:
            return take(self._levels, ids, loc=self.name)
        if self.block % 2 or self.dtype.kind == "i":
            return take(self._bytes, ids, loc=self.name)
        pairs = ops.expand_dims(take(self._pairs, ids, loc=self.name), -1)
        nibbles = ops.and_(ops.apply(ops.ShiftRightLogical(), pairs, const(np.array([0, 4], np.uint8))), 15)
        return ops.reshape(nibbles, (*pairs.shape[:-2], self.block))


def _paired(levels: np.ndarray) -> np.ndarray:
    """Two unsigned levels a byte, the first in its lower bits."""
    plain = levels.astype(np.uint8)
    return plain[..., ::2] | plain[..., 1::2] << 4


def missing(name: str, names: Collection[str], where: str) -> ImportModelError:
    """The error of a tensor that the file does not have."""
    near = get_close_matches(name, names, 3) or f"{len(names)} others"
    return ImportModelError(f"no tensor {name!r}", expected="a tensor of the file", got=near, where=where)
