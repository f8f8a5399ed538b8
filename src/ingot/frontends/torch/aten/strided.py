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
    return _rows_by_stride(x, [*zip(size, stride, strict=True)], _start_in_order(c, x, storage_offset))


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
    at = _places_by_stride(tuple(size), stride, _start_in_order(c, x, storage_offset), 1)
    rows = reshape(at, (at.type.size, 1))
    flat = reshape(x, (x.type.size,))
    return reshape(ops.ScatterND("none")(flat, rows, reshape(src, (src.type.size,))), x.shape)


def _layout(c: Context) -> Layout:
    layout = c.layout()
    if layout is None:
        raise Unsupported("of a tensor whose place in memory is not known; use views and slices")
    return layout


def _start_in_order(c: Context, x: Node, storage_offset: DimLike | None) -> DimLike:
    """The element of `x`, whose elements must lie in row-major order, at an offset of its storage."""
    layout = _layout(c)
    own = (product(x.shape[i + 1 :]) for i in range(x.type.rank))
    if any(n != 1 and s != t for n, s, t in zip(x.shape, layout.strides, own, strict=True)):
        raise Unsupported("of a tensor whose elements do not lie in its own order; call .contiguous() first")
    return 0 if storage_offset is None else storage_offset - layout.offset


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
