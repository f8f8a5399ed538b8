"""Projected gradient descent to an input of a box whose result violates a condition.

Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018. All starting points are one
batch of a program that computes the margins and their gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import ops
from ingot.autodiff import differentiable, gradients
from ingot.autodiff.rules import RULES
from ingot.driver.compile import Options, compiled_program
from ingot.ir.dims import product
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.unroll import unroll
from ingot.passes.model.lower import lower_model_ops
from ingot.runtime.executor import CompiledModel
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number
from ingot.transform.bounds.graph import with_spec
from ingot.transform.bounds.run import box_of, opened_for, rows_of_spec, static_graph
from ingot.transform.vectorize import vectorize

_FIRST_STEP = 0.25  # relative to the box's width, decaying to a hundredth of it

_RESTART_WIDTHS = 0.1  # the radius around the best point in which others start, in widths of the box


@dataclass(frozen=True, eq=False)
class Goal:
    """The goal of an attack. rows: factors of the result's elements. alternatives: sets of rows; the goal is reached
    if, for one of them, the sums of all its rows are at most their limits."""

    rows: np.ndarray
    limits: np.ndarray
    alternatives: tuple[tuple[int, ...], ...]

    def violation(self, margins: np.ndarray) -> np.ndarray:
        """[points, rows] -> [points, alternatives]: the largest excess over a limit; reached if it is <= 0. NaN reaches
        nothing."""
        excess = np.nan_to_num(margins.astype(np.float64) - self.limits, nan=np.inf, posinf=np.inf, neginf=-np.inf)
        return self._of_alternatives(np.maximum, excess, -np.inf)

    def is_excluded(self, above: np.ndarray) -> np.ndarray:
        """[boxes, rows] -> [boxes]: whether no alternative is possible. above: rows proved above their limit."""
        return np.logical_and.reduce(self._of_alternatives(np.logical_or, above, False), axis=1)

    def _of_alternatives(self, merge: np.ufunc, values: np.ndarray, identity: float | bool) -> np.ndarray:
        """[points, rows] -> [points, alternatives]: the values of each alternative's rows, merged."""
        padded = np.concatenate([values, np.full((len(values), 1), identity, values.dtype)], 1)
        rows = np.concatenate([(*a, -1) for a in self.alternatives])
        starts = np.cumsum([0, *(len(a) + 1 for a in self.alternatives[:-1])])
        return merge.reduceat(padded[:, rows], starts, axis=1)


def check_seed(seed: int) -> None:
    check_number("seed", seed, "a whole number from 0", lambda v: 0 <= v < 1 << 63, whole=True)


def attack_program(graph: Graph, rows: np.ndarray, points: int, options: Options) -> CompiledModel:
    """The program of attacks on a graph of one perturbed input and one result: see `_step_graph`."""
    return CompiledModel(compiled_program(_step_graph(graph, rows, points), options), threads=options.threads)


class Attack:
    """An attack by the program of a goal's rows for this number of points."""

    def __init__(self, program: CompiledModel, goal: Goal, points: int) -> None:
        self.goal, self.points = goal, points
        self.nearest: np.ndarray | None = None  # the best point of all runs, and its violation
        self.least = np.inf
        self._program = program
        self._first_alternative = 0  # of the first point of the next descent

    def run(self, lower: np.ndarray, upper: np.ndarray, *, steps: int, seed: int) -> tuple[np.ndarray, float]:
        """The best point visited in a box and its violation, at most 0 if the goal is reached. Starts at the center and
        at random points; with odd seeds, around the best point of earlier runs. lower, upper: of the input's shape."""
        rng = np.random.default_rng(seed)
        width = widths_of(lower, upper)
        if self.nearest is None or not seed % 2:
            starts = lower + rng.random((self.points, *lower.shape)) * width
            starts[0] = lower + width / 2
        else:
            radius = _RESTART_WIDTHS * rng.random((self.points, *(1 for _ in lower.shape))) ** 2
            starts = self.nearest + rng.normal(size=(self.points, *lower.shape)) * radius * width
        point, violation = self.descend(starts, lower, upper, steps)
        if violation < self.least:
            self.nearest, self.least = point, violation
        return point, violation

    def descend(self, points: np.ndarray, lower: np.ndarray, upper: np.ndarray, steps: int) -> tuple[np.ndarray, float]:
        """Like `run` from these starting points, each in its own box or all in one."""
        dtype, alternatives, first = lower.dtype, self.goal.alternatives, self._first_alternative
        width = widths_of(lower, upper)
        is_wanted = np.zeros((self.points, len(self.goal.rows)), bool)  # by each point
        for i, wanted in enumerate(is_wanted):
            wanted[list(alternatives[(first + i) % len(alternatives)])] = True
        self._first_alternative = (first + self.points) % len(alternatives)  # all have their turn
        best, least = points[0].astype(dtype), np.inf
        worst = np.zeros(self.points, np.int64)
        for step in range(steps + 1):  # the first finds the rows to descend
            with np.errstate(over="ignore"):
                points = np.minimum(np.maximum(points.astype(dtype), lower), upper)  # clip takes no bfloat16
            weights = np.zeros((self.points, len(self.goal.rows)), dtype)
            weights[np.arange(self.points), worst] = 1
            margins, slopes = self._program.run([points, weights])
            violation = self.goal.violation(margins)
            best_point = int(violation.min(1).argmin())
            if violation[best_point].min() < least:
                best, least = points[best_point].copy(), float(violation[best_point].min())
            if least <= 0:
                break
            if step:
                rate = _FIRST_STEP * 0.04 ** ((step - 1) / max(steps, 1))
                points = points - _direction(slopes) * width * rate
            worst = np.where(is_wanted, margins.astype(np.float64) - self.goal.limits, -np.inf).argmax(1)
        return best, least


def widths_of(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """In f64, where the widths of f32 boxes do not overflow; at most its largest number."""
    with np.errstate(over="ignore"):
        return np.nan_to_num(upper.astype(np.float64) - lower.astype(np.float64))


def _direction(slopes: np.ndarray) -> np.ndarray:
    """Signs for every other point, which move to corners of the box; for the rest the slopes divided by the largest,
    which converge at kinks."""
    slopes_f64 = np.nan_to_num(slopes.astype(np.float64))
    largest = np.abs(slopes_f64).max(tuple(range(1, slopes_f64.ndim)), keepdims=True, initial=0.0)
    direction = np.sign(slopes_f64)
    direction[1::2] = (slopes_f64 / np.where(largest > 0, largest, 1.0))[1::2]
    return direction


def _step_graph(graph: Graph, rows: np.ndarray, points: int) -> Graph:
    """x [points, *x], weights [points, rows] -> margins [points, rows], gradient of weights . margins [points, *x]"""
    loops = lower_model_ops(with_spec(graph, rows), frozenset(RULES) - {ops.Recurrent})
    core = differentiable(unroll(fold_constants(loops)))  # as loops have no batches of points
    (x,), (margins,) = core.inputs, core.results
    weights = Input("weights", TensorType(x.dtype, margins.shape))()
    loss = ops.DotGeneral(((), ()), ((0,), (0,)))(ops.cast(weights, margins.dtype), margins)
    (slope,) = gradients(loss, [x])
    lowered = lower_model_ops(Graph((x, weights), (margins, slope)))
    x, weights = lowered.inputs
    mapped = {
        v: Input(label, TensorType(v.dtype, (points, *v.shape)))() for v, label in ((x, "x"), (weights, "weights"))
    }
    outputs = vectorize(lowered.outputs, mapped)
    return Graph(tuple(mapped.values()), tuple(outputs), ("margins", "gradient"))


@dataclass(frozen=True, eq=False)
class Adversarial:
    """The worst input that an attack visited. success: whether a sum of the spec is at most 0 there, by the compiled
    model. x: of the input's type and shape. y: the compiled model's result. margin: the least sum."""

    success: bool
    x: np.ndarray
    y: np.ndarray
    margin: float


def attack_model(
    model: Any,
    x: Any,
    *,
    label: int | None,
    spec: Any,
    eps: Any,
    lower: Any,
    upper: Any,
    steps: int,
    points: int,
    seed: int,
    dynamic: Any,
    options: Options,
) -> Adversarial:
    """See `ingot.attack`."""
    check_number("steps", steps, "a number of at least 1", lambda v: 1 <= v <= 1_000_000, whole=True)
    check_number("points", points, "a number of at least 1", lambda v: 1 <= v <= 65_536, whole=True)
    check_seed(seed)
    opened = opened_for(model, x, dynamic)
    box = box_of(opened, x, eps, lower, upper)
    graph = static_graph(opened.graph, [low for low, _ in box.intervals])
    if len(graph.inputs) != 1 or len(graph.results) != 1:
        got = f"{len(graph.inputs)} inputs and {len(graph.results)} results"
        raise InputError("attack", expected="a model of one input and one result", got=got)
    rows = rows_of(graph, label, spec)
    goal = Goal(rows, np.zeros(len(rows)), tuple((i,) for i in range(len(rows))))
    low, high = box.intervals[0]
    descent = Attack(attack_program(graph, rows, points, options), goal, points)
    point, _ = descent.run(low, high, steps=steps, seed=seed)
    program = CompiledModel(compiled_program(graph, options), threads=options.threads)
    y = np.asarray(program.run([point])[0])
    margin = float((rows @ y.reshape(-1).astype(np.float64)).min())
    return Adversarial(margin <= 0, point, y, margin)


def rows_of(graph: Graph, label: int | None, spec: Any) -> np.ndarray:
    """The rows of a spec, or the differences between the result of the label and that of each other class."""
    if (label is None) == (spec is None):
        raise InputError("attack", expected="either a label or a spec", got="none" if spec is None else "both")
    y = graph.results[0].type
    size = product(y.shape)
    assert isinstance(size, int)
    if label is None:
        return rows_of_spec(graph, spec)
    if size != y.shape[-1] or size < 2:
        raise InputError("label", expected="a model whose result is [classes] or [1, classes]", got=str(y))
    check_number("label", label, f"a class from 0 to {size - 1}", lambda v: 0 <= v < size, whole=True)
    rows = -np.eye(size)
    rows[:, label] += 1
    return np.delete(rows, label, 0)
