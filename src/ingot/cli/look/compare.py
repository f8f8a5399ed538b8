"""`ingot compare`: check whether a compiled model is right, and find the cause if it is not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ingot.cli.console import MISMATCH, command_context, escape, out, plain_table, print_json
from ingot.cli.options import CompileOptions, Json, Limit, ModelOptions, Sizes, Uncompiled, grouped
from ingot.debug.comparison import compare as comparing
from ingot.debug.feeds import parse_sizes
from ingot.debug.source import open_source
from ingot.driver.compile import check_runs


@grouped
def compare(
    model: Uncompiled,
    program: Annotated[Path | None, typer.Option(help="Check this .ingot file instead of compiling now.")] = None,
    size: Sizes = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Allowed error, relative to the largest magnitude; 1e-4 for float32.")
    ] = None,
    interpreter: Annotated[
        bool, typer.Option("--interpreter/--no-interpreter", help="Compare with Ingot's interpreter too (slow).")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    *,
    about: ModelOptions,
    settings: CompileOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Check a compiled model on random inputs at several sizes, and name the cause if it is wrong.

    The references are the model's own framework, if it is installed (ONNX Runtime, PyTorch, LiteRT, XLA, TensorFlow,
    Keras, torch.jit), and Ingot's interpreter.

    Elements that differ by rounding alone, according to float64, count as equal. If outputs differ, it names the first
    op that is wrong, and the import, pass, rewrite rule or kernel responsible.

    \b
    ingot compare model.onnx
    ingot compare model.onnx --size batch=1,length=128 --size batch=3,length=7
    ingot compare model.onnx --program model.ingot
    ingot compare scripted.pt --inputs x=f32:1,? --constant rate=16000
    """
    with command_context(as_json, limit):
        source = open_source(model, about.words)
        if program is None:
            check_runs(settings.target)
        comparison = comparing.compare(
            source, program=program, sizes=parse_sizes(size or []), tolerance=tolerance, interpreter=interpreter,
            seed=seed, **vars(settings),
        )  # fmt: skip
    if as_json:
        checks = [asdict(c) for c in comparison.checks]
        blame = None if comparison.blame is None else asdict(comparison.blame)
        print_json(
            {"model": str(model), "ok": comparison.ok, "checks": checks, "refused": comparison.refused, "blame": blame}
        )
    else:
        _print_comparison(comparison)
    if not comparison.ok:
        raise typer.Exit(MISMATCH)


def _print_comparison(comparison: comparing.Comparison) -> None:
    table = plain_table("sizes", "against", "output", "error", "relative", "", left=("sizes", "against", "output", ""))
    for c in comparison.checks:
        a = c.agreement
        verdict = f"{'[green]ok[/]' if a.ok else '[bold red]differs[/]'} {escape(a.note)}".strip()
        sizes = ", ".join(f"{name}={size}" for name, size in c.sizes.items()) or "fixed"
        table.add_row(sizes, escape(c.against), escape(c.output), f"{a.error:.2e}", f"{a.relative:.1e}", verdict)
    out.print(table)
    for text in comparison.refused:
        out.print(f"not compared: {escape(text)}", highlight=False)
    if comparison.blame is not None:
        out.print(f"\n[bold red]to blame:[/] {escape(str(comparison.blame))}", highlight=False)
