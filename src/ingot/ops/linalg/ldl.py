"""Factorization of symmetric matrices that need not be definite, and what is solved by it."""

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

_ALPHA = (1 + math.sqrt(17)) / 8  # least growth of elements (Bunch and Kaufman 1977)


@dataclass(frozen=True)
class LDL(Op):
    """x = l d l^T, d of blocks of 1x1 and 2x2, for x[..., n, n], of which the lower triangle is read (LAPACK's sytrf).

    Results: d and, below its blocks, l, zeros above the diagonal; pivots i64[..., n] as LAPACK has them, counted from
    1: row i changed places with row pivots[i], or, in a block of 2x2, row i + 1 with row -pivots[i] = -pivots[i + 1];
    what of l is to the left kept its place. info i32[...]: the first zero block, counted from 1, or 0.
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
                    size, other = _block(a, k)
                    if size == 0:
                        info[b] = info[b] or k + 1
                    is_zero, size, last = size == 0, max(size, 1), k + max(size, 1) - 1
                    a[[last, other], k:] = a[[other, last], k:]
                    a[k:, [last, other]] = a[k:, [other, last]]
                    pivots[b, k : last + 1] = other + 1 if size == 1 else -other - 1
                    if not is_zero:
                        below = a[last + 1 :, k : last + 1]
                        factor = below @ np.linalg.inv(a[k : last + 1, k : last + 1])
                        a[last + 1 :, last + 1 :] -= factor @ below.T
                        a[last + 1 :, k : last + 1] = factor
                    k = last + 1
        return (
            np.tril(x).astype(inputs[0].dtype).reshape(inputs[0].shape),
            pivots.reshape(*batch, n),
            info.reshape(batch),
        )

    @m.in_f32
    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        """Column by column, where the second one of a block of 2x2 has nothing left to do."""
        x = m.symmetric(m.as_batch(inputs[0]))
        batch, n, _ = x.shape
        state = [x, t.full((batch, n), 0, i64), t.full((batch, 1, 1), 0, i64), t.full((batch, 1, 1), 0, i64)]
        x, pivots, info, _ = m.repeat(n, state, _column)
        lead = inputs[0].shape[:-2]
        return (
            m.triangle(x).reshape(inputs[0].shape).node,
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


def _block(a: np.ndarray, k: int) -> tuple[int, int]:
    """(size of the block at k, the row that changes places with its last one); size 0 for a column of zeros."""
    pivot, column = abs(a[k, k]), np.abs(a[k + 1 :, k])
    largest = column.max(initial=0)
    if np.isnan(pivot) or max(pivot, largest) == 0:
        return 0, k
    if pivot >= _ALPHA * largest:
        return 1, k
    other = k + 1 + int(np.argmax(column))
    row = np.delete(np.abs(a[other, k:]), other - k).max()
    if pivot >= _ALPHA * largest * (largest / row):
        return 1, k
    return (1 if abs(a[other, other]) >= _ALPHA * row else 2), other


def _column(j: Term, x: Term, pivots: Term, info: Term, second: Term) -> list[Term]:
    """One column of each matrix, whose part that is left is whole, not a triangle. second: of a block, so done."""
    row, column = m.row_of(x), m.column_of(x)
    own = _absolute(m.cut(x, 2, j))
    pivot = m.cut(own, 1, j)
    farthest = m.where(row > j, own, -1.0).map(ArgReduce("max", 1))
    line = _absolute(m.rows_at(x, farthest))
    farthest = farthest.expand(2)
    largest = m.where(row > j, own, 0.0).max((1,))
    others = (column >= j) & ((column < farthest) | (column > farthest))
    highest = m.where(others, line, 0.0).max((2,))
    opposite = m.where(column.equals(farthest), line, 0.0).sum((2,))
    is_done = second > 0
    is_zero = t.term(t.maximum(pivot, largest)).equals(0.0) | _is_nan(pivot)
    bound = largest * _ALPHA
    is_own = is_done | is_zero | (pivot >= bound) | (pivot >= bound * (largest / highest))
    is_single = is_own | (opposite >= highest * _ALPHA)
    block = m.where(is_single, t.scalar(0, i64), t.scalar(1, i64))
    last, other = j + block, m.where(is_own, j, farthest)

    y = _exchanged(_exchanged(x, last, other, 1), last, other, 2)
    x = m.where(column >= j, y, x)
    first_column, next_column = m.cut(x, 2, j), m.cut(x, 2, j + 1)  # of the last column that itself
    below = row > last
    u, v = (m.where(below, part, 0.0) for part in (first_column, next_column))
    head, corner, tail = m.cut(first_column, 1, j), _under(first_column, j), _under(next_column, j)
    # of a block of 2x2 as LAPACK has it, by its corner
    p, q = tail / corner, head / corner
    scale = 1.0 / (p * q - 1.0) / corner
    left = m.where(is_single, u / head, (u * p - v) * scale)
    right = m.where(is_single, 0.0, (v * q - u) * scale)
    reduced = x - m.times(left, m.transposed(u)) - m.times(right, m.transposed(m.where(is_single, 0.0, v)))
    reduced = m.where(below & (column > last), reduced, x)
    reduced = m.where(below & column.equals(j), left, reduced)
    reduced = m.where(below & column.equals(last) & (column > j), right, reduced)

    place = t.iota((1, pivots.shape[1]), 1)
    flat = (v.shape[0], 1)
    number = m.where(is_single, other + 1, -other - 1).reshape(flat)
    ours = (place >= j) & (place <= last.reshape(flat)) & (is_done.reshape(flat).equals(False))
    return [
        m.where(is_done | is_zero, x, reduced),
        m.where(ours, number, pivots),
        m.where(info.equals(0) & is_zero & (second.equals(0)), j + 1, info),
        block,
    ]


def _absolute(x: Term) -> Term:
    return t.term(t.absolute(x))


def _is_nan(x: Term) -> Term:
    return x.map(IsNan())


def _under(column: Term, j: Term) -> Term:
    """The element below that of row j."""
    return m.where(m.row_of(column).equals(j + 1), column, 0.0).sum((1,))


def _exchanged(x: Term, a: Term, b: Term, axis: int) -> Term:
    """Each matrix with rows (columns) a[b, 1, 1] and b[b, 1, 1] in each other's place."""
    if axis == 2:
        return m.transposed(_exchanged(m.transposed(x), a, b, 1))
    row, flat = t.iota((1, x.shape[1]), 1), (x.shape[0], 1)
    a, b = (v.broadcast((x.shape[0], 1, 1)).reshape(flat) for v in (a, b))
    order = m.where(row.equals(a), b, m.where(row.equals(b), a, row.broadcast((x.shape[0], x.shape[1]))))
    return m.rows_at(x, order)


def ldl_solve(ld: Node, pivots: Node, b: Node) -> Node:
    """x with a x = b, for a's `LDL`, of one batch with b[..., n, k] (LAPACK's sytrs)."""
    d, x = m.as_batch(ld), m.as_batch(b)
    batch, n, _ = d.shape
    number = Term(pivots).cast(i64).reshape((batch, n, 1))
    paired = number < 0
    # how many columns of blocks of 2x2 stand in front of each tells the first of a block from the second
    before = paired.cast(i64).map(CumReduce("sum", 1, False, True))
    second = paired & t.term(t.mod(before, 2)).equals(1)
    first = m.where(paired & second.equals(False), t.scalar(1, i64), t.scalar(0, i64))
    place = m.row_of(number)
    # the row that changes places in each column, and with which one
    last = place + first
    other = m.where(second, place, t.term(t.absolute(number)) - 1)
    factor = m.where(m.row_of(d) > m.transposed(last), d, 0.0)

    def forward(j: Term, x: Term, factor: Term, last: Term, other: Term) -> list[Term]:
        x = _exchanged(x, m.cut(last, 1, j), m.cut(other, 1, j), 1)
        return [x - m.cut(factor, 2, j) * m.cut(x, 1, j)]

    def backward(i: Term, x: Term, factor: Term, last: Term, other: Term) -> list[Term]:
        j = t.as_term(t.size(n)) - 1 - i
        x = m.put(x, m.cut(x, 1, j) - m.times(m.transposed(m.cut(factor, 2, j)), x), 1, j)
        return [_exchanged(x, m.cut(last, 1, j), m.cut(other, 1, j), 1)]

    if n == 0:
        return b
    (x,) = m.repeat(n, [x], forward, [factor, last, other])
    x = _over_blocks(d, x, first.equals(1), second)
    (x,) = m.repeat(n, [x], backward, [factor, last, other])
    return x.reshape(b.shape).node


def _over_blocks(d: Term, x: Term, first: Term, second: Term) -> Term:
    n = d.shape[1]
    own = m.diagonal(d).expand(2)
    corner = m.where(m.row_of(d).equals(m.column_of(d) + 1), d, 0.0).sum((1,)).reshape(own.shape)

    def next_row(v: Term) -> Term:
        return v.slice(1, 1, n).pad(1, 0, 1, 0.0)

    def row_above(v: Term) -> Term:
        return v.slice(1, 0, n - 1).pad(1, 1, 0, 0.0)

    p, q = next_row(own) / corner, own / corner
    scale = 1.0 / (p * q - 1.0)
    upper = (p * (x / corner) - next_row(x) / corner) * scale
    lower = (q * (next_row(x) / corner) - x / corner) * scale
    return m.where(first, upper, m.where(second, row_above(lower), x / own))
