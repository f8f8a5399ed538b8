"""Rules about shapes and positions, proved through index maps: element i of what a rule returns is the element of an
input that element i of what it was given is, for all indices and for all sizes that stand as symbols.

    equal_elements("transpose", "3", transpose(transpose(x)), x)   ->   proved

A sum is equal to another if their terms are, under a renaming of what they are summed over. Of attention the effective
mask is compared. What the rule returns must also keep to the constraints of its ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import z3

from ingot import ops
from ingot.ir.dims import Dim, DimLike, symbol
from ingot.ir.node import Node, topological
from ingot.ir.rewrite import Rule, RuleSet
from ingot.ir.types import boolean
from tools.proofs.terms import (
    IEEE,
    Index,
    Terms,
    Theory,
    UnsupportedError,
    coordinates,
    differs,
    extent_facts,
    factors_of,
    integer,
    size_facts,
)
from tools.proofs.verdict import Verdict, solve, state_of, timed

Bound = dict[Dim, DimLike]  # coordinates that a sum runs over, and their extents


def named(rules: RuleSet, name: str, n: Node) -> Rule:
    """The rule of this name for nodes such as `n`."""
    return next(r for r in rules if r.name == name and isinstance(n.op, r.root))


def prove(rules: RuleSet, name: str, case: str, before: Node, theory: Theory = IEEE) -> Verdict:
    """The verdict on one instance of a rule, which has to apply to it."""

    def verdict() -> Verdict:
        after = named(rules, name, before).apply(before)
        if not isinstance(after, Node):
            return Verdict(name, case, "open", "the rule does not apply")
        return equal_elements(name, case, before, after, theory)

    return timed(verdict)


def equal_elements(name: str, case: str, before: Node, after: Node, theory: Theory = IEEE) -> Verdict:
    """Whether two values have the same type and elements, for all sizes and inputs."""
    if before.types != after.types:
        return Verdict(name, case, "refuted", "types", f"{before.type} and {after.type}")
    why = ""
    # of a size that is a product, each order of factors is a way to count its elements
    for index, extents in _coordinate_systems(before):
        try:
            return _compared(name, case, before, after, theory, index, extents)
        except UnsupportedError as error:
            why = str(error)
    return Verdict(name, case, "open", why)


def _coordinate_systems(n: Node) -> Iterator[tuple[Index, Bound]]:
    factors = [factors_of(d) for d in n.shape]
    for orders in product(*(permutations(f) for f in factors)):
        yield coordinates(n.shape, factors=orders)


def _compared(name: str, case: str, before: Node, after: Node, theory: Theory, index: Index, extents: Bound) -> Verdict:
    terms = Terms({}, dict(extents), theory)
    unequal = _differ(terms, before, after, index)
    given = [*extent_facts(terms.extents), *size_facts(topological([before])), *terms.facts, *_constraints(before)]
    found, model = solve([*given, unequal], "")
    if model is not None:
        return Verdict(name, case, "refuted", "z3", _shown(model))
    if found != z3.unsat:
        return Verdict(name, case, "open", "z3 needs too many steps")
    violated = [z3.Not(c) for c in _constraints(after)]
    if violated and solve([*given, z3.Or(*violated)], "")[0] != z3.unsat:
        return Verdict(name, case, "refuted", "z3", "an op's constraint does not hold")
    return Verdict(name, case, "proved", "z3")


def _constraints(n: Node) -> list[z3.BoolRef]:
    return [
        integer(d) >= 0
        for part in topological([n])
        if part.op.computes
        for d, _ in part.op.constraints(*(i.type for i in part.inputs))
        if isinstance(d, Dim)
    ]


def _shown(model: z3.ModelRef) -> str:
    return ", ".join(sorted(f"{d} = {model[d]}" for d in model.decls() if not d.arity()))


def _differ(terms: Terms, before: Node, after: Node, index: Index) -> z3.BoolRef:
    if isinstance(before.op, ops.Attention):
        return _masks_differ(terms, before, after)
    kind = before.op.kind if isinstance(before.op, ops.Reduce) else ""
    if isinstance(before.op, ops.ReduceWindow):
        return _windows_differ(terms, before, after, index)
    x, a, over_a = _summands(kind, before, index, "a")
    y, b, over_b = _summands(kind, after, index, "b")
    terms.extents.update(over_a)
    names = [c for c, d in over_b.items() if d != 1]
    for order in permutations([c for c, d in over_a.items() if d != 1]):
        if [over_a[c] for c in order] == [over_b[c] for c in names]:
            renamed = {**dict(zip(names, order, strict=True)), **{c: 0 for c, d in over_b.items() if d == 1}}
            right = terms.element(y, tuple(_replaced(i, renamed) for i in b))
            left = terms.element(x, tuple(_replaced(i, {c: 0 for c, d in over_a.items() if d == 1}) for i in a))
            return differs(left, right)
    raise UnsupportedError(f"sums over {list(over_a.values())} and {list(over_b.values())}")


def _replaced(d: DimLike, values: dict[Dim, DimLike]) -> DimLike:
    for c, value in values.items():
        if d == c:
            return value
    return d


def _summands(kind: str, n: Node, index: Index, prefix: str) -> tuple[Node, Index, Bound]:
    """The value that an element of nested reductions reads, where, and over which coordinates."""
    over: Bound = {}
    while kind and isinstance(n.op, ops.Reduce) and n.op.kind == kind:
        (x,) = n.inputs
        rest = iter(index)
        dims: list[DimLike] = []
        for axis, size in enumerate(x.shape):
            if axis in n.op.dims:
                c = symbol(f"{prefix}{len(over)}", may_be_empty=True)
                over[c] = size
                dims.append(c)
            else:
                dims.append(next(rest))
        n, index = x, tuple(dims)
    return n, index, over


def _windows_differ(terms: Terms, before: Node, after: Node, index: Index) -> z3.BoolRef:
    """Of windows: whether a tap that only one of both has reads an element, or a tap of both another element."""
    (x,) = before.inputs
    if after.inputs != (x,) or not isinstance(after.op, ops.ReduceWindow):
        raise UnsupportedError("windows of other operands")
    wrong: list[z3.BoolRef] = []
    for axis in range(x.type.rank):
        reads = [_reads(n.op, x, axis, index) for n in (before, after) if isinstance(n.op, ops.ReduceWindow)]
        given, got = (z3.Or(*[z3.And(p == z3.Int("element"), inside) for p, inside in taps]) for taps in reads)
        wrong.append(given != got)
    return z3.Or(*wrong)


def _reads(op: ops.ReduceWindow, x: Node, axis: int, index: Index) -> list[tuple[z3.ArithRef, z3.BoolRef]]:
    """(position, whether it is an element) of each tap of a window along an axis."""
    out: list[tuple[z3.ArithRef, z3.BoolRef]] = []
    for tap in range(op.window[axis]):
        at = integer(index[axis] * op.strides[axis] + tap * op.dilation[axis] - op.padding[axis][0])
        out.append((at, z3.And(at >= 0, at < integer(x.shape[axis]))))
    return out


def _masks_differ(terms: Terms, before: Node, after: Node) -> z3.BoolRef:
    """Whether two attentions of the same operands hide another key, or add another number to a score."""
    if before.inputs[:3] != after.inputs[:3]:
        raise UnsupportedError("attention of other operands")
    q, k = before.inputs[:2]
    scores = (*q.shape[:3], k.shape[2])
    index, extents = coordinates(scores, "s")
    terms.extents.update(extents)
    (p, given), (r, got) = (_added(terms, n, index) for n in (before, after))
    # a mask whose added terms are NaN or +inf where it hides a key has no meaning
    ordinary = [z3.Not(z3.Or(z3.fpIsNaN(m), z3.And(z3.fpIsInf(m), z3.fpIsPositive(m)))) for m in (*p, *r)]
    same = z3.Or(z3.fpEQ(given, got), z3.And(z3.fpIsNaN(given), z3.fpIsNaN(got)))
    return z3.And(*ordinary, z3.Not(same))


def _added(terms: Terms, n: Node, index: Index) -> tuple[list[z3.FPRef], z3.FPRef]:
    """The terms of an attention's mask, and what it adds to a score: -inf for a hidden key."""
    op, q, k = n.op, *n.inputs[:2]
    assert isinstance(op, ops.Attention)
    hidden, nothing = z3.fpMinusInfinity(z3.Float32()), z3.fpPlusZero(z3.Float32())
    added, parts = nothing, []
    if len(n.inputs) == 4:
        mask = n.inputs[3]
        at = tuple(0 if size == 1 else i for size, i in zip(mask.shape, index[4 - mask.type.rank :], strict=True))
        element = terms.element(mask, at)
        added = z3.If(element, nothing, hidden) if mask.dtype == boolean else element
        parts = [terms.element(i, at) for i in mask.inputs if mask.dtype != boolean and i.shape == mask.shape]
        parts = [x for x in parts if z3.is_fp(x)] if isinstance(mask.op, ops.Add) else []
    row, column = integer(index[2]), integer(index[3])
    last = {"none": column, "upper_left": row, "lower_right": row + integer(k.shape[2] - q.shape[2])}[op.causal]
    return parts, z3.If(column <= last, added, hidden)


def cumulative(rules: RuleSet, case: str, before: Node) -> Verdict:
    """sum-of-constant by induction along the summed dimension: the first element, and the step to each next one."""

    def verdict() -> Verdict:
        after = named(rules, "sum-of-constant", before).apply(before)
        op, (x,) = before.op, before.inputs
        if not isinstance(after, Node) or not isinstance(op, ops.CumReduce):
            return Verdict("sum-of-constant", case, "open", "the rule does not apply")
        theory = Theory(unbounded=True)
        index, extents = coordinates(before.shape)
        axis, step = op.dim, -1 if op.reverse else 1
        terms = Terms({}, extents, theory)
        size = before.shape[axis]
        first = size - 1 if op.reverse else 0
        at = [(*index[:axis], i, *index[axis + 1 :]) for i in (first, index[axis], index[axis] - step)]
        # y[first] = x[first], or 0; y[i] = y[i - step] + x[i], or x[i - step]
        base = terms.element(after, at[0]) == (0 if op.exclusive else terms.element(x, at[0]))
        added = terms.element(x, at[2] if op.exclusive else at[1])
        next_one = terms.element(after, at[1]) == terms.element(after, at[2]) + added
        inside = z3.And(integer(at[2][axis]) >= 0, integer(at[2][axis]) < integer(size))
        given = [*extent_facts(extents), *size_facts([before])]
        found, _ = solve([*given, z3.Or(z3.Not(base), z3.And(inside, z3.Not(next_one)))], "")
        return Verdict("sum-of-constant", case, state_of(found), "z3, by induction")

    return timed(verdict)
