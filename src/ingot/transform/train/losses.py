"""Losses and metrics by name: functions of a model's first result and one target, averaged over all elements.

Their definitions are PyTorch's (torch.nn.functional). The type of the result determines that of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan

from ingot import ops
from ingot.ir.node import Node
from ingot.ir.types import TensorType, f32, i32, i64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

IGNORED_CLASS = -100  # a target that is not counted


@dataclass(frozen=True)
class Loss:
    """A loss or metric. value: (result, target) -> a scalar. target: the target's type for a result's type.
    alternatives: other types that the target may have."""

    value: Callable[[Node, Node], Node]
    target: Callable[[TensorType], TensorType]
    alternatives: Callable[[TensorType], tuple[TensorType, ...]] = lambda output: ()

    def check(self, name: str, output: TensorType, target: TensorType) -> None:
        """Raise InputError for a target that does not fit."""
        types = (self.target(output), *self.alternatives(output))
        if target not in types:
            what = f"the target of {name} for a result of {output}"
            raise InputError(what, expected=" or ".join(map(str, types)), got=str(target))

    def classes(self, output: TensorType, target: TensorType) -> int | None:
        """The number of classes, if a target of this type holds class indices and the number is static; else None."""
        if self.target is not _classes or target.dtype.is_float:
            return None
        count = output.shape[_class_axis(output.rank)]
        return count if isinstance(count, int) else None


def _classes(output: TensorType) -> TensorType:
    """The type of class indices for scores whose classes are on axis 1, or on their only axis."""
    if not output.rank:
        raise InputError("the model's result", expected="scores of classes", got=str(output))
    axis = _class_axis(output.rank)
    return TensorType(i64, (*output.shape[:axis], *output.shape[axis + 1 :]))


def _short_classes(output: TensorType) -> tuple[TensorType, ...]:
    return (_classes(output).with_dtype(i32),)


def _class_axis(rank: int) -> int:
    return min(1, rank - 1)


def _result_type(output: TensorType) -> TensorType:
    return output


def _mean(x: Term) -> Node:
    return ops.mean(x.node)


def _cross_entropy(output: Node, target: Node) -> Node:
    axis = _class_axis(len(output.shape))
    scores = ops.LogSoftmax(axis)(t.widen_narrow(output).node)
    if target.dtype.is_float:
        rows = (Term(scores) * t.widen_narrow(target)).sum((axis,), keepdims=False)
        return _mean(-rows)
    return _likelihood(scores, target)


def _likelihood(scores: Node, target: Node) -> Node:
    """The mean of -scores at the target's classes; NaN if a target is not a class of the model."""
    x, axis, target = t.widen_narrow(scores), _class_axis(len(scores.shape)), ops.cast(target, i64)
    is_target_class = t.iota(x.shape, axis).equals(Term(target).expand(axis))
    picked = _where(is_target_class, x, 0.0).sum((axis,), keepdims=False)
    is_counted = ops.compare("NE", target, IGNORED_CLASS)
    is_class = ops.and_(ops.compare("GE", target, 0), ops.compare("LT", target, scores.shape[axis]))
    checked = _where(Term(ops.or_(is_class, ops.Not()(is_counted))), picked, nan)
    axes = range(checked.rank)
    return (-checked.sum(axes, keepdims=False) / Term(ops.cast(is_counted, x.dtype)).sum(axes, keepdims=False)).node


def _where(condition: Term, a: Term, b: float) -> Term:
    result = t.where(condition, a, b)
    assert isinstance(result, Term)
    return result


def _difference(output: Node, target: Node) -> Term:
    return t.widen_narrow(output) - t.widen_narrow(target)


def _mse(output: Node, target: Node) -> Node:
    d = _difference(output, target)
    return _mean(d * d)


def _l1(output: Node, target: Node) -> Node:
    return _mean(_difference(output, target).map(ops.Abs()))


def _huber(output: Node, target: Node) -> Node:
    """The Huber loss with delta 1."""
    d = _difference(output, target)
    size = d.map(ops.Abs())
    loss = t.where(size < 1.0, d * d * 0.5, size - 0.5)
    assert isinstance(loss, Term)
    return _mean(loss)


def _bce_with_logits(output: Node, target: Node) -> Node:
    """max(x, 0) - x y + log(1 + e^-|x|)."""
    x, y = t.widen_narrow(output), t.widen_narrow(target)
    low = (-x.map(ops.Abs())).map(ops.Exp()).map(ops.Log1p())
    top = t.maximum(x, 0.0)
    assert isinstance(top, Term)
    return _mean(top - x * y + low)


def _kl_div(output: Node, target: Node) -> Node:
    """y (log y - x) of log probabilities x, summed over classes: the mean over the first axis ("batchmean")."""
    x, y = t.widen_narrow(output), t.widen_narrow(target)
    safe = t.where(y > 0.0, y, 1.0)
    assert isinstance(safe, Term)
    terms = y * (safe.map(ops.Log()) - x)
    return (terms.sum(range(terms.rank), keepdims=False) / t.size(x.shape[0], x.dtype)).node


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(_cross_entropy, _classes, lambda output: (*_short_classes(output), output)),
    "nll": Loss(_likelihood, _classes, _short_classes),
    "mse": Loss(_mse, _result_type),
    "l1": Loss(_l1, _result_type),
    "huber": Loss(_huber, _result_type),
    "bce_with_logits": Loss(_bce_with_logits, _result_type),
    "kl_div": Loss(_kl_div, _result_type),
}


def _accuracy(output: Node, target: Node) -> Node:
    """The fraction of the targets whose class has the highest score; ignored targets do not count."""
    best = ops.arg_reduce("max", output, _class_axis(len(output.shape)))
    is_hit = ops.cast(ops.compare("EQ", ops.cast(best, target.dtype), target), f32)
    is_counted = ops.cast(ops.compare("NE", target, IGNORED_CLASS), f32)
    return ops.div(ops.reduce_sum(is_hit), ops.reduce_sum(is_counted))


METRICS: Mapping[str, Loss] = {
    "accuracy": Loss(_accuracy, _classes, _short_classes),
    "mse": LOSSES["mse"],
    "l1": LOSSES["l1"],
}


def loss_named(name: str) -> Loss:
    if name not in LOSSES:
        raise InputError("loss", expected=f"{', '.join(LOSSES)}, or a function of the model's framework", got=name)
    return LOSSES[name]


def metric_named(name: str) -> Loss:
    if name not in METRICS:
        raise InputError("metrics", expected=f"some of {', '.join(METRICS)}", got=name)
    return METRICS[name]
