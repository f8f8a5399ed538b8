"""scatter: Scatter for combiners that it supports, else one update after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot import ops
from ingot.frontends.shared.sizes import require_equal
from ingot.frontends.stablehlo import regions
from ingot.frontends.stablehlo.regions import Region
from ingot.frontends.stablehlo.values import AnyValue, Call, Table, flatten, unflatten
from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, boolean, i64

row = Table()

_KINDS = {"set": "set", "sum": "add", "prod": "mul", "max": "max", "min": "min"}
_BIT_KINDS = {"set": "set", "or": "max", "and": "min", "sum": "max", "prod": "min", "max": "max", "min": "min"}


@row("scatter")
def scatter(c: Call, *operands: AnyValue) -> tuple[AnyValue, ...]:
    count = len(operands) // 2
    xs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    assert isinstance(indices, Node)
    d = c.fields("scatter_dimension_numbers")
    op = ops.Scatter(
        "set", d.ints("update_window_dims", ()), d.ints("inserted_window_dims", ()), d.ints("input_batching_dims", ()),
        d.ints("scatter_indices_batching_dims", ()), d.ints("scatter_dims_to_operand_dims", ()),
        d.int("index_vector_dim", 0),
    )  # fmt: skip
    windows, vector = op.update_window_dims, op.index_vector_dim
    for u in flatten(updates):
        batch = [d for i, d in enumerate(u.shape) if i not in windows]
        require_equal([d for i, d in enumerate(indices.shape) if i != vector], batch, c.op.name)
    body = regions.region(c, 0, (*xs, *updates))
    return scattered(body, op, xs if count > 1 else xs[0], indices, updates, c.loc)


def scattered(
    body: Region, op: ops.Scatter, xs: AnyValue, indices: Node, updates: Sequence[AnyValue], loc: str = ""
) -> tuple[AnyValue, ...]:
    values = xs if isinstance(xs, tuple) else (xs,)
    nodes, updates_flat = flatten(values), flatten(updates)
    kinds = _kinds(body, nodes)
    if kinds is None:
        op.infer(nodes[0].type, indices.type, updates_flat[0].type)
        return unflatten(values, _sequential(body, op, nodes, indices, updates_flat))
    results = [replace(op, kind=k)(x, indices, u, loc=loc) for k, x, u in zip(kinds, nodes, updates_flat, strict=True)]
    return unflatten(values, results)


def _kinds(body: Region, xs: Sequence[Node]) -> list[str] | None:
    """The combiner of each operand, if none depends on another operand."""
    n = len(xs)
    kinds: list[str] = []
    for i, output in enumerate(body.outputs):
        a, b = body.inputs[i], body.inputs[n + i]
        combiner = Region((a, b), (output,)).combiner()
        kind = (_BIT_KINDS if a.dtype == boolean else _KINDS).get(combiner or "")
        if kind is None:
            return None
        kinds.append(kind)
    return kinds


def _sequential(
    body: Region, op: ops.Scatter, xs: Sequence[Node], indices: Node, updates: Sequence[Node]
) -> tuple[Node, ...]:
    """x[at[i]] = region(x[at[i]], updates[i]) for every element of the updates that is in bounds."""
    is_inside, positions = _places(op, xs[0], indices, updates[0].type)
    count, total = product(updates[0].shape), product(xs[0].shape)
    if count == 0 or total == 0:
        return tuple(xs)
    flat = [ops.reshape(v, (product(v.shape),)) for v in (*xs, *updates, positions, is_inside)]
    inputs = [Input(f"value.{k}", v.type)() for k, v in enumerate(flat)]
    i = Input("i", TensorType(i64))()
    n = len(xs)
    olds, news, places, within = inputs[:n], inputs[n : 2 * n], inputs[2 * n], inputs[2 * n + 1]

    def element(v: Node, index: Node) -> Node:
        return ops.reshape(ops.DynamicSlice((1,))(v, index), ())

    place = element(places, i)
    current = [element(v, place) for v in olds]
    values = dict(zip(body.inputs, (*current, *(element(v, i) for v in news)), strict=True))
    combined = regions.elementwise(body.outputs, values, ())
    selected = [ops.where(element(within, i), y, v) for y, v in zip(combined, current, strict=True)]
    changed = [ops.DynamicUpdateSlice()(v, ops.reshape(y, (1,)), place) for v, y in zip(olds, selected, strict=True)]
    graph_inputs = (i, *inputs)
    cond = Graph(graph_inputs, (ops.compare("LT", i, ops.scalar(count, i64)),))
    step = Graph(graph_inputs, (ops.add(i, 1), *changed, *inputs[n:]))
    results = ops.While(cond, step)(ops.scalar(0, i64), *flat).results[1 : 1 + n]
    return tuple(ops.reshape(y, x.shape) for y, x in zip(results, xs, strict=True))


def _places(op: ops.Scatter, x: Node, indices: Node, updates: TensorType) -> tuple[Node, Node]:
    """For each element of the updates, whether it is in bounds, and its position in the flattened `x`."""
    shape, vector = updates.shape, op.index_vector_dim
    batch_dims = [d for d in range(len(shape)) if d not in op.update_window_dims]
    dropped = (*op.inserted_window_dims, *op.input_batching_dims)
    kept_axes = [d for d in range(x.type.rank) if d not in dropped]
    wide = ops.cast(indices, i64)
    if vector == indices.type.rank:
        wide = ops.expand_dims(wide, vector)
    index: dict[int, Node] = {}
    for k, d in enumerate(op.scatter_dims_to_operand_dims):
        start = ops.index_axis(wide, vector, k)
        index[d] = ops.BroadcastInDim(shape, tuple(batch_dims))(start)
    for d, indices_axis in zip(op.input_batching_dims, op.scatter_indices_batching_dims, strict=True):
        index[d] = ops.iota(shape, batch_dims[indices_axis - (indices_axis > vector)])
    for d, indices_axis in zip(kept_axes, op.update_window_dims, strict=True):
        offset = ops.iota(shape, indices_axis)
        index[d] = ops.add(index[d], offset) if d in index else offset
    at = ops.full(shape, 0, i64)
    is_inside = ops.full(shape, True, boolean)
    for d, size in enumerate(x.shape):
        place = index.get(d, ops.full(shape, 0, i64))
        within = ops.and_(ops.compare("GE", place, 0), ops.compare("LT", place, ops.scalar(size, i64)))
        is_inside = ops.and_(is_inside, within)
        at = ops.add(ops.mul(at, ops.scalar(size, i64)), place)
    return is_inside, ops.where(is_inside, at, 0)
