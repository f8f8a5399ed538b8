"""`ingot quantize`: compile a float model with number formats chosen by measurement."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ingot.cli.console import check_writable, command_context, escape, out
from ingot.cli.options import Dims, Json, Limit, Threads, Uncompiled
from ingot.debug.feeds import read_archive
from ingot.debug.source import Words, open_source
from ingot.transform.quantize.run import SearchOptions, quantize_model
from ingot.transform.quantize.workers.fleet import Fleet
from ingot.tune.fleet import workers_of


def quantize(
    model: Uncompiled,
    samples: Annotated[Path, typer.Option(help="A .npz file: an array for each input, samples along the first axis.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default MODEL with the suffix .ingot.")
    ] = None,
    at_least: Annotated[
        float | None, typer.Option(help="Fraction of the float model's cosine to retain, such as 0.998.")
    ] = None,
    latency_ms: Annotated[float | None, typer.Option(help="Longest time of a call, in milliseconds.")] = None,
    size_mb: Annotated[float | None, typer.Option(help="Largest size of code and weights, in megabytes.")] = None,
    energy_mj: Annotated[
        float | None, typer.Option(help="Most energy of a call, in millijoules, where there is a counter.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Approximate time to search.")] = 60,
    formats: Annotated[
        str | None, typer.Option(help="Formats to try: int8,int8-dynamic,bfloat16,weight4 and others.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples in a call, if the model's batch is dynamic.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Selects the samples that are held out.")] = 0,
    table: Annotated[
        Path | None, typer.Option(help="A file that stores measurements, to continue or repeat a search.")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="N|ray|ray://HOST:PORT", help="Processes, or nodes of Ray, that measure candidates."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one self-contained page.")] = None,
    onnx: Annotated[Path | None, typer.Option(help="Also write the ONNX model with its formats.")] = None,
    threads: Threads = None,
    dim: Dims = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Choose a number format for each product of the model, within constraints that are checked, and compile it.

    Some samples are held out from the search, and the constraints are checked on these. If no model meets the
    constraints, it reports the nearest ones and writes nothing.

    \b
    ingot quantize model.onnx --samples data.npz
    ingot quantize model.onnx --samples data.npz --at-least 0.998 --latency-ms 5 --html report.html
    ingot quantize model.onnx --samples data.npz --size-mb 20 --table measured.json
    ingot quantize model.onnx --samples data.npz --workers ray://head:10001   nodes of the same kind
    """
    with command_context(as_json, limit):
        source = open_source(model, Words(dim or []))
        path = output or model.with_suffix(".ingot")
        check_writable([path, html, onnx, table], [model, samples])
        format_names = None if formats is None else tuple(formats.split(","))
        options = SearchOptions(None, at_least, latency_ms, size_mb, energy_mj, seconds, format_names, threads, seed)
        task = {
            "model": str(source.path.resolve()), "words": {"dims": dim or []}, "samples": str(samples.resolve()),
            "batch": batch, "options": asdict(options),
        }  # fmt: skip
        fleet = Fleet(workers_of(workers, "ingot.transform.quantize.workers.worker"), task) if workers else None
        try:
            quantized = quantize_model(
                source.path, read_archive(samples), dynamic=source.dynamic, batch=batch, table=table, options=options,
                fleet=fleet,
            )  # fmt: skip
        finally:
            for worker in fleet.workers if fleet is not None else ():
                worker.close()
        quantized.save(path)
        if onnx is not None:
            quantized.save_onnx(onnx)
        if html is not None:
            quantized.report.write_html(html)
    if as_json:
        print(quantized.report.to_json())
        return
    out.print(escape(quantized.report.text()), highlight=False)
    for file in filter(None, (path, onnx, html)):
        out.print(f"[bold]{escape(str(file))}[/]", highlight=False)
