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
from ingot.cli.options import Json, Limit, Model, Precision, Sizes, Target, Threads
from ingot.cli.sizes import inputs_of
from ingot.debug.drawing import time_text
from ingot.debug.feeds import Feeds
from ingot.debug.source import compile_source, open_source, runnable
from ingot.driver.compile import check_runs
from ingot.driver.recognize import LANGUAGE
from ingot.support import progress, timing
from ingot.support.errors import InputError

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
    size: Sizes = None,
    rounds: Annotated[int, typer.Option(min=1, help="Bursts of each engine.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of a burst.")] = timing.BURST_SECONDS,
    energy: Annotated[bool, typer.Option("--energy", help="Joules of a call, by this machine's counters.")] = False,
    price: Annotated[
        float | None, typer.Option("--price", min=0, help="Of a kWh: what a million calls cost, with --energy.")
    ] = None,
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
    ingot bench model.onnx --energy --price 0.30
    """
    with command_context(as_json, limit):
        source = open_source(model)
        if price is not None and not energy:
            raise InputError("--price", expected="--energy, too", got="a price alone")
        if source.kind in LANGUAGE:
            if energy:
                raise InputError("--energy", expected="a model with one call", got="a language model")
            _bench_language(model, threads, precision, target, rounds, as_json)
            return
        names = benching.engines(DEFAULT_ENGINES[source.kind] if against is None else against)
        if source.kind != "artifact":
            check_runs(target)
        compiled = runnable(compile_source(source, threads=threads, cache=True, precision=precision, target=target))
        feeds = inputs_of(source, compiled.program, size, 0)
        results = benching.bench(model, names, feeds, compiled.threads, rounds, seconds, precision, target, energy)
    failed = [r for r in results if r.failed]
    if as_json:
        shapes = {name: list(array.shape) for name, array in feeds.items()}
        facts = {"model": str(model), "threads": compiled.threads, "inputs": shapes}
        print_json(facts | {"results": [asdict(r) | _energy_facts(r, price) for r in results]})
    else:
        _print_bench(results, feeds, compiled.threads)
        _print_energy(results, price)
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


def _energy_facts(result: benching.Result, price: float | None) -> dict[str, object]:
    if result.energy is None:
        return {}
    cost = None if price is None else result.energy.cost_of_million(price)
    return {"joules": result.energy.joules, "cost_of_million_calls": cost}


def _print_energy(results: Sequence[benching.Result], price: float | None) -> None:
    for r in results:
        if r.energy is None:
            continue
        named = f"{r.engine} " if r.energy.counters else ""
        out.print(escape(f"{named}{r.energy}"), highlight=False)
        if price is not None and (cost := r.energy.cost_of_million(price)) is not None:
            out.print(f"  a million calls cost {cost:.4g} at {price:g} a kWh", highlight=False)
        if not r.energy.counters:
            return  # true of all


def _print_bench(results: Sequence[benching.Result], feeds: Feeds, threads: int) -> None:
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
