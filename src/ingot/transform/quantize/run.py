"""`ingot.quantize`: from a float model and samples to a compiled model whose formats were chosen by measurement."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from ingot.debug.probe import cpu_name
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
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.support.garbage import give_back
from ingot.transform.quantize.bench import Bench, Built, with_receipt
from ingot.transform.quantize.calibrate import Probe
from ingot.transform.quantize.formats import (
    BITS,
    DYNAMIC,
    FLOAT,
    FORMATS,
    LEVELS,
    PAIRED,
    SHARED,
    STATIC,
    STORED,
    Formats,
    Recipe,
    formed,
    offered,
    stored_bytes,
)
from ingot.transform.quantize.metric import Judge, Metric, allowed, check_outputs, check_scores
from ingot.transform.quantize.report import Report, Row
from ingot.transform.quantize.rounding import roundings
from ingot.transform.quantize.samples import Samples, first_call, read_samples
from ingot.transform.quantize.search import Goals, Option, Point, Search
from ingot.transform.quantize.simulate import Simulator
from ingot.transform.quantize.sites import Group, find_groups, prepared, product_types
from ingot.transform.quantize.table import Table

HELD = 0.3  # of the samples: not seen by the search
NEAR, NEAR_COSINE = 0.99, 0.997  # of the float model's score, if nothing is asked for
RESERVE = 0.2  # of the loss that is allowed: for what neither part of the samples shows
_ON_FEEDBACK, _ON_SENSITIVITY, _ON_SCORES = 0.4, 0.35, 0.2  # of the budget
_SCORES, _LEAST_CALLS = 6, 4  # simulated scores of a search; and calls of each, where there are as many


@dataclass(frozen=True)
class Asked:
    """What a caller wants; see `ingot.quantize`."""

    metric: Metric | None = None
    at_least: float | None = None
    latency_ms: float | None = None
    size_mb: float | None = None
    seconds: float = 60.0
    formats: Sequence[str] | None = None
    threads: int | None = None
    seed: int = 0


class QuantizedModel(CompiledModel):
    """A compiled model, called as what `ingot.compile` returns for the model. report: how it was made. graph: with each
    product in its format."""

    def __init__(
        self, program: Program, convention: Convention | None, threads: int, report: Report, graph: Graph,
        write_onnx: Callable[[Path], None],
    ) -> None:  # fmt: skip
        super().__init__(program, threads=threads, convention=convention)
        self.report, self.graph, self._write_onnx = report, graph, write_onnx

    def save_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the ONNX model that this one was made of with its formats: QuantizeLinear and DequantizeLinear around
        products, MatMulNBits for weights in blocks.

        Raises InputError for a model that came in another form, and where a product is none of the file's own.
        """
        self._write_onnx(Path(path))


def quantize_model(
    model: Any,
    samples: Any,
    labels: Any = None,
    *,
    example_inputs: Any = None,
    dynamic: Any = None,
    batch: int = 1,
    table: str | os.PathLike[str] | None = None,
    asked: Asked,
) -> QuantizedModel:
    """See `ingot.quantize`."""
    _check(asked)
    began = time.monotonic()
    if example_inputs is None and _is_traced(model):
        example_inputs = first_call(samples, batch)
    read = open_model(model, Request(example_inputs, dynamic)).stateless()
    given = read_samples(read.graph, samples, labels, batch, read.flatten)
    work = _Work(model, read, given, asked, Path(table) if table is not None else None, began)
    with blas_threads(work.threads):
        return work.run()


def _is_traced(model: Any) -> bool:
    """Whether reading the model takes inputs to run it with: functions and modules."""
    kind, source = recognize(model)
    return kind in ("jax", "torch") and callable(source) and not hasattr(source, "graph_signature")


def _check(asked: Asked) -> None:
    for name in ("at_least", "latency_ms", "size_mb", "seconds"):
        value = getattr(asked, name)
        if value is not None and not (isinstance(value, Real) and 0 < float(value) < np.inf):
            raise InputError(name, expected="a positive number", got=value)
    if asked.at_least is not None and asked.at_least > 1:
        raise InputError("at_least", expected="a part of the float model's score, at most 1", got=asked.at_least)
    if asked.metric is not None and not callable(asked.metric):
        raise InputError("metric", expected="a function of a list of outputs", got=type(asked.metric).__name__)
    forms = asked.formats
    unknown: object = forms if isinstance(forms, str) else [f for f in forms or () if f not in FORMATS]
    if unknown:
        raise InputError("formats", expected=f"a sequence of some of {', '.join(FORMATS)}", got=unknown)


class _Work:
    """One quantization: its model, samples and measurements."""

    def __init__(
        self, model: Any, read: Opened, samples: Samples, asked: Asked, table: Path | None, began: float
    ) -> None:
        self.model, self.read, self.options, self.began = model, read, asked, began
        self.threads = thread_count(asked.threads)
        self.graph = prepared(read.graph)
        self.groups = find_groups(self.graph)
        if not self.groups:
            what = "the model has no op that can be quantized"
            expected, fix = "a product of a computed f32 value with constant, finite weights", None
            others = sorted(map(str, product_types(self.graph) - {f32}))
            if others:
                fix = f"make it a float32 model first: its products are of {', '.join(others)}"
            raise InputError(what, expected=expected, got="none", fix=fix)
        self.formats = tuple(asked.formats or _formats(asked, self.groups))
        self.seen_samples, self.held_samples = samples.split(HELD, asked.seed)
        self.table = Table(table, self._digest(samples))

    def run(self) -> QuantizedModel:
        self._calibrate()
        self.bench = Bench(self.graph, self.groups, self.recipe, self.seen_samples.calls[0], self.threads)
        self.judges = tuple(self._judge(s) for s in (self.seen_samples, self.held_samples))
        self.exact = tuple(self._float_score(j) for j in self.judges)
        self.goals = self._goals()
        self.best: tuple[Point, Built] | None = None
        known = self._uniform()
        options = self._options()
        search = Search(options, self.goals, self._simulated, self._measure, self._late)
        chosen = search.run(known)
        return self._finished(chosen, search, options)

    # Measuring

    def _calibrate(self) -> None:
        levels = any(f in (*LEVELS, *BITS) for f in self.formats)
        seconds = _ON_FEEDBACK * self.options.seconds if levels else 0.0
        probe = Probe(self.graph, self.groups, self.threads)
        seen, moments = probe.calibrate(self.seen_samples.calls, seconds)
        del probe  # its program has all weights
        self.recipe = Recipe(seen, roundings(self.groups, seen, self.formats), moments)
        for own in seen.values():
            own.parts.clear()  # roundings were tried on them
        for i, group in enumerate(self.groups):
            progress.report("weights", i, len(self.groups))
            for form in (f for f in self._offered(group) if f not in (FLOAT, *STORED)):
                for site in group.sites:
                    self.recipe.weights(group, site, form)
            group.release()
            moments.pop(group.name, None)  # as large as the weights, and asked for no more
        self.recipe.forget_feedback()
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
        asked = self.options
        at_least = asked.at_least
        if at_least is None and asked.latency_ms is None and asked.size_mb is None:
            at_least = NEAR if asked.metric else NEAR_COSINE
        self.at_least = at_least
        kept = None if at_least is None else at_least + RESERVE * (1 - at_least)
        least = None if kept is None else (allowed(self.exact[0], kept), allowed(self.exact[1], kept))
        seconds = None if asked.latency_ms is None else asked.latency_ms / 1e3
        return Goals(least, seconds, None if asked.size_mb is None else int(asked.size_mb * 1e6))

    def _uniform(self) -> list[Point]:
        """The float model, and each format for all groups that can have it."""
        self.times: dict[str, dict[str, float]] = {}
        points: list[Point] = []
        for form in (FLOAT, *(f for f in self.formats if f != FLOAT)):
            formats = self._uniformly(form)
            known = self.best is not None and self.best[0].name != FLOAT
            # what is more exact is asked for where 8 bits lose too much
            enough = known and (self._late() or (form == PAIRED and self.goals.least is not None))
            if form != FLOAT and (not formats or enough):
                continue
            progress.report(f"measure {form}")
            built = self.bench.exact if form == FLOAT else self._built(formats)
            self.times[form] = self.table.get(f"times {form}", lambda b=built: self.bench.by_group(b))
            if form == SHARED:  # in which values that nothing else reads are int8
                self.times.setdefault(STATIC, self.times[form])
            points.append(self._point(f"all {form}" if form != FLOAT else FLOAT, formats, built))
        return points

    def _uniformly(self, form: str) -> dict[str, str]:
        """The format of each group that has it; values that nothing else reads need not be shared."""
        own = {g.name: form for g in self.groups if form in self._offered(g)}
        plain = self._uniformly(STATIC) if form == SHARED and own else {}
        return {**plain, **own}

    def _offered(self, group: Group) -> tuple[str, ...]:
        return offered(group, self.recipe.seen[group.name], self.formats)

    def _options(self) -> dict[str, list[Option]]:
        """Each group in each of its formats: time from the uniform models, error from a simulation of it alone."""
        self.simulator = Simulator(self.graph, self.groups, self.threads, "bfloat16" in self.formats)
        pairs = [(g, f) for g in self.groups for f in self._offered(g) if f != FLOAT and f in self.times]
        once = self._simulated_seconds()
        calls = self._calls(once * len(pairs), _ON_SENSITIVITY, 1)
        self.scored = int(self.table.get("calls", lambda: float(self._calls(once * _SCORES, _ON_SCORES, _LEAST_CALLS))))
        judge = self.judges[0]
        out = {
            g.name: [Option(FLOAT, self.times[FLOAT].get(g.name, 0.0), 0.0, stored_bytes(g, FLOAT))]
            for g in self.groups
        }
        for i, (group, form) in enumerate(pairs):
            progress.report("sensitivity", i, len(pairs))
            key = f"error {form} {group.name}"
            if self._late() and not self.table.knows(key):
                error = self.recipe.rounding(group, form).error  # of its products alone: what has been tried anyway
            else:
                run = partial(self.simulator.run, judge.samples.calls[:calls], self.recipe, {group.name: form})
                error = self.table.get(key, lambda run=run: judge.error(run()))
            seconds = self.times[form].get(group.name, 0.0)
            out[group.name].append(Option(form, seconds, error, stored_bytes(group, form)))
        return out

    def _simulated_seconds(self) -> float:
        """Of one call."""
        first = self.seen_samples.calls[:1]
        began = time.monotonic()
        for _ in self.simulator.run(first, self.recipe, {}):
            pass
        return time.monotonic() - began

    def _calls(self, once: float, part: float, least: int) -> int:
        """On how many calls something that takes `once` seconds for each can be found in a part of the budget."""
        most = len(self.seen_samples)
        return min(most, max(least, int(self.options.seconds * part / max(once, 1e-6))))

    def _simulated(self, formats: Formats) -> float:
        """The score on some of the calls, beside the float model's on these, as if it were on all."""
        progress.report("simulate")
        judge = self._judge_of_some
        score = partial(self.simulator.run, judge.samples.calls, self.recipe, formats)
        key = f"score {len(judge.exact)} {_told(formats)}"
        return self.exact[0] + self.table.get(key, lambda: judge.score(score())) - judge.score(judge.exact)

    @cached_property
    def _judge_of_some(self) -> Judge:
        judge = self.judges[0]
        return replace(judge, samples=judge.samples.pick(range(self.scored)), exact=judge.exact[: self.scored])

    def _measure(self, name: str, formats: Formats) -> Point:
        progress.report(f"measure {name}")
        return self._point(name, formats, self._built(formats))

    def _built(self, formats: Formats) -> Built:
        for group in self.groups:
            group.release()  # what becomes levels is not read any more
        return self.bench.build(formats)

    def _point(self, name: str, formats: Formats, built: Built) -> Point:
        exact = built is self.bench.exact
        scores = self.exact if exact else tuple(j.score(built.run(j.samples.calls)) for j in self.judges)
        seconds = self.table.get(f"latency {_told(formats)}", lambda: self.bench.latency(built))
        point = Point(name, dict(formats), (scores[0], scores[1]), seconds, built.nbytes)
        if point.meets(self.goals) and (self.best is None or seconds < self.best[0].seconds):
            self.best = point, built  # all others give their memory back
        return point

    def _late(self) -> bool:
        return time.monotonic() - self.began > self.options.seconds

    # The result

    def _finished(self, chosen: Point, search: Search, options: Mapping[str, Sequence[Option]]) -> QuantizedModel:
        graph = formed(self.graph, self.groups, self.recipe, chosen.formats)
        kept = self.best is not None and self.best[0] is chosen
        built = self.best[1] if kept and self.best else self.bench.build(chosen.formats)
        report = self._report(chosen, search, options, built)
        program = with_receipt(built.program, report.receipt())
        write_onnx = partial(self._write_onnx, chosen.formats)
        return QuantizedModel(program, self.read.convention, self.threads, report, graph, write_onnx)

    def _write_onnx(self, formats: Formats, path: Path) -> None:
        if not self.read.is_onnx:
            got = type(self.model).__name__
            raise InputError("save_onnx", expected="a model that came as ONNX", got=got, fix="export it to ONNX first")
        from ingot.transform.quantize.onnx_model import write_onnx  # needs an extra

        write_onnx(self.model, path, self.groups, self.recipe, formats)

    def _report(self, chosen: Point, search: Search, options: Mapping[str, Sequence[Option]], built: Built) -> Report:
        judge, names = self.judges[1], [spec.name for spec in built.program.outputs]
        off = dict.fromkeys(names, 0.0)
        for want, got in zip(judge.exact, built.run(judge.samples.calls), strict=True):
            for name, a, b in zip(names, want, got, strict=True):
                off[name] = max(off[name], _deviation(a, b))
        base = search.points[0]
        return Report(
            machine=cpu_name(), threads=self.threads, seed=self.options.seed,
            metric=getattr(self.options.metric, "__name__", "metric") if self.options.metric else "cosine to float32",
            at_least=self.at_least, rows=tuple(self._row(g, chosen, options[g.name]) for g in self.groups),
            float_scores=(self.exact[0], self.exact[1]), scores=chosen.scores, float_seconds=base.seconds,
            seconds=chosen.seconds, float_nbytes=base.nbytes, nbytes=chosen.nbytes, arena=built.model.arena_bytes,
            deviations=off, samples=(len(self.seen_samples), len(self.held_samples)),
            search_seconds=time.monotonic() - self.began, points=tuple(search.points),
        )  # fmt: skip

    def _row(self, group: Group, chosen: Point, options: Sequence[Option]) -> Row:
        form = chosen.formats.get(group.name, FLOAT)
        taken = next(o for o in options if o.form == form)
        exact = next(o for o in options if o.form == FLOAT)
        r = self.recipe.rounding(group, form)
        told = f"{r.method}, smoothing {r.smoothing:g}" if form in LEVELS else ""
        return Row(
            group.name,
            len(group.sites),
            form,
            told,
            (exact.seconds, taken.seconds),
            taken.error,
            taken.nbytes,
            _why(taken, options, STATIC in self.formats and not self.recipe.seen[group.name].usable),
        )

    def _digest(self, samples: Samples) -> str:
        """Of all that measurements depend on: they are used for nothing else."""
        digest = hashlib.blake2b(digest_size=12)
        for part in identity(self.graph):
            digest.update(part)
        for call in samples.calls:
            for a in call:
                digest.update(repr((a.shape, str(a.dtype))).encode() + a.tobytes())
        metric = getattr(self.options.metric, "__qualname__", "")
        told = (features_of("native"), cpu_name(), self.threads, self.options.seed, metric, repr(samples.labels))
        digest.update(repr(told).encode())
        return digest.hexdigest()


def _formats(asked: Asked, groups: Sequence[Group]) -> tuple[str, ...]:
    """What is tried where nothing is asked for, the most likely first: weights of few bits only for small models,
    bfloat16 where products of it are one instruction, levels of values that others read where these are images."""
    forms = [STATIC, DYNAMIC, PAIRED]
    if any(g.shared and not g.plain for g in groups):
        forms.insert(0, SHARED)
    if any("bf16" in name for name in features_of("native").features):
        forms.append("bfloat16")
    return (*forms, *(BITS if asked.size_mb is not None else ()))


def _told(formats: Formats) -> str:
    chosen = sorted((name, form) for name, form in formats.items() if form != FLOAT)
    return hashlib.blake2b(repr(chosen).encode(), digest_size=8).hexdigest()


def _why(taken: Option, options: Sequence[Option], endless: bool) -> str:
    """What speaks against the next faster format. endless: whether levels were asked for and have no range."""
    faster = [o for o in options if o.seconds < taken.seconds and o.error > taken.error]
    if faster:
        best = min(faster, key=lambda o: o.error)
        return f"{best.form} errs by {best.error:.1e}"
    if endless and taken.form == FLOAT:
        return "its values have no finite range"
    return "none is faster"


def _deviation(want: np.ndarray, got: np.ndarray) -> float:
    if want.dtype.kind in "biu" or not want.size:
        return float((want != got).mean()) if want.size else 0.0
    kept = np.isfinite(want)
    largest = float(np.abs(want[kept]).max()) if kept.any() else 0.0
    off = np.abs(got[kept].astype(np.float64) - want[kept]) if kept.any() else np.zeros(1)
    return float(off.max()) / (largest or 1.0)


__all__ = ["Asked", "QuantizedModel", "quantize_model"]
