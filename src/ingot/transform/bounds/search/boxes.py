"""Boxes of inputs for branch and bound: their bounds, computed in batches, and how they are halved."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ingot import ops
from ingot.autodiff import gradients
from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node, topological
from ingot.ir.types import TensorType, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.passes.model.lower import lower_model_ops
from ingot.transform.bounds.crown import Walk
from ingot.transform.bounds.forms import Hinge
from ingot.transform.bounds.graph import Bounded
from ingot.transform.bounds.rounding import absolute_value, maximum, minimum, where
from ingot.transform.bounds.search.attack import Goal, widths_of
from ingot.transform.bounds.walks import lower_bounds
from ingot.transform.vectorize import vectorize

_SLOPE_STEPS = (1.0, 0.3, 0.2, 0.1)  # of the slopes of the last walk
_STEP_WALKS = 3  # the cost of a step in walks: one back and its gradient
_MAX_INTERPRETED_NODES, _MAX_INTERPRETED_BYTES = 1 << 10, 1 << 24
_PROBE_BATCHES = 5  # from one probe to the next
_GAIN_DECAY = 0.7  # of the gains that earlier probes measured, at each probe
_PROBE_SEED = 1


def box_graph(bounded: Bounded, is_improved: bool = False) -> Graph:
    """The graph of lower bounds of a result with one input.
    lower, upper [*x] -> lower y [rows] in f64, influence [*x]: how far each element of the input moves the rows within
    its box, summed over the rows. is_improved: by better slopes (see `_improved_bounds`).
    """
    walk = bounded.walk()
    (x,), (y,) = bounded.core.inputs, bounded.core.results
    if bounded.question.method in ("ibp", "forward"):
        lower, influence = walk.intervals.of(y).lower, t.full(x.shape, 1.0, f64)
    else:
        lower, coefficients = _improved_bounds(walk, y) if is_improved else lower_bounds(walk, y, {})
        input_coefficients = coefficients.get(x)
        influence = (
            t.full(x.shape, 0.0, f64)
            if input_coefficients is None
            else absolute_value(input_coefficients).sum((0,), False)
        )
    box = walk.intervals.of(x)
    lower = walk.intervals.guarded(lower, -float("inf"))
    results = (lower.node, (influence * (box.upper - box.lower)).node)
    return lower_model_ops(Graph(bounded.inputs, results, ("lower bounds", "influence")))


def batched(single: Graph, count: int) -> Graph:
    """A graph of `box_graph` for `count` boxes at once: its inputs and results get a first dimension."""
    ends = zip(single.inputs, ("lower", "upper"), strict=True)
    mapped = {v: Input(label, TensorType(v.dtype, (count, *v.shape)))() for v, label in ends}
    return Graph(tuple(mapped.values()), tuple(vectorize(single.outputs, mapped)), tuple(single.output_names))


def is_small(bounded: Bounded) -> bool:
    """Whether the interpreter takes some 0.1 s or less for the bounds of one box: a walk has several ops for each node
    that it passes."""
    walks = (*bounded.groups, *bounded.core.results)
    nodes, coefficient_bytes = len(walks) * len(bounded.core.nodes()), sum(map(bounded.bytes_of, walks))
    return nodes <= _MAX_INTERPRETED_NODES and coefficient_bytes <= _MAX_INTERPRETED_BYTES


def can_improve(bounded: Bounded) -> bool:
    """Whether better slopes of the last walk cost little beside the walks from other values."""
    (y,) = bounded.core.results
    walked_rows = sum(2 * int(product(n.shape)) for n in bounded.walked)
    return int(product(y.shape)) * _STEP_WALKS * len(_SLOPE_STEPS) <= walked_rows


def _improved_bounds(walk: Walk, y: Node) -> tuple[Term, Mapping[Node, Term]]:
    """`lower_bounds` of y, the best after each of a few steps along the signs of the slopes' gradients. The bounds of
    hinges' operands stay."""
    best, coefficients = lower_bounds(walk, y, {})
    c, (count,) = walk.intervals, y.shape
    hinges = [n for n in topological([y]) if isinstance(n.op, Hinge) and not c.is_exact(n)]
    if not hinges:
        return best, coefficients
    slopes = {n: Input(f"slope {i}", TensorType(f64, n.shape))() for i, n in enumerate(hinges)}
    values: list[Node] = []
    for n in hinges:
        x = c.of(n.inputs[0])
        values.append(where(x.upper > -x.lower, 1.0, t.full(n.shape, 0.0, f64)).broadcast((count, *n.shape)).node)
    for rate in _SLOPE_STEPS:
        lower, *values = lower_model_ops(Graph((), (_lower(walk, y, slopes, values)[0].node, *values))).outputs
        steps = gradients(Term(lower).sum((0,), False).node, values)
        moved = (Term(v) + Term(step).map(ops.Sign()) * rate for v, step in zip(values, steps, strict=True))
        values = [minimum(maximum(v, 0.0), 1.0).node for v in moved]
        best = maximum(best, Term(lower))
    lower, coefficients = _lower(walk, y, slopes, values)
    return maximum(best, lower), coefficients


def _lower(walk: Walk, y: Node, slopes: Mapping[Node, Node], values: list[Node]) -> tuple[Term, Mapping[Node, Term]]:
    """`lower_bounds` with these values of the slopes, by row."""
    return lower_bounds(Walk(walk.intervals, alphas=slopes), y, dict(zip(slopes.values(), values, strict=True)))


class Splits:
    """Chooses the element along which each box is halved, by what halving it has gained before.

    In some boxes every element is tried (a probe). What an element gains there for a unit of its width is expected
    elsewhere, too: pseudo-costs, as in integer programming (Benichou et al., Mathematical Programming 1, 1971). Until
    the first probe, and where a batch has no place for one, elements are chosen by influence * sqrt(width). Widths are
    relative to those of the first box.

    For property 2 of ACAS Xu's network 3_3 pseudo-costs find 94% of what the best choices gain, influence 76%.
    """

    def __init__(self, goal: Goal, limits: np.ndarray, widths: np.ndarray, count: int) -> None:
        """limits: of the goal's rows. widths: of the first box, [elements]. count: the boxes in a batch."""
        self.goal, self.limits, self.widths = goal, limits, widths
        self.elements = np.flatnonzero(widths)
        self.probes = count // (2 * len(self.elements)) if len(self.elements) else 0  # boxes in a probe
        self.batches = 0
        self.random = np.random.default_rng(_PROBE_SEED)
        self.gains, self.probed_widths = np.zeros(len(widths)), np.zeros(len(widths))

    def learn(
        self,
        lower: np.ndarray,
        upper: np.ndarray,
        rows: np.ndarray,
        bound: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> int:
        """Probe some of the open boxes of a batch, if it is time to. rows: their bounds. bound: computes those of other
        boxes. Returns the number of boxes bounded."""
        self.batches += 1
        if not self.probes or (self.batches - 1) % _PROBE_BATCHES:
            return 0
        chosen = self.random.permutation(len(lower))[: self.probes]
        low, high = (np.repeat(v[chosen][:, None], 2 * len(self.elements), 1) for v in (lower, upper))
        for i, element in enumerate(self.elements):
            middle = middles_of(lower, upper)[chosen, element]
            high[:, 2 * i, element] = low[:, 2 * i + 1, element] = middle
        flat = [v.reshape(-1, len(self.widths)) for v in (low, high)]
        halves = self.deficit(bound(*flat)).reshape(len(chosen), len(self.elements), 2).sum(2)
        gains = np.maximum(2 * self.deficit(rows[chosen])[:, None] - halves, 0.0)
        gains = np.nan_to_num(gains / np.maximum(gains.max(1, keepdims=True), 1e-300))
        self.gains *= _GAIN_DECAY
        self.probed_widths *= _GAIN_DECAY
        self.gains[self.elements] += gains.sum(0)
        self.probed_widths += self.relative(lower, upper)[chosen].sum(0)
        return len(flat[0])

    def deficit(self, rows: np.ndarray) -> np.ndarray:
        """[boxes]: how far the best rows of the alternatives are from their limits, in sum; 0 for excluded boxes."""
        margins = np.nan_to_num(rows - self.limits, nan=-1e300, posinf=1e300, neginf=-1e300)
        best = [margins[:, list(a)].max(1) for a in self.goal.alternatives if a]
        return -np.minimum(best, 0.0).sum(0) if best else np.zeros(len(rows))

    def relative(self, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        return np.divide(widths_of(lower, upper), self.widths, out=np.zeros(lower.shape), where=self.widths > 0)

    def halves(
        self, lower: np.ndarray, upper: np.ndarray, influence: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Both halves of each box; None if a box has no float between its ends in the chosen element."""
        widths, middles = self.relative(lower, upper), middles_of(lower, upper)
        can_split = (middles > lower) & (middles < upper)
        if self.gains.any():
            score = widths * np.divide(
                self.gains, self.probed_widths, out=np.zeros(len(self.gains)), where=self.probed_widths > 0
            )
        else:
            score = np.minimum(np.nan_to_num(influence, nan=0.0), 1e300) * np.sqrt(widths)
        element = np.where(can_split, score + 1e-300 * widths, -1.0).argmax(1)
        rows = np.arange(len(lower))
        if not can_split[rows, element].all():
            return None
        low, high = lower.copy(), upper.copy()
        low[rows, element] = high[rows, element] = middles[rows, element]
        return np.concatenate([lower, low]), np.concatenate([high, upper])


def middles_of(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    return (lower + widths_of(lower, upper) / 2).astype(lower.dtype)
