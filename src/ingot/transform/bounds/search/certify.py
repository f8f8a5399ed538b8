"""Verification of properties of networks: branch and bound over boxes of inputs, which are split until decided.

Bunel et al., Branch and Bound for Piecewise Linear Neural Network Verification, JMLR 21, 2020. In low dimensions the
input box is split: undecided boxes are halved (see `boxes`). In high dimensions neurons are split (see `neurons`). An
attack runs first, and short attacks run in the boxes that remain.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from ingot import ops
from ingot.driver.compile import Options, compiled_program
from ingot.driver.open import Request, open_model
from ingot.ir.dims import Dim, product
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.ir.types import f64
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number
from ingot.transform.bounds.graph import Bounded, Question
from ingot.transform.bounds.narrow import in_parts
from ingot.transform.bounds.rounding import Rounding
from ingot.transform.bounds.run import as_compiled, rounded, rounding_of
from ingot.transform.bounds.search.attack import Attack, Goal, attack_program, check_seed, widths_of
from ingot.transform.bounds.search.boxes import Splits, batched, box_graph, can_improve, is_small, middles_of
from ingot.transform.bounds.search.neurons import Cases, Neurons, neurons_of
from ingot.transform.bounds.search.vnnlib import Alternative, Property
from ingot.transform.bounds.slopes import Slopes, slopes_of

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"
_BATCH_BOXES = 128  # bounded in one call
_ATTACK_STEPS = 50
_ATTACK_SHARE = 0.5  # of the time, for the attacks before any proof
_ATTACK_BATCHES = 6  # of boxes, from one attack on the whole box to the next
_STEPS_IN_BOXES = 3
PLAIN_BOXES = 2048  # before a program with better bounds is compiled
_SLOPE_STEPS = 60
_MAX_INTERPRETED_BOXES = 4  # of a property
_MAX_SPLIT_ELEMENTS = 32  # perturbed elements of a box; splits of its inputs hardly decide a larger one
_MAX_WIDE_BOXES = 8  # in one call, of boxes with more elements
_MAX_WAITING_BYTES = 1 << 30  # of undecided boxes


@dataclass(frozen=True, eq=False)
class Verdict:
    """answer: PROVED: no input of the property's boxes violates it; REFUTED: `counterexample` does, an input and the
    program's result for it; UNKNOWN: undecided within the time. boxes: how many were bounded. numerics: whether the
    proof includes the program's rounding."""

    answer: str
    numerics: bool
    boxes: int
    seconds: float
    reason: str = ""
    counterexample: tuple[np.ndarray, np.ndarray] | None = field(default=None)

    def __str__(self) -> str:
        subject = (
            "the program, with its rounding" if self.numerics else "the network over real numbers, not the program"
        )
        if self.answer == PROVED:
            word = "certified" if self.numerics else "proved"
            text = f"{word}: holds for {subject}"
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
    graph = static_checked_graph(opened.graph, property_)
    return Search(graph, property_, method, numerics, seed, options, started, seconds).run()


def static_checked_graph(graph: Graph, property_: Property) -> Graph:
    """The graph with all symbolic sizes set to 1. Raises InputError unless the property matches it."""
    sizes: dict[str, int | Dim] = dict.fromkeys(graph.symbols(), 1)
    graph = graph.substitute(sizes) if sizes else graph
    if len(graph.inputs) != 1 or len(graph.results) != 1:
        raise InputError(
            "certify",
            expected="a model of one input and one result",
            got=f"{len(graph.inputs)} inputs and {len(graph.results)} results",
        )
    for role, node, count, shape in (
        ("input", graph.inputs[0], property_.inputs, property_.input_shape),
        ("result", graph.results[0], property_.outputs, property_.output_shape),
    ):
        if not node.dtype.is_float:
            raise InputError(f"the model's {role}", expected="floats", got=str(node.type))
        if product(node.shape) != count:
            raise InputError(
                f"the property's {role}", expected=f"{product(node.shape)} elements, as the model's {node.type}",
                got=f"{count} elements", fix="give the property that belongs to this model",
            )  # fmt: skip
        if shape is not None and [d for d in shape if d != 1] != [d for d in node.shape if d != 1]:
            raise InputError(f"the property's {role}", expected=f"shape {list(node.shape)}", got=list(shape))
    return graph


class _Programs:
    """The programs for goals of the same rows of the graph's result, each compiled when it is needed."""

    def __init__(self, graph: Graph, rows: np.ndarray, method: str, numerics: bool, options: Options) -> None:
        self.graph, self.rows, self.method, self.numerics, self.options = graph, rows, method, numerics, options
        self.bound_options = replace(options, precision="float32", activations="float32")
        self._bounds: dict[tuple[int, bool], CompiledModel] = {}

    @cached_property
    def attack(self) -> CompiledModel:
        return attack_program(self.graph, self.rows, _BATCH_BOXES, self.options)

    @cached_property
    def rounding(self) -> Rounding:
        return rounding_of(self.graph, self.numerics, self.options)

    @cached_property
    def bounded(self) -> Bounded:
        return self._bounded(self.rows)

    def _bounded(self, rows: np.ndarray | None) -> Bounded:
        of_program = as_compiled(self.graph, self.options)
        graph = in_parts(of_program) if self.numerics else self.graph
        return Question((True,), self.method, rows, self.rounding).of(graph)

    @cached_property
    def single(self) -> Graph:
        """See `box_graph`."""
        return box_graph(self.bounded)

    def bounds(self, count: int, is_improved: bool = False) -> CompiledModel:
        """See `batched`."""
        key = count, is_improved
        if key not in self._bounds:
            single = box_graph(self.bounded, is_improved) if is_improved else self.single
            program = compiled_program(batched(single, count), self.bound_options)
            self._bounds[key] = CompiledModel(program, threads=self.options.threads)
        return self._bounds[key]

    @cached_property
    def slopes(self) -> Slopes:
        return slopes_of(self.bounded, self.bound_options)

    @cached_property
    def neurons(self) -> Neurons | None:
        return neurons_of(self._bounded(None), self.bound_options)


@dataclass(frozen=True, eq=False)
class Task:
    """A goal that no input of a box may reach, and the programs for its rows."""

    programs: _Programs
    goal: Goal
    box: Alternative

    @cached_property
    def attack(self) -> Attack:
        return Attack(self.programs.attack, self.goal, _BATCH_BOXES)


class Search:
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
        tasks = list(self.tasks())
        if len(tasks) <= _MAX_INTERPRETED_BOXES:
            tasks = [task for task in tasks if not self.is_excluded(task)]
        progress.report("attack")
        for task in tasks:  # cheap, before any proof
            if (verdict := self.attack(task, self.seed)) is not None:
                return verdict
            if time.monotonic() > self.started + _ATTACK_SHARE * self.seconds:
                break
        reasons: list[str] = []
        for task in tasks:
            verdict = self.prove(task)
            if verdict is not None and verdict.answer == REFUTED:
                return verdict
            if verdict is not None:
                reasons.append(verdict.reason)
        return self.verdict(UNKNOWN, reasons[0]) if reasons else self.verdict(PROVED)

    def tasks(self) -> Iterator[Task]:
        """A task for each box."""
        programs: dict[tuple[int, bytes], _Programs] = {}
        for group in self.groups():
            goal = _goal_of(group)
            rows = goal.rows
            key = rows.shape[1], rows.tobytes()
            if key not in programs:
                graph = _with_input_rows(self.graph, goal)
                programs[key] = _Programs(graph, rows, self.method, self.numerics, self.options)
            yield Task(programs[key], goal, group[0])

    def groups(self) -> Iterator[list[Alternative]]:
        """The alternatives, grouped by box."""
        groups: dict[tuple[bytes, bytes], list[Alternative]] = {}
        for a in self.property.alternatives:
            groups.setdefault((a.lower.tobytes(), a.upper.tobytes()), []).append(a)
        yield from groups.values()

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

    def attack(self, task: Task, seed: int) -> Verdict | None:
        lower, upper = self.inner_ends(task.box)
        if (lower > upper).any():  # no float lies in the box
            return None
        point, violation = task.attack.run(lower, upper, steps=_ATTACK_STEPS, seed=seed)
        return self.counterexample(task, point) if violation <= 0 else None

    def outer_ends(self, box: Alternative) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the box, rounded outwards to the input's type."""
        return rounded(box.lower, self.x.dtype, -1), rounded(box.upper, self.x.dtype, 1)

    def inner_ends(self, box: Alternative) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the box, rounded inwards to the input's type."""
        return (
            rounded(box.lower, self.x.dtype, 1).reshape(self.shape),
            rounded(box.upper, self.x.dtype, -1).reshape(self.shape),
        )

    def counterexample(self, task: Task, point: np.ndarray) -> Verdict | None:
        """REFUTED if the compiled model confirms the point, else None."""
        goal, box = task.goal, task.box
        flat = point.reshape(-1).astype(np.float64)
        if not ((flat >= box.lower) & (flat <= box.upper)).all():
            return None
        y = np.asarray(self.program.run([np.ascontiguousarray(point)])[0])
        values = np.concatenate([flat, y.reshape(-1).astype(np.float64)]) if self.mixes(goal) else y.reshape(-1)
        margins = goal.rows @ values.astype(np.float64)
        if not (goal.violation(margins[None]) <= 0).any():  # NaN satisfies nothing
            return None
        return self.verdict(REFUTED, counterexample=(point, y))

    def mixes(self, goal: Goal) -> bool:
        return goal.rows.shape[1] != self.property.outputs

    # --- proofs

    def is_excluded(self, task: Task) -> bool:
        """Whether bounds of the whole box exclude the goal, for networks so small that they are interpreted in less
        time than a program is compiled in."""
        if self.is_late or not is_small(task.programs.bounded):
            return False
        self.boxes += 1
        rows, _ = interpret(task.programs.single, [v.reshape(self.shape) for v in self.outer_ends(task.box)])
        return bool(task.goal.is_excluded(rows[None] > task.goal.limits)[0])

    def prove(self, task: Task) -> Verdict | None:
        """None if no input of the task's box reaches its goal, else a verdict."""
        if self.is_late:  # before a program is compiled
            return self.verdict(UNKNOWN, f"boxes are left after {self.seconds:g} s")
        if not np.isfinite(self.outer_ends(task.box)).all():
            return self.verdict(UNKNOWN, f"a box reaches beyond the range of {self.x.dtype}")
        programs, goal, box = task.programs, task.goal, task.box
        is_wide = int((box.upper > box.lower).sum()) > _MAX_SPLIT_ELEMENTS
        count = min(programs.bounded.boxes, _MAX_WIDE_BOXES if is_wide else _BATCH_BOXES)
        bounds, boxes_before_improving = programs.bounds(count), self.boxes + PLAIN_BOXES
        lower, upper = (v.reshape(1, -1) for v in self.outer_ends(box))
        limits = goal.limits
        splits = Splits(goal, limits, widths_of(lower, upper)[0], 0 if is_wide else count)
        batches = 0
        while len(lower):
            if self.is_late:
                return self.verdict(UNKNOWN, f"{len(lower)} boxes are left after {self.seconds:g} s")
            if lower.nbytes + upper.nbytes > _MAX_WAITING_BYTES:
                return self.verdict(UNKNOWN, f"{len(lower)} boxes are left, more than memory should hold")
            if self.boxes > boxes_before_improving and can_improve(programs.bounded):
                bounds, boxes_before_improving = programs.bounds(count, is_improved=True), math.inf
            lows, highs, lower, upper = lower[-count:], upper[-count:], lower[:-count], upper[:-count]
            batches += 1
            if batches % _ATTACK_BATCHES == 0:
                verdict = self.attack(task, self.seed + batches // _ATTACK_BATCHES)
                if verdict is not None:
                    return verdict
            rows, influence = self.bound(bounds, lows, highs, count)
            self.boxes += len(lows)
            is_open = ~goal.is_excluded(rows > limits)
            if batches == 1 and is_open.any() and is_wide and self.method != "ibp":
                box_ends = [v[0].reshape(self.shape) for v in (lows, highs)]
                improved, hinge_ends = programs.slopes.run(box_ends, limits, _SLOPE_STEPS, self.deadline)
                rows = np.fmax(rows, improved)
                is_open = ~goal.is_excluded(rows > limits)
                if is_open.any() and programs.neurons is not None:
                    return self.prove_cases(Cases(programs.neurons, box_ends, hinge_ends), goal, rows[0], limits)
            progress.report(f"{self.boxes} boxes, {len(lower)} left")
            lows, highs, influence, rows = lows[is_open], highs[is_open], influence[is_open], rows[is_open]
            if not len(lows):
                continue
            if (counterexample := self.attack_boxes(task, lows, highs)) is not None:
                return counterexample
            self.boxes += splits.learn(lows, highs, rows, partial(self.lower_bounds, bounds, count))
            halves = splits.halves(lows, highs, influence)
            if halves is None:
                return self.verdict(UNKNOWN, "a box of a single point has bounds on both sides of a limit")
            lower, upper = np.concatenate([lower, halves[0]]), np.concatenate([upper, halves[1]])
        return None

    def prove_cases(self, cases: Cases, goal: Goal, rows: np.ndarray, limits: np.ndarray) -> Verdict | None:
        """Like `prove`, by splits of neurons. rows: lower bounds of the goal's rows."""
        box_count = self.boxes
        for alternative in goal.alternatives:
            margins = rows[list(alternative)] - limits[list(alternative)]
            if (margins > 0).any():
                continue
            worst_row = alternative[int(margins.argmax())]
            row = goal.rows[worst_row].reshape(cases.neurons.result)
            reason = cases.prove(row, limits[worst_row], self.deadline)
            self.boxes = box_count + cases.bounded
            if reason:
                return self.verdict(UNKNOWN, reason)
        return None

    def lower_bounds(self, bounds: CompiledModel, count: int, lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
        return self.bound(bounds, lows, highs, count)[0]

    def bound(
        self, bounds: CompiledModel, lows: np.ndarray, highs: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(lower bounds [boxes, rows], influence [boxes, elements])"""
        lower_bounds, influence = bounds.run([self.padded(v, count) for v in (lows, highs)])
        return lower_bounds[: len(lows)], influence[: len(lows)].reshape(len(lows), -1)

    def attack_boxes(self, task: Task, lows: np.ndarray, highs: np.ndarray) -> Verdict | None:
        """A counterexample in the remaining boxes, after a few steps from their centers."""
        lower, upper = (self.padded(v, _BATCH_BOXES) for v in (lows, highs))
        point, violation = task.attack.descend(middles_of(lower, upper), lower, upper, _STEPS_IN_BOXES)
        return self.counterexample(task, point) if violation <= 0 else None

    def padded(self, flat: np.ndarray, count: int) -> np.ndarray:
        """[boxes, elements] as [count, *x], padded with the first box."""
        full = np.concatenate([flat, np.repeat(flat[:1], count - len(flat), 0)])
        return full.reshape(count, *self.shape)


def _goal_of(alternatives: Sequence[Alternative]) -> Goal:
    """The distinct rows of the alternatives of one box."""
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


def _with_input_rows(graph: Graph, goal: Goal) -> Graph:
    """The graph; for rows over inputs and results, with both concatenated as its result."""
    (x,), (y,) = graph.inputs, graph.results
    if goal.rows.shape[1] == product(y.shape):
        return graph
    flat = [ops.reshape(v, (product(v.shape),)) for v in (x, y)]
    dtype = f64 if f64 in (x.dtype, y.dtype) else y.dtype
    return Graph((x,), (ops.concat([ops.cast(v, dtype) for v in flat], 0),), ("values",))
