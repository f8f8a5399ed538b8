"""reduce: a known combiner becomes Reduce, an argmax becomes ArgReduce, any other region is folded pairwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_one_shape
from ingot.frontends.stablehlo import regions
from ingot.frontends.stablehlo.regions import Region
from ingot.frontends.stablehlo.rows.control import CUSTOM
from ingot.frontends.stablehlo.rows.elementwise import ordered
from ingot.frontends.stablehlo.values import AnyValue, Call, Table, flatten, parts, unflatten
from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import boolean, i64

row = Table()


@row("reduce")
def reduce(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    count = len(operands) // 2
    xs, inits = operands[:count], operands[count:]
    dims = c.axes("dimensions", flatten(xs)[0].type.rank)
    require_one_shape(flatten(xs), c.op.name)
    body = regions.region(c, 0, (*inits, *inits))
    return reduced(body, xs, inits, dims, c.loc)


def reduced(
    body: Region, xs: Sequence[AnyValue], inits: Sequence[AnyValue], dims: tuple[int, ...], loc: str = ""
) -> tuple[AnyValue, ...]:
    if len(xs) == 1 and isinstance(xs[0], Complex) and isinstance(inits[0], Complex) and _is_sum(body):
        return (
            Complex(
                *(_known_reduction("sum", x, i, dims, loc) for x, i in zip(parts(xs[0]), parts(inits[0]), strict=True))
            ),
        )
    nodes, starts = flatten(xs), flatten(inits)
    kind = body.combiner() if len(nodes) == 1 else None
    if kind is not None and kind != "set":
        return (_known_reduction(kind, nodes[0], starts[0], dims, loc),)
    argument = _argument(body, nodes, starts, dims, loc)
    if argument is not None:
        return argument
    return unflatten(inits, folded(body, nodes, starts, dims))


def _is_sum(body: Region) -> bool:
    if len(body.inputs) != 4 or len(body.outputs) != 2:
        return False
    a, b, x, y = body.inputs
    return all(o in (ops.Add()(p, q), ops.Add()(q, p)) for o, p, q in zip(body.outputs, (a, b), (x, y), strict=True))


def _known_reduction(kind: str, x: Node, init: Node, dims: tuple[int, ...], loc: str) -> Node:
    if x.dtype == boolean:
        kind = {"sum": "or", "prod": "and", "max": "or", "min": "and"}.get(kind, kind)
    y = ops.Reduce(kind, dims)(x, loc=loc) if dims else x
    return y if regions.identity(kind, init) else regions.apply(kind, y, init)


def _argument(
    body: Region, xs: Sequence[Node], inits: Sequence[Node], dims: tuple[int, ...], loc: str
) -> tuple[AnyValue, ...] | None:
    """(max, its first position) of values and their positions along a dimension, as JAX writes it."""
    if len(xs) != 2 or len(dims) != 1 or len(body.outputs) != 2:
        return None
    x, places = xs
    iota, (dim,) = places.op, dims
    if not isinstance(iota, ops.Iota) or iota.dimension != dim or not places.dtype.is_integer or x.shape[dim] == 0:
        return None
    for kind, direction in (("max", "GT"), ("min", "LT")):
        if body.outputs in _argument_bodies(direction, *body.inputs) and regions.identity(kind, inits[0]):
            index = ops.ArgReduce(kind, dim)(x, loc=loc)
            return ops.Reduce(kind, dims)(x, loc=loc), ops.cast(index, places.dtype)
    return None


def _argument_bodies(direction: str, a: Node, i: Node, b: Node, j: Node) -> list[tuple[Node, Node]]:
    """The results of an argmax's region, with NaN handling for floats, and without."""
    better, first = ops.Compare(direction)(a, b), ops.Compare("LT")(i, j)
    bodies: list[tuple[Node, Node]] = []
    for is_better in (ops.Or()(better, ops.Compare("NE")(a, a)), better):
        tie = ops.And()(ops.Compare("EQ")(a, b), first)
        bodies.append((ops.Select()(is_better, a, b), ops.Select()(ops.Or()(is_better, tie), i, j)))
    return bodies


def folded(body: Region, xs: Sequence[Node], inits: Sequence[Node], dims: tuple[int, ...]) -> tuple[Node, ...]:
    """Neighbours are combined until one element is left, then the initial values with it."""
    kept_axes = tuple(d for d in range(xs[0].type.rank) if d not in dims)
    shape = tuple(xs[0].shape[d] for d in kept_axes)
    n = product(xs[0].shape[d] for d in dims)
    rows = tuple(ops.reshape(ops.transpose(x, (*dims, *kept_axes)), (n, *shape)) for x in xs)
    starts = tuple(ops.broadcast_to(i, shape) for i in inits)
    if not isinstance(n, int):
        return _sequential(body, rows, starts)
    if n == 0:
        return starts
    while n > 1:
        half = n // 2
        pairs = [ops.slice_axis(r, 0, at, 2 * half, 2) for at in (0, 1) for r in rows]
        combined = regions.elementwise(body.outputs, dict(zip(body.inputs, pairs, strict=True)), (half, *shape))
        if n % 2:
            last = [ops.slice_axis(r, 0, n - 1, n) for r in rows]
            combined = tuple(ops.concat(pair, 0) for pair in zip(combined, last, strict=True))
        rows, n = combined, half + n % 2
    remaining = [ops.index_axis(r, 0, 0) for r in rows]
    return regions.elementwise(body.outputs, dict(zip(body.inputs, (*starts, *remaining), strict=True)), shape)


def _sequential(body: Region, rows: Sequence[Node], starts: Sequence[Node]) -> tuple[Node, ...]:
    """Rows are combined one after the other in a loop, as their number is known only at run time."""
    i = Input("i", ops.scalar(0, i64).type)()
    values = [Input(f"value.{k}", s.type)() for k, s in enumerate(starts)]
    inner = [Input(f"rows.{k}", r.type)() for k, r in enumerate(rows)]
    shape = starts[0].shape
    zeros = [ops.scalar(0, i64)] * len(shape)
    at = [ops.index_axis(ops.DynamicSlice((1, *shape))(r, i, *zeros), 0, 0) for r in inner]
    new = regions.elementwise(body.outputs, dict(zip(body.inputs, (*values, *at), strict=True)), shape)
    inputs = (i, *values, *inner)
    count = ops.scalar(rows[0].shape[0], i64)
    step = Graph(inputs, (ops.add(i, 1), *new, *inner))
    op = ops.While(Graph(inputs, (ops.compare("LT", i, count),)), step)
    return op(ops.scalar(0, i64), *starts, *rows).results[1 : 1 + len(starts)]


@CUSTOM("target.mhlo.topk")
def top_k_of_mhlo(c: Call, x: Node) -> tuple[Node, Node]:
    """`chlo.top_k` as JAX before 0.10 exports it."""
    options = c.attributes.get("mhlo.attributes")
    if not isinstance(options, dict) or not replace(c, attributes={"largest": True, **options}).flag("largest"):
        raise Unsupported("without its options, or of the least values")
    return top_k(replace(c, attributes=options), x)


@row("chlo.top_k")
def top_k(c: Call, x: Node) -> tuple[Node, Node]:
    places = c.types[1]
    if places is None:
        raise Unsupported("places that are no tensor")
    axis, k = x.type.rank - 1, c.int("k")
    iota = ops.Iota(x.type.with_dtype(places.dtype), axis)()
    # by IEEE's total order, in which a negative NaN is the least: no comparison of floats says so
    keys = ordered(x) if x.dtype.is_float else x
    sorted_ = ops.Sort(axis, True, True, 1, k)(keys, x, iota, loc=c.loc).results
    return sorted_[1], sorted_[2]
