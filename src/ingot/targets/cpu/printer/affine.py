"""Index arithmetic at print time: constant + sum(coefficient * value).

base + (i + 3) * 256 + 5   ->   base + 256 * i + 773   ->   getelementptr(getelementptr(p, base + 256 * i), 773)

Divisions by constants are split into terms that move out of loops: if i and the width of an image are multiples of 14,
one division gives the positions of i, i + 1, ... i + 13.

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
    multiple: int  # a known divisor of the value
    is_nonnegative: bool  # whether the value is known not to be negative


class Affine(NamedTuple):
    """An i64. Terms have distinct values and non-zero coefficients."""

    constant: int
    terms: tuple[Term, ...]

    @staticmethod
    def of(value: str, multiple: int = 1, is_nonnegative: bool = False) -> Affine:
        if value[0] != "%":
            return Affine(int(value), ())
        return Affine(0, (Term(1, value, multiple, is_nonnegative),))

    @property
    def literal(self) -> int | None:
        return None if self.terms else self.constant

    @property
    def multiple(self) -> int:
        """A known divisor of the value; 0 for 0."""
        return gcd(self.constant, *[c * m for c, _, m, _ in self.terms])

    @property
    def is_nonnegative(self) -> bool:
        """Whether the value is known not to be negative."""
        return self.constant >= 0 and all([t.is_nonnegative and t.coefficient >= 0 for t in self.terms])

    def combine(self, fn: str, other: Affine) -> Affine | None:
        """Return fn(self, other) if it is affine, else None."""
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

    def _scale(self, factor: int) -> Affine:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Affine(self.constant * factor, tuple([Term(c * factor, v, m, n) for c, v, m, n in self.terms]))

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

    def quotient(self, b: Builder, divisor: int) -> Affine:
        """Return self / divisor, for self >= 0 and divisor > 0."""
        exact, remainder, _ = self._split(divisor)
        total = constant(self.constant // divisor)
        for term in exact:
            if term.coefficient % divisor == 0:
                part = Affine(0, (term._replace(coefficient=term.coefficient // divisor),))
            else:
                part = _emit_division(b, "udiv", Affine(0, (term,)), divisor)
            total = total._add(part, 1)
        return total._add(_emit_division(b, "udiv", remainder, divisor), 1) if remainder.terms else total

    def remainder(self, b: Builder, divisor: int) -> Affine:
        """Return self % divisor, for self >= 0 and divisor > 0. The instruction is signed: LLVM would use the range of
        an unsigned one to make masks literal, and it miscompiles stores with masks of one lane (see `_store`)."""
        _, remainder, low = self._split(divisor)
        return _emit_division(b, "srem", remainder, divisor)._add(low, 1) if remainder.terms else low

    def _split(self, divisor: int) -> tuple[list[Term], Affine, Affine]:
        """Split into terms that `divisor` divides, the other terms, and a constant too small to affect their
        quotient."""
        exact = [t for t in self.terms if t.coefficient * t.multiple % divisor == 0]
        others = Affine(0, tuple([t for t in self.terms if t.coefficient * t.multiple % divisor]))
        low = self.constant % gcd(divisor, others.multiple)
        return exact, others._replace(constant=self.constant % divisor - low), constant(low)

    def compare(self, fn: str, other: Affine) -> bool | None:
        """Evaluate a comparison if the difference is constant, else None."""
        difference = self._add(other, -1)
        if difference.terms:
            return None
        d = difference.constant
        return {"eq": d == 0, "ne": d != 0, "lt": d < 0, "le": d <= 0, "gt": d > 0, "ge": d >= 0}[fn]

    def _sorted(self, b: Builder) -> list[Term]:
        depth = b.depth
        return sorted(self.terms, key=lambda t: depth.get(t.value, 0))

    def value(self, b: Builder) -> str:
        """Emit the sum. Outermost terms come first, so that their partial sum leaves inner loops."""
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
        """Emit `pointer` + self * size bytes: one addition per loop level, the constant last."""
        for coefficient, value, _, _ in self._sorted(b) if len(self.terms) > 1 else self.terms:
            scale = coefficient * size
            offset = value if scale == 1 else b.emit(f"mul i64 {value}, {scale}", (value,), cheap=True)
            pointer = b.emit(f"getelementptr i8, ptr {pointer}, i64 {offset}", (pointer, offset), cheap=True)
        if self.constant:
            offset_bytes = self.constant * size
            pointer = b.emit(f"getelementptr i8, ptr {pointer}, i64 {offset_bytes}", (pointer,), cheap=True)
        return pointer

    def alignment(self, size: int, limit: int) -> int:
        """Return the known alignment of the address, in bytes."""
        low = limit | (self.constant * size)
        for coefficient, _, multiple, _ in self.terms:
            low |= coefficient * multiple * size
        return low & -low


ZERO = Affine(0, ())


@lru_cache(4096)
def constant(value: int) -> Affine:
    return Affine(value, ())


def weighted_sum(total: int, parts: Sequence[tuple[int, Affine]]) -> Affine:
    """Return total + sum(factor * x)."""
    sums: dict[str, tuple[int, int, bool]] = {}
    for factor, x in parts:
        total += factor * x.constant
        for c, v, m, n in x.terms:
            sums[v] = (sums[v][0] + factor * c if v in sums else factor * c, m, n)
    return Affine(total, tuple([Term(c, v, m, n) for v, (c, m, n) in sums.items() if c]))


def _emit_division(b: Builder, op: str, x: Affine, divisor: int) -> Affine:
    value, multiple = x.value(b), gcd(divisor, x.multiple) if op == "srem" else 1
    return Affine.of(b.emit(f"{op} i64 {value}, {divisor}", (value,), cheap=True), multiple, True)
