"""`ingot serve`: models behind a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingot.api.language_model import LanguageModel
from ingot.cli.console import command_context, err, escape, out, print_json
from ingot.cli.language.options import (
    Adapters,
    Cache,
    CacheMemory,
    Context,
    Sequences,
    Template,
    is_language_model,
    open_language_model,
)
from ingot.cli.options import CompileOptions, Json, Limit, ModelOptions, grouped
from ingot.debug.source import compile_source, open_source, runnable
from ingot.driver.open import file_kind
from ingot.serving.engines import ENGINES, check_installed, is_loopback, start, write
from ingot.serving.repository import model_files
from ingot.serving.scheduler import Queueing
from ingot.serving.service import NamedLanguageModel, NamedModel, Service
from ingot.support import progress
from ingot.support.errors import InputError

_MIB = 1 << 20
_TIMEOUT_SECONDS, _LANGUAGE_TIMEOUT_SECONDS = 60, 600
_SEQUENCES = 8  # of a language model at a time


@grouped
def serve(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Files of models, .ingot files, or folders NAME/VERSION/model.*"),
    ],
    engine: Annotated[str, typer.Option(help=f"{', '.join(ENGINES)}: what serves.")] = "asgi",
    to: Annotated[
        str | None, typer.Option(metavar="triton:FOLDER", help="Write the engine's files, and start nothing.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model's name; by default its file's stem.")] = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="The version of models given as files; by default 1.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    batch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The open size along which requests are joined; 'none': never join them."),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, max=4096, help="The most rows of a joint call.")] = 16,
    delay: Annotated[
        float, typer.Option(min=0, max=1000, metavar="MS", help="How long a request waits for others.")
    ] = 0,
    queue: Annotated[int, typer.Option(min=1, max=1_000_000, help="Requests that may wait; more get 503.")] = 256,
    instances: Annotated[int, typer.Option(min=1, max=256, help="Calls of a model at a time.")] = 1,
    max_body: Annotated[float, typer.Option(min=0.001, metavar="MIB", help="The largest body of a request.")] = 64,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help=f"The most time of a request; by default {_TIMEOUT_SECONDS}, of language models "
            f"{_LANGUAGE_TIMEOUT_SECONDS}.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="INGOT_API_KEY",
            show_envvar=True,
            help="Refuse requests without it. The environment hides it from other users of this machine.",
        ),
    ] = None,
    sequences: Sequences = None,
    cache_memory: CacheMemory = None,
    context: Context = None,
    cache: Cache = "float16",
    adapter: Adapters = None,
    template: Template = None,
    *,
    about: ModelOptions,
    settings: CompileOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Serve models over HTTP, on this machine's loopback unless told.

    Models have the routes of the Open Inference Protocol (KServe V2), language models those of OpenAI.

    Requests that wait for the same model are joined along its batch where each row then has the bits of a single call.

    \b
    ingot serve model.onnx                          http://127.0.0.1:8000/v2/models/model/infer
    ingot serve a.ingot b.onnx --port 9000          two models; /metrics and /openapi.json beside them
    ingot serve model.onnx --to triton:repository   a repository of models for NVIDIA Triton
    ingot serve repository                          the same folder, by Ingot itself
    ingot serve model.onnx --engine ray             on Ray Serve
    ingot serve model.gguf --api-key KEY            http://127.0.0.1:8000/v1/chat/completions
    """
    with command_context(as_json, limit):
        if to is None:
            check_installed(engine)
        files = model_files(models, name, version)
        if adapter and (len(files) != 1 or not is_language_model(files[0][2])):
            expected, got = "one language model, into which they are merged", f"{len(files)} models"
            got = got if len(files) != 1 else f"{files[0][2]}, which is none"
            raise InputError("--adapter", expected=expected, got=got)
        served: list[NamedModel] = []
        language_models: list[NamedLanguageModel] = []
        for done, (label, number, path) in enumerate(files):
            progress.report(f"compile {label}", done, len(files))
            if is_language_model(path):
                lm = _language_model(path, context, cache, settings, template, sequences, cache_memory, adapter)
                language_models.append(NamedLanguageModel(label, lm))
                continue
            model = runnable(compile_source(open_source(path, about.words), cache=True, **vars(settings)))
            served.append(NamedModel(label, number, model))
        join = "" if batch == "none" else batch
        queueing = Queueing(queue, max_batch if max_batch > 1 else 0, delay / 1e3, instances)
        seconds = (_LANGUAGE_TIMEOUT_SECONDS if language_models else _TIMEOUT_SECONDS) if timeout is None else timeout
        service = Service(
            served, host, port, queueing, join, int(max_body * _MIB), seconds, language_models, api_key or None
        )
        if to is not None:
            folders = write(to, service)
            if as_json:
                print_json({"models": [str(folder) for folder in folders]})
            else:
                out.print(*(f"[bold]{escape(str(folder))}[/]" for folder in folders), sep="\n", highlight=False)
            return
        if not is_loopback(host) and service.api_key is None:
            err.print(f"[yellow]warning:[/] {escape(host)} is reachable by others: there is no --api-key")

        def ready(url: str) -> None:
            progress.report("serve")
            if as_json:
                names = [[m.name, m.version] for m in served]
                spoken = [m.name for m in language_models]
                print_json({"url": url, "engine": engine, "models": names, "language_models": spoken})
            else:
                for m in served:
                    out.print(
                        f"{escape(m.name)} {m.version}  {url}/v2/models/{m.name}/versions/{m.version}/infer",
                        highlight=False,
                    )
                for m in language_models:
                    out.print(f"{escape(m.name)}  {url}/v1", highlight=False)
            out.file.flush()

        start(engine, service, ready)


def _language_model(
    path: Path,
    context: int | None,
    cache: str,
    settings: CompileOptions,
    template: Path | None,
    sequences: int | None,
    cache_memory: float | None,
    adapters: list[str] | None,
) -> LanguageModel:
    """A compiled one has its number of sequences. adapters: merged into the model."""
    is_compiled = file_kind(path) == "artifact"
    if is_compiled and (sequences, cache_memory) != (None, None):
        fix = "ingot compile MODEL --sequences 16"
        raise InputError(f"{path} is compiled: its sequences are settled", fix=fix)
    count = None if is_compiled else sequences or _SEQUENCES
    cache_bytes = None if cache_memory is None else int(cache_memory * _MIB)
    return open_language_model(
        path, context, cache, settings.activations, settings.threads, template, count, cache_bytes, adapters,
        settings.target, settings.precision,
    )  # fmt: skip
