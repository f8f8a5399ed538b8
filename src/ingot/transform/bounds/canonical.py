"""Lower a MODEL graph to the canonical form for bounds: CORE ops and `forms`, equal over the real numbers.

relu(x)            ->  hinge(x)
max(a, b)          ->  hinge(a - b) + b
clamp(x)           ->  min(max(x, low), high)
x * logistic(x)    ->  silu(x)
a / b              ->  a * reciprocal(b)
sort, top_k        ->  sort along the last axis, in rising order
softmax(x)         ->  e * reciprocal(sum(e)), e = exp(x - shift(x))
max over a window  ->  a tree of binary maxima, each difference of which gets its own bounds, or one largest(...)
dequantize(quantize(x))  ->  clamp(x) + half a step * unknown(x)
while              ->  its unrolled iterations, where the trip count is a constant
case               ->  a selection from all branches
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from ingot import ops
from ingot.ir.dims import is_static
from ingot.ir.node import Graph, Node, Op, Project, const, splat_of
from ingot.ir.rewrite import Rule, RuleSet, rewrite, rules
from ingot.ir.types import boolean, f64
from ingot.ops.core.base import inverse
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.passes.constants import is_constant, value_of
from ingot.passes.core.dce import dce
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.simplify import simplify
from ingot.passes.core.transposed_conv import split_transposed
from ingot.passes.core.unroll import unroll
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.lower import lower_model_ops
from ingot.transform.bounds.forms import (
    Elu,
    Hinge,
    Largest,
    Power,
    Reciprocal,
    Remainder,
    Shift,
    Silu,
    Softplus,
    Square,
    Unknown,
)
from ingot.transform.bounds.rounding import Rounding

_MASKED_SCORE = {
    16: -6e4,
    32: -1e30,
    64: -1e30,
}  # by bits of the dtype: finite scores below all visible ones
_MAX_LARGEST_OPERANDS = 64
_MAX_TREE_TAPS = 1 << 12  # of a maximum that is lowered to a tree


def canonical(graph: Graph, rounding: Rounding, trees: bool = True) -> Graph:
    """See the module's docstring. Constants are folded in the model's own types first, so that they equal those of the
    program; only batch norms stay out of rounded weights for bounds over the real numbers. trees: whether maxima over
    windows become trees of binary maxima. rounding: with Winograd's algorithm transposed convolutions are split as the
    program splits them, as their parts may be computed by it."""
    folded = fold_constants(graph)
    norms = fold_batch_norm(folded) if rounding.unit else rewrite(folded, _norm_rules(), mandatory=True)
    lowered = lower_model_ops(rewrite(norms, model_rules(), mandatory=True))
    core = simplify(unroll(simplify(fold_constants(split_transposed(lowered) if rounding.winograd else lowered))))
    return dce(simplify(fold_constants(rewrite(core, _core_rules(trees), mandatory=True))))


# --- MODEL ops whose ordinary lowering would make bounds loose


@cache
def _norm_rules() -> RuleSet:
    return rules(Rule("batch-norm", ops.BatchNorm, _batch_norm))


def _batch_norm(n: Node) -> Node | None:
    """Scales and offsets in f64, as those in the model's type are rounded."""
    assert isinstance(n.op, ops.BatchNorm)
    if n.dtype == f64 or not all(map(is_constant, n.inputs[1:])):
        return None
    return ops.cast(n.op.lower(*(ops.cast(v, f64) for v in n.inputs)), n.dtype)


@cache
def model_rules() -> RuleSet:
    return rules(
        Rule("softmax", ops.Softmax, _softmax),
        Rule("log-softmax", ops.LogSoftmax, _log_softmax),
        Rule("log-sum-exp", ops.LogSumExp, _log_sum_exp),
        Rule("attention", ops.Attention, _attention),
        Rule("silu", ops.Silu, lambda n: Silu()(*n.inputs)),
        Rule("softplus", ops.Softplus, _softplus),
        Rule("elu", ops.Elu, _elu),
        Rule("dequantize", ops.Dequantize, _dequantized),
        *(Rule("weights", form, _weights) for form in ops.WEIGHT_FORMS),
    )


def _weights(n: Node) -> Node | None:
    return const(value_of(n), loc=n.loc) if all(map(is_constant, n.inputs)) else None


def _dequantized(n: Node) -> Node | None:
    """Dequantized levels lie within half a step of the value, plus the rounding of the quotient."""
    levels, *parameters = n.inputs
    if not isinstance(levels.op, ops.Quantize) or len(parameters) != 2:
        return None
    x, scale, zero = levels.inputs
    constants = [scale, zero, *parameters]
    if not all(map(is_constant, constants)):
        return None
    s, zero_point, result_zero, result_scale = (np.asarray(value_of(v), np.float32) for v in constants)
    if (
        (s <= 0).any()
        or (s != np.broadcast_to(result_scale, s.shape)).any()
        or (zero_point != np.broadcast_to(result_zero, zero_point.shape)).any()
    ):
        return None
    low, high = ((np.float32(end) - zero_point) * s for end in zero.dtype.range)
    radius = np.abs(s) * np.float32(0.50001) + np.maximum(np.abs(low), np.abs(high)) * np.float32(2.0**-21)
    clamped = ops.Min()(ops.Max()(x, const(np.broadcast_to(low, s.shape))), const(np.broadcast_to(high, s.shape)))
    return ops.Add()(clamped, ops.Mul()(Unknown()(x), const(np.broadcast_to(radius, s.shape))))


def _softplus(n: Node) -> Node | None:
    """Above its threshold the op is the identity, which differs by less than e^-20 (see `functions`)."""
    op, x = n.op, Term(n.inputs[0])
    assert isinstance(op, ops.Softplus)
    if op.threshold < 20 or op.beta < 1:
        return None
    return ((x * op.beta).map(Softplus()) / op.beta).node


def _elu(n: Node) -> Node | None:
    assert isinstance(n.op, ops.Elu)
    return Elu(n.op.alpha)(*n.inputs) if 0 < n.op.alpha <= 1 else None


def _exponentials(x: Term, axis: int) -> tuple[Term, Term]:
    """e^(x - shift) for visible scores and 0 for hidden ones, which are -inf; and the sums, 1 where all are hidden."""
    return _visible_exponentials(*_split_mask(x), axis)


def _visible_exponentials(x: Term, visible: Term | None, axis: int) -> tuple[Term, Term]:
    """See `_exponentials`. x: finite scores."""
    if visible is None:
        e = t.exp(x - x.map(Shift(axis)))
        return e, e.sum((axis,))
    x = t.term(t.where(visible, x, _MASKED_SCORE[x.dtype.bits]))
    e = t.term(t.where(visible, t.exp(x - x.map(Shift(axis))), 0.0))
    return e, t.term(t.where(visible.reduce("or", (axis,)), e.sum((axis,)), 1.0))


def _split_mask(x: Term) -> tuple[Term, Term | None]:
    """(finite scores s, the mask of visible ones or None) of select(mask, s, -inf) and of s + mask with -inf in the
    mask."""
    op, inputs = x.node.op, x.node.inputs
    if isinstance(op, ops.Select):
        condition, a, b = map(Term, inputs)
        for scores, hidden, visible in ((a, b, condition), (b, a, condition.map(ops.Not()))):
            if splat_of(hidden.node) == -np.inf:
                inner, inner_visible = _split_mask(scores)
                return inner, visible if inner_visible is None else visible & inner_visible
    if isinstance(op, ops.Add):
        for scores, mask in (inputs, inputs[::-1]):
            if is_constant(mask) and np.isneginf(value_of(mask)).any():
                return _split_additive_mask(Term(scores), Term(mask))
    return x, None


def _split_additive_mask(x: Term, mask: Term) -> tuple[Term, Term]:
    """mask: finite where x is visible, -inf where it is hidden."""
    visible = mask.equals(-np.inf).map(ops.Not())
    return x + t.term(t.where(visible, mask, 0.0)), visible


def _normalized(x: Term, axis: int) -> Term:
    e, total = _exponentials(x, axis)
    return e * total.map(Reciprocal())


def _softmax(n: Node) -> Node | None:
    op, x = n.op, Term(n.inputs[0])
    assert isinstance(op, ops.Softmax)
    return _normalized(x, op.axis).node if _has_elements(n, op.axis) else None


def _log_softmax(n: Node) -> Node | None:
    op, x = n.op, Term(n.inputs[0])
    assert isinstance(op, ops.LogSoftmax)
    shifted = x - x.map(Shift(op.axis))
    return (shifted - t.log(t.exp(shifted).sum((op.axis,)))).node if _has_elements(n, op.axis) else None


def _log_sum_exp(n: Node) -> Node | None:
    op, (x,) = n.op, n.inputs
    assert isinstance(op, ops.LogSumExp)
    if len(op.axes) != 1 or not _has_elements(x, op.axes[0]):
        return None
    (axis,) = op.axes
    shift = Term(x).map(Shift(axis))
    y = t.log(t.exp(Term(x) - shift).sum((axis,))) + shift
    return y.reshape(n.shape).node


def _has_elements(x: Node, axis: int) -> bool:
    size = x.shape[axis]
    return isinstance(size, int) and size > 0


def _attention(n: Node) -> Node | None:
    """The softmax of the visible scores times the values."""
    op, (q, k, v, *masks) = n.op, n.inputs
    assert isinstance(op, ops.Attention)
    if op.scaled or op.indexed or not is_static((*n.shape, *k.shape)) or not _has_elements(k, 2):
        return None
    scores, visible = op.scores(q, k), None
    key_axis = scores.rank - 1
    for mask in masks:
        score_mask = op.mask_of_scores(scores, Term(mask)).broadcast(scores.shape)
        scores, visible = (scores, score_mask) if mask.dtype == boolean else _split_additive_mask(scores, score_mask)
    if op.causal != "none":
        rows, cols = scores.shape[-2:]
        earlier = op.causal_mask(rows, cols, op.offset(rows, cols)).broadcast(scores.shape)
        visible = earlier if visible is None else visible & earlier
    e, total = _visible_exponentials(scores, visible, key_axis)
    y = t.contract(e * total.map(Reciprocal()), t.widen_narrow(v), [(key_axis, 2)], [(0, 0), (1, 1)])
    return y.reshape((*q.shape[:3], v.shape[3])).cast(q.dtype).node


# --- CORE ops


@cache
def _core_rules(trees: bool) -> RuleSet:
    return rules(
        Rule("max", ops.Max, _floats_only(_max)),
        Rule("min", ops.Min, _floats_only(_min)),
        Rule("clamp", ops.Clamp, _floats_only(lambda n: ops.Min()(ops.Max()(n.inputs[1], n.inputs[0]), n.inputs[2]))),
        Rule("abs", ops.Abs, _floats_only(lambda n: Hinge(-1.0, 1.0)(*n.inputs))),
        Rule("select", ops.Select, _floats_only(_leaky)),
        Rule("floored", ops.Select, _floats_only(_floored)),
        Rule("mul", ops.Mul, _floats_only(_mul)),
        Rule("log1p", ops.Log1p, _floats_only(lambda n: ops.Log()(ops.add(n.inputs[0], 1.0)))),
        Rule("power", ops.Pow, _floats_only(_power)),
        Rule("div", ops.Div, _floats_only(_div)),
        Rule("remainder", ops.Rem, _floats_only(_remainder)),
        Rule("sort", ops.Sort, _sorted),
        Rule("sorted", Project, _sorted),
        Rule("reduce", ops.Reduce, _floats_only(lambda n: _reduce(n, trees))),
        Rule("window", ops.ReduceWindow, _floats_only(lambda n: _window(n, trees))),
    )


def _floats_only(rule: Callable[[Node], Node | None]) -> Callable[[Node], Node | None]:
    return lambda n: rule(n) if n.dtype.is_float else None


def _max(n: Node) -> Node:
    a, b = n.inputs
    if is_constant(a):
        a, b = b, a
    if splat_of(b) == 0:
        return Hinge()(a)
    return ops.Add()(Hinge()(ops.Sub()(a, b)), b)


def _min(n: Node) -> Node:
    a, b = n.inputs
    if is_constant(a):
        a, b = b, a
    return ops.Sub()(b, Hinge()(ops.Sub()(b, a)))


def _leaky(n: Node) -> Node | None:
    """x > 0 ? x : c * x"""
    condition, *branches = n.inputs
    if_true, if_false = branches
    if not isinstance(condition.op, ops.Compare) or splat_of(condition.inputs[1]) != 0:
        return None
    x = condition.inputs[0]
    if condition.op.direction in ("LT", "LE"):
        if_true, if_false = if_false, if_true
    elif condition.op.direction not in ("GT", "GE"):
        return None
    positive_slope, negative_slope = _multiple(if_true, x), _multiple(if_false, x)
    return None if negative_slope is None or positive_slope is None else Hinge(negative_slope, positive_slope)(x)


def _multiple(y: Node, x: Node) -> float | None:
    """c if y = c * x, else None."""
    if y is x:
        return 1.0
    if splat_of(y) == 0:
        return 0.0
    if isinstance(y.op, ops.Neg) and y.inputs[0] is x:
        return -1.0
    if isinstance(y.op, ops.Mul) and x in y.inputs:
        other = y.inputs[1] if y.inputs[0] is x else y.inputs[0]
        factor = splat_of(other)
        return None if factor is None else float(factor)
    return None


def _mul(n: Node) -> Node | None:
    a, b = n.inputs
    if a is b:
        return Square()(a)
    for x, y in ((a, b), (b, a)):
        if isinstance(y.op, ops.Logistic) and y.inputs[0] is x:
            return Silu()(x)
    return None


def _power(n: Node) -> Node | None:
    exponent = splat_of(n.inputs[1])
    x = n.inputs[0]
    if exponent == 2:
        return Square()(x)
    if exponent == 3:
        return ops.Mul()(Square()(x), x)
    if exponent == 0.5:
        return ops.Sqrt()(x)
    if exponent == -1:
        return Reciprocal()(x)
    return Power(float(exponent))(x) if exponent and np.isfinite(exponent) else None


def _remainder(n: Node) -> Node | None:
    divisor = splat_of(n.inputs[1])
    return Remainder(abs(float(divisor)))(n.inputs[0]) if divisor and np.isfinite(divisor) else None


def _floored(n: Node) -> Node | None:
    """r < 0 ? r + d : r of a remainder r of x / d, where r != 0 may be asked besides."""
    condition, shifted, r = n.inputs
    if not isinstance(r.op, Remainder) or not isinstance(shifted.op, ops.Add) or r not in shifted.inputs:
        return None
    (other,) = [v for v in shifted.inputs if v is not r] or [r]
    tests = condition.inputs if isinstance(condition.op, ops.And) else (condition,)
    asked = {getattr(v.op, "direction", "") for v in tests if v.inputs[0] is r and splat_of(v.inputs[-1]) == 0}
    is_below = asked in ({"LT"}, {"LT", "NE"}) and len(asked) == len(tests)
    return replace(r.op, floored=True)(*r.inputs) if is_below and splat_of(other) == r.op.divisor else None


def _sorted(n: Node) -> Node | None:
    """The first key alone, in rising order along the last axis."""
    source = n.inputs[0] if n.op == Project(0) else n
    op = source.op
    if not isinstance(op, ops.Sort) or len(n.types) != 1 or not n.dtype.is_float:
        return None
    x, *others = source.inputs
    last = len(x.shape) - 1
    if op.num_keys != 1 or (not others and op == ops.Sort(last)):
        return None
    order = (*(d for d in range(last + 1) if d != op.dimension), op.dimension)
    keys = ops.transpose(ops.Neg()(x) if op.descending else x, order)
    y = ops.transpose(ops.Sort(last)(keys), inverse(order))
    y = y if op.count is None else ops.slice_axis(y, op.dimension, 0, op.count)
    return ops.Neg()(y) if op.descending else y


def _div(n: Node) -> Node | None:
    a, b = n.inputs
    if is_constant(b):
        return None
    y = Reciprocal()(b)
    return y if splat_of(a) == 1 else ops.Mul()(a, y)


def _reduce(n: Node, trees: bool) -> Node | None:
    """max over [a, b, c] -> max(max(a, c), b)"""
    op, (x,) = n.op, n.inputs
    assert isinstance(op, ops.Reduce)
    if op.kind not in ("max", "min") or not is_static(x.shape):
        return None
    kept_dims = [d for d in range(len(x.shape)) if d not in op.dims]
    elements = ops.flatten(ops.transpose(x, (*op.dims, *kept_dims)), 0, len(op.dims) - 1) if op.dims else None
    if elements is None or not 0 < int(elements.shape[0]) <= _MAX_TREE_TAPS:
        return None
    if not trees and int(elements.shape[0]) <= _MAX_LARGEST_OPERANDS:
        parts = [ops.slice_axis(elements, 0, i, i + 1) for i in range(int(elements.shape[0]))]
        return ops.Reshape(n.shape)(_largest(parts, op.kind))
    merge = ops.Max() if op.kind == "max" else ops.Min()
    while (size := int(elements.shape[0])) > 1:
        half = (size + 1) // 2
        low, high = ops.slice_axis(elements, 0, 0, size - half), ops.slice_axis(elements, 0, half, size)
        merged = merge(low, high)
        elements = (
            merged if half == size - half else ops.concat([merged, ops.slice_axis(elements, 0, half - 1, half)], 0)
        )
    return ops.Reshape(n.shape)(elements)


def _window(n: Node, trees: bool) -> Node | None:
    """Like `_reduce` for windows, over their taps, each of which is a slice of the padded image."""
    op, (x,) = n.op, n.inputs
    assert isinstance(op, ops.ReduceWindow)
    if op.kind not in ("max", "min") or not is_static((*x.shape, *n.shape)):
        return None
    op = op.narrowed(x.type)
    if any(b != 1 for b in op.base_dilation) or not 0 < np.prod(op.window) <= _MAX_TREE_TAPS:
        return None
    padded = x
    for axis, (pair, window, dilation) in enumerate(zip(op.padding, op.window, op.dilation, strict=True)):
        low, high = pair
        if pair == (0, 0):
            continue
        if dilation != 1 or not (0 <= low < window and 0 <= high < window):
            return None
        # pad with the edge element: every window that reaches over the border contains it, so its maximum is the same
        size = padded.shape[axis]
        first, last = ops.slice_axis(padded, axis, 0, 1), ops.slice_axis(padded, axis, size - 1, size)
        padded = ops.concat([*[first] * low, padded, *[last] * high], axis)
    taps: list[Node] = []
    for tap in np.ndindex(*op.window):
        starts = tuple(i * d for i, d in zip(tap, op.dilation, strict=True))
        ends = tuple(lo + (int(c) - 1) * s + 1 for lo, c, s in zip(starts, n.shape, op.strides, strict=True))
        taps.append(ops.Slice(starts, ends, op.strides)(padded))
    if not trees and len(taps) <= _MAX_LARGEST_OPERANDS:
        return _largest(taps, op.kind)
    merge: Op = ops.Max() if op.kind == "max" else ops.Min()
    return _tree(taps, merge)


def _largest(parts: Sequence[Node], kind: str) -> Node:
    if len(parts) == 1:
        return parts[0]
    return Largest()(*parts) if kind == "max" else ops.Neg()(Largest()(*(ops.Neg()(p) for p in parts)))


def _tree(parts: Sequence[Node], merge: Op) -> Node:
    while len(parts) > 1:
        pairs = [merge(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, parts[-1]] if len(parts) % 2 else pairs
    return parts[0]
