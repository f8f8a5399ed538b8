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
    """x[order] = l u for x[..., m, n], with l lower triangular and a unit diagonal (LAPACK getrf).

    Results: l (below the diagonal) and u in one matrix [..., m, n]; pivots i64[..., min(m, n)]: rows i and pivots[i] >=
    i are exchanged, for i = 0, 1, ...; order i64[..., m], the resulting permutation. A column whose pivot is 0 is not
    eliminated.
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
        """By panels of columns: apply the panel's row exchanges to the other columns, solve for the rows of u, and
        subtract the product of l and u from the trailing matrix."""
        x = m.as_batch(inputs[0])
        batch, rows, columns = x.shape
        count = dim_min(rows, columns)
        total, width = m.padded_columns(count), m.panel_width(count)
        x = m.pad_to(x, dim_max(rows, total), dim_max(columns, total))
        pivots = t.full((batch, total), 0, i64)
        order = t.iota((batch, x.shape[1]), 1)

        def panel(first: Term, n_columns: Term, x: Term, pivots: Term, order: Term) -> list[Term]:
            panel_order = t.iota(order.shape, 1)
            panel_values, pivots, panel_order = _factor_panel(
                m.dynamic_slice(x, 2, first, width), pivots, panel_order, first, n_columns
            )
            order = m.take_rows(order.expand(2), panel_order).reshape(order.shape)
            if width == count and columns == count:
                return [panel_values, pivots, order]
            row, column = m.row_of(x), m.column_of(x)
            x = m.take_rows(x, panel_order)
            solve = TriangularSolve(unit=True)
            upper = Term(
                solve(m.dynamic_slice(panel_values, 1, first, width).node, m.dynamic_slice(x, 1, first, width).node)
            )
            panel_below = m.where(m.row_of(panel_values) >= first + width, panel_values, 0.0)
            solved = m.dynamic_update(x, upper, 1, first)
            updated = m.where(row >= first + width, x - m.matmul(panel_below, upper), solved)
            x = m.where(column >= first + width, updated, x)
            return [m.dynamic_update(x, panel_values, 2, first), pivots, order]

        out, pivots, order = m.panel_loop(count, [x, pivots, order], panel)
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


def _factor_panel(x: Term, pivots: Term, order: Term, first: Term, n_columns: Term) -> tuple[Term, Term, Term]:
    """The factorization of the rows from `first` on of a panel, whose first column has that number."""

    def column(j: Term, x: Term, pivots: Term, order: Term, first: Term) -> list[Term]:
        diagonal_row = first + j
        row, column_index = m.row_of(x), m.column_of(x)
        size = t.absolute(m.dynamic_slice(x, 2, j))
        assert isinstance(size, Term)
        pivot_row = m.where(row >= diagonal_row, size, -1.0).map(ArgReduce("max", 1))
        pivot_values, top_values = m.take_rows(x, pivot_row), m.dynamic_slice(x, 1, diagonal_row)
        pivot_index = pivot_row.expand(2)
        x = m.where(row.equals(diagonal_row), pivot_values, m.where(row.equals(pivot_index), top_values, x))
        positions = t.iota((1, order.shape[1]), 1)
        pivot_origin = m.take_rows(order.expand(2), pivot_row).reshape(pivot_row.shape)
        order = m.where(
            positions.equals(diagonal_row),
            pivot_origin,
            m.where(positions.equals(pivot_row), _column_of(order, diagonal_row), order),
        )
        pivot_value = m.dynamic_slice(pivot_values, 2, j)
        column = m.dynamic_slice(x, 2, j)
        column = m.where(pivot_value.equals(0.0), column, column / pivot_value)
        reduced = m.where(column_index > j, x - column * pivot_values, m.where(column_index.equals(j), column, x))
        index = t.iota((1, pivots.shape[1]), 1)
        return [m.where(row > diagonal_row, reduced, x), m.where(index.equals(diagonal_row), pivot_row, pivots), order]

    out, pivots, order = m.for_loop(n_columns, [x, pivots, order], column, [first])
    return out, pivots, order


def _column_of(x: Term, column: Term) -> Term:
    """x[:, column], as [b, 1]."""
    return m.dynamic_slice(x.expand(1), 2, column).reshape((x.shape[0], 1))
