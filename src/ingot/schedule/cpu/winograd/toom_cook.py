"""The matrices of Winograd's short convolutions, and their application to vectors in registers.

    y = A^T [(G g) . (B^T d)]        m outputs, r taps, alpha = m + r - 1 inputs and products, for one dimension
    Y = A^T [(G g G^T) . (B^T d B)] A                                                          for two

F(m, r) evaluates at alpha - 1 finite points and at infinity (Toom-Cook; Lavin and Gray, "Fast algorithms for
convolutional neural networks", 2016). The points determine the error. These were measured as the best among cheap ones
(docs/inside/winograd.md); Barabasz et al., "Error analysis and improving the accuracy of Winograd convolution", 2020,
explain why good points are near 1. All are dyadic, so that the matrices of the data's transforms are exact in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import prod

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.schedule.block import Block
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

Matrix = tuple[tuple[Fraction, ...], ...]

_P, _Q = Fraction(5, 8), Fraction(3, 2)
_POINTS: dict[int, tuple[Fraction, ...]] = {
    4: (Fraction(0), Fraction(1), Fraction(-1)),
    6: (Fraction(0), _P, -_P, _Q, -_Q),
}


@dataclass(frozen=True)
class Transform:
    """F(m, r). at: m x alpha; g: alpha x r; bt: alpha x alpha."""

    m: int
    r: int
    at: Matrix
    g: Matrix
    bt: Matrix

    @property
    def alpha(self) -> int:
        return self.m + self.r - 1


def array(matrix: Matrix) -> np.ndarray:
    return np.array(matrix, np.float64)


@cache
def transform(m: int, r: int) -> Transform:
    """Return F(m, r). Raises CompileError if there are no points for alpha = m + r - 1."""
    alpha = m + r - 1
    points = _POINTS.get(alpha)
    if points is None:
        raise CompileError(f"F({m}, {r})", expected=f"m + r - 1 in {sorted(_POINTS)}", got=alpha)
    scale = [prod((a - b for b in points if b != a), start=Fraction(1)) for a in points]
    at = tuple((*(a**i for a in points), Fraction(int(i == m - 1))) for i in range(m))
    last = tuple(Fraction(int(i == r - 1)) for i in range(r))
    g = (*(tuple(a**i / f for i in range(r)) for a, f in zip(points, scale, strict=True)), last)
    bt = (*((*_polynomial([b for b in points if b != a]), Fraction(0)) for a in points), _polynomial(points))
    return Transform(m, r, at, g, bt)


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the product of (x - root), constant first."""
    c = [Fraction(1)]
    for root in roots:
        c = [low - root * high for low, high in zip([Fraction(0), *c], [*c, Fraction(0)], strict=True)]
    return tuple(c)


def transformed_weights(w: np.ndarray, t: Transform) -> np.ndarray:
    """[r, r, ci, co] -> [alpha * alpha, ci, co]: G g G^T in float64, rounded once to the weights' type."""
    g = array(t.g)
    kron = np.kron(g, g)
    taps = np.ascontiguousarray(w, np.float64).reshape(t.r * t.r, -1)
    out = np.empty((kron.shape[0], taps.shape[1]), w.dtype)
    # blocks of columns stay in cache, and are so small that BLAS does not start threads, which would cost more
    step = max(1, (1 << 18) // kron.size)
    for start in range(0, taps.shape[1], step):
        out[:, start : start + step] = kron @ taps[:, start : start + step]
    return out.reshape(kron.shape[0], *w.shape[2:])


# Application: a matrix times a list of vectors


def apply(block: Block, matrix: Matrix, xs: Sequence[Expr]) -> list[Expr]:
    """Return matrix @ xs. Terms that the rows or columns of opposite points share are computed once.

    columns (c, c), (c, -c)   ->   s = x + y, d = x - y          rows e + o, e - o   ->   e, o once
    """
    matrix, xs = _pair_columns(block, matrix, list(xs))
    out: list[Expr | None] = [None] * len(matrix)
    for i, row in enumerate(matrix):
        if out[i] is not None:
            continue
        partner = next((j for j in range(i + 1, len(matrix)) if out[j] is None and _are_opposite(row, matrix[j])), None)
        if partner is None:
            out[i] = _sum(block, row, xs)
            continue
        even = [c if c == d else Fraction(0) for c, d in zip(row, matrix[partner], strict=True)]
        odd = [c if c != d else Fraction(0) for c, d in zip(row, matrix[partner], strict=True)]
        factor = next(c for c in reversed(odd) if c)
        e, o = _sum(block, even, xs), _sum(block, [c / factor for c in odd], xs)
        out[i] = _add_scaled(block, e, factor, o)
        out[partner] = _add_scaled(block, e, -factor, o)
    return [e for e in out if e is not None]


def _are_opposite(a: Sequence[Fraction], b: Sequence[Fraction]) -> bool:
    """Whether the rows are e + o and e - o, with more than two terms."""
    equal = sum(x == y != 0 for x, y in zip(a, b, strict=True))
    negated = sum(x == -y != 0 for x, y in zip(a, b, strict=True))
    has_equal_magnitudes = all(abs(x) == abs(y) for x, y in zip(a, b, strict=True))
    return has_equal_magnitudes and equal > 0 and negated > 0 and equal + negated > 2


def _pair_columns(block: Block, matrix: Matrix, xs: list[Expr]) -> tuple[Matrix, list[Expr]]:
    columns = [list(c) for c in zip(*matrix, strict=True)]
    paired: set[int] = set()
    for i, a in enumerate(columns):
        for j in range(i + 1, len(columns)):
            if i in paired or j in paired or not _are_opposite(a, columns[j]):
                continue
            paired |= {i, j}
            total = block.let(k.add(xs[i], xs[j]), "s")
            xs[i], xs[j] = total, block.let(k.sub(xs[i], xs[j]), "d")
            b = columns[j]
            columns[i] = [x if x == y else Fraction(0) for x, y in zip(a, b, strict=True)]
            columns[j] = [x if x != y else Fraction(0) for x, y in zip(a, b, strict=True)]
    return tuple(zip(*columns, strict=True)), xs


def _sum(block: Block, row: Sequence[Fraction], xs: Sequence[Expr]) -> Expr:
    terms = sorted(((c, x) for c, x in zip(row, xs, strict=True) if c), key=lambda t: (abs(t[0]) != 1, t[0] < 0))
    (c, x), *rest = terms
    total = x if c == 1 else block.let(k.mul(x, k.lit(float(c), x.dtype, x.lanes)))
    for c, x in rest:
        total = _add_scaled(block, total, c, x)
    return total


def _add_scaled(block: Block, a: Expr, c: Fraction, x: Expr) -> Expr:
    """a + c * x."""
    if c == 1:
        return block.let(k.add(a, x))
    if c == -1:
        return block.let(k.sub(a, x))
    return block.let(k.fma(x, k.lit(float(c), x.dtype, x.lanes), a))


__all__ = ["Matrix", "Transform", "apply", "array", "transform", "transformed_weights"]
