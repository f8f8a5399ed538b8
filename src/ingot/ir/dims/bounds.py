"""Interval analysis of sizes: bounds, signs, and the maxima and minima that bounds decide."""

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
    exact_quotient,
    extreme,
    is_computed,
    is_number,
    symbols_of,
)


def default_bounds(name: str, lowest: int = 1) -> Interval:
    """The default bounds of a symbol: a size is at least `lowest`, a computed size at least 0, an integer unbounded."""
    return (None if is_number(name) else min(lowest, 0) if is_computed(name) else lowest, None)


def dim_max(a: int | Dim, b: int | Dim, symbol_bounds: Mapping[str, Interval] | None = None) -> int | Dim:
    """The larger of a and b: one of them where the sign of their difference is known. symbol_bounds: see `bounds`."""
    for d in (a, b):
        if isinstance(d, int) and d >= MAX_SIZE:
            return d
    difference = a - b
    lo, hi = bounds(difference, symbol_bounds)
    if lo is not None and lo >= 0:
        return a
    if hi is not None and hi <= 0:
        return b
    return _symbolic_extreme("max", a, b, symbol_bounds)


def dim_min(a: int | Dim, b: int | Dim, symbol_bounds: Mapping[str, Interval] | None = None) -> int | Dim:
    """The smaller of a and b."""
    return (
        b
        if (m := dim_max(a, b, symbol_bounds)) == a
        else a
        if m == b
        else _symbolic_extreme("min", a, b, symbol_bounds)
    )


_MAX_EXTREME_OPERANDS = 6  # operands of one maximum or minimum that are compared with each other


def _symbolic_extreme(fn: str, a: int | Dim, b: int | Dim, symbol_bounds: Mapping[str, Interval] | None) -> int | Dim:
    """The canonical maximum or minimum of a and b: max(max(n, 3), max(5, m)) is max(5, max(m, n)), without operands
    that another one exceeds, in one order."""
    a_operands, b_operands = _extreme_operands(fn, a), _extreme_operands(fn, b)
    if not 2 < len({*a_operands, *b_operands}) <= _MAX_EXTREME_OPERANDS:
        return extreme(fn, a, b)

    def without(dims: Sequence[int | Dim], others: Sequence[int | Dim]) -> list[int | Dim]:
        return [
            d for d in dims if not any(_is_nonnegative(d - e if fn == "min" else e - d, symbol_bounds) for e in others)
        ]

    # the operands of `a` were compared when it was built, perhaps with narrower bounds
    remaining = without(a_operands, b_operands)
    return extreme(fn, *remaining, *without(b_operands, remaining))


def _extreme_operands(fn: str, d: int | Dim) -> tuple[int | Dim, ...]:
    """The operands of `d` as a maximum (minimum), its other terms added to each; (d,) if it is not one."""
    extremes = [] if isinstance(d, int) else [t for t in d.terms if _is_extreme(t[0])]
    extreme_form = _as_extreme(d, allow_single_term=True) if isinstance(d, Dim) and len(extremes) == 1 else None
    if extreme_form is None or extreme_form[0] != fn:
        return (d,)
    return (*_extreme_operands(fn, extreme_form[1]), *_extreme_operands(fn, extreme_form[2]))


def _is_extreme(mono: Monomial) -> bool:
    return len(mono) == 1 and isinstance(mono[0], Apply) and mono[0].fn in ("max", "min")


def _is_nonnegative(d: int | Dim, symbol_bounds: Mapping[str, Interval] | None) -> bool:
    lowest = bounds(d, symbol_bounds)[0]
    return lowest is not None and lowest >= 0


def sign_bit(d: int | Dim) -> int | Dim:
    """1 where d < 0, else 0."""
    return dim_min(dim_max(-d, 0), 1)


def zero_bit(d: int | Dim) -> int | Dim:
    """1 where d is 0, else 0."""
    return 1 - dim_min(dim_max(d, 0), 1) - sign_bit(d)


def bounds(d: int | Dim, symbol_bounds: Mapping[str, Interval] | None = None) -> Interval:
    """Inclusive (low, high) of `d`, None where unbounded. symbol_bounds: by name; others have the default
    (`default_bounds`)."""
    if isinstance(d, int):
        return d, d
    if symbol_bounds is not None:
        return _bounds(d, symbol_bounds, _MAX_DEPTH, {})
    if d._bounds is None:
        d._bounds = _bounds(d, None, _MAX_DEPTH, {})
    return d._bounds


_MAX_DEPTH = 2  # levels of nested maxima and minima that are split into their operands


def _bounds(
    d: int | Dim, symbol_bounds: Mapping[str, Interval] | None, depth: int, memo: dict[tuple[Dim, int], Interval]
) -> Interval:
    if isinstance(d, int):
        return d, d
    cached = memo.get((d, depth))
    if cached is not None:
        return cached
    lo: int | None = 0
    hi: int | None = 0
    for mono, c in d.terms:
        mlo, mhi = c, c
        for atom in mono:
            mlo, mhi = _interval_mul((mlo, mhi), _atom_bounds(atom, symbol_bounds, depth, memo))
        lo = None if lo is None or mlo is None else lo + mlo
        hi = None if hi is None or mhi is None else hi + mhi
    extreme_form = _as_extreme(d) if depth else None
    if extreme_form is not None:
        fn, a, b = extreme_form
        interval = _extreme_interval(
            fn, _bounds(a, symbol_bounds, depth - 1, memo), _bounds(b, symbol_bounds, depth - 1, memo)
        )
        lo, hi = _intersection((lo, hi), interval)
    scaled_form = _scaled_without_floors(d) if depth else None
    if scaled_form is not None:
        scaled, factor, (min_error, max_error) = scaled_form
        low, high = _bounds(scaled, symbol_bounds, depth, memo)
        low = None if low is None else -((max_error - low) // factor)
        high = None if high is None else (high - min_error) // factor
        lo, hi = _intersection((lo, hi), (low, high))
    memo[d, depth] = lo, hi
    return lo, hi


def _intersection(x: Interval, y: Interval) -> Interval:
    """The intersection of two intervals."""
    lows, highs = ([v for v in pair if v is not None] for pair in zip(x, y, strict=True))
    return max(lows, default=None), min(highs, default=None)


def _scaled_without_floors(d: Dim) -> tuple[int | Dim, int, tuple[int, int]] | None:
    """(e, m, (low, high)) such that low <= e - m * d <= high, and e has no quotients by numbers: their operands cancel
    with other terms.   n // 3 - (n + 2) // 3   ->   -2, 3, (-2, 2)"""
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
    factor = lcm(*(b for _, b, _ in floors))
    e = factor * _from_terms(others)
    low = high = 0
    for a, b, c in floors:
        coefficient = c * (factor // b)
        e = e + coefficient * a
        low, high = low + min(coefficient * (b - 1), 0), high + max(coefficient * (b - 1), 0)
    return e, factor, (low, high)


_MAX_EXTREMES = 4  # maxima and minima of a sum that are split into operands: each doubles the work


def _as_extreme(d: Dim, allow_single_term: bool = False) -> tuple[str, int | Dim, int | Dim] | None:
    """A sum with a maximum or minimum as the maximum or minimum of two sums, in which more terms cancel. A sum of one
    term only with `allow_single_term`.   n - max(0, n - 3)   ->   min(n, 3)"""
    extremes = [t for t in d.terms if _is_extreme(t[0])]
    if not extremes or len(extremes) > _MAX_EXTREMES or (len(d.terms) == 1 and not allow_single_term):
        return None
    (atom,), c = extremes[0]
    assert isinstance(atom, Apply)
    rest = _from_terms({mono: n for mono, n in d.terms if mono != (atom,)})
    return "max" if (atom.fn == "max") == (c > 0) else "min", rest + c * atom.a, rest + c * atom.b


def is_at_most(a: int | Dim, b: int | Dim) -> bool:
    """Whether a <= b for all sizes, 0 included; False also where that is not known."""
    difference = a - b
    highest = bounds(difference, {name: default_bounds(name, 0) for name in symbols_of(difference)})[1]
    return highest is not None and highest <= 0


def is_negative(d: int | Dim) -> bool:
    """Whether d < 0 for all sizes."""
    highest = bounds(d)[1]
    return highest is not None and highest < 0


def may_be_empty(d: int | Dim, name: str) -> bool:
    """Whether the symbol `name` in `d` may be 0."""
    atoms = [atom for mono, _ in d.terms for atom in mono] if isinstance(d, Dim) else []
    return any(
        atom.name == name and atom.may_be_empty
        if isinstance(atom, Symbol)
        else may_be_empty(atom.a, name) or may_be_empty(atom.b, name)
        for atom in atoms
    )


def narrow_bounds(size: int | Dim, symbol_bounds: Mapping[str, Interval]) -> dict[str, Interval] | None:
    """`symbol_bounds` with those of one symbol narrowed to where `size` >= 0; None where no bounds of one symbol say
    just that."""
    limits = dict(symbol_bounds)
    names = sorted(symbols_of(size))
    if not names:
        return limits if isinstance(size, int) and size >= 0 else None
    name = names[0]
    low, high = limits.get(name) or default_bounds(name, 1 - may_be_empty(size, name))

    def holds(low_bound: int | None, high_bound: int | None) -> bool:
        lowest = bounds(size, {**limits, name: (low_bound, high_bound)})[0]
        return lowest is not None and lowest >= 0

    def fails(low_bound: int | None, high_bound: int | None) -> bool:
        highest = bounds(size, {**limits, name: (low_bound, high_bound)})[1]
        return highest is not None and highest < 0

    if holds(low, high):
        return limits
    if len(names) != 1:
        return None
    bottom, top = -MAX_SIZE if low is None else low, MAX_SIZE if high is None else high
    if holds(top, high):
        low_bound = _lowest_true(lambda v: holds(v, high), bottom, top)
        limits[name] = (low_bound, high)
        return limits if fails(low, low_bound - 1) else None
    if holds(low, bottom):
        excess = _lowest_true(lambda v: not holds(low, v), bottom, top)
        limits[name] = (low, excess - 1)
        return limits if fails(excess, high) else None
    return None


def solve_equal(a: int | Dim, b: int | Dim) -> tuple[str, int | Dim] | None:
    """Solve a == b for the only symbol of `a`: (symbol, its value). None where `a` is not linear in it, `b` uses it
    too, or the value is not an integer size."""
    difference = a - b
    names = symbols_of(a)
    if len(names) != 1 or isinstance(difference, int):
        return None
    (name,) = names
    slopes = [(mono, c) for mono, c in difference.terms if name in symbols_of(Dim(((mono, 1),)))]
    mono, slope = slopes[0] if len(slopes) == 1 else ((), 0)
    if len(mono) != 1 or not isinstance(mono[0], Symbol):
        return None
    size = exact_quotient(Dim(((mono, slope),)) - difference, slope)
    return None if size is None or is_negative(size) else (name, size)


MAX_SIZE = 1 << 40  # no size is larger


def clamped_position(position: int | Dim) -> int | Dim:
    """A position relative to an axis, clamped to the range of sizes where it is data (any integer): sizes and positions
    can then be added to it in 64 bits."""
    if isinstance(position, int) or any("." in name for name in symbols_of(position)):
        return dim_max(dim_min(position, MAX_SIZE - 1), 1 - MAX_SIZE)
    return position


MAX_INTEGER = 1 << 62  # the largest magnitude of integers that sizes are computed from


def _lowest_true(predicate: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest value in (low, high] for which `predicate` is true. It is monotonic, and true at `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if predicate(middle) else (middle, high)
    return high


def _interval_mul(x: Interval, y: Interval) -> Interval:
    inf = float("inf")
    xs = (-inf if x[0] is None else x[0], inf if x[1] is None else x[1])
    ys = (-inf if y[0] is None else y[0], inf if y[1] is None else y[1])
    corners = [0 if 0 in (p, q) else p * q for p in xs for q in ys]
    lo, hi = min(corners), max(corners)
    return (None if lo == -inf else int(lo)), (None if hi == inf else int(hi))


def _atom_bounds(
    atom: Atom, symbol_bounds: Mapping[str, Interval] | None, depth: int, memo: dict[tuple[Dim, int], Interval]
) -> Interval:
    if isinstance(atom, Symbol):
        return (symbol_bounds or {}).get(atom.name) or default_bounds(atom.name, 1 - atom.may_be_empty)
    (alo, ahi), (blo, bhi) = (_bounds(side, symbol_bounds, depth, memo) for side in (atom.a, atom.b))
    if atom.fn == "mod":
        return 0, (None if bhi is None else bhi - 1)
    if atom.fn == "floordiv":
        if blo is None or blo <= 0:
            return None, None
        lo = None if alo is None else (alo // blo if alo < 0 else 0 if bhi is None else alo // bhi)
        return lo, (None if ahi is None else ahi // blo if ahi >= 0 else -1)
    return _extreme_interval(atom.fn, (alo, ahi), (blo, bhi))


def _extreme_interval(fn: str, a: Interval, b: Interval) -> Interval:
    """The interval of the maximum or minimum of two values, given theirs."""
    lows, highs = ([v for v in pair if v is not None] for pair in zip(a, b, strict=True))
    if fn == "max":
        return (max(lows) if lows else None), (max(highs) if len(highs) == 2 else None)
    return (min(lows) if len(lows) == 2 else None), (min(highs) if highs else None)
