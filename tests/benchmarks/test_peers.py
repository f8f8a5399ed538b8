"""The benchmarks' own arithmetic and the zoo's tables; no timing, no engine."""

import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import peer_worker, zoo  # noqa: E402
from benchmarks.measure import deviation, geometric_mean  # noqa: E402

peer_report = pytest.importorskip("benchmarks.peer_report", reason="the tables need rich")


def test_importing_the_zoo_imports_no_framework():
    code = "import sys; from benchmarks import zoo; print([m for m in ('torch', 'onnx', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_are_unique_and_a_wrong_one_lists_the_others():
    assert len(zoo.names()) == len(zoo.TIER_1) + len(zoo.TIER_2)
    with pytest.raises(KeyError, match="resnet50"):
        zoo.get("resnet5O")


@pytest.mark.parametrize("model", [*zoo.TIER_1, *zoo.TIER_2], ids=lambda model: model.name)
def test_the_second_shape_differs(model: zoo.Model):
    batch, length = model.variant
    assert batch > 1
    assert (length == 0) == (model.length == 0)
    assert length == 0 or length != model.length


@pytest.mark.parametrize(
    ("got", "expected", "answer"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([1.0], [1.0, 4.0], math.inf),
        ([math.nan, 4.0], [1.0, 4.0], math.inf),
        ([], [], 0.0),
        ([0.5], [0.0], 0.5),
    ],
)
def test_deviation(got: list[float], expected: list[float], answer: float):
    assert deviation(np.array(got), np.array(expected)) == answer


def test_ratio_pairs_the_bursts_of_a_round():
    slow_minute = peer_report.ModelRun(
        "m",
        1,
        0,
        1.0,
        {"a": peer_report.PeerRun(bursts_s=[1.0, 10.0, 1.0]), "b": peer_report.PeerRun(bursts_s=[2.0, 20.0, 2.0])},
    )
    assert slow_minute.best() == "a"
    assert slow_minute.best(without="a") == "b"
    assert slow_minute.ratio("a", "b") == 2.0


def test_a_failed_peer_is_never_the_best():
    run = peer_report.ModelRun(
        "m", 1, 0, 1.0,
        {"a": peer_report.PeerRun(bursts_s=[1.0], failure="crashed"), "b": peer_report.PeerRun(bursts_s=[2.0])},
    )  # fmt: skip
    assert run.best() == "b"
    assert run.ratio("a", "b") is None


def test_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(geometric_mean([]))


def test_slowdowns_beside_a_neighbour():
    neighbour = pytest.importorskip("benchmarks.neighbour", reason="the tables need rich")
    quiet, disturbed = [1.0] * 9 + [3.0], [2.0] * 8 + [4.0, 6.0]
    row = neighbour.Row("m", "ingot", quiet, disturbed)
    assert row.slowdowns() == (2.0, pytest.approx(2.6 / 1.2), 2.0)
    assert neighbour.percentile([3.0, 1.0, 2.0], 0.0) == 1.0


def test_callers_share_one_model():
    worker = object.__new__(peer_worker.Worker)
    barrier, results = threading.Barrier(3, timeout=10), []

    class Meeting:
        def run(self) -> None:
            if threading.get_ident() not in results:
                results.append(threading.get_ident())
                barrier.wait()  # a caller that comes alone waits in vain

    worker.backend = Meeting()  # type: ignore[assignment]
    assert worker.callers(0.01, 3)["calls_per_s"] > 0  # type: ignore[operator]
    assert len(set(results)) == 3
