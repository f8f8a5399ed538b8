"""Compare Ingot with other engines on one model: all are started first, then they run short bursts in alternation.

Each engine has its own process. The order rotates in each round, so that a slow phase of the machine affects all
engines equally. A time is the median over the bursts of an engine; a ratio is the median over rounds of the ratio of
two bursts of the same round.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot.bench.engines import ENGINES, Job, read_arrays, write_arrays
from ingot.bench.round_robin import Worker, WorkerFailed, round_robin
from ingot.debug.comparison.tolerance import agree, worst
from ingot.debug.feeds import Feeds
from ingot.runtime.device import energy_counters
from ingot.support import progress, timing
from ingot.support.dataclass import dataclass
from ingot.support.energy.counters import EnergyCounters
from ingot.support.energy.measure import Energy, measure
from ingot.support.errors import InputError


@dataclass(frozen=True)
class Result:
    """The figures of one engine. seconds: of a call, the median over bursts of their medians; p50, p90, p99:
    percentiles of all calls. calls_per_second: of all streams. ratio: its seconds per call over Ingot's, above 1 if
    Ingot is faster; None for Ingot.

    error: the largest deviation of its results from Ingot's, over their largest magnitude. failure: the reason why it
    has no figures. energy: of a call, if requested.
    """

    engine: str
    seconds: float | None = None
    best: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    calls_per_second: float | None = None
    ratio: float | None = None
    compile_seconds: float | None = None
    first_seconds: float | None = None
    error: float | None = None
    failure: str = ""
    energy: Energy | None = None


@dataclass(frozen=True)
class Burst:
    """times: the seconds of each call. wall: the seconds of the whole burst, whose streams run concurrently."""

    times: np.ndarray
    wall: float
    streams: int

    @property
    def pace(self) -> float:
        """Seconds between two results of all streams; for one stream the median of its calls."""
        return float(np.median(self.times)) if self.streams == 1 else self.wall / len(self.times)


def start(engine: str, model: Path, feeds: Path, job: Job) -> Worker:
    """The engine with a model, on the arrays of `feeds` (.npz): see `ingot.bench.engines`."""
    source = str(Path(__file__).parents[2])
    path = os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH", "")) if p)
    request = {"engine": engine, "model": str(model), "feeds": str(feeds), "job": job.to_json()}
    return Worker(
        "ingot.bench.engines", (json.dumps(request),), threads=job.threads_of_call,
        log=feeds.with_name(f"{engine}.log"),
        environment={"PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(feeds.parent)},
    )  # fmt: skip


def engines(text: str) -> list[str]:
    """ "ort,openvino" -> the engines beside Ingot. Raises InputError for one that does not exist."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in ENGINES]:
        raise InputError("--against", expected=f"engines of {', '.join(list(ENGINES)[1:])}", got=unknown)
    return [name for name in names if name != "ingot"]


def bench(
    model: Path,
    against: Sequence[str],
    feeds: Feeds,
    job: Job,
    rounds: int = 10,
    seconds: float = timing.BURST_SECONDS,
    energy: bool = False,
) -> list[Result]:
    """Measure Ingot and each engine of `against` (see `engines`). The result of an engine that fails has the reason;
    the others continue.

    job.precision: of Ingot and OpenVINO; the other engines run in float32. job.target: of Ingot; for a GPU, inputs and
    results are in its memory, and the other engines are PyTorch's. energy: also measure the energy of each engine, one
    after another.
    """
    names = ["ingot", *against]
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder, ExitStack() as stack:
        inputs = Path(folder) / "feeds.npz"
        write_arrays(inputs, feeds)
        running: dict[str, Worker] = {}
        results = {name: Result(name) for name in names}
        for name in names:
            progress.report(f"start {name}")
            process = start(name, model.resolve(), inputs, job)
            stack.callback(process.close)
            try:
                started = process.answer()
            except WorkerFailed as failure:
                results[name] = Result(name, failure=str(failure))
                continue
            running[name] = process
            error = _deviation(Path(folder), name) if "ingot" in running else None
            results[name] = Result(
                name, compile_seconds=started["compile_s"], first_seconds=started["first_s"], error=error
            )

        def failed(name: str, failure: WorkerFailed) -> None:
            results[name] = Result(name, failure=str(failure))

        bursts = round_robin(running, rounds, lambda worker: _burst(worker.ask(seconds=seconds), job.streams), failed)
        summaries = [_summary(results[name], bursts.get(name, []), bursts.get("ingot", [])) for name in names]
        if not energy:
            return summaries
        counters = energy_counters({job.target.partition(":")[0]})
        return [_with_energy(r, running[r.engine], counters) if r.seconds else r for r in summaries]


def _with_energy(result: Result, worker: Worker, counters: EnergyCounters) -> Result:
    try:
        energy = measure(lambda seconds: int(worker.ask(seconds=seconds, count=True)["calls"]), counters)
    except WorkerFailed as failure:
        return Result(result.engine, failure=str(failure))
    return replace(result, energy=energy)


def _burst(answer: Mapping[str, Any], streams: int) -> Burst:
    return Burst(np.array(answer["times_ns"]) / 1e9, float(answer["wall_s"]), streams)


def _summary(result: Result, bursts: list[Burst], reference_bursts: list[Burst]) -> Result:
    if not bursts:
        return result
    ratios = [theirs.pace / ours.pace for theirs, ours in zip(bursts, reference_bursts, strict=False)]
    medians = [float(np.median(burst.times)) for burst in bursts]
    times = np.concatenate([burst.times for burst in bursts])
    p50, p90, p99 = (float(value) for value in np.percentile(times, (50, 90, 99)))
    return replace(
        result, seconds=statistics.median(medians), best=min(medians), p50=p50, p90=p90, p99=p99,
        calls_per_second=len(times) / sum(burst.wall for burst in bursts),
        ratio=statistics.median(ratios) if ratios and result.engine != "ingot" else None,
    )  # fmt: skip


def _deviation(folder: Path, engine: str) -> float | None:
    """The deviation of an engine's outputs from Ingot's; None for Ingot itself."""
    if engine == "ingot":
        return None
    ours, theirs = (read_arrays(folder / f"{name}.npz").values() for name in ("ingot", engine))
    return worst([agree(a, b) for a, b in zip(ours, theirs, strict=True)]).relative
