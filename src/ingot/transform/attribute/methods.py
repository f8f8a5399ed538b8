"""The four methods as graphs that map the values of the inputs to an attribution of each varied value.

Each iteration of a loop evaluates the model on a few points of each example, as one batch. The body contains the model
once, so code size and memory do not depend on the number of points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.node import Node, const, rebuild
from ingot.ir.types import DType, Shape, i64
from ingot.ops import sampling
from ingot.ops.random import counted_key
from ingot.support.dataclass import dataclass
from ingot.transform.attribute.scores import (
    Scores,
    along_axis,
    merge_axes,
    of_examples,
    points_shape,
    repeat_examples,
)
from ingot.transform.repeat import repeat

RANGE_FRACTION = 0.15  # the standard deviation of SmoothGrad's noise over the range of an example, as in the paper

# (iteration, number of the value, shape of its points) -> the position of each point on its span, 0 to 1
Coefficients = Callable[[Node, int, Shape], Node]


@dataclass(frozen=True)
class Points:
    """The points `bases + coefficients * spans` of each example: `count` points in each of `iterations` iterations.

    weights: the weight of the gradient at each point.
    """

    bases: tuple[Node, ...]
    spans: tuple[Node, ...]
    coefficients: Coefficients
    weights: np.ndarray
    count: int

    @property
    def iterations(self) -> int:
        return len(self.weights) // self.count


def path(bases: Sequence[Node], ends: Sequence[Node], steps: int, max_points: int) -> Points:
    """The points of the straight path from `bases` to `ends` for Gauss-Legendre quadrature with `steps` points
    (Sundararajan et al. 2017, "Axiomatic attribution for deep networks")."""
    nodes, node_weights = np.polynomial.legendre.leggauss(steps)
    places, weights, count = _in_iterations((nodes + 1) / 2, node_weights / 2, max_points)
    spans = tuple(ops.sub(end, base) for base, end in zip(bases, ends, strict=True))

    def coefficients(iteration: Node, number: int, shape: Shape) -> Node:
        return _iteration_entries(places, iteration, count, bases[number].dtype)

    return Points(tuple(bases), spans, coefficients, weights, count)


def noisy(
    values: Sequence[Node], scores: Scores, steps: int, max_points: int, stdev: float | None, seed: int
) -> Points:
    """`steps` points around each example, with normal noise (Smilkov et al. 2017, "SmoothGrad").

    stdev: the standard deviation of the noise; None: `RANGE_FRACTION` of the range of the example's values.
    """
    _, weights, count = _in_iterations(np.zeros(steps), np.full(steps, 1 / steps), max_points)
    spans = tuple(
        _deviation(x, scores.example_axis(v)) if stdev is None else ops.full(x.shape, stdev, x.dtype)
        for x, v in zip(values, scores.values, strict=True)
    )

    def coefficients(iteration: Node, number: int, shape: Shape) -> Node:
        draw = ops.add(ops.mul(iteration, len(values)), number)
        return sampling.normal(counted_key(const(seed, np.int64), draw), shape, values[number].dtype)

    return Points(tuple(values), spans, coefficients, weights, count)


def _deviation(x: Node, batch_axis: int | None) -> Node:
    axes = [d for d in range(x.type.rank) if d != batch_axis]
    spread = ops.sub(ops.reduce_max(x, axes, True), ops.reduce_min(x, axes, True))
    return ops.broadcast_to(ops.mul(spread, ops.scalar(RANGE_FRACTION, x.dtype)), x.shape)


def _in_iterations(places: np.ndarray, weights: np.ndarray, max_points: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(places, weights, points of an iteration). Points of weight 0 are appended so that all iterations have the same
    number of points."""
    iterations = -(-len(places) // max_points)
    count = -(-len(places) // iterations)
    fill = iterations * count - len(places)
    return np.pad(places, (0, fill), "edge"), np.pad(weights, (0, fill)), count


def _iteration_entries(table: np.ndarray, iteration: Node, count: int, dtype: DType) -> Node:
    """The `count` entries of one iteration, from a table of all iterations."""
    entries = const(table.astype(dtype.numpy))
    return entries if len(table) == count else ops.DynamicSlice((count,))(entries, ops.mul(iteration, count))


def summed_gradients(scores: Scores, points: Points, fixed_values: Sequence[Node], seed: Node) -> list[Node]:
    """For each varied value the weighted sum of its gradients at the points.

    fixed_values: the values of `scores.fixed_inputs`. seed: the cotangent of the result at one point of each example.
    """
    batched = scores.with_points(points.count)
    graph, batched_seed = batched.gradients()
    axes, n_values = _Axes(scores, points.count), len(scores.values)

    def iteration_sums(iteration: Node, sums: Sequence[Node], invariants: Sequence[Node]) -> list[Node]:
        bases, spans, (*rest, score_seed) = (
            invariants[:n_values],
            invariants[n_values : 2 * n_values],
            invariants[2 * n_values :],
        )
        images = dict(zip(batched.fixed_inputs, map(axes.tile, scores.fixed_inputs, rest), strict=True))
        for n, v in enumerate(scores.values):
            shape = axes.points_shape(v)
            coefficient = points.coefficients(iteration, n, shape)
            if coefficient.shape != shape:
                coefficient = axes.along_points(coefficient, v)
            point = ops.add(axes.expand(bases[n], v), ops.mul(coefficient, axes.expand(spans[n], v)))
            images[batched.values[n]] = axes.merge(point, v)
        inputs = dict(zip(graph.inputs, [images[x] for x in batched.graph.inputs], strict=False))
        inputs[batched_seed] = axes.tile(scores.result, score_seed)
        _, *gradients = rebuild(graph.outputs, inputs)
        out: list[Node] = []
        for total, gradient, v in zip(sums, gradients, scores.values, strict=True):
            per_point = ops.reshape(gradient, axes.points_shape(v))
            weights = _iteration_entries(points.weights, iteration, points.count, v.dtype)
            weighted = ops.mul(per_point, axes.along_points(weights, v))
            out.append(ops.add(total, axes.sum_of_points(weighted, v)))
        return out

    zeros = [ops.full(v.shape, 0, v.dtype) for v in scores.values]
    return repeat(points.iterations, zeros, [*points.bases, *points.spans, *fixed_values, seed], iteration_sums)


@dataclass(frozen=True)
class _Axes:
    """The axis of the points of an example. It follows the batch axis; there is none if `count` is 1."""

    scores: Scores
    count: int

    def expand(self, x: Node, like: Node) -> Node:
        """The value of each example, broadcast to its points."""
        return x if self.count == 1 else ops.broadcast_to(ops.expand_dims(x, self._axis(like)), self.points_shape(like))

    def along_points(self, vector: Node, like: Node) -> Node:
        return along_axis(vector, self.points_shape(like), None if self.count == 1 else self._axis(like))

    def points_shape(self, like: Node) -> Shape:
        return like.shape if self.count == 1 else points_shape(like.shape, self._axis(like) - 1, self.count)

    def merge(self, x: Node, like: Node) -> Node:
        return x if self.count == 1 else merge_axes(x, self._axis(like) - 1)

    def sum_of_points(self, x: Node, like: Node) -> Node:
        return x if self.count == 1 else ops.reduce_sum(x, self._axis(like))

    def tile(self, like: Node, x: Node) -> Node:
        """The value of an input or result, repeated for each point; unchanged if it has no batch axis."""
        if self.count == 1 or self.scores.batch not in like.shape:
            return x
        return repeat_examples(x, self.scores.axis_of(like), self.count)

    def _axis(self, like: Node) -> int:
        return self.scores.axis_of(like) + 1


def occluded(
    scores: Scores, number: int, values: Mapping[Node, Node], baseline: Node, result: Node, chosen: Node,
    window: Sequence[int], stride: Sequence[int], max_points: int,
) -> Node:  # fmt: skip
    """The decrease of the score when a window of one value is replaced by its baseline. Each element gets the mean over
    the windows that cover it, or 0 if there are none (Zeiler and Fergus 2014, "Visualizing and understanding
    convolutional networks").

    number: the index of the value among `scores.values`. values: of all inputs. result: at these values. chosen: bool,
    which elements of the result are scores. window, stride: sizes along the axes of the value except the batch axis.
    """
    v = scores.values[number]
    axes = [d for d in range(v.type.rank) if d != scores.example_axis(v)]
    counts = [_positions(v.shape[d], w, s) for d, w, s in zip(axes, window, stride, strict=True)]
    total = counts[0] if counts else const(1, np.int64)
    for n in counts[1:]:
        total = ops.mul(total, n)
    count = 1 if scores.batch is None else max_points
    batched, points = scores.with_points(count), _Axes(scores, count)
    shape, dtype = points.points_shape(v), scores.result.dtype

    def iteration_sums(iteration: Node, sums: Sequence[Node], invariants: Sequence[Node]) -> list[Node]:
        base, *rest, score, is_chosen = invariants
        index = ops.add(ops.mul(iteration, count), ops.arange(count))  # [count]
        is_inside, remaining = points.along_points(ops.compare("LT", index, _total(v, axes, window, stride)), v), index
        for d, w, s in reversed([*zip(axes, window, stride, strict=True)]):
            positions = _positions(v.shape[d], w, s)
            start = ops.mul(ops.rem(remaining, positions), s)
            remaining = ops.div(remaining, positions)
            own_axis = d + (count > 1 and d >= points._axis(v))
            offset = ops.sub(ops.iota(shape, own_axis), points.along_points(start, v))
            is_inside = ops.and_(is_inside, ops.and_(ops.compare("GE", offset, 0), ops.compare("LT", offset, w)))
        images = {m: points.tile(o, x) for m, o, x in zip(batched.graph.inputs, scores.graph.inputs, rest, strict=True)}
        original = points.expand(rest[scores.graph.inputs.index(v)], v)
        images[batched.values[number]] = points.merge(ops.where(is_inside, points.expand(base, v), original), v)
        is_scored = points.tile(scores.result, is_chosen)
        drops = ops.sub(points.tile(scores.result, score), batched.call(images))
        drop = ops.reduce_sum(ops.where(is_scored, drops, 0), list(scores.class_axes))  # [b * count], or a scalar
        if count > 1:
            drop = ops.reshape(drop, (scores.batch, count))  # type: ignore[arg-type]
            at = scores.axis_of(v)
            drop = ops.broadcast_to(ops.reshape(drop, (*(1,) * at, *drop.shape, *(1,) * (len(shape) - at - 2))), shape)
        else:
            drop = of_examples("sum", drop, scores.example_axis(v), shape)
        parts = (ops.where(is_inside, drop, 0), ops.cast(is_inside, dtype))
        return [ops.add(s, points.sum_of_points(p, v)) for s, p in zip(sums, parts, strict=True)]

    zeros = [ops.full(v.shape, 0, dtype)] * 2
    invariants = [baseline, *(values[x] for x in scores.graph.inputs), result, chosen]
    iterations = ops.div(ops.add(total, count - 1), count)
    fall, cover = repeat(iterations, zeros, invariants, iteration_sums)
    return ops.where(ops.compare("GT", cover, 0), ops.div(fall, cover), 0)


def _positions(size: DimLike, window: int, stride: int) -> Node:
    """The number of windows along an axis; the last one may extend beyond the end."""
    if isinstance(size, int):
        return const(max(1, -(-(size - window) // stride) + 1), np.int64)
    return ops.maximum(ops.add(ops.div(ops.add(ops.scalar(size, i64), stride - 1 - window), stride), 1), 1)


def _total(v: Node, axes: Sequence[int], window: Sequence[int], stride: Sequence[int]) -> Node:
    total = const(1, np.int64)
    for d, w, s in zip(axes, window, stride, strict=True):
        total = ops.mul(total, _positions(v.shape[d], w, s))
    return total
