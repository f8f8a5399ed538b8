"""`ingot inspect`: what is in a model's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ingot.cli.console import (
    UNSUPPORTED,
    check_writable,
    command_context,
    err,
    escape,
    out,
    plain_table,
    print_json,
)
from ingot.cli.options import Json, Limit, ModelOptions, Uncompiled, grouped
from ingot.debug import inspect as inspecting
from ingot.debug.drawing import bytes_text
from ingot.debug.source import open_source
from ingot.support.errors import InputError
from ingot.support.files import atomic_write


@grouped
def inspect(
    model: Uncompiled,
    top: Annotated[int, typer.Option(min=0, help="Layers of the table, the largest first; 0: all.")] = 12,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the graph.")] = None,
    *,
    about: ModelOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Show what is in a model, without compiling it: inputs, outputs, ops, parameters, and what is not supported.

    \b
    ingot inspect model.onnx
    ingot inspect model.onnx --svg graph.svg --top 0
    """
    with command_context(as_json, limit):
        source = open_source(model, about.words)
        check_writable([svg], [model])
        inspection, graph = inspecting.inspect(source)
        if svg is not None:
            if graph is None:
                expected = (
                    f"one graph, as with {_choices(inspection)}"
                    if inspection.deciders
                    else "ops that are all supported"
                )
                raise InputError("--svg", expected=expected, got=inspection.deciders or len(inspection.unsupported))
            atomic_write(svg, [inspecting.picture(graph).encode()])
    if as_json:
        facts = {"parameters": inspection.parameters, "parameter_bytes": inspection.nbytes}
        unsupported = [str(op) for op in inspection.unsupported]
        print_json({"model": str(model), **asdict(inspection), **facts, "unsupported": unsupported})
    else:
        _print(inspection, top)
    if inspection.unsupported:
        raise typer.Exit(UNSUPPORTED)


def _print(inspection: inspecting.Inspection, top: int) -> None:
    for name, lines in (("in", inspection.inputs), ("out", inspection.outputs)):
        for line in lines:
            out.print(f"[dim]{name:>3}[/]  {escape(line)}", highlight=False)
    if inspection.file_ops:
        out.print(
            f"{sum(inspection.file_ops.values())} nodes in the file: {_counts(inspection.file_ops)}", highlight=False
        )
    if inspection.ops:
        out.print(f"{sum(inspection.ops.values())} ops: {_counts(inspection.ops)}", highlight=False)
        out.print(f"{inspection.parameters:,} parameters, {bytes_text(inspection.nbytes)}", highlight=False)
    layers = inspection.layers[:top] if top else inspection.layers
    table = plain_table("layer", "op", "parameters", "bytes", left=("layer", "op"))
    for layer in layers:
        table.add_row(escape(layer.name), layer.op, f"{layer.count:,}", bytes_text(layer.nbytes))
    if layers:
        out.print(table)
    if len(layers) < len(inspection.layers):
        out.print(f"[dim]and {len(inspection.layers) - len(layers)} smaller ones (--top 0)[/]")
    if inspection.deciders:
        out.print(
            f"compiled for each call's {' and '.join(inspection.deciders)}, or once: {_choices(inspection)}",
            highlight=False,
        )
    if inspection.unsupported:
        err.print(f"[bold red]not supported:[/] {len(inspection.unsupported)} of the nodes", highlight=False)
        for text in dict.fromkeys(str(op) for op in inspection.unsupported):
            err.print(f"  {escape(text)}", highlight=False)


def _choices(inspection: inspecting.Inspection) -> str:
    """The options with which a model that calls decide is one program."""
    values = [f"--constant {name}=VALUE" for name in inspection.deciders if name != "sizes"]
    return " and ".join([*values, *(["--dim NAME=SIZE"] if "sizes" in inspection.deciders else [])])


def _counts(counts: Mapping[str, int]) -> str:
    return escape(", ".join(f"{count} {name}" for name, count in counts.items()))
