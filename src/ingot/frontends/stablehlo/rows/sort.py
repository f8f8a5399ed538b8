"""sort: a comparator that compares keys of both sides is Sort on the keys; any other ranks each element among all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_one_shape
from ingot.frontends.stablehlo import regions
from ingot.frontends.stablehlo.regions import Region
from ingot.frontends.stablehlo.rows.control import CUSTOM
from ingot.frontends.stablehlo.rows.elementwise import ordered
from ingot.frontends.stablehlo.syntax import Block, Symbol
from ingot.frontends.stablehlo.values import AnyValue, Call, Table, flatten, unflatten
from ingot.ir.node import Node, rebuild, topological
from ingot.ir.types import Shape, TensorType, i64

row = Table()

Key = tuple[str, Node]  # LT or GT, and the key of the left side


@row("sort")
def sort(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    rank = flatten(operands)[0].type.rank
    return _sorted(c, operands, c.regions[0], c.int("dimension", rank - 1) % max(1, rank))


@CUSTOM("target.ApproxTopK")
def approx_top_k(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    """(operands, initial values): the first by a comparator, all of them found."""
    called, config = (c.attributes.get(name) for name in ("called_computations", "mhlo.backend_config"))
    name = called[0].name if isinstance(called, list) and called and isinstance(called[0], Symbol) else ""
    function = c.importer.module.functions.get(name)
    if function is None or not isinstance(config, dict):
        raise Unsupported("without a computation or its options")
    options = replace(c, attributes=config)
    if not options.flag("aggregate_to_topk"):
        raise Unsupported("without its last step")
    axis, k = options.int("reduction_dim"), options.int("top_k")
    results = _sorted(c, operands[: len(operands) // 2], function.body, axis)
    return unflatten(results, [ops.slice_axis(x, axis, 0, k, loc=c.loc) for x in flatten(results)])


def _sorted(c: Call, operands: Sequence[AnyValue], comparator: Block, dim: int) -> tuple[AnyValue, ...]:
    xs = flatten(operands)
    require_one_shape(xs, c.op.name)
    # the arguments are (a, b) of each operand in turn
    body = regions.region_of(c, comparator, tuple(v for x in operands for v in (x, x)))
    left, right = _sides(body, operands)
    if xs[0].type.rank == 0:
        return tuple(operands)
    keys = _keys(body.outputs[0], left, right)
    if keys is None or len({direction for direction, _ in keys}) != 1:
        return unflatten(operands, _ranked(body, left, right, xs, dim))
    images = dict(zip(left, xs, strict=True))
    plain = [_canonical(key, left) for _, key in keys]
    by = [images[k] for k in plain if k in images]
    descending = keys[0][0] == "GT"
    if len(by) == len(keys):
        # keys first, then what goes with them
        others = [x for x in xs if not any(x is k for k in by)]
        out = ops.Sort(dim, descending, True, len(by))(*by, *others, loc=c.loc).results
        results = dict(zip((*by, *others), out, strict=True))
        return unflatten(operands, [results[x] for x in xs])
    order = regions.elementwise([key for _, key in keys], images, xs[0].shape)
    out = ops.Sort(dim, descending, True, len(order))(*order, *xs, loc=c.loc).results
    return unflatten(operands, out[len(order) :])


def _sides(body: Region, operands: Sequence[AnyValue]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    return flatten(body.arguments[::2]), flatten(body.arguments[1::2])


def _keys(out: Node, left: Sequence[Node], right: Sequence[Node]) -> list[Key] | None:
    """LT(k(a), k(b)), or LT(k(a), k(b)) | (EQ(k(a), k(b)) & the rest)."""
    op = out.op
    if isinstance(op, ops.Compare) and op.direction in ("LT", "GT"):
        key = _key(out, left, right)
        return None if key is None else [(op.direction, key)]
    if isinstance(op, ops.Or):
        for first, rest in (out.inputs, out.inputs[::-1]):
            head = _keys(first, left, right)
            if head is None or len(head) != 1 or not isinstance(rest.op, ops.And):
                continue
            for equal, tail in (rest.inputs, rest.inputs[::-1]):
                is_equality = isinstance(equal.op, ops.Compare) and equal.op.direction == "EQ"
                if is_equality and set(equal.inputs) == set(first.inputs):
                    tail_keys = _keys(tail, left, right)
                    return None if tail_keys is None else head + tail_keys
    return None


def _key(comparison: Node, left: Sequence[Node], right: Sequence[Node]) -> Node | None:
    """The left operand, where the right one is the same of the other side; LT(k(b), k(a)) is no such."""
    a, b = comparison.inputs
    if any(n in right for n in topological((a,))):
        return None
    (mirrored,) = rebuild((a,), dict(zip(left, right, strict=True)))
    return a if mirrored is b else None


def _canonical(key: Node, left: Sequence[Node]) -> Node:
    """The argument itself, for the ways in which JAX says that -0 equals 0 and NaN is the greatest: as Sort has it."""
    for x in left:
        if not x.dtype.is_float:
            continue
        zero, nan = (ops.scalar(v, x.dtype) for v in (0.0, math.nan))
        no_sign = ops.Select()(ops.Compare("EQ")(x, zero), zero, x)
        if key is ordered(ops.Select()(ops.Compare("NE")(x, x), nan, no_sign)):
            return x
    return key


def _ranked(
    body: Region, left: Sequence[Node], right: Sequence[Node], xs: Sequence[Node], dim: int
) -> tuple[Node, ...]:
    """The place of an element is the number of those that go before it, of equal ones the earlier."""
    shape, n, rank = xs[0].shape, xs[0].shape[dim], xs[0].type.rank
    square = (*shape[: dim + 1], n, *shape[dim + 1 :])
    mine = tuple(d for d in range(rank + 1) if d != dim + 1)
    theirs = tuple(d for d in range(rank + 1) if d != dim)
    a = [ops.BroadcastInDim(square, mine)(x) for x in xs]
    b = [ops.BroadcastInDim(square, theirs)(x) for x in xs]
    is_less = _applied(body, (*right, *left), (*a, *b), square)
    is_greater = _applied(body, (*left, *right), (*a, *b), square)
    i, j = (ops.Iota(TensorType(i64, square), d)() for d in (dim, dim + 1))
    precedes = ops.or_(is_less, ops.and_(ops.Not()(is_greater), ops.compare("LT", j, i)))
    place = ops.reduce_sum(ops.cast(precedes, i64), dim + 1)
    return ops.Sort(dim)(place, *xs).results[1:]


def _applied(body: Region, arguments: Sequence[Node], arrays: Sequence[Node], shape: Shape) -> Node:
    (out,) = regions.elementwise(body.outputs, dict(zip(arguments, arrays, strict=True)), shape)
    return out
