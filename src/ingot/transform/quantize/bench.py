"""Real models of a choice of formats: built, timed beside the float model, their time shared out to the groups."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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
from ingot.runtime import timing
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.support.dataclass import dataclass
from ingot.transform.quantize.formats import Formats, Recipe, formed
from ingot.transform.quantize.samples import Call
from ingot.transform.quantize.sites import Group

_SPENT, _BURST = 0.4, 0.002  # seconds of all calls of a comparison, and of one model's turn
_LEAST, _MOST = 5, 60  # runs with a clock on each step
_SLICE = 1e-3  # seconds: systems take a thread's core for no less


@dataclass(frozen=True)
class Built:
    """A compiled choice of formats."""

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

    def __init__(self, graph: Graph, groups: Sequence[Group], recipe: Recipe, call: Call, threads: int) -> None:
        self.graph, self.groups, self.recipe, self.call, self.threads = graph, groups, recipe, call, threads
        self._features = features_of("native")
        self._owners = owners_of(graph, groups)
        self._float: Built | None = None
        self._latency: float | None = None  # of the float model

    @property
    def exact(self) -> Built:
        """The float model."""
        if self._float is None:
            self._float = self.build({})
        return self._float

    def build(self, formats: Formats) -> Built:
        graph = formed(self.graph, self.groups, self.recipe, formats)
        trace = Trace()
        program = build_program(graph, self._features, self.threads, trace=trace)
        return Built(program, CompiledModel(program, threads=self.threads), tuple(trace.launches))

    def by_group(self, built: Built) -> dict[str, float]:
        """Seconds of each group's products in a call, with what runs between the one before and them: the best of
        some, by turns with the float model."""
        taken: list[list[float]] = []
        spent = float("inf")
        began = time.perf_counter()
        while len(taken) < _LEAST or (time.perf_counter() - began < _SPENT and len(taken) < _MOST):
            if built is not self.exact:
                self.exact.model.run(self.call)
            first = time.thread_time()
            taken.append([seconds for _, seconds in built.model.profile(*self.call)])
            spent = min(spent, (time.thread_time() - first) / 2)  # it runs twice
        least = np.min(taken, axis=0)
        least = (undisturbed(least, spent) if self.threads == 1 else least).tolist()
        # layers that are alike run one kernel on as much: what took longer in one of them was not the kernel's
        steps = [(s.kernel, s.dims, s.chunks, s.rounds) for s in built.program.steps]
        best: dict[tuple[object, ...], float] = {}
        for step, seconds in zip(steps, least, strict=True):
            best[step] = min(seconds, best.get(step, seconds))
        return shared(built.launches, [best[step] for step in steps], self._owners)

    def latency(self, built: Built) -> float:
        """Seconds of a call of the float model; of another one as they would be beside it: those times the ratio of the
        least times of both, by turns. What else runs on the machine makes calls slower, never faster, and would make
        the one the better that was measured in a quiet moment."""
        exact = partial(self.exact.model, *self.call)
        if self._latency is None:
            self._latency = timing.median(exact)
        if built is self.exact:
            return self._latency
        # one thread's own clock stands still while others have its core
        clock = time.thread_time if self.threads == 1 else time.perf_counter
        other, own = timing.interleaved(
            [exact, partial(built.model, *self.call)], _SPENT, _BURST, np.min, clock
        ).min(axis=0)  # fmt: skip
        return self._latency * float(own / other)


def undisturbed(steps: np.ndarray, spent: float) -> np.ndarray:
    """The seconds of steps, which all together took `spent` of the processor: what the clock shows beyond that went to
    others. They get it while long steps run, as short ones pass undisturbed sooner or later."""
    long = steps > _SLICE
    excess, whole = steps.sum() - spent, steps[long].sum()
    return steps if excess <= 0 or not whole else np.where(long, steps * max(0.0, 1 - excess / whole), steps)


def shared(
    launches: Sequence[Launch], seconds: Sequence[float], owners: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Seconds by group: of the kernels that compute its products, with those of kernels without any before them."""
    out, waiting, last = dict.fromkeys((name for names in owners.values() for name in names), 0.0), 0.0, ""
    taken: dict[str, list[float]] = {}
    for launch in launches:
        waiting += sum(seconds[launch.first : launch.last])
        if _multiplies(launch.node) and launch.node.loc in owners:
            last = launch.node.loc
            taken.setdefault(last, []).append(waiting)
            waiting = 0.0
    if last:
        taken[last][-1] += waiting
    for loc, times in taken.items():
        # groups of one location, as a recurrent layer's layers are, have a kernel each, or share them
        names = owners[loc]
        each = times if len(times) == len(names) else [sum(times) / len(names)] * len(names)
        for name, own in zip(names, each, strict=True):
            out[name] += own
    return out


def _multiplies(node: Node) -> bool:
    if not isinstance(node.op, Fused):
        return False
    return any(is_contraction(n) or isinstance(n.op, Recurrent) for n in node.op.body.nodes())


def owners_of(graph: Graph, groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    """Source location -> the groups whose products are the last before it: a fused kernel has its root's location, and
    kernels that are alike share one body."""
    own = {site.node: group.name for group in groups for site in group.sites}
    behind: dict[Node, tuple[int, str]] = {}
    found: dict[str, dict[str, None]] = {}
    for at, n in enumerate(graph.nodes()):
        last = (at, own[n]) if n in own else max((behind[i] for i in n.inputs if i in behind), default=None)
        if last is not None:
            behind[n] = last
            if n.loc:
                found.setdefault(n.loc, {})[last[1]] = None
    return {loc: tuple(names) for loc, names in found.items()}


def with_receipt(program: Program, receipt: str) -> Program:
    """`program` that tells how it was quantized; kept in its artifact."""
    return replace(program, meta={**program.meta, "quantization": receipt})
