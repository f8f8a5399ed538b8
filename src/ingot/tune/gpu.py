"""Trials on a GPU. A candidate is timed beside the untuned kernels in a small program of both, by events:

    for each round:  others' bytes into the cache, x into the cache, untuned;  the same again, tried

so that weights come from memory, and the previous kernel's results from the cache, as in the model. Programs run in a
process of their own: a candidate that hangs the GPU is killed, reported, and never chosen. While one is timed, the
others are compiled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.debug.feeds import Feeds
from ingot.debug.gpu_probe import copy_kernel
from ingot.ir.dims import DimLike, likely_sizes, substitute
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ops.group import Group
from ingot.pipeline import tuning
from ingot.pipeline.build import optimize, size_hints
from ingot.pipeline.target import Options, target_of
from ingot.pipeline.variants import Variants
from ingot.plan.link import Launch, link
from ingot.runtime import program as rt
from ingot.runtime.artifact import save
from ingot.runtime.bind import bind_symbols, binding_shapes
from ingot.schedule.choice import Choice, Measured, Site, decide
from ingot.schedule.lowered import Lowered
from ingot.support.errors import CompileError, DeviceError
from ingot.support.files import locked
from ingot.support.native import Features
from ingot.tune.gpu_plan import Place, Trial, TrialPlan
from ingot.tune.trial import Choices, Readings, Spot, spots_of
from ingot.tune.watched import Watched

_QUIET_RUNS = 5  # undisturbed runs of a whole model
_MAX_RUNS = 20  # where some are disturbed
_DISTURBANCE_RATIO = 1.1  # a run that takes this multiple of the fastest was disturbed by other processes on the GPU
_KERNEL_RUNS = 3  # runs of which the shortest of each kernel count: another process may have the GPU for milliseconds
_LOCK_PATH = Path(tempfile.gettempdir()) / "ingot-tune"  # the lock of a machine's measurements


class GpuBench:
    """One model on this machine's GPU, with the sizes of `feeds`; see `search.Bench`. failures: candidates that did not
    compile or did not return, and why."""

    def __init__(
        self, graph: Graph, feeds: Feeds, features: Features, fast_math: bool = False, precision: str = "float32",
        activations: str = "float32",
    ) -> None:  # fmt: skip
        """Compile the untuned program and run it a few times. Raises what compiling raises, and DeviceError."""
        self.graph, self.features, self.target = graph, features, target_of(features)
        self.failures: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ingot-tune-")
        self._runner = Watched("ingot.tune.gpu_runner")
        self._places: dict[str, Place] = {}
        self._kernels: dict[tuple[str, Choice], tuple[Lowered, list[Any]]] = {}
        self._assembler = self.target.assembler(features)  # which knows what was compiled before
        self._copy = self._assembler.begin(copy_kernel(1))
        options = Options(1, fast_math, precision, activations, tuning.rewrites(features, 1))
        with likely_sizes(size_hints(graph)):
            self._fused = optimize(graph, self.target.passes(features, options))
        launches: list[Launch] = []
        program = self._build({}, launches)
        arrays = [np.ascontiguousarray(feeds[spec.name]) for spec in program.inputs]
        self._sizes = bind_symbols(program, binding_shapes(program, arrays))
        self._types = [(spec.dtype, a.shape) for spec, a in zip(program.inputs, arrays, strict=True)]
        np.savez(self._file("feeds.npz"), *(a.reshape(-1).view(np.uint8) for a in arrays))
        save(program, self._file("untuned"), durable=False)
        times = self._model_seconds("untuned", _QUIET_RUNS)
        self.spots = spots_of(graph, launches, np.min(times, axis=0), self._sizes)

    # -- what a search asks

    def candidates(self, site: Site) -> list[Choice]:
        with likely_sizes(size_hints(self.graph)):
            choices = site.candidates()
            for choice in (site.untuned, *choices):
                self._ahead(site, choice)
        return choices

    def refine(self, site: Site, choice: Choice) -> list[Choice]:
        with likely_sizes(size_hints(self.graph)):
            return site.refine(choice)

    def decided(self, measured: Mapping[str, Measured]) -> dict[str, Choice]:
        """What compiling decides at each site, with these entries."""
        with likely_sizes(size_hints(self.graph)):
            return {s.site.key: decide(s.site, measured) for s in self.spots}

    def readings(self, choices: Choices, rounds: int) -> Readings:
        """A candidate that did not return has infinite seconds."""
        spots = {s.site.key: s for s in self.spots if s.site.key in choices}
        for key, choice in choices.items():
            self._ahead(spots[key].site, choice)
        times = {key: self._times(spots[key], choice, rounds) for key, choice in choices.items()}
        total = sum((x for x in times.values() if np.isfinite(x).all()), np.zeros((rounds, 2)))
        return Readings(times, total)

    def disagreeing(self, choices: Choices) -> dict[str, str]:
        """Sites whose results with `choices` are not those of the untuned kernels, and what differs."""
        wrong: dict[str, str] = {}
        for spot in self.spots:
            key = spot.site.key
            if key not in choices:
                continue
            place = self._places[key]
            outputs = [
                [n.dtype.name, [*map(self._size, lay.shape)], [*map(self._size, lay.strides)], self._size(lay.offset)]
                for n, lay in zip(place.group.body.outputs, place.outs, strict=True)
            ]
            try:
                text = self._ask(self._trial(spot.site, choices[key], 1, True), {"compare": outputs})["wrong"]
            except (DeviceError, CompileError) as e:
                text = self.failures[f"{spot.label} {spot.result}, {choices[key]}"] = str(e)
            if text:
                wrong[key] = text
        return wrong

    def latency(self, choices: Choices, seconds: float) -> NDArray[np.float64]:
        """(rounds, 2): seconds of all kernels of a call, untuned and with `choices`, in alternation."""
        changed = {s.site.key: Measured(choices[s.site.key], s.site.untuned) for s in self.spots}
        changed = {key: m for key, m in changed.items() if m.choice != m.baseline}
        name = "untuned"
        if changed:
            name = "tuned"
            save(self._build(changed, []), self._file(name), durable=False)
        samples: list[list[float]] = []
        quiet_pairs = pairs = np.empty((0, 2))
        while len(samples) < _MAX_RUNS and len(quiet_pairs) < _QUIET_RUNS:
            samples.append(
                [float(self._model_seconds(which, _KERNEL_RUNS).min(axis=0).sum()) for which in ("untuned", name)]
            )
            pairs = np.array(samples)
            quiet_pairs = pairs[(pairs <= _DISTURBANCE_RATIO * pairs.min(axis=0)).all(axis=1)]
        return quiet_pairs if len(quiet_pairs) else pairs

    def close(self) -> None:
        with locked(_LOCK_PATH):  # the end of a process stalls the GPU for others
            self._runner.close()
        self._folder.cleanup()

    # -- programs

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _size(self, d: DimLike) -> int:
        return int(substitute(d, self._sizes))

    def _model_seconds(self, name: str, runs: int) -> NDArray[np.float64]:
        """(runs, steps): seconds."""
        request = {"program": str(self._file(name)), "feeds": str(self._file("feeds.npz")), "types": self._types}
        with locked(_LOCK_PATH):
            return np.array(self._runner.ask({**request, "runs": runs, "keep": True})["seconds"])

    def _build(self, measured: Mapping[str, Measured], launches: list[Launch]) -> rt.Program:
        variants = Variants(self.target, self.features, 1, measured)

        def lower(
            group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...]
        ) -> Lowered:
            low = variants.lower(group, ins, outs, constant)
            if low.site is not None:
                self._places.setdefault(low.site.key, Place(group, ins, outs, constant))
            return low

        with likely_sizes(size_hints(self.graph)):
            assembler = self.target.assembler(self.features)
            return link(
                self._fused, lower, assembler, device=self.target.name, stages={}, meta={}, launches=launches,
                join=variants.join, chain=variants.chain,
            )  # fmt: skip

    def _begin(self, site: Site, choice: Choice) -> tuple[Lowered, list[Any]]:
        """The kernels of a choice, which are being compiled from here on. Raises CompileError."""
        entry = self._kernels.get((site.key, choice))
        if entry is None:
            place = self._places[site.key]
            measured = {} if choice == site.untuned else {site.key: Measured(choice, site.untuned)}
            machine = self.target.machine(self.features, 1, measured)
            with likely_sizes(size_hints(self.graph)):
                low = self.target.lower(place.group, place.ins, place.outs, place.constant, machine)
            low, parts = self._named(low, len(self._kernels))
            entry = self._kernels[site.key, choice] = low, parts
        return entry

    def _ahead(self, site: Site, choice: Choice) -> None:
        """Begin to compile; a choice that the schedule refuses is reported when it is measured."""
        with suppress(CompileError):
            self._begin(site, choice)

    def _named(self, low: Lowered, number: int) -> tuple[Lowered, list[Any]]:
        """The kernels with unique names, and their compilations, which have begun."""
        kernels = [replace(s.kernel, name=f"{s.kernel.name}_{number}_{i}") for i, s in enumerate(low.steps)]
        steps = tuple(replace(step, kernel=kernel) for step, kernel in zip(low.steps, kernels, strict=True))
        return replace(low, steps=steps), [self._assembler.begin(kernel) for kernel in kernels]

    def _times(self, spot: Spot, choice: Choice, rounds: int) -> NDArray[np.float64]:
        """(rounds, 2): seconds of all launches of a site, untuned and tried."""
        try:
            trial = self._trial(spot.site, choice, rounds, False)
            seconds = self._ask(trial, {"runs": 1})["seconds"][0]
        except (DeviceError, CompileError) as e:
            self.failures[f"{spot.label} {spot.result}, {choice}"] = str(e)
            return np.full((rounds, 2), [spot.seconds, np.inf])
        totals = np.zeros((rounds, 2))
        for index, kernel_seconds in zip(trial.measured, seconds, strict=True):
            if index is not None:
                totals[index] += kernel_seconds
        return totals * spot.count

    def _ask(self, trial: Trial, request: Mapping[str, Any]) -> dict[str, Any]:
        path = self._file("trial")
        save(trial.program, path, durable=False)
        with locked(_LOCK_PATH):
            return self._runner.ask({"program": str(path), "inputs": trial.inputs, **request})

    def _trial(self, site: Site, choice: Choice, rounds: int, compared: bool) -> Trial:
        """A program that runs both variants in turns, `rounds` times. Raises CompileError."""
        variants = [self._begin(site, c) for c in (site.untuned, choice)]
        assembler = self.target.assembler(self.features)
        assembler.include(self._copy)
        for part in (part for _, parts in variants for part in parts):
            assembler.include(part)
        plan = TrialPlan(self._places[site.key], self._size, self.target.name, compared)
        for number in range(rounds):
            for which, (low, _) in enumerate(variants):
                plan.add(low, number, which)
        return plan.finish(assembler.finish())


__all__ = ["GpuBench"]
