"""`ingot bench`: compare a model's speed with other engines."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from csv import DictWriter
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ingot.api.language_model import LanguageModel
from ingot.bench import run as benching
from ingot.bench.engines import Job
from ingot.bench.language import energy_of_joint_tokens, energy_of_tokens, joint_pace, pace
from ingot.cli.console import (
    FAILED,
    UNSUPPORTED,
    check_writable,
    command_context,
    err,
    escape,
    out,
    plain_table,
    print_json,
)
from ingot.cli.options import (
    Activations,
    Feeds,
    Json,
    Limit,
    Model,
    ModelOptions,
    Precision,
    Sizes,
    Target,
    Threads,
    grouped,
)
from ingot.cli.sizes import inputs_of
from ingot.debug.drawing import time_text
from ingot.debug.feeds import Feeds as Arrays
from ingot.debug.feeds import read_feeds
from ingot.debug.source import compile_source, open_source, runnable
from ingot.driver.compile import check_runs
from ingot.driver.recognize import LANGUAGE
from ingot.runtime.cpu.pool import threads_text
from ingot.runtime.device import energy_counters
from ingot.support import progress, timing
from ingot.support.energy.counters import EnergyCounters
from ingot.support.energy.measure import Energy
from ingot.support.errors import InputError
from ingot.support.files import atomic_write

PROMPT, TOKENS = 128, 64  # of a language model
# the default engines for each kind of model
DEFAULT_ENGINES = {
    "onnx": "ort", "torch": "eager", "stablehlo": "jax", "tensorflow": "", "tflite": "tflite", "torchscript": "",
    "keras": "", "artifact": "", "jax": "",
}  # fmt: skip


@grouped
def bench(
    model: Model,
    against: Annotated[
        str | None,
        typer.Option(
            help="Engines, separated by commas: ort, openvino, eager, inductor, tflite, jax, tensorrt; "
            "default: the model's own framework."
        ),
    ] = None,
    threads: Threads = None,
    precision: Precision = "float32",
    activations: Activations = "float32",
    target: Target = "native",
    feed: Feeds = None,
    size: Sizes = None,
    streams: Annotated[
        int, typer.Option(min=1, max=256, help="Calls at a time, which share the threads; of a language model answers.")
    ] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Bursts of each engine.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of a burst.")] = timing.BURST_SECONDS,
    warm_up: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Calls before the first burst.")] = 0.0,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table, times in seconds.")] = None,
    energy: Annotated[bool, typer.Option("--energy", help="Joules of a call or a token, by counters.")] = False,
    price: Annotated[
        float | None,
        typer.Option("--price", min=0, help="Of a kWh: what a million of them cost, with --energy."),
    ] = None,
    *,
    about: ModelOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Time the model in Ingot and in other engines, each in its own process, in short alternating bursts.

    A ratio above 1 means that Ingot is faster.

    Of a language model: how many tokens a second it reads and writes.

    ort (ONNX Runtime) and openvino need an ONNX file, eager and inductor (PyTorch) a .pt2 file, tflite a TFLite file,
    jax a StableHLO file, tensorrt an ONNX file and an NVIDIA GPU.

    \b
    ingot bench model.onnx --against ort,openvino --threads 2
    ingot bench model.onnx --streams 2 --warm-up 1 --csv figures.csv
    ingot bench model.onnx --dim batch=8 --input image=images.npy
    ingot bench model.pt2 --against inductor,eager --size batch=8
    ingot bench model.pt2 --against inductor,eager --target cuda:sm_90a
    ingot bench model.onnx --against tensorrt --target cuda:sm_90a
    ingot bench model.onnx --energy --price 0.30
    """
    with command_context(as_json, limit):
        source = open_source(model, about.words)
        check_writable([csv], [model])
        if price is not None and not energy:
            raise InputError("--price", expected="--energy, too", got="a price alone")
        if source.kind in LANGUAGE:
            options = {"--against": against, "--input": feed, "--size": size, "--csv": csv}
            if refused := [name for name, value in options.items() if value is not None]:
                raise InputError(", ".join(refused), expected="none for a language model", got="a value")
            settings = {"threads": threads, "precision": precision, "activations": activations, "target": target}
            lm = partial(LanguageModel, **settings, sequences=streams if streams > 1 else None)
            counters = energy_counters({target.partition(":")[0]}) if energy else None
            _bench_language(model, lm, rounds, streams, counters, price, as_json)
            return
        if activations != "float32":
            raise InputError("--activations", expected="a language model", got=model.name)
        is_onnx_on_gpu = source.kind == "onnx" and target.partition(":")[0] == "cuda"
        default = "tensorrt" if is_onnx_on_gpu else DEFAULT_ENGINES[source.kind]
        names = benching.engines(default if against is None else against)
        if source.kind != "artifact":
            check_runs(target)
        compiled = runnable(compile_source(source, threads=threads, cache=True, precision=precision, target=target))
        feeds = inputs_of(source, compiled.program, size, 0, read_feeds(compiled.program, feed or []))
        job = Job(compiled.threads, precision, target, streams, warm_up, about.words)
        results = benching.bench(model, names, feeds, job, rounds, seconds, energy)
        if csv is not None:
            atomic_write(csv, [_csv(results).encode()])
    # an engine that nobody asked for may be missing
    failed = [r for r in results if r.failure and (against is not None or r.engine == "ingot")]
    if as_json:
        shapes = {name: list(array.shape) for name, array in feeds.items()}
        facts = {"model": str(model), "threads": compiled.threads, "streams": streams, "inputs": shapes}
        print_json(facts | {"results": [asdict(r) | _energy_facts(r, price) for r in results]})
    else:
        _print_bench(results, failed, feeds, job)
        _print_energy(results, price)
    if failed:
        raise typer.Exit(FAILED if failed[0].engine == "ingot" else UNSUPPORTED)


def _csv(results: Sequence[benching.Result]) -> str:
    text = io.StringIO()
    names = ["joules" if f.name == "energy" else f.name for f in fields(benching.Result)]
    writer = DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(asdict(r) | {"joules": r.energy and r.energy.joules} for r in results)
    return text.getvalue()


def _bench_language(
    model: Path,
    load: Callable[[Path], LanguageModel],
    rounds: int,
    streams: int,
    counters: EnergyCounters | None,
    price: float | None,
    as_json: bool,
) -> None:
    start = time.perf_counter()
    lm = load(model)
    seconds = time.perf_counter() - start
    progress.report("measure")
    result = pace(lm, PROMPT, TOKENS, rounds) if streams == 1 else joint_pace(lm, streams, PROMPT, TOKENS, rounds)
    energies: tuple[Energy, ...] = ()
    if counters is not None and streams > 1:
        energies = energy_of_joint_tokens(lm, streams, PROMPT, TOKENS, counters)
    elif counters is not None:
        energies = energy_of_tokens(lm, PROMPT, TOKENS, counters)
    named = list(zip(("prefill", "decode"), energies, strict=False))
    if as_json:
        facts = {"model": str(model), "threads": lm.threads, "streams": streams, "start_seconds": seconds}
        of_tokens = {f"joules_of_token_{name}": e.joules for name, e in named} | {
            f"cost_of_million_tokens_{name}": e.cost_of_million(price) for name, e in named if price is not None
        }
        print_json(facts | asdict(result) | of_tokens)
        return
    out.print(f"{threads_text(lm.threads)}; started in {time_text(seconds)}", highlight=False)
    out.print(f"reads  {result.prefill_rate:8.1f} tokens a second, of a prompt of {result.prompt}", highlight=False)
    out.print(f"writes {result.decode_rate:8.1f} tokens a second, {result.tokens} of them", highlight=False)
    for name, energy in named:
        out.print(escape(f"{name} {energy}" if energy.counters else str(energy)), highlight=False)
        if price is not None and (cost := energy.cost_of_million(price)) is not None:
            out.print(f"  a million tokens cost {cost:.4g} at {price:g} a kWh", highlight=False)
        if not energy.counters:
            return  # true of both


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


def _print_bench(
    results: Sequence[benching.Result], failed: Sequence[benching.Result], feeds: Arrays, job: Job
) -> None:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
    streams = f", {job.streams} streams of {job.threads_of_call}" if job.streams > 1 else ""
    out.print(f"{threads_text(job.threads)}{streams}; {escape(shapes)}", highlight=False)
    heads = (
        "engine",
        "median",
        "p90",
        "p99",
        "best",
        "calls/s",
        "ingot is faster by",
        "compile",
        "first call",
        "error",
    )
    table = plain_table(*heads, left=("engine",))
    for r in results:
        if r.seconds is None or r.calls_per_second is None:
            continue
        times = ["" if t is None else time_text(t) for t in (r.seconds, r.p90, r.p99, r.best)]
        starts = ["" if t is None else time_text(t) for t in (r.compile_seconds, r.first_seconds)]
        ratio = "" if r.ratio is None else f"[{'green' if r.ratio >= 1 else 'red'}]{r.ratio:.2f}x[/]"
        error = "" if r.error is None else f"{r.error:.1e}"
        table.add_row(r.engine, *times, f"{r.calls_per_second:.4g}", ratio, *starts, error)
    out.print(table)
    for r in results:
        if r.failure:
            style = "bold red" if r in failed else "dim"
            err.print(f"[{style}]{r.engine}:[/] {escape(r.failure)}", highlight=False)
