"""Windows that slide over a value: sums, products and extremes."""

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
from ingot.ir.types import Shape, TensorType, boolean, f32, i32


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
    if op.kind != "prod" and _has_blocks(op):
        return [_block_extremes(op, x, node, g)]
    low, high = (tuple(p[side] for p in op.padding) for side in (0, 1))
    around = ops.Pad(low, high, tuple(b - 1 for b in op.base_dilation))
    # what no extreme equals, also where all elements of a window are infinite
    padded = around(x, ops.scalar(1.0 if op.kind == "prod" else float("nan"), x.dtype))
    if op.kind == "prod":
        taps = [ops.Slice(*box, op.strides)(padded) for box in _boxes(op, g)]
        return list(pull_back_cotangents([(reduce(ops.mul, taps), g)], [x]))
    return list(pull_back_cotangents([(padded, _window_extremes(op, padded, _inside(op, x), node, g))], [x]))


def _inside(op: ops.ReduceWindow, x: Node) -> Node | None:
    """Which places of the padded image are x's, of size 1 along axes that have nothing else; None: all are."""
    rims = [pair != (0, 0) or b != 1 for pair, b in zip(op.padding, op.base_dilation, strict=True)]
    if not any(rims):
        return None
    low, high = (tuple(p[side] for p in op.padding) for side in (0, 1))
    own = ops.full(tuple(d if rim else 1 for d, rim in zip(x.shape, rims, strict=True)), True, boolean)
    return ops.Pad(low, high, tuple(b - 1 for b in op.base_dilation))(own, ops.scalar(False, boolean))


def _window_sums(op: ops.ReduceWindow, x: Node, g: Node) -> Node:
    """Each gradient to all elements of its window. Along axes with a stride a window is cut in pieces as long as that,
    whose gradients are repeated; along others an element adds up those of the windows that it is in."""
    rows = [*zip(op.window, op.strides, op.dilation, op.base_dilation, op.padding, strict=True)]
    strided = [stride > 1 and dilation == base == 1 for _, stride, dilation, base, _ in rows]
    if any(row != (1, 1, 1, 1, (0, 0)) for row, alone in zip(rows, strided, strict=True) if not alone):
        g = _added(op, x, g, strided)
    total = ops.cast(g, f32) if g.dtype.bits == 16 else g
    for axis in (i for i, alone in enumerate(strided) if alone):
        window, stride, before = op.window[axis], op.strides[axis], op.padding[axis][0]
        pieces = [
            _repeated(total, axis, min(stride, window - at), stride, at - before, x.shape[axis])
            for at in range(0, window, stride)
        ]
        total = reduce(ops.add, pieces)
    return ops.cast(total, g.dtype)


def _added(op: ops.ReduceWindow, x: Node, g: Node, strided: Sequence[bool]) -> Node:
    """The sums over windows that meet; axes that are `strided` stay as they are."""
    padding: list[tuple[DimLike, DimLike]] = []
    for i, (size, taps, count) in enumerate(zip(x.shape, op.window, g.shape, strict=True)):
        reach = (taps - 1) * op.dilation[i] + 1
        low = reach - 1 - op.padding[i][0]
        inner = (size - 1) * op.base_dilation[i] + 1
        padding.append((low, inner + reach - 1 - ((count - 1) * op.strides[i] + 1) - low))

    def others(values: Sequence[Any], whole: Any) -> tuple[Any, ...]:
        return tuple(whole if alone else v for v, alone in zip(values, strided, strict=True))

    sizes = (others(v, 1) for v in (op.window, op.base_dilation, op.dilation, op.strides))
    window, strides, dilation, base = sizes
    return ops.ReduceWindow("sum", window, strides, others(padding, (0, 0)), dilation, base)(g)


def _repeated(g: Node, axis: int, window: int, stride: int, low: DimLike, size: DimLike) -> Node:
    """[a, b] -> [a, a, 0, b, b, 0] for windows of 2 at a stride of 3, `low` behind the first of `size` elements."""
    before, (count, *behind) = g.shape[:axis], g.shape[axis:]
    places = tuple(d for d in range(len(g.shape) + 1) if d != axis + 1)
    wide = ops.BroadcastInDim((*before, count, window, *behind), places)(g)
    none = (0,) * len(wide.shape)
    wide = ops.pad(wide, none, (*none[: axis + 1], stride - window, *none[axis + 2 :]))
    line = ops.Reshape((*before, count * stride, *behind))(wide)
    ends = (0,) * axis, (0,) * len(behind)
    return ops.pad(line, (*ends[0], low, *ends[1]), (*ends[0], size - count * stride - low, *ends[1]))


def _has_blocks(op: ops.ReduceWindow) -> bool:
    """Whether the image can be cut in blocks as long as the stride, of which each window covers the same number."""
    rows = zip(op.window, op.strides, op.padding, strict=True)
    plain = set((*op.dilation, *op.base_dilation)) == {1}
    return plain and all(isinstance(p[0], int) and (p[0] == 0 or w > 1) for w, _, p in rows)


def _block_extremes(op: ops.ReduceWindow, x: Node, y: Node, g: Node) -> Node:
    """To the first element of each window that is its extreme, to its last NaN if it has one, as in PyTorch.

    Each axis is cut in blocks of s elements, s the stride; window i covers the blocks i ... i + n - 1, and each element
    of it has a number. Of each window, the number of its extreme is found once. An element of a block then asks, for
    each of the n windows, whether the extreme has the number that it has there:

        window 3, stride 2:   blocks  0 1 | 0 1 | 0 1     number 0 of block i: window i, or number 2 of window i - 1
    """
    axes = [d for d, (w, s) in enumerate(zip(op.window, op.strides, strict=True)) if (w, s) != (1, 1)]
    pieces = {d: -(-op.window[d] // op.strides[d]) for d in axes}
    spans = [pieces[d] * op.strides[d] for d in axes]
    weight = {d: prod(spans[i + 1 :]) for i, d in enumerate(axes)}
    found = _number_of_extreme(op, x, y, pieces, weight)
    total = ops.cast(g, f32) if g.dtype.bits == 16 else g
    around = tuple(pieces[d] - 1 if d in pieces else 0 for d in range(len(g.shape)))
    found, total = ops.pad(found, around, around, -1), ops.pad(total, around, around)
    counts = tuple(n + a for n, a in zip(g.shape, around, strict=True))  # of blocks
    wide, at = list[DimLike](), list[int]()
    for d, n in enumerate(counts):
        at.append(len(wide))
        wide += [n, op.strides[d]] if d in pieces and op.strides[d] > 1 else [n]
    own: Node | None = None  # the number of an element in the block's own window
    for d in (d for d in axes if op.strides[d] > 1):
        part = ops.mul(ops.Iota(TensorType(i32, tuple(wide)), at[d] + 1)(), weight[d])
        own = part if own is None else ops.add(own, part)
    parts: list[Node] = []
    for offsets in combinations(*(range(pieces[d]) for d in axes)):
        begin = list(around)
        for d, j in zip(axes, offsets, strict=True):
            begin[d] -= j
        end = tuple(b + n for b, n in zip(begin, counts, strict=True))
        first = sum(j * op.strides[d] * weight[d] for d, j in zip(axes, offsets, strict=True))
        chosen, part = (
            ops.BroadcastInDim(tuple(wide), tuple(at))(ops.Slice(tuple(begin), end, (1,) * len(begin))(v))
            for v in (found, total)
        )
        number = ops.full(tuple(wide), first, i32) if own is None else ops.add(own, first)
        parts.append(ops.where(ops.compare("EQ", chosen, number), part, ops.full(tuple(wide), 0, part.dtype)))
    image = tuple(n * op.strides[d] for d, n in enumerate(counts))
    line = ops.Reshape(image)(reduce(ops.add, parts))
    low = tuple(p[0] for p in op.padding)
    high = tuple(n + lo - m for n, lo, m in zip(x.shape, low, image, strict=True))
    return ops.cast(ops.pad(line, tuple(-lo for lo in low), high), g.dtype)


def _number_of_extreme(op: ops.ReduceWindow, x: Node, y: Node, pieces: dict[int, int], weight: dict[int, int]) -> Node:
    """i32 of y's shape: for each window the number of its extreme, the sum of the places along each axis times the
    axis' weight; -1 for a window outside of the image."""
    if set(pieces.values()) <= {1}:
        return _number_in_block(op, x, y, weight)
    low, high = (tuple(p[side] for p in op.padding) for side in (0, 1))
    # what no extreme equals, also where all elements of a window are infinite
    padded = ops.pad(x, low, high, float("nan"))
    inside, boxes = _inside(op, x), list(zip(_taps(op.window), _boxes(op, y), strict=True))
    found = ops.full(y.shape, -1, i32)

    def number(tap: tuple[int, ...]) -> Node:
        return ops.full(y.shape, sum(n * weight.get(d, 0) for d, n in enumerate(tap)), i32)

    for tap, box in reversed(boxes):
        found = ops.where(ops.compare("EQ", ops.Slice(*box, op.strides)(padded), y), number(tap), found)
    for tap, box in boxes:
        broken = ops.IsNan()(ops.Slice(*box, op.strides)(padded))
        if inside is not None:
            broken = ops.and_(broken, _box_of(inside, box, op.strides, y.shape))
        found = ops.where(broken, number(tap), found)
    return found


def _number_in_block(op: ops.ReduceWindow, x: Node, y: Node, weight: dict[int, int]) -> Node:
    """`_number_of_extreme` of windows that do not meet: the least number of what equals the extreme of its window."""
    number, extreme = ops.full(x.shape, 0, i32), y
    for d, factor in weight.items():
        stride, low = op.strides[d], op.padding[d][0]
        extreme = _repeated(extreme, d, stride, stride, -low, x.shape[d])
        place = ops.rem(ops.add(ops.Iota(TensorType(i32, x.shape), d)(), low), stride) if stride > 1 else None
        number = number if place is None else ops.add(number, ops.mul(place, factor))
    none = ops.full(x.shape, (1 << 31) - 1, i32)
    key = ops.where(ops.compare("EQ", x, extreme), number, none)
    key = ops.where(ops.IsNan()(x), ops.sub(-1, number), key)
    found = replace(op, kind="min")(key)
    found = ops.where(ops.compare("LT", found, 0), ops.sub(-1, found), found)
    return ops.where(ops.compare("EQ", found, (1 << 31) - 1), ops.full(found.shape, -1, i32), found)


def _window_extremes(op: ops.ReduceWindow, padded: Node, inside: Node | None, y: Node, g: Node) -> Node:
    """To the first element of each window that is its extreme, to its last NaN if it has one, as in PyTorch; of the
    padded image, whose border is NaN. inside: see `_inside`.

    The window's number of that element is found once for each result; an element of the image then asks the windows
    that it is in.
    """
    zero, none = ops.full(padded.shape, 0, g.dtype), ops.scalar(-1, i32)
    boxes = list(_boxes(op, g))
    first = ops.full(g.shape, -1, i32)
    for tap in reversed(range(len(boxes))):
        starts, ends = boxes[tap]
        hit = ops.compare("EQ", ops.Slice(starts, ends, op.strides)(padded), y)
        first = ops.where(hit, ops.full(g.shape, tap, i32), first)
    for tap, (starts, ends) in enumerate(boxes):
        broken = ops.IsNan()(ops.Slice(starts, ends, op.strides)(padded))
        if inside is not None:
            broken = ops.and_(broken, _box_of(inside, (starts, ends), op.strides, g.shape))
        first = ops.where(broken, ops.full(g.shape, tap, i32), first)
    total: Node | None = None
    for tap, (starts, _) in enumerate(boxes):
        chosen, part = (spread(v, starts, op.strides, padded.shape, fill) for v, fill in ((first, none), (g, None)))
        part = ops.where(ops.compare("EQ", chosen, tap), part, zero)
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
    """Of each place in a window, where the windows' elements at it begin and end in the padded image."""
    for tap in _taps(op.window):
        starts = tuple(t * d for t, d in zip(tap, op.dilation, strict=True))
        yield starts, tuple(lo + (n - 1) * s + 1 for lo, n, s in zip(starts, g.shape, op.strides, strict=True))


def _taps(window: tuple[int, ...]) -> list[tuple[int, ...]]:
    taps: list[tuple[int, ...]] = [()]
    for size in window:
        taps = [(*t, i) for t in taps for i in range(size)]
    return taps
