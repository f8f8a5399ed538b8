"""Sliding-window reductions: sums, products and extremes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product as combinations
from math import prod
from typing import Any

from ingot import ops
from ingot.autodiff.reverse import pull_back_cotangents
from ingot.autodiff.rules.shape import spread
from ingot.autodiff.table import reverse
from ingot.ir.dims import DimLike
from ingot.ir.node import Node
from ingot.ir.types import Shape, boolean, f32, i32

_MAX_TAPS = 16  # of windows that do not overlap, to compare element by element: a kernel with a term for each


@reverse(ops.ReduceWindow)
def _reduce_window(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.ReduceWindow)
    if not x.shape:
        return [g]
    if any(d == 0 for d in g.shape):
        return [ops.full(x.shape, 0, g.dtype)]
    if op.kind == "sum":
        return [_window_sums(op, x, g)]
    if op.kind != "prod" and _is_block_aligned(op):
        return [_block_extremes(op, x, node, g)]
    low, high = (tuple(p[side] for p in op.padding) for side in (0, 1))
    pad = ops.Pad(low, high, tuple(b - 1 for b in op.base_dilation))
    # NaN equals no extreme, even where all elements of a window are infinite
    padded = pad(x, ops.scalar(1.0 if op.kind == "prod" else float("nan"), x.dtype))
    if op.kind == "prod":
        elements = [ops.Slice(*box, op.strides)(padded) for box in _boxes(op, g)]
        return list(pull_back_cotangents([(reduce(ops.mul, elements), g)], [x]))
    return list(pull_back_cotangents([(padded, _window_extremes(op, padded, _inside_mask(op, x), node, g))], [x]))


def _inside_mask(op: ops.ReduceWindow, x: Node) -> Node | None:
    """A mask of the elements of the padded image that are x's, of size 1 along unpadded axes; None if all are."""
    has_borders = [pair != (0, 0) or b != 1 for pair, b in zip(op.padding, op.base_dilation, strict=True)]
    if not any(has_borders):
        return None
    low, high = (tuple(p[side] for p in op.padding) for side in (0, 1))
    mask = ops.full(
        tuple(d if has_border else 1 for d, has_border in zip(x.shape, has_borders, strict=True)), True, boolean
    )
    return ops.Pad(low, high, tuple(b - 1 for b in op.base_dilation))(mask, ops.scalar(False, boolean))


def _window_sums(op: ops.ReduceWindow, x: Node, g: Node) -> Node:
    """Each gradient goes to all elements of its window. Along axes with a stride > 1, windows are cut into pieces of
    `stride` elements, and gradients are repeated over each piece; along the others, an element sums the gradients of
    the windows that contain it."""
    geometry = [*zip(op.window, op.strides, op.dilation, op.base_dilation, op.padding, strict=True)]
    strided = [stride > 1 and dilation == base == 1 for _, stride, dilation, base, _ in geometry]
    if any(row != (1, 1, 1, 1, (0, 0)) for row, is_strided in zip(geometry, strided, strict=True) if not is_strided):
        g = _overlap_sums(op, x, g, strided)
    total = ops.cast(g, f32) if g.dtype.bits == 16 else g
    for axis in (i for i, is_strided in enumerate(strided) if is_strided):
        window, stride, low = op.window[axis], op.strides[axis], op.padding[axis][0]
        pieces = [
            _repeat_over_windows(total, axis, min(stride, window - at), stride, at - low, x.shape[axis])
            for at in range(0, window, stride)
        ]
        total = reduce(ops.add, pieces)
    return ops.cast(total, g.dtype)


def _overlap_sums(op: ops.ReduceWindow, x: Node, g: Node, strided: Sequence[bool]) -> Node:
    """The sums over overlapping windows along the axes that are not `strided`."""
    padding: list[tuple[DimLike, DimLike]] = []
    for i, (size, taps, count) in enumerate(zip(x.shape, op.window, g.shape, strict=True)):
        reach = (taps - 1) * op.dilation[i] + 1
        low = reach - 1 - op.padding[i][0]
        inner = (size - 1) * op.base_dilation[i] + 1
        padding.append((low, inner + reach - 1 - ((count - 1) * op.strides[i] + 1) - low))

    def select(values: Sequence[Any], fill: Any) -> tuple[Any, ...]:
        return tuple(fill if is_strided else v for v, is_strided in zip(values, strided, strict=True))

    geometry = (select(v, 1) for v in (op.window, op.base_dilation, op.dilation, op.strides))
    window, strides, dilation, base = geometry
    return ops.ReduceWindow("sum", window, strides, select(padding, (0, 0)), dilation, base)(g)


def _repeat_over_windows(g: Node, axis: int, window: int, stride: int, low: DimLike, size: DimLike) -> Node:
    """[a, b] -> [a, a, 0, b, b, 0] for windows of 2 at stride 3, placed from element `low` of an axis of `size`."""
    before, (count, *after) = g.shape[:axis], g.shape[axis:]
    dims = tuple(d for d in range(len(g.shape) + 1) if d != axis + 1)
    wide = ops.BroadcastInDim((*before, count, window, *after), dims)(g)
    zeros = (0,) * len(wide.shape)
    wide = ops.pad(wide, zeros, (*zeros[: axis + 1], stride - window, *zeros[axis + 2 :]))
    line = ops.Reshape((*before, count * stride, *after))(wide)
    edges = (0,) * axis, (0,) * len(after)
    return ops.pad(line, (*edges[0], low, *edges[1]), (*edges[0], size - count * stride - low, *edges[1]))


def _is_block_aligned(op: ops.ReduceWindow) -> bool:
    """Whether each window covers the same number of blocks of the image, where blocks have `stride` elements."""
    rows = zip(op.window, op.strides, op.padding, strict=True)
    plain = set((*op.dilation, *op.base_dilation)) == {1}
    return plain and all(isinstance(p[0], int) and (p[0] == 0 or w > 1) for w, _, p in rows)


def _block_extremes(op: ops.ReduceWindow, x: Node, y: Node, g: Node) -> Node:
    """Each gradient goes to the first extreme of its window, or to the last NaN if there is one, as in PyTorch.

    Each axis is cut into blocks of s elements, where s is the stride. Window i covers the blocks i ... i + n - 1, and
    its elements are numbered. The number of the extreme is computed once for each window. Each element of a block then
    compares it, for each of the n windows that cover the block, with its own number in that window:

        window 3, stride 2:   blocks  0 1 | 0 1 | 0 1     element 0 of block i: number 0 of window i, 2 of window i - 1
    """
    axes = [d for d, (w, s) in enumerate(zip(op.window, op.strides, strict=True)) if (w, s) != (1, 1)]
    pieces = {d: -(-op.window[d] // op.strides[d]) for d in axes}
    spans = [pieces[d] * op.strides[d] for d in axes]
    weight = {d: prod(spans[i + 1 :]) for i, d in enumerate(axes)}
    numbers = _extreme_numbers(op, x, y, pieces, weight)
    total = ops.cast(g, f32) if g.dtype.bits == 16 else g
    margins = tuple(pieces[d] - 1 if d in pieces else 0 for d in range(len(g.shape)))
    block_counts = tuple(n + a for n, a in zip(g.shape, margins, strict=True))
    block_shape, block_axes = list[DimLike](), list[int]()
    for d, n in enumerate(block_counts):
        block_axes.append(len(block_shape))
        block_shape += [n, op.strides[d]] if d in pieces and op.strides[d] > 1 else [n]
    offsets_in_block: Node | None = None  # the number of an element in the window that starts at its block
    for d in (d for d in axes if op.strides[d] > 1):
        part = ops.mul(ops.iota(block_shape, block_axes[d] + 1, i32), weight[d])
        offsets_in_block = part if offsets_in_block is None else ops.add(offsets_in_block, part)
    parts: list[Node] = []
    for offsets in combinations(*(range(pieces[d]) for d in axes)):
        before = tuple(dict(zip(axes, offsets, strict=True)).get(d, 0) for d in range(len(margins)))
        after = tuple(a - b for a, b in zip(margins, before, strict=True))
        first = sum(j * op.strides[d] * weight[d] for d, j in zip(axes, offsets, strict=True))
        window_numbers, part = (
            ops.BroadcastInDim(tuple(block_shape), tuple(block_axes))(ops.pad(v, before, after, fill))
            for v, fill in ((numbers, -1), (total, 0))
        )
        number = (
            ops.full(tuple(block_shape), first, i32) if offsets_in_block is None else ops.add(offsets_in_block, first)
        )
        parts.append(
            ops.where(ops.compare("EQ", window_numbers, number), part, ops.full(tuple(block_shape), 0, part.dtype))
        )
    image = tuple(n * op.strides[d] for d, n in enumerate(block_counts))
    line = ops.Reshape(image)(reduce(ops.add, parts))
    low = tuple(p[0] for p in op.padding)
    high = tuple(n + lo - m for n, lo, m in zip(x.shape, low, image, strict=True))
    return ops.cast(ops.pad(line, tuple(-lo for lo in low), high), g.dtype)


def _extreme_numbers(op: ops.ReduceWindow, x: Node, y: Node, pieces: dict[int, int], weight: dict[int, int]) -> Node:
    """i32 of y's shape: the number of each window's extreme, which is the sum of its offsets along the axes times their
    weights; -1 for a window outside of the image."""
    if set(pieces.values()) <= {1} and prod(op.window) > _MAX_TAPS:
        return _extreme_numbers_of_blocks(op, x, y, weight)
    low, high = (tuple(p[side] for p in op.padding) for side in (0, 1))
    # NaN equals no extreme, even where all elements of a window are infinite
    padded = ops.pad(x, low, high, float("nan"))
    inside, boxes = _inside_mask(op, x), list(zip(_taps(op.window), _boxes(op, y), strict=True))
    numbers = ops.full(y.shape, -1, i32)

    def number(tap: tuple[int, ...]) -> Node:
        return ops.full(y.shape, sum(n * weight.get(d, 0) for d, n in enumerate(tap)), i32)

    for tap, box in reversed(boxes):
        numbers = ops.where(ops.compare("EQ", ops.Slice(*box, op.strides)(padded), y), number(tap), numbers)
    for tap, box in boxes:
        is_nan = ops.IsNan()(ops.Slice(*box, op.strides)(padded))
        if inside is not None:
            is_nan = ops.and_(is_nan, _box_of(inside, box, op.strides, y.shape))
        numbers = ops.where(is_nan, number(tap), numbers)
    return numbers


def _window_minima(op: ops.ReduceWindow, key: Node) -> Node:
    """The minimum of each window, by a reduction along axes that a window spans whole."""
    rows = zip(op.window, op.padding, key.shape, strict=True)
    reduced_dims = tuple(d for d, (w, pads, n) in enumerate(rows) if w == n != 1 and pads == (0, 0))
    if not reduced_dims:
        return replace(op, kind="min")(key)
    window = tuple(1 if d in reduced_dims else w for d, w in enumerate(op.window))
    return replace(op, kind="min", window=window)(ops.reduce("min", key, reduced_dims, keepdims=True))


def _extreme_numbers_of_blocks(op: ops.ReduceWindow, x: Node, y: Node, weight: dict[int, int]) -> Node:
    """`_extreme_numbers` of windows that do not overlap: the least number of an element that equals the extreme."""
    number, extreme = ops.full(x.shape, 0, i32), y
    for d, factor in weight.items():
        stride, low = op.strides[d], op.padding[d][0]
        extreme = _repeat_over_windows(extreme, d, stride, stride, -low, x.shape[d])
        offset = ops.rem(ops.add(ops.iota(x.shape, d, i32), low), stride) if stride > 1 else None
        number = number if offset is None else ops.add(number, ops.mul(offset, factor))
    no_number = ops.full(x.shape, (1 << 31) - 1, i32)
    key = ops.where(ops.compare("EQ", x, extreme), number, no_number)
    key = ops.where(ops.IsNan()(x), ops.sub(-1, number), key)
    least = _window_minima(op, key)
    least = ops.where(ops.compare("LT", least, 0), ops.sub(-1, least), least)
    return ops.where(ops.compare("EQ", least, (1 << 31) - 1), ops.full(least.shape, -1, i32), least)


def _window_extremes(op: ops.ReduceWindow, padded: Node, inside: Node | None, y: Node, g: Node) -> Node:
    """The cotangent of the padded image, whose border is NaN. Each gradient goes to the first extreme of its window, or
    to the last NaN if there is one, as in PyTorch. inside: see `_inside_mask`.

    The tap of that element is computed once for each window; each element of the image then compares it for the windows
    that contain it.
    """
    zero, no_tap = ops.full(padded.shape, 0, g.dtype), ops.scalar(-1, i32)
    boxes = list(_boxes(op, g))
    extreme_tap = ops.full(g.shape, -1, i32)
    for tap in reversed(range(len(boxes))):
        starts, ends = boxes[tap]
        is_extreme = ops.compare("EQ", ops.Slice(starts, ends, op.strides)(padded), y)
        extreme_tap = ops.where(is_extreme, ops.full(g.shape, tap, i32), extreme_tap)
    for tap, (starts, ends) in enumerate(boxes):
        is_nan = ops.IsNan()(ops.Slice(starts, ends, op.strides)(padded))
        if inside is not None:
            is_nan = ops.and_(is_nan, _box_of(inside, (starts, ends), op.strides, g.shape))
        extreme_tap = ops.where(is_nan, ops.full(g.shape, tap, i32), extreme_tap)
    total: Node | None = None
    for tap, (starts, _) in enumerate(boxes):
        taps, part = (
            spread(v, starts, op.strides, padded.shape, fill) for v, fill in ((extreme_tap, no_tap), (g, None))
        )
        part = ops.where(ops.compare("EQ", taps, tap), part, zero)
        total = part if total is None else ops.Add()(total, part)
    assert total is not None
    return total


def _box_of(inside: Node, box: Box, strides: tuple[int, ...], shape: Shape) -> Node:
    """A box of `inside`, repeated along the axes along which it is of size 1."""
    cuts = zip(inside.shape, *box, strides, strict=True)
    first, last, steps = zip(*((lo, hi, s) if n != 1 else (0, 1, 1) for n, lo, hi, s in cuts), strict=True)
    return ops.broadcast_to(ops.Slice(first, last, steps)(inside), shape)


Box = tuple[tuple[int, ...], tuple[DimLike, ...]]


def _boxes(op: ops.ReduceWindow, g: Node) -> Iterator[Box]:
    """For each tap, the start and the end in the padded image of the strided slice of all windows' elements at it."""
    for tap in _taps(op.window):
        starts = tuple(t * d for t, d in zip(tap, op.dilation, strict=True))
        yield starts, tuple(lo + (n - 1) * s + 1 for lo, n, s in zip(starts, g.shape, op.strides, strict=True))


def _taps(window: tuple[int, ...]) -> list[tuple[int, ...]]:
    taps: list[tuple[int, ...]] = [()]
    for size in window:
        taps = [(*t, i) for t in taps for i in range(size)]
    return taps
