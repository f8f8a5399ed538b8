"""Sparse tensors: positions i64[n, rank], values [n] and sizes i64[rank]."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.composites.movement import normal_axis
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.dims import DimLike, floordiv, product
from ingot.ir.node import Node
from ingot.ir.types import boolean, i64

row = Table()


def _dense(positions: Node, values: Node, sizes: tuple[DimLike, ...]) -> Node:
    return ops.ScatterND("add")(ops.full(sizes, 0, values.dtype), ops.cast(positions, i64), values)


@row("SparseToDense")
def to_dense(c: Call, at: Node, sizes: Node, values: Node, default: Node) -> Node:
    return movement.to_dense(at, c.sizes(sizes), values, default)


@row("SparseTensorDenseMatMul")
def by_dense(c: Call, at: Node, values: Node, sizes: Node, b: Node) -> Node:
    """Each value times the row of b for its column, added to the row of the result for its row."""
    rows, columns = (0, 1) if not c.flag("adjoint_a") else (1, 0)
    b = ops.swap_axes(b, 0, 1) if c.flag("adjoint_b") else b
    at = ops.cast(at, i64)
    picked = ops.Take(0)(b, ops.index_axis(at, 1, columns))
    terms = ops.mul(picked, ops.expand_dims(values, 1))
    base = ops.full((c.sizes(sizes)[rows], b.shape[1]), 0, b.dtype)
    return ops.ScatterND("add")(base, ops.slice_axis(at, 1, rows, rows + 1), terms)


@row("SparseMatMul")
def product_of_dense(c: Call, a: Node, b: Node) -> Node:
    """The product of the dense tensors."""
    a = ops.swap_axes(a, 0, 1) if c.flag("transpose_a") else a
    return ops.MatMul()(a, ops.swap_axes(b, 0, 1) if c.flag("transpose_b") else b)


def _steps(sizes: tuple[DimLike, ...]) -> list[DimLike]:
    return [product(sizes[i + 1 :]) for i in range(len(sizes))]


def _flat(positions: Node, sizes: tuple[DimLike, ...]) -> Node:
    steps = ops.stack([ops.scalar(s, i64) for s in _steps(sizes)])
    return ops.reduce_sum(ops.mul(ops.cast(positions, i64), steps), 1)


@row("SparseReorder", results=("output_indices", "output_values"))
def reorder(c: Call, at: Node, values: Node, sizes: Node) -> Result:
    """The elements in row-major order."""
    order = ops.Sort(0, False, True, 1)(_flat(at, c.sizes(sizes)), ops.arange(at.shape[0], i64)).results[1]
    return [ops.Take(0)(at, order), ops.Take(0)(values, order)]


@row("SparseFillEmptyRows", results=("output_indices", "output_values", "empty_row_indicator", "reverse_index_map"))
def fill_empty_rows(c: Call, at: Node, values: Node, sizes: Node, default: Node) -> Result:
    """The elements by row, with a default element added to each empty row; the last result has their new indices."""
    count, rows = at.shape[0], c.lengths(sizes)[0]
    at = ops.cast(at, i64)
    ones = ops.full((count,), 1, i64)
    counts = ops.ScatterND("add")(ops.full((rows,), 0, i64), ops.slice_axis(at, 1, 0, 1), ones)
    empty = ops.compare("EQ", counts, 0)
    # all elements, followed by one for each row, of which those of empty rows are kept
    starts = ops.pad(ops.expand_dims(ops.arange(rows), 1), (0, 0), (0, at.shape[1] - 1))
    places, filled = ops.concat([at, starts]), ops.concat([values, ops.broadcast_to(default, (rows,))])
    kept_places = c.walk.computed_sizes.true_places(ops.concat([ops.full((count,), True, boolean), empty]), "filled")
    keys = ops.Take(0)(ops.index_axis(places, 1, 0), kept_places)
    source = ops.Sort(0, False, True, 1)(keys, kept_places).results[1]
    nowhere = ops.full((count + rows,), 0, i64)
    went = ops.ScatterND()(nowhere, ops.expand_dims(source, 1), ops.arange(source.shape[0]))
    return [ops.Take(0)(places, source), ops.Take(0)(filled, source), empty, ops.slice_axis(went, 0, 0, count)]


@row("SparseReshape", results=("output_indices", "output_shape"))
def reshape(c: Call, at: Node, sizes: Node, new_sizes: Node) -> Result:
    old, new = c.sizes(sizes), list(c.sizes(new_sizes))
    if -1 in new:
        known_size = product(d for d in new if d != -1)
        new[new.index(-1)] = floordiv(product(old), known_size)
    places = ops.stack(ops.coordinates(_flat(at, old), tuple(new)), 1)
    return [places, ops.stack([ops.scalar(d, i64) for d in new])]


@row("SparseReduceSum", "SparseReduceMax")
def reduce(c: Call, at: Node, values: Node, sizes: Node, axes: Node) -> Node:
    shape = c.sizes(sizes)
    reduced_axes = tuple(normal_axis(a, len(shape)) for a in c.numbers(axes))
    if c.op.endswith("Sum"):
        return ops.reduce_sum(_dense(at, values, shape), reduced_axes, c.flag("keep_dims"))
    keep = c.flag("keep_dims")
    is_present = ops.reduce_max(_dense(at, ops.full(values.shape, 1, values.dtype), shape), reduced_axes, keep)
    lowest = ops.full(shape, ops.identity_of("max", values.dtype), values.dtype)
    maxima = ops.reduce_max(ops.ScatterND("max")(lowest, ops.cast(at, i64), values), reduced_axes, keep)
    return ops.where(ops.compare("GT", is_present, 0), maxima, 0)  # 0 where nothing is


@row("SparseTensorDenseAdd")
def dense_add(c: Call, at: Node, values: Node, sizes: Node, b: Node) -> Node:
    return ops.ScatterND("add")(b, ops.cast(at, i64), values)


@row("SparseDenseCwiseMul", "SparseDenseCwiseAdd", "SparseDenseCwiseDiv")
def elementwise(c: Call, at: Node, values: Node, sizes: Node, b: Node) -> Node:
    """The new values."""
    picked = ops.GatherND()(ops.broadcast_to(b, c.sizes(sizes)), ops.cast(at, i64))
    return {"Mul": ops.mul, "Add": ops.add, "Div": ops.div}[c.op[-3:]](values, picked)


@row("SparseConcat", results=("output_indices", "output_values", "output_shape"))
def concat(c: Call, *operands: Node) -> Result:
    n = c.int("N")
    places, values, sizes = (operands[i * n : (i + 1) * n] for i in range(3))
    shapes = [c.sizes(s) for s in sizes]
    axis, first, shifted = normal_axis(c.int("concat_dim"), len(shapes[0])), ops.scalar(0, i64), list[Node]()
    for at, shape in zip(places, shapes, strict=True):
        steps = ops.stack([first if i == axis else ops.scalar(0, i64) for i in range(len(shape))])
        shifted.append(ops.add(at, steps))
        first = ops.add(first, ops.scalar(shape[axis], i64))
    total = list(shapes[0])
    for s in shapes[1:]:
        total[axis] = total[axis] + s[axis]
    wide = ops.stack([ops.scalar(d, i64) for d in total])
    at, all_values = ops.concat(shifted, 0), ops.concat(list(values), 0)
    order = ops.Sort(0, False, True, 1)(_flat(at, tuple(total)), ops.arange(at.shape[0], i64)).results[1]
    return [ops.Take(0)(at, order), ops.Take(0)(all_values, order), wide]


@row("SparseSoftmax")
def softmax(c: Call, at: Node, values: Node, sizes: Node) -> Node:
    """The softmax over the stored values of each row; returns the new values."""
    shape = c.sizes(sizes)
    if len(shape) < 2:
        raise Unsupported(f"of {len(shape)} axes")
    rows, places = shape[:-1], ops.slice_axis(ops.cast(at, i64), 1, 0, len(shape) - 1)
    lowest = ops.full(rows, ops.identity_of("max", values.dtype), values.dtype)
    maxima = ops.GatherND()(ops.ScatterND("max")(lowest, places, values), places)
    exps = ops.Exp()(ops.sub(values, maxima))
    return ops.div(exps, ops.GatherND()(_dense(places, exps, rows), places))
