"""Index arithmetic of schedules: i64 kernel expressions in which the vectorized position is a `Ramp`.

A Ramp stays a Ramp through addition and multiplication by scalars, so a load can tell contiguous, broadcast and strided
accesses apart. Division and remainder keep it where the vector cannot straddle a multiple of the divisor.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from ingot.ir import kernel as k
from ingot.ir.dims import Apply, Dim, DimLike
from ingot.ir.kernel import Binary, Expr, Lit, Ramp, Splat, Var, integer
from ingot.ir.types import i64

ZERO = integer(0)


def dim_expr(d: DimLike) -> Expr:
    """A dimension as an expression over the kernel's dim parameters (one i64 variable per symbol)."""
    if isinstance(d, int):
        return integer(d)
    total: Expr = ZERO
    for mono, coefficient in d.terms:
        term: Expr = integer(coefficient)
        for atom in mono:
            term = k.mul(term, _apply_expr(atom) if isinstance(atom, Apply) else k.var(atom.name))
        total = k.add(total, term)
    return total


def _apply_expr(atom: Apply) -> Expr:
    fn = {"floordiv": "div", "mod": "rem", "max": "max", "min": "min"}[atom.fn]
    return k.binary(fn, dim_expr(atom.a), dim_expr(atom.b))


def add(a: Expr, b: Expr) -> Expr:
    match a, b:
        case Ramp(), Ramp():
            return k.ramp(add(a.base, b.base), a.lanes, a.step + b.step)
        case Ramp(), _ if b.lanes == 1:
            return k.ramp(add(a.base, b), a.lanes, a.step)
        case _, Ramp() if a.lanes == 1:
            return k.ramp(add(a, b.base), b.lanes, b.step)
    return k.add(a, b)


def mul(a: Expr, b: Expr) -> Expr:
    match a, b:
        case Ramp(), Lit():
            return k.ramp(mul(a.base, integer(int(b.value))), a.lanes, a.step * int(b.value))
        case Lit(), Ramp():
            return mul(b, a)
    return k.mul(a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return add(a, mul(b, integer(-1)))


def div(a: Expr, d: Expr, multiples: Mapping[str, int]) -> Expr:
    """a // d for a >= 0, d > 0. `multiples` tells what loop variables are multiples of."""
    if isinstance(a, Ramp):
        inside = _block(a, d, multiples)
        if inside:
            return div(a.base, d, multiples)
    return k.binary("div", a, d)


def rem(a: Expr, d: Expr, multiples: Mapping[str, int]) -> Expr:
    """a % d for a >= 0, d > 0."""
    if isinstance(a, Ramp):
        inside = _block(a, d, multiples)
        if inside:
            return k.ramp(rem(a.base, d, multiples), a.lanes, a.step)
    return k.binary("rem", a, d)


def _block(a: Ramp, d: Expr, multiples: Mapping[str, int]) -> bool:
    """Whether all lanes of `a` lie between two neighbouring multiples of d."""
    if not isinstance(d, Lit) or a.step != 1 or int(d.value) % a.lanes:
        return False
    return multiple_of(a.base, multiples) % a.lanes == 0


def multiple_of(e: Expr, multiples: Mapping[str, int]) -> int:
    """A number that `e` is always a multiple of (0 for the literal zero)."""
    match e:
        case Lit():
            return abs(int(e.value))
        case Var():
            return multiples.get(e.name, 1)
        case Binary() if e.fn in ("add", "sub"):
            return gcd(multiple_of(e.a, multiples), multiple_of(e.b, multiples))
        case Binary() if e.fn == "mul":
            return multiple_of(e.a, multiples) * multiple_of(e.b, multiples)
    return 1


def lane_step(e: Expr) -> int | None:
    """The constant difference between neighbouring lanes, None where there is none (a general vector)."""
    match e:
        case Ramp():
            return e.step
        case Splat() | Lit():
            return 0
    return 0 if e.lanes == 1 else None


def first_lane(e: Expr) -> Expr:
    """The scalar in lane 0 of an expression that has a `lane_step`."""
    match e:
        case Ramp():
            return e.base
        case Splat():
            return e.a
        case Lit():
            return Lit(e.dtype, 1, e.value)
    return e


def linear(index: tuple[Expr, ...], strides: tuple[DimLike, ...], offset: DimLike = 0) -> Expr:
    """offset + sum of index * stride. Neighbouring parts of one `split` that lie side by side are joined again."""
    total: Expr = dim_expr(offset)
    at = len(index) - 1
    while at >= 0:
        e, s = index[at], strides[at]
        whole = _part(e)
        at -= 1
        while whole is not None and at >= 0 and isinstance(s, int):
            flat, inner, size = whole
            before = _part(index[at])
            if before is None or before[0] is not flat or size is None or before[1] != inner * size:
                break
            if strides[at] != s * size:
                break
            e = _joined(flat, inner, None if before[2] is None else size * before[2])
            whole = _part(e) or (flat, inner, None)
            at -= 1
            if whole[2] is None:
                break
        if s != 0:
            total = add(total, mul(e, dim_expr(s)))
    return total


def split(flat: Expr, extents: tuple[int | Dim, ...]) -> tuple[Expr, ...]:
    """Row-major coordinates of a scalar `flat` in a box of static extents (the first does not matter), in a form that
    `linear` can join again."""
    out: list[Expr] = []
    inner = 1
    for d in reversed(extents[1:]):
        out.append(_joined(flat, inner, int(d)))
        inner *= int(d)
    return (_joined(flat, inner, None), *reversed(out))


def _joined(flat: Expr, inner: int, size: int | None) -> Expr:
    """(flat // inner) % size."""
    e = k.binary("div", flat, integer(inner))
    return e if size is None else k.binary("rem", e, integer(size))


def _part(e: Expr) -> tuple[Expr, int, int | None] | None:
    """(flat, inner, size) of an expression made by `_joined`; size None: the outermost part."""
    size: int | None = None
    if isinstance(e, Binary) and e.fn == "rem" and isinstance(e.b, Lit):
        size, e = int(e.b.value), e.a
    if isinstance(e, Binary) and e.fn == "div" and isinstance(e.b, Lit):
        return e.a, int(e.b.value), size
    return (e, 1, size) if size is not None else None


def delinearize(flat: Expr, extents: tuple[DimLike, ...], multiples: Mapping[str, int]) -> tuple[Expr, ...]:
    """The row-major coordinates of `flat` in a box of `extents`."""
    out: list[Expr] = []
    for d in reversed(extents[1:]):
        if d == 1:
            out.append(ZERO)
            continue
        e = dim_expr(d)
        out.append(rem(flat, e, multiples))
        flat = div(flat, e, multiples)
    return (flat, *reversed(out)) if extents else ()


def is_symbolic(d: DimLike) -> bool:
    return isinstance(d, Dim)


__all__ = [
    "ZERO", "add", "delinearize", "dim_expr", "div", "first_lane", "i64", "integer", "is_symbolic", "lane_step",
    "linear", "mul", "multiple_of", "rem", "split", "sub",
]  # fmt: skip
