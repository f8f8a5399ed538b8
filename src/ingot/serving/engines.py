"""The servers that `ingot serve` starts: the application on uvicorn, Triton's server, or Ray Serve."""

from __future__ import annotations

import ipaddress
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import ingot
from ingot.serving.service import Service
from ingot.support.errors import DeviceError, InputError

# engine -> (its extra, the packages of this extra)
ENGINES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "asgi": ("serve", ("starlette", "uvicorn", "prometheus_client", "pydantic")),
    "triton": ("", ()),
    "ray": ("ray", ("ray",)),
}
Ready = Callable[[str], None]


def check_installed(engine: str) -> None:
    """Raise InputError for an unknown engine, DeviceError for one that is not installed."""
    if engine not in ENGINES:
        raise InputError("--engine", expected=f"one of {', '.join(ENGINES)}", got=engine)
    extra, packages = ENGINES[engine]
    if missing := [name for name in packages if find_spec(name) is None]:
        raise DeviceError(f"engine {engine}", expected=", ".join(packages), got=f"no {', '.join(missing)}",
                          fix=f"pip install 'ingot-compiler[{extra}]'")  # fmt: skip


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def start(engine: str, service: Service, ready: Ready) -> None:
    """Serve until interrupted. ready: called with the URL when requests are answered."""
    check_installed(engine)
    _check_supported(engine, service)
    {"asgi": _asgi, "triton": _triton, "ray": _ray}[engine](service, ready)


def write(destination: str, service: Service) -> list[Path]:
    """Write an engine's files: "triton:FOLDER" a model repository. Returns the folders of the models."""
    engine, _, path = destination.partition(":")
    if engine != "triton" or not path:
        raise InputError("--to", expected="triton:FOLDER", got=destination)
    _check_supported(engine, service)
    return _write_triton(Path(path), service)


def _check_supported(engine: str, service: Service) -> None:
    """Raise InputError for features that only the application has."""
    if engine == "asgi":
        return
    if service.language_models:
        names = [model.name for model in service.language_models]
        raise InputError(f"engine {engine}", expected="no language models", got=names, fix="use --engine asgi")
    if service.api_key is not None:
        raise InputError(f"engine {engine}", expected="no --api-key", got="one", fix="put a proxy before it")


def _asgi(service: Service, ready: Ready) -> None:
    from ingot.serving.application import RequestLimits, application
    from ingot.serving.metrics import Metrics
    from ingot.serving.openai.authentication import KeyRequired
    from ingot.serving.openai.model import LanguageModels, ServedLanguageModel
    from ingot.serving.openai.routes import routes
    from ingot.serving.repository import Repository, ServedModel
    from ingot.serving.server import bind, serve

    metrics = Metrics()
    listener = bind(service.host, service.port)  # before the models are loaded, as the port may be in use
    models = [
        ServedModel(
            m.name,
            m.version,
            m.model,
            service.queueing,
            batch=service.batch,
            observe=metrics.observer(m.name, m.version),
        )
        for m in service.models
    ]
    language_models = LanguageModels(
        [ServedLanguageModel(m.name, m.model, queue=service.queueing.capacity) for m in service.language_models]
    )
    limits = RequestLimits(service.body_bytes, seconds=service.seconds)
    language_routes = routes(language_models, limits, metrics)
    app = application(Repository(models), limits, metrics, language_routes, language_models.close)
    serve(app if service.api_key is None else KeyRequired(app, service.api_key), listener, ready)


def _write_triton(folder: Path, service: Service, source: Path | None = None) -> list[Path]:
    from ingot.serving.triton import write_model

    options = {"batch": service.batch, "timeout": service.seconds, "source": source}
    return [write_model(folder, m.name, m.version, m.model, service.queueing, **options) for m in service.models]


def _triton(service: Service, ready: Ready) -> None:
    from ingot.serving.triton import find_triton, run

    triton = find_triton()
    with tempfile.TemporaryDirectory(prefix="ingot-triton-") as folder:
        _write_triton(Path(folder), service, Path(ingot.__file__).parents[1])
        run(triton, Path(folder), service.host, service.port, ready)


def _ray(service: Service, ready: Ready) -> None:
    from ingot.serving.ray import serve

    with tempfile.TemporaryDirectory(prefix="ingot-ray-") as folder:
        serve(service, Path(folder), ready)
