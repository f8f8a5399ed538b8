"""Triangular systems, by substitution."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.ops.core.base import check_count, expect_equal
from ingot.ops.linalg import matrices as m
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class TriangularSolve(Op):
    """The solution x[..., n, k] of a x = b for a triangular a[..., n, n] and b[..., n, k] (StableHLO triangular_solve).

    Only the lower (upper) triangle of a is read. unit: the diagonal of a is not read but taken as ones. A zero on the
    diagonal gives infinities and NaN.
    """

    name: ClassVar[str] = "triangular_solve"
    upper: bool = False
    unit: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        a, b = inputs
        m.check_matrices(self, a, square=True)
        m.check_matrices(self, b)
        message = f"expected operands of one type, batch and number of rows, got {a} and {b}"
        self.expect(a.dtype == b.dtype, message)
        expect_equal(self, a.shape[:-1], b.shape[:-1], message)
        return b

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        a, b = (x.astype(np.float64) for x in inputs)
        n = a.shape[-1]
        x = np.zeros_like(b)
        with np.errstate(all="ignore"):
            for i in reversed(range(n)) if self.upper else range(n):
                solved = slice(i + 1, n) if self.upper else slice(0, i)
                row = b[..., i, :] - (a[..., i, None, solved] @ x[..., solved, :])[..., 0, :]
                x[..., i, :] = row if self.unit else row / a[..., i, i, None]
            return x.astype(inputs[1].dtype)

    @m.in_f32
    def lower(self, *inputs: Node) -> Node:
        """By panels of rows: the product of a's panel and the rows solved before is subtracted from b."""
        a, b = (m.as_batch(x) for x in inputs)
        n = b.shape[1]
        total = m.padded_columns(n)
        pivots = m.diagonal(a).expand(2).pad(1, 0, total - n, 1.0)
        strict = m.pad_to(m.strict_triangular_part(a, self.upper), total, total)
        rows = m.pad_to(b, total, b.shape[2])

        def panel(first: Term, _: Term, x: Term, strict: Term, pivots: Term, rows: Term) -> list[Term]:
            width = m.panel_width(n)
            panel_rows = m.dynamic_slice(strict, 1, first, width)
            rhs = m.dynamic_slice(rows, 1, first, width)
            if width != n:
                rhs = rhs - m.matmul(panel_rows, x)
            block = m.dynamic_slice(panel_rows, 2, first, width)
            solved = self._substitute(block, m.dynamic_slice(pivots, 1, first, width), rhs)
            return [m.dynamic_update(x, solved, 1, first), strict, pivots, rows]

        empty = t.full(rows.shape, 0.0, b.dtype)
        x = m.panel_loop(n, [empty, strict, pivots, rows], panel, reverse=self.upper)[0]
        return x.slice(1, 0, n).reshape(inputs[1].shape).node

    def _substitute(self, strict: Term, pivots: Term, b: Term) -> Term:
        """The solution for the strict triangle, the diagonal [b, n, 1] and the right-hand side b, row by row."""
        n = b.shape[1]

        def row(i: Term, x: Term, strict: Term, pivots: Term, b: Term) -> list[Term]:
            index = t.as_term(t.size(n)) - 1 - i if self.upper else i
            value = m.dynamic_slice(b, 1, index) - m.matmul(m.dynamic_slice(strict, 1, index), x)
            return [m.dynamic_update(x, value if self.unit else value / m.dynamic_slice(pivots, 1, index), 1, index)]

        return m.for_loop(n, [t.full(b.shape, 0.0, b.dtype)], row, [strict, pivots, b])[0]

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
