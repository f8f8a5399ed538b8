"""Caches of keys and values: state that programs write in place."""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import DimLike, dim_max
from ingot.ir.node import Input, Node
from ingot.ir.types import DType, TensorType, f32
from ingot.language.architecture import Architecture
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Position:
    """Where a chunk begins: as a size and as a value, i64[]."""

    size: DimLike
    value: Node


@dataclass(frozen=True)
class CacheForm:
    """Two tensors [batch, heads, context, width] of each layer, keys and values, of f32, f16 or bf16.

    Positions from the end of what was written on hold anything: no token reads them.
    """

    layers: int
    batch: int
    heads: int
    context: int
    width: int
    dtype: DType = f32

    @staticmethod
    def of(architecture: Architecture, batch: int, context: int, dtype: DType = f32) -> CacheForm:
        a = architecture
        return CacheForm(len(a.layers), batch, a.key_heads, context, a.head_width, dtype)

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, (self.batch, self.heads, self.context, self.width))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{what}.{i}" for i in range(self.layers) for what in ("keys", "values"))

    @property
    def nbytes(self) -> int:
        return 2 * self.layers * self.batch * self.heads * self.context * self.width * self.dtype.nbytes

    def inputs(self) -> tuple[Node, ...]:
        return tuple(Input(name, self.type)() for name in self.names)

    def written(self, cache: Node, chunk: Node, at: Position) -> Node:
        """The cache with `chunk`, f32[batch, heads, tokens, width], from `at` on."""
        zero = ops.scalar(0, at.value.dtype)
        return ops.DynamicUpdateSlice()(cache, ops.cast(chunk, self.dtype), zero, zero, at.value, zero)

    def read(self, cache: Node, at: Position, tokens: DimLike, window: int) -> tuple[Node, DimLike]:
        """(what `tokens` tokens from `at` on may see, f32; the position of the first of it)."""
        first = dim_max(at.size - (window - 1), 0) if window else 0
        size = (self.batch, self.heads, at.size + tokens, self.width)
        return ops.cast(ops.Slice((0, 0, first, 0), size, (1, 1, 1, 1))(cache), f32), first
