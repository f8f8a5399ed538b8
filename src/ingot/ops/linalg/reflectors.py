"""Householder reflections: QR factorization, and products with its Q.

A reflection is I - tau v v^T. Those of a panel are applied together as I - V T V^T ("A storage-efficient WY
representation for products of Householder transformations", Schreiber and Van Loan, 1989). The inverse of T has the
diagonal 1 / tau, and above it the elements of V^T V ("Accumulating Householder transformations, revisited", Joffrain et
al., 2006).
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ingot.ir.dims import dim_min
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.ops.core.base import check_count
from ingot.ops.core.elementwise import Sqrt
from ingot.ops.linalg import matrices as m
from ingot.ops.linalg.triangular import TriangularSolve
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class HouseholderQR(Op):
    """x[..., m, n] = q r in packed form (LAPACK geqrf).

    Results: a matrix [..., m, n] with r on and above the diagonal, and below it the vectors v of the min(m, n)
    reflections of q, whose first elements are an implicit 1; the factors tau[..., min(m, n)].
    """

    name: ClassVar[str] = "householder_qr"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        check_count(self, inputs, 1)
        (x,) = inputs
        m.check_matrices(self, x)
        return x, x.with_shape((*x.shape[:-2], dim_min(x.shape[-2], x.shape[-1])))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        *batch, rows, columns = inputs[0].shape
        x = inputs[0].astype(np.float64).reshape(math.prod(batch), rows, columns)
        tau = np.zeros((len(x), min(rows, columns)))
        with np.errstate(all="ignore"):
            for a, factors in zip(x, tau, strict=True):
                for j in range(len(factors)):
                    first, tail = a[j, j], a[j + 1 :, j]
                    if not tail.any():
                        continue
                    beta = -np.copysign(np.hypot.reduce(a[j:, j]), first)
                    factors[j] = (beta - first) / beta
                    v = np.concatenate([[1.0], tail / (first - beta)])
                    a[j:, j + 1 :] -= factors[j] * np.outer(v, v @ a[j:, j + 1 :])
                    a[j, j], a[j + 1 :, j] = beta, v[1:]
            dtype = inputs[0].dtype
            return x.astype(dtype).reshape(inputs[0].shape), tau.astype(dtype).reshape(*batch, tau.shape[1])

    @m.in_f32
    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        """By panels of columns, whose reflections are applied to the columns to their right."""
        x_batch = m.as_batch(inputs[0])
        batch, rows, columns = x_batch.shape
        count = dim_min(rows, columns)
        total, width = m.padded_columns(count), m.panel_width(count)
        scale = m.magnitude(x_batch)
        x = m.pad_to(x_batch / scale, rows, columns + (total - count))
        tau = t.full((batch, 1, total), 0.0, x.dtype)

        def panel(first: Term, n_columns: Term, x: Term, tau: Term) -> list[Term]:
            panel_values, factors = _reduce_panel(m.dynamic_slice(x, 2, first, width), first, n_columns)
            tau = m.dynamic_update(tau, factors, 2, first)
            if width == count and columns == count:
                return [panel_values, tau]
            vectors = _vectors(panel_values, first, n_columns)
            is_right = m.column_of(x) >= first + width
            x = m.where(is_right, _apply_block_reflector(x, vectors, factors, adjoint=True), x)
            return [m.dynamic_update(x, panel_values, 2, first), tau]

        out, tau = m.panel_loop(count, [x, tau], panel)
        out = out.slice(2, 0, columns)
        out = m.where(m.row_of(out) <= m.column_of(out), out * scale, out)
        shape = (*inputs[0].shape[:-2], count)
        return out.reshape(inputs[0].shape).node, tau.slice(2, 0, count).reshape(shape).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        yield cls(), (rng.normal(size=(2, 3, 5)).astype(np.float32),)
        special = rng.normal(size=(3, 4, 3))
        special[0, :, 1], special[1, 2, 0] = 0, np.nan
        special[2] *= 1e-200
        yield cls(), (special,)


@dataclass(frozen=True)
class Reflect(Op):
    """q c, or q^T c if `adjoint`, for c[..., m, n] (LAPACK ormqr). Operands: v, tau, c.

    q is the product of k <= m reflections: vectors below the diagonal of v[..., m, k], factors tau[..., k], as
    `HouseholderQR` gives them.
    """

    name: ClassVar[str] = "reflect"
    adjoint: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 3)
        v, tau, c = inputs
        m.check_matrices(self, v, c)
        is_matching = v.dtype == c.dtype and v.shape[:-1] == c.shape[:-1]
        self.expect(is_matching, f"expected vectors of c's type, batch and number of rows, got {v} and {c}")
        expected = v.with_shape((*v.shape[:-2], v.shape[-1]))
        self.expect(tau == expected, f"expected factors {expected}, got {tau}")
        return c

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        v, tau, c = (x.astype(np.float64) for x in inputs)
        count = v.shape[-1]
        for j in range(count) if self.adjoint else reversed(range(count)):
            u = np.where(np.arange(v.shape[-2]) > j, v[..., j], 0.0)
            u[..., j] = 1
            u = u[..., None]
            c = c - tau[..., j, None, None] * u * (u.swapaxes(-1, -2) @ c)
        return c.astype(inputs[2].dtype)

    @m.in_f32
    def lower(self, *inputs: Node) -> Node:
        v, c = m.as_batch(inputs[0]), m.as_batch(inputs[2])
        batch, rows, count = v.shape
        total, width = m.padded_columns(count), m.panel_width(count)
        v = m.pad_to(v, rows, total)
        tau = Term(inputs[1]).reshape((batch, 1, count)).pad(2, 0, total - count, 0.0)

        def panel(first: Term, n_columns: Term, c: Term, v: Term, tau: Term) -> list[Term]:
            vectors = _vectors(m.dynamic_slice(v, 2, first, width), first, n_columns)
            return [_apply_block_reflector(c, vectors, m.dynamic_slice(tau, 2, first, width), self.adjoint), v, tau]

        out = m.panel_loop(count, [c, v, tau], panel, reverse=not self.adjoint)[0]
        return out.reshape(inputs[2].shape).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        for dtype, (*batch, rows, k, n) in ((np.float32, (2, 5, 3, 4)), (np.float64, (4, 4, 1))):
            v = rng.normal(size=(*batch, rows, k))
            subdiagonal = np.where(np.arange(rows)[:, None] > np.arange(k), v, 0.0)
            tau = 2 / (1 + (subdiagonal**2).sum(-2))
            c = rng.normal(size=(*batch, rows, n))
            yield cls(rows != 4), (v.astype(dtype), tau.astype(dtype), c.astype(dtype))


def _reduce_panel(x: Term, first: Term, n_columns: Term) -> tuple[Term, Term]:
    """The panel x reduced from row `first` on, and the factors of its reflections [b, 1, w]."""

    def column(j: Term, x: Term, tau: Term, first: Term) -> list[Term]:
        pivot_row = first + j
        row, column_index = m.row_of(x), m.column_of(x)
        values = m.dynamic_slice(x, 2, j)
        head = m.dynamic_slice(values, 1, pivot_row)
        values_below = m.where(row > pivot_row, values, 0.0)
        rest_square = (values_below * values_below).sum((1,))
        length = (head * head + rest_square).map(Sqrt())
        beta = m.where(head < 0.0, length, -length)
        is_reduced = rest_square.equals(0.0)
        factor = m.where(is_reduced, 0.0, (beta - head) / beta)
        v = m.where(row.equals(pivot_row), 1.0, m.where(is_reduced, 0.0, values_below / (head - beta)))
        v = m.where(row >= pivot_row, v, 0.0)
        reduced = x - v * (m.matmul(m.transpose(v), x) * factor)
        stored = m.where(row > pivot_row, v, m.where(row.equals(pivot_row), m.where(is_reduced, head, beta), values))
        x = m.where(column_index > j, m.where(row >= pivot_row, reduced, x), m.where(column_index.equals(j), stored, x))
        return [x, m.dynamic_update(tau, factor, 2, j)]

    start = t.full((x.shape[0], 1, x.shape[2]), 0.0, x.dtype)
    out, tau = m.for_loop(n_columns, [x, start], column, [first])
    return out, tau


def _vectors(packed: Term, first: Term, n_columns: Term) -> Term:
    """The vectors of a panel's reflections, as columns."""
    row, column = m.row_of(packed), m.column_of(packed)
    values_below = m.where(row > column + first, packed, 0.0)
    return m.where(column < n_columns, m.where(row.equals(column + first), 1.0, values_below), 0.0)


def _apply_block_reflector(c: Term, v: Term, tau: Term, adjoint: bool) -> Term:
    """c - V T V^T c (T^T if `adjoint`), with T = (I + D S)^-1 D, D = diag(tau), S the strict upper triangle of V^T
    V."""
    s = m.strict_triangular_part(m.matmul(m.transpose(v), v), upper=True)
    weights = m.transpose(tau)
    x = m.matmul(m.transpose(v), c)
    if adjoint:
        lower = m.transpose(s) * tau
        x = weights * Term(TriangularSolve(unit=True)(lower.node, x.node))
    else:
        x = Term(TriangularSolve(upper=True, unit=True)((s * weights).node, (x * weights).node))
    return c - m.matmul(v, x)
