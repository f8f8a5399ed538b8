"""Index arithmetic of schedules: i64 kernel expressions in which the vectorized position is a `Ramp`.

A Ramp stays a Ramp through addition and multiplication by scalars, so a load can distinguish contiguous, broadcast and
strided accesses. Division and remainder preserve it if the vector cannot straddle a multiple of the divisor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd

from ingot.ir import kernel as k
from ingot.ir.dims import Apply, DimLike, Symbol, bounds, dim_max, dim_min, floordiv, mod, symbol, symbols_of
from ingot.ir.kernel import Binary, Expr, Lit, Ramp, Splat, Var, integer
from ingot.ir.types import i64
from ingot.support.dataclass import dataclass

Index = tuple[Expr, ...]  # one expression per dimension

ZERO = integer(0)
LOCAL = "%"  # the prefix of variables inside a kernel, which no symbol has


Arithmetic = Callable[[Expr, Expr], Expr]


def dim_expr(d: DimLike, add: Arithmetic = k.add, mul: Arithmetic = k.mul) -> Expr:
    """A dimension as an expression over the kernel's dim parameters (one i64 variable per symbol).

    add, mul: what sums and products are made by.
    """
    if isinstance(d, int):
        return integer(d)
    total: Expr = ZERO
    for mono, coefficient in d.terms:
        term: Expr = integer(coefficient)
        for atom in mono:
            term = mul(term, _apply_expr(atom, add, mul) if isinstance(atom, Apply) else _dim_parameter(atom))
        total = add(total, term)
    return total


def _dim_parameter(s: Symbol) -> Var:
    return Var(i64, 1, s.name, may_be_empty=s.may_be_empty)


def _apply_expr(atom: Apply, add: Arithmetic, mul: Arithmetic) -> Expr:
    a, b = dim_expr(atom.a, add, mul), dim_expr(atom.b, add, mul)
    if atom.fn in ("max", "min"):
        return k.binary(atom.fn, a, b)
    if (bounds(atom.b)[0] or 0) < 1:
        b = k.binary("max", b, integer(1))  # the quotient is not used then, but division by zero traps
    minimum, _ = bounds(atom.a, dict.fromkeys(symbols_of(atom.a), (0, None)))
    if minimum is not None and minimum >= 0:
        return k.binary("div" if atom.fn == "floordiv" else "rem", a, b)
    # round toward negative infinity: the machine rounds quotients toward zero
    remainder = k.binary("rem", k.add(k.binary("rem", a, b), b), b)
    return remainder if atom.fn == "mod" else k.binary("div", k.sub(a, remainder), b)


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


def mask_and(a: Expr | None, b: Expr) -> Expr:
    """The conjunction of two masks; None is a mask that is on everywhere."""
    return b if a is None else k.binary("and", a, b)


def div(a: Expr, d: Expr, multiples: Mapping[str, int]) -> Expr:
    """a // d for a >= 0, d > 0. multiples: for each loop variable, a number that divides it."""
    if isinstance(a, Ramp):
        in_block = _in_one_block(a, d, multiples)
        if in_block:
            return div(a.base, d, multiples)
    return k.binary("div", a, d)


def rem(a: Expr, d: Expr, multiples: Mapping[str, int]) -> Expr:
    """a % d for a >= 0, d > 0."""
    if isinstance(a, Ramp):
        in_block = _in_one_block(a, d, multiples)
        if in_block:
            return k.ramp(rem(a.base, d, multiples), a.lanes, a.step)
    return k.binary("rem", a, d)


def _in_one_block(a: Ramp, d: Expr, multiples: Mapping[str, int]) -> bool:
    """Whether all lanes of `a` lie between two adjacent multiples of d."""
    if not isinstance(d, Lit) or a.step != 1 or int(d.value) % a.lanes:
        return False
    return multiple_of(a.base, multiples) % a.lanes == 0


def multiple_of(e: Expr, multiples: Mapping[str, int]) -> int:
    """A number that always divides `e` (0 for the literal zero)."""
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
    """The constant difference between adjacent lanes; None for a general vector."""
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
    """offset + sum of index * stride. Adjacent parts of one `split` whose strides are contiguous are joined again."""
    total: Expr = dim_expr(offset)
    at = len(index) - 1
    while at >= 0:
        e, s = index[at], strides[at]
        part = _part(e)
        at -= 1
        while part is not None and part.size is not None and at >= 0:
            outer = _part(index[at])
            if outer is None or outer.flat is not part.flat or outer.inner != part.inner * part.size:
                break
            if strides[at] != s * part.size:
                break
            part = _Part(part.flat, part.inner, None if outer.size is None else part.size * outer.size)
            e = part.expr
            at -= 1
        if s != 0:
            total = add(total, mul(e, dim_expr(s)))
    return total


@dataclass(frozen=True)
class _Part:
    """(flat // inner) % size, one coordinate of a split index; size None: the outermost."""

    flat: Expr
    inner: DimLike
    size: DimLike | None

    @property
    def expr(self) -> Expr:
        e = k.binary("div", self.flat, dim_expr(self.inner))
        return e if self.size is None else k.binary("rem", e, dim_expr(self.size))


def split(flat: Expr, extents: tuple[DimLike, ...]) -> tuple[Expr, ...]:
    """The row-major coordinates of a scalar `flat` in a box, whose first extent does not matter, in a form that
    `linear` can join again."""
    out: list[Expr] = []
    inner: DimLike = 1
    for d in reversed(extents[1:]):
        out.append(_Part(flat, inner, d).expr)
        inner = inner * d
    return (_Part(flat, inner, None).expr, *reversed(out))


def _part(e: Expr) -> _Part | None:
    """The part that an expression built by `split` denotes; None for other expressions."""
    size: DimLike | None = None
    if isinstance(e, Binary) and e.fn == "rem":
        size = dim_of(e.b)
        if size is None:
            return None
        e = e.a
    if isinstance(e, Binary) and e.fn == "div":
        inner = dim_of(e.b)
        return None if inner is None else _Part(e.a, inner, size)
    return None if size is None else _Part(e, 1, size)


Operation = tuple[str, DimLike, DimLike]  # name, left and right operand


def dim_of(
    e: Expr, dims: Mapping[str, DimLike] | None = None, results: dict[Operation, DimLike] | None = None
) -> DimLike | None:
    """The dimension that an expression of `dim_expr` denotes; None if it uses other variables.

    dims: values of the variables; by default, variables that are not local are symbols. results: of operations, for
    callers with many like expressions.
    """
    match e:
        case Lit():
            return int(e.value)
        case Var() if dims is not None:
            return dims.get(e.name)
        case Var():
            return None if e.name.startswith(LOCAL) else symbol(e.name, e.may_be_empty)
        case Binary() if e.fn in _ARITHMETIC:
            a, b = dim_of(e.a, dims, results), dim_of(e.b, dims, results)
            if a is None or b is None:
                return None
            operation = e.fn, a, b
            result = results.get(operation) if results is not None else None
            if result is None:
                result = _ARITHMETIC[e.fn](a, b)
                if results is not None:
                    results[operation] = result
            return result
    return None


_ARITHMETIC: dict[str, Callable[[DimLike, DimLike], DimLike]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": floordiv,
    "rem": mod,
    "max": dim_max,
    "min": dim_min,
}


def delinearize(flat: Expr, extents: tuple[DimLike, ...], multiples: Mapping[str, int]) -> tuple[Expr, ...]:
    """The row-major coordinates of `flat` in a box of `extents`."""
    out: list[Expr] = []
    for d in reversed(extents[1:]):
        if d in (0, 1):  # no element of an empty box is read, but dividing by 0 would trap
            out.append(ZERO)
            continue
        e = dim_expr(d)
        out.append(rem(flat, e, multiples))
        flat = div(flat, e, multiples)
    return (flat, *reversed(out)) if extents else ()


__all__ = [
    "ZERO",
    "Index",
    "add",
    "delinearize",
    "dim_expr",
    "div",
    "first_lane",
    "i64",
    "integer",
    "lane_step",
    "linear",
    "mask_and",
    "mul",
    "multiple_of",
    "rem",
    "split",
    "sub",
]  # fmt: skip
