"""`ingot export`: write a model as a StableHLO program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ingot.cli.console import check_writable, command_context, out, print_json
from ingot.cli.options import Json, ModelOptions, Uncompiled, grouped
from ingot.debug.source import open_source, read_graph
from ingot.exporters.stablehlo import write


@grouped
def export(
    model: Uncompiled,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default MODEL with the suffix .mlir.")
    ] = None,
    inline: Annotated[bool, typer.Option("--inline", help="Store the weights in the program's text.")] = False,
    *,
    about: ModelOptions,
    as_json: Json = False,
) -> None:
    """Write a model as StableHLO text, which XLA (also for TPUs), IREE and others compile.

    Weights of more than 4 KiB are the program's last arguments, and are stored next to it in a safetensors file of the
    same name; smaller ones are stored in the text.

    \b
    ingot export model.onnx                         writes model.mlir and model.safetensors
    ingot export model.onnx -o small.mlir --inline --dim batch=1
    """
    with command_context(as_json):
        graph = read_graph(open_source(model, about.words))
        path = output or model.with_suffix(".mlir")
        check_writable([path], [model])
        weights = write(graph, path, inline)
    files = [str(path), *([str(weights)] if weights else [])]
    if as_json:
        print_json({"output": files})
        return
    out.print(escape("  ".join(files)))
