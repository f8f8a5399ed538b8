"""Interval arithmetic on a canonical graph: each value becomes a lower and an upper bound, in f64.

Moore, Interval Analysis, 1966; products with constants by center and radius: Rump, Fast and parallel interval
arithmetic, BIT 39, 1999. The bounds hold over the real numbers or, with a program's rounding, for the program's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce

from ingot import ops
from ingot.ir.dims import product
from ingot.ir.node import Node, Op, Project
from ingot.ir.types import boolean, f32, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.errors import UnsupportedOp
from ingot.transform.bounds.forms import (
    Hinge,
    Largest,
    RoundedToBytes,
    Shift,
    Square,
    Unknown,
    is_nonnegative,
    is_normalizer,
    operands_of_extreme,
    softmax_of,
)
from ingot.transform.bounds.functions import function_of, interval_of_function
from ingot.transform.bounds.rounding import (
    F64_EPSILON,
    Interval,
    Rounding,
    absolute_value,
    contracted_terms,
    error_of_winograd,
    in_f64,
    maximum,
    minimum,
    outward,
    overflow_share,
    rounding_to_bytes,
    summed_terms,
    unit_and_tiny,
    where,
)

_INF = float("inf")
_LARGEST_SHARE = 1 - 2.0**-6  # of a type's largest number: rounding takes no sum beyond it


Rule = Callable[["Intervals", Node, Sequence[Interval]], Interval]
_RULES: dict[type[Op], Rule] = {}


def _interval(*classes: type[Op]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for cls in classes:
            _RULES[cls] = rule
        return rule

    return register


class Intervals:
    """The intervals of the values of a graph.

    inputs: the perturbed inputs with their bounds; all other inputs are exact. Entries of `values` may be replaced by
    narrower bounds, from other methods, before their users are added.
    """

    def __init__(self, inputs: Mapping[Node, Interval], rounding: Rounding) -> None:
        self.rounding = rounding
        self.values: dict[Node, Interval] = dict(inputs)
        self.missing: list[UnsupportedOp] = []
        self._exact: dict[Node, bool] = dict.fromkeys(inputs, False)
        self.nonnegative: dict[Node, bool] = {}
        self._sums: list[Term] = []  # magnitudes that no partial sum of the program exceeds

    def add(self, nodes: Iterable[Node]) -> None:
        """Compute the intervals of nodes in topological order. Ops without a rule are added to `missing`."""
        for node in nodes:
            if node in self.values or self.is_exact(node):
                continue
            if isinstance(node.op, Project) or (rule := self._rule(node)) is None:
                if not isinstance(node.op, Project):
                    self.missing.append(UnsupportedOp(node.op.name, node.loc or "the graph", "no bounds of it"))
                self.values[node] = _unbounded(node)
                continue
            interval = rule(self, node, [self.of(x) for x in node.inputs])
            if is_nonnegative(node, self.nonnegative):  # which the error of the bounds' own arithmetic hides
                interval = replace(interval, lower=maximum(interval.lower, 0.0))
            self.values[node] = interval

    def note_sum(self, magnitude: Term) -> None:
        """Of the terms that the program sums, in f32 or a wider type, in any order."""
        if self.rounding.unit:
            self._sums.append(magnitude)

    def guarded(self, bound: Term, otherwise: float) -> Term:
        """A bound of what the program computes: `otherwise` where a value may overflow its type on the way. Called when
        all nodes are added."""
        if not self.rounding.unit or self._is_finite is None:
            return bound
        return where(self._is_finite.spread(bound.shape, ()), bound, otherwise)

    @cached_property
    def _is_finite(self) -> Term | None:
        """Whether no value and no partial sum leaves its type; None without any."""
        shares = [overflow_share(v, f32) for v in self._sums]
        shares += [
            overflow_share(v.magnitude, node.dtype)
            for node, v in self.values.items()
            if v.lower.dtype != boolean and node.dtype.is_float and not is_normalizer(node)
        ]
        return reduce(maximum, shares) <= _LARGEST_SHARE if shares else None  # false where one is NaN

    def _rule(self, node: Node) -> Rule | None:
        if len(node.types) != 1 or not (node.dtype.is_float or node.dtype == boolean):
            return None
        if (rule := _RULES.get(type(node.op))) is not None:
            return rule
        return _function if function_of(node.op) is not None else None

    def is_exact(self, node: Node) -> bool:
        """Whether the program computes exactly this value: it depends on no perturbed input and is not rounded."""
        if node not in self._exact:
            copies_elements = (
                node.op.rearranges or not node.inputs or isinstance(node.op, (ops.Concat, ops.Pad, Project))
            )
            is_rounded = any(type_.dtype.is_float for type_ in node.types) and not copies_elements
            self._exact[node] = not is_rounded and all(self.is_exact(x) for x in node.inputs)
        return self._exact[node]

    def of(self, node: Node) -> Interval:
        """The interval of a node; an exact one has equal bounds."""
        interval = self.values.get(node)
        if interval is None:
            value = Term(node) if node.dtype == boolean else Term(node).cast(f64)
            interval = Interval(value, value)
        return interval


# --- ops that move or choose elements


@_interval(
    ops.Reshape, ops.Transpose, ops.BroadcastInDim, ops.Slice, ops.Windows, ops.Pad, ops.Concat, ops.Reverse,
    ops.Max, ops.Min, ops.And, ops.Or, ops.Sign, ops.Floor, ops.Ceil, ops.RoundEven, ops.RoundAway,
)  # fmt: skip
def _rising(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    """Each element of the result rises with the operands' or stays."""
    return Interval(
        *(Term(node.op(*(x.node for x in side))) for side in ([x.lower for x in xs], [x.upper for x in xs]))
    )


@_interval(ops.Sort)
def _sorted(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    """Each place of the result rises with the operand. Bounds that are NaN, which are none, are no last elements."""
    (x,) = xs
    ends = ((x.lower, -_INF), (x.upper, _INF))
    return Interval(*(where(v.equals(v), v, none).map(node.op) for v, none in ends))


@_interval(ops.Gather, ops.DynamicSlice)
def _gathered(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    x, indices = xs[0], node.inputs[1:]
    if not all(c.is_exact(i) for i in indices):
        return _unknown(c, node, "the positions depend on perturbed values")
    return Interval(Term(node.op(x.lower.node, *indices)), Term(node.op(x.upper.node, *indices)))


@_interval(ops.Neg)
def _negated(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    (x,) = xs
    return Interval(-x.upper, -x.lower)


@_interval(Unknown)
def _unknown_form(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    one = t.full(node.shape, 1.0, f64)
    return Interval(-one, one)


@_interval(RoundedToBytes)
def _rounded_to_bytes(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    (x,) = xs
    assert isinstance(node.op, RoundedToBytes)
    radius = rounding_to_bytes(x.magnitude, node.op.dims)
    return Interval(*outward(x.lower - radius, x.upper + radius, 4 * F64_EPSILON))


@_interval(Largest)
def _largest(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    return Interval(reduce(maximum, [x.lower for x in xs]), reduce(maximum, [x.upper for x in xs]))


@_interval(ops.Convert)
def _converted(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    (x,) = xs
    if x.lower.dtype == boolean:
        return Interval(x.lower.cast(f64), x.upper.cast(f64))
    if not c.rounding.unit or node.dtype.bits >= node.inputs[0].dtype.bits:
        return x
    unit, tiny = unit_and_tiny(node.dtype)
    return Interval(*outward(x.lower, x.upper, unit, max(tiny, c.rounding.floor)))


@_interval(ops.Compare)
def _compared(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    op, (a, b) = node.op, xs
    assert isinstance(op, ops.Compare)
    if op.direction in ("GT", "GE"):
        a, b = b, a
    # what may hold is what is not excluded, so that NaN, the bound of a product of 0 and infinity, excludes nothing
    if op.direction in ("LT", "GT"):
        return Interval(a.upper < b.lower, (a.lower >= b.upper).map(ops.Not()))
    if op.direction in ("LE", "GE"):
        return Interval(a.upper <= b.lower, (a.lower > b.upper).map(ops.Not()))
    differ = (a.lower > b.upper) | (b.lower > a.upper)
    agree = a.lower.equals(b.upper) & b.lower.equals(a.upper)
    return Interval(agree, differ.map(ops.Not())) if op.direction == "EQ" else Interval(differ, agree.map(ops.Not()))


@_interval(ops.IsNan, ops.IsFinite)
def _classified(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    """A value of finite bounds is finite; one that may be undefined has none."""
    (x,) = xs
    is_finite, any_case = x.lower.map(ops.IsFinite()) & x.upper.map(ops.IsFinite()), _unbounded(node)
    if isinstance(node.op, ops.IsNan):
        return Interval(any_case.lower, is_finite.map(ops.Not()))
    return Interval(is_finite, any_case.upper)


@_interval(ops.Not)
def _not(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    (x,) = xs
    return Interval(x.upper.map(ops.Not()), x.lower.map(ops.Not()))


@_interval(ops.Select)
def _selected(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    p, a, b = xs
    lower = where(p.lower, a.lower, where(p.upper, minimum(a.lower, b.lower), b.lower))
    upper = where(p.lower, a.upper, where(p.upper, maximum(a.upper, b.upper), b.upper))
    return Interval(lower, upper)


@_interval(Shift)
def _shifted(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    """The largest upper bound, so that no exponential overflows."""
    (x,), op = xs, node.op
    assert isinstance(op, Shift)
    largest = x.upper.max((op.axis,))
    return Interval(largest, largest)


# --- sums and products


@_interval(ops.Add)
def _sum(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    a, b = xs
    if (operands := operands_of_extreme(node)) is not None:
        x, y = (c.of(v) for v in operands)
        return _rounded(c, maximum(x.lower, y.lower), maximum(x.upper, y.upper))
    return _rounded(c, a.lower + b.lower, a.upper + b.upper)


@_interval(ops.Sub)
def _difference(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    a, b = xs
    if (operands := operands_of_extreme(node)) is not None:
        x, y = (c.of(v) for v in operands)
        return _rounded(c, minimum(x.lower, y.lower), minimum(x.upper, y.upper))
    return _rounded(c, a.lower - b.upper, a.upper - b.lower)


def _rounded(c: Intervals, lower: Term, upper: Term, ulps: float = 0.5) -> Interval:
    return Interval(*outward(lower, upper, c.rounding.of_function(ulps), c.rounding.floor))


@_interval(ops.Mul)
def _multiplied(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    a, b = xs
    if (quotient := _normalized(c, node, xs)) is not None:
        return quotient
    products = [a.lower * b.lower, a.upper * b.lower]
    if b.lower.node is not b.upper.node:
        products += [a.lower * b.upper, a.upper * b.upper]
    return _rounded(c, *_extremes(products))


def _extremes(values: Sequence[Term]) -> tuple[Term, Term]:
    return reduce(minimum, values), reduce(maximum, values)


def _normalized(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval | None:
    """The interval of e / sum(e) for e >= 0. As e is also a term of the sum, its largest value is e / (e + the least
    sum of the other terms). None for any other product."""
    if (softmax := softmax_of(node)) is None:
        return None
    e, dims = softmax.exponentials, softmax.dims
    x = c.of(e)
    error = c.rounding.of_sum(product(e.shape[d] for d in dims)) + c.rounding.of_function()
    least_sum, largest_sum = x.lower.sum(dims), x.upper.sum(dims)
    largest_rest = largest_sum * (1 + 2 * error) - x.upper
    least_rest = maximum(least_sum * (1 - 2 * error) - x.lower, 0.0)
    lower = where(x.lower > 0.0, x.lower / (x.lower + largest_rest), 0.0)
    upper = where(x.upper <= 0.0, 0.0, x.upper / (x.upper + least_rest))  # NaN for NaN
    return Interval(*outward(lower, upper, 4 * error, c.rounding.floor))


@_interval(ops.Div)
def _divided(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    """The divisor is a constant: see `canonical`."""
    a, b = xs
    return _rounded(c, *_extremes([a.lower / b.lower, a.upper / b.lower]))


@_interval(Square)
def _squared(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    (x,) = xs
    least_magnitude = maximum(maximum(x.lower, -x.upper), 0.0)
    square = _rounded(c, least_magnitude * least_magnitude, x.magnitude * x.magnitude)
    return Interval(maximum(square.lower, 0.0), square.upper)


@_interval(ops.Reduce)
def _reduced(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    (x,), op = xs, node.op
    assert isinstance(op, ops.Reduce)
    if op.kind in ("and", "or", "max", "min"):
        return Interval(x.lower.map(op), x.upper.map(op))
    return _summed(c, node, x) if op.kind == "sum" else _unknown(c, node)


@_interval(ops.ReduceWindow, ops.CumReduce)
def _windowed(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    (x,), op = xs, node.op
    assert isinstance(op, ops.ReduceWindow | ops.CumReduce)
    if op.kind in ("max", "min"):
        return Interval(x.lower.map(op), x.upper.map(op))
    return _summed(c, node, x) if op.kind == "sum" else _unknown(c, node)


def _summed(c: Intervals, node: Node, x: Interval) -> Interval:
    op = node.op
    c.note_sum(x.magnitude.map(op))
    error = x.magnitude.map(op) * c.rounding.of_sum(summed_terms(node)) + c.rounding.floor
    lower = x.lower.map(op) - error
    if isinstance(op, ops.Reduce) and is_nonnegative(
        node, c.nonnegative
    ):  # a sum in any order is at least each of its terms
        lower = maximum(lower, x.lower.max(op.dims).reshape(lower.shape))
    return Interval(lower, x.upper.map(op) + error)


def _unknown(c: Intervals, node: Node, reason: str = "") -> Interval:
    message = reason or f"{getattr(node.op, 'kind', '')} has no bounds"
    c.missing.append(UnsupportedOp(node.op.name, node.loc or "the graph", message))
    return _unbounded(node)


def _unbounded(node: Node) -> Interval:
    shape, dtype = node.types[0].shape, node.types[0].dtype
    ends = (0, 1, boolean) if dtype == boolean else (-_INF, _INF, f64)
    return Interval(*(t.full(shape, end, ends[2]) for end in ends[:2]))


@_interval(ops.DotGeneral, ops.Convolution)
def _contracted(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    """From center c and radius r: the center c * w and the radius r * |w|, with the errors of both sums in r."""
    op, (a, b) = in_f64(node.op), xs
    error = c.rounding.of_contraction(node, contracted_terms(node))
    are_exact = [c.is_exact(x) for x in node.inputs]
    if not any(are_exact):
        return _bilinear(c, node, op, a, b, error)
    perturbed_index = are_exact.index(False)
    x, w = (a, b)[perturbed_index], (b, a)[perturbed_index].lower

    def apply(v: Term, factor: Term) -> Term:
        return Term(op(*((v.node, factor.node) if perturbed_index == 0 else (factor.node, v.node))))

    radius = x.radius * (1 + 4 * error) + x.magnitude * (2 * error) + c.rounding.floor
    y, spread = apply(x.center, w), apply(radius, absolute_value(w))
    c.note_sum(spread * (0.5 / error))
    if (winograd_error := error_of_winograd(c.rounding, node, a.magnitude, b.magnitude)) is not None:
        spread = spread + winograd_error
    return Interval(*outward(y - spread, y + spread, 4 * F64_EPSILON, c.rounding.floor * contracted_terms(node)))


def _bilinear(c: Intervals, node: Node, op: Op, a: Interval, b: Interval, error: float) -> Interval:
    def apply(u: Term, v: Term) -> Term:
        return Term(op(u.node, v.node))

    error_bound = apply(a.magnitude, b.magnitude) * (4 * error) + c.rounding.floor * contracted_terms(node)
    c.note_sum(error_bound * (0.25 / error))
    if (winograd_error := error_of_winograd(c.rounding, node, a.magnitude, b.magnitude)) is not None:
        error_bound = error_bound + winograd_error
    if isinstance(op, ops.DotGeneral):
        products = [_expanded(op, u, v) for u in (a.lower, a.upper) for v in (b.lower, b.upper)]
        lower, upper = _extremes([p for p, _ in products])
        dims = products[0][1]
        return Interval(lower.sum(dims, False) - error_bound, upper.sum(dims, False) + error_bound)
    y = apply(a.center, b.center)
    spread = apply(absolute_value(a.center), b.radius) + apply(a.radius, b.magnitude)
    return Interval(y - spread - error_bound, y + spread + error_bound)


def _expanded(op: ops.DotGeneral, a: Term, b: Term) -> tuple[Term, tuple[int, ...]]:
    """The products of a contraction before summation, and the dimensions to sum over."""
    free_a, free_b = op.free(a.rank, b.rank)
    batch, rows, cols = len(op.batch[0]), len(free_a), len(free_b)
    summed = tuple(range(batch + rows + cols, batch + rows + cols + len(op.contract[0])))
    shape = (
        *(a.shape[d] for d in op.batch[0]), *(a.shape[d] for d in free_a), *(b.shape[d] for d in free_b),
        *(a.shape[d] for d in op.contract[0]),
    )  # fmt: skip
    dims_a = (*range(batch), *range(batch, batch + rows), *summed)
    dims_b = (*range(batch), *range(batch + rows, batch + rows + cols), *summed)
    x = a.transpose((*op.batch[0], *free_a, *op.contract[0])).spread(shape, dims_a)
    y = b.transpose((*op.batch[1], *free_b, *op.contract[1])).spread(shape, dims_b)
    return x * y, summed


# --- functions of one variable


@_interval(Hinge)
def _hinge(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    (x,), op = xs, node.op
    assert isinstance(op, Hinge)

    def value(v: Term) -> Term:
        negative = minimum(v, 0.0) * op.left if op.left else None
        positive = maximum(v, 0.0) * op.right if op.right else None
        parts = [p for p in (negative, positive) if p is not None]
        return parts[0] + parts[1] if len(parts) == 2 else parts[0]

    ends = value(x.lower), value(x.upper)
    lower, upper = _extremes(ends)
    if op.left * op.right < 0:  # 0 is the minimum or the maximum
        contains_zero = t.term(t.logical_and(x.lower < 0.0, x.upper > 0.0))
        lower = where(contains_zero, 0.0, lower) if op.right > 0 else lower
        upper = where(contains_zero, 0.0, upper) if op.right < 0 else upper
    if op.left in (0.0, 1.0, -1.0) and op.right in (0.0, 1.0, -1.0):
        return Interval(lower, upper)
    return _rounded(c, lower, upper)


def _function(c: Intervals, node: Node, xs: Sequence[Interval]) -> Interval:
    (x,), f = xs, function_of(node.op)
    assert f is not None
    return interval_of_function(c.rounding, f, x)
