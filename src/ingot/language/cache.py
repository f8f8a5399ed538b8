"""Caches of keys and values: state that programs write in place."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import DimLike, dim_max
from ingot.ir.node import Input, Node
from ingot.ir.types import DType, TensorType, bf16, f16, f32, i8
from ingot.language.architecture import Architecture
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

DTYPES = (f32, f16, bf16, i8)


@dataclass(frozen=True)
class Position:
    """Where a chunk begins: as a size and as a value, i64[]."""

    size: DimLike
    value: Node


@dataclass(frozen=True)
class CacheForm:
    """The tensors of all layers in order, by name.

    Of attention keys and values, [batch, heads, context, width] of f32, f16 or bf16; of i8 each followed by a scale for
    each position of each head. Positions from the end of what was written on hold anything, for no token reads them.
    Of a convolution over n tokens the n - 1 that came last: f32[batch, n - 1, width].
    """

    batch: int
    context: int
    layers: tuple[tuple[tuple[str, TensorType], ...], ...]

    @staticmethod
    def of(architecture: Architecture, batch: int, context: int, dtype: DType = f32) -> CacheForm:
        if dtype not in DTYPES:
            raise InputError("caches", expected=f"one of {', '.join(map(str, DTYPES))}", got=dtype)
        a = architecture
        shape = (batch, a.key_heads, context)
        kept = [("", TensorType(dtype, (*shape, a.head_width)))]
        if dtype == i8:
            kept.append(("_scales", TensorType(f32, (*shape, 1))))
        layers: list[tuple[tuple[str, TensorType], ...]] = []
        for i, layer in enumerate(a.layers):
            if layer.convolution:
                layers.append(((f"recent.{i}", TensorType(f32, (batch, layer.convolution - 1, a.width))),))
            else:
                layers.append(tuple((f"{what}{part}.{i}", t) for what in ("keys", "values") for part, t in kept))
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


def written(cache: Sequence[Node], chunk: Node, at: Position) -> tuple[Node, ...]:
    """The tensors of keys or of values with `chunk`, f32[batch, heads, tokens, width], from `at` on."""
    zero = ops.scalar(0, at.value.dtype)
    first, *scales = cache
    parts = _levels(chunk) if scales else (ops.cast(chunk, first.dtype),)
    update = ops.DynamicUpdateSlice()
    return tuple(update(whole, part, zero, zero, at.value, zero) for whole, part in zip(cache, parts, strict=True))


def _levels(x: Node) -> tuple[Node, Node]:
    """(i8, their scale): each row's largest is 127."""
    scale = ops.div(ops.reduce_max(ops.Abs()(x), -1, keepdims=True), 127.0)
    divisor = ops.where(ops.compare("EQ", scale, 0.0), 1.0, scale)
    return ops.quantize(x, ops.broadcast_to(divisor, x.shape), ops.scalar(0, i8)), scale


def read(cache: Sequence[Node], at: Position, tokens: DimLike, window: int) -> tuple[Node, DimLike]:
    """(what `tokens` tokens from `at` on may see, f32; the position of the first of it)."""
    first = dim_max(at.size - (window - 1), 0) if window else 0
    seen: list[Node] = []
    for part in cache:
        batch, heads, _, width = part.shape
        slice = ops.Slice((0, 0, first, 0), (batch, heads, at.size + tokens, width), (1, 1, 1, 1))
        seen.append(ops.cast(slice(part), f32))
    return functools.reduce(ops.mul, seen), first


def recent(cache: Node, at: Position) -> Node:
    """What came before a chunk: zeros at the start of a sequence, whatever an earlier one left."""
    return ops.where(ops.compare("EQ", at.value, 0), 0.0, cache)
