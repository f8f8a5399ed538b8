"""Formats measured by workers: the numbers of a serial search, and nothing is lost with a worker that dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from ingot.cli import app
from ingot.support.errors import DeviceError, InputError
from ingot.transform.quantize.run import QuantizedModel, SearchOptions, quantize_model
from ingot.transform.quantize.table import Table
from ingot.transform.quantize.workers.fleet import Fleet
from ingot.transform.quantize.workers.worker import Worker
from ingot.tune.fleet import MAX_TRIES
from ingot.tune.watched import Watched
from tests.transform.quantize.test_run import X, made_up_times, model  # noqa: F401  (times that are equal everywhere)

OPTIONS = SearchOptions(at_least=0.99, seconds=100, formats=("int8", "int8-dynamic", "weight8"), threads=1)


class Dying:
    """A worker in this process that dies at each request as often as it is told."""

    def __init__(self, deaths: int) -> None:
        self.deaths, self.request_count, self.deaths_left, self._worker = deaths, 0, deaths, Worker()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.request_count += 1
        if self.deaths_left:
            self.deaths_left -= 1
            raise DeviceError("a measurement", got="killed")
        self.deaths_left = self.deaths
        return json.loads(json.dumps(self._worker.answer(json.loads(json.dumps(request)))))

    def close(self) -> None: ...


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    onnx.save(model(), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=X)
    return {"model": str(tmp_path / "net.onnx"), "words": {}, "samples": str(tmp_path / "samples.npz"), "batch": 4,
            "options": asdict(OPTIONS)}  # fmt: skip


def run(task: dict[str, Any], table: Path, fleet: Fleet | None = None) -> tuple[QuantizedModel, dict[str, Any]]:
    result = quantize_model(Path(task["model"]), {"x": X}, batch=4, table=table, options=OPTIONS, fleet=fleet)
    exact = {k.partition(" ")[2]: v for k, v in json.loads(table.read_text()).items()}
    return result, {k: v for k, v in exact.items() if k.startswith(("error", "scores", "bytes"))}


@pytest.mark.parametrize("deaths", [0, MAX_TRIES - 1, MAX_TRIES])
def test_workers_measure_what_a_serial_search_does(task: dict[str, Any], tmp_path: Path, deaths: int):
    """Where no worker survives, the search measures itself."""
    _, serial = run(task, tmp_path / "serial.json")
    worker = Dying(deaths)
    result, facts = run(task, tmp_path / "spread.json", Fleet([worker], task))
    assert {k: facts[k] for k in serial} == serial and any(k.startswith("error int8 ") for k in facts)
    assert worker.request_count >= 4 * (1 + deaths) if deaths < MAX_TRIES else worker.request_count >= MAX_TRIES
    assert result.report.scores[1] >= 0.99 and len(result.report.points) >= 4


def test_a_worker_with_other_samples_is_refused(task: dict[str, Any], tmp_path: Path):
    np.savez(tmp_path / "samples.npz", x=X + 1)
    with pytest.raises(InputError, match="machine, model and samples"):
        run(task, tmp_path / "table.json", Fleet([Dying(0)], task))


def test_only_numbers_are_taken():
    with pytest.raises(InputError, match="expected numbers"):
        Table().update({"latency": "soon"})  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_a_killed_process_is_replaced(task: dict[str, Any]):
    worker = Watched("ingot.transform.quantize.workers.worker", 60, "a measurement")
    table = Table()
    try:
        job = {"errors": [], "calls": 1}
        table.prefix = worker.ask({"task": task, "job": job})["prefix"]
        assert worker._process is not None
        os.kill(worker._process.pid, signal.SIGKILL)
        Fleet([worker], task).fill(table, [{"errors": [["first", "int8"]], "calls": 2}])
    finally:
        worker.close()
    error = table.values[f"{table.prefix} error int8 first"]
    assert isinstance(error, float) and error > 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "ray"])
def test_the_command_line(task: dict[str, Any], tmp_path: Path, workers: str):
    ray = pytest.importorskip("ray") if workers == "ray" else None
    if ray is not None:
        ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    words = ["quantize", task["model"], "--samples", task["samples"], "--threads", "1", "--batch", "4", "--json"]
    words += ["--seconds", "20", "--workers", workers, "-o", str(tmp_path / "net.ingot")]
    try:
        result = CliRunner().invoke(app, words)
    finally:
        if ray is not None:
            ray.shutdown()
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["scores"][1] > 0.99 and (tmp_path / "net.ingot").exists()
