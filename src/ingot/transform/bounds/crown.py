"""CROWN: linear bounds of a value in terms of the inputs, computed by a backward walk through the graph.

Zhang et al., NeurIPS 2018; for general graphs Xu et al., Automatic Perturbation Analysis for Scalable Certified
Robustness and Beyond, NeurIPS 2020. Coefficients pass back through linear ops by the transposed maps, which are the
reverse rules of `autodiff`. Each node adds its rounding error, that of the bounds' own arithmetic and, if asked for,
that of the program: the sum over elements of |coefficient| * error, where the error of an element is relative to the
magnitudes that it sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from ingot import ops
from ingot.autodiff.rules import RULES
from ingot.ir.dims import product
from ingot.ir.node import Input, Node, splat_of, topological
from ingot.ir.types import Shape, TensorType, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass
from ingot.transform.bounds.forms import Hinge, Largest, RoundedToBytes, Shift, SoftmaxParts, softmax_of, source_of
from ingot.transform.bounds.functions import function_of
from ingot.transform.bounds.intervals import Intervals
from ingot.transform.bounds.lines import Lines, lines_of_function, lines_of_hinge, planes_of_softmax
from ingot.transform.bounds.rounding import (
    F64_EPSILON,
    Interval,
    absolute_value,
    contracted_terms,
    error_of_winograd,
    in_f64,
    maximum,
    minimum,
    rounding_to_bytes,
    summed_terms,
    unit_and_tiny,
    where,
)

_SCALARS = 1 << 12  # more than the number of terms that one bound sums besides those of a node
LINEAR_MOVES = (ops.Reshape, ops.Transpose, ops.Slice, ops.Concat, ops.Reverse, ops.Neg)
SUMS = (ops.BroadcastInDim, ops.Windows, ops.Gather, ops.Pad)  # whose transposes are sums
_MAX_SORTED = 64  # elements whose places are compared by pairs
CONTRACTIONS = (ops.DotGeneral, ops.Convolution)


@dataclass(frozen=True)
class Walk:
    """State shared by the backward walks through one graph.

    intervals: those of all values. rows: see `rows_of`. alphas: for each hinge the slope of its lower line (see
    `lines_of_hinge`); a node of the hinge's shape, which `vectorize` may map to rows. multipliers: for values whose
    sign is fixed in the region where the bounds hold, factors m with m * value >= 0 there. lines: a cache of the lines
    of relaxed nodes. max_rows: of coefficients at a time (see `bounds_of`).
    """

    intervals: Intervals
    rows: Mapping[Node, int] = field(default_factory=dict)
    alphas: Mapping[Node, Node] = field(default_factory=dict)
    multipliers: Mapping[Node, Term] = field(default_factory=dict)
    lines: dict[Node, Lines] = field(default_factory=dict)
    max_rows: int = 1 << 62


def is_relaxed(node: Node) -> bool:
    """Whether a walk needs bounds of the node's operands."""
    return isinstance(node.op, (Hinge, Largest, ops.Sort)) or function_of(node.op) is not None or is_product(node)


def own_softmax(node: Node, c: Intervals) -> SoftmaxParts | None:
    """The parts of a softmax that has planes of its own: its mask, if it has one, is not perturbed."""
    softmax = softmax_of(node)
    if softmax is None or c.is_exact(softmax.scores) or not (softmax.visible is None or c.is_exact(softmax.visible)):
        return None
    return softmax


def is_linear(node: Node, c: Intervals) -> bool:
    """Whether the node is affine in its perturbed operands, given that at most one factor of a product is perturbed."""
    if isinstance(node.op, (ops.Reduce, ops.ReduceWindow, ops.CumReduce)):
        return node.op.kind == "sum"
    if isinstance(node.op, ops.Select):
        return c.is_exact(node.inputs[0])
    if isinstance(node.op, ops.Convert):
        return node.inputs[0].dtype.is_float
    return isinstance(node.op, (*LINEAR_MOVES, *SUMS, *CONTRACTIONS, ops.Add, ops.Sub, ops.Mul, ops.Div))


def terms_and_error(node: Node, c: Intervals) -> tuple[int, float]:
    """For a linear node that computes: the number of terms of an element, and its error relative to the sum of their
    magnitudes."""
    if isinstance(node.op, CONTRACTIONS):
        return contracted_terms(node), c.rounding.of_contraction(node, contracted_terms(node))
    if isinstance(node.op, (ops.Reduce, ops.ReduceWindow, ops.CumReduce)):
        return summed_terms(node), c.rounding.of_sum(summed_terms(node))
    return 1, 0.0 if isinstance(node.op, (*LINEAR_MOVES, *SUMS)) else c.rounding.of_function(0.5)


def is_product(node: Node) -> bool:
    return isinstance(node.op, (ops.Mul, *CONTRACTIONS))


@dataclass
class _Factors:
    """What an element's coefficient is multiplied by, and what its magnitude is."""

    value: Term | None = None
    error: Term | None = None


class Backward:
    """One backward walk. leaves: the coefficients of each perturbed input. costs: for each hinge, by how much the
    offset of its upper line lowers the bound."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.c = walk.intervals
        self.coefficients: dict[Node, Term] = {}
        self.leaves: dict[Node, Term] = {}
        self.costs: dict[Node, Term] = {}
        self.total: Term | None = None
        self._factors: dict[tuple[Node, int | None], _Factors] = {}  # by coefficients and row axis

    def run(self, seeds: Mapping[Node, Term]) -> Term:
        """A lower bound, over all inputs, of the sum of seed * target for all targets, for each row where there are
        rows. seeds: by target, of its shape."""
        self.coefficients.update(seeds)
        for node in reversed(topological(list(seeds))):
            if node in self.walk.multipliers and node in self.coefficients:
                self.pass_on(node, -self.walk.multipliers[node])  # a bound of f - m * value is one of f
            a = self.coefficients.pop(node, None)
            if a is not None:
                self.add_sums(beside=a)
                self.step(node, a)
        self.add_sums()
        assert self.total is not None
        return self.total

    def step(self, node: Node, a: Term) -> None:
        op = node.op
        perturbed = [x for x in node.inputs if not self.c.is_exact(x)]
        if not perturbed:
            self.stop(node, a)
        elif isinstance(op, Hinge) or function_of(op) is not None:
            self.relax(node, a)
        elif isinstance(op, RoundedToBytes):
            x = self.c.of(node.inputs[0])
            self.err(node, a, rounding_to_bytes(x.magnitude, op.dims), 1.0)
            self.pass_on(node.inputs[0], a)
        elif isinstance(node.op, Largest):
            self.largest(node, a)
        elif isinstance(op, ops.Sort) and int(node.shape[-1]) <= _MAX_SORTED:
            self.sort(node, a)
        elif (softmax := own_softmax(node, self.c)) is not None:
            self.softmax(node, softmax, a)
        elif is_product(node) and len(perturbed) == 2:
            self.bilinear(node, a)
        elif is_linear(node, self.c):
            self.linear(node, a)
        else:
            self.stop(node, a)

    # --- sums

    def add_sums(self, beside: Term | None = None) -> None:
        """Add what `dot` and `err` noted, one sum for each value, except for the coefficients `beside`: a linear node
        may pass them on as they are."""
        sums: dict[tuple[Shape, int | None], Term] = {}
        for key, factors in list(self._factors.items()):
            a, axis = key
            if beside is not None and a is beside.node:
                continue
            del self._factors[key]
            for x, factor in ((Term(a), factors.value), (absolute_value(Term(a)), factors.error)):
                if factor is not None:
                    shape_and_axis = a.shape, axis
                    sums[shape_and_axis] = sums[shape_and_axis] + x * factor if shape_and_axis in sums else x * factor
        for (_, axis), elements in sums.items():
            total = elements.sum([d for d in range(elements.rank) if d != axis], False)
            self.total = total if self.total is None else self.total + total

    def dot(self, node: Node, a: Term, value: Term) -> None:
        """Add the sum of coefficients * value."""
        if splat_of(value.node) == 0:
            return
        factors = self._factors.setdefault((a.node, self.walk.rows.get(node)), _Factors())
        factors.value = value if factors.value is None else factors.value + value

    def err(self, node: Node, a: Term, size: Term, relative: float, absolute: float = 0.0) -> None:
        """Subtract the errors of elements of magnitude `size`: their own, and that of summing over them."""
        count = product(a.shape)
        assert isinstance(count, int)
        relative += (count + _SCALARS) * 2 * F64_EPSILON
        error = -(size * relative + (absolute + self.c.rounding.floor))
        factors = self._factors.setdefault((a.node, self.walk.rows.get(node)), _Factors())
        factors.error = error if factors.error is None else factors.error + error

    def pass_on(self, x: Node, a: Term) -> None:
        if self.c.is_exact(x):
            return
        accumulated = self.coefficients.get(x)
        if accumulated is not None:
            a = accumulated + a
            self.err(x, a, self.c.of(x).magnitude, 0.0)
        self.coefficients[x] = a

    # --- steps

    def stop(self, node: Node, a: Term) -> None:
        """End the walk at an input, or at a node that has an interval but no linear bounds."""
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
        node_f64 = self.node_of(node, lambda x: Input(f"value {x.id}", TensorType(f64, x.shape))())
        for x, g in zip(node.inputs, RULES[type(op)](node_f64, [a.node]), strict=True):
            if g is not None:
                self.pass_on(x, Term(g))
        if isinstance(op, LINEAR_MOVES):
            return
        terms, error = terms_and_error(node, self.c)
        self.err(node, a, self.sizes(node), error, self.c.rounding.floor * terms)
        self.winograd(node, a)

    def winograd(self, node: Node, a: Term) -> None:
        """Subtract the error of a convolution by Winograd's algorithm beyond that of a sum."""
        if isinstance(node.op, ops.Convolution):
            x, w = (self.c.of(v).magnitude for v in node.inputs)
            error = error_of_winograd(self.c.rounding, node, x, w)
            if error is not None:
                self.err(node, a, error, 1.0)

    def sizes(self, node: Node) -> Term:
        """The sum of the magnitudes that each element of a linear node sums."""
        if isinstance(node.op, (ops.Add, ops.Sub)):
            x, y = (self.c.of(v).magnitude for v in node.inputs)
            return x + y
        return Term(in_f64(node.op)(*(self.c.of(x).magnitude.node if x.dtype.is_float else x for x in node.inputs)))

    def offset(self, node: Node, a: Term) -> None:
        """Add the constant term of an affine node: its value where perturbed operands are 0."""
        if isinstance(node.op, (*CONTRACTIONS, ops.Mul, ops.Div)) or all(not self.c.is_exact(x) for x in node.inputs):
            return
        exact = [x for x in node.inputs if self.c.is_exact(x) and x.dtype.is_float]
        if exact and any(splat_of(x) != 0 for x in exact):
            value = self.node_of(node, lambda x: t.full(x.shape, 0.0, f64).node)
            self.dot(node, a, Term(value))
            self.err(node, a, absolute_value(Term(value)), 0.0)

    def node_of(self, node: Node, operand: Callable[[Node], Node]) -> Node:
        """The node in f64, with `operand` for each perturbed one."""
        operands = [
            (Term(x).cast(f64).node if x.dtype.is_float else x) if self.c.is_exact(x) else operand(x)
            for x in node.inputs
        ]
        return in_f64(node.op)(*operands)

    def relax(self, node: Node, a: Term) -> None:
        (x,) = node.inputs
        lines, interval = self.lines(node), self.c.of(x)
        positive, negative = maximum(a, 0.0), minimum(a, 0.0)
        self.dot(node, positive, lines.lower.offset)
        self.dot(node, negative, lines.upper.offset)
        if isinstance(node.op, Hinge):
            self.costs[node] = absolute_value(negative * lines.upper.offset)
        slopes = maximum(absolute_value(lines.lower.slope), absolute_value(lines.upper.slope))
        offsets = maximum(absolute_value(lines.lower.offset), absolute_value(lines.upper.offset))
        self.err(node, a, slopes * interval.magnitude + offsets, 0.0)
        if self.c.rounding.unit:
            f = function_of(node.op)
            ulps, slack = (1.0, 0.0) if f is None else (f.ulps, f.slack)
            self.err(node, a, self.c.of(node).magnitude, self.c.rounding.of_function(ulps), slack)
        self.pass_on(x, positive * lines.lower.slope + negative * lines.upper.slope)

    def largest(self, node: Node, a: Term) -> None:
        """Lower line: the operand with the largest lower bound. Upper line: the same operand if no other can be larger,
        else the largest upper bound."""
        xs, y = [self.c.of(x) for x in node.inputs], self.c.of(node)
        positive, negative = maximum(a, 0.0), minimum(a, 0.0)
        chosen: list[Term] = []
        is_open = y.lower.equals(y.lower)
        for x in xs:  # the first of those with this bound
            is_first = is_open & x.lower.equals(y.lower)
            chosen.append(is_first)
            is_open = is_open & is_first.map(ops.Not())
        other_upper = t.full(node.shape, -float("inf"), f64)
        for x, is_chosen in zip(xs, chosen, strict=True):
            other_upper = maximum(other_upper, where(is_chosen, -float("inf"), x.upper))
        is_known = other_upper <= y.lower
        self.dot(node, negative, where(is_known, 0.0, y.upper))
        self.err(node, a, y.magnitude, 0.0)
        for x, is_chosen in zip(node.inputs, chosen, strict=True):
            of_x = where(is_chosen, positive + where(is_known, negative, 0.0), 0.0)
            if self.c.is_exact(x):
                self.dot(node, of_x, self.c.of(x).lower)
            self.pass_on(x, of_x)

    def sort(self, node: Node, a: Term) -> None:
        """An element that is apart from all others has a known place; what other places hold are constants."""
        (x,), y = node.inputs, self.c.of(node)
        places = places_of(self.c.of(x))
        is_known = places.sum((places.rank - 1,), False)
        rest = a * (1.0 - is_known)
        self.dot(node, maximum(rest, 0.0), y.lower)
        self.dot(node, minimum(rest, 0.0), y.upper)
        self.err(node, a, y.magnitude, 0.0)
        size = int(node.shape[-1])
        spread = a.reshape((*a.shape, 1)).broadcast((*a.shape, size))
        self.pass_on(x, (spread * places).sum((places.rank - 2,), False))

    def lines(self, node: Node) -> Lines:
        lines = self.walk.lines.get(node)
        if lines is None:
            x = self.c.of(node.inputs[0])
            if isinstance(node.op, Hinge):
                alpha = self.walk.alphas.get(node)
                lines = lines_of_hinge(node.op, x, None if alpha is None else Term(alpha))
            else:
                f = function_of(node.op)
                assert f is not None
                lines = lines_of_function(f, x)
            self.walk.lines[node] = lines
        return lines

    def softmax(self, node: Node, softmax: SoftmaxParts, a: Term) -> None:
        """Pass coefficients from e^x / sum(e^x) to x: see `planes_of_softmax`."""
        f, p, dims = function_of(ops.Exp()), self.c.of(node), softmax.dims
        assert f is not None
        visible = None if softmax.visible is None else Term(softmax.visible)
        x = self.c.of(softmax.scores)
        planes = planes_of_softmax(f, x, p, visible, dims)
        magnitude = x.magnitude if visible is None else where(visible, x.magnitude, 0.0)
        of_x: Term | None = None
        for plane, part in zip(planes, (maximum(a, 0.0), minimum(a, 0.0)), strict=True):
            self.dot(node, part, plane.offset)
            factors = part * plane.factor
            mean = (plane.weights * magnitude).sum(dims).broadcast(magnitude.shape)
            self.err(node, part, plane.factor * (magnitude + mean) + absolute_value(plane.offset), 0.0)
            coefficients = factors - factors.sum(dims).broadcast(a.shape) * plane.weights
            of_x = coefficients if of_x is None else of_x + coefficients
        assert of_x is not None
        if self.c.rounding.unit:
            error = self.c.rounding.of_sum(product(node.shape[d] for d in dims)) + self.c.rounding.of_function(f.ulps)
            self.err(node, a, p.magnitude, 4 * error, 4 * self.c.rounding.floor)
        self.pass_on(softmax.scores, of_x)

    def bilinear(self, node: Node, a: Term) -> None:
        """Planes through the centers with equal slopes below and above, which cancel in a quotient: x y lies within
        rx ry of cy x + cx y - cx cy."""
        op, (x, y) = in_f64(node.op), node.inputs
        bx, by = self.c.of(x), self.c.of(y)
        for index, v in enumerate((x, y)):
            g = RULES[type(op)](op(bx.center.node, by.center.node), [a.node])[index]
            assert g is not None
            self.pass_on(v, Term(g))
        self.dot(node, a, -Term(op(bx.center.node, by.center.node)))
        self.dot(node, absolute_value(a), -Term(op(bx.radius.node, by.radius.node)))
        is_sum = isinstance(op, CONTRACTIONS)
        terms = contracted_terms(node) if is_sum else 1
        magnitude = Term(op(bx.magnitude.node, by.magnitude.node))
        rounding = self.c.rounding
        error = rounding.of_contraction(node, terms) if is_sum else rounding.of_function(0.5)
        # three products of this magnitude, each a sum
        own_error = (terms + 16) * 8 * F64_EPSILON
        self.err(node, a, magnitude, error + own_error, self.c.rounding.floor * terms)
        self.winograd(node, a)
        self.err(node, a, magnitude, 0.0)
        self.err(node, a, magnitude, 0.0)


def places_of(x: Interval) -> Term:
    """[..., place, element]: 1 where an element of the last axis surely has this place in rising order, else 0. Equal
    numbers keep their order."""
    *outer, size = x.lower.shape
    pairs = (*outer, size, size)

    def of_row(v: Term) -> Term:
        return v.reshape((*outer, size, 1)).broadcast(pairs)

    def of_column(v: Term) -> Term:
        return v.reshape((*outer, 1, size)).broadcast(pairs)

    row, column = (t.iota(pairs, len(outer) + i) for i in (0, 1))
    is_below = of_row(x.upper) <= of_column(x.lower)  # the element of the row is, the one of the column is not
    is_above = of_row(x.lower) >= of_column(x.upper)
    comes_first = is_below & t.term(t.logical_or(is_above.map(ops.Not()), row < column))
    comes_last = is_above & t.term(t.logical_or(is_below.map(ops.Not()), row > column))
    is_decided = comes_first | comes_last | row.equals(column)
    is_placed = is_decided.reduce("and", (len(outer),))
    place = comes_first.cast(f64).sum((len(outer),))
    return (is_placed.broadcast(pairs) & place.broadcast(pairs).equals(row.cast(f64))).cast(f64)


def origin(node: Node) -> Node:
    """The value whose bounds give those of the node: intervals of functions of one variable lose nothing, nor do copies
    of elements."""
    while (
        isinstance(node.op, (Hinge, ops.Reshape, ops.Transpose, ops.BroadcastInDim, ops.Reverse))
        or function_of(node.op) is not None
        or (isinstance(node.op, ops.Sub) and isinstance(source_of(node.inputs[1]).op, Shift))
    ):
        node = node.inputs[0]
    return node


def mixes(node: Node, is_exact: Callable[[Node], bool]) -> bool:
    """Whether the node combines several elements of perturbed values, so that an interval after it may be wider than
    its linear bounds."""
    if isinstance(node.op, (*CONTRACTIONS, ops.Reduce, ops.ReduceWindow, ops.CumReduce, ops.Sort)):
        return True
    return len([x for x in node.inputs if not is_exact(x)]) > 1 and not isinstance(node.op, ops.Concat)


def depths(nodes: Sequence[Node], is_exact: Callable[[Node], bool]) -> dict[Node, int]:
    """For each node the number of nodes on the path from the inputs that mix elements, at most 2; 2 after a nonlinear
    op."""
    depth_of: dict[Node, int] = {}
    for node in nodes:
        operand_depth = max((depth_of.get(x, 0) for x in node.inputs), default=0)
        is_nonlinear = isinstance(node.op, (Hinge, ops.Sort)) or function_of(node.op) is not None
        depth_of[node] = 2 if is_nonlinear else min(2, operand_depth + mixes(node, is_exact))
    return depth_of
