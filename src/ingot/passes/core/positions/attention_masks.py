"""Masks that only compare positions become attributes of attention, which then skips what they hide.

attention(q, k, v, select(row >= col, 0, -inf))          ->   attention{causal}(q, k, v)
attention(q, k, v, select(row >= col and p, 0, -inf))    ->   attention{causal}(q, k, v, p)
attention(q, k, v, select(row >= col, 0, -inf) + m)      ->   attention{causal}(q, k, v, m)
attention(q, k, v, 0)                                    ->   attention(q, k, v)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, at_most
from ingot.ir.node import Node, splat_of
from ingot.ir.rewrite import Rule, RuleSet, rules
from ingot.ir.types import boolean
from ingot.passes.constants import interval
from ingot.passes.core.positions.affine import Affine
from ingot.passes.core.positions.rules import Positions
from ingot.support.dataclass import dataclass

View = Callable[[Node], Node]
_LOWEST = float(np.finfo(np.float32).min)


def mask_rules(positions: Positions) -> RuleSet:
    """The rule of this module, on top of what is known of positions."""
    return rules(
        Rule("idle-mask", ops.Attention, _idle),
        Rule("causal-mask", ops.Attention, lambda n: _causal(n, positions)),
    )


def _idle(n: Node) -> Node | None:
    """attention with a mask that is true, or 0, everywhere -> attention without"""
    value = splat_of(n.inputs[3]) if len(n.inputs) == 4 else None
    # another number, if a large one, leaves nothing of the scores that it is added to
    if value is None or bool(value) != (n.inputs[3].dtype == boolean):
        return None
    return n.op(*n.inputs[:3], loc=n.loc)


def _causal(n: Node, positions: Positions) -> Node | None:
    op = n.op
    assert isinstance(op, ops.Attention)
    if len(n.inputs) != 4 or op.causal != "none":
        return None
    q, k, v, mask = n.inputs
    rows, cols = q.shape[2], k.shape[2]
    if mask.type.rank < 2 or mask.shape[-2:] != (rows, cols):
        return None
    found = _parts(mask, lambda x: x)
    kinds = {t: _kind(t, rows, cols, positions) for t in found.terms}
    kind = next((kind for kind in kinds.values() if kind), None)
    rest = [t for t, other in kinds.items() if other != kind]
    if kind is None or (found.soft and not (_sees_keys(kind, rows, cols) and not rest and _is_small(found.added))):
        return None
    operands = [q, k, v, *_joined(rest, found.added)]
    return replace(op, causal=kind)(*operands, loc=n.loc)


def _sees_keys(kind: str, rows: DimLike, cols: DimLike) -> bool:
    """Whether each row of a causal order sees a key: in one that sees none, a finite "minus infinity" hides none."""
    return kind == "upper_left" or at_most(rows, cols)


def _is_small(added: tuple[Node, ...]) -> bool:
    """Whether keys that a finite "minus infinity" hides stay far below the others, whatever else is added."""
    return sum(high - low for low, high in map(interval, added)) < -_LOWEST / 2


@dataclass(frozen=True)
class _Parts:
    """A mask as conditions that must all hold where a key is seen, and what is added to the scores beside; `soft`: the
    scores of hidden keys only become very small."""

    terms: tuple[Node, ...] = ()
    added: tuple[Node, ...] = ()
    soft: bool = False

    def __add__(self, other: _Parts) -> _Parts:
        return _Parts(self.terms + other.terms, self.added + other.added, self.soft or other.soft)


_MOST_PARTS = 64  # of a mask: shared ones double with every step


def _parts(mask: Node, view: View) -> _Parts:
    found = _Parts()
    stack = [(mask, view)]
    while stack:
        mask, view = stack.pop()
        op, few = mask.op, len(stack) + len(found.terms) + len(found.added) < _MOST_PARTS
        if isinstance(op, ops.BroadcastInDim | ops.Reshape) and few:
            stack.append((mask.inputs[0], partial(_through, mask, view)))
        elif few and (isinstance(op, ops.And) or (isinstance(op, ops.Add) and mask.dtype.is_float)):
            stack += [(i, view) for i in reversed(mask.inputs)]
        elif few and (soft := _hides(mask)) is not None:
            found += _Parts(soft=soft)
            stack.append((mask.inputs[0], view))
        elif isinstance(op, ops.Compare):
            found += _Parts((op(*(view(i) for i in mask.inputs)),))
        else:
            found += _Parts((view(mask),)) if mask.dtype == boolean else _Parts((), (view(mask),))
    return found


def _hides(mask: Node) -> bool | None:
    """Whether a mask that adds 0 or a very small number adds a finite one; None: it is none."""
    if not isinstance(mask.op, ops.Select) or not mask.dtype.is_float:
        return None
    _, zero, hidden = mask.inputs
    low = splat_of(hidden)
    hides = low is not None and (low == -np.inf or (mask.dtype.name == "f32" and low == _LOWEST))
    return bool(low != -np.inf) if splat_of(zero) == 0 and hides else None


def _joined(terms: list[Node], added: tuple[Node, ...]) -> list[Node]:
    """What is left of a mask: nothing, a condition, or an added value."""
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
    """`x` seen as `like` sees its operand, then by `view`."""
    return view(like.op(x))


def _kind(condition: Node, rows: DimLike, cols: DimLike, positions: Positions) -> str | None:
    """The causal order that a condition over [..., rows, cols] spells."""
    op = condition.op
    if not isinstance(op, ops.Compare):
        return None
    a, b = (positions.form(i) for i in condition.inputs)
    if a is None or b is None or op.direction not in ("GE", "GT", "LE", "LT"):
        return None
    if op.direction in ("LE", "LT"):
        a, b = b, a
    steps = tuple(s - t for s, t in zip(a.steps, b.steps, strict=True))
    seen = Affine(a.constant - b.constant - (op.direction in ("GT", "LT")), steps)
    *outer, row, col = seen.steps
    if any(s != 0 for s in outer) or row != 1 or col != -1:
        return None
    if seen.constant == 0:
        return "upper_left"
    return "lower_right" if seen.constant == cols - rows else None
