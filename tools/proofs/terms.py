"""Kernel expressions and elements of graphs as terms of z3: what the proofs of rules compare.

    Terms({x: z3.FP("x", z3.Float32())}).element(multiply(x, 1.0), ())   ->   fpMul(RNE, x, 1.0)

Floats are SMT-LIB's IEEE 754 (one NaN, all roundings to nearest even), integers bit vectors that wrap, sizes and
indices of elements unbounded integers. Maximum and minimum are IEEE 754-2019's (-0 < +0). A `Theory` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import z3

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import Dim, DimLike, exact_quotient, is_at_most, substitute, symbol
from ingot.ir.dims.algebra import Apply, Symbol
from ingot.ir.layout import AxisMap
from ingot.ir.node import Const, Node, splat_of
from ingot.ir.types import DType, Shape, TensorType, truncation_type
from ingot.ops.core.elementwise import Elementwise
from ingot.ops.core.shape import View

Term = z3.ExprRef
Index = tuple[DimLike, ...]
RNE = z3.RNE()
_SORTS = {"f16": (5, 11), "bf16": (8, 8), "f32": (8, 24), "f64": (11, 53), "f8e5m2": (5, 3)}


class UnsupportedError(Exception):
    """An expression without a meaning in z3: a transcendental function, an op that no rule here needs."""


@dataclass(frozen=True)
class Theory:
    """How values are modelled. unbounded: integers do not wrap. widened: narrow floats are any floats of f32, and
    rounding to them is any function: what holds of these holds of narrow floats, too."""

    unbounded: bool = False
    widened: bool = False


IEEE = Theory()


def sort(dtype: DType, theory: Theory = IEEE) -> z3.SortRef:
    """The values of `dtype`."""
    if dtype.kind == "b":
        return z3.BoolSort()
    if dtype.is_integer:
        return z3.IntSort() if theory.unbounded else z3.BitVecSort(dtype.bits)
    if theory.widened and dtype.bits < 32:
        return z3.Float32()
    if dtype.name not in _SORTS:
        raise UnsupportedError(f"{dtype} in z3")
    return z3.FPSort(*_SORTS[dtype.name])


def literal(value: object, dtype: DType, theory: Theory = IEEE) -> Term:
    kind = sort(dtype, theory)
    number = np.asarray(value).item()
    if dtype.kind == "b":
        return z3.BoolVal(bool(number))
    if dtype.is_integer:
        return z3.IntVal(int(number)) if theory.unbounded else z3.BitVecVal(int(number), kind)
    if number == 0:
        return z3.fpMinusZero(kind) if np.signbit(number) else z3.fpPlusZero(kind)
    if np.isnan(number):
        return z3.fpNaN(kind)
    if np.isinf(number):
        return z3.fpPlusInfinity(kind) if number > 0 else z3.fpMinusInfinity(kind)
    return z3.fpToFP(RNE, z3.FPVal(float(number), z3.Float64()), kind)


def differs(a: Term, b: Term) -> z3.BoolRef:
    """Whether two values are told apart: all NaN are one value, zeros are two."""
    return z3.Not(a == b)


def extreme(x: Term, y: Term, *, largest: bool) -> Term:
    """IEEE 754-2019's maximum or minimum, which StableHLO takes over."""
    x_wins = z3.fpGT(x, y) if largest else z3.fpLT(x, y)
    tie = z3.And(z3.fpIsZero(x), z3.fpIsZero(y))
    x_on_tie = z3.fpIsPositive(x) if largest else z3.fpIsNegative(x)
    chosen = z3.If(z3.Or(x_wins, z3.And(tie, x_on_tie)), x, y)
    return z3.If(z3.Or(z3.fpIsNaN(x), z3.fpIsNaN(y)), z3.fpNaN(x.sort()), chosen)


# --- scalars

_FLOAT: dict[str, Callable[..., Term]] = {
    "neg": z3.fpNeg,
    "abs": z3.fpAbs,
    "sqrt": lambda x: z3.fpSqrt(RNE, x),
    "floor": lambda x: z3.fpRoundToIntegral(z3.RTN(), x),
    "ceil": lambda x: z3.fpRoundToIntegral(z3.RTP(), x),
    "trunc": lambda x: z3.fpRoundToIntegral(z3.RTZ(), x),
    "round_even": lambda x: z3.fpRoundToIntegral(RNE, x),
    "add": lambda x, y: z3.fpAdd(RNE, x, y),
    "sub": lambda x, y: z3.fpSub(RNE, x, y),
    "mul": lambda x, y: z3.fpMul(RNE, x, y),
    "div": lambda x, y: z3.fpDiv(RNE, x, y),
    "max": lambda x, y: extreme(x, y, largest=True),
    "min": lambda x, y: extreme(x, y, largest=False),
    "copysign": lambda x, y: z3.If(z3.fpIsNegative(x) == z3.fpIsNegative(y), x, z3.fpNeg(x)),
    "eq": z3.fpEQ,
    "ne": lambda x, y: z3.Not(z3.fpEQ(x, y)),
    "lt": z3.fpLT,
    "le": z3.fpLEQ,
    "gt": z3.fpGT,
    "ge": z3.fpGEQ,
}
_BOOL: dict[str, Callable[..., Term]] = {
    "not": z3.Not,
    "and": z3.And,
    "or": z3.Or,
    "xor": z3.Xor,
    "eq": lambda x, y: x == y,
    "ne": z3.Xor,
}
_SIGNED: dict[str, Callable[..., Term]] = {
    "neg": lambda x: -x,
    "abs": lambda x: z3.If(x < 0, -x, x),
    "not": lambda x: ~x,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "rem": z3.SRem,
    "max": lambda x, y: z3.If(x > y, x, y),
    "min": lambda x, y: z3.If(x < y, x, y),
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shl": lambda x, y: x << y,
    "ashr": lambda x, y: x >> y,
    "lshr": z3.LShR,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
_UNSIGNED: dict[str, Callable[..., Term]] = {
    **_SIGNED,
    "div": z3.UDiv,
    "rem": z3.URem,
    "max": lambda x, y: z3.If(z3.UGT(x, y), x, y),
    "min": lambda x, y: z3.If(z3.ULT(x, y), x, y),
    "lt": z3.ULT,
    "le": z3.ULE,
    "gt": z3.UGT,
    "ge": z3.UGE,
}
_BY_KIND = {"f": _FLOAT, "b": _BOOL, "i": _SIGNED, "u": _UNSIGNED}
_NO_UNBOUNDED = ("div", "rem", "and", "or", "xor", "shl", "ashr", "lshr", "not")


def scalar(e: k.Expr, values: Mapping[str, Term], theory: Theory = IEEE) -> Term:
    """A scalar kernel expression; its variables have `values`."""

    def of(part: k.Expr) -> Term:
        return scalar(part, values, theory)

    match e:
        case k.Lit():
            return literal(e.value, e.dtype, theory)
        case k.Var():
            return values[e.name]
        case k.Unary() | k.Binary():
            parts = (e.a,) if isinstance(e, k.Unary) else (e.a, e.b)
            rule = _BY_KIND[e.a.dtype.kind].get(e.fn)
            if rule is None or (theory.unbounded and e.a.dtype.is_integer and e.fn in _NO_UNBOUNDED):
                raise UnsupportedError(f"{e.fn} of {e.a.dtype} in z3")
            return rule(*map(of, parts))
        case k.Select():
            return z3.If(of(e.cond), of(e.a), of(e.b))
        case k.Cast() if theory.widened and e.dtype.bits < e.a.dtype.bits and _is_closed(e.a):
            return of(e.a)
        case k.Cast():
            return convert(of(e.a), e.a.dtype, e.dtype, theory)
        case k.Bitcast():
            return _reinterpret(of(e.a), e.a.dtype, e.dtype)
        case k.Call():
            raise UnsupportedError(f"{e.fn}, a function of the reals, in z3")
    raise UnsupportedError(f"{type(e).__name__} in z3")


_CLOSED = ("neg", "abs", "floor", "ceil", "trunc", "round_even", "max", "min", "copysign")


def _is_closed(e: k.Expr) -> bool:
    """Whether a value of f32 is one of a narrower type, which its operands come from."""
    match e:
        case k.Cast():
            return e.a.dtype.is_float
        case k.Unary():
            return e.fn in _CLOSED and _is_closed(e.a)
        case k.Binary():
            return e.fn in _CLOSED and _is_closed(e.a) and _is_closed(e.b)
        case k.Select():
            return _is_closed(e.a) and _is_closed(e.b)
    return False


def convert(x: Term, old: DType, new: DType, theory: Theory = IEEE) -> Term:
    """As `kernel.Cast` converts."""
    if old == new:
        return x
    kind = sort(new, theory)
    if theory.widened and old.is_float and new.is_float and max(old.bits, new.bits) == 32:
        # exact one way, any function the other
        return x if old.bits < 32 else z3.Function(f"round_{new}", kind, kind)(x)
    if theory.unbounded and old.is_integer and new.is_integer:
        return x
    if old.kind == "b":
        return z3.If(x, literal(1, new, theory), literal(0, new, theory))
    if new.kind == "b":
        zero = literal(0, old, theory)
        return z3.Not(z3.fpEQ(x, zero)) if old.is_float else x != zero
    if theory.unbounded and (old.is_integer or new.is_integer):
        raise UnsupportedError("unbounded integers as floats")
    if new.is_float:
        if old.is_float:
            return z3.fpToFP(RNE, x, kind)
        return z3.fpSignedToFP(RNE, x, kind) if old.kind == "i" else z3.fpUnsignedToFP(RNE, x, kind)
    if old.is_float:
        return _truncate(x, new)
    if new.bits <= old.bits:
        return z3.Extract(new.bits - 1, 0, x)
    extend = z3.SignExt if old.kind == "i" else z3.ZeroExt
    return extend(new.bits - old.bits, x)


def _truncate(x: Term, new: DType) -> Term:
    """Float to integer, as x86: numbers out of range give the lowest integer of the instruction's own type."""
    word = truncation_type(new)
    if x.sort().sbits() < 24:
        x = z3.fpToFP(RNE, x, z3.Float32())
    half = z3.FPVal(2.0 ** (word.bits - 1), x.sort())
    low = z3.fpToSBV(z3.RTZ(), x, z3.BitVecSort(word.bits))
    lowest = z3.BitVecVal(word.range[0], word.bits)
    if new.kind == "u" and new.bits == word.bits:
        top = z3.fpToUBV(z3.RTZ(), x, z3.BitVecSort(word.bits))
        above = z3.If(z3.fpLT(x, z3.FPVal(2.0**word.bits, x.sort())), top, z3.BitVecVal(0, word.bits))
        inside = z3.fpLT(x, half)
        signed = z3.If(z3.And(inside, z3.fpGEQ(x, z3.fpNeg(half))), low, lowest)
        return z3.If(z3.fpGEQ(x, half), above, signed)
    whole = z3.If(z3.And(z3.fpLT(x, half), z3.fpGEQ(x, z3.fpNeg(half))), low, lowest)
    return whole if new.bits == word.bits else z3.Extract(new.bits - 1, 0, whole)


def _reinterpret(x: Term, old: DType, new: DType) -> Term:
    bits = z3.fpToIEEEBV(x) if old.is_float else x
    return z3.fpToFP(bits, sort(new)) if new.is_float else bits


# --- sizes and indices


def integer(d: DimLike) -> z3.ArithRef:
    """A size or an index as a term."""
    if isinstance(d, int):
        return z3.IntVal(d)
    return z3.Sum([z3.Product([z3.IntVal(c), *map(_atom, atoms)]) for atoms, c in d.terms])


def _atom(a: Symbol | Apply) -> z3.ArithRef:
    if isinstance(a, Symbol):
        return z3.Int(str(a))
    x, y = integer(a.a), integer(a.b)
    match a.fn:
        case "max":
            return z3.If(x > y, x, y)
        case "min":
            return z3.If(x < y, x, y)
        case "floordiv":
            return x / y
        case "mod":
            return x % y
    raise UnsupportedError(f"{a.fn} of sizes")


# --- elements of graphs


@dataclass
class Terms:
    """Elements as terms. values: of nodes that are given; inputs are functions of their index. extents: the sizes of
    coordinates, which count from 0. facts: what holds of the terms' own variables."""

    values: Mapping[Node, Term] = field(default_factory=dict)
    extents: dict[Dim, DimLike] = field(default_factory=dict)
    theory: Theory = IEEE
    facts: list[z3.BoolRef] = field(default_factory=list)

    def element(self, n: Node, index: Index) -> Term:
        """The element of `n` at `index`."""
        if n in self.values:
            return self.values[n]
        op = n.op
        match op:
            case ops.Iota():
                return self._counted(index[op.dimension], n.dtype)
            case ops.DimValue():
                return self._counted(op.dim, n.dtype)
            case Const():
                return self._constant(op, n.type, index)
            case Elementwise():
                named = {f"v{i}": x for i, x in enumerate(n.inputs)}
                # as lowering does, which has shorter forms for some literals
                operands = (
                    k.var(name, x.dtype)
                    if (value := splat_of(x)) is None or x in self.values
                    else k.lit(value.item(), x.dtype)
                    for name, x in named.items()
                )
                elements = {name: self.element(x, index) for name, x in named.items()}
                return scalar(op.scalar(*operands), elements, self.theory)
            case View():
                return self._view(op, n, index)
            case ops.Concat():
                return self._concat(n, op.dimension, index)
            case ops.DynamicSlice():
                return self._window(n, op, index)
            case ops.Gather():
                return self._gather(n, op, index)
        if op.computes:
            raise UnsupportedError(f"{op.name} in z3")
        function = z3.Function(f"{op.name}{n.id}", *[z3.IntSort()] * len(index), sort(n.dtype, self.theory))
        return function(*map(integer, index)) if index else function()

    def _counted(self, d: DimLike, dtype: DType) -> Term:
        if self.theory.unbounded and dtype.is_integer:
            return integer(d)
        if isinstance(d, int):
            return literal(d, dtype)
        raise UnsupportedError(f"a position as {dtype} that may wrap")

    def _constant(self, op: Const, kind: TensorType, index: Index) -> Term:
        value = np.asarray(op.value)
        if value.size and (value == value.reshape(-1)[0]).all():
            return literal(value.reshape(-1)[0], kind.dtype, self.theory)
        elements = np.ndenumerate(value)
        _, found = next(elements)
        term = literal(found, kind.dtype, self.theory)
        for at, v in elements:
            here = z3.And(*[integer(i) == p for i, p in zip(index, at, strict=True)])
            term = z3.If(here, literal(v, kind.dtype, self.theory), term)
        return term

    def _view(self, op: View, n: Node, index: Index) -> Term:
        x = n.inputs[0]
        source: list[DimLike] = [0] * x.type.rank
        inside: list[z3.BoolRef] = []
        for place in op.index_map(x.shape, n.shape):
            position = place.offset
            for axis, step in place.terms:
                position = position + step * index[axis]
            if place.is_padded:
                position, conditions = _spaced(place, position, x.shape)
                inside += conditions
            for axis, i in zip(place.axes, self.split(position, [x.shape[a] for a in place.axes]), strict=True):
                source[axis] = i
        element = self.element(x, tuple(source))
        return z3.If(z3.And(*inside), element, self.element(n.inputs[1], ())) if inside else element

    def split(self, position: DimLike, sizes: Sequence[DimLike]) -> list[DimLike]:
        """Row-major indices of the element at `position` of axes of these sizes.

        By the theorem of mixed radices: position = q * size + r with 0 <= r < size has one solution, found by
        dividing the coefficients of coordinates.
        """
        out: list[DimLike] = []
        for size in reversed(sizes[1:]):
            quotient, rest = self._divided(position, size)
            out.insert(0, rest)
            position = quotient
        return [position, *out] if sizes else []

    def _divided(self, position: DimLike, size: DimLike) -> tuple[DimLike, DimLike]:
        quotient: DimLike = 0
        rest: DimLike = 0
        for term in _summands(position):
            q = exact_quotient(term, size)
            if q is None:
                rest = rest + term
            else:
                quotient = quotient + q
        if not is_at_most(self.largest(rest), size - 1) or any(_is_subtracted(t) for t in _summands(rest)):
            raise UnsupportedError(f"{rest} below {size}")
        return quotient, rest

    def largest(self, d: DimLike) -> DimLike:
        """The largest value of a sum of coordinates with coefficients of at least 0."""
        if isinstance(d, int):
            return d
        return substitute(d, {_name(c): extent - 1 for c, extent in self.extents.items()})

    def _concat(self, n: Node, axis: int, index: Index) -> Term:
        start: DimLike = 0
        parts: list[tuple[z3.BoolRef, Term]] = []
        for x in n.inputs:
            end = start + x.shape[axis]
            at = (*index[:axis], index[axis] - start, *index[axis + 1 :])
            parts.append((integer(index[axis]) < integer(end), self.element(x, at)))
            start = end
        return reduce(lambda rest, part: z3.If(part[0], part[1], rest), reversed(parts[:-1]), parts[-1][1])

    def _window(self, n: Node, op: ops.DynamicSlice, index: Index) -> Term:
        x, *starts = n.inputs
        firsts = (
            self.named(_clamped(self._integer(s), integer(size - window)))
            for s, size, window in zip(starts, x.shape, op.sizes, strict=True)
        )
        return self.element(x, tuple(first + i for first, i in zip(firsts, index, strict=True)))

    def _integer(self, n: Node, index: Index = ()) -> z3.ArithRef:
        term = self.element(n, index)
        return term if z3.is_int(term) else z3.BV2Int(term, is_signed=n.dtype.kind == "i")

    def named(self, term: z3.ArithRef) -> DimLike:
        """A symbol that equals `term`."""
        name = f"t.{len(self.facts)}"
        self.facts.append(z3.Int(name) == term)
        return symbol(name)

    def _gather(self, n: Node, op: ops.Gather, index: Index) -> Term:
        x, indices = n.inputs
        batch = [i for d, i in enumerate(index) if d not in op.offset_dims]
        source: list[DimLike] = [0] * x.type.rank
        for component, own in enumerate(op.start_index_map):
            at = list(batch)
            if op.index_vector_dim < indices.type.rank:
                at.insert(op.index_vector_dim, component)
            limit = integer(x.shape[own] - op.slice_sizes[own])
            source[own] = self.named(_clamped(self._integer(indices, tuple(at)), limit))
        for own, axis in zip(op.operand_batching_dims, op.start_indices_batching_dims, strict=True):
            source[own] = batch[axis - (axis > op.index_vector_dim)]
        dropped = (*op.collapsed_slice_dims, *op.operand_batching_dims)
        window = [d for d in range(x.type.rank) if d not in dropped]
        for d, place in zip(window, op.offset_dims, strict=True):
            source[d] = source[d] + index[place]
        return self.element(x, tuple(source))


def coordinates(
    shape: Shape, prefix: str = "i", factors: Sequence[Sequence[DimLike]] = ()
) -> tuple[Index, dict[Dim, DimLike]]:
    """An arbitrary index of a value of `shape`, and the extents of its coordinates: one for each factor of a size."""
    index: list[DimLike] = []
    extents: dict[Dim, DimLike] = {}
    for axis, parts in enumerate(factors or [factors_of(d) for d in shape]):
        position: DimLike = 0
        for part, factor in enumerate(parts):
            c = symbol(f"{prefix}{axis}_{part}", may_be_empty=True)
            extents[c] = factor
            position = position * factor + c
        index.append(position)
    return tuple(index), extents


def factors_of(size: DimLike) -> list[DimLike]:
    """A size that is one product as its factors, else alone; nothing for a size of 1."""
    if isinstance(size, int):
        return [size] if size != 1 else []
    if len(size.terms) != 1:
        return [size]
    ((atoms, coefficient),) = size.terms
    return [*([coefficient] if coefficient != 1 else []), *(Dim((((a,), 1),)) for a in atoms)]


def _summands(d: DimLike) -> list[DimLike]:
    if isinstance(d, int):
        return [d] if d else []
    return [Dim(((atoms, c),)) if atoms else c for atoms, c in d.terms]


def _is_subtracted(term: DimLike) -> bool:
    return term < 0 if isinstance(term, int) else term.terms[0][1] < 0


def _clamped(x: z3.ArithRef, last: z3.ArithRef) -> z3.ArithRef:
    return z3.If(x < 0, z3.IntVal(0), z3.If(x > last, last, x))


def _spaced(place: AxisMap, position: DimLike, shape: Shape) -> tuple[DimLike, list[z3.BoolRef]]:
    """The element of a padded axis that `position` reads, and when it reads one."""
    (axis,) = place.axes
    p, step = integer(position), place.spacing
    conditions: list[z3.BoolRef] = []
    if place.padded_ends[0]:
        conditions.append(p >= 0)
    if place.padded_ends[1]:
        conditions.append(p <= integer((shape[axis] - 1) * step))
    if step == 1:
        return position, conditions
    raise UnsupportedError("padding between elements in z3")


def extent_facts(extents: Mapping[Dim, DimLike]) -> list[z3.BoolRef]:
    """0 <= coordinate < extent."""
    return [f for c, d in extents.items() for f in (integer(c) >= 0, integer(c) < integer(d))]


def size_facts(nodes: Sequence[Node]) -> list[z3.BoolRef]:
    """Symbols are sizes of at least 1 (0 where they may be empty)."""
    symbols = {a for n in nodes for t in n.types for d in t.shape if isinstance(d, Dim) for a in _symbols(d)}
    return [z3.Int(str(s)) >= (0 if s.may_be_empty else 1) for s in symbols]


def _name(coordinate: Dim) -> str:
    return _symbols(coordinate)[0].name


def _symbols(d: Dim) -> list[Symbol]:
    return [a for atoms, _ in d.terms for a in atoms if isinstance(a, Symbol)]
