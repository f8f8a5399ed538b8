"""What the application of `ingot serve` adds to a request, and how it bears load.

    python -m benchmarks.serving latency                   beside an echo of the same server, by turns
    python -m benchmarks.serving load --seconds 600        good, malformed and generated requests, a failing model,
                                                           killed clients

latency: medians of one client on one connection, 384 floats in binary. load: every answer must be right or a clear
error; prints the answers by status, and the resident memory over time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import statistics
import threading
import time
from collections import Counter
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import ingot
from ingot import ops
from ingot.debug.build import build
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.runtime.executor import CompiledModel
from ingot.serving.application import RequestLimits, application
from ingot.serving.metrics import Metrics
from ingot.serving.protocol import BINARY_HEADER
from ingot.serving.repository import Repository, ServedModel
from ingot.serving.scheduler import Queueing
from ingot.serving.server import bind, serve, url_of
from ingot.support.errors import IngotError

WIDTH = 384
PATH = "/v2/models/model/infer"
CLIENTS = 8


def model() -> CompiledModel:
    """x[n, 384] -> -x"""
    x = Input("x", TensorType(f32, (symbol("n"), WIDTH)))()
    return build(Graph((x,), (ops.Neg()(x),), ("y",)), threads=1).model()


def started(app: Starlette) -> str:
    """HOST:PORT of a server in a thread of its own."""
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    threading.Thread(target=serve, args=(app, listener, lambda url: ready.set()), daemon=True).start()
    ready.wait()
    return url_of(listener).removeprefix("http://")


def served(capacity: int = 256) -> tuple[str, ServedModel]:
    found = ServedModel("model", "1", model(), Queueing(capacity, max_rows=16))
    return started(application(Repository([found]), RequestLimits(1 << 20, seconds=5), Metrics())), found


def ask(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    return response.status, response.read()


def latency(rounds: int) -> None:
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    addresses = {"echo": started(Starlette(routes=[Route("/", echo, methods=["POST"])])), "infer": served()[0]}
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": 4 * WIDTH}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body, headers = head + np.ones((1, WIDTH), np.float32).tobytes(), {BINARY_HEADER: str(len(head))}
    connections = {name: http.client.HTTPConnection(address) for name, address in addresses.items()}
    medians: dict[str, list[float]] = {name: [] for name in addresses}
    for _ in range(rounds):
        for name, connection in connections.items():
            seconds: list[float] = []
            for _ in range(300):
                begin = time.perf_counter()
                status, _ = ask(connection, "/" if name == "echo" else PATH, body, headers)
                seconds.append(time.perf_counter() - begin)
                assert status == 200
            medians[name].append(statistics.median(seconds) * 1e3)
    for echo_ms, infer_ms in zip(medians["echo"], medians["infer"], strict=True):
        print(f"echo {echo_ms:.3f} ms, infer {infer_ms:.3f} ms: {infer_ms - echo_ms:.3f} ms more")


class Fragile:
    """Fails where the first number is negative."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, inputs: Any) -> Any:
        if (inputs[0][:, 0] < 0).any():
            raise IngotError("a negative number")
        return self._run(inputs)


def fragile_server(address: Connection) -> None:
    """A server in this process, whose memory is its own, of a model that fails at times."""
    told, found = served(capacity=4)
    found._scheduler._run = Fragile(found.model.run)  # the rows are compared with the model that does not fail
    address.send(told)
    threading.Event().wait()


class Described:
    """Requests generated from the server's own description by schemathesis, valid ones and invalid ones."""

    def __init__(self, address: str, counts: Counter[str]) -> None:
        from schemathesis import openapi  # pyright: ignore[reportMissingImports]

        self._counts = counts
        operations = openapi.from_url(f"http://{address}/openapi.json").get_all_operations()
        self._operations = [found.ok() for found in operations]  # pyright: ignore[reportAttributeAccessIssue]

    def run(self, end: float, pause: float) -> None:
        """Until `end`, each operation in turn."""
        from hypothesis import HealthCheck, given, settings
        from hypothesis import strategies as st
        from schemathesis.checks import not_a_server_error  # pyright: ignore[reportMissingImports]
        from schemathesis.generation.modes import GenerationMode  # pyright: ignore[reportMissingImports]
        from schemathesis.specs.openapi import checks as openapi  # pyright: ignore[reportMissingImports]

        checks = [openapi.status_code_conformance, openapi.content_type_conformance,
                  openapi.response_schema_conformance]  # fmt: skip

        def ask(operation: Any) -> None:
            @settings(
                max_examples=20,
                deadline=None,
                database=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            )
            @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode)))
            def run(case: Any) -> None:
                if time.monotonic() < end:
                    is_infer = operation.path.endswith("/infer")  # whose model may fail, and whose queue may be full
                    response = case.call_and_validate(checks=checks if is_infer else [*checks, not_a_server_error])
                    self._counts[f"described {response.status_code}"] += 1
                    time.sleep(pause)

            run()

        while time.monotonic() < end:
            for operation in self._operations:
                ask(operation)


def load(seconds: float, rate: float | None) -> None:
    """rate: requests a second of each client; None: as many as it can."""
    pause = 0.0 if rate is None else 1 / rate
    ours, theirs = Pipe()
    server = get_context("spawn").Process(target=fragile_server, args=(theirs,), daemon=True)
    server.start()
    address = ours.recv()
    end, counts, resident = time.monotonic() + seconds, Counter[str](), list[int]()

    def request(first: float) -> bytes:
        tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [first] + [2.0] * (WIDTH - 1)}
        return json.dumps({"inputs": [tensor]}).encode()

    def client(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < end:
            time.sleep(pause)
            kind = chance.choices(("good", "fails", "malformed", "large", "killed"), (50, 15, 15, 2, 18))[0]
            body = {"good": request(1.0), "fails": request(-1.0), "large": bytes(2 << 20)}.get(kind, request(1.0))
            if kind == "malformed":
                body = chance.randbytes(chance.randrange(200))
            if kind == "killed":
                with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as gone:
                    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                    gone.sendall(head.encode() + body[: chance.randrange(len(body) + 1)])
                counts[kind] += 1
                continue
            connection = http.client.HTTPConnection(address, timeout=30)
            status, answer = ask(connection, PATH, body, {})
            connection.close()
            counts[f"{kind} {status}"] += 1
            allowed = {"good": (200, 503), "fails": (500, 503), "malformed": (400,), "large": (413,)}[kind]
            assert status in allowed, (kind, status, answer[:200])
            said = json.loads(answer)
            assert said["outputs"][0]["data"] == [-1.0] + [-2.0] * (WIDTH - 1) if status == 200 else said["error"]

    wrong: list[BaseException] = []
    threading.excepthook = lambda args: wrong.append(args.exc_value or AssertionError())
    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(CLIENTS)]
    threads.append(threading.Thread(target=Described(address, counts).run, args=(end, pause)))
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(seconds / 10)
        resident.append(int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096 >> 20)
    for error in wrong:
        raise error
    print(json.dumps(dict(sorted(counts.items()))))
    print("the server's resident MiB:", *resident)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["latency", "load"])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, help="requests a second of each client of the load")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"ingot {ingot.__version__}")
    if args.what == "latency":
        latency(args.rounds)
    else:
        load(args.seconds, args.rate)


if __name__ == "__main__":
    main()
