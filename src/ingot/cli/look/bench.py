"""`ingot bench`: compare a model's speed with other engines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ingot.api.language_model import LanguageModel
from ingot.bench import run as benching
from ingot.bench.language import pace
from ingot.cli.console import FAILED, UNSUPPORTED, command_context, err, escape, out, plain_table, print_json
from ingot.cli.options import Feeds, Json, Limit, Model, Precision, Sizes, Target, Threads
from ingot.cli.sizes import inputs_of
from ingot.debug.drawing import time_text
from ingot.debug.feeds import Feeds as Arrays
from ingot.debug.feeds import read_feeds
from ingot.debug.source import compile_source, open_source, runnable
from ingot.driver.compile import check_runs
from ingot.driver.recognize import LANGUAGE
from ingot.support import progress, timing

PROMPT, TOKENS = 128, 64  # of a language model
# the default engines for each kind of model
DEFAULT_ENGINES = {
    "onnx": "ort", "torch": "eager", "stablehlo": "", "tensorflow": "", "tflite": "", "torchscript": "", "keras": "",
    "artifact": "",
}  # fmt: skip


def bench(
    model: Model,
    against: Annotated[
        str | None,
        typer.Option(help="Engines, separated by commas: ort, openvino, eager, inductor; default: ort, .pt2: eager."),
    ] = None,
    threads: Threads = None,
    precision: Precision = "float32",
    target: Target = "native",
    feed: Feeds = None,
    size: Sizes = None,
    rounds: Annotated[int, typer.Option(min=1, help="Bursts of each engine.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of a burst.")] = timing.BURST_SECONDS,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Time the model in Ingot and in other engines, each in its own process, in short alternating bursts.

    A ratio above 1 means that Ingot is faster.

    Of a language model: how many tokens a second it reads and writes.

    ort (ONNX Runtime) and openvino need an ONNX file, eager and inductor (PyTorch) a .pt2 file.

    \b
    ingot bench model.onnx --against ort,openvino --threads 2
    ingot bench model.pt2 --against inductor,eager --size batch=8
    ingot bench model.pt2 --against inductor,eager --target cuda:sm_90a
    """
    with command_context(as_json, limit):
        source = open_source(model)
        if source.kind in LANGUAGE:
            _bench_language(model, threads, precision, target, rounds, as_json)
            return
        names = benching.engines(DEFAULT_ENGINES[source.kind] if against is None else against)
        if source.kind != "artifact":
            check_runs(target)
        compiled = runnable(compile_source(source, threads=threads, cache=True, precision=precision, target=target))
        feeds = inputs_of(source, compiled.program, size, 0, read_feeds(compiled.program, feed or []))
        results = benching.bench(model, names, feeds, compiled.threads, rounds, seconds, precision, target)
    failed = [r for r in results if r.failed]
    if as_json:
        shapes = {name: list(array.shape) for name, array in feeds.items()}
        facts = {"model": str(model), "threads": compiled.threads, "inputs": shapes}
        print_json(facts | {"results": [asdict(r) for r in results]})
    else:
        _print_bench(results, feeds, compiled.threads)
    if failed:
        raise typer.Exit(FAILED if failed[0].engine == "ingot" else UNSUPPORTED)


def _bench_language(model: Path, threads: int | None, precision: str, target: str, rounds: int, as_json: bool) -> None:
    start = time.perf_counter()
    lm = LanguageModel(model, threads=threads, precision=precision, target=target)
    seconds = time.perf_counter() - start
    progress.report("measure")
    result = pace(lm, PROMPT, TOKENS, rounds)
    if as_json:
        print_json({"model": str(model), "threads": lm.threads, "start_seconds": seconds, **asdict(result)})
        return
    out.print(f"{lm.threads} threads; started in {time_text(seconds)}", highlight=False)
    out.print(f"reads  {result.read:8.1f} tokens a second, of a prompt of {result.prompt}", highlight=False)
    out.print(f"writes {result.written:8.1f} tokens a second, {result.tokens} of them", highlight=False)


def _print_bench(results: Sequence[benching.Result], feeds: Arrays, threads: int) -> None:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
    out.print(f"{threads} threads; {escape(shapes)}", highlight=False)
    heads = ("engine", "median", "best", "ingot is faster by", "compile", "first call", "error")
    table = plain_table(*heads, left=("engine",))
    for r in results:
        if r.seconds is None:
            continue
        table.add_row(
            r.engine,
            time_text(r.seconds),
            "" if r.best is None else time_text(r.best),
            "" if r.ratio is None else f"[{'green' if r.ratio >= 1 else 'red'}]{r.ratio:.2f}x[/]",
            "" if r.compile_seconds is None else time_text(r.compile_seconds),
            "" if r.first_seconds is None else time_text(r.first_seconds),
            "" if r.error is None else f"{r.error:.1e}",
        )
    out.print(table)
    for r in results:
        if r.failed:
            err.print(f"[bold red]{r.engine}:[/] {escape(r.failed)}", highlight=False)
