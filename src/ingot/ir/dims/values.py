"""Sizes for symbols: substitution, and estimates where a choice needs a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from ingot.ir.dims.algebra import Atom, Dim, Symbol, floordiv, mod, symbols_of
from ingot.ir.dims.bounds import dim_max, dim_min


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


_LIKELY_SIZES: ContextVar[Mapping[str, int]] = ContextVar("likely sizes", default=MappingProxyType({}))


@contextmanager
def likely_sizes(sizes: Mapping[str, int]) -> Iterator[None]:
    """In the context, `estimate` assumes these sizes of symbols, and of others those that it assumed before."""
    token = _LIKELY_SIZES.set({**_LIKELY_SIZES.get(), **sizes})
    try:
        yield
    finally:
        _LIKELY_SIZES.reset(token)


def estimate(d: int | Dim, guess: int = 64) -> int:
    """A number for `d`, for choices that need one: its value at the likely sizes of its symbols, at least 1."""
    if isinstance(d, int):
        return d
    likely = _LIKELY_SIZES.get()
    try:
        return max(1, int(substitute(d, {s: likely.get(s, guess) for s in symbols_of(d)})))
    except ZeroDivisionError:  # n // (m // 2) at m = 1
        return 1
