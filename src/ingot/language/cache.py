"""Caches of keys and values: state that programs write in place."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import DimLike, dim_max
from ingot.ir.node import Input, Node
from ingot.ir.types import DType, TensorType, bf16, f8e4m3fn, f8e5m2, f16, f32, i8, i64
from ingot.language.architecture import Architecture
from ingot.language.engine.paging import PAGE
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

DTYPES = (f32, f16, bf16, i8, f8e4m3fn, f8e5m2)
_LARGEST = {f8e4m3fn: 448.0, f8e5m2: 57344.0}  # larger values are stored as this: they are NaN or infinite otherwise


@dataclass(frozen=True)
class Position:
    """The position at which a chunk begins, as a size and as a value, i64[]. size: None of one token if a device keeps
    it."""

    size: DimLike | None
    value: Node


@dataclass(frozen=True)
class CacheForm:
    """The cache tensors of all layers in order, by name.

    Attention has keys and values, [batch, heads, context, width] of one of `DTYPES`; those of i8 are each followed
    by scales for each position of each head. Positions that were not written have arbitrary values, as no token reads
    them. With a window they may be ring buffers, [batch, heads, window, width], with position p at p modulo the window.
    A convolution over n tokens has the last n - 1: f32[batch, n - 1, width].
    """

    batch: int
    context: int
    layers: tuple[tuple[tuple[str, TensorType], ...], ...]
    pages: int = 0  # of a pool; 0: not paged

    @staticmethod
    def of(
        architecture: Architecture, batch: int, context: int, dtype: DType = f32, *, has_rings: bool = False
    ) -> CacheForm:
        """has_rings: layers with a window only keep that; a sequence can then only be continued at its end."""
        if dtype not in DTYPES:
            raise InputError("caches", expected=f"one of {', '.join(map(str, DTYPES))}", got=dtype)
        a = architecture
        widths = [("", dtype, a.head_width), *([("_scales", f32, 1)] if dtype == i8 else [])]
        layers: list[tuple[tuple[str, TensorType], ...]] = []
        for i, layer in enumerate(a.layers):
            if layer.convolution:
                layers.append(((f"recent.{i}", TensorType(f32, (batch, layer.convolution - 1, a.width))),))
            else:
                positions = min(layer.window or context, context) if has_rings else context
                parts = [(part, TensorType(t, (batch, a.key_heads, positions, width))) for part, t, width in widths]
                layers.append(tuple((f"{what}{part}.{i}", t) for what in ("keys", "values") for part, t in parts))
        return CacheForm(batch, context, tuple(layers))

    @staticmethod
    def paged(architecture: Architecture, sequences: int, context: int, pages: int, dtype: DType = f32) -> CacheForm:
        """Pools that sequences share: keys and values are [heads, pages * PAGE, width], and a table has the pages of
        each sequence; a convolution has f32[sequences, n - 1, width]."""
        form = CacheForm.of(architecture, sequences, context, dtype)
        layers = tuple(
            tuple(
                (name, t.with_shape((t.shape[1], pages * PAGE, t.shape[3])) if t.rank == 4 else t)
                for name, t in tensors
            )
            for tensors in form.layers
        )
        return CacheForm(sequences, context, layers, pages)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for layer in self.layers for name, _ in layer)

    @property
    def nbytes(self) -> int:
        return sum(int(t.nbytes) for layer in self.layers for _, t in layer)

    def inputs(self) -> tuple[Node, ...]:
        return tuple(Input(name, type)() for layer in self.layers for name, type in layer)

    def by_layer(self, caches: Sequence[Node]) -> list[tuple[Node, ...]]:
        """Split the tensors of all layers, in order, by layer."""
        rest = iter(caches)
        return [tuple(next(rest) for _ in layer) for layer in self.layers]


def with_rows(cache: Sequence[Node], chunk: Node, at: Position) -> tuple[Node, ...]:
    """The tensors of keys or of values, with `chunk`, f32[batch, heads, tokens, width], written from `at` on."""
    return _updated(cache, _stored(cache, chunk), at.value)


def _updated(cache: Sequence[Node], parts: Sequence[Node], start: Node) -> tuple[Node, ...]:
    zero, update = ops.scalar(0, start.dtype), ops.DynamicUpdateSlice()
    return tuple(update(tensor, part, zero, zero, start, zero) for tensor, part in zip(cache, parts, strict=True))


def _stored(cache: Sequence[Node], chunk: Node) -> tuple[Node, ...]:
    """A chunk in the format of a cache's tensors."""
    if len(cache) > 1:
        return _levels(chunk)
    largest = _LARGEST.get(cache[0].dtype)
    chunk = chunk if largest is None else ops.clip(chunk, -largest, largest)
    return (ops.cast(chunk, cache[0].dtype),)


def _wide(parts: Sequence[Node]) -> Node:
    """The contents of a cache as f32."""
    return functools.reduce(ops.mul, (ops.cast(part, f32) for part in parts))


def through_ring(cache: Sequence[Node], chunk: Node, at: Position) -> tuple[tuple[Node, ...], Node]:
    """(the ring buffers of keys or of values after `chunk`, f32[batch, heads, tokens, width]; the f32 elements that its
    tokens may attend to, at the positions of `ring_positions`)."""
    size, tokens = cache[0].shape[2], chunk.shape[2]
    parts = _stored(cache, chunk)
    if tokens == 1:
        after = _updated(cache, parts, ops.floor_mod(at.value, size))
        return after, _wide(after)
    # a new sequence must not read remains of an earlier one, not even times 0
    cache = [ops.where(ops.compare("EQ", at.value, 0), ops.cast(ops.scalar(0), part.dtype), part) for part in cache]
    lines = [ops.concat([tensor, part], 2) for tensor, part in zip(cache, parts, strict=True)]
    positions = _last_positions(size, ops.add(at.value, ops.scalar(tokens, i64)))
    is_new = ops.compare("GE", positions, at.value)
    place = ops.where(is_new, ops.add(ops.sub(positions, at.value), size), ops.arange(size))
    return tuple(ops.Take(2)(line, place) for line in lines), _wide(lines)


def ring_positions(size: DimLike, tokens: DimLike, at: Position) -> Node:
    """i64[keys]: the positions of the keys that `through_ring` returns; negative: none."""
    if tokens == 1:
        return _last_positions(size, ops.add(at.value, 1))
    chunk = ops.add(ops.arange(tokens), at.value)
    return ops.concat([_last_positions(size, at.value), chunk])


def _last_positions(size: DimLike, end: Node) -> Node:
    """i64[size]: for each slot of a ring the last position before `end` that is stored there."""
    last = ops.sub(end, 1)
    return ops.sub(last, ops.floor_mod(ops.sub(last, ops.arange(size)), size))


def in_pages(cache: Sequence[Node], chunk: Node, slots: Node) -> tuple[Node, ...]:
    """The pools of keys or of values, with the rows of `chunk`, f32[1, heads, rows, width], written to `slots`,
    i64[rows]. Rows whose slots are out of bounds are dropped."""
    scatter = ops.Scatter("set", (0, 2), (1,), (), (), (1,), 1, unique=True)
    index = ops.expand_dims(slots, 1)
    return tuple(
        scatter(pool, index, ops.squeeze(part, 0)) for pool, part in zip(cache, _stored(cache, chunk), strict=True)
    )


def pages_of(cache: Sequence[Node]) -> list[Node]:
    """The tensors of keys or of values as [pages, heads, tokens of a page, width]: those of a sequence are one page."""

    def view(part: Node) -> Node:
        if part.type.rank == 4:
            return part
        heads, slots, width = part.shape
        return ops.transpose(ops.reshape(part, (heads, slots // PAGE, PAGE, width)), (1, 0, 2, 3))

    return [*map(view, cache)]


def read_pages(cache: Sequence[Node], table: Node, at: Position, tokens: DimLike, window: int) -> tuple[Node, DimLike]:
    """As `read`, by a sequence's table of pages, i64[pages]; it begins at a page's start."""
    assert at.size is not None
    first = dim_max(at.size - (window - 1), 0) // PAGE * PAGE if window else 0
    positions = ops.add(ops.arange(at.size + tokens - first), ops.scalar(first, i64))
    # a gather of rows, whose indices are computed once: 20 times as fast as a gather of pages and a split into rows
    slots = ops.add(ops.mul(ops.Take(0)(table, ops.div(positions, PAGE)), PAGE), ops.rem(positions, PAGE))
    return _wide([ops.expand_dims(ops.Take(1)(part, slots), 0) for part in cache]), first


def _levels(x: Node) -> tuple[Node, Node]:
    """(i8 levels, their scale): the largest magnitude of each row is 127."""
    scale = ops.div(ops.reduce_max(ops.Abs()(x), -1, keepdims=True), 127.0)
    divisor = ops.where(ops.compare("EQ", scale, 0.0), 1.0, scale)
    return ops.quantize(x, ops.broadcast_to(divisor, x.shape), ops.scalar(0, i8)), scale


def read(cache: Sequence[Node], at: Position, tokens: DimLike, window: int) -> tuple[Node, DimLike]:
    """(the f32 elements that `tokens` tokens from `at` on may attend to; the position of the first)."""
    assert at.size is not None
    first = dim_max(at.size - (window - 1), 0) if window else 0
    slices: list[Node] = []
    for part in cache:
        batch, heads, _, width = part.shape
        slice = ops.Slice((0, 0, first, 0), (batch, heads, at.size + tokens, width), (1, 1, 1, 1))
        slices.append(slice(part))
    return _wide(slices), first


def recent(cache: Node, at: Position) -> Node:
    """The tokens before a chunk; zeros at the start of a sequence, regardless of an earlier one."""
    return ops.where(ops.compare("EQ", at.value, 0), 0.0, cache)
