"""`as_strided`: a tensor's memory viewed with other strides."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, Memory, cast, i64
from ingot.ir.dims import DimLike, estimate, exact_quotient, floordiv, is_static
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
    """`x`'s memory viewed with other strides, where a value fills it: a gather of rows, or just a permutation of axes
    (torch uses it to make a mean's result channels last). The offset counts from the start of the memory."""
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
        return reshape(ops.transpose(x, [memory_axes.index(k) for k in target_axes]), size)
    return _rows_by_stride(_elements(memory), [*zip(size, stride, strict=True)], start - memory.start)


@aten("as_strided_scatter.default")
def as_strided_scatter(
    c: Context, x: Node, src: Node, size: Sequence[DimLike], stride: Sequence[DimLike],
    storage_offset: DimLike | None = None,
) -> Node:  # fmt: skip
    """`x` with `src` written where `as_strided` would read: a scatter, or `src` itself where it fills the memory (the
    gradient of a mean over positions, whose result torch makes channels last)."""
    memory, src = _memory(c), cast(src, x.dtype)
    start = memory.offset if storage_offset is None else storage_offset
    order = _dense_order(size, stride)
    if order is not None and start == memory.start and src.type.size == memory.base.type.size:
        updated = reshape(ops.transpose(src, order), (src.type.size,))
        return _rows_by_stride(updated, [*zip(x.shape, memory.strides, strict=True)], memory.offset - memory.start)
    positions = _places_by_stride(tuple(size), stride, start - memory.start, 1)
    updated = ops.ScatterND("none")(
        _elements(memory), reshape(positions, (positions.type.size, 1)), reshape(src, (src.type.size,))
    )
    return _rows_by_stride(updated, [*zip(x.shape, memory.strides, strict=True)], memory.offset - memory.start)


def _memory(c: Context) -> Memory:
    memory = c.memory()
    if memory is None:
        raise Unsupported("of a tensor whose place in memory is not known; use views and slices")
    return memory


def _elements(memory: Memory) -> Node:
    """All elements of a memory, in order."""
    if memory.order is None:
        raise Unsupported("of a tensor whose elements do not fill its memory; call .contiguous() first")
    return reshape(ops.transpose(memory.base, memory.order), (memory.base.type.size,))


def _dense_order(size: Sequence[DimLike], stride: Sequence[DimLike]) -> list[int] | None:
    """The axes by falling strides, if their elements lie side by side in memory, each once; else None."""
    if not is_static((*size, *stride)):
        return None
    order = sorted(range(len(size)), key=lambda d: (-estimate(stride[d]), size[d] != 1))
    count: DimLike = 1
    for d in reversed(order):
        if size[d] != 1 and stride[d] != count:
            return None
        count = count * size[d]
    return order


def _places_by_stride(shape: tuple[DimLike, ...], strides: Sequence[DimLike], start: DimLike, unit: DimLike) -> Node:
    """start + sum of index * stride for each index of `shape`, in units of `unit` elements."""
    positions = filled(shape, floordiv(start, unit), i64)
    for axis, step in enumerate(strides):
        positions = ops.Add()(positions, ops.Mul()(ops.iota(shape, axis), filled(shape, floordiv(step, unit), i64)))
    return positions


def _rows_by_stride(x: Node, dims: Sequence[tuple[DimLike, DimLike]], start: DimLike) -> Node:
    """Elements of `x` in row-major order at start + sum of index * stride. dims: (size, stride) of the result."""
    inner, outer = 1, list(dims)
    # the contiguous last dimensions are rows, which are gathered whole
    while outer and isinstance(outer[-1][0], int) and outer[-1][1] == inner:
        if any(
            exact_quotient(s, inner * outer[-1][0]) is None for s in (start, x.type.size, *(s for _, s in outer[:-1]))
        ):
            break
        inner *= outer.pop()[0]
    positions = _places_by_stride(tuple(n for n, _ in outer), [s for _, s in outer], start, inner)
    rows = reshape(x, (floordiv(x.type.size, inner), inner))
    return reshape(ops.Take(0)(rows, positions), [n for n, _ in dims])
