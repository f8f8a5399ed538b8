"""A tensor's memory under other strides."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled, index_along
from ingot.frontends.torch.aten.shape import reshape, transpose
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, Memory, i64
from ingot.ir.dims import DimLike, exact_quotient, floordiv
from ingot.ir.node import Node

aten = Table()


@aten("as_strided.default", "as_strided_copy.default")
def as_strided(
    c: Context,
    x: Node,
    size: Sequence[DimLike],
    stride: Sequence[DimLike],
    storage_offset: DimLike | None = None,
) -> Node:
    """`x`'s memory under other strides, where a value fills it: a gather of rows, or only another order of dimensions
    (torch writes so that a mean's result is channels last). The offset counts from the start of the memory."""
    memory = _memory(c)
    start = memory.offset if storage_offset is None else storage_offset
    memory_axes = [(n, s) for n, s in zip(x.shape, memory.strides, strict=True) if n != 1]
    target_axes = [(n, s) for n, s in zip(size, stride, strict=True) if n != 1]
    if (
        start == memory.offset
        and len(set(memory_axes)) == len(memory_axes)
        and sorted(map(str, memory_axes)) == sorted(map(str, target_axes))
    ):
        x = reshape(x, [n for n, _ in memory_axes])
        return reshape(transpose(x, [memory_axes.index(k) for k in target_axes]), size)
    return _rows_by_stride(_elements(memory), [*zip(size, stride, strict=True)], start - memory.start)


@aten("as_strided_scatter.default")
def as_strided_scatter(
    c: Context, x: Node, src: Node, size: Sequence[DimLike], stride: Sequence[DimLike],
    storage_offset: DimLike | None = None,
) -> Node:  # fmt: skip
    """`x` with `src` where `as_strided` would read."""
    memory = _memory(c)
    start = memory.offset if storage_offset is None else storage_offset
    at = _places_by_stride(tuple(size), stride, start - memory.start, 1)
    written = ops.ScatterND("none")(_elements(memory), reshape(at, (at.type.size, 1)), reshape(src, (src.type.size,)))
    return _rows_by_stride(written, [*zip(x.shape, memory.strides, strict=True)], memory.offset - memory.start)


def _memory(c: Context) -> Memory:
    memory = c.memory()
    if memory is None:
        raise Unsupported("of a tensor whose place in memory is not known; use views and slices")
    return memory


def _elements(memory: Memory) -> Node:
    """All elements of a memory, in their order."""
    if memory.order is None:
        raise Unsupported("of a tensor whose elements do not fill its memory; call .contiguous() first")
    return reshape(transpose(memory.base, memory.order), (memory.base.type.size,))


def _places_by_stride(shape: tuple[DimLike, ...], strides: Sequence[DimLike], start: DimLike, unit: DimLike) -> Node:
    """start + sum of index * stride for each index of `shape`, in units of so many elements."""
    at = filled(shape, floordiv(start, unit), i64)
    for axis, step in enumerate(strides):
        at = ops.Add()(at, ops.Mul()(index_along(shape, axis), filled(shape, floordiv(step, unit), i64)))
    return at


def _rows_by_stride(x: Node, dims: Sequence[tuple[DimLike, DimLike]], start: DimLike) -> Node:
    """Of `x` in row-major order, the element at start + sum of index * stride, per (size, stride) of the result."""
    inner, rest = 1, list(dims)
    # the last dimensions that lie together are rows, which are gathered whole
    while rest and isinstance(rest[-1][0], int) and rest[-1][1] == inner:
        if any(
            exact_quotient(s, inner * rest[-1][0]) is None for s in (start, x.type.size, *(s for _, s in rest[:-1]))
        ):
            break
        inner *= rest.pop()[0]
    at = _places_by_stride(tuple(n for n, _ in rest), [s for _, s in rest], start, inner)
    rows = reshape(x, (floordiv(x.type.size, inner), inner))
    return reshape(ops.Take(0)(rows, at), [n for n, _ in dims])
