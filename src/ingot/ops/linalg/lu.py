"""LU factorization with partial pivoting."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ingot.ir.dims import dim_max, dim_min
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, i64
from ingot.ops.core.base import check_count
from ingot.ops.core.reduce import ArgReduce
from ingot.ops.linalg import matrices as m
from ingot.ops.linalg.triangular import TriangularSolve
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class LU(Op):
    """x[..., m, n] with its rows in another order is l u, l lower triangular with ones on its diagonal.

    Results: u and, below the diagonal, l, as x; pivots i64[..., min(m, n)]: row i changed places with row
    pivots[i] >= i, one after the other; the order i64[..., m] that this gives: x[order] = l u. A column whose pivot is
    0 stays as it is.
    """

    name: ClassVar[str] = "lu"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        check_count(self, inputs, 1)
        (x,) = inputs
        m.check_matrices(self, x)
        *batch, rows, columns = x.shape
        return x, TensorType(i64, (*batch, dim_min(rows, columns))), TensorType(i64, (*batch, rows))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        *batch, rows, columns = inputs[0].shape
        count = min(rows, columns)
        x = inputs[0].astype(np.float64).reshape(math.prod(batch), rows, columns)
        pivots = np.zeros((len(x), count), np.int64)
        order = np.tile(np.arange(rows), (len(x), 1))
        with np.errstate(all="ignore"):
            for b in range(len(x)):
                for j in range(count):
                    p = pivots[b, j] = j + np.argmax(np.abs(x[b, j:, j]))
                    x[b, [j, p]], order[b, [j, p]] = x[b, [p, j]], order[b, [p, j]]
                    if x[b, j, j] != 0:
                        x[b, j + 1 :, j] /= x[b, j, j]
                    x[b, j + 1 :, j + 1 :] -= np.outer(x[b, j + 1 :, j], x[b, j, j + 1 :])
            out = x.astype(inputs[0].dtype)
        return out.reshape(inputs[0].shape), pivots.reshape(*batch, count), order.reshape(*batch, rows)

    @m.in_f32
    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        """By panels of columns: the rows beside a panel go where its rows went, those of u are solved for, and what is
        right of and below it becomes less by the product of the two."""
        x = m.as_batch(inputs[0])
        batch, rows, columns = x.shape
        count = dim_min(rows, columns)
        total, width = m.whole_panels(count), m.width_of(count)
        x = m.padded(x, dim_max(rows, total), dim_max(columns, total))
        pivots = t.full((batch, total), 0, i64)
        order = t.iota((batch, x.shape[1]), 1)

        def panel(first: Term, many: Term, x: Term, pivots: Term, order: Term) -> list[Term]:
            moved = t.iota(order.shape, 1)
            own, pivots, moved = _panel(m.cut(x, 2, first, width), pivots, moved, first, many)
            order = m.rows_at(order.expand(2), moved).reshape(order.shape)
            if width == count and columns == count:
                return [own, pivots, order]
            row, column = m.row_of(x), m.column_of(x)
            x = m.rows_at(x, moved)
            solve = TriangularSolve(unit=True)
            upper = Term(solve(m.cut(own, 1, first, width).node, m.cut(x, 1, first, width).node))
            below = m.where(m.row_of(own) >= first + width, own, 0.0)
            solved = m.put(x, upper, 1, first)
            later = m.where(row >= first + width, x - m.times(below, upper), solved)
            x = m.where(column >= first + width, later, x)
            return [m.put(x, own, 2, first), pivots, order]

        out, pivots, order = m.by_panels(count, [x, pivots, order], panel)
        out = out.slice(1, 0, rows).slice(2, 0, columns)
        lead = inputs[0].shape[:-2]
        return (
            out.reshape(inputs[0].shape).node,
            pivots.slice(1, 0, count).reshape((*lead, count)).node,
            order.slice(1, 0, rows).reshape((*lead, rows)).node,
        )

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        for dtype, shape in ((np.float32, (2, 4, 5)), (np.float64, (5, 3)), (np.float32, (3, 0, 2))):
            yield cls(), (rng.normal(size=shape).astype(dtype),)
        singular = rng.normal(size=(3, 4, 4))
        singular[0, :, 1] = 0
        singular[1] = 0
        singular[2, 2, 2] = np.nan
        yield cls(), (singular,)


def _panel(x: Term, pivots: Term, order: Term, first: Term, many: Term) -> tuple[Term, Term, Term]:
    """The factorization of the rows from `first` on of a panel, whose first column has that number."""

    def column(j: Term, x: Term, pivots: Term, order: Term, first: Term) -> list[Term]:
        top = first + j
        row, at = m.row_of(x), m.column_of(x)
        size = t.absolute(m.cut(x, 2, j))
        assert isinstance(size, Term)
        chosen = m.where(row >= top, size, -1.0).map(ArgReduce("max", 1))
        pivot, swapped = m.rows_at(x, chosen), m.cut(x, 1, top)
        to = chosen.expand(2)
        x = m.where(row.equals(top), pivot, m.where(row.equals(to), swapped, x))
        places = t.iota((1, order.shape[1]), 1)
        number = m.rows_at(order.expand(2), chosen).reshape(chosen.shape)
        order = m.where(places.equals(top), number, m.where(places.equals(chosen), _at(order, top), order))
        value = m.cut(pivot, 2, j)
        column = m.cut(x, 2, j)
        column = m.where(value.equals(0.0), column, column / value)
        reduced = m.where(at > j, x - column * pivot, m.where(at.equals(j), column, x))
        index = t.iota((1, pivots.shape[1]), 1)
        return [m.where(row > top, reduced, x), m.where(index.equals(top), chosen, pivots), order]

    out, pivots, order = m.repeat(many, [x, pivots, order], column, [first])
    return out, pivots, order


def _at(x: Term, column: Term) -> Term:
    """x[:, column] as [b, 1]."""
    return m.cut(x.expand(1), 2, column).reshape((x.shape[0], 1))
