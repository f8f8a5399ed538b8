"""A model's programs under different choices, built fast and run side by side with a clock on each step.

A candidate is measured where it will run: in the model's own program, with the memory, threads and caches as the
kernels before it leave them. One program tries candidates at many sites, so that a round costs the runs of two programs
and the compilation of the kernels that changed; all else of a build is reused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.debug.build import Build
from ingot.debug.comparison.tolerance import agree
from ingot.debug.explain import model_ops, title
from ingot.debug.feeds import Feeds
from ingot.debug.stepper import Stepper
from ingot.ir.array import Array
from ingot.ir.dims import likely_sizes, substitute
from ingot.ir.kernel import Kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ops.group import Group
from ingot.pipeline import tuning
from ingot.pipeline.build import Trace, optimize, size_hints
from ingot.pipeline.target import Options, features_of, target_of
from ingot.plan.link import Launch, link
from ingot.plan.weights import fill
from ingot.runtime.bind import bind_symbols, binding_shapes
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.schedule.choice import Choice, Measured, Site, decide
from ingot.schedule.lowered import Lowered, Pack
from ingot.support import progress, timing
from ingot.support.dataclass import dataclass
from ingot.support.native import Code
from ingot.tune.generations import Generations

Choices = Mapping[str, Choice]

_BURST_SECONDS = 0.02  # short: both programs see the same moments of the machine


@dataclass(frozen=True)
class Spot:
    """A site in a model. label, result: its op and the shape of its result, for messages. count: launches that share
    it. seconds: of all of them, untuned. share: of the model's time."""

    site: Site
    label: str
    result: str
    count: int
    seconds: float
    share: float


@dataclass(frozen=True)
class Readings:
    """Seconds in each round, untuned and with candidates: arrays of (rounds, 2). sites: of all launches of a site, by
    its key. total: of the whole model."""

    sites: Mapping[str, NDArray[np.float64]]
    total: NDArray[np.float64]


@dataclass(frozen=True)
class _Variant:
    program: Program
    model: CompiledModel
    launches: list[Launch]

    def seconds(self, feeds: Feeds) -> NDArray[np.float64]:
        """Of each step, in one run after one that warms up."""
        arrays = [feeds[spec.name] for spec in self.program.inputs]
        return np.array([seconds for _, seconds in self.model.profile(*arrays)])


class Workbench:
    """One model on this machine, with the sizes of `feeds`. Takes the memory of three compiled models."""

    def __init__(
        self, graph: Graph, feeds: Feeds, threads: int, fast_math: bool = False, precision: str = "float32",
        activations: str = "float32",
    ) -> None:  # fmt: skip
        """Compile the untuned program and run it a few times. Raises what compiling raises."""
        self.graph, self.feeds, self.threads = graph, feeds, threads
        self.features = features_of("native")
        self.target = target_of(self.features)
        self._lowered: Generations[Lowered] = Generations()
        self._objects: Generations[tuple[object, str, Any]] = Generations()
        self._weights: Generations[NDArray[np.uint8]] = Generations()
        self._symbols = 0
        self.failures: dict[str, str] = {}  # none: what does not compile here is a bug, which is raised
        # kernels of the graph that compiling makes
        options = Options(threads, fast_math, precision, activations, tuning.rewrites(self.features, threads))
        with likely_sizes(size_hints(graph)):
            self._fused = optimize(graph, self.target.passes(self.features, options))
        self._untuned = self._build({}, pin=True)
        self.spots = self._spots()

    def candidates(self, site: Site) -> list[Choice]:
        """The candidates that the cost model ranks next after its choice."""
        with likely_sizes(size_hints(self.graph)):
            return site.candidates()

    def refine(self, site: Site, choice: Choice) -> list[Choice]:
        """Neighbours of a choice."""
        with likely_sizes(size_hints(self.graph)):
            return site.refine(choice)

    def decided(self, measured: Mapping[str, Measured]) -> dict[str, Choice]:
        """What compiling decides at each site, with these entries."""
        with likely_sizes(size_hints(self.graph)):
            return {s.site.key: decide(s.site, measured) for s in self.spots}

    def readings(
        self, choices: Choices, rounds: int, exclusive: AbstractContextManager[None] | None = None
    ) -> Readings:
        """Run the untuned program and one with `choices` in alternation. exclusive: the context manager that is entered
        meanwhile."""
        candidate = self._build(choices)
        pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        with exclusive or nullcontext():
            for i in range(rounds):
                order = (self._untuned, candidate) if i % 2 else (candidate, self._untuned)
                first, second = (variant.seconds(self.feeds) for variant in order)
                pairs.append((first, second) if i % 2 else (second, first))
        variants = self._untuned, candidate
        sites = {
            key: np.array([[_of_site(v.launches, key, s) for v, s in zip(variants, p, strict=True)] for p in pairs])
            for key in choices
        }
        return Readings(sites, np.array([[s.sum() for s in p] for p in pairs]))

    def latency(self, choices: Choices, seconds: float) -> NDArray[np.float64]:
        """(rounds, 2): seconds of a call, untuned and with `choices`, in short bursts by turns for about `seconds`.

        Both programs are new: the same program in memory that was allocated later runs up to 1% slower.
        """
        changed = any(choices.get(s.site.key, s.site.untuned) != s.site.untuned for s in self.spots)
        first = self._build({}).model
        models = first, self._build(choices).model if changed else first
        return timing.interleaved([partial(m, **self.feeds) for m in models], seconds, _BURST_SECONDS)

    def disagreeing(self, choices: Choices) -> dict[str, str]:
        """Sites whose results with `choices` are not those of the untuned kernels, and what differs.

        Group after group of both programs, each on its own memory, one thread, chunks in a random order.
        """
        candidate = self._build(choices)
        arrays = [np.ascontiguousarray(self.feeds[spec.name]) for spec in self._untuned.program.inputs]
        steppers = [Stepper(self._as_build(v), arrays) for v in (self._untuned, candidate)]
        wrong: dict[str, str] = {}
        for launches in zip(self._untuned.launches, candidate.launches, strict=True):
            for stepper, launch in zip(steppers, launches, strict=True):
                stepper.run(launch)
            site = launches[0].site
            if site is None or site.key not in choices or site.key in wrong:
                continue
            for i, node in enumerate(launches[0].node.results):
                want, got = (s.read(*x.outputs[i], node) for s, x in zip(steppers, launches, strict=True))
                agreement = agree(got, want)
                if not agreement.ok:
                    wrong[site.key] = str(agreement)
        return wrong

    def close(self) -> None:
        """All is this process's own."""

    def _as_build(self, variant: _Variant) -> Build:
        return Build(self.graph, variant.program, Trace(launches=variant.launches), self.features, self.threads)

    def _spots(self) -> list[Spot]:
        times = np.min([self._untuned.seconds(self.feeds) for _ in range(5)], axis=0)
        program = self._untuned.program
        sizes = bind_symbols(program, binding_shapes(program, [self.feeds[spec.name] for spec in program.inputs]))
        return spots_of(self.graph, self._untuned.launches, times, sizes)

    # Building

    def _build(self, choices: Choices, pin: bool = False) -> _Variant:
        target, features, threads = self.target, self.features, self.threads
        machine = target.machine(features, threads, {})
        launches: list[Launch] = []

        def lower_once(
            group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...]
        ) -> Lowered:
            key = (group, ins, outs, constant)
            low = self._lowered.get((key, None), lambda: target.lower(group, ins, outs, constant, machine))
            site = low.site
            if site is None or choices.get(site.key, site.untuned) == site.untuned:
                return low
            choice = choices[site.key]
            measured = {site.key: Measured(choice, site.untuned)}
            assert decide(site, measured) == choice, f"{choice} is none for {site.key}"
            tuned_machine = target.machine(features, threads, measured)
            return self._lowered.get((key, choice), lambda: target.lower(group, ins, outs, constant, tuned_machine))

        with likely_sizes(size_hints(self.graph)), progress.listening(lambda stage, done, total: None):
            program = link(
                self._fused, lower_once, _Assembler(self), device=target.name, stages={}, meta={}, launches=launches,
                fill=self._fill,
            )  # fmt: skip
        for cache in (self._lowered, self._objects, self._weights):
            cache.advance(pin)
        return _Variant(program, CompiledModel(program, threads=self.threads), launches)

    def _fill(self, constant: Array, pack: Pack | None, out: NDArray[np.uint8]) -> None:
        """Write a weight, copied from the last program that has it, so that no earlier one's stay in memory."""
        key = (constant, pack.key if pack else "")
        last_copy = self._weights.get(key, lambda: out)
        if last_copy is out:
            fill(constant, pack, out)
        else:
            out[:] = last_copy
            self._weights.put(key, out)

    def object(self, kernel: Kernel) -> tuple[str, Any]:
        """A symbol of the kernel's own and its code, which the builds share."""
        # renaming a kernel keeps the identity of its body
        body, symbol, code = self._objects.get(id(kernel.body), lambda: self._begin(kernel))
        assert body is kernel.body
        return symbol, code

    def _begin(self, kernel: Kernel) -> tuple[object, str, Any]:
        self._symbols += 1
        symbol = f"tried_{self._symbols}"
        return kernel.body, symbol, self.target.assembler(self.features).begin(replace(kernel, name=symbol))


class _Assembler:
    """Compiles only what no build before has compiled."""

    def __init__(self, bench: Workbench) -> None:
        self._bench, self._inner = bench, bench.target.assembler(bench.features)
        self._symbols: dict[str, str] = {}

    def add(self, kernel: Kernel) -> None:
        self._symbols[kernel.name], code = self._bench.object(kernel)
        self._inner.include(code)

    def finish(self) -> Code:
        code = self._inner.finish()
        return replace(code, symbols={**code.symbols, **{name: code.symbols[s] for name, s in self._symbols.items()}})


def spots_of(
    graph: Graph, launches: Sequence[Launch], times: NDArray[np.float64], sizes: Mapping[str, int]
) -> list[Spot]:
    """A program's sites, the one that takes the most time first. graph: the model. times: of each step."""
    total, ops_at = float(times.sum()) or 1e-12, model_ops(graph)
    launches_by_key: dict[str, list[Launch]] = {}
    for launch in launches:
        if launch.site is not None:
            launches_by_key.setdefault(launch.site.key, []).append(launch)
    spots: list[Spot] = []
    for key, site_launches in launches_by_key.items():
        node, site = site_launches[0].node, site_launches[0].site
        assert isinstance(node.op, Group) and site is not None
        label = f"{title(node.op.body, ops_at)} {node.loc or ''}".strip()
        result = node.types[0]
        shape = "x".join(str(substitute(d, sizes)) for d in result.shape)
        seconds = _of_site(launches, key, times)
        spots.append(Spot(site, label, shape, len(site_launches), seconds, seconds / total))
    return sorted(spots, key=lambda s: -s.seconds)


def _of_site(launches: Sequence[Launch], key: str, seconds: NDArray[np.float64]) -> float:
    """Seconds of all launches of a site; groups that share a launch have a part each."""
    counts = Counter((x.first, x.last) for x in launches)
    ranges = [(x.first, x.last) for x in launches if x.site is not None and x.site.key == key]
    return float(sum(seconds[first:last].sum() / counts[first, last] for first, last in ranges))
