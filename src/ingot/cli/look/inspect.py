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
        found, graph = inspecting.inspect(source)
        if svg is not None:
            if graph is None:
                expected = f"one graph, as with {_choices(found)}" if found.deciders else "ops that are all supported"
                raise InputError("--svg", expected=expected, got=found.deciders or len(found.unsupported))
            atomic_write(svg, [inspecting.picture(graph).encode()])
    if as_json:
        facts = {"parameters": found.parameters, "parameter_bytes": found.nbytes}
        unsupported = [str(op) for op in found.unsupported]
        print_json({"model": str(model), **asdict(found), **facts, "unsupported": unsupported})
    else:
        _print(found, top)
    if found.unsupported:
        raise typer.Exit(UNSUPPORTED)


def _print(found: inspecting.Inspection, top: int) -> None:
    for name, lines in (("in", found.inputs), ("out", found.outputs)):
        for line in lines:
            out.print(f"[dim]{name:>3}[/]  {escape(line)}", highlight=False)
    if found.file_ops:
        out.print(f"{sum(found.file_ops.values())} nodes in the file: {_counts(found.file_ops)}", highlight=False)
    if found.ops:
        out.print(f"{sum(found.ops.values())} ops: {_counts(found.ops)}", highlight=False)
        out.print(f"{found.parameters:,} parameters, {bytes_text(found.nbytes)}", highlight=False)
    shown = found.layers[:top] if top else found.layers
    table = plain_table("layer", "op", "parameters", "bytes", left=("layer", "op"))
    for layer in shown:
        table.add_row(escape(layer.name), layer.op, f"{layer.count:,}", bytes_text(layer.nbytes))
    if shown:
        out.print(table)
    if len(shown) < len(found.layers):
        out.print(f"[dim]and {len(found.layers) - len(shown)} smaller ones (--top 0)[/]")
    if found.deciders:
        out.print(
            f"compiled for each call's {' and '.join(found.deciders)}, or once: {_choices(found)}", highlight=False
        )
    if found.unsupported:
        err.print(f"[bold red]not supported:[/] {len(found.unsupported)} of the nodes", highlight=False)
        for text in dict.fromkeys(str(op) for op in found.unsupported):
            err.print(f"  {escape(text)}", highlight=False)


def _choices(found: inspecting.Inspection) -> str:
    """The options with which a model that calls decide is one program."""
    values = [f"--constant {name}=VALUE" for name in found.deciders if name != "sizes"]
    return " and ".join([*values, *(["--dim NAME=SIZE"] if "sizes" in found.deciders else [])])


def _counts(counts: Mapping[str, int]) -> str:
    return escape(", ".join(f"{count} {name}" for name, count in counts.items()))
