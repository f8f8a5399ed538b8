"""The ASGI application: the Open Inference Protocol's routes, health, metrics, and an OpenAPI page.

Further routes (those of language models) are part of the same application, and handle bodies and errors in the same
way: `application(repository, limits, metrics, routes=[Route("/v1/...", endpoint)])` with `body_of` in their endpoints.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ingot import __version__
from ingot.serving import openapi, protocol
from ingot.serving.configuration import configuration
from ingot.serving.errors import RequestError
from ingot.serving.metrics import Metrics
from ingot.serving.repository import Repository, ServedModel
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError, InputError

SERVER = "ingot"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]
_LARGE_BYTES = 1 << 17  # larger bodies are processed on a thread: their JSON takes more than a millisecond
_LOG_SECONDS = 1.0  # between two messages about the same kind of failure
_DRAINED_BYTES = 8 << 20  # of a body beyond the limit that are read and dropped
Result = TypeVar("Result")
_logger = logging.getLogger("ingot.serving")


@dataclass(frozen=True)
class RequestLimits:
    """body_bytes: the limit of a request. total_bytes: of all bodies that are being read or waiting for an answer.
    seconds: to send a request, and to compute its answer."""

    body_bytes: int = 64 << 20
    total_bytes: int = 1 << 30
    seconds: float = 60.0


def application(
    repository: Repository,
    limits: RequestLimits,
    metrics: Metrics,
    routes: Sequence[BaseRoute] = (),
    close: Callable[[], None] = lambda: None,
) -> Starlette:
    """The application. routes: further ones, before those of the protocol. close: frees the resources of these routes
    when the server shuts down; the models are closed as well."""
    page = openapi.page([*repository], SERVER)
    endpoints = _Endpoints(repository, limits, metrics)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(repository.close)
        await asyncio.to_thread(close)

    get, post = ["GET"], ["POST"]
    protocol_routes = [
        Route("/v2", endpoints.server, methods=get),
        Route("/v2/health/live", endpoints.live, methods=get),
        Route("/v2/health/ready", endpoints.live, methods=get),
        Route("/v2/models/stats", endpoints.statistics, methods=get),
        Route("/v2/repository/index", endpoints.index, methods=post),
        Route("/metrics", endpoints.metrics_page, methods=get),
        Route("/openapi.json", lambda _: JSONResponse(page), methods=get),
    ]
    for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        protocol_routes += [
            Route(prefix, endpoints.metadata, methods=get),
            Route(f"{prefix}/ready", endpoints.ready, methods=get),
            Route(f"{prefix}/config", endpoints.config, methods=get),
            Route(f"{prefix}/stats", endpoints.statistics, methods=get),
            Route(f"{prefix}/infer", endpoints.infer, methods=post),
        ]
    handlers: Any = {
        IngotError: _refusal, HTTPException: _http_error, ClientDisconnect: _goodbye, Exception: _failure
    }  # fmt: skip
    app = Starlette(routes=[*routes, *protocol_routes], exception_handlers=handlers, lifespan=lifespan)
    app.state.held_bytes, app.state.failures = 0, {}
    return app


class _Endpoints:
    def __init__(self, repository: Repository, limits: RequestLimits, metrics: Metrics) -> None:
        self._repository, self._limits, self._metrics = repository, limits, metrics

    async def server(self, request: Request) -> Response:
        return JSONResponse({"name": SERVER, "version": __version__, "extensions": EXTENSIONS})

    async def live(self, request: Request) -> Response:
        return JSONResponse({"live": True, "ready": True})

    async def ready(self, request: Request) -> Response:
        return JSONResponse({"name": self._model(request).name, "ready": True})

    async def metadata(self, request: Request) -> Response:
        model = self._model(request)
        return JSONResponse(
            {
                "name": model.name,
                "versions": self._repository.versions(model.name),
                "platform": SERVER,
                "inputs": [protocol.metadata(spec) for spec in model.inputs],
                "outputs": [protocol.metadata(spec) for spec in model.outputs],
            }
        )

    async def config(self, request: Request) -> Response:
        model = self._model(request)
        return JSONResponse(configuration(model.name, model.inputs, model.outputs, model.queueing))

    async def index(self, request: Request) -> Response:
        return JSONResponse([{"name": m.name, "version": m.version, "state": "READY"} for m in self._repository])

    async def statistics(self, request: Request) -> Response:
        one = [self._model(request)] if "name" in request.path_params else self._repository
        return JSONResponse({"model_stats": [_statistics(model) for model in one]})

    async def metrics_page(self, request: Request) -> Response:
        return Response(self._metrics.text(self._repository), media_type=self._metrics.media_type)

    async def infer(self, request: Request) -> Response:
        model = self._model(request)
        with self._metrics.request(model.name, model.version) as outcome:
            try:
                response = await self._infer(request, model)
                model.counts["success"] += 1
                outcome.is_success = True
            except (IngotError, ClientDisconnect):
                model.counts["fail"] += 1
                raise
            except Exception as error:  # Starlette would raise it again for the server's log
                model.counts["fail"] += 1
                response = await _failure(request, error)
            return response

    async def _infer(self, request: Request, model: ServedModel) -> Response:
        async with body_of(request, self._limits) as body:
            json_bytes = _json_bytes(request)
            parsed = await _worked(len(body), protocol.parse, body, json_bytes, model.inputs, model.outputs)
            results = await answer(request, asyncio.wrap_future(model.submit(parsed.inputs)), self._limits)
        large = sum(getattr(r, "nbytes", 0) for r in results)
        payload, head = await _worked(
            large, protocol.response, parsed, model.name, model.version, model.outputs, results
        )
        if head is None:
            return Response(payload, media_type="application/json")
        return Response(payload, headers={protocol.BINARY_HEADER: str(head)}, media_type="application/octet-stream")

    def _model(self, request: Request) -> ServedModel:
        return self._repository.find(request.path_params["name"], request.path_params.get("version"))


@asynccontextmanager
async def body_of(request: Request, limits: RequestLimits) -> AsyncIterator[bytes]:
    """The body of a request, which counts towards `total_bytes` until the block ends.

    Raises RequestError: 413 for one that is too large, 408 for one that takes too long, 415 for a compressed one, and
    503 if all requests together exceed `total_bytes`.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise RequestError(415, "the body", expected="no Content-Encoding", got=encoding[:100])
    parts: list[bytes] = []
    total = held_bytes = 0
    state = request.app.state
    try:
        try:
            async with asyncio.timeout(limits.seconds):
                async for part in request.stream():
                    total += len(part)
                    if total > limits.body_bytes + _DRAINED_BYTES:
                        break
                    if total > limits.body_bytes:
                        continue
                    if state.held_bytes + len(part) > limits.total_bytes:
                        raise RequestError(503, "too many large requests at a time", fix="try again later")
                    state.held_bytes += len(part)
                    held_bytes += len(part)
                    parts.append(part)
        except TimeoutError as error:
            raise RequestError(408, "the body", expected=f"within {limits.seconds} s", got=f"{total} bytes") from error
        if (
            total > limits.body_bytes
        ):  # after most of it was read: a client that is still sending does not read the answer
            raise RequestError(413, "the body", expected=f"at most {limits.body_bytes} bytes", got="more")
        yield b"".join(parts)
    finally:
        state.held_bytes -= held_bytes


async def answer(request: Request, work: Awaitable[Result], limits: RequestLimits) -> Result:
    """The result of `work`, which is cancelled when the client disconnects or time is up. Raises ClientDisconnect, or
    RequestError (504)."""
    result = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({result, disconnect}, timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        if disconnect.done():
            raise ClientDisconnect
        raise RequestError(504, "the model", expected=f"an answer within {limits.seconds} s", got="none yet")
    finally:
        result.cancel()
        disconnect.cancel()


async def _worked(nbytes: int, function: Callable[..., Result], *args: Any) -> Result:
    """The result of a function, on a thread if it works on many bytes."""
    return function(*args) if nbytes < _LARGE_BYTES else await asyncio.to_thread(function, *args)


def _json_bytes(request: Request) -> int | None:
    text = request.headers.get(protocol.BINARY_HEADER)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise RequestError(400, protocol.BINARY_HEADER, expected="a number of bytes", got=repr(text[:50]))
    return int(text)


def _statistics(model: ServedModel) -> dict[str, Any]:
    """A model's counts, in the format of Triton's statistics extension."""
    counts = model.counts
    compute = {"count": counts["execution"], "ns": int(model.seconds * 1e9)}
    return {
        "name": model.name,
        "version": model.version,
        "inference_count": counts["rows"],
        "execution_count": counts["execution"],
        "inference_stats": {
            "success": {"count": counts["success"]}, "fail": {"count": counts["fail"]}, "compute_infer": compute
        },
    }  # fmt: skip


async def _refusal(request: Request, error: Exception) -> Response:
    """Ingot's errors: those about arguments are the client's, all others the server's."""
    status = error.status if isinstance(error, RequestError) else 400 if isinstance(error, InputError) else 500
    # the rest of an unread body must not be taken for the next request
    headers = {"Connection": "close"} if status in (408, 413, 415, 503) else None
    return JSONResponse({"error": str(error)}, status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _goodbye(request: Request, error: Exception) -> Response:
    """The response to a client that has disconnected, which is never read."""
    return Response(status_code=499)


async def _failure(request: Request, error: Exception) -> Response:
    """The client only sees the kind of an unexpected error. It is logged at most once a second, as a failing model
    would otherwise log a traceback for each request."""
    kind = type(error).__name__
    state, now = request.app.state, time.monotonic()
    if now - state.failures.get(kind, -_LOG_SECONDS) >= _LOG_SECONDS:
        state.failures[kind] = now
        _logger.error("%s failed", request.url.path, exc_info=error)
    return JSONResponse({"error": f"the server failed: {kind}; its log says more"}, 500)
