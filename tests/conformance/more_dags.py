"""More that a random graph may hold: rows of softmax, sorts, cumulative folds, windows, symbolic slices, loops."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.dims import substitute
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, boolean, i64
from tests.conformance.dags import OTHER, STEPS, Dag, Steps


def _sized(d: Dag, numbers: bool = True) -> Node | None:
    """A value with a dimension, of numbers."""
    result = [v for v in d.values if v.type.rank and (v.dtype != boolean or not numbers)]
    return d.pick(result) if result else None


def softmax(d: Dag) -> Node | None:
    x = _sized(d)
    if x is None or not x.dtype.is_float:
        return None
    dims = d.some(x.type.rank)
    remaining_axes = tuple(a for a in range(x.type.rank) if a not in dims)
    top = ops.BroadcastInDim(x.shape, remaining_axes)(ops.Reduce("max", dims)(x))
    weights = ops.Exp()(ops.Sub()(x, top))
    total = ops.Reduce("sum", dims)(weights)
    if d.rng.random() < 0.3:
        return total
    return ops.Div()(weights, ops.BroadcastInDim(x.shape, remaining_axes)(total))


def sort(d: Dag) -> Node | None:
    x = d.pick_exact()
    if not x.type.rank or x.dtype == boolean:
        return None
    dim, descending = int(d.rng.integers(x.type.rank)), bool(d.rng.random() < 0.5)
    size = x.shape[dim]
    keep = int(d.rng.integers(0, size + 1)) if isinstance(size, int) and d.rng.random() < 0.4 else None
    op = ops.Sort(dim, descending, count=keep)
    if d.rng.random() < 0.5:
        return op(x)
    values, places = op(x, ops.Iota(TensorType(i64, x.shape), dim)()).results
    d.add(values)
    return places


def cumulative(d: Dag) -> Node | None:
    x = _sized(d)
    if x is None:
        return None
    exclusive, backwards = (bool(v) for v in d.rng.random(2) < 0.4)
    kind = str(d.one("sum", "sum", "max", "min"))
    return ops.CumReduce(kind, int(d.rng.integers(x.type.rank)), exclusive, backwards)(x)


def windows(d: Dag) -> Node | None:
    x = _sized(d, numbers=False)
    if x is None or x.type.rank > 4:
        return None
    dim = int(d.rng.integers(x.type.rank))
    size, step, dilation = (int(d.rng.integers(1, limit + 1)) for limit in (4, 3, 2))
    least = min(int(substitute(x.shape[dim], at)) for at in (d.sizes, OTHER))  # type: ignore[arg-type]
    return ops.Windows(dim, size, step, dilation)(x) if least > dilation * (size - 1) else None


def symbolic_slice(d: Dag) -> Node | None:
    """All but an element at either end, every one or every other."""
    results = [(v, a) for v in d.values for a in range(v.type.rank) if not isinstance(v.shape[a], int)]
    if not results:
        return None
    x, axis = results[int(d.rng.integers(len(results)))]
    low, high = (int(v) for v in d.rng.integers(0, 2, 2))
    if any(int(substitute(x.shape[axis], at)) < low + high for at in (d.sizes, OTHER)):  # type: ignore[arg-type]
        return None
    start, limit, strides = [0] * x.type.rank, list(x.shape), [1] * x.type.rank
    start[axis], limit[axis], strides[axis] = low, x.shape[axis] - high, int(d.rng.integers(1, 3))
    return ops.Slice(tuple(start), tuple(limit), tuple(strides))(x)


def loop(d: Dag) -> Node | None:
    x = d.pick(d.values)
    if x.dtype == boolean:
        return None
    i, a = Input("i", TensorType(i64))(), Input("a", x.type)()
    body = d.one(ops.Neg()(a), ops.Add()(a, a), ops.Reverse((0,))(a) if x.type.rank else a)
    until = Graph((i, a), (ops.Compare("LT")(i, const(np.int64(d.rng.integers(0, 4)))),))
    step = Graph((i, a), (ops.Add()(i, const(np.int64(1))), body))  # type: ignore[arg-type]
    return ops.While(until, step)(const(np.int64(0)), x).results[1]


MORE: Steps = (
    *STEPS, (softmax, 1.5), (sort, 0.7), (cumulative, 1), (windows, 1), (symbolic_slice, 1.5), (loop, 0.4),
)  # fmt: skip
