"""Ray Serve on two nodes of this machine, a replica on each, of which one is killed under load."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")
tritonclient = pytest.importorskip("tritonclient.http")

from ingot.serving.ray import APPLICATION, deployment, serve_module  # noqa: E402
from ingot.support.errors import InputError  # noqa: E402
from tests.serving.models import compiled, pooled  # noqa: E402
from tests.serving.test_application import feeds, tensors  # noqa: E402


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of the proxy, on the head node."""
    os.environ["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] = "1"  # of a replica that ends
    serve = serve_module()  # before others import it: it sets variables for the processes of the cluster
    import ray  # pyright: ignore[reportMissingImports]
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    file = tmp_path_factory.mktemp("ray") / "pool.ingot"
    compiled(pooled()).save(file)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    node: Any = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray.init(cluster.address, log_to_driver=False)
        serve.start("HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        options = {"ray_actor_options": {"num_cpus": 0.6}, "health_check_period_s": 1}  # a node has room for one
        options |= {"graceful_shutdown_timeout_s": 1}
        serve.run(deployment(file, num_replicas=2, **options), name=APPLICATION, route_prefix="/")
        yield f"127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def test_only_saved_programs_are_deployed(tmp_path: Path):
    with pytest.raises(InputError, match=r"\.ingot files"):
        deployment(tmp_path / "model.onnx")


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


class Load:
    """Clients that ask without a pause: `answers` whether each was right, `failures` of those without an answer."""

    COUNT = 4

    def __init__(self, address: str) -> None:
        self._address = address
        self.answers: list[bool] = []
        self.failures: list[Exception] = []
        model = compiled(pooled())
        self._cases = [(rows, length) for length in (1, 3, 7) for rows in (1, 2)]
        self._expected = {case: model(*feeds(*case)) for case in self._cases}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(self.COUNT)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(40)

    def wait(self, count: int) -> bool:
        """Whether `more` answers have come within 60 s."""
        target_count, end = len(self.answers) + count, time.monotonic() + 60
        while len(self.answers) < target_count and time.monotonic() < end:
            time.sleep(0.05)
        return len(self.answers) >= target_count

    def _run(self, seed: int) -> None:
        order = np.random.default_rng(seed)
        with tritonclient.InferenceServerClient(self._address, network_timeout=30, connection_timeout=30) as client:
            while not self._stop.is_set():
                case = self._cases[order.integers(len(self._cases))]
                try:
                    got = client.infer("pool", tensors(["x", "shift"], feeds(*case))).as_numpy("y")
                except Exception as error:
                    self.failures.append(error)
                else:
                    self.answers.append(np.array_equal(got, self._expected[case]))


@pytest.mark.slow
def test_a_killed_replica_loses_no_more_than_its_own_answers(address: str):
    """No answer is wrong; after the requests that the replica held, none is lost."""
    with Load(address) as load:
        assert load.wait(50)
        replicas = _replicas()
        assert len(set(replicas.values())) == len(replicas) == 2, "a node has both replicas"
        os.kill(next(iter(replicas)), signal.SIGKILL)
        assert load.wait(200)
    assert all(load.answers)
    assert len(load.failures) <= Load.COUNT, [
        str(e) for e in load.failures
    ]  # what the replica worked on: a request of each client


def _replicas() -> dict[int, int]:
    """The processes of replicas, by their titles, each with its parent, the process of a node of this process."""
    results, pid = {}, os.getpid()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title, parent = (folder / "cmdline").read_bytes(), _parent(int(folder.name))
            is_own = title.startswith(b"ray::ServeReplica:ingot") and _parent(parent) == pid
        except OSError:
            continue
        if is_own:
            results[int(folder.name)] = parent
    return results


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
