"""Weights that a file stores as levels in blocks along the last axis: weight = (level - zero) * scale.

As a matrix they are a `Dequantize` of deferred levels, which products read without dequantizing; of a table, rows
are gathered before they are dequantized (`EmbeddingLookup`). Nothing is decoded before it is packed into the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import cached_property

import numpy as np

from ingot import ops
from ingot.ir.node import Node, deferred_const
from ingot.ir.types import DType, TensorType, f32
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError


@dataclass(frozen=True)
class Levels:
    """shape: of the weight, [..., columns]. levels: -> dtype[*shape[:-1], blocks, block]. zero: one level for all
    blocks, or -> f32[*shape[:-1], blocks, 1], as `scale`."""

    name: str
    shape: tuple[int, ...]
    block: int
    dtype: DType
    levels: Callable[[], np.ndarray]
    zero: int | Callable[[], np.ndarray]
    scale: Callable[[], np.ndarray]

    def matrix(self) -> Node:
        """f32 of `shape`."""
        return ops.reshape(self._weights, self.shape)

    def rows(self, ids: Node) -> Node:
        """f32[*ids.shape, *shape[1:]]."""
        return ops.reshape(ops.EmbeddingLookup()(self._weights, ids, loc=self.name), (*ids.shape, *self.shape[1:]))

    @cached_property
    def _weights(self) -> Node:
        """Cached: constants are equal only where their arrays are the same object, so all readers of the weight share
        one node."""
        zero = ops.scalar(self.zero, self.dtype) if isinstance(self.zero, int) else self._deferred(f32, 1, self.zero)
        levels, scale = self._deferred(self.dtype, self.block, self.levels), self._deferred(f32, 1, self.scale)
        return ops.Dequantize()(levels, zero, scale, loc=self.name)

    def _deferred(self, dtype: DType, width: int, decode: Callable[[], np.ndarray]) -> Node:
        shape = (*self.shape[:-1], self.shape[-1] // self.block, width)
        return deferred_const(TensorType(dtype, shape), decode, self.name)


def unpacked(octets: np.ndarray, bits: int) -> np.ndarray:
    """uint8[..., n] -> uint8[..., n * 8 / bits]: the levels in each byte, the lowest bits first."""
    if bits == 8:
        return octets
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (octets[..., None] >> shifts & np.uint8((1 << bits) - 1)).reshape(*octets.shape[:-1], -1)


def missing(name: str, names: Collection[str], where: str) -> ImportModelError:
    """The error of a tensor that the file does not have."""
    near = get_close_matches(name, names, 3) or f"{len(names)} others"
    return ImportModelError(f"no tensor {name!r}", expected="a tensor of the file", got=near, where=where)
