"""`ingot prune`: a compiled model with its smallest weights set to zero."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ingot.cli.console import check_writable, command_context, escape, out, plain_table, print_json
from ingot.cli.options import Dims, Json, Limit, Threads, Uncompiled
from ingot.debug.drawing import bytes_text
from ingot.debug.source import Words, open_source
from ingot.support import progress
from ingot.support.errors import InputError, check_once
from ingot.transform.prune import prune_model


def prune(
    model: Uncompiled,
    sparsity: Annotated[
        list[str],
        typer.Option(metavar="[NAME=]FRACTION", help="Of weights to set to zero, such as 0.9; or of products by name."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default MODEL with the suffix .ingot.")
    ] = None,
    block: Annotated[int, typer.Option(help="Neighboring outputs that are kept or dropped together: 1, 4 or 16.")] = 4,
    scope: Annotated[str, typer.Option(help="layer: the fraction of each product; global: of all together.")] = "layer",
    threads: Threads = None,
    dim: Dims = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Compile a model with its smallest weights set to zero, by magnitude. Check with your own data what that costs.

    \b
    ingot prune model.onnx --sparsity 0.9
    ingot prune model.onnx --sparsity 0.5 --sparsity "*intermediate*=0.9" --block 16 -o small.ingot
    """
    with command_context(as_json, limit):
        source = open_source(model, Words(dim or []))
        path = output or model.with_suffix(".ingot")
        check_writable([path], [model])
        progress.report("prune")
        scope_name: Any = scope  # checked there
        pruned = prune_model(source.path, _fractions(sparsity), block, scope_name, None, source.dynamic, threads)
        pruned.save(path)
    if as_json:
        print_json({"output": str(path), "file_bytes": path.stat().st_size, "sparsity": pruned.sparsity})
        return
    table = plain_table("product", "zeros", left=("product",))
    for name, zeros in pruned.sparsity.items():
        table.add_row(escape(name), f"{zeros:.1%}")
    out.print(table)
    out.print(f"[bold]{escape(str(path))}[/]  {bytes_text(path.stat().st_size)}", highlight=False)


def _fractions(texts: list[str]) -> float | dict[str, float]:
    """["0.5", "*head*=0.9"] -> fractions by patterns of names; of one number itself."""
    fractions: dict[str, float] = {}
    check_once("--sparsity", [text.rpartition("=")[0] for text in texts])
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            fractions[name or "*"] = float(number)
        except ValueError as error:
            raise InputError("--sparsity", expected="0.9, or NAME=0.9", got=repr(text)) from error
    return fractions["*"] if [*fractions] == ["*"] else fractions
