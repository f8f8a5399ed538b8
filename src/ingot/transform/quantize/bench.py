"""Build models with chosen formats, time them relative to the float model, and attribute the time to groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np

from ingot.ir.node import Graph, Node
from ingot.ops.core.base import is_contraction
from ingot.ops.group import Group as Fused
from ingot.ops.nn.recurrent import Recurrent
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of
from ingot.plan.link import Launch
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.support import timing
from ingot.support.dataclass import dataclass
from ingot.support.energy.counters import EnergyCounters
from ingot.support.energy.measure import calls_for, measure
from ingot.support.errors import DeviceError
from ingot.transform.quantize.formats import Formats, Recipe, apply_formats
from ingot.transform.quantize.samples import Call
from ingot.transform.quantize.sites import Group

ExclusiveTurn = Callable[[], AbstractContextManager[None]]
_COMPARE_SECONDS, _BURST_SECONDS = 0.4, 0.002  # of a comparison in total, and of each burst of one model
_MIN_RUNS, _MAX_RUNS = 5, 60  # profiled runs
_TIME_SLICE_SECONDS = 1e-3  # the scheduler preempts a thread for no less


@dataclass(frozen=True)
class BuiltModel:
    """A compiled model with a choice of formats."""

    program: Program
    model: CompiledModel
    launches: tuple[Launch, ...]

    @property
    def nbytes(self) -> int:
        return self.program.weights.nbytes + self.program.code_bytes

    def run(self, calls: Sequence[Call]) -> Iterator[tuple[np.ndarray, ...]]:
        for call in calls:
            yield tuple(np.asarray(r) for r in self.model.run(call))


class Bench:
    """Builds and times choices for the calls of one sample."""

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[Group],
        recipe: Recipe,
        call: Call,
        threads: int,
        turn: ExclusiveTurn = nullcontext,
    ) -> None:
        """turn: returns the context manager that is entered while models are timed."""
        self._turn = turn
        self.graph, self.groups, self.recipe, self.call, self.threads = graph, groups, recipe, call, threads
        self._features = features_of("native")
        self._owners = groups_by_location(graph, groups)
        self._float: BuiltModel | None = None
        self.float_seconds: float | None = None  # of a call of the float model, once it is measured

    @property
    def exact(self) -> BuiltModel:
        """The float model."""
        if self._float is None:
            self._float = self.build({})
        return self._float

    def build(self, formats: Formats) -> BuiltModel:
        graph = apply_formats(self.graph, self.groups, self.recipe, formats)
        trace = Trace()
        program = build_program(graph, self._features, self.threads, trace=trace)
        return BuiltModel(program, CompiledModel(program, threads=self.threads), tuple(trace.launches))

    def group_seconds(self, built: BuiltModel) -> dict[str, float]:
        """The seconds of each group's products in a call, including the steps between the previous products and these:
        the minimum of several runs, alternating with the float model."""
        exact, runs = self.exact, list[list[float]]()
        cpu_seconds = float("inf")
        with self._turn():
            start = time.perf_counter()
            while len(runs) < _MIN_RUNS or (time.perf_counter() - start < _COMPARE_SECONDS and len(runs) < _MAX_RUNS):
                if built is not exact:
                    exact.model.run(self.call)
                cpu_start = time.thread_time()
                runs.append([seconds for _, seconds in built.model.profile(*self.call)])
                cpu_seconds = min(cpu_seconds, (time.thread_time() - cpu_start) / 2)  # it runs twice
        step_seconds = np.min(runs, axis=0)
        step_seconds = (without_preemption(step_seconds, cpu_seconds) if self.threads == 1 else step_seconds).tolist()
        # equal layers run the same kernel on the same sizes: any difference between them is noise
        steps = [(s.kernel, s.dims, s.chunks, s.rounds) for s in built.program.steps]
        best: dict[tuple[object, ...], float] = {}
        for step, seconds in zip(steps, step_seconds, strict=True):
            best[step] = min(seconds, best.get(step, seconds))
        return seconds_by_group(built.launches, [best[step] for step in steps], self._owners)

    def latency(self, built: BuiltModel) -> float:
        """The seconds of a call. For any other than the float model: the float model's seconds times the ratio of the
        minimum times of both, measured in alternation. Other load on the machine only slows calls down, and would
        otherwise favor the model that was measured in a quiet moment."""
        exact = partial(self.exact.model, *self.call)
        if self.float_seconds is None:
            with self._turn():
                self.float_seconds = timing.median(exact)
        if built is self.exact:
            return self.float_seconds
        # the clock of a single thread stops while the thread is preempted
        clock = time.thread_time if self.threads == 1 else time.perf_counter
        with self._turn():
            float_seconds, own_seconds = timing.interleaved(
                [exact, partial(built.model, *self.call)], _COMPARE_SECONDS, _BURST_SECONDS, np.min, clock
            ).min(axis=0)  # fmt: skip
        return self.float_seconds * float(own_seconds / float_seconds)

    def joules(self, built: BuiltModel, counters: EnergyCounters) -> float:
        """Of a call. Raises DeviceError if no counter advances."""
        energy = measure(calls_for(partial(built.model, *self.call)), counters)
        if energy.joules is None:
            raise DeviceError(str(energy))
        return energy.joules


def without_preemption(steps: np.ndarray, cpu_seconds: float) -> np.ndarray:
    """The seconds of steps without the time of other processes. The steps used `cpu_seconds` of processor time in
    total; the excess of the clock was preemption, which is attributed to long steps: the minimum of several runs of a
    short step is free of it."""
    is_long = steps > _TIME_SLICE_SECONDS
    excess, long_seconds = steps.sum() - cpu_seconds, steps[is_long].sum()
    return (
        steps
        if excess <= 0 or not long_seconds
        else np.where(is_long, steps * max(0.0, 1 - excess / long_seconds), steps)
    )


def seconds_by_group(
    launches: Sequence[Launch], seconds: Sequence[float], owners: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """The seconds of each group: those of the kernels of its products, and of the preceding kernels without
    products."""
    totals, pending, last = dict.fromkeys((name for names in owners.values() for name in names), 0.0), 0.0, ""
    times_by_loc: dict[str, list[float]] = {}
    for launch in launches:
        pending += sum(seconds[launch.first : launch.last])
        if _is_product(launch.node) and launch.node.loc in owners:
            last = launch.node.loc
            times_by_loc.setdefault(last, []).append(pending)
            pending = 0.0
    if last:
        times_by_loc[last][-1] += pending
    for loc, times in times_by_loc.items():
        # the groups of one location, such as the layers of a recurrent op, have a kernel each, or share kernels
        names = owners[loc]
        shares = times if len(times) == len(names) else [sum(times) / len(names)] * len(names)
        for name, share in zip(names, shares, strict=True):
            totals[name] += share
    return totals


def _is_product(node: Node) -> bool:
    if not isinstance(node.op, Fused):
        return False
    return any(is_contraction(n) or isinstance(n.op, Recurrent) for n in node.op.body.nodes())


def groups_by_location(graph: Graph, groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    """For each source location the groups of the last products before it: a fused kernel has the location of its root,
    and equal kernels share one body."""
    group_of = {site.node: group.name for group in groups for site in group.sites}
    last_product: dict[Node, tuple[int, str]] = {}
    groups_at: dict[str, dict[str, None]] = {}
    for index, n in enumerate(graph.nodes()):
        last = (
            (index, group_of[n])
            if n in group_of
            else max((last_product[i] for i in n.inputs if i in last_product), default=None)
        )
        if last is not None:
            last_product[n] = last
            if n.loc:
                groups_at.setdefault(n.loc, {})[last[1]] = None
    return {loc: tuple(names) for loc, names in groups_at.items()}


def with_receipt(program: Program, receipt: str) -> Program:
    """`program` with the report of its quantization, which its artifact stores."""
    return replace(program, meta={**program.meta, "quantization": receipt})
