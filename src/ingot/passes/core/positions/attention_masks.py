"""Masks that only compare positions become attributes of attention, which then skips hidden keys.

attention(q, k, v, select(row >= col, 0, -inf))          ->   attention{causal}(q, k, v)
attention(q, k, v, select(row >= col and p, 0, -inf))    ->   attention{causal}(q, k, v, p)
attention(q, k, v, select(row >= col, 0, -inf) + m)      ->   attention{causal}(q, k, v, m)
attention(q, k, v, 0)                                    ->   attention(q, k, v)
attention(q, k, v, f(broadcast(a), broadcast(b)))        ->   attention(q, k, v, f(a, b)), of one head and sample

The same for attention whose gradients are taken, and for its gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, is_at_most
from ingot.ir.node import Node, splat_of
from ingot.ir.rewrite import Result, Rule, RuleSet, rules
from ingot.ir.types import TensorType, bf16, boolean, f16, f32
from ingot.ops.core.elementwise import Elementwise
from ingot.passes.constants import interval
from ingot.passes.core.positions.affine import Affine
from ingot.passes.core.positions.rules import Positions
from ingot.support.dataclass import dataclass

View = Callable[[Node], Node]
# the largest numbers that hide a score; in 16 bits PyTorch has float16's for a condition
_MAX_HIDDEN_SCORES = {d: float(np.finfo(d.numpy if d == f32 else np.float16).min) for d in (f32, f16, bf16)}
_ATTENTION = ops.Attention, ops.AttentionWithSums, ops.AttentionGradients


def mask_rules(positions: Positions) -> RuleSet:
    """The rules of this module, given the analysis of positions."""
    idle = (Rule("idle-mask", op, _idle) for op in _ATTENTION)
    shared = (Rule("shared-mask", op, _shared) for op in _ATTENTION)
    return rules(*idle, *shared, *(Rule("causal-mask", op, lambda n: _causal(n, positions)) for op in _ATTENTION))


def _idle(n: Node) -> Result | None:
    """attention with a mask that is true, or 0, everywhere -> attention without"""
    assert isinstance(n.op, _ATTENTION)
    masks = n.op.mask(n.inputs)
    value = splat_of(masks[0]) if masks else None
    # another number is not neutral: a large one absorbs the scores that it is added to
    if value is None or bool(value) != (masks[0].dtype == boolean):
        return None
    (at,) = n.op.mask(range(len(n.inputs)))
    return _result(n.op(*n.inputs[:at], *n.inputs[at + 1 :], loc=n.loc))


def _shared(n: Node) -> Result | None:
    """A mask that is computed for each head or sample, all alike, is computed once: attention broadcasts it."""
    assert isinstance(n.op, _ATTENTION)
    for mask, at in zip(n.op.mask(n.inputs), n.op.mask(range(len(n.inputs))), strict=True):
        axes = frozenset(d for d in range(mask.type.rank - 2) if mask.shape[d] != 1)
        if isinstance(mask.op, Elementwise) and (axes := axes & _constant_axes(mask, {})):
            return _result(n.op(*n.inputs[:at], _at_first(mask, axes, {}), *n.inputs[at + 1 :], loc=n.loc))
    return None


def _constant_axes(x: Node, known: dict[Node, frozenset[int]]) -> frozenset[int]:
    """The axes along which all elements of a computed value are the same, by its ops. known: those of other values."""
    if x in known:
        return known[x]
    axes = frozenset(range(x.type.rank))
    if splat_of(x) is not None:
        constant = axes
    elif isinstance(x.op, Elementwise):
        constant = axes.intersection(*(_constant_axes(i, known) for i in x.inputs))
    elif isinstance(x.op, ops.BroadcastInDim):
        inner = _constant_axes(x.inputs[0], known)
        constant = axes - {d for i, d in enumerate(x.op.dims) if i not in inner}
    elif isinstance(x.op, ops.Iota):
        constant = axes - {x.op.dimension}
    else:
        constant = frozenset(d for d in axes if x.shape[d] == 1)
    return known.setdefault(x, constant)


def _at_first(x: Node, axes: frozenset[int], images: dict[tuple[Node, frozenset[int]], Node]) -> Node:
    """`x`, which is constant along `axes`, with sizes of 1 there. images: the same of other values."""
    if (x, axes) in images:
        return images[x, axes]
    shape = tuple(1 if d in axes else size for d, size in enumerate(x.shape))
    if shape == x.shape:
        image = x
    elif (value := splat_of(x)) is not None:
        image = ops.full(shape, value.item(), x.dtype)
    elif isinstance(x.op, Elementwise):
        image = x.op(*(_at_first(i, axes, images) for i in x.inputs), loc=x.loc)
    elif isinstance(x.op, ops.BroadcastInDim):
        inner = frozenset(i for i, d in enumerate(x.op.dims) if d in axes)
        image = ops.BroadcastInDim(shape, x.op.dims)(_at_first(x.inputs[0], inner, images))
    else:
        assert isinstance(x.op, ops.Iota)
        image = ops.Iota(TensorType(x.dtype, shape), x.op.dimension)()
    return images.setdefault((x, axes), image)


def _causal(n: Node, positions: Positions) -> Result | None:
    op = n.op
    assert isinstance(op, _ATTENTION)
    masks = op.mask(n.inputs)
    if not masks or op.causal != "none" or (isinstance(op, ops.Attention) and masks[0] is not n.inputs[-1]):
        return None
    (mask,), (at,) = masks, op.mask(range(len(n.inputs)))
    before, behind = n.inputs[:at], n.inputs[at + 1 :]
    rows, cols = n.inputs[0].shape[2], n.inputs[1].shape[2]
    if mask.type.rank < 2 or mask.shape[-2:] != (rows, cols):
        return None
    parts = _parts(mask, lambda x: x)
    kinds = {t: _kind(t, rows, cols, positions) for t in parts.terms}
    kind = next((kind for kind in kinds.values() if kind), None)
    rest = [t for t, other in kinds.items() if other != kind]
    is_exact = parts.hidden == -np.inf
    if kind is None or not (is_exact or (_sees_keys(kind, rows, cols) and not rest and _is_small(parts))):
        return None
    return _result(replace(op, causal=kind)(*before, *_combined(rest, parts.added), *behind, loc=n.loc))


def _result(n: Node) -> Result:
    return n.results if len(n.types) > 1 else n


def _sees_keys(kind: str, rows: DimLike, cols: DimLike) -> bool:
    """Whether each row of a causal order sees a key: in a row that sees none, a finite "minus infinity" hides no
    key."""
    return kind == "upper_left" or is_at_most(rows, cols)


def _is_small(parts: _Parts) -> bool:
    """Whether scores with a finite "minus infinity" stay far below the others, for all values of the added terms."""
    return sum(high - low for low, high in map(interval, parts.added)) < -parts.hidden / 2


@dataclass(frozen=True)
class _Parts:
    """A mask as a conjunction of conditions under which a key is visible, and terms that are added to the scores.

    hidden: what is added to the scores of hidden keys, minus infinity or a number that is as good.
    """

    terms: tuple[Node, ...] = ()
    added: tuple[Node, ...] = ()
    hidden: float = -np.inf

    def __add__(self, other: _Parts) -> _Parts:
        return _Parts(self.terms + other.terms, self.added + other.added, max(self.hidden, other.hidden))


_MAX_PARTS = 64  # shared parts of a mask double in every step


def _parts(mask: Node, view: View) -> _Parts:
    parts = _Parts()
    stack = [(mask, view)]
    while stack:
        mask, view = stack.pop()
        op, is_below_limit = mask.op, len(stack) + len(parts.terms) + len(parts.added) < _MAX_PARTS
        if isinstance(op, ops.BroadcastInDim | ops.Reshape) and is_below_limit:
            stack.append((mask.inputs[0], partial(_through, mask, view)))
        elif is_below_limit and (isinstance(op, ops.And) or (isinstance(op, ops.Add) and mask.dtype.is_float)):
            stack += [(i, view) for i in reversed(mask.inputs)]
        elif is_below_limit and (hidden := _hidden_score(mask)) is not None:
            parts += _Parts(hidden=hidden)
            stack.append((mask.inputs[0], view))
        elif isinstance(op, ops.Compare):
            parts += _Parts((op(*(view(i) for i in mask.inputs)),))
        else:
            parts += _Parts((view(mask),)) if mask.dtype == boolean else _Parts((), (view(mask),))
    return parts


def _hidden_score(mask: Node) -> float | None:
    """What the mask adds to hidden scores, if that hides them and it adds 0 to others; else None."""
    if not isinstance(mask.op, ops.Select) or not mask.dtype.is_float:
        return None
    _, zero, hidden = mask.inputs
    low, limit = splat_of(hidden), mask.dtype.numpy.type(_MAX_HIDDEN_SCORES.get(mask.dtype, -np.inf))
    return float(low) if low is not None and low <= limit and splat_of(zero) == 0 else None


def _combined(terms: list[Node], added: tuple[Node, ...]) -> list[Node]:
    """The remaining mask: nothing, a condition, or an additive value."""
    keep: Node | None = None
    for t in terms:
        keep = t if keep is None else ops.and_(keep, t)
    total: Node | None = None
    for a in added:
        total = a if total is None else ops.add(total, a)
    if total is not None and keep is not None:
        return [ops.where(keep, total, ops.full(keep.shape, -np.inf, total.dtype))]
    return [x for x in (keep, total) if x is not None]


def _through(like: Node, view: View, x: Node) -> Node:
    """`x` under the view op of `like`, then `view`."""
    return view(like.op(x))


def _kind(condition: Node, rows: DimLike, cols: DimLike, positions: Positions) -> str | None:
    """The causal order that a condition over [..., rows, cols] expresses; None if it is no such condition."""
    op = condition.op
    if not isinstance(op, ops.Compare):
        return None
    a, b = (positions.form(i) for i in condition.inputs)
    if a is None or b is None or op.direction not in ("GE", "GT", "LE", "LT"):
        return None
    if op.direction in ("LE", "LT"):
        a, b = b, a
    steps = tuple(s - t for s, t in zip(a.steps, b.steps, strict=True))
    difference = Affine(a.constant - b.constant - (op.direction in ("GT", "LT")), steps)
    *outer, row, col = difference.steps
    if any(s != 0 for s in outer) or row != 1 or col != -1:
        return None
    if difference.constant == 0:
        return "upper_left"
    return "lower_right" if difference.constant == cols - rows else None
