"""Tune a model: search, write confirmed choices to a database, and measure the model before and after."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot.debug.feeds import Feeds
from ingot.ir.node import Graph
from ingot.pipeline import tuning
from ingot.pipeline.target import Options, features_of
from ingot.runtime.device import refusal_of
from ingot.schedule.choice import Measured
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.tune.fleet import Fleet, RemoteWorker
from ingot.tune.gpu import GpuBench
from ingot.tune.search import Finding, Search
from ingot.tune.trial import Spot, Workbench


@dataclass(frozen=True)
class Row:
    """A site after tuning. seconds: of one launch. state: "tuned", "untuned is best", "known" (from an earlier search),
    or "open" (not searched to the end, nothing found)."""

    kernel: str
    result: str
    count: int
    share: float
    untuned_seconds: float
    seconds: float
    choice: str
    state: str

    @property
    def gain(self) -> float:
        return self.untuned_seconds / self.seconds


@dataclass(frozen=True)
class Report:
    """machine: its name in the database. untuned_seconds, seconds: of a call, measured in alternation; gain: the median
    ratio of the pairs. wrong_results: candidates with other results, which is a bug. withdrawn_count: of the
    findings that made calls slower and were removed. failures: candidates that did not compile or return, and why."""

    machine: str
    database: str
    rows: tuple[Row, ...]
    untuned_seconds: float
    seconds: float
    gain: float
    wrong_results: tuple[str, ...]
    withdrawn_count: int = 0
    failures: tuple[str, ...] = ()


def tune(
    graph: Graph,
    feeds: Feeds,
    *,
    threads: int,
    budget: float,
    database: Path,
    fast_math: bool = False,
    precision: str = "float32",
    activations: str = "float32",
    target: str = "native",
    again: bool = False,
    workers: Sequence[RemoteWorker] = (),
    task: Mapping[str, Any] | None = None,
    watch: Callable[[str, float], None] = lambda text, seconds: None,
) -> Report:
    """Search for about `budget` seconds, at the sizes of `feeds`, and add findings to `database` as they are made.

    again: also search sites with entries in the database. workers: the processes that measure the rounds of the search,
    with the request `task` (see `worker.Worker`); the guard measures in this process. watch: called with a description
    and the seconds so far.

    Raises the errors of compiling, ArtifactError for a database that cannot be written or is malformed, and InputError
    or ArtifactError for a target that is not this machine's.
    """
    tuning.add(database, ())  # said before minutes of work and not after them
    start = time.monotonic()
    watch("compile", 0.0)
    bench = _bench(graph, feeds, target, Options(threads, fast_math, precision, activations))
    machine = tuning.machine_name(bench.features, threads)
    shipped = tuning.choices(tuning.SHIPPED, machine)
    measured = {} if again else shipped | tuning.choices(database, machine)

    def write(findings: Sequence[Finding]) -> None:
        tuning.add(database, [_entry(machine, f) for f in findings])

    if workers and not isinstance(bench, Workbench):
        raise InputError("workers", expected="target native", got=target, fix="tune a GPU on its own machine")
    fleet = Fleet(workers, task or {}, machine, bench.failures) if workers else None
    search = Search(
        bench, measured, write, time.monotonic, lambda text, seconds: watch(text, time.monotonic() - start), fleet
    )
    findings = {f.spot.site.key: f for f in search.run(budget - (time.monotonic() - start))}
    watch("measure before and after", time.monotonic() - start)
    pairs = bench.latency(bench.decided(shipped | tuning.choices(database, machine)), LATENCY_SECONDS)
    gain = float(np.median(pairs[:, 0] / pairs[:, 1]))
    withdrawn = [_withdrawn(f) for f in findings.values() if f.tuned and gain < MIN_CONFIRMED_GAIN]
    if withdrawn:
        write(withdrawn)
        findings |= {f.spot.site.key: f for f in withdrawn}
    rows = tuple(_row(s, findings.get(s.site.key), measured.get(s.site.key)) for s in bench.spots)
    before, now = np.median(pairs, axis=0)
    wrong, failures = tuple(search.wrong), tuple(f"{what}: {why}" for what, why in bench.failures.items())
    bench.close()
    return Report(machine, str(database), rows, float(before), float(now), gain, wrong, len(withdrawn), failures)


def _bench(graph: Graph, feeds: Feeds, target: str, options: Options) -> Workbench | GpuBench:
    features = features_of(target)
    if features.target_name == "cuda":
        if (refused := refusal_of(features)) is not None:
            raise refused
        return GpuBench(graph, feeds, features, options.fast_math, options.precision, options.activations)
    if features != features_of("native"):
        raise InputError("a target to tune for", expected="native, or cuda:ARCH of this machine's GPU", got=target)
    return Workbench(graph, feeds, options.threads, options.fast_math, options.precision, options.activations)


LATENCY_SECONDS = 2.0
# The untuned call's time over the tuned one's below which what was found kernel by kernel is not believed.
MIN_CONFIRMED_GAIN = 0.99


def _withdrawn(f: Finding) -> Finding:
    """That nothing faster was found."""
    return replace(f, choice=f.spot.site.untuned, seconds=f.untuned_seconds)


def _entry(machine: str, f: Finding) -> tuning.Entry:
    return tuning.Entry(machine, f.spot.site.key, f.choice, f.spot.site.untuned, f.seconds, f.untuned_seconds)


def _row(spot: Spot, finding: Finding | None, measured: Measured | None) -> Row:
    seconds = spot.seconds / spot.count
    place = (spot.label, spot.result, spot.count, spot.share)
    if finding is None:
        valid = measured is not None and measured.baseline == spot.site.untuned
        choice = measured.choice if measured is not None and valid else spot.site.untuned
        return Row(*place, seconds, seconds, str(choice), "known" if valid else "open")
    state = "tuned" if finding.tuned else "untuned is best"
    return Row(*place, finding.untuned_seconds, finding.seconds, str(finding.choice), state)
