"""`ingot quantize`: a float model to a compiled one whose number formats were chosen by measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingot.cli.console import check_writable, escape, out, presented
from ingot.cli.options import Dims, Json, Limit, Threads, Uncompiled
from ingot.debug.feeds import read_archive
from ingot.debug.source import Words, open_source
from ingot.transform.quantize.run import Asked, quantize_model


def quantize(
    model: Uncompiled,
    samples: Annotated[Path, typer.Option(help="A .npz file: an array for each input, samples along the first axis.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default MODEL with the suffix .ingot.")
    ] = None,
    at_least: Annotated[
        float | None, typer.Option(help="Part of the float model's cosine to keep, such as 0.998.")
    ] = None,
    latency_ms: Annotated[float | None, typer.Option(help="Most milliseconds of a call.")] = None,
    size_mb: Annotated[float | None, typer.Option(help="Most megabytes of code and weights.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="About how long to search.")] = 60,
    formats: Annotated[
        str | None, typer.Option(help="What to try: int8,int8-dynamic,bfloat16,weight4 and others.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples in a call, where the model leaves it open.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of which samples are kept apart.")] = 0,
    table: Annotated[
        Path | None, typer.Option(help="A file that keeps what was measured, to go on or to repeat.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one self-contained page.")] = None,
    onnx: Annotated[Path | None, typer.Option(help="Write the ONNX model with its formats, too.")] = None,
    threads: Threads = None,
    dim: Dims = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Choose a number format for each product of the model, within constraints that are checked, and compile it.

    A part of the samples is kept apart from the search: what is promised holds on these. Where the constraints cannot
    be kept, the nearest models are told and nothing is written.

    \b
    ingot quantize model.onnx --samples data.npz
    ingot quantize model.onnx --samples data.npz --at-least 0.998 --latency-ms 5 --html report.html
    ingot quantize model.onnx --samples data.npz --size-mb 20 --table measured.json
    """
    with presented(as_json, limit):
        source = open_source(model, Words(dim or []))
        path = output or model.with_suffix(".ingot")
        check_writable([path, html, onnx, table], [model, samples])
        chosen = None if formats is None else tuple(formats.split(","))
        asked = Asked(None, at_least, latency_ms, size_mb, seconds, chosen, threads, seed)
        dims = source.dynamic
        made = quantize_model(source.path, read_archive(samples), dynamic=dims, batch=batch, table=table, asked=asked)
        made.save(path)
        if onnx is not None:
            made.save_onnx(onnx)
        if html is not None:
            made.report.write_html(html)
    if as_json:
        print(made.report.to_json())
        return
    out.print(escape(made.report.text()), highlight=False)
    out.print(f"[bold]{escape(str(path))}[/]", highlight=False)
