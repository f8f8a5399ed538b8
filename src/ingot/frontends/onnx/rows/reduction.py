"""Reductions: Reduce*, ArgMax, ArgMin, TopK."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, normal_axes, onnx_op, register
from ingot.frontends.onnx.rows.common import checked_size, in_dtype
from ingot.ir import types as T
from ingot.ir.node import Node

Axes = tuple[int, ...]


def axes_of(c: Call) -> Axes:
    """The reduced axes: an attribute until opset 17 (12 for ReduceSum), an input since."""
    if c.has(1):
        axes = c.ints(1)
    else:
        axes = c.int_list("axes", ())
    if not axes:
        return () if c.flag("noop_with_empty_axes") else tuple(range(c.rank()))
    return normal_axes(axes, c.rank())


def _floating(fn: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """`fn` of a float tensor, also for integers: computed in f64 and converted back."""
    return lambda x: fn(x) if x.dtype.is_float else in_dtype(T.f64, fn, x)


def _extreme(kind: str, logical: str) -> Callable[[Node, Axes, bool], Node]:
    return lambda x, axes, keep: ops.reduce(logical if x.dtype == T.boolean else kind, x, axes, keep)


def _widened(x: Node) -> Node:
    return ops.cast(x, T.f32) if x.dtype.is_float and x.dtype.bits < 32 else x


def _log_sum_exp(x: Node, axes: Axes, keep: bool) -> Node:
    return _floating(lambda v: ops.LogSumExp(axes, keep)(v))(x)


def _l2(x: Node, axes: Axes, keep: bool) -> Node:
    def rule(v: Node) -> Node:
        w = _widened(v)
        return ops.cast(ops.Sqrt()(ops.reduce_sum(ops.mul(w, w), axes, keep)), v.dtype)

    return _floating(rule)(x)


def _log_sum(x: Node, axes: Axes, keep: bool) -> Node:
    return _floating(lambda v: ops.Log()(ops.reduce_sum(v, axes, keep)))(x)


_REDUCE: dict[str, Callable[[Node, Axes, bool], Node]] = {
    "ReduceSum": lambda x, axes, keep: ops.reduce_sum(x, axes, keep),
    "ReduceMean": lambda x, axes, keep: ops.mean(x, axes, keep),
    "ReduceProd": lambda x, axes, keep: ops.reduce_prod(x, axes, keep),
    "ReduceMax": _extreme("max", "or"),
    "ReduceMin": _extreme("min", "and"),
    "ReduceL1": lambda x, axes, keep: ops.reduce_sum(ops.Abs()(x), axes, keep),
    "ReduceL2": _l2,
    "ReduceSumSquare": lambda x, axes, keep: ops.reduce_sum(ops.mul(x, x), axes, keep),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
}

for _name, _fn in _REDUCE.items():
    register(_name, lambda c, fn=_fn: fn(c.x(), axes_of(c), c.flag("keepdims", 1)))


def _arg(kind: str) -> Callable[[Call], Result]:
    def row(c: Call) -> Result:
        axis = c.axis("axis", 0, c.rank())
        return ops.arg_reduce(kind, c.x(), axis, c.flag("keepdims", 1), c.flag("select_last_index"))

    return row


register("ArgMax", _arg("max"))
register("ArgMin", _arg("min"))


@onnx_op("TopK")
def top_k_1(c: Call) -> Result:
    return ops.TopK(c.int("k"), c.axis("axis", -1, c.rank()), True, True)(c.x()).results


@onnx_op("TopK", since=10)
def top_k(c: Call) -> Result:
    (k,) = (checked_size(c, d) for d in c.dims(1))
    axis = c.axis("axis", -1, c.rank())
    return ops.TopK(k, axis, c.flag("largest", 1), c.flag("sorted", 1))(c.x()).results
