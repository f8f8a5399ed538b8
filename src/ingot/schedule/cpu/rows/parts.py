"""Reductions of parts of rows, and their combination.

    sum(x[n])              ->   p = sum(part);                                   sum(p)
    sum(exp(x - max(x)))   ->   m = max(part), s = sum(exp(part - m));           sum(s exp(m - max(m)))
    sum((x - mean(x))^2)   ->   c = mean(part), r = sum(part - c), q = sum((part - c)^2);
                                d = c - mean(x);                                 sum(q + d (2 r + n d))

A row is thus read from memory once, in parts that fit in a cache. Sources: for the second, Milakov and Gimelshein,
"Online normalizer calculation for softmax" (2018); for the third, Chan, Golub and LeVeque, "Algorithms for computing
the sample variance" (1983), with the residual sum of deviations r, so that it is exact for any c.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.dims import product
from ingot.ir.node import Graph, Node, rebuild, topological
from ingot.ir.types import f64
from ingot.ops import ArgReduce, Reduce, build
from ingot.ops.build import cast
from ingot.schedule.folds import accumulator
from ingot.schedule.row_box import reduction, reductions_of
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class RowParts:
    """Rows that are split into `parts` along the dimension `dim`."""

    dim: int
    parts: int

    def split(self, x: Node) -> Node:
        """x with its parts along a new dimension, in the accumulator's type."""
        extent = x.shape[self.dim]
        assert isinstance(extent, int)
        shape = (*x.shape[: self.dim], self.parts, extent // self.parts, *x.shape[self.dim + 1 :])
        return ops.Reshape(shape)(cast(x, accumulator(x.dtype)))

    def dims(self, reduced: tuple[int, ...]) -> tuple[int, ...]:
        """The reduced dimensions of a value that is split."""
        return tuple(d + (d >= self.dim) for d in reduced)

    def parts_dim(self, reduced: tuple[int, ...]) -> int:
        """The index of the dimension of parts among the dimensions that are not reduced."""
        return sum(d not in reduced for d in range(self.dim))


def join_parts(body: Graph, row_parts: RowParts) -> tuple[Graph, tuple[Node, ...]] | None:
    """The group with its reductions combined from reductions of parts, and the latter. None if one cannot be split."""
    partial: list[Node] = []
    memo: dict[Node, Node] = {}
    reductions = set(reductions_of(body))
    for n in reductions_of(body):
        op = reduction(n)
        if not reductions.intersection(topological([n.inputs[0]])):
            operand = row_parts.split(n.inputs[0])
            values = Reduce(op.kind, row_parts.dims(op.reduced))(operand)
            part_results = (values,)
            if isinstance(op, ArgReduce):
                part_results = (values, replace(op, dim=row_parts.dim + 1)(operand))
                result = _best_position(op, *part_results, row_parts.parts_dim(op.reduced), operand)
            else:
                result = Reduce(op.kind, (row_parts.parts_dim(op.reduced),))(values)
        else:
            dependent = _DependentSum.of(n, reductions)
            if dependent is None:
                return None
            (row,) = rebuild((dependent.row,), memo)
            part_results, result = dependent.join(row_parts, build.reshape(row, n.shape))
        partial += part_results
        memo[n] = cast(result, n.dtype)
    return replace(body, outputs=rebuild(body.outputs, memo)), tuple(dict.fromkeys(partial))


def _best_position(op: ArgReduce, values: Node, positions: Node, parts_dim: int, operand: Node) -> Node:
    """The position of the best value in a row, given the best `values` of the parts and their `positions` in them."""
    best = build.reduce(op.kind, values, parts_dim, keepdims=True)
    is_best = build.compare("EQ", values, best)
    if values.dtype.is_float:
        is_best = build.or_(is_best, build.and_(build.compare("NE", values, values), build.compare("NE", best, best)))
    row_positions = build.add(positions, build.mul(ops.Iota(positions.type, parts_dim)(), operand.shape[op.dim + 1]))
    no_position = -1 if op.last else (1 << 63) - 1
    return build.reduce("max" if op.last else "min", build.where(is_best, row_positions, no_position), parts_dim)


@dataclass(frozen=True)
class _DependentSum:
    """A sum of exp(x - row) or (x - row)^2, where `row` depends on other reductions of the same rows."""

    x: Node
    row: Node
    is_exponential: bool
    reduced: tuple[int, ...]

    @staticmethod
    def of(node: Node, reductions: set[Node]) -> _DependentSum | None:
        op, (operand,) = reduction(node), node.inputs
        is_exponential = isinstance(operand.op, ops.Exp)
        is_square = isinstance(operand.op, ops.Mul) and operand.inputs[0] is operand.inputs[1]
        deviation = operand.inputs[0] if is_exponential or is_square else operand
        if op.kind != "sum" or deviation is operand or not isinstance(deviation.op, ops.Sub):
            return None
        x, broadcast = deviation.inputs
        if reductions.intersection(topological([x])) or not isinstance(broadcast.op, ops.BroadcastInDim):
            return None
        (row,) = broadcast.inputs
        row_shape = tuple(n for d, n in enumerate(x.shape) if d not in op.reduced)
        row_extents = [row.shape[i] for i, d in enumerate(broadcast.op.dims) if d not in op.reduced]
        if tuple(row_extents) != row_shape or product(row.shape) != product(row_shape):
            return None
        # only if the row is a maximum, the joined exponentials cannot overflow
        dependencies = reductions.intersection(topological([row]))
        only_maximum = all(isinstance(m.op, Reduce) and m.op.kind == "max" and m.inputs[0] is x for m in dependencies)
        return _DependentSum(x, row, is_exponential, op.reduced) if only_maximum or not is_exponential else None

    def join(self, row_parts: RowParts, row: Node) -> tuple[tuple[Node, ...], Node]:
        """The reductions of the parts, and their combination given the value of `row`."""
        operand = row_parts.split(self.x)
        dims, parts_dim = row_parts.dims(self.reduced), row_parts.parts_dim(self.reduced)
        kept_dims = tuple(d for d in range(operand.type.rank) if d not in dims)

        def deviation(center: Node) -> Node:
            return build.sub(operand, ops.BroadcastInDim(operand.shape, kept_dims)(center))

        def broadcast_row(parts: Node) -> Node:
            others = tuple(d for d in range(parts.type.rank) if d != parts_dim)
            return ops.BroadcastInDim(parts.shape, others)(cast(row, parts.dtype))

        if self.is_exponential:
            maximum = Reduce("max", dims)(operand)
            # inf - inf would be NaN
            center = build.where(ops.IsFinite()(maximum), maximum, 0.0)
            total = Reduce("sum", dims)(ops.Exp()(deviation(center)))
            weighted = build.mul(total, ops.Exp()(build.sub(center, broadcast_row(center))))
            # empty sums have no weight; adding row - row makes the result NaN if the row's value is not finite
            weighted = build.where(build.compare("EQ", total, 0.0), 0.0, weighted)
            return (maximum, total), build.add(
                Reduce("sum", (parts_dim,))(weighted), cast(build.sub(row, row), total.dtype)
            )
        count = product(operand.shape[d] for d in dims)
        part_sum = Reduce("sum", dims)(operand)
        center = build.div(part_sum, count)
        d = deviation(center)
        residual, squares = Reduce("sum", dims)(d), Reduce("sum", dims)(build.mul(d, d))
        # in f64, in which no finite deviation overflows; `squares` distinguishes an overflowed mean from infinities
        mean = broadcast_row(cast(center, f64))
        shift = build.sub(cast(center, f64), mean)
        correction = build.mul(shift, build.add(build.mul(cast(residual, f64), 2.0), build.mul(shift, count)))
        correction = build.where(ops.IsFinite()(shift), correction, ops.Abs()(mean))
        return (part_sum, residual, squares), Reduce("sum", (parts_dim,))(build.add(cast(squares, f64), correction))


__all__ = ["RowParts", "join_parts"]
