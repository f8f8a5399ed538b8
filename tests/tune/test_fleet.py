"""Measurements by several workers: as one would measure, and nothing is lost with one that dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from ingot.cli import app
from ingot.pipeline import tuning
from ingot.support.errors import DeviceError, InputError
from ingot.tune.fleet import MAX_TRIES, Fleet, workers_of
from ingot.tune.search import Search
from ingot.tune.trial import Choices, Readings
from ingot.tune.watched import Watched
from tests.serving.models import pooled
from tests.tune.test_search import BASE, FakeBench, spot, tile


class Measurers:
    """The fake bench, `count` batches at a time."""

    def __init__(self, bench: FakeBench, count: int) -> None:
        self.bench, self.count, self.widths = bench, count, list[int]()

    def readings(self, batches: Sequence[Choices], rounds: int) -> list[Readings]:
        self.widths.append(len(batches))
        return [self.bench.readings(choices, rounds) for choices in batches]


def bench() -> FakeBench:
    spots = [spot("a", 0.5, [tile(n) for n in range(1, 8)], [tile(9)]), spot("b", 0.3, [tile(6), tile(5)])]
    return FakeBench(spots, {("a", tile(5)): 1.2, ("a", tile(9)): 1.3, ("b", tile(6)): 1.1})


def test_workers_find_what_a_serial_search_finds():
    entries = []
    for count in (1, 3):
        bench_ = bench()
        measurers = Measurers(bench_, count)
        stored_entries: list[Any] = []
        Search(bench_, {}, stored_entries.extend, bench_.clock, lambda text, seconds: None, measurers).run(1000)
        entries.append({f.spot.site.key: (f.choice, round(f.gain, 6)) for f in stored_entries})
        assert max(measurers.widths) == count
    assert entries[0] == entries[1] and entries[0]["a"][0] == tile(9) and entries[0]["b"][0] == tile(6)


class Dying:
    """A worker that dies as often as it is told, and then measures."""

    def __init__(self, deaths: int, machine: str = "here") -> None:
        self.deaths, self.machine, self.request_count = deaths, machine, 0

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.request_count += 1
        json.dumps(request)
        if self.request_count <= self.deaths:
            raise DeviceError("a measurement", got="killed")
        pairs = [[2.0, 1.0]] * request["rounds"]
        return {"machine": self.machine, "sites": dict.fromkeys(request["choices"], pairs), "total": pairs}

    def close(self) -> None: ...


def test_a_request_goes_on_where_its_worker_died_and_is_left_out_where_all_do():
    failures: dict[str, str] = {}
    workers = [Dying(0), Dying(MAX_TRIES - 1), Dying(MAX_TRIES)]
    results = Fleet(workers, {}, "here", failures).readings([{"a": tile(1)}, {"a": tile(2)}, {"a": tile(3)}], 4)
    assert [float(r.sites["a"][0, 0] / r.sites["a"][0, 1]) for r in results] == [2.0, 2.0, 0.0]
    assert [w.request_count for w in workers] == [1, MAX_TRIES, MAX_TRIES]
    assert len(failures) == 1 and str(tile(3)) in next(iter(failures))


def test_a_worker_of_another_kind_is_refused():
    with pytest.raises(InputError, match="expected here, got there"):
        Fleet([Dying(0, "there")], {}, "here", {}).readings([{"a": BASE}], 1)


@pytest.mark.parametrize("text", ["0", "-1", "1000", "x", "ray:3"])
def test_workers_are_processes_or_a_cluster(text: str):
    with pytest.raises(InputError, match="--workers"):
        workers_of(text)
    assert len(workers_of("3")) == 3


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    onnx.save(pooled(), tmp_path / "pool.onnx")
    sizes = {"batch": 4, "length": 16}
    return {"model": str(tmp_path / "pool.onnx"), "words": {}, "threads": 1, "fast_math": False, "precision": "float32",
            "activations": "float32", "sizes": sizes}  # fmt: skip


@pytest.mark.slow
def test_the_end_of_a_process_is_told():
    with pytest.raises(DeviceError, match="its process was ended with 1"):
        Watched("ingot.tune.worker", 60, "a measurement").ask({"choices": {}, "rounds": 1})


@pytest.mark.slow
def test_a_killed_process_is_replaced(task: dict[str, Any]):
    worker = Watched("ingot.tune.worker", 60, "a measurement")
    try:
        request = {"task": task, "choices": {}, "rounds": 2}
        machine = worker.ask(request)["machine"]
        assert worker._process is not None
        os.kill(worker._process.pid, signal.SIGKILL)
        result = Fleet([worker], task, machine, {}).readings([{}], 3)[0]
        assert result.total.shape == (3, 2) and (result.total > 0).all()
    finally:
        worker.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "ray"])
def test_the_command_tunes_with_workers(task: dict[str, Any], tmp_path: Path, workers: str):
    ray = pytest.importorskip("ray") if workers == "ray" else None
    if ray is not None:
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    database = tmp_path / "found.jsonl"
    words = [
        "tune",
        task["model"],
        "--budget",
        "8",
        "--threads",
        "1",
        "--workers",
        workers,
        "--database",
        str(database),
    ]
    try:
        result = CliRunner().invoke(app, [*words, "--size", "batch=40,length=60", "--json"])
    finally:
        if ray is not None:
            ray.shutdown()
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    entries = tuning.choices(database, report["machine"])
    assert entries and not report["wrong_results"] and not report["failures"]
    assert np.isfinite(report["gain"])
