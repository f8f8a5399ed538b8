"""MODEL ops with a cheaper reverse than that of their lowering: softmax and its relatives, norms, attention.

Each rule reads the results, or recomputes the standardized values, and needs one row sum for each mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.autodiff.reverse import pull_back_cotangents
from ingot.autodiff.table import RULES, reverse
from ingot.ir.dims import product
from ingot.ir.node import Node
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term


@reverse(ops.Softmax)
def _softmax(node: Node, g: Node) -> list[Node]:
    """y (g - sum g y)."""
    assert isinstance(node.op, ops.Softmax)
    y, wide = t.widen_narrow(node), t.widen_narrow(g)
    return [(y * (wide - (wide * y).sum((node.op.axis,)))).cast(g.dtype).node]


@reverse(ops.LogSoftmax)
def _log_softmax(node: Node, g: Node) -> list[Node]:
    """g - e^y sum g."""
    assert isinstance(node.op, ops.LogSoftmax)
    y, wide = t.widen_narrow(node), t.widen_narrow(g)
    return [(wide - t.exp(y) * wide.sum((node.op.axis,))).cast(g.dtype).node]


@reverse(ops.LogSumExp)
def _log_sum_exp(node: Node, g: Node) -> list[Node]:
    """g e^(x - y)."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.LogSumExp)
    y, wide = (
        v.reshape(tuple(d for i, d in enumerate(x.shape) if i not in op.axes)).restore(x.shape, op.axes)
        for v in (t.widen_narrow(node), t.widen_narrow(g))
    )
    return [(wide * t.exp(t.widen_narrow(x) - y)).cast(x.dtype).node]


@reverse(ops.LayerNorm)
def _layer_norm(node: Node, g: Node) -> list[Node]:
    op = node.op
    assert isinstance(op, ops.LayerNorm)
    x = t.widen_narrow(node.inputs[0])
    centred = x - x.mean(op.axes)
    return _norm_gradients(node, g, op.axes, op.eps, centred, True)


@reverse(ops.RMSNorm)
def _rms_norm(node: Node, g: Node) -> list[Node]:
    op = node.op
    assert isinstance(op, ops.RMSNorm)
    return _norm_gradients(node, g, op.axes, op.eps, t.widen_narrow(node.inputs[0]), False)


def _norm_gradients(node: Node, g: Node, axes: tuple[int, ...], eps: float, x: Term, is_centred: bool) -> list[Node]:
    """r (h - z mean h z [- mean h]) with h = g scale and z = r x: Ba et al. 2016, "Layer normalization"."""
    first, *parameters = node.inputs
    wide = t.widen_narrow(g)
    r = t.rsqrt((x * x).mean(axes) + eps)
    z = x * r
    h = wide * _broadcast_parameter(parameters[0], z, axes) if parameters else wide
    inner = h - z * (h * z).mean(axes)
    gradients = [(r * (inner - h.mean(axes) if is_centred else inner)).cast(first.dtype).node]
    sums = (wide * z, wide)
    return gradients + [_sum_to_parameter(s, p, axes).node for s, p in zip(sums, parameters, strict=False)]


def _standardize(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """r (g - mean g - y mean g y) + h / n + 2 (x - m) k / n; cotangents: g of y, h of the mean m, k of the variance.

    Where g = a s with a scale s that is constant along the axes, the means of g are s times those of a. Their sums are
    also the gradients of a shift and a scale applied to y, and are shared with them.
    """
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.Standardize)
    y, mean, variance = map(Term, node.results)
    wide, axes = t.widen_narrow(x), op.axes
    g, h, k = cotangents
    parts: list[Term] = []
    if g is not None:
        a, s = _split_scale(g, axes)
        inner = t.widen_narrow(a)
        shift, scale = (v.mean(axes, keepdims=False) for v in (inner, inner * t.widen_narrow(y.node)))
        shift, scale = (v if s is None else v * s.cast(v.dtype) for v in (shift, scale))
        r = t.rsqrt(variance + op.eps).restore(x.shape, axes)
        parts.append(
            (t.widen_narrow(g) - shift.restore(x.shape, axes) - y.cast(wide.dtype) * scale.restore(x.shape, axes)) * r
        )
    count = t.size(product(x.shape[d] for d in axes), wide.dtype)
    if h is not None:
        parts.append((Term(h) / count).restore(x.shape, axes))
    if k is not None:
        parts.append((wide - mean.restore(x.shape, axes)) * (Term(k) * 2.0 / count).restore(x.shape, axes))
    if not parts:
        return [None]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return [total.cast(x.dtype).node]


RULES[ops.Standardize] = _standardize


def _split_scale(g: Node, axes: tuple[int, ...]) -> tuple[Node, Term | None]:
    """(a, s) with g = a s, where s is constant along `axes` and lacks them; (g, None) if g is no such product."""
    for a, s in (g.inputs, g.inputs[::-1]) if isinstance(g.op, ops.Mul) else ():
        if not isinstance(s.op, ops.BroadcastInDim):
            continue
        (v,) = s.inputs
        varying = [(d, size) for d, size in zip(s.op.dims, v.shape, strict=True) if d not in axes]
        if product(v.shape) != product(size for _, size in varying):
            continue
        free_axes = [d for d in range(len(g.shape)) if d not in axes]
        row = Term(v).reshape(tuple(size for _, size in varying))
        return a, row.spread(tuple(g.shape[d] for d in free_axes), [free_axes.index(d) for d, _ in varying])
    return g, None


@reverse(ops.Attention)
def _attention(node: Node, g: Node) -> list[Node | None]:
    """Scores are recomputed block by block."""
    op, (q, k, v, *mask) = node.op, node.inputs
    assert isinstance(op, ops.Attention)
    if op.indexed:
        return pull_back_cotangents([(op.lower(*node.inputs), g)], list(node.inputs))
    gradient_op = ops.AttentionGradients(op.causal, op.scale, op.softcap, op.guarded)
    saved = gradient_op.forward_with_sums(q, k, v, *mask, loc=node.loc).results
    return [*gradient_op(q, k, v, g, *mask, loc=node.loc).results, *_of_masks(gradient_op, node, (g, *saved))]


def _attention_with_sums(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """As `_attention`, from the sums of exponentials and with dropout. A cotangent of the sums is a case for tests."""
    op, (q, k, v, *others), (g, of_sums) = node.op, node.inputs, cotangents
    assert isinstance(op, ops.AttentionWithSums)
    if g is None or of_sums is not None or op.by_row:
        outputs = zip(op.lower(*node.inputs), cotangents, strict=True)
        return pull_back_cotangents([(x, h) for x, h in outputs if h is not None], list(node.inputs))
    gradient_op = ops.AttentionGradients(op.causal, op.scale, op.softcap, op.guarded, dropout=op.dropout)
    saved = g, *node.results
    return [*gradient_op(q, k, v, *saved, *others, loc=node.loc).results, *_of_masks(gradient_op, node, saved)]


def _of_masks(op: ops.AttentionGradients, node: Node, saved: Sequence[Node]) -> list[Node | None]:
    """The gradients of attention's operands behind q, k and v. saved: g, y and sums."""
    mask_op = ops.AttentionMaskGradient(op.causal, op.scale, op.softcap, op.guarded, dropout=op.dropout)
    q, k, v, *others = node.inputs
    has_gradient = [x.dtype.is_float and x.constant is None for x in others]
    return [mask_op(q, k, v, *saved, *others, loc=node.loc) if has else None for has in has_gradient]


RULES[ops.AttentionWithSums] = _attention_with_sums


def _parameter_axes(p: Node, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of x to which the axes of a parameter correspond."""
    return axes[len(axes) - len(p.shape) :]


def _broadcast_parameter(p: Node, x: Term, axes: tuple[int, ...]) -> Term:
    return t.widen_narrow(p).cast(x.dtype).spread(x.shape, _parameter_axes(p, axes))


def _sum_to_parameter(x: Term, p: Node, axes: tuple[int, ...]) -> Term:
    """x summed to the shape of a parameter."""
    kept_axes = [d for d, size in zip(_parameter_axes(p, axes), p.shape, strict=True) if size == x.shape[d]]
    summed_axes = [d for d in range(x.rank) if d not in kept_axes]
    assert product(p.shape) == product(x.shape[d] for d in kept_axes)
    return x.sum(summed_axes, keepdims=False).reshape(p.shape).cast(p.dtype)
