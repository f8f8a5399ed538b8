"""`ingot.quantize`: compile a float model with number formats chosen by measurement on samples."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ingot.debug.probe import cpu_name
from ingot.driver.compile import Options
from ingot.driver.open import Opened, Request, open_model, recognize
from ingot.ir.node import Graph
from ingot.ir.types import f32
from ingot.pipeline.build import identity
from ingot.pipeline.target import features_of
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel, Convention
from ingot.runtime.program import Program
from ingot.support import progress
from ingot.support.blas import blas_threads
from ingot.support.errors import IngotError, InputError
from ingot.support.garbage import give_back
from ingot.transform.bounds.error import rounding_errors
from ingot.transform.quantize.bench import Bench, BuiltModel, ExclusiveTurn, with_receipt
from ingot.transform.quantize.calibrate import Probe
from ingot.transform.quantize.formats import (
    BITS,
    FLOAT,
    LEVELS,
    PAIRED,
    SHARED_STATIC,
    STATIC,
    STORED_FLOATS,
    Formats,
    Recipe,
    apply_formats,
    candidate_formats,
    default_formats,
    stored_bytes,
)
from ingot.transform.quantize.metric import Judge, check_outputs, check_scores, min_score
from ingot.transform.quantize.report import Report, Row, deviation, reason_of
from ingot.transform.quantize.rounding import roundings
from ingot.transform.quantize.samples import Samples, first_call, read_samples
from ingot.transform.quantize.search import Goals, Option, Point, Search, SearchOptions, check, energy_counters
from ingot.transform.quantize.simulate import Simulator
from ingot.transform.quantize.sites import Group, find_groups, prepare, product_types
from ingot.transform.quantize.table import Table, Value
from ingot.transform.quantize.workers.fleet import Fleet, Job

HELD_OUT_FRACTION = 0.3  # of the samples: for checking the result, not for the search
DEFAULT_SCORE_FRACTION, DEFAULT_COSINE = 0.99, 0.997  # of the float model's score, if nothing is asked for
SCORE_MARGIN_FRACTION = 0.2  # of the loss that is allowed: for what neither part of the samples shows
_FEEDBACK_BUDGET, _SENSITIVITY_BUDGET, _SIMULATION_BUDGET = 0.4, 0.35, 0.2  # of the budget
_JOBS_PER_WORKER = 4  # of errors: the slower ones do fewer
_MAX_BOUNDED_NODES = 200  # of a model whose rounding is bounded: intervals of deeper ones are too wide
_SIMULATED_SCORES, _MIN_CALLS = 6, 4  # simulated scores of a search; calls that each simulates, if there are as many


class QuantizedModel(CompiledModel):
    """A compiled model, with the calling convention that `ingot.compile` gives the model. report: the chosen formats
    and the measurements. graph: the model with each product in its format."""

    def __init__(
        self, program: Program, convention: Convention | None, threads: int, report: Report, graph: Graph,
        write_onnx: Callable[[Path], None], write_tflite: Callable[[Path, bool, str], None],
    ) -> None:  # fmt: skip
        super().__init__(program, threads=threads, convention=convention)
        self.report, self.graph, self._write_onnx, self._write_tflite = report, graph, write_onnx, write_tflite

    def save_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the original ONNX model with the chosen formats: QuantizeLinear and DequantizeLinear around products,
        MatMulNBits for weights in blocks.

        Raises InputError if the model was not given as ONNX, or if a product is not a node of the file.
        """
        self._write_onnx(Path(path))

    def save_tflite(
        self, path: str | os.PathLike[str], *, float_edges: bool = False, activations: str = "int8"
    ) -> None:
        """Write the model as a TFLite file of int8 operators, for microcontrollers and NPUs.

        All values are int8 (or int16, if `activations` says so; weights are int8), by their ranges over the samples,
        whatever formats were chosen for this machine; operators that have no kernel of levels stay in floats.
        float_edges: keep the inputs and outputs in floats. Raises InputError for open sizes, and UnsupportedOpError
        naming every op that TFLite has no operator for.
        """
        self._write_tflite(Path(path), float_edges, activations)


def quantize_model(
    model: Any,
    samples: Any,
    labels: Any = None,
    *,
    example_inputs: Any = None,
    dynamic: Any = None,
    batch: int = 1,
    table: str | os.PathLike[str] | None = None,
    options: SearchOptions,
    fleet: Fleet | None = None,
) -> QuantizedModel:
    """See `ingot.quantize`. fleet: the workers that measure; by default this process."""
    quantizer = open_quantizer(
        model, samples, labels, example_inputs=example_inputs, dynamic=dynamic, batch=batch, table=table,
        options=options, fleet=fleet,
    )  # fmt: skip
    with blas_threads(quantizer.threads):
        return quantizer.run()


def open_quantizer(
    model: Any, samples: Any, labels: Any = None, *, example_inputs: Any = None, dynamic: Any = None, batch: int = 1,
    table: str | os.PathLike[str] | None = None, options: SearchOptions, fleet: Fleet | None = None,
) -> Quantizer:  # fmt: skip
    """See `ingot.quantize`."""
    check(options)
    start = time.monotonic()
    if example_inputs is None and _is_traced(model):
        example_inputs = first_call(samples, batch)
    opened = open_model(model, Request(example_inputs, dynamic)).stateless()
    calls = read_samples(opened.graph, samples, labels, batch, opened.flatten)
    return Quantizer(model, opened, calls, options, Path(table) if table is not None else None, start, fleet)


def _is_traced(model: Any) -> bool:
    """Whether the model has to be traced with example inputs: a function or a module."""
    kind, source = recognize(model)
    return kind in ("jax", "torch") and callable(source) and not hasattr(source, "graph_signature")


class Quantizer:
    """One quantization: its model, samples and measurements."""

    def __init__(
        self, model: Any, opened: Opened, samples: Samples, options: SearchOptions, table: Path | None, start: float,
        fleet: Fleet | None = None,
    ) -> None:  # fmt: skip
        self.fleet = fleet
        self.model, self.opened, self.options, self.start = model, opened, options, start
        self.threads = thread_count(options.threads)
        self.graph = prepare(opened.graph)
        self.groups = find_groups(self.graph)
        if not self.groups:
            what = "the model has no product to quantize"
            expected, fix = "a product of a computed f32 value with constant, finite weights", None
            other_types = sorted(map(str, product_types(self.graph) - {f32}))
            if other_types:
                fix = f"convert it to float32 first: its products are of {', '.join(other_types)}"
            raise InputError(what, expected=expected, got="none", fix=fix)
        self.formats = tuple(options.formats or default_formats(self.groups, options.size_mb is not None))
        self.search_samples, self.held_out_samples = samples.split(HELD_OUT_FRACTION, options.seed)
        self.table = Table(table, self._digest(samples))
        self.counters = energy_counters(options)

    def run(self) -> QuantizedModel:
        self.prepare()
        uniform_points = self._measure_uniform()
        options = self._options()
        search = Search(options, self.goals, self._simulated_score, self._measure, self._is_out_of_time)
        if self.fleet is not None:
            search.ahead, search.prefetch = self.fleet.count, self._prefetch
        chosen = search.run(uniform_points)
        return self._result(chosen, search, options)

    def prepare(self, turn: ExclusiveTurn = nullcontext) -> None:
        """Round values and weights, and run the float model. turn: returns the context manager that is entered while
        models are timed."""
        self._calibrate()
        self.bench = Bench(self.graph, self.groups, self.recipe, self.search_samples.calls[0], self.threads, turn)
        self.judges = tuple(self._judge(s) for s in (self.search_samples, self.held_out_samples))
        self.float_scores = tuple(self._float_score(j) for j in self.judges)
        self.goals = self._goals()
        self.best: tuple[Point, Callable[[], BuiltModel]] | None = None
        self.times: dict[str, dict[str, float]] = {}

    def measure(self, job: Job) -> dict[str, Value]:
        """The measurements of a job, by the keys of the table (see `worker.Worker`)."""
        if "errors" in job:
            for name, form in job["errors"]:
                self._error(next(g for g in self.groups if g.name == name), form, job["calls"])
        else:
            self.bench.float_seconds = job["float_seconds"]
            build = cache(partial(self._build, job["formats"]))
            if "times" in job:
                self._group_seconds(job["times"], build)
            self._point(job["name"], job["formats"], build)
        return self.table.take()

    def _prefetch(self, models: Sequence[tuple[str, Formats]], uniform: bool = False) -> None:
        """Have the fleet measure models, if there is one. uniform: each has one format, its name, in all its groups."""
        if self.fleet is None:
            return
        progress.report(f"measure {len(models)} models")
        measurements = {"float_seconds": self.bench.float_seconds}
        jobs = [
            {"name": f"all {name}" if uniform else name, "formats": dict(formats), **measurements,
             **({"times": name} if uniform else {})}
            for name, formats in models
            if not self.table.has(f"latency {_formats_key(formats)}")
        ]  # fmt: skip
        self.fleet.fill(self.table, jobs)

    # Measuring

    def _calibrate(self) -> None:
        has_levels = any(f in (*LEVELS, *BITS) for f in self.formats)
        seconds = _FEEDBACK_BUDGET * self.options.seconds if has_levels else 0.0
        probe = Probe(self.graph, self.groups, self.threads)
        stats, moments = probe.calibrate(self.search_samples.calls, seconds)
        del probe  # frees its program, which holds all weights
        self.recipe = Recipe(stats, roundings(self.groups, stats, self.formats), moments)
        for group_stats in stats.values():
            group_stats.parts.clear()  # only the choice of roundings needs them
        for i, group in enumerate(self.groups):
            progress.report("weights", i, len(self.groups))
            for form in (f for f in self._candidate_formats(group) if f not in (FLOAT, *STORED_FLOATS)):
                for site in group.sites:
                    self.recipe.weights(group, site, form)
            group.release()
            moments.pop(group.name, None)  # as large as the weights, and not needed any more
        self.recipe.release_feedback()
        give_back()

    def _judge(self, samples: Samples) -> Judge:
        return Judge(samples, tuple(self.bench.exact.run(samples.calls)), self.options.metric)

    def _float_score(self, judge: Judge) -> float:
        if judge.metric is None:
            check_outputs(judge.exact)
        scores = [judge.score(judge.exact) for _ in range(2)]
        check_scores(scores)
        return scores[0]

    def _goals(self) -> Goals:
        options = self.options
        at_least = options.at_least
        limits = options.latency_ms, options.size_mb, options.energy_millijoules
        if at_least is None and limits == (None, None, None):
            at_least = DEFAULT_SCORE_FRACTION if options.metric else DEFAULT_COSINE
        self.at_least = at_least
        fraction = None if at_least is None else at_least + SCORE_MARGIN_FRACTION * (1 - at_least)
        min_scores = (
            None
            if fraction is None
            else (min_score(self.float_scores[0], fraction), min_score(self.float_scores[1], fraction))
        )
        seconds = None if options.latency_ms is None else options.latency_ms / 1e3
        nbytes = None if options.size_mb is None else int(options.size_mb * 1e6)
        joules = None if options.energy_millijoules is None else options.energy_millijoules / 1e3
        return Goals(min_scores, seconds, nbytes, joules)

    def _measure_uniform(self) -> list[Point]:
        """Measure the float model, and for each format the model with this format in all groups that support it."""
        points: list[Point] = []
        for form in (FLOAT, *(f for f in self.formats if f != FLOAT)):
            formats = self._uniform_formats(form)
            has_result = self.best is not None and self.best[0].name != FLOAT
            # int16 is only needed if 8 bits lose too much
            can_skip = has_result and (self._is_out_of_time() or (form == PAIRED and self.goals.min_scores is not None))
            if form != FLOAT and (not formats or can_skip):
                continue
            progress.report(f"measure {form}")
            build = (lambda: self.bench.exact) if form == FLOAT else cache(partial(self._build, formats))
            self.times[form] = self._group_seconds(form, build)
            if form == SHARED_STATIC:  # it uses int8 for values that no other op reads
                self.times.setdefault(STATIC, self.times[form])
            points.append(self._point(f"all {form}" if form != FLOAT else FLOAT, formats, build))
            if form == FLOAT:
                others = [f for f in self.formats if f not in (FLOAT, PAIRED)]  # int16 may not be needed
                models = [(f, formats) for f in others if (formats := self._uniform_formats(f))]
                self._prefetch(models, uniform=True)
        return points

    def _group_seconds(self, form: str, build: Callable[[], BuiltModel]) -> dict[str, float]:
        return self.table.get(f"times {form}", lambda: self.bench.group_seconds(build()))

    def _uniform_formats(self, form: str) -> dict[str, str]:
        """The given format for each group that supports it. For int8-shared, values that no other op reads use int8."""
        formats = {g.name: form for g in self.groups if form in self._candidate_formats(g)}
        unshared = self._uniform_formats(STATIC) if form == SHARED_STATIC and formats else {}
        return {**unshared, **formats}

    def _candidate_formats(self, group: Group) -> tuple[str, ...]:
        return candidate_formats(group, self.recipe.stats[group.name], self.formats)

    def _options(self) -> dict[str, list[Option]]:
        """The options of each group, one for each format: the time from the uniform models, the error from simulating
        this group alone in the format."""
        pairs = [(g, f) for g in self.groups for f in self._candidate_formats(g) if f != FLOAT and f in self.times]
        call_seconds = self._simulated_seconds()
        calls = self._affordable_calls(call_seconds * len(pairs), _SENSITIVITY_BUDGET, 1)
        self.simulated_calls = int(
            self.table.get(
                "calls",
                lambda: float(self._affordable_calls(call_seconds * _SIMULATED_SCORES, _SIMULATION_BUDGET, _MIN_CALLS)),
            )
        )
        if self.fleet is not None:
            missing = [(g.name, f) for g, f in pairs if not self.table.has(f"error {f} {g.name}")]
            size = max(1, len(missing) // (_JOBS_PER_WORKER * self.fleet.count))
            jobs = [{"errors": missing[i : i + size], "calls": calls} for i in range(0, len(missing), size)]
            self.fleet.fill(self.table, jobs, lambda count: progress.report("sensitivity", count, len(jobs)))
        options = {
            g.name: [Option(FLOAT, self.times[FLOAT].get(g.name, 0.0), 0.0, stored_bytes(g, FLOAT))]
            for g in self.groups
        }
        for i, (group, form) in enumerate(pairs):
            progress.report("sensitivity", i, len(pairs))
            if self._is_out_of_time() and not self.table.has(f"error {form} {group.name}"):
                error = self.recipe.rounding(group, form).error  # that of its products, which is known already
            else:
                error = self._error(group, form, calls)
            seconds = self.times[form].get(group.name, 0.0)
            options[group.name].append(Option(form, seconds, error, stored_bytes(group, form)))
        return options

    def _error(self, group: Group, form: str, calls: int) -> float:
        """The error of the outputs on some calls, if only this group has the format."""
        judge = self.judges[0]
        run = partial(self.simulator.run, judge.samples.calls[:calls], self.recipe, {group.name: form})
        return self.table.get(f"error {form} {group.name}", lambda: judge.error(run()))

    @cached_property
    def simulator(self) -> Simulator:
        return Simulator(self.graph, self.groups, self.threads, "bfloat16" in self.formats)

    def _simulated_seconds(self) -> float:
        """The seconds of one simulated call."""
        first = self.search_samples.calls[:1]
        start = time.monotonic()
        for _ in self.simulator.run(first, self.recipe, {}):
            pass
        return time.monotonic() - start

    def _affordable_calls(self, call_seconds: float, budget: float, min_calls: int) -> int:
        """The number of calls that fit into a fraction of the time budget, at `call_seconds` each."""
        max_calls = len(self.search_samples)
        return min(max_calls, max(min_calls, int(self.options.seconds * budget / max(call_seconds, 1e-6))))

    def _simulated_score(self, formats: Formats) -> float:
        """The estimated score on all search samples: simulated on some calls, relative to the float model on these."""
        progress.report("simulate")
        judge = self._simulation_judge
        score = partial(self.simulator.run, judge.samples.calls, self.recipe, formats)
        key = f"score {len(judge.exact)} {_formats_key(formats)}"
        return self.float_scores[0] + self.table.get(key, lambda: judge.score(score())) - judge.score(judge.exact)

    @cached_property
    def _simulation_judge(self) -> Judge:
        judge = self.judges[0]
        return replace(
            judge, samples=judge.samples.pick(range(self.simulated_calls)), exact=judge.exact[: self.simulated_calls]
        )

    def _measure(self, name: str, formats: Formats) -> Point:
        progress.report(f"measure {name}")
        return self._point(name, formats, cache(partial(self._build, formats)))

    def _build(self, formats: Formats) -> BuiltModel:
        for group in self.groups:
            group.release()  # the float weights that become levels are not read any more
        return self.bench.build(formats)

    def _point(self, name: str, formats: Formats, build: Callable[[], BuiltModel]) -> Point:
        """The measurements of a model. build: called only if the table lacks one of them."""
        key, get = _formats_key(formats), self.table.get
        # how weights are rounded depends on the formats and on the budget
        rounding = hashlib.blake2b(repr((self.formats, self.options.seconds)).encode(), digest_size=4).hexdigest()
        content = f"{rounding} {key}"
        scores = get(f"scores {content}", lambda: [j.score(build().run(j.samples.calls)) for j in self.judges])
        nbytes = get(f"bytes {content}", lambda: float(build().nbytes))
        seconds = get(f"latency {key}", lambda: self.bench.latency(build()))
        point = Point(name, dict(formats), (scores[0], scores[1]), seconds, int(nbytes))
        if self.goals.joules is not None and point.meets_constraints(replace(self.goals, joules=None)):
            joules = get(f"joules {key}", lambda: self.bench.joules(build(), self.counters))
            point = replace(point, joules=joules)
        if point.meets_constraints(self.goals) and (self.best is None or seconds < self.best[0].seconds):
            self.best = point, build  # the memory of the others is freed
        return point

    def _is_out_of_time(self) -> bool:
        return time.monotonic() - self.start > self.options.seconds

    # The result

    def _result(self, chosen: Point, search: Search, options: Mapping[str, Sequence[Option]]) -> QuantizedModel:
        graph = apply_formats(self.graph, self.groups, self.recipe, chosen.formats)
        is_best = self.best is not None and self.best[0] is chosen
        built = self.best[1]() if is_best and self.best else self.bench.build(chosen.formats)
        report = self._report(chosen, search, options, built)
        program = with_receipt(built.program, report.receipt())
        write_onnx = partial(self._write_onnx, chosen.formats)
        writers = write_onnx, self._write_tflite
        return QuantizedModel(program, self.opened.convention, self.threads, report, graph, *writers)

    def _write_tflite(self, path: Path, float_edges: bool, activations: str) -> None:
        from ingot.transform.quantize.tflite import write_levels  # needs an extra

        write_levels(self.graph, self.search_samples.calls, path, float_edges, activations)

    def _write_onnx(self, formats: Formats, path: Path) -> None:
        if not self.opened.is_onnx:
            got = type(self.model).__name__
            raise InputError("save_onnx", expected="a model given as ONNX", got=got, fix="export it to ONNX first")
        from ingot.transform.quantize.onnx_model import write_onnx  # needs an extra

        write_onnx(self.model, path, self.groups, self.recipe, formats)

    def _report(
        self, chosen: Point, search: Search, options: Mapping[str, Sequence[Option]], built: BuiltModel
    ) -> Report:
        judge, names = self.judges[1], [spec.name for spec in built.program.outputs]
        deviations = dict.fromkeys(names, 0.0)
        for expected, got in zip(judge.exact, built.run(judge.samples.calls), strict=True):
            for name, a, b in zip(names, expected, got, strict=True):
                deviations[name] = max(deviations[name], deviation(a, b))
        base = search.points[0]
        return Report(
            machine=cpu_name(), threads=self.threads, seed=self.options.seed,
            metric=getattr(self.options.metric, "__name__", "metric") if self.options.metric else "cosine",
            at_least=self.at_least, rows=tuple(self._row(g, chosen, options[g.name]) for g in self.groups),
            float_scores=(self.float_scores[0], self.float_scores[1]), scores=chosen.scores, float_seconds=base.seconds,
            seconds=chosen.seconds, float_nbytes=base.nbytes, nbytes=chosen.nbytes, arena=built.model.arena_bytes,
            deviations=deviations, samples=(self.search_samples.count, self.held_out_samples.count),
            search_seconds=time.monotonic() - self.start, points=tuple(search.points), rounding=self._rounding(),
            float_joules=base.joules, joules=chosen.joules,
        )  # fmt: skip

    def _rounding(self) -> dict[str, float] | str:
        """A bound of the rounding errors of float32 on the first call, or the reason why there is none."""
        if len(self.graph.nodes()) > _MAX_BOUNDED_NODES:
            return "the model is too deep for useful bounds"
        try:
            errors = rounding_errors(self.graph, self.search_samples.calls[0], Options(threads=self.threads))
        except IngotError as error:
            return str(error).splitlines()[0]
        return errors if np.isfinite([*errors.values()]).all() else "intervals give no finite bound"

    def _row(self, group: Group, chosen: Point, options: Sequence[Option]) -> Row:
        form = chosen.formats.get(group.name, FLOAT)
        selected = next(o for o in options if o.form == form)
        exact = next(o for o in options if o.form == FLOAT)
        r = self.recipe.rounding(group, form)
        rounding_text = f"{r.method}, smoothing {r.smoothing:g}" if form in LEVELS else ""
        return Row(
            group.name,
            len(group.sites),
            form,
            rounding_text,
            (exact.seconds, selected.seconds),
            selected.error,
            selected.nbytes,
            reason_of(selected, options, STATIC in self.formats and not self.recipe.stats[group.name].is_usable),
        )

    def _digest(self, samples: Samples) -> str:
        """A digest of everything that the measurements depend on."""
        digest = hashlib.blake2b(digest_size=12)
        for part in identity(self.graph):
            digest.update(part)
        for call in samples.calls:
            for a in call:
                digest.update(repr((a.shape, str(a.dtype))).encode() + a.tobytes())
        metric = getattr(self.options.metric, "__qualname__", "")
        settings = (features_of("native"), cpu_name(), self.threads, self.options.seed, metric, repr(samples.labels))
        digest.update(repr(settings).encode())
        return digest.hexdigest()


def _formats_key(formats: Formats) -> str:
    chosen = sorted((name, form) for name, form in formats.items() if form != FLOAT)
    return hashlib.blake2b(repr(chosen).encode(), digest_size=8).hexdigest()


__all__ = ["QuantizedModel", "SearchOptions", "quantize_model"]
