"""What is known of a size whatever its symbols are: intervals, signs, and maxima that they settle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import lcm

from ingot.ir.dims.algebra import (
    Apply,
    Atom,
    Dim,
    Interval,
    Monomial,
    Symbol,
    _from_terms,
    divides,
    extreme,
    is_found,
    symbols_of,
)


def span_of(name: str, lowest: int = 1) -> Interval:
    """The bounds of a symbol of which nothing is told: a size is at least `lowest`, one that the run finds 0, a number
    anything."""
    return (None if "." in name else min(lowest, 0) if is_found(name) else lowest, None)


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
    return _unsettled("max", a, b, of)


def dim_min(a: int | Dim, b: int | Dim, of: Mapping[str, Interval] | None = None) -> int | Dim:
    """The smaller of a and b."""
    return b if (m := dim_max(a, b, of)) == a else a if m == b else _unsettled("min", a, b, of)


_MANY = 6  # sizes that one maximum or minimum is taken of and that are compared with each other


def _unsettled(fn: str, a: int | Dim, b: int | Dim, of: Mapping[str, Interval] | None) -> int | Dim:
    """max(max(n, 3), max(5, m)) as max(5, max(m, n)): of all that is chosen among what may be chosen, in one order."""
    first, second = _among(fn, a), _among(fn, b)
    if not 2 < len({*first, *second}) <= _MANY:
        return extreme(fn, a, b)

    def without(some: Sequence[int | Dim], others: Sequence[int | Dim]) -> list[int | Dim]:
        return [d for d in some if not any(_never_negative(d - e if fn == "min" else e - d, of) for e in others)]

    # those of one side were compared when that was made, maybe for more sizes than here
    kept = without(first, second)
    return extreme(fn, *kept, *without(second, kept))


def _among(fn: str, d: int | Dim) -> tuple[int | Dim, ...]:
    """The sizes that a maximum (minimum) with other terms beside it is taken of; of any other size that itself."""
    found = [] if isinstance(d, int) else [t for t in d.terms if _is_extreme(t[0])]
    sides = _sides(d, alone=True) if isinstance(d, Dim) and len(found) == 1 else None
    if sides is None or sides[0] != fn:
        return (d,)
    return (*_among(fn, sides[1]), *_among(fn, sides[2]))


def _is_extreme(mono: Monomial) -> bool:
    return len(mono) == 1 and isinstance(mono[0], Apply) and mono[0].fn in ("max", "min")


def _never_negative(d: int | Dim, of: Mapping[str, Interval] | None) -> bool:
    lowest = bounds(d, of)[0]
    return lowest is not None and lowest >= 0


def sign_bit(d: int | Dim) -> int | Dim:
    """1 where d < 0, else 0."""
    return dim_min(dim_max(-d, 0), 1)


def zero_bit(d: int | Dim) -> int | Dim:
    """1 where d is 0, else 0."""
    return 1 - dim_min(dim_max(d, 0), 1) - sign_bit(d)


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
        least, most = _bounds(whole, of, deep, known)
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


def _sides(d: Dim, alone: bool = False) -> tuple[str, int | Dim, int | Dim] | None:
    """A sum with a maximum or minimum as that of two sums, in which more terms meet; one without other terms only where
    `alone`.   n - max(0, n - 3)   ->   min(n, 3)"""
    found = [t for t in d.terms if _is_extreme(t[0])]
    if not found or len(found) > _EXTREMES or (len(d.terms) == 1 and not alone):
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


def _may_be_empty(d: int | Dim, name: str) -> bool:
    """Whether the symbol of that name in `d` is one that may be 0."""
    atoms = [atom for mono, _ in d.terms for atom in mono] if isinstance(d, Dim) else []
    return any(
        atom.name == name and atom.may_be_empty
        if isinstance(atom, Symbol)
        else _may_be_empty(atom.a, name) or _may_be_empty(atom.b, name)
        for atom in atoms
    )


def narrowed(size: int | Dim, of: Mapping[str, Interval]) -> dict[str, Interval] | None:
    """The bounds `of` with one symbol's narrowed to where `size` >= 0; None where no bound of one symbol says just
    that."""
    limits = dict(of)
    names = sorted(symbols_of(size))
    if not names:
        return limits if isinstance(size, int) and size >= 0 else None
    name = names[0]
    low, high = limits.get(name) or span_of(name, 1 - _may_be_empty(size, name))

    def holds(least: int | None, most: int | None) -> bool:
        lowest = bounds(size, {**limits, name: (least, most)})[0]
        return lowest is not None and lowest >= 0

    def fails(least: int | None, most: int | None) -> bool:
        highest = bounds(size, {**limits, name: (least, most)})[1]
        return highest is not None and highest < 0

    if holds(low, high):
        return limits
    if len(names) != 1:
        return None
    bottom, top = -MOST if low is None else low, MOST if high is None else high
    if holds(top, high):
        least = _first(lambda v: holds(v, high), bottom, top)
        limits[name] = (least, high)
        return limits if fails(low, least - 1) else None
    if holds(low, bottom):
        excess = _first(lambda v: not holds(low, v), bottom, top)
        limits[name] = (low, excess - 1)
        return limits if fails(excess, high) else None
    return None


def solve_equal(a: int | Dim, b: int | Dim) -> tuple[str, int | Dim] | None:
    """(symbol, what it has to be) for a == b, where `a` holds one symbol, times and plus whole numbers, that `b` does
    not hold, and that is then a whole size."""
    difference = a - b
    names = symbols_of(a)
    if len(names) != 1 or isinstance(difference, int):
        return None
    (name,) = names
    slopes = [(mono, c) for mono, c in difference.terms if name in symbols_of(Dim(((mono, 1),)))]
    mono, slope = slopes[0] if len(slopes) == 1 else ((), 0)
    if len(mono) != 1 or not isinstance(mono[0], Symbol):
        return None
    size = divides(Dim(((mono, slope),)) - difference, slope)
    return None if size is None or negative(size) else (name, size)


MOST = 1 << 40  # no size is larger


def on_axis(at: int | Dim) -> int | Dim:
    """A place relative to an axis, which may be any number, as near as it can be told from others: sizes and places may
    then be added to it in 64 bits."""
    if isinstance(at, int) or any("." in name for name in symbols_of(at)):
        return dim_max(dim_min(at, MOST - 1), 1 - MOST)
    return at


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
        return (of or {}).get(atom.name) or span_of(atom.name, 1 - atom.may_be_empty)
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
