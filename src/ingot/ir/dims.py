"""Symbolic dimensions: integer expressions over named symbols, kept in one canonical form.

    dim     ::= sum of  coefficient * atom * atom * ...
    atom    ::= symbol | dim // dim | dim % dim | max(dim, dim) | min(dim, dim)

Two expressions that are equal as polynomials over their atoms are equal by `==` and `hash`, so shapes compare by value.
A constant expression is always a plain `int`. A symbol is a size, >= its lower bound (1 unless told). One whose name
starts with `$` may be 0: a value computed in the run gives it (`Graph.sizes`). One with a dot in its name (`shape.0`)
is a number that a caller passes as data, or that the run finds, and any integer unless told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import gcd, lcm
from types import MappingProxyType
from typing import SupportsIndex

from ingot.support.dataclass import dataclass
from ingot.support.errors import LimitError
from ingot.support.limits import most_terms

Monomial = tuple["Atom", ...]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named run-time size. Its bounds belong to the graph that it is used in, not to its identity."""

    name: str

    def __str__(self) -> str:
        return self.name


FOUND = "$"  # the first letter of the names of sizes that only the run finds


def is_found(name: str) -> bool:
    """Whether a value that is computed in the run gives the symbol of that name."""
    return name.startswith(FOUND)


@dataclass(frozen=True, slots=True)
class Apply:
    """A non-polynomial operation on two dims: fn is one of floordiv, mod, max, min."""

    fn: str
    a: int | Dim
    b: int | Dim

    def __str__(self) -> str:
        if self.fn in ("max", "min"):
            return f"{self.fn}({self.a},{self.b})"
        return f"({_side(self.a)}{'//' if self.fn == 'floordiv' else '%'}{_side(self.b)})"


def _side(d: int | Dim) -> str:
    """The text of an operand, in brackets unless it is a number or one atom."""
    if isinstance(d, int):
        return str(d) if d >= 0 else f"({d})"
    (atoms, count), *more = d.terms
    return f"({d})" if more or count != 1 or len(atoms) != 1 else str(d)


Atom = Symbol | Apply


class Dim:
    """An immutable, canonical, non-constant integer expression. Build with `symbol` and arithmetic."""

    __slots__ = ("_bounds", "_hash", "_symbols", "_text", "terms", "weight")
    terms: tuple[tuple[Monomial, int], ...]
    weight: int  # symbols and operators in its text, which is what most questions about it cost

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]):
        self.terms = terms
        self.weight = sum(_weight(atom) for mono, _ in terms for atom in mono)
        if self.weight > most_terms():
            raise _too_heavy(self.weight)
        self._hash = hash(terms)
        # made when first asked for: type rules put sizes into messages that are rarely read
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
        if isinstance(other, Dim) and len(self.terms) * len(other.terms) > _PRODUCTS * most_terms():
            raise _too_heavy(self.weight * other.weight)
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
_PRODUCTS = 16  # of terms for each that a size may have: many cancel out


def _too_heavy(weight: int) -> LimitError:
    return LimitError("terms", most_terms(), "a size is too complicated", got=f"{weight} symbols and operators")


def _weight(atom: Atom) -> int:
    if isinstance(atom, Symbol):
        return 1
    return 1 + sum(side.weight for side in (atom.a, atom.b) if isinstance(side, Dim))


def _terms(d: int | Dim) -> Iterable[tuple[Monomial, int]]:
    return d.terms if isinstance(d, Dim) else (((), d),)


def _merge(*many: Iterable[tuple[Monomial, int]]) -> dict[Monomial, int]:
    out: dict[Monomial, int] = {}
    for terms in many:
        for m, c in terms:
            out[m] = out.get(m, 0) + c
    return out


def _from_terms(terms: dict[Monomial, int]) -> int | Dim:
    kept = {m: c for m, c in terms.items() if c}
    for mono in [m for m, c in kept.items() if c < 0 and len(m) == 1 and isinstance(m[0], Apply)]:
        if (whole := _parted(kept, mono)) is not None:
            return _from_terms(whole)
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    # the constant last, as people write it: 2*s0+1
    return Dim(tuple(sorted(kept.items(), key=lambda t: (t[0] == (), tuple(map(str, t[0]))))))


def _parted(terms: dict[Monomial, int], mono: Monomial) -> dict[Monomial, int] | None:
    """The terms with max(x,0) - max(-x,0), of which the latter is `mono`, told as x; None where they are not there."""
    (atom,), factor = mono, terms[mono]
    if not (isinstance(atom, Apply) and atom.fn == "max"):
        return None
    x = next((d for d, other in ((atom.a, atom.b), (atom.b, atom.a)) if other == 0 and isinstance(d, Dim)), None)
    if x is None:
        return None
    positive: Monomial = (Apply("max", *sorted((-x, 0), key=str)),)
    if terms.get(positive) != -factor:
        return None
    rest = {m: c for m, c in terms.items() if m not in (mono, positive)}
    return _merge(rest.items(), ((m, c * factor) for m, c in x.terms))


def symbol(name: str) -> Dim:
    """A fresh symbolic dimension of that name."""
    return Dim((((Symbol(name),), 1),))


def span_of(name: str, lowest: int = 1) -> Interval:
    """The bounds of a symbol of which nothing is told: a size is at least `lowest`, one that the run finds 0, a number
    anything."""
    return (None if "." in name else min(lowest, 0) if is_found(name) else lowest, None)


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


def divides(a: int | Dim, b: int | Dim) -> int | Dim | None:
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
        q = divides(_leading(rest), lead)
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
    exact = divides(a, b)
    if exact is not None:
        return exact
    if isinstance(b, int) and isinstance(a, Dim):
        # (8*s + 3) // 4 = 2*s + 0: the terms that b divides leave the floor
        whole = {m: c // b for m, c in a.terms if m and c % b == 0}
        rest = {m: c for m, c in a.terms if not (m and c % b == 0)}
        const = rest.get((), 0)
        if const // b:
            whole[()] = const // b
            rest[()] = const % b
        if whole:
            return _from_terms(whole) + floordiv(_from_terms(rest), b)
        common = gcd(b, *(c for _, c in a.terms))
        if common > 1:
            return floordiv(_from_terms({m: c // common for m, c in a.terms}), b // common)
        nested, plus = _quotient(a)
        if nested is not None and isinstance(nested.b, int):
            # (s // 2 + 1) // 2 = (s + 2) // 4
            return floordiv(nested.a + plus * nested.b, nested.b * b)
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
    if divides(a, b) is not None:
        return 0
    if isinstance(b, int) and isinstance(a, Dim):
        reduced = _from_terms({m: c % b for m, c in a.terms})
        if reduced != a:
            return mod(reduced, b)
    return _apply("mod", a, b)


def dim_max(a: int | Dim, b: int | Dim, of: Mapping[str, Interval] | None = None) -> int | Dim:
    """The larger of a and b, settled at compile time where their difference has one sign; `of` as in `bounds`."""
    for d in (a, b):
        if isinstance(d, int) and d >= MOST:
            return d
    difference = a - b
    lo, hi = bounds(difference, of)
    if lo is not None and lo >= 0:
        return a
    if hi is not None and hi <= 0:
        return b
    first, second = sorted((a, b), key=str)
    return _apply("max", first, second)


def dim_min(a: int | Dim, b: int | Dim, of: Mapping[str, Interval] | None = None) -> int | Dim:
    """The smaller of a and b."""
    return b if (m := dim_max(a, b, of)) == a else a if m == b else _apply("min", *sorted((a, b), key=str))


def sign_bit(d: int | Dim) -> int | Dim:
    """1 where d < 0, else 0."""
    return dim_min(dim_max(-d, 0), 1)


def zero_bit(d: int | Dim) -> int | Dim:
    """1 where d is 0, else 0."""
    return 1 - dim_min(dim_max(d, 0), 1) - sign_bit(d)


Interval = tuple[int | None, int | None]  # inclusive; None where unbounded


def bounds(d: int | Dim, of: Mapping[str, Interval] | None = None) -> Interval:
    """Inclusive (lo, hi) of `d`, None where unbounded. `of` gives the symbols' bounds, where they are told."""
    if isinstance(d, int):
        return d, d
    if of is not None:
        return _bounds(d, of, _DEEP, {})
    if d._bounds is None:
        d._bounds = _bounds(d, None, _DEEP, {})
    return d._bounds


_DEEP = 2  # maxima and minima inside each other that are looked at from both sides


def _bounds(
    d: int | Dim, of: Mapping[str, Interval] | None, deep: int, known: dict[tuple[Dim, int], Interval]
) -> Interval:
    if isinstance(d, int):
        return d, d
    found = known.get((d, deep))
    if found is not None:
        return found
    lo: int | None = 0
    hi: int | None = 0
    for mono, c in d.terms:
        mlo, mhi = c, c
        for atom in mono:
            mlo, mhi = _interval_mul((mlo, mhi), _atom_bounds(atom, of, deep, known))
        lo = None if lo is None or mlo is None else lo + mlo
        hi = None if hi is None or mhi is None else hi + mhi
    sides = _sides(d) if deep else None
    if sides is not None:
        fn, a, b = sides
        either = _of_either(fn, _bounds(a, of, deep - 1, known), _bounds(b, of, deep - 1, known))
        lo, hi = _both((lo, hi), either)
    exact = _without_floors(d) if deep else None
    if exact is not None:
        whole, times, (below, above) = exact
        least, most = _bounds(whole, of, deep - 1, known)
        least = None if least is None else -((above - least) // times)
        most = None if most is None else (most - below) // times
        lo, hi = _both((lo, hi), (least, most))
    known[d, deep] = lo, hi
    return lo, hi


def _both(x: Interval, y: Interval) -> Interval:
    """What lies in two intervals."""
    lows, highs = ([v for v in pair if v is not None] for pair in zip(x, y, strict=True))
    return max(lows, default=None), min(highs, default=None)


def _without_floors(d: Dim) -> tuple[int | Dim, int, tuple[int, int]] | None:
    """(e, m, (low, high)) such that m * d is e less a number from low to high, and e has no quotients by numbers, whose
    operands then meet other terms.   n // 3 - (n + 2) // 3   ->   -2, 3, (-2, 2)"""
    floors: list[tuple[int | Dim, int, int]] = []
    others: dict[Monomial, int] = {}
    for mono, c in d.terms:
        atom = mono[0] if len(mono) == 1 else None
        if isinstance(atom, Apply) and atom.fn == "floordiv" and isinstance(atom.b, int) and atom.b > 0:
            floors.append((atom.a, atom.b, c))
        else:
            others[mono] = c
    if not floors or len(d.terms) == 1:
        return None
    times = lcm(*(b for _, b, _ in floors))
    e = times * _from_terms(others)
    low = high = 0
    for a, b, c in floors:
        each = c * (times // b)
        e = e + each * a
        low, high = low + min(each * (b - 1), 0), high + max(each * (b - 1), 0)
    return e, times, (low, high)


_EXTREMES = 4  # of as many, the sides are looked at: each doubles the work


def _sides(d: Dim) -> tuple[str, int | Dim, int | Dim] | None:
    """A sum with a maximum or minimum as that of two sums, in which more terms meet.   n - max(0, n - 3)   ->
    min(n, 3)"""
    found = [t for t in d.terms if len(t[0]) == 1 and isinstance(t[0][0], Apply) and t[0][0].fn in ("max", "min")]
    if not found or len(found) > _EXTREMES or len(d.terms) == 1:
        return None
    (atom,), c = found[0]
    assert isinstance(atom, Apply)
    rest = _from_terms({mono: n for mono, n in d.terms if mono != (atom,)})
    return "max" if (atom.fn == "max") == (c > 0) else "min", rest + c * atom.a, rest + c * atom.b


def at_most(a: int | Dim, b: int | Dim) -> bool:
    """Whether a <= b whatever the sizes, 0 included; False also where that is not known."""
    difference = a - b
    highest = bounds(difference, {name: span_of(name, 0) for name in symbols_of(difference)})[1]
    return highest is not None and highest <= 0


def negative(d: int | Dim) -> bool:
    """Whether d < 0 whatever the sizes."""
    highest = bounds(d)[1]
    return highest is not None and highest < 0


def narrowed(size: int | Dim, of: Mapping[str, Interval]) -> dict[str, Interval] | None:
    """The bounds `of` with one symbol's narrowed until `size` >= 0; None where no bound of one symbol gives that."""
    limits = dict(of)
    names = sorted(symbols_of(size))
    if not names:
        return limits if isinstance(size, int) and size >= 0 else None
    name = names[0]
    low, high = limits.get(name, span_of(name))

    def holds(least: int | None, most: int | None) -> bool:
        lowest = bounds(size, {**limits, name: (least, most)})[0]
        return lowest is not None and lowest >= 0

    if holds(low, high):
        return limits
    if len(names) != 1:
        return None
    bottom, top = -MOST if low is None else low, MOST if high is None else high
    if holds(top, high):
        limits[name] = (_first(lambda v: holds(v, high), bottom, top), high)
    elif holds(low, bottom):
        limits[name] = (low, _first(lambda v: not holds(low, v), bottom, top) - 1)
    else:
        return None
    return limits


def solve_equal(a: int | Dim, b: int | Dim) -> tuple[str, int | Dim] | None:
    """(symbol, what it has to be) for a == b, where `a` holds one symbol, times and plus whole numbers, that `b` does
    not hold, and that is then a whole size."""
    difference = a - b
    names = symbols_of(a)
    if len(names) != 1 or isinstance(difference, int):
        return None
    (name,) = names
    slopes = [(mono, c) for mono, c in difference.terms if name in symbols_of(Dim(((mono, 1),)))]
    if len(slopes) != 1 or slopes[0][0] != (Symbol(name),):
        return None
    slope = slopes[0][1]
    size = divides(symbol(name) * slope - difference, slope)
    return None if size is None or negative(size) else (name, size)


MOST = 1 << 40  # no size is larger
FARTHEST = 1 << 62  # nor any number that sizes follow from farther from 0


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least value in (low, high] for which `holds`, which turns true once and is true at `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _interval_mul(x: Interval, y: Interval) -> Interval:
    inf = float("inf")
    xs = (-inf if x[0] is None else x[0], inf if x[1] is None else x[1])
    ys = (-inf if y[0] is None else y[0], inf if y[1] is None else y[1])
    corners = [0 if 0 in (p, q) else p * q for p in xs for q in ys]
    lo, hi = min(corners), max(corners)
    return (None if lo == -inf else int(lo)), (None if hi == inf else int(hi))


def _atom_bounds(
    atom: Atom, of: Mapping[str, Interval] | None, deep: int, known: dict[tuple[Dim, int], Interval]
) -> Interval:
    if isinstance(atom, Symbol):
        return (of or {}).get(atom.name) or span_of(atom.name)
    (alo, ahi), (blo, bhi) = (_bounds(side, of, deep, known) for side in (atom.a, atom.b))
    if atom.fn == "mod":
        return 0, (None if bhi is None else bhi - 1)
    if atom.fn == "floordiv":
        if blo is None or blo <= 0:
            return None, None
        lo = None if alo is None else (alo // blo if alo < 0 else 0 if bhi is None else alo // bhi)
        return lo, (None if ahi is None else ahi // blo if ahi >= 0 else -1)
    return _of_either(atom.fn, (alo, ahi), (blo, bhi))


def _of_either(fn: str, a: Interval, b: Interval) -> Interval:
    """Where the maximum or minimum of two lies."""
    lows, highs = ([v for v in pair if v is not None] for pair in zip(a, b, strict=True))
    if fn == "max":
        return (max(lows) if lows else None), (max(highs) if len(highs) == 2 else None)
    return (min(lows) if len(lows) == 2 else None), (min(highs) if highs else None)


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


def substitute(d: int | Dim, values: Mapping[str, int | Dim]) -> int | Dim:
    """`d` with symbols replaced; an int when all of them have int values."""
    if isinstance(d, int):
        return d
    out: int | Dim = 0
    for mono, c in d.terms:
        term: int | Dim = c
        for atom in mono:
            term = term * _substitute_atom(atom, values)
        out = out + term
    return out


_FUNCTIONS: dict[str, Callable[[int | Dim, int | Dim], int | Dim]] = {
    "floordiv": floordiv,
    "mod": mod,
    "max": dim_max,
    "min": dim_min,
}


def _substitute_atom(atom: Atom, values: Mapping[str, int | Dim]) -> int | Dim:
    if isinstance(atom, Symbol):
        return values.get(atom.name, Dim((((atom,), 1),)))
    return _FUNCTIONS[atom.fn](substitute(atom.a, values), substitute(atom.b, values))


def postfix(d: int | Dim) -> list[int | str]:
    """`d` as a postfix program for the runtime: ["s0", 2, "*", 1, "+"]; operators + * // % max min."""
    if isinstance(d, int):
        return [d]
    out: list[int | str] = []
    for i, (mono, c) in enumerate(d.terms):
        factors: list[list[int | str]] = [[c]] if c != 1 or not mono else []
        factors += [_postfix_atom(atom) for atom in mono]
        for j, factor in enumerate(factors):
            out += factor if j == 0 else [*factor, "*"]
        if i:
            out.append("+")
    return out


def _postfix_atom(atom: Atom) -> list[int | str]:
    if isinstance(atom, Symbol):
        return [atom.name]
    name = {"floordiv": "//", "mod": "%"}.get(atom.fn, atom.fn)
    return [*postfix(atom.a), *postfix(atom.b), name]


_TOKEN = re.compile(r"\s*(\d+|\$?[A-Za-z_][\w.]*|//|[-+*%(),])")


def parse_dim(text: str) -> int | Dim:
    """The inverse of `str(dim)`. Raises ValueError on malformed text."""
    tokens = _tokens(text)
    if len(tokens) > 2 * most_terms():
        raise ValueError(f"a dimension of {len(tokens)} words is too long")
    try:
        value, rest = _parse_sum(tokens)
    except RecursionError:
        raise ValueError("a dimension is nested too deeply") from None
    if rest:
        raise ValueError(f"unexpected {rest[0]!r} in the dimension {text!r}")
    return value


def _tokens(text: str) -> list[str]:
    out, at = [], 0
    text = text.rstrip()
    while at < len(text):
        m = _TOKEN.match(text, at)
        if m is None:
            raise ValueError(f"unexpected {text[at]!r} in the dimension {text!r}")
        out.append(m.group(1))
        at = m.end()
    return out


def _parse_sum(tokens: list[str]) -> tuple[int | Dim, list[str]]:
    value, tokens = _parse_product(tokens)
    while tokens and tokens[0] in "+-":
        sign = 1 if tokens[0] == "+" else -1
        term, tokens = _parse_product(tokens[1:])
        value = value + term * sign
    return value, tokens


def _parse_product(tokens: list[str]) -> tuple[int | Dim, list[str]]:
    value, tokens = _parse_atom(tokens)
    while tokens and tokens[0] in ("*", "//", "%"):
        op = tokens[0]
        factor, tokens = _parse_atom(tokens[1:])
        value = value * factor if op == "*" else floordiv(value, factor) if op == "//" else mod(value, factor)
    return value, tokens


def _parse_atom(tokens: list[str]) -> tuple[int | Dim, list[str]]:
    if not tokens:
        raise ValueError("a dimension ends too early")
    head, rest = tokens[0], tokens[1:]
    if head == "-":
        value, rest = _parse_atom(rest)
        return value * -1, rest
    if head == "(":
        value, rest = _parse_sum(rest)
        return value, _expect(rest, ")")
    if head in ("max", "min") and rest and rest[0] == "(":
        a, rest = _parse_sum(rest[1:])
        b, rest = _parse_sum(_expect(rest, ","))
        return (dim_max if head == "max" else dim_min)(a, b), _expect(rest, ")")
    if head.isdigit():
        return int(head), rest
    if not head[0].isalpha() and head[0] not in ("_", FOUND):
        raise ValueError(f"unexpected {head!r} in a dimension")
    return symbol(head), rest


def _expect(tokens: list[str], token: str) -> list[str]:
    if not tokens or tokens[0] != token:
        raise ValueError(f"expected {token!r} in a dimension, got {tokens[0] if tokens else 'the end'!r}")
    return tokens[1:]


_SIZES: ContextVar[Mapping[str, int]] = ContextVar("likely sizes", default=MappingProxyType({}))


@contextmanager
def likely_sizes(sizes: Mapping[str, int]) -> Iterator[None]:
    """Within, `estimate` takes symbols to have these sizes."""
    token = _SIZES.set(sizes)
    try:
        yield
    finally:
        _SIZES.reset(token)


def estimate(d: int | Dim, guess: int = 64) -> int:
    """A likely size, for choices that need a number: `d` itself, or its value at its symbols' likely sizes, at least
    1."""
    if isinstance(d, int):
        return d
    likely = _SIZES.get()
    try:
        return max(1, int(substitute(d, {s: likely.get(s, guess) for s in symbols_of(d)})))
    except ZeroDivisionError:  # n // (m // 2) at m = 1
        return 1
