"""Index arithmetic at print time: constant + sum(coefficient * value).

base + (i + 3) * 256 + 5   ->   base + 256 * i + 773   ->   getelementptr(getelementptr(p, base + 256 * i), 773)
"""

from __future__ import annotations

from typing import NamedTuple

from ingot.targets.cpu.printer.builder import Builder


class Term(NamedTuple):
    coefficient: int
    value: str
    multiple: int  # the value is known to be a multiple of this


class Affine(NamedTuple):
    """An i64; terms have distinct values and non-zero coefficients."""

    constant: int
    terms: tuple[Term, ...]

    @staticmethod
    def of(value: str, multiple: int = 1) -> Affine:
        if value[0] != "%":
            return Affine(int(value), ())
        return Affine(0, (Term(1, value, multiple),))

    @property
    def literal(self) -> int | None:
        return None if self.terms else self.constant

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
        return Affine(self.constant * by, tuple([Term(c * by, v, m) for c, v, m in self.terms]))

    def _add(self, other: Affine, sign: int) -> Affine:
        total = self.constant + sign * other.constant
        if not other.terms:
            return Affine(total, self.terms)
        if not self.terms and sign == 1:
            return Affine(total, other.terms)
        sums = {v: (c, m) for c, v, m in self.terms}
        for c, v, m in other.terms:
            sums[v] = (sums[v][0] + sign * c if v in sums else sign * c, m)
        return Affine(total, tuple([Term(c, v, m) for v, (c, m) in sums.items() if c]))

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
        for coefficient, value, _ in self._sorted(b) if len(self.terms) > 1 else self.terms:
            term = value
            if coefficient != 1:
                term = b.emit(f"mul i64 {value}, {coefficient}", (value,), cheap=True)
            total = b.emit(f"add i64 {total}, {term}", (total, term), cheap=True) if total else term
        if self.constant:
            total = b.emit(f"add i64 {total}, {self.constant}", (total,), cheap=True)
        return total

    def address(self, b: Builder, pointer: str, size: int) -> str:
        """`pointer` + self * size bytes. One addition per loop level, the constant last."""
        for coefficient, value, _ in self._sorted(b) if len(self.terms) > 1 else self.terms:
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
        for coefficient, _, multiple in self.terms:
            low |= coefficient * multiple * size
        return low & -low


ZERO = Affine(0, ())


def constant(value: int) -> Affine:
    return Affine(value, ())
