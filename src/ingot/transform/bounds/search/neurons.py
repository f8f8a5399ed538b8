"""Neuron splits: branch and bound over the signs of the operands of hinges.

Wang et al., Beta-CROWN: Efficient Bound Propagation with Per-neuron Split Constraints, NeurIPS 2021; the neuron whose
relaxation costs most is split, as in Bunel et al., JMLR 21, 2020. In a case the signs of some values are fixed: their
hinges are linear, and a Lagrange multiplier for each restricts the bound to inputs with these signs. The multipliers
are optimized together with the slopes of the other hinges' lower lines. Intermediate bounds are those of the whole box.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np

from ingot.autodiff import gradients
from ingot.driver.compile import Options, compiled_program
from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f64, static_shape
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.passes.model.lower import lower_model_ops
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.transform.bounds.crown import Backward, Walk
from ingot.transform.bounds.forms import Hinge
from ingot.transform.bounds.graph import Bounded
from ingot.transform.bounds.lines import lines_of_hinge
from ingot.transform.bounds.rounding import Interval, maximum, minimum, where
from ingot.transform.bounds.slopes import Ascent
from ingot.transform.vectorize import vectorize

_CASE_STEPS = 14  # of the ascent of a case's slopes and multipliers
_LEAF_STEPS = 200  # if no sign of a case is open, so that it cannot be split further
_RATE = 0.05  # of the ascent, which starts at the values of the parent case
_MIN_MULTIPLIER = 1e-6  # max(m, 0) has no gradient at 0
_MAX_CASES = 128  # at once
_BATCH_BYTES = 1 << 28  # of the coefficients of all cases in a batch
_MAX_WAITING_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Neurons:
    """The compiled bounds of `count` cases at once. result: the shape of the result. step: (box, bounds of the hinges'
    operands, rows, signs, slopes, multipliers) -> a lower bound of each case's row, the cost of each hinge's
    relaxation, and the gradients of slopes and multipliers."""

    count: int
    result: tuple[int, ...]
    step: CompiledModel


def neurons_of(bounded: Bounded, options: Options) -> Neurons | None:
    """Compile the bounds of cases for a graph with one result; None if it has no hinges. A row has a factor for each
    element of the result."""
    c = bounded.intervals()
    hinges = [n for n in bounded.core.nodes() if isinstance(n.op, Hinge) and not c.is_exact(n)]
    if not hinges:
        return None
    widest = max(int(product(n.shape)) for n in bounded.core.nodes() if len(n.types) == 1 and not n.is_leaf)
    count = max(2, min(_MAX_CASES, _BATCH_BYTES // (8 * widest)))
    program = compiled_program(_step_graph(bounded, hinges, count), options)
    shape = static_shape(bounded.core.results[0].shape)
    return Neurons(count, shape, CompiledModel(program, threads=options.threads))


def _step_graph(bounded: Bounded, hinges: Sequence[Node], count: int) -> Graph:
    (y,) = bounded.core.results
    c = bounded.intervals()

    def inputs(label: str, rows: tuple[int, ...] = ()) -> list[Node]:
        return [Input(f"{label} {i}", TensorType(f64, (*rows, *n.shape)))() for i, n in enumerate(hinges)]

    lows, highs = inputs("least of hinge"), inputs("most of hinge")
    operand_intervals = {n.inputs[0]: Interval(Term(a), Term(b)) for n, a, b in zip(hinges, lows, highs, strict=True)}
    for node in bounded.core.nodes():
        c.add([node])
        if node in operand_intervals:
            c.values[node] = operand_intervals[node]
    labels = ("signs of hinge", "slopes of hinge", "multipliers of hinge")
    single_inputs, batched_inputs = [inputs(label) for label in labels], [inputs(label, (count,)) for label in labels]
    multipliers: dict[Node, Term] = {}
    walk = Walk(c, multipliers=multipliers)
    for n, sign, slope, multiplier in zip(hinges, *single_inputs, strict=True):
        s, x = Term(sign), c.of(n.inputs[0])
        lower, upper = where(s > 0.0, maximum(x.lower, 0.0), x.lower), where(s < 0.0, minimum(x.upper, 0.0), x.upper)
        assert isinstance(n.op, Hinge)
        walk.lines[n] = lines_of_hinge(n.op, Interval(lower, upper), Term(slope))
        m = s * maximum(Term(multiplier), 0.0)
        multipliers[n.inputs[0]] = multipliers[n.inputs[0]] + m if n.inputs[0] in multipliers else m
    seed = Input("row", TensorType(f64, y.shape))()
    rows = Input("rows", TensorType(f64, (count, *y.shape)))()
    backward = Backward(walk)
    total = c.guarded(backward.run({y: Term(seed)}), -float("inf"))
    costs = [backward.costs[n] if n in backward.costs else t.full(n.shape, 0.0, f64) for n in hinges]
    mapped = dict(
        zip([v for group in single_inputs for v in group], [v for group in batched_inputs for v in group], strict=True)
    )
    lower, *outputs = vectorize([total.node, *(v.node for v in costs)], {seed: rows, **mapped})
    lowered = lower_model_ops(Graph((), (lower, *outputs))).outputs
    parameters = [v for group in batched_inputs[1:] for v in group]
    gradient_nodes = gradients(Term(lowered[0]).sum((0,), False).node, parameters)
    arguments = (*bounded.inputs, *(v for pair in zip(lows, highs, strict=True) for v in pair), rows)
    return lower_model_ops(
        Graph((*arguments, *(v for group in batched_inputs for v in group)), (*lowered, *gradient_nodes))
    )


@dataclass(frozen=True, eq=False)
class Case:
    """The inputs of a box for which the hinges' operands have given signs. row: factors of the result, whose sum is to
    be proved above `limit`. signs: for each element of each hinge's operand -1, 1, or 0 if open. lower: the bound so
    far. split: the hinge and the element to split next."""

    row: np.ndarray
    limit: float
    lower: float
    signs: tuple[np.ndarray, ...]
    slopes: tuple[np.ndarray, ...]
    multipliers: tuple[np.ndarray, ...]
    split: tuple[int, int] | None = field(default=None)

    @property
    def nbytes(self) -> int:
        return sum(v.nbytes for group in (self.signs, self.slopes, self.multipliers) for v in group)


class Cases:
    """A search over cases. hinge_bounds: the lower and upper bounds of each hinge's operand over the box. bounded: the
    count of cases bounded so far."""

    def __init__(self, neurons: Neurons, box: Sequence[np.ndarray], hinge_bounds: Sequence[np.ndarray]) -> None:
        self.neurons, self.box, self.hinge_bounds = neurons, list(box), list(hinge_bounds)
        self.bounded = 0

    def root(self, row: np.ndarray, limit: float) -> Case:
        lows, highs = self.hinge_bounds[::2], self.hinge_bounds[1::2]
        signs = tuple(np.zeros(v.shape, np.int8) for v in lows)
        slopes = tuple((high > -low).astype(np.float32) for low, high in zip(lows, highs, strict=True))
        multipliers = tuple(np.full(v.shape, _MIN_MULTIPLIER, np.float32) for v in lows)
        return Case(row, limit, -np.inf, signs, slopes, multipliers)

    def prove(self, row: np.ndarray, limit: float, deadline: float) -> str:
        """An empty text if row . y > limit is proved for all inputs of the box, else the reason why it is undecided.
        deadline: in seconds of `time.monotonic`."""
        count, waiting = 0, [(-np.inf, 0, self.root(row, limit))]
        cases = [waiting.pop()[2]]
        while True:
            for case in self.bound(cases, deadline):
                count += 1
                if case.split is None:
                    return "a case with all signs known has bounds on both sides of a limit"
                heapq.heappush(waiting, (case.lower, count, case))
            if not waiting:
                return ""
            if time.monotonic() > deadline or len(waiting) * waiting[0][2].nbytes > _MAX_WAITING_BYTES:
                return f"{len(waiting)} cases are left"
            worst = [heapq.heappop(waiting)[2] for _ in range(min(len(waiting), self.neurons.count // 2))]
            cases = [half for case in worst for half in _split_case(case)]
            progress.report(f"{self.bounded} cases, {len(waiting)} left")

    def bound(self, cases: Sequence[Case], deadline: float) -> list[Case]:
        """The undecided cases, with improved bounds and their next split."""
        count = self.neurons.count
        self.bounded += len(cases)
        padded = [*cases, *[cases[0]] * (count - len(cases))]
        rows = np.stack([c.row for c in padded]).astype(np.float64)
        limits = np.asarray([c.limit for c in cases])
        signs = [np.stack(parts).astype(np.float64) for parts in zip(*(c.signs for c in padded), strict=True)]
        parameters = [
            np.stack(parts).astype(np.float64)
            for group in (
                zip(*(c.slopes for c in padded), strict=True),
                zip(*(c.multipliers for c in padded), strict=True),
            )
            for parts in group
        ]
        ascent, hinges = Ascent(parameters, _RATE), len(signs)
        best = np.full(len(cases), -np.inf)
        costs: list[np.ndarray] = []
        has_leaf = any(self.next_split(c.signs, c.signs) is None for c in cases)
        steps = _LEAF_STEPS if has_leaf else _CASE_STEPS
        for step in range(steps):
            lower, *outputs = self.neurons.step.run([*self.box, *self.hinge_bounds, rows, *signs, *ascent.values])
            best = np.fmax(best, lower[: len(cases)])
            costs = outputs[:hinges]
            if (best > limits).all() or time.monotonic() > deadline or step == steps - 1:
                break
            ascent.move(outputs[hinges:])
            for slope, multiplier in zip(ascent.values[:hinges], ascent.values[hinges:], strict=True):
                np.clip(slope, 0.0, 1.0, out=slope)
                np.clip(multiplier, _MIN_MULTIPLIER, None, out=multiplier)
        slopes, multipliers = ascent.values[:hinges], ascent.values[hinges:]
        undecided: list[Case] = []
        for i in np.flatnonzero(~(best > limits)).tolist():
            case = cases[i]
            split = self.next_split([v[i] for v in costs], case.signs)
            case_slopes, case_multipliers = (
                tuple(v[i].astype(np.float32) for v in group) for group in (slopes, multipliers)
            )
            lower = max(case.lower, float(best[i]))
            undecided.append(Case(case.row, case.limit, lower, case.signs, case_slopes, case_multipliers, split))
        return undecided

    def next_split(self, costs: Sequence[np.ndarray], signs: Sequence[np.ndarray]) -> tuple[int, int] | None:
        """The (hinge, element) with the largest cost among those whose sign is open, else the one with the widest
        bounds; None if no sign is open."""
        split: tuple[int, int] | None = None
        best_score = -np.inf
        for i, (cost, sign, low, high) in enumerate(
            zip(costs, signs, self.hinge_bounds[::2], self.hinge_bounds[1::2], strict=True)
        ):
            is_open = (sign == 0) & (low < 0) & (high > 0)
            if not is_open.any():
                continue
            score = np.where(is_open, np.nan_to_num(cost) + 1e-30 * np.minimum(-low, high), -np.inf).reshape(-1)
            element = int(score.argmax())
            if score[element] > best_score:
                split, best_score = (i, element), float(score[element])
        return split


def _split_case(case: Case) -> Iterator[Case]:
    assert case.split is not None
    hinge, element = case.split
    for sign in (-1, 1):
        signs = [v.copy() if i == hinge else v for i, v in enumerate(case.signs)]
        signs[hinge].reshape(-1)[element] = sign
        yield Case(case.row, case.limit, case.lower, tuple(signs), case.slopes, case.multipliers)
