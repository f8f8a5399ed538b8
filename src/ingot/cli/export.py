"""`ingot export`: write a model as a StableHLO program or as a TFLite file."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ingot.cli.console import check_writable, command_context, out, print_json
from ingot.cli.options import Json, ModelOptions, Uncompiled, grouped
from ingot.debug.feeds import read_archive
from ingot.debug.npu import NpuReport, npu_report
from ingot.debug.source import Source, open_source, read_graph
from ingot.exporters.stablehlo import write
from ingot.ir.node import Graph
from ingot.support.errors import InputError
from ingot.support.files import atomic_write
from ingot.transform.quantize.samples import read_samples


@grouped
def export(
    model: Uncompiled,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write: .tflite, or .mlir, which is the default."),
    ] = None,
    inline: Annotated[bool, typer.Option("--inline", help="Store the weights in StableHLO's text.")] = False,
    samples: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="For TFLite: write int8, by ranges over these inputs.")
    ] = None,
    float_edges: Annotated[
        bool, typer.Option("--float-edges", help="Keep inputs and outputs of int8 TFLite in floats.")
    ] = False,
    activations: Annotated[
        str, typer.Option(metavar="TYPE", help="With --samples: the type of values between operators, int8 or int16.")
    ] = "int8",
    npu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Have Vela compile the TFLite file (ethos-u55-128) and say what it made."),
    ] = None,
    *,
    about: ModelOptions,
    as_json: Json = False,
) -> None:
    """Write a model as StableHLO text, which XLA (also for TPUs), IREE and others compile, or as a TFLite file.

    StableHLO: weights of more than 4 KiB are the program's last arguments, and are stored next to it in a safetensors
    file of the same name; smaller ones are stored in the text. TFLite: sizes are fixed.

    \b
    ingot export model.onnx                         writes model.mlir and model.safetensors
    ingot export model.onnx -o small.mlir --inline --dim batch=1
    ingot export model.onnx -o model.tflite --dim batch=1
    ingot export model.onnx -o model.tflite --samples data.npz --npu ethos-u55-128
    """
    with command_context(as_json):
        source = open_source(model, about.words)
        graph = read_graph(source)
        path = output or model.with_suffix(".mlir")
        if path.suffix != ".tflite" and (samples or npu or float_edges or activations != "int8"):
            raise InputError("--samples, --float-edges, --activations, --npu", expected="-o FILE.tflite", got=path.name)
        check_writable([path], [model, *([samples] if samples else [])])
        report: NpuReport | None = None
        if path.suffix == ".tflite":
            weights = _write_tflite(source, graph, path, samples, float_edges, activations)
            report = None if npu is None else npu_report(path, npu)
        else:
            weights = write(graph, path, inline)
    files = [str(path), *([str(weights)] if weights else [])]
    if as_json:
        print_json({"output": files} | ({} if report is None else {"npu": asdict(report)}))
        return
    out.print(escape("  ".join(files)))
    if report is not None:
        _print_report(report)


def _write_tflite(
    source: Source, graph: Graph, path: Path, samples: Path | None, float_edges: bool, activations: str
) -> None:
    """Sizes that the model leaves open are the samples'."""
    from ingot.exporters.tflite import content
    from ingot.transform.quantize.tflite import sizes_of, write_levels

    if samples is None:
        atomic_write(path, [content(graph)])
    else:
        calls = read_samples(graph, read_archive(samples), None, 1).calls
        if sizes := sizes_of(graph, calls[0]):
            graph = read_graph(replace(source, dims={**sizes, **source.dims}))
        write_levels(graph, calls, path, float_edges, activations)


def _print_report(report: NpuReport) -> None:
    total = report.npu_operators + report.cpu_operators
    out.print(f"{report.accelerator}: {report.npu_operators} of {total} operators on the NPU", highlight=False)
    for name, tensor, reason in report.on_cpu:
        out.print(f"  on the CPU: {name} of {escape(tensor)}: {escape(reason)}", highlight=False)
    memory = f"{report.sram_kib:.1f} KiB of SRAM, {report.other_kib:.1f} KiB of flash or DRAM"
    out.print(f"{memory}; Vela's estimate: {report.estimate_ms:.3f} ms a call", highlight=False)
