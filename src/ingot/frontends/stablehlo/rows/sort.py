"""sort: a comparator of keys becomes Sort on the keys; for any other, each element is ranked among all."""

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
from ingot.ir.types import Shape, i64

row = Table()

Key = tuple[str, Node]  # LT or GT, and the key of the left side


@row("sort")
def sort(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    rank = flatten(operands)[0].type.rank
    return _sorted(c, operands, c.regions[0], c.int("dimension", rank - 1) % max(1, rank))


@CUSTOM("target.ApproxTopK")
def approx_top_k(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    """Operands: tensors, then initial values. The top elements by the comparator, computed exactly."""
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
    lhs, rhs = _sides(body, operands)
    if xs[0].type.rank == 0:
        return tuple(operands)
    keys = _keys(body.outputs[0], lhs, rhs)
    if keys is None or len({direction for direction, _ in keys}) != 1:
        return unflatten(operands, _ranked(body, lhs, rhs, xs, dim))
    images = dict(zip(lhs, xs, strict=True))
    plain = [_canonical(key, lhs) for _, key in keys]
    by = [images[k] for k in plain if k in images]
    descending = keys[0][0] == "GT"
    if len(by) == len(keys):
        # keys first, then the other operands
        others = [x for x in xs if not any(x is k for k in by)]
        sorted_nodes = ops.Sort(dim, descending, True, len(by))(*by, *others, loc=c.loc).results
        results = dict(zip((*by, *others), sorted_nodes, strict=True))
        return unflatten(operands, [results[x] for x in xs])
    order = regions.elementwise([key for _, key in keys], images, xs[0].shape)
    sorted_nodes = ops.Sort(dim, descending, True, len(order))(*order, *xs, loc=c.loc).results
    return unflatten(operands, sorted_nodes[len(order) :])


def _sides(body: Region, operands: Sequence[AnyValue]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    return flatten(body.arguments[::2]), flatten(body.arguments[1::2])


def _keys(output: Node, lhs: Sequence[Node], rhs: Sequence[Node]) -> list[Key] | None:
    """The keys of LT(k(a), k(b)), or of LT(k(a), k(b)) | (EQ(k(a), k(b)) & comparison of further keys)."""
    op = output.op
    if isinstance(op, ops.Compare) and op.direction in ("LT", "GT"):
        key = _key(output, lhs, rhs)
        return None if key is None else [(op.direction, key)]
    if isinstance(op, ops.Or):
        for first, rest in (output.inputs, output.inputs[::-1]):
            head = _keys(first, lhs, rhs)
            if head is None or len(head) != 1 or not isinstance(rest.op, ops.And):
                continue
            for equal, tail in (rest.inputs, rest.inputs[::-1]):
                is_equality = isinstance(equal.op, ops.Compare) and equal.op.direction == "EQ"
                if is_equality and set(equal.inputs) == set(first.inputs):
                    tail_keys = _keys(tail, lhs, rhs)
                    return None if tail_keys is None else head + tail_keys
    return None


def _key(comparison: Node, lhs: Sequence[Node], rhs: Sequence[Node]) -> Node | None:
    """The left operand, where the right one is the same of the other side; LT(k(b), k(a)) is no such."""
    a, b = comparison.inputs
    if any(n in rhs for n in topological((a,))):
        return None
    (mirrored,) = rebuild((a,), dict(zip(lhs, rhs, strict=True)))
    return a if mirrored is b else None


def _canonical(key: Node, lhs: Sequence[Node]) -> Node:
    """The argument itself, for JAX's ways to make -0 equal 0 and NaN the greatest, which Sort does anyway."""
    for x in lhs:
        if not x.dtype.is_float:
            continue
        zero, nan = (ops.scalar(v, x.dtype) for v in (0.0, math.nan))
        no_sign = ops.Select()(ops.Compare("EQ")(x, zero), zero, x)
        if key is ordered(ops.Select()(ops.Compare("NE")(x, x), nan, no_sign)):
            return x
    return key


def _ranked(body: Region, lhs: Sequence[Node], rhs: Sequence[Node], xs: Sequence[Node], dim: int) -> tuple[Node, ...]:
    """The rank of an element is the number of elements before it; of equal ones, the earlier come first."""
    shape, n, rank = xs[0].shape, xs[0].shape[dim], xs[0].type.rank
    square = (*shape[: dim + 1], n, *shape[dim + 1 :])
    mine = tuple(d for d in range(rank + 1) if d != dim + 1)
    theirs = tuple(d for d in range(rank + 1) if d != dim)
    a = [ops.BroadcastInDim(square, mine)(x) for x in xs]
    b = [ops.BroadcastInDim(square, theirs)(x) for x in xs]
    is_less = _applied(body, (*rhs, *lhs), (*a, *b), square)
    is_greater = _applied(body, (*lhs, *rhs), (*a, *b), square)
    i, j = (ops.iota(square, d) for d in (dim, dim + 1))
    precedes = ops.or_(is_less, ops.and_(ops.Not()(is_greater), ops.compare("LT", j, i)))
    place = ops.reduce_sum(ops.cast(precedes, i64), dim + 1)
    return ops.Sort(dim)(place, *xs).results[1:]


def _applied(body: Region, arguments: Sequence[Node], arrays: Sequence[Node], shape: Shape) -> Node:
    (output,) = regions.elementwise(body.outputs, dict(zip(arguments, arrays, strict=True)), shape)
    return output
