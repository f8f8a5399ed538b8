"""`ingot explain`: report where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ingot.cli.console import check_writable, command_context, escape, out, plain_table, print_json
from ingot.cli.options import CompileOptions, Feeds, Json, Limit, ModelOptions, Sizes, Uncompiled, grouped
from ingot.cli.sizes import random_inputs
from ingot.debug import explain as explaining
from ingot.debug.build import build
from ingot.debug.chrome import chrome_trace
from ingot.debug.drawing import bytes_text, time_text
from ingot.debug.feeds import read_feeds
from ingot.debug.report import html_report
from ingot.debug.source import Source, open_source, read_graph
from ingot.driver.compile import Options, check_runs
from ingot.ir.node import Graph
from ingot.runtime import artifact
from ingot.runtime.cpu.pool import thread_count
from ingot.support.files import atomic_write
from ingot.transform.bounds.error import rounding_errors, rounding_text
from ingot.transform.placement.run import compile_placed
from ingot.transform.quantize.report import Report


class Placement(StrEnum):
    """See `ingot.compile`."""

    strict = "strict"
    measured = "measured"


@grouped
def explain(
    model: Uncompiled,
    feed: Feeds = None,
    size: Sizes = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page: graph, timeline, memory.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace, for ui.perfetto.dev.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Rows of the table, slowest first; 0 for all, in order.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Runs; a kernel's time is its median.")] = 15,
    device_memory: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="Of the GPU's memory that the model may take.")
    ] = None,
    placement: Annotated[
        Placement, typer.Option(help="measured: ops whose weights do not fit may run on the CPU; prints the parts.")
    ] = Placement.strict,
    rounding: Annotated[
        bool, typer.Option("--rounding", help="Also bound how far rounding moves the results of these inputs.")
    ] = False,
    *,
    about: ModelOptions,
    settings: CompileOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Report where the time goes: the time of each kernel, its share of this machine's limits, and what was fused.

    The machine's multiply-add peak and memory bandwidth are measured in the same run.

    \b
    ingot explain model.onnx
    ingot explain model.onnx --html report.html --trace trace.json --size batch=8
    ingot explain model.onnx --input image=dog.png  on data of yours; other inputs are random
    ingot explain quantized.ingot                   the number format of each op, and its time
    ingot explain model.onnx --target cuda:sm_90a --device-memory 2000000000 --placement measured
    """
    with command_context(as_json, limit):
        source = open_source(model, about.words)
        check_writable([html, trace], [model])
        if source.kind == "artifact" and (receipt := artifact.load(source.path).meta.get("quantization")):
            _print_receipt(receipt, as_json)
            return
        check_runs(settings.target)
        graph = read_graph(source)
        if placement is Placement.measured:
            _print_parts(source, graph, settings, device_memory, size, as_json)
            return
        built = build(graph, **vars(settings))
        feeds = random_inputs(built.program, graph, size, 0, read_feeds(built.program, feed or []))
        explanation = explaining.explain(source.name, built, feeds, repeats, device_memory=device_memory)
        errors = _rounding(graph, feeds, settings) if rounding else None
        if html is not None:
            atomic_write(html, [html_report(explanation).encode()])
        if trace is not None:
            atomic_write(trace, [chrome_trace(explanation).encode()])
    if as_json:
        print_json(asdict(explanation) | ({} if errors is None else {"rounding": errors}))
        return
    _print_explanation(explanation, top)
    if errors is not None:
        out.print(escape(rounding_text(errors)), highlight=False)
    for path in filter(None, (html, trace)):
        out.print(f"[bold]{escape(str(path))}[/]", highlight=False)


def _print_parts(
    source: Source, graph: Graph, settings: CompileOptions, device_memory: int | None, size: Sizes, as_json: bool
) -> None:
    """Of a model over a GPU and the CPU."""
    options = Options(
        settings.target, thread_count(settings.threads), True, settings.fast_math, settings.precision, device_memory,
        settings.activations,
    )  # fmt: skip
    model = compile_placed(source.path, source.request, options)
    plan = build(graph, **{**vars(settings), "target": f"null:{settings.target}"})
    text = model.flat().explain(**random_inputs(plan.program, graph, size))
    print_json({"parts": text.splitlines()}) if as_json else out.print(escape(text), highlight=False)


def _rounding(graph: Graph, feeds: Mapping[str, Any], settings: CompileOptions) -> dict[str, float]:
    values = [np.asarray(feeds[getattr(x.op, "label", "")]) for x in graph.inputs]
    threads = thread_count(settings.threads)
    options = Options(settings.target, threads, precision=settings.precision, activations=settings.activations)
    return rounding_errors(graph, values, options)


def _print_receipt(receipt: str, as_json: bool) -> None:
    """Print the report that a quantized artifact contains."""
    report = Report.of_receipt(receipt)
    if as_json:
        print(report.to_json())
    else:
        out.print(escape(report.text()), highlight=False)


def _print_explanation(e: explaining.Explanation, top: int) -> None:
    sizes = ", ".join(f"{name} = {size}" for name, size in e.sizes.items()) or "all sizes fixed"
    out.print(f"[bold]{escape(e.model)}[/]  {sizes}; {e.rates.machine}", highlight=False)
    rows = sorted(e.rows, key=lambda r: -r.seconds)[:top] if top else e.rows
    heads = ("#", "kernel", "time", "share", "peak", "memory", "chunks", "MFLOP", "bytes", "why")
    table = plain_table(*heads, left=("kernel",))
    reasons = {text: f"({n})" for n, text in enumerate(dict.fromkeys(r.unfused_reason for r in rows), 1)}
    for r in rows:
        table.add_row(
            str(r.index),
            f"[bold]{escape(r.label)}[/] [dim]{escape(r.where)}[/]",
            time_text(r.seconds),
            f"{r.share:.1%}",
            f"{r.flops_share:.0%}" if r.flops else "",
            f"{r.bytes_share:.0%}",
            str(r.chunks),
            f"{r.flops / 1e6:.3g}" if r.flops else "",
            bytes_text(r.bytes),
            reasons[r.unfused_reason],
        )
    out.print(table)
    out.print("[dim]why a kernel is not fused with the one that reads its result:[/]")
    for text, number in reasons.items():
        out.print(f"  {number} {escape(text)}", highlight=False)
    rest = len(e.rows) - len(rows)
    if rest:
        out.print(f"[dim]and {rest} faster ones (--top 0)[/]")
    floor = f"{e.floor / e.seconds:.0%}" if e.seconds else "-"
    out.print(
        f"{time_text(e.call_seconds)} a call, {time_text(e.seconds)} of it in kernels: {len(e.rows)} groups, "
        f"{e.steps} steps; their floor is {time_text(e.floor)} ({floor}) "
        f"at the measured {e.rates.gflops:.0f} GFLOP/s and {e.rates.gbytes:.0f} GB/s; arena {bytes_text(e.arena)}, "
        f"weights {bytes_text(e.weights)}; {bytes_text(e.bytes)} moved",
        highlight=False,
    )
    for text in (*e.graphs, *e.notes):
        out.print(escape(text), highlight=False)
    for text in e.advice:
        out.print(f"[bold]next:[/] {escape(text)}", highlight=False)
    for text in e.rewrites:
        out.print(f"rewritten: {escape(text)}", highlight=False)
    if e.state:
        out.print(f"state: {sum(not why for _, why in e.state)} of {len(e.state)} written in place", highlight=False)
    for name, why in e.state:
        if why:
            out.print(f"  {escape(name)} is copied: {escape(why)}", highlight=False)
