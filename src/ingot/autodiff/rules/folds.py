"""Reductions, windows and scans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from ingot import ops
from ingot.autodiff.reverse import pull_back_cotangents
from ingot.autodiff.rules.shape import moved_back, moved_last, spread
from ingot.autodiff.table import constant_everywhere, reverse
from ingot.ir.dims import DimLike
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import Shape, TensorType, boolean, f32, i32, i64

constant_everywhere(ops.ArgReduce)


def _spread_over(g: Node, dims: tuple[int, ...], x: Node) -> Node:
    """g along the dims that x was folded along."""
    return ops.BroadcastInDim(x.shape, tuple(d for d in range(len(x.shape)) if d not in dims))(g)


@reverse(ops.Reduce)
def _reduce(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.Reduce)
    if op.kind in ("and", "or"):
        return [None]
    over = _spread_over(g, op.dims, x)
    if op.kind == "sum":
        return [over]
    if op.kind == "prod":
        return [ops.mul(over, _others(x, op.dims))]
    # equal ones share, as in PyTorch's amax and JAX
    hit = ops.compare("EQ", x, _spread_over(node, op.dims, x))
    count = ops.reduce_sum(ops.cast(hit, x.dtype), op.dims) if op.dims else ops.full(g.shape, 1, x.dtype)
    share = _spread_over(ops.div(g, count), op.dims, x)
    return [ops.where(hit, share, ops.full(x.shape, 0, x.dtype))]


def _others(x: Node, dims: tuple[int, ...]) -> Node:
    """For each element the product of all others along `dims`: exact with zeros, which a division would not be."""
    line = moved_last(x, dims)
    axis = len(line.shape) - 1
    before = ops.CumReduce("prod", axis, exclusive=True)(line)
    behind = ops.CumReduce("prod", axis, reverse=True, exclusive=True)(line)
    return moved_back(ops.mul(before, behind), dims, x)


@reverse(ops.CumReduce)
def _cumulative(node: Node, g: Node) -> list[Node]:
    op = node.op
    assert isinstance(op, ops.CumReduce)
    if op.kind == "sum":
        return [replace(op, reverse=not op.reverse)(g)]
    (x,) = node.inputs
    axis = op.dim
    if op.reverse:
        x, g = ops.flip(x, axis), ops.flip(g, axis)
    if op.exclusive:  # each result is that in front of it
        low, high = (tuple(s if d == axis else 0 for d in range(len(x.shape))) for s in (-1, 1))
        g = ops.pad(g, low, high)
    found = _running_product(x, g, axis) if op.kind == "prod" else _running_extreme(x, g, op.kind, axis)
    return [ops.flip(found, axis) if op.reverse else found]


def _running_product(x: Node, g: Node, axis: int) -> Node:
    """Of y[k] = y[k - 1] x[k] it is h[k] y[k - 1] with h[k] = g[k] + h[k + 1] x[k + 1]: exact with zeros."""
    line, rows = ops.swap_axes(x, 0, axis), ops.swap_axes(g, 0, axis)
    if any(d == 0 for d in line.shape):
        return g
    size, rest = line.shape[0], (0,) * (len(line.shape) - 1)
    behind = ops.pad(line, (-1, *rest), (1, *rest))  # x[k + 1], and 0 behind the last
    state = ops.full(line.shape[1:], 0, x.dtype)
    operands = (ops.scalar(size - 1, i64), state, ops.full(line.shape, 0, x.dtype), rows, behind)
    entry = tuple(Input(f"s{i}", v.type)() for i, v in enumerate(operands))
    k, h, out, given, factors = entry
    zeros = [ops.scalar(0, i64)] * len(rest)
    row, factor = (ops.DynamicSlice((1, *line.shape[1:]))(v, k, *zeros) for v in (given, factors))
    now = ops.add(row, ops.mul(ops.Reshape(row.shape)(h), factor))
    turn = (ops.sub(k, 1), ops.Reshape(h.shape)(now), ops.DynamicUpdateSlice()(out, now, k, *zeros), given, factors)
    loop = ops.While(Graph(entry, (ops.compare("GE", k, 0),)), Graph(entry, turn))(*operands)
    before = ops.CumReduce("prod", 0, exclusive=True)(line)
    return ops.swap_axes(ops.mul(loop.results[2], before), 0, axis)


def _running_extreme(x: Node, g: Node, kind: str, axis: int) -> Node:
    """To the last element so far that equals the extreme, as in PyTorch."""
    places = ops.Iota(TensorType(i64, x.shape), axis)()
    extreme = ops.CumReduce(kind, axis)(x)
    records = ops.where(ops.compare("EQ", x, extreme), places, ops.full(x.shape, 0, i64))
    latest = ops.CumReduce("max", axis)(records)
    return ops.ScatterElements(axis, "add")(ops.full(x.shape, 0, g.dtype), latest, g)


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
