"""Ray Serve on this machine: two replicas, of which one is killed under load."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray.serve")
tritonclient = pytest.importorskip("tritonclient.http")

from ingot.serving.ray import APPLICATION, deployment  # noqa: E402
from ingot.support.errors import InputError  # noqa: E402
from tests.serving.models import compiled, pooled  # noqa: E402
from tests.serving.test_application import feeds, tensors  # noqa: E402


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import ray  # pyright: ignore[reportMissingImports]
    from ray import serve  # pyright: ignore[reportMissingImports]

    file = tmp_path_factory.mktemp("ray") / "pool.ingot"
    compiled(pooled()).save(file)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        options = {"ray_actor_options": {"num_cpus": 0.4}, "health_check_period_s": 1}
        serve.run(deployment(file, num_replicas=2, **options), name=APPLICATION, route_prefix="/")
        yield f"127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.mark.slow
def test_replicas_answer_by_http_and_by_handle(address: str):
    from ray import serve  # pyright: ignore[reportMissingImports]

    model = compiled(pooled())
    with tritonclient.InferenceServerClient(address) as client:
        assert client.is_server_ready() and client.get_model_metadata("pool")["versions"] == ["1"]
        for case in ((1, 3), (4, 7), (2, 16)):
            result = client.infer("pool", tensors(["x", "shift"], feeds(*case)))
            np.testing.assert_array_equal(result.as_numpy("y"), model(*feeds(*case)))
        with pytest.raises(tritonclient.InferenceServerException, match="one of"):
            client.infer("none", tensors(["x", "shift"], feeds(1, 3)))
    handle = serve.get_app_handle(APPLICATION)
    np.testing.assert_array_equal(handle.infer.remote(feeds(2, 5)).result()[0], model(*feeds(2, 5)))


@pytest.mark.slow
def test_a_killed_replica_loses_no_more_than_its_own_answers(address: str):
    """No answer is wrong; after the requests that the replica held, none is lost."""
    model = compiled(pooled())
    cases = [(rows, length) for length in (1, 3, 7) for rows in (1, 2)]
    wanted = {case: model(*feeds(*case)) for case in cases}
    answers, failures = [], []
    stop = threading.Event()

    def load(seed: int) -> None:
        order = np.random.default_rng(seed)
        with tritonclient.InferenceServerClient(address, network_timeout=30, connection_timeout=30) as client:
            while not stop.is_set():
                case = cases[order.integers(len(cases))]
                try:
                    got = client.infer("pool", tensors(["x", "shift"], feeds(*case))).as_numpy("y")
                except Exception as error:
                    failures.append(error)
                else:
                    answers.append(np.array_equal(got, wanted[case]))

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        while len(answers) < 50:
            stop.wait(0.05)
        (victim, *_) = _replicas()
        os.kill(victim, signal.SIGKILL)
        after = len(answers) + 200
        for _ in range(600):
            if len(answers) >= after:
                break
            stop.wait(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join(40)
    assert len(answers) >= after and all(answers)
    assert len(failures) <= len(threads), failures  # what the replica worked on: one request of each connection


def _replicas() -> list[int]:
    """The processes of replicas, by their titles."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::ServeReplica:ingot"):
            found.append(int(folder.name))
    assert found
    return found


def test_only_saved_programs_are_deployed(tmp_path: Path):
    with pytest.raises(InputError, match=r"\.ingot files"):
        deployment(tmp_path / "model.onnx")
