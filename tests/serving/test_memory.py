"""Weights of an artifact are mapped once for all processes of a machine; a server's memory does not grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper

pytest.importorskip("uvicorn")

from ingot.serving.application import RequestLimits
from tests.serving.models import compiled, pooled, proto, served, serving
from tests.serving.test_application import SHIFT, X, post

_PROGRAM = """
import sys, numpy as np, ingot
model = ingot.load(sys.argv[1], threads=1)
model(np.ones((4, 1024), np.float32))
print("ready", flush=True)
sys.stdin.readline()
"""
_LAYERS = 25  # of 4 MiB


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="proportional sizes are Linux'")
def test_three_processes_of_a_100_mb_model_take_at_most_1_6_times_the_memory_of_one(tmp_path: Path):
    rng = np.random.default_rng(0)
    weights = [(f"w{i}", rng.standard_normal((1024, 1024), np.float32) / 32) for i in range(_LAYERS)]
    nodes = [helper.make_node("MatMul", [f"x{i}" if i else "x", f"w{i}"], [f"x{i + 1}"]) for i in range(_LAYERS)]
    shape = ["batch", 1024]
    model = compiled(proto(nodes, [("x", T.FLOAT, shape)], [(f"x{_LAYERS}", T.FLOAT, shape)], weights), cache=False)
    file = tmp_path / "large.ingot"
    model.save(file)
    assert file.stat().st_size >= 100 << 20
    one, three = (_proportional_bytes(file, count) for count in (1, 3))
    assert one > 100 << 20
    assert three <= 1.6 * one, (one, three)


def _proportional_bytes(file: Path, count: int) -> int:
    """The sum of the proportional set sizes of `count` processes with the model."""
    words = [sys.executable, "-c", _PROGRAM, str(file)]
    processes = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        texts = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes]
        return sum(
            int(line.split()[1]) << 10 for text in texts for line in text.splitlines() if line.startswith("Pss:")
        )
    finally:
        for process in processes:
            process.communicate(b"\n")


@pytest.mark.slow
def test_memory_is_flat_under_good_and_bad_requests():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    good = json.dumps({"inputs": [X, SHIFT]}).encode()
    bad = [b"{", b"[" * 50_000, json.dumps({"inputs": [X | {"data": ["a"] * 9}]}).encode(), bytes(2 << 20)]
    with served([serving("pool", compiled(pooled()), max_rows=8)], RequestLimits(body_bytes=1 << 20)) as address:

        def requests(count: int) -> None:
            for i in range(count):
                assert post(address, "/v2/models/pool/infer", good)[0] == 200
                assert post(address, "/v2/models/pool/infer", bad[i % len(bad)])[0] in (400, 413)

        requests(200)
        before = resident()
        requests(1000)
        assert (resident() - before) * 4096 < 4 << 20
