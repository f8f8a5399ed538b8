"""reduce_window and select_and_scatter: the strided slices of all window positions are combined one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as every

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.composites.folds import window_folds
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_equal, require_one_shape
from ingot.frontends.stablehlo import regions
from ingot.frontends.stablehlo.regions import Region
from ingot.frontends.stablehlo.rows.control import CUSTOM
from ingot.frontends.stablehlo.rows.scatter import scattered
from ingot.frontends.stablehlo.syntax import Attribute, Block, Symbol
from ingot.frontends.stablehlo.values import AnyValue, Call, Table, flatten, parts, unflatten
from ingot.ir.dims import DimLike, is_static
from ingot.ir.node import Input, Node
from ingot.ir.types import Shape, TensorType, boolean, i64, u8
from ingot.ops.core.base import dilated_size, window_count
from ingot.support.dataclass import dataclass

row = Table()
_MAX_TAPS = 4096  # of a window with an unknown region: each tap is code


@dataclass(frozen=True)
class _Window:
    """Of full rank."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    base_dilation: tuple[int, ...]

    def shape(self, x: Shape) -> Shape:
        shape: list[DimLike] = []
        for d, n in enumerate(x):
            padded = dilated_size(n, self.base_dilation[d]) + sum(self.padding[d])
            shape.append(window_count(padded, self.sizes[d], self.strides[d], self.dilation[d]))
        return tuple(shape)

    def padded(self, x: Node, value: Node) -> Node:
        low, high = (tuple(p[i] for p in self.padding) for i in (0, 1))
        return ops.pad(x, low, high, value, tuple(b - 1 for b in self.base_dilation))

    def taps(self, xs: Sequence[Node], shape: Shape) -> Iterator[tuple[Node, ...]]:
        """For each position in the window, the padded operands' elements there."""
        count = 1
        for s in self.sizes:
            count *= s
        if count > _MAX_TAPS:
            raise Unsupported(f"a window of {count} elements with a region of its own")
        for tap in every(*map(range, self.sizes)):
            start = tuple(t * d for t, d in zip(tap, self.dilation, strict=True))
            limit = tuple(a + (n - 1) * s + 1 for a, n, s in zip(start, shape, self.strides, strict=True))
            yield tuple(ops.Slice(start, limit, self.strides)(x) for x in xs)


def _window(c: Call, rank: int) -> _Window:
    return _Window(
        c.per_axis("window_dimensions", rank, 1), c.per_axis("window_strides", rank, 1), c.pairs("padding", rank),
        c.per_axis("window_dilations", rank, 1), c.per_axis("base_dilations", rank, 1),
    )  # fmt: skip


@row("reduce_window")
def reduce_window(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    window = _window(c, flatten(operands[:1])[0].type.rank)
    return _reduced(c, operands, window, c.regions[0])


@CUSTOM("target.stablehlo.dynamic_reduce_window")
def dynamic_reduce_window(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    """JAX's call for a window of open size: (operands, initial values, sizes, strides, base dilations, dilations,
    padding)."""
    called = c.attributes.get("called_computations")
    function = c.importer.module.functions.get(_symbol(called[0])) if isinstance(called, list) and called else None
    if function is None or len(operands) < 7:
        raise Unsupported("without a computation")
    *values, sizes, strides, base, dilation, pads = operands
    flat = c.sizes(ops.reshape(pads, (-1,)) if isinstance(pads, Node) else pads)
    windows = [c.sizes(n) for n in (sizes, strides, dilation, base)]
    wide, steps, window_dilation, base_dilation = (tuple(d for d in dims if isinstance(d, int)) for dims in windows)
    numbers = tuple(d for d in flat if isinstance(d, int))
    if all(map(is_static, (*windows, flat))):
        padding = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        return _reduced(c, values, _Window(wide, steps, padding, window_dilation, base_dilation), function.body)
    if all(map(is_static, windows)):
        # symbolic padding is a separate pad
        xs, inits = values[: len(values) // 2], values[len(values) // 2 :]
        interior, (low, high) = tuple(d - 1 for d in base_dilation), (flat[::2], flat[1::2])
        pairs = zip(flatten(xs), flatten(inits), strict=True)
        padded = unflatten(xs, [ops.pad(x, low, high, init, interior) for x, init in pairs])
        window = _Window(wide, steps, ((0, 0),) * len(wide), window_dilation, (1,) * len(wide))
        return _reduced(c, [*padded, *inits], window, function.body)
    x, init = values[0], values[-1]
    if len(values) == 2 and isinstance(x, Node) and isinstance(init, Node):
        kind = regions.region_of(c, function.body, (init, init)).combiner()
        plain = all(d == 1 for dims in windows[1:] for d in dims)
        if plain and kind in ("sum", "prod", "max", "min") and regions.identity(kind, init):
            scan = _scan(kind, windows[0], tuple(zip(flat[::2], flat[1::2], strict=True)), x)
            if scan is not None:
                return (scan,)
    if not all(d == 1 for dims in windows[1:] for d in dims):
        raise Unsupported("a window of open size with strides or dilations")
    return _folded_by_doubling(c, values, function.body, windows[0], flat)


def _folded_by_doubling(
    c: Call, values: Sequence[AnyValue], block: Block, sizes: Sequence[DimLike], padding: tuple[DimLike, ...]
) -> tuple[AnyValue, ...]:
    """Windows of open sizes, one axis after the other."""
    count = len(values) // 2
    starts = flatten(values[count:])
    body = regions.region_of(c, block, (*values[count:], *values[count:]))

    def combine(a: Sequence[Node], b: Sequence[Node]) -> tuple[Node, ...]:
        return regions.elementwise(body.outputs, dict(zip(body.inputs, (*a, *b), strict=True)), a[0].shape)

    xs = [
        ops.pad(x, padding[::2], padding[1::2], start) for x, start in zip(flatten(values[:count]), starts, strict=True)
    ]
    require_one_shape(xs, c.op.name)
    for axis, size in enumerate(sizes):
        if size != 1:
            folds = window_folds(c.importer.computed_sizes, combine, xs, axis, size, c.loc)
            xs = [cut(x, axis, 0, x.shape[axis] - size + 1) for x in folds]
    totals = combine([ops.broadcast_to(start, x.shape) for start, x in zip(starts, xs, strict=True)], xs)
    return unflatten(values[count:], totals)


def _symbol(value: Attribute) -> str:
    return value.name if isinstance(value, Symbol) else ""


def _reduced(c: Call, operands: Sequence[AnyValue], window: _Window, block: Block) -> tuple[AnyValue, ...]:
    count = len(operands) // 2
    xs, inits = operands[:count], operands[count:]
    nodes, starts = flatten(xs), flatten(inits)
    require_one_shape(nodes, c.op.name)
    body = regions.region_of(c, block, (*inits, *inits))
    if len(xs) == 1 and isinstance(xs[0], Complex):
        a, b, x, y = body.inputs
        if body.outputs == (ops.Add()(a, x), ops.Add()(b, y)):
            return (
                Complex(*(_known_reduction("sum", window, n, s, c.loc) for n, s in zip(nodes, starts, strict=True))),
            )
    kind = body.combiner() if len(nodes) == 1 else None
    if kind is not None and kind != "set":
        return (_known_reduction(kind, window, nodes[0], starts[0], c.loc),)
    return unflatten(inits, _folded(body, window, nodes, starts))


def _known_reduction(kind: str, window: _Window, x: Node, init: Node, loc: str) -> Node:
    if x.dtype == boolean:
        # the maximum of bits is their disjunction
        kind = {"or": "max", "and": "min", "sum": "max", "prod": "min"}.get(kind, kind)
    if kind in ("and", "or"):
        body = _pair(kind, x)
        return _folded(body, window, (x,), (init,))[0]
    neutral = regions.identity(kind, init)
    padding = window.padding
    if not neutral:
        x = window.padded(x, init)
        padding = ((0, 0),) * len(padding)
    base = window.base_dilation if neutral else (1,) * len(padding)
    plain = neutral and all(v == 1 for v in (*window.strides, *window.dilation, *base))
    scan = _scan(kind, window.sizes, padding, x) if plain else None
    if scan is not None:
        return scan
    y = _windows(kind, window, x, padding, base, loc)
    return y if neutral else regions.apply(kind, y, init)


def _windows(
    kind: str, window: _Window, x: Node, padding: tuple[tuple[int, int], ...], base: tuple[int, ...], loc: str
) -> Node:
    if x.dtype == boolean:
        # bits are folded as bytes
        bits = ops.cast(x, u8)
        y = _windows(kind, window, bits, padding, base, loc)
        return ops.compare("NE", y, 0) if kind == "max" else ops.compare("EQ", y, 1)
    op = ops.ReduceWindow(kind, window.sizes, window.strides, padding, window.dilation, base)
    return op(x, loc=loc)


def _scan(kind: str, sizes: Sequence[DimLike], padding: Sequence[tuple[DimLike, DimLike]], x: Node) -> Node | None:
    """A window over all elements before (or after) each position is a cumulative reduction."""
    wide = [d for d, n in enumerate(sizes) if n != 1]
    if len(wide) != 1 or x.dtype == boolean:
        return None
    (d,) = wide
    n = sizes[d]
    if n != x.shape[d] or any(p != (0, 0) for i, p in enumerate(padding) if i != d):
        return None
    if padding[d] in ((n - 1, 0), (0, n - 1)):
        return ops.CumReduce(kind, d, reverse=padding[d][0] == 0)(x)
    return None


def _pair(kind: str, x: Node) -> Region:
    a, b = (Input(name, TensorType(x.dtype))() for name in ("a", "b"))
    return Region((a, b), (regions.apply(kind, a, b),))


def _folded(body: Region, window: _Window, xs: Sequence[Node], inits: Sequence[Node]) -> tuple[Node, ...]:
    shape = window.shape(xs[0].shape)
    totals = tuple(ops.broadcast_to(i, shape) for i in inits)
    padded = [window.padded(x, i) for x, i in zip(xs, inits, strict=True)]
    for values in window.taps(padded, shape):
        totals = regions.elementwise(body.outputs, dict(zip(body.inputs, (*totals, *values), strict=True)), shape)
    return totals


@row("select_and_scatter")
def select_and_scatter(c: Call, x: AnyValue, source: AnyValue, init: AnyValue) -> AnyValue:
    """The window's source is added to the selected element of each window."""
    nodes = parts(x)
    rank = nodes[0].type.rank
    window = _window(c, rank)
    choose = regions.region(c, 0, (init, init))
    (pred,) = choose.outputs
    combine = regions.region(c, 1, (init, init))
    shape = window.shape(nodes[0].shape)
    require_equal(shape, parts(source)[0].shape, c.op.name)
    numbers = [ops.iota(nodes[0].shape, d) for d in range(rank)]
    # positions outside are never selected
    padded = [window.padded(n, i) for n, i in zip(nodes, parts(init), strict=True)]
    places = [window.padded(n, ops.scalar(-1, i64)) for n in numbers]
    best: list[Node] | None = None
    for values in window.taps([*padded, *places], shape):
        new = list(values)
        if best is None:
            best = new
            continue
        old = dict(zip(choose.inputs, (*best[: len(nodes)], *new[: len(nodes)]), strict=True))
        (keeps,) = regions.elementwise((pred,), old, shape)
        none_yet, outside = (ops.compare("LT", v[len(nodes)], 0) for v in (best, new))
        keep = ops.or_(outside, ops.and_(keeps, ops.Not()(none_yet)))
        best = [ops.where(keep, b, n) for b, n in zip(best, new, strict=True)]
    assert best is not None
    index = ops.stack(best[len(nodes) :], -1)
    op = ops.Scatter("set", (), tuple(range(rank)), (), (), tuple(range(rank)), rank)
    filled = unflatten((x,), [ops.broadcast_to(p, n.shape) for p, n in zip(parts(init), nodes, strict=True)])
    return scattered(combine, op, filled, index, (source,))
