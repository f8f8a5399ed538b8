"""Reductions of parts of rows, and what joins the parts.

    sum(x[n])              ->   p = sum(part);                                   sum(p)
    sum(exp(x - max(x)))   ->   m = max(part), s = sum(exp(part - m));           sum(s exp(m - max(m)))
    sum((x - mean(x))^2)   ->   c = mean(part), r = sum(part - c), q = sum((part - c)^2);
                                d = c - mean(x);                                 sum(q + d (2 r + n d))

So a row is read once, in parts that a cache holds. Sources: the second, Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018); the third, Chan, Golub and LeVeque, "Algorithms for computing the sample variance"
(1983), with the sum that rounding leaves of the deviations, so that it holds for any c.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.dims import product
from ingot.ir.node import Graph, Node, rebuilt, topological
from ingot.ir.types import f64
from ingot.ops import ArgReduce, Reduce, build
from ingot.ops.build import cast
from ingot.schedule.folds import accumulator
from ingot.schedule.row_box import reduction, reductions_of
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Cut:
    """Rows in `parts` along the dimension `at`."""

    at: int
    parts: int

    def of(self, x: Node) -> Node:
        """x with its parts along a dimension of their own, in what it is folded in."""
        extent = x.shape[self.at]
        assert isinstance(extent, int)
        shape = (*x.shape[: self.at], self.parts, extent // self.parts, *x.shape[self.at + 1 :])
        return ops.Reshape(shape)(cast(x, accumulator(x.dtype)))

    def dims(self, reduced: tuple[int, ...]) -> tuple[int, ...]:
        """The reduced dimensions of what is cut."""
        return tuple(d + (d >= self.at) for d in reduced)

    def where(self, reduced: tuple[int, ...]) -> int:
        """The dimension of the parts among those that are kept."""
        return sum(d not in reduced for d in range(self.at))


def join_parts(body: Graph, cut: Cut) -> tuple[Graph, tuple[Node, ...]] | None:
    """The group with its reductions joined from those of parts, and these. None where one cannot be."""
    partial: list[Node] = []
    memo: dict[Node, Node] = {}
    found = set(reductions_of(body))
    for n in reductions_of(body):
        op = reduction(n)
        if not found.intersection(topological([n.inputs[0]])):
            wide = cut.of(n.inputs[0])
            values = Reduce(op.kind, cut.dims(op.reduced))(wide)
            own = (values,)
            if isinstance(op, ArgReduce):
                own = (values, replace(op, dim=cut.at + 1)(wide))
                result = _place(op, *own, cut.where(op.reduced), wide)
            else:
                result = Reduce(op.kind, (cut.where(op.reduced),))(values)
        else:
            late = _Late.of(n, found)
            if late is None:
                return None
            (row,) = rebuilt((late.row,), memo)
            own, result = late.joined(cut, build.reshape(row, n.shape))
        partial += own
        memo[n] = cast(result, n.dtype)
    return replace(body, outputs=rebuilt(body.outputs, memo)), tuple(dict.fromkeys(partial))


def _place(op: ArgReduce, values: Node, places: Node, at: int, cut: Node) -> Node:
    """Where the best value is: parts along dimension `at` have their best `values` at `places`."""
    best = build.reduce(op.kind, values, at, keepdims=True)
    same = build.compare("EQ", values, best)
    if values.dtype.is_float:
        same = build.or_(same, build.and_(build.compare("NE", values, values), build.compare("NE", best, best)))
    behind = build.add(places, build.mul(ops.Iota(places.type, at)(), cut.shape[op.dim + 1]))
    nowhere = -1 if op.last else (1 << 63) - 1
    return build.reduce("max" if op.last else "min", build.where(same, behind, nowhere), at)


@dataclass(frozen=True)
class _Late:
    """A sum over exp(x - row) or (x - row)^2, where `row` waits for other reductions of the same rows."""

    x: Node
    row: Node
    exponential: bool
    reduced: tuple[int, ...]

    @staticmethod
    def of(node: Node, found: set[Node]) -> _Late | None:
        op, (operand,) = reduction(node), node.inputs
        exponential = isinstance(operand.op, ops.Exp)
        square = isinstance(operand.op, ops.Mul) and operand.inputs[0] is operand.inputs[1]
        deviation = operand.inputs[0] if exponential or square else operand
        if op.kind != "sum" or deviation is operand or not isinstance(deviation.op, ops.Sub):
            return None
        x, spread = deviation.inputs
        if found.intersection(topological([x])) or not isinstance(spread.op, ops.BroadcastInDim):
            return None
        (row,) = spread.inputs
        kept = tuple(n for d, n in enumerate(x.shape) if d not in op.reduced)
        at_rows = [row.shape[i] for i, d in enumerate(spread.op.dims) if d not in op.reduced]
        if tuple(at_rows) != kept or product(row.shape) != product(kept):
            return None
        # a maximum alone keeps what is joined from overflowing
        below = found.intersection(topological([row]))
        tops = all(isinstance(m.op, Reduce) and m.op.kind == "max" and m.inputs[0] is x for m in below)
        return _Late(x, row, exponential, op.reduced) if tops or not exponential else None

    def joined(self, cut: Cut, row: Node) -> tuple[tuple[Node, ...], Node]:
        """What is reduced of the parts, and the reduction that joins it, given the value of `row`."""
        wide = cut.of(self.x)
        dims, where = cut.dims(self.reduced), cut.where(self.reduced)
        kept = tuple(d for d in range(wide.type.rank) if d not in dims)

        def deviation(center: Node) -> Node:
            return build.sub(wide, ops.BroadcastInDim(wide.shape, kept)(center))

        def at_parts(parts: Node) -> Node:
            others = tuple(d for d in range(parts.type.rank) if d != where)
            return ops.BroadcastInDim(parts.shape, others)(cast(row, parts.dtype))

        if self.exponential:
            top = Reduce("max", dims)(wide)
            # of an infinite one nothing could be subtracted
            center = build.where(ops.IsFinite()(top), top, 0.0)
            total = Reduce("sum", dims)(ops.Exp()(deviation(center)))
            weighted = build.mul(total, ops.Exp()(build.sub(center, at_parts(center))))
            # no weight of nothing; and NaN where the row's value is none to subtract
            weighted = build.where(build.compare("EQ", total, 0.0), 0.0, weighted)
            return (top, total), build.add(Reduce("sum", (where,))(weighted), cast(build.sub(row, row), total.dtype))
        count = product(wide.shape[d] for d in dims)
        whole = Reduce("sum", dims)(wide)
        center = build.div(whole, count)
        d = deviation(center)
        rest, squares = Reduce("sum", dims)(d), Reduce("sum", dims)(build.mul(d, d))
        # in f64, where no finite deviation overflows; `squares` tell a mean that did from elements that are infinite
        middle = at_parts(cast(center, f64))
        off = build.sub(cast(center, f64), middle)
        more = build.mul(off, build.add(build.mul(cast(rest, f64), 2.0), build.mul(off, count)))
        more = build.where(ops.IsFinite()(off), more, ops.Abs()(middle))
        return (whole, rest, squares), Reduce("sum", (where,))(build.add(cast(squares, f64), more))


__all__ = ["Cut", "join_parts"]
