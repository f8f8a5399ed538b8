"""Index arithmetic at print time: constant + sum(coefficient * value).

base + (i + 3) * 256 + 5   ->   base + 256 * i + 773   ->   getelementptr(getelementptr(p, base + 256 * i), 773)

Divisions by constants go as far out as the terms allow: of rows i, i + 1, ... i + 13 of an image whose width is a
multiple of 14, as i is, one division tells where all of them lie.

(56 * j + i + 3) / 56   ->   j + i / 56            (56 * j + i + 3) % 56   ->   i % 56 + 3
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from ingot.targets.cpu.printer.builder import Builder


class Term(NamedTuple):
    coefficient: int
    value: str
    multiple: int  # the value is known to be a multiple of this
    natural: bool  # and not to be negative


class Affine(NamedTuple):
    """An i64; terms have distinct values and non-zero coefficients."""

    constant: int
    terms: tuple[Term, ...]

    @staticmethod
    def of(value: str, multiple: int = 1, natural: bool = False) -> Affine:
        if value[0] != "%":
            return Affine(int(value), ())
        return Affine(0, (Term(1, value, multiple, natural),))

    @property
    def literal(self) -> int | None:
        return None if self.terms else self.constant

    @property
    def multiple(self) -> int:
        """What it is known to be a multiple of; 0 for 0."""
        return gcd(self.constant, *[c * m for c, _, m, _ in self.terms])

    @property
    def natural(self) -> bool:
        """Whether it is known not to be negative."""
        return self.constant >= 0 and all([t.natural and t.coefficient >= 0 for t in self.terms])

    def combine(self, fn: str, other: Affine) -> Affine | None:
        """fn(self, other) where it is affine; else None."""
        match fn:
            case "add":
                return self._add(other, 1)
            case "sub":
                return self._add(other, -1)
            case "mul":
                if not other.terms:
                    return self._scale(other.constant)
                return other._scale(self.constant) if not self.terms else None
        if self.terms or other.terms or other.constant == 0:
            return None
        quotient = abs(self.constant) // abs(other.constant)
        if (self.constant < 0) != (other.constant < 0):
            quotient = -quotient
        return Affine(quotient if fn == "div" else self.constant - quotient * other.constant, ())

    def _scale(self, by: int) -> Affine:
        if by == 1:
            return self
        if by == 0:
            return ZERO
        return Affine(self.constant * by, tuple([Term(c * by, v, m, n) for c, v, m, n in self.terms]))

    def _add(self, other: Affine, sign: int) -> Affine:
        total = self.constant + sign * other.constant
        if not other.terms:
            return Affine(total, self.terms)
        if not self.terms and sign == 1:
            return Affine(total, other.terms)
        sums = {v: (c, m, n) for c, v, m, n in self.terms}
        for c, v, m, n in other.terms:
            sums[v] = (sums[v][0] + sign * c if v in sums else sign * c, m, n)
        return Affine(total, tuple([Term(c, v, m, n) for v, (c, m, n) in sums.items() if c]))

    def quotient(self, b: Builder, by: int) -> Affine:
        """self / by, of a natural number by a positive one."""
        whole, rest, _ = self._split(by)
        total = constant(self.constant // by)
        for term in whole:
            if term.coefficient % by == 0:
                part = Affine(0, (term._replace(coefficient=term.coefficient // by),))
            else:
                part = _divided(b, "udiv", Affine(0, (term,)), by)
            total = total._add(part, 1)
        return total._add(_divided(b, "udiv", rest, by), 1) if rest.terms else total

    def rest(self, b: Builder, by: int) -> Affine:
        """self % by, of a natural number by a positive one. Signed, as LLVM knows the range of an unsigned one, makes
        masks literal by it, and writes too much by those of one lane (see `_store`)."""
        _, rest, low = self._split(by)
        return _divided(b, "srem", rest, by)._add(low, 1) if rest.terms else low

    def _split(self, by: int) -> tuple[list[Term], Affine, Affine]:
        """Terms that `by` divides; what is left of the others and the constant; of that what no quotient sees."""
        whole = [t for t in self.terms if t.coefficient * t.multiple % by == 0]
        rest = Affine(0, tuple([t for t in self.terms if t.coefficient * t.multiple % by]))
        low = self.constant % gcd(by, rest.multiple)
        return whole, rest._replace(constant=self.constant % by - low), constant(low)

    def compare(self, fn: str, other: Affine) -> bool | None:
        """The comparison's truth where their difference is constant."""
        difference = self._add(other, -1)
        if difference.terms:
            return None
        d = difference.constant
        return {"eq": d == 0, "ne": d != 0, "lt": d < 0, "le": d <= 0, "gt": d > 0, "ge": d >= 0}[fn]

    def _sorted(self, b: Builder) -> list[Term]:
        depth = b.depth
        return sorted(self.terms, key=lambda t: depth.get(t.value, 0))

    def value(self, b: Builder) -> str:
        """The sum as one value: outermost terms first, so that their partial sum leaves inner loops."""
        if not self.terms:
            return str(self.constant)
        total = ""
        for coefficient, value, _, _ in self._sorted(b) if len(self.terms) > 1 else self.terms:
            term = value
            if coefficient != 1:
                term = b.emit(f"mul i64 {value}, {coefficient}", (value,), cheap=True)
            total = b.emit(f"add i64 {total}, {term}", (total, term), cheap=True) if total else term
        if self.constant:
            total = b.emit(f"add i64 {total}, {self.constant}", (total,), cheap=True)
        return total

    def address(self, b: Builder, pointer: str, size: int) -> str:
        """`pointer` + self * size bytes. One addition per loop level, the constant last."""
        for coefficient, value, _, _ in self._sorted(b) if len(self.terms) > 1 else self.terms:
            by = coefficient * size
            offset = value if by == 1 else b.emit(f"mul i64 {value}, {by}", (value,), cheap=True)
            pointer = b.emit(f"getelementptr i8, ptr {pointer}, i64 {offset}", (pointer, offset), cheap=True)
        if self.constant:
            at = self.constant * size
            pointer = b.emit(f"getelementptr i8, ptr {pointer}, i64 {at}", (pointer,), cheap=True)
        return pointer

    def alignment(self, size: int, limit: int) -> int:
        """Bytes that the address surely is a multiple of."""
        low = limit | (self.constant * size)
        for coefficient, _, multiple, _ in self.terms:
            low |= coefficient * multiple * size
        return low & -low


ZERO = Affine(0, ())


@lru_cache(4096)
def constant(value: int) -> Affine:
    return Affine(value, ())


def weighted(total: int, parts: Sequence[tuple[int, Affine]]) -> Affine:
    """total + sum(factor * x)."""
    sums: dict[str, tuple[int, int, bool]] = {}
    for by, x in parts:
        total += by * x.constant
        for c, v, m, n in x.terms:
            sums[v] = (sums[v][0] + by * c if v in sums else by * c, m, n)
    return Affine(total, tuple([Term(c, v, m, n) for v, (c, m, n) in sums.items() if c]))


def _divided(b: Builder, op: str, x: Affine, by: int) -> Affine:
    value, multiple = x.value(b), gcd(by, x.multiple) if op == "srem" else 1
    return Affine.of(b.emit(f"{op} i64 {value}, {by}", (value,), cheap=True), multiple, True)
