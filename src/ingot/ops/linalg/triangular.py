"""Triangular systems, by substitution."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.ops.core.base import check_count
from ingot.ops.linalg import matrices as m
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class TriangularSolve(Op):
    """x with a x = b, for a[..., n, n], of which one triangle is read, and b[..., n, k]. unit: its diagonal is ones.

    A zero on the diagonal gives infinities and NaN, as a division does.
    """

    name: ClassVar[str] = "triangular_solve"
    upper: bool = False
    unit: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        a, b = inputs
        m.check_matrices(self, a, square=True)
        m.check_matrices(self, b)
        same = a.dtype == b.dtype and a.shape[:-1] == b.shape[:-1]
        self.expect(same, f"expected operands of one type, batch and number of rows, got {a} and {b}")
        return b

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        a, b = (x.astype(np.float64) for x in inputs)
        n = a.shape[-1]
        x = np.zeros_like(b)
        with np.errstate(all="ignore"):
            for i in reversed(range(n)) if self.upper else range(n):
                done = slice(i + 1, n) if self.upper else slice(0, i)
                row = b[..., i, :] - (a[..., i, None, done] @ x[..., done, :])[..., 0, :]
                x[..., i, :] = row if self.unit else row / a[..., i, i, None]
            return x.astype(inputs[1].dtype)

    @m.in_f32
    def lower(self, *inputs: Node) -> Node:
        """By panels of rows, each less the product of a's panel and the rows above (below) it."""
        a, b = (m.as_batch(x) for x in inputs)
        n = b.shape[1]
        total = m.whole_panels(n)
        pivots = m.diagonal(a).expand(2).pad(1, 0, total - n, 1.0)
        strict = m.padded(m.strict_triangle(a, self.upper), total, total)
        rows = m.padded(b, total, b.shape[2])

        def panel(first: Term, _: Term, x: Term, strict: Term, pivots: Term, rows: Term) -> list[Term]:
            width = m.width_of(n)
            line = m.cut(strict, 1, first, width)
            given = m.cut(rows, 1, first, width)
            if width != n:
                given = given - m.times(line, x)
            own = m.cut(line, 2, first, width)
            solved = self.by_rows(own, m.cut(pivots, 1, first, width), given)
            return [m.put(x, solved, 1, first), strict, pivots, rows]

        empty = t.full(rows.shape, 0.0, b.dtype)
        x = m.by_panels(n, [empty, strict, pivots, rows], panel, backwards=self.upper)[0]
        return x.slice(1, 0, n).reshape(inputs[1].shape).node

    def by_rows(self, strict: Term, pivots: Term, b: Term) -> Term:
        """x for the strict triangle, the diagonal [b, n, 1] and the right side, one row after the other."""
        n = b.shape[1]

        def row(i: Term, x: Term, strict: Term, pivots: Term, b: Term) -> list[Term]:
            at = t.as_term(t.size(n)) - 1 - i if self.upper else i
            value = m.cut(b, 1, at) - m.times(m.cut(strict, 1, at), x)
            return [m.put(x, value if self.unit else value / m.cut(pivots, 1, at), 1, at)]

        return m.repeat(n, [t.full(b.shape, 0.0, b.dtype)], row, [strict, pivots, b])[0]

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        for upper in (False, True):
            for dtype, n, k in ((np.float32, 5, 3), (np.float64, 4, 1), (np.float16, 3, 2)):
                a = rng.normal(size=(2, n, n)) + 3 * np.eye(n)
                yield cls(upper, n == 4), (a.astype(dtype), rng.normal(size=(2, n, k)).astype(dtype))
        a, b = np.tril(np.ones((3, 3))), np.ones((3, 2))
        a[1, 1], b[2, 1] = 0, np.nan
        yield cls(), (a, b)
        # the other triangle is not read
        yield cls(), (np.where(np.tri(3, dtype=bool), a, np.nan), b)
