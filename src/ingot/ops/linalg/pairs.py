"""Batches of complex matrices as pairs of real ones, and their reduction by Householder reflections."""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir.dims import DimLike
from ingot.ops.core.elementwise import Sqrt
from ingot.ops.linalg import matrices as m
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True, eq=False)
class Pair:
    """The complex term re + i im; both parts have one type."""

    re: Term
    im: Term

    def __add__(self, other: Pair) -> Pair:
        return Pair(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Pair) -> Pair:
        return Pair(self.re - other.re, self.im - other.im)

    def __mul__(self, other: Pair | Term | float) -> Pair:
        if not isinstance(other, Pair):
            return Pair(self.re * other, self.im * other)
        return Pair(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def divide(self, other: Pair) -> Pair:
        """self / other, if the square of `other` neither overflows nor underflows."""
        return self * other.conjugate() * (1.0 / other.square())

    def __neg__(self) -> Pair:
        return self * -1.0

    def conjugate(self) -> Pair:
        return Pair(self.re, -self.im)

    def square(self) -> Term:
        """|z|^2."""
        return self.re * self.re + self.im * self.im

    def modulus(self) -> Term:
        """|z|."""
        return self.square().map(Sqrt())

    def map(self, f: Callable[[Term], Term]) -> Pair:
        """`f` applied to both parts."""
        return Pair(f(self.re), f(self.im))

    def adjoint(self) -> Pair:
        """The conjugate transpose of each matrix."""
        return self.conjugate().map(m.transpose)

    @property
    def parts(self) -> tuple[Term, Term]:
        return self.re, self.im


def real(x: Term) -> Pair:
    """x with imaginary part 0."""
    return Pair(x, t.full(x.shape, 0.0, x.dtype))


def where(condition: Term, a: Pair, b: Pair | float) -> Pair:
    """condition ? a : b."""
    if not isinstance(b, Pair):
        return Pair(m.where(condition, a.re, b), m.where(condition, a.im, 0.0))
    return Pair(m.where(condition, a.re, b.re), m.where(condition, a.im, b.im))


def matmul(a: Pair, b: Pair) -> Pair:
    """The product of each pair of matrices [b, m, k] [b, k, n]."""
    re = m.matmul(a.re, b.re) - m.matmul(a.im, b.im)
    return Pair(re, m.matmul(a.re, b.im) + m.matmul(a.im, b.re))


def identity(like: Pair) -> Pair:
    """The identity [b, m, m], for the m rows of `like`."""
    shape = (like.re.shape[0], like.re.shape[1], like.re.shape[1])
    return real(m.identity(like.re).broadcast(shape))


def sqrt(z: Pair) -> Pair:
    """The square root with a non-negative real part."""
    size, x = z.modulus(), z.re
    larger_part = ((size + t.term(t.absolute(x))) * 0.5).map(Sqrt())
    smaller_part = m.where(larger_part > 0.0, z.im / (m.where(larger_part > 0.0, larger_part, 1.0) * 2.0), 0.0)
    is_negative = x < 0.0
    re = m.where(is_negative, t.term(t.absolute(smaller_part)), larger_part)
    return Pair(re, m.where(is_negative, m.where(z.im < 0.0, -larger_part, larger_part), smaller_part))


def phase(z: Pair) -> Pair:
    """z / |z|; 1 for 0."""
    size = z.modulus()
    is_zero = size.equals(0.0)
    return where(is_zero, real(t.full(size.shape, 1.0, size.dtype)), z * (1.0 / m.where(is_zero, 1.0, size)))


def householder(x: Pair, count: DimLike, offset: int = 0, similarity: bool = False) -> tuple[Pair, Pair, Term]:
    """(y, q, sign) with x = q y and q unitary, or x = q y q^H if `similarity`.

    The first `count` columns of y are zero below the diagonal (`offset` = 0) or subdiagonal number `offset`.
    sign[b, 1, 1] is the determinant of q, a product of Householder reflections I - 2 v v^H / (v^H v), each of
    determinant -1.
    """

    def column(j: Term, *values: Term) -> list[Term]:
        y, q, sign = Pair(*values[:2]), Pair(*values[2:4]), values[4]
        row = m.row_of(y.re)
        pivot_row = j + offset
        values_below = where(row >= pivot_row, y.map(lambda v: m.dynamic_slice(v, 2, j)), 0.0)
        head = values_below.map(lambda v: m.dynamic_slice(v, 1, pivot_row))
        length = values_below.square().sum((1,)).map(Sqrt())
        rest_square = where(row > pivot_row, values_below, 0.0).square().sum((1,))
        is_reduced = rest_square.equals(0.0) & head.im.equals(0.0)
        v = values_below + where(row.equals(pivot_row), phase(head) * length, 0.0)
        v_square = v.square().sum((1,))
        scale = m.where(is_reduced, 0.0, 2.0 / m.where(is_reduced, 1.0, v_square))
        # set the eliminated elements to exact zeros
        image = y - matmul(v, matmul(v.adjoint(), y)) * scale
        image = where((m.column_of(y.re).equals(j)) & (row > pivot_row), _zeros_like(image), image)
        if similarity:
            image = image - matmul(matmul(image, v), v.adjoint()) * scale
        y = where(is_reduced.broadcast(y.re.shape), y, image)
        q = q - matmul(matmul(q, v), v.adjoint()) * scale
        return [*y.parts, *q.parts, m.where(is_reduced, sign, -sign)]

    one = t.full((x.re.shape[0], 1, 1), 1.0, x.re.dtype)
    out = m.for_loop(count, [*x.parts, *identity(x).parts, one], column)
    return Pair(*out[:2]), Pair(*out[2:4]), out[4]


def _zeros_like(like: Pair) -> Pair:
    return like.map(lambda v: t.full(v.shape, 0.0, v.dtype))
