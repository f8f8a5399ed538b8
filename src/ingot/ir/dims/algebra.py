"""Symbolic dimensions: integer expressions over named symbols, kept in one canonical form.

    dim     ::= sum of  coefficient * atom * atom * ...
    atom    ::= symbol | dim // dim | dim % dim | max(dim, dim) | min(dim, dim)

Two expressions that are equal as polynomials over their atoms are equal by `==` and `hash`, so shapes compare by value.
A constant expression is always a plain `int`. There are four kinds of symbols:

    n           a size of at least 1
    n?          a size of at least 0
    $n          a computed size, at least 0: a value of the graph gives it in the run (`Graph.sizes`)
    shape.0     an integer that a caller passes as data (an element of an input), unbounded unless bounds are given
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import gcd
from typing import SupportsIndex

from ingot.support.dataclass import dataclass
from ingot.support.errors import LimitError
from ingot.support.limits import max_terms

Monomial = tuple["Atom", ...]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named symbolic size. Whether it may be 0 is part of its identity, as equal sizes have one form; other bounds
    belong to the graph that uses it. The names of the symbols in a graph are unique."""

    name: str
    may_be_empty: bool = False

    def __str__(self) -> str:
        return self.name + EMPTY_SUFFIX * self.may_be_empty


EMPTY_SUFFIX = "?"  # in text, follows the names of sizes that may be 0
COMPUTED_PREFIX = "$"  # the first letter of the names of computed sizes


def is_static(sizes: Iterable[DimLike]) -> bool:
    """Whether none of `sizes` is symbolic."""
    return all(isinstance(d, int) for d in sizes)


def is_computed(name: str) -> bool:
    """Whether `name` is a computed size: a value of the graph gives it in the run."""
    return name.startswith(COMPUTED_PREFIX)


def is_number(name: str) -> bool:
    """Whether `name` is any integer, not a size: an element of an input, or what the run finds."""
    return "." in name


def is_input_element(name: str) -> bool:
    """Whether `name` is an element of an input."""
    return is_number(name) and not is_computed(name)


@dataclass(frozen=True, slots=True)
class Apply:
    """A non-polynomial operation on two sizes. fn: floordiv, mod, max or min."""

    fn: str
    a: int | Dim
    b: int | Dim

    def __str__(self) -> str:
        if self.fn in ("max", "min"):
            return f"{self.fn}({self.a},{self.b})"
        return f"({_operand_text(self.a)}{'//' if self.fn == 'floordiv' else '%'}{_operand_text(self.b)})"


def _operand_text(d: int | Dim) -> str:
    """The text of an operand, in parentheses unless it is a number or one atom."""
    if isinstance(d, int):
        return str(d) if d >= 0 else f"({d})"
    (atoms, count), *rest = d.terms
    return f"({d})" if rest or count != 1 or len(atoms) != 1 else str(d)


Atom = Symbol | Apply


class Dim:
    """An immutable, canonical, non-constant integer expression. Build with `symbol` and arithmetic."""

    __slots__ = ("_bounds", "_hash", "_symbols", "_text", "terms", "weight")
    terms: tuple[tuple[Monomial, int], ...]
    weight: int  # symbols and operators in its text: the cost of most operations on it

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]):
        self.terms = terms
        self.weight = sum(_weight(atom) for mono, _ in terms for atom in mono)
        if self.weight > max_terms():
            raise _too_complicated(self.weight)
        self._hash = hash(terms)
        # computed on first use: type rules put sizes into messages that are rarely read
        self._text: str | None = None
        self._symbols: frozenset[str] | None = None
        self._bounds: Interval | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __add__(self, other: int | Dim) -> int | Dim:
        return _from_terms(_merge(_terms(self), _terms(other)))

    __radd__ = __add__

    def __neg__(self) -> int | Dim:
        return self * -1

    def __sub__(self, other: int | Dim) -> int | Dim:
        return self + (other * -1)

    def __rsub__(self, other: int | Dim) -> int | Dim:
        return (self * -1) + other

    def __mul__(self, other: int | Dim) -> int | Dim:
        out: dict[Monomial, int] = {}
        if isinstance(other, Dim) and len(self.terms) * len(other.terms) > _MAX_PRODUCT_FACTOR * max_terms():
            raise _too_complicated(self.weight * other.weight)
        for m1, c1 in _terms(self):
            for m2, c2 in _terms(other):
                m = tuple(sorted(m1 + m2, key=str))
                out[m] = out.get(m, 0) + c1 * c2
        return _from_terms(out)

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Dim) -> int | Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int | Dim) -> int | Dim:
        return floordiv(other, self)

    def __mod__(self, other: int | Dim) -> int | Dim:
        return mod(self, other)

    def __rmod__(self, other: int | Dim) -> int | Dim:
        return mod(other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the size {self} is known only at run time: compare it with == or use bounds()")

    def __int__(self) -> int:
        raise TypeError(f"the size {self} is known only at run time")

    __index__ = __int__

    def __str__(self) -> str:
        if self._text is None:
            parts = []
            for mono, c in self.terms:
                body = "*".join(map(str, mono))
                parts.append(str(c) if not mono else body if c == 1 else f"{c}*{body}")
            self._text = "+".join(parts).replace("+-", "-")
        return self._text

    __repr__ = __str__


DimLike = int | Dim
_MAX_PRODUCT_FACTOR = 16  # products of terms may exceed the limit of terms by this factor, as many cancel out


def _too_complicated(weight: int) -> LimitError:
    return LimitError("terms", max_terms(), "a size is too complicated", got=f"{weight} symbols and operators")


def _weight(atom: Atom) -> int:
    if isinstance(atom, Symbol):
        return 1
    return 1 + sum(side.weight for side in (atom.a, atom.b) if isinstance(side, Dim))


def _terms(d: int | Dim) -> Iterable[tuple[Monomial, int]]:
    return d.terms if isinstance(d, Dim) else (((), d),)


def _merge(*sums: Iterable[tuple[Monomial, int]]) -> dict[Monomial, int]:
    out: dict[Monomial, int] = {}
    for terms in sums:
        for m, c in terms:
            out[m] = out.get(m, 0) + c
    return out


def _from_terms(terms: dict[Monomial, int]) -> int | Dim:
    nonzero = {m: c for m, c in terms.items() if c}
    if any(len(m) == 1 and isinstance(m[0], Apply) for m in nonzero):
        nonzero = _shortest_sum(nonzero)
    return _from_canonical(nonzero)


def _from_canonical(terms: dict[Monomial, int]) -> int | Dim:
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    # the constant last, as people write it: 2*s0+1
    return Dim(tuple(sorted(terms.items(), key=lambda t: (t[0] == (), tuple(map(str, t[0]))))))


def _shortest_sum(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    """Move the other terms of a sum into its quotients, maxima and minima where that makes them shorter.

    4*(n//4) + n%4  ->  n         n + max(256-n,0)  ->  max(n,256)         max(n,2) - max(n-2,0)  ->  2
    """
    applied = sorted(((m, m[0]) for m in terms if len(m) == 1 and isinstance(m[0], Apply)), key=lambda t: str(t[1]))
    extremes = [m for m, atom in applied if isinstance(atom, Apply) and atom.fn in _OPPOSITE]
    if len(extremes) > 1:
        terms = _merge_extremes(terms, extremes)
    for mono, atom in applied:
        assert isinstance(atom, Apply)
        count = terms.get(mono, 0)
        if count and atom.fn in _OPPOSITE:
            rest = [(m, c) for m, c in terms.items() if m != mono]
            operands = [_merge(((m, c * count) for m, c in _terms(side)), rest) for side in (atom.a, atom.b)]
            terms = _extreme(atom.fn if count > 0 else _OPPOSITE[atom.fn], operands)
        elif count and atom.fn == "mod":
            terms = _merge_quotient(terms, mono, atom)
    return terms


def _merge_extremes(terms: dict[Monomial, int], extremes: Sequence[Monomial]) -> dict[Monomial, int]:
    """Merge maxima and minima whose operands have the same difference: max(a, b) is b + max(a-b, 0), min(a, b) is
    a - max(a-b, 0), and max(-d, 0) is max(d, 0) - d."""
    groups: dict[tuple[tuple[Monomial, int], ...], list[tuple[Monomial, int]]] = {}
    for mono in extremes:
        (atom,) = mono
        assert isinstance(atom, Apply)
        difference = {m: c for m, c in _merge(_terms(atom.a), ((m, -c) for m, c in _terms(atom.b))).items() if c}
        ordered = sorted(difference.items(), key=lambda t: tuple(map(str, t[0])))
        factor = gcd(*difference.values()) * (1 if ordered[0][1] > 0 else -1)
        groups.setdefault(tuple((m, c // factor) for m, c in ordered), []).append((mono, factor))
    for difference, members in groups.items():
        if len(members) < 2:
            continue
        total = 0
        for mono, factor in members:
            (atom,), count = mono, terms[mono]
            assert isinstance(atom, Apply)
            sign = count if atom.fn == "max" else -count
            total += sign * abs(factor)
            base = atom.b if atom.fn == "max" else atom.a
            correction = ((m, sign * factor * c) for m, c in difference) if factor < 0 else ()
            terms = _merge(terms.items(), [(mono, -count)], ((m, c * count) for m, c in _terms(base)), correction)
        if total:
            operands = [_merge(terms.items(), ((m, c * total) for m, c in difference)), terms]
            terms = _extreme("max" if total > 0 else "min", [{m: c for m, c in side.items() if c} for side in operands])
        terms = {m: c for m, c in terms.items() if c}
    return terms


def _merge_quotient(terms: dict[Monomial, int], mono: Monomial, remainder: Apply) -> dict[Monomial, int]:
    """Replace c * b * (a // b) + c * (a % b) by c * a, where `mono` is a % b."""
    quotient: Monomial = (Apply("floordiv", remainder.a, remainder.b),)
    if not isinstance(remainder.b, int) or terms.get(quotient, 0) != terms[mono] * remainder.b:
        return terms
    others = {m: c for m, c in terms.items() if m not in (mono, quotient)}
    merged = _merge(others.items(), ((m, c * terms[mono]) for m, c in _terms(remainder.a)))
    return {m: c for m, c in merged.items() if c}


def extreme(fn: str, *operands: int | Dim) -> int | Dim:
    """The maximum or minimum of several sizes, their common terms factored out."""
    return _from_canonical(_extreme(fn, [dict(_terms(d)) for d in operands]))


def _extreme(fn: str, operands: Sequence[Mapping[Monomial, int]]) -> dict[Monomial, int]:
    """The terms of a maximum or minimum of sums: common terms and the common divisor of the remainders move out of
    it."""
    out = {m: c for m, c in reduce(_common_terms, operands).items() if c}
    remainders = [{m: c - out.get(m, 0) for m, c in side.items() if c != out.get(m, 0)} for side in operands]
    coefficients = [c for side in remainders for c in side.values()]
    if not coefficients:
        return out
    factor = gcd(*coefficients)
    if all(c <= 0 for c in coefficients):
        fn, factor = _OPPOSITE[fn], -factor
    first, *middle, last = sorted(
        (_from_terms({m: c // factor for m, c in side.items()}) for side in remainders), key=str
    )
    for d in reversed(middle):
        last = extreme(fn, d, last)
    mono: Monomial = (Apply(fn, *sorted((first, last), key=str)),)
    out[mono] = out.get(mono, 0) + factor
    return {m: c for m, c in out.items() if c}


_OPPOSITE = {"max": "min", "min": "max"}


def _common_terms(a: Mapping[Monomial, int], b: Mapping[Monomial, int]) -> dict[Monomial, int]:
    """The terms that two sums share with one sign, each with its smaller coefficient."""
    pairs = ((m, c, b[m]) for m, c in a.items() if m in b)
    return {m: min(c, other, key=abs) for m, c, other in pairs if (c > 0) == (other > 0)}


def symbol(name: str, may_be_empty: bool = False) -> Dim:
    """The symbolic dimension `name`."""
    return Dim((((Symbol(name, may_be_empty),), 1),))


def as_dim(d: object) -> int | Dim:
    """`d` as a dimension: an int (numpy integers included) or a Dim. Raises TypeError otherwise."""
    if isinstance(d, Dim):
        return d
    if isinstance(d, int | SupportsIndex):
        return int(d)
    raise TypeError(f"a dimension is an int or a Dim, got {d!r}")


def product(dims: Iterable[int | Dim]) -> int | Dim:
    """The product of `dims`; 1 for none."""
    out: int | Dim = 1
    for d in dims:
        out = out * d
    return out


def _apply(fn: str, a: int | Dim, b: int | Dim) -> Dim:
    return Dim((((Apply(fn, a, b),), 1),))


def exact_quotient(a: int | Dim, b: int | Dim) -> int | Dim | None:
    """a / b where the division is exact for every value of the symbols, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a == b:
        return 1
    b_terms = list(_terms(b))
    if len(b_terms) > 1:
        return _divide_polynomial(a, b)
    b_mono, b_coef = b_terms[0]
    out: dict[Monomial, int] = {}
    for mono, c in _terms(a):
        rest = list(mono)
        for atom in b_mono:
            if atom not in rest:
                return None
            rest.remove(atom)
        if not b_coef or c % b_coef:
            return None
        out[tuple(rest)] = out.get(tuple(rest), 0) + c // b_coef
    return _from_terms(out)


def _divide_polynomial(a: int | Dim, b: int | Dim) -> int | Dim | None:
    """Exact division by a sum, by matching leading terms: (s0+1)*8 / (s0+1) = 8."""
    quotient: int | Dim = 0
    rest = a
    lead = _leading(b)
    for _ in range(8):
        if rest == 0:
            return quotient
        q = exact_quotient(_leading(rest), lead)
        if q is None:
            return None
        quotient, rest = quotient + q, rest - q * b
    return None


def _leading(d: int | Dim) -> int | Dim:
    """The term of the highest degree, of several the last by its symbols: an order that products keep."""
    return _from_terms(dict([max(_terms(d), key=lambda t: (len(t[0]), tuple(map(str, t[0]))))]))


def floordiv(a: int | Dim, b: int | Dim) -> int | Dim:
    """floor(a / b), for b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    exact = exact_quotient(a, b)
    if exact is not None:
        return exact
    if isinstance(b, int) and isinstance(a, Dim):
        # (8*s + 3) // 4 = 2*s + 0: the terms that b divides leave the floor
        quotients = {m: c // b for m, c in a.terms if m and c % b == 0}
        rest = {m: c for m, c in a.terms if not (m and c % b == 0)}
        const = rest.get((), 0)
        if const // b:
            quotients[()] = const // b
            rest[()] = const % b
        if quotients:
            return _from_terms(quotients) + floordiv(_from_terms(rest), b)
        common = gcd(b, *(c for _, c in a.terms))
        if common > 1:
            return floordiv(_from_terms({m: c // common for m, c in a.terms}), b // common)
        nested, offset = _quotient(a)
        if nested is not None and isinstance(nested.b, int):
            # (s // 2 + 1) // 2 = (s + 2) // 4
            return floordiv(nested.a + offset * nested.b, nested.b * b)
        if b > 0 and all(c < 0 for m, c in a.terms if m):
            # -s // 2 = -((s + 1) // 2)
            return -floordiv(-a + b - 1, b)
    return _apply("floordiv", a, b)


def _quotient(d: Dim) -> tuple[Apply | None, int]:
    """(x // n, c) of a size x // n + c."""
    (mono, coefficient), *rest = d.terms
    atom = mono[0] if len(mono) == 1 and coefficient == 1 else None
    if not isinstance(atom, Apply) or atom.fn != "floordiv" or any(m for m, _ in rest):
        return None, 0
    return atom, sum(c for _, c in rest)


def ceildiv(a: int | Dim, b: int | Dim) -> int | Dim:
    """ceil(a / b), for b > 0."""
    return floordiv(a + b - 1, b)


def mod(a: int | Dim, b: int | Dim) -> int | Dim:
    """a modulo b with a result in [0, b)."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if exact_quotient(a, b) is not None:
        return 0
    if isinstance(b, int) and isinstance(a, Dim):
        reduced = _from_terms({m: c % b for m, c in a.terms})
        if reduced != a:
            return mod(reduced, b)
    return _apply("mod", a, b)


Interval = tuple[int | None, int | None]  # inclusive; None where unbounded


def symbols_of(d: int | Dim) -> frozenset[str]:
    """Names of the symbols in `d`."""
    if isinstance(d, int):
        return frozenset()
    if d._symbols is None:
        out: set[str] = set()
        for mono, _ in d.terms:
            for atom in mono:
                out |= {atom.name} if isinstance(atom, Symbol) else symbols_of(atom.a) | symbols_of(atom.b)
        d._symbols = frozenset(out)
    return d._symbols
