"""Batches of complex matrices as pairs of real ones, and Householder's reflections of them."""

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
    """re + i im, two terms of one type."""

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

    def over(self, other: Pair) -> Pair:
        """The quotient, by a number whose square neither over- nor underflows."""
        return self * other.conjugate() * (1.0 / other.square())

    def __neg__(self) -> Pair:
        return self * -1.0

    def conjugate(self) -> Pair:
        return Pair(self.re, -self.im)

    def square(self) -> Term:
        """The modulus squared."""
        return self.re * self.re + self.im * self.im

    def size(self) -> Term:
        return self.square().map(Sqrt())

    def each(self, f: Callable[[Term], Term]) -> Pair:
        return Pair(f(self.re), f(self.im))

    def adjoint(self) -> Pair:
        """Each matrix transposed, and its elements conjugate."""
        return self.conjugate().each(m.transposed)

    @property
    def parts(self) -> tuple[Term, Term]:
        return self.re, self.im


def real(x: Term) -> Pair:
    return Pair(x, t.full(x.shape, 0.0, x.dtype))


def where(condition: Term, a: Pair, b: Pair | float) -> Pair:
    if not isinstance(b, Pair):
        return Pair(m.where(condition, a.re, b), m.where(condition, a.im, 0.0))
    return Pair(m.where(condition, a.re, b.re), m.where(condition, a.im, b.im))


def times(a: Pair, b: Pair) -> Pair:
    """[b, m, k] [b, k, n]."""
    re = m.times(a.re, b.re) - m.times(a.im, b.im)
    return Pair(re, m.times(a.re, b.im) + m.times(a.im, b.re))


def identity(like: Pair) -> Pair:
    """[b, m, m] for m rows."""
    shape = (like.re.shape[0], like.re.shape[1], like.re.shape[1])
    return real(m.identity(like.re).broadcast(shape))


def root(z: Pair) -> Pair:
    """The square root whose real part is not negative."""
    size, x = z.size(), z.re
    near = ((size + t.term(t.absolute(x))) * 0.5).map(Sqrt())
    other = m.where(near > 0.0, z.im / (m.where(near > 0.0, near, 1.0) * 2.0), 0.0)
    left = x < 0.0
    re = m.where(left, t.term(t.absolute(other)), near)
    return Pair(re, m.where(left, m.where(z.im < 0.0, -near, near), other))


def phase(z: Pair) -> Pair:
    """z over its modulus; 1 for 0."""
    size = z.size()
    none = size.equals(0.0)
    return where(none, real(t.full(size.shape, 1.0, size.dtype)), z * (1.0 / m.where(none, 1.0, size)))


def reflected(x: Pair, count: DimLike, below: int = 0, similar: bool = False) -> tuple[Pair, Pair, Term]:
    """(y, q, sign) with x = q y, q unitary, and the first `count` columns of y zero further than `below` under the
    diagonal; x = q y q^H where `similar`. sign[b, 1, 1] is q's determinant.

    By the reflections I - 2 v v^H / (v^H v) of Householder, each of which has the determinant -1.
    """

    def column(j: Term, *values: Term) -> list[Term]:
        y, q, sign = Pair(*values[:2]), Pair(*values[2:4]), values[4]
        row = m.row_of(y.re)
        top = j + below
        own = where(row >= top, y.each(lambda v: m.cut(v, 2, j)), 0.0)
        head = own.each(lambda v: m.cut(v, 1, top))
        length = own.square().sum((1,)).map(Sqrt())
        rest = where(row > top, own, 0.0).square().sum((1,))
        flat = rest.equals(0.0) & head.im.equals(0.0)
        v = own + where(row.equals(top), phase(head) * length, 0.0)
        size = v.square().sum((1,))
        scale = m.where(flat, 0.0, 2.0 / m.where(flat, 1.0, size))
        # zeros are told, not computed
        image = y - times(v, times(v.adjoint(), y)) * scale
        image = where((m.column_of(y.re).equals(j)) & (row > top), _none(image), image)
        if similar:
            image = image - times(times(image, v), v.adjoint()) * scale
        y = where(flat.broadcast(y.re.shape), y, image)
        q = q - times(times(q, v), v.adjoint()) * scale
        return [*y.parts, *q.parts, m.where(flat, sign, -sign)]

    one = t.full((x.re.shape[0], 1, 1), 1.0, x.re.dtype)
    out = m.repeat(count, [*x.parts, *identity(x).parts, one], column)
    return Pair(*out[:2]), Pair(*out[2:4]), out[4]


def _none(like: Pair) -> Pair:
    return like.each(lambda v: t.full(v.shape, 0.0, v.dtype))
