"""Whether a network has a property: bounds over boxes of inputs, which are split until each is decided.

Bunel et al., Branch and Bound for Piecewise Linear Neural Network Verification, JMLR 21, 2020. Boxes of few inputs are
split: of one that is not proved, the element that moves the rows most is halved. Of many, neurons are (see `neurons`).
An attack runs first; later a short one runs in the boxes that are left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ingot import ops
from ingot.driver.compile import Options, compiled_program
from ingot.driver.open import Request, open_model
from ingot.ir.dims import Dim, product
from ingot.ir.node import Graph
from ingot.ir.types import f64
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number
from ingot.transform.bounds.attack import Attack, Goal, check_seed
from ingot.transform.bounds.canonical import at_precision
from ingot.transform.bounds.graph import Question, search_graph
from ingot.transform.bounds.neurons import Cases, neurons_of
from ingot.transform.bounds.run import rounded, rounding_of
from ingot.transform.bounds.slopes import slopes_of
from ingot.transform.bounds.vnnlib import Alternative, Property

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"
_BOXES = 128  # in one call
_STEPS = 50  # of the first attack
_STEPS_IN_BOXES = 3
_SLOPE_STEPS = 60
_MOST_SPLIT_ELEMENTS = 32  # of an input that differ in a box: boxes of more are hardly decided by splits
_MOST_WIDE_BOXES = 8  # of more
_MAX_WAITING_BYTES = 1 << 30  # of boxes that wait


@dataclass(frozen=True, eq=False)
class Verdict:
    """answer: PROVED: no input of the property's boxes satisfies it; REFUTED: `counterexample` does, an input and the
    program's results for it; UNKNOWN: neither within the time. boxes: how many were bounded. numerics: whether the
    proof includes the program's rounding."""

    answer: str
    numerics: bool
    boxes: int
    seconds: float
    reason: str = ""
    counterexample: tuple[np.ndarray, np.ndarray] | None = field(default=None)

    def __str__(self) -> str:
        of = "the program, with its rounding" if self.numerics else "the network over real numbers, not the program"
        if self.answer == PROVED:
            word = "certified" if self.numerics else "proved"
            text = f"{word}: holds for {of}"
        elif self.answer == REFUTED:
            text = "refuted: the program was run on a counterexample"
        else:
            text = f"unknown: {self.reason}"
        return f"{text} ({self.boxes} boxes, {self.seconds:.2f} s)"


def certify_model(
    model: Any,
    property_: Property,
    *,
    seconds: float,
    method: str,
    numerics: bool,
    dynamic: Any,
    seed: int,
    options: Options,
) -> Verdict:
    """See `ingot.certify`."""
    check_number("seconds", seconds, "a number above 0", lambda v: 0 < v < 1e9)
    check_seed(seed)
    if not isinstance(property_, Property):
        raise InputError("property", expected="a VNN-LIB file or a Property", got=type(property_).__name__)
    started = time.monotonic()
    opened = open_model(model, Request(None, dynamic)).stateless()
    graph = _checked(opened.graph, property_)
    return _Search(graph, property_, method, numerics, seed, options, started, seconds).run()


def _checked(graph: Graph, property_: Property) -> Graph:
    """The graph with all open sizes 1. Raises InputError for a property of other inputs or results."""
    sizes: dict[str, int | Dim] = dict.fromkeys(graph.symbols(), 1)
    graph = graph.substitute(sizes) if sizes else graph
    if len(graph.inputs) != 1 or len(graph.results) != 1:
        raise InputError(
            "certify",
            expected="a model of one input and one result",
            got=f"{len(graph.inputs)} inputs and {len(graph.results)} results",
        )
    for what, node, count, shape in (
        ("input", graph.inputs[0], property_.inputs, property_.input_shape),
        ("result", graph.results[0], property_.outputs, property_.output_shape),
    ):
        if not node.dtype.is_float:
            raise InputError(f"the model's {what}", expected="floats", got=str(node.type))
        if product(node.shape) != count:
            raise InputError(
                f"the property's {what}", expected=f"{product(node.shape)} elements, as the model's {node.type}",
                got=f"{count} elements", fix="give the property that belongs to this model",
            )  # fmt: skip
        if shape is not None and [d for d in shape if d != 1] != [d for d in node.shape if d != 1]:
            raise InputError(f"the property's {what}", expected=f"shape {list(node.shape)}", got=list(shape))
    return graph


class _Search:
    def __init__(
        self,
        graph: Graph,
        property_: Property,
        method: str,
        numerics: bool,
        seed: int,
        options: Options,
        started: float,
        seconds: float,
    ) -> None:
        self.graph, self.property, self.method, self.numerics = graph, property_, method, numerics
        self.options, self.started, self.seconds, self.seed = options, started, seconds, seed
        self.x = graph.inputs[0].type
        self.shape = tuple(int(d) for d in graph.inputs[0].shape)
        self.boxes = 0

    @cached_property
    def compiled(self) -> Program:
        return compiled_program(self.graph, self.options)

    @cached_property
    def program(self) -> CompiledModel:
        return CompiledModel(self.compiled, threads=self.options.threads)

    def run(self) -> Verdict:
        groups = list(self.groups())
        goals = [(_goal(g), g[0]) for g in groups]
        attacks = [Attack(_with_inputs(self.graph, goal), goal, _BOXES, self.options) for goal, _ in goals]
        progress.report("attack")
        for attack, (goal, box) in zip(attacks, goals, strict=True):  # cheap, before any proof
            if (verdict := self.attack(attack, goal, box)) is not None:
                return verdict
        reasons: list[str] = []
        for attack, (goal, box) in zip(attacks, goals, strict=True):
            verdict = self.prove(attack, goal, box)
            if verdict is not None and verdict.answer == REFUTED:
                return verdict
            if verdict is not None:
                reasons.append(verdict.reason)
        return self.verdict(UNKNOWN, reasons[0]) if reasons else self.verdict(PROVED)

    def groups(self) -> Iterator[list[Alternative]]:
        """The alternatives of each box."""
        found: dict[tuple[bytes, bytes], list[Alternative]] = {}
        for a in self.property.alternatives:
            found.setdefault((a.lower.tobytes(), a.upper.tobytes()), []).append(a)
        yield from found.values()

    def verdict(self, answer: str, reason: str = "", counterexample: tuple | None = None) -> Verdict:
        spent = time.monotonic() - self.started
        return Verdict(answer, self.numerics, self.boxes, spent, reason, counterexample)

    @property
    def deadline(self) -> float:
        return self.started + self.seconds

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline

    # --- counterexamples

    def attack(self, attack: Attack, goal: Goal, box: Alternative) -> Verdict | None:
        lower, upper = self.inner_ends(box)
        if (lower > upper).any():  # no float lies in the box
            return None
        point, violation = attack.run(lower, upper, steps=_STEPS, seed=self.seed)
        return self.counterexample(goal, box, point) if violation <= 0 else None

    def inner_ends(self, box: Alternative) -> tuple[np.ndarray, np.ndarray]:
        """The floats of the input's type in the box."""
        return (
            rounded(box.lower, self.x.dtype, 1).reshape(self.shape),
            rounded(box.upper, self.x.dtype, -1).reshape(self.shape),
        )

    def counterexample(self, goal: Goal, box: Alternative, point: np.ndarray) -> Verdict | None:
        """The verdict if the model's own program confirms the point."""
        flat = point.reshape(-1).astype(np.float64)
        if (flat < box.lower).any() or (flat > box.upper).any():
            return None
        y = np.asarray(self.program.run([np.ascontiguousarray(point)])[0])
        values = np.concatenate([flat, y.reshape(-1).astype(np.float64)]) if self.mixes(goal) else y.reshape(-1)
        margins = goal.rows @ values.astype(np.float64)
        if goal.violation(margins[None]).min() > 0:
            return None
        return self.verdict(REFUTED, counterexample=(point, y))

    def mixes(self, goal: Goal) -> bool:
        return goal.rows.shape[1] != self.property.outputs

    # --- proofs

    def prove(self, attack: Attack, goal: Goal, box: Alternative) -> Verdict | None:
        """None if no input of the box reaches the goal."""
        graph = _with_inputs(self.graph, goal)
        rounding = rounding_of(graph, self.numerics, self.options)
        of_program = at_precision(graph, self.options.precision)
        graph = of_program if self.numerics else graph
        options = replace(self.options, precision="float32")
        bounded = Question((True,), self.method, goal.rows, rounding).of(graph)
        is_wide = int((box.upper > box.lower).sum()) > _MOST_SPLIT_ELEMENTS
        count = min(bounded.boxes, _MOST_WIDE_BOXES if is_wide else _BOXES)
        bounds = CompiledModel(compiled_program(search_graph(bounded, count), options), threads=self.options.threads)
        ends = [rounded(v, self.x.dtype, side).reshape(1, -1) for v, side in ((box.lower, -1), (box.upper, 1))]
        lower, upper = ends
        first = upper - lower
        limits = np.nextafter(goal.limits, np.inf)
        while len(lower):
            if self.is_late:
                return self.verdict(UNKNOWN, f"{len(lower)} boxes are left after {self.seconds:g} s")
            if lower.nbytes + upper.nbytes > _MAX_WAITING_BYTES:
                return self.verdict(UNKNOWN, f"{len(lower)} boxes are left, more than memory should hold")
            lows, highs, lower, upper = lower[-count:], upper[-count:], lower[:-count], upper[:-count]
            rows, influence = self.bound(bounds, lows, highs, count)
            is_first, self.boxes = not self.boxes, self.boxes + len(lows)
            is_open = ~goal.is_excluded(rows > limits)
            if is_first and is_open.any() and is_wide and self.method != "ibp":
                single = [v[0].reshape(self.shape) for v in (lows, highs)]
                better, hinges = slopes_of(bounded, options).run(single, limits, _SLOPE_STEPS, self.deadline)
                rows = np.fmax(rows, better)
                is_open = ~goal.is_excluded(rows > limits)
                neurons = neurons_of(Question((True,), self.method, None, rounding).of(graph), options)
                if neurons is not None and is_open.any():
                    return self.prove_cases(Cases(neurons, single, hinges), goal, rows[0], limits)
            progress.report(f"{self.boxes} boxes, {len(lower)} left")
            lows, highs, influence = lows[is_open], highs[is_open], influence[is_open]
            if not len(lows):
                continue
            if (found := self.attack_boxes(attack, goal, box, lows, highs)) is not None:
                return found
            halves = _halves(lows, highs, influence, first)
            if halves is None:
                return self.verdict(UNKNOWN, "a box of a single point has bounds on both sides of a limit")
            lower, upper = np.concatenate([lower, halves[0]]), np.concatenate([upper, halves[1]])
        return None

    def prove_cases(self, cases: Cases, goal: Goal, rows: np.ndarray, limits: np.ndarray) -> Verdict | None:
        """The same by splits of neurons. rows: lower bounds of the goal's rows."""
        first = self.boxes
        for alternative in goal.alternatives:
            margins = rows[list(alternative)] - limits[list(alternative)]
            if (margins > 0).any():
                continue
            at = alternative[int(margins.argmax())]
            row = goal.rows[at].reshape(cases.neurons.result)
            reason = cases.prove(row, limits[at], self.deadline)
            self.boxes = first + cases.bounded
            if reason:
                return self.verdict(UNKNOWN, reason)
        return None

    def bound(
        self, bounds: CompiledModel, lows: np.ndarray, highs: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower bounds of each box's rows, and each element's influence."""
        found, influence = bounds.run([self.padded(v, count) for v in (lows, highs)])
        return found[: len(lows)], influence[: len(lows)].reshape(len(lows), -1)

    def attack_boxes(
        self, attack: Attack, goal: Goal, box: Alternative, lows: np.ndarray, highs: np.ndarray
    ) -> Verdict | None:
        """A counterexample in boxes that are left, a few steps from their middles."""
        lower, upper = (self.padded(v, _BOXES) for v in (lows, highs))
        point, violation = attack.descend(lower + (upper - lower) / 2, lower, upper, _STEPS_IN_BOXES)
        return self.counterexample(goal, box, point) if violation <= 0 else None

    def padded(self, flat: np.ndarray, count: int) -> np.ndarray:
        """[boxes, elements] as [count, *x], the first repeated."""
        full = np.concatenate([flat, np.repeat(flat[:1], count - len(flat), 0)])
        return full.reshape(count, *self.shape)


def _goal(alternatives: Sequence[Alternative]) -> Goal:
    """The rows of some alternatives of one box, each once."""
    is_mixed = any(a.input_rows.any() for a in alternatives)
    rows: dict[tuple[bytes, float], int] = {}
    tables: list[np.ndarray] = []
    limits: list[float] = []
    indices: list[tuple[int, ...]] = []
    for a in alternatives:
        chosen: list[int] = []
        for of_input, of_output, limit in zip(a.input_rows, a.output_rows, a.limits, strict=True):
            row = np.concatenate([of_input, of_output]) if is_mixed else of_output
            key = row.tobytes(), float(limit)
            if key not in rows:
                rows[key] = len(tables)
                tables.append(row)
                limits.append(float(limit))
            chosen.append(rows[key])
        indices.append(tuple(chosen))
    width = alternatives[0].output_rows.shape[1] + (alternatives[0].input_rows.shape[1] if is_mixed else 0)
    table = np.stack(tables) if tables else np.zeros((1, width))
    return Goal(table, np.asarray(limits or [np.inf]), tuple(indices))


def _with_inputs(graph: Graph, goal: Goal) -> Graph:
    """The graph, or for rows of inputs and results both, one after the other."""
    (x,), (y,) = graph.inputs, graph.results
    if goal.rows.shape[1] == product(y.shape):
        return graph
    flat = [ops.reshape(v, (product(v.shape),)) for v in (x, y)]
    wide = f64 if f64 in (x.dtype, y.dtype) else y.dtype
    return Graph((x,), (ops.concat([ops.cast(v, wide) for v in flat], 0),), ("values",))


def _halves(
    lower: np.ndarray, upper: np.ndarray, influence: np.ndarray, first: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Each box cut in the middle of the element of most influence, of which elements that were cut before lose some;
    None if one has no float between its ends. first: the widths of the first box.

    By influence alone one element is cut again and again: ACAS Xu's property 1 of network 1_4 took more than 500,000
    boxes, and takes 500; by influence times width 4_9 takes 30,000 for 5,600.
    """
    middles = lower + (upper - lower) / 2
    can_split = (middles > lower) & (middles < upper)
    known = np.minimum(np.nan_to_num(influence, nan=0.0), 1e300)
    share = np.divide(upper - lower, first, out=np.zeros(lower.shape), where=first > 0)
    score = np.where(can_split, known * np.sqrt(share) + 1e-300, -1.0)
    at = score.argmax(1)
    rows = np.arange(len(lower))
    if not can_split[rows, at].all():
        return None
    low, high = lower.copy(), upper.copy()
    high[rows, at] = middles[rows, at]
    low[rows, at] = middles[rows, at]
    return np.concatenate([lower, low]), np.concatenate([high, upper])
