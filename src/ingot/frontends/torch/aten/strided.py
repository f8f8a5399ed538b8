"""A tensor's memory under other strides."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled, index_along
from ingot.frontends.torch.aten.shape import reshape, transpose
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, Layout, i64
from ingot.ir.dims import DimLike, divides, floordiv, product
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
    """`x`'s memory under other strides, where `x` fills it: a gather of rows, or only another order of dimensions
    (torch writes so that a mean's result is channels last)."""
    layout = _layout(c)
    start = 0 if storage_offset is None else storage_offset - layout.offset
    held = [(n, s) for n, s in zip(x.shape, layout.strides, strict=True) if n != 1]
    kept = [(n, s) for n, s in zip(size, stride, strict=True) if n != 1]
    if start == 0 and len(set(held)) == len(held) and sorted(map(str, held)) == sorted(map(str, kept)):
        x = reshape(x, [n for n, _ in held])
        return reshape(transpose(x, [held.index(k) for k in kept]), size)
    memory = transpose(x, _order(layout, x))
    return _rows_by_stride(memory, [*zip(size, stride, strict=True)], start)


@aten("as_strided_scatter.default")
def as_strided_scatter(
    c: Context,
    x: Node,
    src: Node,
    size: Sequence[DimLike],
    stride: Sequence[DimLike],
    storage_offset: DimLike | None = None,
) -> Node:
    """`x` with `src` where `as_strided` would read."""
    layout = _layout(c)
    order = _order(layout, x)
    memory = transpose(x, order)
    start = 0 if storage_offset is None else storage_offset - layout.offset
    at = _places_by_stride(tuple(size), stride, start, 1)
    rows = reshape(at, (at.type.size, 1))
    flat = reshape(memory, (x.type.size,))
    written = reshape(ops.ScatterND("none")(flat, rows, reshape(src, (src.type.size,))), memory.shape)
    return transpose(written, [order.index(axis) for axis in range(x.type.rank)])


def _layout(c: Context) -> Layout:
    layout = c.layout()
    if layout is None:
        raise Unsupported("of a tensor whose place in memory is not known; use views and slices")
    return layout


def _order(layout: Layout, x: Node) -> list[int]:
    """`x`'s axes from the outermost in memory to the innermost, where its elements fill it."""
    axes, known = list(range(x.type.rank)), [s for s in layout.strides if isinstance(s, int)]
    if len(known) == len(axes):
        axes.sort(key=lambda axis: -known[axis])
    filling = (product(x.shape[a] for a in axes[i + 1 :]) for i in range(x.type.rank))
    if any(x.shape[a] != 1 and layout.strides[a] != s for a, s in zip(axes, filling, strict=True)):
        raise Unsupported("of a tensor whose elements do not fill its memory; call .contiguous() first")
    return axes


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
        if any(divides(s, inner * rest[-1][0]) is None for s in (start, x.type.size, *(s for _, s in rest[:-1]))):
            break
        inner *= rest.pop()[0]
    at = _places_by_stride(tuple(n for n, _ in rest), [s for _, s in rest], start, inner)
    rows = reshape(x, (floordiv(x.type.size, inner), inner))
    return reshape(ops.Take(0)(rows, at), [n for n, _ in dims])
