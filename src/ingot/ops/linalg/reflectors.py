"""Householder's reflections: QR factorization, and products with its Q.

A reflection is I - tau v v^T. Those of a panel are applied at once as I - V T V^T ("A storage-efficient WY
representation for products of Householder transformations", Schreiber and Van Loan, 1989), where T's inverse is known:
its diagonal is 1 / tau, and what is above it V^T V ("Accumulating Householder transformations, revisited", Joffrain et
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
    """x[..., m, n] = q r as LAPACK's geqrf has it: r on and above the diagonal, and below it the vectors v of q's
    min(m, n) reflections, whose first elements are 1; their factors tau[..., min(m, n)]."""

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
                    first, rest = a[j, j], a[j + 1 :, j]
                    if not rest.any():
                        continue
                    beta = -np.copysign(np.hypot.reduce(a[j:, j]), first)
                    factors[j] = (beta - first) / beta
                    v = np.concatenate([[1.0], rest / (first - beta)])
                    a[j:, j + 1 :] -= factors[j] * np.outer(v, v @ a[j:, j + 1 :])
                    a[j, j], a[j + 1 :, j] = beta, v[1:]
            dtype = inputs[0].dtype
            return x.astype(dtype).reshape(inputs[0].shape), tau.astype(dtype).reshape(*batch, tau.shape[1])

    @m.in_f32
    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        """By panels of columns, whose reflections are applied to what is right of them."""
        given = m.as_batch(inputs[0])
        batch, rows, columns = given.shape
        count = dim_min(rows, columns)
        total, width = m.whole_panels(count), m.width_of(count)
        scale = m.magnitude(given)
        x = m.padded(given / scale, rows, columns + (total - count))
        tau = t.full((batch, 1, total), 0.0, x.dtype)

        def panel(first: Term, many: Term, x: Term, tau: Term) -> list[Term]:
            own, factors = _panel(m.cut(x, 2, first, width), first, many)
            tau = m.put(tau, factors, 2, first)
            if width == count and columns == count:
                return [own, tau]
            vectors = _vectors(own, first, many)
            right = m.column_of(x) >= first + width
            x = m.where(right, _reflected(x, vectors, factors, adjoint=True), x)
            return [m.put(x, own, 2, first), tau]

        out, tau = m.by_panels(count, [x, tau], panel)
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
    """q c (q^T c where `adjoint`) for c[..., m, n], q being the product of the reflections whose vectors are below the
    diagonal of v[..., m, k] and whose factors are tau[..., k], k at most m."""

    name: ClassVar[str] = "reflect"
    adjoint: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 3)
        v, tau, c = inputs
        m.check_matrices(self, v, c)
        same = v.dtype == c.dtype and v.shape[:-1] == c.shape[:-1]
        self.expect(same, f"expected vectors of c's type, batch and number of rows, got {v} and {c}")
        wanted = v.with_shape((*v.shape[:-2], v.shape[-1]))
        self.expect(tau == wanted, f"expected factors {wanted}, got {tau}")
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
        total, width = m.whole_panels(count), m.width_of(count)
        v = m.padded(v, rows, total)
        tau = Term(inputs[1]).reshape((batch, 1, count)).pad(2, 0, total - count, 0.0)

        def panel(first: Term, many: Term, c: Term, v: Term, tau: Term) -> list[Term]:
            vectors = _vectors(m.cut(v, 2, first, width), first, many)
            return [_reflected(c, vectors, m.cut(tau, 2, first, width), self.adjoint), v, tau]

        out = m.by_panels(count, [c, v, tau], panel, backwards=not self.adjoint)[0]
        return out.reshape(inputs[2].shape).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        for dtype, (*batch, rows, k, n) in ((np.float32, (2, 5, 3, 4)), (np.float64, (4, 4, 1))):
            v = rng.normal(size=(*batch, rows, k))
            below = np.where(np.arange(rows)[:, None] > np.arange(k), v, 0.0)
            tau = 2 / (1 + (below**2).sum(-2))
            c = rng.normal(size=(*batch, rows, n))
            yield cls(rows != 4), (v.astype(dtype), tau.astype(dtype), c.astype(dtype))


def _panel(x: Term, first: Term, many: Term) -> tuple[Term, Term]:
    """A panel of columns reduced from row `first` on, and the reflections' factors [b, 1, w]."""

    def column(j: Term, x: Term, tau: Term, first: Term) -> list[Term]:
        top = first + j
        row, at = m.row_of(x), m.column_of(x)
        own = m.cut(x, 2, j)
        head = m.cut(own, 1, top)
        below = m.where(row > top, own, 0.0)
        rest = (below * below).sum((1,))
        length = (head * head + rest).map(Sqrt())
        beta = m.where(head < 0.0, length, -length)
        none = rest.equals(0.0)
        factor = m.where(none, 0.0, (beta - head) / beta)
        v = m.where(row.equals(top), 1.0, m.where(none, 0.0, below / (head - beta)))
        v = m.where(row >= top, v, 0.0)
        reduced = x - v * (m.times(m.transposed(v), x) * factor)
        stored = m.where(row > top, v, m.where(row.equals(top), m.where(none, head, beta), own))
        x = m.where(at > j, m.where(row >= top, reduced, x), m.where(at.equals(j), stored, x))
        return [x, m.put(tau, factor, 2, j)]

    start = t.full((x.shape[0], 1, x.shape[2]), 0.0, x.dtype)
    out, tau = m.repeat(many, [x, start], column, [first])
    return out, tau


def _vectors(packed: Term, first: Term, many: Term) -> Term:
    """The vectors of a panel's reflections as columns."""
    row, at = m.row_of(packed), m.column_of(packed)
    below = m.where(row > at + first, packed, 0.0)
    return m.where(at < many, m.where(row.equals(at + first), 1.0, below), 0.0)


def _reflected(c: Term, v: Term, tau: Term, adjoint: bool) -> Term:
    """c - V T V^T c (T^T where `adjoint`), with T = (I + D S)^-1 D, D = diag(tau), S = V^T V above its diagonal."""
    s = m.strict_triangle(m.times(m.transposed(v), v), upper=True)
    weights = m.transposed(tau)
    x = m.times(m.transposed(v), c)
    if adjoint:
        lower = m.transposed(s) * tau
        x = weights * Term(TriangularSolve(unit=True)(lower.node, x.node))
    else:
        x = Term(TriangularSolve(upper=True, unit=True)((s * weights).node, (x * weights).node))
    return c - m.times(v, x)
