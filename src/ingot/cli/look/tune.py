"""`ingot tune`: search by measurement for choices that the compiler otherwise makes with its cost models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ingot.cli.console import FAILED, check_writable, command_context, err, escape, out, plain_table, print_json
from ingot.cli.options import CompileOptions, Json, Limit, ModelOptions, Sizes, Uncompiled, grouped
from ingot.cli.sizes import one_size, random_inputs
from ingot.debug.build import build
from ingot.debug.drawing import time_text
from ingot.debug.feeds import Feeds
from ingot.debug.source import open_source, read_graph
from ingot.ir.node import Graph
from ingot.support import flags, progress
from ingot.support.errors import InputError
from ingot.tune.fleet import workers_of
from ingot.tune.rewrites.run import Report as RewritesReport
from ingot.tune.rewrites.run import find_rewrites
from ingot.tune.run import Report
from ingot.tune.run import tune as run_tuning


@grouped
def tune(
    model: Uncompiled,
    budget: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Approximate time to search.")] = 60,
    database: Annotated[
        Path | None, typer.Option(help="The file to write to; by default the user's own, which the compiler reads.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure kernels again that the database has.")] = False,
    workers: Annotated[
        str | None,
        typer.Option(metavar="N|ray|ray://HOST:PORT", help="Processes, or nodes of Ray, that measure candidates."),
    ] = None,
    rewrites: Annotated[
        bool,
        typer.Option("--rewrites", help="Search for faster equal forms of the model's subgraphs instead of kernels."),
    ] = False,
    size: Sizes = None,
    *,
    about: ModelOptions,
    settings: CompileOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Measure other register tiles, chunks and algorithms for the model's kernels, and store the faster ones.

    Later compilations for this kind of CPU and thread count, or for this kind of GPU, use them for all models with such
    layers. A candidate that hangs the GPU is killed and reported.

    Interrupt it at any time: the results so far are stored.

    \b
    ingot tune model.onnx
    ingot tune model.onnx --budget 300 --threads 1 --size batch=8
    ingot tune model.pt2 --target cuda:sm_90a        on the machine that has the GPU
    ingot tune model.onnx --database here.jsonl      use it with INGOT_TUNING=here.jsonl
    ingot tune model.onnx --workers ray://head:10001 candidates are measured on nodes of the same kind
    ingot tune model.onnx --rewrites --fast-math     (x @ w) + (x @ a) @ b as x @ (w + a @ b), if that is faster
    """
    with command_context(as_json, limit):
        source = open_source(model, about.words)
        path = database or flags.tuning()
        if path is None:
            raise InputError("a database to write to", expected="--database FILE", got="INGOT_TUNING=0")
        check_writable([database], [model])
        graph = read_graph(source)
        # of the plan alone, whose inputs tell the sizes
        plan = build(graph, **{**vars(settings), "target": f"null:{settings.target}"})
        feeds = random_inputs(plan.program, graph, size)
        if rewrites:
            _tune_rewrites(graph, feeds, path, budget, plan.threads, settings, as_json=as_json, workers=workers)
            return
        measurers = workers_of(workers) if workers else []

        def watch(text: str, seconds: float) -> None:
            progress.report(_status_text(text, budget - seconds), round(seconds), round(budget))

        task = {
            "model": str(model.resolve()), "words": vars(about.words), "threads": plan.threads,
            "fast_math": settings.fast_math, "precision": settings.precision, "activations": settings.activations,
            "sizes": one_size(plan.program, size),
        }  # fmt: skip
        try:
            report = run_tuning(
                graph, feeds, budget=budget, database=path, again=again, workers=measurers, task=task, watch=watch,
                **{**vars(settings), "threads": plan.threads},
            )  # fmt: skip
        finally:
            for worker in measurers:
                worker.close()
    if as_json:
        print_json(asdict(report))
    else:
        _print_report(report)
    for text in report.wrong_results:
        err.print(f"[bold red]please report: a candidate computes something else:[/] {escape(text)}", highlight=False)
    for text in report.failures:
        err.print(f"left out: {escape(text)}", highlight=False)
    if report.wrong_results:
        raise typer.Exit(FAILED)


def _tune_rewrites(
    graph: Graph, feeds: Feeds, path: Path, budget: float, threads: int, settings: CompileOptions, *, as_json: bool,
    workers: str | None,
) -> None:  # fmt: skip
    if settings.target != "native" or workers:
        got = f"--workers {workers}" if workers else f"--target {settings.target}"
        raise InputError("--rewrites", expected="this machine's CPU alone", got=got)

    def watch(text: str, seconds: float) -> None:
        progress.report(_status_text(text, budget - seconds), round(seconds), round(budget))

    report = find_rewrites(
        graph, feeds, threads=threads, budget=budget, database=path, fast_math=settings.fast_math,
        precision=settings.precision, watch=watch,
    )  # fmt: skip
    if as_json:
        print_json(asdict(report))
    else:
        _print_rewrites(report)
    wrong = [row.text for row in report.rows if row.state == "wrong"]
    for text in wrong:
        err.print(f"[bold red]please report: a form computes something else:[/] {escape(text)}", highlight=False)
    if wrong:
        raise typer.Exit(FAILED)


def _print_rewrites(r: RewritesReport) -> None:
    out.print(f"[bold]{escape(r.machine)}[/]", highlight=False)
    table = plain_table("subgraphs", "forms", "gain", "", "form", left=("", "form"))
    rest = [row for row in r.rows if not row.forms]
    for row in r.rows:
        if row.forms:
            gain = f"{row.gain:.2f}x" if row.state in ("kept", "slower") else ""
            table.add_row(str(row.count), str(row.forms), gain, row.state, escape(row.text))
    if len(rest) < len(r.rows):
        out.print(table)
    out.print(f"{len(rest)} other subgraphs have no cheaper form", highlight=False)
    if r.withdrawn_count:
        out.print(f"calls became slower: {r.withdrawn_count} results of this search were withdrawn", highlight=False)
    out.print(f"{len(r.rewrites)} kept; a call: {r.gain:.3f}x; {escape(r.database)}", highlight=False)


def _status_text(text: str, left: float) -> str:
    return f"{text}, {left:.0f} s left," if left > 0 else text


_STATES = {"open": "nothing faster yet", "known": "as measured before"}


def _print_report(r: Report) -> None:
    out.print(f"[bold]{escape(r.machine)}[/]", highlight=False)
    table = plain_table("kernel", "result", "launches", "share", "untuned", "tuned", "gain", "", left=("kernel", ""))
    for row in r.rows:
        is_tuned = row.state == "tuned"
        table.add_row(
            escape(row.kernel),
            row.result,
            str(row.count),
            f"{row.share:.1%}",
            time_text(row.untuned_seconds),
            time_text(row.seconds) if is_tuned else "",
            f"[green]{row.gain:.2f}x[/]" if is_tuned else "",
            escape(row.choice) if is_tuned else f"[dim]{_STATES.get(row.state, row.state)}[/]",
        )
    out.print(table)
    out.print(
        f"a call: {time_text(r.untuned_seconds)} untuned, {time_text(r.seconds)} tuned: {r.gain:.3f}x; "
        f"{escape(r.database)}",
        highlight=False,
    )
    if left := sum(row.state == "open" for row in r.rows):
        out.print(
            f"[bold]next:[/] {left} of {len(r.rows)} kernels have more to try: a larger --budget", highlight=False
        )
    if r.withdrawn_count:
        out.print(f"calls became slower: the {r.withdrawn_count} results of this search were withdrawn")
