"""Cholesky's factorization."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.ops.core.base import check_count
from ingot.ops.core.elementwise import Sqrt
from ingot.ops.linalg import matrices as m
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Cholesky(Op):
    """The lower triangular l with l l^T = x, zeros above its diagonal; of x[..., n, n] the lower triangle is read.

    From the first column on whose pivot is not positive the lower triangle is NaN.
    """

    name: ClassVar[str] = "cholesky"

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        m.check_matrices(self, *inputs, square=True)
        return inputs[0]

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x = np.tril(inputs[0].astype(np.float64))
        with np.errstate(all="ignore"):
            for j in range(x.shape[-1]):
                pivot = x[..., j, j]
                column = x[..., j:, j] / np.sqrt(np.where(pivot > 0, pivot, np.nan))[..., None]
                x[..., j:, j] = column
                x[..., j + 1 :, j + 1 :] -= column[..., 1:, None] * column[..., None, 1:]
            return np.tril(x).astype(inputs[0].dtype)

    @m.in_f32
    def lower(self, *inputs: Node) -> Node:
        """By panels of columns; what is right of a panel becomes less by its product with itself."""
        x = m.as_batch(inputs[0])
        n = x.shape[1]
        total = m.whole_panels(n)

        def panel(first: Term, many: Term, x: Term) -> list[Term]:
            width = m.width_of(n)
            columns = _columns(m.cut(x, 2, first, width), first, many)
            if width != n:
                right = m.column_of(x) >= first + width
                x = m.where(right, x - m.times(columns, m.transposed(columns)), x)
            return [m.put(x, columns, 2, first)]

        (out,) = m.by_panels(n, [m.padded(x, total, total)], panel)
        return m.triangle(out.slice(1, 0, n).slice(2, 0, n)).reshape(inputs[0].shape).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        for dtype, shape in ((np.float32, (2, 5, 5)), (np.float32, (3, 0, 0))):
            yield cls(), (_positive(rng, shape, dtype),)
        bad = _positive(rng, (3, 4, 4), np.float64)
        bad[0, 2, 2], bad[1, 1, 1], bad[2, 3, 0] = -1, 0, np.nan
        yield cls(), (bad,)


def _columns(x: Term, first: Term, many: Term) -> Term:
    """The factor's columns from `first` on, zeros above the diagonal, of a panel."""

    def column(j: Term, x: Term, first: Term) -> list[Term]:
        pivot = m.cut(m.cut(x, 2, j), 1, first + j)
        root = m.where(pivot > 0.0, pivot, float("nan")).map(Sqrt())
        row, at = m.row_of(x), m.column_of(x)
        below = m.where(row >= first + j, m.cut(x, 2, j) / root, 0.0)
        # the panel's own part of the column, as a row
        across = m.transposed(m.cut(below, 1, first, x.shape[2]))
        return [m.where(at.equals(j), below, m.where(at > j, x - below * across, x))]

    (out,) = m.repeat(many, [x], column, [first])
    return out


def _positive(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    x = rng.normal(size=shape)
    return (x @ x.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)
