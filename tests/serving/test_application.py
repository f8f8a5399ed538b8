"""The application through clients: tritonclient, and bytes on a socket."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("uvicorn")
tritonclient = pytest.importorskip("tritonclient.http")

from ingot.runtime.dtypes import numpy_dtype  # noqa: E402
from ingot.serving.application import RequestLimits  # noqa: E402
from ingot.serving.metrics import Metrics  # noqa: E402
from ingot.serving.repository import Repository, ServedModel  # noqa: E402
from ingot.serving.scheduler import Queueing  # noqa: E402
from ingot.support.errors import InputError  # noqa: E402
from tests.serving.models import centered, compiled, pooled, served, serving, typed, upper  # noqa: E402


@pytest.fixture(scope="module")
def pool():
    return compiled(pooled())


def feeds(rows: int, length: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, rows, length])
    return [rng.standard_normal(s).astype(np.float32) for s in ((rows, length, 8), (rows, 1))]


def tensors(names, arrays, binary=True):
    kinds = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bool": "BOOL", "object": "BYTES"}
    tensors_ = []
    for name, array in zip(names, arrays, strict=True):
        kind = kinds.get(array.dtype.name, array.dtype.name.upper())
        tensors_.append(tritonclient.InferInput(name, array.shape, kind))
        tensors_[-1].set_data_from_numpy(array, binary_data=binary)
    return tensors_


def post(address: str, path: str, body: bytes, headers=None) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("POST", path, body, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    finally:
        connection.close()


def get(address: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_tritonclient_finds_health_metadata_versions_config_and_statistics(pool):
    metrics = Metrics()
    two = [ServedModel("pool", v, pool, Queueing(max_rows=8), observe=metrics.observer("pool", v)) for v in ("1", "10")]
    with served(two, metrics=metrics) as address, tritonclient.InferenceServerClient(address) as client:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("pool") and client.is_model_ready("pool", "10")
        assert not client.is_model_ready("pool", "2") and not client.is_model_ready("other")
        assert client.get_server_metadata()["name"] == "ingot"
        facts = client.get_model_metadata("pool")
        assert facts["versions"] == ["1", "10"]
        assert facts["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, -1, 8]}
        config = client.get_model_config("pool", "1")
        assert config["max_batch_size"] == 8 and config["input"][0]["dims"] == [-1, 8]
        assert [m["version"] for m in client.get_model_repository_index()] == ["1", "10"]
        arrays = feeds(2, 5)
        for version, expected in (("", "10"), ("1", "1")):
            result = client.infer("pool", tensors(["x", "shift"], arrays), version, request_id="7")
            assert result.get_response()["model_version"] == expected and result.get_response()["id"] == "7"
            np.testing.assert_array_equal(result.as_numpy("y"), pool(*arrays))
        stats = client.get_inference_statistics("pool", "10")["model_stats"][0]
        assert stats["inference_stats"]["success"]["count"] == 1 and stats["inference_count"] == 2
        text = get(address, "/metrics")[1].decode()
        assert 'ingot_requests_total{model="pool",outcome="success",version="1"} 1.0' in text
        assert json.loads(get(address, "/openapi.json")[1])["openapi"] == "3.1.0"


@pytest.mark.parametrize("binary", [True, False])
def test_each_dtype_keeps_its_values(binary: bool):
    model = compiled(typed())
    rng = np.random.default_rng(1)
    arrays = []
    for spec in model.inputs:
        dtype = numpy_dtype(spec.dtype)
        extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max] if dtype.kind in "iu" else [0, 1]
        arrays.append(np.concatenate([np.array(extremes, dtype), (rng.random(5) * 3).astype(dtype)]))
    names = [spec.name for spec in model.inputs]
    with served([serving("typed", model)]) as address, tritonclient.InferenceServerClient(address) as client:
        inputs = tensors(names, arrays, binary=True)
        if not binary:  # of f16 tritonclient sends no JSON
            body = {"inputs": [{**metadata(n, a), "data": a.tolist()} for n, a in zip(names, arrays, strict=True)]}
            status, answer = post(address, "/v2/models/typed/infer", json.dumps(body).encode())
            assert status == 200
            for output, array in zip(answer["outputs"], arrays, strict=True):
                assert output["data"] == array.tolist() and output["shape"] == [7]
            return
        result = client.infer("typed", inputs)
        for name, array in zip(names, arrays, strict=True):
            np.testing.assert_array_equal(result.as_numpy(f"{name}_out"), array)


def metadata(name: str, array: np.ndarray) -> dict:
    kinds = {"float32": "FP32", "float64": "FP64", "float16": "FP16"}
    return {"name": name, "shape": [*array.shape], "datatype": kinds.get(array.dtype.name, array.dtype.name.upper())}


def test_strings_pass_in_both_forms():
    with (
        served([serving("upper", compiled(upper()))]) as address,
        tritonclient.InferenceServerClient(address) as client,
    ):
        texts = np.array(["a", "", "größe", "x" * 300], object)
        expected = [t.upper() for t in texts]
        for binary in (True, False):
            requested_outputs = [tritonclient.InferRequestedOutput("u", binary_data=binary)]
            result = client.infer("upper", tensors(["t"], [texts], binary), outputs=requested_outputs).as_numpy("u")
            assert [t.decode() if isinstance(t, bytes) else t for t in result] == expected


def test_a_thousand_requests_of_mixed_lengths_have_the_bits_of_single_calls(pool):
    """Over 16 connections; some are joined."""
    model = serving("pool", pool, max_rows=16, delay=0.002, capacity=64)
    assert model.queueing.max_rows == 16
    cases = [(rows, length) for length in (1, 3, 7, 16) for rows in (1, 2, 5)]
    expected = {case: pool(*feeds(*case)) for case in cases}
    with served([model]) as address:

        def connection(worker: int) -> int:
            order = np.random.default_rng(worker).integers(0, len(cases), 63)
            with tritonclient.InferenceServerClient(address) as client:
                for case in (cases[i] for i in order):
                    result = client.infer("pool", tensors(["x", "shift"], feeds(*case)))
                    np.testing.assert_array_equal(result.as_numpy("y"), expected[case])
            return len(order)

        with ThreadPoolExecutor(16) as executor:
            assert sum(executor.map(connection, range(16))) == 1008
        assert model.counts["success"] == 1008
        assert model.counts["execution"] < 1008


def test_rows_that_depend_on_each_other_are_never_joined(caplog: pytest.LogCaptureFixture):
    coupled = compiled(centered())
    with caplog.at_level("INFO"):
        assert serving("c", coupled, max_rows=8).queueing.max_rows == 0
    assert "other bits than by itself" in caplog.text
    with pytest.raises(InputError, match="other bits than by itself"):
        ServedModel("c", "1", coupled, Queueing(max_rows=8), batch="batch")


X = {"name": "x", "shape": [1, 1, 8], "datatype": "FP32", "data": [0.0] * 8}
SHIFT = {"name": "shift", "shape": [1, 1], "datatype": "FP32", "data": [0.0]}
MALFORMED = {
    b"": "no JSON",
    b"[": "no JSON",
    b"\xff\xfe": "no JSON",
    b"[" * 100_000: "no JSON",
    b"[]": "the request",
    b'{"inputs": 3}': "inputs: expected a list",
    b'{"inputs": [1]}': "an input: expected an object",
    b'{"id": 3, "inputs": []}': "id: expected a string",
    b'{"inputs": []}': "none for",
}  # fmt: skip


@pytest.mark.parametrize(
    "change, message",
    [
        ({"data": [0.0] * 7}, "8 values"),
        ({"data": [[0.0] * 4, [0.0] * 3]}, "8 values"),
        ({"data": ["a"] * 8}, "values of FP32"),
        ({"data": [None] * 8}, "values of FP32"),
        ({"data": [1e39] + [0] * 7}, "what FP32 holds"),
        ({"data": [10**400] + [0] * 7}, "what FP32 holds"),
        ({"data": "text"}, "data: expected a list"),
        ({"shape": [1, 1, -8]}, "sizes >= 0"),
        ({"shape": [1, 1, 8.0]}, "sizes >= 0"),
        ({"shape": [8]}, r"expected \[-1, -1, 8\]"),
        ({"shape": [1, 1, 9]}, r"expected \[-1, -1, 8\]"),
        ({"datatype": "FP64"}, "expected FP32"),
        ({"name": "z"}, "an input's name"),
        ({"name": "shift"}, "shape"),
        ({"parameters": {"binary_data_size": 32}}, "binary_data_size"),
        ({"parameters": 5}, "parameters"),
        ({"parameters": {"shared_memory_region": "r"}}, "shared memory"),
    ],
)
def test_malformed_tensors_are_told_apart(pool, change: dict, message: str):
    from ingot.serving.protocol import parse

    body = json.dumps({"inputs": [X | change, SHIFT]}).encode()
    with pytest.raises(InputError, match=message) as error:
        parse(body, None, pool.inputs, pool.outputs)
    assert error.value.status == 400  # type: ignore[attr-defined]


def test_malformed_bodies_get_an_answer_and_leave_the_server_well(pool):
    with served([serving("pool", pool)], RequestLimits(body_bytes=1 << 20, seconds=5)) as address:
        path = "/v2/models/pool/infer"
        good = json.dumps({"inputs": [X, SHIFT]}).encode()
        for body, message in MALFORMED.items():
            status, answer = post(address, path, body)
            assert status == 400 and message in answer["error"], (body[:20], answer)
        nan = json.dumps({"inputs": [X | {"data": [float("nan")] * 8}, SHIFT]}).encode()
        assert post(address, path, nan)[0] == 400
        for header in ("0", "-1", "x", str(len(good) + 1), "9" * 30):
            assert post(address, path, good, {"Inference-Header-Content-Length": header})[0] == 400
        for outputs in (3, [3], [{"name": "q"}], [{"name": "y"}, {"name": "y"}]):
            assert post(address, path, json.dumps({"inputs": [X, SHIFT], "outputs": outputs}).encode())[0] == 400
        assert post(address, path, bytes(2 << 20))[0] == 413
        assert post(address, path, good, {"Content-Encoding": "gzip"})[0] == 415
        assert post(address, "/v2/models/none/infer", good)[0] == 404
        assert post(address, "/v2/models/pool/versions/3/infer", good)[0] == 404
        assert get(address, path)[0] == 405 and get(address, "/none")[0] == 404
        assert post(address, path, good)[0] == 200


def test_bodies_that_are_held_at_a_time_are_bounded(pool):
    slow = Slow(pool)
    body = json.dumps({"inputs": [X, SHIFT]}).encode()
    limits = RequestLimits(total_bytes=2 * len(body) + 10)
    model = serving("slow", slow)  # type: ignore[arg-type]
    with served([model], limits) as address, ThreadPoolExecutor(4) as executor:
        pending = [executor.submit(post, address, "/v2/models/slow/infer", body) for _ in range(2)]
        while slow.calls + model.waiting < 2:
            time.sleep(0.01)
        assert post(address, "/v2/models/slow/infer", body)[0] == 503
        slow.release.set()
        assert [f.result()[0] for f in pending] == [200, 200]
        assert post(address, "/v2/models/slow/infer", body)[0] == 200


def test_results_without_json_are_refused_by_name_and_pass_as_binary(pool):
    arrays = feeds(1, 2)
    arrays[1][:] = np.nan
    with served([serving("pool", pool)]) as address, tritonclient.InferenceServerClient(address) as client:
        assert np.isnan(client.infer("pool", tensors(["x", "shift"], arrays)).as_numpy("y")).all()
        outputs = [tritonclient.InferRequestedOutput("y", binary_data=False)]
        with pytest.raises(tritonclient.InferenceServerException, match="NaN or infinity"):
            client.infer("pool", tensors(["x", "shift"], arrays), outputs=outputs)


class Slow:
    """A model that answers when it is told to, and fails on negative numbers."""

    def __init__(self, model):
        self.inputs, self.outputs, self.refused, self.is_one_program = model.inputs, model.outputs, None, True
        self.program, self.model = model.program, model
        self.release, self.calls = threading.Event(), 0

    def run(self, inputs):
        self.calls += 1
        assert self.release.wait(20)
        if (inputs[1] < 0).any():
            raise ZeroDivisionError("secret")
        return self.model.run(inputs)


def test_a_full_queue_is_503_and_the_rest_is_answered(pool):
    slow = Slow(pool)
    model = serving("slow", slow, capacity=2)  # type: ignore[arg-type]
    body = json.dumps({"inputs": [X, SHIFT]}).encode()
    with served([model]) as address, ThreadPoolExecutor(8) as executor:
        first = executor.submit(post, address, "/v2/models/slow/infer", body)
        while not slow.calls:
            time.sleep(0.01)
        others = [executor.submit(post, address, "/v2/models/slow/infer", body) for _ in range(5)]
        while sum(other.done() for other in others) < 3:
            time.sleep(0.01)
        assert model.waiting == 2
        slow.release.set()
        codes = sorted(f.result()[0] for f in [first, *others])
        assert codes == [200, 200, 200, 503, 503, 503]


def test_a_killed_client_gives_up_its_place_and_a_slow_model_is_504(pool):
    slow = Slow(pool)
    model = serving("slow", slow, capacity=8)  # type: ignore[arg-type]
    body = json.dumps({"inputs": [X, SHIFT]}).encode()
    with served([model], RequestLimits(seconds=0.4)) as address:
        host, port = address.split(":")
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        clients = [socket.create_connection((host, int(port))) for _ in range(6)]
        for client in clients:
            client.sendall(head + body)
        while model.waiting < 5:
            time.sleep(0.01)
        for client in clients:
            client.close()
        status, answer = post(address, "/v2/models/slow/infer", body)
        assert status == 504 and "within 0.4 s" in answer["error"]
        stalled = socket.create_connection((host, int(port)))
        stalled.sendall(head + body[:10])  # and no more
        assert b" 408 " in stalled.recv(100)
        stalled.close()
        slow.release.set()
        assert post(address, "/v2/models/slow/infer", body)[0] == 200
    assert slow.calls == 2  # the first, which ran, and the last one


def test_a_model_that_fails_fails_its_own_request_alone(pool, caplog: pytest.LogCaptureFixture):
    slow = Slow(pool)
    model = ServedModel("slow", "1", pool, Queueing(max_rows=8, capacity=64))
    model._scheduler._run = slow.run  # type: ignore[attr-defined]
    bad = json.dumps({"inputs": [X, SHIFT | {"data": [-1.0]}]}).encode()
    good = json.dumps({"inputs": [X, SHIFT]}).encode()
    with served([model]) as address, ThreadPoolExecutor(9) as executor:
        first = executor.submit(post, address, "/v2/models/slow/infer", good)
        while not slow.calls:
            time.sleep(0.01)
        rest = [executor.submit(post, address, "/v2/models/slow/infer", b) for b in (bad, good, good, bad, good)]
        while model.waiting < 5:
            time.sleep(0.01)
        slow.release.set()
        assert [f.result()[0] for f in (first, *rest)] == [200, 500, 200, 200, 500, 200]
        assert "secret" not in rest[0].result()[1]["error"]
        assert slow.calls == 2 + 5
    assert len([r for r in caplog.records if "failed" in r.message and r.exc_info]) == 1
    assert model.counts["fail"] == 2 and model.counts["success"] == 4


def test_what_cannot_be_served_is_refused():
    model = compiled(pooled())
    with pytest.raises(InputError, match="each version once"):
        Repository([serving("a", model), serving("a", model)])
    counter = compiled(centered(), dynamic={"batch": 2}, state={"x": "y"})
    with pytest.raises(InputError, match="all clients would share it"):
        serving("c", counter)
