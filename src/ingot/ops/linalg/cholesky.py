"""Cholesky factorization."""

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
    """The lower triangular l[..., n, n] with l l^T = x[..., n, n]; only the lower triangle of x is read.

    Above the diagonal l is zero. From the first column with a non-positive pivot on, its lower triangle is NaN.
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
        """By panels of columns: the product of a panel and its transpose is subtracted from the columns to its
        right."""
        x = m.as_batch(inputs[0])
        n = x.shape[1]
        total = m.padded_columns(n)

        def panel(first: Term, n_columns: Term, x: Term) -> list[Term]:
            width = m.panel_width(n)
            columns = _factor_panel(m.dynamic_slice(x, 2, first, width), first, n_columns)
            if width != n:
                is_right = m.column_of(x) >= first + width
                x = m.where(is_right, x - m.matmul(columns, m.transpose(columns)), x)
            return [m.dynamic_update(x, columns, 2, first)]

        (out,) = m.panel_loop(n, [m.pad_to(x, total, total)], panel)
        return m.triangular_part(out.slice(1, 0, n).slice(2, 0, n)).reshape(inputs[0].shape).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        for dtype, shape in ((np.float32, (2, 5, 5)), (np.float32, (3, 0, 0))):
            yield cls(), (_positive_definite(rng, shape, dtype),)
        indefinite = _positive_definite(rng, (3, 4, 4), np.float64)
        indefinite[0, 2, 2], indefinite[1, 1, 1], indefinite[2, 3, 0] = -1, 0, np.nan
        yield cls(), (indefinite,)


def _factor_panel(x: Term, first: Term, n_columns: Term) -> Term:
    """The columns of the factor for the panel x, which starts at column `first`; zeros above the diagonal."""

    def column(j: Term, x: Term, first: Term) -> list[Term]:
        pivot = m.dynamic_slice(m.dynamic_slice(x, 2, j), 1, first + j)
        root = m.where(pivot > 0.0, pivot, float("nan")).map(Sqrt())
        row, column_index = m.row_of(x), m.column_of(x)
        factor_column = m.where(row >= first + j, m.dynamic_slice(x, 2, j) / root, 0.0)
        # the rows of the column that belong to the panel, as a row
        panel_row = m.transpose(m.dynamic_slice(factor_column, 1, first, x.shape[2]))
        return [
            m.where(column_index.equals(j), factor_column, m.where(column_index > j, x - factor_column * panel_row, x))
        ]

    (out,) = m.for_loop(n_columns, [x], column, [first])
    return out


def _positive_definite(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    x = rng.normal(size=shape)
    return (x @ x.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)
