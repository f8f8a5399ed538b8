"""Creation of tensors: fills, ranges, identity and triangles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, Operand, axis_of, cast, expand, i64, node_of, scalar_like
from ingot.ir.dims import Dim, DimLike, clamped_position
from ingot.ir.node import Node, const
from ingot.ir.types import DType

aten = Table()


def filled(shape: Sequence[DimLike], value: Operand, dtype: DType) -> Node:
    """A tensor filled with `value`."""
    return expand(node_of(value, dtype), shape)


@aten("full.default", "full.names", "new_full.default", "full_like.default")
def full(c: Context, shape: object, *args: Operand, fill_value: Operand | None = None, **named: object) -> Node:
    # the value is the third argument of new_full(x, size, value), the second of the others
    value = fill_value if fill_value is not None else args[-1]
    return filled(c.shape, value, c.dtype)


@aten(
    "zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default",
    "new_empty.default", "empty_strided.default", "new_empty_strided.default", "zero.default", "zeros.names",
    "empty_permuted.default", "_efficientzerotensor.default",
)  # fmt: skip
def zeros(c: Context, *args: object, **named: object) -> Node:
    # the contents of an uninitialised tensor are undefined, so zeros will do
    return filled(c.shape, 0, c.dtype)


@aten("ones.default", "ones_like.default", "new_ones.default", "ones.names")
def ones(c: Context, *args: object, **named: object) -> Node:
    return filled(c.shape, 1, c.dtype)


@aten("fill.Scalar", "fill.Tensor")
def fill(c: Context, x: Node, value: Operand) -> Node:
    return filled(c.shape, value, c.dtype)


@aten("scalar_tensor.default")
def scalar_tensor(c: Context, value: Operand, **named: object) -> Node:
    return node_of(value, c.dtype)


@aten("arange.default")
def arange(c: Context, end: Operand, **named: object) -> Node:
    return _range(c, 0, 1)


@aten("arange.start", "arange.start_step")
def arange_start(c: Context, start: Operand, end: Operand, step: Operand = 1, **named: object) -> Node:
    return _range(c, start, step)


def _range(c: Context, start: Operand, step: Operand) -> Node:
    (length,) = c.shape
    if isinstance(length, int) and isinstance(start, float | int) and isinstance(step, float | int):
        exact = all(isinstance(v, int) for v in (start, step))
        if not exact:
            # in double and rounded once, as PyTorch does on the CPU
            return const((start + np.arange(length, dtype=np.float64) * step).astype(c.dtype.numpy))
    index = ops.Iota(c.type, 0)()
    if not (isinstance(step, int) and step == 1):
        index = ops.Mul()(index, filled(c.shape, step, c.dtype))
    if not (isinstance(start, int) and start == 0):
        index = ops.Add()(index, filled(c.shape, start, c.dtype))
    return index


@aten("linspace.default")
def linspace(c: Context, start: Operand, end: Operand, steps: DimLike, **named: object) -> Node:
    if isinstance(steps, Dim) or not isinstance(start, int | float) or not isinstance(end, int | float):
        raise Unsupported("ends or a count that are known only at run time")
    if c.dtype.is_integer:
        start, end = int(start), int(end)  # truncated first, as in PyTorch
    a, b = float(start), float(end)
    step = (b - a) / (steps - 1) if steps > 1 else 0.0
    index = np.arange(steps)
    # computed from the nearer end, as in PyTorch
    values = np.where(index < max(steps // 2, 1), a + step * index, b - step * (steps - 1 - index))
    return const(values.astype(c.dtype.numpy))


@aten("eye.default", "eye.m")
def eye(c: Context, *args: object, **named: object) -> Node:
    return cast(ops.Compare("EQ")(ops.iota(c.shape, 0), ops.iota(c.shape, 1)), c.dtype)


@aten("tril.default")
def tril(c: Context, x: Node, diagonal: DimLike = 0) -> Node:
    return _triangle(x, diagonal, upper=False)


@aten("triu.default")
def triu(c: Context, x: Node, diagonal: DimLike = 0) -> Node:
    return _triangle(x, diagonal, upper=True)


def _triangle(x: Node, diagonal: DimLike, *, upper: bool) -> Node:
    plane = x.shape[-2:]
    row, column = ops.iota(plane, 0), ops.iota(plane, 1)
    edge = ops.Add()(row, filled(plane, clamped_position(diagonal), i64)) if diagonal != 0 else row
    is_kept = expand(ops.Compare("GE" if upper else "LE")(column, edge), x.shape)
    return ops.Select()(is_kept, x, expand(scalar_like(0, x), x.shape))


@aten("tril_indices.default")
def tril_indices(c: Context, row: int, col: int, offset: int = 0, **named: object) -> Node:
    return const(np.stack(np.tril_indices(row, offset, col)).astype(c.dtype.numpy))


@aten("triu_indices.default")
def triu_indices(c: Context, row: int, col: int, offset: int = 0, **named: object) -> Node:
    return const(np.stack(np.triu_indices(row, offset, col)).astype(c.dtype.numpy))


@aten("one_hot.default")
def one_hot(c: Context, x: Node, num_classes: int = -1) -> Node:
    shape = c.shape
    lead = len(shape) - 1
    wide = ops.BroadcastInDim(shape, tuple(range(lead)))(x)
    return cast(ops.Compare("EQ")(cast(wide, i64), ops.iota(shape, lead)), c.dtype)


@aten("diag_embed.default")
def diag_embed(c: Context, x: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    rank = len(c.shape)
    first, second = axis_of(dim1, rank), axis_of(dim2, rank)
    if (first, second) != (rank - 2, rank - 1):
        other_axes = [i for i in range(rank) if i not in (first, second)]
        order = (*other_axes, first, second)
        last = replace(c, results=(c.type.with_shape(tuple(c.shape[i] for i in order)),))
        inverse_order = tuple(order.index(i) for i in range(rank))
        return ops.Transpose(inverse_order)(diag_embed(last, x, offset))
    # each column holds x shifted by the offset; each row selects its own element
    low, high = max(offset, 0), max(-offset, 0)
    shifted = ops.Pad((0,) * (rank - 2) + (low,), (0,) * (rank - 2) + (high,), (0,) * (rank - 1))(x, scalar_like(0, x))
    wide = ops.BroadcastInDim(c.shape, (*range(rank - 2), rank - 1))(shifted)
    row, column = ops.iota(c.shape, rank - 2), ops.iota(c.shape, rank - 1)
    is_diagonal = ops.Compare("EQ")(ops.Add()(row, filled(c.shape, offset, i64)), column)
    return ops.Select()(is_diagonal, wide, expand(scalar_like(0, x), c.shape))
