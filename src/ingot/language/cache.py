"""Caches of keys and values: state that programs write in place."""

from __future__ import annotations

from collections.abc import Sequence

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
    """The tensors of all layers in order, by name.

    Of attention keys and values, [batch, heads, context, width] of f32, f16 or bf16: positions from the end of what was
    written on hold anything, for no token reads them. Of a convolution over n tokens the n - 1 that came last:
    f32[batch, n - 1, width].
    """

    batch: int
    context: int
    layers: tuple[tuple[tuple[str, TensorType], ...], ...]

    @staticmethod
    def of(architecture: Architecture, batch: int, context: int, dtype: DType = f32) -> CacheForm:
        a = architecture
        kept = TensorType(dtype, (batch, a.key_heads, context, a.head_width))
        layers: list[tuple[tuple[str, TensorType], ...]] = []
        for i, layer in enumerate(a.layers):
            if layer.convolution:
                layers.append(((f"recent.{i}", TensorType(f32, (batch, layer.convolution - 1, a.width))),))
            else:
                layers.append(((f"keys.{i}", kept), (f"values.{i}", kept)))
        return CacheForm(batch, context, tuple(layers))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for layer in self.layers for name, _ in layer)

    def inputs(self) -> tuple[Node, ...]:
        return tuple(Input(name, type)() for layer in self.layers for name, type in layer)

    def by_layer(self, caches: Sequence[Node]) -> list[tuple[Node, ...]]:
        """Those of each layer, of all of them in order."""
        rest = iter(caches)
        return [tuple(next(rest) for _ in layer) for layer in self.layers]


def written(cache: Node, chunk: Node, at: Position) -> Node:
    """A cache with `chunk`, f32[batch, heads, tokens, width], from `at` on."""
    zero = ops.scalar(0, at.value.dtype)
    return ops.DynamicUpdateSlice()(cache, ops.cast(chunk, cache.dtype), zero, zero, at.value, zero)


def read(cache: Node, at: Position, tokens: DimLike, window: int) -> tuple[Node, DimLike]:
    """(what `tokens` tokens from `at` on may see, f32; the position of the first of it)."""
    first = dim_max(at.size - (window - 1), 0) if window else 0
    batch, heads, _, width = cache.shape
    seen = ops.Slice((0, 0, first, 0), (batch, heads, at.size + tokens, width), (1, 1, 1, 1))(cache)
    return ops.cast(seen, f32), first


def recent(cache: Node, at: Position) -> Node:
    """What came before a chunk: zeros at the start of a sequence, whatever an earlier one left."""
    return ops.where(ops.compare("EQ", at.value, 0), 0.0, cache)
