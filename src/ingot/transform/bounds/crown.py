"""CROWN: a linear bound of a value in terms of the inputs, found by walking back through the graph.

Zhang et al., NeurIPS 2018; for general graphs Xu et al., Automatic Perturbation Analysis for Scalable Certified
Robustness and Beyond, NeurIPS 2020. The coefficients go back through what is linear by the transposed maps, which are
the reverse rules of `autodiff`. Each node adds what its arithmetic may err by, the bounds' own and, if asked for, the
program's: the sum of |coefficient| * error of each element, where an element's error is relative to the magnitudes that
it sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from ingot import ops
from ingot.autodiff.rules import RULES
from ingot.ir.dims import product
from ingot.ir.node import Input, Node, splat_of, topological
from ingot.ir.types import TensorType, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass
from ingot.transform.bounds.forms import Hinge, Largest
from ingot.transform.bounds.functions import function_of
from ingot.transform.bounds.intervals import Interval, Intervals
from ingot.transform.bounds.lines import Lines, lines_of_function, lines_of_hinge
from ingot.transform.bounds.rounding import (
    OWN_UNIT,
    absolute_value,
    contracted_terms,
    error_of_winograd,
    in_f64,
    maximum,
    minimum,
    summed_terms,
    unit_and_tiny,
    where,
)
from ingot.transform.vectorize import vectorize

_SCALARS = 1 << 12  # more than the numbers that one bound sums, beside those of a node
_MOVES = (ops.Reshape, ops.Transpose, ops.Slice, ops.Concat, ops.Reverse, ops.Neg)
_SUMS = (ops.BroadcastInDim, ops.Windows, ops.Gather, ops.Pad)  # whose transposes are sums
_CONTRACTIONS = (ops.DotGeneral, ops.Convolution)


@dataclass(frozen=True)
class Walk:
    """What the walks back through one graph share.

    intervals: of all values. rows: see `rows_of`. alphas: for each hinge the slope of its lower line (see
    `lines_of_hinge`); a node of the hinge's shape, which `vectorize` may map to rows. multipliers: for values whose
    sign is known where bounds are to hold, factors m with m * value >= 0 there. lines: of the relaxed nodes so far.
    """

    intervals: Intervals
    rows: Mapping[Node, int] = field(default_factory=dict)
    alphas: Mapping[Node, Node] = field(default_factory=dict)
    multipliers: Mapping[Node, Term] = field(default_factory=dict)
    lines: dict[Node, Lines] = field(default_factory=dict)


def is_relaxed(node: Node) -> bool:
    """Whether a walk needs bounds of the node's operands."""
    return isinstance(node.op, (Hinge, Largest)) or function_of(node.op) is not None or is_product(node)


def is_product(node: Node) -> bool:
    return isinstance(node.op, (ops.Mul, *_CONTRACTIONS))


def bounds_of(walk: Walk, target: Node, mapped: Mapping[Node, Node] | None = None) -> Interval:
    """Bounds of each element of `target`. mapped: alphas by node, with a row for each lower and then each upper bound.
    Without alphas no bound is wider than the interval; with them it may be, as no alpha would have a gradient where the
    interval's bound is taken."""
    shape = target.shape
    axis = walk.rows.get(target)
    others = [d for d in range(len(shape)) if d != axis]
    inner = tuple(shape[d] for d in others)
    count = product(inner)
    assert isinstance(count, int)
    seed = Input("seed of a walk", TensorType(f64, shape))()
    row = Backward(walk).run(target, Term(seed))
    at = t.iota((2 * count, count), 0), t.iota((2 * count, count), 1)
    plus, minus = at[0].equals(at[1]).cast(f64), at[0].equals(at[1] + count).cast(f64)
    seeds = (plus - minus).reshape((2 * count, *inner)).spread((2 * count, *shape), [0, *(d + 1 for d in others)])
    (found,) = vectorize([row.node], {seed: seeds.node, **(mapped or {})})
    both = Term(found)

    def bounds(first: int) -> Term:
        part = both.slice(0, first, first + count)
        return part.reshape(shape) if axis is None else _rows_at(part.reshape((*inner, shape[axis])), axis)

    lower, upper = bounds(0), -bounds(count)
    if walk.alphas:
        return Interval(lower, upper)
    known = walk.intervals.of(target)
    # an operand of which nothing is known makes all rows NaN
    return Interval(
        where(lower.equals(lower), maximum(lower, known.lower), known.lower),
        where(upper.equals(upper), minimum(upper, known.upper), known.upper),
    )


def lower_bounds(walk: Walk, target: Node, mapped: Mapping[Node, Node]) -> tuple[Term, dict[Node, Term]]:
    """A lower bound of each element of `target`, a vector, and for each perturbed input the coefficients of each,
    [elements, *input]. mapped: alphas by node, with a row for each element."""
    (count,) = target.shape
    seed = Input("seed of a walk", TensorType(f64, target.shape))()
    backward = Backward(walk)
    row = backward.run(target, Term(seed))
    seeds = t.iota((count, count), 0).equals(t.iota((count, count), 1)).cast(f64)
    leaves = list(backward.leaves)
    found, *coefficients = vectorize(
        [row.node, *(backward.leaves[x].node for x in leaves)], {seed: seeds.node, **mapped}
    )
    known = walk.intervals.of(target).lower
    lower = Term(found)
    lower = where(lower.equals(lower), maximum(lower, known), known)
    return lower, dict(zip(leaves, map(Term, coefficients), strict=True))


def _rows_at(x: Term, axis: int) -> Term:
    """With the last axis, of rows, at `axis`."""
    last = x.rank - 1
    return x.transpose((*range(axis), last, *range(axis, last)))


class Backward:
    """One walk. leaves: the coefficients that arrive at each perturbed input. costs: for each hinge how much lower the
    bound is by the offset of its upper line."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.c = walk.intervals
        self.coefficients: dict[Node, Term] = {}
        self.leaves: dict[Node, Term] = {}
        self.costs: dict[Node, Term] = {}
        self.total: Term | None = None

    def run(self, target: Node, seed: Term) -> Term:
        """A number below the sum of seed * target, of target's shape, for all inputs; of each row, where there are."""
        self.coefficients[target] = seed
        for node in reversed(topological([target])):
            if node in self.walk.multipliers and node in self.coefficients:
                self.pass_on(node, -self.walk.multipliers[node])  # a bound of f - m * value is one of f
            a = self.coefficients.pop(node, None)
            if a is not None:
                self.step(node, a)
        assert self.total is not None
        return self.total

    def step(self, node: Node, a: Term) -> None:
        op = node.op
        perturbed = [x for x in node.inputs if not self.c.is_exact(x)]
        if not perturbed:
            self.stop(node, a)
        elif isinstance(op, Hinge) or function_of(op) is not None:
            self.relax(node, a)
        elif isinstance(node.op, Largest):
            self.largest(node, a)
        elif is_product(node) and len(perturbed) == 2:
            self.bilinear(node, a)
        elif self.is_linear(node):
            self.linear(node, a)
        else:
            self.stop(node, a)

    def is_linear(self, node: Node) -> bool:
        """Whether the node is affine in what is perturbed of its operands."""
        if isinstance(node.op, (ops.Reduce, ops.ReduceWindow, ops.CumReduce)):
            return node.op.kind == "sum"
        if isinstance(node.op, ops.Select):
            return self.c.is_exact(node.inputs[0])
        return isinstance(node.op, (*_MOVES, *_SUMS, *_CONTRACTIONS, ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Convert))

    # --- sums

    def add(self, value: Term) -> None:
        self.total = value if self.total is None else self.total + value

    def dot(self, node: Node, a: Term, value: Term) -> None:
        """Add what the coefficients of a node contribute."""
        axis = self.walk.rows.get(node)
        self.add((a * value).sum([d for d in range(a.rank) if d != axis], False))

    def err(self, node: Node, a: Term, size: Term, relative: float, absolute: float = 0.0) -> None:
        """Subtract what elements of `size` err by: relative to it, and by the sums over all of them."""
        count = product(a.shape)
        assert isinstance(count, int)
        factor = relative + (count + _SCALARS) * 2 * OWN_UNIT
        self.dot(node, absolute_value(a), -(size * factor + (absolute + self.c.rounding.floor)))

    def pass_on(self, x: Node, a: Term) -> None:
        if self.c.is_exact(x):
            return
        known = self.coefficients.get(x)
        if known is not None:
            self.err(x, known, self.c.of(x).magnitude, 0.0)
            self.err(x, a, self.c.of(x).magnitude, 0.0)
            a = known + a
        self.coefficients[x] = a

    # --- steps

    def stop(self, node: Node, a: Term) -> None:
        """An input, or what has an interval and no linear bounds."""
        x = self.c.of(node)
        if isinstance(node.op, Input):
            self.leaves[node] = a
        self.dot(node, maximum(a, 0.0), x.lower)
        self.dot(node, minimum(a, 0.0), x.upper)
        self.err(node, a, x.magnitude, 0.0)

    def linear(self, node: Node, a: Term) -> None:
        op = node.op
        if isinstance(op, ops.Convert):
            y = self.c.of(node)
            if y is not self.c.of(node.inputs[0]):
                unit, tiny = unit_and_tiny(node.dtype)
                self.err(node, a, y.magnitude, 2 * max(self.c.rounding.unit, unit), tiny)
            self.pass_on(node.inputs[0], a)
            return
        self.offset(node, a)
        wide = self.node_of(node, lambda x: Input(f"value {x.id}", TensorType(f64, x.shape))())
        for x, g in zip(node.inputs, RULES[type(op)](wide, [a.node]), strict=True):
            if g is not None:
                self.pass_on(x, Term(g))
        if isinstance(op, _MOVES):
            return
        if isinstance(op, _CONTRACTIONS):
            terms, error = contracted_terms(node), self.c.rounding.of_sum(contracted_terms(node))
        elif isinstance(op, (ops.Reduce, ops.ReduceWindow, ops.CumReduce)):
            terms = summed_terms(node)
            error = self.c.rounding.of_sum(terms)
        else:
            terms, error = 1, 0.0 if isinstance(op, _SUMS) else self.c.rounding.of_function(0.5)
        self.err(node, a, self.sizes(node), error, self.c.rounding.floor * terms)
        self.winograd(node, a)

    def winograd(self, node: Node, a: Term) -> None:
        """Subtract what a convolution may err by beyond a sum."""
        if isinstance(node.op, ops.Convolution):
            x, w = (self.c.of(v).magnitude for v in node.inputs)
            extra = error_of_winograd(self.c.rounding, node, x, w)
            if extra is not None:
                self.err(node, a, extra, 1.0)

    def sizes(self, node: Node) -> Term:
        """What each element of a linear node sums, in magnitude."""
        if isinstance(node.op, (ops.Add, ops.Sub)):
            x, y = (self.c.of(v).magnitude for v in node.inputs)
            return x + y
        return Term(in_f64(node.op)(*(self.c.of(x).magnitude.node if x.dtype.is_float else x for x in node.inputs)))

    def offset(self, node: Node, a: Term) -> None:
        """What an affine node adds: its value for zeros."""
        if isinstance(node.op, (*_CONTRACTIONS, ops.Mul, ops.Div)) or all(not self.c.is_exact(x) for x in node.inputs):
            return
        exact = [x for x in node.inputs if self.c.is_exact(x) and x.dtype.is_float]
        if exact and any(splat_of(x) != 0 for x in exact):
            value = self.node_of(node, lambda x: t.full(x.shape, 0.0, f64).node)
            self.dot(node, a, Term(value))
            self.err(node, a, absolute_value(Term(value)), 0.0)

    def node_of(self, node: Node, operand: Callable[[Node], Node]) -> Node:
        """The node in f64, with `operand` for each perturbed one."""
        wide = [
            (Term(x).cast(f64).node if x.dtype.is_float else x) if self.c.is_exact(x) else operand(x)
            for x in node.inputs
        ]
        return in_f64(node.op)(*wide)

    def relax(self, node: Node, a: Term) -> None:
        (x,) = node.inputs
        lines, known = self.lines(node), self.c.of(x)
        above, below = maximum(a, 0.0), minimum(a, 0.0)
        self.dot(node, above, lines.lower.offset)
        self.dot(node, below, lines.upper.offset)
        if isinstance(node.op, Hinge):
            self.costs[node] = absolute_value(below * lines.upper.offset)
        slopes = maximum(absolute_value(lines.lower.slope), absolute_value(lines.upper.slope))
        offsets = maximum(absolute_value(lines.lower.offset), absolute_value(lines.upper.offset))
        self.err(node, a, slopes * known.magnitude + offsets, 0.0)
        if self.c.rounding.unit:
            f = function_of(node.op)
            ulps, slack = (1.0, 0.0) if f is None else (f.ulps, f.slack)
            self.err(node, a, self.c.of(node).magnitude, self.c.rounding.of_function(ulps), slack)
        self.pass_on(x, above * lines.lower.slope + below * lines.upper.slope)

    def largest(self, node: Node, a: Term) -> None:
        """At least the operand whose lower bound is the largest; at most that operand, if no other one may be larger,
        else the largest upper bound."""
        xs, y = [self.c.of(x) for x in node.inputs], self.c.of(node)
        above, below = maximum(a, 0.0), minimum(a, 0.0)
        chosen: list[Term] = []
        is_open = y.lower.equals(y.lower)
        for x in xs:  # the first of those with this bound
            is_first = is_open & x.lower.equals(y.lower)
            chosen.append(is_first)
            is_open = is_open & is_first.map(ops.Not())
        others = t.full(node.shape, -float("inf"), f64)
        for x, is_chosen in zip(xs, chosen, strict=True):
            others = maximum(others, where(is_chosen, -float("inf"), x.upper))
        is_known = others <= y.lower
        self.dot(node, below, where(is_known, 0.0, y.upper))
        self.err(node, a, y.magnitude, 0.0)
        for x, is_chosen in zip(node.inputs, chosen, strict=True):
            of_x = where(is_chosen, above + where(is_known, below, 0.0), 0.0)
            if self.c.is_exact(x):
                self.dot(node, of_x, self.c.of(x).lower)
            self.pass_on(x, of_x)

    def lines(self, node: Node) -> Lines:
        found = self.walk.lines.get(node)
        if found is None:
            x = self.c.of(node.inputs[0])
            if isinstance(node.op, Hinge):
                alpha = self.walk.alphas.get(node)
                found = lines_of_hinge(node.op, x, None if alpha is None else Term(alpha))
            else:
                f = function_of(node.op)
                assert f is not None
                found = lines_of_function(f, x)
            self.walk.lines[node] = found
        return found

    def bilinear(self, node: Node, a: Term) -> None:
        """Planes around the centers, whose slopes are the same below and above, so that they cancel in a quotient:
        x y lies within rx ry of cy x + cx y - cx cy."""
        op, (x, y) = in_f64(node.op), node.inputs
        bx, by = self.c.of(x), self.c.of(y)
        for at, v in enumerate((x, y)):
            g = RULES[type(op)](op(bx.center.node, by.center.node), [a.node])[at]
            assert g is not None
            self.pass_on(v, Term(g))
        self.dot(node, a, -Term(op(bx.center.node, by.center.node)))
        self.dot(node, absolute_value(a), -Term(op(bx.radius.node, by.radius.node)))
        terms = contracted_terms(node) if isinstance(op, _CONTRACTIONS) else 1
        size = Term(op(bx.magnitude.node, by.magnitude.node))
        error = self.c.rounding.of_sum(terms) if terms > 1 else self.c.rounding.of_function(0.5)
        # three products of this size, each a sum
        own = (terms + 16) * 8 * OWN_UNIT
        self.err(node, a, size, error + own, self.c.rounding.floor * terms)
        self.winograd(node, a)
        self.err(node, a, size, 0.0)
        self.err(node, a, size, 0.0)


def mixes(node: Node, is_exact: Callable[[Node], bool]) -> bool:
    """Whether elements of a perturbed value meet in the node, so that an interval after it may be wider than its
    bounds."""
    if isinstance(node.op, (*_CONTRACTIONS, ops.Reduce, ops.ReduceWindow, ops.CumReduce)):
        return True
    return len([x for x in node.inputs if not is_exact(x)]) > 1 and not isinstance(node.op, ops.Concat)


def depths(nodes: Sequence[Node], is_exact: Callable[[Node], bool]) -> dict[Node, int]:
    """For each node how many nodes on the way from the inputs mix elements, 2 for more and behind what is relaxed."""
    found: dict[Node, int] = {}
    for node in nodes:
        before = max((found.get(x, 0) for x in node.inputs), default=0)
        curved = isinstance(node.op, Hinge) or function_of(node.op) is not None
        found[node] = 2 if curved else min(2, before + mixes(node, is_exact))
    return found
