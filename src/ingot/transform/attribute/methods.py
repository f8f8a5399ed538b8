"""The four methods as graphs: of the inputs' values, one attribution for each value that is varied.

A loop takes a few points for each example at a time, as one batch. Its body is the model once, so that the code and
the memory do not grow with the number of points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.node import Graph, Input, Node, const, rebuild
from ingot.ir.types import DType, Shape, i64
from ingot.ops import sampling
from ingot.ops.random import counted_key
from ingot.support.dataclass import dataclass
from ingot.transform.attribute.scores import Scores, along, joined, points_shape, repeated

RANGE_FRACTION = 0.15  # the noise of SmoothGrad relative to an example's range, as in the paper

# (turn, number of the value, shape of its points) -> how far each point lies along its span
Coefficients = Callable[[Node, int, Shape], Node]


@dataclass(frozen=True)
class Points:
    """Points `bases + coefficients * spans` for each example, a batch of `count` points in each of `turns` turns.

    weights: of each point's gradient in the sum.
    """

    bases: tuple[Node, ...]
    spans: tuple[Node, ...]
    coefficients: Coefficients
    weights: np.ndarray
    count: int

    @property
    def turns(self) -> int:
        return len(self.weights) // self.count


def path(bases: Sequence[Node], ends: Sequence[Node], steps: int, at_once: int) -> Points:
    """The straight path from `bases` to `ends`, by Gauss-Legendre quadrature with `steps` points (Sundararajan et al.
    2017, "Axiomatic attribution for deep networks")."""
    nodes, node_weights = np.polynomial.legendre.leggauss(steps)
    places, weights, count = _in_turns((nodes + 1) / 2, node_weights / 2, at_once)
    spans = tuple(ops.sub(end, base) for base, end in zip(bases, ends, strict=True))

    def coefficients(turn: Node, number: int, shape: Shape) -> Node:
        return _turn_part(places, turn, count, bases[number].dtype)

    return Points(tuple(bases), spans, coefficients, weights, count)


def noisy(values: Sequence[Node], scores: Scores, steps: int, at_once: int, stdev: float | None, seed: int) -> Points:
    """`steps` samples with normal noise around each example (Smilkov et al. 2017, "SmoothGrad").

    stdev: of the noise; None: a fraction of the range of the example's values.
    """
    _, weights, count = _in_turns(np.zeros(steps), np.full(steps, 1 / steps), at_once)
    kept = [None if scores.batch is None else scores.axis_of(v) for v in scores.values]
    spans = tuple(
        _deviation(x, axis) if stdev is None else ops.full(x.shape, stdev, x.dtype)
        for x, axis in zip(values, kept, strict=True)
    )

    def coefficients(turn: Node, number: int, shape: Shape) -> Node:
        draw = ops.add(ops.mul(turn, len(values)), number)
        return sampling.normal(counted_key(const(seed, np.int64), draw), shape, values[number].dtype)

    return Points(tuple(values), spans, coefficients, weights, count)


def _deviation(x: Node, batch_axis: int | None) -> Node:
    axes = [d for d in range(x.type.rank) if d != (0 if batch_axis is None else batch_axis)]
    spread = ops.sub(ops.reduce_max(x, axes, True), ops.reduce_min(x, axes, True))
    return ops.broadcast_to(ops.mul(spread, ops.scalar(RANGE_FRACTION, x.dtype)), x.shape)


def _in_turns(places: np.ndarray, weights: np.ndarray, at_once: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Places and weights filled up to equal turns by points of weight 0, and the points of a turn."""
    turns = -(-len(places) // at_once)
    count = -(-len(places) // turns)
    fill = turns * count - len(places)
    return np.pad(places, (0, fill), "edge"), np.pad(weights, (0, fill)), count


def _turn_part(table: np.ndarray, turn: Node, count: int, dtype: DType) -> Node:
    """The entries [count] of a table of all turns."""
    entries = const(table.astype(dtype.numpy))
    return entries if len(table) == count else ops.DynamicSlice((count,))(entries, ops.mul(turn, count))


def summed_gradients(scores: Scores, points: Points, others: Sequence[Node], seed: Node) -> list[Node]:
    """The weighted sum of the gradients at the points, for each value.

    others: the inputs that stay. seed: the result's cotangent for one point of each example.
    """
    many = scores.with_points(points.count)
    graph, many_seed = many.gradients()
    axes, n_values = _Axes(scores, points.count), len(scores.values)

    def turn_sums(turn: Node, sums: Sequence[Node], held: Sequence[Node]) -> list[Node]:
        bases, spans, (*rest, one_seed) = held[:n_values], held[n_values : 2 * n_values], held[2 * n_values :]
        images = dict(zip(many.others, map(axes.repeated, scores.others, rest), strict=True))
        for n, v in enumerate(scores.values):
            shape = axes.points_shape(v)
            coefficient = points.coefficients(turn, n, shape)
            if coefficient.shape != shape:
                coefficient = axes.along_points(coefficient, v)
            point = ops.add(axes.spread(bases[n], v), ops.mul(coefficient, axes.spread(spans[n], v)))
            images[many.values[n]] = axes.joined(point, v)
        inputs = dict(zip(graph.inputs, [images[x] for x in many.graph.inputs], strict=False))
        inputs[many_seed] = axes.repeated(scores.result, one_seed)
        _, *gradients = rebuild(graph.outputs, inputs)
        out: list[Node] = []
        for total, gradient, v in zip(sums, gradients, scores.values, strict=True):
            apart = ops.reshape(gradient, axes.points_shape(v))
            weights = _turn_part(points.weights, turn, points.count, v.dtype)
            weighted = ops.mul(apart, axes.along_points(weights, v))
            out.append(ops.add(total, axes.sum_of_points(weighted, v)))
        return out

    zeros = [ops.full(v.shape, 0, v.dtype) for v in scores.values]
    return repeat(points.turns, zeros, [*points.bases, *points.spans, *others, seed], turn_sums)


@dataclass(frozen=True)
class _Axes:
    """Where the points of an example lie: an axis behind that of the batch; with one point there is none."""

    scores: Scores
    count: int

    def spread(self, x: Node, like: Node) -> Node:
        """A value of each example, for each of its points."""
        return x if self.count == 1 else ops.broadcast_to(ops.expand_dims(x, self._axis(like)), self.points_shape(like))

    def along_points(self, vector: Node, like: Node) -> Node:
        return along(vector, self.points_shape(like), None if self.count == 1 else self._axis(like))

    def points_shape(self, like: Node) -> Shape:
        return like.shape if self.count == 1 else points_shape(like.shape, self._axis(like) - 1, self.count)

    def joined(self, x: Node, like: Node) -> Node:
        return x if self.count == 1 else joined(x, self._axis(like) - 1)

    def sum_of_points(self, x: Node, like: Node) -> Node:
        return x if self.count == 1 else ops.reduce_sum(x, self._axis(like))

    def repeated(self, like: Node, x: Node) -> Node:
        """The value of an input or of the result for all points; one without the batch stays."""
        if self.count == 1 or self.scores.batch not in like.shape:
            return x
        return repeated(x, self.scores.axis_of(like), self.count)

    def _axis(self, like: Node) -> int:
        return self.scores.axis_of(like) + 1


def occluded(
    scores: Scores, number: int, values: Mapping[Node, Node], baseline: Node, result: Node, chosen: Node,
    window: Sequence[int], stride: Sequence[int], at_once: int,
) -> Node:  # fmt: skip
    """By how much the score falls where a window of one value is replaced by its baseline: for each element the mean
    over the windows that cover it (Zeiler and Fergus 2014, "Visualizing and understanding convolutional networks").

    number: of the value. values: of all inputs. result, chosen: at these values, and which of its elements is the
    score. window, stride: sizes along the value's axes without that of the batch. Elements in no window get 0.
    """
    v = scores.values[number]
    axes = [d for d in range(v.type.rank) if scores.batch is None or d != scores.axis_of(v)]
    if scores.batch is None and scores.batch_axis is not None:
        axes = axes[1:]
    counts = [_positions(v.shape[d], w, s) for d, w, s in zip(axes, window, stride, strict=True)]
    total = counts[0] if counts else const(1, np.int64)
    for n in counts[1:]:
        total = ops.mul(total, n)
    count = 1 if scores.batch is None else at_once
    many, points = scores.with_points(count), _Axes(scores, count)
    shape, dtype = points.points_shape(v), scores.result.dtype

    def turn_sums(turn: Node, sums: Sequence[Node], held: Sequence[Node]) -> list[Node]:
        base, *rest, score, is_chosen = held
        index = ops.add(ops.mul(turn, count), ops.arange(count))  # [count]
        inside, left = points.along_points(ops.compare("LT", index, _total(v, axes, window, stride)), v), index
        for d, w, s in reversed([*zip(axes, window, stride, strict=True)]):
            positions = _positions(v.shape[d], w, s)
            start = ops.mul(ops.rem(left, positions), s)
            left = ops.div(left, positions)
            own_axis = d + (count > 1 and d >= points._axis(v))
            offset = ops.sub(ops.iota(shape, own_axis), points.along_points(start, v))
            inside = ops.and_(inside, ops.and_(ops.compare("GE", offset, 0), ops.compare("LT", offset, w)))
        images = {
            m: points.repeated(o, x) for m, o, x in zip(many.graph.inputs, scores.graph.inputs, rest, strict=True)
        }
        whole = points.spread(rest[scores.graph.inputs.index(v)], v)
        images[many.values[number]] = points.joined(ops.where(inside, points.spread(base, v), whole), v)
        there = points.repeated(scores.result, is_chosen)
        fallen = ops.sub(points.repeated(scores.result, score), many.call(images))
        drop = ops.reduce_sum(ops.where(there, fallen, 0), list(scores.class_axes))  # [b * count], or a scalar
        if count > 1:
            drop = ops.reshape(drop, (scores.batch, count))  # type: ignore[arg-type]
            at = scores.axis_of(v)
            drop = ops.broadcast_to(ops.reshape(drop, (*(1,) * at, *drop.shape, *(1,) * (len(shape) - at - 2))), shape)
        else:
            drop = along(drop, shape, 0 if drop.shape else None)
        parts = (ops.where(inside, drop, 0), ops.cast(inside, dtype))
        return [ops.add(s, points.sum_of_points(p, v)) for s, p in zip(sums, parts, strict=True)]

    zeros = [ops.full(v.shape, 0, dtype)] * 2
    held = [baseline, *(values[x] for x in scores.graph.inputs), result, chosen]
    turns = ops.div(ops.add(total, count - 1), count)
    fall, cover = repeat(turns, zeros, held, turn_sums)
    return ops.where(ops.compare("GT", cover, 0), ops.div(fall, cover), 0)


def _positions(size: DimLike, window: int, stride: int) -> Node:
    """The number of windows along an axis: the last one may lie partly behind its end."""
    if isinstance(size, int):
        return const(max(1, -(-(size - window) // stride) + 1), np.int64)
    return ops.maximum(ops.add(ops.div(ops.add(ops.scalar(size, i64), stride - 1 - window), stride), 1), 1)


def _total(v: Node, axes: Sequence[int], window: Sequence[int], stride: Sequence[int]) -> Node:
    total = const(1, np.int64)
    for d, w, s in zip(axes, window, stride, strict=True):
        total = ops.mul(total, _positions(v.shape[d], w, s))
    return total


Turn = Callable[[Node, Sequence[Node], Sequence[Node]], Sequence[Node]]


def repeat(turns: int | Node, sums: Sequence[Node], held: Sequence[Node], turn: Turn) -> list[Node]:
    """The sums after `turns` calls of `turn(number, sums, held)`, in a loop if there are several."""
    if turns == 1:
        return list(turn(const(0, np.int64), sums, held))
    count = const(turns, np.int64) if isinstance(turns, int) else turns
    starts = [const(0, np.int64), count, *sums, *held]
    state = [Input(f"carried {n}", x.type)() for n, x in enumerate(starts)]
    number, limit, own_sums, own_held = *state[:2], state[2 : 2 + len(sums)], state[2 + len(sums) :]
    body = (ops.add(number, 1), limit, *turn(number, own_sums, own_held), *own_held)
    loop = ops.While(Graph(tuple(state), (ops.compare("LT", number, limit),)), Graph(tuple(state), body))
    return list(loop(*starts).results[2 : 2 + len(sums)])
