"""Bounds forward: each value as an affine form in the inputs, computed in one pass.

de Figueiredo and Stolfi, Affine Arithmetic, Numerical Algorithms 37, 2004, with one error term for each element. A
value is

    center + sum over k of slopes[k] * e[k] +- radius,    e[k] in [-1, 1] for each element k of the inputs.

A pass has as many rows as the inputs have elements, whatever the number of values: where these are few it costs less
than a walk back from each value, and tells more than intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot import ops
from ingot.ir.dims import product
from ingot.ir.node import Input, Node
from ingot.ir.types import TensorType, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass
from ingot.transform.bounds.crown import CONTRACTIONS, is_linear, is_product, terms_and_error
from ingot.transform.bounds.forms import Hinge, RoundedToBytes
from ingot.transform.bounds.functions import function_of
from ingot.transform.bounds.intervals import Intervals
from ingot.transform.bounds.lines import Lines, lines_of_function, lines_of_hinge
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
    unit_and_tiny,
    where,
)
from ingot.transform.vectorize import vectorize


@dataclass(frozen=True, eq=False)
class Affine:
    """center, radius: of the value's shape. slopes: [elements of the inputs, *shape]. All in f64."""

    center: Term
    slopes: Term
    radius: Term

    @property
    def deviation(self) -> Term:
        """The largest distance from the center."""
        return absolute_value(self.slopes).sum((0,), False) + self.radius

    @property
    def magnitude(self) -> Term:
        return absolute_value(self.center) + self.deviation


class Forward:
    """The affine forms of the values of a graph. Nodes are added in topological order, after their intervals."""

    def __init__(self, intervals: Intervals, inputs: Sequence[Node]) -> None:
        self.c = intervals
        self.forms: dict[Node, Affine] = {}
        sizes = [int(product(x.shape)) for x in inputs]
        self.count = sum(sizes)
        # the forms' own arithmetic errs relative to magnitudes by less than this
        self.error = (self.count + 64) * 4 * F64_EPSILON
        for i, (x, size) in enumerate(zip(inputs, sizes, strict=True)):
            box, table = self.c.of(x), (self.count, size)
            is_own = t.iota(table, 0).equals(t.iota(table, 1) + sum(sizes[:i])).cast(f64)
            slopes = (is_own * box.radius.reshape((size,))).reshape((self.count, *x.shape))
            self.forms[x] = Affine(box.center, slopes, box.magnitude * self.error)

    def add(self, node: Node) -> None:
        """Compute the form of a node, and narrow its interval by it."""
        if self.c.is_exact(node) or node in self.forms or len(node.types) != 1 or not node.dtype.is_float:
            return
        interval = self.c.of(node)
        form = self.form(node)
        if form is None:
            self.forms[node] = self.constant(interval)
            return
        deviation = form.deviation
        reach = deviation + (absolute_value(form.center) + deviation) * self.error
        is_known = reach < float("inf")  # not where it is NaN
        constant = self.constant(interval)
        parts = zip(
            (form.center, form.slopes, form.radius), (constant.center, constant.slopes, constant.radius), strict=True
        )
        self.forms[node] = Affine(*(where(is_known.broadcast(v.shape), v, other) for v, other in parts))
        self.c.values[node] = Interval(
            where(is_known, maximum(form.center - reach, interval.lower), interval.lower),
            where(is_known, minimum(form.center + reach, interval.upper), interval.upper),
        )

    def constant(self, interval: Interval) -> Affine:
        slopes = t.full((self.count, *interval.lower.shape), 0.0, f64)
        return Affine(interval.center, slopes, interval.radius + interval.magnitude * self.error)

    def form(self, node: Node) -> Affine | None:
        """None for a node that has an interval alone."""
        perturbed = [x for x in node.inputs if not self.c.is_exact(x)]
        if not perturbed or any(x not in self.forms for x in perturbed):
            return None
        if isinstance(node.op, RoundedToBytes):
            x = self.forms[node.inputs[0]]
            radius = rounding_to_bytes(self.c.of(node.inputs[0]).magnitude, node.op.dims)
            return Affine(x.center, x.slopes, x.radius + radius * (1 + self.error))
        if isinstance(node.op, Hinge) or function_of(node.op) is not None:
            return self.relaxed(node)
        if is_product(node) and len(perturbed) == 2:
            return self.bilinear(node)
        return self.linear(node) if is_linear(node, self.c) else None

    def apply(
        self, node: Node, operands: Mapping[Node, Term], rest: float | None = None, is_absolute: bool = False
    ) -> Term:
        """The node in f64 with these operands. Exact ones are as they are; those that are added, not multiplied, are
        `rest` if given. is_absolute: magnitudes in place of exact operands, sums in place of differences."""
        is_factor = isinstance(node.op, (ops.Mul, ops.Div, *CONTRACTIONS))
        values: list[Node] = []
        for x in node.inputs:
            if x in operands:
                values.append(operands[x].node)
            elif not x.dtype.is_float:
                values.append(x)
            elif rest is not None and not is_factor:
                values.append(t.full(x.shape, rest, f64).node)
            else:
                exact = Term(x).cast(f64)
                values.append((absolute_value(exact) if is_absolute else exact).node)
        op = in_f64(node.op)
        if is_absolute and isinstance(op, (ops.Sub, ops.Neg)):
            return Term(values[0]) + Term(values[1]) if isinstance(op, ops.Sub) else Term(values[0])
        return Term(op(*values))

    def linear(self, node: Node) -> Affine:
        forms = {x: self.forms[x] for x in node.inputs if x in self.forms}
        if isinstance(node.op, ops.Convert):
            (form,) = forms.values()
            if not self.c.rounding.unit or node.dtype.bits >= node.inputs[0].dtype.bits:
                return form
            unit, tiny = unit_and_tiny(node.dtype)
            return Affine(form.center, form.slopes, form.radius + form.magnitude * (2 * unit) + tiny)
        rows = {x: Input(f"slopes {x.id}", TensorType(f64, x.shape))() for x in forms}
        of_row = self.apply(node, {x: Term(v) for x, v in rows.items()}, 0.0)
        (slopes,) = vectorize([of_row.node], {rows[x]: form.slopes.node for x, form in forms.items()})
        terms, error = terms_and_error(node, self.c)
        magnitudes = {x: form.magnitude for x, form in forms.items()}
        size = self.apply(node, magnitudes, is_absolute=True)
        radius = self.apply(node, {x: form.radius for x, form in forms.items()}, 0.0, is_absolute=True)
        radius = radius + size * (error + self.error + terms * 4 * F64_EPSILON) + self.c.rounding.floor * terms
        if isinstance(node.op, ops.Convolution):
            x, w = (magnitudes.get(v, self.c.of(v).magnitude) for v in node.inputs)
            winograd = error_of_winograd(self.c.rounding, node, x, w)
            radius = radius if winograd is None else radius + winograd
        return Affine(self.apply(node, {x: form.center for x, form in forms.items()}), Term(slopes), radius)

    def relaxed(self, node: Node) -> Affine:
        """From lines of different slopes two of their mean slope: the difference is constant, over the interval."""
        (x,) = node.inputs
        form, interval = self.forms[x], self.c.of(x)
        lines = self.lines(node, interval)
        slope = (lines.lower.slope + lines.upper.slope) * 0.5
        low, high = (
            [(line.slope - slope) * v for v in (interval.lower, interval.upper)] for line in (lines.lower, lines.upper)
        )
        lowest, highest = lines.lower.offset + minimum(*low), lines.upper.offset + maximum(*high)
        sizes = absolute_value(slope) * (form.magnitude + interval.magnitude * 2.0)
        sizes = sizes + absolute_value(lines.lower.offset) + absolute_value(lines.upper.offset)
        sizes = sizes + (absolute_value(lines.lower.slope) + absolute_value(lines.upper.slope)) * interval.magnitude
        radius = absolute_value(slope) * form.radius + (highest - lowest) * 0.5 + sizes * self.error
        if self.c.rounding.unit:
            f = function_of(node.op)
            ulps, slack = (1.0, 0.0) if f is None else (f.ulps, f.slack)
            radius = radius + self.c.of(node).magnitude * self.c.rounding.of_function(ulps) + slack
        radius = radius + self.c.rounding.floor
        return Affine(slope * form.center + (lowest + highest) * 0.5, slope * form.slopes, radius)

    def lines(self, node: Node, x: Interval) -> Lines:
        """Parallel ones for a hinge: both have the chord's slope."""
        if not isinstance(node.op, Hinge):
            f = function_of(node.op)
            assert f is not None
            return lines_of_function(f, x)
        return lines_of_hinge(node.op, x, maximum(x.upper, 0.0) / (maximum(x.upper, 0.0) + maximum(-x.lower, 0.0)))

    def bilinear(self, node: Node) -> Affine:
        """x y = cx cy + cx (y - cy) + cy (x - cx) + (x - cx) (y - cy)"""
        op, (x, y) = in_f64(node.op), node.inputs
        a, b = self.forms[x], self.forms[y]

        def apply(u: Term, v: Term) -> Term:
            return Term(op(u.node, v.node))

        row_x, row_y = (Term(Input(f"slopes of {v.id}", TensorType(f64, v.shape))()) for v in (x, y))
        slopes_of_x, slopes_of_y = (
            Term(vectorize([part.node], {row.node: form.slopes.node})[0])
            for part, row, form in ((apply(row_x, b.center), row_x, a), (apply(a.center, row_y), row_y, b))
        )
        radius = apply(a.radius, absolute_value(b.center)) + apply(absolute_value(a.center), b.radius)
        radius = radius + apply(a.deviation, b.deviation)
        is_sum = isinstance(op, CONTRACTIONS)
        terms = contracted_terms(node) if is_sum else 1
        rounding = self.c.rounding
        error = rounding.of_contraction(node, terms) if is_sum else rounding.of_function(0.5)
        size = apply(a.magnitude, b.magnitude)
        radius = (
            radius + size * (error + (terms + 16) * 8 * F64_EPSILON + 4 * self.error) + self.c.rounding.floor * terms
        )
        winograd = error_of_winograd(self.c.rounding, node, a.magnitude, b.magnitude)
        radius = radius if winograd is None else radius + winograd
        return Affine(apply(a.center, b.center), slopes_of_x + slopes_of_y, radius)
