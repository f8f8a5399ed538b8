"""LDL factorization of symmetric indefinite matrices, and the solution of systems with it."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, i32, i64
from ingot.ops.core.base import check_count
from ingot.ops.core.elementwise import IsNan
from ingot.ops.core.reduce import ArgReduce, CumReduce
from ingot.ops.linalg import matrices as m
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

_ALPHA = (1 + math.sqrt(17)) / 8  # minimizes the growth of elements (Bunch and Kaufman 1977)


@dataclass(frozen=True)
class LDL(Op):
    """x = l d l^T for a symmetric x[..., n, n], d of 1x1 and 2x2 diagonal blocks (LAPACK sytrf); reads the lower
    triangle.

    Results: d and, below its blocks, l in one matrix, zeros above the diagonal; pivots i64[..., n] as in LAPACK,
    counted from 1: row i was exchanged with row pivots[i], or, for a 2x2 block, row i + 1 with row -pivots[i] =
    -pivots[i + 1], without the columns of l to the left; info i32[...]: the first zero block, counted from 1, or 0.
    """

    name: ClassVar[str] = "ldl"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        check_count(self, inputs, 1)
        (x,) = inputs
        m.check_matrices(self, x, square=True)
        return x, TensorType(i64, x.shape[:-1]), TensorType(i32, x.shape[:-2])

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        *batch, n, _ = inputs[0].shape
        x = np.tril(inputs[0].astype(np.float64)).reshape(math.prod(batch), n, n)
        pivots, info = np.zeros((len(x), n), np.int64), np.zeros(len(x), np.int32)
        with np.errstate(all="ignore"):
            for b, a in enumerate(x):
                a += np.tril(a, -1).T
                k = 0
                while k < n:
                    size, pivot_row = _choose_pivot(a, k)
                    if size == 0:
                        info[b] = info[b] or k + 1
                    is_zero, size, last = size == 0, max(size, 1), k + max(size, 1) - 1
                    a[[last, pivot_row], k:] = a[[pivot_row, last], k:]
                    a[k:, [last, pivot_row]] = a[k:, [pivot_row, last]]
                    pivots[b, k : last + 1] = pivot_row + 1 if size == 1 else -pivot_row - 1
                    if not is_zero:
                        columns_below = a[last + 1 :, k : last + 1]
                        factor = columns_below @ np.linalg.inv(a[k : last + 1, k : last + 1])
                        a[last + 1 :, last + 1 :] -= factor @ columns_below.T
                        a[last + 1 :, k : last + 1] = factor
                    k = last + 1
        return (
            np.tril(x).astype(inputs[0].dtype).reshape(inputs[0].shape),
            pivots.reshape(*batch, n),
            info.reshape(batch),
        )

    @m.in_f32
    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        """Column by column; the second column of a 2x2 block is finished with the first."""
        x = m.symmetric(m.as_batch(inputs[0]))
        batch, n, _ = x.shape
        state = [x, t.full((batch, n), 0, i64), t.full((batch, 1, 1), 0, i64), t.full((batch, 1, 1), 0, i64)]
        x, pivots, info, _ = m.for_loop(n, state, _factor_column)
        lead = inputs[0].shape[:-2]
        return (
            m.triangular_part(x).reshape(inputs[0].shape).node,
            pivots.reshape((*lead, n)).node,
            info.reshape(lead).cast(i32).node,
        )

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        for dtype, shape in ((np.float32, (2, 5, 5)), (np.float64, (4, 4)), (np.float32, (3, 0, 0))):
            yield cls(), (rng.normal(size=shape).astype(dtype),)
        special = rng.normal(size=(4, 4, 4))
        special[0] = 1 - np.eye(4)  # blocks of 2x2
        special[1, :, 0] = special[1, 0] = 0
        special[2] = 0
        special[3, 1, 0] = np.nan
        yield cls(), (special,)


def _choose_pivot(a: np.ndarray, k: int) -> tuple[int, int]:
    """(size of the block at k, the row to exchange with its last row); size 0 for a zero column."""
    pivot, column = abs(a[k, k]), np.abs(a[k + 1 :, k])
    largest = column.max(initial=0)
    if np.isnan(pivot) or np.maximum(pivot, largest) == 0:
        return 0, k
    if pivot >= _ALPHA * largest:
        return 1, k
    pivot_row = k + 1 + int(np.argmax(column))
    row = np.delete(np.abs(a[pivot_row, k:]), pivot_row - k).max()
    if pivot >= _ALPHA * largest * (largest / row):
        return 1, k
    return (1 if abs(a[pivot_row, pivot_row]) >= _ALPHA * row else 2), pivot_row


def _factor_column(j: Term, x: Term, pivots: Term, info: Term, is_second: Term) -> list[Term]:
    """Factor column j of each matrix. The trailing matrix is stored in full, not as a triangle.

    is_second: 1 if the column is the second of a 2x2 block, which is finished.
    """
    row, column = m.row_of(x), m.column_of(x)
    magnitudes = _absolute(m.dynamic_slice(x, 2, j))
    pivot = m.dynamic_slice(magnitudes, 1, j)
    largest_row = m.where(row > j, magnitudes, -1.0).map(ArgReduce("max", 1))
    row_magnitudes = _absolute(m.take_rows(x, largest_row))
    largest_row = largest_row.expand(2)
    largest = m.where(row > j, magnitudes, 0.0).max((1,))
    is_off_diagonal = (column >= j) & ((column < largest_row) | (column > largest_row))
    largest_in_row = m.where(is_off_diagonal, row_magnitudes, 0.0).max((2,))
    other_diagonal = m.where(column.equals(largest_row), row_magnitudes, 0.0).sum((2,))
    is_done = is_second > 0
    is_zero = t.term(t.maximum(pivot, largest)).equals(0.0) | _is_nan(pivot)
    bound = largest * _ALPHA
    is_unpermuted = is_done | is_zero | (pivot >= bound) | (pivot >= bound * (largest / largest_in_row))
    is_single = is_unpermuted | (other_diagonal >= largest_in_row * _ALPHA)
    block = m.where(is_single, t.scalar(0, i64), t.scalar(1, i64))
    last, pivot_row = j + block, m.where(is_unpermuted, j, largest_row)

    exchanged = _exchange(_exchange(x, last, pivot_row, 1), last, pivot_row, 2)
    x = m.where(column >= j, exchanged, x)
    first_column, next_column = (
        m.dynamic_slice(x, 2, j),
        m.dynamic_slice(x, 2, j + 1),
    )  # for the last column this is the column itself
    is_below = row > last
    u, v = (m.where(is_below, part, 0.0) for part in (first_column, next_column))
    head, corner, tail = (
        m.dynamic_slice(first_column, 1, j),
        _element_below(first_column, j),
        _element_below(next_column, j),
    )
    # the inverse of a 2x2 block, scaled by its off-diagonal element as in LAPACK
    p, q = tail / corner, head / corner
    scale = 1.0 / (p * q - 1.0) / corner
    first_factor = m.where(is_single, u / head, (u * p - v) * scale)
    second_factor = m.where(is_single, 0.0, (v * q - u) * scale)
    reduced = (
        x - m.matmul(first_factor, m.transpose(u)) - m.matmul(second_factor, m.transpose(m.where(is_single, 0.0, v)))
    )
    reduced = m.where(is_below & (column > last), reduced, x)
    reduced = m.where(is_below & column.equals(j), first_factor, reduced)
    reduced = m.where(is_below & column.equals(last) & (column > j), second_factor, reduced)

    position = t.iota((1, pivots.shape[1]), 1)
    flat = (v.shape[0], 1)
    pivot_code = m.where(is_single, pivot_row + 1, -pivot_row - 1).reshape(flat)
    is_block = (position >= j) & (position <= last.reshape(flat)) & (is_done.reshape(flat).equals(False))
    return [
        m.where(is_done | is_zero, x, reduced),
        m.where(is_block, pivot_code, pivots),
        m.where(info.equals(0) & is_zero & (is_second.equals(0)), j + 1, info),
        block,
    ]


def _absolute(x: Term) -> Term:
    return t.term(t.absolute(x))


def _is_nan(x: Term) -> Term:
    return x.map(IsNan())


def _element_below(column: Term, j: Term) -> Term:
    """The element in row j + 1."""
    return m.where(m.row_of(column).equals(j + 1), column, 0.0).sum((1,))


def _exchange(x: Term, a: Term, b: Term, axis: int) -> Term:
    """Each matrix with rows (columns) a[b, 1, 1] and b[b, 1, 1] exchanged."""
    if axis == 2:
        return m.transpose(_exchange(m.transpose(x), a, b, 1))
    row, flat = t.iota((1, x.shape[1]), 1), (x.shape[0], 1)
    a, b = (v.broadcast((x.shape[0], 1, 1)).reshape(flat) for v in (a, b))
    order = m.where(row.equals(a), b, m.where(row.equals(b), a, row.broadcast((x.shape[0], x.shape[1]))))
    return m.take_rows(x, order)


def ldl_solve(ld: Node, pivots: Node, b: Node) -> Node:
    """The solution of a x = b for the `LDL` of a and b[..., n, k] of the same batch (LAPACK sytrs)."""
    d, x = m.as_batch(ld), m.as_batch(b)
    batch, n, _ = d.shape
    pivot_codes = Term(pivots).cast(i64).reshape((batch, n, 1))
    in_block = pivot_codes < 0
    # the parity of the number of 2x2 block columns before a column tells whether it is second in its block
    n_before = in_block.cast(i64).map(CumReduce("sum", 1, False, True))
    is_second = in_block & t.term(t.mod(n_before, 2)).equals(1)
    is_first = m.where(in_block & is_second.equals(False), t.scalar(1, i64), t.scalar(0, i64))
    position = m.row_of(pivot_codes)
    # the pair of rows exchanged in each column
    source = position + is_first
    target = m.where(is_second, position, t.term(t.absolute(pivot_codes)) - 1)
    factor = m.where(m.row_of(d) > m.transpose(source), d, 0.0)

    def forward(j: Term, x: Term, factor: Term, source: Term, target: Term) -> list[Term]:
        x = _exchange(x, m.dynamic_slice(source, 1, j), m.dynamic_slice(target, 1, j), 1)
        return [x - m.dynamic_slice(factor, 2, j) * m.dynamic_slice(x, 1, j)]

    def backward(i: Term, x: Term, factor: Term, source: Term, target: Term) -> list[Term]:
        j = t.as_term(t.size(n)) - 1 - i
        x = m.dynamic_update(
            x, m.dynamic_slice(x, 1, j) - m.matmul(m.transpose(m.dynamic_slice(factor, 2, j)), x), 1, j
        )
        return [_exchange(x, m.dynamic_slice(source, 1, j), m.dynamic_slice(target, 1, j), 1)]

    if n == 0:
        return b
    (x,) = m.for_loop(n, [x], forward, [factor, source, target])
    x = _solve_blocks(d, x, is_first.equals(1), is_second)
    (x,) = m.for_loop(n, [x], backward, [factor, source, target])
    return x.reshape(b.shape).node


def _solve_blocks(d: Term, x: Term, is_first: Term, is_second: Term) -> Term:
    """The solution of d y = x for the diagonal blocks d."""
    n = d.shape[1]
    diagonal = m.diagonal(d).expand(2)
    corner = m.where(m.row_of(d).equals(m.column_of(d) + 1), d, 0.0).sum((1,)).reshape(diagonal.shape)

    def next_row(v: Term) -> Term:
        return v.slice(1, 1, n).pad(1, 0, 1, 0.0)

    def row_above(v: Term) -> Term:
        return v.slice(1, 0, n - 1).pad(1, 1, 0, 0.0)

    p, q = next_row(diagonal) / corner, diagonal / corner
    scale = 1.0 / (p * q - 1.0)
    upper = (p * (x / corner) - next_row(x) / corner) * scale
    lower = (q * (next_row(x) / corner) - x / corner) * scale
    return m.where(is_first, upper, m.where(is_second, row_above(lower), x / diagonal))
