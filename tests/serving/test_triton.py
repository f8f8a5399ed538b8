"""NVIDIA Triton's server of the wheel nvidia-pytriton (or of the path), on a repository that Ingot wrote."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

tritonclient = pytest.importorskip("tritonclient.http")

import ingot  # noqa: E402
from ingot.runtime.dtypes import numpy_dtype  # noqa: E402
from ingot.runtime.executor import CompiledModel  # noqa: E402
from ingot.serving.scheduler import Queueing  # noqa: E402
from ingot.serving.triton import find_triton, write_model  # noqa: E402
from ingot.support.errors import DeviceError, InputError  # noqa: E402
from tests.serving.models import centered, compiled, pooled, typed, upper  # noqa: E402
from tests.serving.test_application import feeds, tensors  # noqa: E402

SOURCE = Path(ingot.__file__).parents[1]


def write(folder: Path, name: str, model: CompiledModel, version: str = "1", **queueing) -> None:
    write_model(folder, name, version, model, Queueing(**queueing), batch=None, timeout=20, source=SOURCE)


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """The addresses of HTTP, gRPC and metrics."""
    try:
        server = find_triton()
    except DeviceError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("repository")
    for version in ("1", "2"):
        write(folder, "pool", compiled(pooled()), version, max_rows=16, delay=0.01)
    write(folder, "centered", compiled(centered()), max_rows=16)
    write(folder, "typed", compiled(typed()), max_rows=4)
    write(folder, "narrow", compiled(pooled()), capacity=1, max_rows=2)
    ports = free_ports(3)
    words = server.command(folder, "127.0.0.1", ports[0], grpc=ports[1], metrics=ports[2])
    log = folder.with_suffix(".log")
    with (
        log.open("w") as output,
        subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **server.environment}
        ) as process,
    ):
        try:
            client = tritonclient.InferenceServerClient(f"127.0.0.1:{ports[0]}")
            for _ in range(300):
                try:
                    if client.is_server_ready():
                        break
                except OSError:
                    assert process.poll() is None, log.read_text()[-4000:]
                time.sleep(0.1)
            yield tuple(f"127.0.0.1:{port}" for port in ports)  # type: ignore[misc]
        finally:
            process.kill()  # an orderly end takes 30 s; the models' processes follow
            process.wait(10)


@pytest.mark.slow
def test_triton_serves_two_versions_with_the_bits_of_single_calls(triton):
    with tritonclient.InferenceServerClient(triton[0], concurrency=8) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("pool", "1")
        facts = client.get_model_metadata("pool")
        assert facts["versions"] == ["1", "2"] and facts["inputs"][0]["shape"] == [-1, -1, 8]
        assert client.get_model_config("pool")["max_batch_size"] == 16
        assert client.get_model_config("centered")["max_batch_size"] == 0
        model = compiled(pooled())
        cases = [(rows, length) for length in (1, 7, 16) for rows in (1, 3)] * 8
        sent = [client.async_infer("pool", tensors(["x", "shift"], feeds(*case))) for case in cases]
        for case, request in zip(cases, sent, strict=True):
            np.testing.assert_array_equal(request.get_result().as_numpy("y"), model(*feeds(*case)))
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal(
            client.infer("centered", tensors(["x"], [x])).as_numpy("y"), [[-1.5] * 3, [1.5] * 3]
        )


@pytest.mark.slow
def test_each_dtype_passes_through_triton(triton):
    arrays = [np.array([0, 1, 1], numpy_dtype(spec.dtype)) for spec in compiled(typed()).inputs]
    names = [spec.name for spec in compiled(typed()).inputs]
    with tritonclient.InferenceServerClient(triton[0]) as client:
        result = client.infer("typed", tensors(names, arrays))
        for name, array in zip(names, arrays, strict=True):
            got = result.as_numpy(f"{name}_out")
            assert got.dtype == array.dtype
            np.testing.assert_array_equal(got, array)


@pytest.mark.slow
def test_triton_counts_and_refuses_on_a_full_queue(triton):
    import urllib.request

    arrays = feeds(2, 20_000)
    with tritonclient.InferenceServerClient(triton[0], concurrency=32) as client:
        sent = [client.async_infer("narrow", tensors(["x", "shift"], arrays)) for _ in range(24)]
        refused = 0
        for request in sent:
            try:
                request.get_result()
            except tritonclient.InferenceServerException as error:
                assert "503" in str(error.status()) or "exceeds" in error.message().lower(), error
                refused += 1
        assert 0 < refused < 24
    with urllib.request.urlopen(f"http://{triton[2]}/metrics", timeout=10) as response:
        assert 'nv_inference_request_success{model="narrow"' in response.read().decode()


@pytest.mark.slow
def test_grpc_and_shared_memory(triton):
    grpc = pytest.importorskip("tritonclient.grpc")
    import tritonclient.utils.shared_memory as memory

    arrays = feeds(2, 500)
    region = memory.create_shared_memory_region("x", f"/ingot-{os.getpid()}", arrays[0].nbytes)
    with grpc.InferenceServerClient(triton[1]) as client:
        try:
            memory.set_shared_memory_region(region, [arrays[0]])
            client.register_system_shared_memory("x", f"/ingot-{os.getpid()}", arrays[0].nbytes)
            x, shift = grpc.InferInput("x", [*arrays[0].shape], "FP32"), grpc.InferInput("shift", [2, 1], "FP32")
            x.set_shared_memory("x", arrays[0].nbytes)
            shift.set_data_from_numpy(arrays[1])
            result = client.infer("pool", [x, shift])
            np.testing.assert_array_equal(result.as_numpy("y"), compiled(pooled())(*arrays))
            client.unregister_system_shared_memory()
        finally:
            memory.destroy_shared_memory_region(region)


def test_what_triton_cannot_run_is_refused(tmp_path: Path):
    with pytest.raises(InputError):
        write(tmp_path, "upper", compiled(upper()))
    assert not [*tmp_path.rglob("*.ingot")]


def test_the_backend_answers_each_request_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With a stand-in for the module that Triton's processes have."""
    import sys
    from types import ModuleType

    class Tensor:
        def __init__(self, name, array):
            self.name, self.array = name, array

        @staticmethod
        def from_dlpack(name, capsule):
            class Given:
                def __dlpack__(self, **options):
                    return capsule

                def __dlpack_device__(self):
                    return 1, 0  # a CPU

            return Tensor(name, np.from_dlpack(Given()))

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    class Response:
        def __init__(self, tensors=(), error=None):
            self.tensors, self.error = tensors, error

    utils = ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.InferenceResponse, utils.TritonError = Tensor, Response, str  # type: ignore[attr-defined]
    utils.get_input_tensor_by_name = lambda request, name: request[name]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    from ingot.serving.triton_backend import TritonPythonModel

    model = compiled(pooled())
    write(tmp_path, "pool", model, max_rows=16)
    config = {"max_batch_size": 16, "parameters": {"threads": {"string_value": "1"}}}
    backend = TritonPythonModel()
    backend.initialize(
        {"model_config": json.dumps(config), "model_repository": str(tmp_path / "pool"), "model_version": "1"}
    )
    cases = [(1, 3), (2, 5), (3, 3), (16, 3), (1, 5)]
    requests = [dict(x=Tensor("x", x), shift=Tensor("shift", s)) for x, s in (feeds(*case) for case in cases)]
    requests[3]["shift"] = Tensor("shift", np.zeros((16, 2), np.float32))
    responses = backend.execute(requests)
    assert "shift" in responses[3].error
    for index in (0, 1, 2, 4):
        assert responses[index].error is None
        np.testing.assert_array_equal(responses[index].tensors[0].array, model(*feeds(*cases[index])))
